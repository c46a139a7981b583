//! Shows the message counts of growing clusters: counted up to 16 nodes, the maximum of a cluster,
//! by running the protocols. Larger ones are calculated with formulas that are checked against the
//! counts.

pub mod locks;

use std::fmt::Write;

use plexus_base::{MAX_NODES, NodeId};
use plexus_membership::{
    protocol::Profile,
    runtime::SEAL,
    voting::format::{BLOCK, MESSAGE},
};

use self::locks::HELD;
use crate::membership::{self, Membership};

/// The voting files, each served by a node.
const FILES: usize = 3;

/// The seeds of a cluster's membership; the phases of heartbeats are drawn.
const SEEDS: u64 = 20;

/// Turns of a node at a file per heartbeat while all others promise: they are at least a third of a
/// lease apart, three heartbeats, and some are early. Counted.
const TURNS_AT_REST: f64 = 0.388;

/// Turns at a file that a death costs for each survivor, and in addition: the end of the rest
/// brings turns forward. Counted.
const TURNS_OF_DEATH: (f64, f64) = (1.6, 1.4);

/// The cluster sizes that are counted.
const COUNTED: [usize; 3] = [4, 8, MAX_NODES];

/// The cluster sizes that are calculated.
const WORKED_OUT: [usize; 2] = [64, 256];

/// Returns the membership traffic of a cluster: the mean of some seeds.
///
/// # Panics
/// A property does not hold.
fn views(nodes: usize) -> membership::Traffic {
    let hosts: Vec<_> = (0..FILES as u8).map(|node| Some(NodeId(node))).collect();
    let all: Vec<membership::Traffic> = (0..SEEDS)
        .map(|seed| {
            let traffic = Membership::steady(seed, nodes, &hosts, Profile::LAN).traffic();
            traffic.unwrap_or_else(|broken| panic!("{nodes} nodes, seed {seed}: {broken:?}"))
        })
        .collect();
    let mean = |of: fn(&membership::Traffic) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    membership::Traffic {
        reports: mean(|one| one.reports),
        turns: mean(|one| one.turns),
        reports_of_death: mean(|one| one.reports_of_death),
        turns_of_death: mean(|one| one.turns_of_death),
        death_ns: mean(|one| one.death_ns as f64) as u64,
    }
}

/// A row of the table: the counts of one cluster size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Row {
    /// The nodes of the cluster.
    pub nodes: usize,
    /// Reports between nodes per heartbeat, counted per receiver.
    pub reports: f64,
    /// Turns at voting files per heartbeat.
    pub turns: f64,
    /// The reports that a death costs.
    pub reports_of_death: f64,
    /// The turns that a death costs.
    pub turns_of_death: f64,
    /// The milliseconds from a proved death until the last other node acts in a view without it, if
    /// counted.
    pub death_ms: Option<f64>,
    /// The messages to take and release a lock.
    pub lock: f64,
    /// The lock messages that a death costs.
    pub locks_of_death: f64,
    /// The lock messages that a newcomer costs.
    pub locks_of_join: f64,
    /// The longest chain of lock messages, each the answer to the one before, in a death or for a
    /// newcomer.
    pub row_of_change: f64,
}

impl Row {
    /// Counts a row.
    ///
    /// # Panics
    /// More than 16 nodes, or a property does not hold.
    pub fn counted(nodes: usize) -> Self {
        let (views, locks) = (views(nodes), locks::traffic(nodes));
        Self {
            nodes,
            reports: views.reports,
            turns: views.turns,
            reports_of_death: views.reports_of_death,
            turns_of_death: views.turns_of_death,
            death_ms: Some(views.death_ns as f64 / 1e6),
            lock: locks.locks.messages as f64 / (nodes as u64 * HELD) as f64,
            locks_of_death: locks.death.messages as f64,
            locks_of_join: locks.join.messages as f64,
            row_of_change: locks.death.row.max(locks.join.row) as f64,
        }
    }

    /// Calculates a row. In each heartbeat each node reports to every other. After a death each
    /// survivor sends two more reports (decided, opened). A lock takes three messages if
    /// its master is another node. In a view change each node sends a request to every other and
    /// gets an answer; holders of moved locks send one more message.
    pub fn worked_out(nodes: usize) -> Self {
        let (n, files) = (nodes as f64, FILES as f64);
        let left = n - 1.0;
        let moved = HELD as f64 / n;
        Self {
            nodes,
            reports: n * left,
            turns: n * files * TURNS_AT_REST,
            reports_of_death: 2.0 * left * left,
            turns_of_death: (TURNS_OF_DEATH.0 * left + TURNS_OF_DEATH.1) * files,
            death_ms: None,
            lock: 3.0 * left / n,
            locks_of_death: left * (left - 1.0) * (3.0 - (1.0 - 1.0 / left).powf(moved)),
            locks_of_join: 2.0 * n * left + 2.0 * left,
            row_of_change: 2.0,
        }
    }

    /// Returns all numbers with their names, to compare rows.
    pub fn named(&self) -> [(&'static str, f64); 8] {
        [
            ("reports", self.reports),
            ("turns", self.turns),
            ("reports of a death", self.reports_of_death),
            ("turns of a death", self.turns_of_death),
            ("messages of a lock", self.lock),
            ("messages of locks, death", self.locks_of_death),
            ("messages of locks, join", self.locks_of_join),
            ("messages of locks in a row", self.row_of_change),
        ]
    }

    /// Returns the megabytes per second read from one voting file: each turn reads the whole file.
    fn read_mb(&self) -> f64 {
        let blocks = 1 + 3 * self.nodes.max(MAX_NODES);
        let beats = 1e9 / Profile::LAN.heartbeat.0 as f64;
        self.turns / FILES as f64 * beats * (blocks * BLOCK) as f64 / 1e6
    }

    /// Returns the kilobytes per second of reports that arrive at each node. A report has an entry
    /// for each possible node.
    fn reports_kb(&self) -> f64 {
        let beats = 1e9 / Profile::LAN.heartbeat.0 as f64;
        let times_as_long = self.nodes.max(MAX_NODES) as f64 / MAX_NODES as f64;
        self.reports / self.nodes as f64 * beats * (MESSAGE + SEAL) as f64 * times_as_long / 1e3
    }

    fn line(&self, how: &str) -> String {
        let beats = 1e9 / Profile::LAN.heartbeat.0 as f64;
        let [reports, turns] = [self.reports, self.turns].map(|count| count * beats);
        format!(
            "| {} | {how} | {reports:.0} | {:.0} | {turns:.0} | {:.0} | {} | {:.0} | {:.0} | {:.2} | {:.0} | {:.0} | {:.0} |",
            self.nodes,
            self.reports_kb(),
            self.read_mb(),
            self.death_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}")),
            self.reports_of_death,
            self.turns_of_death,
            self.lock,
            self.locks_of_death,
            self.locks_of_join,
            self.row_of_change
        )
    }
}

/// Returns the table of docs/performance.md.
///
/// # Panics
/// A property does not hold.
pub fn table() -> String {
    let mut text = String::from(
        "| nodes | how | reports/s | KB/s of them into each node | turns/s | MB/s read of each voting file | death: ms | reports | turns | messages of a lock | locks, death: messages | locks, join: messages | locks, either: messages in a row |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for nodes in COUNTED {
        let _ = writeln!(text, "{}", Row::counted(nodes).line("counted"));
    }
    for nodes in WORKED_OUT {
        let _ = writeln!(text, "{}", Row::worked_out(nodes).line("worked out"));
    }
    text
}
