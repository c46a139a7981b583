//! The end of a peer's process: this test binary starts itself as the peer and kills it.

use std::{
    env,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    process::{Child, Command, Stdio},
    sync::Arc,
};

use plexus_fabric::{
    Lane, Lost, Put, Rail, RailKind, SendError,
    shm::{PeerProcess, PeerWatch, receive_packet, send_packet},
};

use crate::pairs::{End, FDS, Kind, Own, Sleeper, WHOLE, seals};

const KIND: &str = "PLEXUS_TEST_PEER_KIND";
const SENDS: &str = "PLEXUS_TEST_PEER_SENDS";
const PLACE: &str = "PLEXUS_TEST_PEER_PLACE";

/// The frames in each lane that the peer has sent when it reports that it may be killed: as many as
/// its rail takes while the test does not read. Over libfabric those are the messages that have a
/// credit.
fn sends(kind: Kind) -> u64 {
    match kind {
        Kind::Shm | Kind::Tcp | Kind::SealedTcp => 300,
        Kind::Ofi(_) => 100,
    }
}

fn send_fds(socket: &UnixStream, fds: &[OwnedFd; FDS]) {
    send_packet(socket.as_fd(), &[5], &fds.each_ref().map(AsFd::as_fd)).unwrap();
}

fn receive_fds(socket: &UnixStream) -> [OwnedFd; FDS] {
    receive_packet(socket.as_fd(), &mut [0]).unwrap().1.try_into().unwrap()
}

/// Builds one end of a rail over libfabric: exchanges the offers with the other end, and waits
/// until both ends are connected.
fn connect_ofi(control: &mut UnixStream, own: Own, provider: &str) -> End {
    let end = own.ofi_end(provider);
    let ours = end.offer().encode();
    control.write_all(&(ours.len() as u32).to_le_bytes()).unwrap();
    control.write_all(&ours).unwrap();
    let mut len = [0; 4];
    control.read_exact(&mut len).unwrap();
    let mut theirs = vec![0; u32::from_le_bytes(len) as usize];
    control.read_exact(&mut theirs).unwrap();
    let (mut rail, finish) = own.ofi(end, &theirs);
    while !rail.is_connected() {
        rail.flush().unwrap();
    }
    finish(rail)
}

/// The peer's part; in the parent it does nothing.
#[test]
fn peer_process() {
    let (Ok(kind), Ok(place), Ok(sends)) = (env::var(KIND), env::var(PLACE), env::var(SENDS)) else { return };
    let sent: u64 = sends.parse().unwrap();
    let mut control = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&place).unwrap()).unwrap();
    let own = Own::new();
    let mut end = if kind == "shm" {
        send_fds(&control, &own.fds());
        let peer = receive_fds(&control);
        own.shm(peer)
    } else if let Some(provider) = kind.strip_prefix("ofi-") {
        connect_ofi(&mut control, own, provider)
    } else {
        let mut port = [0; 2];
        control.read_exact(&mut port).unwrap();
        let connect = || TcpStream::connect(("127.0.0.1", u16::from_le_bytes(port))).unwrap();
        own.tcp([connect(), connect()], (kind == "sealed").then(|| seals().1))
    };
    for number in 0..u64::MAX {
        for lane in Lane::ALL {
            let data = number.to_le_bytes();
            let put = Put { window: WHOLE, offset: number % 1000 * 8, generation: 0, data: &data };
            // The rail is full after a while, since the test does not read; the peer goes on trying
            // until it is killed.
            let _ = end.rail.put(lane, put, &data, &[lane.index() as u8; 30]);
        }
        let _ = end.rail.flush();
        if number + 1 == sent {
            control.write_all(&[1]).unwrap();
        }
    }
}

/// A peer in a process of its own that is sending.
fn peer(kind: Kind) -> (End, Child, UnixStream) {
    let name = match kind {
        Kind::Ofi(provider) => format!("ofi-{provider}"),
        Kind::SealedTcp => "sealed".into(),
        Kind::Shm | Kind::Tcp => kind.rail().name().into(),
    };
    let place = format!("plexus-fabric-test-{}-{name}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&place).unwrap()).unwrap();
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "death::peer_process"])
        .env(KIND, &name)
        .env(PLACE, &place)
        .env(SENDS, sends(kind).to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut control = listener.accept().unwrap().0;
    let own = Own::new();
    let end = if kind == Kind::Shm {
        let fds = receive_fds(&control);
        send_fds(&control, &own.fds());
        own.shm(fds)
    } else if let Kind::Ofi(provider) = kind {
        connect_ofi(&mut control, own, provider)
    } else {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        control.write_all(&tcp.local_addr().unwrap().port().to_le_bytes()).unwrap();
        let streams = [(); 2].map(|()| tcp.accept().unwrap().0);
        own.tcp(streams, (kind == Kind::SealedTcp).then(|| seals().0))
    };
    control.read_exact(&mut [0]).unwrap();
    (end, child, control)
}

/// Takes arriving frames, asleep while there are none, until the rail is lost.
fn until_lost(end: &mut End, frames: &mut Vec<(Lane, Vec<u8>)>) -> Lost {
    let sleeper = Sleeper::new(end);
    loop {
        match end.rail.poll(16, &mut |lane, frame| frames.push((lane, crate::pairs::bytes(&frame)))) {
            Ok(0) => {
                sleeper.sleep(end);
            }
            Ok(_) => {}
            Err(lost) => return lost,
        }
    }
}

/// Checks that the first `sent` frames and perhaps later ones arrived in order, in both lanes.
fn check(frames: &[(Lane, Vec<u8>)], sent: u64) {
    for lane in Lane::ALL {
        let numbers = frames.iter().filter(|(l, _)| *l == lane).map(|(_, bytes)| {
            assert_eq!(bytes[8..], [lane.index() as u8; 30]);
            u64::from_le_bytes(bytes[..8].try_into().unwrap())
        });
        let mut last = None;
        for number in numbers {
            assert!(last < Some(number) && (number >= sent || last.map_or(0, |last| last + 1) == number));
            last = Some(number);
        }
        assert!(last >= Some(sent - 1), "{lane:?}: {last:?}");
    }
}

/// Kills a sending peer after `first` frames, and checks the frames that arrive. Over TCP the end
/// of the connections shows the end of the peer; for other kinds its process is watched.
fn killed_peer(kind: Kind, first: usize) -> (End, Child, UnixStream, Lost) {
    let (mut end, mut child, control) = peer(kind);
    let watch = (kind.rail() != RailKind::Tcp).then(|| {
        let process = PeerProcess::of(control.as_fd()).unwrap();
        let watch = PeerWatch::start().unwrap();
        watch.watch(process.pidfd, Arc::clone(&end.gone), vec![Arc::clone(&end.bell)]).unwrap();
        watch
    });
    let mut frames = end.take(first);
    child.kill().unwrap();
    let lost = until_lost(&mut end, &mut frames);
    check(&frames, sends(kind));
    child.wait().unwrap();
    drop(watch);
    (end, child, control, lost)
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

/// A peer over libfabric, which does not report the end of a peer; the watcher of its process does.
fn a_killed_peer_over_libfabric(provider: &'static str) {
    if !Kind::Ofi(provider).is_here() {
        return;
    }
    let (mut end, child, _, lost) = killed_peer(Kind::Ofi(provider), 0);
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
fn a_killed_peer_over_ofi_tcp_is_detected_and_loses_nothing() {
    a_killed_peer_over_libfabric("tcp");
}

#[test]
fn a_killed_peer_over_ofi_shm_is_detected_and_loses_nothing() {
    a_killed_peer_over_libfabric("shm");
}
