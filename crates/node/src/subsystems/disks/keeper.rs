//! The thread that keeps the map of a node like that of the registry, and opens its disks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, OnceLock, PoisonError, mpsc},
    time::{Duration, Instant},
};

use plexus_admin::config::{Config, ServedDiskConfig};
use plexus_base::{NodeId, NodeSet};
use plexus_disks::{
    GroupId,
    mirror::{
        Mirror, NewDisk, ServedDisk,
        map::{AddedDisk, DiskEntry, DiskNumber, DiskState, Map, MapChange},
        protocol::MapProposal,
    },
};
use plexus_registry::{
    Registry,
    protocol::{Change, Command, Contents, Edit, EditKind, Key},
};

use super::{description, unix_seconds};
use crate::ledger;

/// The interval at which the map is looked at, and time passes.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The interval of attempts to open a disk.
const OPEN_AGAIN: Duration = Duration::from_secs(1);

/// The longest wait for an answer of the registry, after which the node looks whether it ends.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);

/// Returns the map in the contents of the registry; `None` if there is none yet.
pub(super) fn map_of(contents: &Contents, group: GroupId) -> Result<Option<Arc<Map>>, String> {
    let prefix = ledger::prefix(group);
    let entries = contents.under(&prefix);
    let entries =
        entries.map(|(key, entry)| (&key.as_str()[prefix.len()..], entry.version, &entry.value[..]));
    Map::decode(entries).map(|map| map.map(Arc::new)).map_err(|why| why.to_string())
}

/// Keeps the map of this node like that of the registry.
pub(super) struct MapKeeper {
    config: Arc<Config>,
    me: NodeId,
    mirror: Arc<Mirror>,
    registry: Arc<OnceLock<Registry>>,
    proposals: mpsc::Receiver<MapProposal>,
    /// The open disks with their identifiers.
    served: BTreeMap<DiskNumber, u128>,
    /// The shared disks that this incarnation may write to, as [`Map::claim`] says.
    claimed: BTreeMap<DiskNumber, u128>,
    /// The disks that are away, each with the version at which it went, and when this was noticed.
    away: BTreeMap<(DiskNumber, u64), Instant>,
    /// The time of the next attempt to open a disk.
    open_at: Instant,
    refused: Arc<Mutex<Option<String>>>,
    differs: Arc<OnceLock<String>>,
}

impl MapKeeper {
    pub(super) fn new(
        config: &Arc<Config>,
        me: NodeId,
        mirror: &Arc<Mirror>,
        registry: &Arc<OnceLock<Registry>>,
        proposals: mpsc::Receiver<MapProposal>,
        refused: Arc<Mutex<Option<String>>>,
        differs: Arc<OnceLock<String>>,
    ) -> Self {
        Self {
            config: config.clone(),
            me,
            mirror: mirror.clone(),
            registry: registry.clone(),
            proposals,
            served: BTreeMap::new(),
            claimed: BTreeMap::new(),
            away: BTreeMap::new(),
            open_at: Instant::now(),
            refused,
            differs,
        }
    }

    pub(super) fn run(mut self, is_ended: &OnceLock<()>) {
        let began = Instant::now();
        let mut known = None;
        while is_ended.get().is_none() {
            let contents = self.registry.get().and_then(Registry::contents);
            if let Some(contents) = contents.filter(|contents| known != Some(contents.generation())) {
                known = Some(contents.generation());
                match map_of(&contents, self.config.shape().id) {
                    Ok(Some(map)) => {
                        self.compare(&map);
                        self.mirror.committed(map);
                    }
                    // What fails is tried again; a map that is impossible is not.
                    Ok(None) if !self.create(is_ended) => known = None,
                    Ok(None) => {}
                    Err(why) => self.refuse(format!("{why}: another version of plexus has made it")),
                }
            }
            for number in self.mirror.close_failed() {
                self.served.remove(&number);
                self.open_at = Instant::now() + OPEN_AGAIN;
            }
            if let Some(map) = self.mirror.map() {
                self.close(&map);
                self.serve(&map, is_ended);
                let overdue = self.overdue(&map);
                self.mirror.rebuild(overdue);
            }
            if let Ok(MapProposal { change, base, next }) = self.proposals.recv_timeout(LOOK_EVERY) {
                let is_made = self.commit(Some(&base), &next, is_ended);
                if is_made {
                    tracing::info!("the map of disks: {}", described(&change));
                }
                self.mirror.proposed(is_made);
            }
            self.mirror.tick(began.elapsed().as_millis() as u64);
        }
    }

    /// Makes a map the next one, if `base` is the last. Then this node uses it.
    fn commit(&self, base: Option<&Map>, next: &Map, is_ended: &OnceLock<()>) -> bool {
        let Some(registry) = self.registry.get() else { return false };
        let prefix = ledger::prefix(self.config.shape().id);
        let edits = next.clone().at(unix_seconds()).edits(base).into_iter().map(|(key, version, value)| {
            let what = value.map_or(EditKind::Keep, |value| EditKind::Set(value.into()));
            let key = Key::new(&format!("{prefix}{key}")).map_err(|why| why.to_string())?;
            Ok(Edit { key, expect: Some(version), what })
        });
        let change = match edits.collect::<Result<Vec<_>, String>>() {
            Ok(edits) => Command::Change(Change(edits)),
            Err(why) => {
                tracing::error!("the map of disks: {why}");
                return false;
            }
        };
        let mut asked = registry.ask(change);
        loop {
            match asked.wait(ANSWER_WITHIN) {
                Some(Ok(_)) => break,
                // Another member was first, or the registry cannot change now.
                Some(Err(why)) => {
                    tracing::debug!("the map of disks: {why}");
                    return false;
                }
                None if is_ended.get().is_some() => return false,
                None => {}
            }
        }
        if let Some(Ok(Some(map))) =
            registry.contents().map(|contents| map_of(&contents, self.config.shape().id))
        {
            self.mirror.committed(map);
        }
        true
    }

    /// Returns the nodes that reach a disk by the configuration.
    fn sharers(&self, disk: &ServedDiskConfig) -> NodeSet {
        disk.shared.iter().filter_map(|name| Some(self.config.node(name).ok()?.0)).collect()
    }

    /// Says if the configuration is not that of the map, which counts. The group may have grown.
    fn compare(&self, map: &Map) {
        let is_shared_otherwise = |(_, entry): &(DiskNumber, &DiskEntry)| {
            let mut disks = self.config.served_disks.iter();
            disks.any(|disk| disk.id == entry.id && self.sharers(disk) != entry.sharers)
        };
        if let Some((number, _)) = map.disks().find(is_shared_otherwise) {
            let why = format!(
                "cluster.toml has other nodes share {number} than the group, for which that is fixed: put the old line `shared` back"
            );
            let _ = self.differs.set(why);
        }
        let configured = (u64::from(self.config.chunk_mib) << 20, self.config.block_chunks());
        let found = (map.chunk_bytes(), u64::from(map.chunks()));
        let is_possible = configured.0 == found.0 && configured.1 <= found.1;
        if !is_possible && self.mirror.map().is_none() {
            let why = format!(
                "cluster.toml describes a group of {} chunks of {} MiB, and it has {} of {} MiB: put the old values back; \
                 `plexus disk grow-group` has a mirrored group grow",
                configured.1,
                configured.0 >> 20,
                found.1,
                found.0 >> 20
            );
            tracing::error!("{why}");
            // Only the first map is compared.
            let _ = self.differs.set(why);
        }
    }

    /// Makes the first map, from the configuration.
    fn create(&self, is_ended: &OnceLock<()>) -> bool {
        let groups: Vec<_> =
            self.config.served_disks.iter().map(|disk| self.config.failure_group(disk)).collect();
        let group = |name: &str| groups.iter().position(|group| *group == name).unwrap_or_default() as u8;
        let entry = |disk: &ServedDiskConfig| {
            let new = DiskEntry::new(&AddedDisk {
                id: disk.id,
                server: self.config.node(&disk.node).map_or(self.me, |(node, _)| node),
                failure_group: group(self.config.failure_group(disk)),
                slots: u32::try_from(disk.slots(self.config.chunk_mib)).unwrap_or(u32::MAX),
            });
            DiskEntry { sharers: self.sharers(disk), ..new }
        };
        let disks = self.config.served_disks.iter().map(entry).collect();
        let (chunks, copies) = (self.config.block_chunks() as u32, self.config.redundancy.copies());
        match Map::new(self.config.chunk_mib, chunks, copies, disks) {
            Ok(map) => self.commit(None, &map, is_ended),
            Err(why) => {
                self.refuse(format!("the map of disks: {why}"));
                true
            }
        }
    }

    /// Has the status say why a disk of this node is not served.
    fn refuse(&self, why: String) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.as_ref() != Some(&why) {
            tracing::error!("{why}");
            *refused = Some(why);
        }
    }

    /// Closes the disks that are not in the map any more.
    fn close(&mut self, map: &Map) {
        let is_own = |number: DiskNumber, id: u128| {
            map.disk(number).is_some_and(|disk| disk.id == id && disk.server == self.me)
        };
        self.claimed.retain(|number, id| is_own(*number, *id));
        self.served.retain(|number, id| {
            let is_there = is_own(*number, *id);
            if !is_there {
                self.mirror.unserve(*number);
                tracing::info!("{number} has left the group, or was replaced: its file is closed");
            }
            is_there
        });
    }

    /// Returns the disks that are away for too long: their chunks get other copies. The time counts
    /// from when this node has noticed it: no clock that is set has a disk leave.
    fn overdue(&mut self, map: &Map) -> BTreeSet<DiskNumber> {
        let is_away =
            |disk: &DiskEntry| disk.state == DiskState::Stale && !disk.is_offline && !disk.is_leaving;
        let away = map.disks().filter(|(_, disk)| is_away(disk)).map(|(number, disk)| (number, disk.changed));
        let away: BTreeSet<_> = away.collect();
        self.away.retain(|disk, _| away.contains(disk));
        for disk in away {
            self.away.entry(disk).or_insert_with(Instant::now);
        }
        let after = Duration::from_secs(self.config.rebuild_after_s.into());
        let overdue = self.away.iter().filter(|(_, since)| !after.is_zero() && since.elapsed() >= after);
        overdue.map(|((disk, _), _)| *disk).collect()
    }

    /// Opens the disks of this node that are in the map and not open yet.
    fn serve(&mut self, map: &Map, is_ended: &OnceLock<()>) {
        let own: Vec<_> =
            map.disks().filter(|(_, disk)| disk.server == self.me).map(|(number, _)| number).collect();
        for number in own {
            if self.served.contains_key(&number) || self.open_at > Instant::now() {
                continue;
            }
            let map = self.claim(number, is_ended);
            match map.as_ref().map_or(Ok(false), |map| self.open(number, map, is_ended)) {
                Ok(true) => {
                    self.served.extend(map.and_then(|map| Some((number, map.disk(number)?.id))));
                }
                // The map has changed meanwhile.
                Ok(false) => self.open_at = Instant::now() + OPEN_AGAIN / 10,
                Err(why) => {
                    self.open_at = Instant::now() + OPEN_AGAIN;
                    self.mirror.closed(number, why.clone());
                    self.refuse(why);
                    continue;
                }
            }
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Returns the map by which this node may open a disk and write to it. Of a shared disk this
    /// incarnation first becomes the server by a change of the map. `None` if it is not made.
    fn claim(&mut self, number: DiskNumber, is_ended: &OnceLock<()>) -> Option<Arc<Map>> {
        let own = |map: &Map| Some(map.disk(number).filter(|disk| disk.server == self.me)?.id);
        let map = self.mirror.map()?;
        let id = own(&map)?;
        let claim = map.claim(number, self.me).filter(|_| self.claimed.get(&number) != Some(&id));
        let Some(change) = claim else { return Some(map) };
        let next = map.with(&change).ok()?;
        if !self.commit(Some(&map), &next, is_ended) {
            return None;
        }
        self.claimed.insert(number, id);
        self.mirror.map().filter(|map| own(map) == Some(id))
    }

    /// Opens a disk, and compares its label with the map. Returns false if the map has changed
    /// meanwhile.
    fn open(&self, number: DiskNumber, map: &Map, is_ended: &OnceLock<()>) -> Result<bool, String> {
        let entry = *map.disk(number).ok_or("the map has no such disk")?;
        let contents = self.registry.get().and_then(Registry::contents).ok_or("the registry is closed")?;
        let found = description(&self.config, &contents, &entry).ok_or_else(|| {
            let id = entry.id;
            format!("{number}: neither cluster.toml nor the registry describes the disk {id:032x}; put its table [[disk]] back")
        })?;
        let path = std::path::Path::new(&found.path);
        let new = self.new_disk(number, &entry);
        let mut problem = None;
        let opened = self.mirror.serve((number, entry.id), |answer| {
            let disk = ServedDisk::open(path, &new, answer).map_err(|why| Some(why.to_string()))?;
            let labels = disk.openings().map_err(|why| Some(why.to_string()))?;
            let is_older = entry.opening > 0 && !labels.contains(&entry.opening);
            let opening = map.version() + 1;
            if !is_older {
                disk.note_opening(opening, entry.opening).map_err(|why| Some(why.to_string()))?;
            }
            let change = MapChange::Opened { disk: number, opening, is_older };
            let path = path.display();
            let next = map.with(&change).map_err(|why| {
                Some(format!("{path}: is an older image of {number} than the registry knows, and {why}: put the newest one back"))
            })?;
            if !self.commit(Some(map), &next, is_ended) {
                return Err(None);
            }
            if is_older {
                disk.note_opening(opening, opening).map_err(|why| Some(why.to_string()))?;
                problem = Some(format!("{path}: is an older image than the registry knows: it is copied as a whole"));
            }
            Ok(disk)
        });
        problem.inspect(|problem| tracing::warn!("{problem}"));
        match opened {
            Ok(()) => Ok(true),
            Err(None) => Ok(false),
            Err(Some(why)) => Err(why),
        }
    }

    fn new_disk(&self, number: DiskNumber, entry: &DiskEntry) -> NewDisk {
        NewDisk {
            group: self.config.shape().id,
            id: entry.id,
            number: number.0,
            block_size: self.config.block_size,
            chunk_mib: self.config.chunk_mib,
            slots: entry.slots,
        }
    }
}

/// Describes a change for the log.
fn described(change: &MapChange) -> String {
    let list = |disks: &[DiskNumber]| disks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match change {
        MapChange::Stale(disks) => format!("{} gets no more writes", list(disks)),
        MapChange::Syncing(disk) => format!("{disk} has returned, and what it has missed is copied"),
        MapChange::Current(disk) => format!("{disk} has everything again"),
        MapChange::Stream { name, chunks, .. } => format!("{name} gets {chunks} chunks"),
        MapChange::Opened { disk, .. } => format!("{disk} was opened"),
        MapChange::Serve(disks, node) => format!("{} served by n{} from now on", list(disks), node.0 + 1),
        MapChange::Offline(disk, true) => format!("{disk} is offline"),
        MapChange::Offline(disk, false) => format!("{disk} may return"),
        MapChange::Add(added) => format!("a disk of n{} has come into the group", added.server.0 + 1),
        MapChange::Replace(disk, _) => format!("{disk} is another one, to which everything is copied"),
        MapChange::Leave(disk, true) => format!("the chunks of {disk} move to others, because it leaves"),
        MapChange::Leave(disk, false) => format!("{disk} stays"),
        MapChange::Grow { disk, slots, .. } => format!("{disk} has grown: it has room for {slots} chunks"),
        MapChange::GrowGroup(chunks) => format!("the group has grown to {chunks} chunks"),
        MapChange::Balance(true) => "chunks move until all disks are equally full".to_owned(),
        MapChange::Balance(false) => "all disks are equally full".to_owned(),
        MapChange::Move(moves) => format!("{} chunks begin to move", moves.len()),
        MapChange::Moved(disk) => format!("chunks have moved to {disk}"),
        MapChange::Force(_) => "an operator has given up what only absent disks have".to_owned(),
        MapChange::Remove(disk) => format!("{disk} has left the group"),
    }
}
