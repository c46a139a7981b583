//! How clusters and nodes are made, configured, started and ended.

pub mod config;
pub mod create;
pub mod down;
pub mod janitor;
pub mod keys;
pub mod launch;
pub mod layout;
pub mod lifeline;
pub mod machine;
pub mod temporary;
