//! Whoever has no key of the cluster learns nothing, gets nothing and keeps nobody out; and keys can be replaced while nodes run.

#[path = "common/meshes.rs"]
mod meshes;

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use meshes::{LIMIT, addresses, config, name, peer, until};
use plexus_base::NodeId;
use plexus_fabric::{Lost, RailKind};
use plexus_interconnect::{
    Message, Net, Service,
    mesh::{Config, Key, KeySource, Mesh},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Long enough for an answer, had there been one; short enough to ask again.
const MOMENT: Duration = Duration::from_millis(50);

/// Bytes of the first message of each side.
const GREETING: usize = 128;

/// Bytes of the second message of the caller.
const OFFER: usize = 273;

struct Silent;

impl Service for Silent {
    type Task = ();

    fn message(&mut self, _: &mut Net, _: Message<'_>) {}

    fn task(&mut self, _: &mut Net, (): ()) {}

    fn peer_gone(&mut self, _: &mut Net, _: NodeId, _: &Lost) {}
}

/// Keys that change while nodes run.
#[derive(Clone, Debug)]
struct Keys(Arc<Mutex<Vec<Key>>>);

impl Keys {
    fn new(keys: &[u8]) -> Self {
        let made = Self(Arc::default());
        made.set(keys);
        made
    }

    fn set(&self, keys: &[u8]) {
        *self.0.lock().unwrap() = keys.iter().map(|byte| Key::new([*byte; 32])).collect();
    }
}

impl KeySource for Keys {
    fn keys(&self) -> Result<Vec<Key>, String> {
        Ok(self.0.lock().unwrap().clone())
    }
}

/// The addresses of a cluster and who may call itself what.
struct Cluster {
    addresses: Vec<SocketAddr>,
    name: [u8; 16],
}

impl Cluster {
    fn new(nodes: usize) -> Self {
        let addresses = addresses(nodes);
        let name = name(addresses[0]);
        Self { addresses, name }
    }

    fn start(&self, me: usize, keys: &Keys) -> Arc<Mesh<Silent>> {
        let at = |node: usize| &self.addresses[node..][..1];
        let peer = |node: usize| peer(node as u8, at(node), &[RailKind::Tcp], true);
        let peers = (0..self.addresses.len()).filter(|other| *other != me).map(peer).collect();
        let config = Config { keys: Arc::new(keys.clone()), ..config(me as u8, self.name, at(me), peers) };
        Mesh::start(config, vec![Silent], |_| ()).unwrap()
    }

    /// What node 1 says first to node 0, overheard.
    fn overheard(&self, keys: &Keys) -> [u8; GREETING] {
        let ear = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = ear.local_addr().unwrap();
        let deceived = Self { addresses: vec![there, self.addresses[1]], name: self.name };
        let node = deceived.start(1, keys);
        let mut message = [0; GREETING];
        ear.accept().unwrap().0.read_exact(&mut message).unwrap();
        node.stop();
        message
    }
}

/// Everything that is answered until the other end closes.
fn answer(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("it was not closed"),
        // It may be reset, since not all that was said was read.
        _ => bytes,
    }
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 88172645463325252u64 + length as u64;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| byte()).collect()
}

#[test]
fn who_does_not_know_the_key_is_answered_no_byte() {
    let (cluster, keys) = (Cluster::new(2), Keys::new(&[1]));
    let node = cluster.start(0, &keys);
    let lengths = [0, 1, GREETING - 1, GREETING, GREETING + 1, 1000];
    for length in lengths {
        let mut stream = TcpStream::connect(cluster.addresses[0]).unwrap();
        // The node may close before all of it is written.
        let _ = stream.write_all(&noise(length));
        let _ = stream.shutdown(Shutdown::Write);
        assert_eq!(answer(&mut stream), [], "{length} bytes");
    }
    until("each is counted", || node.unauthenticated() == lengths.len() as u64);
    node.stop();
}

#[test]
fn who_says_its_first_message_byte_by_byte_is_not_waited_for() {
    let (cluster, keys) = (Cluster::new(2), Keys::new(&[1]));
    let overheard = cluster.overheard(&keys);
    let node = cluster.start(0, &keys);
    let mut stream = TcpStream::connect(cluster.addresses[0]).unwrap();
    stream.set_read_timeout(Some(MOMENT)).unwrap();
    let end = Instant::now() + LIMIT;
    for byte in overheard.iter().cycle() {
        // Written to what is closed, it is an error at some time; the read says when.
        let _ = stream.write_all(&[*byte]);
        match stream.read(&mut [0; 1]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => break,
            Ok(_) => panic!("it was answered"),
        }
        assert!(Instant::now() < end, "it is still listened to");
    }
    until("it is counted", || node.unauthenticated() == 1);
    node.stop();
}

#[test]
fn what_was_overheard_is_of_no_use() {
    let (cluster, keys) = (Cluster::new(2), Keys::new(&[1]));
    let overheard = cluster.overheard(&keys);
    let node = cluster.start(0, &keys);
    for cut in [GREETING / 2, GREETING - 1] {
        let mut stream = TcpStream::connect(cluster.addresses[0]).unwrap();
        stream.write_all(&overheard[..cut]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(answer(&mut stream), [], "cut after {cut} bytes");
    }
    let mut flipped = overheard;
    flipped[GREETING / 2] ^= 1;
    let mut stream = TcpStream::connect(cluster.addresses[0]).unwrap();
    stream.write_all(&flipped).unwrap();
    assert_eq!(answer(&mut stream), [], "changed");

    let mut answers = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(cluster.addresses[0]).unwrap();
        stream.write_all(&overheard).unwrap();
        let mut answered = [0; GREETING];
        stream.read_exact(&mut answered).unwrap();
        stream.write_all(&noise(OFFER)).unwrap();
        assert_eq!(answer(&mut stream), [], "nothing follows the answer");
        answers.push(answered);
    }
    assert_ne!(answers[0], answers[1]);
    until("all are counted", || node.unauthenticated() == 5);
    assert!(node.connected().is_empty());

    let true_one = cluster.start(1, &keys);
    true_one.wait_connected(LIMIT).unwrap();
    node.wait_connected(LIMIT).unwrap();
    [node, true_one].iter().for_each(|node| node.stop());
}

#[test]
fn a_node_with_another_key_is_no_node() {
    let cluster = Cluster::new(2);
    let (node, other) = (cluster.start(0, &Keys::new(&[1])), cluster.start(1, &Keys::new(&[2])));
    until("it is refused", || node.unauthenticated() > 0);
    until("it says why", || other.problems().values().any(|why| why.contains("compare keys/")));
    assert!(node.connected().is_empty() && other.connected().is_empty());
    [node, other].iter().for_each(|node| node.stop());
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Descriptors of connections that somebody has accepted at `address`.
fn accepted_at(address: SocketAddr) -> usize {
    let port = format!(":{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let accepted = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Established, and with an inode: those in the queue of the listener have none.
        fields[1].ends_with(&port) && fields[3] == "01" && fields[9] != "0"
    };
    table.lines().skip(1).filter(accepted).count()
}

#[test]
fn a_thousand_half_open_connections_keep_nobody_out() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let (cluster, keys) = (Cluster::new(2), Keys::new(&[1]));
    let overheard = cluster.overheard(&keys);
    let node = cluster.start(0, &keys);
    let held: Vec<TcpStream> = (0..1000)
        .map(|number| {
            let mut stream = TcpStream::connect(cluster.addresses[0]).unwrap();
            // Some say nothing, some a part, some what is true but was said before. Others may have been sent away.
            let _ = stream.write_all(&overheard[..[0, 1, GREETING - 1, GREETING][number % 4]]);
            stream
        })
        .collect();
    let peer = cluster.start(1, &keys);
    peer.wait_connected(LIMIT).unwrap();
    node.wait_connected(LIMIT).unwrap();
    // The nodes of all tests of this process that may run now, and none for each stranger.
    assert!(threads() < 200, "{} threads", threads());
    assert!(accepted_at(cluster.addresses[0]) <= 256 + 2, "descriptors for each stranger");
    drop(held);
    [node, peer].iter().for_each(|node| node.stop());
}

#[test]
fn a_flood_of_strangers_keeps_nobody_out() {
    let (cluster, keys) = (Cluster::new(2), Keys::new(&[1]));
    let node = cluster.start(0, &keys);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    if let Ok(mut stream) = TcpStream::connect(cluster.addresses[0]) {
                        let _ = stream.write_all(&noise(GREETING));
                    }
                }
            });
        }
        until("the flood", || node.unauthenticated() > 100);
        let peer = cluster.start(1, &keys);
        let joined = peer.wait_connected(LIMIT).and_then(|()| node.wait_connected(LIMIT));
        over.store(true, Relaxed);
        joined.unwrap();
        peer.stop();
    });
    node.stop();
}

#[test]
fn a_key_is_replaced_while_nodes_run() {
    let cluster = Cluster::new(4);
    let (old, both, new) = (&[1][..], &[2, 1][..], &[2][..]);
    let keys: Vec<Keys> = [old, both, both, old].into_iter().map(Keys::new).collect();
    let mut nodes: Vec<_> = (0..3).map(|me| cluster.start(me, &keys[me])).collect();
    // 2 and 1 prove the new key to each other, and fall back to the old one for 0.
    until("two keys are valid", || nodes.iter().all(|node| node.connected().len() == 2));

    keys[..3].iter().for_each(|keys| keys.set(new));
    nodes.push(cluster.start(3, &keys[3]));
    let refused = || nodes[3].problems().values().filter(|why| why.contains("compare keys/")).count();
    until("the retired key is refused by all", || refused() == 3);
    assert!(nodes[..3].iter().all(|node| node.unauthenticated() > 0 && node.connected().len() == 2));

    keys[3].set(new);
    for node in &nodes {
        node.wait_connected(LIMIT).unwrap();
    }
    nodes.iter().for_each(|node| node.stop());
}
