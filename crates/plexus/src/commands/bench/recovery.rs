//! `plexus bench recovery`.

use anyhow::bail;
use plexus_admin::TemporaryCluster;
use plexus_base::Waiting;
use plexus_bench::{
    blocks::{DeathReport, REDO_BYTES_PER_BLOCK, Recovery, StartReport, Workload},
    report::{count, rate},
};

use crate::{
    commands::{
        interrupt::interrupted,
        measured::{self, TemporarySpec},
    },
    output,
};

/// The bytes of a block.
const BLOCK_KIB: u32 = 16;

/// The arguments of `plexus bench recovery`.
#[derive(clap::Args)]
pub(crate) struct RecoveryArgs {
    /// Redo that the node has made when it is killed, in MiB.
    #[arg(long, default_value_t = 64, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=4096))]
    redo: u32,
    /// Blocks of 16 KiB with this redo [default: half of the redo is their images].
    #[arg(long, value_name = "BLOCKS")]
    changed: Option<u64>,
    /// Rail between the nodes.
    #[arg(long, default_value = "shm")]
    rail: String,
    /// Seconds of load after the kill: at least the time of the recovery.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `plexus bench recovery`.
pub(crate) fn run(args: &RecoveryArgs) -> anyhow::Result<()> {
    let interrupted = interrupted()?;
    let changed = args.changed.unwrap_or(u64::from(args.redo) * 1024 / u64::from(BLOCK_KIB) / 2).max(1);
    let workload = Workload {
        clients: 2,
        warm_ms: 300,
        measured_ms: measured::ms("--seconds", args.seconds)? + 700,
        ..Workload::default()
    };
    let recovery = Recovery { workload, changed, redo_bytes: u64::from(args.redo) << 20 };
    let cache_mib = changed * u64::from(BLOCK_KIB) / 1024 * 5 / 4 + 32;
    let Ok(cache_mib) = u32::try_from(cache_mib) else { bail!("{changed} blocks are too many") };
    let wanted = TemporarySpec {
        rail: &args.rail,
        nodes: 3,
        workers: 1,
        waiting: Waiting::Adaptive,
        block_kib: BLOCK_KIB,
        cache_mib,
        hot: recovery.blocks(),
        pin: false,
    };
    let mut parameters = wanted.parameters()?;
    // No checkpoint comes meanwhile.
    parameters.config.checkpoint_seconds = 3600;
    parameters.config.redo_mib = (args.redo * 5 / 2).max(64);
    let mut cluster = TemporaryCluster::start(&parameters, &mut |_, _| {})?;
    output::progress("a node is killed under load");
    let death = recovery.death(&mut cluster, &args.rail, &interrupted).map_err(measured::explained)?;
    output::progress("all nodes are killed");
    let start = recovery.start(&mut cluster).map_err(measured::explained)?;
    measured::take_down(cluster)?;
    if args.json {
        let memory = 1_000_000 * REDO_BYTES_PER_BLOCK;
        let found =
            serde_json::json!({ "death": death, "start": start, "memory_per_million_blocks": memory });
        return output::json(&found);
    }
    show(&death, &start)
}

fn show(death: &DeathReport, start: &StartReport) -> anyhow::Result<()> {
    let mib = |bytes: u64| rate(bytes as f64 / f64::from(1 << 20));
    let ms = |ms: f64| format!("{ms:.0} ms");
    output::line(&format!(
        "{} was killed under load, with {} MiB of redo for {} blocks\n",
        death.victim,
        mib(death.redo_bytes),
        count(death.changed_blocks)
    ))?;
    for (what, time) in [
        ("view without it", death.view_ms),
        ("blocks that other nodes hold go on", death.held_ms),
        ("blocks that no node holds, not changed by it", death.unchanged_ms),
        ("first block that it had changed", death.first_changed_ms),
        ("all blocks", death.all_ms),
    ] {
        output::line(&format!("  {what:<46}{:>10}", ms(time)))?;
    }
    output::line(&format!(
        "\nall nodes were killed, with {} MiB of redo for {} blocks\n",
        mib(start.redo_bytes),
        count(start.changed_blocks)
    ))?;
    for (what, time) in [("all nodes serve", start.serve_ms), ("all blocks", start.all_ms)] {
        output::line(&format!("  {what:<46}{:>10}", ms(time)))?;
    }
    let acknowledged = death.load.changes_acknowledged + death.changes_made + start.changes_made;
    let found = death.load.changes_found + death.changes_found + start.changes_found;
    output::line(&format!(
        "\nchanges acknowledged {}, found {}: none lost",
        count(acknowledged),
        count(found)
    ))
}
