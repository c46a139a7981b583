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
mod veth;
mod work;

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::thread::{CpuSet, sched_setaffinity};

use self::{ours::PlexusPrograms, peers::Peers, round::Bench, rows::Row, veth::Veth};
use crate::compare::{
    figure::Failures,
    run::{Run, WriteOptions, install},
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
    #[arg(long, value_delimiter = ',', value_name = "ROW,...", conflicts_with = "write")]
    only: Vec<String>,
    /// The two cores to run on.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1])]
    cpus: Vec<usize>,
    /// Install the peers first (Debian, as root).
    #[arg(long)]
    install: bool,
    /// Measure the peers only.
    #[arg(long, conflicts_with = "write")]
    peers_only: bool,
    #[command(flatten)]
    write: WriteOptions,
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
    let mut run = Run::start(&options.write, Some(cpus))?;
    if options.install {
        install(&PACKAGES)?;
    }
    let mut bench = Bench {
        peers: Peers::build(&root.join("xtask/peers"), cpus)?,
        ours: PlexusPrograms::build(root, cpus)?,
        without_ours: options.peers_only,
        veth: Veth::new().map_err(|why| format!("{why:#}")),
        samples: Vec::new(),
        failures: Failures::default(),
    };
    // Children of this process inherit its cores.
    let mut cores = CpuSet::new();
    cpus.into_iter().for_each(|cpu| cores.set(cpu));
    sched_setaffinity(None, &cores).with_context(|| format!("cannot run on cores {first} and {second}"))?;
    let rounds = if options.quick { 1 } else { options.rounds };
    run.rounds(rounds, |round| bench.round(&rows, round))?;
    let placements = samples::by_placement(&bench.samples);
    let mut report = report::report(&placements, &rows, &bench.failures, rounds);
    if options.peers_only {
        report.failed.clear();
    }
    run.end(root, SECTION, &report)
}

/// Returns the rows with these keys, or all rows for no keys.
fn chosen(only: &[String]) -> Result<Vec<Row>> {
    let rows = rows::rows();
    let keys: BTreeSet<&str> = rows.iter().map(|(key, _)| *key).collect();
    if let Some(unknown) = only.iter().find(|key| !keys.contains(key.as_str())) {
        bail!("--only {unknown}: unknown row; use {}", keys.into_iter().collect::<Vec<_>>().join(", "));
    }
    let is_chosen = |key| only.is_empty() || only.iter().any(|only| only == key);
    Ok(rows.into_iter().filter(|(key, _)| is_chosen(*key)).map(|(_, row)| row).collect())
}
