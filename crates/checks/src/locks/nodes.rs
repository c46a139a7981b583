//! Nodes, the messages between them, and membership.

use plexus_base::{Epoch, Incarnation, NodeId, WorkerId};
use plexus_locks::protocol::{Config, Event, Kind, Members, Message, Shard};

use super::{Locks, LocksEvent, clients::Client};
use crate::{
    failure::Broken,
    harness::{Instance, Lane},
};

/// One worker of a node.
#[derive(Default)]
pub(crate) struct Local {
    /// The shard; `None` before the first view.
    pub(crate) shard: Option<Shard>,
    /// The messages that came before the first view.
    early: Vec<(NodeId, Incarnation, Message)>,
    pub(crate) tick_at: Option<u64>,
    /// The last view in which it was open.
    pub(crate) opened: Option<Members>,
}

/// A node that is up.
pub(crate) struct Node {
    pub(crate) workers: Vec<Local>,
    pub(crate) clients: Vec<Client>,
}

impl Node {
    pub(crate) fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.workers.iter().filter_map(|local| local.shard.as_ref())
    }
}

impl Locks {
    /// Returns all shards.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.cluster.up().flat_map(|(_, node)| node.shards())
    }

    /// Returns the shard of a worker, if its node is up and has had a view.
    pub(crate) fn shard(&self, node: usize, worker: usize) -> Option<&Shard> {
        self.cluster.node(node)?.workers.get(worker)?.shard.as_ref()
    }

    pub(crate) fn local(&mut self, node: usize, worker: usize) -> Option<&mut Local> {
        self.cluster.node_mut(node)?.workers.get_mut(worker)
    }

    /// Sends to the incarnation of `to` in the sender's view.
    pub(crate) fn send(&mut self, from: usize, to: NodeId, worker: usize, message: Message) {
        let shard = self.shard(from, worker);
        let Some(incarnation) = shard.and_then(|shard| shard.view().incarnation(to)) else { return };
        let to = Instance { node: to.index(), incarnation: incarnation.0 };
        if !self.cluster.is_up(to) {
            return;
        }
        // Messages and replies of one worker keep their order.
        let class = 2 * worker + usize::from(message.kind() == Kind::Reply);
        let lane = Lane { from: self.cluster.instance(from), to, class };
        let delay = self.params.delay(&mut self.engine.random);
        let after = self.cluster.send(lane, message, self.engine.now(), delay);
        self.under_way += 1;
        self.engine.schedule(after, None, LocksEvent::Deliver(lane));
    }

    pub(crate) fn deliver(&mut self, lane: Lane) -> Result<(), Broken> {
        self.under_way -= 1;
        let Some(sent) = self.cluster.receive(lane) else { return Ok(()) };
        // The handled message is the encoded and decoded one.
        let message = Message::decode(&sent.encode());
        let message = message.map_err(|error| Broken::general("answers", format!("{sent:?}: {error}")))?;
        let ((from, incarnation), worker) = (lane.from.member(), lane.class / 2);
        let Some(local) = self.local(lane.to.node, worker) else { return Ok(()) };
        if local.shard.is_none() {
            local.early.push((from, incarnation, message));
            return Ok(());
        }
        self.handle(lane.to.node, worker, Event::Message { from, incarnation, message })
    }

    /// Starts an incarnation of a node, and its clients.
    pub(crate) fn start(&mut self, node: usize) {
        let workers = (0..self.params.workers).map(|_| Local::default()).collect();
        let clients = (0..self.params.clients).map(|_| self.client()).collect();
        let instance = self.cluster.start(node, |_| Node { workers, clients });
        for client in 0..self.params.clients {
            self.engine.schedule_in(..self.params.think_ns, None, LocksEvent::Client(instance, client));
        }
    }

    /// Kills a node, or decides a view although all nodes are up.
    pub(crate) fn kill_one(&mut self) {
        if self.ending || self.deaths >= self.params.deaths {
            return;
        }
        self.engine.schedule_in(1..=self.params.death_ns, None, LocksEvent::Kill);
        let up: Vec<usize> = self.cluster.up().map(|(node, _)| node).collect();
        if !up.is_empty() && self.engine.random.percent(80) {
            let node = *self.engine.random.pick(&up);
            self.kill(node);
        }
        self.decide_soon();
    }

    fn kill(&mut self, node: usize) {
        self.deaths += 1;
        self.nodes_locks_end(node);
        // Some first part of its last messages was sent.
        let random = &mut self.engine.random;
        let ended = self.cluster.kill(node, |_, said| random.below(said as u64 + 1) as usize);
        ended.iter().flat_map(Node::shards).for_each(|shard| self.counts.add(shard.counts()));
        let last = self.cluster.up().next().is_none();
        if last || self.engine.random.percent(70) {
            self.engine.schedule_in(1..=self.params.death_ns, None, LocksEvent::Start(node));
        }
    }

    pub(crate) fn decide_soon(&mut self) {
        self.under_way += 1;
        self.engine.schedule_in(1..=self.params.delay_ns * 5, None, LocksEvent::Decide);
    }

    /// Decides the next view with all nodes that are up. Each worker of each member learns of it at
    /// its own time.
    pub(crate) fn decide(&mut self) {
        let members = self.cluster.members();
        if members.is_empty() {
            return;
        }
        self.views += 1;
        let further = if self.engine.random.percent(10) { 2 } else { 1 };
        self.view = Members { epoch: Epoch(self.view.epoch.0 + further), members };
        for instance in self.cluster.instances() {
            for worker in 0..usize::from(self.params.workers) {
                let after = self.params.delay(&mut self.engine.random) * 3;
                self.under_way += 1;
                self.engine.schedule(after, None, LocksEvent::Give(instance, worker, self.view.clone()));
            }
        }
    }

    /// Gives a view to a worker, unless it knows a later one or misses this one.
    pub(crate) fn give(&mut self, instance: Instance, worker: usize, view: Members) -> Result<(), Broken> {
        let missed = view.epoch < self.view.epoch && self.engine.random.percent(20);
        let Instance { node, .. } = instance;
        let (me, incarnation) = instance.member();
        let shard = self.shard(node, worker);
        if missed || shard.is_some_and(|shard| shard.view().epoch >= view.epoch) {
            return Ok(());
        }
        if shard.is_some() {
            return self.handle(node, worker, Event::View(view));
        }
        let config = Config {
            me,
            incarnation,
            worker: WorkerId(worker as u8),
            workers: self.params.workers,
            deadlock_ns: self.params.deadlock_ns,
            waiting_max: self.params.waiting_max,
            locks_max: self.params.locks_max,
        };
        let mut actions = Vec::new();
        let Some(local) = self.local(node, worker) else { return Ok(()) };
        local.shard = Some(Shard::new(config, view, &mut actions));
        let early = std::mem::take(&mut local.early);
        self.carry_out(node, worker, actions)?;
        for (from, incarnation, message) in early {
            self.handle(node, worker, Event::Message { from, incarnation, message })?;
        }
        Ok(())
    }
}
