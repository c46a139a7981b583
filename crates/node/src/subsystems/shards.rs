//! The shards of a node's cache, one on each worker, as targets of a common question.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use plexus_cache::{CacheService, CacheTask, RedoDurability};
use plexus_disks::Group;
use plexus_interconnect::Reply;
use plexus_membership::subsystem::{WorkerPort, ask_each};
use plexus_redo::{
    NodeRedo,
    recovery::{Ledger, close_disks},
};

/// The longest that a shard may take to answer, even when it writes all its blocks.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// The longest wait until others have written blocks that this node gave away, and the interval at
/// which they are asked.
const SETTLE_WITHIN: Duration = Duration::from_secs(2);
const SETTLE_EVERY: Duration = Duration::from_millis(5);

/// The longest wait of a node that ends for the registry.
const NOTE_WITHIN: Duration = Duration::from_secs(5);

/// All shards of the node's cache.
pub(crate) struct Shards {
    pub(crate) port: Arc<dyn WorkerPort<CacheService>>,
    pub(crate) workers: u8,
    pub(crate) group: Arc<Group>,
    pub(crate) redo: Option<Arc<NodeRedo>>,
}

impl Shards {
    /// Asks every shard; returns the answers that come in time.
    pub(crate) fn ask<T: Send>(&self, question: impl Fn(Reply<T>) -> CacheTask) -> Vec<T> {
        self.ask_within(ANSWER_WITHIN, question)
    }

    pub(crate) fn ask_within<T: Send>(
        &self,
        limit: Duration,
        question: impl Fn(Reply<T>) -> CacheTask,
    ) -> Vec<T> {
        ask_each(&*self.port, self.workers, limit, question)
    }

    /// Writes the owed blocks that a checkpoint is about, at intervals, until `ended` closes.
    pub(crate) fn checkpoint_every(&self, every: Duration, ended: &mpsc::Receiver<()>) {
        while self.wait_for_checkpoint(every, ended) {
            let below = self.redo.as_ref().map_or(u64::MAX, |redo| redo.checkpoint_target());
            let answers = self.ask(|reply| CacheTask::Checkpoint(below, reply));
            let synced = self.group.sync();
            let silent = usize::from(self.workers) - answers.len();
            if silent > 0 {
                let limit = ANSWER_WITHIN.as_secs();
                tracing::error!(
                    "checkpoint: {silent} workers have not written their owed blocks within {limit} s"
                );
            }
            let failed: u32 = answers.iter().sum();
            if failed > 0 {
                tracing::error!("checkpoint: {failed} blocks could not be written; they stay in memory");
            }
            if let Err(error) = synced {
                tracing::error!("checkpoint: {error}");
            }
            self.move_redo_checkpoint();
        }
    }

    /// Waits until a checkpoint is due. Returns false when `ended` closes or the redo has ended.
    fn wait_for_checkpoint(&self, every: Duration, ended: &mpsc::Receiver<()>) -> bool {
        let Some(redo) = &self.redo else {
            return ended.recv_timeout(every) == Err(mpsc::RecvTimeoutError::Timeout);
        };
        redo.wait_for_checkpoint(every)
    }

    /// Frees the part of the redo stream that no block needs.
    fn move_redo_checkpoint(&self) {
        if let Some(redo) = &self.redo {
            // Before the workers look: a record that is appended meanwhile is not durable by then.
            let durable = redo.durable();
            let oldest: Vec<(Option<u64>, u64)> = self.ask(CacheTask::Oldest);
            if oldest.len() == usize::from(self.workers) {
                redo.checkpoint(durable, oldest.into_iter().filter_map(|(oldest, _)| oldest).min());
            }
        }
    }

    /// Has the blocks written that this node gave away with records in its redo stream. Gives up
    /// after a time: then the stream stays open, and the next start recovers from it.
    pub(crate) fn settle_redo(&self) {
        let begin = Instant::now();
        while self.needs_redo() && begin.elapsed() < SETTLE_WITHIN {
            self.ask(|reply| CacheTask::Checkpoint(u64::MAX, reply));
            std::thread::sleep(SETTLE_EVERY);
        }
    }

    /// Notes in the registry that this node, which has handed back, needs its redo stream no more,
    /// and that all nodes have ended if it is the last. The other members are still there.
    pub(crate) fn note_end(&self, ledger: &dyn Ledger) {
        let begin = Instant::now();
        if self.needs_redo() {
            return;
        }
        let is_late = || begin.elapsed() > NOTE_WITHIN;
        self.redo.iter().for_each(|redo| redo.note_closed(&is_late));
        if let Err(why) = close_disks(&self.group, ledger, &is_late) {
            tracing::warn!("the registry does not know that the nodes have ended: {why}");
        }
    }

    /// Closes the redo stream of this node, which has handed back, unless another node owes a block
    /// whose records are there. Then the others close it when they have written those blocks.
    pub(crate) fn close_redo(&self) {
        if let Some(redo) = &self.redo {
            redo.leaving();
            if !self.needs_redo() {
                redo.close_stream();
            }
        }
    }

    /// Returns whether a block may need a record of this node's redo stream.
    fn needs_redo(&self) -> bool {
        if self.redo.is_none() {
            return false;
        }
        let oldest: Vec<(Option<u64>, u64)> = self.ask(CacheTask::Oldest);
        oldest.len() < usize::from(self.workers)
            || oldest.iter().any(|(oldest, handed_over)| oldest.is_some() || *handed_over > 0)
    }
}
