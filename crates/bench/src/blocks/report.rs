//! The report of a run: the merged results of the nodes.

use plexus_admin::config::Config;
use plexus_observe::Traffic;
use serde::{Deserialize, Serialize};

use super::{NodeCounts, NodeResult, Workload};
use crate::{
    ResponseUs, Responses, Usage,
    report::{Table, count, rate, us},
    responses::thousandths,
};

/// The context switches of all nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Switches {
    pub voluntary: u64,
    pub involuntary: u64,
}

/// The report of a run. A *block* is here one that arrived from the memory of another node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The kind of rail that joined the nodes.
    pub rail: String,
    /// The waiting mode of the nodes.
    pub waiting: String,
    /// The number of nodes.
    pub nodes: usize,
    /// The number of workers of each node.
    pub workers: u8,
    /// The bytes of a block.
    pub block_size: u64,
    /// The parameters of the workload.
    #[serde(flatten)]
    pub workload: Workload,
    /// The measured time in seconds.
    pub seconds: f64,
    /// The blocks per second, over all nodes.
    pub blocks_per_s: f64,
    /// The reads and changes per second.
    pub operations_per_s: f64,
    /// The changes per second.
    pub changes_per_s: f64,
    /// The response times of reads and changes that waited for the block. The wait for redo is left
    /// out.
    pub response_us: ResponseUs,
    /// The response times of changes until their redo was durable; zero if none waited for that.
    pub change_us: ResponseUs,
    /// The CPU time of all nodes for each block.
    pub cpu_us_per_block: f64,
    /// The CPU time of all nodes, in cores.
    pub cpu_cores: f64,
    /// The context switches of all nodes.
    pub context_switches: Switches,
    /// The reads and changes that found the block in their node.
    pub local_hits: u64,
    /// The counters of the caches.
    #[serde(flatten)]
    pub counts: NodeCounts,
    /// The number of sent messages.
    pub messages: u64,
    /// The number of sent bytes, without the headers of messages and rails.
    pub bytes: u64,
    /// The acknowledged changes, including the warm-up.
    pub changes_acknowledged: u64,
    /// The changes found in the blocks.
    pub changes_found: u64,
    /// The longest time in milliseconds in which a node acknowledged no change; 0 without changes.
    pub longest_pause_ms: f64,
    /// The nodes that ended or left during the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<String>,
    /// The nodes whose process is stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped: Vec<String>,
    /// One line for each of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// The messages by channel and size.
    #[serde(skip)]
    pub traffic: Traffic,
}

impl Report {
    pub(super) fn of(
        config: &Config,
        rail: &str,
        workload: &Workload,
        results: &[NodeResult],
        changes_found: u64,
    ) -> Self {
        let (mut responses, mut change_responses) = (Responses::new(), Responses::new());
        let (mut usage, mut counts, mut traffic) =
            (Usage::default(), NodeCounts::default(), Traffic::default());
        let (mut blocks_per_s, mut operations_per_s, mut changes_per_s, mut seconds) = (0.0, 0.0, 0.0, 0.0);
        for result in results {
            let node_seconds = result.measured_ns.max(1) as f64 / 1e9;
            let blocks =
                result.counts.two_message + result.counts.three_message + result.counts.consistent_copies;
            blocks_per_s += blocks as f64 / node_seconds;
            operations_per_s += (result.reads + result.changes) as f64 / node_seconds;
            changes_per_s += result.changes as f64 / node_seconds;
            seconds += node_seconds / results.len() as f64;
            responses.merge(&result.responses);
            change_responses.merge(&result.change_responses);
            usage.add(&result.usage);
            counts.add(&result.counts);
            traffic.merge(&result.traffic);
        }
        let sent = traffic.0.values().flat_map(|channel| [&channel.client_out, &channel.server_out]);
        let (messages, bytes) = sent.fold((0, 0), |(messages, bytes), sizes| {
            (messages + sizes.messages.iter().sum::<u64>(), bytes + sizes.bytes.iter().sum::<u64>())
        });
        let blocks = (counts.two_message + counts.three_message + counts.consistent_copies).max(1);
        Self {
            rail: rail.into(),
            waiting: config.waiting.to_string(),
            nodes: results.len(),
            workers: config.workers,
            block_size: config.block_size.bytes() as u64,
            workload: workload.clone(),
            seconds: thousandths(seconds),
            blocks_per_s: thousandths(blocks_per_s),
            operations_per_s: thousandths(operations_per_s),
            changes_per_s: thousandths(changes_per_s),
            response_us: responses.summary(),
            change_us: change_responses.summary(),
            cpu_us_per_block: thousandths(usage.cpu_ns as f64 / 1000.0 / blocks as f64),
            cpu_cores: thousandths(usage.cpu_ns as f64 / 1e9 / seconds.max(1e-9)),
            context_switches: Switches { voluntary: usage.voluntary, involuntary: usage.involuntary },
            local_hits: results.iter().map(|result| result.hits).sum(),
            counts,
            messages,
            bytes,
            changes_acknowledged: results.iter().flat_map(|result| &result.acknowledged).sum(),
            longest_pause_ms: thousandths(
                results.iter().map(|result| result.longest_pause_ns).max().unwrap_or(0) as f64 / 1e6,
            ),
            ended: Vec::new(),
            stopped: Vec::new(),
            why: Vec::new(),
            changes_found,
            traffic,
        }
    }

    /// The heads of [`Report::row`].
    pub const HEADS: [&'static str; 9] =
        ["rail", "clients", "blocks/s", "p50 us", "p99 us", "p99.9 us", "CPU us/block", "cores", "switches"];

    /// Returns the most important figures as a table row.
    pub fn row(&self) -> [String; 9] {
        [
            self.rail.clone(),
            self.workload.clients.to_string(),
            rate(self.blocks_per_s),
            us(self.response_us.p50),
            us(self.response_us.p99),
            us(self.response_us.p999),
            us(self.cpu_us_per_block),
            format!("{:.2}", self.cpu_cores),
            count(self.context_switches.voluntary + self.context_switches.involuntary),
        ]
    }

    /// The heads of [`Report::more_row`].
    pub const MORE_HEADS: [&'static str; 9] =
        ["rail", "clients", "operations/s", "local", "2-message", "3-message", "copies", "MB/s", "changes"];

    /// Returns the figures on the sources of the blocks as a table row.
    pub fn more_row(&self) -> [String; 9] {
        [
            self.rail.clone(),
            self.workload.clients.to_string(),
            rate(self.operations_per_s),
            count(self.local_hits),
            count(self.counts.two_message),
            count(self.counts.three_message),
            count(self.counts.consistent_copies),
            rate(self.bytes as f64 / 1e6 / self.seconds.max(1e-9)),
            count(self.changes_acknowledged),
        ]
    }

    /// Returns both tables of several runs.
    pub fn tables(reports: &[Self]) -> [Table; 2] {
        let (mut first, mut second) = (Table::new(Self::HEADS), Table::new(Self::MORE_HEADS));
        for report in reports {
            first.row(report.row());
            second.row(report.more_row());
        }
        [first, second]
    }
}
