//! `plexus perf --sweep-host`: the same measurement under different settings of the host's network.
//!
//! A listener runs in one network namespace and a client in another, joined by a pair of virtual
//! devices. The namespaces exist as long as this process. Every process started here ends when its
//! standard input closes, so nothing is left behind. A process of the same kind restores the
//! setting of the whole host.

use std::{
    fs::{self, File, TryLockError},
    io::{BufRead, BufReader},
    net::Ipv4Addr,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, bail};
use plexus_base::Waiting;
use plexus_bench::perf::host::{Setting, Tried, text};
use plexus_namespaces::{CableEnd, Namespace, join};
use serde_json::{Value, json};

use crate::{
    commands::{cluster::this_program, interrupt::interrupted},
    output,
};

/// The devices and addresses of listener and client.
const DEVICES: [&str; 2] = ["plexus0", "plexus1"];
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 90, 0, 1), Ipv4Addr::new(10, 90, 0, 2)];

/// The least, default and greatest receive buffer of a TCP connection; each namespace has its own.
const BUFFERS: &str = "/proc/sys/net/ipv4/tcp_rmem";

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
    /// Starts the process, in `namespace` if there is one.
    fn start(namespace: Option<&Namespace>, command: &mut Command) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        // A process group of its own: Ctrl-C reaches only this process, which ends the others in
        // order.
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let child = match namespace {
            Some(namespace) => namespace.inside(|| command.spawn()),
            None => command.spawn(),
        };
        let mut child = child.with_context(|| format!("{name} cannot be started"))?;
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

/// Restores the host's setting, however this process ends.
struct Restored(#[allow(dead_code, reason = "held for its end")] HelperProcess);

impl Restored {
    fn backlog() -> anyhow::Result<Self> {
        let lock = File::open(BACKLOG).context(BACKLOG)?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => bail!(
                "{BACKLOG}: another `plexus perf --sweep-host` changes this setting of the host; wait for its end"
            ),
            locked => locked.context(BACKLOG)?,
        }
        let now = fs::read_to_string(BACKLOG)?;
        let script = "echo here; read -r _; echo \"$1\" > \"$0\"";
        let mut restore = Command::new("sh");
        // The process that restores the setting inherits the lock and holds it to its end, also if
        // this one is killed.
        restore.args(["-c", script, BACKLOG, now.trim()]).stderr(lock);
        let mut held = HelperProcess::start(None, &mut restore)?;
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
        let namespace = || Namespace::new().map_err(anyhow::Error::msg);
        let both = [namespace()?, namespace()?];
        let end =
            |end: usize| CableEnd { namespace: &both[end], device: DEVICES[end], address: ADDRESSES[end] };
        join([end(0), end(1)]).map_err(anyhow::Error::msg)?;
        let program = this_program()?;
        let mut serve = Command::new(&program);
        serve.args(["perf", "--listen", &ADDRESSES[0].to_string(), "--open", "--lifeline", "--json"]);
        let mut served = HelperProcess::start(Some(&both[0]), serve.stderr(Stdio::null()))?;
        served.line()?;
        let _restored = Restored::backlog()?;
        let buffers = both[0].inside(|| fs::read_to_string(BUFFERS))?;
        let set_both = |setting, value| both.iter().zip(DEVICES).try_for_each(|end| set(end, setting, value));
        let mut tried = Vec::new();
        for setting in Setting::ALL {
            for (value, published) in setting.values() {
                output::progress(&format!("{}: {value}", setting.name()));
                let outcome = match set_both(setting, *value) {
                    Ok(()) => Ok(self.measure(&both[1], &program, &interrupted)?),
                    Err(error) => Err(format!("cannot be set here: {error}")),
                };
                tried.push(Tried { setting, value: *value, published, outcome });
            }
            // Restored, so that only one setting differs from the default at a time.
            match setting {
                Setting::ReceiveBuffer => {
                    both.iter().try_for_each(|one| one.inside(|| fs::write(BUFFERS, &buffers)))?;
                }
                Setting::Mtu => set_both(setting, DEFAULT_MTU).map_err(anyhow::Error::msg)?,
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
        let (address, seconds, wait) = (ADDRESSES[0], self.seconds, self.wait);
        let words = format!(
            "perf {address} --json --lifeline --rail tcp --plain --op put --sizes 8K --repeat 3 \
             --seconds {seconds} --wait {wait}"
        );
        let mut held = HelperProcess::start(Some(client), Command::new(program).args(words.split(' ')))?;
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

fn set((namespace, device): (&Namespace, &str), setting: Setting, value: u32) -> Result<(), String> {
    match setting {
        Setting::ReceiveBuffer => {
            let written = namespace.inside(|| fs::write(BUFFERS, format!("4096 131072 {value}")));
            written.map_err(|error| error.to_string())
        }
        Setting::Mtu => namespace.run(&format!("ip link set {device} mtu {value}")),
        Setting::Backlog => fs::write(BACKLOG, value.to_string()).map_err(|error| error.to_string()),
    }
}
