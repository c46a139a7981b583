//! The calls that this node makes over TCP: for each worker in each slot of each peer that it connects to, one attempt at a
//! time; none ever waits for another.
//!
//! An attempt is a connection for each lane. The kernel repeats a first packet that was lost only after a second, which is as
//! long as a peer that no rail reaches is waited for: so what is not taken soon is given up, and dialled anew. When all of them have proved themselves, each says *go*, which uses up the
//! generation: a failed attempt leaves nothing behind that could be mistaken for the next one. Where the other end hangs up
//! without a word, which is what it does to strangers, the attempt is made again with the next older key.

use std::{collections::BTreeMap, io, os::fd::OwnedFd, sync::Arc, time::Instant};

use plexus_base::{Incarnation, MAX_WORKERS, NodeId};
use plexus_fabric::{LANES, Lane, RailKind, WindowSpan};

use super::{
    HANDSHAKE,
    common::{Common, Made, Place},
    hello::HELLO,
    line::Line,
    noise::{self, Calling, GREETING, Session},
    pair::{MAX_SLOTS, Path},
    tcp::{self, GO, SEALED_SPANS},
};

/// Places of a peer.
const SEATS: u64 = (MAX_SLOTS * MAX_WORKERS) as u64;

/// How far one lane has come.
enum Stage {
    /// Not connected yet.
    Dialling,
    /// Said its hello.
    Greeted(Box<Calling>),
    /// Heard a true answer.
    Answered(Box<Session>),
    /// Waits for the other lanes.
    Ready(Box<Session>),
}

struct Call {
    line: Line,
    stage: Stage,
}

struct Attempt {
    place: Place,
    path: Path,
    generation: u32,
    /// Which of the valid keys it proves, from the newest.
    key: usize,
    lanes: [Option<Call>; LANES],
    incarnation: Option<Incarnation>,
    peer_windows: Vec<WindowSpan>,
    began: Instant,
}

/// Why an attempt failed.
enum Failure {
    /// The other end closed the connection before it had said a word.
    HungUp,
    /// It asks for smaller segments.
    Smaller,
    Other(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

pub(super) struct Calls {
    common: Arc<Common>,
    attempts: BTreeMap<Place, Attempt>,
}

/// The number of a lane's connection.
fn number(place: Place, lane: Lane) -> u64 {
    let seat = u64::from(place.slot) * MAX_WORKERS as u64 + u64::from(place.worker);
    (u64::from(place.peer.0) * SEATS + seat) * LANES as u64 + lane.index() as u64
}

/// What has this number.
fn numbered(number: u64) -> (Place, Lane) {
    let (place, lane) = (number / LANES as u64, number as usize % LANES);
    let (peer, seat) = (place / SEATS, place % SEATS);
    let (slot, worker) = (seat / MAX_WORKERS as u64, seat % MAX_WORKERS as u64);
    (Place { peer: NodeId(peer as u8), slot: slot as u8, worker: worker as u8 }, Lane::ALL[lane])
}

impl Calls {
    pub(super) fn new(common: Arc<Common>) -> Self {
        Self { common, attempts: BTreeMap::new() }
    }

    /// Makes the calls that are due and gives up those that take too long; when to look again.
    pub(super) fn look(
        &mut self,
        epoll: &OwnedFd,
        token: impl Fn(u64) -> u64,
        now: Instant,
    ) -> Option<Instant> {
        let late = self.ends().into_iter().filter(|(_, end)| *end <= now);
        for (place, _) in late {
            if let Some(attempt) = self.attempts.remove(&place) {
                let why = format!("no answer at {} in time", attempt.path.there);
                self.common.failed(place, why);
            }
        }
        let mut next: Option<Instant> = None;
        for (place, path, due) in self.wanted() {
            match due {
                Some(due) if due > now => next = Some(next.map_or(due, |next| next.min(due))),
                _ => self.attempt(epoll, &token, place, path, 0, now),
            }
        }
        next.into_iter().chain(self.ends().into_values()).min()
    }

    /// When each attempt has taken too long.
    fn ends(&self) -> BTreeMap<Place, Instant> {
        let pairs = self.common.pairs();
        let end = |place: &Place, attempt: &Attempt| {
            let dialling = pairs.get(&place.peer).filter(|_| attempt.is_dialling());
            let limit = dialling.map_or(HANDSHAKE, |pair| pair.dialling(place.slot, place.worker));
            (*place, attempt.began + limit)
        };
        self.attempts.iter().map(|(place, attempt)| end(place, attempt)).collect()
    }

    /// The places whose rail is missing and not under way, and the time before which it should not be.
    fn wanted(&self) -> Vec<(Place, Path, Option<Instant>)> {
        let pairs = self.common.pairs();
        let slots = self.common.called().filter_map(|peer| Some((peer.id, pairs.get(&peer.id)?)));
        let slots = slots.flat_map(|(peer, pair)| {
            let paths = pair.paths.iter().enumerate().filter(|(_, path)| path.kind != RailKind::Shm);
            paths.flat_map(move |(slot, path)| {
                let slot = slot as u8;
                let missing = pair.missing(slot);
                missing.map(move |(worker, due)| (Place { peer, slot, worker }, *path, due))
            })
        });
        slots.filter(|(place, ..)| !self.attempts.contains_key(place)).collect()
    }

    fn attempt(
        &mut self,
        epoll: &OwnedFd,
        token: &impl Fn(u64) -> u64,
        place: Place,
        path: Path,
        key: usize,
        now: Instant,
    ) {
        let clamp = self.common.pairs().get(&place.peer).map_or(0, |pair| pair.clamp(place.slot));
        let dial = |lane: Lane| -> io::Result<Call> {
            let line = Line::call(path.here, path.there, |socket| {
                if clamp == 0 { Ok(()) } else { plexus_fabric::tcp::clamp(socket, clamp.into()) }
            })?;
            line.register(epoll, token(number(place, lane)), true)?;
            Ok(Call { line, stage: Stage::Dialling })
        };
        let mut lanes = [const { None }; LANES];
        for lane in Lane::ALL {
            match dial(lane) {
                Ok(call) => lanes[lane.index()] = Some(call),
                Err(error) => {
                    return self.common.failed(place, format!("cannot call {}: {error}", path.name()));
                }
            }
        }
        let generation = self
            .common
            .pairs()
            .get(&place.peer)
            .map_or(1, |pair| pair.next_generation(place.slot, place.worker));
        let attempt = Attempt {
            place,
            path,
            generation,
            key,
            lanes,
            incarnation: None,
            peer_windows: Vec::new(),
            began: now,
        };
        self.attempts.insert(place, attempt);
    }

    /// Something has happened on connection `number`.
    pub(super) fn hear(&mut self, epoll: &OwnedFd, token: impl Fn(u64) -> u64, number: u64) {
        let (place, lane) = numbered(number);
        let Some(mut attempt) = self.attempts.remove(&place) else { return };
        let stepped = attempt
            .step(&self.common, lane, |line| line.register(epoll, token(number), false))
            .and_then(|()| if attempt.is_ready() { attempt.go(&self.common) } else { Ok(()) });
        match stepped {
            Ok(()) if attempt.is_ready() => self.finish(epoll, attempt),
            Ok(()) => drop(self.attempts.insert(place, attempt)),
            Err(failure) => self.give_up(epoll, &token, attempt, failure),
        }
    }

    fn finish(&self, epoll: &OwnedFd, attempt: Attempt) {
        let Attempt { place, path, generation, lanes, incarnation, peer_windows, .. } = attempt;
        let lanes = lanes.into_iter().flatten().filter_map(|call| {
            let Stage::Ready(session) = call.stage else { return None };
            Some(tcp::Lane { stream: call.line.into_stream(epoll).ok()?, keys: session.into_rail_keys() })
        });
        let lanes = <[tcp::Lane; LANES]>::try_from(lanes.collect::<Vec<_>>());
        let lanes = lanes.map_err(|_| "a connection cannot be taken over".to_owned());
        match lanes.and_then(|lanes| tcp::rail(&self.common, place.peer, lanes, peer_windows)) {
            Ok(rail) => {
                let incarnation = incarnation.expect("every lane was answered");
                let made = Made { place, generation, rail, path: path.name() };
                self.common.attach_over(&path, made, incarnation);
            }
            Err(why) => self.common.failed(place, why),
        }
    }

    fn give_up(&mut self, epoll: &OwnedFd, token: &impl Fn(u64) -> u64, attempt: Attempt, failure: Failure) {
        let Attempt { place, path, key, .. } = attempt;
        // Its connections are closed before others are made.
        drop(attempt.lanes);
        match failure {
            Failure::HungUp => match self.common.keys() {
                Ok(keys) if key + 1 < keys.len() => {
                    self.attempt(epoll, token, place, path, key + 1, Instant::now());
                }
                Ok(_) => self.common.failed(
                    place,
                    format!(
                        "{} hangs up without a word: it does not take this node's key (compare keys/ on both machines) or is another program",
                        path.there
                    ),
                ),
                Err(why) => self.common.failed(place, why),
            },
            Failure::Smaller => self.attempt(epoll, token, place, path, key, Instant::now()),
            Failure::Other(why) => self.common.failed(place, why),
        }
    }
}

impl Attempt {
    fn step(
        &mut self,
        common: &Common,
        lane: Lane,
        listen: impl FnOnce(&Line) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let (place, path) = (self.place, self.path);
        let Some(call) = &mut self.lanes[lane.index()] else { return Ok(()) };
        let broken = |error: io::Error| format!("{}: handshake: {error}", path.there);
        match std::mem::replace(&mut call.stage, Stage::Dialling) {
            Stage::Dialling => {
                let connected = call.line.is_connected();
                if !connected.map_err(|error| format!("no answer at {}: {error}", path.there))? {
                    return Ok(());
                }
                let keys = common.keys()?;
                let key = keys.get(self.key).or(keys.first()).ok_or("there is no key".to_owned())?;
                let clamp = common.pairs().get(&place.peer).map_or(0, |pair| pair.clamp(place.slot));
                let hello = common.hello(place, path.kind, lane, self.generation, clamp);
                let (calling, greeting) = noise::call(key, common.config.cluster, &hello.encode());
                call.line.say(&greeting, GREETING).map_err(broken)?;
                listen(&call.line).map_err(broken)?;
                call.stage = Stage::Greeted(Box::new(calling));
            }
            Stage::Greeted(calling) => {
                let answer = match call.line.hear() {
                    Ok(Some(answer)) => answer,
                    Ok(None) => {
                        call.stage = Stage::Greeted(calling);
                        return Ok(());
                    }
                    Err(_) => return Err(Failure::HungUp),
                };
                let answer: &[u8; GREETING] = answer[..].try_into().expect("that is what was expected");
                let (answer, mut session) =
                    calling.answered(answer).map_err(|why| format!("{}: {why}", path.there))?;
                self.incarnation = Some(accept(common, place, self.incarnation, &answer)?);
                let ours = session.seal(&tcp::our_spans(common));
                call.line.say(&ours, SEALED_SPANS).map_err(broken)?;
                call.stage = Stage::Answered(Box::new(session));
            }
            Stage::Answered(mut session) => match call.line.hear().map_err(broken)? {
                None => call.stage = Stage::Answered(session),
                Some(mut message) => {
                    let spans = session.open(&mut message).map_err(|why| format!("{}: {why}", path.there))?;
                    self.peer_windows = tcp::their_spans(spans)?;
                    call.stage = Stage::Ready(session);
                }
            },
            Stage::Ready(session) => {
                // Nothing is expected: it has hung up.
                call.line.hear().map_err(broken)?;
                call.stage = Stage::Ready(session);
            }
        }
        Ok(())
    }

    /// Whether a lane is not connected yet.
    fn is_dialling(&self) -> bool {
        self.lanes.iter().flatten().any(|call| matches!(call.stage, Stage::Dialling))
    }

    fn is_ready(&self) -> bool {
        self.lanes.iter().flatten().all(|call| matches!(call.stage, Stage::Ready(_)))
    }

    /// Tells the other end that all lanes stand.
    fn go(&mut self, common: &Common) -> Result<(), Failure> {
        let Place { peer, slot, worker } = self.place;
        if let Some(pair) = common.pairs().get_mut(&peer) {
            pair.says(slot, worker, self.generation);
        }
        for call in self.lanes.iter_mut().flatten() {
            if let Stage::Ready(session) = &mut call.stage {
                let said = call.line.say(&session.seal(&GO), 0);
                said.map_err(|error| format!("{}: handshake: {error}", self.path.there))?;
            }
        }
        Ok(())
    }
}

/// What the answer says, and whether it is from the same incarnation of the peer as that on the other lanes.
fn accept(
    common: &Common,
    place: Place,
    known: Option<Incarnation>,
    answer: &[u8; HELLO],
) -> Result<Incarnation, Failure> {
    let answer = common.accepted(answer, place.peer)?;
    if known.is_some_and(|known| known != answer.incarnation) {
        return Err(Failure::Other("it has just started anew".into()));
    }
    let mut pairs = common.pairs();
    if pairs.get_mut(&place.peer).is_some_and(|pair| pair.clamped(place.slot, answer.clamp)) {
        return Err(Failure::Smaller);
    }
    Ok(answer.incarnation)
}
