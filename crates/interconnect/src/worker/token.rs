//! The token of a worker: who drives it, and how it is let go without losing a wake-up.
//!
//! A lock that is only ever *tried*, in one word: whether it is *taken*, whether somebody was woken and turned away since (*missed*), whether it was
//! *left* to those who stand by, and how many these are. Each step is one exchange of the word, and exchanges of one word have one order: nothing comes
//! between a look at it and what follows from that.
//!
//! | who lets go | who was woken |
//! |---|---|
//! | arm the bell (store, fence) | free: takes it |
//! | look at everything that could have come | taken: sets *missed*, somebody else sees to it, sleeps again |
//! | nothing, and not *missed*: gives it back | |
//! | *missed*: keeps it, and looks at everything | |
//!
//! Peers and local threads publish first, fence, and look at the bell then: so either the look sees what they published
//! or they ring. But what rings wakes a thread that may find the token still taken, by the very one who has looked
//! already: that one sees *missed* as it gives the token back.
//!
//! A thread that waits, is awake and found the token taken *stands by*: it tries again soon. To such threads the token can be *left*, without arming and without a
//! look, for one of them will take it and do both:
//!
//! | who leaves it to others | who stood by and goes (with its answer, or to sleep) |
//! |---|---|
//! | somebody stands by: gives it back, *left* | the last, it is *left* and free: takes it |
//! | nobody: arms, looks, and so on | not so: goes |
//!
//! # Why it is sound
//!
//! The core is used by nobody but who has a [`Held`]. One is made by an exchange that finds the token free and takes it, and gives it
//! back in its last step, so there is one at a time. The exchange that gives back releases, the one that takes acquires: what one driver did comes before what
//! the next does. Who panics with it keeps it for good, and whoever tries it then panics too; who panics elsewhere, and
//! gives a lock up meanwhile say, takes it and gives it back like others.
//!
//! The same text, letting go and all, is compiled for the real atomics and for those of `loom`, which tries every order
//! that the memory model allows with three interruptions of a thread that could have gone on, or two where four threads meet. Broken on purpose, it finds a message that nobody will handle, in each of these cases: the look comes before the
//! arming; *missed* is not looked at, or in another step than the one that gives back; a woken thread
//! does not say that it was turned away, or says so in another step than the one that tries; it goes because its own answer is there (the ring that woke it may have been for
//! somebody else as well); a visitor does not look at *missed*; who stood by just goes; one that sleeps still counts; who leaves the token to others does not look whether there are any; a visitor gives it back
//! though they have gone meanwhile. And it finds that two race where giving back does not release.
#![allow(unsafe_code, reason = "lends what one thread at a time may use")]

macro_rules! token {
    ($($atomic:ident)::+) => {
        use std::{
            cell::UnsafeCell,
            marker::PhantomData,
            mem,
            ops::{Deref, DerefMut},
        };

        use $($atomic)::+::{
            AtomicU32,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        };

        /// Somebody has it.
        const TAKEN: u32 = 1;
        /// Somebody was woken and did not get it.
        const MISSED: u32 = 1 << 1;
        /// Nobody has looked at everything before it was given back: those who stand by will.
        const LEFT: u32 = 1 << 2;
        /// Who had it panicked.
        const POISONED: u32 = 1 << 3;
        /// One who stands by; they are counted above the rest.
        const ONE: u32 = 1 << 4;

        /// What the next one need not know: it looks at everything.
        const SEEN_TO: u32 = MISSED | LEFT;

        /// What a worker's driver holds.
        pub(super) struct Token<T> {
            word: AtomicU32,
            core: UnsafeCell<T>,
        }

        // SAFETY: the core is used by one thread at a time, see the module; so it need only be fit to be handed from one to another.
        unsafe impl<T: Send> Sync for Token<T> {}

        /// The token, taken; each way to let go of it is a step. Only a panic drops it.
        pub(super) struct Held<'a, T> {
            token: &'a Token<T>,
            /// It lends the core: to share or send it takes what that takes for an exclusive reference.
            lends: PhantomData<&'a mut T>,
        }

        impl<'a, T> Held<'a, T> {
            /// Whether it was left to those who stand by.
            #[inline]
            pub(super) fn is_left(&self) -> bool {
                self.token.word.load(Relaxed) & LEFT != 0
            }

            /// A visitor looks at everything before it lets go, like who took the token for that.
            pub(super) fn stay(&self) {
                self.token.word.fetch_and(!SEEN_TO, Acquire);
            }

            /// Leaves it to those who stand by; the token again if nobody does.
            pub(super) fn leave_to_others(self) -> Result<(), Self> {
                match self.token.exchange(|word| (word >= ONE).then_some(word & !TAKEN | LEFT)) {
                    Ok(_) => {
                        mem::forget(self);
                        Ok(())
                    }
                    Err(_) => Err(self),
                }
            }

            /// Gives it back as it is: for who has lent the worker, or wakes somebody to look after it.
            #[inline]
            pub(super) fn lend(self) {
                let token = self.token;
                mem::forget(self);
                token.word.fetch_and(!TAKEN, Release);
            }

            /// Gives it back, after arming and looking, or after a visit; the token again, to look at everything, if a woken thread was turned
            /// away meanwhile, or those that it was left to have gone.
            #[inline]
            pub(super) fn unlock(self) -> Option<Self> {
                let stays = |word: u32| word & SEEN_TO != 0 && (word & LEFT == 0 || word < ONE);
                let to = |word| Some(word & !if stays(word) { SEEN_TO } else { TAKEN });
                if self.token.exchange(to).is_ok_and(stays) {
                    return Some(self);
                }
                mem::forget(self);
                None
            }

            /// Lets go, and serves what comes meanwhile; false: more kept coming for so many `turns`.
            #[inline]
            pub(super) fn let_go(mut self, turns: usize, steps: &impl Steps<T>) -> bool {
                for _ in 0..turns {
                    steps.arm();
                    if !steps.look(&mut self) {
                        match steps.unlock(self) {
                            None => return true,
                            // What woke the one who was turned away is used up: look at everything.
                            Some(again) => self = again,
                        }
                    }
                    steps.turn(&mut self);
                }
                self.lend();
                false
            }
        }

        impl<T> Deref for Held<'_, T> {
            type Target = T;

            #[inline]
            fn deref(&self) -> &T {
                // SAFETY: there is one `Held` at a time, see the module.
                unsafe { &*self.token.core.get() }
            }
        }

        impl<T> DerefMut for Held<'_, T> {
            #[inline]
            fn deref_mut(&mut self) -> &mut T {
                // SAFETY: there is one `Held` at a time, see the module, and it is borrowed exclusively.
                unsafe { &mut *self.token.core.get() }
            }
        }

        impl<T> Drop for Held<'_, T> {
            fn drop(&mut self) {
                debug_assert!(std::thread::panicking(), "let go of without a step");
                self.token.word.fetch_or(POISONED, Relaxed);
            }
        }

        impl<T> Token<T> {
            pub(super) fn new(core: T) -> Self {
                Self { word: AtomicU32::new(0), core: UnsafeCell::new(core) }
            }

            /// The token, if nobody has it. Whoever takes it looks at everything before it lets go, or leaves it to others.
            #[inline]
            pub(super) fn try_take(&self) -> Option<Held<'_, T>> {
                self.had(self.exchange(|word| free(word).then_some((word | TAKEN) & !SEEN_TO)))
            }

            /// The token for an errand that looks after nothing, if nobody has it: what others are to see to stays noted. Only while the bell
            /// is armed, the token was left to others, or the worker is lent, which the background thread looks after before long; who
            /// finds that none of it is so [stays](Held::stay).
            #[inline]
            pub(super) fn try_visit(&self) -> Option<Held<'_, T>> {
                self.had(self.exchange(|word| free(word).then_some(word | TAKEN)))
            }

            /// The token, if nobody has it, for who was woken: it says so where it is turned away.
            pub(super) fn try_woken(&self) -> Option<Held<'_, T>> {
                let word = self.exchange(|word| {
                    Some(if free(word) { (word | TAKEN) & !SEEN_TO } else { word | MISSED })
                });
                self.had(word)
            }

            /// The token, if nobody has it, for who waits; else it `stands` by from now on.
            pub(super) fn try_drive(&self, stands: &mut bool) -> Option<Held<'_, T>> {
                let stood = if *stands { ONE } else { 0 };
                let held = self.had(self.exchange(|word| match free(word) {
                    true => Some((word - stood | TAKEN) & !SEEN_TO),
                    false if stood > 0 => None,
                    false => Some(word + ONE),
                }));
                *stands = held.is_none();
                held
            }

            /// Stands by without having tried.
            pub(super) fn stand_by(&self, stands: &mut bool) {
                if !mem::replace(stands, true) {
                    self.word.fetch_add(ONE, Relaxed);
                }
            }

            /// Stands by no longer; the token, if it was left to this thread alone.
            pub(super) fn go(&self, stands: &mut bool) -> Option<Held<'_, T>> {
                if !mem::take(stands) {
                    return None;
                }
                let falls_to = |word: u32| word - ONE < ONE && word & (TAKEN | LEFT) == LEFT;
                let before = self.exchange(|word| {
                    let rest = word - ONE;
                    Some(if falls_to(word) { (rest | TAKEN) & !SEEN_TO } else { rest })
                });
                before.is_ok_and(falls_to).then(|| self.held())
            }

            /// How many stand by; a hint. For one of them, how many others wait: it counts itself in place of who drives.
            #[inline]
            pub(super) fn standing(&self) -> u32 {
                let word = self.word.load(Relaxed);
                assert_sound(word);
                word / ONE
            }

            /// Whether somebody does; a hint.
            #[inline]
            pub(super) fn is_attended(&self) -> bool {
                self.standing() > 0
            }

            /// Exchanges the word for what `to` makes of it, if anything. The word before, as an error where it stayed as it was.
            #[inline]
            fn exchange(&self, to: impl FnMut(u32) -> Option<u32>) -> Result<u32, u32> {
                self.word.fetch_update(AcqRel, Relaxed, to)
            }

            /// The token, if it was free before such an exchange.
            #[inline]
            fn had(&self, before: Result<u32, u32>) -> Option<Held<'_, T>> {
                match before {
                    Ok(word) if free(word) => Some(self.held()),
                    Ok(word) | Err(word) => {
                        assert_sound(word);
                        None
                    }
                }
            }

            /// The token, just taken.
            #[inline]
            fn held(&self) -> Held<'_, T> {
                Held { token: self, lends: PhantomData }
            }
        }

        #[inline]
        fn free(word: u32) -> bool {
            word & TAKEN == 0
        }

        /// A panic while driving is a defect of ours: the worker's state cannot be trusted any more.
        #[inline]
        fn assert_sound(word: u32) {
            assert!(word & POISONED == 0, "a worker was poisoned by an earlier panic");
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
            fn unlock<'a>(&self, held: Held<'a, T>) -> Option<Held<'a, T>> {
                held.unlock()
            }
        }
    };
}

token!(std::sync::atomic);

#[cfg(test)]
mod tests;
