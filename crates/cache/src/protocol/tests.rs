//! One shard, driven by hand: what went wrong once, and what the simulator cannot see.

use plexus_base::{BlockId, Epoch, Nanos, NodeId, WorkerId};

use super::*;

/// What the shard did, in its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Did {
    Opened(Slot, Mode),
    Pinned(Ticket),
    Shipped(NodeId, BlockId),
    Other(Action),
}

/// Frames and outlet in one: a log, and which frames are pinned.
#[derive(Default)]
struct World {
    log: std::cell::RefCell<Vec<Did>>,
    pinned: Vec<Slot>,
}

struct Hand<'a>(&'a std::cell::RefCell<Vec<Did>>, &'a mut Vec<Slot>);
struct Out<'a>(&'a std::cell::RefCell<Vec<Did>>);

impl Frames for Hand<'_> {
    fn open(&mut self, slot: Slot, _block: BlockId, mode: Mode) {
        self.0.borrow_mut().push(Did::Opened(slot, mode));
    }
    fn pin(&mut self, slot: Slot, ticket: Ticket, mode: Mode) -> bool {
        if mode == Mode::X && self.1.contains(&slot) {
            return false;
        }
        self.1.push(slot);
        self.0.borrow_mut().push(Did::Pinned(ticket));
        true
    }
    fn close(&mut self, slot: Slot) -> Option<Contents> {
        (!self.1.contains(&slot)).then_some(Contents { dirty: false, version: 1 })
    }
    fn forget(&mut self, _slot: Slot) {}
    fn expect(&mut self, _slot: Slot, _generation: u32) {}
}

impl Outlet for Out<'_> {
    fn push(&mut self, action: Action) {
        self.0.borrow_mut().push(Did::Other(action));
    }
    fn ship(&mut self, to: NodeId, _slot: Slot, _dest: Slot, _generation: u32, message: Message) {
        self.0.borrow_mut().push(Did::Shipped(to, message.block));
    }
}

const EPOCH: Epoch = Epoch(5);

impl World {
    fn tell(&mut self, shard: &mut Shard, event: Event) -> Vec<Did> {
        let World { log, pinned } = self;
        shard.handle(Nanos(0), event, &mut Hand(log, pinned), &mut Out(log));
        log.take()
    }

    fn want(&mut self, shard: &mut Shard, ticket: u64, block: BlockId, ask: Ask) -> Vec<Did> {
        self.tell(shard, Event::Want { ticket: Ticket(ticket), block, ask })
    }

    fn hear(&mut self, shard: &mut Shard, from: u8, block: BlockId, body: Body) -> Vec<Did> {
        let message = Message { epoch: EPOCH, block, body };
        self.tell(shard, Event::Message { from: NodeId(from), message })
    }

    /// Gets `block`, mastered by the other node, from the disk for a session; it is pinned then.
    fn get(&mut self, shard: &mut Shard, ticket: u64, block: BlockId, ask: Ask) -> Slot {
        let did = self.want(shard, ticket, block, ask);
        let target = requested(&did).expect("a request");
        let source = Source::Disk { version: 0 };
        self.hear(shard, 1, block, Body::Grant { ask, target, seq: 1, source, owed: false, behind: false });
        let did = self.tell(shard, Event::Read { slot: target.slot, result: Ok(1) });
        assert!(did.contains(&Did::Pinned(Ticket(ticket))), "{did:?}");
        target.slot
    }

    fn idle(&mut self, shard: &mut Shard, slot: Slot) -> Vec<Did> {
        self.pinned.retain(|pinned| *pinned != slot);
        self.tell(shard, Event::Idle { slot, contents: Contents { dirty: false, version: 1 } })
    }
}

fn requested(did: &[Did]) -> Option<Target> {
    did.iter().find_map(|did| match did {
        Did::Other(Action::Send { message: Message { body: Body::Request { target, .. }, .. }, .. }) => {
            Some(*target)
        }
        _ => None,
    })
}

fn shard(ways: u32) -> Shard {
    let (me, worker) = (NodeId(0), WorkerId(0));
    Shard::new(Config { me, nodes: 2, worker, workers: 1, epoch: EPOCH, sets: 1, ways })
}

/// Blocks that the other node masters.
fn theirs() -> impl Iterator<Item = BlockId> {
    (0..).map(BlockId).filter(|block| block.partition().master(2) == NodeId(1))
}

const ELSEWHERE: Target = Target { slot: Slot(3), generation: 1, id: 9 };

#[test]
fn bytes_leave_before_the_next_session_is_let_in() {
    let (mut world, mut shard) = (World::default(), shard(4));
    let block = theirs().next().unwrap();
    let slot = world.get(&mut shard, 1, block, Ask::X);
    let copy = Body::Forward { ask: Ask::Cr, requester: NodeId(1), target: ELSEWHERE, seq: 1, owed: false };
    world.hear(&mut shard, 1, block, copy);
    // Came after the order, so it goes after it; in the same call of `handle`.
    world.want(&mut shard, 2, block, Ask::X);
    let did = world.idle(&mut shard, slot);
    let shipped = did.iter().position(|did| matches!(did, Did::Shipped(..))).expect("a copy");
    let opened = did.iter().position(|did| matches!(did, Did::Opened(..))).expect("the next session");
    assert!(shipped < opened, "{did:?}");
}

#[test]
fn who_waits_for_a_frame_for_a_block_that_comes_waits_at_the_block() {
    let (mut world, mut shard) = (World::default(), shard(2));
    let blocks: Vec<BlockId> = theirs().take(3).collect();
    let first = world.get(&mut shard, 1, blocks[0], Ask::X);
    world.get(&mut shard, 2, blocks[1], Ask::X);
    // Both frames are in use: the sessions for the third block queue up.
    world.want(&mut shard, 3, blocks[2], Ask::X);
    world.want(&mut shard, 4, blocks[2], Ask::X);
    world.idle(&mut shard, first);
    let did = world.hear(&mut shard, 1, blocks[0], Body::Evicted);
    assert!(requested(&did).is_some());
    assert_eq!(shard.frames.iter().filter(|frame| frame.block == blocks[2]).count(), 1);
    let waiting = |shard: &Shard| {
        let slot = shard.find(blocks[2]).expect("the block has a frame");
        shard.waiters.iter(shard.frames[slot].waiters).map(|waiter| waiter.ticket.0).collect::<Vec<_>>()
    };
    assert_eq!(waiting(&shard), [3, 4]);
}

#[test]
fn a_turn_is_for_those_who_were_there_and_not_for_newcomers() {
    let (mut world, mut shard) = (World::default(), shard(4));
    let block = theirs().next().unwrap();
    let slot = world.get(&mut shard, 1, block, Ask::X);
    world.want(&mut shard, 2, block, Ask::X);
    let give = Body::Forward { ask: Ask::X, requester: NodeId(1), target: ELSEWHERE, seq: 2, owed: false };
    world.hear(&mut shard, 1, block, give);
    world.want(&mut shard, 3, block, Ask::X);
    let did = world.idle(&mut shard, slot);
    assert!(
        did.contains(&Did::Pinned(Ticket(2))) && !did.contains(&Did::Shipped(NodeId(1), block)),
        "{did:?}"
    );
    let did = world.idle(&mut shard, slot);
    assert!(
        did.contains(&Did::Shipped(NodeId(1), block)) && !did.contains(&Did::Pinned(Ticket(3))),
        "{did:?}"
    );
    assert!(requested(&did).is_some(), "the newcomer asks for it again: {did:?}");
}

#[test]
fn other_views_are_refused_or_kept_and_nonsense_is_named() {
    let (mut world, mut shard) = (World::default(), shard(4));
    let block = theirs().next().unwrap();
    for (epoch, parked) in [(4, 0), (6, 1)] {
        let message = Message { epoch: Epoch(epoch), block, body: Body::Evicted };
        assert!(world.tell(&mut shard, Event::Message { from: NodeId(1), message }).is_empty());
        assert_eq!(shard.take_parked().len(), parked);
    }
    let nonsense = [
        Body::Evicted,
        Body::Invalidate { seq: 1 },
        Body::Done { seq: 1, held: true },
        Body::Invalidated { seq: 1, owed: true },
        Body::Evict { mode: Mode::X, version: 1 },
        Body::Refused { target: ELSEWHERE, why: Why::NotMaster },
        Body::Forward { ask: Ask::X, requester: NodeId(1), target: ELSEWHERE, seq: 1, owed: false },
    ];
    for body in nonsense {
        for block in [block, BlockId(u64::MAX), BlockId(0), BlockId(1), BlockId(2), BlockId(3)] {
            let did = world.hear(&mut shard, 1, block, body);
            assert!(
                did.iter().any(|did| matches!(did, Did::Other(Action::Fault { .. }))),
                "{body:?}: {did:?}"
            );
        }
    }
    assert_eq!((shard.counts().old_epoch, shard.counts().new_epoch), (1, 1));
    assert!(shard.is_quiet());
}

#[test]
fn a_node_that_stops_wakes_everybody_and_keeps_what_it_has() {
    let (mut world, mut shard) = (World::default(), shard(4));
    let blocks: Vec<BlockId> = theirs().take(2).collect();
    let slot = world.get(&mut shard, 1, blocks[0], Ask::X);
    world.want(&mut shard, 2, blocks[1], Ask::S);
    let did = world.tell(&mut shard, Event::PeerGone(NodeId(1)));
    let stopped = Action::Wake { ticket: Ticket(2), result: Err(WaitError::Stopped) };
    assert!(did.contains(&Did::Other(stopped)) && !did.contains(&Did::Other(Action::Halted)), "{did:?}");
    assert!(world.idle(&mut shard, slot).contains(&Did::Other(Action::Halted)));
    assert_eq!(shard.report().held, [(blocks[0], Mode::X)]);
    let did = world.want(&mut shard, 3, blocks[0], Ask::S);
    assert_eq!(did, [Did::Other(Action::Wake { ticket: Ticket(3), result: Err(WaitError::Stopped) })]);
}
