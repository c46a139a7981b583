//! The redo stream of one node.
//!
//! [`protocol`] decides what is written and when it is durable. [`reader`] finds the valid end of a
//! stream on a device and iterates over its records. [`driver`] gives threads a stream that a
//! thread of its own writes.

pub mod driver;
pub mod protocol;
pub mod reader;
