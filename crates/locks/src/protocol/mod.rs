//! The lock manager's protocol, pure: granting, conversion, deadlock detection and view changes.
//!
//! A [`Shard`] is all that one worker of one node knows, in both roles. It is the *home* of the
//! locks of this node's clients, and the *master* of the resources in its partitions. It reads no
//! clock, file or socket: [`Shard::handle`] takes an [`Event`] and pushes [`Action`]s, which the
//! driver carries out in their order. The two halves exchange the same messages as two nodes do,
//! through an internal queue. Only a lock that its own node masters and that need not wait is
//! granted without a message ([`Shard::lock_at_once`]).
//!
//! # How a lock is granted
//!
//! ```text
//! home --Request--> master: queue --Granted{token, value}--> home
//! home --Unlock{value}--> master                              (no answer)
//! ```
//!
//! A resource's name hashes to one of 4,096 partitions. `partition % workers` is its worker on
//! every node, and one member is its master ([`Members::master`]).
//!
//! # Guarantees
//!
//! - Members of a view never hold incompatible modes ([`Mode::is_compatible_with`]) at once.
//! - Each request is answered once: granted or refused with a reason. Cancellation and timeout ask
//!   the master to refuse; a grant that was sent before stands.
//! - A master serves the requests for a resource in the order of their arrival, conversions before
//!   new locks. After a change of master it serves them in the order of their waiting time.
//! - Every grant has a [`Token`], greater than those of all earlier grants of the resource that it
//!   excludes.
//! - A grant of a mode that excludes writers carries the last value written, or says that the value
//!   may not be the last.
//! - Of requests that wait for each other in a circle, only the youngest is refused as a deadlock
//!   victim.
//! - A master that is open knows exactly the locks that members hold and wait for, except for
//!   messages under way.
//!
//! # Contract of the driver
//!
//! - Messages of one [`Kind`] between two incarnations of nodes arrive once each and in the order
//!   sent, until one of them ends. Then any prefix of them may have arrived. The order between the
//!   two kinds does not matter. The sender's incarnation comes with each message.
//! - The driver hands in a view when all nodes outside of it are dead or fenced. Successive views
//!   have successive epochs. A node may miss views; one that misses none recovers at less cost.
//! - An owner's number means the same at all workers of a node. Errands of [`Action::Tell`] may be
//!   reordered or lost: a search that does not come back begins again.
//! - The driver hands in [`Event::Tick`] at [`Shard::next_tick`], or later.
//! - The time that is handed in never goes back. [`Event::Unlock`] needs no current time; the time
//!   of the event before is enough.
//! - Lock numbers are never reused in one incarnation of a node.
//! - A client that converts may use what both modes allow, from the request until its answer
//!   ([`HomeLock::usable`]).
//! - Messages that come before a node's first view are admitted to the gate that its shard
//!   [begins](Shard::begin) with.
//!
//! # Faulty members
//!
//! No message of a member causes a panic. A message that no correct member sends is dropped with an
//! [`Action::Fault`] that names the sender. A member can still lie about the locks that it holds,
//! so the node should stop on the first fault.

mod backlog;
#[cfg(test)]
mod bytes;
mod core;
mod counts;
mod deadlock;
#[cfg(test)]
mod explore;
#[cfg(test)]
mod fuzz;
mod holders;
mod home;
mod interface;
mod master;
mod message;
mod name;
mod queue;
mod recent;
mod recovery;
mod resource;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::{BTreeMap, VecDeque};

pub use plexus_base::locks::{Grant, LockRefusal, MAX_NAME, MODES, Mode, Token, VALUE_LEN, Validity, Value};
use plexus_base::{Incarnation, Nanos, NodeId};
pub use plexus_membership::partitions::{Members, PartitionSlots};
use plexus_membership::{
    gate::Admission,
    partitions::{Masters, PartitionSlot},
};

pub use backlog::{Backlog, Gate};
pub use counts::Counts;
pub use deadlock::Errand;
pub use home::{Hold, HomeLock};
pub use interface::{Action, Config, Event, LockId, LockRequest, NewLock, Owner, RequestKind, WaitLimit};
pub use message::{
    Blocking, Cancel, Chased, Granted, Handover, Hop, Kind, LockMessage, MAX_CHASED, MAX_HOPS, MasterRequest,
    MasterRequestKind, Message, Origin, Probe, Record, Refused, Unlock,
};
pub use name::{Name, NameError};
pub use resource::{ClusterLockId, Holder, Resource, Waiter};

use self::{
    core::ShardCore,
    home::Home,
    master::{Fault, Master},
    recovery::{Recovery, do_as_master},
};

/// All locks of one worker of one node, in both roles; see the [module](self).
#[derive(Clone, Debug)]
pub struct Shard {
    core: ShardCore,
    home: Home,
    master: Master,
    recovering: Option<Recovery>,
    /// Value blocks of the resources that this node mastered in the view before.
    values: BTreeMap<Name, Handover>,
    gate: Gate,
}

impl Shard {
    /// Creates a shard without locks, in the first view of this incarnation of the node. It asks
    /// the other members for the resources that it masters.
    ///
    /// # Panics
    /// The configuration is impossible: no such worker, or a view without this incarnation of the
    /// node.
    #[must_use]
    pub fn new(config: Config, view: Members, out: &mut Vec<Action>) -> Self {
        Self::begin(config, Self::gate(&config), view, out)
    }

    /// Returns the gate that a shard begins with: it parks messages that come before the first
    /// view.
    #[must_use]
    pub fn gate(config: &Config) -> Gate {
        Gate::new(Backlog::new(config.locks_max))
    }

    /// Creates a shard like [`Shard::new`], with the messages that came before its first view.
    ///
    /// # Panics
    /// As [`Shard::new`].
    #[must_use]
    pub fn begin(config: Config, mut gate: Gate, view: Members, out: &mut Vec<Action>) -> Self {
        assert!(config.worker.0 < config.workers, "a worker of the node");
        assert!(
            view.incarnation(config.me) == Some(config.incarnation),
            "a view without this incarnation of the node"
        );
        let masters = Masters::new(&view, config.worker, config.workers);
        let need = masters.mastered_by(config.me).collect();
        let master = Master::new(Token::before(view.epoch));
        let recovery = Recovery::new(need, &view, config.locks_max);
        let (inbox, counts) = (VecDeque::new(), Counts::default());
        let parked = gate.enter(view.epoch);
        let core = ShardCore { config, now: Nanos(0), view, masters, inbox, out: Vec::new(), counts };
        let mut shard =
            Self { core, home: Home::default(), master, recovering: None, values: BTreeMap::new(), gate };
        shard.ask(recovery);
        shard.settle();
        for ((from, incarnation), message) in parked {
            shard.arrived(from, incarnation, message);
            shard.settle();
        }
        out.append(&mut shard.core.out);
        shard
    }

    /// Returns the counts of this shard.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.core.counts
    }

    /// Returns the configuration of this shard.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.core.config
    }

    /// Returns the current view.
    #[must_use]
    pub fn view(&self) -> &Members {
        &self.core.view
    }

    /// True when this master knows all locks of its resources and grants requests.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.recovering.is_none()
    }

    /// Returns the time of the next [`Event::Tick`].
    #[must_use]
    pub fn next_tick(&self) -> Option<Nanos> {
        self.home.next_tick()
    }

    /// Returns the locks that clients of this node have or wait for here, by number.
    pub fn locks(&self) -> impl Iterator<Item = (LockId, &HomeLock)> {
        self.home.locks.iter().map(|(lock, held)| (*lock, &**held))
    }

    /// Returns a lock of a client of this node.
    #[must_use]
    pub fn lock(&self, lock: LockId) -> Option<&HomeLock> {
        self.home.locks.get(&lock).map(|held| &**held)
    }

    /// Returns the waiting requests of this node's clients with their owners.
    pub fn waiting(&self) -> impl Iterator<Item = (LockId, Owner)> {
        self.home.waiting()
    }

    /// Returns the resources mastered here that are held or waited for.
    pub fn resources(&self) -> impl Iterator<Item = (&Name, &Resource)> {
        self.master.resources.iter()
    }

    /// Returns the number of resources in [`Shard::resources`].
    #[must_use]
    pub fn resource_count(&self) -> usize {
        self.master.resources.len()
    }

    /// Returns a resource that this shard masters.
    #[must_use]
    pub fn resource(&self, name: &Name) -> Option<&Resource> {
        self.master.resources.get(name)
    }

    /// Returns the node that masters a resource, or `None` if it is this node.
    #[must_use]
    pub fn master(&self, name: &Name) -> Option<NodeId> {
        let place = self.place_of(name).ok()?;
        Some(self.core.masters.of(place).master).filter(|master| *master != self.core.config.me)
    }

    /// Handles one event completely and pushes the resulting actions to `out`.
    ///
    /// # Panics
    /// The driver broke its contract: a lock number used twice, a view that is not newer, or a view
    /// without this node.
    pub fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        self.core.now = now;
        std::mem::swap(&mut self.core.out, out);
        let core = &mut self.core;
        let mut asked = None;
        match event {
            Event::Request(request) => {
                let lock = request.lock;
                match self.lock_at_once(&request) {
                    Some(Grant { mode, token, value }) => {
                        self.core.out.push(Action::Granted { lock, mode, token, value });
                    }
                    None => {
                        asked = Some(lock);
                        self.home.request(request, &mut self.core);
                    }
                }
            }
            Event::Unlock { lock, value } => {
                if !self.unlock_at_once(lock, value) {
                    self.home.unlock(lock, value, &mut self.core);
                }
            }
            Event::Cancel { lock } => self.home.end(lock, LockRefusal::Cancelled, core),
            Event::ClientGone { locks } => self.home.client_gone(&locks, core),
            Event::Message { from, incarnation, message } => self.arrived(from, incarnation, message),
            Event::Errand(errand) => self.take_errand(errand),
            Event::View(view) => self.change(view),
            Event::Tick => {
                for (lock, round) in self.home.due(core) {
                    self.look(lock, round);
                }
            }
        }
        self.settle();
        if let Some(lock) = asked {
            self.home.await_answer(lock, &self.core);
        }
        std::mem::swap(&mut self.core.out, out);
    }

    /// Grants a new lock without any message, if its master is here and it need not wait. No
    /// current time is needed. `None` means that nothing has changed; [`Event::Request`], which
    /// begins with this step, does the rest.
    ///
    /// # Panics
    /// The lock's number was used before.
    pub fn lock_at_once(&mut self, request: &LockRequest) -> Option<Grant> {
        let &LockRequest { lock, mode, ref kind, .. } = request;
        let RequestKind::New(new) = kind else { return None };
        let place = self.place_of(&new.name).ok()?;
        let me = self.core.config.me;
        let core = &mut self.core;
        if core.masters.of(place).master != me || self.recovering.is_some() || !self.home.has_room(core) {
            return None;
        }
        let (who, seq) = (ClusterLockId { node: me, lock }, 1);
        let (token, value) = self.master.at_once(&new.name, who, seq, mode, new.notify)?;
        let hold = Hold { mode, token, seq, value };
        self.home.hold(lock, new.clone(), place, hold, core);
        Some(Grant { mode, token, value })
    }

    /// Releases a lock without any message, if its master is here and no request waits for the
    /// resource. No current time is needed. False means that nothing has changed;
    /// [`Event::Unlock`], which begins with this step, does the rest.
    pub fn unlock_at_once(&mut self, lock: LockId, value: Option<[u8; VALUE_LEN]>) -> bool {
        let Self { core, home, master, recovering, .. } = self;
        let Some(held) = home.locks.get(&lock) else { return false };
        if core.masters.of(held.place).master != core.config.me
            || recovering.is_some()
            || held.pending.is_some()
            || (value.is_some() && !held.may_write())
        {
            return false;
        }
        let at_once = master.unlock_at_once(&held.name, ClusterLockId { node: core.config.me, lock }, value);
        if at_once {
            home.forget(lock);
        }
        at_once
    }

    /// Delivers the messages that the two halves have for each other.
    fn settle(&mut self) {
        while let Some(body) = self.core.inbox.pop_front() {
            let me = self.core.config.me;
            self.current(me, body);
        }
    }

    /// Handles a message from another node.
    fn arrived(&mut self, from: NodeId, incarnation: Incarnation, message: Message) {
        let is_member = self.core.view.incarnation(from) == Some(incarnation) && from != self.core.config.me;
        match self.gate.admit((from, incarnation), message.epoch, message) {
            Ok(Admission::Parked) => self.core.counts.new_epoch += 1,
            Ok(_) if !is_member => self.core.counts.non_members += 1,
            Ok(Admission::Current(message)) => self.current(from, message.body),
            Ok(Admission::Older(message)) => self.older(from, message),
            Err(what) => {
                self.core.counts.new_epoch += 1;
                self.core.fault(from, what);
            }
        }
    }

    /// Handles a message of an earlier view from a member. It is valid only if the partition's
    /// master has not changed since.
    fn older(&mut self, from: NodeId, Message { epoch, body }: Message) {
        let me = self.core.config.me;
        let place = match (body.resource(), body.about()) {
            // Searches begin again.
            (Some(_), _) if matches!(body, LockMessage::Probe(..)) => None,
            (Some(name), _) => self.place_of(name).ok().map(|place| (place, me)),
            (None, Some(lock)) => self.lock(lock).map(|held| (held.place, from)),
            // Answers to questions of an earlier view.
            (None, None) => None,
        };
        let good = place.is_some_and(|(place, master)| {
            let mastery = self.core.masters.of(place);
            mastery.master == master && mastery.since <= epoch
        });
        if !good {
            self.core.counts.old_epoch += 1;
            return;
        }
        self.core.counts.late += 1;
        match (place, &mut self.recovering) {
            (Some((_, master)), Some(recovery)) if master == me => {
                let kept = recovery.held_back.keep(from, Message { epoch, body });
                kept.unwrap_or_else(|what| self.core.fault(from, what));
            }
            _ => self.current(from, body),
        }
    }

    /// Handles a message of this view, from any member or this node.
    fn current(&mut self, from: NodeId, body: LockMessage) {
        if let Err(what) = self.dispatch(from, body) {
            self.core.fault(from, what);
        }
    }

    fn dispatch(&mut self, from: NodeId, body: LockMessage) -> Result<(), Fault> {
        match body {
            LockMessage::Records(records) => self.records(from, records),
            LockMessage::Values(values) => self.handed(from, values),
            LockMessage::Done => self.done(from),
            LockMessage::Ask(need) => {
                self.answer(from, &need);
                Ok(())
            }
            LockMessage::Chase(chased, probe) => {
                self.chase(&chased, &probe);
                Ok(())
            }
            LockMessage::Granted(_) | LockMessage::Refused(_) | LockMessage::Blocking(_) => {
                self.for_home(from, body)
            }
            LockMessage::Request(_)
            | LockMessage::Unlock(_)
            | LockMessage::Cancel(_)
            | LockMessage::Probe(..) => {
                let place = body.resource().ok_or("a message about no resource")?;
                let place = self.place_of(place)?;
                if self.core.masters.of(place).master != self.core.config.me {
                    return Err("a message for another master");
                }
                let epoch = self.core.view.epoch;
                match &mut self.recovering {
                    Some(_) if matches!(body, LockMessage::Probe(..)) => Ok(()),
                    Some(recovery) => recovery.held_back.keep(from, Message { epoch, body }),
                    None => do_as_master(&mut self.master, from, body, &mut self.core),
                }
            }
        }
    }

    /// Handles a master's message about a lock of a client of this node. The client may have
    /// released the lock meanwhile.
    fn for_home(&mut self, from: NodeId, body: LockMessage) -> Result<(), Fault> {
        let held = body.about().and_then(|lock| self.home.locks.get(&lock));
        let Some(held) = held else { return Ok(()) };
        if self.core.masters.of(held.place).master != from {
            return Err("an answer from someone who is not the master");
        }
        match body {
            LockMessage::Granted(granted) => return self.home.granted(granted, &mut self.core),
            LockMessage::Refused(refused) => self.home.refused(refused, &mut self.core),
            LockMessage::Blocking(blocking) => self.home.blocking(blocking, &mut self.core),
            _ => return Err("a master's word that is none"),
        }
        Ok(())
    }

    /// Returns the slot of the resource's partition among those of this worker.
    fn place_of(&self, name: &Name) -> Result<PartitionSlot, Fault> {
        let Config { worker, workers, .. } = self.core.config;
        let partition = name.partition();
        if partition.worker(workers) != worker {
            return Err("a message for another worker");
        }
        Ok(self.core.masters.slot(partition))
    }
}
