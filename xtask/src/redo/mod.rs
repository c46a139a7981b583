//! Measures redo: durable changes beside the syncs of the disk, the hand-over of changed blocks,
//! and recovery when nodes die.
//!
//! A round measures everything once in sequence; the table has medians over all rounds. The goals
//! are in `rows.rs`.

mod disk;
mod ours;
mod report;
mod rows;

use std::{collections::BTreeMap, path::Path, process::Command};

use anyhow::{Result, bail, ensure};
use clap::Args;

use self::{disk::Disk, ours::Plexus, rows::Figures};
use crate::{
    command,
    compare::{document, quiet::CoreLoad},
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
    /// Write the results into docs/performance.md.
    #[arg(long)]
    write: bool,
    /// Write them although other processes use the cores.
    #[arg(long, requires = "write")]
    anyway: bool,
}

/// The reasons of failed measurements, by the name of the measurement.
type Failures = BTreeMap<&'static str, String>;

/// Measures, prints the table, and with `--write` puts it into docs/performance.md.
///
/// # Errors
/// Plexus cannot be built, a goal is missed, or a measurement failed.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if options.install {
        ensure!(command::found("apt-get"), "--install needs Debian: install `fio` as your system does it");
        command::run(Command::new("apt-get").args(["install", "--yes", "--no-install-recommends", "fio"]))?;
    }
    // First, before Plexus runs; on all cores, because clusters use all.
    let mut load = CoreLoad::on(0..std::thread::available_parallelism()?.get());
    load.sample()?;
    load.permit(options.write, options.anyway)?;
    let plexus = Plexus::build(root)?;
    let disk = Disk::new()?;
    let (mut figures, mut failures) = (Figures::default(), Failures::new());
    for round in 1..=options.rounds {
        println!("round {round} of {}", options.rounds);
        load.sample()?;
        let mut take = |name, measured: Result<Vec<(&'static str, f64)>>| match measured {
            Ok(measured) => measured.into_iter().for_each(|(figure, value)| {
                println!("{figure}: {value:.1}");
                figures.add(figure, value);
            }),
            Err(error) => {
                let why = format!("{error:#}").lines().map(str::trim).collect::<Vec<_>>().join("; ");
                println!("{name}: {why}");
                failures.insert(name, why);
            }
        };
        take("syncs", disk.syncs());
        take("durable changes", plexus.changes());
        take("hand-over, shm", plexus.hand_over("shm"));
        take("hand-over, tcp", plexus.hand_over("tcp"));
        take("hand-over without redo", plexus.without_redo());
        take("checkpoints", plexus.checkpoints());
        take("reads", disk.reads());
        take("recovery of 64 MiB", plexus.recovery(false));
        if options.large && round == 1 {
            take("recovery of 1 GiB", plexus.recovery(true));
        }
    }
    let report = report::Report::of(&figures, &failures, (options.rounds, options.large, disk.name()));
    document::publish(root, SECTION, &report.text, &load, (options.write, options.anyway))?;
    match report.failed.len() {
        0 => Ok(()),
        failed => bail!("{failed} rows:\n{}", report.failed.join("\n")),
    }
}
