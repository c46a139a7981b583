//! `plexus stat`: shows the traffic of the interconnect: once, as a log or on a live screen.

mod record;

use std::time::Duration;

use anyhow::bail;
use plexus_admin::config::Config;
use plexus_interconnect::Channel;
use plexus_observe::{
    cluster::Reading,
    live, show,
    stat::{self, By},
};

use super::{cluster::ClusterOptions, interrupt::interrupted, pace::Pace};
use crate::output;

/// The number of log lines between two lines of column names.
const LINES_UNDER_HEADS: u64 = 20;

/// The arguments of `plexus stat`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    cluster: ClusterOptions,
    /// Only this node [default: all that run].
    #[arg(long)]
    node: Option<String>,
    /// Only this channel.
    #[arg(long, value_parser = channel)]
    channel: Option<Channel>,
    /// Group rows by these, separated by commas: node, peer, worker, channel, size [default:
    /// channel,size for one output, a single line for each interval].
    #[arg(long, value_delimiter = ',', value_parser = by)]
    by: Vec<By>,
    /// Repeat every so many seconds, with the traffic of each interval.
    #[arg(short, long, value_name = "SECONDS", value_parser = super::pace::seconds)]
    interval: Option<f64>,
    /// End after this many intervals.
    #[arg(short = 'n', long, value_name = "TIMES", requires = "interval", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Show a live screen, updated every second or as `--interval` says; q ends it.
    #[arg(long, conflicts_with_all = ["json", "count", "by", "channel"])]
    top: bool,
}

/// The commands for recordings.
#[derive(clap::Subcommand)]
enum Action {
    /// Record the traffic of each interval in a file.
    Record(record::Args),
    /// Show a recording: message sizes and channel shares over time, as text, charts and a page.
    Report(record::ReportArgs),
}

fn by(name: &str) -> Result<By, String> {
    By::ALL
        .into_iter()
        .find(|by| by.name() == name)
        .ok_or_else(|| format!("use {}", By::ALL.map(By::name).join(", ")))
}

fn channel(name: &str) -> Result<Channel, String> {
    Channel::ALL
        .into_iter()
        .find(|channel| channel.name() == name)
        .ok_or_else(|| format!("use {}", Channel::ALL.map(Channel::name).join(", ")))
}

/// Runs `plexus stat`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match &args.action {
        Some(Action::Record(record)) => return record::record(record, &args.cluster),
        Some(Action::Report(report)) => return record::report(report, args.cluster.json),
        None => {}
    }
    let config = args.cluster.load()?;
    let first = take(&config, args.node.as_deref())?;
    if args.top {
        let interval = Duration::from_secs_f64(args.interval.unwrap_or(1.0));
        return Ok(live::run(&config, args.node.as_deref(), interval, &*interrupted()?)?);
    }
    match args.interval {
        None => snapshot(&args, &first),
        Some(interval) => log(&args, &config, first, interval),
    }
}

/// Returns the counters of all nodes, if at least one answers.
pub(super) fn take(config: &Config, only: Option<&str>) -> anyhow::Result<Reading> {
    let reading = Reading::take(config, only)?;
    if reading.alive().next().is_none() {
        if let (Some(_), Some((name, seen))) = (only, reading.nodes.first()) {
            seen.answer(&config.dir, name).map_err(anyhow::Error::msg)?;
        }
        match reading.nodes.iter().find_map(|(_, seen)| seen.silence()) {
            Some(why) => bail!("{why}"),
            None => bail!(
                "{}: no node runs; start them with `plexus up -C {}`",
                config.name,
                config.dir.root().display()
            ),
        }
    }
    Ok(reading)
}

fn snapshot(args: &Args, reading: &Reading) -> anyhow::Result<()> {
    let by = if args.by.is_empty() { &[By::Channel, By::Size] } else { &*args.by };
    if args.cluster.json {
        return output::json(&stat::json(reading, by, args.channel));
    }
    output::line("since the nodes started")?;
    block(args, reading, by)
}

fn block(args: &Args, reading: &Reading, by: &[By]) -> anyhow::Result<()> {
    let rows = stat::rows(reading, by, args.channel);
    match rows.is_empty() {
        true => output::line("no messages")?,
        false => output::line(stat::table(&rows, by, reading.seconds).to_string().trim_end())?,
    }
    reading.missing().try_for_each(|missing| output::line(&missing))
}

/// Prints each interval until the count is reached or a signal comes.
fn log(args: &Args, config: &Config, first: Reading, interval: f64) -> anyhow::Result<()> {
    let mut pace = Pace::new(interval, args.count)?;
    let (mut before, mut lines, mut reported) = (first, 0, Vec::new());
    while output::is_read() && pace.next() {
        let now = Reading::take(config, args.node.as_deref())?;
        let interval = now.since(&before);
        let missing: Vec<String> = interval.missing().collect();
        if args.cluster.json {
            output::json_line(&stat::json(&interval, &args.by, args.channel))?;
        } else if args.by.is_empty() {
            if lines % LINES_UNDER_HEADS == 0 {
                output::line(&format!("{} UTC\n{}", show::date(now.unix_ms), stat::line_heads()))?;
            }
            output::line(&stat::line(&interval, &show::time(now.unix_ms), args.channel))?;
            // Reported once and not on every line, so that a log of days stays readable.
            let new = missing.iter().filter(|line| !reported.contains(*line));
            new.into_iter().try_for_each(|line| output::line(line))?;
            lines += 1;
        } else {
            let seconds = interval.seconds.unwrap_or_default();
            let time = show::time(now.unix_ms);
            output::line(&format!("\n{} {time} UTC, {seconds:.1} s", show::date(now.unix_ms)))?;
            block(args, &interval, &args.by)?;
        }
        (before, reported) = (now, missing);
    }
    Ok(())
}
