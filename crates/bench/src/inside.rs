//! The control commands of measurements.

use std::sync::Arc;

use plexus_interconnect::Worker;
use plexus_node::{body::Body, control::Command, service::NodeService};

use crate::{blocks, locks, perf};

/// Returns the commands of measurements, to register beside the node's own.
#[must_use]
pub fn commands(body: &Arc<Body>) -> Vec<Arc<dyn Command>> {
    let mut commands = blocks::command::commands(body);
    commands.extend(locks::command::commands(&(Arc::clone(body) as Arc<dyn locks::Host>)));
    // A measurement uses one path: from the first worker to the first worker of the peer.
    let place = |worker: &Worker<NodeService>| perf::Place {
        worker: worker.clone(),
        window: body.benchmark_window(),
    };
    commands.extend(body.workers().first().map(place).iter().flat_map(perf::command::commands));
    commands
}
