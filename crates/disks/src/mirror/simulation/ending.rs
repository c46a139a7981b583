//! The opening of disks by their servers, and the orderly end of nodes.

use super::{registry::Asker, *};

/// A disk that a node is opening.
pub(super) struct Opening {
    disk: usize,
    id: u128,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The node waits for its claim.
    Claims,
    /// It may write the label.
    Labels,
    /// The label is written, and the node waits until the registry has the opening.
    Reports,
}

impl World {
    /// Has a node go on with the opening of a disk, or begin one when the I/O of its last opening
    /// has ended.
    pub(super) fn open(&mut self, at: usize) -> bool {
        match self.nodes[at].as_ref().map(|node| node.opening.as_ref()) {
            None => false,
            Some(Some(Opening { disk, id, stage: Stage::Labels })) => {
                let (disk, id) = (*disk, *id);
                self.write_label(at, disk, id)
            }
            Some(Some(_)) => false,
            Some(None) => (0..self.disks.len()).any(|disk| self.begin_opening(at, disk)),
        }
    }

    fn begin_opening(&mut self, at: usize, disk: usize) -> bool {
        let Some(node) = self.nodes[at].as_ref().filter(|node| !node.is_leaving) else { return false };
        // The file is locked on the host of a node until its I/O has ended.
        let is_busy = |disk: &Disk| disk.queue.iter().any(|job| job.at == at);
        if node.open.contains_key(&disk) || self.disks[disk].as_ref().is_none_or(is_busy) {
            return false;
        }
        let (number, me) = (DiskNumber(disk as u8), NodeId(at as u8));
        let Some(map) = node.core.map().cloned() else { return false };
        let Some(entry) = map.disk(number).filter(|disk| disk.server == me) else { return false };
        // A real node knows no map before its first view. Its claim shows if it knew an old one.
        if node.epoch == Epoch(0) && entry.sharers.is_empty() {
            return false;
        }
        let id = entry.id;
        let claim = map.claim(number, me).filter(|_| node.claimed.get(&disk) != Some(&id));
        let stage = if claim.is_some() { Stage::Claims } else { Stage::Labels };
        self.nodes[at].as_mut().unwrap().opening = Some(Opening { disk, id, stage });
        claim.is_none_or(|change| self.keep(at, change, map))
    }

    /// Has the keeper of a node ask for a change of the map. Returns false if it is in no view.
    fn keep(&mut self, at: usize, change: MapChange, base: Arc<Map>) -> bool {
        let node = self.nodes[at].as_ref().unwrap();
        let by = Asker { incarnation: node.incarnation, opens: true };
        let next = base.with(&change).expect("a change that is allowed");
        let is_member = node.epoch == self.epoch && self.is_member(at);
        match is_member {
            true => self.registry.queue.push_back((by, MapProposal { change, base, next })),
            false => self.nodes[at].as_mut().unwrap().opening = None,
        }
        is_member
    }

    fn write_label(&mut self, at: usize, disk: usize, id: u128) -> bool {
        let number = DiskNumber(disk as u8);
        let map = self.nodes[at].as_ref().unwrap().core.map().unwrap().clone();
        let entry = map.disk(number).filter(|disk| disk.server.index() == at && disk.id == id);
        let Some(known) = entry.map(|disk| disk.opening) else {
            self.nodes[at].as_mut().unwrap().opening = None;
            return false;
        };
        self.check_alone(at, disk, id);
        match self.disks[disk].as_ref().filter(|disk| disk.id != id).map(|disk| disk.queue.is_empty()) {
            // The one before it executes what was taken.
            Some(false) => return false,
            Some(true) => self.disks[disk] = Some(Disk::new(id)),
            None => {}
        }
        let label = &mut self.disks[disk].as_mut().unwrap().label;
        assert!(known == 0 || label.contains(&known), "{number} has {label:?} and seems older than {known}");
        let opening = map.version() + 1;
        *label = [opening, known];
        self.log(|| format!("n{at} writes the label of {number}: {opening}, {known}"));
        self.nodes[at].as_mut().unwrap().opening = Some(Opening { disk, id, stage: Stage::Reports });
        self.keep(at, MapChange::Opened { disk: number, opening, is_older: false }, map)
    }

    /// Checks that no other process writes to a disk, or may do so later.
    fn check_alone(&self, at: usize, disk: usize, id: u128) {
        let number = DiskNumber(disk as u8);
        for (other, node) in self.nodes.iter().enumerate().filter(|(other, _)| *other != at) {
            let Some(node) = node else { continue };
            let opens = node.opening.as_ref();
            let opens = opens.is_some_and(|opening| {
                (opening.disk, opening.id) == (disk, id) && opening.stage == Stage::Reports
            });
            let has_it = opens || node.open.get(&disk) == Some(&id);
            assert!(!has_it, "n{at} writes the label of {number}, which n{other} has open");
        }
        let disk = self.disks[disk].as_ref().filter(|disk| disk.id == id);
        let left = disk.and_then(|disk| disk.queue.iter().find(|job| job.at != at));
        assert!(
            left.is_none(),
            "n{at} writes the label of {number}, and n{} has not executed {left:?}",
            left.unwrap().at
        );
    }

    /// Tells the keeper of a node if its change is made.
    pub(super) fn kept(&mut self, at: usize, is_made: bool) {
        let node = self.nodes[at].as_mut().unwrap();
        let Some(Opening { disk, id, stage }) = node.opening.take() else { return };
        // It knows the contents that have its change.
        while let Some(map) = is_made.then(|| node.maps.pop_front()).flatten() {
            node.core.committed(map);
        }
        match stage {
            _ if !is_made => {}
            Stage::Claims => {
                node.claimed.insert(disk, id);
                node.opening = Some(Opening { disk, id, stage: Stage::Labels });
            }
            Stage::Labels => unreachable!("no change is under way"),
            Stage::Reports => {
                node.open.insert(disk, id);
                node.core.opened(DiskNumber(disk as u8), id);
                self.log(|| format!("n{at} has opened disk {disk}"));
            }
        }
        self.settle(at);
    }

    /// Closes the disks of a node.
    pub(super) fn close(&mut self, at: usize) {
        let open = self.nodes[at].as_ref().map(|node| node.open.clone()).unwrap_or_default();
        open.into_keys().for_each(|disk| self.close_disk(at, disk));
    }

    pub(super) fn close_disk(&mut self, at: usize, disk: usize) {
        self.log(|| format!("n{at} closes disk {disk}"));
        let node = self.nodes[at].as_mut().unwrap();
        if node.open.remove(&disk).is_some() {
            node.was_closed.insert(disk);
            self.core(at).closed(DiskNumber(disk as u8), "closed".to_owned());
            self.settle(at);
        }
    }

    /// Has a node hand back: it begins nothing more. Returns false if it still has work.
    pub(super) fn quiesce(&mut self, at: usize) -> bool {
        let Some(node) = self.nodes[at].as_ref().filter(|_| self.is_member(at)) else { return false };
        let by = node.incarnation;
        if node.epoch != self.epoch || !self.hand_back(by) {
            return false;
        }
        self.log(|| format!("n{at} is quiet"));
        self.nodes[at].as_mut().unwrap().is_quiet = true;
        self.core(at).quiesce();
        true
    }

    /// Has a node leave: the view without it is decided, and it says so when its disks have
    /// executed what they took.
    pub(super) fn leave(&mut self, at: usize) {
        let others: Vec<_> = self.members.keys().copied().filter(|member| *member != at).collect();
        if others.len() * 2 <= self.nodes.len() || !self.quiesce(at) {
            return;
        }
        self.log(|| format!("n{at} leaves"));
        self.new_view(&others);
        let node = self.nodes[at].as_mut().unwrap();
        (node.is_leaving, node.opening) = (true, None);
        self.core(at).end_all();
        self.settle(at);
    }

    /// Ends the nodes that are in no view any more, if that can be proved now: one that leaves says
    /// it, another one is killed. Returns false if one of them goes on.
    pub(super) fn prove_ends(&mut self) -> bool {
        (0..self.nodes.len()).all(|at| {
            let Some(node) = self.nodes[at].as_ref().filter(|node| node.is_evicted) else { return true };
            if node.is_leaving && node.core.is_drained() {
                self.log(|| format!("n{at} has left"));
                let node = self.nodes[at].take().unwrap();
                self.count(&node);
                self.counts.left += 1;
            } else if !self.faults.is_proved {
                return false;
            } else if !node.is_leaving || self.random.percent(5) {
                self.kill(at);
            } else {
                return false;
            }
            true
        })
    }

    /// Ends the faults, and checks that quiet members do not hold up the others: the group is
    /// usable, or waits for a disk that alone has something.
    pub(super) fn check_quiet(&mut self) {
        // One that is quiet may be the next server of the disk of one that dies.
        let (quiet, dead) = (self.any(), self.any());
        if self.random.percent(50) && quiet != dead && self.quiesce(quiet) {
            self.counts.quiet += 1;
            self.kill(dead);
            self.step_view(None);
        }
        for _ in 0..10 {
            for event in 0.. {
                assert!(event < 100_000, "D8: it does not come to rest without the absent nodes");
                let moved = self.step_io() | self.step_registry() | self.step_client_to_end();
                let nodes = 0..self.nodes.len();
                let moved = nodes.fold(moved, |moved, at| moved | self.enter(at) | self.open_at_end(at, 0));
                self.check();
                if !moved {
                    break;
                }
            }
            self.now += 5_000;
            (0..self.nodes.len()).for_each(|at| self.tick(at));
        }
        // Too few nodes may run for another view.
        let has_view = self.members.keys().all(|at| self.is_member(*at));
        let members = || self.members.keys().filter_map(|at| self.nodes[*at].as_ref());
        let is_due = members().any(|node| node.was_usable && !node.is_quiet);
        let is_stopped = members().any(|node| node.core.stopped().is_some());
        let is_usable = members().all(|node| node.core.is_usable());
        assert!(
            !has_view || !is_due || is_stopped || is_usable,
            "D8: the group waits for a quiet node: {}",
            self.reason()
        );
    }

    /// Returns a map that the copy of the registry of a node may have at its start.
    pub(super) fn old_map(&mut self, at: usize) -> Option<Arc<Map>> {
        let map = self.known[at].clone();
        map.filter(|map| map.disks().any(|(_, disk)| !disk.sharers.is_empty()) && self.random.percent(50))
    }
}
