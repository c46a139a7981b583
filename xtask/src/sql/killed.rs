//! A node is killed while clients of three nodes work: how long the others do not commit.

use std::{fs, path::Path, process::Command, thread, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use tempfile::TempDir;

use super::{
    rows,
    work::{Server, pgbench, psql, rate},
};
use crate::{command::run, compare::figure::Measured};

/// The seconds of the work, and those after which the node is killed.
const WORK_SECONDS: u64 = 10;
pub(crate) const KILL_AFTER: Duration = Duration::from_secs(5);

/// The time before the kill from which on pauses count: clients take some time to start.
const EARLIER: Duration = Duration::from_millis(500);

/// Runs pgbench with a script of one statement; returns the times of its commits, in microseconds.
pub(crate) fn commits(server: &Server, place: &Path, statement: &str) -> Result<Vec<u64>> {
    let script = place.join("script.sql");
    fs::write(&script, format!("{statement};\n"))?;
    let log = format!("-n -c 1 -T {WORK_SECONDS} -l --log-prefix {}", place.join("log").display());
    pgbench(server, &format!("{log} -f {}", script.display()))?;
    let mut times = Vec::new();
    for entry in fs::read_dir(place)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log.")) {
            for line in fs::read_to_string(path)?.lines() {
                times.push(committed(line).with_context(|| format!("pgbench has logged {line:?}"))?);
            }
        }
    }
    times.sort_unstable();
    Ok(times)
}

/// Returns the time of a commit in the log of pgbench, in microseconds.
fn committed(line: &str) -> Option<u64> {
    let words: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    Some(words.get(4)? * 1_000_000 + words.get(5)?)
}

/// Returns the longest time without a commit from just before the kill on, in milliseconds.
pub(crate) fn longest_pause(times: &[u64]) -> Result<f64> {
    let from = times.first().context("no commit")? + (KILL_AFTER - EARLIER).as_micros() as u64;
    let before = times.partition_point(|time| *time < from);
    ensure!(before > 0 && before < times.len(), "no commit before the kill, or none after it");
    let pauses = times[before - 1..].windows(2).map(|pair| pair[1] - pair[0]);
    Ok(pauses.max().unwrap_or(0) as f64 / 1000.0)
}

/// Kills the last of three nodes under load.
pub(super) fn killed(servers: &[Server]) -> Measured {
    let [first, _, last] = servers else { return Err(anyhow!("three nodes are needed")) };
    pgbench(first, "-i -q -s 3")?;
    for table in ["own", "shared"] {
        psql(first, &format!("create table {table} (a int primary key, b int)"))?;
        psql(first, &format!("insert into {table} values (1, 0)"))?;
    }
    let places: Vec<TempDir> = (0..3).map(|_| tempfile::tempdir()).collect::<Result<_, _>>()?;
    thread::scope(|scope| {
        let work = format!("-n -c 4 -j 1 -T {WORK_SECONDS}");
        for server in servers {
            let work = work.clone();
            // The clients of the killed node fail, and those of the others may be told so.
            scope.spawn(move || rate(server, &work));
        }
        let [of_dead, own, shared] = &places[..] else { return Err(anyhow!("three places are needed")) };
        scope.spawn(|| commits(last, of_dead.path(), "update shared set b = b + 1 where a = 1"));
        let own = scope.spawn(|| commits(first, own.path(), "update own set b = b + 1 where a = 1"));
        let shared = scope.spawn(|| commits(first, shared.path(), "update shared set b = b + 1 where a = 1"));
        thread::sleep(KILL_AFTER);
        run(Command::new("kill").args(["-9", &last.pid.to_string()]))?;
        let times = [own, shared].map(|probe| probe.join().map_err(|_| anyhow!("a thread has panicked")));
        let figures = rows::KILLED.into_iter().zip(times);
        figures.map(|(figure, times)| Ok((figure, longest_pause(&times??)?))).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_is_found_in_the_log_of_pgbench() {
        assert_eq!(committed("0 3 1042 0 1700000000 25"), Some(1_700_000_000_000_025));
        assert_eq!(committed("0 3"), None);
        assert_eq!(longest_pause(&[0, 4_400_000, 4_600_000, 4_900_000, 5_000_000]).unwrap(), 300.0);
        assert!(longest_pause(&[1000, 2000]).is_err());
    }
}
