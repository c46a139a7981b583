//! The control command of an observed node: `snapshot`.

use std::sync::Arc;

use plexus_node::{body::Body, control::Command};
use serde_json::Value;

use crate::Snapshot;

/// The command that answers with a [`Snapshot`].
struct Take(Arc<Body>);

impl Command for Take {
    fn name(&self) -> &'static str {
        "snapshot"
    }

    fn run(&self, _: Value, _: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        serde_json::to_value(Snapshot::of(&self.0)).map_err(|error| error.to_string())
    }
}

/// Returns the commands of an observed node, to register beside its own.
#[must_use]
pub fn commands(body: &Arc<Body>) -> Vec<Arc<dyn Command>> {
    vec![Arc::new(Take(Arc::clone(body)))]
}
