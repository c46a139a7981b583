//! What a member knows of the other nodes: the last report of each, how and when it came, and who is proved dead.

use std::sync::Arc;

use plexus_base::{Incarnation, MAX_NODES, Nanos, NodeId, NodeSet};

use super::super::{profile::Profile, record::Report};

/// A peer whose connection was reset is not seen any more unless it is heard within so many heartbeats.
const SUSPECTED_FOR: u64 = 3;

#[derive(Clone, Debug, Default)]
struct Peer {
    report: Option<Arc<Report>>,
    /// When it was last heard over the interconnect, and when a newer report of it was found in a file.
    heard: Option<Nanos>,
    seen: Option<Nanos>,
    /// The life and counter of the last report that came over the interconnect.
    last_heard: (u64, u64),
    /// Its last life that is proved to be over.
    dead: u64,
}

/// By node.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers([Peer; MAX_NODES]);

impl Peers {
    /// A report came over the interconnect; whether it says what was not known, or comes from someone who was silent.
    pub(super) fn heard(&mut self, report: &Arc<Report>, now: Nanos) -> bool {
        let before = self.0[report.node.index()].report.clone();
        self.take(report);
        let peer = &mut self.0[report.node.index()];
        let is_first = peer.heard.is_none();
        let number = (report.life.0, report.counter);
        // A later one may have been found in a file meanwhile.
        if number > peer.last_heard && peer.report.as_ref().is_some_and(|last| last.life == report.life) {
            (peer.last_heard, peer.heard) = (number, Some(now));
        }
        is_first || before.is_none_or(|before| is_news(&before, report))
    }

    /// A report was found in a file; whether it says what was not known.
    pub(super) fn seen(&mut self, report: &Arc<Report>, now: Nanos) -> bool {
        let before = self.0[report.node.index()].report.clone();
        if !self.take(report) {
            return false;
        }
        self.0[report.node.index()].seen = Some(now);
        before.is_none_or(|before| is_news(&before, report))
    }

    fn take(&mut self, report: &Arc<Report>) -> bool {
        let peer = &mut self.0[report.node.index()];
        let is_new =
            peer.report.as_ref().is_none_or(|old| (old.life, old.counter) < (report.life, report.counter));
        if is_new {
            if peer.report.as_ref().is_some_and(|old| old.life != report.life) {
                (peer.heard, peer.seen) = (None, None);
            }
            peer.report = Some(Arc::clone(report));
        }
        is_new
    }

    /// The connection with `node` was reset.
    pub(super) fn suspect(&mut self, node: NodeId, now: Nanos, profile: &Profile) {
        if let Some(heard) = self.0.get_mut(node.index()).and_then(|peer| peer.heard.as_mut()) {
            let latest = (now.0 + SUSPECTED_FOR * profile.heartbeat.0).saturating_sub(profile.evict.0);
            *heard = (*heard).min(Nanos(latest));
        }
    }

    pub(super) fn proved(&mut self, node: NodeId, life: Incarnation) {
        let peer = &mut self.0[node.index()];
        peer.dead = peer.dead.max(life.0);
    }

    pub(super) fn is_dead(&self, node: NodeId, life: Incarnation) -> bool {
        life.0 <= self.0[node.index()].dead
    }

    pub(super) fn dead(&self) -> [Incarnation; MAX_NODES] {
        self.0.each_ref().map(|peer| Incarnation(peer.dead))
    }

    /// The nodes that are heard over the interconnect. One that was silent for some heartbeats is doubted as soon as a peer does not
    /// hear it: else who knows of a death first would seem to be the one that is cut off.
    pub(super) fn hears(&self, now: Nanos, profile: &Profile) -> NodeSet {
        let within = |node: NodeId, time: Nanos| {
            self.alive(node).filter(|_| self.0[node.index()].heard.is_some_and(|at| now.since(at) < time))
        };
        let lately = Nanos(SUSPECTED_FOR * profile.heartbeat.0);
        let nodes = (0..MAX_NODES as u8).map(NodeId);
        let speaking: NodeSet = nodes.clone().filter(|node| within(*node, lately).is_some()).collect();
        let is_doubted = |node: NodeId| {
            let others = speaking.iter().filter_map(|other| within(other, lately));
            others.filter(|report| report.node != node).any(|report| !report.hears.contains(node))
        };
        let heard = |node: &NodeId| {
            speaking.contains(*node) || within(*node, profile.evict).is_some() && !is_doubted(*node)
        };
        nodes.filter(heard).collect()
    }

    /// The last report of a node that was heard lately, or has lately written one to a file.
    pub(super) fn fresh(&self, node: NodeId, now: Nanos, profile: &Profile) -> Option<&Arc<Report>> {
        let peer = &self.0[node.index()];
        let last = peer.heard.max(peer.seen)?;
        self.alive(node).filter(|_| now.since(last) < profile.evict)
    }

    /// The last report of a node, unless that life is proved to be over.
    pub(super) fn alive(&self, node: NodeId) -> Option<&Arc<Report>> {
        let peer = &self.0[node.index()];
        peer.report.as_ref().filter(|report| report.life.0 > peer.dead)
    }
}

/// Whether a later report differs in what others plan by.
fn is_news(before: &Report, report: &Report) -> bool {
    let plan = |report: &Report| (report.life, report.hears, report.reaches, report.leaving, report.lease);
    plan(before) != plan(report)
}
