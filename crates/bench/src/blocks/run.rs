//! The workload from the command line: starts it on all nodes at once, merges the results, checks
//! the sums.

use std::{sync::atomic::AtomicBool, time::Duration};

use plexus_admin::{
    config::Config,
    control::{ControlError, ProcessState, call_anywhere},
};
use plexus_disks::{HEADER, TRAILER};

use super::{
    Durability, NodeResult, Report, Workload,
    command::Sum,
    node::{NodeOutcome, Sums},
};
use crate::{
    everywhere::{Absent, Call, RunError, TIMEOUT, everywhere, everywhere_alive, parse, to_json},
    workload::Run,
};

/// Runs `workload` on all nodes of a running cluster. `rail` is the name in the report for the rail
/// between the nodes. Ends early when `interrupted` is set. Nodes may leave meanwhile and, with
/// durable changes, be killed or stopped: what they had acknowledged must be found too.
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
    let is_durable = config.redo_mib > 0 && workload.durability == Durability::Commit;
    let outcomes: Vec<Result<NodeOutcome, Absent>> = match is_durable {
        true => everywhere_alive(config, &call, interrupted)?,
        false => everywhere(config, &call, interrupted)?.into_iter().map(Ok).collect(),
    };
    let (mut results, mut ended, mut stopped, mut why) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (name, outcome) in names.iter().zip(outcomes) {
        let (told, is_stopped, line) = match outcome {
            Ok(NodeOutcome::Done(result)) => {
                results.push(Ok(*result));
                continue;
            }
            Ok(NodeOutcome::Left(told)) => {
                (told, false, format!("{name} was told to end, and has left the run"))
            }
            Err(Absent { progress, why }) => {
                let told = serde_json::from_value(progress).unwrap_or_default();
                let is_stopped =
                    matches!(why, ControlError::Silent { process: ProcessState::Stopped(_), .. });
                (told, is_stopped, why.to_string())
            }
        };
        results.push(Err(told));
        if is_stopped { &mut stopped } else { &mut ended }.push((*name).to_owned());
        why.push(line);
    }
    // Another node reads than before: it must get the blocks from their current holders.
    let reader = results.iter().rposition(Result::is_ok).ok_or_else(|| {
        RunError::Sums(format!("no node is left that could read the blocks: {}", why.join("; ")))
    })?;
    let after = sums(config, names[reader], workload, slots)?;
    let found = check(&before, &after, workload.clients as usize, &results)?;
    let living: Vec<NodeResult> = results.iter().filter_map(|result| result.as_ref().ok().cloned()).collect();
    let mut report = Report::of(config, rail, workload, &living, found);
    report.changes_acknowledged +=
        results.iter().filter_map(|result| result.as_ref().err()).flatten().sum::<u64>();
    (report.ended, report.stopped, report.why) = (ended, stopped, why);
    Ok(report)
}

fn sums(config: &Config, name: &str, workload: &Workload, slots: usize) -> Result<Sums, RunError> {
    let args = to_json(&Sum { first: 0, hot: workload.hot, slots });
    parse(name, call_anywhere(config, (name, "bench.sum", &args), TIMEOUT, |_| {})?)
}

/// Compares the counts in the blocks with those of the clients. Returns the changes found. Of a
/// node that has ended the last known counts are compared: it may have acknowledged more since.
fn check(
    before: &Sums,
    after: &Sums,
    clients: usize,
    results: &[Result<NodeResult, Vec<u64>>],
) -> Result<u64, RunError> {
    let found = after.total.wrapping_sub(before.total);
    let (mut told, mut wrong) = (0, Vec::new());
    for slot in 0..clients * results.len() {
        let (node, client) = (slot / clients, slot % clients);
        let (acknowledged, is_alive) = match &results[node] {
            Ok(result) => (&result.acknowledged, true),
            Err(last) => (last, false),
        };
        let acknowledged = acknowledged.get(client).copied().unwrap_or(0);
        let of = |sums: &Sums| sums.slots.get(slot).copied().unwrap_or(0);
        let stands = of(after).wrapping_sub(of(before));
        if stands != acknowledged && (is_alive || stands < acknowledged) {
            wrong.push(format!("client {client} of n{}: {acknowledged} and {stands}", node + 1));
        }
        told += acknowledged;
    }
    let is_exact = results.iter().all(Result::is_ok);
    if wrong.is_empty() && (found == told || !is_exact && found > told) {
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
            longest_pause_ns: 0,
            reads: 0,
            changes: 0,
            hits: 0,
            responses: Responses::new(),
            change_responses: Responses::new(),
            usage: Usage::default(),
            counts: super::super::NodeCounts::default(),
            traffic: plexus_observe::Traffic::default(),
        }
    }

    #[test]
    fn sums_must_agree_client_by_client() {
        let sums = |total, slots: &[u64]| Sums { total, slots: slots.to_vec() };
        let before = sums(10, &[5, 5, 0, 0]);
        let results = [Ok(result(&[3, 4])), Ok(result(&[0, 1]))];
        assert_eq!(check(&before, &sums(18, &[8, 9, 0, 1]), 2, &results).unwrap(), 8);
        // One lost and one repeated change: the total alone would not show them.
        let error = check(&before, &sums(18, &[9, 8, 0, 1]), 2, &results).unwrap_err().to_string();
        assert!(error.contains("client 0 of n1: 3 and 4; client 1 of n1: 4 and 3"), "{error}");
        // A node that has ended may have acknowledged more than is known, and not less.
        let ended = [Ok(result(&[3, 4])), Err(vec![0, 1])];
        assert_eq!(check(&before, &sums(19, &[8, 9, 0, 2]), 2, &ended).unwrap(), 9);
        assert!(check(&before, &sums(17, &[8, 9, 0, 0]), 2, &ended).is_err());
        let error = check(&before, &sums(17, &[8, 8, 0, 1]), 2, &results).unwrap_err().to_string();
        assert!(error.starts_with("8 changes were acknowledged, but 7 stand in the blocks"), "{error}");
    }
}
