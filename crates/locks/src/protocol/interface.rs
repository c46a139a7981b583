//! The inputs and outputs of a shard.

use plexus_base::{Epoch, Incarnation, Nanos, NodeId, WorkerId};

use super::{Errand, LockRefusal, Members, Message, Mode, Name, Token, VALUE_LEN, Value};

/// The number of one lock of one client of this node. The driver chooses it and never reuses it in
/// an incarnation of the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockId(pub u64);

/// The owner of a lock: a session, a transaction or a thread. The driver chooses the number, which
/// is the same at every worker of the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner(pub u64);

/// The configuration of a shard, fixed for its whole incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// This node.
    pub me: NodeId,
    /// The incarnation of this node.
    pub incarnation: Incarnation,
    /// This worker.
    pub worker: WorkerId,
    /// The number of workers, the same on every node.
    pub workers: u8,
    /// How long a request waits before it looks for a deadlock. The wait doubles before each
    /// further search.
    pub deadlock_ns: u64,
    /// The most requests that wait for one resource; further ones are refused.
    pub waiting_max: usize,
    /// The most locks that clients of this node have or wait for at this worker; further ones are
    /// refused.
    pub locks_max: usize,
}

/// The limit on how long a request waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitLimit {
    /// The request does not wait: it is granted at once or refused.
    Try,
    /// The request waits until this time.
    Until(Nanos),
    /// The request waits until it is granted, cancelled, or a deadlock victim.
    Forever,
}

impl WaitLimit {
    /// Returns the limit of `limit_ns` nanoseconds from `now`, or no limit for `None`. It calls
    /// `now` only if a time is needed.
    #[must_use]
    pub fn of(limit_ns: Option<u64>, now: impl FnOnce() -> Nanos) -> Self {
        match limit_ns {
            None => Self::Forever,
            Some(0) => Self::Try,
            Some(limit) => Self::Until(Nanos(now().0.saturating_add(limit))),
        }
    }
}

/// A client's request for a new lock or a conversion. It is answered once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// The lock. For a new lock this is its number from now on.
    pub lock: LockId,
    /// The mode wanted.
    pub mode: Mode,
    /// How long the request may wait.
    pub timeout: WaitLimit,
    /// New lock or conversion.
    pub kind: RequestKind,
}

/// The kind of a request: a new lock or a conversion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RequestKind {
    /// A new lock.
    New(NewLock),
    /// A conversion of a lock that the client has. Until the answer the client may use what both
    /// modes allow ([`Mode::common`]).
    Conversion {
        /// The bytes to write into the value block; only from PW or EX to a lower mode.
        value: Option<[u8; VALUE_LEN]>,
    },
}

/// The resource and the owner of a new lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewLock {
    /// The owner. The deadlock search assumes that an owner releases nothing while it waits.
    pub owner: Owner,
    /// The start time of the owner's work. The request with the greatest number is the deadlock
    /// victim, so an owner that retries should keep its number. The clocks of the nodes need to
    /// agree only roughly.
    pub start_time: u64,
    /// The resource.
    pub name: Name,
    /// True if the client wants a notice when others wait for the lock.
    pub notify: bool,
}

/// An input of a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A client requests a lock or a conversion.
    Request(LockRequest),
    /// A client releases a lock that it has or waits for. A waiting request is answered as
    /// cancelled. Otherwise there is no answer, except when a value comes with it that may not be
    /// written: then that is refused, and the lock stays.
    Unlock {
        /// The lock.
        lock: LockId,
        /// The bytes to write into the value block; only from PW or EX, as far as the client may
        /// use that now.
        value: Option<[u8; VALUE_LEN]>,
    },
    /// A client no longer waits for a lock or a conversion. The request is still answered, and may
    /// have been granted first.
    Cancel {
        /// The lock.
        lock: LockId,
    },
    /// A client is dead. Its locks are released, and the value blocks that it could have written
    /// count as lost. It could not write with locks that it only waited for, even if they are
    /// granted before the master knows of its death.
    ClientGone {
        /// All locks that the client has or waits for.
        locks: Vec<LockId>,
    },
    /// A message from another node.
    Message {
        /// The sender.
        from: NodeId,
        /// The incarnation of the sender.
        incarnation: Incarnation,
        /// The message.
        message: Message,
    },
    /// An errand from another worker of this node.
    Errand(Errand),
    /// The next view. Nodes that are not in it can use no lock any more: they are dead or fenced,
    /// or their lease is over.
    View(Members),
    /// The time of [`Shard::next_tick`](super::Shard::next_tick) has come.
    Tick,
}

/// An output of a shard, which the driver carries out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a message to the same worker of another node.
    Send {
        /// The receiver.
        to: NodeId,
        /// The message.
        message: Message,
    },
    /// Send an errand to another worker of this node.
    Tell {
        /// The receiving worker.
        worker: WorkerId,
        /// The errand.
        errand: Errand,
    },
    /// A request or conversion is granted.
    Granted {
        /// The lock.
        lock: LockId,
        /// The mode that is held.
        mode: Mode,
        /// The fencing token.
        token: Token,
        /// The value block.
        value: Value,
    },
    /// A request or conversion is refused. After a refused conversion the lock stays as it was.
    Refused {
        /// The lock.
        lock: LockId,
        /// The reason.
        why: LockRefusal,
    },
    /// Others wait for a lock that is held. The notice comes once for each grant and may be out of
    /// date.
    Blocking {
        /// The lock.
        lock: LockId,
        /// The mode that the first of them wants.
        wanted: Mode,
    },
    /// This master knows all locks of its resources and is open.
    Open {
        /// The view.
        epoch: Epoch,
    },
    /// A member sent a message that no correct member sends; it was dropped.
    Fault {
        /// The sender.
        from: NodeId,
        /// The description of the fault.
        what: &'static str,
    },
}
