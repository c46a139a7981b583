//! Connecting the nodes of a cluster: who talks to whom over what, and what each worker gets.
//!
//! The node with the higher number connects to the one with the lower, until it answers. A connection says first who
//! it is (`hello.rs`); whoever does not say that correctly is a *stranger*: the connection is closed and counted, and
//! nothing else happens. When everything of a pair is connected, every worker gets its link to that peer.
//!
//! A pair uses shared memory when the configuration says that both are on one host, else TCP; both ends come
//! to the same answer because they read the same configuration.
//!
//! In this version the loss of a link is the loss of its peer: a connection that breaks is not made again
//! until the peer has joined anew.

mod hello;
mod shm;
mod spans;
mod tcp;

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use plexus_base::{Epoch, Incarnation, MAX_NODES, Nanos, NodeId, NodeSet, Waiting, WorkerId};
use plexus_fabric::{Bell, Lane, Rail, RailKind, SetupError, Window, shm::PeerWatch};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

pub use self::hello::Refusal;
use self::hello::{HELLO, Hello};
use crate::{LinkInfo, RailReport, RailState, Reason, Service, Worker};

/// Strangers that may be in a handshake at once; more are turned away at the door.
const HANDSHAKES: u32 = 64;

/// How long a handshake may take, each way.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// Between two attempts to reach a peer that does not answer yet.
const RETRY: Duration = Duration::from_millis(50);

/// A peer, as the configuration has it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its node.
    pub id: NodeId,
    /// Where it listens.
    pub address: SocketAddr,
    /// What the pair uses.
    pub rail: RailKind,
}

/// What a node must know to join its peers.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub me: NodeId,
    /// This life of it.
    pub incarnation: Incarnation,
    /// The cluster's random name.
    pub cluster: [u8; 16],
    /// The view that it starts in.
    pub epoch: Epoch,
    /// A hash over all settings that must be alike on every node.
    pub fingerprint: u64,
    /// Where to listen for peers over TCP.
    pub listen: SocketAddr,
    /// Everyone else.
    pub peers: Vec<Peer>,
    /// Windows that peers may write into.
    pub windows: Vec<Arc<Window>>,
    /// How its threads wait.
    pub waiting: Waiting,
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

/// How far it is with one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Awaited,
    Attaching,
    Connected,
    Gone,
}

/// The connections of a node.
pub struct Mesh<S: Service> {
    config: Config,
    workers: Vec<Worker<S>>,
    bells: Vec<Arc<Bell>>,
    standing: Mutex<[Standing; MAX_NODES]>,
    changed: Condvar,
    links: Mutex<Vec<LinkInfo>>,
    problems: Mutex<BTreeMap<NodeId, String>>,
    gathering: Mutex<BTreeMap<NodeId, tcp::Gathering>>,
    strangers: AtomicU64,
    /// Under way, over TCP and on this host: strangers on the network do not use up what local peers need.
    handshakes: [AtomicU32; 2],
    watch: Mutex<Option<PeerWatch>>,
    stopping: AtomicBool,
    stopped: OwnedFd,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl<S: Service> Mesh<S> {
    /// Starts a worker for each of `services`, listens, and begins to connect. `placed` is called on each worker's
    /// thread before anything else (to pin it, say).
    ///
    /// # Errors
    /// No memory, no descriptors, or the address is taken.
    pub fn start(
        config: Config,
        services: Vec<S>,
        placed: impl Fn(WorkerId) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, MeshError> {
        let listener = TcpListener::bind(config.listen)
            .map_err(|error| MeshError::Listen { address: config.listen.to_string(), error })?;
        listener
            .set_nonblocking(true)
            .map_err(|error| MeshError::System { what: "set up the listener", error })?;
        let local = shm::listen(&config)?;
        let mut workers = Vec::new();
        let mut bells = Vec::new();
        for (index, service) in services.into_iter().enumerate() {
            let bell = Arc::new(Bell::create()?);
            let id = WorkerId(index as u8);
            let worker =
                Worker::new(config.me, id, config.epoch, MAX_NODES, bell.clone(), config.waiting, service)
                    .map_err(|error| MeshError::System { what: "create an epoll set", error })?;
            workers.push(worker);
            bells.push(bell);
        }
        let watch =
            PeerWatch::start().map_err(|error| MeshError::System { what: "watch processes", error })?;
        let mesh = Arc::new(Self {
            watch: Mutex::new(Some(watch)),
            workers,
            bells,
            standing: Mutex::new([Standing::Awaited; MAX_NODES]),
            changed: Condvar::new(),
            links: Mutex::default(),
            problems: Mutex::default(),
            gathering: Mutex::default(),
            strangers: AtomicU64::new(0),
            handshakes: Default::default(),
            stopping: AtomicBool::new(false),
            stopped: eventfd(0, EventfdFlags::CLOEXEC).map_err(system("create an eventfd"))?,
            threads: Mutex::default(),
            config,
        });
        let placed = Arc::new(placed);
        for (index, worker) in mesh.workers.iter().enumerate() {
            let (worker, placed) = (worker.clone(), placed.clone());
            mesh.spawn(format!("worker-{index}"), move || {
                placed(WorkerId(index as u8));
                if let Err(error) = worker.run() {
                    tracing::error!(%error, "worker {index} cannot go on");
                    std::process::abort();
                }
            })?;
        }
        let accepting = mesh.clone();
        mesh.spawn("accept".into(), move || accepting.accept(&listener, &local))?;
        for peer in mesh.config.peers.clone().into_iter().filter(|peer| peer.id < mesh.config.me) {
            let connecting = mesh.clone();
            mesh.spawn(format!("connect-{}", peer.id.0), move || connecting.connect(&peer))?;
        }
        Ok(mesh)
    }

    /// The workers, by number.
    #[must_use]
    pub fn workers(&self) -> &[Worker<S>] {
        &self.workers
    }

    /// Every link that is or was up.
    #[must_use]
    pub fn links(&self) -> Vec<LinkInfo> {
        lock(&self.links).clone()
    }

    /// Every rail of every link, as it is now.
    #[must_use]
    pub fn rails(&self) -> Vec<RailReport> {
        let connected = self.connected();
        let report = |link: &LinkInfo| {
            let up = connected.contains(link.peer);
            RailReport {
                peer: link.peer,
                worker: link.worker,
                slot: 0,
                kind: link.rail,
                generation: 1,
                path: String::new(),
                state: if up { RailState::Active } else { RailState::Down },
                reason: if up { Reason::Best } else { Reason::Reset },
                encrypted: false,
                mtu: 0,
                rtt: Nanos(0),
                bytes_out: 0,
                bytes_in: 0,
                frames_resent: 0,
                retransmits: 0,
                failures: u64::from(!up),
            }
        };
        lock(&self.links).iter().map(report).collect()
    }

    /// Peers that every worker has a link to.
    #[must_use]
    pub fn connected(&self) -> NodeSet {
        let standing = lock(&self.standing);
        self.config
            .peers
            .iter()
            .map(|p| p.id)
            .filter(|p| standing[p.index()] == Standing::Connected)
            .collect()
    }

    /// Waits until all peers are connected; the peers that are not after `limit`, with what is known of why.
    ///
    /// # Errors
    /// The peers that are missing.
    pub fn wait_connected(&self, limit: Duration) -> Result<(), BTreeMap<NodeId, String>> {
        let end = Instant::now() + limit;
        let mut standing = lock(&self.standing);
        loop {
            let missing: Vec<NodeId> = self
                .config
                .peers
                .iter()
                .map(|peer| peer.id)
                .filter(|peer| matches!(standing[peer.index()], Standing::Awaited | Standing::Attaching))
                .collect();
            if missing.is_empty() {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stopping.load(Relaxed) {
                let problems = lock(&self.problems);
                let why = |peer| problems.get(&peer).cloned().unwrap_or_else(|| "has not called yet".into());
                return Err(missing.into_iter().map(|peer| (peer, why(peer))).collect());
            }
            standing = self.changed.wait_timeout(standing, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Connections that were closed because whoever made them is not of this cluster.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.strangers.load(Relaxed)
    }

    /// Notes that `peer` is gone: it is not let in again in this view.
    pub fn forget(&self, peer: NodeId) {
        lock(&self.standing)[peer.index()] = Standing::Gone;
        self.changed.notify_all();
    }

    /// Ends all threads and with them all links; peers see that as this node's end.
    pub fn stop(&self) {
        self.stopping.store(true, Relaxed);
        let _ = rustix::io::write(&self.stopped, &1u64.to_ne_bytes());
        self.changed.notify_all();
        self.workers.iter().for_each(Worker::stop);
        for handle in std::mem::take(&mut *lock(&self.threads)) {
            if handle.thread().id() != thread::current().id() {
                let _ = handle.join();
            }
        }
        // Closes the sockets over which local peers were met: after the last byte was written to their memory.
        drop(lock(&self.watch).take());
    }

    fn spawn(&self, name: String, run: impl FnOnce() + Send + 'static) -> Result<(), MeshError> {
        let handle = thread::Builder::new()
            .name(name)
            .spawn(run)
            .map_err(|error| MeshError::System { what: "start a thread", error })?;
        lock(&self.threads).push(handle);
        Ok(())
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener, local: &OwnedFd) {
        while !self.stopping.load(Relaxed) {
            let ready = {
                let mut fds = [
                    PollFd::new(listener, PollFlags::IN),
                    PollFd::new(local, PollFlags::IN),
                    PollFd::new(&self.stopped, PollFlags::IN),
                ];
                match poll(&mut fds, None) {
                    Ok(_) => [!fds[0].revents().is_empty(), !fds[1].revents().is_empty()],
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(error) => return tracing::error!(%error, "cannot accept connections"),
                }
            };
            if ready[0] {
                match listener.accept() {
                    Ok((stream, from)) => self.receive(0, move |mesh| mesh.accept_tcp(stream, from)),
                    Err(error) => not_accepted(&error),
                }
            }
            if ready[1] {
                match rustix::net::accept_with(local.as_fd(), rustix::net::SocketFlags::CLOEXEC) {
                    Ok(stream) => self.receive(1, move |mesh| mesh.accept_shm(&stream)),
                    Err(error) => not_accepted(&error.into()),
                }
            }
        }
    }

    /// Runs one handshake at `door` on a thread of its own, if not too many are under way there.
    fn receive(
        self: &Arc<Self>,
        door: usize,
        handshake: impl FnOnce(&Self) -> Result<(), String> + Send + 'static,
    ) {
        let turn_away = |mesh: &Self| {
            mesh.handshakes[door].fetch_sub(1, Relaxed);
            mesh.strangers.fetch_add(1, Relaxed);
        };
        if self.handshakes[door].fetch_add(1, Relaxed) >= HANDSHAKES {
            return turn_away(self);
        }
        let mesh = self.clone();
        let spawned = thread::Builder::new().name("handshake".into()).spawn(move || {
            if let Err(why) = handshake(&mesh) {
                mesh.strangers.fetch_add(1, Relaxed);
                tracing::debug!("turned a connection away: {why}");
            }
            mesh.handshakes[door].fetch_sub(1, Relaxed);
        });
        if spawned.is_err() {
            turn_away(self);
        }
    }

    fn connect(&self, peer: &Peer) {
        while !self.stopping.load(Relaxed) && self.standing(peer.id) == Standing::Awaited {
            let result = match peer.rail {
                RailKind::Shm => self.connect_shm(peer),
                RailKind::Tcp => self.connect_tcp(peer),
                RailKind::Ofi => Err("no pair of nodes uses ofi in this version".into()),
            };
            match result {
                Ok(()) => return,
                Err(why) => {
                    tracing::debug!("{} not reached: {why}", peer.id);
                    lock(&self.problems).insert(peer.id, why);
                }
            }
            thread::sleep(RETRY);
        }
    }

    fn standing(&self, peer: NodeId) -> Standing {
        lock(&self.standing)[peer.index()]
    }

    fn hello(&self, to: NodeId, rail: RailKind, lane: Lane, worker: u8) -> Hello {
        Hello {
            rail,
            lane,
            worker,
            workers: self.workers.len() as u8,
            from: self.config.me,
            to,
            cluster: self.config.cluster,
            incarnation: self.config.incarnation,
            fingerprint: self.config.fingerprint,
            epoch: self.config.epoch,
            refusal: None,
        }
    }

    /// What a caller's hello is worth: the answer to send, and the peer if it is let in. An error is a stranger.
    fn judge(&self, bytes: &[u8; HELLO], rail: RailKind) -> Result<(Hello, Option<Peer>, Hello), String> {
        let hello = Hello::decode(bytes).map_err(|bad| bad.to_string())?;
        if hello.cluster != self.config.cluster {
            return Err("another cluster".into());
        }
        let mut answer = self.hello(hello.from, rail, hello.lane, hello.worker);
        let peer = self.config.peers.iter().find(|peer| peer.id == hello.from && peer.id > self.config.me);
        answer.refusal = if hello.to != self.config.me {
            Some(Refusal::NotMe)
        } else if hello.fingerprint != self.config.fingerprint
            || hello.epoch != self.config.epoch
            || usize::from(hello.workers) != self.workers.len()
            || usize::from(hello.worker) >= self.workers.len()
            || peer.is_none_or(|peer| peer.rail != rail || hello.rail != rail)
        {
            Some(Refusal::Settings)
        } else {
            match self.standing(hello.from) {
                Standing::Awaited => None,
                Standing::Attaching | Standing::Connected => Some(Refusal::Connected),
                Standing::Gone => Some(Refusal::Stopped),
            }
        };
        if answer.refusal.is_some() {
            answer.fingerprint = 0;
        }
        let peer = if answer.refusal.is_none() { peer.cloned() } else { None };
        Ok((hello, peer, answer))
    }

    /// What the answer to this node's hello is worth.
    fn accepted(&self, bytes: &[u8; HELLO], peer: &Peer) -> Result<Hello, String> {
        let answer = Hello::decode(bytes).map_err(|bad| bad.to_string())?;
        if answer.cluster != self.config.cluster || answer.from != peer.id {
            return Err(Refusal::NotMe.to_string());
        }
        match answer.refusal {
            Some(refusal) => Err(refusal.to_string()),
            None => Ok(answer),
        }
    }

    /// Hands each worker its rail to `peer`.
    fn attach(&self, peer: NodeId, rails: Vec<Box<dyn Rail>>) {
        {
            let mut standing = lock(&self.standing);
            if standing[peer.index()] != Standing::Awaited || self.stopping.load(Relaxed) {
                return;
            }
            standing[peer.index()] = Standing::Attaching;
        }
        lock(&self.problems).remove(&peer);
        for (worker, rail) in self.workers.iter().zip(rails) {
            let info = worker.add_link(peer, rail);
            lock(&self.links).push(info);
        }
        let mut standing = lock(&self.standing);
        if standing[peer.index()] == Standing::Attaching {
            standing[peer.index()] = Standing::Connected;
        }
        self.changed.notify_all();
    }
}

/// The caller is gone again, or there are no descriptors: then looking again at once would only burn a core.
fn not_accepted(error: &io::Error) {
    if error.kind() != io::ErrorKind::WouldBlock {
        tracing::warn!(%error, "a connection could not be accepted");
        thread::sleep(RETRY);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
