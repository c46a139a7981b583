//! Measures mirrored disks: a disk beside fio on its file, redo with two copies beside one, served
//! reads, a lost host, the copy of a disk, the map of a large group, and mirrors of Linux.
//!
//! A round measures everything once in sequence; the table has medians over all rounds. The goals
//! are in `rows.rs`.

mod cluster;
mod copied;
mod direct;
mod lost;
mod peers;
mod rows;

use std::path::Path;

use anyhow::Result;
use clap::Args;

use self::{cluster::Plexus, direct::Direct};
use crate::compare::{
    figure::Bench,
    run::{Run, WriteOptions, install},
};

/// The name of its section in the document.
pub(crate) const SECTION: &str = "disks";

/// The options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Number of rounds; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// First install fio, btrfs-progs, mdadm and PostgreSQL's pgbench with apt-get.
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
        install(&["fio", "btrfs-progs", "mdadm", "postgresql-15"])?;
    }
    let mut run = Run::start(&options.write, None)?;
    let (plexus, direct) = (Plexus::build(root)?, Direct::build(root)?);
    let mut bench = Bench::default();
    run.rounds(options.rounds, |_| {
        bench.take("a disk without a cluster", direct.measure());
        bench.take("one copy", plexus.one_copy());
        bench.take("two copies, shm", plexus.two_copies(0));
        bench.take("two copies, tcp", plexus.two_copies(1));
        bench.take("a host is lost", lost::measure(&plexus));
        bench.take("a disk is replaced", copied::measure(&plexus));
        bench.take("pgbench with one copy", copied::one_copy(&plexus));
        bench.take(rows::BTRFS, peers::btrfs());
        bench.take(rows::MD, peers::md());
        bench.take(rows::DRBD, peers::drbd());
        Ok(())
    })?;
    run.end(root, SECTION, &bench.report(&format!("{} rounds", options.rounds), &rows::rows(&bench.values)))
}
