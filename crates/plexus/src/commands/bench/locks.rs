//! `plexus bench locks`.

use std::sync::atomic::AtomicBool;

use plexus_bench::locks::{self, Names, Report, Workload};
use plexus_node::config::Config;

use super::place::{Needs, Place};
use crate::{
    commands::{cluster::load, interrupt::interrupted, measured},
    output,
};

/// Caches are not used: the smallest that eight workers may have, of the shortest blocks.
const CACHE_MIB: u32 = 2;
const BLOCK_KIB: u32 = 4;

/// The lock workload.
#[derive(clap::Args)]
pub(crate) struct Locks {
    #[command(flatten)]
    place: Place,
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
    if let (Some(count), Some(dir)) = (args.hold, &args.place.dir) {
        return hold(args, &load(dir)?, count, &interrupted);
    }
    let needs = Needs { nodes: 2, block_kib: BLOCK_KIB, cache_mib: CACHE_MIB, hot: 0 };
    args.place.each(&needs, &mut |config, rail| sweep(args, config, rail, &interrupted, &mut reports))?;
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
