//! A disk is replaced by an empty one: how fast everything is copied to it, and what a client sees
//! meanwhile. And pgbench with two copies beside one.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};

use super::{
    cluster::{Cluster, Plexus, TIMEOUT},
    lost::server,
    rows::{ALONE_P99, BOTH_FILES, COPIED, COPIED_P99, PGBENCH_ONE, PGBENCH_TWO},
};
use crate::{
    command::{json_within, number, output_within},
    compare::{figure::Measured, fio::fio},
    sql::{
        killed::commits,
        work::{pgbench, psql, rate},
    },
};

/// The longest time for the copy of a disk.
const COPIED_WITHIN: Duration = Duration::from_secs(120);

/// The size of the group, and the work of pgbench.
const SIZE: &str = "--size-mib 512";
const TABLES: &str = "-i -q -s 5";
const WORK: &str = "-n -c 8 -j 1 -T 5";

/// Replaces the disk of the second node, without clients and beside one.
pub(super) fn measure(plexus: &Plexus) -> Measured {
    let cluster = plexus.start("shm,tcp", SIZE)?;
    let server = server(&cluster)?;
    pgbench(&server, TABLES)?;
    let two_copies = rate(&server, WORK)?;
    psql(&server, "create table own (a int primary key, b int)")?;
    psql(&server, "insert into own values (1, 0)")?;
    let (idle, _) = replace(&cluster, "second")?;
    let places = [tempfile::tempdir()?, tempfile::tempdir()?];
    let [alone, beside] = places
        .each_ref()
        .map(|place| || commits(&server, place.path(), "update own set b = b + 1 where a = 1"));
    let alone = alone()?;
    let (times, copied_for) = thread::scope(|scope| {
        let own = scope.spawn(beside);
        let (_, copied_for) = replace(&cluster, "third")?;
        let times = own.join().map_err(|_| anyhow!("a thread has panicked"))?;
        anyhow::Ok((times?, copied_for))
    })?;
    let first = times.first().context("no commit")?;
    let until = times.partition_point(|time| *time < first + copied_for.as_micros() as u64);
    Ok(vec![
        (PGBENCH_TWO, two_copies),
        (COPIED, idle),
        (BOTH_FILES, both_files(&cluster.path())?),
        (ALONE_P99, p99(&alone)?),
        (COPIED_P99, p99(&times[..until])?),
    ])
}

/// Runs pgbench on a node alone, whose blocks have one copy.
pub(super) fn one_copy(plexus: &Plexus) -> Measured {
    let cluster = plexus.start_alone(SIZE)?;
    let server = server(&cluster)?;
    pgbench(&server, TABLES)?;
    Ok(vec![(PGBENCH_ONE, rate(&server, WORK)?)])
}

/// Gives the second node an empty disk in the place of its one. Returns the MB/s of the copy, and
/// its time.
fn replace(cluster: &Cluster<'_>, name: &str) -> Result<(f64, Duration)> {
    let disk = |words: &str| output_within(cluster.command("disk").args(words.split(' ')), TIMEOUT);
    disk("offline 1")?;
    let path = cluster.path().join(name);
    let began = Instant::now();
    disk(&format!("replace 1 {} --node n2 --failure-group two", path.display()))?;
    while began.elapsed() < COPIED_WITHIN {
        let disks = json_within(cluster.command("disks").arg("--json"), TIMEOUT)?;
        let second = &disks["disks"][1];
        if second["state"] == "current" {
            let bytes = number(second, "used_mib")? * f64::from(1 << 20);
            let time = began.elapsed();
            return Ok((bytes / time.as_secs_f64() / 1e6, time));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err(anyhow!("the disk has not everything after {} s", COPIED_WITHIN.as_secs()))
}

/// Returns the MB/s of two programs, of which one reads a file and the other one writes one with
/// syncs: those of the slower one.
fn both_files(place: &Path) -> Result<f64> {
    let run = |name: &str, work: &str, field: &str| -> Result<f64> {
        let file = place.join(name);
        fs::write(&file, vec![1; 256 << 20])?;
        Ok(number(&fio(&file, 256 << 20, work)?, field)? / 1e6)
    };
    thread::scope(|scope| {
        let read = scope.spawn(|| run("read", "--rw=read --bs=1m", "read/bw_bytes"));
        let written = run("written", "--rw=write --bs=1m --fdatasync=1", "write/bw_bytes")?;
        let read = read.join().map_err(|_| anyhow!("a thread has panicked"))??;
        Ok(read.min(written))
    })
}

/// Returns the time between two commits of a client that 99 of 100 are below, in milliseconds.
fn p99(times: &[u64]) -> Result<f64> {
    let mut gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    ensure!(gaps.len() >= 100, "{} commits are too few", times.len());
    gaps.sort_unstable();
    Ok(gaps[gaps.len() * 99 / 100] as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_hundred_gaps_one_may_be_longer() {
        let times: Vec<u64> = (0..200).map(|at| at * 2000 + if at == 199 { 90_000 } else { 0 }).collect();
        assert_eq!(p99(&times).unwrap(), 2.0);
        assert!(p99(&times[..50]).is_err());
    }
}
