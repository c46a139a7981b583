//! The bytes that are sent, and the look that the receiver takes at all of them.
//!
//! A receiver reads one word of every cache line, which brings the whole message to its core as any use of it would, and
//! compares what it read with what was sent: a message that came changed or before its data ends the measurement.

use plexus_fabric::Window;
use plexus_interconnect::Bytes;

/// Bytes that move between cores at once.
const LINE: usize = 64;

const WORD: usize = 8;

/// What is sent: no two words of it are alike.
pub(super) fn pattern(bytes: usize) -> Bytes {
    let words = (0..bytes.div_ceil(WORD) as u64).map(|word| (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut pattern: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    pattern.truncate(bytes);
    pattern.into()
}

/// A word that stands for all lines of `bytes`.
#[inline]
pub(super) fn look(bytes: &[u8]) -> u64 {
    bytes.chunks(LINE).fold(0, |seen, line| mix(seen, word(line)))
}

/// The same for `len` bytes of a window at `offset`.
///
/// # Panics
/// When they are not inside the window.
#[inline]
pub(super) fn look_at(window: &Window, offset: usize, len: usize) -> u64 {
    (0..len).step_by(LINE).fold(0, |seen, at| {
        let mut bytes = [0; WORD];
        let here = WORD.min(len - at);
        window.read(offset + at, &mut bytes[..here]);
        mix(seen, u64::from_le_bytes(bytes))
    })
}

#[inline]
fn mix(seen: u64, word: u64) -> u64 {
    seen.rotate_left(1) ^ word
}

/// The first word of a line, which may be shorter.
#[inline]
fn word(line: &[u8]) -> u64 {
    line.first_chunk().map_or_else(
        || {
            let mut bytes = [0; WORD];
            bytes[..line.len()].copy_from_slice(line);
            u64::from_le_bytes(bytes)
        },
        |bytes| u64::from_le_bytes(*bytes),
    )
}

#[cfg(test)]
mod tests {
    use plexus_fabric::WindowId;

    use super::*;

    #[test]
    fn every_length_looks_different_and_a_change_in_any_line_shows() {
        let sent = pattern(4096);
        assert_eq!(pattern(13).len(), 13);
        for len in [1, 7, 8, 63, 64, 65, 1000, 4096] {
            let mut arrived = sent[..len].to_vec();
            let seen = look(&arrived);
            assert_eq!(seen, look(&sent[..len]));
            for line in (0..len).step_by(LINE) {
                arrived[line] ^= 1;
                assert_ne!(look(&arrived), seen, "{len} bytes, line at {line}");
                arrived[line] ^= 1;
            }
        }
        assert_ne!(look(&sent[..64]), look(&sent[..65]));
    }

    #[test]
    fn a_window_is_looked_at_as_a_message_is() {
        let window = Window::create(WindowId(1), 4096, 0).unwrap();
        assert_eq!(look_at(&window, 1000, 1001), look(&[0; 1001]));
    }
}
