//! The mirrored disks in their node: the map in the registry, the changes that the protocol wants,
//! and the disks that this node serves.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, OnceLock, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use plexus_admin::config::{Config, ServedDiskConfig};
use plexus_base::NodeId;
use plexus_disks::{
    GroupId,
    mirror::{
        Mirror, MirrorService, NewDisk, ServedDisk,
        map::{DiskEntry, DiskNumber, DiskState, Map, MapChange},
        protocol::MapProposal,
    },
};
use plexus_membership::subsystem::WorkerPort;
use plexus_registry::{
    Apply, Registry,
    protocol::{Change, Command, Contents, Edit, EditKind, Key},
};
use serde_json::{Value, json};

use super::{Handle, Install, Installed, Making};
use crate::{ledger, runtime::Parts};

/// The interval at which the map is looked at, and time passes.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The interval of attempts to open a disk.
const OPEN_AGAIN: Duration = Duration::from_secs(1);

/// The longest wait for an answer of the registry, after which the node looks whether it ends.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);

impl Install for MirrorService {
    type Handle = DisksHandle;

    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let Parts { config, me, group, proposals, .. } = node.parts;
        let Some(mirror) = group.mirror() else {
            return Ok(Installed::new(Vec::new(), DisksHandle::default()));
        };
        let proposals = proposals.lock().unwrap_or_else(PoisonError::into_inner).take();
        let keeper = MapKeeper {
            config: config.clone(),
            me: *me,
            mirror: mirror.clone(),
            registry: node.registry.clone(),
            proposals: proposals.ok_or("the disks are made once")?,
            served: BTreeSet::new(),
            open_at: Instant::now(),
            refused: Arc::default(),
            differs: Arc::default(),
        };
        let handle = DisksHandle {
            mirror: Some(mirror.clone()),
            group: Some(group.shape().id),
            config: Some(config.clone()),
            refused: keeper.refused.clone(),
            differs: keeper.differs.clone(),
            keeper: Mutex::new(Some(keeper)),
            thread: Mutex::default(),
            is_ended: Arc::default(),
        };
        Ok(Installed::new(vec![Self::new(mirror.clone(), port)], handle))
    }
}

/// The mirrored disks of a node; nothing in a group that is not mirrored.
#[derive(Default)]
pub(crate) struct DisksHandle {
    mirror: Option<Arc<Mirror>>,
    group: Option<GroupId>,
    config: Option<Arc<Config>>,
    /// Why a disk of this node is not served.
    refused: Arc<Mutex<Option<String>>>,
    /// Why the configuration is not that of the group.
    differs: Arc<OnceLock<String>>,
    keeper: Mutex<Option<MapKeeper>>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    is_ended: Arc<OnceLock<()>>,
}

impl DisksHandle {
    fn name_of(&self, node: NodeId) -> String {
        self.config.as_ref().map_or_else(|| node.to_string(), |config| config.name_of(node))
    }
}

impl Handle for DisksHandle {
    fn applies(&self) -> Option<Apply> {
        let (mirror, group) = (self.mirror.clone()?, self.group?);
        Some(Box::new(move |contents: &Contents| match map_of(contents, group) {
            Ok(Some(map)) => mirror.applied(map),
            Ok(None) => {}
            Err(why) => tracing::error!("{why}"),
        }))
    }

    fn start(&self) -> Result<(), String> {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(keeper) = keeper else { return Ok(()) };
        let is_ended = self.is_ended.clone();
        let thread = thread::Builder::new().name("disks".into());
        let thread = thread.spawn(move || keeper.run(&is_ended));
        let thread = thread.map_err(|error| format!("a thread for the map of disks: {error}"))?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    fn end(&self) {
        let _ = self.is_ended.set(());
        self.mirror.iter().for_each(|mirror| mirror.end());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic was reported when it happened.
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn status(&self) -> Option<Value> {
        let map = self.mirror.as_ref()?.map()?;
        let state = |state| match state {
            DiskState::Current => "current",
            DiskState::Syncing => "syncing",
            DiskState::Stale => "stale",
        };
        let disks = map.disks().map(|(number, disk)| {
            json!({
                "disk": number.0, "node": self.name_of(disk.server), "state": state(disk.state), "since": disk.since,
                "slots": disk.slots, "used": map.used_slots(number),
                "left_units": self.mirror.as_ref().and_then(|mirror| mirror.left_to_copy(number)),
            })
        });
        Some(
            json!({ "version": map.version(), "chunk_mib": map.chunk_bytes() >> 20, "disks": disks.collect::<Vec<_>>() }),
        )
    }

    fn trouble(&self) -> Vec<String> {
        let Some(mirror) = &self.mirror else { return Vec::new() };
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let map = mirror.map();
        let missing =
            map.iter().flat_map(|map| map.disks()).filter(|(_, disk)| disk.state != DiskState::Current);
        let missing = missing.map(|(number, disk)| {
            let name = self.name_of(disk.server);
            match disk.state {
                DiskState::Syncing => format!("{number} ({name}) is being copied: its chunks have one copy less"),
                _ => format!(
                    "{number} ({name}) has no new writes: its chunks have one copy less; start {name}, and what its disk \
                     has missed is copied"
                ),
            }
        });
        let differs = self.differs.get().cloned();
        missing.chain(mirror.trouble()).chain(refused).chain(differs).collect()
    }

    fn counts(&self, _: Duration) -> Vec<(&'static str, u64)> {
        let Some(mirror) = &self.mirror else { return Vec::new() };
        let counts = mirror.counts();
        vec![
            ("copied_units", counts.copied_units),
            ("sent_again", counts.sent_again),
            ("marks", counts.marks),
        ]
    }
}

/// Returns the map in the contents of the registry; `None` if there is none yet.
fn map_of(contents: &Contents, group: GroupId) -> Result<Option<Arc<Map>>, String> {
    let prefix = ledger::prefix(group);
    let entries = contents.under(&prefix);
    let entries =
        entries.map(|(key, entry)| (&key.as_str()[prefix.len()..], entry.version, &entry.value[..]));
    Map::decode(entries).map(|map| map.map(Arc::new)).map_err(|why| why.to_string())
}

/// Keeps the map of this node like that of the registry.
struct MapKeeper {
    config: Arc<Config>,
    me: NodeId,
    mirror: Arc<Mirror>,
    registry: Arc<OnceLock<Registry>>,
    proposals: mpsc::Receiver<MapProposal>,
    served: BTreeSet<DiskNumber>,
    /// The time of the next attempt to open a disk.
    open_at: Instant,
    refused: Arc<Mutex<Option<String>>>,
    differs: Arc<OnceLock<String>>,
}

impl MapKeeper {
    fn run(mut self, is_ended: &OnceLock<()>) {
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
                    Err(why) => tracing::error!("{why}"),
                }
            }
            for number in self.mirror.close_failed() {
                self.served.remove(&number);
                self.open_at = Instant::now() + OPEN_AGAIN;
            }
            if let Some(map) = self.mirror.map() {
                self.serve(&map, is_ended);
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
        let edits = next.edits(base).into_iter().map(|(key, version, value)| {
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

    /// Says if the sizes in the configuration are not those of the map, which counts.
    fn compare(&self, map: &Map) {
        let configured = (u64::from(self.config.chunk_mib) << 20, self.config.block_chunks());
        let found = (map.chunk_bytes(), u64::from(map.chunks()));
        if configured != found && self.mirror.map().is_none() {
            let why = format!(
                "cluster.toml describes a group of {} chunks of {} MiB, and it was made with {} of {} MiB: put the old \
                 values back; a mirrored group cannot grow yet",
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
        let entry = |disk: &ServedDiskConfig| DiskEntry {
            id: disk.id,
            server: self.config.node(&disk.node).map_or(self.me, |(node, _)| node),
            failure_group: group(self.config.failure_group(disk)),
            state: DiskState::Current,
            copies_whole: false,
            slots: slots(&self.config, disk),
            since: 0,
            current_since: 0,
            opening: 0,
            changed: 0,
        };
        let disks = self.config.served_disks.iter().map(entry).collect();
        match Map::new(self.config.chunk_mib, self.config.block_chunks() as u32, disks) {
            Ok(map) => self.commit(None, &map, is_ended),
            Err(why) => {
                let why = format!("the map of disks: {why}");
                tracing::error!("{why}");
                *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                true
            }
        }
    }

    /// Opens the disks of this node that are in the map and not open yet.
    fn serve(&mut self, map: &Map, is_ended: &OnceLock<()>) {
        let own: Vec<_> =
            map.disks().filter(|(_, disk)| disk.server == self.me).map(|(number, _)| number).collect();
        for number in own {
            if self.served.contains(&number) || self.open_at > Instant::now() {
                continue;
            }
            let Some(map) = self.mirror.map() else { return };
            match self.open(number, &map, is_ended) {
                Ok(true) => drop(self.served.insert(number)),
                // The map has changed meanwhile.
                Ok(false) => self.open_at = Instant::now() + OPEN_AGAIN / 10,
                Err(why) => {
                    self.open_at = Instant::now() + OPEN_AGAIN;
                    self.mirror.closed(number, why.clone());
                    let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                    if refused.as_ref() != Some(&why) {
                        tracing::error!("{why}");
                        *refused = Some(why);
                    }
                    continue;
                }
            }
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Opens a disk, and compares its label with the map. Returns false if the map has changed
    /// meanwhile.
    fn open(&self, number: DiskNumber, map: &Map, is_ended: &OnceLock<()>) -> Result<bool, String> {
        let entry = *map.disk(number).ok_or("the map has no such disk")?;
        let config = self.config.served_disks.iter().find(|disk| disk.id == entry.id);
        let config = config.ok_or_else(|| {
            format!(
                "{number}: cluster.toml has no [[disk]] with the id {:032x}; put its table back",
                entry.id
            )
        })?;
        let new = new_disk(&self.config, number, config);
        let mut problem = None;
        let opened = self.mirror.serve(number, |answer| {
            let disk = ServedDisk::open(&config.path, &new, answer).map_err(|why| Some(why.to_string()))?;
            let labels = disk.openings().map_err(|why| Some(why.to_string()))?;
            let is_older = entry.opening > 0 && !labels.contains(&entry.opening);
            let opening = map.version() + 1;
            if !is_older {
                disk.note_opening(opening, entry.opening).map_err(|why| Some(why.to_string()))?;
            }
            let change = MapChange::Opened { disk: number, opening, is_older };
            let path = config.path.display();
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
}

fn slots(config: &Config, disk: &ServedDiskConfig) -> u32 {
    u32::try_from(disk.slots(config.chunk_mib)).unwrap_or(u32::MAX)
}

fn new_disk(config: &Config, number: DiskNumber, disk: &ServedDiskConfig) -> NewDisk {
    NewDisk {
        group: config.shape().id,
        id: disk.id,
        number: number.0,
        block_size: config.block_size,
        chunk_mib: config.chunk_mib,
        slots: slots(config, disk),
    }
}

/// Describes a change for the log.
fn described(change: &MapChange) -> String {
    match change {
        MapChange::Stale(disks) => {
            let disks: Vec<_> = disks.iter().map(ToString::to_string).collect();
            format!("{} gets no more writes", disks.join(", "))
        }
        MapChange::Syncing(disk) => format!("{disk} has returned, and what it has missed is copied"),
        MapChange::Current(disk) => format!("{disk} has everything again"),
        MapChange::Stream { name, chunks, .. } => format!("{name} gets {chunks} chunks"),
        MapChange::Opened { disk, .. } => format!("{disk} was opened"),
    }
}
