//! Who masters a partition in a view. What is spread over a cluster (locks, blocks) is mastered by partitions, and moves when the members change.

use plexus_base::{Epoch, Incarnation, NodeId, Partition, WorkerId, hash::mix};

use super::View;

/// The members of the cluster and their lives in a view: what those who build on views need of one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Members {
    /// Its number. Views that follow each other have numbers that do.
    pub epoch: Epoch,
    /// Who is in it, each once, in any order.
    pub members: Vec<(NodeId, Incarnation)>,
}

impl From<&View> for Members {
    fn from(view: &View) -> Self {
        let members = view.members().iter().filter_map(|node| Some((node, view.incarnation(node)?)));
        Self { epoch: view.epoch, members: members.collect() }
    }
}

impl Members {
    /// The incarnation of `node` that is a member.
    #[must_use]
    pub fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.members.iter().find(|(member, _)| *member == node).map(|(_, incarnation)| *incarnation)
    }

    /// The member that masters `partition`: the one with the greatest weight for it (rendezvous hashing, Thaler and Ravishankar
    /// 1998), so that a change of members moves only what the leaver had or the newcomer gets.
    ///
    /// # Panics
    /// In a view without members.
    #[must_use]
    pub fn master(&self, partition: Partition) -> NodeId {
        let weight = |node: NodeId| mix(u64::from(partition.0) << 8 | u64::from(node.0));
        let nodes = self.members.iter().map(|(node, _)| *node);
        nodes.max_by_key(|node| (weight(*node), *node)).expect("a view has members")
    }
}

/// Who masters a partition, and since when that has not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mastery {
    /// Who.
    pub master: NodeId,
    /// In which incarnation.
    pub incarnation: Incarnation,
    /// The view in which this began. What was said about the partition before is void.
    pub since: Epoch,
}

/// Who masters each of one worker's partitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Masters {
    workers: u8,
    table: Vec<Mastery>,
}

impl Masters {
    /// In the first view that this node has.
    #[must_use]
    pub fn new(view: &Members, worker: WorkerId, workers: u8) -> Self {
        let own = (0..Partition::COUNT).map(Partition).filter(|part| part.worker(workers) == worker);
        let table = own.map(|partition| mastery(view, partition)).collect();
        Self { workers, table }
    }

    /// Takes the next view up; the places of partitions whose master changed.
    pub fn change(&mut self, view: &Members, worker: WorkerId) -> MasterSlots {
        let mut changed = MasterSlots::none();
        for (at, slot) in self.table.iter_mut().enumerate() {
            let partition = Partition(at as u16 * u16::from(self.workers) + u16::from(worker.0));
            let now = mastery(view, partition);
            if (now.master, now.incarnation) != (slot.master, slot.incarnation) {
                changed.insert(MasterSlot(at as u16));
                *slot = now;
            }
        }
        changed
    }

    /// The place of a partition of this worker.
    #[must_use]
    pub fn place(&self, partition: Partition) -> MasterSlot {
        MasterSlot(partition.0 / u16::from(self.workers))
    }

    /// Who masters a partition, and since when.
    ///
    /// # Panics
    /// When the worker has no such place.
    #[must_use]
    pub fn of(&self, place: MasterSlot) -> Mastery {
        self.table[usize::from(place.0)]
    }

    /// Counts the partition as taken over in `epoch`, although nobody else had it that we know of.
    pub fn begin_again(&mut self, place: MasterSlot, epoch: Epoch) {
        self.table[usize::from(place.0)].since = epoch;
    }

    /// The places of all partitions of this worker that `node` masters.
    pub fn mastered_by(&self, node: NodeId) -> impl Iterator<Item = MasterSlot> {
        let places = self.table.iter().enumerate();
        places.filter(move |(_, slot)| slot.master == node).map(|(at, _)| MasterSlot(at as u16))
    }
}

fn mastery(view: &Members, partition: Partition) -> Mastery {
    let master = view.master(partition);
    let incarnation = view.incarnation(master).expect("masters are members");
    Mastery { master, incarnation, since: view.epoch }
}

/// A partition of one worker, by its number among those of the worker: `partition / workers`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MasterSlot(pub u16);

/// A set of places, a bit each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MasterSlots(Box<[u8; Self::BYTES]>);

impl MasterSlots {
    /// As long as with a single worker, whose places are all partitions.
    pub const BYTES: usize = Partition::COUNT as usize / 8;

    /// None.
    #[must_use]
    pub fn none() -> Self {
        Self(Box::new([0; Self::BYTES]))
    }

    /// The set with these bits.
    #[must_use]
    pub fn from_wire(bytes: [u8; Self::BYTES]) -> Self {
        Self(Box::new(bytes))
    }

    /// A bit for each place, the lowest bit of the first byte for the first.
    #[must_use]
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Whether the place is in it.
    #[must_use]
    pub fn contains(&self, place: MasterSlot) -> bool {
        self.0[usize::from(place.0 / 8)] & 1 << (place.0 % 8) != 0
    }

    /// Puts a place in.
    ///
    /// # Panics
    /// When it is beyond all partitions.
    pub fn insert(&mut self, place: MasterSlot) {
        self.0[usize::from(place.0 / 8)] |= 1 << (place.0 % 8);
    }

    /// The places in it, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = MasterSlot> {
        (0..Partition::COUNT).map(MasterSlot).filter(|place| self.contains(*place))
    }
}

impl FromIterator<MasterSlot> for MasterSlots {
    fn from_iter<I: IntoIterator<Item = MasterSlot>>(places: I) -> Self {
        let mut set = Self::none();
        places.into_iter().for_each(|place| set.insert(place));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(epoch: u32, nodes: impl IntoIterator<Item = u8>) -> Members {
        let members = nodes.into_iter().map(|node| (NodeId(node), Incarnation(1))).collect();
        Members { epoch: Epoch(epoch), members }
    }

    fn partitions() -> impl Iterator<Item = Partition> {
        (0..Partition::COUNT).map(Partition)
    }

    #[test]
    fn every_member_masters_its_share_at_every_worker() {
        for nodes in 1..=16u8 {
            for workers in [1, 2, 4] {
                let mut share = vec![0u32; usize::from(nodes) * usize::from(workers)];
                let view = view(1, 0..nodes);
                for partition in partitions() {
                    let node = view.master(partition).index();
                    share[node * usize::from(workers) + partition.worker(workers).index()] += 1;
                }
                let fair = u32::from(Partition::COUNT) / share.len() as u32;
                assert!(
                    share.iter().all(|s| *s > fair / 2 && *s < fair * 2),
                    "{nodes} x {workers}: {share:?}"
                );
            }
        }
    }

    #[test]
    fn a_change_moves_what_the_leaver_had_and_what_the_newcomer_gets_and_nothing_else() {
        for nodes in 2..=16u8 {
            let (more, fewer) = (view(1, 0..nodes), view(2, (0..nodes).filter(|node| *node != 1)));
            for partition in partitions() {
                let (before, after) = (more.master(partition), fewer.master(partition));
                assert!(
                    before == after || before == NodeId(1),
                    "{partition:?} moved from {before} to {after}"
                );
                assert_ne!(after, NodeId(1));
            }
        }
    }

    #[test]
    fn a_new_incarnation_of_a_master_is_another_master() {
        let (worker, workers) = (WorkerId(1), 2);
        let mut masters = Masters::new(&view(1, 0..2), worker, workers);
        let mut next = view(2, 0..2);
        next.members[1].1 = Incarnation(2);
        let changed = masters.change(&next, worker);
        assert_eq!(changed, masters.mastered_by(NodeId(1)).collect());
        assert!(changed.iter().all(|place| masters.of(place).since == Epoch(2)));
        assert!(masters.mastered_by(NodeId(0)).all(|place| masters.of(place).since == Epoch(1)));
    }

    #[test]
    fn places_and_partitions_belong_together() {
        for workers in [1u8, 2, 3, 8] {
            for worker in 0..workers {
                let masters = Masters::new(&view(1, 0..3), WorkerId(worker), workers);
                for partition in partitions().filter(|part| part.worker(workers) == WorkerId(worker)) {
                    let place = masters.place(partition);
                    assert_eq!(masters.of(place).master, view(1, 0..3).master(partition));
                }
            }
        }
    }

    #[test]
    fn a_set_of_places_holds_what_was_put_in() {
        let some = [0u16, 7, 8, 4095].map(MasterSlot);
        let places: MasterSlots = some.into_iter().collect();
        let again = MasterSlots::from_wire(*places.bytes());
        assert_eq!(again.iter().collect::<Vec<_>>(), some);
    }
}
