//! The cache on one worker: passes events to the shard and carries out its actions.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use plexus_base::{BlockId, Epoch, Incarnation, NodeId, WorkerId, clock};
use plexus_disks::{BlockIo, Buffer, DiskError, IoCompletion, Job, Op, Page, Version};
use plexus_fabric::{Put, WindowId};
use plexus_interconnect::{Channel, Kind, Message, Net, Reply};
use plexus_membership::subsystem::{Neighbours, Subsystem, WorkerPort};

use crate::{
    CacheRedo, LoggedChange,
    faults::Faults,
    frames::FrameTable,
    guard::{NewPage, Wanted},
    protocol::{
        self, Action, Ask, BlockError, Contents, Counts, Event, Granted, Members, Mode, RedoSpan, Shard,
        ShardDriver, Slot, Ticket,
    },
};

/// A request of a session or the node to a worker.
pub enum CacheTask {
    /// A task waits for a block.
    Want {
        /// The block.
        block: BlockId,
        /// The way the task wants the block.
        ask: Ask,
        /// True if the task keeps other blocks latched meanwhile.
        has_others: bool,
        /// The page that the task makes, if it asks with [`Ask::New`].
        new: Option<NewPage>,
        /// The reply to the task.
        reply: Reply<Result<Granted, BlockError>>,
    },
    /// The last pin of a closing frame is gone.
    Idle(Slot),
    /// A consistent copy has been read.
    Freed(Slot),
    /// Write every owed block with a redo record below a position, and ask for the writes of blocks
    /// that were given away with one. Answered with the number of blocks that could not be written.
    Checkpoint(u64, Reply<u32>),
    /// Answer with the oldest redo record that this worker needs, and the number of debts given
    /// away.
    Oldest(Reply<(Option<u64>, u64)>),
    /// The redo stream is durable up to this position.
    Durable(u64),
    /// No replay of an earlier view is under way.
    Drained(Epoch),
    /// The blocks in the redo streams of nodes that are not members of a view.
    Scanned(Epoch, Arc<Vec<(BlockId, Version)>>),
    /// These streams cannot be scanned. Later attempts follow.
    ScanFailed(Epoch),
    /// The disk has this version of a replayed block, or it cannot be recovered.
    Replayed(Epoch, BlockId, Result<Version, String>),
    /// Write every owed block and give all blocks up; answered with the number of blocks kept.
    HandBack(Reply<u32>),
    /// Answer with the counts so far.
    Counts(Reply<Counts>),
    /// Prepare to leave: this node has handed everything back. Answered when it may leave.
    Leave(Reply<()>),
}

/// A task that waits for a block.
struct WaitingTask {
    wanted: Wanted,
    reply: Reply<Result<Granted, BlockError>>,
}

/// The most buffers for writes that are kept for later ones.
const SPARE_COPIES: usize = 64;

/// The copies of blocks that are to be written, by frame.
#[derive(Default)]
struct Copies {
    made: BTreeMap<Slot, Buffer>,
    spare: Vec<Buffer>,
}

impl Copies {
    /// Returns a buffer of one block.
    fn buffer(&mut self, len: usize) -> Buffer {
        self.spare.pop().unwrap_or_else(|| Buffer::zeroed(len))
    }

    fn recycle(&mut self, buffer: Buffer) {
        if self.spare.len() < SPARE_COPIES {
            self.spare.push(buffer);
        }
    }
}

/// The driver of the cache protocol on one worker.
pub struct CacheService {
    shard: Shard,
    /// Declared before the frames, which its reads use: fields are dropped in this order. It is
    /// dropped outside of the worker, because it waits for its jobs.
    io: BlockIo,
    /// The disk reads and writes that have ended.
    ended: Vec<IoCompletion>,
    frames: Arc<FrameTable>,
    copies: Copies,
    window: WindowId,
    faults: Arc<Faults>,
    /// By slot: the version that a disk read under way must find, 0 if any.
    expected: Vec<u64>,
    /// By ticket: the requests of tasks that wait, and the free tickets.
    waiting: Vec<Option<WaitingTask>>,
    free: Vec<usize>,
    /// Blocks that were granted to tasks which have ended.
    unwanted: Vec<CacheTask>,
    actions: Vec<Action>,
    /// The checkpoints under way, in order.
    checkpoints: VecDeque<Reply<u32>>,
    hand_backs: Vec<Reply<u32>>,
    leaves: Vec<Reply<()>>,
    redo: Option<CacheRedo>,
    /// The members of the last view.
    members: Vec<(NodeId, Incarnation)>,
}

/// The port by which tasks reach the workers.
pub(crate) type CachePort = dyn WorkerPort<CacheService>;

impl CacheService {
    pub(crate) fn new(
        config: protocol::Config,
        frames: Arc<FrameTable>,
        io: BlockIo,
        faults: Arc<Faults>,
        redo: Option<CacheRedo>,
    ) -> Self {
        Self {
            shard: Shard::new(config),
            window: window_of(config.worker),
            frames,
            copies: Copies::default(),
            io,
            ended: Vec::new(),
            faults,
            expected: vec![0; config.slots() as usize],
            waiting: Vec::new(),
            free: Vec::new(),
            unwanted: Vec::new(),
            actions: Vec::with_capacity(64),
            checkpoints: VecDeque::new(),
            hand_backs: Vec::new(),
            leaves: Vec::new(),
            redo,
            members: Vec::new(),
        }
    }
}

impl Subsystem for CacheService {
    const NAME: &'static str = "cache";
    const CHANNELS: &'static [Channel] = &[Channel::CacheRequests, Channel::CacheBlocks];
    const HAS_TURN: bool = true;
    type Task = CacheTask;

    #[inline]
    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        match protocol::Message::decode_with_redo(message.payload) {
            Ok((decoded, records)) => {
                let (from, now) = (message.from, clock::now());
                let came = (!records.is_empty()).then_some((from, records));
                let event = Event::Message { from, message: decoded };
                self.drive(net, came, |shard, io| shard.handle(now, event, io));
            }
            Err(error) => net.fault(message.from, format_args!("not a cache message: {error}")),
        }
    }

    /// Hands the next view to the shard; see [`Shard::view`].
    fn view(&mut self, net: &mut Net, members: &Members) {
        // The pages of reads under way are not used: newer ones may have been written since.
        self.expected.fill(0);
        self.members.clone_from(&members.members);
        self.drive(net, None, |shard, io| shard.view(clock::now(), members, io));
    }

    /// Returns whether all masters of the last view have opened.
    fn is_ready(&self) -> bool {
        self.shard.is_open()
    }

    #[inline]
    fn task(&mut self, net: &mut Net, task: CacheTask) {
        match task {
            CacheTask::Want { block, ask, has_others, new, reply } => {
                let place = self.free.pop().unwrap_or_else(|| {
                    self.waiting.push(None);
                    self.waiting.len() - 1
                });
                self.waiting[place] = Some(WaitingTask { wanted: Wanted { block, ask, new }, reply });
                self.handle(net, Event::Want { ticket: Ticket(place as u64), block, ask, has_others });
            }
            CacheTask::Idle(slot) => {
                let contents = self.frames.contents(slot);
                self.handle(net, Event::Idle { slot, contents });
            }
            CacheTask::Freed(slot) => self.handle(net, Event::Freed { slot }),
            CacheTask::Checkpoint(below, reply) => {
                self.checkpoints.push_back(reply);
                self.handle(net, Event::Checkpoint { below });
            }
            CacheTask::Oldest(reply) => {
                let oldest = [
                    self.shard.oldest_handed_over(),
                    self.shard.oldest_copied(),
                    self.frames.oldest_record(),
                ];
                reply.send((oldest.into_iter().flatten().min(), self.shard.handed_over() as u64));
            }
            CacheTask::Durable(end) => self.handle(net, Event::Durable { end }),
            CacheTask::Drained(epoch) => self.handle(net, Event::Drained { epoch }),
            CacheTask::Scanned(epoch, blocks) => {
                let blocks = blocks.iter().map(|(block, version)| (*block, version.0));
                self.drive(net, None, |shard, io| shard.scanned(clock::now(), epoch, blocks, io));
            }
            CacheTask::ScanFailed(epoch) => self.handle(net, Event::ScanFailed { epoch }),
            CacheTask::Replayed(epoch, block, result) => {
                if let Err(why) = &result {
                    tracing::error!("{why}");
                    self.faults.remember(block, why.clone());
                }
                let version = result.ok().map(|version| version.0);
                self.handle(net, Event::Replayed { epoch, block, version });
            }
            CacheTask::HandBack(reply) => {
                self.hand_backs.push(reply);
                self.handle(net, Event::HandBack);
            }
            CacheTask::Counts(reply) => reply.send(*self.shard.counts()),
            CacheTask::Leave(reply) => {
                self.leaves.push(reply);
                self.handle(net, Event::Leave);
            }
        }
    }

    /// Handles the disk reads and writes that have ended, and begins those that are wanted. Returns
    /// how many have ended.
    #[inline]
    fn turn(&mut self, net: &mut Net, _: &mut dyn Neighbours) -> usize {
        let mut ended = std::mem::take(&mut self.ended);
        self.io.reap(&mut ended);
        let count = ended.len();
        ended.drain(..).for_each(|done| self.disk(net, done));
        self.ended = ended;
        self.io.begin();
        count
    }

    /// If there is nothing, the event of the disks wakes the worker as soon as there is.
    #[inline]
    fn pending(&mut self) -> bool {
        self.io.pending()
    }
}

impl CacheService {
    fn disk(&mut self, net: &mut Net, done: IoCompletion) {
        let slot = Slot(done.token as u32);
        if let Err(error) = &done.result {
            tracing::error!("{error}");
            self.faults.remember(done.block, error.to_string());
        }
        let is_write = done.written.map(|buffer| self.copies.recycle(buffer)).is_some();
        let event = match &done.result {
            result if is_write => Event::Wrote { slot, ok: result.is_ok() },
            Ok(version) => Event::Read { slot, result: self.fresh(slot, done.block, version.0) },
            Err(DiskError::Page { .. }) => Event::Read { slot, result: Err(BlockError::Corrupt) },
            Err(_) => Event::Read { slot, result: Err(BlockError::Unreadable) },
        };
        self.handle(net, event);
    }

    /// Checks that a page read from disk is the one that was written last, as far as the master
    /// knows.
    fn fresh(&self, slot: Slot, block: BlockId, version: u64) -> Result<u64, BlockError> {
        match self.expected[slot.index()] {
            expected if expected == 0 || expected == version => Ok(version),
            expected => {
                let what = format!(
                    "{block} is version {version} on disk where version {expected} was written last; the disk \
                     lost a write, restore the block from a copy"
                );
                tracing::error!("{what}");
                self.faults.remember(block, what);
                Err(BlockError::Stale)
            }
        }
    }

    fn handle(&mut self, net: &mut Net, event: Event) {
        self.drive(net, None, |shard, io| shard.handle(clock::now(), event, io));
    }

    /// Calls the shard and carries out its actions. `came`: the records behind a message, and its
    /// sender.
    fn drive(
        &mut self,
        net: &mut Net,
        came: Option<(NodeId, &[u8])>,
        does: impl FnOnce(&mut Shard, &mut Out<'_>),
    ) {
        let mut actions = std::mem::take(&mut self.actions);
        let mut out = Out {
            net,
            frames: &self.frames,
            copies: &mut self.copies,
            window: self.window,
            actions: &mut actions,
            redo: self.redo.as_ref(),
            carry_bytes: self.shard.config().carry_bytes as usize,
            carried: None,
            came,
        };
        does(&mut self.shard, &mut out);
        self.carry_out(net, actions);
        // After the actions, which are done in order.
        while let Some(task) = self.unwanted.pop() {
            self.task(net, task);
        }
    }

    fn carry_out(&mut self, net: &mut Net, mut actions: Vec<Action>) {
        for action in actions.drain(..) {
            self.act(net, action);
        }
        self.actions = actions;
    }

    fn act(&mut self, net: &mut Net, action: Action) {
        match action {
            Action::Send { to, message } => send(net, to, Channel::CacheRequests, &message),
            Action::SendBehind { to, message } => send(net, to, Channel::CacheBlocks, &message),
            Action::Open { epoch } => {
                self.redo.iter().for_each(|redo| redo.recovery.begin());
                tracing::debug!(worker = self.shard.config().worker.0, epoch = epoch.0, "the cache is open");
            }
            Action::MayLeave => answer_all(&mut self.leaves, ()),
            Action::ReadDisk { slot, block, expect } => {
                self.expected[slot.index()] = expect;
                self.read(slot, block);
            }
            Action::WriteDisk { slot, block } => {
                let copy = self.copies.made.remove(&slot).expect("the shard copied the frame");
                self.io.submit(Job { token: u64::from(slot.0), block, op: Op::Write(copy) });
            }
            Action::WriteFailed { block } => {
                tracing::error!("{block} could not be written; it stays in memory and is tried again");
            }
            Action::Wake { ticket, result } => {
                let place = ticket.0 as usize;
                if let Some(WaitingTask { wanted, reply }) = self.waiting[place].take() {
                    self.free.push(place);
                    if let Some(Ok(granted)) = reply.deliver(result) {
                        let redo = self.redo.as_ref().map(|redo| &*redo.log);
                        self.unwanted.extend(wanted.give_back(&self.frames, redo, granted));
                    }
                }
            }
            Action::CheckpointDone { failed } => {
                if let Some(reply) = self.checkpoints.pop_front() {
                    reply.send(failed);
                }
            }
            Action::HandedBack { kept } => {
                answer_all(&mut self.hand_backs, kept);
            }
            Action::Flush { end } => self.redo().durability.flush(self.worker(), end),
            Action::Recover { epoch } => {
                self.redo().recovery.recover(self.worker(), epoch, self.members.clone())
            }
            Action::Replay { epoch } => {
                self.redo().recovery.replay(self.worker(), epoch, self.shard.in_doubt().collect());
            }
            Action::CloseStreams { epoch } => self.redo().recovery.close(self.worker(), epoch),
            Action::Fault { from, what } => {
                net.fault(from, format_args!("{what}: the nodes no longer agree on who holds what"));
            }
        }
    }

    fn worker(&self) -> WorkerId {
        self.shard.config().worker
    }

    fn redo(&self) -> &CacheRedo {
        self.redo.as_ref().expect("the shard was told that there is redo")
    }

    #[allow(unsafe_code, reason = "the frame table lends memory by contract")]
    fn read(&mut self, slot: Slot, block: BlockId) {
        // SAFETY: the shard reads into frames that are closed and idle, and does nothing with them
        // until it is told of the completion.
        let memory = unsafe { self.frames.for_io(slot) };
        self.io.submit(Job { token: u64::from(slot.0), block, op: Op::Read(memory) });
    }
}

/// The driver as the shard sees it: blocks are shipped at once, other actions are listed.
struct Out<'a> {
    net: &'a mut Net,
    frames: &'a FrameTable,
    copies: &'a mut Copies,
    window: WindowId,
    actions: &'a mut Vec<Action>,
    redo: Option<&'a CacheRedo>,
    carry_bytes: usize,
    /// The records for the next block that is shipped.
    carried: Option<Vec<u8>>,
    /// The records that came with a block, and their sender.
    came: Option<(NodeId, &'a [u8])>,
}

impl ShardDriver for Out<'_> {
    fn push(&mut self, action: Action) {
        self.actions.push(action);
    }

    #[allow(unsafe_code, reason = "the frame table lends memory by contract")]
    fn ship(&mut self, to: NodeId, slot: Slot, dest: Slot, generation: u32, message: protocol::Message) {
        debug_assert!(!self.frames.may_change(slot), "{slot:?} shipped while a session may change it");
        // SAFETY: the shard ships frames that nothing changes until this returns.
        let data = unsafe { self.frames.block(slot) };
        let put = Put { window: self.window, offset: self.frames.offset(dest), generation, data };
        let mut payload = Vec::new();
        let payload = match self.carried.take() {
            Some(records) => {
                payload.extend_from_slice(&message.encode());
                payload.extend_from_slice(&records);
                &payload[..]
            }
            None => &message.encode(),
        };
        let _ = self.net.put(to, Channel::CacheBlocks, kind(&message), 0, put, payload);
    }

    fn open(&mut self, slot: Slot, block: BlockId, mode: Mode) {
        self.frames.open(slot, block, mode);
    }

    fn pin(&mut self, slot: Slot, _: Ticket, mode: Mode) -> bool {
        self.frames.pin(slot, mode)
    }

    fn take_use(&mut self, slot: Slot) -> bool {
        self.frames.take_use(slot)
    }

    fn close(&mut self, slot: Slot) -> Option<Contents> {
        self.frames.close(slot)
    }

    fn forget(&mut self, slot: Slot) {
        self.frames.forget(slot);
    }

    fn append(&mut self, _: Slot, block: BlockId, known: u64) -> RedoSpan {
        let (Some(redo), Some((from, records))) = (self.redo, self.came.take()) else {
            return RedoSpan::default();
        };
        // A checkpoint asks this worker, so it sees the records in the frame.
        let first = redo.log.position();
        match redo.log.append_carried(block, Version(known), records) {
            Ok(Some(last)) => return RedoSpan { first, last, force: 0 },
            Ok(None) => {}
            Err(error) => self.net.fault(from, format_args!("not redo of {block}: {error}")),
        }
        RedoSpan::default()
    }

    fn arrived(&mut self, slot: Slot, owed: bool, redo: RedoSpan) {
        self.frames.arrived(slot, owed, redo);
    }

    fn carry(&mut self, block: BlockId) -> bool {
        self.carried = self.redo.and_then(|redo| redo.log.carry(block, self.carry_bytes));
        self.carried.is_some()
    }

    fn reserve(&mut self) -> bool {
        self.redo.is_some_and(|redo| redo.log.try_reserve(1) == Ok(true))
    }

    fn release(&mut self) {
        self.redo.inspect(|redo| redo.log.release(1));
    }

    fn copy(&mut self, slot: Slot) -> u64 {
        let mut copy = self.copies.buffer(self.frames.block_size());
        let first = self.frames.copy(slot, &mut copy);
        Page::of(&mut copy[..]).seal();
        self.copies.made.insert(slot, copy);
        first
    }

    fn write_failed(&mut self, slot: Slot, first: u64) -> RedoSpan {
        self.frames.write_failed(slot, first);
        self.frames.redo(slot)
    }

    #[allow(unsafe_code, reason = "the frame table lends memory by contract")]
    fn log_image(&mut self, slot: Slot, block: BlockId) -> RedoSpan {
        let log = &self.redo.expect("the shard was told that there is redo").log;
        // SAFETY: the shard logs images of frames that nothing changes until this returns.
        let page = unsafe { self.frames.block(slot) };
        let before = Page::of(page).version();
        self.frames.will_log(slot, log.position());
        let change = LoggedChange { block, before, image: Some(page), change: None };
        self.frames.logged(slot, log.append(&[change]), true);
        self.frames.redo(slot)
    }

    fn durable(&self) -> u64 {
        self.redo.map_or(0, |redo| redo.durability.durable())
    }

    fn oldest_owed(&self, is_wanted: impl Fn(Slot) -> bool) -> Option<(Slot, u64)> {
        self.frames.oldest_owed(is_wanted)
    }

    fn blank(&mut self, slot: Slot, _: BlockId, version: u64) {
        self.frames.blank(slot, version);
    }

    fn expect(&mut self, slot: Slot, generation: u32) {
        self.frames.expect(slot, generation);
    }
}

fn send(net: &mut Net, to: NodeId, channel: Channel, message: &protocol::Message) {
    net.send_to_member(to, channel, kind(message), &message.encode());
}

fn answer_all<T: Clone>(waiting: &mut Vec<Reply<T>>, answer: T) {
    waiting.drain(..).for_each(|reply| reply.send(answer.clone()));
}

/// Returns the window that holds the frames of a worker.
#[must_use]
pub fn window_of(worker: WorkerId) -> WindowId {
    WindowId(u16::from(worker.0))
}

fn kind(message: &protocol::Message) -> Kind {
    match message.body.kind() {
        protocol::Kind::Request => Kind::Request,
        protocol::Kind::Forward => Kind::Forward,
        protocol::Kind::Reply => Kind::Reply,
    }
}
