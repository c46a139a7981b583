//! Buffers of handled messages, reused for later ones. A new buffer costs page faults, and copies
//! while it grows.

/// The bytes kept in all. A flood of long messages must not hold its memory for ever.
const KEPT: usize = 4 << 20;

/// Empty buffers of any capacity, together at most [`KEPT`] bytes.
#[derive(Default)]
pub(crate) struct Spares {
    buffers: Vec<Vec<u8>>,
    kept: usize,
}

impl Spares {
    /// Returns an empty buffer.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.kept -= buffer.capacity();
        buffer
    }

    /// Keeps the memory of `buffer` if there is room for it.
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity > 0 && self.kept + capacity <= KEPT {
            buffer.clear();
            self.kept += capacity;
            self.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_bounded_however_it_comes() {
        let mut spares = Spares::default();
        let mut long = Vec::with_capacity(KEPT / 2);
        long.push(1);
        let place = long.as_ptr();
        spares.give(long);
        let again = spares.take();
        assert_eq!((again.as_ptr(), again.len(), spares.kept), (place, 0, 0));
        for size in [KEPT + 1, 0, 10, KEPT / 2, KEPT / 2] {
            spares.give(Vec::with_capacity(size));
        }
        assert_eq!((spares.buffers.len(), spares.kept), (2, 10 + KEPT / 2));
    }
}
