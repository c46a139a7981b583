//! One shard against members that send anything: whatever arrives, it answers with faults and never panics.
//!
//! What arrives is well-formed, and mostly nearly right: answers to what the shard has just sent, orders of the right master, numbers that are in use.
//! The local side (sessions, disk, checkpoints) keeps its contract, and what the shard does to it is checked here.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use plexus_base::{Epoch, WorkerId};

use super::*;

const ME: NodeId = NodeId(0);
const NODES: u8 = 3;
const WAYS: u32 = 4;
const BLOCKS: u64 = 6;
const EPOCH: Epoch = Epoch(1);
const SEEDS: u64 = 20_000;
const STEPS: u32 = 200;

#[derive(Default)]
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        BlockId(self.0).hash() % end
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn of<T: Copy>(&mut self, some: &[T]) -> T {
        some[self.below(some.len() as u64) as usize]
    }

    fn other(&mut self) -> NodeId {
        NodeId(1 + self.below(u64::from(NODES) - 1) as u8)
    }

    fn ask(&mut self) -> Ask {
        self.of(&[Ask::S, Ask::X, Ask::Cr])
    }

    fn target(&mut self) -> Target {
        let slot = Slot(self.below(u64::from(2 * WAYS)) as u32);
        Target { slot, generation: 1 + 2 * self.below(4) as u32, id: 1 + self.below(8) as u32 }
    }

    fn body(&mut self) -> Body {
        let (ask, target, seq, flag) = (self.ask(), self.target(), self.below(8) as u32, self.percent(50));
        match self.below(9) {
            0 => Body::Request { ask, have: self.of(&[Mode::N, Mode::S, Mode::X]), target },
            1 | 2 => Body::Forward { ask, requester: NodeId(self.below(4) as u8), target, seq, owed: flag },
            3 => Body::Invalidate { seq },
            4 => Body::Invalidated { seq, owed: flag },
            5 => {
                let source = self.of(&[Source::Data, Source::Keep, Source::Disk { version: 0 }]);
                Body::Grant { ask, target, seq, source, owed: flag, behind: self.percent(50) }
            }
            6 => Body::Done { seq, held: flag },
            7 => Body::Evict { mode: self.of(&[Mode::N, Mode::S, Mode::X]), version: self.below(4) },
            _ if flag => Body::Evicted,
            _ => Body::Refused { target, why: Why::NotMaster },
        }
    }
}

/// A frame, and what its driver guarantees or is promised.
#[derive(Clone, Default)]
struct Held {
    open: bool,
    notify: bool,
    mode: Mode,
    pins: Vec<Mode>,
    /// The disk reads into it or writes from it.
    busy: bool,
    contents: Contents,
}

impl Held {
    fn at_peace(&self) -> bool {
        self.pins.is_empty() && !self.busy
    }

    fn pin(&mut self, mode: Mode) -> bool {
        let free = self.pins.is_empty() || mode == Mode::S && !self.pins.contains(&Mode::X);
        free.then(|| self.pins.push(mode)).is_some()
    }
}

#[derive(Default)]
struct World {
    frames: Vec<Held>,
    /// Sessions that wait.
    waiting: Vec<Ticket>,
    private: Vec<Slot>,
    disk: Vec<Event>,
    /// What a member might say next.
    next: Vec<(NodeId, BlockId, Body)>,
    faults: u64,
    quick: Random,
}

struct Hand<'a>(&'a RefCell<World>);

impl Frames for Hand<'_> {
    fn open(&mut self, slot: Slot, _block: BlockId, mode: Mode) {
        let World { frames, quick, .. } = &mut *self.0.borrow_mut();
        let frame = &mut frames[slot.index()];
        assert!(frame.at_peace() && mode != Mode::N, "opened in use");
        (frame.open, frame.notify, frame.mode, frame.contents.dirty) = (true, false, mode, false);
        // A session that finds the block open needs no word with the shard, and may be faster than those it lets in.
        if quick.percent(10) {
            frame.pin(quick.of(&[Mode::S, mode]));
        }
    }

    fn pin(&mut self, slot: Slot, _ticket: Ticket, mode: Mode) -> bool {
        let frame = &mut self.0.borrow_mut().frames[slot.index()];
        assert!(frame.open && mode <= frame.mode && mode != Mode::N, "pinned beyond the mode");
        frame.pin(mode)
    }

    fn close(&mut self, slot: Slot) -> Option<Contents> {
        let frame = &mut self.0.borrow_mut().frames[slot.index()];
        assert!(std::mem::take(&mut frame.open), "closed twice");
        frame.notify = !frame.pins.is_empty();
        (!frame.notify).then_some(frame.contents)
    }

    fn forget(&mut self, slot: Slot) {
        let frame = &mut self.0.borrow_mut().frames[slot.index()];
        assert!(frame.at_peace(), "forgotten in use");
        (frame.open, frame.mode) = (false, Mode::N);
    }

    fn expect(&mut self, _slot: Slot, _generation: u32) {}
}

impl Outlet for Hand<'_> {
    fn push(&mut self, action: Action) {
        let world = &mut *self.0.borrow_mut();
        match action {
            Action::Send { to, message } => {
                assert!(to != ME && to.0 < NODES, "sent to {to}");
                world.sent(to, message);
            }
            Action::ReadDisk { slot, .. } => {
                let frame = &mut world.frames[slot.index()];
                assert!(frame.at_peace() && !frame.open, "read into a frame in use");
                frame.busy = true;
                world.disk.push(Event::Read { slot, result: Ok(1) });
            }
            Action::WriteDisk { slot, block } => {
                let frame = &mut world.frames[slot.index()];
                assert!(frame.at_peace() && !frame.open && block.0 < BLOCKS, "written while in use");
                frame.busy = true;
                world.disk.push(Event::Wrote { slot, ok: true });
            }
            Action::Wake { ticket, result } => {
                let at = world.waiting.iter().position(|waiting| *waiting == ticket);
                world.waiting.swap_remove(at.expect("a session that waits"));
                if let Ok(Granted::Private(slot)) = result {
                    world.private.push(slot);
                }
            }
            Action::Fault { from, .. } => {
                assert!(from.0 < NODES);
                world.faults += 1;
            }
            Action::WriteFailed { .. }
            | Action::CheckpointDone { .. }
            | Action::HandedBack { .. }
            | Action::Halted => {}
        }
    }

    fn ship(&mut self, to: NodeId, slot: Slot, _dest: Slot, _generation: u32, message: Message) {
        let world = &mut *self.0.borrow_mut();
        assert!(to != ME && to.0 < NODES, "shipped to {to}");
        let frame = &world.frames[slot.index()];
        let changeable = frame.pins.contains(&Mode::X) || frame.open && frame.mode == Mode::X;
        assert!(!changeable, "copied in use");
        world.sent(to, message);
    }
}

impl World {
    /// The shard sent something: these would be answers.
    fn sent(&mut self, to: NodeId, message: Message) {
        let Message { block, body, .. } = message;
        let master = block.partition().master(NODES);
        match body {
            Body::Request { ask, have, target } => {
                let grant =
                    |source| Body::Grant { ask, target, seq: 1, source, owed: ask == Ask::X, behind: false };
                let holder = NodeId(3 - to.0);
                self.next.push((holder, block, grant(Source::Data)));
                self.next.push((to, block, grant(Source::Disk { version: 0 })));
                if have == Mode::S {
                    self.next.push((to, block, grant(Source::Keep)));
                }
                let forward = Body::Forward { ask: Ask::Cr, requester: ME, target, seq: 1, owed: false };
                self.next.push((to, block, forward));
            }
            Body::Forward { ask, requester: ME, target, seq, owed } => {
                let grant = Body::Grant { ask, target, seq, source: Source::Data, owed, behind: false };
                self.next.push((to, block, grant));
            }
            Body::Forward { requester, seq, .. } => {
                self.next.push((requester, block, Body::Done { seq, held: true }));
            }
            Body::Invalidate { seq } => self.next.push((to, block, Body::Invalidated { seq, owed: false })),
            Body::Grant { seq, .. } if master == ME => {
                self.next.push((to, block, Body::Done { seq, held: true }));
            }
            Body::Evict { .. } => self.next.push((to, block, Body::Evicted)),
            _ => {}
        }
    }

    /// A session leaves a frame, if one is in: what the shard must be told.
    fn unpin(&mut self, slot: usize) -> Option<Option<Event>> {
        let frame = &mut self.frames[slot];
        let mode = frame.pins.pop()?;
        if mode == Mode::X {
            frame.contents = Contents { dirty: true, version: frame.contents.version + 1 };
        }
        let told = frame.pins.is_empty() && std::mem::take(&mut frame.notify);
        Some(told.then_some(Event::Idle { slot: Slot(slot as u32), contents: frame.contents }))
    }

    /// What still happens when nobody begins anything.
    fn last(&mut self) -> Option<Event> {
        for slot in 0..self.frames.len() {
            while let Some(told) = self.unpin(slot) {
                if told.is_some() {
                    return told;
                }
            }
        }
        if let Some(slot) = self.private.pop() {
            return Some(Event::Freed { slot });
        }
        let done = self.disk.pop()?;
        if let Event::Read { slot, .. } | Event::Wrote { slot, .. } = done {
            self.frames[slot.index()].busy = false;
        }
        Some(done)
    }

    /// Something that happens at the node itself.
    fn local(&mut self, random: &mut Random, ticket: u64) -> Option<Event> {
        match random.below(40) {
            0..15 if self.waiting.len() < 8 => {
                let ticket = Ticket(ticket);
                self.waiting.push(ticket);
                Some(Event::Want { ticket, block: BlockId(random.below(BLOCKS)), ask: random.ask() })
            }
            0..30 => {
                let slot = random.below(self.frames.len() as u64) as usize;
                self.unpin(slot).flatten()
            }
            30..36 if !self.disk.is_empty() => {
                let mut done = self.disk.swap_remove(random.below(self.disk.len() as u64) as usize);
                match &mut done {
                    Event::Read { slot, result } => {
                        self.frames[slot.index()].busy = false;
                        if random.percent(10) {
                            *result = Err(ReadFault::Corrupt);
                        }
                    }
                    Event::Wrote { slot, ok } => {
                        self.frames[slot.index()].busy = false;
                        *ok = random.percent(80);
                    }
                    _ => unreachable!("only these are put there"),
                }
                Some(done)
            }
            36..39 => self.private.pop().map(|slot| Event::Freed { slot }),
            _ if random.percent(50) => Some(Event::Checkpoint),
            _ if random.percent(10) => Some(Event::HandBack),
            _ if random.percent(10) => Some(Event::PeerGone(NodeId(random.below(256) as u8))),
            _ => None,
        }
    }

    /// What a member sends: an answer that is due, one with something changed about it, or anything.
    fn remote(&mut self, random: &mut Random) -> Event {
        let block = BlockId(random.below(BLOCKS + 1));
        let mut said = (random.other(), block, random.body());
        if !self.next.is_empty() && random.percent(60) {
            let at = random.below(self.next.len() as u64) as usize;
            said = if random.percent(80) { self.next.swap_remove(at) } else { self.next[at] };
        } else {
            let master = block.partition().master(NODES);
            let order =
                matches!(said.2, Body::Forward { .. } | Body::Invalidate { .. } | Body::Refused { .. });
            if order && master != ME && random.percent(90) {
                said.0 = master;
            }
        }
        self.next.truncate(24);
        let (from, block, body) = said;
        let message = Message { epoch: EPOCH, block, body };
        Event::Message { from, message: Message::decode(&message.encode()).expect("a message") }
    }
}

fn run(seed: u64, all: &mut Counts) {
    let mut random = Random(seed << 32);
    let config = Config {
        me: ME,
        nodes: NODES,
        worker: WorkerId(0),
        workers: 1,
        epoch: EPOCH,
        blocks: BLOCKS,
        sets: 1 + random.below(2) as u32,
        ways: 2 + random.below(u64::from(WAYS) - 1) as u32,
    };
    let mut shard = Shard::new(config);
    let world = RefCell::new(World {
        frames: vec![Held::default(); config.slots() as usize],
        quick: Random(!seed << 32),
        ..World::default()
    });
    // How much the members say, against how much happens here.
    let share = 20 + random.below(60);
    for step in 0..STEPS {
        let event = if random.percent(share) {
            Some(world.borrow_mut().remote(&mut random))
        } else {
            world.borrow_mut().local(&mut random, u64::from(step))
        };
        if let Some(event) = event {
            shard.handle(Nanos(u64::from(step)), event, &mut Hand(&world), &mut Hand(&world));
        }
    }
    // Whatever was said: a shard that is told to stop lets everybody go and comes to rest, while others still speak.
    shard.handle(Nanos(0), Event::PeerGone(ME), &mut Hand(&world), &mut Hand(&world));
    assert!(world.borrow().waiting.is_empty(), "still waiting: {:?}", world.borrow().waiting);
    for step in 0.. {
        let event = if step < 50 && random.percent(50) {
            world.borrow_mut().remote(&mut random)
        } else if let Some(event) = world.borrow_mut().last() {
            event
        } else if step >= 50 {
            break;
        } else {
            continue;
        };
        shard.handle(Nanos(0), event, &mut Hand(&world), &mut Hand(&world));
    }
    assert!(shard.is_at_rest());
    assert_eq!(shard.counts().faults, world.borrow().faults);
    all.add(shard.counts());
}

#[test]
fn members_that_send_anything_cause_faults_and_no_panic() {
    let mut all = Counts::default();
    for seed in 0..SEEDS {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed, &mut all))) {
            eprintln!("seed {seed}");
            resume_unwind(panic);
        }
    }
    // It was about something: every path was taken.
    let zero: Vec<_> =
        all.named().into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect();
    assert_eq!(zero, ["old_epoch", "new_epoch"]);
}
