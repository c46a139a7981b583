//! The commands about the disks of a mirrored group.
//!
//! | command | arguments | answer |
//! |---|---|---|
//! | `disks` | none | [`DisksShown`] |
//! | `disk.change` | [`ChangeArgs`] | nothing |
//! | `disk.add` | [`AddArgs`] | the number of the disk |
//! | `disk.grow` | [`GrowArgs`] | the MiB of its room for chunks |
//! | `disk.scrub` | none | [`Scrubbed`], also as progress |
//! | `disk.measure` | see `disk_speed.rs` | |

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use plexus_admin::control::Progress;
use plexus_base::hex;
use plexus_disks::mirror::{
    Mirror, Scrubbed,
    map::{AddedDisk, DiskEntry, DiskNumber, DiskState, Map, MapChange, MapRefusal},
};
use plexus_registry::protocol::{Change, Command, Key};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{DiskDescription, DisksHandle, description_key};
use crate::commands::{CommandContext, NodeCommand, args, aside, disk_speed, json_of};

/// A disk of the group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskShown {
    /// The number.
    pub disk: u8,
    /// The identifier: 32 hexadecimal digits.
    pub id: String,
    /// The node that serves it.
    pub node: String,
    /// The name of its failure group.
    pub failure_group: String,
    /// `current`, `syncing`, `stale`, `offline` or `leaving`.
    pub state: String,
    /// The time at which it was last current, in seconds since 1970; 0: it is.
    pub lost_at: u64,
    /// The room for chunks, in MiB.
    pub size_mib: u64,
    /// The part of it that chunks have.
    pub used_mib: u64,
    /// MiB that are still to be copied to it, if this node serves it and it has returned or gets
    /// chunks; or away from it, if it leaves.
    pub left_mib: Option<u64>,
    /// The KiB/s that this node has copied to it, or away from it, in the last seconds.
    pub copied_kib_s: u64,
    /// The seconds that this will take at this rate.
    pub left_s: Option<u64>,
    /// Reads that have failed since the start of the node that serves it.
    pub failed_reads: u64,
    /// Writes that have failed.
    pub failed_writes: u64,
    /// Syncs that have failed.
    pub failed_syncs: u64,
    /// Bad copies of blocks on it that this node has replaced since its start.
    pub repaired_blocks: u64,
    /// The file or block device on the host of its node.
    pub path: String,
}

/// The disks of the group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DisksShown {
    /// The version of the map.
    pub version: u64,
    /// The MiB of a chunk.
    pub chunk_mib: u64,
    /// True while chunks move so that all disks become equally full.
    pub is_balancing: bool,
    /// The MiB of the blocks.
    pub group_mib: u64,
    /// The number of copies of each chunk.
    pub copies: usize,
    /// The number of chunks that are moving.
    pub moving: usize,
    /// The disks.
    pub disks: Vec<DiskShown>,
}

/// A change that a user wants.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "change", content = "disk")]
pub enum ChangeArgs {
    /// The disk gets no more writes.
    Offline(u8),
    /// The disk returns.
    Online(u8),
    /// The chunks of the disk move to others, and it leaves the group.
    Drop(u8),
    /// The disk stays in the group.
    Keep(u8),
    /// Chunks move until all disks are equally full.
    Rebalance,
    /// The group of blocks grows to so many MiB.
    GrowGroup(u64),
}

/// A disk that a user gives to the group. The file exists, with the label of this identifier.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddArgs {
    /// The identifier on the label: 32 hexadecimal digits.
    pub id: String,
    /// The node that serves it.
    pub node: String,
    /// The absolute path on the host of the node.
    pub path: String,
    /// The name of its failure group.
    pub failure_group: String,
    /// The number of its places for chunks.
    pub slots: u32,
    /// The disk that it replaces.
    pub replaces: Option<u8>,
}

/// A disk that is to grow: one of the node that gets the command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrowArgs {
    /// The number of the disk.
    pub disk: u8,
    /// MiB that the group may use; `None`: all that the file or device has.
    pub size_mib: Option<u64>,
}

pub(super) const COMMANDS: &[NodeCommand] = &[
    NodeCommand::prompt("disks", disks),
    NodeCommand::waiting("disk.change", change),
    NodeCommand::waiting("disk.add", add),
    NodeCommand::waiting("disk.grow", grow),
    NodeCommand::waiting("disk.scrub", scrub),
    NodeCommand::waiting("disk.measure", disk_speed::measure),
];

fn disks(on: &CommandContext, _: Value, _: Progress<'_>) -> Result<Value, String> {
    json_of(&on.runtime().handles().disks.shown()?)
}

fn change(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let mirror = on.runtime().handles().disks.mirror()?;
    let map = mirror.map().ok_or(NO_MAP)?;
    let change = match args(asked)? {
        ChangeArgs::Offline(disk) => MapChange::Offline(DiskNumber(disk), true),
        ChangeArgs::Online(disk) => MapChange::Offline(DiskNumber(disk), false),
        ChangeArgs::Drop(disk) => MapChange::Leave(DiskNumber(disk), true),
        ChangeArgs::Keep(disk) => MapChange::Leave(DiskNumber(disk), false),
        ChangeArgs::Rebalance => MapChange::Balance(true),
        ChangeArgs::GrowGroup(mib) => {
            MapChange::GrowGroup(u32::try_from(mib / (map.chunk_bytes() >> 20)).unwrap_or(u32::MAX))
        }
    };
    make(mirror, &map, change, progress)
}

/// The timeout of a change of the registry.
const DESCRIBED_WITHIN: Duration = Duration::from_secs(10);

/// The interval at which the progress is told.
const SHOW_EVERY: Duration = Duration::from_millis(500);

/// The error of a command about the disks while the node knows no map.
const NO_MAP: &str = "the map of the disks is not known yet: the registry is closed";

/// Makes a change, and returns when it is made.
fn make(mirror: Arc<Mirror>, map: &Map, change: MapChange, progress: Progress<'_>) -> Result<Value, String> {
    // What is impossible is refused at once, also while the registry is closed.
    map.with(&change).map_err(|why| why.to_string())?;
    aside(progress, move || mirror.change(change).map_err(|why| why.to_string()))?;
    Ok(Value::Null)
}

fn grow(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let GrowArgs { disk, size_mib } = args(asked)?;
    let mirror = on.runtime().handles().disks.mirror()?;
    let (map, disk) = (mirror.map().ok_or(NO_MAP)?, DiskNumber(disk));
    let id = map.disk(disk).ok_or_else(|| MapRefusal::NoDisk(disk).to_string())?.id;
    let file = mirror.file_of(disk).ok_or_else(|| format!("{disk} is not open in this node"))?;
    let chunk_mib = map.chunk_bytes() >> 20;
    let slots = match size_mib {
        Some(mib) => u32::try_from(mib / chunk_mib).unwrap_or(u32::MAX),
        None => file.slots_of_file().map_err(|why| why.to_string())?,
    };
    let change = MapChange::Grow { disk, id, slots };
    map.with(&change).map_err(|why| why.to_string())?;
    // First the file, then the map: with the new map every node may put chunks there.
    aside(progress, move || file.grow(slots).map_err(|why| why.to_string()))?;
    make(mirror, &map, change, progress)?;
    json_of(&(u64::from(slots) * chunk_mib))
}

fn add(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let AddArgs { id, node, path, failure_group, slots, replaces } = args(asked)?;
    let handle = &on.runtime().handles().disks;
    let mirror = handle.mirror()?;
    let map = mirror.map().ok_or(NO_MAP)?;
    let id = hex::number(&id, 32).ok_or("the identifier of the disk is malformed")?;
    let (server, _) = on.config.node(&node).map_err(|why| why.to_string())?;
    if let Some((number, _)) = map.disks().find(|(_, disk)| handle.description(disk).is_none()) {
        return Err(format!(
            "{number} is not described: put its table [[disk]] back into cluster.toml first"
        ));
    }
    let number = handle.failure_group(&map, &failure_group);
    let name = failure_group.clone();
    let added = AddedDisk { id, server, failure_group: number, slots };
    let change = match replaces {
        Some(disk) => MapChange::Replace(DiskNumber(disk), added),
        None => MapChange::Add(added),
    };
    map.with(&change).map_err(|why| why.to_string())?;
    handle.describe(id, &DiskDescription { path, failure_group }, progress)?;
    make(mirror.clone(), &map, change, progress)?;
    let map = mirror.map().ok_or(NO_MAP)?;
    let found = map.disks().find(|(_, disk)| disk.id == id);
    let (number, entry) = found.ok_or("the disk has left the group again")?;
    // Another disk may have come at the same time and have got the same number for another name.
    let others =
        map.disks().filter(|(other, disk)| *other != number && disk.failure_group == entry.failure_group);
    let mut names = others.filter_map(|(_, disk)| handle.description(disk));
    if names.any(|other| other.failure_group != name) {
        make(mirror, &map, MapChange::Leave(number, true), progress)?;
        return Err("another disk has come at the same time: repeat the command".to_owned());
    }
    json_of(&number.0)
}

/// Returns what is lost when the group goes on without its newest disks, one text for each, and the
/// version of the map. If it `accepts` what was `shown` at a version, the group goes on.
pub(crate) fn force(
    on: &CommandContext,
    mirror: &Arc<Mirror>,
    (accepts, shown): (bool, Option<u64>),
    progress: Progress<'_>,
) -> Result<(Vec<String>, u64), String> {
    let map = mirror.map().ok_or(NO_MAP)?;
    let change = mirror.forced().ok_or_else(|| MapRefusal::NotStopped.to_string())?;
    if shown.is_some_and(|shown| shown != map.version()) {
        return Err("the disks have changed since: look again at what is lost".to_owned());
    }
    let next = map.with(&change).map_err(|why| why.to_string())?;
    let disks = map.disks().filter_map(|(number, disk)| {
        let name = on.config.name_of(disk.server);
        match (disk.state, next.state(number)) {
            (DiskState::Current, DiskState::Stale) => {
                Some(format!("{number} ({name}): its changes since the others went are lost"))
            }
            (DiskState::Stale | DiskState::Syncing, DiskState::Current) => {
                let mixed = match disk.is_mixed {
                    true => "; a copy to it had begun: it is a mixture of that and of newer contents",
                    false => "",
                };
                Some(format!("{number} ({name}): is used as it was {} ago{mixed}", super::ago(disk)))
            }
            _ => None,
        }
    });
    let lost = disks.collect();
    if accepts {
        make(mirror.clone(), &map, change, progress)?;
    }
    Ok((lost, map.version()))
}

fn scrub(on: &CommandContext, _: Value, mut progress: Progress<'_>) -> Result<Value, String> {
    on.runtime().handles().disks.mirror()?;
    let mut shown = Instant::now();
    let mut tell = |found: &Scrubbed| {
        if shown.elapsed() < SHOW_EVERY {
            return true;
        }
        shown = Instant::now();
        json_of(found).is_ok_and(&mut progress)
    };
    let found = on.runtime().disk_group().scrub(&mut tell).map_err(|why| why.to_string())?;
    json_of(&found.unwrap_or_default())
}

impl DisksHandle {
    fn mirror(&self) -> Result<Arc<Mirror>, String> {
        self.mirror.clone().ok_or_else(|| {
            "the disks of this cluster are not mirrored: every node opens all of them (redundancy = \"external\")".to_owned()
        })
    }

    /// Describes the disks as this node sees them.
    pub(super) fn shown(&self) -> Result<DisksShown, String> {
        let mirror = self.mirror()?;
        let map = mirror.map().ok_or(NO_MAP)?;
        let chunk_mib = map.chunk_bytes() >> 20;
        let disk = |(number, disk): (DiskNumber, &DiskEntry)| {
            let described = self.description(disk);
            let used_mib = u64::from(map.used_slots(number)) * chunk_mib;
            let health = mirror.health(number, disk.id);
            DiskShown {
                disk: number.0,
                id: format!("{:032x}", disk.id),
                node: self.name_of(disk.server),
                failure_group: described
                    .as_ref()
                    .map_or_else(String::new, |found| found.failure_group.clone()),
                state: state(disk).to_owned(),
                lost_at: if disk.state == DiskState::Current { 0 } else { disk.lost_at },
                size_mib: u64::from(disk.slots) * chunk_mib,
                used_mib,
                left_mib: mirror.left_to_copy(number).or(disk.is_leaving.then_some(used_mib)),
                copied_kib_s: health.copied_kib_s,
                left_s: None,
                failed_reads: health.failed_reads,
                failed_writes: health.failed_writes,
                failed_syncs: health.failed_syncs,
                repaired_blocks: health.repaired_blocks,
                path: described.map_or_else(String::new, |found| found.path),
            }
        };
        Ok(DisksShown {
            version: map.version(),
            chunk_mib,
            is_balancing: map.is_balancing(),
            group_mib: map.bytes() >> 20,
            copies: map.copies_of_chunk(),
            moving: map.moves().count(),
            disks: map.disks().map(disk).collect(),
        })
    }

    /// Returns the number of a failure group: that of a disk in it, or a new one.
    fn failure_group(&self, map: &Map, name: &str) -> u8 {
        let is_in =
            |disk: &&DiskEntry| self.description(disk).is_some_and(|found| found.failure_group == name);
        let mut disks = map.disks().map(|(_, disk)| disk);
        let found = disks.find(is_in).map(|disk| disk.failure_group);
        let is_free = |number: &u8| map.disks().all(|(_, disk)| disk.failure_group != *number);
        found.unwrap_or_else(|| (0..=u8::MAX).find(is_free).unwrap_or_default())
    }

    /// Puts the description of a disk into the registry, where its node finds the path.
    fn describe(&self, id: u128, disk: &DiskDescription, progress: Progress<'_>) -> Result<(), String> {
        let (registry, group) = (self.registry.clone(), self.group.ok_or(NO_MAP)?);
        let key = Key::new(&description_key(group, id)).map_err(|why| why.to_string())?;
        let value = serde_json::to_vec(disk).map_err(|why| why.to_string())?;
        aside(progress, move || {
            let registry = registry.get().ok_or(NO_MAP)?;
            let mut asked = registry.ask(Command::Change(Change::compare_and_set(key, 0, &value)));
            match asked.wait(DESCRIBED_WITHIN) {
                Some(done) => done.map(drop).map_err(|why| format!("the registry: {why}")),
                None => Err(NO_MAP.to_owned()),
            }
        })
    }
}

fn state(disk: &DiskEntry) -> &'static str {
    match disk.state {
        DiskState::Stale if disk.is_offline => "offline",
        DiskState::Current if disk.is_leaving => "leaving",
        DiskState::Current => "current",
        DiskState::Syncing => "syncing",
        DiskState::Stale => "stale",
    }
}
