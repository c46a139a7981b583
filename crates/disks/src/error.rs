//! What goes wrong with disks: each error says what, where, and what to do about it.

use std::{io, path::PathBuf};

use plexus_base::BlockId;

use crate::{GroupId, PageError};

/// Why a disk group could not be made, opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A file is where a new disk should be.
    #[error("{path}: exists already and will not be overwritten; remove it or choose another path")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file system has too little room for the disks on it.
    #[error(
        "{path}: {needed_mib} MiB needed for the disk group, {free_mib} MiB free; make room or ask for a smaller group"
    )]
    NoRoom {
        /// The directory.
        path: PathBuf,
        /// What the disks there need.
        needed_mib: u64,
        /// What is free to this user.
        free_mib: u64,
    },
    /// The node is no member of the cluster any more.
    #[error("{path}: not written, because this node is no member of the cluster any more")]
    NoMember {
        /// The file.
        path: PathBuf,
    },
    /// A disk of the configuration is not there.
    #[error("{path}: disk {number} of the group is missing; put it back, or correct `disks` in cluster.toml")]
    Missing {
        /// The file.
        path: PathBuf,
        /// Its place in the list.
        number: usize,
    },
    /// Neither copy of the label is readable.
    #[error("{path}: {why}; restore the file, or correct `disks` in cluster.toml")]
    Label {
        /// The file.
        path: PathBuf,
        /// What is wrong with the label.
        why: String,
    },
    /// The disk belongs to another group.
    #[error("{path}: belongs to disk group {found}, not to {expected}; correct `disks` in cluster.toml")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The group on its label.
        found: GroupId,
        /// The group of the configuration.
        expected: GroupId,
    },
    /// The disks are listed in another order than they were made in.
    #[error(
        "{path}: is disk {found} of {count} of its group but stands at place {expected}; list the disks in their order in cluster.toml"
    )]
    Order {
        /// The file.
        path: PathBuf,
        /// The number on its label, from 0.
        found: u32,
        /// Its place in the list, from 0.
        expected: usize,
        /// How many disks the label says there are.
        count: u32,
    },
    /// Label and configuration disagree about the shape of the group.
    #[error(
        "{path}: the group was made with {what} {found}, the configuration says {expected}; correct cluster.toml"
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// What they disagree about.
        what: &'static str,
        /// On the label.
        found: u64,
        /// In the configuration.
        expected: u64,
    },
    /// The file is shorter than its label says.
    #[error("{path}: truncated: {found} bytes of {expected}; restore the file from a copy")]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// The length it must have.
        expected: u64,
    },
    /// No such block in the group.
    #[error("{block} is outside the group, which has {blocks}")]
    OutOfRange {
        /// The block asked for.
        block: BlockId,
        /// How many the group has.
        blocks: u64,
    },
    /// What was read is not the page that belongs there.
    #[error("{path}, byte {offset}: {page}")]
    Page {
        /// The file.
        path: PathBuf,
        /// Where in it the block starts.
        offset: u64,
        /// What is wrong with it.
        page: PageError,
    },
    /// The system refused.
    #[error("{path}: {what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl DiskError {
    /// Makes an [`DiskError::Io`] of what the system said while `what` was done to `path`.
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}
