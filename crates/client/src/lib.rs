//! How a program attaches to its local node, and what it can do then with every node of the cluster.
//!
//! ```no_run
//! use plexus_client::{Address, Client};
//!
//! let client = Client::attach("c1")?; // the cluster's directory, or the socket of one of its nodes
//! let port = client.bind(7)?;
//! port.send(Address::new(client.node(), 7), b"hello", None)?;
//! assert_eq!(port.receive(None)?.bytes, b"hello");
//! # Ok::<(), plexus_client::Error>(())
//! ```
//!
//! - [`DatagramPort`]: messages from port to port, with their boundaries, in order for each sender, none lost while both ends
//!   live. Who reads slowly slows down those that send to it, and nobody else.
//! - [`Server`] and [`Client::call`]: a request, and its answer or the reason why there is none.
//! - [`Window`]: named memory of a node, which programs of every node read, write and change by atomic operations; a node
//!   can keep a copy of it that its programs read in place.
//! - [`LockSession`] and [`Lock`]: locks of the cluster, with value blocks and fencing tokens.
//! - [`Endpoint`] and [`CompletionQueue`]: all of it posted instead of waited for, with completions to poll or to wait for.
//!
//! Everything that a program has belongs to it alone and is released when it ends, in whatever way. If the node ends,
//! every operation says [`Error::NodeLost`]; attach again, to the same or another node.
//!
//! A [`Client`] and all that is made from it can be used by several threads at once. The library starts no thread: who
//! waits does the work, and hands what is for others to them. So what is posted makes progress while somebody is in a
//! call of the library; a program that does something else meanwhile waits on [`Client::fd`] together with the rest.
//!
//! `wire` is what programs and nodes say to each other; only nodes use it.

mod attach;
mod call;
mod client;
mod completions;
mod core;
mod datagram;
mod endpoint;
mod error;
mod locks;
mod shared;
mod window;
pub mod wire;

pub use call::{Request, Server};
pub use client::Client;
pub use completions::{Completion, CompletionQueue, Operation};
pub use datagram::{Datagram, DatagramPort};
pub use endpoint::Endpoint;
pub use error::Error;
pub use locks::{
    AskedLock, Grant, Lock, LockEvent, LockKey, LockNews, LockQueue, LockRefusal, LockSession, Mark, Mode,
    PendingLock, Token, VALUE_LEN, Validity, Value,
};
pub use plexus_base::{NodeId, Waiting};
pub use window::Window;

/// Longest datagram, request, reply or message of an endpoint.
pub const MAX_MESSAGE: usize = wire::limits::MAX_MESSAGE;

/// A port of a node. Datagrams, calls and endpoints have ports of their own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// The node.
    pub node: NodeId,
    /// The port: below 2^31 chosen by programs, from there on by the node.
    pub port: u32,
}

impl Address {
    /// Port `port` of `node`.
    #[must_use]
    pub fn new(node: NodeId, port: u32) -> Self {
        Self { node, port }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "port {} of {}", self.port, self.node)
    }
}
