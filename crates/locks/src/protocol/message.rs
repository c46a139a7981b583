//! The messages between shards of different nodes. The layout on the wire is in `wire.rs`.

use plexus_base::{Epoch, NodeId, WorkerId};

use super::{LockId, LockRefusal, Mode, Name, PartitionSlots, Token, VALUE_LEN, Value};

/// The most hops of a deadlock search. A longer circle is not found and ends by the timeouts of its
/// members.
pub const MAX_HOPS: usize = 128;

/// The most locks in one [`LockMessage::Chase`]. A master that names more sends several messages.
pub const MAX_CHASED: usize = 1024;

/// The direction of a message, each with credits of its own. All messages of one kind from one node
/// to another arrive once each and in order, as long as both live.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// To a master.
    Request,
    /// From a master.
    Reply,
}

/// A message of a shard with its epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The sender's view.
    pub epoch: Epoch,
    /// The content of the message.
    pub body: LockMessage,
}

/// The content of a message. `seq` counts the requests of one lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockMessage {
    /// To the master: a request for a new lock or a conversion.
    Request(MasterRequest),
    /// To the master: a lock is released, together with any waiting request for it. Not answered.
    Unlock(Unlock),
    /// To the master: refuse this request for this reason if it still waits.
    Cancel(Cancel),
    /// To the master: a search for the locks that the last waiter of the path waits for.
    Probe(Name, Box<Probe>),
    /// To a new master: the locks that this node holds.
    Records(Vec<Record>),
    /// To a new master, from the one before: value blocks.
    Values(Vec<Handover>),
    /// To a master: all locks and requests of earlier views have been sent before this message.
    Done,
    /// To the holder: the request is granted.
    Granted(Granted),
    /// To the holder: the request is refused.
    Refused(Refused),
    /// To the holder: another request waits for its lock.
    Blocking(Blocking),
    /// To the holders: the last waiter of the path waits for these locks of yours.
    Chase(Vec<Chased>, Box<Probe>),
    /// To every member: the sender masters these partitions and does not know their locks.
    Ask(PartitionSlots),
}

/// A client's request, as its node sends it to the master of the resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MasterRequest {
    /// The lock.
    pub lock: LockId,
    /// The number of the request among those of the lock.
    pub seq: u32,
    /// The resource.
    pub name: Name,
    /// The mode wanted.
    pub mode: Mode,
    /// True if the request must be granted at once or refused.
    pub attempt: bool,
    /// True if the request was sent in an earlier view, perhaps to another master.
    pub again: bool,
    /// How long the request has waited.
    pub waited_ns: u64,
    /// New lock or conversion.
    pub kind: MasterRequestKind,
}

/// The part of a master request that differs between new locks and conversions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MasterRequestKind {
    /// A new lock.
    New {
        /// True if the client wants a notice when others wait for the lock.
        notify: bool,
    },
    /// Another mode of a lock that is held.
    Conversion {
        /// The bytes to write into the value block.
        value: Option<[u8; VALUE_LEN]>,
    },
}

/// The content of [`LockMessage::Unlock`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unlock {
    /// The lock.
    pub lock: LockId,
    /// The resource this lock is on.
    pub name: Name,
    /// True if the client is dead, and the value that it could have written is lost.
    pub died: bool,
    /// The bytes to write into the value block.
    pub value: Option<[u8; VALUE_LEN]>,
}

/// The content of [`LockMessage::Cancel`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cancel {
    /// The lock.
    pub lock: LockId,
    /// The number of the request.
    pub seq: u32,
    /// The resource this lock is on.
    pub name: Name,
    /// The reason to give: timed out, cancelled or deadlock.
    pub why: LockRefusal,
}

/// A held lock, as its holder knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The lock.
    pub lock: LockId,
    /// The number of the request that was granted last.
    pub seq: u32,
    /// The resource this lock is on.
    pub name: Name,
    /// The mode that is held.
    pub mode: Mode,
    /// True if the client wants a notice when others wait for the lock.
    pub notify: bool,
    /// The fencing token of the grant.
    pub token: Token,
    /// The value block as it came with the grant.
    pub value: Value,
}

/// The value block of a resource that has another master now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handover {
    /// The resource of the value block.
    pub name: Name,
    /// The value block.
    pub value: Value,
    /// True if a node held PW or EX and may have written since.
    pub writer: bool,
}

/// The content of [`LockMessage::Granted`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granted {
    /// The lock.
    pub lock: LockId,
    /// The number of the request.
    pub seq: u32,
    /// The mode that is granted.
    pub mode: Mode,
    /// The fencing token of the grant.
    pub token: Token,
    /// The value block.
    pub value: Value,
}

/// The content of [`LockMessage::Refused`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The lock.
    pub lock: LockId,
    /// The number of the request.
    pub seq: u32,
    /// The reason.
    pub why: LockRefusal,
}

/// The content of [`LockMessage::Blocking`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocking {
    /// The lock.
    pub lock: LockId,
    /// The number of the request that was granted last.
    pub seq: u32,
    /// The mode that the first waiting request wants.
    pub wanted: Mode,
}

/// One of the locks that a waiter waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chased {
    /// The lock.
    pub lock: LockId,
    /// The number of the request that was granted last, or of the one that waits.
    pub seq: u32,
    /// True if the lock waits as well, further ahead in the queue.
    pub queued: bool,
}

/// A search, on its way, for a circle of requests that wait for each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The request that looks whether it waits for itself.
    pub origin: Origin,
    /// The edges of the path so far, the origin first. The last waiter's blocker is not known yet,
    /// unless the circle is closed.
    pub path: Vec<Hop>,
    /// `Some` if the circle is closed and its hops up to this one are being confirmed.
    pub confirming: Option<u16>,
}

/// The request that began a search, and the number of the search.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Origin {
    /// The start time of its owner's work. It is the first field, because in this order the
    /// youngest is the greatest.
    pub start_time: u64,
    /// The node.
    pub node: NodeId,
    /// The worker.
    pub worker: WorkerId,
    /// The lock.
    pub lock: LockId,
    /// The number of the request of the lock.
    pub seq: u32,
    /// The number of the search among those of the request, from 1.
    pub round: u32,
}

/// A waiter, and one lock that it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// The node whose client waits.
    pub node: NodeId,
    /// The worker of the resource.
    pub worker: WorkerId,
    /// The lock of the waiter.
    pub lock: LockId,
    /// The number of the waiter's request.
    pub seq: u32,
    /// The lock that it waits for, of a client of the next hop's node, or of the origin's.
    pub blocker: Chased,
}

impl LockMessage {
    /// Returns the resource of a message to its master.
    #[must_use]
    pub fn resource(&self) -> Option<&Name> {
        match self {
            Self::Request(MasterRequest { name, .. })
            | Self::Unlock(Unlock { name, .. })
            | Self::Cancel(Cancel { name, .. })
            | Self::Probe(name, _) => Some(name),
            _ => None,
        }
    }

    /// Returns the lock of a message from a master to its home.
    #[must_use]
    pub fn about(&self) -> Option<LockId> {
        match self {
            Self::Granted(Granted { lock, .. })
            | Self::Refused(Refused { lock, .. })
            | Self::Blocking(Blocking { lock, .. }) => Some(*lock),
            _ => None,
        }
    }
}

impl Message {
    /// Returns the direction of the message.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.body {
            LockMessage::Request(_)
            | LockMessage::Unlock(_)
            | LockMessage::Cancel(_)
            | LockMessage::Probe(..)
            | LockMessage::Records(_)
            | LockMessage::Values(_)
            | LockMessage::Done => Kind::Request,
            LockMessage::Granted(_)
            | LockMessage::Refused(_)
            | LockMessage::Blocking(_)
            | LockMessage::Chase(..)
            | LockMessage::Ask(_) => Kind::Reply,
        }
    }
}
