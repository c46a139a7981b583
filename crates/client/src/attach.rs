//! Attaching: finding a node's socket, the handshake, and the rings that come out of it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use plexus_fabric::{
    Event, Notice, PeerBell, SeenWindow, SetupError, ShmRail, WindowId, WindowSpan,
    shm::{RxRings, ShmParts, TxRings},
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::{
    Error,
    wire::{
        Pipe, ShortPath,
        hello::{self, GO, Welcome},
        receive_packet, send_packet,
    },
};

/// How long a node may take for each step.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What an attachment is made of.
pub(crate) struct Parts {
    pub(crate) welcome: Welcome,
    pub(crate) pipes: Vec<Pipe>,
    pub(crate) notice: Notice,
    /// Readable when the node wakes us.
    pub(crate) ear: OwnedFd,
    pub(crate) arena: SeenWindow,
    pub(crate) socket: OwnedFd,
    /// To be set when the node has ended.
    pub(crate) gone: Arc<AtomicBool>,
}

/// Attaches over the socket `path`, or to the first node that lives of those whose sockets are in the cluster's directory `path`.
pub(crate) fn attach(path: &Path) -> Result<Parts, Error> {
    let failed = |why: String| Error::Attach { path: path.into(), why };
    if !path.is_dir() {
        return handshake(path).map_err(|error| failed(error.to_string()));
    }
    let mut last = "no node of this cluster runs on this machine; start it with `plexus up`".into();
    for socket in sockets(path).map_err(|error| failed(error.to_string()))? {
        match handshake(&socket) {
            Ok(parts) => return Ok(parts),
            // The socket of a node that was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => last = format!("{}: {error}", socket.display()),
        }
    }
    Err(failed(last))
}

/// The sockets of the cluster's nodes, by name.
fn sockets(cluster: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    match std::fs::read_dir(cluster.join("run")) {
        Ok(entries) => {
            for entry in entries {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "attach") {
                    found.push(path);
                }
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    found.sort();
    Ok(found)
}

fn handshake(path: &Path) -> io::Result<Parts> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for side in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&socket, side, Some(TIMEOUT))?;
    }
    let short = ShortPath::of(path)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(short.path())?)?;
    if sockopt::socket_peercred(&socket)?.uid != rustix::process::getuid() {
        return Err(wrong("the node runs as another user"));
    }
    // A node that is full answers before it is asked, and closes: then this fails, and the answer is there.
    let sent = send_packet(socket.as_fd(), &hello::hello(), &[]);
    let (packet, descriptors) = match receive_packet(socket.as_fd()) {
        // That it did not read the hello is said first.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => receive_packet(socket.as_fd())?,
        received => received?,
    };
    if packet.is_empty() {
        return Err(sent.err().unwrap_or_else(|| wrong("the node closed the connection")));
    }
    let welcome = Welcome::decode(&packet).map_err(|refusal| wrong(&format!("the node says: {refusal}")))?;
    let workers = usize::from(welcome.workers);
    if descriptors.len() != 2 + 3 * workers {
        return Err(wrong("the node does not pass what it must"));
    }
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| wrong("a descriptor is missing"));
    let span = WindowSpan { id: WindowId(0), len: welcome.arena, granule: 0, wordwise: true };
    let arena = SeenWindow::map(next()?.as_fd(), span).map_err(setup)?;
    let ear = next()?;
    let notice = Notice::create().map_err(setup)?;
    let gone = Arc::new(AtomicBool::new(false));
    let (mut pipes, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..workers {
        let tx = TxRings::map(next()?.as_fd()).map_err(setup)?;
        let (page, event) = (next()?, next()?);
        let peer = PeerBell::read(page.as_fd(), Arc::new(Event::from_peer(event)?)).map_err(setup)?;
        let rx = RxRings::create().map_err(setup)?;
        ours.push(rx.fd().try_clone_to_owned()?);
        let parts = ShmParts { tx, rx, bell: peer, windows: Arc::new([]), gone: Arc::clone(&gone) };
        pipes.push(Pipe::new(Box::new(ShmRail::new(parts))));
    }
    let mut pass: Vec<_> = ours.iter().map(AsFd::as_fd).collect();
    pass.push(notice.fd());
    send_packet(socket.as_fd(), &[GO], &pass)?;
    let (packet, _) = receive_packet(socket.as_fd())?;
    if packet != [GO] {
        return Err(wrong("the node did not take it"));
    }
    Ok(Parts { welcome, pipes, notice, ear, arena, socket, gone })
}

fn setup(error: SetupError) -> io::Error {
    io::Error::other(error.to_string())
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
