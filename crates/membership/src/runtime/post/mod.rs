//! Datagrams between the memberships of nodes, over every path that there is between two.
//!
//! **Who is listened to.** A datagram is taken only if it was sealed under a key of the cluster, for this node, and names the random session
//! that this node chose when it started: so it was sent since then, and whatever was recorded before is worth nothing. A node that has not yet
//! learned of a peer's session sends hellos, which carry its own; who gets one that does not name its session answers with a hello that names the
//! sender's. A session is believed only when it comes with one's own, never from a hello that may be old. Of a node's sessions the one of
//! the latest incarnation counts.
//!
//! **Paths.** Address `i` of a node is joined with address `i` of another. Reports go over all of them, and so does everything but the first answer to
//! who asks for a turn, which is long; the first copy counts.
//!
//! **Keys.** While one key of the cluster replaces another, what must arrive is sent under both. Everything else is counted as a
//! stranger's and answered with nothing.

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
    datagram::{Head, Kind, LIMIT, MOST, Session},
    seal::SessionKey,
    window::Window,
};

/// Most datagrams taken from a socket before other things are seen to.
const AT_ONCE: usize = 64;

/// A hello is answered at most this often for each peer: a recording of many must not make many.
const HELLOS: Nanos = Nanos::from_ms(5);

/// Answers of all peers' voting files may come at one time.
const RECEIVE_BUFFER: usize = 4 << 20;

const NO_SESSION: Session = [0; 16];

/// A datagram that counts.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) from: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) kind: Kind,
    pub(super) body: Vec<u8>,
    pub(super) way: Way,
}

/// How a datagram came, and an answer to it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Way {
    path: usize,
    key: u64,
}

struct ClusterKey {
    name: u64,
    key: Key,
    own: SessionKey,
}

/// What a peer has proved.
struct Proved {
    session: Session,
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
    /// The counter of the last datagram to it.
    sent: u64,
    answered: Option<Nanos>,
    heard: Option<Nanos>,
}

/// The sockets of a node, and what it knows of its peers.
pub(super) struct Post {
    me: NodeId,
    incarnation: Incarnation,
    cluster: [u8; 16],
    session: Session,
    keys: Vec<ClusterKey>,
    sockets: Vec<UdpSocket>,
    peers: [Peer; MAX_NODES],
    strangers: u64,
}

impl Post {
    pub(super) fn new(
        (me, incarnation): (NodeId, Incarnation),
        cluster: [u8; 16],
        session: Session,
        keys: Vec<Key>,
        sockets: Vec<UdpSocket>,
    ) -> io::Result<Self> {
        for socket in &sockets {
            socket.set_nonblocking(true)?;
            // Only root may have more than the system's limit; with less, more is asked for twice.
            if rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).is_err() {
                rustix::net::sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER)?;
            }
        }
        let peers = Default::default();
        let mut post =
            Self { me, incarnation, cluster, session, keys: Vec::new(), sockets, peers, strangers: 0 };
        post.rekey(keys);
        Ok(post)
    }

    /// These keys are valid from now on, the newest first.
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

    /// Where a node is.
    pub(super) fn place(&mut self, node: NodeId, addresses: Vec<SocketAddr>) {
        if let Some(peer) = self.peers.get_mut(node.index()).filter(|_| node != self.me) {
            peer.addresses = addresses;
        }
    }

    pub(super) fn sockets(&self) -> &[UdpSocket] {
        &self.sockets
    }

    pub(super) fn strangers(&self) -> u64 {
        self.strangers
    }

    /// The names of the keys that are valid, the newest first.
    pub(super) fn keys(&self) -> impl Iterator<Item = u64> {
        self.keys.iter().map(|key| key.name)
    }

    /// When a datagram of the node that counts last came.
    pub(super) fn heard(&self, node: NodeId) -> Option<Nanos> {
        self.peers[node.index()].heard
    }

    /// Sends over every path and under every key; a hello instead, while the peer's session is not known.
    pub(super) fn send(&mut self, to: NodeId, kind: Kind, body: &[u8]) {
        match self.peers[to.index()].proved.as_ref().map(|proved| proved.session) {
            Some(echo) => self.deliver(to, kind, echo, body, None),
            None => self.deliver(to, Kind::Hello, NO_SESSION, &[], None),
        }
    }

    /// Sends the way that something came.
    pub(super) fn reply(&mut self, to: NodeId, kind: Kind, body: &[u8], way: Way) {
        if let Some(echo) = self.peers[to.index()].proved.as_ref().map(|proved| proved.session) {
            self.deliver(to, kind, echo, body, Some(way));
        }
    }

    fn deliver(&mut self, to: NodeId, kind: Kind, echo: Session, body: &[u8], way: Option<Way>) {
        assert!(body.len() <= MOST, "a body fits a datagram");
        let peer = &mut self.peers[to.index()];
        peer.sent += 1;
        let (session, incarnation, counter) = (self.session, self.incarnation, peer.sent);
        for key in self.keys.iter().filter(|key| way.is_none_or(|way| way.key == key.name)) {
            let head = Head { kind, from: self.me, to, key: key.name, session, echo, incarnation, counter };
            let bytes = key.own.seal(&head, body);
            let paths = self.sockets.iter().zip(&peer.addresses).enumerate();
            for (_, (socket, address)) in paths.filter(|(path, _)| way.is_none_or(|way| way.path == *path)) {
                // Datagrams may be lost; that one cannot be sent is no other loss.
                let _ = socket.send_to(&bytes, address);
            }
        }
    }

    /// Takes what has come; whether there may be more.
    pub(super) fn receive(&mut self, now: Nanos, out: &mut Vec<Letter>) -> bool {
        let mut more = false;
        let mut buffer = [0; LIMIT + 1];
        for path in 0..self.sockets.len() {
            let mut taken = 0;
            while taken < AT_ONCE {
                match self.sockets[path].recv(&mut buffer) {
                    Ok(length) => out.extend(self.take(path, &buffer[..length], now)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // What a network says about an earlier datagram.
                    Err(_) => {}
                }
                taken += 1;
            }
            more |= taken == AT_ONCE;
        }
        more
    }

    fn take(&mut self, path: usize, bytes: &[u8], now: Nanos) -> Option<Letter> {
        let opened = self.opened(bytes);
        let Some((head, body)) = opened else {
            self.strangers += 1;
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
        // Else it is of an earlier incarnation that still speaks.
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
        (kind != Kind::Hello).then_some(Letter { from, incarnation, kind, body, way: Way { path, key } })
    }

    /// What a node of the cluster has sealed for this one.
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

    /// Somebody who does not know this session is told of it; nothing is believed of it yet.
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
