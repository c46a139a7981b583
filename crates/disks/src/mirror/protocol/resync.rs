//! The return of a disk: units are held one by one and copied from a current disk.

use std::{collections::VecDeque, sync::Arc};

use plexus_base::{NodeId, NodeSet};

use super::{
    super::map::{ChunkId, DiskNumber, DiskState, Map, UNIT_BYTES},
    DiskAnswer, DiskOp, MirrorCore, MirrorMessage, Requester,
};

/// The work that is left for a syncing disk of this node. It goes on over views and maps for as
/// long as the disk is syncing: it gets all writes meanwhile.
#[derive(Clone)]
pub(super) struct Resync {
    /// The version at which it became syncing.
    began: u64,
    /// The chunks whose units are not listed yet.
    chunks: VecDeque<ChunkId>,
    units: VecDeque<(ChunkId, u32)>,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Idle,
    Listing(ChunkId),
    /// The hold has this number; these members have not answered.
    Holding(u64, NodeSet),
    Reading(u64),
    Writing(u64),
    Cleaning(u64),
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

    /// Begins the present step again if it was refused.
    pub(super) fn retry(&mut self) {
        if self.step == Step::Refused {
            self.step = Step::Idle;
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.step == Step::Idle && self.chunks.is_empty() && self.units.is_empty()
    }

    /// Returns true if the disk is still syncing as it was.
    pub(super) fn goes_on(&self, map: &Map, disk: DiskNumber) -> bool {
        map.state(disk) == DiskState::Syncing && map.disk(disk).is_some_and(|disk| disk.changed == self.began)
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
            if map.state(disk) != DiskState::Syncing {
                continue;
            }
            let began = map.disk(disk).map_or(0, |disk| disk.changed);
            self.resyncs.entry(disk).or_insert_with(|| Resync {
                began,
                chunks: map.chunks_on(disk).collect(),
                units: VecDeque::new(),
                step: Step::Idle,
            });
            self.advance(&map, disk);
        }
    }

    fn advance(&mut self, map: &Arc<Map>, disk: DiskNumber) {
        let resync = self.resyncs.get_mut(&disk).expect("a disk that returns");
        while resync.step == Step::Idle {
            if let Some((chunk, unit)) = resync.units.front().copied() {
                let members = self.members;
                let id = self.number();
                self.step(disk, Step::Holding(id, members));
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
            match source.filter(|_| !entry.copies_whole && !chunk.is_of_stream()) {
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
            Step::Holding(hold, missing) if *hold == id => {
                missing.remove(from);
                missing.is_empty().then_some(*disk)
            }
            _ => None,
        });
        let Some((disk, (chunk, unit))) = mine.and_then(|disk| Some((disk, self.unit(disk)?))) else {
            return;
        };
        self.step(disk, Step::Reading(id));
        let offset = unit * UNIT_BYTES;
        let op = DiskOp::Read { offset, length: UNIT_BYTES, in_doubt: false };
        self.ask_source(disk, chunk, op);
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

    fn ask_source(&mut self, disk: DiskNumber, chunk: ChunkId, op: DiskOp<D>) {
        let source = self.map.as_ref().and_then(|map| map.current_copies(chunk).next());
        match source {
            Some(source) => drop(self.request(Requester::Resync(disk), source.disk, chunk, op)),
            None => self.step(disk, Step::Failed),
        }
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
            (Step::Reading(_), DiskAnswer::Read(_)) if !is_newest_map => resync.step = Step::Refused,
            (Step::Reading(id), DiskAnswer::Read(data)) => {
                let Some((chunk, unit)) = self.unit(disk) else { return };
                self.step(disk, Step::Writing(id));
                let op = DiskOp::Write { offset: unit * UNIT_BYTES, data };
                self.request(Requester::Resync(disk), disk, chunk, op);
            }
            (Step::Writing(id), DiskAnswer::Done) => {
                let Some((chunk, unit)) = self.unit(disk) else { return };
                self.step(disk, Step::Cleaning(id));
                self.ask_source(disk, chunk, DiskOp::Clean { unit });
            }
            (Step::Cleaning(id), DiskAnswer::Done) => {
                resync.units.pop_front();
                resync.step = Step::Idle;
                self.counts.copied_units += 1;
                let members = self.members;
                members.iter().for_each(|member| self.send(member, MirrorMessage::Release(id)));
            }
            (_, DiskAnswer::Refused) => resync.step = Step::Refused,
            (_, DiskAnswer::Failed(why)) => {
                // The next view may begin before the disk is marked: it goes on with this chunk.
                resync.interrupt();
                resync.step = Step::Failed;
                // A copy that cannot be read is no reason to mark its disk: this one cannot return.
                let why = if of == disk { why } else { format!("{of} cannot be read: {why}") };
                // The map that marks the disk ends the hold.
                self.failed.entry(disk).or_insert(why);
            }
            _ => {}
        }
    }
}
