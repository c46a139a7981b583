//! A device in a file or block device, with direct I/O where the file system allows it.

use std::{
    fs::{File, Metadata, OpenOptions, TryLockError},
    io::{self, Seek, SeekFrom},
    ops::Range,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use plexus_base::{
    aligned::{ALIGN, Buffer, is_aligned},
    durable,
};
use rustix::fs::OFlags;

use super::Device;
use crate::{
    DiskError, UNIT,
    group::{check_room, create_file, preallocate},
};

/// A device in a file. All I/O is positioned, so threads may share it.
pub struct FileDevice {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) is_direct: bool,
    length: u64,
    /// True after a failed sync: the system reports such a failure only once.
    has_failed: AtomicBool,
}

impl FileDevice {
    /// Creates a file of `length` bytes, so that no later write finds its file system full, and
    /// writes zeros to the first `zeros` of them. The first write of any other bytes also changes
    /// what the file system knows of the file. The file is durable when this returns.
    ///
    /// # Errors
    /// A file exists, the room does not suffice, or the system refuses. Then no new file remains.
    pub fn create(path: &Path, length: u64, zeros: u64) -> Result<Self, DiskError> {
        check_room(&[path.to_owned()], length)?;
        let file = create_file(path)?;
        let made = preallocate(&file, 0..length).and_then(|()| write_zeros(&file, 0..zeros));
        let made = made.and_then(|()| file.sync_all());
        let made = made.and_then(|()| durable::sync_name(path));
        made.map_err(DiskError::io("writing zeros", path)).and_then(|()| Self::open(path)).inspect_err(|_| {
            // The error that led here is the one to report.
            let _ = std::fs::remove_file(path);
        })
    }

    /// Opens an existing file.
    ///
    /// # Errors
    /// The system refuses.
    pub fn open(path: &Path) -> Result<Self, DiskError> {
        Self::open_raw(path).map_err(DiskError::io("opening a device", path))
    }

    /// Opens a file or block device that nothing else may have open in this way. A block device
    /// must not be mounted or belong to another device either.
    ///
    /// # Errors
    /// It is in use, or the system refuses.
    pub(crate) fn open_alone(path: &Path) -> Result<Self, DiskError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::ResourceBusy => DiskError::InUse { path: path.into() },
            _ => DiskError::io("opening a disk", path)(source),
        };
        let is_block_device = std::fs::metadata(path).map_err(failed)?.file_type().is_block_device();
        let flags = if is_block_device { OFlags::EXCL } else { OFlags::empty() };
        let device = Self::open_with(path, flags).map_err(failed)?;
        if is_block_device {
            return Ok(device);
        }
        match device.file.try_lock() {
            Ok(()) => Ok(device),
            Err(TryLockError::WouldBlock) => Err(DiskError::InUse { path: path.into() }),
            Err(TryLockError::Error(source)) => Err(DiskError::io("locking a disk", path)(source)),
        }
    }

    pub(crate) fn open_raw(path: &Path) -> io::Result<Self> {
        Self::open_with(path, OFlags::empty())
    }

    fn open_with(path: &Path, also: OFlags) -> io::Result<Self> {
        let open = |flags: OFlags| {
            let flags = (flags | also).bits() as i32;
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
        };
        // Some file systems refuse the flag at open, some only at the first read.
        let direct = open(OFlags::DIRECT).ok().filter(|file| {
            let read = file.read_at(&mut Buffer::zeroed(ALIGN), 0);
            !read.is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput)
        });
        let is_direct = direct.is_some();
        let mut file = direct.map_or_else(|| open(OFlags::empty()), Ok)?;
        let length = file.seek(SeekFrom::End(0))?;
        Ok(Self { path: path.into(), file, is_direct, length, has_failed: AtomicBool::new(false) })
    }

    /// Returns true if the path still leads to this file.
    pub(crate) fn is_in_place(&self) -> bool {
        let identity = |meta: Metadata| (meta.dev(), meta.ino(), meta.rdev());
        let open = self.file.metadata().map(identity);
        open.is_ok_and(|open| std::fs::metadata(&self.path).is_ok_and(|meta| identity(meta) == open))
    }

    /// Returns true after a failed sync.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }

    pub(crate) fn failure(&self, source: io::Error, expected: u64) -> DiskError {
        match (source.kind(), self.file.metadata()) {
            (io::ErrorKind::UnexpectedEof, Ok(now)) => {
                DiskError::Truncated { path: self.path.clone(), found: now.len(), expected }
            }
            _ => DiskError::io("reading", &self.path)(source),
        }
    }
}

impl Device for FileDevice {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
        let result = if is_aligned(into) || !self.is_direct {
            self.file.read_exact_at(into, offset)
        } else {
            let mut aligned = Buffer::zeroed(into.len());
            let read = self.file.read_exact_at(&mut aligned, offset);
            read.inspect(|()| into.copy_from_slice(&aligned[..into.len()]))
        };
        result.map_err(|source| self.failure(source, offset + into.len() as u64))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DiskError> {
        let result = if is_aligned(from) || !self.is_direct {
            self.file.write_all_at(from, offset)
        } else {
            let mut aligned = Buffer::zeroed(from.len());
            aligned[..from.len()].copy_from_slice(from);
            self.file.write_all_at(&aligned, offset)
        };
        result.map_err(DiskError::io("writing", &self.path))
    }

    fn sync(&self) -> Result<(), DiskError> {
        let synced = match self.has_failed.load(Relaxed) {
            true => Err(io::Error::other("an earlier attempt failed, so what was written is in doubt")),
            false => self.file.sync_data(),
        };
        self.has_failed.fetch_or(synced.is_err(), Relaxed);
        synced.map_err(DiskError::io("making writes durable", &self.path))
    }
}

/// Writes zeros to a file.
pub(crate) fn write_zeros(file: &File, bytes: Range<u64>) -> io::Result<()> {
    let zeros = Buffer::zeroed(UNIT as usize);
    bytes.clone().step_by(UNIT as usize).try_for_each(|at| {
        let bytes = UNIT.min(bytes.end - at) as usize;
        file.write_all_at(&zeros[..bytes], at)
    })
}
