//! The epoll sets that a worker's threads sleep on, and the rules for which of them an arrival
//! wakes.
//!
//! All wake-up sources of a worker (its bell, the sockets of its rails) are in one epoll set, the
//! *arrivals*. Two kinds of threads sleep on it: the worker's background thread, and a local thread
//! that waits for an answer. If both slept on it both would be woken. If only the background thread
//! did, an answer would cost two wake-ups one after the other.
//!
//! So there is a *seat*: arrivals wake only the local thread that has it. The background thread
//! sleeps on an outer set that holds the arrivals and a bell of its own (the *nudge*). While the
//! seat is taken the arrivals are muted there, which is one system call and wakes no thread.
//!
//! A thread also takes the seat while it polls rails that have sockets. Otherwise their events
//! would wake the background thread for messages that are handled already.
//!
//! These rules ensure that no wake-up is lost:
//! - The seat is taken with the token only. Arrivals are taken off the set by the thread in the
//!   seat, or with the token while the seat is free; so no thread takes the wake-up of another.
//! - A thread that took something off the set takes the token and looks at everything, or notes
//!   that it was turned away ([`Token::try_woken`](super::token::Token::try_woken)). It does so
//!   even if its own answer is there.
//! - The seat is given back by unmuting: what has arrived since then wakes the background thread.
//! - A seat that was [left](Seat::leave) belongs to the token. Arrivals stay muted, and no thread
//!   takes them off before a driver takes the seat over ([`Watch::take_over_seat`]). No thread
//!   sleeps on them either: the token was left to threads that are awake, or it is taken. A driver
//!   that releases the token otherwise takes the seat over first.
//!
//! Untrusted clients ring by events of their own, which are in the arrivals too
//! ([`Watch::listen`]). This module never reads or writes such an event. Its owner may fill, drain
//! or block it; each write is one arrival at most, and the arrivals of others stay theirs. The
//! event is removed from the set explicitly, since the owner may keep it open.
//!
//! All events are edge-triggered, so nothing needs to be read from the bell. An edge on the
//! arrivals is an edge on the outer set too, even when the one before it was not taken off.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
};

use plexus_base::{Nanos, clock};
use plexus_fabric::{Bell, Event};
use rustix::{
    event::{PollFd, PollFlags, epoll},
    fs::Timespec,
    io::Errno,
};

use crate::executor::Readiness;

/// The mark of the bell in the sets; links mark their sockets by their peer, descriptors of tasks
/// have marks of their own.
const BELL: u64 = u64::MAX;
const NUDGE: u64 = 1;
const ARRIVALS: u64 = 2;

/// The most events taken off at once; the rest comes with the next look.
const EVENTS: usize = 32;

/// The epoll sets of a worker and the state of its seat.
pub(super) struct Watch {
    arrivals: Arc<OwnedFd>,
    outer: OwnedFd,
    nudge: Event,
    seated: AtomicBool,
    readiness: Arc<Readiness>,
}

/// An event by which a client wakes a worker, until this is dropped.
pub struct Listening {
    arrivals: Arc<OwnedFd>,
    event: Event,
}

impl Drop for Listening {
    fn drop(&mut self) {
        // It names two descriptors of ours, so it does not fail.
        let removed = epoll::delete(&self.arrivals, &self.event);
        debug_assert!(removed.is_ok(), "{removed:?}");
    }
}

/// The seat of a worker; given back when dropped.
pub(super) struct Seat<'a>(&'a Watch);

impl Watch {
    pub(super) fn new(bell: &Bell) -> io::Result<Self> {
        let set = || epoll::create(epoll::CreateFlags::CLOEXEC);
        let (arrivals, outer) = (set()?, set()?);
        let nudge = Event::create()?;
        epoll::add(&arrivals, bell.fd(), epoll::EventData::new_u64(BELL), EDGE)?;
        epoll::add(&outer, &nudge, epoll::EventData::new_u64(NUDGE), epoll::EventFlags::IN)?;
        epoll::add(&outer, &arrivals, epoll::EventData::new_u64(ARRIVALS), EDGE)?;
        Ok(Self {
            arrivals: Arc::new(arrivals),
            outer,
            nudge,
            seated: AtomicBool::new(false),
            readiness: Arc::default(),
        })
    }

    /// Returns the set that rails add their sockets to.
    pub(super) fn arrivals(&self) -> BorrowedFd<'_> {
        self.arrivals.as_fd()
    }

    /// Returns the set, to which tasks add descriptors, and the readiness of these.
    pub(super) fn descriptors(&self) -> (&Arc<OwnedFd>, &Arc<Readiness>) {
        (&self.arrivals, &self.readiness)
    }

    /// Wakes the sleeping thread each time that `event` is signalled; there is nothing to take off
    /// it.
    pub(super) fn listen(&self, event: Event) -> io::Result<Listening> {
        epoll::add(&self.arrivals, &event, epoll::EventData::new_u64(BELL), EDGE)?;
        Ok(Listening { arrivals: Arc::clone(&self.arrivals), event })
    }

    /// Returns whether tasks wait for descriptors.
    #[inline]
    pub(super) fn has_descriptors(&self) -> bool {
        self.readiness.is_used()
    }

    /// Takes the seat if it is free. Requires the token.
    pub(super) fn sit(&self) -> Option<Seat<'_>> {
        let taken =
            self.seated.load(Relaxed) || self.seated.compare_exchange(false, true, AcqRel, Relaxed).is_err();
        if taken {
            return None;
        }
        self.mute(true);
        Some(Seat(self))
    }

    /// Takes over the seat that was [left](Seat::leave) with the token. Requires the token, and
    /// works once.
    pub(super) fn take_over_seat(&self) -> Seat<'_> {
        debug_assert!(self.seated.load(Relaxed), "the seat was left");
        Seat(self)
    }

    /// Takes arrivals off the set, unless the seat is taken. Returns whether there were any.
    /// Requires the token; the caller must look at everything afterwards.
    pub(super) fn harvest(&self) -> bool {
        !self.seated.load(Acquire) && self.take_off(Some(Nanos(0)))
    }

    /// Sleeps as the background thread, until an arrival, a nudge, or `limit`.
    pub(super) fn sleep(&self, limit: Option<Nanos>) -> io::Result<()> {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 2];
        let timeout = limit.map(timespec);
        let nudged = match epoll::wait(&self.outer, &mut events, timeout.as_ref()) {
            Ok((events, _)) => events.iter().any(|event| event.data.u64() == NUDGE),
            Err(Errno::INTR) => false,
            Err(error) => return Err(error.into()),
        };
        if nudged {
            self.nudge.clear();
        }
        Ok(())
    }

    /// Sleeps until a nudge or `limit`, while another thread polls everything else.
    pub(super) fn sleep_until_nudged(&self, limit: Option<Nanos>) -> io::Result<()> {
        let mut nudge = [PollFd::new(&self.nudge, PollFlags::IN)];
        match rustix::event::poll(&mut nudge, limit.map(timespec).as_ref()) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => self.nudge.clear(),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Wakes the background thread.
    pub(super) fn nudge(&self) {
        self.nudge.signal();
    }

    fn mute(&self, mute: bool) {
        let flags = if mute { epoll::EventFlags::empty() } else { EDGE };
        // It names two descriptors of ours, so it does not fail. A failure would only wake one more
        // thread.
        let changed = epoll::modify(&self.outer, &self.arrivals, epoll::EventData::new_u64(ARRIVALS), flags);
        debug_assert!(changed.is_ok(), "{changed:?}");
    }

    /// Waits for arrivals and takes them off. Returns whether there were any.
    fn take_off(&self, limit: Option<Nanos>) -> bool {
        let mut limit = limit.map(timespec);
        let mut any = false;
        loop {
            let mut events = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
            let Ok((events, _)) = epoll::wait(&self.arrivals, &mut events, limit.as_ref()) else {
                return any;
            };
            events.iter().for_each(|event| self.readiness.note(event.data.u64(), event.flags));
            any |= !events.is_empty();
            // All links are looked at after any event, but each descriptor needs its own.
            if events.len() < EVENTS || !self.readiness.is_used() {
                return any;
            }
            limit = Some(timespec(Nanos(0)));
        }
    }
}

const EDGE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);

impl Seat<'_> {
    /// Sleeps until something arrives, or until a time. The caller must look at everything
    /// afterwards.
    pub(super) fn sleep(&self, until: Option<Nanos>) {
        self.0.take_off(until.map(|until| until.since(clock::now())));
    }

    /// Leaves the seat to the next holder of the token, which takes it over by
    /// [`Watch::take_over_seat`].
    pub(super) fn leave(self) {
        std::mem::forget(self);
    }

    /// Takes arrivals off the set as [`Watch::harvest`] does. Returns whether there were any.
    pub(super) fn harvest(&self) -> bool {
        self.0.take_off(Some(Nanos(0)))
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        // In this order: the next thread in the seat must not find the arrivals unmuted.
        self.0.mute(false);
        self.0.seated.store(false, Release);
    }
}

fn timespec(limit: Nanos) -> Timespec {
    Timespec { tv_sec: (limit.0 / 1_000_000_000) as i64, tv_nsec: (limit.0 % 1_000_000_000) as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> (Watch, Bell) {
        let bell = Bell::create().unwrap();
        (Watch::new(&bell).unwrap(), bell)
    }

    /// Returns whether the background thread would be woken now.
    fn wakes(watch: &Watch) -> bool {
        let mut outer = [PollFd::new(&watch.outer, PollFlags::IN)];
        let woken = rustix::event::poll(&mut outer, Some(&Timespec::default())).unwrap() == 1;
        watch.sleep(Some(Nanos(0))).unwrap();
        woken
    }

    #[test]
    fn an_arrival_wakes_only_the_thread_in_the_seat() {
        let (watch, bell) = watch();
        bell.wake();
        assert!(wakes(&watch) && !wakes(&watch), "once");
        bell.wake();
        assert!(wakes(&watch), "though the first was not taken off");
        assert!(watch.harvest() && !watch.harvest());

        let seat = watch.sit().unwrap();
        assert!(watch.sit().is_none(), "one seat");
        bell.wake();
        assert!(!wakes(&watch) && !watch.harvest());
        seat.sleep(None);
        assert!(!seat.harvest(), "taken off by the sleep");
        watch.nudge();
        assert!(wakes(&watch), "a nudge comes through");
    }

    #[test]
    fn a_client_event_harms_no_other_source() {
        let (watch, bell) = watch();
        let event = Event::create().unwrap();
        let theirs = event.as_fd().try_clone_to_owned().unwrap();
        let listening = watch.listen(event).unwrap();
        let write = |count: u64| rustix::io::write(&theirs, &count.to_ne_bytes());
        write(1).unwrap();
        assert!(
            wakes(&watch) && watch.harvest() && !wakes(&watch),
            "one ring, one arrival, though no thread took it"
        );
        // From now on a read or write of it would block.
        rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::empty()).unwrap();
        write(u64::MAX - 2).unwrap();
        assert!(wakes(&watch) && watch.harvest() && !watch.harvest() && !wakes(&watch));
        bell.wake();
        assert!(wakes(&watch) && watch.harvest(), "others are heard");
        // Arrivals of others survive when the owner takes its own back unseen.
        write(0).unwrap();
        bell.wake();
        rustix::io::read(&theirs, &mut [0; 8]).unwrap();
        assert!(wakes(&watch) && watch.harvest());
        drop(listening);
        write(1).unwrap();
        assert!(!wakes(&watch) && !watch.harvest(), "not heard any more, though it was kept");
    }

    #[test]
    fn an_arrival_before_the_seat_is_given_back_wakes_the_background_thread() {
        let (watch, bell) = watch();
        let seat = watch.sit().unwrap();
        bell.wake();
        drop(seat);
        assert!(wakes(&watch) && watch.harvest());
        drop(watch.sit().unwrap());
        assert!(!wakes(&watch));
    }
}
