//! Compares the executive with its peers: locks with etcd, Redis, `flock` and the bare round trip;
//! failures of nodes with Corosync.
//!
//! A round measures everything once in sequence; the table has medians over all rounds. The goals
//! are in `rows.rs`. Programs that Plexus's own rows need are checked first. Peers that are not
//! installed are not measured, which is said first too; this command installs nothing.

mod corosync;
mod http;
mod ours;
mod peers;
mod report;
mod rows;
mod timed;

use std::{path::Path, time::Duration};

use anyhow::{Result, bail, ensure};
use clap::Args;

use self::{
    corosync::Corosync,
    ours::PlexusPrograms,
    peers::{Etcd, Redis, file},
    report::{Failures, Report},
    rows::*,
};

use crate::{
    command,
    compare::{document, quiet::CoreLoad},
};

/// The name of its section in the document.
pub(crate) const SECTION: &str = "executive";

/// The programs that failures of Plexus's nodes need, and their packages.
const TOOLS: &[(&str, &str)] = &[("ip", "iproute2"), ("nft", "nftables")];

/// The programs of the peers, first those of locks, and their packages.
const PEERS: &[(&str, &str)] =
    &[("redis-server", "redis-server"), ("etcd", "etcd-server"), ("corosync", "corosync")];

/// The duration of each measurement of a peer.
const TIME: Duration = Duration::from_secs(1);

/// The options of the comparison.
#[derive(Args)]
pub struct Options {
    /// Number of rounds; medians are reported.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure locks only, not failures of nodes.
    #[arg(long)]
    locks_only: bool,
    /// Write the results into docs/performance.md.
    #[arg(long, conflicts_with = "locks_only")]
    write: bool,
    /// Write them although other processes use the cores.
    #[arg(long, requires = "write")]
    anyway: bool,
}

/// Measures, prints the table, and with `--write` puts it into docs/performance.md.
///
/// # Errors
/// A Plexus program cannot be built, a goal is missed, or a peer was not measured.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if !options.locks_only {
        command::require(TOOLS)?;
    }
    let absent = command::not_installed(if options.locks_only { &PEERS[..2] } else { PEERS });
    ensure!(!options.write || absent.is_empty(), "nothing was measured: {}", absent.join("; "));
    absent.iter().for_each(|absent| println!("not measured: {absent}"));
    // Before Plexus runs; on all cores, because clusters use all.
    let mut load = CoreLoad::on(0..std::thread::available_parallelism()?.get());
    load.sample()?;
    load.permit(options.write, options.anyway)?;
    let ours = PlexusPrograms::build(root)?;
    let mut bench = Bench::default();
    for round in 1..=options.rounds {
        println!("round {round} of {}", options.rounds);
        load.sample()?;
        bench.ours(&ours);
        bench.peers();
        if !options.locks_only {
            bench.deaths(&ours);
        }
    }
    let wanted = rows().into_iter().filter(|row| !(options.locks_only && row.is_of_deaths())).collect();
    let report = Report::of(wanted, &bench.values, &bench.failures, options.rounds);
    document::publish(root, SECTION, &report.text, &load, (options.write, options.anyway))?;
    match report.failed.len() {
        0 => Ok(()),
        failed => bail!("{failed} rows:\n{}", report.failed.join("\n")),
    }
}

/// The measurements so far.
#[derive(Default)]
struct Bench {
    values: Values,
    failures: Failures,
}

impl Bench {
    /// Records the result of one measurement.
    fn take(&mut self, work: &str, measured: Result<Vec<(Figure, f64)>>) {
        match measured {
            Ok(measured) => {
                for (figure, value) in measured {
                    println!("{}, {}: {value:.0}", figure.work, figure.system);
                    self.values.entry(figure).or_default().push(value);
                }
            }
            Err(error) => {
                // The report has one line for it.
                let why = format!("{error:#}");
                let lines: Vec<&str> = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
                let why = lines.join("; ");
                println!("{work}: {why}");
                self.failures.insert(work.into(), why);
            }
        }
    }

    fn ours(&mut self, ours: &PlexusPrograms) {
        self.take("plexus, shm", ours.shm());
        self.take("plexus, tcp", ours.tcp());
    }

    fn peers(&mut self) {
        let of = |system, work, value| vec![(Figure { system, work }, value)];
        self.take(FLOCK, file(TIME).map(|timed| of(FLOCK, LOCAL, timed.ns)));
        match Redis::start() {
            Err(error) => self.take(REDIS, Err(error)),
            Ok(redis) => {
                self.take(REDIS, redis.lock(1, TIME).map(|timed| of(REDIS, TCP, timed.ns)));
                for (clients, work) in [(8, CLIENTS_8), (64, CLIENTS_64)] {
                    let measured = redis.lock(clients, TIME).map(|timed| of(REDIS, work, timed.per_second));
                    self.take(REDIS, measured);
                }
            }
        }
        match Etcd::start() {
            Err(error) => self.take(ETCD_LOCK, Err(error)),
            Ok(etcd) => {
                self.take(ETCD_TXN, etcd.transaction(TIME).map(|timed| of(ETCD_TXN, TCP, timed.ns)));
                self.take(ETCD_LOCK, etcd.lock(1, false, TIME).map(|timed| of(ETCD_LOCK, TCP, timed.ns)));
                for (clients, work) in [(8, CLIENTS_8), (64, CLIENTS_64)] {
                    let measured = etcd.lock(clients, false, TIME);
                    self.take(ETCD_LOCK, measured.map(|timed| of(ETCD_LOCK, work, timed.per_second)));
                }
                // With two clients in turns, this is the time between their grants.
                let measured = etcd.lock(2, true, TIME);
                self.take(ETCD_LOCK, measured.map(|timed| of(ETCD_LOCK, HAND_OVER, 1e9 / timed.per_second)));
            }
        }
    }

    fn deaths(&mut self, ours: &PlexusPrograms) {
        for work in [DEATH, CUT, CUT_FAST, RECOVERY] {
            self.take(work, ours.death(work));
        }
        for (system, token_ms) in [(COROSYNC, None), (COROSYNC_TUNED, Some(250))] {
            let cut = Corosync::start(token_ms).and_then(Corosync::cut);
            self.take(system, cut.map(|ms| vec![(Figure { system, work: CUT }, ms)]));
            let death = Corosync::start(token_ms).and_then(Corosync::death);
            self.take(system, death.map(|ms| vec![(Figure { system, work: DEATH }, ms)]));
        }
    }
}
