//! The mirrored disks in their node: the map in the registry, the changes that the protocol and
//! users want, and the disks that this node serves.

mod commands;
mod keeper;

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError, mpsc},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

pub(crate) use commands::force;
pub use commands::{AddArgs, ChangeArgs, DiskShown, DisksShown, GrowArgs};
use plexus_admin::config::Config;
use plexus_base::NodeId;
pub use plexus_disks::mirror::Scrubbed;
use plexus_disks::{
    GroupId,
    mirror::{
        Mirror, MirrorService,
        map::{DiskEntry, DiskState},
    },
};
use plexus_membership::subsystem::WorkerPort;
use plexus_registry::{Apply, Registry, protocol::Contents};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::keeper::{MapKeeper, map_of};
use super::{Drain, Handle, Install, Installed, Making};
use crate::{
    commands::{NodeCommand, json_of},
    ledger,
    runtime::Parts,
};

/// The longest time for which a node that leaves waits for the requests of its disks.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);

impl Install for MirrorService {
    type Handle = DisksHandle;
    const COMMANDS: &'static [NodeCommand] = commands::COMMANDS;

    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let Parts { config, me, group, proposals, .. } = node.parts;
        let Some(mirror) = group.mirror() else {
            return Ok(Installed::new(Vec::new(), DisksHandle::default()));
        };
        let proposals = proposals.lock().unwrap_or_else(PoisonError::into_inner).take();
        let proposals = proposals.ok_or("the disks are made once")?;
        let handle = DisksHandle {
            mirror: Some(mirror.clone()),
            group: Some(group.shape().id),
            config: Some(config.clone()),
            registry: node.registry.clone(),
            ..DisksHandle::default()
        };
        let (refused, differs) = (handle.refused.clone(), handle.differs.clone());
        let keeper = MapKeeper::new(config, *me, mirror, &node.registry, proposals, refused, differs);
        *handle.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
        Ok(Installed::new(vec![Self::new(mirror.clone(), port)], handle))
    }
}

/// The mirrored disks of a node; nothing in a group that is not mirrored.
#[derive(Default)]
pub(crate) struct DisksHandle {
    mirror: Option<Arc<Mirror>>,
    group: Option<GroupId>,
    config: Option<Arc<Config>>,
    registry: Arc<OnceLock<Registry>>,
    /// Why a disk of this node is not served.
    refused: Arc<Mutex<Option<String>>>,
    /// Why the configuration is not that of the group.
    differs: Arc<OnceLock<String>>,
    keeper: Mutex<Option<MapKeeper>>,
    thread: Arc<Mutex<Option<thread::JoinHandle<()>>>>,
    is_ended: Arc<OnceLock<()>>,
}

impl DisksHandle {
    fn name_of(&self, node: NodeId) -> String {
        self.config.as_ref().map_or_else(|| node.to_string(), |config| config.name_of(node))
    }

    /// Returns what the registry or `cluster.toml` says of a disk.
    fn description(&self, entry: &DiskEntry) -> Option<DiskDescription> {
        let (config, contents) = (self.config.as_ref()?, self.registry.get()?.contents()?);
        description(config, &contents, entry)
    }
}

/// Ends the thread that opens disks, and closes the disks when they have executed what they took.
fn end(mirror: &Mirror, is_ended: &OnceLock<()>, thread: &Mutex<Option<thread::JoinHandle<()>>>) {
    let _ = is_ended.set(());
    mirror.end();
    let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
    // A panic was reported when it happened.
    thread.into_iter().for_each(|thread| drop(thread.join()));
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

    fn drain(&self) -> Option<Drain> {
        let (mirror, is_ended, thread) = (self.mirror.clone()?, self.is_ended.clone(), self.thread.clone());
        Some(Box::new(move || {
            let (mirror, is_ended, thread) = (mirror.clone(), is_ended.clone(), thread.clone());
            let (tell, told) = mpsc::channel();
            // A disk that hangs must not stop the end of the node.
            let drains = thread::Builder::new().name("disks-end".into()).spawn(move || {
                end(&mirror, &is_ended, &thread);
                // The receiver may have waited long enough.
                let _ = tell.send(mirror.is_drained());
            });
            let is_drained = drains.is_ok() && told.recv_timeout(DRAIN_WITHIN) == Ok(true);
            if !is_drained {
                tracing::warn!(
                    "the disks of this node still have requests after {} s: the others need a proof of its end",
                    DRAIN_WITHIN.as_secs()
                );
            }
            is_drained
        }))
    }

    fn end(&self) {
        self.mirror.iter().for_each(|mirror| end(mirror, &self.is_ended, &self.thread));
    }

    fn status(&self) -> Option<Value> {
        self.mirror.as_ref().and_then(|mirror| mirror.map())?;
        json_of(&self.shown().ok()?).ok()
    }

    fn trouble(&self) -> Vec<String> {
        let Some(mirror) = &self.mirror else { return Vec::new() };
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let map = mirror.map();
        let missing =
            map.iter().flat_map(|map| map.disks()).filter(|(_, disk)| disk.state != DiskState::Current);
        let missing = missing.map(|(number, disk)| {
            let (name, since) = (self.name_of(disk.server), since(disk));
            match disk.state {
                DiskState::Syncing => {
                    format!("{number} ({name}) is being copied{since}: its chunks have one copy less")
                }
                _ if disk.is_offline => format!(
                    "{number} ({name}) is offline{since}: its chunks have one copy less; `plexus disk online {}` has it \
                     return",
                    number.0
                ),
                _ => format!(
                    "{number} ({name}) has no new writes{since}: its chunks have one copy less; start {name} if it does not \
                     run, and what its disk has missed is copied, or give it a new one with `plexus disk replace {} PATH`",
                    number.0
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

/// The properties of a disk that are not in its entry of the map.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct DiskDescription {
    path: String,
    failure_group: String,
}

/// Returns the key of the description of a disk that was added: those that the cluster was made
/// with are in `cluster.toml`.
fn description_key(group: GroupId, id: u128) -> String {
    format!("{}disk/{id:032x}", ledger::prefix(group))
}

fn description(config: &Config, contents: &Contents, entry: &DiskEntry) -> Option<DiskDescription> {
    if let Some(disk) = config.served_disks.iter().find(|disk| disk.id == entry.id) {
        let (path, failure_group) = (disk.path.display().to_string(), config.failure_group(disk).to_owned());
        return Some(DiskDescription { path, failure_group });
    }
    let key = description_key(config.shape().id, entry.id);
    let (_, found) = contents.under(&key).next()?;
    serde_json::from_slice(&found.value).ok()
}

/// Returns the seconds since 1970.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Says for how long a disk has not been current.
fn ago(disk: &DiskEntry) -> String {
    match unix_seconds().saturating_sub(disk.lost_at) {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

fn since(disk: &DiskEntry) -> String {
    if disk.lost_at == 0 { String::new() } else { format!(" for {}", ago(disk)) }
}
