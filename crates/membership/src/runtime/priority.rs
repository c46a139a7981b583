//! Threads that must run in time: those of heartbeats, voting files and leases.
//!
//! A node whose heartbeats wait for a processor is put out although nothing is wrong with it. So these threads take turns above all ordinary
//! ones where the system allows it (root, `CAP_SYS_NICE`, `RLIMIT_RTPRIO`), else with the best ordinary priority, else as they are.
//! None of them computes for long. Threads that those of real time start are ordinary.
//!
//! # Unsafe
//!
//! One call of the C library that is in no safe interface; it takes a number and a structure that it only reads.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Above every ordinary thread, below those of the kernel (50), which the disk and the network need.
const REAL_TIME: i32 = 10;

/// How urgent threads run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Before every ordinary thread.
    RealTime,
    /// As ordinary threads that get more than others.
    Nice,
    /// As every thread.
    Ordinary,
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RealTime => "real time",
            Self::Nice => "nice",
            Self::Ordinary => "ordinary; a busy machine may delay heartbeats: allow real time (CAP_SYS_NICE)",
        })
    }
}

/// Makes the thread that calls as urgent as it may be.
pub(crate) fn raise() -> Priority {
    if is_real_time() {
        return Priority::RealTime;
    }
    let thread = rustix::thread::gettid();
    match rustix::process::setpriority_process(Some(thread), -20) {
        Ok(()) => Priority::Nice,
        Err(_) => Priority::Ordinary,
    }
}

#[allow(unsafe_code, reason = "no safe interface has it")]
fn is_real_time() -> bool {
    let parameter = libc::sched_param { sched_priority: REAL_TIME };
    // SAFETY: 0 is the calling thread, and the parameter is read before the call returns.
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const parameter) == 0
    }
}
