//! The client library: a program attaches to its local node and uses the services of the cluster.
//!
//! ```no_run
//! use plexus_client::{Address, Client};
//!
//! // The directory of the cluster, or the socket of one of its nodes.
//! let client = Client::attach("c1")?;
//! let port = client.bind(7)?;
//! port.send(Address::new(client.node(), 7), b"hello", None)?;
//! assert_eq!(port.receive(None)?.bytes, b"hello");
//! # Ok::<(), plexus_client::Error>(())
//! ```
//!
//! The program names the crate in its `Cargo.toml`:
//!
//! ```toml
//! plexus-client = { path = "/src/plexus/crates/client" }   # the path of your checkout
//! ```
//!
//! - [`DatagramPort`]: messages from port to port, with their boundaries, in order for each sender.
//!   No message is lost while both ends live. A slow receiver delays only its own senders.
//! - [`Server`] and [`Client::call`]: a request, and its answer or the reason why there is none.
//! - [`ClientWindow`]: named memory of a node. Programs of every node read it, write it and change
//!   it by atomic operations. A node can keep a copy that its programs read in place.
//! - [`LockSession`] and [`Lock`]: locks of the cluster, with value blocks and fencing tokens.
//! - [`Endpoint`] and [`CompletionQueue`]: the same operations without waiting; their completions
//!   are polled or waited for.
//!
//! A program does not share its ports, windows and locks. They are released when it ends, in any
//! way. If the node ends, every operation returns [`Error::NodeLost`]; the program can then attach
//! again, to the same or another node. An operation notices a node that was killed within a few
//! milliseconds, and a node that stands still or is cut off when the lease of the node ends.
//!
//! Several threads can use a [`Client`] and everything made from it at once. The library starts no
//! thread: a waiting thread does the work, also for the other threads. So posted operations make
//! progress only while a thread is in a call of the library. A program with other work waits for
//! [`Client::fd`] together with its own descriptors.
//!
//! The module `wire` is the protocol between programs and nodes; only nodes use it.

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
    EventMark, Grant, Lock, LockEvent, LockEventKind, LockKey, LockQueue, LockRefusal, LockSession, Mode,
    PendingLock, QueuedLockRequest, Token, VALUE_LEN, Validity, Value,
};
pub use plexus_base::{NodeId, Waiting};
pub use window::ClientWindow;

/// A port of a node. Datagrams, calls and endpoints each have their own ports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// The node that has the port.
    pub node: NodeId,
    /// The port number. Programs choose numbers below 2^31; nodes choose the others.
    pub port: u32,
}

impl Address {
    /// Returns the address of port `port` on `node`.
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
