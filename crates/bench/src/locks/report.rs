//! The report of a run: the merged results of the nodes.

use plexus_admin::config::Config;
use serde::{Deserialize, Serialize};

use super::{NodeResult, Workload};
use crate::{
    ResponseUs, Responses, Usage,
    report::{Table, rate, us},
    responses::thousandths,
};

/// The report of a run of the lock workload.
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
    /// The parameters of the workload.
    #[serde(flatten)]
    pub workload: Workload,
    /// The locks per second, each granted and released, over all nodes.
    pub locks_per_s: f64,
    /// The grants per second after a holder on another node; counted only for shared names.
    pub hand_overs_per_s: f64,
    /// The times from the request of a lock to its release.
    pub response_us: ResponseUs,
    /// The CPU time of all nodes for each lock.
    pub cpu_us_per_lock: f64,
    /// The locks granted, including the warm-up.
    pub granted: u64,
}

impl Report {
    pub(super) fn of(config: &Config, rail: &str, workload: &Workload, results: &[NodeResult]) -> Self {
        let (mut responses, mut usage) = (Responses::new(), Usage::default());
        let (mut locks_per_s, mut hand_overs_per_s) = (0.0, 0.0);
        for result in results {
            let seconds = result.measured_ns.max(1) as f64 / 1e9;
            locks_per_s += result.granted as f64 / seconds;
            hand_overs_per_s += result.handed_over as f64 / seconds;
            responses.merge(&result.responses);
            usage.add(&result.usage);
        }
        let measured: u64 = results.iter().map(|result| result.granted).sum();
        Self {
            rail: rail.into(),
            waiting: config.waiting.to_string(),
            nodes: results.len(),
            workers: config.workers,
            workload: workload.clone(),
            locks_per_s: thousandths(locks_per_s),
            hand_overs_per_s: thousandths(hand_overs_per_s),
            response_us: responses.summary(),
            cpu_us_per_lock: thousandths(usage.cpu_ns as f64 / 1000.0 / measured.max(1) as f64),
            granted: results.iter().map(|result| result.all).sum(),
        }
    }

    /// Returns a table of several runs.
    pub fn table(reports: &[Self]) -> Table {
        let mut table = Table::new([
            "rail",
            "names",
            "clients",
            "locks/s",
            "hand-overs/s",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "CPU us/lock",
        ]);
        for report in reports {
            table.row([
                report.rail.clone(),
                report.workload.names.to_string(),
                format!("{} x {}", report.workload.active, report.workload.clients),
                rate(report.locks_per_s),
                rate(report.hand_overs_per_s),
                us(report.response_us.p50),
                us(report.response_us.p99),
                us(report.response_us.p999),
                us(report.cpu_us_per_lock),
            ]);
        }
        table
    }
}
