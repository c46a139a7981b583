//! The token of a worker: the right to drive it, and a release of it that loses no wake-up.
//!
//! The token is a lock that is only ever *tried*, in one word. The word says whether the token is
//! *taken*, whether a woken thread was turned away since (*missed*), whether the token was *left*
//! to threads that stand by, and how many these are. Each step is one exchange of the word, and
//! exchanges of one word have one order. So nothing happens between a look at the word and its
//! update.
//!
//! | thread that releases the token | thread that was woken |
//! |---|---|
//! | arm the bell (store, fence) | free: takes it |
//! | look at everything that could have come | taken: sets *missed* for the driver, sleeps again |
//! | nothing, and not *missed*: gives it back | |
//! | *missed*: keeps it, and looks at everything | |
//!
//! Peers and local threads publish first, then fence, then look at the bell: so either the look
//! sees their data or they ring. A ring may wake a thread that finds the token still taken by the
//! driver that has just looked. That driver sees *missed* as it gives the token back.
//!
//! A thread that waits, is awake and found the token taken *stands by*: it tries again soon. The
//! token can be *left* to such threads without arming and without a look, for one of them will take
//! it and do both:
//!
//! | thread that leaves the token | thread that stood by and goes (with its answer, or to sleep) |
//! |---|---|
//! | a thread stands by: gives it back, *left* | the last, it is *left* and free: takes it |
//! | no thread does: arms, looks, and so on | otherwise: goes |
//!
//! # Why it is sound
//!
//! Only the owner of a [`HeldToken`] uses the core. An exchange that finds the token free makes
//! one, and the last step of the release gives the token back, so there is one at a time. The
//! exchange that gives back releases and the one that takes acquires: the work of one driver
//! happens before that of the next.
//!
//! A thread that panics while it has the token keeps it for good, and each later attempt to take it
//! panics too. A thread that panics elsewhere, and for example releases a lock while it unwinds,
//! takes the token and gives it back like others.
//!
//! The same text, release included, is compiled for the real atomics and for those of `loom`. Loom
//! tries every order that the memory model allows with three preemptions, or two where four threads
//! meet. It finds a message that no thread will handle in each of these deliberate faults:
//! * the look comes before the arming;
//! * *missed* is ignored, or read in another step than the one that gives back;
//! * a woken thread does not set *missed*, or sets it in another step than the one that tries;
//! * a woken thread goes because its own answer is there, though the ring may have been for
//!   another;
//! * a visitor ignores *missed*;
//! * a thread that stood by just goes, or still counts while it sleeps;
//! * a driver leaves the token without a look whether any thread stands by;
//! * a visitor gives the token back though the threads that stood by have gone.
//!
//! Loom also finds the data race where giving back does not release.
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

        /// The token is taken.
        const TAKEN: u32 = 1;
        /// A thread was woken and did not get the token.
        const MISSED: u32 = 1 << 1;
        /// The last driver did not look at everything: the threads that stand by will.
        const LEFT: u32 = 1 << 2;
        /// A thread panicked while it had the token.
        const POISONED: u32 = 1 << 3;
        /// One thread that stands by; they are counted above the flags.
        const ONE: u32 = 1 << 4;

        /// The flags that the next driver may clear, since it looks at everything.
        const SEEN_TO: u32 = MISSED | LEFT;

        /// The token of a worker and the core that it protects.
        pub(super) struct Token<T> {
            word: AtomicU32,
            core: UnsafeCell<T>,
        }

        // SAFETY: the core is used by one thread at a time, see the module; so it need only be fit
        // to be handed from one to another.
        unsafe impl<T: Send> Sync for Token<T> {}

        /// The taken token; each way to release it is a step. Only a panic drops it.
        pub(super) struct HeldToken<'a, T> {
            token: &'a Token<T>,
            /// It lends the core: sharing or sending it has the bounds of an exclusive reference.
            lends: PhantomData<&'a mut T>,
        }

        impl<'a, T> HeldToken<'a, T> {
            /// Returns whether the token was left to threads that stand by.
            #[inline]
            pub(super) fn is_left(&self) -> bool {
                self.token.word.load(Relaxed) & LEFT != 0
            }

            /// Makes a visitor responsible for looking at everything before it releases the token.
            pub(super) fn stay(&self) {
                self.token.word.fetch_and(!SEEN_TO, Acquire);
            }

            /// Leaves the token to threads that stand by. Returns it if there are none.
            pub(super) fn leave_to_others(self) -> Result<(), Self> {
                match self.token.exchange(|word| (word >= ONE).then_some(word & !TAKEN | LEFT)) {
                    Ok(_) => {
                        mem::forget(self);
                        Ok(())
                    }
                    Err(_) => Err(self),
                }
            }

            /// Gives the token back as it is, after lending the worker or waking a thread to attend
            /// it.
            #[inline]
            pub(super) fn lend(self) {
                let token = self.token;
                mem::forget(self);
                token.word.fetch_and(!TAKEN, Release);
            }

            /// Gives the token back, after arming and looking, or after a visit. Returns it if a
            /// woken thread was turned away meanwhile, or if the threads that it was left to have
            /// gone. Then the caller must look at everything.
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

            /// Releases the token and serves arrivals meanwhile. False: more kept coming for
            /// `turns` turns.
            #[inline]
            pub(super) fn let_go(mut self, turns: usize, steps: &impl Steps<T>) -> bool {
                for _ in 0..turns {
                    steps.arm();
                    if !steps.look(&mut self) {
                        match steps.unlock(self) {
                            None => return true,
                            // The wake-up of the thread that was turned away is used up: look at
                            // everything.
                            Some(again) => self = again,
                        }
                    }
                    steps.turn(&mut self);
                }
                self.lend();
                false
            }
        }

        impl<T> Deref for HeldToken<'_, T> {
            type Target = T;

            #[inline]
            fn deref(&self) -> &T {
                // SAFETY: there is one `HeldToken` at a time, see the module.
                unsafe { &*self.token.core.get() }
            }
        }

        impl<T> DerefMut for HeldToken<'_, T> {
            #[inline]
            fn deref_mut(&mut self) -> &mut T {
                // SAFETY: there is one `HeldToken` at a time, see the module, and it is borrowed
                // exclusively.
                unsafe { &mut *self.token.core.get() }
            }
        }

        impl<T> Drop for HeldToken<'_, T> {
            fn drop(&mut self) {
                debug_assert!(std::thread::panicking(), "let go of without a step");
                self.token.word.fetch_or(POISONED, Relaxed);
            }
        }

        impl<T> Token<T> {
            pub(super) fn new(core: T) -> Self {
                Self { word: AtomicU32::new(0), core: UnsafeCell::new(core) }
            }

            /// Takes the token if it is free. The caller looks at everything before it releases it,
            /// or leaves it to others.
            #[inline]
            pub(super) fn try_take(&self) -> Option<HeldToken<'_, T>> {
                self.had(self.exchange(|word| free(word).then_some((word | TAKEN) & !SEEN_TO)))
            }

            /// Takes the token, if it is free, for an errand that attends nothing else; the flags
            /// stay. This is allowed only while the bell is armed, the token was left, or the
            /// worker is lent (the background thread attends it soon). A caller that finds none of
            /// these [stays](HeldToken::stay).
            #[inline]
            pub(super) fn try_visit(&self) -> Option<HeldToken<'_, T>> {
                self.had(self.exchange(|word| free(word).then_some(word | TAKEN)))
            }

            /// Takes the token, if it is free, for a woken thread. Otherwise it sets *missed*.
            pub(super) fn try_woken(&self) -> Option<HeldToken<'_, T>> {
                let word = self.exchange(|word| {
                    Some(if free(word) { (word | TAKEN) & !SEEN_TO } else { word | MISSED })
                });
                self.had(word)
            }

            /// Takes the token, if it is free, for a waiting thread; otherwise the thread `stands`
            /// by from now on.
            pub(super) fn try_drive(&self, stands: &mut bool) -> Option<HeldToken<'_, T>> {
                let stood = if *stands { ONE } else { 0 };
                let held = self.had(self.exchange(|word| match free(word) {
                    true => Some((word - stood | TAKEN) & !SEEN_TO),
                    false if stood > 0 => None,
                    false => Some(word + ONE),
                }));
                *stands = held.is_none();
                held
            }

            /// Stands by without a try.
            pub(super) fn stand_by(&self, stands: &mut bool) {
                if !mem::replace(stands, true) {
                    self.word.fetch_add(ONE, Relaxed);
                }
            }

            /// Stands by no longer. Takes the token if it was left to this thread alone.
            pub(super) fn go(&self, stands: &mut bool) -> Option<HeldToken<'_, T>> {
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

            /// Returns how many threads stand by; a hint. For a thread that stands by it is the
            /// number of other waiting threads: it counts itself in place of the driver.
            #[inline]
            pub(super) fn standing(&self) -> u32 {
                let word = self.word.load(Relaxed);
                assert_sound(word);
                word / ONE
            }

            /// Returns whether a thread stands by; a hint.
            #[inline]
            pub(super) fn is_attended(&self) -> bool {
                self.standing() > 0
            }

            /// Updates the word with `to`. Returns the word before, as an error if `to` refused.
            #[inline]
            fn exchange(&self, to: impl FnMut(u32) -> Option<u32>) -> Result<u32, u32> {
                self.word.fetch_update(AcqRel, Relaxed, to)
            }

            /// Makes the token if it was free before such an exchange.
            #[inline]
            fn had(&self, before: Result<u32, u32>) -> Option<HeldToken<'_, T>> {
                match before {
                    Ok(word) if free(word) => Some(self.held()),
                    Ok(word) | Err(word) => {
                        assert_sound(word);
                        None
                    }
                }
            }

            /// Makes the token that was just taken.
            #[inline]
            fn held(&self) -> HeldToken<'_, T> {
                HeldToken { token: self, lends: PhantomData }
            }
        }

        #[inline]
        fn free(word: u32) -> bool {
            word & TAKEN == 0
        }

        /// A panic while driving is a defect of ours: the worker's state cannot be trusted any
        /// more.
        #[inline]
        fn assert_sound(word: u32) {
            assert!(word & POISONED == 0, "a worker was poisoned by an earlier panic");
        }

        /// The steps of releasing the token.
        pub(super) trait Steps<T> {
            /// Arms the bell: from now on every source of work rings.
            fn arm(&self);

            /// Returns whether work has come before that.
            fn look(&self, core: &mut T) -> bool;

            /// Looks at everything and handles it.
            fn turn(&self, core: &mut T);

            /// Gives the token back; only a test replaces this.
            #[inline]
            fn unlock<'a>(&self, held: HeldToken<'a, T>) -> Option<HeldToken<'a, T>> {
                held.unlock()
            }
        }
    };
}

token!(std::sync::atomic);

#[cfg(test)]
mod tests;
