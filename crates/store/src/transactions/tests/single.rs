//! Single rules of the protocol.

use super::*;

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
        let by = Changer { id, step: 0, snapshot: None, horizon: &horizon, keeps_removal: false };
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
