//! TCP rails behind a relay that are cut, refused or silent. Each is connected again by itself, and
//! every message arrives once and in order.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use plexus_fabric::{LANES, RailKind};
use plexus_interconnect::{RailState, mesh::Config};

use crate::{
    mesh::Node,
    meshes::{self, LIMIT, addresses, name, peer, until},
};

/// The configuration of node `me` of two; `there` are the addresses at which it expects the other.
fn config(me: u8, name: [u8; 16], here: &[SocketAddr], there: &[SocketAddr]) -> Config {
    let other = peer(1 - me, there, &[RailKind::Tcp], true);
    // Longer than any machine under load needs to connect again.
    Config { timeout: LIMIT, ..meshes::config(me, name, here, vec![other]) }
}

fn start(me: u8, name: [u8; 16], here: &[SocketAddr], there: &[SocketAddr]) -> Node {
    Node::start(config(me, name, here, there), 1)
}

/// Passes connections on to an address, until it is cut.
struct Relay {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    /// True: accepts connections and passes nothing on.
    mute: Arc<AtomicBool>,
}

impl Relay {
    fn to(address: SocketAddr, mute: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self {
            address: listener.local_addr().unwrap(),
            streams: Arc::default(),
            mute: Arc::new(AtomicBool::new(mute)),
        };
        let (streams, mute) = (relay.streams.clone(), relay.mute.clone());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                streams.lock().unwrap().push(near.try_clone().unwrap());
                if mute.load(Relaxed) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(address) else { continue };
                for stream in [&near, &far] {
                    stream.set_nodelay(true).unwrap();
                }
                streams.lock().unwrap().push(far.try_clone().unwrap());
                pass(near.try_clone().unwrap(), far.try_clone().unwrap());
                pass(far, near);
            }
        });
        relay
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            // The other end may have closed it already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read) = from.read(&mut buffer) {
            if read == 0 || to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

fn rails_up(node: &Node) -> usize {
    node.mesh.rails().iter().filter(|rail| rail.state != RailState::Down).count()
}

/// Sends numbered messages from `from` to the other node.
fn send(from: &Node, to: u8, sent: &mut u64, count: u64) {
    for _ in 0..count {
        from.send(to, *sent);
        *sent += 1;
    }
}

#[test]
fn a_cut_connection_is_made_again_and_nothing_is_lost() {
    let here = addresses(2);
    let relay = Relay::to(here[0], false);
    let name = name(here[0]);
    let nodes = [start(0, name, &here[..1], &here[1..]), start(1, name, &here[1..], &[relay.address])];
    nodes.iter().for_each(|node| node.mesh.wait_connected(LIMIT).unwrap());
    let mut sent = [0, 0];
    for round in 1..=10 {
        for half in 0..2 {
            send(&nodes[0], 1, &mut sent[0], 100);
            send(&nodes[1], 0, &mut sent[1], 100);
            if half == 0 {
                relay.cut();
            }
        }
        until("all messages", || {
            nodes[0].seen.load(Relaxed) == sent[1] && nodes[1].seen.load(Relaxed) == sent[0]
        });
        assert_eq!(sent, [round * 200; 2]);
    }
    let generation = nodes[1].mesh.rails()[0].generation;
    assert!(generation > 1, "the rail was never connected again");
    assert!(nodes.iter().all(|node| node.gone.load(Relaxed) == 0));
}

#[test]
fn a_silent_path_delays_nothing_and_joins_later() {
    let here = addresses(4);
    let (ours, theirs) = here.split_at(2);
    let relay = Relay::to(ours[1], true);
    let name = name(here[0]);
    let nodes = [start(0, name, ours, theirs), start(1, name, theirs, &[ours[0], relay.address])];
    nodes.iter().for_each(|node| node.mesh.wait_connected(LIMIT).unwrap());
    assert!(nodes.iter().all(|node| rails_up(node) == 1));
    let mut sent = 0;
    send(&nodes[0], 1, &mut sent, 100);
    until("all messages", || nodes[1].seen.load(Relaxed) == 100);
    let silent = format!("no answer at {}", relay.address);
    until("the problem of the silent path", || {
        nodes[1].mesh.problems().values().any(|why| why.starts_with(&silent))
    });

    relay.mute.store(false, Relaxed);
    until("the second path", || nodes.iter().all(|node| rails_up(node) == 2));
    relay.cut();
    send(&nodes[0], 1, &mut sent, 100);
    until("all messages", || nodes[1].seen.load(Relaxed) == 200);
    assert!(nodes.iter().all(|node| node.gone.load(Relaxed) == 0));
}

#[test]
fn no_worker_waits_for_the_dial_of_another() {
    let (here, listener) = (addresses(1), TcpListener::bind("127.0.0.1:0").unwrap());
    let config = config(1, name(here[0]), &here, &[listener.local_addr().unwrap()]);
    let _node = Node::start(config, 3);
    // No connection is answered, so each ends after its time. Nevertheless those of all lanes and
    // workers are open at the same time: no worker closes one to dial for another.
    listener.set_nonblocking(true).unwrap();
    let mut calls: Vec<TcpStream> = Vec::new();
    until("a connection of each lane and worker at the same time", || {
        while let Ok((call, _)) = listener.accept() {
            call.set_nonblocking(true).unwrap();
            calls.push(call);
        }
        calls.retain_mut(is_open);
        calls.len() == 3 * LANES
    });
}

/// Reads what has come and returns false if the other side has closed the connection.
fn is_open(call: &mut TcpStream) -> bool {
    let mut bytes = [0; 256];
    loop {
        match call.read(&mut bytes) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}
