//! One thread that sends a tick to each worker of a node when its shard has a timer due.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
};

use plexus_base::{Nanos, WorkerId, clock};

use crate::service::{LockPort, LockTask};

/// The time of the next tick for the shard of each worker.
pub(crate) struct Clock {
    due: Mutex<Due>,
    changed: Condvar,
}

struct Due {
    at: Vec<Option<Nanos>>,
    ended: bool,
}

impl Clock {
    /// Starts the thread. It ends with the node's workers, to which `port` leads, or with
    /// [`Clock::end`].
    pub(crate) fn start(workers: u8, port: Weak<LockPort>) -> std::io::Result<Arc<Self>> {
        let due = Due { at: vec![None; workers.into()], ended: false };
        let clock = Arc::new(Self { due: Mutex::new(due), changed: Condvar::new() });
        let runs = clock.clone();
        thread::Builder::new().name("plexus-lock-clock".into()).spawn(move || runs.run(&port))?;
        Ok(clock)
    }

    /// Sets the time of the next tick for the shard of `worker`.
    pub(crate) fn arm(&self, worker: WorkerId, at: Nanos) {
        self.lock().at[worker.index()] = Some(at);
        self.changed.notify_one();
    }

    /// Ends the thread; no worker gets a tick after this.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, port: &Weak<LockPort>) {
        let mut due = self.lock();
        while !due.ended {
            let now = clock::now();
            let ripe = due.at.iter().position(|at| at.is_some_and(|at| at <= now));
            if let Some(worker) = ripe {
                due.at[worker] = None;
                drop(due);
                let Some(port) = port.upgrade() else { return };
                port.submit(WorkerId(worker as u8), LockTask::Tick);
                due = self.lock();
                continue;
            }
            due = match due.at.iter().flatten().min() {
                Some(next) => {
                    let left = next.since(now).into();
                    self.changed.wait_timeout(due, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(due).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}
