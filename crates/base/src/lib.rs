//! Identifiers, epochs, the monotonic clock, checksums, counters and memory for direct I/O, shared
//! by all crates.
//!
//! This crate knows nothing of cluster logic. It does not block, does not allocate on a hot path
//! and has no side effects. The exceptions are [`clock::now`], [`durable`], [`reserved`],
//! [`processes`], [`threads`] and [`latest`], which only drivers call, never protocols.

// The code that the `wire` macros generate names this crate.
extern crate self as plexus_base;

pub mod aligned;
pub mod clock;
pub mod counters;
pub mod durable;
pub mod hash;
pub mod hex;
mod ids;
pub mod latest;
pub mod locks;
mod named;
pub mod processes;
pub mod reserved;
pub mod threads;
pub mod waiting;
pub mod wire;

use crc_fast::CrcAlgorithm;

pub use clock::Nanos;
pub use ids::{BlockId, Epoch, Incarnation, NodeId, NodeSet, Partition, WorkerId};
pub use waiting::Waiting;

/// The most nodes in one cluster; a [`NodeSet`] has one bit for each.
pub const MAX_NODES: usize = 16;

/// The most workers that a node may run. A worker has its own rails to the same worker of each
/// peer, so the memory for rings grows with workers times peers.
pub const MAX_WORKERS: usize = 8;

/// Returns the CRC-32C (Castagnoli) of `bytes`: the checksum of every page, label and TCP frame.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Continues a CRC-32C over more bytes: `crc32c_append(crc32c(a), b) == crc32c(ab)`.
#[must_use]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // The digest's initial state is the complement of the CRC that its final step returned.
    let mut sum = crc_fast::Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    sum.update(bytes);
    sum.finalize() as u32
}

/// Returns the CRC-32C of `bytes` with zeros in place of the four bytes at `at`, which hold the
/// checksum.
#[must_use]
pub fn crc32c_without(bytes: &[u8], at: usize) -> u32 {
    crc32c_append(crc32c_append(crc32c(&bytes[..at]), &[0; 4]), &bytes[at + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_matches_the_standard() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn crc32c_of_parts_equals_crc32c_of_the_whole() {
        let bytes: Vec<u8> = (0..5000u32).map(|byte| (byte * 7 / 8) as u8).collect();
        for at in [0, 1, 15, 16, 17, 255, 256, 4096, 4999, 5000] {
            let (a, b) = bytes.split_at(at);
            assert_eq!(crc32c_append(crc32c(a), b), crc32c(&bytes), "cut at {at}");
        }
        let mut without = bytes.clone();
        without[40..44].fill(0);
        assert_eq!(crc32c_without(&bytes, 40), crc32c(&without));
    }
}
