//! The handle through which threads of a node use the registry.

use std::{
    future::Future,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use plexus_base::{Epoch, NodeSet};
use plexus_interconnect::{Reply, executor};

use crate::{
    CopiesError, Places,
    copies::{read_backup, write_backup},
    keeper::Keeper,
    protocol::{ClusterName, Command, Contents, Refused, WatchEvent, WatchId},
    service::{Answer, RegistryPort, RegistryTask, WORKER},
    shared::{Apply, Shared},
};

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The registry refused the command; nothing has changed.
    #[error(transparent)]
    Refused(Refused),
    /// Members cannot write their copies, so nothing is answered.
    #[error("the copies of the registry on {nodes:?} cannot be written")]
    Unwritable {
        /// These members.
        nodes: NodeSet,
        /// True if the command may be carried out later.
        was_sent: bool,
    },
    /// The node is stopping. The command may have been carried out.
    #[error("the cluster has stopped; whether the change was made is known after the next start")]
    Stopped,
    /// A backup cannot be written or read.
    #[error(transparent)]
    Backup(#[from] CopiesError),
    /// The limit of watches is reached.
    #[error("too many watch the registry already; end a watch and try again")]
    Watches,
}

/// The state of the registry on this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegistryStatus {
    /// The view.
    pub epoch: Epoch,
    /// The generation that is shown; `None` before the first view has begun.
    pub generation: Option<u64>,
    /// The number of keys.
    pub keys: usize,
    /// On the coordinator: the members that the others wait for.
    pub awaited: NodeSet,
    /// The problems of this node's copies.
    pub trouble: Vec<String>,
}

/// The registry of a node. It is cheap to clone.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    keeper: Arc<Keeper>,
    port: Arc<RegistryPort>,
    shared: Arc<Shared>,
    cluster: ClusterName,
    /// The paths where backups must not be written.
    places: Places,
}

impl Registry {
    pub(crate) fn new(
        keeper: Arc<Keeper>,
        port: Arc<RegistryPort>,
        shared: Arc<Shared>,
        cluster: ClusterName,
        places: Places,
    ) -> Self {
        Self(Arc::new(Inner { keeper, port, shared, cluster, places }))
    }

    /// Submits a command.
    pub fn ask(&self, command: Command) -> PendingCommand {
        let (reply, answer) = Reply::new();
        self.0.port.request(WORKER, RegistryTask::Ask(command, reply));
        PendingCommand(answer)
    }

    /// Returns the committed contents that this node knows; they include every command that was
    /// answered here. `None` before the first view has begun.
    pub fn contents(&self) -> Option<Arc<Contents>> {
        self.0.shared.board().shown.clone()
    }

    /// Has `apply` called with the contents that the copies of this node have, and then with all
    /// that are saved, before this node reports them as durable. When a change is answered, all
    /// members have applied it. Contents may be applied that are never answered, because their
    /// coordinator was lost; contents that follow are newer. A change waits for `apply`, which must
    /// not wait for the registry.
    pub fn apply_before_report(&self, apply: Apply) {
        self.0.shared.apply_before_report(apply);
    }

    /// Watches keys that begin with `prefix`, for changes after generation `from`, which is that of
    /// contents read before.
    ///
    /// # Errors
    /// The limit of watches is reached.
    pub fn watch(&self, prefix: &str, from: u64) -> Result<Watch, RegistryError> {
        let id = self.0.shared.board().watches.watch(prefix, from).ok_or(RegistryError::Watches)?;
        Ok(Watch { shared: Arc::clone(&self.0.shared), id })
    }

    /// Writes the contents that this node shows to a backup file and returns their generation.
    /// `None` if nothing is shown yet.
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

    /// Stops all writes and waits for those under way, so that another process may use the copies.
    /// Do not call it on a worker.
    pub fn end(&self) {
        self.0.keeper.end();
    }

    /// Returns the state of the registry on this node.
    pub fn status(&self) -> RegistryStatus {
        let board = self.0.shared.board();
        RegistryStatus {
            epoch: board.epoch,
            generation: board.shown.as_ref().map(|contents| contents.generation()),
            keys: board.shown.as_ref().map_or(0, |contents| contents.keys()),
            awaited: board.awaited,
            trouble: board.full.iter().chain(&board.trouble).cloned().collect(),
        }
    }
}

/// A command without an answer yet: a future that ends with the generation that the command made or
/// looked at. Dropping it drops the answer, not the command.
pub struct PendingCommand(plexus_interconnect::Answer<Answer>);

impl Future for PendingCommand {
    type Output = Result<u64, RegistryError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or(Err(RegistryError::Stopped)))
    }
}

impl PendingCommand {
    /// Waits for the answer for at most `limit`, in a thread. `None` if there is no answer yet.
    pub fn wait(&mut self, limit: Duration) -> Option<Result<u64, RegistryError>> {
        executor::block_on(executor::timeout(limit, self))
    }
}

/// An error that says that nothing is shown now, because the node has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the cluster has stopped")]
pub struct Ended;

/// A watch on a prefix; see [`WatchEvent`]. Dropping it ends the watch.
pub struct Watch {
    shared: Arc<Shared>,
    id: WatchId,
}

impl Watch {
    /// Waits for the next event for at most `limit`; `None` if there is none yet.
    ///
    /// # Errors
    /// The node has stopped, so no event will come.
    pub fn next(&self, limit: Duration) -> Result<Option<WatchEvent>, Ended> {
        let found = self.shared.wait(limit, |board| match board.watches.next(self.id) {
            Some(events) => Some(Ok(events)),
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
