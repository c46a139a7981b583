//! The return of a disk, and the move of chunks to one: units are held one by one and copied from a
//! current disk.

use std::{collections::VecDeque, sync::Arc};

use plexus_base::{NodeId, NodeSet};

use super::{
    super::{
        map::{ChunkId, DiskNumber, DiskState, Map, MapChange, UNIT_BYTES},
        pace::Pace,
    },
    DiskAnswer, DiskOp, MirrorCore, MirrorMessage, Requester,
};

/// The pause after a source could not be read, in milliseconds.
const READ_AGAIN_MS: u64 = 1000;

/// The contents that a disk of this node lacks: all that it has missed, or chunks that move to it.
/// A disk that fails meanwhile returns only when this node has used the map in which it is stale,
/// and so has no work.
#[derive(Clone, PartialEq, Eq)]
struct Work {
    /// The chunks that move to it, with their slots; empty for a disk that is syncing.
    moves: Vec<(ChunkId, u32)>,
}

impl Work {
    fn of(map: &Map, disk: DiskNumber) -> Option<Self> {
        let moves = map.moves().filter(|moved| moved.to.disk == disk);
        let moves: Vec<_> = moves.map(|moved| (moved.chunk, moved.to.slot)).collect();
        let has_work = map.state(disk) == DiskState::Syncing || !moves.is_empty();
        has_work.then_some(Self { moves })
    }

    fn is_move(&self) -> bool {
        !self.moves.is_empty()
    }
}

/// The work that is left for a disk of this node. It goes on over views and maps for as long as the
/// work is the same: the disk gets all writes meanwhile.
#[derive(Clone)]
pub(super) struct Resync {
    work: Work,
    /// The chunks whose units are not listed yet.
    chunks: VecDeque<ChunkId>,
    units: VecDeque<(ChunkId, u32)>,
    step: Step,
    /// The hold of the unit, from when it is asked for to its release.
    hold: Option<u64>,
    /// The failed reads of sources, each of which has the next one tried.
    failures: usize,
    /// The time before which nothing is tried, and no unit begins.
    paused_until: u64,
    /// The time at which the unit was begun, in microseconds.
    began_us: u64,
    /// The requests of clients that were seen before.
    clients_before: u64,
    pace: Pace,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Idle,
    Listing(ChunkId),
    /// These members do not hold the unit yet.
    Holding(NodeSet),
    Reading,
    Writing,
    /// The disk has another map or view, or is not open yet: the step is tried again.
    Refused,
    /// The disk has failed, and is to be marked.
    Failed,
}

impl Resync {
    /// Begins the present step again: a view or a map has ended its hold.
    pub(super) fn interrupt(&mut self) {
        if let Step::Listing(chunk) = self.step {
            self.chunks.push_front(chunk);
        }
        self.step = Step::Idle;
    }

    /// Returns the hold that it has, or asks for.
    #[cfg(test)]
    pub(super) fn hold(&self) -> Option<u64> {
        self.hold
    }

    /// Begins the present step again if it was refused.
    pub(super) fn retry(&mut self, now: u64) {
        if self.step == Step::Refused && self.paused_until <= now {
            self.step = Step::Idle;
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.step == Step::Idle && self.chunks.is_empty() && self.units.is_empty()
    }

    /// Returns true if the same contents are still to be copied to the disk.
    pub(super) fn goes_on(&self, map: &Map, disk: DiskNumber) -> bool {
        Work::of(map, disk).as_ref() == Some(&self.work)
    }

    /// Returns the change that says that it is complete.
    pub(super) fn completion(&self, disk: DiskNumber) -> MapChange {
        if self.work.is_move() { MapChange::Moved(disk) } else { MapChange::Current(disk) }
    }

    /// Returns the units that may have to be copied.
    pub(super) fn left(&self, map: Option<&Arc<Map>>) -> u64 {
        let per_chunk = map.map_or(0, |map| u64::from(map.units()));
        self.units.len() as u64 + self.chunks.len() as u64 * per_chunk
    }
}

impl<D: Clone, W> MirrorCore<D, W> {
    /// Takes the next step of each disk of this node that has returned.
    pub(super) fn advance_resyncs(&mut self) {
        if !self.is_usable() {
            return;
        }
        let Some(map) = self.map.clone() else { return };
        for disk in self.served.keys().copied().collect::<Vec<_>>() {
            let Some(work) = Work::of(&map, disk) else { continue };
            self.resyncs.entry(disk).or_insert_with(|| Resync {
                chunks: match work.is_move() {
                    true => work.moves.iter().map(|(chunk, _)| *chunk).collect(),
                    false => map.chunks_on(disk).collect(),
                },
                work,
                units: VecDeque::new(),
                step: Step::Idle,
                hold: None,
                failures: 0,
                paused_until: 0,
                began_us: 0,
                clients_before: 0,
                pace: Pace::default(),
            });
            self.advance(&map, disk);
        }
    }

    fn advance(&mut self, map: &Arc<Map>, disk: DiskNumber) {
        let resync = self.resyncs.get_mut(&disk).expect("a disk that returns");
        // Chunks may have moved away from the disk meanwhile.
        let is_here = |chunk: &ChunkId| map.slot(*chunk, disk).is_some();
        resync.chunks.retain(is_here);
        resync.units.retain(|(chunk, _)| is_here(chunk));
        while resync.step == Step::Idle {
            if let Some((chunk, unit)) = resync.units.front().copied() {
                if resync.paused_until > self.now {
                    return;
                }
                // A step that was refused has left one.
                self.release_of(disk);
                let members = self.members;
                let id = self.number();
                let resync = self.resyncs.get_mut(&disk).expect("a disk that returns");
                (resync.step, resync.hold) = (Step::Holding(members), Some(id));
                (resync.began_us, resync.clients_before) = (self.now_us, self.client_requests);
                let hold = MirrorMessage::Hold { id, version: map.version(), chunk, unit };
                members.iter().for_each(|member| self.send(member, hold.clone()));
                return;
            }
            let Some(chunk) = resync.chunks.pop_front() else { return };
            let entry = map.disk(disk).expect("a disk of the map");
            // The bits of a disk that was away itself meanwhile are not complete.
            let knows = |copy: &super::super::map::Copy| {
                map.disk(copy.disk).is_some_and(|source| source.current_since <= entry.since)
            };
            let source = map.current_copies(chunk).find(knows);
            let is_whole = entry.copies_whole || resync.work.is_move() || chunk.is_of_stream();
            match source.filter(|_| !is_whole) {
                Some(source) => {
                    self.step(disk, Step::Listing(chunk));
                    self.request(Requester::Resync(disk), source.disk, chunk, DiskOp::Dirty);
                    return;
                }
                None => resync.units.extend((0..map.units()).map(|unit| (chunk, unit))),
            }
        }
    }

    fn step(&mut self, disk: DiskNumber, step: Step) {
        if let Some(resync) = self.resyncs.get_mut(&disk) {
            resync.step = step;
        }
    }

    /// Notes that a member holds a unit. When all do, the unit is read.
    pub(super) fn held(&mut self, from: NodeId, id: u64) {
        let mine = self.resyncs.iter_mut().find_map(|(disk, resync)| match &mut resync.step {
            Step::Holding(missing) if resync.hold == Some(id) => {
                missing.remove(from);
                missing.is_empty().then_some(*disk)
            }
            _ => None,
        });
        let Some((disk, (chunk, unit))) = mine.and_then(|disk| Some((disk, self.unit(disk)?))) else {
            return;
        };
        self.step(disk, Step::Reading);
        let offset = unit * UNIT_BYTES;
        let op = DiskOp::Read { offset, length: UNIT_BYTES, in_doubt: false };
        if self.ask_source(disk, chunk, op).is_none() {
            self.step(disk, Step::Failed);
        }
    }

    /// Returns the unit that is being copied.
    fn unit(&self, disk: DiskNumber) -> Option<(ChunkId, u32)> {
        self.resyncs.get(&disk)?.units.front().copied()
    }

    /// Returns true if no member can use a newer map than this node.
    fn is_newest_map(&self) -> bool {
        let version = |map: &Option<Arc<Map>>| map.as_ref().map(|map| map.version());
        version(&self.applied) == version(&self.map)
    }

    fn ask_source(&mut self, disk: DiskNumber, chunk: ChunkId, op: DiskOp<D>) -> Option<u64> {
        let failures = self.resyncs.get(&disk).map_or(0, |resync| resync.failures);
        let source = self.map.as_ref().and_then(|map| {
            let count = map.current_copies(chunk).count().max(1);
            map.current_copies(chunk).nth(failures % count)
        });
        source.map(|source| self.request(Requester::Resync(disk), source.disk, chunk, op))
    }

    pub(super) fn answered_resync(&mut self, disk: DiskNumber, of: DiskNumber, answer: DiskAnswer<D>) {
        let is_newest_map = self.is_newest_map();
        let Some(resync) = self.resyncs.get_mut(&disk) else { return };
        match (resync.step, answer) {
            (Step::Listing(chunk), DiskAnswer::Refused) => {
                resync.chunks.push_front(chunk);
                resync.step = Step::Refused;
            }
            (Step::Listing(chunk), DiskAnswer::Dirty(units)) => {
                let per_chunk = self.map.as_ref().map_or(0, |map| map.units());
                let units = units.into_iter().filter(|unit| *unit < per_chunk);
                resync.units.extend(units.map(|unit| (chunk, unit)));
                resync.step = Step::Idle;
            }
            // Other members may use a newer map already. It has ended their holds, so a write of
            // theirs may be taken before this one.
            (Step::Reading, DiskAnswer::Read(_)) if !is_newest_map => resync.step = Step::Refused,
            (Step::Reading, DiskAnswer::Read(data)) => {
                let Some((chunk, unit)) = self.unit(disk) else { return };
                self.step(disk, Step::Writing);
                let op = DiskOp::Write { offset: unit * UNIT_BYTES, data };
                self.request(Requester::Resync(disk), disk, chunk, op);
            }
            (Step::Writing, DiskAnswer::Done) => {
                let Some((chunk, unit)) = self.unit(disk) else { return };
                self.copied(disk, chunk, unit);
            }
            (_, DiskAnswer::Refused) => resync.step = Step::Refused,
            (Step::Reading, DiskAnswer::Failed(_)) if resync.work.is_move() => {
                // The chunk has this copy still, so there is no need to mark a disk.
                resync.failures += 1;
                (resync.step, resync.paused_until) = (Step::Refused, self.now + READ_AGAIN_MS);
                self.release_of(disk);
            }
            (_, DiskAnswer::Failed(why)) => {
                // The next view may begin before the disk is marked: it goes on with this chunk.
                resync.interrupt();
                resync.step = Step::Failed;
                // It cannot be marked if it has the last copy of another chunk.
                self.release_of(disk);
                // A copy that cannot be read is no reason to mark its disk: this one cannot return.
                let why = if of == disk { why } else { format!("{of} cannot be read: {why}") };
                self.failed.entry(disk).or_insert(why);
            }
            _ => {}
        }
    }

    /// Notes that a unit is copied, and lets writes of it begin.
    fn copied(&mut self, disk: DiskNumber, chunk: ChunkId, unit: u32) {
        let resync = self.resyncs.get_mut(&disk).expect("a disk that gets a unit");
        resync.units.pop_front();
        resync.step = Step::Idle;
        let pause_us = resync.pace.pause_us(self.now_us.saturating_sub(resync.began_us));
        // Without clients it uses all that the disks can do.
        if self.client_requests > resync.clients_before {
            resync.paused_until = self.now + pause_us / 1000;
        }
        self.counts.copied_units += 1;
        self.counts.copied[disk.index()] += 1;
        let map = self.map.as_ref().expect("a map by which the unit was copied");
        let moved = map.moves().find(|moved| (moved.chunk, moved.to.disk) == (chunk, disk)).copied();
        match moved {
            Some(moved) => self.counts.copied[moved.from.index()] += 1,
            // They wait for no answers: a bit that is left over costs the copy of a unit. A bit of
            // a later write is set behind these requests, which a mark makes too old to be taken.
            None => {
                let current: Vec<_> = map.current_copies(chunk).map(|copy| copy.disk).collect();
                // The bits say also what a third copy lacks.
                if current.len() + 1 == map.copies_of_chunk() {
                    for source in current {
                        let id = self.request(Requester::Resync(disk), source, chunk, DiskOp::Clean { unit });
                        self.requests.remove(&id);
                    }
                }
            }
        }
        self.release_of(disk);
    }

    /// Releases the hold of a disk that gets units, if it has one.
    pub(super) fn release_of(&mut self, disk: DiskNumber) {
        let hold = self.resyncs.get_mut(&disk).and_then(|resync| resync.hold.take());
        hold.into_iter().for_each(|hold| self.release_all(hold));
    }

    pub(super) fn release_all(&mut self, hold: u64) {
        let members = self.members;
        members.iter().for_each(|member| self.send(member, MirrorMessage::Release(hold)));
    }
}
