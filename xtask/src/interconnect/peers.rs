//! The peers: how each is started and what it prints.
//!
//! Every measurement is between two pinned processes (or threads) that poll, unless its work says otherwise.

use std::{
    path::{Path as FilePath, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    place::Place,
    samples::Reading,
    work::{Path, What, Who, Work},
};
use crate::{
    command::{self, Ended, Said, output_within},
    compare::ports::free_ports,
};

/// Longest that one program may take.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// The peers that this machine has, ready to be run.
pub(super) struct Peers {
    programs: TempDir,
    cpus: [String; 2],
    /// Peers that are not here, with the reason.
    absent: Vec<(Who, &'static str)>,
}

impl Peers {
    /// Builds the small peer programs from `sources` and looks for the installed ones.
    ///
    /// # Errors
    /// There is no C compiler, or a program does not compile.
    pub(super) fn build(sources: &FilePath, cpus: [usize; 2]) -> Result<Self> {
        let programs = tempfile::tempdir()?;
        let mut peers = Self { programs, cpus: cpus.map(|cpu| cpu.to_string()), absent: Vec::new() };
        for name in ["asleep", "tcp"] {
            peers.compile("cc", sources, name, &[])?;
        }
        let mut lacks = |who, why| peers.absent.push((who, why));
        if !command::found("ucx_perftest") {
            lacks(Who::Ucx, "`ucx_perftest` is not installed (package ucx-utils)");
        }
        if !command::found("iperf3") {
            lacks(Who::Iperf, "`iperf3` is not installed (package iperf3)");
        }
        if !command::found("fi_pingpong") {
            lacks(Who::OfiMsg, "`fi_pingpong` is not installed (package libfabric-bin)");
        }
        let mpi = command::found("mpicc") && command::found("mpirun");
        if !mpi {
            lacks(Who::Mpi, "`mpicc` and `mpirun` are not installed (packages openmpi-bin, libopenmpi-dev)");
        }
        let ofi = FilePath::new("/usr/include/rdma/fabric.h").exists();
        if !ofi {
            lacks(Who::Ofi, "its headers are not installed (package libfabric-dev)");
        }
        if mpi {
            peers.compile("mpicc", sources, "mpi", &[])?;
        }
        if ofi {
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

    /// Has `who` do `works`, which are alike but for their size.
    ///
    /// # Errors
    /// The peer is not here, failed, or printed something else than it does.
    pub(super) fn measure(&self, who: Who, works: &[Work], place: &Place<'_>) -> Result<Vec<Reading>> {
        if let Some((_, why)) = self.absent.iter().find(|(absent, _)| *absent == who) {
            bail!("{why}; `cargo xtask bench interconnect --install` installs it");
        }
        let each = |measure: &dyn Fn(Work) -> Result<f64>| -> Result<Vec<(Work, f64)>> {
            works.iter().map(|work| Ok((*work, measure(*work)?))).collect()
        };
        let values = match who {
            Who::Ucx => each(&|work| self.ucx(work, place)),
            Who::OfiMsg => each(&|work| self.fi_pingpong(work, place)),
            Who::Iperf => each(&|_| self.iperf(place)),
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
                command.args(&self.cpus).args(place.namespaces()).arg(place.hosts()[1]);
                self.small(command, works)
            }
            Who::Eventfd => {
                let mut asleep = Command::new(self.program("asleep"));
                let text = output_within(asleep.args(&self.cpus), TIMEOUT)?;
                each(&|work| read(&text, "asleep", work.bytes))
            }
            _ => bail!("{} is no peer", who.name()),
        };
        Ok(values?.into_iter().map(|(work, value)| Reading::new(who, work, value)).collect())
    }

    /// Runs one of the small programs, which take `latency:SIZE` and `rate:SIZE`.
    fn small(&self, mut command: Command, works: &[Work]) -> Result<Vec<(Work, f64)>> {
        let what = |work: &Work| if work.what.is_latency() { "latency" } else { "rate" };
        command.args(works.iter().map(|work| format!("{}:{}", what(work), work.bytes)));
        let text = output_within(&mut command, TIMEOUT)?;
        let value = |work: &Work| {
            let value = read(&text, what(work), work.bytes)?;
            Ok((*work, if work.what.is_latency() { work.of_one_way(value) } else { work.of_rate(value) }))
        };
        works.iter().map(value).collect()
    }

    /// The best that it does with any of the transports that it could take.
    fn ucx(&self, work: Work, place: &Place<'_>) -> Result<f64> {
        let transports: &[&str] = match place.path {
            Path::Shm if work.what.is_latency() => &["posix,self"],
            // Through memory of both, or from process to process at once: it does not always choose the better one.
            Path::Shm => &["posix,self", "shm,self"],
            _ => &["tcp,self"],
        };
        let values: Vec<f64> = transports
            .iter()
            .map(|transports| self.ucx_by(transports, work, place))
            .collect::<Result<_>>()?;
        let best = if work.what.unit().less_is_better() { f64::min } else { f64::max };
        values.into_iter().reduce(best).context("no transport")
    }

    fn ucx_by(&self, transports: &str, work: Work, place: &Place<'_>) -> Result<f64> {
        let port = port()?;
        let perftest = |side: usize| {
            let mut command = place.command(side, "ucx_perftest");
            command.args(["-p", &port, "-c", &self.cpus[side]]);
            command.env("UCX_LOG_LEVEL", "error").env("UCX_TLS", transports);
            if place.path != Path::Shm {
                command.env("UCX_NET_DEVICES", place.devices()[side]);
            }
            command
        };
        let test = match work.what {
            What::Message | What::RoundTrip => "tag_lat",
            What::Put => "ucp_put_lat",
            What::Rate | What::Stream => "tag_bw",
            _ => bail!("ucx_perftest does not measure {work}"),
        };
        let iterations = match (place.path, work.bytes, work.what.is_latency()) {
            (Path::Shm, ..=4096, true) => 200_000,
            (Path::Shm, ..=4096, false) => 2_000_000,
            (_, ..=4096, _) => 20_000,
            (_, bytes, _) => (2 << 30) / bytes,
        };
        let (iterations, warm) = (iterations.to_string(), (iterations / 10).to_string());
        let mut client = perftest(0);
        client.args([place.hosts()[1], "-t", test]);
        client.args(["-s", &work.bytes.to_string(), "-n", &iterations, "-w", &warm, "-f", "-v"]);
        with_server(perftest(1), client, |text| {
            // iterations, median, average, overall; bandwidths; message rates; microseconds.
            let fields: Vec<&str> = text.lines().last().unwrap_or_default().split(',').collect();
            let field = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
            let value = if work.what.is_latency() {
                field(1).map(|us| work.of_one_way(us * 1000.0))
            } else {
                field(7).map(|rate| work.of_rate(rate))
            };
            value.with_context(|| format!("ucx_perftest printed no result: {text}"))
        })
    }

    fn fi_pingpong(&self, work: Work, place: &Place<'_>) -> Result<f64> {
        let (port, size) = (port()?, work.bytes.to_string());
        let pingpong = |side: usize| {
            let mut command = place.command(side, "taskset");
            command.args(["-c", &self.cpus[side], "fi_pingpong", "-p", "tcp", "-e", "msg", "-I", "20000"]);
            command.args(["-S", &size, if side == 1 { "-B" } else { "-P" }, &port]);
            command
        };
        let mut client = pingpong(0);
        client.arg(place.hosts()[1]);
        with_server(pingpong(1), client, |text| {
            // bytes, sent, acknowledged, total, time, MB/s, microseconds (their mean), millions a second.
            let us = text.lines().last().and_then(|line| line.split_whitespace().nth(6)?.parse::<f64>().ok());
            us.map(|us| work.of_one_way(us * 1000.0))
                .with_context(|| format!("fi_pingpong printed no result: {text}"))
        })
    }

    fn iperf(&self, place: &Place<'_>) -> Result<f64> {
        let port = port()?;
        let iperf = |side: usize| {
            let mut command = place.command(side, "iperf3");
            command.args(["--port", &port, "--affinity", &self.cpus[side]]);
            command
        };
        let (mut server, mut client) = (iperf(1), iperf(0));
        server.args(["--server", "--one-off"]);
        client.args(["--client", place.hosts()[1], "--time", "1", "--json"]);
        with_server(server, client, iperf_result)
    }
}

/// Reads a line "WHAT BYTES VALUE".
fn read(text: &str, what: &str, bytes: usize) -> Result<f64> {
    let head = format!("{what} {bytes} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&head)?.trim().parse().ok());
    value.with_context(|| format!("no line `{head}VALUE` in: {text}"))
}

/// A free port, as programs take it.
fn port() -> Result<String> {
    let [port] = free_ports()?;
    Ok(port.to_string())
}

/// Megabytes a second that the receiver got. A client that could not connect says so in its JSON, and ends well.
fn iperf_result(text: &str) -> Result<f64> {
    let json: Value = serde_json::from_str(text).context("iperf3 printed no JSON")?;
    let bits = json["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.map(|bits| bits / 8e6).with_context(|| format!("iperf3 printed no result: {}", json["error"]))
}

/// What `result` finds in what `client` prints. The server says nowhere that it listens: the client knocks until it
/// has a result.
fn with_server(
    mut server: Command,
    mut client: Command,
    result: impl Fn(&str) -> Result<f64>,
) -> Result<f64> {
    let said = Said::new()?;
    server.stdin(Stdio::null()).stdout(said.stdio()?).stderr(said.stdio()?);
    let mut server = Ended(server.spawn().context("cannot start a server of a peer")?);
    let started = Instant::now();
    loop {
        match output_within(&mut client, TIMEOUT).and_then(|text| result(&text)) {
            Ok(value) => {
                // It ends by itself; were it killed before, the next one might find its port taken.
                ensure!(command::ends_within(&server.0, TIMEOUT)?, "a server of a peer does not end");
                return Ok(value);
            }
            Err(error) if started.elapsed() > TIMEOUT || server.0.try_wait()?.is_some() => {
                return Err(error.context(format!("its server said: {}", said.text()?.trim())));
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
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
    #[test]
    fn an_iperf_that_ended_well_without_a_connection_has_no_result() {
        let failed = r#"{"start":{"connected":[]},"intervals":[],"end":{},"error":"Connection refused"}"#;
        let why = iperf_result(failed).expect_err("nothing was received").to_string();
        assert!(why.contains("Connection refused"), "{why}");
        let measured = r#"{"end":{"sum_received":{"bits_per_second":8e9}}}"#;
        assert_eq!(iperf_result(measured).ok(), Some(1000.0));
    }

    #[test]
    fn a_client_without_a_result_knocks_again_and_the_server_is_heard() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        // Each call says one more x; the third has its result. The server ends when that is there.
        let client = format!("printf x >> {0}; cat {0}", path("knocks"));
        let server =
            format!("until [ \"$(cat {0} 2>/dev/null)\" = xxx ]; do sleep 0.01; done", path("knocks"));
        let result = |text: &str| if text == "xxx" { Ok(3.0) } else { bail!("no result: {text}") };
        assert_eq!(with_server(shell(&server), shell(&client), result).ok(), Some(3.0));
        let dead =
            with_server(shell("echo no device; exit 1"), shell("echo nothing"), |_| bail!("no result"));
        let why = format!("{:#}", dead.expect_err("nothing was measured"));
        assert!(why.contains("no device") && why.contains("no result"), "{why}");
    }
}
