//! Redo: what changed blocks, in the order in which it changed them, durable before it is
//! acknowledged.
//!
//! A node writes its changes to one [`stream`]: a ring of segments on a device. After a death the
//! blocks of the dead node are replayed over the streams of all nodes ([`recovery`]).
//! [`NodeRedo`] gives both to the cache of a node. `docs/redo.md` has
//! the rules.

mod node;
pub mod recovery;
mod room;
pub mod stream;

pub use node::{NodeRedo, RedoSettings};
pub use recovery::{RecoveryPhase, RecoveryStatus};
pub use room::RoomWaits;
