//! A member's knowledge of each voting file: its last content, its last answer, and whether it is
//! trustworthy.
//!
//! Each write of a block has a counter above the one in the file, so counters in a sound file only
//! grow. A file with a lower counter is an older copy of itself, and its ballots may be wrong. It
//! is set aside until a view without it is decided.
//!
//! The two ballot blocks of a node are written alternately, never the one in force. A read after
//! the last write shows which one that is. So a torn write never loses a ballot in force.
//!
//! Two processes must not act as one node: their ballots would write over each other. Every write
//! of a node's heartbeat block has a number of its own, and a driver never writes over a write that
//! it has not read. So each of two such processes finds the writes of the other, and ends.

use std::sync::Arc;

use plexus_base::{Incarnation, MAX_NODES, Nanos, NodeId};

use super::{
    record::{Ballot, Block, Contents, NodeBlocks, Report, ReportNumber},
    view::VotingFile,
};

/// The number of reports by which a heartbeat may go back in a file that has lost power. A node
/// counts one report per file and one for its peers in each heartbeat interval, or fewer at rest:
/// with three files, 512 are 128 intervals or more. A block that
/// [must be durable](Writes::must_be_durable) never goes back.
pub const MAX_UNDURABLE_REPORTS: u64 = 512;

/// The lag, in reports, at which heartbeats are made durable in the background. A disk that syncs
/// within a second never makes a turn wait, and the cost is small.
pub const SYNC_LAG: u64 = MAX_UNDURABLE_REPORTS / 8;

/// The lag, in reports, at which a turn waits for durability. It is half the allowed loss, because
/// a turn may write some more reports before it waits.
pub const SYNC_WAIT_LAG: u64 = MAX_UNDURABLE_REPORTS / 2;

/// The blocks to write to a file before it is read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Writes {
    /// The node's heartbeat block.
    pub heartbeat: Option<Arc<Report>>,
    /// The index of the ballot block, and the ballot.
    pub ballot: Option<(u8, Arc<Ballot>)>,
}

impl Writes {
    /// Returns true if the writes must be durable before the file is read. `before` is the previous
    /// heartbeat of the node in the file. This holds for a ballot, the first report of an
    /// incarnation, and a report with a newer registry generation. All other content of a report is
    /// only for current readers and is repeated in the next.
    ///
    /// This relies on the previous content being as durable as it had to be. After a file was
    /// opened or a turn failed, that is unknown. So the first turn then makes everything durable
    /// before it reads, even if it writes nothing: readers trust what they find, and no node writes
    /// it again.
    #[must_use]
    pub fn must_be_durable(&self, before: &Block<Report>) -> bool {
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
    heartbeat: ReportNumber,
    ballot: u64,
}

/// A turn under way: a write and a read.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) started: Nanos,
    pub(super) writes: Writes,
}

#[derive(Clone, Debug)]
pub(super) struct FileState {
    pub(super) file: VotingFile,
    me: NodeId,
    /// The content of the own blocks, if known since the last failure. Without it nothing is
    /// written.
    known: Option<Known>,
    marks: [Marks; MAX_NODES],
    /// The last report of another incarnation in the own block, from before the first write of this
    /// one. `None` until the file was read.
    former: Option<ReportNumber>,
    /// The counter that no report of this incarnation in the own block exceeds, except the last
    /// one that a turn has written.
    own: u64,
    last: Option<Arc<Report>>,
    pub(super) turn: Option<Turn>,
    /// The time of the next turn.
    pub(super) next: Nanos,
    /// The start of the last turn that showed no eviction.
    pub(super) renewed: Option<Nanos>,
    /// The number of the report that it wrote.
    pub(super) reported: u64,
    /// The duration of the last turn.
    pub(super) took: Option<Nanos>,
    /// The time of the last answer.
    pub(super) answered: Option<Nanos>,
    /// True if the file is an older copy of itself.
    pub(super) is_set_aside: bool,
    /// The content of the last read.
    pub(super) contents: Option<Contents>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// The counter of the own ballot in force (0: none), and the block for the next ballot.
    ballot: u64,
    slot: u8,
}

impl FileState {
    /// Creates the state of a file that was not read yet. `own` is the counter of the node's last
    /// report.
    pub(super) fn new(me: NodeId, file: VotingFile, own: u64, now: Nanos) -> Self {
        Self {
            file,
            me,
            known: None,
            marks: [Marks::default(); MAX_NODES],
            former: None,
            own,
            last: None,
            turn: None,
            next: now,
            renewed: None,
            reported: 0,
            took: None,
            answered: None,
            is_set_aside: false,
            contents: None,
        }
    }

    /// Begins a turn with the newest ballot and a new report, and returns the blocks to write.
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
        self.last = writes.heartbeat.clone().or(self.last.take());
        self.turn = Some(Turn { started: now, writes: writes.clone() });
        writes
    }

    /// Ends a turn of unknown effect; the next turn reads before it writes.
    pub(super) fn failed(&mut self) {
        (self.turn, self.known) = (None, None);
    }

    /// Looks for a write of another process in the own heartbeat block. An older write proves
    /// nothing: the file may have lost power, or may be an older copy. Such a copy may have a
    /// report of an earlier incarnation that was lost before this one has read the file.
    pub(super) fn own_block(&mut self, me: Incarnation, contents: &Contents) -> OwnBlock {
        let others = contents.nodes.iter().zip(self.marks).enumerate();
        let mut others = others.filter(|(node, _)| *node != self.me.index());
        if others.any(|(_, (blocks, marks))| Marks::of(blocks, marks).is_older(marks)) {
            return OwnBlock::Known;
        }
        let found = match &contents.nodes[self.me.index()].heartbeat {
            Block::Empty => {
                self.former.get_or_insert_default();
                return OwnBlock::Known;
            }
            Block::Bad => return OwnBlock::Known,
            Block::Good(found) => found,
        };
        let number = found.number();
        if found.incarnation == me {
            let is_last = self.last.as_ref() == Some(found);
            if found.counter > self.own && !is_last {
                return OwnBlock::Foreign;
            }
            self.own = self.own.max(found.counter);
            // What earlier incarnations had written is unknown if the block was bad before.
            let last = ReportNumber { incarnation: Incarnation(me.0 - 1), counter: u64::MAX };
            self.former.get_or_insert(last);
            return OwnBlock::Known;
        }
        match self.former {
            Some(former) if number > former => return OwnBlock::Foreign,
            Some(_) => {}
            None if found.incarnation > me => return OwnBlock::Later(found.incarnation),
            None => self.former = Some(number),
        }
        OwnBlock::Known
    }

    /// Ends a turn with the content read. Returns `None` if the turn failed: the file is older, or
    /// does not hold what was written.
    pub(super) fn finished(&mut self, contents: &Contents) -> Option<Finished> {
        let Turn { started, writes } = self.turn.take()?;
        if self.is_older(contents) {
            self.failed();
            self.is_set_aside = true;
            return None;
        }
        let own = &contents.nodes[self.me.index()];
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
        Some(Finished { started, reported: writes.heartbeat.map(|report| report.counter) })
    }

    /// Returns the counter of the own ballot in the file, if known.
    pub(super) fn ballot(&self) -> Option<u64> {
        self.known.map(|known| known.ballot)
    }

    fn is_older(&mut self, contents: &Contents) -> bool {
        let mut older = false;
        for (blocks, marks) in contents.nodes.iter().zip(&mut self.marks) {
            let found = Marks::of(blocks, *marks);
            older |= found.is_older(*marks);
            let (heartbeat, ballot) = (found.heartbeat.max(marks.heartbeat), found.ballot.max(marks.ballot));
            *marks = Marks { heartbeat, ballot };
        }
        older
    }
}

impl Marks {
    /// Returns the marks of these blocks. A torn block says nothing about the file.
    fn of(blocks: &NodeBlocks, before: Self) -> Self {
        let heartbeat = match &blocks.heartbeat {
            Block::Empty => ReportNumber::default(),
            Block::Bad => before.heartbeat,
            Block::Good(report) => report.number(),
        };
        Self { heartbeat, ballot: blocks.ballot().map_or(0, |ballot| ballot.counter) }
    }

    fn is_older(self, before: Self) -> bool {
        let ReportNumber { incarnation, counter } = self.heartbeat;
        let newest = ReportNumber { incarnation, counter: counter + MAX_UNDURABLE_REPORTS };
        newest < before.heartbeat || self.ballot < before.ballot
    }
}

/// The writer of a node's own heartbeat block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OwnBlock {
    /// This incarnation, or one that has ended before it.
    Known,
    /// An incarnation with a higher number, before this one has written. It may have ended.
    Later(Incarnation),
    /// A process that acts as this node at the same time.
    Foreign,
}

/// A turn that succeeded.
pub(super) struct Finished {
    pub(super) started: Nanos,
    /// The number of the report that it wrote. A turn without one renews no lease.
    pub(super) reported: Option<u64>,
}

#[cfg(test)]
mod tests {
    use plexus_base::{Incarnation, NodeSet};

    use super::*;
    use crate::protocol::{FileId, Profile, View};

    #[test]
    fn the_ballot_in_force_is_never_written_over() {
        let decided = Arc::new(View::first(NodeSet::first(1), [(FileId(1), None)]));
        let mut file = FileState::new(NodeId(0), decided.files[0], 0, Nanos(0));
        let mut contents = Contents::default();
        let report = || Report::first(NodeId(0), Incarnation(1), &Profile::LAN, Arc::clone(&decided));
        for counter in 0..5 {
            let decided = Arc::clone(&decided);
            let newest = Arc::new(Ballot { counter, mbal: 0, bal: 0, proposed: None, decided });
            let in_force = contents.nodes[0].ballot().cloned();
            let Writes { heartbeat, ballot } = file.begin(Nanos(0), Some(&newest), report);
            if let Some((slot, ballot)) = ballot {
                let blocks = &mut contents.nodes[0];
                // A torn write leaves a bad block.
                blocks.ballots[usize::from(slot)] = Block::Bad;
                assert_eq!(blocks.ballot().cloned(), in_force, "ballot {counter}");
                blocks.ballots[usize::from(slot)] = Block::Good(ballot);
            }
            contents.nodes[0].heartbeat = heartbeat.map_or_else(Block::default, Block::Good);
            assert!(file.finished(&contents).is_some());
        }
        assert_eq!(contents.nodes[0].ballot().map(|ballot| ballot.counter), Some(4));
    }

    #[test]
    fn a_write_of_another_process_in_the_own_block_is_told_from_own_writes_and_older_ones() {
        use OwnBlock::{Foreign, Known, Later};
        let decided = Arc::new(View::first(NodeSet::first(2), [(FileId(1), None)]));
        let report = |incarnation, counter| {
            let first =
                Report::first(NodeId(0), Incarnation(incarnation), &Profile::LAN, Arc::clone(&decided));
            Report { counter, ..first }
        };
        let block = |report: Report| {
            let mut contents = Contents::default();
            contents.nodes[0].heartbeat = Block::Good(Arc::new(report));
            contents
        };
        let me = Incarnation(5);
        let start = |found: &Contents| {
            let mut file = FileState::new(NodeId(0), decided.files[0], 0, Nanos(0));
            (file.begin(Nanos(0), None, || unreachable!()), file.own_block(me, found), file)
        };
        assert_eq!(start(&block(report(6, 1))).1, Later(Incarnation(6)));
        assert_eq!(start(&block(report(5, 1))).1, Foreign, "this incarnation has not written yet");
        let (_, own, mut file) = start(&block(report(4, 10)));
        assert_eq!(own, Known, "the last write of the incarnation before");
        assert_eq!(file.clone().own_block(me, &block(report(4, 11))), Foreign, "it goes on");
        file.finished(&block(report(4, 10)));
        file.begin(Nanos(1), None, || report(5, 20));
        let found = |number, is_other| {
            let (incarnation, counter) = number;
            file.clone().own_block(me, &block(Report { reaches: is_other, ..report(incarnation, counter) }))
        };
        assert_eq!(found((5, 20), false), Known);
        assert_eq!(found((5, 20), true), Foreign, "the same number by chance, and another report");
        for (number, expected) in [((5, 21), Foreign), ((6, 1), Foreign), ((4, 11), Foreign)] {
            assert_eq!(found(number, false), expected, "{number:?}");
        }
        // The write was lost, or the file is an older copy.
        assert_eq!([(4, 10), (4, 3), (3, 99)].map(|number| found(number, false)), [Known; 3]);
    }
}
