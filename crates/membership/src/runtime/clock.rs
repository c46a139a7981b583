//! The clock of leases, and a timer on it.
//!
//! It counts from the start of the host and goes on while the host is suspended (`CLOCK_BOOTTIME`): a node that was asleep finds its lease
//! over when it wakes, as the others do, where `CLOCK_MONOTONIC` would have stood still. Neither clock sees a virtual machine that its
//! hypervisor stops without telling it; against that only what refuses its writes from outside helps.

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

/// Now. Comparable with nothing but what this function returns on the same host.
#[must_use]
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Boottime);
    Nanos(time.tv_sec as u64 * SECOND + time.tv_nsec as u64)
}

/// As the system takes a time or a span.
pub(super) fn timespec(time: Nanos) -> Timespec {
    Timespec { tv_sec: (time.0 / SECOND) as i64, tv_nsec: (time.0 % SECOND) as _ }
}

/// Wakes one thread at a time of the clock; at once where that passed during a suspension.
#[derive(Debug)]
pub(super) struct Timer(OwnedFd);

impl Timer {
    pub(super) fn create() -> io::Result<Self> {
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?))
    }

    /// Wakes the waiter at `time`, or now if that is over.
    pub(super) fn set(&self, time: Nanos) {
        let value = timespec(Nanos(time.0.max(1)));
        let spec = Itimerspec { it_interval: Timespec::default(), it_value: value };
        timerfd_settime(self.0.as_fd(), TimerfdTimerFlags::ABSTIME, &spec).expect("the time is one");
    }

    pub(super) fn wait(&self) {
        // Interrupted or not: who waits looks at the clock.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_wakes_not_before_its_time() {
        let timer = Timer::create().unwrap();
        for time in [Nanos(0), now(), now() + Nanos::from_ms(2)] {
            timer.set(time);
            timer.wait();
            assert!(now() >= time);
        }
    }
}
