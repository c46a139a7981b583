//! Fuzz tests of one shard against members that send anything: it answers with faults and never
//! panics.
//!
//! Messages are well-formed and mostly nearly right: answers to messages of the shard, orders of
//! the right master, numbers in use. The local side (sessions, disk, checkpoints) keeps its
//! contract. The frames are the table of a worker, and the shard's actions are checked there and
//! here.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use plexus_base::{Incarnation, WorkerId};

use super::*;
use crate::frames::FrameTable;

const ME: NodeId = NodeId(0);
const NODES: u8 = 3;
const WAYS: u32 = 4;
const BLOCKS: u64 = 6;
const EPOCH: Epoch = Epoch(1);
const SEEDS: u64 = 5_000;
/// The seeds with changes of view; such a change is as much work as all the rest of a seed.
const SEEDS_OF_VIEWS: u64 = 3_000;
const STEPS: u32 = 200;

#[derive(Default)]
struct Random {
    state: u64,
    /// True if members change during the run, and not only when all others go at the end.
    views: bool,
}

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.state = self.state.wrapping_add(1);
        BlockId(self.state).hash() % end
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
        let (generation, id) = (1 + 2 * self.below(4) as u32, 1 + self.below(8) as u32);
        Target { slot, generation, id, takes_redo: self.percent(50) }
    }

    fn body(&mut self) -> MessageBody {
        let (ask, target, seq, flag) = (self.ask(), self.target(), self.below(8) as u32, self.percent(50));
        match self.below(if self.views { 19 } else { 12 }) {
            0 => MessageBody::Request { ask, have: self.of(&[Mode::N, Mode::S, Mode::X]), target },
            1 | 2 => {
                MessageBody::Forward { ask, requester: NodeId(self.below(4) as u8), target, seq, owed: flag }
            }
            3 => MessageBody::Invalidate { seq },
            4 => MessageBody::Invalidated { seq, owed: flag },
            5 => {
                let source = self.of(&[Source::Data, Source::Keep, Source::Disk { version: 0 }]);
                MessageBody::Grant { ask, target, seq, source, owed: flag, behind: self.percent(50) }
            }
            6 => MessageBody::Done { seq, held: flag },
            7 => MessageBody::Evict { mode: self.of(&[Mode::N, Mode::S, Mode::X]), version: self.below(4) },
            8 if flag => MessageBody::Evicted,
            8 => MessageBody::Refused { target, unrecovered: self.of(&[false, true]) },
            9 => MessageBody::Ensure { version: self.below(4) },
            10 => MessageBody::Save { requester: NodeId(self.below(4) as u8), version: self.below(4) },
            11 => MessageBody::Saved { version: self.below(4) },
            12 | 13 => MessageBody::Mark { blocks: flag },
            14 => MessageBody::Held {
                mode: self.of(&[Mode::N, Mode::S, Mode::X]),
                owed: flag,
                behind: self.percent(50),
            },
            15 => MessageBody::HandedOver { version: self.below(4) },
            16 => MessageBody::Reported,
            17 => self.of(&[MessageBody::Opened, MessageBody::DebtsNamed, MessageBody::DebtsTaken]),
            _ => self.of(&[
                MessageBody::Owe,
                MessageBody::More,
                MessageBody::Leaving,
                MessageBody::Noted,
                MessageBody::Recovered,
            ]),
        }
    }
}

struct FuzzedNode {
    frames: FrameTable,
    /// The pins of sessions.
    pins: Vec<(Slot, Mode)>,
    /// The frames whose copy is to be written.
    copies: Vec<Slot>,
    /// The end of the stream, where changes are logged.
    end: u64,
    /// The reservations for records that come with a block.
    reserved: u32,
    scans: Vec<Epoch>,
    replays: Option<Epoch>,
    /// Sessions that wait.
    waiting: Vec<Ticket>,
    private: Vec<Slot>,
    disk: Vec<Event>,
    /// Messages that a member might send next.
    next: Vec<(NodeId, BlockId, MessageBody)>,
    faults: u64,
    quick: Random,
    /// The view that the shard is in.
    view: Option<Members>,
    /// The epoch of the view before.
    before: Option<Epoch>,
    opened: Option<Epoch>,
}

impl ShardDriver for FuzzedNode {
    fn open(&mut self, slot: Slot, block: BlockId, mode: Mode) {
        assert!(!self.is_read(slot) && mode != Mode::N, "opened in use");
        self.frames.open(slot, block, mode);
        // A session that finds the block open does not need the shard, and may be faster than those
        // it lets in.
        if self.quick.percent(10) {
            let mode = self.quick.of(&[Mode::S, mode]);
            self.pin(slot, Ticket(0), mode);
        }
    }

    fn pin(&mut self, slot: Slot, _ticket: Ticket, mode: Mode) -> bool {
        let is_pinned = self.frames.pin(slot, mode);
        self.pins.extend(is_pinned.then_some((slot, mode)));
        is_pinned
    }

    fn take_use(&mut self, _slot: Slot) -> bool {
        self.quick.percent(30)
    }

    fn close(&mut self, slot: Slot) -> Option<Contents> {
        self.frames.close(slot)
    }

    fn forget(&mut self, slot: Slot) {
        assert!(!self.is_read(slot), "forgotten in use");
        self.frames.forget(slot);
    }

    fn expect(&mut self, slot: Slot, generation: u32) {
        self.frames.expect(slot, generation);
    }

    fn blank(&mut self, slot: Slot, _block: BlockId, version: u64) {
        assert!(self.frames.is_idle(slot) && !self.is_read(slot), "blanked in use");
        self.frames.blank(slot, version);
    }

    fn append(&mut self, _slot: Slot, _block: BlockId, _known: u64) -> RedoSpan {
        if !self.frames.config().redo || self.quick.percent(50) {
            return RedoSpan::default();
        }
        self.end += 1;
        RedoSpan { first: self.end, last: self.end, force: 0 }
    }

    fn arrived(&mut self, slot: Slot, owed: bool, redo: RedoSpan) {
        self.frames.arrived(slot, owed, redo);
    }

    fn carry(&mut self, _block: BlockId) -> bool {
        self.quick.percent(50)
    }

    fn reserve(&mut self) -> bool {
        let is_reserved = self.quick.percent(50);
        self.reserved += u32::from(is_reserved);
        is_reserved
    }

    fn release(&mut self) {
        self.reserved = self.reserved.checked_sub(1).expect("a reservation");
    }

    fn copy(&mut self, slot: Slot) -> u64 {
        assert!(!self.is_read(slot) && !self.is_written(slot), "copied in use");
        self.copies.push(slot);
        self.frames.copy(slot, &mut vec![0; self.frames.block_size()])
    }

    fn write_failed(&mut self, slot: Slot, first: u64) -> RedoSpan {
        self.frames.write_failed(slot, first);
        self.frames.redo(slot)
    }

    fn log_image(&mut self, slot: Slot, _block: BlockId) -> RedoSpan {
        assert!(self.frames.config().redo, "an image without a stream");
        self.log(slot, true);
        self.frames.redo(slot)
    }

    fn durable(&self) -> u64 {
        0
    }

    fn oldest_owed(&self, is_wanted: impl Fn(Slot) -> bool) -> Option<(Slot, u64)> {
        self.frames.oldest_owed(is_wanted)
    }

    fn push(&mut self, action: Action) {
        match action {
            Action::Send { to, message } | Action::SendBehind { to, message } => {
                assert!(to != ME && to.0 < NODES, "sent to {to}");
                self.sent(to, message);
            }
            Action::ReadDisk { slot, .. } => {
                assert!(self.frames.is_idle(slot) && !self.is_read(slot), "read into a frame in use");
                self.disk.push(Event::Read { slot, result: Ok(1) });
            }
            Action::WriteDisk { slot, block } => {
                let at = self.copies.iter().position(|copied| *copied == slot);
                self.copies.swap_remove(at.expect("a copy to write"));
                assert!(block.0 < BLOCKS);
                self.disk.push(Event::Wrote { slot, ok: true });
            }
            Action::Wake { ticket, result } => {
                let at = self.waiting.iter().position(|waiting| *waiting == ticket);
                self.waiting.swap_remove(at.expect("a session that waits"));
                if let Ok(Granted::Private(slot)) = result {
                    self.private.push(slot);
                }
            }
            Action::Fault { from, .. } => {
                assert!(from.0 < NODES);
                self.faults += 1;
            }
            Action::Open { epoch } => self.opened = Some(epoch),
            Action::Flush { end } => self.disk.push(Event::Durable { end }),
            Action::Recover { epoch } => {
                self.disk.push(Event::Drained { epoch });
                self.scans.push(epoch);
            }
            Action::Replay { epoch } => self.replays = Some(epoch),
            Action::CloseStreams { .. }
            | Action::MayLeave
            | Action::WriteFailed { .. }
            | Action::CheckpointDone { .. }
            | Action::HandedBack { .. } => {}
        }
    }

    fn ship(&mut self, to: NodeId, slot: Slot, _dest: Slot, _generation: u32, message: Message) {
        assert!(to != ME && to.0 < NODES, "shipped to {to}");
        assert!(!self.frames.may_change(slot), "copied in use");
        self.sent(to, message);
    }
}

impl FuzzedNode {
    /// Makes a node without blocks and without a view.
    fn new(config: Config, quick: Random) -> Self {
        Self {
            frames: FrameTable::of_test(config),
            pins: Vec::new(),
            copies: Vec::new(),
            end: 0,
            reserved: 0,
            scans: Vec::new(),
            replays: None,
            waiting: Vec::new(),
            private: Vec::new(),
            disk: Vec::new(),
            next: Vec::new(),
            faults: 0,
            quick,
            view: None,
            before: None,
            opened: None,
        }
    }

    fn is_read(&self, slot: Slot) -> bool {
        self.disk.iter().any(|event| matches!(event, Event::Read { slot: read, .. } if *read == slot))
    }

    fn is_written(&self, slot: Slot) -> bool {
        let is_it = |event: &Event| matches!(event, Event::Wrote { slot: written, .. } if *written == slot);
        self.copies.contains(&slot) || self.disk.iter().any(is_it)
    }

    /// Appends a record of a change to the redo stream, if there is one.
    fn log(&mut self, slot: Slot, is_image: bool) {
        if !self.frames.config().redo {
            return self.frames.will_write(slot);
        }
        self.end += 1;
        self.frames.will_log(slot, self.end);
        self.frames.logged(slot, self.end, is_image);
    }

    /// Ends a scan, if one is under way, or begins the replays that the shard asked for.
    fn recover(&mut self, shard: &mut Shard, random: &mut Random) {
        if let Some(epoch) = self.scans.pop() {
            let blocks = (0..BLOCKS + 1).map(BlockId).filter(|_| random.percent(30)).map(|block| (block, 3));
            shard.scanned(Nanos(0), epoch, blocks.collect::<Vec<_>>(), self);
        }
        if let Some(epoch) = self.replays.take() {
            for block in shard.in_doubt().collect::<Vec<_>>() {
                let version = random.percent(80).then_some(3);
                self.disk.push(Event::Replayed { epoch, block, version });
            }
        }
    }

    /// Records a message of the shard and prepares possible answers.
    fn sent(&mut self, to: NodeId, message: Message) {
        let Message { block, body, .. } = message;
        let master = self.master(block);
        match body {
            MessageBody::Request { ask, have, target } => {
                let behind = self.quick.percent(30);
                let grant =
                    |source| MessageBody::Grant { ask, target, seq: 1, source, owed: ask == Ask::X, behind };
                let holder = NodeId(3 - to.0);
                self.next.push((holder, block, grant(Source::Data)));
                self.next.push((to, block, grant(Source::Disk { version: 0 })));
                if have == Mode::S {
                    self.next.push((to, block, grant(Source::Keep)));
                }
                let forward =
                    MessageBody::Forward { ask: Ask::Cr, requester: ME, target, seq: 1, owed: false };
                self.next.push((to, block, forward));
            }
            MessageBody::Forward { ask, requester: ME, target, seq, owed } => {
                let grant =
                    MessageBody::Grant { ask, target, seq, source: Source::Data, owed, behind: false };
                self.next.push((to, block, grant));
            }
            MessageBody::Forward { requester, seq, .. } => {
                self.next.push((requester, block, MessageBody::Done { seq, held: true }));
            }
            MessageBody::Invalidate { seq } => {
                self.next.push((to, block, MessageBody::Invalidated { seq, owed: false }))
            }
            MessageBody::Grant { seq, .. } if master == ME => {
                self.next.push((to, block, MessageBody::Done { seq, held: true }));
            }
            MessageBody::Evict { .. } => self.next.push((to, block, MessageBody::Evicted)),
            // Messages of a member that takes part in a change of view.
            MessageBody::Mark { blocks } => {
                self.next.push((to, block, MessageBody::Mark { blocks }));
                if blocks {
                    self.next.push((to, block, MessageBody::Reported));
                    self.next.push((to, block, MessageBody::Opened));
                }
            }
            MessageBody::Held { .. } => self.next.push((to, block, MessageBody::Owe)),
            MessageBody::DebtsNamed => self.next.push((to, block, MessageBody::DebtsTaken)),
            MessageBody::Leaving => self.next.push((to, block, MessageBody::Noted)),
            MessageBody::Ensure { version } => self.next.push((to, block, MessageBody::Saved { version })),
            _ => {}
        }
    }

    fn master(&self, block: BlockId) -> NodeId {
        self.view.as_ref().expect("a first view").master(block.partition())
    }

    /// Makes the first view, with all members new.
    fn first_view(&mut self) -> Members {
        let members = (0..NODES).map(|node| (NodeId(node), Incarnation(1))).collect();
        self.view.insert(Members { epoch: EPOCH, members }).clone()
    }

    /// Makes the last view: all others are gone.
    fn last_view(&mut self) -> Members {
        let epoch = Epoch(self.view.as_ref().map_or(0, |view| view.epoch.0) + 1);
        self.view.insert(Members { epoch, members: vec![(ME, Incarnation(1))] }).clone()
    }

    /// Makes the next view: at least this node stays.
    fn next_view(&mut self, random: &mut Random) -> Members {
        let epoch = Epoch(self.view.as_ref().map_or(0, |view| view.epoch.0) + 1 + random.below(2) as u32);
        let mut members = vec![(ME, Incarnation(1))];
        for node in (1..NODES).map(NodeId) {
            let before = self.view.as_ref().and_then(|view| view.incarnation(node)).unwrap_or(Incarnation(1));
            match random.below(5) {
                0 => {}
                1 => members.push((node, Incarnation(before.0 + 1))),
                _ => members.push((node, before)),
            }
        }
        let view = Members { epoch, members };
        self.before = self.view.replace(view.clone()).map(|before| before.epoch);
        view
    }

    /// Lets a session leave a frame. Returns the event for the shard.
    fn unpin(&mut self, at: usize) -> Option<Event> {
        let (slot, mode) = self.pins.swap_remove(at);
        let is_last = if mode == Mode::X {
            self.frames.blank(slot, self.frames.contents(slot).version + 1);
            self.log(slot, false);
            self.frames.unlatch(slot, true)
        } else {
            self.frames.unpin(slot)
        };
        is_last.then(|| Event::Idle { slot, contents: self.frames.contents(slot) })
    }

    /// Returns the events that are still due when no new operation begins.
    fn last(&mut self) -> Option<Event> {
        while !self.pins.is_empty() {
            if let Some(told) = self.unpin(0) {
                return Some(told);
            }
        }
        if let Some(slot) = self.private.pop() {
            return Some(Event::Freed { slot });
        }
        self.disk.pop()
    }

    /// Returns an event of the node itself.
    fn local(&mut self, random: &mut Random, ticket: u64) -> Option<Event> {
        match random.below(40) {
            0..15 if self.waiting.len() < 8 => {
                let ticket = Ticket(ticket);
                self.waiting.push(ticket);
                let has_others = random.percent(20);
                Some(Event::Want {
                    ticket,
                    block: BlockId(random.below(BLOCKS)),
                    ask: if random.percent(20) { Ask::New } else { random.ask() },
                    has_others,
                })
            }
            0..30 => {
                let slot = Slot(random.below(u64::from(self.frames.config().slots())) as u32);
                let at = self.pins.iter().position(|(pinned, _)| *pinned == slot)?;
                self.unpin(at)
            }
            30..36 if !self.disk.is_empty() => {
                let mut done = self.disk.swap_remove(random.below(self.disk.len() as u64) as usize);
                match &mut done {
                    Event::Read { result, .. } if random.percent(10) => *result = Err(BlockError::Corrupt),
                    Event::Wrote { ok, .. } => *ok = random.percent(80),
                    _ => {}
                }
                Some(done)
            }
            36..39 => self.private.pop().map(|slot| Event::Freed { slot }),
            _ if random.views && random.percent(20) => Some(Event::Leave),
            _ if random.percent(50) => {
                Some(Event::Checkpoint { below: random.of(&[u64::MAX, self.end, self.end / 2]) })
            }
            _ if random.percent(10) => Some(Event::HandBack),
            _ => None,
        }
    }

    /// Returns a message of a member: a due answer, a changed one, or anything.
    fn remote(&mut self, random: &mut Random) -> Event {
        let block = BlockId(random.below(BLOCKS + 1));
        let mut said = (random.other(), block, random.body());
        if !self.next.is_empty() && random.percent(60) {
            let at = random.below(self.next.len() as u64) as usize;
            said = if random.percent(80) { self.next.swap_remove(at) } else { self.next[at] };
        } else {
            let master = self.master(block);
            let order = matches!(
                said.2,
                MessageBody::Forward { .. } | MessageBody::Invalidate { .. } | MessageBody::Refused { .. }
            );
            if order && master != ME && random.percent(90) {
                said.0 = master;
            }
        }
        self.next.truncate(24);
        let (from, block, body) = said;
        let mut epoch = self.view.as_ref().expect("a first view").epoch;
        if random.views
            && matches!(body, MessageBody::Grant { .. } | MessageBody::Evicted)
            && random.percent(30)
        {
            epoch = self.before.unwrap_or(epoch);
        } else if random.views && random.percent(10) {
            epoch = Epoch(epoch.0 + 1 - random.below(3).min(u64::from(epoch.0)) as u32);
        }
        let message = Message { epoch, block, body };
        Event::Message { from, message: Message::decode(&message.encode()).expect("a message") }
    }
}

/// Opens the shard in its first view, with reports of correct members.
fn open(shard: &mut Shard, world: &mut FuzzedNode) {
    let view = world.first_view();
    tests::open(shard, &view, world);
    world.next.clear();
}

/// Runs one seed. Returns whether the shard opened in some view.
fn run(seed: u64, views: bool, all: &mut Counts) -> bool {
    let mut random = Random { state: seed << 32, views };
    let config = Config {
        me: ME,
        nodes: NODES,
        worker: WorkerId(0),
        workers: 1,
        blocks: BLOCKS,
        sets: 1 + random.below(2) as u32,
        ways: 2 + random.below(u64::from(WAYS) - 1) as u32,
        redo: random.percent(50),
        carry_bytes: random.of(&[0, 1]),
    };
    let mut shard = Shard::new(config);
    let mut world = FuzzedNode::new(config, Random { state: !seed << 32, views });
    if !views {
        open(&mut shard, &mut world);
    }
    // The share of messages from members among all events.
    let share = 20 + random.below(60);
    for step in 0..STEPS {
        if views && (step == 0 || random.below(50) == 0) {
            let view = world.next_view(&mut random);
            shard.view(Nanos(u64::from(step)), &view, &mut world);
        }
        if random.percent(30) {
            world.recover(&mut shard, &mut random);
        }
        let event = if random.percent(share) {
            Some(world.remote(&mut random))
        } else {
            world.local(&mut random, u64::from(step))
        };
        if let Some(event) = event {
            shard.handle(Nanos(u64::from(step)), event, &mut world);
        }
    }
    // After any messages, a shard that is left alone answers all members and comes to rest.
    let view = world.last_view();
    shard.view(Nanos(0), &view, &mut world);
    for step in 0.. {
        world.recover(&mut shard, &mut random);
        let event = if step < 50 && random.percent(50) {
            world.remote(&mut random)
        } else if let Some(event) = world.last() {
            event
        } else if step >= 50 {
            break;
        } else {
            continue;
        };
        shard.handle(Nanos(0), event, &mut world);
    }
    assert!(world.waiting.is_empty(), "still waiting: {:?}", world.waiting);
    assert!(shard.is_open() && shard.is_quiet(), "not at rest");
    assert_eq!((shard.counts().faults, world.reserved), (world.faults, 0));
    all.add(shard.counts());
    world.opened.is_some()
}

/// Runs all seeds. Returns the counts that stayed zero, and the number of seeds that opened.
fn run_all(views: bool) -> (Vec<&'static str>, u64) {
    let (mut all, mut opened) = (Counts::default(), 0);
    for seed in 0..if views { SEEDS_OF_VIEWS } else { SEEDS } {
        match catch_unwind(AssertUnwindSafe(|| run(seed, views, &mut all))) {
            Ok(has_opened) => opened += u64::from(has_opened),
            Err(panic) => {
                eprintln!("seed {seed}");
                resume_unwind(panic);
            }
        }
    }
    let zero = all.named().into_iter().filter(|(_, count)| *count == 0);
    (zero.map(|(name, _)| name).collect(), opened)
}

#[test]
fn members_that_send_anything_cause_faults_and_no_panic() {
    // The test has reached every path: no count stayed zero.
    let (zero, _) = run_all(false);
    assert_eq!(zero, ["late", "old_epoch", "new_epoch"]);
}

#[test]
fn members_that_change_and_send_anything_cause_faults_and_no_panic() {
    let (zero, opened) = run_all(true);
    assert!(zero.is_empty(), "never: {zero:?}");
    assert!(opened > SEEDS_OF_VIEWS / 10, "opened in {opened} of {SEEDS_OF_VIEWS} seeds only");
}
