//! Shared memory between two nodes of one host: descriptors passed over a local socket.
//!
//! The socket is a file in a directory of the cluster: no other user can take its name while the
//! node is down. Both processes must run as the same user, which is checked before anything is
//! sent. Then both prove that they have the cluster key, as over TCP (`noise.rs`), with a packet
//! for each message.
//!
//! The descriptors come only with messages 3 and 4, when each side knows that the other has the
//! key: first those of its windows, then for each worker its receive rings (one descriptor) and its
//! bell (page, event). The caller reports last that it has mapped everything. Only then do the
//! links exist, one for each worker.
//!
//! While incarnations of the peer are admitted one after the other, several threads may call it at
//! the same time. One of them takes the generation of the rails and reports; the others report
//! nothing. Otherwise the two nodes could keep the rails of different calls, and each would close
//! those of the other.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Instant,
};

use plexus_base::{Incarnation, NodeId, hex, threads};
use plexus_fabric::{
    Bell, Event, Lane, PeerBell, PeerWindow, Rail, RailKind, ShmRail, WindowSpan,
    shm::{
        MAX_DESCRIPTORS, PeerProcess, PeerWatch, RxRings, ShmParts, ShortPath, TxRings, bind_for_owner,
        peer_user, receive_packet, send_packet,
    },
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt},
    process::getuid,
};

use super::{
    Config, HANDSHAKE, MeshError,
    common::{ConnectedRail, MeshState, RailPlace},
    keys::Key,
    noise::{self, GREETING, NoiseSession},
    not_accepted,
    spans::WINDOWS,
    system,
    tcp::{GO, SEALED_GO, SEALED_SPANS, our_spans, their_spans},
};
use crate::sync::lock;

/// The descriptors of one worker: its rings, the bell's page and event.
const PER_WORKER: usize = 3;

// All descriptors of a node go in one packet.
const _: () = assert!(WINDOWS + PER_WORKER * plexus_base::MAX_WORKERS <= MAX_DESCRIPTORS);

/// The maximum number of handshakes at once; more are refused.
const HANDSHAKES: usize = 64;

/// Returns the path of a node's socket, if it has one.
fn path(config: &Config, node: NodeId) -> Option<PathBuf> {
    config.local.as_ref().map(|directory| directory.join(format!("{}.peers", node.0)))
}

/// Returns the abstract name of a node without a path.
fn name(config: &Config, node: NodeId) -> rustix::io::Result<SocketAddrUnix> {
    let cluster = hex::digits(&config.cluster);
    SocketAddrUnix::new_abstract_name(format!("plexus/{cluster}/{}", node.0).as_bytes())
}

/// Listens for nodes of this host. The caller has the node's lock, so a socket that exists already
/// belongs to a node that has ended.
pub(super) fn listen(config: &Config) -> Result<OwnedFd, MeshError> {
    let socket = socket()?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(system("set up a local socket"))?;
    if let Some(path) = path(config, config.me) {
        let bind = |path: &std::path::Path| Ok(rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?);
        bind_for_owner(&path, bind).map_err(|error| MeshError::Local { path, error })?;
    } else {
        let address = name(config, config.me).map_err(system("name a local socket"))?;
        rustix::net::bind(&socket, &address).map_err(|errno| MeshError::Listen {
            address: format!("the local socket of {}", config.me),
            error: errno.into(),
        })?;
    }
    rustix::net::listen(&socket, 64).map_err(system("listen on a local socket"))?;
    Ok(socket)
}

fn socket() -> Result<OwnedFd, MeshError> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(system("open a local socket"))
}

/// The reason why a call did not lead to a link.
enum Failure {
    /// The other end closed the socket without an answer.
    ClosedUnanswered,
    Other(String),
}

impl<E: ToString> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.to_string())
    }
}

/// The thread that connects the peers of this host.
pub(super) struct LocalPeers {
    common: Arc<MeshState>,
    bells: Vec<Arc<Bell>>,
    watch: Mutex<Option<PeerWatch>>,
    /// A clone for each running handshake.
    handshakes: Arc<()>,
}

impl LocalPeers {
    pub(super) fn new(common: Arc<MeshState>, bells: Vec<Arc<Bell>>) -> Result<Self, MeshError> {
        let watch =
            PeerWatch::start().map_err(|error| MeshError::System { what: "watch processes", error })?;
        Ok(Self { common, bells, watch: Mutex::new(Some(watch)), handshakes: Arc::new(()) })
    }

    /// Closes the sockets of the handshakes, which tells the peers that this node has ended. Call
    /// it when no thread writes to their memory any more.
    pub(super) fn end(&self) {
        drop(lock(&self.watch).take());
        if let Some(path) = path(&self.common.config, self.common.config.me) {
            // The next start of the node replaces a file that is left.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Connects to `peer` in `slot`, in this incarnation if one is given, until that has succeeded
    /// or the peer is gone.
    pub(super) fn connect(&self, peer: NodeId, incarnation: Option<Incarnation>, slot: u8) {
        loop {
            if self.common.is_stopping() {
                return;
            }
            let Err(why) = self.call(peer, slot) else { return };
            self.common.failed(RailPlace { peer, slot, worker: 0 }, why);
            if !self.pause(peer, incarnation, slot) {
                return;
            }
        }
    }

    /// Waits until the next attempt is due; returns false if there is to be none.
    fn pause(&self, peer: NodeId, incarnation: Option<Incarnation>, slot: u8) -> bool {
        let mut pairs = self.common.pairs();
        loop {
            let Some(pair) = pairs.get(&peer) else { return false };
            if incarnation.is_some_and(|incarnation| pair.is_other_incarnation(incarnation)) {
                return false;
            }
            let due = pair.missing(slot).map(|(_, due)| due).min();
            let Some(due) = due else { return false };
            let left = due.map_or_else(Default::default, |due| due.saturating_duration_since(Instant::now()));
            if self.common.is_stopping() || left.is_zero() {
                return true;
            }
            pairs = self
                .common
                .changed
                .wait_timeout(pairs, left)
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .0;
        }
    }

    /// Makes one attempt with each of the keys.
    fn call(&self, peer: NodeId, slot: u8) -> Result<(), String> {
        for key in self.common.keys()? {
            match self.call_with(peer, slot, &key) {
                Ok(()) => return Ok(()),
                Err(Failure::ClosedUnanswered) => {}
                Err(Failure::Other(why)) => return Err(why),
            }
        }
        Err("it closes the connection without an answer on this host: it does not accept this node's key; compare the files in keys/".into())
    }

    fn call_with(&self, peer: NodeId, slot: u8, key: &Key) -> Result<(), Failure> {
        let socket = socket()?;
        // The limit also ends the wait for a full queue of callers.
        set_limits(&socket)?;
        let connect = |address| rustix::net::connect(&socket, &address);
        let connected = match path(&self.common.config, peer) {
            Some(path) => connect(SocketAddrUnix::new(ShortPath::of(&path)?.path())?),
            None => connect(name(&self.common.config, peer)?),
        };
        connected.map_err(|error| format!("no answer on this host: {error}"))?;
        check_user(&socket)?;
        let place = RailPlace { peer, slot, worker: 0 };
        let generation = self.common.next_generation(place);
        let hello = self.common.hello(place, RailKind::Shm, Lane::Prompt, generation, 0).encode();
        let (calling, greeting) = noise::call(key, self.common.config.cluster, &hello);
        send(&socket, &greeting)?;
        let answer = match receive::<GREETING>(&socket) {
            Ok(answer) => answer,
            Err(Errno::CONNRESET | Errno::NODATA) => return Err(Failure::ClosedUnanswered),
            Err(error) => return Err(format!("no answer on this host: {error}").into()),
        };
        let (answer, mut session) = calling.answered(&answer)?;
        let answer = self.common.accepted(&answer, peer)?;
        let process = PeerProcess::of(socket.as_fd())?;
        let rings = self.rings()?;
        self.offer(&socket, &mut session, &rings)?;
        let offer = PeerOffer::receive(&socket, &mut session)?;
        let (rails, gone) = self.map(rings, offer)?;
        if !self.common.take_generation(place, generation, answer.incarnation) {
            return Err("another connection to it is being made".into());
        }
        send(&socket, &session.seal(&GO))?;
        self.watch(process, &socket, &gone)?;
        self.attach(peer, slot, generation, answer.incarnation, rails);
        Ok(())
    }

    /// Accepts calls until `stopped` is signalled.
    pub(super) fn accept(self: &Arc<Self>, listener: &OwnedFd, stopped: &Event) {
        while !self.common.is_stopping() {
            let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return tracing::error!(%error, "cannot accept connections on this host"),
            }
            if fds[0].revents().is_empty() {
                continue;
            }
            match rustix::net::accept_with(listener.as_fd(), SocketFlags::CLOEXEC) {
                Ok(socket) => self.start_handshake(socket),
                Err(error) => not_accepted(&error.into()),
            }
        }
    }

    /// Runs one handshake on a thread of its own, if not too many are running.
    fn start_handshake(self: &Arc<Self>, socket: OwnedFd) {
        // One reference is the one that all are cloned from. Only this thread makes more.
        if Arc::strong_count(&self.handshakes) > HANDSHAKES {
            return self.common.count_unauthenticated();
        }
        let (local, under_way) = (self.clone(), self.handshakes.clone());
        let spawned = threads::start("handshake", move || {
            let _under_way = under_way;
            if let Err(why) = local.answer(&socket) {
                local.common.count_unauthenticated();
                tracing::debug!("closed a connection of this host: {why}");
            }
        });
        // Others wait for it then; each of its steps has a time limit.
        spawned.unwrap_or_else(|handshake| handshake());
    }

    fn answer(&self, socket: &OwnedFd) -> Result<(), String> {
        check_user(socket)?;
        set_limits(socket).map_err(|error| error.to_string())?;
        let failed = |error: Errno| format!("handshake: {error}");
        let greeting = receive::<GREETING>(socket).map_err(failed)?;
        let keys = self.common.keys()?;
        let called = noise::called(&keys, self.common.config.cluster, &greeting);
        let (called, hello) = called.map_err(|why| why.to_string())?;
        let (hello, answer) = self.common.judge(&hello, RailKind::Shm)?;
        let (reply, mut session) = called.answer(&answer.encode());
        send(socket, &reply).map_err(failed)?;
        if answer.refusal.is_some() {
            return Ok(());
        }
        let process = PeerProcess::of(socket.as_fd()).map_err(|error| error.to_string())?;
        let offer = PeerOffer::receive(socket, &mut session)?;
        let rings = self.rings()?;
        self.offer(socket, &mut session, &rings)?;
        let (rails, gone) = self.map(rings, offer)?;
        let mut go = receive::<SEALED_GO>(socket)
            .map_err(|error| format!("the peer does not report that it is ready: {error}"))?;
        if session.open(&mut go) != Ok(&GO[..]) {
            return Err("the peer does not report that it is ready".into());
        }
        self.watch(process, socket, &gone)?;
        self.attach(hello.from, hello.slot, hello.generation, hello.incarnation, rails);
        Ok(())
    }

    fn attach(
        &self,
        peer: NodeId,
        slot: u8,
        generation: u32,
        incarnation: Incarnation,
        rails: Vec<Box<dyn Rail>>,
    ) {
        let Some(path) = self.common.path(peer, slot) else { return };
        for (worker, rail) in rails.into_iter().enumerate() {
            let place = RailPlace { peer, slot, worker: worker as u8 };
            self.common.attach(ConnectedRail { place, generation, rail, path: path.name() }, incarnation);
        }
    }

    fn rings(&self) -> Result<Vec<RxRings>, String> {
        self.bells.iter().map(|_| RxRings::create().map_err(|error| error.to_string())).collect()
    }

    /// Sends all descriptors that the peer maps.
    fn offer(&self, socket: &OwnedFd, session: &mut NoiseSession, rings: &[RxRings]) -> Result<(), String> {
        let packet = session.seal(&our_spans(&self.common));
        let windows = &self.common.config.windows;
        let mut descriptors: Vec<BorrowedFd<'_>> = windows.iter().map(|window| window.fd()).collect();
        for (rings, bell) in rings.iter().zip(&self.bells) {
            descriptors.extend([rings.fd(), bell.page_fd(), bell.fd()]);
        }
        send_packet(socket.as_fd(), &packet, &descriptors).map_err(|error| format!("handshake: {error}"))
    }

    /// Maps the descriptors of the peer; returns the rails, and the flag that marks all of them as
    /// gone.
    fn map(
        &self,
        rings: Vec<RxRings>,
        offer: PeerOffer,
    ) -> Result<(Vec<Box<dyn Rail>>, Arc<AtomicBool>), String> {
        if offer.descriptors.len() != offer.spans.len() + PER_WORKER * self.bells.len() {
            return Err("the number of descriptors does not match the peer's windows and workers".into());
        }
        let mut descriptors = offer.descriptors.into_iter();
        let windows = offer
            .spans
            .into_iter()
            .zip(&mut descriptors)
            .map(|(span, fd)| PeerWindow::map(fd.as_fd(), span).map_err(|error| error.to_string()))
            .collect::<Result<Arc<[PeerWindow]>, String>>()?;
        let gone = Arc::new(AtomicBool::new(false));
        let mut rails: Vec<Box<dyn Rail>> = Vec::new();
        for rx in rings {
            let mut next = || descriptors.next().ok_or("a descriptor is missing");
            let tx = TxRings::map(next()?.as_fd()).map_err(|error| error.to_string())?;
            let (page, event) = (next()?, next()?);
            let bell = PeerBell::map(page.as_fd(), event).map_err(|error| error.to_string())?;
            let parts = ShmParts { tx, rx, bell, windows: windows.clone(), gone: gone.clone() };
            rails.push(Box::new(ShmRail::new(parts)));
        }
        Ok((rails, gone))
    }

    /// The end of the process and the end of its mesh, which closes the socket, both end the link.
    /// From now on nothing may be sent over the socket.
    fn watch(&self, process: PeerProcess, socket: &OwnedFd, gone: &Arc<AtomicBool>) -> Result<(), String> {
        let socket = socket.try_clone().map_err(|error| error.to_string())?;
        for sign in [process.pidfd, socket] {
            let watch = lock(&self.watch);
            let watch = watch.as_ref().ok_or("this node is ending")?;
            watch.watch(sign, gone.clone(), self.bells.clone()).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Checks that the process at the other end belongs to this node's user: any process may take an
/// abstract name like a peer's.
fn check_user(socket: &OwnedFd) -> Result<(), String> {
    let (user, own) = (peer_user(socket.as_fd()).map_err(|error| error.to_string())?, getuid().as_raw());
    if user != own {
        return Err(format!("the peer runs as user {user}, this node as {own}"));
    }
    Ok(())
}

/// Sets the timeout of each packet of a handshake.
fn set_limits(socket: &OwnedFd) -> io::Result<()> {
    for side in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
        sockopt::set_socket_timeout(socket, side, Some(HANDSHAKE))?;
    }
    Ok(())
}

fn send(socket: &OwnedFd, packet: &[u8]) -> Result<(), Errno> {
    rustix::net::send(socket, packet, SendFlags::NOSIGNAL).map(drop)
}

/// Receives a packet of exactly that length; descriptors that came with it are closed.
fn receive<const LENGTH: usize>(socket: &OwnedFd) -> Result<[u8; LENGTH], Errno> {
    let mut packet = [0; LENGTH];
    match rustix::net::recv(socket, &mut packet, RecvFlags::TRUNC)? {
        (_, length) if length == LENGTH => Ok(packet),
        (_, 0) => Err(Errno::NODATA),
        _ => Err(Errno::MSGSIZE),
    }
}

/// The windows and descriptors of the other side.
struct PeerOffer {
    spans: Vec<WindowSpan>,
    descriptors: Vec<OwnedFd>,
}

impl PeerOffer {
    fn receive(socket: &OwnedFd, session: &mut NoiseSession) -> Result<Self, String> {
        let mut packet = [0; SEALED_SPANS];
        let (len, descriptors) = receive_packet(socket.as_fd(), &mut packet)
            .map_err(|error| format!("the peer does not announce its windows: {error}"))?;
        if len != packet.len() {
            return Err("the message with its windows has an invalid length".into());
        }
        let spans = their_spans(session.open(&mut packet).map_err(|error| error.to_string())?)?;
        if descriptors.len() < spans.len() {
            return Err("the descriptors of its windows are missing".into());
        }
        Ok(Self { spans, descriptors })
    }
}
