//! The control socket of a node, for the command line.
//!
//! A Unix stream socket, `run/NAME.sock`, for the node's own user and root only: the mode of the
//! file and the user of the client's process are both checked. Each request and each response is a
//! line of JSON:
//!
//! ```text
//! -> {"command":"bench.blocks","args":{...}}
//! <- {"progress":...}            any number
//! <- {"ok":...}                  or {"error":"one line"}
//! ```
//!
//! A connection has one request at a time. Closing the connection cancels the command. The caller
//! of [`Commands::register`] decides which commands there are. An unknown command or a malformed
//! line is answered with an error and has no other effect.

mod client;
mod places;
mod process;
mod reach;
mod seen;
mod server;

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock, Weak},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use client::{Control, ControlError, ControlResponse};
pub use places::CommandSlots;
pub use process::ProcessState;
pub use reach::{call_anywhere, forward, on_its_host, status_of_cluster};
pub use seen::{ANSWER_WITHIN, Seen};
pub use server::Server;

/// The longest line in bytes, in both directions.
const MAX_LINE: u64 = 16 << 20;

/// Sends a value to the client ([`Value::Null`]: nothing) and returns true while the client is
/// connected. A long command must check it and end when it is false.
pub type Progress<'a> = &'a mut dyn FnMut(Value) -> bool;

/// The action of a command. The text of its error is one line for the user.
pub type Action = dyn Fn(Value, Progress<'_>) -> Result<Value, String> + Send + Sync;

/// The commands of a node. The list grows while the node starts; it is cheap to clone.
#[derive(Clone, Default)]
pub struct Commands(Arc<RwLock<BTreeMap<&'static str, Arc<Action>>>>);

/// The commands of a node, as long as its control socket is open.
#[derive(Clone)]
pub struct WeakCommands(Weak<RwLock<BTreeMap<&'static str, Arc<Action>>>>);

impl WeakCommands {
    /// Returns the commands; `None` when the node is ending.
    pub fn upgrade(&self) -> Option<Commands> {
        self.0.upgrade().map(Commands)
    }
}

impl Commands {
    /// Adds a command, or replaces the one with its name. `run` gets the arguments of the command.
    pub fn register(
        &self,
        name: &'static str,
        run: impl Fn(Value, Progress<'_>) -> Result<Value, String> + Send + Sync + 'static,
    ) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(name, Arc::new(run));
    }

    /// Returns a reference that does not keep the parts of the node alive.
    pub fn downgrade(&self) -> WeakCommands {
        WeakCommands(Arc::downgrade(&self.0))
    }

    /// Returns the action of a command.
    pub fn find(&self, name: &str) -> Result<Arc<Action>, String> {
        let commands = self.0.read().unwrap_or_else(PoisonError::into_inner);
        commands.get(name).cloned().ok_or_else(|| {
            let known: Vec<_> = commands.keys().copied().collect();
            format!("the node does not know `{name}` (yet); it knows {}", known.join(", "))
        })
    }
}

/// A request of a client.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The name of the command.
    pub command: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Value,
}

/// A response to a client.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// A value on the way; any number of them.
    Progress(Value),
    /// The answer.
    Ok(Value),
    /// The error, in one line.
    Error(String),
}

/// The result of a forwarded command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Forwarded {
    /// The answer of the node.
    Ok(Value),
    /// The error of the node, in one line.
    Error(String),
    /// The node is a member, and did not answer for this reason.
    Unreachable(String),
    /// The node belongs to the cluster and is not a member.
    Down,
    /// The node does not belong to the cluster.
    Removed,
}

impl Forwarded {
    /// Decodes the answer of a node.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        match serde_json::from_slice(bytes) {
            Ok(Response::Ok(value)) => Self::Ok(value),
            Ok(Response::Error(why)) => Self::Error(why),
            Ok(Response::Progress(_)) => Self::Error("it answered with progress and no result".into()),
            Err(error) => Self::Error(format!("its answer is malformed: {error}")),
        }
    }
}

/// Decodes any bytes as a line of either side, for fuzzing; returns true if one side takes it.
#[doc(hidden)]
pub fn line_any(bytes: &[u8]) -> bool {
    let request = serde_json::from_slice::<Request>(bytes);
    // Every request gets an answer, if only that there is no such command.
    let asked = request.is_ok_and(|request| Commands::default().find(&request.command).is_err());
    asked || serde_json::from_slice::<Response>(bytes).is_ok()
}

#[cfg(test)]
mod tests;
