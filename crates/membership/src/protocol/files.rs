//! What a member remembers of each voting file: what stands there, when it last answered, and whether it can be trusted.
//!
//! Whoever writes a block gives it a counter above what that file held, so in a sound file every counter only grows. A file in which
//! one is lower is an older copy of itself, and what it says of ballots may be wrong. It is set aside until a view without it is decided.
//!
//! The two ballot blocks of a node are written in turn, the one that is not in force first; which one that is, is known from a read
//! after the last write. So a torn write loses nothing that was in force.

use std::sync::Arc;

use plexus_base::{MAX_NODES, Nanos, NodeId};

use super::{
    record::{Ballot, Block, Contents, Report},
    view::VotingFile,
};

/// By so much of its reports' counter a node's heartbeat may go back in a file that has lost its power. A node counts each report that it makes, one for every
/// file and one for its peers in a heartbeat: with three files it is 128 heartbeats. What [must last](Writes::must_last) never goes back.
pub const UNSETTLED: u64 = 512;

/// Once what is durable lags so far behind, by the same counter, it is made durable while nobody waits: often enough that nobody need ever wait on a disk
/// that does it within a second, and rarely enough to cost little.
pub const SETTLED: u64 = UNSETTLED / 8;

/// Once it lags so far behind, a turn waits until it does not. Half of what may be lost: what a turn writes may count a little further before it waits.
pub const AWAITED: u64 = UNSETTLED / 2;

/// What to write to a file before it is read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Writes {
    /// This node's heartbeat block.
    pub heartbeat: Option<Arc<Report>>,
    /// Which of its ballot blocks, and what.
    pub ballot: Option<(u8, Arc<Ballot>)>,
}

impl Writes {
    /// Whether this must be durable before the file is read, given the node's heartbeat that stood there `before`: a ballot, the first report of an incarnation, and
    /// one that asks for a newer generation of the registry to be remembered. All else that a report says is for those who read it now, and said
    /// again in the next.
    ///
    /// It counts that what stood there before is durable as far as it had to be. Whoever has just opened the file, or failed at it, does not know: its first
    /// turn makes everything durable before it reads, also one that writes nothing. For what is found is taken to last, and nobody writes it again.
    #[must_use]
    pub fn must_last(&self, before: &Block<Report>) -> bool {
        let is_new = |now: &Arc<Report>| {
            before
                .good()
                .is_none_or(|before| now.incarnation != before.incarnation || now.registry > before.registry)
        };
        self.ballot.is_some() || self.heartbeat.as_ref().is_some_and(is_new)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// The incarnation and its counter.
    heartbeat: (u64, u64),
    ballot: u64,
}

/// A turn under way: a write and a read.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) started: Nanos,
    writes: Writes,
}

#[derive(Clone, Debug)]
pub(super) struct FileState {
    pub(super) file: VotingFile,
    me: NodeId,
    /// What stands there, as far as it is known since the last failure; without that nothing is written.
    known: Option<Known>,
    marks: [Marks; MAX_NODES],
    pub(super) turn: Option<Turn>,
    /// When the next turn is due.
    pub(super) next: Nanos,
    /// When the last turn that showed no eviction began.
    pub(super) renewed: Option<Nanos>,
    /// The number of the report that it wrote.
    pub(super) said: u64,
    /// How long the last turn took.
    pub(super) took: Option<Nanos>,
    /// When it last answered.
    pub(super) answered: Option<Nanos>,
    /// It is an older copy of itself.
    pub(super) is_aside: bool,
    /// As last read.
    pub(super) contents: Option<Contents>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// The counter of the own ballot in force, 0 where there is none, and the block to write next.
    ballot: u64,
    slot: u8,
}

impl FileState {
    pub(super) fn new(me: NodeId, file: VotingFile, now: Nanos) -> Self {
        Self {
            file,
            me,
            known: None,
            marks: [Marks::default(); MAX_NODES],
            turn: None,
            next: now,
            renewed: None,
            said: 0,
            took: None,
            answered: None,
            is_aside: false,
            contents: None,
        }
    }

    /// Begins a turn: what to write, given the newest ballot and a way to make a report.
    pub(super) fn begin(
        &mut self,
        now: Nanos,
        ballot: Option<&Arc<Ballot>>,
        report: impl FnOnce() -> Report,
    ) -> Writes {
        let writes = self.known.map_or_else(Writes::default, |known| Writes {
            heartbeat: Some(Arc::new(report())),
            ballot: ballot
                .filter(|ballot| ballot.counter > known.ballot)
                .map(|ballot| (known.slot, Arc::clone(ballot))),
        });
        self.turn = Some(Turn { started: now, writes: writes.clone() });
        writes
    }

    /// What was done is unknown: look before anything is written again.
    pub(super) fn failed(&mut self) {
        (self.turn, self.known) = (None, None);
    }

    /// Takes what the turn read; when it began, if what it wrote stands there and it wrote. `None` when it failed.
    pub(super) fn finished(&mut self, contents: &Contents) -> Option<Finished> {
        let Turn { started, writes } = self.turn.take()?;
        if self.is_older(contents) {
            self.failed();
            self.is_aside = true;
            return None;
        }
        let own = &contents.places[self.me.index()];
        let stands = |written: u64, found: Option<u64>| found == Some(written);
        let heartbeat = writes
            .heartbeat
            .as_ref()
            .is_none_or(|report| stands(report.counter, own.heartbeat.good().map(|found| found.counter)));
        let ballot = writes.ballot.as_ref().is_none_or(|(slot, ballot)| {
            stands(ballot.counter, own.ballots[usize::from(*slot)].good().map(|found| found.counter))
        });
        if !heartbeat || !ballot {
            self.failed();
            return None;
        }
        let in_force = own.ballot().map_or(0, |ballot| ballot.counter);
        self.known = Some(Known { ballot: in_force, slot: own.next_slot() });
        Some(Finished { started, said: writes.heartbeat.map(|report| report.counter) })
    }

    /// The own ballot that stands there, where that is known.
    pub(super) fn ballot(&self) -> Option<u64> {
        self.known.map(|known| known.ballot)
    }

    fn is_older(&mut self, contents: &Contents) -> bool {
        let mut older = false;
        for (place, marks) in contents.places.iter().zip(&mut self.marks) {
            let heartbeat = match &place.heartbeat {
                Block::Empty => (0, 0),
                // Torn: it says nothing of the file.
                Block::Bad => marks.heartbeat,
                Block::Good(report) => (report.incarnation.0, report.counter),
            };
            let ballot = place.ballot().map_or(0, |ballot| ballot.counter);
            older |= (heartbeat.0, heartbeat.1 + UNSETTLED) < marks.heartbeat || ballot < marks.ballot;
            *marks = Marks { heartbeat: heartbeat.max(marks.heartbeat), ballot: ballot.max(marks.ballot) };
        }
        older
    }
}

/// A turn that went well.
pub(super) struct Finished {
    pub(super) started: Nanos,
    /// The number of the report that it wrote; with none it cannot renew.
    pub(super) said: Option<u64>,
}
