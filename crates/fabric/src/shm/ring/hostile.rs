//! Both ends of a ring against a peer that writes arbitrary bytes.

use std::{
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{Broken, LINE, Reader, RingMemory, Writer};
use crate::MAX_FRAME;

/// Runs both ends of small rings over memory that holds any bytes, for tests and fuzzing. The input
/// is two control words, the position, then lines. Returns the number of frames found.
#[doc(hidden)]
#[must_use]
pub fn ring_any(bytes: &[u8]) -> usize {
    const LINES: usize = 1024;
    let (words, rest) = bytes.as_chunks::<8>();
    let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
    let mut memory = vec![[0u64; LINE / 8]; LINES].into_boxed_slice();
    let lines = words.iter().skip(3).map(|word| u64::from_le_bytes(*word));
    memory.as_flattened_mut().iter_mut().zip(lines).for_each(|(memory, word)| *memory = word);
    if let (Some(last), [first, ..]) = (memory.as_flattened_mut().last_mut(), rest) {
        *last = (*first).into();
    }
    let control = [AtomicU64::new(word(0)), AtomicU64::new(word(1))];
    let memory = RingMemory {
        data: NonNull::from(&mut memory[0]).cast(),
        lines: LINES as u64,
        read: NonNull::from(&control[0]),
        starved: NonNull::from(&control[1]),
    };

    let mut reader = Reader::at(memory, word(2) % (1 << 40));
    let (mut frames, mut bytes) = (0, vec![0; MAX_FRAME]);
    // There cannot be more frames than fit: read frames stay where they are, and the end of the
    // ring is passed only once.
    while frames <= LINES {
        let (count, result) = reader.poll(16, usize::MAX, |frame| frame.copy(0, &mut bytes[..frame.len()]));
        frames += count;
        let _ = reader.wakes_starved();
        if result.is_err() || count == 0 && !reader.has_arrived() {
            break;
        }
    }

    control[0].store(word(0), Relaxed);
    let mut writer = Writer::new(memory);
    for len in [0, 56, 57, 4000, MAX_FRAME].into_iter().cycle().take(LINES) {
        match writer.room(len) {
            Ok(Some(room)) => writer.publish(&room, &bytes[..len / 3], &bytes[len / 3..len], 0),
            Ok(None) if writer.may_have_room() => {}
            Ok(None) | Err(Broken(_)) => break,
        }
    }
    frames
}
