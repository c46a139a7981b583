//! Single rules of the protocol.

use super::{core::Horizon, *};

/// Its slots may have numbers that other members do not know yet.
#[test]
fn slots_of_the_last_run_of_the_own_node_wait_for_the_other_members() {
    let (me, other) = (NodeId(0), NodeId(1));
    let mut core = Core::<Token>::new(me, Incarnation(3), || 0);
    core.view(Epoch(2), &[(me, Incarnation(3)), (other, Incarnation(2))]);
    let id = TransactionId::new(1, 0);
    core.learn_home(1, Home { node: me, incarnation: Incarnation(1), since: Epoch(1) });
    core.raised(Epoch(2), 10);
    assert_eq!(core.status(id, 5), StatusPath::Ask);
    let body = super::messages::MessageBody::Raised { epoch: Epoch(2) };
    core.message(other, Message { clock: 10, lows: [10; LOWS], body });
    assert_eq!(core.status(id, 5), StatusPath::ReadSlot);
}

/// It may have a snapshot of any moment.
#[test]
fn a_newcomer_keeps_all_versions_until_it_is_heard() {
    let (me, other) = (NodeId(0), NodeId(1));
    let mut core = Core::<Token>::new(me, Incarnation(1), || 0);
    core.raise(9);
    core.view(Epoch(2), &[(me, Incarnation(1)), (other, Incarnation(2))]);
    assert_eq!(core.horizon().lowest(), 0);
    assert!(core.horizon().may_show(3, 9));
    let body = super::messages::MessageBody::Entered { epoch: Epoch(2) };
    core.message(other, Message { clock: 9, lows: [9; LOWS], body });
    assert_eq!(core.horizon().lowest(), 9);
    assert!(!core.horizon().may_show(3, 9));
}

/// Its end is in its slot, and may be a commit below the moment of the answer of a snapshot.
#[test]
fn an_answer_of_a_home_counts_until_the_home_is_gone() {
    let (me, other) = (NodeId(0), NodeId(1));
    let mut core = Core::<Token>::new(me, Incarnation(1), || 0);
    core.view(Epoch(2), &[(me, Incarnation(1)), (other, Incarnation(2))]);
    let id = TransactionId::new(1, 0);
    core.learn_home(1, Home { node: other, incarnation: Incarnation(2), since: Epoch(1) });
    let body = super::messages::MessageBody::Answer { id, status: Status::After(5) };
    core.message(other, Message { clock: 9, lows: [9; LOWS], body });
    assert_eq!(core.status(id, 5), StatusPath::Known(Status::After(5)));
    core.view(Epoch(3), &[(me, Incarnation(1))]);
    assert_eq!(core.status(id, 5), StatusPath::Ask);
}

/// So a row that is often changed keeps a few versions, beside snapshots of any age.
#[test]
fn versions_between_the_snapshots_of_all_nodes_go() {
    let (me, other) = (NodeId(0), NodeId(1));
    let members = [(me, Incarnation(1)), (other, Incarnation(2))];
    let mut cores = [Core::<Token>::new(me, Incarnation(1), || 0), Core::new(other, Incarnation(2), || 0)];
    cores.iter_mut().for_each(|core| core.view(Epoch(2), &members));
    let mut value = Vec::new();
    let mut change = |cores: &mut [Core<Token>; 2], number: Number| {
        let id = TransactionId(number);
        cores[0].raise(number);
        cores[1].refresh();
        for (from, to) in [(1, 0), (0, 1)] {
            for (_, message) in cores[from].take_sends() {
                cores[to].message(NodeId(from as u8), message);
            }
        }
        let horizon = cores[1].horizon();
        let by = Changer {
            places: &[],
            id,
            step: 0,
            snapshot: None,
            horizon: &horizon,
            keeps_removal: false,
            lock: None,
            now: number,
        };
        let status = |id: TransactionId, _| StatusPath::Known(Status::Committed(id.0));
        let set = &mut |_: Option<Contents<'_>>| Decided::Set(number.to_le_bytes().to_vec());
        if let (EntryChange::Set(new), Changed::Done) = rows::change(Some(&value), by, status, set) {
            value = new;
        }
        let all = |snapshot| rows::visible(&value, None, snapshot, status).unwrap().map(ids_of);
        [all(10), all(20), all(number)]
    };
    for number in 1..1000 {
        let [at_10, at_20, newest] = change(&mut cores, number);
        if number == 10 {
            assert_eq!(cores[0].snapshot(), 10);
        }
        if number == 20 {
            assert_eq!(cores[0].snapshot(), 20);
        }
        assert!(number < 11 || at_10 == Some(vec![10]), "{number}: {at_10:?}");
        assert!(number < 21 || at_20 == Some(vec![20]), "{number}: {at_20:?}");
        assert_eq!(newest, Some(vec![number]));
    }
    let versions = value.len() / (rows::VERSION_BYTES + 8);
    assert_eq!(versions, 4, "two for the snapshots, the last one, and the one before");
}

/// All but the first transaction are active.
fn is_active(id: TransactionId, snapshot: Number) -> StatusPath {
    match id {
        TransactionId(0) => StatusPath::Known(Status::Committed(1)),
        _ if snapshot < Number::MAX => StatusPath::Known(Status::After(9)),
        _ => StatusPath::Ask,
    }
}

fn lock_of(id: TransactionId, strength: RowLock, horizon: &Horizon) -> Changer<'_> {
    Changer {
        id,
        step: 0,
        places: &[],
        snapshot: None,
        horizon,
        keeps_removal: false,
        lock: Some(strength),
        now: 5,
    }
}

/// As PostgreSQL's table of row-level locks says.
#[test]
fn locks_of_a_row_exclude_each_other_by_their_strength() {
    let mut core = Core::<Token>::new(NodeId(0), Incarnation(1), || 0);
    core.view(Epoch(2), &[(NodeId(0), Incarnation(1))]);
    let horizon = core.horizon();
    let (one, other) = (TransactionId(1), TransactionId(2));
    let status = is_active;
    let row = rows::new(TransactionId(0), 0, b"row");
    let lock = &mut |_: Option<Contents<'_>>| Decided::Lock;
    let keys = [RowLock::KeyShare, RowLock::Share, RowLock::NoKeyUpdate, RowLock::Update];
    let expected = ["...x", "..xx", ".xxx", "xxxx"];
    for (first, expected) in keys.into_iter().zip(expected) {
        let locked = rows::change(Some(&row), lock_of(one, first, &horizon), status, lock);
        let (EntryChange::Set(locked), Changed::Done) = locked else { panic!("{locked:?}") };
        let waits = |by: Changer<'_>, decide: &mut dyn FnMut(Option<Contents<'_>>) -> Decided| {
            matches!(rows::change(Some(&locked), by, status, decide).1, Changed::Unknown(_))
        };
        let found: String = keys
            .map(|second| if waits(lock_of(other, second, &horizon), lock) { 'x' } else { '.' })
            .into_iter()
            .collect();
        assert_eq!(found, expected, "{first:?}");
        let by = Changer { lock: None, ..lock_of(other, first, &horizon) };
        let update = &mut |_: Option<Contents<'_>>| Decided::Set(b"new".to_vec());
        assert_eq!(waits(by, update), first >= RowLock::Share, "{first:?}: update");
        assert!(waits(by, &mut |_| Decided::Remove), "{first:?}: removal");
        // A reader needs to know nothing of the lock, and its own transaction has what it has.
        let shown = rows::visible(&locked, None, 9, status).unwrap();
        assert_eq!(shown, Some(Contents::Here(b"row")), "{first:?}");
        for weaker in keys.into_iter().filter(|weaker| *weaker <= first) {
            let again = rows::change(Some(&locked), lock_of(one, weaker, &horizon), status, lock);
            assert_eq!(again, (EntryChange::Keep, Changed::Done), "{first:?} {weaker:?}");
        }
    }
}

/// So a row that refers to another one can be inserted while that one is updated, and goes when it
/// is rolled back to a savepoint.
#[test]
fn a_key_is_locked_beside_an_update_and_given_back_with_a_savepoint() {
    let mut core = Core::<Token>::new(NodeId(0), Incarnation(1), || 0);
    core.view(Epoch(2), &[(NodeId(0), Incarnation(1))]);
    let horizon = core.horizon();
    let (one, other) = (TransactionId(1), TransactionId(2));
    let status = is_active;
    let row = rows::new(TransactionId(0), 0, b"row");
    let by = Changer { lock: None, ..lock_of(one, RowLock::Update, &horizon) };
    let update = rows::change(Some(&row), by, status, &mut |_| Decided::Set(b"new".to_vec()));
    let (EntryChange::Set(updated), Changed::Done) = update else { panic!("{update:?}") };
    let mut seen = None;
    let mut lock = |contents: Option<Contents<'_>>| {
        seen = contents.map(|contents| contents == Contents::Here(b"row"));
        Decided::Lock
    };
    let by = Changer { step: 3, ..lock_of(other, RowLock::KeyShare, &horizon) };
    let locked = rows::change(Some(&updated), by, status, &mut lock);
    let (EntryChange::Set(locked), Changed::Done) = locked else { panic!("{locked:?}") };
    assert_eq!(seen, Some(true), "it gets the committed contents");
    assert_eq!(rows::writers(&locked), Ok(vec![other, one, TransactionId(0)][..2].to_vec()));
    let by_one = Changer { lock: None, ..lock_of(one, RowLock::Update, &horizon) };
    let removed = rows::change(Some(&row), by_one, status, &mut |_| Decided::Remove);
    let (EntryChange::Set(removed), Changed::Done) = removed else { panic!("{removed:?}") };
    let waits = rows::change(Some(&removed), by, status, &mut |_| Decided::Lock).1;
    assert!(matches!(waits, Changed::Unknown(_)), "the key may go");
    assert_eq!(rows::undo(Some(&locked), other, 4).0, EntryChange::Keep);
    assert_eq!(rows::undo(Some(&locked), other, 3).0, EntryChange::Set(updated.clone()));
    // The removal of a row that no transaction has locked, but that is not committed.
    let by = Changer { lock: None, ..by };
    assert!(matches!(
        rows::change(Some(&updated), by, status, &mut |_| Decided::Remove).1,
        Changed::Unknown(_)
    ));
}

/// Otherwise a lock of the key would take an old version as the newest one.
#[test]
fn an_end_that_is_not_known_is_found_out() {
    let mut core = Core::<Token>::new(NodeId(0), Incarnation(1), || 0);
    core.view(Epoch(2), &[(NodeId(0), Incarnation(1))]);
    let horizon = core.horizon();
    let row = rows::new(TransactionId(1), 0, b"row");
    let status = |_, _| StatusPath::ReadSlot;
    let by = lock_of(TransactionId(2), RowLock::KeyShare, &horizon);
    let locked = rows::change(Some(&row), by, status, &mut |_| Decided::Lock).1;
    assert!(matches!(locked, Changed::Unknown(Unknown { snapshot: 5, .. })), "{locked:?}");
    // Nor would many ended locks go.
    let mut row = rows::new(TransactionId(0), 0, b"row");
    let mut lock = |id, status: &dyn Fn(TransactionId, Number) -> StatusPath| {
        let by = lock_of(TransactionId(id), RowLock::Share, &horizon);
        let (change, changed) = rows::change(Some(&row), by, status, &mut |_| Decided::Lock);
        if let EntryChange::Set(new) = change {
            row = new;
        }
        (changed, rows::writers(&row).unwrap().len())
    };
    let is_gone = |id, snapshot| match is_active(id, snapshot) {
        StatusPath::Known(Status::Committed(number)) => StatusPath::Known(Status::Committed(number)),
        _ => StatusPath::ReadSlot,
    };
    assert!((1..10).all(|id| lock(id, &is_gone).0 == Changed::Done));
    assert!(matches!(lock(10, &is_gone).0, Changed::Unknown(_)));
    let is_over = |_, _| StatusPath::Known(Status::Aborted);
    assert_eq!(lock(10, &is_over), (Changed::Done, 1));
}

/// A row has the versions to which the savepoints lead back, and no other, in 500 random
/// transactions.
#[test]
fn a_row_keeps_the_versions_of_the_savepoints_that_are_left() {
    let mut core = Core::<Token>::new(NodeId(0), Incarnation(1), || 0);
    core.view(Epoch(2), &[(NodeId(0), Incarnation(1))]);
    let horizon = core.horizon();
    let (id, first) = (TransactionId(3), TransactionId(0));
    for seed in 0..500 {
        let mut random = u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut value = rows::new(first, 0, &0u64.to_le_bytes());
        let (mut step, mut changed_at, mut places) = (0, None, Vec::new());
        // The contents now, and at each savepoint.
        let (mut now, mut before) = (0u64, Vec::new());
        for number in 1..60u64 {
            match draw(6) {
                0..=2 => {
                    let places = &places[..];
                    let by = Changer { step, places, lock: None, ..lock_of(id, RowLock::Update, &horizon) };
                    let set = &mut |_: Option<Contents<'_>>| Decided::Set(number.to_le_bytes().to_vec());
                    let (EntryChange::Set(new), Changed::Done) =
                        rows::change(Some(&value), by, is_active, set)
                    else {
                        panic!("a change")
                    };
                    (value, now, changed_at) = (new, number, Some(step));
                    let versions = value.len() / (rows::VERSION_BYTES + 8);
                    assert!(versions <= before.len() + 2, "seed {seed}: {versions} versions");
                }
                3 => {
                    if step == 0 || changed_at == Some(step) {
                        step += 1;
                    }
                    places.push(step);
                    before.push(now);
                }
                4 if !places.is_empty() => {
                    let at = draw(places.len() as u64) as usize;
                    places.truncate(at);
                    before.truncate(at);
                }
                5 if !places.is_empty() => {
                    let at = draw(places.len() as u64) as usize;
                    if let (EntryChange::Set(new), _) = rows::undo(Some(&value), id, places[at]) {
                        value = new;
                    }
                    (step, now) = (places[at], before[at]);
                    changed_at = None;
                    places.truncate(at + 1);
                    before.truncate(at + 1);
                }
                _ => {}
            }
            let seen = rows::visible(&value, Some(id), 9, is_active).unwrap();
            let Some(Contents::Here(seen)) = seen else { panic!("seed {seed}: no contents") };
            assert_eq!(seen, now.to_le_bytes(), "seed {seed}, {number}");
        }
    }
}
