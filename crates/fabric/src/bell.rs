//! The doorbell of a worker: how it is woken when it sleeps, at no cost while it does not.
//!
//! A worker that found nothing to do arms its [`Bell`], looks at all its rails once more ([`Rail::pending`]),
//! and sleeps in epoll on [`Bell::fd`]. A sender that has published frames looks whether the bell is armed,
//! and only then makes the system call. The order of these steps, and why none may be left out, is in
//! `handover.rs`.
//!
//! Peers, which are trusted, share the armed word and the event descriptor of a bell. Who is not trusted is handed
//! neither: it reads the bell's [`Notice`], which nobody but the sleeper can write, and rings by an event descriptor of its
//! own, which the sleeper only watches. So whatever it does, it wakes the sleeper too often or fails to wake it
//! for itself.
//!
//! [`Rail::pending`]: crate::Rail::pending
#![allow(unsafe_code, reason = "the armed word lies in memory shared with peers")]

use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    Event, handover,
    memory::{Memory, SetupError},
};

/// One page; its first word is the armed word or the notice, the rest is empty.
const PAGE_LEN: usize = 4096;

/// The bell of a worker of ours. Any thread may ring it; one arms it.
#[derive(Debug)]
pub struct Bell {
    page: Memory,
    page_fd: OwnedFd,
    notice: Notice,
    event: Event,
}

/// A sleeper's word to those that may only read it: whether it wants to be woken.
#[derive(Debug)]
pub struct Notice {
    page: Memory,
    page_fd: OwnedFd,
}

/// The bell of the other side.
#[derive(Debug)]
pub struct PeerBell {
    word: Word,
    event: Arc<Event>,
}

/// By what a sender sees whether the other side sleeps.
#[derive(Debug)]
enum Word {
    /// Its armed word, which all that ring it share.
    Armed(Memory),
    /// Its notice, and the one that we have rung for last.
    Notice(Memory, Cell<u64>),
}

fn armed(page: &Memory) -> &AtomicU32 {
    // SAFETY: the page is mapped as long as it is borrowed, aligned, and this word is only ever used as an
    // atomic.
    unsafe { AtomicU32::from_ptr(page.start().as_ptr().cast()) }
}

fn notice(page: &Memory) -> &AtomicU64 {
    // SAFETY: as above.
    unsafe { AtomicU64::from_ptr(page.start().as_ptr().cast()) }
}

fn refused(doing: &'static str) -> impl FnOnce(io::Error) -> SetupError {
    move |source| SetupError::System { what: "doorbell", doing, bytes: PAGE_LEN as u64, source }
}

impl Notice {
    /// A notice that says that nobody sleeps.
    ///
    /// # Errors
    /// No memory or no descriptors.
    pub fn create() -> Result<Self, SetupError> {
        let (page, page_fd) = Memory::publish("notice", PAGE_LEN)?;
        Ok(Self { page, page_fd })
    }

    /// Before sleeping: asks senders to ring. Then look at everything once more before the sleep itself.
    pub fn arm(&self) {
        handover::announce(notice(&self.page));
    }

    /// After waking: senders need not ring any more.
    pub fn disarm(&self) {
        handover::withdraw(notice(&self.page));
    }

    /// The page descriptor to hand out; it can only be read, whatever is tried.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.page_fd.as_fd()
    }
}

impl Bell {
    /// A bell, not armed.
    ///
    /// # Errors
    /// No memory or no descriptors.
    pub fn create() -> Result<Self, SetupError> {
        let (page, page_fd) = Memory::create("doorbell", PAGE_LEN)?;
        let event = Event::create().map_err(refused("create an event descriptor"))?;
        Ok(Self { page, page_fd, notice: Notice::create()?, event })
    }

    /// Before sleeping: asks senders to ring. Then look at all rails once more before the sleep itself.
    pub fn arm(&self) {
        handover::arm(armed(&self.page), notice(&self.notice.page));
    }

    /// After waking: senders need not ring any more.
    pub fn disarm(&self) {
        handover::disarm(armed(&self.page), notice(&self.notice.page));
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

    /// What to hand to those that are not trusted.
    #[must_use]
    pub fn notice(&self) -> &Notice {
        &self.notice
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
    /// Maps the page of a peer's bell and takes its event descriptor. The peer is trusted to leave both as they are.
    ///
    /// # Errors
    /// The page is not a sealed page, or the descriptor is no event descriptor that cannot block.
    pub fn map(page: BorrowedFd<'_>, event: OwnedFd) -> Result<Self, SetupError> {
        let page = Memory::map("doorbell", page, PAGE_LEN as u64)?;
        let event = Event::from_peer(event).map_err(refused("use the event descriptor of the peer"))?;
        Ok(Self { word: Word::Armed(page), event: Arc::new(event) })
    }

    /// Reads the notice of somebody who is woken by `event`. Neither side need trust the other, if only we can signal
    /// the event.
    ///
    /// # Errors
    /// The page is not a sealed page.
    pub fn read(notice: BorrowedFd<'_>, event: Arc<Event>) -> Result<Self, SetupError> {
        let page = Memory::map_to_read("notice", notice, PAGE_LEN as u64)?;
        Ok(Self { word: Word::Notice(page, Cell::new(0)), event })
    }

    /// After publishing a batch: wakes the peer if it sleeps. Costs a fence and a load; whether it had to.
    #[inline]
    pub fn ring_if_armed(&self) -> bool {
        let asleep = match &self.word {
            Word::Armed(page) => handover::claim(armed(page)),
            Word::Notice(page, last) => {
                let mut rung = last.get();
                let asleep = handover::heed(notice(page), &mut rung);
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
    fn who_only_reads_rings_once_for_each_sleep() {
        let (bell, event) = (Bell::create().unwrap(), Arc::new(Event::create().unwrap()));
        let program = || PeerBell::read(bell.notice().fd(), Arc::clone(&event)).unwrap();
        let (one, two) = (program(), program());
        assert!(!one.ring_if_armed());
        for _ in 0..3 {
            bell.arm();
            assert!(one.ring_if_armed() && !one.ring_if_armed() && two.ring_if_armed());
            assert!(bell.is_armed() && !readable(&bell), "others find it as it was");
            // Who was told of something that it slept for arms itself again, without having been awake for senders.
            bell.arm();
            assert!(one.ring_if_armed());
            bell.disarm();
            assert!(!two.ring_if_armed());
        }
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
