//! Connecting the nodes of a cluster: who talks to whom over what, and what each worker gets.
//!
//! The node with the higher number connects to the one with the lower, until it answers. First both prove that they
//! have a key of the cluster (`noise.rs`), then they say who they are (`hello.rs`); whoever does not prove it is a *stranger*: the connection is
//! closed without an answer and counted, and nothing else happens.
//!
//! A pair of nodes has a *slot* for each rail that the configuration gives it (`pair.rs`): both ends come to the same slots, because
//! they read the same configuration. Every worker gets a rail in every slot. A slot over a network that is lost is connected again
//! for as long as the peer is not gone; shared memory lives and ends with its peer.
//!
//! | file | what |
//! |---|---|
//! | `keys.rs`, `noise.rs`, `hello.rs`, `spans.rs` | what is said, and how it is proved |
//! | `pair.rs` | what is known of a peer, when to try again; pure |
//! | `common.rs` | that, shared by all who connect |
//! | `network.rs`, `line.rs`, `door.rs`, `calls.rs`, `tcp.rs` | TCP: one thread that waits for no single connection |
//! | `threads.rs` | the threads of a mesh |
//! | `warned.rs` | that nobody from outside fills the log |
//! | `ofi.rs` | libfabric: what a TCP rail proved and carries becomes a rail of the other kind |
//! | `shm.rs` | shared memory: descriptors passed over a local socket |
//! | `sealed.rs` | the same proof for two programs outside of a mesh |
//! | `any.rs` | what a handshake reads, over any bytes, for fuzz targets |

#[doc(hidden)]
pub mod any;
mod calls;
mod common;
mod door;
mod hello;
mod keys;
mod line;
mod network;
mod noise;
#[cfg(feature = "libfabric")]
mod ofi;
mod pair;
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
    sync::{Arc, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use plexus_base::{Epoch, Incarnation, NodeId, NodeSet, Waiting, WorkerId};
use plexus_fabric::{Bell, Event, RailKind, SetupError, Window, Windows};

use self::{
    common::{Common, Made, Place},
    network::Network,
    pair::Standing,
    shm::Local,
    threads::Threads,
};
pub use self::{
    hello::Refusal,
    keys::{KEY, Key, KeySource},
    pair::{Admission, MAX_SLOTS},
    sealed::SealedStream,
};
use crate::{Events, LinkEvent, LinkInfo, LinkSettings, RailReport, Service, Worker, WorkerParts};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// Before another connection is accepted, when one could not be.
const RETRY: Duration = Duration::from_millis(50);

/// A peer, as the configuration has it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its node.
    pub id: NodeId,
    /// Where it listens. Each address is joined with this node's own of the same place: a path for each.
    pub addresses: Vec<SocketAddr>,
    /// What the pair can use, the preferred first.
    pub rails: Vec<RailKind>,
    /// Whether what goes over a network to it is encrypted.
    pub encrypt: bool,
    /// A hash over all settings that must be alike on the two nodes.
    pub fingerprint: u64,
}

/// What a node must know to join its peers.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub me: NodeId,
    /// This incarnation of it.
    pub incarnation: Incarnation,
    /// The cluster's random name.
    pub cluster: [u8; 16],
    /// What proves that a node is of the cluster.
    pub keys: Arc<dyn KeySource>,
    /// Which lives of its peers it lets in.
    pub admission: Admission,
    /// Where to listen for peers over TCP.
    pub listen: Vec<SocketAddr>,
    /// Everyone else, as far as it is known; others follow by [`Mesh::meet`].
    pub peers: Vec<Peer>,
    /// Windows that peers may write into.
    pub windows: Vec<Arc<Window>>,
    /// How its threads wait.
    pub waiting: Waiting,
    /// How long a peer that no rail reaches is waited for before it is gone.
    pub timeout: Duration,
    /// Between two questions whether a silent path is still there.
    pub probe: Duration,
    /// The provider of libfabric to use; none: the first that the host has of those for fast networks, else TCP.
    pub ofi_provider: Option<String>,
}

/// Why a node cannot take its place among its peers.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// The address is taken, or not one of this machine's.
    #[error(
        "cannot listen on {address}: {error}; end what uses it, or change the node's `address` in cluster.toml"
    )]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        error: io::Error,
    },
    /// No key of the cluster is to be had.
    #[error("{0}")]
    Keys(String),
    /// Nobody has said where this peer is.
    #[error("it is not known where it is")]
    Unknown,
    /// Memory or descriptors.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The system refused something that should always work.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
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
    common: Arc<Common>,
    workers: Vec<Worker<S>>,
    local: Arc<Local>,
    /// Ends the thread that meets local peers.
    stopped: Arc<Event>,
    threads: Threads,
}

impl<S: Service> Mesh<S> {
    /// Starts a worker for each of `services`, listens, and begins to connect. `placed` is called on each worker's
    /// thread before anything else (to pin it, say).
    ///
    /// # Errors
    /// No memory, no descriptors, no keys, or an address is taken.
    pub fn start(
        config: Config,
        services: Vec<S>,
        placed: impl Fn(WorkerId) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, MeshError> {
        config.keys.keys().map_err(MeshError::Keys)?;
        let listeners = Network::listen(&config.listen)?;
        let local_listener = shm::listen(&config)?;
        let windows = Arc::new(Windows::new(config.windows.iter().cloned()));
        // Workers are made before what they tell of their rails.
        let told = Arc::new(OnceLock::<Arc<Common>>::new());
        let events: Events = {
            let told = told.clone();
            Arc::new(move |event| {
                let Some(common) = told.get() else { return };
                match event {
                    LinkEvent::Up { .. } => {}
                    LinkEvent::RailDown { peer, incarnation, worker, slot, generation, why } => {
                        common.lost(Place { peer, slot, worker: worker.0 }, incarnation, generation, &why);
                    }
                    // One link gone is the peer gone.
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
        let give = {
            let workers = workers.clone();
            move |made: Made, incarnation| {
                let Made { place: Place { peer, slot, worker }, generation, rail, path } = made;
                workers[usize::from(worker)].add_rail(peer, incarnation, slot, generation, rail, path);
            }
        };
        let common = Arc::new(Common::new(config, workers.len() as u8, windows, Box::new(give))?);
        assert!(told.set(common.clone()).is_ok(), "told once");
        let network = Network::new(common.clone(), listeners)?;
        let mesh = Arc::new(Self {
            local: Arc::new(Local::new(common.clone(), bells)?),
            common,
            workers,
            stopped: Arc::new(event()?),
            threads: Threads::default(),
        });
        // Threads that run already must not outlive a mesh that nobody has.
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
                    tracing::error!(%error, "worker {index} cannot go on");
                    std::process::abort();
                }
            })?;
        }
        self.spawn("network".into(), move || network.run())?;
        let (local, stopped) = (self.local.clone(), self.stopped.clone());
        self.spawn("local".into(), move || local.accept(&local_listener, &stopped))?;
        if self.common.config.admission == Admission::First {
            for peer in self.common.called() {
                self.call(peer.id, None)?;
            }
        }
        Ok(())
    }

    /// Connects to a peer over memory, if it is this node that calls and they have that.
    fn call(&self, peer: NodeId, incarnation: Option<Incarnation>) -> Result<(), MeshError> {
        let slot = self
            .common
            .pairs()
            .get(&peer)
            .and_then(|pair| pair.paths.iter().position(|path| path.kind == RailKind::Shm));
        let Some(slot) = slot.filter(|_| peer < self.common.config.me) else { return Ok(()) };
        let local = self.local.clone();
        self.spawn(format!("connect-{}", peer.0), move || local.connect(peer, incarnation, slot as u8))
    }

    /// One more peer, which the configuration did not have. Of one that is known nothing changes.
    pub fn meet(&self, peer: Peer) {
        self.common.meet(peer);
        // Perhaps it is this node that is to call.
        self.common.stirred.signal();
    }

    /// Lets `incarnation` of `peer` in from now on, and no other. Links to an earlier one end.
    ///
    /// # Errors
    /// The system refuses a thread; the peer is not called over memory. Or nobody has [met](Mesh::meet) it.
    pub fn admit(&self, peer: NodeId, incarnation: Incarnation) -> Result<(), MeshError> {
        let news = self.common.admit(peer, incarnation).ok_or(MeshError::Unknown)?;
        if !news {
            return Ok(());
        }
        let earlier = self.workers.iter().flat_map(Worker::links).filter(|link| link.peer == peer);
        for link in earlier.filter(|link| link.incarnation != incarnation) {
            self.workers[link.worker.index()].drop_link(peer, link.incarnation);
        }
        self.call(peer, Some(incarnation))
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

    /// Every rail of every link, as it was at the last tick, and those that the configuration gives a pair and that never
    /// were connected.
    #[must_use]
    pub fn rails(&self) -> Vec<RailReport> {
        let mut rails: Vec<_> = self.links().iter().flat_map(LinkInfo::rails).collect();
        rails.extend(self.common.never_connected());
        rails.sort_by_key(|rail| (rail.peer, rail.worker, rail.slot));
        rails
    }

    /// Peers that every worker has a link to.
    #[must_use]
    pub fn connected(&self) -> NodeSet {
        self.common.connected()
    }

    /// What stands in the way of peers that are not reached over every path, as far as it is known.
    #[must_use]
    pub fn problems(&self) -> BTreeMap<NodeId, String> {
        let pairs = self.common.pairs();
        pairs.iter().filter_map(|(peer, pair)| Some((*peer, pair.problem()?))).collect()
    }

    /// Waits until all peers are connected; the peers that are not after `limit`, with what is known of why.
    ///
    /// # Errors
    /// The peers that are missing.
    pub fn wait_connected(&self, limit: Duration) -> Result<(), BTreeMap<NodeId, String>> {
        let end = Instant::now() + limit;
        let mut pairs = self.common.pairs();
        loop {
            let mut missing = pairs.iter().filter(|(_, pair)| pair.standing == Standing::Awaited).peekable();
            if missing.peek().is_none() {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.common.is_stopping() {
                let why = |pair: &pair::Pair| pair.problem().unwrap_or_else(|| "has not called yet".into());
                return Err(missing.map(|(peer, pair)| (*peer, why(pair))).collect());
            }
            drop(missing);
            pairs = self.common.changed.wait_timeout(pairs, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Connections that were closed because whoever made them is not of this cluster.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.common.strangers()
    }

    /// Ends the links to this incarnation of `peer`: it is not let in again.
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

/// The caller is gone again, or there are no descriptors: then looking again at once would only burn a core.
fn not_accepted(error: &io::Error) {
    if error.kind() != io::ErrorKind::WouldBlock {
        tracing::warn!(%error, "a connection could not be accepted");
        thread::sleep(RETRY);
    }
}
