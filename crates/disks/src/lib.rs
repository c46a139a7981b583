//! Disk groups: blocks striped over files that every node opens directly, with a page header in
//! each block.
//!
//! [`Group`] finds, checks and moves blocks. [`Page`] gives a block its identity: version, writer,
//! checksum. A [`Patch`] is a change of its bytes. [`BlockIo`] joins groups and pages, so that no
//! client thread waits for a disk and no unverified block is used. A [`Device`]
//! is the bytes below a disk or a stream of redo. The global cache decides which node may write a
//! block; this crate does not.

mod device;
mod error;
mod group;
mod io;
mod label;
pub mod mirror;
mod page;
mod patch;

pub use device::{Device, DeviceFault, Extent, Extents, FileDevice, SECTOR, SimulatedDevice};
pub use error::DiskError;
pub use group::{DATA_START, DiskOpening, Group, Guard, UNIT};
pub use io::{BlockIo, BlockIoSettings, DiskReads, FrameMemory, IoCompletion, Job, Op};
#[doc(hidden)]
pub use label::label_any;
pub use label::{BlockSize, GroupId, Shape};
#[doc(hidden)]
pub use page::page_any;
pub use page::{HEADER, Page, PageError, PageType, TRAILER, Version, Writer, page_of_image};
#[doc(hidden)]
pub use patch::patch_any;
pub use patch::{Patch, apply_patch, patch_ranges};
pub use plexus_base::aligned::{ALIGN, Buffer};
