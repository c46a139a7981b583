//! How threads of a node use the registry.

use std::{
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};

use plexus_base::{Epoch, NodeSet};
use plexus_interconnect::Reply;

use crate::{
    CopiesError, Places,
    copies::{read_backup, write_backup},
    keeper::Keeper,
    protocol::{ClusterName, Command, Contents, News, Refused, WatchId},
    service::{Answer, Port, RegistryTask, WORKER},
    shared::Shared,
};

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The registry says why not; nothing has changed.
    #[error(transparent)]
    Refused(Refused),
    /// The node ends. What was asked for may have been done.
    #[error("the cluster has stopped; whether the change was made is known after the next start")]
    Stopped,
    /// A backup cannot be written or read.
    #[error(transparent)]
    Backup(#[from] CopiesError),
    /// Too many watch.
    #[error("too many watch the registry already; end a watch and try again")]
    Watches,
}

/// How it stands with the registry of this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegistryStatus {
    /// The view.
    pub epoch: Epoch,
    /// The generation that is shown; nothing before the first view has begun.
    pub generation: Option<u64>,
    /// How many keys there are.
    pub keys: usize,
    /// Where this node coordinates: whom the others wait for.
    pub awaited: NodeSet,
    /// What is wrong with the copies of this node.
    pub trouble: Vec<String>,
}

/// The registry of a node. Cheap to clone.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    keeper: Arc<Keeper>,
    port: Arc<Port>,
    shared: Arc<Shared>,
    cluster: ClusterName,
    /// Where backups must not be written.
    places: Places,
}

impl Registry {
    pub(crate) fn new(
        keeper: Arc<Keeper>,
        port: Arc<Port>,
        shared: Arc<Shared>,
        cluster: ClusterName,
        places: Places,
    ) -> Self {
        Self(Arc::new(Inner { keeper, port, shared, cluster, places }))
    }

    /// Asks for a command.
    #[must_use]
    pub fn ask(&self, command: Command) -> Waiting {
        let (reply, told) = Reply::channel();
        self.0.port.submit(WORKER, RegistryTask::Ask(command, reply));
        Waiting(told)
    }

    /// All that is committed as far as this node was told: after an answer at least what was answered. Nothing before the first view has begun.
    #[must_use]
    pub fn contents(&self) -> Option<Arc<Contents>> {
        self.0.shared.board().shown.clone()
    }

    /// Watches keys that begin with `prefix`, for changes after generation `from`: that of contents that were read before.
    ///
    /// # Errors
    /// Too many watch already.
    pub fn watch(&self, prefix: &str, from: u64) -> Result<Watch, RegistryError> {
        let id = self.0.shared.board().watches.watch(prefix, from).ok_or(RegistryError::Watches)?;
        Ok(Watch { shared: Arc::clone(&self.0.shared), id })
    }

    /// Writes all that this node shows into a file, instead of a backup that is there; its generation, nothing where nothing is shown yet.
    ///
    /// # Errors
    /// See [`write_backup`].
    pub fn backup(&self, path: &Path) -> Result<Option<u64>, RegistryError> {
        let Some(contents) = self.contents() else { return Ok(None) };
        write_backup(path, &contents, &self.0.places)?;
        Ok(Some(contents.generation()))
    }

    /// Reads a backup of this cluster, to be restored by [`Registry::ask`].
    ///
    /// # Errors
    /// See [`read_backup`].
    pub fn read_backup(&self, path: &Path) -> Result<Command, RegistryError> {
        Ok(Command::Restore(Arc::new(read_backup(path, self.0.cluster)?)))
    }

    /// Writes nothing any more, and waits until nothing is being written: another process may use the copies then. Not on a worker.
    pub fn end(&self) {
        self.0.keeper.end();
    }

    /// How it stands.
    #[must_use]
    pub fn status(&self) -> RegistryStatus {
        let board = self.0.shared.board();
        RegistryStatus {
            epoch: board.epoch,
            generation: board.shown.as_ref().map(|contents| contents.generation()),
            keys: board.shown.as_ref().map_or(0, |contents| contents.keys()),
            awaited: board.awaited,
            trouble: board.trouble.clone(),
        }
    }
}

/// A command that is not answered yet. Whoever drops it does not learn whether it was done.
pub struct Waiting(mpsc::Receiver<Answer>);

impl Waiting {
    /// Waits for the answer, for no longer than `limit`: the generation that the command made, or that was looked at. Nothing: there is no
    /// answer yet.
    pub fn wait(&self, limit: Duration) -> Option<Result<u64, RegistryError>> {
        match self.0.recv_timeout(limit) {
            Ok(answer) => Some(answer),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => Some(Err(RegistryError::Stopped)),
        }
    }
}

/// Nothing is shown any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the cluster has stopped")]
pub struct Ended;

/// A watch; see [`News`]. It ends when it is dropped.
pub struct Watch {
    shared: Arc<Shared>,
    id: WatchId,
}

impl Watch {
    /// Waits for what there is to say next, for no longer than `limit`; nothing: there is nothing yet.
    ///
    /// # Errors
    /// Nothing will come any more.
    pub fn next(&self, limit: Duration) -> Result<Option<News>, Ended> {
        let found = self.shared.wait(limit, |board| match board.watches.next(self.id) {
            Some(news) => Some(Ok(news)),
            None => board.is_stopped.then_some(Err(Ended)),
        });
        found.transpose()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.board().watches.end(self.id);
    }
}
