//! The status of a node's parts.

use std::{
    path::PathBuf,
    sync::{PoisonError, atomic::Ordering::Relaxed},
};

use plexus_attach::AttachServer;
use plexus_client::wire::limits::MAX_CLIENTS;
use plexus_interconnect::RailState;
use plexus_redo::{RecoveryStatus, RoomWaits};
use serde::{Deserialize, Serialize};

use super::NodeRuntime;

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

/// The free bytes of a file system below which it counts as full.
const FULL_BELOW: u64 = 1 << 20;

/// Returns the line for the directories among these whose file system is full, if any is.
fn full<const N: usize>(directories: [PathBuf; N]) -> Option<String> {
    let is_full = |path: &PathBuf| {
        let room = rustix::fs::statvfs(path);
        room.is_ok_and(|room| room.f_bavail.saturating_mul(room.f_frsize) < FULL_BELOW)
    };
    let full: Vec<_> =
        directories.into_iter().filter(is_full).map(|path| path.display().to_string()).collect();
    (!full.is_empty()).then(|| format!("disk full: {}", full.join(", ")))
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

impl NodeRuntime {
    /// Returns the present status.
    pub fn status(&self) -> RuntimeStatus {
        let connected = self.mesh.connected();
        let rails = self.mesh.rails();
        let problems = self.mesh.problems();
        let peers = self.config.nodes.iter().filter(|node| node.number != self.me).map(|node| {
            let id = node.number;
            // The first worker stands for all: they differ only briefly, and `plexus rails` lists
            // each.
            let used = rails.iter().filter(|rail| {
                rail.peer == id
                    && rail.worker.0 == 0
                    && rail.state == RailState::Active
                    && connected.contains(id)
            });
            let used: Vec<&str> = used.map(|rail| rail.kind.name()).collect();
            PeerStatus {
                name: node.name.clone(),
                rail: (!used.is_empty()).then(|| used.join("+")),
                problem: problems.get(&id).cloned(),
                fencing: self.member.fence().kind(id).to_string(),
            }
        });
        let opened = self.member.opened();
        let members = opened.as_ref().map(|view| view.members()).unwrap_or_default();
        let recovery = self.handles.cache.redo.as_ref().map(|redo| redo.recovery());
        let membership = self.member.membership_status();
        let awaited = membership.as_ref().map(|(_, awaited)| awaited.clone()).unwrap_or_default();
        RuntimeStatus {
            epoch: opened.map_or(0, |view| view.epoch.0),
            members: members.iter().map(|node| self.config.name_of(node)).collect(),
            membership: membership.map(|(status, _)| status),
            peers: peers.collect(),
            blocks_held: self.handles.cache.cache.occupied() as u64,
            blocks_written: self.counts().disk_writes,
            disk_reads: self.handles.cache.disk_reads.clone(),
            unauthenticated: self.mesh.unauthenticated(),
            programs: self.programs(),
            keys: self.keys.problem(),
            compared: match &self.handles.cache.redo {
                Some(redo) => redo.has_compared(),
                None => self.compared.load(Relaxed),
            },
            refused: self.refused.get().cloned(),
            recovery: recovery.filter(|recovery| recovery.epoch > 0),
            redo_waits: self.handles.cache.redo.as_ref().and_then(|redo| redo.waits()),
            trouble: awaited
                .into_iter()
                .chain(full([self.config.dir.state(), self.config.dir.logs()]))
                .chain(self.handles.cache.redo.as_ref().and_then(|redo| redo.missing()))
                .chain(self.handles.registry.status().trouble)
                .collect(),
        }
    }

    /// Returns the resources of programs. Does not wait for workers.
    pub fn programs(&self) -> ProgramsStatus {
        let door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        let used = self.usage.iter().map(|usage| usage.noted());
        let [ports, windows, window_bytes, locks] =
            used.fold([0; 4], |sum, one| std::array::from_fn(|figure| sum[figure] + one[figure]));
        ProgramsStatus {
            attached: door.as_ref().map_or(0, AttachServer::programs) as u64,
            attached_most: MAX_CLIENTS as u64,
            ports,
            windows,
            window_bytes,
            window_bytes_most: self.arena.len() as u64,
            locks,
        }
    }
}
