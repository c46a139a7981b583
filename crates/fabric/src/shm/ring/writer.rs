//! The writing end of a ring: finds room, fills it, publishes. It verifies the reader's position,
//! the only word it takes from the reader.
#![allow(unsafe_code, reason = "writes memory shared with the peer")]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::{
    Broken, FRAME, HEADER, LINE, MOST_PUT, PUT_BITS, RingMemory, SKIP,
    lines::{copy, own_soon},
    lines_of,
};

/// The room for one frame.
pub(in crate::shm) struct Room {
    /// The position of the frame.
    start: u64,
    /// The position of the next frame.
    end: u64,
}

/// The writing end of a ring.
pub(in crate::shm) struct Writer {
    place: RingMemory,
    /// The position of the next header word.
    head: u64,
    /// The reader's position as last seen.
    seen: u64,
    /// The position left in `starved`.
    starved_at: Option<u64>,
}

impl Writer {
    pub(in crate::shm) fn new(place: RingMemory) -> Self {
        Self { place, head: 0, seen: 0, starved_at: None }
    }

    /// Finds room for a frame of `len` bytes, at most [`MAX_FRAME`](crate::MAX_FRAME); `None` if
    /// there is none now.
    #[inline]
    pub(in crate::shm) fn room(&mut self, len: usize) -> Result<Option<Room>, Broken> {
        let lines = lines_of(len);
        let left = self.place.lines - (self.head & (self.place.lines - 1));
        let start = if lines <= left { self.head } else { self.head + left };
        let end = start + lines;
        // The line at `end` gets a zeroed header, so it must be free too.
        if end - self.seen >= self.place.lines && !self.look_again(end)? {
            return Ok(None);
        }
        Ok(Some(Room { start, end }))
    }

    #[cold]
    fn look_again(&mut self, end: u64) -> Result<bool, Broken> {
        // Acquire: the reader's reads of these lines are over before this side writes there.
        let read = self.place.read().load(Acquire);
        if read < self.seen || read > self.head {
            return Err(Broken("an invalid position in a ring"));
        }
        self.seen = read;
        if end - read < self.place.lines {
            self.starved_at = None;
            return Ok(true);
        }
        if self.starved_at != Some(read) {
            self.starved_at = Some(read);
            self.place.starved().store(read + 1, Relaxed);
        }
        Ok(false)
    }

    /// Returns true if there may be room now, after an attempt that found none.
    pub(in crate::shm) fn may_have_room(&self) -> bool {
        self.starved_at.is_some_and(|seen| self.place.read().load(Relaxed) != seen)
    }

    /// Writes the frame `head` + `body` into `room`, which was requested with their length, and
    /// publishes it.
    #[inline]
    pub(in crate::shm) fn publish(&mut self, room: &Room, head: &[u8], body: &[u8], put: usize) {
        let Room { start, end } = *room;
        self.place.header(end).store(0, Relaxed);
        let len = head.len() + body.len();
        // SAFETY: `room` was computed from this length: the lines from `start` on are contiguous,
        // in the ring, and free, so neither read by the peer nor overlapping what the caller holds.
        unsafe {
            let payload = self.place.line(start).add(HEADER).as_ptr();
            let (first_head, first_body) = first_line(head.len(), body.len());
            // The first line comes last: the reader polls it, and would take it away while this
            // side waits for the others.
            copy(head.as_ptr().add(first_head), payload.add(first_head), head.len() - first_head);
            let behind = head.len() + first_body;
            copy(body.as_ptr().add(first_body), payload.add(behind), body.len() - first_body);
            copy(head.as_ptr(), payload, first_head);
            copy(body.as_ptr(), payload.add(head.len()), first_body);
        }
        let header = (put as u64).min(MOST_PUT) << PUT_BITS | FRAME | len as u64;
        self.place.header(start).store(header, Release);
        if start != self.head {
            self.place.header(self.head).store(SKIP, Release);
        }
        self.head = end;
        // The next frame zeroes the header of the line after the next, and should not wait for it
        // then.
        own_soon(self.place.line(end + 1));
    }
}

/// The bytes of a head and a body that stand in the first line.
#[inline(always)]
fn first_line(head: usize, body: usize) -> (usize, usize) {
    let head = head.min(LINE - HEADER);
    (head, body.min(LINE - HEADER - head))
}
