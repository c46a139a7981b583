//! What a node is asked for by measurements, made from its body.

use std::sync::Arc;

use plexus_base::NodeId;
use plexus_cache::{Cache, protocol::Counts};
use plexus_interconnect::Worker;
use plexus_locks::LockManager;
use plexus_node::{body::Body, control::Command, service::NodeService};
use plexus_observe::Traffic;

use crate::{
    Member,
    blocks::{self, Host},
    locks, perf,
};

impl Member for Body {
    fn me(&self) -> NodeId {
        self.me()
    }

    fn nodes(&self) -> usize {
        self.config().nodes.len()
    }
}

impl Host for Body {
    fn cache(&self) -> Cache {
        self.cache().clone()
    }

    fn counts(&self) -> Counts {
        self.counts()
    }

    fn traffic(&self) -> Traffic {
        Traffic::of(&self.links())
    }
}

impl locks::Host for Body {
    fn locks(&self) -> LockManager {
        self.locks().clone()
    }
}

/// The commands of a node that measurements need, to be registered beside its own.
#[must_use]
pub fn commands(body: &Arc<Body>) -> Vec<Arc<dyn Command>> {
    let mut commands = blocks::command::commands(Arc::clone(body) as Arc<dyn Host>, body.config().block_size);
    commands.extend(locks::command::commands(&(Arc::clone(body) as Arc<dyn locks::Host>)));
    // A measurement is of one path: that of the first worker to the first worker of the peer.
    let place = |worker: &Worker<NodeService>| perf::Place {
        worker: worker.clone(),
        window: body.benchmark_window(),
    };
    commands.extend(body.workers().first().map(place).iter().flat_map(perf::command::commands));
    commands
}
