//! Voting files: blocks of 4 KiB on shared disks or on disks of single nodes, in which nodes leave what others must find.
//!
//! [`format`](mod@format) says what stands in them, [`create`] makes one. Turns at them are taken on a thread for each.

mod desk;
mod file;
pub mod format;
pub(crate) mod packed;
mod settler;

pub use file::{FileError, create, discard, look};

pub(crate) use desk::{Desk, Done, Found, Job};
