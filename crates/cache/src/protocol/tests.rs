//! Tests of one shard, driven by hand: regressions, and cases that the simulator cannot see.

use std::collections::BTreeSet;

use plexus_base::{BlockId, Epoch, Incarnation, Nanos, NodeId, WorkerId};

use super::*;

/// An action of the shard, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Did {
    Opened(Slot, Mode),
    Pinned(Ticket),
    Shipped(NodeId, BlockId),
    /// Records were gathered that travel with the block shipped next.
    Carried(BlockId),
    Other(Action),
}

/// A driver that keeps a log and the pinned frames.
#[derive(Default)]
struct Log {
    done: Vec<Did>,
    pinned: Vec<Slot>,
    /// The frames that sessions have found.
    used: BTreeSet<Slot>,
}

impl ShardDriver for Log {
    fn blank(&mut self, _: Slot, _: BlockId, _: u64) {}

    fn push(&mut self, action: Action) {
        self.done.push(Did::Other(action));
    }
    fn ship(&mut self, to: NodeId, _slot: Slot, _dest: Slot, _generation: u32, message: Message) {
        self.done.push(Did::Shipped(to, message.block));
    }
    fn open(&mut self, slot: Slot, _block: BlockId, mode: Mode) {
        self.done.push(Did::Opened(slot, mode));
    }
    fn pin(&mut self, slot: Slot, ticket: Ticket, mode: Mode) -> bool {
        if mode == Mode::X && self.pinned.contains(&slot) {
            return false;
        }
        self.pinned.push(slot);
        self.done.push(Did::Pinned(ticket));
        true
    }
    fn take_use(&mut self, slot: Slot) -> bool {
        self.used.remove(&slot)
    }
    fn close(&mut self, slot: Slot) -> Option<Contents> {
        (!self.pinned.contains(&slot)).then_some(UNCHANGED)
    }
    fn forget(&mut self, _slot: Slot) {}
    fn expect(&mut self, _slot: Slot, _generation: u32) {}
    fn append(&mut self, _slot: Slot, _block: BlockId, _known: u64) -> RedoSpan {
        RedoSpan::default()
    }
    fn arrived(&mut self, _slot: Slot, _owed: bool, _redo: RedoSpan) {}
    fn carry(&mut self, block: BlockId) -> bool {
        self.done.push(Did::Carried(block));
        true
    }
    fn reserve(&mut self) -> bool {
        false
    }
    fn release(&mut self) {}
    fn copy(&mut self, _slot: Slot) -> u64 {
        0
    }
    fn write_failed(&mut self, _slot: Slot, _first: u64) -> RedoSpan {
        RedoSpan::default()
    }
    fn log_image(&mut self, _slot: Slot, _block: BlockId) -> RedoSpan {
        RedoSpan::default()
    }
    fn durable(&self) -> u64 {
        0
    }
    fn oldest_owed(&self, _: impl Fn(Slot) -> bool) -> Option<(Slot, u64)> {
        None
    }
}

/// A block that no session changed.
const UNCHANGED: Contents =
    Contents { dirty: false, version: 1, redo: RedoSpan { first: 0, last: 0, force: 0 } };

const EPOCH: Epoch = Epoch(5);
const BLOCKS: u64 = 1000;

/// A shard of node 0 and its driver.
struct TestNodes {
    shard: Shard,
    log: Log,
}

impl TestNodes {
    fn tell(&mut self, event: Event) -> Vec<Did> {
        self.shard.handle(Nanos(0), event, &mut self.log);
        std::mem::take(&mut self.log.done)
    }

    fn view(&mut self, epoch: u32, members: &[(u8, u64)]) -> Vec<Did> {
        let members =
            members.iter().map(|(node, incarnation)| (NodeId(*node), Incarnation(*incarnation))).collect();
        let view = Members { epoch: Epoch(epoch), members };
        self.shard.view(Nanos(0), &view, &mut self.log);
        std::mem::take(&mut self.log.done)
    }

    fn say(&mut self, from: u8, epoch: u32, body: MessageBody) -> Vec<Did> {
        self.say_of(from, epoch, (BlockId(0), body))
    }

    fn say_of(&mut self, from: u8, epoch: u32, (block, body): (BlockId, MessageBody)) -> Vec<Did> {
        let message = Message { epoch: Epoch(epoch), block, body };
        self.tell(Event::Message { from: NodeId(from), message })
    }

    fn want(&mut self, ticket: u64, block: BlockId, ask: Ask) -> Vec<Did> {
        self.tell(Event::Want { ticket: Ticket(ticket), block, ask, has_others: false })
    }

    fn hear(&mut self, from: u8, block: BlockId, body: MessageBody) -> Vec<Did> {
        let message = Message { epoch: EPOCH, block, body };
        self.tell(Event::Message { from: NodeId(from), message })
    }

    /// Gets `block`, mastered by the other node, from the disk for a session; it is pinned then.
    fn get(&mut self, ticket: u64, block: BlockId, ask: Ask) -> Slot {
        let did = self.want(ticket, block, ask);
        let target = requested(&did).expect("a request");
        let source = Source::Disk { version: 0 };
        self.hear(1, block, MessageBody::Grant { ask, target, seq: 1, source, owed: false, behind: false });
        let did = self.tell(Event::Read { slot: target.slot, result: Ok(1) });
        assert!(did.contains(&Did::Pinned(Ticket(ticket))), "{did:?}");
        target.slot
    }

    /// Reads `block` for a session that gives it back at once. Returns the block that left for it.
    fn pass(&mut self, block: BlockId) -> Option<BlockId> {
        let mut did = self.want(1, block, Ask::S);
        let left = did.iter().find_map(|did| match did {
            Did::Other(Action::Send { message, .. }) if matches!(message.body, MessageBody::Evict { .. }) => {
                Some(message.block)
            }
            _ => None,
        });
        if let Some(left) = left {
            did = self.hear(1, left, MessageBody::Evicted);
        }
        let target = requested(&did).expect("a request");
        let (ask, source) = (Ask::S, Source::Disk { version: 0 });
        self.hear(1, block, MessageBody::Grant { ask, target, seq: 1, source, owed: false, behind: false });
        self.tell(Event::Read { slot: target.slot, result: Ok(1) });
        self.log.pinned.clear();
        left
    }

    fn idle(&mut self, slot: Slot) -> Vec<Did> {
        self.log.pinned.retain(|pinned| *pinned != slot);
        self.tell(Event::Idle { slot, contents: UNCHANGED })
    }
}

fn requested(did: &[Did]) -> Option<Target> {
    did.iter().find_map(|did| match did {
        Did::Other(Action::Send {
            message: Message { body: MessageBody::Request { target, .. }, .. },
            ..
        }) => Some(*target),
        _ => None,
    })
}

fn world(ways: u32) -> TestNodes {
    opened(EPOCH, 2, ways)
}

fn opened(epoch: Epoch, nodes: u8, ways: u32) -> TestNodes {
    opened_without(0, epoch, nodes, ways)
}

/// Opens a shard in a view without the last `last` nodes.
fn opened_without(last: u8, epoch: Epoch, nodes: u8, ways: u32) -> TestNodes {
    let mut world = without_view(nodes, ways);
    let members = (0..nodes - last).map(|node| (NodeId(node), Incarnation(1))).collect();
    open(&mut world.shard, &Members { epoch, members }, &mut world.log);
    world.log.done.clear();
    world
}

/// A shard opens in its first view, where all others are new as well and say what correct members
/// say.
pub(super) fn open(shard: &mut Shard, view: &Members, io: &mut impl ShardDriver) {
    shard.view(Nanos(0), view, io);
    shard.handle(Nanos(0), Event::Drained { epoch: view.epoch }, io);
    let me = shard.config().me;
    for body in [
        MessageBody::Mark { blocks: true },
        MessageBody::Mark { blocks: false },
        MessageBody::Reported,
        MessageBody::Opened,
    ] {
        for from in view.members.iter().map(|(node, _)| *node).filter(|node| *node != me) {
            let message = Message { epoch: view.epoch, block: BlockId(0), body };
            shard.handle(Nanos(0), Event::Message { from, message }, io);
        }
    }
    assert!(shard.is_open() && shard.counts().faults == 0);
}

fn without_view(nodes: u8, ways: u32) -> TestNodes {
    let (me, worker) = (NodeId(0), WorkerId(0));
    let shard = Shard::new(Config {
        me,
        nodes,
        worker,
        workers: 1,
        blocks: BLOCKS,
        sets: 1,
        ways,
        redo: false,
        carry_bytes: 0,
    });
    TestNodes { shard, log: Log::default() }
}

/// Returns the master of a block while all of `nodes` are members.
fn master(block: BlockId, nodes: u8) -> NodeId {
    let members = (0..nodes).map(|node| (NodeId(node), Incarnation(1))).collect();
    Members { epoch: EPOCH, members }.master(block.partition())
}

/// Blocks that the other node masters.
fn theirs() -> impl Iterator<Item = BlockId> {
    (0..BLOCKS).map(BlockId).filter(|block| master(*block, 2) == NodeId(1))
}

/// A block that this node masters, of `nodes`.
fn ours(nodes: u8) -> BlockId {
    (0..).map(BlockId).find(|block| master(*block, nodes) == NodeId(0)).unwrap()
}

fn faults(did: &[Did]) -> Vec<(u8, &'static str)> {
    let fault = |did: &Did| match did {
        Did::Other(Action::Fault { from, what }) => Some((from.0, *what)),
        _ => None,
    };
    did.iter().filter_map(fault).collect()
}

fn sent(did: &[Did], to: u8) -> Vec<MessageBody> {
    let sent = |did: &Did| match did {
        Did::Other(Action::Send { to: node, message }) if node.0 == to => Some(message.body),
        _ => None,
    };
    did.iter().filter_map(sent).collect()
}

const ELSEWHERE: Target = Target { slot: Slot(3), generation: 1, id: 9, takes_redo: false };

#[test]
fn bytes_leave_before_the_next_session_is_let_in() {
    let mut world = world(4);
    let block = theirs().next().unwrap();
    let slot = world.get(1, block, Ask::X);
    let copy =
        MessageBody::Forward { ask: Ask::Cr, requester: NodeId(1), target: ELSEWHERE, seq: 1, owed: false };
    world.hear(1, block, copy);
    // Came after the order, so it goes after it; in the same call of `handle`.
    world.want(2, block, Ask::X);
    let did = world.idle(slot);
    let shipped = did.iter().position(|did| matches!(did, Did::Shipped(..))).expect("a copy");
    let opened = did.iter().position(|did| matches!(did, Did::Opened(..))).expect("the next session");
    assert!(shipped < opened, "{did:?}");
}

#[test]
fn a_session_waits_at_the_block_that_is_coming_and_not_for_a_frame() {
    let mut world = world(2);
    let blocks: Vec<BlockId> = theirs().take(3).collect();
    let first = world.get(1, blocks[0], Ask::X);
    world.get(2, blocks[1], Ask::X);
    // Both frames are in use: the sessions for the third block queue up.
    world.want(3, blocks[2], Ask::X);
    world.want(4, blocks[2], Ask::X);
    world.idle(first);
    let did = world.hear(1, blocks[0], MessageBody::Evicted);
    assert!(requested(&did).is_some());
    assert_eq!(world.shard.frames.iter().filter(|frame| frame.block == blocks[2]).count(), 1);
    let Shard { frames, waiters, .. } = &world.shard;
    let slot = world.shard.find(blocks[2]).expect("the block has a frame");
    let waiting = waiters.iter(frames[slot].waiters).map(|waiter| waiter.ticket.0);
    assert!(waiting.eq([3, 4]));
}

#[test]
fn blocks_in_use_stay_while_a_scan_passes_and_leave_when_they_are_used_no_more() {
    let mut world = world(8);
    let blocks: Vec<BlockId> = theirs().take(200).collect();
    let (used, scanned) = blocks.split_at(3);
    used.iter().for_each(|block| assert_eq!(world.pass(*block), None));
    for (step, block) in scanned.iter().enumerate() {
        // They are used less often than blocks leave.
        if step % 4 == 0 && step < 100 {
            let frames = used.iter().map(|block| world.shard.find(*block).expect("it has stayed"));
            world.log.used = frames.map(|slot| Slot(slot as u32)).collect();
        }
        let left = world.pass(*block);
        assert!(left.is_none_or(|left| step >= 100 || !used.contains(&left)), "step {step}: {left:?}");
    }
    assert!(used.iter().all(|block| world.shard.find(*block).is_none()), "nothing stays for ever");
}

/// Other nodes may have the blocks that all frames wait for, and wait for a block of this session.
#[test]
fn a_session_with_other_blocks_does_not_wait_for_the_requests_of_others() {
    let mut world = world(2);
    let blocks: Vec<BlockId> = theirs().take(4).collect();
    let slot = world.get(1, blocks[0], Ask::X);
    world.want(2, blocks[1], Ask::X);
    assert_eq!(world.want(3, blocks[2], Ask::X), [], "it has nothing, so it may wait");
    let more =
        |ticket| Event::Want { ticket: Ticket(ticket), block: blocks[3], ask: Ask::X, has_others: true };
    let refused =
        |ticket| Did::Other(Action::Wake { ticket: Ticket(ticket), result: Err(BlockError::NoFrame) });
    assert_eq!(world.tell(more(4)), [refused(4)]);
    // A frame that no session uses is enough, and the session is the first to get it.
    world.idle(slot);
    assert!(!world.tell(more(5)).contains(&refused(5)));
    let did = world.hear(1, blocks[0], MessageBody::Evicted);
    assert!(requested(&did).is_some() && world.shard.find(blocks[3]).is_some(), "{did:?}");
}

#[test]
fn a_turn_is_for_those_who_were_there_and_not_for_newcomers() {
    let mut world = world(4);
    let block = theirs().next().unwrap();
    let slot = world.get(1, block, Ask::X);
    world.want(2, block, Ask::X);
    let give =
        MessageBody::Forward { ask: Ask::X, requester: NodeId(1), target: ELSEWHERE, seq: 2, owed: false };
    world.hear(1, block, give);
    world.want(3, block, Ask::X);
    let did = world.idle(slot);
    assert!(
        did.contains(&Did::Pinned(Ticket(2))) && !did.contains(&Did::Shipped(NodeId(1), block)),
        "{did:?}"
    );
    let did = world.idle(slot);
    assert!(
        did.contains(&Did::Shipped(NodeId(1), block)) && !did.contains(&Did::Pinned(Ticket(3))),
        "{did:?}"
    );
    assert!(requested(&did).is_some(), "the newcomer asks for it again: {did:?}");
}

#[test]
fn other_views_are_refused_or_kept_and_nonsense_is_named() {
    let mut world = world(4);
    let block = theirs().next().unwrap();
    for epoch in [4, 6] {
        let message = Message { epoch: Epoch(epoch), block, body: MessageBody::Evicted };
        assert!(world.tell(Event::Message { from: NodeId(1), message }).is_empty());
    }
    let nonsense = [
        MessageBody::Evicted,
        MessageBody::Invalidate { seq: 1 },
        MessageBody::Done { seq: 1, held: true },
        MessageBody::Invalidated { seq: 1, owed: true },
        MessageBody::Evict { mode: Mode::X, version: 1 },
        MessageBody::Refused { target: ELSEWHERE, unrecovered: false },
        MessageBody::Forward { ask: Ask::X, requester: NodeId(1), target: ELSEWHERE, seq: 1, owed: false },
    ];
    for body in nonsense {
        for block in [block, BlockId(u64::MAX), BlockId(0), BlockId(1), BlockId(2), BlockId(3)] {
            let did = world.hear(1, block, body);
            assert!(
                did.iter().any(|did| matches!(did, Did::Other(Action::Fault { .. }))),
                "{body:?}: {did:?}"
            );
        }
    }
    assert_eq!((world.shard.counts().old_epoch, world.shard.counts().new_epoch), (1, 1));
    assert!(world.shard.is_quiet());
}

const GIVE: MessageBody =
    MessageBody::Forward { ask: Ask::X, requester: NodeId(1), target: ELSEWHERE, seq: 2, owed: false };
const COPY: MessageBody =
    MessageBody::Forward { ask: Ask::Cr, requester: NodeId(1), target: ELSEWHERE, seq: 2, owed: false };

#[test]
fn a_debt_is_not_taken_by_who_owes_already() {
    const WHAT: &str = "an order with a debt that another owes";
    let mut world = world(4);
    let blocks: Vec<BlockId> = theirs().take(2).collect();
    let did = world.want(1, blocks[0], Ask::S);
    let target = requested(&did).unwrap();
    let source = Source::Data;
    let grant = MessageBody::Grant { ask: Ask::S, target, seq: 1, source, owed: true, behind: true };
    world.hear(1, blocks[0], grant);
    world.get(2, blocks[1], Ask::X);
    for (block, ask) in [(blocks[0], Ask::X), (blocks[0], Ask::S), (blocks[1], Ask::X), (blocks[1], Ask::Cr)]
    {
        let forward =
            MessageBody::Forward { ask, requester: NodeId(1), target: ELSEWHERE, seq: 2, owed: true };
        assert_eq!(faults(&world.hear(1, block, forward)), [(1, WHAT)]);
    }
    assert_eq!(world.shard.holds(blocks[0]), (Mode::S, true));
}

#[test]
fn nothing_is_ordered_after_what_takes_the_block_away() {
    const WHAT: &str = "an order after one that is not obeyed yet";
    let drop = MessageBody::Invalidate { seq: 2 };
    for (ask, first, second) in
        [(Ask::S, drop, drop), (Ask::S, drop, COPY), (Ask::X, GIVE, GIVE), (Ask::X, GIVE, COPY)]
    {
        let mut world = world(4);
        let block = theirs().next().unwrap();
        let slot = world.get(1, block, ask);
        assert!(world.hear(1, block, first).is_empty());
        assert_eq!(faults(&world.hear(1, block, second)), [(1, WHAT)]);
        world.idle(slot);
        assert_eq!(world.shard.holds(block).0, Mode::N);
        assert!(world.shard.is_quiet());
    }
}

#[test]
fn a_node_ordered_to_give_a_copy_up_gets_no_x_on_it() {
    let mut world = world(4);
    let block = theirs().next().unwrap();
    let slot = world.get(1, block, Ask::S);
    let target = requested(&world.want(2, block, Ask::X)).unwrap();
    world.hear(1, block, MessageBody::Invalidate { seq: 2 });
    let keep =
        MessageBody::Grant { ask: Ask::X, target, seq: 3, source: Source::Keep, owed: false, behind: false };
    let did = world.hear(1, block, keep);
    assert_eq!(faults(&did), [(1, "a grant that does not fit its request")]);
    let did = world.idle(slot);
    assert_eq!(sent(&did, 1), [MessageBody::Invalidated { seq: 2, owed: false }]);
}

#[test]
fn an_order_for_a_copy_names_a_frame_that_waits_for_one() {
    const WHAT: &str = "an order that does not fit the mode held";
    let mut world = world(4);
    let block = theirs().next().unwrap();
    world.get(1, block, Ask::S);
    let asks_for_x = requested(&world.want(2, block, Ask::X)).unwrap();
    for target in [asks_for_x, ELSEWHERE, Target { slot: Slot(4), ..asks_for_x }] {
        let forward =
            MessageBody::Forward { ask: Ask::Cr, requester: NodeId(0), target, seq: 2, owed: false };
        assert_eq!(faults(&world.hear(1, block, forward)), [(1, WHAT)]);
    }
    let forward =
        MessageBody::Forward { ask: Ask::Cr, requester: NodeId(2), target: ELSEWHERE, seq: 2, owed: false };
    let did = world.hear(1, block, forward);
    assert_eq!(faults(&did), [(1, "an order for a node that is no member")]);
}

#[test]
fn only_the_master_refuses() {
    let mut world = opened(EPOCH, 3, 4);
    let block = (0..).map(BlockId).find(|block| master(*block, 3) == NodeId(1)).unwrap();
    let target = requested(&world.want(1, block, Ask::X)).unwrap();
    let refused = MessageBody::Refused { target, unrecovered: false };
    let did = world.hear(2, block, refused);
    assert_eq!(faults(&did), [(2, "a refusal from someone who is not the block's master")]);
    let result = Err(BlockError::NotMaster);
    let did = world.hear(1, block, refused);
    assert_eq!(did, [Did::Other(Action::Wake { ticket: Ticket(1), result })]);
}

#[test]
fn blocks_that_the_group_does_not_have_are_refused() {
    let mut world = world(4);
    for block in (BLOCKS..BLOCKS + 50).chain([u64::MAX - 2, u64::MAX]).map(BlockId) {
        for body in [
            MessageBody::Request { ask: Ask::S, have: Mode::N, target: ELSEWHERE },
            GIVE,
            MessageBody::Evicted,
        ] {
            let did = world.hear(1, block, body);
            assert_eq!(faults(&did), [(1, "a message about a block that the group does not have")]);
        }
    }
}

#[test]
fn a_node_has_no_more_requests_than_frames() {
    const MANY: &str = "more requests for a block than a node can have";
    let mut world = opened(EPOCH, 3, 4);
    let block = ours(3);
    let request = |ask| MessageBody::Request { ask, have: Mode::N, target: ELSEWHERE };
    assert!(matches!(sent(&world.hear(1, block, request(Ask::X)), 1)[..], [MessageBody::Grant { .. }]));
    for node in [1, 2] {
        for (ask, room) in [(Ask::X, 1), (Ask::Cr, 4)] {
            for _ in 0..room {
                assert!(world.hear(node, block, request(ask)).is_empty());
            }
            for ask in [ask, if ask == Ask::X { Ask::S } else { ask }] {
                assert_eq!(faults(&world.hear(node, block, request(ask))), [(node, MANY)]);
            }
        }
    }
    // A node gives a block up while it asks for nothing, and once.
    let evict = MessageBody::Evict { mode: Mode::X, version: 1 };
    assert_eq!(faults(&world.hear(1, block, evict)), [(1, MANY)]);
    let mut world = opened(EPOCH, 3, 4);
    world.hear(1, block, request(Ask::X));
    assert!(world.hear(1, block, evict).is_empty());
    assert_eq!(faults(&world.hear(1, block, evict)), [(1, MANY)]);
}

#[test]
fn a_holder_has_no_more_orders_than_there_are_frames_to_serve() {
    let mut world = world(4);
    let block = theirs().next().unwrap();
    let slot = world.get(1, block, Ask::X);
    let heard: Vec<_> = (0..20).map(|_| faults(&world.hear(1, block, COPY)).len()).collect();
    assert_eq!(
        heard.iter().position(|faults| *faults > 0),
        Some(11),
        "two nodes, four frames and a write each, and a checkpoint"
    );
    let did = world.idle(slot);
    assert_eq!(did.iter().filter(|did| matches!(did, Did::Shipped(..))).count(), 11);
}

#[test]
fn a_wrong_request_is_its_senders_fault_and_those_behind_it_are_served() {
    let mut world = opened(EPOCH, 3, 4);
    let block = ours(3);
    let request = |ask| MessageBody::Request { ask, have: Mode::N, target: ELSEWHERE };
    let done = |seq| MessageBody::Done { seq, held: true };
    world.hear(2, block, request(Ask::X));
    world.hear(2, block, done(1));
    assert!(matches!(sent(&world.hear(1, block, request(Ask::S)), 2)[..], [MessageBody::Forward { .. }]));
    // Node 2 asks for what it holds, and then for something that is right.
    assert!(world.hear(2, block, request(Ask::S)).is_empty());
    assert!(world.hear(2, block, request(Ask::Cr)).is_empty());
    let did = world.hear(1, block, done(2));
    assert_eq!(faults(&did), [(2, "a request for what the requester holds already")]);
    assert!(matches!(sent(&did, 2)[..], [MessageBody::Forward { ask: Ask::Cr, .. }]));
    assert!(world.shard.is_quiet());
}

#[test]
fn a_session_waits_for_the_first_view() {
    let mut world = without_view(2, 4);
    assert_eq!(world.want(1, BlockId(7), Ask::X), []);
    let did = world.view(1, &[(0, 1)]);
    let reads = |did: &Did| matches!(did, Did::Other(Action::ReadDisk { block: BlockId(7), .. }));
    assert!(did.iter().any(reads) && world.shard.is_open(), "{did:?}");
}

/// A session with a block keeps it, a waiting session gets its block, and a message of a later view
/// waits for that view.
#[test]
fn sessions_go_on_through_a_change_of_view() {
    let mut world = without_view(2, 4);
    world.view(1, &[(0, 1)]);
    world.want(1, BlockId(7), Ask::X);
    let slot = Slot(world.shard.find(BlockId(7)).expect("a frame") as u32);
    world.tell(Event::Read { slot, result: Ok(1) });
    assert_eq!(world.want(2, BlockId(7), Ask::X), [], "behind the writer");
    assert_eq!(world.say(1, 2, MessageBody::Mark { blocks: true }), []);
    let did = world.view(2, &[(0, 1), (1, 4)]);
    assert_eq!(sent(&did, 1), [MessageBody::Mark { blocks: false }]);
    assert!(!world.shard.is_open() && world.shard.holds(BlockId(7)).0 == Mode::X);
    let did = world.say(1, 2, MessageBody::Mark { blocks: false });
    let held = MessageBody::Held { mode: Mode::X, owed: false, behind: false };
    let expected = if world.shard.master(BlockId(7)) == NodeId(1) { vec![held] } else { Vec::new() };
    let said = sent(&did, 1);
    assert_eq!(said, expected.into_iter().chain([MessageBody::Reported]).collect::<Vec<_>>());
    assert!(world.idle(slot).contains(&Did::Pinned(Ticket(2))));
    let did = world.say(1, 2, MessageBody::Reported);
    assert!(sent(&did, 1).ends_with(&[MessageBody::Opened]), "{did:?}");
    world.say(1, 2, MessageBody::Opened);
    assert!(world.shard.is_open() && faults(&did).is_empty());
}

/// No other node would know of an operation that a leaver begins, which might leave half of a
/// block.
#[test]
fn a_leaver_ends_its_operations_and_begins_none() {
    let mut world = opened(Epoch(1), 2, 4);
    let mut blocks = (0..BLOCKS).map(BlockId).filter(|block| world.shard.master(*block) == NodeId(0));
    let (one, other) = (blocks.next().unwrap(), blocks.next().unwrap());
    let request = MessageBody::Request { ask: Ask::X, have: Mode::N, target: ELSEWHERE };
    let did = world.say_of(1, 1, (one, request));
    assert!(matches!(sent(&did, 1)[..], [MessageBody::Grant { .. }]));
    world.tell(Event::HandBack);
    assert_eq!(world.tell(Event::Leave), [], "a conversion is in flight");
    let did = world.say_of(1, 1, (one, MessageBody::Done { seq: 1, held: true }));
    let message = Message { epoch: Epoch(1), block: BlockId(0), body: MessageBody::Leaving };
    assert_eq!(did, [Did::Other(Action::SendBehind { to: NodeId(1), message })]);
    assert_eq!(world.say_of(1, 1, (other, request)), []);
    let did = world.say(1, 1, MessageBody::Noted);
    assert_eq!(did, [Did::Other(Action::MayLeave)]);
}

/// Changes the block in a frame, with records up to position 9 that are not durable, and gives it
/// to the other node.
fn change_and_give(world: &mut TestNodes, block: BlockId, slot: Slot) -> Vec<Did> {
    change_to_and_give(world, (block, 2), slot, RedoSpan { first: 3, last: 9, force: 0 })
}

fn change_to_and_give(
    world: &mut TestNodes,
    (block, version): (BlockId, u64),
    slot: Slot,
    redo: RedoSpan,
) -> Vec<Did> {
    let target = Target { takes_redo: true, ..ELSEWHERE };
    let seq = version as u32 * 2 - 2;
    world.hear(
        1,
        block,
        MessageBody::Forward { ask: Ask::X, requester: NodeId(1), target, seq, owed: false },
    );
    world.log.pinned.clear();
    world.tell(Event::Idle { slot, contents: Contents { dirty: true, version, redo } })
}

/// Takes a block back that was given away in version 2.
fn take_back(world: &mut TestNodes, block: BlockId) -> usize {
    let target = requested(&world.want(2, block, Ask::X)).expect("a request");
    let grant =
        MessageBody::Grant { ask: Ask::X, target, seq: 3, source: Source::Data, owed: true, behind: true };
    world.hear(1, block, grant);
    world.shard.find(block).expect("a frame")
}

/// Another node replays the block if the node that got it dies. It must not miss records that this
/// node writes later.
#[test]
fn a_node_that_gave_changes_away_reports_and_leaves_when_they_are_durable() {
    let flush = Did::Other(Action::Flush { end: 9 });
    let mut world = world(2);
    let block = theirs().next().unwrap();
    let slot = world.get(1, block, Ask::X);
    let did = change_and_give(&mut world, block, slot);
    assert_eq!(did, [Did::Carried(block), Did::Shipped(NodeId(1), block)], "it does not wait");
    world.tell(Event::HandBack);
    assert_eq!(world.tell(Event::Leave), [flush]);
    let did = world.view(6, &[(0, 1), (1, 1)]);
    assert!(
        !did.iter().any(|did| matches!(did, Did::Other(Action::SendBehind { message, .. })
        if message.body == MessageBody::Leaving)),
        "{did:?}"
    );
    world.say(1, 6, MessageBody::Mark { blocks: true });
    assert_eq!(world.say(1, 6, MessageBody::Mark { blocks: false }), []);
    let did = world.tell(Event::Durable { end: 9 });
    assert!(sent(&did, 1).contains(&MessageBody::HandedOver { version: 2 }), "{did:?}");
}

/// A block that comes back without a record that this node has already is not durable before that
/// record is.
#[test]
fn a_block_that_comes_back_keeps_the_end_of_its_records() {
    let mut world = world(2);
    let block = theirs().next().unwrap();
    let slot = world.get(1, block, Ask::X);
    change_and_give(&mut world, block, slot);
    let slot = take_back(&mut world, block);
    assert_eq!(world.shard.frames[slot].redo, RedoSpan { first: 0, last: 9, force: 0 });
}

/// The records of the second change may be in no other stream, like those of the first.
#[test]
fn a_node_that_gave_a_block_away_twice_reports_when_all_its_records_are_durable() {
    let mut world = world(2);
    let block = theirs().next().unwrap();
    let slot = world.get(1, block, Ask::X);
    change_and_give(&mut world, block, slot);
    let slot = Slot(take_back(&mut world, block) as u32);
    let newer = RedoSpan { first: 10, last: 15, force: 0 };
    let did = change_to_and_give(&mut world, (block, 3), slot, newer);
    assert_eq!(did, [Did::Carried(block), Did::Shipped(NodeId(1), block)], "it does not wait");
    assert_eq!(world.shard.oldest_handed_over(), Some(3), "the records of both changes are needed");
    world.view(6, &[(0, 1), (1, 1)]);
    world.say(1, 6, MessageBody::Mark { blocks: true });
    let did = world.say(1, 6, MessageBody::Mark { blocks: false });
    assert_eq!(did, [Did::Other(Action::Flush { end: 15 })]);
    assert_eq!(world.tell(Event::Durable { end: 9 }), []);
    let did = world.tell(Event::Durable { end: 15 });
    assert!(sent(&did, 1).contains(&MessageBody::HandedOver { version: 3 }), "{did:?}");
}

/// A checkpoint asks for the writes of all blocks that were given away, a few at a time.
#[test]
fn each_answer_to_a_request_for_a_write_lets_the_next_one_go() {
    let mut world = world(4);
    let blocks: Vec<BlockId> = theirs().take(100).collect();
    for block in blocks.iter().copied() {
        let slot = world.get(1, block, Ask::X);
        change_and_give(&mut world, block, slot);
    }
    let asked = |did: Vec<Did>| {
        did.into_iter().filter_map(|did| match did {
            Did::Other(Action::Send {
                message: Message { body: MessageBody::Ensure { .. }, block, .. },
                ..
            }) => Some(block),
            _ => None,
        })
    };
    let mut under_way: VecDeque<_> = asked(world.tell(Event::Checkpoint { below: u64::MAX })).collect();
    let (mut all, most) = (under_way.len(), under_way.len());
    assert!(most < blocks.len(), "not all at once");
    while let Some(block) = under_way.pop_front() {
        let next: Vec<_> = asked(world.hear(1, block, MessageBody::Saved { version: 2 })).collect();
        all += next.len();
        under_way.extend(next);
        assert!(under_way.len() <= most);
    }
    assert_eq!((all, world.shard.handed_over()), (blocks.len(), 0));
}

/// Other members rely on it that a leaver begins nothing: a node that settles with it later has to
/// know, and it has to stay true.
#[test]
fn a_leaver_stays_one_in_every_later_view() {
    let leaving = |to, epoch| {
        let message = Message { epoch: Epoch(epoch), block: BlockId(0), body: MessageBody::Leaving };
        Did::Other(Action::SendBehind { to: NodeId(to), message })
    };
    for noted in [false, true] {
        let mut world = opened_without(1, Epoch(1), 3, 4);
        world.tell(Event::HandBack);
        assert_eq!(world.tell(Event::Leave), [leaving(1, 1)]);
        if noted {
            assert_eq!(world.say(1, 1, MessageBody::Noted), [Did::Other(Action::MayLeave)]);
        }
        let did = world.view(2, &[(0, 1), (1, 1), (2, 1)]);
        for to in [1, 2] {
            let said = did.iter().position(|did| *did == leaving(to, 2)).expect("a leave announcement");
            let is_mark = |did: &Did| {
                let body = MessageBody::Mark { blocks: true };
                let message = Message { epoch: Epoch(2), block: BlockId(0), body };
                *did == Did::Other(Action::SendBehind { to: NodeId(to), message })
            };
            assert!(said < did.iter().position(is_mark).expect("a mark"), "{did:?}");
        }
        let mut did = Vec::new();
        for from in [1, 2] {
            for body in
                [MessageBody::Noted, MessageBody::Mark { blocks: true }, MessageBody::Mark { blocks: false }]
            {
                did.extend(world.say(from, 2, body));
            }
            did.extend(world.say(from, 2, MessageBody::Reported));
        }
        assert!(world.shard.masters() && !did.contains(&Did::Other(Action::MayLeave)), "before all are open");
        let block = (0..BLOCKS).map(BlockId).find(|block| world.shard.master(*block) == NodeId(0)).unwrap();
        let request = MessageBody::Request { ask: Ask::X, have: Mode::N, target: ELSEWHERE };
        assert_eq!(world.say_of(2, 2, (block, request)), [], "nothing is begun");
        world.say(1, 2, MessageBody::Opened);
        assert_eq!(world.say(2, 2, MessageBody::Opened), [Did::Other(Action::MayLeave)]);
    }
}

/// A master opens when the holders have the debts of the dead on themselves: before, another node
/// could get the block in X without the debt.
#[test]
fn a_master_opens_after_the_debts_of_the_dead_are_taken() {
    let mut world = opened_without(1, Epoch(1), 3, 4);
    let block = (0..BLOCKS)
        .map(BlockId)
        .find(|block| master(*block, 3) == NodeId(0) && master(*block, 2) == NodeId(0))
        .unwrap();
    world.view(2, &[(0, 1), (1, 1), (2, 1)]);
    for body in [MessageBody::Mark { blocks: true }, MessageBody::Mark { blocks: false }] {
        for from in [1, 2] {
            world.say(from, 2, body);
        }
    }
    world.say(2, 2, MessageBody::Reported);
    world.say_of(1, 2, (block, MessageBody::Held { mode: Mode::S, owed: false, behind: true }));
    let did = world.say(1, 2, MessageBody::Reported);
    assert_eq!(sent(&did, 1), [MessageBody::Owe, MessageBody::DebtsNamed]);
    assert!(!did.contains(&Did::Other(Action::Open { epoch: Epoch(2) })), "{did:?}");
    assert_eq!(faults(&world.say(2, 2, MessageBody::DebtsTaken)).len(), 1, "it was named none");
    let did = world.say(1, 2, MessageBody::DebtsTaken);
    assert!(did.contains(&Did::Other(Action::Open { epoch: Epoch(2) })), "{did:?}");
}
