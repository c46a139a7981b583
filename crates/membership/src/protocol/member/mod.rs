//! One node's part in the membership of a cluster.
//!
//! # Contract
//!
//! - Create a [`Member`] for each incarnation of a node, with growing incarnation numbers.
//! - Pass every [`Event`] to [`Member::handle`] with the time of the node's monotonic clock, and
//!   execute the [`Action`]s in order.
//! - Do not write over a block that another process has written since the last turn at the file:
//!   read instead. The node then ends, because that process acts as this node too.
//! - Send [`Event::Tick`] at the time of the last [`Action::Wake`].
//! - Execute a node's turns at a file in order, over all of its incarnations. A failed turn may
//!   have been executed fully, partly or not at all. It may still be running, but it never takes
//!   effect after a later turn.
//!
//! # Guarantees
//!
//! - A node may act from [`Action::Opened`] on, while the last [`Action::Lease`] lasts, in the view
//!   opened last.
//! - If two nodes may act at the same time, each incarnation is a member of the other's view.
//! - For one epoch, nodes learn only one view, and no node learns an earlier view after it.
//! - An incarnation that was a member and is none any more never acts again.
//!
//! The guarantees rely on three things. Clocks differ by no more than the profile says. A node that
//! must stop has stopped before the margin ends. Of any two majorities of voting files, at least
//! one common file keeps its content. Late or lost messages never break them.
//!
//! # Opening a view
//!
//! The old members open a view when every removed incarnation has stopped: it is proved dead, or
//! its lease has ended (`opening.rs`) and no node requires a proof. New members open the view after
//! an old member has.

mod opening;
mod peers;
mod plan;
mod turns;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use plexus_base::{Epoch, Incarnation, MAX_NODES, Nanos, NodeId, NodeSet};

use self::{opening::Wait, peers::Peers, plan::Plan};
use super::{
    files::{FileState, Writes},
    paxos::Paxos,
    profile::Profile,
    record::{Contents, Report, ReportNumber},
    view::{FileId, MAX_FILES, Seat, View, VotingFile},
};

/// The epoch used for a file that no view has taken in. A file's state is dropped when the file is
/// removed from the view and again when it returns.
const IN_NO_VIEW: Epoch = Epoch(u32::MAX);

/// A config change that an operator requests. Each node handles one at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigChange {
    /// This node leaves the cluster and announces it.
    Leave,
    /// A node is added to the cluster and may join.
    AddNode(NodeId),
    /// A node is removed from the cluster, and evicted if it is a member.
    RemoveNode(NodeId),
    /// A voting file made for this cluster is added, with the node that serves it, if any.
    AddFile(FileId, Option<NodeId>),
    /// A voting file is removed.
    RemoveFile(FileId),
}

/// The reason why a config change was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigChangeRefusal {
    /// The node is not a member.
    #[error("this node is no member of the cluster; ask one that is")]
    NoMember,
    /// Another config change of this node is under way.
    #[error("another change is under way at this node; ask again when it is done")]
    Busy,
    /// The change is already in effect.
    #[error("this is already so")]
    Done,
    /// The node number is out of range.
    #[error("no such node")]
    NoNode,
    /// The node is this node, and a node cannot remove itself.
    #[error("a node cannot remove itself; ask another")]
    Itself,
    /// The file is the last voting file.
    #[error("this is the last voting file; add another first")]
    LastFile,
    /// The cluster has the maximum number of voting files.
    #[error("there are {MAX_FILES} voting files already")]
    TooMany,
    /// The remaining voting files would have no majority that answers.
    #[error("no majority of the other voting files answers; repair one or add one first")]
    Quorum,
    /// The voting file to add does not answer.
    #[error("the voting file does not answer, or is not one of this cluster")]
    Unreachable,
}

/// The failure of a turn at a file. The file could not be written or read in time, or is not the
/// expected voting file of this cluster.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TurnFailed;

/// An input of the protocol.
#[derive(Clone, Debug)]
pub enum Event {
    /// The time of the last [`Action::Wake`] has come.
    Tick,
    /// A report arrived over the interconnect.
    Heard(Arc<Report>),
    /// A turn at a file ended.
    Finished {
        /// The voting file.
        file: FileId,
        /// The content that was read after the writes, or the failure.
        result: Result<Box<Contents>, TurnFailed>,
    },
    /// The links with this incarnation are lost. Its messages are ignored from now on, so that only
    /// one of the two nodes stays a member. Its blocks in voting files still count, because they
    /// show which nodes live and which view was decided.
    Lost(NodeId, Incarnation),
    /// The process of this incarnation is proved to have ended, with all its I/O.
    Dead(NodeId, Incarnation),
    /// The observer has entered this opened view and acts in no earlier one.
    Entered(Epoch),
    /// An operator requests a config change.
    ConfigChange(ConfigChange),
    /// The registry has reached this generation, which every later report contains.
    Registry(u64),
    /// The same as [`Event::Registry`]. The protocol answers with [`Action::Remembered`] once the
    /// generation is in the voting files.
    Remember(u64),
}

/// The reason why a node must stop at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StopReason {
    /// Neither a majority of the voting files nor all other members have renewed the lease in time.
    #[error("the lease is over")]
    LeaseOver,
    /// A view without this incarnation was decided.
    #[error("the other members have evicted this node")]
    Evicted,
    /// This incarnation is no member, and most voting files are older copies of themselves. What it
    /// remembers of the files would exclude it from the cluster forever.
    #[error(
        "most of the voting files are older copies than this node has read; start the node again to use them as they are"
    )]
    FilesOlder,
    /// The voting files know a later incarnation of this node, from before this one wrote to them.
    /// The node must start again with a higher number.
    #[error("the voting files know a later incarnation of this node, {}", .0.0)]
    Behind(Incarnation),
    /// Another process has written to this node's block of this voting file.
    #[error(
        "another process acts as this node: it has written to voting file {0}; is this host a copy of another one?"
    )]
    Doubled(FileId),
}

/// An output of the protocol, which the driver executes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a report to each of these nodes. The report may be lost.
    Send {
        /// The receivers.
        to: NodeSet,
        /// The report.
        report: Arc<Report>,
    },
    /// Write these blocks durably to a file, unless they are not as the last turn has left them;
    /// then read all blocks. [`Event::Finished`] reports the end.
    Turn {
        /// The voting file.
        file: VotingFile,
        /// The blocks to write.
        writes: Writes,
    },
    /// Send [`Event::Tick`] at this time unless another event comes earlier.
    Wake(Nanos),
    /// This view was decided. It is not open yet.
    Decided(Arc<View>),
    /// The node acts in this view from now on. Until [`Event::Entered`] it may still act in the
    /// previous view, so its reports name the new view only after that event.
    Opened(Arc<View>),
    /// The node may act until this time of its own clock.
    Lease(Nanos),
    /// This incarnation was evicted. Prove it dead where possible and report that with
    /// [`Event::Dead`].
    Fence(NodeId, Incarnation),
    /// An incarnation that had to be fenced has stopped for certain: it is proved dead by any node,
    /// or its lease has ended.
    Stopped {
        /// The node of the incarnation.
        node: NodeId,
        /// The incarnation that stopped.
        incarnation: Incarnation,
        /// True if it is proved dead, false if its lease was waited for.
        proved: bool,
    },
    /// A voting file is an older copy of itself. It does not count until a view without it is
    /// decided.
    SetAside(FileId),
    /// A majority of the voting files was written and read since the last [`Event::Remember`]. Any
    /// later query returns this generation or a greater one. The generation is at least that of any
    /// answer given before the query.
    Remembered(u64),
    /// The result of a config change.
    Answer(ConfigChange, Result<(), ConfigChangeRefusal>),
    /// These members leave, and without the voting files that they serve the other members have no
    /// majority. The view changes when this node leaves too.
    LeaveToo(NodeSet),
    /// Stop acting at once and end the process.
    Die(StopReason),
    /// The node has left as requested and is no member any more. Stop acting before the next
    /// action.
    Left,
}

/// The content of a report that other nodes act on. A change is reported at once.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ReportedState {
    hears: NodeSet,
    reaches: bool,
    leaving: bool,
    opened: Epoch,
    decided: Epoch,
    dead: [Incarnation; MAX_NODES],
}

/// One node's part in the membership. See the [module](self) for the contract.
#[derive(Clone, Debug)]
pub struct Member {
    me: NodeId,
    incarnation: Incarnation,
    profile: Profile,
    /// The nodes whose end must be proved, as this node is configured.
    must_prove: NodeSet,
    /// The time since which a majority of the files has the reports of this node, without those of
    /// another process in its place.
    alone_since: Option<Nanos>,
    started: Nanos,
    decided: Arc<View>,
    /// The time from which on a node that has opened no view waits for members of earlier views:
    /// the last learning of a view that may have followed an unknown eviction. `None`: no view was
    /// learned yet.
    waits_since: Option<Nanos>,
    /// For each node, the last incarnation that was a member of an earlier view and is not a member
    /// now (0: none). `None` if unknown.
    former: Option<[Incarnation; MAX_NODES]>,
    opened: Option<Arc<View>>,
    /// The node acts in no view before this one.
    entered: Epoch,
    lease_until: Nanos,
    waits: Vec<Wait>,
    /// `None` until a majority of the files was read.
    paxos: Option<Paxos>,
    proposing_since: Nanos,
    files: BTreeMap<FileId, FileState>,
    /// Files that were removed because they were set aside, and will be added again.
    returning: BTreeMap<FileId, Option<NodeId>>,
    peers: Peers,
    counter: u64,
    next_report: Nanos,
    /// The state in the last report, and the time of that report.
    last_reported: Option<(ReportedState, Nanos)>,
    /// The counters and times of the reports to the peers of the last lease time.
    sent: VecDeque<(u64, Nanos)>,
    plan: Option<Plan>,
    /// The time of the next planning, and the earliest time of the next proposal.
    next_plan: Nanos,
    retry: Nanos,
    leaving: bool,
    /// The time since which other members leave and need this node to leave too, and whether
    /// [`Action::LeaveToo`] was given.
    must_leave_since: Option<Nanos>,
    must_leave: bool,
    config_change: Option<(ConfigChange, Nanos)>,
    /// The greatest registry generation in any report or event.
    registry: u64,
    /// Set while a generation is being remembered, to the number of the last report before the
    /// request.
    remembering: Option<u64>,
    is_over: bool,
}

impl Member {
    /// Creates the state of a starting node. `first` is the cluster's first view or any later one.
    ///
    /// # Panics
    /// Panics if `profile` is invalid or `incarnation` is 0.
    #[must_use]
    pub fn new(me: NodeId, incarnation: Incarnation, profile: Profile, first: Arc<View>, now: Nanos) -> Self {
        assert_eq!(profile.check(), Ok(()));
        assert!(incarnation.0 > 0, "incarnations are numbered from 1");
        let files = first.files.iter().map(|file| (file.id, FileState::new(me, *file, 0, now))).collect();
        Self {
            me,
            incarnation,
            profile,
            must_prove: NodeSet::EMPTY,
            alone_since: None,
            started: now,
            decided: first,
            waits_since: None,
            former: None,
            opened: None,
            entered: Epoch(0),
            lease_until: Nanos(0),
            waits: Vec::new(),
            paxos: None,
            proposing_since: now,
            files,
            returning: BTreeMap::new(),
            peers: Peers::default(),
            counter: 0,
            next_report: now,
            last_reported: None,
            sent: VecDeque::new(),
            plan: None,
            next_plan: now,
            retry: now,
            leaving: false,
            must_leave_since: None,
            must_leave: false,
            config_change: None,
            registry: 0,
            remembering: None,
            is_over: false,
        }
    }

    /// Sets the nodes whose end must be proved: no view opens because their leases have ended. The
    /// nodes report this to each other, and each requires all that any of them does.
    #[must_use]
    pub fn requiring_proofs(self, must_prove: NodeSet) -> Self {
        Self { must_prove, ..self }
    }

    /// Returns the view in which this node acts, if any.
    #[must_use]
    pub fn opened(&self) -> Option<&Arc<View>> {
        self.opened.as_ref()
    }

    /// Returns the last view that this node knows to be decided.
    #[must_use]
    pub fn decided(&self) -> &Arc<View> {
        &self.decided
    }

    /// Returns true if the sender's profile has the same lease and disk timeout. Otherwise the two
    /// nodes never accept each other as members.
    fn has_same_times(&self, report: &Report) -> bool {
        (report.lease, report.disk_timeout) == (self.profile.lease, self.profile.disk_timeout)
    }

    /// Returns the live nodes whose profile has a different lease or disk timeout, with these two.
    /// Such nodes never accept each other as members.
    pub fn differing_times(&self, now: Nanos) -> impl Iterator<Item = (NodeId, Nanos, Nanos)> {
        let others = self.decided.cluster().without(self.me).iter();
        let fresh = others.filter_map(move |node| self.peers.fresh(node, now, &self.profile));
        let differing = fresh.filter(|report| !self.has_same_times(report));
        differing.map(|report| (report.node, report.lease, report.disk_timeout))
    }

    /// Returns true if messages of this incarnation count, that is, if the links with it are not
    /// lost.
    #[must_use]
    pub fn accepts_from(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.peers.accepts_from(node, incarnation)
    }

    /// Handles an event that happened at `now` and appends the resulting actions to `out`.
    pub fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        if self.is_over {
            return;
        }
        if self.opened.is_some() && now >= self.lease_until {
            return self.end(Action::Die(StopReason::LeaseOver), out);
        }
        match event {
            Event::Tick => {}
            Event::Heard(report) => self.heard(&report, now, out),
            Event::Finished { file, result } => self.finished(file, result, now, out),
            Event::Lost(node, incarnation) => self.peers.lost(node, incarnation, now, &self.profile),
            Event::Dead(node, incarnation) => self.proved_dead(node, incarnation, now, out),
            Event::Entered(epoch) => self.entered = self.entered.max(epoch),
            Event::ConfigChange(config_change) => self.config_change(config_change, now, out),
            Event::Registry(generation) => self.registry = self.registry.max(generation),
            Event::Remember(generation) => {
                self.registry = self.registry.max(generation);
                self.remembering = Some(self.counter);
                self.schedule_urgent_turns(now);
            }
        }
        if self.is_over {
            return;
        }
        if self.opened.is_none() && self.lacks_sound_majority() {
            return self.end(Action::Die(StopReason::FilesOlder), out);
        }
        self.renew(out);
        self.watch(now, out);
        self.open(now, out);
        self.schedule_report(now);
        self.plan_next_view(now, out);
        self.begin_turns(now, out);
        self.send_report(now, out);
        out.push(Action::Wake(self.wake(now)));
    }

    fn end(&mut self, last: Action, out: &mut Vec<Action>) {
        self.is_over = true;
        out.push(last);
    }

    /// Returns true if the files that are not set aside are no majority. A node that acts then
    /// stops when its lease ends.
    fn lacks_sound_majority(&self) -> bool {
        let aside = |file: &&VotingFile| self.files.get(&file.id).is_some_and(|state| state.is_set_aside);
        let sound = self.decided.files.len() - self.decided.files.iter().filter(aside).count();
        sound < self.decided.majority()
    }

    fn is_member(&self) -> bool {
        self.decided.has(self.me, self.incarnation)
    }

    fn heard(&mut self, report: &Arc<Report>, now: Nanos, out: &mut Vec<Action>) {
        let (node, incarnation) = (report.node, report.incarnation);
        if node == self.me || node.index() >= MAX_NODES {
            return;
        }
        if !self.accepts_from(node, incarnation) {
            // The last report of a node that leaves may come after the end of its links.
            if report.dead[node.index()] == incarnation {
                self.proved_dead(node, incarnation, now, out);
            }
            return;
        }
        if self.peers.heard(report, now, &self.profile) {
            self.next_plan = now;
        }
        self.registry = self.registry.max(report.registry);
        self.absorb_proofs(report, now, out);
        self.learn(&report.decided, now, out);
        self.note_promise(report);
    }

    fn absorb_proofs(&mut self, report: &Report, now: Nanos, out: &mut Vec<Action>) {
        for (node, incarnation) in report.dead.iter().enumerate().filter(|(_, incarnation)| incarnation.0 > 0)
        {
            self.proved_dead(NodeId(node as u8), *incarnation, now, out);
        }
    }

    /// Handles the proof that an incarnation has ended. It may be an earlier incarnation of this
    /// node.
    fn proved_dead(&mut self, node: NodeId, incarnation: Incarnation, now: Nanos, out: &mut Vec<Action>) {
        if node.index() >= MAX_NODES
            || self.peers.is_dead(node, incarnation)
            || node == self.me && incarnation >= self.incarnation
        {
            return;
        }
        self.peers.proved_dead(node, incarnation);
        let ended = self.waits.extract_if(.., |wait| wait.node == node && wait.incarnation <= incarnation);
        out.extend(ended.map(|wait| wait.over(true)));
        self.next_plan = now;
    }

    /// Schedules a report at once if the reported state has changed, but not right after the last
    /// one.
    fn schedule_report(&mut self, now: Nanos) {
        let state = self.reported_state(now);
        if let Some((last, at)) = &self.last_reported
            && *last != state
        {
            self.next_report = self.next_report.min(*at + self.profile.pause()).max(now);
        }
    }

    fn reported_state(&self, now: Nanos) -> ReportedState {
        ReportedState {
            hears: self.peers.hears(now, &self.profile),
            reaches: self.reaches(now),
            leaving: self.leaving,
            opened: self.entered,
            decided: self.decided.epoch,
            dead: self.peers.dead(),
        }
    }

    /// Learns a decided view from its own proposal, a peer or a file.
    fn learn(&mut self, view: &Arc<View>, now: Nanos, out: &mut Vec<Action>) {
        if self.is_over || view.epoch <= self.decided.epoch {
            return;
        }
        let before = std::mem::replace(&mut self.decided, Arc::clone(view));
        let was_member = before.has(self.me, self.incarnation);
        let known = view.seats[self.me.index()].last();
        if self.opened.is_none() && !was_member && known > self.incarnation {
            return self.end(Action::Die(StopReason::Behind(known)), out);
        }
        if was_member && !self.is_member() || view.is_past(self.me, self.incarnation) {
            return self.leave(now, out);
        }
        out.push(Action::Decided(Arc::clone(view)));
        let mut is_known = self.waits_since.is_some() && before.epoch.0 + 1 == view.epoch.0;
        for (node, incarnation) in before.gone(view).filter(|(node, _)| *node != self.me) {
            if !self.peers.is_dead(node, incarnation) {
                is_known = false;
                self.waits.push(Wait { node, incarnation, until: now + self.profile.wait() });
                out.push(Action::Fence(node, incarnation));
            }
        }
        self.former = self.former_incarnations(&before, view);
        if !is_known {
            self.waits_since = Some(now);
        }
        self.plan = None;
        (self.next_plan, self.next_report) = (now, now);
        if let Some(paxos) = &mut self.paxos {
            paxos.learned(view);
        }
        self.change_files(now);
        if let Some((config_change, _)) =
            self.config_change.filter(|(config_change, _)| is_granted(*config_change, view))
        {
            self.answer(config_change, Ok(()), out);
        }
    }

    /// Returns the new [`Member::former`] when `view` is learned after `before`.
    fn former_incarnations(&self, before: &View, view: &View) -> Option<[Incarnation; MAX_NODES]> {
        let mut former = before.seats.map(Seat::last);
        for node in
            before.members().iter().filter(|node| before.incarnation(*node) == view.incarnation(*node))
        {
            former[node.index()] = self.former?[node.index()];
        }
        (before.epoch.0 + 1 == view.epoch.0).then_some(former)
    }

    /// Ends this incarnation, because a view without it was decided.
    fn leave(&mut self, now: Nanos, out: &mut Vec<Action>) {
        if !self.leaving {
            return self.end(Action::Die(StopReason::Evicted), out);
        }
        self.end(Action::Left, out);
        // The node's own statement is the proof that it has stopped.
        let mut report = self.report(now);
        report.dead[self.me.index()] = self.incarnation;
        let to = self.decided.cluster().without(self.me);
        out.push(Action::Send { to, report: Arc::new(report) });
    }

    /// Keeps the state of files that stay. A new or returning file starts without state.
    fn change_files(&mut self, now: Nanos) {
        let (me, counter, decided) = (self.me, self.counter, Arc::clone(&self.decided));
        for (id, state) in &self.files {
            if state.is_set_aside && decided.file(*id).is_none() {
                self.returning.insert(*id, state.file.host);
            }
        }
        let requested = match self.config_change {
            Some((ConfigChange::AddFile(id, host), _)) => Some((id, host)),
            _ => None,
        };
        self.returning.retain(|id, _| decided.file(*id).is_none());
        let kept = self.returning.iter().map(|(id, host)| (*id, *host)).chain(requested);
        let extra = kept.filter(|(id, _)| decided.file(*id).is_none());
        let extra = extra.map(|(id, host)| VotingFile { id, since: IN_NO_VIEW, host });
        let wanted: Vec<VotingFile> = decided.files.iter().copied().chain(extra).collect();
        self.files.retain(|_, state| wanted.contains(&state.file));
        for file in wanted {
            self.files.entry(file.id).or_insert_with(|| FileState::new(me, file, counter, now));
        }
    }

    fn config_change(&mut self, config_change: ConfigChange, now: Nanos, out: &mut Vec<Action>) {
        if let Err(refused) = self.check_config_change(config_change) {
            out.push(Action::Answer(config_change, Err(refused)));
            return;
        }
        match config_change {
            ConfigChange::Leave => self.leaving = true,
            config_change => self.config_change = Some((config_change, now)),
        }
        self.change_files(now);
        (self.next_plan, self.next_report) = (now, now);
    }

    fn check_config_change(&self, config_change: ConfigChange) -> Result<(), ConfigChangeRefusal> {
        let nodes = self.decided.cluster();
        if !self.is_member() || self.opened.is_none() {
            return Err(ConfigChangeRefusal::NoMember);
        }
        if self.config_change.is_some() && config_change != ConfigChange::Leave {
            return Err(ConfigChangeRefusal::Busy);
        }
        let refused = match config_change {
            ConfigChange::AddNode(node) | ConfigChange::RemoveNode(node) if node.index() >= MAX_NODES => {
                ConfigChangeRefusal::NoNode
            }
            ConfigChange::AddFile(_, Some(host)) if host.index() >= MAX_NODES => ConfigChangeRefusal::NoNode,
            ConfigChange::RemoveNode(node) if node == self.me => ConfigChangeRefusal::Itself,
            ConfigChange::RemoveFile(id)
                if self.decided.file(id).is_some() && self.decided.files.len() == 1 =>
            {
                ConfigChangeRefusal::LastFile
            }
            ConfigChange::AddFile(id, _)
                if self.decided.file(id).is_none() && self.decided.files.len() == MAX_FILES =>
            {
                ConfigChangeRefusal::TooMany
            }
            ConfigChange::AddNode(node) if nodes.contains(node) => ConfigChangeRefusal::Done,
            config_change
                if config_change != ConfigChange::Leave && is_granted(config_change, &self.decided) =>
            {
                ConfigChangeRefusal::Done
            }
            _ => return Ok(()),
        };
        Err(refused)
    }

    fn answer(
        &mut self,
        config_change: ConfigChange,
        answer: Result<(), ConfigChangeRefusal>,
        out: &mut Vec<Action>,
    ) {
        self.config_change = None;
        out.push(Action::Answer(config_change, answer));
    }

    /// Returns a new report of this node's state, with the next number.
    fn report(&mut self, now: Nanos) -> Report {
        self.counter += 1;
        let ReportedState { hears, reaches, leaving, opened, dead, .. } = self.reported_state(now);
        Report {
            node: self.me,
            incarnation: self.incarnation,
            counter: self.counter,
            opened,
            hears,
            reaches,
            leaving,
            lease: self.profile.lease,
            disk_timeout: self.profile.disk_timeout,
            echo: self.peers.echo(),
            registry: self.registry,
            must_prove: self.must_prove,
            dead,
            decided: Arc::clone(&self.decided),
        }
    }

    fn send_report(&mut self, now: Nanos, out: &mut Vec<Action>) {
        if now >= self.next_report {
            self.next_report = now + self.profile.heartbeat;
            self.last_reported = Some((self.reported_state(now), now));
            let to = self.decided.cluster().without(self.me);
            let report = Arc::new(self.report(now));
            self.note_sent(&report, now);
            out.push(Action::Send { to, report });
        }
    }

    /// Returns the time of the next due work.
    fn wake(&self, now: Nanos) -> Nanos {
        let rest = self.rest(now);
        let turns = self.files.values().filter(|state| self.may_begin(state)).map(|state| state.next + rest);
        // A wait that is longer than its time waits for a proof.
        let waits = self.waits.iter().map(|wait| wait.until).filter(|until| *until > now);
        let lease = self.opened.is_some().then_some(self.lease_until);
        let soonest = turns.chain(waits).chain(lease).chain([self.next_plan]).min();
        soonest.map_or(self.next_report, |soonest| soonest.min(self.next_report))
    }
}

/// Returns true if the view contains the change.
fn is_granted(config_change: ConfigChange, view: &View) -> bool {
    match config_change {
        ConfigChange::Leave => false,
        ConfigChange::AddNode(node) => view.cluster().contains(node),
        ConfigChange::RemoveNode(node) => !view.cluster().contains(node),
        ConfigChange::AddFile(id, _) => view.file(id).is_some(),
        ConfigChange::RemoveFile(id) => view.file(id).is_none(),
    }
}
