//! The demonstration: what it measures, in which order. [`show`] says how it is told, [`gigabit`] makes the slow network.
//!
//! Every cluster in it is temporary, so nothing is left behind however it ends; every run checks its sums.

mod gigabit;
mod show;

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, bail};
use plexus_base::Waiting;
use plexus_bench::{
    blocks::{self, Order, Report, Workload},
    perf::{self, Driving, Op, Over, Plan, Row, Test, Trial, Until},
};
use plexus_node::{Parameters, TemporaryCluster, config::Config};
use serde::Serialize;

use crate::commands::{
    bench::write_chart,
    measured::{self, Wanted},
};
use gigabit::Gigabit;
pub(crate) use show::Teller;

/// What the two-node comparison is to show, as goals: blocks/s of shm over tcp at least, CPU per block at most.
const GOAL_BLOCKS: f64 = 4.0;
const GOAL_CPU: f64 = 0.25;

/// The rail over the slow network, in reports.
const GIGABIT: &str = "tcp-1gbit";

/// The sweep measures each number of clients for this share of a run's time.
const SWEEP_SHARE: f64 = 0.4;

/// Clients on each node in the sweep for the chart.
const SWEEP_CLIENTS: [u32; 4] = [1, 2, 4, 8];

/// Seconds of warm-up in front of every run.
const WARM_MS: u64 = 200;

/// What is wanted of the demonstration.
pub(crate) struct Demo {
    /// Seconds for each run.
    pub(crate) seconds: f64,
    /// Where the chart goes.
    pub(crate) out: PathBuf,
}

/// What it found, as `--json` says it.
#[derive(Serialize)]
pub(crate) struct Found {
    /// Two nodes that pass blocks to and fro.
    pub(crate) pair: Vec<Report>,
    /// The interconnect alone between the same two nodes.
    pub(crate) perf: Vec<Row>,
    /// Blocks/s of shm over those of tcp.
    pub(crate) ratio_blocks_per_s: f64,
    /// CPU time for each block, shm over tcp.
    pub(crate) ratio_cpu_per_block: f64,
    /// The same against tcp at 1 Gbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_blocks_per_s_1gbit: Option<f64>,
    /// Whether the ratios are as good as they are to be.
    pub(crate) goals_met: bool,
    /// Why there is no comparison with 1 Gbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) no_1gbit: Option<String>,
    /// Three nodes on contended blocks.
    pub(crate) cluster: Vec<Report>,
    /// Two nodes by the number of clients.
    pub(crate) sweep: Vec<Report>,
    /// Messages of the three nodes over shm, by channel and size.
    pub(crate) traffic: plexus_observe::Traffic,
    /// Over all runs.
    pub(crate) changes_acknowledged: u64,
    /// Over all runs.
    pub(crate) changes_found: u64,
    /// The chart.
    pub(crate) svg: PathBuf,
    /// How long all of it took.
    pub(crate) seconds: f64,
}

/// One cluster with the name of what joins it.
struct Joined {
    rail: &'static str,
    parameters: Parameters,
}

impl Demo {
    /// Does it all; `teller` is told on the way.
    pub(crate) fn run(&self, teller: &mut Teller, interrupted: &AtomicBool) -> anyhow::Result<Found> {
        let begin = plexus_base::clock::now();
        let svg = self.out.join("demo.svg");
        measured::prepare(&svg)?;
        let gigabit = Gigabit::new();
        let no_1gbit = gigabit.as_ref().err().cloned();
        let gigabit = gigabit.ok();

        teller.pair_begins(no_1gbit.as_deref())?;
        let (mut pair, mut perf) = (Vec::new(), Vec::new());
        for joined in two_nodes(Waiting::Polling, gigabit.as_ref())? {
            let bare = |config: &Config| -> anyhow::Result<()> {
                let measured = perf::between(config, 0, &one_way(), interrupted, &mut |_| {})?;
                let why = "what joins this pair";
                let over = Over { rail: joined.rail.into(), encrypted: false, why: why.into() };
                let row = |measured| Row::of(&over, Driving::Polling.name(), vec![measured]);
                perf.extend(measured.into_iter().filter_map(row));
                Ok(())
            };
            pair.extend(self.on(&joined, &[self.passing()], bare, teller, interrupted)?);
        }
        let (blocks, cpu) = ratios(&pair, "tcp")?;
        let slow = ratios(&pair, GIGABIT).ok().map(|(blocks, _)| blocks);
        let goals_met = blocks >= GOAL_BLOCKS && cpu <= GOAL_CPU;
        teller.pair(&pair, &perf, (blocks, cpu), slow)?;

        teller.cluster_begins()?;
        let mut cluster = Vec::new();
        for rail in ["shm", "tcp"] {
            let joined = Joined { rail, parameters: three_nodes(rail)? };
            cluster.extend(self.on(&joined, &[self.contended()], |_| Ok(()), teller, interrupted)?);
        }
        teller.cluster(&cluster)?;
        let over_shm = cluster.iter().find(|report| report.rail == "shm");
        let traffic = over_shm.map(|report| report.traffic.clone()).unwrap_or_default();
        teller.traffic(&traffic)?;

        teller.sweep_begins()?;
        let mut sweep = Vec::new();
        for joined in two_nodes(Waiting::Adaptive, gigabit.as_ref())? {
            sweep.extend(self.on(&joined, &self.sweep(), |_| Ok(()), teller, interrupted)?);
        }
        write_chart(&svg, &sweep)?;

        let sum = |of: fn(&Report) -> u64| [&pair, &cluster, &sweep].into_iter().flatten().map(of).sum();
        let found = Found {
            ratio_blocks_per_s: blocks,
            ratio_cpu_per_block: cpu,
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
            sweep,
        };
        teller.end(&found)?;
        Ok(found)
    }

    /// Runs workloads on a cluster made for them, then `more` that needs it.
    fn on(
        &self,
        joined: &Joined,
        workloads: &[Workload],
        more: impl FnOnce(&Config) -> anyhow::Result<()>,
        teller: &mut Teller,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<Vec<Report>> {
        let stop = || -> anyhow::Result<()> {
            match interrupted.load(Ordering::Relaxed) {
                true => bail!("interrupted; nothing is left behind"),
                false => Ok(()),
            }
        };
        stop()?;
        teller.starting(joined.rail, joined.parameters.nodes.len(), workloads);
        let cluster = TemporaryCluster::start(&joined.parameters, &mut |_, _| {})?;
        let mut reports = Vec::new();
        for workload in workloads {
            stop()?;
            let report = blocks::run(cluster.config(), workload, joined.rail, interrupted);
            // The reason of a failure that a signal caused is the signal.
            stop()?;
            reports.push(report.map_err(measured::explained)?);
        }
        let more = more(cluster.config());
        stop()?;
        more.map_err(measured::explained)?;
        measured::take_down(cluster)?;
        Ok(reports)
    }

    fn run_ms(&self, share: f64) -> u64 {
        ((self.seconds * share * 1000.0) as u64).max(50)
    }

    /// One client on each of two nodes, both changing the same few blocks, one after the other.
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

/// What the interconnect itself takes: a small message, and a block put into the other's memory.
fn one_way() -> Plan {
    let trial = |op, bytes| Trial::new(Test::Latency, op, bytes);
    let trials = vec![trial(Op::Send, 64), trial(Op::Put, 16 << 10)];
    Plan { peer: 1, driving: Driving::Polling, trials, until: Until::Ms(150) }
}

/// Two nodes with a core each, over every network there is.
fn two_nodes(waiting: Waiting, gigabit: Option<&Gigabit>) -> anyhow::Result<Vec<Joined>> {
    let wanted = |rail| Wanted {
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
        all.push(Joined { rail, parameters: wanted(rail).parameters()? });
    }
    if let Some(gigabit) = gigabit {
        let mut parameters = wanted("tcp").parameters()?;
        for (index, node) in parameters.nodes.iter_mut().enumerate() {
            node.host = format!("host-{}", index + 1);
            node.address = Some(Gigabit::address(index));
            node.network_namespace = Some(gigabit.path(index));
        }
        all.push(Joined { rail: GIGABIT, parameters });
    }
    Ok(all)
}

fn three_nodes(rail: &str) -> anyhow::Result<Parameters> {
    let waiting = Waiting::Adaptive;
    Wanted { rail, nodes: 3, workers: 1, waiting, block_kib: 16, cache_mib: 8, hot: 64, pin: false }
        .parameters()
}

/// Shm over `other`: blocks/s, and CPU time for each block.
fn ratios(reports: &[Report], other: &str) -> anyhow::Result<(f64, f64)> {
    let find =
        |rail: &str| reports.iter().find(|report| report.rail == rail).context("a rail was not measured");
    let (shm, other) = (find("shm")?, find(other)?);
    let ratio = |mine: f64, others: f64| (mine / others.max(1e-9) * 1000.0).round() / 1000.0;
    Ok((ratio(shm.blocks_per_s, other.blocks_per_s), ratio(shm.cpu_us_per_block, other.cpu_us_per_block)))
}
