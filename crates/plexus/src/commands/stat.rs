//! `plexus stat`: the traffic of the interconnect.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use plexus_base::counters::SIZES;
use plexus_node::{
    blocks::thousands,
    config::Config,
    control::{Control, ControlError},
    traffic::{ChannelTraffic, Traffic, size_name},
};
use serde_json::Value;

use super::cluster::Cluster;
use crate::output;

/// Of what, and how often.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Only this node [default: all that run].
    #[arg(long)]
    node: Option<String>,
    /// Again every so many seconds, and then what came since.
    #[arg(short, long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    interval: Option<u32>,
    /// End after so many times.
    #[arg(short, long, value_name = "TIMES", requires = "interval", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Print each result as a line of JSON.
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.cluster.load()?;
    let mut before = traffic(&config, args.node.as_deref())?;
    show(&args, &before, None)?;
    let Some(interval) = args.interval else { return Ok(()) };
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&interrupted)).context("signals")?;
    for _ in 1..args.count.unwrap_or(u32::MAX) {
        sleep(Duration::from_secs(interval.into()), &interrupted);
        if interrupted.load(Relaxed) {
            break;
        }
        let now = traffic(&config, args.node.as_deref())?;
        show(&args, &now.since(&before), Some(interval))?;
        before = now;
    }
    Ok(())
}

/// Sleeps until the time is over or a signal has come.
fn sleep(time: Duration, interrupted: &AtomicBool) {
    const STEP: Duration = Duration::from_millis(50);
    let start = std::time::Instant::now();
    while !interrupted.load(Relaxed) && start.elapsed() < time {
        std::thread::sleep(STEP.min(time.saturating_sub(start.elapsed())));
    }
}

/// The traffic of one node, or of all that run.
fn traffic(config: &Config, only: Option<&str>) -> anyhow::Result<Traffic> {
    if let Some(name) = only {
        config.node(name)?;
        return Ok(of_node(config, name)?);
    }
    let (mut sum, mut running) = (Traffic::default(), false);
    for node in &config.nodes {
        match of_node(config, &node.name) {
            Ok(traffic) => {
                running = true;
                sum.merge(&traffic);
            }
            Err(ControlError::NotRunning { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if !running {
        bail!("{}: no node runs; start them with `plexus up {}`", config.name, config.dir.root().display());
    }
    Ok(sum)
}

fn of_node(config: &Config, name: &str) -> Result<Traffic, ControlError> {
    let mut control = Control::connect(&config.dir, name)?;
    control.set_patience(Duration::from_secs(5))?;
    let answer = control.call("stat", Value::Null, |_| {})?;
    serde_json::from_value(answer)
        .map_err(|error| ControlError::Io { name: name.into(), source: error.into() })
}

fn show(args: &Args, traffic: &Traffic, seconds: Option<u32>) -> anyhow::Result<()> {
    if args.json {
        return output::json(&serde_json::json!({ "seconds": seconds, "channels": traffic }));
    }
    match seconds {
        Some(seconds) => output::line(&format!("\nin the last {seconds} s"))?,
        None => output::line("since the nodes started")?,
    }
    if traffic.0.is_empty() {
        return output::line("no messages");
    }
    let header = ["channel", "size", "client out", "client in", "server in", "server out", "bytes"];
    let mut rows = vec![header.map(String::from).to_vec()];
    traffic.0.iter().for_each(|(channel, traffic)| rows.extend(channel_rows(channel, traffic)));
    output::table(&rows)
}

/// A row for each size that occurs.
fn channel_rows(channel: &str, traffic: &ChannelTraffic) -> Vec<Vec<String>> {
    let used = (0..SIZES).filter(|class| traffic.directions().iter().any(|sizes| sizes.messages[*class] > 0));
    used.enumerate()
        .map(|(row, class)| {
            let name = if row == 0 { channel } else { "" };
            let mut cells = vec![name.to_string(), size_name(class)];
            cells.extend(traffic.directions().map(|sizes| thousands(sizes.messages[class])));
            cells.push(thousands(traffic.directions().iter().map(|sizes| sizes.bytes[class]).sum()));
            cells
        })
        .collect()
}
