//! A member's knowledge of the other nodes: the last report of each, its time and source, and
//! proved deaths.

use std::sync::Arc;

use plexus_base::{Incarnation, MAX_NODES, Nanos, NodeId, NodeSet};

use super::super::{
    profile::Profile,
    record::{Report, ReportNumber},
};

#[derive(Clone, Debug, Default)]
struct Peer {
    report: Option<Arc<Report>>,
    /// The time of the last report over the interconnect, and of the last newer report found in a
    /// file.
    heard: Option<Nanos>,
    seen: Option<Nanos>,
    /// The last report over the interconnect.
    last_heard: ReportNumber,
    /// The incarnation that has made a promise, and the end of the promise.
    promise: Option<(Incarnation, Nanos)>,
    /// The time of the first report of the incarnation, or of its last report that it reaches the
    /// voting files.
    reached: Nanos,
    /// The last incarnation that is proved dead.
    dead: u64,
    /// The last incarnation with which the links were lost.
    lost: u64,
}

/// The state of all peers, by node.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers([Peer; MAX_NODES]);

impl Peers {
    /// Stores a report from the interconnect. Returns true if it affects the plan or its sender was
    /// silent before.
    pub(super) fn heard(&mut self, report: &Arc<Report>, now: Nanos, profile: &Profile) -> bool {
        let before = self.0[report.node.index()].report.clone();
        self.take(report, now);
        let peer = &mut self.0[report.node.index()];
        let was_silent = peer.heard.is_none_or(|at| now.since(at) >= profile.evict);
        let number = report.number();
        // A file may have shown a later report meanwhile.
        if number > peer.last_heard
            && peer.report.as_ref().is_some_and(|last| last.incarnation == report.incarnation)
        {
            (peer.last_heard, peer.heard) = (number, Some(now));
        }
        was_silent || before.is_none_or(|before| affects_plan(&before, report))
    }

    /// Stores a report from a file. Returns true if it affects the plan.
    pub(super) fn seen(&mut self, report: &Arc<Report>, now: Nanos) -> bool {
        let before = self.0[report.node.index()].report.clone();
        if !self.take(report, now) {
            return false;
        }
        self.0[report.node.index()].seen = Some(now);
        before.is_none_or(|before| affects_plan(&before, report))
    }

    fn take(&mut self, report: &Arc<Report>, now: Nanos) -> bool {
        let peer = &mut self.0[report.node.index()];
        let is_new = peer
            .report
            .as_ref()
            .is_none_or(|old| (old.incarnation, old.counter) < (report.incarnation, report.counter));
        if is_new {
            let is_first = peer.report.as_ref().is_none_or(|old| old.incarnation != report.incarnation);
            if is_first {
                (peer.heard, peer.seen) = (None, None);
            }
            if is_first || report.reaches {
                peer.reached = now;
            }
            peer.report = Some(Arc::clone(report));
        }
        is_new
    }

    /// Records that the links with an incarnation of `node` are lost, so that it soon counts as not
    /// heard.
    pub(super) fn lost(&mut self, node: NodeId, incarnation: Incarnation, now: Nanos, profile: &Profile) {
        let Some(peer) = self.0.get_mut(node.index()) else { return };
        peer.lost = peer.lost.max(incarnation.0);
        let is_its = peer.report.as_ref().is_some_and(|report| report.incarnation <= incarnation);
        if is_its {
            // `None` is less than any time. The clock begins with the machine, perhaps just now.
            let latest = (now.0 + profile.suspicion().0).checked_sub(profile.evict.0);
            peer.heard = peer.heard.min(latest.map(Nanos));
        }
    }

    /// Stores the promise of an incarnation: until this time it knows no view without this node.
    pub(super) fn promised(&mut self, node: NodeId, incarnation: Incarnation, until: Nanos) {
        let promise = &mut self.0[node.index()].promise;
        *promise = (*promise).max(Some((incarnation, until)));
    }

    /// Returns the end of the promise of an incarnation; 0 if it has made none.
    pub(super) fn promise(&self, node: NodeId, incarnation: Incarnation) -> Nanos {
        let promise = self.0[node.index()].promise.filter(|(promiser, _)| *promiser == incarnation);
        promise.map_or(Nanos(0), |(_, until)| until)
    }

    /// Returns for each node the last report that was received over the interconnect.
    pub(super) fn echo(&self) -> [ReportNumber; MAX_NODES] {
        self.0.each_ref().map(|peer| peer.last_heard)
    }

    /// Returns true if a node has reached the voting files within the disk timeout.
    pub(super) fn has_reached(&self, node: NodeId, now: Nanos, profile: &Profile) -> bool {
        now.since(self.0[node.index()].reached) < profile.disk_timeout
    }

    /// Returns true if the links with this incarnation are not lost.
    pub(super) fn accepts_from(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.0.get(node.index()).is_some_and(|peer| incarnation.0 > peer.lost)
    }

    pub(super) fn proved_dead(&mut self, node: NodeId, incarnation: Incarnation) {
        let peer = &mut self.0[node.index()];
        peer.dead = peer.dead.max(incarnation.0);
    }

    pub(super) fn is_dead(&self, node: NodeId, incarnation: Incarnation) -> bool {
        incarnation.0 <= self.0[node.index()].dead
    }

    pub(super) fn dead(&self) -> [Incarnation; MAX_NODES] {
        self.0.each_ref().map(|peer| Incarnation(peer.dead))
    }

    /// Returns the nodes heard over the interconnect. A node that was silent for some heartbeats is
    /// excluded as soon as a peer does not hear it. Otherwise the first node to notice a death
    /// would itself appear to be cut off.
    pub(super) fn hears(&self, now: Nanos, profile: &Profile) -> NodeSet {
        let within = |node: NodeId, time: Nanos| {
            self.alive(node).filter(|_| self.0[node.index()].heard.is_some_and(|at| now.since(at) < time))
        };
        let lately = profile.suspicion();
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

    /// Returns the last report of a node whose reports arrived recently, over the interconnect or
    /// in a file.
    pub(super) fn fresh(&self, node: NodeId, now: Nanos, profile: &Profile) -> Option<&Arc<Report>> {
        let peer = &self.0[node.index()];
        let last = peer.heard.max(peer.seen)?;
        self.alive(node).filter(|_| now.since(last) < profile.evict)
    }

    /// Returns the nodes whose end must be proved according to the last reports of these nodes. The
    /// report of a node that has ended still counts.
    pub(super) fn must_prove(&self, nodes: NodeSet) -> NodeSet {
        let reports = nodes.iter().filter_map(|node| self.0[node.index()].report.as_ref());
        reports.flat_map(|report| report.must_prove.iter()).collect()
    }

    /// Returns the last report of a node unless its incarnation is proved dead.
    pub(super) fn alive(&self, node: NodeId) -> Option<&Arc<Report>> {
        let peer = &self.0[node.index()];
        peer.report.as_ref().filter(|report| report.incarnation.0 > peer.dead)
    }
}

/// Returns true if a report changes an input of the next plan. These are fewer fields than in
/// [`ReportedState`](super::ReportedState), because views and proofs are handled on arrival.
fn affects_plan(before: &Report, report: &Report) -> bool {
    let plan = |report: &Report| {
        let times = (report.lease, report.disk_timeout);
        (report.incarnation, report.hears, report.reaches, report.leaving, times)
    };
    plan(before) != plan(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{FileId, View};

    const NODE: NodeId = NodeId(1);

    fn report(incarnation: u64, counter: u64) -> Arc<Report> {
        let view = Arc::new(View::first(NodeSet::first(2), [(FileId(1), None)]));
        let first = Report::first(NODE, Incarnation(incarnation), &Profile::LAN, view);
        Arc::new(Report { counter, hears: NodeSet::first(2), reaches: true, ..first })
    }

    #[test]
    fn a_report_after_silence_is_always_relevant() {
        let (mut peers, profile) = (Peers::default(), Profile::LAN);
        let at = |ms: u64| Nanos::from_ms(5_000 + ms);
        assert!(peers.heard(&report(1, 1), at(0), &profile), "it was never heard");
        assert!(!peers.heard(&report(1, 2), at(999), &profile));
        assert!(peers.heard(&report(1, 3), at(1_999), &profile), "it was silent for the eviction time");
        assert!(!peers.heard(&report(1, 4), at(2_000), &profile));
    }

    #[test]
    fn a_peer_whose_links_are_lost_expires_on_a_machine_that_has_just_started() {
        let (mut peers, profile) = (Peers::default(), Profile::LAN);
        let at = |ms: u64| Nanos::from_ms(ms);
        peers.heard(&report(1, 1), at(10), &profile);
        peers.lost(NODE, Incarnation(1), at(20), &profile);
        assert!(!peers.hears(at(320), &profile).contains(NODE));
        assert!(peers.fresh(NODE, at(320), &profile).is_none());
    }

    #[test]
    fn an_incarnation_whose_links_are_lost_expires_and_a_later_one_does_not() {
        let (mut peers, profile, now) = (Peers::default(), Profile::LAN, Nanos::from_ms(9_000));
        let heard = |peers: &Peers, ms| peers.hears(now + Nanos::from_ms(ms), &profile).contains(NODE);
        peers.heard(&report(3, 1), now, &profile);
        peers.lost(NODE, Incarnation(2), now, &profile);
        assert!(peers.accepts_from(NODE, Incarnation(3)) && !peers.accepts_from(NODE, Incarnation(2)));
        assert!(heard(&peers, 400), "it was another incarnation");
        peers.lost(NODE, Incarnation(3), now, &profile);
        assert!(!peers.accepts_from(NODE, Incarnation(3)) && peers.accepts_from(NODE, Incarnation(4)));
        assert!(!heard(&peers, 400));
    }
}
