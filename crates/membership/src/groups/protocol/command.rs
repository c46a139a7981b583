//! The deeds of group members, and the events that members get.

use std::{fmt, sync::Arc};

use plexus_base::{Incarnation, NodeId};

use crate::protocol::partitions::Members;

/// The longest name of a group or barrier, in bytes.
pub const MAX_NAME: usize = 64;

/// The longest message to a group, in bytes. Every node keeps a message until all nodes have it.
pub const MAX_MESSAGE: usize = 16 * 1024;

/// The name of a group or barrier: 1 to 64 bytes of any value. It is cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<[u8]>);

/// The reason why bytes are not a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a name of a group or barrier has 1 to {MAX_NAME} bytes; this one has {0}")]
pub struct NameError(pub usize);

impl Name {
    /// Creates the name with these bytes.
    ///
    /// # Errors
    /// The name is empty or too long.
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        match bytes.len() {
            1..=MAX_NAME => Ok(Self(bytes.into())),
            len => Err(NameError(len)),
        }
    }

    /// Returns the bytes of the name.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// A member of a group: a client of a node in one of its incarnations. A client is in one group,
/// once, and its number is never used again in that incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupMember {
    /// The node.
    pub node: NodeId,
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// The number of the client on its node.
    pub client: u64,
}

/// A request of a client about its group.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Deed {
    /// The client becomes a member.
    Join,
    /// The client leaves the group.
    Leave {
        /// True if the client failed; this matters for barriers.
        died: bool,
    },
    /// The member sends this message to all members, including itself.
    Send(Arc<[u8]>),
    /// The member arrives at a barrier and waits there for all members.
    Arrive {
        /// The barrier.
        barrier: Name,
        /// The fewest members, including this one, that must arrive. Members that have passed and
        /// not left yet do not count, nor do dead ones.
        least: u16,
        /// True if the barrier must fail when a member dies before all have arrived. One strict
        /// member is enough.
        strict: bool,
    },
}

/// A deed on its way into the order of all entries.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Command {
    /// The number among those of its node's incarnation, from 1.
    pub number: u64,
    /// The client.
    pub client: u64,
    /// The group.
    pub group: Name,
    /// The deed.
    pub deed: Deed,
}

/// The content of an entry.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum EntryContent {
    /// A deed of a client of this node's incarnation.
    Command(NodeId, Incarnation, Command),
    /// A view of the cluster; members at nodes outside of it leave their groups.
    View(Members),
}

/// One entry of the order of all group events, the same at every node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// The number of the entry, from 1, without gaps.
    pub seq: u64,
    /// The content.
    pub what: EntryContent,
}

/// The reason why a deed has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum GroupRefusal {
    /// The group has the most members that are allowed.
    #[error("the group has as many members as a group can have")]
    Members,
    /// The cluster has the most groups that are allowed.
    #[error("there are as many groups as there can be")]
    Groups,
    /// The node has the most members of groups that are allowed.
    #[error("the node has as many members of groups as it can have")]
    Node,
    /// The client is not a member, or no longer one.
    #[error("it is no member of the group")]
    NoMember,
    /// Members that wait at this barrier require this other number of members.
    #[error("clients that wait at this barrier require {0} members; use the same number")]
    Differs(u16),
    /// The member already waits at a barrier.
    #[error("it waits at a barrier already")]
    Waits,
}

/// An event for a member. All members of a group get their events in the same order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Happened {
    /// A view of the group; it is the first event of a member.
    View {
        /// The number of the view, one more than the last.
        number: u64,
        /// The members in order; all members may use the first as the leader.
        members: Arc<[GroupMember]>,
    },
    /// A message of a member.
    Message {
        /// The sender.
        from: GroupMember,
        /// The message.
        bytes: Arc<[u8]>,
    },
    /// All members have arrived at this barrier.
    Passed(Name),
    /// The barrier failed, because this member has died.
    Failed(Name, GroupMember),
    /// The last deed of this member had no effect; no other member learns of it.
    Refused(GroupRefusal),
    /// This member has left; only it gets this event, which is its last.
    Left,
}
