//! The reading end of a ring: takes frames, publishes its position, and finds when to wake a writer
//! without room. It reads each header word once and verifies it.
#![allow(unsafe_code, reason = "lends frames in memory shared with the peer")]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::{
    Broken, FRAME, HEADER, MARK, MAX_LINES, PUT_BITS, RingMemory, SKIP, lines::fetch_soon, lines_of,
};
use crate::{Frame, MAX_FRAME};

/// The reading end of a ring.
pub(in crate::shm) struct Reader {
    place: RingMemory,
    /// The position of the next header word.
    next: u64,
    /// The position that the writer can see.
    published: u64,
    /// True while frames come faster than they are polled: each poll then looks for the next one.
    eager: bool,
    /// True if the last poll found nothing.
    waited: bool,
}

impl Reader {
    pub(in crate::shm) fn new(place: RingMemory) -> Self {
        Self::at(place, 0)
    }

    /// A reader that has read the ring up to `position`, in lines since the beginning.
    pub(super) fn at(place: RingMemory, position: u64) -> Self {
        Self { place, next: position, published: position, eager: false, waited: true }
    }

    /// Returns true if a frame has arrived.
    #[inline]
    pub(in crate::shm) fn has_arrived(&self) -> bool {
        self.place.header(self.next).load(Relaxed) != 0
    }

    /// Returns true if nothing has arrived, as at the last poll: another poll would do nothing.
    #[inline]
    pub(in crate::shm) fn is_idle(&self) -> bool {
        fetch_soon(self.place.line(self.next + 1));
        self.waited && !self.has_arrived()
    }

    /// Hands over up to `limit` frames, and none after `most` bytes of them. Returns their number,
    /// and an error if the writer broke the rules after them.
    #[inline]
    pub(in crate::shm) fn poll(
        &mut self,
        limit: usize,
        mut most: usize,
        mut deliver: impl FnMut(Frame<'_>),
    ) -> (usize, Result<(), Broken>) {
        let lines = self.place.lines;
        let mut delivered = 0;
        while delivered < limit && most > 0 {
            // The word is read once; everything below uses this copy.
            let header = self.place.header(self.next).load(Acquire);
            fetch_soon(self.place.line(self.next + 1));
            if header == 0 {
                self.eager = false;
                if delivered == 0 {
                    self.waited = true;
                    self.publish();
                }
                break;
            }
            let left = lines - (self.next & (lines - 1));
            if header == SKIP {
                if left >= MAX_LINES || left == lines {
                    return (delivered, Err(Broken("a skip marker in the middle of a ring")));
                }
                self.next += left;
                continue;
            }
            let len = (header & 0xffff_ffff) as usize;
            if header & MARK != FRAME || len > MAX_FRAME || lines_of(len) > left {
                return (delivered, Err(Broken("an invalid header in a ring")));
            }
            // SAFETY: header and payload lie in the lines up to `left`, inside the mapped ring,
            // which outlives the call.
            let frame = unsafe { Frame::shared(self.place.line(self.next).add(HEADER), len) };
            deliver(frame.with_put_len((header >> PUT_BITS) as u32));
            most = most.saturating_sub(len.max(1));
            self.next += lines_of(len);
            delivered += 1;
            if self.next - self.published >= lines / 8 {
                self.publish();
            }
            if !self.eager {
                // A frame came. Look for another only if the last one had also come without a wait.
                self.eager = !self.waited;
                self.waited = false;
                break;
            }
        }
        (delivered, Ok(()))
    }

    /// Publishes the reader's position; returns true if it changed.
    #[inline]
    pub(in crate::shm) fn publish(&mut self) -> bool {
        let moved = self.published != self.next;
        if moved {
            self.published = self.next;
            // Release: our reads of these lines are over before the writer sees them free.
            self.place.read().store(self.next, Release);
        }
        moved
    }

    /// Returns true if a writer without room should be woken now, once for each time that it left
    /// its position.
    #[inline]
    pub(in crate::shm) fn wakes_starved(&mut self) -> bool {
        let starved = self.place.starved().load(Relaxed);
        starved != 0 && self.wake_starved(starved)
    }

    #[cold]
    fn wake_starved(&mut self, starved: u64) -> bool {
        let freed = self.next.saturating_sub(starved - 1);
        if freed == 0 || (freed < self.place.lines / 4 && self.has_arrived()) {
            return false;
        }
        self.place.starved().store(0, Relaxed);
        self.publish();
        true
    }
}
