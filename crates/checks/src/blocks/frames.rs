//! The frames of one simulated worker: the frame table of the cache with plain fields instead of
//! atomics.
//!
//! Assertions check the shard's side of the contract, and the network's: a put lands only where it
//! is expected.

use plexus_base::{BlockId, NodeId};
use plexus_cache::protocol::{Action, Config, Contents, Message, Mode, RedoSpan, ShardDriver, Slot, Ticket};

use super::{
    page::Page,
    streams::{Carried, SimStream},
};
use crate::transport::Put;

/// A new page in a frame, until it is logged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Blank {
    /// The content is that of the block.
    No,
    /// There is no content: the disk was not read, and the session that gets the block makes a
    /// page.
    Unmade,
    /// A session has made the page.
    Made,
}

/// A frame with its state.
#[derive(Clone, Copy, Hash, Debug)]
pub struct Frame {
    /// The block that sessions find here.
    pub block: BlockId,
    /// The mode of the block here.
    pub mode: Mode,
    /// True if new sessions are kept out.
    pub closing: bool,
    /// True if the shard must be told when the last pin goes.
    pub notify: bool,
    /// True if the block was changed since it was opened.
    pub dirty: bool,
    /// The number of read pins.
    pub readers: u32,
    /// True while a writer has the latch.
    pub writer: bool,
    /// True if a session has found the block here, and another may need its frame.
    pub used: bool,
    /// The generation; odd while a put is expected.
    pub generation: u32,
    /// The content.
    pub page: Page,
    /// Whether the content is a new page that is not logged yet.
    pub blank: Blank,
    /// The copy that is to be written to disk.
    pub copy: Option<Page>,
    /// True if the write-back is owed: a change needs no image.
    pub owes: bool,
    /// The records in this node's redo stream since then.
    pub redo: RedoSpan,
    /// The records that came with the put that is expected.
    pub came: Carried,
}

impl Frame {
    /// Returns true if a session has a pin.
    pub fn pinned(&self) -> bool {
        self.writer || self.readers > 0
    }

    /// Returns the mode in which sessions use the frame or may begin to.
    pub fn usable(&self) -> Mode {
        if self.closing && !self.pinned() { Mode::N } else { self.mode }
    }
}

/// All frames of a worker.
#[derive(Clone, Hash)]
pub struct SimFrames {
    /// The frames, by slot.
    pub frames: Vec<Frame>,
    config: Config,
}

impl SimFrames {
    /// Creates empty frames.
    pub fn new(config: Config) -> Self {
        let nothing = Page { block: BlockId(u64::MAX), version: 0, value: 0, torn: false };
        let frame = Frame {
            block: nothing.block,
            mode: Mode::N,
            closing: true,
            notify: false,
            dirty: false,
            readers: 0,
            writer: false,
            used: false,
            generation: 0,
            page: nothing,
            blank: Blank::No,
            copy: None,
            owes: false,
            redo: RedoSpan::default(),
            came: Carried::default(),
        };
        Self { frames: vec![frame; config.slots() as usize], config }
    }

    /// Pins the block for a session, if that is possible without the shard.
    pub fn hit(&mut self, block: BlockId, mode: Mode) -> Option<Slot> {
        let first = self.config.set(block) * self.config.ways;
        let slot = (first..first + self.config.ways).map(Slot).find(|slot| {
            let frame = &self.frames[slot.index()];
            frame.block == block && frame.mode >= mode && !frame.closing
        })?;
        // Where only one block exists the mark decides nothing, and would double the states.
        self.frames[slot.index()].used |= self.config.blocks > 1;
        self.take(slot, mode).then_some(slot)
    }

    fn take(&mut self, slot: Slot, mode: Mode) -> bool {
        let frame = &mut self.frames[slot.index()];
        assert!(frame.mode >= mode && mode != Mode::N, "pinned beyond the mode of the frame");
        if frame.writer || mode == Mode::X && frame.readers > 0 {
            return false;
        }
        match mode {
            Mode::X => frame.writer = true,
            _ => frame.readers += 1,
        }
        true
    }

    /// Releases a pin; returns the contents that the shard must be told, if any.
    pub fn unpin(&mut self, slot: Slot, mode: Mode) -> Option<Contents> {
        let frame = &mut self.frames[slot.index()];
        match mode {
            Mode::X => {
                assert!(std::mem::take(&mut frame.writer), "a latch that no session holds");
            }
            _ => frame.readers -= 1,
        }
        (!frame.pinned() && std::mem::take(&mut frame.notify)).then(|| frame.contents())
    }

    /// Writes a put that arrives; returns true if it was expected.
    pub fn land(&mut self, Put { slot, generation, page, carried }: Put) -> bool {
        let frame = &mut self.frames[slot.index()];
        if frame.generation != generation || generation.is_multiple_of(2) {
            return false;
        }
        assert!(!frame.pinned() && frame.closing, "a put into a frame in use");
        (frame.page, frame.came) = (page, carried);
        true
    }
}

impl Frame {
    fn contents(&self) -> Contents {
        Contents { dirty: self.dirty, version: self.page.version, redo: self.redo }
    }

    /// Returns the contents for the shard, which knows them from now on.
    pub(crate) fn hand_over(&mut self) -> Contents {
        let contents = self.contents();
        self.dirty = false;
        contents
    }
}

/// An action of a shard, in its order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Done {
    Action(Action),
    /// The bytes are those at the time of shipping; `in_use`: a session could change them then.
    Ship {
        to: NodeId,
        message: Message,
        put: Put,
        in_use: bool,
    },
}

/// The frames as a shard accesses them, and its actions.
pub(crate) struct Out<'a> {
    pub(crate) frames: &'a mut SimFrames,
    pub(crate) done: &'a mut Vec<Done>,
    pub(crate) stream: &'a mut SimStream,
    /// The records for the next block that is shipped.
    pub(crate) carried: Carried,
}

impl Out<'_> {
    fn frame(&mut self, slot: Slot) -> &mut Frame {
        &mut self.frames.frames[slot.index()]
    }
}

impl ShardDriver for Out<'_> {
    fn push(&mut self, action: Action) {
        self.done.push(Done::Action(action));
    }

    fn ship(&mut self, to: NodeId, slot: Slot, dest: Slot, generation: u32, message: Message) {
        let frame = *self.frame(slot);
        let in_use = frame.writer || frame.mode == Mode::X && !frame.closing;
        let carried = std::mem::take(&mut self.carried);
        let put = Put { slot: dest, generation, page: frame.page, carried };
        self.done.push(Done::Ship { to, message, put, in_use });
    }

    fn open(&mut self, slot: Slot, block: BlockId, mode: Mode) {
        let frame = self.frame(slot);
        assert!(!frame.pinned(), "{block} opened while pinned");
        assert!(mode != Mode::N && frame.page.block == block, "{block} opened without its content");
        assert!(mode != Mode::X || frame.generation.is_multiple_of(2), "{block} in X with a put expected");
        (frame.block, frame.mode) = (block, mode);
        (frame.closing, frame.notify, frame.dirty, frame.used) = (false, false, false, false);
    }

    fn take_use(&mut self, slot: Slot) -> bool {
        std::mem::take(&mut self.frame(slot).used)
    }

    fn pin(&mut self, slot: Slot, _ticket: Ticket, mode: Mode) -> bool {
        assert!(!self.frame(slot).closing, "pinned while closed");
        self.frames.take(slot, mode)
    }

    fn close(&mut self, slot: Slot) -> Option<Contents> {
        let frame = self.frame(slot);
        assert!(!frame.closing, "closed twice");
        frame.closing = true;
        frame.notify = frame.pinned();
        (!frame.notify).then(|| frame.hand_over())
    }

    fn forget(&mut self, slot: Slot) {
        let frame = self.frame(slot);
        assert!(!frame.pinned(), "dropped while pinned");
        (frame.owes, frame.redo) = (false, RedoSpan::default());
        (frame.mode, frame.closing, frame.dirty, frame.blank) = (Mode::N, true, false, Blank::No);
    }

    fn append(&mut self, slot: Slot, block: BlockId, known: u64) -> RedoSpan {
        let frame = &mut self.frames.frames[slot.index()];
        assert!(frame.page.block == block, "another block has come");
        self.stream.append_carried(frame.came, known)
    }

    fn arrived(&mut self, slot: Slot, owed: bool, redo: RedoSpan) {
        let frame = self.frame(slot);
        (frame.owes, frame.redo) = (owed, redo);
    }

    fn carry(&mut self, block: BlockId) -> bool {
        let carried = self.stream.carry(block, self.frames.config.carry_bytes);
        self.carried = carried.unwrap_or_default();
        carried.is_some()
    }

    fn reserve(&mut self) -> bool {
        self.stream.reserve()
    }

    fn release(&mut self) {
        self.stream.release();
    }

    fn copy(&mut self, slot: Slot) -> u64 {
        let frame = self.frame(slot);
        assert!(!frame.pinned() && frame.closing && !frame.page.torn, "copied for the disk while in use");
        assert_eq!(frame.copy.replace(frame.page), None, "two writes of one frame");
        frame.owes = false;
        std::mem::take(&mut frame.redo.first)
    }

    fn write_failed(&mut self, slot: Slot, first: u64) -> RedoSpan {
        let frame = self.frame(slot);
        frame.owes = true;
        frame.redo.first = if first == 0 { frame.redo.first } else { first };
        frame.redo
    }

    fn log_image(&mut self, slot: Slot, block: BlockId) -> RedoSpan {
        let frame = &mut self.frames.frames[slot.index()];
        assert!(frame.page.block == block && !frame.writer, "an image of a block in use");
        self.stream.begin_group(1);
        self.stream.log(&mut frame.redo, block, Some(frame.page), None);
        frame.owes = true;
        frame.redo
    }

    fn blank(&mut self, slot: Slot, block: BlockId, version: u64) {
        let frame = self.frame(slot);
        assert!(!frame.pinned() && frame.closing, "{block} blanked in use");
        frame.page = Page { block, version, value: 0, torn: false };
        frame.blank = Blank::Unmade;
    }

    fn durable(&self) -> u64 {
        self.stream.durable()
    }

    fn oldest_owed(&self, is_wanted: impl Fn(Slot) -> bool) -> Option<(Slot, u64)> {
        let is_logged = self.frames.config.redo;
        let first = |frame: &Frame| match is_logged {
            true => frame.redo.first,
            false => u64::from(frame.owes),
        };
        let owed = (0..).map(Slot).zip(self.frames.frames.iter().map(first));
        owed.filter(|(slot, first)| *first > 0 && is_wanted(*slot)).min_by_key(|(_, first)| *first)
    }

    fn expect(&mut self, slot: Slot, generation: u32) {
        let frame = self.frame(slot);
        (frame.generation, frame.came) = (generation, Carried::default());
    }
}
