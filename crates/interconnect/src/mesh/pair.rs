//! The state of one peer: the rails that the pair can have, those that are up, and the times of the
//! next attempts.
//!
//! Each place for a rail is a *slot*; both ends number the slots alike, because they read the same
//! configuration. In each slot every worker has at most one rail, which the node with the higher
//! number connects. Its *generation* counts the completed connections; the node that sends `go`
//! uses one up. A newer generation replaces an older one, and an older one is refused. All rails
//! belong to one incarnation of the peer.
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

/// The maximum number of slots of a pair.
pub const MAX_SLOTS: usize = SLOTS;

/// The first pause after a failed attempt; each further pause is twice as long.
const RETRY: Duration = Duration::from_millis(50);

/// The longest pause while a worker has no rail to the peer at all: other nodes wait for it.
const RETRY_AWAITED: Duration = Duration::from_millis(100);

/// The longest pause.
const RETRY_LONGEST: Duration = Duration::from_secs(2);

/// The timeout of a dial while a worker has no rail to the peer at all: many fit in a link's
/// timeout.
const DIAL_AWAITED: Duration = Duration::from_millis(150);

/// The timeout of a dial otherwise, or after so many dials that [`DIAL_AWAITED`] seems too short
/// for the path.
const DIAL_LONGEST: Duration = Duration::from_millis(500);
const LONG_WAY_AFTER: u32 = 6;

/// The lifetime that shows a good rail; after a shorter one the attempts become ever rarer.
const LASTING: Duration = Duration::from_secs(2);

/// The time for which a pair whose workers all have a rail waits at the start for its other rails.
pub(super) const COMPLETE_WITHIN: Duration = Duration::from_secs(1);

/// The segment sizes in bytes tried in turn on a path that drops larger ones: below the payload of
/// Ethernet under a tunnel, below the smallest packet of IPv6, and the size that every path must
/// carry.
const CLAMPS: [u16; 3] = [1400, 1200, 536];

/// A path whose rail lived this long is no longer taken for a narrow one: its next rail uses larger
/// segments again. Both ends saw the same rail live, so both forget.
const NARROW_FOR: Duration = Duration::from_secs(600);

/// The path of a slot's rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Path {
    pub(super) kind: RailKind,
    /// The own address, and the peer's of the same position; the first ones for rails that need no
    /// address.
    pub(super) here: SocketAddr,
    pub(super) there: SocketAddr,
}

impl Path {
    /// The path as shown in messages.
    pub(super) fn name(&self) -> String {
        match self.kind {
            RailKind::Shm => "memory".into(),
            RailKind::Ofi | RailKind::Tcp => format!("{} -> {}", self.here, self.there),
        }
    }
}

/// The slots of two nodes, in their order of preference: one for each kind that both can use, and
/// for TCP one for each pair of addresses. Shared memory needs no other rail beside it: it is lost
/// with the peer, and only then. The slots of TCP behind it are for nodes that turn out to run in
/// different PID namespaces.
pub(super) fn paths(rails: &[RailKind], here: &[SocketAddr], there: &[SocketAddr]) -> Vec<Path> {
    let ways = here.iter().zip(there);
    let rails: &[_] = match (rails.contains(&RailKind::Shm), rails.contains(&RailKind::Tcp)) {
        (true, true) => &[RailKind::Shm, RailKind::Tcp],
        (true, false) => &[RailKind::Shm],
        _ => rails,
    };
    let paths = rails.iter().flat_map(|kind| {
        let count = if *kind == RailKind::Tcp { MAX_SLOTS } else { 1 };
        ways.clone().take(count).map(|(here, there)| Path { kind: *kind, here: *here, there: *there })
    });
    paths.take(MAX_SLOTS).collect()
}

/// The progress with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PeerState {
    /// No incarnation of the peer is admitted yet.
    NotAdmitted,
    /// Not every worker has a link to the peer yet.
    Awaited,
    Connected,
    /// This incarnation is gone and not admitted again.
    Gone,
}

/// The rule for the incarnations of peers that a node admits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// The first incarnation of each peer that connects, and none after it.
    First,
    /// Those that [`Mesh::admit`](super::Mesh::admit) names.
    Named,
}

/// One worker's rail in one slot.
#[derive(Clone, Debug, Default)]
struct WorkerRail {
    generation: u32,
    /// The last generation for which this node has sent *go*, even if no rail came of it.
    used: u32,
    up: bool,
    since: Option<Instant>,
    failures: u32,
    /// The time of the next attempt; `None`: now.
    due: Option<Instant>,
}

/// The state of a peer.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) peer_state: PeerState,
    pub(super) paths: Vec<Path>,
    /// The reason why a configured kind of rail is not used.
    pub(super) left_out: Option<&'static str>,
    /// True if this incarnation of the peer runs in another PID namespace: the slots behind the one
    /// of shared memory are used in place of it.
    is_apart: bool,
    /// The current problem by slot, as shown to users.
    problems: Vec<Option<String>>,
    incarnation: Option<Incarnation>,
    /// The rails by slot, then worker.
    rails: Vec<Vec<WorkerRail>>,
    /// The largest segment by slot, once larger ones were dropped.
    clamps: Vec<Option<u16>>,
    /// The time since which every worker has a rail.
    linked: Option<Instant>,
}

impl Pair {
    /// The state of a new peer: its first incarnation that connects is admitted, or none until
    /// [`admit`](Self::admit).
    pub(super) fn new(paths: Vec<Path>, workers: u8, lets_in: Admission) -> Self {
        let rail = WorkerRail::default();
        Self {
            peer_state: match lets_in {
                Admission::First => PeerState::Awaited,
                Admission::Named => PeerState::NotAdmitted,
            },
            left_out: None,
            is_apart: false,
            problems: vec![None; paths.len()],
            incarnation: None,
            rails: vec![vec![rail; usize::from(workers)]; paths.len()],
            clamps: vec![None; paths.len()],
            linked: None,
            paths,
        }
    }

    /// Admits this incarnation from now on, and no other; returns true if that is a change.
    pub(super) fn admit(&mut self, incarnation: Incarnation) -> bool {
        if self.incarnation == Some(incarnation) {
            return false;
        }
        (self.peer_state, self.incarnation, self.linked) = (PeerState::Awaited, Some(incarnation), None);
        self.is_apart = false;
        self.rails.iter_mut().flatten().for_each(|rail| *rail = WorkerRail::default());
        self.problems.iter_mut().for_each(|problem| *problem = None);
        true
    }

    /// Records that the peer runs in another PID namespace.
    pub(super) fn set_apart(&mut self) {
        self.is_apart = true;
        self.problems.iter_mut().for_each(|problem| *problem = None);
    }

    /// Returns true if rails are wanted in this slot.
    fn uses(&self, slot: usize) -> bool {
        let has_memory = self.paths.first().is_some_and(|path| path.kind == RailKind::Shm);
        !has_memory || (slot > 0) == self.is_apart
    }

    /// Returns true if rails to the peer are wanted.
    pub(super) fn is_admitted(&self) -> bool {
        matches!(self.peer_state, PeerState::Awaited | PeerState::Connected)
    }

    /// The reason to refuse the hello of an authenticated caller, if there is one.
    pub(super) fn check(&self, hello: &Hello) -> Option<Refusal> {
        let slot = usize::from(hello.slot);
        if self.paths.get(slot).is_none_or(|path| path.kind != hello.rail) {
            return Some(Refusal::Settings);
        }
        let Some(rail) = self.rails[slot].get(usize::from(hello.worker)) else {
            return Some(Refusal::Settings);
        };
        if !self.is_admitted() || self.is_other_incarnation(hello.incarnation) {
            return Some(Refusal::NoMember);
        }
        (hello.generation <= rail.generation).then_some(Refusal::Connected)
    }

    /// Returns true if this is another incarnation of the peer than the connected one.
    pub(super) fn is_other_incarnation(&self, incarnation: Incarnation) -> bool {
        self.incarnation.is_some_and(|known| known != incarnation)
    }

    /// The generation of the next rail.
    pub(super) fn next_generation(&self, slot: u8, worker: u8) -> u32 {
        let rail = &self.rails[usize::from(slot)][usize::from(worker)];
        rail.generation.max(rail.used) + 1
    }

    /// Uses up a generation before *go* is sent.
    pub(super) fn use_generation(&mut self, slot: u8, worker: u8, generation: u32) {
        self.rails[usize::from(slot)][usize::from(worker)].used = generation;
    }

    /// Records a rail that is about to be handed to its worker; returns false if it must not be.
    pub(super) fn rail_up(
        &mut self,
        slot: u8,
        worker: u8,
        generation: u32,
        incarnation: Incarnation,
        now: Instant,
    ) -> bool {
        if !self.is_admitted() || self.is_other_incarnation(incarnation) {
            return false;
        }
        let rail = &mut self.rails[usize::from(slot)][usize::from(worker)];
        if generation <= rail.generation {
            return false;
        }
        self.incarnation = Some(incarnation);
        // The node that connects has found out that the two are apart.
        self.is_apart |= self.paths[0].kind == RailKind::Shm && slot > 0;
        *rail = WorkerRail { generation, up: true, since: Some(now), due: None, ..*rail };
        self.problems[usize::from(slot)] = None;
        true
    }

    /// Records that a rail is lost.
    pub(super) fn rail_lost(&mut self, slot: u8, worker: u8, generation: u32, why: &Lost, now: Instant) {
        let rail = &mut self.rails[usize::from(slot)][usize::from(worker)];
        if rail.generation != generation || !std::mem::take(&mut rail.up) {
            return;
        }
        let lived = rail.since.map_or(Duration::ZERO, |since| now - since);
        if lived >= LASTING {
            rail.failures = 0;
        }
        if *why == Lost::Stalled {
            let clamp = &mut self.clamps[usize::from(slot)];
            *clamp = CLAMPS.into_iter().find(|step| clamp.is_none_or(|now| *step < now)).or(*clamp);
        } else if lived >= NARROW_FOR {
            self.clamps[usize::from(slot)] = None;
        }
        self.failed(slot, worker, now);
    }

    /// The problems of all missing paths, and the kind of rail that is not used.
    pub(super) fn problem(&self) -> Option<String> {
        let mut problems: Vec<&str> = self.problems.iter().flatten().map(String::as_str).collect();
        problems.extend(self.left_out);
        let apart = Refusal::Apart.to_string();
        problems.extend(self.is_apart.then_some(&*apart));
        problems.dedup();
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    /// Records why the attempts for a slot fail, until one succeeds.
    pub(super) fn set_problem(&mut self, slot: u8, why: String) {
        self.problems[usize::from(slot)] = Some(why);
    }

    /// The slots and workers whose rail never was up.
    pub(super) fn never_up(&self) -> impl Iterator<Item = (u8, u8)> {
        let rails = self
            .rails
            .iter()
            .zip(0..)
            .flat_map(|(rails, slot)| rails.iter().zip(0..).map(move |s| (slot, s)));
        let rails = rails.filter(|(slot, _)| self.uses(usize::from(*slot)));
        rails.filter(|(_, (rail, _))| rail.generation == 0).map(|(slot, (_, worker))| (slot, worker))
    }

    /// Records a failed attempt.
    pub(super) fn failed(&mut self, slot: u8, worker: u8, now: Instant) {
        let longest = if self.is_linked(worker) { RETRY_LONGEST } else { RETRY_AWAITED };
        let rail = &mut self.rails[usize::from(slot)][usize::from(worker)];
        rail.due = Some(now + longest.min(RETRY * (1 << rail.failures.min(6))));
        rail.failures += 1;
    }

    /// Delays the next attempt until `until`, while the rail is being made elsewhere.
    #[cfg(feature = "libfabric")]
    pub(super) fn delay(&mut self, slot: u8, worker: u8, until: Instant) {
        self.rails[usize::from(slot)][usize::from(worker)].due = Some(until);
    }

    /// The largest segment to request in `slot`; 0: any.
    pub(super) fn clamp(&self, slot: u8) -> u16 {
        self.clamps[usize::from(slot)].unwrap_or(0)
    }

    /// Records the peer's finding that larger segments are dropped; returns true if that is new.
    pub(super) fn clamped(&mut self, slot: u8, clamp: u16) -> bool {
        let known = &mut self.clamps[usize::from(slot)];
        let is_new = CLAMPS.contains(&clamp) && known.is_none_or(|known| clamp < known);
        if is_new {
            *known = Some(clamp);
        }
        is_new
    }

    /// The workers whose rail in `slot` should be connected, each with its earliest time (`None`:
    /// now).
    pub(super) fn missing(&self, slot: u8) -> impl Iterator<Item = (u8, Option<Instant>)> {
        let is_wanted = self.is_admitted() && self.uses(usize::from(slot));
        let rails = if is_wanted { &self.rails[usize::from(slot)] } else { &[][..] };
        rails.iter().zip(0..).filter(|(rail, _)| !rail.up).map(|(rail, worker)| (worker, rail.due))
    }

    /// The timeout of a dial for this rail.
    pub(super) fn dial_timeout(&self, slot: u8, worker: u8) -> Duration {
        let failures = self.rails[usize::from(slot)][usize::from(worker)].failures;
        if self.is_linked(worker) || failures >= LONG_WAY_AFTER { DIAL_LONGEST } else { DIAL_AWAITED }
    }

    /// Returns true if a worker has any rail to the peer.
    fn is_linked(&self, worker: u8) -> bool {
        self.rails.iter().any(|slot| slot[usize::from(worker)].up)
    }

    /// Checks whether the pair is connected by now; returns when to check again.
    pub(super) fn look(&mut self, now: Instant) -> Option<Instant> {
        if self.peer_state != PeerState::Awaited {
            return None;
        }
        let workers = self.rails.first()?.len();
        let linked = (0..workers).all(|worker| self.is_linked(worker as u8));
        if !linked {
            self.linked = None;
            return None;
        }
        let until = *self.linked.get_or_insert(now) + COMPLETE_WITHIN;
        let mut used = self.rails.iter().enumerate().filter(|(slot, _)| self.uses(*slot));
        if now >= until || used.all(|(_, rails)| rails.iter().all(|rail| rail.up)) {
            self.peer_state = PeerState::Connected;
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
        assert_eq!(
            names(&pair(&[RailKind::Tcp, RailKind::Shm], 3, 1)),
            ["memory", &*tcp(0), &*tcp(1), &*tcp(2)]
        );
        assert_eq!(names(&pair(&[RailKind::Shm], 3, 1)), ["memory"]);
        assert_eq!(super::tests::pair(&[RailKind::Tcp], 20, 1).paths.len(), MAX_SLOTS);
        assert!(paths(&[RailKind::Tcp], &[address(1), address(2)], &[address(3)]).len() == 1);
    }

    #[test]
    fn only_a_newer_rail_of_the_same_incarnation_is_let_in() {
        let now = Instant::now();
        let mut pair = pair(&[RailKind::Tcp], 2, 2);
        assert_eq!(pair.check(&hello(0, 1, 1, 5)), None);
        assert!(pair.rail_up(0, 1, 1, Incarnation(5), now));
        assert_eq!(pair.check(&hello(0, 1, 1, 5)), Some(Refusal::Connected));
        assert_eq!(pair.check(&hello(0, 1, 2, 5)), None);
        assert_eq!(pair.check(&hello(0, 0, 1, 5)), None, "the rail of another worker");
        assert_eq!(pair.check(&hello(1, 1, 1, 6)), Some(Refusal::NoMember), "another incarnation");
        assert_eq!(pair.check(&hello(2, 0, 1, 5)), Some(Refusal::Settings), "no such slot");
        assert_eq!(pair.check(&hello(0, 2, 1, 5)), Some(Refusal::Settings), "no such worker");
        assert!(!pair.rail_up(0, 1, 1, Incarnation(5), now), "the state may have changed since the check");
        assert!(!pair.rail_up(0, 0, 1, Incarnation(6), now));
        pair.peer_state = PeerState::Gone;
        assert_eq!(pair.check(&hello(0, 0, 1, 5)), Some(Refusal::NoMember));
    }

    #[test]
    fn a_pair_is_connected_when_its_rails_are_or_the_wait_is_over() {
        let now = Instant::now();
        let mut pair = pair(&[RailKind::Tcp], 2, 2);
        pair.rail_up(0, 0, 1, Incarnation(5), now);
        assert_eq!(pair.look(now + COMPLETE_WITHIN * 9), None);
        assert_eq!(pair.peer_state, PeerState::Awaited, "a worker has no link");
        pair.rail_up(1, 1, 1, Incarnation(5), now);
        assert_eq!(pair.look(now), Some(now + COMPLETE_WITHIN));
        assert_eq!(pair.peer_state, PeerState::Awaited);
        pair.look(now + COMPLETE_WITHIN);
        assert_eq!(pair.peer_state, PeerState::Connected, "waited for long enough");
        let mut pair = super::tests::pair(&[RailKind::Tcp], 1, 2);
        pair.rail_up(0, 0, 1, Incarnation(5), now);
        pair.rail_up(0, 1, 1, Incarnation(5), now);
        pair.look(now);
        assert_eq!(pair.peer_state, PeerState::Connected, "no rail is missing");
    }

    #[test]
    fn retries_slow_down_until_a_rail_lasts() {
        let start = Instant::now();
        let mut pair = pair(&[RailKind::Tcp], 2, 1);
        let missing = |pair: &Pair| pair.missing(0).collect::<Vec<_>>();
        assert_eq!(missing(&pair), [(0, None)]);
        pair.rail_up(0, 0, 1, Incarnation(5), start);
        pair.look(start);
        assert_eq!(missing(&pair), [], "it is up");
        let pause = |pair: &Pair, now| pair.missing(0).next().unwrap().1.unwrap() - now;
        pair.rail_lost(0, 0, 1, &Lost::Silent, start);
        assert_eq!(pause(&pair, start), RETRY);
        pair.rail_lost(0, 0, 1, &Lost::Silent, start);
        assert_eq!(pause(&pair, start), RETRY, "a repeated report changes nothing");
        for _ in 0..20 {
            pair.failed(0, 0, start);
        }
        assert_eq!(pause(&pair, start), RETRY_AWAITED, "no other rail is up");
        pair.rail_up(1, 0, 1, Incarnation(5), start);
        pair.failed(0, 0, start);
        assert_eq!(pause(&pair, start), RETRY_LONGEST);
        assert_eq!(pair.next_generation(0, 0), 2);
        pair.use_generation(0, 0, 2);
        assert_eq!(pair.next_generation(0, 0), 3, "the other end may have received go");
        pair.rail_up(0, 0, 2, Incarnation(5), start);
        pair.rail_lost(0, 0, 1, &Lost::Silent, start);
        assert_eq!(missing(&pair), [], "an older one was lost");
        pair.rail_lost(0, 0, 2, &Lost::Silent, start + LASTING);
        assert_eq!(pause(&pair, start + LASTING), RETRY, "the rail had lasted");
    }

    #[test]
    fn a_call_waits_less_while_a_worker_has_no_rail() {
        let now = Instant::now();
        let mut pair = pair(&[RailKind::Tcp], 2, 2);
        pair.rail_up(0, 1, 1, Incarnation(5), now);
        assert_eq!([pair.dial_timeout(1, 0), pair.dial_timeout(1, 1)], [DIAL_AWAITED, DIAL_LONGEST]);
        pair.rail_lost(0, 1, 1, &Lost::Silent, now);
        assert_eq!(pair.dial_timeout(1, 1), DIAL_AWAITED, "its other rail is lost");
        (0..LONG_WAY_AFTER).for_each(|_| pair.failed(1, 1, now));
        assert_eq!([pair.dial_timeout(1, 1), pair.dial_timeout(0, 1)], [DIAL_LONGEST, DIAL_AWAITED]);
    }

    #[test]
    fn a_path_that_drops_segments_gets_smaller_ones() {
        let now = Instant::now();
        let mut pair = pair(&[RailKind::Tcp], 1, 1);
        let mut seen = Vec::new();
        for generation in 1..6 {
            seen.push(pair.clamp(0));
            pair.rail_up(0, 0, generation, Incarnation(5), now);
            pair.rail_lost(0, 0, generation, &Lost::Stalled, now);
        }
        assert_eq!(seen, [0, 1400, 1200, 536, 536]);
        // After another reason the limit stays for a while; after a long time the path may be
        // another.
        for (generation, lived, clamp) in [(6, LASTING, 536), (7, NARROW_FOR, 0)] {
            pair.rail_up(0, 0, generation, Incarnation(5), now);
            pair.rail_lost(0, 0, generation, &Lost::Silent, now + lived);
            assert_eq!(pair.clamp(0), clamp);
        }
        let mut other = super::tests::pair(&[RailKind::Tcp], 1, 1);
        assert!(other.clamped(0, 1200) && !other.clamped(0, 1400) && !other.clamped(0, 77));
        assert_eq!(other.clamp(0), 1200);
    }
}
