//! How much is said in clusters of more and more nodes: counted up to 16, the most that a cluster has, by running the protocols; beyond that
//! worked out by formulas that are held against what is counted.

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

/// Voting files, each served by a node.
const FILES: usize = 3;

/// Seeds of a cluster's membership: when heartbeats fall is drawn.
const SEEDS: u64 = 20;

/// Where it is counted.
const COUNTED: [usize; 3] = [4, 8, MAX_NODES];

/// Where it is worked out.
const WORKED_OUT: [usize; 2] = [64, 256];

/// What the membership of a cluster of so many nodes says: the mean of some seeds.
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

/// A row of the table: what one number of nodes comes to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Row {
    /// Of the cluster.
    pub nodes: usize,
    /// Reports between nodes in a heartbeat, to one receiver each.
    pub reports: f64,
    /// Turns at voting files in a heartbeat.
    pub turns: f64,
    /// Reports that a death costs.
    pub reports_of_death: f64,
    /// Turns that a death costs.
    pub turns_of_death: f64,
    /// Milliseconds from a death that is proved to the last of the others in a view without it, where that is counted.
    pub death_ms: Option<f64>,
    /// Messages to take a lock and give it up.
    pub lock: f64,
    /// Messages of locks that a death costs.
    pub locks_of_death: f64,
    /// Messages of locks that a newcomer costs.
    pub locks_of_join: f64,
    /// The longest row of messages of locks, one the answer to the other, in a death or for a newcomer.
    pub row_of_change: f64,
}

impl Row {
    /// As it is counted.
    ///
    /// # Panics
    /// More than 16 nodes; a property does not hold.
    #[must_use]
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

    /// As it is worked out: everybody reports to everybody and takes a turn at each file, in each heartbeat; after a death each survivor says twice
    /// more what it knows (decided, opened) and looks once more at each file, and one takes two turns to propose. A lock takes three messages where its
    /// master is another node. In a change of view everybody asks everybody and is answered; who holds what moved says so in a message more.
    #[must_use]
    pub fn worked_out(nodes: usize) -> Self {
        let (n, files) = (nodes as f64, FILES as f64);
        let left = n - 1.0;
        let moved = HELD as f64 / n;
        Self {
            nodes,
            reports: n * left,
            turns: n * files,
            reports_of_death: 2.0 * left * left,
            turns_of_death: (left + 2.0) * files,
            death_ms: None,
            lock: 3.0 * left / n,
            locks_of_death: left * (left - 1.0) * (3.0 - (1.0 - 1.0 / left).powf(moved)),
            locks_of_join: 2.0 * n * left + 2.0 * left,
            row_of_change: 2.0,
        }
    }

    /// All numbers with their names, to compare rows.
    #[must_use]
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

    /// Megabytes in a second that are read from one voting file: each turn reads all of it.
    fn read_mb(&self) -> f64 {
        let blocks = 1 + 3 * self.nodes.max(MAX_NODES);
        let beats = 1e9 / Profile::LAN.heartbeat.0 as f64;
        self.turns / FILES as f64 * beats * (blocks * BLOCK) as f64 / 1e6
    }

    /// Kilobytes in a second of reports that come to each node. A report has a place for each node that may be.
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

/// The table as it stands in docs/performance.md.
///
/// # Panics
/// A property does not hold.
#[must_use]
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
