//! The control commands of measurements.

use std::sync::Arc;

use plexus_admin::control::Commands;
use plexus_node::runtime::NodeRuntime;

use crate::{blocks, locks, perf};

/// Registers the commands of measurements beside the node's own.
pub fn register_measurements(commands: &Commands, runtime: &Arc<NodeRuntime>) {
    blocks::command::register(commands, runtime);
    locks::command::register(commands, &(Arc::clone(runtime) as Arc<dyn locks::Host>));
    // A measurement uses one path: from the first worker to the first worker of the peer.
    if let Some(worker) = runtime.workers().first() {
        let place = perf::MeasuredPath { worker: worker.clone(), window: runtime.benchmark_window() };
        perf::command::register(commands, &place);
    }
}
