//! The two copies of one node as files, for one thread that may wait for disks.
//!
//! Guarantees: contents that are reported as saved are durable; a problem with a copy is reported
//! with its path and the reason. Must not know other nodes.

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use plexus_base::durable::{advice, replace};

use crate::{
    Files, Places,
    files::read,
    protocol::{
        Action, COPIES, ClusterName, Contents, Event, ImageError, Kind, OpenError, Opened, Store, decode,
        encode, open,
    },
};

/// The reason why the copies or a backup cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CopiesError {
    /// The copies that are there must not be overwritten.
    #[error("{}, {}: {why}", paths[0].display(), paths[1].display())]
    Unopened {
        /// The paths of the copies.
        paths: [PathBuf; COPIES],
        /// The reason.
        why: OpenError,
    },
    /// A backup cannot be used.
    #[error("{}: the backup {bad}", path.display())]
    Backup {
        /// The path of the backup.
        path: PathBuf,
        /// The reason.
        bad: ImageError,
    },
    /// A backup would replace a file that is not a backup.
    #[error("{}: exists and is not a backup of a registry; choose another path", path.display())]
    Exists {
        /// The path of that file.
        path: PathBuf,
    },
    /// A backup would be written where a copy belongs.
    #[error("{}: a copy of the registry belongs there and would replace the backup; choose another path", path.display())]
    Place {
        /// The path of that copy.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{}: cannot be {what}: {source}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// The two copies of a node.
pub struct Copies {
    store: Store,
    files: Files,
    /// The problem of each copy, as far as it is known.
    trouble: [Option<String>; COPIES],
    /// Whether the last write of each copy failed for another reason than a full disk.
    is_refused: [bool; COPIES],
}

impl Copies {
    /// Reads the copies of the registry of `cluster`, without a write, and returns the contents to
    /// start with.
    ///
    /// # Errors
    /// The copies must not be overwritten.
    pub fn open(files: Files, cluster: ClusterName) -> Result<(Self, Opened), CopiesError> {
        let opened = open(cluster, &files.found()).map_err(|why| {
            let paths = [0, 1].map(|copy| files.places().path(copy).to_owned());
            CopiesError::Unopened { paths, why }
        })?;
        let named = |copy: usize, what: &String| format!("{}: {what}", files.places().path(copy).display());
        let trouble = [0, 1].map(|copy| opened.trouble[copy].as_ref().map(|what| named(copy, what)));
        let is_refused = [false; COPIES];
        Ok((Self { store: Store::new(opened.holds), files, trouble, is_refused }, opened))
    }

    /// Makes contents durable, which must be newer than the last. Returns the generation that
    /// became durable, if any.
    pub fn save(&mut self, contents: Arc<Contents>) -> Option<u64> {
        self.handle(Event::Save(contents))
    }

    /// Repeats what failed. Returns the generation that became durable, if any.
    pub fn repair(&mut self) -> Option<u64> {
        self.handle(Event::Repair)
    }

    /// Reserves space for the next contents.
    ///
    /// # Errors
    /// Neither copy has space for larger contents; the text has the path and the reason.
    pub fn reserve(&mut self) -> Result<(), String> {
        let [one, two] = self.files.reserve();
        let named = |error: io::Error| {
            format!("{}: {}{error}", self.files.places().path(1).display(), advice(&error))
        };
        one.or(two).map_err(named)
    }

    /// Returns true if the last contents are in neither copy, for another reason than a full disk.
    pub fn is_unwritable(&self) -> bool {
        self.is_refused == [true; COPIES]
    }

    /// Returns the problem of each copy that does not hold the last saved contents.
    pub fn trouble(&self) -> impl Iterator<Item = &str> {
        self.trouble.iter().flatten().map(String::as_str)
    }

    fn handle(&mut self, event: Event) -> Option<u64> {
        let mut actions = VecDeque::new();
        self.store.handle(event, &mut |action| actions.push_back(action));
        let mut saved = None;
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Step(copy, step) => {
                    let result = self.files.step(copy, &step);
                    if let Err(error) = &result {
                        self.trouble[copy] =
                            Some(format!("{}: {error}", self.files.places().path(copy).display()));
                        self.is_refused[copy] = advice(error).is_empty();
                    }
                    let stepped = Event::Stepped(result.is_ok());
                    self.store.handle(stepped, &mut |action| actions.push_back(action));
                }
                Action::Saved(generation) => saved = Some(generation),
            }
        }
        for (copy, is_whole) in self.store.is_whole().into_iter().enumerate() {
            self.trouble[copy].take_if(|_| is_whole);
            self.is_refused[copy] &= !is_whole;
        }
        saved
    }
}

/// Writes contents as a backup to `path`, where only an older backup may be.
///
/// # Errors
/// Another file is there, a copy belongs there, or the system failed. An earlier file stays as it
/// was.
pub fn write_backup(path: &Path, contents: &Contents, copies: &Places) -> Result<(), CopiesError> {
    if copies.is_place(path) {
        return Err(CopiesError::Place { path: path.into() });
    }
    match read(path) {
        Ok(image) if Kind::Backup.is(&image) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Ok(_) => return Err(CopiesError::Exists { path: path.into() }),
        Err(error) => return Err(io("overwritten", path)(error)),
    }
    replace(path, &encode(Kind::Backup, contents)).map_err(io("written", path))
}

/// Reads a backup of the registry of `cluster`.
///
/// # Errors
/// The file is not a backup, belongs to another cluster, or cannot be read.
pub fn read_backup(path: &Path, cluster: ClusterName) -> Result<Contents, CopiesError> {
    let image = read(path).map_err(io("read", path))?;
    decode(Kind::Backup, cluster, &image).map_err(|bad| CopiesError::Backup { path: path.into(), bad })
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CopiesError {
    let path = path.into();
    move |source| CopiesError::Io { what, path, source }
}
