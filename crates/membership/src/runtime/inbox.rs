//! What other threads have for the loop.
//!
//! A queue under a mutex and an event: the loop may be of real time, and must sleep, never spin, while an ordinary thread is half way
//! through putting something in.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError, mpsc::SyncSender},
};

use plexus_base::{Epoch, Incarnation, NodeId};
use plexus_fabric::Event;
use plexus_interconnect::mesh::Key;

use super::{ConfigChangeError, Proof, Status};
use crate::{
    protocol::{Clean, ConfigChange, FileId},
    voting::Done,
};

/// Where the answer to a config change goes.
pub(super) type Answer = SyncSender<Result<(), ConfigChangeError>>;

pub(super) enum Input {
    /// A turn at a file that this node opens is over.
    Turned(FileId, Done),
    Lost(NodeId, Incarnation),
    Dead(NodeId, Incarnation),
    Clean(NodeId, Clean),
    /// What came of a fence.
    Fenced(NodeId, Incarnation, Option<Proof>),
    ConfigChange(ConfigChange, Answer),
    /// The generation of the registry, and who waits until it is remembered.
    Registry(u64, Option<SyncSender<u64>>),
    Status(SyncSender<Status>),
    File(FileId, PathBuf),
    Peer(NodeId, Vec<SocketAddr>),
    Keys(Vec<Key>),
    /// For the log.
    Trouble(String),
    /// The guest has taken this view.
    Entered(Epoch),
    Rebuilt(Epoch),
    Stop,
}

pub(super) struct Inbox {
    /// `None` when nobody reads it any more.
    queue: Mutex<Option<VecDeque<Input>>>,
    pub(super) bell: Event,
}

impl Inbox {
    pub(super) fn create() -> io::Result<Self> {
        Ok(Self { queue: Mutex::new(Some(VecDeque::new())), bell: Event::create()? })
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<Input>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Dropped, with whatever waits for its answer, when the loop is over.
    pub(super) fn post(&self, input: Input) {
        if let Some(queue) = self.lock().as_mut() {
            queue.push_back(input);
        }
        self.bell.signal();
    }

    pub(super) fn take(&self) -> VecDeque<Input> {
        self.bell.clear();
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn close(&self) {
        drop(self.lock().take());
    }
}
