//! `plexus rails`: shows every rail of every pair of nodes, in use or why not.

use plexus_observe::{cluster::Reading, rails, show};

use super::{cluster::ClusterOptions, pace::Pace, stat};
use crate::output;

/// The arguments of `plexus rails`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterOptions,
    /// Show a line for each worker instead of their sum.
    #[arg(long)]
    workers: bool,
    /// Repeat every so many seconds, with the traffic of each interval.
    #[arg(short, long, value_name = "SECONDS", value_parser = super::pace::seconds)]
    interval: Option<f64>,
    /// End after this many outputs.
    #[arg(short = 'n', long, value_name = "TIMES", requires = "interval", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// Runs `plexus rails`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.cluster.load()?;
    let mut before = stat::take(&config, None)?;
    show(&args, &before)?;
    let Some(interval) = args.interval else { return Ok(()) };
    let mut pace = Pace::new(interval, args.count.map(|count| count - 1))?;
    while output::is_read() && pace.next() {
        let now = Reading::take(&config, None)?;
        show(&args, &now.since(&before))?;
        before = now;
    }
    Ok(())
}

fn show(args: &Args, reading: &Reading) -> anyhow::Result<()> {
    if args.cluster.json {
        let value = rails::json(reading, args.workers);
        return if args.interval.is_some() { output::json_line(&value) } else { output::json(&value) };
    }
    if args.interval.is_some() {
        output::line(&format!("\n{} {} UTC", show::date(reading.unix_ms), show::time(reading.unix_ms)))?;
    }
    output::line(rails::text(reading, args.workers).trim_end())
}
