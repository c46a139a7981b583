//! Watches the processes at the other ends of rails, by pidfd, and reports their end at once.
//!
//! One thread serves a node. The flag of a rail is set only after the peer's process has ended, so
//! a thread that sees the flag sees everything the peer ever wrote.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Release},
    },
    thread::JoinHandle,
};

use rustix::{
    buffer::spare_capacity,
    event::{PollFd, PollFlags, epoll},
    process::{Pid, PidfdFlags},
    time::Timespec,
};

use crate::{Bell, Event};

/// The process at the other end of a Unix socket.
#[derive(Debug)]
pub struct PeerProcess {
    /// The pidfd: readable when the process ends; it names this process and no later one.
    pub pidfd: OwnedFd,
    /// The process identifier.
    pub pid: i32,
    /// The user of the process when it connected.
    pub uid: u32,
}

impl PeerProcess {
    /// The process that connected `socket`, a connected Unix stream socket whose other end it still
    /// holds.
    ///
    /// # Errors
    /// The process has ended, or a system call fails.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let peer = rustix::net::sockopt::socket_peercred(socket)?;
        let pidfd = rustix::process::pidfd_open(peer.pid, PidfdFlags::empty())?;
        // The identifier could belong to another process before the pidfd was opened, but not while
        // the first process still holds its end of the socket.
        let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
        rustix::event::poll(&mut fds, Some(&Timespec::default()))?;
        if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the peer's process has ended"));
        }
        Ok(Self { pidfd, pid: Pid::as_raw(Some(peer.pid)), uid: peer.uid.as_raw() })
    }
}

struct Watched {
    pidfd: OwnedFd,
    gone: Arc<AtomicBool>,
    bells: Vec<Arc<Bell>>,
}

struct Shared {
    epoll: OwnedFd,
    stop: Event,
    /// The watched processes by token. An entry is removed when its process has ended, and its slot
    /// is used again.
    watched: Mutex<Vec<Option<Watched>>>,
}

/// A thread that watches processes until this value is dropped.
pub struct PeerWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

const STOP: u64 = u64::MAX;

impl PeerWatch {
    /// Starts the watching thread.
    ///
    /// # Errors
    /// No descriptor or no thread is available.
    pub fn start() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let stop = Event::create()?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let shared = Arc::new(Shared { epoll, stop, watched: Mutex::new(Vec::new()) });
        let thread = std::thread::Builder::new().name("plexus-watch".into()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Sets `gone`, then rings `bells`, when the process of `pidfd` ends.
    ///
    /// # Errors
    /// A system call fails.
    pub fn watch(&self, pidfd: OwnedFd, gone: Arc<AtomicBool>, bells: Vec<Arc<Bell>>) -> io::Result<()> {
        let mut watched = self.shared.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let token = watched.iter().position(Option::is_none).unwrap_or(watched.len());
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::add(&self.shared.epoll, pidfd.as_fd(), epoll::EventData::new_u64(token as u64), flags)?;
        let entry = Some(Watched { pidfd, gone, bells });
        match watched.get_mut(token) {
            Some(free) => *free = entry,
            None => watched.push(entry),
        }
        Ok(())
    }
}

impl Shared {
    fn run(&self) {
        let mut events = Vec::with_capacity(16);
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => unreachable!("epoll on descriptors of our own: {errno}"),
            }
            for event in events.drain(..) {
                let token = event.data.u64();
                if token == STOP {
                    return;
                }
                let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(ended) = watched.get_mut(token as usize).and_then(Option::take) else { continue };
                drop(watched);
                ended.gone.store(true, Release);
                ended.bells.iter().for_each(|bell| {
                    bell.ring();
                });
                drop(ended.pidfd);
            }
        }
    }
}

impl Drop for PeerWatch {
    fn drop(&mut self) {
        self.shared.stop.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
