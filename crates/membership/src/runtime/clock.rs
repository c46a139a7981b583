//! The clock of leases, and a timer on it.
//!
//! The clock counts from the start of the host and goes on while the host is suspended
//! (`CLOCK_BOOTTIME`). A resumed node so finds its lease ended, as the other nodes do;
//! `CLOCK_MONOTONIC` would have stopped. Neither clock notices that a hypervisor stops a virtual
//! machine without telling it. Only fencing from outside helps then.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use plexus_base::Nanos;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

const SECOND: u64 = 1_000_000_000;

/// Returns the current time, comparable only with other results on the same host.
#[must_use]
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Boottime);
    Nanos(time.tv_sec as u64 * SECOND + time.tv_nsec as u64)
}

/// Converts a time or duration for system calls.
pub(super) fn timespec(time: Nanos) -> Timespec {
    Timespec { tv_sec: (time.0 / SECOND) as i64, tv_nsec: (time.0 % SECOND) as _ }
}

/// A timer that wakes one thread at a time of the clock, or at once if the time has passed during a
/// suspension.
#[derive(Debug)]
pub(super) struct Timer(OwnedFd);

impl Timer {
    pub(super) fn create() -> io::Result<Self> {
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?))
    }

    /// Sets the timer to `time`, or to now if that has passed.
    pub(super) fn set(&self, time: Nanos) {
        let value = timespec(Nanos(time.0.max(1)));
        let spec = Itimerspec { it_interval: Timespec::default(), it_value: value };
        timerfd_settime(self.0.as_fd(), TimerfdTimerFlags::ABSTIME, &spec).expect("the time is valid");
    }

    pub(super) fn wait(&self) {
        // An interruption does no harm, because the caller checks the clock.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_does_not_wake_before_its_time() {
        let timer = Timer::create().unwrap();
        for time in [Nanos(0), now(), now() + Nanos::from_ms(2)] {
            timer.set(time);
            timer.wait();
            assert!(now() >= time);
        }
    }
}
