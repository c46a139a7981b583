//! How fast a cluster notices and how long it waits, as times that are checked against each other.
//!
//! | | `lan` | `fast` | `wan` |
//! |---|---|---|---|
//! | a report every | 100 ms | 20 ms | 500 ms |
//! | lease | 900 ms | 150 ms | 5 s |
//! | silent for | 1 s | 200 ms | 6 s |
//! | margin for the end of a process | 50 ms | 20 ms | 500 ms |
//! | clocks differ by at most | 1 % | 1 % | 1 % |

use plexus_base::Nanos;

/// No time of a profile is longer.
const LONGEST: Nanos = Nanos::from_ms(3_600_000);

/// Of its margin, a process that must end may use so much for its last words; the rest is for the end itself.
pub const LAST_WORDS: Nanos = Nanos::from_ms(5);

/// The least margin.
const LEAST_MARGIN: Nanos = Nanos(2 * LAST_WORDS.0);

/// The times of a cluster, the same on all of its nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Each node reports to its peers, and to the voting files, this often.
    pub heartbeat: Nanos,
    /// For so long after it began to renew a member may act.
    pub lease: Nanos,
    /// A node that was not heard for so long is not seen any more.
    pub evict: Nanos,
    /// A process whose lease is over does nothing any more after so long.
    pub kill_margin: Nanos,
    /// Two clocks go apart by at most this part of a million.
    pub drift_ppm: u64,
}

/// Why a profile cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProfileError {
    /// Nodes would fill the network with reports.
    #[error("a heartbeat every {heartbeat} is too often; take at least 1ms")]
    Heartbeat {
        /// As configured.
        heartbeat: Nanos,
    },
    /// One slow write would end a node.
    #[error(
        "a lease of {lease} does not outlast four heartbeats of {heartbeat}; make it longer or these shorter"
    )]
    Lease {
        /// As configured.
        lease: Nanos,
        /// As configured.
        heartbeat: Nanos,
    },
    /// Peers would evict a node that may still renew.
    #[error("nodes are evicted after {evict}, before a lease of {lease} ends; make `evict` at least as long")]
    Evict {
        /// As configured.
        evict: Nanos,
        /// As configured.
        lease: Nanos,
    },
    /// Clocks that bad count nothing.
    #[error(
        "clocks that differ by {drift_ppm} parts of a million are of no use; repair them, at most 100000"
    )]
    Drift {
        /// As configured.
        drift_ppm: u64,
    },
    /// Nobody waits so long, and sums of times would not be numbers any more.
    #[error("{longest} is too long for any time of a profile; take at most an hour")]
    Long {
        /// As configured.
        longest: Nanos,
    },
    /// The process would have no time to end.
    #[error("a kill margin of {kill_margin} is too short; take at least {LEAST_MARGIN}")]
    Margin {
        /// As configured.
        kill_margin: Nanos,
    },
}

impl Profile {
    /// For one network with hosts of their own: a lost host is replaced in under 2.5 s.
    pub const LAN: Self = Self::of_ms(100, 900, 1000, 50);
    /// For networks and disks that never pause: under 0.6 s.
    pub const FAST: Self = Self::of_ms(20, 150, 200, 20);
    /// For sites apart.
    pub const WAN: Self = Self::of_ms(500, 5000, 6000, 500);

    /// Every profile by its name.
    pub const ALL: [(&'static str, Self); 3] = [("lan", Self::LAN), ("fast", Self::FAST), ("wan", Self::WAN)];

    const fn of_ms(heartbeat: u64, lease: u64, evict: u64, kill_margin: u64) -> Self {
        Self {
            heartbeat: Nanos::from_ms(heartbeat),
            lease: Nanos::from_ms(lease),
            evict: Nanos::from_ms(evict),
            kill_margin: Nanos::from_ms(kill_margin),
            drift_ppm: 10_000,
        }
    }

    /// Whether the times fit each other.
    ///
    /// # Errors
    /// Which does not, and to what.
    pub fn check(&self) -> Result<(), ProfileError> {
        let Self { heartbeat, lease, evict, kill_margin, drift_ppm } = *self;
        if heartbeat < Nanos::from_ms(1) {
            return Err(ProfileError::Heartbeat { heartbeat });
        }
        if lease.0 / 4 < heartbeat.0 {
            return Err(ProfileError::Lease { lease, heartbeat });
        }
        if evict < lease {
            return Err(ProfileError::Evict { evict, lease });
        }
        if drift_ppm > 100_000 {
            return Err(ProfileError::Drift { drift_ppm });
        }
        let longest = evict.max(kill_margin);
        if longest > LONGEST {
            return Err(ProfileError::Long { longest });
        }
        if kill_margin < LEAST_MARGIN {
            return Err(ProfileError::Margin { kill_margin });
        }
        Ok(())
    }

    /// When a view without a node was decided so long ago, the node has stopped: it began no renewal after the decision.
    #[must_use]
    pub fn wait(&self) -> Nanos {
        let drift = (self.lease.0 * self.drift_ppm).div_ceil(1_000_000);
        Nanos(self.lease.0 + drift + self.kill_margin.0)
    }

    /// What is seen of a split must stand for so long before anybody is put out: by then each side has heard of the
    /// other's sight through the voting files.
    #[must_use]
    pub fn settle(&self) -> Nanos {
        Nanos(3 * self.heartbeat.0)
    }

    /// Between two reports at least.
    #[must_use]
    pub fn pause(&self) -> Nanos {
        Nanos(self.heartbeat.0 / 16)
    }

    /// A proposer waits so long for each that comes before it, where a view has to stand before it is proposed.
    #[must_use]
    pub fn stagger(&self) -> Nanos {
        Nanos(3 * self.heartbeat.0)
    }

    /// Who is not of the side that is to go on waits so long before it proposes its own.
    #[must_use]
    pub fn timeout(&self) -> Nanos {
        Nanos(2 * self.evict.0 + self.settle().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profiles_are_sound_and_meet_their_goals() {
        for (name, profile) in Profile::ALL {
            assert_eq!(profile.check(), Ok(()), "{name}");
        }
        // Noticed, agreed on, decided by a write and a read twice, and waited for.
        let replaced = |profile: Profile| {
            profile.evict.0 + 2 * profile.heartbeat.0 + profile.settle().0 + profile.wait().0
        };
        assert!(replaced(Profile::LAN) < Nanos::from_ms(2500).0);
        assert!(replaced(Profile::FAST) < Nanos::from_ms(600).0);
    }

    #[test]
    fn who_is_put_out_is_waited_for_to_the_last_nanosecond() {
        // 1.5 s and an odd nanosecond, 1 % of that rounded up, and the margin.
        let profile = Profile { lease: Nanos(1_500_000_001), ..Profile::WAN };
        assert_eq!(profile.wait(), Nanos(1_500_000_001 + 15_000_001 + 500_000_000));
        let odd = Profile { lease: Nanos(900_999_999), evict: Nanos::from_ms(901), ..Profile::LAN };
        assert!(odd.wait() > odd.lease + odd.kill_margin);
        let longest = Profile { lease: LONGEST, evict: LONGEST, drift_ppm: 100_000, ..Profile::WAN };
        assert_eq!(longest.check(), Ok(()));
        assert_eq!(longest.wait(), Nanos(LONGEST.0 / 10 * 11 + 500_000_000));
    }

    #[test]
    fn times_that_do_not_fit_are_refused_with_the_reason() {
        let good = Profile::LAN;
        let cases = [
            (Profile { heartbeat: Nanos(0), ..good }, "a heartbeat every 0ns is too often"),
            (Profile { lease: Nanos::from_ms(399), ..good }, "a lease of 399ms does not outlast"),
            (Profile { evict: Nanos::from_ms(899), ..good }, "nodes are evicted after 899ms, before"),
            (Profile { drift_ppm: 100_001, ..good }, "clocks that differ by 100001"),
            (
                Profile { kill_margin: Nanos::from_ms(9), ..good },
                "a kill margin of 9ms is too short; take at least 10ms",
            ),
            (Profile { kill_margin: Nanos(u64::MAX), ..good }, "18446744073.709551615s is too long"),
            (Profile { evict: Nanos::from_ms(3_600_001), ..good }, "3600.001s is too long"),
        ];
        for (profile, starts) in cases {
            let error = profile.check().expect_err("does not fit").to_string();
            assert!(error.starts_with(starts), "{error}");
        }
    }
}
