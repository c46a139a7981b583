//! The workload inside one node: its clients, and what the node used while they ran.

use std::{
    io, thread,
    time::{Duration, Instant, SystemTime},
};

use plexus_base::NodeId;
use plexus_locks::{Locks, protocol::Name};
use serde::{Deserialize, Serialize};

use super::{
    Workload,
    client::{self, Done},
    names,
};
use crate::{
    Responses, Usage,
    stage::{MEASURING, OVER, Stage, rest},
};

/// Names that a client takes in turn.
const NAMES_PER_CLIENT: usize = 16;

/// What the workload needs of its node.
pub trait Host: Send + Sync {
    /// Which node it is.
    fn me(&self) -> NodeId;
    /// How many there are.
    fn nodes(&self) -> usize;
    /// Its lock manager.
    fn locks(&self) -> Locks;
}

/// What came out on one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeResult {
    /// Nanoseconds that were measured.
    pub measured_ns: u64,
    /// Locks granted and given up in that time.
    pub granted: u64,
    /// How long each took, from asking for it to having given it up.
    pub responses: Responses,
    /// CPU time and context switches of the whole node in that time.
    pub usage: Usage,
    /// Locks granted from the first to the last.
    pub all: u64,
    /// Of the name that all want: what its value block counted before the first change of this node's clients, and after their last.
    pub counted: Option<(u64, u64)>,
}

/// Runs the workload's clients on this node, beginning at `start`; `wanted` says whether to go on.
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
    let clients = if host.me().index() < workload.active { workload.clients as usize } else { 0 };
    let names = names::find(&locks, (host.me(), host.nodes()), workload.names, clients * NAMES_PER_CLIENT)?;
    let stage = Stage::default();
    let (done, moments) = thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut begin = || {
            // Everybody at once, on all nodes: whoever comes early waits.
            thread::sleep(start.duration_since(SystemTime::now()).unwrap_or_default());
            for (client, names) in names.chunks(NAMES_PER_CLIENT).enumerate() {
                let (locks, stage, kind) = (&locks, &stage, workload.names);
                let work = move || client::work(locks, kind, names, stage);
                let thread = thread::Builder::new().name(format!("client-{client}"));
                threads.push(thread.spawn_scoped(scope, work)?);
            }
            rest(Duration::from_millis(workload.warm_ms), &stage, wanted);
            let before = (Usage::now()?, Instant::now());
            stage.reach(MEASURING);
            rest(Duration::from_millis(workload.measured_ms), &stage, wanted);
            // While the clients still run: their threads count.
            Ok((before, (Usage::now()?, Instant::now())))
        };
        let moments: io::Result<_> = begin();
        stage.reach(OVER);
        let done: Vec<Done> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        (done, moments)
    });
    if let Some(why) = stage.failure() {
        return Err(why);
    }
    if done.len() < clients {
        return Err("a client of the workload has panicked; see the log".into());
    }
    let (before, after) = moments.map_err(|error| format!("the workload on this node: {error}"))?;
    let mut responses = Responses::new();
    done.iter().for_each(|done| responses.merge(&done.responses));
    let counted = done.iter().filter_map(|done| done.counted);
    Ok(NodeResult {
        measured_ns: (after.1 - before.1).as_nanos() as u64,
        granted: done.iter().map(|done| done.granted).sum(),
        responses,
        usage: after.0.since(&before.0),
        all: done.iter().map(|done| done.all).sum(),
        counted: counted.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1))),
    })
}

/// Names that nobody else uses, spread over all masters: `count` of them for this node.
pub(super) fn spread(me: NodeId, count: u64) -> impl Iterator<Item = Result<Name, String>> {
    (0..count).map(move |number| {
        Name::new(format!("bench/hold/{}/{number}", me.0).as_bytes()).map_err(|error| error.to_string())
    })
}
