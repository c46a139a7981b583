//! Runs a workload inside all nodes at once, from the command line: they begin at the same moment,
//! and of several failures the one is reported that says most.

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

/// The nodes begin so long after they were asked, so that all have been asked.
const AHEAD: Duration = Duration::from_millis(100);

/// What a node may take longer than its workload needs.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// When a node fails, the others may say for so long why: the cause is often another's.
const LAST_WORDS: Duration = Duration::from_millis(1500);

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It cannot be run like this.
    #[error("{0}")]
    Workload(String),
    /// A node.
    #[error(transparent)]
    Node(#[from] ControlError),
    /// A node's answer makes no sense.
    #[error("{name}: its answer makes no sense: {source}")]
    Answer {
        /// The node.
        name: String,
        /// The reason.
        source: serde_json::Error,
    },
    /// What clients were told and what is found differ: changes lost or made twice, a lock that two
    /// had.
    #[error("{0}")]
    Sums(String),
    /// The user wants no more.
    #[error("interrupted")]
    Interrupted,
}

/// What is asked of every node: the arguments of `command` for a start at that time, in
/// milliseconds of Unix time.
pub(crate) struct Call<'a> {
    pub(crate) command: &'static str,
    pub(crate) args: &'a dyn Fn(u64) -> Value,
    /// How long it takes.
    pub(crate) time: Duration,
}

/// Has every node do it; their answers.
///
/// # Errors
/// See [`RunError`]. What the nodes have begun ends by itself.
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
        // Not joined: it ends with its node, and nobody waits for one that hangs.
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

/// Of several failures, which one says most: a node that is gone is why the others stopped.
fn weight(error: &ControlError) -> u8 {
    match error {
        ControlError::Ended { .. } | ControlError::NotRunning { .. } => 3,
        ControlError::Refused { .. } => 2,
        _ => 1,
    }
}

pub(crate) fn to_json(args: &impl Serialize) -> Value {
    // Plain numbers and names: there is nothing that JSON cannot say.
    serde_json::to_value(args).unwrap_or_else(|_| json!({}))
}

pub(crate) fn parse<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, RunError> {
    serde_json::from_value(value).map_err(|source| RunError::Answer { name: name.into(), source })
}
