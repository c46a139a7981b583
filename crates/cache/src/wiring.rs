//! Construction of a node's cache: windows and frames, the services that run on the workers, and
//! the cache that programs use.

use std::{error::Error, sync::Arc};

use plexus_base::{Incarnation, NodeId, WorkerId};
use plexus_disks::{Group, IoCompletion, Pool, Writer};
use plexus_fabric::Window;

use crate::{
    Cache, CacheService, CacheTask, RedoAnswers, RedoLog,
    faults::Faults,
    frames::FrameTable,
    protocol::Config,
    service::{Port, window_of},
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
    /// The number of threads that wait for the disks.
    pub io_threads: usize,
    /// The most bytes of records that travel with a block because they are not durable.
    pub carry_bytes: u32,
}

/// Makes the services, one for each worker, to which `port` leads; the cache for programs; and the
/// windows that peers must know. `redo` makes the redo stream, if changes are logged.
///
/// # Errors
/// There is too little memory, or the system refuses a thread.
#[allow(clippy::type_complexity, reason = "each is used once")]
pub fn wire(
    settings: CacheSettings,
    group: &Arc<Group>,
    redo: impl FnOnce(RedoAnswers) -> Option<Arc<dyn RedoLog>>,
    port: Arc<Port>,
) -> Result<(Vec<CacheService>, Cache, Vec<Arc<Window>>), Box<dyn Error>> {
    let CacheSettings { me, incarnation, nodes, workers, cache_bytes, io_threads, carry_bytes } = settings;
    let (blocks, block_size) = (group.shape().blocks, group.shape().block_size.bytes());
    let frames = cache_bytes / u64::from(workers) / block_size as u64;
    let sets = ((frames / u64::from(WAYS)) as u32).max(1);
    let faults = Arc::<Faults>::default();
    let redo = redo(RedoAnswers::new(&port));
    let (mut services, mut tables, mut windows) = (Vec::new(), Vec::new(), Vec::new());
    for worker in (0..workers).map(WorkerId) {
        let (ways, has_redo) = (WAYS, redo.is_some());
        let config = Config { me, nodes, worker, workers, blocks, sets, ways, redo: has_redo, carry_bytes };
        let len = config.slots() as usize * block_size;
        let window = Arc::new(Window::create(window_of(worker), len, block_size as u32)?);
        windows.push(window.clone());
        let table = Arc::new(FrameTable::new(config, window));
        let told = Arc::downgrade(&port);
        let complete = move |completion: IoCompletion| {
            // There is no port when the node is ending and has waited for all necessary jobs.
            if let Some(port) = told.upgrade() {
                port.submit(worker, CacheTask::Disk(completion));
            }
        };
        let pool = Pool::new(group, io_threads, redo.is_some(), complete)?;
        services.push(CacheService::new(config, table.clone(), pool, faults.clone(), redo.clone()));
        tables.push(table);
    }
    let writer = Writer { node: me, incarnation };
    let cache = Cache::new(port, tables, blocks, writer, faults, redo);
    Ok((services, cache, windows))
}
