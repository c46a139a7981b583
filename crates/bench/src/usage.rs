//! The CPU time and context switches of a process, over all its threads.

use std::{fs, io};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// CPU time and context switches since the process started, or in an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// The CPU time in nanoseconds, user and system.
    pub cpu_ns: u64,
    /// The context switches because a thread had to wait.
    pub voluntary: u64,
    /// The context switches because another thread got the core.
    pub involuntary: u64,
}

impl Usage {
    /// Returns the CPU time of this process in nanoseconds, with one system call.
    pub fn cpu_ns() -> u64 {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    /// Returns the CPU time of this thread in nanoseconds.
    pub fn cpu_ns_of_thread() -> u64 {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    /// Returns the CPU time of the current threads of process `pid`, in nanoseconds, as of their
    /// last tick; 0 if unknown.
    pub fn cpu_ns_of(pid: u32) -> u64 {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let spent = threads.filter_map(|thread| {
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        });
        spent.sum()
    }

    /// Returns the current values. Only running threads count their switches: compare two values
    /// only while the same threads run.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn now() -> io::Result<Self> {
        let mut usage = Self { cpu_ns: Self::cpu_ns(), ..Self::default() };
        for thread in fs::read_dir("/proc/self/task")? {
            // A thread may end after it was listed.
            let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
            for line in status.lines() {
                if let Some(count) = line.strip_prefix("voluntary_ctxt_switches:") {
                    usage.voluntary += count.trim().parse::<u64>().unwrap_or(0);
                } else if let Some(count) = line.strip_prefix("nonvoluntary_ctxt_switches:") {
                    usage.involuntary += count.trim().parse::<u64>().unwrap_or(0);
                }
            }
        }
        Ok(usage)
    }

    /// Returns the usage since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }

    /// Adds the usage of another process.
    pub fn add(&mut self, other: &Self) {
        self.cpu_ns += other.cpu_ns;
        self.voluntary += other.voluntary;
        self.involuntary += other.involuntary;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_waiting_are_seen() {
        let before = Usage::now().unwrap();
        let mut sum = 0_u64;
        while Usage::cpu_ns() < before.cpu_ns + 2_000_000 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || receiver.recv());
        drop(sender);
        let _ = other.join();
        let used = Usage::now().unwrap().since(&before);
        assert!(used.cpu_ns >= 2_000_000, "{used:?}");
        assert!(Usage::cpu_ns_of_thread() > 0 && Usage::cpu_ns_of(std::process::id()) > 0);
        assert!(Usage::now().unwrap().voluntary > 0);
    }
}
