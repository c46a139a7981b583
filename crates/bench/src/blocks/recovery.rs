//! The measurement of recovery on a temporary cluster: nodes are killed with SIGKILL under the
//! block workload. It measures how long clients of the other nodes wait, and checks that every
//! acknowledged change is there.
//!
//! | blocks, in this order | use |
//! |---|---|
//! | hot | the block workload, on all nodes, changes them |
//! | shared | one client on each of the first two nodes changes them in turn |
//! | changed | only the victim changes them, before its death |
//! | unchanged | a client of the first node reads one after the other; no node changes them |

use std::{
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use plexus_admin::TemporaryCluster;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    Report, Workload,
    command::Sum,
    node::Sums,
    probe::{BlockRange, Fill, Filled, Probe, Probed, unix_us},
    run::run,
};
use crate::{
    everywhere::{RunError, parse, to_json},
    responses::thousandths,
};

/// The blocks that survivors hold.
const SHARED: u64 = 16;

/// The blocks among the changed ones that are read after a death, evenly distributed.
const READ_AFTERWARDS: u64 = 64;

/// The pause between two blocks of a client that waits for blocks.
const PAUSE_US: u64 = 500;

/// The time after a new view in which a client may still meet a block that waits for it.
const SETTLES_US: u64 = 20_000;

/// The longest wait for any answer.
const TIMEOUT: Duration = Duration::from_secs(150);

/// The time between the start of the clients and the kill.
const BEFORE: Duration = Duration::from_millis(700);

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// The workload on all nodes.
    pub workload: Workload,
    /// The blocks that only the victim changes.
    pub changed: u64,
    /// The bytes of redo that the victim has made when it dies.
    pub redo_bytes: u64,
}

/// The result of the death of one node. Times are in milliseconds, from the kill on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeathReport {
    /// The name of the node.
    pub victim: String,
    /// The bytes of redo of the victim since its checkpoint, without those of the workload.
    pub redo_bytes: u64,
    /// The blocks with this redo.
    pub changed_blocks: u64,
    /// The time until the first node acts in a view without the victim.
    pub view_ms: f64,
    /// The time until clients go on with blocks that the survivors hold.
    pub held_ms: f64,
    /// The time until a client goes on with blocks that no node holds and that the victim had not
    /// changed.
    pub unchanged_ms: f64,
    /// The time until the first block is read that the victim had changed.
    pub first_changed_ms: f64,
    /// The time until the last block is read that the victim had changed.
    pub all_ms: f64,
    /// The changes of the victim alone that were acknowledged, and those that are found.
    pub changes_made: u64,
    #[allow(missing_docs, reason = "see the field before")]
    pub changes_found: u64,
    /// The report of the workload: its changes, acknowledged and found, are those of all nodes.
    pub load: Report,
}

/// The result of the start after the death of all nodes. Times are in milliseconds, from the start
/// of the processes on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StartReport {
    /// The bytes of redo of all nodes, and the blocks with them.
    pub redo_bytes: u64,
    #[allow(missing_docs, reason = "see the field before")]
    pub changed_blocks: u64,
    /// The time until all nodes serve.
    pub serve_ms: f64,
    /// The time until the last changed block is read.
    pub all_ms: f64,
    /// The changes that were acknowledged, and those that are found.
    pub changes_made: u64,
    #[allow(missing_docs, reason = "see the field before")]
    pub changes_found: u64,
}

impl Recovery {
    /// Returns the number of blocks that the group of the cluster needs.
    pub fn blocks(&self) -> u64 {
        self.unchanged().first + self.unchanged().blocks
    }

    fn shared(&self) -> BlockRange {
        BlockRange { first: self.workload.hot, blocks: SHARED }
    }

    fn changed(&self) -> BlockRange {
        BlockRange { first: self.workload.hot + SHARED, blocks: self.changed }
    }

    fn unchanged(&self) -> BlockRange {
        let time_us = (self.workload.warm_ms + self.workload.measured_ms) * 1000;
        BlockRange { first: self.changed().first + self.changed, blocks: time_us / PAUSE_US + 1 }
    }

    /// Kills the last node under load, measures, and starts it again. The workload must run long
    /// enough for the recovery.
    ///
    /// # Errors
    /// See [`RunError`]: a node fails, or an acknowledged change is missing.
    pub fn death(
        &self,
        cluster: &mut TemporaryCluster,
        rail: &str,
        interrupted: &AtomicBool,
    ) -> Result<DeathReport, RunError> {
        let config = cluster.config().clone();
        let victim = config.nodes.len() - 1;
        let before = self.sum(cluster, 0)?;
        let filled: Filled = call(cluster, victim, "bench.fill", &self.fill())?;
        let probe = |range, changes| {
            let time_ms = Some(self.workload.warm_ms + self.workload.measured_ms);
            Probe { range, step: 1, changes, pause_us: PAUSE_US, time_ms }
        };
        let (shared, epoch, mut view_ms) = (&*cluster, epoch(cluster)?, 0.0);
        let (killed_us, changed, held, unchanged, load) = thread::scope(|scope| {
            let load = scope.spawn(|| run(&config, &self.workload, rail, interrupted));
            let start = |node, range, changes| {
                let control = shared.control(node);
                scope.spawn(move || -> Result<Probed, RunError> {
                    call_on(control?, node, "bench.probe", &probe(range, changes))
                })
            };
            let held = [start(0, self.shared(), true), start(1, self.shared(), true)];
            let unchanged = start(0, self.unchanged(), false);
            thread::sleep(BEFORE);
            let control = shared.control(0)?;
            let killed = (Instant::now(), unix_us());
            shared.kill(&[victim]).map_err(failed)?;
            let changed = scope.spawn(move || call_on(control, 0, "bench.probe", &self.read_afterwards()));
            while self::epoch(shared)? == epoch && killed.0.elapsed() < TIMEOUT {
                thread::sleep(Duration::from_millis(1));
            }
            view_ms = killed.0.elapsed().as_secs_f64() * 1e3;
            let changed: Probed = joined(changed)?;
            let [first, second] = held.map(joined);
            let waits = [first?.waits, second?.waits].concat();
            Ok::<_, RunError>((killed.1, changed, waits, joined(unchanged)?.waits, joined(load)?))
        })?;
        cluster.wait_for_end(&[victim]).map_err(failed)?;
        let found = self.sum(cluster, 1)? - before;
        lost(filled.changes, found)?;
        cluster.start_again(&[victim]).map_err(failed)?;
        let until_us = killed_us + (view_ms * 1e3) as u64 + SETTLES_US;
        let since = |us: u64| thousandths(us.saturating_sub(killed_us) as f64 / 1e3);
        Ok(DeathReport {
            victim: config.nodes[victim].name.clone(),
            redo_bytes: filled.redo_bytes,
            changed_blocks: self.changed,
            view_ms: thousandths(view_ms),
            held_ms: since(end_of_longest(&held, killed_us, until_us)),
            unchanged_ms: since(end_of_longest(&unchanged, killed_us, until_us)),
            first_changed_ms: since(changed.waits.first().map_or(changed.end_us, |wait| wait.1)),
            all_ms: since(changed.end_us),
            changes_made: filled.changes,
            changes_found: found,
            load,
        })
    }

    /// Makes redo on the last node, kills all nodes, and measures their start.
    ///
    /// # Errors
    /// As [`Recovery::death`].
    pub fn start(&self, cluster: &mut TemporaryCluster) -> Result<StartReport, RunError> {
        let nodes: Vec<usize> = (0..cluster.config().nodes.len()).collect();
        let before = self.sum(cluster, 0)?;
        let filled: Filled = call(cluster, nodes.len() - 1, "bench.fill", &self.fill())?;
        cluster.kill(&nodes).map_err(failed)?;
        cluster.wait_for_end(&nodes).map_err(failed)?;
        let start = Instant::now();
        let ms = || thousandths(start.elapsed().as_secs_f64() * 1e3);
        cluster.start_again(&nodes).map_err(failed)?;
        let serve_ms = ms();
        let _: Probed = call(cluster, 0, "bench.probe", &self.read_afterwards())?;
        let all_ms = ms();
        let changes_found = self.sum(cluster, 1)? - before;
        lost(filled.changes, changes_found)?;
        let Filled { redo_bytes, changes: changes_made } = filled;
        let changed_blocks = self.changed;
        Ok(StartReport { redo_bytes, changed_blocks, serve_ms, all_ms, changes_made, changes_found })
    }

    fn fill(&self) -> Fill {
        Fill { range: self.changed(), redo_bytes: self.redo_bytes }
    }

    fn read_afterwards(&self) -> Probe {
        // The last block is read too.
        let step = (self.changed / READ_AFTERWARDS).max(1);
        let range = self.changed();
        let blocks = range.blocks - (range.blocks - 1) % step;
        let first = range.first + range.blocks - blocks;
        let range = BlockRange { first, blocks };
        Probe { range, step, changes: false, pause_us: 0, time_ms: None }
    }

    /// Returns the number of changes of the blocks that only the victim changes.
    fn sum(&self, cluster: &TemporaryCluster, node: usize) -> Result<u64, RunError> {
        let BlockRange { first, blocks } = self.changed();
        let sums: Sums = call(cluster, node, "bench.sum", &Sum { first, hot: blocks, slots: 0 })?;
        Ok(sums.total)
    }
}

/// Returns the end of the longest wait after the kill that began before `until_us`. Later waits
/// have other reasons.
fn end_of_longest(waits: &[(u64, u64)], killed_us: u64, until_us: u64) -> u64 {
    let after = waits.iter().filter(|(start, end)| *end > killed_us && *start <= until_us);
    let longest = after.max_by_key(|(start, end)| end - start.max(&killed_us));
    longest.map_or(killed_us, |(_, end)| *end)
}

fn lost(made: u64, found: u64) -> Result<(), RunError> {
    match made == found {
        true => Ok(()),
        false => Err(RunError::Sums(format!(
            "{made} changes of one node were acknowledged before its death, but {found} are found"
        ))),
    }
}

fn epoch(cluster: &TemporaryCluster) -> Result<u64, RunError> {
    let status: Value = call(cluster, 0, "status", &json!({}))?;
    Ok(status["epoch"].as_u64().unwrap_or_default())
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T, RunError>>) -> Result<T, RunError> {
    thread.join().unwrap_or_else(|_| Err(failed("a thread of the measurement has panicked")))
}

fn failed(why: impl ToString) -> RunError {
    RunError::Workload(why.to_string())
}

fn call<T: DeserializeOwned>(
    cluster: &TemporaryCluster,
    node: usize,
    command: &str,
    args: &impl Serialize,
) -> Result<T, RunError> {
    call_on(cluster.control(node)?, node, command, args)
}

fn call_on<T: DeserializeOwned>(
    mut control: plexus_admin::control::Control,
    node: usize,
    command: &str,
    args: &impl Serialize,
) -> Result<T, RunError> {
    control.set_timeout(TIMEOUT)?;
    let name = format!("n{}", node + 1);
    parse(&name, control.call(command, to_json(args), |_| {})?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waits_after_the_kill_count() {
        let waits = [(0, 90), (95, 130), (131, 150), (160, 180)];
        assert_eq!(end_of_longest(&waits, 100, 150), 130);
        assert_eq!(end_of_longest(&waits, 160, 170), 180);
        assert_eq!(end_of_longest(&waits, 200, 300), 200);
        assert_eq!(end_of_longest(&[(95, 110), (200, 900)], 100, 150), 110, "a later stall");
    }

    #[test]
    fn the_last_changed_block_is_read_and_ranges_do_not_overlap() {
        for changed in [1, 63, 64, 100, 1000] {
            let recovery = Recovery { workload: Workload::default(), changed, redo_bytes: 0 };
            let Probe { range, step, .. } = recovery.read_afterwards();
            let last = (0..range.blocks).step_by(step as usize).last().unwrap() + range.first;
            assert_eq!(last + 1, recovery.unchanged().first, "{changed}");
            assert!(range.first >= recovery.changed().first);
            assert_eq!(recovery.shared().first + SHARED, recovery.changed().first);
        }
    }
}
