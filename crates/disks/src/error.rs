//! The errors of disks. Each names what failed, where, and what to do.

use std::{io, path::PathBuf};

use plexus_base::BlockId;

use crate::{GroupId, PageError};

/// The reason why a disk group could not be made, opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A file exists where a new disk should be.
    #[error("{path}: exists already and will not be overwritten; remove it or choose another path")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Something else is where a new disk should be.
    #[error("{path}: {what}; choose another path, or overwrite it with --force")]
    Occupied {
        /// The file or block device.
        path: PathBuf,
        /// What was found, as the end of a sentence about it.
        what: String,
    },
    /// A disk is open already, or a block device is mounted or belongs to another device.
    #[error("{path}: is in use: mounted, or opened by another node or program; use a disk of its own")]
    InUse {
        /// The file or block device.
        path: PathBuf,
    },
    /// A block device has too little room.
    #[error("{path}: has {found_mib} MiB, and {needed_mib} MiB are needed; use a larger device{}", or_less(*.most_mib))]
    TooSmall {
        /// The block device.
        path: PathBuf,
        /// Its length.
        found_mib: u64,
        /// The length that the disk needs.
        needed_mib: u64,
        /// The most that its chunks can have; 0: not one chunk.
        most_mib: u64,
    },
    /// A disk has no dirty bits for more chunks.
    #[error("{path}: was made for at most {most_mib} MiB of chunks; add another disk instead")]
    NoBits {
        /// The file or block device.
        path: PathBuf,
        /// The room for chunks that its dirty bits suffice for.
        most_mib: u64,
    },
    /// There is no such device.
    #[error("{path}: there is no such device; correct the path")]
    NoDevice {
        /// The path.
        path: PathBuf,
    },
    /// A directory or another object is where a new disk should be.
    #[error("{path}: is neither a file nor a block device; choose another path")]
    NoDisk {
        /// The path.
        path: PathBuf,
    },
    /// Writes were made, and a sync that covers them failed.
    #[error("the write is not durable: {why}")]
    NotDurable {
        /// The failure of the sync.
        why: String,
    },
    /// The file system has too little room for its disks.
    #[error(
        "{path}: {needed_mib} MiB needed for the disk group, {free_mib} MiB free; make room or ask for a smaller group"
    )]
    NoRoom {
        /// The directory.
        path: PathBuf,
        /// The room that the disks there need.
        needed_mib: u64,
        /// The room that is free to this user.
        free_mib: u64,
    },
    /// The node is no longer a member of the cluster.
    #[error("{path}: not written, because this node is no longer a member of the cluster")]
    NoMember {
        /// The file.
        path: PathBuf,
    },
    /// A disk of the configuration is missing.
    #[error("{path}: disk {number} of the group is missing; put it back, or correct `disks` in cluster.toml")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The position in the list.
        number: usize,
    },
    /// Neither copy of the label is readable.
    #[error("{path}: {why}; restore the file, or correct `disks` in cluster.toml")]
    Label {
        /// The file.
        path: PathBuf,
        /// The fault of the label.
        why: String,
    },
    /// The label has an older format.
    #[error(
        "{path}: has format {found}, this program uses {expected}: save what programs keep in the blocks with the \
         version of plexus that wrote it, and create the cluster anew"
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// The format of the label.
        found: u32,
        /// The format of this program.
        expected: u32,
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
        /// The number on the label, from 0.
        found: u32,
        /// The position in the list, from 0.
        expected: usize,
        /// The number of disks on the label.
        count: u32,
    },
    /// Label and configuration disagree about the shape of the group.
    #[error(
        "{path}: the group was made with {what} {found}, the configuration says {expected}; correct cluster.toml"
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// The value that differs.
        what: &'static str,
        /// The value on the label.
        found: u64,
        /// The value in the configuration.
        expected: u64,
    },
    /// The file is shorter than its label says.
    #[error("{path}: truncated: {found} bytes of {expected}; restore the file from a copy")]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The length of the file.
        found: u64,
        /// The length that it must have.
        expected: u64,
    },
    /// The block does not exist in the group.
    #[error("{block} is outside the group, which has {blocks}")]
    OutOfRange {
        /// The requested block.
        block: BlockId,
        /// The number of blocks of the group.
        blocks: u64,
    },
    /// The bytes read are not the page that belongs there.
    #[error("{path}, byte {offset}: {page}")]
    Page {
        /// The file.
        path: PathBuf,
        /// The offset of the block in the file.
        offset: u64,
        /// The fault of the page.
        page: PageError,
    },
    /// The mirrored group refuses or has failed.
    #[error("the mirrored disk group: {0}")]
    Mirror(#[from] crate::mirror::protocol::DiskRefusal),
    /// The system refused an operation.
    #[error("{path}: {what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Returns what else can be done about a device that is too small.
fn or_less(most_mib: u64) -> String {
    match most_mib {
        0 => String::new(),
        most => format!(", or a size_mib of at most {most} for it"),
    }
}

impl DiskError {
    /// Makes a [`DiskError::Io`] from the system's error while `what` was done to `path`.
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}
