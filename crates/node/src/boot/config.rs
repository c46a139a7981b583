//! `cluster.toml`: read, checked, and written the first time.
//!
//! Every value that later code relies on is checked here, once, with a line that says what to change.
//! Whether the machine can do what is asked for (a port that is free, memory, disks) is not known here.

mod check;
mod interconnect;
mod membership;
mod nodes;
mod template;

use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use plexus_base::{NodeId, NodeSet, Waiting};
use plexus_disks::{BlockSize, GroupId, Shape};
use plexus_fabric::RailKind;
use plexus_membership::protocol::View;
use serde::{Deserialize, Deserializer, de::Error as _};

pub use self::{
    interconnect::{Encrypt, Interconnect},
    membership::{Membership, Voting},
    nodes::Nodes,
};
use crate::{
    body::BENCHMARK_WINDOW_BYTES,
    boot::{create, layout::ClusterDir},
};

/// The configuration keys of earlier versions, with the names that they have now.
const RENAMED_KEYS: &[(&str, &str)] = &[("patience_ms", "peer_timeout_ms")];

/// The format of `cluster.toml` that this program reads.
pub const FORMAT: u32 = 1;

/// Fewest frames that a worker's share of the cache must have: a few sets of the widest kind (16 ways), so that
/// blocks in flight never take a whole set.
pub const MIN_FRAMES_PER_WORKER: u64 = 64;

/// Most blocks in a group: what the cache can tell apart.
pub const MAX_BLOCKS: u64 = plexus_cache::MAX_BLOCKS;

/// Memory for windows of programs in MiB where the configuration does not say it.
pub const PROGRAM_WINDOW_MIB: u32 = 16;

/// Most of it: every page of it is taken when a node starts.
pub const MAX_PROGRAM_WINDOW_MIB: u32 = 2048;

/// Names a cluster; random, made by `init`.
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
    /// The cluster's identity; also that of its disk group.
    pub id: ClusterId,
    /// Workers of each node.
    pub workers: u8,
    /// How threads wait.
    pub waiting: Waiting,
    /// How long blocks are.
    pub block_size: BlockSize,
    /// Memory of each node's cache in MiB.
    pub cache_mib: u32,
    /// Memory of each node for windows of programs in MiB.
    pub program_window_mib: u32,
    /// Seconds between checkpoints.
    pub checkpoint_seconds: u32,
    /// How the nodes are joined.
    pub interconnect: Interconnect,
    /// How fast a lost node is noticed.
    pub membership: Membership,
    /// Where votes are kept; paths are resolved against the directory.
    pub voting: Vec<Voting>,
    /// Blocks of the disk group.
    pub blocks: u64,
    /// The disks, in their order, as absolute or cluster-relative paths resolved against the directory.
    pub disks: Vec<PathBuf>,
    /// The nodes; a node's id is its place here.
    pub nodes: Nodes,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Its name.
    pub name: String,
    /// The identity of the machine that it runs on.
    pub host: String,
    /// Where it listens for its peers.
    pub address: SocketAddr,
    /// Where else: each is a further path, to the address of the same place of each peer.
    #[serde(default)]
    pub addresses: Vec<SocketAddr>,
    /// What it can be reached over, the preferred first.
    #[serde(deserialize_with = "rails")]
    pub rails: Vec<RailKind>,
    /// The cores that it is pinned to; empty: any.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// Where it answers to who scrapes its counts; nowhere if it is not given.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// A command that proves that this node does nothing any more (switches its host off, say): run by others when it was put out and
    /// nothing else proves it. It ends with 0 when that is certain.
    #[serde(default)]
    pub fence: Vec<String>,
}

impl NodeConfig {
    /// Describes a node of this machine that listens at `address`, with nothing that has a default.
    #[must_use]
    pub fn new(name: &str, address: SocketAddr, rails: Vec<RailKind>) -> Self {
        Self {
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

    /// Every address where it listens, in their order.
    pub fn all_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        [self.address].into_iter().chain(self.addresses.iter().copied())
    }
}

/// What is in the file, before it is checked.
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
    #[serde(default)]
    interconnect: Interconnect,
    #[serde(default)]
    membership: Membership,
    #[serde(default)]
    voting: Vec<Voting>,
    group: GroupText,
    node: Vec<NodeConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupText {
    size_mib: Option<u64>,
    blocks: Option<u64>,
    disks: Vec<PathBuf>,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// There is no such file.
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
        /// The system's reason.
        source: io::Error,
    },
    /// The text is not what a configuration looks like.
    #[error("{path}:{line}: {what}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// A value cannot be used.
    #[error("{path}: {what}")]
    Value {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
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
    /// Describes a new, small cluster of these nodes in `dir`: an identity and voting files of its own, one disk.
    ///
    /// # Errors
    /// The system gives no random numbers.
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
            interconnect: Interconnect::default(),
            membership: Membership::default(),
            voting: create::voting_files(&dir, &nodes)?,
            blocks: 64,
            disks: vec![dir.disks().join("0")],
            nodes: nodes.into_iter().collect(),
            dir,
        })
    }

    /// Reads and checks the configuration in `dir`.
    ///
    /// # Errors
    /// One line that names the file, the line where there is one, and what to change.
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
        let parsed: Text = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = 1 + text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count();
            // One line for the user, whatever the parser thinks of.
            let mut what = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
            if let Some((_, new)) = RENAMED_KEYS.iter().find(|(old, _)| what.contains(&format!("`{old}`"))) {
                what = format!("{what}; this key is now `{new}`");
            }
            ConfigError::Syntax { path: path.clone(), line, what }
        })?;
        check::check(dir, parsed).map_err(|what| ConfigError::Value { path, what })
    }

    /// The text of a new `cluster.toml`, with comments.
    #[must_use]
    pub fn to_text(&self) -> String {
        template::text(self)
    }

    /// The table of one more voting file, as text for `cluster.toml`.
    #[must_use]
    pub fn voting_table(&self, file: &Voting) -> String {
        template::voting(self.dir.root(), file)
    }

    /// The disk group that the configuration describes.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape { id: GroupId(self.id.0), block_size: self.block_size, blocks: self.blocks }
    }

    /// Memory that a node shares with its peers and programs: the cache, what programs have windows in, and the window of
    /// benchmarks.
    #[must_use]
    pub fn shared_bytes(&self) -> u64 {
        let configured = u64::from(self.cache_mib) + u64::from(self.program_window_mib);
        (configured << 20) + BENCHMARK_WINDOW_BYTES as u64
    }

    /// The view that the cluster begins with: its nodes and voting files, and nobody is a member.
    #[must_use]
    pub fn first_view(&self) -> View {
        let host = |file: &Voting| {
            let place = self.nodes.iter().position(|node| Some(&node.name) == file.node.as_ref())?;
            Some(NodeId(place as u8))
        };
        View::first(NodeSet::first(self.node_count()), self.voting.iter().map(|file| (file.id, host(file))))
    }

    /// The number of nodes.
    #[must_use]
    pub fn node_count(&self) -> u8 {
        self.nodes.len() as u8
    }

    /// What a node is called; of one that is not listed its number.
    #[must_use]
    pub fn name_of(&self, node: NodeId) -> String {
        self.nodes.get(node.index()).map_or_else(|| node.to_string(), |node| node.name.clone())
    }

    /// The node called `name`.
    ///
    /// # Errors
    /// There is none; the line names those that there are.
    pub fn node(&self, name: &str) -> Result<(NodeId, &NodeConfig), ConfigError> {
        let found = self.nodes.iter().position(|node| node.name == name);
        found.map(|index| (NodeId(index as u8), &self.nodes[index])).ok_or_else(|| {
            let names: Vec<_> = self.nodes.iter().map(|node| node.name.as_str()).collect();
            let what = format!("there is no node `{name}`; the nodes are {}", names.join(", "));
            ConfigError::Value { path: self.dir.config(), what }
        })
    }

    /// Takes in the nodes of a list that are behind those that are here.
    ///
    /// # Errors
    /// One line that names the first that is here, and missing there or another.
    pub fn learn(&self, nodes: &Nodes) -> Result<(), String> {
        self.nodes.learn(nodes).map_err(|name| {
            let path = self.dir.config();
            format!("{}: {name} is missing or not as it was; add nodes at the end only", path.display())
        })
    }

    /// Whether what two different nodes say to each other over a network is encrypted.
    #[must_use]
    pub fn encrypts(&self, one: NodeId, other: NodeId) -> bool {
        match self.interconnect.encrypt {
            Encrypt::Always => true,
            Encrypt::Never => false,
            Encrypt::Auto => self.nodes[one.index()].host != self.nodes[other.index()].host,
        }
    }

    /// The rails between two different nodes, the one to prefer first: those that both list, in the order of
    /// the one with the lower id; shared memory only where both are on one host.
    #[must_use]
    pub fn rails(&self, one: NodeId, other: NodeId) -> Vec<RailKind> {
        let (low, high) = (&self.nodes[one.min(other).index()], &self.nodes[one.max(other).index()]);
        let usable =
            |kind: &RailKind| high.rails.contains(kind) && (*kind != RailKind::Shm || low.host == high.host);
        low.rails.iter().copied().filter(usable).collect()
    }
}

/// Reads any bytes as a `cluster.toml`, as a fuzz target would; whether it is one. What is taken is written and read again, and
/// what is refused is refused in one line.
#[doc(hidden)]
#[must_use]
pub fn config_any(bytes: &[u8]) -> bool {
    let dir = ClusterDir::new("/c1");
    match Config::parse(&dir, &String::from_utf8_lossy(bytes)) {
        Ok(config) => {
            let again = Config::parse(&dir, &config.to_text());
            assert_eq!(again.expect("what is written is taken"), config);
            true
        }
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            false
        }
    }
}

/// The identity of this machine, to be compared with `host` of a node: `PLEXUS_HOST`, or the host name.
#[must_use]
pub fn this_host() -> String {
    std::env::var("PLEXUS_HOST")
        .unwrap_or_else(|_| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

fn rails<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<RailKind>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    names.iter().map(|name| name.parse().map_err(D::Error::custom)).collect()
}

fn program_window_mib() -> u32 {
    PROGRAM_WINDOW_MIB
}

fn waiting<'de, D: Deserializer<'de>>(from: D) -> Result<Waiting, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

#[cfg(test)]
mod tests;
