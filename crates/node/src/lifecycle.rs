//! Where a node stands between its start and its end, and who asked it to end.
//!
//! Commands and signals tell it to end. What it records on disk about the end of a run, and when, is decided here alone.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use plexus_base::Nanos;
use serde::{Deserialize, Serialize};

use crate::records::state::{Phase, Recorder, StateError};

/// Where a node stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It looks at its configuration and disks.
    Starting,
    /// It connects to its peers.
    Joining,
    /// It serves.
    Running,
    /// It changes nothing any more, because it was asked to.
    Quiesced,
    /// Everything that it held is on disk, and it holds nothing.
    HandedBack,
    /// It does nothing any more: it is no member.
    Stopped,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Starting => "starting",
            Self::Joining => "joining",
            Self::Running => "running",
            Self::Quiesced => "quiesced",
            Self::HandedBack => "handed back",
            Self::Stopped => "stopped",
        })
    }
}

/// How a node is to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Alone, on a signal or an `exit` in the middle: it hands everything back, and the others go on.
    Leave,
    /// With all others, after every one of them has handed back.
    Together,
}

/// The lifecycle of one node in one run.
#[derive(Debug)]
pub struct Lifecycle {
    recorder: Arc<Recorder>,
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
    pub(crate) fn new(recorder: Arc<Recorder>) -> Self {
        let state = State { stage: Stage::Starting, why: None, ending: None };
        Self { recorder, since: plexus_base::clock::now(), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Where the node stands, and why if it has stopped.
    #[must_use]
    pub fn stage(&self) -> (Stage, Option<String>) {
        let state = self.lock();
        (state.stage, state.why.clone())
    }

    /// Since when the node lives, by its clock.
    #[must_use]
    pub fn since(&self) -> Nanos {
        self.since
    }

    /// Whether the node was asked to end. Whoever waits for peers gives up then.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.lock().ending.is_some()
    }

    /// The node stops, and what it held is not secured: its record stays that of a node which died.
    pub(crate) fn failed(&self, why: &str) {
        let mut state = self.lock();
        state.stage = Stage::Stopped;
        state.why = Some(why.into());
    }

    /// Goes on to `stage`, unless the node has stopped.
    pub(crate) fn reach(&self, stage: Stage) {
        let mut state = self.lock();
        if state.stage != Stage::Stopped {
            state.stage = stage;
        }
    }

    /// Records that the node takes part in the run, durably. Before it serves its first message: from then on a node
    /// that ends without another word is taken for dead, and what it mastered may be lost.
    ///
    /// # Errors
    /// The record cannot be written; the node must not serve.
    pub fn begin(&self) -> Result<(), StateError> {
        self.recorder.write(Phase::Running)
    }

    /// Records that the node has handed everything back and begins nothing more, durably.
    ///
    /// # Errors
    /// The record cannot be written, and stays that of a node which died.
    pub(crate) fn left(&self) -> Result<(), StateError> {
        self.recorder.write(Phase::Left)
    }

    /// Asks the node to end; the first who asks decides how.
    pub(crate) fn end(&self, ending: Ending) -> Result<(), StateError> {
        let mut state = self.lock();
        if ending == Ending::Together && state.ending.is_none() {
            self.recorder.write(Phase::Left)?;
        }
        state.ending.get_or_insert(ending);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until the node is asked to end.
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
