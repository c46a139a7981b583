//! Leases, and when a view that is decided is opened.
//!
//! **Lease.** A turn at a file renews when it wrote, read, and found there neither a view nor a proposal without this incarnation. The lease
//! counts from the beginning of the turns, of a majority of the files the earliest. Suppose a view without the node was chosen at
//! some moment: it stands in a majority of the files, so one of the node's turns was at a file that has it, and read before it was
//! there. So that turn began before the choice, and the lease ends no later than one lease after it. Whoever learns of
//! the view later than it was chosen waits that long by its own clock, drift and the margin added, before it opens the view.
//!
//! **Who is new** has no memory of who was put out before it came. It opens a view only when of its other members everybody who
//! acts acts in this view or a later one, and somebody does; or, if nobody acts, after waiting as long for all that it cannot know of. It need
//! not wait if it has learned of views one after the other, so that it knows the last incarnation of each node that was a member and is none any more, and
//! all of these are proved dead.

use std::sync::Arc;

use plexus_base::{Epoch, Incarnation, Nanos, NodeId};

use super::{Action, Member};

/// An incarnation that is no member any more and may still act.
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
    /// Renews the lease by the turns that went well so far.
    pub(super) fn renew(&mut self, out: &mut Vec<Action>) {
        let counted = self.decided.files.iter().filter_map(|file| self.files.get(&file.id));
        let mut renewed: Vec<Nanos> =
            counted.filter(|state| !state.is_aside).filter_map(|state| state.renewed).collect();
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

    /// Whether a majority of the files has answered lately.
    pub(super) fn reaches(&self, now: Nanos) -> bool {
        self.reached(now, |_| true) >= self.decided.majority()
    }

    /// How many files of the view that are `wanted` have answered lately.
    pub(super) fn reached(&self, now: Nanos, wanted: impl Fn(&super::VotingFile) -> bool) -> usize {
        let files = self.decided.files.iter().filter(|file| wanted(file));
        files.filter(|file| self.answers(file.id, now)).count()
    }

    /// Whether a file has answered lately, and is not set aside.
    pub(super) fn answers(&self, file: super::FileId, now: Nanos) -> bool {
        self.files.get(&file).is_some_and(|state| {
            !state.is_aside && state.answered.is_some_and(|at| now.since(at) < self.profile.lease)
        })
    }

    /// Opens the view that is decided, when everybody who must have stopped has.
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
                // There is none before it in which it might still act; and it is not one any more that acts in none.
                self.entered = self.decided.epoch;
            }
            self.opened = Some(Arc::clone(&self.decided));
            out.push(Action::Lease(self.lease_until));
            out.push(Action::Opened(Arc::clone(&self.decided)));
        }
    }

    /// Whether no other member acts in an earlier view, or may come to.
    fn others_follow(&self) -> bool {
        self.other_members().all(|(opened, decided)| {
            opened >= self.decided.epoch || opened == Epoch(0) && decided >= self.decided.epoch
        })
    }

    fn one_has_opened(&self) -> bool {
        self.other_members().any(|(opened, _)| opened >= self.decided.epoch)
    }

    /// Whether nobody that it cannot know of still acts: all incarnations that were members before and are none now are proved to be over, or
    /// have been waited for. Before the first view nobody acted.
    fn has_waited(&self, now: Nanos) -> bool {
        let is_over =
            |(node, incarnation): (usize, Incarnation)| self.peers.is_dead(NodeId(node as u8), incarnation);
        self.decided.epoch == Epoch(1)
            || self.former.is_some_and(|former| former.into_iter().enumerate().all(is_over))
            || now >= self.learned + self.profile.wait()
    }

    /// What each other member says that it has opened, and knows to be decided; nothing of it known: nothing.
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
    fn how_each_wait_ends_is_said() {
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
    fn the_first_view_is_said_to_be_open_as_soon_as_it_is() {
        let (mut member, now) = (member(), Nanos(1_000));
        let mut view = (**member.decided()).clone();
        (view.epoch, view.seats[0]) = (Epoch(1), Seat::In(Incarnation(1)));
        (member.decided, member.lease_until) = (Arc::new(view), Nanos(u64::MAX));
        assert_eq!(member.said(now).opened, Epoch(0));
        member.open(now, &mut Vec::new());
        assert_eq!(member.said(now).opened, Epoch(1), "else it would seem to act in none");
    }

    #[test]
    fn a_view_is_said_to_be_open_when_it_is_entered_and_then_at_once() {
        let (mut member, now) = (member(), Nanos(1_000_000_000));
        let mut view = (**member.decided()).clone();
        view.epoch = Epoch(1);
        (member.decided, member.next_report) = (Arc::new(view), now + Nanos(50_000_000));
        member.opened = Some(Arc::clone(&member.decided));
        member.lease_until = Nanos(u64::MAX);
        member.said = Some((member.said(now), Nanos(0)));
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
