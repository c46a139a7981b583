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

use plexus_node::{
    config::Config,
    control::{Control, ControlError},
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
    let answers = request_all(config, call, interrupted, false, &mut |_, _| {})?;
    let parsed =
        config.nodes.iter().zip(answers).map(|(node, answer)| parse(&node.name, call.command, answer));
    parsed.collect()
}

/// As [`everywhere`], but a node may end meanwhile: its result is the last progress that it
/// reported.
pub(crate) fn everywhere_alive<T: DeserializeOwned>(
    config: &Config,
    call: &Call<'_>,
    interrupted: &AtomicBool,
) -> Result<Vec<Result<T, Value>>, RunError> {
    let mut progress = vec![Value::Null; config.nodes.len()];
    let answers = request_all(config, call, interrupted, true, &mut |index, value| progress[index] = value)?;
    let nodes = config.nodes.iter().zip(answers).zip(progress);
    let parsed = nodes.map(|((node, answer), last)| match answer {
        Some(answer) => Ok(Ok(parse(&node.name, call.command, Some(answer))?)),
        None => Ok(Err(last)),
    });
    parsed.collect()
}

fn request_all(
    config: &Config,
    call: &Call<'_>,
    interrupted: &AtomicBool,
    may_end: bool,
    tell: &mut dyn FnMut(usize, Value),
) -> Result<Vec<Option<Value>>, RunError> {
    let start = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + AHEAD;
    let args = (call.args)(start.as_millis() as u64);
    let requests =
        config.nodes.iter().map(|node| (node.number.index(), call.command, args.clone())).collect();
    let time = AHEAD + call.time + TIMEOUT;
    request(config, requests, time, interrupted, may_end, tell)
}

/// A report of a node over its control socket.
enum NodeReport {
    Progress(usize, Value),
    /// The end of the request with this index.
    End(usize, Result<Value, ControlError>),
}

/// Sends requests to nodes, each with its command and arguments, and returns their answers in the
/// order of the requests; `None` is a node that did not answer in `time`. `tell` gets the progress.
///
/// # Errors
/// See [`RunError`]. Work that the nodes have begun ends by itself.
pub(crate) fn ask(
    config: &Config,
    requests: Vec<(usize, &'static str, Value)>,
    time: Duration,
    interrupted: &AtomicBool,
    tell: &mut dyn FnMut(Value),
) -> Result<Vec<Option<Value>>, RunError> {
    request(config, requests, time, interrupted, false, &mut |_, value| tell(value))
}

/// As [`ask`]; `tell` gets the index of the request too. With `may_end`, a node that ends is one
/// that did not answer.
fn request(
    config: &Config,
    requests: Vec<(usize, &'static str, Value)>,
    time: Duration,
    interrupted: &AtomicBool,
    may_end: bool,
    tell: &mut dyn FnMut(usize, Value),
) -> Result<Vec<Option<Value>>, RunError> {
    let mut results = vec![None; requests.len()];
    let (sender, reports) = mpsc::channel();
    for (index, (node, command, args)) in requests.into_iter().enumerate() {
        let mut control = Control::connect(&config.dir, &config.nodes[node].name)?;
        control.set_timeout(time)?;
        let sender = sender.clone();
        // The thread is not joined: it ends with its node, and a hanging one is not waited for.
        thread::spawn(move || {
            let tell = |value| drop(sender.send(NodeReport::Progress(index, value)));
            let end = control.call(command, args, tell);
            let _ = sender.send(NodeReport::End(index, end));
        });
    }
    drop(sender);
    let mut failure: Option<ControlError> = None;
    let mut deadline = Instant::now() + time;
    while Instant::now() < deadline {
        if interrupted.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        match reports.recv_timeout(LOOK_EVERY) {
            Ok(NodeReport::Progress(index, value)) => tell(index, value),
            Ok(NodeReport::End(index, Ok(value))) => results[index] = Some(value),
            Ok(NodeReport::End(_, Err(ControlError::Ended { .. }))) if may_end => {}
            Ok(NodeReport::End(_, Err(error))) => {
                deadline = deadline.min(Instant::now() + LAST_WORDS);
                failure = Some(match failure {
                    Some(other) if weight(&other) >= weight(&error) => other,
                    _ => error,
                });
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    if interrupted.load(Ordering::Relaxed) {
        return Err(RunError::Interrupted);
    }
    failure.map_or(Ok(results), |error| Err(error.into()))
}

/// Returns how informative a failure is. A lost node is the reason why the others stopped.
fn weight(error: &ControlError) -> u8 {
    match error {
        ControlError::Ended { .. } | ControlError::NotRunning { .. } => 3,
        ControlError::Refused { .. } => 2,
        _ => 1,
    }
}

/// Encodes the arguments of a command as JSON.
pub(crate) fn to_json(args: &impl Serialize) -> Value {
    // Plain numbers and names can always be encoded as JSON.
    serde_json::to_value(args).unwrap_or_else(|_| json!({}))
}

/// Decodes the answer of the node `name` to `command`.
pub(crate) fn parse<T: DeserializeOwned>(
    name: &str,
    command: &str,
    answer: Option<Value>,
) -> Result<T, RunError> {
    let silent = || ControlError::Silent { name: name.into(), command: command.into() };
    serde_json::from_value(answer.ok_or_else(silent)?)
        .map_err(|source| RunError::Answer { name: name.into(), source })
}
