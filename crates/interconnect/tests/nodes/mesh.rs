//! Nodes that connect, exchange messages, sleep and end, over every rail.

use std::{
    collections::BTreeMap,
    io::Write,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use plexus_base::{NodeId, Waiting, WorkerId};
use plexus_fabric::{Lost, Put, RailKind, Window, WindowId};
use plexus_interconnect::{
    Channel, Kind, Message, Net, RailState, Reason, Service, Signal,
    mesh::{Config, Mesh},
};

use crate::meshes::{LIMIT, addresses, config, has_ofi, name, noise, peer, until};

/// Answers calls with their payload, counts messages, and calls when its task requests it.
#[derive(Default)]
pub(crate) struct Echo {
    seen: Arc<AtomicU64>,
    gone: Arc<AtomicU64>,
    waiting: BTreeMap<u64, Arc<Signal>>,
    next: u64,
}

pub(crate) enum Task {
    Call(NodeId, Vec<u8>, Arc<Signal>),
    Send(NodeId, Channel, Vec<u8>),
    Put(NodeId, u64, Vec<u8>),
}

impl Service for Echo {
    type Task = Task;

    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        if message.kind == Kind::Request && message.tag != 0 {
            net.answer(message, message.payload).unwrap();
        } else {
            let expected = self.seen.fetch_add(1, Relaxed) as u32;
            assert_eq!(message.payload[..4], expected.to_le_bytes(), "out of order");
        }
    }

    fn task(&mut self, net: &mut Net, task: Task) {
        match task {
            Task::Call(to, payload, signal) => {
                self.next += 1;
                match net.call(to, Channel::Services, &payload, self.next) {
                    Ok(()) => drop(self.waiting.insert(self.next, signal)),
                    Err(_) => signal.set(u64::from(u32::MAX)),
                }
            }
            Task::Send(to, channel, payload) => net.send(to, channel, Kind::Request, 0, &payload).unwrap(),
            Task::Put(to, offset, data) => {
                let put = Put { window: WindowId(7), offset, generation: 0, data: &data };
                let number = (offset / 4096) as u32;
                net.put(to, Channel::CacheBlocks, Kind::Reply, 0, put, &number.to_le_bytes()).unwrap();
            }
        }
    }

    fn reply(&mut self, _: &mut Net, _: NodeId, _: Channel, token: u64, payload: &[u8]) {
        self.waiting.remove(&token).unwrap().set(payload.len() as u64);
    }

    fn call_failed(&mut self, _: &mut Net, _: NodeId, _: Channel, token: u64) {
        self.waiting.remove(&token).unwrap().set(u64::from(u32::MAX));
    }

    fn peer_gone(&mut self, _: &mut Net, peer: NodeId, why: &Lost) {
        println!("{peer} is gone: {why}");
        self.gone.fetch_add(1, Relaxed);
    }
}

/// A node whose workers share their counts.
pub(crate) struct Node {
    pub(crate) mesh: Arc<Mesh<Echo>>,
    /// The messages that came, which are no calls.
    pub(crate) seen: Arc<AtomicU64>,
    pub(crate) gone: Arc<AtomicU64>,
    window: Arc<Window>,
    address: SocketAddr,
}

impl Node {
    pub(crate) fn start(config: Config, workers: u8) -> Self {
        let window = Arc::new(Window::create(WindowId(7), 1 << 20, 0).unwrap());
        let (seen, gone) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let service = |_| Echo { seen: seen.clone(), gone: gone.clone(), ..Echo::default() };
        let (services, address) = ((0..workers).map(service).collect(), config.listen[0]);
        let config = Config { windows: vec![window.clone()], ..config };
        Self { mesh: Mesh::start(config, services, |_| ()).unwrap(), seen, gone, window, address }
    }

    /// Sends a message with this number, which is the next one to this peer.
    pub(crate) fn send(&self, to: u8, number: u64) {
        let mut payload = (number as u32).to_le_bytes().to_vec();
        payload.resize(4 + (number as usize * 37) % 3000, 1);
        self.mesh.workers()[0].submit(Task::Send(NodeId(to), Channel::Application1, payload));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.mesh.stop();
    }
}

/// The rail between the nodes, and whether it is encrypted.
type RailUnderTest = (RailKind, bool);

fn rails_under_test() -> Vec<RailUnderTest> {
    let mut rails_under_test = vec![(RailKind::Shm, false), (RailKind::Tcp, false), (RailKind::Tcp, true)];
    if has_ofi() {
        rails_under_test.push((RailKind::Ofi, false));
    }
    rails_under_test
}

fn cluster(nodes: u8, workers: u8, (rail, encrypt): RailUnderTest, waiting: Waiting) -> Vec<Node> {
    cluster_of(nodes, workers, (&[rail], encrypt), waiting, None)
}

/// Starts a cluster with a provider of libfabric.
fn cluster_of(
    nodes: u8,
    workers: u8,
    (rails, encrypt): (&[RailKind], bool),
    waiting: Waiting,
    provider: Option<&str>,
) -> Vec<Node> {
    let addresses = addresses(nodes.into());
    let name = name(addresses[0]);
    let started: Vec<Node> = (0..nodes)
        .map(|me| {
            let peer = |id: u8| peer(id, &addresses[usize::from(id)..][..1], rails, encrypt);
            let peers = (0..nodes).filter(|peer| *peer != me).map(peer).collect();
            let config = Config {
                waiting,
                ofi_provider: provider.map(String::from),
                ..config(me, name, &addresses[usize::from(me)..][..1], peers)
            };
            Node::start(config, workers)
        })
        .collect();
    for node in &started {
        node.mesh.wait_connected(LIMIT).unwrap();
    }
    started
}

fn call(node: &Node, worker: u8, to: u8, payload: Vec<u8>, signal: &Arc<Signal>) -> u64 {
    let worker = &node.mesh.workers()[usize::from(worker)];
    worker.push(Task::Call(NodeId(to), payload, signal.clone()));
    worker.wait(signal)
}

fn every_rail(test: impl Fn(RailUnderTest, Waiting)) {
    for way in rails_under_test() {
        for waiting in Waiting::ALL {
            println!("over {way:?}, {waiting:?}");
            test(way, waiting);
        }
    }
}

#[test]
fn calls_of_any_length_are_answered() {
    every_rail(|way, waiting| {
        let nodes = cluster(3, 2, way, waiting);
        let signal = Arc::new(Signal::new());
        for round in 0..50usize {
            for length in [0, 1, 40, 41, 16_000, 20_000, 300_000] {
                let (from, worker) = (round % 3, (round % 2) as u8);
                let to = ((from + 1 + round % 2) % 3) as u8;
                assert_eq!(call(&nodes[from], worker, to, vec![7; length], &signal), length as u64);
            }
        }
    });
}

#[test]
fn many_threads_call_through_one_worker() {
    every_rail(|way, waiting| {
        let nodes = cluster(2, 1, way, waiting);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let nodes = &nodes;
                scope.spawn(move || {
                    let signal = Arc::new(Signal::new());
                    for round in 0..300 {
                        let length = (thread * 1000 + round) as u64;
                        let (from, payload) = (thread % 2, vec![1; length as usize]);
                        assert_eq!(call(&nodes[from], 0, (1 - from) as u8, payload, &signal), length);
                    }
                });
            }
        });
    });
}

#[test]
fn a_flood_in_one_direction_arrives_in_order_and_memory_stays_bounded() {
    every_rail(|way, waiting| {
        let nodes = cluster(2, 1, way, waiting);
        (0..5_000).for_each(|number| nodes[0].send(1, number));
        until("the last message", || nodes[1].seen.load(Relaxed) == 5_000);
    });
}

#[test]
fn puts_are_in_place_when_their_message_comes() {
    every_rail(|way, waiting| {
        let nodes = cluster(2, 1, way, waiting);
        for number in 0..200u64 {
            let data = vec![number as u8 + 1; 4096];
            nodes[0].mesh.workers()[0].submit(Task::Put(NodeId(1), number * 4096, data));
        }
        until("the last put", || nodes[1].seen.load(Relaxed) == 200);
        let mut all = vec![0; 200 * 4096];
        nodes[1].window.read(0, &mut all);
        for (number, block) in all.chunks(4096).enumerate() {
            assert!(block.iter().all(|byte| *byte == number as u8 + 1), "block {number}");
        }
    });
}

#[test]
fn the_end_of_a_peer_ends_its_calls_and_reaches_every_worker() {
    every_rail(|way, waiting| {
        let mut nodes = cluster(3, 2, way, waiting);
        drop(nodes.pop());
        until("the notice of the lost peer", || nodes.iter().all(|node| node.gone.load(Relaxed) == 2));
        let signal = Arc::new(Signal::new());
        assert_eq!(call(&nodes[0], 0, 2, vec![1], &signal), u64::from(u32::MAX), "no link any more");
        assert_eq!(call(&nodes[0], 1, 1, vec![1; 5], &signal), 5, "the others go on");
    });
}

#[test]
fn unauthenticated_connections_are_counted_and_nothing_else() {
    for way in rails_under_test() {
        let nodes = cluster(2, 1, way, Waiting::Adaptive);
        for number in 0..20 {
            let mut stream = TcpStream::connect(nodes[0].address).unwrap();
            // The node may close before all of it is written.
            let _ = stream.write_all(&noise(number * 10));
        }
        until("twenty unauthenticated connections", || nodes[0].mesh.unauthenticated() == 20);
        let signal = Arc::new(Signal::new());
        assert_eq!(call(&nodes[1], 0, 0, vec![1; 9], &signal), 9);
    }
}

/// The final rails of each of two nodes to the other, when both report the problem `expected`.
fn rails_of_two(encrypt: bool, provider: &str, expected: &str) -> Vec<Vec<(RailKind, RailState, Reason)>> {
    let both = [RailKind::Ofi, RailKind::Tcp];
    let nodes = cluster_of(2, 1, (&both, encrypt), Waiting::Adaptive, Some(provider));
    let signal = Arc::new(Signal::new());
    assert_eq!(call(&nodes[0], 0, 1, vec![1; 9], &signal), 9);
    let tells = |node: &Node| node.mesh.problems().values().any(|problem| problem.contains(expected));
    until(expected, || nodes.iter().all(tells));
    let rails = |node: &Node| {
        node.mesh.rails().into_iter().map(|rail| (rail.kind, rail.state, rail.reason)).collect()
    };
    nodes.iter().map(rails).collect()
}

#[test]
fn tcp_carries_everything_without_libfabric_and_the_reason_is_shown() {
    let tcp = (RailKind::Tcp, RailState::Active, Reason::Best);
    for rails in rails_of_two(false, "none-such", "libfabric ") {
        assert_eq!(rails, [(RailKind::Ofi, RailState::Down, Reason::NotConnected), tcp]);
    }
    for rails in rails_of_two(true, "tcp", "ofi is not used, because it cannot encrypt") {
        assert_eq!(rails, [tcp]);
    }
}

#[test]
fn an_address_in_use_is_a_clear_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = config(0, [3; 16], &[taken.local_addr().unwrap()], Vec::new());
    let Err(error) = Mesh::start(config, vec![Echo::default()], |_: WorkerId| ()) else {
        panic!("two nodes listen at one address");
    };
    let line = error.to_string();
    assert!(
        line.contains(&taken.local_addr().unwrap().to_string()) && line.contains("cluster.toml"),
        "{line}"
    );
}
