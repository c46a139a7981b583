//! Disk Paxos (Gafni and Lamport, "Disk Paxos", Distributed Computing 16, 2003), with one instance
//! for each epoch.
//!
//! Nodes do not exchange messages. Each node writes its own [`Ballot`] to the files and then reads
//! the other nodes' ballots. The instance for view `e + 1` runs over the voting files of view `e`.
//!
//! # Contract
//!
//! - Write [`Paxos::own`] to every file, read the file after each write, and pass the content to
//!   [`Paxos::confirmed`].
//! - [`Paxos::propose`] starts a proposal, and [`Paxos::learned`] ends an instance.
//! - A starting node reads a majority of the files before it writes any ballot
//!   ([`Paxos::recovered`]).
//!
//! # Guarantees
//!
//! - An instance chooses only one view, whatever is lost, late or repeated. This holds while any
//!   two majorities share a file that keeps its content.
//! - A ballot never passes from one instance to the next.
//! - A chosen view never disappears: a node that enters the next instance writes the view to
//!   [`Ballot::decided`] in the same write.

use std::{collections::BTreeSet, sync::Arc};

use plexus_base::{MAX_NODES, NodeId};

use super::{
    record::{Ballot, Contents},
    view::{FileId, View},
};

/// The result of confirming a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PaxosProgress {
    /// More files are needed, or no proposal is under way.
    Waiting,
    /// The file has a higher ballot, so this attempt is over.
    Beaten,
    /// [`Paxos::own`] has changed and must be written: the ballot now proposes.
    Accepting,
    /// This view is decided.
    Chosen(Arc<View>),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    /// Looks for higher ballots, and for proposals of lower ones.
    Preparing,
    /// Checks again for higher ballots.
    Accepting,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Attempt {
    phase: Phase,
    /// The view to propose if no node has proposed one.
    value: Arc<View>,
    /// The proposal with the highest ballot found so far.
    best: Option<(u64, Arc<View>)>,
    confirmed: BTreeSet<FileId>,
}

/// One node's part in deciding the next view.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Paxos {
    node: NodeId,
    own: Arc<Ballot>,
    attempt: Option<Attempt>,
    /// The highest ballot seen in this instance.
    highest: u64,
}

impl Paxos {
    /// Recovers a starting node from `found`, the content of a majority of the files of `decided`.
    /// `decided` is the latest view in any of them.
    #[must_use]
    pub fn recovered<'a>(
        node: NodeId,
        decided: Arc<View>,
        found: impl IntoIterator<Item = &'a Contents>,
    ) -> Self {
        let mut own = Ballot { counter: 0, mbal: 0, bal: 0, proposed: None, decided };
        for ballot in found.into_iter().filter_map(|contents| contents.nodes[node.index()].ballot()) {
            own.counter = own.counter.max(ballot.counter);
            if ballot.decided.epoch != own.decided.epoch {
                continue;
            }
            own.mbal = own.mbal.max(ballot.mbal);
            if ballot.bal > own.bal {
                (own.bal, own.proposed) = (ballot.bal, ballot.proposed.clone());
            }
        }
        own.counter += 1;
        let highest = own.mbal;
        Self { node, own: Arc::new(own), attempt: None, highest }
    }

    /// Returns the ballot to write to every file.
    #[must_use]
    pub fn own(&self) -> &Arc<Ballot> {
        &self.own
    }

    /// Returns true if a proposal is under way.
    #[must_use]
    pub fn is_proposing(&self) -> bool {
        self.attempt.is_some()
    }

    /// Raises the counter above that of an earlier incarnation's ballot found in a file, so that
    /// the next write is newer.
    pub fn pass(&mut self, counter: u64) {
        if self.own.counter <= counter {
            self.change(|own| own.counter = counter);
        }
    }

    /// Proposes `value` with a ballot above all that were seen.
    ///
    /// # Panics
    /// Panics if `value` is not the next view.
    pub fn propose(&mut self, value: Arc<View>) {
        assert_eq!(value.epoch.0, self.own.decided.epoch.0 + 1, "the next view is proposed");
        let nodes = MAX_NODES as u64;
        let round = self.highest.max(self.own.mbal) / nodes + 1;
        self.highest = round * nodes + u64::from(self.node.0);
        let (mbal, best) = (self.highest, self.own_proposal());
        self.change(|own| own.mbal = mbal);
        self.attempt = Some(Attempt { phase: Phase::Preparing, value, best, confirmed: BTreeSet::new() });
    }

    /// Abandons the proposal. Ballots in files stay.
    pub fn abandon(&mut self) {
        self.attempt = None;
    }

    /// Starts the next instance, because a view was decided here or elsewhere.
    pub fn learned(&mut self, view: &Arc<View>) {
        if view.epoch <= self.own.decided.epoch {
            return;
        }
        (self.attempt, self.highest) = (None, 0);
        self.change(|own| {
            (own.mbal, own.bal, own.proposed) = (0, 0, None);
            own.decided = Arc::clone(view);
        });
    }

    /// Handles `contents`, which was read from `file`. The file counts only if it holds exactly
    /// this ballot of the node, not one of an earlier incarnation with a higher counter. The caller
    /// has already learned the decided views in `contents`.
    pub fn confirmed(&mut self, file: FileId, contents: &Contents) -> PaxosProgress {
        let epoch = self.own.decided.epoch;
        let others = (0..MAX_NODES).filter(|node| *node != self.node.index());
        let others = others.filter_map(|node| contents.nodes[node].ballot());
        let others: Vec<&Arc<Ballot>> =
            others.filter(|ballot| ballot.decided.epoch == epoch && ballot.mbal > 0).collect();
        let seen = others.iter().map(|ballot| ballot.mbal).max().unwrap_or_default();
        self.highest = self.highest.max(seen);
        let Some(attempt) = &mut self.attempt else { return PaxosProgress::Waiting };
        if seen > self.own.mbal {
            self.attempt = None;
            return PaxosProgress::Beaten;
        }
        let stands = contents.nodes[self.node.index()].ballot() == Some(&self.own);
        if !stands || self.own.decided.file(file).is_none() {
            return PaxosProgress::Waiting;
        }
        for ballot in others {
            if let Some(proposed) = ballot.proposed.as_ref().filter(|_| ballot.bal > 0)
                && attempt.best.as_ref().is_none_or(|(bal, _)| ballot.bal > *bal)
            {
                attempt.best = Some((ballot.bal, Arc::clone(proposed)));
            }
        }
        attempt.confirmed.insert(file);
        if attempt.confirmed.len() < self.own.decided.majority() {
            return PaxosProgress::Waiting;
        }
        match attempt.phase {
            Phase::Preparing => self.accept(),
            Phase::Accepting => {
                let chosen = self.own.proposed.clone().expect("a ballot that accepts has proposed");
                self.attempt = None;
                PaxosProgress::Chosen(chosen)
            }
        }
    }

    fn accept(&mut self) -> PaxosProgress {
        let mut attempt = self.attempt.take().expect("a proposal is under way");
        let value = attempt.best.take().map_or_else(|| Arc::clone(&attempt.value), |(_, view)| view);
        self.change(|own| (own.bal, own.proposed) = (own.mbal, Some(value)));
        attempt.confirmed.clear();
        self.attempt = Some(Attempt { phase: Phase::Accepting, ..attempt });
        PaxosProgress::Accepting
    }

    fn own_proposal(&self) -> Option<(u64, Arc<View>)> {
        self.own.proposed.clone().map(|proposed| (self.own.bal, proposed))
    }

    fn change(&mut self, change: impl FnOnce(&mut Ballot)) {
        let own = Arc::make_mut(&mut self.own);
        change(own);
        own.counter += 1;
    }
}
