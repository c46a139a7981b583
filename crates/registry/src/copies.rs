//! The two copies of one node as files, for one thread that may wait for disks.
//!
//! Guarantees: what is reported as saved is durable; what is wrong with a copy is said with its path and the reason. Must not know other nodes.

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use plexus_base::durable::replace;

use crate::{
    Files, Places,
    files::read,
    protocol::{
        Action, Bad, COPIES, ClusterName, Contents, Event, Kind, Opened, Store, Unopened, decode, encode,
        open,
    },
};

/// Why the copies are not usable, or a backup is not.
#[derive(Debug, thiserror::Error)]
pub enum CopiesError {
    /// The copies that are there must not be overwritten.
    #[error("{}, {}: {why}", paths[0].display(), paths[1].display())]
    Unopened {
        /// Where the copies are.
        paths: [PathBuf; COPIES],
        /// What is wrong.
        why: Unopened,
    },
    /// A backup is not usable.
    #[error("{}: the backup {bad}", path.display())]
    Backup {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        bad: Bad,
    },
    /// A backup would be written over something else.
    #[error("{}: is there already and is no backup of a registry; choose another path", path.display())]
    Exists {
        /// Where it would be.
        path: PathBuf,
    },
    /// A backup would be written where a copy belongs.
    #[error("{}: a copy of the registry belongs there, and would be written over the backup; choose another path", path.display())]
    Place {
        /// Where it would be.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{}: cannot be {what}: {source}", path.display())]
    Io {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// The two copies of a node.
pub struct Copies {
    store: Store,
    files: Files,
    /// What is wrong with each copy, as far as it is known.
    trouble: [Option<String>; COPIES],
}

impl Copies {
    /// Looks at the copies of the registry of `cluster` that are there, and what can be made of them. Writes nothing.
    ///
    /// # Errors
    /// They must not be overwritten.
    pub fn open(files: Files, cluster: ClusterName) -> Result<(Self, Opened), CopiesError> {
        let opened = open(cluster, &files.found()).map_err(|why| {
            let paths = [0, 1].map(|copy| files.places().path(copy).to_owned());
            CopiesError::Unopened { paths, why }
        })?;
        let named = |copy: usize, what: &String| format!("{}: {what}", files.places().path(copy).display());
        let trouble = [0, 1].map(|copy| opened.trouble[copy].as_ref().map(|what| named(copy, what)));
        Ok((Self { store: Store::new(opened.holds), files, trouble }, opened))
    }

    /// Makes contents durable; the generation that is, if any became so. Contents must be newer than the last.
    pub fn save(&mut self, contents: Arc<Contents>) -> Option<u64> {
        self.handle(Event::Save(contents))
    }

    /// Tries again what failed; the generation that became durable, if any did.
    pub fn repair(&mut self) -> Option<u64> {
        self.handle(Event::Repair)
    }

    /// What is wrong with each copy that does not hold what was saved last.
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
                    }
                    let stepped = Event::Stepped(result.is_ok());
                    self.store.handle(stepped, &mut |action| actions.push_back(action));
                }
                Action::Saved(generation) => saved = Some(generation),
            }
        }
        for (copy, is_whole) in self.store.is_whole().into_iter().enumerate() {
            self.trouble[copy].take_if(|_| is_whole);
        }
        saved
    }
}

/// Writes contents into a file as a backup, instead of a backup that is there.
///
/// # Errors
/// Something else is there, or a copy belongs there; or the system's. What was there is there still.
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

/// What a backup of the registry of `cluster` holds.
///
/// # Errors
/// It is none, or of another cluster; or the system's.
pub fn read_backup(path: &Path, cluster: ClusterName) -> Result<Contents, CopiesError> {
    let image = read(path).map_err(io("read", path))?;
    decode(Kind::Backup, cluster, &image).map_err(|bad| CopiesError::Backup { path: path.into(), bad })
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CopiesError {
    let path = path.into();
    move |source| CopiesError::Io { what, path, source }
}
