//! What a node is asked for by those who look at it: `snapshot`.

use std::sync::Arc;

use plexus_node::{body::Body, control::Command};
use serde_json::Value;

use crate::Snapshot;

/// Answers with a [`Snapshot`].
struct Take(Arc<Body>);

impl Command for Take {
    fn name(&self) -> &'static str {
        "snapshot"
    }

    fn run(&self, _: Value, _: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        serde_json::to_value(Snapshot::of(&self.0)).map_err(|error| error.to_string())
    }
}

/// The commands of a node that others look at, to be registered beside its own.
#[must_use]
pub fn commands(body: &Arc<Body>) -> Vec<Arc<dyn Command>> {
    vec![Arc::new(Take(Arc::clone(body)))]
}
