//! Our own side: two nodes and `plexus perf` between them, and the benchmark of the bare rails.

use std::{
    path::{Path as FilePath, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use toml::Table;

use super::{
    peers::{BLOCK, Ended},
    place::Place,
    work::{Path, What, Who, Work},
};
use crate::command;

/// How long two nodes may take to find each other.
const PATIENCE: Duration = Duration::from_secs(20);

/// Seconds for each size.
const SECONDS: &str = "0.4";

/// Our programs.
pub(super) struct Ours {
    plexus: PathBuf,
    rails: PathBuf,
    cpus: [usize; 2],
}

impl Ours {
    /// Builds them.
    ///
    /// # Errors
    /// They do not build.
    pub(super) fn build(root: &FilePath, cpus: [usize; 2]) -> Result<Self> {
        let built = |arguments: &[&str], name: &str| {
            let mut cargo = command::cargo(root);
            cargo.args(arguments).args(["--message-format", "json-render-diagnostics"]);
            let messages = command::output(&mut cargo)?;
            let found = messages
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok())
                .filter(|message| message["target"]["name"] == name)
                .find_map(|message| message["executable"].as_str().map(PathBuf::from));
            found.with_context(|| format!("cargo built no `{name}`"))
        };
        Ok(Self {
            plexus: built(&["build", "--release", "--package", "plexus", "--bin", "plexus"], "plexus")?,
            rails: built(&["bench", "--package", "plexus-fabric", "--bench", "rails", "--no-run"], "rails")?,
            cpus,
        })
    }

    /// Has `who` of us do `works`, which are alike but for their size.
    ///
    /// # Errors
    /// The program failed, or printed something else than it does.
    pub(super) fn measure(&self, who: Who, works: &[Work], place: &Place) -> Result<Vec<(Work, f64)>> {
        match who {
            Who::Plexus => self.perf(works, place, false),
            Who::PlexusSealed => self.perf(works, place, true),
            Who::PlexusRail => self.rail(works, "shm"),
            Who::Machine => self.rail(works, "copy"),
            _ => bail!("{} is a peer", who.name()),
        }
    }

    /// Starts two nodes, measures between them, and takes them down.
    fn perf(&self, works: &[Work], place: &Place, sealed: bool) -> Result<Vec<(Work, f64)>> {
        let Some(first) = works.first() else { return Ok(Vec::new()) };
        let folder = tempfile::tempdir()?;
        let dir = folder.path().join("pair");
        let mut init = Command::new(&self.plexus);
        init.arg("init").arg(&dir).args(["--nodes", "2", "--size-mib", "8", "--cache-mib", "4"]);
        let rail = if place.path == Path::Shm { "shm" } else { "tcp" };
        command::output(init.args(["--rails", rail, "--waiting", "event"]))?;
        self.configure(&dir.join("cluster.toml"), place, sealed)?;
        let _nodes = self.start(&dir, place)?;

        let latency = matches!(first.what, What::Message | What::RoundTrip | What::Asleep);
        let mut perf = Command::new(&self.plexus);
        perf.arg("perf").arg(&dir).args(["n1", "n2", "--seconds", SECONDS, "--json"]);
        perf.args(["--test", if latency { "latency" } else { "bandwidth" }]);
        perf.args(["--op", if first.what == What::PutStream { "put" } else { "send" }]);
        perf.args(["--wait", if first.what == What::Asleep { "event" } else { "polling" }]);
        let depth = if first.what == What::Rate { "64" } else { "16" };
        let sizes: Vec<String> = works.iter().map(|work| work.bytes.to_string()).collect();
        let text = command::output(perf.args(["--depth", depth, "--sizes", &sizes.join(",")]))?;
        let json: Value = serde_json::from_str(&text).context("plexus perf printed no JSON")?;
        let rows = json["perf"].as_array().context("plexus perf printed no list `perf`")?;
        let value = |work: &Work| {
            let row = rows.iter().find(|row| row["bytes"] == work.bytes);
            let row = row.with_context(|| format!("plexus perf printed no row for {work}"))?;
            let value = match work.what {
                What::Asleep => row["round_trip_us"]["p50"].as_f64().map(|us| us * 1000.0),
                _ if latency => row["latency_us"]["p50"].as_f64().map(|us| work.of_one_way(us * 1000.0)),
                _ => row["messages_per_s"].as_f64().map(|rate| work.of_rate(rate)),
            };
            Ok((*work, value.with_context(|| format!("plexus perf printed no result for {work}"))?))
        };
        works.iter().map(value).collect()
    }

    /// Puts the two nodes on their cores, and at the ends of the path.
    fn configure(&self, path: &FilePath, place: &Place, sealed: bool) -> Result<()> {
        let mut config: Table = std::fs::read_to_string(path)?.parse()?;
        let interconnect = config.get_mut("interconnect").and_then(|table| table.as_table_mut());
        let interconnect = interconnect.context("cluster.toml has no [interconnect]")?;
        interconnect.insert("encrypt".into(), if sealed { "always" } else { "never" }.into());
        let nodes = config.get_mut("node").and_then(|nodes| nodes.as_array_mut());
        for (side, node) in nodes.context("cluster.toml has no nodes")?.iter_mut().enumerate() {
            let node = node.as_table_mut().context("cluster.toml has strange nodes")?;
            node.insert("cores".into(), vec![self.cpus[side] as i64].into());
            // Ports of our own: the cluster may not be the only one here.
            let port = 20_000 + std::process::id() % 10_000 * 2 + side as u32;
            node.insert("address".into(), format!("{}:{port}", place.hosts()[side]).into());
        }
        Ok(std::fs::write(path, config.to_string())?)
    }

    /// Starts the nodes, which end with this process, and waits until they serve.
    fn start(&self, dir: &FilePath, place: &Place) -> Result<Vec<Ended>> {
        let mut nodes = Vec::new();
        for (name, namespace) in ["n1", "n2"].into_iter().zip(place.namespaces()) {
            let mut node = Command::new(&self.plexus);
            node.arg("node").arg(dir).arg(name).args(["--lifeline", "0"]).stdin(Stdio::piped());
            if namespace != "-" {
                node.args(["--network-namespace", &namespace]);
            }
            let log = std::fs::File::create(dir.join(format!("{name}.out")))?;
            nodes.push(Ended(node.stdout(Stdio::null()).stderr(log).spawn()?));
        }
        let started = Instant::now();
        loop {
            let mut status = Command::new(&self.plexus);
            let text = command::output(status.arg("status").arg(dir).arg("--json")).unwrap_or_default();
            let json: Value = serde_json::from_str(&text).unwrap_or_default();
            let states = json["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
            if states.len() == 2 && states.iter().all(|node| node["state"] == "running") {
                return Ok(nodes);
            }
            for (name, node) in ["n1", "n2"].into_iter().zip(&mut nodes) {
                let said = std::fs::read_to_string(dir.join(format!("{name}.out"))).unwrap_or_default();
                ensure!(node.0.try_wait()?.is_none(), "{name} ended: {}", said.trim());
            }
            ensure!(started.elapsed() < PATIENCE, "two nodes do not find each other: {text}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs the benchmark of the rails for the figures of these works whose names begin with `prefix`.
    fn rail(&self, works: &[Work], prefix: &str) -> Result<Vec<(Work, f64)>> {
        let figure = |work: &Work| match (work.what, work.bytes) {
            (What::Block, BLOCK) if prefix == "copy" => Ok("copy_16k"),
            (What::Block, BLOCK) => Ok("shm_put_16k"),
            (What::Put, 8) => Ok("shm_write_8"),
            _ => bail!("the benchmark of the rails does not measure {work}"),
        };
        let names = works.iter().map(figure).collect::<Result<Vec<_>>>()?;
        let mut bench = Command::new(&self.rails);
        let text = command::output(bench.args(["--bench", "--json", "--repeats=5"]).args(&names))?;
        let json: Value =
            serde_json::from_str(&text).context("the benchmark of the rails printed no JSON")?;
        let figures = json["figures"].as_array().context("the benchmark's JSON has no list `figures`")?;
        let value = |(work, name): (&Work, &str)| {
            let found = figures.iter().find(|figure| figure["name"] == name);
            let ns = found.and_then(|figure| figure["median_ns"].as_f64());
            Ok((*work, ns.with_context(|| format!("the benchmark of the rails has no figure {name}"))?))
        };
        works.iter().zip(names).map(value).collect()
    }
}
