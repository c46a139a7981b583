//! Admission by incarnation: an ended incarnation never comes back, the next one may.

use std::{
    cell::Cell,
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use plexus_base::{Incarnation, NodeId};
use plexus_fabric::{Lost, Put, RailKind, Window, WindowId};
use plexus_interconnect::{
    Channel, Kind, Message, Net, Service,
    mesh::{Admission, Config, Mesh, MeshError, Peer},
};

use crate::meshes::{LIMIT, addresses, config, has_ofi, name, peer, until};

const WINDOW: WindowId = WindowId(7);

/// The puts of a page requested at once: more than are sent before the peer forgets their sender.
const PUTS: u64 = 8000;
const PAGE: usize = 4096;
const PAGES: u64 = 16;

/// The byte that is put, and the byte that overwrites it once the sender must not put any more.
const LATE: u8 = 0x11;
const OURS: u8 = 0xee;

/// The messages that a node received, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Received {
    Up(Incarnation),
    Said(Incarnation, u8),
    Gone(Incarnation),
}

#[derive(Default)]
struct Listener(Arc<Mutex<Vec<Received>>>);

impl Listener {
    fn note(&self, told: Received) {
        self.0.lock().unwrap().push(told);
    }
}

/// A task of a node towards its only peer.
enum Task {
    /// Sends this number: as a message, as a datagram and as a call.
    Say(NodeId, u8),
    /// Puts into its window.
    Put(NodeId),
}

impl Service for Listener {
    type Task = Task;

    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        self.note(Received::Said(net.incarnation(message.from).unwrap(), message.payload[0]));
    }

    /// Sends nothing if the peer is not connected.
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
        self.note(Received::Up(net.incarnation(peer).unwrap()));
    }

    fn peer_gone(&mut self, net: &mut Net, peer: NodeId, _: &Lost) {
        self.note(Received::Gone(net.incarnation(peer).unwrap()));
    }
}

struct Node {
    mesh: Arc<Mesh<Listener>>,
    told: Arc<Mutex<Vec<Received>>>,
    /// The number of received messages that the test has checked.
    checked: Cell<usize>,
    window: Arc<Window>,
}

/// The arrivals of a sent number, one for each way of sending, in the order of one lane.
fn arrivals(incarnation: u64, what: u8) -> [Received; 3] {
    [(); 3].map(|()| Received::Said(Incarnation(incarnation), what))
}

/// The start of a link to this incarnation, and the arrivals of its first number.
fn up_and_arrivals(incarnation: u64, what: u8) -> Vec<Received> {
    [&[Received::Up(Incarnation(incarnation))][..], &arrivals(incarnation, what)].concat()
}

impl Node {
    fn send_number(&self, to: u8, what: u8) {
        self.mesh.workers()[0].submit(Task::Say(NodeId(to), what));
    }

    fn puts(&self, to: u8) {
        self.mesh.workers()[0].submit(Task::Put(NodeId(to)));
    }

    /// The different bytes in its window.
    fn bytes(&self) -> BTreeSet<u8> {
        let mut all = vec![0; PAGES as usize * PAGE];
        self.window.read(0, &mut all);
        all.into_iter().collect()
    }

    fn admit(&self, peer: u8, incarnation: u64) {
        self.mesh.admit(NodeId(peer), Incarnation(incarnation)).unwrap();
    }

    /// Waits until this byte stands somewhere in its window.
    fn wait_for_byte(&self, byte: u8) {
        until("a put", || self.bytes().contains(&byte));
    }

    /// Waits until it has received exactly these messages since the last check.
    fn receives(&self, expected: &[Received]) {
        let end = Instant::now() + LIMIT;
        let first = self.checked.get();
        while self.told.lock().unwrap()[first..] != *expected {
            assert!(Instant::now() < end, "{:?} instead of {expected:?}", self.told.lock().unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
        self.checked.set(first + expected.len());
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
    let told = Arc::<Mutex<Vec<Received>>>::default();
    let window = Arc::new(Window::create(WINDOW, PAGES as usize * PAGE, 0).unwrap());
    let config = Config {
        incarnation: Incarnation(incarnation),
        admission: Admission::Named,
        windows: vec![window.clone()],
        ..config(me, name, &addresses[usize::from(me)..][..1], peers)
    };
    let mesh = Mesh::start(config, vec![Listener(told.clone())], |_| ()).unwrap();
    Node { mesh, told, checked: Cell::new(0), window }
}

/// The name of a cluster that no other test has, and the addresses of its nodes.
fn cluster() -> ([u8; 16], Vec<SocketAddr>) {
    let addresses = addresses(2);
    (name(addresses[0]), addresses)
}

/// `first` starts before either node knows the other.
fn is_met(first: u8, rail: RailKind) {
    let (name, addresses) = cluster();
    let one = node_with(first, 7, name, &addresses, vec![]);
    let other = node(1 - first, 1, name, &addresses, rail);
    other.admit(first, 7);
    assert!(matches!(one.mesh.admit(NodeId(1 - first), Incarnation(1)), Err(MeshError::Unknown)));
    one.mesh.add_peer(self::other(first, &addresses, rail));
    assert!(
        one.mesh.connected().is_empty() && other.mesh.connected().is_empty(),
        "a known peer is not admitted yet"
    );
    one.admit(1 - first, 1);
    other.mesh.wait_connected(LIMIT).unwrap();
    other.send_number(first, 1);
    one.receives(&up_and_arrivals(1, 1));
    // Adding a known peer again changes nothing.
    one.mesh.add_peer(self::other(first, &addresses, rail));
    assert_eq!(one.mesh.connected().len(), 1);
    other.send_number(first, 2);
    one.receives(&arrivals(1, 2));
    one.mesh.stop();
    other.mesh.stop();
}

#[test]
fn a_message_behind_the_drop_of_a_link_waits_for_the_next_incarnation() {
    let (name, addresses) = cluster();
    let one = node(0, 7, name, &addresses, RailKind::Tcp);
    let mut other = node(1, 1, name, &addresses, RailKind::Tcp);
    other.admit(0, 7);
    one.admit(1, 1);
    // Another thread may drop the link earlier, so once proves little.
    for next in 2..10 {
        one.mesh.wait_connected(LIMIT).unwrap();
        one.mesh.forget(NodeId(1), Incarnation(next - 1));
        one.mesh.workers()[0].with(|_, net| {
            net.send_to_member(NodeId(1), Channel::Services, Kind::Request, &[next as u8]);
            assert_eq!(net.early(NodeId(1)).count(), 1);
        });
        other.mesh.stop();
        other = node(1, next, name, &addresses, RailKind::Tcp);
        other.admit(0, 7);
        one.admit(1, next);
        other.receives(&[Received::Up(Incarnation(7)), Received::Said(Incarnation(7), next as u8)]);
    }
    one.mesh.stop();
    other.mesh.stop();
}

/// `stays` goes on while the other node ends and comes again.
fn comes_again(stays: u8, rail: RailKind) {
    let (name, addresses) = cluster();
    let goes = 1 - stays;
    let one = node(stays, 7, name, &addresses, rail);
    let other = node(goes, 1, name, &addresses, rail);
    other.admit(stays, 7);
    assert!(
        one.mesh.connected().is_empty() && other.mesh.connected().is_empty(),
        "one end alone must not connect"
    );
    one.admit(goes, 1);
    one.mesh.wait_connected(LIMIT).unwrap();
    other.mesh.wait_connected(LIMIT).unwrap();
    other.send_number(stays, 1);
    one.receives(&up_and_arrivals(1, 1));

    // The node ends and comes in its next incarnation, which is not yet admitted.
    other.mesh.stop();
    drop(other);
    one.receives(&[Received::Gone(Incarnation(1))]);
    let other = node(goes, 2, name, &addresses, rail);
    other.admit(stays, 7);
    one.admit(goes, 1);
    assert_eq!(one.mesh.connected().len(), 0, "an ended incarnation is not admitted again");
    one.admit(goes, 2);
    other.mesh.wait_connected(LIMIT).unwrap();
    other.send_number(stays, 2);
    one.receives(&up_and_arrivals(2, 2));

    // A node that is forgotten in the middle of its puts is not read any more, and learns it.
    other.puts(stays);
    one.wait_for_byte(LATE);
    one.mesh.forget(NodeId(goes), Incarnation(2));
    one.receives(&[Received::Gone(Incarnation(2))]);
    let refuses_puts = rail != RailKind::Shm;
    if refuses_puts {
        one.window.write(0, &[OURS; PAGES as usize * PAGE]);
    }
    other.send_number(stays, 3);
    other.receives(&[Received::Up(Incarnation(7)), Received::Gone(Incarnation(7))]);
    other.send_number(stays, 3);

    // An earlier incarnation that never ended here gives way to the admitted one.
    other.mesh.stop();
    let third = node(goes, 3, name, &addresses, rail);
    third.admit(stays, 7);
    one.admit(goes, 3);
    one.mesh.wait_connected(LIMIT).unwrap();
    one.send_number(goes, 4);
    third.receives(&up_and_arrivals(7, 4));

    // The messages of the next incarnation come after everything the forgotten one could do.
    third.send_number(stays, 5);
    one.receives(&up_and_arrivals(3, 5));
    if refuses_puts {
        assert_eq!(one.bytes(), BTreeSet::from([OURS]), "over {rail:?}");
    }
    one.mesh.stop();
    third.mesh.stop();
}

#[test]
fn an_unknown_peer_is_added_and_admitted() {
    for rail in [RailKind::Shm, RailKind::Tcp] {
        [0, 1].into_iter().for_each(|first| is_met(first, rail));
    }
}

#[test]
fn incarnations_come_and_go_over_memory() {
    [0, 1].into_iter().for_each(|stays| comes_again(stays, RailKind::Shm));
}

#[test]
fn incarnations_come_and_go_over_sockets() {
    [0, 1].into_iter().for_each(|stays| comes_again(stays, RailKind::Tcp));
}

#[test]
fn incarnations_come_and_go_over_libfabric() {
    if has_ofi() {
        [0, 1].into_iter().for_each(|stays| comes_again(stays, RailKind::Ofi));
    }
}
