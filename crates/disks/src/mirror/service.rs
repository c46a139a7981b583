//! The mirrored group in its node: its threads read and write chunks, messages go over worker 0.
//!
//! Requests to disks and messages leave in the order in which the protocol decides them, so both
//! are queued while its lock is held. Nothing else is done under it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
        mpsc,
    },
    thread,
    time::Instant,
};

use bytes::Bytes;
use plexus_base::{Epoch, NodeId, NodeSet, WorkerId, wire::DecodeError};
use plexus_interconnect::{Channel, Kind, Net};
use plexus_membership::{
    protocol::partitions::Members,
    subsystem::{Subsystem, WorkerPort},
};

use super::{
    disk::{DiskFailures, DiskFile, ServedDisk},
    map::{ChunkId, DiskNumber, MAX_DISKS, Map, MapChange, UNIT_BYTES, list},
    message,
    protocol::{
        ClientOp, ClientResult, DiskAnswer, DiskRefusal, MapProposal, MirrorAction, MirrorCore, MirrorCounts,
        MirrorMessage,
    },
    queue::DiskJob,
};

/// The worker that exchanges the messages.
const WORKER: WorkerId = WorkerId(0);

type Outcome = Result<ClientResult<Bytes>, DiskRefusal>;

/// The end of a request at the protocol. It is called outside of all locks, and must be quick.
type Waiter = Box<dyn FnOnce(Outcome) + Send>;

/// Makes a waiter for a thread. Threads wait for disks as they wait for files, so they drive no
/// worker meanwhile.
fn waiter() -> (Waiter, mpsc::Receiver<Outcome>) {
    let (sender, receiver) = mpsc::sync_channel(1);
    // It fails if the thread does not wait any more.
    (Box::new(move |outcome| drop(sender.send(outcome))), receiver)
}

/// Returns what was read, and the disk.
fn read_of(outcome: Outcome, length: u32) -> Result<(Bytes, DiskNumber), DiskRefusal> {
    match outcome? {
        ClientResult::Read(data, disk) if data.len() != length as usize => {
            let why = format!("{} bytes were read, {length} were asked for", data.len());
            Err(DiskRefusal::Failed { disk, why })
        }
        ClientResult::Read(data, disk) => Ok((data, disk)),
        ClientResult::Done | ClientResult::Held(_) => Err(DiskRefusal::Ended),
    }
}

/// The mirrored group of a node, which its threads share.
pub struct Mirror {
    state: Mutex<State>,
    port: OnceLock<Arc<dyn WorkerPort<MirrorService>>>,
    proposals: mpsc::Sender<MapProposal>,
    began: Instant,
    /// As in [`Mirror::bytes`].
    bytes: AtomicU64,
    known_bytes: AtomicU64,
    /// Wakes threads that wait for the first map, or for the end.
    has_map: Condvar,
}

struct State {
    is_ended: bool,
    core: MirrorCore<Bytes, Waiter>,
    disks: BTreeMap<DiskNumber, ServedDisk>,
    sends: Vec<(NodeId, Epoch, MirrorMessage<Bytes>)>,
    /// Of the disks of this node, by their identifiers, since its start.
    failures: BTreeMap<u128, Arc<DiskFailures>>,
    repaired: [u64; MAX_DISKS],
    /// The units that were copied to and from each disk by a time in milliseconds, every second.
    copied: VecDeque<(u64, [u64; MAX_DISKS])>,
}

/// The seconds over which the rate of copies is measured.
const RATE_SECONDS: usize = 10;

/// The health of a disk, as this node has seen it since its start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DiskHealth {
    /// Reads that have failed, if this node serves the disk.
    pub failed_reads: u64,
    /// Writes that have failed, likewise.
    pub failed_writes: u64,
    /// Syncs that have failed, likewise.
    pub failed_syncs: u64,
    /// Copies of blocks on it that were bad, and that this node has replaced.
    pub repaired_blocks: u64,
    /// The KiB/s of the last seconds that this node has copied to it, or away from it.
    pub copied_kib_s: u64,
}

/// A write within one unit of a chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkWrite {
    /// The chunk.
    pub chunk: ChunkId,
    /// The offset in bytes.
    pub offset: u32,
    /// The bytes.
    pub data: Bytes,
    /// As in [`ClientOp::Write`].
    pub only: Option<(u64, Vec<DiskNumber>)>,
    /// As in [`ClientOp::Write`].
    pub under: Option<u64>,
}

impl Mirror {
    /// Makes the group of a node in no view, without disks. `proposals` gets the changes of the map
    /// that the registry is to be asked for. The rest is as in [`MirrorCore::new`];
    /// the clock begins with the node.
    #[must_use]
    pub fn new(
        me: NodeId,
        proved: NodeSet,
        start_wait_ms: u64,
        proposals: mpsc::Sender<MapProposal>,
    ) -> Arc<Self> {
        let (core, disks, sends) = (MirrorCore::new(me, proved, start_wait_ms), BTreeMap::new(), Vec::new());
        let (failures, repaired, copied) = (BTreeMap::new(), [0; MAX_DISKS], VecDeque::new());
        let state = Mutex::new(State { is_ended: false, core, disks, sends, failures, repaired, copied });
        let [bytes, known_bytes] = [0; 2].map(AtomicU64::new);
        let (port, has_map) = (OnceLock::new(), Condvar::new());
        Arc::new(Self { state, port, proposals, began: Instant::now(), bytes, known_bytes, has_map })
    }

    /// Returns the committed map, when there is one.
    ///
    /// # Errors
    /// The node ends.
    pub fn wait_for_map(&self) -> Result<Arc<Map>, DiskRefusal> {
        let is_missing = |state: &mut State| state.core.map().is_none() && !state.is_ended;
        let state = self.has_map.wait_while(self.lock(), is_missing).unwrap_or_else(PoisonError::into_inner);
        state.core.map().filter(|_| !state.is_ended).cloned().ok_or(DiskRefusal::Ended)
    }

    /// Marks disks of absent nodes only for writes, from now on: this node has written everything,
    /// and so have the others that end with it.
    pub fn quiesce(&self) {
        self.act(MirrorCore::quiesce);
    }

    /// Begins to serve a disk with this identifier, whose label was compared with the map. `open`
    /// opens it, with the function that gets its answers.
    ///
    /// # Errors
    /// That of `open`.
    pub fn serve<E>(
        self: &Arc<Self>,
        (number, id): (DiskNumber, u128),
        open: impl FnOnce(Box<dyn Fn(u64, DiskAnswer<Bytes>) + Send + Sync>) -> Result<ServedDisk, E>,
    ) -> Result<(), E> {
        let told: Weak<Self> = Arc::downgrade(self);
        let answer = move |ticket, answer| {
            // The group has ended, and no client waits.
            if let Some(mirror) = told.upgrade() {
                mirror.act(|core| core.executed(ticket, answer));
            }
        };
        let disk = open(Box::new(answer))?;
        let unused = {
            let mut state = self.lock();
            let failures = disk.failures();
            if let Some(earlier) = state.failures.insert(id, failures.clone()) {
                failures.add(&earlier);
            }
            match state.is_ended {
                true => Some(disk),
                false => state.disks.insert(number, disk),
            }
        };
        // Outside of the lock, which its thread takes to answer.
        drop(unused);
        self.act(|core| core.opened(number, id));
        Ok(())
    }

    /// Closes the disks of this node whose syncs fail: they are marked, and can be opened again.
    /// Returns them.
    pub fn close_failed(&self) -> Vec<DiskNumber> {
        let failed: Vec<_> = {
            let state = self.lock();
            let failed = state.disks.iter().filter(|(_, disk)| disk.has_failed());
            failed.map(|(number, disk)| (*number, disk.path().to_owned())).collect()
        };
        let close = |(number, path): (DiskNumber, PathBuf)| {
            let why = format!("{}: writes cannot be made durable", path.display());
            tracing::error!("{why}");
            // First, so that it takes no request that it will not execute.
            self.closed(number, why);
            let disk = self.lock().disks.remove(&number);
            drop_aside(disk);
            number
        };
        failed.into_iter().map(close).collect()
    }

    /// Closes a disk that is not in the map any more, after it has executed what it has taken.
    pub fn unserve(&self, number: DiskNumber) {
        let disk = self.lock().disks.remove(&number);
        drop_aside(disk);
    }

    /// Returns the disks that this node serves and that are at their paths no more.
    #[must_use]
    pub fn displaced(&self) -> Vec<PathBuf> {
        // Looked at outside of the lock: a file system that hangs must not stop the group.
        let files: Vec<_> = self.lock().disks.values().map(ServedDisk::file).collect();
        files.iter().filter_map(DiskFile::displaced).collect()
    }

    /// Returns the file of a disk of this node.
    #[must_use]
    pub fn file_of(&self, number: DiskNumber) -> Option<DiskFile> {
        self.lock().disks.get(&number).map(ServedDisk::file)
    }

    /// Returns the bytes of the chunks of blocks: those that every member knows, and those that
    /// other members may know already.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (self.bytes.load(Acquire), self.known_bytes.load(Acquire))
    }

    /// Has the chunks of these disks, which are away for too long, get other copies.
    pub fn rebuild(&self, disks: BTreeSet<DiskNumber>) {
        self.act(|core| core.rebuild(disks));
    }

    /// Notes that a disk of this node cannot be served, so that it is marked.
    pub fn closed(&self, number: DiskNumber, why: String) {
        self.act(|core| core.closed(number, why));
    }

    /// Executes what the disks have taken, ends their threads, and closes their files. Call it
    /// before the last reference is dropped.
    pub fn end(&self) {
        // First, so that no disk takes a request that it will not execute.
        self.act(MirrorCore::end_all);
        let disks = {
            let mut state = self.lock();
            state.is_ended = true;
            std::mem::take(&mut state.disks)
        };
        self.has_map.notify_all();
        drop(disks);
    }

    /// Returns true if the disks have executed all that they have taken, and take nothing more; see
    /// [`MirrorCore::is_drained`].
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.lock().core.is_drained()
    }

    /// Writes to all live copies, durably.
    ///
    /// # Errors
    /// A write is on no copy that counts, or the node ends. Others may be complete.
    pub fn write(&self, writes: Vec<ChunkWrite>) -> Result<(), DiskRefusal> {
        let mut answers = Vec::with_capacity(writes.len());
        self.act(|core| {
            for ChunkWrite { chunk, offset, data, only, under } in writes {
                let (reply, answer) = waiter();
                core.submit(chunk, ClientOp::Write { offset, data, only, under }, reply);
                answers.push(answer);
            }
        });
        // All have ended then: a write that is under way must not meet a later one.
        let results: Vec<_> = answers.into_iter().map(Self::wait).collect();
        results.into_iter().try_for_each(|result| result.map(drop))
    }

    /// Reads from a current copy, or from the one on a disk; see [`ClientOp::Read`]. Returns the
    /// bytes and the disk.
    ///
    /// # Errors
    /// No copy can be read.
    pub fn read(
        &self,
        chunk: ChunkId,
        offset: u32,
        length: u32,
        from: Option<DiskNumber>,
        in_doubt: Option<u64>,
    ) -> Result<(Bytes, DiskNumber), DiskRefusal> {
        let (reply, answer) = waiter();
        let read = ClientOp::Read { offset, length, from, in_doubt };
        self.act(|core| core.submit(chunk, read, reply));
        read_of(Self::wait(answer), length)
    }

    /// Begins to read a current copy. `done` is called on any thread when it is read, and must be
    /// quick. A handler of a worker may call this.
    pub(crate) fn begin_read(
        &self,
        chunk: ChunkId,
        (offset, length): (u32, u32),
        done: impl FnOnce(Result<Bytes, DiskRefusal>) + Send + 'static,
    ) {
        let read = ClientOp::Read { offset, length, from: None, in_doubt: None };
        let waiter = Box::new(move |outcome| done(read_of(outcome, length).map(|(bytes, _)| bytes)));
        if self.decide(|core| core.submit(chunk, read, waiter))
            && let Some(port) = self.port.get()
        {
            // If the queue of the worker is full, they leave with the next tick.
            port.offer(WORKER, Flush);
        }
    }

    /// Reads a unit of a chunk from several copies at once.
    pub(super) fn read_unit(
        &self,
        chunk: ChunkId,
        unit: u32,
        disks: &[DiskNumber],
    ) -> Vec<Result<Bytes, DiskRefusal>> {
        let (waiters, answers): (Vec<_>, Vec<_>) = disks.iter().map(|_| waiter()).unzip();
        self.act(|core| {
            for (disk, reply) in disks.iter().zip(waiters) {
                let (offset, length, from) = (unit * UNIT_BYTES, UNIT_BYTES, Some(*disk));
                core.submit(chunk, ClientOp::Read { offset, length, from, in_doubt: None }, reply);
            }
        });
        let answers = answers.into_iter().map(|answer| match Self::wait(answer)? {
            ClientResult::Read(data, _) if data.len() == UNIT_BYTES as usize => Ok(data),
            _ => Err(DiskRefusal::Changed),
        });
        answers.collect()
    }

    /// Has no node write a unit while `work` runs, which gets the number of the hold; see
    /// [`MirrorCore::hold_unit`].
    ///
    /// # Errors
    /// The view or the map has changed, or that of `work`.
    pub(super) fn holding<T>(
        &self,
        chunk: ChunkId,
        unit: u32,
        work: impl FnOnce(u64) -> Result<T, DiskRefusal>,
    ) -> Result<T, DiskRefusal> {
        let (reply, answer) = waiter();
        self.act(|core| core.hold_unit(chunk, unit, reply));
        match Self::wait(answer)? {
            ClientResult::Held(hold) => {
                let done = work(hold);
                self.act(|core| core.release_unit(hold));
                done
            }
            ClientResult::Done | ClientResult::Read(..) => Err(DiskRefusal::Changed),
        }
    }

    /// Writes to a disk, durably, without a change of contents; see [`ClientOp::Probe`].
    ///
    /// # Errors
    /// A copy of the chunk is not current, the chunk has none on this disk, or the disk fails.
    pub fn probe(&self, chunk: ChunkId, disk: DiskNumber, unit: u32) -> Result<(), DiskRefusal> {
        let (reply, answer) = waiter();
        self.act(|core| core.submit(chunk, ClientOp::Probe { disk, unit }, reply));
        Self::wait(answer).map(drop)
    }

    /// Changes the map, and waits until the change is committed.
    ///
    /// # Errors
    /// The change is not allowed, or the node ends.
    pub fn change(&self, change: MapChange) -> Result<(), DiskRefusal> {
        let (reply, answer) = waiter();
        self.act(|core| core.change(change, reply));
        Self::wait(answer).map(drop)
    }

    fn wait(answer: mpsc::Receiver<Outcome>) -> Outcome {
        answer.recv().unwrap_or(Err(DiskRefusal::Ended))
    }

    /// Has the disks of this node obey a map, before the registry reports it.
    pub fn applied(&self, map: Arc<Map>) {
        self.known_bytes.store(map.bytes(), Release);
        self.act(|core| core.applied(map));
    }

    /// Uses a committed map.
    pub fn committed(&self, map: Arc<Map>) {
        self.bytes.fetch_max(map.bytes(), AcqRel);
        self.act(|core| core.committed(map));
        self.has_map.notify_all();
    }

    /// Notes that the registry has made the proposed change, or has not.
    pub fn proposed(&self, is_made: bool) {
        self.act(|core| core.proposed(is_made));
    }

    /// Passes time, in milliseconds of any clock.
    pub fn tick(&self, now: u64) {
        self.act(|core| core.tick(now));
        let mut state = self.lock();
        if state.copied.back().is_none_or(|(last, _)| now >= last + 1000) {
            let copied = state.core.counts().copied;
            state.copied.push_back((now, copied));
            if state.copied.len() > RATE_SECONDS + 1 {
                state.copied.pop_front();
            }
        }
    }

    /// Returns the health of a disk, which has this identifier.
    #[must_use]
    pub fn health(&self, disk: DiskNumber, id: u128) -> DiskHealth {
        let state = self.lock();
        let failures = state.failures.get(&id);
        let failed = |of: fn(&DiskFailures) -> &AtomicU64| failures.map_or(0, |all| of(all).load(Relaxed));
        // From when the copy has begun.
        let pairs = state.copied.iter().zip(state.copied.iter().skip(1));
        let mut moving = pairs.skip_while(|((_, one), (_, next))| one[disk.index()] == next[disk.index()]);
        let first = moving.next().map(|(first, _)| first);
        let copied = first.zip(state.copied.back()).map(|((from, before), (to, after))| {
            let units = after[disk.index()] - before[disk.index()];
            units * u64::from(UNIT_BYTES / 1024) * 1000 / (to - from).max(1)
        });
        DiskHealth {
            failed_reads: failed(|all| &all.reads),
            failed_writes: failed(|all| &all.writes),
            failed_syncs: failed(|all| &all.syncs),
            repaired_blocks: state.repaired[disk.index()],
            copied_kib_s: copied.unwrap_or(0),
        }
    }

    /// Notes that bad copies on these disks were replaced.
    pub(super) fn note_repaired(&self, disks: &[DiskNumber]) {
        let mut state = self.lock();
        disks.iter().for_each(|disk| state.repaired[disk.index()] += 1);
    }

    /// Returns the committed map.
    #[must_use]
    pub fn map(&self) -> Option<Arc<Map>> {
        self.lock().core.map().cloned()
    }

    /// Returns the units that are still to be copied to a disk of this node that has returned.
    #[must_use]
    pub fn left_to_copy(&self, disk: DiskNumber) -> Option<u64> {
        self.lock().core.left_to_copy(disk)
    }

    /// Returns the counts.
    #[must_use]
    pub fn counts(&self) -> MirrorCounts {
        self.lock().core.counts()
    }

    /// Returns the change that lets a group go on that is stopped; see [`MirrorCore::forced`].
    #[must_use]
    pub fn forced(&self) -> Option<MapChange> {
        self.lock().core.forced()
    }

    /// Returns a line for each problem that an operator must know.
    #[must_use]
    pub fn trouble(&self) -> Vec<String> {
        let state = self.lock();
        let stopped = state.core.stopped().map(|why| {
            format!(
                "the disk group waits: {why}: start their nodes, or give up what only they have with `plexus disk force \
                 --lose-newer`"
            )
        });
        let awaited = state.core.awaited().map(|(disks, left_ms)| {
            let (disks, seconds) = (list(&disks), left_ms.div_ceil(1000));
            format!("the disk group waits {seconds} s more for {disks} before it goes on without: start their nodes")
        });
        let failed = state.core.failed().map(|(disk, why)| format!("{disk}: {why}"));
        stopped.into_iter().chain(awaited).chain(failed).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the protocol handle an event, and does what it decides.
    fn act(&self, event: impl FnOnce(&mut MirrorCore<Bytes, Waiter>)) {
        if !self.decide(event) {
            return;
        }
        if let Some(port) = self.port.get()
            && !port.visit(WORKER, &mut |service, net| service.send(net))
        {
            port.submit(WORKER, Flush);
        }
    }

    /// As [`act`](Self::act), but leaves messages; returns true if there are some.
    fn decide(&self, event: impl FnOnce(&mut MirrorCore<Bytes, Waiter>)) -> bool {
        let mut finished = Vec::new();
        let has_sends = {
            let mut state = self.lock();
            let State { core, disks, sends, .. } = &mut *state;
            core.pass(self.began.elapsed().as_micros() as u64);
            event(core);
            for action in core.take_actions() {
                match action {
                    MirrorAction::Send(to, epoch, message) => sends.push((to, epoch, message)),
                    MirrorAction::Execute { ticket, disk, slot, op, notes } => {
                        // There is none when the node ends.
                        if let Some(disk) = disks.get(&disk) {
                            disk.submit(DiskJob { ticket, slot, op, notes });
                        }
                    }
                    MirrorAction::Finish(waiter, result) => finished.push((waiter, result)),
                    // It fails when the node is ending.
                    MirrorAction::Propose(proposal) => drop(self.proposals.send(proposal)),
                }
            }
            !sends.is_empty()
        };
        finished.into_iter().for_each(|(waiter, result)| waiter(result));
        has_sends
    }

    fn message(&self, from: NodeId, payload: &[u8]) -> Result<(), Violation> {
        let (epoch, message) = message::decode(payload)?;
        let mut result = Ok(());
        self.decide(|core| result = core.message(from, epoch, message));
        result.map_err(Violation::Protocol)
    }

    fn take_sends(&self) -> Vec<(NodeId, Epoch, MirrorMessage<Bytes>)> {
        std::mem::take(&mut self.lock().sends)
    }
}

/// Ends a disk on a thread of its own: one that hangs must not stop its node. Until it has ended,
/// its file cannot be opened again.
fn drop_aside(disk: Option<ServedDisk>) {
    // Without a thread it is dropped here.
    let _ = thread::Builder::new().name("plexus-disk-end".into()).spawn(move || drop(disk));
}

/// The reason why a message is a fault of its sender.
#[derive(Debug, thiserror::Error)]
enum Violation {
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("a message of disks: {0}")]
    Protocol(&'static str),
}

/// A request to send the messages that threads have left.
pub struct Flush;

/// The protocol of disks on worker 0.
pub struct MirrorService {
    mirror: Arc<Mirror>,
}

impl MirrorService {
    /// Makes the service of a node.
    #[must_use]
    pub fn new(mirror: Arc<Mirror>, port: Arc<dyn WorkerPort<Self>>) -> Self {
        // A node has one.
        let _ = mirror.port.set(port);
        Self { mirror }
    }

    fn send(&mut self, net: &mut Net) {
        for (to, epoch, message) in self.mirror.take_sends() {
            let payload = Bytes::from(message::encode(epoch, &message));
            net.send_shared_to_member(to, Channel::Disks, Kind::Request, &payload);
        }
    }
}

impl Subsystem for MirrorService {
    const NAME: &'static str = "disks";
    const CHANNELS: &'static [Channel] = &[Channel::Disks];
    type Task = Flush;

    fn view(&mut self, net: &mut Net, view: &Members) {
        let members: NodeSet = view.members.iter().map(|(node, _)| *node).collect();
        self.mirror.decide(|core| core.view(view.epoch, members));
        self.send(net);
    }

    fn message(&mut self, net: &mut Net, message: plexus_interconnect::Message<'_>) {
        if let Err(why) = self.mirror.message(message.from, message.payload) {
            net.fault(message.from, why);
        }
        self.send(net);
    }

    fn task(&mut self, net: &mut Net, Flush: Flush) {
        self.send(net);
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
