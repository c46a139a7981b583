//! Disk groups: blocks striped over files that every node opens directly, and the page header in each block.
//!
//! [`Group`] finds, checks and moves blocks; [`Page`] gives a block its identity (version, writer, checksum);
//! [`Pool`] joins the two on threads of its own, so that nobody waits for a disk and nothing
//! unverified is read. Who may write which block when is the global cache's business, not this crate's.

mod error;
mod group;
mod io;
mod label;
mod page;

pub use error::DiskError;
pub use group::{DATA_START, Group, Guard, UNIT};
pub use io::{Completion, FrameMemory, Job, Op, Pool};
#[doc(hidden)]
pub use label::label_any;
pub use label::{BlockSize, GroupId, Shape};
#[doc(hidden)]
pub use page::page_any;
pub use page::{HEADER, Page, PageError, PageType, TRAILER, Version, Writer};
pub use plexus_base::aligned::{ALIGN, Buffer};
