//! Profiles: named sets of membership times, which are checked against each other.
//!
//! | | `lan` | `fast` | `wan` |
//! |---|---|---|---|
//! | a report every | 100 ms | 20 ms | 500 ms |
//! | lease | 900 ms | 150 ms | 5 s |
//! | eviction after silence of | 1 s | 200 ms | 6 s |
//! | margin for the end of a process | 50 ms | 20 ms | 500 ms |
//! | a voting file may stall for | 30 s | 30 s | 30 s |
//! | clocks differ by at most | 1 % | 1 % | 1 % |

use plexus_base::Nanos;

/// The maximum of every time of a profile.
const LONGEST: Nanos = Nanos::from_ms(3_600_000);

/// The part of the kill margin in which a process that must end may log the reason; the rest is for
/// its end.
pub const FINAL_LOG_TIME: Nanos = Nanos::from_ms(5);

/// The minimum kill margin.
const LEAST_MARGIN: Nanos = Nanos(2 * FINAL_LOG_TIME.0);

/// The membership times of a cluster, the same on all nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// The interval of reports to peers and voting files.
    pub heartbeat: Nanos,
    /// The time for which a member may act after it began a renewal.
    pub lease: Nanos,
    /// The time of silence after which a node counts as not heard.
    pub evict: Nanos,
    /// The time within which a process stops all actions after its lease has ended.
    pub kill_margin: Nanos,
    /// The time for which voting files may stall while all members hear each other.
    pub disk_timeout: Nanos,
    /// The maximum drift between two clocks, in parts per million.
    pub drift_ppm: u64,
}

/// The reason why a profile is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProfileError {
    /// Reports so frequent would fill the network.
    #[error("a heartbeat every {heartbeat} is too often; take at least 1ms")]
    Heartbeat {
        /// The configured heartbeat.
        heartbeat: Nanos,
    },
    /// One slow write would end a node.
    #[error(
        "a lease of {lease} does not outlast four heartbeats of {heartbeat}; make it longer or these shorter"
    )]
    Lease {
        /// The configured lease.
        lease: Nanos,
        /// The configured heartbeat.
        heartbeat: Nanos,
    },
    /// Peers would evict a node that may still renew its lease.
    #[error("nodes are evicted after {evict}, before a lease of {lease} ends; make `evict` at least as long")]
    Evict {
        /// The configured eviction time.
        evict: Nanos,
        /// The configured lease.
        lease: Nanos,
    },
    /// Turns at voting files would fail before a lease ends.
    #[error("a disk timeout of {disk_timeout} is shorter than a lease of {lease}; make it at least as long")]
    Disk {
        /// The configured disk timeout.
        disk_timeout: Nanos,
        /// The configured lease.
        lease: Nanos,
    },
    /// Leases cannot be counted by clocks that differ so much.
    #[error(
        "clocks that differ by {drift_ppm} parts per million cannot be used; repair them (at most 100000)"
    )]
    Drift {
        /// The configured drift.
        drift_ppm: u64,
    },
    /// The time is too long for any use, and sums of such times could overflow.
    #[error("{longest} is too long for any time of a profile; take at most an hour")]
    Long {
        /// The longest configured time.
        longest: Nanos,
    },
    /// The process would have no time to end.
    #[error("a kill margin of {kill_margin} is too short; take at least {LEAST_MARGIN}")]
    Margin {
        /// The configured margin.
        kill_margin: Nanos,
    },
}

impl Profile {
    /// The profile for one network with dedicated hosts: a lost host is replaced in under 2.5 s.
    pub const LAN: Self = Self::of_ms(100, 900, 1000, 50);
    /// The profile for networks and disks without pauses: under 0.6 s.
    pub const FAST: Self = Self::of_ms(20, 150, 200, 20);
    /// The profile for distant sites.
    pub const WAN: Self = Self::of_ms(500, 5000, 6000, 500);

    /// All profiles by name.
    pub const ALL: [(&'static str, Self); 3] = [("lan", Self::LAN), ("fast", Self::FAST), ("wan", Self::WAN)];

    const fn of_ms(heartbeat: u64, lease: u64, evict: u64, kill_margin: u64) -> Self {
        Self {
            heartbeat: Nanos::from_ms(heartbeat),
            lease: Nanos::from_ms(lease),
            evict: Nanos::from_ms(evict),
            kill_margin: Nanos::from_ms(kill_margin),
            disk_timeout: Nanos::from_ms(30_000),
            drift_ppm: 10_000,
        }
    }

    /// Checks that the times fit each other.
    ///
    /// # Errors
    /// Returns which time does not fit, and the time that limits it.
    pub fn check(&self) -> Result<(), ProfileError> {
        let Self { heartbeat, lease, evict, kill_margin, disk_timeout, drift_ppm } = *self;
        if heartbeat < Nanos::from_ms(1) {
            return Err(ProfileError::Heartbeat { heartbeat });
        }
        if lease.0 / 4 < heartbeat.0 {
            return Err(ProfileError::Lease { lease, heartbeat });
        }
        if evict < lease {
            return Err(ProfileError::Evict { evict, lease });
        }
        if disk_timeout < lease {
            return Err(ProfileError::Disk { disk_timeout, lease });
        }
        if drift_ppm > 100_000 {
            return Err(ProfileError::Drift { drift_ppm });
        }
        let longest = evict.max(kill_margin).max(disk_timeout);
        if longest > LONGEST {
            return Err(ProfileError::Long { longest });
        }
        if kill_margin < LEAST_MARGIN {
            return Err(ProfileError::Margin { kill_margin });
        }
        Ok(())
    }

    /// Returns the time after which a removed node has stopped for certain. It counts from any
    /// moment after the decision, because the node began no renewal after it.
    #[must_use]
    pub fn wait(&self) -> Nanos {
        self.surely_after(self.lease)
    }

    /// Returns the time after which every node that a new member does not know of has stopped for
    /// certain. Promises of other members extend a lease by no more than the disk timeout.
    #[must_use]
    pub fn wait_as_new(&self) -> Nanos {
        self.surely_after(self.disk_timeout)
    }

    /// Returns the time on one clock after which `time` has passed on any other clock, and the
    /// margin for the end of a process.
    fn surely_after(&self, time: Nanos) -> Nanos {
        let drift = (time.0 * self.drift_ppm).div_ceil(1_000_000);
        Nanos(time.0 + drift + self.kill_margin.0)
    }

    /// Returns the time of silence after which a peer is suspected. A peer with lost links then
    /// counts as not heard.
    #[must_use]
    pub fn suspicion(&self) -> Nanos {
        Nanos(3 * self.heartbeat.0)
    }

    /// Returns how long a split must look the same before a node is evicted. By then each side has
    /// read the other side's connectivity from the voting files.
    #[must_use]
    pub fn settle(&self) -> Nanos {
        Nanos(3 * self.heartbeat.0)
    }

    /// Returns the minimum time between two reports.
    #[must_use]
    pub fn pause(&self) -> Nanos {
        Nanos(self.heartbeat.0 / 16)
    }

    /// Returns how long a proposer waits for each proposer before it, if a view must be stable
    /// before it is proposed.
    #[must_use]
    pub fn stagger(&self) -> Nanos {
        Nanos(3 * self.heartbeat.0)
    }

    /// Returns how long a node on the wrong side of a split waits before it proposes its own side.
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
        // Detected, agreed on, decided with two writes and reads, and waited for.
        let replaced = |profile: Profile| {
            profile.evict.0 + 2 * profile.heartbeat.0 + profile.settle().0 + profile.wait().0
        };
        assert!(replaced(Profile::LAN) < Nanos::from_ms(2500).0);
        assert!(replaced(Profile::FAST) < Nanos::from_ms(600).0);
    }

    #[test]
    fn the_wait_for_an_evicted_node_is_rounded_up() {
        // 1.5 s and an odd nanosecond, 1 % of that rounded up, and the margin.
        let profile = Profile { lease: Nanos(1_500_000_001), ..Profile::WAN };
        assert_eq!(profile.wait(), Nanos(1_500_000_001 + 15_000_001 + 500_000_000));
        let odd = Profile { lease: Nanos(900_999_999), evict: Nanos::from_ms(901), ..Profile::LAN };
        assert!(odd.wait() > odd.lease + odd.kill_margin);
        assert_eq!(Profile::LAN.wait_as_new(), Nanos::from_ms(30_350));
        let longest = Profile {
            lease: LONGEST,
            evict: LONGEST,
            disk_timeout: LONGEST,
            drift_ppm: 100_000,
            ..Profile::WAN
        };
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
            (Profile { disk_timeout: Nanos::from_ms(899), ..good }, "a disk timeout of 899ms is shorter"),
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
