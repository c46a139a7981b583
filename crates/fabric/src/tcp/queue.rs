//! Bytes on their way to a socket: copies of what is short, references to what others keep until it has arrived.
//!
//! What stands here goes out in order, many pieces in one system call. It must not know what the bytes mean.

use std::{collections::VecDeque, io::IoSlice};

use bytes::Bytes;

/// A chunk of copies that is longer takes no more.
const CHUNK: usize = 64 << 10;

/// Memory kept when the queue has emptied.
const KEPT: usize = 256 << 10;

enum Chunk {
    Copied(Vec<u8>),
    Shared(Bytes),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Queue {
    chunks: VecDeque<Chunk>,
    /// Bytes in all of them that have not gone.
    len: usize,
    /// How much of the first one has.
    taken: usize,
    /// The memory of a chunk that has.
    spare: Vec<u8>,
}

impl Queue {
    /// Bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds what `write` appends to the buffer that it is handed.
    pub(super) fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if !matches!(self.chunks.back(), Some(Chunk::Copied(last)) if last.len() < CHUNK) {
            self.chunks.push_back(Chunk::Copied(std::mem::take(&mut self.spare)));
        }
        if let Some(Chunk::Copied(last)) = self.chunks.back_mut() {
            let before = last.len();
            write(last);
            self.len += last.len() - before;
        }
    }

    /// Adds bytes that are not copied.
    pub(super) fn share(&mut self, bytes: &Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.chunks.push_back(Chunk::Shared(bytes.clone()));
        }
    }

    /// The first pieces into `slices`; how many pieces and how many bytes those are.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> (usize, usize) {
        let (mut count, mut bytes, mut taken) = (0, 0, self.taken);
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            let piece = &chunk.bytes()[taken..];
            *slice = IoSlice::new(piece);
            (count, bytes, taken) = (count + 1, bytes + piece.len(), 0);
        }
        (count, bytes)
    }

    /// So many bytes from the front have gone, no more than there were.
    pub(super) fn took(&mut self, mut count: usize) {
        self.len -= count;
        while let Some(first) = self.chunks.front_mut() {
            let left = first.bytes().len() - self.taken;
            if count < left {
                self.taken += count;
                return;
            }
            count -= left;
            self.taken = 0;
            match first {
                // The usual end: a batch of small frames has gone.
                Chunk::Copied(last) if self.len == 0 => {
                    last.clear();
                    last.shrink_to(KEPT);
                    self.chunks.truncate(1);
                    return;
                }
                Chunk::Copied(gone) => {
                    gone.clear();
                    self.spare = std::mem::take(gone);
                }
                Chunk::Shared(_) => {}
            }
            self.chunks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left, as one piece, in no more slices than there are.
    fn left(queue: &Queue) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 64];
        let (count, bytes) = queue.slices(&mut slices);
        let all: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
        assert_eq!((all.len(), bytes), (queue.len(), queue.len()));
        all
    }

    #[test]
    fn bytes_go_in_order_however_few_are_taken() {
        for step in [1, 3, 7, 1000] {
            let mut queue = Queue::default();
            let mut expected = Vec::new();
            for round in 0..20u8 {
                queue.write(|bytes| bytes.extend_from_slice(&[round; 5]));
                expected.extend([round; 5]);
                if round % 3 == 0 {
                    queue.share(&Bytes::from(vec![100 + round; 11]));
                    expected.extend([100 + round; 11]);
                }
                queue.share(&Bytes::new());
                assert_eq!(left(&queue), expected);
                let taken = step.min(expected.len());
                queue.took(taken);
                expected.drain(..taken);
                assert_eq!(left(&queue), expected);
            }
            queue.took(expected.len());
            assert_eq!((queue.len(), left(&queue).len()), (0, 0));
        }
    }

    #[test]
    fn a_long_chunk_ends_and_few_slices_are_not_overrun() {
        let mut queue = Queue::default();
        (0..5).for_each(|_| queue.write(|bytes| bytes.extend_from_slice(&[1; CHUNK])));
        let mut slices = [IoSlice::new(&[]); 3];
        assert_eq!(queue.slices(&mut slices), (3, 3 * CHUNK));
        queue.took(4 * CHUNK + 1);
        assert_eq!(left(&queue), [1; CHUNK - 1]);
        queue.took(CHUNK - 1);
        assert_eq!(queue.chunks.len(), 1, "memory for the next ones");
    }
}
