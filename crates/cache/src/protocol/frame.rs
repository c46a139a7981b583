//! The state of one frame in the shard.
//!
//! These combinations are possible:
//!
//! | usage | mode | phase | request | meaning |
//! |---|---|---|---|---|
//! | Free | N | Closed | - | nothing here |
//! | Cached | N | Closed | S or X | asked for, or the disk is being read (`reading`) |
//! | Cached | S or X | any | - | held |
//! | Cached | S | any | X | held, X asked for; may become N while waiting |
//! | Cached | any | Closed | - | `leave` = Announced: given up, the master's answer outstanding; serves orders still |
//! | Private | N | Closed | Cr | a consistent read, asked for; then being read from the disk; then with its session |

use plexus_base::{BlockId, Nanos, NodeId};

use super::{Ask, Mode, RedoSpan, lists::List, message::Target};

/// The use of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Usage {
    Free,
    /// The frame holds a block that searches find, or waits for it.
    Cached,
    /// The frame holds a consistent copy for one session.
    Private,
}

/// The access that sessions have to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Phase {
    /// Nothing is pinned and nothing can be: only the shard uses the frame.
    Closed,
    /// Sessions can add no pins; `Idle` will come.
    Closing,
    /// Sessions may pin it in this mode, which may be less than the mode held.
    Open(Mode),
}

/// The disk operation of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Disk {
    Quiet,
    Reading {
        seq: u32,
        ask: Ask,
        expect: u64,
    },
    /// A read granted in an earlier view is under way; its result is dropped.
    Discarding,
    /// The redo of the block must become durable before it leaves.
    Flushing,
    /// A copy of the block is being written, or waits until its redo is durable. Sessions may use
    /// the frame; the block does not leave.
    Writing(BlockCopy),
}

/// The copy of a block that is being written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct BlockCopy {
    pub(super) version: u64,
    /// The oldest record that is needed until the copy is on disk; 0: none.
    pub(super) first: u64,
}

/// The progress of a block that is to leave this node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Leave {
    No,
    /// The shard has decided; the frame is to be closed, and written if owed.
    Chosen,
    /// The master was told; its answer is awaited.
    Announced,
}

/// A request that the master has not answered yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct BlockRequest {
    pub(super) ask: Ask,
    pub(super) id: u32,
    pub(super) at: Nanos,
    /// True if room is reserved for records that come with the block.
    pub(super) takes_redo: bool,
}

/// A local session that waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Waiter {
    pub(super) ticket: super::Ticket,
    pub(super) block: BlockId,
    pub(super) ask: Ask,
    /// True if the session keeps other blocks pinned meanwhile.
    pub(super) has_others: bool,
    /// The number in the order of arrival.
    pub(super) arrival: u64,
}

/// An order to a holder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Order {
    /// Give the block, or a copy, to another node.
    Give { ask: Ask, requester: NodeId, target: Target, seq: u32, owed: bool },
    /// Give the copy up.
    Drop { seq: u32 },
    /// Write the block if it is owed, for a checkpoint.
    Save,
    /// Write the block if it is owed, and tell a node that gave the debt away in this version.
    SaveFor { requester: NodeId, version: u64 },
}

impl Order {
    /// Returns whether a write of the block obeys it.
    pub(super) fn is_save(&self) -> bool {
        matches!(self, Self::Save | Self::SaveFor { .. })
    }

    /// Returns whether it is part of a conversion: then the master orders nothing more until it is
    /// obeyed.
    pub(super) fn converts(&self) -> bool {
        match self {
            Self::Give { ask, .. } => *ask != Ask::Cr,
            Self::Drop { .. } => true,
            Self::Save | Self::SaveFor { .. } => false,
        }
    }
}

#[derive(Clone, Copy, Hash, Debug)]
pub(super) struct Frame {
    pub(super) block: BlockId,
    pub(super) usage: Usage,
    pub(super) mode: Mode,
    pub(super) phase: Phase,
    pub(super) disk: Disk,
    pub(super) leave: Leave,
    /// True if this node owes the write-back. While the frame is open in X, its DIRTY mark may be
    /// set before the shard knows.
    pub(super) owed: bool,
    /// True if the disk may be older than this copy.
    pub(super) behind: bool,
    /// True if the last write failed.
    pub(super) stuck: bool,
    /// The version of the block when the frame was last closed.
    pub(super) version: u64,
    /// The redo records of the block when the frame was last closed.
    pub(super) redo: RedoSpan,
    /// The generation: odd while a put is expected.
    pub(super) generation: u32,
    pub(super) asked: Option<BlockRequest>,
    pub(super) orders: List,
    /// The orders to write the block that the write under way obeys.
    pub(super) saves: List,
    /// Set once the first order has been seen: sessions up to this arrival go before it.
    pub(super) turn: Option<u64>,
    pub(super) waiters: List,
    /// The time of the last grant, or of the last time that the block stayed because it was used.
    pub(super) granted: u64,
    /// True if a session has found the block here since then.
    pub(super) is_used: bool,
    /// True if the block has stayed because it was used, and no younger one has left since.
    pub(super) has_stayed: bool,
    /// The number of the last checkpoint that wanted the block written.
    pub(super) checkpoint: u32,
}

impl Frame {
    pub(super) const FREE: Self = Self {
        block: BlockId(0),
        usage: Usage::Free,
        mode: Mode::N,
        phase: Phase::Closed,
        disk: Disk::Quiet,
        leave: Leave::No,
        owed: false,
        behind: false,
        stuck: false,
        version: 0,
        redo: RedoSpan { first: 0, last: 0, force: 0 },
        generation: 0,
        asked: None,
        orders: List::EMPTY,
        saves: List::EMPTY,
        turn: None,
        waiters: List::EMPTY,
        granted: 0,
        is_used: false,
        has_stayed: false,
        checkpoint: 0,
    };

    /// Returns whether the copy here is known to be the latest version of the block. It is not
    /// after the master was told that it leaves: the master may have granted the disk's version to
    /// another since.
    pub(super) fn is_held(&self) -> bool {
        self.usage == Usage::Cached && self.mode != Mode::N && self.leave != Leave::Announced
    }

    /// Returns whether the block is held and no operation under way needs it.
    pub(super) fn may_leave(&self) -> bool {
        self.is_held()
            && self.leave == Leave::No
            && self.asked.is_none()
            && self.disk == Disk::Quiet
            && self.orders.is_empty()
    }
}
