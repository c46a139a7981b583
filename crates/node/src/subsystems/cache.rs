//! The cache in its node: its shards, its redo, and the checkpoints of both.

use std::{
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use plexus_admin::launch::EVICTED_CODE;
use plexus_base::MAX_NODES;
use plexus_cache::{Cache, CacheParts, CacheRedo, CacheService, CacheTask, RedoAnswers, protocol::Counts};
use plexus_fabric::Event;
use plexus_membership::subsystem::WorkerPort;
use plexus_redo::{
    NodeRedo, RedoSettings,
    recovery::{PreparedStream, RedoFileError, RedoFiles},
    stream::protocol::Geometry,
};

use super::{Handle, Install, Installed, Making, shards::Shards};
use crate::{
    commands::{NodeCommand, identity},
    member::Die,
    runtime::Parts,
};

/// The number of threads of each worker that wait for the disks.
const IO_THREADS: usize = 2;

/// The same for mirrored disks: each waits for the disks of other nodes, too.
const MIRROR_THREADS: usize = 8;

impl Install for CacheService {
    type Handle = CacheHandle;
    const COMMANDS: &'static [NodeCommand] = identity::COMMANDS;

    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let Parts { config, me, incarnation, group, die, .. } = node.parts;
        let settings = plexus_cache::CacheSettings {
            me: *me,
            incarnation: *incarnation,
            // The maximum, because nodes can be added while this one runs.
            nodes: MAX_NODES as u8,
            workers: config.workers,
            cache_bytes: u64::from(config.cache_mib) << 20,
            io_threads: if group.mirror().is_some() { MIRROR_THREADS } else { IO_THREADS },
            disk_reads: config.disk_reads,
            carry_bytes: config.carry_bytes,
        };
        let mut redo = Ok(None);
        let make_redo = |answers| {
            redo = start_redo(node, answers, die.clone());
            redo.as_ref().ok()?.clone().map(CacheRedo::new)
        };
        let CacheParts { services, events, cache, windows, disk_reads } =
            plexus_cache::wire(settings, group, make_redo, port.clone())
                .map_err(|error| error.to_string())?;
        let events = events.into_iter().map(Event::from_peer).collect::<Result<_, _>>();
        let events = events.map_err(|error| format!("the events of disks: {error}"))?;
        let shards = Shards { port, workers: config.workers, group: group.clone(), redo: redo? };
        let every = Duration::from_secs(u64::from(config.checkpoint_seconds));
        let checkpoints = Mutex::default();
        let handle = CacheHandle { cache, shards: Arc::new(shards), disk_reads, every, checkpoints };
        Ok(Installed { windows, events, ..Installed::new(services, handle) })
    }
}

/// The cache of a node, and its redo if changes are logged.
pub(crate) struct CacheHandle {
    pub(crate) cache: Cache,
    pub(crate) shards: Arc<Shards>,
    /// The way in which blocks are read from disk.
    pub(crate) disk_reads: String,
    /// The interval of checkpoints.
    every: Duration,
    /// The thread that makes checkpoints; it ends when its sender is dropped.
    checkpoints: Mutex<Option<(mpsc::Sender<()>, thread::JoinHandle<()>)>>,
}

impl CacheHandle {
    /// Returns the redo, if changes are logged.
    pub(crate) fn redo(&self) -> Option<&NodeRedo> {
        self.shards.redo.as_deref()
    }

    /// Returns the counters of the cache, summed over the shards that answer within `limit`, and
    /// how many those are.
    pub(crate) fn sum(&self, limit: Duration) -> (Counts, u8) {
        let answers: Vec<Counts> = self.shards.ask_within(limit, CacheTask::Counts);
        let mut sum = Counts::default();
        answers.iter().for_each(|counts| sum.add(counts));
        (sum, answers.len() as u8)
    }
}

impl Handle for CacheHandle {
    fn start(&self) -> Result<(), String> {
        let (end, ended) = mpsc::channel();
        let (shards, every) = (self.shards.clone(), self.every);
        let run = move || shards.checkpoint_every(every, &ended);
        let thread = thread::Builder::new().name("checkpoint".into()).spawn(run);
        let thread = thread.map_err(|error| format!("a thread for checkpoints: {error}"))?;
        *self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner) = Some((end, thread));
        Ok(())
    }

    /// Refuses new changes. Changes under way end while the blocks are handed back.
    fn quiesce(&self) {
        self.cache.close();
    }

    fn end(&self) {
        let thread = self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = thread.map(|(end, thread)| {
            drop(end);
            thread
        });
        self.shards.redo.iter().for_each(|redo| redo.end());
        // A panic was reported when it happened.
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn trouble(&self) -> Vec<String> {
        self.redo().and_then(NodeRedo::missing).into_iter().collect()
    }

    fn counts(&self, within: Duration) -> Vec<(&'static str, u64)> {
        let (counts, answered) = self.sum(within);
        if answered == self.shards.workers { counts.named().into_iter().collect() } else { Vec::new() }
    }
}

/// Starts the redo of the node, if the cluster has redo.
fn start_redo(node: &Making<'_>, answers: RedoAnswers, die: Die) -> Result<Option<Arc<NodeRedo>>, String> {
    let Parts { config, me, incarnation, group, .. } = node.parts;
    let Some(directory) = config.redo() else {
        let mirror = group.mirror().ok_or("a group without a directory of redo is mirrored")?;
        let geometry = config.redo_geometry().ok_or("a mirrored group needs redo: set redo_mib")?;
        // The map of the disks is known when the node is a member; then it finds a stream.
        let files = RedoFiles::in_group(mirror.clone(), config.id.0);
        return start_redo_on(node, files, geometry, None, answers, die);
    };
    let files = RedoFiles::new(directory.clone(), config.id.0);
    let Some(geometry) = config.redo_geometry() else {
        // Without redo these changes would be lost silently.
        return match directory.exists().then(|| files.unfinished(&[])).transpose() {
            Ok(None) => Ok(None),
            Ok(Some(open)) if open.is_empty() => Ok(None),
            Ok(Some(open)) => Err(format!(
                "redo_mib = 0, but {} has changes that may not be on the disks; start with the redo_mib of \
                 before and end the cluster with `plexus down --all` first",
                open[0].file().path.display()
            )),
            Err(why) => Err(why.to_string()),
        };
    };
    std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let stream = match files.prepare(*me, &config.name_of(*me), *incarnation, geometry) {
        // A node that is a member recovers them.
        Err(RedoFileError::NoRoom { waiting: 1.., .. }) => None,
        stream => Some(stream.map_err(|error| error.to_string())?),
    };
    start_redo_on(node, files, geometry, stream, answers, die)
}

/// Starts the redo of the node on these streams.
fn start_redo_on(
    node: &Making<'_>,
    files: RedoFiles,
    geometry: Geometry,
    stream: Option<PreparedStream>,
    answers: RedoAnswers,
    die: Die,
) -> Result<Option<Arc<NodeRedo>>, String> {
    let Parts { config, me, incarnation, group, .. } = node.parts;
    let files = files.guarded({
        let group = group.clone();
        move || group.may_write()
    });
    let (me, name, incarnation) = (*me, config.name_of(*me), *incarnation);
    let settings = RedoSettings {
        workers: config.workers,
        geometry,
        stream,
        name,
        files,
        me: (me, incarnation),
        ledger: Some(node.ledger.clone()),
        target_bytes: config.recovery_target_bytes(),
        failed: Box::new(move |why| die(why, EVICTED_CODE)),
    };
    let redo = NodeRedo::start(settings, group.clone(), answers).map_err(|error| error.to_string())?;
    Ok(Some(Arc::new(redo)))
}
