//! What every other crate speaks in: identifiers and epochs, the monotonic clock, checksums, counters, memory for direct I/O.
//!
//! Nothing here knows what a cluster does with these; nothing here blocks, allocates on a hot path or
//! talks to the outside, except [`clock::now`], [`durable`] and [`desk`], which drivers (never protocols) call.

// The layouts of `wire` name this crate.
extern crate self as plexus_base;

pub mod aligned;
pub mod clock;
pub mod counters;
pub mod desk;
pub mod durable;
pub mod hash;
pub mod hex;
mod ids;
pub mod locks;
pub mod waiting;
pub mod wire;

use crc_fast::CrcAlgorithm;

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
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Continues a CRC-32C over more bytes: `crc32c_append(crc32c(a), b) == crc32c(ab)`.
#[must_use]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // What is kept between two parts is what the last step of a sum turns over.
    let mut sum = crc_fast::Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    sum.update(bytes);
    sum.finalize() as u32
}

/// CRC-32C of `bytes` with the four bytes from `at`, in which it is kept, zero.
#[must_use]
pub fn crc32c_without(bytes: &[u8], at: usize) -> u32 {
    crc32c_append(crc32c_append(crc32c(&bytes[..at]), &[0; 4]), &bytes[at + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_standard() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_sum_over_parts_is_that_over_the_whole() {
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
