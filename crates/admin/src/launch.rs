//! The start of nodes as processes of their own, and the wait until they serve.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::RawFd,
        unix::{
            ffi::OsStrExt,
            fs::{FileExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::{
    control::{ANSWER_WITHIN, Seen},
    layout::ClusterDir,
    status::Stage,
    status::Status,
};

/// The exit code of a node whose configuration is invalid. It cannot start until that is corrected.
pub const CONFIG_CODE: u8 = 2;

/// The exit code of a node that ends because it was evicted or has lost its lease.
pub const EVICTED_CODE: u8 = 3;

/// The exit code of a node that ends because it was removed from the cluster.
pub const REMOVED_CODE: u8 = 4;

/// The exit code of a node that was told to end and could not hand everything back.
pub const NOT_IN_ORDER_CODE: u8 = 5;

/// The exit code of a node that ends because another process acts as the same node. It does not
/// return by itself, or the two would end each other again and again.
pub const DOUBLED_CODE: u8 = 6;

/// The time that a process which ends may have its number without its lock.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// The interval at which a starting node is asked for its stage.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// The parameters of the command `PROGRAM node DIR NAME`, with its output in the node's log.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The path of the program `plexus`.
    pub program: &'a Path,
    /// The directory of the cluster.
    pub dir: &'a ClusterDir,
    /// The name of the node.
    pub name: &'a str,
    /// The pipe whose closing ends the node; without one the node continues alone, as a daemon
    /// with a [supervisor](super::supervisor).
    pub lifeline: Option<io::PipeReader>,
    /// The path of the network namespace that it enters first.
    pub network_namespace: Option<&'a Path>,
}

/// A node that this process started.
#[derive(Debug)]
pub struct Launched {
    /// The name of the node.
    pub name: String,
    /// The process of the node.
    pub child: Child,
    /// The file in memory in which a daemon says why it ends: the disk of its log may be full.
    reason: Option<File>,
}

/// The reason why nodes did not start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A node ended before it served.
    #[error("{why}")]
    Ended {
        /// The node.
        name: String,
        /// The last line of its log, with the reason.
        why: String,
    },
    /// A node does not belong to the cluster.
    #[error("{name} is not a member: it was removed from the cluster; add it with `plexus node add {name}`")]
    Removed {
        /// The node.
        name: String,
    },
    /// A node exceeded the time limit.
    #[error("{name} is still {stage} after {} s{why}; see {}", .after.as_secs(), .log.display())]
    Late {
        /// The node.
        name: String,
        /// The stage of the node.
        stage: Stage,
        /// The time limit.
        after: Duration,
        /// The last state that the node reported, behind a colon; empty if there is none.
        why: String,
        /// The path of its log.
        log: PathBuf,
    },
    /// A system call failed.
    #[error("{name}: {what}: {source}")]
    Io {
        /// The node.
        name: String,
        /// The action that failed.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl Launch<'_> {
    /// Starts the process.
    ///
    /// # Errors
    /// The system's.
    pub fn start(self) -> Result<Launched, LaunchError> {
        let failed = |what| move |source| LaunchError::Io { name: self.name.into(), what, source };
        let path = self.dir.log(self.name);
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed("its log"))?;
        let error_log = log.try_clone().map_err(failed("its log"))?;
        // Absolute, because a daemon outlives the working directory in which it was started.
        let root = std::path::absolute(self.dir.root()).map_err(failed("the cluster's directory"))?;
        let mut command = Command::new(self.program);
        command.arg("node").arg(self.name).arg("-C").arg(root).stdout(log).stderr(error_log);
        let mut reason = None;
        match self.lifeline {
            Some(pipe) => command.stdin(pipe).args(["--lifeline", "0"]),
            None => {
                let file = memfd_create("reason", MemfdFlags::CLOEXEC).map(File::from);
                let file = file.map_err(|error| failed("memory for its reason")(error.into()))?;
                let copy = file.try_clone().map_err(failed("memory for its reason"))?;
                reason = Some(file);
                command.stdin(copy).args(["--daemon", "--reason", "0"])
            }
        };
        if let Some(namespace) = self.network_namespace {
            command.arg("--network-namespace").arg(namespace);
        }
        let child = command.spawn().map_err(failed("starting its process"))?;
        Ok(Launched { name: self.name.into(), child, reason })
    }
}

/// Waits until every one of `nodes` serves; reports stages to `progress`.
///
/// # Errors
/// One of them ended or is late. The others are unchanged.
pub fn wait_until_ready(
    dir: &ClusterDir,
    nodes: &mut [Launched],
    timeout: Duration,
    progress: &mut dyn FnMut(&str, Stage),
) -> Result<(), LaunchError> {
    let one_failed = |stages: &[Result<Stage, LaunchError>]| stages.iter().any(Result::is_err);
    let mut failures: Vec<_> = wait_for_each(dir, nodes, timeout, &one_failed, progress)
        .into_iter()
        .filter_map(Result::err)
        .collect();
    // Those that are late waited for one that ended.
    failures.sort_by_key(|failure| matches!(failure, LaunchError::Late { .. }));
    failures.into_iter().next().map_or(Ok(()), Err)
}

/// Waits until each of `nodes` serves or has failed, and returns the stage or failure of each. The
/// wait also ends after `timeout`, and when `is_over`: those that do not serve are late then.
pub fn wait_for_each(
    dir: &ClusterDir,
    nodes: &mut [Launched],
    timeout: Duration,
    is_over: &dyn Fn(&[Result<Stage, LaunchError>]) -> bool,
    progress: &mut dyn FnMut(&str, Stage),
) -> Vec<Result<Stage, LaunchError>> {
    let start = Instant::now();
    let mut stages: Vec<_> = nodes.iter().map(|_| Ok(Stage::Starting)).collect();
    let starts = |stage: &Result<Stage, _>| matches!(stage, Ok(stage) if *stage < Stage::Running);
    while stages.iter().any(starts) {
        let is_late = start.elapsed() > timeout || is_over(&stages);
        for (node, known) in nodes.iter_mut().zip(&mut stages).filter(|(_, known)| starts(known)) {
            let before = *known.as_ref().expect("it starts");
            *known = node.stage(dir).map(|now| now.unwrap_or(before));
            match *known {
                Ok(stage) if stage != before => progress(&node.name, stage),
                Ok(stage) if is_late => {
                    let (name, log) = (node.name.clone(), dir.log(&node.name));
                    let why = last_words(dir, &name).map_or(String::new(), |why| format!(": {why}"));
                    *known = Err(LaunchError::Late { name, stage, after: start.elapsed(), why, log });
                }
                _ => {}
            }
        }
        std::thread::sleep(ASK_EVERY);
    }
    stages
}

impl Launched {
    /// Returns the stage of the node, if it answers.
    ///
    /// # Errors
    /// It has ended or stopped.
    fn stage(&mut self, dir: &ClusterDir) -> Result<Option<Stage>, LaunchError> {
        let name = self.name.clone();
        let why = match (self.child.try_wait(), status(dir, &name)) {
            (Err(source), _) => return Err(LaunchError::Io { name, what: "its process", source }),
            (Ok(Some(code)), _) if code.code() == Some(REMOVED_CODE.into()) => {
                return Err(LaunchError::Removed { name });
            }
            (Ok(Some(code)), _) => {
                let words = self.reason().or_else(|| last_words(dir, &name));
                words.unwrap_or_else(|| {
                    format!("{name} ended ({code}) and its log {} does not say why", dir.log(&name).display())
                })
            }
            (Ok(None), Some(Status { state: Stage::Stopped, why, .. })) => {
                format!("{name} has stopped: {}", why.as_deref().unwrap_or("it does not say why"))
            }
            (Ok(None), now) => return Ok(now.map(|now| now.state)),
        };
        Err(LaunchError::Ended { name, why })
    }

    /// Returns the reason that the node has written for this process.
    fn reason(&self) -> Option<String> {
        let mut bytes = [0; 4096];
        let length = self.reason.as_ref()?.read_at(&mut bytes, 0).ok()?;
        worded(&self.name, &String::from_utf8_lossy(&bytes[..length]))
    }
}

/// Tells the process that started this one why it ends, in the file at a descriptor.
pub fn tell_reason(fd: RawFd, why: &str) {
    // The log has it too, if its disk is not full.
    let _ = fs::write(format!("/proc/self/fd/{fd}"), why);
}

/// Returns the process of a node that runs although its files in `run` are gone: a cleaner of
/// temporary files may have removed them, and then no command finds the node.
pub fn unreachable_process(dir: &ClusterDir, name: &str) -> Option<u32> {
    let root = std::path::absolute(dir.root()).ok()?;
    let wanted = ["node".as_ref(), name.as_ref(), "-C".as_ref(), root.as_os_str()];
    let is_it = |process: &fs::DirEntry| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).skip(1).map(OsStr::from_bytes).collect();
        words.starts_with(&wanted) && !words.contains(&OsStr::new("--daemon"))
    };
    let find = || {
        let mut all = fs::read_dir("/proc").ok()?.flatten();
        all.find_map(|process| process.file_name().to_str()?.parse().ok().filter(|_| is_it(&process)))
    };
    let found = find()?;
    // One that ends has no lock any more for a moment.
    std::thread::sleep(LOOK_AGAIN);
    let is_down = matches!(look(dir, name), Seen::Down | Seen::Removed);
    find().filter(|again| *again == found && is_down)
}

/// Queries the node called `name`.
pub fn look(dir: &ClusterDir, name: &str) -> Seen<Status> {
    Seen::of(dir, name, "status", ANSWER_WITHIN)
}

/// Queries all nodes in `names` at once.
pub fn look_at_all(dir: &ClusterDir, names: &[&str]) -> Vec<(String, Seen<Status>)> {
    Seen::of_all(dir, names, "status", ANSWER_WITHIN)
}

/// Returns the status of the node called `name`, if it runs and answers.
pub fn status(dir: &ClusterDir, name: &str) -> Option<Status> {
    match look(dir, name) {
        Seen::Alive(status) => Some(*status),
        _ => None,
    }
}

/// Returns the last line of a node's log, without the name of the program, time and level.
pub fn last_words(dir: &ClusterDir, name: &str) -> Option<String> {
    let text = tail(&dir.log(name), 4096).ok()?;
    worded(name, text.lines().rev().find(|line| !line.trim().is_empty())?)
}

/// Returns a line as the reason of a node; `None` if it has no words, as when the disk of the log
/// became full within it.
fn worded(name: &str, line: &str) -> Option<String> {
    let level = ["  INFO ", "  WARN ", " ERROR "].iter().find_map(|level| line.split_once(level));
    let why = level.map_or(line, |(_, why)| why).trim().trim_start_matches("plexus:").trim();
    (!why.is_empty()).then(|| if why.contains(name) { why.into() } else { format!("{name}: {why}") })
}

/// Returns the last bytes of a file, at most `enough`, as text.
pub(super) fn tail(path: &Path, enough: u64) -> io::Result<String> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(enough)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_words() {
        for line in ["", "plexus:", "plexus: ", "plexus: \n", " "] {
            assert_eq!(worded("n1", line), None, "{line:?}");
        }
        assert_eq!(worded("n1", "plexus: no disk"), Some("n1: no disk".into()));
        assert_eq!(worded("n1", "n1 has no disk\n"), Some("n1 has no disk".into()));
        let line = "2026-11-26T01:54:23.094795Z  INFO waiting for n2: no path";
        assert_eq!(worded("n1", line), Some("n1: waiting for n2: no path".into()));
    }
}
