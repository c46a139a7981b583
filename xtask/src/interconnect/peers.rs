//! The peers: starts each of them and reads its results.
//!
//! Each measurement is between two pinned processes or threads that poll, unless its work says
//! otherwise.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    endpoints::Endpoints,
    round::Step,
    samples::Reading,
    work::{Contender, Operation, Transport, Work},
};
use crate::{
    command::{self, CapturedOutput, ChildGuard, output_within},
    compare::ports::free_ports,
};

/// The time limit of one program.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// The peers that are installed on this machine.
pub(super) struct Peers {
    programs: TempDir,
    cpus: [String; 2],
    /// The missing peers, each with the reason.
    absent: Vec<(Contender, String)>,
}

impl Peers {
    /// Builds the small peer programs from `sources` and looks for the installed ones.
    ///
    /// # Errors
    /// There is no C compiler, or a program does not compile.
    pub(super) fn build(sources: &Path, cpus: [usize; 2]) -> Result<Self> {
        let programs = tempfile::tempdir()?;
        let mut peers = Self { programs, cpus: cpus.map(|cpu| cpu.to_string()), absent: Vec::new() };
        for name in ["asleep", "tcp"] {
            peers.compile("cc", sources, name, &[])?;
        }
        let mut has = |contender, programs: &[(&str, &str)]| {
            let missing = command::not_installed(programs);
            let is_here = missing.is_empty();
            peers.absent.extend((!is_here).then(|| (contender, missing.join("; "))));
            is_here
        };
        has(Contender::Ucx, &[("ucx_perftest", "ucx-utils")]);
        has(Contender::Iperf, &[("iperf3", "iperf3")]);
        has(Contender::OfiMsg, &[("fi_pingpong", "libfabric-bin")]);
        let mpi = has(Contender::Mpi, &[("mpicc", "libopenmpi-dev"), ("mpirun", "openmpi-bin")]);
        let ofi = has(Contender::Ofi, &[("/usr/include/rdma/fabric.h", "libfabric-dev")]);
        if mpi {
            peers.compile("mpicc", sources, "mpi", &[])?;
        }
        if ofi {
            peers.compile("cc", sources, "ofi", &["-lfabric"])?;
        }
        Ok(peers)
    }

    fn compile(&self, compiler: &str, sources: &Path, name: &str, flags: &[&str]) -> Result<()> {
        let mut command = Command::new(compiler);
        command.args(["-O2", "-o"]).arg(self.program(name));
        command::run(command.arg(sources.join(format!("{name}.c"))).args(flags))
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs.path().join(name)
    }

    /// Measures `works`, which differ only in size.
    ///
    /// # Errors
    /// The peer is not installed, fails, or its output is malformed.
    pub(super) fn measure(
        &self,
        (contender, works): &Step,
        endpoints: &Endpoints<'_>,
    ) -> Result<Vec<Reading>> {
        if let Some((_, why)) = self.absent.iter().find(|(absent, _)| absent == contender) {
            bail!("{why}; `cargo xtask bench interconnect --install` installs it");
        }
        let each = |measure: &dyn Fn(Work) -> Result<f64>| -> Result<Vec<(Work, f64)>> {
            works.iter().map(|work| Ok((*work, measure(*work)?))).collect()
        };
        let values = match contender {
            Contender::Ucx => each(&|work| self.ucx(work, endpoints)),
            Contender::OfiMsg => each(&|work| self.fi_pingpong(work, endpoints)),
            Contender::Iperf => each(&|_| self.iperf(endpoints)),
            Contender::Mpi => {
                let mut command = Command::new("mpirun");
                if rustix::process::geteuid().is_root() {
                    command.arg("--allow-run-as-root");
                }
                // The program pins itself; `vader` is the shared-memory transport of Open MPI 4.
                let options = "-np 2 --oversubscribe --bind-to none --mca pml ob1 --mca btl vader,self";
                command.args(options.split(' ')).arg(self.program("mpi")).args(&self.cpus);
                self.small(command, works)
            }
            Contender::Ofi => {
                let mut command = Command::new(self.program("ofi"));
                let provider = if endpoints.transport == Transport::Shm { "shm" } else { "tcp;ofi_rxm" };
                command
                    .arg(provider)
                    .args(&self.cpus)
                    .args(endpoints.namespaces())
                    .args(endpoints.addresses());
                self.small(command, works)
            }
            Contender::Sockets => {
                let mut command = Command::new(self.program("tcp"));
                command.args(&self.cpus).args(endpoints.namespaces()).arg(endpoints.hosts()[1]);
                self.small(command, works)
            }
            Contender::Eventfd => {
                let mut asleep = Command::new(self.program("asleep"));
                let text = output_within(asleep.args(&self.cpus), TIMEOUT)?;
                each(&|work| read(&text, "asleep", work.bytes))
            }
            _ => bail!("{} is no peer", contender.name()),
        };
        Ok(values?.into_iter().map(|(work, value)| Reading::new(*contender, work, value)).collect())
    }

    /// Runs a program of `xtask/peers`, which takes `latency:SIZE` and `rate:SIZE`.
    fn small(&self, mut command: Command, works: &[Work]) -> Result<Vec<(Work, f64)>> {
        let what = |work: &Work| if work.operation.is_latency() { "latency" } else { "rate" };
        command.args(works.iter().map(|work| format!("{}:{}", what(work), work.bytes)));
        let text = output_within(&mut command, TIMEOUT)?;
        let value = |work: &Work| Ok((*work, work.value(read(&text, what(work), work.bytes)?)));
        works.iter().map(value).collect()
    }

    /// Returns the best result of UCX over the transports that it could use.
    fn ucx(&self, work: Work, endpoints: &Endpoints<'_>) -> Result<f64> {
        let transports: &[&str] = match endpoints.transport {
            Transport::Shm if work.operation.is_latency() => &["posix,self"],
            // Shared memory or direct copies: UCX does not always choose the faster one.
            Transport::Shm => &["posix,self", "shm,self"],
            _ => &["tcp,self"],
        };
        let values: Vec<f64> = transports
            .iter()
            .map(|transports| self.ucx_by(transports, work, endpoints))
            .collect::<Result<_>>()?;
        let best = if work.operation.unit().less_is_better() { f64::min } else { f64::max };
        values.into_iter().reduce(best).context("no transport")
    }

    fn ucx_by(&self, transports: &str, work: Work, endpoints: &Endpoints<'_>) -> Result<f64> {
        let port = free_ports::<1>()?[0].to_string();
        let perftest = |side: usize| {
            let mut command = endpoints.command(side, "ucx_perftest");
            command.args(["-p", &port, "-c", &self.cpus[side]]);
            command.env("UCX_LOG_LEVEL", "error").env("UCX_TLS", transports);
            if endpoints.transport != Transport::Shm {
                command.env("UCX_NET_DEVICES", endpoints.devices()[side]);
            }
            command
        };
        let test = match work.operation {
            Operation::Message | Operation::RoundTrip => "tag_lat",
            Operation::Put => "ucp_put_lat",
            Operation::Rate | Operation::Stream => "tag_bw",
            _ => bail!("ucx_perftest does not measure {work}"),
        };
        let iterations = match (endpoints.transport, work.bytes, work.operation.is_latency()) {
            (Transport::Shm, ..=4096, true) => 200_000,
            (Transport::Shm, ..=4096, false) => 2_000_000,
            (_, ..=4096, _) => 20_000,
            (_, bytes, _) => (2 << 30) / bytes,
        };
        let (iterations, warm) = (iterations.to_string(), (iterations / 10).to_string());
        let mut client = perftest(0);
        client.args([endpoints.hosts()[1], "-t", test]);
        client.args(["-s", &work.bytes.to_string(), "-n", &iterations, "-w", &warm, "-f", "-v"]);
        with_server(perftest(1), client, |text| {
            // Iterations; median, average and overall latency in us; bandwidths; message rates.
            let fields: Vec<&str> = text.lines().last().unwrap_or_default().split(',').collect();
            let field = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
            let value = if work.operation.is_latency() { field(1).map(|us| us * 1e3) } else { field(7) };
            let value = value.map(|value| work.value(value));
            value.with_context(|| format!("ucx_perftest printed no result: {text}"))
        })
    }

    fn fi_pingpong(&self, work: Work, endpoints: &Endpoints<'_>) -> Result<f64> {
        let (port, size) = (free_ports::<1>()?[0].to_string(), work.bytes.to_string());
        let pingpong = |side: usize| {
            let mut command = endpoints.command(side, "taskset");
            command.args(["-c", &self.cpus[side], "fi_pingpong", "-p", "tcp", "-e", "msg", "-I", "20000"]);
            command.args(["-S", &size, if side == 1 { "-B" } else { "-P" }, &port]);
            command
        };
        let mut client = pingpong(0);
        client.arg(endpoints.hosts()[1]);
        with_server(pingpong(1), client, |text| {
            // Bytes, sent, acknowledged, total, time, MB/s, mean in us, million per second.
            let us = text.lines().last().and_then(|line| line.split_whitespace().nth(6)?.parse::<f64>().ok());
            us.map(|us| work.value(us * 1e3))
                .with_context(|| format!("fi_pingpong printed no result: {text}"))
        })
    }

    fn iperf(&self, endpoints: &Endpoints<'_>) -> Result<f64> {
        let port = free_ports::<1>()?[0].to_string();
        let iperf = |side: usize| {
            let mut command = endpoints.command(side, "iperf3");
            command.args(["--port", &port, "--affinity", &self.cpus[side]]);
            command
        };
        let (mut server, mut client) = (iperf(1), iperf(0));
        server.args(["--server", "--one-off"]);
        client.args(["--client", endpoints.hosts()[1], "--time", "1", "--json"]);
        with_server(server, client, iperf_result)
    }
}

/// Finds the line "WHAT BYTES VALUE" and returns its value.
fn read(text: &str, what: &str, bytes: usize) -> Result<f64> {
    let head = format!("{what} {bytes} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&head)?.trim().parse().ok());
    value.with_context(|| format!("no line `{head}VALUE` in: {text}"))
}

/// Returns the MB/s of the receiver.
///
/// A client that cannot connect reports that in its JSON and exits successfully.
fn iperf_result(text: &str) -> Result<f64> {
    let json: Value = serde_json::from_str(text).context("iperf3 printed no JSON")?;
    let bits = json["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.map(|bits| bits / 8e6).with_context(|| format!("iperf3 printed no result: {}", json["error"]))
}

/// Returns what `result` finds in the output of `client`.
///
/// The server does not report when it listens, so the client is started until it has a result.
fn with_server(
    mut server: Command,
    mut client: Command,
    result: impl Fn(&str) -> Result<f64>,
) -> Result<f64> {
    let log = CapturedOutput::new()?;
    server.stdin(Stdio::null()).stdout(log.stdio()?).stderr(log.stdio()?);
    let mut server = ChildGuard(server.spawn().context("cannot start a server of a peer")?);
    let started = Instant::now();
    loop {
        match output_within(&mut client, TIMEOUT).and_then(|text| result(&text)) {
            Ok(value) => {
                // It ends by itself. If it were killed, its port might stay in use.
                ensure!(command::ends_within(&server.0, TIMEOUT)?, "a server of a peer does not end");
                return Ok(value);
            }
            Err(error) if started.elapsed() > TIMEOUT || server.0.try_wait()?.is_some() => {
                return Err(error.context(format!("output of its server: {}", log.text()?.trim())));
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_found_by_kind_and_size() {
        let text = "latency 8 90.5\nlatency 64 120\nrate 8 1e7\n";
        assert_eq!(read(text, "latency", 64).ok(), Some(120.0));
        assert_eq!(read(text, "rate", 8).ok(), Some(1e7));
        assert!(read(text, "latency", 6).is_err() && read("Segmentation fault", "rate", 8).is_err());
    }
    #[test]
    fn iperf_without_a_connection_has_no_result() {
        let failed = r#"{"start":{"connected":[]},"intervals":[],"end":{},"error":"Connection refused"}"#;
        let why = iperf_result(failed).expect_err("nothing was received").to_string();
        assert!(why.contains("Connection refused"), "{why}");
        let measured = r#"{"end":{"sum_received":{"bits_per_second":8e9}}}"#;
        assert_eq!(iperf_result(measured).ok(), Some(1000.0));
    }

    #[test]
    fn client_is_restarted_until_it_has_a_result_and_server_output_is_reported() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        // Each run appends an x. The third run has the result; then the server ends.
        let client = format!("printf x >> {0}; cat {0}", path("runs"));
        let server = format!("until [ \"$(cat {0} 2>/dev/null)\" = xxx ]; do sleep 0.01; done", path("runs"));
        let result = |text: &str| if text == "xxx" { Ok(3.0) } else { bail!("no result: {text}") };
        assert_eq!(with_server(shell(&server), shell(&client), result).ok(), Some(3.0));
        let dead =
            with_server(shell("echo no device; exit 1"), shell("echo nothing"), |_| bail!("no result"));
        let why = format!("{:#}", dead.expect_err("nothing was measured"));
        assert!(why.contains("no device") && why.contains("no result"), "{why}");
    }
}
