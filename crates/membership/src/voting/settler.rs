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
    desk::{Desk, Next},
};

use crate::protocol::{AWAITED, SETTLED};

/// For each node, the counter of its heartbeat; 0 if there is none.
pub(super) type Counters = [u64; MAX_NODES];

/// The background sync of one open file, with the counters of the durable heartbeats.
pub(super) struct Settler(Arc<Shared>);

#[derive(Default)]
struct Shared {
    desk: Desk<Counters>,
    settled: [AtomicU64; MAX_NODES],
    failed: Mutex<Option<io::Error>>,
}

impl Drop for Settler {
    fn drop(&mut self) {
        self.0.desk.end();
    }
}

impl Settler {
    /// Starts the thread, which ends with its current sync once this is dropped.
    pub(super) fn start(file: File) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("plexus-settler".into());
        thread.spawn(move || {
            while let Next::Work(counters) = of_thread.desk.next(None) {
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
    pub(super) fn settled(&self, written: &Counters) {
        self.0.note(written);
    }

    /// Records written heartbeats. Returns true if so many are not durable that the turn must wait.
    pub(super) fn wrote(&self, written: &Counters) -> bool {
        let settled = self.0.settled.iter().map(|settled| settled.load(Ordering::Acquire));
        let behind = settled.zip(written).map(|(settled, written)| written.saturating_sub(settled)).max();
        let behind = behind.unwrap_or(0);
        if behind > SETTLED {
            self.0.desk.put(*written);
        }
        behind >= AWAITED
    }
}

impl Shared {
    fn note(&self, counters: &Counters) {
        for (settled, written) in self.settled.iter().zip(counters) {
            settled.fetch_max(*written, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::UNSETTLED;

    fn only(counter: u64) -> Counters {
        let mut counters = Counters::default();
        counters[3] = counter;
        counters
    }

    #[test]
    fn a_small_lag_starts_no_sync() {
        let settler = Settler(Arc::default());
        assert!(!settler.wrote(&only(SETTLED)));
        assert_eq!(settler.0.desk.next(Some(Duration::ZERO)), Next::Nothing);
        assert!(!settler.wrote(&only(SETTLED + 1)));
        assert_eq!(settler.0.desk.next(Some(Duration::ZERO)), Next::Work(only(SETTLED + 1)));
    }

    #[test]
    fn a_larger_lag_is_synced_by_the_thread() {
        let settler = Settler::start(tempfile::tempfile().unwrap()).unwrap();
        let much = only(AWAITED);
        while settler.wrote(&much) {
            thread::yield_now();
        }
        assert!(settler.failure().is_none());
        settler.settled(&only(UNSETTLED));
        assert!(!settler.wrote(&only(UNSETTLED + 1)));
    }

    #[test]
    fn a_failed_sync_is_reported() {
        // A pipe cannot be synced.
        let (_read, write) = io::pipe().unwrap();
        let settler = Settler::start(File::from(std::os::fd::OwnedFd::from(write))).unwrap();
        let error = loop {
            assert!(settler.wrote(&only(AWAITED)));
            match settler.failure() {
                Some(error) => break error,
                None => thread::yield_now(),
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
