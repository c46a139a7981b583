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
#![allow(unsafe_code, reason = "reads and writes memory shared with the peer")]

use std::{
    ptr::{NonNull, copy_nonoverlapping},
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use crate::{Frame, MAX_FRAME};

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

/// Room for one frame.
pub(super) struct Room {
    /// Where the frame goes.
    start: u64,
    /// Where the next one will.
    end: u64,
}

/// The writing end.
pub(super) struct Writer {
    place: Place,
    /// Where the next header word goes.
    head: u64,
    /// The reader's position as last seen.
    seen: u64,
    /// The position left in `starved`.
    starved_at: Option<u64>,
}

impl Writer {
    pub(super) fn new(place: Place) -> Self {
        Self { place, head: 0, seen: 0, starved_at: None }
    }

    /// Room for a frame of `len` bytes, at most [`MAX_FRAME`]; `None` while there is none.
    #[inline]
    pub(super) fn room(&mut self, len: usize) -> Result<Option<Room>, Broken> {
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
        // Acquire: the reader's reads of these lines are over before we write there.
        let read = self.place.read().load(Acquire);
        if read < self.seen || read > self.head {
            return Err(Broken("a position in the ring that cannot be"));
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

    /// Whether there may be room now though the last attempt found none.
    pub(super) fn may_have_room(&self) -> bool {
        self.starved_at.is_some_and(|seen| self.place.read().load(Relaxed) != seen)
    }

    /// Writes the frame `head` + `body` into `room`, which was asked for with their length, and publishes it.
    #[inline]
    pub(super) fn publish(&mut self, room: &Room, head: &[u8], body: &[u8], put: usize) {
        let Room { start, end } = *room;
        self.place.header(end).store(0, Relaxed);
        let len = head.len() + body.len();
        // SAFETY: `room` was computed from this length: the lines from `start` on are contiguous, in the
        // ring, and free, so neither read by the peer nor overlapping what the caller holds.
        unsafe {
            let payload = self.place.line(start).add(HEADER).as_ptr();
            let (first_head, first_body) = first_line(head.len(), body.len());
            // The first line last: the reader polls it, and would take it away while we wait for the others.
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
        // The line after the next: the next frame zeroes its header, and should not wait for it then.
        own_soon(self.place.line(end + 1));
    }
}

/// How much of a head and a body stands in the first line.
#[inline(always)]
fn first_line(head: usize, body: usize) -> (usize, usize) {
    let head = head.min(LINE - HEADER);
    (head, body.min(LINE - HEADER - head))
}

/// Copies `len` bytes with as few stores as they need where they are few, so that a line is filled in one go.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    /// Two possibly overlapping words cover every length between one and two of them.
    #[inline(always)]
    unsafe fn ends<T: Copy>(from: *const u8, to: *mut u8, len: usize) {
        let last = len - size_of::<T>();
        // SAFETY: `len` is at least the size of a `T`, so both ends lie inside.
        unsafe {
            let (a, b) = (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
            to.cast::<T>().write_unaligned(a);
            to.add(last).cast::<T>().write_unaligned(b);
        }
    }
    // SAFETY: each arm covers exactly `0..len`.
    unsafe {
        match len {
            0 => {}
            1 => to.write(from.read()),
            2..4 => ends::<u16>(from, to, len),
            4..8 => ends::<u32>(from, to, len),
            8..16 => ends::<u64>(from, to, len),
            16..=32 => ends::<[u64; 2]>(from, to, len),
            33..=64 => ends::<[u64; 4]>(from, to, len),
            // A ring goes round in the caches of both cores: streaming stores would push it out to memory, and pass
            // half as much on.
            _ => copy_nonoverlapping(from, to, len),
        }
    }
}

/// Asks for a line to be owned by this core, without waiting for it.
#[inline(always)]
fn own_soon(line: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: it faults on no address and changes no memory. Processors without it do nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line.as_ptr(), options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Asks for a line to be read, without waiting for it.
#[inline(always)]
fn fetch_soon(line: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: it faults on no address and changes no memory.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// The reading end.
pub(super) struct Reader {
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
    pub(super) fn new(place: Place) -> Self {
        Self { place, next: 0, published: 0, eager: false, waited: true }
    }

    /// Whether something has arrived.
    #[inline]
    pub(super) fn has_arrived(&self) -> bool {
        self.place.header(self.next).load(Relaxed) != 0
    }

    /// Nothing has arrived, as at the last poll: another one would find nothing to do.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        fetch_soon(self.place.line(self.next + 1));
        self.waited && !self.has_arrived()
    }

    /// Hands over up to `limit` frames, and none after `most` bytes of them; how many, and whether the writer broke the rules after them.
    #[inline]
    pub(super) fn poll(
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
    pub(super) fn publish(&mut self) -> bool {
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
    pub(super) fn feeds_starved(&mut self) -> bool {
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

/// Both ends of small rings whose memory a peer has filled with any bytes, as a fuzz target would: two control words, where we
/// stand, then lines. How many frames were found.
#[doc(hidden)]
#[must_use]
pub fn ring_any(bytes: &[u8]) -> usize {
    const LINES: usize = 1024;
    let (words, rest) = bytes.as_chunks::<8>();
    let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
    let mut memory = vec![[0u64; LINE / 8]; LINES].into_boxed_slice();
    let lines = words.iter().skip(3).map(|word| u64::from_le_bytes(*word));
    memory.as_flattened_mut().iter_mut().zip(lines).for_each(|(place, word)| *place = word);
    if let (Some(last), [first, ..]) = (memory.as_flattened_mut().last_mut(), rest) {
        *last = (*first).into();
    }
    let control = [AtomicU64::new(word(0)), AtomicU64::new(word(1))];
    let place = Place {
        data: NonNull::from(&mut memory[0]).cast(),
        lines: LINES as u64,
        read: NonNull::from(&control[0]),
        starved: NonNull::from(&control[1]),
    };

    let mut reader = Reader::new(place);
    (reader.next, reader.published) = (word(2) % (1 << 40), word(2) % (1 << 40));
    let (mut frames, mut bytes) = (0, vec![0; MAX_FRAME]);
    // More than fit cannot be found: what was read stays where it is, and the end of the ring comes round only once.
    while frames <= LINES {
        let (count, result) = reader.poll(16, usize::MAX, |frame| frame.copy(0, &mut bytes[..frame.len()]));
        frames += count;
        let _ = reader.feeds_starved();
        if result.is_err() || count == 0 && !reader.has_arrived() {
            break;
        }
    }

    control[0].store(word(0), Relaxed);
    let mut writer = Writer::new(place);
    for len in [0, 56, 57, 4000, MAX_FRAME].into_iter().cycle().take(LINES) {
        match writer.room(len) {
            Ok(Some(room)) => writer.publish(&room, &bytes[..len / 3], &bytes[len / 3..len], 0),
            Ok(None) if writer.may_have_room() => {}
            Ok(None) | Err(Broken(_)) => break,
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring in ordinary memory, both ends in one thread.
    struct Bench {
        lines: Box<[[u64; 8]]>,
        _control: Box<[AtomicU64; 2]>,
        writer: Writer,
        reader: Reader,
    }

    impl Bench {
        fn new(lines: u64) -> Self {
            // A line is 64-aligned in memory only by luck here; no test depends on it, only on 8.
            let mut memory = vec![[0u64; 8]; lines as usize].into_boxed_slice();
            let control = Box::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let place = Place {
                data: NonNull::from(&mut memory[0]).cast(),
                lines,
                read: NonNull::from(&control[0]),
                starved: NonNull::from(&control[1]),
            };
            Self { lines: memory, _control: control, writer: Writer::new(place), reader: Reader::new(place) }
        }

        fn send(&mut self, frame: &[u8]) -> bool {
            let cut = frame.len() / 3;
            let Some(room) = self.writer.room(frame.len()).unwrap() else { return false };
            self.writer.publish(&room, &frame[..cut], &frame[cut..], 0);
            true
        }

        fn receive(&mut self, limit: usize) -> Vec<Vec<u8>> {
            let mut frames = Vec::new();
            while frames.len() < limit {
                let before = frames.len();
                let (count, result) = self.reader.poll(limit - before, usize::MAX, |frame| {
                    let mut bytes = vec![0; frame.len()];
                    frame.copy(0, &mut bytes);
                    frames.push(bytes);
                });
                result.unwrap();
                assert_eq!(before + count, frames.len());
                if count == 0 {
                    break;
                }
            }
            frames
        }

        fn poke(&mut self, header: u64) -> Result<(), Broken> {
            self.lines[0][0] = header;
            self.reader.poll(4, usize::MAX, |_| {}).1
        }
    }

    #[test]
    fn every_length_arrives_whole_at_every_place_of_the_ring() {
        let mut ring = Bench::new(1024);
        let mut random = 1u64;
        for round in 0..60_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let most = if round % 64 == 0 { MAX_FRAME + 1 } else { 200 };
            let len = (random >> 33) as usize % most;
            let frame: Vec<u8> = (0..len).map(|at| (at as u64 ^ random >> 20) as u8 | 1).collect();
            assert!(ring.send(&frame));
            assert_eq!(ring.receive(8), [frame]);
        }
    }

    #[test]
    fn a_full_ring_refuses_and_loses_nothing() {
        for len in [0, 1, 56, 57, 120, 4000, MAX_FRAME] {
            let mut ring = Bench::new(1024);
            let (mut sent, mut received) = (0u8, 0u8);
            for _ in 0..500 {
                while ring.send(&vec![sent; len]) {
                    sent = sent.wrapping_add(1);
                }
                assert!(!ring.writer.may_have_room());
                for frame in ring.receive(3 + usize::from(sent % 40)) {
                    assert_eq!(frame, vec![received; len]);
                    received = received.wrapping_add(1);
                }
            }
            ring.receive(usize::MAX);
            assert!(
                ring.send(&vec![0; len]),
                "an empty ring takes a frame of {len} bytes wherever it stands"
            );
        }
    }

    #[test]
    fn a_second_frame_is_looked_for_once_frames_come_without_a_wait() {
        let mut ring = Bench::new(1024);
        let poll = |ring: &mut Bench| ring.reader.poll(8, usize::MAX, |_| {}).0;
        (0..20).for_each(|_| assert!(ring.send(&[1])));
        assert_eq!([(); 5].map(|()| poll(&mut ring)), [1, 1, 8, 8, 2]);
        assert_eq!(poll(&mut ring), 0);
        (0..2).for_each(|_| assert!(ring.send(&[1])));
        assert_eq!([(); 3].map(|()| poll(&mut ring)), [1, 1, 0]);
    }

    #[test]
    fn no_frame_is_handed_over_after_so_many_bytes() {
        let mut ring = Bench::new(1024);
        (0..9).for_each(|_| assert!(ring.send(&[1; 100])));
        ring.receive(2);
        let poll = |ring: &mut Bench, most| ring.reader.poll(8, most, |_| {}).0;
        assert_eq!([poll(&mut ring, 1), poll(&mut ring, 250), poll(&mut ring, usize::MAX)], [1, 3, 3]);
    }

    #[test]
    fn a_writer_without_room_is_woken_once_there_is_some() {
        let mut ring = Bench::new(1024);
        while ring.send(&[1; 56]) {}
        assert!(!ring.reader.feeds_starved(), "nothing read yet");
        ring.receive(16);
        assert!(!ring.reader.feeds_starved(), "hardly any room yet");
        ring.receive(512);
        assert!(ring.reader.feeds_starved() && !ring.reader.feeds_starved(), "once");
        assert!(ring.writer.may_have_room() && ring.send(&[1; 56]) && !ring.writer.may_have_room());
    }

    #[test]
    fn what_no_writer_leaves_is_found_out() {
        let headers =
            [1, FRAME | (MAX_FRAME as u64 + 1), FRAME | 0xffff_ffff, SKIP, SKIP | 1, 3 << 32, u64::MAX];
        for header in headers {
            assert!(Bench::new(1024).poke(header).is_err(), "{header:#x}");
        }
        // A frame longer than what is left before the end.
        let mut ring = Bench::new(1024);
        ring.reader.next = 1023;
        ring.lines[1023][0] = FRAME | 57;
        assert!(ring.reader.poll(1, usize::MAX, |_| {}).1.is_err());
    }

    #[test]
    fn a_position_that_no_reader_leaves_is_found_out() {
        for position in [u64::MAX, 100_000] {
            let mut ring = Bench::new(1024);
            while ring.send(&[1; 56]) {}
            ring.reader.place.read().store(position, Relaxed);
            assert!(ring.writer.room(56).is_err());
        }
    }

    #[test]
    fn any_memory_of_a_peer_does_no_harm() {
        let mut ring = Bench::new(1024);
        for len in [0, 8, 56, 57, 300, MAX_FRAME, 1] {
            assert!(ring.send(&vec![7; len]));
        }
        let lines = ring.lines.as_flattened().iter().take(3000).copied();
        let good = |control: [u64; 3]| -> Vec<u8> {
            control.into_iter().chain(lines.clone()).flat_map(u64::to_le_bytes).collect()
        };
        let good = [good([0; 3]), good([64, 65, 1 << 30])];
        assert_eq!(good.each_ref().map(|bytes| ring_any(bytes)), [7, 7]);
        plexus_sim::hostile(&good, |bytes| assert!(ring_any(bytes) <= 1024 + 16));
    }
}
