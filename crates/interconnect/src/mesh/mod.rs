//! The mesh: connects the nodes of a cluster and gives each worker its rails.
//!
//! The node with the higher number connects to the one with the lower, until that answers. First
//! both prove that they have a key of the cluster (`noise.rs`), then they exchange hellos
//! (`hello.rs`). A peer without a valid key is *unauthenticated*: its connection is closed without
//! an answer and counted, and has no other effect.
//!
//! A pair of nodes has a *slot* for each rail that the configuration gives it (`pair.rs`). Both
//! ends come to the same slots, because they read the same configuration. Every worker gets a rail
//! in every slot. A lost slot over a network is connected again as long as the peer is not gone.
//! Shared memory lives and ends with its peer.
//!
//! | file | content |
//! |---|---|
//! | `keys.rs`, `noise.rs`, `hello.rs`, `spans.rs` | the handshake messages and the proof of the key |
//! | `pair.rs` | the state of a peer and the times of the next attempts; pure |
//! | `common.rs` | that state, shared by all threads that connect |
//! | `network.rs`, `line.rs`, `incoming.rs`, `calls.rs`, `tcp.rs` | TCP: one thread that waits for no single connection |
//! | `threads.rs` | the threads of a mesh |
//! | `warned.rs` | limits the warnings that outsiders can cause |
//! | `ofi.rs` | libfabric: turns an authenticated TCP rail into one of the other kind |
//! | `rails.rs` | the kinds of rail that this build and this machine have |
//! | `shm.rs` | shared memory: descriptors passed over a local socket |
//! | `sealed.rs` | the same proof for two programs outside of a mesh |
//! | `any.rs` | the decoders of a handshake over any bytes, for fuzz targets |

#[doc(hidden)]
pub mod any;
mod calls;
mod common;
mod hello;
mod incoming;
mod keys;
mod line;
mod network;
mod noise;
#[cfg(feature = "libfabric")]
mod ofi;
mod pair;
mod rails;
mod sealed;
mod shm;
mod spans;
mod tcp;
mod threads;
mod warned;

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use plexus_base::{Epoch, Incarnation, NodeId, NodeSet, Waiting, WorkerId};
use plexus_fabric::{Bell, Event, RailKind, SetupError, Window, Windows};

use self::{
    common::{ConnectedRail, MeshState, RailPlace},
    network::Network,
    pair::PeerState,
    shm::LocalPeers,
    threads::Threads,
};
pub use self::{
    hello::Refusal,
    keys::{KEY, Key, KeySource},
    pair::{Admission, MAX_SLOTS},
    rails::{check_available, check_built},
    sealed::SealedStream,
};
use crate::{Events, LinkEvent, LinkInfo, LinkSettings, RailReport, Service, Worker, WorkerParts};

/// The timeout of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// The pause before the next connection is accepted, after an error.
const RETRY: Duration = Duration::from_millis(50);

/// A peer, as the configuration describes it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The number of its node.
    pub id: NodeId,
    /// The addresses at which it listens. Each is joined with this node's own address of the same
    /// position: one path for each.
    pub addresses: Vec<SocketAddr>,
    /// The rails that the pair can use, the preferred first.
    pub rails: Vec<RailKind>,
    /// True if network traffic to it is encrypted.
    pub encrypt: bool,
    /// A hash over all settings that must be equal on the two nodes.
    pub fingerprint: u64,
}

/// The settings with which a node joins its peers.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub me: NodeId,
    /// This incarnation of it.
    pub incarnation: Incarnation,
    /// The cluster's random identifier.
    pub cluster: [u8; 16],
    /// The source of the cluster's keys.
    pub keys: Arc<dyn KeySource>,
    /// The rule for the incarnations of peers that are admitted.
    pub admission: Admission,
    /// The addresses to listen at for peers over TCP.
    pub listen: Vec<SocketAddr>,
    /// The directory of the sockets at which nodes of one host listen for each other. Only the
    /// cluster's user may write to it. `None` uses abstract names instead, which any user of the
    /// host may take; that suits nodes of a random name that run for a short time.
    pub local: Option<PathBuf>,
    /// The peers that are known at the start; others follow by [`Mesh::add_peer`].
    pub peers: Vec<Peer>,
    /// The windows that peers may write into.
    pub windows: Vec<Arc<Window>>,
    /// The waiting mode of its threads.
    pub waiting: Waiting,
    /// The time for which a peer that no rail reaches is waited for before it is gone.
    pub timeout: Duration,
    /// The time between two probes of a silent path.
    pub probe: Duration,
    /// The provider of libfabric to use. `None` uses the first that the host has of those for fast
    /// networks, else TCP.
    pub ofi_provider: Option<String>,
}

/// The reason why a node cannot join its peers.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// The address is in use, or does not belong to this machine.
    #[error(
        "cannot listen on {address}: {error}; end what uses it, or change the node's `address` in cluster.toml"
    )]
    Listen {
        /// The address.
        address: String,
        /// The error of the system call.
        error: io::Error,
    },
    /// The socket for nodes of this host cannot be made.
    #[error("cannot listen on {}: {error}; make its directory writable for the node", path.display())]
    Local {
        /// The socket.
        path: PathBuf,
        /// The error of the system call.
        error: io::Error,
    },
    /// There is no usable key of the cluster.
    #[error("{0}")]
    Keys(String),
    /// The peer was not configured and not added.
    #[error("the address of the peer is not known")]
    Unknown,
    /// Memory or descriptors are missing.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A system call failed that should always work.
    #[error("{what}: {error}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The error of the system call.
        error: io::Error,
    },
}

pub(crate) fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> MeshError {
    move |errno| MeshError::System { what, error: errno.into() }
}

fn event() -> Result<Event, MeshError> {
    Event::create().map_err(|error| MeshError::System { what: "create an eventfd", error })
}

/// The connections of a node.
pub struct Mesh<S: Service> {
    common: Arc<MeshState>,
    workers: Vec<Worker<S>>,
    local: Arc<LocalPeers>,
    /// Ends the thread that accepts local peers.
    stopped: Arc<Event>,
    threads: Threads,
}

impl<S: Service> Mesh<S> {
    /// Starts a worker for each of `services`, listens, and begins to connect. Each worker's thread
    /// first calls `placed` (to pin itself, for example).
    ///
    /// # Errors
    /// No memory, no descriptors or no keys are available, or an address is in use.
    pub fn start(
        config: Config,
        services: Vec<S>,
        placed: impl Fn(WorkerId) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, MeshError> {
        config.keys.keys().map_err(MeshError::Keys)?;
        let listeners = Network::listen(&config.listen)?;
        let local_listener = shm::listen(&config)?;
        let windows = Arc::new(Windows::new(config.windows.iter().cloned()));
        // Workers exist before the state to which they report lost rails.
        let shared = Arc::new(OnceLock::<Arc<MeshState>>::new());
        let events: Events = {
            let shared = shared.clone();
            Arc::new(move |event| {
                let Some(common) = shared.get() else { return };
                match event {
                    LinkEvent::Up { .. } => {}
                    LinkEvent::RailDown { peer, incarnation, worker, slot, generation, why } => {
                        common.lost(
                            RailPlace { peer, slot, worker: worker.0 },
                            incarnation,
                            generation,
                            &why,
                        );
                    }
                    // One lost link makes the peer gone.
                    LinkEvent::Gone { peer, incarnation, .. } => common.forget(peer, incarnation),
                }
            })
        };
        let mut workers = Vec::new();
        let mut bells = Vec::new();
        for (index, service) in services.into_iter().enumerate() {
            let bell = Arc::new(Bell::create()?);
            let id = WorkerId(index as u8);
            let parts = WorkerParts {
                me: config.me,
                id,
                epoch: Epoch(0),
                bell: bell.clone(),
                waiting: config.waiting,
                links: LinkSettings { timeout: config.timeout, probe: config.probe },
                windows: windows.clone(),
                events: events.clone(),
            };
            let worker = Worker::new(parts, service)
                .map_err(|error| MeshError::System { what: "create an epoll set", error })?;
            workers.push(worker);
            bells.push(bell);
        }
        let attach_rail = {
            let workers = workers.clone();
            move |made: ConnectedRail, incarnation| {
                let ConnectedRail { place: RailPlace { peer, slot, worker }, generation, rail, path } = made;
                workers[usize::from(worker)].add_rail(peer, incarnation, slot, generation, rail, path);
            }
        };
        let common = Arc::new(MeshState::new(config, workers.len() as u8, windows, Box::new(attach_rail))?);
        assert!(shared.set(common.clone()).is_ok(), "shared once");
        let network = Network::new(common.clone(), listeners)?;
        let mesh = Arc::new(Self {
            local: Arc::new(LocalPeers::new(common.clone(), bells)?),
            common,
            workers,
            stopped: Arc::new(event()?),
            threads: Threads::default(),
        });
        // Threads that already run must not outlive a mesh that failed to start.
        mesh.start_threads(network, local_listener, Arc::new(placed)).inspect_err(|_| mesh.stop())?;
        Ok(mesh)
    }

    fn start_threads(
        &self,
        network: Network,
        local_listener: OwnedFd,
        placed: Arc<impl Fn(WorkerId) + Send + Sync + 'static>,
    ) -> Result<(), MeshError> {
        for (index, worker) in self.workers.iter().enumerate() {
            let (worker, placed) = (worker.clone(), placed.clone());
            self.spawn(format!("worker-{index}"), move || {
                placed(WorkerId(index as u8));
                if let Err(error) = worker.run() {
                    tracing::error!(%error, "worker {index} failed");
                    std::process::abort();
                }
            })?;
        }
        self.spawn("network".into(), move || network.run())?;
        let (local, stopped) = (self.local.clone(), self.stopped.clone());
        self.spawn("local".into(), move || local.accept(&local_listener, &stopped))?;
        self.threads.start_reserve().map_err(|error| MeshError::System { what: "start a thread", error })?;
        if self.common.config.admission == Admission::First {
            self.common.called().for_each(|peer| self.call(peer.id, None));
        }
        Ok(())
    }

    /// Connects to a peer over shared memory, if this node is the one that connects and the pair
    /// has that rail.
    fn call(&self, peer: NodeId, incarnation: Option<Incarnation>) {
        let slot = self
            .common
            .pairs()
            .get(&peer)
            .and_then(|pair| pair.paths.iter().position(|path| path.kind == RailKind::Shm));
        let Some(slot) = slot.filter(|_| peer < self.common.config.me) else { return };
        let local = self.local.clone();
        let connect = move || local.connect(peer, incarnation, slot as u8);
        self.threads.start_or_wait(format!("connect-{}", peer.0), connect);
    }

    /// Adds a peer that the configuration did not have. A known peer stays unchanged.
    pub fn add_peer(&self, peer: Peer) {
        self.common.add_peer(peer);
        // This node may be the one that connects.
        self.common.wake_network.signal();
    }

    /// Admits `incarnation` of `peer` from now on, and no other. Links to an earlier one end.
    ///
    /// # Errors
    /// The peer was not configured and not [added](Mesh::add_peer).
    pub fn admit(&self, peer: NodeId, incarnation: Incarnation) -> Result<(), MeshError> {
        let changed = self.common.admit(peer, incarnation).ok_or(MeshError::Unknown)?;
        if !changed {
            return Ok(());
        }
        let earlier = self.workers.iter().flat_map(Worker::links).filter(|link| link.peer == peer);
        for link in earlier.filter(|link| link.incarnation != incarnation) {
            self.workers[link.worker.index()].drop_link(peer, link.incarnation);
        }
        self.call(peer, Some(incarnation));
        Ok(())
    }

    /// The workers, by number.
    #[must_use]
    pub fn workers(&self) -> &[Worker<S>] {
        &self.workers
    }

    /// Every link that is or was up.
    #[must_use]
    pub fn links(&self) -> Vec<LinkInfo> {
        self.workers.iter().flat_map(Worker::links).collect()
    }

    /// Every rail of every link, as it was at the last tick, and the configured rails that never
    /// were connected.
    #[must_use]
    pub fn rails(&self) -> Vec<RailReport> {
        let mut rails: Vec<_> = self.links().iter().flat_map(LinkInfo::rails).collect();
        rails.extend(self.common.never_connected());
        rails.sort_by_key(|rail| (rail.peer, rail.worker, rail.slot));
        rails
    }

    /// The peers to which every worker has a link.
    #[must_use]
    pub fn connected(&self) -> NodeSet {
        self.common.connected()
    }

    /// The known problems of peers that are not reached over every path.
    #[must_use]
    pub fn problems(&self) -> BTreeMap<NodeId, String> {
        let pairs = self.common.pairs();
        pairs.iter().filter_map(|(peer, pair)| Some((*peer, pair.problem()?))).collect()
    }

    /// Waits until all peers are connected, at most for `limit`.
    ///
    /// # Errors
    /// The missing peers, with the known reasons.
    pub fn wait_connected(&self, limit: Duration) -> Result<(), BTreeMap<NodeId, String>> {
        let end = Instant::now() + limit;
        let mut pairs = self.common.pairs();
        loop {
            let mut missing =
                pairs.iter().filter(|(_, pair)| pair.peer_state == PeerState::Awaited).peekable();
            if missing.peek().is_none() {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.common.is_stopping() {
                let why =
                    |pair: &pair::Pair| pair.problem().unwrap_or_else(|| "it has not connected yet".into());
                return Err(missing.map(|(peer, pair)| (*peer, why(pair))).collect());
            }
            drop(missing);
            pairs = self.common.changed.wait_timeout(pairs, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The number of connections closed because their peer had no valid key.
    #[must_use]
    pub fn unauthenticated(&self) -> u64 {
        self.common.unauthenticated()
    }

    /// Ends the links to this incarnation of `peer`, which is not admitted again.
    pub fn forget(&self, peer: NodeId, incarnation: Incarnation) {
        self.common.forget(peer, incarnation);
        self.workers.iter().for_each(|worker| worker.drop_link(peer, incarnation));
    }

    /// Ends all threads and with them all links; peers see that as this node's end.
    pub fn stop(&self) {
        self.common.stop();
        self.stopped.signal();
        self.workers.iter().for_each(Worker::stop);
        self.threads.join();
        self.local.end();
    }

    fn spawn(&self, name: String, run: impl FnOnce() + Send + 'static) -> Result<(), MeshError> {
        self.threads.start(name, run).map_err(|error| MeshError::System { what: "start a thread", error })
    }
}

/// The peer is gone again, or there are no descriptors: an immediate retry would only burn a core.
fn not_accepted(error: &io::Error) {
    if error.kind() != io::ErrorKind::WouldBlock {
        tracing::warn!(%error, "cannot accept a connection");
        thread::sleep(RETRY);
    }
}
