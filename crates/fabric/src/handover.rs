//! The hand-over between a sender and a worker that is about to sleep, without any system call.
//!
//! Two words take part: the *published* word of the sender (a ring) and the *armed* word of the
//! sleeper. Each side writes its own word and then reads the other's, with a sequentially
//! consistent fence in between:
//!
//! | sleeper | sender |
//! |---|---|
//! | armed = 1 | publish |
//! | fence | fence (once for a batch of sends) |
//! | look at what was published | armed = 1? then set it to 0 and ring |
//! | nothing there: sleep until rung | |
//!
//! The two fences have one order: the side that fences second sees what the other wrote before its
//! fence. So either the sleeper sees what was published, or the sender sees that it is armed.
//! Without either fence both may look too early, and the wake-up is lost. The exchange lets only
//! one of several senders ring.
//!
//! An untrusted sender must not write a word that others rely on. For such senders there is a
//! second word, the *notice*, which only the sleeper writes. It is odd while the sleeper is armed,
//! and another odd number each time. A sender remembers the number for which it rang last, and
//! rings once for each:
//!
//! | sleeper | sender |
//! |---|---|
//! | notice = a new odd number | publish |
//! | fence | fence |
//! | look at what was published | odd, and not the number it rang for? remember it and ring |
//! | nothing there: sleep until rung | |
//!
//! A sender that has rung for a number may stay silent while that number stands. Its ring came
//! after the arming, so it wakes the sleep that follows, or the awake sleeper clears it. In both
//! cases the sleeper looks at everything before it sleeps again, after arming with a new number. By
//! the two fences, everything published while the old number stood was published before that look.
//! If the number were used again, the wake-up would be lost.
//!
//! The same text is compiled for real atomics and for those of `loom`, which tries every order that
//! the memory model allows. The tests show that each fence is needed.

/// Defines the steps over the atomics of the given module.
macro_rules! handover {
    ($($atomic:ident)::+) => {
        use $($atomic)::+::{AtomicU32, AtomicU64, Ordering, fence};

        /// The sleeper's first step. It then looks at everything once more, and sleeps.
        pub(crate) fn arm(armed: &AtomicU32, notice: &AtomicU64) {
            armed.store(1, Ordering::Relaxed);
            arm_notice(notice);
        }

        /// The sleeper's step after waking: senders need not ring.
        pub(crate) fn disarm(armed: &AtomicU32, notice: &AtomicU64) {
            armed.store(0, Ordering::Relaxed);
            disarm_notice(notice);
        }

        /// The first step of a sleeper that only read-only senders wake.
        pub(crate) fn arm_notice(notice: &AtomicU64) {
            let last = notice.load(Ordering::Relaxed) | 1;
            notice.store(last.wrapping_add(2), Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }

        /// The step after waking of a sleeper that only read-only senders wake.
        pub(crate) fn disarm_notice(notice: &AtomicU64) {
            notice.store(notice.load(Ordering::Relaxed) & !1, Ordering::Relaxed);
        }

        /// The step of a read-only sender after it has published; returns true if it must ring.
        /// `rung` is the last notice for which it rang.
        #[must_use]
        pub(crate) fn claim_notice(notice: &AtomicU64, rung: &mut u64) -> bool {
            fence(Ordering::SeqCst);
            let now = notice.load(Ordering::Relaxed);
            let rings = now & 1 == 1 && now != *rung;
            if rings {
                *rung = now;
            }
            rings
        }

        /// The sender's step after it has published; returns true if it must ring.
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

    use loom::sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    };

    type Arm = fn(&AtomicU32, &AtomicU64);
    type Claim = fn(&AtomicU32) -> bool;

    /// Explores every interleaving of one sleeper and `senders`: it never sleeps on a published
    /// frame without being rung.
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
            arm(&armed, &AtomicU64::new(0));
            let all_seen = published.iter().all(|ring| ring.load(Ordering::Acquire) == 1);
            let rings = sending.into_iter().map(|t| t.join().unwrap()).filter(|rang| *rang).count();
            assert!(all_seen || rings == 1, "asleep on a frame without a ring");
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
        explore(1, |armed, _| armed.store(1, Ordering::SeqCst), in_loom::claim);
    }

    #[test]
    fn a_sleeper_that_woke_by_itself_is_not_rung() {
        loom::model(|| {
            let (armed, notice) = (AtomicU32::new(0), AtomicU64::new(0));
            in_loom::arm(&armed, &notice);
            in_loom::disarm(&armed, &notice);
            assert!(!in_loom::claim(&armed) && !in_loom::claim_notice(&notice, &mut 0));
        });
    }

    /// The number of preemptions that the explorer tries in one run.
    const PREEMPTIONS: usize = 3;

    type ArmNotice = fn(&AtomicU64);
    type ClaimNotice = fn(&AtomicU64, &mut u64) -> bool;

    /// The state that a sleeper and read-only senders share.
    struct Sleeper {
        notice: AtomicU64,
        published: Vec<AtomicU32>,
        /// Stands for the event descriptor; the kernel keeps its order.
        rung: Mutex<bool>,
        wakes: Condvar,
    }

    impl Sleeper {
        /// Publishes `times`; returns the number of rings.
        fn send(&self, sender: usize, times: u32, claim_notice: ClaimNotice) -> usize {
            let (mut last, mut rings) = (0, 0);
            for time in 1..=times {
                self.published[sender].store(time, Ordering::Release);
                if claim_notice(&self.notice, &mut last) {
                    rings += 1;
                    *self.rung.lock().unwrap() = true;
                    self.wakes.notify_one();
                }
            }
            rings
        }

        /// Sleeps and wakes until it has seen everything; returns how often it armed itself.
        fn receive(&self, times: u32, arm_notice: ArmNotice) -> usize {
            let mut armed = 0;
            loop {
                arm_notice(&self.notice);
                armed += 1;
                if self.published.iter().all(|ring| ring.load(Ordering::Acquire) == times) {
                    return armed;
                }
                let mut rung = self.rung.lock().unwrap();
                while !*rung {
                    rung = self.wakes.wait(rung).unwrap();
                }
                *rung = false;
                drop(rung);
                in_loom::disarm_notice(&self.notice);
            }
        }
    }

    /// Explores the orders of one sleeper and read-only `senders`: a lost wake-up shows as a
    /// deadlock.
    fn explore_notice(senders: usize, times: u32, arm_notice: ArmNotice, claim_notice: ClaimNotice) {
        let mut explorer = loom::model::Builder::new();
        explorer.preemption_bound = Some(PREEMPTIONS);
        explorer.check(move || {
            let sleeper = Arc::new(Sleeper {
                notice: AtomicU64::new(0),
                published: (0..senders).map(|_| AtomicU32::new(0)).collect(),
                rung: Mutex::new(false),
                wakes: Condvar::new(),
            });
            let sending: Vec<_> = (0..senders)
                .map(|sender| {
                    let sleeper = Arc::clone(&sleeper);
                    loom::thread::spawn(move || sleeper.send(sender, times, claim_notice))
                })
                .collect();
            let armed = sleeper.receive(times, arm_notice);
            for sender in sending {
                assert!(sender.join().unwrap() <= armed, "one sleep, one ring of each sender");
            }
        });
    }

    #[test]
    fn no_wake_up_by_a_read_only_sender_is_lost() {
        explore_notice(1, 2, in_loom::arm_notice, in_loom::claim_notice);
        explore_notice(2, 1, in_loom::arm_notice, in_loom::claim_notice);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn the_fence_of_a_read_only_sender_is_needed() {
        explore_notice(1, 2, in_loom::arm_notice, |notice, rung| {
            let now = notice.load(Ordering::Relaxed);
            let rings = now & 1 == 1 && now != *rung;
            *rung = now;
            rings
        });
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn the_fence_after_a_notice_is_needed() {
        let arm_notice: ArmNotice = |notice| {
            notice.store((notice.load(Ordering::Relaxed) | 1) + 2, Ordering::SeqCst);
        };
        explore_notice(1, 2, arm_notice, in_loom::claim_notice);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_new_number_for_each_sleep_is_needed() {
        let arm_notice: ArmNotice = |notice| {
            notice.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        };
        explore_notice(1, 2, arm_notice, in_loom::claim_notice);
    }
}
