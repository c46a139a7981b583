//! A worker: the links of one partition share, the service that handles their messages, and who drives them.
//!
//! **The token.** Everything in a worker is used by one thread at a time, the holder of its [token]. Two sorts of
//! threads take it: the worker's background thread ([`Worker::run`]), and local threads that hand something in or
//! [wait] for an answer and poll the links themselves, so that their answers cost no wake-up.
//!
//! **No wake-up is lost.** Who lets go of the token ([`Shared::let_go`]) first arms the bell, then looks again at
//! everything that could have come, and then unlocks, with an eye on those who were woken meanwhile and turned away; `token.rs`
//! says why that is enough, and loom tries it.
//!
//! **Who is woken.** By arrivals the background thread, unless a waiting thread sits in the worker's [seat](watch): then that
//! thread and no other. By its answer a thread that waits, wherever it sleeps (`signal.rs`).
//!
//! **Lending.** Where threads poll, a local thread that has its answer does not arm the bell: it will be back at once,
//! and a ring would only wake the background thread on its own core. It *lends* the worker to whoever comes next
//! ([`Shared::lend_or_leave`]): every thread that waits, every eighth [visit] and each that finds news, and now and then a thread that
//! needs no worker ([`Worker::attend`]), looks after it. The background thread looks every [`LENT`]; when nobody has looked after it
//! since, it takes over.
//!
//! **Leaving it to others.** Where other threads wait for answers as well and are awake, the one that has its answer leaves the worker
//! to them ([`Shared::leave_to_others`]): nothing is armed or looked at, and what visitors send meanwhile goes with what these send. Those who wait have
//! said that they are there, and the last one does not go before it has taken what was left ([`Token::go`]).
//!
//! **Who gives way.** A background thread that polls gives the token up when a local thread wants it (`wanted`): it
//! would only be another hand between the answer and who waits for it. A local thread that polls goes on while others only
//! wait for answers, which it brings them as well; it gives way to one that must have the token itself (`claimed`), and
//! none of them drives before that one has it, but for the last who would sleep.
//!
//! **The clock.** The background thread wakes, or looks while it drives, as often as the link wants that wants it most often
//! (`tick_every`) and leaves word (`tick_due`); whoever drives tells the links the time in its next turn.

mod leave;
#[cfg(test)]
mod tests;
mod token;
mod turn;
mod visit;
mod wait;
mod watch;

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
};

use crossbeam_queue::ArrayQueue;
use plexus_base::{Epoch, Incarnation, MAX_NODES, Nanos, NodeId, Waiting, WorkerId, clock};
use plexus_fabric::{Bell, Event, Lost, Rail, Windows};

pub use self::watch::Listening;
use self::{
    leave::Left,
    token::{Held, Token},
    turn::Core,
    watch::Watch,
};
use crate::{
    LinkInfo, Net, Service,
    link::{self, NewRail},
    spin::{Courtesy, Crowd, Spinner},
    sync::lock,
};

/// Tasks that may wait for a worker; who finds the queue full waits. One for each local thread is enough.
const TASKS: usize = 4096;

/// Turns of a local thread that polls between two looks at whether another claims the token.
const TURNS_BETWEEN_CLAIMS: u32 = 64;

/// Turns of the background thread between two looks at the clock.
const TURNS_BETWEEN_CLOCKS: u32 = 64;

/// Links are told the time no more often, however short their probe interval is: systems count in milliseconds.
const SHORTEST_TICK: Nanos = Nanos::from_ms(2);

/// How long a lent worker may be left alone: the longest that a message waits, to come in or to leave unhurried, where threads poll and
/// the one that drove last stays away, is twice that.
const LENT: Nanos = Nanos(250_000);

/// A worker, shared by its background thread and everyone who submits to it. Cheap to clone.
pub struct Worker<S: Service> {
    shared: Arc<Shared<S>>,
}

impl<S: Service> Clone for Worker<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

/// What a worker is made from, besides its service.
pub struct WorkerParts {
    /// The node.
    pub me: NodeId,
    /// Which of its workers.
    pub id: WorkerId,
    /// The epoch that is put on every message.
    pub epoch: Epoch,
    /// What wakes it.
    pub bell: Arc<Bell>,
    /// How its threads wait.
    pub waiting: Waiting,
    /// How its links behave.
    pub links: link::Settings,
    /// This node's windows, for accesses that come by message.
    pub windows: Arc<Windows>,
    /// Who is told what becomes of links and rails.
    pub events: Events,
}

/// Told by whoever drives a worker, in the middle of a turn: must not block, nor come back to the worker other than by
/// [`Worker::add_rail`].
pub type Events = Arc<dyn Fn(LinkEvent) + Send + Sync>;

impl WorkerParts {
    /// The first worker of node `me` in the first epoch, without windows, and with nobody who connects rails again: what
    /// tests and benchmarks need.
    #[must_use]
    pub fn alone(me: NodeId, bell: Arc<Bell>, waiting: Waiting) -> Self {
        let (id, epoch, links, windows) = (WorkerId(0), Epoch(1), link::Settings::default(), Arc::default());
        Self { me, id, epoch, bell, waiting, links, windows, events: Arc::new(|_| ()) }
    }
}

/// What becomes of the links of a worker and of their rails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkEvent {
    /// The link to `peer` has its first rail.
    Up {
        /// The node at the other end.
        peer: NodeId,
        /// The worker that it belongs to.
        worker: WorkerId,
    },
    /// A rail was lost; the link goes on, or waits for one as long as its timeout. It may be connected again, with a higher
    /// generation.
    RailDown {
        /// The node at the other end.
        peer: NodeId,
        /// In this incarnation.
        incarnation: Incarnation,
        /// The worker that it belongs to.
        worker: WorkerId,
        /// Which of the pair's rails.
        slot: u8,
        /// Which incarnation of it.
        generation: u32,
        /// Why.
        why: Lost,
    },
    /// The link is gone for good.
    Gone {
        /// The node at the other end.
        peer: NodeId,
        /// In this incarnation.
        incarnation: Incarnation,
        /// The worker that it belonged to.
        worker: WorkerId,
        /// Why.
        why: Lost,
    },
}

struct Shared<S: Service> {
    id: WorkerId,
    links: link::Settings,
    windows: Arc<Windows>,
    events: Events,
    infos: Mutex<BTreeMap<NodeId, LinkInfo>>,
    token: Token<Core<S>>,
    tasks: ArrayQueue<S::Task>,
    controls: Mutex<Controls>,
    controlled: AtomicBool,
    bell: Arc<Bell>,
    watch: Watch,
    /// A local thread wants the background thread to give way.
    wanted: AtomicBool,
    /// A local thread wants everybody to: what it does cannot be done by whoever drives.
    claimed: AtomicBool,
    stopping: AtomicBool,
    /// Nobody drives, and the bell is not armed: a local thread will be back.
    lent: AtomicBool,
    /// Changes each time that a local thread that polls has looked after it.
    attended: AtomicU32,
    /// How often, in nanoseconds, some link wants to know the time; the largest value where none does.
    tick_every: AtomicU64,
    /// It is time to tell it.
    tick_due: AtomicBool,
    crowd: Crowd,
    waiting: Waiting,
}

/// What the rest of the node asks of a worker and nobody has seen to.
#[derive(Default)]
struct Controls {
    waiting: Vec<Control>,
    /// Nobody will: the worker's background thread has ended.
    ended: bool,
}

/// What the rest of the node asks of a worker, rarely.
enum Control {
    Rail(LinkInfo, NewRail),
    Drop(NodeId, Incarnation),
}

impl<S: Service> Worker<S> {
    /// A worker without links; [`Worker::run`] is its background thread.
    ///
    /// # Errors
    /// The system gave no epoll set.
    pub fn new(parts: WorkerParts, service: S) -> io::Result<Self> {
        let WorkerParts { me, id, epoch, bell, waiting, links, windows, events } = parts;
        Ok(Self {
            shared: Arc::new(Shared {
                id,
                links,
                windows,
                events,
                infos: Mutex::default(),
                token: Token::new(Core::new(service, Net::new(me, id, epoch, MAX_NODES))),
                tasks: ArrayQueue::new(TASKS),
                controls: Mutex::default(),
                controlled: AtomicBool::new(false),
                watch: Watch::new(&bell)?,
                bell,
                wanted: AtomicBool::new(false),
                claimed: AtomicBool::new(false),
                stopping: AtomicBool::new(false),
                lent: AtomicBool::new(false),
                attended: AtomicU32::new(0),
                tick_every: AtomicU64::new(u64::MAX),
                tick_due: AtomicBool::new(false),
                crowd: Crowd::default(),
                waiting,
            }),
        })
    }

    /// Hands a task in behind those that wait, and sees to it that it is handled; does not wait for
    /// that.
    pub fn submit(&self, task: S::Task) {
        self.push(task);
        match self.shared.token.try_take() {
            Some(mut core) => {
                core.turn(&self.shared);
                self.shared.leave(core, &mut None);
            }
            None => {
                self.shared.bell.ring();
            }
        }
    }

    /// Hands a task in where there is room for it, and wakes whoever is to handle it; drives nothing and never waits, so a handler of another
    /// worker may. False: there was no room.
    pub fn offer(&self, task: S::Task) -> bool {
        let taken = self.shared.tasks.push(task).is_ok();
        self.shared.bell.ring();
        taken
    }

    /// Hands a task in for whoever drives the worker next, waking nobody: [`Worker::wait`] follows.
    pub fn push(&self, mut task: S::Task) {
        while let Err(refused) = self.shared.tasks.push(task) {
            task = refused;
            self.shared.bell.ring();
            thread::yield_now();
        }
    }

    /// Looks after the worker if nobody else does and something waits for it: for threads that got by without it
    /// and whose peers may wait meanwhile. Costs next to nothing when nothing waits.
    #[inline]
    pub fn attend(&self) {
        let shared = &*self.shared;
        if shared.waiting != Waiting::Polling && (shared.bell.is_armed() || shared.token.is_attended()) {
            return;
        }
        if let Some(mut core) = shared.token.try_take() {
            core.turn(shared);
            shared.lend_or_leave(core, &mut None);
        }
    }

    /// Runs `act` on the worker itself, as soon as the token can be had. Gives way to whoever has it, and ordinary threads have it: not for
    /// threads of real time, which they do not get past.
    pub fn with<R>(&self, act: impl FnOnce(&mut S, &mut Net) -> R) -> R {
        let shared = &*self.shared;
        let mut core = shared.take();
        let core_ref = &mut *core;
        let result = act(&mut core_ref.service, &mut core_ref.net);
        core.turn(shared);
        shared.leave(core, &mut None);
        result
    }

    /// Drives the worker without ever sleeping until `act`, called after every turn, answers. Where nothing comes for a
    /// while it gives way to other threads.
    ///
    /// This is how a benchmark measures the links without any hand-over between threads.
    pub fn drive<R>(&self, mut act: impl FnMut(&mut S, &mut Net) -> Option<R>) -> R {
        let shared = &*self.shared;
        let mut core = shared.take();
        shared.bell.disarm();
        let mut seat = shared.watch.sit();
        let mut courtesy = Courtesy::default();
        let result = loop {
            let core_ref = &mut *core;
            let result = act(&mut core_ref.service, &mut core_ref.net);
            let done = core.turn(shared);
            if let Some(result) = result {
                break result;
            }
            if done > 0 {
                courtesy.reset();
            } else {
                courtesy.again();
            }
        };
        shared.leave(core, &mut seat);
        result
    }

    /// Gives the worker a rail to `peer` in this `incarnation`, the first of which makes the link and ends that to another incarnation. It takes
    /// the place of an older generation in its slot. `path` says in reports from where to where it leads. Once [`Worker::run`] has ended
    /// it is dropped, and so is one to an incarnation whose link is gone.
    pub fn add_rail(
        &self,
        peer: NodeId,
        incarnation: Incarnation,
        slot: u8,
        generation: u32,
        mut rail: Box<dyn Rail>,
        path: String,
    ) {
        let mut infos = lock(&self.shared.infos);
        let info = infos.entry(peer).or_insert_with(|| LinkInfo::new(peer, incarnation, self.shared.id));
        if info.incarnation != incarnation {
            *info = info.with_incarnation(incarnation);
        }
        let info = info.clone();
        drop(infos);
        let health = rail.health();
        let new = NewRail { slot, generation, rail, health, path };
        // Who asks before the worker has come to it finds it already.
        info.connected(&new);
        self.control(Control::Rail(info, new));
    }

    /// Every link that is or was up.
    #[must_use]
    pub fn links(&self) -> Vec<LinkInfo> {
        lock(&self.shared.infos).values().cloned().collect()
    }

    /// Takes the link to this incarnation of `peer` away, if it is there; the service learns it like the peer's death.
    pub fn drop_link(&self, peer: NodeId, incarnation: Incarnation) {
        self.control(Control::Drop(peer, incarnation));
    }

    fn control(&self, control: Control) {
        let mut controls = lock(&self.shared.controls);
        if controls.ended {
            return;
        }
        controls.waiting.push(control);
        drop(controls);
        self.shared.controlled.store(true, Ordering::Release);
        self.shared.bell.wake();
    }

    /// What wakes it: to be handed to those who bring work for [`Service::turn`].
    #[must_use]
    pub fn bell(&self) -> &Arc<Bell> {
        &self.shared.bell
    }

    /// Lets somebody who is not trusted with the bell wake it by `event`, after looking at the bell's [`Notice`](plexus_fabric::Notice).
    ///
    /// # Errors
    /// The system's.
    pub fn listen(&self, event: Event) -> io::Result<Listening> {
        self.shared.watch.listen(event)
    }

    /// Ends [`Worker::run`].
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.watch.nudge();
    }

    /// The background thread: sleeps, and drives the worker when something arrives and nobody else does.
    ///
    /// # Errors
    /// The system refuses to let it sleep.
    pub fn run(&self) -> io::Result<()> {
        let shared = &*self.shared;
        // The first turn needs no event: links may have been added before.
        let mut left = Left::Busy;
        let mut attended = 0;
        let mut taken = false;
        let mut ticked = clock::now();
        while !shared.stopping.load(Ordering::Acquire) {
            if left == Left::Quiet {
                shared.sleep(taken, ticked)?;
            }
            taken = false;
            left = Left::Quiet;
            shared.look_at_clock(&mut ticked);
            if shared.lent.load(Ordering::SeqCst) {
                let now = shared.attended.load(Ordering::Relaxed);
                if std::mem::replace(&mut attended, now) != now {
                    continue;
                }
            }
            let Some(mut core) = shared.token.try_woken() else {
                taken = true;
                continue;
            };
            shared.bell.disarm();
            shared.watch.harvest();
            shared.lent.store(false, Ordering::SeqCst);
            shared.wanted.store(false, Ordering::Relaxed);
            shared.spin(&mut core, &mut ticked);
            left = match shared.leave_to_others(core, &mut None) {
                Ok(()) => Left::Quiet,
                Err(core) => shared.let_go(core, None),
            };
        }
        // Peers see the end of a node that stops within a process as they see the end of the process.
        self.with(|_, net| {
            let mut controls = lock(&shared.controls);
            controls.ended = true;
            let late = std::mem::take(&mut controls.waiting);
            drop(controls);
            drop(late);
            for peer in net.links.present().iter() {
                net.links.remove(peer).into_iter().for_each(|mut link| link.goodbye());
            }
        });
        Ok(())
    }
}

impl<S: Service> Shared<S> {
    /// The token, for who cannot do without.
    fn take(&self) -> Held<'_, Core<S>> {
        loop {
            if let Some(core) = self.token.try_take() {
                // Others who claim it say so again.
                self.claimed.store(false, Ordering::Relaxed);
                return core;
            }
            self.wanted.store(true, Ordering::Relaxed);
            self.claimed.store(true, Ordering::Relaxed);
            thread::yield_now();
        }
    }

    /// The background thread drives for as long as there is something to do, and a little longer.
    fn spin(&self, core: &mut Core<S>, ticked: &mut Nanos) {
        let mut spinner = Spinner::new(self.waiting, &self.crowd);
        let mut turns = 0u32;
        if core.turn(self) == 0 && self.waiting != Waiting::Polling {
            // Woken by the clock, or by what somebody else has handled.
            return;
        }
        while !self.wanted.load(Ordering::Relaxed) && !self.stopping.load(Ordering::Relaxed) {
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS_BETWEEN_CLOCKS) {
                self.look_at_clock(ticked);
            }
            if core.turn(self) > 0 {
                spinner.reset();
            } else if !spinner.again(self.token.standing()) {
                return;
            }
        }
    }

    /// Leaves word where it is time to tell the links what time it is; `ticked` is when it was last.
    fn look_at_clock(&self, ticked: &mut Nanos) {
        if self.next_tick(*ticked) == Some(Nanos(0)) {
            *ticked = clock::now();
            self.tick_due.store(true, Ordering::Relaxed);
        }
    }

    /// How long until links are to be told the time, having been told it then; none: no link wants to know.
    fn next_tick(&self, ticked: Nanos) -> Option<Nanos> {
        let every = self.tick_every.load(Ordering::Relaxed);
        (every != u64::MAX).then(|| (ticked + Nanos(every)).since(clock::now()))
    }

    /// The background thread's sleep. `taken`: somebody else drives. `ticked`: when the links were told the time.
    fn sleep(&self, taken: bool, ticked: Nanos) -> io::Result<()> {
        // Who drives in another mode arms the bell when it leaves: no limit is needed.
        let polled = self.waiting == Waiting::Polling && (taken || self.lent.load(Ordering::SeqCst));
        let tick = self.next_tick(ticked);
        if polled {
            // Whoever drives polls the sockets: their events would wake this thread for nothing, on the same core.
            return self.watch.sleep_until_nudged(Some(LENT.min(tick.unwrap_or(LENT))));
        }
        self.watch.sleep(tick)
    }
}
