//! What all who connect share: who this node is, what it knows of its peers, and who gets a rail that stands.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use plexus_base::{Incarnation, MAX_NODES, NodeId, NodeSet, WorkerId};
use plexus_fabric::{Event, Lane, Lost, Rail, RailKind, Windows};

use super::{
    Config, MeshError, Peer, event,
    hello::{HELLO, Hello, Refusal},
    keys::Key,
    pair::{Pair, Path, Standing, paths},
    warned::Warned,
};
use crate::{RailReport, sync::lock};

/// A place for a rail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub(super) peer: NodeId,
    pub(super) slot: u8,
    pub(super) worker: u8,
}

/// A rail for a worker.
pub(super) struct Made {
    pub(super) place: Place,
    pub(super) generation: u32,
    pub(super) rail: Box<dyn Rail>,
    /// From where to where, for people.
    pub(super) path: String,
}

/// Hands a worker its rail; called with the table of peers locked, must not come back to it.
pub(super) type Give = Box<dyn Fn(Made, Incarnation) + Send + Sync>;

/// Why libfabric does not join a pair that lists it.
const OFI_LEFT_OUT: &str = if cfg!(feature = "libfabric") {
    "ofi is not used, because it cannot encrypt and these two nodes must (`encrypt` under [interconnect])"
} else {
    "ofi is not used, because this build is without libfabric"
};

/// Whether a pair may use a rail of this kind: libfabric encrypts nothing, and may not be built in.
fn may_carry(rail: RailKind, peer: &Peer) -> bool {
    rail != RailKind::Ofi || cfg!(feature = "libfabric") && !peer.encrypt
}

pub(super) struct Common {
    pub(super) config: Config,
    pub(super) workers: u8,
    pub(super) windows: Arc<Windows>,
    /// By node, once it is known.
    peers: [OnceLock<Peer>; MAX_NODES],
    pairs: Mutex<BTreeMap<NodeId, Pair>>,
    pub(super) changed: Condvar,
    strangers: AtomicU64,
    /// What was said of refused peers.
    refused: Mutex<Warned<(NodeId, Refusal)>>,
    stopping: AtomicBool,
    /// Wakes the thread of the network: a rail is lost, was not to be had, or the node ends.
    pub(super) stirred: Event,
    give: Give,
}

impl Common {
    pub(super) fn new(
        mut config: Config,
        workers: u8,
        windows: Arc<Windows>,
        give: Give,
    ) -> Result<Self, MeshError> {
        let peers = std::mem::take(&mut config.peers);
        let common = Self {
            peers: Default::default(),
            pairs: Mutex::default(),
            windows,
            config,
            workers,
            changed: Condvar::new(),
            strangers: AtomicU64::new(0),
            refused: Mutex::default(),
            stopping: AtomicBool::new(false),
            stirred: event()?,
            give,
        };
        for peer in peers {
            common.meet(peer);
        }
        Ok(common)
    }

    /// One more peer, unless it is known.
    pub(super) fn meet(&self, peer: Peer) {
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

    /// Peers that this node connects to, rather than they to it.
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
        pairs.iter().filter(|(_, pair)| pair.standing == Standing::Connected).map(|(peer, _)| *peer).collect()
    }

    pub(super) fn keys(&self) -> Result<Vec<Key>, String> {
        self.config.keys.keys()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    pub(super) fn stop(&self) {
        // Within the lock: whoever has looked and is about to wait for a change does so before it, and hears of this one.
        let pairs = self.pairs();
        self.stopping.store(true, Relaxed);
        drop(pairs);
        self.changed.notify_all();
        self.stirred.signal();
    }

    /// Counts one that came and did not prove that it is of the cluster.
    pub(super) fn stranger(&self) {
        self.strangers.fetch_add(1, Relaxed);
    }

    pub(super) fn strangers(&self) -> u64 {
        self.strangers.load(Relaxed)
    }

    /// What this node says first to `place`.
    pub(super) fn hello(
        &self,
        place: Place,
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
            refusal: None,
        }
    }

    /// What a caller's hello is worth: the answer to send; one without a refusal lets it in. An error: it is not one.
    pub(super) fn judge(&self, bytes: &[u8; HELLO], rail: RailKind) -> Result<(Hello, Hello), String> {
        let hello = Hello::decode(bytes).map_err(|bad| bad.to_string())?;
        let place = Place { peer: hello.from, slot: hello.slot, worker: hello.worker };
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
        } else {
            pair.map_or(Some(Refusal::Settings), |pair| pair.judge(&hello))
        };
        if let Some(refusal) = answer.refusal {
            answer.fingerprint = 0;
            // Who only has overheard a hello can say it again without end, and must not fill the log.
            if lock(&self.refused).is_due((hello.from, refusal), Instant::now()) {
                tracing::warn!("{} was refused: {refusal}", hello.from);
            }
        }
        Ok((hello, answer))
    }

    /// What the answer to this node's hello is worth.
    pub(super) fn accepted(&self, bytes: &[u8; HELLO], peer: NodeId) -> Result<Hello, String> {
        let answer = Hello::decode(bytes).map_err(|bad| bad.to_string())?;
        if answer.cluster != self.config.cluster || answer.from != peer || answer.to != self.config.me {
            return Err(Refusal::NotMe.to_string());
        }
        if let Some(refusal) = answer.refusal {
            return Err(refusal.to_string());
        }
        if self.pairs().get(&peer).is_none_or(|pair| pair.is_another(answer.incarnation)) {
            return Err(Refusal::NoMember.to_string());
        }
        Ok(answer)
    }

    /// Hands a worker the rail of `path`. One over libfabric is set up first, over the TCP rail that was made.
    pub(super) fn attach_over(self: &Arc<Self>, path: &Path, made: Made, incarnation: Incarnation) {
        match path.kind {
            #[cfg(feature = "libfabric")]
            RailKind::Ofi => super::ofi::attach(Arc::clone(self), path.here.ip(), made, incarnation),
            _ => self.attach(made, incarnation),
        }
    }

    /// Hands a worker its rail to the incarnation `incarnation` of a peer, unless that is outdated by now.
    pub(super) fn attach(&self, made: Made, incarnation: Incarnation) {
        let Place { peer, slot, worker } = made.place;
        let now = Instant::now();
        let mut pairs = self.pairs();
        let Some(pair) = pairs.get_mut(&peer) else { return };
        if self.is_stopping() || !pair.seat(slot, worker, made.generation, incarnation, now) {
            return;
        }
        tracing::debug!("{peer}: worker {worker}, slot {slot}: {} is up", made.path);
        // Within the lock: whoever finds the peer connected finds its links.
        (self.give)(made, incarnation);
        pair.look(now);
        self.changed.notify_all();
    }

    /// Notes that an attempt to connect was in vain.
    pub(super) fn failed(&self, place: Place, why: String) {
        let Place { peer, slot, worker } = place;
        tracing::debug!("{peer}: worker {worker}, slot {slot}: not connected: {why}");
        if let Some(pair) = self.pairs().get_mut(&peer) {
            pair.failed(slot, worker, Instant::now());
            pair.hindered(slot, why);
        }
        self.stirred.signal();
    }

    /// What there is to say about rails that never were up.
    pub(super) fn never_connected(&self) -> Vec<RailReport> {
        let pairs = self.pairs();
        let awaited = pairs.iter().filter(|(_, pair)| pair.is_in());
        let rails = awaited.flat_map(|(peer, pair)| {
            pair.never_up().map(|(slot, worker)| {
                let path = &pair.paths[usize::from(slot)];
                RailReport::never_connected(*peer, WorkerId(worker), slot, path.kind, path.name())
            })
        });
        rails.collect()
    }

    /// Notes that a rail is lost.
    pub(super) fn lost(&self, place: Place, incarnation: Incarnation, generation: u32, why: &Lost) {
        let Place { peer, slot, worker } = place;
        if let Some(pair) = self.pairs().get_mut(&peer)
            && !pair.is_another(incarnation)
        {
            pair.unseat(slot, worker, generation, why, Instant::now());
        }
        self.stirred.signal();
    }

    /// Looks which peers are connected by now; when to look again.
    pub(super) fn look(&self, now: Instant) -> Option<Instant> {
        let mut pairs = self.pairs();
        let again = pairs.values_mut().filter_map(|pair| pair.look(now)).min();
        drop(pairs);
        self.changed.notify_all();
        again
    }

    /// Lets an incarnation of a peer in, and no other; whether that is news. None: nobody has met the peer.
    pub(super) fn admit(&self, peer: NodeId, incarnation: Incarnation) -> Option<bool> {
        let news = self.pairs().get_mut(&peer)?.admit(incarnation);
        self.changed.notify_all();
        self.stirred.signal();
        Some(news)
    }

    /// Notes that this incarnation of a peer is gone and not to be let in again.
    pub(super) fn forget(&self, peer: NodeId, incarnation: Incarnation) {
        if let Some(pair) = self.pairs().get_mut(&peer)
            && !pair.is_another(incarnation)
        {
            pair.standing = Standing::Gone;
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

    /// Of a node with one peer, to which it has one path.
    pub(in super::super) fn common(me: u8, peer: u8, rail: RailKind) -> Common {
        let config = Config {
            me: NodeId(me),
            incarnation: Incarnation(1),
            cluster: [7; 16],
            keys: Arc::new(vec![Key::new([1; KEY])]),
            admission: Admission::First,
            listen: vec![([127, 0, 0, 1], 1).into()],
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
        Common::new(config, 1, Arc::default(), Box::new(|_, _| {})).unwrap()
    }

    /// Whether the thread of the network would wake now.
    fn stirred(common: &Common) -> bool {
        let mut fds = [PollFd::new(&common.stirred, PollFlags::IN)];
        let stirred: Result<usize, Errno> = poll(&mut fds, Some(&Timespec::default()));
        common.stirred.clear();
        stirred == Ok(1)
    }

    #[test]
    fn what_makes_a_call_due_wakes_who_calls() {
        let common = common(1, 0, RailKind::Ofi);
        let place = Place { peer: NodeId(0), slot: 0, worker: 0 };
        assert!(!stirred(&common));
        // Its rail was being made elsewhere, which is why nobody looks for long.
        common.failed(place, "in vain".into());
        assert!(stirred(&common));
        common.lost(place, Incarnation(1), 1, &Lost::Silent);
        assert!(stirred(&common));
        common.stop();
        assert!(stirred(&common));
    }
}
