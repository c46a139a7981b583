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

/// The longest that a node may take to accept a connection. It takes no time unless the node is
/// suspended and many clients wait already.
const REACHED_WITHIN: Duration = Duration::from_secs(5);

/// A connection to a running node.
pub struct Control {
    name: String,
    stream: BufReader<UnixStream>,
    /// The last command.
    asked: String,
    /// The received part of a line.
    line: Vec<u8>,
}

/// A response of a node to a command.
#[derive(Clone, PartialEq, Debug)]
pub enum ControlResponse {
    /// Progress of the command.
    Progress(Value),
    /// The result.
    Done(Value),
}

/// The reason why a node did not carry out a command.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The node does not run.
    #[error("{name} is not running; start it with `plexus up -C {dir}`")]
    NotRunning {
        /// The node.
        name: String,
        /// The directory of its cluster.
        dir: String,
    },
    /// The node ended before it answered.
    #[error("{name} ended while it did `{command}`; see its log")]
    Ended {
        /// The node.
        name: String,
        /// The command.
        command: String,
    },
    /// The node runs and accepts no connection.
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
        /// The command.
        command: String,
    },
    /// The node answered with an error.
    #[error("{name}: {what}")]
    Refused {
        /// The node.
        name: String,
        /// The error in one line.
        what: String,
    },
    /// A system call failed, or the answer is malformed.
    #[error("{name}: control socket: {source}")]
    Io {
        /// The node.
        name: String,
        /// The reason.
        source: io::Error,
    },
}

/// Connects to the socket at `path` within `limit`. A plain connect would wait while the queue of
/// the socket is full.
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
    /// The node does not run, does not accept connections, or the system refuses.
    pub fn connect(dir: &ClusterDir, name: &str) -> Result<Self, ControlError> {
        Self::connect_within(dir, name, REACHED_WITHIN)
    }

    /// Connects to a node that must accept the connection, and later each request, within `limit`.
    ///
    /// # Errors
    /// As for [`Control::connect`].
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

    /// Returns the name of the node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the longest silence of the node; `None`, the default, waits as long as the node runs.
    ///
    /// # Errors
    /// The system's.
    pub fn set_timeout(&mut self, timeout: impl Into<Option<Duration>>) -> Result<(), ControlError> {
        self.stream.get_ref().set_read_timeout(timeout.into()).map_err(|source| self.io(source))
    }

    /// Lets child processes inherit the connection: it ends with the last of them.
    ///
    /// # Errors
    /// The system's.
    pub fn hand_down(&self) -> Result<(), ControlError> {
        let none = rustix::io::FdFlags::empty();
        rustix::io::fcntl_setfd(self.stream.get_ref(), none).map_err(|error| self.io(error.into()))
    }

    /// Runs `command` and returns its result; `progress` receives its progress.
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
                ControlResponse::Progress(value) => progress(value),
                ControlResponse::Done(value) => return Ok(value),
            }
        }
    }

    /// Starts `command`; dropping the connection cancels it.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn ask(&mut self, command: &str, args: Value) -> Result<(), ControlError> {
        command.clone_into(&mut self.asked);
        let request = Request { command: command.into(), args };
        let mut line = serde_json::to_vec(&request).map_err(|error| self.io(error.into()))?;
        line.push(b'\n');
        match self.stream.get_mut().write_all(&line) {
            // A node without room for clients has sent its reason before it closed; that is to be
            // read.
            Err(error) if is_gone(&error) => Ok(()),
            sent => sent.map_err(|error| self.failed(error)),
        }
    }

    /// Receives the next response. May be called again after [`ControlError::Silent`].
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn hear(&mut self) -> Result<ControlResponse, ControlError> {
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
            Response::Progress(value) => Ok(ControlResponse::Progress(value)),
            Response::Ok(value) => Ok(ControlResponse::Done(value)),
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

/// Returns true if the other end has closed the connection.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
