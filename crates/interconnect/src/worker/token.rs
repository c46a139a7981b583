//! The token of a worker: who drives it, and how it is let go without losing a wake-up.
//!
//! A mutex that is only ever *tried*. Around it stand the steps that make trying sound:
//!
//! | who lets go | who was woken |
//! |---|---|
//! | arm the bell (store, fence) | `missed` = true, fence |
//! | look at everything that could have come | try the token |
//! | nothing: unlock, fence | taken: somebody else sees to it, sleep again |
//! | `missed`? then take the token again and look at everything | |
//!
//! Peers and local threads publish first, fence, and look at the bell then: so either the look sees what they published
//! or they ring. But what rings wakes a thread that may find the token still taken, by the very one who has looked
//! already. The two fences have one order: either the woken thread's try comes after the unlock, or the one who lets go sees
//! `missed`.
//!
//! The same text, letting go and all, is compiled for the real primitives and for those of `loom`, which tries every order
//! that the memory model allows. Broken on purpose, it finds a message that nobody will handle, in each of these cases: the look comes before the
//! arming; either of the two fences is missing; `missed` is not looked at, or looked at before the unlock; a woken thread
//! does not say that it tries; it goes because its own answer is there (the ring that woke it may have been for
//! somebody else as well); a visitor clears `missed`, or does not look at it.

macro_rules! token {
    ($($sync:ident)::+) => {
        use $($sync)::+::{
            Mutex, MutexGuard,
            atomic::{AtomicBool, Ordering, fence},
        };

        /// What a worker's driver holds.
        pub(super) struct Token<T> {
            pub(super) core: Mutex<T>,
            /// Somebody was woken and did not get the token.
            pub(super) missed: AtomicBool,
        }

        impl<T> Token<T> {
            pub(super) fn new(core: T) -> Self {
                Self { core: Mutex::new(core), missed: AtomicBool::new(false) }
            }

            /// The token, if nobody has it. Whoever takes it looks at everything before it lets go.
            #[inline]
            pub(super) fn try_take(&self) -> Option<MutexGuard<'_, T>> {
                let core = self.try_visit()?;
                self.stay();
                Some(core)
            }

            /// The token for an errand that looks after nothing, if nobody has it: who was turned away stays noted, so
            /// [`Token::unlock`] sees to it. Only while the bell is armed; who finds that it is not [stays](Token::stay).
            #[inline]
            pub(super) fn try_visit(&self) -> Option<MutexGuard<'_, T>> {
                match self.core.try_lock() {
                    Ok(core) => Some(core),
                    Err(std::sync::TryLockError::WouldBlock) => None,
                    // A panic while driving is a defect of ours: the worker's state cannot be trusted any more.
                    Err(std::sync::TryLockError::Poisoned(_)) => {
                        panic!("a worker was poisoned by an earlier panic")
                    }
                }
            }

            /// A visitor, still with the token, looks at everything before it lets go, like who took it for that.
            pub(super) fn stay(&self) {
                self.missed.store(false, Ordering::Relaxed);
            }

            /// Who was woken says so before it tries the token.
            pub(super) fn woken(&self) {
                self.missed.store(true, Ordering::SeqCst);
                fence(Ordering::SeqCst);
            }

            /// Unlocks, after arming and looking; the token again if a woken thread was turned away meanwhile.
            pub(super) fn unlock<'a>(&'a self, core: MutexGuard<'a, T>) -> Option<MutexGuard<'a, T>> {
                drop(core);
                fence(Ordering::SeqCst);
                if self.missed.load(Ordering::SeqCst) { self.try_take() } else { None }
            }

            /// Lets go, and serves what comes meanwhile; false: more kept coming for so many `turns`.
            #[inline]
            pub(super) fn let_go<'a>(
                &'a self,
                mut core: MutexGuard<'a, T>,
                turns: usize,
                steps: &impl Steps<T>,
            ) -> bool {
                for _ in 0..turns {
                    steps.arm();
                    if !steps.look(&mut core) {
                        match steps.unlock(self, core) {
                            None => return true,
                            // What woke the one who was turned away is used up: look at everything.
                            Some(again) => core = again,
                        }
                    }
                    steps.turn(&mut core);
                }
                false
            }
        }

        /// What letting go is made of.
        pub(super) trait Steps<T> {
            /// From now on whoever brings something rings.
            fn arm(&self);

            /// Whether something has come before that.
            fn look(&self, core: &mut T) -> bool;

            /// Looks at everything, and sees to it.
            fn turn(&self, core: &mut T);

            /// Only a test does this otherwise.
            #[inline]
            fn unlock<'a>(
                &self,
                token: &'a Token<T>,
                core: MutexGuard<'a, T>,
            ) -> Option<MutexGuard<'a, T>> {
                token.unlock(core)
            }
        }
    };
}

token!(std::sync);

#[cfg(test)]
mod tests {
    mod in_loom {
        token!(loom::sync);
    }

    use in_loom::{Steps as _, Token};
    use loom::{
        sync::{
            Arc, Mutex, MutexGuard,
            atomic::{AtomicBool, AtomicU32, Ordering, fence},
        },
        thread,
    };

    use super::super::TURNS_WHEN_LEAVING;

    /// How often a thread is interrupted where it could have gone on.
    const PREEMPTIONS: usize = 3;

    /// How many tasks were handled.
    type Core = u32;
    type Held<'a> = MutexGuard<'a, Core>;

    /// What is done in letting go and in being woken, to be broken one by one.
    #[derive(Clone, Copy)]
    struct Ways {
        arms_first: bool,
        unlock: for<'a> fn(&'a Token<Core>, Held<'a>) -> Option<Held<'a>>,
        woken: fn(&Token<Core>),
        /// Who was woken and finds its answer there goes, and looks after nothing.
        goes_with_its_answer: bool,
        /// Who comes with an errand of its own takes the token like this.
        visit: for<'a> fn(&'a Token<Core>) -> Option<Held<'a>>,
    }

    const SOUND: Ways = Ways {
        arms_first: true,
        unlock: |token, core| token.unlock(core),
        woken: Token::woken,
        goes_with_its_answer: false,
        visit: Token::try_visit,
    };

    struct Worker {
        token: Token<Core>,
        armed: AtomicU32,
        /// The event descriptor of the bell; the kernel keeps its order.
        event: Mutex<bool>,
        tasks: AtomicU32,
        /// The answer of the thread that watches.
        answered: AtomicBool,
        driving: AtomicBool,
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
            assert!(!self.driving.swap(true, Ordering::Relaxed), "two drivers");
            *core += self.tasks.swap(0, Ordering::Acquire);
            self.driving.store(false, Ordering::Relaxed);
        }

        fn unlock<'a>(&self, token: &'a Token<Core>, core: Held<'a>) -> Option<Held<'a>> {
            (self.ways.unlock)(token, core)
        }
    }

    impl Worker {
        fn arm_now(&self) {
            self.armed.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }

        /// A peer: publishes and rings.
        fn arrive(&self) {
            self.tasks.fetch_add(1, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            if self.armed.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                *self.event.lock().unwrap() = true;
            }
        }

        fn leave(&self, core: Held<'_>) {
            if !self.token.let_go(core, TURNS_WHEN_LEAVING, self) {
                *self.event.lock().unwrap() = true;
            }
        }

        /// A local thread that drives, and answers the one that watches.
        fn drive(&self) {
            let Some(mut core) = self.token.try_take() else { return };
            self.armed.store(0, Ordering::Relaxed);
            self.turn(&mut core);
            self.answered.store(true, Ordering::Release);
            *self.event.lock().unwrap() = true;
            self.leave(core);
        }

        /// A local thread with an errand of its own.
        fn visit(&self) {
            let Some(mut core) = (self.ways.visit)(&self.token) else { return };
            if self.armed.load(Ordering::Relaxed) == 0 {
                self.token.stay();
                in_loom::Steps::turn(self, &mut core);
                return self.leave(core);
            }
            if let Some(mut core) = (self.ways.unlock)(&self.token, core) {
                self.token.stay();
                self.armed.store(0, Ordering::Relaxed);
                self.turn(&mut core);
                self.leave(core);
            }
        }

        /// The thread that watches, if it has been woken by now.
        fn watch(&self) {
            if !std::mem::take(&mut *self.event.lock().unwrap()) {
                return;
            }
            if self.ways.goes_with_its_answer && self.answered.load(Ordering::Acquire) {
                return;
            }
            (self.ways.woken)(&self.token);
            let Some(mut core) = self.token.try_take() else { return };
            self.armed.store(0, Ordering::Relaxed);
            self.turn(&mut core);
            self.leave(core);
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
                token: Token::new(0),
                armed: AtomicU32::new(1),
                event: Mutex::new(false),
                tasks: AtomicU32::new(0),
                answered: AtomicBool::new(false),
                driving: AtomicBool::new(false),
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
            let handled = *worker.token.core.lock().unwrap();
            let rung = *worker.event.lock().unwrap();
            assert!(handled == 1 || rung, "a message that nobody will handle");
        });
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
    #[should_panic(expected = "nobody will handle")]
    fn a_visitor_must_see_to_who_was_turned_away() {
        fn unlock<'a>(_: &'a Token<Core>, core: Held<'a>) -> Option<Held<'a>> {
            drop(core);
            None
        }
        explore_all(Ways { unlock, ..SOUND }, PREEMPTIONS, &[Worker::visit]);
    }

    #[test]
    #[should_panic(expected = "nobody will handle")]
    fn a_visitor_must_leave_noted_who_was_turned_away() {
        let ways = Ways { visit: Token::try_take, ..SOUND };
        explore_all(ways, WITH_VISITOR, &[Worker::drive, Worker::visit]);
    }

    #[test]
    #[should_panic(expected = "nobody will handle")]
    fn looking_before_arming_loses_a_message() {
        explore(Ways { arms_first: false, ..SOUND });
    }

    #[test]
    #[should_panic(expected = "nobody will handle")]
    fn unlocking_without_a_look_at_who_was_turned_away_loses_a_message() {
        fn unlock<'a>(_: &'a Token<Core>, core: Held<'a>) -> Option<Held<'a>> {
            drop(core);
            None
        }
        explore(Ways { unlock, ..SOUND });
    }

    #[test]
    #[should_panic(expected = "nobody will handle")]
    fn trying_without_saying_so_loses_a_message() {
        explore(Ways { woken: |_| {}, ..SOUND });
    }

    #[test]
    #[should_panic(expected = "nobody will handle")]
    fn saying_so_after_the_unlock_was_looked_for_loses_a_message() {
        // Looks at who was turned away first, and unlocks then.
        fn unlock<'a>(token: &'a Token<Core>, core: Held<'a>) -> Option<Held<'a>> {
            let missed = token.missed.load(Ordering::SeqCst);
            drop(core);
            if missed { token.try_take() } else { None }
        }
        explore(Ways { unlock, ..SOUND });
    }

    #[test]
    #[should_panic(expected = "nobody will handle")]
    fn the_fence_of_who_lets_go_is_needed() {
        fn unlock<'a>(token: &'a Token<Core>, core: Held<'a>) -> Option<Held<'a>> {
            drop(core);
            if token.missed.load(Ordering::SeqCst) { token.try_take() } else { None }
        }
        explore(Ways { unlock, ..SOUND });
    }

    #[test]
    #[should_panic(expected = "nobody will handle")]
    fn the_fence_of_who_was_woken_is_needed() {
        explore(Ways { woken: |token| token.missed.store(true, Ordering::SeqCst), ..SOUND });
    }

    #[test]
    #[should_panic(expected = "nobody will handle")]
    fn who_was_woken_must_look_after_the_worker_even_with_its_answer_there() {
        explore(Ways { goes_with_its_answer: true, ..SOUND });
    }
}
