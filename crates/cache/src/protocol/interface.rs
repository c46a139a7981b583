//! The words between the shard and its driver: events in, actions out, and the frames in between.
//!
//! What is guaranteed by whom stands at each item. Nothing here decides anything; see [`super::Shard`].

use plexus_base::{BlockId, Epoch, NodeId, WorkerId};

use super::Message;

/// A frame of this worker: an index from 0 to `sets * ways`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u32);

impl Slot {
    /// The slot as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A waiting session, as the driver names it. The shard only hands it back, once for each [`Event::Want`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// What a node holds a block in. Ordered: a greater mode suffices for whatever a smaller one does.
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

/// What a session or a node asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Ask {
    /// A copy to read, kept here until somebody else or the room is wanted.
    S = 1,
    /// The one copy that may be changed.
    X = 2,
    /// A consistent read: a copy as it was at some moment since the request, for one read, held by nobody.
    Cr = 3,
}

impl Ask {
    /// The mode that satisfies this where the block is held already.
    #[must_use]
    pub fn mode(self) -> Mode {
        match self {
            Self::S | Self::Cr => Mode::S,
            Self::X => Mode::X,
        }
    }
}

/// What a shard is created with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// This node.
    pub me: NodeId,
    /// Nodes that the cluster can have.
    pub nodes: u8,
    /// The worker whose blocks these are.
    pub worker: WorkerId,
    /// Workers of every node.
    pub workers: u8,
    /// Blocks of the disk group: nobody can speak of one beyond.
    pub blocks: u64,
    /// Sets of frames; a block may live in one of them only.
    pub sets: u32,
    /// Frames in a set, 2 to 64.
    pub ways: u32,
}

impl Config {
    /// Frames of this worker.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.sets * self.ways
    }

    /// The set that `block` may live in; its slots are `set * ways ..` (as many as there are ways).
    #[must_use]
    pub fn set(&self, block: BlockId) -> u32 {
        ((block.hash() >> 32) % u64::from(self.sets)) as u32
    }
}

/// What the driver tells the shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A session waits for `block`. Sent only when the frame could not be pinned without the shard. Answered by exactly
    /// one [`Action::Wake`] with this ticket, possibly at once.
    Want {
        /// The session.
        ticket: Ticket,
        /// What it waits for.
        block: BlockId,
        /// In which way.
        ask: Ask,
    },
    /// A message from another node. One that came behind a put is delivered after the data.
    Message {
        /// The sender.
        from: NodeId,
        /// What it sent.
        message: Message,
    },
    /// The last pin of a frame went after [`Frames::close`] had answered `None`. Exactly one for each such answer.
    Idle {
        /// The frame.
        slot: Slot,
        /// What it holds.
        contents: Contents,
    },
    /// [`Action::ReadDisk`] is finished: the version found, or why there is none.
    Read {
        /// The frame.
        slot: Slot,
        /// The version of the block that is now in the frame.
        result: Result<u64, BlockError>,
    },
    /// [`Action::WriteDisk`] is finished, durably if `ok`.
    Wrote {
        /// The frame.
        slot: Slot,
        /// Whether the block is on the disk now.
        ok: bool,
    },
    /// The session is finished with the private frame that [`Granted::Private`] gave it.
    Freed {
        /// The frame.
        slot: Slot,
    },
    /// Write everything owed; answered by [`Action::CheckpointDone`].
    Checkpoint,
    /// Write everything owed and give everything up; answered by [`Action::HandedBack`]. Sessions that come later are
    /// turned away, those that wait are served first. The shard stays the master of its blocks.
    HandBack,
    /// [`Action::RecordLost`] is done, durably.
    LostRecorded {
        /// Of the action.
        seq: u64,
    },
    /// This node, which has handed everything back, is about to leave: answered by [`Action::MayLeave`]. Nothing is
    /// granted here any more.
    Leave,
}

/// Where the shard's actions go.
pub trait Outlet {
    /// Something to be done after [`super::Shard::handle`] has returned, in the order pushed.
    fn push(&mut self, action: Action);

    /// Puts the block in `slot` into the frame `dest` of `to` (never `me`), followed by the message, on the lane for blocks. *At once*: the bytes
    /// must have been taken (sent, or copied aside) before this returns, because the shard may then let sessions change the frame,
    /// or have another block put into it.
    fn ship(&mut self, to: NodeId, slot: Slot, dest: Slot, generation: u32, message: Message);
}

/// What the shard tells the driver to do, to be done in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a message, on the lane for small frames. Never to oneself: the shard does that inside.
    Send {
        /// The receiver; not `me`.
        to: NodeId,
        /// The message.
        message: Message,
    },
    /// Send a message on the lane for blocks, behind all that were shipped to the node before.
    SendBehind {
        /// The receiver; not `me`.
        to: NodeId,
        /// The message.
        message: Message,
    },
    /// Read `block` into the frame; answered by [`Event::Read`]. A version other than `expect` is [`BlockError::Stale`].
    ReadDisk {
        /// The frame, pinned by nobody.
        slot: Slot,
        /// The block.
        block: BlockId,
        /// The version that must be found; 0: any.
        expect: u64,
    },
    /// Write the frame to `block`, durably; answered by [`Event::Wrote`]. Nothing changes the frame meanwhile.
    WriteDisk {
        /// The frame.
        slot: Slot,
        /// The block.
        block: BlockId,
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
        /// What it got, or why nothing.
        result: Result<Granted, BlockError>,
    },
    /// The checkpoint is over; `failed` blocks could not be written and are still owed.
    CheckpointDone {
        /// Blocks whose write failed.
        failed: u32,
    },
    /// Nothing is held any more, except `kept` blocks whose write failed. [`Event::HandBack`] again tries them again.
    HandedBack {
        /// Blocks still held and owed.
        kept: u32,
    },
    /// What is lost has changed. Put [`super::Shard::lost`], as it is now, on record; answered by [`Event::LostRecorded`].
    RecordLost {
        /// To be named in the answer. An answer is good for all that came before.
        seq: u64,
    },
    /// What is mastered here is known and granted again.
    Open {
        /// In this view.
        epoch: Epoch,
    },
    /// This node may leave: nothing is lost by a view without it unless somebody dies too.
    MayLeave,
    /// A peer sent what no correct peer sends; the message was dropped. One of the two should not go on: its directory and
    /// the peer's no longer agree.
    Fault {
        /// The sender.
        from: NodeId,
        /// What was wrong.
        what: &'static str,
    },
}

/// What a woken session got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granted {
    /// The frame, pinned on behalf of the session by [`Frames::pin`].
    Pinned(Slot),
    /// A private frame with a consistent copy; nobody else knows it. [`Event::Freed`] when read.
    Private(Slot),
}

/// Why a session did not get a block.
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
    /// The node that was asked does not master this block: the nodes do not agree on the configuration.
    NotMaster,
    /// The block's latest version may have gone down with a node.
    Lost,
}

/// What an idle frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Contents {
    /// Changed since the last [`Frames::open`].
    pub dirty: bool,
    /// The version in the page.
    pub version: u64,
}

/// The frames of this worker as the shard sees them: for each an atomic word with mode, pins, writer latch and the marks CLOSING,
/// NOTIFY and DIRTY, which sessions change too (a *local hit*: the mode suffices, not closing, latch free).
///
/// Called synchronously from [`super::Shard::handle`]; may not call back.
pub trait Frames {
    /// Offers `block` in `mode` (S or X) to local sessions: sets the mode, clears CLOSING, NOTIFY and DIRTY (the shard has taken note).
    /// Called only while nothing is pinned.
    fn open(&mut self, slot: Slot, block: BlockId, mode: Mode);

    /// Pins the frame on behalf of a waiting session: a read pin for S, the writer latch for X. `false`: others hold it in a way
    /// that excludes this. Called only while the frame is open.
    fn pin(&mut self, slot: Slot, ticket: Ticket, mode: Mode) -> bool;

    /// Keeps newcomers out (CLOSING). `None` when something is pinned: then NOTIFY is set and [`Event::Idle`] follows when the last pin goes.
    /// Called only while the frame is open.
    fn close(&mut self, slot: Slot) -> Option<Contents>;

    /// The frame holds nothing any more. Called only while nothing is pinned.
    fn forget(&mut self, slot: Slot);

    /// The frame's generation is now this: odd while a put from another node is expected. A put with another generation must be refused.
    fn expect(&mut self, slot: Slot, generation: u32);
}
