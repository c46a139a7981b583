//! The sent bytes, and the receiver's check of all of them.
//!
//! A receiver reads one word of every cache line, which brings the whole message to its core as any
//! use would. It compares the words with the sent ones: a message that changed or arrived before
//! its data ends the measurement. To detect leftovers of an earlier message, messages are pieces of
//! one longer pattern that begin at one of [`PIECES`] lines. Writing them costs nothing, and no two
//! lines are equal.

use plexus_fabric::Window;
use plexus_interconnect::Bytes;

/// The bytes that move between cores at once.
const LINE: usize = 64;

const WORD: usize = 8;

/// The number of lines at which messages begin. One in so many leftovers stays undetected; the
/// lines of short messages still fit in the core's first cache.
const PIECES: usize = 1 << PIECE_BITS;
const PIECE_BITS: u32 = 4;

/// The payload of a trial's messages.
pub(super) struct Payload {
    pieces: [Bytes; PIECES],
    /// The checksum of each piece.
    looks: [u64; PIECES],
    trial: u64,
}

impl Payload {
    /// Creates a payload of `bytes` bytes; the receiver checks all but the last `unseen`.
    pub(super) fn new(bytes: u32, unseen: u32, trial: u32) -> Self {
        let bytes = bytes as usize;
        let pattern = pattern((PIECES - 1) * LINE + bytes);
        let pieces: [_; PIECES] =
            std::array::from_fn(|piece| pattern.slice(piece * LINE..piece * LINE + bytes));
        let looks = pieces.each_ref().map(|piece| look(&piece[..bytes - unseen as usize]));
        Self { pieces, looks, trial: u64::from(trial) }
    }

    /// Returns the bytes of message `number`.
    #[inline]
    pub(super) fn of(&self, number: u64) -> &Bytes {
        &self.pieces[self.piece(number)]
    }

    /// Returns the checksum of message `number`.
    #[inline]
    pub(super) fn look_of(&self, number: u64) -> u64 {
        self.looks[self.piece(number)]
    }

    /// Spreads numbers over all pieces, for any distance between messages that share a place.
    #[inline]
    fn piece(&self, number: u64) -> usize {
        let once = (number ^ self.trial << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((once ^ once >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> (u64::BITS - PIECE_BITS)) as usize
    }
}

/// Returns a pattern in which no two words are equal.
pub(super) fn pattern(bytes: usize) -> Bytes {
    let words = (0..bytes.div_ceil(WORD) as u64).map(|word| (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut pattern: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    pattern.truncate(bytes);
    pattern.into()
}

/// Returns a checksum over all lines of `bytes`.
#[inline]
pub(super) fn look(bytes: &[u8]) -> u64 {
    bytes.chunks(LINE).fold(0, |seen, line| mix(seen, word(line)))
}

/// Returns the same checksum for `len` bytes of a window at `offset`.
///
/// # Panics
/// If they are outside the window.
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

/// Returns the first word of a line, which may be shorter.
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
    fn what_an_earlier_message_left_in_a_place_is_not_taken_for_a_later_one() {
        const NUMBERS: u64 = 1000;
        for (bytes, depth) in
            [(1, 1), (8, 16), (64, 64), (64, 89), (64, 987), (100, 61), (4096, 1024), (1 << 20, 4)]
        {
            let payload = Payload::new(bytes, 0, 7);
            let stale = |number: &u64| look(payload.of(*number)) == payload.look_of(number + depth);
            let mistaken = (1..=NUMBERS).filter(stale).count();
            assert!(mistaken < NUMBERS as usize / 4, "{bytes} bytes, depth {depth}: {mistaken} of {NUMBERS}");
            for number in 1..100 {
                assert_eq!(payload.of(number).len(), bytes as usize);
                assert_eq!(look(payload.of(number)), payload.look_of(number), "{bytes} bytes");
            }
        }
        let [one, next] = [1, 2].map(|trial| Payload::new(64, 0, trial));
        assert!(
            (1..100).any(|number| one.look_of(number) != next.look_of(number)),
            "nor one of another trial"
        );
    }

    #[test]
    fn what_is_not_to_be_looked_at_is_not() {
        let payload = Payload::new(72, 8, 0);
        assert_eq!(payload.look_of(5), look(&payload.of(5)[..64]));
    }

    #[test]
    fn a_window_is_looked_at_as_a_message_is() {
        let window = Window::create(WindowId(1), 4096, 0).unwrap();
        assert_eq!(look_at(&window, 1000, 1001), look(&[0; 1001]));
    }
}
