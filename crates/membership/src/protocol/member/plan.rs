//! The plan for the next view, and when this node proposes it.
//!
//! Members that report and reach a majority of the files stay if all of them hear each other.
//! Otherwise the largest set that do stays, and of equal sets the one with the lowest node
//! ([`Connectivity::largest`]). Nodes that wait to join are added when all staying members hear
//! them. If no member is left, the waiting nodes form a view.
//!
//! The lowest node of the new view proposes first, and each further one after a delay. Safety does
//! not depend on this: the files decide between concurrent proposals.

use std::sync::Arc;

use plexus_base::{Epoch, Incarnation, Nanos, NodeId, NodeSet};

use super::{Action, ConfigChange, ConfigChangeRefusal, Member, is_granted};
use crate::protocol::{
    record::Contents,
    split::Connectivity,
    view::{MAX_FILES, Seat, View, VotingFile},
};

/// The view that this node would propose, and since when.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    view: Arc<View>,
    since: Nanos,
}

/// The choice of the next members.
struct Choice {
    members: NodeSet,
    /// True if another set of nodes has precedence and gets time to propose first.
    late: bool,
}

/// A change of the voting files.
#[derive(PartialEq, Eq, Debug)]
struct FilesChange {
    files: Vec<VotingFile>,
    /// True if this node's config change caused it.
    is_requested: bool,
}

impl Member {
    /// Plans the next view and proposes it when its time has come.
    pub(super) fn plan_next_view(&mut self, now: Nanos, out: &mut Vec<Action>) {
        if now < self.next_plan {
            return;
        }
        self.next_plan = now + self.profile.heartbeat;
        self.review_config_change(now, out);
        self.review_leavers(now, out);
        let Some(paxos) = &mut self.paxos else { return };
        if paxos.is_proposing() {
            if now.since(self.proposing_since) < self.profile.evict {
                return;
            }
            paxos.abandon();
        }
        let Some((view, delay)) = self.desired(now) else {
            self.plan = None;
            return;
        };
        let before = self.plan.take().filter(|plan| *plan.view == view);
        let since = before.as_ref().map_or(now, |plan| plan.since);
        let view = before.map_or_else(|| Arc::new(view), |plan| plan.view);
        let due = (since + delay).max(self.retry);
        if now < due || !self.reaches(now) {
            self.plan = Some(Plan { view, since });
            self.next_plan = self.next_plan.min(due.max(now + Nanos(1)));
            return;
        }
        if let Some(paxos) = &mut self.paxos {
            paxos.propose(view);
            self.proposing_since = now;
            self.schedule_urgent_turns(now);
        }
    }

    /// Returns the time until which a beaten node waits before it proposes again. The delay differs
    /// by node so that one of them succeeds. A dead winner is not waited for.
    pub(super) fn retry_time(&self, contents: &Contents, now: Nanos) -> Nanos {
        let ballots = contents
            .nodes
            .iter()
            .map(|blocks| blocks.ballot().map(|ballot| (ballot.decided.epoch, ballot.mbal)));
        let winner = ballots.enumerate().max_by_key(|(_, number)| *number);
        let winner = winner.and_then(|(node, _)| self.peers.alive(NodeId(node as u8)));
        match winner {
            Some(_) => now + Nanos(self.profile.heartbeat.0 * (2 + 2 * u64::from(self.me.0))),
            None => now,
        }
    }

    /// Returns the next view that this node wants and how long it must stay the same. `None`:
    /// nothing changes, or other nodes decide.
    fn desired(&self, now: Nanos) -> Option<(View, Nanos)> {
        let decided = &self.decided;
        let choice = self.choose(now)?;
        let mut seats = decided.seats;
        for node in decided.cluster().iter() {
            let seat = &mut seats[node.index()];
            *seat = match (choice.members.contains(node), *seat) {
                (true, _) => Seat::In(self.incarnation_of(node, now)?),
                (false, Seat::In(incarnation)) => Seat::Out(incarnation),
                (false, seat) => seat,
            };
        }
        let is_requested = match self.config_change {
            Some((ConfigChange::AddNode(node), _)) => {
                seats[node.index()] = Seat::Out(seats[node.index()].last());
                true
            }
            Some((ConfigChange::RemoveNode(node), _)) => {
                seats[node.index()] = Seat::Free(decided.seats[node.index()].last());
                true
            }
            _ => false,
        };
        let change = self.other_files(Epoch(decided.epoch.0 + 1), now);
        let is_requested = is_requested || change.as_ref().is_some_and(|change| change.is_requested);
        let files = change.map_or_else(|| decided.files.clone(), |change| change.files);
        if seats == decided.seats && files == decided.files {
            return None;
        }
        let view = decided.next(seats, files);
        let delay = self.delay(&view, choice.late, is_requested, now);
        Some((view, delay))
    }

    /// Returns the current incarnation of a node, if known.
    fn incarnation_of(&self, node: NodeId, now: Nanos) -> Option<Incarnation> {
        match node == self.me {
            true => Some(self.incarnation),
            false => self.peers.fresh(node, now, &self.profile).map(|report| report.incarnation),
        }
    }

    fn choose(&self, now: Nanos) -> Option<Choice> {
        let decided = &self.decided;
        let (mut connectivity, mut usable, mut leaving) =
            (Connectivity::default(), NodeSet::EMPTY, NodeSet::EMPTY);
        let (mut member, mut stalled) = (NodeSet::EMPTY, NodeSet::EMPTY);
        connectivity.hears(self.me, self.peers.hears(now, &self.profile));
        let awaited = self.awaited_leavers(now);
        let mut note = |node: NodeId, incarnation: Incarnation, reaches: bool, leaves: bool| {
            if decided.has(node, incarnation) {
                member.insert(node);
            }
            if leaves && !awaited.contains(node) {
                leaving.insert(node);
            } else if reaches {
                usable.insert(node);
            } else {
                stalled.insert(node);
            }
        };
        note(self.me, self.incarnation, self.reaches(now), self.leaving);
        for node in decided.cluster().without(self.me).iter() {
            if let Some(report) = self.peers.fresh(node, now, &self.profile)
                && self.has_same_times(report)
            {
                connectivity.hears(node, report.hears);
                note(node, report.incarnation, report.reaches, report.leaving);
            }
        }
        let live = usable.iter().filter(|node| member.contains(*node)).collect::<NodeSet>();
        let others = usable.iter().filter(|node| !live.contains(*node));
        let others = others.filter(|node| {
            self.incarnation_of(*node, now).is_some_and(|incarnation| !decided.is_past(*node, incarnation))
        });
        let others: NodeSet = others.collect();
        if live.is_empty() {
            return self.choose_without_members(&connectivity, member, leaving, others);
        }
        // Only members decide about members.
        if !live.contains(self.me) {
            return None;
        }
        let choice = self.split_side(&connectivity, live);
        // A member whose path to the files stalls stays while all others hear it.
        let stalled = stalled
            .iter()
            .filter(|node| member.contains(*node) && self.peers.has_reached(*node, now, &self.profile));
        let members = joined(&connectivity, choice.members, stalled.collect());
        Some(Choice { members: joined(&connectivity, members, others), ..choice })
    }

    /// Tells the node to leave when the other leaving members have needed that for some time.
    fn review_leavers(&mut self, now: Nanos, out: &mut Vec<Action>) {
        let awaited = self.awaited_leavers(now);
        if awaited.is_empty() || !self.is_member() || self.leaving {
            self.must_leave_since = None;
            return;
        }
        let since = *self.must_leave_since.get_or_insert(now);
        if now >= since + self.profile.settle() && !self.must_leave {
            self.must_leave = true;
            out.push(Action::LeaveToo(awaited));
        }
    }

    /// Returns the leaving members that serve voting files without which the other nodes that live
    /// have no majority. They stay until the other members leave with them.
    fn awaited_leavers(&self, now: Nanos) -> NodeSet {
        let decided = &self.decided;
        let (mut leavers, mut others) = (NodeSet::EMPTY, NodeSet::EMPTY);
        for node in decided.cluster().iter() {
            let leaves = match node == self.me {
                true => Some(self.leaving),
                false => self.peers.fresh(node, now, &self.profile).map(|report| report.leaving),
            };
            match leaves {
                Some(true) => leavers.insert(node),
                Some(false) => others.insert(node),
                None => {}
            }
        }
        let members = decided.members();
        let served_by = |nodes: NodeSet| {
            let hosts = decided.files.iter().filter_map(|file| file.host);
            hosts.filter(|host| nodes.contains(*host)).count()
        };
        let left = served_by(others) + decided.files.iter().filter(|file| file.host.is_none()).count();
        let members_stay = others.iter().any(|node| members.contains(node));
        match served_by(leavers) > 0 && members_stay && left < decided.majority() {
            true => leavers.iter().filter(|node| members.contains(*node)).collect(),
            false => NodeSet::EMPTY,
        }
    }

    /// Chooses the next members when no member can stay. The last member leaves; without any
    /// member, the waiting nodes form a view.
    fn choose_without_members(
        &self,
        connectivity: &Connectivity,
        member: NodeSet,
        leaving: NodeSet,
        others: NodeSet,
    ) -> Option<Choice> {
        if member.is_empty() {
            return others.contains(self.me).then(|| self.split_side(connectivity, others));
        }
        let all_leave = member.iter().all(|node| leaving.contains(node));
        (all_leave && member.contains(self.me)).then_some(Choice { members: NodeSet::EMPTY, late: false })
    }

    /// Returns the side of a split that stays, or this node's own side, marked late, if it is on
    /// another side.
    fn split_side(&self, connectivity: &Connectivity, nodes: NodeSet) -> Choice {
        let members = connectivity.largest(nodes, NodeSet::EMPTY);
        match members.contains(self.me) {
            true => Choice { members, late: false },
            false => {
                Choice { members: connectivity.largest(nodes, NodeSet::from_iter([self.me])), late: true }
            }
        }
    }

    /// Returns the next view's voting files if one is added or removed.
    fn other_files(&self, epoch: Epoch, now: Nanos) -> Option<FilesChange> {
        let decided = &self.decided;
        let without = |id| decided.files.iter().copied().filter(|file| file.id != id).collect::<Vec<_>>();
        let with = |id, host| {
            let mut files = without(id);
            files.push(VotingFile { id, since: epoch, host });
            files.sort_unstable();
            files
        };
        let aside = decided
            .files
            .iter()
            .find(|file| self.files.get(&file.id).is_some_and(|state| state.is_set_aside));
        if let Some(file) = aside.filter(|_| decided.files.len() > 1) {
            return Some(FilesChange { files: without(file.id), is_requested: false });
        }
        let is_full = decided.files.len() == MAX_FILES;
        match self.config_change {
            // Other nodes may have added the last possible file meanwhile.
            Some((ConfigChange::AddFile(id, host), _)) if !is_full && self.answers(id, now) => {
                return Some(FilesChange { files: with(id, host), is_requested: true });
            }
            Some((ConfigChange::RemoveFile(id), _)) => {
                return Some(FilesChange { files: without(id), is_requested: true });
            }
            _ => {}
        }
        let (id, host) = self.returning.iter().find(|(id, _)| self.answers(**id, now))?;
        (!is_full).then(|| FilesChange { files: with(*id, *host), is_requested: false })
    }

    /// Returns how long `view` must stay the plan before this node proposes it.
    fn delay(&self, view: &View, late: bool, is_requested: bool, now: Nanos) -> Nanos {
        let Self { decided, profile, .. } = self;
        let gone: Vec<_> = decided.gone(view).collect();
        let removed: Vec<_> =
            gone.iter().filter(|(node, incarnation)| !self.is_over(*node, *incarnation)).collect();
        let speaks = |(node, incarnation): &&(NodeId, Incarnation)| {
            self.peers.fresh(*node, now, profile).is_some_and(|report| report.incarnation == *incarnation)
        };
        let is_complete = view.members() == view.cluster();
        let joins = view.gone(decided).next().is_some();
        let no_member_stays =
            decided.members().iter().all(|node| decided.incarnation(node) != view.incarnation(node));
        let base = match removed.is_empty() {
            // No further node can join.
            true if is_complete => Nanos(0),
            // Nodes that start at about the same time join together.
            true if joins && no_member_stays => profile.settle(),
            // No node has to be waited for.
            true if is_requested || !joins || !gone.is_empty() => Nanos(0),
            true => profile.heartbeat,
            false if removed.iter().any(speaks) => profile.settle(),
            false => profile.heartbeat,
        };
        if late {
            return base + profile.timeout();
        }
        // A newly started node must first hear whether other nodes are running.
        let listening = Nanos((self.started + profile.evict + profile.settle()).0.saturating_sub(now.0));
        let mut incarnations =
            decided.members().iter().filter_map(|node| Some((node, decided.incarnation(node)?)));
        let is_new = !decided.has(self.me, self.incarnation)
            && incarnations.any(|(node, incarnation)| !self.peers.is_dead(node, incarnation));
        let base = if is_new { base.max(listening) } else { base };
        let stagger =
            if base == Nanos(0) { self.proposal().min(profile.stagger()) } else { profile.stagger() };
        base + Nanos(self.proposal_rank(view) * stagger.0)
    }

    /// Returns true if an incarnation is proved dead or has announced its leave.
    fn is_over(&self, node: NodeId, incarnation: Incarnation) -> bool {
        let left =
            self.peers.alive(node).is_some_and(|report| report.incarnation == incarnation && report.leaving);
        left || self.leaving && node == self.me || self.peers.is_dead(node, incarnation)
    }

    /// Returns the duration of an undisputed proposal at the current speed of the files: the
    /// current turn, two more turns and a report.
    fn proposal(&self) -> Nanos {
        let files = self.decided.files.iter().filter_map(|file| self.files.get(&file.id)?.took);
        let mut took: Vec<Nanos> = files.collect();
        took.sort_unstable();
        let turn = took.get(self.decided.majority() - 1);
        turn.map_or(self.profile.stagger(), |turn| Nanos(4 * turn.0) + self.profile.pause())
    }

    /// Returns the number of nodes that propose `view` before this node: staying members first,
    /// then joining nodes, each by number. A node with a config change proposes first.
    fn proposal_rank(&self, view: &View) -> u64 {
        if self.config_change.is_some() {
            return 0;
        }
        let members = if view.members().is_empty() { self.decided.members() } else { view.members() };
        let stays = |node: NodeId| {
            self.decided.incarnation(node).is_some_and(|incarnation| view.has(node, incarnation))
        };
        let rank = |node: NodeId| (!stays(node), node);
        members.iter().filter(|node| rank(*node) < rank(self.me)).count() as u64
    }

    /// Refuses a config change that cannot be granted.
    fn review_config_change(&mut self, now: Nanos, out: &mut Vec<Action>) {
        let Some((config_change, since)) = self.config_change else { return };
        let refused = match config_change {
            ConfigChange::RemoveFile(id) => {
                let left = self.decided.files.len() - 1;
                let majority = left / 2 + 1;
                (self.reached(now, |file| file.id != id) < majority).then_some(ConfigChangeRefusal::Quorum)
            }
            ConfigChange::AddFile(id, _)
                if self.decided.file(id).is_none() && self.decided.files.len() == MAX_FILES =>
            {
                Some(ConfigChangeRefusal::TooMany)
            }
            ConfigChange::AddFile(id, _) => {
                let timeout_is_over = now.since(since) >= self.profile.evict;
                (timeout_is_over && !self.answers(id, now)).then_some(ConfigChangeRefusal::Unreachable)
            }
            _ => None,
        };
        if is_granted(config_change, &self.decided) {
            self.answer(config_change, Ok(()), out);
        } else if let Some(refused) = refused {
            self.answer(config_change, Err(refused), out);
            self.change_files(now);
        }
    }
}

/// Adds to `members` each of `others`, in order, that hears all nodes added so far and is heard by
/// them.
fn joined(connectivity: &Connectivity, mut members: NodeSet, others: NodeSet) -> NodeSet {
    for node in others.iter() {
        if !members.contains(node) && connectivity.mutual_with_all(node, members) {
            members.insert(node);
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{FileId, Profile};

    #[test]
    fn a_file_above_the_limit_is_refused_although_there_was_room_at_the_request() {
        let (file, now) = (FileId(99), Nanos(0));
        let first = View::first(NodeSet::first(1), (0..MAX_FILES as u64).map(|id| (FileId(id), None)));
        let mut member = Member::new(NodeId(0), Incarnation(1), Profile::LAN, Arc::new(first), now);
        let config_change = ConfigChange::AddFile(file, None);
        member.config_change = Some((config_change, now));
        member.change_files(now);
        member.files.get_mut(&file).expect("it is looked at").answered = Some(now);
        assert_eq!(member.other_files(Epoch(1), now), None);
        let mut out = Vec::new();
        member.review_config_change(now, &mut out);
        assert_eq!(out, [Action::Answer(config_change, Err(ConfigChangeRefusal::TooMany))]);
    }
}
