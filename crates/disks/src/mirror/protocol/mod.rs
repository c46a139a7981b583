//! The protocol of mirrored disks: which copies a write needs, which requests a disk takes, who
//! marks a disk, and how one comes back. One [`MirrorCore`] for each node. It does no I/O: events
//! go in, [`MirrorAction`]s come out.
//!
//! | event | method |
//! |---|---|
//! | a view is open | [`MirrorCore::view`] |
//! | the registry has saved a map here, and will report it | [`MirrorCore::applied`] |
//! | a map is committed | [`MirrorCore::committed`] |
//! | a disk of this node was opened, or is gone | [`MirrorCore::opened`], [`MirrorCore::closed`] |
//! | a client of this node reads or writes | [`MirrorCore::submit`] |
//! | a message | [`MirrorCore::message`] |
//! | a disk has executed a request, or has failed to | [`MirrorCore::executed`] |
//! | the change that it has proposed is made, or is not | [`MirrorCore::proposed`] |
//! | time passes | [`MirrorCore::tick`] |
//!
//! A driver executes the requests for one place of a disk in the order in which they come out,
//! reads included. An executed write is durable. Rules and reasons: ARCHITECTURE.md, *Mirrored
//! disks*.

mod client;
mod resync;
mod serve;
#[cfg(test)]
#[path = "../simulation/mod.rs"]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use plexus_base::{Epoch, NodeId, NodeSet};
use plexus_membership::gate::{Admission, EpochGate, Latest};

pub use self::client::{ClientOp, ClientResult, DiskRefusal};
use self::{
    client::{Hold, Operation, OwnHold},
    resync::Resync,
    serve::Taken,
};
use super::map::{ChunkId, DiskNumber, DiskState, MAX_DISKS, Map, MapChange, MapRefusal};

/// The most messages of a newer view that wait for it, from one member.
const PARKED_MAX: usize = 1 << 16;

/// The time after which a disk that does not answer has failed, and after which the return of a
/// disk that has failed is tried again, at first and at most. In milliseconds.
pub const IO_TIMEOUT_MS: u64 = 10_000;
const RETURN_FIRST_MS: u64 = 10_000;
const RETURN_LAST_MS: u64 = 600_000;

/// The operation of a request to a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskOp<D> {
    /// Write at this offset of the chunk, durably.
    Write {
        /// The offset in bytes.
        offset: u32,
        /// The bytes.
        data: D,
    },
    /// Read at this offset of the chunk.
    Read {
        /// The offset in bytes.
        offset: u32,
        /// The number of bytes.
        length: u32,
        /// The block is in doubt: it may be written, so its unit is noted for stale copies.
        in_doubt: bool,
    },
    /// Return the units of the chunk whose dirty bit is set.
    Dirty,
    /// Clear the dirty bit of a unit.
    Clean {
        /// The unit.
        unit: u32,
    },
}

/// A request to a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskRequest<D> {
    /// The number of the request at its node.
    pub id: u64,
    /// The version of the map by which it was made.
    pub version: u64,
    /// The disk.
    pub disk: DiskNumber,
    /// The chunk.
    pub chunk: ChunkId,
    /// The operation.
    pub op: DiskOp<D>,
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskAnswer<D> {
    /// It is executed.
    Done,
    /// The bytes that were read.
    Read(D),
    /// The units whose dirty bit is set.
    Dirty(Vec<u32>),
    /// It was not taken: the map or the view has changed.
    Refused,
    /// The disk has failed to do it.
    Failed(String),
}

/// A message between nodes. It belongs to the view of its sender.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MirrorMessage<D> {
    /// A request to a disk of the receiver.
    Request(DiskRequest<D>),
    /// The answer to the request with this number.
    Answer(u64, DiskAnswer<D>),
    /// Begin no write of the unit, and answer when none is under way.
    Hold {
        /// The number of the hold at its node.
        id: u64,
        /// The version of the map that the receiver must have.
        version: u64,
        /// The chunk.
        chunk: ChunkId,
        /// The unit.
        unit: u32,
    },
    /// The unit is held.
    Held(u64),
    /// The hold has ended.
    Release(u64),
}

/// An action for the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MirrorAction<D, W> {
    /// Send a message of this view.
    Send(NodeId, Epoch, MirrorMessage<D>),
    /// Execute an operation on a disk of this node, behind all earlier ones. The answer goes to
    /// [`MirrorCore::executed`].
    Execute {
        /// The number that the answer has.
        ticket: u64,
        /// The disk.
        disk: DiskNumber,
        /// The slot of the chunk.
        slot: u32,
        /// The operation.
        op: DiskOp<D>,
        /// First the dirty bit of the unit must be set, durably.
        notes: bool,
    },
    /// Tell a client the result.
    Finish(W, Result<ClientResult<D>, DiskRefusal>),
    /// Have the registry make this map the next one.
    Propose(MapProposal),
}

/// A change of the map that the registry is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapProposal {
    /// The change.
    pub change: MapChange,
    /// The map that must be there.
    pub base: Arc<Map>,
    /// The next one.
    pub next: Map,
}

/// The protocol of one node.
#[derive(Clone)]
pub struct MirrorCore<D, W> {
    me: NodeId,
    now: u64,
    /// The time of a finer clock, by which units that are copied are measured.
    now_us: u64,
    gate: EpochGate<Latest<NodeId, MirrorMessage<D>>>,
    epoch: Epoch,
    members: NodeSet,
    /// The map that the disks of this node obey.
    applied: Option<Arc<Map>>,
    /// The map that the clients of this node use.
    map: Option<Arc<Map>>,
    /// The open disks of this node.
    served: BTreeMap<DiskNumber, Served>,
    taken: BTreeMap<u64, Taken>,
    operations: BTreeMap<u64, Operation<D, W>>,
    /// The operations that wait for a map, a view or the end of a hold.
    waiting: BTreeSet<u64>,
    /// The requests under way: whose they are, and their disks.
    requests: BTreeMap<u64, (Requester, DiskNumber)>,
    holds: BTreeMap<(ChunkId, u32), Vec<Hold>>,
    /// The holds that clients of this node have, or want.
    own_holds: BTreeMap<u64, OwnHold<W>>,
    /// Holds for a map that is not committed here yet.
    early_holds: Vec<(NodeId, MirrorMessage<D>)>,
    /// The disks that must be marked, and the reasons.
    failed: BTreeMap<DiskNumber, String>,
    /// The disks of this node that cannot be used, and the reasons: they stay so in other views.
    closed: BTreeMap<DiskNumber, String>,
    resyncs: BTreeMap<DiskNumber, Resync>,
    /// Changes that clients want.
    wanted: VecDeque<(MapChange, W)>,
    /// The change that the registry was asked for, and the client that waits for it.
    proposed: Option<(MapChange, Option<W>)>,
    /// The version of the map for which nothing is left to move.
    planned: u64,
    /// The disks that are away for too long.
    overdue: BTreeSet<DiskNumber>,
    /// The node ends: nothing begins any more.
    is_ended: bool,
    /// The requests of clients that this node has seen: its own, and those to its disks.
    client_requests: u64,
    /// All nodes may be ending: the disks of those that leave have everything.
    is_quiet: bool,
    /// The nodes that have ended for certain when a view is open without them.
    proved: NodeSet,
    /// The end of the time in which a cold start waits for absent nodes.
    start_wait_end: u64,
    /// The group was usable here: this is no cold start any more.
    was_usable: bool,
    /// Why the group cannot be used in this view.
    stopped: Option<MapRefusal>,
    next: u64,
    /// Messages of this node to itself.
    local: VecDeque<MirrorMessage<D>>,
    actions: Vec<MirrorAction<D, W>>,
    counts: MirrorCounts,
}

/// Counts of a node since its start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MirrorCounts {
    /// Units that were copied to disks of this node.
    pub copied_units: u64,
    /// The same for each disk: units that this node has copied to it, and those that moved away
    /// from it.
    pub copied: [u64; MAX_DISKS],
    /// Writes that were sent again, because the map or the view had changed.
    pub sent_again: u64,
    /// Disks that this node has marked.
    pub marks: u64,
}

/// An open disk: its identifier, the time of its next return, and the pause before the one after
/// it.
#[derive(Clone, Copy)]
struct Served {
    id: u128,
    at: u64,
    pause: u64,
}

/// The sender of a request of this node.
#[derive(Clone, Copy)]
enum Requester {
    Operation(u64),
    Resync(DiskNumber),
}

impl<D: Clone, W> MirrorCore<D, W> {
    /// Makes the protocol of a node that is in no view and has no disk. The nodes that are `proved`
    /// have ended for certain when a view without them is open, and not only lost their leases. In
    /// a cold start the disks of absent nodes are not marked before `start_wait_end`, in
    /// milliseconds of the clock of [`tick`](Self::tick).
    #[must_use]
    pub fn new(me: NodeId, proved: NodeSet, start_wait_end: u64) -> Self {
        Self {
            me,
            now: 0,
            now_us: 0,
            gate: EpochGate::new(Latest::new(PARKED_MAX)),
            epoch: Epoch(0),
            members: NodeSet::default(),
            applied: None,
            map: None,
            served: BTreeMap::new(),
            taken: BTreeMap::new(),
            operations: BTreeMap::new(),
            waiting: BTreeSet::new(),
            requests: BTreeMap::new(),
            holds: BTreeMap::new(),
            own_holds: BTreeMap::new(),
            early_holds: Vec::new(),
            failed: BTreeMap::new(),
            closed: BTreeMap::new(),
            resyncs: BTreeMap::new(),
            wanted: VecDeque::new(),
            proposed: None,
            planned: 0,
            overdue: BTreeSet::new(),
            is_ended: false,
            client_requests: 0,
            is_quiet: false,
            proved,
            start_wait_end,
            was_usable: false,
            stopped: None,
            next: 0,
            local: VecDeque::new(),
            actions: Vec::new(),
            counts: MirrorCounts::default(),
        }
    }

    /// Enters a view. All requests under way are made again in it.
    pub fn view(&mut self, epoch: Epoch, members: NodeSet) {
        (self.epoch, self.members) = (epoch, members);
        self.holds.clear();
        self.end_own_holds(|_, _| true);
        self.early_holds.clear();
        self.local.clear();
        self.requests.clear();
        // A disk that is marked now was marked for its absence or will fail again.
        self.failed.clear();
        self.restart(|_| true);
        self.resyncs.values_mut().for_each(Resync::interrupt);
        for (from, message) in self.gate.enter(epoch) {
            // A second refusal is impossible: these are of this view.
            let _ = self.admitted(from, message);
        }
        self.settle();
    }

    /// Has the disks of this node obey a map, before the registry reports it.
    pub fn applied(&mut self, map: Arc<Map>) {
        self.applied = Some(map);
    }

    /// Uses a committed map for requests.
    pub fn committed(&mut self, map: Arc<Map>) {
        if self.map.as_ref().is_some_and(|known| known.version() >= map.version()) {
            return;
        }
        self.failed.retain(|disk, _| map.state(*disk) != DiskState::Stale);
        // Requests of the holder are refused if the chunk has changed, so its holds can end.
        self.holds.retain(|(chunk, _), holds| {
            holds.retain(|hold| hold.version >= map.changed(*chunk));
            !holds.is_empty()
        });
        self.end_own_holds(|(chunk, _), hold| !hold.is_held() || hold.version < map.changed(*chunk));
        let own = |disk: &DiskNumber| map.disk(*disk).filter(|disk| disk.server == self.me);
        self.served.retain(|disk, served| own(disk).is_some_and(|disk| disk.id == served.id));
        self.closed.retain(|disk, _| own(disk).is_some());
        for (disk, back) in &mut self.served {
            if map.state(*disk) == DiskState::Current {
                back.pause = RETURN_FIRST_MS;
            }
        }
        self.map = Some(map.clone());
        self.restart(|operation| {
            operation.version().is_some_and(|version| map.changed(operation.chunk) > version)
        });
        let version = map.version();
        for disk in self.resyncs.keys().copied().collect::<Vec<_>>() {
            self.release_of(disk);
        }
        self.resyncs.retain(|disk, resync| resync.goes_on(&map, *disk));
        self.resyncs.values_mut().for_each(Resync::interrupt);
        self.requests.retain(|_, (requester, _)| matches!(requester, Requester::Operation(_)));
        let early = std::mem::take(&mut self.early_holds);
        for (from, message) in early {
            if matches!(message, MirrorMessage::Hold { version: wanted, .. } if wanted >= version) {
                // It was admitted before.
                let _ = self.admitted(from, message);
            }
        }
        self.settle();
    }

    /// Returns the committed map.
    #[must_use]
    pub fn map(&self) -> Option<&Arc<Map>> {
        self.map.as_ref()
    }

    /// Notes that a disk of this node is open, with its label compared. A stale one returns.
    pub fn opened(&mut self, disk: DiskNumber, id: u128) {
        if self.is_ended {
            return;
        }
        self.closed.remove(&disk);
        self.served.insert(disk, Served { id, at: self.now, pause: RETURN_FIRST_MS });
        self.settle();
    }

    /// Notes that a disk of this node cannot be used any more.
    pub fn closed(&mut self, disk: DiskNumber, why: String) {
        self.served.remove(&disk);
        self.release_of(disk);
        self.resyncs.remove(&disk);
        self.closed.insert(disk, why);
        self.settle();
    }

    /// Handles a message.
    ///
    /// # Errors
    /// The sender violates the protocol.
    pub fn message(
        &mut self,
        from: NodeId,
        epoch: Epoch,
        message: MirrorMessage<D>,
    ) -> Result<(), &'static str> {
        if let Admission::Current(message) = self.gate.admit(from, epoch, message)? {
            self.admitted(from, message)?;
            self.settle();
        }
        Ok(())
    }

    /// Notes the time of the next event, in microseconds of any clock.
    pub fn pass(&mut self, now_us: u64) {
        self.now_us = now_us;
    }

    /// Passes time, in milliseconds of any clock.
    pub fn tick(&mut self, now: u64) {
        self.now = now;
        self.time_out();
        let waiting = std::mem::take(&mut self.waiting);
        for number in &waiting {
            self.operations.get_mut(number).into_iter().for_each(client::Operation::try_again);
        }
        self.waiting = waiting;
        self.resyncs.values_mut().for_each(|resync| resync.retry(now));
        self.settle();
    }

    /// Marks disks of absent nodes only for writes, from now on: this node has written everything,
    /// and so have the others that end with it.
    pub fn quiesce(&mut self) {
        self.is_quiet = true;
    }

    /// Ends all operations: the node ends. Its disks take no more requests, and execute what they
    /// have taken.
    pub fn end_all(&mut self) {
        self.is_ended = true;
        self.served.clear();
        self.resyncs.clear();
        self.waiting.clear();
        self.requests.clear();
        self.end_own_holds(|_, _| true);
        let operations =
            std::mem::take(&mut self.operations).into_values().map(client::Operation::into_waiter);
        let changes = std::mem::take(&mut self.wanted).into_iter().map(|(_, waiter)| waiter);
        let proposed = self.proposed.take().and_then(|(_, waiter)| waiter);
        for waiter in operations.chain(changes).chain(proposed) {
            self.actions.push(MirrorAction::Finish(waiter, Err(DiskRefusal::Ended)));
        }
    }

    /// Returns true if the node ends and its disks have executed all that they have taken. Before
    /// that, another node must not serve a shared disk of this one.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_ended && self.taken.is_empty()
    }

    /// Asks for a change of the map. The client is told when it is made.
    pub fn change(&mut self, change: MapChange, waiter: W) {
        if self.is_ended {
            return self.finish(waiter, Err(DiskRefusal::Ended));
        }
        self.wanted.push_back((change, waiter));
        self.settle();
    }

    /// Has disks that are away leave the group, if the others have room for their chunks.
    pub fn rebuild(&mut self, disks: BTreeSet<DiskNumber>) {
        if self.overdue != disks {
            (self.overdue, self.planned) = (disks, 0);
            self.settle();
        }
    }

    /// Notes that the proposed change is made, or not: then the map may be another one by now.
    pub fn proposed(&mut self, is_made: bool) {
        let Some((change, waiter)) = self.proposed.take() else { return };
        self.planned = 0;
        self.counts.marks += u64::from(is_made && matches!(change, MapChange::Stale(_)));
        match waiter {
            Some(waiter) if is_made => self.finish(waiter, Ok(ClientResult::Done)),
            Some(waiter) => self.wanted.push_front((change, waiter)),
            None => {}
        }
        // What was not made is tried again with the next map or at the next tick.
        if is_made {
            self.settle();
        }
    }

    /// Removes and returns the actions.
    #[must_use]
    pub fn take_actions(&mut self) -> Vec<MirrorAction<D, W>> {
        std::mem::take(&mut self.actions)
    }

    /// Returns why the group cannot be used in this view.
    #[must_use]
    pub fn stopped(&self) -> Option<&MapRefusal> {
        self.stopped.as_ref()
    }

    /// Returns the disks of absent nodes that a cold start waits for before it marks them, and the
    /// milliseconds that are left.
    #[must_use]
    pub fn awaited(&self) -> Option<(Vec<DiskNumber>, u64)> {
        let left = self.start_wait_end.saturating_sub(self.now);
        let map = self.map.as_ref().filter(|_| self.waits() && self.members.contains(self.me))?;
        let disks: Vec<_> = absent(map, self.members).collect();
        (!disks.is_empty()).then_some((disks, left))
    }

    /// Returns the change that lets the group go on with the disks that are there, if it is stopped
    /// because others have the only current copies: those of absent nodes, and of this one.
    #[must_use]
    pub fn forced(&self) -> Option<MapChange> {
        let map = self.map.as_ref()?;
        let closed = self.closed.keys().filter(|disk| self.may_be_marked(**disk)).copied();
        let missing: Vec<_> = absent(map, self.members).chain(closed).collect();
        if map.with(&MapChange::Stale(missing.clone())).is_ok() {
            return None;
        }
        let present = map
            .disks()
            .filter(|(number, disk)| self.members.contains(disk.server) && !missing.contains(number));
        Some(MapChange::Force(present.map(|(number, _)| number).collect()))
    }

    /// Returns the counts.
    #[must_use]
    pub fn counts(&self) -> MirrorCounts {
        self.counts
    }

    /// Returns the units that are still to be copied to a disk of this node.
    #[must_use]
    pub fn left_to_copy(&self, disk: DiskNumber) -> Option<u64> {
        self.resyncs.get(&disk).map(|resync| resync.left(self.map.as_ref()))
    }

    /// Returns the disks that have failed a request of this node and are not marked yet.
    pub fn failed(&self) -> impl Iterator<Item = (DiskNumber, &str)> {
        let closed = self.closed.iter().filter(|(disk, _)| self.may_be_marked(**disk));
        self.failed.iter().chain(closed).map(|(disk, why)| (*disk, why.as_str()))
    }

    /// Returns true if requests may be made: no disk of an absent node counts as complete.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.map.as_ref().is_some_and(|map| absent(map, self.members).next().is_none())
    }

    /// Returns the member that takes the place of the absent server of a shared disk. Without a
    /// proof of its end the disk is one as any other: late writes must not meet new ones.
    fn next_server(&self, map: &Map, disk: DiskNumber) -> Option<NodeId> {
        let disk = map.disk(disk).filter(|disk| !self.members.contains(disk.server))?;
        let mut next = disk.sharers.iter().filter(|node| self.members.contains(*node));
        next.next().filter(|_| self.proved.contains(disk.server))
    }

    /// Returns true in a cold start while nodes may still come.
    fn waits(&self) -> bool {
        !self.was_usable && !self.is_quiet && self.now < self.start_wait_end
    }

    fn may_be_marked(&self, disk: DiskNumber) -> bool {
        self.map.as_ref().is_some_and(|map| map.state(disk) != DiskState::Stale)
    }

    fn admitted(&mut self, from: NodeId, message: MirrorMessage<D>) -> Result<(), &'static str> {
        match message {
            MirrorMessage::Request(request) => self.take(from, request),
            MirrorMessage::Answer(id, answer) => self.answered(from, id, answer)?,
            MirrorMessage::Hold { id, version, chunk, unit } => self.hold(from, id, version, chunk, unit),
            MirrorMessage::Held(id) => {
                self.held(from, id);
                self.held_for_client(from, id);
            }
            MirrorMessage::Release(id) => self.release(from, id),
        }
        Ok(())
    }

    fn send(&mut self, to: NodeId, message: MirrorMessage<D>) {
        match to == self.me {
            true => self.local.push_back(message),
            false => self.actions.push(MirrorAction::Send(to, self.epoch, message)),
        }
    }

    fn finish(&mut self, waiter: W, result: Result<ClientResult<D>, DiskRefusal>) {
        self.actions.push(MirrorAction::Finish(waiter, result));
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Does what has become possible.
    fn settle(&mut self) {
        loop {
            self.start_waiting();
            self.propose();
            self.advance_resyncs();
            let Some(message) = self.local.pop_front() else { return };
            // A node does not violate its own protocol.
            let _ = self.admitted(self.me, message);
        }
    }

    /// Asks for the next change of the map, if one is due and none is under way.
    fn propose(&mut self) {
        if self.proposed.is_some() {
            return;
        }
        self.stopped = None;
        let Some(map) = self.map.clone() else { return };
        // The only change that a group which is stopped can make.
        let is_force = |(change, _): &(MapChange, W)| matches!(change, MapChange::Force(_));
        let force = self.wanted.iter().position(is_force);
        if let Some((change, waiter)) = force.and_then(|at| self.wanted.remove(at)) {
            // The missing disk may be back.
            let next = match self.forced().as_ref() == Some(&change) {
                true => map.with(&change),
                false => Err(MapRefusal::NotStopped),
            };
            return match next {
                Ok(next) => self.ask(change, map, next, Some(waiter)),
                Err(why) => self.finish(waiter, Err(DiskRefusal::Map(why))),
            };
        }
        let is_due = !self.is_quiet || self.operations.values().any(Operation::is_write);
        let shared = map.disks().filter_map(|(disk, _)| Some((disk, self.next_server(&map, disk)?)));
        let shared: Vec<_> = shared.collect();
        // Each member may ask for it: the next server may be a quiet one.
        if let Some((_, server)) = shared.first().copied().filter(|_| is_due) {
            let disks = shared.iter().filter(|(_, next)| *next == server).map(|(disk, _)| *disk).collect();
            let change = MapChange::Serve(disks, server);
            let next = map.with(&change).expect("disks of the map");
            return self.ask(change, map, next, None);
        }
        let (to_mark, others): (Vec<_>, Vec<_>) =
            absent(&map, self.members).partition(|disk| self.next_server(&map, *disk).is_none());
        if !to_mark.is_empty() {
            // A lower member that has come in this view would wait for absent nodes.
            let marks = is_due && (self.was_usable || self.members.lowest() == Some(self.me));
            let change = MapChange::Stale(to_mark);
            match marks.then(|| map.with(&change)) {
                Some(Ok(next)) if !self.waits() => self.ask(change, map, next, None),
                Some(Err(why)) => self.stopped = Some(why),
                Some(Ok(_)) | None => {}
            }
            return;
        }
        if !others.is_empty() {
            return;
        }
        self.was_usable = true;
        let closed = self.closed.keys().filter(|disk| self.may_be_marked(**disk));
        let failed = self.failed.keys().chain(closed).map(|disk| MapChange::Stale(vec![*disk]));
        let served = self.served.iter().filter(|(disk, back)| {
            let entry = map.disk(**disk).filter(|disk| disk.id == back.id && !disk.is_offline);
            back.at <= self.now && entry.is_some_and(|disk| disk.state == DiskState::Stale)
        });
        let returns = served.map(|(disk, _)| *disk);
        let complete = self.resyncs.iter().filter(|(_, resync)| resync.is_complete());
        let changes = failed
            .chain(returns.map(MapChange::Syncing))
            .chain(complete.map(|(disk, resync)| resync.completion(*disk)));
        let possible = changes.filter_map(|change| map.with(&change).ok().map(|next| (change, next)));
        let possible: Vec<_> = possible.take(1).collect();
        if let Some((change, next)) = possible.into_iter().next() {
            return self.ask(change, map, next, None);
        }
        while let Some((change, waiter)) = self.wanted.pop_front() {
            match map.with(&change) {
                Ok(next) => return self.ask(change, map, next, Some(waiter)),
                Err(why) => self.finish(waiter, Err(DiskRefusal::Map(why))),
            }
        }
        self.plan(&map);
    }

    /// Asks for the next move of chunks, if some are not where they shall be. One member is enough.
    fn plan(&mut self, map: &Arc<Map>) {
        if self.members.lowest() != Some(self.me) || self.planned == map.version() || self.is_quiet {
            return;
        }
        let is_away = |disk: &&DiskNumber| {
            map.disk(**disk).is_some_and(|disk| disk.state == DiskState::Stale && !disk.is_leaving)
        };
        let leaving = self.overdue.iter().filter(is_away).map(|disk| MapChange::Leave(*disk, true));
        let mut next =
            leaving.chain(map.next_move()).filter_map(|change| Some((map.with(&change).ok()?, change)));
        match next.next() {
            Some((next, change)) => self.ask(change, map.clone(), next, None),
            None => self.planned = map.version(),
        }
    }

    fn ask(&mut self, change: MapChange, base: Arc<Map>, next: Map, waiter: Option<W>) {
        if let MapChange::Syncing(disk) = &change {
            let back = self.served.get_mut(disk).expect("a disk of this node");
            (back.at, back.pause) = (self.now + back.pause, (2 * back.pause).min(RETURN_LAST_MS));
        }
        self.proposed = Some((change.clone(), waiter));
        self.actions.push(MirrorAction::Propose(MapProposal { change, base, next }));
    }
}

/// Returns the disks of nodes that are no members and that are not stale.
fn absent(map: &Map, members: NodeSet) -> impl Iterator<Item = DiskNumber> {
    let disks = map.disks().filter(move |(_, disk)| !members.contains(disk.server));
    disks.filter(|(_, disk)| disk.state != DiskState::Stale).map(|(number, _)| number)
}
