//! Loom tests of every order of the steps that take and release the token, and of each step with a
//! deliberate fault.

mod in_loom {
    token!(loom::sync::atomic);

    impl<T> Token<T> {
        /// The word, for steps with a deliberate fault.
        pub(super) fn word(&self) -> &AtomicU32 {
            &self.word
        }
    }

    impl<'a, T> HeldToken<'a, T> {
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

use in_loom::{HAS, HeldToken, LEFT_TO_OTHERS, STANDS, Steps as _, Token, WAS_MISSED};
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

/// The preemptions of a thread that could have gone on.
const PREEMPTIONS: usize = 3;

/// The number of handled tasks, in a cell that detects concurrent or unordered use.
type WorkerCore = UnsafeCell<u32>;

/// The steps of release and wake-up, each of which a test can replace by a faulty one.
#[derive(Clone, Copy)]
struct TokenSteps {
    arms_first: bool,
    unlock: for<'a> fn(HeldToken<'a, WorkerCore>) -> Option<HeldToken<'a, WorkerCore>>,
    woken: for<'a> fn(&'a Token<WorkerCore>) -> Option<HeldToken<'a, WorkerCore>>,
    /// True if a woken thread with its answer goes without attending anything else.
    goes_with_its_answer: bool,
    leave_to_others: for<'a> fn(HeldToken<'a, WorkerCore>) -> Result<(), HeldToken<'a, WorkerCore>>,
    go: for<'a> fn(&'a Token<WorkerCore>, &mut bool) -> Option<HeldToken<'a, WorkerCore>>,
    /// The step of a thread that stood by and goes to sleep.
    sleep: for<'a> fn(&'a Token<WorkerCore>, &mut bool) -> Option<HeldToken<'a, WorkerCore>>,
}

const SOUND: TokenSteps = TokenSteps {
    arms_first: true,
    unlock: |core| core.unlock(),
    woken: Token::try_woken,
    goes_with_its_answer: false,
    leave_to_others: |core| core.leave_to_others(),
    go: Token::go,
    sleep: Token::go,
};

struct Worker {
    token: Token<WorkerCore>,
    armed: AtomicU32,
    /// The event descriptor of the bell; the kernel keeps its order.
    event: Mutex<bool>,
    tasks: AtomicU32,
    /// True once the watching thread has its answer.
    answered: AtomicBool,
    steps: TokenSteps,
}

impl in_loom::Steps<WorkerCore> for Worker {
    fn arm(&self) {
        if self.steps.arms_first {
            self.arm_now();
        }
    }

    fn look(&self, _: &mut WorkerCore) -> bool {
        let found = self.tasks.load(Ordering::Acquire) != 0;
        if !self.steps.arms_first {
            self.arm_now();
        }
        found
    }

    fn turn(&self, core: &mut WorkerCore) {
        let came = self.tasks.swap(0, Ordering::Acquire);
        // SAFETY: the cell is there to check this.
        core.with_mut(|handled| unsafe { *handled += came });
    }

    fn unlock<'a>(&self, core: HeldToken<'a, WorkerCore>) -> Option<HeldToken<'a, WorkerCore>> {
        (self.steps.unlock)(core)
    }
}

impl Worker {
    fn arm_now(&self) {
        self.armed.store(1, Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Acts as a peer: publishes and rings.
    fn arrive(&self) {
        self.tasks.fetch_add(1, AcqRel);
        fence(Ordering::SeqCst);
        if self.armed.compare_exchange(1, 0, Relaxed, Relaxed).is_ok() {
            *self.event.lock().unwrap() = true;
        }
    }

    /// Handles everything, and leaves.
    fn look_after(&self, mut core: HeldToken<'_, WorkerCore>) {
        self.armed.store(0, Relaxed);
        self.turn(&mut core);
        if let Err(core) = (self.steps.leave_to_others)(core)
            && !core.let_go(TURNS_WHEN_LEAVING, self)
        {
            *self.event.lock().unwrap() = true;
        }
    }

    /// Acts as a local thread that drives, and answers the thread that watches.
    fn drive(&self) {
        let Some(mut core) = self.token.try_take() else { return };
        self.armed.store(0, Relaxed);
        self.turn(&mut core);
        self.answered.store(true, Ordering::Release);
        *self.event.lock().unwrap() = true;
        self.look_after(core);
    }

    /// Acts as a local thread with an errand of its own.
    fn visit(&self) {
        let Some(core) = self.token.try_visit() else { return };
        if !core.is_left() && self.armed.load(Relaxed) == 0 {
            core.stay();
            return self.look_after(core);
        }
        if let Some(core) = (self.steps.unlock)(core) {
            core.stay();
            self.look_after(core);
        }
    }

    /// Acts as a local thread that waits, finds its answer at its second look, and goes.
    fn wait(&self) {
        let mut stands = false;
        let held = self.token.try_drive(&mut stands);
        if let Some(core) = held.or_else(|| (self.steps.go)(&self.token, &mut stands)) {
            self.look_after(core);
        }
    }

    /// Acts as a waiting thread that lets others go first, and then looks once more.
    fn wait_with_timeout(&self) {
        let mut stands = false;
        self.token.stand_by(&mut stands);
        let held = self.token.try_drive(&mut stands);
        if let Some(core) = held.or_else(|| (self.steps.go)(&self.token, &mut stands)) {
            self.look_after(core);
        }
    }

    /// Acts as a waiting thread that does not try, because another claims the token.
    fn wait_for_a_claim(&self) {
        let mut stands = false;
        self.token.stand_by(&mut stands);
        if let Some(core) = (self.steps.go)(&self.token, &mut stands) {
            self.look_after(core);
        }
    }

    /// Acts as the watching thread if it has been woken by now.
    fn watch(&self) {
        if !mem::take(&mut *self.event.lock().unwrap()) {
            return;
        }
        if self.steps.goes_with_its_answer && self.answered.load(Ordering::Acquire) {
            return;
        }
        if let Some(core) = (self.steps.woken)(&self.token) {
            self.look_after(core);
        }
    }

    /// Acts as a local thread that was woken from the seat, is turned away, looks once more for its
    /// answer, and sleeps again.
    fn watch_and_wait(&self) {
        if !mem::take(&mut *self.event.lock().unwrap()) {
            return;
        }
        let mut stands = false;
        let held = (self.steps.woken)(&self.token).or_else(|| self.token.try_drive(&mut stands));
        if let Some(core) = held.or_else(|| (self.steps.sleep)(&self.token, &mut stands)) {
            self.look_after(core);
        }
    }
}

/// Explores every order of a driver that releases the token, a peer that sends, and the thread that
/// watches. At the end all work is handled, or the bell is rung and a thread will come.
fn explore(steps: TokenSteps) {
    explore_all(steps, PREEMPTIONS, &[Worker::drive]);
}

/// Explores with `local` threads: the first runs beside the peer, the watching thread and the
/// others.
fn explore_all(steps: TokenSteps, preemptions: usize, local: &'static [fn(&Worker)]) {
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
            steps,
        });
        let start = |act: fn(&Worker)| {
            let worker = Arc::clone(&worker);
            thread::spawn(move || act(&worker))
        };
        let mut others = vec![start(Worker::arrive), start(Worker::watch)];
        others.extend(local[1..].iter().map(|act| start(*act)));
        local[0](&worker);
        others.into_iter().for_each(|other| other.join().unwrap());
        let core = worker.token.try_take().expect("the token is free");
        // SAFETY: all other threads have ended.
        let handled = core.with_mut(|handled| unsafe { *handled });
        core.lend();
        let rung = *worker.event.lock().unwrap();
        assert!(handled == 1 || rung, "a message that no thread will handle");
    });
}

/// Gives the token back, and ignores all flags.
fn give_back(core: HeldToken<'_, WorkerCore>) -> Option<HeldToken<'_, WorkerCore>> {
    core.lend();
    None
}

#[test]
fn no_message_is_left_and_only_one_thread_drives() {
    explore(SOUND);
}

/// The preemptions of runs with a visitor: four threads have many more orders.
const WITH_VISITOR: usize = 2;

#[test]
fn a_visitor_loses_nothing() {
    explore_all(SOUND, PREEMPTIONS, &[Worker::visit]);
    explore_all(SOUND, WITH_VISITOR, &[Worker::drive, Worker::visit]);
}

#[test]
fn threads_that_stand_by_lose_nothing() {
    explore_all(SOUND, WITH_VISITOR, &[Worker::wait, Worker::wait]);
    explore_all(SOUND, WITH_VISITOR, &[Worker::wait, Worker::wait_with_timeout]);
    explore_all(SOUND, WITH_VISITOR, &[Worker::wait_with_timeout, Worker::visit]);
    explore_all(SOUND, WITH_VISITOR, &[Worker::wait, Worker::wait_for_a_claim]);
    explore_all(SOUND, WITH_VISITOR, &[Worker::drive, Worker::wait_for_a_claim]);
}

#[test]
fn a_thread_turned_away_that_stands_by_and_sleeps_again_loses_nothing() {
    explore_all(SOUND, WITH_VISITOR, &[Worker::drive, Worker::watch_and_wait]);
}

#[test]
#[should_panic(expected = "no thread will handle")]
fn the_token_must_not_be_left_to_a_sleeping_thread() {
    let steps = TokenSteps { sleep: |_, _| None, ..SOUND };
    explore_all(steps, WITH_VISITOR, &[Worker::drive, Worker::watch_and_wait]);
}

#[test]
#[should_panic(expected = "no thread will handle")]
fn a_thread_that_stood_by_must_take_a_token_left_to_it() {
    fn go<'a>(token: &'a Token<WorkerCore>, stands: &mut bool) -> Option<HeldToken<'a, WorkerCore>> {
        if mem::take(stands) {
            token.word().fetch_sub(STANDS, AcqRel);
        }
        None
    }
    explore_all(TokenSteps { go, ..SOUND }, WITH_VISITOR, &[Worker::wait, Worker::wait]);
}

#[test]
#[should_panic(expected = "no thread will handle")]
fn the_token_is_left_only_to_a_thread_that_still_stands_by() {
    // Looks first whether a thread stands by, and leaves the token in a second step.
    fn leave(core: HeldToken<'_, WorkerCore>) -> Result<(), HeldToken<'_, WorkerCore>> {
        if !core.token().is_attended() {
            return Err(core);
        }
        core.lend();
        Ok(())
    }
    explore_all(TokenSteps { leave_to_others: leave, ..SOUND }, WITH_VISITOR, &[Worker::wait, Worker::wait]);
}

#[test]
#[should_panic(expected = "no thread will handle")]
fn a_visitor_must_attend_a_worker_that_no_thread_stands_by_for() {
    explore_all(
        TokenSteps { unlock: give_back, ..SOUND },
        WITH_VISITOR,
        &[Worker::wait_with_timeout, Worker::visit],
    );
}

#[test]
#[should_panic(expected = "no thread will handle")]
fn a_visitor_must_act_for_a_thread_turned_away() {
    explore_all(TokenSteps { unlock: give_back, ..SOUND }, PREEMPTIONS, &[Worker::visit]);
}

#[test]
#[should_panic(expected = "no thread will handle")]
fn looking_before_arming_loses_a_message() {
    explore(TokenSteps { arms_first: false, ..SOUND });
}

#[test]
#[should_panic(expected = "no thread will handle")]
fn unlocking_without_a_look_at_missed_loses_a_message() {
    explore(TokenSteps { unlock: give_back, ..SOUND });
}

#[test]
#[should_panic(expected = "no thread will handle")]
fn going_without_setting_missed_loses_a_message() {
    explore(TokenSteps { woken: Token::try_take, ..SOUND });
}

#[test]
#[should_panic(expected = "no thread will handle")]
fn unlocking_in_a_second_step_loses_a_message() {
    // Looks first whether a thread was turned away, and unlocks in a second step.
    fn unlock(core: HeldToken<'_, WorkerCore>) -> Option<HeldToken<'_, WorkerCore>> {
        let token = core.token();
        let missed = token.word().load(Ordering::SeqCst) & WAS_MISSED != 0;
        core.lend();
        if missed { token.try_take() } else { None }
    }
    explore(TokenSteps { unlock, ..SOUND });
}

#[test]
#[should_panic(expected = "no thread will handle")]
fn setting_missed_in_a_second_step_loses_a_message() {
    // Finds first that it is turned away, and sets the flag in a second step.
    fn woken(token: &Token<WorkerCore>) -> Option<HeldToken<'_, WorkerCore>> {
        let held = token.try_take();
        if held.is_none() {
            token.word().fetch_or(WAS_MISSED, Ordering::SeqCst);
        }
        held
    }
    explore(TokenSteps { woken, ..SOUND });
}

#[test]
#[should_panic(expected = "no thread will handle")]
fn a_woken_thread_with_its_answer_must_still_attend_the_worker() {
    explore(TokenSteps { goes_with_its_answer: true, ..SOUND });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn giving_back_must_release() {
    // It gives back as the token does, but in too weak an order. (Arming the bell fences.)
    fn leave(core: HeldToken<'_, WorkerCore>) -> Result<(), HeldToken<'_, WorkerCore>> {
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
    explore_all(TokenSteps { leave_to_others: leave, ..SOUND }, WITH_VISITOR, &[Worker::wait, Worker::wait]);
}

/// Steps with more work at every look.
struct Busy;

impl in_loom::Steps<WorkerCore> for Busy {
    fn arm(&self) {}

    fn look(&self, _: &mut WorkerCore) -> bool {
        true
    }

    fn turn(&self, _: &mut WorkerCore) {}
}

#[test]
fn a_driver_that_is_never_done_gives_the_token_back() {
    loom::model(|| {
        let token = Token::new(UnsafeCell::new(0));
        let held = token.try_take().expect("the token is free");
        assert!(!held.let_go(TURNS_WHEN_LEAVING, &Busy));
        token.try_take().expect("it was given back").lend();
    });
}
