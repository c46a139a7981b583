//! A program that speaks to its node without the library, to send messages that the library never
//! would.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use plexus_client::wire::{
    ShortPath,
    hello::{self, GO, Welcome},
    receive_packet, send_packet,
};
use plexus_fabric::{
    Event, Notice, PeerBell, ShmRail,
    shm::{RxRings, ShmParts, TxRings},
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    time::Timespec,
};

/// Connects to a node, and sends nothing.
pub(crate) fn connect(path: &Path) -> OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    let short = ShortPath::of(path).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(short.path()).unwrap()).unwrap();
    socket
}

/// Asserts that the socket brings nothing more but its end.
#[track_caller]
pub(crate) fn assert_cut_off(socket: BorrowedFd<'_>, what: &str) {
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], Some(&limit)), Ok(1), "{what}");
    match receive_packet(socket) {
        Ok((packet, _)) => assert!(packet.is_empty(), "{what}: {packet:?}"),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{what}"),
    }
}

/// A program that has attached correctly.
pub(crate) struct Program {
    pub(crate) socket: OwnedFd,
    pub(crate) rails: Vec<ShmRail>,
    /// The memory of the rings that the node reads.
    pub(crate) rings: Vec<File>,
    /// The events by which it wakes each worker, with the notice of each.
    pub(crate) rung: Vec<OwnedFd>,
    pub(crate) notices: Vec<OwnedFd>,
    /// The event by which it is woken.
    pub(crate) ear: OwnedFd,
    pub(crate) notice: Notice,
}

/// Attaches a program with a correct handshake.
pub(crate) fn attach(path: &Path) -> Program {
    let socket = connect(path);
    send_packet(socket.as_fd(), &hello::hello(), &[]).unwrap();
    let (packet, descriptors) = receive_packet(socket.as_fd()).unwrap();
    let workers = usize::from(Welcome::decode(&packet).unwrap().workers);
    let (mut rails, mut rings, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    let (mut rung, mut notices) = (Vec::new(), Vec::new());
    for given in descriptors[3..].chunks(3) {
        let copy = |fd: &OwnedFd| fd.try_clone().unwrap();
        rings.push(File::from(copy(&given[0])));
        notices.push(copy(&given[1]));
        rung.push(copy(&given[2]));
        let tx = TxRings::map(given[0].as_fd()).unwrap();
        let event = Arc::new(Event::from_peer(copy(&given[2])).unwrap());
        let bell = PeerBell::read(given[1].as_fd(), event).unwrap();
        let rx = RxRings::create().unwrap();
        ours.push(rx.fd().try_clone_to_owned().unwrap());
        rails.push(ShmRail::new(ShmParts { tx, rx, bell, windows: Arc::new([]), gone: Arc::default() }));
    }
    assert_eq!(rails.len(), workers);
    let notice = Notice::create().unwrap();
    let mut pass: Vec<_> = ours.iter().map(AsFd::as_fd).collect();
    pass.push(notice.fd());
    send_packet(socket.as_fd(), &[GO], &pass).unwrap();
    assert_eq!(receive_packet(socket.as_fd()).unwrap().0, [GO]);
    let ear = descriptors[1].try_clone().unwrap();
    Program { socket, rails, rings, rung, notices, ear, notice }
}
