//! How long to look before sleeping.

use std::{hint, thread};

use plexus_base::{Nanos, Waiting, clock};

/// Adaptive waiting looks without giving way for this long: longer than an answer from a peer that runs takes.
const BUSY: Nanos = Nanos::from_us(3);

/// ... and then, giving way to other threads between looks, until this long: about what it costs to sleep and
/// be woken (20 to 50 microseconds in a virtual machine), so that waiting costs at most twice the least.
const GIVING_WAY: Nanos = Nanos::from_us(50);

/// A thread that polls always lets others run now and then: they may be what it waits for.
const LOOKS_BETWEEN_YIELDS: u32 = 64;

/// Counts idle looks and says when it is time to sleep.
pub(crate) struct Spinner {
    waiting: Waiting,
    looks: u32,
    since: Option<Nanos>,
}

impl Spinner {
    pub(crate) fn new(waiting: Waiting) -> Self {
        Self { waiting, looks: 0, since: None }
    }

    /// Something was done: start over.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.looks = 0;
        self.since = None;
    }

    /// Another look found nothing. Pauses a little; false when it is time to sleep.
    #[inline]
    pub(crate) fn again(&mut self) -> bool {
        self.looks += 1;
        match self.waiting {
            Waiting::Event => false,
            Waiting::Polling => {
                if self.looks.is_multiple_of(LOOKS_BETWEEN_YIELDS) {
                    thread::yield_now();
                } else {
                    hint::spin_loop();
                }
                true
            }
            Waiting::Adaptive => {
                hint::spin_loop();
                if !self.looks.is_multiple_of(8) {
                    return true;
                }
                let now = clock::now();
                let spent = now.since(*self.since.get_or_insert(now));
                if spent > BUSY {
                    thread::yield_now();
                }
                spent < GIVING_WAY
            }
        }
    }
}
