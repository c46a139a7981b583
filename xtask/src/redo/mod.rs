//! Measures redo: durable changes beside the syncs of the disk, the hand-over of changed blocks,
//! and recovery when nodes die.
//!
//! A round measures everything once in sequence; the table has medians over all rounds. The goals
//! are in `rows.rs`.

mod disk;
mod ours;
mod rows;

use std::path::Path;

use anyhow::Result;
use clap::Args;

use self::{disk::Disk, ours::Plexus};
use crate::compare::{
    figure::Bench,
    run::{Run, WriteOptions, install},
};

/// The name of its section in the document.
pub(crate) const SECTION: &str = "redo";

/// The options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Number of rounds; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure recovery with 1 GiB of redo too, once.
    #[arg(long)]
    large: bool,
    /// First install fio with apt-get.
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    write: WriteOptions,
}

/// Measures, prints the table, and with `--write` puts it into docs/performance.md.
///
/// # Errors
/// Plexus cannot be built, a goal is missed, or a measurement failed.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if options.install {
        install(&["fio"])?;
    }
    let mut run = Run::start(&options.write, None)?;
    let plexus = Plexus::build(root)?;
    let disk = Disk::new()?;
    let mut bench = Bench::default();
    run.rounds(options.rounds, |round| {
        bench.take("syncs", disk.syncs());
        bench.take("durable changes", plexus.changes());
        bench.take("hand-over, shm", plexus.hand_over("shm"));
        bench.take("hand-over, tcp", plexus.hand_over("tcp"));
        bench.take("hand-over without redo", plexus.without_redo());
        bench.take("checkpoints", plexus.checkpoints());
        bench.take("reads", disk.reads());
        bench.take("recovery of 64 MiB", plexus.recovery(false));
        if options.large && round == 1 {
            bench.take("recovery of 1 GiB", plexus.recovery(true));
        }
        Ok(())
    })?;
    let about = format!("disk measured with {}; {} rounds", disk.name(), options.rounds);
    run.end(root, SECTION, &bench.report(&about, &rows::rows(&bench.values, options.large)))
}
