//! The status of a node, as its control socket answers it.

use std::{collections::BTreeMap, fmt};

use plexus_redo::{RecoveryStatus, RoomWaits};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::memory::MemoryUse;

/// A stage in the lifecycle of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The node checks its configuration and disks.
    Starting,
    /// The node connects to its peers.
    Joining,
    /// The node serves.
    Running,
    /// The node makes no more changes, because a command stopped them.
    Quiesced,
    /// The node has handed back: everything is on disk, and it holds nothing.
    HandedBack,
    /// The node has stopped and is no member.
    Stopped,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Starting => "starting",
            Self::Joining => "joining",
            Self::Running => "running",
            Self::Quiesced => "quiesced",
            Self::HandedBack => "handed back",
            Self::Stopped => "stopped",
        })
    }
}

/// The answer of `status`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The name of the node.
    pub name: String,
    /// The process of the node.
    pub pid: u32,
    /// The stage of the node.
    pub state: Stage,
    /// The reason why it has stopped, if it has.
    pub why: Option<String>,
    /// The seconds since its start.
    pub uptime_s: f64,
    /// The memory of the process.
    #[serde(default)]
    pub memory: MemoryUse,
    /// The status of links and cache; all zero before the node serves.
    #[serde(flatten)]
    pub runtime: RuntimeStatus,
}

/// The status of the parts of a node; included in the node's status.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RuntimeStatus {
    /// The epoch of the view that the node acts in; 0 before the first.
    pub epoch: u32,
    /// The names of the members.
    pub members: Vec<String>,
    /// The votes, voting files, lease and last view changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership: Option<plexus_membership::runtime::Status>,
    /// The connections to the peers.
    pub peers: Vec<PeerStatus>,
    /// The number of blocks that the cache holds in any mode.
    pub blocks_held: u64,
    /// The number of blocks written to the disks so far.
    pub blocks_written: u64,
    /// The way in which blocks are read from the disks, with the reason if it is not the one
    /// wanted.
    #[serde(default)]
    pub disk_reads: String,
    /// The number of refused connections whose peer did not authenticate.
    pub unauthenticated: u64,
    /// The resources of attached programs.
    #[serde(default)]
    pub programs: ProgramsStatus,
    /// What further subsystems say of themselves, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub subsystems: BTreeMap<String, Value>,
    /// The problem with the files of the cluster's keys, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<String>,
    /// True if the redo streams and the disks were compared with what the registry knows of them.
    #[serde(default)]
    pub compared: bool,
    /// The reason why all blocks are refused, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The last recovery from redo, if there was any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryStatus>,
    /// The changes that wait for room in the redo stream, if any do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redo_waits: Option<RoomWaits>,
    /// The proofs that keep views closed, the full disks of this node, and the problems of its
    /// copies of the registry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trouble: Vec<String>,
}

/// The resources that programs attached to a node use, and their limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProgramsStatus {
    /// The number of attached programs.
    pub attached: u64,
    /// The most programs that can be attached.
    pub attached_most: u64,
    /// The number of their ports.
    pub ports: u64,
    /// The number of their windows, and of copies of windows of other nodes.
    pub windows: u64,
    /// The bytes of memory that these take.
    pub window_bytes: u64,
    /// The bytes of memory that there are for windows.
    pub window_bytes_most: u64,
    /// The number of locks that they hold or wait for.
    #[serde(default)]
    pub locks: u64,
}

/// The connection to a peer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The name of the peer.
    pub name: String,
    /// The rails in use, joined by `+`; `None` if there is none.
    pub rail: Option<String>,
    /// The known obstacles of rails that are not connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The way to fence the peer after its eviction: `kill`, `agent`, or `lease only`.
    #[serde(default)]
    pub fencing: String,
}
