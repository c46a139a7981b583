//! Mirrored clusters in temporary directories: two nodes with a disk each, and a witness, all of
//! this machine. Only their disks are in different failure groups.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU8, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::rows::*;
use crate::{
    command::{built_program, json_within, list_within, number, output_within},
    compare::{figure::Measured, fio::fio},
};

/// The time limit of one command.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// The user of all clusters.
pub(super) const USER: &str = "bench";

/// The workload: durable changes of blocks that are owed, by one node.
const CHANGES: &str = "--only n1 --writes 100 --hot 64 --seconds 1 --json";

/// The program to measure.
pub(super) struct Plexus(PathBuf);

/// A mirrored cluster that runs until it is dropped.
pub(super) struct Cluster<'a> {
    plexus: &'a Plexus,
    directory: TempDir,
}

impl Plexus {
    /// Builds the program in release mode.
    ///
    /// # Errors
    /// It does not build.
    pub(super) fn build(root: &Path) -> Result<Self> {
        built_program(root, "plexus", "plexus").map(Self)
    }

    /// Measures durable changes in a group with one copy.
    pub(super) fn one_copy(&self) -> Measured {
        let mut bench = Command::new(&self.0);
        let cluster = "bench blocks --nodes 1 --rail tcp --block-size 8 --redo 256 --checkpoint 3600";
        bench.args(cluster.split(' ')).args(CHANGES.split(' ')).args(["--clients", "1,64"]);
        let reports = list_within(&mut bench, TIMEOUT, "blocks")?;
        let [one, many] = [0, 1].map(|place| reports.get(place).context("a report is missing"));
        Ok(vec![
            (ONE_COPY_LATENCY, number(one?, "change_us/p50")? * 1e3),
            (ONE_COPY_MANY, number(many?, "changes_per_s")?),
        ])
    }

    /// Measures redo and reads with two copies; `rail` is 0 for shared memory and 1 for TCP.
    pub(super) fn two_copies(&self, rail: usize) -> Measured {
        let cluster = self.start(RAILS[rail], "--no-sql")?;
        let mut figures = Vec::new();
        let mut bench = cluster.command("bench blocks");
        bench.args(CHANGES.split(' ')).args(["--clients", "1,64"]);
        let reports = list_within(&mut bench, TIMEOUT, "blocks")?;
        let [one, many] = [0, 1].map(|place| reports.get(place).context("a report is missing"));
        figures.push((LATENCY[rail], number(one?, "change_us/p50")? * 1e3));
        figures.push((MANY[rail], number(many?, "changes_per_s")?));
        let mut perf = cluster.command("perf");
        perf.args("n1 n2 --test latency --op send --sizes 4K --json --wait adaptive".split(' '));
        let rows = list_within(&mut perf, TIMEOUT, "perf")?;
        let one_way = number(rows.first().context("plexus perf printed no row")?, "latency_us/p50")?;
        figures.push((ROUND_TRIP[rail], 2.0 * one_way * 1e3));
        let disks = list_within(cluster.command("perf disks").arg("--json"), TIMEOUT, "disks")?;
        let of = |is_direct: bool, field: &str| -> Result<f64> {
            let lines = disks.iter().filter(|line| (line["node"] == line["from"]) == is_direct);
            let values = lines.map(|line| number(line, field)).collect::<Result<Vec<_>>>()?;
            values.into_iter().reduce(f64::max).context("no disk was measured")
        };
        // Of two disks, the slower one.
        figures.push((SYNC[rail], of(true, "synced_write/p50_us")? * 1e3));
        figures.push((SERVED_SYNC[rail], of(false, "synced_write/p50_us")? * 1e3));
        figures.push((LOCAL_READ[rail], of(true, "read/p50_us")? * 1e3));
        figures.push((SERVED_READ[rail], of(false, "read/p50_us")? * 1e3));
        figures.push((BOTH_SYNCS[rail], cluster.both_syncs()?));
        Ok(figures)
    }

    /// Starts a node alone, with one copy of its blocks.
    pub(super) fn start_alone(&self, more: &str) -> Result<Cluster<'_>> {
        let cluster = Cluster { plexus: self, directory: tempfile::tempdir()? };
        let mut init = Command::new(&self.0);
        init.arg("init").arg(cluster.path()).env("PLEXUS_HOST", "a").env("USER", USER);
        init.args("--nodes 1 --redo-mib 256 --cache-mib 200".split(' ')).args(more.split(' '));
        output_within(&mut init, TIMEOUT)?;
        output_within(&mut cluster.command("up"), TIMEOUT)?;
        Ok(cluster)
    }

    /// Starts a mirrored cluster.
    pub(super) fn start(&self, rails: &str, more: &str) -> Result<Cluster<'_>> {
        static STARTED: AtomicU8 = AtomicU8::new(0);
        let [low, high, ..] = std::process::id().to_le_bytes();
        let last = 4 * (STARTED.fetch_add(1, Relaxed) % 60) + 1;
        let [a, b, w] = [0, 1, 2].map(|host| format!("127.{high}.{low}.{}", last + host));
        let cluster = Cluster { plexus: self, directory: tempfile::tempdir()? };
        let mut init = Command::new(&self.0);
        init.arg("init").arg(cluster.path()).env("PLEXUS_HOST", "a").env("USER", USER);
        let options = format!(
            "--host a={a} --host b={b} --witness w={w} --disk b=disks/1 --port 7700 --redo-mib 256 --cache-mib 200 \
             {more}"
        );
        output_within(init.args(options.trim().split(' ')), TIMEOUT)?;
        let file = cluster.path().join("cluster.toml");
        let text = fs::read_to_string(&file)?;
        let text = ["b", "w"]
            .iter()
            .fold(text, |text, host| text.replace(&format!("host = \"{host}\""), "host = \"a\""));
        let group = "# failure_group = \"rack1\"";
        let text =
            text.replacen(group, "failure_group = \"one\"", 1).replacen(group, "failure_group = \"two\"", 1);
        let rails: Vec<_> = rails.split(',').map(|rail| format!("\"{rail}\"")).collect();
        let text = text.replace("rails = [\"shm\", \"tcp\"]", &format!("rails = [{}]", rails.join(", ")));
        fs::write(&file, text.replace("checkpoint_seconds = 5", "checkpoint_seconds = 3600"))?;
        // Then `up` creates what the hosts that are now this one lack.
        fs::remove_dir_all(cluster.path().join("state"))?;
        output_within(&mut cluster.command("up"), TIMEOUT)?;
        cluster.wait_until_whole()?;
        Ok(cluster)
    }
}

impl Cluster<'_> {
    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join("c")
    }

    /// Returns a command on the cluster; its name may have several words.
    pub(super) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.plexus.0);
        command.args(name.split(' ')).arg("-C").arg(self.path()).env("PLEXUS_HOST", "a").env("USER", USER);
        command
    }

    pub(super) fn status(&self) -> Result<Value> {
        json_within(self.command("status").arg("--json"), TIMEOUT)
    }

    /// Waits until all nodes are members and both disks have everything.
    fn wait_until_whole(&self) -> Result<()> {
        let text = || output_within(&mut self.command("status"), TIMEOUT);
        let is_whole = |text: &str| text.contains("n1,n2,n3") && !text.contains("one copy less");
        for _ in 0..100 {
            if is_whole(&text()?) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Err(anyhow!("the cluster is not whole: {}", text()?))
    }

    /// Returns the time of a write with a sync, in nanoseconds, while two programs do that on two
    /// files of the file system of the disks.
    fn both_syncs(&self) -> Result<f64> {
        let files = [0, 1].map(|number| self.directory.path().join(format!("file{number}")));
        let run = |file: &Path| -> Result<Value> {
            fs::write(file, vec![1; 16 << 20])?;
            fio(file, 16 << 20, "--rw=write --bs=4k --fdatasync=1")
        };
        let jobs = thread::scope(|scope| {
            let jobs: Vec<_> = files.iter().map(|file| scope.spawn(|| run(file))).collect();
            let joined =
                jobs.into_iter().map(|job| job.join().map_err(|_| anyhow!("a thread has panicked"))?);
            joined.collect::<Result<Vec<_>>>()
        })?;
        let rates = jobs.iter().map(|job| number(job, "write/iops")).collect::<Result<Vec<_>>>()?;
        let slower = rates.into_iter().reduce(f64::min).context("two programs")?;
        ensure!(slower > 0.0, "no write was synced");
        Ok(1e9 / slower)
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        let _ = self.command("down").output();
    }
}
