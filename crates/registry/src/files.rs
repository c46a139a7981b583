//! Two copies as two files, in one directory or on two disks.
//!
//! Each has a new file beside it, of the same name with `.new` appended, which keeps room for the
//! next contents ([`ReservedFile`]).

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use plexus_base::{durable::beside, reserved::ReservedFile};
use rustix::fs::OFlags;

use crate::protocol::{COPIES, Found, IMAGE_MAX, RESERVE, Step};

/// The paths of the two copies, which do not collide.
#[derive(Clone)]
pub struct Places([PathBuf; COPIES]);

impl Places {
    /// True if a copy or its new file belongs at `path`.
    pub fn is_place(&self, path: &Path) -> bool {
        let path = place(path);
        self.0.iter().any(|copy| path == place(copy) || path == place(&beside(copy)))
    }

    /// Returns the path of a copy.
    pub fn path(&self, copy: usize) -> &Path {
        &self.0[copy]
    }
}

/// The two copies as open files.
pub struct Files {
    places: Places,
    copies: [ReservedFile; COPIES],
}

impl Files {
    /// Creates the copies at these two paths.
    ///
    /// # Errors
    /// The paths are the same, or one is the path of the other's new file.
    pub fn new(paths: [PathBuf; COPIES]) -> io::Result<Self> {
        let [one, two] = paths.each_ref().map(|path| [place(path), place(&beside(path))]);
        if one.iter().any(|place| two.contains(place)) {
            let [one, two] = paths.each_ref().map(|path| path.display());
            let what = format!("{one}, {two}: the copies of the registry would be in each other's way");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let copies = paths.clone().map(|path| ReservedFile::new(path, RESERVE));
        Ok(Self { places: Places(paths), copies })
    }

    /// Returns the paths of the copies.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Reads what is at the paths.
    pub fn found(&self) -> [Found; COPIES] {
        self.places.0.each_ref().map(|path| match read(path) {
            Ok(bytes) => Found::Bytes(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Missing,
            Err(error) => Found::Unreadable(error.to_string()),
        })
    }

    /// Carries out a step of the store.
    ///
    /// # Errors
    /// The system failed; the step may have taken effect all the same.
    pub fn step(&mut self, copy: usize, step: &Step) -> io::Result<()> {
        let file = &mut self.copies[copy];
        match step {
            Step::Write(image) => file.write(image),
            Step::Sync => file.sync(),
            Step::Replace => file.exchange(),
            Step::SyncName => file.sync_name(),
        }
    }

    /// Reserves space for the next contents in each copy.
    pub fn reserve(&mut self) -> [io::Result<()>; COPIES] {
        self.copies.each_mut().map(ReservedFile::reserve)
    }
}

/// Reads the first bytes of a file, up to one more than the longest image. Pipes and devices, which
/// a read could wait for without end, are refused.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(IMAGE_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the canonical path of a file that may not exist; its directory must exist.
fn place(path: &Path) -> PathBuf {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.into());
    path.file_name().map_or_else(|| path.into(), |name| directory.join(name))
}
