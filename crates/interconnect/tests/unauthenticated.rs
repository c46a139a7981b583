//! Peers without a key of the cluster learn nothing, get nothing and block no other peer; and keys
//! can be replaced while nodes run.

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

use meshes::{LIMIT, addresses, config, name, noise, peer, until};
use plexus_base::NodeId;
use plexus_fabric::{Lost, RailKind};
use plexus_interconnect::{
    Message, Net, Service,
    mesh::{Config, Key, KeySource, Mesh},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Long enough for an answer to arrive, short enough to repeat.
const MOMENT: Duration = Duration::from_millis(50);

/// The bytes of the first message of each side.
const GREETING: usize = 128;

/// The bytes of the second message of the caller.
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

/// The addresses of a cluster and its identifier.
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

    /// The recorded first message of node 1 to node 0.
    fn recorded(&self, keys: &Keys) -> [u8; GREETING] {
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

/// Reads all answers until the other end closes.
fn answer(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("it was not closed"),
        // The connection may be reset, since not all bytes were read.
        _ => bytes,
    }
}

#[test]
fn a_peer_without_the_key_gets_no_byte() {
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
fn a_first_message_byte_by_byte_times_out() {
    let (cluster, keys) = (Cluster::new(2), Keys::new(&[1]));
    let recorded = cluster.recorded(&keys);
    let node = cluster.start(0, &keys);
    let mut stream = TcpStream::connect(cluster.addresses[0]).unwrap();
    stream.set_read_timeout(Some(MOMENT)).unwrap();
    let end = Instant::now() + LIMIT;
    for byte in recorded.iter().cycle() {
        // Writing to a closed connection is an error at some time; the read tells when.
        let _ = stream.write_all(&[*byte]);
        match stream.read(&mut [0; 1]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => break,
            Ok(_) => panic!("it was answered"),
        }
        assert!(Instant::now() < end, "the connection is still open");
    }
    until("it is counted", || node.unauthenticated() == 1);
    node.stop();
}

#[test]
fn recorded_messages_are_useless() {
    let (cluster, keys) = (Cluster::new(2), Keys::new(&[1]));
    let recorded = cluster.recorded(&keys);
    let node = cluster.start(0, &keys);
    for cut in [GREETING / 2, GREETING - 1] {
        let mut stream = TcpStream::connect(cluster.addresses[0]).unwrap();
        stream.write_all(&recorded[..cut]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(answer(&mut stream), [], "cut after {cut} bytes");
    }
    let mut flipped = recorded;
    flipped[GREETING / 2] ^= 1;
    let mut stream = TcpStream::connect(cluster.addresses[0]).unwrap();
    stream.write_all(&flipped).unwrap();
    assert_eq!(answer(&mut stream), [], "changed");

    let mut answers = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(cluster.addresses[0]).unwrap();
        stream.write_all(&recorded).unwrap();
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
fn a_node_with_another_key_is_refused() {
    let cluster = Cluster::new(2);
    let (node, other) = (cluster.start(0, &Keys::new(&[1])), cluster.start(1, &Keys::new(&[2])));
    until("it is refused", || node.unauthenticated() > 0);
    until("the reason", || other.problems().values().any(|why| why.contains("compare keys/")));
    assert!(node.connected().is_empty() && other.connected().is_empty());
    [node, other].iter().for_each(|node| node.stop());
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// The descriptors of accepted connections at `address`.
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
fn a_thousand_half_open_connections_block_no_peer() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let (cluster, keys) = (Cluster::new(2), Keys::new(&[1]));
    let recorded = cluster.recorded(&keys);
    let node = cluster.start(0, &keys);
    let held: Vec<TcpStream> = (0..1000)
        .map(|number| {
            let mut stream = TcpStream::connect(cluster.addresses[0]).unwrap();
            // Some send nothing, some a part, some a valid message that was recorded before. Others
            // may have been closed already.
            let _ = stream.write_all(&recorded[..[0, 1, GREETING - 1, GREETING][number % 4]]);
            stream
        })
        .collect();
    let peer = cluster.start(1, &keys);
    peer.wait_connected(LIMIT).unwrap();
    node.wait_connected(LIMIT).unwrap();
    // The threads of the nodes of all tests that may run now, and none for each connection.
    assert!(threads() < 200, "{} threads", threads());
    assert!(accepted_at(cluster.addresses[0]) <= 256 + 2, "descriptors for unauthenticated connections");
    drop(held);
    [node, peer].iter().for_each(|node| node.stop());
}

#[test]
fn a_flood_of_unauthenticated_connections_blocks_no_peer() {
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
