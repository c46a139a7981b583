//! Takes one seed through one scenario and reports the outcome.

use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

use plexus_base::BlockId;
use plexus_sim::Engine;

use crate::failure::{Broken, Failure};

/// The run of one seed.
pub trait Simulation {
    /// Returns the time in simulated nanoseconds.
    fn now(&self) -> u64;

    /// Runs to the end.
    fn drive(&mut self) -> Result<Outcome, Broken>;

    /// Returns the block of the last event.
    fn last_block(&self) -> Option<BlockId> {
        None
    }

    /// Returns the last events of the traced block.
    fn history(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The result of a run in which every property held.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The hash over all events.
    pub digest: u64,
    /// The number of events.
    pub events: u64,
    /// The operations of sessions and clients, or the messages, depending on the scenario.
    pub operations: u64,
    /// The ends of rails that were destroyed while their peer was alive.
    pub rails_lost: u64,
    /// Other counts, by name.
    pub tallies: BTreeMap<&'static str, u64>,
}

impl Outcome {
    /// Returns the digest and event count of an engine.
    pub fn of<E>(engine: &Engine<E>, operations: u64) -> Self {
        let (digest, events) = (engine.digest.value(), engine.events());
        Self { digest, events, operations, ..Self::default() }
    }

    /// Adds counts to the tallies.
    pub fn with(mut self, tallies: impl IntoIterator<Item = (&'static str, u64)>) -> Self {
        for (name, count) in tallies {
            *self.tallies.entry(name).or_default() += count;
        }
        self
    }
}

/// Drives a run; reports a panic as a property that does not hold.
pub fn drive<S: Simulation + ?Sized>(run: &mut S) -> Result<Outcome, Broken> {
    let result = catch_unwind(AssertUnwindSafe(|| run.drive()));
    result.unwrap_or_else(|panic| Err(panicked(&*panic, run.last_block())))
}

/// Returns the report of a panic.
pub(super) fn panicked(panic: &(dyn Any + Send), block: Option<BlockId>) -> Broken {
    let text = panic.downcast_ref::<String>().cloned();
    let what = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
    Broken { property: "assertion", block, what }
}

/// Takes one seed through a scenario. `new` creates the run, and traces a block if one is given.
pub fn run_seed<S: Simulation + ?Sized>(
    scenario: &'static str,
    seed: u64,
    new: impl Fn(Option<BlockId>) -> Box<S>,
) -> Result<(Box<S>, Outcome), Failure> {
    let mut first = new(None);
    let broken = match drive(&mut *first) {
        Ok(outcome) => return Ok((first, outcome)),
        Err(broken) => broken,
    };
    // Runs the seed again to record the history of the block.
    let mut again = new(Some(broken.block.unwrap_or(BlockId(0))));
    let _ = drive(&mut *again);
    Err(Failure { scenario, seed, at: first.now(), broken, history: again.history() })
}

/// Returns true if a run of one of the seeds breaks a property that `is` selects by its name.
pub fn breaks<S: Simulation>(seeds: u64, new: impl Fn(u64) -> S, is: impl Fn(&str) -> bool) -> bool {
    (0..seeds).any(|seed| drive(&mut new(seed)).is_err_and(|broken| is(broken.property)))
}
