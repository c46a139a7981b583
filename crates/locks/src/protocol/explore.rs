//! Exhaustive exploration of a small scope: two clients on two nodes, one resource, three candidate
//! masters.
//!
//! It covers every order in which messages arrive, clients act, cancel and release, the third node
//! dies and the others learn of it.
//!
//! Checked at every step: incompatible modes are never usable at once, tokens grow, and a value
//! that is called valid was written last. No value is called unwritten while a client holds the
//! lock that held it at the write, and none is lost before the death. In every final state all
//! requests were answered and no message is left.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
};

use plexus_base::{Epoch, Incarnation, Partition, WorkerId};

use super::*;

/// The largest number of workers: fewer partitions for each to copy.
const WORKERS: u8 = 8;
/// The node that has no client and may die.
const THIRD: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Lock(Mode),
    /// Writes the value block where that is allowed.
    Convert(Mode),
    /// Writes the value block where that is allowed.
    Unlock,
}

#[derive(Clone, Debug)]
struct Client {
    todo: VecDeque<Op>,
    may_cancel: bool,
    asked: Option<Mode>,
    granted: Option<Mode>,
}

impl Client {
    fn usable(&self) -> Option<Mode> {
        self.granted.map(|granted| self.asked.map_or(granted, |asked| granted.common(asked)))
    }
}

#[derive(Clone)]
struct ExploredLocks {
    name: Name,
    shards: Vec<Option<Shard>>,
    clients: Vec<Client>,
    lanes: BTreeMap<(usize, usize, bool), VecDeque<Message>>,
    may_die: bool,
    /// Nodes that have not learned of the death.
    ignorant: BTreeSet<usize>,
    tokens: BTreeMap<Mode, Token>,
    written: u8,
    /// Clients that held a lock at the last write and have held it since.
    witnesses: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Deliver(usize, usize, bool),
    Act(usize),
    Cancel(usize),
    GiveUp(usize),
    Die,
    Learn(usize),
}

fn view(epoch: u32, nodes: u8) -> Members {
    Members { epoch: Epoch(epoch), members: (0..nodes).map(|node| (NodeId(node), Incarnation(1))).collect() }
}

/// Returns a name that `master` masters among three nodes.
fn name(master: u8) -> Name {
    let mut names = (0..=255u8).map(|byte| Name::new(&[byte]).expect("a name"));
    let found = names.find(|name| view(1, 3).master(name.partition()) == NodeId(master));
    found.expect("each node masters something")
}

impl ExploredLocks {
    fn new(master: u8, scripts: [&[Op]; 2], may_cancel: bool, may_die: bool) -> Self {
        let name = name(master);
        let Partition(partition) = name.partition();
        let worker = WorkerId((partition % u16::from(WORKERS)) as u8);
        let client = |script: &[Op]| Client {
            todo: script.iter().copied().collect(),
            may_cancel,
            asked: None,
            granted: None,
        };
        let mut world = Self {
            name,
            shards: Vec::new(),
            clients: scripts.map(client).into(),
            lanes: BTreeMap::new(),
            may_die,
            ignorant: BTreeSet::new(),
            tokens: BTreeMap::new(),
            written: 0,
            witnesses: BTreeSet::new(),
        };
        for me in 0..3 {
            let (incarnation, workers) = (Incarnation(1), WORKERS);
            let (me, waiting_max, locks_max) = (NodeId(me), 9, 9);
            let config = Config { me, incarnation, worker, workers, deadlock_ns: 1, waiting_max, locks_max };
            let mut out = Vec::new();
            world.shards.push(Some(Shard::new(config, view(1, 3), &mut out)));
            world.carry_out(me.index(), out);
        }
        // A cluster starts with a view change like any other.
        while let Some((&(from, to, replies), _)) = world.lanes.first_key_value() {
            world.take(Step::Deliver(from, to, replies));
        }
        world
    }

    fn steps(&self) -> Vec<Step> {
        let lanes = self.lanes.keys().map(|&(from, to, replies)| Step::Deliver(from, to, replies));
        let ready = |at: &usize| self.clients[*at].asked.is_none() && !self.clients[*at].todo.is_empty();
        let waits = |at: &usize| self.clients[*at].asked.is_some() && self.clients[*at].may_cancel;
        let ends = (0..2).filter(waits).flat_map(|at| [Step::Cancel(at), Step::GiveUp(at)]);
        let acts = (0..2).filter(ready).map(Step::Act).chain(ends);
        let dies = self.may_die.then_some(Step::Die);
        lanes.chain(acts).chain(dies).chain(self.ignorant.iter().copied().map(Step::Learn)).collect()
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Deliver(from, to, replies) => {
                let lane = self.lanes.entry((from, to, replies)).or_default();
                let message = lane.pop_front();
                if lane.is_empty() {
                    self.lanes.remove(&(from, to, replies));
                }
                let (from, incarnation) = (NodeId(from as u8), Incarnation(1));
                if let Some(message) = message {
                    self.hand(to, Event::Message { from, incarnation, message });
                }
            }
            Step::Act(at) => self.act(at),
            Step::Cancel(at) => {
                self.clients[at].may_cancel = false;
                self.hand(at, Event::Cancel { lock: LockId(at as u64) });
            }
            Step::GiveUp(at) => {
                let client = &mut self.clients[at];
                (client.may_cancel, client.granted) = (false, None);
                client.todo.clear();
                self.witnesses.remove(&at);
                self.hand(at, Event::Unlock { lock: LockId(at as u64), value: None });
            }
            Step::Die => {
                self.may_die = false;
                self.shards[THIRD] = None;
                self.lanes.retain(|(_, to, _), _| *to != THIRD);
                self.ignorant = BTreeSet::from([0, 1]);
            }
            Step::Learn(at) => {
                self.ignorant.remove(&at);
                // A message of the dead node that has not arrived by now may come later and is then
                // ignored. That is the same as if it never came.
                self.lanes.retain(|(from, to, _), _| (*from, *to) != (THIRD, at));
                self.hand(at, Event::View(view(2, 2)));
            }
        }
    }

    fn act(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let (lock, timeout) = (LockId(at as u64), WaitLimit::Forever);
        match client.todo.pop_front() {
            Some(Op::Lock(mode)) => {
                client.asked = Some(mode);
                let (owner, start_time, name) = (Owner(1), at as u64, self.name.clone());
                let kind = RequestKind::New(NewLock { owner, start_time, name, notify: true });
                self.hand(at, Event::Request(LockRequest { lock, mode, timeout, kind }));
            }
            // Nothing to convert or release after a refusal.
            Some(_) if client.granted.is_none() => {}
            Some(Op::Convert(mode)) => {
                client.asked = Some(mode);
                let writes = client.granted.is_some_and(|granted| granted.writes_to(mode));
                let value = self.write(writes);
                let kind = RequestKind::Conversion { value };
                self.hand(at, Event::Request(LockRequest { lock, mode, timeout, kind }));
            }
            Some(Op::Unlock) => {
                let writes = client.granted.take().is_some_and(Mode::writes);
                let value = self.write(writes);
                self.witnesses.remove(&at);
                self.hand(at, Event::Unlock { lock, value });
            }
            None => {}
        }
    }

    /// Returns the value that a client writes, if it may write.
    fn write(&mut self, writes: bool) -> Option<[u8; VALUE_LEN]> {
        if writes {
            self.written += 1;
            self.witnesses = (0..2).filter(|at| self.clients[*at].granted.is_some()).collect();
        }
        writes.then_some([self.written; VALUE_LEN])
    }

    fn hand(&mut self, node: usize, event: Event) {
        let Some(shard) = &mut self.shards[node] else { return };
        let mut out = Vec::new();
        shard.handle(Nanos(0), event, &mut out);
        self.carry_out(node, out);
    }

    fn carry_out(&mut self, node: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { to, message } => {
                    if self.shards.get(to.index()).is_none_or(Option::is_some) {
                        let lane = (node, to.index(), message.kind() == Kind::Reply);
                        self.lanes.entry(lane).or_default().push_back(message);
                    }
                }
                Action::Granted { mode, token, value, .. } => self.granted(node, mode, token, value),
                Action::Refused { .. } => {
                    assert!(self.clients[node].asked.take().is_some(), "refused without a request");
                }
                Action::Blocking { .. } | Action::Open { .. } => {}
                Action::Tell { .. } | Action::Fault { .. } => panic!("{action:?}"),
            }
        }
    }

    fn granted(&mut self, node: usize, mode: Mode, token: Token, value: Value) {
        assert_eq!(self.clients[node].asked.take(), Some(mode), "granted without a request");
        self.clients[node].granted = Some(mode);
        if let Some(other) = self.clients[1 - node].usable() {
            assert!(mode.is_compatible_with(other), "{mode:?} beside {other:?}");
        }
        let excluded = self.tokens.iter().filter(|(other, _)| !other.is_compatible_with(mode));
        assert!(excluded.into_iter().all(|(_, before)| *before < token), "{token:?} after {:?}", self.tokens);
        self.tokens.insert(mode, token);
        if mode.keeps_value() {
            match value.validity {
                Validity::Valid => assert_eq!(value.bytes[0], self.written, "an old value"),
                Validity::Unwritten => {
                    assert!(self.witnesses.is_empty(), "written beside {:?}", self.witnesses);
                }
                Validity::Lost => assert!(self.shards[THIRD].is_none(), "lost without a death"),
            }
        }
    }

    /// Returns a hash that tells this state from others.
    fn print(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for shard in self.shards.iter().flatten() {
            let Shard { core, home, master, recovering, values, gate } = shard;
            let place = core.masters.slot(self.name.partition());
            let recovering = recovering.as_ref().map(|recovery| recovery.print(place));
            let parked: Vec<_> = gate.parked().messages().collect();
            let own = (core.view.epoch, core.masters.of(place), &home.locks, master, values, parked);
            format!("{own:?} {recovering:?}").hash(&mut hasher);
        }
        let written = (self.written, &self.witnesses);
        let rest = (&self.clients, &self.lanes, self.may_die, &self.ignorant, &self.tokens, written);
        format!("{rest:?}").hash(&mut hasher);
        hasher.finish()
    }

    /// Checks a final state: requests wait only in a deadlock, and masters know exactly the held
    /// locks.
    fn at_rest(&self, deadlocks: bool) {
        let waits = self.clients.iter().filter(|client| client.asked.is_some()).count();
        assert!(waits == 0 || deadlocks && waits == 2, "{:?}", self.clients);
        let known: usize = self.shards.iter().flatten().map(|shard| shard.resources().count()).sum();
        let locks: usize = self.shards.iter().flatten().map(|shard| shard.locks().count()).sum();
        assert_eq!((known, locks), (usize::from(waits > 0), waits), "{:?}", self.clients);
        assert!(self.shards.iter().flatten().all(Shard::is_open));
    }
}

/// Explores every state and returns their number.
fn explore(world: ExploredLocks, deadlocks: bool) -> usize {
    let mut seen = BTreeSet::from([world.print()]);
    let mut next = vec![world];
    while let Some(world) = next.pop() {
        let steps = world.steps();
        if steps.is_empty() {
            world.at_rest(deadlocks);
        }
        for step in steps {
            let mut after = world.clone();
            after.take(step);
            if seen.insert(after.print()) {
                next.push(after);
            }
        }
    }
    seen.len()
}

const ONCE: [Op; 2] = [Op::Lock(Mode::EX), Op::Unlock];
const SHARED: [Op; 2] = [Op::Lock(Mode::PR), Op::Unlock];
const UP: [Op; 3] = [Op::Lock(Mode::PR), Op::Convert(Mode::EX), Op::Unlock];
const DOWN: [Op; 3] = [Op::Lock(Mode::EX), Op::Convert(Mode::PR), Op::Unlock];
/// Converts to a mode that allows other writers, and back.
const THERE_AND_BACK: [Op; 4] =
    [Op::Lock(Mode::EX), Op::Convert(Mode::CR), Op::Convert(Mode::PR), Op::Unlock];
const WRITER: [Op; 2] = [Op::Lock(Mode::PW), Op::Unlock];
const ACROSS: [Op; 3] = [Op::Lock(Mode::PR), Op::Convert(Mode::CW), Op::Unlock];

#[test]
fn every_order_with_all_alive() {
    let mut states = 0;
    for master in 0..3 {
        for scripts in
            [[&ONCE[..], &ONCE], [&ONCE, &SHARED], [&DOWN, &UP], [&ACROSS, &SHARED], [&DOWN, &DOWN]]
        {
            states += explore(ExploredLocks::new(master, scripts, true, false), false);
        }
        for script in [&UP, &ACROSS] {
            states += explore(ExploredLocks::new(master, [script, script], true, false), true);
        }
    }
    assert!(states > 1_000, "{states}");
}

#[test]
fn every_order_with_a_death_anywhere() {
    let mut states = 0;
    for master in [0, 2] {
        for scripts in [[&ONCE[..], &ONCE], [&DOWN, &SHARED], [&THERE_AND_BACK, &WRITER]] {
            states += explore(ExploredLocks::new(master, scripts, false, true), false);
        }
    }
    assert!(states > 10_000, "{states}");
}

#[test]
fn every_order_with_a_death_and_released_locks() {
    let mut states = 0;
    for scripts in [[&ONCE[..], &ONCE], [&UP, &SHARED], [&THERE_AND_BACK, &WRITER]] {
        states += explore(ExploredLocks::new(2, scripts, true, true), false);
    }
    assert!(states > 10_000, "{states}");
}
