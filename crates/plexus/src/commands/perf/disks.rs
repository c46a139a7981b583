//! `plexus perf disks`: measures every mirrored disk of a running cluster, on the node that serves
//! it and from another node.

use std::time::Duration;

use anyhow::{Context, bail};
use plexus_admin::{
    config::Config,
    control::{Control, Forwarded, forward},
    status::Status,
};
use plexus_node::disk_speed::{DiskSpeed, MeasureArgs};
use plexus_observe::show::Table;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::{
    ask::{answering, connect},
    cluster::ClusterOptions,
};
use crate::output;

/// The time that a node may need beyond that of its measurements.
const BEYOND: Duration = Duration::from_secs(20);

/// The arguments of `plexus perf disks`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    cluster: ClusterOptions,
    /// Seconds for each of the three measurements of a disk.
    #[arg(long, default_value_t = 0.5, value_name = "S")]
    seconds: f64,
}

/// A disk, as the status of a node shows it.
#[derive(Deserialize)]
struct Disk {
    disk: u8,
    node: String,
    state: String,
}

/// A line of the result.
#[derive(Serialize)]
struct Line {
    disk: u8,
    node: String,
    /// The node that has measured.
    from: String,
    #[serde(flatten)]
    speed: DiskSpeed,
}

/// Runs `plexus perf disks`.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    if !(0.01..=10.0).contains(&args.seconds) {
        bail!("--seconds {}: use 0.01 to 10", args.seconds);
    }
    let config = args.cluster.load()?;
    let status: Status =
        serde_json::from_value(connect(&config, None)?.call("status", Value::Null, |_| ())?)?;
    let disks = status.runtime.subsystems.get("disks").map(|disks| disks["disks"].clone());
    let disks = disks.context("the cluster has no mirrored disks, or its map is not known yet")?;
    let disks: Vec<Disk> = serde_json::from_value(disks)?;
    let mut lines = Vec::new();
    for disk in &disks {
        if disk.state != "current" {
            output::progress(&format!("disk {} of {} is {}: not measured", disk.disk, disk.node, disk.state));
            continue;
        }
        let members = &status.runtime.members;
        let other = members.iter().find(|member| **member != disk.node);
        for from in std::iter::once(&disk.node).chain(other) {
            let ms = (args.seconds * 1000.0) as u64;
            let measured = ask(&config, from, &MeasureArgs { disk: disk.disk, ms });
            let speed = measured.with_context(|| format!("disk {} of {}", disk.disk, disk.node))?;
            lines.push(Line { disk: disk.disk, node: disk.node.clone(), from: from.clone(), speed });
        }
    }
    match args.cluster.json {
        true => output::json(&json!({ "disks": lines })),
        false => output::line(&text(&lines)),
    }
}

/// Has a node measure, through a node of this host if it is on another one.
fn ask(config: &Config, node: &str, measure: &MeasureArgs) -> anyhow::Result<DiskSpeed> {
    let within = Duration::from_millis(4 * measure.ms) + BEYOND;
    let args = serde_json::to_value(measure)?;
    let direct: Result<Control, _> = answering(config, node);
    let answer = match direct {
        Ok(mut control) => {
            control.set_timeout(within)?;
            control.call("disk.measure", args, |_| ())?
        }
        Err(why) => {
            let gateways = config.nodes.iter().map(|node| node.name.as_str());
            match forward(&config.dir, gateways, (node, "disk.measure", &args), within) {
                Some(Forwarded::Ok(answer)) => answer,
                Some(Forwarded::Error(why) | Forwarded::Unreachable(why)) => bail!("{node}: {why}"),
                Some(Forwarded::Down | Forwarded::Removed) | None => return Err(why.into()),
            }
        }
    };
    Ok(serde_json::from_value(answer)?)
}

fn text(lines: &[Line]) -> String {
    let heads =
        ["disk", "way", "read 16 KiB us", "p99", "write + sync us", "p99", "syncs/s", "read 1 MiB MB/s"];
    let mut table = Table::new(heads).left(2);
    for Line { disk, node, from, speed } in lines {
        let way = if from == node { "direct".into() } else { format!("served to {from}") };
        let DiskSpeed { read, synced_write, read_bytes_per_s, is_empty } = speed;
        let mark = if *is_empty { "*" } else { "" };
        table.row([
            format!("{disk} ({node})"),
            way,
            format!("{:.0}{mark}", read.p50_us),
            format!("{:.0}", read.p99_us),
            format!("{:.0}", synced_write.p50_us),
            format!("{:.0}", synced_write.p99_us),
            format!("{:.0}", synced_write.per_s),
            format!("{:.0}{mark}", read_bytes_per_s / 1e6),
        ]);
    }
    let empty = "\n* nothing was written there yet: a file is read without its disk";
    let note = if lines.iter().any(|line| line.speed.is_empty) { empty } else { "" };
    format!("{}{note}", table.to_string().trim_end())
}
