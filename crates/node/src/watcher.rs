//! What a node does when a peer is gone or stops: it comes to rest, and records what it held.

use std::sync::{Arc, Weak, mpsc};

use plexus_base::{NodeId, NodeSet};
use plexus_cache::Cache;
use plexus_interconnect::mesh::Mesh;
use plexus_membership::runtime::Membership;

use crate::{
    config::Config,
    life::Life,
    member::Member,
    service::{News, NodeService},
    shards::Shards,
};

/// Waits for the loss of a peer, and then brings this node to rest.
pub(crate) struct Watcher {
    pub(crate) config: Arc<Config>,
    pub(crate) me: NodeId,
    pub(crate) life: Arc<Life>,
    pub(crate) cache: Cache,
    pub(crate) shards: Shards,
    pub(crate) mesh: Weak<Mesh<NodeService>>,
    pub(crate) member: Arc<Member>,
    pub(crate) membership: Arc<Membership>,
}

impl Watcher {
    pub(crate) fn run(&self, news: &mpsc::Receiver<News>) {
        let mut gone = NodeSet::EMPTY;
        while let Ok(news) = news.recv() {
            let Some(mesh) = self.mesh.upgrade() else { return };
            let first = self.cache.why_stopped().is_none();
            let name = |node: NodeId| &self.config.nodes[node.index()].name;
            let (cause, happened) = match news {
                News::End => return,
                News::Fault { peer } => {
                    // It is treated as one whose links are lost: one of the two does not go on.
                    if let Some(life) = self.member.opened().and_then(|view| view.life(peer)) {
                        mesh.forget(peer, life);
                    }
                    continue;
                }
                News::Lost { peer, life, why } => {
                    // One link lost is the peer lost: the other workers must not wait for what it still sends them.
                    mesh.forget(peer, life);
                    match self.member.is_dead(peer, life) {
                        true => self.membership.dead(peer, life),
                        false => self.membership.lost(peer, life),
                    }
                    gone.insert(peer);
                    (peer, format!("{} is gone ({why})", name(peer)))
                }
                News::Stopped { cause } if cause == self.me => {
                    (cause, "another node has lost this one".into())
                }
                News::Stopped { cause } => (cause, format!("{} is gone or leaving", name(cause))),
            };
            let what = format!(
                "{happened}; the cluster does not change any more: run `plexus down`, then `plexus up`"
            );
            self.cache.stopped(what.clone());
            // After the hand-back peers go one by one.
            if !first || self.life.is_handed_back() {
                continue;
            }
            tracing::error!("{what}");
            self.shards.stop(cause);
            let recorded = self.shards.stopped().and_then(|(held, lost)| {
                tracing::info!("{} blocks held here are on disk", held.len());
                self.life.stopped(&what, gone, held, lost).map_err(|error| error.to_string())
            });
            if let Err(error) = recorded {
                tracing::error!("what this node held is not recorded and counts as lost: {error}");
                self.life.failed(&what);
            }
        }
    }
}
