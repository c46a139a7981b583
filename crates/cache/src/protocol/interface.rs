//! The interface between the shard and its driver: events in, actions out, and the frames in
//! between.
//!
//! Each item states which side guarantees what. This module makes no decisions; see
//! [`super::Shard`].

use plexus_base::{BlockId, Epoch, NodeId, WorkerId};

use super::Message;

/// A frame of this worker: an index from 0 to `sets * ways`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u32);

impl Slot {
    /// Returns the slot as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The driver's name of a waiting session. The shard only hands it back, once for each
/// [`Event::Want`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// The mode in which a node holds a block. Ordered: a greater mode suffices for every use of a
/// smaller one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Mode {
    /// Not held.
    #[default]
    N = 0,
    /// Shared: the copy may be read, and any number of nodes may have one.
    S = 1,
    /// Exclusive: the copy may be changed, and no other node has one.
    X = 2,
}

/// The access that a session or a node asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Ask {
    /// A copy to read, kept here until another node wants the block or the room is needed.
    S = 1,
    /// The one copy that may be changed.
    X = 2,
    /// A consistent read: a copy as it was at some moment since the request, for one read; no node
    /// becomes a holder.
    Cr = 3,
    /// The one copy, whose contents are not needed: the session makes a new page of it. To other
    /// nodes this is [`Ask::X`].
    New = 4,
}

impl Ask {
    /// Returns the mode that satisfies this request where the block is held already.
    #[must_use]
    pub fn mode(self) -> Mode {
        match self {
            Self::S | Self::Cr => Mode::S,
            Self::X | Self::New => Mode::X,
        }
    }
}

/// The parameters of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// The number of this node.
    pub me: NodeId,
    /// The most nodes that the cluster can have.
    pub nodes: u8,
    /// The worker whose blocks these are.
    pub worker: WorkerId,
    /// The number of workers of every node.
    pub workers: u8,
    /// The number of blocks of the disk group; messages about blocks beyond are refused.
    pub blocks: u64,
    /// The number of sets of frames; a block may be in one of them only.
    pub sets: u32,
    /// The frames in a set, 2 to 64.
    pub ways: u32,
    /// True if changes are logged in redo streams. If not, what a node has not written to disk is
    /// gone with it, and a block that no other node holds is as the disk has it.
    pub redo: bool,
    /// The most bytes of records that travel with a block because they are not durable; 0: none do.
    pub carry_bytes: u32,
}

impl Config {
    /// Returns the number of frames of this worker.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.sets * self.ways
    }

    /// Returns the set that `block` may be in; its slots are `set * ways ..` (as many as there are
    /// ways).
    #[must_use]
    pub fn set(&self, block: BlockId) -> u32 {
        ((block.hash() >> 32) % u64::from(self.sets)) as u32
    }
}

/// An event that the driver passes to the shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A session waits for `block`. The driver sends this only if the frame could not be pinned
    /// without the shard. The shard answers with exactly one [`Action::Wake`] with this ticket,
    /// possibly at once.
    Want {
        /// The session.
        ticket: Ticket,
        /// The block that it waits for.
        block: BlockId,
        /// The way it wants the block.
        ask: Ask,
        /// True if the session keeps other blocks pinned until it has this one. Then it does not
        /// wait for a frame that only an answer of another node can free
        /// ([`BlockError::NoFrame`]): that node may wait for the pinned blocks.
        has_others: bool,
    },
    /// A message from another node. One that came behind a put is delivered after the data.
    Message {
        /// The sender.
        from: NodeId,
        /// The message.
        message: Message,
    },
    /// The last pin of a frame went after [`ShardDriver::close`] had answered `None`. There is
    /// exactly one event for each such answer.
    Idle {
        /// The frame.
        slot: Slot,
        /// The state of the block in it.
        contents: Contents,
    },
    /// An [`Action::ReadDisk`] is finished.
    Read {
        /// The frame.
        slot: Slot,
        /// The version of the block that is now in the frame, or the reason why there is none.
        result: Result<u64, BlockError>,
    },
    /// An [`Action::WriteDisk`] is finished, durably if `ok`. The frame may have changed since.
    Wrote {
        /// The frame.
        slot: Slot,
        /// True if the copy is on the disk now.
        ok: bool,
    },
    /// The session is finished with the private frame that [`Granted::Private`] gave it.
    Freed {
        /// The frame.
        slot: Slot,
    },
    /// Write every owed block with a record below this position of the redo stream, the oldest
    /// first, and have the blocks written that this node gave away with such records. Answered by
    /// [`Action::CheckpointDone`] after this node's own writes.
    Checkpoint {
        /// The position.
        below: u64,
    },
    /// A block of an [`Action::Replay`] is done.
    Replayed {
        /// The view of the action.
        epoch: Epoch,
        /// The block.
        block: BlockId,
        /// The version that the disk has now, durably; `None` if the redo is incomplete or damaged.
        version: Option<u64>,
    },
    /// The scan of an [`Action::Recover`] fails for now. Blocks that no member holds are refused
    /// until [`super::Shard::scanned`].
    ScanFailed {
        /// The view of the action.
        epoch: Epoch,
    },
    /// The redo stream of this node is durable up to a position.
    Durable {
        /// The position behind everything durable.
        end: u64,
    },
    /// Nothing that [`Action::Replay`] began in an earlier view is under way any more.
    Drained {
        /// The view of the [`Action::Recover`] that this answers.
        epoch: Epoch,
    },
    /// Write every owed block and give all blocks up; answered by [`Action::HandedBack`]. Later
    /// sessions are turned away, those that wait are served first. The shard stays the master of
    /// its blocks.
    HandBack,
    /// This node is about to leave and has handed everything back; answered by
    /// [`Action::MayLeave`]. From now on this node grants nothing.
    Leave,
}

/// The shard's access to its driver: actions, blocks that are sent, and the frames of this worker.
///
/// Each frame has an atomic word with mode, pins, writer latch and the marks CLOSING, NOTIFY and
/// DIRTY. Sessions change the word too, in a *local hit*: the mode suffices, the frame is not
/// closing and the latch is free.
///
/// The shard calls these methods from [`super::Shard::handle`]; they may not call back.
pub trait ShardDriver {
    /// Queues an action, to be done in the order pushed after [`super::Shard::handle`] has
    /// returned.
    fn push(&mut self, action: Action);

    /// Puts the block in `slot` into the frame `dest` of `to` (never `me`), followed by the message
    /// with the records that [`carry`](Self::carry) has gathered, on the lane for blocks. The bytes
    /// must be sent or copied *before this returns*: the shard may then let sessions change the
    /// frame, or have another block put into it.
    fn ship(&mut self, to: NodeId, slot: Slot, dest: Slot, generation: u32, message: Message);

    /// Offers `block` in `mode` (S or X) to local sessions: sets the mode and clears CLOSING,
    /// NOTIFY and DIRTY, which the shard has noted. Called only while nothing is pinned.
    fn open(&mut self, slot: Slot, block: BlockId, mode: Mode);

    /// Pins the frame for a waiting session: a read pin for S, the writer latch for X. Returns
    /// false if another session excludes this. Called only while the frame is open.
    fn pin(&mut self, slot: Slot, ticket: Ticket, mode: Mode) -> bool;

    /// Returns true if a session has found the block in the frame since the last call, or since the
    /// frame was opened.
    fn take_use(&mut self, slot: Slot) -> bool;

    /// Refuses new pins (CLOSING). Returns `None` if something is pinned: then NOTIFY is set, and
    /// [`Event::Idle`] follows when the last pin goes. Called only while the frame is open.
    fn close(&mut self, slot: Slot) -> Option<Contents>;

    /// Empties the frame. Called only while nothing is pinned.
    fn forget(&mut self, slot: Slot);

    /// Appends the records that came with the block to this node's redo stream, except those that
    /// lead to a version up to `known`. Returns where they are.
    fn append(&mut self, slot: Slot, block: BlockId, known: u64) -> RedoSpan;

    /// Notes that a block has come into the frame, whether this node owes its write-back from now
    /// on, and its records in this node's stream.
    fn arrived(&mut self, slot: Slot, owed: bool, redo: RedoSpan);

    /// Gathers the records of the block that are not durable, to travel with it. Returns false if
    /// they are longer than [`Config::carry_bytes`].
    fn carry(&mut self, block: BlockId) -> bool;

    /// Reserves room in the redo stream for records that come with a block. Returns false if there
    /// is none.
    fn reserve(&mut self) -> bool;

    /// Gives back a reservation, after the records have come or when they will not come.
    fn release(&mut self);

    /// Copies the block for a write to disk *before this returns*: sessions may change the frame
    /// from then on. A change of the block begins with an image, as if the disk had the copy.
    /// Returns the position of the oldest record until now (0: there is none). Called only while
    /// the frame is closed and idle, and once until [`Event::Wrote`].
    fn copy(&mut self, slot: Slot) -> u64;

    /// Notes that the copy could not be written. The block needs its records from `first` on (0:
    /// from the oldest since the copy). Returns the records that it has now.
    fn write_failed(&mut self, slot: Slot, first: u64) -> RedoSpan;

    /// Appends an image of the block to the redo stream. Called only while no session changes it.
    fn log_image(&mut self, slot: Slot, block: BlockId) -> RedoSpan;

    /// Returns the position up to which the redo stream is durable.
    fn durable(&self) -> u64;

    /// Returns the frame with the oldest redo record of those that are wanted, and its position.
    /// Only frames that need a write have one. Where changes are not logged all positions are the
    /// same, and a debt that arrives has one; else its records are in streams of other nodes, which
    /// ask for the write.
    fn oldest_owed(&self, is_wanted: impl Fn(Slot) -> bool) -> Option<(Slot, u64)>;

    /// Makes the closed frame an empty page of the block, which the disk has in `version` (0: any).
    /// The session to which it is given next makes a new page of it.
    fn blank(&mut self, slot: Slot, block: BlockId, version: u64);

    /// Sets the frame's generation: odd while a put from another node is expected. A put with
    /// another generation must be refused.
    fn expect(&mut self, slot: Slot, generation: u32);
}

/// An action that the shard asks of the driver; actions are done in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a message on the lane for small frames. The receiver is never this node: the shard
    /// handles those messages inside.
    Send {
        /// The receiver; not `me`.
        to: NodeId,
        /// The message.
        message: Message,
    },
    /// Send a message on the lane for blocks, behind all blocks shipped to the node before.
    SendBehind {
        /// The receiver; not `me`.
        to: NodeId,
        /// The message.
        message: Message,
    },
    /// Read `block` into the frame; answered by [`Event::Read`]. A version other than `expect` is
    /// [`BlockError::Stale`].
    ReadDisk {
        /// The frame, which nothing pins.
        slot: Slot,
        /// The block.
        block: BlockId,
        /// The version that must be found; 0: any.
        expect: u64,
    },
    /// Write the [copy](ShardDriver::copy) of a frame to `block`, durably; answered by
    /// [`Event::Wrote`].
    WriteDisk {
        /// The frame.
        slot: Slot,
        /// The block.
        block: BlockId,
    },
    /// Make the redo stream durable up to a position; answered by [`Event::Durable`].
    Flush {
        /// The position.
        end: u64,
    },
    /// A view begins. End every replay of earlier views and answer with [`Event::Drained`]. Then
    /// scan the redo streams of nodes that are not members and answer with
    /// [`super::Shard::scanned`].
    Recover {
        /// The view.
        epoch: Epoch,
    },
    /// Replay the blocks of [`super::Shard::in_doubt`] and write them to disk; each is answered by
    /// [`Event::Replayed`].
    Replay {
        /// The view.
        epoch: Epoch,
    },
    /// No record of the streams scanned in this view is needed any more, as far as this worker's
    /// blocks are concerned.
    CloseStreams {
        /// The view.
        epoch: Epoch,
    },
    /// A write failed. The block stays here and is still owed.
    WriteFailed {
        /// The block.
        block: BlockId,
    },
    /// The session's wait is over.
    Wake {
        /// The session.
        ticket: Ticket,
        /// The frame that it got, or the error.
        result: Result<Granted, BlockError>,
    },
    /// The checkpoint is over; `failed` blocks could not be written and are still owed.
    CheckpointDone {
        /// Blocks whose write failed.
        failed: u32,
    },
    /// This node holds nothing any more, except `kept` blocks whose write failed. Another
    /// [`Event::HandBack`] tries them again.
    HandedBack {
        /// Blocks still held and owed.
        kept: u32,
    },
    /// The blocks mastered here are known and granted again.
    Open {
        /// The view in which they are.
        epoch: Epoch,
    },
    /// This node may leave: a view without it loses nothing unless another node dies too.
    MayLeave,
    /// A peer violated the protocol; the message was dropped. One of the two nodes should not go
    /// on: their directories no longer agree.
    Fault {
        /// The sender.
        from: NodeId,
        /// The violation.
        what: &'static str,
    },
}

/// The frame that a woken session got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granted {
    /// The frame, pinned on behalf of the session by [`ShardDriver::pin`].
    Pinned(Slot),
    /// A private frame with a consistent copy, which no other session uses. [`Event::Freed`]
    /// follows after the read.
    Private(Slot),
}

/// The reason why a session did not get a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockError {
    /// This node is handing everything back.
    HandingBack,
    /// The disk reported an error when the block was read.
    Unreadable,
    /// The page on disk is damaged: wrong checksum, number or shape.
    Corrupt,
    /// The page on disk is sound but not of the version that was written last.
    Stale,
    /// There is no room in memory because a block that has to leave could not be written.
    WriteFailed,
    /// The session has other blocks, and every frame that this one could have waits for another
    /// node.
    NoFrame,
    /// The asked node does not master this block: the nodes do not agree on the configuration.
    NotMaster,
    /// The block's redo is incomplete or damaged, or cannot be read.
    Unrecovered,
}

/// The state of the block in an idle frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Contents {
    /// True if the block was changed since the last [`ShardDriver::open`].
    pub dirty: bool,
    /// The version in the page.
    pub version: u64,
    /// The redo records of the block.
    pub redo: RedoSpan,
}

/// The records of a block in this node's redo stream since its write-back is owed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RedoSpan {
    /// A position at or below the oldest record; 0: there is none.
    pub first: u64,
    /// The end of the newest record.
    pub last: u64,
    /// The end of the newest record that may not travel with the block: an image, or a change that
    /// is in a group with changes of other blocks.
    pub force: u64,
}

impl RedoSpan {
    /// Returns whether the records of a change may not travel with its block: there is an image
    /// among them, or their group has several blocks, which must not be separated.
    #[must_use]
    pub fn is_forced(has_image: bool, blocks: usize) -> bool {
        has_image || blocks > 1
    }
}
