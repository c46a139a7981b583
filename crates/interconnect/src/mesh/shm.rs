//! Shared memory between two nodes of one host: descriptors passed over a local socket.
//!
//! The socket has an abstract name, so nothing is left in the file system whatever happens. Each side sends, in one
//! packet, its hello, what its windows are, and the descriptors of: its windows; then for each worker its receive
//! rings (one descriptor) and its bell (page, event). Both must run as the same user, which is known before
//! anything is sent. Who connected says at last, in a packet of one byte, that it has mapped everything: only
//! then does the link exist.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, atomic::AtomicBool},
};

use super::{
    Config, HANDSHAKE, Mesh, MeshError, Peer,
    hello::HELLO,
    lock,
    spans::{self, SPANS, WINDOWS},
    system,
};
use crate::Service;
use plexus_base::NodeId;
use plexus_fabric::{
    Lane, PeerBell, PeerWindow, Rail, RailKind, ShmRail, WindowSpan,
    shm::{PeerProcess, RxRings, ShmParts, TxRings},
};
use rustix::{
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
        sockopt,
    },
    process::getuid,
};

/// Most descriptors in one packet; the kernel's own limit is 253.
const DESCRIPTORS: usize = WINDOWS + PER_WORKER * plexus_base::MAX_WORKERS;

/// Descriptors of one worker: its rings, the bell's page and event.
const PER_WORKER: usize = 3;

/// The last packet of a handshake.
const GO: u8 = 0x47;

/// Length of the packet: hello and windows.
const PACKET: usize = HELLO + SPANS;

fn name(config: &Config, node: NodeId) -> rustix::io::Result<SocketAddrUnix> {
    let cluster: String = config.cluster.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddrUnix::new_abstract_name(format!("plexus/{cluster}/{}", node.0).as_bytes())
}

pub(super) fn listen(config: &Config) -> Result<OwnedFd, MeshError> {
    let address = name(config, config.me).map_err(system("name a local socket"))?;
    let socket = socket()?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(system("set up a local socket"))?;
    rustix::net::bind(&socket, &address).map_err(|errno| MeshError::Listen {
        address: format!("the local socket of {}", config.me),
        error: errno.into(),
    })?;
    rustix::net::listen(&socket, 64).map_err(system("listen on a local socket"))?;
    Ok(socket)
}

fn socket() -> Result<OwnedFd, MeshError> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(system("open a local socket"))
}

impl<S: Service> Mesh<S> {
    pub(super) fn connect_shm(&self, peer: &Peer) -> Result<(), String> {
        let address = name(&self.config, peer.id).map_err(|error| error.to_string())?;
        let socket = socket().map_err(|error| error.to_string())?;
        // Also limits how long a full queue of callers holds this one up.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(HANDSHAKE))
            .map_err(|error| error.to_string())?;
        rustix::net::connect(&socket, &address)
            .map_err(|error| format!("no answer on this host: {error}"))?;
        let process = same_user(&socket)?;
        let rings = self.rings()?;
        let hello = self.hello(peer.id, RailKind::Shm, Lane::Prompt, 0).encode();
        self.offer(socket.as_fd(), &hello, &rings)?;
        let offer = Offer::receive(socket.as_fd())?;
        self.accepted(&offer.hello, peer)?;
        let (rails, gone) = self.map(rings, offer)?;
        rustix::net::send(&socket, &[GO], SendFlags::NOSIGNAL)
            .map_err(|error| format!("handshake: {error}"))?;
        self.watch(process, &socket, &gone)?;
        self.attach(peer.id, rails);
        Ok(())
    }

    pub(super) fn accept_shm(&self, socket: &OwnedFd) -> Result<(), String> {
        let process = same_user(socket)?;
        let offer = Offer::receive(socket.as_fd())?;
        let (hello, peer, answer) = self.judge(&offer.hello, RailKind::Shm)?;
        let Some(peer) = peer else {
            tracing::warn!("{} was refused: {:?}", hello.from, answer.refusal);
            return self.offer(socket.as_fd(), &answer.encode(), &[]);
        };
        let rings = self.rings()?;
        self.offer(socket.as_fd(), &answer.encode(), &rings)?;
        let (rails, gone) = self.map(rings, offer)?;
        let mut go = [0; 2];
        let (said, _) = rustix::net::recv(socket, &mut go, RecvFlags::empty())
            .map_err(|error| format!("it does not say that it is ready: {error}"))?;
        if go[..said] != [GO] {
            return Err("it does not say that it is ready".into());
        }
        self.watch(process, socket, &gone)?;
        self.attach(peer.id, rails);
        Ok(())
    }

    fn rings(&self) -> Result<Vec<RxRings>, String> {
        (0..self.workers.len()).map(|_| RxRings::create().map_err(|error| error.to_string())).collect()
    }

    /// Sends a hello with everything that the peer maps; a refusal has no rings and no windows.
    fn offer(&self, socket: BorrowedFd<'_>, hello: &[u8; HELLO], rings: &[RxRings]) -> Result<(), String> {
        let windows = if rings.is_empty() { &[][..] } else { &self.config.windows[..] };
        let mut packet = hello.to_vec();
        packet.extend_from_slice(&spans::encode(windows.iter().map(|window| window.span())));
        let mut descriptors: Vec<BorrowedFd<'_>> = windows.iter().map(|window| window.fd()).collect();
        for (rings, bell) in rings.iter().zip(&self.bells) {
            descriptors.extend([rings.fd(), bell.page_fd(), bell.fd()]);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        rustix::net::sendmsg(socket, &[IoSlice::new(&packet)], &mut ancillary, SendFlags::NOSIGNAL)
            .map_err(|error| format!("handshake: {error}"))?;
        Ok(())
    }

    /// The rails over what the peer sent, and the flag that says to all of them that it is gone.
    fn map(
        &self,
        rings: Vec<RxRings>,
        offer: Offer,
    ) -> Result<(Vec<Box<dyn Rail>>, Arc<AtomicBool>), String> {
        if offer.descriptors.len() != offer.spans.len() + PER_WORKER * self.workers.len() {
            return Err("the peer sent another number of descriptors than it has windows and workers".into());
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

    /// The process's end and the end of its mesh, which closes the socket, are both the end of the link. From now on
    /// nothing may be said over the socket.
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

/// The process at the other end, if it belongs to this node's user: anybody may take a name like a peer's.
fn same_user(socket: &OwnedFd) -> Result<PeerProcess, String> {
    let process = PeerProcess::of(socket.as_fd()).map_err(|error| error.to_string())?;
    if process.uid != getuid().as_raw() {
        return Err(format!("runs as user {}, this node as {}", process.uid, getuid().as_raw()));
    }
    Ok(process)
}

/// What the other side sent.
struct Offer {
    hello: [u8; HELLO],
    spans: Vec<WindowSpan>,
    descriptors: Vec<OwnedFd>,
}

impl Offer {
    fn receive(socket: BorrowedFd<'_>) -> Result<Self, String> {
        sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(HANDSHAKE))
            .map_err(|error| error.to_string())?;
        let mut packet = [0; PACKET];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut packet)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
        .map_err(|error| format!("no hello: {error}"))?;
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err("the hello is longer than any".into());
        }
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let packet = &packet[..received.bytes];
        let (hello, rest) = packet.split_first_chunk::<HELLO>().ok_or("the hello is too short")?;
        let spans = spans::decode(rest.try_into().map_err(|_| "the hello is not as long as any")?)?;
        if descriptors.len() < spans.len() {
            return Err("windows without descriptors".into());
        }
        Ok(Self { hello: *hello, spans, descriptors })
    }
}
