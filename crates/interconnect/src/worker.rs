//! A worker: the links of one partition share, the service that handles their messages, and who drives them.
//!
//! **The token.** Everything in a worker is used by one thread at a time, the holder of its token ([`Shared::core`],
//! a mutex that is only ever *tried*). Two sorts of threads take it: the worker's background thread, woken by
//! the bell or by a socket; and a local thread that waits for an answer ([`Worker::wait`]), which polls
//! the links itself, so that its answer costs no wake-up.
//!
//! **No wake-up is lost.** Who lets go of the token ([`Shared::leave`]) first arms the bell, then looks again at
//! everything that could have come, and then unlocks. Peers and local threads publish first and look at the bell
//! afterwards, with a sequentially consistent fence on both sides, so one of the two sees the other. One gap
//! remains: the bell wakes the background thread while the leaver still holds the token. The background thread
//! therefore sets `missed` before it tries; the leaver looks at `missed` after it unlocked, and comes back.
//!
//! **Lending.** Where threads poll, a local thread that has its answer does not arm the bell: it will be back at once,
//! and a ring would only wake the background thread on its own core. It *lends* the worker to whoever comes next
//! ([`Shared::lend_or_leave`]); every use of the worker, and now and then one that needs none ([`Worker::attend`]), counts as a visit.
//! The background thread looks every [`LENT_US`]; when nobody has visited since, it takes over.
//!
//! **Who gives way.** A background thread that polls gives the token up when a local thread wants it (`wanted`): it
//! would only be another hand between the answer and who waits for it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU32, Ordering, fence},
    },
    thread,
};

use crossbeam_queue::ArrayQueue;
use plexus_base::{Epoch, NodeId, Waiting, WorkerId};
use plexus_fabric::{Bell, Lost, Rail};
use rustix::event::{PollFd, PollFlags, epoll};

use crate::{Net, Service, Signal, inbox::Inbox, link::Link, service::LinkInfo, spin::Spinner};

/// Tasks that may wait for a worker; who finds the queue full waits. One for each local thread is enough.
const TASKS: usize = 4096;

/// Tasks handled before the links get their turn.
const TASKS_PER_TURN: usize = 64;

/// How often a leaver serves what came meanwhile before it leaves that to the background thread.
const TURNS_WHEN_LEAVING: usize = 4;

/// A link that waits for room in a ring looks again after this long: freed room rings no bell.
const BLOCKED_MS: i64 = 1;

/// How long a lent worker may be left unvisited, in microseconds: the longest that a message waits where threads poll
/// and the one that drove last stays away.
const LENT_US: i64 = 1000;

/// The bell's mark in the epoll set; links are marked by their peer.
const BELL: u64 = u64::MAX;

/// A worker, shared by its background thread and everyone who submits to it. Cheap to clone.
pub struct Worker<S: Service> {
    shared: Arc<Shared<S>>,
}

impl<S: Service> Clone for Worker<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

struct Shared<S: Service> {
    core: Mutex<Core<S>>,
    tasks: ArrayQueue<S::Task>,
    controls: Mutex<Vec<Control>>,
    controlled: AtomicBool,
    bell: Arc<Bell>,
    epoll: OwnedFd,
    missed: AtomicBool,
    wanted: AtomicBool,
    stopping: AtomicBool,
    /// Nobody drives, and the bell is not armed: a local thread will be back.
    lent: AtomicBool,
    /// Somebody in [`Worker::drive`] polls without ever sleeping.
    driven: AtomicBool,
    /// Changes with every visit of a local thread.
    visits: AtomicU32,
    waiting: Waiting,
}

struct Core<S> {
    service: S,
    net: Net,
    inbox: Inbox,
}

/// How a worker was left.
#[derive(PartialEq, Eq)]
enum Left {
    /// Nothing to do, and the bell announces whatever comes.
    Quiet,
    /// Frames wait for room in a ring, which no bell announces: look again soon.
    Blocked,
    /// More kept coming than a leaver should serve: look again at once.
    Busy,
}

/// What the rest of the node asks of a worker, rarely.
enum Control {
    Link(NodeId, Box<dyn Rail>, Arc<crate::link::LinkCounters>),
    Drop(NodeId),
}

impl<S: Service> Worker<S> {
    /// A worker without links; [`Worker::run`] is its background thread.
    ///
    /// # Errors
    /// The system gave no epoll set.
    pub fn new(
        me: NodeId,
        id: WorkerId,
        epoch: Epoch,
        nodes: usize,
        bell: Arc<Bell>,
        waiting: Waiting,
        service: S,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, bell.fd(), epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        let core = Core { service, net: Net::new(me, id, epoch, nodes), inbox: Inbox::default() };
        Ok(Self {
            shared: Arc::new(Shared {
                core: Mutex::new(core),
                tasks: ArrayQueue::new(TASKS),
                controls: Mutex::default(),
                controlled: AtomicBool::new(false),
                bell,
                epoll,
                missed: AtomicBool::new(false),
                wanted: AtomicBool::new(false),
                stopping: AtomicBool::new(false),
                lent: AtomicBool::new(false),
                driven: AtomicBool::new(false),
                visits: AtomicU32::new(0),
                waiting,
            }),
        })
    }

    /// Hands a task in and sees to it that somebody handles it; does not wait for that.
    pub fn submit(&self, task: S::Task) {
        self.push(task);
        match self.shared.try_token() {
            Some(mut core) => {
                core.turn(&self.shared);
                self.shared.leave(core);
            }
            None => {
                self.shared.bell.ring();
            }
        }
    }

    /// Hands a task in for whoever drives the worker next, waking nobody: [`Worker::wait`] follows.
    pub fn push(&self, mut task: S::Task) {
        while let Err(refused) = self.shared.tasks.push(task) {
            task = refused;
            self.shared.bell.ring();
            thread::yield_now();
        }
    }

    /// Waits until `signal` is set, driving the worker meanwhile if nobody else does; its answer.
    ///
    /// The signal must be the calling thread's.
    pub fn wait(&self, signal: &Signal) -> u64 {
        let shared = &*self.shared;
        let mut spinner = Spinner::new(shared.waiting);
        loop {
            if let Some(answer) = signal.take() {
                return answer;
            }
            let look_again = if let Some(mut core) = shared.try_token() {
                shared.bell.disarm();
                let look_again = loop {
                    let done = core.turn(shared);
                    if signal.is_set() {
                        break true;
                    }
                    if done > 0 {
                        spinner.reset();
                    } else if !spinner.again() {
                        break false;
                    }
                };
                shared.lend_or_leave(core);
                look_again
            } else {
                // Whoever drives may have looked at the tasks already and be about to sleep.
                shared.wanted.store(true, Ordering::Relaxed);
                shared.bell.ring();
                spinner.again()
            };
            if !look_again {
                signal.park();
            }
        }
    }

    /// Looks after the worker if nobody else does and something waits for it: for threads that got by without it
    /// and whose peers may wait meanwhile. Costs next to nothing when nothing waits.
    #[inline]
    pub fn attend(&self) {
        let shared = &*self.shared;
        if shared.waiting != Waiting::Polling && shared.bell.is_armed() {
            return;
        }
        if let Some(mut core) = shared.try_token() {
            core.turn(shared);
            shared.lend_or_leave(core);
        }
    }

    /// Runs `act` on the worker itself, as soon as the token can be had.
    pub fn with<R>(&self, act: impl FnOnce(&mut S, &mut Net) -> R) -> R {
        let shared = &*self.shared;
        loop {
            if let Some(mut core) = shared.try_token() {
                let core_ref = &mut *core;
                let result = act(&mut core_ref.service, &mut core_ref.net);
                core.turn(shared);
                shared.leave(core);
                return result;
            }
            shared.wanted.store(true, Ordering::Relaxed);
            thread::yield_now();
        }
    }

    /// Drives the worker without ever sleeping until `act`, called after every turn, answers.
    ///
    /// This is how a benchmark measures the links without any hand-over between threads.
    pub fn drive<R>(&self, mut act: impl FnMut(&mut S, &mut Net) -> Option<R>) -> R {
        let shared = &*self.shared;
        let mut core = loop {
            if let Some(core) = shared.try_token() {
                break core;
            }
            shared.wanted.store(true, Ordering::Relaxed);
            thread::yield_now();
        };
        shared.bell.disarm();
        shared.driven.store(true, Ordering::Relaxed);
        let result = loop {
            let core_ref = &mut *core;
            let result = act(&mut core_ref.service, &mut core_ref.net);
            core.turn(shared);
            if let Some(result) = result {
                break result;
            }
        };
        shared.driven.store(false, Ordering::Relaxed);
        shared.leave(core);
        result
    }

    /// Gives the worker a link to `peer` over `rail`.
    pub fn add_link(&self, peer: NodeId, rail: Box<dyn Rail>) -> LinkInfo {
        let counters = Arc::<crate::link::LinkCounters>::default();
        let info = LinkInfo {
            peer,
            worker: self.with(|_, net| net.worker()),
            rail: rail.kind(),
            counters: counters.clone(),
        };
        self.control(Control::Link(peer, rail, counters));
        info
    }

    /// Takes the link to `peer` away; the service learns it like the peer's death.
    pub fn drop_link(&self, peer: NodeId) {
        self.control(Control::Drop(peer));
    }

    fn control(&self, control: Control) {
        lock(&self.shared.controls).push(control);
        self.shared.controlled.store(true, Ordering::Release);
        self.shared.bell.wake();
    }

    /// What wakes it: to be handed to those who bring work for [`Service::turn`].
    #[must_use]
    pub fn bell(&self) -> &Arc<Bell> {
        &self.shared.bell
    }

    /// Ends [`Worker::run`].
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.bell.wake();
    }

    /// The background thread: sleeps, and drives the worker when something arrives and nobody else does.
    ///
    /// # Errors
    /// The epoll set failed.
    pub fn run(&self) -> io::Result<()> {
        let shared = &*self.shared;
        let mut events = Vec::with_capacity(32);
        // The first turn needs no event: links may have been added before.
        let mut left = Left::Busy;
        let mut visits = 0;
        let mut taken = false;
        while !shared.stopping.load(Ordering::Acquire) {
            if left != Left::Busy {
                shared.sleep(&mut events, left == Left::Blocked, taken)?;
            }
            taken = false;
            left = Left::Quiet;
            if shared.lent.load(Ordering::SeqCst) {
                let visited = shared.visits.load(Ordering::Relaxed);
                if std::mem::replace(&mut visits, visited) != visited {
                    continue;
                }
            }
            shared.missed.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let Some(mut core) = shared.try_token() else {
                taken = true;
                continue;
            };
            shared.bell.disarm();
            shared.lent.store(false, Ordering::SeqCst);
            shared.wanted.store(false, Ordering::Relaxed);
            let mut spinner = Spinner::new(shared.waiting);
            loop {
                if core.turn(shared) > 0 {
                    spinner.reset();
                } else if !spinner.again() {
                    break;
                }
                if shared.wanted.load(Ordering::Relaxed) || shared.stopping.load(Ordering::Relaxed) {
                    break;
                }
            }
            left = shared.let_go(core);
        }
        // Peers see the end of a node that stops within a process as they see the end of the process.
        self.with(|_, net| net.links.iter_mut().for_each(|link| *link = None));
        Ok(())
    }
}

impl<S: Service> Shared<S> {
    /// The background thread's sleep. `blocked`: something must be looked at again soon. `taken`: somebody else drives.
    fn sleep(&self, events: &mut Vec<epoll::Event>, blocked: bool, taken: bool) -> io::Result<()> {
        let lent = self.lent.load(Ordering::SeqCst);
        let timeout_us = if blocked { Some(BLOCKED_MS * 1000) } else { (lent || taken).then_some(LENT_US) };
        let timeout = timeout_us.map(|us| rustix::fs::Timespec { tv_sec: 0, tv_nsec: us * 1000 });
        let polled = self.waiting == Waiting::Polling || self.driven.load(Ordering::Relaxed);
        if polled && (lent || taken) {
            // Whoever drives polls the sockets: their events would wake this thread for nothing, on the same core.
            let mut bell = [PollFd::from_borrowed_fd(self.bell.fd(), PollFlags::IN)];
            match rustix::event::poll(&mut bell, timeout.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => self.bell.drain(),
                Err(error) => return Err(error.into()),
            }
            return Ok(());
        }
        events.clear();
        // Who drives in another mode arms the bell when it leaves: no limit is needed.
        let timeout = if taken && !blocked && !lent { None } else { timeout };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if events.iter().any(|event| event.data.u64() == BELL) {
            self.bell.drain();
        }
        Ok(())
    }

    #[inline]
    fn try_token(&self) -> Option<MutexGuard<'_, Core<S>>> {
        match self.core.try_lock() {
            Ok(core) => {
                self.missed.store(false, Ordering::Relaxed);
                Some(core)
            }
            Err(TryLockError::WouldBlock) => None,
            // A panic while driving is a defect of ours: the worker's state cannot be trusted any more.
            Err(TryLockError::Poisoned(_)) => panic!("a worker was poisoned by an earlier panic"),
        }
    }

    /// A local thread that will be back lets go of the token.
    fn lend_or_leave(&self, core: MutexGuard<'_, Core<S>>) {
        if self.waiting != Waiting::Polling {
            return self.leave(core);
        }
        self.visits.fetch_add(1, Ordering::Relaxed);
        let first = !self.lent.load(Ordering::Relaxed) && !self.lent.swap(true, Ordering::SeqCst);
        drop(core);
        if first {
            // The background thread sleeps without a limit.
            self.bell.wake();
        }
    }

    /// A local thread lets go of the token. What it cannot leave to peers' bells it leaves to the background
    /// thread: only that one can sleep for a while and look again.
    fn leave(&self, core: MutexGuard<'_, Core<S>>) {
        if self.let_go(core) != Left::Quiet {
            self.bell.wake();
        }
    }

    /// Lets go of the token; see the module for why nothing is missed.
    fn let_go<'a>(&'a self, mut core: MutexGuard<'a, Core<S>>) -> Left {
        for _ in 0..TURNS_WHEN_LEAVING {
            self.bell.arm();
            if core.pending(self) {
                self.bell.disarm();
                core.turn(self);
                continue;
            }
            let blocked = core.net.links.iter().flatten().any(Link::blocked);
            drop(core);
            fence(Ordering::SeqCst);
            if blocked {
                return Left::Blocked;
            }
            if !self.missed.load(Ordering::SeqCst) {
                return Left::Quiet;
            }
            match self.try_token() {
                // The event that woke the background thread is used up, and a rail need not know of it in `pending`:
                // look at everything.
                Some(again) => {
                    core = again;
                    core.turn(self);
                }
                None => return Left::Quiet,
            }
        }
        Left::Busy
    }
}

impl<S: Service> Core<S> {
    /// One look at everything; how many messages and tasks were handled.
    #[inline]
    fn turn(&mut self, shared: &Shared<S>) -> usize {
        let mut done = 0;
        if shared.controlled.load(Ordering::Relaxed) {
            done += self.obey(shared);
        }
        let Self { service, net, inbox } = self;
        for peer in 0..net.links.len() {
            let Some(link) = &mut net.links[peer] else { continue };
            link.poll(inbox);
            if inbox.len() > 0 {
                done += inbox.len();
                for index in 0..inbox.len() {
                    let message = inbox.message(index);
                    let (from, kind) = (message.from, message.kind);
                    match net.take_reply(&message) {
                        Some(token) => service.reply(net, from, token, message.payload),
                        None => service.message(net, message),
                    }
                    if let Some(link) = &mut net.links[peer] {
                        link.handled(kind);
                    }
                }
                inbox.clear();
            }
        }
        for _ in 0..TASKS_PER_TURN {
            let Some(task) = shared.tasks.pop() else { break };
            service.task(net, task);
            done += 1;
        }
        done += service.turn(net);
        for peer in 0..self.net.links.len() {
            let Some(link) = &mut self.net.links[peer] else { continue };
            link.flush();
            if link.lost().is_some() {
                self.lose(peer);
                done += 1;
            }
        }
        done
    }

    #[cold]
    fn obey(&mut self, shared: &Shared<S>) -> usize {
        shared.controlled.store(false, Ordering::Relaxed);
        let controls = std::mem::take(&mut *lock(&shared.controls));
        let done = controls.len();
        for control in controls {
            match control {
                Control::Link(peer, rail, counters) => {
                    let mut link = Link::new(peer, rail, counters);
                    if let Err(error) = link.rail().register(shared.epoll.as_fd(), u64::from(peer.0)) {
                        link.fail(Lost::Closed(format!("its events cannot be waited for: {error}")));
                    }
                    self.net.links[peer.index()] = Some(link);
                    self.service.peer_up(&mut self.net, peer);
                }
                Control::Drop(peer) => {
                    if self.net.links[peer.index()].is_some() {
                        self.lose(peer.index());
                    }
                }
            }
        }
        done
    }

    #[cold]
    fn lose(&mut self, peer: usize) {
        let Some(link) = self.net.links[peer].take() else { return };
        let why = link.lost().cloned().unwrap_or_else(|| Lost::Closed("given up here".into()));
        let peer = link.peer;
        drop(link);
        for token in self.net.fail_calls(peer) {
            self.service.call_failed(&mut self.net, peer, token);
        }
        self.service.peer_gone(&mut self.net, peer, &why);
    }

    fn pending(&mut self, shared: &Shared<S>) -> bool {
        !shared.tasks.is_empty()
            || shared.controlled.load(Ordering::Acquire)
            || self.service.pending()
            || self.net.links.iter_mut().flatten().any(Link::pending)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
