//! Creation of a voting file, and turns at it, on this host.
//!
//! **A turn** writes blocks and then reads the whole file from the disk, not from a cache: the read
//! follows the writes. I/O is direct where the file system supports it. Elsewhere each turn makes
//! its writes durable and drops the cache before it reads, as far as the system allows. A file
//! shared by several hosts needs direct I/O.
//!
//! **Durability.** Blocks that [must be durable](crate::protocol::Writes::must_be_durable) are so
//! before the turn reads. Other heartbeats are made durable [later](super::syncer). A turn that
//! waited for them would wait until the disk's cache is empty, which on a busy disk takes longer
//! than a lease.
//!
//! **Other writers.** Before a turn writes, it reads the blocks that it is to write. If they are
//! not as the last turn has read them, another process has written them, and this turn only reads.
//! So a node finds out about a process that acts as the same node. The read and the write are not
//! one step: a write of that process between them is found by it, not by this node.
//!
//! **Replacement.** The path counts: a turn opens the file that is at the path. So a running node
//! and a starting one never use different files.

use std::{
    fs::{File, Metadata, OpenOptions},
    io,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use plexus_base::{aligned::Buffer, durable};
use rustix::{
    fs::{Advice, OFlags},
    io::Errno,
};

use super::{
    format::{self, BLOCK, BlockError, FILE, FileName, Header},
    syncer::{Counters, Syncer},
};
use crate::protocol::View;

/// An error of creating, writing or reading a voting file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// An I/O error.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not this voting file.
    #[error("{}: {source}", path.display())]
    Block {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        source: BlockError,
    },
    /// The device is not empty and may be in use.
    #[error("{} is not empty; clear its first {FILE} bytes to use it as a voting file", .0.display())]
    InUse(PathBuf),
}

impl FileError {
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { doing, path, source }
    }
}

/// Creates the voting file `name` at `path`: a new file, or a block device that begins with zeros.
/// Every block is written and durable on return, so that no later write needs space. `first` is the
/// last view known to be decided.
///
/// # Errors
/// Returns an error if the path is in use or I/O fails; a new file is removed then.
pub fn create(path: &Path, name: FileName, first: &View) -> Result<(), FileError> {
    if is_device(path) {
        let device = OpenOptions::new().read(true).write(true).open(path);
        let device = device.map_err(FileError::io("open", path))?;
        let mut found = vec![0; FILE];
        device.read_exact_at(&mut found, 0).map_err(FileError::io("read", path))?;
        if found.iter().any(|byte| *byte != 0) {
            return Err(FileError::InUse(path.into()));
        }
        return fill(&device, name, first).map_err(FileError::io("write", path));
    }
    if std::fs::symlink_metadata(path).is_ok() {
        return Err(FileError::io("create", path)(Errno::EXIST.into()));
    }
    // It gets its name when it is complete, so an interrupted creation can be repeated.
    let new = durable::beside(path);
    let file = durable::make(&new).map_err(FileError::io("create", path))?;
    let made = fill(&file, name, first).and_then(|()| durable::rename(&new, path));
    made.map_err(|source| {
        // The incomplete file is useless.
        let _ = std::fs::remove_file(&new);
        FileError::io("write", path)(source)
    })
}

/// Undoes [`create`] before any node votes in the file: removes the file, or clears the device.
///
/// # Errors
/// Returns the I/O error.
pub fn discard(path: &Path) -> Result<(), FileError> {
    if !is_device(path) {
        let removed = std::fs::remove_file(path).and_then(|()| durable::sync_name(path));
        return removed.map_err(FileError::io("remove", path));
    }
    let device = OpenOptions::new().write(true).open(path).map_err(FileError::io("open", path))?;
    // All other bytes are still zero.
    let emptied = device.write_all_at(&[0; BLOCK], 0).and_then(|()| device.sync_all());
    emptied.map_err(FileError::io("write", path))
}

/// Returns the name of the voting file at `path`, or `None` if nothing or something else is there.
///
/// # Errors
/// Returns an error if I/O fails.
pub fn name_at(path: &Path) -> Result<Option<FileName>, FileError> {
    let mut header = [0; BLOCK];
    let is_candidate =
        std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() >= FILE as u64);
    if !is_candidate && !is_device(path) {
        return Ok(None);
    }
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut header, 0));
    read.map_err(FileError::io("read", path))?;
    Ok(Header::name(&header))
}

/// Checks that the voting file `name` is at `path` on this host.
///
/// # Errors
/// Returns an error if it is not, or if I/O fails.
pub fn look(path: &Path, name: FileName) -> Result<(), FileError> {
    let mut disk = Disk::open(path)?;
    let found = Header::decode(name, &disk.turn([])?[..BLOCK]);
    found.map(drop).map_err(|source| FileError::Block { path: path.into(), source })
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// Writes the header last, so that an incomplete file is not a voting file.
fn fill(file: &File, name: FileName, first: &View) -> io::Result<()> {
    let header = Header { name, first: first.clone() }.encode();
    file.write_all_at(&vec![0; FILE], 0)?;
    file.sync_all()?;
    file.write_all_at(&header, 0)?;
    file.sync_all()
}

/// The identity of a file, which another file at the same path does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FileIdentity {
    /// The number of a block device.
    Device(u64),
    Inode {
        device: u64,
        inode: u64,
    },
}

/// An open voting file. After a failed turn it is opened again, because the writes may not be
/// durable.
pub(super) struct Disk {
    path: PathBuf,
    file: File,
    identity: FileIdentity,
    block: Buffer,
    /// The content that the last turn read.
    whole: Buffer,
    /// True after the first turn.
    is_known: bool,
    /// The counters of the written heartbeats.
    written: Counters,
    /// `None` if I/O is not direct: then each turn waits until its writes are durable.
    syncer: Option<Syncer>,
}

impl Disk {
    pub(super) fn open(path: &Path) -> Result<Self, FileError> {
        let open = |flags: OFlags| {
            OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(path)
        };
        // Some file systems refuse the flag, others only the first read.
        let direct = open(OFlags::DIRECT).ok().filter(|file| {
            let read = file.read_at(&mut Buffer::zeroed(BLOCK), 0);
            !read.is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput)
        });
        let is_direct = direct.is_some();
        let file = match direct {
            Some(file) => file,
            None => open(OFlags::empty()).map_err(FileError::io("open", path))?,
        };
        let meta = file.metadata().map_err(FileError::io("look at", path))?;
        let (block, whole) = (Buffer::zeroed(BLOCK), Buffer::zeroed(FILE));
        let (path, identity) = (path.to_path_buf(), FileIdentity::of(&meta));
        let start = || file.try_clone().and_then(Syncer::start).map_err(FileError::io("open", &path));
        let syncer = is_direct.then(start).transpose()?;
        Ok(Self { path, file, identity, block, whole, is_known: false, written: Counters::default(), syncer })
    }

    /// Returns true if the path still leads to this file.
    pub(super) fn is_in_place(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|meta| FileIdentity::of(&meta) == self.identity)
    }

    /// Writes these blocks by number, for each node that has a turn, and reads all blocks. The
    /// blocks of a node are written only if they are as the last turn has read them.
    pub(super) fn turn<'a>(
        &mut self,
        turns: impl IntoIterator<Item = &'a [(usize, Vec<u8>)]>,
    ) -> Result<&[u8], FileError> {
        if let Some(source) = self.syncer.as_ref().and_then(Syncer::failure) {
            return Err(FileError::io("write", &self.path)(source));
        }
        // Content from before the first turn may not be durable, and this turn reads it.
        let mut must_be_durable = !self.is_known || self.syncer.is_none();
        let mut wrote = false;
        let mut writes = Vec::new();
        for turn in turns {
            if self.are_as_read(turn)? {
                writes.extend(turn);
            }
        }
        for (number, bytes) in writes {
            let at = number * BLOCK;
            self.block.copy_from_slice(bytes);
            let written = self.file.write_all_at(&self.block, at as u64);
            written.map_err(FileError::io("write", &self.path))?;
            if let Some((node, counter)) = format::beat(*number, bytes) {
                self.written[node.index()] = counter;
            }
            must_be_durable =
                must_be_durable || format::must_be_durable(*number, &self.whole[at..at + BLOCK], bytes);
            wrote = true;
        }
        let lags = |syncer: &Syncer| wrote && syncer.wrote(&self.written);
        if must_be_durable || self.syncer.as_ref().is_some_and(lags) {
            self.file.sync_data().map_err(FileError::io("write", &self.path))?;
            self.syncer.iter().for_each(|syncer| syncer.synced(&self.written));
        }
        if self.syncer.is_none() {
            // If the system ignores this, reads come from the cache.
            let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
        }
        self.file.read_exact_at(&mut self.whole, 0).map_err(FileError::io("read", &self.path))?;
        self.is_known = true;
        Ok(&self.whole)
    }

    /// Returns true if the blocks of a turn are as the last turn has read them. The first turn
    /// compares with nothing.
    fn are_as_read(&mut self, turn: &[(usize, Vec<u8>)]) -> Result<bool, FileError> {
        for (number, _) in turn.iter().filter(|_| self.is_known) {
            let at = number * BLOCK;
            let found = self.file.read_exact_at(&mut self.block, at as u64);
            found.map_err(FileError::io("read", &self.path))?;
            if self.block[..] != self.whole[at..at + BLOCK] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl FileIdentity {
    fn of(meta: &Metadata) -> Self {
        match meta.file_type().is_block_device() {
            true => Self::Device(meta.rdev()),
            false => Self::Inode { device: meta.dev(), inode: meta.ino() },
        }
    }
}
