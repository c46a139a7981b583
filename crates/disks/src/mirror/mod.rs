//! Mirrored groups over the disks of all nodes. Each disk is in one node, its *server*, which
//! executes all its I/O. Every chunk has copies on disks of different failure groups.
//!
//! [`map`] is the map of chunks and disks. [`protocol`] decides, without I/O. [`ServedDisk`] is a
//! disk of this node, `message` the format between nodes, [`Mirror`] joins them in a node.

mod blocks;
mod buffers;
mod disk;
pub mod map;
mod message;
mod new;
mod pace;
pub mod protocol;
mod queue;
mod scrub;
mod service;
mod stream;

pub use blocks::BlockCopy;
pub(crate) use blocks::MirrorBlocks;
pub use disk::{DiskFile, NewDisk, ServedDisk};
#[doc(hidden)]
pub use map::map_any;
#[doc(hidden)]
pub use message::mirror_message_any;
pub use new::{DiskPlace, ZeroProgress, create_disk, discard_disk, slots_of_device};
pub use queue::DiskJob;
pub use scrub::Scrubbed;
pub use service::{ChunkWrite, DiskHealth, Flush, Mirror, MirrorService};
pub use stream::MirrorStream;
