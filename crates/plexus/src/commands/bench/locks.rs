//! `plexus bench locks`.

use std::sync::atomic::AtomicBool;

use plexus_admin::{config::Config, control::ControlError};
use plexus_bench::locks::{self, Names, Report, Workload};

use super::clusters::{BenchClusters, ClusterNeeds};
use crate::{
    commands::{interrupt::interrupted, measured},
    output,
};

/// The cache is not used, so it has the smallest size for eight workers and the shortest blocks.
const CACHE_MIB: u32 = 2;
const BLOCK_KIB: u32 = 4;

/// The arguments of `plexus bench locks`.
#[derive(clap::Args)]
pub(crate) struct LocksArgs {
    #[command(flatten)]
    clusters: BenchClusters,
    /// Clients on each active node; several numbers are measured one after the other.
    #[arg(long, default_value = "1", value_delimiter = ',', value_name = "N,...")]
    clients: Vec<u32>,
    /// Locks that the clients take: local (mastered by their node), remote (by another) or shared
    /// (all the same one).
    #[arg(long, default_value = "local,remote,shared", value_delimiter = ',', value_name = "NAMES,...")]
    names: Vec<Names>,
    /// Number of nodes that have clients [default: one; with shared names all].
    #[arg(long, value_name = "NODES")]
    active: Option<usize>,
    /// Seconds of measurement for each combination.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Seconds of warm-up before each measurement.
    #[arg(long, default_value_t = 0.3)]
    warm_up: f64,
    /// Instead, take this many locks on a running cluster, spread over its nodes, and hold them
    /// until interrupted.
    #[arg(long, value_name = "LOCKS", conflicts_with_all = ["temporary", "nodes", "workers", "rail", "waiting", "pin", "block_size", "cache_mib"], conflicts_with_all = ["names", "clients", "active", "seconds", "warm_up"])]
    hold: Option<u64>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `plexus bench locks`.
pub(crate) fn run(args: &LocksArgs) -> anyhow::Result<()> {
    let interrupted = interrupted()?;
    let mut reports = Vec::new();
    if let Some(count) = args.hold {
        return hold(args, &args.clusters.cluster.load()?, count, &interrupted);
    }
    let needs =
        ClusterNeeds { nodes: 2, block_kib: BLOCK_KIB, cache_mib: CACHE_MIB, hot: 0, is_forwarded: false };
    args.clusters.each(&needs, &mut |config, rail| sweep(args, config, rail, &interrupted, &mut reports))?;
    if args.json {
        return output::json(&serde_json::json!({ "locks": reports }));
    }
    let Some(first) = reports.first() else { return Ok(()) };
    output::line(&format!(
        "\n{} nodes, {}; a lock counts when it was granted and released",
        first.nodes, first.waiting
    ))?;
    output::line(&format!("\n{}", Report::table(&reports).to_string().trim_end()))
}

/// Measures every combination on one cluster.
fn sweep(
    args: &LocksArgs,
    config: &Config,
    rail: &str,
    interrupted: &AtomicBool,
    reports: &mut Vec<Report>,
) -> anyhow::Result<()> {
    let nodes = config.nodes.len();
    for names in &args.names {
        for clients in &args.clients {
            let active = args.active.unwrap_or(if *names == Names::Shared { nodes } else { 1 });
            let workload = Workload {
                clients: *clients,
                active,
                names: *names,
                warm_ms: measured::ms("--warm-up", args.warm_up)?,
                measured_ms: measured::ms("--seconds", args.seconds)?,
            };
            output::progress(&format!(
                "{rail}: {names} names, {clients} clients on {active} of {nodes} nodes"
            ));
            reports.push(locks::run(config, &workload, rail, interrupted)?);
        }
    }
    Ok(())
}

fn hold(args: &LocksArgs, config: &Config, count: u64, interrupted: &AtomicBool) -> anyhow::Result<()> {
    let print = |text: String, value: serde_json::Value| match args.json {
        true => output::json(&value),
        false => output::line(&text),
    };
    let mut printed = Ok(());
    let mut held = |locks, ms| {
        let value = serde_json::json!({ "held": locks, "ms": ms });
        printed = print(format!("{locks} locks held after {ms} ms; held until interrupted"), value);
    };
    let mut ended = |node: &str, why: Option<&ControlError>| {
        let why = why.map_or_else(|| format!("{node} ended the command"), ToString::to_string);
        output::progress(&format!("{why}; the locks of {node} were released"));
    };
    locks::hold(config, count, interrupted, &mut held, &mut ended)?;
    printed
}
