//! Voting files: their contents and their faults.
//!
//! Contents keep their structured form between turns. Every so often a write is encoded to bytes
//! and decoded again; a torn write always is.

use std::sync::Arc;

use plexus_base::{Incarnation, MAX_NODES, NodeId};
use plexus_membership::{
    protocol::{Ballot, Block, Contents, FileId, Report, SYNC_WAIT_LAG, TurnFailed, View, Writes},
    voting::format::{self, BLOCK, ClusterId, FileName},
};
use plexus_sim::Random;

/// One of so many writes is encoded and decoded.
const THROUGH_BYTES: u64 = 32;

/// The approximate number of turns after which a disk makes a write durable by itself; long enough
/// that some nodes wait for it.
const SETTLED: u64 = 1024;

/// A fault of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sick {
    /// Turns take so many times longer.
    Slow(u64),
    /// Every third write is torn; the write may report it.
    Torn,
    /// Writes fail.
    Full,
    /// Reads fail.
    Unreadable,
    /// Another file is in its place.
    Wrong,
    /// It answers no request.
    Hung,
    /// Nothing can be made durable.
    Unsettled,
}

/// A voting file.
pub(super) struct File {
    pub(super) name: FileName,
    pub(super) host: Option<NodeId>,
    pub(super) sick: Option<Sick>,
    /// True if ballots are never made durable.
    pub(super) forgets_ballots: bool,
    contents: Contents,
    /// The durable content.
    durable: Contents,
    /// True if everything was made durable since the node opened the file and since its last failed
    /// turn, by opener.
    known: Vec<bool>,
    /// Earlier contents, oldest first.
    copies: Vec<Contents>,
    /// The last turn of each process at the file.
    latest: Vec<(u64, u64)>,
    /// The heartbeat block that the last turn of each process has read.
    left: Vec<Option<Block<Report>>>,
}

impl File {
    pub(super) fn new(number: usize, host: Option<NodeId>, nodes: usize) -> Self {
        let name = FileName { cluster: ClusterId(77), file: FileId(100 + number as u64) };
        let latest = vec![(0, 0); nodes];
        Self {
            name,
            host,
            sick: None,
            forgets_ballots: false,
            contents: Contents::default(),
            durable: Contents::default(),
            known: vec![false; nodes],
            copies: Vec::new(),
            latest,
            left: vec![None; nodes],
        }
    }

    /// Copies the content, to be restored later.
    pub(super) fn copy(&mut self) {
        self.copies.push(self.contents.clone());
        if self.copies.len() > 4 {
            self.copies.remove(0);
        }
    }

    /// Restores the oldest copy; `unseen`: with the current counters.
    pub(super) fn restore(&mut self, unseen: bool) {
        let Some(mut copy) = self.copies.first().cloned() else { return };
        for (old, now) in copy.nodes.iter_mut().zip(&self.contents.nodes).filter(|_| unseen) {
            if let (Block::Good(old), Block::Good(now)) = (&mut old.heartbeat, &now.heartbeat) {
                let old = Arc::make_mut(old);
                (old.incarnation, old.counter) = (now.incarnation, now.counter);
            }
            for (old, now) in old.ballots.iter_mut().zip(&now.ballots) {
                if let (Block::Good(old), Block::Good(now)) = (old, now) {
                    Arc::make_mut(old).counter = now.counter;
                }
            }
        }
        self.durable = copy.clone();
        self.contents = copy;
    }

    /// Writes as a node that belongs to no cluster: a ballot above all others, with the view that
    /// it knows and its next proposal.
    pub(super) fn outbid(&mut self, rival: NodeId, known: Option<&Arc<View>>, proposed: Option<&Arc<View>>) {
        let found = self.contents.decided().into_iter().chain(known).max_by_key(|view| view.epoch);
        let Some(decided) = found.cloned() else { return };
        let ballots = self.contents.nodes.iter().filter_map(|blocks| blocks.ballot());
        let mbal = ballots.map(|ballot| ballot.mbal).max().unwrap_or_default() + MAX_NODES as u64;
        let blocks = &mut self.contents.nodes[rival.index()];
        let own = blocks.ballot();
        let before = own.and_then(|own| own.proposed.as_ref());
        let proposed = proposed.or(before).filter(|view| view.epoch > decided.epoch).cloned();
        let bal = if proposed.is_some() { mbal } else { 0 };
        let counter = own.map_or(0, |own| own.counter) + 1;
        blocks.ballots[usize::from(blocks.next_slot())] =
            Block::Good(Arc::new(Ballot { counter, mbal, bal, proposed, decided }));
        self.durable.nodes[rival.index()] = blocks.clone();
    }

    /// Cuts the power of the disk: contents that are not durable are lost.
    pub(super) fn lose_power(&mut self) {
        self.contents = self.durable.clone();
    }

    /// Notes that the process of a node has closed the file; the next opens it when it needs it.
    pub(super) fn closed(&mut self, process: usize) {
        (self.known[process], self.left[process]) = (false, None);
    }

    /// Returns the process that opens the file for the turns of another.
    fn opener(&self, process: usize) -> usize {
        self.host.map_or(process, NodeId::index)
    }

    /// Returns true if a turn of a process is not later than one that was carried out.
    pub(super) fn is_late(&mut self, process: usize, incarnation: Incarnation, turn: u64) -> bool {
        let latest = &mut self.latest[process];
        let is_late = (incarnation.0, turn) < *latest;
        *latest = (*latest).max((incarnation.0, turn));
        is_late
    }

    /// Writes a node's blocks, unless another process has written them since the last turn;
    /// `torn`: its process ended in the middle. Returns true if they must be durable before the
    /// file is read.
    pub(super) fn write(
        &mut self,
        (process, node): (usize, NodeId),
        writes: &Writes,
        torn: bool,
        random: &mut Random,
    ) -> Result<bool, TurnFailed> {
        let opener = self.opener(process);
        let must_last = !self.known[opener] || self.must_last(node, writes);
        let found = &self.contents.nodes[node.index()].heartbeat;
        let is_foreign = self.left[process].as_ref().is_some_and(|left| left != found);
        let kept = Writes::default();
        let written = self.written(node, if is_foreign { &kept } else { writes }, torn, random);
        self.known[opener] &= written.is_ok();
        self.left[process].take_if(|_| written.is_err());
        written.map(|()| must_last)
    }

    fn must_last(&self, node: NodeId, writes: &Writes) -> bool {
        let is_awaited = |now: &Arc<Report>| {
            let durable = self.durable.nodes[node.index()].heartbeat.good();
            now.counter.saturating_sub(durable.map_or(0, |durable| durable.counter)) >= SYNC_WAIT_LAG
        };
        let before = &self.contents.nodes[node.index()].heartbeat;
        let ballot = writes.ballot.clone().filter(|_| !self.forgets_ballots);
        let heartbeat = writes.heartbeat.clone();
        Writes { heartbeat, ballot }.must_be_durable(before)
            || writes.heartbeat.as_ref().is_some_and(is_awaited)
    }

    fn written(
        &mut self,
        node: NodeId,
        writes: &Writes,
        torn: bool,
        random: &mut Random,
    ) -> Result<(), TurnFailed> {
        match self.sick {
            Some(Sick::Wrong) => return Err(TurnFailed),
            Some(Sick::Full) if *writes != Writes::default() => return Err(TurnFailed),
            _ => {}
        }
        let tears = torn || self.sick == Some(Sick::Torn) && random.below(3) == 0;
        let name = self.name;
        let place = &mut self.contents.nodes[node.index()];
        if let Some(report) = &writes.heartbeat {
            let old = place.heartbeat.good().map(|old| format::heartbeat(name, old));
            let bytes = || format::heartbeat(name, report);
            let decode = |bytes: &[u8]| format::heartbeat_decoded(name, node, bytes);
            place.heartbeat = written(report, tears, old, bytes, decode, random);
        }
        if let Some((slot, ballot)) = &writes.ballot {
            let slot = &mut place.ballots[usize::from(*slot)];
            let old = slot.good().map(|old| format::ballot(name, node, old));
            let bytes = || format::ballot(name, node, ballot);
            let decode = |bytes: &[u8]| format::ballot_decoded(name, node, bytes);
            *slot = written::<Ballot>(ballot, tears, old, bytes, decode, random);
        }
        if tears && random.percent(50) { Err(TurnFailed) } else { Ok(()) }
    }

    /// Reads everything for a turn of a node, and makes all writes durable before that if
    /// necessary.
    pub(super) fn read(
        &mut self,
        (process, node): (usize, NodeId),
        must_last: bool,
        random: &mut Random,
    ) -> Result<Contents, TurnFailed> {
        let opener = self.opener(process);
        self.left[process] = None;
        if must_last || random.below(SETTLED) == 0 {
            self.known[opener] = self.sick != Some(Sick::Unsettled);
            if !self.known[opener] {
                return Err(TurnFailed);
            }
            self.settle();
        }
        if matches!(self.sick, Some(Sick::Wrong | Sick::Unreadable)) {
            self.known[opener] = false;
            return Err(TurnFailed);
        }
        self.left[process] = Some(self.contents.nodes[node.index()].heartbeat.clone());
        Ok(self.contents.clone())
    }

    fn settle(&mut self) {
        let before = std::mem::replace(&mut self.durable, self.contents.clone());
        if self.forgets_ballots {
            let places = self.durable.nodes.iter_mut().zip(before.nodes);
            places.for_each(|(durable, before)| durable.ballots = before.ballots);
        }
    }
}

/// Returns a block after a write.
fn written<T: PartialEq + std::fmt::Debug>(
    new: &Arc<T>,
    tears: bool,
    old: Option<Vec<u8>>,
    bytes: impl Fn() -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<Option<T>, format::BlockError>,
    random: &mut Random,
) -> Block<T> {
    if !tears {
        if random.below(THROUGH_BYTES) == 0 {
            let read = decode(&bytes()).expect("a sound block").expect("a block that was written");
            assert_eq!(&read, &**new);
        }
        return Block::Good(Arc::clone(new));
    }
    let mut torn = bytes();
    let old = old.unwrap_or_else(|| vec![0; BLOCK]);
    let at = random.below(8) as usize * 512;
    torn[at..].copy_from_slice(&old[at..]);
    match decode(&torn) {
        Ok(None) => Block::Empty,
        Ok(Some(content)) => Block::Good(Arc::new(content)),
        Err(_) => Block::Bad,
    }
}
