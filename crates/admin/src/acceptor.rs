//! A thread that accepts connections until it is stopped, and serves a limited number at a time.
//!
//! Each connection has a thread of its own; connections over the limit are turned away. Where the
//! system gives no more threads, one that exists serves them one after the other. If none can be
//! accepted, perhaps for lack of descriptors, the thread logs this once and tries again after a
//! pause, because an immediate retry would only burn a core. The protocol on the connections is up
//! to the caller.

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
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use plexus_base::threads;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// The pause after a failed attempt to accept.
pub const RETRY: Duration = Duration::from_millis(50);

/// The most connections that wait for the thread in reserve.
const WAITING: usize = 8;

/// A listening socket.
pub trait Listen: AsFd + Send + 'static {
    /// The stream of an accepted connection.
    type Stream: Send + 'static;

    /// Makes [`accept`](Self::accept) return at once.
    ///
    /// # Errors
    /// The system's.
    fn never_wait(&self) -> io::Result<()>;

    /// Accepts the next connection; its reads and writes block.
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

/// Accepts connections until it is dropped. Connections that are being served continue.
pub struct Acceptor {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Serves at most `places` connections at a time with `serve`, and gives the others to `full`,
    /// which must not block. The thread is called `name`, and that of each connection `name` and
    /// `-client`.
    ///
    /// # Errors
    /// There is no descriptor or thread.
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
        let (reserve, waiting) = mpsc::sync_channel::<Box<dyn FnOnce() + Send>>(WAITING);
        let serve_waiting = move || waiting.into_iter().for_each(|serve| serve());
        thread::Builder::new().name(format!("{name}-reserve")).spawn(serve_waiting)?;
        let take = move |stream| {
            if taken.fetch_add(1, Relaxed) >= places {
                taken.fetch_sub(1, Relaxed);
                return full(stream);
            }
            let (place, serve) = (ConnectionSlot(Arc::clone(&taken)), Arc::clone(&serve));
            let serving = move || {
                let _place = place;
                serve(stream);
            };
            if let Err(serving) = threads::start(&format!("{name}-client"), serving) {
                // Where too many wait the connection is closed, and its other end reports that.
                let _ = reserve.try_send(Box::new(serving));
            }
        };
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(move || accept_until(&stopped, name, &listener, &take))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // This write cannot fail: the counter is never full.
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
        // Only a stop ends the pause after a failure.
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
                    tracing::warn!(%error, "{name}: cannot accept a connection");
                }
                failing = true;
            }
        }
    }
}

const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: RETRY.as_nanos() as i64 };

/// One of the limited slots for connections; freed also when serving panics.
struct ConnectionSlot(Arc<AtomicUsize>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
