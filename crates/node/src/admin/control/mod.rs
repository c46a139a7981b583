//! The control socket of a node: how the command line talks to it.
//!
//! A Unix stream socket, `run/NAME.sock`, for the owner of the cluster only. Each request and each response is a
//! line of JSON:
//!
//! ```text
//! -> {"command":"bench.blocks","args":{...}}
//! <- {"progress":...}            any number
//! <- {"ok":...}                  or {"error":"one line"}
//! ```
//!
//! One request at a time for a connection. Closing the connection tells the command that nobody waits any
//! more. What commands there are is decided by whoever registers them in [`Commands`]; a request for another one is
//! an error, like anything else that is not such a line, and ends nothing but itself.

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

pub use client::{Control, ControlError, Said};
pub(crate) use places::Places;
pub use seen::{ANSWER_WITHIN, Seen};
pub use server::Server;

/// Longest line in bytes, either way.
const MAX_LINE: u64 = 16 << 20;

/// Something that a node does when asked.
pub trait Command: Send + Sync {
    /// How it is asked for.
    fn name(&self) -> &'static str;

    /// Does it. `progress` sends something to the client on the way ([`Value::Null`]: nothing) and returns
    /// whether the client is still there; a long command asks now and then, and ends when it is not.
    ///
    /// # Errors
    /// One line for the user.
    fn run(&self, args: Value, progress: &mut dyn FnMut(Value) -> bool) -> Result<Value, String>;
}

/// The commands of a node. Grows while it starts; cheap to clone.
#[derive(Clone, Default)]
pub struct Commands(Arc<RwLock<BTreeMap<&'static str, Arc<dyn Command>>>>);

impl Commands {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one; takes the place of one with the same name.
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

/// Reads any bytes as a line of either side, as a fuzz target would; whether one of them would take it.
#[doc(hidden)]
#[must_use]
pub fn line_any(bytes: &[u8]) -> bool {
    let request = serde_json::from_slice::<Request>(bytes);
    // Whoever asked is answered, be it that there is no such command.
    let asked = request.is_ok_and(|request| Commands::new().find(&request.command).is_err());
    asked || serde_json::from_slice::<Response>(bytes).is_ok()
}

#[cfg(test)]
mod tests;
