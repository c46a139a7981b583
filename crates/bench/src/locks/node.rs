//! The workload inside one node: its clients, and the node's usage while they ran.

use std::time::{Instant, SystemTime};

use plexus_base::NodeId;
use plexus_locks::LockManager;
use plexus_node::runtime::NodeRuntime;
use serde::{Deserialize, Serialize};

use super::{Workload, client, names};
use crate::{
    Responses, Usage,
    stage::{self, Measured, Stage, Times},
};

/// The number of names that a client takes in turn.
const NAMES_PER_CLIENT: usize = 16;

/// The parts of a node that the workload uses.
pub trait Host: Send + Sync {
    /// Returns the number of the node.
    fn me(&self) -> NodeId;
    /// Returns how many members have a lower number.
    fn place(&self) -> usize {
        self.me().index()
    }
    /// Returns the number of members.
    fn nodes(&self) -> usize;
    /// Returns its lock manager.
    fn locks(&self) -> LockManager;
}

impl Host for NodeRuntime {
    fn me(&self) -> NodeId {
        self.me()
    }

    fn place(&self) -> usize {
        self.members().iter().take_while(|node| *node < self.me()).count()
    }

    fn nodes(&self) -> usize {
        self.members().len()
    }

    fn locks(&self) -> LockManager {
        self.locks().clone()
    }
}

/// The result of one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeResult {
    /// The measured time in nanoseconds.
    pub measured_ns: u64,
    /// The locks granted and released in that time.
    pub granted: u64,
    /// The grants after a holder on another node; counted only for the shared name.
    pub handed_over: u64,
    /// The times from the request of a lock to its release.
    pub responses: Responses,
    /// The CPU time and context switches of the whole node in that time.
    pub usage: Usage,
    /// The locks granted, including the warm-up.
    pub all: u64,
    /// For the shared name: the count in its value block before the first change of this node's
    /// clients, and after their last.
    pub counted: Option<(u64, u64)>,
}

/// Runs the workload's clients on this node, starting at `start`; `wanted` returns false to cancel.
///
/// # Errors
/// One line for the user.
pub(super) fn run(
    host: &dyn Host,
    workload: &Workload,
    start: SystemTime,
    wanted: &mut dyn FnMut() -> bool,
) -> Result<NodeResult, String> {
    let locks = host.locks();
    let clients = if host.place() < workload.active { workload.clients as usize } else { 0 };
    let (me, count) = (host.me(), clients * NAMES_PER_CLIENT);
    let names = names::find(&locks, (me, host.nodes()), workload.names, count, wanted)?;
    let work = |names| {
        let (locks, kind) = (&locks, workload.names);
        move |stage: &Stage| client::work((locks, me), kind, names, stage)
    };
    let Workload { warm_ms, measured_ms, .. } = *workload;
    let times = Times { start, warm_ms, measured_ms };
    let moment = || Ok((Usage::now()?, Instant::now()));
    let Measured { done, before, after } =
        stage::run(times, names.chunks(NAMES_PER_CLIENT).map(work), moment, wanted)?;
    let mut responses = Responses::new();
    done.iter().for_each(|done| responses.merge(&done.responses));
    let counted = done.iter().filter_map(|done| done.counted);
    Ok(NodeResult {
        measured_ns: (after.1 - before.1).as_nanos() as u64,
        granted: done.iter().map(|done| done.granted).sum(),
        handed_over: done.iter().map(|done| done.handed_over).sum(),
        responses,
        usage: after.0.since(&before.0),
        all: done.iter().map(|done| done.all).sum(),
        counted: counted.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1))),
    })
}
