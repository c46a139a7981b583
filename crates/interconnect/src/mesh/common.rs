//! The state that all connecting threads share: this node, its peers, and the function that hands
//! new rails to workers.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use plexus_base::{Incarnation, MAX_NODES, NodeId, NodeSet, WorkerId, processes::ProcessSpace};
use plexus_fabric::{Event, Lane, Lost, Rail, RailKind, Windows};

use super::{
    Config, MeshError, Peer, event,
    hello::{HELLO, Hello, Refusal},
    keys::Key,
    pair::{Pair, Path, PeerState, paths},
    warned::RateLimitedWarnings,
};
use crate::{RailReport, sync::lock};

/// The place of a rail: peer, slot and worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RailPlace {
    pub(super) peer: NodeId,
    pub(super) slot: u8,
    pub(super) worker: u8,
}

/// A connected rail for a worker.
pub(super) struct ConnectedRail {
    pub(super) place: RailPlace,
    pub(super) generation: u32,
    pub(super) rail: Box<dyn Rail>,
    /// Both ends of the path, as shown to users.
    pub(super) path: String,
}

/// Hands a worker its rail. It is called with the table of peers locked and must not lock it again.
pub(super) type AttachRail = Box<dyn Fn(ConnectedRail, Incarnation) + Send + Sync>;

/// Returns the number of this process's PID namespace; 0 if the system does not tell it.
fn namespace() -> u64 {
    ProcessSpace::own().map_or(0, |space| space.namespace)
}

/// The reason why a pair that lists libfabric does not use it.
const OFI_LEFT_OUT: &str = if cfg!(feature = "libfabric") {
    "ofi is not used, because it cannot encrypt and these two nodes must (`encrypt` under [interconnect])"
} else {
    "ofi is not used, because this build is without libfabric"
};

/// Returns true if a pair may use a rail of this kind: libfabric encrypts nothing, and may not be
/// built in.
fn may_carry(rail: RailKind, peer: &Peer) -> bool {
    rail != RailKind::Ofi || cfg!(feature = "libfabric") && !peer.encrypt
}

pub(super) struct MeshState {
    pub(super) config: Config,
    pub(super) workers: u8,
    pub(super) windows: Arc<Windows>,
    /// The peers by node number, once they are known.
    peers: [OnceLock<Peer>; MAX_NODES],
    pairs: Mutex<BTreeMap<NodeId, Pair>>,
    pub(super) changed: Condvar,
    unauthenticated: AtomicU64,
    /// The warnings given about refused peers.
    refused: Mutex<RateLimitedWarnings<(NodeId, Refusal)>>,
    stopping: AtomicBool,
    /// Wakes the network thread: a rail was lost or could not be made, or the node ends.
    pub(super) wake_network: Event,
    attach_rail: AttachRail,
}

impl MeshState {
    pub(super) fn new(
        mut config: Config,
        workers: u8,
        windows: Arc<Windows>,
        attach_rail: AttachRail,
    ) -> Result<Self, MeshError> {
        let peers = std::mem::take(&mut config.peers);
        let common = Self {
            peers: Default::default(),
            pairs: Mutex::default(),
            windows,
            config,
            workers,
            changed: Condvar::new(),
            unauthenticated: AtomicU64::new(0),
            refused: Mutex::default(),
            stopping: AtomicBool::new(false),
            wake_network: event()?,
            attach_rail,
        };
        for peer in peers {
            common.add_peer(peer);
        }
        Ok(common)
    }

    /// Adds a peer, unless it is known.
    pub(super) fn add_peer(&self, peer: Peer) {
        let rails: Vec<_> = peer.rails.iter().copied().filter(|rail| may_carry(*rail, &peer)).collect();
        let paths = paths(&rails, &self.config.listen, &peer.addresses);
        let mut pair = Pair::new(paths, self.workers, self.config.admission);
        if rails != peer.rails && !rails.contains(&RailKind::Shm) {
            tracing::info!("{}: {OFI_LEFT_OUT}", peer.id);
            pair.left_out = Some(OFI_LEFT_OUT);
        }
        let id = peer.id;
        let place = self.peers.get(id.index()).filter(|_| id != self.config.me);
        if place.is_some_and(|place| place.set(peer).is_ok()) {
            self.pairs().insert(id, pair);
        }
    }

    /// Every peer that is known.
    pub(super) fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter_map(OnceLock::get)
    }

    pub(super) fn pairs(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, Pair>> {
        lock(&self.pairs)
    }

    /// The peers to which this node connects.
    pub(super) fn called(&self) -> impl Iterator<Item = &Peer> {
        self.peers().filter(|peer| peer.id < self.config.me)
    }

    pub(super) fn peer(&self, id: NodeId) -> Option<&Peer> {
        self.peers.get(id.index())?.get()
    }

    pub(super) fn path(&self, peer: NodeId, slot: u8) -> Option<Path> {
        self.pairs().get(&peer)?.paths.get(usize::from(slot)).copied()
    }

    pub(super) fn connected(&self) -> NodeSet {
        let pairs = self.pairs();
        pairs
            .iter()
            .filter(|(_, pair)| pair.peer_state == PeerState::Connected)
            .map(|(peer, _)| *peer)
            .collect()
    }

    pub(super) fn keys(&self) -> Result<Vec<Key>, String> {
        self.config.keys.keys()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    pub(super) fn stop(&self) {
        // Under the lock: a thread that has checked and is about to wait for a change began to wait
        // before, so it is notified.
        let pairs = self.pairs();
        self.stopping.store(true, Relaxed);
        drop(pairs);
        self.changed.notify_all();
        self.wake_network.signal();
    }

    /// Counts a connection that did not prove the cluster key.
    pub(super) fn count_unauthenticated(&self) {
        self.unauthenticated.fetch_add(1, Relaxed);
    }

    pub(super) fn unauthenticated(&self) -> u64 {
        self.unauthenticated.load(Relaxed)
    }

    /// The hello of this node for `place`.
    pub(super) fn hello(
        &self,
        place: RailPlace,
        rail: RailKind,
        lane: Lane,
        generation: u32,
        clamp: u16,
    ) -> Hello {
        Hello {
            rail,
            lane,
            worker: place.worker,
            workers: self.workers,
            from: self.config.me,
            to: place.peer,
            cluster: self.config.cluster,
            incarnation: self.config.incarnation,
            fingerprint: self.peer(place.peer).map_or(0, |peer| peer.fingerprint),
            slot: place.slot,
            generation,
            clamp,
            namespace: namespace(),
            refusal: None,
        }
    }

    /// Checks a caller's hello; returns it and the answer to send, which admits the caller if it
    /// has no refusal. An error means that the bytes are not a hello.
    pub(super) fn judge(&self, bytes: &[u8; HELLO], rail: RailKind) -> Result<(Hello, Hello), String> {
        let hello = Hello::decode(bytes).map_err(|bad| bad.to_string())?;
        let place = RailPlace { peer: hello.from, slot: hello.slot, worker: hello.worker };
        let pairs = self.pairs();
        let pair = pairs.get(&hello.from).filter(|_| hello.from > self.config.me);
        let clamp = pair.filter(|pair| usize::from(hello.slot) < pair.paths.len());
        let clamp = clamp.map_or(0, |pair| pair.clamp(hello.slot));
        let mut answer = self.hello(place, hello.rail, hello.lane, hello.generation, clamp);
        answer.refusal = if hello.to != self.config.me || hello.cluster != self.config.cluster {
            Some(Refusal::NotMe)
        } else if self.peer(hello.from).is_none_or(|peer| peer.fingerprint != hello.fingerprint)
            || hello.workers != self.workers
            || (hello.rail == RailKind::Shm) != (rail == RailKind::Shm)
        {
            Some(Refusal::Settings)
        } else if rail == RailKind::Shm && hello.namespace != namespace() {
            Some(Refusal::Apart)
        } else {
            pair.map_or(Some(Refusal::Settings), |pair| pair.check(&hello))
        };
        if let Some(refusal) = answer.refusal {
            answer.fingerprint = 0;
            // An outsider can repeat a recorded hello without end, and must not fill the log.
            if lock(&self.refused).is_due((hello.from, refusal), Instant::now()) {
                tracing::warn!("{} was refused: {refusal}", hello.from);
            }
        }
        Ok((hello, answer))
    }

    /// Returns the generation of the next rail in a place.
    pub(super) fn next_generation(&self, place: RailPlace) -> u32 {
        self.pairs().get(&place.peer).map_or(1, |pair| pair.next_generation(place.slot, place.worker))
    }

    /// Uses up a generation for a rail to this incarnation of a peer; returns false if another
    /// attempt has done that, or the incarnation is not admitted.
    pub(super) fn take_generation(
        &self,
        place: RailPlace,
        generation: u32,
        incarnation: Incarnation,
    ) -> bool {
        let RailPlace { peer, slot, worker } = place;
        let mut pairs = self.pairs();
        let Some(pair) = pairs.get_mut(&peer) else { return false };
        let is_next = pair.next_generation(slot, worker) == generation;
        let takes = is_next && pair.is_admitted() && !pair.is_other_incarnation(incarnation);
        if takes {
            pair.use_generation(slot, worker, generation);
        }
        takes
    }

    /// Checks the answer to this node's hello.
    pub(super) fn accepted(&self, bytes: &[u8; HELLO], peer: NodeId) -> Result<Hello, String> {
        let answer = Hello::decode(bytes).map_err(|bad| bad.to_string())?;
        if answer.cluster != self.config.cluster || answer.from != peer || answer.to != self.config.me {
            return Err(Refusal::NotMe.to_string());
        }
        if let Some(refusal) = answer.refusal {
            if refusal == Refusal::Apart
                && let Some(pair) = self.pairs().get_mut(&peer)
                && !pair.is_other_incarnation(answer.incarnation)
            {
                pair.set_apart();
                self.wake_network.signal();
            }
            return Err(refusal.to_string());
        }
        if self.pairs().get(&peer).is_none_or(|pair| pair.is_other_incarnation(answer.incarnation)) {
            return Err(Refusal::NoMember.to_string());
        }
        Ok(answer)
    }

    /// Hands a worker the rail of `path`. A rail over libfabric is set up first, over the TCP rail
    /// that was made.
    pub(super) fn attach_over(self: &Arc<Self>, path: &Path, made: ConnectedRail, incarnation: Incarnation) {
        match path.kind {
            #[cfg(feature = "libfabric")]
            RailKind::Ofi => super::ofi::attach(Arc::clone(self), path.here.ip(), made, incarnation),
            _ => self.attach(made, incarnation),
        }
    }

    /// Hands a worker its rail to this incarnation of a peer, unless that is outdated by now.
    pub(super) fn attach(&self, made: ConnectedRail, incarnation: Incarnation) {
        let RailPlace { peer, slot, worker } = made.place;
        let now = Instant::now();
        let mut pairs = self.pairs();
        let Some(pair) = pairs.get_mut(&peer) else { return };
        if self.is_stopping() || !pair.rail_up(slot, worker, made.generation, incarnation, now) {
            return;
        }
        tracing::debug!("{peer}: worker {worker}, slot {slot}: {} is up", made.path);
        // Under the lock: a thread that finds the peer connected also finds its links.
        (self.attach_rail)(made, incarnation);
        pair.look(now);
        self.changed.notify_all();
    }

    /// Records a failed attempt to connect, unless another one has succeeded.
    pub(super) fn failed(&self, place: RailPlace, why: String) {
        let RailPlace { peer, slot, worker } = place;
        tracing::debug!("{peer}: worker {worker}, slot {slot}: not connected: {why}");
        if let Some(pair) = self.pairs().get_mut(&peer)
            && pair.missing(slot).any(|(missing, _)| missing == worker)
        {
            pair.failed(slot, worker, Instant::now());
            pair.set_problem(slot, why);
        }
        self.wake_network.signal();
    }

    /// The reports of rails that never were up.
    pub(super) fn never_connected(&self) -> Vec<RailReport> {
        let pairs = self.pairs();
        let awaited = pairs.iter().filter(|(_, pair)| pair.is_admitted());
        let rails = awaited.flat_map(|(peer, pair)| {
            pair.never_up().map(|(slot, worker)| {
                let path = &pair.paths[usize::from(slot)];
                RailReport::never_connected(*peer, WorkerId(worker), slot, path.kind, path.name())
            })
        });
        rails.collect()
    }

    /// Records that a rail is lost.
    pub(super) fn lost(&self, place: RailPlace, incarnation: Incarnation, generation: u32, why: &Lost) {
        let RailPlace { peer, slot, worker } = place;
        if let Some(pair) = self.pairs().get_mut(&peer)
            && !pair.is_other_incarnation(incarnation)
        {
            pair.rail_lost(slot, worker, generation, why, Instant::now());
        }
        self.wake_network.signal();
    }

    /// Checks which peers are connected by now; returns when to check again.
    pub(super) fn look(&self, now: Instant) -> Option<Instant> {
        let mut pairs = self.pairs();
        let again = pairs.values_mut().filter_map(|pair| pair.look(now)).min();
        drop(pairs);
        self.changed.notify_all();
        again
    }

    /// Admits an incarnation of a peer, and no other; returns true if that is a change, `None` if
    /// the peer is unknown.
    pub(super) fn admit(&self, peer: NodeId, incarnation: Incarnation) -> Option<bool> {
        let changed = self.pairs().get_mut(&peer)?.admit(incarnation);
        self.changed.notify_all();
        self.wake_network.signal();
        Some(changed)
    }

    /// Records that this incarnation of a peer is gone and not to be admitted again.
    pub(super) fn forget(&self, peer: NodeId, incarnation: Incarnation) {
        if let Some(pair) = self.pairs().get_mut(&peer)
            && !pair.is_other_incarnation(incarnation)
        {
            pair.peer_state = PeerState::Gone;
        }
        self.changed.notify_all();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use plexus_base::Waiting;
    use rustix::{
        event::{PollFd, PollFlags, Timespec, poll},
        io::Errno,
    };

    use super::{
        super::{
            keys::{KEY, Key},
            pair::Admission,
        },
        *,
    };

    /// The state of a node with one peer, to which it has one path.
    pub(in super::super) fn common(me: u8, peer: u8, rail: RailKind) -> MeshState {
        let config = Config {
            me: NodeId(me),
            incarnation: Incarnation(1),
            cluster: [7; 16],
            keys: Arc::new(vec![Key::new([1; KEY])]),
            admission: Admission::First,
            listen: vec![([127, 0, 0, 1], 1).into()],
            local: None,
            peers: vec![Peer {
                id: NodeId(peer),
                addresses: vec![([127, 0, 0, 1], 2).into()],
                rails: vec![rail],
                encrypt: false,
                fingerprint: 0,
            }],
            windows: Vec::new(),
            waiting: Waiting::Event,
            timeout: Duration::from_secs(1),
            probe: Duration::from_millis(20),
            ofi_provider: None,
        };
        MeshState::new(config, 1, Arc::default(), Box::new(|_, _| {})).unwrap()
    }

    /// Returns true if the network thread would wake now.
    fn is_woken(common: &MeshState) -> bool {
        let mut fds = [PollFd::new(&common.wake_network, PollFlags::IN)];
        let woken: Result<usize, Errno> = poll(&mut fds, Some(&Timespec::default()));
        common.wake_network.clear();
        woken == Ok(1)
    }

    #[test]
    fn of_two_calls_at_the_same_time_one_makes_the_rail() {
        let common = common(1, 0, RailKind::Shm);
        let place = RailPlace { peer: NodeId(0), slot: 0, worker: 0 };
        let (first, second) = (common.next_generation(place), common.next_generation(place));
        common.admit(NodeId(0), Incarnation(5));
        assert!(
            !common.take_generation(place, first, Incarnation(4)),
            "the answer of an earlier incarnation"
        );
        assert!(common.take_generation(place, first, Incarnation(5)));
        assert!(!common.take_generation(place, second, Incarnation(5)), "both ends could keep another rail");
        // The first call failed after all.
        assert!(common.take_generation(place, common.next_generation(place), Incarnation(5)));
        // The failure of a call that came too late is no problem of the pair.
        let pair = || common.pairs().get(&NodeId(0)).unwrap().problem();
        common.pairs().get_mut(&NodeId(0)).unwrap().rail_up(0, 0, 2, Incarnation(5), Instant::now());
        common.failed(place, "another connection to it is being made".into());
        assert_eq!(pair(), None);
    }

    #[test]
    fn a_call_that_becomes_due_wakes_the_network_thread() {
        let common = common(1, 0, RailKind::Ofi);
        let place = RailPlace { peer: NodeId(0), slot: 0, worker: 0 };
        assert!(!is_woken(&common));
        // The rail was being made elsewhere, so the next attempt was far away.
        common.failed(place, "failed".into());
        assert!(is_woken(&common));
        common.lost(place, Incarnation(1), 1, &Lost::Silent);
        assert!(is_woken(&common));
        common.stop();
        assert!(is_woken(&common));
    }
}
