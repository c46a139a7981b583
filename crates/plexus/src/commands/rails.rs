//! `plexus rails`: every rail of every pair of nodes, in use or why not.

use plexus_observe::{cluster::Reading, rails, show};

use super::{cluster::Cluster, pace::Pace, stat};
use crate::output;

/// Of which cluster, and how often.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// A line for each worker instead of their sum.
    #[arg(long)]
    workers: bool,
    /// Again every so many seconds, and what came in them.
    #[arg(short, long, value_name = "SECONDS", value_parser = super::pace::seconds)]
    interval: Option<f64>,
    /// End after so many times.
    #[arg(short = 'n', long, value_name = "TIMES", requires = "interval", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print the result as JSON; in intervals each on a line.
    #[arg(long)]
    json: bool,
}

/// Shows them.
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
    if args.json {
        let value = rails::json(reading, args.workers);
        return if args.interval.is_some() { output::json_line(&value) } else { output::json(&value) };
    }
    if args.interval.is_some() {
        output::line(&format!("\n{} {} UTC", show::date(reading.unix_ms), show::time(reading.unix_ms)))?;
    }
    output::line(rails::text(reading, args.workers).trim_end())
}
