//! Clients that change blocks, and the record of what was acknowledged.
//!
//! The record has for each client and block the last acknowledged number of its changes. After a
//! fault a block must count at least that many. It may count more: a change that was made and not
//! acknowledged, at most one change or group for each time that a client was interrupted. A client
//! of each node changes groups of blocks, and finds its own changes of them whole.

use std::{
    collections::BTreeMap,
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

/// The time without a change from which it is reported, and the one from which it is a failure: far
/// longer than a busy machine needs.
const LONG_PAUSE: Duration = Duration::from_secs(1);
const PAUSE_LIMIT: Duration = Duration::from_secs(10);

/// The times without a change while there was no fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pauses {
    /// The number of those longer than a second.
    pub long: u64,
    /// The longest.
    pub longest: Duration,
}

/// The present time without a change. It lasts from one look to another with the same count, so a
/// late look makes none.
struct Pause {
    count: u64,
    since: Instant,
    length: Duration,
}

impl Pause {
    fn look(&mut self, count: u64, now: Instant, pauses: &mut Pauses) {
        if count != self.count {
            *self = Self { count, since: now, length: Duration::ZERO };
            return;
        }
        let was_long = self.length >= LONG_PAUSE;
        self.length = now - self.since;
        pauses.long += u64::from(self.length >= LONG_PAUSE && !was_long);
        pauses.longest = pauses.longest.max(self.length);
    }
}

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

/// Refusals by their text without numbers, with their count and one whole text.
pub type Refusals = BTreeMap<String, (u64, String)>;

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

    /// Runs `act` while all clients work.
    ///
    /// # Errors
    /// The error of `act`.
    pub fn beside<R>(&self, seed: u64, act: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
        self.over.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            let _over = Over(&self.over);
            for slot in 0..self.slots.len() {
                scope.spawn(move || self.work(slot, seed));
            }
            act()
        })
    }

    /// Works at the node of a client until the end.
    fn work(&self, slot: usize, seed: u64) {
        let mut number = seed;
        while !self.over.load(Ordering::Relaxed) {
            number = number.wrapping_add(1);
            match self.work_once(slot, number) {
                Ok(()) => {}
                Err(ControlError::Refused { name, what }) => self.refused(&name, what),
                Err(_) => {}
            }
            thread::sleep(RESTS);
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

    /// Waits for this time, and longer while changes stand still. There must be no fault.
    ///
    /// # Errors
    /// No change is acknowledged any more.
    pub fn undisturbed(&self, time: Duration, pauses: &mut Pauses) -> Result<(), String> {
        let count = || self.count.load(Ordering::Relaxed);
        let start = Instant::now();
        let mut pause = Pause { count: count(), since: start, length: Duration::ZERO };
        while start.elapsed() < time || pause.length >= LONG_PAUSE {
            thread::sleep(RESTS);
            pause.look(count(), Instant::now(), pauses);
            if pause.length >= PAUSE_LIMIT {
                let seconds = pause.length.as_secs();
                return Err(format!("no change was acknowledged for {seconds} s, without any fault"));
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
            let kind = what.chars().filter(|letter| !letter.is_ascii_digit()).collect();
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            refusals.entry(kind).or_insert((0, whole)).0 += 1;
        }
    }

    /// Adds the refusals that clients got.
    pub fn add_refusals(&self, all: &mut Refusals) {
        let refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        for (kind, (count, example)) in &*refusals {
            all.entry(kind.clone()).or_insert((0, example.clone())).0 += count;
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
    pub fn check(&self, node: usize) -> Result<(u64, Vec<String>), String> {
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

/// Ends the clients when dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_pause_is_counted_once_and_a_late_look_makes_none() {
        let (start, mut pauses) = (Instant::now(), Pauses::default());
        let mut pause = Pause { count: 0, since: start, length: Duration::ZERO };
        for (count, ms, length) in
            [(0, 900, 900), (1, 5000, 0), (1, 6000, 1000), (1, 6500, 1500), (2, 6600, 0), (2, 7700, 1100)]
        {
            pause.look(count, start + Duration::from_millis(ms), &mut pauses);
            assert_eq!(pause.length, Duration::from_millis(length));
        }
        assert_eq!(pauses, Pauses { long: 2, longest: Duration::from_millis(1500) });
    }

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
