//! The shards of a node's cache, one on each worker, asked all at once.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use plexus_base::{NodeId, WorkerId};
use plexus_cache::{CacheTask, Port, protocol::Report};
use plexus_disks::Group;

use crate::{blocks::Blocks, service::Workers};

/// How long all shards may take to write what must not be lost, before the node gives up on the disks.
const WRITE_WITHIN: Duration = Duration::from_secs(60);

/// The cache's shards, to be asked all at once.
pub(crate) struct Shards {
    pub(crate) workers: Arc<Workers>,
    pub(crate) group: Arc<Group>,
}

impl Shards {
    pub(crate) fn count(&self) -> u8 {
        self.workers.all().len() as u8
    }

    /// Hands every shard the same question; the answers, without those that do not come in time.
    pub(crate) fn ask<T: Send>(&self, question: impl Fn(mpsc::Sender<T>) -> CacheTask) -> Vec<T> {
        self.ask_within(WRITE_WITHIN, question)
    }

    pub(crate) fn ask_within<T: Send>(
        &self,
        limit: Duration,
        question: impl Fn(mpsc::Sender<T>) -> CacheTask,
    ) -> Vec<T> {
        let answers: Vec<_> = (0..self.count())
            .map(|worker| {
                let (answer, answered) = mpsc::channel();
                self.workers.submit(WorkerId(worker), question(answer));
                answered
            })
            .collect();
        answers.iter().filter_map(|answered| answered.recv_timeout(limit).ok()).collect()
    }

    /// Every shard stops, whichever of them already knows why.
    pub(crate) fn stop(&self, cause: NodeId) {
        let stop = |worker| self.workers.submit(WorkerId(worker), CacheTask::Stop(cause));
        (0..self.count()).for_each(stop);
    }

    pub(crate) fn checkpoint_every(&self, every: Duration, ended: &mpsc::Receiver<()>) {
        while ended.recv_timeout(every) == Err(mpsc::RecvTimeoutError::Timeout) {
            let failed: u32 = self.ask(CacheTask::Checkpoint).iter().sum();
            let synced = self.group.sync();
            if failed > 0 {
                tracing::error!("checkpoint: {failed} blocks could not be written; they stay in memory");
            }
            if let Err(error) = synced {
                tracing::error!("checkpoint: {error}");
            }
        }
    }

    /// After all shards were stopped: what is held here and on disk, and what may be lost.
    pub(crate) fn stopped(&self) -> Result<(Blocks, Blocks), String> {
        let reports: Vec<Report> = self.ask(CacheTask::Report);
        if reports.len() != usize::from(self.count()) {
            return Err("the disks did not take what must be written in time".into());
        }
        self.group.sync().map_err(|error| error.to_string())?;
        let unwritten: Blocks = reports.iter().flat_map(|report| report.unwritten.iter().copied()).collect();
        let held: Blocks =
            reports.iter().flat_map(|report| report.held.iter().map(|(block, _)| *block)).collect();
        let lost: Blocks = reports.iter().flat_map(|report| report.lost.iter().copied()).collect();
        Ok((held.without(&unwritten), lost.union(&unwritten)))
    }
}
