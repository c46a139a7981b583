//! Two nodes whose datagrams the test delivers, records and repeats.

use std::net::Ipv4Addr;

use plexus_interconnect::mesh::KEY;

use super::*;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const CLUSTER: [u8; 16] = [9; 16];
const NOW: Nanos = Nanos(1_000_000_000);

fn key(byte: u8) -> Key {
    Key::new([byte; KEY])
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// A node, and the socket that receives what it sends.
struct Node {
    network: Network,
    out: UdpSocket,
}

impl Node {
    fn new(me: NodeId, incarnation: u64, session: u8, keys: &[u8]) -> Self {
        let keys = keys.iter().map(|byte| key(*byte)).collect();
        let network =
            Network::new((me, Incarnation(incarnation)), CLUSTER, [session; 16], keys, vec![socket()]);
        let (mut network, out) = (network.unwrap(), socket());
        network.place(if me == A { B } else { A }, vec![out.local_addr().unwrap()]);
        Self { network, out }
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        let mut buffer = [0; LIMIT + 1];
        std::iter::from_fn(|| self.out.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec()))
            .collect()
    }

    fn says(&mut self, to: NodeId, what: &[u8]) -> Vec<Vec<u8>> {
        self.network.send(to, Kind::Report, what);
        self.sent()
    }

    fn hears(&mut self, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
        datagrams
            .iter()
            .filter_map(|bytes| self.network.take(0, bytes, NOW))
            .map(|received| received.body)
            .collect()
    }
}

/// Exchanges hellos until each node knows the other's session.
fn meet(a: &mut Node, b: &mut Node) {
    let hello = a.says(B, b"lost: the session of the other is not known");
    assert_eq!(b.hears(&hello), [b""; 0]);
    let answer = b.sent();
    assert_eq!((hello.len(), answer.len()), (1, 1));
    assert_eq!(a.hears(&answer), [b""; 0]);
    assert_eq!(a.sent().len(), 0, "a hello that knows the session is not answered");
}

#[test]
fn nodes_meet_and_hear_each_other() {
    let (mut a, mut b) = (Node::new(A, 5, 1, &[1]), Node::new(B, 6, 2, &[1]));
    meet(&mut a, &mut b);
    let datagram = a.says(B, b"a report");
    let received = b.network.take(0, &datagram[0], NOW).unwrap();
    assert_eq!((received.from, received.incarnation, received.kind), (A, Incarnation(5), Kind::Report));
    assert_eq!(received.body, b"a report");
    assert_eq!(b.network.heard(A), Some(NOW));
    let back = b.says(A, b"another");
    assert_eq!(a.hears(&back), [b"another"]);
    b.network.reply(A, Kind::Answer, b"an answer", received.route);
    let back = b.sent();
    assert_eq!(a.hears(&back), [b"an answer"]);
    assert_eq!((a.network.unauthenticated(), b.network.unauthenticated()), (0, 0));
}

#[test]
fn recorded_datagrams_are_worthless() {
    let (mut a, mut b) = (Node::new(A, 5, 1, &[1]), Node::new(B, 6, 2, &[1]));
    meet(&mut a, &mut b);
    let mut recorded: Vec<Vec<u8>> = (0..200).flat_map(|_| a.says(B, b"a report")).collect();
    recorded.extend({
        // These include hellos of this incarnation.
        a.network.peers[B.index()].proved = None;
        a.says(B, b"")
    });
    let heard = b.hears(&recorded);
    assert_eq!(heard.len(), 200);
    assert_eq!(b.hears(&recorded).len(), 0, "each counts once");
    b.sent();
    let mut next = Node::new(B, 7, 3, &[1]);
    assert_eq!(next.hears(&recorded).len(), 0);
    assert_eq!(next.network.heard(A), None, "it may be long gone");
    let answers = next.sent();
    assert_eq!(answers.len(), 1, "many are answered once");
    // The answer does not make the node accept the old session.
    let mut later = Node::new(A, 6, 4, &[1]);
    assert_eq!(later.hears(&answers).len(), 0);
    assert_eq!(later.network.heard(B), None);
}

#[test]
fn the_latest_incarnation_counts_once_it_is_proved() {
    let (mut a, mut b) = (Node::new(A, 5, 1, &[1]), Node::new(B, 6, 2, &[1]));
    meet(&mut a, &mut b);
    let mut again = Node::new(A, 7, 3, &[1]);
    let hello = again.says(B, b"");
    b.network.take(0, &hello[0], NOW + HELLOS);
    let datagram = a.says(B, b"of the earlier");
    assert_eq!(b.hears(&datagram), [b"of the earlier"], "a hello proves nothing");
    let answer = b.sent();
    again.hears(&answer);
    let datagram = again.says(B, b"of the later");
    assert_eq!(b.hears(&datagram), [b"of the later"]);
    let late = a.says(B, b"too late");
    assert_eq!(b.hears(&late), [b""; 0]);
    assert_eq!(b.network.unauthenticated(), 0);
}

#[test]
fn no_datagram_is_lost_while_a_key_is_replaced() {
    let (mut a, mut b) = (Node::new(A, 5, 1, &[1]), Node::new(B, 6, 2, &[1]));
    meet(&mut a, &mut b);
    for (at_a, at_b, copies) in
        [(&[2, 1][..], &[1][..], 2), (&[2, 1], &[2, 1], 2), (&[2], &[2, 1], 1), (&[2], &[2], 1)]
    {
        a.network.rekey(at_a.iter().map(|byte| key(*byte)).collect());
        b.network.rekey(at_b.iter().map(|byte| key(*byte)).collect());
        let datagrams = a.says(B, b"a report");
        assert_eq!((datagrams.len(), b.hears(&datagrams).len()), (copies, 1));
        let datagrams = b.says(A, b"a report");
        assert_eq!(a.hears(&datagrams).len(), 1);
    }
    // The removed key opens no datagram.
    let mut old = Node::new(A, 8, 3, &[1]);
    let unauthenticated = b.network.unauthenticated();
    let datagrams = old.says(B, b"");
    assert_eq!(b.hears(&datagrams).len(), 0);
    assert_eq!((b.network.unauthenticated(), b.sent().len()), (unauthenticated + 1, 0));
}

#[test]
fn datagrams_for_other_nodes_or_of_unknown_nodes_are_unauthenticated() {
    let (mut a, mut b) = (Node::new(A, 5, 1, &[1]), Node::new(B, 6, 2, &[1]));
    meet(&mut a, &mut b);
    let own = a.says(B, b"a report");
    assert_eq!(a.hears(&own).len(), 0, "it is not for the sender");
    let mut other = Node::new(NodeId(3), 6, 2, &[1]);
    assert_eq!(other.hears(&own).len(), 0, "nor for a third node with the same session");
    b.network.place(A, Vec::new());
    assert_eq!(b.hears(&own).len(), 0, "a node without addresses is unknown");
    let unauthenticated = [&a, &b, &other].map(|node| node.network.unauthenticated());
    assert_eq!(unauthenticated, [1, 1, 1]);
}

#[test]
fn hostile_datagrams_do_no_harm() {
    let (mut a, mut b) = (Node::new(A, 5, 1, &[1]), Node::new(B, 6, 2, &[1]));
    meet(&mut a, &mut b);
    let good = a.says(B, &[7; 100]).remove(0);
    plexus_sim::hostile(std::slice::from_ref(&good), |bytes| {
        let taken = b.network.take(0, bytes, NOW).is_some();
        assert!(!taken || *bytes == good);
    });
}
