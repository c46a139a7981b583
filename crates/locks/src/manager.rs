//! The lock manager of a node, for the threads of that node.

use std::{sync::Arc, time::Duration};

use plexus_base::WorkerId;
use plexus_interconnect::Reply;
use plexus_membership::subsystem::ask_each;

use crate::{
    protocol::{Counts, Name},
    service::{LockPort, LockTask},
    session::{NodeLockSession, StopFlag},
    survey::LockSurvey,
};

/// The lock manager of a node. It is cheap to clone. [`LockManager::session`] opens a session that
/// takes locks.
#[derive(Clone)]
pub struct LockManager(Arc<Inner>);

struct Inner {
    port: Arc<LockPort>,
    workers: u8,
    stopped: Arc<StopFlag>,
}

impl LockManager {
    /// Creates the lock manager over the services behind `port`, which share `stopped`.
    #[must_use]
    pub fn new(port: Arc<LockPort>, workers: u8, stopped: Arc<StopFlag>) -> Self {
        Self(Arc::new(Inner { port, workers, stopped }))
    }

    /// Opens a session, which starts now.
    #[must_use]
    pub fn session(&self) -> NodeLockSession {
        NodeLockSession::new(self.clone())
    }

    pub(crate) fn port(&self) -> &LockPort {
        &*self.0.port
    }

    /// Returns the worker that handles the resource; it is the same on every node.
    pub(crate) fn worker(&self, name: &Name) -> WorkerId {
        name.partition().worker(self.0.workers)
    }

    /// True when the node has stopped: it grants no locks, and its locks protect nothing.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.is_stopped()
    }

    /// Returns the resources that this node masters and that are held or waited for. `None` if a
    /// worker did not answer within `limit`.
    #[must_use]
    pub fn survey(&self, limit: Duration) -> Option<LockSurvey> {
        Some(LockSurvey::joined(self.each(limit, LockTask::Survey)?))
    }

    /// Returns the sum of the workers' counts since they started. `None` if a worker did not answer
    /// within `limit`.
    #[must_use]
    pub fn counts(&self, limit: Duration) -> Option<Counts> {
        let mut sum = Counts::default();
        self.each(limit, LockTask::Counts)?.iter().for_each(|counts| sum.add(counts));
        Some(sum)
    }

    /// Sends a task to each worker and returns all answers, or `None` if one is missing.
    fn each<T>(&self, limit: Duration, task: impl Fn(Reply<T>) -> LockTask) -> Option<Vec<T>> {
        let Inner { port, workers, .. } = &*self.0;
        let answers = ask_each(&**port, *workers, limit, task);
        (answers.len() == usize::from(*workers)).then_some(answers)
    }
}
