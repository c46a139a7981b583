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
//! # New members
//!
//! A new member does not know which nodes were evicted before it joined. It opens a view when at
//! least one other member has opened this view or a later one, and no other member acts in an
//! earlier view. If no other member acts, it waits for one lease time. It need not wait if it has
//! learned all views in sequence: then it knows the last removed incarnation of each node, and
//! opens the view when all of them are proved dead.

use std::sync::Arc;

use plexus_base::{Epoch, Incarnation, Nanos, NodeId};

use super::{Action, Member};

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
    /// Renews the lease from the turns that have succeeded so far.
    pub(super) fn renew(&mut self, out: &mut Vec<Action>) {
        let counted = self.decided.files.iter().filter_map(|file| self.files.get(&file.id));
        let mut renewed: Vec<Nanos> =
            counted.filter(|state| !state.is_set_aside).filter_map(|state| state.renewed).collect();
        renewed.sort_unstable_by(|a, b| b.cmp(a));
        let Some(earliest) = renewed.get(self.decided.majority() - 1) else { return };
        let until = *earliest + self.profile.lease;
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

    /// Opens the decided view when every incarnation that must stop has stopped.
    pub(super) fn open(&mut self, now: Nanos, out: &mut Vec<Action>) {
        out.extend(self.waits.extract_if(.., |wait| wait.until <= now).map(|wait| wait.over(false)));
        let is_open = self.opened.as_ref().is_some_and(|view| view.epoch == self.decided.epoch);
        if is_open || !self.is_member() || now >= self.lease_until {
            return;
        }
        let stopped = match self.opened {
            Some(_) => self.waits.is_empty(),
            None => self.others_follow() && (self.one_has_opened() || self.has_waited(now)),
        };
        if stopped {
            if self.opened.is_none() {
                // The node acted in no view before, so it cannot still act in an older one.
                self.entered = self.decided.epoch;
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
    /// proved dead, or their leases have been waited for. Before the first view no node acted.
    fn has_waited(&self, now: Nanos) -> bool {
        let is_over =
            |(node, incarnation): (usize, Incarnation)| self.peers.is_dead(NodeId(node as u8), incarnation);
        self.decided.epoch == Epoch(1)
            || self.former.is_some_and(|former| former.into_iter().enumerate().all(is_over))
            || now >= self.learned + self.profile.wait()
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
    use plexus_base::NodeSet;

    use super::*;
    use crate::protocol::{Event, FileId, Profile, Seat, View};

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
