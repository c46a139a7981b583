//! Redo: what changed blocks, in the order in which it changed them, durable before it is
//! acknowledged.
//!
//! A node writes its changes to one [`stream`]: a ring of segments on a device. After a death the
//! blocks of the dead node are replayed over the streams of all nodes
//! ([`stream::protocol::replay`]). `docs/redo.md` has the rules. Nothing uses streams yet: the
//! cache, recovery and transactions come on top of them.

pub mod stream;
