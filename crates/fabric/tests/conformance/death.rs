//! The end of a peer's process over the rails of this crate.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use plexus_fabric::{
    Lost,
    shm::{PeerProcess, receive_packet, send_packet},
};

use crate::{
    pairs::{End, FDS, Kind, Own, seals},
    peer::killed_peer,
};

impl Kind {
    /// The frames in each lane that the peer has sent when it reports that it may be killed: the
    /// rail takes as many while the test does not read.
    pub(crate) const SENDS: u64 = 300;

    /// The name for the peer's process.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SealedTcp => "sealed",
            Self::Shm | Self::Tcp => self.rail().name(),
        }
    }

    pub(crate) fn from_name(name: &str) -> Self {
        [Self::Shm, Self::Tcp, Self::SealedTcp].into_iter().find(|kind| kind.name() == name).unwrap()
    }

    /// Builds the peer's end.
    pub(crate) fn connect(self, control: &mut UnixStream, own: Own) -> End {
        if self == Self::Shm {
            return over_shm(control, own);
        }
        let mut port = [0; 2];
        control.read_exact(&mut port).unwrap();
        let connect = || TcpStream::connect(("127.0.0.1", u16::from_le_bytes(port))).unwrap();
        own.tcp([connect(), connect()], (self == Self::SealedTcp).then(|| seals().1))
    }

    /// Builds the end of the test.
    pub(crate) fn accept(self, control: &mut UnixStream, own: Own) -> End {
        if self == Self::Shm {
            return over_shm(control, own);
        }
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        control.write_all(&tcp.local_addr().unwrap().port().to_le_bytes()).unwrap();
        let streams = [(); 2].map(|()| tcp.accept().unwrap().0);
        own.tcp(streams, (self == Self::SealedTcp).then(|| seals().0))
    }
}

fn over_shm(control: &UnixStream, own: Own) -> End {
    send_packet(control.as_fd(), &[5], &own.fds().each_ref().map(AsFd::as_fd)).unwrap();
    let fds: [OwnedFd; FDS] = receive_packet(control.as_fd(), &mut [0]).unwrap().1.try_into().unwrap();
    own.shm(fds)
}

#[test]
fn a_killed_peer_over_shm_is_detected_by_a_sleeper_and_loses_nothing() {
    // The living peer goes on sending into the room of the first frames.
    let (_, _, control, lost) = killed_peer(Kind::Shm, 100);
    assert_eq!(lost, Lost::PeerDied);
    assert!(PeerProcess::of(control.as_fd()).is_err(), "a process that has ended is not watched");
}

fn a_killed_peer_over(kind: Kind) {
    let (.., lost) = killed_peer(kind, 0);
    assert!(matches!(lost, Lost::Closed(_)), "{lost:?}");
}

#[test]
fn a_killed_peer_over_tcp_is_detected_by_a_sleeper_and_loses_nothing() {
    a_killed_peer_over(Kind::Tcp);
}

#[test]
fn a_killed_peer_over_sealed_tcp_is_detected_by_a_sleeper_and_loses_nothing() {
    a_killed_peer_over(Kind::SealedTcp);
}
