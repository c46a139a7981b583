//! Control commands for a program outside of the nodes that records acknowledged changes:
//! `bench.acknowledge` and `bench.counts`.
//!
//! `bench.acknowledge` is one client of the block workload. It reports each change when it is
//! durable, so the record is exact when the node dies: at most one more change was made.
//! `bench.counts` reads the counts of each block.

use std::sync::Arc;

use plexus_admin::control::{Commands, Progress};
use plexus_base::BlockId;
use plexus_cache::Cache;
use plexus_disks::{HEADER, TRAILER};
use plexus_node::runtime::NodeRuntime;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Workload,
    client::{Client, ClientSlot, strange},
    counted,
};
use crate::workload::{answer, arguments};

/// The arguments of `bench.acknowledge`.
#[derive(Deserialize)]
struct Acknowledge {
    workload: Workload,
    slot: usize,
}

/// The arguments of `bench.counts`.
#[derive(Deserialize)]
struct Counts {
    hot: u64,
    slots: usize,
}

/// Registers the commands.
pub(super) fn register(commands: &Commands, runtime: &Arc<NodeRuntime>) {
    let node = Arc::clone(runtime);
    commands.register("bench.acknowledge", move |args, progress| acknowledge(&node, args, progress));
    let node = Arc::clone(runtime);
    commands.register("bench.counts", move |args, _| {
        let Counts { hot, slots } = arguments(args)?;
        check(&node, hot, slots)?;
        answer(counts(node.cache(), hot, slots))
    });
}

/// Runs a client until it is cancelled. Each progress is a block and the number of its changes by
/// this client.
fn acknowledge(runtime: &NodeRuntime, args: Value, progress: Progress<'_>) -> Result<Value, String> {
    let Acknowledge { workload, slot } = arguments(args)?;
    check(runtime, workload.hot, slot + 1)?;
    let mut told = |block: BlockId, changes: u64| progress(json!([block.0, changes]));
    let (cache, mut client) = (runtime.cache(), Client::new(&workload, ClientSlot { slot, of: slot + 1 }));
    cache.block_on(client.acknowledge(cache, &mut told)).map_err(|error| error.to_string())?;
    Ok(Value::Null)
}

/// Checks that the blocks exist and have room for this many clients.
fn check(runtime: &NodeRuntime, hot: u64, slots: usize) -> Result<(), String> {
    let (blocks, user_bytes) =
        (runtime.cache().blocks(), runtime.config().block_size.bytes() - HEADER - TRAILER);
    match (1..=blocks).contains(&hot) && slots <= counted::slots(user_bytes) {
        true => Ok(()),
        false => Err(format!("{hot} hot blocks of {blocks} with {slots} clients: use fewer")),
    }
}

/// Returns for each block its changes by each client, or the reason why it cannot be read.
fn counts(cache: &Cache, hot: u64, slots: usize) -> Vec<Result<Vec<u64>, String>> {
    let mut session = cache.session();
    let of_block = |block| {
        let page = session.read(block).map_err(|error| error.to_string())?;
        counted::total(&page).ok_or_else(|| strange(block))?;
        Ok((0..slots).map(|slot| counted::of_slot(&page, slot)).collect())
    };
    (0..hot).map(BlockId).map(of_block).collect()
}
