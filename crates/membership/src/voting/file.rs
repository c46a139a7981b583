//! A voting file as this host reaches it: making one, and turns at it.
//!
//! **A turn** writes blocks and then reads the whole file, from the disk and not from a cache: what it read was there after its writes were. I/O is
//! direct where the file system takes it. Elsewhere writes are made durable and the cache is dropped before each read, as far as the
//! system obeys; a file that several hosts share must stand where direct I/O works.
//!
//! **What must last** ([`Writes::must_last`](crate::protocol::Writes::must_last)) is durable before the turn reads. Other heartbeats are made so
//! [later](super::settler): the turn would have to wait until the disk's cache is empty, which on a busy disk, whoever keeps it busy, takes longer than
//! a lease lasts.
//!
//! The path counts: if another file stands there before a turn, that one is opened. So a node that runs and one that starts never use different files.

use std::{
    fs::{File, Metadata, OpenOptions},
    io,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use plexus_base::{aligned::Buffer, durable};
use rustix::fs::{Advice, OFlags};

use super::{
    format::{self, BLOCK, BlockError, FILE, FileName, Header},
    settler::{Counters, Settler},
};
use crate::protocol::View;

/// Why a voting file could not be made, written or read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system's word.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What stands there is no voting file, or another.
    #[error("{}: {source}", path.display())]
    Block {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: BlockError,
    },
    /// A device that is not empty may be somebody's.
    #[error("{} is not empty; clear its first {FILE} bytes if it is to be a voting file", .0.display())]
    InUse(PathBuf),
}

impl FileError {
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { doing, path, source }
    }
}

/// Makes the voting file `name` at `path`: a new file, or a block device whose beginning is zero. Every block is written and durable
/// when this returns, so that no later write needs space. `first` is the last view that is known to be decided.
///
/// # Errors
/// Something stands there already, or the system's; what was made is removed then.
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
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(FileError::io("create", path))?;
    let made = fill(&file, name, first).and_then(|()| durable::sync_name(path));
    made.map_err(|source| {
        // It is of no use to anybody.
        let _ = std::fs::remove_file(path);
        FileError::io("write", path)(source)
    })
}

/// Takes back what [`create`] made at `path`, before anybody was asked to vote there: a file goes, a device is empty again.
///
/// # Errors
/// The system's.
pub fn discard(path: &Path) -> Result<(), FileError> {
    if !is_device(path) {
        let removed = std::fs::remove_file(path).and_then(|()| durable::sync_name(path));
        return removed.map_err(FileError::io("remove", path));
    }
    let device = OpenOptions::new().write(true).open(path).map_err(FileError::io("open", path))?;
    // All else is zero still.
    let emptied = device.write_all_at(&[0; BLOCK], 0).and_then(|()| device.sync_all());
    emptied.map_err(FileError::io("write", path))
}

/// Whether the voting file `name` is at `path`, as this host sees it.
///
/// # Errors
/// It is not, or the system's.
pub fn look(path: &Path, name: FileName) -> Result<(), FileError> {
    let mut disk = Disk::open(path)?;
    let found = Header::decode(name, &disk.turn([])?[..BLOCK]);
    found.map(drop).map_err(|source| FileError::Block { path: path.into(), source })
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// The header comes last: a file that was not wholly made is none.
fn fill(file: &File, name: FileName, first: &View) -> io::Result<()> {
    let header = Header { name, first: first.clone() }.encode();
    file.write_all_at(&vec![0; FILE], 0)?;
    file.sync_all()?;
    file.write_all_at(&header, 0)?;
    file.sync_all()
}

/// A voting file, open. Where a turn fails it is opened anew: what that one wrote may not be durable.
pub(super) struct Disk {
    path: PathBuf,
    file: File,
    identity: (u64, u64),
    block: Buffer,
    /// As the last turn has read it.
    whole: Buffer,
    /// After the first turn.
    is_known: bool,
    /// The heartbeats that were written, and those of them that are durable.
    written: Counters,
    /// Nobody where the file is not read and written past the system's cache: each of its turns waits until it is durable.
    settler: Option<Settler>,
}

impl Disk {
    pub(super) fn open(path: &Path) -> Result<Self, FileError> {
        let open = |flags: OFlags| {
            OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(path)
        };
        // Some file systems refuse the flag, some only the first read.
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
        let (path, identity) = (path.to_path_buf(), identity(&meta));
        let start = || file.try_clone().and_then(Settler::start).map_err(FileError::io("open", &path));
        let settler = is_direct.then(start).transpose()?;
        let (is_known, written) = (false, Counters::default());
        Ok(Self { path, file, identity, block, whole, is_known, written, settler })
    }

    /// Whether its path still leads to it.
    pub(super) fn is_in_place(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|meta| identity(&meta) == self.identity)
    }

    /// Writes these blocks, by number, and reads them all.
    pub(super) fn turn<'a>(
        &mut self,
        writes: impl IntoIterator<Item = &'a (usize, Vec<u8>)>,
    ) -> Result<&[u8], FileError> {
        if let Some(source) = self.settler.as_ref().and_then(Settler::failure) {
            return Err(FileError::io("write", &self.path)(source));
        }
        // What somebody has left before the first turn may not be durable, and is found now.
        let (mut wrote, mut must_last) = (false, !self.is_known || self.settler.is_none());
        for (number, bytes) in writes {
            let at = number * BLOCK;
            self.block.copy_from_slice(bytes);
            let written = self.file.write_all_at(&self.block, at as u64);
            written.map_err(FileError::io("write", &self.path))?;
            if let Some((node, counter)) = format::beat(*number, bytes) {
                self.written[node.index()] = counter;
            }
            must_last = must_last || format::must_last(*number, &self.whole[at..at + BLOCK], bytes);
            wrote = true;
        }
        let lags = |settler: &Settler| wrote && settler.wrote(&self.written);
        if must_last || self.settler.as_ref().is_some_and(lags) {
            self.file.sync_data().map_err(FileError::io("write", &self.path))?;
            self.settler.iter().for_each(|settler| settler.settled(&self.written));
        }
        if self.settler.is_none() {
            // Where it is not obeyed, the cache is all that there is.
            let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
        }
        self.file.read_exact_at(&mut self.whole, 0).map_err(FileError::io("read", &self.path))?;
        self.is_known = true;
        Ok(&self.whole)
    }
}

fn identity(meta: &Metadata) -> (u64, u64) {
    match meta.file_type().is_block_device() {
        true => (0, meta.rdev()),
        false => (meta.dev(), meta.ino()),
    }
}
