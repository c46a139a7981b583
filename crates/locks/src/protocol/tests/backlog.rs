//! What a master that is not open keeps, as clients see it.

use super::*;

/// A thousand new locks of the second node, each given up, all before its master acts; then lock 1 writes and goes.
fn gives_up(few: &mut Few, name: &[u8]) {
    for lock in 2..1_000 {
        few.lock(1, lock, FIRST, name, Mode::PR, WaitLimit::Forever);
        if lock % 2 == 0 {
            few.event(1, Event::Cancel { lock: LockId(lock) });
        }
        few.unlock(1, lock, None);
        assert_eq!(few.news(), [format!("{lock}-Cancelled")]);
    }
    few.convert(1, 1, Mode::PR, Some([1; VALUE_LEN]));
    few.unlock(1, 1, None);
}

#[test]
fn what_is_given_up_while_the_members_change_is_not_kept() {
    let all = [0, 1, 2];
    let mut few = Few::new(&all);
    let name = few.name_at(0);
    few.lock(2, 0, FIRST, &name, Mode::NL, WaitLimit::Forever);
    few.lock(1, 1, FIRST, &name, Mode::EX, WaitLimit::Forever);
    assert_eq!(few.news(), ["0+NL", "1+EX"]);
    // The third has not heard of the view, and the others wait for it.
    for node in [0, 1] {
        few.event(node, Event::View(view(2, &all)));
    }
    gives_up(&mut few, &name);
    assert!(!few.shards[0].is_open());
    few.event(2, Event::View(view(2, &all)));
    few.lock(2, 1_000, FIRST, &name, Mode::EX, WaitLimit::Try);
    assert_eq!(
        (few.value_of(1_000), few.news()),
        ((1, Validity::Valid), vec!["1-Cancelled".into(), "1000+EX".into()])
    );
}

#[test]
fn what_is_given_up_before_its_master_knows_the_view_is_not_kept() {
    let mut few = Few::new(&[0, 1]);
    let name = few.name_at(0);
    few.lock(0, 0, FIRST, &name, Mode::NL, WaitLimit::Forever);
    few.lock(1, 1, FIRST, &name, Mode::EX, WaitLimit::Forever);
    few.event(1, Event::View(view(2, &[0, 1])));
    few.news();
    gives_up(&mut few, &name);
    few.lock(1, 1_000, FIRST, &name, Mode::EX, WaitLimit::Forever);
    few.event(0, Event::View(view(2, &[0, 1])));
    assert_eq!(
        (few.value_of(1_000), few.news()),
        ((1, Validity::Valid), vec!["1-Cancelled".into(), "1000+EX".into()])
    );
}

#[test]
fn what_an_earlier_incarnation_gave_up_takes_nothing_back_of_the_next() {
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
fn more_than_a_member_can_have_asked_is_refused_and_the_master_opens_all_the_same() {
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
fn all_that_members_ask_again_is_kept_and_shows_that_the_resource_is_not_new() {
    let mut few = Few::new(&[0, 1, 2, 3]);
    let count = config(0).locks_max as u64;
    few.shards.iter_mut().for_each(|shard| shard.core.config.waiting_max = count as usize);
    let (name, left) = (few.name_at(3), view(2, &[0, 1, 2]));
    let next = left.master(Name::new(&name).expect("a name").partition()).index();
    let (home, silent) = ((next + 1) % 3, (next + 2) % 3);
    few.lock(3, 100, FIRST, &name, Mode::EX, WaitLimit::Forever);
    (0..count).for_each(|lock| few.lock(home, lock, FIRST, &name, Mode::PR, WaitLimit::Forever));
    for node in [next, home] {
        few.event(node, Event::View(left.clone()));
    }
    (0..count).for_each(|lock| few.unlock(home, lock, None));
    let last = 2 * count - 1;
    (count..=last).for_each(|lock| few.lock(home, lock, FIRST, &name, Mode::PR, WaitLimit::Forever));
    (count..last).for_each(|lock| few.event(home, Event::Cancel { lock: LockId(lock) }));
    let cancelled = (0..count).map(|lock| format!("{lock}-Cancelled"));
    let told = ["100+EX".to_owned(), "100?PR".to_owned()].into_iter().chain(cancelled);
    assert_eq!(few.news(), told.collect::<Vec<_>>());
    few.event(silent, Event::View(left));
    assert_eq!(few.value_of(last), (0, Validity::Lost));
    let answered = (count..last).map(|lock| format!("{lock}-Cancelled"));
    assert_eq!(few.news(), answered.chain([format!("{last}+PR")]).collect::<Vec<_>>());
}
