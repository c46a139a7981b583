//! The distributed lock manager: six modes, conversion, value blocks, deadlock detection, recovery after a death.
//!
//! [`protocol`] decides, purely. What connects it to a worker, its links and the programs of a node is not here yet.

pub mod protocol;
