//! The priority of threads that must run in time: those of heartbeats, voting files and leases.
//!
//! A node whose heartbeats wait for a processor is evicted although nothing else is wrong with it.
//! So these threads run above all ordinary threads where the system allows it (root,
//! `CAP_SYS_NICE`, `RLIMIT_RTPRIO`). Otherwise they get the best nice value, or stay as they are.
//! None of them computes for long. Threads started by real-time threads are ordinary.
//!
//! # Unsafe
//!
//! One call of the C library has no safe interface. It takes a number and a structure that it only
//! reads.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The real-time priority: above every ordinary thread, below the kernel's threads (50) for disks
/// and network.
const REAL_TIME: i32 = 10;

/// The priority of threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Real time, above every ordinary thread.
    RealTime,
    /// Ordinary with a better nice value.
    Nice,
    /// Ordinary.
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

/// Raises the calling thread's priority as far as the system allows.
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
