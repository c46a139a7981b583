//! The executive beside its peers: locks beside etcd, Redis, a lock on a file and the bare round trip; deaths beside Corosync.
//!
//! A round measures everything once, one after the other; the table has medians over all rounds. The goals stand in `rows.rs`. Who is not
//! installed is not measured: nothing is installed here.

mod corosync;
mod http;
mod ours;
mod peers;
mod report;
mod rows;
mod timed;

use std::{path::Path, time::Duration};

use anyhow::{Result, bail};
use clap::Args;

use self::{
    corosync::Corosync,
    ours::Ours,
    peers::{Etcd, Redis, file},
    report::{Failures, Report},
    rows::*,
};

pub use self::ours::built;
use crate::compare::{
    document::{self, DOCUMENT},
    quiet::Others,
};

/// Its place in the document.
pub(crate) const SECTION: &str = "executive";

/// How long each work of a peer is measured.
const TIME: Duration = Duration::from_secs(1);

/// How to compare.
#[derive(Args)]
pub struct Options {
    /// How often everything is measured in turn; medians are reported.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Locks alone, not what becomes of a cluster when nodes end.
    #[arg(long)]
    locks_only: bool,
    /// Write the results into docs/performance.md.
    #[arg(long, conflicts_with = "locks_only")]
    write: bool,
    /// Write them though something else uses the cores.
    #[arg(long, requires = "write")]
    anyway: bool,
}

/// Measures, prints the table, and with `--write` puts it into docs/performance.md.
///
/// # Errors
/// Something of ours cannot be built; a goal is missed, or somebody was not measured.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    // Before anything of ours runs; and all of them, as clusters use all.
    let mut others = Others::on(0..std::thread::available_parallelism()?.get());
    others.look()?;
    others.permit(options.write, options.anyway)?;
    let ours = Ours::build(root)?;
    let mut bench = Bench::default();
    for round in 1..=options.rounds {
        println!("round {round} of {}", options.rounds);
        others.look()?;
        bench.ours(&ours);
        bench.peers();
        if !options.locks_only {
            bench.deaths(&ours);
        }
    }
    let wanted = rows().into_iter().filter(|row| !(options.locks_only && row.is_of_deaths())).collect();
    let mut report = Report::of(wanted, &bench.values, &bench.failures, options.rounds);
    if let Some(said) = others.said() {
        report.text = format!("{said}\n\n{}", report.text);
    }
    println!("\n{}", report.text);
    if options.write {
        others.permit(true, options.anyway)?;
        document::write(root, SECTION, &report.text)?;
        println!("written to {DOCUMENT}");
    }
    match report.failed.len() {
        0 => Ok(()),
        failed => bail!("{failed} rows:\n{}", report.failed.join("\n")),
    }
}

/// What was measured so far.
#[derive(Default)]
struct Bench {
    values: Values,
    failures: Failures,
}

impl Bench {
    /// Takes up what came of one measurement.
    fn take(&mut self, what: &str, measured: Result<Vec<(Figure, f64)>>) {
        match measured {
            Ok(measured) => {
                for (figure, value) in measured {
                    println!("{}, {}: {value:.0}", figure.what, figure.who);
                    self.values.entry(figure).or_default().push(value);
                }
            }
            Err(error) => {
                // In one line of a list.
                let why = format!("{error:#}");
                let lines: Vec<&str> = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
                let why = lines.join("; ");
                println!("{what}: {why}");
                self.failures.insert(what.into(), why);
            }
        }
    }

    fn ours(&mut self, ours: &Ours) {
        self.take("plexus, shm", ours.shm());
        self.take("plexus, tcp", ours.tcp());
    }

    fn peers(&mut self) {
        let of = |who, what, value| vec![(Figure { who, what }, value)];
        self.take(FLOCK, file(TIME).map(|timed| of(FLOCK, LOCAL, timed.ns)));
        match Redis::start() {
            Err(error) => self.take(REDIS, Err(error)),
            Ok(redis) => {
                self.take(REDIS, redis.lock(1, TIME).map(|timed| of(REDIS, TCP, timed.ns)));
                for (clients, what) in [(8, CLIENTS_8), (64, CLIENTS_64)] {
                    let measured = redis.lock(clients, TIME).map(|timed| of(REDIS, what, timed.per_second));
                    self.take(REDIS, measured);
                }
            }
        }
        match Etcd::start() {
            Err(error) => self.take(ETCD_LOCK, Err(error)),
            Ok(etcd) => {
                self.take(ETCD_TXN, etcd.transaction(TIME).map(|timed| of(ETCD_TXN, TCP, timed.ns)));
                self.take(ETCD_LOCK, etcd.lock(1, false, TIME).map(|timed| of(ETCD_LOCK, TCP, timed.ns)));
                for (clients, what) in [(8, CLIENTS_8), (64, CLIENTS_64)] {
                    let measured = etcd.lock(clients, false, TIME);
                    self.take(ETCD_LOCK, measured.map(|timed| of(ETCD_LOCK, what, timed.per_second)));
                }
                // Of two that take turns, from one's grant to the other's.
                let measured = etcd.lock(2, true, TIME);
                self.take(ETCD_LOCK, measured.map(|timed| of(ETCD_LOCK, HAND_OVER, 1e9 / timed.per_second)));
            }
        }
    }

    fn deaths(&mut self, ours: &Ours) {
        for what in [DEATH, CUT, CUT_FAST, RECOVERY] {
            self.take(what, ours.death(what));
        }
        for (who, token_ms) in [(COROSYNC, None), (COROSYNC_TUNED, Some(250))] {
            let cut = Corosync::start(token_ms).and_then(Corosync::cut);
            self.take(who, cut.map(|ms| vec![(Figure { who, what: CUT }, ms)]));
            let death = Corosync::start(token_ms).and_then(Corosync::death);
            self.take(who, death.map(|ms| vec![(Figure { who, what: DEATH }, ms)]));
        }
    }
}
