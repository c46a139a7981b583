//! The decision how long a waiting thread looks before it sleeps.
//!
//! Looking costs nothing while cores are free. With more threads than cores it takes a core from a
//! thread with work, perhaps from the very thread that would answer. The time that a yield takes
//! shows which is the case. A yield that returns at once found no other thread; one that returns
//! late let another thread run.
//!
//! After a late yield the worker's waiting threads yield after every look, until a yield returns at
//! once again. Time that other threads used does not count as waiting time. Threads that take turns
//! of microseconds on one core need not sleep and be woken, which costs more than the turns.
//!
//! A yield that takes longer than all waiting threads explain shows a thread that computes. Then
//! the waiting threads sleep, all of them for a while: a wake-up is faster than waiting until that
//! thread's time slice ends.

use std::{
    hint,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};

use plexus_base::{Nanos, Waiting, clock};

/// Adaptive waiting looks without yielding for this long: longer than a running peer takes to
/// answer.
const BUSY: Nanos = Nanos::from_us(3);

/// Adaptive waiting then yields between looks until this long. It is about the cost of sleeping and
/// being woken (20 to 50 microseconds in a virtual machine), so waiting costs at most twice the
/// least.
const GIVING_WAY: Nanos = Nanos::from_us(50);

/// A yield that takes longer let another thread run; one that finds no thread takes well below a
/// microsecond. This much of it counts as waiting, for the two context switches.
const LATE: Nanos = Nanos::from_us(2);

/// A yield that takes longer waited for a thread that computes, unless other waiting threads
/// explain it. The time slice of such a thread ends after three or four milliseconds.
const TOO_LATE: Nanos = Nanos::from_ms(1);

/// The longest time that one waiting thread takes while others yield: it takes its answer, sends a
/// request and yields.
const TURN: Nanos = Nanos::from_us(32);

/// The longest time that waiting threads explain. With [`TOO_LATE`] it is less than the time slice
/// of a computing thread.
const MOST_EXPLAINED: Nanos = Nanos::from_ms(2);

/// The time for which no thread yields after that. A thread that tries too early loses some
/// milliseconds.
const COMPUTES_FOR: Nanos = Nanos::from_ms(100);

/// Looks of adaptive waiting between two readings of the clock, while no other thread wants the
/// core.
const LOOKS_BETWEEN_CLOCKS: u32 = 8;

/// Looks between two readings of the clock in a thread that never sleeps and is in no hurry to
/// yield.
const COURTEOUS_LOOKS: u32 = 32;

/// A polling thread always lets others run now and then: it may be waiting for them.
const LOOKS_BETWEEN_YIELDS: u32 = 64;

/// Findings of a worker's threads about other threads that want their cores.
#[derive(Default)]
pub(crate) struct Contention {
    /// True if the last yield of any thread was late.
    is_there: AtomicBool,
    /// The time, in nanoseconds, until which no thread yields because another computes; 0: none
    /// computes.
    computes_until: AtomicU64,
}

impl Contention {
    /// Returns whether to sleep rather than yield. After a while it tells one thread to try.
    fn computes(&self, now: Nanos) -> bool {
        let until = self.computes_until.load(Relaxed);
        let next = (now + COMPUTES_FOR).0;
        until != 0
            && (now.0 < until || self.computes_until.compare_exchange(until, next, Relaxed, Relaxed).is_err())
    }

    /// Returns whether other threads want the cores and take turns of microseconds.
    pub(crate) fn takes_turns(&self) -> bool {
        self.is_there.load(Relaxed) && !self.is_kept_waiting()
    }

    /// Returns whether a thread computes, so that an awake thread may have no core.
    pub(crate) fn is_kept_waiting(&self) -> bool {
        self.computes_until.load(Relaxed) != 0
    }

    /// Records a yield: other threads ran for `others`, which is `too_late` for waiting threads.
    fn yielded(&self, start: Nanos, others: Nanos, too_late: bool) {
        let late = others > LATE;
        if late != self.is_there.load(Relaxed) {
            self.is_there.store(late, Relaxed);
        }
        let until = if too_late { (start + others + COMPUTES_FOR).0 } else { 0 };
        if until != self.computes_until.load(Relaxed) {
            self.computes_until.store(until, Relaxed);
        }
    }
}

/// Counts idle looks and says when it is time to sleep.
pub(crate) struct Spinner<'a> {
    waiting: Waiting,
    contention: &'a Contention,
    looks: u32,
    /// The time up to which `spent` is added up.
    since: Option<Nanos>,
    /// Time spent since the last work, without the time of others.
    spent: Nanos,
    /// True if the last yield was too late: after one more look the thread sleeps.
    last: bool,
}

impl<'a> Spinner<'a> {
    pub(crate) fn new(waiting: Waiting, contention: &'a Contention) -> Self {
        Self { waiting, contention, looks: 0, since: None, spent: Nanos(0), last: false }
    }

    /// Starts over after work was done.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.looks = 0;
        self.since = None;
        self.spent = Nanos(0);
        self.last = false;
    }

    /// Counts a look that found nothing and pauses a little. False: it is time to sleep. `others`
    /// is the number of other waiting threads that are awake.
    #[inline]
    pub(crate) fn again(&mut self, others: u32) -> bool {
        // A thread that polls may look for days.
        self.looks = self.looks.wrapping_add(1);
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
                let contended = self.contention.is_there.load(Relaxed);
                let soon = !contended && !self.looks.is_multiple_of(LOOKS_BETWEEN_CLOCKS);
                soon || self.keep_looking(contended, others, clock::now, thread::yield_now)
            }
        }
    }

    /// Yields to a thread that is to go first, whether or not it is time to.
    pub(crate) fn give_way(&mut self, others: u32) {
        match self.waiting {
            Waiting::Adaptive => self.let_others(others, clock::now, thread::yield_now),
            Waiting::Polling | Waiting::Event => thread::yield_now(),
        }
    }

    /// Yields if it is time to, between two looks; false when it is time to sleep.
    fn keep_looking(
        &mut self,
        contended: bool,
        others: u32,
        now: impl Fn() -> Nanos,
        give_way: impl FnOnce(),
    ) -> bool {
        if self.last {
            return false;
        }
        let start = now();
        if contended && self.contention.computes(start) {
            return false;
        }
        self.add_up(start);
        if self.spent > BUSY || contended {
            self.let_others(others, now, give_way);
        }
        self.last || self.spent < GIVING_WAY
    }

    /// Adds up the time until `now`.
    fn add_up(&mut self, now: Nanos) {
        self.spent = self.spent + now.since(self.since.replace(now).unwrap_or(now));
    }

    /// Yields, and leaves out the time that other threads took; `others` of them are waiting
    /// threads.
    fn let_others(&mut self, others: u32, now: impl Fn() -> Nanos, give_way: impl FnOnce()) {
        let start = now();
        self.add_up(start);
        give_way();
        let end = now();
        let took = end.since(start);
        let explained = Nanos(TURN.0 * u64::from(others)).min(MOST_EXPLAINED);
        let too_late = took > TOO_LATE + explained;
        self.contention.yielded(start, took, too_late);
        self.spent = self.spent + took.min(LATE);
        self.since = Some(end);
        // The answer may just have come: look once more.
        self.last = too_late;
    }
}

/// Counts the idle looks of a thread that never sleeps. It yields when nothing has come for longer
/// than a running peer takes to answer, since the peer may need this core. An earlier yield could
/// give the core to unrelated threads within a round trip.
#[derive(Default)]
pub(crate) struct Courtesy {
    looks: u32,
    since: Option<Nanos>,
}

impl Courtesy {
    /// Starts over after work was done.
    #[inline]
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Counts a look that found nothing. Returns whether it yielded.
    #[inline]
    pub(crate) fn again(&mut self) -> bool {
        self.looks += 1;
        // No pause here: a look at all links is one, and the processor's own takes as long as a
        // message.
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
    use std::cell::Cell;

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

    fn looks(spinner: &mut Spinner<'_>) -> u32 {
        (0..).take_while(|_| spinner.again(0)).count() as u32
    }

    #[test]
    fn event_mode_never_looks_twice_and_adaptive_waiting_ends() {
        let contention = Contention::default();
        assert_eq!(looks(&mut Spinner::new(Waiting::Event, &contention)), 0);
        assert!(looks(&mut Spinner::new(Waiting::Adaptive, &contention)) >= LOOKS_BETWEEN_CLOCKS);
    }

    /// A clock that advances by the actions taken.
    struct Time(Cell<Nanos>);

    impl Time {
        fn pass(&self, span: Nanos) {
            self.0.set(self.0.get() + span);
        }

        /// Returns how often a waiting thread yields before it sleeps. Each look takes a
        /// microsecond, and in each yield others run for `others`.
        fn yields(&self, contention: &Contention, others: Nanos) -> u32 {
            self.yields_among(0, contention, others)
        }

        /// Does the same with `standing` other waiting threads.
        fn yields_among(&self, standing: u32, contention: &Contention, others: Nanos) -> u32 {
            let given = Cell::new(0);
            let mut spinner = Spinner::new(Waiting::Adaptive, contention);
            let give_way = || {
                given.set(given.get() + 1);
                self.pass(others);
            };
            while spinner.keep_looking(contention.is_there.load(Relaxed), standing, || self.0.get(), give_way)
            {
                self.pass(Nanos::from_us(1));
            }
            given.get()
        }
    }

    #[test]
    fn the_time_of_others_does_not_count() {
        let (contention, time) = (Contention::default(), Time(Cell::new(Nanos::from_ms(1))));
        let alone = time.yields(&contention, Nanos(500));
        assert!((20..=40).contains(&alone) && !contention.is_there.load(Relaxed), "{alone}");
        let taking_turns = time.yields(&contention, Nanos::from_us(200));
        assert!((10..=20).contains(&taking_turns) && contention.is_there.load(Relaxed), "{taking_turns}");
    }

    #[test]
    fn the_time_of_a_claimant_of_the_worker_does_not_count_either() {
        let (contention, time) = (Contention::default(), Time(Cell::new(Nanos::from_ms(1))));
        let now = || time.0.get();
        let mut spinner = Spinner::new(Waiting::Adaptive, &contention);
        assert!(spinner.keep_looking(false, 0, now, || ()));
        for _ in 0..20 {
            time.pass(Nanos(100));
            spinner.let_others(0, now, || time.pass(Nanos::from_us(200)));
        }
        assert_eq!(spinner.spent, Nanos(20 * (100 + LATE.0)));
        assert!(spinner.keep_looking(true, 0, now, || ()));
    }

    #[test]
    fn where_a_thread_computes_all_sleep_and_now_and_then_one_tries() {
        let (contention, time) = (Contention::default(), Time(Cell::new(Nanos::from_ms(1))));
        let computes = Nanos::from_ms(3);
        assert_eq!(time.yields(&contention, computes), 1);
        assert_eq!(time.yields(&contention, computes), 0);
        time.pass(COMPUTES_FOR);
        assert!(!contention.computes(time.0.get()), "the first is to try");
        assert_eq!(time.yields(&contention, computes), 0, "the others do not");
        time.pass(COMPUTES_FOR);
        assert_eq!(time.yields(&contention, computes), 1);
        time.pass(COMPUTES_FOR);
        assert!(time.yields(&contention, Nanos(500)) > 1, "it is over");
        assert!(time.yields(&contention, Nanos(500)) > 1);
    }

    #[test]
    fn threads_that_take_turns_are_not_taken_for_one_that_computes() {
        let (contention, time) = (Contention::default(), Time(Cell::new(Nanos::from_ms(1))));
        let round = Nanos::from_us(1500);
        assert!(time.yields_among(64, &contention, round) > 1 && contention.takes_turns());
        assert_eq!(time.yields_among(8, &contention, round), 1, "so few do not take so long");
        assert!(contention.is_kept_waiting() && !contention.takes_turns());
        time.pass(COMPUTES_FOR);
        assert!(time.yields_among(64, &contention, round) > 1);
        assert_eq!(time.yields_among(1000, &contention, Nanos::from_us(3500)), 1, "however many they are");
    }

    #[test]
    fn polling_goes_on_for_more_looks_than_can_be_counted() {
        let contention = Contention::default();
        let mut spinner = Spinner::new(Waiting::Polling, &contention);
        spinner.looks = u32::MAX - 1;
        assert_eq!((0..4).filter(|_| spinner.again(0)).count(), 4);
    }

    #[test]
    fn what_is_done_starts_it_over() {
        let contention = Contention::default();
        contention.is_there.store(true, Relaxed);
        let mut spinner = Spinner::new(Waiting::Adaptive, &contention);
        spinner.last = true;
        assert_eq!(looks(&mut spinner), 0);
        spinner.reset();
        assert!(spinner.again(0));
    }
}
