//! The lock manager's protocol, pure: who gets which lock, and what becomes of all that when members come and go.
//!
//! A [`Shard`] is all that one worker of one node knows, in both roles: *home* of the locks of this node's clients, and *master* of the
//! resources in its partitions. It reads no clock, file or socket: [`Shard::handle`] takes an [`Event`] and pushes [`Action`]s, which the driver
//! carries out in their order. What the two halves say to each other goes the same way as between nodes, except that it does not leave; only a lock that
//! its own node masters and that need not wait is granted without a word ([`Shard::lock_at_once`]).
//!
//! # How a lock is granted
//!
//! ```text
//! home --Request--> master: queue --Granted{token, value}--> home
//! home --Unlock{value}--> master                              (nothing comes back)
//! ```
//!
//! A resource's name hashes to one of 4,096 partitions; `partition % workers` is its worker on every node, and of the members one is its
//! master ([`Members::master`]).
//!
//! # What holds
//!
//! - Modes that do not go together ([`Mode::is_compatible_with`]) are never held at once by members of a view.
//! - Each request is answered once: granted or refused with a reason. Cancellation and timeout ask the master to refuse; a grant that is under way
//!   already stands.
//! - Requests for a resource are served in the order of their arrival at its master, conversions before new locks. After a change of master in the
//!   order of their waiting.
//! - Every grant has a [`Token`], greater than those of all grants of the resource that it excludes.
//! - What comes with a grant of a mode beside which nobody writes is the last value written, or says that it may not be.
//! - Of requests that wait for each other in a circle, the youngest is refused; nobody else for that reason.
//! - A master that is open knows exactly the locks that members hold and wait for, apart from what is under way.
//!
//! # What the driver must keep
//!
//! - Messages of one [`Kind`] from one incarnation of a node to one incarnation of another arrive once each and in the order sent, until one of them ends. Then
//!   any first part of them may have arrived. Nothing depends on the order of the two kinds. The sender's incarnation comes with each.
//! - A view is handed in when everybody outside of it is dead or fenced. Views that are decided one after the other have epochs that are, and
//!   a node that misses none recovers at less cost; it may miss some.
//! - An owner's number means the same at all workers of a node; [`Action::Tell`] may arrive in any order, and may be lost: a search that does not come
//!   back begins again.
//! - Handing in [`Event::Tick`] at [`Shard::next_tick`], or later.
//! - The time that is handed in never goes back. For [`Event::Unlock`], which asks for none, that of the event before will do.
//! - Numbers of locks are never used again in one incarnation of a node.
//! - A client that converts may use what both modes allow from the moment it asks until it is answered ([`Held::usable`]).
//! - Messages that come before a node's first view are admitted to the gate that its shard [begins](Shard::begin) with.
//!
//! # What members can do
//!
//! Whatever a member sends, nothing here panics: a message that no correct member sends is dropped with an [`Action::Fault`] that names who sent it. A member
//! can still lie about what it holds, so the node should stop on the first.

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
mod recovery;
mod resource;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::{BTreeMap, VecDeque};

pub use plexus_base::locks::{LockRefusal, MAX_NAME, MODES, Mode, Token, VALUE_LEN, Validity, Value};
use plexus_base::{Incarnation, Nanos, NodeId};
pub use plexus_membership::partitions::{Members, PartitionSlots};
use plexus_membership::{
    gate::Admission,
    partitions::{Masters, PartitionSlot},
};

pub use backlog::{Backlog, Gate};
pub use counts::Counts;
pub use deadlock::Errand;
pub use home::{Held, Hold};
pub use interface::{Action, Config, Event, LockId, Owner, WaitLimit, Want};
pub use message::{
    Blocking, Body, Cancel, Chased, Convert, Granted, Handover, Hop, Kind, MAX_CHASED, MAX_HOPS, Message,
    Origin, Probe, Record, Refused, Request, Unlock,
};
pub use name::{Name, NameError};
pub use resource::{Holder, Resource, Waiter, Who};

use self::{
    core::Core,
    home::Home,
    master::{Fault, Master},
    recovery::{Recovery, do_as_master},
};

/// All locks of one worker of one node, in both roles. See the [module](self).
#[derive(Clone, Debug)]
pub struct Shard {
    core: Core,
    home: Home,
    master: Master,
    recovering: Option<Recovery>,
    /// Value blocks of what was mastered here in the view before.
    values: BTreeMap<Name, Handover>,
    gate: Gate,
}

impl Shard {
    /// A shard without locks, in the first view that this incarnation of the node is in; it asks the other members what it masters.
    ///
    /// # Panics
    /// When the configuration is impossible: no such worker, or a view without this incarnation of the node.
    #[must_use]
    pub fn new(config: Config, view: Members, out: &mut Vec<Action>) -> Self {
        Self::begin(config, Self::gate(&config), view, out)
    }

    /// The gate that a shard begins with: it parks what comes before the first view.
    #[must_use]
    pub fn gate(config: &Config) -> Gate {
        Gate::new(Backlog::new(config.locks_max))
    }

    /// The same as [`Shard::new`], with messages that came before its first view.
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
        let core = Core { config, now: Nanos(0), view, masters, inbox, out: Vec::new(), counts };
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

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.core.counts
    }

    /// What it was made with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.core.config
    }

    /// The view that it is in.
    #[must_use]
    pub fn view(&self) -> &Members {
        &self.core.view
    }

    /// Whether what it masters is complete, so that requests are granted.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.recovering.is_none()
    }

    /// The time of the next [`Event::Tick`].
    #[must_use]
    pub fn next_tick(&self) -> Option<Nanos> {
        self.home.next_tick()
    }

    /// The locks that clients of this node have or wait for here, by their numbers.
    pub fn locks(&self) -> impl Iterator<Item = (LockId, &Held)> {
        self.home.locks.iter().map(|(lock, held)| (*lock, &**held))
    }

    /// A lock of a client of this node.
    #[must_use]
    pub fn lock(&self, lock: LockId) -> Option<&Held> {
        self.home.locks.get(&lock).map(|held| &**held)
    }

    /// The requests of clients of this node that wait, and whose they are.
    pub fn waiting(&self) -> impl Iterator<Item = (LockId, Owner)> {
        self.home.waiting()
    }

    /// The resources that it masters and somebody has or wants.
    pub fn resources(&self) -> impl ExactSizeIterator<Item = (&Name, &Resource)> {
        self.master.resources.iter()
    }

    /// A resource that it masters.
    #[must_use]
    pub fn resource(&self, name: &Name) -> Option<&Resource> {
        self.master.resources.get(name)
    }

    /// The other node that masters a resource, if it is not this one.
    #[must_use]
    pub fn master(&self, name: &Name) -> Option<NodeId> {
        let place = self.place_of(name).ok()?;
        Some(self.core.masters.of(place).master).filter(|master| *master != self.core.config.me)
    }

    /// Handles one event to its end; what is to be done is pushed to `out`.
    ///
    /// # Panics
    /// When the driver broke its contract: a number of a lock used twice, a view that is not newer or has no place for this node.
    pub fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        self.core.now = now;
        std::mem::swap(&mut self.core.out, out);
        let core = &mut self.core;
        let mut asked = None;
        match event {
            Event::Lock(want) => match self.lock_at_once(want) {
                Ok((lock, Hold { mode, token, value, .. })) => {
                    self.core.out.push(Action::Granted { lock, mode, token, value });
                }
                Err(want) => {
                    asked = Some(want.lock);
                    self.home.lock(want, &mut self.core);
                }
            },
            Event::Convert { lock, mode, timeout, value } => {
                asked = Some(lock);
                self.home.convert(lock, mode, timeout, value, core);
            }
            Event::Unlock { lock, value } => {
                if let Some((place, unlock)) = self.home.unlock(lock, value, core) {
                    // To a master that is here and open in one step: nothing else is under way.
                    match core.masters.of(place).master == core.config.me && self.recovering.is_none() {
                        true => self.master.unlock(core.config.me, unlock, core),
                        false => core.ask_master(place, Body::Unlock(unlock)),
                    }
                }
            }
            Event::Cancel { lock } => self.home.end(lock, LockRefusal::Cancelled, core),
            Event::ClientGone { locks } => self.home.client_gone(&locks, core),
            Event::Message { from, incarnation, message } => self.arrived(from, incarnation, message),
            Event::Told(errand) => self.told(errand),
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

    /// Grants a lock without a word to anybody, if its master is here and it need not wait; the time does not matter. Otherwise nothing has happened, and
    /// [`Event::Lock`], which begins with this, takes it from there.
    ///
    /// # Errors
    /// What was wanted, where that takes more.
    ///
    /// # Panics
    /// When the lock's number was used before.
    pub fn lock_at_once(&mut self, want: Want) -> Result<(LockId, Hold), Want> {
        let (lock, mode) = (want.lock, want.mode);
        let Ok(place) = self.place_of(&want.name) else { return Err(want) };
        let me = self.core.config.me;
        let core = &mut self.core;
        if core.masters.of(place).master != me || self.recovering.is_some() || !self.home.has_room(core) {
            return Err(want);
        }
        let (who, seq) = (Who { node: me, lock }, 1);
        let Some((holder, value)) = self.master.at_once(&want.name, who, seq, mode, want.notify) else {
            return Err(want);
        };
        let hold = Hold { mode, token: holder.token, seq, value };
        self.home.hold(want, place, hold, core);
        Ok((lock, hold))
    }

    /// What the halves have to say to each other.
    fn settle(&mut self) {
        while let Some(body) = self.core.inbox.pop_front() {
            let me = self.core.config.me;
            self.current(me, body);
        }
    }

    /// A message from another node.
    fn arrived(&mut self, from: NodeId, incarnation: Incarnation, message: Message) {
        let is_member = self.core.view.incarnation(from) == Some(incarnation) && from != self.core.config.me;
        match self.gate.admit((from, incarnation), message.epoch, message) {
            Ok(Admission::Parked) => self.core.counts.new_epoch += 1,
            Ok(_) if !is_member => self.core.counts.strangers += 1,
            Ok(Admission::Current(message)) => self.current(from, message.body),
            Ok(Admission::Older(message)) => self.older(from, message),
            Err(what) => {
                self.core.counts.new_epoch += 1;
                self.core.fault(from, what);
            }
        }
    }

    /// A message of an earlier view from a member: good only about a partition whose master has not changed since.
    fn older(&mut self, from: NodeId, Message { epoch, body }: Message) {
        let me = self.core.config.me;
        let place = match (body.resource(), body.about()) {
            // Searches begin again.
            (Some(_), _) if matches!(body, Body::Probe(..)) => None,
            (Some(name), _) => self.place_of(name).ok().map(|place| (place, me)),
            (None, Some(lock)) => self.lock(lock).map(|held| (held.place, from)),
            // Answers to questions that nobody asks any more.
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

    /// A message of this view, from any member and this one.
    fn current(&mut self, from: NodeId, body: Body) {
        if let Err(what) = self.dispatch(from, body) {
            self.core.fault(from, what);
        }
    }

    fn dispatch(&mut self, from: NodeId, body: Body) -> Result<(), Fault> {
        match body {
            Body::Records(records) => self.records(from, records),
            Body::Values(values) => self.handed(from, values),
            Body::Done => self.done(from),
            Body::Ask(need) => {
                self.answer(from, &need);
                Ok(())
            }
            Body::Chase(chased, probe) => {
                self.chase(&chased, &probe);
                Ok(())
            }
            Body::Granted(_) | Body::Refused(_) | Body::Blocking(_) => self.for_home(from, body),
            Body::Request(_) | Body::Convert(_) | Body::Unlock(_) | Body::Cancel(_) | Body::Probe(..) => {
                let place = body.resource().ok_or("a message about no resource")?;
                let place = self.place_of(place)?;
                if self.core.masters.of(place).master != self.core.config.me {
                    return Err("a message for another master");
                }
                let epoch = self.core.view.epoch;
                match &mut self.recovering {
                    Some(_) if matches!(body, Body::Probe(..)) => Ok(()),
                    Some(recovery) => recovery.held_back.keep(from, Message { epoch, body }),
                    None => do_as_master(&mut self.master, from, body, &mut self.core),
                }
            }
        }
    }

    /// A master's word about a lock of a client of this node, which may have given it up meanwhile.
    fn for_home(&mut self, from: NodeId, body: Body) -> Result<(), Fault> {
        let held = body.about().and_then(|lock| self.home.locks.get(&lock));
        let Some(held) = held else { return Ok(()) };
        if self.core.masters.of(held.place).master != from {
            return Err("an answer from someone who is not the master");
        }
        match body {
            Body::Granted(granted) => return self.home.granted(granted, &mut self.core),
            Body::Refused(refused) => self.home.refused(refused, &mut self.core),
            Body::Blocking(blocking) => self.home.blocking(blocking, &mut self.core),
            _ => return Err("a master's word that is none"),
        }
        Ok(())
    }

    /// The place of the resource's partition among those of this worker.
    fn place_of(&self, name: &Name) -> Result<PartitionSlot, Fault> {
        let Config { worker, workers, .. } = self.core.config;
        let partition = name.partition();
        if partition.worker(workers) != worker {
            return Err("a message for another worker");
        }
        Ok(self.core.masters.slot(partition))
    }
}
