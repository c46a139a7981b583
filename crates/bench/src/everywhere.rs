//! Runs a workload inside all nodes at once, from the command line. All nodes start together. Of
//! several failures the most informative one is reported.

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
    #[error("{name}: its answer makes no sense: {source}")]
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
    let names: Vec<&str> = config.nodes.iter().map(|node| node.name.as_str()).collect();
    let start = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + AHEAD;
    let args = (call.args)(start.as_millis() as u64);
    let time = AHEAD + call.time + TIMEOUT;
    let command = call.command;
    let (sender, answers) = mpsc::channel();
    for (index, name) in names.iter().enumerate() {
        let mut control = Control::connect(&config.dir, name)?;
        control.set_timeout(time)?;
        let (sender, args) = (sender.clone(), args.clone());
        // The thread is not joined: it ends with its node, and a hanging one is not waited for.
        thread::spawn(move || {
            let _ = sender.send((index, control.call(command, args, |_| {})));
        });
    }
    drop(sender);
    let mut results: Vec<Option<T>> = names.iter().map(|_| None).collect();
    let mut failure: Option<ControlError> = None;
    let mut deadline = Instant::now() + time;
    let mut left = names.len();
    while left > 0 && Instant::now() < deadline {
        if interrupted.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        match answers.recv_timeout(LOOK_EVERY) {
            Ok((index, Ok(value))) => {
                results[index] = Some(parse(names[index], value)?);
                left -= 1;
            }
            Ok((_, Err(error))) => {
                deadline = deadline.min(Instant::now() + LAST_WORDS);
                failure = Some(match failure {
                    Some(other) if weight(&other) >= weight(&error) => other,
                    _ => error,
                });
                left -= 1;
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    if interrupted.load(Ordering::Relaxed) {
        return Err(RunError::Interrupted);
    }
    if let Some(error) = failure {
        return Err(error.into());
    }
    let silent = |index: usize| ControlError::Silent { name: names[index].into(), command: command.into() };
    results
        .into_iter()
        .enumerate()
        .map(|(index, result)| result.ok_or_else(|| silent(index).into()))
        .collect()
}

/// Returns how informative a failure is. A lost node is the reason why the others stopped.
fn weight(error: &ControlError) -> u8 {
    match error {
        ControlError::Ended { .. } | ControlError::NotRunning { .. } => 3,
        ControlError::Refused { .. } => 2,
        _ => 1,
    }
}

pub(crate) fn to_json(args: &impl Serialize) -> Value {
    // Plain numbers and names can always be encoded as JSON.
    serde_json::to_value(args).unwrap_or_else(|_| json!({}))
}

pub(crate) fn parse<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, RunError> {
    serde_json::from_value(value).map_err(|source| RunError::Answer { name: name.into(), source })
}
