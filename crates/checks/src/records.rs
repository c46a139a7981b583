//! The records of lost blocks: a disk that is slow, fails, is tried again, and survives its node's
//! incarnations.

use plexus_base::Epoch;
use plexus_cache::protocol::{Event, Lost};

use crate::{
    cluster::{Cluster, ClusterEvent, Phase},
    failure::Broken,
};

/// The percentage of attempts that fail while faults happen.
const FAILS_PERCENT: u64 = 20;

/// The minimum delay of a late record.
const LATE_NS: u64 = 50_000;

/// The record of one worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    durable: Lost,
    /// The last view in which all masters were open, and the number of deaths by then.
    whole: Option<(Epoch, u64)>,
    /// The next content to write, with the number that the shard gave it.
    next: Option<(u64, Lost)>,
}

impl Record {
    pub(crate) fn durable(&self) -> &Lost {
        &self.durable
    }

    /// Returns the record that the next incarnation of its node finds.
    pub(crate) fn recalled(&self) -> (Epoch, Lost) {
        (self.whole.map_or(Epoch(0), |whole| whole.0), self.durable.clone())
    }

    /// Returns the number of deaths when all masters were open.
    pub(crate) fn deaths(&self) -> u64 {
        self.whole.map_or(0, |whole| whole.1)
    }

    /// Notes that all masters are open in this view, after `deaths` deaths.
    pub(crate) fn is_whole(&mut self, epoch: Epoch, deaths: u64) {
        self.whole = Some((epoch, deaths));
    }

    /// Returns true if the content on the disk is about to be replaced.
    pub(crate) fn is_changing(&self) -> bool {
        self.next.is_some()
    }
}

impl Cluster {
    /// Begins to write the lost blocks of a shard; replaces content that is not written yet.
    pub(crate) fn begin_record(&mut self, at: usize, seq: u64) {
        let lost = self.locals[at].shard.lost().clone();
        if self.records[at].next.replace((seq, lost)).is_none() {
            self.write_record(at);
        }
    }

    fn write_record(&mut self, at: usize) {
        let random = &mut self.engine.random;
        // Late on purpose: a view comes in between.
        let after = if random.percent(30) {
            random.between(1, self.params.change_ns.max(LATE_NS))
        } else {
            self.params.disk.draw(random)
        };
        let owner = self.owner(self.port(at).node.index());
        self.engine.schedule(after, Some(owner), ClusterEvent::Record(at));
    }

    /// Ends an attempt to write.
    pub(crate) fn end_record(&mut self, at: usize) -> Result<(), Broken> {
        if self.phase == Phase::Running && self.engine.random.percent(FAILS_PERCENT) {
            self.write_record(at);
            return Ok(());
        }
        let (seq, lost) = self.records[at].next.take().expect("something is written");
        self.records[at].durable = lost;
        self.shard(at, Event::LostRecorded { seq })
    }

    /// Ends the incarnation: content that was being written may or may not be on the disk.
    pub(crate) fn tear_record(&mut self, at: usize) {
        if let Some((_, lost)) = self.records[at].next.take()
            && self.engine.random.percent(50)
        {
            self.records[at].durable = lost;
        }
    }
}
