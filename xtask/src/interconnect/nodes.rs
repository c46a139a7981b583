//! Two nodes on two cores, between which `plexus perf` measures.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use toml::Table;

use super::{endpoints::Endpoints, peers::TIMEOUT, work::Transport};
use crate::command::{ChildGuard, list_within, output_within};

/// The time limit for two nodes to connect.
const CONNECTED_WITHIN: Duration = Duration::from_secs(20);

/// The duration of the measurement of each size in seconds.
const SECONDS: &str = "0.4";

/// Two nodes, which end when this value is dropped.
pub(super) struct Nodes<'a> {
    plexus: &'a Path,
    // Declared before the folder, so that they end before the folder is removed.
    _nodes: Vec<ChildGuard>,
    folder: TempDir,
}

impl<'a> Nodes<'a> {
    /// Starts two nodes of the program `plexus` at `endpoints`.
    ///
    /// # Errors
    /// They do not start or do not connect.
    pub(super) fn start(
        plexus: &'a Path,
        cpus: [usize; 2],
        endpoints: &Endpoints<'_>,
        sealed: bool,
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let dir = folder.path().join("pair");
        let mut init = Command::new(plexus);
        init.arg("init").arg(&dir).args(["--nodes", "2", "--no-sql", "--size-mib", "8", "--cache-mib", "4"]);
        let rail = if endpoints.transport == Transport::Shm { "shm" } else { "tcp" };
        output_within(init.args(["--rails", rail, "--waiting", "event"]), TIMEOUT)?;
        configure(&dir.join("cluster.toml"), cpus, endpoints, sealed)?;
        Ok(Self { plexus, _nodes: started(plexus, &dir, endpoints)?, folder })
    }

    /// Runs `plexus perf` between the nodes with these arguments and returns its rows.
    ///
    /// # Errors
    /// The program fails or its output is malformed.
    pub(super) fn perf(&self, arguments: &str) -> Result<Vec<Value>> {
        let mut perf = Command::new(self.plexus);
        perf.args(["perf", "-C"]).arg(self.folder.path().join("pair")).args(["n1", "n2"]);
        list_within(perf.args(["--seconds", SECONDS, "--json"]).args(arguments.split(' ')), TIMEOUT, "perf")
    }
}

/// Sets the cores and addresses of the two nodes.
fn configure(path: &Path, cpus: [usize; 2], endpoints: &Endpoints<'_>, sealed: bool) -> Result<()> {
    let mut config: Table = fs::read_to_string(path)?.parse()?;
    let interconnect = config.get_mut("interconnect").and_then(|table| table.as_table_mut());
    let interconnect = interconnect.context("cluster.toml has no [interconnect]")?;
    interconnect.insert("encrypt".into(), if sealed { "always" } else { "never" }.into());
    let nodes = config.get_mut("node").and_then(|nodes| nodes.as_array_mut());
    for (side, node) in nodes.context("cluster.toml has no nodes")?.iter_mut().enumerate() {
        let node = node.as_table_mut().context("cluster.toml has a malformed node")?;
        node.insert("cores".into(), vec![cpus[side] as i64].into());
        // Ports of this process: other clusters may run on this machine.
        let port = 20_000 + std::process::id() % 10_000 * 2 + side as u32;
        node.insert("address".into(), format!("{}:{port}", endpoints.hosts()[side]).into());
    }
    Ok(fs::write(path, config.to_string())?)
}

/// Starts the nodes and waits until they run; they end with this process.
fn started(plexus: &Path, dir: &Path, endpoints: &Endpoints<'_>) -> Result<Vec<ChildGuard>> {
    let mut nodes = Vec::new();
    for (name, namespace) in ["n1", "n2"].into_iter().zip(endpoints.namespaces()) {
        let mut node = Command::new(plexus);
        node.arg("node").arg(name).arg("-C").arg(dir).args(["--lifeline", "0"]).stdin(Stdio::piped());
        if namespace != "-" {
            node.args(["--network-namespace", &namespace]);
        }
        let log = File::create(dir.join(format!("{name}.out")))?;
        nodes.push(ChildGuard(node.stdout(Stdio::null()).stderr(log).spawn()?));
    }
    let started = Instant::now();
    loop {
        let mut status = Command::new(plexus);
        let text =
            output_within(status.args(["status", "--json", "-C"]).arg(dir), TIMEOUT).unwrap_or_default();
        let json: Value = serde_json::from_str(&text).unwrap_or_default();
        let states = json["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
        if states.len() == 2 && states.iter().all(|node| node["state"] == "running") {
            return Ok(nodes);
        }
        for (name, node) in ["n1", "n2"].into_iter().zip(&mut nodes) {
            let log = fs::read_to_string(dir.join(format!("{name}.out"))).unwrap_or_default();
            ensure!(node.0.try_wait()?.is_none(), "{name} ended: {}", log.trim());
        }
        ensure!(started.elapsed() < CONNECTED_WITHIN, "the two nodes do not connect within 20 s: {text}");
        thread::sleep(Duration::from_millis(10));
    }
}
