//! What a thread sleeps on until another one signals: an event descriptor.
//!
//! Guarantees: signalling never blocks; a signal that was given before the sleep ends it at once; many that nobody has taken yet
//! are one. It must not know who sleeps, or why.
//!
//! What a descriptor does, block or not, belongs to all who hold it, and so does the counter. So one that was handed to
//! somebody who is not trusted is never signalled or cleared here, only watched; and who is to be signalled is handed an
//! [`ear`](Event::ear), which hears and can do nothing to what it hears.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{EventfdFlags, epoll, eventfd},
    fs::OFlags,
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

    /// One that somebody else has made, who is trusted not to change it.
    ///
    /// # Errors
    /// It is no event descriptor, or signalling it may block.
    pub fn from_peer(event: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&event)?;
        if !flags.contains(OFlags::NONBLOCK) || !is_eventfd(&event) {
            return Err(io::Error::other("it is not a non-blocking eventfd"));
        }
        Ok(Self(event))
    }

    /// A descriptor to hand out that becomes readable with each signal until that is taken off: an epoll set, in which this
    /// event has the mark 0. Who has it may watch more with it, but can neither take signals from this event nor change how it behaves.
    ///
    /// # Errors
    /// No descriptors.
    pub fn ear(&self) -> io::Result<OwnedFd> {
        let ear = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&ear, &self.0, epoll::EventData::new_u64(0), edges)?;
        Ok(ear)
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

/// Whether it is an eventfd, as far as that can be seen: where `/proc` is not mounted, everything is.
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

    fn taken_off(set: &OwnedFd) -> usize {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 1];
        epoll::wait(set, &mut events, Some(&Timespec::default())).unwrap().0.len()
    }

    #[test]
    fn an_ear_hears_each_signal_once_and_changes_nothing() {
        let event = Event::create().unwrap();
        let ear = event.ear().unwrap();
        assert_eq!(taken_off(&ear), 0);
        for _ in 0..3 {
            event.signal();
            assert_eq!(poll(&mut [PollFd::new(&ear, PollFlags::IN)], Some(&Timespec::default())), Ok(1));
            assert_eq!((taken_off(&ear), taken_off(&ear)), (1, 0));
        }
        rustix::fs::fcntl_setfl(&ear, OFlags::empty()).unwrap();
        assert!(rustix::io::write(&ear, &1u64.to_ne_bytes()).is_err());
        assert!(rustix::io::read(&ear, &mut [0; 8]).is_err());
        assert!(rustix::fs::fcntl_getfl(&event).unwrap().contains(OFlags::NONBLOCK));
        assert!(epoll::delete(&ear, &ear).is_err());
    }

    #[test]
    fn a_counter_that_somebody_filled_wakes_who_sleeps_on_edges() {
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
