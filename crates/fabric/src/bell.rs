//! The doorbell of a worker: how it is woken when it sleeps, at no cost while it does not.
//!
//! A worker that found nothing to do arms its [`Bell`], looks at all its rails once more ([`Rail::pending`]),
//! and sleeps in epoll on [`Bell::fd`]. A sender that has published frames looks whether the bell is armed,
//! and only then makes the system call. The order of these steps, and why none may be left out, is in
//! `handover.rs`.
//!
//! [`Rail::pending`]: crate::Rail::pending
#![allow(unsafe_code, reason = "the armed word lies in memory shared with peers")]

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use rustix::{fs::OFlags, io::Errno};

use crate::{
    Event, handover,
    memory::{Memory, SetupError},
};

/// One page; its first word is the armed word, the rest is empty.
const PAGE_LEN: usize = 4096;

/// The bell of a worker of ours. Any thread may ring it; one arms it.
#[derive(Debug)]
pub struct Bell {
    page: Memory,
    page_fd: OwnedFd,
    event: Event,
}

/// A peer's bell.
#[derive(Debug)]
pub struct PeerBell {
    page: Memory,
    event: Event,
}

fn armed(page: &Memory) -> &AtomicU32 {
    // SAFETY: the page is mapped as long as it is borrowed, aligned, and this word is only ever used as an
    // atomic.
    unsafe { AtomicU32::from_ptr(page.start().as_ptr().cast()) }
}

impl Bell {
    /// A bell, not armed.
    ///
    /// # Errors
    /// No memory or no descriptors.
    pub fn create() -> Result<Self, SetupError> {
        let (page, page_fd) = Memory::create("doorbell", PAGE_LEN)?;
        let event = Event::create().map_err(|source| SetupError::System {
            what: "doorbell",
            doing: "create an event descriptor",
            bytes: PAGE_LEN as u64,
            source,
        })?;
        Ok(Self { page, page_fd, event })
    }

    /// Before sleeping: asks senders to ring. Then look at all rails once more before the sleep itself.
    pub fn arm(&self) {
        handover::arm(armed(&self.page));
    }

    /// After waking: senders need not ring any more.
    pub fn disarm(&self) {
        handover::disarm(armed(&self.page));
    }

    /// Readable when rung: for epoll, level- or edge-triggered. Also the event descriptor to hand to peers.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// The page descriptor to hand to peers together with [`Bell::fd`].
    #[must_use]
    pub fn page_fd(&self) -> BorrowedFd<'_> {
        self.page_fd.as_fd()
    }

    /// Makes [`Bell::fd`] unreadable again until the next ring.
    pub fn drain(&self) {
        self.event.clear();
    }

    /// Whether the next ring would wake the owner. A hint: it may be rung at any time.
    #[must_use]
    #[inline]
    pub fn is_armed(&self) -> bool {
        armed(&self.page).load(Relaxed) != 0
    }

    /// Wakes the owner whether it has armed itself or not: for what it cannot see by looking at its rails.
    pub fn wake(&self) {
        self.event.signal();
    }

    /// Wakes the worker if it sleeps, from a thread of this process that left it something to do. Whether it
    /// slept.
    pub fn ring(&self) -> bool {
        let asleep = handover::claim(armed(&self.page));
        if asleep {
            self.event.signal();
        }
        asleep
    }
}

impl PeerBell {
    /// Maps the page of a peer's bell and takes its event descriptor.
    ///
    /// # Errors
    /// The page is not a sealed page, or the descriptor cannot be made non-blocking.
    pub fn map(page: BorrowedFd<'_>, event: OwnedFd) -> Result<Self, SetupError> {
        let page = Memory::map("doorbell", page, PAGE_LEN as u64)?;
        let refused = |source: io::Error| SetupError::System {
            what: "doorbell",
            doing: "use the event descriptor of the peer",
            bytes: 8,
            source,
        };
        // A write to it must never block us. It is ours from birth in an honest peer; a pipe or socket is
        // refused.
        let flags = rustix::fs::fcntl_getfl(&event).map_err(|errno: Errno| refused(errno.into()))?;
        if !flags.contains(OFlags::NONBLOCK) || !is_eventfd(&event) {
            return Err(refused(io::Error::other("it is not a non-blocking eventfd")));
        }
        Ok(Self { page, event: Event::from_peer(event) })
    }

    /// After publishing a batch: wakes the peer if it sleeps. Costs a fence and a load; whether it slept.
    #[inline]
    pub fn ring_if_armed(&self) -> bool {
        let asleep = handover::claim(armed(&self.page));
        if asleep {
            self.event.signal();
        }
        asleep
    }
}

/// Whether it is an eventfd, as far as that can be seen: where `/proc` is not mounted, everything is.
fn is_eventfd(fd: &OwnedFd) -> bool {
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .map_or(true, |target| target.as_os_str().as_encoded_bytes().starts_with(b"anon_inode:[eventfd]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(bell: &Bell) -> bool {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(bell.fd(), rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::time::Timespec::default())).unwrap() == 1
    }

    #[test]
    fn only_an_armed_bell_rings_and_only_once() {
        let bell = Bell::create().unwrap();
        let peer = PeerBell::map(bell.page_fd(), bell.fd().try_clone_to_owned().unwrap()).unwrap();
        assert!(!peer.ring_if_armed() && !bell.ring() && !readable(&bell));
        bell.arm();
        assert!(peer.ring_if_armed() && !peer.ring_if_armed() && !bell.ring() && readable(&bell));
        bell.drain();
        assert!(!readable(&bell));
        bell.arm();
        bell.disarm();
        assert!(!peer.ring_if_armed() && !readable(&bell));
    }

    #[test]
    fn what_is_no_event_descriptor_is_refused() {
        let bell = Bell::create().unwrap();
        let (_read, write) = rustix::pipe::pipe().unwrap();
        assert!(PeerBell::map(bell.page_fd(), write).is_err());
        let (_read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        assert!(PeerBell::map(bell.page_fd(), write).is_err());
    }
}
