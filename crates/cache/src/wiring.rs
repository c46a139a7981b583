//! Construction of a node's cache: windows and frames, the services that run on the workers, and
//! the cache that programs use.

use std::{error::Error, os::fd::OwnedFd, sync::Arc};

use plexus_base::{Incarnation, NodeId, WorkerId};
use plexus_disks::{BlockIo, BlockIoSettings, DiskReads, Group, Writer};
use plexus_fabric::Window;

use crate::{
    Cache, CacheRedo, CacheService, RedoAnswers,
    faults::Faults,
    frames::{FrameTable, MAX_BLOCKS},
    protocol::Config,
    service::{CachePort, window_of},
};

/// The frames in a set. They are enough that blocks which are busy at the same time find room in
/// their set, and few enough that a search reads one cache line.
pub(crate) const WAYS: u32 = 16;

/// The settings of a node's cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheSettings {
    /// The number of this node.
    pub me: NodeId,
    /// The incarnation of this node.
    pub incarnation: Incarnation,
    /// The number of nodes of the cluster.
    pub nodes: u8,
    /// The number of workers of every node.
    pub workers: u8,
    /// The memory for blocks, over all workers, in bytes; at least 16 blocks for each worker.
    pub cache_bytes: u64,
    /// The number of threads of each worker that wait for the disks.
    pub io_threads: usize,
    /// The way in which blocks are read from disk.
    pub disk_reads: DiskReads,
    /// The most bytes of records that travel with a block because they are not durable.
    pub carry_bytes: u32,
}

/// The parts of a node's cache.
pub struct CacheParts {
    /// The services, one for each worker.
    pub services: Vec<CacheService>,
    /// The events that must wake the workers, one for each: [`BlockIo::event`].
    pub events: Vec<OwnedFd>,
    /// The cache for programs.
    pub cache: Cache,
    /// The windows that peers must know.
    pub windows: Vec<Arc<Window>>,
    /// The way in which blocks are read from disk, with the reason if it is not the one wanted.
    pub disk_reads: String,
}

/// Makes the parts of a cache. `port` leads to the services; `redo` makes the redo stream, if
/// changes are logged.
///
/// # Errors
/// There is too little memory, or the system refuses a thread.
pub fn wire(
    settings: CacheSettings,
    group: &Arc<Group>,
    redo: impl FnOnce(RedoAnswers) -> Option<CacheRedo>,
    port: Arc<CachePort>,
) -> Result<CacheParts, Box<dyn Error>> {
    let CacheSettings { me, incarnation, nodes, workers, cache_bytes, io_threads, disk_reads, carry_bytes } =
        settings;
    // A mirrored group may grow.
    let blocks = if group.mirror().is_some() { MAX_BLOCKS } else { group.blocks() };
    let block_size = group.shape().block_size.bytes();
    let frames = cache_bytes / u64::from(workers) / block_size as u64;
    let sets = ((frames / u64::from(WAYS)) as u32).max(1);
    let faults = Arc::<Faults>::default();
    let weak = Arc::downgrade(&port);
    let redo = redo(RedoAnswers::new(move |worker, task| {
        // There is no port while the node ends.
        weak.upgrade().inspect(|port| port.submit(worker, task));
    }));
    let (mut services, mut tables, mut windows) = (Vec::new(), Vec::new(), Vec::new());
    let (mut events, mut reads) = (Vec::new(), String::new());
    let io = BlockIoSettings { reads: disk_reads, threads: io_threads, syncs: redo.is_some() };
    for worker in (0..workers).map(WorkerId) {
        let (ways, has_redo) = (WAYS, redo.is_some());
        let config = Config { me, nodes, worker, workers, blocks, sets, ways, redo: has_redo, carry_bytes };
        let len = config.slots() as usize * block_size;
        let window = Arc::new(Window::create(window_of(worker), len, block_size as u32)?);
        windows.push(window.clone());
        let table = Arc::new(FrameTable::new(config, window));
        let io = BlockIo::new(group, io)?;
        events.push(io.event()?);
        reads = io.reads().to_owned();
        services.push(CacheService::new(config, table.clone(), io, faults.clone(), redo.clone()));
        tables.push(table);
    }
    let writer = Writer { node: me, incarnation };
    let cache = Cache::new(port, tables, group.clone(), writer, faults, redo);
    Ok(CacheParts { services, events, cache, windows, disk_reads: reads })
}
