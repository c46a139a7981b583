//! What members say to each other about the registry.

use std::sync::Arc;

use plexus_base::Epoch;

use super::{Command, Contents, Origin};

/// One message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    /// The sender's view.
    pub epoch: Epoch,
    /// What it says.
    pub body: Body,
}

/// What a message says. The order counts what was asked for in a view; its beginning is number 0.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Body {
    /// To the coordinator: what I have.
    Have {
        /// Its generation.
        generation: u64,
        /// There was something, and none of it is whole.
        is_lost: bool,
    },
    /// To the member that has the newest: send it.
    Fetch,
    /// To the coordinator: what I have, as asked for. From it: the view begins with this.
    Whole(Arc<Contents>),
    /// The view begins with what you have.
    Begin,
    /// To who asked: the view cannot begin, so this was not done.
    Closed {
        /// The number of what he asked for.
        number: u64,
        /// See [`super::Refused::Closed`].
        found: u64,
        /// See [`super::Refused::Closed`].
        known: u64,
    },
    /// To the coordinator: do this for me.
    Ask(Origin, Command),
    /// To all: this is next in the order.
    Do(u64, Origin, Command),
    /// To the coordinator: all up to here in the order is durable.
    Durable(u64),
    /// To all: all up to here in the order is durable everywhere.
    Committed(u64),
}
