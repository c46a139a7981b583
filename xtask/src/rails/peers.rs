//! The peers: what each measures, how it is started, and what it prints.
//!
//! Every measurement is one way between two pinned processes (or threads) that poll, in nanoseconds, unless its
//! name says otherwise.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::table::{SOCKETS, Work};
use crate::command;

/// Message sizes that are compared, in bytes.
pub(super) const SIZES: [usize; 3] = [8, 64, 16 * 1024];

/// Longest that one measurement may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// One result of one peer.
pub(super) struct Measured {
    /// Who did it.
    pub who: &'static str,
    /// What was done.
    pub work: Work,
    /// How long it took.
    pub ns: f64,
}

/// One program to run, and what it then has measured.
pub(crate) type Measurement<'a> = Box<dyn Fn() -> Result<Vec<Measured>> + 'a>;

/// What the machine itself does at this moment.
pub(super) struct Limit {
    /// A cache line from one core to the other.
    pub line_ns: f64,
    /// Copying a 16 KiB block that the other core read last.
    pub copy_ns: f64,
}

/// The peers that this machine has, ready to be run.
pub(super) struct Peers {
    folder: TempDir,
    cpus: [usize; 2],
    /// Peers that are not here, with the reason.
    pub absent: Vec<(&'static str, &'static str)>,
    ucx: bool,
    mpi: bool,
}

impl Peers {
    /// Builds the small peer programs from `sources` and looks for the installed ones.
    ///
    /// # Errors
    /// There is no C compiler, or a program does not compile.
    pub(super) fn build(sources: &Path, cpus: [usize; 2]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut peers =
            Self { folder, cpus, absent: Vec::new(), ucx: command::found("ucx_perftest"), mpi: false };
        peers.compile("cc", sources, "limit", &["-pthread"])?;
        peers.compile("cc", sources, "tcp", &[])?;
        if !peers.ucx {
            peers.absent.push(("UCX", "`ucx_perftest` is not installed (package ucx-utils)"));
        }
        if command::found("mpicc") && command::found("mpirun") {
            peers.compile("mpicc", sources, "mpi", &[])?;
            peers.mpi = true;
        } else {
            peers.absent.push((
                "Open MPI",
                "`mpicc` and `mpirun` are not installed (packages openmpi-bin, libopenmpi-dev)",
            ));
        }
        Ok(peers)
    }

    fn compile(&self, compiler: &str, sources: &Path, name: &str, flags: &[&str]) -> Result<()> {
        let mut command = Command::new(compiler);
        command
            .args(["-O2", "-o"])
            .arg(self.program(name))
            .arg(sources.join(format!("{name}.c")))
            .args(flags);
        command::run(&mut command)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn cpu_arguments(&self) -> [String; 2] {
        self.cpus.map(|cpu| cpu.to_string())
    }

    /// Measures the machine itself.
    ///
    /// # Errors
    /// The program failed.
    pub(super) fn limit(&self) -> Result<Limit> {
        let block = SIZES[2].to_string();
        let text =
            command::output(Command::new(self.program("limit")).args(self.cpu_arguments()).arg(&block))?;
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().parse().ok())
                .with_context(|| format!("`limit` printed no {name}"))
        };
        Ok(Limit { line_ns: value("line ")?, copy_ns: value(&format!("{block} "))? })
    }

    /// Every measurement of the peers that are here, each to be run on its own.
    #[must_use]
    pub(super) fn measurements(&self) -> Vec<Measurement<'_>> {
        let mut all: Vec<Measurement<'_>> = Vec::new();
        if self.ucx {
            for size in SIZES {
                all.push(Box::new(move || self.ucx("UCX tag_lat", "tag_lat", Work::Message(size))));
                all.push(Box::new(move || self.ucx("UCX put_lat", "ucp_put_lat", Work::Put(size))));
            }
        }
        if self.mpi {
            all.push(Box::new(|| self.mpi()));
        }
        all.push(Box::new(|| self.tcp(SOCKETS, "poll")));
        all.push(Box::new(|| self.tcp("TCP, waiting", "wait")));
        all
    }

    fn tcp(&self, who: &'static str, mode: &str) -> Result<Vec<Measured>> {
        let mut command = Command::new(self.program("tcp"));
        command.arg(mode).args(self.cpu_arguments()).args(SIZES.map(|size| size.to_string()));
        by_size(who, &command::output(&mut command)?)
    }

    fn mpi(&self) -> Result<Vec<Measured>> {
        let mut command = Command::new("mpirun");
        if rustix::process::geteuid().is_root() {
            command.arg("--allow-run-as-root");
        }
        // The program pins itself; `vader` is the shared-memory transport of this generation of Open MPI.
        command.args(["-np", "2", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1"]);
        command.args(["--mca", "btl", "vader,self"]).arg(self.program("mpi"));
        command.args(self.cpu_arguments()).args(SIZES.map(|size| size.to_string()));
        by_size("Open MPI send", &command::output(&mut command)?)
    }

    fn ucx(&self, who: &'static str, test: &str, work: Work) -> Result<Vec<Measured>> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port().to_string();
        let perftest = |cpu: usize| {
            let mut command = Command::new("ucx_perftest");
            command.args(["-p", &port, "-c", &cpu.to_string()]);
            command.env("UCX_TLS", "posix,self").env("UCX_LOG_LEVEL", "fatal");
            command
        };
        let server = perftest(self.cpus[1]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut server = Ended(server);
        let iterations = if work.size() > 1024 { "20000" } else { "100000" };
        let mut client = perftest(self.cpus[0]);
        client.args([
            "127.0.0.1",
            "-t",
            test,
            "-s",
            &work.size().to_string(),
            "-n",
            iterations,
            "-w",
            "2000",
        ]);
        client.args(["-f", "-v"]);
        let started = Instant::now();
        // The server says nowhere that it listens: knock until it does.
        let text = loop {
            match command::output(&mut client) {
                Ok(text) => break text,
                Err(error) if started.elapsed() > PATIENCE || server.0.try_wait()?.is_some() => {
                    return Err(error);
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        };
        // iterations, median, average, overall, then rates; microseconds.
        let line = text.lines().last().unwrap_or_default();
        let median: Option<f64> = line.split(',').nth(1).and_then(|field| field.parse().ok());
        let Some(us) = median else { bail!("ucx_perftest printed no latency: {text}") };
        Ok(vec![Measured { who, work, ns: us * 1000.0 }])
    }
}

/// A child that does not outlive its owner.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It has ended by itself unless its client failed; then there is nothing to learn from it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads lines of "size nanoseconds".
fn by_size(who: &'static str, text: &str) -> Result<Vec<Measured>> {
    text.lines()
        .map(|line| {
            let fields =
                line.split_once(' ').and_then(|(size, ns)| Some((size.parse().ok()?, ns.parse().ok()?)));
            let (size, ns) =
                fields.with_context(|| format!("{who} printed what is no measurement: {line}"))?;
            Ok(Measured { who, work: Work::Message(size), ns })
        })
        .collect()
}
