//! The messages between members about the registry.

use std::sync::Arc;

use plexus_base::{Epoch, NodeId, NodeSet};

use super::{Command, Contents, Origin};

/// A message of the registry with its epoch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    /// The sender's view.
    pub epoch: Epoch,
    /// The content of the message.
    pub body: RegistryMessage,
}

/// The content of a message. The order numbers the commands of a view; the start of the view is
/// number 0.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RegistryMessage {
    /// To the coordinator: the newest contents that the sender has.
    Have {
        /// Their generation.
        generation: u64,
        /// True if the sender had copies and none of them is whole.
        is_lost: bool,
    },
    /// To the member with the newest contents: send them.
    Fetch,
    /// To the coordinator: the contents that it fetched. From the coordinator: the view begins with
    /// these contents.
    Whole(Arc<Contents>),
    /// From the coordinator: the view begins with the contents that the receiver has.
    Begin,
    /// To the origin of a command: the view cannot begin, so the command was not done.
    Closed {
        /// The number of the command.
        number: u64,
        /// See [`super::Refused::Closed`].
        found: u64,
        /// See [`super::Refused::Closed`].
        known: u64,
    },
    /// To the coordinator: a command of the sender.
    Ask(Origin, Command),
    /// To all: the next command in the order.
    Do(u64, Origin, Command),
    /// To the coordinator: all commands up to this one in the order are durable at the sender.
    Durable(u64),
    /// To all: all commands up to this one in the order are durable everywhere.
    Committed(u64),
    /// To the coordinator: whether the sender has space for larger contents. At first it has.
    Room(bool),
    /// To all: a number in the order for a command that is not done unless it was done before,
    /// because this node has no space.
    Full(u64, Origin, NodeId),
    /// To the coordinator: whether the sender can write its copies. At first it can.
    CanWrite(bool),
    /// To all: the members that cannot write their copies. They leave, or nothing is answered.
    Unwritable(NodeSet),
}
