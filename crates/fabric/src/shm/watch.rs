//! Watches the processes at the other ends of rails, by pidfd, and reports their end at once.
//!
//! One thread serves a node. The flag of a rail is set only after the peer's process has ended, so
//! a thread that sees the flag sees everything the peer ever wrote.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
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

/// The pidfd of the other end of a Unix socket, since Linux 6.5; the C library may not know it yet.
const SO_PEERPIDFD: libc::c_int = 77;

/// Returns the user of the process at the other end of a Unix socket, when it connected or
/// listened.
///
/// # Errors
/// The system's.
pub fn peer_user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(peer_credentials(socket)?.uid)
}

/// Returns the credentials of the other end. Its `pid` is 0 in a PID namespace that this process
/// cannot see; `rustix` takes that for an error of number 0.
fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    option(socket, libc::SO_PEERCRED, libc::ucred { pid: 0, uid: 0, gid: 0 })
}

/// Returns a socket option. `T` must be valid with any bytes.
fn option<T>(socket: BorrowedFd<'_>, name: libc::c_int, mut value: T) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: both pointers are to live values, and the system writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// The process at the other end of a Unix socket.
#[derive(Debug)]
pub struct PeerProcess {
    /// The pidfd: readable when the process ends; it names this process and no later one.
    pub pidfd: OwnedFd,
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
        let peer = peer_credentials(socket)?;
        let pidfd = match option::<libc::c_int>(socket, SO_PEERPIDFD, -1) {
            // SAFETY: the system has made this descriptor for the caller.
            Ok(pidfd) => unsafe { OwnedFd::from_raw_fd(pidfd) },
            // An older system. It has a number only for a process that this one can see.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                let unseen = || io::Error::other("it runs in a PID namespace that is not visible from here");
                rustix::process::pidfd_open(Pid::from_raw(peer.pid).ok_or_else(unseen)?, PidfdFlags::empty())?
            }
            Err(error) => return Err(error),
        };
        // The identifier could belong to another process before the pidfd was opened, but not while
        // the first process still holds its end of the socket.
        let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
        rustix::event::poll(&mut fds, Some(&Timespec::default()))?;
        if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the peer's process has ended"));
        }
        Ok(Self { pidfd, uid: peer.uid })
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
