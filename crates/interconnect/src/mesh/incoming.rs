//! Incoming TCP connections. Each is read without being waited for. A connection that does not
//! prove the cluster key in time is closed without a byte of answer.
//!
//! At most [`MAX_UNPROVED`] connections are open without a proof. One more closes another: that
//! with the least progress, among those one from no peer's address, among those the oldest. So a
//! flood of unauthenticated connections costs a peer at most another attempt, and this node neither
//! threads nor more descriptors. Authenticated connections are limited by the number of places. If
//! two ask for the same lane of a place the younger stays, since its caller has given up the other.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr, TcpStream},
    os::fd::OwnedFd,
    sync::Arc,
    time::Instant,
};

use plexus_base::Incarnation;
use plexus_fabric::{LANES, RailKind, WindowSpan};

use super::{
    HANDSHAKE,
    common::{ConnectedRail, MeshState, RailPlace},
    hello::Hello,
    line::HandshakeStream,
    noise::{self, GREETING, NoiseSession},
    tcp::{self, GO, Lane, SEALED_GO, SEALED_SPANS},
    warned::RateLimitedWarnings,
};

/// The maximum number of connections without a proof: as many as all workers of all peers need at
/// once on a path.
pub(super) const MAX_UNPROVED: usize = 256;

/// The progress of an incoming connection.
enum IncomingStage {
    /// No valid message has arrived.
    Unproved,
    /// A valid hello has arrived, which may be a replayed one.
    Greeted(Box<(NoiseSession, Hello)>),
    /// The peer has proved that it has the key now.
    Proved(Box<(NoiseSession, Hello)>, Vec<WindowSpan>),
}

struct IncomingConnection {
    line: HandshakeStream,
    from: IpAddr,
    known: bool,
    stage: IncomingStage,
    until: Instant,
}

impl IncomingConnection {
    /// The lane and place for which it has proved the key.
    fn proved(&self) -> Option<(RailPlace, usize)> {
        match &self.stage {
            IncomingStage::Unproved | IncomingStage::Greeted(_) => None,
            IncomingStage::Proved(proof, _) => Some((place(&proof.1), proof.1.lane.index())),
        }
    }
}

fn place(hello: &Hello) -> RailPlace {
    RailPlace { peer: hello.from, slot: hello.slot, worker: hello.worker }
}

/// The lanes of one place, until all are there.
struct Gathering {
    generation: u32,
    incarnation: Incarnation,
    lanes: [Option<Lane>; LANES],
    peer_windows: Vec<WindowSpan>,
    until: Instant,
}

pub(super) struct IncomingCalls {
    common: Arc<MeshState>,
    /// The connections in the order of arrival.
    connections: BTreeMap<u64, IncomingConnection>,
    next: u64,
    gathering: BTreeMap<RailPlace, Gathering>,
    warned: RateLimitedWarnings<IpAddr>,
}

/// The result of a step of an incoming connection.
enum StepResult {
    Waiting(IncomingConnection),
    /// Ready: the connection goes to the place that it asked for.
    Done(IncomingConnection),
    /// Refused with a reason, or closed by the peer.
    Closed,
    Unauthenticated(String),
}

impl IncomingCalls {
    pub(super) fn new(common: Arc<MeshState>) -> Self {
        Self {
            common,
            connections: BTreeMap::new(),
            next: 0,
            gathering: BTreeMap::new(),
            warned: RateLimitedWarnings::default(),
        }
    }

    /// Accepts a connection; `token` makes its epoll token from its number.
    pub(super) fn accept(
        &mut self,
        epoll: &OwnedFd,
        token: impl Fn(u64) -> u64,
        stream: TcpStream,
        from: SocketAddr,
    ) {
        while self.unproved() >= MAX_UNPROVED {
            self.make_room();
        }
        let number = self.next;
        self.next += 1;
        let Ok(line) = HandshakeStream::accepted(stream, GREETING) else {
            return self.common.count_unauthenticated();
        };
        if line.register(epoll, token(number), false).is_err() {
            return self.common.count_unauthenticated();
        }
        let from = from.ip();
        let mut peers = self.common.peers().flat_map(|peer| &peer.addresses);
        let known = peers.any(|address| address.ip() == from);
        let until = Instant::now() + HANDSHAKE;
        self.connections
            .insert(number, IncomingConnection { line, from, known, stage: IncomingStage::Unproved, until });
    }

    /// Closes the connection that is least likely to be a peer's; returns false if there was none.
    pub(super) fn make_room(&mut self) -> bool {
        let rank = |incoming: &IncomingConnection| match incoming.stage {
            IncomingStage::Unproved => Some((0, incoming.known)),
            IncomingStage::Greeted(_) => Some((1, incoming.known)),
            IncomingStage::Proved(..) => None,
        };
        let ranked =
            self.connections.iter().filter_map(|(number, incoming)| Some((rank(incoming)?, *number)));
        let Some((_, number)) = ranked.min() else { return false };
        self.connections.remove(&number);
        self.common.count_unauthenticated();
        true
    }

    fn unproved(&self) -> usize {
        self.connections
            .values()
            .filter(|incoming| !matches!(incoming.stage, IncomingStage::Proved(..)))
            .count()
    }

    /// Handles an event on connection `number`.
    pub(super) fn readable(&mut self, epoll: &OwnedFd, number: u64) {
        let Some(incoming) = self.connections.remove(&number) else { return };
        let (from, known) = (incoming.from, incoming.known);
        match self.step(incoming) {
            StepResult::Waiting(incoming) => self.keep(number, incoming),
            StepResult::Done(incoming) => self.gather(epoll, incoming),
            StepResult::Closed => {}
            StepResult::Unauthenticated(why) => {
                self.common.count_unauthenticated();
                if known && self.warned.is_due(from, Instant::now()) {
                    tracing::warn!(
                        "closed a connection from {from}, the address of a peer: {why}; compare keys/ on both machines"
                    );
                } else {
                    tracing::debug!("closed a connection from {from}: {why}");
                }
            }
        }
    }

    fn keep(&mut self, number: u64, incoming: IncomingConnection) {
        if let Some(asked) = incoming.proved() {
            self.connections.retain(|_, other| other.proved() != Some(asked));
        }
        self.connections.insert(number, incoming);
    }

    fn step(&self, mut incoming: IncomingConnection) -> StepResult {
        let mut message = match incoming.line.receive() {
            Ok(Some(message)) => message,
            Ok(None) => return StepResult::Waiting(incoming),
            Err(_) if matches!(incoming.stage, IncomingStage::Proved(..)) => return StepResult::Closed,
            Err(error) => return StepResult::Unauthenticated(error.to_string()),
        };
        match std::mem::replace(&mut incoming.stage, IncomingStage::Unproved) {
            IncomingStage::Unproved => self.greet(incoming, &message),
            IncomingStage::Greeted(mut proof) => {
                let spans = proof.0.open(&mut message).map_err(|error| error.to_string());
                let peer_windows = match spans.and_then(tcp::their_spans) {
                    Ok(spans) => spans,
                    Err(why) => return StepResult::Unauthenticated(why),
                };
                let ours = proof.0.seal(&tcp::our_spans(&self.common));
                if incoming.line.send(&ours, SEALED_GO).is_err() {
                    return StepResult::Closed;
                }
                incoming.stage = IncomingStage::Proved(proof, peer_windows);
                StepResult::Waiting(incoming)
            }
            IncomingStage::Proved(mut proof, peer_windows) => {
                if proof.0.open(&mut message) != Ok(&GO[..]) {
                    return StepResult::Closed;
                }
                incoming.stage = IncomingStage::Proved(proof, peer_windows);
                StepResult::Done(incoming)
            }
        }
    }

    fn greet(&self, mut incoming: IncomingConnection, message: &[u8]) -> StepResult {
        let greeting: &[u8; GREETING] = message.try_into().expect("the length that was expected");
        let keys = match self.common.keys() {
            Ok(keys) => keys,
            Err(why) => {
                tracing::warn!("no peer can connect: {why}");
                return StepResult::Closed;
            }
        };
        let (called, hello) = match noise::called(&keys, self.common.config.cluster, greeting) {
            Ok(proved) => proved,
            Err(why) => return StepResult::Unauthenticated(why.to_string()),
        };
        let (hello, answer) = match self.common.judge(&hello, RailKind::Tcp) {
            Ok(judged) => judged,
            Err(why) => return StepResult::Unauthenticated(why),
        };
        let (reply, session) = called.answer(&answer.encode());
        if incoming.line.send(&reply, SEALED_SPANS).is_err() || answer.refusal.is_some() {
            return StepResult::Closed;
        }
        incoming.stage = IncomingStage::Greeted(Box::new((session, hello)));
        StepResult::Waiting(incoming)
    }

    /// Adds a connection to its place, and makes the rail when all lanes are there.
    fn gather(&mut self, epoll: &OwnedFd, incoming: IncomingConnection) {
        let IncomingStage::Proved(proof, peer_windows) = incoming.stage else { return };
        let (session, hello) = *proof;
        let Ok(stream) = incoming.line.into_stream(epoll) else { return };
        let place = place(&hello);
        let empty = || Gathering {
            generation: hello.generation,
            incarnation: hello.incarnation,
            lanes: [const { None }; LANES],
            peer_windows,
            until: Instant::now() + HANDSHAKE,
        };
        let same = |gathered: &Gathering| {
            (gathered.generation, gathered.incarnation) == (hello.generation, hello.incarnation)
        };
        let mut gathered = self.gathering.remove(&place).filter(same).unwrap_or_else(empty);
        gathered.lanes[hello.lane.index()] = Some(Lane { stream, keys: session.into_rail_keys() });
        if gathered.lanes.iter().any(Option::is_none) {
            self.gathering.insert(place, gathered);
            return;
        }
        let lanes = gathered.lanes.map(|lane| lane.expect("all lanes are there"));
        let Some(path) = self.common.path(place.peer, place.slot) else { return };
        match tcp::rail(&self.common, place.peer, lanes, gathered.peer_windows) {
            Ok(rail) => {
                let made = ConnectedRail { place, generation: gathered.generation, rail, path: path.name() };
                self.common.attach_over(&path, made, gathered.incarnation);
            }
            Err(why) => tracing::warn!("{}: {}: {why}", place.peer, path.name()),
        }
    }

    /// Closes connections whose time is over; returns when to check again.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Instant> {
        let common = &self.common;
        self.connections.retain(|_, incoming| {
            let stays = incoming.until > now;
            if !stays && !matches!(incoming.stage, IncomingStage::Proved(..)) {
                common.count_unauthenticated();
            }
            stays
        });
        self.gathering.retain(|_, gathering| gathering.until > now);
        let connections = self.connections.values().map(|incoming| incoming.until);
        connections.chain(self.gathering.values().map(|gathering| gathering.until)).min()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
    };

    use plexus_base::NodeId;
    use rustix::event::epoll;

    use super::{super::common::tests::common, *};

    #[test]
    fn the_younger_of_two_authenticated_connections_for_a_lane_stays() {
        let (here, there) = (common(0, 1, RailKind::Tcp), common(1, 0, RailKind::Tcp));
        let (key, cluster) = (here.keys().unwrap().remove(0), here.config.cluster);
        let mut incoming = IncomingCalls::new(Arc::new(here));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut prove = |lane| {
            let mut caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, from) = listener.accept().unwrap();
            let number = incoming.next;
            incoming.accept(&epoll, |number| number, stream, from);
            let mut handle = || {
                let mut events = [const { std::mem::MaybeUninit::uninit() }; 1];
                assert_eq!(epoll::wait(&epoll, &mut events, None).unwrap().0[0].data.u64(), number);
                incoming.readable(&epoll, number);
            };
            let place = RailPlace { peer: NodeId(0), slot: 0, worker: 0 };
            let hello = there.hello(place, RailKind::Tcp, lane, 1, 0);
            let (calling, greeting) = noise::call(&key, cluster, &hello.encode());
            caller.write_all(&greeting).unwrap();
            handle();
            let mut answer = [0; GREETING];
            caller.read_exact(&mut answer).unwrap();
            let (_, mut session) = calling.answered(&answer).unwrap();
            caller.write_all(&session.seal(&tcp::our_spans(&there))).unwrap();
            handle();
            caller.read_exact(&mut [0; SEALED_SPANS]).unwrap();
            caller
        };
        let [mut given_up, _bulk, _prompt] =
            [plexus_fabric::Lane::Prompt, plexus_fabric::Lane::Bulk, plexus_fabric::Lane::Prompt]
                .map(&mut prove);
        assert_eq!(incoming.connections.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(given_up.read(&mut [0]).unwrap(), 0, "the older connection is closed");
    }
}
