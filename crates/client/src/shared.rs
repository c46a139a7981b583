//! The shared state of an attachment's handles, and how their threads wait.
//!
//! One lock guards the state. Its owner looks at the rings and files what has arrived
//! ([`ClientCore::turn`]). A waiting thread first polls and releases the lock between its looks.
//! Then one waiting thread arms the notice and sleeps in the system (the *sleeper*); the others
//! sleep until a thread files something. They are woken by each thread that has filed something,
//! and by a sleeper that returns. Each looks for itself, and the next one that finds nothing
//! becomes the sleeper. Therefore at any time either a thread is awake or the notice is armed.
//!
//! A program may also wait for the descriptor of the attachment outside of any call
//! ([`Shared::arm`]), while its threads wait in calls. The node rings only once: the sleeper
//! consumes the ring and handles the messages for all. So a returning sleeper also signals a thread
//! that waits outside. A thread that is about to wait outside leaves the ring and the notice to the
//! sleeper, if there is one.
//!
//! A node that is killed closes the socket; a node that stands still, or is cut off from its
//! cluster, lets its lease end. Each call notices both within a tick of the coarse clock
//! ([`Shared::look_at_node`]), and no thread sleeps past the end of the lease.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use plexus_base::Waiting;
use plexus_fabric::{Event, Notice, SeenWindow, SeenWord};
use rustix::{
    event::{PollFd, PollFlags, epoll, poll},
    time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
        timerfd_create, timerfd_settime,
    },
};

use crate::{Error, attach::AttachmentParts, core::ClientCore, wire::hello::Welcome};

/// The time for which a thread polls without a pause.
const SPINNING: Duration = Duration::from_micros(3);

/// The time for which it then yields between its looks; it is about the cost of a wake-up.
const YIELDING: Duration = Duration::from_micros(50);

/// The number of looks between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 16;

/// The mark of the socket in the node's epoll set.
const SOCKET: u64 = 1;

/// The reason with which an attachment ends when the lease of its node is over.
const LEASE_OVER: &str = "the lease of the node is over, so it has ended, stands still or is cut off";

pub(crate) struct Shared {
    core: Mutex<ClientCore>,
    filed: Condvar,
    notice: Notice,
    socket: OwnedFd,
    gone: Arc<AtomicBool>,
    /// The node's wake-up event and the socket as one descriptor.
    wake_up: OwnedFd,
    /// Signals a thread that waits outside that a sleeper consumed the ring.
    outside_signal: Event,
    /// Signals a thread that waits outside that the lease is over, unless it was renewed.
    lease_timer: OwnedFd,
    /// All three as one descriptor, for a thread that waits outside.
    outside: OwnedFd,
    /// The end of the node's lease, as a time of `CLOCK_BOOTTIME` in nanoseconds.
    lease: SeenWord,
    pub(crate) arena: SeenWindow,
    pub(crate) welcome: Welcome,
}

impl Shared {
    pub(crate) fn new(parts: AttachmentParts) -> Result<Self, Error> {
        let AttachmentParts { welcome, pipes, notice, wake_up, lease, arena, socket, gone } = parts;
        let failed = |source| Error::System { what: "create an epoll set or a timer", source };
        let watch = |set: &OwnedFd, fd: BorrowedFd<'_>, mark| {
            epoll::add(set, fd, epoll::EventData::new_u64(mark), epoll::EventFlags::IN)
                .map_err(|errno| failed(errno.into()))
        };
        watch(&wake_up, socket.as_fd(), SOCKET)?;
        let outside = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let outside_signal = Event::create().map_err(failed)?;
        watch(&outside, wake_up.as_fd(), 0)?;
        watch(&outside, outside_signal.as_fd(), 0)?;
        let lease_timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)
            .map_err(|errno| failed(errno.into()))?;
        watch(&outside, lease_timer.as_fd(), 0)?;
        let core = Mutex::new(ClientCore::new(pipes));
        Ok(Self {
            core,
            filed: Condvar::new(),
            notice,
            socket,
            gone,
            wake_up,
            outside_signal,
            lease_timer,
            outside,
            lease,
            arena,
            welcome,
        })
    }

    fn lock(&self) -> MutexGuard<'_, ClientCore> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and sends the resulting messages. It never sleeps. If the node does not
    /// make room soon, the next call sends the rest.
    pub(crate) fn act<R>(&self, act: impl FnOnce(&mut ClientCore) -> R) -> R {
        let mut core = self.lock();
        core.begin();
        let result = act(&mut core);
        core.flush();
        // The next call that waits reports the end of the node.
        let _ = self.drain(core, Waiting::Polling, Some(YIELDING));
        result
    }

    /// Changes the state as [`Shared::act`] does. Fails if the node has ended.
    pub(crate) fn request<R>(
        &self,
        act: impl FnOnce(&mut ClientCore) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.act(|core| {
            self.look_at_node(core);
            match &core.ended {
                Some(why) => Err(Error::NodeLost(why.clone())),
                None => act(core),
            }
        })
    }

    /// Receives and then reads the state. Fails if the node has ended.
    pub(crate) fn see<R>(&self, see: impl FnOnce(&ClientCore) -> R) -> Result<R, Error> {
        let mut core = self.lock();
        core.begin();
        self.ask_system(&mut core);
        self.turn(&mut core);
        let result = core.ended.clone().map_or_else(|| Ok(see(&core)), |why| Err(Error::NodeLost(why)));
        core.flush();
        let _ = self.drain(core, Waiting::Polling, Some(YIELDING));
        result
    }

    /// Waits up to `limit` until `look` returns a value; `None` waits forever. With
    /// `Duration::ZERO` it looks once.
    pub(crate) fn wait<R>(
        &self,
        waiting: Waiting,
        limit: Option<Duration>,
        mut look: impl FnMut(&mut ClientCore) -> Option<R>,
    ) -> Result<R, Error> {
        let mut core = self.lock();
        core.begin();
        let (core, found) = self.watch(core, waiting, limit, &mut look)?;
        let _ = self.drain(core, Waiting::Polling, Some(YIELDING));
        Ok(found)
    }

    /// Waits like [`Shared::wait`] until `say` has sent something, and then until it is in the
    /// rings, so that no later call is needed. Returns at the latest after `limit`.
    pub(crate) fn say<R>(
        &self,
        waiting: Waiting,
        limit: Option<Duration>,
        mut say: impl FnMut(&mut ClientCore) -> Option<R>,
    ) -> Result<R, Error> {
        let start = limit.filter(|limit| !limit.is_zero()).map(|_| Instant::now());
        let mut core = self.lock();
        core.begin();
        let (core, said) = self.watch(core, waiting, limit, &mut say)?;
        let gone = start.map_or(Duration::ZERO, |start| start.elapsed());
        match self.drain(core, waiting, limit.map(|limit| limit.saturating_sub(gone))) {
            Err(Error::NodeLost(why)) => Err(Error::NodeLost(why)),
            _ => Ok(said),
        }
    }

    /// Waits up to `limit` until all queued messages are in the rings.
    fn drain<'a>(
        &'a self,
        core: MutexGuard<'a, ClientCore>,
        waiting: Waiting,
        limit: Option<Duration>,
    ) -> Result<(), Error> {
        if !core.is_blocked() {
            return Ok(());
        }
        let drained = self.watch(core, waiting, limit, &mut |core| {
            core.flush();
            (!core.is_blocked()).then_some(())
        });
        drained.map(drop)
    }

    fn watch<'a, R>(
        &'a self,
        mut core: MutexGuard<'a, ClientCore>,
        waiting: Waiting,
        limit: Option<Duration>,
        look: &mut impl FnMut(&mut ClientCore) -> Option<R>,
    ) -> Result<(MutexGuard<'a, ClientCore>, R), Error> {
        if let (_, Some(found)) = self.look(&mut core, look)? {
            return Ok((core, found));
        }
        if limit == Some(Duration::ZERO) {
            return Err(Error::TimedOut);
        }
        let start = Instant::now();
        // A limit that overflows the clock is no limit.
        let end = limit.and_then(|limit| start.checked_add(limit));
        let (mut idle_since, mut looks) = (start, 0_u32);
        loop {
            looks = looks.wrapping_add(1);
            if waiting != Waiting::Event && !looks.is_multiple_of(LOOKS_PER_CLOCK) {
                drop(core);
                std::hint::spin_loop();
            } else {
                let now = Instant::now();
                if end.is_some_and(|end| now >= end) {
                    return Err(Error::TimedOut);
                }
                let idle = now - idle_since;
                match waiting {
                    Waiting::Polling => {
                        drop(core);
                        thread::yield_now();
                    }
                    Waiting::Adaptive if idle < YIELDING => {
                        drop(core);
                        if idle > SPINNING {
                            thread::yield_now();
                        }
                    }
                    Waiting::Adaptive | Waiting::Event => {
                        self.sleep(core, end.map(|end| end - now));
                        idle_since = Instant::now();
                    }
                }
            }
            core = self.lock();
            match self.look(&mut core, look)? {
                (_, Some(found)) => return Ok((core, found)),
                (true, None) => idle_since = Instant::now(),
                (false, None) => {}
            }
        }
    }

    /// Receives, calls `look`, and sends the resulting messages. Returns whether messages arrived,
    /// and the value of `look`.
    fn look<R>(
        &self,
        core: &mut ClientCore,
        look: &mut impl FnMut(&mut ClientCore) -> Option<R>,
    ) -> Result<(bool, Option<R>), Error> {
        self.look_at_node(core);
        let arrived = self.turn(core) > 0;
        let found = look(core);
        core.flush();
        match (&found, &core.ended) {
            (None, Some(why)) => return Err(Error::NodeLost(why.clone())),
            (Some(_), _) if core.waiters > 0 => self.filed.notify_all(),
            _ => {}
        }
        Ok((arrived, found))
    }

    fn turn(&self, core: &mut ClientCore) -> usize {
        let done = core.turn();
        if done > 0 && core.waiters > 0 {
            self.filed.notify_all();
        }
        done
    }

    /// Sleeps until something may have arrived, or for `left`.
    fn sleep(&self, mut core: MutexGuard<'_, ClientCore>, left: Option<Duration>) {
        if core.sleeper {
            core.waiters += 1;
            let mut core = match left {
                Some(left) => self.filed.wait_timeout(core, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.filed.wait(core).unwrap_or_else(PoisonError::into_inner),
            };
            core.waiters -= 1;
            return;
        }
        self.notice.arm();
        if core.pending() {
            return self.end_sleep(&mut core);
        }
        core.sleeper = true;
        drop(core);
        let lease = self.lease_left();
        self.take_wake_up(Some(left.map_or(lease, |left| left.min(lease))));
        let mut core = self.lock();
        core.sleeper = false;
        self.look_at_lease(&mut core);
        self.end_sleep(&mut core);
        if core.waiters > 0 {
            // One of them may have to become the sleeper.
            self.filed.notify_all();
        }
    }

    /// Disarms the notice, and signals a thread that waits outside.
    fn end_sleep(&self, core: &mut ClientCore) {
        self.notice.disarm();
        if std::mem::take(&mut core.outside) {
            core.outside_signalled = true;
            self.outside_signal.signal();
        }
    }

    /// Waits up to `left` for a wake-up and consumes it.
    fn take_wake_up(&self, left: Option<Duration>) {
        let mut events = [const { MaybeUninit::uninit() }; 2];
        // A time that the system cannot represent is endless.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // An interruption counts as a wake-up.
        let Ok((ready, _)) = epoll::wait(&self.wake_up, &mut events, left.as_ref()) else { return };
        if ready.iter().any(|event| event.data.u64() == SOCKET) {
            self.gone.store(true, Ordering::Release);
        }
    }

    /// Notices the end of the node, or of its lease. The first look in each tick of the coarse
    /// clock, a few milliseconds long, asks the system; the others only read the clock.
    #[inline]
    fn look_at_node(&self, core: &mut ClientCore) {
        let tick = clock_gettime(ClockId::MonotonicCoarse);
        let tick = (tick.tv_sec, tick.tv_nsec);
        if core.tick != tick {
            core.tick = tick;
            self.ask_system(core);
        }
    }

    /// Looks at the socket and the lease. If the socket has ended, files what the node sent before.
    fn ask_system(&self, core: &mut ClientCore) {
        let mut events = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0) {
            self.gone.store(true, Ordering::Release);
            while self.turn(core) > 0 {}
        }
        self.look_at_lease(core);
    }

    /// Ends the attachment if the lease of the node is over. The node can do nothing then, and
    /// others may do its work.
    fn look_at_lease(&self, core: &mut ClientCore) {
        if core.ended.is_none() && self.lease_left().is_zero() {
            core.ended = Some(LEASE_OVER.into());
        }
    }

    /// Returns the time until the lease of the node ends, unless it is renewed.
    fn lease_left(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
        Duration::from_nanos(self.lease.load()).saturating_sub(now)
    }

    /// Makes [`Shared::fd`] readable at the end of the lease that the node has now.
    fn arm_lease(&self) {
        // A time of 0 would disarm the timer.
        let end = Duration::from_nanos(self.lease.load().max(1));
        let Ok(end) = Timespec::try_from(end) else { return };
        let timer = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: end };
        // Any time is valid.
        let _ = timerfd_settime(&self.lease_timer, TimerfdTimerFlags::ABSTIME, &timer);
    }

    /// Returns the descriptor of [`crate::Client::fd`].
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.outside.as_fd()
    }

    /// Arms the descriptor for [`crate::Client::arm`].
    pub(crate) fn arm(&self) -> bool {
        let mut core = self.lock();
        core.begin();
        if std::mem::take(&mut core.outside_signalled) {
            self.outside_signal.clear();
        }
        if !core.sleeper {
            self.take_wake_up(Some(Duration::ZERO));
        }
        core.flush();
        self.look_at_lease(&mut core);
        self.arm_lease();
        self.notice.arm();
        core.outside = true;
        if core.has_events() || core.pending() || core.ended.is_some() {
            core.outside = false;
            if !core.sleeper {
                self.notice.disarm();
            }
            return false;
        }
        true
    }
}
