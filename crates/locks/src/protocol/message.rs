//! What shards of different nodes say to each other. The layout on the wire is in `wire.rs`.

use plexus_base::{Epoch, NodeId, WorkerId};

use super::{LockId, LockRefusal, Mode, Name, PartitionSlots, Token, VALUE_LEN, Value};

/// Most hops that a search for a deadlock goes: a longer circle is not found, and ends by the timeout of its members.
pub const MAX_HOPS: usize = 128;

/// Most locks in one [`Body::Chase`]: a master that names more says it in several.
pub const MAX_CHASED: usize = 1024;

/// Which of two directions a message goes, each with credits of its own. All of one kind from one node to another arrive once each and
/// in order, as long as both live.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// To a master.
    Request,
    /// From a master.
    Reply,
}

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The sender's view.
    pub epoch: Epoch,
    /// What it says.
    pub body: Body,
}

/// What a message says. `seq` counts the requests of one lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// To the master: a new lock.
    Request(Request),
    /// To the master: a lock in another mode.
    Convert(Convert),
    /// To the master: the lock, and whatever is waited for with it, is no more. Not answered.
    Unlock(Unlock),
    /// To the master: if this still waits, it is refused for this reason.
    Cancel(Cancel),
    /// To the master: whom does the waiter at the end of the path wait for?
    Probe(Name, Box<Probe>),
    /// To a new master: what is held here.
    Records(Vec<Record>),
    /// To a new master, from the one before: value blocks.
    Values(Vec<Handover>),
    /// To a master: what was said up to here is all that was said in earlier views, and all that was asked for.
    Done,
    /// To the holder: yes.
    Granted(Granted),
    /// To the holder: no.
    Refused(Refused),
    /// To the holder: somebody waits for it.
    Blocking(Blocking),
    /// To the holders: the waiter at the end of the path waits for these of your locks.
    Chase(Vec<Chased>, Box<Probe>),
    /// To every member: I master these and do not know them.
    Ask(PartitionSlots),
}

/// See [`Body::Request`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The lock.
    pub lock: LockId,
    /// Its number.
    pub seq: u32,
    /// Of what.
    pub name: Name,
    /// The mode wanted.
    pub mode: Mode,
    /// Not to wait.
    pub attempt: bool,
    /// Whether to be told who waits.
    pub notify: bool,
    /// It was asked in an earlier view before, of another master perhaps.
    pub again: bool,
    /// How long it has waited.
    pub waited_ns: u64,
}

/// See [`Body::Convert`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Convert {
    /// The lock.
    pub lock: LockId,
    /// Its number.
    pub seq: u32,
    /// Of what.
    pub name: Name,
    /// The mode wanted.
    pub mode: Mode,
    /// Not to wait.
    pub attempt: bool,
    /// It was asked in an earlier view before, of another master perhaps.
    pub again: bool,
    /// How long it has waited.
    pub waited_ns: u64,
    /// To be written.
    pub value: Option<[u8; VALUE_LEN]>,
}

/// See [`Body::Unlock`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unlock {
    /// The lock.
    pub lock: LockId,
    /// Of what.
    pub name: Name,
    /// Its client is dead, and what it could have written is lost.
    pub died: bool,
    /// To be written.
    pub value: Option<[u8; VALUE_LEN]>,
}

/// See [`Body::Cancel`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cancel {
    /// The lock.
    pub lock: LockId,
    /// Its number.
    pub seq: u32,
    /// Of what.
    pub name: Name,
    /// The reason to give: timed out, cancelled or deadlock.
    pub why: LockRefusal,
}

/// A lock that is held, as its holder knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The lock.
    pub lock: LockId,
    /// The request that was granted last.
    pub seq: u32,
    /// Of what.
    pub name: Name,
    /// In which mode.
    pub mode: Mode,
    /// Whether to be told who waits.
    pub notify: bool,
    /// With which token.
    pub token: Token,
    /// The value block as it came with the grant.
    pub value: Value,
}

/// The value block of a resource that has another master now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handover {
    /// Of what.
    pub name: Name,
    /// The value block.
    pub value: Value,
    /// Somebody held PW or EX, and may have written since.
    pub writer: bool,
}

/// See [`Body::Granted`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granted {
    /// The lock.
    pub lock: LockId,
    /// Its number.
    pub seq: u32,
    /// In which mode.
    pub mode: Mode,
    /// With which token.
    pub token: Token,
    /// The value block.
    pub value: Value,
}

/// See [`Body::Refused`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The lock.
    pub lock: LockId,
    /// Its number.
    pub seq: u32,
    /// The reason.
    pub why: LockRefusal,
}

/// See [`Body::Blocking`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocking {
    /// The lock.
    pub lock: LockId,
    /// The request that was granted last.
    pub seq: u32,
    /// The mode wanted.
    pub wanted: Mode,
}

/// One of the locks that a waiter waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chased {
    /// The lock.
    pub lock: LockId,
    /// The request that was granted last, or waits.
    pub seq: u32,
    /// It waits, further ahead.
    pub queued: bool,
}

/// A search for a circle of requests that wait for each other, on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The request that looks whether it waits for itself.
    pub origin: Origin,
    /// Who waits for whom so far, the origin first. At the end stands a waiter whose blocker is not known yet, unless the circle is closed.
    pub path: Vec<Hop>,
    /// The circle is closed, and its hops up to this one are being looked at once more.
    pub confirming: Option<u16>,
}

/// Who began a search.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Origin {
    /// The age of its owner's work. (First, because in this order the youngest is the greatest.)
    pub start_time: u64,
    /// The node.
    pub node: NodeId,
    /// The worker.
    pub worker: WorkerId,
    /// The lock.
    pub lock: LockId,
    /// The request of the lock.
    pub seq: u32,
    /// Its number among the searches of the request, from 1.
    pub round: u32,
}

/// A waiter, and one lock that it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// The node whose client waits.
    pub node: NodeId,
    /// The worker of the resource.
    pub worker: WorkerId,
    /// The waiter.
    pub lock: LockId,
    /// Its request.
    pub seq: u32,
    /// The lock that it waits for, of a client of the next hop's node, or of the origin's.
    pub blocker: Chased,
}

impl Body {
    /// The resource that it is about, if it asks something of the master of one.
    #[must_use]
    pub fn resource(&self) -> Option<&Name> {
        match self {
            Self::Request(Request { name, .. })
            | Self::Convert(Convert { name, .. })
            | Self::Unlock(Unlock { name, .. })
            | Self::Cancel(Cancel { name, .. })
            | Self::Probe(name, _) => Some(name),
            _ => None,
        }
    }

    /// The lock that it is about, if it is a master's word to who has or wants it.
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
    /// The direction it goes.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.body {
            Body::Request(_)
            | Body::Convert(_)
            | Body::Unlock(_)
            | Body::Cancel(_)
            | Body::Probe(..)
            | Body::Records(_)
            | Body::Values(_)
            | Body::Done => Kind::Request,
            Body::Granted(_) | Body::Refused(_) | Body::Blocking(_) | Body::Chase(..) | Body::Ask(_) => {
                Kind::Reply
            }
        }
    }
}
