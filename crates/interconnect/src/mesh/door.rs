//! Whoever calls this node over TCP: each is heard without ever being waited for, and who does not prove in time that it has
//! the cluster key is sent away without having been answered a byte.
//!
//! Those who have proved nothing yet are [`GUESTS`] at most; when one more comes, the one that got least far gives
//! way, among those one that calls from no peer's address, among those the oldest. So a crowd of strangers
//! costs a peer at most another attempt, and this node neither threads nor more descriptors. Those who have proved it are limited
//! by the places that there are: of two that ask for one lane of a place the younger stays, for its caller has given the other up.

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
    common::{Common, Made, Place},
    hello::Hello,
    line::Line,
    noise::{self, GREETING, Session},
    tcp::{self, GO, Lane, SEALED_GO, SEALED_SPANS},
    warned::Warned,
};

/// Most connections that have proved nothing yet: what all workers of all peers need at once on a path.
pub(super) const GUESTS: usize = 256;

/// How far one has come.
enum Stage {
    /// Nothing said yet that could be read.
    Outside,
    /// Said a true hello, which may be a replayed one.
    Greeted(Box<(Session, Hello)>),
    /// Proved that it has the key now.
    Proved(Box<(Session, Hello)>, Vec<WindowSpan>),
}

struct Guest {
    line: Line,
    from: IpAddr,
    known: bool,
    stage: Stage,
    until: Instant,
}

impl Guest {
    /// Which lane of which place it has proved that it may ask for.
    fn proved(&self) -> Option<(Place, usize)> {
        match &self.stage {
            Stage::Outside | Stage::Greeted(_) => None,
            Stage::Proved(said, _) => Some((place(&said.1), said.1.lane.index())),
        }
    }
}

fn place(hello: &Hello) -> Place {
    Place { peer: hello.from, slot: hello.slot, worker: hello.worker }
}

/// The lanes of one place, until all are there.
struct Gathering {
    generation: u32,
    incarnation: Incarnation,
    lanes: [Option<Lane>; LANES],
    peer_windows: Vec<WindowSpan>,
    until: Instant,
}

pub(super) struct Door {
    common: Arc<Common>,
    /// By order of arrival.
    guests: BTreeMap<u64, Guest>,
    next: u64,
    gathering: BTreeMap<Place, Gathering>,
    warned: Warned<IpAddr>,
}

/// What becomes of a guest.
enum Next {
    Stays(Guest),
    /// Ready: its connection goes to the place that it asked for.
    Done(Guest),
    /// Refused with a reason, or answered and gone.
    Leaves,
    Stranger(String),
}

impl Door {
    pub(super) fn new(common: Arc<Common>) -> Self {
        Self {
            common,
            guests: BTreeMap::new(),
            next: 0,
            gathering: BTreeMap::new(),
            warned: Warned::default(),
        }
    }

    /// Lets one in to be heard; `token` makes the mark of its arrivals from its number.
    pub(super) fn welcome(
        &mut self,
        epoll: &OwnedFd,
        token: impl Fn(u64) -> u64,
        stream: TcpStream,
        from: SocketAddr,
    ) {
        while self.unproved() >= GUESTS {
            self.make_room();
        }
        let number = self.next;
        self.next += 1;
        let Ok(line) = Line::accepted(stream, GREETING) else { return self.common.stranger() };
        if line.register(epoll, token(number), false).is_err() {
            return self.common.stranger();
        }
        let from = from.ip();
        let mut peers = self.common.peers().flat_map(|peer| &peer.addresses);
        let known = peers.any(|address| address.ip() == from);
        let until = Instant::now() + HANDSHAKE;
        self.guests.insert(number, Guest { line, from, known, stage: Stage::Outside, until });
    }

    /// Sends away the one that is least likely to be a peer; whether there was one.
    pub(super) fn make_room(&mut self) -> bool {
        let rank = |guest: &Guest| match guest.stage {
            Stage::Outside => Some((0, guest.known)),
            Stage::Greeted(_) => Some((1, guest.known)),
            Stage::Proved(..) => None,
        };
        let ranked = self.guests.iter().filter_map(|(number, guest)| Some((rank(guest)?, *number)));
        let Some((_, number)) = ranked.min() else { return false };
        self.guests.remove(&number);
        self.common.stranger();
        true
    }

    fn unproved(&self) -> usize {
        self.guests.values().filter(|guest| !matches!(guest.stage, Stage::Proved(..))).count()
    }

    /// Hears guest `number`.
    pub(super) fn hear(&mut self, epoll: &OwnedFd, number: u64) {
        let Some(guest) = self.guests.remove(&number) else { return };
        let (from, known) = (guest.from, guest.known);
        match self.step(guest) {
            Next::Stays(guest) => self.keep(number, guest),
            Next::Done(guest) => self.gather(epoll, guest),
            Next::Leaves => {}
            Next::Stranger(why) => {
                self.common.stranger();
                if known && self.warned.is_due(from, Instant::now()) {
                    tracing::warn!(
                        "a connection from {from}, where a peer is, was turned away: {why}; compare keys/ on both machines"
                    );
                } else {
                    tracing::debug!("a connection from {from} was turned away: {why}");
                }
            }
        }
    }

    fn keep(&mut self, number: u64, guest: Guest) {
        if let Some(asked) = guest.proved() {
            self.guests.retain(|_, other| other.proved() != Some(asked));
        }
        self.guests.insert(number, guest);
    }

    fn step(&self, mut guest: Guest) -> Next {
        let mut message = match guest.line.hear() {
            Ok(Some(message)) => message,
            Ok(None) => return Next::Stays(guest),
            Err(_) if matches!(guest.stage, Stage::Proved(..)) => return Next::Leaves,
            Err(error) => return Next::Stranger(error.to_string()),
        };
        match std::mem::replace(&mut guest.stage, Stage::Outside) {
            Stage::Outside => self.greet(guest, &message),
            Stage::Greeted(mut said) => {
                let spans = said.0.open(&mut message).map_err(|error| error.to_string());
                let peer_windows = match spans.and_then(tcp::their_spans) {
                    Ok(spans) => spans,
                    Err(why) => return Next::Stranger(why),
                };
                let ours = said.0.seal(&tcp::our_spans(&self.common));
                if guest.line.say(&ours, SEALED_GO).is_err() {
                    return Next::Leaves;
                }
                guest.stage = Stage::Proved(said, peer_windows);
                Next::Stays(guest)
            }
            Stage::Proved(mut said, peer_windows) => {
                if said.0.open(&mut message) != Ok(&GO[..]) {
                    return Next::Leaves;
                }
                guest.stage = Stage::Proved(said, peer_windows);
                Next::Done(guest)
            }
        }
    }

    fn greet(&self, mut guest: Guest, message: &[u8]) -> Next {
        let greeting: &[u8; GREETING] = message.try_into().expect("that is what was expected");
        let keys = match self.common.keys() {
            Ok(keys) => keys,
            Err(why) => {
                tracing::warn!("nobody can be let in: {why}");
                return Next::Leaves;
            }
        };
        let (called, hello) = match noise::called(&keys, self.common.config.cluster, greeting) {
            Ok(proved) => proved,
            Err(why) => return Next::Stranger(why.to_string()),
        };
        let (hello, answer) = match self.common.judge(&hello, RailKind::Tcp) {
            Ok(judged) => judged,
            Err(why) => return Next::Stranger(why),
        };
        let (reply, session) = called.answer(&answer.encode());
        if guest.line.say(&reply, SEALED_SPANS).is_err() || answer.refusal.is_some() {
            return Next::Leaves;
        }
        guest.stage = Stage::Greeted(Box::new((session, hello)));
        Next::Stays(guest)
    }

    /// Takes a connection to its place, and makes the rail when it was the last one.
    fn gather(&mut self, epoll: &OwnedFd, guest: Guest) {
        let Stage::Proved(said, peer_windows) = guest.stage else { return };
        let (session, hello) = *said;
        let Ok(stream) = guest.line.into_stream(epoll) else { return };
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
        let lanes = gathered.lanes.map(|lane| lane.expect("all are there"));
        let Some(path) = self.common.path(place.peer, place.slot) else { return };
        match tcp::rail(&self.common, place.peer, lanes, gathered.peer_windows) {
            Ok(rail) => {
                let made = Made { place, generation: gathered.generation, rail, path: path.name() };
                self.common.attach_over(&path, made, gathered.incarnation);
            }
            Err(why) => tracing::warn!("{}: {}: {why}", place.peer, path.name()),
        }
    }

    /// Sends away whose time is over; when to look again.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Instant> {
        let common = &self.common;
        self.guests.retain(|_, guest| {
            let stays = guest.until > now;
            if !stays && !matches!(guest.stage, Stage::Proved(..)) {
                common.stranger();
            }
            stays
        });
        self.gathering.retain(|_, gathering| gathering.until > now);
        let guests = self.guests.values().map(|guest| guest.until);
        guests.chain(self.gathering.values().map(|gathering| gathering.until)).min()
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
    fn of_two_that_proved_themselves_for_the_same_the_younger_stays() {
        let (here, there) = (common(0, 1, RailKind::Tcp), common(1, 0, RailKind::Tcp));
        let (key, cluster) = (here.keys().unwrap().remove(0), here.config.cluster);
        let mut door = Door::new(Arc::new(here));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut prove = |lane| {
            let mut caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, from) = listener.accept().unwrap();
            let number = door.next;
            door.welcome(&epoll, |number| number, stream, from);
            let mut hear = || {
                let mut events = [const { std::mem::MaybeUninit::uninit() }; 1];
                assert_eq!(epoll::wait(&epoll, &mut events, None).unwrap().0[0].data.u64(), number);
                door.hear(&epoll, number);
            };
            let place = Place { peer: NodeId(0), slot: 0, worker: 0 };
            let hello = there.hello(place, RailKind::Tcp, lane, 1, 0);
            let (calling, greeting) = noise::call(&key, cluster, &hello.encode());
            caller.write_all(&greeting).unwrap();
            hear();
            let mut answer = [0; GREETING];
            caller.read_exact(&mut answer).unwrap();
            let (_, mut session) = calling.answered(&answer).unwrap();
            caller.write_all(&session.seal(&tcp::our_spans(&there))).unwrap();
            hear();
            caller.read_exact(&mut [0; SEALED_SPANS]).unwrap();
            caller
        };
        let [mut given_up, _bulk, _prompt] =
            [plexus_fabric::Lane::Prompt, plexus_fabric::Lane::Bulk, plexus_fabric::Lane::Prompt]
                .map(&mut prove);
        assert_eq!(door.guests.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(given_up.read(&mut [0]).unwrap(), 0, "its connection is closed");
    }
}
