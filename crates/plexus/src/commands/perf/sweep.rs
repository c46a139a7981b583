//! `plexus perf --sweep-host`: the same measurement under different settings of the host's network.
//!
//! A listener runs in one network namespace and a client in another, joined by a pair of virtual
//! devices. A namespace exists as long as the process that holds it. Every process started here
//! ends when its standard input closes, so nothing is left behind. A process of the same kind
//! restores the setting of the whole host.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, bail};
use plexus_base::Waiting;
use plexus_bench::perf::host::{Setting, Tried, text};
use serde_json::{Value, json};

use crate::{
    commands::{cluster::this_program, interrupt::interrupted},
    output,
};

/// The device at both ends, and the addresses of listener and client.
const DEVICE: &str = "plexus0";
const ADDRESSES: [&str; 2] = ["10.90.0.1", "10.90.0.2"];

/// The least, default and greatest receive buffer of a TCP connection; each namespace has its own.
const BUFFERS: &str = "net/ipv4/tcp_rmem";

/// The default MTU of a virtual device.
const DEFAULT_MTU: u32 = 1500;

/// The queue length of received packets for each CPU, one setting for the whole host.
const BACKLOG: &str = "/proc/sys/net/core/netdev_max_backlog";

/// A process that ends when its standard input closes, at the latest when this process ends.
struct HelperProcess {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl HelperProcess {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        // A process group of its own: Ctrl-C reaches only this process, which ends the others in
        // order.
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("{name} cannot be started"))?;
        let output = BufReader::new(child.stdout.take().context("a process without output")?);
        Ok(Self { child, output })
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The child ends when its input closes.
        let _ = self.child.wait();
    }
}

/// A network namespace.
struct Namespace(HelperProcess);

impl Namespace {
    fn new() -> anyhow::Result<Self> {
        let mut holder =
            HelperProcess::start(Command::new("unshare").args(["--net", "sh", "-c", "echo here; exec cat"]))?;
        if holder.line()?.trim() != "here" {
            bail!("cannot create a network namespace; run this as root, outside a container");
        }
        Ok(Self(holder))
    }

    fn pid(&self) -> u32 {
        self.0.child.id()
    }

    /// Returns a command that runs `program` inside the namespace.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.pid())).arg("--").arg(program);
        command
    }

    /// Runs `ip WORDS` inside the namespace.
    fn ip(&self, words: &str) -> anyhow::Result<()> {
        run(self.command("ip").args(words.split(' ')))
    }

    /// Sets a value under `/proc/sys` inside the namespace.
    fn set(&self, name: &str, value: &str) -> anyhow::Result<()> {
        run(self.command("sh").args(["-c", "echo \"$1\" > \"$0\"", &format!("/proc/sys/{name}"), value]))
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().context("nsenter and ip are needed")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Restores the host's setting, however this process ends.
struct Restored(#[allow(dead_code, reason = "held for its end")] HelperProcess);

impl Restored {
    fn backlog() -> anyhow::Result<Self> {
        let now = fs::read_to_string(BACKLOG)?;
        let script = "echo here; read -r _; echo \"$1\" > \"$0\"";
        let mut held = HelperProcess::start(Command::new("sh").args(["-c", script, BACKLOG, now.trim()]))?;
        held.line()?;
        Ok(Self(held))
    }
}

/// The options of `plexus perf --sweep-host`.
pub(super) struct Sweep {
    pub(super) wait: Waiting,
    pub(super) seconds: f64,
    pub(super) json: bool,
}

impl Sweep {
    /// Measures with every value of every setting.
    pub(super) fn run(&self) -> anyhow::Result<()> {
        if !rustix::process::geteuid().is_root() {
            bail!("--sweep-host creates network namespaces and changes kernel settings; run it as root");
        }
        let interrupted = interrupted()?;
        let (listener, client) = (Namespace::new()?, Namespace::new()?);
        listener.ip(&format!("link add {DEVICE} type veth peer name {DEVICE} netns {}", client.pid()))?;
        let both = [&listener, &client];
        for (namespace, address) in both.into_iter().zip(ADDRESSES) {
            namespace.ip(&format!("addr add {address}/24 dev {DEVICE}"))?;
            namespace.ip(&format!("link set {DEVICE} up"))?;
            namespace.ip("link set lo up")?;
        }
        let program = this_program()?;
        let serve = ["perf", "--listen", ADDRESSES[0], "--open", "--lifeline", "--json"];
        let mut served = HelperProcess::start(listener.command(&program).args(serve).stderr(Stdio::null()))?;
        served.line()?;
        let _restored = Restored::backlog()?;
        let read = listener.command("cat").arg(format!("/proc/sys/{BUFFERS}")).output()?;
        let buffers = String::from_utf8_lossy(&read.stdout).into_owned();
        let mut tried = Vec::new();
        for setting in Setting::ALL {
            for (value, published) in setting.values() {
                output::progress(&format!("{}: {value}", setting.name()));
                let set = both.iter().try_for_each(|one| set(one, setting, *value));
                let outcome = match set {
                    Ok(()) => Ok(self.measure(&client, &program, &interrupted)?),
                    Err(error) => Err(format!("cannot be set here: {error}")),
                };
                tried.push(Tried { setting, value: *value, published, outcome });
            }
            // Restored, so that only one setting differs from the default at a time.
            match setting {
                Setting::ReceiveBuffer => both.iter().try_for_each(|one| one.set(BUFFERS, buffers.trim()))?,
                Setting::Mtu => both.iter().try_for_each(|one| set(one, setting, DEFAULT_MTU))?,
                Setting::Backlog => {}
            }
        }
        match self.json {
            true => output::json(&json!({ "sweep": tried })),
            false => {
                output::line(
                    "\n8 KiB put over TCP between two network namespaces, beside the study of Oracle RAC on Linux",
                )?;
                output::line(text(&tried).trim_end())
            }
        }
    }

    /// Returns the throughput in MB/s and the median latency of a block between the namespaces.
    fn measure(
        &self,
        client: &Namespace,
        program: &Path,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<(f64, f64)> {
        let (seconds, wait) = (self.seconds.to_string(), self.wait.to_string());
        let mut command = client.command(program);
        command.args([
            "perf",
            ADDRESSES[0],
            "--json",
            "--lifeline",
            "--rail",
            "tcp",
            "--plain",
            "--op",
            "put",
            "--sizes",
            "8K",
        ]);
        let mut held =
            HelperProcess::start(command.args(["--repeat", "3", "--seconds", &seconds, "--wait", &wait]))?;
        let answer = held.line()?;
        if interrupted.load(Ordering::Relaxed) {
            bail!("interrupted; all settings were restored");
        }
        let answer: Value =
            serde_json::from_str(&answer).context("a measurement between the namespaces failed")?;
        let figure = |test: &str, of: fn(&Value) -> &Value| {
            let row = answer["perf"].as_array()?.iter().find(|row| row["test"] == test)?;
            of(row).as_f64()
        };
        let mb = figure("bandwidth", |row| &row["mb_per_s"]);
        let latency = figure("latency", |row| &row["latency_us"]["p50"]);
        mb.zip(latency).context("a measurement between the namespaces returned no result")
    }
}

fn set(namespace: &Namespace, setting: Setting, value: u32) -> anyhow::Result<()> {
    match setting {
        Setting::ReceiveBuffer => namespace.set(BUFFERS, &format!("4096 131072 {value}")),
        Setting::Mtu => namespace.ip(&format!("link set {DEVICE} mtu {value}")),
        Setting::Backlog => Ok(fs::write(BACKLOG, value.to_string())?),
    }
}
