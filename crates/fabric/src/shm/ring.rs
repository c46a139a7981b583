//! A ring of cache lines between one writer and one reader in two processes.
//!
//! ## Layout
//! A ring is a power of two of 64-byte lines. A frame takes as many contiguous lines as its bytes and an
//! 8-byte header word need; the header word is the first word of its first line:
//!
//! ```text
//! bits 0..32   length of the frame in bytes
//! bits 32..34  0 nothing here yet, 1 a frame, 2 skip: the next frame is at line 0
//! bits 34..64  bytes of the put in front of the frame, the most that fits if more; for statistics
//! ```
//!
//! A small frame so costs one line that moves from core to core once, header and payload together.
//!
//! ## Who writes what, and when
//! The *writer* fills the payload, sets the header word of the line **after** the frame to 0, and stores the
//! header word of the frame last (release). The reader looks at the header word of its next line only
//! (acquire). Since that word was zeroed before the frame in front of it was published, what is left of the
//! previous lap is never taken for a header, and no lap needs counting. For this one line always stays free.
//! A frame that does not fit before the end of the ring starts at line 0, and is published by a skip marker
//! where it would have stood, after the frame itself is in place.
//!
//! The *reader* publishes how many lines it has read in all, on a line that nobody else writes; the writer
//! keeps a copy and looks again only when the ring seems full. It publishes after every eighth of the ring
//! and when it finds the ring empty: the line is its own unless the writer looks, so the store is cheap.
//!
//! Looking at a header word that the writer has just zeroed fetches the line from the other core. Whoever
//! does so between a request and the answer to it delays the answer by that much, since no store leaves a
//! core before the loads in front of it are done. So the reader looks for a second frame in one poll only
//! while frames come faster than it polls. For the same reason it asks for the line after the one it polls
//! ahead of time: the two lines of a middling frame then move at once. And the writer fills the first line of
//! a frame last, in one go with the header word, since the reader polls it and would take it away in between.
//!
//! A writer that found no room leaves the position that it saw in `starved`; the reader, who looks there in
//! every poll, tells the rail to wake the writer when a quarter of the ring or all of it is free. It cannot
//! sleep over it: it sleeps only when the ring is empty, and looks once more after arming its bell.
//!
//! ## Why this is sound
//! Both processes map the memory; neither ever makes a reference to ring data. Header and control words are
//! atomics. Payload bytes are plain copies ordered by the header's release and acquire, and, for lines used
//! again, by those of the reader's position. A peer that breaks the rules can make bytes arbitrary, never an
//! access out of bounds: every line number is masked, the header word is read once and checked, a position
//! that cannot be is [`Broken`].
#![allow(unsafe_code, reason = "knows where in memory shared with the peer things lie")]

mod hostile;
mod lines;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::{ptr::NonNull, sync::atomic::AtomicU64};

use crate::MAX_FRAME;
pub use hostile::ring_any;
pub(super) use reader::Reader;
pub(super) use writer::{Room, Writer};

/// Bytes in a line: what moves between cores.
pub(super) const LINE: usize = 64;

/// Bytes of the header word.
const HEADER: usize = 8;

const FRAME: u64 = 1 << 32;
const SKIP: u64 = 2 << 32;
const MARK: u64 = 3 << 32;

/// Where the length of a put begins, and the largest.
const PUT_BITS: u32 = 34;
const MOST_PUT: u64 = (1 << (64 - PUT_BITS)) - 1;

/// Most lines that a frame takes.
pub(super) const MAX_LINES: u64 = lines_of(MAX_FRAME);

const fn lines_of(len: usize) -> u64 {
    (HEADER + len).div_ceil(LINE) as u64
}

/// The other side broke the rules of the ring.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) &'static str);

/// Where a ring lies: addresses into memory that outlives whoever holds this.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The first line, aligned to one.
    pub(super) data: NonNull<u8>,
    /// How many lines, a power of two.
    pub(super) lines: u64,
    /// The reader's position, in lines since the beginning; written by the reader only.
    pub(super) read: NonNull<AtomicU64>,
    /// One more than the position that a writer without room saw; 0: nobody waits.
    pub(super) starved: NonNull<AtomicU64>,
}

impl Place {
    /// The line at `position`, counted from the beginning.
    #[inline(always)]
    fn line(&self, position: u64) -> NonNull<u8> {
        // SAFETY: masked, so inside the ring, which is mapped.
        unsafe { self.data.add((position & (self.lines - 1)) as usize * LINE) }
    }

    /// The header word of the line at `position`.
    #[inline(always)]
    fn header(&self, position: u64) -> &AtomicU64 {
        // SAFETY: the start of a line is aligned and mapped, and this word is only used as an atomic while it
        // can be a header; the writer alone overwrites it with payload, in lines that the reader has passed.
        unsafe { AtomicU64::from_ptr(self.line(position).as_ptr().cast()) }
    }

    #[inline(always)]
    fn read(&self) -> &AtomicU64 {
        // SAFETY: mapped and aligned, see `Place`.
        unsafe { self.read.as_ref() }
    }

    #[inline(always)]
    fn starved(&self) -> &AtomicU64 {
        // SAFETY: mapped and aligned, see `Place`.
        unsafe { self.starved.as_ref() }
    }
}
