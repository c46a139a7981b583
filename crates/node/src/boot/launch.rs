//! The start of nodes as processes of their own, and the wait until they serve.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    admin::commands::Status,
    admin::control::{ANSWER_WITHIN, Seen},
    boot::layout::ClusterDir,
    lifecycle::Stage,
};

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
    /// The pipe whose closing ends the node; without one the node continues alone, as a daemon.
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
    /// A node exceeded the time limit.
    #[error("{name} is still {stage} after {} s; see {}", .after.as_secs(), .log.display())]
    Late {
        /// The node.
        name: String,
        /// The stage of the node.
        stage: Stage,
        /// The time limit.
        after: Duration,
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
        command.arg("node").arg(root).arg(self.name).stdout(log).stderr(error_log);
        match self.lifeline {
            Some(pipe) => command.stdin(pipe).args(["--lifeline", "0"]),
            None => command.stdin(Stdio::null()).arg("--daemon"),
        };
        if let Some(namespace) = self.network_namespace {
            command.arg("--network-namespace").arg(namespace);
        }
        let child = command.spawn().map_err(failed("starting its process"))?;
        Ok(Launched { name: self.name.into(), child })
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
    let start = Instant::now();
    let mut stages = vec![Stage::Starting; nodes.len()];
    loop {
        for (node, stage) in nodes.iter_mut().zip(&mut stages) {
            let ended = node.child.try_wait();
            let ended = ended.map_err(|source| LaunchError::Io {
                name: node.name.clone(),
                what: "its process",
                source,
            })?;
            let now = status(dir, &node.name);
            let why = match (ended, &now) {
                (Some(code), _) => {
                    last_words(dir, &node.name).unwrap_or_else(|| format!("{} ended: {code}", node.name))
                }
                (None, Some(Status { state: Stage::Stopped, why, .. })) => {
                    format!("{} has stopped: {}", node.name, why.as_deref().unwrap_or("it does not say why"))
                }
                (None, Some(now)) if now.state != *stage => {
                    *stage = now.state;
                    progress(&node.name, *stage);
                    continue;
                }
                _ => continue,
            };
            return Err(LaunchError::Ended { name: node.name.clone(), why });
        }
        let Some(late) = stages.iter().position(|stage| *stage < Stage::Running) else { return Ok(()) };
        if start.elapsed() > timeout {
            let name = nodes[late].name.clone();
            let log = dir.log(&name);
            return Err(LaunchError::Late { name, stage: stages[late], after: timeout, log });
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// Queries the node called `name`.
#[must_use]
pub fn look(dir: &ClusterDir, name: &str) -> Seen<Status> {
    Seen::of(dir, name, "status", ANSWER_WITHIN)
}

/// Queries all nodes in `names` at once.
#[must_use]
pub fn look_at_all(dir: &ClusterDir, names: &[&str]) -> Vec<(String, Seen<Status>)> {
    Seen::of_all(dir, names, "status", ANSWER_WITHIN)
}

/// Returns the status of the node called `name`, if it runs and answers.
#[must_use]
pub fn status(dir: &ClusterDir, name: &str) -> Option<Status> {
    match look(dir, name) {
        Seen::Alive(status) => Some(*status),
        Seen::Down | Seen::Silent(_) => None,
    }
}

/// Returns the last line of a node's log, without the name of the program.
#[must_use]
pub fn last_words(dir: &ClusterDir, name: &str) -> Option<String> {
    let text = tail(&dir.log(name)).ok()?;
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    let line = line.strip_prefix("plexus: ").unwrap_or(line);
    Some(if line.contains(name) { line.into() } else { format!("{name}: {line}") })
}

fn tail(path: &Path) -> io::Result<String> {
    use std::io::{Read, Seek, SeekFrom};
    const ENOUGH: u64 = 4096;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(ENOUGH)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
