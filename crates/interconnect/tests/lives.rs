//! Nodes that are let in only in the incarnation that is named: an incarnation that ended never comes back, the next one may.

#[path = "common/meshes.rs"]
mod meshes;

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use meshes::{LIMIT, addresses, config, has_ofi, name, peer, until};
use plexus_base::{Incarnation, NodeId};
use plexus_fabric::{Lost, Put, RailKind, Window, WindowId};
use plexus_interconnect::{
    Channel, Kind, Message, Net, Service,
    mesh::{Admission, Config, Mesh, MeshError, Peer},
};

const WINDOW: WindowId = WindowId(7);

/// Puts of a page that are handed in at once: more than are carried before their sender is forgotten.
const PUTS: u64 = 8000;
const PAGE: usize = 4096;
const PAGES: u64 = 16;

/// What is put, and what stands in the window once nobody may put there any more.
const LATE: u8 = 0x11;
const OURS: u8 = 0xee;

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

/// What a node does to the only peer.
enum Task {
    /// Says this to it: as a message, as a datagram and as a call.
    Say(NodeId, u8),
    /// Puts into its window.
    Put(NodeId),
}

impl Service for Listener {
    type Task = Task;

    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        self.note(Told::Said(net.incarnation(message.from).unwrap(), message.payload[0]));
    }

    /// Said to nobody, it is heard by nobody.
    fn task(&mut self, net: &mut Net, task: Task) {
        match task {
            Task::Say(to, what) => {
                let _ = net.send(to, Channel::Services, Kind::Request, 0, &[what]);
                let _ = net.send(to, Channel::Datagrams, Kind::Request, 0, &[what]);
                let _ = net.call(to, Channel::Services, &[what], 1);
            }
            Task::Put(to) => {
                for number in 0..PUTS {
                    let offset = number % PAGES * PAGE as u64;
                    let put = Put { window: WINDOW, offset, generation: 0, data: &[LATE; PAGE] };
                    let _ = net.write(to, Channel::CacheBlocks, put);
                }
            }
        }
    }

    fn peer_up(&mut self, net: &mut Net, peer: NodeId) {
        self.note(Told::Up(net.incarnation(peer).unwrap()));
    }

    fn peer_gone(&mut self, net: &mut Net, peer: NodeId, _: &Lost) {
        self.note(Told::Gone(net.incarnation(peer).unwrap()));
    }
}

struct Node {
    mesh: Arc<Mesh<Listener>>,
    told: Arc<Mutex<Vec<Told>>>,
    window: Arc<Window>,
}

/// What is heard of something that is said: in one lane, each way of saying it in its turn.
fn said(incarnation: u64, what: u8) -> [Told; 3] {
    [(); 3].map(|()| Told::Said(Incarnation(incarnation), what))
}

impl Node {
    fn says(&self, to: u8, what: u8) {
        self.mesh.workers()[0].submit(Task::Say(NodeId(to), what));
    }

    fn puts(&self, to: u8) {
        self.mesh.workers()[0].submit(Task::Put(NodeId(to)));
    }

    /// What stands in its window, each byte once.
    fn bytes(&self) -> BTreeSet<u8> {
        let mut all = vec![0; PAGES as usize * PAGE];
        self.window.read(0, &mut all);
        all.into_iter().collect()
    }

    fn admit(&self, peer: u8, incarnation: u64) {
        self.mesh.admit(NodeId(peer), Incarnation(incarnation)).unwrap();
    }

    /// Waits until this stands somewhere in its window.
    fn reads(&self, byte: u8) {
        until("a put", || self.bytes().contains(&byte));
    }

    fn hears(&self, expected: &[Told]) {
        let end = Instant::now() + LIMIT;
        while *self.told.lock().unwrap() != expected {
            assert!(Instant::now() < end, "{:?} instead of {expected:?}", self.told.lock().unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The other node, as `me` knows it.
fn other(me: u8, addresses: &[SocketAddr], rail: RailKind) -> Peer {
    peer(1 - me, &addresses[usize::from(1 - me)..][..1], &[rail], false)
}

fn node(me: u8, incarnation: u64, name: [u8; 16], addresses: &[SocketAddr], rail: RailKind) -> Node {
    node_with(me, incarnation, name, addresses, vec![other(me, addresses, rail)])
}

fn node_with(me: u8, incarnation: u64, name: [u8; 16], addresses: &[SocketAddr], peers: Vec<Peer>) -> Node {
    let told = Arc::<Mutex<Vec<Told>>>::default();
    let window = Arc::new(Window::create(WINDOW, PAGES as usize * PAGE, 0).unwrap());
    let config = Config {
        incarnation: Incarnation(incarnation),
        admission: Admission::Named,
        windows: vec![window.clone()],
        ..config(me, name, &addresses[usize::from(me)..][..1], peers)
    };
    let mesh = Mesh::start(config, vec![Listener(told.clone())], |_| ()).unwrap();
    Node { mesh, told, window }
}

/// The name of a cluster that no other test has, and the addresses of its nodes.
fn cluster() -> ([u8; 16], Vec<SocketAddr>) {
    let addresses = addresses(2);
    (name(addresses[0]), addresses)
}

/// `first` begins when nobody knows of the other.
fn is_met(first: u8, rail: RailKind) {
    let (name, addresses) = cluster();
    let one = node_with(first, 7, name, &addresses, vec![]);
    let other = node(1 - first, 1, name, &addresses, rail);
    other.admit(first, 7);
    assert!(matches!(one.mesh.admit(NodeId(1 - first), Incarnation(1)), Err(MeshError::Unknown)));
    one.mesh.add_peer(self::other(first, &addresses, rail));
    assert!(one.mesh.connected().is_empty() && other.mesh.connected().is_empty(), "known is not let in");
    one.admit(1 - first, 1);
    other.mesh.wait_connected(LIMIT).unwrap();
    other.says(first, 1);
    let mut expected = vec![Told::Up(Incarnation(1))];
    expected.extend(said(1, 1));
    one.hears(&expected);
    // Met once more, it stays what it is.
    one.mesh.add_peer(self::other(first, &addresses, rail));
    assert_eq!(one.mesh.connected().len(), 1);
    other.says(first, 2);
    expected.extend(said(1, 2));
    one.hears(&expected);
    one.mesh.stop();
    other.mesh.stop();
}

/// `stays` lives on while the other ends and comes again.
fn comes_again(stays: u8, rail: RailKind) {
    let (name, addresses) = cluster();
    let goes = 1 - stays;
    let one = node(stays, 7, name, &addresses, rail);
    let other = node(goes, 1, name, &addresses, rail);
    other.admit(stays, 7);
    assert!(one.mesh.connected().is_empty() && other.mesh.connected().is_empty(), "one end is not enough");
    one.admit(goes, 1);
    one.mesh.wait_connected(LIMIT).unwrap();
    other.mesh.wait_connected(LIMIT).unwrap();
    other.says(stays, 1);
    let mut expected = vec![Told::Up(Incarnation(1))];
    expected.extend(said(1, 1));
    one.hears(&expected);

    // It ends, and comes in its next incarnation: nobody has named that yet.
    other.mesh.stop();
    drop(other);
    expected.push(Told::Gone(Incarnation(1)));
    one.hears(&expected);
    let other = node(goes, 2, name, &addresses, rail);
    other.admit(stays, 7);
    one.admit(goes, 1);
    assert_eq!(one.mesh.connected().len(), 0, "the incarnation that is over is not let in again");
    one.admit(goes, 2);
    other.mesh.wait_connected(LIMIT).unwrap();
    other.says(stays, 2);
    expected.push(Told::Up(Incarnation(2)));
    expected.extend(said(2, 2));
    one.hears(&expected);

    // Who is forgotten, in the middle of its puts, is not heard, and learns it.
    other.puts(stays);
    one.reads(LATE);
    one.mesh.forget(NodeId(goes), Incarnation(2));
    expected.push(Told::Gone(Incarnation(2)));
    one.hears(&expected);
    let refuses_puts = rail != RailKind::Shm;
    if refuses_puts {
        one.window.write(0, &[OURS; PAGES as usize * PAGE]);
    }
    other.says(stays, 3);
    other.hears(&[Told::Up(Incarnation(7)), Told::Gone(Incarnation(7))]);
    other.says(stays, 3);

    // An earlier incarnation that was never ended here gives way to the one that is named.
    let third = || {
        other.mesh.stop();
        node(goes, 3, name, &addresses, rail)
    };
    let third = third();
    third.admit(stays, 7);
    one.admit(goes, 3);
    one.mesh.wait_connected(LIMIT).unwrap();
    one.says(goes, 4);
    let mut of_one = vec![Told::Up(Incarnation(7))];
    of_one.extend(said(7, 4));
    third.hears(&of_one);

    // What the next incarnation says comes behind all that the forgotten one could have done.
    third.says(stays, 5);
    expected.push(Told::Up(Incarnation(3)));
    expected.extend(said(3, 5));
    one.hears(&expected);
    if refuses_puts {
        assert_eq!(one.bytes(), BTreeSet::from([OURS]), "over {rail:?}");
    }
    one.mesh.stop();
    third.mesh.stop();
}

#[test]
fn a_peer_that_nobody_knew_of_is_met_and_let_in() {
    for rail in [RailKind::Shm, RailKind::Tcp] {
        [0, 1].into_iter().for_each(|first| is_met(first, rail));
    }
}

#[test]
fn over_memory_lives_come_and_go() {
    [0, 1].into_iter().for_each(|stays| comes_again(stays, RailKind::Shm));
}

#[test]
fn over_sockets_lives_come_and_go() {
    [0, 1].into_iter().for_each(|stays| comes_again(stays, RailKind::Tcp));
}

#[test]
fn over_libfabric_lives_come_and_go() {
    if has_ofi() {
        [0, 1].into_iter().for_each(|stays| comes_again(stays, RailKind::Ofi));
    }
}
