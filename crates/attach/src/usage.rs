//! Counts of what programs have of one worker: the worker stores them, any thread reads them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counts of one worker. Each is from one moment, but not all from the same one.
#[derive(Default)]
pub struct ProgramUsage {
    ports: AtomicU64,
    windows: AtomicU64,
    arena_bytes: AtomicU64,
    locks: AtomicU64,
}

impl ProgramUsage {
    /// Stores the present counts.
    pub(crate) fn note(&self, ports: usize, windows: usize, arena_bytes: u64, locks: usize) {
        self.ports.store(ports as u64, Relaxed);
        self.windows.store(windows as u64, Relaxed);
        self.arena_bytes.store(arena_bytes, Relaxed);
        self.locks.store(locks as u64, Relaxed);
    }

    /// Returns the numbers of ports and windows (with copies), their bytes of the arena, and locks.
    pub fn noted(&self) -> [u64; 4] {
        [&self.ports, &self.windows, &self.arena_bytes, &self.locks].map(|figure| figure.load(Relaxed))
    }
}
