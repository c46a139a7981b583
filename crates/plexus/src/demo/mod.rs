//! The demonstration: its measurements and their order. [`show`] prints it; [`gigabit`] makes the
//! slow network.
//!
//! All its clusters are temporary, so nothing is left behind. Every run checks its sums.

mod gigabit;
mod load;
mod show;
mod transfers;

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, bail};
use plexus_admin::{Parameters, TemporaryCluster, config::Config};
use plexus_base::Waiting;
use plexus_bench::{
    blocks::{self, DeathReport, Order, Recovery, Report, Workload},
    perf::{self, Driving, Op, Over, Plan, Row, Test, Trial, Until},
};
use serde::Serialize;

use crate::commands::{
    bench::write_chart,
    measured::{self, TemporarySpec},
};
use gigabit::Gigabit;
use load::CpuTicks;
pub(crate) use show::DemoPrinter;
use transfers::TransfersReport;

/// The goals of the two-node comparison of shm with tcp: least ratio of blocks/s, greatest ratio of
/// CPU per block.
const GOAL_BLOCKS: f64 = 4.0;
const GOAL_CPU: f64 = 0.25;

/// The greatest share of the machine's CPU time that other programs may use during the comparison.
/// With more, the ratios would tell of those programs.
const MOST_LOAD: f64 = 0.05;

/// The name in reports of the rail over the slow network.
const GIGABIT: &str = "tcp-1gbit";

/// The share of a run's time for each number of clients of the sweep.
const SWEEP_SHARE: f64 = 0.4;

/// The numbers of clients on each node in the sweep for the chart.
const SWEEP_CLIENTS: [u32; 4] = [1, 2, 4, 8];

/// The blocks that only the killed node has changed.
const CHANGED_BLOCKS: u64 = 128;

/// The redo of the killed node: its bytes, and the size of each stream in MiB.
const REDO_BYTES: u64 = 4 << 20;
const REDO_MIB: u32 = 32;

/// The time of the run in which a node is killed, in milliseconds.
const DEATH_MS: u64 = 2500;

/// The warm-up before every run, in milliseconds.
const WARM_MS: u64 = 200;

/// The options of the demonstration.
pub(crate) struct Demo {
    /// The seconds for each run.
    pub(crate) seconds: f64,
    /// The directory of the chart.
    pub(crate) out: PathBuf,
}

/// The result of the demonstration, as `--json` prints it.
#[derive(Serialize)]
pub(crate) struct DemoResult {
    /// Bank transfers through SQL on three nodes, one of which is killed.
    pub(crate) transfers: TransfersReport,
    /// The reports of two nodes that pass blocks to and fro.
    pub(crate) pair: Vec<Report>,
    /// The measurements of the interconnect alone between the same two nodes.
    pub(crate) perf: Vec<Row>,
    /// The share of the machine's CPU time that other programs used during the comparison.
    pub(crate) load_of_others: f64,
    /// The blocks/s of shm divided by those of tcp; `None` if the machine was loaded.
    pub(crate) ratio_blocks_per_s: Option<f64>,
    /// The CPU time for each block of shm divided by that of tcp; `None` if the machine was loaded.
    pub(crate) ratio_cpu_per_block: Option<f64>,
    /// The blocks/s of shm divided by those of tcp at 1 Gbit/s, if there is such a network and the
    /// machine was not loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_blocks_per_s_1gbit: Option<f64>,
    /// True if the ratios reach the goals and the machine was not loaded.
    pub(crate) goals_met: bool,
    /// The reason why there is no comparison with 1 Gbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) no_1gbit: Option<String>,
    /// The reports of three nodes on contended blocks.
    pub(crate) cluster: Vec<Report>,
    /// The death of one of three nodes with redo.
    pub(crate) death: DeathReport,
    /// The reports of two nodes by the number of clients.
    pub(crate) sweep: Vec<Report>,
    /// The messages of the three nodes over shm, by channel and size.
    pub(crate) traffic: plexus_observe::Traffic,
    /// The acknowledged changes of all runs in which no node was killed.
    pub(crate) changes_acknowledged: u64,
    /// The changes found in the blocks after these runs.
    pub(crate) changes_found: u64,
    /// The path of the chart.
    pub(crate) svg: PathBuf,
    /// The duration of the demonstration in seconds.
    pub(crate) seconds: f64,
}

/// The parameters of a cluster, with the name of its rail.
struct RailCluster {
    rail: &'static str,
    parameters: Parameters,
}

impl Demo {
    /// Runs all parts of the demonstration and prints them.
    pub(crate) fn run(
        &self,
        printer: &mut DemoPrinter,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<DemoResult> {
        let begin = plexus_base::clock::now();
        let svg = self.out.join("demo.svg");
        measured::prepare(&svg)?;
        let gigabit = Gigabit::new();
        let no_1gbit = gigabit.as_ref().err().cloned();
        let gigabit = gigabit.ok();

        printer.transfers_begin()?;
        let transfers = transfers::run(interrupted)?;
        printer.transfers(&transfers)?;
        let TransfersReport { acknowledged, found, sum, expected_sum, .. } = transfers;
        if acknowledged != found || sum != expected_sum {
            bail!(
                "transfers were lost: {acknowledged} acknowledged, {found} found, sum {sum} of {expected_sum}"
            );
        }

        printer.pair_begins(no_1gbit.as_deref())?;
        let (mut pair, mut perf) = (Vec::new(), Vec::new());
        let ticks = CpuTicks::now();
        for on_rail in two_nodes(Waiting::Polling, gigabit.as_ref())? {
            let bare = |config: &Config| -> anyhow::Result<()> {
                let measured = perf::between(config, 0, &one_way(), interrupted, &mut |_| {})?;
                let why = "the only rail of this pair";
                let over = Over { rail: on_rail.rail.into(), encrypted: false, why: why.into() };
                let row = |measured| Row::of(&over, Driving::Polling.name(), vec![measured]);
                perf.extend(measured.into_iter().filter_map(row));
                Ok(())
            };
            pair.extend(self.on(&on_rail, &[self.passing()], bare, printer, interrupted)?);
        }
        let others = CpuTicks::now().zip(ticks).map(|(now, before)| now.others_since(&before));
        let load_of_others = others.unwrap_or_default();
        let is_idle = load_of_others <= MOST_LOAD;
        let ratio = Some(ratios(&pair, "tcp")?).filter(|_| is_idle);
        let slow = ratios(&pair, GIGABIT).ok().filter(|_| is_idle).map(|(blocks, _)| blocks);
        let goals_met = ratio.is_some_and(|(blocks, cpu)| blocks >= GOAL_BLOCKS && cpu <= GOAL_CPU);
        printer.pair(&pair, &perf, ratio.ok_or(load_of_others), slow)?;

        printer.cluster_begins()?;
        let mut cluster = Vec::new();
        for rail in ["shm", "tcp"] {
            let on_rail = RailCluster { rail, parameters: three_nodes(rail)? };
            cluster.extend(self.on(&on_rail, &[self.contended()], |_| Ok(()), printer, interrupted)?);
        }
        printer.cluster(&cluster)?;
        let over_shm = cluster.iter().find(|report| report.rail == "shm");
        let traffic = over_shm.map(|report| report.traffic.clone()).unwrap_or_default();
        printer.traffic(&traffic)?;

        printer.death_begins()?;
        let death = self.death(printer, interrupted)?;
        printer.death(&death)?;

        printer.sweep_begins()?;
        let mut sweep = Vec::new();
        for on_rail in two_nodes(Waiting::Adaptive, gigabit.as_ref())? {
            sweep.extend(self.on(&on_rail, &self.sweep(), |_| Ok(()), printer, interrupted)?);
        }
        write_chart(&svg, &sweep)?;

        let sum = |of: fn(&Report) -> u64| [&pair, &cluster, &sweep].into_iter().flatten().map(of).sum();
        let result = DemoResult {
            transfers,
            load_of_others,
            ratio_blocks_per_s: ratio.map(|(blocks, _)| blocks),
            ratio_cpu_per_block: ratio.map(|(_, cpu)| cpu),
            ratio_blocks_per_s_1gbit: slow,
            goals_met,
            no_1gbit,
            traffic,
            changes_acknowledged: sum(|report| report.changes_acknowledged),
            changes_found: sum(|report| report.changes_found),
            svg,
            seconds: Duration::from(plexus_base::clock::now().since(begin)).as_secs_f64(),
            pair,
            perf,
            cluster,
            death,
            sweep,
        };
        printer.end(&result)?;
        Ok(result)
    }

    /// Runs workloads, then `more`, on a temporary cluster.
    fn on(
        &self,
        on_rail: &RailCluster,
        workloads: &[Workload],
        more: impl FnOnce(&Config) -> anyhow::Result<()>,
        printer: &mut DemoPrinter,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<Vec<Report>> {
        let stop = || stop(interrupted);
        stop()?;
        printer.starting(on_rail.rail, on_rail.parameters.config.nodes.len(), workloads);
        let cluster = TemporaryCluster::start(&on_rail.parameters, &mut |_, _| {})?;
        let mut reports = Vec::new();
        for workload in workloads {
            stop()?;
            let report = blocks::run(cluster.config(), workload, on_rail.rail, interrupted);
            // A failure that a signal caused is reported as the signal.
            stop()?;
            reports.push(report.map_err(measured::explained)?);
        }
        let more = more(cluster.config());
        stop()?;
        more.map_err(measured::explained)?;
        measured::take_down(cluster)?;
        Ok(reports)
    }

    /// Kills one of three nodes with redo under load, and starts it again.
    fn death(&self, printer: &DemoPrinter, interrupted: &AtomicBool) -> anyhow::Result<DeathReport> {
        stop(interrupted)?;
        let workload = Workload { clients: 2, warm_ms: WARM_MS, measured_ms: DEATH_MS, ..self.contended() };
        let recovery = Recovery { workload, changed: CHANGED_BLOCKS, redo_bytes: REDO_BYTES };
        let mut parameters = three_nodes("shm")?;
        let config = &mut parameters.config;
        // No checkpoint comes meanwhile.
        (config.redo_mib, config.checkpoint_seconds) = (REDO_MIB, 3600);
        config.blocks = config.blocks.max(recovery.blocks());
        printer.starting("shm", config.nodes.len(), std::slice::from_ref(&recovery.workload));
        let mut cluster = TemporaryCluster::start(&parameters, &mut |_, _| {})?;
        let death = recovery.death(&mut cluster, "shm", interrupted);
        stop(interrupted)?;
        let death = death.map_err(measured::explained)?;
        measured::take_down(cluster)?;
        Ok(death)
    }

    fn run_ms(&self, share: f64) -> u64 {
        ((self.seconds * share * 1000.0) as u64).max(50)
    }

    /// Returns the workload of one client on each of two nodes that change the same few blocks in
    /// turn.
    fn passing(&self) -> Workload {
        Workload {
            clients: 1,
            hot: 8,
            writes_percent: 100,
            order: Order::Round,
            warm_ms: WARM_MS,
            measured_ms: self.run_ms(1.0),
            ..Workload::default()
        }
    }

    fn contended(&self) -> Workload {
        Workload {
            clients: 4,
            hot: 16,
            writes_percent: 50,
            warm_ms: WARM_MS,
            measured_ms: self.run_ms(1.0),
            ..Workload::default()
        }
    }

    fn sweep(&self) -> Vec<Workload> {
        let workload = |clients| Workload {
            clients,
            hot: 64,
            writes_percent: 50,
            warm_ms: WARM_MS / 2,
            measured_ms: self.run_ms(SWEEP_SHARE),
            ..Workload::default()
        };
        SWEEP_CLIENTS.map(workload).into()
    }
}

/// Fails if a signal has interrupted the demonstration.
fn stop(interrupted: &AtomicBool) -> anyhow::Result<()> {
    match interrupted.load(Ordering::Relaxed) {
        true => bail!("interrupted; the temporary cluster was removed"),
        false => Ok(()),
    }
}

/// Returns the plan for latencies of the interconnect alone: a small message, and a block put into
/// the other's memory.
fn one_way() -> Plan {
    let trial = |op, bytes| Trial::new(Test::Latency, op, bytes);
    let trials = vec![trial(Op::Send, 64), trial(Op::Put, 16 << 10)];
    Plan { peer: 1, driving: Driving::Polling, trials, until: Until::Ms(150) }
}

/// Returns clusters of two nodes with a core each, one for every available network.
fn two_nodes(waiting: Waiting, gigabit: Option<&Gigabit>) -> anyhow::Result<Vec<RailCluster>> {
    let wanted = |rail| TemporarySpec {
        rail,
        nodes: 2,
        workers: 1,
        waiting,
        block_kib: 16,
        cache_mib: 8,
        hot: 64,
        pin: true,
    };
    let mut all = Vec::new();
    for rail in ["shm", "tcp"] {
        all.push(RailCluster { rail, parameters: wanted(rail).parameters()? });
    }
    if let Some(gigabit) = gigabit {
        let mut parameters = wanted("tcp").parameters()?;
        for index in [0, 1] {
            let node = &mut parameters.config.nodes[index];
            node.host = format!("host-{}", index + 1);
            node.address = Gigabit::address(index);
            parameters.network_namespaces.push(gigabit.path(index));
        }
        all.push(RailCluster { rail: GIGABIT, parameters });
    }
    Ok(all)
}

fn three_nodes(rail: &str) -> anyhow::Result<Parameters> {
    let waiting = Waiting::Adaptive;
    TemporarySpec { rail, nodes: 3, workers: 1, waiting, block_kib: 16, cache_mib: 8, hot: 64, pin: false }
        .parameters()
}

/// Returns the ratios of shm to `other`: blocks/s, and CPU time for each block.
fn ratios(reports: &[Report], other: &str) -> anyhow::Result<(f64, f64)> {
    let find =
        |rail: &str| reports.iter().find(|report| report.rail == rail).context("a rail was not measured");
    let (shm, other) = (find("shm")?, find(other)?);
    let ratio = |mine: f64, others: f64| (mine / others.max(1e-9) * 1000.0).round() / 1000.0;
    Ok((ratio(shm.blocks_per_s, other.blocks_per_s), ratio(shm.cpu_us_per_block, other.cpu_us_per_block)))
}
