//! What a node does when the link to a peer is lost, or a peer sends what no member sends: the membership decides who goes on.

use std::sync::{Arc, Weak, mpsc};

use plexus_base::{Incarnation, NodeId};
use plexus_interconnect::mesh::Mesh;
use plexus_membership::runtime::Membership;

use crate::{
    boot::config::Config,
    member::Member,
    service::{News, NodeService},
};

/// Waits for such news.
pub(crate) struct Watcher {
    pub(crate) config: Arc<Config>,
    pub(crate) mesh: Weak<Mesh<NodeService>>,
    pub(crate) member: Arc<Member>,
    pub(crate) membership: Arc<Membership>,
}

impl Watcher {
    pub(crate) fn run(&self, news: &mpsc::Receiver<News>) {
        while let Ok(news) = news.recv() {
            match news {
                News::End => return,
                News::Lost { peer, incarnation, why } => {
                    tracing::warn!("the link to {} is lost: {why}", self.config.name_of(peer));
                    self.lost(peer, incarnation);
                }
                // It is treated as one whose links are lost: one of the two does not go on.
                News::Fault { peer, incarnation } => self.lost(peer, incarnation),
            }
        }
    }

    /// One link lost is the peer lost: the other workers must not wait for what it still sends them.
    fn lost(&self, peer: NodeId, incarnation: Incarnation) {
        let Some(mesh) = self.mesh.upgrade() else { return };
        mesh.forget(peer, incarnation);
        match self.member.fence().is_over(peer, incarnation) {
            true => self.membership.dead(peer, incarnation),
            false => self.membership.lost(peer, incarnation),
        }
    }
}
