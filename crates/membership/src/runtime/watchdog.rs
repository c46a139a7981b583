//! The thread that ends a process whose lease is over, also when everything else in it is stuck; and the host's watchdog device.
//!
//! It sleeps on a timer of the clock of leases, so it is awake when the lease ends and not much more often. Where a watchdog device is
//! configured, it is fed only while the lease lasts or none was held yet: a host that is stuck as a whole is reset by it. A node that
//! has left, or never held a lease, closes the device for good; one that ends otherwise leaves it running, so its host is reset unless the node is
//! started again in time.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    thread::{self, JoinHandle},
};

use plexus_base::Nanos;

use super::{
    End, Guest,
    clock::{self, Timer},
    inbox::{Inbox, Input},
    lease::Lease,
    priority,
};
use crate::protocol::Reason;

/// Devices count in seconds, from 1 upwards.
const FEED: Nanos = Nanos::from_ms(500);

/// Ends the node, once.
pub(super) struct Ending {
    guest: Arc<dyn Guest>,
    lease: Arc<Lease>,
    was_held: AtomicBool,
    is_over: AtomicBool,
}

impl Ending {
    pub(super) fn new(guest: Arc<dyn Guest>, lease: Arc<Lease>) -> Self {
        Self { guest, lease, was_held: AtomicBool::new(false), is_over: AtomicBool::new(false) }
    }

    /// The node must stop at once.
    pub(super) fn die(&self, why: Reason) {
        if self.begin() {
            self.guest.end(End::Died(why));
        }
    }

    /// From now on no lease is held. Whether the guest is still to be told: who asks first sees to that.
    pub(super) fn begin(&self) -> bool {
        let is_first = !self.is_over.swap(true, Ordering::AcqRel);
        if is_first {
            self.lease.end();
        }
        is_first
    }

    /// Nothing acts any more, and nobody is told.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
        self.lease.end();
    }

    /// The node may act until then. Whether it may for the first time.
    pub(super) fn hold(&self, until: Nanos) -> bool {
        let is_first = self.lease.hold(until);
        if is_first {
            self.was_held.store(true, Ordering::Release);
        }
        is_first
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

/// What the thread is to do.
const WATCH: u8 = 0;
const STOP: u8 = 1;
/// Stop, and the device too.
const CLOSE: u8 = 2;

/// No time that comes.
const NEVER: Nanos = Nanos(u64::MAX / 2);

struct Shared {
    timer: Timer,
    order: AtomicU8,
    /// The host's, once it is guarded.
    device: OnceLock<File>,
    ending: Arc<Ending>,
    inbox: Arc<Inbox>,
}

/// What the thread goes by.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    order: u8,
    is_over: bool,
    until: Nanos,
    is_guarded: bool,
}

#[derive(Clone)]
pub(super) struct Watchdog(Arc<Shared>);

impl Watchdog {
    pub(super) fn start(ending: Arc<Ending>, inbox: Arc<Inbox>) -> io::Result<(Self, JoinHandle<()>)> {
        let (timer, order) = (Timer::create()?, AtomicU8::new(WATCH));
        let shared = Arc::new(Shared { timer, order, device: OnceLock::new(), ending, inbox });
        let watching = Arc::clone(&shared);
        let thread = thread::Builder::new().name("plexus-lease".into());
        let thread = thread.spawn(move || watching.watch())?;
        Ok((Self(shared), thread))
    }

    /// From now on the host's device is fed. Once.
    pub(super) fn guard(&self, path: &Path) -> io::Result<()> {
        let device = OpenOptions::new().write(true).open(path)?;
        assert!(self.0.device.set(device).is_ok(), "a host is guarded once");
        self.look();
        Ok(())
    }

    /// The first lease is held.
    pub(super) fn look(&self) {
        self.0.timer.set(Nanos(0));
    }

    /// Watches no more; `left`: nor does the host's device. The first word counts.
    pub(super) fn stop(&self, left: bool) {
        let order = if left { CLOSE } else { STOP };
        let _ = self.0.order.compare_exchange(WATCH, order, Ordering::AcqRel, Ordering::Acquire);
        self.look();
    }
}

impl Shared {
    fn watch(&self) {
        priority::raise();
        let mut has_said = false;
        loop {
            let seen = self.seen();
            if seen.order != WATCH {
                return self.close(seen.order == CLOSE);
            }
            self.timer.set(self.next(seen, &mut has_said));
            // Who changes something sets the timer too, and may have done so before it was set here.
            if self.seen() == seen {
                self.timer.wait();
            }
        }
    }

    fn seen(&self) -> Seen {
        Seen {
            order: self.order.load(Ordering::Acquire),
            is_over: self.ending.is_over(),
            until: self.ending.lease.until(),
            is_guarded: self.device.get().is_some(),
        }
    }

    /// Does what is due; when there is more to do.
    fn next(&self, seen: Seen, has_said: &mut bool) -> Nanos {
        // How it ended is told by the order, which comes when nothing is left to be done.
        if seen.is_over {
            return NEVER;
        }
        let (now, until) = (clock::now(), seen.until);
        if until != Nanos(0) && now >= until {
            if self.ending.lease.end_if_still(until) {
                self.ending.die(Reason::LeaseOver);
            }
            return now;
        }
        let lease = if until == Nanos(0) { NEVER } else { until };
        let Some(mut device) = self.device.get() else { return lease };
        if let Err(error) = device.write_all(&[0])
            && !std::mem::replace(has_said, true)
        {
            let what = format!("the host's watchdog cannot be fed and will reset the host: {error}");
            self.inbox.post(Input::Trouble(what));
        }
        lease.min(now + FEED)
    }

    /// The letter is what tells a device that nobody is stuck.
    fn close(&self, left: bool) {
        let is_harmless = left || !self.ending.was_held.load(Ordering::Acquire);
        if let Some(mut device) = self.device.get().filter(|_| is_harmless)
            && let Err(error) = device.write_all(b"V")
        {
            let what = format!("the host's watchdog cannot be stopped and will reset the host: {error}");
            self.inbox.post(Input::Trouble(what));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use plexus_base::{Incarnation, NodeId};
    use tempfile::TempDir;

    use super::*;
    use crate::{
        protocol::View,
        runtime::{Proof, Transition},
    };

    struct Quiet;

    impl Guest for Quiet {
        fn decided(&self, _: &Arc<View>) {}

        fn opened(&self, _: &Arc<View>, _: &Transition) {}

        fn fence(&self, _: NodeId, _: Incarnation) -> Option<Proof> {
            None
        }

        fn is_well(&self) -> bool {
            true
        }

        fn end(&self, _: End) {}
    }

    struct Guarded {
        ending: Arc<Ending>,
        watchdog: Watchdog,
        thread: JoinHandle<()>,
        path: PathBuf,
        _place: TempDir,
    }

    impl Guarded {
        fn start() -> Self {
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("watchdog");
            std::fs::write(&path, "").unwrap();
            let ending = Arc::new(Ending::new(Arc::new(Quiet), Arc::default()));
            let inbox = Arc::new(Inbox::create().unwrap());
            let (watchdog, thread) = Watchdog::start(Arc::clone(&ending), inbox).unwrap();
            watchdog.guard(&path).unwrap();
            Self { ending, watchdog, thread, path, _place: place }
        }

        fn fed(&self) -> Vec<u8> {
            std::fs::read(&self.path).unwrap()
        }

        /// What the device was told in all.
        fn stop(self, left: bool) -> Vec<u8> {
            self.watchdog.stop(left);
            self.thread.join().unwrap();
            std::fs::read(&self.path).unwrap()
        }
    }

    #[test]
    fn a_host_whose_node_never_held_a_lease_is_left_alone() {
        assert_eq!(Guarded::start().stop(false).last(), Some(&b'V'));
    }

    #[test]
    fn a_host_whose_node_ends_otherwise_is_not() {
        let guarded = Guarded::start();
        guarded.ending.hold(Nanos(u64::MAX));
        assert!(guarded.stop(false).iter().all(|byte| *byte == 0));
    }

    #[test]
    fn however_long_a_node_takes_to_leave_its_host_is_left_alone() {
        let guarded = Guarded::start();
        guarded.ending.hold(Nanos(u64::MAX));
        while guarded.fed().is_empty() {
            guarded.watchdog.look();
        }
        assert!(guarded.ending.begin());
        // Whatever wakes the thread before the others have been told.
        for _ in 0..1_000 {
            guarded.watchdog.look();
            thread::yield_now();
        }
        assert_eq!(guarded.stop(true).last(), Some(&b'V'));
    }
}
