//! Turns at the voting files: when each begins, and how its result is used.
//!
//! Turns at a file are one heartbeat apart. They are a third of a lease apart while the node [is at
//! rest](Member::is_at_rest): all other members promise, and nothing is wanted of the files but the
//! lease. Turns are the largest part of the work of an idle node.

use std::sync::Arc;

use plexus_base::Nanos;

use super::{Action, Member, StopReason, TurnFailed};
use crate::protocol::{
    files::{FileState, OwnBlock},
    paxos::{Paxos, PaxosProgress},
    record::Contents,
    view::FileId,
};

impl Member {
    /// Begins a turn at every file that is due.
    pub(super) fn begin_turns(&mut self, now: Nanos, out: &mut Vec<Action>) {
        let rest = self.rest(now);
        let due = self.files.values().filter(|state| state.next + rest <= now && self.may_begin(state));
        let due: Vec<FileId> = due.map(|state| state.file.id).collect();
        for id in due {
            let report = self.report(now);
            let ballot = self.paxos.as_ref().map(Paxos::own);
            let state = self.files.get_mut(&id).expect("it is due");
            let writes = state.begin(now, ballot, || report);
            out.push(Action::Turn { file: state.file, writes });
        }
    }

    /// Returns true if another turn may begin at a file. A file that is set aside has no turns
    /// until it is removed.
    pub(super) fn may_begin(&self, state: &FileState) -> bool {
        let is_left_alone = state.is_set_aside && self.decided.file(state.file.id).is_some();
        state.turn.is_none() && !is_left_alone
    }

    /// Returns the time that turns wait for beyond [`FileState::next`].
    pub(super) fn rest(&self, now: Nanos) -> Nanos {
        match self.is_at_rest(now) {
            true => Nanos(self.profile.lease.0 / 3 - self.profile.heartbeat.0),
            false => Nanos(0),
        }
    }

    /// Returns true if all other members promise as they do while nothing is lost, and no view
    /// change, config change or remember request is wanted or under way. A node that misses a
    /// peer's reports is not at rest long before it evicts the peer, and long before its own lease
    /// ends.
    fn is_at_rest(&self, now: Nanos) -> bool {
        let epoch = self.decided.epoch;
        let is_settled =
            self.entered == epoch && self.opened.as_ref().is_some_and(|view| view.epoch == epoch);
        let is_wanted = self.leaving
            || self.plan.is_some()
            || self.config_change.is_some()
            || self.paxos.as_ref().is_none_or(Paxos::is_proposing)
            || !self.returning.is_empty();
        let is_good =
            |state: &FileState| !state.is_set_aside && state.ballot().is_some() && !self.lacks(state);
        let promised = self.promises().map(|(_, until)| until).min();
        let usual = now + Nanos(self.profile.lease.0 - self.profile.suspicion().0);
        is_settled
            && !is_wanted
            && self.files.values().all(is_good)
            && promised.is_some_and(|promised| promised >= usual)
    }

    /// Handles the end of a turn.
    pub(super) fn finished(
        &mut self,
        id: FileId,
        result: Result<Box<Contents>, TurnFailed>,
        now: Nanos,
        out: &mut Vec<Action>,
    ) {
        let Some(state) = self.files.get_mut(&id).filter(|state| state.turn.is_some()) else { return };
        if let Ok(contents) = &result {
            match state.own_block(self.incarnation, contents) {
                OwnBlock::Known => {}
                OwnBlock::Later(known) if self.opened.is_none() => {
                    return self.end(Action::Die(StopReason::Behind(known)), out);
                }
                OwnBlock::Later(_) | OwnBlock::Foreign => {
                    return self.end(Action::Die(StopReason::Doubled(id)), out);
                }
            }
        }
        let was_aside = state.is_set_aside;
        state.next = now + self.profile.heartbeat;
        let finished = match &result {
            Ok(contents) => state.finished(contents),
            Err(TurnFailed) => {
                state.failed();
                None
            }
        };
        if state.is_set_aside && !was_aside {
            out.push(Action::SetAside(id));
            self.next_plan = now;
        }
        let (Some(finished), Ok(contents)) = (finished, result) else { return };
        // A file that is set aside has turns only after its removal.
        state.is_set_aside = false;
        (state.answered, state.took) = (Some(now), Some(Nanos(now.since(finished.started).0)));
        state.next = now.max(finished.started + self.profile.heartbeat);
        self.absorb_contents(&contents, now, out);
        if self.is_over {
            return;
        }
        let is_evicting = self.is_evicting(&contents);
        let Some(state) = self.files.get_mut(&id) else { return };
        if let Some(reported) = finished.reported.filter(|_| !is_evicting) {
            (state.renewed, state.reported) = (Some(finished.started), reported);
        }
        let own = &contents.nodes[self.me.index()];
        if finished.reported.is_none() {
            self.counter = self.counter.max(own.heartbeat.good().map_or(0, |report| report.counter));
        }
        match &mut self.paxos {
            None => {
                state.contents = Some(*contents);
                self.recover(now);
            }
            Some(paxos) => {
                if let Some(found) =
                    own.ballot().filter(|found| finished.reported.is_none() && *found != paxos.own())
                {
                    paxos.pass(found.counter);
                }
                match paxos.confirmed(id, &contents) {
                    PaxosProgress::Waiting => {}
                    PaxosProgress::Accepting => self.proposing_since = now,
                    PaxosProgress::Beaten => self.retry = self.retry_time(&contents, now),
                    PaxosProgress::Chosen(view) => self.learn(&view, now, out),
                }
            }
        }
        self.schedule_urgent_turns(now);
        self.remember(out);
    }

    /// Schedules immediate turns at files that lack the newest ballot or a report since the last
    /// remember request.
    pub(super) fn schedule_urgent_turns(&mut self, now: Nanos) {
        let lacking = self.files.values().filter(|state| self.lacks(state));
        let lacking: Vec<FileId> = lacking.map(|state| state.file.id).collect();
        for id in lacking {
            self.files.get_mut(&id).expect("it is lacking").next = now;
        }
    }

    /// Returns true if a file lacks the newest ballot or a report since the last remember request.
    fn lacks(&self, state: &FileState) -> bool {
        let newest = self.paxos.as_ref().map(|paxos| paxos.own().counter);
        newest.is_some_and(|newest| state.ballot().is_some_and(|ballot| ballot < newest))
            || self.remembering.is_some_and(|asked| state.reported <= asked)
    }

    /// Answers the remember request when a majority of the files was written and read since.
    fn remember(&mut self, out: &mut Vec<Action>) {
        let counted = self.decided.files.iter().filter_map(|file| self.files.get(&file.id));
        let reported = counted.filter(|state| !state.is_set_aside).map(|state| state.reported);
        if let Some(asked) = self.remembering
            && reported.filter(|reported| *reported > asked).count() >= self.decided.majority()
        {
            self.remembering = None;
            out.push(Action::Remembered(self.registry));
        }
    }

    /// Handles the blocks of all nodes.
    fn absorb_contents(&mut self, contents: &Contents, now: Nanos, out: &mut Vec<Action>) {
        if let Some(view) = contents.decided() {
            self.learn(view, now, out);
        }
        for report in contents.nodes.iter().filter_map(|blocks| blocks.heartbeat.good()) {
            self.registry = self.registry.max(report.registry);
            if report.node != self.me && self.peers.seen(report, now) {
                self.next_plan = now;
            }
            // Those of an earlier incarnation of this node too: a restart of all nodes forgets
            // none.
            self.absorb_proofs(report, now, out);
        }
    }

    /// Returns true if any node has proposed a view without this node.
    fn is_evicting(&self, contents: &Contents) -> bool {
        let proposed = contents.nodes.iter().filter_map(|blocks| blocks.ballot()?.proposed.as_ref());
        let mut next = proposed.filter(|view| view.epoch > self.decided.epoch);
        self.is_member() && next.any(|view| !view.has(self.me, self.incarnation))
    }

    /// Recovers the promises of earlier incarnations once a majority of the files was read.
    fn recover(&mut self, now: Nanos) {
        let files = self.decided.files.iter().filter_map(|file| self.files.get(&file.id));
        let found: Vec<&Contents> =
            files.filter(|state| !state.is_set_aside).filter_map(|state| state.contents.as_ref()).collect();
        if found.len() < self.decided.majority() {
            return;
        }
        self.paxos = Some(Paxos::recovered(self.me, Arc::clone(&self.decided), found));
        self.files.values_mut().for_each(|state| state.contents = None);
        self.next_plan = now;
    }
}

#[cfg(test)]
mod tests {
    use plexus_base::{Epoch, Incarnation, NodeId, NodeSet};

    use super::*;
    use crate::protocol::{Ballot, Block, Event, Profile, Report, ReportNumber, Seat, View};

    #[test]
    fn a_joining_node_ends_when_the_files_have_lost_what_it_read_there() {
        let (file, me) = (FileId(7), NodeId(1));
        let first = Arc::new(View::first(NodeSet::first(2), [(file, None)]));
        let mut contents = Contents::default();
        let ballot = Ballot { counter: 5, mbal: 2, bal: 0, proposed: None, decided: Arc::clone(&first) };
        contents.nodes[0].ballots[0] = Block::Good(Arc::new(ballot));
        let (_, profile) = Profile::ALL[0];
        let mut member = Member::new(me, Incarnation(1), profile, first, Nanos(1));
        member.handle(Nanos(1), Event::Tick, &mut Vec::new());
        let mut found = |contents: Contents| {
            let (mut out, result) = (Vec::new(), Ok(Box::new(contents)));
            member.handle(Nanos(2), Event::Finished { file, result }, &mut out);
            out
        };
        let goes_on = found(contents);
        assert!(matches!(goes_on[..], [.., Action::Wake(_)]), "{goes_on:?}");
        let ends = found(Contents::default());
        assert_eq!(ends, [Action::SetAside(file), Action::Die(StopReason::FilesOlder)]);
    }

    /// An older copy lacks what was written to the file since: two of three files must be sound.
    #[test]
    fn a_file_that_is_set_aside_does_not_count() {
        let [first, second, aside] = [1, 2, 3].map(FileId);
        let view = View::first(NodeSet::first(1), [first, second, aside].map(|file| (file, None)));
        let now = Nanos::from_ms(1000);
        let mut member = Member::new(NodeId(0), Incarnation(1), Profile::LAN, Arc::new(view), now);
        member.remembering = Some(5);
        let turn = |member: &mut Member, file| {
            let state = member.files.get_mut(&file).expect("a file of the view");
            (state.renewed, state.answered, state.reported) = (Some(now), Some(now), 6);
            state.contents = Some(Contents::default());
            state.is_set_aside = file == aside;
            member.recover(now);
            let mut out = Vec::new();
            member.remember(&mut out);
            let is_remembered = out == [Action::Remembered(member.registry)];
            (member.reaches(now), member.renewed().is_some(), member.paxos.is_some(), is_remembered)
        };
        assert_eq!(turn(&mut member, aside), (false, false, false, false));
        assert_eq!(turn(&mut member, first), (false, false, false, false));
        assert_eq!(turn(&mut member, second), (true, true, true, true));
        assert!(!member.may_begin(&member.files[&aside]) && member.may_begin(&member.files[&first]));
    }

    #[test]
    fn proofs_of_an_earlier_incarnation_are_found_in_the_files() {
        let (file, me, now) = (FileId(7), NodeId(1), Nanos(1));
        let first = Arc::new(View::first(NodeSet::first(3), [(file, None)]));
        let mut member = Member::new(me, Incarnation(5), Profile::LAN, Arc::clone(&first), now);
        member.handle(now, Event::Tick, &mut Vec::new());
        let mut report = Report::first(me, Incarnation(4), &Profile::LAN, first);
        report.dead[2] = Incarnation(3);
        let mut contents = Contents::default();
        contents.nodes[1].heartbeat = Block::Good(Arc::new(report));
        let result = Ok(Box::new(contents));
        member.handle(now, Event::Finished { file, result }, &mut Vec::new());
        assert_eq!(member.report(now).dead[..3], [Incarnation(0), Incarnation(0), Incarnation(3)]);
    }

    /// A member that acts in a view with one peer, and its voting file.
    struct Pair {
        member: Member,
        contents: Contents,
        /// The number of the last report to the peer.
        sent: u64,
        now: Nanos,
    }

    const STEP: Nanos = Nanos::from_ms(5);

    impl Pair {
        fn new() -> Self {
            let mut view = View::first(NodeSet::first(2), [(FileId(7), None)]);
            view.epoch = Epoch(1);
            (0..2).for_each(|node| view.seats[node] = Seat::In(Incarnation(1)));
            let now = Nanos::from_ms(1000);
            let mut member = Member::new(NodeId(0), Incarnation(1), Profile::LAN, Arc::new(view), now);
            (member.opened, member.entered) = (Some(Arc::clone(&member.decided)), Epoch(1));
            member.lease_until = now + Profile::LAN.lease;
            Self { member, contents: Contents::default(), sent: 0, now }
        }

        /// Handles an event, and executes turns at once. Returns the number of turns.
        fn handle(&mut self, event: Event) -> usize {
            let mut out = Vec::new();
            self.member.handle(self.now, event, &mut out);
            let mut turns = 0;
            for action in out {
                match action {
                    Action::Send { report, .. } => self.sent = report.counter,
                    Action::Turn { file, writes } => {
                        let own = &mut self.contents.nodes[0];
                        own.heartbeat = writes.heartbeat.map_or(own.heartbeat.clone(), Block::Good);
                        if let Some((slot, ballot)) = writes.ballot {
                            own.ballots[usize::from(slot)] = Block::Good(ballot);
                        }
                        let result = Ok(Box::new(self.contents.clone()));
                        turns += 1 + self.handle(Event::Finished { file: file.id, result });
                    }
                    Action::Die(reason) => panic!("{reason}"),
                    _ => {}
                }
            }
            turns
        }

        /// Lets a time pass. The peer reports in each step if it `speaks`. Returns the number of
        /// turns.
        fn pass(&mut self, ms: u64, speaks: bool) -> usize {
            let (end, mut turns) = (self.now + Nanos::from_ms(ms), 0);
            while self.now < end {
                self.now = self.now + STEP;
                turns += self.handle(Event::Tick);
                if speaks {
                    let decided = Arc::clone(&self.member.decided);
                    let mut report = Report::first(NodeId(1), Incarnation(1), &Profile::LAN, decided);
                    (report.counter, report.opened, report.reaches) = (self.now.0, Epoch(1), true);
                    report.hears = NodeSet::from_iter([NodeId(0)]);
                    report.echo[0] = ReportNumber { incarnation: Incarnation(1), counter: self.sent };
                    turns += self.handle(Event::Heard(Arc::new(report)));
                }
            }
            turns
        }
    }

    #[test]
    fn turns_are_rare_while_all_others_promise_and_frequent_as_soon_as_one_is_missed() {
        let mut pair = Pair::new();
        pair.pass(1000, true);
        let at_rest = pair.pass(3000, true);
        assert_eq!(at_rest, 10, "a third of a lease apart");
        // The first turn without a pause comes when the peer is suspected.
        pair.pass(Profile::LAN.suspicion().0 / 1_000_000, false);
        assert_eq!(pair.pass(500, false), 5, "a heartbeat apart");
        pair.pass(1000, true);
        assert_eq!(pair.pass(3000, true), 10, "the peer is back");
        assert!(pair.handle(Event::Remember(5)) > 0, "a request is not kept waiting");
    }
}
