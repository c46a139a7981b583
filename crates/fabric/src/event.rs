//! What a thread sleeps on until another one signals: an event descriptor.
//!
//! Guarantees: signalling never blocks; a signal that was given before the sleep ends it at once; many that nobody has taken yet
//! are one. It must not know who sleeps, or why.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
};

/// See the module. Readable while a signal is there: for poll and for epoll, level- or edge-triggered.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// An event without a signal.
    ///
    /// # Errors
    /// No descriptors.
    pub fn create() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// One that somebody else has made; it must not block.
    pub(crate) fn from_peer(event: OwnedFd) -> Self {
        Self(event)
    }

    /// Wakes who sleeps on it, now or next.
    pub fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // A counter that somebody filled refuses; who sleeps on edges wakes only when it changes.
        if rustix::io::write(&self.0, &one) == Err(Errno::AGAIN) {
            self.clear();
            let _ = rustix::io::write(&self.0, &one);
        }
    }

    /// Takes the signal, if there is one.
    pub fn clear(&self) {
        // That it was there is all that it says.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
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
    fn signals_wait_for_the_sleeper_and_are_taken_together() {
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

    #[test]
    fn a_counter_that_somebody_filled_wakes_who_sleeps_on_edges() {
        let event = Event::create().unwrap();
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, &event, epoll::EventData::new_u64(0), edge).unwrap();
        let wakes = || {
            let mut events = [const { std::mem::MaybeUninit::uninit() }; 1];
            epoll::wait(&set, &mut events, Some(&Timespec::default())).unwrap().0.len()
        };
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert_eq!((wakes(), wakes()), (1, 0));
        event.signal();
        assert_eq!((wakes(), wakes()), (1, 0));
    }
}
