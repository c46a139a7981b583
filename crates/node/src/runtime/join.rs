//! Creation of a node's parts: they are made, connected and started. Then the node waits until it
//! is a member and reaches its peers.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use plexus_admin::{config::Config, keys::KeyFiles};
use plexus_base::{Incarnation, NodeId};
use plexus_disks::{Group, mirror::protocol::MapProposal};
use plexus_fabric::Window;
use plexus_interconnect::mesh::{self, Mesh};
use plexus_membership::runtime::Membership;
use plexus_redo::recovery::{older_images, open_disks};

use super::{NodeRuntime, end};
use crate::{
    ledger::RegistryLedger,
    lifecycle::{Ending, Lifecycle},
    member::watcher::Watcher,
    member::{Die, Member},
    service::{NodeService, WorkerNotice, Workers},
    subsystems::{Handles, Making},
};

/// The interval of the progress messages of a node that starts.
const SAY_EVERY: Duration = Duration::from_millis(500);

/// The inputs of [`NodeRuntime::join`].
pub struct Parts {
    /// The configuration of the cluster.
    pub config: Arc<Config>,
    /// The number of this node.
    pub me: NodeId,
    /// The incarnation of this node.
    pub incarnation: Incarnation,
    /// The last earlier incarnation of this node that has provably ended.
    pub ended: Incarnation,
    /// The disk group.
    pub group: Arc<Group>,
    /// The changes of the map that a mirrored group wants.
    pub proposals: Mutex<Option<mpsc::Receiver<MapProposal>>>,
    /// The lifecycle of the node.
    pub lifecycle: Arc<Lifecycle>,
    /// Stops the node at once.
    pub die: Die,
    /// Takes the membership, for commands to a node that has not joined yet.
    pub(crate) member: Arc<OnceLock<Weak<Member>>>,
}

/// The reason why a node did not join its cluster; the text is one line for the user.
#[derive(Debug)]
pub enum JoinError {
    /// The node was removed from the cluster.
    Removed(String),
    /// Another reason.
    Failed(String),
}

impl From<String> for JoinError {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl NodeRuntime {
    /// Joins the cluster and serves. Calls [`Lifecycle::begin`] after everything that can fail
    /// without peers, and before the first message of a peer can be served. Gives up when
    /// [`Lifecycle::is_ending`].
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn join(parts: Parts) -> Result<Self, JoinError> {
        let workers = Arc::<Workers>::default();
        let memory = Arc::new(OnceLock::new());
        let registry = Arc::new(OnceLock::new());
        let ledger = Arc::new(RegistryLedger::new(registry.clone(), parts.group.shape().id));
        let making = Making {
            parts: &parts,
            membership: memory.clone(),
            registry: registry.clone(),
            ledger: ledger.clone(),
        };
        let (handles, made) = Handles::make(&making, &workers)?;
        let applies = handles.all().filter_map(|(_, handle)| handle.applies());
        applies.for_each(|apply| handles.registry.apply_before_report(apply));
        let is_first = registry.set(handles.registry.clone()).is_ok();
        debug_assert!(is_first, "a node has one registry");
        let Parts { config, me, incarnation, ended, group, lifecycle, die, member: joining, .. } = parts;
        let (tell, notices) = mpsc::channel();
        let member = Arc::new(Member::new(
            config.clone(),
            me,
            [incarnation, ended],
            lifecycle.clone(),
            workers.clone(),
            die,
            handles.all().filter_map(|(_, handle)| handle.drain()).collect(),
        ));
        let service = |subsystems| NodeService::new(subsystems, Arc::downgrade(&member), tell.clone());
        let services = made.workers.into_iter().map(service).collect();
        let keys = Arc::new(KeyFiles::new(config.dir.clone()));
        let mesh_config = mesh_config(&config, me, incarnation, made.windows, keys.clone());

        lifecycle.begin().map_err(|error| error.to_string())?;
        let mesh = Mesh::start(mesh_config, services, |_| ()).map_err(|error| error.to_string())?;
        Workers::start(mesh.workers().to_vec(), &workers);
        let workers_events = mesh.workers().iter().zip(made.events);
        let listening = workers_events
            .flat_map(|(worker, events)| events.into_iter().map(move |event| worker.listen(event)));
        let events = listening.collect::<Result<_, _>>();
        let events = events.map_err(|error| format!("the events of subsystems: {error}"))?;
        member.place_mesh(&mesh);
        let settings = membership_settings(&config, me, incarnation, keys.clone());
        let membership = settings.and_then(|settings| {
            Membership::start(settings, member.clone())
                .map_err(|error| format!("{}: {error}", config.nodes[me.index()].name))
        });
        let membership = Arc::new(membership.inspect_err(|_| end(&mesh, &workers, &handles))?);
        member.place_membership(&membership);
        assert!(joining.set(Arc::downgrade(&member)).is_ok(), "a node joins once");
        assert!(memory.set(Arc::downgrade(&membership)).is_ok(), "a node has one membership");
        let lease = membership.lease();
        group.guard(Box::new(move || lease.is_held()));
        let runtime = Self {
            config,
            me,
            incarnation,
            lifecycle,
            group,
            ledger,
            refused: OnceLock::new(),
            compared: AtomicBool::new(false),
            handles,
            workers,
            mesh,
            member,
            membership,
            keys,
            threads: Mutex::default(),
            _events: events,
        };
        let ready = runtime
            .start_threads(tell, notices)
            .map_err(JoinError::from)
            .and_then(|()| runtime.wait_for_view())
            .map(|()| runtime.compare_disks_without_redo())
            .and_then(|()| Ok(runtime.wait_for_peers()?));
        if let Err(why) = ready {
            // The node may have served as a master already.
            if runtime.member.opened().is_some() {
                runtime.quiesce();
                runtime.hand_back(&mut |_| ())?;
                runtime.leave(Ending::Leave).map_err(|error| error.to_string())?;
            }
            return Err(why);
        }
        Ok(runtime)
    }

    /// Waits until the node acts in a view.
    fn wait_for_view(&self) -> Result<(), JoinError> {
        let mut said = None;
        loop {
            let opened = self.member.wait_opened(SAY_EVERY)?;
            if self.lifecycle.is_ending() {
                return Err("stopped before it was a member".to_owned().into());
            }
            if self.member.is_removed() {
                let name = self.config.name_of(self.me);
                return Err(JoinError::Removed(format!(
                    "{name} was removed from the cluster; add it again with `plexus node add {name}`"
                )));
            }
            if !self.member.knows_all() {
                return Err(JoinError::Failed(format!(
                    "{}: more nodes belong to the cluster than are listed; copy the file here from another machine",
                    self.config.dir.config().display()
                )));
            }
            if opened.is_some() {
                return Ok(());
            }
            let waits_for = self.obstacles();
            if said.as_ref() != Some(&waits_for) {
                tracing::info!("waiting for {waits_for}");
                said = Some(waits_for);
            }
        }
    }

    /// Returns the text of what a node that is no member waits for.
    fn obstacles(&self) -> String {
        let Some((status, awaited)) = self.member.membership_status() else { return "its membership".into() };
        if let Some(awaited) = awaited.first() {
            return format!("a proof: {awaited}");
        }
        if status.quorum.answering >= status.quorum.needed {
            let odd = status.differing_times.iter().map(|(node, lease_ms, disk_ms)| {
                let name = self.config.name_of(NodeId(*node));
                format!("; {name} has a lease of {lease_ms} ms and a disk timeout of {disk_ms} ms, this node has others: make [membership] in cluster.toml alike")
            });
            return format!("the others to take it in{}", odd.collect::<String>());
        }
        let files =
            status.files.iter().filter_map(|file| Some(format!("{}: {}", file.id, file.error.as_ref()?)));
        let files: Vec<_> = files.collect();
        let quorum = status.quorum;
        format!(
            "voting files: {} of {} answer, {} are needed{}{}",
            quorum.answering,
            quorum.files,
            quorum.needed,
            if files.is_empty() { "" } else { "; " },
            files.join("; ")
        )
    }

    /// Compares the disks with the entry in the registry. With redo this is a part of each scan;
    /// without it, this node refuses all blocks for as long as it runs. If the registry cannot be
    /// asked, the node serves and says that nothing was compared.
    fn compare_disks_without_redo(&self) {
        while self.handles.cache.redo().is_none() && !self.lifecycle.is_ending() {
            let Some(view) = self.view() else { return };
            let is_void = || {
                let epoch = self.view().map(|view| view.epoch);
                self.lifecycle.is_ending() || epoch != Some(view.epoch)
            };
            let members: Vec<_> =
                view.members().iter().filter_map(|id| Some((id, view.incarnation(id)?))).collect();
            let me = (self.me, self.incarnation);
            match open_disks(&self.group, &*self.ledger, me, &members, false, &is_void) {
                Ok(faults) if faults.is_empty() => return self.compared.store(true, Relaxed),
                Err(_) if is_void() => {}
                Err(why) => return tracing::warn!("the disks are not compared with the registry: {why}"),
                Ok(faults) => {
                    let why =
                        format!("blocks are refused: {}; then restart the nodes", older_images(&faults));
                    tracing::error!("{why}");
                    self.handles.cache.cache.close();
                    drop(self.refused.set(why));
                    return;
                }
            }
        }
    }

    fn wait_for_peers(&self) -> Result<(), String> {
        let mut said = None;
        loop {
            match self.mesh.wait_connected(Duration::from_millis(200)) {
                Ok(()) => return Ok(()),
                Err(_) if self.lifecycle.is_ending() => {
                    return Err("stopped before all peers were connected".into());
                }
                Err(missing) => {
                    let missing: Vec<String> = missing
                        .iter()
                        .map(|(peer, why)| format!("{}: {why}", self.config.name_of(*peer)))
                        .collect();
                    let missing = missing.join("; ");
                    if said.as_ref() != Some(&missing) {
                        tracing::info!("waiting for {missing}");
                        said = Some(missing);
                    }
                }
            }
        }
    }

    fn start_threads(
        &self,
        tell: mpsc::Sender<WorkerNotice>,
        notices: mpsc::Receiver<WorkerNotice>,
    ) -> Result<(), String> {
        self.handles.all().try_for_each(|(_, handle)| handle.start())?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.watcher = Some(tell);
        let watcher = Watcher {
            config: self.config.clone(),
            mesh: Arc::downgrade(&self.mesh),
            member: self.member.clone(),
            membership: self.membership.clone(),
        };
        let run = move || watcher.run(&notices);
        let thread = thread::Builder::new().name("peers".into()).spawn(run);
        threads.handles.push(thread.map_err(|error| format!("a thread for lost peers: {error}"))?);
        Ok(())
    }
}

fn membership_settings(
    config: &Config,
    me: NodeId,
    incarnation: Incarnation,
    keys: Arc<KeyFiles>,
) -> Result<plexus_membership::runtime::Settings, String> {
    let name = &config.nodes[me.index()].name;
    let mine = config.voting.iter().filter(|file| file.node.as_ref().is_none_or(|node| node == name));
    let others = config.numbers().without(me).iter();
    Ok(plexus_membership::runtime::Settings {
        me,
        incarnation,
        profile: config.membership.times()?,
        first: config.first_view(),
        must_prove: config.fenced(),
        cluster: config.id.0.to_le_bytes(),
        keys,
        listen: config.nodes[me.index()].all_addresses().collect(),
        peers: others.map(|id| (id, config.nodes[id.index()].all_addresses().collect())).collect(),
        files: mine.map(|file| (file.id, file.path.clone())).collect(),
        watchdog: config.membership.watchdog.clone(),
    })
}

/// Returns the parameters of the connections to a peer.
pub(super) fn peer(config: &Config, me: NodeId, id: NodeId) -> mesh::Peer {
    mesh::Peer {
        id,
        addresses: config.nodes[id.index()].all_addresses().collect(),
        rails: config.rails(me, id),
        encrypt: config.encrypts(me, id),
        fingerprint: config.fingerprint(me, id),
    }
}

fn mesh_config(
    config: &Config,
    me: NodeId,
    incarnation: Incarnation,
    windows: Vec<Arc<Window>>,
    keys: Arc<KeyFiles>,
) -> mesh::Config {
    let ids = config.numbers().without(me).iter();
    mesh::Config {
        me,
        incarnation,
        cluster: config.id.0.to_le_bytes(),
        keys,
        admission: mesh::Admission::Named,
        listen: config.nodes[me.index()].all_addresses().collect(),
        local: Some(config.dir.run()),
        peers: ids.map(|id| peer(config, me, id)).collect(),
        windows,
        waiting: config.waiting,
        timeout: config.interconnect.timeout(),
        probe: config.interconnect.probe(),
        ofi_provider: config.interconnect.ofi_provider.clone(),
    }
}
