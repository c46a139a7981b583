//! The lock manager: nodes with several workers, clients that lock, convert, try, wait with timeout, cancel, unlock and die; nodes that die at
//! any moment and come back; views on top of each other, some of them missed.
//!
//! The shards are the code that nodes run. Messages are late, in order for each pair of incarnations and kind as the interconnect keeps them; what a dead
//! node said last arrives in part. Now and then everything stands still until nothing is under way, and what masters know is compared with what
//! clients have. At the end all that is held is released, and every request must have been answered.
//!
//! A file for each property: [`exclusive`], [`tokens`], [`order`], [`values`], [`circles`], [`answers`], [`union`]. That they notice what breaks
//! them is shown with [`Sabotage`].

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

/// More than any run needs: one that takes as many does not come to rest.
const EVENTS_PER_OPERATION: u64 = 2_000;

/// What happens.
#[derive(Clone, Debug)]
pub(crate) enum Ev {
    /// The first message of a lane arrives.
    Deliver(Lane),
    /// A worker is told something by another of its node.
    Tell(Instance, WorkerId, Box<Errand>),
    /// A client does something.
    Client(Instance, usize),
    /// A worker looks at the clock.
    Tick(Instance, usize),
    /// A node dies.
    Kill,
    /// A node begins another incarnation.
    Start(usize),
    /// Membership decides.
    Decide,
    /// A worker learns a view.
    Give(Instance, usize, Members),
    /// Everything stands still until nothing is under way.
    Freeze,
}

/// A lock as its client sees it.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) worker: usize,
    pub(crate) client: usize,
    pub(crate) name: usize,
    /// As it was granted.
    pub(crate) granted: Option<Mode>,
    /// What was asked and is not answered.
    pub(crate) asked: Option<Mode>,
    pub(crate) notify: bool,
    /// Told since it was granted that others wait.
    pub(crate) told: bool,
    /// How many times it was asked for or converted, and when last.
    pub(crate) requests: u32,
    pub(crate) since: u64,
    /// How long its request waits.
    pub(crate) timeout: WaitLimit,
    /// Its client wants its request no longer.
    pub(crate) cancelled: bool,
}

impl Lock {
    /// How it can be used now.
    pub(crate) fn mode(&self) -> Option<Mode> {
        let granted = self.granted?;
        Some(self.asked.map_or(granted, |asked| granted.common(asked)))
    }
}

/// Whose lock: its node and its number, which is used once in a whole run.
pub(crate) type Id = (usize, LockId);

/// The run of one seed.
pub struct Locks {
    pub(crate) params: Params,
    pub(crate) engine: Engine<Ev>,
    pub(crate) names: Vec<Name>,
    pub(crate) cluster: Cluster<Node, Message>,
    /// The view decided last.
    pub(crate) view: Members,
    /// How many were.
    pub(crate) views: u64,
    pub(crate) locks: BTreeMap<Id, Lock>,
    pub(crate) next_lock: u64,
    pub(crate) next_owner: u64,
    pub(crate) operations: u64,
    pub(crate) ending: bool,
    /// Messages, errands and views on their way.
    pub(crate) under_way: u64,
    /// What waits for the end of a standstill.
    pub(crate) frozen: Option<Vec<Ev>>,
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
                self.thaw()?;
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
    /// A cluster of parameters drawn from the seed; `sabotage` breaks the protocol on purpose.
    #[must_use]
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
            let after = run.engine.random.between(0, run.params.death_ns);
            run.engine.schedule(after, None, Ev::Kill);
        }
        run.engine.schedule(run.params.freeze_ns, None, Ev::Freeze);
        run
    }

    fn step(&mut self, event: Ev) -> Result<(), Broken> {
        let waits = matches!(event, Ev::Client(..) | Ev::Tick(..) | Ev::Kill | Ev::Start(_) | Ev::Freeze);
        if let Some(waiting) = self.frozen.as_mut().filter(|_| waits) {
            waiting.push(event);
            return Ok(());
        }
        match event {
            Ev::Deliver(lane) => self.deliver(lane),
            Ev::Tell(instance, worker, errand) => {
                self.under_way -= 1;
                if self.cluster.is_up(instance) {
                    self.handle(instance.node, usize::from(worker.0), Event::Errand(*errand))?;
                }
                Ok(())
            }
            Ev::Client(instance, client) if self.cluster.is_up(instance) => self.act(instance, client),
            Ev::Tick(instance, worker) if self.cluster.is_up(instance) => {
                if let Some(local) = self.local(instance.node, worker) {
                    local.tick_at = None;
                }
                self.handle(instance.node, worker, Event::Tick)
            }
            Ev::Client(..) | Ev::Tick(..) => Ok(()),
            Ev::Kill => {
                self.kill_one();
                Ok(())
            }
            Ev::Start(node) => {
                self.start(node);
                self.decide_soon();
                Ok(())
            }
            Ev::Decide => {
                self.under_way -= 1;
                self.decide();
                Ok(())
            }
            Ev::Give(instance, worker, view) => {
                self.under_way -= 1;
                if self.cluster.is_up(instance) { self.give(instance, worker, view) } else { Ok(()) }
            }
            Ev::Freeze => {
                self.frozen = Some(Vec::new());
                Ok(())
            }
        }
    }

    /// Nothing is under way: compares, and lets everything go on.
    fn thaw(&mut self) -> Result<(), Broken> {
        union::check(self)?;
        self.compared += 1;
        for event in self.frozen.take().unwrap_or_default() {
            self.engine.schedule(0, None, event);
        }
        if !self.ending {
            let after = self.engine.random.between(1, self.params.freeze_ns);
            self.engine.schedule(after, None, Ev::Freeze);
        }
        Ok(())
    }

    /// Nobody begins anything any more: who waits is answered, who holds releases.
    fn end(&mut self) {
        self.ending = true;
        for instance in self.cluster.instances() {
            for client in 0..self.params.clients {
                self.engine.schedule(0, None, Ev::Client(instance, client));
            }
        }
    }

    /// Hands an event to a shard, carries out what follows and checks what can be seen.
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

    /// Does what a shard asked for.
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
            self.engine.schedule(due.saturating_sub(now), None, Ev::Tick(instance, worker));
        }
        Ok(())
    }

    fn carry(&mut self, node: usize, worker: usize, action: Action) -> Result<(), Broken> {
        match action {
            Action::Send { to, message } => self.send(node, to, worker, message),
            // What workers say to each other may be lost.
            Action::Tell { .. } if self.engine.random.percent(self.params.tells_lost) => {}
            Action::Tell { worker, errand } => {
                let after = self.params.delay(&mut self.engine.random);
                let tell = Ev::Tell(self.cluster.instance(node), worker, Box::new(errand));
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
