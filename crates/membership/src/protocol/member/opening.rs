//! Leases, and the conditions for opening a decided view.
//!
//! # Lease
//!
//! A turn renews the lease if it wrote, read, and found neither a view nor a proposal without this
//! incarnation. The lease counts from the start of these turns: of a majority of the files, the
//! earliest.
//!
//! Suppose that a view without the node was chosen at some moment. A majority of the files holds
//! that view. So one of the node's turns was at a file that holds it now, and read the file before
//! the view was written. That turn began before the choice, so the lease ends at most one lease
//! time after the choice. A node learns of the view only after the choice. It waits for that time
//! by its own clock, plus drift and margin, before it opens the view.
//!
//! # Stalled voting files
//!
//! Turns may stall for up to the disk timeout. Meanwhile the lease of a node that has opened a view
//! lasts as long as the *promises* of all other members of the latest decided view: that they knew
//! no view without the node. Only members that are proved dead are left out. A report of a member
//! is a promise if it echoes a report of this incarnation, and lasts for one lease time from the
//! making of the echoed report. From the moment in which a member learns a view, all its reports
//! contain it, and a node that is not in the view ends. So a promise ends at most one lease time
//! after the promising member has learned a view without the node, and the member waits that long.
//! Promises count at most until the disk timeout after the start of the turns that renewed the
//! lease last. Without other members only the files count.
//!
//! # New members
//!
//! A new member does not know which nodes were evicted before it joined. It opens a view when at
//! least one other member has opened this view or a later one, and no other member acts in an
//! earlier view. If no other member acts, it waits for the disk timeout, because an evicted node
//! that it does not know needed no promise of it. The wait begins when the node learns its first
//! view. It begins again with a view that was learned out of sequence, or that removes an
//! incarnation that is not proved dead. The node need not wait if it has learned all views in
//! sequence: then it knows the last removed incarnation of each node, and opens the view when all
//! of them are proved dead.
//!
//! # Required proofs
//!
//! The end of some nodes must be proved, because a command is configured that ends them for
//! certain. No lease is enough for these, however long it is over: the node may have been paused
//! between its last look at the lease and an action. It suffices that one node of the cluster
//! requires the proof; all reports say so, also those of nodes that have ended. A node that has
//! opened no view requires it of all incarnations that it knows of. It asks for a proof of those
//! that it does not see removed itself only after the wait, because their nodes may be starting.

use std::sync::Arc;

use plexus_base::{Epoch, Incarnation, Nanos, NodeId, NodeSet};

use super::{Action, Member, Report, ReportNumber, Seat};

/// A removed incarnation that may still act.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wait {
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) until: Nanos,
}

impl Wait {
    pub(super) fn over(self, proved: bool) -> Action {
        Action::Stopped { node: self.node, incarnation: self.incarnation, proved }
    }
}

impl Member {
    /// Notes the number of a report to the peers, which they echo.
    pub(super) fn note_sent(&mut self, report: &Report, now: Nanos) {
        self.sent.push_back((report.counter, now));
        while self.sent.front().is_some_and(|(_, at)| *at + self.profile.lease <= now) {
            self.sent.pop_front();
        }
    }

    /// Notes the promise of a member that echoes a report of this incarnation. The view in the
    /// report was learned before.
    pub(super) fn note_promise(&mut self, report: &Report) {
        let ReportNumber { incarnation, counter } = report.echo[self.me.index()];
        if !self.is_over
            && self.is_member()
            && self.decided.has(report.node, report.incarnation)
            && incarnation == self.incarnation
            && let Some((_, made)) = self.sent.iter().rev().find(|(sent, _)| *sent == counter)
        {
            self.peers.promised(report.node, report.incarnation, *made + self.profile.lease);
        }
    }

    /// Returns the time until which each other member that may live promises that it knows no view
    /// without this node.
    pub(super) fn promises(&self) -> impl Iterator<Item = (NodeId, Nanos)> {
        let others = self.decided.members().without(self.me).iter();
        let others = others.filter_map(|node| Some((node, self.decided.incarnation(node)?)));
        let alive = others.filter(|(node, incarnation)| !self.peers.is_dead(*node, *incarnation));
        alive.map(|(node, incarnation)| (node, self.peers.promise(node, incarnation)))
    }

    /// Returns the members whose promises have ended, or do not last longer than the lease.
    pub(crate) fn silent(&self, now: Nanos) -> NodeSet {
        let until_lease = now.max(self.lease_until);
        self.promises().filter(|(_, until)| *until <= until_lease).map(|(node, _)| node).collect()
    }

    /// Returns the earliest start within the newest majority of turns that renewed the lease.
    pub(crate) fn renewed(&self) -> Option<Nanos> {
        let counted = self.decided.files.iter().filter_map(|file| self.files.get(&file.id));
        let mut renewed: Vec<Nanos> =
            counted.filter(|state| !state.is_set_aside).filter_map(|state| state.renewed).collect();
        renewed.sort_unstable_by(|a, b| b.cmp(a));
        renewed.get(self.decided.majority() - 1).copied()
    }

    /// Renews the lease from the turns that have succeeded so far, and from the promises of the
    /// other members.
    pub(super) fn renew(&mut self, out: &mut Vec<Action>) {
        let Some(earliest) = self.renewed() else { return };
        let promised = self.promises().map(|(_, until)| until).min().filter(|_| self.opened.is_some());
        let promised = promised.map(|until| until.min(earliest + self.profile.disk_timeout));
        let until = (earliest + self.profile.lease).max(promised.unwrap_or(Nanos(0)));
        if until > self.lease_until {
            self.lease_until = until;
            if self.opened.is_some() {
                out.push(Action::Lease(until));
            }
        }
    }

    /// Returns true if a majority of the files has answered within the last lease time.
    pub(super) fn reaches(&self, now: Nanos) -> bool {
        self.reached(now, |_| true) >= self.decided.majority()
    }

    /// Counts the `wanted` files of the view that have answered within the last lease time.
    pub(super) fn reached(&self, now: Nanos, wanted: impl Fn(&super::VotingFile) -> bool) -> usize {
        let files = self.decided.files.iter().filter(|file| wanted(file));
        files.filter(|file| self.answers(file.id, now)).count()
    }

    /// Returns true if a file has answered within the last lease time and is not set aside.
    pub(super) fn answers(&self, file: super::FileId, now: Nanos) -> bool {
        self.files.get(&file).is_some_and(|state| {
            !state.is_set_aside && state.answered.is_some_and(|at| now.since(at) < self.profile.lease)
        })
    }

    /// Proves the end of the earlier incarnations of this node once a majority of the files has had
    /// its reports for the disk timeout. One that still ran, as on a host of which this one is a
    /// copy, would have found them when it renewed its lease, or its lease would be over.
    pub(super) fn watch(&mut self, now: Nanos, out: &mut Vec<Action>) {
        let earlier = Incarnation(self.incarnation.0 - 1);
        if self.peers.is_dead(self.me, earlier) {
            return;
        }
        let is_written = self.renewed().is_some_and(|at| now.since(at) < self.profile.lease);
        let since = self.alone_since.filter(|_| is_written).unwrap_or(now);
        self.alone_since = is_written.then_some(since);
        if now.since(since) >= self.profile.wait_as_new() {
            self.proved_dead(self.me, earlier, now, out);
        }
    }

    /// Opens the decided view when every incarnation that must stop has stopped.
    pub(super) fn open(&mut self, now: Nanos, out: &mut Vec<Action>) {
        let required = self.required();
        let is_over = |wait: &mut Wait| wait.until <= now && !required.contains(wait.node);
        out.extend(self.waits.extract_if(.., is_over).map(|wait| wait.over(false)));
        let is_open = self.opened.as_ref().is_some_and(|view| view.epoch == self.decided.epoch);
        if is_open || !self.is_member() || now >= self.lease_until {
            return;
        }
        let stopped = match self.opened {
            Some(_) => self.waits.is_empty(),
            None => self.others_follow() && (self.one_has_opened() || self.has_waited(now, out)),
        };
        if stopped {
            if self.opened.is_none() {
                // The node acted in no view before, so it cannot still act in an older one.
                self.entered = self.decided.epoch;
                // The member that has opened the view had the proofs.
                out.extend(
                    self.waits
                        .extract_if(.., |wait| required.contains(wait.node))
                        .map(|wait| wait.over(true)),
                );
            }
            self.opened = Some(Arc::clone(&self.decided));
            out.push(Action::Lease(self.lease_until));
            out.push(Action::Opened(Arc::clone(&self.decided)));
        }
    }

    /// Returns true if no other member acts, or will act, in an earlier view.
    fn others_follow(&self) -> bool {
        self.other_members().all(|(opened, decided)| {
            opened >= self.decided.epoch || opened == Epoch(0) && decided >= self.decided.epoch
        })
    }

    fn one_has_opened(&self) -> bool {
        self.other_members().any(|(opened, _)| opened >= self.decided.epoch)
    }

    /// Returns true if no unknown incarnation can still act. All former member incarnations are
    /// proved dead, or their leases have been waited for and no proof is required. Before the first
    /// view no node acted. After the wait, asks for the proofs that are required.
    fn has_waited(&mut self, now: Nanos, out: &mut Vec<Action>) -> bool {
        let is_over =
            |(node, incarnation): (usize, Incarnation)| self.peers.is_dead(NodeId(node as u8), incarnation);
        if self.decided.epoch == Epoch(1)
            || self.former.is_some_and(|former| former.into_iter().enumerate().all(is_over))
        {
            return true;
        }
        if self.waits_since.is_none_or(|since| now < since + self.profile.wait_as_new()) {
            return false;
        }
        let unproved: Vec<_> = self.unproved().collect();
        for (node, incarnation) in &unproved {
            let (node, incarnation) = (*node, *incarnation);
            if self.waits.iter().all(|wait| (wait.node, wait.incarnation) != (node, incarnation)) {
                self.waits.push(Wait { node, incarnation, until: now });
                out.push(Action::Fence(node, incarnation));
            }
        }
        unproved.is_empty()
    }

    /// Returns the former member incarnations whose end must be proved and is not. Where they are
    /// not known, a member proves the end of its own earlier ones before it opens a view.
    fn unproved(&self) -> impl Iterator<Item = (NodeId, Incarnation)> {
        let of_seat = |seat| if let Seat::In(_) = seat { Incarnation(0) } else { Seat::last(seat) };
        let former = self.former.unwrap_or_else(|| self.decided.seats.map(of_seat));
        let required = self.required().without(self.me).iter().map(move |node| (node, former[node.index()]));
        required.filter(|(node, incarnation)| !self.peers.is_dead(*node, *incarnation))
    }

    /// Returns the nodes whose end must be proved.
    fn required(&self) -> NodeSet {
        let others = self.peers.must_prove(self.decided.cluster());
        self.must_prove.iter().chain(others.iter()).collect()
    }

    /// Returns the removed incarnations whose end this node waits for because it must be proved.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = (NodeId, Incarnation)> {
        let required = self.required();
        let waits = self.waits.iter().filter(move |wait| required.contains(wait.node));
        waits.map(|wait| (wait.node, wait.incarnation))
    }

    /// Returns, for each other member, the epochs that it reports as opened and decided; 0 if
    /// unknown.
    fn other_members(&self) -> impl Iterator<Item = (Epoch, Epoch)> {
        self.decided.members().without(self.me).iter().map(|node| {
            let report = self.peers.alive(node).filter(|report| self.decided.has(node, report.incarnation));
            report.map_or((Epoch(0), Epoch(0)), |report| (report.opened, report.decided.epoch))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Block, Event, FileId, Profile, Seat, View};

    fn member() -> Member {
        let first = View::first(NodeSet::first(3), [(FileId(1), None)]);
        Member::new(NodeId(0), Incarnation(1), Profile::LAN, Arc::new(first), Nanos(0))
    }

    #[test]
    fn the_way_in_which_each_wait_ends_is_reported() {
        let (mut member, incarnation, until) = (member(), Incarnation(3), Nanos(100));
        member.waits = [1, 2].map(|node| Wait { node: NodeId(node), incarnation, until }).into();
        let mut out = Vec::new();
        let mut report = member.report(Nanos(0));
        report.node = NodeId(2);
        report.dead[1] = Incarnation(4);
        member.absorb_proofs(&report, Nanos(99), &mut out);
        assert_eq!(out, [Action::Stopped { node: NodeId(1), incarnation, proved: true }]);
        out.clear();
        member.open(Nanos(99), &mut out);
        assert_eq!(out, []);
        member.open(until, &mut out);
        assert_eq!(out, [Action::Stopped { node: NodeId(2), incarnation, proved: false }]);
    }

    #[test]
    fn the_end_of_a_lease_opens_no_view_if_this_node_or_another_requires_a_proof() {
        let (node, incarnation, until) = (NodeId(1), Incarnation(3), Nanos(100));
        for is_own in [true, false] {
            let (mut member, mut out, required) = (member(), Vec::new(), NodeSet::from_iter([node]));
            member.waits = vec![Wait { node, incarnation, until }];
            match is_own {
                true => member = member.requiring_proofs(required),
                false => {
                    let first =
                        Report::first(NodeId(2), Incarnation(1), &Profile::LAN, member.decided.clone());
                    let report = Arc::new(Report { must_prove: required, ..first });
                    member.handle(Nanos(1), Event::Heard(report), &mut out);
                    member.handle(Nanos(2), Event::Dead(NodeId(2), Incarnation(1)), &mut out);
                }
            }
            out.clear();
            member.open(Nanos(u64::MAX), &mut out);
            assert_eq!(out, [], "{is_own}");
            assert_eq!(member.awaited().collect::<Vec<_>>(), [(node, incarnation)]);
            member.proved_dead(node, incarnation, until, &mut out);
            assert_eq!(out, [Action::Stopped { node, incarnation, proved: true }]);
        }
    }

    #[test]
    fn a_new_member_asks_for_required_proofs_after_the_wait_and_opens_with_them() {
        let mut view = View::first(NodeSet::first(3), [(FileId(1), None)]);
        (view.epoch, view.seats[0]) = (Epoch(7), Seat::In(Incarnation(5)));
        (view.seats[1], view.seats[2]) = (Seat::Out(Incarnation(3)), Seat::Out(Incarnation(4)));
        let new = Member::new(NodeId(0), Incarnation(5), Profile::LAN, Arc::new(view), Nanos(0));
        let mut member = new.requiring_proofs(NodeSet::from_iter([NodeId(0), NodeId(2)]));
        (member.waits_since, member.lease_until) = (Some(Nanos(1)), Nanos(u64::MAX));
        let (over, mut out) = (Nanos(1) + Profile::LAN.wait_as_new(), Vec::new());
        member.open(Nanos(over.0 - 1), &mut out);
        assert_eq!(out, [], "the other node may be starting");
        (0..2).for_each(|_| member.open(over, &mut out));
        let (node, incarnation) = (NodeId(2), Incarnation(4));
        assert_eq!(out, [Action::Fence(node, incarnation)], "once, and not for a node with a lease only");
        out.clear();
        member.proved_dead(node, incarnation, over, &mut out);
        member.open(over, &mut out);
        assert_eq!(out[0], Action::Stopped { node, incarnation, proved: true });
        assert!(matches!(out[2], Action::Opened(_)), "{out:?}");
    }

    #[test]
    fn a_node_that_says_that_it_has_stopped_is_believed_after_the_loss_of_its_links() {
        let (mut member, incarnation, mut out) = (member(), Incarnation(3), Vec::new());
        member.waits = vec![Wait { node: NodeId(1), incarnation, until: Nanos(100) }];
        member.handle(Nanos(1), Event::Lost(NodeId(1), incarnation), &mut out);
        let mut report = member.report(Nanos(0));
        (report.node, report.incarnation) = (NodeId(1), incarnation);
        report.dead[2] = Incarnation(9);
        let stopped = Action::Stopped { node: NodeId(1), incarnation, proved: true };
        member.handle(Nanos(2), Event::Heard(Arc::new(report.clone())), &mut out);
        assert!(!out.contains(&stopped), "{out:?}");
        report.dead[1] = incarnation;
        member.handle(Nanos(3), Event::Heard(Arc::new(report)), &mut out);
        assert!(out.contains(&stopped), "{out:?}");
        assert!(!member.peers.is_dead(NodeId(2), Incarnation(9)), "nothing else of it counts");
    }

    /// Returns a member that acts in view 1 with nodes 1 and 2, and three voting files whose turns
    /// renewed the lease from 10, 20 and 30 s on; all turns of the last seconds answered.
    fn member_with_promises(until: [Nanos; 2]) -> Member {
        let files = [1, 2, 3].map(FileId);
        let mut view = View::first(NodeSet::first(3), files.map(|id| (id, None)));
        view.epoch = Epoch(1);
        (0..3).for_each(|node| view.seats[node] = Seat::In(Incarnation(1)));
        let mut member = Member::new(NodeId(0), Incarnation(1), Profile::LAN, Arc::new(view), Nanos(0));
        member.opened = Some(Arc::clone(&member.decided));
        for (file, second) in files.into_iter().zip([10, 20, 30]) {
            let state = member.files.get_mut(&file).expect("a file of the view");
            (state.renewed, state.answered) =
                (Some(Nanos::from_ms(second * 1000)), Some(Nanos::from_ms(49_000)));
        }
        for (node, until) in [1, 2].into_iter().zip(until) {
            member.peers.promised(NodeId(node), Incarnation(1), until);
        }
        member
    }

    #[test]
    fn promises_of_all_other_members_extend_the_lease_until_the_disk_timeout() {
        let ms = Nanos::from_ms;
        // The files alone renew it from 20 s on: from then on two of three files had renewing
        // turns.
        let cases = [
            ([ms(25_000), ms(0)], ms(20_900)),
            ([ms(25_000), ms(20_000)], ms(20_900)),
            ([ms(25_000), ms(26_000)], ms(25_000)),
            ([ms(49_000), ms(49_500)], ms(49_000)),
            ([ms(51_000), ms(52_000)], ms(50_000)),
        ];
        for (until, lease) in cases {
            let (mut member, mut out) = (member_with_promises(until), Vec::new());
            member.renew(&mut out);
            assert_eq!(out, [Action::Lease(lease)], "promises until {until:?}");
        }
        let mut member = member_with_promises([ms(0), ms(25_000)]);
        member.peers.proved_dead(NodeId(1), Incarnation(1));
        member.renew(&mut Vec::new());
        assert_eq!(member.lease_until, ms(25_000), "a dead member need not promise");
        let ends = member.silent(ms(24_999));
        assert_eq!(ends, NodeSet::from_iter([NodeId(2)]), "its promise ends with the lease");
        member.peers.proved_dead(NodeId(2), Incarnation(1));
        let mut alone = member_with_promises([ms(0), ms(0)]);
        (1..3).for_each(|node| alone.peers.proved_dead(NodeId(node), Incarnation(1)));
        alone.renew(&mut Vec::new());
        assert_eq!(alone.lease_until, ms(20_900), "without other members only the files count");
    }

    #[test]
    fn only_an_echo_of_this_incarnation_from_a_member_incarnation_is_a_promise() {
        let promise = |incarnation, echoed, counter| {
            let mut member = member_with_promises([Nanos(0); 2]);
            member.sent.push_back((5, Nanos::from_ms(40_000)));
            member.lease_until = Nanos(u64::MAX);
            let (from, decided) = (NodeId(1), Arc::clone(member.decided()));
            let mut report = Report::first(from, Incarnation(incarnation), &Profile::LAN, decided);
            report.echo[0] = ReportNumber { incarnation: Incarnation(echoed), counter };
            member.handle(Nanos(0), Event::Heard(Arc::new(report)), &mut Vec::new());
            (1..4).map(|incarnation| member.peers.promise(from, Incarnation(incarnation))).max()
        };
        assert_eq!(promise(1, 1, 4), Some(Nanos(0)), "no report with this number was sent");
        assert_eq!(promise(1, 2, 5), Some(Nanos(0)), "another incarnation of this node sent it");
        assert_eq!(promise(2, 1, 5), Some(Nanos(0)), "another incarnation than the member's");
        assert_eq!(promise(1, 1, 5), Some(Nanos::from_ms(40_900)), "a lease from the making of the report");
    }

    #[test]
    fn a_turn_renews_the_lease_from_its_start() {
        let (mut member, file) = (member_with_promises([Nanos(0); 2]), FileId(3));
        member.lease_until = Nanos(u64::MAX);
        let mut began = Vec::new();
        for second in 31..35 {
            let (now, mut out) = (Nanos::from_ms(second * 1000), Vec::new());
            let mut contents = crate::protocol::Contents::default();
            if let Some(turn) = &member.files[&file].turn {
                began.push(turn.started);
                contents.nodes[0].heartbeat =
                    turn.writes.heartbeat.clone().map_or_else(Block::default, Block::Good);
            }
            member.handle(now, Event::Finished { file, result: Ok(Box::new(contents)) }, &mut out);
        }
        assert_eq!(began, [31, 32, 33].map(|second| Nanos::from_ms(second * 1000)));
        assert_eq!(member.files[&file].renewed, began.last().copied());
    }

    #[test]
    fn the_first_view_is_reported_as_open_as_soon_as_it_is() {
        let (mut member, now) = (member(), Nanos(1_000));
        let mut view = (**member.decided()).clone();
        (view.epoch, view.seats[0]) = (Epoch(1), Seat::In(Incarnation(1)));
        (member.decided, member.lease_until) = (Arc::new(view), Nanos(u64::MAX));
        assert_eq!(member.reported_state(now).opened, Epoch(0));
        member.open(now, &mut Vec::new());
        assert_eq!(member.reported_state(now).opened, Epoch(1), "otherwise it would seem to act in no view");
    }

    #[test]
    fn a_view_is_reported_as_open_at_once_when_it_is_entered() {
        let (mut member, now) = (member(), Nanos(1_000_000_000));
        let mut view = (**member.decided()).clone();
        view.epoch = Epoch(1);
        (member.decided, member.next_report) = (Arc::new(view), now + Nanos(50_000_000));
        member.opened = Some(Arc::clone(&member.decided));
        member.lease_until = Nanos(u64::MAX);
        member.last_reported = Some((member.reported_state(now), Nanos(0)));
        let said = |member: &mut Member, event| {
            let mut out = Vec::new();
            member.handle(now, event, &mut out);
            out.into_iter().find_map(|action| match action {
                Action::Send { report, .. } => Some(report.opened),
                _ => None,
            })
        };
        assert_eq!(said(&mut member, Event::Tick), None);
        assert_eq!(said(&mut member, Event::Entered(Epoch(1))), Some(Epoch(1)));
    }
}
