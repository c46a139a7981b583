//! The configuration `cluster.toml`: read, checked, and written for a new cluster.
//!
//! All checks of values are here, so that later code can rely on them. Each error says what to
//! change. The abilities of the machine (free ports, memory, disks) are checked elsewhere.

mod check;
mod disks;
mod interconnect;
mod membership;
mod nodes;
mod template;

use std::{
    collections::BTreeMap,
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use plexus_base::{MAX_NODES, NodeId, NodeSet, Waiting, crc32c};
use plexus_disks::{BlockSize, DiskReads, GroupId, Shape};
use plexus_fabric::RailKind;
use plexus_interconnect::mesh::check_built;
use plexus_membership::protocol::View;
use plexus_redo::stream::protocol::{Geometry, PAGE};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, IntoDeserializer as _},
};

pub use self::{
    check::check_name,
    disks::{
        CHUNK_MIB, MAX_DISK_MIB, MAX_SERVED_DISKS, REBUILD_AFTER_S, Redundancy, START_WAIT_S,
        ServedDiskConfig,
    },
    interconnect::{Encrypt, Interconnect},
    membership::{Membership, Voting},
    nodes::Nodes,
};
use crate::{create, layout::ClusterDir};

/// The configuration keys of earlier versions, with the names that they have now.
const RENAMED_KEYS: &[(&str, &str)] = &[("patience_ms", "peer_timeout_ms")];

/// The format of `cluster.toml` that this program reads.
pub const FORMAT: u32 = 1;

/// The fewest frames of a worker's share of the cache: a few sets of the widest kind (16 ways), so
/// that blocks in flight never take a whole set.
pub const MIN_FRAMES_PER_WORKER: u64 = 64;

/// The most blocks in a group: the range of the cache's block numbers.
pub const MAX_BLOCKS: u64 = plexus_cache::MAX_BLOCKS;

/// The default of the memory for windows of programs, in MiB.
pub const PROGRAM_WINDOW_MIB: u32 = 16;

/// The most memory for windows in MiB; a starting node takes every page of it.
pub const MAX_PROGRAM_WINDOW_MIB: u32 = 2048;

/// The length of the benchmark window in bytes: the longest message that `plexus perf` measures,
/// the longest answer, and the words that announce a put.
pub const BENCHMARK_WINDOW_BYTES: usize = (8 << 20) + (64 << 10);

/// The limits of the length of a redo stream in MiB.
pub const MIN_REDO_MIB: u32 = 16;
/// See [`MIN_REDO_MIB`].
pub const MAX_REDO_MIB: u32 = 64 << 10;

/// The bytes of redo that a recovery reads and replays in a second, cautiously: 1 GiB took 3 to 4
/// seconds (docs/performance.md).
const RECOVERY_BYTES_PER_SECOND: u64 = 200 << 20;

/// The default of the bytes of redo that travel with a block.
pub const CARRY_BYTES: u32 = 4096;

/// The most bytes of redo that may travel with a block: they are behind the message in one frame.
pub const MAX_CARRY_BYTES: u32 = 8192;

/// The room for the header of a redo stream in its chunks.
const REDO_HEADER: u64 = 1 << 20;

/// The least number of segments of a redo stream: one is in use while others are freed.
const REDO_SEGMENTS: u64 = 4;

/// The identifier of a cluster; random, made by `init`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The cluster's directory.
    pub dir: ClusterDir,
    /// The cluster's name.
    pub name: String,
    /// The cluster's identifier; also that of its disk group.
    pub id: ClusterId,
    /// The number of workers of each node.
    pub workers: u8,
    /// The way in which threads wait.
    pub waiting: Waiting,
    /// The length of blocks.
    pub block_size: BlockSize,
    /// The memory of each node's cache in MiB.
    pub cache_mib: u32,
    /// The memory of each node for windows of programs in MiB.
    pub program_window_mib: u32,
    /// The seconds between checkpoints.
    pub checkpoint_seconds: u32,
    /// The time in which a recovery should have read the redo of all nodes.
    pub recovery_target_seconds: u32,
    /// The length of each redo stream in MiB; 0: changes are not logged.
    pub redo_mib: u32,
    /// The way in which blocks are read from the disks.
    pub disk_reads: DiskReads,
    /// The most bytes of redo that travel with a block because they are not durable; 0: a changed
    /// block waits until its redo is durable.
    pub carry_bytes: u32,
    /// The settings of the interconnect.
    pub interconnect: Interconnect,
    /// The settings of the membership.
    pub membership: Membership,
    /// The voting files; paths are resolved against the directory.
    pub voting: Vec<Voting>,
    /// The number of blocks of the disk group.
    pub blocks: u64,
    /// The way in which the group survives the loss of a disk.
    pub redundancy: Redundancy,
    /// The length of a chunk in MiB, the unit in which a mirrored group is placed.
    pub chunk_mib: u32,
    /// The seconds after which the chunks of a disk that is away get other copies; 0: never.
    pub rebuild_after_s: u32,
    /// The seconds from the start of a node in which a cold start waits for the disks of absent
    /// nodes.
    pub start_wait_s: u32,
    /// The disks that every node opens, in their order, as absolute paths or paths resolved against
    /// the directory; empty for a mirrored group.
    pub disks: Vec<PathBuf>,
    /// The disks that nodes serve; the position is the number. Paths are resolved against the
    /// directory. Empty unless the group is mirrored.
    pub served_disks: Vec<ServedDiskConfig>,
    /// The nodes, by their numbers.
    pub nodes: Nodes,
    /// The tables of subsystems, as text, by their names.
    pub sections: BTreeMap<String, String>,
}

/// The tables of the configuration that belong to no subsystem.
const COMMON_TABLES: [&str; 6] = ["interconnect", "membership", "voting", "group", "disk", "node"];

/// A node in the configuration.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// The number of the node, from 0. No other node of the cluster ever has it, also after the
    /// removal of this one.
    #[serde(default = "no_number", deserialize_with = "number")]
    pub number: NodeId,
    /// The name of the node.
    pub name: String,
    /// The identity of the machine on which it runs.
    pub host: String,
    /// The address at which it listens for its peers.
    pub address: SocketAddr,
    /// The further addresses; each is one more path, to the address in the same position of each
    /// peer.
    #[serde(default)]
    pub addresses: Vec<SocketAddr>,
    /// The kinds of rails that it accepts, in the order of preference.
    #[serde(deserialize_with = "rails")]
    pub rails: Vec<RailKind>,
    /// The cores that it is pinned to; empty allows all.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// The address at which it serves metrics; `None` for no metrics.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// The fence command, which proves that this node acts no more (for example by switching its
    /// host off). Other nodes run it after an eviction without other proof. It ends with 0 on
    /// success.
    #[serde(default)]
    pub fence: Vec<String>,
}

impl NodeConfig {
    /// Describes a node of this machine that listens at `address`, with defaults for the rest.
    pub fn new(number: u8, name: &str, address: SocketAddr, rails: Vec<RailKind>) -> Self {
        Self {
            number: NodeId(number),
            name: name.into(),
            host: this_host(),
            address,
            addresses: Vec::new(),
            rails,
            cores: Vec::new(),
            metrics: None,
            fence: Vec::new(),
        }
    }

    /// Returns every address at which it listens, in their order.
    pub fn all_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        [self.address].into_iter().chain(self.addresses.iter().copied())
    }
}

/// The content of the file before it is checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    format: u32,
    name: String,
    id: String,
    workers: u8,
    #[serde(deserialize_with = "waiting")]
    waiting: Waiting,
    block_size_kib: u32,
    cache_mib: u32,
    #[serde(default = "program_window_mib")]
    program_window_mib: u32,
    checkpoint_seconds: u32,
    #[serde(default = "recovery_target_seconds")]
    recovery_target_seconds: u32,
    #[serde(default)]
    redo_mib: u32,
    #[serde(default, deserialize_with = "disk_reads")]
    disk_reads: DiskReads,
    #[serde(default = "carry_bytes")]
    carry_bytes: u32,
    #[serde(default)]
    interconnect: Interconnect,
    #[serde(default)]
    membership: Membership,
    #[serde(default)]
    voting: Vec<Voting>,
    group: GroupText,
    #[serde(default)]
    disk: Vec<ServedDiskConfig>,
    node: Vec<NodeConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupText {
    size_mib: Option<u64>,
    blocks: Option<u64>,
    #[serde(default, deserialize_with = "disks::redundancy")]
    redundancy: Redundancy,
    chunk_mib: Option<u32>,
    rebuild_after_s: Option<u32>,
    start_wait_s: Option<u32>,
    #[serde(default)]
    disks: Vec<PathBuf>,
}

/// The reason why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file does not exist.
    #[error("{path}: not found: {dir} is not a cluster; make one with `plexus init {dir}`, or name another directory", dir = dir_of(.path))]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The text is not a configuration.
    #[error("{path}:{line}: {what}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The error.
        what: String,
    },
    /// A value cannot be used.
    #[error("{path}: {what}")]
    Value {
        /// The file.
        path: PathBuf,
        /// The error, and the correction.
        what: String,
    },
}

fn dir_of(config: &Path) -> String {
    match config.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.display().to_string(),
        _ => ".".into(),
    }
}

impl Config {
    /// Describes a new, small cluster of these nodes in `dir`, with new identifiers and one disk.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(dir: ClusterDir, name: &str, nodes: Vec<NodeConfig>) -> io::Result<Self> {
        Ok(Self {
            name: name.into(),
            id: create::new_id()?,
            workers: 1,
            waiting: Waiting::default(),
            block_size: BlockSize::from_kib(4).expect("the smallest size there is"),
            cache_mib: 1,
            program_window_mib: PROGRAM_WINDOW_MIB,
            checkpoint_seconds: 5,
            recovery_target_seconds: recovery_target_seconds(),
            redo_mib: 0,
            disk_reads: DiskReads::default(),
            carry_bytes: CARRY_BYTES,
            interconnect: Interconnect::default(),
            membership: Membership::default(),
            voting: create::voting_files(&dir, &nodes)?,
            blocks: 64,
            redundancy: Redundancy::External,
            chunk_mib: CHUNK_MIB[0],
            rebuild_after_s: REBUILD_AFTER_S,
            start_wait_s: START_WAIT_S,
            disks: vec![dir.disks().join("0")],
            served_disks: Vec::new(),
            nodes: nodes.into_iter().collect(),
            sections: BTreeMap::new(),
            dir,
        })
    }

    /// Reads and checks the configuration in `dir`.
    ///
    /// # Errors
    /// The file cannot be used; the text names the file, the line if known, and the correction.
    pub fn load(dir: &ClusterDir) -> Result<Self, ConfigError> {
        let path = dir.config();
        let text = std::fs::read_to_string(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                ConfigError::Missing { path: path.clone() }
            }
            _ => ConfigError::Read { path: path.clone(), source },
        })?;
        Self::parse(dir, &text)
    }

    /// Checks the text of a configuration for the cluster in `dir`.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(dir: &ClusterDir, text: &str) -> Result<Self, ConfigError> {
        let path = dir.config();
        let mut sections = BTreeMap::new();
        let parsed = toml::de::DeTable::parse(text).and_then(|mut table| {
            sections = take_sections(table.get_mut())?;
            Text::deserialize(toml::Deserializer::from(table))
        });
        let parsed = parsed.map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = 1 + text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count();
            // The parser may give several lines; the user gets one.
            let mut what = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
            if let Some((_, new)) = RENAMED_KEYS.iter().find(|(old, _)| what.contains(&format!("`{old}`"))) {
                what = format!("{what}; this key is now `{new}`");
            }
            ConfigError::Syntax { path: path.clone(), line, what }
        })?;
        let config = check::check(dir, parsed).map_err(|what| ConfigError::Value { path, what })?;
        Ok(Self { sections, ..config })
    }

    /// Returns the settings of a subsystem from the table `name`; the defaults if there is none.
    ///
    /// # Errors
    /// The table has other keys or values. The text is one line with the file and the table.
    pub fn section<T: DeserializeOwned + Default>(&self, name: &str) -> Result<T, String> {
        let Some(text) = self.sections.get(name) else { return Ok(T::default()) };
        toml::from_str(text).map_err(|error| {
            let what = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
            format!("{}: [{name}]: {what}", self.dir.config().display())
        })
    }

    /// Returns the text of a new `cluster.toml`, with comments.
    pub fn to_text(&self) -> String {
        template::text(self)
    }

    /// Returns the table of one more voting file, as text for `cluster.toml`.
    pub fn voting_table(&self, file: &Voting) -> String {
        template::voting(self.dir.root(), file)
    }

    /// Returns the shape of the disk group.
    pub fn shape(&self) -> Shape {
        Shape { id: GroupId(self.id.0), block_size: self.block_size, blocks: self.blocks }
    }

    /// Returns the directory of the redo streams: beside the first disk, which every node opens.
    /// `None` for a mirrored group.
    pub fn redo(&self) -> Option<PathBuf> {
        self.disks.first().map(|disk| disk.with_file_name("redo"))
    }

    /// Returns the shape of a redo stream; `None` if changes are not logged.
    pub fn redo_geometry(&self) -> Option<Geometry> {
        // With its header the stream has a whole number of chunks.
        let header = if self.is_served() { REDO_HEADER } else { 0 };
        let bytes = (u64::from(self.redo_mib) << 20).saturating_sub(header);
        let segments = bytes.div_ceil(Geometry::SEGMENT_BYTES).max(REDO_SEGMENTS);
        Geometry::new(bytes / segments / PAGE * PAGE, segments as u32).filter(|_| bytes > 0)
    }

    /// Returns the bytes of redo of this node that a recovery can read in the target time, beside
    /// those of all others.
    pub fn recovery_target_bytes(&self) -> u64 {
        let all = u64::from(self.recovery_target_seconds) * RECOVERY_BYTES_PER_SECOND;
        all / self.nodes.len().max(1) as u64
    }

    /// Returns the bytes that a node shares with its peers and programs: the cache, the windows of
    /// programs, and the window of benchmarks.
    pub fn shared_bytes(&self) -> u64 {
        let configured = u64::from(self.cache_mib) + u64::from(self.program_window_mib);
        (configured << 20) + BENCHMARK_WINDOW_BYTES as u64
    }

    /// Returns the initial view of the cluster: its nodes and voting files, without members.
    pub fn first_view(&self) -> View {
        let host = |file: &Voting| {
            self.nodes.iter().find(|node| Some(&node.name) == file.node.as_ref()).map(|node| node.number)
        };
        View::first(self.numbers(), self.voting.iter().map(|file| (file.id, host(file))))
    }

    /// Returns the numbers of all nodes.
    pub fn numbers(&self) -> NodeSet {
        self.nodes.iter().map(|node| node.number).collect()
    }

    /// Returns the number that follows the highest one of a node.
    pub fn number_limit(&self) -> u8 {
        self.nodes.iter().last().map_or(0, |node| node.number.0 + 1)
    }

    /// Returns the name of a node, or its number if it is not listed.
    pub fn name_of(&self, node: NodeId) -> String {
        self.nodes.get(node.index()).map_or_else(|| node.to_string(), |node| node.name.clone())
    }

    /// Returns the node called `name` with its number.
    ///
    /// # Errors
    /// There is no such node; the text names the existing ones.
    pub fn node(&self, name: &str) -> Result<(NodeId, &NodeConfig), ConfigError> {
        let found = self.nodes.iter().find(|node| node.name == name);
        found.map(|node| (node.number, node)).ok_or_else(|| {
            let names: Vec<_> = self.nodes.iter().map(|node| node.name.as_str()).collect();
            let what = format!("there is no node `{name}`; the nodes are {}", names.join(", "));
            ConfigError::Value { path: self.dir.config(), what }
        })
    }

    /// Returns the nodes with a fence command: no view is open without them before their end is
    /// proved.
    pub fn fenced(&self) -> NodeSet {
        self.nodes.iter().filter(|node| !node.fence.is_empty()).map(|node| node.number).collect()
    }

    /// Adds the nodes of a list that are not known yet.
    ///
    /// # Errors
    /// A known node is different in that list; the text says what to change.
    pub fn learn(&self, nodes: &Nodes) -> Result<(), String> {
        self.nodes.learn(nodes).map_err(|why| format!("{}: {why}", self.dir.config().display()))
    }

    /// Returns a value that changes with what two nodes of one cluster must agree on before they
    /// serve each other: the settings that are the same for all, and these two nodes. The lists of
    /// the two may differ in other nodes: ones that were added or removed since one of the two has
    /// started.
    pub fn fingerprint(&self, one: NodeId, other: NodeId) -> u64 {
        let addresses = |node: &NodeConfig| node.all_addresses().collect::<Vec<_>>();
        let nodes = self.nodes.iter().filter(|node| [one, other].contains(&node.number));
        let nodes: Vec<_> =
            nodes.map(|node| (node.number, &node.name, &node.host, addresses(node), &node.rails)).collect();
        let served = self.served_disks.iter();
        let served: Vec<_> = served
            .map(|disk| (disk.id, &disk.node, &disk.shared, disk.size_mib, self.failure_group(disk)))
            .collect();
        let settings = format!(
            "{} {} {:?} {} {} {:?} {nodes:?} {} {} {served:?}",
            self.id,
            self.workers,
            self.block_size,
            self.blocks,
            self.redo_mib > 0,
            self.interconnect,
            self.redundancy,
            self.chunk_mib
        );
        u64::from(crc32c(settings.as_bytes()))
    }

    /// Returns true if network traffic between two different nodes is encrypted.
    pub fn encrypts(&self, one: NodeId, other: NodeId) -> bool {
        match self.interconnect.encrypt {
            Encrypt::Always => true,
            Encrypt::Never => false,
            Encrypt::Auto => self.nodes[one.index()].host != self.nodes[other.index()].host,
        }
    }

    /// Returns the rails between two different nodes in the order of preference: those that both
    /// list, in the order of the node with the lower number; shared memory only if both are on one
    /// host.
    pub fn rails(&self, one: NodeId, other: NodeId) -> Vec<RailKind> {
        let (low, high) = (&self.nodes[one.min(other).index()], &self.nodes[one.max(other).index()]);
        let usable =
            |kind: &RailKind| high.rails.contains(kind) && (*kind != RailKind::Shm || low.host == high.host);
        low.rails.iter().copied().filter(usable).collect()
    }
}

/// Takes the tables of subsystems out of a configuration.
fn take_sections(table: &mut toml::de::DeTable<'_>) -> Result<BTreeMap<String, String>, toml::de::Error> {
    let is_section = |name: &str, value: &toml::de::DeValue<'_>| {
        !COMMON_TABLES.contains(&name) && matches!(value, toml::de::DeValue::Table(_))
    };
    let names: Vec<_> = (table.iter())
        .filter(|(name, value)| is_section(name.get_ref(), value.get_ref()))
        .map(|(name, _)| name.clone())
        .collect();
    let taken = names.into_iter().filter_map(|name| Some((table.remove(&name)?, name)));
    taken
        .map(|(value, name)| {
            let section = toml::Table::deserialize(value.into_deserializer())?;
            Ok((name.into_inner().into_owned(), section.to_string()))
        })
        .collect()
}

/// Decodes any bytes as a `cluster.toml`, for fuzzing; returns true if they are one. Asserts that
/// an accepted file survives writing and reading, and that a refusal has one line.
#[doc(hidden)]
pub fn config_any(bytes: &[u8]) -> bool {
    let dir = ClusterDir::new("/c1");
    match Config::parse(&dir, &String::from_utf8_lossy(bytes)) {
        Ok(config) => {
            let again = Config::parse(&dir, &config.to_text());
            assert_eq!(again.expect("a written configuration is valid"), config);
            true
        }
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            false
        }
    }
}

/// Returns the identity of this machine, as in a node's `host`: `PLEXUS_HOST`, or the host name.
pub fn this_host() -> String {
    std::env::var("PLEXUS_HOST")
        .unwrap_or_else(|_| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

fn rails<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<RailKind>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    names.iter().map(|name| name.parse().and_then(check_built).map_err(D::Error::custom)).collect()
}

/// Stands for a missing number until the check refuses it.
fn no_number() -> NodeId {
    NodeId(u8::MAX)
}

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<NodeId, D::Error> {
    match u8::deserialize(from)? {
        number if usize::from(number) < MAX_NODES => Ok(NodeId(number)),
        number => Err(D::Error::custom(format!("number = {number}: use 0 to {}", MAX_NODES - 1))),
    }
}

fn program_window_mib() -> u32 {
    PROGRAM_WINDOW_MIB
}

fn disk_reads<'de, D: Deserializer<'de>>(from: D) -> Result<DiskReads, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

fn recovery_target_seconds() -> u32 {
    10
}

fn carry_bytes() -> u32 {
    CARRY_BYTES
}

fn waiting<'de, D: Deserializer<'de>>(from: D) -> Result<Waiting, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

#[cfg(test)]
mod tests;
