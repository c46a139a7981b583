//! `plexus bench blocks`.

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use anyhow::{Context, bail};
use plexus_admin::config::Config;
use plexus_bench::{
    blocks::{self, Durability, Order, Report, Workload},
    report::{Panel, Panels, count},
};

use super::clusters::{BenchClusters, ClusterNeeds};
use crate::{
    commands::{interrupt::interrupted, measured},
    output,
};

/// The time without a change from which it is shown.
const LONG_PAUSE_MS: f64 = 1000.0;

/// The arguments of `plexus bench blocks`.
#[derive(clap::Args)]
pub(crate) struct BlocksArgs {
    #[command(flatten)]
    clusters: BenchClusters,
    /// Clients on each node; several numbers are measured one after the other.
    #[arg(long, default_value = "1,2,4,8", value_delimiter = ',', value_name = "N,...")]
    clients: Vec<u32>,
    /// Run the clients on this node alone.
    #[arg(long, value_name = "NODE")]
    only: Option<String>,
    /// Percentage of operations that change the block.
    #[arg(long, default_value_t = 50, value_name = "PERCENT")]
    writes: u32,
    /// Read consistent copies, which leave a block on its node.
    #[arg(long)]
    consistent_reads: bool,
    /// Number of blocks that the clients choose from.
    #[arg(long, default_value_t = 64, value_name = "BLOCKS")]
    hot: u64,
    /// Number of other blocks that a scan on each node reads over and over beside the clients.
    #[arg(long, default_value_t = 0, value_name = "BLOCKS")]
    scan: u64,
    /// How clients choose blocks: random, or round (one after the other).
    #[arg(long, default_value_t = Order::Random)]
    order: Order,
    /// When a change is acknowledged: commit (its redo is durable) or none (it is made). Without
    /// redo in the cluster (redo_mib = 0), none.
    #[arg(long, default_value_t = Durability::Commit)]
    durability: Durability,
    /// Neighbouring blocks that a client changes in one group: all of them or none.
    #[arg(long, default_value_t = 1, value_name = "BLOCKS")]
    group: u32,
    /// Threads on each node that run the clients; 0: as many as the node has workers, or one for
    /// each client with --pause.
    #[arg(long, default_value_t = 0, value_name = "N")]
    threads: u32,
    /// Microseconds that a client sleeps after each operation.
    #[arg(long, default_value_t = 0, value_name = "US")]
    pause: u64,
    /// Seconds of measurement for each combination.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Seconds of warm-up before each measurement.
    #[arg(long, default_value_t = 0.3)]
    warm_up: f64,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw blocks/s and response time by number of clients.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `plexus bench blocks`.
pub(crate) fn run(args: &BlocksArgs) -> anyhow::Result<()> {
    let interrupted = interrupted()?;
    if let Some(path) = &args.svg {
        measured::prepare(path)?;
    }
    let mut reports = Vec::new();
    let hot = args.hot.saturating_add(args.scan);
    let needs = ClusterNeeds { nodes: 3, block_kib: 16, cache_mib: 32, hot, is_forwarded: true };
    args.clusters.each(&needs, &mut |config, rail| {
        if config.sections.contains_key(plexus_admin::sql::SECTION) {
            bail!("it would overwrite the tables of this cluster; measure on a temporary one: --temporary");
        }
        match &args.only {
            None => sweep(args, config, rail, &interrupted, &mut reports),
            Some(only) => sweep(args, &alone(config, only)?, rail, &interrupted, &mut reports),
        }
    })?;
    if let Some(path) = &args.svg {
        write_chart(path, &reports)?;
    }
    if args.json {
        return output::json(&serde_json::json!({ "blocks": reports, "svg": args.svg }));
    }
    show(&reports)?;
    if let Some(path) = &args.svg {
        output::line(&format!("chart: {}", path.display()))?;
    }
    Ok(())
}

impl BlocksArgs {
    fn workload(&self, clients: u32) -> anyhow::Result<Workload> {
        Ok(Workload {
            clients,
            hot: self.hot,
            scan: self.scan,
            writes_percent: self.writes,
            consistent_reads: self.consistent_reads,
            order: self.order,
            durability: self.durability,
            group: self.group,
            threads: self.threads,
            pause_us: self.pause,
            warm_ms: measured::ms("--warm-up", self.warm_up)?,
            measured_ms: measured::ms("--seconds", self.seconds)?,
            seed: self.seed,
        })
    }
}

/// Returns the configuration with only one of its nodes.
fn alone(config: &Config, name: &str) -> anyhow::Result<Config> {
    let (_, node) = config.node(name)?;
    Ok(Config { nodes: std::iter::once(node.clone()).collect(), ..config.clone() })
}

/// Measures every number of clients on one cluster.
fn sweep(
    args: &BlocksArgs,
    config: &Config,
    rail: &str,
    interrupted: &AtomicBool,
    reports: &mut Vec<Report>,
) -> anyhow::Result<()> {
    for clients in &args.clients {
        output::progress(&format!("{rail}: {clients} clients on each of {} nodes", config.nodes.len()));
        reports.push(blocks::run(config, &args.workload(*clients)?, rail, interrupted)?);
    }
    Ok(())
}

fn show(reports: &[Report]) -> anyhow::Result<()> {
    let Some(first) = reports.first() else { return Ok(()) };
    output::line(&format!(
        "\n{}; blocks are counted if they came from another node's memory",
        setting(first)
    ))?;
    for table in Report::tables(reports) {
        output::line(&format!("\n{}", table.to_string().trim_end()))?;
    }
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum();
    let (acknowledged, found) =
        (sum(|report| report.changes_acknowledged), sum(|report| report.changes_found));
    let (acknowledged, found) = (count(acknowledged), count(found));
    let longest_ms = reports.iter().map(|report| report.longest_pause_ms).fold(0.0, f64::max);
    if longest_ms >= LONG_PAUSE_MS {
        output::line(&format!("\na node acknowledged no change for {:.1} s", longest_ms / 1e3))?;
    }
    let why: Vec<&str> = reports.iter().flat_map(|report| &report.why).map(String::as_str).collect();
    if why.is_empty() {
        return output::line(&format!(
            "\nchanges acknowledged {acknowledged}, found in the blocks {found}: none lost, none applied twice"
        ));
    }
    output::line(&format!(
        "\n{}\nChanges known to be acknowledged {acknowledged}, found in the blocks {found}: none lost",
        why.join("\n")
    ))
}

/// Returns the setting of a measurement in one line.
fn setting(report: &Report) -> String {
    let reads = if report.workload.consistent_reads { ", consistent reads" } else { "" };
    let scan = match report.workload.scan {
        0 => String::new(),
        blocks => format!(", a scan of {blocks}"),
    };
    format!(
        "{} nodes, {} KiB blocks, {} hot{scan}, {} % writes{reads}, {}",
        report.nodes,
        report.block_size / 1024,
        report.workload.hot,
        report.workload.writes_percent,
        report.waiting
    )
}

/// Draws blocks/s and response time by the number of clients.
pub(crate) fn write_chart(path: &Path, reports: &[Report]) -> anyhow::Result<()> {
    let Some(first) = reports.first() else { bail!("no measurements to draw") };
    // The fastest rail comes first in the legend and the colours.
    let best = |rail: &str| {
        let of_rail = reports.iter().filter(|report| report.rail == rail);
        of_rail.map(|report| report.blocks_per_s).fold(0.0, f64::max)
    };
    let mut rails: Vec<&str> = reports.iter().map(|report| report.rail.as_str()).collect();
    rails.sort_by(|one, other| best(other).total_cmp(&best(one)).then(one.cmp(other)));
    rails.dedup();
    let panel = |title: &str, vertical: &str, value: fn(&Report) -> f64| {
        let points = |rail: &&str| {
            let points = reports.iter().filter(|report| report.rail == **rail);
            points.map(|report| (report.workload.clients, value(report))).collect()
        };
        Panel {
            title: title.into(),
            vertical: vertical.into(),
            logarithmic: false,
            points: rails.iter().map(points).collect(),
        }
    };
    let picture = Panels {
        title: "Block transfers through the shared cache".into(),
        note: setting(first),
        horizontal: "clients on each node".into(),
        place: count,
        panels: [
            panel("Blocks from another node's memory", "blocks/s", |report| report.blocks_per_s),
            panel("Response time of a block, median", "microseconds", |report| report.response_us.p50),
        ],
        series: rails.into_iter().map(str::to_owned).collect(),
    };
    let svg = picture.draw()?;
    std::fs::write(path, svg).with_context(|| format!("{}: cannot be written", path.display()))
}
