//! Nodes, their incarnations, the lanes between them, and membership.

use std::collections::VecDeque;

use plexus_base::{Epoch, Incarnation, NodeId, WorkerId};
use plexus_locks::protocol::{Config, Event, Kind, Members, Message, Shard};

use super::{Ev, Locks, clients::Client};
use crate::failure::Broken;

/// One worker of a node.
#[derive(Default)]
pub(crate) struct Local {
    /// None before its first view.
    pub(crate) shard: Option<Shard>,
    /// What came before that.
    early: Vec<(NodeId, Incarnation, Message)>,
    pub(crate) tick_at: Option<u64>,
}

/// A node.
pub(crate) struct Node {
    pub(crate) incarnation: u64,
    pub(crate) up: bool,
    pub(crate) workers: Vec<Local>,
    pub(crate) clients: Vec<Client>,
}

impl Node {
    pub(crate) fn down() -> Self {
        Self { incarnation: 0, up: false, workers: Vec::new(), clients: Vec::new() }
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.workers.iter().filter_map(|local| local.shard.as_ref())
    }
}

/// What keeps its order: one kind of message between the same workers of two incarnations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Lane {
    pub(crate) from: (usize, u64),
    pub(crate) to: (usize, u64),
    pub(crate) worker: usize,
    pub(crate) replies: bool,
}

/// What is under way on a lane, and when the last of it arrives.
#[derive(Default)]
pub(crate) struct Queue {
    messages: VecDeque<Message>,
    last: u64,
}

impl Locks {
    pub(crate) fn is_alive(&self, node: usize, incarnation: u64) -> bool {
        self.nodes[node].up && self.nodes[node].incarnation == incarnation
    }

    /// Sends to the incarnation of `to` that the sender's view has.
    pub(crate) fn send(&mut self, from: usize, to: NodeId, worker: usize, message: Message) {
        let shard = self.nodes[from].workers[worker].shard.as_ref();
        let Some(incarnation) = shard.and_then(|shard| shard.view().incarnation(to)) else { return };
        if !self.is_alive(to.index(), incarnation.0) {
            return;
        }
        let lane = Lane {
            from: (from, self.nodes[from].incarnation),
            to: (to.index(), incarnation.0),
            worker,
            replies: message.kind() == Kind::Reply,
        };
        let arrives = self.engine.now() + self.params.delay(&mut self.engine.random);
        let queue = self.lanes.entry(lane).or_default();
        queue.last = arrives.max(queue.last);
        queue.messages.push_back(message);
        let after = queue.last - self.engine.now();
        self.under_way += 1;
        self.engine.schedule(after, None, Ev::Deliver(lane));
    }

    pub(crate) fn deliver(&mut self, lane: Lane) -> Result<(), Broken> {
        self.under_way -= 1;
        let Lane { from, to, worker, .. } = lane;
        let Some(sent) = self.lanes.get_mut(&lane).and_then(|queue| queue.messages.pop_front()) else {
            return Ok(());
        };
        if !self.is_alive(to.0, to.1) {
            return Ok(());
        }
        // What is handled is what crossed the wire.
        let message = Message::decode(&sent.encode());
        let message = message.map_err(|error| Broken::general("answers", format!("{sent:?}: {error}")))?;
        let (node, incarnation) = (NodeId(from.0 as u8), Incarnation(from.1));
        let local = &mut self.nodes[to.0].workers[worker];
        if local.shard.is_none() {
            local.early.push((node, incarnation, message));
            return Ok(());
        }
        self.handle(to.0, worker, Event::Message { from: node, incarnation, message })
    }

    /// A node begins an incarnation, and its clients.
    pub(crate) fn start(&mut self, node: usize) {
        let workers = (0..self.params.workers).map(|_| Local::default()).collect();
        let clients = (0..self.params.clients).map(|_| self.client()).collect();
        let incarnation = self.nodes[node].incarnation + 1;
        self.nodes[node] = Node { incarnation, up: true, workers, clients };
        for client in 0..self.params.clients {
            let after = self.engine.random.below(self.params.think_ns);
            self.engine.schedule(after, None, Ev::Client(node, incarnation, client));
        }
    }

    /// A node dies, or membership decides anew although all live.
    pub(crate) fn kill_one(&mut self) -> Result<(), Broken> {
        if self.ending || self.deaths >= self.params.deaths {
            return Ok(());
        }
        let after = self.engine.random.between(1, self.params.death_ns);
        self.engine.schedule(after, None, Ev::Kill);
        let up: Vec<usize> = (0..self.nodes.len()).filter(|node| self.nodes[*node].up).collect();
        if !up.is_empty() && self.engine.random.percent(80) {
            let node = *self.engine.random.pick(&up);
            self.kill(node);
        }
        self.decide_soon();
        Ok(())
    }

    fn kill(&mut self, node: usize) {
        self.deaths += 1;
        self.nodes_locks_end(node);
        let incarnation = self.nodes[node].incarnation;
        for shard in
            std::mem::take(&mut self.nodes[node].workers).iter().filter_map(|local| local.shard.as_ref())
        {
            self.counts.add(shard.counts());
        }
        self.nodes[node].up = false;
        self.nodes[node].clients.clear();
        // Of what it said last, some first part has left it.
        for (lane, queue) in &mut self.lanes {
            if lane.from == (node, incarnation) {
                let left = self.engine.random.below(queue.messages.len() as u64 + 1) as usize;
                queue.messages.truncate(left);
            }
        }
        let last = !self.nodes.iter().any(|node| node.up);
        if last || self.engine.random.percent(70) {
            let after = self.engine.random.between(1, self.params.death_ns);
            self.engine.schedule(after, None, Ev::Start(node));
        }
    }

    pub(crate) fn decide_soon(&mut self) {
        let after = self.engine.random.between(1, self.params.delay_ns * 5);
        self.under_way += 1;
        self.engine.schedule(after, None, Ev::Decide);
    }

    /// The next view: whoever is up. Everybody in it learns of it sometime, each worker by itself.
    pub(crate) fn decide(&mut self) {
        let up = (0..self.nodes.len()).filter(|node| self.nodes[*node].up);
        let members: Vec<_> =
            up.map(|node| (NodeId(node as u8), Incarnation(self.nodes[node].incarnation))).collect();
        if members.is_empty() {
            return;
        }
        self.views += 1;
        let further = if self.engine.random.percent(10) { 2 } else { 1 };
        self.view = Members { epoch: Epoch(self.view.epoch.0 + further), members };
        for (node, incarnation) in self.view.members.clone() {
            for worker in 0..usize::from(self.params.workers) {
                let after = self.params.delay(&mut self.engine.random) * 3;
                self.under_way += 1;
                self.engine.schedule(
                    after,
                    None,
                    Ev::Give(node.index(), incarnation.0, worker, self.view.clone()),
                );
            }
        }
    }

    /// A worker learns of a view, unless it knows a later one, or misses it because there is one.
    pub(crate) fn give(&mut self, node: usize, worker: usize, view: Members) -> Result<(), Broken> {
        let missed = view.epoch < self.view.epoch && self.engine.random.percent(20);
        let local = &mut self.nodes[node].workers[worker];
        if missed || local.shard.as_ref().is_some_and(|shard| shard.view().epoch >= view.epoch) {
            return Ok(());
        }
        if local.shard.is_some() {
            return self.handle(node, worker, Event::View(view));
        }
        let config = Config {
            me: NodeId(node as u8),
            incarnation: Incarnation(self.nodes[node].incarnation),
            worker: WorkerId(worker as u8),
            workers: self.params.workers,
            deadlock_ns: self.params.deadlock_ns,
            waiting_max: self.params.waiting_max,
            locks_max: self.params.locks_max,
        };
        let mut actions = Vec::new();
        let local = &mut self.nodes[node].workers[worker];
        local.shard = Some(Shard::new(config, view, &mut actions));
        let early = std::mem::take(&mut local.early);
        self.carry_out(node, worker, actions)?;
        for (from, incarnation, message) in early {
            self.handle(node, worker, Event::Message { from, incarnation, message })?;
        }
        Ok(())
    }
}
