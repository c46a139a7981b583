//! The workload from the command line: starts it on all nodes at once, merges the results, checks
//! the counts.

use std::{sync::atomic::AtomicBool, time::Duration};

use plexus_admin::config::Config;

use super::{NodeResult, Report, Workload};
use crate::{
    everywhere::{Call, RunError, everywhere, to_json},
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
    workload.check(config.nodes.len()).map_err(RunError::Workload)?;
    let call = Call {
        command: "bench.locks",
        args: &|start_unix_ms| to_json(&Run { workload: workload.clone(), start_unix_ms }),
        time: Duration::from_millis(workload.warm_ms + workload.measured_ms),
    };
    let results: Vec<NodeResult> = everywhere(config, &call, interrupted)?;
    check(&results)?;
    Ok(Report::of(config, rail, workload, &results))
}

/// Checks for the shared name that the value block counts as many holders as were granted.
fn check(results: &[NodeResult]) -> Result<(), RunError> {
    let counted = results.iter().filter_map(|result| result.counted);
    let Some((first, last)) = counted.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1))) else {
        return Ok(());
    };
    let granted: u64 = results.iter().map(|result| result.all).sum();
    if last - first == granted {
        return Ok(());
    }
    // The value block is forgotten when no client uses the lock.
    let alone = |result: &NodeResult| result.counted.is_none_or(|(first, last)| last - first == result.all);
    if results.iter().all(alone) {
        return Err(RunError::Sums(
            "the clients of each node counted only their own locks: on a busy machine they may have run one after the other (measure longer, with --seconds), else the lock had two masters".into(),
        ));
    }
    let counted = last - first;
    Err(RunError::Sums(format!(
        "{granted} locks were granted, but their holders counted {counted}: two had the lock at once, or a value was lost"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Responses, Usage};

    fn result(all: u64, counted: Option<(u64, u64)>) -> NodeResult {
        let (responses, usage) = (Responses::new(), Usage::default());
        NodeResult { measured_ns: 1, granted: all, handed_over: 0, responses, usage, all, counted }
    }

    #[test]
    fn two_holders_of_one_lock_are_detected() {
        let good = [result(3, Some((10, 16))), result(4, Some((11, 17))), result(0, None)];
        check(&good).unwrap();
        let bad = [result(3, Some((10, 16))), result(4, Some((11, 16)))];
        let error = check(&bad).unwrap_err().to_string();
        assert!(error.starts_with("7 locks were granted, but their holders counted 6"), "{error}");
        let in_turn = [result(3, Some((0, 3))), result(4, Some((0, 4))), result(0, None)];
        let error = check(&in_turn).unwrap_err().to_string();
        assert!(error.contains("one after the other"), "{error}");
    }
}
