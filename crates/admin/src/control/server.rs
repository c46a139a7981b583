//! The node's end of the control socket.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use plexus_client::wire::bind_for_owner;
use plexus_fabric::shm::peer_user;
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Uid, geteuid},
};
use serde_json::Value;

use super::{Commands, MAX_LINE, Request, Response};
use crate::acceptor::Acceptor;

/// The most clients at a time; others are refused.
pub(super) const MAX_CLIENTS: usize = 64;

/// The answer to a client of another user.
const FOREIGN: &str = "only the node's own user and root control the node";

/// Returns true if a process of `user` may control a node that runs as `own`. The mode of the
/// socket says the same, but modes can be changed by mistake.
pub(super) fn may_control(user: Uid, own: Uid) -> bool {
    user == own || user.is_root()
}

/// Accepts clients until it is dropped. A command that runs then continues to its end.
pub struct Server {
    path: PathBuf,
    _acceptor: Acceptor,
}

impl Server {
    /// Listens at `path`. The caller has the node's lock, so a socket that exists there belongs to
    /// a node that has ended, and is replaced.
    ///
    /// # Errors
    /// The system's.
    pub fn start(path: &Path, commands: Commands) -> io::Result<Self> {
        let listener = bind_for_owner(path, |path| UnixListener::bind(path))?;
        let serve = move |stream: UnixStream| {
            // The client has gone, so there is no receiver for the error.
            let _ = match peer_user(stream.as_fd()) {
                Ok(user) if may_control(Uid::from_raw(user), geteuid()) => serve(&stream, &commands),
                Ok(_) => send(&stream, &Response::Error(FOREIGN.into())),
                Err(error) => Err(error),
            };
        };
        let full = |stream: UnixStream| {
            let why = format!("the node has {MAX_CLIENTS} clients already; try again");
            // A client that does not read this sees the connection closed.
            let _ = send(&stream, &Response::Error(why));
        };
        let acceptor = Acceptor::start("plexus-control", listener, MAX_CLIENTS, serve, full)?;
        Ok(Self { path: path.into(), _acceptor: acceptor })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A failure only leaves a socket without a listener.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve(stream: &UnixStream, commands: &Commands) -> io::Result<()> {
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
        let result = commands.find(&request.command).and_then(|run| run(request.args, &mut progress));
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
