//! Two nodes on two cores, for as long as something is measured between them.

use std::{
    fs::{self, File},
    path::Path as FilePath,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use toml::Table;

use super::{peers::TIMEOUT, place::Place, work::Path};
use crate::command::{Ended, output_within};

/// How long two nodes may take to find each other.
const CONNECTED_WITHIN: Duration = Duration::from_secs(20);

/// Seconds for each size.
const SECONDS: &str = "0.4";

/// The nodes; they end with it.
pub(super) struct Nodes<'a> {
    plexus: &'a FilePath,
    // Before the folder that they use is removed.
    _nodes: Vec<Ended>,
    folder: TempDir,
}

impl<'a> Nodes<'a> {
    /// Starts two nodes of the program `plexus`, which meet at `place`.
    ///
    /// # Errors
    /// They do not start, or do not find each other.
    pub(super) fn start(
        plexus: &'a FilePath,
        cpus: [usize; 2],
        place: &Place<'_>,
        sealed: bool,
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let dir = folder.path().join("pair");
        let mut init = Command::new(plexus);
        init.arg("init").arg(&dir).args(["--nodes", "2", "--size-mib", "8", "--cache-mib", "4"]);
        let rail = if place.path == Path::Shm { "shm" } else { "tcp" };
        output_within(init.args(["--rails", rail, "--waiting", "event"]), TIMEOUT)?;
        configure(&dir.join("cluster.toml"), cpus, place, sealed)?;
        Ok(Self { plexus, _nodes: started(plexus, &dir, place)?, folder })
    }

    /// The rows that `plexus perf` prints when it measures between them with these arguments.
    ///
    /// # Errors
    /// It failed, or printed something else.
    pub(super) fn perf(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        let mut perf = Command::new(self.plexus);
        perf.arg("perf").arg(self.folder.path().join("pair")).args([
            "n1",
            "n2",
            "--seconds",
            SECONDS,
            "--json",
        ]);
        let text = output_within(perf.args(arguments), TIMEOUT)?;
        let mut json: Value = serde_json::from_str(&text).context("plexus perf printed no JSON")?;
        match json["perf"].take() {
            Value::Array(rows) => Ok(rows),
            _ => anyhow::bail!("plexus perf printed no list `perf`"),
        }
    }
}

/// Puts the two nodes on their cores, and at the ends of the path.
fn configure(path: &FilePath, cpus: [usize; 2], place: &Place<'_>, sealed: bool) -> Result<()> {
    let mut config: Table = fs::read_to_string(path)?.parse()?;
    let interconnect = config.get_mut("interconnect").and_then(|table| table.as_table_mut());
    let interconnect = interconnect.context("cluster.toml has no [interconnect]")?;
    interconnect.insert("encrypt".into(), if sealed { "always" } else { "never" }.into());
    let nodes = config.get_mut("node").and_then(|nodes| nodes.as_array_mut());
    for (side, node) in nodes.context("cluster.toml has no nodes")?.iter_mut().enumerate() {
        let node = node.as_table_mut().context("cluster.toml has strange nodes")?;
        node.insert("cores".into(), vec![cpus[side] as i64].into());
        // Ports of our own: the cluster may not be the only one here.
        let port = 20_000 + std::process::id() % 10_000 * 2 + side as u32;
        node.insert("address".into(), format!("{}:{port}", place.hosts()[side]).into());
    }
    Ok(fs::write(path, config.to_string())?)
}

/// Starts the nodes, which end with this process, and waits until they serve.
fn started(plexus: &FilePath, dir: &FilePath, place: &Place<'_>) -> Result<Vec<Ended>> {
    let mut nodes = Vec::new();
    for (name, namespace) in ["n1", "n2"].into_iter().zip(place.namespaces()) {
        let mut node = Command::new(plexus);
        node.arg("node").arg(dir).arg(name).args(["--lifeline", "0"]).stdin(Stdio::piped());
        if namespace != "-" {
            node.args(["--network-namespace", &namespace]);
        }
        let log = File::create(dir.join(format!("{name}.out")))?;
        nodes.push(Ended(node.stdout(Stdio::null()).stderr(log).spawn()?));
    }
    let started = Instant::now();
    loop {
        let mut status = Command::new(plexus);
        let text = output_within(status.arg("status").arg(dir).arg("--json"), TIMEOUT).unwrap_or_default();
        let json: Value = serde_json::from_str(&text).unwrap_or_default();
        let states = json["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
        if states.len() == 2 && states.iter().all(|node| node["state"] == "running") {
            return Ok(nodes);
        }
        for (name, node) in ["n1", "n2"].into_iter().zip(&mut nodes) {
            let said = fs::read_to_string(dir.join(format!("{name}.out"))).unwrap_or_default();
            ensure!(node.0.try_wait()?.is_none(), "{name} ended: {}", said.trim());
        }
        ensure!(started.elapsed() < CONNECTED_WITHIN, "two nodes do not find each other: {text}");
        thread::sleep(Duration::from_millis(10));
    }
}
