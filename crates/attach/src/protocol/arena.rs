//! The allocator of a worker's part of the arena: first fit, with free neighbours merged.

use std::{collections::BTreeMap, ops::Range};

/// The alignment of windows: a cache line, so that two windows never share one.
const ALIGN: u64 = 64;

/// The free parts of the arena.
pub(super) struct Arena {
    /// The start and length of each free part.
    free: BTreeMap<u64, u64>,
    taken: u64,
}

impl Arena {
    pub(super) fn new(share: Range<u64>) -> Self {
        let start = share.start.next_multiple_of(ALIGN);
        let len = share.end.saturating_sub(start) / ALIGN * ALIGN;
        Self { free: (len > 0).then_some((start, len)).into_iter().collect(), taken: 0 }
    }

    /// Takes `len` bytes and returns their offset; `None` if no free part is long enough.
    pub(super) fn take(&mut self, len: u64) -> Option<u64> {
        let len = len.checked_next_multiple_of(ALIGN)?;
        let (start, room) =
            self.free.iter().find(|(_, room)| **room >= len).map(|(start, room)| (*start, *room))?;
        self.free.remove(&start);
        if room > len {
            self.free.insert(start + len, room - len);
        }
        self.taken += len;
        Some(start)
    }

    /// Returns the number of bytes that are taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Gives back the `len` bytes at `start`, which were taken together.
    pub(super) fn give(&mut self, start: u64, len: u64) {
        let (mut start, mut len) = (start, len.next_multiple_of(ALIGN));
        self.taken -= len;
        if let Some((before, room)) =
            self.free.range(..start).next_back().map(|(before, room)| (*before, *room))
            && before + room == start
        {
            self.free.remove(&before);
            (start, len) = (before, len + room);
        }
        if let Some(room) = self.free.remove(&(start + len)) {
            len += room;
        }
        self.free.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_parts_merge_and_can_be_taken_whole() {
        let mut arena = Arena::new(10..64 * 11 + 5);
        let all = 64 * 10;
        let pieces: Vec<u64> = (0..5).map(|_| arena.take(100).unwrap()).collect();
        assert_eq!(pieces, [64, 192, 320, 448, 576]);
        assert_eq!((arena.take(1), arena.taken()), (None, all));
        for place in [1, 3, 0, 4, 2] {
            arena.give(pieces[place], 100);
        }
        assert_eq!((arena.take(all), arena.take(1)), (Some(64), None));
        arena.give(64, all);
        assert_eq!(arena.taken(), 0);
        assert_eq!((arena.take(u64::MAX), arena.take(all + 1), arena.take(all)), (None, None, Some(64)));
    }
}
