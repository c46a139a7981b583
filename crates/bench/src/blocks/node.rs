//! The workload inside one node: its clients, and the node's usage and counters while they ran.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant, SystemTime},
};

use plexus_base::BlockId;
use plexus_cache::{Cache, protocol::Counts};
use plexus_node::runtime::NodeRuntime;
use plexus_observe::Traffic;
use plexus_redo::stream::protocol::StreamCounts;
use serde::{Deserialize, Serialize};

use super::{
    Workload,
    client::{self, ClientSlot},
    counted,
};
use crate::{
    Responses, Usage,
    stage::{self, Measured, Stage, Times},
};

macro_rules! node_counts {
    ($($field:ident: $count:ident),+; $($redo_field:ident: $redo_count:ident),+) => {
        /// The counters of one node's cache and redo stream during the measurement.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        #[allow(missing_docs, reason = "they are counts of `Counts` and `StreamCounts`")]
        pub struct NodeCounts { $(pub $field: u64,)+ $(pub $redo_field: u64),+ }

        impl NodeCounts {
            fn of(counts: &Counts, redo: &StreamCounts) -> Self {
                Self { $($field: counts.$count,)+ $($redo_field: redo.$redo_count),+ }
            }

            /// Adds the counters of another node.
            pub fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)+
                $(self.$redo_field = self.$redo_field.wrapping_add(other.$redo_field);)+
            }

            fn since(&self, earlier: &Self) -> Self {
                Self {
                    $($field: self.$field.saturating_sub(earlier.$field),)+
                    $($redo_field: self.$redo_field.saturating_sub(earlier.$redo_field)),+
                }
            }
        }
    };
}

node_counts! {
    two_message: transfers_2, three_message: transfers_3, consistent_copies: copies_in, grants_keep: grants_keep,
    grants_disk: grants_disk, disk_reads: disk_reads, disk_writes: disk_writes, turns: turns, flush_waits: flush_waits;
    redo_groups: groups, redo_bytes: record_bytes, redo_image_bytes: image_bytes, redo_batches: batches,
    redo_batch_bytes: batch_bytes, redo_syncs: syncs
}

/// The result of one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeResult {
    /// The acknowledged changes of each client, including the warm-up.
    pub acknowledged: Vec<u64>,
    /// The measured time in nanoseconds; all following fields refer to it.
    pub measured_ns: u64,
    /// The longest time in nanoseconds without an acknowledged change, including the warm-up; 0 if
    /// the clients only read.
    pub longest_pause_ns: u64,
    /// The number of reads.
    pub reads: u64,
    /// The number of changes.
    pub changes: u64,
    /// The number of operations that found the block here and free.
    pub hits: u64,
    /// The response times of the other operations.
    pub responses: Responses,
    /// The response times of changes, until they were acknowledged.
    pub change_responses: Responses,
    /// The CPU time and context switches of the whole node.
    pub usage: Usage,
    /// The counters of its cache.
    pub counts: NodeCounts,
    /// The messages that it sent, with their bytes, by channel and size.
    pub traffic: Traffic,
}

/// The end of the workload on one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum NodeOutcome {
    /// The clients worked to the end.
    Done(Box<NodeResult>),
    /// The node was told to end meanwhile. The value has the acknowledged changes of each client; a
    /// client may have made one more.
    Left(Vec<u64>),
}

/// The longest time without a change. It counts only from one look to another with the same count,
/// so a late look makes no pause.
struct LongestPause {
    count: u64,
    since: Instant,
    longest: Duration,
}

impl LongestPause {
    fn look(&mut self, count: u64, now: Instant) {
        match count == self.count {
            true => self.longest = self.longest.max(now - self.since),
            false => (self.count, self.since) = (count, now),
        }
    }
}

/// All counters at one time.
struct Moment {
    at: Instant,
    usage: Usage,
    counts: NodeCounts,
    traffic: Traffic,
}

impl Moment {
    fn now(runtime: &NodeRuntime) -> io::Result<Self> {
        Ok(Self {
            traffic: Traffic::of(&runtime.links()),
            counts: NodeCounts::of(&runtime.counts(), &runtime.redo_counts()),
            usage: Usage::now()?,
            at: Instant::now(),
        })
    }
}

/// Runs the workload's clients on this node, starting at `start`. `tell` gets the acknowledged
/// changes of each client from time to time, and returns false to cancel.
///
/// # Errors
/// One line for the user.
pub(super) fn run(
    runtime: &NodeRuntime,
    workload: &Workload,
    start: SystemTime,
    tell: &mut dyn FnMut(&[u64]) -> bool,
) -> Result<NodeOutcome, String> {
    let (cache, clients, members) = (runtime.cache(), workload.clients as usize, runtime.members());
    let me = members.iter().take_while(|node| *node < runtime.me()).count();
    let acknowledged: Vec<AtomicU64> = (0..clients).map(|_| AtomicU64::new(0)).collect();
    let threads = workload.threads(usize::from(runtime.config().workers));
    let acknowledged_ref = &acknowledged;
    let work = |thread: usize| {
        move |stage: &Stage| {
            let scan = (thread == 0 && workload.scan > 0).then_some(None);
            let tasks = (thread..clients).step_by(threads).map(Some).chain(scan).map(|client| async move {
                let Some(client) = client else {
                    client::scan(cache, workload, stage).await;
                    return None;
                };
                let place = ClientSlot { slot: me * clients + client, of: clients * members.len() };
                let done = client::work(cache, workload, place, stage, &acknowledged_ref[client]);
                Some((client, done.await))
            });
            cache.run(tasks)
        }
    };
    let counts = || acknowledged.iter().map(|count| count.load(Relaxed)).collect::<Vec<_>>();
    let mut pause = LongestPause { count: 0, since: Instant::now(), longest: Duration::ZERO };
    let mut wanted = || {
        let counts = counts();
        pause.look(counts.iter().sum(), Instant::now());
        tell(&counts)
    };
    let Workload { warm_ms, measured_ms, .. } = *workload;
    let times = Times { start, warm_ms, measured_ms };
    let Measured { done, before, after } =
        stage::run(times, (0..threads).map(work), || Moment::now(runtime), &mut wanted)?;
    if cache.is_closed() {
        return Ok(NodeOutcome::Left(counts()));
    }
    let mut done: Vec<_> = done.into_iter().flatten().flatten().collect();
    done.sort_unstable_by_key(|(client, _)| *client);
    let done: Vec<_> = done.into_iter().map(|(_, done)| done).collect();
    let mut responses = Responses::new();
    let mut change_responses = Responses::new();
    for done in &done {
        responses.merge(&done.waits);
        change_responses.merge(&done.change_responses);
    }
    Ok(NodeOutcome::Done(Box::new(NodeResult {
        longest_pause_ns: if workload.writes_percent > 0 { pause.longest.as_nanos() as u64 } else { 0 },
        acknowledged: done.iter().map(|done| done.acknowledged).collect(),
        measured_ns: (after.at - before.at).as_nanos() as u64,
        reads: done.iter().map(|done| done.reads).sum(),
        changes: done.iter().map(|done| done.changes).sum(),
        hits: done.iter().map(|done| done.hits).sum(),
        responses,
        change_responses,
        usage: after.usage.since(&before.usage),
        counts: after.counts.since(&before.counts),
        traffic: after.traffic.since(&before.traffic),
    })))
}

/// The changes counted in the first `hot` blocks: in total, and by each of `slots` clients.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Sums {
    /// The total of all changes.
    pub(super) total: u64,
    /// The changes by slot.
    pub(super) slots: Vec<u64>,
}

/// Reads the blocks and adds up their counts.
pub(super) fn sum(cache: &Cache, first: u64, blocks: u64, slots: usize) -> Result<Sums, String> {
    let mut sums = Sums { total: 0, slots: vec![0; slots] };
    let mut session = cache.session();
    for block in (0..blocks).map(|place| BlockId(first.saturating_add(place))) {
        let page = session.read(block).map_err(|error| error.to_string())?;
        let total = counted::total(&page).ok_or_else(|| client::strange(block))?;
        sums.total = sums.total.wrapping_add(total);
        for (slot, sum) in sums.slots.iter_mut().enumerate() {
            *sum = sum.wrapping_add(counted::of_slot(&page, slot));
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_the_time_between_looks_at_the_same_count() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pause = LongestPause { count: 0, since: start, longest: Duration::ZERO };
        for (count, second) in [(0, 1), (5, 9), (5, 10), (5, 12), (6, 20), (6, 21)] {
            pause.look(count, at(second));
        }
        assert_eq!(pause.longest, Duration::from_secs(3), "the late looks show changes");
    }
}
