//! The hand-over between a sender and a worker that is about to sleep, in its pure form.
//!
//! Two words meet: what the sender *published* (a ring) and whether the sleeper is *armed*. Each side writes
//! its own and then reads the other's, with a sequentially consistent fence in between:
//!
//! | sleeper | sender |
//! |---|---|
//! | armed = 1 | publish |
//! | fence | fence (once for a batch of sends) |
//! | look at what was published | armed = 1? then take it back to 0 and ring |
//! | nothing there: sleep until rung | |
//!
//! The two fences have one order: whoever fences second sees what the other wrote before its own. So either
//! the sleeper sees what was published, or the sender sees that it is armed; without either fence both may
//! look too early, and the wake-up is lost. The exchange makes one ring of many senders.
//!
//! The same text is compiled for real atomics and for those of `loom`, which tries every order that the
//! memory model allows; the tests show that each fence is needed.

/// The three steps, over the atomics of the given module.
macro_rules! handover {
    ($($atomic:ident)::+) => {
        use $($atomic)::+::{AtomicU32, Ordering, fence};

        /// The sleeper's first step. After it, look at everything once more, then sleep.
        pub(crate) fn arm(armed: &AtomicU32) {
            armed.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }

        /// The sleeper is awake and looks by itself.
        pub(crate) fn disarm(armed: &AtomicU32) {
            armed.store(0, Ordering::Relaxed);
        }

        /// The sender's step after it has published: whether it must ring.
        #[must_use]
        pub(crate) fn claim(armed: &AtomicU32) -> bool {
            fence(Ordering::SeqCst);
            armed.load(Ordering::Relaxed) != 0
                && armed.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        }
    };
}

handover!(std::sync::atomic);

#[cfg(test)]
mod tests {
    mod in_loom {
        handover!(loom::sync::atomic);
    }

    use loom::sync::{Arc, atomic::AtomicU32, atomic::Ordering};

    type Arm = fn(&AtomicU32);
    type Claim = fn(&AtomicU32) -> bool;

    /// Every interleaving of one sleeper and `senders`: it never sleeps on what was published without being
    /// rung.
    fn explore(senders: usize, arm: Arm, claim: Claim) {
        loom::model(move || {
            let armed = Arc::new(AtomicU32::new(0));
            let published: Arc<Vec<AtomicU32>> = Arc::new((0..senders).map(|_| AtomicU32::new(0)).collect());
            let sending: Vec<_> = (0..senders)
                .map(|sender| {
                    let (armed, published) = (Arc::clone(&armed), Arc::clone(&published));
                    loom::thread::spawn(move || {
                        published[sender].store(1, Ordering::Release);
                        claim(&armed)
                    })
                })
                .collect();
            arm(&armed);
            let all_seen = published.iter().all(|ring| ring.load(Ordering::Acquire) == 1);
            let rings = sending.into_iter().map(|t| t.join().unwrap()).filter(|rang| *rang).count();
            assert!(all_seen || rings == 1, "asleep on a frame that nobody rings for");
            assert!(rings <= 1, "one sleep, one ring");
        });
    }

    #[test]
    fn no_wake_up_is_lost() {
        explore(1, in_loom::arm, in_loom::claim);
    }

    #[test]
    fn no_wake_up_is_lost_between_two_senders() {
        explore(2, in_loom::arm, in_loom::claim);
    }

    #[test]
    #[should_panic(expected = "asleep on a frame")]
    fn the_fence_of_the_sender_is_needed() {
        explore(1, in_loom::arm, |armed| {
            armed.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
    }

    #[test]
    #[should_panic(expected = "asleep on a frame")]
    fn the_fence_of_the_sleeper_is_needed() {
        explore(1, |armed| armed.store(1, Ordering::SeqCst), in_loom::claim);
    }

    #[test]
    fn a_sleeper_that_woke_by_itself_is_not_rung() {
        loom::model(|| {
            let armed = AtomicU32::new(0);
            in_loom::arm(&armed);
            in_loom::disarm(&armed);
            assert!(!in_loom::claim(&armed));
        });
    }
}
