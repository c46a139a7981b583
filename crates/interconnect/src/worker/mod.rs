//! A worker: the links of one share of the partitions, the service that handles their messages, and
//! the threads that drive them.
//!
//! **The token.** Everything in a worker is used by one thread at a time, the holder of its
//! [token]. Two kinds of threads take it. One is the worker's background thread ([`Worker::run`]).
//! The others are local threads that submit a task or [wait] for an answer; they poll the links
//! themselves, so their answers cost no wake-up.
//!
//! **No wake-up is lost.** A thread that releases the token ([`Shared::let_go`]) first arms the
//! bell, then looks again for anything that could have come, and then unlocks. The unlock fails if
//! a woken thread was turned away meanwhile. `token.rs` argues why that is enough, and loom checks
//! it.
//!
//! **Wake-ups.** Arrivals wake the background thread, unless a waiting thread sits in the worker's
//! [seat](watch): then they wake that thread only. An answer wakes the thread that waits for it,
//! wherever it sleeps (`signal.rs`).
//!
//! **Lending.** Where threads poll, a local thread that has its answer does not arm the bell: it
//! will be back at once, and a ring would only wake the background thread on its own core. It
//! *lends* the worker ([`Shared::lend_or_leave`]). A lent worker is attended by every thread that
//! waits, by every eighth [visit], by each visit that finds work, and now and then by a thread that
//! needs no worker ([`Worker::attend`]). The background thread looks every [`LENT`]; it takes over
//! if no thread has attended the worker since.
//!
//! **Leaving the worker to other threads.** If other threads wait for answers and are awake, the
//! thread that has its answer leaves the worker to them ([`Shared::leave_to_others`]). It arms
//! nothing and looks at nothing, and messages of visitors go out with theirs. The waiting threads
//! are counted, and the last one does not go before it has taken a token that was left
//! ([`Token::go`]).
//!
//! **Giving way.** A background thread that polls gives the token up when a local thread wants it
//! (`wanted`), which saves a hand-over of the answer. A local thread that polls goes on while
//! others only wait for answers, since it brings them theirs. It gives way to a thread that must
//! have the token itself (`claimed`). No waiting thread drives before the claimant had its turn,
//! except the last one before it would sleep.
//!
//! **The clock.** The background thread wakes, or checks the clock while it drives, at the shortest
//! interval that any link wants (`tick_every`). It then sets `tick_due`, and the driver tells the
//! links the time in its next turn.

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
    os::fd::AsFd,
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
    token::{HeldToken, Token},
    turn::WorkerCore,
    watch::Watch,
};
use crate::{
    LinkInfo, Net, Service, Signal,
    executor::{self, Descriptor, DescriptorSet, Driven},
    link::{self, NewRail},
    spin::{Contention, Courtesy, Spinner},
    sync::lock,
};

/// The capacity of the task queue: one task for each local thread is enough. A thread that finds
/// the queue full waits.
const TASKS: usize = 4096;

/// Turns of a polling local thread between two checks whether another claims the token.
const TURNS_BETWEEN_CLAIMS: u32 = 64;

/// Turns of the background thread between two readings of the clock.
const TURNS_BETWEEN_CLOCKS: u32 = 64;

/// The shortest interval between two ticks of links, whatever their probe interval: operating
/// systems count in milliseconds.
const SHORTEST_TICK: Nanos = Nanos::from_ms(2);

/// The time that a lent worker may be left alone. Where threads poll and the last driver stays
/// away, a message waits at most twice as long, in either direction.
const LENT: Nanos = Nanos(250_000);

/// A worker, shared by its background thread and all threads that submit to it. Cheap to clone.
pub struct Worker<S: Service> {
    shared: Arc<Shared<S>>,
}

impl<S: Service> Clone for Worker<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

/// The parameters of a worker, besides its service.
pub struct WorkerParts {
    /// The number of this node.
    pub me: NodeId,
    /// The number of the worker on its node.
    pub id: WorkerId,
    /// The epoch that is put on every message.
    pub epoch: Epoch,
    /// The bell that wakes the worker.
    pub bell: Arc<Bell>,
    /// The way its threads wait.
    pub waiting: Waiting,
    /// The settings of its links.
    pub links: link::Settings,
    /// This node's windows, for accesses that come by message.
    pub windows: Arc<Windows>,
    /// The observer of link and rail events.
    pub events: Events,
}

/// An observer of link events. The driver of a worker calls it in the middle of a turn: it must not
/// block, and may call no method of the worker but [`Worker::add_rail`].
pub type Events = Arc<dyn Fn(LinkEvent) + Send + Sync>;

impl WorkerParts {
    /// Makes parameters for tests and benchmarks: the first worker of node `me` in the first epoch,
    /// without windows and without reconnection of rails.
    #[must_use]
    pub fn alone(me: NodeId, bell: Arc<Bell>, waiting: Waiting) -> Self {
        let (id, epoch, links, windows) = (WorkerId(0), Epoch(1), link::Settings::default(), Arc::default());
        Self { me, id, epoch, bell, waiting, links, windows, events: Arc::new(|_| ()) }
    }
}

/// A change of a link of a worker or of its rails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkEvent {
    /// The link to `peer` has its first rail.
    Up {
        /// The node at the other end.
        peer: NodeId,
        /// The worker that the link belongs to.
        worker: WorkerId,
    },
    /// A rail was lost. The link goes on, or waits for another rail until its timeout. The rail may
    /// be connected again, with a higher generation.
    RailDown {
        /// The node at the other end.
        peer: NodeId,
        /// The incarnation of the peer.
        incarnation: Incarnation,
        /// The worker that the link belongs to.
        worker: WorkerId,
        /// The number of the rail among those of the pair.
        slot: u8,
        /// The generation of the rail.
        generation: u32,
        /// The reason of the loss.
        why: Lost,
    },
    /// The link is gone for good.
    Gone {
        /// The node at the other end.
        peer: NodeId,
        /// The incarnation of the peer.
        incarnation: Incarnation,
        /// The worker that the link belonged to.
        worker: WorkerId,
        /// The reason of the loss.
        why: Lost,
    },
}

struct Shared<S: Service> {
    id: WorkerId,
    links: link::Settings,
    windows: Arc<Windows>,
    events: Events,
    infos: Mutex<BTreeMap<NodeId, LinkInfo>>,
    token: Token<WorkerCore<S>>,
    tasks: ArrayQueue<S::Task>,
    controls: Mutex<Controls>,
    controlled: AtomicBool,
    bell: Arc<Bell>,
    watch: Watch,
    /// A local thread wants the background thread to give way.
    wanted: AtomicBool,
    /// A local thread wants all others to give way: only it can do its work.
    claimed: AtomicBool,
    stopping: AtomicBool,
    /// No thread drives and the bell is not armed: a local thread will be back.
    lent: AtomicBool,
    /// Changes each time that a polling local thread has attended the worker.
    attended: AtomicU32,
    /// The shortest interval, in nanoseconds, at which a link wants to know the time; `u64::MAX` if
    /// none does.
    tick_every: AtomicU64,
    /// True when it is time to tell the links the time.
    tick_due: AtomicBool,
    contention: Contention,
    waiting: Waiting,
}

/// Rare requests of the rest of the node that the worker has not handled yet.
#[derive(Default)]
struct Controls {
    waiting: Vec<Control>,
    /// True once the worker's background thread has ended; then requests are dropped.
    ended: bool,
}

/// A rare request of the rest of the node to a worker.
enum Control {
    Rail(LinkInfo, NewRail),
    Drop(NodeId, Incarnation),
}

impl<S: Service> Worker<S> {
    /// Makes a worker without links; [`Worker::run`] is its background thread.
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
                token: Token::new(WorkerCore::new(service, Net::new(me, id, epoch, MAX_NODES))),
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
                contention: Contention::default(),
                waiting,
            }),
        })
    }

    /// Queues a task behind those that wait and makes sure that it is handled. It does not wait for
    /// that.
    pub fn submit(&self, task: S::Task) {
        self.push(task);
        self.shared.see_to_tasks();
    }

    /// Queues a request of a task of the calling thread. The thread sees to it when all its tasks
    /// wait. A thread that runs no tasks submits it.
    pub fn request(&self, task: S::Task) {
        if executor::is_running() {
            self.push(task);
            executor::asked(&self.shared);
        } else {
            self.submit(task);
        }
    }

    /// Notes that a task of the calling thread waits for an answer to a request that the worker
    /// has: the thread drives the worker while all its tasks wait.
    pub fn expect_answer(&self) {
        if executor::is_running() {
            executor::asked(&self.shared);
        }
    }

    /// Adds a descriptor to those that the threads of this worker watch, for a task of the calling
    /// thread, which drives the worker while all its tasks wait.
    ///
    /// # Errors
    /// The system cannot watch it.
    pub fn descriptor<F: AsFd>(&self, file: F) -> io::Result<Descriptor<F>> {
        let (arrivals, readiness) = self.shared.watch.descriptors();
        let descriptor = Descriptor::new(arrivals, readiness, file)?;
        self.expect_answer();
        Ok(descriptor)
    }

    /// Makes a set for the descriptors of a thread, which the threads of this worker watch while
    /// that thread waits.
    ///
    /// # Errors
    /// The system has no room for it.
    pub fn descriptor_set(&self) -> io::Result<DescriptorSet> {
        let (arrivals, readiness) = self.shared.watch.descriptors();
        DescriptorSet::new(arrivals, readiness)
    }

    /// Submits a task if the queue has room, and wakes the thread that is to handle it. It never
    /// drives or waits, so a handler of another worker may call it. Returns false if there was no
    /// room.
    pub fn offer(&self, task: S::Task) -> bool {
        let taken = self.shared.tasks.push(task).is_ok();
        self.shared.bell.ring();
        taken
    }

    /// Queues a task for the next driver of the worker without a wake-up: [`Worker::wait`] follows.
    pub fn push(&self, mut task: S::Task) {
        while let Err(refused) = self.shared.tasks.push(task) {
            task = refused;
            self.shared.bell.ring();
            thread::yield_now();
        }
    }

    #[cfg(test)]
    pub(crate) fn watches_descriptors(&self) -> bool {
        self.shared.watch.has_descriptors()
    }

    /// Attends the worker if no other thread does and something waits. Threads that got by without
    /// the worker call it for the sake of their peers. It costs next to nothing when nothing waits.
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

    /// Runs `act` on the worker as soon as the token is free, after all links are dropped that were
    /// to be dropped before. Ordinary threads may hold the token, so real-time threads must not
    /// call this: they would never get past them.
    pub fn with<R>(&self, act: impl FnOnce(&mut S, &mut Net) -> R) -> R {
        let shared = &*self.shared;
        let mut core = shared.take();
        // A message of `act` must wait for the next link instead of ending with a dropped one.
        core.take_controls(shared);
        let core_ref = &mut *core;
        let result = act(&mut core_ref.service, &mut core_ref.net);
        core.turn(shared);
        shared.leave(core, &mut None);
        result
    }

    /// Drives the worker without ever sleeping until `act`, called after every turn, returns a
    /// result. It yields to other threads when nothing comes for a while.
    ///
    /// Benchmarks use this to measure the links without any hand-over between threads.
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

    /// Gives the worker a rail to `peer` in this `incarnation`. The first rail makes the link and
    /// ends one to another incarnation. The rail replaces an older generation in its slot. `path`
    /// describes its two ends in reports. A rail is dropped once [`Worker::run`] has ended, or if
    /// the link to its incarnation is gone.
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
        // The rail is visible in reports before the worker has handled it.
        info.connected(&new);
        self.control(Control::Rail(info, new));
    }

    /// Returns every link that is or was up.
    #[must_use]
    pub fn links(&self) -> Vec<LinkInfo> {
        lock(&self.shared.infos).values().cloned().collect()
    }

    /// Drops the link to this incarnation of `peer`, if there is one. To the service it looks like
    /// the peer's death.
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

    /// Returns the bell that wakes the worker, for sources of work for [`Service::turn`].
    #[must_use]
    pub fn bell(&self) -> &Arc<Bell> {
        &self.shared.bell
    }

    /// Lets an untrusted client wake the worker by `event` instead of the bell. The client first
    /// looks at the bell's [`Notice`](plexus_fabric::Notice).
    ///
    /// # Errors
    /// The system refused to watch the event.
    pub fn listen(&self, event: Event) -> io::Result<Listening> {
        self.shared.watch.listen(event)
    }

    /// Makes [`Worker::run`] return.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.watch.nudge();
    }

    /// Runs the background thread: it sleeps, and drives the worker when something arrives and no
    /// other thread drives.
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
        // Peers see the end of a node that stops within a process as they see the end of the
        // process.
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

impl<S: Service> Driven for Shared<S> {
    fn drive(&self, signal: &Signal, until: Option<Nanos>) {
        self.wait(signal, until);
    }

    fn see_to_tasks(&self) {
        match self.token.try_take() {
            Some(mut core) => {
                core.turn(self);
                self.leave(core, &mut None);
            }
            None => {
                self.bell.ring();
            }
        }
    }
}

impl<S: Service> Shared<S> {
    /// Takes the token for a thread that cannot do without it.
    fn take(&self) -> HeldToken<'_, WorkerCore<S>> {
        loop {
            if let Some(core) = self.token.try_take() {
                // Other claimants set the flag again.
                self.claimed.store(false, Ordering::Relaxed);
                return core;
            }
            self.wanted.store(true, Ordering::Relaxed);
            self.claimed.store(true, Ordering::Relaxed);
            thread::yield_now();
        }
    }

    /// Drives from the background thread for as long as there is work, and a little longer.
    fn spin(&self, core: &mut WorkerCore<S>, ticked: &mut Nanos) {
        let mut spinner = Spinner::new(self.waiting, &self.contention);
        let mut turns = 0u32;
        if core.turn(self) == 0 && self.waiting != Waiting::Polling {
            // The clock woke it, or another thread has handled the work.
            return;
        }
        while !self.wanted.load(Ordering::Relaxed) && !self.stopping.load(Ordering::Relaxed) {
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS_BETWEEN_CLOCKS) {
                self.look_at_clock(ticked);
                // A thread that finds work or polls does not sleep, and sees no descriptors then.
                if self.watch.has_descriptors() {
                    self.watch.harvest();
                }
            }
            if core.turn(self) > 0 {
                spinner.reset();
            } else if !spinner.again(self.token.standing()) {
                return;
            }
        }
    }

    /// Sets `tick_due` when the links need the time; `ticked` is when they last got it.
    fn look_at_clock(&self, ticked: &mut Nanos) {
        if self.next_tick(*ticked) == Some(Nanos(0)) {
            *ticked = clock::now();
            self.tick_due.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the time until the next tick of the links after `ticked`; `None` if no link wants
    /// one.
    fn next_tick(&self, ticked: Nanos) -> Option<Nanos> {
        let every = self.tick_every.load(Ordering::Relaxed);
        (every != u64::MAX).then(|| (ticked + Nanos(every)).since(clock::now()))
    }

    /// Sleeps as the background thread. `taken`: another thread drives. `ticked`: the links' last
    /// tick.
    fn sleep(&self, taken: bool, ticked: Nanos) -> io::Result<()> {
        // In another mode the driver arms the bell when it leaves: no limit is needed.
        let polled = self.waiting == Waiting::Polling && (taken || self.lent.load(Ordering::SeqCst));
        let tick = self.next_tick(ticked);
        if polled {
            // The driver polls the sockets: their events would wake this thread for nothing, on the
            // same core.
            return self.watch.sleep_until_nudged(Some(LENT.min(tick.unwrap_or(LENT))));
        }
        self.watch.sleep(tick)
    }
}
