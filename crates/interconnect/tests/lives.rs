//! Nodes that are let in only in the life that is named: a life that ended never comes back, the next one may.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use plexus_base::{Incarnation, NodeId, Waiting};
use plexus_fabric::{Lost, RailKind};
use plexus_interconnect::{
    Channel, Kind, Message, Net, Service,
    mesh::{Admission, Config, Key, Mesh, Peer},
};

const LIMIT: Duration = Duration::from_secs(20);

/// What a node was told, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Told {
    Up(Incarnation),
    Said(Incarnation, u8),
    Gone(Incarnation),
}

#[derive(Default)]
struct Listener(Arc<Mutex<Vec<Told>>>);

impl Listener {
    fn note(&self, told: Told) {
        self.0.lock().unwrap().push(told);
    }
}

impl Service for Listener {
    /// Says this to the only peer.
    type Task = (NodeId, u8);

    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        self.note(Told::Said(net.life(message.from).unwrap(), message.payload[0]));
    }

    fn task(&mut self, net: &mut Net, (to, what): (NodeId, u8)) {
        // Said to nobody, it is heard by nobody.
        let _ = net.send(to, Channel::Services, Kind::Request, 0, &[what]);
    }

    fn peer_up(&mut self, net: &mut Net, peer: NodeId) {
        self.note(Told::Up(net.life(peer).unwrap()));
    }

    fn peer_gone(&mut self, net: &mut Net, peer: NodeId, _: &Lost) {
        self.note(Told::Gone(net.life(peer).unwrap()));
    }
}

struct Node {
    mesh: Arc<Mesh<Listener>>,
    told: Arc<Mutex<Vec<Told>>>,
}

impl Node {
    fn says(&self, to: u8, what: u8) {
        self.mesh.workers()[0].submit((NodeId(to), what));
    }

    fn admit(&self, peer: u8, life: u64) {
        self.mesh.admit(NodeId(peer), Incarnation(life)).unwrap();
    }

    fn hears(&self, expected: &[Told]) {
        let end = Instant::now() + LIMIT;
        while *self.told.lock().unwrap() != expected {
            assert!(Instant::now() < end, "{:?} instead of {expected:?}", self.told.lock().unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn node(me: u8, life: u64, name: [u8; 16], addresses: [SocketAddr; 2], rail: RailKind) -> Node {
    let told = Arc::<Mutex<Vec<Told>>>::default();
    let config = Config {
        me: NodeId(me),
        incarnation: Incarnation(life),
        cluster: name,
        admission: Admission::AsTold,
        fingerprint: 5,
        keys: Arc::new(vec![Key::new([9; 32])]),
        listen: vec![addresses[usize::from(me)]],
        peers: vec![Peer {
            id: NodeId(1 - me),
            addresses: vec![addresses[usize::from(1 - me)]],
            rails: vec![rail],
            encrypt: false,
        }],
        windows: Vec::new(),
        waiting: Waiting::Adaptive,
        patience: Duration::from_secs(1),
        probe: Duration::from_millis(20),
        ofi_provider: None,
    };
    let mesh = Mesh::start(config, vec![Listener(told.clone())], |_| ()).unwrap();
    Node { mesh, told }
}

/// `stays` lives on while the other ends and comes again.
fn comes_again(stays: u8, rail: RailKind) {
    let addresses = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = addresses.map(|listener| listener.local_addr().unwrap());
    let mut name = [stays; 16];
    name[..4].copy_from_slice(&std::process::id().to_le_bytes());
    name[4..6].copy_from_slice(&addresses[0].port().to_le_bytes());
    let goes = 1 - stays;
    let one = node(stays, 7, name, addresses, rail);
    let other = node(goes, 1, name, addresses, rail);
    other.admit(stays, 7);
    assert!(one.mesh.connected().is_empty() && other.mesh.connected().is_empty(), "one end is not enough");
    one.admit(goes, 1);
    one.mesh.wait_connected(LIMIT).unwrap();
    other.mesh.wait_connected(LIMIT).unwrap();
    other.says(stays, 1);
    one.hears(&[Told::Up(Incarnation(1)), Told::Said(Incarnation(1), 1)]);

    // It ends, and comes in its next life: nobody has named that yet.
    other.mesh.stop();
    drop(other);
    let mut expected =
        vec![Told::Up(Incarnation(1)), Told::Said(Incarnation(1), 1), Told::Gone(Incarnation(1))];
    one.hears(&expected);
    let other = node(goes, 2, name, addresses, rail);
    other.admit(stays, 7);
    one.admit(goes, 1);
    assert_eq!(one.mesh.connected().len(), 0, "the life that is over is not let in again");
    one.admit(goes, 2);
    other.mesh.wait_connected(LIMIT).unwrap();
    other.says(stays, 2);
    expected.extend([Told::Up(Incarnation(2)), Told::Said(Incarnation(2), 2)]);
    one.hears(&expected);

    // Who is forgotten is not heard, and learns it.
    one.mesh.forget(NodeId(goes), Incarnation(2));
    expected.push(Told::Gone(Incarnation(2)));
    one.hears(&expected);
    other.hears(&[Told::Up(Incarnation(7)), Told::Gone(Incarnation(7))]);
    other.says(stays, 3);
    one.hears(&expected);

    // An earlier life that was never ended here gives way to the one that is named.
    let third = || {
        other.mesh.stop();
        node(goes, 3, name, addresses, rail)
    };
    let third = third();
    third.admit(stays, 7);
    one.admit(goes, 3);
    one.mesh.wait_connected(LIMIT).unwrap();
    one.says(goes, 4);
    third.hears(&[Told::Up(Incarnation(7)), Told::Said(Incarnation(7), 4)]);
    one.mesh.stop();
    third.mesh.stop();
}

#[test]
fn over_memory_lives_come_and_go() {
    [0, 1].into_iter().for_each(|stays| comes_again(stays, RailKind::Shm));
}

#[test]
fn over_sockets_lives_come_and_go() {
    [0, 1].into_iter().for_each(|stays| comes_again(stays, RailKind::Tcp));
}
