//! The registry: a map after the other, saved by all members of a view, then committed.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use super::{
    super::{
        super::map::{DiskNumber, Map, MapChange},
        MapProposal,
    },
    World,
};

type Entries = BTreeMap<String, (u64, Vec<u8>)>;

/// The asker for a change: a node, or its keeper, which opens disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asker {
    pub(super) incarnation: u64,
    pub(super) opens: bool,
}

pub(super) struct Registry {
    entries: Entries,
    /// The highest version that was ever given.
    last: u64,
    pub(super) newest: Arc<Map>,
    pub(super) under_way: Option<UnderWay>,
    /// Proposals, each with its asker.
    pub(super) queue: VecDeque<(Asker, MapProposal)>,
    /// Results that proposers do not know yet.
    pub(super) results: Vec<(Asker, bool)>,
    /// Counts of changes.
    pub(super) moved: usize,
    pub(super) removed: usize,
    pub(super) replaced: usize,
    pub(super) grown: usize,
    pub(super) taken_over: usize,
}

pub(super) struct UnderWay {
    by: Asker,
    change: MapChange,
    map: Arc<Map>,
    entries: Entries,
    saved: BTreeSet<u64>,
}

impl Registry {
    pub(super) fn new(map: &Map) -> Self {
        let (entries, newest) = edited(&Entries::new(), map, None, 1);
        let newest = Arc::new(newest);
        let (queue, results) = (VecDeque::new(), Vec::new());
        let [moved, removed, replaced, grown, taken_over] = [0; 5];
        let (last, under_way) = (1, None);
        Self { entries, last, newest, under_way, queue, results, moved, removed, replaced, grown, taken_over }
    }

    /// Makes a change at once.
    pub(super) fn make(&mut self, change: &MapChange) -> Arc<Map> {
        let next = self.newest.with(change).expect("a change that is allowed");
        self.last += 1;
        let (entries, map) = edited(&self.entries, &next, Some(&self.newest), self.last);
        (self.entries, self.newest) = (entries, Arc::new(map));
        self.newest.clone()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_none() && self.queue.is_empty() && self.results.is_empty()
    }

    fn commit(&mut self, change: UnderWay) {
        let is_another =
            |map: &Map, disk: DiskNumber, server| map.disk(disk).is_some_and(|disk| disk.server != server);
        let before = std::mem::replace(&mut self.newest, change.map);
        self.entries = change.entries;
        match change.change {
            MapChange::Moved(_) => self.moved += 1,
            MapChange::Remove(_) => self.removed += 1,
            MapChange::Replace(..) => self.replaced += 1,
            MapChange::GrowGroup(_) => self.grown += 1,
            MapChange::Serve(disks, server) if is_another(&before, disks[0], server) => self.taken_over += 1,
            _ => {}
        }
        self.results.push((change.by, true));
        let map = &self.newest;
        let chunks = map.disks().flat_map(|(disk, _)| map.chunks_on(disk));
        for chunk in chunks {
            assert!(map.current_copies(chunk).next().is_some(), "D4: {chunk:?} has no current copy");
        }
    }
}

/// Returns the entries and the map after a change.
fn edited(entries: &Entries, next: &Map, base: Option<&Map>, version: u64) -> (Entries, Map) {
    let mut entries = entries.clone();
    for (key, wanted, value) in next.edits(base) {
        let (found, old) = entries.get(&key).cloned().unwrap_or_default();
        assert_eq!(found, wanted, "the version of {key}");
        entries.insert(key, (version, value.unwrap_or(old)));
    }
    let all = entries.iter().map(|(key, (version, value))| (key.as_str(), *version, value.as_slice()));
    let map = Map::decode(all).expect("a sound map").expect("a map");
    assert_eq!(map.version(), version);
    (entries, map)
}

impl World {
    /// Ends the change under way before a view: it is complete if a member has it, or dropped.
    pub(super) fn resolve_change(&mut self) {
        let queued = std::mem::take(&mut self.registry.queue);
        self.registry.results.extend(queued.into_iter().map(|(by, _)| (by, false)));
        let Some(change) = self.registry.under_way.take() else { return };
        let is_saved = self.members.values().any(|member| change.saved.contains(member));
        if is_saved && self.random.percent(50) {
            self.log(|| format!("map {} is completed", change.map.version()));
            self.registry.commit(change);
        } else {
            self.log(|| format!("map {} is dropped", change.map.version()));
            self.registry.results.push((change.by, false));
        }
        self.is_changed = true;
    }

    /// Takes a step of the registry. Returns false if there is none.
    pub(super) fn step_registry(&mut self) -> bool {
        let kind = self.random.below(3);
        (0..3).any(|more| match (kind + more) % 3 {
            0 => self.step_change(),
            1 => self.report_map(),
            _ => self.report_result(),
        })
    }

    fn step_change(&mut self) -> bool {
        let Some(change) = &mut self.registry.under_way else { return self.begin_change() };
        let missing: Vec<_> = self
            .members
            .iter()
            .filter(|(_, incarnation)| !change.saved.contains(incarnation))
            .map(|(at, incarnation)| (*at, *incarnation))
            .collect();
        if missing.is_empty() {
            let change = self.registry.under_way.take().unwrap();
            let map = change.map.clone();
            self.registry.commit(change);
            for at in self.members.keys() {
                self.nodes[*at].as_mut().into_iter().for_each(|node| node.maps.push_back(map.clone()));
            }
            self.is_changed = true;
            self.log(|| format!("map {} is committed", map.version()));
            return true;
        }
        let (at, incarnation) = *self.random.pick(&missing);
        let epoch = self.epoch;
        let Some(node) = self.nodes[at].as_mut() else { return false };
        if node.incarnation != incarnation || node.epoch != epoch {
            return false;
        }
        change.saved.insert(incarnation);
        let map = change.map.clone();
        node.core.applied(map.clone());
        self.log(|| format!("n{at} saves map {}", map.version()));
        self.settle(at);
        true
    }

    fn begin_change(&mut self) -> bool {
        let Some((by, MapProposal { change, base, next })) = self.registry.queue.pop_front() else {
            return false;
        };
        // Each node has one disk at most.
        let is_second = self.registry.newest.disks().count() == self.disks.iter().flatten().count();
        if matches!(change, MapChange::Add(_)) && is_second {
            self.registry.results.push((by, true));
            return true;
        }
        let is_made = base.version() == self.registry.newest.version();
        if !is_made {
            self.log(|| format!("{change:?} of {by:?} is refused: base {}", base.version()));
            self.registry.results.push((by, false));
            return true;
        }
        self.registry.last += 1;
        let version = self.registry.last;
        let (entries, map) = edited(&self.registry.entries, &next, Some(&base), version);
        self.log(|| format!("map {version} begins: {change:?} of {by:?}"));
        let map = Arc::new(map);
        self.registry.under_way = Some(UnderWay { by, change, map, entries, saved: BTreeSet::new() });
        true
    }

    fn report_map(&mut self) -> bool {
        let due = |at: &usize| self.nodes[*at].as_ref().is_some_and(|node| !node.maps.is_empty());
        let due: Vec<_> = (0..self.nodes.len()).filter(due).collect();
        if due.is_empty() || self.random.percent(self.faults.late_maps) {
            return false;
        }
        let at = *self.random.pick(&due);
        let node = self.nodes[at].as_mut().unwrap();
        let map = node.maps.pop_front().unwrap();
        node.core.committed(map.clone());
        self.log(|| format!("n{at} uses map {}", map.version()));
        self.settle(at);
        true
    }

    fn report_result(&mut self) -> bool {
        if self.registry.results.is_empty() {
            return false;
        }
        let (by, is_made) = self.registry.results.remove(0);
        let Asker { incarnation, opens } = by;
        let at = self.at(incarnation).filter(|at| self.members.get(at) == Some(&incarnation));
        let Some(at) = at else { return true };
        self.log(|| format!("n{at} learns whether its change is made: {is_made}"));
        if opens {
            self.kept(at, is_made);
            return true;
        }
        self.nodes[at].as_mut().unwrap().core.proposed(is_made);
        self.settle(at);
        true
    }
}
