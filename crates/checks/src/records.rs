//! What nodes have on record of what is lost: a disk that is late, fails and is tried again, and outlives its node's lives.

use plexus_base::Epoch;
use plexus_cache::protocol::{Event, Lost};

use crate::{
    cluster::{Cluster, Ev, Phase},
    failure::Broken,
};

/// Of a hundred attempts so many fail while things fail.
const FAILS_PERCENT: u64 = 20;

/// A record that is late may be so by this much at least.
const LATE_NS: u64 = 50_000;

/// The record of one worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    durable: Lost,
    /// The last view in which all masters were open, and how many had died by then.
    whole: Option<(Epoch, u64)>,
    /// What is written next, and the number that the shard gave it.
    next: Option<(u64, Lost)>,
}

impl Record {
    pub(crate) fn durable(&self) -> &Lost {
        &self.durable
    }

    /// What its node's next incarnation finds.
    pub(crate) fn recalled(&self) -> (Epoch, Lost) {
        (self.whole.map_or(Epoch(0), |whole| whole.0), self.durable.clone())
    }

    /// How many had died when all masters were open.
    pub(crate) fn deaths(&self) -> u64 {
        self.whole.map_or(0, |whole| whole.1)
    }

    /// All masters are open in this view, until which so many have died.
    pub(crate) fn is_whole(&mut self, epoch: Epoch, deaths: u64) {
        self.whole = Some((epoch, deaths));
    }

    /// Whether what is on the disk is about to be replaced.
    pub(crate) fn is_changing(&self) -> bool {
        self.next.is_some()
    }
}

impl Cluster {
    /// A shard puts what is lost on record, in place of what was not written yet.
    pub(crate) fn begin_record(&mut self, at: usize, seq: u64) {
        let lost = self.locals[at].shard.lost().clone();
        if self.records[at].next.replace((seq, lost)).is_none() {
            self.write_record(at);
        }
    }

    fn write_record(&mut self, at: usize) {
        let random = &mut self.engine.random;
        // Late as well: a view comes in between.
        let after = if random.percent(30) {
            random.between(1, self.params.change_ns.max(LATE_NS))
        } else {
            self.params.disk.draw(random)
        };
        let owner = self.owner(self.port(at).node.index());
        self.engine.schedule(after, Some(owner), Ev::Record(at));
    }

    /// The disk has done what it could.
    pub(crate) fn end_record(&mut self, at: usize) -> Result<(), Broken> {
        if self.phase == Phase::Running && self.engine.random.percent(FAILS_PERCENT) {
            self.write_record(at);
            return Ok(());
        }
        let (seq, lost) = self.records[at].next.take().expect("something is written");
        self.records[at].durable = lost;
        self.shard(at, Event::LostRecorded { seq })
    }

    /// The incarnation ends: what was being written is on the disk, or is not.
    pub(crate) fn tear_record(&mut self, at: usize) {
        if let Some((_, lost)) = self.records[at].next.take()
            && self.engine.random.percent(50)
        {
            self.records[at].durable = lost;
        }
    }
}
