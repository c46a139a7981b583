//! The protocol of transactions on one node, without I/O.
//!
//! **A commit** takes two rounds, in which the home asks all members for their clocks. The first
//! one begins after the last change of the transaction. Behind it the home draws a number, which is
//! above every snapshot that has seen a row as it was before. The second one begins after the draw
//! and tells the number, beside the flush of the commit record. Rounds are shared: each serves all
//! transactions that wait for one.
//!
//! **The first round is left out** if all leaves that a transaction has changed were given to this
//! node before the begin of a round that is complete. Who has read them before had answered that
//! round afterwards, and no other node has read them since.
//!
//! **Limits.** Each home has a durable limit, and draws no number above it. So the limits of nodes
//! that are gone are a bound of all their numbers.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use plexus_base::{Epoch, Incarnation, NodeId};

use super::{
    Number, Status, TransactionId,
    messages::{LOWS, Message, MessageBody},
};

/// The most rounds under way: further ones would tell little that is new.
const MOST_ROUNDS: u64 = 2;

/// The number of final states of transactions after which the older ones may be forgotten.
const FINALS: usize = 1 << 14;

/// The most transactions of other nodes of which it is known that they are not at their end.
const MOST_UNFINISHED: usize = 1 << 14;

/// A node incarnation that runs transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Home {
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    /// It is a member in all views from this one on, until it is gone.
    pub(crate) since: Epoch,
}

/// The way to the state of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StatusPath {
    /// This is the state.
    Known(Status),
    /// The home must be asked, or its end waited for: [`Core::ask`].
    Ask,
    /// The slot tells: a number, or zero if it is rolled back. [`Core::learn`] keeps it.
    ReadSlot,
    /// The home of the status block is not known: [`Core::learn_home`].
    FindHome,
}

/// A notice for a waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notice {
    /// The number that was drawn for its transaction.
    Drawn(Number),
    /// The limit must be raised before a number can be drawn.
    AtLimit,
    /// Its transaction is committed: visible on all nodes.
    Committed,
    /// Something has changed: look again.
    LookAgain,
    /// The transactions that it waits for wait for its own.
    Deadlock,
}

#[derive(Debug)]
enum Asker<W> {
    Node(NodeId),
    /// The transaction that waits, if one does.
    Here(W, Option<TransactionId>),
}

/// A transaction of this node that is not at its end.
#[derive(Debug)]
struct Running<W> {
    state: State<W>,
    /// Those who wait for its state, each with its snapshot.
    asked: Vec<(Asker<W>, Number)>,
}

#[derive(Debug)]
enum State<W> {
    Active,
    Committing {
        number: Number,
        /// The round that tells all members the number.
        round: u64,
        /// Set when the record is durable.
        waiter: Option<W>,
    },
}

#[derive(Debug)]
struct Peer {
    incarnation: Incarnation,
    /// The last round that it has answered.
    answered: u64,
    /// Its lowest snapshots; the last one is a bound of all others that it has or will have.
    lows: [Number; LOWS],
}

/// The snapshots of all nodes, as far as they are known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Horizon {
    /// Those that may be there below `bound`, in any order.
    snapshots: Vec<Number>,
    /// All others are at or above this moment.
    bound: Number,
}

impl Horizon {
    /// Returns a moment at or below all snapshots.
    pub(crate) fn lowest(&self) -> Number {
        self.snapshots.iter().copied().fold(self.bound, Number::min)
    }

    /// Returns whether a snapshot may show a version from this number on, before the next one.
    pub(crate) fn may_show(&self, number: Number, next: Number) -> bool {
        next > self.bound || self.snapshots.iter().any(|snapshot| (number..next).contains(snapshot))
    }
}

pub(crate) struct Core<W> {
    me: NodeId,
    incarnation: Incarnation,
    clock: Number,
    limit: Number,
    epoch: Epoch,
    /// The members, without this node.
    peers: BTreeMap<NodeId, Peer>,
    /// The last view that a node has entered, as far as it is known.
    entered: BTreeMap<NodeId, Epoch>,
    /// The last view in which a node has raised its clock above the limits of those that are gone.
    raised: BTreeMap<NodeId, Epoch>,
    /// The last round.
    round: u64,
    wants_round: bool,
    /// Returns the number of blocks that were given to this node to be changed.
    grants: Box<dyn Fn() -> u64 + Send>,
    /// The rounds that are not complete, each with the grants before its begin.
    begun: VecDeque<(u64, u64)>,
    /// The grants before the begin of the last complete round.
    covered: u64,
    snapshots: BTreeMap<Number, u32>,
    running: HashMap<TransactionId, Running<W>>,
    /// Transactions that wait for a round, to draw a number behind it.
    draws: Vec<(u64, TransactionId, W)>,
    /// Transactions that wait until their record is durable or their round complete.
    committing: Vec<TransactionId>,
    homes: HashMap<u32, Home>,
    /// Final states, and those from before.
    finals: [HashMap<TransactionId, Status>; 2],
    /// Transactions of other nodes whose numbers will be above these moments.
    unfinished: HashMap<TransactionId, Number>,
    /// Transactions of other nodes that are at their end, and their slots tell how they ended.
    ended: HashSet<TransactionId>,
    /// Questions to other nodes.
    questions: HashMap<TransactionId, Vec<(Number, W, Option<TransactionId>)>>,
    /// The transactions for whose ends transactions of this node wait.
    waits: HashMap<TransactionId, TransactionId>,
    /// Those who wait for a view, or for the slots of nodes that are gone.
    wait_for_view: Vec<W>,
    sends: Vec<(NodeId, Message)>,
    tells: Vec<(W, Notice)>,
}

impl<W> Core<W> {
    /// Makes the state of a node in no view. `grants` returns how many blocks were given to the
    /// node to be changed.
    pub(crate) fn new(
        me: NodeId,
        incarnation: Incarnation,
        grants: impl Fn() -> u64 + Send + 'static,
    ) -> Self {
        Self {
            me,
            incarnation,
            clock: 0,
            limit: 0,
            epoch: Epoch(0),
            peers: BTreeMap::new(),
            entered: BTreeMap::new(),
            raised: BTreeMap::new(),
            round: 0,
            wants_round: false,
            grants: Box::new(grants),
            begun: VecDeque::new(),
            covered: 0,
            snapshots: BTreeMap::new(),
            running: HashMap::new(),
            draws: Vec::new(),
            committing: Vec::new(),
            homes: HashMap::new(),
            finals: Default::default(),
            unfinished: HashMap::new(),
            ended: HashSet::new(),
            questions: HashMap::new(),
            waits: HashMap::new(),
            wait_for_view: Vec::new(),
            sends: Vec::new(),
            tells: Vec::new(),
        }
    }

    /// Takes the messages to send, in their order.
    pub(crate) fn take_sends(&mut self) -> Vec<(NodeId, Message)> {
        std::mem::take(&mut self.sends)
    }

    /// Takes what waiters are to be told.
    pub(crate) fn take_tells(&mut self) -> Vec<(W, Notice)> {
        std::mem::take(&mut self.tells)
    }

    pub(crate) fn has_sends(&self) -> bool {
        !self.sends.is_empty()
    }

    pub(crate) fn clock(&self) -> Number {
        self.clock
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns true if this incarnation of the node is a member.
    pub(crate) fn is_member(&self, node: NodeId, incarnation: Incarnation) -> bool {
        match self.peers.get(&node) {
            Some(peer) => peer.incarnation == incarnation,
            // An earlier incarnation of this node is gone.
            None => (node, incarnation) == (self.me, self.incarnation),
        }
    }

    /// Returns true if this node has the lowest number of all members.
    pub(crate) fn is_first(&self) -> bool {
        self.epoch > Epoch(0) && self.peers.keys().all(|node| *node > self.me)
    }

    /// Returns the lowest status block of a transaction of this node that is not at its end.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.running.keys().map(|id| id.status_block()).min()
    }

    /// Forgets the homes of lower status blocks: no row names their transactions.
    pub(crate) fn forget_homes(&mut self, below: u32) {
        self.homes.retain(|block, _| *block >= below);
    }

    /// Returns the number of changes for which the limit has room.
    pub(crate) fn left(&self) -> Number {
        self.limit.saturating_sub(self.clock)
    }

    /// Sets the limit, which is durable.
    pub(crate) fn set_limit(&mut self, limit: Number) {
        self.limit = self.limit.max(limit);
    }

    pub(crate) fn raise(&mut self, clock: Number) {
        self.clock = self.clock.max(clock);
    }

    // Snapshots.

    /// Takes a snapshot.
    pub(crate) fn snapshot(&mut self) -> Number {
        *self.snapshots.entry(self.clock).or_default() += 1;
        self.clock
    }

    /// Gives a snapshot back.
    pub(crate) fn release(&mut self, snapshot: Number) {
        if let Some(count) = self.snapshots.get_mut(&snapshot) {
            *count -= 1;
            if *count == 0 {
                self.snapshots.remove(&snapshot);
            }
        }
    }

    /// Returns the lowest snapshots of this node. Each later one is at or above the clock.
    fn lows(&self) -> [Number; LOWS] {
        let mut snapshots = self.snapshots.keys();
        std::array::from_fn(|_| snapshots.next().copied().unwrap_or(self.clock))
    }

    /// Returns what is known of the snapshots of all members.
    pub(crate) fn horizon(&self) -> Horizon {
        let own = self.lows();
        let all = || self.peers.values().map(|peer| &peer.lows).chain([&own]);
        let bound = all().map(|lows| lows[LOWS - 1]).fold(Number::MAX, Number::min);
        let snapshots = all().flatten().copied().filter(|snapshot| *snapshot < bound).collect();
        Horizon { snapshots, bound }
    }

    // Transactions of this node.

    /// Asks all members for their lowest snapshots, so that the horizon moves.
    pub(crate) fn refresh(&mut self) {
        if self.round == self.complete() {
            self.begin_round();
        }
    }

    /// Returns true if all members have answered a round.
    pub(crate) fn is_answered(&self, round: u64) -> bool {
        self.complete() >= round
    }

    /// Begins a transaction that changes something.
    pub(crate) fn begin(&mut self, id: TransactionId) {
        self.running.insert(id, Running { state: State::Active, asked: Vec::new() });
    }

    /// Asks for a number, after the last change of a transaction. `granted` is the newest grant of
    /// the leaves that it has changed. The waiter is told [`Notice::Drawn`]; then its commit record
    /// is to be appended.
    pub(crate) fn draw(&mut self, id: TransactionId, granted: u64, waiter: W) {
        self.note_complete();
        let round = if granted <= self.covered { 0 } else { self.next_round() };
        self.draws.push((round, id, waiter));
        self.rounds_ended();
    }

    /// Notes that the commit record of a transaction is durable. The waiter is told
    /// [`Notice::Committed`].
    pub(crate) fn durable(&mut self, id: TransactionId, waiter: W) {
        if let Some(Running { state: State::Committing { waiter: place, .. }, .. }) =
            self.running.get_mut(&id)
        {
            *place = Some(waiter);
        }
        self.rounds_ended();
    }

    /// Ends a transaction without a commit record.
    pub(crate) fn abort(&mut self, id: TransactionId) {
        self.end(id, Status::Aborted);
    }

    fn end(&mut self, id: TransactionId, status: Status) {
        let Some(Running { asked, .. }) = self.running.remove(&id) else { return };
        self.waits.remove(&id);
        self.learn(id, status);
        for (asker, _) in asked {
            self.answer(asker, MessageBody::Answer { id, status });
        }
    }

    fn answer(&mut self, asker: Asker<W>, body: MessageBody) {
        match asker {
            Asker::Node(node) => self.send(node, body),
            Asker::Here(waiter, by) => self.wake(waiter, by),
        }
    }

    // States.

    /// Returns the state of a transaction, or the way to it. A snapshot of [`Number::MAX`] needs
    /// the end of the transaction.
    pub(crate) fn status(&self, id: TransactionId, snapshot: Number) -> StatusPath {
        if let Some(running) = self.running.get(&id) {
            return match &running.state {
                // The number will be drawn behind this look.
                State::Active if snapshot < Number::MAX => StatusPath::Known(Status::After(self.clock)),
                State::Committing { number, .. } if *number > snapshot => {
                    StatusPath::Known(Status::After(*number - 1))
                }
                _ => StatusPath::Ask,
            };
        }
        if let Some(status) = self.finals.iter().find_map(|finals| finals.get(&id)) {
            return StatusPath::Known(*status);
        }
        if let Some(moment) = self.unfinished.get(&id).filter(|moment| snapshot <= **moment) {
            return StatusPath::Known(Status::After(*moment));
        }
        let Some(home) = self.homes.get(&id.status_block()) else { return StatusPath::FindHome };
        match self.is_member(home.node, home.incarnation) {
            true if home.node == self.me => StatusPath::ReadSlot,
            true if self.ended.contains(&id) => StatusPath::ReadSlot,
            true => StatusPath::Ask,
            false if home.since > self.epoch || !self.is_open() => StatusPath::Ask,
            false => StatusPath::ReadSlot,
        }
    }

    /// Lets a waiter wait for the state of a transaction, as long as the way to it is
    /// [`StatusPath::Ask`]. It is told [`Notice::LookAgain`]. A transaction `by` that needs the end
    /// of the other one is told [`Notice::Deadlock`] if that waits for it.
    pub(crate) fn ask(&mut self, id: TransactionId, snapshot: Number, by: Option<TransactionId>, waiter: W) {
        if self.status(id, snapshot) != StatusPath::Ask {
            self.look_again(waiter);
            return;
        }
        let by = by.filter(|_| snapshot == Number::MAX);
        if let Some(running) = self.running.get_mut(&id) {
            running.asked.push((Asker::Here(waiter, by), snapshot));
        } else {
            let home = self.homes.get(&id.status_block()).copied();
            let is_asked = |home: &Home| home.node != self.me && self.is_member(home.node, home.incarnation);
            let Some(home) = home.filter(is_asked) else { return self.wait_for_view.push(waiter) };
            self.questions.entry(id).or_default().push((snapshot, waiter, by));
            self.send(home.node, MessageBody::Question { id, snapshot });
        }
        if let Some(by) = by {
            self.waits.insert(by, id);
            self.probe(by, self.me, id);
        }
    }

    /// Follows the waits from `target` on. Each wait begins with this, so the last one of a circle
    /// finds all others (Chandy, Misra and Haas 1983).
    fn probe(&mut self, waiter: TransactionId, node: NodeId, mut target: TransactionId) {
        for _ in 0..=self.running.len() {
            if target == waiter {
                return match node == self.me {
                    true => self.end_wait(waiter),
                    false => self.send(node, MessageBody::Deadlock { id: waiter }),
                };
            }
            if !self.running.contains_key(&target) {
                let home = self.homes.get(&target.status_block());
                if let Some(home) = home.filter(|home| home.node != self.me).copied() {
                    self.send(home.node, MessageBody::Probe { waiter, node, target });
                }
                return;
            }
            let Some(next) = self.waits.get(&target) else { return };
            target = *next;
        }
    }

    /// Ends the wait of a transaction that waits for itself.
    fn end_wait(&mut self, by: TransactionId) {
        let Some(id) = self.waits.remove(&by) else { return };
        let found = if let Some(Running { asked, .. }) = self.running.get_mut(&id) {
            let is_it =
                |(asker, _): &(Asker<W>, Number)| matches!(asker, Asker::Here(_, Some(of)) if *of == by);
            asked.iter().position(is_it).map(|at| asked.swap_remove(at).0)
        } else if let Some(askers) = self.questions.get_mut(&id) {
            let at = askers.iter().position(|(.., of)| *of == Some(by));
            at.map(|at| askers.swap_remove(at)).map(|(_, waiter, by)| Asker::Here(waiter, by))
        } else {
            None
        };
        if let Some(Asker::Here(waiter, _)) = found {
            self.tells.push((waiter, Notice::Deadlock));
        }
    }

    /// Keeps a final state.
    pub(crate) fn learn(&mut self, id: TransactionId, status: Status) {
        self.unfinished.remove(&id);
        self.ended.remove(&id);
        if self.finals[0].len() >= FINALS {
            // The states that one row needs are all kept: it has far fewer versions.
            self.finals[1] = std::mem::take(&mut self.finals[0]);
        }
        self.finals[0].insert(id, status);
    }

    /// Keeps the home of a status block.
    pub(crate) fn learn_home(&mut self, block: u32, home: Home) {
        self.homes.insert(block, home);
    }

    /// Returns true if the slots of nodes that are gone may be read: all members have raised their
    /// clocks above all numbers in them.
    fn is_open(&self) -> bool {
        let has = |node| self.raised.get(&node).is_some_and(|raised| *raised >= self.epoch);
        has(self.me) && self.peers.keys().all(|node| has(*node))
    }

    // Views and messages.

    /// Handles a view of the members, this node among them.
    pub(crate) fn view(&mut self, epoch: Epoch, members: &[(NodeId, Incarnation)]) {
        self.epoch = epoch;
        let before = std::mem::take(&mut self.peers);
        for &(node, incarnation) in members.iter().filter(|(node, _)| *node != self.me) {
            let old = before.get(&node).filter(|peer| peer.incarnation == incarnation);
            // A newcomer has raised its clock above the limits before it takes a snapshot, and has
            // read no row before the last change of a transaction that draws now.
            let (answered, lows) = old.map_or((self.round, [0; LOWS]), |peer| (peer.answered, peer.lows));
            self.peers.insert(node, Peer { incarnation, answered, lows });
        }
        let unanswered = std::mem::take(&mut self.questions);
        for (id, askers) in unanswered {
            let home = self.homes.get(&id.status_block());
            if home.is_some_and(|home| self.is_member(home.node, home.incarnation)) {
                self.questions.insert(id, askers);
            } else {
                askers.into_iter().for_each(|(_, waiter, by)| self.wake(waiter, by));
            }
        }
        self.unfinished.retain(|id, _| {
            let home = self.homes.get(&id.status_block());
            home.is_some_and(|home| {
                self.peers.get(&home.node).is_some_and(|peer| peer.incarnation == home.incarnation)
            })
        });
        for running in self.running.values_mut() {
            let peers = &self.peers;
            running.asked.retain(|(asker, _)| match asker {
                Asker::Node(node) => peers.contains_key(node),
                Asker::Here(..) => true,
            });
        }
        let nodes: Vec<_> = self.peers.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.send(node, MessageBody::Entered { epoch }));
        self.wake_for_view();
        self.rounds_ended();
    }

    /// Returns true if all members have entered the view. From then on each of them asks this node
    /// before it draws a number.
    pub(crate) fn is_gathered(&self) -> bool {
        self.epoch > Epoch(0)
            && self.peers.keys().all(|node| self.entered.get(node).is_some_and(|at| *at >= self.epoch))
    }

    /// Lets a waiter wait until all members have entered the view. It is told
    /// [`Notice::LookAgain`], also if there is another view.
    pub(crate) fn gather(&mut self, waiter: W) {
        match self.is_gathered() {
            true => self.look_again(waiter),
            false => self.wait_for_view.push(waiter),
        }
    }

    /// Notes that this node has read the limits of all nodes that are gone in this view: `limit` is
    /// the highest.
    pub(crate) fn raised(&mut self, epoch: Epoch, limit: Number) {
        self.raise(limit);
        self.raised.insert(self.me, epoch);
        let nodes: Vec<_> = self.peers.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.send(node, MessageBody::Raised { epoch }));
        self.wake_for_view();
    }

    fn wake_for_view(&mut self) {
        let waiting = std::mem::take(&mut self.wait_for_view);
        waiting.into_iter().for_each(|waiter| self.look_again(waiter));
    }

    /// Wakes a waiter whose transaction does not wait any more.
    fn wake(&mut self, waiter: W, by: Option<TransactionId>) {
        by.into_iter().for_each(|by| _ = self.waits.remove(&by));
        self.look_again(waiter);
    }

    fn look_again(&mut self, waiter: W) {
        self.tells.push((waiter, Notice::LookAgain));
    }

    /// Handles a message of another node.
    pub(crate) fn message(&mut self, from: NodeId, message: Message) {
        self.raise(message.clock);
        if let Some(peer) = self.peers.get_mut(&from) {
            // Also an older message is true: later snapshots are above the bound in it.
            peer.lows = message.lows;
        }
        match message.body {
            MessageBody::Ask { round } => self.send(from, MessageBody::Told { round }),
            MessageBody::Told { round } => {
                if let Some(peer) = self.peers.get_mut(&from) {
                    peer.answered = peer.answered.max(round);
                }
                self.rounds_ended();
            }
            MessageBody::Entered { epoch } => {
                let entered = self.entered.entry(from).or_insert(epoch);
                *entered = epoch.max(*entered);
                if self.is_gathered() {
                    self.wake_for_view();
                }
            }
            MessageBody::Raised { epoch } => {
                let raised = self.raised.entry(from).or_insert(epoch);
                *raised = epoch.max(*raised);
                if self.is_open() {
                    self.wake_for_view();
                }
            }
            MessageBody::Question { id, snapshot } => self.question(from, id, snapshot),
            MessageBody::Probe { waiter, node, target } => {
                // A transaction that is at its end waits for nothing.
                if self.running.contains_key(&target) {
                    self.probe(waiter, node, target);
                }
            }
            MessageBody::Deadlock { id } => self.end_wait(id),
            MessageBody::Answer { id, status: Status::After(moment) } => {
                if self.unfinished.len() >= MOST_UNFINISHED {
                    self.unfinished.clear();
                }
                let known = self.unfinished.entry(id).or_default();
                *known = moment.max(*known);
                self.answered(id, moment);
            }
            MessageBody::Answer { id, status } => {
                self.learn(id, status);
                self.answered(id, Number::MAX);
            }
            MessageBody::Ended { id } => {
                self.ended.insert(id);
                self.answered(id, Number::MAX);
            }
        }
    }

    fn question(&mut self, from: NodeId, id: TransactionId, snapshot: Number) {
        // The clock in the message was at or above the snapshot, so this clock is now.
        match self.status(id, snapshot) {
            StatusPath::Known(status) => self.send(from, MessageBody::Answer { id, status }),
            StatusPath::ReadSlot | StatusPath::FindHome => self.send(from, MessageBody::Ended { id }),
            StatusPath::Ask => {
                if let Some(running) = self.running.get_mut(&id) {
                    running.asked.push((Asker::Node(from), snapshot));
                }
            }
        }
    }

    /// Wakes those who have asked with snapshots up to `moment`.
    fn answered(&mut self, id: TransactionId, moment: Number) {
        let Some(askers) = self.questions.remove(&id) else { return };
        let (ended, waiting): (Vec<_>, Vec<_>) =
            askers.into_iter().partition(|(snapshot, ..)| *snapshot <= moment);
        if !waiting.is_empty() {
            self.questions.insert(id, waiting);
        }
        ended.into_iter().for_each(|(_, waiter, by)| self.wake(waiter, by));
    }

    fn message_of(&self, body: MessageBody) -> Message {
        Message { clock: self.clock, lows: self.lows(), body }
    }

    fn send(&mut self, to: NodeId, body: MessageBody) {
        let message = self.message_of(body);
        self.sends.push((to, message));
    }

    // Rounds.

    /// Returns the round that begins next: now, unless there are enough under way. It asks all
    /// members for their lowest snapshots.
    pub(crate) fn next_round(&mut self) -> u64 {
        if self.round - self.complete() < MOST_ROUNDS {
            self.begin_round();
            return self.round;
        }
        self.wants_round = true;
        self.round + 1
    }

    fn begin_round(&mut self) {
        self.round += 1;
        self.begun.push_back((self.round, (self.grants)()));
        let nodes: Vec<_> = self.peers.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.send(node, MessageBody::Ask { round: self.round }));
    }

    /// Returns the last round that all members have answered.
    fn complete(&self) -> u64 {
        self.peers.values().map(|peer| peer.answered).fold(self.round, u64::min)
    }

    fn note_complete(&mut self) {
        let complete = self.complete();
        while let Some((_, grants)) = self.begun.front().filter(|(round, _)| *round <= complete) {
            self.covered = *grants;
            self.begun.pop_front();
        }
    }

    /// Goes on with all transactions that have waited for rounds which are complete.
    fn rounds_ended(&mut self) {
        if self.wants_round && self.round - self.complete() < MOST_ROUNDS {
            self.wants_round = false;
            self.begin_round();
        }
        self.note_complete();
        let complete = self.complete();
        let (drawn, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.draws).into_iter().partition(|(round, ..)| *round <= complete);
        self.draws = waiting;
        self.draw_all(drawn);
        self.end_commits();
    }

    fn draw_all(&mut self, drawn: Vec<(u64, TransactionId, W)>) {
        let mut numbered = Vec::new();
        for (_, id, waiter) in drawn {
            if self.clock >= self.limit {
                self.tells.push((waiter, Notice::AtLimit));
                continue;
            }
            self.clock += 1;
            numbered.push((id, self.clock));
            self.tells.push((waiter, Notice::Drawn(self.clock)));
        }
        if numbered.is_empty() {
            return;
        }
        let round = self.next_round();
        for (id, number) in numbered {
            let Some(running) = self.running.get_mut(&id) else { continue };
            running.state = State::Committing { number, round, waiter: None };
            // The number is above the snapshots of those who have asked before.
            let (after, waiting): (Vec<_>, Vec<_>) =
                std::mem::take(&mut running.asked).into_iter().partition(|(_, asked)| *asked < number);
            running.asked = waiting;
            for (asker, _) in after {
                self.answer(asker, MessageBody::Answer { id, status: Status::After(number - 1) });
            }
            self.committing.push(id);
        }
    }

    fn end_commits(&mut self) {
        let complete = self.complete();
        let mut at = 0;
        while let Some(&id) = self.committing.get(at) {
            let is_over = match self.running.get(&id).map(|running| &running.state) {
                Some(State::Committing { round, waiter: Some(_), .. }) => *round <= complete,
                _ => false,
            };
            if !is_over {
                at += 1;
                continue;
            }
            self.committing.swap_remove(at);
            let state =
                self.running.get_mut(&id).map(|running| std::mem::replace(&mut running.state, State::Active));
            if let Some(State::Committing { number, waiter: Some(waiter), .. }) = state {
                self.end(id, Status::Committed(number));
                self.tells.push((waiter, Notice::Committed));
            }
        }
    }
}

#[cfg(test)]
impl<W: std::fmt::Debug> Core<W> {
    /// Returns a text that is different for each state.
    pub(crate) fn fingerprint(&self) -> String {
        fn sorted<K: Ord, V>(map: &HashMap<K, V>) -> BTreeMap<&K, &V> {
            map.iter().collect()
        }
        let Self {
            me,
            incarnation,
            clock,
            limit,
            epoch,
            peers,
            entered,
            raised,
            round,
            wants_round,
            grants: _,
            begun,
            covered,
            snapshots,
            running,
            draws,
            committing,
            homes,
            finals: [finals, older],
            unfinished,
            ended,
            questions,
            waits,
            wait_for_view,
            sends,
            tells,
        } = self;
        let maps = (sorted(running), sorted(homes), sorted(finals), sorted(older), sorted(unfinished));
        let ended: std::collections::BTreeSet<_> = ended.iter().collect();
        let waits = (sorted(questions), sorted(waits), wait_for_view, sends, tells, ended);
        let view = (me, incarnation, clock, limit, epoch, peers, entered, raised);
        format!(
            "{view:?}{:?}{maps:?}{waits:?}",
            (round, wants_round, begun, covered, snapshots, draws, committing)
        )
    }
}
