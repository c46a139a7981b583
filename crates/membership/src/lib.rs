//! Who is a member: views of the cluster, decided by a majority of voting files, and the leases under which members act.
//!
//! [`protocol`] decides: [`protocol::Member`] is one node's part, a pure state machine. [`voting`] is how what it writes stands in a
//! voting file, and how its reports travel between nodes. [`runtime`] drives it: sockets, files, clock and threads. What a view is for
//! (locks, caches, disks) is not known here. What runs on the workers of a node and goes by views is a [`subsystem`], with [`gate`] for
//! messages of other views.

pub mod gate;
pub mod groups;
pub mod protocol;
pub mod runtime;
pub mod subsystem;
pub mod voting;

pub use protocol::{Before, partitions};
