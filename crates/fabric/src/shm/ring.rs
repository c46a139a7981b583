//! A ring of cache lines between one writer and one reader in two processes.
//!
//! ## Layout
//! A ring is a power of two of 64-byte lines. A frame takes as many contiguous lines as its bytes
//! and an 8-byte header word need. The header word is the first word of its first line:
//!
//! ```text
//! bits 0..32   length of the frame in bytes
//! bits 32..34  0 nothing here yet, 1 a frame, 2 skip: the next frame is at line 0
//! bits 34..64  bytes of the put in front of the frame, the most that fits if more; for statistics
//! ```
//!
//! So a small frame costs one line that moves from core to core once, header and payload together.
//!
//! ## Who writes what, and when
//! The *writer* fills the payload, sets the header word of the line **after** the frame to 0, and
//! stores the header word of the frame last (release). The reader looks only at the header word of
//! its next line (acquire). That word was zeroed before the frame in front of it was published. So
//! the reader never takes bytes of the previous lap for a header, and laps need not be counted. For
//! this, one line always stays free. A frame that does not fit before the end of the ring starts at
//! line 0. A skip marker where it would have stood publishes it, after the frame itself is in
//! place.
//!
//! The *reader* publishes how many lines it has read in all, on a line that only it writes. The
//! writer keeps a copy and reads it again only when the ring seems full. The reader publishes after
//! every eighth of the ring and when it finds the ring empty. The store is cheap, since the line
//! stays in the reader's cache unless the writer looks.
//!
//! Looking at a header word that the writer has just zeroed fetches the line from the other core.
//! Between a request and its answer this delays the answer, since no store leaves a core before the
//! loads in front of it are done. So the reader looks for a second frame in one poll only while
//! frames come faster than it polls. For the same reason it prefetches the line after the one it
//! polls: the two lines of a medium frame then move together. The writer fills the first line of a
//! frame last, together with the header word, since the reader polls that line and would take it
//! away in between.
//!
//! A writer that found no room leaves the position that it saw in `starved`. The reader checks that
//! word in every poll. It tells the rail to wake the writer when a quarter of the ring, or all of
//! it, is free. The reader cannot miss the word by sleeping: it sleeps only when the ring is empty,
//! and looks once more after arming its bell.
//!
//! ## Why this is sound
//! Both processes map the memory; neither ever makes a reference to ring data. Header and control
//! words are atomics. Payload bytes are plain copies, ordered by the header's release and acquire,
//! and, for lines used again, by those of the reader's position. A peer that breaks the rules can
//! make bytes arbitrary, but cannot cause an access out of bounds: every line number is masked, the
//! header word is read once and checked, and an impossible position is [`Broken`].
#![allow(unsafe_code, reason = "computes addresses in memory shared with the peer")]

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

/// The bytes in a line, the unit that moves between cores.
pub(super) const LINE: usize = 64;

/// The bytes of the header word.
const HEADER: usize = 8;

const FRAME: u64 = 1 << 32;
const SKIP: u64 = 2 << 32;
const MARK: u64 = 3 << 32;

/// The first bit of the put length, and its largest value.
const PUT_BITS: u32 = 34;
const MOST_PUT: u64 = (1 << (64 - PUT_BITS)) - 1;

/// The maximum number of lines of a frame.
pub(super) const MAX_LINES: u64 = lines_of(MAX_FRAME);

const fn lines_of(len: usize) -> u64 {
    (HEADER + len).div_ceil(LINE) as u64
}

/// The error of a peer that broke the rules of the ring.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) &'static str);

/// The addresses of a ring, in memory that outlives the holder of this value.
#[derive(Clone, Copy)]
pub(super) struct RingMemory {
    /// The first line, aligned to a line.
    pub(super) data: NonNull<u8>,
    /// The number of lines, a power of two.
    pub(super) lines: u64,
    /// The reader's position, in lines since the beginning; only the reader writes it.
    pub(super) read: NonNull<AtomicU64>,
    /// One more than the position that a writer without room saw; 0 if the writer does not wait.
    pub(super) starved: NonNull<AtomicU64>,
}

impl RingMemory {
    /// The line at `position`, counted from the beginning.
    #[inline(always)]
    fn line(&self, position: u64) -> NonNull<u8> {
        // SAFETY: masked, so inside the ring, which is mapped.
        unsafe { self.data.add((position & (self.lines - 1)) as usize * LINE) }
    }

    /// The header word of the line at `position`.
    #[inline(always)]
    fn header(&self, position: u64) -> &AtomicU64 {
        // SAFETY: the start of a line is aligned and mapped, and this word is only used as an
        // atomic while it can be a header; the writer alone overwrites it with payload, in lines
        // that the reader has passed.
        unsafe { AtomicU64::from_ptr(self.line(position).as_ptr().cast()) }
    }

    #[inline(always)]
    fn read(&self) -> &AtomicU64 {
        // SAFETY: mapped and aligned, see `RingMemory`.
        unsafe { self.read.as_ref() }
    }

    #[inline(always)]
    fn starved(&self) -> &AtomicU64 {
        // SAFETY: mapped and aligned, see `RingMemory`.
        unsafe { self.starved.as_ref() }
    }
}
