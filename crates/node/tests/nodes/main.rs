//! Nodes of a real cluster inside one process: blocks, locks, groups, registry and attached
//! programs.
//!
//! Tests that look at the whole process (`endless_bells`, `no_descriptors`) are binaries of their
//! own.

#[path = "../cluster/mod.rs"]
mod cluster;
mod damaged_blocks;
mod ending;
mod forwarding;
mod groups;
mod hostile_programs;
mod locks;
mod program_examples;
mod program_locks;
mod programs;
mod registry;
mod shared_blocks;
mod starting;
mod tasks;
