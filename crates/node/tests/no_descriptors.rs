//! A node that has no descriptors left: clients of its sockets wait, it does not burn a core over
//! them, and programs that waited for some time are told why. The test has a process of its own
//! because the limit is that of the process.

mod cluster;

use std::{
    fs::File,
    io::{BufRead, BufReader},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{fs::FileExt, net::UnixStream},
    },
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use cluster::Cluster;
use plexus_client::wire::{ShortPath, hello, receive_packet, send_packet};
use plexus_fabric::RailKind;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

/// The most programs and operators that connect.
const COME: usize = 8;

/// Returns the system's id of the thread called `name`, as it calls itself when it first runs.
fn acceptor(name: &str) -> File {
    let start = Instant::now();
    loop {
        let mut threads = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
        let named = |path: &PathBuf| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        if let Some(thread) = threads.find(named) {
            return File::open(thread.join("status")).unwrap();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "a node has such a thread");
        thread::yield_now();
    }
}

/// Returns the number of times it has gone to sleep.
fn sleeps(status: &File) -> u64 {
    let mut text = [0; 4096];
    let len = status.read_at(&mut text, 0).unwrap();
    let text = std::str::from_utf8(&text[..len]).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

/// Connects to a socket of the node until it has no descriptor to accept one; returns the last
/// connection, which waits. The first connections take the descriptors that are still free below
/// the limit, because a thread of the node had a file open when the limit was set.
fn comes_in_vain(sockets: &[OwnedFd], thread: &File, mut come: impl FnMut(&OwnedFd)) -> usize {
    let start = Instant::now();
    let mut comes = |socket: &OwnedFd| {
        let slept = sleeps(thread);
        come(socket);
        while sleeps(thread) < slept + 5 {
            let mut answered = [PollFd::new(socket, PollFlags::IN)];
            if poll(&mut answered, Some(&Timespec::default())).unwrap() > 0 {
                return false;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "it neither lets one in nor sleeps");
            thread::yield_now();
        }
        true
    };
    sockets.iter().position(&mut comes).expect("not all of them are let in")
}

#[test]
fn a_node_without_descriptors_waits_for_some_and_serves_then() {
    let cluster = Cluster::start(1, 1, RailKind::Shm);
    let paths = [cluster.socket(0), cluster.control(0)].map(|path| ShortPath::of(&path).unwrap());
    let [attach, control] = ["plexus-attach", "plexus-control"].map(acceptor);
    let sockets = |kind| -> Vec<OwnedFd> {
        let one = || rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        (0..COME).map(|_| one()).collect()
    };
    let (programs, operators) = (sockets(SocketType::SEQPACKET), sockets(SocketType::STREAM));
    let before = getrlimit(Resource::Nofile);
    let first_free = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(first_free), ..before }).unwrap();
    let connect = |socket: &OwnedFd, path: &ShortPath| {
        rustix::net::connect(socket, &SocketAddrUnix::new(path.path()).unwrap()).unwrap();
    };
    // Operators first: an accepted connection keeps its descriptor.
    let operator = comes_in_vain(&operators, &control, |operator| {
        connect(operator, &paths[1]);
        rustix::io::write(operator, b"{\"command\":\"status\"}\n").unwrap();
    });
    let program = comes_in_vain(&programs, &attach, |program| {
        connect(program, &paths[0]);
        send_packet(program.as_fd(), &hello::hello(), &[]).unwrap();
    });
    setrlimit(Resource::Nofile, before).unwrap();
    let (packet, _) = receive_packet(programs[program].as_fd()).unwrap();
    assert!(hello::Welcome::decode(&packet).is_ok());
    let mut answer = String::new();
    let operator = UnixStream::from(operators[operator].try_clone().unwrap());
    BufReader::new(operator).read_line(&mut answer).unwrap();
    assert!(answer.starts_with("{\"ok\":"), "{answer}");
    let last = sockets(SocketType::SEQPACKET);
    setrlimit(Resource::Nofile, Rlimit { current: Some(first_free), ..before }).unwrap();
    let refused = last.iter().any(|program| {
        connect(program, &paths[0]);
        let (packet, _) = receive_packet(program.as_fd()).unwrap();
        hello::Welcome::decode(&packet) == Err(hello::Refusal::NoResources)
    });
    assert!(refused, "programs are told that no descriptor is left");
    setrlimit(Resource::Nofile, before).unwrap();
}
