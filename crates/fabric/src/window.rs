//! Windows: memory that peers write into.
//!
//! The owner creates a [`Window`]. A peer on the same host maps it ([`PeerWindow`]), and a put is
//! one copy. A peer on another host sends the bytes; the receiving [`TcpRail`](crate::TcpRail)
//! finds the window in its [`Windows`] and reads the socket straight into it.
//!
//! A window may be divided into *granules* (the frames of a cache). Each has a generation: odd
//! while its owner expects a put, even otherwise, and never the same twice in a row. A rail that
//! bypasses the owner's CPU accepts a put only with the generation that the owner announced. Over
//! shared memory there is no such check: the owner must not reuse a granule before the put is
//! answered or the peer's process has ended.
//!
//! *Words* are eight bytes at a multiple of eight, through which peers agree. Every processor that
//! has the memory mapped reads and writes them at once, adds to them, and compares and swaps them.
//! A window is mapped at the start of a page, so a word of the window is an aligned `AtomicU64` in
//! every process.
//!
//! In a *wordwise* window the same holds for every word of a longer put, because threads read it
//! while one arrives. A rail that bypasses the owner's CPU keeps the put aside until it is complete
//! and verified, so its length is [limited](MAX_WORDWISE), and every writer writes word by word.
//!
//! This module cannot guarantee that bytes in a window hold still. Peers may write at any time, so
//! the memory is reached by pointer only, and readers validate what they read.
#![allow(unsafe_code, reason = "reaches memory that peers write to")]

mod local;
mod words;

pub use local::SeenWindow;

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Acquire, Release, SeqCst},
        },
    },
};

use plexus_base::wire;

use crate::{
    Access, Put,
    memory::{Memory, SetupError},
    stream,
};

/// The bytes in a word.
const WORD: usize = size_of::<u64>();

/// The longest put into a window that is written word by word: every connection keeps room for one.
pub const MAX_WORDWISE: usize = 64 << 10;

// Words are little endian in every window; a big-endian processor would need to swap them in each
// access.
const _: () = assert!(cfg!(target_endian = "little"));

/// The identifier of a window of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WindowId(pub u16);

/// The properties of a window that peers must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowSpan {
    /// The identifier.
    pub id: WindowId,
    /// The length in bytes.
    pub len: u64,
    /// The bytes in a granule; 0 if the window has none and puts carry no generation.
    pub granule: u32,
    /// True if puts are written word by word, and only when they are verified, for threads that
    /// read the window at any time. Such a put is no longer than [`MAX_WORDWISE`].
    pub wordwise: bool,
}

wire::newtypes!(WindowId(u16));

wire::layout! { impl WindowSpan: 16 { id: WindowId, wordwise: bool; 1; granule: u32, len: u64 } }

impl WindowSpan {
    /// Returns true if a put of `len` bytes at `offset` lies inside the window, inside one granule
    /// where it has any, and is not too long for it.
    #[must_use]
    #[inline]
    pub fn holds(&self, offset: u64, len: u64) -> bool {
        let Some(end) = offset.checked_add(len) else { return false };
        if end > self.len || self.wordwise && len > MAX_WORDWISE as u64 {
            return false;
        }
        match u64::from(self.granule) {
            0 => true,
            granule => offset < self.len && offset % granule + len <= granule,
        }
    }

    /// Returns true if `len` bytes at `offset` lie inside the window, whatever its granules.
    #[must_use]
    #[inline]
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// Returns true if there is a word at `offset`.
    #[must_use]
    #[inline]
    pub fn has_word(&self, offset: u64) -> bool {
        is_word(offset, WORD as u64) && self.contains(offset, WORD as u64)
    }
}

/// Returns true if `len` bytes at `offset` are one word.
#[inline]
pub(crate) fn is_word(offset: u64, len: u64) -> bool {
    len == WORD as u64 && offset.is_multiple_of(WORD as u64)
}

/// The word at `offset` of a window that was mapped as `memory`, if it has one there.
#[inline]
fn word(span: WindowSpan, memory: &Memory, offset: u64) -> Option<&AtomicU64> {
    // SAFETY: inside the mapping, which lives as long as it is borrowed and begins at a page, so
    // the word is aligned. The owner and its peers change words as atomics; a put or the kernel
    // that writes other bytes over it makes its value arbitrary, which a word in memory of others
    // is anyway.
    span.has_word(offset)
        .then(|| unsafe { AtomicU64::from_ptr(memory.start().as_ptr().add(offset as usize).cast()) })
}

/// The memory of this node that peers write into.
#[derive(Debug)]
pub struct Window {
    span: WindowSpan,
    memory: Memory,
    fd: OwnedFd,
    /// The generation of each granule: odd while a put is expected.
    generations: Box<[AtomicU32]>,
}

impl Window {
    /// Creates a window of `len` bytes of zeroed, populated memory, divided into granules of
    /// `granule` bytes (0: not divided, puts are accepted without a generation).
    ///
    /// # Errors
    /// There is not enough memory, or `len` is not a multiple of `granule`.
    pub fn create(id: WindowId, len: usize, granule: u32) -> Result<Self, SetupError> {
        if granule != 0 && !len.is_multiple_of(granule as usize) {
            return Err(SetupError::Shape {
                what: "window",
                bytes: len as u64,
                why: "its length must be a multiple of its granule",
            });
        }
        let (memory, fd) = Memory::create("window", len)?;
        let granules = len.checked_div(granule as usize).unwrap_or(0);
        let generations = (0..granules).map(|_| AtomicU32::new(0)).collect();
        let span = WindowSpan { id, len: len as u64, granule, wordwise: false };
        Ok(Self { span, memory, fd, generations })
    }

    /// Makes the window wordwise: see [`WindowSpan::wordwise`].
    #[must_use]
    pub fn wordwise(mut self) -> Self {
        self.span.wordwise = true;
        self
    }

    /// The properties to announce to peers.
    #[must_use]
    pub fn span(&self) -> WindowSpan {
        self.span
    }

    /// The memory file, to hand to peers on the same host.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The first byte. The memory lives as long as the window.
    #[must_use]
    #[inline]
    pub fn ptr(&self) -> NonNull<u8> {
        self.memory.start()
    }

    /// The length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns true if the window has no bytes; none is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the generation that the owner chose for `granule`. It is odd while a put is expected,
    /// and different each time, so that a late put is distinguished from the expected one. It is
    /// even while none is expected. Only the owner's one thread for this granule may call this.
    ///
    /// # Panics
    /// There is no such granule.
    pub fn set_generation(&self, granule: usize, generation: u32) {
        self.generations[granule].store(generation, Release);
    }

    /// Returns true if a put of `len` bytes at `offset` with `generation` may be accepted now.
    #[must_use]
    pub fn accepts(&self, offset: u64, len: u64, generation: u32) -> bool {
        if !self.span.holds(offset, len) {
            return false;
        }
        match u64::from(self.span.granule) {
            0 => true,
            granule => {
                let now = self.generations.get((offset / granule) as usize).map(|now| now.load(Acquire));
                generation % 2 == 1 && now == Some(generation)
            }
        }
    }

    /// The word at `offset`; `None` unless that is a multiple of 8 inside the window.
    #[must_use]
    #[inline]
    pub fn word(&self, offset: u64) -> Option<&AtomicU64> {
        word(self.span, &self.memory, offset)
    }

    /// Adds to the word at `offset`, wrapping around; returns the earlier word, `None` if there is
    /// no word.
    #[must_use]
    pub fn fetch_add(&self, offset: u64, add: u64) -> Option<u64> {
        Some(self.word(offset)?.fetch_add(add, SeqCst))
    }

    /// Makes the word at `offset` `new` if it is `expected`; returns the earlier word, `None` if
    /// there is no word.
    #[must_use]
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Option<u64> {
        Some(compare_swap(self.word(offset)?, expected, new))
    }

    /// Copies from the window, for callers that know that no peer writes there now (and for tests).
    ///
    /// # Panics
    /// The range is not inside the window.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset <= self.len() && into.len() <= self.len() - offset, "read past the end of a window");
        // SAFETY: checked above; `into` is ours. Bytes that a peer writes meanwhile are arbitrary,
        // not undefined: they come from another process or the kernel.
        unsafe {
            std::ptr::copy_nonoverlapping(self.ptr().as_ptr().add(offset), into.as_mut_ptr(), into.len());
        }
    }
}

/// A window of a peer on the same host, mapped here.
#[derive(Debug)]
pub struct PeerWindow {
    span: WindowSpan,
    memory: Memory,
}

impl PeerWindow {
    /// Maps a peer's window after its size and seals were verified.
    ///
    /// # Errors
    /// They are not as announced, or a system call fails.
    pub fn map(fd: BorrowedFd<'_>, span: WindowSpan) -> Result<Self, SetupError> {
        stream::prepare();
        Ok(Self { span, memory: Memory::map("window", fd, span.len)? })
    }

    /// The properties that the peer announced.
    #[must_use]
    pub fn span(&self) -> WindowSpan {
        self.span
    }

    /// Executes `access` on this window; returns the earlier word. Returns `None`, with nothing
    /// done, if the access does not lie inside the window or not on a whole word.
    #[inline]
    pub(crate) fn execute(&self, access: Access<'_>) -> Option<u64> {
        let at = |offset| word(self.span, &self.memory, offset);
        match access {
            Access::FetchAdd { offset, add, .. } => Some(at(offset)?.fetch_add(add, SeqCst)),
            Access::CompareSwap { offset, expected, new, .. } => {
                Some(compare_swap(at(offset)?, expected, new))
            }
            Access::Get { offset, into, .. } => {
                if let (Some(word), WORD) = (at(offset), into.len()) {
                    into.copy_from_slice(&word.load(Acquire).to_le_bytes());
                } else if self.span.contains(offset, into.len() as u64) {
                    // SAFETY: inside the span, whose length is that of the mapping; `into` is ours.
                    // Bytes that others write meanwhile are arbitrary, not undefined: they come
                    // from another process.
                    unsafe {
                        let source = self.memory.start().as_ptr().add(offset as usize);
                        std::ptr::copy_nonoverlapping(source, into.as_mut_ptr(), into.len());
                    }
                } else {
                    return None;
                }
                Some(0)
            }
        }
    }

    /// Copies `put.data` to its target, a word in one store, and so each word of a wordwise window.
    /// Returns false, with nothing copied, if the target is not inside the window.
    #[inline]
    pub(crate) fn write(&self, put: &Put<'_>) -> bool {
        if !self.span.holds(put.offset, put.data.len() as u64) {
            return false;
        }
        if let (Some(word), Ok(bytes)) = (word(self.span, &self.memory, put.offset), put.data.try_into()) {
            // Release: a reader that sees this word also sees all earlier puts.
            word.store(u64::from_le_bytes(bytes), Release);
            return true;
        }
        // SAFETY: inside the span, whose length is that of the mapping, and that has whole pages;
        // `data` is ours and cannot overlap memory to which this process has no reference.
        unsafe {
            let target = self.memory.start().as_ptr().add(put.offset as usize);
            if self.span.wordwise {
                words::write(target, put.data);
            } else {
                stream::copy(put.data.as_ptr(), target, put.data.len());
            }
        }
        true
    }
}

fn compare_swap(word: &AtomicU64, expected: u64, new: u64) -> u64 {
    word.compare_exchange(expected, new, SeqCst, SeqCst).unwrap_or_else(|found| found)
}

/// The windows of this node by identifier, for rails that write puts themselves.
#[derive(Debug, Default)]
pub struct Windows {
    by_id: Vec<Option<Arc<Window>>>,
}

impl Windows {
    /// Builds a table of `windows`; of two with one identifier the later stays.
    pub fn new(windows: impl IntoIterator<Item = Arc<Window>>) -> Self {
        let mut table = Self::default();
        for window in windows {
            let index = usize::from(window.span().id.0);
            if table.by_id.len() <= index {
                table.by_id.resize(index + 1, None);
            }
            table.by_id[index] = Some(window);
        }
        table
    }

    /// The window with the identifier `id`.
    #[must_use]
    #[inline]
    pub fn find(&self, id: WindowId) -> Option<&Arc<Window>> {
        self.by_id.get(usize::from(id.0))?.as_ref()
    }

    /// The properties to announce to peers.
    pub fn spans(&self) -> impl Iterator<Item = WindowSpan> {
        self.by_id.iter().flatten().map(|window| window.span())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_is_accepted_once_it_is_expected_and_until_it_is_settled() {
        let window = Window::create(WindowId(3), 4 * 4096, 4096).unwrap();
        assert!(!window.accepts(4096, 4096, 0) && !window.accepts(4096, 4096, 1));
        window.set_generation(1, 7);
        assert!(window.accepts(4096, 4096, 7) && window.accepts(5000, 1, 7));
        assert!(!window.accepts(0, 4096, 7), "another granule");
        window.set_generation(1, 8);
        assert!(!window.accepts(4096, 4096, 7) && !window.accepts(4096, 4096, 8), "none is expected");
        window.set_generation(1, 9);
        assert!(
            window.accepts(4096, 4096, 9) && !window.accepts(4096, 4096, 7),
            "a late put has another generation"
        );
    }

    #[test]
    fn only_what_lies_in_one_granule_is_inside() {
        let divided = WindowSpan { id: WindowId(0), len: 8192, granule: 4096, wordwise: false };
        assert!(divided.holds(0, 4096) && divided.holds(4096, 4096) && divided.holds(8191, 1));
        assert!(!divided.holds(1, 4096) && !divided.holds(8192, 0) && !divided.holds(8191, 2));
        assert!(
            !divided.holds(u64::MAX, 2) && !divided.holds(u64::MAX - 1, 1) && !divided.holds(0, u64::MAX)
        );
        let whole = WindowSpan { granule: 0, ..divided };
        assert!(whole.holds(0, 8192) && whole.holds(8192, 0) && !whole.holds(1, 8192));
        let long = WindowSpan { len: 1 << 20, wordwise: true, ..whole };
        let most = MAX_WORDWISE as u64;
        assert!(long.holds(5, most) && !long.holds(5, most + 1) && long.contains(5, most + 1));
    }

    #[test]
    fn only_a_whole_word_inside_is_one() {
        let window = Window::create(WindowId(0), 4096, 0).unwrap();
        let outside = [1, 4, 4092, 4096, 8192, u64::MAX, u64::MAX - 7];
        for offset in outside {
            assert!(window.word(offset).is_none(), "{offset}");
            assert_eq!((window.fetch_add(offset, 1), window.compare_swap(offset, 0, 1)), (None, None));
        }
        assert_eq!((window.fetch_add(4088, 5), window.fetch_add(4088, u64::MAX)), (Some(0), Some(5)));
        assert_eq!((window.compare_swap(4088, 5, 9), window.compare_swap(4088, 4, 8)), (Some(4), Some(4)));
        let mut bytes = [0; 8];
        window.read(4088, &mut bytes);
        assert_eq!(u64::from_le_bytes(bytes), 8, "reads see what the accesses changed");
    }

    #[test]
    fn windows_are_found_by_name() {
        let window = Arc::new(Window::create(WindowId(2), 4096, 0).unwrap());
        let table = Windows::new([Arc::clone(&window)]);
        assert!(table.find(WindowId(2)).is_some());
        assert!(table.find(WindowId(1)).is_none() && table.find(WindowId(9)).is_none());
        assert_eq!(table.spans().collect::<Vec<_>>(), [window.span()]);
    }

    #[test]
    fn a_window_length_that_is_no_multiple_of_its_granule_is_refused() {
        assert!(matches!(Window::create(WindowId(0), 4097, 4096), Err(SetupError::Shape { .. })));
        assert!(matches!(Window::create(WindowId(0), 0, 4096), Err(SetupError::Shape { .. })));
    }
}
