//! What all handles of one attachment share, and how their threads wait.
//!
//! There is one lock. Who holds it looks at the rings and files what has come ([`Core::turn`]). A thread that
//! waits looks for a while, letting go of the lock in between; then one of the waiting threads arms the notice and sleeps (the
//! *sleeper*), and the others sleep until somebody files something. Whoever has filed something, and a sleeper that
//! leaves, wakes them: each looks for itself, and the next to find nothing becomes the sleeper. So whatever comes, either
//! somebody is awake to see it or the notice is armed.
//!
//! A program may also wait for the descriptor of the attachment, outside of any call ([`Shared::arm`]), while threads of it wait in calls. A ring is
//! there once: a sleeper takes it off, and sees to what it announced for all. So a sleeper that leaves also tells whoever waits
//! outside; and who is about to wait there leaves the ring and the notice to the sleeper, if there is one.

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
use plexus_fabric::{Event, Notice, SeenWindow};
use rustix::{
    event::{PollFd, PollFlags, epoll, poll},
    time::Timespec,
};

use crate::{Error, attach::Parts, core::Core, wire::hello::Welcome};

/// How long a thread looks without a pause.
const BUSY: Duration = Duration::from_micros(3);

/// How long it goes on giving way to others between its looks: about what a wake-up costs.
const GIVING_WAY: Duration = Duration::from_micros(50);

/// Looks between two at the clock.
const LOOKS: u32 = 16;

/// Looks of all threads together between two at the socket, for who never sleeps: the end of a node that was killed
/// shows there and nowhere else. The system call is then a small part of a nanosecond for each look.
const LOOKS_AT_SOCKET: u32 = 1 << 10;

/// The mark of the socket in the epoll set from the node.
const SOCKET: u64 = 1;

pub(crate) struct Shared {
    core: Mutex<Core>,
    filed: Condvar,
    notice: Notice,
    socket: OwnedFd,
    gone: Arc<AtomicBool>,
    /// What the node wakes us by, and the socket, as one descriptor.
    ear: OwnedFd,
    /// Tells who waits outside that a sleeper was woken instead.
    told: Event,
    /// The two as one descriptor, for who waits outside.
    outside: OwnedFd,
    pub(crate) arena: SeenWindow,
    pub(crate) welcome: Welcome,
}

impl Shared {
    pub(crate) fn new(parts: Parts) -> Result<Self, Error> {
        let Parts { welcome, pipes, notice, ear, arena, socket, gone } = parts;
        let failed = |source| Error::System { what: "an epoll set", source };
        let watch = |set: &OwnedFd, fd: BorrowedFd<'_>, mark| {
            epoll::add(set, fd, epoll::EventData::new_u64(mark), epoll::EventFlags::IN)
                .map_err(|errno| failed(errno.into()))
        };
        watch(&ear, socket.as_fd(), SOCKET)?;
        let outside = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let told = Event::create().map_err(failed)?;
        watch(&outside, ear.as_fd(), 0)?;
        watch(&outside, told.as_fd(), 0)?;
        let core = Mutex::new(Core::new(pipes));
        Ok(Self { core, filed: Condvar::new(), notice, socket, gone, ear, told, outside, arena, welcome })
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with what is known, and sends what it leads to. Never sleeps: where the node does not make room soon,
    /// whoever is in a call next sends the rest.
    pub(crate) fn act<R>(&self, act: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        core.begin();
        let result = act(&mut core);
        core.flush();
        self.empty(core, Waiting::Polling, Some(GIVING_WAY));
        result
    }

    /// Takes what has come, and looks at what is known then; also whether the node is there.
    pub(crate) fn see<R>(&self, see: impl FnOnce(&Core) -> R) -> Result<R, Error> {
        self.look_at_socket();
        let mut core = self.lock();
        core.begin();
        self.turn(&mut core);
        let result = core.ended.clone().map_or_else(|| Ok(see(&core)), |why| Err(Error::NodeLost(why)));
        core.flush();
        self.empty(core, Waiting::Polling, Some(GIVING_WAY));
        result
    }

    /// Waits up to `limit` (`None`: without end) until `look` finds what it looks for. With a limit of no time that is one look,
    /// and none at the clock.
    pub(crate) fn wait<R>(
        &self,
        waiting: Waiting,
        limit: Option<Duration>,
        mut look: impl FnMut(&mut Core) -> Option<R>,
    ) -> Result<R, Error> {
        let mut core = self.lock();
        core.begin();
        let (core, found) = self.watch(core, waiting, limit, &mut look)?;
        self.empty(core, Waiting::Polling, Some(GIVING_WAY));
        Ok(found)
    }

    /// The same for who says something once there is room for it: returns when that is in the rings, where it does not need
    /// anybody to come back, or when the limit has passed.
    pub(crate) fn say<R>(
        &self,
        waiting: Waiting,
        limit: Option<Duration>,
        mut say: impl FnMut(&mut Core) -> Option<R>,
    ) -> Result<R, Error> {
        let start = limit.filter(|limit| !limit.is_zero()).map(|_| Instant::now());
        let mut core = self.lock();
        core.begin();
        let (core, said) = self.watch(core, waiting, limit, &mut say)?;
        let gone = start.map_or(Duration::ZERO, |start| start.elapsed());
        self.empty(core, waiting, limit.map(|limit| limit.saturating_sub(gone)));
        Ok(said)
    }

    /// Waits up to `limit` until everything that was said is in the rings.
    fn empty<'a>(&'a self, core: MutexGuard<'a, Core>, waiting: Waiting, limit: Option<Duration>) {
        if core.is_blocked() {
            // An end of the node is said by the next call that waits for something.
            let _ = self.watch(core, waiting, limit, &mut |core| {
                core.flush();
                (!core.is_blocked()).then_some(())
            });
        }
    }

    fn watch<'a, R>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        waiting: Waiting,
        limit: Option<Duration>,
        look: &mut impl FnMut(&mut Core) -> Option<R>,
    ) -> Result<(MutexGuard<'a, Core>, R), Error> {
        if let (_, Some(found)) = self.look(&mut core, look)? {
            return Ok((core, found));
        }
        if limit == Some(Duration::ZERO) {
            return Err(Error::TimedOut);
        }
        let start = Instant::now();
        // A limit beyond all time is none.
        let end = limit.and_then(|limit| start.checked_add(limit));
        let (mut idle_since, mut looks) = (start, 0_u32);
        loop {
            looks = looks.wrapping_add(1);
            if waiting != Waiting::Event && !looks.is_multiple_of(LOOKS) {
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
                    Waiting::Adaptive if idle < GIVING_WAY => {
                        drop(core);
                        if idle > BUSY {
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

    /// Takes what has come, looks, and sends what that leads to. Whether something had come, and what was found.
    fn look<R>(
        &self,
        core: &mut Core,
        look: &mut impl FnMut(&mut Core) -> Option<R>,
    ) -> Result<(bool, Option<R>), Error> {
        core.looks = core.looks.wrapping_add(1);
        if core.looks.is_multiple_of(LOOKS_AT_SOCKET) {
            self.look_at_socket();
        }
        let news = self.turn(core) > 0;
        let found = look(core);
        core.flush();
        match (&found, &core.ended) {
            (None, Some(why)) => return Err(Error::NodeLost(why.clone())),
            (Some(_), _) if core.waiters > 0 => self.filed.notify_all(),
            _ => {}
        }
        Ok((news, found))
    }

    fn turn(&self, core: &mut Core) -> usize {
        let done = core.turn();
        if done > 0 && core.waiters > 0 {
            self.filed.notify_all();
        }
        done
    }

    /// Sleeps until something may have come, or for `left`.
    fn sleep(&self, mut core: MutexGuard<'_, Core>, left: Option<Duration>) {
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
            return self.awake(&mut core);
        }
        core.sleeper = true;
        drop(core);
        self.hear(left);
        let mut core = self.lock();
        core.sleeper = false;
        self.awake(&mut core);
        if core.waiters > 0 {
            // One of them may have to sleep in its place.
            self.filed.notify_all();
        }
    }

    /// Has the node ring for nobody any more; who waits outside looks for itself.
    fn awake(&self, core: &mut Core) {
        self.notice.disarm();
        if std::mem::take(&mut core.outside) {
            core.told = true;
            self.told.signal();
        }
    }

    /// Waits up to `left` to be woken, and takes off what wakes us.
    fn hear(&self, left: Option<Duration>) {
        let mut events = [const { MaybeUninit::uninit() }; 2];
        // A time that the system cannot name is beyond all others.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // An interruption is a wake-up like any other.
        let Ok((heard, _)) = epoll::wait(&self.ear, &mut events, left.as_ref()) else { return };
        if heard.iter().any(|event| event.data.u64() == SOCKET) {
            self.gone.store(true, Ordering::Release);
        }
    }

    fn look_at_socket(&self) {
        let mut events = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0) {
            self.gone.store(true, Ordering::Release);
        }
    }

    /// See [`crate::Client::fd`].
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.outside.as_fd()
    }

    /// See [`crate::Client::arm`].
    pub(crate) fn arm(&self) -> bool {
        let mut core = self.lock();
        core.begin();
        if std::mem::take(&mut core.told) {
            self.told.clear();
        }
        if !core.sleeper {
            self.hear(Some(Duration::ZERO));
        }
        core.flush();
        self.notice.arm();
        core.outside = true;
        if core.has_news() || core.pending() || core.ended.is_some() {
            core.outside = false;
            if !core.sleeper {
                self.notice.disarm();
            }
            return false;
        }
        true
    }
}
