//! Nodes with clocks of their own, the network between them, and their voting files.

use std::{collections::BTreeMap, sync::Arc};

use plexus_base::{Epoch, Incarnation, Nanos, NodeId, NodeSet};
use plexus_membership::protocol::{
    Action, ConfigChange, ConfigChangeRefusal, Contents, Event, Member, NodeBlocks, Profile, Report,
    StopReason, TurnFailed, View, Writes,
};
use plexus_sim::{Engine, Random};

use super::{
    Sabotage,
    files::{File, Sick},
    witness::{Witness, broken},
};
use crate::failure::Broken;

/// The node that decides views where members do not.
pub(super) const RIVAL: NodeId = NodeId(15);

/// The percentage of its margin that a process may use before it ends; the rest covers the
/// difference of clocks.
const MARGIN_PERCENT: u64 = 97;

#[derive(Clone, Debug)]
pub(super) enum MembershipEvent {
    Start(usize),
    Wake {
        node: usize,
        incarnation: u64,
        version: u64,
    },
    Deliver {
        to: usize,
        report: Arc<Report>,
    },
    /// The subsystems of an incarnation enter an opened view.
    Enter {
        node: usize,
        incarnation: u64,
        epoch: Epoch,
    },
    /// An incarnation leaves.
    Leave {
        node: usize,
        incarnation: u64,
    },
    /// The registry of an incarnation asks for a generation to be remembered.
    Remember {
        node: usize,
        incarnation: u64,
    },
    Notice {
        to: usize,
        from: NodeId,
        /// The incarnation whose links are lost.
        lost: Option<Incarnation>,
        dead: Option<Incarnation>,
    },
    /// An attempt of an incarnation to prove the end of another, with the number of failed ones.
    Fence {
        by: (usize, u64),
        of: (usize, u64),
        failed: u64,
    },
    /// A turn is at its file: to write, to read, and on the way back.
    Write(Turn, Writes),
    /// A read after these writes; `true` if they must be durable before.
    Read(Turn, Writes, bool),
    Replied(Turn, Result<Box<Contents>, TurnFailed>),
    /// The end of a pause of a node, with the number of the pause.
    Resume(usize, u64),
    /// The run continues with its plan.
    Next,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    node: usize,
    incarnation: u64,
    file: usize,
    number: u64,
}

/// A clock: its start, and its drift in parts per million.
#[derive(Clone, Copy, Debug)]
struct Clock {
    began: u64,
    ppm: i64,
}

impl Clock {
    fn at(self, now: u64) -> Nanos {
        Nanos(self.began + scaled(now, self.ppm))
    }

    /// Returns the true time at which the clock shows `at`, rounded up.
    fn when(self, at: Nanos) -> u64 {
        let shown = at.0.saturating_sub(self.began);
        (u128::from(shown) * 1_000_000).div_ceil((1_000_000 + self.ppm) as u128) as u64
    }
}

fn scaled(time: u64, ppm: i64) -> u64 {
    (u128::from(time) * (1_000_000 + ppm) as u128 / 1_000_000) as u64
}

#[derive(Debug)]
pub(super) struct Node {
    clock: Clock,
    pub(super) incarnation: u64,
    pub(super) member: Option<Member>,
    paused: bool,
    pauses: u64,
    /// True if the node stays down until it is started explicitly.
    pub(super) down: bool,
    version: u64,
    turns: BTreeMap<usize, u64>,
    turn: u64,
    lease: u64,
    /// The last incarnation that has certainly stopped.
    over: u64,
    /// The epoch of the view that this incarnation opened last.
    acts: Option<Epoch>,
    leaves: bool,
    /// The nodes whose end must be proved, as this node is configured.
    must_prove: NodeSet,
    /// The last incarnation that the voting files have told it of.
    pub(super) known: u64,
    pub(super) deaths: u64,
    pub(super) answers: Vec<(ConfigChange, Result<(), ConfigChangeRefusal>)>,
    pub(super) has_left: bool,
}

pub(super) struct MembershipWorld {
    pub(super) engine: Engine<MembershipEvent>,
    pub(super) nodes: Vec<Node>,
    pub(super) files: Vec<File>,
    pub(super) profile: Profile,
    pub(super) first: Arc<View>,
    pub(super) witness: Witness,
    /// The cut paths, by sender and receiver.
    pub(super) cut: Vec<Vec<bool>>,
    /// The time until which a file stalls for a node that opens it, by node and file.
    stalled: Vec<Vec<u64>>,
    pub(super) loss_permille: u64,
    /// True if peers of a process that ends receive proof of its death, and so do nodes that learn
    /// of it later.
    pub(super) proofs: bool,
    /// The nodes whose end must be proved, as any node is configured.
    required: NodeSet,
    /// True if the registry asks for nothing to be remembered.
    pub(super) rests: bool,
    /// True if [`RIVAL`] outbids all proposals; messages and turns may take as long as a lease.
    pub(super) has_rival: bool,
    /// True if messages take 0.2 ms and turns 2 ms.
    pub(super) steady: bool,
    pub(super) sabotage: Option<Sabotage>,
    /// The number of opened views.
    pub(super) opened: u64,
    /// The reports sent, counted per receiver, and the turns begun.
    pub(super) sent: u64,
    pub(super) turns: u64,
    /// How often a node has set a file aside.
    pub(super) set_aside: u64,
    /// The node that the last process is a copy of.
    pub(super) copied: Option<usize>,
    actions: Vec<Action>,
}

impl MembershipWorld {
    pub(super) fn new(
        seed: u64,
        nodes: usize,
        hosts: &[Option<NodeId>],
        profile: Profile,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let mut engine = Engine::new(seed, nodes);
        let mut files: Vec<File> =
            hosts.iter().enumerate().map(|(number, host)| File::new(number, *host, nodes)).collect();
        let forgets_ballots = sabotage == Some(Sabotage::UnsettledBallots);
        files.iter_mut().for_each(|file| file.forgets_ballots = forgets_ballots);
        let all_nodes = (0..nodes as u8).map(NodeId).collect();
        let first = View::first(all_nodes, files.iter().map(|file| (file.name.file, file.host)));
        // Two clocks together differ by no more than the profile allows.
        let most = match sabotage {
            Some(Sabotage::Drift | Sabotage::FencedDrift) => 400_000,
            _ => profile.drift_ppm * 10 / 21,
        };
        let node = |engine: &mut Engine<MembershipEvent>| Node {
            clock: Clock {
                began: engine.random.below(1 << 50),
                ppm: engine.random.below(2 * most + 1) as i64 - most as i64,
            },
            incarnation: 0,
            member: None,
            paused: false,
            pauses: 0,
            down: false,
            version: 0,
            turns: BTreeMap::new(),
            turn: 0,
            lease: 0,
            over: 0,
            acts: None,
            leaves: false,
            must_prove: NodeSet::EMPTY,
            known: 0,
            deaths: 0,
            answers: Vec::new(),
            has_left: false,
        };
        Self {
            nodes: (0..nodes).map(|_| node(&mut engine)).collect(),
            engine,
            files,
            profile,
            first: Arc::new(first),
            witness: Witness::default(),
            cut: vec![vec![false; nodes]; nodes],
            stalled: vec![vec![0; hosts.len()]; nodes],
            loss_permille: 0,
            proofs: false,
            required: NodeSet::EMPTY,
            rests: false,
            has_rival: false,
            steady: false,
            sabotage,
            opened: 0,
            sent: 0,
            turns: 0,
            set_aside: 0,
            copied: None,
            actions: Vec::new(),
        }
    }

    /// Makes the last process a copy of a node, on a host of its own that reaches only the files.
    pub(super) fn copy(&mut self, original: usize) {
        let copy = self.nodes.len() - 1;
        self.copied = Some(original);
        self.witness.copied = Some((copy as u8, original as u8));
        self.nodes[copy].down = true;
        self.cut[copy].fill(true);
        self.cut.iter_mut().for_each(|from| from[copy] = true);
    }

    /// Returns the node as which a process acts.
    fn id(&self, process: usize) -> NodeId {
        let original = self.copied.filter(|_| process + 1 == self.nodes.len());
        NodeId(original.unwrap_or(process) as u8)
    }

    pub(super) fn now(&self) -> u64 {
        self.engine.now()
    }

    /// Returns the longest time in which a node proves the end of another.
    pub(super) fn proof(&self) -> u64 {
        if self.required.is_empty() { 0 } else { 6 * self.profile.lease.0 }
    }

    /// Starts a node's next incarnation, unless the node is up.
    pub(super) fn start(&mut self, node: usize) -> Result<(), Broken> {
        if self.nodes[node].member.is_some() || self.nodes[node].down {
            return Ok(());
        }
        self.witness.stopped(NodeId(node as u8));
        let now = self.now();
        let same_incarnation =
            self.sabotage == Some(Sabotage::SameIncarnation) && self.nodes[node].incarnation > 0;
        let id = self.id(node);
        let one = &mut self.nodes[node];
        one.over = one.incarnation;
        (one.acts, one.leaves) = (None, false);
        one.incarnation = one.incarnation.max(one.known) + u64::from(!same_incarnation);
        (one.turn, one.turns, one.lease) = (one.turn + 1, BTreeMap::new(), 0);
        (one.version, one.has_left) = (one.version + 1, false);
        let incarnation = Incarnation(one.incarnation);
        self.files.iter_mut().for_each(|file| file.closed(node));
        let first = Arc::clone(&self.first);
        let member = Member::new(id, incarnation, self.profile, first, one.clock.at(now));
        one.member = Some(member.requiring_proofs(one.must_prove));
        self.handle(node, Event::Tick)
    }

    /// Tells a node that learns of a view which former member incarnations are over: its own
    /// earlier ones, and others with a proved death. With every fourth start its host has booted,
    /// so the node does not know of its own.
    fn prove(&mut self, node: usize, view: &View) {
        for (from, incarnation) in view.incarnations().filter(|(from, _)| from.index() < self.nodes.len()) {
            let is_over = match from == self.id(node) {
                true => {
                    let one = &self.nodes[node];
                    (self.steady || !one.turn.is_multiple_of(4)) && incarnation.0 <= one.over
                }
                false => self.proofs && incarnation.0 <= self.nodes[from.index()].over,
            };
            if is_over {
                let after = self.engine.random.between(100_000, 5_000_000);
                let (lost, dead) = (None, Some(incarnation));
                self.engine.schedule(
                    after,
                    Some(node),
                    MembershipEvent::Notice { to: node, from, lost, dead },
                );
            }
        }
    }

    /// Ends a node's process.
    pub(super) fn crash(&mut self, node: usize) {
        self.resume(node);
        let id = NodeId(node as u8);
        let was_up = self.nodes[node].member.take().is_some();
        self.witness.stopped(id);
        if !was_up {
            return;
        }
        for file in self.files.iter_mut().filter(|file| file.host == Some(id)) {
            // The host has ended with it.
            if self.engine.random.percent(50) {
                file.lose_power();
            }
        }
        let incarnation = Incarnation(self.nodes[node].incarnation);
        self.nodes[node].over = incarnation.0;
        let dead = self.proofs.then_some(incarnation);
        for to in 0..self.nodes.len() {
            if !self.cut[node][to] && to != node && (self.proofs || self.engine.random.percent(50)) {
                let after = self.engine.random.between(100_000, 5_000_000);
                let lost = Some(incarnation);
                self.engine.schedule(after, Some(to), MembershipEvent::Notice { to, from: id, lost, dead });
            }
        }
    }

    /// Loses the links of a node with another.
    pub(super) fn lose(&mut self, to: usize, from: usize) -> Result<(), Broken> {
        let incarnation = Incarnation(self.nodes[from].incarnation);
        self.handle(to, Event::Lost(NodeId(from as u8), incarnation))
    }

    /// Returns true if a message from one node reaches the other now.
    pub(super) fn hears(&self, to: usize, from: usize) -> bool {
        let (member, incarnation) = (&self.nodes[to].member, Incarnation(self.nodes[from].incarnation));
        !self.cut[from][to]
            && member.as_ref().is_none_or(|member| member.accepts_from(NodeId(from as u8), incarnation))
    }

    pub(super) fn pause(&mut self, node: usize, for_ns: u64) {
        let one = &mut self.nodes[node];
        if !one.paused {
            (one.paused, one.pauses) = (true, one.pauses + 1);
            self.engine.pause(node);
            self.engine.schedule(for_ns, None, MembershipEvent::Resume(node, one.pauses));
        }
    }

    pub(super) fn resume(&mut self, node: usize) {
        self.nodes[node].paused = false;
        self.engine.resume(node);
    }

    pub(super) fn config_change(&mut self, node: usize, config_change: ConfigChange) -> Result<(), Broken> {
        self.nodes[node].leaves |= config_change == ConfigChange::Leave;
        self.handle(node, Event::ConfigChange(config_change))
    }

    /// Handles one event; returns `true` for [`MembershipEvent::Next`].
    pub(super) fn step(&mut self) -> Result<bool, Broken> {
        let Some(event) = self.engine.advance() else {
            return broken("ends", "nothing happens any more".into());
        };
        match event {
            MembershipEvent::Next => return Ok(true),
            MembershipEvent::Start(node) => self.start(node)?,
            MembershipEvent::Resume(node, pause) if self.nodes[node].pauses == pause => self.resume(node),
            MembershipEvent::Resume(..) => {}
            MembershipEvent::Wake { node, incarnation, version } => {
                if (self.nodes[node].incarnation, self.nodes[node].version) == (incarnation, version) {
                    self.handle(node, Event::Tick)?;
                }
            }
            MembershipEvent::Remember { node, incarnation } => {
                if self.nodes[node].incarnation == incarnation && self.nodes[node].member.is_some() {
                    let generation = self.witness.asks(node as u8);
                    self.handle(node, Event::Remember(generation))?;
                    let after = self.engine.random.between(1, 20 * self.profile.heartbeat.0);
                    self.engine.schedule(after, Some(node), MembershipEvent::Remember { node, incarnation });
                }
            }
            MembershipEvent::Leave { node, incarnation } => {
                if self.nodes[node].incarnation == incarnation && self.nodes[node].member.is_some() {
                    self.config_change(node, ConfigChange::Leave)?;
                }
            }
            MembershipEvent::Deliver { to, report } => self.handle(to, Event::Heard(report))?,
            MembershipEvent::Enter { node, incarnation, epoch } => {
                if self.nodes[node].incarnation == incarnation && self.nodes[node].member.is_some() {
                    if self.sabotage != Some(Sabotage::NeverEntered) {
                        self.witness.entered(NodeId(node as u8), epoch);
                    }
                    self.handle(node, Event::Entered(epoch))?;
                }
            }
            MembershipEvent::Notice { to, from, lost, dead } => {
                if let Some(incarnation) = lost {
                    self.handle(to, Event::Lost(from, incarnation))?;
                }
                if let Some(incarnation) = dead {
                    self.handle(to, Event::Dead(from, incarnation))?;
                }
            }
            MembershipEvent::Fence { by, of, failed } => self.fence(by, of, failed)?,
            MembershipEvent::Write(turn, writes) => self.write(turn, &writes),
            MembershipEvent::Read(turn, writes, must_last) => self.read(turn, &writes, must_last),
            MembershipEvent::Replied(turn, result) => {
                let node = &mut self.nodes[turn.node];
                let awaited = node.turns.get(&turn.file) == Some(&turn.number);
                if node.incarnation == turn.incarnation && node.member.is_some() && awaited {
                    node.turns.remove(&turn.file);
                    let file = self.files[turn.file].name.file;
                    self.handle(turn.node, Event::Finished { file, result })?;
                }
            }
        }
        Ok(false)
    }

    fn handle(&mut self, node: usize, event: Event) -> Result<(), Broken> {
        let now = self.now();
        let one = &mut self.nodes[node];
        let Some(member) = &mut one.member else { return Ok(()) };
        let mut actions = std::mem::take(&mut self.actions);
        member.handle(one.clock.at(now), event, &mut actions);
        for action in actions.drain(..) {
            self.act(node, action)?;
        }
        self.actions = actions;
        Ok(())
    }

    fn act(&mut self, node: usize, action: Action) -> Result<(), Broken> {
        let now = self.now();
        let (id, incarnation) = (NodeId(node as u8), Incarnation(self.nodes[node].incarnation));
        match action {
            Action::Send { to, report } => {
                let nodes = self.nodes.len();
                for to in to.iter().map(NodeId::index).filter(|to| *to < nodes) {
                    self.sent += 1;
                    if !self.cut[node][to] && !self.engine.random.permille(self.loss_permille) {
                        let after = self.delay();
                        let report = Arc::clone(&report);
                        self.engine.schedule(after, Some(to), MembershipEvent::Deliver { to, report });
                    }
                }
            }
            Action::Turn { file, writes } => {
                self.turns += 1;
                self.begin(node, file.id, writes);
            }
            Action::Wake(at) => {
                let one = &mut self.nodes[node];
                one.version += 1;
                let after = one.clock.when(at).saturating_sub(now).max(1);
                let wake = MembershipEvent::Wake { node, incarnation: incarnation.0, version: one.version };
                self.engine.schedule(after, Some(node), wake);
            }
            Action::Decided(view) => {
                self.engine.digest.add(u64::from(view.epoch.0) << 8 | node as u64);
                self.witness.decided(id, incarnation, &view)?;
                self.prove(node, &view);
            }
            Action::Opened(view) => {
                self.opened += 1;
                let until = self.nodes[node].lease;
                self.witness.opened(id, incarnation, &view, until, now)?;
                self.look_for_proofs(node, &view)?;
                self.nodes[node].acts = Some(view.epoch);
                let (epoch, after) = (view.epoch, self.entering());
                self.engine.schedule(
                    after,
                    Some(node),
                    MembershipEvent::Enter { node, incarnation: incarnation.0, epoch },
                );
                if !self.rests {
                    self.engine.schedule(
                        1,
                        Some(node),
                        MembershipEvent::Remember { node, incarnation: incarnation.0 },
                    );
                }
            }
            Action::Lease(until) => {
                let margin = self.profile.kill_margin.0 * MARGIN_PERCENT / 100;
                let until = self.nodes[node].clock.when(until) + margin;
                self.nodes[node].lease = until;
                self.witness.renewed(id, until, now)?;
            }
            Action::Remembered(generation) => self.witness.remembered(id, generation)?,
            Action::SetAside(..) => self.set_aside += 1,
            Action::Fence(of, fenced) => {
                let leaves = self.nodes.get(of.index()).is_some_and(|of| of.leaves);
                let after = if leaves { self.profile.wait().0 } else { 0 };
                let (by, of) = ((node, incarnation.0), (of.index(), fenced.0));
                self.attempt(after, by, of, 0);
            }
            Action::Stopped { .. } => {}
            Action::LeaveToo(_) => {
                // The node hands back first.
                let after = self.engine.random.between(1, 10 * self.profile.heartbeat.0);
                let leave = MembershipEvent::Leave { node, incarnation: incarnation.0 };
                self.engine.schedule(after, Some(node), leave);
            }
            Action::Answer(config_change, answer) => self.nodes[node].answers.push((config_change, answer)),
            Action::Die(reason) => {
                match reason {
                    StopReason::Behind(_) | StopReason::Doubled(_)
                        if self.copied.is_none() && self.sabotage.is_none() =>
                    {
                        return broken("alone", format!("{id} is the only one, but: {reason}"));
                    }
                    StopReason::Behind(known) => self.nodes[node].known = known.0,
                    StopReason::Doubled(_) => self.nodes[node].down = true,
                    _ => {}
                }
                // Until it is restarted, others see it stop only after its lease and the margin.
                let one = &mut self.nodes[node];
                (one.member, one.deaths) = (None, one.deaths + 1);
                let after = self.engine.random.between(self.profile.kill_margin.0, self.profile.evict.0);
                self.engine.schedule(after, None, MembershipEvent::Start(node));
            }
            Action::Left => {
                self.witness.stopped(id);
                let one = &mut self.nodes[node];
                (one.member, one.has_left, one.down, one.over) = (None, true, true, incarnation.0);
            }
        }
        Ok(())
    }

    /// Sets the nodes whose end must be proved. A node may have none of these in its configuration.
    pub(super) fn require_proofs(&mut self, random: &mut Random) {
        let all = 0..self.nodes.len() as u8;
        self.required = match random.percent(50) {
            true => all.map(NodeId).collect(),
            false => all.map(NodeId).filter(|_| random.percent(50)).collect(),
        };
        let one = random.below(self.nodes.len() as u64) as usize;
        for (node, state) in self.nodes.iter_mut().enumerate() {
            let knows = node == one || random.percent(70);
            state.must_prove = if knows { self.required } else { NodeSet::EMPTY };
        }
    }

    /// Sets the nodes whose end must be proved, on all nodes.
    pub(super) fn require(&mut self, required: NodeSet) {
        self.required = required;
        self.nodes.iter_mut().for_each(|node| node.must_prove = required);
    }

    /// Checks that the opened view puts out no incarnation whose end must be proved and that has
    /// not certainly ended. It counts as acting as long as its process exists, whatever its lease:
    /// it may have been paused before an action.
    fn look_for_proofs(&self, opener: usize, view: &View) -> Result<(), Broken> {
        for node in self.required.without(NodeId(opener as u8)).iter() {
            let Node { incarnation, over, acts, .. } = self.nodes[node.index()];
            let may_act = incarnation > over && acts.is_some_and(|epoch| epoch < view.epoch);
            if may_act && !view.has(node, Incarnation(incarnation)) {
                let epoch = view.epoch.0;
                let what =
                    format!("node {opener} opened view {epoch} without {node}, which was not proved dead");
                return broken("proved", what);
            }
        }
        Ok(())
    }

    /// Lets a node run its fence command for the other. Where it has none, an operator switches the
    /// other off and vouches for that.
    fn attempt(&mut self, after: u64, by: (usize, u64), of: (usize, u64), failed: u64) {
        if self.required.contains(NodeId(of.0 as u8)) {
            let after = after + self.engine.random.between(100_000, self.profile.lease.0);
            self.engine.schedule(after, None, MembershipEvent::Fence { by, of, failed });
        }
    }

    /// Ends a fence command: it fails, or it has ended the process.
    fn fence(&mut self, by: (usize, u64), of: (usize, u64), failed: u64) -> Result<(), Broken> {
        let (node, incarnation) = of;
        if self.nodes[by.0].incarnation != by.1 || self.nodes[by.0].member.is_none() {
            return Ok(());
        }
        if failed < 2 && self.engine.random.percent(30) {
            self.attempt(self.profile.lease.0, by, of, failed + 1);
            return Ok(());
        }
        let lies = self.sabotage == Some(Sabotage::LyingFence);
        if self.nodes[node].incarnation == incarnation && !lies {
            let was_up = self.nodes[node].member.is_some();
            self.crash(node);
            let one = &mut self.nodes[node];
            (one.over, one.deaths) = (incarnation, one.deaths + u64::from(was_up));
        }
        self.handle(by.0, Event::Dead(NodeId(node as u8), Incarnation(incarnation)))
    }

    fn delay(&mut self) -> u64 {
        if self.steady {
            return 200_000;
        }
        if self.has_rival && self.engine.random.percent(10) {
            return self.engine.random.between(50_000, self.profile.lease.0);
        }
        let slow = self.engine.random.permille(10);
        let most = if slow { self.profile.heartbeat.0 } else { self.profile.heartbeat.0 / 50 };
        self.engine.random.between(50_000, most.max(60_000))
    }

    /// Draws the time that a node takes to enter a view; sometimes close to the limit.
    fn entering(&mut self) -> u64 {
        match !self.steady && self.engine.random.permille(50) {
            true => self.engine.random.between(self.profile.heartbeat.0, self.profile.lease.0),
            false => self.delay(),
        }
    }

    fn begin(&mut self, node: usize, file: plexus_membership::protocol::FileId, writes: Writes) {
        let Some(file) = self.files.iter().position(|known| known.name.file == file) else { return };
        let one = &mut self.nodes[node];
        one.turn += 1;
        let turn = Turn { node, incarnation: one.incarnation, file, number: one.turn };
        one.turns.insert(file, one.turn);
        // The driver of a turn gives up after this time.
        let timeout = self.profile.disk_timeout.0;
        self.engine.schedule(timeout, Some(node), MembershipEvent::Replied(turn, Err(TurnFailed)));
        let after = self.disk_delay(file);
        self.engine.schedule(after, self.served(turn), MembershipEvent::Write(turn, writes));
    }

    /// Returns the node that is paused while the file's host is.
    fn served(&self, turn: Turn) -> Option<usize> {
        self.files[turn.file].host.map(NodeId::index)
    }

    fn disk_delay(&mut self, file: usize) -> u64 {
        if self.steady {
            return 1_000_000;
        }
        if self.has_rival && self.engine.random.percent(10) {
            return self.engine.random.between(20_000, self.profile.lease.0 / 2);
        }
        let delay = self.engine.random.between(20_000, self.profile.heartbeat.0 / 20);
        match self.files[file].sick {
            Some(Sick::Slow(times)) => delay * times,
            _ => delay,
        }
    }

    /// Returns true if requests of a node reach a file, and answers come back.
    pub(super) fn reaches(&self, node: usize, file: usize) -> bool {
        let Some(host) = self.files[file].host.map(NodeId::index) else { return true };
        host == node || !self.cut[node][host] && !self.cut[host][node]
    }

    fn is_served(&self, turn: Turn) -> bool {
        let Some(host) = self.files[turn.file].host.map(NodeId::index) else { return true };
        self.nodes[host].member.is_some() && self.reaches(turn.node, turn.file)
    }

    /// Stalls a file for the nodes that open it: one, or all. A stall never ends another earlier.
    pub(super) fn stall(&mut self, opener: Option<usize>, file: usize, for_ns: u64) {
        let until = self.now() + for_ns;
        let paths = self.stalled.iter_mut().enumerate();
        let paths = paths.filter(|(node, _)| opener.is_none_or(|opener| opener == *node));
        paths.for_each(|(_, path)| path[file] = path[file].max(until));
    }

    /// Ends all stalls.
    pub(super) fn thaw(&mut self) {
        self.stalled.iter_mut().flatten().for_each(|until| *until = 0);
    }

    /// Returns the time after which a turn at a file that stalls tries again.
    fn stalls(&mut self, turn: Turn) -> Option<u64> {
        let file = &self.files[turn.file];
        let opener = file.host.map_or(turn.node, NodeId::index);
        let is_stalled = file.sick == Some(Sick::Hung) || self.now() < self.stalled[opener][turn.file];
        is_stalled.then(|| self.engine.random.between(1, self.profile.heartbeat.0))
    }

    fn write(&mut self, turn: Turn, writes: &Writes) {
        let (id, incarnation) = (self.id(turn.node), Incarnation(turn.incarnation));
        if let Some(after) = self.stalls(turn) {
            return self.engine.schedule(
                after,
                self.served(turn),
                MembershipEvent::Write(turn, writes.clone()),
            );
        }
        if !self.is_served(turn) {
            return self.ask_again(turn, writes);
        }
        if self.files[turn.file].is_late(turn.node, incarnation, turn.number) {
            return;
        }
        let ended =
            self.nodes[turn.node].incarnation != turn.incarnation || self.nodes[turn.node].member.is_none();
        let fate = if ended { self.engine.random.below(3) } else { 0 };
        if fate == 2 {
            return;
        }
        // A host carries out a requested turn as a whole.
        let is_own = self.files[turn.file].host.is_none();
        let is_lost = self.sabotage == Some(Sabotage::LyingDisks) && self.engine.random.percent(30);
        let result = match is_lost {
            true => Ok(false),
            false => {
                let writer = (turn.node, id);
                self.files[turn.file].write(writer, writes, fate == 1 && is_own, &mut self.engine.random)
            }
        };
        if ended && is_own {
            return;
        }
        let after = self.disk_delay(turn.file);
        match result {
            Ok(must_last) => {
                let read = MembershipEvent::Read(turn, writes.clone(), must_last);
                self.engine.schedule(after, self.served(turn), read);
            }
            Err(failed) => {
                self.engine.schedule(after, Some(turn.node), MembershipEvent::Replied(turn, Err(failed)));
            }
        }
    }

    /// Asks the host of a file for a turn again, unless the turn has become useless.
    fn ask_again(&mut self, turn: Turn, writes: &Writes) {
        let one = &self.nodes[turn.node];
        if one.incarnation == turn.incarnation && one.turns.get(&turn.file) == Some(&turn.number) {
            let after = self.profile.heartbeat.0 / 2;
            self.engine.schedule(after, Some(turn.node), MembershipEvent::Write(turn, writes.clone()));
        }
    }

    fn read(&mut self, turn: Turn, writes: &Writes, must_last: bool) {
        if !self.is_served(turn) {
            return self.ask_again(turn, writes);
        }
        if let Some(after) = self.stalls(turn) {
            let read = MembershipEvent::Read(turn, writes.clone(), must_last);
            return self.engine.schedule(after, self.served(turn), read);
        }
        let id = self.id(turn.node);
        if self.has_rival {
            self.files[turn.file].outbid(RIVAL, None, None);
        }
        let mut result = self.files[turn.file].read((turn.node, id), must_last, &mut self.engine.random);
        if self.sabotage == Some(Sabotage::Blind)
            && let Ok(contents) = &mut result
        {
            let others = contents.nodes.iter_mut().enumerate().filter(|(node, _)| *node != id.index());
            others.for_each(|(_, place)| *place = NodeBlocks::default());
        }
        let after = self.disk_delay(turn.file);
        self.engine.schedule(after, Some(turn.node), MembershipEvent::Replied(turn, result.map(Box::new)));
    }
}
