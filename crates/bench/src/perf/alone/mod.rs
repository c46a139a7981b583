//! Measurements between two machines without a cluster: one listens ([`Listener`]), the other
//! connects ([`PerfSession`]).
//!
//! Both sides first prove the key on a separate connection ([`sealed`]), and exchange a request and
//! an answer there ([`meet`]). Then each starts a mesh of two nodes (the listener is node 0), with
//! the same links, workers and handshake as in a cluster. The measurement is the same as between
//! two nodes of a cluster. The first connection stays open; its end ends the session.

mod connect;
mod listen;
mod machine;
mod meet;
mod mesh;
mod sealed;

pub use connect::PerfSession;
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
        /// The address that was tried.
        address: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// Listening at the address failed.
    #[error("cannot listen at {address}: {error}; name another as in --listen 0.0.0.0:7501")]
    Listen {
        /// The address.
        address: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The other side refused, with this reason.
    #[error("the listener refuses: {0}")]
    Refused(String),
    /// The connection broke, or a message is malformed.
    #[error("{what}: {error} (it must be `plexus perf --listen` of the same version)")]
    Talk {
        /// The operation that failed.
        what: &'static str,
        /// The error.
        error: std::io::Error,
    },
    /// The mesh failed.
    #[error("{0}")]
    Mesh(String),
    /// The machine lacks a requested part.
    #[error("{0}")]
    Machine(String),
    /// The measurement failed.
    #[error(transparent)]
    Perf(#[from] PerfError),
}
