//! Mirrored groups over the disks of all nodes. Each disk is in one node, its *server*, which
//! executes all its I/O. Every chunk has copies on disks of different failure groups.
//!
//! [`map`] is the map of chunks and disks. [`protocol`] decides, without I/O. [`ServedDisk`] is a
//! disk of this node, `message` the format between nodes, [`Mirror`] joins them in a node.

mod blocks;
mod disk;
pub mod map;
mod message;
pub mod protocol;
mod service;
mod stream;

pub use blocks::BlockCopy;
pub(crate) use blocks::MirrorBlocks;
pub use disk::{DiskJob, NewDisk, ServedDisk, create_disk};
#[doc(hidden)]
pub use map::map_any;
#[doc(hidden)]
pub use message::mirror_message_any;
pub use service::{ChunkWrite, Flush, Mirror, MirrorService};
pub use stream::MirrorStream;
