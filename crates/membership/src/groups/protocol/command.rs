//! What members of groups do, and what they are told.

use std::{fmt, sync::Arc};

use plexus_base::{Incarnation, NodeId};

use crate::protocol::partitions::Members;

/// Longest name of a group or barrier, in bytes.
pub const MAX_NAME: usize = 64;

/// Longest message to a group, in bytes: whatever is under way is kept by every node until all have it.
pub const MAX_MESSAGE: usize = 16 * 1024;

/// A name of a group or barrier: 1 to 64 bytes, any. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<[u8]>);

/// Why bytes are not a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a name of a group or barrier has 1 to {MAX_NAME} bytes; this one has {0}")]
pub struct NameError(pub usize);

impl Name {
    /// The name with these bytes.
    ///
    /// # Errors
    /// Too few or too many.
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        match bytes.len() {
            1..=MAX_NAME => Ok(Self(bytes.into())),
            len => Err(NameError(len)),
        }
    }

    /// The bytes.
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

/// A member of a group: a client of a node in one of its incarnations. A client is in one group, once, and its number is never used again in that incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Who {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The client's number at its node.
    pub client: u64,
}

/// What a client does.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Deed {
    /// It becomes a member.
    Join,
    /// It is none any more; `died`: as one that failed, for barriers.
    Leave {
        /// It did not mean to.
        died: bool,
    },
    /// It says something to all members, itself among them.
    Send(Arc<[u8]>),
    /// It waits until all members have come here.
    Arrive {
        /// Where.
        barrier: Name,
        /// It goes on only together with so many, itself among them: who has passed and not left yet does not count, nor who has died.
        least: u16,
        /// If a member dies before all have come, the barrier fails instead of going on with the others. One who wants that is enough.
        strict: bool,
    },
}

/// A deed on its way into the order of all.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Command {
    /// Its number among those of its node's incarnation, from 1.
    pub number: u64,
    /// Whose.
    pub client: u64,
    /// In which group.
    pub group: Name,
    /// What.
    pub deed: Deed,
}

/// What has a place in the order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum What {
    /// A client of this node's incarnation has done something.
    Command(NodeId, Incarnation, Command),
    /// A view of the cluster: members of groups at nodes that are not in it are none any more.
    View(Members),
}

/// A place in the order of all that happens in groups, the same at every node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// From 1, without gaps.
    pub seq: u64,
    /// What.
    pub what: What,
}

/// Why a deed came to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Why {
    /// A group's limit.
    #[error("the group has as many members as a group can have")]
    Members,
    /// The cluster's limit.
    #[error("there are as many groups as there can be")]
    Groups,
    /// A node's limit.
    #[error("the node has as many members of groups as it can have")]
    Node,
    /// It is not, or not any more.
    #[error("it is no member of the group")]
    NoMember,
    /// One barrier at a time.
    #[error("it waits at a barrier already")]
    Waits,
}

/// What a member is told, in the same order as every other member of its group.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Happened {
    /// These are the members from now on; the first thing that a member is told.
    View {
        /// One more than the last.
        number: u64,
        /// In order; the first is as good a leader as any.
        members: Arc<[Who]>,
    },
    /// A member says something.
    Message {
        /// Who.
        from: Who,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// All members have come here.
    Passed(Name),
    /// Not all have come: this one has died.
    Failed(Name, Who),
    /// What this member did last came to nothing; nobody else is told.
    Refused(Why),
    /// This member has left; nobody else is told so, and it is told nothing after.
    Left,
}
