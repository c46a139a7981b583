//! The parts of a running node: links to its peers, the cache, the locks, the disk group.
//!
//! The order of calls is [`NodeRuntime::join`], [`NodeRuntime::quiesce`],
//! [`NodeRuntime::hand_back`], [`NodeRuntime::leave`].

mod join;
mod status;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::AtomicBool, mpsc},
    thread,
    time::Duration,
};

use plexus_admin::{
    config::{Config, Nodes},
    control::Commands,
    keys::KeyFiles,
    records::state::StateError,
    status::ProgramsStatus,
};
use plexus_base::{Incarnation, NodeId, NodeSet};
use plexus_cache::{Cache, CacheTask, protocol::Counts};
use plexus_disks::{Group, mirror::Mirror};
use plexus_fabric::{Window, WindowId};
use plexus_interconnect::{LinkInfo, Listening, RailReport, Worker, mesh::Mesh};
use plexus_locks::LockManager;
use plexus_membership::{groups::Groups, protocol::View, runtime::Membership};
use plexus_redo::{NodeRedo, RecoveryPhase, recovery::force_disks, stream::protocol::StreamCounts};
use plexus_registry::Registry;

pub use self::join::{JoinError, Parts};
use crate::{
    ledger::RegistryLedger,
    lifecycle::{Ending, Lifecycle},
    member::Member,
    service::{NodeService, WorkerNotice, Workers},
    subsystems::Handles,
};

/// The longest that an ending node waits for the others to learn of its leave.
const LEAVE_WITHIN: Duration = Duration::from_secs(3);

/// The longest wait for the view without this node. Other members may have to end with it.
const LEFT_WITHIN: Duration = Duration::from_secs(30);

/// The longest wait for the counts of the cache.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// The window for the puts of benchmarks. It has no granules, so puts need no generation.
pub const BENCHMARK_WINDOW: WindowId = WindowId(0x100);

/// The parts of the time that a hand-back may take, and their number: disks need that long for a
/// large cache. Clients that wait for a recovery which does not move are waited for less long.
const HAND_BACK_PART: Duration = Duration::from_secs(10);
const HAND_BACK_PARTS: u32 = 60;
const STUCK_PARTS: u32 = 4;

/// The running parts of a node.
pub struct NodeRuntime {
    config: Arc<Config>,
    me: NodeId,
    incarnation: Incarnation,
    lifecycle: Arc<Lifecycle>,
    group: Arc<Group>,
    ledger: Arc<RegistryLedger>,
    /// The reason why all blocks are refused, if they are.
    refused: OnceLock<String>,
    /// True once the disks were compared with the registry without redo.
    compared: AtomicBool,
    handles: Handles,
    workers: Arc<Workers>,
    mesh: Arc<Mesh<NodeService>>,
    member: Arc<Member>,
    membership: Arc<Membership>,
    keys: Arc<KeyFiles>,
    threads: Mutex<Threads>,
    /// The events of subsystems, which wake the workers.
    _events: Vec<Listening>,
}

#[derive(Default)]
struct Threads {
    watcher: Option<mpsc::Sender<WorkerNotice>>,
    handles: Vec<thread::JoinHandle<()>>,
}

/// The result of a hand-back.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct HandedBack {
    /// The number of blocks that the node held before.
    pub gave_up: u64,
    /// The number of blocks among them that had to be written.
    pub written: u64,
    /// The reason why changes are not on disk, if any may not be.
    pub unrecovered: Option<String>,
}

impl NodeRuntime {
    /// Lets all subsystems serve programs and users.
    ///
    /// # Errors
    /// One of them cannot; the text is one line for the user.
    pub(crate) fn serve(self: &Arc<Self>, commands: &Commands) -> Result<(), String> {
        self.handles.all().try_for_each(|(_, handle)| handle.serve(self, commands))
    }

    /// Returns the configuration to those who keep it.
    pub(crate) fn shared_config(&self) -> Arc<Config> {
        Arc::clone(&self.config)
    }

    /// Returns the cluster's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the number of this node.
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// Returns the members of the view that this node acts in.
    pub fn members(&self) -> NodeSet {
        self.view().map(|view| view.members()).unwrap_or_default()
    }

    /// Returns the cache, for clients in this process.
    pub fn cache(&self) -> &Cache {
        &self.handles.cache.cache
    }

    /// Returns the workers, by number.
    pub fn workers(&self) -> &[Worker<NodeService>] {
        self.workers.all()
    }

    /// Returns the window into which the benchmarks of peers write.
    pub fn benchmark_window(&self) -> Arc<Window> {
        self.handles.benchmarks.0.clone()
    }

    /// Returns the counters of the cache, summed over all shards.
    pub fn counts(&self) -> Counts {
        self.handles.cache.sum(ANSWER_WITHIN).0
    }

    /// Returns the counts of all subsystems by the names of both, without those that do not answer
    /// within `limit`.
    pub fn counts_within(&self, limit: Duration) -> BTreeMap<String, BTreeMap<String, u64>> {
        let counts = self.handles.all().map(|(name, handle)| {
            let counts = handle.counts(limit).into_iter();
            (name.to_owned(), counts.map(|(event, count)| (event.to_owned(), count)).collect())
        });
        counts.filter(|(_, counts): &(_, BTreeMap<_, _>)| !counts.is_empty()).collect()
    }

    /// Returns the resources of programs. Does not wait for workers.
    pub fn programs(&self) -> ProgramsStatus {
        self.handles.programs.used()
    }

    /// Returns the counts of the redo stream; all are 0 in a cluster without redo.
    pub fn redo_counts(&self) -> StreamCounts {
        self.handles.cache.redo().map(|redo| redo.counts()).unwrap_or_default()
    }

    /// Returns the membership of this node.
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// Leaves the cluster after the hand-back, alone or together with all other nodes.
    ///
    /// # Errors
    /// The record cannot be written, and stays that of a crashed node.
    pub fn leave(&self, ending: Ending) -> Result<(), StateError> {
        let shards = &self.handles.cache.shards;
        shards.close_redo();
        // The others end too if no majority of the voting files is left to them. Until then this
        // node grants the blocks that it masters: they need them to end.
        let ends_first = ending == Ending::Leave && !self.leaves_a_majority();
        let may_leave: Vec<()> = match ends_first {
            true => Vec::new(),
            false => shards.ask_within(LEAVE_WITHIN, CacheTask::Leave),
        };
        let mut recorded = Ok(());
        if ending == Ending::Leave && may_leave.len() == usize::from(shards.workers) {
            recorded = self.lifecycle.left();
        } else if ending == Ending::Leave && !ends_first {
            tracing::warn!(
                "operations of this node did not end in time: the others recover as after a crash"
            );
        }
        if self.membership.leave(LEFT_WITHIN).is_none() {
            tracing::warn!(
                "the others did not confirm the leave of this node in time: they wait for its lease"
            );
        } else if ends_first {
            recorded = self.lifecycle.left();
        }
        recorded
    }

    /// Returns true if the other members have a majority of the voting files without those that
    /// this node serves.
    fn leaves_a_majority(&self) -> bool {
        let Some(status) = self.membership.status() else { return true };
        let is_other =
            |host: u8| host != self.me.0 && status.members.iter().any(|member| member.node == host);
        let left = status.files.iter().filter(|file| file.votes && file.host.is_none_or(is_other)).count();
        left >= status.quorum.needed
    }

    /// Returns this node's configuration with the nodes that `cluster.toml` lists now.
    ///
    /// # Errors
    /// The file is invalid, or a known node is different there. The text is one line.
    pub(crate) fn as_listed(&self) -> Result<Config, String> {
        let listed = Config::load(&self.config.dir).map_err(|error| error.to_string())?;
        Config::clone(&self.config).learn(&listed.nodes)?;
        Ok(Config { nodes: listed.nodes, ..Config::clone(&self.config) })
    }

    /// Learns the nodes of a list that this node does not know. They may connect, and may become
    /// members once they belong to the cluster.
    ///
    /// # Errors
    /// A known node is different in the list. The text is one line.
    pub(crate) fn learn(&self, nodes: &Nodes) -> Result<(), String> {
        let known = self.config.numbers();
        self.config.learn(nodes)?;
        for id in self.config.numbers().iter().filter(|id| !known.contains(*id)) {
            let peer = join::peer(&self.config, self.me, id);
            self.membership.set_peer_addresses(id, peer.addresses.clone());
            self.mesh.add_peer(peer);
        }
        Ok(())
    }

    /// Returns the redo of this node, if changes are logged.
    pub(crate) fn redo(&self) -> Option<&NodeRedo> {
        self.handles.cache.redo()
    }

    /// Returns the disk group.
    pub(crate) fn disk_group(&self) -> &Group {
        &self.group
    }

    /// Returns the faults of the disks according to the registry. If `accepts`, the registry then
    /// takes the present images for the newest.
    pub(crate) fn force_disks(&self, accepts: bool) -> Result<Vec<String>, String> {
        let forced = force_disks(&self.group, &*self.ledger, accepts, &|| self.lifecycle.is_ending());
        forced.map_err(|why| why.to_string())
    }

    /// Returns the mirrored disks, if the group has some.
    pub(crate) fn mirror(&self) -> Option<&Arc<Mirror>> {
        self.group.mirror()
    }

    /// Returns the registry.
    pub fn registry(&self) -> &Registry {
        &self.handles.registry
    }

    /// Returns the groups.
    pub fn groups(&self) -> &Groups {
        &self.handles.groups
    }

    /// Returns the lock manager.
    pub fn locks(&self) -> &LockManager {
        &self.handles.locks
    }

    /// Returns the view that this node acts in.
    pub(crate) fn view(&self) -> Option<Arc<View>> {
        self.member.opened()
    }

    /// Returns the known problem of the paths to a peer.
    pub(crate) fn problem(&self, peer: NodeId) -> Option<String> {
        self.mesh.problems().remove(&peer)
    }

    /// Returns the interfaces of all subsystems.
    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    /// Returns every link that is or was up, with the counters of its channels.
    pub fn links(&self) -> Vec<LinkInfo> {
        self.mesh.links()
    }

    /// Returns the present state of every rail to every peer.
    pub fn rails(&self) -> Vec<RailReport> {
        self.mesh.rails()
    }

    /// Returns the number of connections that were refused because the peer did not authenticate.
    pub fn unauthenticated(&self) -> u64 {
        self.mesh.unauthenticated()
    }

    /// Refuses new work. Changes under way end while the blocks are handed back.
    pub fn quiesce(&self) {
        self.handles.all().rev().for_each(|(_, handle)| handle.quiesce());
    }

    /// Writes every owed block and gives up all blocks. Call it after every node has quiesced; a
    /// second call has no effect.
    ///
    /// # Errors
    /// Some blocks were not handed back and are still held; the text is one line for the user.
    pub fn hand_back(&self, progress: &mut dyn FnMut(u64)) -> Result<HandedBack, String> {
        let (gave_up, before) = (self.handles.cache.cache.occupied() as u64, self.counts().disk_writes);
        let shards = &self.handles.cache.shards;
        let recovery = || shards.redo.as_ref().map(|redo| redo.recovery()).unwrap_or_default();
        let (mut answers, mut stuck) = (Vec::new(), 0);
        for _ in 0..HAND_BACK_PARTS {
            let seen = recovery();
            answers = shards.ask_within(HAND_BACK_PART, CacheTask::HandBack);
            if answers.len() == usize::from(shards.workers) {
                break;
            }
            let is_stuck = seen.phase != RecoveryPhase::Over && seen == recovery();
            stuck = if is_stuck { stuck + 1 } else { 0 };
            if let Some(why) = seen.unrecovered().filter(|_| stuck == STUCK_PARTS) {
                return Err(format!("not all blocks are handed back, as clients wait for redo: {why}"));
            }
        }
        if answers.len() != usize::from(shards.workers) {
            return Err(
                "not all blocks are handed back: the node has stopped, or a client still uses a block".into(),
            );
        }
        let kept: u32 = answers.iter().sum();
        if kept > 0 {
            return Err(format!(
                "{kept} blocks could not be written and are kept; see the log, then try again"
            ));
        }
        self.group.sync().map_err(|error| error.to_string())?;
        shards.settle_redo();
        shards.note_end(&*self.ledger);
        let displaced = self.group.displaced();
        if let Some(mirror) = self.group.mirror() {
            // While the other disks are still there: what this node writes later would leave them
            // stale.
            shards.close_redo();
            mirror.quiesce();
        }
        let written = self.counts().disk_writes - before;
        progress(written);
        let displaced = displaced.last().map(|path| {
            let path = path.display();
            format!("{path} was removed or replaced while nodes used it: what they wrote to it is gone")
        });
        let not_recovered = shards
            .redo
            .as_ref()
            .and_then(|redo| redo.recovery().unrecovered())
            .map(|why| format!("redo is not recovered: {why}; `plexus redo` shows what is left of it"));
        let unrecovered = displaced.or(not_recovered);
        Ok(HandedBack { gave_up, written, unrecovered })
    }
}

impl Drop for NodeRuntime {
    fn drop(&mut self) {
        // First, so that no node relies on a member without its parts.
        self.membership.stop();
        let mut threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        self.handles.all().rev().for_each(|(_, handle)| handle.end());
        if let Some(watcher) = threads.watcher.take() {
            // Fails if the watcher has ended already.
            let _ = watcher.send(WorkerNotice::End);
        }
        for handle in threads.handles {
            // A panic was reported when it happened.
            let _ = handle.join();
        }
        end(&self.mesh, &self.workers, &self.handles);
    }
}

/// Ends the links, then the services on the workers.
fn end(mesh: &Mesh<NodeService>, workers: &Workers, handles: &Handles) {
    mesh.stop();
    // Ended here because the last handle to a worker may be dropped on an I/O thread.
    for worker in workers.all() {
        drop(worker.with(|service, _| service.end()));
    }
    handles.all().rev().for_each(|(_, handle)| handle.ended());
}
