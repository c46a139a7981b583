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
//! A sender that is not trusted must not write the word that others rely on. For such senders there is a second word, the
//! *notice*, which only the sleeper writes: odd while it is armed, and another odd number each time. A sender
//! remembers the one that it rang for last, and rings once for each:
//!
//! | sleeper | sender |
//! |---|---|
//! | notice = an odd number that it never was | publish |
//! | fence | fence |
//! | look at what was published | odd, and not what it rang for? remember it and ring |
//! | nothing there: sleep until rung | |
//!
//! Why it may stay silent when it has rung for that number: the ring came after the arming, so it wakes the sleep that
//! follows or whoever is awake takes it off; either looks at everything before it sleeps again, after arming with a new
//! number. What was published while the old one stood was published before that look, by the two fences. With
//! the same number again it would be lost.
//!
//! The same text is compiled for real atomics and for those of `loom`, which tries every order that the
//! memory model allows; the tests show that each fence is needed.

/// The steps, over the atomics of the given module.
macro_rules! handover {
    ($($atomic:ident)::+) => {
        use $($atomic)::+::{AtomicU32, AtomicU64, Ordering, fence};

        /// The sleeper's first step. After it, look at everything once more, then sleep.
        pub(crate) fn arm(armed: &AtomicU32, notice: &AtomicU64) {
            armed.store(1, Ordering::Relaxed);
            announce(notice);
        }

        /// The sleeper is awake and looks by itself.
        pub(crate) fn disarm(armed: &AtomicU32, notice: &AtomicU64) {
            armed.store(0, Ordering::Relaxed);
            withdraw(notice);
        }

        /// The first step of a sleeper that only senders wake which read.
        pub(crate) fn announce(notice: &AtomicU64) {
            let last = notice.load(Ordering::Relaxed) | 1;
            notice.store(last.wrapping_add(2), Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }

        /// It is awake and looks by itself.
        pub(crate) fn withdraw(notice: &AtomicU64) {
            notice.store(notice.load(Ordering::Relaxed) & !1, Ordering::Relaxed);
        }

        /// The step of a sender that reads, after it has published: whether it must ring. `rung` is its memory.
        #[must_use]
        pub(crate) fn heed(notice: &AtomicU64, rung: &mut u64) -> bool {
            fence(Ordering::SeqCst);
            let now = notice.load(Ordering::Relaxed);
            let rings = now & 1 == 1 && now != *rung;
            if rings {
                *rung = now;
            }
            rings
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

    use loom::sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    };

    type Arm = fn(&AtomicU32, &AtomicU64);
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
            arm(&armed, &AtomicU64::new(0));
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
        explore(1, |armed, _| armed.store(1, Ordering::SeqCst), in_loom::claim);
    }

    #[test]
    fn a_sleeper_that_woke_by_itself_is_not_rung() {
        loom::model(|| {
            let (armed, notice) = (AtomicU32::new(0), AtomicU64::new(0));
            in_loom::arm(&armed, &notice);
            in_loom::disarm(&armed, &notice);
            assert!(!in_loom::claim(&armed) && !in_loom::heed(&notice, &mut 0));
        });
    }

    /// How often a thread is interrupted where it could have gone on.
    const PREEMPTIONS: usize = 3;

    type Announce = fn(&AtomicU64);
    type Heed = fn(&AtomicU64, &mut u64) -> bool;

    /// What a sleeper and senders that only read share.
    struct Sleeper {
        notice: AtomicU64,
        published: Vec<AtomicU32>,
        /// The event descriptor; the kernel keeps its order.
        rung: Mutex<bool>,
        wakes: Condvar,
    }

    impl Sleeper {
        /// Publishes `times`; how often it rang.
        fn send(&self, sender: usize, times: u32, heed: Heed) -> usize {
            let (mut last, mut rings) = (0, 0);
            for time in 1..=times {
                self.published[sender].store(time, Ordering::Release);
                if heed(&self.notice, &mut last) {
                    rings += 1;
                    *self.rung.lock().unwrap() = true;
                    self.wakes.notify_one();
                }
            }
            rings
        }

        /// Sleeps and wakes until it has seen everything; how often it armed itself.
        fn receive(&self, times: u32, announce: Announce) -> usize {
            let mut armed = 0;
            loop {
                announce(&self.notice);
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
                in_loom::withdraw(&self.notice);
            }
        }
    }

    /// Every order of a sleeper and of senders that only read: a wake-up that is lost is a deadlock.
    fn explore_notice(senders: usize, times: u32, announce: Announce, heed: Heed) {
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
                    loom::thread::spawn(move || sleeper.send(sender, times, heed))
                })
                .collect();
            let armed = sleeper.receive(times, announce);
            for sender in sending {
                assert!(sender.join().unwrap() <= armed, "one sleep, one ring of each sender");
            }
        });
    }

    #[test]
    fn no_wake_up_by_who_only_reads_is_lost() {
        explore_notice(1, 2, in_loom::announce, in_loom::heed);
        explore_notice(2, 1, in_loom::announce, in_loom::heed);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn the_fence_of_who_only_reads_is_needed() {
        explore_notice(1, 2, in_loom::announce, |notice, rung| {
            let now = notice.load(Ordering::Relaxed);
            let rings = now & 1 == 1 && now != *rung;
            *rung = now;
            rings
        });
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn the_fence_behind_a_notice_is_needed() {
        let announce: Announce = |notice| {
            notice.store((notice.load(Ordering::Relaxed) | 1) + 2, Ordering::SeqCst);
        };
        explore_notice(1, 2, announce, in_loom::heed);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_new_number_for_each_sleep_is_needed() {
        let announce: Announce = |notice| {
            notice.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        };
        explore_notice(1, 2, announce, in_loom::heed);
    }
}
