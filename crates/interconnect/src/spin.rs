//! How long to look before sleeping.
//!
//! Looking costs nobody anything while cores are free. With more threads than cores it takes the core from those who have
//! something to do, perhaps from the very one that is waited for. Whether that is so shows in how long it takes to
//! give way: a yield that comes back at once had nobody to give way to; one that comes back late let another thread run. Who
//! finds nothing after a late yield sleeps, and the worker's next waits give way at once instead of looking busily first,
//! until a yield comes back at once again.

use std::{
    hint,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use plexus_base::{Nanos, Waiting, clock};

/// Adaptive waiting looks without giving way for this long: longer than an answer from a peer that runs takes.
const BUSY: Nanos = Nanos::from_us(3);

/// ... and then, giving way to other threads between looks, until this long: about what it costs to sleep and
/// be woken (20 to 50 microseconds in a virtual machine), so that waiting costs at most twice the least.
const GIVING_WAY: Nanos = Nanos::from_us(50);

/// A yield that takes longer let another thread run: one that finds nobody takes well below a microsecond.
const LATE: Nanos = Nanos::from_us(2);

/// Looks of adaptive waiting between two at the clock.
const LOOKS_BETWEEN_CLOCKS: u32 = 8;

/// ... and of a thread that never sleeps, which is in no hurry to give way.
const COURTEOUS_LOOKS: u32 = 32;

/// A thread that polls always lets others run now and then: they may be what it waits for.
const LOOKS_BETWEEN_YIELDS: u32 = 64;

/// Counts idle looks and says when it is time to sleep.
pub(crate) struct Spinner<'a> {
    waiting: Waiting,
    /// Whether the last yield of anybody on this worker was late.
    crowded: &'a AtomicBool,
    looks: u32,
    since: Option<Nanos>,
    /// The last yield was late: after one more round of looks it is time to sleep.
    late: bool,
}

impl<'a> Spinner<'a> {
    pub(crate) fn new(waiting: Waiting, crowded: &'a AtomicBool) -> Self {
        Self { waiting, crowded, looks: 0, since: None, late: false }
    }

    /// Something was done: start over.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.looks = 0;
        self.since = None;
        self.late = false;
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
                !self.looks.is_multiple_of(LOOKS_BETWEEN_CLOCKS) || self.patient()
            }
        }
    }

    /// Gives way if it is time to, between two rounds of looks; false when it is time to sleep.
    fn patient(&mut self) -> bool {
        if self.late {
            return false;
        }
        let now = clock::now();
        let spent = now.since(*self.since.get_or_insert(now));
        let crowded = self.crowded.load(Relaxed);
        if spent > BUSY || crowded {
            thread::yield_now();
            self.late = clock::now().since(now) > LATE;
            if self.late != crowded {
                self.crowded.store(self.late, Relaxed);
            }
        }
        // After a late yield what is waited for may just have been done: look once more.
        self.late || spent < GIVING_WAY
    }
}

/// Counts the idle looks of a thread that never sleeps, and gives way when nothing has come for longer than a peer that
/// runs takes to answer: it may be waiting for this core. Sooner would hand the core to strangers in the middle of a
/// round trip, to be had again only when their time is up.
#[derive(Default)]
pub(crate) struct Courtesy {
    looks: u32,
    since: Option<Nanos>,
}

impl Courtesy {
    /// Something was done: start over.
    #[inline]
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Another look found nothing; whether it gave way.
    #[inline]
    pub(crate) fn again(&mut self) -> bool {
        self.looks += 1;
        // No pause: a look at all links is one, and the processor's own takes as long as a message.
        self.looks.is_multiple_of(COURTEOUS_LOOKS) && self.give_way(clock::now())
    }

    fn give_way(&mut self, now: Nanos) -> bool {
        let due = now.since(*self.since.get_or_insert(now)) >= GIVING_WAY;
        if due {
            thread::yield_now();
            self.reset();
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn courtesy_waits_for_as_long_as_an_answer_takes_and_starts_over() {
        let mut courtesy = Courtesy::default();
        let at = |us: u64| Nanos::from_us(1_000 + us);
        assert!(!courtesy.give_way(at(0)) && !courtesy.give_way(at(49)));
        assert!(courtesy.give_way(at(50)));
        assert!(!courtesy.give_way(at(51)), "it has just given way");
        courtesy.reset();
        assert!(!courtesy.give_way(at(200)), "something was done meanwhile");
        assert!((0..).any(|_| courtesy.again()));
    }

    fn rounds(spinner: &mut Spinner<'_>) -> u32 {
        (0..).take_while(|_| spinner.again()).count() as u32
    }

    #[test]
    fn event_mode_never_looks_twice_and_adaptive_waiting_ends() {
        let crowded = AtomicBool::new(false);
        assert_eq!(rounds(&mut Spinner::new(Waiting::Event, &crowded)), 0);
        assert!(rounds(&mut Spinner::new(Waiting::Adaptive, &crowded)) >= LOOKS_BETWEEN_CLOCKS);
    }

    #[test]
    fn after_a_late_yield_there_is_one_more_round_of_looks() {
        let crowded = AtomicBool::new(true);
        let mut spinner = Spinner::new(Waiting::Adaptive, &crowded);
        spinner.late = true;
        assert_eq!(rounds(&mut spinner), LOOKS_BETWEEN_CLOCKS - 1);
        spinner.reset();
        assert!(
            !spinner.late && rounds(&mut spinner) >= LOOKS_BETWEEN_CLOCKS,
            "something was done: it starts over"
        );
    }
}
