//! The messages that a master keeps while it is not open, as clients see it.

use super::*;

/// Requests and releases a thousand new locks of the second node before its master acts; then lock
/// 1 writes and is released.
fn gives_up(few: &mut Few, name: &[u8]) {
    for lock in 2..1_000 {
        few.lock(1, lock, FIRST, name, Mode::PR, WaitLimit::Forever);
        if lock % 2 == 0 {
            few.event(1, Event::Cancel { lock: LockId(lock) });
        }
        few.unlock(1, lock, None);
        assert_eq!(few.notices(), [format!("{lock}-Cancelled")]);
    }
    few.convert(1, 1, Mode::PR, Some([1; VALUE_LEN]));
    few.unlock(1, 1, None);
}

#[test]
fn requests_released_during_a_view_change_are_not_kept() {
    let all = [0, 1, 2];
    let mut few = Few::new(&all);
    let name = few.name_at(0);
    few.lock(2, 0, FIRST, &name, Mode::NL, WaitLimit::Forever);
    few.lock(1, 1, FIRST, &name, Mode::EX, WaitLimit::Forever);
    assert_eq!(few.notices(), ["0+NL", "1+EX"]);
    // The third node does not know the view yet, and the others wait for it.
    few.enter([0, 1], &view(2, &all));
    gives_up(&mut few, &name);
    assert!(!few.shards[0].is_open());
    few.event(2, Event::View(view(2, &all)));
    few.lock(2, 1_000, FIRST, &name, Mode::EX, WaitLimit::Try);
    assert_eq!(
        (few.value_of(1_000), few.notices()),
        ((1, Validity::Valid), vec!["1-Cancelled".into(), "1000+EX".into()])
    );
}

#[test]
fn requests_released_before_their_master_knows_the_view_are_not_kept() {
    let mut few = Few::new(&[0, 1]);
    let name = few.name_at(0);
    few.lock(0, 0, FIRST, &name, Mode::NL, WaitLimit::Forever);
    few.lock(1, 1, FIRST, &name, Mode::EX, WaitLimit::Forever);
    few.event(1, Event::View(view(2, &[0, 1])));
    few.notices();
    gives_up(&mut few, &name);
    few.lock(1, 1_000, FIRST, &name, Mode::EX, WaitLimit::Forever);
    few.event(0, Event::View(view(2, &[0, 1])));
    assert_eq!(
        (few.value_of(1_000), few.notices()),
        ((1, Validity::Valid), vec!["1-Cancelled".into(), "1000+EX".into()])
    );
}

#[test]
fn a_release_by_an_earlier_incarnation_leaves_the_next_incarnation_alone() {
    let mut few = Few::new(&[0, 1]);
    let name = Name::new(&few.name_at(0)).expect("a name");
    let lock = LockId(1);
    let request = new_lock(lock, name.clone());
    let unlock = Unlock { lock, name: name.clone(), died: false, value: None };
    for (incarnation, epoch, body) in
        [(2, 3, request), (1, 2, LockMessage::Unlock(unlock)), (2, 3, LockMessage::Done)]
    {
        let message = Message { epoch: Epoch(epoch), body };
        few.hand(0, Event::Message { from: NodeId(1), incarnation: Incarnation(incarnation), message });
    }
    let mut next = view(3, &[0, 1]);
    next.members[1].1 = Incarnation(2);
    few.hand(0, Event::View(next));
    assert_eq!(few.shards[0].resource(&name).map(|resource| resource.granted().len()), Some(1));
}

#[test]
fn messages_beyond_the_bound_of_a_member_are_refused_and_the_master_still_opens() {
    let mut few = Few::new(&[0, 1]);
    let name = Name::new(&few.name_at(0)).expect("a name");
    few.held_up = true;
    few.event(0, Event::View(view(2, &[0, 1])));
    let bound = 7 * config(0).locks_max as u64;
    let mut out = Vec::new();
    for lock in 0..=bound {
        let body =
            LockMessage::Unlock(Unlock { lock: LockId(lock), name: name.clone(), died: false, value: None });
        let (incarnation, message) = (Incarnation(1), Message { epoch: Epoch(2), body });
        few.shards[0].handle(Nanos(0), Event::Message { from: NodeId(1), incarnation, message }, &mut out);
        assert_eq!(out.len() as u64, lock / bound, "{out:?}");
    }
    assert!(matches!(out[..], [Action::Fault { from: NodeId(1), .. }]), "{out:?}");
    few.event(1, Event::View(view(2, &[0, 1])));
    few.go_on();
    assert!(few.shards.iter().all(Shard::is_open));
}

#[test]
fn repeated_requests_are_kept_and_show_that_the_resource_is_not_new() {
    let mut few = Few::new(&[0, 1, 2, 3]);
    let count = config(0).locks_max as u64;
    few.shards.iter_mut().for_each(|shard| shard.core.config.waiting_max = count as usize);
    let (name, left) = (few.name_at(3), view(2, &[0, 1, 2]));
    let next = left.master(Name::new(&name).expect("a name").partition()).index();
    let (home, silent) = ((next + 1) % 3, (next + 2) % 3);
    few.lock(3, 100, FIRST, &name, Mode::EX, WaitLimit::Forever);
    (0..count).for_each(|lock| few.lock(home, lock, FIRST, &name, Mode::PR, WaitLimit::Forever));
    few.enter([next, home], &left);
    (0..count).for_each(|lock| few.unlock(home, lock, None));
    let last = 2 * count - 1;
    (count..=last).for_each(|lock| few.lock(home, lock, FIRST, &name, Mode::PR, WaitLimit::Forever));
    (count..last).for_each(|lock| few.event(home, Event::Cancel { lock: LockId(lock) }));
    let cancelled = (0..count).map(|lock| format!("{lock}-Cancelled"));
    let told = ["100+EX".to_owned(), "100?PR".to_owned()].into_iter().chain(cancelled);
    assert_eq!(few.notices(), told.collect::<Vec<_>>());
    few.event(silent, Event::View(left));
    assert_eq!(few.value_of(last), (0, Validity::Lost));
    let answered = (count..last).map(|lock| format!("{lock}-Cancelled"));
    assert_eq!(few.notices(), answered.chain([format!("{last}+PR")]).collect::<Vec<_>>());
}
