//! Sends requests to several nodes at once, from the command line: a workload for all nodes, which
//! start together, or the two sides of a measurement. Of several failures the most informative one
//! is reported.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use plexus_admin::{
    config::Config,
    control::{ControlError, ProcessState, call_anywhere},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::stage::LOOK_EVERY;

/// The delay before the start, in which all nodes are asked.
const AHEAD: Duration = Duration::from_millis(100);

/// The time that a node may need beyond its workload.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// After a failure, the time in which other nodes may report theirs: it is often the cause.
const LAST_WORDS: Duration = Duration::from_millis(1500);

/// The reason why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The run is not possible with these arguments.
    #[error("{0}")]
    Workload(String),
    /// A node refused or failed.
    #[error(transparent)]
    Node(#[from] ControlError),
    /// The answer of a node is malformed.
    #[error("{name}: malformed answer: {source}")]
    Answer {
        /// The name of the node.
        name: String,
        /// The error of the decoder.
        source: serde_json::Error,
    },
    /// The counts of the clients differ from those found: changes were lost or made twice, or a
    /// lock had two holders.
    #[error("{0}")]
    Sums(String),
    /// The user interrupted the run.
    #[error("interrupted")]
    Interrupted,
}

/// A request to every node: it returns the arguments of `command` for a start time in milliseconds
/// of Unix time.
pub(crate) struct Call<'a> {
    pub(crate) command: &'static str,
    pub(crate) args: &'a dyn Fn(u64) -> Value,
    /// The duration of the command.
    pub(crate) time: Duration,
}

/// Runs the command on every node and returns their answers.
///
/// # Errors
/// See [`RunError`]. Work that the nodes have begun ends by itself.
pub(crate) fn everywhere<T: DeserializeOwned>(
    config: &Config,
    call: &Call<'_>,
    interrupted: &AtomicBool,
) -> Result<Vec<T>, RunError> {
    let answers = request(config, to_all(config, call), false, interrupted, &mut |_| {})?;
    let parsed = config.nodes.iter().zip(answers).map(|(node, answer)| match answer {
        Ok(answer) => parse(&node.name, answer),
        Err(absent) => Err(absent.why.into()),
    });
    parsed.collect()
}

/// A node that has not answered: it ended, its process is stopped, or its host is not reached.
#[derive(Debug)]
pub(crate) struct Absent {
    /// The last progress that it reported.
    pub(crate) progress: Value,
    /// The reason.
    pub(crate) why: ControlError,
}

/// As [`everywhere`], but a node may end or be stopped meanwhile.
///
/// # Errors
/// As [`everywhere`]; also if a node runs and does not answer.
pub(crate) fn everywhere_alive<T: DeserializeOwned>(
    config: &Config,
    call: &Call<'_>,
    interrupted: &AtomicBool,
) -> Result<Vec<Result<T, Absent>>, RunError> {
    let answers = request(config, to_all(config, call), true, interrupted, &mut |_| {})?;
    let parsed = config.nodes.iter().zip(answers).map(|(node, answer)| match answer {
        Ok(answer) => Ok(Ok(parse(&node.name, answer)?)),
        Err(absent) => Ok(Err(absent)),
    });
    parsed.collect()
}

/// Requests to nodes, and the longest time until all have answered.
struct Requests {
    /// The index of the node, the command and its arguments.
    of: Vec<(usize, &'static str, Value)>,
    time: Duration,
}

fn to_all(config: &Config, call: &Call<'_>) -> Requests {
    let start = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + AHEAD;
    let args = (call.args)(start.as_millis() as u64);
    let of = config.nodes.iter().map(|node| (node.number.index(), call.command, args.clone())).collect();
    Requests { of, time: AHEAD + call.time + TIMEOUT }
}

/// A report of a node over its control socket.
enum NodeReport {
    Progress(usize, Value),
    /// The end of the request with this index.
    End(usize, Result<Value, ControlError>),
}

/// Sends requests to nodes, each with its command and arguments, and returns their answers in the
/// order of the requests. `tell` gets the progress.
///
/// # Errors
/// See [`RunError`]. Work that the nodes have begun ends by itself.
pub(crate) fn ask(
    config: &Config,
    requests: Vec<(usize, &'static str, Value)>,
    time: Duration,
    interrupted: &AtomicBool,
    tell: &mut dyn FnMut(Value),
) -> Result<Vec<Value>, RunError> {
    let answers = request(config, Requests { of: requests, time }, false, interrupted, tell)?;
    answers.into_iter().map(|answer| answer.map_err(|absent| absent.why.into())).collect()
}

/// As [`ask`]. With `may_end`, a node that ends or whose process is stopped is absent; else it is
/// an error.
fn request(
    config: &Config,
    requests: Requests,
    may_end: bool,
    interrupted: &AtomicBool,
    tell: &mut dyn FnMut(Value),
) -> Result<Vec<Result<Value, Absent>>, RunError> {
    let (sender, reports) = mpsc::channel();
    let mut waiting = Vec::new();
    for (index, (node, command, args)) in requests.of.into_iter().enumerate() {
        let name = &config.nodes[node].name;
        let (config, node, time, sender) = (config.clone(), name.clone(), requests.time, sender.clone());
        // The thread is not joined: it ends with its node, and a hanging one is not waited for.
        thread::spawn(move || {
            let tell = |value| drop(sender.send(NodeReport::Progress(index, value)));
            let end = call_anywhere(&config, (&node, command, &args), time, tell);
            let _ = sender.send(NodeReport::End(index, end));
        });
        waiting.push(Waiting { name, command, progress: Value::Null, moved: Instant::now(), end: None });
    }
    drop(sender);
    let mut deadline = Instant::now() + requests.time;
    while Instant::now() < deadline {
        if interrupted.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        match reports.recv_timeout(LOOK_EVERY) {
            Ok(NodeReport::Progress(index, value)) => {
                if waiting[index].progress != value {
                    (waiting[index].progress, waiting[index].moved) = (value.clone(), Instant::now());
                }
                tell(value);
            }
            Ok(NodeReport::End(index, end)) => {
                if end.as_ref().is_err_and(|error| !(may_end && is_absence(error))) {
                    deadline = deadline.min(Instant::now() + LAST_WORDS);
                }
                waiting[index].end = Some(end);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    if interrupted.load(Ordering::Relaxed) {
        return Err(RunError::Interrupted);
    }
    let mut failure: Option<ControlError> = None;
    let mut answers = Vec::new();
    for node in waiting {
        let silent = || ControlError::silent(&config.dir, node.name, node.command, node.moved.elapsed());
        match node.end.unwrap_or_else(|| Err(silent())) {
            Ok(answer) => answers.push(Ok(answer)),
            Err(why) if may_end && is_absence(&why) => {
                answers.push(Err(Absent { progress: node.progress, why }));
            }
            Err(error) => {
                let is_more = |other: &ControlError| weight(other) < weight(&error);
                if failure.as_ref().is_none_or(is_more) {
                    failure = Some(error);
                }
            }
        }
    }
    failure.map_or(Ok(answers), |error| Err(error.into()))
}

/// A request to a node.
struct Waiting<'a> {
    name: &'a str,
    command: &'static str,
    /// The last progress, and the time since which it is the same.
    progress: Value,
    moved: Instant,
    end: Option<Result<Value, ControlError>>,
}

/// Returns true if the node cannot answer because it has ended, its process is stopped, or it is on
/// another host that is not reached.
fn is_absence(error: &ControlError) -> bool {
    match error {
        ControlError::Ended { .. } | ControlError::Unreachable { .. } => true,
        ControlError::Silent { process, .. } => {
            matches!(process, ProcessState::Ended(_) | ProcessState::Stopped(_))
        }
        _ => false,
    }
}

/// Returns how informative a failure is. A lost node is the reason why the others stopped.
fn weight(error: &ControlError) -> u8 {
    match error {
        ControlError::Ended { .. } | ControlError::NotRunning { .. } => 3,
        ControlError::Refused { .. } => 2,
        // The others may have stopped it.
        ControlError::Silent { .. } => 0,
        _ => 1,
    }
}

/// Encodes the arguments of a command as JSON.
pub(crate) fn to_json(args: &impl Serialize) -> Value {
    // Plain numbers and names can always be encoded as JSON.
    serde_json::to_value(args).unwrap_or_else(|_| json!({}))
}

/// Decodes an answer of the node `name`.
pub(crate) fn parse<T: DeserializeOwned>(name: &str, answer: Value) -> Result<T, RunError> {
    serde_json::from_value(answer).map_err(|source| RunError::Answer { name: name.into(), source })
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::net::UnixListener};

    use plexus_admin::Parameters;

    use super::*;

    #[test]
    fn a_node_that_runs_and_does_not_answer_is_not_said_to_have_ended() {
        let directory = tempfile::tempdir().unwrap();
        let config = Parameters::new(2, "plexus".into(), directory.path()).unwrap().config;
        std::fs::create_dir_all(config.dir.run()).unwrap();
        let sockets = ["n1", "n2"].map(|name| UnixListener::bind(config.dir.socket(name)).unwrap());
        let run = || {
            let args = |_| json!({});
            let call = Call { command: "bench.blocks", args: &args, time: Duration::ZERO };
            let requests = Requests { time: Duration::from_millis(50), ..to_all(&config, &call) };
            request(&config, requests, true, &AtomicBool::new(false), &mut |_| {})
        };
        // No process has their locks.
        let locks = ["n1", "n2"].map(|name| File::create(config.dir.lock(name)).unwrap());
        let absent = run().unwrap();
        let why = |absent: &Absent| absent.why.to_string();
        assert!(
            absent.iter().all(|absent| why(absent.as_ref().unwrap_err()).contains("it has ended")),
            "{absent:?}"
        );
        locks[1].lock().unwrap();
        let why = run().unwrap_err().to_string();
        assert!(
            why.starts_with("n2 does not answer to `bench.blocks` (for 0.") && why.contains("it runs"),
            "{why}"
        );
        drop(sockets);
    }
}
