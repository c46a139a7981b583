//! The reading end of a ring: takes frames, shows how far it has read, and knows when a writer without room should be woken.
//! It reads each header word once and believes none that cannot be.
#![allow(unsafe_code, reason = "lends frames in memory shared with the peer")]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::{Broken, FRAME, HEADER, MARK, MAX_LINES, PUT_BITS, Place, SKIP, lines::fetch_soon, lines_of};
use crate::{Frame, MAX_FRAME};

/// The reading end.
pub(in crate::shm) struct Reader {
    place: Place,
    /// Where the next header word is expected.
    next: u64,
    /// The position that the writer can see.
    published: u64,
    /// Frames come faster than they are polled: look for the next one in the same poll.
    eager: bool,
    /// The last poll found nothing.
    waited: bool,
}

impl Reader {
    pub(in crate::shm) fn new(place: Place) -> Self {
        Self::at(place, 0)
    }

    /// One that has read the ring up to `position`, in lines since the beginning.
    pub(super) fn at(place: Place, position: u64) -> Self {
        Self { place, next: position, published: position, eager: false, waited: true }
    }

    /// Whether something has arrived.
    #[inline]
    pub(in crate::shm) fn has_arrived(&self) -> bool {
        self.place.header(self.next).load(Relaxed) != 0
    }

    /// Nothing has arrived, as at the last poll: another one would find nothing to do.
    #[inline]
    pub(in crate::shm) fn is_idle(&self) -> bool {
        fetch_soon(self.place.line(self.next + 1));
        self.waited && !self.has_arrived()
    }

    /// Hands over up to `limit` frames, and none after `most` bytes of them; how many, and whether the writer broke the rules after them.
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
            // Read once; everything below speaks of this copy.
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
                return (delivered, Err(Broken("a header in a ring that cannot be")));
            }
            // SAFETY: header and payload lie in the lines up to `left`, inside the mapped ring, which
            // outlives the call.
            let frame = unsafe { Frame::shared(self.place.line(self.next).add(HEADER), len) };
            deliver(frame.behind((header >> PUT_BITS) as u32));
            most = most.saturating_sub(len.max(1));
            self.next += lines_of(len);
            delivered += 1;
            if self.next - self.published >= lines / 8 {
                self.publish();
            }
            if !self.eager {
                // One came: another only if the last one had come without a wait as well.
                self.eager = !self.waited;
                self.waited = false;
                break;
            }
        }
        (delivered, Ok(()))
    }

    /// Shows the writer how far we have read; whether that is news.
    #[inline]
    pub(in crate::shm) fn publish(&mut self) -> bool {
        let news = self.published != self.next;
        if news {
            self.published = self.next;
            // Release: our reads of these lines are over before the writer sees them free.
            self.place.read().store(self.next, Release);
        }
        news
    }

    /// Whether a writer without room should be woken now; says so once for each time that it left word.
    #[inline]
    pub(in crate::shm) fn feeds_starved(&mut self) -> bool {
        let starved = self.place.starved().load(Relaxed);
        starved != 0 && self.feed(starved)
    }

    #[cold]
    fn feed(&mut self, starved: u64) -> bool {
        let freed = self.next.saturating_sub(starved - 1);
        if freed == 0 || (freed < self.place.lines / 4 && self.has_arrived()) {
            return false;
        }
        self.place.starved().store(0, Relaxed);
        self.publish();
        true
    }
}
