//! The end of a peer's process over libfabric, which does not report it; the watcher of the process
//! does.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
};

use plexus_fabric::{Lane, Lost, Rail, SendError};

use crate::{
    pairs::{End, Kind, Own, connect, open},
    peer::killed_peer,
};

impl Kind {
    /// The frames in each lane that the peer has sent when it reports that it may be killed: the
    /// messages that have a credit.
    pub(crate) const SENDS: u64 = 100;

    /// The name for the peer's process.
    pub(crate) fn name(self) -> &'static str {
        self.0
    }

    pub(crate) fn from_name(name: &str) -> Self {
        [Self::TCP, Self::SHM].into_iter().find(|kind| kind.name() == name).unwrap()
    }

    /// Builds one end: exchanges the offers with the other end, and waits until both are connected.
    pub(crate) fn connect(self, control: &mut UnixStream, own: Own) -> End {
        let end = open(&own, self.0);
        let ours = end.offer().encode();
        control.write_all(&(ours.len() as u32).to_le_bytes()).unwrap();
        control.write_all(&ours).unwrap();
        let mut len = [0; 4];
        control.read_exact(&mut len).unwrap();
        let mut theirs = vec![0; u32::from_le_bytes(len) as usize];
        control.read_exact(&mut theirs).unwrap();
        let (mut rail, finish) = connect(own, end, &theirs);
        while !rail.is_connected() {
            rail.flush().unwrap();
        }
        finish(rail)
    }

    pub(crate) fn accept(self, control: &mut UnixStream, own: Own) -> End {
        self.connect(control, own)
    }
}

fn a_killed_peer_over(kind: Kind) {
    if !kind.is_here() {
        return;
    }
    let (mut end, child, _, lost) = killed_peer(kind, 0);
    assert!(matches!(lost, Lost::PeerDied | Lost::Closed(_)), "{lost:?}");
    assert_eq!(end.rail.send(Lane::Prompt, b"late", b""), Err(SendError::Lost));
    drop(end);
    // The files that libfabric's `shm` leaves of a process that could not close it.
    let left = format!("{}:", child.id());
    for entry in std::fs::read_dir("/dev/shm").unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&left) {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}

#[test]
fn a_killed_peer_over_tcp_is_detected_and_loses_nothing() {
    a_killed_peer_over(Kind::TCP);
}

#[test]
fn a_killed_peer_over_shm_is_detected_and_loses_nothing() {
    a_killed_peer_over(Kind::SHM);
}
