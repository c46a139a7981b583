//! The thread that ends a process whose lease is over, also when everything else in it is stuck; and the host's watchdog device.
//!
//! It sleeps on a timer of the clock of leases, so it is awake when the lease ends and not much more often. Where a watchdog device is
//! configured, it is fed only while the lease lasts or none was held yet: a host that is stuck as a whole is reset by it. A node that
//! leaves closes the device for good; one that ends otherwise leaves it running, so its host is reset unless the node is started again in time.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::{
        Arc,
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
    is_over: AtomicBool,
}

impl Ending {
    pub(super) fn new(guest: Arc<dyn Guest>, lease: Arc<Lease>) -> Self {
        Self { guest, lease, is_over: AtomicBool::new(false) }
    }

    pub(super) fn end(&self, why: End) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            self.lease.end();
            self.guest.end(why);
        }
    }

    /// Nothing acts any more, and nobody is told.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
        self.lease.end();
    }

    /// The node may act until then. Whether it may for the first time.
    pub(super) fn hold(&self, until: Nanos) -> bool {
        self.lease.hold(until)
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

struct Shared {
    timer: Timer,
    order: AtomicU8,
    ending: Arc<Ending>,
    inbox: Arc<Inbox>,
}

#[derive(Clone)]
pub(super) struct Watchdog(Arc<Shared>);

impl Watchdog {
    pub(super) fn start(
        ending: Arc<Ending>,
        inbox: Arc<Inbox>,
        device: Option<&Path>,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let device = device.map(|path| OpenOptions::new().write(true).open(path)).transpose()?;
        let shared = Arc::new(Shared { timer: Timer::create()?, order: AtomicU8::new(WATCH), ending, inbox });
        let watching = Arc::clone(&shared);
        let thread = thread::Builder::new().name("plexus-lease".into());
        let thread = thread.spawn(move || watching.watch(device))?;
        Ok((Self(shared), thread))
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
    fn watch(&self, mut device: Option<File>) {
        priority::raise();
        let mut has_said = false;
        loop {
            let order = self.order.load(Ordering::Acquire);
            if order != WATCH || self.ending.is_over() {
                return self.close(device, order == CLOSE);
            }
            let (now, until) = (clock::now(), self.ending.lease.until());
            if until != Nanos(0) && now >= until {
                if self.ending.lease.end_if_still(until) {
                    self.ending.end(End::Died(Reason::LeaseOver));
                }
                continue;
            }
            let fed = device.as_mut().map(|device| (device.write_all(&[0]), now + FEED));
            let fed = fed.map(|(fed, next)| {
                if let Err(error) = fed
                    && !std::mem::replace(&mut has_said, true)
                {
                    let what = format!("the host's watchdog cannot be fed and will reset the host: {error}");
                    self.inbox.post(Input::Trouble(what));
                }
                next
            });
            let wakes = [Some(until).filter(|until| *until != Nanos(0)), fed];
            self.timer.set(wakes.into_iter().flatten().min().unwrap_or(Nanos(u64::MAX / 2)));
            self.timer.wait();
        }
    }

    /// The letter is what tells a device that nobody is stuck.
    fn close(&self, device: Option<File>, left: bool) {
        if let Some(mut device) = device.filter(|_| left)
            && let Err(error) = device.write_all(b"V")
        {
            let what = format!("the host's watchdog cannot be stopped and will reset the host: {error}");
            self.inbox.post(Input::Trouble(what));
        }
    }
}
