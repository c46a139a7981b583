//! Queries of nodes by other processes: one question, to one node or to all at once.
//!
//! A node that is down or silent is a result, not an error. All nodes are asked at the same time,
//! so silent nodes cost one timeout together.

use std::{thread, time::Duration};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Control, ControlError};
use crate::{last_end::last_end, layout::ClusterDir};

/// The longest that a node may take to answer a query.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The result of a query.
#[derive(Clone, PartialEq, Debug)]
pub enum Seen<T> {
    /// The node answered.
    Alive(Box<T>),
    /// The node runs and does not answer, or not with the expected data; the text is the reason.
    Silent(String),
    /// The node is on another host and cannot be asked from here; the text is the reason.
    Unreachable(String),
    /// The node does not run.
    Down,
    /// The node does not belong to the cluster: it was removed, or not added yet.
    Removed,
}

impl<T> Seen<T> {
    /// Returns the answer, if the node answered.
    pub fn alive(&self) -> Option<&T> {
        match self {
            Self::Alive(said) => Some(said),
            _ => None,
        }
    }

    /// Returns the answer of the node called `name`.
    ///
    /// # Errors
    /// The reason why there is none, in one line.
    pub fn answer(&self, dir: &ClusterDir, name: &str) -> Result<&T, String> {
        match self {
            Self::Alive(said) => Ok(said),
            Self::Silent(why) | Self::Unreachable(why) => Err(why.clone()),
            Self::Down => {
                let last = last_end(dir, name, false);
                let dir = dir.root().display().to_string();
                Err(ControlError::NotRunning { name: name.into(), dir, last }.to_string())
            }
            Self::Removed => Err(format!("{name} does not belong to the cluster")),
        }
    }

    /// Returns the reason why a node that may run did not answer.
    pub fn silence(&self) -> Option<&str> {
        match self {
            Self::Silent(why) | Self::Unreachable(why) => Some(why),
            Self::Alive(_) | Self::Down | Self::Removed => None,
        }
    }

    /// Returns the state in one word.
    pub fn state(&self) -> &'static str {
        match self {
            Self::Alive(_) => "alive",
            Self::Silent(_) => "silent",
            Self::Unreachable(_) => "unreachable",
            Self::Down => "down",
            Self::Removed => "removed",
        }
    }
}

impl<T: DeserializeOwned> Seen<T> {
    /// Asks the node called `name` with `command`, which needs no arguments.
    pub fn of(dir: &ClusterDir, name: &str, command: &str, timeout: Duration) -> Self {
        let answer = Control::connect(dir, name).and_then(|mut control| {
            control.set_timeout(timeout)?;
            control.call(command, Value::Null, |_| {})
        });
        match answer {
            Ok(answer) => decoded(name, answer),
            Err(ControlError::NotRunning { .. } | ControlError::Ended { .. }) => Self::Down,
            Err(error) => Self::Silent(error.to_string()),
        }
    }
}

/// Decodes the answer of the node called `name`.
pub(super) fn decoded<T: DeserializeOwned>(name: &str, answer: Value) -> Seen<T> {
    match serde_json::from_value(answer) {
        Ok(said) => Seen::Alive(Box::new(said)),
        Err(error) => Seen::Silent(format!("{name} is of another version of plexus: {error}")),
    }
}

impl<T: DeserializeOwned + Send> Seen<T> {
    /// Asks all nodes in `names` at once; the results are in their order.
    pub fn of_all(dir: &ClusterDir, names: &[&str], command: &str, timeout: Duration) -> Vec<(String, Self)> {
        thread::scope(|scope| {
            let ask = |name| scope.spawn(move || Self::of(dir, name, command, timeout));
            let asked: Vec<_> = names.iter().map(|name| (*name, ask(name))).collect();
            let seen = asked.into_iter().map(|(name, seen)| {
                let seen =
                    seen.join().unwrap_or_else(|_| Self::Silent(format!("{name}: could not be asked")));
                (name.to_owned(), seen)
            });
            seen.collect()
        })
    }
}
