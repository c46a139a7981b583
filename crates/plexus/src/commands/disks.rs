//! `plexus disks`: the disks of a mirrored group, with their use and what is left to copy.

use anyhow::{Result, anyhow};
use plexus_admin::{
    config::Config,
    control::{ANSWER_WITHIN, Seen},
};
use plexus_node::disks::{DiskShown, DisksShown};
use plexus_observe::show::Table;

use super::cluster::ClusterOptions;
use crate::output;

/// The arguments of `plexus disks`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterOptions,
}

/// Runs `plexus disks`.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.cluster.load()?;
    let seen = seen(&config)?;
    if args.cluster.json {
        return output::json(&seen);
    }
    let heads = [
        "disk",
        "node",
        "failure group",
        "state",
        "size MiB",
        "used MiB",
        "to copy MiB",
        "MiB/s",
        "left s",
        "errors",
        "repaired",
        "path",
    ];
    let mut table = Table::new(heads).left(heads.len());
    for disk in &seen.disks {
        table.row([
            disk.disk.to_string(),
            disk.node.clone(),
            disk.failure_group.clone(),
            disk.state.clone(),
            disk.size_mib.to_string(),
            disk.used_mib.to_string(),
            disk.left_mib.map(|left| left.to_string()).unwrap_or_default(),
            disk.left_mib.map(|_| format!("{:.1}", disk.copied_kib_s as f64 / 1024.0)).unwrap_or_default(),
            disk.left_s.map(|left| left.to_string()).unwrap_or_default(),
            (disk.failed_reads + disk.failed_writes + disk.failed_syncs).to_string(),
            disk.repaired_blocks.to_string(),
            disk.path.clone(),
        ]);
    }
    output::line(table.to_string().trim_end())?;
    output::line(&format!("the group has {} MiB, with {} copies", seen.group_mib, seen.copies))?;
    match (seen.moving, seen.is_balancing) {
        (0, false) => Ok(()),
        (moving, false) => output::line(&format!("{moving} chunks move")),
        (moving, true) => output::line(&format!("{moving} chunks move until all disks are equally full")),
    }
}

/// Asks all nodes: each knows what is left to copy to its own disks, and what it has done itself.
///
/// # Errors
/// No node answers, or the disks are not mirrored.
pub(super) fn seen(config: &Config) -> Result<DisksShown> {
    let names: Vec<_> = config.nodes.iter().map(|node| node.name.as_str()).collect();
    let asked = Seen::<DisksShown>::of_cluster(config, &names, "disks", ANSWER_WITHIN);
    let answers: Vec<_> = asked.iter().filter_map(|(_, seen)| seen.alive()).collect();
    let Some(newest) = answers.iter().max_by_key(|seen| seen.version) else {
        let why = asked.iter().find_map(|(_, seen)| seen.silence());
        let none = || "no node of this cluster runs; start it with `plexus up`".to_owned();
        return Err(anyhow!(why.map_or_else(none, str::to_owned)));
    };
    let mut disks = DisksShown::clone(newest);
    for disk in &mut disks.disks {
        let of_node = asked.iter().find(|(name, _)| *name == disk.node).and_then(|(_, seen)| seen.alive());
        let known = of_node.and_then(|seen| seen.disks.iter().find(|known| known.disk == disk.disk));
        if let Some(known) = known {
            // Relative paths start at its directory.
            (disk.left_mib, disk.path) = (known.left_mib, known.path.clone());
        }
        let sum = |count: fn(&DiskShown) -> u64| {
            let of_node = |seen: &&DisksShown| seen.disks.iter().find(|known| known.id == disk.id).map(count);
            answers.iter().filter_map(of_node).sum()
        };
        let counts: [u64; 5] = [
            sum(|disk| disk.copied_kib_s),
            sum(|disk| disk.failed_reads),
            sum(|disk| disk.failed_writes),
            sum(|disk| disk.failed_syncs),
            sum(|disk| disk.repaired_blocks),
        ];
        [disk.copied_kib_s, disk.failed_reads, disk.failed_writes, disk.failed_syncs, disk.repaired_blocks] =
            counts;
        disk.left_s = disk.left_mib.and_then(|left| (left * 1024).checked_div(disk.copied_kib_s));
    }
    Ok(disks)
}
