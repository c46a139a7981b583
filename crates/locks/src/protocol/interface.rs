//! What goes into a shard and what comes out of it.

use plexus_base::{Epoch, Incarnation, Nanos, NodeId, WorkerId};

use super::{Errand, LockRefusal, Members, Message, Mode, Name, Token, VALUE_LEN, Value};

/// One lock of one client of this node: chosen by the driver, never used again in the incarnation of the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockId(pub u64);

/// Who a lock belongs to: a session, a transaction, a thread. Chosen by the driver; the same at every worker of the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner(pub u64);

/// What a shard is, for its whole incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// This node.
    pub me: NodeId,
    /// This incarnation of it.
    pub incarnation: Incarnation,
    /// This worker.
    pub worker: WorkerId,
    /// Workers of every node.
    pub workers: u8,
    /// How long a request waits before it looks for a deadlock; it looks again after twice as long, and so on.
    pub deadlock_ns: u64,
    /// Most requests that wait for one resource; further ones are refused.
    pub waiting_max: usize,
    /// Most locks that clients of this node have at this worker, those waited for included; further ones are refused.
    pub locks_max: usize,
}

/// How long a request waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitLimit {
    /// Not at all: granted at once or refused.
    Try,
    /// Until this time.
    Until(Nanos),
    /// Until it is granted, cancelled, or the victim of a deadlock.
    Forever,
}

impl WaitLimit {
    /// That of who waits so many nanoseconds from `now` on, or as long as it takes. Only who waits for a time is to be told what time it is.
    #[must_use]
    pub fn of(limit_ns: Option<u64>, now: impl FnOnce() -> Nanos) -> Self {
        match limit_ns {
            None => Self::Forever,
            Some(0) => Self::Try,
            Some(limit) => Self::Until(Nanos(now().0.saturating_add(limit))),
        }
    }
}

/// A request for a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// Its number from now on.
    pub lock: LockId,
    /// Who has it. What waits is taken to release nothing until it is answered: that is what a deadlock is.
    pub owner: Owner,
    /// The age of the owner's work: of a deadlock's members the one with the greatest number is the victim, so who begins
    /// again after that should keep its number. Any clock will do that is nearly the same on all nodes.
    pub start_time: u64,
    /// Of what.
    pub name: Name,
    /// In which mode.
    pub mode: Mode,
    /// How long it waits.
    pub timeout: WaitLimit,
    /// Whether to be told when others wait for it.
    pub notify: bool,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A client wants a lock.
    Lock(Want),
    /// A client wants a lock that it has in another mode. Until that is answered it may use what both allow ([`Mode::common`]).
    Convert {
        /// The lock.
        lock: LockId,
        /// The mode wanted.
        mode: Mode,
        /// How long it waits.
        timeout: WaitLimit,
        /// What to write into the value block: from PW or EX to less only.
        value: Option<[u8; VALUE_LEN]>,
    },
    /// A client gives a lock up, whether it has it or waits for it (then that is answered as cancelled). Nothing else is
    /// answered, unless a value comes with it that may not be written: then that is, and the lock stays.
    Unlock {
        /// The lock.
        lock: LockId,
        /// What to write into the value block: from PW or EX only, as far as its client may use it now.
        value: Option<[u8; VALUE_LEN]>,
    },
    /// A client no longer waits for a lock or conversion. It is answered all the same: the grant may have been faster.
    Cancel {
        /// The lock.
        lock: LockId,
    },
    /// A client is dead: its locks are given up, and the value blocks that it could have written count as lost. What it only waited for it could not
    /// have written, whatever becomes of that before the master knows of its death.
    ClientGone {
        /// All that it has or waits for.
        locks: Vec<LockId>,
    },
    /// A message from another node.
    Message {
        /// Who sent it.
        from: NodeId,
        /// In which incarnation.
        incarnation: Incarnation,
        /// What.
        message: Message,
    },
    /// Another worker of this node says something.
    Told(Errand),
    /// The next view. Nobody who is not in it can use a lock any more: they are dead, fenced, or their lease is over.
    View(Members),
    /// It is the time that [`Shard::next_tick`](super::Shard::next_tick) asked for.
    Tick,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send to the same worker of another node.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: Message,
    },
    /// Tell another worker of this node.
    Tell {
        /// Which.
        worker: WorkerId,
        /// What.
        errand: Errand,
    },
    /// A request or conversion is granted.
    Granted {
        /// The lock.
        lock: LockId,
        /// The mode it is held in.
        mode: Mode,
        /// Its token.
        token: Token,
        /// The value block.
        value: Value,
    },
    /// A request or conversion is not granted; of a conversion the lock stays as it was.
    Refused {
        /// The lock.
        lock: LockId,
        /// The reason.
        why: LockRefusal,
    },
    /// Others wait for a lock that is held. Said once for each grant; it may no longer be so.
    Blocking {
        /// The lock.
        lock: LockId,
        /// The mode that the first of them wants.
        wanted: Mode,
    },
    /// All members are where this node is: what it masters is complete and open.
    Open {
        /// The view.
        epoch: Epoch,
    },
    /// A member sent what no correct one sends; it was dropped.
    Fault {
        /// Who.
        from: NodeId,
        /// What.
        what: &'static str,
    },
}
