//! Attaching to a node: finds its socket, does the handshake and maps the rings.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use plexus_fabric::{
    Event, Notice, PeerBell, SeenWindow, SeenWord, SetupError, ShmRail, WindowId, WindowSpan,
    shm::{RxRings, ShmParts, TxRings, peer_user},
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

/// The timeout of each step.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The resources of an attachment.
pub(crate) struct AttachmentParts {
    pub(crate) welcome: Welcome,
    pub(crate) pipes: Vec<Pipe>,
    pub(crate) notice: Notice,
    /// Readable when the node wakes this program.
    pub(crate) wake_up: OwnedFd,
    /// The end of the node's lease.
    pub(crate) lease: SeenWord,
    pub(crate) arena: SeenWindow,
    pub(crate) socket: OwnedFd,
    /// Set when the node has ended.
    pub(crate) gone: Arc<AtomicBool>,
}

/// Attaches over the socket `path`. If `path` is a cluster's directory, tries the sockets of its
/// nodes and takes the first that answers.
pub(crate) fn attach(path: &Path) -> Result<AttachmentParts, Error> {
    let failed = |why: String| Error::Attach { path: path.into(), why };
    if !path.is_dir() {
        return handshake(path).map_err(|error| failed(error.to_string()));
    }
    let mut last = "no node of this cluster runs on this machine; start it with `plexus up`".into();
    for socket in sockets(path).map_err(|error| failed(error.to_string()))? {
        match handshake(&socket) {
            Ok(parts) => return Ok(parts),
            // This is the socket of a node that was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => last = format!("{}: {error}", socket.display()),
        }
    }
    Err(failed(last))
}

/// Returns the sockets of the cluster's nodes, sorted by name.
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

fn handshake(path: &Path) -> io::Result<AttachmentParts> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for side in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&socket, side, Some(TIMEOUT))?;
    }
    let short = ShortPath::of(path)?;
    let address = SocketAddrUnix::new(short.path())?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    if peer_user(socket.as_fd())? != rustix::process::getuid().as_raw() {
        return Err(wrong("the node runs as another user"));
    }
    // A full node answers before it reads the hello, and closes. Then sending fails, but the answer
    // can be read.
    let sent = send_packet(socket.as_fd(), &hello::hello(), &[]);
    let (packet, descriptors) = match receive_packet(socket.as_fd()) {
        // The first read reports that the node did not read the hello; the second returns its
        // answer.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => receive_packet(socket.as_fd())?,
        received => received?,
    };
    if packet.is_empty() {
        return Err(sent.err().unwrap_or_else(|| wrong("the node closed the connection")));
    }
    let refused = |refusal| wrong(&format!("the node refused: {refusal}"));
    let welcome = Welcome::decode(&packet).map_err(refused)?;
    let workers = usize::from(welcome.workers);
    if descriptors.len() != 3 + 3 * workers {
        return Err(wrong("the node passed a wrong number of descriptors"));
    }
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| wrong("a descriptor is missing"));
    let span = WindowSpan { id: WindowId(0), len: welcome.arena, granule: 0, wordwise: true };
    let arena = SeenWindow::map(next()?.as_fd(), span).map_err(setup)?;
    let wake_up = next()?;
    let lease = SeenWord::map("lease", next()?.as_fd()).map_err(setup)?;
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
    match Welcome::decode(&packet) {
        _ if packet == [GO] => {}
        Err(refusal) if !packet.is_empty() => return Err(refused(refusal)),
        _ => return Err(wrong("the node did not complete the handshake")),
    }
    Ok(AttachmentParts { welcome, pipes, notice, wake_up, lease, arena, socket, gone })
}

fn setup(error: SetupError) -> io::Error {
    io::Error::other(error.to_string())
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
