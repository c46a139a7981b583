//! What a master knows of its resources, for people.

use plexus_base::{Nanos, NodeId};

use crate::protocol::{Mode, Name, Resource, Token, Validity};

/// One resource that somebody has or wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Survey {
    /// Its name.
    pub name: Name,
    /// Who has it.
    pub granted: Vec<Held>,
    /// Who waits to convert, then who waits for a new lock, the first first.
    pub waiting: Vec<Wanted>,
    /// What the value block is known to be.
    pub value: Validity,
}

/// A lock that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// By a client of this node.
    pub node: NodeId,
    /// Its number there.
    pub lock: u64,
    /// How.
    pub mode: Mode,
    /// With which token.
    pub token: Token,
}

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Of a client of this node.
    pub node: NodeId,
    /// Its number there.
    pub lock: u64,
    /// How it wants it.
    pub mode: Mode,
    /// For how long it has waited.
    pub waited: Nanos,
    /// Whether it has the lock in another mode.
    pub converts: bool,
}

impl Survey {
    pub(crate) fn of(name: &Name, resource: &Resource, now: Nanos) -> Self {
        let granted = resource.granted().iter().map(|holder| Held {
            node: holder.who.node,
            lock: holder.who.lock.0,
            mode: holder.mode,
            token: holder.token,
        });
        let converting = resource.converting().map(|waiter| (waiter, true));
        let queue = converting.chain(resource.waiting().map(|waiter| (waiter, false)));
        let waiting = queue.map(|(waiter, converts)| Wanted {
            node: waiter.who.node,
            lock: waiter.who.lock.0,
            mode: waiter.mode,
            waited: Nanos(u64::try_from(now.0 as i64 - waiter.since).unwrap_or(0)),
            converts,
        });
        Self {
            name: name.clone(),
            granted: granted.collect(),
            waiting: waiting.collect(),
            value: resource.value().validity,
        }
    }
}
