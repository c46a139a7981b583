//! A thread that accepts connections until it is told to stop, and serves so many of them at a time.
//!
//! A connection has a thread of its own; one too many is turned away. Where none can be accepted, for want of descriptors
//! perhaps, it says so once and looks again after a pause: the connection still waits, and to ask for it at once would only burn
//! a core. What is said over connections is not known here.

use std::{
    io,
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// How long it is waited before the next attempt to accept, when one failed.
pub const RETRY: Duration = Duration::from_millis(50);

/// What connections come to.
pub trait Listen: AsFd + Send + 'static {
    /// A connection.
    type Stream: Send + 'static;

    /// Has [`accept`](Self::accept) return at once.
    ///
    /// # Errors
    /// The system's.
    fn never_wait(&self) -> io::Result<()>;

    /// The next connection in line; to read from it and write to it waits.
    ///
    /// # Errors
    /// The system's; `WouldBlock` if there is none.
    fn accept(&self) -> io::Result<Self::Stream>;
}

impl Listen for UnixListener {
    type Stream = UnixStream;
    fn never_wait(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
    fn accept(&self) -> io::Result<UnixStream> {
        self.accept().map(|(stream, _)| stream)
    }
}

impl Listen for TcpListener {
    type Stream = TcpStream;
    fn never_wait(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
    fn accept(&self) -> io::Result<TcpStream> {
        self.accept().map(|(stream, _)| stream)
    }
}

/// Accepts until dropped. Connections that are being served then go on to their end.
pub struct Acceptor {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Serves at most `places` connections at a time with `serve`, and hands the others to `full`, which must not wait.
    /// The thread is called `name`, and each connection's `name` and `-client`.
    ///
    /// # Errors
    /// No descriptor or thread.
    pub fn start<L: Listen>(
        name: &'static str,
        listener: L,
        places: usize,
        serve: impl Fn(L::Stream) + Send + Sync + 'static,
        full: impl Fn(L::Stream) + Send + 'static,
    ) -> io::Result<Self> {
        listener.never_wait()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (stopped, serve, taken) = (Arc::clone(&stop), Arc::new(serve), Arc::new(AtomicUsize::new(0)));
        let take = move |stream| {
            if taken.fetch_add(1, Relaxed) >= places {
                taken.fetch_sub(1, Relaxed);
                return full(stream);
            }
            let (place, serve) = (Place(Arc::clone(&taken)), Arc::clone(&serve));
            // Without a thread the connection is closed, which its other end reports.
            let _ = thread::Builder::new().name(format!("{name}-client")).spawn(move || {
                let _place = place;
                serve(stream);
            });
        };
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(move || accept_until(&stopped, name, &listener, &take))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // An eventfd that was never full takes one more.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn accept_until<L: Listen>(stop: &OwnedFd, name: &str, listener: &L, take: &dyn Fn(L::Stream)) {
    let mut failing = false;
    loop {
        let mut events = [PollFd::new(stop, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        // The stop alone ends the pause after a failure.
        let waited = match failing {
            true => poll(&mut events[..1], Some(&PAUSE)),
            false => poll(&mut events, None),
        };
        if waited.is_err() {
            continue; // Interrupted; nothing else can happen to these two.
        }
        if !events[0].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok(stream) => {
                failing = false;
                take(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => failing = false,
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, "{name}: a connection could not be accepted");
                }
                failing = true;
            }
        }
    }
}

const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: RETRY.as_nanos() as i64 };

/// One of the places; given back also when serving panics.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
