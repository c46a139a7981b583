//! A peer in a process of its own: the test binary that includes this file starts itself as the
//! peer, and kills it. Its `Kind` connects the two ends.

use std::{
    env,
    io::{Read, Write},
    os::{
        fd::AsFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    process::{Child, Command, Stdio},
    sync::Arc,
};

use plexus_fabric::{
    Lane, Lost, Put, RailKind,
    shm::{PeerProcess, PeerWatch},
};

use crate::pairs::{End, Kind, Own, Sleeper, WHOLE, bytes};

const KIND: &str = "PLEXUS_TEST_PEER_KIND";
const PLACE: &str = "PLEXUS_TEST_PEER_PLACE";

/// The peer's part; in the parent it does nothing.
#[test]
fn peer_process() {
    let (Ok(kind), Ok(place)) = (env::var(KIND), env::var(PLACE)) else { return };
    let mut control = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&place).unwrap()).unwrap();
    let mut end = Kind::from_name(&kind).connect(&mut control, Own::new());
    for number in 0..u64::MAX {
        for lane in Lane::ALL {
            let data = number.to_le_bytes();
            let put = Put { window: WHOLE, offset: number % 1000 * 8, generation: 0, data: &data };
            // The rail is full after a while, since the test does not read; the peer goes on trying
            // until it is killed.
            let _ = end.rail.put(lane, put, &data, &[lane.index() as u8; 30]);
        }
        let _ = end.rail.flush();
        if number + 1 == Kind::SENDS {
            control.write_all(&[1]).unwrap();
        }
    }
}

/// A peer in a process of its own that is sending.
fn peer(kind: Kind) -> (End, Child, UnixStream) {
    let name = kind.name();
    let place = format!("plexus-rail-test-{}-{name}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&place).unwrap()).unwrap();
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "peer::peer_process"])
        .env(KIND, name)
        .env(PLACE, &place)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut control = listener.accept().unwrap().0;
    let end = kind.accept(&mut control, Own::new());
    control.read_exact(&mut [0]).unwrap();
    (end, child, control)
}

/// Takes arriving frames, asleep while there are none, until the rail is lost.
fn until_lost(end: &mut End, frames: &mut Vec<(Lane, Vec<u8>)>) -> Lost {
    let sleeper = Sleeper::new(end);
    loop {
        match end.rail.poll(16, &mut |lane, frame| frames.push((lane, bytes(&frame)))) {
            Ok(0) => {
                sleeper.sleep(end);
            }
            Ok(_) => {}
            Err(lost) => return lost,
        }
    }
}

/// Checks that the first [`Kind::SENDS`] frames and perhaps later ones arrived in order, in both
/// lanes.
fn check(frames: &[(Lane, Vec<u8>)]) {
    for lane in Lane::ALL {
        let numbers = frames.iter().filter(|(l, _)| *l == lane).map(|(_, bytes)| {
            assert_eq!(bytes[8..], [lane.index() as u8; 30]);
            u64::from_le_bytes(bytes[..8].try_into().unwrap())
        });
        let mut last = None;
        for number in numbers {
            assert!(
                last < Some(number) && (number >= Kind::SENDS || last.map_or(0, |last| last + 1) == number)
            );
            last = Some(number);
        }
        assert!(last >= Some(Kind::SENDS - 1), "{lane:?}: {last:?}");
    }
}

/// Kills a sending peer after `first` frames, and checks the frames that arrive. Over TCP the end
/// of the connections shows the end of the peer; for other kinds its process is watched.
pub(crate) fn killed_peer(kind: Kind, first: usize) -> (End, Child, UnixStream, Lost) {
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
    check(&frames);
    child.wait().unwrap();
    drop(watch);
    (end, child, control, lost)
}
