//! A node that has no descriptors left: who comes to one of its sockets waits, and it does not burn a core over them. In a process of its own,
//! for the limit is the process's.

mod cluster;

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
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
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

/// How the system sees the thread called `name`, as it calls itself when it first runs.
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

/// How often it has gone to sleep.
fn sleeps(status: &File) -> u64 {
    let mut text = [0; 4096];
    let len = status.read_at(&mut text, 0).unwrap();
    let text = std::str::from_utf8(&text[..len]).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn a_node_without_descriptors_waits_for_some_and_serves_then() {
    let cluster = Cluster::start(1, 1, RailKind::Shm);
    let paths = [cluster.socket(0), cluster.control(0)].map(|path| ShortPath::of(&path).unwrap());
    let threads = ["plexus-attach", "plexus-control"].map(acceptor);
    let [program, operator] = [SocketType::SEQPACKET, SocketType::STREAM]
        .map(|kind| rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap());
    let before = getrlimit(Resource::Nofile);
    let first_free = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(first_free), ..before }).unwrap();
    let (slept, start) = (threads.each_ref().map(sleeps), Instant::now());
    let connect = |socket: &OwnedFd, path: &ShortPath| {
        rustix::net::connect(socket, &SocketAddrUnix::new(path.path()).unwrap()).unwrap();
    };
    connect(&program, &paths[0]);
    send_packet(program.as_fd(), &hello::hello(), &[]).unwrap();
    connect(&operator, &paths[1]);
    let mut operator = BufReader::new(UnixStream::from(operator));
    operator.get_mut().write_all(b"{\"command\":\"status\"}\n").unwrap();
    for (thread, slept) in threads.iter().zip(slept) {
        while sleeps(thread) < slept + 5 {
            assert!(start.elapsed() < Duration::from_secs(60), "it never sleeps");
            thread::yield_now();
        }
    }
    setrlimit(Resource::Nofile, before).unwrap();
    let (packet, _) = receive_packet(program.as_fd()).unwrap();
    assert!(hello::Welcome::decode(&packet).is_ok());
    let mut answer = String::new();
    operator.read_line(&mut answer).unwrap();
    assert!(answer.starts_with("{\"ok\":"), "{answer}");
}
