//! The command line's end of the control socket.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use plexus_client::wire::ShortPath;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt},
};

use super::{MAX_LINE, ProcessState, Request, Response};
use crate::{last_end::LastEnd, layout::ClusterDir};

/// The longest that a node may take to accept a connection. It takes no time unless the node is
/// suspended and many clients wait already.
const REACHED_WITHIN: Duration = Duration::from_secs(5);

/// The longest wait for the socket of a process that has none yet, or no longer, and the polling
/// interval.
const STARTS_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A connection to a running node.
pub struct Control {
    dir: ClusterDir,
    name: String,
    /// The incarnation of the node, where it is known.
    incarnation: Option<u64>,
    stream: BufReader<UnixStream>,
    /// The last command.
    asked: String,
    /// The received part of a line.
    line: Vec<u8>,
    /// The time of the last request or line.
    heard: Instant,
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
    #[error("{name} is not running; start it with `plexus up -C {dir}`{last}", last = ended_at(.last.as_ref()))]
    NotRunning {
        /// The node.
        name: String,
        /// The directory of its cluster.
        dir: String,
        /// Its last end, if it ever ran.
        last: Option<LastEnd>,
    },
    /// The process of the node ended before it answered.
    #[error("{name} ended while it did `{command}`{last}", last = ended_at(.last.as_ref()))]
    Ended {
        /// The node.
        name: String,
        /// The command.
        command: String,
        /// Its end, where it is known.
        last: Option<LastEnd>,
    },
    /// The node has closed the connection before it answered, and its process is there.
    #[error("{name} closed the connection while it did `{command}`: {process}")]
    Dropped {
        /// The node.
        name: String,
        /// The command.
        command: String,
        /// The state of its process.
        process: ProcessState,
    },
    /// The process of the node is there and accepts no connection.
    #[error("{name} does not take connections: {process}")]
    Closed {
        /// The node.
        name: String,
        /// The state of its process.
        process: ProcessState,
    },
    /// The node did not answer in time.
    #[error("{name} does not answer to `{command}` (for {:.1} s): {process}", .silence.as_secs_f64())]
    Silent {
        /// The node.
        name: String,
        /// The command.
        command: String,
        /// The time since it was asked, or has last reported progress.
        silence: Duration,
        /// The state of its process.
        process: ProcessState,
    },
    /// The node is a member on another host, and did not answer from there.
    #[error("{name}: not reachable from here: {why}")]
    Unreachable {
        /// The node.
        name: String,
        /// The reason.
        why: String,
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

/// Returns the last end of a node as the end of a line.
fn ended_at(end: Option<&LastEnd>) -> String {
    end.map_or(String::new(), |LastEnd { at, why }| format!(" (it ended at {at}: {why})"))
}

impl ControlError {
    /// Returns the error of a node that has been silent for this time.
    pub fn silent(dir: &ClusterDir, name: &str, command: &str, silence: Duration) -> Self {
        let process = ProcessState::of(dir, name);
        Self::Silent { name: name.into(), command: command.into(), silence, process }
    }
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
        let (until, name) = (Instant::now() + limit.min(STARTS_WITHIN), name.to_owned());
        let error = loop {
            let error = match reach(&dir.socket(&name), limit) {
                Ok(stream) => {
                    return Ok(Self {
                        dir: dir.clone(),
                        incarnation: ProcessState::incarnation(dir, &name),
                        name,
                        stream: BufReader::new(stream),
                        asked: String::new(),
                        line: Vec::new(),
                        heard: Instant::now(),
                    });
                }
                Err(error) => error,
            };
            let process = match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ProcessState::of(dir, &name),
                io::ErrorKind::WouldBlock => {
                    break ControlError::Closed { process: ProcessState::of(dir, &name), name };
                }
                _ => break ControlError::Io { name, source: error },
            };
            match process {
                ProcessState::Ended(last) => {
                    break ControlError::NotRunning { name, dir: dir.root().display().to_string(), last };
                }
                process if Instant::now() >= until => break ControlError::Closed { name, process },
                // The node is about to open its socket, or to end.
                _ => thread::sleep(LOOK_EVERY),
            }
        };
        Err(error)
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
        self.heard = Instant::now();
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
            return Err(match (self.line.len() as u64) < MAX_LINE {
                true => self.closed(),
                false => self.io(io::Error::other(format!("an answer of more than {MAX_LINE} bytes"))),
            });
        }
        self.heard = Instant::now();
        let line = std::mem::take(&mut self.line);
        match serde_json::from_slice(&line).map_err(|error| self.io(error.into()))? {
            Response::Progress(value) => Ok(ControlResponse::Progress(value)),
            Response::Ok(value) => Ok(ControlResponse::Done(value)),
            Response::Error(what) => Err(ControlError::Refused { name: self.name.clone(), what }),
        }
    }

    fn failed(&self, error: io::Error) -> ControlError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ControlError::silent(&self.dir, &self.name, &self.asked, self.heard.elapsed())
            }
            _ if is_gone(&error) => self.closed(),
            _ => self.io(error),
        }
    }

    /// Returns the error of a connection that the node has closed.
    fn closed(&self) -> ControlError {
        let (name, command) = (self.name.clone(), self.asked.clone());
        match ProcessState::of_closed(&self.dir, &name, self.incarnation) {
            ProcessState::Ended(last) => ControlError::Ended { name, command, last },
            process => ControlError::Dropped { name, command, process },
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
