//! Bytes that wait for a socket: copies of short pieces, references to shared ones.
//!
//! The bytes go out in order, many pieces in one system call. This module does not know what they
//! mean.

use std::{collections::VecDeque, io::IoSlice};

use bytes::Bytes;

/// The length from which a chunk of copies takes no more.
const CHUNK: usize = 64 << 10;

/// The memory kept when the queue is empty.
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

/// The bytes that wait for one socket.
#[derive(Default)]
pub(super) struct Queue {
    chunks: VecDeque<Chunk>,
    /// The bytes of all chunks that were not sent.
    len: usize,
    /// The bytes of the first chunk that were sent.
    taken: usize,
    /// The memory of a chunk that was sent.
    spare: Vec<u8>,
}

impl Queue {
    /// The bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds the bytes that `write` appends to the buffer that it gets.
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

    /// Adds bytes without copying them.
    pub(super) fn share(&mut self, bytes: &Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.chunks.push_back(Chunk::Shared(bytes.clone()));
        }
    }

    /// Fills `slices` with the first pieces; returns their number and their bytes.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> (usize, usize) {
        let (mut count, mut bytes, mut taken) = (0, 0, self.taken);
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            let piece = &chunk.bytes()[taken..];
            *slice = IoSlice::new(piece);
            (count, bytes, taken) = (count + 1, bytes + piece.len(), 0);
        }
        (count, bytes)
    }

    /// Removes `count` bytes from the front, which the socket has taken.
    pub(super) fn sent(&mut self, mut count: usize) {
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
                // The usual end: a batch of small frames was sent.
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

    /// The bytes left, read through no more slices than given.
    fn left(queue: &Queue) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 64];
        let (count, bytes) = queue.slices(&mut slices);
        let all: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
        assert_eq!((all.len(), bytes), (queue.len(), queue.len()));
        all
    }

    #[test]
    fn bytes_go_in_order_with_partial_writes() {
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
                queue.sent(taken);
                expected.drain(..taken);
                assert_eq!(left(&queue), expected);
            }
            queue.sent(expected.len());
            assert_eq!((queue.len(), left(&queue).len()), (0, 0));
        }
    }

    #[test]
    fn long_chunks_end_and_few_slices_are_enough() {
        let mut queue = Queue::default();
        (0..5).for_each(|_| queue.write(|bytes| bytes.extend_from_slice(&[1; CHUNK])));
        let mut slices = [IoSlice::new(&[]); 3];
        assert_eq!(queue.slices(&mut slices), (3, 3 * CHUNK));
        queue.sent(4 * CHUNK + 1);
        assert_eq!(left(&queue), [1; CHUNK - 1]);
        queue.sent(CHUNK - 1);
        assert_eq!(queue.chunks.len(), 1, "memory is kept for the next bytes");
    }
}
