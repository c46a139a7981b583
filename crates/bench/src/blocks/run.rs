//! The workload from the command line: starts it on all nodes at once, merges the results, checks
//! the sums.

use std::{sync::atomic::AtomicBool, time::Duration};

use plexus_disks::{HEADER, TRAILER};
use plexus_node::{config::Config, control::Control};

use super::{NodeResult, Report, Workload, command::Sum, node::Sums};
use crate::{
    everywhere::{Call, RunError, TIMEOUT, everywhere, parse, to_json},
    workload::Run,
};

/// Runs `workload` on all nodes of a running cluster. `rail` is the name in the report for the rail
/// between the nodes. Ends early when `interrupted` is set.
///
/// # Errors
/// See [`RunError`]. Work that the nodes have begun ends by itself.
pub fn run(
    config: &Config,
    workload: &Workload,
    rail: &str,
    interrupted: &AtomicBool,
) -> Result<Report, RunError> {
    let names: Vec<&str> = config.nodes.iter().map(|node| node.name.as_str()).collect();
    // This check avoids a request to the nodes; they check again.
    let user_bytes = config.block_size.bytes() - HEADER - TRAILER;
    workload.check(names.len(), user_bytes, config.blocks).map_err(RunError::Workload)?;
    let slots = names.len() * workload.clients as usize;
    let before = sums(config, names[0], workload, slots)?;
    let call = Call {
        command: "bench.blocks",
        args: &|start_unix_ms| to_json(&Run { workload: workload.clone(), start_unix_ms }),
        time: Duration::from_millis(workload.warm_ms + workload.measured_ms),
    };
    let results: Vec<NodeResult> = everywhere(config, &call, interrupted)?;
    // Another node reads than before: it must get the blocks from their current holders.
    let after = sums(config, names[names.len() - 1], workload, slots)?;
    let found = check(&before, &after, &results)?;
    Ok(Report::of(config, rail, workload, &results, found))
}

fn sums(config: &Config, name: &str, workload: &Workload, slots: usize) -> Result<Sums, RunError> {
    let args = to_json(&Sum { hot: workload.hot, slots });
    let mut control = Control::connect(&config.dir, name)?;
    control.set_timeout(TIMEOUT)?;
    parse(name, "bench.sum", Some(control.call("bench.sum", args, |_| {})?))
}

/// Compares the counts in the blocks with those of the clients. Returns the changes found.
fn check(before: &Sums, after: &Sums, results: &[NodeResult]) -> Result<u64, RunError> {
    let found = after.total.wrapping_sub(before.total);
    let acknowledged: Vec<u64> =
        results.iter().flat_map(|result| result.acknowledged.iter().copied()).collect();
    let told: u64 = acknowledged.iter().sum();
    let clients = results.first().map_or(1, |result| result.acknowledged.len().max(1));
    let mut wrong = Vec::new();
    for (slot, told) in acknowledged.iter().enumerate() {
        let of = |sums: &Sums| sums.slots.get(slot).copied().unwrap_or(0);
        let stands = of(after).wrapping_sub(of(before));
        if stands != *told {
            wrong.push(format!("client {} of n{}: {told} and {stands}", slot % clients, slot / clients + 1));
        }
    }
    if found == told && wrong.is_empty() {
        return Ok(found);
    }
    wrong.truncate(4);
    Err(RunError::Sums(format!(
        "{told} changes were acknowledged, but {found} stand in the blocks: changes were lost or made twice ({})",
        wrong.join("; ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Responses, Usage};

    fn result(acknowledged: &[u64]) -> NodeResult {
        NodeResult {
            acknowledged: acknowledged.to_vec(),
            measured_ns: 1,
            reads: 0,
            changes: 0,
            hits: 0,
            responses: Responses::new(),
            usage: Usage::default(),
            counts: super::super::NodeCounts::default(),
            traffic: plexus_observe::Traffic::default(),
        }
    }

    #[test]
    fn sums_must_agree_client_by_client() {
        let sums = |total, slots: &[u64]| Sums { total, slots: slots.to_vec() };
        let before = sums(10, &[5, 5, 0, 0]);
        let results = [result(&[3, 4]), result(&[0, 1])];
        assert_eq!(check(&before, &sums(18, &[8, 9, 0, 1]), &results).unwrap(), 8);
        // One lost and one repeated change: the total alone would not show them.
        let error = check(&before, &sums(18, &[9, 8, 0, 1]), &results).unwrap_err().to_string();
        assert!(error.contains("client 0 of n1: 3 and 4; client 1 of n1: 4 and 3"), "{error}");
        let error = check(&before, &sums(17, &[8, 8, 0, 1]), &results).unwrap_err().to_string();
        assert!(error.starts_with("8 changes were acknowledged, but 7 stand in the blocks"), "{error}");
    }
}
