//! Memory that a provider reads and writes asynchronously, and a ring of bytes in it.
//!
//! It is reached by pointer only: memory that was handed to the provider may change until the
//! completion. Unused pages take no memory, except under providers that pin registered memory.
#![allow(unsafe_code, reason = "memory that a provider reads and writes")]

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ptr::NonNull,
};

const PAGE: usize = 4096;

/// Zeroed memory, aligned to pages.
pub(crate) struct Buffer {
    start: NonNull<u8>,
    len: usize,
    /// True if a provider may still use the memory: it is never given back.
    kept: bool,
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        assert!(len > 0);
        let layout = Self::layout(len);
        // SAFETY: the layout has a size.
        let start = unsafe { alloc_zeroed(layout) };
        Self { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), len, kept: false }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, PAGE).expect("a valid length")
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Never gives the memory back.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }

    /// The byte at `at`.
    pub(crate) fn at(&self, at: usize) -> NonNull<u8> {
        assert!(at < self.len, "outside a buffer");
        // SAFETY: inside the allocation.
        unsafe { self.start.add(at) }
    }

    /// Copies `bytes` to `at`, which the provider must not read now.
    #[inline]
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at, "write past the end of a buffer");
        // SAFETY: checked above; `bytes` is a slice, so it is no part of memory that is reached by
        // pointer only.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len());
        }
    }

    /// Lends `len` bytes from `at` on.
    ///
    /// # Safety
    /// No provider writes there while the slice lives.
    #[inline]
    pub(crate) unsafe fn slice(&self, at: usize, len: usize) -> &[u8] {
        assert!(at <= self.len && len <= self.len - at, "read past the end of a buffer");
        // SAFETY: inside the allocation, which was initialized with zeros; the caller vouches for
        // the rest.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at), len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.kept {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
        }
    }
}

/// The used bytes of a ring: pieces are given out in one block each and given back in the same
/// order.
///
/// Positions grow without end; a position modulo the length is the place.
#[derive(Clone, Debug)]
pub(crate) struct Staging {
    len: u64,
    taken: u64,
    released: u64,
}

/// A piece of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// The start of the piece.
    pub(crate) at: usize,
    /// The position to give back with [`Staging::release`].
    pub(crate) upto: u64,
}

impl Staging {
    pub(crate) fn new(len: usize) -> Self {
        Self { len: len as u64, taken: 0, released: 0 }
    }

    /// Takes `len` bytes in one block, if there is room.
    pub(crate) fn take(&mut self, len: usize) -> Option<Piece> {
        let len = len as u64;
        let at = self.taken % self.len;
        let skipped = if at + len > self.len { self.len - at } else { 0 };
        let upto = self.taken + skipped + len;
        if len > self.len || upto - self.released > self.len {
            return None;
        }
        self.taken = upto;
        Some(Piece { at: ((at + skipped) % self.len) as usize, upto })
    }

    /// The position up to which the ring is taken: the one to release for an operation that needs
    /// no piece and comes next.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Gives back everything up to the end of a piece.
    pub(crate) fn release(&mut self, upto: u64) {
        debug_assert!(self.released <= upto && upto <= self.taken);
        self.released = upto;
        if self.released == self.taken {
            // The ring is empty: the longest piece fits wherever the last one ended.
            (self.taken, self.released) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn pieces_never_overlap_and_every_byte_comes_back() {
        let mut ring = Staging::new(1000);
        let mut out: VecDeque<(usize, usize, u64)> = VecDeque::new();
        let mut refused = 0;
        for round in 0..10_000usize {
            let len = round * 37 % 420;
            match ring.take(len) {
                Some(piece) => {
                    assert!(piece.at + len <= 1000);
                    let apart = |(at, other, _): &(usize, usize, u64)| {
                        len == 0 || *other == 0 || piece.at + len <= *at || at + other <= piece.at
                    };
                    assert!(out.iter().all(apart), "{piece:?}");
                    out.push_back((piece.at, len, piece.upto));
                }
                None => {
                    refused += 1;
                    let (.., upto) = out.pop_front().expect("an empty ring has room");
                    ring.release(upto);
                    if out.is_empty() {
                        assert_eq!(ring.taken(), 0, "an empty ring starts at position 0");
                    }
                }
            }
        }
        assert!(refused > 100);
        assert!(ring.take(1001).is_none());
    }

    #[test]
    fn an_empty_ring_takes_the_longest_piece() {
        let mut ring = Staging::new(100);
        for len in [60, 100, 1, 100] {
            let piece = ring.take(len).unwrap();
            ring.release(piece.upto);
        }
    }

    #[test]
    fn a_buffer_gives_back_what_was_written() {
        let mut buffer = Buffer::new(5000);
        buffer.write(4990, &[7; 10]);
        // SAFETY: no provider knows of it.
        assert_eq!(unsafe { buffer.slice(4989, 11) }, [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
        assert_eq!(buffer.at(0).as_ptr().align_offset(PAGE), 0);
    }
}
