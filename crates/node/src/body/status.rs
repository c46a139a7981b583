//! What a body says about itself.

use std::sync::PoisonError;

use plexus_attach::Door;
use plexus_base::NodeId;
use plexus_client::wire::limits::MAX_CLIENTS;
use plexus_interconnect::RailState;
use serde::{Deserialize, Serialize};

use super::Body;

/// What the body says about itself; part of the node's status.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct BodyStatus {
    /// The epoch of the view that the node acts in; 0: none yet.
    pub epoch: u32,
    /// The members, by name.
    pub members: Vec<String>,
    /// Votes, voting files, lease, the last changes of members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership: Option<plexus_membership::runtime::Status>,
    /// How each peer is reached.
    pub peers: Vec<PeerStatus>,
    /// Blocks that the cache holds in any mode.
    pub blocks_held: u64,
    /// Blocks written to the disks so far.
    pub blocks_written: u64,
    /// Connections refused because whoever was at the other end is no peer.
    pub strangers: u64,
    /// What programs have of it.
    #[serde(default)]
    pub programs: ProgramsStatus,
    /// What is wrong with the files of the cluster's keys, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<String>,
}

/// What programs that are attached to a node have of it, and how much there is for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProgramsStatus {
    /// Programs that are attached.
    pub attached: u64,
    /// How many may be.
    pub attached_most: u64,
    /// Their ports.
    pub ports: u64,
    /// Their windows, and copies of those of other nodes.
    pub windows: u64,
    /// Memory that these take.
    pub window_bytes: u64,
    /// How much there is.
    pub window_bytes_most: u64,
    /// Locks that they have and wait for.
    #[serde(default)]
    pub locks: u64,
}

/// How a peer is reached.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// The rails in use, joined by `+`, or nothing when there is none.
    pub rail: Option<String>,
    /// What stands in the way of a rail that is not connected, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// How it is made sure that it does nothing any more when it was put out: `kill`, `agent`, or `lease only`.
    #[serde(default)]
    pub fencing: String,
}

impl Body {
    /// What it looks like now.
    #[must_use]
    pub fn status(&self) -> BodyStatus {
        let connected = self.mesh.connected();
        let rails = self.mesh.rails();
        let problems = self.mesh.problems();
        let peers = self.config.nodes.iter().enumerate().map(|(index, node)| (NodeId(index as u8), node));
        let peers = peers.filter(|(id, _)| *id != self.me).map(|(id, node)| {
            // The first worker stands for all: they differ for moments only, and `plexus rails` tells them apart.
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
        BodyStatus {
            epoch: opened.map_or(0, |view| view.epoch.0),
            members: members.iter().map(|node| self.config.name_of(node)).collect(),
            membership: self.membership.status(),
            peers: peers.collect(),
            blocks_held: self.handles.cache.occupied() as u64,
            blocks_written: self.counts().disk_writes,
            strangers: self.mesh.unauthenticated(),
            programs: self.programs(),
            keys: self.keys.problem(),
        }
    }

    /// What programs have of it. Does not wait for workers.
    #[must_use]
    pub fn programs(&self) -> ProgramsStatus {
        let door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        let used = self.usage.iter().map(|usage| usage.noted());
        let [ports, windows, window_bytes, locks] =
            used.fold([0; 4], |sum, one| std::array::from_fn(|figure| sum[figure] + one[figure]));
        ProgramsStatus {
            attached: door.as_ref().map_or(0, Door::programs) as u64,
            attached_most: MAX_CLIENTS as u64,
            ports,
            windows,
            window_bytes,
            window_bytes_most: self.arena.len() as u64,
            locks,
        }
    }
}
