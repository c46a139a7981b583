//! What a node knows of one peer: the rails that the two can have, which are up, and when to try again.
//!
//! Each place for a rail is a *slot*; both ends number the slots alike, because they read the same configuration. In each
//! slot every worker has at most one rail, and the node with the higher number connects it; its *generation* counts how
//! often that was brought to an end (whoever says `go` uses one up). A newer generation replaces an older one, an older one is refused; all are with one
//! incarnation of the peer.
//!
//! Nothing here touches a socket or reads a clock.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use plexus_base::Incarnation;
use plexus_fabric::{Lost, RailKind};

use super::hello::{Hello, Refusal};
use crate::link::protocol::SLOTS;

/// Most slots of a pair.
pub const MAX_SLOTS: usize = SLOTS;

/// The first pause after an attempt in vain; each that follows is twice as long.
const RETRY: Duration = Duration::from_millis(50);

/// The longest pause while a worker has no rail to the peer at all: others wait for it, and not for long.
const RETRY_AWAITED: Duration = Duration::from_millis(100);

/// The longest pause.
const RETRY_LONGEST: Duration = Duration::from_secs(2);

/// How long a call may take to be answered while a worker has no rail to the peer at all: many fit in a link's timeout.
const DIAL_AWAITED: Duration = Duration::from_millis(150);

/// How long it may take otherwise, or once [`DIAL_AWAITED`] was too short so many times that the way may be a long one.
const DIAL_LONGEST: Duration = Duration::from_millis(500);
const LONG_WAY_AFTER: u32 = 6;

/// A rail that lived this long had been made well; one that did not is tried again ever more slowly.
const LASTING: Duration = Duration::from_secs(2);

/// How long a pair whose workers all have a rail waits for those that it could have beside it, at the start.
pub(super) const COMPLETE_WITHIN: Duration = Duration::from_secs(1);

/// Largest segments that are tried in turn on a path that swallows larger ones, in bytes: below the payload of Ethernet
/// under a tunnel, below the smallest packet of IPv6, and what every path must carry.
const CLAMPS: [u16; 3] = [1400, 1200, 536];

/// A path whose rail lived this long is not known to be narrow any more: larger segments are tried with its next rail. Both
/// ends saw the same rail live, so both forget.
const NARROW_FOR: Duration = Duration::from_secs(600);

/// What a slot's rail runs over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Path {
    pub(super) kind: RailKind,
    /// From this node's address to the peer's of the same place; the first ones for what needs no address.
    pub(super) here: SocketAddr,
    pub(super) there: SocketAddr,
}

impl Path {
    /// For people.
    pub(super) fn name(&self) -> String {
        match self.kind {
            RailKind::Shm => "memory".into(),
            RailKind::Ofi | RailKind::Tcp => format!("{} -> {}", self.here, self.there),
        }
    }
}

/// The slots of two nodes: for each kind that both can use, in their order of preference, one, or for TCP one for
/// each pair of addresses. Memory needs no other beside it: it is lost with the peer, and only then.
pub(super) fn paths(rails: &[RailKind], here: &[SocketAddr], there: &[SocketAddr]) -> Vec<Path> {
    let ways = here.iter().zip(there);
    let rails = if rails.contains(&RailKind::Shm) { &[RailKind::Shm] } else { rails };
    let paths = rails.iter().flat_map(|kind| {
        let count = if *kind == RailKind::Tcp { MAX_SLOTS } else { 1 };
        ways.clone().take(count).map(|(here, there)| Path { kind: *kind, here: *here, there: *there })
    });
    paths.take(MAX_SLOTS).collect()
}

/// How far it is with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// No incarnation of it is let in yet.
    Out,
    /// Not every worker has a link to it yet.
    Awaited,
    Connected,
    /// It is not let in again.
    Gone,
}

/// Which lives of its peers a node lets in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Of each the first that comes, and none after it.
    First,
    /// Those that [`Mesh::admit`](super::Mesh::admit) names.
    AsTold,
}

/// One worker's rail in one slot.
#[derive(Clone, Debug, Default)]
struct Seat {
    generation: u32,
    /// The last one that this node has said *go* to, whether a rail came of it or not.
    said: u32,
    up: bool,
    since: Option<Instant>,
    failures: u32,
    /// Not before then; none: at once.
    due: Option<Instant>,
}

/// What is known of a peer.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) standing: Standing,
    pub(super) paths: Vec<Path>,
    /// Why a kind of rail that the configuration gives this pair is not used.
    pub(super) left_out: Option<&'static str>,
    /// By slot: what stands in the way, for people.
    problems: Vec<Option<String>>,
    incarnation: Option<Incarnation>,
    /// By slot, then worker.
    seats: Vec<Vec<Seat>>,
    /// By slot: the largest segment, once larger ones were swallowed.
    clamps: Vec<Option<u16>>,
    /// Since when every worker has a rail.
    linked: Option<Instant>,
}

impl Pair {
    /// Of a peer whose first incarnation that comes is let in, or none until it is [admitted](Self::admit).
    pub(super) fn new(paths: Vec<Path>, workers: u8, lets_in: Admission) -> Self {
        let seat = Seat::default();
        Self {
            standing: match lets_in {
                Admission::First => Standing::Awaited,
                Admission::AsTold => Standing::Out,
            },
            left_out: None,
            problems: vec![None; paths.len()],
            incarnation: None,
            seats: vec![vec![seat; usize::from(workers)]; paths.len()],
            clamps: vec![None; paths.len()],
            linked: None,
            paths,
        }
    }

    /// From now on this incarnation is let in, and no other; whether that is news.
    pub(super) fn admit(&mut self, incarnation: Incarnation) -> bool {
        if self.incarnation == Some(incarnation) {
            return false;
        }
        (self.standing, self.incarnation, self.linked) = (Standing::Awaited, Some(incarnation), None);
        self.seats.iter_mut().flatten().for_each(|seat| *seat = Seat::default());
        self.problems.iter_mut().for_each(|problem| *problem = None);
        true
    }

    /// Whether rails to it are wanted at all.
    pub(super) fn is_in(&self) -> bool {
        matches!(self.standing, Standing::Awaited | Standing::Connected)
    }

    /// Why a caller with this hello, which is known to be from the peer, cannot have what it asks for.
    pub(super) fn judge(&self, hello: &Hello) -> Option<Refusal> {
        let slot = usize::from(hello.slot);
        if self.paths.get(slot).is_none_or(|path| path.kind != hello.rail) {
            return Some(Refusal::Settings);
        }
        let Some(seat) = self.seats[slot].get(usize::from(hello.worker)) else {
            return Some(Refusal::Settings);
        };
        if !self.is_in() || self.is_another(hello.incarnation) {
            return Some(Refusal::NoMember);
        }
        (hello.generation <= seat.generation).then_some(Refusal::Connected)
    }

    /// Whether that is not the incarnation of the peer that this node has met.
    pub(super) fn is_another(&self, incarnation: Incarnation) -> bool {
        self.incarnation.is_some_and(|known| known != incarnation)
    }

    /// The generation that the next rail has.
    pub(super) fn next_generation(&self, slot: u8, worker: u8) -> u32 {
        let seat = &self.seats[usize::from(slot)][usize::from(worker)];
        seat.generation.max(seat.said) + 1
    }

    /// Uses a generation up: *go* is about to be said.
    pub(super) fn says(&mut self, slot: u8, worker: u8, generation: u32) {
        self.seats[usize::from(slot)][usize::from(worker)].said = generation;
    }

    /// Notes that a rail is about to be handed to its worker; whether it may.
    pub(super) fn seat(
        &mut self,
        slot: u8,
        worker: u8,
        generation: u32,
        incarnation: Incarnation,
        now: Instant,
    ) -> bool {
        if !self.is_in() || self.is_another(incarnation) {
            return false;
        }
        let seat = &mut self.seats[usize::from(slot)][usize::from(worker)];
        if generation <= seat.generation {
            return false;
        }
        self.incarnation = Some(incarnation);
        *seat = Seat { generation, up: true, since: Some(now), due: None, ..*seat };
        self.problems[usize::from(slot)] = None;
        true
    }

    /// Notes that a rail is lost.
    pub(super) fn unseat(&mut self, slot: u8, worker: u8, generation: u32, why: &Lost, now: Instant) {
        let seat = &mut self.seats[usize::from(slot)][usize::from(worker)];
        if seat.generation != generation || !std::mem::take(&mut seat.up) {
            return;
        }
        let lived = seat.since.map_or(Duration::ZERO, |since| now - since);
        if lived >= LASTING {
            seat.failures = 0;
        }
        if *why == Lost::Stalled {
            let clamp = &mut self.clamps[usize::from(slot)];
            *clamp = CLAMPS.into_iter().find(|step| clamp.is_none_or(|now| *step < now)).or(*clamp);
        } else if lived >= NARROW_FOR {
            self.clamps[usize::from(slot)] = None;
        }
        self.failed(slot, worker, now);
    }

    /// What stands in the way of each path that is not there, and what is left out on purpose.
    pub(super) fn problem(&self) -> Option<String> {
        let mut problems: Vec<&str> = self.problems.iter().flatten().map(String::as_str).collect();
        problems.extend(self.left_out);
        problems.dedup();
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    /// Notes why the attempts for a slot are in vain, until one is not.
    pub(super) fn hindered(&mut self, slot: u8, why: String) {
        self.problems[usize::from(slot)] = Some(why);
    }

    /// The rails that never were up, slot and worker.
    pub(super) fn never_up(&self) -> impl Iterator<Item = (u8, u8)> {
        let seats = self
            .seats
            .iter()
            .zip(0..)
            .flat_map(|(seats, slot)| seats.iter().zip(0..).map(move |s| (slot, s)));
        seats.filter(|(_, (seat, _))| seat.generation == 0).map(|(slot, (_, worker))| (slot, worker))
    }

    /// Notes an attempt in vain.
    pub(super) fn failed(&mut self, slot: u8, worker: u8, now: Instant) {
        let longest = if self.is_linked(worker) { RETRY_LONGEST } else { RETRY_AWAITED };
        let seat = &mut self.seats[usize::from(slot)][usize::from(worker)];
        seat.due = Some(now + longest.min(RETRY * (1 << seat.failures.min(6))));
        seat.failures += 1;
    }

    /// The rail of a seat is being made elsewhere: it is not tried again before `until`.
    #[cfg(feature = "libfabric")]
    pub(super) fn hold(&mut self, slot: u8, worker: u8, until: Instant) {
        self.seats[usize::from(slot)][usize::from(worker)].due = Some(until);
    }

    /// Largest segment to ask for in `slot`; 0: any.
    pub(super) fn clamp(&self, slot: u8) -> u16 {
        self.clamps[usize::from(slot)].unwrap_or(0)
    }

    /// The peer has found that larger segments than this are swallowed; whether that is news.
    pub(super) fn clamped(&mut self, slot: u8, clamp: u16) -> bool {
        let known = &mut self.clamps[usize::from(slot)];
        let news = CLAMPS.contains(&clamp) && known.is_none_or(|known| clamp < known);
        if news {
            *known = Some(clamp);
        }
        news
    }

    /// The workers whose rail in `slot` should be connected, each not before when (none: now).
    pub(super) fn missing(&self, slot: u8) -> impl Iterator<Item = (u8, Option<Instant>)> {
        let seats = if self.is_in() { &self.seats[usize::from(slot)] } else { &[][..] };
        seats.iter().zip(0..).filter(|(seat, _)| !seat.up).map(|(seat, worker)| (worker, seat.due))
    }

    /// How long a call for this rail may go unanswered.
    pub(super) fn dialling(&self, slot: u8, worker: u8) -> Duration {
        let failures = self.seats[usize::from(slot)][usize::from(worker)].failures;
        if self.is_linked(worker) || failures >= LONG_WAY_AFTER { DIAL_LONGEST } else { DIAL_AWAITED }
    }

    /// Whether a worker has any rail to the peer.
    fn is_linked(&self, worker: u8) -> bool {
        self.seats.iter().any(|slot| slot[usize::from(worker)].up)
    }

    /// Looks whether the pair is connected by now; when to look again.
    pub(super) fn look(&mut self, now: Instant) -> Option<Instant> {
        if self.standing != Standing::Awaited {
            return None;
        }
        let workers = self.seats.first()?.len();
        let linked = (0..workers).all(|worker| self.is_linked(worker as u8));
        if !linked {
            self.linked = None;
            return None;
        }
        let until = *self.linked.get_or_insert(now) + COMPLETE_WITHIN;
        if now >= until || self.seats.iter().flatten().all(|seat| seat.up) {
            self.standing = Standing::Connected;
            return None;
        }
        Some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn pair(rails: &[RailKind], addresses: u16, workers: u8) -> Pair {
        let [here, there] =
            [7000, 8000].map(|port| (0..addresses).map(|n| address(port + n)).collect::<Vec<_>>());
        Pair::new(paths(rails, &here, &there), workers, Admission::First)
    }

    fn hello(slot: u8, worker: u8, generation: u32, incarnation: u64) -> Hello {
        let incarnation = Incarnation(incarnation);
        Hello { slot, worker, generation, incarnation, ..Hello::example() }
    }

    #[test]
    fn slots_follow_the_order_of_the_rails_and_the_addresses() {
        let names = |pair: &Pair| pair.paths.iter().map(Path::name).collect::<Vec<_>>();
        let tcp = |n| format!("127.0.0.1:{} -> 127.0.0.1:{}", 7000 + n, 8000 + n);
        let over_networks = pair(&[RailKind::Ofi, RailKind::Tcp], 3, 1);
        assert_eq!(names(&over_networks), [tcp(0), tcp(0), tcp(1), tcp(2)]);
        assert_eq!(names(&pair(&[RailKind::Tcp, RailKind::Shm], 3, 1)), ["memory"]);
        assert_eq!(super::tests::pair(&[RailKind::Tcp], 20, 1).paths.len(), MAX_SLOTS);
        assert!(paths(&[RailKind::Tcp], &[address(1), address(2)], &[address(3)]).len() == 1);
    }

    #[test]
    fn only_a_newer_rail_of_the_same_incarnation_is_let_in() {
        let now = Instant::now();
        let mut pair = pair(&[RailKind::Tcp], 2, 2);
        assert_eq!(pair.judge(&hello(0, 1, 1, 5)), None);
        assert!(pair.seat(0, 1, 1, Incarnation(5), now));
        assert_eq!(pair.judge(&hello(0, 1, 1, 5)), Some(Refusal::Connected));
        assert_eq!(pair.judge(&hello(0, 1, 2, 5)), None);
        assert_eq!(pair.judge(&hello(0, 0, 1, 5)), None, "another worker's");
        assert_eq!(pair.judge(&hello(1, 1, 1, 6)), Some(Refusal::NoMember), "another incarnation");
        assert_eq!(pair.judge(&hello(2, 0, 1, 5)), Some(Refusal::Settings), "no such slot");
        assert_eq!(pair.judge(&hello(0, 2, 1, 5)), Some(Refusal::Settings), "no such worker");
        assert!(!pair.seat(0, 1, 1, Incarnation(5), now), "what was judged may have changed since");
        assert!(!pair.seat(0, 0, 1, Incarnation(6), now));
        pair.standing = Standing::Gone;
        assert_eq!(pair.judge(&hello(0, 0, 1, 5)), Some(Refusal::NoMember));
    }

    #[test]
    fn a_pair_is_connected_when_all_its_rails_are_or_were_waited_for() {
        let now = Instant::now();
        let mut pair = pair(&[RailKind::Tcp], 2, 2);
        pair.seat(0, 0, 1, Incarnation(5), now);
        assert_eq!(pair.look(now + COMPLETE_WITHIN * 9), None);
        assert_eq!(pair.standing, Standing::Awaited, "a worker has no link");
        pair.seat(1, 1, 1, Incarnation(5), now);
        assert_eq!(pair.look(now), Some(now + COMPLETE_WITHIN));
        assert_eq!(pair.standing, Standing::Awaited);
        pair.look(now + COMPLETE_WITHIN);
        assert_eq!(pair.standing, Standing::Connected, "waited for long enough");
        let mut pair = super::tests::pair(&[RailKind::Tcp], 1, 2);
        pair.seat(0, 0, 1, Incarnation(5), now);
        pair.seat(0, 1, 1, Incarnation(5), now);
        pair.look(now);
        assert_eq!(pair.standing, Standing::Connected, "nothing to wait for");
    }

    #[test]
    fn what_is_lost_is_tried_again_ever_more_slowly_until_it_lasts() {
        let start = Instant::now();
        let mut pair = pair(&[RailKind::Tcp], 2, 1);
        let missing = |pair: &Pair| pair.missing(0).collect::<Vec<_>>();
        assert_eq!(missing(&pair), [(0, None)]);
        pair.seat(0, 0, 1, Incarnation(5), start);
        pair.look(start);
        assert_eq!(missing(&pair), [], "it is up");
        let pause = |pair: &Pair, now| pair.missing(0).next().unwrap().1.unwrap() - now;
        pair.unseat(0, 0, 1, &Lost::Silent, start);
        assert_eq!(pause(&pair, start), RETRY);
        pair.unseat(0, 0, 1, &Lost::Silent, start);
        assert_eq!(pause(&pair, start), RETRY, "told twice");
        for _ in 0..20 {
            pair.failed(0, 0, start);
        }
        assert_eq!(pause(&pair, start), RETRY_AWAITED, "no other rail is up");
        pair.seat(1, 0, 1, Incarnation(5), start);
        pair.failed(0, 0, start);
        assert_eq!(pause(&pair, start), RETRY_LONGEST);
        assert_eq!(pair.next_generation(0, 0), 2);
        pair.says(0, 0, 2);
        assert_eq!(pair.next_generation(0, 0), 3, "the other end may have heard it");
        pair.seat(0, 0, 2, Incarnation(5), start);
        pair.unseat(0, 0, 1, &Lost::Silent, start);
        assert_eq!(missing(&pair), [], "an older one was lost");
        pair.unseat(0, 0, 2, &Lost::Silent, start + LASTING);
        assert_eq!(pause(&pair, start + LASTING), RETRY, "it had lasted");
    }

    #[test]
    fn a_call_waits_less_while_a_worker_has_no_rail() {
        let now = Instant::now();
        let mut pair = pair(&[RailKind::Tcp], 2, 2);
        pair.seat(0, 1, 1, Incarnation(5), now);
        assert_eq!([pair.dialling(1, 0), pair.dialling(1, 1)], [DIAL_AWAITED, DIAL_LONGEST]);
        pair.unseat(0, 1, 1, &Lost::Silent, now);
        assert_eq!(pair.dialling(1, 1), DIAL_AWAITED, "its other rail is lost");
        (0..LONG_WAY_AFTER).for_each(|_| pair.failed(1, 1, now));
        assert_eq!([pair.dialling(1, 1), pair.dialling(0, 1)], [DIAL_LONGEST, DIAL_AWAITED]);
    }

    #[test]
    fn a_path_that_swallows_segments_gets_smaller_ones() {
        let now = Instant::now();
        let mut pair = pair(&[RailKind::Tcp], 1, 1);
        let mut seen = Vec::new();
        for generation in 1..6 {
            seen.push(pair.clamp(0));
            pair.seat(0, 0, generation, Incarnation(5), now);
            pair.unseat(0, 0, generation, &Lost::Stalled, now);
        }
        assert_eq!(seen, [0, 1400, 1200, 536, 536]);
        // Lost for another reason: soon after, nothing is known; after long, the path may be another.
        for (generation, lived, clamp) in [(6, LASTING, 536), (7, NARROW_FOR, 0)] {
            pair.seat(0, 0, generation, Incarnation(5), now);
            pair.unseat(0, 0, generation, &Lost::Silent, now + lived);
            assert_eq!(pair.clamp(0), clamp);
        }
        let mut other = super::tests::pair(&[RailKind::Tcp], 1, 1);
        assert!(other.clamped(0, 1200) && !other.clamped(0, 1400) && !other.clamped(0, 77));
        assert_eq!(other.clamp(0), 1200);
    }
}
