//! The side of the clients: reads and writes of chunks, and holds.

use plexus_base::{NodeId, NodeSet};

use super::{
    super::map::{ChunkId, DiskNumber, DiskState, MapRefusal, UNIT_BYTES},
    DiskAnswer, DiskOp, DiskRequest, IO_TIMEOUT_MS, MirrorCore, MirrorMessage, Requester,
};

/// An operation of a client on a chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientOp<D> {
    /// Write within one unit, to all live copies.
    Write {
        /// The offset in bytes.
        offset: u32,
        /// The bytes.
        data: D,
        /// Of the current copies only to those on these disks, because a recovery has found the
        /// block on the others. The version is as for a read in doubt. The list may be empty: the
        /// copies on syncing disks get it always.
        only: Option<(u64, Vec<DiskNumber>)>,
        /// The hold of the unit under which it writes, see [`MirrorCore::hold_unit`].
        under: Option<u64>,
    },
    /// Read a current copy.
    Read {
        /// The offset in bytes.
        offset: u32,
        /// The number of bytes.
        length: u32,
        /// The disk: `None` for the nearest one, and another one if that fails.
        from: Option<DiskNumber>,
        /// The block is in doubt, see [`DiskOp::Read`]. The recovery reads all current copies by
        /// the map in which [`Map::changed`](super::Map::changed) of the chunk has this version.
        in_doubt: Option<u64>,
    },
    /// Write to a disk, durably, without a change of contents: clear the dirty bit of a unit whose
    /// copies are all current. No resync reads that bit: the bits of writes after a disk was marked
    /// count, and a mark makes this request too old to be taken.
    Probe {
        /// The disk.
        disk: DiskNumber,
        /// The unit.
        unit: u32,
    },
}

/// The result of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientResult<D> {
    /// The write is complete.
    Done,
    /// The bytes, and the disk from which they are.
    Read(D, DiskNumber),
    /// The unit is held, with this number.
    Held(u64),
}

/// The reason why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DiskRefusal {
    /// The group has no such chunk.
    #[error("the group has no such chunk")]
    NoChunk,
    /// The disk that was named has no copy that can be read now.
    #[error("{0} has no copy that can be read")]
    NotReadable(DiskNumber),
    /// The recovery has compared other copies than the chunk has now. It must read all of them
    /// again.
    #[error("the copies of the chunk have changed")]
    Changed,
    /// No copy could be read or written.
    #[error("{disk}: {why}")]
    Failed {
        /// The last disk.
        disk: DiskNumber,
        /// Its reason.
        why: String,
    },
    /// The map cannot change in this way.
    #[error(transparent)]
    Map(MapRefusal),
    /// The node ends.
    #[error("the node ends")]
    Ended,
}

/// An operation of a client that has not ended.
#[derive(Clone)]
pub(super) struct Operation<D, W> {
    pub(super) chunk: ChunkId,
    op: ClientOp<D>,
    waiter: W,
    attempt: Option<Attempt>,
    /// The disks that have failed to read.
    tried: Vec<DiskNumber>,
}

/// The requests of an operation under one version of the map in one view.
#[derive(Clone)]
struct Attempt {
    version: u64,
    since: u64,
    copies: Vec<(DiskNumber, CopyState)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CopyState {
    Sent,
    Executed,
    Failed,
}

/// A unit that a client of this node has held, or wants to.
#[derive(Clone)]
pub(super) struct OwnHold<W> {
    unit: (ChunkId, u32),
    pub(super) version: u64,
    /// The members that have not answered.
    missing: NodeSet,
    /// `None` when all have.
    waiter: Option<W>,
}

impl Hold {
    /// Returns the node that has asked for it, and its number there.
    #[cfg(test)]
    pub(super) fn owner(&self) -> (NodeId, u64) {
        (self.from, self.id)
    }
}

impl<W> OwnHold<W> {
    /// Returns true if all members hold the unit.
    pub(super) fn is_held(&self) -> bool {
        self.waiter.is_none()
    }
}

/// A unit that no write of this node may begin.
#[derive(Clone, Copy)]
pub(super) struct Hold {
    from: NodeId,
    id: u64,
    pub(super) version: u64,
    is_answered: bool,
}

impl<D, W> Operation<D, W> {
    /// Returns the version of the map under which its requests were made.
    pub(super) fn version(&self) -> Option<u64> {
        self.attempt.as_ref().map(|attempt| attempt.version)
    }

    pub(super) fn into_waiter(self) -> W {
        self.waiter
    }

    /// Lets an operation that waits begin again, also under the same map.
    pub(super) fn try_again(&mut self) {
        self.attempt = None;
    }

    /// Returns true if it writes.
    pub(super) fn is_write(&self) -> bool {
        matches!(self.op, ClientOp::Write { .. })
    }

    /// Returns the version of the copies that a recovery has chosen.
    fn compared(&self) -> Option<u64> {
        match &self.op {
            ClientOp::Write { only, .. } => only.as_ref().map(|(version, _)| *version),
            ClientOp::Read { in_doubt, .. } => *in_doubt,
            ClientOp::Probe { .. } => None,
        }
    }

    /// Returns the hold under which it writes.
    fn under(&self) -> Option<u64> {
        match self.op {
            ClientOp::Write { under, .. } => under,
            ClientOp::Read { .. } | ClientOp::Probe { .. } => None,
        }
    }

    /// Returns the unit that it writes.
    fn written(&self) -> Option<(ChunkId, u32)> {
        match self.op {
            ClientOp::Write { offset, .. } => Some((self.chunk, offset / UNIT_BYTES)),
            ClientOp::Read { .. } | ClientOp::Probe { .. } => None,
        }
    }
}

impl<D: Clone, W> MirrorCore<D, W> {
    /// Has no node begin a write of the unit of a chunk until [`release_unit`](Self::release_unit).
    /// The waiter gets the number of the hold when no write of the unit is under way. A new view,
    /// or a map in which the chunk has changed, ends the hold: then [`DiskRefusal::Changed`] is the
    /// result, also of a write under it.
    pub fn hold_unit(&mut self, chunk: ChunkId, unit: u32, waiter: W) {
        let version = match &self.map {
            Some(map) if self.is_usable() && !self.is_ended => map.version(),
            _ => return self.finish(waiter, Err(DiskRefusal::Changed)),
        };
        let (id, missing) = (self.number(), self.members);
        self.own_holds.insert(id, OwnHold { unit: (chunk, unit), version, missing, waiter: Some(waiter) });
        let hold = MirrorMessage::Hold { id, version, chunk, unit };
        missing.iter().for_each(|member| self.send(member, hold.clone()));
        self.settle();
    }

    /// Ends a hold of this node.
    pub fn release_unit(&mut self, hold: u64) {
        if self.own_holds.remove(&hold).is_some() {
            self.release_all(hold);
            self.settle();
        }
    }

    /// Ends those holds of clients of this node.
    pub(super) fn end_own_holds(&mut self, ends: impl Fn(&(ChunkId, u32), &OwnHold<W>) -> bool) {
        let ended = self.own_holds.iter().filter(|(_, hold)| ends(&hold.unit, hold)).map(|(id, _)| *id);
        for id in ended.collect::<Vec<_>>() {
            let waiter = self.own_holds.remove(&id).and_then(|hold| hold.waiter);
            waiter.into_iter().for_each(|waiter| self.finish(waiter, Err(DiskRefusal::Changed)));
            self.release_all(id);
        }
    }

    /// Notes that a member holds a unit for a client of this node.
    pub(super) fn held_for_client(&mut self, from: NodeId, id: u64) {
        let Some(hold) = self.own_holds.get_mut(&id) else { return };
        hold.missing.remove(from);
        if hold.missing.is_empty()
            && let Some(waiter) = hold.waiter.take()
        {
            self.finish(waiter, Ok(ClientResult::Held(id)));
        }
    }

    /// Begins an operation on a chunk. The waiter is told the result.
    pub fn submit(&mut self, chunk: ChunkId, op: ClientOp<D>, waiter: W) {
        if self.is_ended {
            return self.finish(waiter, Err(DiskRefusal::Ended));
        }
        self.client_requests += 1;
        let number = self.number();
        let operation = Operation { chunk, op, waiter, attempt: None, tried: Vec::new() };
        self.operations.insert(number, operation);
        self.waiting.insert(number);
        self.settle();
    }

    /// Lets operations begin again.
    pub(super) fn restart(&mut self, which: impl Fn(&Operation<D, W>) -> bool) {
        for (number, operation) in &mut self.operations {
            if operation.attempt.is_some() && which(operation) {
                operation.attempt = None;
                self.waiting.insert(*number);
                self.counts.sent_again += 1;
            }
        }
        let waiting = &self.waiting;
        self.requests.retain(|_, (requester, _)| {
            !matches!(requester, Requester::Operation(number) if waiting.contains(number))
        });
    }

    /// Begins the operations that wait and need not any more.
    pub(super) fn start_waiting(&mut self) {
        if self.waiting.is_empty() || !self.is_usable() {
            return;
        }
        for number in std::mem::take(&mut self.waiting) {
            self.start(number);
        }
    }

    fn start(&mut self, number: u64) {
        let (Some(map), Some(operation)) = (self.map.clone(), self.operations.get(&number)) else { return };
        let chunk = operation.chunk;
        let unit = operation.written();
        let under = operation.under().map(|hold| self.own_holds.get(&hold));
        if under.is_some_and(|hold| hold.is_none_or(|hold| !hold.is_held() || Some(hold.unit) != unit)) {
            return self.end(number, Err(DiskRefusal::Changed));
        }
        let is_held = under.is_none() && unit.is_some_and(|unit| self.holds.contains_key(&unit));
        // After a refusal there is a newer map or view, which is not known here yet.
        let is_refused = operation.version() == Some(map.version());
        if is_held || is_refused {
            self.waiting.insert(number);
            return;
        }
        if map.copies(chunk).is_none() {
            // Other members may use a newer map already, in which the group is larger.
            return match self.applied.as_ref().is_some_and(|map| map.copies(chunk).is_some()) {
                true => drop(self.waiting.insert(number)),
                false => self.end(number, Err(DiskRefusal::NoChunk)),
            };
        }
        // A disk that has become stale since would lack the block without a dirty bit, and one that
        // gets writes since was not compared.
        if operation.compared().is_some_and(|version| version != map.changed(chunk)) {
            return self.end(number, Err(DiskRefusal::Changed));
        }
        let (disks, op): (Vec<_>, _) = match &operation.op {
            ClientOp::Write { offset, data, only, .. } => {
                // A resync may have replaced what a recovery would find on a syncing disk.
                let is_wanted = |disk: &DiskNumber| {
                    let is_current =
                        map.slot(chunk, *disk).is_some_and(|(_, state)| state == DiskState::Current);
                    only.as_ref().is_none_or(|(_, only)| !is_current || only.contains(disk))
                };
                let disks = map.live_copies(chunk).map(|copy| copy.disk).filter(is_wanted).collect();
                (disks, DiskOp::Write { offset: *offset, data: data.clone() })
            }
            ClientOp::Read { offset, length, from, in_doubt } => {
                let copies = map.current_copies(chunk).map(|copy| copy.disk);
                let disks = copies.filter(|disk| from.is_none_or(|from| from == *disk));
                let disks = disks.filter(|disk| !operation.tried.contains(disk));
                let is_own = |disk: &DiskNumber| map.disk(*disk).is_some_and(|disk| disk.server == self.me);
                let Some(disk) = disks.max_by_key(|disk| (is_own(disk), std::cmp::Reverse(*disk))) else {
                    let from = from.unwrap_or(DiskNumber(0));
                    return self.end(number, Err(DiskRefusal::NotReadable(from)));
                };
                let in_doubt = in_doubt.is_some();
                (vec![disk], DiskOp::Read { offset: *offset, length: *length, in_doubt })
            }
            ClientOp::Probe { disk, unit } => {
                let current: Vec<_> = map.current_copies(chunk).map(|copy| copy.disk).collect();
                if current.len() < map.copies_of_chunk() || !current.contains(disk) {
                    let disk = *disk;
                    return self.end(number, Err(DiskRefusal::NotReadable(disk)));
                }
                (vec![*disk], DiskOp::Clean { unit: *unit })
            }
        };
        if disks.is_empty() {
            return self.end(number, Ok(super::ClientResult::Done));
        }
        let copies = disks.iter().map(|disk| (*disk, CopyState::Sent)).collect();
        let attempt = Attempt { version: map.version(), since: self.now, copies };
        self.operations.get_mut(&number).expect("it is there").attempt = Some(attempt);
        for disk in disks {
            self.request(Requester::Operation(number), disk, chunk, op.clone());
        }
    }

    /// Sends a request to the server of a disk.
    pub(super) fn request(&mut self, of: Requester, disk: DiskNumber, chunk: ChunkId, op: DiskOp<D>) -> u64 {
        let map = self.map.as_ref().expect("a map by which requests are made");
        let (version, server) = (map.version(), map.disk(disk).expect("a disk of the map").server);
        let id = self.number();
        self.requests.insert(id, (of, disk));
        self.send(server, MirrorMessage::Request(DiskRequest { id, version, disk, chunk, op }));
        id
    }

    /// Handles the answer to a request. One that was given up has no requester any more.
    pub(super) fn answered(
        &mut self,
        from: NodeId,
        id: u64,
        answer: DiskAnswer<D>,
    ) -> Result<(), &'static str> {
        let Some((requester, disk)) = self.requests.get(&id).copied() else { return Ok(()) };
        let server = self.map.as_ref().and_then(|map| map.disk(disk)).map(|disk| disk.server);
        if server != Some(from) {
            return Err("an answer of a node that does not serve the disk");
        }
        self.requests.remove(&id);
        match requester {
            Requester::Operation(number) => self.answered_operation(number, disk, answer),
            Requester::Resync(of) => self.answered_resync(of, disk, answer),
        }
        Ok(())
    }

    fn answered_operation(&mut self, number: u64, disk: DiskNumber, answer: DiskAnswer<D>) {
        let Some(operation) = self.operations.get_mut(&number) else { return };
        let Some(attempt) = &mut operation.attempt else { return };
        let is_write = matches!(operation.op, ClientOp::Write { .. });
        let is_done = !matches!(operation.op, ClientOp::Read { .. });
        let copy = attempt.copies.iter_mut().find(|(copy, _)| *copy == disk).expect("a copy that was asked");
        match answer {
            DiskAnswer::Done if is_done => {
                copy.1 = CopyState::Executed;
                if attempt.copies.iter().all(|(_, state)| *state == CopyState::Executed) {
                    self.end(number, Ok(super::ClientResult::Done));
                }
            }
            DiskAnswer::Read(data) => self.end(number, Ok(super::ClientResult::Read(data, disk))),
            // The version stays: it begins again with a newer map or in a newer view.
            DiskAnswer::Refused => {
                let written = operation.written();
                self.waiting.insert(number);
                self.requests.retain(|_, (of, _)| !matches!(of, Requester::Operation(of) if *of == number));
                // It waits for the end of a hold, which must not wait for it.
                written.into_iter().for_each(|unit| self.answer_hold(unit));
            }
            DiskAnswer::Failed(why) if is_write => {
                copy.1 = CopyState::Failed;
                self.fail(number, disk, why);
            }
            DiskAnswer::Failed(why) => self.read_elsewhere(number, disk, why),
            DiskAnswer::Done | DiskAnswer::Dirty(_) => {}
        }
    }

    /// Has a disk marked that has not executed a write. Without another current copy the write
    /// fails.
    fn fail(&mut self, number: u64, disk: DiskNumber, why: String) {
        let map = self.map.as_ref().expect("a map by which requests are made");
        match map.with(&super::MapChange::Stale(vec![disk])) {
            Ok(_) => drop(self.failed.entry(disk).or_insert(why)),
            Err(_) => self.end(number, Err(DiskRefusal::Failed { disk, why })),
        }
    }

    fn read_elsewhere(&mut self, number: u64, disk: DiskNumber, why: String) {
        let (Some(map), Some(operation)) = (self.map.clone(), self.operations.get_mut(&number)) else {
            return;
        };
        operation.tried.push(disk);
        operation.attempt = None;
        // A late answer of this disk does not count for the next attempt.
        self.requests.retain(|_, (of, _)| !matches!(of, Requester::Operation(of) if *of == number));
        let may_be_other = matches!(operation.op, ClientOp::Read { from: None, .. });
        let mut others = map.current_copies(operation.chunk).map(|copy| copy.disk);
        if may_be_other && others.any(|other| !operation.tried.contains(&other)) {
            self.waiting.insert(number);
        } else {
            self.end(number, Err(DiskRefusal::Failed { disk, why }));
        }
    }

    /// Gives up requests that are not answered in time. A late answer to a write still counts.
    pub(super) fn time_out(&mut self) {
        let is_late = |attempt: &Attempt| self.now >= attempt.since + IO_TIMEOUT_MS;
        let late = self.operations.iter().filter_map(|(number, operation)| {
            let attempt = operation.attempt.as_ref().filter(|attempt| is_late(attempt))?;
            let (disk, _) = attempt.copies.iter().find(|(_, state)| *state == CopyState::Sent)?;
            Some((*number, *disk, matches!(operation.op, ClientOp::Write { .. })))
        });
        let late: Vec<_> = late.filter(|(number, ..)| !self.waiting.contains(number)).collect();
        for (number, disk, is_write) in late {
            let why = format!("no answer within {} s", IO_TIMEOUT_MS / 1000);
            let change = super::MapChange::Stale(vec![disk]);
            match is_write {
                // Without another current copy the write waits, and a late answer counts.
                true if self.map.as_ref().is_some_and(|map| map.with(&change).is_err()) => {}
                true => drop(self.failed.entry(disk).or_insert(why)),
                false => self.read_elsewhere(number, disk, why),
            }
        }
    }

    fn end(&mut self, number: u64, result: Result<super::ClientResult<D>, DiskRefusal>) {
        let Some(operation) = self.operations.remove(&number) else { return };
        self.waiting.remove(&number);
        self.requests.retain(|_, (of, _)| !matches!(of, Requester::Operation(of) if *of == number));
        let written = operation.written();
        self.finish(operation.waiter, result);
        if let Some(unit) = written {
            self.answer_hold(unit);
        }
    }

    /// Answers a hold if no write of its unit is under way.
    fn answer_hold(&mut self, unit: (ChunkId, u32)) {
        let is_under_way = |number: &u64, operation: &Operation<D, W>| {
            operation.attempt.is_some() && operation.written() == Some(unit) && !self.waiting.contains(number)
        };
        let is_busy = self.operations.iter().any(|(number, operation)| is_under_way(number, operation));
        if is_busy {
            return;
        }
        let holds = self.holds.get_mut(&unit).into_iter().flatten();
        let new = holds.filter_map(|hold| {
            (!std::mem::replace(&mut hold.is_answered, true)).then_some((hold.from, hold.id))
        });
        for (from, id) in new.collect::<Vec<_>>() {
            self.send(from, MirrorMessage::Held(id));
        }
    }

    pub(super) fn hold(&mut self, from: NodeId, id: u64, version: u64, chunk: ChunkId, unit: u32) {
        match self.map.as_ref().map(|map| map.version()) {
            Some(known) if known == version => {
                let hold = Hold { from, id, version, is_answered: false };
                self.holds.entry((chunk, unit)).or_default().push(hold);
                self.answer_hold((chunk, unit));
            }
            // Its map is older: it begins again when it learns of this one.
            Some(known) if known > version => {}
            _ => self.early_holds.push((from, MirrorMessage::Hold { id, version, chunk, unit })),
        }
    }

    pub(super) fn release(&mut self, from: NodeId, id: u64) {
        let is_it = |(of, message): &(NodeId, MirrorMessage<D>)| matches!(message, MirrorMessage::Hold { id: hold, .. } if (*of, *hold) == (from, id));
        self.early_holds.retain(|early| !is_it(early));
        self.holds.retain(|_, holds| {
            holds.retain(|hold| (hold.from, hold.id) != (from, id));
            !holds.is_empty()
        });
    }
}
