//! Measures Plexus: `plexus perf` between two nodes, the bare rails, and waiting nodes.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{
    endpoints::Endpoints,
    nodes::Nodes,
    peers::TIMEOUT,
    round::Step,
    rows::BLOCK,
    samples::Reading,
    work::{Contender, Operation, Transport, Work},
};
use crate::command::{built, built_program, list_within, number};

/// The Plexus programs to measure.
pub(super) struct PlexusPrograms {
    plexus: PathBuf,
    rails: PathBuf,
    waiting: PathBuf,
    cpus: [usize; 2],
}

impl PlexusPrograms {
    /// Builds the programs in release mode.
    ///
    /// # Errors
    /// They do not build.
    pub(super) fn build(root: &Path, cpus: [usize; 2]) -> Result<Self> {
        let bench =
            |package, name| built(root, &["bench", "--package", package, "--bench", name, "--no-run"], name);
        Ok(Self {
            plexus: built_program(root, "plexus", "plexus")?,
            rails: bench("plexus-ofi", "rails")?,
            waiting: bench("plexus-interconnect", "waiting")?,
            cpus,
        })
    }

    /// Measures `works`, which differ only in size; may return readings of other contenders too.
    ///
    /// # Errors
    /// The program fails or its output is malformed.
    pub(super) fn measure(
        &self,
        (contender, works): &Step,
        endpoints: &Endpoints<'_>,
    ) -> Result<Vec<Reading>> {
        let each = |measure: &dyn Fn(Work) -> Result<Vec<Reading>>| {
            let readings: Vec<_> = works.iter().map(|work| measure(*work)).collect::<Result<Vec<_>>>()?;
            Ok(readings.concat())
        };
        let nodes = |sealed| Nodes::start(&self.plexus, self.cpus, endpoints, sealed);
        match (*contender, works[0].operation) {
            (Contender::Plexus, Operation::Urgent) => each(&|work| urgent(&nodes(false)?, work)),
            (Contender::Plexus | Contender::PlexusSealed, _) => {
                perf(&nodes(*contender == Contender::PlexusSealed)?, *contender, works)
            }
            (Contender::PlexusRail, _) => each(&|work| self.rail(work)),
            (Contender::Adaptive, _) => each(&|work| self.oversubscribed(work)),
            _ => bail!("{} is not part of Plexus", contender.name()),
        }
    }

    /// Measures the present time of one cache line between the cores, then of a line and its flag.
    ///
    /// # Errors
    /// The benchmark of the rails fails or its output is malformed.
    pub(super) fn lines(&self) -> Result<[Reading; 2]> {
        let figures = figures(&self.rails, &["line", "--repeats=5"])?;
        let line = |name, bytes| {
            let work = Work::new(Transport::Shm, Operation::Line, bytes);
            figure(&figures, name, "median").map(|ns| Reading::new(Contender::Machine, work, ns))
        };
        Ok([line("line", 8)?, line("two_lines", 64)?])
    }

    /// Measures the bare rail in turns with the limit of the machine.
    fn rail(&self, work: Work) -> Result<Vec<Reading>> {
        let (own, limit) = match (work.operation, work.bytes) {
            (Operation::Block, BLOCK) => ("shm_put_16k", Some("copy_16k")),
            (Operation::Put, 8) => ("shm_write_8", None),
            _ => bail!("the benchmark of the rails does not measure {work}"),
        };
        let names: Vec<&str> = ["--repeats=9", own].into_iter().chain(limit).collect();
        let figures = figures(&self.rails, &names)?;
        let value = |name| figure(&figures, name, "median");
        let own_reading = Reading::new(Contender::PlexusRail, work, value(own)?);
        Ok(match limit {
            None => vec![own_reading],
            Some(limit) => vec![
                Reading { ratio: Some(figure(&figures, own, "ratio")?), ..own_reading },
                Reading::new(Contender::Machine, work, value(limit)?),
            ],
        })
    }

    /// Measures more nodes than cores, with two ways of waiting in turns.
    fn oversubscribed(&self, work: Work) -> Result<Vec<Reading>> {
        let prefix = match work.operation {
            Operation::Oversubscribed => "crowd",
            Operation::Idle => "idle",
            _ => bail!("the benchmark of waiting does not measure {work}"),
        };
        let [adaptive, event] = ["adaptive", "event"].map(|waiting| format!("{prefix}_{waiting}"));
        let figures = figures(&self.waiting, &[&event, &adaptive, "--repeats=3"])?;
        let value = |name: &str| figure(&figures, name, "median");
        let ratio = (work.operation == Operation::Oversubscribed)
            .then(|| figure(&figures, &adaptive, "ratio"))
            .transpose()?;
        Ok(vec![
            Reading { ratio, ..Reading::new(Contender::Adaptive, work, value(&adaptive)?) },
            Reading::new(Contender::Sleeping, work, value(&event)?),
        ])
    }
}

/// Runs a benchmark of Plexus and returns its figures.
fn figures(program: &Path, arguments: &[&str]) -> Result<Vec<Value>> {
    let mut bench = Command::new(program);
    list_within(bench.args(["--bench", "--json"]).args(arguments), TIMEOUT, "figures")
}

fn figure(figures: &[Value], name: &str, what: &str) -> Result<f64> {
    let found = figures.iter().find(|figure| figure["name"] == name);
    number(found.with_context(|| format!("the benchmark printed no {name}"))?, what)
}

/// Measures works that differ only in size with `plexus perf`.
fn perf(nodes: &Nodes<'_>, contender: Contender, works: &[Work]) -> Result<Vec<Reading>> {
    let what = works[0].operation;
    let sizes: Vec<String> = works.iter().map(|work| work.bytes.to_string()).collect();
    let op = match what {
        Operation::Put => "write",
        Operation::PutStream => "put",
        _ => "send",
    };
    let test = if what.is_latency() { "latency" } else { "bandwidth" };
    let wait = if what == Operation::Asleep { "event" } else { "polling" };
    let depth = if what == Operation::Rate { 64 } else { 16 };
    let sizes = sizes.join(",");
    let rows =
        nodes.perf(&format!("--test {test} --op {op} --wait {wait} --depth {depth} --sizes {sizes}"))?;
    let value = |work: &Work| {
        let row = rows.iter().find(|row| row["bytes"] == work.bytes);
        let row = row.with_context(|| format!("plexus perf printed no row for {work}"))?;
        let value = match work.operation {
            Operation::Asleep => number(row, "round_trip_us/p50")? * 1e3,
            _ if what.is_latency() => work.value(number(row, "latency_us/p50")? * 1e3),
            _ => work.value(number(row, "messages_per_s")?),
        };
        Ok(Reading::new(contender, *work, value))
    };
    works.iter().map(value).collect()
}

/// Measures urgent messages between two nodes on an idle link and on one full of bulk.
fn urgent(nodes: &Nodes<'_>, work: Work) -> Result<Vec<Reading>> {
    let polling = |arguments: &str| -> Result<Value> {
        let rows = nodes.perf(&format!("--op send --wait polling {arguments}"))?;
        rows.into_iter().next().context("plexus perf printed no row")
    };
    let latency = |load: &str| -> Result<f64> {
        let row = polling(&format!("--test latency --sizes {}{load}", work.bytes))?;
        Ok(number(&row, "round_trip_us/p99")? * 1e3)
    };
    let (idle, loaded) = (latency("")?, latency(&format!(" --load max --load-size {BLOCK}"))?);
    let chunk = polling(&format!("--test bandwidth --depth 16 --sizes {BLOCK}"))?;
    let with_chunk = idle + 1e9 / number(&chunk, "messages_per_s")?;
    let limit = if work.transport == Transport::Shm { with_chunk } else { idle };
    Ok(vec![
        Reading { ratio: Some(loaded / limit), ..Reading::new(Contender::Plexus, work, loaded) },
        Reading::new(Contender::IdleLink, work, idle),
        Reading::new(Contender::IdleLinkAndChunk, work, with_chunk),
    ])
}
