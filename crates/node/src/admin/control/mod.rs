//! The control socket of a node, for the command line.
//!
//! A Unix stream socket, `run/NAME.sock`, for the owner of the cluster only. Each request and each
//! response is a line of JSON:
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
mod seen;
mod server;

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use client::{Control, ControlError, ControlResponse};
pub(crate) use places::CommandSlots;
pub use seen::{ANSWER_WITHIN, Seen};
pub use server::Server;

/// The longest line in bytes, in both directions.
const MAX_LINE: u64 = 16 << 20;

/// A command of a node.
pub trait Command: Send + Sync {
    /// Returns the name of the command.
    fn name(&self) -> &'static str;

    /// Runs the command. `progress` sends a value to the client ([`Value::Null`]: nothing) and
    /// returns true while the client is connected; a long command must check it and end when it is
    /// false.
    ///
    /// # Errors
    /// The command failed; the text is one line for the user.
    fn run(&self, args: Value, progress: &mut dyn FnMut(Value) -> bool) -> Result<Value, String>;
}

/// The commands of a node. The list grows while the node starts; it is cheap to clone.
#[derive(Clone, Default)]
pub struct Commands(Arc<RwLock<BTreeMap<&'static str, Arc<dyn Command>>>>);

impl Commands {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a command, or replaces the one with its name.
    pub fn register(&self, command: Arc<dyn Command>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(command.name(), command);
    }

    fn find(&self, name: &str) -> Result<Arc<dyn Command>, String> {
        let commands = self.0.read().unwrap_or_else(PoisonError::into_inner);
        commands.get(name).cloned().ok_or_else(|| {
            let known: Vec<_> = commands.keys().copied().collect();
            format!("the node does not know `{name}` (yet); it knows {}", known.join(", "))
        })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    command: String,
    #[serde(default)]
    args: Value,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Response {
    Progress(Value),
    Ok(Value),
    Error(String),
}

/// Decodes any bytes as a line of either side, for fuzzing; returns true if one side takes it.
#[doc(hidden)]
#[must_use]
pub fn line_any(bytes: &[u8]) -> bool {
    let request = serde_json::from_slice::<Request>(bytes);
    // Every request gets an answer, if only that there is no such command.
    let asked = request.is_ok_and(|request| Commands::new().find(&request.command).is_err());
    asked || serde_json::from_slice::<Response>(bytes).is_ok()
}

#[cfg(test)]
mod tests;
