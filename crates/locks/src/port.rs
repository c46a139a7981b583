//! How threads of a node reach the workers that run its lock manager, and whether that grants
//! locks.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

use plexus_base::WorkerId;
use plexus_interconnect::{Net, Signal};

use crate::service::{LockService, LockTask};

/// How tasks reach the workers of a node.
pub trait Port: Send + Sync {
    /// Hands a task in and sees to it that it is handled.
    fn submit(&self, worker: WorkerId, task: LockTask);

    /// Hands a task in for another worker than the one that runs this, without waiting or driving
    /// anything. A task that finds no room is lost.
    fn offer(&self, worker: WorkerId, task: LockTask);

    /// Has `act` done by the calling thread on the worker's service, now. False: another thread
    /// drives the worker, and nothing was done.
    fn visit(&self, worker: WorkerId, act: &mut dyn FnMut(&mut LockService, &mut Net)) -> bool;

    /// Hands a task in for the thread that drives the worker next; [`Port::wait`] follows.
    fn push(&self, worker: WorkerId, task: LockTask);

    /// Waits for the signal, driving the worker meanwhile; the signal is the calling thread's.
    fn wait(&self, worker: WorkerId, signal: &Signal);
}

/// Set once the node grants locks no more; shared by all its workers.
#[derive(Default)]
pub struct StopFlag(AtomicBool);

impl StopFlag {
    pub(crate) fn stop(&self) {
        self.0.store(true, Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.load(Acquire)
    }
}
