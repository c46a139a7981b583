//! Makes heartbeats durable that nobody waits for, so that a file loses few of them with its power.
//!
//! A thread of its own: on a busy disk that takes longer than a lease lasts.

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

/// By node: the counter of a heartbeat, 0 where there is none.
pub(super) type Counters = [u64; MAX_NODES];

/// What is durable of the heartbeats of one open file.
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
    /// The thread ends when this is dropped and what it has begun is done.
    pub(super) fn start(file: File) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("plexus-settler".into());
        thread.spawn(move || {
            while let Next::Work(counters) = of_thread.desk.next(None) {
                match file.sync_data() {
                    Ok(()) => of_thread.note(&counters),
                    Err(error) => *of_thread.failed.lock().expect("nobody panics with it") = Some(error),
                }
            }
        })?;
        Ok(Self(shared))
    }

    /// Why what was written before may be lost, if it may.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.0.failed.lock().expect("nobody panics with it").take()
    }

    /// All that was written so far was made durable.
    pub(super) fn settled(&self, written: &Counters) {
        self.0.note(written);
    }

    /// These were written. Whether so many are not durable that they must be before the next are.
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
    fn few_are_left_alone() {
        let settler = Settler(Arc::default());
        assert!(!settler.wrote(&only(SETTLED)));
        assert_eq!(settler.0.desk.next(Some(Duration::ZERO)), Next::Nothing);
        assert!(!settler.wrote(&only(SETTLED + 1)));
        assert_eq!(settler.0.desk.next(Some(Duration::ZERO)), Next::Work(only(SETTLED + 1)));
    }

    #[test]
    fn more_are_made_durable_by_the_thread() {
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
    fn a_disk_that_cannot_is_not_trusted() {
        // A pipe cannot be made durable.
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
