//! The frames whose block this node must write, in the order of their oldest redo records.
//!
//! A checkpoint takes the oldest first, so its cost follows the blocks that it writes and not the
//! size of the cache. The order is kept by links between frames: a frame costs 8 bytes, and an
//! insertion looks only at frames that were inserted at the same time.
//!
//! Must not know what a position means.

/// The number that ends the list.
const END: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Links {
    before: u32,
    after: u32,
}

/// The memory for a frame.
pub(crate) const OWED_BYTES: usize = size_of::<Links>();

/// The list of one worker's frames. The caller has the position of each frame.
pub(crate) struct OwedList {
    links: Box<[Links]>,
    head: u32,
    tail: u32,
}

impl OwedList {
    pub(crate) fn new(slots: usize) -> Self {
        let links = vec![Links { before: END, after: END }; slots].into();
        Self { links, head: END, tail: END }
    }

    /// Returns the frames from the oldest on.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let from = |slot: u32| (slot != END).then_some(slot);
        std::iter::successors(from(self.head), move |slot| from(self.links[*slot as usize].after))
    }

    /// Inserts a frame that is not in the list. `position` returns that of any frame.
    pub(crate) fn insert(&mut self, slot: u32, position: impl Fn(u32) -> u64) {
        let own = position(slot);
        let mut before = self.tail;
        while before != END && position(before) > own {
            before = self.links[before as usize].before;
        }
        let after = match before {
            END => std::mem::replace(&mut self.head, slot),
            before => std::mem::replace(&mut self.links[before as usize].after, slot),
        };
        self.links[slot as usize] = Links { before, after };
        match after {
            END => self.tail = slot,
            after => self.links[after as usize].before = slot,
        }
    }

    /// Removes a frame that is in the list.
    pub(crate) fn remove(&mut self, slot: u32) {
        let Links { before, after } = self.links[slot as usize];
        match before {
            END => self.head = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            END => self.tail = before,
            after => self.links[after as usize].before = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_in_the_order_of_their_positions() {
        let mut list = OwedList::new(8);
        let mut model: Vec<u32> = Vec::new();
        let mut positions = [0u64; 8];
        let mut state = 1u64;
        for step in 1..20_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let slot = (state >> 33) as u32 % 8;
            if let Some(at) = model.iter().position(|other| *other == slot) {
                model.remove(at);
                list.remove(slot);
            } else {
                // Late by up to three steps, as sessions are.
                positions[slot as usize] = step - (state >> 40) % 4;
                let at = model.partition_point(|at| positions[*at as usize] <= positions[slot as usize]);
                model.insert(at, slot);
                list.insert(slot, |slot| positions[slot as usize]);
            }
            assert!(list.iter().eq(model.iter().copied()));
        }
    }
}
