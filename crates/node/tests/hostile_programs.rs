//! Programs that say what no library of ours says, over the socket and in the rings: they are cut off, and everybody else is served
//! as before.

mod cluster;

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::Path,
    sync::Arc,
    time::Duration,
};

use cluster::Cluster;
use plexus_client::wire::{
    HEAD, Head, Letters, Pipe, ShortPath, Status, Use, Verb,
    hello::{self, GO, Refusal, Welcome},
    limits, receive_packet, send_packet,
};
use plexus_fabric::{
    Bell, Lane, PeerBell, Rail, RailKind, ShmRail,
    shm::{RxRings, ShmParts, TxRings},
};
use plexus_sim::Random;
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{MemfdFlags, memfd_create},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    time::Timespec,
};

const LONG: Option<Duration> = Some(Duration::from_secs(60));

fn connect(path: &Path) -> OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    let short = ShortPath::of(path).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(short.path()).unwrap()).unwrap();
    socket
}

/// Asserts that nothing more comes over the socket than its end.
#[track_caller]
fn assert_cut_off(socket: BorrowedFd<'_>, what: &str) {
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], Some(&limit)), Ok(1), "{what}");
    match receive_packet(socket) {
        Ok((packet, _)) => assert!(packet.is_empty(), "{what}: {packet:?}"),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{what}"),
    }
}

/// Asserts that programs of both nodes reach each other.
fn assert_alive(cluster: &Cluster) {
    let (one, two) = (cluster.client(0), cluster.client(1));
    for port in [10, 11] {
        let (here, there) = (one.bind(port).unwrap(), two.bind(port).unwrap());
        there.send(here.address(), b"alive", LONG).unwrap();
        let got = here.receive(LONG).unwrap();
        assert_eq!((got.from, &got.bytes[..]), (there.address(), &b"alive"[..]));
    }
}

/// A program that has attached as it should.
struct Program {
    socket: OwnedFd,
    rails: Vec<ShmRail>,
    /// The memory of the rings that the node reads.
    rings: Vec<File>,
    _bell: Bell,
}

fn attach(path: &Path) -> Program {
    let socket = connect(path);
    send_packet(socket.as_fd(), &hello::hello(), &[]).unwrap();
    let (packet, descriptors) = receive_packet(socket.as_fd()).unwrap();
    let workers = usize::from(Welcome::decode(&packet).unwrap().workers);
    let (mut rails, mut rings, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    for given in descriptors[1..].chunks(3) {
        rings.push(File::from(given[0].try_clone().unwrap()));
        let tx = TxRings::map(given[0].as_fd()).unwrap();
        let bell = PeerBell::map(given[1].as_fd(), given[2].try_clone().unwrap()).unwrap();
        let rx = RxRings::create().unwrap();
        ours.push(rx.fd().try_clone_to_owned().unwrap());
        rails.push(ShmRail::new(ShmParts { tx, rx, bell, windows: Arc::new([]), gone: Arc::default() }));
    }
    assert_eq!(rails.len(), workers);
    let bell = Bell::create().unwrap();
    let mut pass: Vec<_> = ours.iter().map(AsFd::as_fd).collect();
    pass.extend([bell.page_fd(), bell.fd()]);
    send_packet(socket.as_fd(), &[GO], &pass).unwrap();
    assert_eq!(receive_packet(socket.as_fd()).unwrap().0, [GO]);
    Program { socket, rails, rings, _bell: bell }
}

#[test]
fn who_does_not_greet_as_agreed_is_not_let_in() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let path = cluster.socket(0);
    let mut random = Random::new(0x5eed);
    for round in 0..100_usize {
        let socket = connect(&path);
        let mut packet = hello::hello().to_vec();
        match round % 4 {
            0 => packet = (0..random.between(1, 127)).map(|_| random.bits() as u8).collect(),
            1 => packet.truncate(round % packet.len()),
            2 => packet[round % 32] ^= 1 << (round % 8),
            _ => packet.resize(33 + 7 * round, 0),
        }
        send_packet(socket.as_fd(), &packet, &[]).unwrap();
        // What is longer than any packet is not answered.
        if packet.len() > 128 {
            assert_cut_off(socket.as_fd(), "longer than any packet");
            continue;
        }
        let (answer, passed) = receive_packet(socket.as_fd()).unwrap();
        assert_eq!((Welcome::decode(&answer), passed.len()), (Err(Refusal::NotUnderstood), 0), "{packet:?}");
        assert_cut_off(socket.as_fd(), "a greeting that is none");
    }
    let pipe = || rustix::pipe::pipe().unwrap().0;
    let memory = |len: u64| {
        let memory = File::from(memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(len).unwrap();
        OwnedFd::from(memory)
    };
    // Of the right size, but whoever made it can make it shorter under its reader.
    let unsealed = || {
        memory(
            File::from(RxRings::create().unwrap().fd().try_clone_to_owned().unwrap())
                .metadata()
                .unwrap()
                .len(),
        )
    };
    let rings = || RxRings::create().unwrap().fd().try_clone_to_owned().unwrap();
    let bell = Bell::create().unwrap();
    let page = || bell.page_fd().try_clone_to_owned().unwrap();
    let event = || bell.fd().try_clone_to_owned().unwrap();
    let wrong: Vec<(&str, Vec<OwnedFd>)> = vec![
        ("nothing", vec![]),
        ("too few", vec![rings(), page(), event()]),
        ("too many", vec![rings(), rings(), page(), event(), event()]),
        ("pipes", vec![pipe(), pipe(), pipe(), pipe()]),
        ("short rings", vec![rings(), memory(4096), page(), event()]),
        ("no memory in the rings", vec![memory(0), rings(), page(), event()]),
        ("rings that may become shorter", vec![unsealed(), rings(), page(), event()]),
        ("a bell that is none", vec![rings(), rings(), pipe(), event()]),
        ("a bell's page that may become shorter", vec![rings(), rings(), memory(4096), event()]),
    ];
    for (what, descriptors) in &wrong {
        let socket = connect(&path);
        send_packet(socket.as_fd(), &hello::hello(), &[]).unwrap();
        assert!(Welcome::decode(&receive_packet(socket.as_fd()).unwrap().0).is_ok());
        let pass: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        send_packet(socket.as_fd(), &[GO], &pass).unwrap();
        assert_cut_off(socket.as_fd(), what);
    }
    assert_alive(&cluster);
}

#[test]
fn who_sends_frames_that_nobody_sends_is_cut_off() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let good = Head { id: 1, port: 2, ..Head::new(Verb::Bind, Use::Datagrams) };
    let with = |at: usize, byte: u8| {
        let mut bytes = good.encode(0);
        bytes[at] = byte;
        bytes.to_vec()
    };
    let cases: Vec<(&str, Lane, Vec<u8>)> = vec![
        ("shorter than a head", Lane::Prompt, vec![1, 2, 3]),
        ("no verb", Lane::Prompt, with(0, 200)),
        ("no use", Lane::Prompt, with(1, 9)),
        ("no status", Lane::Prompt, with(2, 99)),
        ("no node", Lane::Prompt, with(3, 255)),
        ("longer than any message", Lane::Prompt, with(14, 0xff)),
        ("shorter than it says", Lane::Prompt, good.encode(40).to_vec()),
        ("longer than it says", Lane::Prompt, [&good.encode(1)[..], &[0; 9]].concat()),
        ("the other lane", Lane::Bulk, good.encode(0).to_vec()),
        ("a node's verb", Lane::Prompt, Head::new(Verb::Joined, Use::Windows).encode(0).to_vec()),
        ("ports of windows", Lane::Prompt, Head::new(Verb::Bind, Use::Windows).encode(0).to_vec()),
    ];
    for (what, lane, frame) in cases {
        for worker in 0..2 {
            let mut program = attach(&cluster.socket(0));
            program.rails[worker].send(lane, &frame, &[]).unwrap();
            program.rails[worker].flush().unwrap();
            assert_cut_off(program.socket.as_fd(), what);
        }
    }
    assert_alive(&cluster);
}

#[test]
fn whatever_the_rings_hold_the_node_lives() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let (mut random, mut cut_off) = (Random::new(0xfeed), 0);
    for round in 0..60 {
        let mut program = attach(&cluster.socket(0));
        let worker = round % 2;
        // A message that begins, so that there is something in the ring besides what is written over it.
        let _ = program.rails[worker].send(Lane::Prompt, &Head::new(Verb::Bind, Use::Calls).encode(0), &[]);
        let len = program.rings[worker].metadata().unwrap().len();
        for _ in 0..=random.bits() % 64 {
            let bytes: Vec<u8> = (0..=random.bits() % 200).map(|_| random.bits() as u8).collect();
            // Often near the beginning, where the words are that say what is there.
            let reach = if random.bits().is_multiple_of(2) { 1024 } else { len - 200 };
            program.rings[worker].write_all_at(&bytes, random.bits() % reach).unwrap();
        }
        let _ = program.rails[worker].flush();
        // Both workers of the node have served others since.
        assert_alive(&cluster);
        let mut ended = [PollFd::new(&program.socket, PollFlags::IN)];
        cut_off += poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    }
    assert!(cut_off > 5, "{cut_off}");
}

#[test]
fn who_asks_and_does_not_read_is_cut_off() {
    let cluster = Cluster::start(2, 1, RailKind::Shm);
    let mut program = attach(&cluster.socket(0));
    let mut pipe = Pipe::new(Box::new(program.rails.remove(0)));
    let window = |verb, id, value| Head { id, value, port: 1, ..Head::new(verb, Use::Windows) };
    pipe.send(window(Verb::Create, 1, limits::MAX_MESSAGE as u64), b"w");
    let mut letters = Letters::default();
    while letters.is_empty() {
        pipe.flush().unwrap();
        pipe.poll(&mut letters).unwrap();
    }
    assert_eq!(letters.at(0).0.status, Status::Ok);
    let ended = |socket: &OwnedFd| {
        let mut ended = [PollFd::new(socket, PollFlags::IN)];
        poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    };
    let mut asked = 0;
    while !ended(&program.socket) {
        if pipe.queued() < HEAD {
            pipe.send(window(Verb::Get, 2, 0), &(limits::MAX_MESSAGE as u64).to_le_bytes());
            asked += 1;
        }
        let _ = pipe.flush();
        assert!(asked * limits::MAX_MESSAGE < 2 * limits::MAX_QUEUED, "it is let do what it likes");
    }
    assert!(asked * limits::MAX_MESSAGE > limits::MAX_QUEUED);
    assert_cut_off(program.socket.as_fd(), "it does not read");
    assert_alive(&cluster);
}
