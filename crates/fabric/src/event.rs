//! An event descriptor on which a thread sleeps until another one signals it.
//!
//! Guarantees: signalling never blocks; a signal given before the sleep ends it at once; several
//! signals that were not yet cleared count as one. This module does not know which thread sleeps,
//! or why.
//!
//! The blocking mode and the counter of an eventfd belong to every process that holds it. So an
//! eventfd that was handed to an untrusted process is only watched here, never signalled or
//! cleared. An untrusted process that is to be signalled gets a [`watch_fd`](Event::watch_fd),
//! which sees the signals and cannot change the event.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{EventfdFlags, epoll, eventfd},
    fs::OFlags,
    io::Errno,
};

/// An event descriptor: readable while it is signalled, for poll and for epoll, level- or
/// edge-triggered.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// Creates an event that is not signalled.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn create() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Takes over an event of a peer that is trusted not to change its mode.
    ///
    /// # Errors
    /// The descriptor is not an eventfd, or signalling it may block.
    pub fn from_peer(event: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&event)?;
        if !flags.contains(OFlags::NONBLOCK) || !is_eventfd(&event) {
            return Err(io::Error::other("it is not a non-blocking eventfd"));
        }
        Ok(Self(event))
    }

    /// Returns a descriptor to hand out, readable from each signal until that is cleared.
    ///
    /// It is an epoll set in which this event has the token 0. Its holder may add descriptors to
    /// the set, but can neither clear this event nor change its mode.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn watch_fd(&self) -> io::Result<OwnedFd> {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&watch, &self.0, epoll::EventData::new_u64(0), edges)?;
        Ok(watch)
    }

    /// Wakes the thread that sleeps on the event, or ends its next sleep at once.
    pub fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // // An untrusted holder may have filled the counter, so that the write fails. An
        // edge-triggered sleeper wakes only when the counter changes.
        if rustix::io::write(&self.0, &one) == Err(Errno::AGAIN) {
            self.clear();
            let _ = rustix::io::write(&self.0, &one);
        }
    }

    /// Clears the signal, if there is one.
    pub fn clear(&self) {
        // The count itself carries no information.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// Returns true if the descriptor is an eventfd; always true where `/proc` is not mounted.
fn is_eventfd(fd: &OwnedFd) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .map_or(true, |target| target.as_os_str().as_encoded_bytes().starts_with(b"anon_inode:[eventfd]"))
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::{
        event::{PollFd, PollFlags, epoll, poll},
        time::Timespec,
    };

    use super::*;

    #[test]
    fn signals_wait_for_the_sleeper_and_are_cleared_together() {
        let event = Event::create().unwrap();
        let is_there =
            || poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&Timespec::default())) == Ok(1);
        assert!(!is_there());
        event.signal();
        event.signal();
        assert!(is_there());
        event.clear();
        event.clear();
        assert!(!is_there());
    }

    fn taken_off(set: &OwnedFd) -> usize {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 1];
        epoll::wait(set, &mut events, Some(&Timespec::default())).unwrap().0.len()
    }

    #[test]
    fn a_watch_fd_sees_each_signal_once_and_changes_nothing() {
        let event = Event::create().unwrap();
        let watch = event.watch_fd().unwrap();
        assert_eq!(taken_off(&watch), 0);
        for _ in 0..3 {
            event.signal();
            assert_eq!(poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&Timespec::default())), Ok(1));
            assert_eq!((taken_off(&watch), taken_off(&watch)), (1, 0));
        }
        rustix::fs::fcntl_setfl(&watch, OFlags::empty()).unwrap();
        assert!(rustix::io::write(&watch, &1u64.to_ne_bytes()).is_err());
        assert!(rustix::io::read(&watch, &mut [0; 8]).is_err());
        assert!(rustix::fs::fcntl_getfl(&event).unwrap().contains(OFlags::NONBLOCK));
        assert!(epoll::delete(&watch, &watch).is_err());
    }

    #[test]
    fn signalling_a_full_counter_wakes_an_edge_triggered_sleeper() {
        let event = Event::create().unwrap();
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, &event, epoll::EventData::new_u64(0), edge).unwrap();
        let wakes = || taken_off(&set);
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert_eq!((wakes(), wakes()), (1, 0));
        event.signal();
        assert_eq!((wakes(), wakes()), (1, 0));
    }
}
