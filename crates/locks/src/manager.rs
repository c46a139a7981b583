//! The lock manager of a node, as its threads see it.

use std::{sync::Arc, time::Duration};

use plexus_base::WorkerId;
use plexus_interconnect::Reply;
use plexus_membership::subsystem::ask_each;

use crate::{
    protocol::{Counts, Name},
    service::{LockTask, Port},
    session::{NodeLockSession, StopFlag},
    survey::LockSurvey,
};

/// The lock manager of a node. Cheap to clone. [`LockManager::session`] is where locks are taken.
#[derive(Clone)]
pub struct LockManager(Arc<Inner>);

struct Inner {
    port: Arc<Port>,
    workers: u8,
    stopped: Arc<StopFlag>,
}

impl LockManager {
    /// The lock manager whose services share `stopped`, behind `port`.
    #[must_use]
    pub fn new(port: Arc<Port>, workers: u8, stopped: Arc<StopFlag>) -> Self {
        Self(Arc::new(Inner { port, workers, stopped }))
    }

    /// A piece of work that begins now.
    #[must_use]
    pub fn session(&self) -> NodeLockSession {
        NodeLockSession::new(self.clone())
    }

    pub(crate) fn port(&self) -> &Port {
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

    /// What this node masters that is held or waited for; `None`: not all workers answered within
    /// `limit`.
    #[must_use]
    pub fn survey(&self, limit: Duration) -> Option<LockSurvey> {
        Some(LockSurvey::joined(self.each(limit, LockTask::Survey)?))
    }

    /// What the workers counted of locks since they began; `None`: not all of them answered within
    /// `limit`.
    #[must_use]
    pub fn counts(&self, limit: Duration) -> Option<Counts> {
        let mut sum = Counts::default();
        self.each(limit, LockTask::Counts)?.iter().for_each(|counts| sum.add(counts));
        Some(sum)
    }

    /// What each worker answers.
    fn each<T>(&self, limit: Duration, task: impl Fn(Reply<T>) -> LockTask) -> Option<Vec<T>> {
        let Inner { port, workers, .. } = &*self.0;
        let answers = ask_each(&**port, *workers, limit, task);
        (answers.len() == usize::from(*workers)).then_some(answers)
    }
}
