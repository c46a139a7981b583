//! `plexus perf`: measures the interconnect between two processes, two machines or two nodes of a
//! cluster.

mod between;
mod disks;
mod listen;
mod pair;
mod sweep;

use std::{
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};

use anyhow::{Context, bail};
use plexus_admin::{
    config::{Config, Encrypt},
    keys, lifeline,
};
use plexus_base::Waiting;
use plexus_bench::perf::{
    self, Driving, Grid, LaneChoice, Op, Over, Row, Test, Thresholds, Trial, Until,
    alone::{self, RailChoice},
    compare, plot,
    reference::{self, Source},
};
use plexus_interconnect::mesh::Key;

use super::{cluster::Cluster, interrupt::interrupted, measured};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  plexus perf                                        this machine: memory and TCP side by side
  plexus perf --listen --key perf.key                on one machine, and on the other, with the same file:
  plexus perf HOST --key perf.key --sizes 8..4M --plot charts
  plexus perf -C c1 n1 n2 --test latency --sizes 64  two nodes of a running cluster
  plexus perf -C c1 n1 n2 --op datagram              two programs, each at one of these nodes
  plexus perf --rail tcp --sizes 64 --test latency --load max
  plexus perf --test bandwidth --sizes 64K --streams 1,4,16 --bidirectional
  plexus perf --compare hp,dolphin,cern
  plexus perf --op write,get,atomic --test latency --sizes 8
  plexus perf disks -C c1                            every mirrored disk, where it is and from another node
  plexus perf HOST --sizes 8 --test latency --max-latency-us 20 --percentile p99

A key file is one line of 64 hexadecimal digits that only its owner may read: a cluster's keys/cluster.key, or
  (umask 077; openssl rand -hex 32 > perf.key)";

/// The arguments of `plexus perf`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    other: Option<OtherTarget>,
    /// A machine where `plexus perf --listen` runs (HOST or HOST:PORT), or two nodes of a running
    /// cluster [default: two processes of this machine; with -C the cluster's first two nodes].
    #[arg(value_name = "HOST | NODE", num_args = 0..=3)]
    target: Vec<String>,
    #[command(flatten)]
    cluster: Cluster,

    /// What to measure: latency (one message in flight in each stream), bandwidth.
    #[arg(long, value_delimiter = ',', default_value = "latency,bandwidth", value_name = "TEST,...")]
    #[arg(help_heading = "What")]
    test: Vec<Test>,
    /// How data is transferred: send (a message to the peer), put (into the peer's memory, followed
    /// by a message), write (into the peer's memory, which the peer polls), get (out of the peer's
    /// memory), atomic (one added to a word in the peer's memory), datagram (in a running cluster,
    /// from a program at one node to a program at the other).
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "send,put",
        value_name = "OP,...",
        help_heading = "What"
    )]
    op: Vec<Op>,
    /// Message sizes: 64, a list 8,4K, or a sweep by powers of two 8..4M [default: 8 to 4M by
    /// powers of four].
    #[arg(long, value_parser = SizesParser, value_name = "BYTES", help_heading = "What")]
    sizes: Option<Sizes>,
    /// Parallel streams, each with its own messages in flight.
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "N,...", help_heading = "What")]
    streams: Vec<u32>,
    /// Messages in flight in each stream when bandwidth is measured.
    #[arg(long, value_delimiter = ',', default_value = "16", value_name = "N,...", help_heading = "What")]
    depth: Vec<u32>,
    /// Measure in both directions at once.
    #[arg(long, help_heading = "What")]
    bidirectional: bool,
    /// Background load on the bulk lane: MB/s, or max.
    #[arg(long, value_name = "MB/s | max", help_heading = "What")]
    load: Option<String>,
    /// Bytes of each message of the load.
    #[arg(long, default_value = "64K", value_parser = perf::size, value_name = "BYTES", help_heading = "What")]
    load_size: u32,
    /// Lane of a link: auto (bandwidth of long messages on bulk), prompt, bulk.
    #[arg(long, default_value = "auto", value_name = "LANE", help_heading = "What")]
    lane: LaneChoice,

    /// Rails between the two sides: auto, shm, tcp, ... [default: shm,tcp on this machine, else
    /// auto].
    #[arg(long, value_delimiter = ',', value_name = "RAIL,...", help_heading = "How")]
    rail: Vec<RailChoice>,
    /// How both sides wait: polling (never sleep), event (sleep at once), adaptive (poll for a
    /// while, then sleep) [default: polling,adaptive; for a cluster: polling and its configured
    /// mode].
    #[arg(long, value_delimiter = ',', value_name = "HOW,...", help_heading = "How")]
    wait: Vec<Waiting>,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 0.1, value_name = "S", help_heading = "How")]
    seconds: f64,
    /// Measure this many messages instead.
    #[arg(long, conflicts_with = "seconds", value_name = "N", help_heading = "How")]
    count: Option<u64>,
    /// Repeat every measurement this often and show the median with the spread.
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "How")]
    repeat: u32,
    /// Encrypt TCP also between processes of one machine [default: only between machines; for a
    /// cluster: as configured].
    #[arg(long, help_heading = "How")]
    encrypt: bool,
    /// Do not encrypt, to measure the cost of encryption.
    #[arg(long, conflicts_with = "encrypt", help_heading = "How")]
    plain: bool,
    /// A file with the key that both sides prove to each other.
    #[arg(long, value_name = "FILE", help_heading = "How")]
    key: Option<PathBuf>,
    /// Cores of the two sides, as in 0,1; `any` for no pinning [default on one machine: its first
    /// two].
    #[arg(long, value_name = "A,B | any", help_heading = "How")]
    cores: Option<String>,

    /// Serve measurements from other machines [default address: 0.0.0.0:7490].
    #[arg(long, num_args = 0..=1, default_missing_value = "0.0.0.0", value_name = "ADDR", help_heading = "Listening")]
    #[arg(conflicts_with_all = ["target", "cluster", "test", "op", "sizes", "streams", "depth", "bidirectional", "load", "load_size", "lane"])]
    #[arg(conflicts_with_all = ["rail", "wait", "seconds", "count", "repeat", "encrypt", "plain", "csv", "plot", "compare"])]
    #[arg(conflicts_with_all = ["max_latency_us", "min_mb_s"])]
    listen: Option<String>,
    /// Serve every client from any machine, without a key.
    #[arg(long, requires = "listen", conflicts_with = "key", help_heading = "Listening")]
    open: bool,
    /// End after one client.
    #[arg(long, requires = "listen", help_heading = "Listening")]
    once: bool,
    /// End when standard input closes.
    #[arg(long, hide = true)]
    lifeline: bool,

    /// Measure with different network settings of the host (receive buffers, MTU, device backlog),
    /// in temporary network namespaces; needs root.
    #[arg(long, help_heading = "Modes")]
    #[arg(conflicts_with_all = ["target", "cluster", "test", "op", "sizes", "streams", "depth", "bidirectional", "load", "rail"])]
    #[arg(conflicts_with_all = ["count", "repeat", "cores", "listen", "csv", "plot", "compare", "max_latency_us", "key", "encrypt"])]
    #[arg(conflicts_with_all = ["min_mb_s", "plain", "load_size", "lane"])]
    sweep_host: bool,

    /// Print the result as JSON.
    #[arg(long, help_heading = "Result")]
    json: bool,
    /// Print the result as comma-separated values.
    #[arg(long, conflicts_with = "json", help_heading = "Result")]
    csv: bool,
    /// Draw latency and bandwidth by size into this directory, as SVG and PNG.
    #[arg(long, value_name = "DIR", help_heading = "Result")]
    plot: Option<PathBuf>,
    /// Measure the cases of published figures and show both: hp, dolphin, cern.
    #[arg(long, value_delimiter = ',', value_parser = reference::source, value_name = "WHO,...")]
    #[arg(conflicts_with_all = ["test", "op", "sizes", "streams", "depth", "bidirectional", "load", "csv", "plot"])]
    #[arg(help_heading = "Result")]
    compare: Vec<&'static Source>,
    /// Fail with exit code 3 if latency is above this (a failed measurement has exit code 1).
    #[arg(long, value_name = "US", value_parser = threshold, help_heading = "Result")]
    max_latency_us: Option<f64>,
    /// The latency that --max-latency-us limits: p50, p90, p99, p99.9, p99.99, p99.999, min, mean
    /// or max.
    #[arg(
        long,
        default_value = "p50",
        requires = "max_latency_us",
        value_name = "WHICH",
        help_heading = "Result"
    )]
    #[arg(value_parser = ["min", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "p99.999", "max"])]
    percentile: String,
    /// Fail with exit code 3 if bandwidth is below this, in 10^6 bytes a second.
    #[arg(long, value_name = "MB/s", value_parser = threshold, help_heading = "Result")]
    min_mb_s: Option<f64>,
}

/// A measurement of something else than the interconnect.
#[derive(clap::Subcommand)]
enum OtherTarget {
    /// Measure every mirrored disk of a running cluster, on the node that serves it and from
    /// another node. The contents of the disks do not change.
    Disks(disks::Args),
}

/// Parses a threshold.
fn threshold(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "use a number above 0".into())
}

/// A list of message sizes in one argument.
#[derive(Clone, Debug)]
struct Sizes(Vec<u32>);

#[derive(Clone)]
struct SizesParser;

impl clap::builder::TypedValueParser for SizesParser {
    type Value = Sizes;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<Sizes, clap::Error> {
        let parser = |text: &str| perf::sizes(text).map(Sizes);
        parser.parse_ref(command, arg, value)
    }
}

/// The error of a valid result that misses a threshold.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct MissedThreshold(String);

/// A checked request for measurements.
struct MeasureRequest {
    trials: Vec<Trial>,
    until: Until,
    repeat: u32,
    rails: Vec<RailChoice>,
    waits: Vec<Waiting>,
    cores: Cores,
    key: Option<Key>,
    encrypt: Encrypt,
}

/// The cores that the two sides run on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cores {
    Usual,
    Any,
    These(usize, usize),
}

/// The two sides of a measurement.
enum PerfTarget {
    Here,
    Host(String),
    Cluster(Box<Config>, Option<[String; 2]>),
}

/// Runs `plexus perf`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if let Some(OtherTarget::Disks(args)) = &args.other {
        return disks::run(args);
    }
    if args.lifeline {
        // The process that started this one has then ended.
        lifeline::watch(0, || std::process::exit(0)).context("--lifeline")?;
    }
    let cores = cores(args.cores.as_deref())?;
    if let Some(address) = &args.listen {
        let core = match cores {
            Cores::These(_, core) => Some(core),
            Cores::Usual | Cores::Any => None,
        };
        let key = args.read_key()?.zip(args.key);
        return listen::run(
            address,
            listen::AccessPolicy { key, open: args.open },
            args.once,
            core,
            args.json,
        );
    }
    let request = args.request(cores)?;
    if args.sweep_host {
        let wait = match args.wait[..] {
            [] => Waiting::Adaptive,
            [wait] => wait,
            _ => bail!("--sweep-host: give one mode with --wait"),
        };
        return sweep::Sweep { wait, seconds: args.seconds, json: args.json }.run();
    }
    let interrupted = interrupted()?;
    let rows = match target(&args.target, &args.cluster)? {
        PerfTarget::Here => pair::measure(&request, &interrupted),
        PerfTarget::Host(host) => pair::measure_with(&request, &host, &interrupted),
        PerfTarget::Cluster(config, names) => {
            between::measure(&request, &config, names.as_ref(), &interrupted)
        }
    };
    // Ctrl-C also ends the child process that is the other side, which looks like its failure.
    if rows.is_err() && interrupted.load(Ordering::Relaxed) {
        bail!("interrupted: nothing more was measured");
    }
    args.show(&rows?)
}

impl Args {
    fn request(&self, cores: Cores) -> anyhow::Result<MeasureRequest> {
        let load = self.load.as_deref().map(|load| perf::load(load, self.load_size)).transpose();
        let grid = Grid {
            tests: self.test.clone(),
            ops: self.op.clone(),
            sizes: self.sizes.clone().map_or_else(Vec::new, |sizes| sizes.0),
            streams: self.streams.clone(),
            depths: self.depth.clone(),
            bidirectional: self.bidirectional,
            load: load.map_err(|why| anyhow::anyhow!("--load: {why}"))?,
            lane: self.lane,
        };
        if !(0.01..=600.0).contains(&self.seconds) {
            bail!("--seconds {}: use 0.01 to 600", self.seconds);
        }
        if !(1..=100).contains(&self.repeat) {
            bail!("--repeat {}: use 1 to 100", self.repeat);
        }
        if self.max_latency_us.is_some() && !self.test.contains(&Test::Latency) {
            bail!("--max-latency-us needs --test latency");
        }
        if self.min_mb_s.is_some() && !self.test.contains(&Test::Bandwidth) {
            bail!("--min-mb-s needs --test bandwidth");
        }
        let until = match self.count {
            Some(count) => Until::Count(count),
            None => Until::Ms((self.seconds * 1000.0) as u32),
        };
        let trials = match self.compare.is_empty() {
            true => grid.trials()?,
            false => compare::trials(&self.compare),
        };
        if let Some(dir) = &self.plot {
            measured::prepare(&dir.join("latency.svg"))?;
        }
        Ok(MeasureRequest {
            trials,
            until,
            repeat: self.repeat,
            rails: self.rail.clone(),
            waits: self.wait.clone(),
            cores,
            key: self.read_key()?,
            encrypt: match (self.encrypt, self.plain) {
                (true, _) => Encrypt::Always,
                (_, true) => Encrypt::Never,
                _ => Encrypt::Auto,
            },
        })
    }

    fn read_key(&self) -> anyhow::Result<Option<Key>> {
        self.key.as_deref().map(keys::file).transpose().context("--key")
    }

    /// Prints the result; fails if a threshold is missed.
    fn show(&self, rows: &[Row]) -> anyhow::Result<()> {
        if self.json {
            let mut all = perf::to_json(rows);
            if !self.compare.is_empty() {
                all["compare"] = compare::to_json(&self.compare, rows);
            }
            output::json(&all)?;
        } else if self.csv {
            output::line(perf::to_csv(rows).trim_end())?;
        } else if self.compare.is_empty() {
            output::line(perf::text(rows).trim_end())?;
        } else {
            output::line(compare::text(&self.compare, rows).trim_end())?;
        }
        if let Some(dir) = &self.plot {
            draw(dir, rows)?;
        }
        let thresholds = Thresholds {
            max_latency_us: self.max_latency_us.map(|most| (most, self.percentile.clone())),
            min_mb_per_s: self.min_mb_s,
        };
        let missed = thresholds.missed(rows);
        let Some(first) = missed.first() else { return Ok(()) };
        let line = match missed.len() {
            1 => first.clone(),
            more => format!("{first}; and {} more of {} missed", more - 1, rows.len()),
        };
        Err(MissedThreshold(line).into())
    }
}

/// Writes the charts as SVG and PNG.
fn draw(dir: &Path, rows: &[Row]) -> anyhow::Result<()> {
    let pictures = plot::pictures(rows);
    if pictures.is_empty() {
        bail!("--plot: a chart by size needs several sizes, as in --sizes 8..4M");
    }
    for (name, picture) in pictures {
        let svg = picture.draw()?;
        let png = plexus_bench::report::png(&svg)?;
        for (ending, bytes) in [("svg", svg.as_bytes()), ("png", &png)] {
            let path = dir.join(format!("{name}.{ending}"));
            std::fs::write(&path, bytes).with_context(|| format!("{}: cannot be written", path.display()))?;
            output::progress(&format!("wrote {}", path.display()));
        }
    }
    Ok(())
}

impl MeasureRequest {
    /// Runs `measure` as often as requested and turns its results into rows.
    fn rows(
        &self,
        waiting: Waiting,
        mut measure: impl FnMut(u32) -> anyhow::Result<Vec<perf::Measured>>,
        over: &Over,
    ) -> anyhow::Result<Vec<Row>> {
        let mut runs: Vec<Vec<perf::Measured>> = self.trials.iter().map(|_| Vec::new()).collect();
        for number in 0..self.repeat {
            let measured = measure(number)?;
            runs.iter_mut().zip(measured).for_each(|(runs, measured)| runs.push(measured));
        }
        Ok(runs.into_iter().filter_map(|runs| Row::of(over, waiting.name(), runs)).collect())
    }
}

/// Returns how a measurement drives the workers, and the waiting mode of idle workers.
fn driving(wait: Waiting) -> (Driving, Waiting) {
    match wait {
        // Outside a measurement no worker needs to poll.
        Waiting::Polling => (Driving::Polling, Waiting::Event),
        other => (Driving::Waiting, other),
    }
}

fn cores(text: Option<&str>) -> anyhow::Result<Cores> {
    let Some(text) = text else { return Ok(Cores::Usual) };
    if text == "any" {
        return Ok(Cores::Any);
    }
    let pair = text.split_once(',').and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
    let (one, other) =
        pair.with_context(|| format!("--cores {text}: write two numbers as in 0,1, or any"))?;
    Ok(Cores::These(one, other))
}

/// Pins this process and the threads that it starts to a core. Returns the core of the other side.
fn place(cores: Cores, here: bool) -> anyhow::Result<Option<usize>> {
    let (one, other) = match cores {
        Cores::These(one, other) => (one, other),
        Cores::Usual if here => match alone::cores()?[..] {
            [one, other, ..] => (one, other),
            _ => return Ok(None),
        },
        Cores::Usual | Cores::Any => return Ok(None),
    };
    alone::pin(one)?;
    Ok(Some(other))
}

/// Parses the positional arguments.
fn target(words: &[String], cluster: &Cluster) -> anyhow::Result<PerfTarget> {
    Ok(match words {
        [dir, ..] if Path::new(dir).join("cluster.toml").exists() => {
            bail!("{dir}: name a cluster with -C, as in `plexus perf -C {dir} NODE NODE`")
        }
        [] if cluster.is_named() => PerfTarget::Cluster(Box::new(cluster.load()?), None),
        [] => PerfTarget::Here,
        [one] if cluster.is_named() => bail!("{one}: with -C, give two nodes of the cluster, or none"),
        [one] if one.contains('/') => bail!("{one}: a host name has no `/`; name a cluster with -C DIR"),
        [one] => PerfTarget::Host(one.clone()),
        [one, other] => {
            let config = cluster.load().with_context(|| format!("{one} and {other}"))?;
            PerfTarget::Cluster(Box::new(config), Some([one.clone(), other.clone()]))
        }
        _ => bail!("give at most two nodes; name their cluster with -C DIR"),
    })
}

/// Reports progress on standard error: on a terminal in one line that is overwritten, else once for
/// each rail and waiting mode.
struct ProgressReporter<'a> {
    trials: &'a [Trial],
    label: String,
    terminal: bool,
}

impl<'a> ProgressReporter<'a> {
    fn new(request: &'a MeasureRequest, label: String, number: u32) -> Self {
        use std::io::IsTerminal;
        let label =
            if request.repeat > 1 { format!("{label}, {} of {}", number + 1, request.repeat) } else { label };
        let terminal = std::io::stderr().is_terminal();
        if !terminal {
            output::progress(&label);
        }
        Self { trials: &request.trials, label, terminal }
    }

    fn report(&self, live: perf::Live) {
        if let (true, Some(trial)) = (self.terminal, self.trials.get(live.trial)) {
            let line = perf::live(trial, live.trial, self.trials.len(), live.messages);
            output::overwrite_line(&format!("{}: {line}", self.label));
        }
    }
}

impl Drop for ProgressReporter<'_> {
    fn drop(&mut self) {
        if self.terminal {
            output::overwrite_line("");
        }
    }
}
