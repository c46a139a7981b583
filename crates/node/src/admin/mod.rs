//! The control socket of a node and the commands that it answers there.

pub mod acceptor;
pub mod commands;
pub mod control;
pub(crate) mod forward;
pub mod grouping;
pub mod identity;
pub mod locking;
pub mod memory;
pub mod registry;
