//! Makes heartbeats durable in the background, so that a power loss loses only a few.
//!
//! It has its own thread, because a sync on a busy disk takes longer than a lease.

use std::{
    fs::File,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use plexus_base::{
    MAX_NODES,
    latest::{LatestWork, NextWork},
};

use crate::protocol::{SYNC_LAG, SYNC_WAIT_LAG};

/// For each node, the counter of its heartbeat; 0 if there is none.
pub(super) type Counters = [u64; MAX_NODES];

/// The background sync of one open file, with the counters of the durable heartbeats.
pub(super) struct Syncer(Arc<Shared>);

#[derive(Default)]
struct Shared {
    work: LatestWork<Counters>,
    durable: [AtomicU64; MAX_NODES],
    failed: Mutex<Option<io::Error>>,
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.0.work.close();
    }
}

impl Syncer {
    /// Starts the thread, which ends with its current sync once this is dropped.
    pub(super) fn start(file: File) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("plexus-syncer".into());
        thread.spawn(move || {
            while let NextWork::Ready(counters) = of_thread.work.next(None) {
                match file.sync_data() {
                    Ok(()) => of_thread.note(&counters),
                    Err(error) => *of_thread.failed.lock().expect("no thread panics with it") = Some(error),
                }
            }
        })?;
        Ok(Self(shared))
    }

    /// Returns the error of a failed sync, after which earlier writes may be lost.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.0.failed.lock().expect("no thread panics with it").take()
    }

    /// Records that all writes so far are durable.
    pub(super) fn synced(&self, written: &Counters) {
        self.0.note(written);
    }

    /// Records written heartbeats. Returns true if so many are not durable that the turn must wait.
    pub(super) fn wrote(&self, written: &Counters) -> bool {
        let durable = self.0.durable.iter().map(|durable| durable.load(Ordering::Acquire));
        let behind = durable.zip(written).map(|(durable, written)| written.saturating_sub(durable)).max();
        let behind = behind.unwrap_or(0);
        if behind > SYNC_LAG {
            self.0.work.put(*written);
        }
        behind >= SYNC_WAIT_LAG
    }
}

impl Shared {
    fn note(&self, counters: &Counters) {
        for (durable, written) in self.durable.iter().zip(counters) {
            durable.fetch_max(*written, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::MAX_UNDURABLE_REPORTS;

    fn only(counter: u64) -> Counters {
        let mut counters = Counters::default();
        counters[3] = counter;
        counters
    }

    #[test]
    fn a_small_lag_starts_no_sync() {
        let syncer = Syncer(Arc::default());
        assert!(!syncer.wrote(&only(SYNC_LAG)));
        assert_eq!(syncer.0.work.next(Some(Duration::ZERO)), NextWork::TimedOut);
        assert!(!syncer.wrote(&only(SYNC_LAG + 1)));
        assert_eq!(syncer.0.work.next(Some(Duration::ZERO)), NextWork::Ready(only(SYNC_LAG + 1)));
    }

    #[test]
    fn a_larger_lag_is_synced_by_the_thread() {
        let syncer = Syncer::start(tempfile::tempfile().unwrap()).unwrap();
        let much = only(SYNC_WAIT_LAG);
        while syncer.wrote(&much) {
            thread::yield_now();
        }
        assert!(syncer.failure().is_none());
        syncer.synced(&only(MAX_UNDURABLE_REPORTS));
        assert!(!syncer.wrote(&only(MAX_UNDURABLE_REPORTS + 1)));
    }

    #[test]
    fn a_failed_sync_is_reported() {
        // A pipe cannot be synced.
        let (_read, write) = io::pipe().unwrap();
        let syncer = Syncer::start(File::from(std::os::fd::OwnedFd::from(write))).unwrap();
        let error = loop {
            assert!(syncer.wrote(&only(SYNC_WAIT_LAG)));
            match syncer.failure() {
                Some(error) => break error,
                None => thread::yield_now(),
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
