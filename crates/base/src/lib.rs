//! What every other crate speaks in: identifiers and epochs, the monotonic clock, checksums, counters.
//!
//! Nothing here knows what a cluster does with these; nothing here blocks, allocates on a hot path or
//! talks to the outside, except [`clock::now`], which drivers (never protocols) call.

pub mod clock;
pub mod counters;
mod ids;
pub mod waiting;

pub use clock::Nanos;
pub use ids::{BlockId, Epoch, Incarnation, NodeId, NodeSet, Partition, WorkerId};
pub use waiting::Waiting;

/// Most nodes in one cluster; [`NodeSet`] is a bit for each of them.
pub const MAX_NODES: usize = 16;

/// Most workers a node may run. A worker has rails of its own to the same worker of each peer, so memory
/// for rings grows with workers x peers.
pub const MAX_WORKERS: usize = 8;

/// CRC-32C (Castagnoli) of `bytes`, the checksum of every page, label and TCP frame.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    ::crc32c::crc32c(bytes)
}

/// Continues a CRC-32C over more bytes: `crc32c_append(crc32c(a), b) == crc32c(ab)`.
#[must_use]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    ::crc32c::crc32c_append(crc, bytes)
}
