//! The thread that ends the process when the lease ends, even if everything else is stuck; and the
//! host's watchdog device.
//!
//! The thread sleeps on a timer of the lease clock, so it is awake when the lease ends. A
//! configured watchdog device is fed while the lease lasts, or before the first lease, so a host
//! that is stuck as a whole is reset. A node that has left, or never held a lease, closes the
//! device for good. A node that ends otherwise leaves it running: the host is reset unless the node
//! starts again in time.

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
    MembershipEnd, MembershipObserver,
    clock::{self, Timer},
    inbox::{Inbox, Input},
    lease::Lease,
    priority,
};
use crate::protocol::StopReason;

/// The feeding interval. Devices count in seconds, from 1 up.
const FEED: Nanos = Nanos::from_ms(500);

/// Ends the node once.
pub(super) struct Ending {
    observer: Arc<dyn MembershipObserver>,
    lease: Arc<Lease>,
    was_held: AtomicBool,
    is_over: AtomicBool,
}

impl Ending {
    pub(super) fn new(observer: Arc<dyn MembershipObserver>, lease: Arc<Lease>) -> Self {
        Self { observer, lease, was_held: AtomicBool::new(false), is_over: AtomicBool::new(false) }
    }

    /// Ends the node because it must stop at once.
    pub(super) fn die(&self, why: StopReason) {
        if self.begin() {
            let basis = self.lease.basis();
            self.observer.end(MembershipEnd::Died { reason: why, basis });
        }
    }

    /// Ends the lease. Returns true for the first call, whose caller must tell the observer.
    pub(super) fn begin(&self) -> bool {
        let is_first = !self.is_over.swap(true, Ordering::AcqRel);
        if is_first {
            self.lease.end();
        }
        is_first
    }

    /// Ends the lease without telling the observer.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
        self.lease.end();
    }

    /// Extends the lease. Returns true for the first lease.
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

/// The order for the thread.
const WATCH: u8 = 0;
const STOP: u8 = 1;
/// Stop, and close the device too.
const CLOSE: u8 = 2;

/// A time that never comes.
const NEVER: Nanos = Nanos(u64::MAX / 2);

struct Shared {
    timer: Timer,
    order: AtomicU8,
    /// The host's device, once it is guarded.
    device: OnceLock<File>,
    ending: Arc<Ending>,
    inbox: Arc<Inbox>,
}

/// The state on which the thread acts.
#[derive(Clone, Copy, PartialEq, Eq)]
struct WatchdogState {
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

    /// Feeds the host's device from now on; called once.
    pub(super) fn guard(&self, path: &Path) -> io::Result<()> {
        let device = OpenOptions::new().write(true).open(path)?;
        assert!(self.0.device.set(device).is_ok(), "a host is guarded once");
        self.check();
        Ok(())
    }

    /// Makes the thread check its state.
    pub(super) fn check(&self) {
        self.0.timer.set(Nanos(0));
    }

    /// Stops the thread, and the device too if the node has `left`. The first call counts.
    pub(super) fn stop(&self, left: bool) {
        let order = if left { CLOSE } else { STOP };
        let _ = self.0.order.compare_exchange(WATCH, order, Ordering::AcqRel, Ordering::Acquire);
        self.check();
    }
}

impl Shared {
    fn watch(&self) {
        priority::raise();
        let mut has_warned = false;
        loop {
            let seen = self.seen();
            if seen.order != WATCH {
                return self.close(seen.order == CLOSE);
            }
            self.timer.set(self.next(seen, &mut has_warned));
            // Other threads set the timer after a change, possibly before it was set here.
            if self.seen() == seen {
                self.timer.wait();
            }
        }
    }

    fn seen(&self) -> WatchdogState {
        WatchdogState {
            order: self.order.load(Ordering::Acquire),
            is_over: self.ending.is_over(),
            until: self.ending.lease.until(),
            is_guarded: self.device.get().is_some(),
        }
    }

    /// Does the work that is due and returns the time of the next.
    fn next(&self, seen: WatchdogState, has_warned: &mut bool) -> Nanos {
        // The order tells how the node ended. It comes when nothing is left to do.
        if seen.is_over {
            return NEVER;
        }
        let (now, until) = (clock::now(), seen.until);
        if until != Nanos(0) && now >= until {
            if self.ending.lease.end_if_still(until) {
                self.ending.die(StopReason::LeaseOver);
            }
            return now;
        }
        let lease = if until == Nanos(0) { NEVER } else { until };
        let Some(mut device) = self.device.get() else { return lease };
        if let Err(error) = device.write_all(&[0])
            && !std::mem::replace(has_warned, true)
        {
            let what = format!("the host's watchdog cannot be fed and will reset the host: {error}");
            self.inbox.post(Input::Trouble(what));
        }
        lease.min(now + FEED)
    }

    /// Closes the device if the end of the node is harmless. The letter `V` tells the device to
    /// stop.
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

    use plexus_base::{Incarnation, NodeId, NodeSet};
    use tempfile::TempDir;

    use super::*;
    use crate::{
        protocol::View,
        runtime::{FencingProof, Transition},
    };

    struct IdleObserver;

    impl MembershipObserver for IdleObserver {
        fn decided(&self, _: &Arc<View>) {}

        fn opened(&self, _: &Arc<View>, _: &Transition) {}

        fn fence(&self, _: NodeId, _: Incarnation, _: &AtomicBool) -> Result<FencingProof, String> {
            Err("the test has no proof".into())
        }

        fn is_well(&self) -> bool {
            true
        }

        fn leave_too(&self, _: NodeSet) {}

        fn end(&self, _: MembershipEnd) {}
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
            let ending = Arc::new(Ending::new(Arc::new(IdleObserver), Arc::new(Lease::create().unwrap())));
            let inbox = Arc::new(Inbox::create().unwrap());
            let (watchdog, thread) = Watchdog::start(Arc::clone(&ending), inbox).unwrap();
            watchdog.guard(&path).unwrap();
            Self { ending, watchdog, thread, path, _place: place }
        }

        fn fed(&self) -> Vec<u8> {
            std::fs::read(&self.path).unwrap()
        }

        /// Returns all bytes that the device received.
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
    fn a_host_whose_node_ends_while_a_lease_was_held_is_not_left_alone() {
        let guarded = Guarded::start();
        guarded.ending.hold(Nanos(u64::MAX));
        assert!(guarded.stop(false).iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_host_whose_node_takes_long_to_leave_is_left_alone() {
        let guarded = Guarded::start();
        guarded.ending.hold(Nanos(u64::MAX));
        while guarded.fed().is_empty() {
            guarded.watchdog.check();
        }
        assert!(guarded.ending.begin());
        // Wake the thread before the other nodes know of the leave.
        for _ in 0..1_000 {
            guarded.watchdog.check();
            thread::yield_now();
        }
        assert_eq!(guarded.stop(true).last(), Some(&b'V'));
    }
}
