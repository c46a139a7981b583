//! What the two sides of a measurement say to each other: the meaning of a message is in its tag.

use super::{Method, Pattern, Trial};

/// Client: is anybody there?
pub(super) const HELLO: u32 = 1;
/// Server: yes.
pub(super) const WELCOME: u32 = 2;
/// Client: the next trial, in 12 bytes.
pub(super) const BEGIN: u32 = 3;
/// Server: ready for it.
pub(super) const READY: u32 = 4;
/// A message that is measured.
pub(super) const DATA: u32 = 5;
/// Server: the answer to it, or how many have come, in 8 bytes.
pub(super) const ACK: u32 = 6;
/// Client: what follows counts.
pub(super) const MARK: u32 = 7;
/// Client: no more counts.
pub(super) const END: u32 = 8;
/// Server: the CPU time since the mark, in 8 bytes.
pub(super) const ENDED: u32 = 9;
/// Client: that was the last trial.
pub(super) const BYE: u32 = 10;

impl Trial {
    pub(super) fn to_wire(self) -> [u8; 12] {
        let mut wire = [0; 12];
        wire[..4].copy_from_slice(&self.bytes.to_le_bytes());
        wire[4] = self.method as u8;
        wire[5] = self.pattern as u8;
        wire
    }

    /// `None` for what no client sends.
    pub(super) fn from_wire(wire: &[u8]) -> Option<Self> {
        let wire: &[u8; 12] = wire.try_into().ok()?;
        let method = [Method::Send, Method::Put].into_iter().find(|method| *method as u8 == wire[4])?;
        let pattern =
            [Pattern::Latency, Pattern::Stream].into_iter().find(|pattern| *pattern as u8 == wire[5])?;
        let bytes = u32::from_le_bytes([wire[0], wire[1], wire[2], wire[3]]);
        (8..=super::WINDOW_BYTES).contains(&bytes).then_some(Self { method, pattern, bytes })
    }
}

/// The number in the first 8 bytes; 0 where there are fewer.
#[inline]
pub(super) fn number(payload: &[u8]) -> u64 {
    payload.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_survive_and_nonsense_is_refused() {
        for method in [Method::Send, Method::Put] {
            for pattern in [Pattern::Latency, Pattern::Stream] {
                let trial = Trial { method, pattern, bytes: 4096 };
                assert_eq!(Trial::from_wire(&trial.to_wire()), Some(trial));
            }
        }
        let good = Trial { method: Method::Put, pattern: Pattern::Stream, bytes: 8 }.to_wire();
        for (at, byte) in [(0, 7), (3, 1), (4, 2), (5, 9)] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(Trial::from_wire(&bad), None);
        }
        assert_eq!(Trial::from_wire(&good[..11]), None);
        assert_eq!(number(&[1, 2]), 0);
    }
}
