//! The doorbell of a worker: wakes it when it sleeps, and costs no system call while it is awake.
//!
//! A worker that finds nothing to do arms its [`Bell`], looks at all its rails once more
//! ([`Rail::pending`]), and sleeps in epoll on [`Bell::fd`]. A sender that has published frames
//! checks whether the bell is armed, and makes the system call only if it is. `handover.rs` gives
//! the order of these steps and the reason for each.
//!
//! Trusted peers share the armed word and the event descriptor of a bell. An untrusted process gets
//! neither. It reads the bell's [`Notice`], which only the sleeper can write, and rings through an
//! event descriptor of its own, which the sleeper only watches. The worst it can do is to wake the
//! sleeper too often or to miss its own wake-ups.
//!
//! [`Rail::pending`]: crate::Rail::pending
#![allow(unsafe_code, reason = "the armed word lies in memory shared with peers")]

use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use crate::{
    Event, PublishedWord, SeenWord, handover,
    memory::{Memory, SetupError},
};

/// The length of the shared page: its first word is the armed word, the rest is unused.
const PAGE_LEN: usize = 4096;

/// The bell of a worker of this node. Any thread may ring it; one thread arms it.
#[derive(Debug)]
pub struct Bell {
    page: Memory,
    page_fd: OwnedFd,
    notice: Notice,
    event: Event,
}

/// A word of a sleeper that untrusted processes can only read: true if it wants to be woken.
#[derive(Debug)]
pub struct Notice(PublishedWord);

/// The bell of the other side.
#[derive(Debug)]
pub struct PeerBell {
    word: SleepWord,
    event: Arc<Event>,
}

/// The word that shows a sender whether the other side sleeps.
#[derive(Debug)]
enum SleepWord {
    /// The armed word, shared by all senders that ring this bell.
    Armed(Memory),
    /// The notice, and its last value for which this sender rang.
    Notice(SeenWord, Cell<u64>),
}

fn armed(page: &Memory) -> &AtomicU32 {
    // SAFETY: the page is mapped as long as it is borrowed, aligned, and this word is only ever
    // used as an atomic.
    unsafe { AtomicU32::from_ptr(page.start().as_ptr().cast()) }
}

fn refused(doing: &'static str) -> impl FnOnce(io::Error) -> SetupError {
    move |source| SetupError::System { what: "doorbell", doing, bytes: PAGE_LEN as u64, source }
}

impl Notice {
    /// Creates a notice that is not armed.
    ///
    /// # Errors
    /// No memory or no descriptor is free.
    pub fn create() -> Result<Self, SetupError> {
        PublishedWord::create("notice").map(Self)
    }

    /// Asks senders to ring. The caller then looks at everything once more before it sleeps.
    pub fn arm(&self) {
        handover::arm_notice(self.0.word());
    }

    /// Tells senders that they need not ring: the sleeper is awake.
    pub fn disarm(&self) {
        handover::disarm_notice(self.0.word());
    }

    /// The page descriptor to hand out; it permits only reading, however it is opened or mapped.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

impl Bell {
    /// Creates a bell that is not armed.
    ///
    /// # Errors
    /// No memory or no descriptor is free.
    pub fn create() -> Result<Self, SetupError> {
        let (page, page_fd) = Memory::create("doorbell", PAGE_LEN)?;
        let event = Event::create().map_err(refused("create an event descriptor"))?;
        Ok(Self { page, page_fd, notice: Notice::create()?, event })
    }

    /// Asks senders to ring. The caller then looks at all rails once more before it sleeps.
    pub fn arm(&self) {
        handover::arm(armed(&self.page), self.notice.0.word());
    }

    /// Tells senders that they need not ring: the worker is awake.
    pub fn disarm(&self) {
        handover::disarm(armed(&self.page), self.notice.0.word());
    }

    /// The event descriptor, readable when rung: for epoll, level- or edge-triggered, and to hand
    /// to trusted peers.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// The page descriptor to hand to trusted peers together with [`Bell::fd`].
    #[must_use]
    pub fn page_fd(&self) -> BorrowedFd<'_> {
        self.page_fd.as_fd()
    }

    /// The notice to hand to untrusted processes.
    #[must_use]
    pub fn notice(&self) -> &Notice {
        &self.notice
    }

    /// Makes [`Bell::fd`] unreadable until the next ring.
    pub fn drain(&self) {
        self.event.clear();
    }

    /// Returns true if the next ring would wake the owner. This is a hint: another thread may ring
    /// at any time.
    #[must_use]
    #[inline]
    pub fn is_armed(&self) -> bool {
        armed(&self.page).load(Relaxed) != 0
    }

    /// Wakes the owner even if it is not armed: for events that it cannot see by looking at its
    /// rails.
    pub fn wake(&self) {
        self.event.signal();
    }

    /// Wakes the worker if it sleeps, from a thread of this process that left it work. Returns true
    /// if it slept.
    pub fn ring(&self) -> bool {
        let asleep = handover::claim(armed(&self.page));
        if asleep {
            self.event.signal();
        }
        asleep
    }
}

impl PeerBell {
    /// Maps the page of a peer's bell and takes its event descriptor. The peer is trusted not to
    /// change either.
    ///
    /// # Errors
    /// The page is not a sealed page, or the descriptor is not a non-blocking eventfd.
    pub fn map(page: BorrowedFd<'_>, event: OwnedFd) -> Result<Self, SetupError> {
        let page = Memory::map("doorbell", page, PAGE_LEN as u64)?;
        let event = Event::from_peer(event).map_err(refused("use the event descriptor of the peer"))?;
        Ok(Self { word: SleepWord::Armed(page), event: Arc::new(event) })
    }

    /// Maps the notice of a sleeper that `event` wakes. Neither side needs to trust the other, as
    /// long as only this side can signal the event.
    ///
    /// # Errors
    /// The page is not a sealed page.
    pub fn read(notice: BorrowedFd<'_>, event: Arc<Event>) -> Result<Self, SetupError> {
        let notice = SeenWord::map("notice", notice)?;
        Ok(Self { word: SleepWord::Notice(notice, Cell::new(0)), event })
    }

    /// Wakes the peer if it sleeps; called after publishing a batch. Costs a fence and a load.
    /// Returns true if the peer slept.
    #[inline]
    pub fn ring_if_armed(&self) -> bool {
        let asleep = match &self.word {
            SleepWord::Armed(page) => handover::claim(armed(page)),
            SleepWord::Notice(notice, last) => {
                let mut rung = last.get();
                let asleep = handover::claim_notice(notice.word(), &mut rung);
                last.set(rung);
                asleep
            }
        };
        if asleep {
            self.event.signal();
        }
        asleep
    }
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
    fn a_read_only_sender_rings_once_for_each_sleep() {
        let (bell, event) = (Bell::create().unwrap(), Arc::new(Event::create().unwrap()));
        let sender = || PeerBell::read(bell.notice().fd(), Arc::clone(&event)).unwrap();
        let (one, two) = (sender(), sender());
        assert!(!one.ring_if_armed());
        for _ in 0..3 {
            bell.arm();
            assert!(one.ring_if_armed() && !one.ring_if_armed() && two.ring_if_armed());
            assert!(bell.is_armed() && !readable(&bell), "other senders still see it armed");
            // The sleeper found work in its last look and arms again, without having shown itself
            // awake.
            bell.arm();
            assert!(one.ring_if_armed());
            bell.disarm();
            assert!(!two.ring_if_armed());
        }
    }

    #[test]
    fn other_descriptors_than_eventfds_are_refused() {
        let bell = Bell::create().unwrap();
        let (_read, write) = rustix::pipe::pipe().unwrap();
        assert!(PeerBell::map(bell.page_fd(), write).is_err());
        let (_read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        assert!(PeerBell::map(bell.page_fd(), write).is_err());
    }
}
