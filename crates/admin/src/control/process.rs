//! The judgement about a node that does not answer: its process runs, is stopped, or has ended.
//!
//! All commands that ask nodes take it from here, so that none calls a living process dead. The
//! node's lock tells whether the process exists. A process keeps its lock to its end, also when it
//! hangs.

use std::{
    fmt, fs, thread,
    time::{Duration, Instant},
};

use crate::{
    records::durable::{Lock, Look},
    {
        last_end::{LastEnd, last_end},
        layout::ClusterDir,
    },
};

/// The longest that a process may take to end after it has closed its connections, and the polling
/// interval.
const END_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The state of the process of a node, as its host sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProcessState {
    /// It runs, with this number where that is known and names it here.
    Runs(Option<u32>),
    /// A signal or a debugger has stopped the process with this number.
    Stopped(u32),
    /// It does not run. The last end is known if the node has a log.
    Ended(Option<LastEnd>),
    /// The lock cannot be read, for this reason.
    Unknown(String),
}

impl ProcessState {
    /// Returns the state of the process of the node called `name`.
    #[must_use]
    pub fn of(dir: &ClusterDir, name: &str) -> Self {
        match Lock::look(&dir.lock(name)) {
            // A process does not notice that its lock was deleted.
            Ok(Look::Missing) if dir.socket(name).exists() => Self::Unknown("it is missing".into()),
            Ok(Look::Missing | Look::Free(_)) => Self::Ended(last_end(dir, name, false)),
            // In another PID namespace the number names another process, or none.
            Ok(Look::Held(holder)) => match holder.filter(|holder| holder.obstacle().is_none()) {
                Some(holder) if is_stopped(holder.pid) => Self::Stopped(holder.pid),
                holder => Self::Runs(holder.map(|holder| holder.pid)),
            },
            Err(error) => Self::Unknown(error.to_string()),
        }
    }

    /// Returns the state of the incarnation that has closed a connection. Waits a moment for its
    /// end: a process closes its files one after the other.
    pub(super) fn of_closed(dir: &ClusterDir, name: &str, incarnation: Option<u64>) -> Self {
        let until = Instant::now() + END_WITHIN;
        loop {
            let holder = match Lock::look(&dir.lock(name)) {
                Ok(Look::Held(holder)) => holder.map(|holder| holder.incarnation),
                Ok(Look::Missing | Look::Free(_)) => return Self::Ended(last_end(dir, name, false)),
                Err(error) => return Self::Unknown(error.to_string()),
            };
            if incarnation.zip(holder).is_some_and(|(before, now)| before != now) {
                return Self::Ended(last_end(dir, name, true));
            }
            if Instant::now() >= until {
                return Self::of(dir, name);
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Returns the number of the present or last incarnation of the node called `name`.
    pub(super) fn incarnation(dir: &ClusterDir, name: &str) -> Option<u64> {
        Lock::last(&dir.lock(name)).ok().flatten().map(|holder| holder.incarnation)
    }
}

impl fmt::Display for ProcessState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs(Some(pid)) => write!(f, "it runs (pid {pid}); see its log"),
            Self::Runs(None) => f.write_str("it runs; see its log"),
            Self::Stopped(pid) => {
                write!(f, "its process is stopped (pid {pid}); `kill -CONT {pid}` lets it go on")
            }
            Self::Ended(Some(LastEnd { at, why })) => write!(f, "it has ended at {at}: {why}"),
            Self::Ended(None) => f.write_str("it has ended; see its log"),
            Self::Unknown(why) => write!(f, "it may run (its lock cannot be read: {why})"),
        }
    }
}

/// Returns true if a signal or a debugger has stopped this process.
fn is_stopped(pid: u32) -> bool {
    // The state follows the name of the program, which may contain anything.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|state| state.starts_with(['T', 't']))
}
