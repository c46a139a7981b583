//! The master of each partition in a view. Locks and blocks are spread over the cluster by
//! partition, and move when the members change.

use plexus_base::{Epoch, Incarnation, NodeId, Partition, WorkerId, hash::mix};

use super::View;

/// The members of a view with their incarnations: the part of a view that subsystems use.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Members {
    /// The epoch of the view; the next view has the next epoch.
    pub epoch: Epoch,
    /// The members, each once, in any order.
    pub members: Vec<(NodeId, Incarnation)>,
}

impl From<&View> for Members {
    fn from(view: &View) -> Self {
        let members = view.members().iter().filter_map(|node| Some((node, view.incarnation(node)?)));
        Self { epoch: view.epoch, members: members.collect() }
    }
}

impl Members {
    /// Returns the incarnation in which `node` is a member.
    #[must_use]
    pub fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.members.iter().find(|(member, _)| *member == node).map(|(_, incarnation)| *incarnation)
    }

    /// Returns the master of `partition`: the member with the greatest weight (rendezvous hashing,
    /// Thaler and Ravishankar 1998). A change of members moves only the partitions of the leaving
    /// or joining node.
    ///
    /// # Panics
    /// Panics in a view without members.
    #[must_use]
    pub fn master(&self, partition: Partition) -> NodeId {
        let weight = |node: NodeId| mix(u64::from(partition.0) << 8 | u64::from(node.0));
        let nodes = self.members.iter().map(|(node, _)| *node);
        nodes.max_by_key(|node| (weight(*node), *node)).expect("a view has members")
    }
}

/// The master of a partition, and the epoch since which it is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mastery {
    /// The master node.
    pub master: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The epoch in which it became the master. Earlier state of the partition is void.
    pub since: Epoch,
}

/// The masters of one worker's partitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Masters {
    workers: u8,
    table: Vec<Mastery>,
}

impl Masters {
    /// Creates the table for the first view of this node.
    #[must_use]
    pub fn new(view: &Members, worker: WorkerId, workers: u8) -> Self {
        let own = (0..Partition::COUNT).map(Partition).filter(|part| part.worker(workers) == worker);
        let table = own.map(|partition| mastery(view, partition)).collect();
        Self { workers, table }
    }

    /// Applies the next view and returns the slots whose master changed.
    pub fn change(&mut self, view: &Members, worker: WorkerId) -> PartitionSlots {
        let mut changed = PartitionSlots::none();
        for (at, slot) in self.table.iter_mut().enumerate() {
            let partition = Partition(at as u16 * u16::from(self.workers) + u16::from(worker.0));
            let now = mastery(view, partition);
            if (now.master, now.incarnation) != (slot.master, slot.incarnation) {
                changed.insert(PartitionSlot(at as u16));
                *slot = now;
            }
        }
        changed
    }

    /// Returns the slot of a partition of this worker.
    #[must_use]
    pub fn slot(&self, partition: Partition) -> PartitionSlot {
        PartitionSlot(partition.0 / u16::from(self.workers))
    }

    /// Returns the master of a slot, and since when.
    ///
    /// # Panics
    /// Panics if the worker has no such slot.
    #[must_use]
    pub fn of(&self, slot: PartitionSlot) -> Mastery {
        self.table[usize::from(slot.0)]
    }

    /// Marks the slot as taken over in `epoch` although its master did not change.
    pub fn begin_again(&mut self, slot: PartitionSlot, epoch: Epoch) {
        self.table[usize::from(slot.0)].since = epoch;
    }

    /// Iterates over the slots of this worker that `node` masters.
    pub fn mastered_by(&self, node: NodeId) -> impl Iterator<Item = PartitionSlot> {
        let slots = self.table.iter().enumerate();
        slots.filter(move |(_, slot)| slot.master == node).map(|(at, _)| PartitionSlot(at as u16))
    }
}

fn mastery(view: &Members, partition: Partition) -> Mastery {
    let master = view.master(partition);
    let incarnation = view.incarnation(master).expect("masters are members");
    Mastery { master, incarnation, since: view.epoch }
}

/// A partition's index among those of its worker: `partition / workers`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PartitionSlot(pub u16);

/// A set of slots, as one bit each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionSlots(Box<[u8; Self::BYTES]>);

impl PartitionSlots {
    /// The size for a node with a single worker, which owns all partitions.
    pub const BYTES: usize = Partition::COUNT as usize / 8;

    /// Returns the empty set.
    #[must_use]
    pub fn none() -> Self {
        Self(Box::new([0; Self::BYTES]))
    }

    /// Returns the set with these bits.
    #[must_use]
    pub fn from_wire(bytes: [u8; Self::BYTES]) -> Self {
        Self(Box::new(bytes))
    }

    /// Returns one bit for each slot; the lowest bit of the first byte is the first slot.
    #[must_use]
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Returns true if the slot is in the set.
    #[must_use]
    pub fn contains(&self, slot: PartitionSlot) -> bool {
        self.0[usize::from(slot.0 / 8)] & 1 << (slot.0 % 8) != 0
    }

    /// Adds a slot.
    ///
    /// # Panics
    /// Panics if the slot is beyond all partitions.
    pub fn insert(&mut self, slot: PartitionSlot) {
        self.0[usize::from(slot.0 / 8)] |= 1 << (slot.0 % 8);
    }

    /// Iterates over the slots, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = PartitionSlot> {
        (0..Partition::COUNT).map(PartitionSlot).filter(|slot| self.contains(*slot))
    }
}

impl FromIterator<PartitionSlot> for PartitionSlots {
    fn from_iter<I: IntoIterator<Item = PartitionSlot>>(slots: I) -> Self {
        let mut set = Self::none();
        slots.into_iter().for_each(|slot| set.insert(slot));
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
    fn a_change_moves_only_the_partitions_of_the_leaving_or_joining_node() {
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
        assert!(changed.iter().all(|slot| masters.of(slot).since == Epoch(2)));
        assert!(masters.mastered_by(NodeId(0)).all(|slot| masters.of(slot).since == Epoch(1)));
    }

    #[test]
    fn slots_and_partitions_correspond() {
        for workers in [1u8, 2, 3, 8] {
            for worker in 0..workers {
                let masters = Masters::new(&view(1, 0..3), WorkerId(worker), workers);
                for partition in partitions().filter(|part| part.worker(workers) == WorkerId(worker)) {
                    let slot = masters.slot(partition);
                    assert_eq!(masters.of(slot).master, view(1, 0..3).master(partition));
                }
            }
        }
    }

    #[test]
    fn a_set_contains_inserted_slots() {
        let some = [0u16, 7, 8, 4095].map(PartitionSlot);
        let slots: PartitionSlots = some.into_iter().collect();
        let again = PartitionSlots::from_wire(*slots.bytes());
        assert_eq!(again.iter().collect::<Vec<_>>(), some);
    }
}
