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
mod rows;
mod timed;

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use clap::Args;

use self::{
    corosync::Corosync,
    ours::PlexusPrograms,
    peers::{Etcd, Redis, file},
    rows::*,
    timed::Timed,
};
use crate::{
    command,
    compare::{
        figure::{Bench, Figure},
        run::{Run, WriteOptions},
    },
};

/// The name of its section in the document.
pub(crate) const SECTION: &str = "executive";

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
    #[arg(long, conflicts_with = "write")]
    locks_only: bool,
    #[command(flatten)]
    write: WriteOptions,
}

/// Measures, prints the table, and with `--write` puts it into docs/performance.md.
///
/// # Errors
/// A Plexus program cannot be built, a goal is missed, or a peer was not measured.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if !options.locks_only {
        command::require(&[("ip", "iproute2"), ("nft", "nftables")])?;
    }
    let absent = command::not_installed(if options.locks_only { &PEERS[..2] } else { PEERS });
    ensure!(!options.write.write || absent.is_empty(), "nothing was measured: {}", absent.join("; "));
    absent.iter().for_each(|absent| println!("not measured: {absent}"));
    let mut run = Run::start(&options.write, None)?;
    let ours = PlexusPrograms::build(root)?;
    let mut bench = Bench::default();
    run.rounds(options.rounds, |_| {
        bench.take("plexus, shm", ours.shm());
        bench.take("plexus, tcp", ours.tcp());
        measure_peers(&mut bench);
        if !options.locks_only {
            measure_deaths(&mut bench, &ours);
        }
        Ok(())
    })?;
    let report = bench.report(&format!("{} rounds", options.rounds), &rows(options.locks_only));
    run.end(root, SECTION, &report)
}

fn measure_peers(bench: &mut Bench) {
    let ns = |timed: Timed| timed.ns;
    let per_second = |timed: Timed| timed.per_second;
    bench.take_one(LOCAL.by(FLOCK), file(TIME).map(ns));
    if let Some(redis) = bench.ok(REDIS, Redis::start()) {
        bench.take_one(TCP.by(REDIS), redis.lock(1, TIME).map(ns));
        for (clients, work) in CLIENTS {
            bench.take_one(work.by(REDIS), redis.lock(clients, TIME).map(per_second));
        }
    }
    if let Some(etcd) = bench.ok(ETCD_LOCK, Etcd::start()) {
        bench.take_one(TCP.by(ETCD_TXN), etcd.transaction(TIME).map(ns));
        bench.take_one(TCP.by(ETCD_LOCK), etcd.lock(1, false, TIME).map(ns));
        for (clients, work) in CLIENTS {
            bench.take_one(work.by(ETCD_LOCK), etcd.lock(clients, false, TIME).map(per_second));
        }
        // With two clients in turns, this is the time between their grants.
        let turns = etcd.lock(2, true, TIME);
        bench.take_one(HAND_OVER.by(ETCD_LOCK), turns.map(|timed| 1e9 / timed.per_second));
    }
}

fn measure_deaths(bench: &mut Bench, ours: &PlexusPrograms) {
    for (work, name) in [(DEATH, "death"), (CUT, "cut"), (CUT_FAST, "cut-fast"), (RECOVERY, "recovery")] {
        bench.take(&work.name(), ours.death(name).map(|ms| vec![(work, ms)]));
    }
    for (system, token_ms) in [(COROSYNC, None), (COROSYNC_TUNED, Some(250))] {
        bench.take_one(CUT.by(system), Corosync::start(token_ms).and_then(Corosync::cut));
        bench.take_one(DEATH.by(system), Corosync::start(token_ms).and_then(Corosync::death));
    }
}
