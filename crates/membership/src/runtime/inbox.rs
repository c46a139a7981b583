//! The input of the loop from other threads.
//!
//! It is a queue under a mutex, with an event. The loop may have real-time priority, so it must
//! sleep, not spin, while an ordinary thread is adding input.

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

use super::{ConfigChangeError, FencingProof, Status};
use crate::{
    protocol::{ConfigChange, FileId},
    voting::FinishedTurn,
};

/// The channel for the answer to a config change.
pub(super) type Answer = SyncSender<Result<(), ConfigChangeError>>;

pub(super) enum Input {
    /// A turn at a file that this node opens has ended.
    Turned(FileId, FinishedTurn),
    Lost(NodeId, Incarnation),
    Dead(NodeId, Incarnation),
    /// The result of an attempt to fence.
    Fenced(NodeId, Incarnation, Result<FencingProof, String>),
    ConfigChange(ConfigChange, Answer),
    /// A registry generation, and the channel for the answer once it is remembered.
    Registry(u64, Option<SyncSender<u64>>),
    Status(SyncSender<Status>),
    File(FileId, PathBuf),
    Peer(NodeId, Vec<SocketAddr>),
    Keys(Vec<Key>),
    /// A warning for the log.
    Trouble(String),
    /// The observer has entered this view.
    Entered(Epoch),
    Rebuilt(Epoch),
    Stop,
}

pub(super) struct Inbox {
    /// `None` after the loop has ended.
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

    /// Adds input. After the end of the loop it is dropped, with its answer channel.
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
