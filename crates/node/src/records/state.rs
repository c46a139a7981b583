//! What a node leaves on disk about its runs: that one began, which view it acted in last, what it
//! knows to be lost, and how it ended.
//!
//! A *run* of the cluster is numbered (see [`crate::records::settle`]); each node has one record,
//! of the last run that it took part in. The record says `running` from before the node serves its
//! first message, and is replaced by how the run ended for it. `running` in the record of a node
//! that does not live shows that the node died.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use plexus_base::{
    BlockId, Epoch, Incarnation, NodeId, Partition, WorkerId,
    durable::advice,
    latest::{LatestWork, NextWork},
};
use plexus_cache::{
    LostRecord,
    protocol::{Lost, Run},
};
use plexus_membership::partitions::Members;
use serde::{Deserialize, Serialize};

use crate::{boot::layout::ClusterDir, records::durable, records::settle::Settled};

/// The last run of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The number of the run.
    pub run: u64,
    /// The node's incarnation in it.
    pub incarnation: u64,
    /// How it stands.
    pub phase: Phase,
    /// The view that it acted in last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<LastView>,
    /// The last view in which it knew all that was lost, as all masters were open to it; 0: none.
    #[serde(default)]
    pub known_as_of: u32,
    /// Blocks that it knew to be lost: runs of a partition, each with its first and last block.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<(u16, u64, u64)>,
}

impl Record {
    /// As of which view it knew that nothing was lost; 0: something was.
    fn intact(&self) -> Epoch {
        if self.lost.is_empty() { Epoch(self.known_as_of) } else { Epoch(0) }
    }

    /// The incarnation with which nothing was lost, if this one of `node` was: it had handed back,
    /// or never acted; and the view as of which it knew that nothing was lost, or 0.
    pub fn clean(&self, node: NodeId) -> Option<(u8, u64, u32)> {
        match (self.phase, &self.view) {
            (Phase::Running, Some(_)) => None,
            (Phase::Running, None) => Some((node.0, self.incarnation, 0)),
            (Phase::Left, _) => Some((node.0, self.incarnation, self.intact().0)),
        }
    }

    /// Returns the blocks that it knew to be lost.
    pub fn known_lost(&self) -> Lost {
        let mut lost = Lost::default();
        for (partition, first, last) in self.lost.iter().copied().filter(|run| run.0 < Partition::COUNT) {
            lost.insert(Run { partition: Partition(partition), first: BlockId(first), last: BlockId(last) });
        }
        lost
    }
}

/// A view, as a record has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastView {
    /// Its epoch.
    pub epoch: u32,
    /// Its members and their incarnations.
    pub members: Vec<(u8, u64)>,
}

impl LastView {
    /// Returns the members of the view.
    pub fn members(&self) -> Members {
        let members =
            self.members.iter().map(|(node, incarnation)| (NodeId(*node), Incarnation(*incarnation)));
        Members { epoch: Epoch(self.epoch), members: members.collect() }
    }
}

/// The phase of a run for a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It began. If the node does not live, it died.
    Running,
    /// It has handed back all that it held and begins nothing more: nothing is lost with it.
    Left,
}

/// A record that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The text makes no sense.
    #[error(
        "{path}: not readable ({source}), so it is unknown what the last run left; restore the file, or remove it and \
         accept that blocks which that run changed may be old"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The system refused.
    #[error("{path}: {what}: {advice}{source}", advice = advice(.source))]
    Io {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Another process is this node.
    #[error("{name} is already running{pid}", pid = .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Running {
        /// The node.
        name: String,
        /// The process, where known.
        pid: Option<u32>,
    },
}

impl StateError {
    pub(crate) fn io(what: &'static str, path: PathBuf) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path, source }
    }

    pub(crate) fn reading(path: PathBuf) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => Self::Damaged { path, source },
            _ => Self::Io { what: "reading", path, source },
        }
    }
}

/// The record of the node called `name`, if it ever ran.
///
/// # Errors
/// It is there and cannot be read.
pub fn record(dir: &ClusterDir, name: &str) -> Result<Option<Record>, StateError> {
    let path = dir.record(name);
    durable::read_json(&path).map_err(StateError::reading(path))
}

/// The one who writes a node's record during a run.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    record: Mutex<Record>,
    /// By worker: the last view in which all masters were open to its cache. Written with what is
    /// recorded next, at the latest when the node ends in order: else it is worth nothing. Workers
    /// wait for no disk.
    complete: Box<[AtomicU32]>,
}

impl Recorder {
    /// For the node called `name` in a run that begins with what was `settled`. Writes nothing yet.
    pub fn new(
        dir: &ClusterDir,
        name: &str,
        incarnation: Incarnation,
        workers: u8,
        settled: &Settled,
    ) -> Self {
        let mut known = Lost::default();
        settled.lost.iter().for_each(|block| known.insert_block(block));
        let lost = runs(&known);
        let incarnation = incarnation.0;
        let (run, phase) = (settled.run, Phase::Running);
        let record = Record { run, incarnation, phase, view: None, known_as_of: settled.known_as_of, lost };
        let complete = (0..workers).map(|_| AtomicU32::new(0)).collect();
        Self { path: dir.record(name), complete, record: Mutex::new(record) }
    }

    /// The record as it is to be written next.
    fn record(&self) -> MutexGuard<'_, Record> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let complete = self.complete.iter().map(|epoch| epoch.load(Relaxed)).min();
        record.known_as_of = record.known_as_of.max(complete.unwrap_or(0));
        record
    }

    /// Changes the record, durably.
    fn change(&self, change: impl FnOnce(&mut Record)) -> Result<(), StateError> {
        let mut record = self.record();
        let mut next = record.clone();
        change(&mut next);
        durable::write_json(&self.path, &next)
            .map_err(StateError::io("writing the record", self.path.clone()))?;
        *record = next;
        Ok(())
    }

    /// Replaces how the run stands, durably.
    ///
    /// # Errors
    /// The system's; the old record stands.
    pub fn write(&self, phase: Phase) -> Result<(), StateError> {
        self.change(|record| record.phase = phase)
    }

    /// The node is about to act in this view. What was recorded as the end of a run stays. What is
    /// known as of a view that is to come is worth nothing: the voting files are older than it.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn opened(&self, view: &Members) -> Result<(), StateError> {
        let members = view.members.iter().map(|(node, incarnation)| (node.0, incarnation.0)).collect();
        self.change(|record| {
            if record.known_as_of >= view.epoch.0 {
                record.known_as_of = 0;
            }
            if record.phase == Phase::Running {
                record.view = Some(LastView { epoch: view.epoch.0, members });
            }
        })
    }

    /// All masters are open to the cache of this worker in this view.
    pub(crate) fn complete(&self, worker: WorkerId, epoch: Epoch) {
        self.complete[worker.index()].store(epoch.0, Relaxed);
    }

    /// As of which view nothing was lost; 0: something was.
    pub(crate) fn intact(&self) -> Epoch {
        self.record().intact()
    }

    /// Records the lost blocks of these workers.
    fn lost(&self, workers: u8, entries: &Entries) -> Result<(), StateError> {
        self.change(|record| {
            record.lost.retain(|run| !entries.contains_key(&Partition(run.0).worker(workers)));
            record.lost.extend(entries.values().flat_map(|(lost, _)| runs(lost)));
        })
    }

    /// Blocks that are known to be lost.
    pub fn known_lost(&self) -> Lost {
        self.record().known_lost()
    }

    /// Returns the blocks known to be lost, and the view as of which these are all.
    fn known(&self) -> (Epoch, Lost) {
        let record = self.record();
        (Epoch(record.known_as_of), record.known_lost())
    }
}

fn runs(lost: &Lost) -> Vec<(u16, u64, u64)> {
    lost.runs().map(|run| (run.partition.0, run.first.0, run.last.0)).collect()
}

/// How long after a record could not be written that is tried again.
const AGAIN_EVERY: Duration = Duration::from_secs(1);

/// The entries to record for each worker, with the actions that follow.
type Entries = BTreeMap<WorkerId, (Lost, Box<dyn FnOnce() + Send>)>;

/// Keeps what is lost on record for the cache, on a thread of its own.
pub(crate) struct Ledger {
    recorder: Arc<Recorder>,
    latest: Arc<LatestWork<Entries>>,
}

impl Ledger {
    /// Starts the thread; it ends with the ledger.
    pub(crate) fn start(recorder: Arc<Recorder>, workers: u8) -> io::Result<Self> {
        let latest = Arc::<LatestWork<Entries>>::default();
        let (keeps, at) = (Arc::clone(&recorder), Arc::clone(&latest));
        thread::Builder::new().name("plexus-ledger".into()).spawn(move || keep(&keeps, &at, workers))?;
        Ok(Self { recorder, latest })
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.latest.close();
    }
}

/// Writes the latest entries, and what could not be written until it is: masters stay closed so
/// long.
fn keep(recorder: &Recorder, latest: &LatestWork<Entries>, workers: u8) {
    let (mut entries, mut said) = (Entries::new(), String::new());
    loop {
        match latest.next((!entries.is_empty()).then_some(AGAIN_EVERY)) {
            NextWork::Ready(newer) => entries.extend(newer),
            NextWork::TimedOut => {}
            NextWork::Closed => return,
        }
        match recorder.lost(workers, &entries) {
            Ok(()) => std::mem::take(&mut entries).into_values().for_each(|(_, done)| done()),
            Err(error) if error.to_string() == said => {}
            Err(error) => {
                said = error.to_string();
                tracing::error!("what is lost is not on record yet, and its blocks wait: {said}");
            }
        }
    }
}

impl LostRecord for Ledger {
    fn known(&self, _: WorkerId) -> (Epoch, Lost) {
        self.recorder.known()
    }

    fn record(&self, worker: WorkerId, lost: Lost, done: Box<dyn FnOnce() + Send>) {
        self.latest.change(|next| drop(next.get_or_insert_default().insert(worker, (lost, done))));
    }

    fn complete(&self, worker: WorkerId, epoch: Epoch) {
        self.recorder.complete(worker, epoch);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn lost(worker: u8) -> Lost {
        let mut blocks = (0..).map(BlockId);
        let mut lost = Lost::default();
        let is_its = |block: &BlockId| block.partition().worker(2) == WorkerId(worker);
        lost.insert_block(blocks.find(is_its).unwrap());
        lost
    }

    #[test]
    fn what_could_not_be_recorded_is_recorded_later_the_newest_of_each_worker() {
        let place = tempfile::tempdir().unwrap();
        let dir = ClusterDir::new(place.path().join("c"));
        let path = dir.record("n1");
        // A directory in the place of the new file.
        let obstacle = plexus_base::durable::beside(&path);
        std::fs::create_dir_all(&obstacle).unwrap();
        let recorder = Arc::new(Recorder::new(&dir, "n1", Incarnation(1), 2, &Settled::default()));
        let ledger = Ledger::start(Arc::clone(&recorder), 2).unwrap();
        let (tell, told) = mpsc::channel();
        let done = |what: &'static str| {
            let tell = tell.clone();
            Box::new(move || tell.send(what).unwrap())
        };
        ledger.record(WorkerId(0), lost(0), done("of the first"));
        ledger.record(WorkerId(1), lost(1), done("of the second"));
        ledger.record(WorkerId(1), Lost::default(), done("of the second, again"));
        assert_eq!(recorder.known_lost(), Lost::default());
        std::fs::remove_dir(&obstacle).unwrap();
        let limit = Duration::from_secs(60);
        let mut said = Vec::new();
        while !(said.contains(&"of the first") && said.contains(&"of the second, again")) {
            said.push(told.recv_timeout(limit).unwrap());
        }
        assert_eq!(record(&dir, "n1").unwrap().unwrap().known_lost(), lost(0));
        assert_eq!(recorder.known_lost(), lost(0));
    }
}
