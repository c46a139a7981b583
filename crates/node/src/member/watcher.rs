//! The reaction to a lost link or a protocol violation: the membership decides which node
//! continues.

use std::sync::{Arc, Weak, mpsc};

use plexus_admin::config::Config;
use plexus_base::{Incarnation, NodeId};
use plexus_interconnect::mesh::Mesh;
use plexus_membership::runtime::Membership;

use crate::{
    member::Member,
    service::{NodeService, WorkerNotice},
};

/// The thread that waits for notices of workers.
pub(crate) struct Watcher {
    pub(crate) config: Arc<Config>,
    pub(crate) mesh: Weak<Mesh<NodeService>>,
    pub(crate) member: Arc<Member>,
    pub(crate) membership: Arc<Membership>,
}

impl Watcher {
    pub(crate) fn run(&self, notices: &mpsc::Receiver<WorkerNotice>) {
        while let Ok(notice) = notices.recv() {
            match notice {
                WorkerNotice::End => return,
                WorkerNotice::Lost { peer, incarnation, why } => {
                    tracing::warn!("the link to {} is lost: {why}", self.config.name_of(peer));
                    self.lost(peer, incarnation);
                }
                // Treated like a lost link: one of the two nodes is evicted.
                WorkerNotice::Fault { peer, incarnation } => self.lost(peer, incarnation),
            }
        }
    }

    /// Closes all links to a peer that lost one, so that no worker waits for its messages.
    fn lost(&self, peer: NodeId, incarnation: Incarnation) {
        let Some(mesh) = self.mesh.upgrade() else { return };
        mesh.forget(peer, incarnation);
        match self.member.fence().is_over(peer, incarnation) {
            true => self.membership.dead(peer, incarnation),
            false => self.membership.lost(peer, incarnation),
        }
    }
}
