//! The lock manager of a node, as its threads see it.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use plexus_base::WorkerId;

use crate::{
    port::{Port, StopFlag},
    protocol::{Counts, Name},
    service::LockTask,
    session::NodeLockSession,
    survey::LockSurvey,
};

/// The lock manager of a node. Cheap to clone. [`LockManager::session`] is where locks are taken.
#[derive(Clone)]
pub struct LockManager(Arc<Inner>);

struct Inner {
    port: Arc<dyn Port>,
    workers: u8,
    stopped: Arc<StopFlag>,
}

impl LockManager {
    /// The lock manager whose services share `stopped`, behind `port`.
    #[must_use]
    pub fn new(port: Arc<dyn Port>, workers: u8, stopped: Arc<StopFlag>) -> Self {
        Self(Arc::new(Inner { port, workers, stopped }))
    }

    /// A piece of work that begins now.
    #[must_use]
    pub fn session(&self) -> NodeLockSession {
        NodeLockSession::new(self.clone())
    }

    pub(crate) fn port(&self) -> &dyn Port {
        &*self.0.port
    }

    /// The worker that knows the resource, on every node.
    pub(crate) fn worker(&self, name: &Name) -> WorkerId {
        name.partition().worker(self.0.workers)
    }

    /// Whether nothing is granted any more, and what is held protects nothing.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.is_stopped()
    }

    /// What this node masters and somebody has or wants.
    ///
    /// # Errors
    /// Not all workers answered within `limit`.
    pub fn survey(&self, limit: Duration) -> Result<LockSurvey, mpsc::RecvTimeoutError> {
        Ok(LockSurvey::joined(self.each(limit, LockTask::Survey)?))
    }

    /// What the workers counted of locks since they began.
    ///
    /// # Errors
    /// Not all of them answered within `limit`.
    pub fn counts(&self, limit: Duration) -> Result<Counts, mpsc::RecvTimeoutError> {
        let mut sum = Counts::default();
        self.each(limit, LockTask::Counts)?.iter().for_each(|counts| sum.add(counts));
        Ok(sum)
    }

    /// What each worker answers.
    fn each<T>(
        &self,
        limit: Duration,
        task: impl Fn(mpsc::Sender<T>) -> LockTask,
    ) -> Result<Vec<T>, mpsc::RecvTimeoutError> {
        let end = Instant::now() + limit;
        let answers = (0..self.0.workers).map(|worker| {
            let (tell, told) = mpsc::channel();
            self.0.port.submit(WorkerId(worker), task(tell));
            told
        });
        let answers: Vec<_> = answers.collect();
        let parts = answers
            .into_iter()
            .map(|answer| answer.recv_timeout(end.saturating_duration_since(Instant::now())));
        parts.collect()
    }
}
