//! `plexus metrics`: prints the counters of the nodes once, as OpenMetrics text.

use plexus_observe::metrics;

use super::{cluster::Cluster, stat};

/// The arguments of `plexus metrics`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Only this node [default: all that run].
    #[arg(long)]
    node: Option<String>,
}

/// Runs `plexus metrics`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.cluster.load()?;
    let reading = stat::take(&config, args.node.as_deref())?;
    reading.missing().for_each(|missing| crate::output::progress(&missing));
    let text = metrics::text(reading.alive().cloned().collect())?;
    crate::output::bytes(text.as_bytes())
}
