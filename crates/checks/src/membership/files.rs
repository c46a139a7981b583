//! Voting files: what stands in them, and what goes wrong with them.
//!
//! What is written keeps its form between turns; every so often it goes through its bytes, and what is torn always does.

use std::sync::Arc;

use plexus_base::{Incarnation, MAX_NODES, NodeId};
use plexus_membership::{
    protocol::{Ballot, Block, Contents, Failed, FileId, Report, UNSETTLED, Writes},
    voting::format::{self, BLOCK, ClusterId, FileName},
};
use plexus_sim::Random;

/// Of so many writes one goes through its bytes.
const THROUGH_BYTES: u64 = 32;

/// A disk makes what nobody waits for durable after so many turns, about.
const SETTLED: u64 = 32;

/// What is wrong with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sick {
    /// Takes so many times as long.
    Slow(u64),
    /// Every third write is torn; it may say so.
    Torn,
    /// Nothing can be written.
    Full,
    /// Nothing can be read.
    Unreadable,
    /// Another file stands in its place.
    Wrong,
    /// Answers nobody.
    Hung,
}

/// A voting file.
pub(super) struct File {
    pub(super) name: FileName,
    pub(super) host: Option<NodeId>,
    pub(super) sick: Option<Sick>,
    contents: Contents,
    /// The last heartbeat of each node that the disk had to make durable, or has made so by itself.
    durable: [Block<Report>; MAX_NODES],
    /// As it was, oldest first.
    copies: Vec<Contents>,
    /// The last turn of each node that it has seen.
    latest: Vec<(u64, u64)>,
}

impl File {
    pub(super) fn new(number: usize, host: Option<NodeId>, nodes: usize) -> Self {
        let name = FileName { cluster: ClusterId(77), file: FileId(100 + number as u64) };
        let latest = vec![(0, 0); nodes];
        let durable = std::array::from_fn(|_| Block::Empty);
        Self { name, host, sick: None, contents: Contents::default(), durable, copies: Vec::new(), latest }
    }

    /// Somebody copies it, to put the copy back one day.
    pub(super) fn copy(&mut self) {
        self.copies.push(self.contents.clone());
        if self.copies.len() > 4 {
            self.copies.remove(0);
        }
    }

    /// Puts the oldest copy back; `unseen`: with counters as they are now.
    pub(super) fn restore(&mut self, unseen: bool) {
        let Some(mut copy) = self.copies.first().cloned() else { return };
        for (old, now) in copy.places.iter_mut().zip(&self.contents.places).filter(|_| unseen) {
            if let (Block::Good(old), Block::Good(now)) = (&mut old.heartbeat, &now.heartbeat) {
                let old = Arc::make_mut(old);
                (old.life, old.counter) = (now.life, now.counter);
            }
            for (old, now) in old.ballots.iter_mut().zip(&now.ballots) {
                if let (Block::Good(old), Block::Good(now)) = (old, now) {
                    Arc::make_mut(old).counter = now.counter;
                }
            }
        }
        self.durable = std::array::from_fn(|node| copy.places[node].heartbeat.clone());
        self.contents = copy;
    }

    /// The disk loses power, and with it what it did not have to make durable.
    pub(super) fn lose_power(&mut self) {
        for (place, durable) in self.contents.places.iter_mut().zip(&self.durable) {
            place.heartbeat = durable.clone();
        }
    }

    /// Whether a turn of a node is not later than one that was carried out.
    pub(super) fn is_late(&mut self, node: NodeId, life: Incarnation, turn: u64) -> bool {
        let latest = &mut self.latest[node.index()];
        let is_late = (life.0, turn) < *latest;
        *latest = (*latest).max((life.0, turn));
        is_late
    }

    /// Writes a node's blocks; `torn`: its process ended in the middle.
    pub(super) fn write(
        &mut self,
        node: NodeId,
        writes: &Writes,
        torn: bool,
        random: &mut Random,
    ) -> Result<(), Failed> {
        match self.sick {
            Some(Sick::Wrong) => return Err(Failed),
            Some(Sick::Full) if *writes != Writes::default() => return Err(Failed),
            _ => {}
        }
        let tears = torn || self.sick == Some(Sick::Torn) && random.below(3) == 0;
        let name = self.name;
        let place = &mut self.contents.places[node.index()];
        let before = place.heartbeat.clone();
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
        self.settle(node, &before, writes, random);
        if tears && random.percent(50) { Err(Failed) } else { Ok(()) }
    }

    /// What is durable now, where `before` stood and this was written: as the voting files' own code has it.
    fn settle(&mut self, node: NodeId, before: &Block<Report>, writes: &Writes, random: &mut Random) {
        let must = writes.ballot.is_some()
            || writes.heartbeat.as_ref().is_some_and(|now| {
                let is_behind = match &self.durable[node.index()] {
                    Block::Good(durable) => now.counter.saturating_sub(durable.counter) >= UNSETTLED / 2,
                    _ => true,
                };
                let is_newer = before
                    .good()
                    .is_none_or(|before| now.life != before.life || now.registry > before.registry);
                is_behind || is_newer
            });
        if must || random.below(SETTLED) == 0 {
            for (durable, place) in self.durable.iter_mut().zip(&self.contents.places) {
                *durable = place.heartbeat.clone();
            }
        }
    }

    /// Reads everything.
    pub(super) fn read(&self) -> Result<Contents, Failed> {
        match self.sick {
            Some(Sick::Wrong) => Err(Failed),
            Some(Sick::Unreadable) => Err(Failed),
            _ => Ok(self.contents.clone()),
        }
    }
}

/// A block after a write.
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
