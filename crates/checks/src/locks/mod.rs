//! Checks the lock manager: nodes with several workers, clients that lock, convert, try, wait with
//! timeout, cancel, unlock and die. Nodes die at any moment and come back. Views follow each other
//! quickly, and some nodes miss some.
//!
//! The shards are the code that nodes run. Messages are late, in order for each pair of
//! incarnations and kind, as in the interconnect; the last messages of a dead node arrive in part.
//! Now and then all clients pause until nothing is under way, and the state of masters is compared
//! with the clients' locks. At the end all locks are released, and every request must have been
//! answered.
//!
//! A file for each property: [`exclusive`], [`tokens`], [`order`], [`values`], [`circles`],
//! [`answers`], [`union`]. [`Sabotage`] shows that each detects its violation.

pub mod answers;
pub mod circles;
mod clients;
pub mod exclusive;
mod nodes;
pub mod order;
mod params;
mod sabotage;
pub mod tokens;
pub mod union;
pub mod values;

use std::collections::BTreeMap;

use plexus_base::{Epoch, Nanos, WorkerId};
use plexus_locks::protocol::{
    Action, Counts, Errand, Event, LockId, LockRefusal, Members, Message, Mode, Name, WaitLimit,
};
use plexus_sim::Engine;

pub use self::sabotage::Sabotage;
use self::{circles::Circles, nodes::Node, order::Queues, params::Params, tokens::Tokens, values::Values};
use crate::{
    failure::Broken,
    harness::{Cluster, Instance, Lane, Outcome, Simulation},
};

/// More than any run needs: a run with so many events does not come to rest.
const EVENTS_PER_OPERATION: u64 = 2_000;

/// An event of the simulation.
#[derive(Clone, Debug)]
pub(crate) enum LocksEvent {
    /// The first message of a lane arrives.
    Deliver(Lane),
    /// A worker receives an errand from another worker of its node.
    Tell(Instance, WorkerId, Box<Errand>),
    /// A client acts.
    Client(Instance, usize),
    /// A worker checks the time.
    Tick(Instance, usize),
    /// A node dies.
    Kill,
    /// A node starts another incarnation.
    Start(usize),
    /// Membership decides a view.
    Decide,
    /// A worker receives a view.
    Give(Instance, usize, Members),
    /// All clients pause until nothing is under way.
    Freeze,
}

/// A lock as its client sees it.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) worker: usize,
    pub(crate) client: usize,
    pub(crate) name: usize,
    /// The mode that was granted.
    pub(crate) granted: Option<Mode>,
    /// The mode that was requested and is not answered.
    pub(crate) asked: Option<Mode>,
    pub(crate) notify: bool,
    /// True if its client was notified since the grant that other requests wait.
    pub(crate) told: bool,
    /// The number of requests and conversions so far, which is the number of the last.
    pub(crate) requests: u32,
    pub(crate) since: u64,
    /// The timeout of its request.
    pub(crate) timeout: WaitLimit,
    /// True if its client has cancelled its request.
    pub(crate) cancelled: bool,
}

impl Lock {
    /// Returns the mode in which it can be used now.
    pub(crate) fn mode(&self) -> Option<Mode> {
        let granted = self.granted?;
        Some(self.asked.map_or(granted, |asked| granted.common(asked)))
    }
}

/// The node of a lock and its number, which is used once in a whole run.
pub(crate) type Id = (usize, LockId);

/// The run of one seed.
pub struct Locks {
    pub(crate) params: Params,
    pub(crate) engine: Engine<LocksEvent>,
    pub(crate) names: Vec<Name>,
    pub(crate) cluster: Cluster<Node, Message>,
    /// The last view decided.
    pub(crate) view: Members,
    /// The number of views decided.
    pub(crate) views: u64,
    pub(crate) locks: BTreeMap<Id, Lock>,
    pub(crate) next_lock: u64,
    pub(crate) next_owner: u64,
    pub(crate) operations: u64,
    pub(crate) ending: bool,
    /// The messages, errands and views on their way.
    pub(crate) under_way: u64,
    /// The events held back during a pause.
    pub(crate) frozen: Option<Vec<LocksEvent>>,
    pub(crate) counts: Counts,
    compared: u64,
    pub(crate) deaths: u64,
    pub(crate) tokens: Tokens,
    pub(crate) values: Values,
    circles: Circles,
    pub(crate) sabotage: Option<Sabotage>,
}

impl Simulation for Locks {
    fn now(&self) -> u64 {
        self.engine.now()
    }

    fn drive(&mut self) -> Result<Outcome, Broken> {
        let limit = (self.params.operations + 100) * EVENTS_PER_OPERATION;
        while let Some(event) = self.engine.advance() {
            self.step(event)?;
            if !self.ending && self.operations >= self.params.operations {
                self.end();
            }
            if self.frozen.is_some() && self.under_way == 0 {
                self.end_pause()?;
            }
            if self.engine.events() > limit {
                circles::none_left(self)?;
                return Err(answers::restless(self));
            }
        }
        union::check(self)?;
        answers::check(self)?;
        let mut counts = self.counts;
        self.shards().for_each(|shard| counts.add(shard.counts()));
        let outcome = Outcome::of(&self.engine, self.operations).with(counts.named());
        Ok(outcome.with([("compared", self.compared), ("deaths", self.deaths)]))
    }
}

impl Locks {
    /// Creates a cluster with parameters drawn from the seed; `sabotage` breaks the protocol on
    /// purpose.
    pub fn new(seed: u64, sabotage: Option<Sabotage>) -> Self {
        let mut engine = Engine::new(seed, 0);
        let params = Params::draw(&mut engine.random);
        let names = (0..params.names).map(params::name).collect();
        let mut run = Self {
            cluster: Cluster::new(params.nodes),
            names,
            view: Members { epoch: Epoch(0), members: Vec::new() },
            views: 0,
            locks: BTreeMap::new(),
            next_lock: 0,
            next_owner: 0,
            operations: 0,
            ending: false,
            under_way: 0,
            frozen: None,
            counts: Counts::default(),
            compared: 0,
            deaths: 0,
            tokens: Tokens::default(),
            values: Values::new(params.names),
            circles: Circles::default(),
            sabotage,
            engine,
            params,
        };
        for node in run.cluster.nodes() {
            run.start(node);
        }
        run.decide();
        if run.params.deaths > 0 {
            run.engine.schedule_in(0..=run.params.death_ns, None, LocksEvent::Kill);
        }
        run.engine.schedule(run.params.freeze_ns, None, LocksEvent::Freeze);
        run
    }

    fn step(&mut self, event: LocksEvent) -> Result<(), Broken> {
        let waits = matches!(
            event,
            LocksEvent::Client(..)
                | LocksEvent::Tick(..)
                | LocksEvent::Kill
                | LocksEvent::Start(_)
                | LocksEvent::Freeze
        );
        if let Some(waiting) = self.frozen.as_mut().filter(|_| waits) {
            waiting.push(event);
            return Ok(());
        }
        match event {
            LocksEvent::Deliver(lane) => self.deliver(lane),
            LocksEvent::Tell(instance, worker, errand) => {
                self.under_way -= 1;
                if self.cluster.is_up(instance) {
                    self.handle(instance.node, usize::from(worker.0), Event::Errand(*errand))?;
                }
                Ok(())
            }
            LocksEvent::Client(instance, client) if self.cluster.is_up(instance) => {
                self.act(instance, client)
            }
            LocksEvent::Tick(instance, worker) if self.cluster.is_up(instance) => {
                if let Some(local) = self.local(instance.node, worker) {
                    local.tick_at = None;
                }
                self.handle(instance.node, worker, Event::Tick)
            }
            LocksEvent::Client(..) | LocksEvent::Tick(..) => Ok(()),
            LocksEvent::Kill => {
                self.kill_one();
                Ok(())
            }
            LocksEvent::Start(node) => {
                self.start(node);
                self.decide_soon();
                Ok(())
            }
            LocksEvent::Decide => {
                self.under_way -= 1;
                self.decide();
                Ok(())
            }
            LocksEvent::Give(instance, worker, view) => {
                self.under_way -= 1;
                if self.cluster.is_up(instance) { self.give(instance, worker, view) } else { Ok(()) }
            }
            LocksEvent::Freeze => {
                self.frozen = Some(Vec::new());
                Ok(())
            }
        }
    }

    /// Compares all nodes when nothing is under way, and ends the pause.
    fn end_pause(&mut self) -> Result<(), Broken> {
        union::check(self)?;
        self.compared += 1;
        for event in self.frozen.take().unwrap_or_default() {
            self.engine.schedule(0, None, event);
        }
        if !self.ending {
            self.engine.schedule_in(1..=self.params.freeze_ns, None, LocksEvent::Freeze);
        }
        Ok(())
    }

    /// Ends the run: no client starts a request, waiting ones are answered, and all locks are
    /// released.
    fn end(&mut self) {
        self.ending = true;
        for instance in self.cluster.instances() {
            for client in 0..self.params.clients {
                self.engine.schedule(0, None, LocksEvent::Client(instance, client));
            }
        }
    }

    /// Passes an event to a shard, carries out its actions and checks the properties.
    pub(crate) fn handle(&mut self, node: usize, worker: usize, event: Event) -> Result<(), Broken> {
        let now = Nanos(self.engine.now());
        if self.shard(node, worker).is_none() {
            return Ok(());
        }
        if Circles::may_begin(&event) {
            let real = circles::real(self, None);
            self.circles.note(node, worker, real);
        }
        if event == Event::Tick {
            let real = circles::real(self, Some((node, worker)));
            self.circles.note(node, worker, real);
        }
        let shard = self.local(node, worker).and_then(|local| local.shard.as_mut());
        let Some(shard) = shard else { return Ok(()) };
        let before = Queues::of(shard);
        let mut actions = Vec::new();
        shard.handle(now, event, &mut actions);
        before.check(shard)?;
        self.carry_out(node, worker, actions)
    }

    /// Carries out the actions of a shard.
    pub(crate) fn carry_out(
        &mut self,
        node: usize,
        worker: usize,
        actions: Vec<Action>,
    ) -> Result<(), Broken> {
        for action in actions {
            if let Some(action) = Sabotage::of(self, action) {
                self.carry(node, worker, action)?;
            }
        }
        let (instance, now) = (self.cluster.instance(node), self.engine.now());
        let Some(local) = self.local(node, worker) else { return Ok(()) };
        let due = local.shard.as_ref().and_then(|shard| shard.next_tick()).map(|at| at.0);
        if let Some(due) = due.filter(|due| local.tick_at.is_none_or(|at| *due < at)) {
            local.tick_at = Some(due);
            self.engine.schedule(due.saturating_sub(now), None, LocksEvent::Tick(instance, worker));
        }
        Ok(())
    }

    fn carry(&mut self, node: usize, worker: usize, action: Action) -> Result<(), Broken> {
        match action {
            Action::Send { to, message } => self.send(node, to, worker, message),
            // Errands between workers may be lost.
            Action::Tell { .. } if self.engine.random.percent(self.params.tells_lost) => {}
            Action::Tell { worker, errand } => {
                let after = self.params.delay(&mut self.engine.random);
                let tell = LocksEvent::Tell(self.cluster.instance(node), worker, Box::new(errand));
                self.under_way += 1;
                self.engine.schedule(after, None, tell);
            }
            Action::Granted { lock, mode, token, value } => {
                self.engine.digest.add(token.0);
                let id = (node, lock);
                answers::granted(self, id, mode)?;
                exclusive::check(self, id, mode)?;
                self.tokens.granted(self.locks[&id].name, mode, token)?;
                values::granted(self, id, mode, value)?;
                self.granted(id, mode);
            }
            Action::Refused { lock, why } => {
                self.engine.digest.add(why as u64);
                let id = (node, lock);
                answers::refused(self, id, why)?;
                if why == LockRefusal::Deadlock {
                    self.circles.victim(self, id, worker)?;
                }
                self.refused(id);
            }
            Action::Blocking { lock, .. } => self.blocking((node, lock)),
            Action::Open { epoch } => {
                self.engine.digest.add(u64::from(epoch.0));
                order::rebuilt(self, node, worker)?;
                if let Some(local) = self.local(node, worker) {
                    local.opened = local.shard.as_ref().map(|shard| shard.view().clone());
                }
            }
            Action::Fault { from, what } => {
                return Err(Broken::general("answers", format!("node {node} says of {from}: {what}")));
            }
        }
        Ok(())
    }
}
