//! Datagrams between the memberships of nodes, over all paths between two nodes.
//!
//! **Authentication.** A datagram counts only if it is sealed under a key of the cluster, is for
//! this node, and names this node's session. The session is random and chosen at each start, so
//! datagrams recorded before the start are worthless. A node that does not know a peer's session
//! sends a hello with its own. The peer answers with a hello that names the sender's session. A
//! session is accepted only from a datagram that names the receiver's session, because a hello may
//! be old. Of a node's sessions, that of the latest incarnation counts.
//!
//! **Paths.** Address `i` of a node communicates with address `i` of another. Datagrams are sent
//! over all paths, and the first copy counts. The one exception is the first answer to a turn
//! request, which is long.
//!
//! **Keys.** While one key of the cluster replaces another, datagrams that must arrive are sent
//! under both. All other datagrams are counted as unauthenticated and not answered.

pub(super) mod datagram;
mod seal;
mod window;

use std::{
    io,
    net::{SocketAddr, UdpSocket},
};

use plexus_base::{Incarnation, MAX_NODES, Nanos, NodeId};
use plexus_interconnect::mesh::Key;

use self::{
    datagram::{Head, Kind, LIMIT, MOST, SessionId},
    seal::SessionKey,
    window::Window,
};

/// The most datagrams taken from a socket before other work.
const AT_ONCE: usize = 64;

/// The minimum interval of hellos to a peer, so that replayed hellos do not cause many answers.
const HELLOS: Nanos = Nanos::from_ms(5);

/// The buffer size, enough for concurrent answers of all peers' voting files.
const RECEIVE_BUFFER: usize = 4 << 20;

const NO_SESSION: SessionId = [0; 16];

/// An authenticated datagram.
#[derive(Debug)]
pub(super) struct ReceivedDatagram {
    pub(super) from: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) kind: Kind,
    pub(super) body: Vec<u8>,
    pub(super) route: Route,
}

/// The path and key of a datagram, which are also used for its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Route {
    path: usize,
    key: u64,
}

struct ClusterKey {
    name: u64,
    key: Key,
    own: SessionKey,
}

/// The authenticated session of a peer.
struct Proved {
    session: SessionId,
    incarnation: Incarnation,
    keys: Vec<(u64, SessionKey)>,
    window: Window,
}

impl Proved {
    fn is_of(&self, head: &Head) -> bool {
        (self.session, self.incarnation) == (head.session, head.incarnation)
    }
}

#[derive(Default)]
struct Peer {
    addresses: Vec<SocketAddr>,
    proved: Option<Proved>,
    /// The counter of the last datagram sent to it.
    sent: u64,
    answered: Option<Nanos>,
    heard: Option<Nanos>,
}

/// The sockets of a node, and the state of its peers.
pub(super) struct Network {
    me: NodeId,
    incarnation: Incarnation,
    cluster: [u8; 16],
    session: SessionId,
    keys: Vec<ClusterKey>,
    sockets: Vec<UdpSocket>,
    peers: [Peer; MAX_NODES],
    unauthenticated: u64,
}

impl Network {
    pub(super) fn new(
        (me, incarnation): (NodeId, Incarnation),
        cluster: [u8; 16],
        session: SessionId,
        keys: Vec<Key>,
        sockets: Vec<UdpSocket>,
    ) -> io::Result<Self> {
        for socket in &sockets {
            socket.set_nonblocking(true)?;
            // Only root may exceed the system's limit. With a smaller buffer, more pieces are
            // requested again.
            if rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).is_err() {
                rustix::net::sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER)?;
            }
        }
        let peers = Default::default();
        let mut network =
            Self { me, incarnation, cluster, session, keys: Vec::new(), sockets, peers, unauthenticated: 0 };
        network.rekey(keys);
        Ok(network)
    }

    /// Sets the valid keys, newest first.
    pub(super) fn rekey(&mut self, keys: Vec<Key>) {
        let key = |key: Key| ClusterKey {
            name: seal::name(self.cluster, &key),
            own: SessionKey::draw(self.cluster, &key, self.me, self.incarnation, self.session),
            key,
        };
        self.keys = keys.into_iter().map(key).collect();
        let valid = |name: u64| self.keys.iter().any(|key| key.name == name);
        for proved in self.peers.iter_mut().filter_map(|peer| peer.proved.as_mut()) {
            proved.keys.retain(|(name, _)| valid(*name));
        }
    }

    /// Sets the addresses of a node.
    pub(super) fn set_addresses(&mut self, node: NodeId, addresses: Vec<SocketAddr>) {
        if let Some(peer) = self.peers.get_mut(node.index()).filter(|_| node != self.me) {
            peer.addresses = addresses;
        }
    }

    pub(super) fn sockets(&self) -> &[UdpSocket] {
        &self.sockets
    }

    pub(super) fn unauthenticated(&self) -> u64 {
        self.unauthenticated
    }

    /// Returns the names of the valid keys, newest first.
    pub(super) fn keys(&self) -> impl Iterator<Item = u64> {
        self.keys.iter().map(|key| key.name)
    }

    /// Returns the time of the last authenticated datagram of the node.
    pub(super) fn heard(&self, node: NodeId) -> Option<Nanos> {
        self.peers[node.index()].heard
    }

    /// As [`heard`](Self::heard), if that datagram was of this incarnation.
    pub(super) fn heard_of(&self, node: NodeId, incarnation: Incarnation) -> Option<Nanos> {
        let is_of = |proved: &Proved| proved.incarnation == incarnation;
        self.heard(node).filter(|_| self.peers[node.index()].proved.as_ref().is_some_and(is_of))
    }

    /// Sends over every path and under every key, or sends a hello while the peer's
    /// session is unknown.
    pub(super) fn send(&mut self, to: NodeId, kind: Kind, body: &[u8]) {
        match self.peers[to.index()].proved.as_ref().map(|proved| proved.session) {
            Some(echo) => self.deliver(to, kind, echo, body, None),
            None => self.deliver(to, Kind::Hello, NO_SESSION, &[], None),
        }
    }

    /// Sends over the path and under the key of a received datagram.
    pub(super) fn reply(&mut self, to: NodeId, kind: Kind, body: &[u8], route: Route) {
        if let Some(echo) = self.peers[to.index()].proved.as_ref().map(|proved| proved.session) {
            self.deliver(to, kind, echo, body, Some(route));
        }
    }

    fn deliver(&mut self, to: NodeId, kind: Kind, echo: SessionId, body: &[u8], route: Option<Route>) {
        assert!(body.len() <= MOST, "a body fits a datagram");
        let peer = &mut self.peers[to.index()];
        peer.sent += 1;
        let (session, incarnation, counter) = (self.session, self.incarnation, peer.sent);
        for key in self.keys.iter().filter(|key| route.is_none_or(|route| route.key == key.name)) {
            let head = Head { kind, from: self.me, to, key: key.name, session, echo, incarnation, counter };
            let bytes = key.own.seal(&head, body);
            let paths = self.sockets.iter().zip(&peer.addresses).enumerate();
            for (_, (socket, address)) in
                paths.filter(|(path, _)| route.is_none_or(|route| route.path == *path))
            {
                // Datagrams may be lost anyway.
                let _ = socket.send_to(&bytes, address);
            }
        }
    }

    /// Receives datagrams. Returns true if more may be waiting.
    pub(super) fn receive(&mut self, now: Nanos, out: &mut Vec<ReceivedDatagram>) -> bool {
        let mut more = false;
        let mut buffer = [0; LIMIT + 1];
        for path in 0..self.sockets.len() {
            let mut taken = 0;
            while taken < AT_ONCE {
                match self.sockets[path].recv(&mut buffer) {
                    Ok(length) => out.extend(self.take(path, &buffer[..length], now)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The error belongs to an earlier datagram.
                    Err(_) => {}
                }
                taken += 1;
            }
            more |= taken == AT_ONCE;
        }
        more
    }

    fn take(&mut self, path: usize, bytes: &[u8], now: Nanos) -> Option<ReceivedDatagram> {
        let opened = self.opened(bytes);
        let Some((head, body)) = opened else {
            self.unauthenticated += 1;
            return None;
        };
        if head.echo != self.session {
            self.greet(&head, now);
            return None;
        }
        let peer = &mut self.peers[head.from.index()];
        if peer.proved.as_ref().is_none_or(|proved| proved.incarnation < head.incarnation) {
            let (session, incarnation) = (head.session, head.incarnation);
            peer.proved = Some(Proved { session, incarnation, keys: Vec::new(), window: Window::default() });
        }
        // Otherwise the datagram is of an earlier incarnation.
        let proved = peer.proved.as_mut().filter(|proved| proved.is_of(&head))?;
        if proved.keys.iter().all(|(name, _)| *name != head.key) {
            let key = self.keys.iter().find(|key| key.name == head.key)?;
            let drawn = SessionKey::draw(self.cluster, &key.key, head.from, head.incarnation, head.session);
            proved.keys.push((head.key, drawn));
        }
        if !proved.window.is_first(head.counter) {
            return None;
        }
        peer.heard = Some(now);
        let Head { from, incarnation, kind, key, .. } = head;
        (kind != Kind::Hello).then_some(ReceivedDatagram {
            from,
            incarnation,
            kind,
            body,
            route: Route { path, key },
        })
    }

    /// Decrypts a datagram that a node of the cluster has sealed for this one.
    fn opened(&self, bytes: &[u8]) -> Option<(Head, Vec<u8>)> {
        let (head, sealed) = Head::decode(bytes).ok()?;
        let peer = &self.peers[head.from.index()];
        if head.to != self.me || head.from == self.me || peer.addresses.is_empty() {
            return None;
        }
        let known = peer.proved.as_ref().filter(|proved| proved.is_of(&head));
        let drawn = known.and_then(|proved| proved.keys.iter().find(|(name, _)| *name == head.key));
        let body = match drawn {
            Some((_, key)) => key.open(&head, sealed)?,
            None => {
                let key = self.keys.iter().find(|key| key.name == head.key)?;
                let key = SessionKey::draw(self.cluster, &key.key, head.from, head.incarnation, head.session);
                key.open(&head, sealed)?
            }
        };
        Some((head, body))
    }

    /// Sends this session to a node that does not know it. Its own session is not
    /// accepted yet.
    fn greet(&mut self, head: &Head, now: Nanos) {
        let peer = &mut self.peers[head.from.index()];
        if peer.answered.is_none_or(|at| now.since(at) >= HELLOS) {
            peer.answered = Some(now);
            self.deliver(head.from, Kind::Hello, head.session, &[], None);
        }
    }
}

#[cfg(test)]
mod tests;
