//! Putting the parts of a node's cache together: windows and frames first (peers must know them before they connect),
//! then the services that run on the workers, then the cache that programs use.

use std::sync::{Arc, Weak};

use plexus_base::{Incarnation, NodeId, WorkerId};
use plexus_disks::{Completion, Group, Pool, Writer};
use plexus_fabric::{SetupError, Window};

use crate::{
    Cache, CacheService, CacheTask, LostRecord, Port, faults::Faults, frames::FrameTable, protocol::Config,
    service::window_of,
};

/// Frames in a set. Enough that blocks which are busy at the same time find room in their set, and few enough
/// that finding one is reading one cache line.
pub(crate) const WAYS: u32 = 16;

/// What a node's cache is made with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// This node.
    pub me: NodeId,
    /// This incarnation of it.
    pub incarnation: Incarnation,
    /// Nodes of the cluster.
    pub nodes: u8,
    /// Workers of every node.
    pub workers: u8,
    /// Memory for blocks, over all workers, in bytes; at least 16 blocks for each worker.
    pub cache_bytes: u64,
    /// Threads that wait for the disks.
    pub io_threads: usize,
}

/// A cache that is not yet connected.
pub struct Wiring {
    settings: Settings,
    blocks: u64,
    tables: Vec<Arc<FrameTable>>,
    windows: Vec<Arc<Window>>,
    faults: Arc<Faults>,
    record: Arc<dyn LostRecord>,
}

impl Wiring {
    /// Takes the memory. What is lost with those who are gone is kept on `record`.
    ///
    /// # Errors
    /// There is too little of it.
    pub fn new(settings: Settings, group: &Group, record: Arc<dyn LostRecord>) -> Result<Self, SetupError> {
        let block_size = group.shape().block_size.bytes();
        let frames = settings.cache_bytes / u64::from(settings.workers) / block_size as u64;
        let sets = ((frames / u64::from(WAYS)) as u32).max(1);
        let mut tables = Vec::new();
        let mut windows = Vec::new();
        for worker in (0..settings.workers).map(WorkerId) {
            let config = Config {
                me: settings.me,
                nodes: settings.nodes,
                worker,
                workers: settings.workers,
                blocks: group.shape().blocks,
                sets,
                ways: WAYS,
            };
            let len = config.slots() as usize * block_size;
            let window = Arc::new(Window::create(window_of(worker), len, block_size as u32)?);
            windows.push(window.clone());
            tables.push(Arc::new(FrameTable::new(config, window)));
        }
        Ok(Self { settings, blocks: group.shape().blocks, tables, windows, faults: Arc::default(), record })
    }

    /// The windows that peers must be told of.
    #[must_use]
    pub fn windows(&self) -> Vec<Arc<Window>> {
        self.windows.clone()
    }

    /// The services, one for each worker. `port` leads to the workers that will run them, for completions of the disk.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn services(&self, group: &Arc<Group>, port: Weak<dyn Port>) -> std::io::Result<Vec<CacheService>> {
        self.tables
            .iter()
            .map(|table| {
                let (config, port) = (*table.config(), port.clone());
                let record = (self.record.clone(), port.clone());
                let complete = move |completion: Completion| {
                    // Nobody there: the node is ending, and has waited for what it must wait for.
                    if let Some(port) = port.upgrade() {
                        port.submit(config.worker, CacheTask::Disk(completion));
                    }
                };
                let pool = Pool::new(group, self.settings.io_threads, complete)?;
                Ok(CacheService::new(config, table.clone(), pool, self.faults.clone(), record))
            })
            .collect()
    }

    /// The cache for programs.
    #[must_use]
    pub fn cache(self, port: Arc<dyn Port>) -> Cache {
        let writer = Writer { node: self.settings.me, incarnation: self.settings.incarnation };
        Cache::new(port, self.tables, self.blocks, writer, self.faults)
    }
}
