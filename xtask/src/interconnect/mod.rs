//! Compares the interconnect with the limits of the machine and with its peers.
//!
//! A round measures everything once, competitors in sequence. The table has medians over all
//! rounds. All programs are pinned to the same two cores. The goals are in `rows.rs`.

mod endpoints;
mod nodes;
mod ours;
mod peers;
mod report;
mod round;
mod rows;
mod samples;
mod table;
mod veth;
mod work;

use std::{collections::BTreeSet, path::Path, process::Command};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::thread::{CpuSet, sched_setaffinity};

use self::{ours::PlexusPrograms, peers::Peers, report::Report, round::Bench, rows::Row, veth::Veth};
use crate::{
    command,
    compare::{document, quiet::CoreLoad},
};

const PACKAGES: [&str; 6] =
    ["ucx-utils", "openmpi-bin", "libopenmpi-dev", "libfabric-bin", "libfabric-dev", "iperf3"];

/// The name of its section in the document.
pub(crate) const SECTION: &str = "interconnect";

/// The options of the comparison.
#[derive(Args)]
pub struct Options {
    /// Number of rounds; medians are reported.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Run one round only.
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Measure only these rows: message, put, rate, bandwidth, tcp-latency, tcp-bandwidth,
    /// tcp-encrypted, block, asleep, urgent, oversubscribed.
    #[arg(long, value_delimiter = ',', value_name = "ROW,...")]
    only: Vec<String>,
    /// The two cores to run on.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1])]
    cpus: Vec<usize>,
    /// Install the peers first (Debian, as root).
    #[arg(long)]
    install: bool,
    /// Measure the peers only.
    #[arg(long)]
    peers_only: bool,
    /// Write the results into docs/performance.md.
    #[arg(long, conflicts_with_all = ["only", "peers_only"])]
    write: bool,
    /// Write them although other processes use the cores.
    #[arg(long, requires = "write")]
    anyway: bool,
}

/// Measures, prints the tables, and with `--write` puts them into docs/performance.md.
///
/// # Errors
/// A program cannot be built, a goal is missed, or a measurement for a goal is missing.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    ensure!(cores >= 2, "the comparison needs two cores; this machine has {cores}");
    let &[first, second] = options.cpus.as_slice() else {
        bail!("--cpus takes two cores, such as --cpus 0,1")
    };
    let (cpus, known) = ([first, second], [first, second].iter().all(|cpu| *cpu < CpuSet::MAX_CPU));
    ensure!(first != second && known, "--cpus takes two different cores");
    let rows = chosen(&options.only)?;
    // First, before Plexus runs.
    let mut load = CoreLoad::on(cpus);
    load.sample()?;
    load.permit(options.write, options.anyway)?;
    if options.install {
        install()?;
    }
    let mut bench = Bench {
        peers: Peers::build(&root.join("xtask/peers"), cpus)?,
        ours: PlexusPrograms::build(root, cpus)?,
        without_ours: options.peers_only,
        veth: Veth::new().map_err(|why| format!("{why:#}")),
        samples: Vec::new(),
        failures: round::Failures::new(),
    };
    // Children of this process inherit its cores.
    let mut cores = CpuSet::new();
    cpus.into_iter().for_each(|cpu| cores.set(cpu));
    sched_setaffinity(None, &cores).with_context(|| format!("cannot run on cores {first} and {second}"))?;
    let rounds = if options.quick { 1 } else { options.rounds };
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        load.sample()?;
        bench.round(&rows, round)?;
    }
    let report = Report::of(&samples::by_placement(&bench.samples), &rows, &bench.failures, rounds);
    document::publish(root, SECTION, &report.text, &load, (options.write, options.anyway))?;
    match report.failed.len() {
        failed if failed > 0 && !options.peers_only => {
            bail!(
                "{failed} of {} goals:\n{}",
                rows.iter().filter(|row| row.goal.is_some()).count(),
                report.failed.join("\n")
            )
        }
        _ => Ok(()),
    }
}

/// Returns the rows with these keys, or all rows for no keys.
fn chosen(only: &[String]) -> Result<Vec<Row>> {
    let rows = rows::rows();
    let keys: BTreeSet<&str> = rows.iter().map(|row| row.key).collect();
    if let Some(unknown) = only.iter().find(|key| !keys.contains(key.as_str())) {
        bail!("--only {unknown}: unknown row; use {}", keys.into_iter().collect::<Vec<_>>().join(", "));
    }
    Ok(rows.into_iter().filter(|row| only.is_empty() || only.iter().any(|key| key == row.key)).collect())
}

/// Installs the peers with apt-get.
fn install() -> Result<()> {
    let packages = PACKAGES.join(" ");
    if !rustix::process::geteuid().is_root() || !command::found("apt-get") {
        bail!(
            "--install needs root on Debian: run `apt-get install {packages}` or the equivalent of your system"
        );
    }
    let mut apt = Command::new("apt-get");
    command::run(apt.args(["install", "--yes", "--no-install-recommends"]).args(PACKAGES))
}
