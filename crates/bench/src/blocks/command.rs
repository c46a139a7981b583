//! The control commands of the workload: `bench.blocks` and `bench.sum`, those of [`recorded`], and
//! for the measurement of recovery `bench.probe` and `bench.fill`.

use std::sync::Arc;

use plexus_admin::control::{Commands, Progress};
use plexus_disks::{HEADER, TRAILER};
use plexus_node::runtime::NodeRuntime;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Workload, node, parameters::MAX_HOT, probe, recorded};
use crate::workload::{MAX_CLIENTS, Run, Running, answer, arguments};

/// The arguments of `bench.sum`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sum {
    /// The first block.
    #[serde(default)]
    pub(super) first: u64,
    /// The number of blocks.
    pub(super) hot: u64,
    pub(super) slots: usize,
}

/// Registers the commands of the block workload.
pub fn register(commands: &Commands, runtime: &Arc<NodeRuntime>) {
    let (node, running) = (Arc::clone(runtime), Running::default());
    commands.register("bench.blocks", move |args, progress| run(&node, &running, args, progress));
    let node = Arc::clone(runtime);
    commands.register("bench.sum", move |args, _| sum(&node, args));
    recorded::register(commands, runtime);
    let node = Arc::clone(runtime);
    commands.register("bench.probe", move |args, _| answer(probe::probe(&node, &arguments(args)?)?));
    let node = Arc::clone(runtime);
    commands.register("bench.fill", move |args, _| answer(probe::fill(&node, &arguments(args)?)?));
}

fn run(
    runtime: &NodeRuntime,
    running: &Running,
    args: Value,
    progress: Progress<'_>,
) -> Result<Value, String> {
    let Run::<Workload> { workload, start_unix_ms } = arguments(args)?;
    let config = runtime.config();
    let user_bytes = config.block_size.bytes() - HEADER - TRAILER;
    workload.check(runtime.members().len(), user_bytes, runtime.cache().blocks())?;
    answer(running.run(start_unix_ms, |start| {
        node::run(runtime, &workload, start, &mut |acknowledged| progress(acknowledged.into()))
    })?)
}

fn sum(runtime: &NodeRuntime, args: Value) -> Result<Value, String> {
    let Sum { first, hot, slots } = arguments(args)?;
    let most = MAX_CLIENTS as usize * runtime.config().nodes.len();
    if hot > MAX_HOT || slots > most {
        return Err(format!("sums over at most {MAX_HOT} blocks and {most} clients"));
    }
    answer(node::sum(runtime.cache(), first, hot, slots)?)
}
