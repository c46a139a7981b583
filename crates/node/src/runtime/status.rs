//! The status of a node's parts.

use std::{path::PathBuf, sync::atomic::Ordering::Relaxed};

use plexus_admin::status::{PeerStatus, RuntimeStatus};
use plexus_interconnect::RailState;

use super::NodeRuntime;
use crate::subsystems::statuses;

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
        let recovery = self.handles.cache.redo().map(|redo| redo.recovery());
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
            subsystems: statuses(&self.handles),
            keys: self.keys.problem(),
            compared: match self.handles.cache.redo() {
                Some(redo) => redo.has_compared(),
                None => self.compared.load(Relaxed),
            },
            refused: self.refused.get().cloned(),
            recovery: recovery.filter(|recovery| recovery.epoch > 0),
            redo_waits: self.handles.cache.redo().and_then(|redo| redo.waits()),
            trouble: awaited
                .into_iter()
                .chain(full([self.config.dir.state(), self.config.dir.logs()]))
                .chain(self.handles.all().flat_map(|(_, handle)| handle.trouble()))
                .collect(),
        }
    }
}
