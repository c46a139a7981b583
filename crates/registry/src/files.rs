//! Two copies as two files, in one directory or on two disks.
//!
//! Beside each stands for the time of a save a new file, of the same name with `.new` behind it. A name that holds another's
//! place is never followed: new files are made, not opened.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use plexus_base::durable::{beside, make, sync_name};

use crate::protocol::{COPIES, Found, IMAGE_MAX, Step};

/// Where the copies are: two files that are not in each other's way.
#[derive(Clone)]
pub struct Places([PathBuf; COPIES]);

impl Places {
    /// Whether a copy or its new file belongs at `path`.
    #[must_use]
    pub fn is_place(&self, path: &Path) -> bool {
        let path = place(path);
        self.0.iter().any(|copy| path == place(copy) || path == place(&beside(copy)))
    }

    /// Where a copy is.
    #[must_use]
    pub fn path(&self, copy: usize) -> &Path {
        &self.0[copy]
    }
}

/// The copies.
pub struct Files {
    places: Places,
    /// The new file of each, from its making until it has the name.
    fresh: [Option<File>; COPIES],
}

impl Files {
    /// Copies at these two paths.
    ///
    /// # Errors
    /// They are the same, or one is where the other's new file is made.
    pub fn new(paths: [PathBuf; COPIES]) -> io::Result<Self> {
        let [one, two] = paths.each_ref().map(|path| [place(path), place(&beside(path))]);
        if one.iter().any(|place| two.contains(place)) {
            let [one, two] = paths.each_ref().map(|path| path.display());
            let what = format!("{one}, {two}: the copies of the registry would be in each other's way");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(Self { places: Places(paths), fresh: [None, None] })
    }

    /// Where they are.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// What stands there.
    #[must_use]
    pub fn found(&self) -> [Found; COPIES] {
        self.places.0.each_ref().map(|path| match read(path) {
            Ok(bytes) => Found::Bytes(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Missing,
            Err(error) => Found::Unreadable(error.to_string()),
        })
    }

    /// Does what the store says.
    ///
    /// # Errors
    /// The system's; the step may have happened all the same.
    pub fn step(&mut self, copy: usize, step: &Step) -> io::Result<()> {
        let path = &self.places.0[copy];
        let fresh = &mut self.fresh[copy];
        let none = || io::Error::other("there is no new file");
        match step {
            Step::Write(image) => {
                *fresh = None;
                fresh.insert(make(&beside(path))?).write_all(image)
            }
            Step::Sync => fresh.as_ref().ok_or_else(none)?.sync_all(),
            Step::Replace => {
                *fresh = None;
                fs::rename(beside(path), path)
            }
            Step::SyncName => sync_name(path),
        }
    }
}

/// The first bytes of a file: enough to see that it is no image when it is too long for one.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(IMAGE_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The same for each way in which the place of a file can be written, as long as its directory is there.
fn place(path: &Path) -> PathBuf {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.into());
    path.file_name().map_or_else(|| path.into(), |name| directory.join(name))
}
