//! What programs have of a worker, for whoever asks: noted by the worker, read without it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// See the module. The figures are of one moment each, not of one together.
#[derive(Default)]
pub struct Usage {
    ports: AtomicU64,
    windows: AtomicU64,
    arena_bytes: AtomicU64,
    locks: AtomicU64,
}

impl Usage {
    /// So it is now.
    pub(crate) fn note(&self, ports: usize, windows: usize, arena_bytes: u64, locks: usize) {
        self.ports.store(ports as u64, Relaxed);
        self.windows.store(windows as u64, Relaxed);
        self.arena_bytes.store(arena_bytes, Relaxed);
        self.locks.store(locks as u64, Relaxed);
    }

    /// Ports; windows, copies among them; bytes of the arena that those take; locks.
    pub fn noted(&self) -> [u64; 4] {
        [&self.ports, &self.windows, &self.arena_bytes, &self.locks].map(|figure| figure.load(Relaxed))
    }
}
