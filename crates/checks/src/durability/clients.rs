//! Clients that change blocks, and the record of what was acknowledged.
//!
//! The record has for each client and block the last acknowledged number of its changes. After a
//! fault a block must count at least that many. It may count more: a change that was made and not
//! acknowledged, at most one change or group for each time that a client was interrupted. A client
//! of each node changes groups of blocks, and finds its own changes of them whole.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use plexus_admin::{
    control::{Control, ControlError, ControlResponse},
    layout::ClusterDir,
};
use serde_json::{Value, json};

use super::workload::{Refusals, Workload, add_refusal};
use crate::executive::nodes::{Nodes, TIMEOUT};

/// The clients of each node.
const CLIENTS: usize = 3;

/// The blocks that a client of each node changes at once: all numbers of blocks are multiples.
const GROUP: u64 = 3;

/// The pause of a client that does not reach its node.
const RESTS: Duration = Duration::from_millis(10);

/// The interval at which a waiting client checks for the end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The longest time until all acknowledgements that were sent have been recorded.
const RECORDED_WITHIN: Duration = Duration::from_secs(10);

/// The changes of a client that were acknowledged.
#[derive(Clone)]
struct Acknowledged {
    /// By block: the acknowledged changes.
    changes: Vec<u64>,
    /// The number of changes that the client may have made when it was interrupted.
    may_have_made: u64,
}

/// The clients of a cluster, each bound to a node.
pub struct Clients {
    dir: ClusterDir,
    hot: u64,
    slots: Vec<Mutex<Acknowledged>>,
    /// The number of acknowledgements.
    count: AtomicU64,
    over: AtomicBool,
    /// An observation that must not be made.
    failure: Mutex<Option<String>>,
    refusals: Mutex<Refusals>,
}

/// The counts of the blocks that a node reads: by client, or the reason why a block is refused.
pub type Counts = Vec<Result<Vec<u64>, String>>;

impl Clients {
    /// Creates the clients of a cluster with `nodes` nodes, which change the first `hot` blocks.
    pub fn new(dir: ClusterDir, nodes: usize, hot: u64) -> Self {
        let slot = || Acknowledged { changes: vec![0; hot as usize], may_have_made: 0 };
        Self {
            dir,
            hot,
            slots: (0..nodes * CLIENTS).map(|_| Mutex::new(slot())).collect(),
            count: AtomicU64::new(0),
            over: AtomicBool::new(false),
            failure: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    fn work_once(&self, slot: usize, seed: u64) -> Result<(), ControlError> {
        let mut control = Control::connect_within(&self.dir, &Nodes::name(slot / CLIENTS), LOOK_EVERY)?;
        control.set_timeout(LOOK_EVERY)?;
        // One of the clients of a node reads half of the time, and one changes groups of blocks.
        let writes = if slot.is_multiple_of(CLIENTS) { 50 } else { 100 };
        let group = if slot % CLIENTS == 1 { GROUP } else { 1 };
        let workload = json!({
            "clients": 1, "hot": self.hot, "writes_percent": writes, "consistent_reads": slot.is_multiple_of(2),
            "order": "random", "durability": "commit", "warm_ms": 0, "measured_ms": 50, "seed": seed % (1 << 32), "group": group
        });
        // A change may be made from here on.
        self.slot(slot).may_have_made += group;
        control.ask("bench.acknowledge", json!({ "workload": workload, "slot": slot }))?;
        while !self.over.load(Ordering::Relaxed) {
            match control.hear() {
                Ok(ControlResponse::Progress(told)) => {
                    self.count.fetch_add(1, Ordering::Relaxed);
                    let number = |index: usize| told[index].as_u64().unwrap_or(u64::MAX);
                    if let Some(changes) = self.slot(slot).changes.get_mut(number(0) as usize) {
                        *changes = number(1);
                    }
                }
                Ok(ControlResponse::Done(_)) => return Ok(()),
                Err(ControlError::Silent { .. }) => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    fn slot(&self, slot: usize) -> MutexGuard<'_, Acknowledged> {
        self.slots[slot].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self, name: &str, what: String) {
        let is_wrong = ["made twice", "does not add up", "was lost"].iter().any(|part| what.contains(part));
        let whole = format!("{name}: {what}");
        if is_wrong {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(whole.clone());
        }
        let is_starting = what.contains("does not know");
        if !is_starting {
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            add_refusal(&mut refusals, &what, whole);
        }
    }

    /// Reads the counts of all blocks at a node.
    ///
    /// # Errors
    /// The node does not answer.
    pub fn counts(&self, node: usize) -> Result<Counts, String> {
        let ask = || -> Result<Value, ControlError> {
            let mut control = Control::connect(&self.dir, &Nodes::name(node))?;
            control.set_timeout(TIMEOUT)?;
            control.call("bench.counts", json!({ "hot": self.hot, "slots": self.slots.len() }), |_| ())
        };
        let value = ask().map_err(|error| error.to_string())?;
        serde_json::from_value(value).map_err(|error| format!("malformed counts: {error}"))
    }

    fn record(&self) -> Vec<Acknowledged> {
        (0..self.slots.len()).map(|slot| self.slot(slot).clone()).collect()
    }

    /// Reads the blocks at a node, and checks that they have every acknowledged change and no
    /// others. Returns the number of acknowledged changes, and the reasons for blocks that the node
    /// refuses.
    ///
    /// # Errors
    /// The node does not answer, or the counts are wrong.
    pub fn compare(&self, node: usize) -> Result<(u64, Vec<String>), String> {
        let before = self.record();
        let counts = self.counts(node)?;
        let mut all = 0;
        for (slot, record) in before.iter().enumerate() {
            all += record.changes.iter().sum::<u64>();
            for (block, counts) in (0..).zip(&counts) {
                let Ok(counts) = counts else { continue };
                let (found, acknowledged) = (counts[slot], record.changes[block]);
                if found < acknowledged {
                    return Err(format!(
                        "block {block}: client {slot} made {acknowledged} changes, and {} reads {found}",
                        Nodes::name(node)
                    ));
                }
            }
        }
        // Acknowledgements may be on the way.
        let start = Instant::now();
        while let Err(why) = invented(&counts, &self.record()) {
            if start.elapsed() > RECORDED_WITHIN {
                return Err(why);
            }
            thread::sleep(RESTS);
        }
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)?;
        Ok((all, counts.into_iter().filter_map(Result::err).collect()))
    }
}

/// Checks that the blocks count no more changes than the clients may have made.
fn invented(counts: &Counts, record: &[Acknowledged]) -> Result<(), String> {
    for (slot, Acknowledged { changes, may_have_made }) in record.iter().enumerate() {
        let more = counts
            .iter()
            .zip(changes)
            .filter_map(|(counts, changes)| Some(counts.as_ref().ok()?[slot].saturating_sub(*changes)));
        let more: u64 = more.sum();
        if more > *may_have_made {
            return Err(format!(
                "client {slot} may have made {may_have_made} changes that were not acknowledged, and the blocks count {more}"
            ));
        }
    }
    Ok(())
}

impl Workload for Clients {
    fn clients(&self) -> usize {
        self.slots.len()
    }

    fn over(&self) -> &AtomicBool {
        &self.over
    }

    fn count(&self) -> &AtomicU64 {
        &self.count
    }

    fn work(&self, client: usize, seed: u64) {
        let mut number = seed;
        while !self.over.load(Ordering::Relaxed) {
            number = number.wrapping_add(1);
            match self.work_once(client, number) {
                Ok(()) => {}
                Err(ControlError::Refused { name, what }) => self.refused(&name, what),
                Err(_) => {}
            }
            thread::sleep(RESTS);
        }
    }

    fn answers(&self, node: usize) -> Result<(), String> {
        self.counts(node)?.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    fn check(&self, node: usize) -> Result<u64, String> {
        let (found, refused) = self.compare(node)?;
        match refused.first() {
            None => Ok(found),
            Some(why) => Err(format!("{} refuses {} blocks: {why}", Nodes::name(node), refused.len())),
        }
    }

    fn refusals(&self) -> &Mutex<Refusals> {
        &self.refusals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_counts_if_it_was_acknowledged_or_its_client_interrupted() {
        let record = |may_have_made| [Acknowledged { changes: vec![3, 1], may_have_made }];
        let counts = |first, second| vec![Ok(vec![first]), Ok(vec![second])];
        assert_eq!(invented(&counts(3, 1), &record(0)), Ok(()));
        assert_eq!(invented(&counts(4, 1), &record(1)), Ok(()));
        assert!(invented(&counts(4, 2), &record(1)).is_err());
        assert_eq!(invented(&vec![Err("refused".into()), Ok(vec![1])], &record(0)), Ok(()));
    }
}
