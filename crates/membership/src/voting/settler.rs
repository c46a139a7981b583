//! Makes heartbeats durable that nobody waits for, so that a file loses few of them with its power.
//!
//! A thread of its own: on a busy disk that takes longer than a lease lasts.

use std::{
    fs::File,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

use plexus_base::MAX_NODES;

use crate::protocol::{AWAITED, UNSETTLED};

/// By node: the counter of a heartbeat, 0 where there is none.
pub(super) type Counters = [u64; MAX_NODES];

/// What is durable of the heartbeats of one open file.
pub(super) struct Settler {
    ask: mpsc::SyncSender<Counters>,
    settled: Arc<[AtomicU64; MAX_NODES]>,
    failed: Arc<Mutex<Option<io::Error>>>,
}

impl Settler {
    /// Ends, with the thread, when it is dropped and what was asked last is done.
    pub(super) fn start(file: File) -> io::Result<Self> {
        let (ask, asked) = mpsc::sync_channel::<Counters>(0);
        let settled: Arc<[AtomicU64; MAX_NODES]> = Arc::default();
        let failed = Arc::<Mutex<Option<io::Error>>>::default();
        let (of_thread, why) = (Arc::clone(&settled), Arc::clone(&failed));
        let thread = thread::Builder::new().name("plexus-settler".into());
        thread.spawn(move || {
            for counters in asked {
                match file.sync_data() {
                    Ok(()) => note(&of_thread, &counters),
                    Err(error) => *why.lock().expect("nobody panics with it") = Some(error),
                }
            }
        })?;
        Ok(Self { ask, settled, failed })
    }

    /// Why what was written before may be lost, if it may.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.failed.lock().expect("nobody panics with it").take()
    }

    /// All that was written so far was made durable.
    pub(super) fn settled(&self, written: &Counters) {
        note(&self.settled, written);
    }

    /// These were written. Whether so many are not durable that they must be before the next are.
    pub(super) fn wrote(&self, written: &Counters) -> bool {
        let settled = self.settled.iter().map(|settled| settled.load(Ordering::Acquire));
        let behind = settled.zip(written).map(|(settled, written)| written.saturating_sub(settled)).max();
        let behind = behind.unwrap_or(0);
        if behind > UNSETTLED / 8 {
            // Where the thread is at it still, the next turn asks again.
            let _ = self.ask.try_send(*written);
        }
        behind >= AWAITED
    }
}

fn note(settled: &[AtomicU64; MAX_NODES], written: &Counters) {
    for (settled, written) in settled.iter().zip(written) {
        settled.fetch_max(*written, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_settler(file: File) -> Settler {
        Settler::start(file).unwrap()
    }

    fn only(counter: u64) -> Counters {
        let mut counters = Counters::default();
        counters[3] = counter;
        counters
    }

    #[test]
    fn few_are_left_alone_and_more_are_made_durable_by_the_thread() {
        let settler = a_settler(tempfile::tempfile().unwrap());
        assert!(!settler.wrote(&only(UNSETTLED / 8)));
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
        let settler = a_settler(File::from(std::os::fd::OwnedFd::from(write)));
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
