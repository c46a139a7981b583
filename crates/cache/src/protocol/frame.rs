//! One frame as the shard knows it.
//!
//! What may be combined with what:
//!
//! | usage | mode | phase | request | meaning |
//! |---|---|---|---|---|
//! | Free | N | Closed | - | nothing here |
//! | Cached | N | Closed | S or X | asked for, or the disk is being read (`reading`) |
//! | Cached | S or X | any | - | held |
//! | Cached | S | any | X | held, X asked for; may become N while waiting |
//! | Cached | any | Closed | - | `leave` = Told: given up, the master's answer outstanding; serves orders still |
//! | Private | N | Closed | Cr | a consistent read, asked for; then being read from the disk; then with its session |

use plexus_base::{BlockId, Nanos, NodeId};

use super::{Ask, Mode, lists::List, message::Target};

/// What a frame is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Usage {
    Free,
    /// Holds a block that is looked up, or waits for it.
    Cached,
    /// Holds a consistent copy for one session.
    Private,
}

/// Whether sessions may pin it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Nothing is pinned and nothing can be: the shard's alone.
    Closed,
    /// Nothing more can be pinned; `Idle` will come.
    Closing,
    /// Offered to sessions in this mode, which may be less than is held.
    Open(Mode),
}

/// What the disk is doing with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Disk {
    Quiet,
    Reading {
        seq: u32,
        ask: Ask,
        expect: u64,
    },
    /// A read that was granted in an earlier view: its end is awaited, what it finds is worth nothing.
    Discarding,
    Writing,
}

/// Whether the block is to leave this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leave {
    No,
    /// Decided; to be closed, and written if owed.
    Chosen,
    /// The master was told, its answer is awaited.
    Told,
}

/// A request that the master has not answered yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    pub(super) ask: Ask,
    pub(super) id: u32,
    pub(super) at: Nanos,
}

/// A local session that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Waiter {
    pub(super) ticket: super::Ticket,
    pub(super) block: BlockId,
    pub(super) ask: Ask,
    /// Its number in the order of arrival.
    pub(super) arrival: u64,
}

/// What a holder has to do with its block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// Give it, or a copy, to another node.
    Give { ask: Ask, requester: NodeId, target: Target, seq: u32, owed: bool },
    /// Give the copy up.
    Drop { seq: u32 },
    /// Write it if it is owed: a checkpoint.
    Save,
}

impl Order {
    /// Whether it is part of a conversion: then the master orders nothing more until it is obeyed.
    pub(super) fn converts(&self) -> bool {
        match self {
            Self::Give { ask, .. } => *ask != Ask::Cr,
            Self::Drop { .. } => true,
            Self::Save => false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) block: BlockId,
    pub(super) usage: Usage,
    pub(super) mode: Mode,
    pub(super) phase: Phase,
    pub(super) disk: Disk,
    pub(super) leave: Leave,
    /// This node owes the write-back. While the frame is open in X, its DIRTY mark may say so before the shard knows.
    pub(super) owed: bool,
    /// The disk may be older than this copy.
    pub(super) behind: bool,
    /// The last write failed.
    pub(super) stuck: bool,
    /// Of the block, when the frame was last closed.
    pub(super) version: u64,
    /// Odd while a put is expected.
    pub(super) generation: u32,
    pub(super) asked: Option<Asked>,
    pub(super) orders: List,
    /// The first of the orders has been seen: sessions up to this arrival go before it.
    pub(super) turn: Option<u64>,
    pub(super) waiters: List,
    /// When it was last granted.
    pub(super) granted: u64,
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
        generation: 0,
        asked: None,
        orders: List::EMPTY,
        turn: None,
        waiters: List::EMPTY,
        granted: 0,
    };

    /// Whether the copy here is known to be the latest version of the block. Not after the master was told that it leaves:
    /// the master may have granted the disk's version to another since.
    pub(super) fn is_held(&self) -> bool {
        self.usage == Usage::Cached && self.mode != Mode::N && self.leave != Leave::Told
    }

    /// Whether it is held and nothing is under way that needs it.
    pub(super) fn may_leave(&self) -> bool {
        self.is_held()
            && self.leave == Leave::No
            && self.asked.is_none()
            && self.disk == Disk::Quiet
            && self.orders.is_empty()
    }
}
