//! One node's part in the membership of a cluster.
//!
//! **Contract.** Make a [`Member`] for each incarnation of a node, lives numbered upwards, and hand every [`Event`] to [`Member::handle`] with
//! the time of the node's monotonic clock; carry out the [`Action`]s in their order, and come back with [`Event::Tick`] at the time of
//! the last [`Action::Wake`]. A node's turns at a file, over all of its incarnations, are carried out in their order: one that failed may have been
//! carried out wholly, partly or not, or still be, but never after a later one.
//!
//! **What holds.** A node may act from [`Action::Opened`] on while the last [`Action::Lease`] lasts, in the view opened last. Of two nodes
//! that may act at one time each is a member of the other's view, in its incarnation. For one epoch nobody learns but one view, and nobody learns an
//! earlier one after it. An incarnation that was a member and is none any more never acts again. For this it counts that clocks differ by
//! no more than the profile says, that whoever is told to die has stopped before the margin is over, and that of any two majorities of the voting files
//! one keeps what was written to it; not how late or lost messages are.
//!
//! **A view** is opened by those who were members before when everybody who is none any more has stopped: its lease is over (`opening.rs`), or it
//! is proved dead. Who is new opens it when they have.

mod opening;
mod peers;
mod plan;
mod turns;

use std::{collections::BTreeMap, sync::Arc};

use plexus_base::{Epoch, Incarnation, MAX_NODES, Nanos, NodeId, NodeSet};

use self::{opening::Wait, peers::Peers, plan::Plan};
use super::{
    files::{FileState, Writes},
    paxos::Paxos,
    profile::Profile,
    record::{Contents, Report},
    view::{Clean, FileId, MAX_FILES, Seat, View, VotingFile},
};

/// Instead of the view that took in a file, while none has: what was remembered of it goes when it is put out, and again when it is taken in.
const IN_NO_VIEW: Epoch = Epoch(u32::MAX);

/// What an operator wants; one at a time at each node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigChange {
    /// This node is no member any more, and says so.
    Leave,
    /// A node belongs to the cluster and may join.
    AddNode(NodeId),
    /// A node does not, and is put out if it is a member.
    RemoveNode(NodeId),
    /// A voting file that was made for this cluster, and who serves it.
    AddFile(FileId, Option<NodeId>),
    /// A voting file is none any more.
    RemoveFile(FileId),
}

/// Why a config change is not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The node has no say.
    #[error("this node is no member of the cluster; ask one that is")]
    NoMember,
    /// One change at a time.
    #[error("another change is under way at this node; ask again when it is done")]
    Busy,
    /// Nothing would change.
    #[error("it is so already")]
    Done,
    /// Such a node cannot be.
    #[error("no such node")]
    NoNode,
    /// A node does not remove itself.
    #[error("a node cannot remove itself; ask another")]
    Itself,
    /// Without files nothing is decided.
    #[error("it is the last voting file; add another first")]
    LastFile,
    /// Too many files.
    #[error("there are {MAX_FILES} voting files already")]
    TooMany,
    /// The votes that are left would not do.
    #[error("of the other voting files no majority answers; repair one or add one first")]
    Quorum,
    /// The file to be added does not answer.
    #[error("the voting file does not answer, or is not one of this cluster")]
    Unreachable,
}

/// A turn at a file failed: it could not be written or read, not in time, or is no voting file of this cluster with this name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Failed;

/// What happens to a node.
#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// A report came over the interconnect.
    Heard(Arc<Report>),
    /// The turn at a file is over.
    Finished {
        /// Which.
        file: FileId,
        /// What was read after what was to be written was written.
        result: Result<Box<Contents>, Failed>,
    },
    /// The links with this incarnation are lost: nothing that it says over the network counts any more, so that only one of the two goes on. What it writes
    /// into voting files does: that says who lives, and what was decided.
    Lost(NodeId, Incarnation),
    /// The process of this incarnation, and all that it had begun, is proved to be over.
    Dead(NodeId, Incarnation),
    /// An incarnation is clean: when it ends, nothing is lost with it.
    Clean(NodeId, Clean),
    /// Whoever uses the membership has taken this view, which was opened: it acts in none before it any more.
    Entered(Epoch),
    /// An operator wants something.
    ConfigChange(ConfigChange),
    /// The registry has this generation; it goes into every report from now on.
    Registry(u64),
    /// The same, and to be answered with [`Action::Remembered`] when it stands in the voting files.
    Remember(u64),
}

/// Why a node must stop at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Reason {
    /// No majority of the voting files answered in time.
    #[error("the lease is over: no majority of the voting files answered in time")]
    LeaseOver,
    /// A view without this incarnation was decided.
    #[error("the others have decided to go on without this node")]
    Evicted,
    /// It acts in no view, and most of the files are older copies of themselves: what this incarnation remembers of them keeps it out for ever.
    #[error(
        "most of the voting files hold less than this node has read there: start it again, and it takes them as they are"
    )]
    FilesOlder,
    /// Another process is this node.
    #[error("a later incarnation of this node is in the voting files")]
    Replaced,
}

/// What a node is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a report, which may be lost, to each of these.
    Send {
        /// Whom.
        to: NodeSet,
        /// What.
        report: Arc<Report>,
    },
    /// Write this durably to the node's blocks of a file, then read all blocks; answered by [`Event::Finished`].
    Turn {
        /// Where.
        file: VotingFile,
        /// What.
        writes: Writes,
    },
    /// Come back then, if nothing happens before.
    Wake(Nanos),
    /// A view is decided; it is not open yet.
    Decided(Arc<View>),
    /// The node acts in this view from now on, and until [`Event::Entered`] perhaps still in the one before, if there is one: only then is it said to
    /// others.
    Opened(Arc<View>),
    /// The node may act before then, by its own clock.
    Lease(Nanos),
    /// This incarnation is no member any more: prove it dead where that can be done, and say so with [`Event::Dead`].
    Fence(NodeId, Incarnation),
    /// An incarnation that was to be proved dead has stopped for certain: it is proved, by whomever, or else its lease is over.
    Stopped {
        /// Its node.
        node: NodeId,
        /// Which incarnation.
        incarnation: Incarnation,
        /// Whether it was proved.
        proved: bool,
    },
    /// A voting file is an older copy of itself: it is not counted any more, until a view without it is decided.
    SetAside(FileId),
    /// A majority of the voting files was written and read since the last [`Event::Remember`]: whoever asks from now on is told this
    /// generation or a greater one, and it is at least what everybody was told before he asked.
    Remembered(u64),
    /// What became of a config change.
    Answer(ConfigChange, Result<(), Refused>),
    /// Stop acting at once and end the process.
    Die(Reason),
    /// As wanted, the node is no member any more: stop acting before the next action.
    Left,
}

/// What a report says that others act by: they are told at once when it changes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Said {
    hears: NodeSet,
    reaches: bool,
    leaving: bool,
    opened: Epoch,
    decided: Epoch,
    dead: [Incarnation; MAX_NODES],
    clean: [Clean; MAX_NODES],
}

/// One node's part. See the [module](self) for the contract.
#[derive(Clone, Debug)]
pub struct Member {
    me: NodeId,
    incarnation: Incarnation,
    profile: Profile,
    started: Nanos,
    decided: Arc<View>,
    /// When this node learned of it.
    learned: Nanos,
    /// By node: the last incarnation that was a member of any view before and is none of this one (0: none), where that is known.
    former: Option<[Incarnation; MAX_NODES]>,
    opened: Option<Arc<View>>,
    /// It acts in no view before this one.
    entered: Epoch,
    lease_until: Nanos,
    waits: Vec<Wait>,
    /// `None` until a majority of the files was read.
    paxos: Option<Paxos>,
    proposing_since: Nanos,
    files: BTreeMap<FileId, FileState>,
    /// Files that were put out because they were set aside, to be taken in again.
    returning: BTreeMap<FileId, Option<NodeId>>,
    peers: Peers,
    counter: u64,
    next_report: Nanos,
    /// What the last report said that others act by, and when.
    said: Option<(Said, Nanos)>,
    plan: Option<Plan>,
    /// When to think again of what the next view should be, and before when not to propose it.
    next_plan: Nanos,
    retry: Nanos,
    leaving: bool,
    config_change: Option<(ConfigChange, Nanos)>,
    /// The greatest generation of the registry that anybody spoke of.
    registry: u64,
    /// Somebody asked to have it remembered; the last report before.
    remembering: Option<u64>,
    is_over: bool,
}

impl Member {
    /// A node that starts, knowing of its cluster only `first`: the view that the cluster began with or any later one.
    ///
    /// # Panics
    /// When `profile` was not found to be sound, or `incarnation` is 0.
    #[must_use]
    pub fn new(me: NodeId, incarnation: Incarnation, profile: Profile, first: Arc<View>, now: Nanos) -> Self {
        assert_eq!(profile.check(), Ok(()));
        assert!(incarnation.0 > 0, "lives are numbered from 1");
        let files = first.files.iter().map(|file| (file.id, FileState::new(me, *file, now))).collect();
        Self {
            me,
            incarnation,
            profile,
            started: now,
            decided: first,
            learned: now,
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
            said: None,
            plan: None,
            next_plan: now,
            retry: now,
            leaving: false,
            config_change: None,
            registry: 0,
            remembering: None,
            is_over: false,
        }
    }

    /// The view that this node acts in, if any.
    #[must_use]
    pub fn opened(&self) -> Option<&Arc<View>> {
        self.opened.as_ref()
    }

    /// The last view that it knows to be decided.
    #[must_use]
    pub fn decided(&self) -> &Arc<View> {
        &self.decided
    }

    /// Nodes of the cluster that live and have another lease than this one, with that: neither takes the other in.
    pub fn odd_leases(&self, now: Nanos) -> impl Iterator<Item = (NodeId, Nanos)> {
        let others = self.decided.cluster().without(self.me).iter();
        let fresh = others.filter_map(move |node| self.peers.fresh(node, now, &self.profile));
        fresh.filter(|report| report.lease != self.profile.lease).map(|report| (report.node, report.lease))
    }

    /// Whether what this incarnation says over the network counts: the links with it are not lost.
    #[must_use]
    pub fn listens(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.peers.listens(node, incarnation)
    }

    /// Takes what happened at `now`; what is to be done goes to `out`.
    pub fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        if self.is_over {
            return;
        }
        if self.opened.is_some() && now >= self.lease_until {
            return self.end(Action::Die(Reason::LeaseOver), out);
        }
        match event {
            Event::Tick => {}
            Event::Heard(report) => self.heard(&report, now, out),
            Event::Finished { file, result } => self.finished(file, result, now, out),
            Event::Lost(node, incarnation) => self.peers.lost(node, incarnation, now, &self.profile),
            Event::Dead(node, incarnation) => self.proved(node, incarnation, now, out),
            Event::Clean(node, clean) => self.peers.handed_back(node, clean),
            Event::Entered(epoch) => self.entered = self.entered.max(epoch),
            Event::ConfigChange(config_change) => self.config_change(config_change, now, out),
            Event::Registry(generation) => self.registry = self.registry.max(generation),
            Event::Remember(generation) => {
                self.registry = self.registry.max(generation);
                self.remembering = Some(self.counter);
                self.hurry(now);
            }
        }
        if self.is_over {
            return;
        }
        if self.opened.is_none() && self.is_kept_out() {
            return self.end(Action::Die(Reason::FilesOlder), out);
        }
        self.open(now, out);
        self.notice(now);
        self.think(now, out);
        self.begin_turns(now, out);
        self.say(now, out);
        out.push(Action::Wake(self.wake()));
    }

    fn end(&mut self, last: Action, out: &mut Vec<Action>) {
        self.is_over = true;
        out.push(last);
    }

    /// Whether without the files that are set aside there is no majority. Who acts then ends with its lease.
    fn is_kept_out(&self) -> bool {
        let aside = |file: &&VotingFile| self.files.get(&file.id).is_some_and(|state| state.is_aside);
        let sound = self.decided.files.len() - self.decided.files.iter().filter(aside).count();
        sound < self.decided.majority()
    }

    fn is_member(&self) -> bool {
        self.decided.has(self.me, self.incarnation)
    }

    fn heard(&mut self, report: &Arc<Report>, now: Nanos, out: &mut Vec<Action>) {
        if report.node == self.me
            || report.node.index() >= MAX_NODES
            || !self.listens(report.node, report.incarnation)
        {
            return;
        }
        if self.peers.heard(report, now, &self.profile) {
            self.next_plan = now;
        }
        self.registry = self.registry.max(report.registry);
        self.absorb_proofs(report, now, out);
        self.learn(&report.decided, now, out);
    }

    fn absorb_proofs(&mut self, report: &Report, now: Nanos, out: &mut Vec<Action>) {
        for (node, incarnation) in report.dead.iter().enumerate().filter(|(_, incarnation)| incarnation.0 > 0)
        {
            self.proved(NodeId(node as u8), *incarnation, now, out);
        }
        for (node, clean) in report.clean.iter().enumerate() {
            self.peers.handed_back(NodeId(node as u8), *clean);
        }
    }

    /// An incarnation, which may be an earlier one of this node, is over.
    fn proved(&mut self, node: NodeId, incarnation: Incarnation, now: Nanos, out: &mut Vec<Action>) {
        if node.index() >= MAX_NODES
            || self.peers.is_dead(node, incarnation)
            || node == self.me && incarnation >= self.incarnation
        {
            return;
        }
        self.peers.proved(node, incarnation);
        let ended = self.waits.extract_if(.., |wait| wait.node == node && wait.incarnation <= incarnation);
        out.extend(ended.map(|wait| wait.over(true)));
        self.next_plan = now;
    }

    /// What others act by has changed: they are told at once, unless they were just now.
    fn notice(&mut self, now: Nanos) {
        let said = self.said(now);
        if let Some((last, at)) = &self.said
            && *last != said
        {
            self.next_report = self.next_report.min(*at + self.profile.pause()).max(now);
        }
    }

    fn said(&self, now: Nanos) -> Said {
        Said {
            hears: self.peers.hears(now, &self.profile),
            reaches: self.reaches(now),
            leaving: self.leaving,
            opened: self.entered,
            decided: self.decided.epoch,
            dead: self.peers.dead(),
            clean: self.peers.clean(),
        }
    }

    /// A view is decided, as this node proposed it, a peer says, or a file shows.
    fn learn(&mut self, view: &Arc<View>, now: Nanos, out: &mut Vec<Action>) {
        if self.is_over || view.epoch <= self.decided.epoch {
            return;
        }
        let before = std::mem::replace(&mut self.decided, Arc::clone(view));
        let was_member = before.has(self.me, self.incarnation);
        if was_member && !self.is_member() || view.is_past(self.me, self.incarnation) {
            return self.leave(now, out);
        }
        out.push(Action::Decided(Arc::clone(view)));
        for (node, incarnation) in before.gone(view).filter(|(node, _)| *node != self.me) {
            if !self.peers.is_dead(node, incarnation) {
                self.waits.push(Wait { node, incarnation, until: now + self.profile.wait() });
                out.push(Action::Fence(node, incarnation));
            }
        }
        self.former = self.former_lives(&before, view);
        (self.learned, self.plan) = (now, None);
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

    /// [`Member::former`] now that `view` is learned after `before`.
    fn former_lives(&self, before: &View, view: &View) -> Option<[Incarnation; MAX_NODES]> {
        let mut former = before.seats.map(Seat::last);
        for node in
            before.members().iter().filter(|node| before.incarnation(*node) == view.incarnation(*node))
        {
            former[node.index()] = self.former?[node.index()];
        }
        (before.epoch.0 + 1 == view.epoch.0).then_some(former)
    }

    /// A view without this incarnation is decided.
    fn leave(&mut self, now: Nanos, out: &mut Vec<Action>) {
        if !self.leaving {
            return self.end(Action::Die(Reason::Evicted), out);
        }
        self.end(Action::Left, out);
        // What it says of itself proves it: it has stopped.
        let mut report = self.report(now);
        report.dead[self.me.index()] = self.incarnation;
        let to = self.decided.cluster().without(self.me);
        out.push(Action::Send { to, report: Arc::new(report) });
    }

    /// Keeps what is known of files that stay; one that is new, or in again, has nothing known of it.
    fn change_files(&mut self, now: Nanos) {
        let (me, decided) = (self.me, Arc::clone(&self.decided));
        for (id, state) in &self.files {
            if state.is_aside && decided.file(*id).is_none() {
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
            self.files.entry(file.id).or_insert_with(|| FileState::new(me, file, now));
        }
    }

    fn config_change(&mut self, config_change: ConfigChange, now: Nanos, out: &mut Vec<Action>) {
        if let Err(refused) = self.may(config_change) {
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

    fn may(&self, config_change: ConfigChange) -> Result<(), Refused> {
        let nodes = self.decided.cluster();
        if !self.is_member() || self.opened.is_none() {
            return Err(Refused::NoMember);
        }
        if self.config_change.is_some() && config_change != ConfigChange::Leave {
            return Err(Refused::Busy);
        }
        let refused = match config_change {
            ConfigChange::AddNode(node) | ConfigChange::RemoveNode(node) if node.index() >= MAX_NODES => {
                Refused::NoNode
            }
            ConfigChange::AddFile(_, Some(host)) if host.index() >= MAX_NODES => Refused::NoNode,
            ConfigChange::RemoveNode(node) if node == self.me => Refused::Itself,
            ConfigChange::RemoveFile(id)
                if self.decided.file(id).is_some() && self.decided.files.len() == 1 =>
            {
                Refused::LastFile
            }
            ConfigChange::AddFile(id, _)
                if self.decided.file(id).is_none() && self.decided.files.len() == MAX_FILES =>
            {
                Refused::TooMany
            }
            ConfigChange::AddNode(node) if nodes.contains(node) => Refused::Done,
            config_change
                if config_change != ConfigChange::Leave && is_granted(config_change, &self.decided) =>
            {
                Refused::Done
            }
            _ => return Ok(()),
        };
        Err(refused)
    }

    fn answer(&mut self, config_change: ConfigChange, answer: Result<(), Refused>, out: &mut Vec<Action>) {
        self.config_change = None;
        out.push(Action::Answer(config_change, answer));
    }

    /// What this node says of itself now; each is newer than the last.
    fn report(&mut self, now: Nanos) -> Report {
        self.counter += 1;
        let Said { hears, reaches, leaving, opened, dead, clean, .. } = self.said(now);
        Report {
            node: self.me,
            incarnation: self.incarnation,
            counter: self.counter,
            opened,
            hears,
            reaches,
            leaving,
            lease: self.profile.lease,
            registry: self.registry,
            dead,
            clean,
            decided: Arc::clone(&self.decided),
        }
    }

    fn say(&mut self, now: Nanos, out: &mut Vec<Action>) {
        if now >= self.next_report {
            self.next_report = now + self.profile.heartbeat;
            self.said = Some((self.said(now), now));
            let to = self.decided.cluster().without(self.me);
            let report = Arc::new(self.report(now));
            out.push(Action::Send { to, report });
        }
    }

    /// When there is something to do, if nothing happens before.
    fn wake(&self) -> Nanos {
        let turns = self.files.values().filter(|state| self.may_begin(state)).map(|state| state.next);
        let waits = self.waits.iter().map(|wait| wait.until);
        let lease = self.opened.is_some().then_some(self.lease_until);
        let soonest = turns.chain(waits).chain(lease).chain([self.next_plan]).min();
        soonest.map_or(self.next_report, |soonest| soonest.min(self.next_report))
    }
}

/// Whether the view is as requested.
fn is_granted(config_change: ConfigChange, view: &View) -> bool {
    match config_change {
        ConfigChange::Leave => false,
        ConfigChange::AddNode(node) => view.cluster().contains(node),
        ConfigChange::RemoveNode(node) => !view.cluster().contains(node),
        ConfigChange::AddFile(id, _) => view.file(id).is_some(),
        ConfigChange::RemoveFile(id) => view.file(id).is_none(),
    }
}
