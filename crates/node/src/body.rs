//! What a node is made of besides its lifecycle: links to its peers, the cache, the disk group.
//!
//! The order of calls is [`Body::join`], then [`Body::quiesce`], [`Body::hand_back`] and [`Body::leave`], with all nodes or alone.

mod join;
mod lost;
mod status;

use std::{
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use plexus_attach::{Door, Offer, Usage};
use plexus_base::NodeId;
use plexus_cache::{Cache, CacheTask, protocol::Counts};
use plexus_disks::Group;
use plexus_fabric::{Window, WindowId};
use plexus_interconnect::{LinkInfo, RailReport, Worker, mesh::Mesh};
use plexus_locks::LockManager;
use plexus_membership::{groups::Groups, runtime::Membership};
use plexus_registry::Registry;

pub use self::join::Parts;
pub use self::status::{BodyStatus, PeerStatus, ProgramsStatus};
use crate::{
    boot::config::{Config, Nodes},
    boot::keys::KeyFiles,
    lifecycle::{Ending, Lifecycle},
    member::Member,
    records::state::{Recorder, StateError},
    service::{News, NodeService, Workers},
    shards::Shards,
    subsystems::Handles,
};

/// How long a node that ends waits for the others to take note.
const LEAVE_WITHIN: Duration = Duration::from_secs(3);

/// The window that benchmarks put into: no granules, so no generation is asked for.
pub const BENCHMARK_WINDOW: WindowId = WindowId(0x100);

/// Its length: the longest message that `plexus perf` measures, the longest answer, and the words that announce what was
/// written.
pub const BENCHMARK_WINDOW_BYTES: usize = (8 << 20) + (64 << 10);

/// How long a hand-back may take: as long as the disks need for a large cache.
const HAND_BACK_WITHIN: Duration = Duration::from_secs(600);

/// The running parts of a node.
pub struct Body {
    config: Arc<Config>,
    me: NodeId,
    lifecycle: Arc<Lifecycle>,
    group: Arc<Group>,
    handles: Handles,
    workers: Arc<Workers>,
    mesh: Arc<Mesh<NodeService>>,
    member: Arc<Member>,
    membership: Arc<Membership>,
    recorder: Arc<Recorder>,
    lost: lost::Counted,
    keys: Arc<KeyFiles>,
    benchmark: Arc<Window>,
    threads: Mutex<Threads>,
    arena: Arc<Window>,
    /// What programs have of each worker.
    usage: Vec<Arc<Usage>>,
    door: Mutex<Option<Door>>,
}

#[derive(Default)]
struct Threads {
    /// Dropped to end the checkpoints.
    checkpoints: Option<mpsc::Sender<()>>,
    watcher: Option<mpsc::Sender<News>>,
    handles: Vec<thread::JoinHandle<()>>,
}

/// What a node held when it gave it back.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct HandedBack {
    /// How many blocks it held before.
    pub gave_up: u64,
    /// How many of them had to be written.
    pub written: u64,
}

impl Body {
    /// Lets programs attach.
    ///
    /// # Errors
    /// One line for the user.
    pub fn open_door(&self) -> Result<(), String> {
        let path = self.config.dir.attach(&self.config.name_of(self.me));
        let workers = self.workers.clone();
        let offer = Offer {
            me: self.me,
            nodes: Box::new({
                let config = Arc::clone(&self.config);
                move || config.node_count()
            }),
            arena: self.arena.clone(),
            bells: self.workers.all().iter().map(|worker| worker.bell().clone()).collect(),
            listen: Box::new({
                let workers = Arc::clone(&workers);
                move |worker, event| workers.all()[usize::from(worker)].listen(event)
            }),
            hand: Box::new(move |worker, attached| {
                workers.all()[usize::from(worker)].with(|service, _| service.programs().attach(attached));
            }),
        };
        let door = Door::open(&path, offer)
            .map_err(|error| format!("{}: the socket for programs: {error}", path.display()))?;
        *self.door.lock().unwrap_or_else(PoisonError::into_inner) = Some(door);
        Ok(())
    }

    fn shards(&self) -> Shards {
        Shards { workers: self.workers.clone(), group: self.group.clone() }
    }

    /// The cluster.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Which of its nodes this is.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// The cache, for programs in this process.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.handles.cache
    }

    /// The workers, by number.
    #[must_use]
    pub fn workers(&self) -> &[Worker<NodeService>] {
        self.workers.all()
    }

    /// The window that benchmarks of peers reach into.
    #[must_use]
    pub fn benchmark_window(&self) -> Arc<Window> {
        self.benchmark.clone()
    }

    /// What all shards of the cache counted, summed.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.shards().ask(CacheTask::Counts).iter().for_each(|counts| sum.add(counts));
        sum
    }

    /// The same, or nothing where a shard does not answer in time.
    #[must_use]
    pub fn counts_within(&self, limit: Duration) -> Option<Counts> {
        let shards = self.shards();
        let answers: Vec<Counts> = shards.ask_within(limit, CacheTask::Counts);
        let mut sum = Counts::default();
        answers.iter().for_each(|counts| sum.add(counts));
        (answers.len() == usize::from(shards.count())).then_some(sum)
    }

    /// Who is a member, and votes.
    #[must_use]
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// Leaves the cluster, having handed everything back: alone, or at the same time as all others, who have as well.
    ///
    /// # Errors
    /// It cannot be recorded: that nothing is lost with this node is known to the others alone.
    pub fn leave(&self, ending: Ending) -> Result<(), StateError> {
        if ending == Ending::Together {
            // It is on record already, and nobody is left who would have to know more.
            self.member.handed_back();
        }
        // Says to the others that nothing is lost with it.
        let shards = self.shards();
        let may_leave: Vec<()> = shards.ask_within(LEAVE_WITHIN, CacheTask::Leave);
        let recorded = match (ending, may_leave.len() == usize::from(shards.count())) {
            (Ending::Together, _) => Ok(()),
            (Ending::Leave, true) => {
                let recorded = self.lifecycle.left();
                self.member.handed_back();
                recorded
            }
            (Ending::Leave, false) => {
                tracing::warn!(
                    "not all that this node has begun has ended in time: what it mastered counts as lost"
                );
                Ok(())
            }
        };
        let (tell, told) = mpsc::channel();
        let membership = self.membership.clone();
        thread::spawn(move || {
            // Who does not wait any more is about to end.
            let _ = tell.send(membership.leave());
        });
        if told.recv_timeout(LEAVE_WITHIN).is_err() {
            tracing::warn!(
                "the others did not take note in time that this node leaves: they wait for its lease"
            );
        }
        recorded
    }

    /// What this node's configuration would be with the nodes that `cluster.toml` has by now behind those that it knows.
    ///
    /// # Errors
    /// One line: the file cannot be used, or has another node in the place of one that is known.
    pub(crate) fn as_listed(&self) -> Result<Config, String> {
        let listed = Config::load(&self.config.dir).map_err(|error| error.to_string())?;
        let config = Config::clone(&self.config);
        config.learn(&listed.nodes)?;
        Ok(config)
    }

    /// Takes in the nodes of a list that are behind those that this node knows: they may connect, and be members once they belong to the
    /// cluster.
    ///
    /// # Errors
    /// One line: it has another node in the place of one that is known.
    pub(crate) fn learn(&self, nodes: &Nodes) -> Result<(), String> {
        let known = self.config.node_count();
        self.config.learn(nodes)?;
        for id in (known..self.config.node_count()).map(NodeId) {
            let peer = join::peer(&self.config, self.me, id);
            self.membership.set_peer_addresses(id, peer.addresses.clone());
            self.mesh.add_peer(peer);
        }
        Ok(())
    }

    /// The registry.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.handles.registry
    }

    /// The groups of processes.
    #[must_use]
    pub fn groups(&self) -> &Groups {
        &self.handles.groups
    }

    /// The lock manager.
    #[must_use]
    pub fn locks(&self) -> &LockManager {
        &self.handles.locks
    }

    #[cfg(test)]
    pub(crate) fn echo(&self) -> &crate::echo::Echo {
        &self.handles.echo
    }

    /// Every link that is or was up, with what its channels count.
    #[must_use]
    pub fn links(&self) -> Vec<LinkInfo> {
        self.mesh.links()
    }

    /// Every rail to every peer, as it is now.
    #[must_use]
    pub fn rails(&self) -> Vec<RailReport> {
        self.mesh.rails()
    }

    /// Connections refused because whoever was at the other end is no peer.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.mesh.unauthenticated()
    }

    /// Starts no change any more. Those under way end while the blocks are handed back.
    pub fn quiesce(&self) {
        self.handles.cache.close();
    }

    /// Writes every block that is owed and gives all of them up. After every node has quiesced; doing it again
    /// does nothing.
    ///
    /// # Errors
    /// One line for the user; what was not handed back is still held.
    pub fn hand_back(&self, progress: &mut dyn FnMut(u64)) -> Result<HandedBack, String> {
        let (gave_up, before) = (self.handles.cache.occupied() as u64, self.counts().disk_writes);
        let shards = self.shards();
        let answers = shards.ask_within(HAND_BACK_WITHIN, CacheTask::HandBack);
        if answers.len() != usize::from(shards.count()) {
            return Err(
                "not all blocks are handed back: the node has stopped, or a program holds on to a block"
                    .into(),
            );
        }
        let kept: u32 = answers.iter().sum();
        if kept > 0 {
            return Err(format!(
                "{kept} blocks could not be written and are kept; see the log, then try again"
            ));
        }
        self.group.sync().map_err(|error| error.to_string())?;
        let written = self.counts().disk_writes - before;
        progress(written);
        Ok(HandedBack { gave_up, written })
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        // First, so that nobody counts on a member whose parts are gone.
        self.membership.stop();
        let mut threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        threads.checkpoints.take();
        drop(self.door.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(watcher) = threads.watcher.take() {
            // It has ended already if this fails.
            let _ = watcher.send(News::End);
        }
        for handle in threads.handles {
            // A panic was reported when it happened.
            let _ = handle.join();
        }
        end(&self.mesh, &self.workers, &self.handles.registry);
    }
}

/// Ends what works for a node: the links first, then what the workers hold.
fn end(mesh: &Mesh<NodeService>, workers: &Workers, registry: &Registry) {
    mesh.stop();
    // Here, and not wherever the last handle to a worker is let go: that may be an I/O thread.
    for worker in workers.all() {
        drop(worker.with(|service, _| service.end()));
    }
    registry.end();
}
