//! `plexus bench locks`.

use std::{path::PathBuf, sync::atomic::AtomicBool};

use plexus_base::Waiting;
use plexus_bench::locks::{self, Names, Report, Workload};
use plexus_node::{TemporaryCluster, config::Config};

use crate::{
    commands::{
        cluster::load,
        interrupt::interrupted,
        measured::{self, Wanted},
    },
    output,
};

/// Caches are not used: as little as there can be.
const CACHE_MIB: u32 = 32;

/// The lock workload.
#[derive(clap::Args)]
pub(crate) struct Locks {
    /// A running cluster [default: a temporary one for each rail].
    dir: Option<PathBuf>,
    /// Nodes of the temporary cluster.
    #[arg(long, default_value_t = 2, conflicts_with = "dir")]
    nodes: usize,
    /// Workers of each node of the temporary cluster.
    #[arg(long, default_value_t = 1, conflicts_with = "dir")]
    workers: u8,
    /// What joins the nodes; several are measured one after the other.
    #[arg(
        long,
        default_value = "shm,tcp",
        value_delimiter = ',',
        value_name = "RAIL,...",
        conflicts_with = "dir"
    )]
    rail: Vec<String>,
    /// How threads wait: polling, event or adaptive.
    #[arg(long, default_value_t = Waiting::Adaptive, conflicts_with = "dir")]
    waiting: Waiting,
    /// Give each node a core of its own.
    #[arg(long, conflicts_with = "dir")]
    pin: bool,
    /// Clients on each node that has any; several numbers are measured one after the other.
    #[arg(long, default_value = "1", value_delimiter = ',', value_name = "N,...")]
    clients: Vec<u32>,
    /// Which locks they take: local (mastered by their node), remote (by another) or shared (all the same one).
    #[arg(long, default_value = "local,remote,shared", value_delimiter = ',', value_name = "NAMES,...")]
    names: Vec<Names>,
    /// Only the first so many nodes have clients [default: one; of shared names all].
    #[arg(long, value_name = "NODES")]
    active: Option<usize>,
    /// Seconds that each combination is measured.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Seconds before that.
    #[arg(long, default_value_t = 0.3)]
    warm_up: f64,
    /// Take so many locks on a running cluster instead, spread over its nodes, and hold them until interrupted.
    #[arg(long, value_name = "LOCKS", requires = "dir", conflicts_with_all = ["names", "clients", "active", "seconds", "warm_up"])]
    hold: Option<u64>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub(crate) fn run(args: &Locks) -> anyhow::Result<()> {
    let interrupted = interrupted()?;
    let mut reports = Vec::new();
    match &args.dir {
        Some(dir) => {
            let config = load(dir)?;
            if let Some(count) = args.hold {
                return hold(args, &config, count, &interrupted);
            }
            let rail = measured::rails_in_use(&config)?;
            sweep(args, &config, &rail, &interrupted, &mut reports)?;
        }
        None => {
            for rail in &args.rail {
                let wanted = Wanted {
                    rail,
                    nodes: args.nodes,
                    workers: args.workers,
                    waiting: args.waiting,
                    block_kib: 16,
                    cache_mib: CACHE_MIB,
                    hot: 0,
                    pin: args.pin,
                };
                let cluster = TemporaryCluster::start(&wanted.parameters()?, &mut |_, _| {})?;
                sweep(args, cluster.config(), rail, &interrupted, &mut reports)
                    .map_err(measured::explained)?;
                measured::take_down(cluster)?;
            }
        }
    }
    if args.json {
        return output::json(&serde_json::json!({ "locks": reports }));
    }
    let Some(first) = reports.first() else { return Ok(()) };
    output::line(&format!(
        "\n{} nodes, {}; a lock is one that was granted and given up",
        first.nodes, first.waiting
    ))?;
    output::line(&format!("\n{}", Report::table(&reports).to_string().trim_end()))
}

/// Every combination, on one cluster.
fn sweep(
    args: &Locks,
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

fn hold(args: &Locks, config: &Config, count: u64, interrupted: &AtomicBool) -> anyhow::Result<()> {
    let say = |text: String, value: serde_json::Value| match args.json {
        true => output::json(&value),
        false => output::line(&text),
    };
    let mut said = Ok(());
    let mut held = |locks, ms| {
        let value = serde_json::json!({ "held": locks, "ms": ms });
        said = say(format!("{locks} locks held after {ms} ms; held until interrupted"), value);
    };
    let mut ended =
        |node: &str| output::progress(&format!("{node} has ended, and what it held is not held any more"));
    locks::hold(config, count, interrupted, &mut held, &mut ended)?;
    said
}
