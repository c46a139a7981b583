//! The redundancy of the disk group, and the tables `[[disk]]` of `cluster.toml`: disks of ordinary
//! servers, which nodes serve to each other.
//!
//! A mirrored group is placed in chunks. Each chunk has its copies on disks in different failure
//! groups. A disk has room for a whole number of chunks, its slots.

use std::{collections::BTreeMap, io, path::PathBuf};

use plexus_base::hex;
use plexus_disks::GroupId;
use serde::{Deserialize, Deserializer, de::Error as _};

use super::Config;

/// The most disks that nodes serve.
pub const MAX_SERVED_DISKS: usize = 32;

/// The most MiB of a disk that a node serves: 256 TiB. More is a typing error, and sums of it must
/// not overflow.
pub const MAX_DISK_MIB: u64 = 1 << 28;

/// The possible lengths of a chunk in MiB; the first is the default.
pub const CHUNK_MIB: [u32; 3] = [64, 256, 1024];

/// The default of [`Config::rebuild_after_s`]: one hour, in which a host that was only restarted is
/// back.
pub const REBUILD_AFTER_S: u32 = 3600;

/// The default of [`Config::start_wait_s`]: hosts that were started together are there.
pub const START_WAIT_S: u32 = 30;

/// The most chunks of the group's blocks.
const MAX_CHUNKS: u64 = plexus_disks::mirror::map::MAX_CHUNKS as u64;

/// The free slots that a disk of a new cluster has for chunks that move.
const SPARE_SLOTS: u64 = 2;

/// The way in which the group survives the loss of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Redundancy {
    /// Every node opens all disks. The storage below them is redundant or not.
    #[default]
    External,
    /// Each chunk has two copies, on disks that nodes of different failure groups serve.
    Mirror2,
    /// Each chunk has three copies.
    Mirror3,
}

plexus_base::named! {
    impl Redundancy as "redundancy" { External "external", Mirror2 "mirror2", Mirror3 "mirror3" }
}

impl Redundancy {
    /// Returns the copies that the group has of each chunk.
    pub fn copies(self) -> usize {
        match self {
            Self::External => 1,
            Self::Mirror2 => 2,
            Self::Mirror3 => 3,
        }
    }
}

/// A disk that a node serves to the others.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedDiskConfig {
    /// The identifier, made with the disk.
    #[serde(deserialize_with = "id")]
    pub id: u128,
    /// The name of the node whose host has the disk, and which serves it; of a shared disk, the
    /// one that serves it first.
    #[serde(default)]
    pub node: String,
    /// The names of all nodes that reach a shared disk, `node` among them. If the node that serves
    /// it ends, another one goes on.
    #[serde(default)]
    pub shared: Vec<String>,
    /// The file or block device on that host, absolute or relative to its cluster directory.
    pub path: PathBuf,
    /// The MiB that the group may use.
    pub size_mib: u64,
    /// The name that disks which fail together have in common; `None`: the host.
    #[serde(default)]
    pub failure_group: Option<String>,
}

impl ServedDiskConfig {
    /// Returns the number of chunks for which the disk has room.
    pub fn slots(&self, chunk_mib: u32) -> u64 {
        self.size_mib / u64::from(chunk_mib)
    }
}

impl Config {
    /// Returns true if nodes serve the disks to each other; false if every node opens all of them.
    pub fn is_served(&self) -> bool {
        self.redundancy != Redundancy::External
    }

    /// Returns the failure group of a disk: its own setting, or the host of its node.
    pub fn failure_group<'a>(&'a self, disk: &'a ServedDiskConfig) -> &'a str {
        disk.failure_group.as_deref().or(self.host_of(&disk.node)).unwrap_or_default()
    }

    /// Returns the host of the node called `name`.
    pub fn host_of(&self, name: &str) -> Option<&str> {
        self.nodes.iter().find(|node| node.name == name).map(|node| node.host.as_str())
    }

    /// Returns the number of chunks of the group's blocks.
    pub fn block_chunks(&self) -> u64 {
        (self.blocks * self.block_size.bytes() as u64).div_ceil(u64::from(self.chunk_mib) << 20)
    }

    /// Returns the shortest chunk of which the group has not too many.
    pub fn fitting_chunk_mib(&self) -> u32 {
        let chunks = |chunk_mib: &u32| Self { chunk_mib: *chunk_mib, ..self.clone() }.block_chunks();
        let fitting = CHUNK_MIB.into_iter().find(|chunk_mib| chunks(chunk_mib) <= MAX_CHUNKS);
        fitting.unwrap_or(CHUNK_MIB[CHUNK_MIB.len() - 1])
    }

    /// Returns the number of chunks of a node's redo stream.
    pub fn redo_chunks(&self) -> u64 {
        self.redo_mib.div_ceil(self.chunk_mib).into()
    }

    /// Describes the disks of a new mirrored cluster, with new identifiers: one for each place, the
    /// name of a node and a path on its host. Their sizes suffice for the blocks and for twice the
    /// redo of the nodes, and each host gets the same room.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new_served_disks(&self, places: &[(String, PathBuf)]) -> io::Result<Vec<ServedDiskConfig>> {
        let mut disks_of_host = BTreeMap::<_, u64>::new();
        for (node, _) in places {
            *disks_of_host.entry(self.host_of(node)).or_default() += 1;
        }
        let (blocks, redo) = (self.block_chunks(), self.redo_chunks());
        let (hosts, nodes) = (disks_of_host.len().max(1) as u64, self.nodes.len() as u64);
        let copies = self.redundancy.copies() as u64;
        let all = copies * (blocks + 2 * nodes * redo);
        // One copy of a node's redo is on its own host.
        let slots_of_host = all.div_ceil(hosts).max((copies * blocks).div_ceil(hosts) + 2 * redo);
        let disk = |(node, path): &(String, PathBuf)| {
            let slots = slots_of_host.div_ceil(disks_of_host[&self.host_of(node)]) + SPARE_SLOTS;
            Ok(ServedDiskConfig {
                id: GroupId::random()?.0,
                node: node.clone(),
                shared: Vec::new(),
                path: self.dir.root().join(path),
                size_mib: slots * u64::from(self.chunk_mib),
                failure_group: None,
            })
        };
        places.iter().map(disk).collect()
    }

    /// Checks the disks that nodes serve, and that every chunk finds places for its copies.
    pub(super) fn check_served_disks(&self) -> Result<(), String> {
        let disks = &self.served_disks;
        if !self.is_served() {
            return match disks.first() {
                None => Ok(()),
                Some(_) => Err(
                    "[[disk]] is only for mirrored groups; set redundancy = \"mirror2\" in [group], or list the files in `disks`"
                        .into(),
                ),
            };
        }
        if !CHUNK_MIB.contains(&self.chunk_mib) {
            return Err(format!("[group] chunk_mib = {}: use 64, 256 or 1024", self.chunk_mib));
        }
        if self.redo_mib == 0 {
            return Err(format!(
                "redo_mib = 0: {} needs redo, which names the writes that a lost node has not completed; use at least 16",
                self.redundancy
            ));
        }
        if self.block_chunks() > MAX_CHUNKS {
            return Err(format!(
                "[group] would have {} chunks of {} MiB; at most {MAX_CHUNKS} are possible: choose a larger chunk_mib",
                self.block_chunks(),
                self.chunk_mib
            ));
        }
        if disks.len() > MAX_SERVED_DISKS {
            return Err(format!("{} tables [[disk]]; a group has at most {MAX_SERVED_DISKS}", disks.len()));
        }
        disks.iter().enumerate().try_for_each(|(index, disk)| self.check_served_disk(index, disk))?;
        let slots_of_group = self.slots_of_failure_groups();
        let copies = self.redundancy.copies();
        if slots_of_group.len() < copies {
            return Err(format!(
                "{} needs disks in at least {copies} failure groups, and [[disk]] has {}; add a disk of another host",
                self.redundancy,
                slots_of_group.len()
            ));
        }
        let chunks = self.block_chunks() + self.nodes.len() as u64 * self.redo_chunks();
        // A failure group holds at most one copy of each chunk.
        let usable: u64 = slots_of_group.values().map(|slots| chunks.min(*slots)).sum();
        match (copies as u64 * chunks).saturating_sub(usable) {
            0 => Ok(()),
            missing => Err(format!(
                "[[disk]]: {copies} copies of the blocks and redo streams ({chunks} chunks of {} MiB) need {} MiB more in different failure groups; enlarge the smaller disks or add one",
                self.chunk_mib,
                missing * u64::from(self.chunk_mib)
            )),
        }
    }

    /// Checks a disk by itself and against those before it.
    fn check_served_disk(&self, index: usize, disk: &ServedDiskConfig) -> Result<(), String> {
        let ServedDiskConfig { id, node, shared, path, size_mib, failure_group } = disk;
        let name = path.display();
        // The empty path, resolved.
        if path.as_path() == self.dir.root() {
            return Err(format!("[[disk]] {index} has no path; name a file"));
        }
        if !shared.is_empty() {
            self.check_shared_disk(disk)?;
        }
        if node.is_empty() {
            return Err(format!("the disk {name} has no node that serves it; name it in `node`"));
        }
        let Some(host) = self.host_of(node) else {
            return Err(format!("the disk {name} is served by {node}, which is no node; correct `node`"));
        };
        if *size_mib > MAX_DISK_MIB {
            return Err(format!("the disk {name} has size_mib = {size_mib}; use at most {MAX_DISK_MIB}"));
        }
        if disk.slots(self.chunk_mib) == 0 {
            return Err(format!(
                "the disk {name} has size_mib = {size_mib}; use at least one chunk, {} MiB",
                self.chunk_mib
            ));
        }
        if failure_group.as_ref().is_some_and(String::is_empty) {
            return Err(format!("the disk {name} has an empty failure_group; name it or remove the line"));
        }
        for earlier in &self.served_disks[..index] {
            if earlier.id == *id {
                return Err(format!("two disks have the id {id:032x}; list each once"));
            }
            let is_shared = !shared.is_empty() || !earlier.shared.is_empty();
            if earlier.path == *path && (is_shared || self.host_of(&earlier.node) == Some(host)) {
                return Err(format!("two disks on the host {host} are {name}; list each once"));
            }
        }
        Ok(())
    }

    /// Checks a disk that several nodes reach.
    fn check_shared_disk(&self, disk: &ServedDiskConfig) -> Result<(), String> {
        let ServedDiskConfig { node, shared, path, failure_group, .. } = disk;
        let fenced = self.fenced();
        let is_unfenced = |name: &&String| self.node(name).is_ok_and(|(node, _)| !fenced.contains(node));
        let problem = if let Some(unknown) = shared.iter().find(|name| self.host_of(name).is_none()) {
            format!("by {unknown}, which is no node; correct `shared`")
        } else if shared.len() == 1 {
            "by one node; name it in `node` alone".to_owned()
        } else if !shared.contains(node) {
            format!("by others than {node}; add it to `shared`")
        } else if failure_group.is_none() {
            "by several hosts and has no failure_group; name it".to_owned()
        } else if path.starts_with(self.dir.root()) {
            "and its path is not absolute; name the path that it has on all hosts".to_owned()
        } else if let Some(name) = shared.iter().find(is_unfenced) {
            format!(
                "by {name}, which has no fence command: nothing proves that it writes no more before another node does; set `fence`"
            )
        } else {
            return Ok(());
        };
        Err(format!("the disk {} is shared {problem}", path.display()))
    }

    /// Returns the slots of each failure group.
    fn slots_of_failure_groups(&self) -> BTreeMap<&str, u64> {
        let mut slots = BTreeMap::new();
        for disk in &self.served_disks {
            *slots.entry(self.failure_group(disk)).or_default() += disk.slots(self.chunk_mib);
        }
        slots
    }
}

/// Reads the redundancy of the group.
pub(super) fn redundancy<'de, D: Deserializer<'de>>(from: D) -> Result<Redundancy, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

fn id<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
    let text = String::deserialize(from)?;
    hex::number(&text, 32).ok_or_else(|| {
        D::Error::custom(format!("id = {text:?} is not 32 hexadecimal digits; restore the line of the disk"))
    })
}
