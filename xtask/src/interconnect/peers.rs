//! The peers: how each is started and what it prints.
//!
//! Every measurement is between two pinned processes (or threads) that poll, unless its work says otherwise.

use std::{
    net::TcpListener,
    path::{Path as FilePath, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    place::Place,
    work::{Path, What, Who, Work},
};
use crate::command;

/// Longest that one measurement may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The block of which copies are measured.
pub(super) const BLOCK: usize = 16 << 10;

/// What the machine itself does at this moment, in nanoseconds.
pub(super) struct Limit {
    /// A cache line from one core to the other; then two, of which one is the flag.
    pub line: [f64; 2],
    /// Copying a block that the other core read last.
    pub copy: f64,
}

/// The peers that this machine has, ready to be run.
pub(super) struct Peers {
    programs: TempDir,
    cpus: [String; 2],
    /// Peers that are not here, with the reason.
    pub absent: Vec<(Who, String)>,
}

impl Peers {
    /// Builds the small peer programs from `sources` and looks for the installed ones.
    ///
    /// # Errors
    /// There is no C compiler, or a program does not compile.
    pub(super) fn build(sources: &FilePath, cpus: [usize; 2]) -> Result<Self> {
        let programs = tempfile::tempdir()?;
        let mut peers = Self { programs, cpus: cpus.map(|cpu| cpu.to_string()), absent: Vec::new() };
        for name in ["limit", "asleep", "tcp"] {
            peers.compile("cc", sources, name, &["-pthread"])?;
        }
        let mut lacks = |who, why: &str| peers.absent.push((who, why.to_owned()));
        if !command::found("ucx_perftest") {
            lacks(Who::Ucx, "`ucx_perftest` is not installed (package ucx-utils)");
        }
        if !command::found("iperf3") {
            lacks(Who::Iperf, "`iperf3` is not installed (package iperf3)");
        }
        if !command::found("fi_pingpong") {
            lacks(Who::OfiMsg, "`fi_pingpong` is not installed (package libfabric-bin)");
        }
        if !command::found("mpicc") || !command::found("mpirun") {
            lacks(Who::Mpi, "`mpicc` and `mpirun` are not installed (packages openmpi-bin, libopenmpi-dev)");
        } else {
            peers.compile("mpicc", sources, "mpi", &[])?;
        }
        if !FilePath::new("/usr/include/rdma/fabric.h").exists() {
            peers.absent.push((Who::Ofi, "its headers are not installed (package libfabric-dev)".into()));
        } else {
            peers.compile("cc", sources, "ofi", &["-lfabric"])?;
        }
        Ok(peers)
    }

    fn compile(&self, compiler: &str, sources: &FilePath, name: &str, flags: &[&str]) -> Result<()> {
        let mut command = Command::new(compiler);
        command.args(["-O2", "-o"]).arg(self.program(name));
        command::run(command.arg(sources.join(format!("{name}.c"))).args(flags))
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs.path().join(name)
    }

    /// Measures the machine itself.
    ///
    /// # Errors
    /// The program failed.
    pub(super) fn limit(&self) -> Result<Limit> {
        let mut limit = Command::new(self.program("limit"));
        let text = command::output(limit.args(&self.cpus).arg(BLOCK.to_string()))?;
        let value = |what, bytes| read(&text, what, bytes);
        Ok(Limit { line: [value("line", 8)?, value("line", 64)?], copy: value("copy", BLOCK)? })
    }

    /// Has `who` do `works`, which are alike but for their size.
    ///
    /// # Errors
    /// The program failed, or printed something else than it does.
    pub(super) fn measure(&self, who: Who, works: &[Work], place: &Place) -> Result<Vec<(Work, f64)>> {
        match who {
            Who::Ucx => works.iter().map(|work| Ok((*work, self.ucx(*work, place)?))).collect(),
            Who::OfiMsg => works.iter().map(|work| Ok((*work, self.fi_pingpong(*work, place)?))).collect(),
            Who::Iperf => works.iter().map(|work| Ok((*work, self.iperf(place)?))).collect(),
            Who::Mpi => {
                let mut command = Command::new("mpirun");
                if rustix::process::geteuid().is_root() {
                    command.arg("--allow-run-as-root");
                }
                // The program pins itself; `vader` is the shared-memory transport of this generation of Open MPI.
                command.args(["-np", "2", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1"]);
                command.args(["--mca", "btl", "vader,self"]).arg(self.program("mpi")).args(&self.cpus);
                self.small(command, works)
            }
            Who::Ofi => {
                let mut command = Command::new(self.program("ofi"));
                let provider = if place.path == Path::Shm { "shm" } else { "tcp;ofi_rxm" };
                command.arg(provider).args(&self.cpus).args(place.namespaces()).args(place.addresses());
                self.small(command, works)
            }
            Who::Sockets => {
                let mut command = Command::new(self.program("tcp"));
                command.arg("poll").args(&self.cpus).args(place.namespaces()).arg(place.hosts()[1]);
                self.small(command, works)
            }
            Who::Eventfd => {
                let text = command::output(Command::new(self.program("asleep")).args(&self.cpus))?;
                works.iter().map(|work| Ok((*work, read(&text, "asleep", work.bytes)?))).collect()
            }
            _ => bail!("{} is no peer", who.name()),
        }
    }

    /// Runs one of the small programs, which take `latency:SIZE` and `rate:SIZE`.
    fn small(&self, mut command: Command, works: &[Work]) -> Result<Vec<(Work, f64)>> {
        let what = |work: &Work| if is_latency(work.what) { "latency" } else { "rate" };
        command.args(works.iter().map(|work| format!("{}:{}", what(work), work.bytes)));
        let text = command::output(&mut command)?;
        let value = |work: &Work| {
            let value = read(&text, what(work), work.bytes)?;
            Ok((*work, if is_latency(work.what) { work.of_one_way(value) } else { work.of_rate(value) }))
        };
        works.iter().map(value).collect()
    }

    fn ucx(&self, work: Work, place: &Place) -> Result<f64> {
        let port = free_port()?;
        let perftest = |side: usize| {
            let mut command = place.command(side, "ucx_perftest");
            command.args(["-p", &port, "-c", &self.cpus[side]]).env("UCX_LOG_LEVEL", "fatal");
            match place.path {
                Path::Shm => command.env("UCX_TLS", "posix,self"),
                _ => command.env("UCX_TLS", "tcp,self").env("UCX_NET_DEVICES", place.devices()[side]),
            };
            command
        };
        let test = match work.what {
            What::Message | What::RoundTrip => "tag_lat",
            What::Put => "ucp_put_lat",
            What::Rate | What::Stream => "tag_bw",
            _ => bail!("ucx_perftest does not measure {work}"),
        };
        let iterations = match (place.path, work.bytes, is_latency(work.what)) {
            (Path::Shm, ..=4096, true) => 200_000,
            (Path::Shm, ..=4096, false) => 2_000_000,
            (_, ..=4096, _) => 20_000,
            (_, bytes, _) => (2 << 30) / bytes,
        };
        let (iterations, warm) = (iterations.to_string(), (iterations / 10).to_string());
        let mut client = perftest(0);
        client.args([place.hosts()[1], "-t", test]);
        client.args(["-s", &work.bytes.to_string(), "-n", &iterations, "-w", &warm, "-f", "-v"]);
        let text = with_server(perftest(1), client)?;
        // iterations, median, average, overall; bandwidths; message rates; microseconds.
        let fields: Vec<&str> = text.lines().last().unwrap_or_default().split(',').collect();
        let field = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
        let value = if is_latency(work.what) {
            field(1).map(|us| work.of_one_way(us * 1000.0))
        } else {
            field(7).map(|rate| work.of_rate(rate))
        };
        value.with_context(|| format!("ucx_perftest printed no result: {text}"))
    }

    fn fi_pingpong(&self, work: Work, place: &Place) -> Result<f64> {
        let (port, size) = (free_port()?, work.bytes.to_string());
        let pingpong = |side: usize| {
            let mut command = place.command(side, "taskset");
            command.args(["-c", &self.cpus[side], "fi_pingpong", "-p", "tcp", "-e", "msg", "-I", "20000"]);
            command.args(["-S", &size, if side == 1 { "-B" } else { "-P" }, &port]);
            command
        };
        let mut client = pingpong(0);
        client.arg(place.hosts()[1]);
        let text = with_server(pingpong(1), client)?;
        // bytes, sent, acknowledged, total, time, MB/s, microseconds, millions a second.
        let us = text.lines().last().and_then(|line| line.split_whitespace().nth(6)?.parse::<f64>().ok());
        us.map(|us| work.of_one_way(us * 1000.0))
            .with_context(|| format!("fi_pingpong printed no result: {text}"))
    }

    fn iperf(&self, place: &Place) -> Result<f64> {
        let port = free_port()?;
        let iperf = |side: usize| {
            let mut command = place.command(side, "iperf3");
            command.args(["--port", &port, "--affinity", &self.cpus[side]]);
            command
        };
        let (mut server, mut client) = (iperf(1), iperf(0));
        server.args(["--server", "--one-off"]);
        client.args(["--client", place.hosts()[1], "--time", "1", "--json"]);
        let text = with_server(server, client)?;
        let json: Value = serde_json::from_str(&text).context("iperf3 printed no JSON")?;
        let bits = json["end"]["sum_received"]["bits_per_second"].as_f64();
        bits.map(|bits| bits / 8e6).context("iperf3 printed no result")
    }
}

fn is_latency(what: What) -> bool {
    matches!(what, What::Message | What::RoundTrip | What::Put)
}

/// Reads a line "WHAT BYTES VALUE".
fn read(text: &str, what: &str, bytes: usize) -> Result<f64> {
    let head = format!("{what} {bytes} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&head)?.trim().parse().ok());
    value.with_context(|| format!("no line `{head}VALUE` in: {text}"))
}

fn free_port() -> Result<String> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port().to_string())
}

/// What `client` prints. The server says nowhere that it listens: the client knocks until it does.
fn with_server(mut server: Command, mut client: Command) -> Result<String> {
    let mut server = Ended(server.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let started = Instant::now();
    loop {
        match command::output(&mut client) {
            Ok(text) => {
                // It ends by itself; were it killed before, the next one might find its port taken.
                while server.0.try_wait()?.is_none() {
                    ensure!(started.elapsed() < PATIENCE, "a server of a peer does not end");
                    thread::sleep(Duration::from_millis(2));
                }
                return Ok(text);
            }
            Err(error) if started.elapsed() > PATIENCE || server.0.try_wait()?.is_some() => {
                return Err(error);
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// A child that does not outlive its owner.
pub(super) struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It has ended by itself unless something failed; then there is nothing to learn from it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_what_and_size() {
        let text = "latency 8 90.5\nlatency 64 120\nrate 8 1e7\n";
        assert_eq!(read(text, "latency", 64).ok(), Some(120.0));
        assert_eq!(read(text, "rate", 8).ok(), Some(1e7));
        assert!(read(text, "latency", 6).is_err() && read("Segmentation fault", "rate", 8).is_err());
    }
}
