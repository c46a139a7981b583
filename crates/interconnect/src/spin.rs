//! How long to look before sleeping.
//!
//! Looking costs nobody anything while cores are free. With more threads than cores it takes the core from those who have
//! something to do, perhaps from the very one that is waited for. Whether that is so shows in how long it takes to
//! give way: a yield that comes back at once had nobody to give way to; one that comes back late let another thread run. Then
//! the worker's waits give way after every look instead of looking busily first, until a yield comes back at once again. The time that
//! others had does not count as time spent waiting: threads that take turns of microseconds on one core need not sleep and be woken, which
//! costs more than the turns do. Who comes back later than all who wait explain sleeps, since somebody computes, and so do all for a while: being woken is faster than
//! waiting until that one's time is up.

use std::{
    hint,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};

use plexus_base::{Nanos, Waiting, clock};

/// Adaptive waiting looks without giving way for this long: longer than an answer from a peer that runs takes.
const BUSY: Nanos = Nanos::from_us(3);

/// ... and then, giving way to other threads between looks, until this long: about what it costs to sleep and
/// be woken (20 to 50 microseconds in a virtual machine), so that waiting costs at most twice the least.
const GIVING_WAY: Nanos = Nanos::from_us(50);

/// A yield that takes longer let another thread run: one that finds nobody takes well below a microsecond. It counts as so long, for the
/// switches to another thread and back.
const LATE: Nanos = Nanos::from_us(2);

/// A yield that takes longer waited for a thread that computes, whose time is up after three or four milliseconds, unless others who wait
/// explain it.
const TOO_LATE: Nanos = Nanos::from_ms(1);

/// What one of those who wait takes while others give way, at most: it hands its answer on, asks again, gives way.
const TURN: Nanos = Nanos::from_us(32);

/// So much they explain: with [`TOO_LATE`] less than the time of one who computes.
const MOST_EXPLAINED: Nanos = Nanos::from_ms(2);

/// How long nobody gives way then. One who finds that it still is so loses some milliseconds.
const COMPUTES_FOR: Nanos = Nanos::from_ms(100);

/// Looks of adaptive waiting between two at the clock, while nobody else wants the core.
const LOOKS_BETWEEN_CLOCKS: u32 = 8;

/// ... and of a thread that never sleeps, which is in no hurry to give way.
const COURTEOUS_LOOKS: u32 = 32;

/// A thread that polls always lets others run now and then: they may be what it waits for.
const LOOKS_BETWEEN_YIELDS: u32 = 64;

/// What the threads of a worker have found of others who want their cores.
#[derive(Default)]
pub(crate) struct Crowd {
    /// Whether the last yield of anybody was late.
    is_there: AtomicBool,
    /// Until when, in nanoseconds, nobody gives way, since somebody computes; 0: nobody does.
    computes_until: AtomicU64,
}

impl Crowd {
    /// Whether to sleep rather than give way. Where it has been so for a while, one is told to try.
    fn computes(&self, now: Nanos) -> bool {
        let until = self.computes_until.load(Relaxed);
        let next = (now + COMPUTES_FOR).0;
        until != 0
            && (now.0 < until || self.computes_until.compare_exchange(until, next, Relaxed, Relaxed).is_err())
    }

    /// Whether others want the cores, and take turns of microseconds.
    pub(crate) fn takes_turns(&self) -> bool {
        self.is_there.load(Relaxed) && !self.is_kept_waiting()
    }

    /// Whether somebody computes, so that who is awake need not have a core.
    pub(crate) fn is_kept_waiting(&self) -> bool {
        self.computes_until.load(Relaxed) != 0
    }

    /// A yield began, and others ran for so long, `too_late` for those who wait.
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
    crowd: &'a Crowd,
    looks: u32,
    /// When the time that counts was added up last.
    since: Option<Nanos>,
    /// Time spent since something was done, without that of others.
    spent: Nanos,
    /// The last yield came back too late: after one more look it is time to sleep.
    last: bool,
}

impl<'a> Spinner<'a> {
    pub(crate) fn new(waiting: Waiting, crowd: &'a Crowd) -> Self {
        Self { waiting, crowd, looks: 0, since: None, spent: Nanos(0), last: false }
    }

    /// Something was done: start over.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.looks = 0;
        self.since = None;
        self.spent = Nanos(0);
        self.last = false;
    }

    /// Another look found nothing. Pauses a little; false when it is time to sleep. So many others wait, too, and are awake.
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
                let crowded = self.crowd.is_there.load(Relaxed);
                let soon = !crowded && !self.looks.is_multiple_of(LOOKS_BETWEEN_CLOCKS);
                soon || self.patient(crowded, others, clock::now, thread::yield_now)
            }
        }
    }

    /// Gives way to somebody who is to go first, whether or not it is time to.
    pub(crate) fn give_way(&mut self, others: u32) {
        match self.waiting {
            Waiting::Adaptive => self.let_others(others, clock::now, thread::yield_now),
            Waiting::Polling | Waiting::Event => thread::yield_now(),
        }
    }

    /// Gives way if it is time to, between two looks; false when it is time to sleep.
    fn patient(
        &mut self,
        crowded: bool,
        others: u32,
        now: impl Fn() -> Nanos,
        give_way: impl FnOnce(),
    ) -> bool {
        if self.last {
            return false;
        }
        let start = now();
        if crowded && self.crowd.computes(start) {
            return false;
        }
        self.add_up(start);
        if self.spent > BUSY || crowded {
            self.let_others(others, now, give_way);
        }
        self.last || self.spent < GIVING_WAY
    }

    /// Time has passed until `now`.
    fn add_up(&mut self, now: Nanos) {
        self.spent = self.spent + now.since(self.since.replace(now).unwrap_or(now));
    }

    /// Others run, so many of them who wait as well, and what they take is left out.
    fn let_others(&mut self, others: u32, now: impl Fn() -> Nanos, give_way: impl FnOnce()) {
        let start = now();
        self.add_up(start);
        give_way();
        let end = now();
        let took = end.since(start);
        let explained = Nanos(TURN.0 * u64::from(others)).min(MOST_EXPLAINED);
        let too_late = took > TOO_LATE + explained;
        self.crowd.yielded(start, took, too_late);
        self.spent = self.spent + took.min(LATE);
        self.since = Some(end);
        // What is waited for may just have been done: look once more.
        self.last = too_late;
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
        let crowd = Crowd::default();
        assert_eq!(looks(&mut Spinner::new(Waiting::Event, &crowd)), 0);
        assert!(looks(&mut Spinner::new(Waiting::Adaptive, &crowd)) >= LOOKS_BETWEEN_CLOCKS);
    }

    /// Time that passes by what is done in it.
    struct Time(Cell<Nanos>);

    impl Time {
        fn pass(&self, span: Nanos) {
            self.0.set(self.0.get() + span);
        }

        /// How often one who waits gives way before it sleeps where each look takes a microsecond, and each time others run for `others`.
        fn yields(&self, crowd: &Crowd, others: Nanos) -> u32 {
            self.yields_among(0, crowd, others)
        }

        /// The same where so many of them wait as well.
        fn yields_among(&self, standing: u32, crowd: &Crowd, others: Nanos) -> u32 {
            let given = Cell::new(0);
            let mut spinner = Spinner::new(Waiting::Adaptive, crowd);
            let give_way = || {
                given.set(given.get() + 1);
                self.pass(others);
            };
            while spinner.patient(crowd.is_there.load(Relaxed), standing, || self.0.get(), give_way) {
                self.pass(Nanos::from_us(1));
            }
            given.get()
        }
    }

    #[test]
    fn the_time_of_others_does_not_count() {
        let (crowd, time) = (Crowd::default(), Time(Cell::new(Nanos::from_ms(1))));
        let alone = time.yields(&crowd, Nanos(500));
        assert!((20..=40).contains(&alone) && !crowd.is_there.load(Relaxed), "{alone}");
        let taking_turns = time.yields(&crowd, Nanos::from_us(200));
        assert!((10..=20).contains(&taking_turns) && crowd.is_there.load(Relaxed), "{taking_turns}");
    }

    #[test]
    fn the_time_of_one_who_claims_the_worker_does_not_count_either() {
        let (crowd, time) = (Crowd::default(), Time(Cell::new(Nanos::from_ms(1))));
        let now = || time.0.get();
        let mut spinner = Spinner::new(Waiting::Adaptive, &crowd);
        assert!(spinner.patient(false, 0, now, || ()));
        for _ in 0..20 {
            time.pass(Nanos(100));
            spinner.let_others(0, now, || time.pass(Nanos::from_us(200)));
        }
        assert_eq!(spinner.spent, Nanos(20 * (100 + LATE.0)));
        assert!(spinner.patient(true, 0, now, || ()));
    }

    #[test]
    fn where_somebody_computes_all_sleep_and_now_and_then_one_tries() {
        let (crowd, time) = (Crowd::default(), Time(Cell::new(Nanos::from_ms(1))));
        let computes = Nanos::from_ms(3);
        assert_eq!(time.yields(&crowd, computes), 1);
        assert_eq!(time.yields(&crowd, computes), 0);
        time.pass(COMPUTES_FOR);
        assert!(!crowd.computes(time.0.get()), "the first is to try");
        assert_eq!(time.yields(&crowd, computes), 0, "the others do not");
        time.pass(COMPUTES_FOR);
        assert_eq!(time.yields(&crowd, computes), 1);
        time.pass(COMPUTES_FOR);
        assert!(time.yields(&crowd, Nanos(500)) > 1, "it is over");
        assert!(time.yields(&crowd, Nanos(500)) > 1);
    }

    #[test]
    fn those_who_take_turns_are_not_taken_for_one_who_computes() {
        let (crowd, time) = (Crowd::default(), Time(Cell::new(Nanos::from_ms(1))));
        let round = Nanos::from_us(1500);
        assert!(time.yields_among(64, &crowd, round) > 1 && crowd.takes_turns());
        assert_eq!(time.yields_among(8, &crowd, round), 1, "so few do not take so long");
        assert!(crowd.is_kept_waiting() && !crowd.takes_turns());
        time.pass(COMPUTES_FOR);
        assert!(time.yields_among(64, &crowd, round) > 1);
        assert_eq!(time.yields_among(1000, &crowd, Nanos::from_us(3500)), 1, "however many they are");
    }

    #[test]
    fn polling_goes_on_for_more_looks_than_can_be_counted() {
        let crowd = Crowd::default();
        let mut spinner = Spinner::new(Waiting::Polling, &crowd);
        spinner.looks = u32::MAX - 1;
        assert_eq!((0..4).filter(|_| spinner.again(0)).count(), 4);
    }

    #[test]
    fn what_is_done_starts_it_over() {
        let crowd = Crowd::default();
        crowd.is_there.store(true, Relaxed);
        let mut spinner = Spinner::new(Waiting::Adaptive, &crowd);
        spinner.last = true;
        assert_eq!(looks(&mut spinner), 0);
        spinner.reset();
        assert!(spinner.again(0));
    }
}
