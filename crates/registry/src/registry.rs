//! The registry of one node over two files, for one thread that may wait for disks.
//!
//! Guarantees: what a call reports as done is durable; an error says which file and why. Must not know other nodes.

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    Files,
    files::{read, replace},
    protocol::{
        Action, Bad, COPIES, Changed, ClusterName, Command, Contents, Event, Failed, Kind, Origin, Store,
        Ticket, Unopened, decode, encode,
    },
};

/// Why the registry could not be made, opened, changed, backed up or restored.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The copies that are there do not say what the registry holds.
    #[error("{}, {}: {why}", paths[0].display(), paths[1].display())]
    Unopened {
        /// Where the copies are.
        paths: [PathBuf; COPIES],
        /// What is wrong.
        why: Unopened,
    },
    /// A command was not done.
    #[error("{failed}{}", last.as_ref().map_or(String::new(), |last| format!(" ({last})")))]
    Failed {
        /// Why.
        failed: Failed,
        /// What the system said last.
        last: Option<String>,
    },
    /// Neither copy can be written.
    #[error("neither copy of the registry can be written: {last}; make room or mend the disks")]
    Unsaved {
        /// What the system said last.
        last: String,
    },
    /// There is a registry already.
    #[error("{}: exists already and will not be overwritten; remove it or choose another path", path.display())]
    Exists {
        /// The copy.
        path: PathBuf,
    },
    /// A backup is not usable.
    #[error("{}: the backup {bad}", path.display())]
    Backup {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        bad: Bad,
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

/// The registry of one node.
pub struct Registry {
    store: Store,
    files: Files,
    /// What was done and nobody has asked for yet.
    changes: Vec<Changed>,
    /// What the system said of each copy when it failed last.
    trouble: [Option<String>; COPIES],
    tickets: u64,
}

impl Registry {
    /// A new registry of `cluster`, empty, where no copy is yet.
    ///
    /// # Errors
    /// A copy exists, or none can be written.
    pub fn create(files: Files, cluster: ClusterName) -> Result<Self, RegistryError> {
        if let Some(copy) = (0..COPIES).find(|copy| files.path(*copy).symlink_metadata().is_ok()) {
            return Err(RegistryError::Exists { path: files.path(copy).into() });
        }
        Self::begin(files, |_, mut out| Ok(Store::create(cluster, &mut out)))
    }

    /// Opens the registry of `cluster`, repairing what can be; `known` is the newest generation that the cluster remembers
    /// elsewhere (0: none).
    ///
    /// # Errors
    /// No copy is believed, or none can be made durable.
    pub fn open(files: Files, cluster: ClusterName, known: u64) -> Result<Self, RegistryError> {
        Self::begin(files, |files, mut out| Store::open(cluster, known, files.found(), &mut out))
    }

    /// Makes a registry of a backup where no copy is usable any more. Its generation is above that of the backup, `known`, and all that
    /// can be read of the copies.
    ///
    /// # Errors
    /// The backup is not usable, a copy belongs to another cluster or a newer program, or none can be written.
    pub fn create_from(
        files: Files,
        cluster: ClusterName,
        known: u64,
        backup: &Path,
    ) -> Result<Self, RegistryError> {
        let backup = Arc::new(read_backup(backup, cluster)?);
        Self::begin(files, |files, mut out| Store::restore(cluster, known, files.found(), backup, &mut out))
    }

    fn begin(
        files: Files,
        make: impl FnOnce(&Files, &mut dyn FnMut(Action)) -> Result<Store, Unopened>,
    ) -> Result<Self, RegistryError> {
        let mut actions = Vec::new();
        let made = make(&files, &mut |action| actions.push(action));
        let paths = || [0, 1].map(|copy| files.path(copy).to_owned());
        let store = made.map_err(|why| RegistryError::Unopened { paths: paths(), why })?;
        let mut registry = Self { store, files, changes: Vec::new(), trouble: [None, None], tickets: 0 };
        registry.carry_out(actions);
        if registry.store.is_ready() {
            return Ok(registry);
        }
        Err(RegistryError::Unsaved { last: registry.last_trouble().unwrap_or_default() })
    }

    /// What is durable.
    #[must_use]
    pub fn contents(&self) -> &Arc<Contents> {
        self.store.contents()
    }

    /// Does a command; the generation that it made. With an `origin` the last command of a node is done once, however often it is sent.
    ///
    /// # Errors
    /// It is refused, or cannot be saved.
    pub fn command(&mut self, origin: Option<Origin>, command: Command) -> Result<u64, RegistryError> {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let answers = self.handle(Event::Submit { ticket, origin, command });
        let answer = answers.into_iter().find(|(to, _)| *to == ticket).expect("each command is answered").1;
        answer.map_err(|failed| {
            let last = matches!(failed, Failed::Unsaved { .. }).then(|| self.last_trouble()).flatten();
            RegistryError::Failed { failed, last }
        })
    }

    /// Tries a copy again that failed. To be called every few seconds while [`Registry::trouble`] says something.
    pub fn repair(&mut self) {
        self.handle(Event::Repair);
    }

    /// What was done since this was called last, in order: for [`crate::protocol::Watches`].
    pub fn take_changes(&mut self) -> Vec<Changed> {
        std::mem::take(&mut self.changes)
    }

    /// Why a copy is not up to date, for each that is not.
    pub fn trouble(&self) -> impl Iterator<Item = &str> {
        let newest = Some(self.contents().generation());
        let behind = (0..COPIES).filter(move |copy| self.store.holds()[*copy] != newest);
        behind.filter_map(|copy| self.trouble[copy].as_deref())
    }

    /// Writes all contents into a file, instead of what is there.
    ///
    /// # Errors
    /// The system's; what was there before is there still.
    pub fn backup(&self, path: &Path) -> Result<(), RegistryError> {
        let image = encode(Kind::Backup, self.contents());
        replace(path, &image).map_err(io("written", path))
    }

    /// Makes everything what a backup holds, as one change; its generation.
    ///
    /// # Errors
    /// The backup is not usable, or cannot be saved.
    pub fn restore(&mut self, origin: Option<Origin>, backup: &Path) -> Result<u64, RegistryError> {
        let contents = read_backup(backup, self.contents().cluster())?;
        self.command(origin, Command::Restore(Arc::new(contents)))
    }

    fn handle(&mut self, event: Event) -> Vec<(Ticket, Result<u64, Failed>)> {
        let mut actions = Vec::new();
        self.store.handle(event, &mut |action| actions.push(action));
        self.carry_out(actions)
    }

    fn carry_out(&mut self, actions: Vec<Action>) -> Vec<(Ticket, Result<u64, Failed>)> {
        let mut answers = Vec::new();
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Step(copy, step) => {
                    let result = self.files.step(copy, &step);
                    if let Err(error) = &result {
                        self.trouble[copy] = Some(format!("{}: {error}", self.files.path(copy).display()));
                    }
                    let mut out = |action| actions.push_back(action);
                    self.store.handle(Event::Stepped(result.is_ok()), &mut out);
                }
                Action::Answer(ticket, result) => answers.push((ticket, result)),
                Action::Changed(changed) => self.changes.push(changed),
            }
        }
        answers
    }

    fn last_trouble(&self) -> Option<String> {
        self.trouble.iter().flatten().next_back().cloned()
    }
}

fn read_backup(path: &Path, cluster: ClusterName) -> Result<Contents, RegistryError> {
    let image = read(path).map_err(io("read", path))?;
    decode(Kind::Backup, cluster, &image).map_err(|bad| RegistryError::Backup { path: path.into(), bad })
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RegistryError {
    let path = path.into();
    move |source| RegistryError::Io { what, path, source }
}
