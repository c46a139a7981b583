//! The node's end of the control socket.

use std::{
    fs::Permissions,
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use serde_json::Value;

use plexus_client::wire::ShortPath;

use super::{Commands, MAX_LINE, Request, Response};

/// Most clients at a time; more are told to come later.
const MAX_CLIENTS: usize = 64;

/// Accepts clients until dropped. A command that runs then goes on to its end.
pub struct Server {
    path: PathBuf,
    stop: Arc<OwnedFd>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `path`. The caller has the node's lock, so a socket that is there is a dead node's, and is
    /// replaced.
    ///
    /// # Errors
    /// The system's.
    pub fn start(path: &Path, commands: Commands) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(ShortPath::of(path)?.path())?;
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let seen = Arc::clone(&stop);
        let acceptor = thread::Builder::new()
            .name("plexus-control".into())
            .spawn(move || accept(&listener, &seen, &commands))?;
        Ok(Self { path: path.into(), stop, acceptor: Some(acceptor) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Neither can fail in a way that leaves something to do.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        let _ = std::fs::remove_file(&self.path);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept(listener: &UnixListener, stop: &OwnedFd, commands: &Commands) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let mut events = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if poll(&mut events, None).is_err() {
            continue; // Interrupted; nothing else can happen to these two.
        }
        if !events[1].revents().is_empty() {
            return;
        }
        let Ok((stream, _)) = listener.accept() else { continue };
        if clients.fetch_add(1, Relaxed) >= MAX_CLIENTS {
            clients.fetch_sub(1, Relaxed);
            let _ = send(
                &stream,
                &Response::Error(format!("the node has {MAX_CLIENTS} clients already; try again")),
            );
            continue;
        }
        let (commands, slot) = (commands.clone(), Slot(Arc::clone(&clients)));
        let client = thread::Builder::new().name("plexus-client".into());
        // Without a thread the connection is closed, which the client reports.
        let _ = client.spawn(move || {
            let _slot = slot;
            // The client went away: nobody is left to be told.
            let _ = serve(&stream, &commands);
        });
    }
}

/// One of the [`MAX_CLIENTS`]; given back also when a command panics.
struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn serve(stream: &UnixStream, commands: &Commands) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        if (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let request: Request = match serde_json::from_slice(&line) {
            Ok(request) => request,
            Err(error) => return send(stream, &Response::Error(format!("not a request: {error}"))),
        };
        let mut progress = |value: Value| match value {
            Value::Null => is_open(stream),
            value => send(stream, &Response::Progress(value)).is_ok(),
        };
        let result =
            commands.find(&request.command).and_then(|command| command.run(request.args, &mut progress));
        send(stream, &result.map_or_else(Response::Error, Response::Ok))?;
    }
}

fn is_open(stream: &UnixStream) -> bool {
    let mut event = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::RDHUP)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut event, Some(&now)), Ok(0))
}

fn send(mut stream: &UnixStream, response: &Response) -> io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    stream.write_all(&line)
}
