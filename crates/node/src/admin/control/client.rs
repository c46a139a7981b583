//! The command line's end of the control socket.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde_json::Value;

use plexus_client::wire::ShortPath;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt},
};

use super::{MAX_LINE, Request, Response};
use crate::boot::layout::ClusterDir;

/// How long a node may take to take a connection: at once, unless it is stopped and many wait already.
const REACHED_WITHIN: Duration = Duration::from_secs(5);

/// A connection to a living node.
pub struct Control {
    name: String,
    stream: BufReader<UnixStream>,
    /// What it was asked for last.
    asked: String,
    /// A line of which a part has come.
    line: Vec<u8>,
}

/// What a node says of what it does.
#[derive(Clone, PartialEq, Debug)]
pub enum Said {
    /// Something on the way.
    Progress(Value),
    /// The result.
    Done(Value),
}

/// Why a node did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens.
    #[error("{name} is not running; start it with `plexus up {dir}`")]
    NotRunning {
        /// The node.
        name: String,
        /// Its cluster.
        dir: String,
    },
    /// The node went away in the middle.
    #[error("{name} ended while it did `{command}`; see its log")]
    Ended {
        /// The node.
        name: String,
        /// What it was asked for.
        command: String,
    },
    /// It runs, and takes no connection.
    #[error("{name} does not take connections; is it stopped?")]
    Closed {
        /// The node.
        name: String,
    },
    /// The node did not answer in time.
    #[error("{name} does not answer to `{command}`")]
    Silent {
        /// The node.
        name: String,
        /// What it was asked for.
        command: String,
    },
    /// The node says why not.
    #[error("{name}: {what}")]
    Refused {
        /// The node.
        name: String,
        /// Its line.
        what: String,
    },
    /// The system refused, or the answer makes no sense.
    #[error("{name}: control socket: {source}")]
    Io {
        /// The node.
        name: String,
        /// The reason.
        source: io::Error,
    },
}

/// A connection to the socket at `path`. The system's own waits for as long as the other end has no room for one more.
fn reach(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let short = ShortPath::of(path)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(limit))?;
    let address = SocketAddrUnix::new(short.path())?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl Control {
    /// Connects to the node called `name` of the cluster in `dir`.
    ///
    /// # Errors
    /// The node does not live, or takes no connections, or the system's.
    pub fn connect(dir: &ClusterDir, name: &str) -> Result<Self, ControlError> {
        Self::connect_within(dir, name, REACHED_WITHIN)
    }

    /// The same for a node that must take the connection, and later each request, within `limit`.
    ///
    /// # Errors
    /// The same.
    pub fn connect_within(dir: &ClusterDir, name: &str, limit: Duration) -> Result<Self, ControlError> {
        match reach(&dir.socket(name), limit) {
            Ok(stream) => Ok(Self {
                name: name.into(),
                stream: BufReader::new(stream),
                asked: String::new(),
                line: Vec::new(),
            }),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                Err(ControlError::NotRunning { name: name.into(), dir: dir.root().display().to_string() })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(ControlError::Closed { name: name.into() })
            }
            Err(source) => Err(ControlError::Io { name: name.into(), source }),
        }
    }

    /// The node.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives up on a node that sends nothing for this long; without any, as at first, waits as long as the node lives.
    ///
    /// # Errors
    /// The system's.
    pub fn set_timeout(&mut self, timeout: impl Into<Option<Duration>>) -> Result<(), ControlError> {
        self.stream.get_ref().set_read_timeout(timeout.into()).map_err(|source| self.io(source))
    }

    /// Has programs that are started from now on keep the connection as well: it ends with the last of them.
    ///
    /// # Errors
    /// The system's.
    pub fn hand_down(&self) -> Result<(), ControlError> {
        let none = rustix::io::FdFlags::empty();
        rustix::io::fcntl_setfd(self.stream.get_ref(), none).map_err(|error| self.io(error.into()))
    }

    /// Asks for `command` and waits for its result; `progress` is handed what comes before.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn call(
        &mut self,
        command: &str,
        args: Value,
        mut progress: impl FnMut(Value),
    ) -> Result<Value, ControlError> {
        self.ask(command, args)?;
        loop {
            match self.hear()? {
                Said::Progress(value) => progress(value),
                Said::Done(value) => return Ok(value),
            }
        }
    }

    /// Asks for `command`; dropping the connection takes that back.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn ask(&mut self, command: &str, args: Value) -> Result<(), ControlError> {
        command.clone_into(&mut self.asked);
        let request = Request { command: command.into(), args };
        let mut line = serde_json::to_vec(&request).map_err(|error| self.io(error.into()))?;
        line.push(b'\n');
        match self.stream.get_mut().write_all(&line) {
            // A node that takes no more clients has said so before it closed: that is to be read.
            Err(error) if is_gone(&error) => Ok(()),
            sent => sent.map_err(|error| self.failed(error)),
        }
    }

    /// What the node says next. After [`ControlError::Silent`] it may be listened to again.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn hear(&mut self) -> Result<Said, ControlError> {
        let room = MAX_LINE.saturating_sub(self.line.len() as u64);
        let read = (&mut self.stream).take(room).read_until(b'\n', &mut self.line);
        read.map_err(|error| self.failed(error))?;
        if self.line.last() != Some(&b'\n') {
            let (name, command) = (self.name.clone(), self.asked.clone());
            return Err(match (self.line.len() as u64) < MAX_LINE {
                true => ControlError::Ended { name, command },
                false => self.io(io::Error::other(format!("an answer of more than {MAX_LINE} bytes"))),
            });
        }
        let line = std::mem::take(&mut self.line);
        match serde_json::from_slice(&line).map_err(|error| self.io(error.into()))? {
            Response::Progress(value) => Ok(Said::Progress(value)),
            Response::Ok(value) => Ok(Said::Done(value)),
            Response::Error(what) => Err(ControlError::Refused { name: self.name.clone(), what }),
        }
    }

    fn failed(&self, error: io::Error) -> ControlError {
        let (name, command) = (self.name.clone(), self.asked.clone());
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ControlError::Silent { name, command },
            _ if is_gone(&error) => ControlError::Ended { name, command },
            _ => self.io(error),
        }
    }

    fn io(&self, source: io::Error) -> ControlError {
        ControlError::Io { name: self.name.clone(), source }
    }
}

/// Whether the other end has closed the connection.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
