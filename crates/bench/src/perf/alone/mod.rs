//! Measuring between two machines without a cluster: one listens ([`Listener`]), the other connects
//! ([`Session`]).
//!
//! What the two say first ([`meet`]) goes over a connection of its own, on which both have proved
//! the key before ([`sealed`]): who asks for what, and what the listener makes of it. Then each
//! starts a mesh of two nodes (the listener is node 0), with the same links, workers and handshake
//! as in a cluster, and the measurement is the same as between two nodes of one. The first
//! connection stays open: its end is the end of the session, however it comes.

mod connect;
mod listen;
mod machine;
mod meet;
mod mesh;
mod sealed;

pub use connect::Session;
pub use listen::{Listener, Served};
pub use machine::{cores, pin};
#[doc(hidden)]
pub use meet::ask_any;
pub use meet::{Ask, PORT, RailChoice};

use super::PerfError;

/// The reason why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum AloneError {
    /// No listener answers at the address, or the address is invalid.
    #[error("{address}: {error}; start `plexus perf --listen` there first")]
    Reach {
        /// Where it was tried.
        address: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {error}; name another as in --listen 0.0.0.0:7501")]
    Listen {
        /// The address.
        address: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The other side says why not.
    #[error("the listener refuses: {0}")]
    Refused(String),
    /// The connection broke or brought nonsense.
    #[error("{what}: {error} (it must be `plexus perf --listen` of the same version)")]
    Talk {
        /// The operation that failed.
        what: &'static str,
        /// The error.
        error: std::io::Error,
    },
    /// The links.
    #[error("{0}")]
    Mesh(String),
    /// The machine has not what was asked for.
    #[error("{0}")]
    Machine(String),
    /// The measurement itself.
    #[error(transparent)]
    Perf(#[from] PerfError),
}
