//! The frame table of one worker: the memory of its blocks, and a word for each frame that sessions
//! and the worker change without a lock.
//!
//! # The word
//!
//! ```text
//! bit  0..2   mode (N 0, S 1, X 2)
//! bit  2      CLOSING: newcomers are kept out
//! bit  3      NOTIFY: the session that removes the last pin notifies the worker
//! bit  4      DIRTY: changed since the frame was opened
//! bit  5      LATCH: one session changes the block
//! bit  6      USED: a session has found the block here
//! bit  8..24  pins: sessions that read the block
//! bit 32..64  the block's number
//! ```
//!
//! The *worker* (one thread at a time) sets the mode, the block and CLOSING. It does so only while
//! nothing is pinned, except for CLOSING and NOTIFY. It sets those at any time, with one
//! compare-exchange that also sees the pins, and clears USED. *Sessions* add and remove pins and
//! the latch, set USED with them, and DIRTY when they release the latch. A session pins with one
//! compare-exchange of the whole word. So the block, the mode and the absence of CLOSING and LATCH
//! are those of the moment of the pin.
//!
//! A packed list of block numbers beside the words is only a hint where to look.
//!
//! # Access to the memory
//!
//! | state | allowed access |
//! |---|---|
//! | pinned, not latched | sessions read; the worker reads (ships a copy) |
//! | latched | the one session |
//! | closed and idle (or never opened) | the worker; one disk read or one peer's put that the worker asked for |
//!
//! A peer's put is valid only where [`FrameTable::expect`] announced it, which the worker does for
//! closed frames alone. A peer on the same host is trusted to keep to that, as it belongs to the
//! same user; a TCP put is checked by generation.
//!
//! The instruction that removes the last pin also clears NOTIFY, so the worker is told exactly
//! once.
#![allow(unsafe_code, reason = "frames are mapped memory, shared between sessions, workers and peers")]

use std::{
    ptr::NonNull,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
        },
    },
};

use plexus_base::BlockId;
use plexus_disks::{FrameMemory, Page, Version};
use plexus_fabric::Window;

use crate::{
    owed::{OWED_BYTES, OwedList},
    protocol::{Config, Contents, HANDED_OVER_BYTES, Mode, RedoSpan, Slot},
};

const MODE: u64 = 0b11;
const CLOSING: u64 = 1 << 2;
const NOTIFY: u64 = 1 << 3;
const DIRTY: u64 = 1 << 4;
const LATCH: u64 = 1 << 5;
const USED: u64 = 1 << 6;
const PIN: u64 = 1 << 8;
const PINS: u64 = 0xffff << 8;

const BLOCK: u32 = 32;

/// The most blocks of a group, so that a number fits into a frame's word: 64 TiB of 16 KiB blocks.
pub const MAX_BLOCKS: u64 = 1 << 32;

/// A frame's word on a cache line of its own, so that sessions on neighbouring frames do not
/// contend.
#[repr(align(64))]
#[derive(Default)]
struct Word(AtomicU64);

/// The value of [`Records::first`] of a block that is owed without a record in this node's stream.
const OWED: u64 = u64::MAX;

/// The value of [`Records::first`] of a block that is owed where changes are not logged.
const UNLOGGED: u64 = 1;

/// The number of times that a block was given to this process to be changed.
static GRANTS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of times that a block was given to this process to be changed. Each block has
/// the number that its grant made: see [`BlockChange::granted`](crate::BlockChange::granted).
#[must_use]
pub fn grants() -> u64 {
    GRANTS.load(SeqCst)
}

/// The redo records of a frame's block, which the session with the latch or the worker changes. The
/// worker does so in a closed frame; after a failed write also while sessions use it.
#[derive(Default)]
struct Records {
    /// A position at or below the oldest record; 0: the write-back is not owed; [`OWED`].
    first: AtomicU64,
    /// The end of the newest record.
    last: AtomicU64,
    /// The end of the newest record that may not travel with the block.
    force: AtomicU64,
}

/// The memory for the redo of a block that is owed or was given away with its debt.
pub const REDO_BYTES_PER_BLOCK: usize = size_of::<Records>() + OWED_BYTES + HANDED_OVER_BYTES;

// A million dirty blocks need less than 100 MiB.
const _: () = assert!(REDO_BYTES_PER_BLOCK * 1_000_000 < 100 << 20);

/// Returns whether the oldest record has a position.
fn has_record(first: u64) -> bool {
    !matches!(first, 0 | OWED)
}

/// The frames of one worker: their words, hints and memory.
pub(crate) struct FrameTable {
    config: Config,
    block_size: usize,
    window: Arc<Window>,
    words: Box<[Word]>,
    hints: Box<[AtomicU32]>,
    records: Box<[Records]>,
    /// The number of the grant of each block that is held to be changed.
    granted: Box<[AtomicU64]>,
    /// The frames with a position in [`Records::first`], which changes only under this lock.
    owed: Mutex<OwedList>,
}

impl FrameTable {
    /// Makes the frames of one worker in `window`, whose granule is the block size.
    pub(crate) fn new(config: Config, window: Arc<Window>) -> Self {
        let block_size = window.span().granule as usize;
        assert!(
            window.len() >= config.slots() as usize * block_size,
            "the window is smaller than its frames"
        );
        let slots = config.slots() as usize;
        Self {
            config,
            block_size,
            window,
            words: (0..slots).map(|_| Word::default()).collect(),
            hints: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            records: (0..slots).map(|_| Records::default()).collect(),
            granted: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            owed: Mutex::new(OwedList::new(slots)),
        }
    }

    /// Returns the number of frames that hold a block in any mode.
    pub(crate) fn occupied(&self) -> usize {
        self.words.iter().filter(|word| word.0.load(Relaxed) & MODE != 0).count()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn block_size(&self) -> usize {
        self.block_size
    }

    /// Returns the number of the grant of a block that is latched.
    pub(crate) fn granted(&self, slot: Slot) -> u64 {
        self.granted[slot.index()].load(Relaxed)
    }

    /// Returns the offset of a frame in the window.
    pub(crate) fn offset(&self, slot: Slot) -> u64 {
        (slot.index() * self.block_size) as u64
    }

    fn word(&self, slot: Slot) -> &AtomicU64 {
        &self.words[slot.index()].0
    }

    /// Pins the frame of `block` for a session (or latches it, for X), if the block is here, free
    /// and in a sufficient mode.
    #[inline]
    pub(crate) fn hit(&self, block: BlockId, mode: Mode) -> Option<Slot> {
        self.find(block, mode, USED)
    }

    /// As [`hit`](Self::hit), for a session that will not need the block again soon.
    pub(crate) fn hit_once(&self, block: BlockId) -> Option<Slot> {
        self.find(block, Mode::S, 0)
    }

    #[inline]
    fn find(&self, block: BlockId, mode: Mode, use_mark: u64) -> Option<Slot> {
        let first = self.config.set(block) * self.config.ways;
        for slot in first..first + self.config.ways {
            let word = self.word(Slot(slot));
            // An empty frame has the number of block 0.
            if self.hints[slot as usize].load(Relaxed) == block.0 as u32
                && word.load(Relaxed) >> BLOCK == block.0
                && word.load(Relaxed) & MODE != 0
            {
                return self.take(Slot(slot), block, mode, use_mark).then_some(Slot(slot));
            }
        }
        None
    }

    /// Returns whether the block is here in a sufficient mode.
    pub(crate) fn is_here(&self, block: BlockId, mode: Mode) -> bool {
        let first = self.config.set(block) * self.config.ways;
        let is_it = |word: u64| word >> BLOCK == block.0 && word & MODE >= (mode as u64).max(1);
        (first..first + self.config.ways).any(|slot| is_it(self.word(Slot(slot)).load(Relaxed)))
    }

    #[inline]
    fn take(&self, slot: Slot, block: BlockId, mode: Mode, use_mark: u64) -> bool {
        let word = self.word(slot);
        let mut now = word.load(Relaxed);
        loop {
            if now >> BLOCK != block.0 || now & MODE < mode as u64 || now & (CLOSING | LATCH) != 0 {
                return false;
            }
            let next = match mode {
                Mode::X if now & PINS != 0 => return false,
                Mode::X => now | LATCH,
                _ if now & PINS == PINS => return false,
                _ => now + PIN,
            };
            match word.compare_exchange_weak(now, next | use_mark, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(changed) => now = changed,
            }
        }
    }

    /// Removes a pin. Returns true if the worker must be told that the frame is idle.
    #[inline]
    #[must_use]
    pub(crate) fn unpin(&self, slot: Slot) -> bool {
        self.let_go(slot, |word| word - PIN)
    }

    /// Releases the latch; `dirty`: the block was changed. Returns true if the worker must be told
    /// that the frame is idle.
    #[inline]
    #[must_use]
    pub(crate) fn unlatch(&self, slot: Slot, dirty: bool) -> bool {
        self.let_go(slot, |word| word & !LATCH | if dirty { DIRTY } else { 0 })
    }

    #[inline]
    fn let_go(&self, slot: Slot, without: impl Fn(u64) -> u64) -> bool {
        let word = self.word(slot);
        let mut now = word.load(Relaxed);
        loop {
            let mut next = without(now);
            let tell = next & NOTIFY != 0 && next & (PINS | LATCH) == 0;
            if tell {
                next &= !NOTIFY;
            }
            match word.compare_exchange_weak(now, next, AcqRel, Relaxed) {
                Ok(_) => return tell,
                Err(changed) => now = changed,
            }
        }
    }

    /// Returns true if no session has the frame or can get it: it is closed or empty, and nothing
    /// is pinned.
    pub(crate) fn is_idle(&self, slot: Slot) -> bool {
        let word = self.word(slot).load(Relaxed);
        word & (PINS | LATCH) == 0 && (word & CLOSING != 0 || word & MODE == 0)
    }

    /// Returns true if a session may change the block now.
    pub(crate) fn may_change(&self, slot: Slot) -> bool {
        let word = self.word(slot).load(Relaxed);
        word & LATCH != 0 || word & CLOSING == 0 && word & MODE == Mode::X as u64
    }

    fn start(&self, slot: Slot) -> NonNull<u8> {
        assert!(slot.index() < self.words.len(), "a frame that does not exist");
        // SAFETY: the window has room for all slots (checked when the table was made).
        unsafe { self.window.ptr().add(slot.index() * self.block_size) }
    }

    /// Returns the block in a frame, to read.
    ///
    /// # Safety
    /// For as long as the slice lives, the caller has the frame pinned or latched. Or the caller is
    /// the worker, and the frame is closed and idle, or pinned by readers only.
    pub(crate) unsafe fn block(&self, slot: Slot) -> &[u8] {
        // SAFETY: inside the window, which lives as long as the table; no thread writes there, says
        // the caller.
        unsafe { std::slice::from_raw_parts(self.start(slot).as_ptr(), self.block_size) }
    }

    /// Returns the block in a frame, to change.
    ///
    /// # Safety
    /// For as long as the slice lives, the caller holds the latch, or is the worker and the frame
    /// is closed and idle; and there is no other slice of it.
    #[allow(clippy::mut_from_ref, reason = "the latch is the borrow")]
    pub(crate) unsafe fn block_mut(&self, slot: Slot) -> &mut [u8] {
        // SAFETY: inside the window, which lives as long as the table; no other code touches it,
        // says the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start(slot).as_ptr(), self.block_size) }
    }

    /// Returns the memory of a frame for a disk read.
    ///
    /// # Safety
    /// The caller is the worker, the frame is closed and idle, and stays so until the read is
    /// complete.
    pub(crate) unsafe fn for_io(&self, slot: Slot) -> FrameMemory {
        debug_assert!(self.is_idle(slot), "{slot:?} read into while in use");
        // SAFETY: mapped for the life of the table, which outlives the I/O pool; and ours alone,
        // says the caller.
        unsafe { FrameMemory::new(self.start(slot), self.block_size) }
    }

    /// Returns the version of the block in an idle, closed frame, and whether it was changed. For
    /// the worker.
    pub(crate) fn contents(&self, slot: Slot) -> Contents {
        let dirty = self.word(slot).load(Acquire) & DIRTY != 0;
        // SAFETY: the frame is closed and idle, and this is the worker.
        let version = Page::of(unsafe { self.block(slot) }).version();
        Contents { dirty, version: version.0, redo: self.redo(slot) }
    }

    /// Returns whether a change of the block must begin with an image. For the session with the
    /// latch.
    pub(crate) fn needs_image(&self, slot: Slot) -> bool {
        self.records[slot.index()].first.load(Relaxed) == 0
    }

    /// Notes a position at or below the next record, before it is appended: a checkpoint that is
    /// taken meanwhile must not pass it. For the session with the latch, or the worker.
    pub(crate) fn will_log(&self, slot: Slot, position: u64) {
        if !has_record(self.first(slot.0)) {
            // The worker may return an older position after a failed write.
            self.update_first(slot, |now| if has_record(now) { now } else { position });
        }
    }

    /// Notes a change where changes are not logged. As [`will_log`](Self::will_log).
    pub(crate) fn will_write(&self, slot: Slot) {
        self.will_log(slot, UNLOGGED);
    }

    fn first(&self, slot: u32) -> u64 {
        self.records[slot as usize].first.load(Acquire)
    }

    /// Changes the position of the oldest record, 0 or [`OWED`]. Returns the one before.
    fn update_first(&self, slot: Slot, next: impl FnOnce(u64) -> u64) -> u64 {
        let mut owed = self.owed();
        let before = self.first(slot.0);
        let next = next(before);
        if has_record(before) {
            owed.remove(slot.0);
        }
        self.records[slot.index()].first.store(next, Release);
        if has_record(next) {
            owed.insert(slot.0, |slot| self.first(slot));
        }
        before
    }

    fn owed(&self) -> MutexGuard<'_, OwedList> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the end of a record, and whether it may not travel with the block. As
    /// [`will_log`](Self::will_log).
    pub(crate) fn logged(&self, slot: Slot, end: u64, is_forced: bool) {
        let Records { last, force, .. } = &self.records[slot.index()];
        last.store(end, Release);
        if is_forced {
            force.store(end, Release);
        }
    }

    /// Returns the records of the block.
    pub(crate) fn redo(&self, slot: Slot) -> RedoSpan {
        if !self.config.redo {
            return RedoSpan::default();
        }
        let Records { first, last, force } = &self.records[slot.index()];
        let (first, last, force) = (first.load(Acquire), last.load(Acquire), force.load(Acquire));
        RedoSpan { first: if first == OWED { 0 } else { first }, last, force }
    }

    /// Returns the position of the oldest record that a frame needs.
    pub(crate) fn oldest_record(&self) -> Option<u64> {
        self.oldest_owed(|_| true).map(|(_, first)| first)
    }

    /// Returns the frame with the oldest record of those that are wanted, and the position.
    pub(crate) fn oldest_owed(&self, is_wanted: impl Fn(Slot) -> bool) -> Option<(Slot, u64)> {
        let slot = self.owed().iter().find(|slot| is_wanted(Slot(*slot)))?;
        Some((Slot(slot), self.first(slot)))
    }
}

/// The part of [`ShardDriver`](crate::protocol::ShardDriver) that concerns frames.
impl FrameTable {
    pub(crate) fn open(&self, slot: Slot, block: BlockId, mode: Mode) {
        debug_assert!(block.0 < MAX_BLOCKS);
        let word = self.word(slot);
        debug_assert_eq!(word.load(Relaxed) & (PINS | LATCH), 0, "{slot:?} opened while in use");
        self.hints[slot.index()].store(block.0 as u32, Relaxed);
        if mode == Mode::X {
            self.granted[slot.index()].store(GRANTS.fetch_add(1, SeqCst) + 1, Relaxed);
        }
        word.store(block.0 << BLOCK | mode as u64, Release);
    }

    pub(crate) fn pin(&self, slot: Slot, mode: Mode) -> bool {
        let word = self.word(slot).load(Relaxed);
        debug_assert!(word & CLOSING == 0 && word & MODE >= mode as u64, "{slot:?} pinned beyond its mode");
        self.take(slot, BlockId(word >> BLOCK), mode, 0)
    }

    /// Returns true if a session has found the block here since the last call.
    pub(crate) fn take_use(&self, slot: Slot) -> bool {
        self.word(slot).fetch_and(!USED, Relaxed) & USED != 0
    }

    pub(crate) fn close(&self, slot: Slot) -> Option<Contents> {
        let word = self.word(slot);
        let mut now = word.load(Relaxed);
        debug_assert!(now & CLOSING == 0 && now & MODE != 0, "{slot:?} closed twice");
        loop {
            let idle = now & (PINS | LATCH) == 0;
            let next = now | CLOSING | if idle { 0 } else { NOTIFY };
            match word.compare_exchange_weak(now, next, AcqRel, Relaxed) {
                Ok(_) => return idle.then(|| self.contents(slot)),
                Err(changed) => now = changed,
            }
        }
    }

    pub(crate) fn forget(&self, slot: Slot) {
        let word = self.word(slot);
        debug_assert_eq!(word.load(Relaxed) & (PINS | LATCH), 0, "{slot:?} forgotten while in use");
        word.store(0, Release);
        self.arrived(slot, false, RedoSpan::default());
    }

    pub(crate) fn arrived(&self, slot: Slot, owed: bool, redo: RedoSpan) {
        let oldest = match redo.first {
            0 if self.config.redo => OWED,
            0 => UNLOGGED,
            first => first,
        };
        let first = if owed { oldest } else { 0 };
        // A block that comes and goes unchanged needs no lock.
        if has_record(first) || has_record(self.first(slot.0)) {
            self.update_first(slot, |_| first);
        } else {
            self.records[slot.index()].first.store(first, Release);
        }
        let Records { last, force, .. } = &self.records[slot.index()];
        last.store(redo.last, Release);
        force.store(redo.force, Release);
    }

    /// Returns whether the block in a frame that the caller has latched has contents.
    pub(crate) fn has_contents(&self, slot: Slot) -> bool {
        // SAFETY: only the caller can change it while it is latched.
        Page::of(unsafe { self.block(slot) }).has_contents()
    }

    /// Copies the block in a closed, idle frame, for a write: from now on a change begins with an
    /// image. Returns the position of the oldest record until now, 0 if there is none.
    pub(crate) fn copy(&self, slot: Slot, into: &mut [u8]) -> u64 {
        debug_assert!(self.is_idle(slot), "{slot:?} copied while in use");
        // SAFETY: the frame is closed and idle, and this is the worker.
        into.copy_from_slice(unsafe { self.block(slot) });
        let first = self.update_first(slot, |_| 0);
        if has_record(first) { first } else { 0 }
    }

    /// Returns the oldest record, which the block still needs, after a failed write. Sessions may
    /// use the frame.
    pub(crate) fn write_failed(&self, slot: Slot, first: u64) {
        let before = if first == 0 { OWED } else { first };
        self.update_first(slot, |now| if now == 0 { before } else { now.min(before) });
    }

    /// Makes a closed, idle frame a page of which only the version is known.
    pub(crate) fn blank(&self, slot: Slot, version: u64) {
        // SAFETY: the frame is closed and idle, and this is the worker.
        Page::of(unsafe { self.block_mut(slot) }).forget(Version(version));
    }

    pub(crate) fn expect(&self, slot: Slot, generation: u32) {
        self.window.set_generation(slot.index(), generation);
    }
}

#[cfg(test)]
impl FrameTable {
    /// Makes the frames of one worker in a window of their own, with blocks of 4 KiB.
    pub(crate) fn of_test(config: Config) -> Self {
        let id = plexus_fabric::WindowId(0);
        let window = Window::create(id, config.slots() as usize * 4096, 4096).expect("a window");
        Self::new(config, Arc::new(window))
    }
}

#[cfg(test)]
mod tests {
    use plexus_base::{NodeId, WorkerId};

    use super::*;

    fn table() -> FrameTable {
        let config = Config {
            me: NodeId(0),
            nodes: 2,
            worker: WorkerId(0),
            workers: 1,
            blocks: 1000,
            sets: 1,
            ways: 8,
            redo: false,
            carry_bytes: 0,
        };
        FrameTable::of_test(config)
    }

    #[test]
    fn a_frame_is_found_only_in_a_mode_that_suffices() {
        let table = table();
        let (block, other) = (BlockId(5), BlockId(6));
        assert_eq!(table.hit(block, Mode::S), None);
        table.open(Slot(3), block, Mode::S);
        assert_eq!(table.hit(block, Mode::S), Some(Slot(3)));
        assert_eq!(table.hit(block, Mode::X), None, "held to read only");
        assert_eq!(table.hit(other, Mode::S), None);
        assert!(!table.unpin(Slot(3)), "no close asked for it");
        table.open(Slot(3), other, Mode::X);
        assert_eq!(table.hit(block, Mode::S), None, "another block lives there now");
        assert_eq!(table.hit(other, Mode::X), Some(Slot(3)));
        assert_eq!(table.hit(other, Mode::X), None, "one session changes a block");
        assert_eq!(table.hit(other, Mode::S), None);
        assert!(!table.unlatch(Slot(3), true));
        assert!(table.close(Slot(3)).unwrap().dirty);
    }

    #[test]
    fn the_last_pin_tells_the_worker_once() {
        let table = table();
        let block = BlockId(5);
        table.open(Slot(0), block, Mode::S);
        table.hit(block, Mode::S).unwrap();
        table.hit(block, Mode::S).unwrap();
        assert_eq!(table.close(Slot(0)), None);
        assert_eq!(table.hit(block, Mode::S), None, "closing");
        assert!(!table.unpin(Slot(0)));
        assert!(table.unpin(Slot(0)), "the last one");
        assert_eq!(table.contents(Slot(0)), Contents::default());
    }

    /// Sessions change a counter under the latch while a worker closes and opens the frame. No
    /// change is lost, and every close that found the frame busy is answered once.
    #[test]
    fn latches_exclude_and_closes_are_answered() {
        let table = Arc::new(table());
        let block = BlockId(9);
        table.open(Slot(1), block, Mode::X);
        let (idle, told) = std::sync::mpsc::channel();
        let sessions: Vec<_> = (0..3)
            .map(|_| {
                let (table, idle) = (table.clone(), idle.clone());
                std::thread::spawn(move || {
                    let mut changes = 0u64;
                    while changes < 20_000 {
                        let Some(slot) = table.hit(block, Mode::X) else {
                            std::thread::yield_now();
                            continue;
                        };
                        // SAFETY: latched.
                        let bytes = unsafe { table.block_mut(slot) };
                        let count = u64::from_le_bytes(bytes[64..72].try_into().unwrap()) + 1;
                        bytes[64..72].copy_from_slice(&count.to_le_bytes());
                        changes += 1;
                        if table.unlatch(slot, true) {
                            idle.send(slot).unwrap();
                        }
                    }
                })
            })
            .collect();
        let mut closed = 0;
        while sessions.iter().any(|session| !session.is_finished()) {
            if table.close(Slot(1)).is_none() {
                assert_eq!(told.recv().unwrap(), Slot(1));
                closed += 1;
            }
            table.open(Slot(1), block, Mode::X);
            std::thread::yield_now();
        }
        sessions.into_iter().for_each(|session| session.join().unwrap());
        assert!(told.try_recv().is_err(), "told more often than asked ({closed})");
        // SAFETY: all sessions have ended.
        let bytes = unsafe { table.block(Slot(1)) };
        assert_eq!(u64::from_le_bytes(bytes[64..72].try_into().unwrap()), 60_000);
    }
}
