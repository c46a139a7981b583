//! Creation, configuration, start and end of clusters and nodes.

pub mod config;
pub mod create;
pub mod down;
pub mod janitor;
pub mod keys;
pub mod last_end;
pub mod launch;
pub mod layout;
pub mod lifeline;
pub mod machine;
pub mod service_manager;
pub mod supervisor;
pub mod temporary;
