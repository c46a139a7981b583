//! The TCP connections that this node makes: one attempt at a time for each worker in each slot of
//! each peer to which it connects. No attempt waits for another.
//!
//! An attempt is a connection for each lane. The kernel repeats a lost first packet only after a
//! second, which is as long as the link's timeout. So an attempt that is not accepted soon is given
//! up and dialled again.
//!
//! When all lanes have proved the key, the caller sends *go* on each, which uses up the generation.
//! So nothing of a failed attempt can be mistaken for the next one. If the other end closes without
//! an answer, as it does with unauthenticated peers, the attempt is repeated with the next older
//! key.

use std::{collections::BTreeMap, io, os::fd::OwnedFd, sync::Arc, time::Instant};

use plexus_base::{Incarnation, MAX_WORKERS, NodeId};
use plexus_fabric::{LANES, Lane, RailKind, WindowSpan};

use super::{
    HANDSHAKE,
    common::{ConnectedRail, MeshState, RailPlace},
    hello::HELLO,
    line::HandshakeStream,
    noise::{self, CallerHandshake, GREETING, NoiseSession},
    pair::{MAX_SLOTS, Path},
    tcp::{self, GO, SEALED_SPANS},
};

/// The places of a peer: one for each slot and worker.
const PLACES: u64 = (MAX_SLOTS * MAX_WORKERS) as u64;

/// The progress of one lane.
enum CallStage {
    /// Not connected yet.
    Dialling,
    /// Its hello is sent.
    Greeted(Box<CallerHandshake>),
    /// A valid answer has arrived.
    Answered(Box<NoiseSession>),
    /// It waits for the other lanes.
    Ready(Box<NoiseSession>),
}

struct LaneCall {
    line: HandshakeStream,
    stage: CallStage,
}

struct Attempt {
    place: RailPlace,
    path: Path,
    generation: u32,
    /// The index of the valid key that it proves, from the newest.
    key: usize,
    lanes: [Option<LaneCall>; LANES],
    incarnation: Option<Incarnation>,
    peer_windows: Vec<WindowSpan>,
    began: Instant,
}

/// The reason why an attempt failed.
enum Failure {
    /// The other end closed the connection without an answer.
    ClosedUnanswered,
    /// The other end requests smaller segments.
    Smaller,
    Other(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

pub(super) struct OutgoingCalls {
    common: Arc<MeshState>,
    attempts: BTreeMap<RailPlace, Attempt>,
}

/// The number of a lane's connection.
fn number(place: RailPlace, lane: Lane) -> u64 {
    let place_index = u64::from(place.slot) * MAX_WORKERS as u64 + u64::from(place.worker);
    (u64::from(place.peer.0) * PLACES + place_index) * LANES as u64 + lane.index() as u64
}

/// The place and lane with this number.
fn numbered(number: u64) -> (RailPlace, Lane) {
    let (place, lane) = (number / LANES as u64, number as usize % LANES);
    let (peer, place_index) = (place / PLACES, place % PLACES);
    let (slot, worker) = (place_index / MAX_WORKERS as u64, place_index % MAX_WORKERS as u64);
    (RailPlace { peer: NodeId(peer as u8), slot: slot as u8, worker: worker as u8 }, Lane::ALL[lane])
}

impl OutgoingCalls {
    pub(super) fn new(common: Arc<MeshState>) -> Self {
        Self { common, attempts: BTreeMap::new() }
    }

    /// Makes the calls that are due and gives up those that take too long; returns when to look
    /// again.
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

    /// The time at which each attempt takes too long.
    fn ends(&self) -> BTreeMap<RailPlace, Instant> {
        let pairs = self.common.pairs();
        let end = |place: &RailPlace, attempt: &Attempt| {
            let dialling = pairs.get(&place.peer).filter(|_| attempt.is_dialling());
            let limit = dialling.map_or(HANDSHAKE, |pair| pair.dial_timeout(place.slot, place.worker));
            (*place, attempt.began + limit)
        };
        self.attempts.iter().map(|(place, attempt)| end(place, attempt)).collect()
    }

    /// The places whose rail is missing and not being made, and the time of their next attempt.
    fn wanted(&self) -> Vec<(RailPlace, Path, Option<Instant>)> {
        let pairs = self.common.pairs();
        let slots = self.common.called().filter_map(|peer| Some((peer.id, pairs.get(&peer.id)?)));
        let slots = slots.flat_map(|(peer, pair)| {
            let paths = pair.paths.iter().enumerate().filter(|(_, path)| path.kind != RailKind::Shm);
            paths.flat_map(move |(slot, path)| {
                let slot = slot as u8;
                let missing = pair.missing(slot);
                missing.map(move |(worker, due)| (RailPlace { peer, slot, worker }, *path, due))
            })
        });
        slots.filter(|(place, ..)| !self.attempts.contains_key(place)).collect()
    }

    fn attempt(
        &mut self,
        epoll: &OwnedFd,
        token: &impl Fn(u64) -> u64,
        place: RailPlace,
        path: Path,
        key: usize,
        now: Instant,
    ) {
        let clamp = self.common.pairs().get(&place.peer).map_or(0, |pair| pair.clamp(place.slot));
        let dial = |lane: Lane| -> io::Result<LaneCall> {
            let line = HandshakeStream::call(path.here, path.there, |socket| {
                if clamp == 0 { Ok(()) } else { plexus_fabric::tcp::clamp(socket, clamp.into()) }
            })?;
            line.register(epoll, token(number(place, lane)), true)?;
            Ok(LaneCall { line, stage: CallStage::Dialling })
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

    /// Handles an event on connection `number`.
    pub(super) fn readable(&mut self, epoll: &OwnedFd, token: impl Fn(u64) -> u64, number: u64) {
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
            let CallStage::Ready(session) = call.stage else { return None };
            Some(tcp::Lane { stream: call.line.into_stream(epoll).ok()?, keys: session.into_rail_keys() })
        });
        let lanes = <[tcp::Lane; LANES]>::try_from(lanes.collect::<Vec<_>>());
        let lanes = lanes.map_err(|_| "cannot take over a connection".to_owned());
        match lanes.and_then(|lanes| tcp::rail(&self.common, place.peer, lanes, peer_windows)) {
            Ok(rail) => {
                let incarnation = incarnation.expect("every lane was answered");
                let made = ConnectedRail { place, generation, rail, path: path.name() };
                self.common.attach_over(&path, made, incarnation);
            }
            Err(why) => self.common.failed(place, why),
        }
    }

    fn give_up(&mut self, epoll: &OwnedFd, token: &impl Fn(u64) -> u64, attempt: Attempt, failure: Failure) {
        let Attempt { place, path, key, .. } = attempt;
        // Its connections are closed before new ones are made.
        drop(attempt.lanes);
        match failure {
            Failure::ClosedUnanswered => match self.common.keys() {
                Ok(keys) if key + 1 < keys.len() => {
                    self.attempt(epoll, token, place, path, key + 1, Instant::now());
                }
                Ok(_) => self.common.failed(
                    place,
                    format!(
                        "{} closes the connection without an answer: it does not accept this node's key (compare keys/ on both machines) or is another program",
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
        common: &MeshState,
        lane: Lane,
        listen: impl FnOnce(&HandshakeStream) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let (place, path) = (self.place, self.path);
        let Some(call) = &mut self.lanes[lane.index()] else { return Ok(()) };
        let broken = |error: io::Error| format!("{}: handshake: {error}", path.there);
        match std::mem::replace(&mut call.stage, CallStage::Dialling) {
            CallStage::Dialling => {
                let connected = call.line.is_connected();
                if !connected.map_err(|error| format!("no answer at {}: {error}", path.there))? {
                    return Ok(());
                }
                let keys = common.keys()?;
                let key = keys.get(self.key).or(keys.first()).ok_or("there is no key".to_owned())?;
                let clamp = common.pairs().get(&place.peer).map_or(0, |pair| pair.clamp(place.slot));
                let hello = common.hello(place, path.kind, lane, self.generation, clamp);
                let (calling, greeting) = noise::call(key, common.config.cluster, &hello.encode());
                call.line.send(&greeting, GREETING).map_err(broken)?;
                listen(&call.line).map_err(broken)?;
                call.stage = CallStage::Greeted(Box::new(calling));
            }
            CallStage::Greeted(calling) => {
                let answer = match call.line.receive() {
                    Ok(Some(answer)) => answer,
                    Ok(None) => {
                        call.stage = CallStage::Greeted(calling);
                        return Ok(());
                    }
                    Err(_) => return Err(Failure::ClosedUnanswered),
                };
                let answer: &[u8; GREETING] = answer[..].try_into().expect("the length that was expected");
                let (answer, mut session) =
                    calling.answered(answer).map_err(|why| format!("{}: {why}", path.there))?;
                self.incarnation = Some(accept(common, place, self.incarnation, &answer)?);
                let ours = session.seal(&tcp::our_spans(common));
                call.line.send(&ours, SEALED_SPANS).map_err(broken)?;
                call.stage = CallStage::Answered(Box::new(session));
            }
            CallStage::Answered(mut session) => match call.line.receive().map_err(broken)? {
                None => call.stage = CallStage::Answered(session),
                Some(mut message) => {
                    let spans = session.open(&mut message).map_err(|why| format!("{}: {why}", path.there))?;
                    self.peer_windows = tcp::their_spans(spans)?;
                    call.stage = CallStage::Ready(session);
                }
            },
            CallStage::Ready(session) => {
                // No message is expected, so the other end has closed.
                call.line.receive().map_err(broken)?;
                call.stage = CallStage::Ready(session);
            }
        }
        Ok(())
    }

    /// Returns true if a lane is not connected yet.
    fn is_dialling(&self) -> bool {
        self.lanes.iter().flatten().any(|call| matches!(call.stage, CallStage::Dialling))
    }

    fn is_ready(&self) -> bool {
        self.lanes.iter().flatten().all(|call| matches!(call.stage, CallStage::Ready(_)))
    }

    /// Tells the other end that all lanes are ready.
    fn go(&mut self, common: &MeshState) -> Result<(), Failure> {
        let RailPlace { peer, slot, worker } = self.place;
        if let Some(pair) = common.pairs().get_mut(&peer) {
            pair.use_generation(slot, worker, self.generation);
        }
        for call in self.lanes.iter_mut().flatten() {
            if let CallStage::Ready(session) = &mut call.stage {
                let sent = call.line.send(&session.seal(&GO), 0);
                sent.map_err(|error| format!("{}: handshake: {error}", self.path.there))?;
            }
        }
        Ok(())
    }
}

/// Checks the answer, and that it is from the same incarnation of the peer as those on the other
/// lanes.
fn accept(
    common: &MeshState,
    place: RailPlace,
    known: Option<Incarnation>,
    answer: &[u8; HELLO],
) -> Result<Incarnation, Failure> {
    let answer = common.accepted(answer, place.peer)?;
    if known.is_some_and(|known| known != answer.incarnation) {
        return Err(Failure::Other("the peer restarted during the handshake".into()));
    }
    let mut pairs = common.pairs();
    if pairs.get_mut(&place.peer).is_some_and(|pair| pair.clamped(place.slot, answer.clamp)) {
        return Err(Failure::Smaller);
    }
    Ok(answer.incarnation)
}
