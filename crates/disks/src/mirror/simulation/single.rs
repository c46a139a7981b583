//! One node whose disk returns, with messages in a chosen order: what random runs rarely meet.

use super::*;

type Actions = Vec<MirrorAction<Data, Token>>;

const OWN: DiskNumber = DiskNumber(1);

/// Returns node 1 in a view of three, its disk syncing.
fn returning() -> (MirrorCore<Data, Token>, Registry) {
    let mut registry = Registry::new(&first_map(3, 2, NodeSet::EMPTY));
    registry.make(&MapChange::Stale(vec![OWN]));
    let map = registry.make(&MapChange::Syncing(OWN));
    let mut core = MirrorCore::new(NodeId(1), NodeSet::EMPTY, 0);
    core.opened(OWN, 2);
    enter(&mut core, 1, &map);
    (core, registry)
}

fn enter(core: &mut MirrorCore<Data, Token>, epoch: u32, map: &Arc<Map>) {
    core.applied(map.clone());
    core.view(Epoch(epoch), NodeSet::first(3));
    core.committed(map.clone());
}

/// Returns the only request, and the node that it goes to.
fn request(actions: &Actions) -> (NodeId, DiskRequest<Data>) {
    let mut requests = actions.iter().filter_map(|action| match action {
        MirrorAction::Send(to, _, MirrorMessage::Request(request)) => Some((*to, request.clone())),
        _ => None,
    });
    let first = requests.next().expect("a request");
    assert_eq!(requests.next(), None);
    first
}

fn answer(core: &mut MirrorCore<Data, Token>, from: NodeId, id: u64, answer: DiskAnswer<Data>) {
    core.message(from, Epoch(1), MirrorMessage::Answer(id, answer)).expect("a sound message");
}

fn holds(actions: &Actions) -> Vec<(NodeId, u64)> {
    let hold = |action: &MirrorAction<_, _>| match action {
        MirrorAction::Send(to, _, MirrorMessage::Hold { id, .. }) => Some((*to, *id)),
        _ => None,
    };
    actions.iter().filter_map(hold).collect()
}

#[test]
fn mirror_units_that_were_read_under_an_older_map_are_read_again() {
    let (mut core, mut registry) = returning();
    let (source, dirty) = request(&core.take_actions());
    assert_eq!(dirty.op, DiskOp::Dirty);
    answer(&mut core, source, dirty.id, DiskAnswer::Dirty(vec![0]));
    for (member, id) in holds(&core.take_actions()) {
        core.message(member, Epoch(1), MirrorMessage::Held(id)).expect("a sound message");
    }
    let (source, read) = request(&core.take_actions());
    // Another member may use this map, write the unit, and be ahead of the answer.
    let opened = MapChange::Opened { disk: OWN, opening: 1, is_older: false };
    let map = registry.make(&opened);
    core.applied(map.clone());
    answer(&mut core, source, read.id, DiskAnswer::Read(Data::Unit(BTreeMap::new())));
    let is_write = |action: &MirrorAction<_, _>| matches!(action, MirrorAction::Execute { .. });
    assert!(!core.take_actions().iter().any(is_write), "what it read may be old");
    core.committed(map);
    assert_eq!(holds(&core.take_actions()).len(), 2, "the unit is held again");
}

#[test]
fn mirror_requests_are_not_executed_on_the_file_of_a_disk_that_was_replaced() {
    let mut registry = Registry::new(&first_map(3, 2, NodeSet::EMPTY));
    let mut core: MirrorCore<Data, Token> = MirrorCore::new(NodeId(1), NodeSet::EMPTY, 0);
    // Its number is that of the file which is open, its identifier is not.
    core.opened(OWN, 77);
    core.applied(registry.newest.clone());
    core.view(Epoch(1), NodeSet::first(3));
    let map = registry.make(&MapChange::Opened { disk: OWN, opening: 1, is_older: false });
    core.applied(map.clone());
    let chunk = map.chunks_on(OWN).next().expect("a chunk");
    let op = DiskOp::Write { offset: 0, data: Data::Block(Cell::Torn) };
    let request = DiskRequest { id: 1, version: map.version(), disk: OWN, chunk, op };
    core.message(NodeId(0), Epoch(1), MirrorMessage::Request(request)).expect("a sound message");
    let refused = MirrorMessage::Answer(1, DiskAnswer::Refused);
    assert_eq!(core.take_actions(), [MirrorAction::Send(NodeId(0), Epoch(1), refused)]);
}

#[test]
fn mirror_chunks_whose_dirty_bits_could_not_be_read_are_asked_for_again() {
    let (mut core, registry) = returning();
    let (source, dirty) = request(&core.take_actions());
    answer(&mut core, source, dirty.id, DiskAnswer::Failed("a bad sector".to_owned()));
    let _ = core.take_actions();
    enter(&mut core, 2, &registry.newest);
    let (_, again) = request(&core.take_actions());
    assert_eq!((again.chunk, again.op), (dirty.chunk, DiskOp::Dirty));
}

#[test]
fn mirror_a_cold_start_waits_for_absent_nodes_and_later_views_do_not() {
    let map = Registry::new(&first_map(3, 2, NodeSet::EMPTY)).newest.clone();
    let begin = |members: &[u8]| {
        let mut core: MirrorCore<Data, Token> = MirrorCore::new(NodeId(1), NodeSet::EMPTY, 30_000);
        core.applied(map.clone());
        view(&mut core, 1, members);
        core.committed(map.clone());
        core
    };
    let marks = |core: &mut MirrorCore<Data, Token>| matches!(proposal(core), Some(MapChange::Stale(_)));
    let mut core = begin(&[1, 2]);
    core.tick(29_999);
    view(&mut core, 2, &[1]);
    assert!(!marks(&mut core));
    view(&mut core, 3, &[1, 2]);
    assert_eq!(core.awaited(), Some((vec![DiskNumber(0)], 1)));
    core.tick(30_000);
    assert!(marks(&mut core) && core.awaited().is_none());
    // A new node with a lower number would wait.
    let mut core = begin(&[0, 1, 2]);
    view(&mut core, 2, &[0, 1]);
    assert!(marks(&mut core));
}

fn view(core: &mut MirrorCore<Data, Token>, epoch: u32, members: &[u8]) {
    core.view(Epoch(epoch), members.iter().map(|member| NodeId(*member)).collect());
}

/// Returns the change of the map that a node wants.
fn proposal(core: &mut MirrorCore<Data, Token>) -> Option<MapChange> {
    core.take_actions().into_iter().find_map(|action| match action {
        MirrorAction::Propose(proposal) => Some(proposal.change),
        _ => None,
    })
}

#[test]
fn mirror_a_shared_disk_gets_another_server_when_the_end_of_the_first_is_proved() {
    let (all, none, shared) = (NodeSet::first(3), NodeSet::EMPTY, vec![DiskNumber(0)]);
    let mut registry = Registry::new(&first_map(3, 2, all));
    let wanted = |me: u8, proved: NodeSet, map: &Arc<Map>| {
        let mut core = MirrorCore::new(NodeId(me), proved, 0);
        core.applied(map.clone());
        view(&mut core, 1, &[0, 1, 2]);
        core.committed(map.clone());
        assert_eq!(proposal(&mut core), None, "its server is there");
        view(&mut core, 2, &[1, 2]);
        proposal(&mut core)
    };
    let map = registry.newest.clone();
    let served = MapChange::Serve(shared.clone(), NodeId(1));
    assert_eq!(wanted(1, all, &map), Some(served.clone()));
    assert_eq!(wanted(2, all, &map), Some(served.clone()), "the next server may be quiet");
    assert_eq!(wanted(1, none, &map), Some(MapChange::Stale(shared.clone())), "it may still write");
    // One that lacks something can return with another server, too.
    let map = registry.make(&MapChange::Stale(shared));
    assert_eq!(wanted(1, all, &map), Some(served.clone()));
    let map = registry.make(&served);
    assert_eq!(wanted(1, all, &map), None);
}
