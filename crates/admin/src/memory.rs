//! The memory of this process, by use, as the system counts it.

use serde::{Deserialize, Serialize};

/// The resident memory of a node in bytes. Memory that nodes of one host share counts in each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryUse {
    /// Shared memory: the cache, windows and rings, and those of peers that this node maps.
    pub shared: u64,
    /// The heap and the stacks.
    pub heap: u64,
    /// The program and its libraries.
    pub program: u64,
}

impl MemoryUse {
    /// Returns the sum.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.shared + self.heap + self.program
    }

    /// Returns the use of this process; zeros if the system does not report it.
    pub fn now() -> Self {
        std::fs::read_to_string("/proc/self/status").map(|text| Self::of(&text)).unwrap_or_default()
    }

    /// Reads the text of `/proc/PID/status`.
    fn of(text: &str) -> Self {
        let bytes = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            kib.unwrap_or(0) * 1024
        };
        Self { shared: bytes("RssShmem"), heap: bytes("RssAnon"), program: bytes("RssFile") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uses_are_read_from_the_status_of_a_process() {
        let text =
            "Name:\tplexus\nVmRSS:\t  60 kB\nRssAnon:\t  10 kB\nRssFile:\t  20 kB\nRssShmem:\t  30 kB\n";
        let expected = MemoryUse { shared: 30 << 10, heap: 10 << 10, program: 20 << 10 };
        assert_eq!(MemoryUse::of(text), expected);
        assert_eq!(MemoryUse::of("RssAnon: a lot"), MemoryUse::default());
        assert!(MemoryUse::now().heap > 0);
    }
}
