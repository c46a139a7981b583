//! A node as a library: configuration, links, cache, disk group and control socket, wired.

pub mod blocks;
pub mod config;
pub mod control;
mod durable;
pub mod layout;
pub mod port;
pub mod lifeline;
pub mod settle;
pub mod state;
