//! Clusters of Plexus with SQL, in temporary directories.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use tempfile::TempDir;

use super::{
    killed::killed,
    rows,
    work::{IDLE, Server, Snapshot, USER, idle_kib, pgbench, rate},
};
use crate::{
    command::{built_program, json_within, number, output_within},
    compare::figure::Measured,
};

/// The time limit of one command.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The transaction of TPC-B with the branches of a side, or at times of the other side.
const SIDES: &str = "\
\\set which case when random(1, 100) <= :remote then 1 - :side else :side end
\\set bid random(1, 5) + 5 * :which
\\set tid random(1, 10) + 10 * (:bid - 1)
\\set aid random(1, 100000) + 100000 * (:bid - 1)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
";

/// The transaction that changes one row.
const HOT: &str = "UPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = 1;\n";

/// The program to measure.
pub(crate) struct Plexus(PathBuf);

/// A cluster that runs until it is dropped.
struct Cluster<'a> {
    plexus: &'a Plexus,
    directory: TempDir,
    servers: Vec<Server>,
}

impl Plexus {
    /// Builds the program in release mode.
    ///
    /// # Errors
    /// It does not build.
    pub(crate) fn build(root: &Path) -> Result<Self> {
        built_program(root, "plexus", "plexus").map(Self)
    }

    /// Takes a program that is there.
    pub(crate) fn at(path: &Path) -> Self {
        Self(path.into())
    }

    /// Starts a cluster.
    fn start(&self, nodes: usize, rails: &str) -> Result<Cluster<'_>> {
        self.start_with(nodes, rails, "256", "")
    }

    /// Starts a cluster with this redo of each node, and more lines of the table `[sql]`.
    fn start_with(&self, nodes: usize, rails: &str, redo_mib: &str, more: &str) -> Result<Cluster<'_>> {
        let mut cluster = Cluster { plexus: self, directory: tempfile::tempdir()?, servers: Vec::new() };
        let count = nodes.to_string();
        let options = ["--rails", rails, "--cache-mib", "400", "--size-mib", "2048", "--redo-mib", redo_mib];
        let mut init = Command::new(&self.0);
        init.arg("init").arg(cluster.path()).args(["--nodes", &count]).args(options).env("USER", USER);
        output_within(&mut init, TIMEOUT)?;
        let file = cluster.path().join("cluster.toml");
        let table = fs::read_to_string(&file)?.replace("[sql]\n", &format!("[sql]\n{more}"));
        fs::write(&file, &table)?;
        output_within(&mut cluster.command("up"), TIMEOUT)?;
        let sql = table.split("[sql]").nth(1).context("no table [sql]")?;
        let port = sql.lines().find_map(|line| line.strip_prefix("port = ")).context("no port for SQL")?;
        let port: u16 = port.parse()?;
        let status = json_within(cluster.command("status").arg("--json"), TIMEOUT)?;
        for node in 0..nodes {
            cluster.servers.push(Server {
                directory: cluster.path().join("run"),
                port: port + node as u16,
                pid: number(&status, &format!("nodes/{node}/pid"))? as u32,
                core: None,
            });
        }
        Ok(cluster)
    }

    /// Measures one node.
    ///
    /// # Errors
    /// The cluster does not start, or the measurement fails.
    pub(crate) fn one_node<T>(&self, measure: impl FnOnce(&Server) -> Result<T>) -> Result<T> {
        measure(&self.start(1, "shm")?.servers[0])
    }

    /// Measures the memory of idle connections.
    pub(super) fn idle(&self) -> Measured {
        let cluster = self.start_with(1, "shm", "64", &format!("sessions = {IDLE}\n"))?;
        Ok(vec![(rows::IDLE, idle_kib(&cluster.servers[0])?)])
    }

    /// Measures the death of a node.
    pub(super) fn killed(&self) -> Measured {
        killed(&self.start_with(3, "shm,tcp", "64", "")?.servers)
    }

    /// Measures two nodes with a core each beside one node with a core.
    pub(super) fn two_nodes(&self) -> Measured {
        let mut figures = Vec::new();
        let mut one = self.start(1, "shm")?;
        one.pin()?;
        pgbench(&one.servers[0], "-i -q -s 10")?;
        figures.push((rows::ONE, one.on_all(SIDES, "-c 8 -j 1 -T 3 -D remote=0")?));
        drop(one);
        let mut two = self.start(2, "shm,tcp")?;
        two.pin()?;
        pgbench(&two.servers[0], "-i -q -s 10")?;
        for (figure, remote, _) in rows::TWO {
            figures.push((figure, two.on_all(SIDES, &format!("-c 8 -j 1 -T 3 -D remote={remote}"))?));
        }
        Ok(figures)
    }

    /// Measures a row that two nodes change.
    pub(super) fn hot_row(&self, rail: &str, figure: crate::compare::figure::NamedFigure) -> Measured {
        let cluster = self.start(2, rail)?;
        pgbench(&cluster.servers[0], "-i -q -s 1")?;
        let rate = cluster.on_all(HOT, "-c 8 -j 1 -T 3")?;
        let mut figures = vec![(figure, rate)];
        if rail == "shm" {
            let snapshot = Snapshot::take(&cluster.servers[0])?;
            figures.push((rows::HOT_WITH_SNAPSHOT, cluster.on_all(HOT, "-c 8 -j 1 -T 3")?));
            drop(snapshot);
        }
        Ok(figures)
    }
}

impl Cluster<'_> {
    fn path(&self) -> PathBuf {
        self.directory.path().join("c")
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.plexus.0);
        command.arg(name).arg("-C").arg(self.path());
        command
    }

    /// Gives each node, and its clients, a core.
    fn pin(&mut self) -> Result<()> {
        for (core, server) in (0..).zip(&mut self.servers) {
            server.core = Some(core);
            let (core, pid) = (core.to_string(), server.pid.to_string());
            output_within(Command::new("taskset").args(["-a", "-p", "-c", &core, &pid]), TIMEOUT)?;
        }
        Ok(())
    }

    /// Runs pgbench with a script on all nodes at once; returns the sum of the transactions/s.
    fn on_all(&self, script: &str, options: &str) -> Result<f64> {
        let file = self.directory.path().join("script.sql");
        fs::write(&file, script)?;
        thread::scope(|scope| {
            let runs: Vec<_> = (0..)
                .zip(&self.servers)
                .map(|(side, server): (u32, _)| {
                    let options = format!("-n {options} -D side={side} -f {}", file.display());
                    scope.spawn(move || rate(server, &options))
                })
                .collect();
            let rates =
                runs.into_iter().map(|run| run.join().map_err(|_| anyhow!("a thread has panicked"))?);
            rates.sum()
        })
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        let _ = self.command("down").output();
    }
}
