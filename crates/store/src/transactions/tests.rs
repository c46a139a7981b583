//! Transactions of several nodes in one thread: messages, flushes, deaths and joins in a random
//! order, over rows that all nodes share.
//!
//! Each transaction appends itself to rows, or locks them. So a row tells who has changed it, in
//! which order, and a read tells whose changes it has seen.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use plexus_base::{Epoch, Incarnation, NodeId};
use plexus_sim::Random;

use super::{
    core::{Core, Home, Notice, StatusPath},
    messages::{LOWS, Message},
    rows::{self, Changed, Changer, Contents, Decided, RowFault, RowLock, Unknown},
    *,
};
use crate::tree::EntryChange;

const ROWS: usize = 5;
const CLIENTS: usize = 3;

/// The numbers that a limit leaves: few, so that limits are reached.
const LIMIT_STEP: Number = 5;

type Token = u64;

struct Node {
    core: Core<Token>,
    /// The number of rows that it got to itself.
    grants: Arc<AtomicU64>,
    incarnation: Incarnation,
    /// The members of its view.
    view: BTreeMap<NodeId, Incarnation>,
    /// False until it has read the limits of all others.
    is_open: bool,
    /// The view in which it has raised its clock.
    raised: Epoch,
    next_slot: u16,
    /// Its status block.
    block: u32,
    clients: Vec<Client>,
    tokens: Token,
}

#[derive(Clone, Debug, Default)]
struct Client {
    state: Step,
    is_repeatable: bool,
    /// It changes nothing.
    is_reader: bool,
    id: Option<TransactionId>,
    snapshot: Option<Number>,
    /// The rows to read and append to, or to lock, in their order.
    rows: Vec<(usize, Option<RowLock>)>,
    has_changed: bool,
    /// The moment at which it has begun with the next row.
    now: Option<Number>,
    at: usize,
    token: Token,
    /// The newest grant of the rows that it has changed.
    granted: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Step {
    #[default]
    Idle,
    Working,
    Waiting,
    Drawing,
    Flushing,
    Ending,
}

/// A read of a row: the transactions that it has shown.
struct Seen {
    row: usize,
    snapshot: Number,
    by: Option<TransactionId>,
    on: Incarnation,
    contents: Vec<u64>,
}

struct Slot {
    number: Number,
    is_durable: bool,
}

struct World {
    random: Random,
    /// By node: the transactions that are left. Without them they are random.
    programs: Option<Vec<VecDeque<Client>>>,
    nodes: Vec<Option<Node>>,
    epoch: Epoch,
    members: Vec<(NodeId, Incarnation)>,
    rows: Vec<Vec<u8>>,
    /// By row: the node that has it to itself, and its grant.
    holders: Vec<Option<(Incarnation, u64)>>,
    slots: HashMap<TransactionId, Slot>,
    homes: BTreeMap<u32, Home>,
    limits: HashMap<(NodeId, Incarnation), Number>,
    /// Messages under way, each with the incarnations of its sender and its receiver.
    links: BTreeMap<(usize, usize), VecDeque<([Incarnation; 2], Message)>>,
    acknowledged: BTreeMap<TransactionId, Number>,
    numbers: BTreeMap<TransactionId, Number>,
    seen: Vec<Seen>,
    /// The highest number of a commit that a reader has seen.
    newest_seen: Number,
    next_incarnation: u64,
    commits: usize,
    deadlocks: usize,
    /// The locks on rows: each transaction, its client, and its strength. A change is one, too.
    locks: Vec<Vec<(TransactionId, RowLock)>>,
    locked: usize,
    /// The rows that each transaction has changed.
    changed: HashMap<TransactionId, Vec<usize>>,
    before_cleaning: Vec<Option<cleaning::BeforeCleaning>>,
    pass: Option<cleaning::Pass>,
    next_block: u32,
    /// Status blocks below this one are free.
    first_block: u32,
    cleaned: usize,
}

mod cleaning;
mod explored;
mod random;
mod single;

fn ids_of(contents: Contents<'_>) -> Vec<u64> {
    match contents {
        Contents::Here(bytes) => contents_of(bytes),
        Contents::Long(_) => panic!("long contents"),
    }
}

fn contents_of(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

impl World {
    fn new(seed: u64, nodes: usize) -> Self {
        let mut world = Self {
            random: Random::new(seed),
            programs: None,
            nodes: Vec::new(),
            epoch: Epoch(1),
            members: Vec::new(),
            rows: vec![Vec::new(); ROWS],
            holders: vec![None; ROWS],
            locks: vec![Vec::new(); ROWS],
            locked: 0,
            slots: HashMap::new(),
            homes: BTreeMap::new(),
            limits: HashMap::new(),
            links: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            numbers: BTreeMap::new(),
            seen: Vec::new(),
            newest_seen: 0,
            next_incarnation: 1,
            commits: 0,
            deadlocks: 0,
            changed: HashMap::new(),
            before_cleaning: vec![None; ROWS],
            pass: None,
            next_block: 1,
            first_block: 1,
            cleaned: 0,
        };
        for node in 0..nodes {
            let made = world.make(node);
            world.nodes.push(Some(made));
        }
        world.new_view();
        world
    }

    fn make(&mut self, node: usize) -> Node {
        let incarnation = Incarnation(self.next_incarnation);
        self.next_incarnation += 1;
        let grants = Arc::<AtomicU64>::default();
        let counted = grants.clone();
        Node {
            core: Core::new(NodeId(node as u8), incarnation, move || counted.load(Relaxed)),
            grants,
            incarnation,
            view: BTreeMap::new(),
            is_open: false,
            raised: Epoch(0),
            next_slot: 0,
            block: 0,
            clients: vec![Client::default(); CLIENTS],
            tokens: 1,
        }
    }

    /// Sets the members of the next view. Each node enters it later.
    fn new_view(&mut self) {
        self.epoch = Epoch(self.epoch.0 + 1);
        let member =
            |(at, node): (usize, &Option<Node>)| Some((NodeId(at as u8), node.as_ref()?.incarnation));
        self.members = self.nodes.iter().enumerate().filter_map(member).collect();
    }

    fn node(&mut self, at: usize) -> &mut Node {
        self.nodes[at].as_mut().unwrap()
    }

    fn token(&mut self, at: usize) -> Token {
        let node = self.node(at);
        node.tokens += 1;
        node.tokens
    }

    /// Returns true now and then, if the run is random.
    fn chance(&mut self, percent: u64) -> bool {
        self.programs.is_none() && self.random.percent(percent)
    }

    /// Sends the messages of a node and wakes its clients.
    fn settle(&mut self, at: usize) {
        loop {
            let node = self.nodes[at].as_mut().unwrap();
            let own = node.incarnation;
            let view = node.view.clone();
            for (to, message) in node.core.take_sends() {
                let message = Message::decode(&message.encode()).unwrap();
                self.links.entry((at, to.0.into())).or_default().push_back(([own, view[&to]], message));
            }
            let tells = node.core.take_tells();
            if tells.is_empty() {
                return;
            }
            for (token, notice) in tells {
                self.tell(at, token, notice);
            }
        }
    }

    fn tell(&mut self, at: usize, token: Token, notice: Notice) {
        let clock = self.node(at).core.clock();
        let Some(client) = self.node(at).clients.iter().position(|client| client.token == token) else {
            return;
        };
        let id = self.node(at).clients[client].id;
        let state = match (self.node(at).clients[client].state, notice) {
            (Step::Waiting, Notice::LookAgain) => Step::Working,
            (Step::Waiting, Notice::Deadlock) => {
                self.deadlocks += 1;
                return self.abort(at, client);
            }
            (Step::Drawing, Notice::Drawn(number)) => {
                assert!(number <= clock, "a number is of the clock");
                // Appended behind all changes of the transaction.
                self.slots.insert(id.unwrap(), Slot { number, is_durable: false });
                self.numbers.insert(id.unwrap(), number);
                Step::Flushing
            }
            (Step::Drawing, Notice::AtLimit) => {
                let incarnation = self.node(at).incarnation;
                let limit = clock + LIMIT_STEP;
                self.limits.insert((NodeId(at as u8), incarnation), limit);
                self.node(at).core.set_limit(limit);
                let token = self.token(at);
                self.node(at).clients[client].token = token;
                let granted = self.node(at).clients[client].granted;
                self.node(at).core.draw(id.unwrap(), granted, token);
                Step::Drawing
            }
            (Step::Ending, Notice::Committed) => {
                let id = id.unwrap();
                self.acknowledged.insert(id, self.numbers[&id]);
                self.commits += 1;
                self.locks.iter_mut().for_each(|locks| locks.retain(|(of, _)| *of != id));
                self.node(at).clients[client].id = None;
                Step::Idle
            }
            other => panic!("{other:?}"),
        };
        self.node(at).clients[client].state = state;
    }

    /// Returns whether a node may use blocks that others have changed.
    fn may_work(&self, at: usize) -> bool {
        let node = self.nodes[at].as_ref().unwrap();
        node.is_open && node.core.epoch() == self.epoch
    }

    /// Lets a client do its next step. Returns false if it has none now.
    fn step(&mut self, at: usize, client: usize) -> bool {
        let state = self.node(at).clients[client].state;
        match state {
            Step::Idle if self.may_work(at) && self.programs.is_some() => {
                let Some(next) = self.programs.as_mut().and_then(|all| all[at].pop_front()) else {
                    return false;
                };
                self.node(at).clients[client] = next;
                true
            }
            Step::Idle if self.may_work(at) => {
                let mut rows: Vec<_> = (0..ROWS).filter(|_| self.random.percent(30)).collect();
                if rows.is_empty() {
                    rows.push(0);
                }
                let locks = *self.random.pick(&[0, 30, 100]);
                let strengths = [RowLock::KeyShare, RowLock::Share, RowLock::NoKeyUpdate, RowLock::Update];
                let mut strength = || self.random.percent(locks).then(|| *self.random.pick(&strengths));
                let mut rows: Vec<_> = rows.into_iter().map(|row| (row, strength())).collect();
                // In both orders, so that transactions wait for each other.
                if self.random.percent(30) {
                    rows.reverse();
                }
                let is_repeatable = self.random.percent(50);
                let is_reader = self.random.percent(30);
                let began =
                    Client { state: Step::Working, is_repeatable, is_reader, rows, ..Client::default() };
                self.node(at).clients[client] = began;
                true
            }
            Step::Working if self.may_work(at) => {
                self.work(at, client);
                true
            }
            Step::Idle | Step::Working | Step::Waiting | Step::Drawing | Step::Flushing | Step::Ending => {
                false
            }
        }
    }

    fn snapshot(&mut self, at: usize, client: usize) -> Number {
        if let Some(snapshot) = self.node(at).clients[client].snapshot {
            return snapshot;
        }
        let snapshot = self.node(at).core.snapshot();
        self.node(at).clients[client].snapshot = Some(snapshot);
        let newest = self.acknowledged.values().max().copied().unwrap_or_default();
        assert!(snapshot >= newest, "T1: a snapshot at {snapshot} misses the acknowledged {newest}");
        let newest = self.newest_seen;
        assert!(snapshot >= newest, "T1: a snapshot at {snapshot} misses {newest}, which was seen");
        snapshot
    }

    /// Reads the next row, and appends to it.
    fn work(&mut self, at: usize, client: usize) {
        let Client { ref rows, at: place, is_repeatable, is_reader, id, .. } = self.node(at).clients[client];
        let Some(&(row, lock)) = rows.get(place) else {
            return if is_reader { self.abort(at, client) } else { self.end(at, client) };
        };
        if !is_repeatable && let Some(snapshot) = self.node(at).clients[client].snapshot.take() {
            self.node(at).core.release(snapshot);
        }
        let snapshot = self.snapshot(at, client);
        let value = self.rows[row].clone();
        let on = self.node(at).incarnation;
        self.holders[row].take_if(|(holder, _)| *holder != on);
        let core = &self.nodes[at].as_ref().unwrap().core;
        let contents = match rows::visible(&value, id, snapshot, |id, snapshot| core.status(id, snapshot)) {
            Ok(contents) => contents.map(ids_of).unwrap_or_default(),
            Err(RowFault::Unknown(unknown)) => return self.find_out(at, client, unknown),
            Err(RowFault::Malformed) => panic!("a malformed row"),
        };
        let numbers = contents.iter().filter(|other| Some(TransactionId(**other)) != id);
        let newest = numbers.map(|other| self.numbers[&TransactionId(*other)]).max();
        self.newest_seen = self.newest_seen.max(newest.unwrap_or_default());
        self.seen.push(Seen { row, snapshot, by: id, on, contents: contents.clone() });
        if is_reader {
            self.node(at).clients[client].at += 1;
            return;
        }
        let id = match id {
            Some(id) => id,
            None => {
                let node = self.node(at);
                let id = TransactionId::new(node.block, node.next_slot);
                node.next_slot += 1;
                node.core.begin(id);
                node.clients[client].id = Some(id);
                id
            }
        };
        let clock = self.node(at).core.clock();
        let now = *self.node(at).clients[client].now.get_or_insert(clock);
        let granted = self.granted(at, row);
        let newest = &mut self.node(at).clients[client].granted;
        *newest = granted.max(*newest);
        let core = &self.nodes[at].as_ref().unwrap().core;
        let horizon = core.horizon();
        let by = Changer {
            places: &[],
            id,
            step: 0,
            snapshot: is_repeatable.then_some(snapshot),
            horizon: &horizon,
            keeps_removal: false,
            lock,
            now,
        };
        let status = |id, snapshot| core.status(id, snapshot);
        let mut append = |old: Option<Contents<'_>>| {
            let Contents::Here(old) = old.unwrap_or(Contents::Here(&[])) else { panic!("long contents") };
            let mut new = old.to_vec();
            // A row that is updated stays, so a lock that lets it be updated may have an older one.
            let is_seen = contents_of(&new) == contents || lock == Some(RowLock::KeyShare);
            assert!(!is_repeatable || is_seen, "T5: it has not seen what it changes");
            if lock.is_some() {
                return Decided::Lock;
            }
            new.extend(id.0.to_le_bytes());
            Decided::Set(new)
        };
        let value = (!value.is_empty()).then_some(&value[..]);
        let (change, changed) = rows::change(value, by, status, &mut append);
        // There is nothing to lock in an empty row.
        let has_row = change != EntryChange::Keep;
        match change {
            EntryChange::Keep => {}
            EntryChange::Set(new) => self.rows[row] = new,
            EntryChange::Remove => self.rows[row].clear(),
        }
        if changed == Changed::Done {
            // It is in the redo of this change.
            self.before_cleaning[row] = None;
            let strength = lock.unwrap_or(RowLock::NoKeyUpdate);
            assert!(has_row || lock.is_some());
            let others = &self.locks[row];
            for (other, theirs) in others.iter().filter(|(other, _)| has_row && *other != id) {
                assert!(!theirs.excludes(strength), "T9: {other:?} has locked row {row} for {theirs:?}");
            }
            if has_row {
                self.locks[row].push((id, strength));
            }
            match lock {
                Some(_) => self.locked += usize::from(has_row),
                None => {
                    self.changed.entry(id).or_default().push(row);
                    self.node(at).clients[client].has_changed = true;
                }
            }
        }
        match changed {
            Changed::Done => {
                let client = &mut self.node(at).clients[client];
                client.at += 1;
                client.now = None;
            }
            Changed::Serialization => self.abort(at, client),
            Changed::Unknown(unknown) => self.find_out(at, client, unknown),
            Changed::Malformed => panic!("a malformed row"),
        }
        self.settle(at);
    }

    /// Gives a node a row to itself. Returns the grant.
    fn granted(&mut self, at: usize, row: usize) -> u64 {
        let Node { incarnation, grants, .. } = self.nodes[at].as_ref().unwrap();
        match self.holders[row] {
            Some((holder, grant)) if holder == *incarnation => grant,
            _ => {
                let grant = grants.fetch_add(1, Relaxed) + 1;
                self.holders[row] = Some((*incarnation, grant));
                grant
            }
        }
    }

    fn abort(&mut self, at: usize, client: usize) {
        let Client { id, snapshot, .. } = self.node(at).clients[client];
        let core = &mut self.node(at).core;
        snapshot.into_iter().for_each(|snapshot| core.release(snapshot));
        id.into_iter().for_each(|id| core.abort(id));
        self.node(at).clients[client] = Client::default();
        self.locks.iter_mut().for_each(|locks| locks.retain(|(of, _)| Some(*of) != id));
        self.settle(at);
    }

    fn end(&mut self, at: usize, client: usize) {
        let Client { id, snapshot, granted, has_changed, .. } = self.node(at).clients[client];
        if self.chance(20) || !has_changed {
            return self.abort(at, client);
        }
        let token = self.token(at);
        let node = self.node(at);
        snapshot.into_iter().for_each(|snapshot| node.core.release(snapshot));
        node.clients[client].snapshot = None;
        node.clients[client].token = token;
        node.clients[client].state = Step::Drawing;
        node.core.draw(id.unwrap(), granted, token);
        self.settle(at);
    }

    fn find_out(&mut self, at: usize, client: usize, Unknown { id, snapshot, way }: Unknown) {
        match way {
            StatusPath::Known(_) => {}
            StatusPath::FindHome => {
                // If the block is free, the row is read again.
                if let Some(home) = self.homes.get(&id.status_block()).copied() {
                    self.node(at).core.learn_home(id.status_block(), home);
                }
            }
            StatusPath::ReadSlot if id.status_block() < self.first_block => {
                let first = self.first_block;
                self.node(at).core.forget_homes(first);
            }
            StatusPath::ReadSlot => {
                let status = match self.slots.get(&id) {
                    Some(slot) => Status::Committed(slot.number),
                    None => Status::Aborted,
                };
                self.node(at).core.learn(id, status);
            }
            StatusPath::Ask => {
                let token = self.token(at);
                let node = self.node(at);
                node.clients[client].state = Step::Waiting;
                node.clients[client].token = token;
                let by = node.clients[client].id;
                node.core.ask(id, snapshot, by, token);
                self.settle(at);
            }
        }
    }

    /// Makes all records of a node durable, and tells the transactions.
    fn flush(&mut self, at: usize) -> bool {
        let mut is_any = false;
        if self.chance(20) {
            self.flush_cleaning(at);
        }
        for client in 0..CLIENTS {
            let Client { id, state, .. } = self.node(at).clients[client];
            if state != Step::Flushing {
                continue;
            }
            is_any = true;
            let id = id.unwrap();
            self.slots.get_mut(&id).unwrap().is_durable = true;
            let token = self.token(at);
            let node = self.node(at);
            node.clients[client].state = Step::Ending;
            node.clients[client].token = token;
            node.core.durable(id, token);
        }
        self.settle(at);
        is_any
    }

    /// Delivers a message. Those of nodes that are no longer members are dropped, and those of
    /// nodes that are not members yet wait.
    fn deliver(&mut self, from: usize, to: usize) -> bool {
        let Some(&([incarnation, receiver], message)) = self.links.get(&(from, to)).and_then(VecDeque::front)
        else {
            return false;
        };
        let sender = NodeId(from as u8);
        let Some(node) = &mut self.nodes[to] else {
            self.links.remove(&(from, to));
            return true;
        };
        let is_member = node.core.is_member(sender, incarnation);
        if !is_member && self.members.contains(&(sender, incarnation)) && node.core.epoch() < self.epoch {
            return false;
        }
        self.links.get_mut(&(from, to)).unwrap().pop_front();
        if is_member && node.incarnation == receiver {
            node.core.message(sender, message);
            self.settle(to);
        }
        true
    }

    /// Lets a node enter the view, open its store, or raise its clock.
    fn follow(&mut self, at: usize) -> bool {
        let (epoch, members) = (self.epoch, self.members.clone());
        let is_late = self.node(at).core.epoch() < epoch;
        if is_late {
            self.node(at).view = members.iter().copied().collect();
            self.node(at).core.view(epoch, &members);
            // What nodes have sent that are gone is dropped.
            for from in 0..self.nodes.len() {
                if !members.iter().any(|(node, _)| usize::from(node.0) == from) {
                    self.links.remove(&(from, at));
                }
            }
            self.settle(at);
            return true;
        }
        if self.node(at).raised == epoch {
            return false;
        }
        let is_open = self.node(at).is_open;
        if !is_open && !self.node(at).core.is_gathered() {
            return false;
        }
        let counts = |of: &(NodeId, Incarnation)| !is_open || !members.contains(of);
        let highest = self.limits.iter().filter(|(of, _)| counts(of)).map(|(_, limit)| *limit).max();
        let highest = highest.unwrap_or_default();
        if !is_open {
            let incarnation = self.node(at).incarnation;
            self.node(at).core.raise(highest);
            let limit = highest + LIMIT_STEP;
            self.limits.insert((NodeId(at as u8), incarnation), limit);
            self.node(at).core.set_limit(limit);
            self.take_block(at, epoch);
            self.node(at).is_open = true;
        }
        self.node(at).core.raised(epoch, highest);
        self.node(at).raised = epoch;
        self.settle(at);
        true
    }

    fn kill(&mut self, at: usize) {
        self.die(at, None);
    }

    /// Kills a node. What it had not flushed may be gone, from the newest on.
    fn die(&mut self, at: usize, death: Option<explored::Death>) {
        let node = self.nodes[at].take().unwrap();
        let mut lost: Vec<TransactionId> = Vec::new();
        for client in &node.clients {
            let Some(id) = client.id else { continue };
            self.locks.iter_mut().for_each(|locks| locks.retain(|(of, _)| *of != id));
            if self.slots.get(&id).is_some_and(|slot| !slot.is_durable) {
                self.slots.remove(&id);
                self.numbers.remove(&id);
            }
            if !self.slots.contains_key(&id) {
                lost.push(id);
            }
        }
        self.lose_cleaning(node.incarnation);
        for row in &mut self.rows {
            // A change that went to another node went there with its redo.
            let is_top =
                lost.iter().find(|id| row.get(1..9) == Some(&id.0.to_le_bytes()[..]) && row[0] & 2 == 0);
            if let Some(id) = is_top
                && death.map_or_else(|| self.random.percent(50), |death| death.changes)
            {
                match rows::undo(Some(row), *id, 0).0 {
                    EntryChange::Keep => {}
                    EntryChange::Set(new) => *row = new,
                    EntryChange::Remove => row.clear(),
                }
            }
        }
        for to in 0..self.nodes.len() {
            self.links.remove(&(to, at));
            // The newest messages may be lost.
            if let Some(link) = self.links.get_mut(&(at, to)) {
                let all = link.len() as u64;
                let lost = |death: explored::Death| if death.messages { 0 } else { all };
                link.truncate(death.map_or_else(|| self.random.below(all + 1), lost) as usize);
            }
        }
        self.new_view();
    }

    fn events(&mut self, count: usize, deaths: bool) {
        // Messages may be slow in a run, and what one node sends to another one be late for a
        // while.
        let slow = *self.random.pick(&[24, 35, 60]);
        let mut late = (0, 0);
        for _ in 0..count {
            let nodes = self.nodes.len();
            if self.random.percent(1) {
                let from = self.random.below(nodes as u64) as usize;
                late = (from, (from + 1 + self.random.below(nodes as u64 - 1) as usize) % nodes);
            }
            let at = self.random.below(nodes as u64) as usize;
            if self.nodes[at].is_none() {
                if self.random.percent(10) {
                    let made = self.make(at);
                    self.nodes[at] = Some(made);
                    self.new_view();
                    late = (at, (at + 1 + self.random.below(nodes as u64 - 1) as usize) % nodes);
                }
                continue;
            }
            let living = self.nodes.iter().flatten().count();
            match self.random.below(100) {
                0 if deaths && living > 1 && self.random.percent(30) => self.kill(at),
                1..8 => drop(self.flush(at)),
                8..9 if self.may_work(at) => {
                    let row = self.random.below(ROWS as u64) as usize;
                    self.clean(at, row, 0);
                }
                9..15 => self.pass(at),
                15..20 => drop(self.follow(at)),
                of if (20..slow).contains(&of) => {
                    let from = self.random.below(nodes as u64) as usize;
                    if (from, at) != late || self.random.percent(2) {
                        self.deliver(from, at);
                    }
                }
                _ => {
                    let client = self.random.below(CLIENTS as u64) as usize;
                    self.step(at, client);
                }
            }
        }
    }

    /// Lets everything that has begun end.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            let mut is_busy = false;
            for at in (0..self.nodes.len()).filter(|at| self.nodes[*at].is_some()).collect::<Vec<_>>() {
                is_busy |= self.follow(at) | self.flush(at);
                for from in 0..self.nodes.len() {
                    while self.deliver(from, at) {
                        is_busy = true;
                    }
                }
                for client in 0..CLIENTS {
                    if self.node(at).clients[client].state != Step::Idle {
                        is_busy |= self.step(at, client);
                    }
                }
            }
            if !is_busy {
                for node in self.nodes.iter().flatten() {
                    for client in &node.clients {
                        assert_eq!(client.state, Step::Idle, "T8: a wait has not ended: {client:?}");
                    }
                }
                return;
            }
        }
        panic!("T8: it does not end");
    }

    fn check(&self) {
        // The transactions of each row, in the order of their numbers.
        let mut finals = Vec::new();
        let committed = |id: &u64| self.numbers.get(&TransactionId(*id));
        for (row, value) in self.rows.iter().enumerate() {
            let node = self.nodes.iter().flatten().next().unwrap();
            let mut final_contents = Vec::new();
            let shown = rows::visible(value, None, Number::MAX - 1, |id, _| {
                let _ = &node;
                StatusPath::Known(
                    self.numbers.get(&id).map_or(Status::Aborted, |number| Status::Committed(*number)),
                )
            });
            if let Ok(Some(bytes)) = shown {
                final_contents = ids_of(bytes);
            }
            finals.push(final_contents.clone());
            let numbers: Vec<_> =
                final_contents.iter().map(|id| *committed(id).expect("T3: it was aborted")).collect();
            assert!(numbers.is_sorted(), "T5: row {row} has {numbers:?}");
            for seen in self.seen.iter().filter(|seen| seen.row == row) {
                let others: Vec<u64> =
                    seen.contents.iter().copied().filter(|id| Some(TransactionId(*id)) != seen.by).collect();
                let is_alive = self.nodes.iter().flatten().any(|node| node.incarnation == seen.on);
                // No member knows the snapshots of a node that is gone: a number may be drawn below
                // them later. What it has seen is a prefix of all commits.
                let expected = match is_alive {
                    true => final_contents.partition_point(|id| *committed(id).unwrap() <= seen.snapshot),
                    false => others.len(),
                };
                let expected = &final_contents[..expected];
                assert_eq!(others, expected, "T2: row {row} at {}", seen.snapshot);
            }
        }
        // T4: an acknowledged transaction has all its changes, or none if it was read as its end.
        for id in self.acknowledged.keys() {
            let is_free = id.status_block() < self.first_block;
            let slot = self.slots.get(id);
            let has = |row: &usize| finals[*row].contains(&id.0);
            let rows = self.changed.get(id);
            assert!(rows.is_none_or(|rows| rows.iter().all(has)), "T4: a change of {id:?} is lost");
            assert!(is_free || slot.is_some_and(|slot| slot.is_durable), "T4: {id:?} is lost");
        }
    }
}
