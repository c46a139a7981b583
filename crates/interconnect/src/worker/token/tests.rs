//! Every order of the steps of those who take the token and let go of it, and each step broken on purpose.

mod in_loom {
    token!(loom::sync::atomic);

    impl<T> Token<T> {
        /// For steps that are broken on purpose.
        pub(super) fn word(&self) -> &AtomicU32 {
            &self.word
        }
    }

    impl<'a, T> Held<'a, T> {
        pub(super) fn token(&self) -> &'a Token<T> {
            self.token
        }
    }

    pub(super) const HAS: u32 = TAKEN;
    pub(super) const LEFT_TO_OTHERS: u32 = LEFT;
    pub(super) const WAS_MISSED: u32 = MISSED;
    pub(super) const STANDS: u32 = ONE;
}

use std::mem;

use in_loom::{HAS, Held, LEFT_TO_OTHERS, STANDS, Steps as _, Token, WAS_MISSED};
use loom::{
    cell::UnsafeCell,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{self, AcqRel, Relaxed},
            fence,
        },
    },
    thread,
};

use super::super::leave::TURNS_WHEN_LEAVING;

/// How often a thread is interrupted where it could have gone on.
const PREEMPTIONS: usize = 3;

/// How many tasks were handled, in a cell that notices two who use it at once, or without having heard of each other.
type Core = UnsafeCell<u32>;

/// What is done in letting go and in being woken, to be broken one by one.
#[derive(Clone, Copy)]
struct Ways {
    arms_first: bool,
    unlock: for<'a> fn(Held<'a, Core>) -> Option<Held<'a, Core>>,
    woken: for<'a> fn(&'a Token<Core>) -> Option<Held<'a, Core>>,
    /// Who was woken and finds its answer there goes, and looks after nothing.
    goes_with_its_answer: bool,
    leave_to_others: for<'a> fn(Held<'a, Core>) -> Result<(), Held<'a, Core>>,
    go: for<'a> fn(&'a Token<Core>, &mut bool) -> Option<Held<'a, Core>>,
    /// Who stood by goes to sleep.
    sleep: for<'a> fn(&'a Token<Core>, &mut bool) -> Option<Held<'a, Core>>,
}

const SOUND: Ways = Ways {
    arms_first: true,
    unlock: |core| core.unlock(),
    woken: Token::try_woken,
    goes_with_its_answer: false,
    leave_to_others: |core| core.leave_to_others(),
    go: Token::go,
    sleep: Token::go,
};

struct Worker {
    token: Token<Core>,
    armed: AtomicU32,
    /// The event descriptor of the bell; the kernel keeps its order.
    event: Mutex<bool>,
    tasks: AtomicU32,
    /// The answer of the thread that watches.
    answered: AtomicBool,
    ways: Ways,
}

impl in_loom::Steps<Core> for Worker {
    fn arm(&self) {
        if self.ways.arms_first {
            self.arm_now();
        }
    }

    fn look(&self, _: &mut Core) -> bool {
        let found = self.tasks.load(Ordering::Acquire) != 0;
        if !self.ways.arms_first {
            self.arm_now();
        }
        found
    }

    fn turn(&self, core: &mut Core) {
        let came = self.tasks.swap(0, Ordering::Acquire);
        // SAFETY: what the cell is there to find out.
        core.with_mut(|handled| unsafe { *handled += came });
    }

    fn unlock<'a>(&self, core: Held<'a, Core>) -> Option<Held<'a, Core>> {
        (self.ways.unlock)(core)
    }
}

impl Worker {
    fn arm_now(&self) {
        self.armed.store(1, Relaxed);
        fence(Ordering::SeqCst);
    }

    /// A peer: publishes and rings.
    fn arrive(&self) {
        self.tasks.fetch_add(1, AcqRel);
        fence(Ordering::SeqCst);
        if self.armed.compare_exchange(1, 0, Relaxed, Relaxed).is_ok() {
            *self.event.lock().unwrap() = true;
        }
    }

    /// Sees to everything, and leaves.
    fn look_after(&self, mut core: Held<'_, Core>) {
        self.armed.store(0, Relaxed);
        self.turn(&mut core);
        if let Err(core) = (self.ways.leave_to_others)(core)
            && !core.let_go(TURNS_WHEN_LEAVING, self)
        {
            *self.event.lock().unwrap() = true;
        }
    }

    /// A local thread that drives, and answers the one that watches.
    fn drive(&self) {
        let Some(mut core) = self.token.try_take() else { return };
        self.armed.store(0, Relaxed);
        self.turn(&mut core);
        self.answered.store(true, Ordering::Release);
        *self.event.lock().unwrap() = true;
        self.look_after(core);
    }

    /// A local thread with an errand of its own.
    fn visit(&self) {
        let Some(core) = self.token.try_visit() else { return };
        if !core.is_left() && self.armed.load(Relaxed) == 0 {
            core.stay();
            return self.look_after(core);
        }
        if let Some(core) = (self.ways.unlock)(core) {
            core.stay();
            self.look_after(core);
        }
    }

    /// A local thread that waits, finds its answer at its second look, and goes.
    fn wait(&self) {
        let mut stands = false;
        let held = self.token.try_drive(&mut stands);
        if let Some(core) = held.or_else(|| (self.ways.go)(&self.token, &mut stands)) {
            self.look_after(core);
        }
    }

    /// The same of one that lets others go first, and then looks once more.
    fn wait_with_timeout(&self) {
        let mut stands = false;
        self.token.stand_by(&mut stands);
        let held = self.token.try_drive(&mut stands);
        if let Some(core) = held.or_else(|| (self.ways.go)(&self.token, &mut stands)) {
            self.look_after(core);
        }
    }

    /// The same of one that does not try, for another claims the token.
    fn wait_for_a_claim(&self) {
        let mut stands = false;
        self.token.stand_by(&mut stands);
        if let Some(core) = (self.ways.go)(&self.token, &mut stands) {
            self.look_after(core);
        }
    }

    /// The thread that watches, if it has been woken by now.
    fn watch(&self) {
        if !mem::take(&mut *self.event.lock().unwrap()) {
            return;
        }
        if self.ways.goes_with_its_answer && self.answered.load(Ordering::Acquire) {
            return;
        }
        if let Some(core) = (self.ways.woken)(&self.token) {
            self.look_after(core);
        }
    }

    /// A local thread that was woken from the seat, is turned away, looks once more for its answer, and sleeps again.
    fn watch_and_wait(&self) {
        if !mem::take(&mut *self.event.lock().unwrap()) {
            return;
        }
        let mut stands = false;
        let held = (self.ways.woken)(&self.token).or_else(|| self.token.try_drive(&mut stands));
        if let Some(core) = held.or_else(|| (self.ways.sleep)(&self.token, &mut stands)) {
            self.look_after(core);
        }
    }
}

/// Every order of a driver that lets go, a peer that sends, and the thread that watches. At the end everything
/// was handled, or the bell is rung and somebody will come.
fn explore(ways: Ways) {
    explore_all(ways, PREEMPTIONS, &[Worker::drive]);
}

/// The first of `local` runs beside the peer, the thread that watches, and the others.
fn explore_all(ways: Ways, preemptions: usize, local: &'static [fn(&Worker)]) {
    let mut model = loom::model::Builder::new();
    // Every fault below shows with these; without a limit the search takes minutes.
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let worker = Arc::new(Worker {
            token: Token::new(UnsafeCell::new(0)),
            armed: AtomicU32::new(1),
            event: Mutex::new(false),
            tasks: AtomicU32::new(0),
            answered: AtomicBool::new(false),
            ways,
        });
        let start = |act: fn(&Worker)| {
            let worker = Arc::clone(&worker);
            thread::spawn(move || act(&worker))
        };
        let mut others = vec![start(Worker::arrive), start(Worker::watch)];
        others.extend(local[1..].iter().map(|act| start(*act)));
        local[0](&worker);
        others.into_iter().for_each(|other| other.join().unwrap());
        let core = worker.token.try_take().expect("nobody has it");
        // SAFETY: nobody else is left.
        let handled = core.with_mut(|handled| unsafe { *handled });
        core.lend();
        let rung = *worker.event.lock().unwrap();
        assert!(handled == 1 || rung, "a message that nobody will handle");
    });
}

/// Gives the token back, whatever anybody said meanwhile.
fn give_back(core: Held<'_, Core>) -> Option<Held<'_, Core>> {
    core.lend();
    None
}

#[test]
fn no_message_is_left_and_nobody_drives_beside_another() {
    explore(SOUND);
}

/// Preemptions where a visitor comes as well: four threads have many more orders.
const WITH_VISITOR: usize = 2;

#[test]
fn a_visitor_loses_nothing() {
    explore_all(SOUND, PREEMPTIONS, &[Worker::visit]);
    explore_all(SOUND, WITH_VISITOR, &[Worker::drive, Worker::visit]);
}

#[test]
fn those_who_stand_by_lose_nothing() {
    explore_all(SOUND, WITH_VISITOR, &[Worker::wait, Worker::wait]);
    explore_all(SOUND, WITH_VISITOR, &[Worker::wait, Worker::wait_with_timeout]);
    explore_all(SOUND, WITH_VISITOR, &[Worker::wait_with_timeout, Worker::visit]);
    explore_all(SOUND, WITH_VISITOR, &[Worker::wait, Worker::wait_for_a_claim]);
    explore_all(SOUND, WITH_VISITOR, &[Worker::drive, Worker::wait_for_a_claim]);
}

#[test]
fn who_is_turned_away_stands_by_and_sleeps_again_loses_nothing() {
    explore_all(SOUND, WITH_VISITOR, &[Worker::drive, Worker::watch_and_wait]);
}

#[test]
#[should_panic(expected = "nobody will handle")]
fn who_sleeps_must_not_be_left_the_token_wherever_it_sleeps() {
    let ways = Ways { sleep: |_, _| None, ..SOUND };
    explore_all(ways, WITH_VISITOR, &[Worker::drive, Worker::watch_and_wait]);
}

#[test]
#[should_panic(expected = "nobody will handle")]
fn who_stood_by_must_take_what_was_left_to_it() {
    fn go<'a>(token: &'a Token<Core>, stands: &mut bool) -> Option<Held<'a, Core>> {
        if mem::take(stands) {
            token.word().fetch_sub(STANDS, AcqRel);
        }
        None
    }
    explore_all(Ways { go, ..SOUND }, WITH_VISITOR, &[Worker::wait, Worker::wait]);
}

#[test]
#[should_panic(expected = "nobody will handle")]
fn it_is_left_only_to_who_still_stands_by() {
    // Looks whether anybody does, and leaves it then.
    fn leave(core: Held<'_, Core>) -> Result<(), Held<'_, Core>> {
        if !core.token().is_attended() {
            return Err(core);
        }
        core.lend();
        Ok(())
    }
    explore_all(Ways { leave_to_others: leave, ..SOUND }, WITH_VISITOR, &[Worker::wait, Worker::wait]);
}

#[test]
#[should_panic(expected = "nobody will handle")]
fn a_visitor_must_see_to_what_nobody_stands_by_for_any_more() {
    explore_all(
        Ways { unlock: give_back, ..SOUND },
        WITH_VISITOR,
        &[Worker::wait_with_timeout, Worker::visit],
    );
}

#[test]
#[should_panic(expected = "nobody will handle")]
fn a_visitor_must_see_to_who_was_turned_away() {
    explore_all(Ways { unlock: give_back, ..SOUND }, PREEMPTIONS, &[Worker::visit]);
}

#[test]
#[should_panic(expected = "nobody will handle")]
fn looking_before_arming_loses_a_message() {
    explore(Ways { arms_first: false, ..SOUND });
}

#[test]
#[should_panic(expected = "nobody will handle")]
fn unlocking_without_a_look_at_who_was_turned_away_loses_a_message() {
    explore(Ways { unlock: give_back, ..SOUND });
}

#[test]
#[should_panic(expected = "nobody will handle")]
fn going_without_saying_so_loses_a_message() {
    explore(Ways { woken: Token::try_take, ..SOUND });
}

#[test]
#[should_panic(expected = "nobody will handle")]
fn saying_so_after_the_unlock_was_looked_for_loses_a_message() {
    // Looks at who was turned away first, and unlocks then.
    fn unlock(core: Held<'_, Core>) -> Option<Held<'_, Core>> {
        let token = core.token();
        let missed = token.word().load(Ordering::SeqCst) & WAS_MISSED != 0;
        core.lend();
        if missed { token.try_take() } else { None }
    }
    explore(Ways { unlock, ..SOUND });
}

#[test]
#[should_panic(expected = "nobody will handle")]
fn saying_so_in_a_second_step_loses_a_message() {
    // Finds that it is turned away first, and says so then.
    fn woken(token: &Token<Core>) -> Option<Held<'_, Core>> {
        let held = token.try_take();
        if held.is_none() {
            token.word().fetch_or(WAS_MISSED, Ordering::SeqCst);
        }
        held
    }
    explore(Ways { woken, ..SOUND });
}

#[test]
#[should_panic(expected = "nobody will handle")]
fn who_was_woken_must_look_after_the_worker_even_with_its_answer_there() {
    explore(Ways { goes_with_its_answer: true, ..SOUND });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn giving_back_must_release() {
    // As the token does, in too weak an order. (Who has armed the bell has fenced.)
    fn leave(core: Held<'_, Core>) -> Result<(), Held<'_, Core>> {
        let given = core
            .token()
            .word()
            .fetch_update(Relaxed, Relaxed, |word| (word >= STANDS).then_some(word & !HAS | LEFT_TO_OTHERS));
        if given.is_err() {
            return Err(core);
        }
        mem::forget(core);
        Ok(())
    }
    explore_all(Ways { leave_to_others: leave, ..SOUND }, WITH_VISITOR, &[Worker::wait, Worker::wait]);
}

/// More comes with every look.
struct Busy;

impl in_loom::Steps<Core> for Busy {
    fn arm(&self) {}

    fn look(&self, _: &mut Core) -> bool {
        true
    }

    fn turn(&self, _: &mut Core) {}
}

#[test]
fn who_is_never_done_gives_it_back_all_the_same() {
    loom::model(|| {
        let token = Token::new(UnsafeCell::new(0));
        let held = token.try_take().expect("nobody has it");
        assert!(!held.let_go(TURNS_WHEN_LEAVING, &Busy));
        token.try_take().expect("it was given back").lend();
    });
}
