//! `plexus demo`: bank transfers through SQL on three nodes, one of which is killed, and a
//! comparison of the interconnects; in under a minute.

use std::path::PathBuf;

use anyhow::bail;

use super::interrupt::interrupted;
use crate::{
    demo::{Demo, DemoPrinter},
    output,
};

/// The arguments of `plexus demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds for each of the long runs.
    #[arg(long, default_value_t = 2.5, value_name = "SECONDS")]
    seconds_per_run: f64,
    /// Directory for the chart.
    #[arg(long, default_value = "plexus-out", value_name = "DIR")]
    out: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `plexus demo`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if !(0.05..=3600.0).contains(&args.seconds_per_run) {
        bail!("--seconds-per-run {}: use 0.05 to 3600", args.seconds_per_run);
    }
    let interrupted = interrupted()?;
    let demo = Demo { seconds: args.seconds_per_run, out: args.out };
    let result = demo.run(&mut DemoPrinter::new(args.json), &interrupted)?;
    if args.json {
        output::json(&result)?;
    }
    Ok(())
}
