//! The stages of a node between its start and its end, and the requests to end it.
//!
//! Commands and signals request the end. Only this module decides what is recorded on disk about
//! the end of a run, and when.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use plexus_admin::{
    records::state::{Phase, Recorder, StateError},
    service_manager,
    status::Stage,
};
use plexus_base::{Incarnation, Nanos};

/// The way in which a node ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Alone, on a signal or an `exit` command: the node hands back, and the others continue.
    Leave,
    /// Together with all others, after every node has handed back.
    Together,
}

/// The lifecycle of one node in one run.
#[derive(Debug)]
pub struct Lifecycle {
    recorder: Recorder,
    since: Nanos,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    why: Option<String>,
    ending: Option<Ending>,
}

impl Lifecycle {
    pub(crate) fn new(recorder: Recorder) -> Self {
        let state = State { stage: Stage::Starting, why: None, ending: None };
        Self { recorder, since: plexus_base::clock::now(), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Returns the stage of the node, with the reason if it has stopped.
    pub fn stage(&self) -> (Stage, Option<String>) {
        let state = self.lock();
        (state.stage, state.why.clone())
    }

    /// Returns the start time of the node, by its own clock.
    pub fn since(&self) -> Nanos {
        self.since
    }

    /// Returns true once the end was requested. A wait for peers ends then.
    pub fn is_ending(&self) -> bool {
        self.lock().ending.is_some()
    }

    /// Marks the node as stopped without a hand-back: its record stays that of a crashed node.
    pub(crate) fn failed(&self, why: &str) {
        let mut state = self.lock();
        state.stage = Stage::Stopped;
        state.why = Some(why.into());
        service_manager::notify_status(why);
    }

    /// Moves to `stage`, unless the node has stopped.
    pub(crate) fn reach(&self, stage: Stage) {
        let mut state = self.lock();
        if state.stage == Stage::Stopped {
            return;
        }
        state.stage = stage;
        match stage {
            Stage::Joining => service_manager::notify_status("waits for its peers"),
            Stage::Running => service_manager::notify("READY=1"),
            _ => {}
        }
    }

    /// Records durably that the incarnation has begun, before it serves its first message: a node
    /// that ends after it without a further record counts as crashed.
    ///
    /// # Errors
    /// The record cannot be written; the node must not serve.
    pub fn begin(&self) -> Result<(), StateError> {
        self.recorder.write(Phase::Running)
    }

    /// Records durably a later incarnation, above which the next start takes its number.
    pub(crate) fn pass(&self, later: Incarnation) -> Result<(), StateError> {
        self.recorder.pass(later)
    }

    /// Records durably that the node has handed everything back and starts nothing more.
    ///
    /// # Errors
    /// The record cannot be written, and stays that of a crashed node.
    pub(crate) fn left(&self) -> Result<(), StateError> {
        self.recorder.write(Phase::Left)
    }

    /// Requests the end of the node; the first request decides in which way.
    pub(crate) fn end(&self, ending: Ending) -> Result<(), StateError> {
        let mut state = self.lock();
        if ending == Ending::Together && state.ending.is_none() {
            self.recorder.write(Phase::Left)?;
        }
        state.ending.get_or_insert(ending);
        service_manager::notify("STOPPING=1");
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until the end is requested.
    pub(crate) fn wait_for_end(&self) -> Ending {
        let mut state = self.lock();
        loop {
            match state.ending {
                Some(ending) => return ending,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
