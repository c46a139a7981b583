//! `plexus perf`: the interconnect between two nodes.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use plexus_base::Waiting;
use plexus_bench::perf::{self, Driving, Method, Pattern, Plan, Row, Trial};
use plexus_node::{TemporaryCluster, config::Config};

use super::{
    cluster::load,
    interrupt::interrupted,
    measured::{self, Wanted},
};
use crate::output;

/// Between which nodes, and what.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// `[DIR] [NODE NODE]`: a running cluster and two of its nodes [default: its first two; without a cluster a
    /// temporary pair for each rail].
    #[arg(value_name = "DIR | NODE", num_args = 0..=3)]
    between: Vec<String>,
    /// What joins a temporary pair.
    #[arg(long, default_value = "shm,tcp", value_delimiter = ',', value_name = "RAIL,...")]
    rail: Vec<String>,
    /// send (a message that the peer is handed), put (into the peer's memory).
    #[arg(long, default_value = "send,put", value_delimiter = ',', value_name = "METHOD,...")]
    method: Vec<Method>,
    /// latency (there and back), stream (16 on their way).
    #[arg(long, default_value = "latency,stream", value_delimiter = ',', value_name = "PATTERN,...")]
    pattern: Vec<Pattern>,
    /// polling (a thread that never sleeps at each end), waiting (woken, as the node is configured).
    #[arg(long, default_value = "polling,waiting", value_delimiter = ',', value_name = "HOW,...")]
    waiting: Vec<Driving>,
    /// Message sizes in bytes, 8 to 4194304 [default: 8 to 4 MiB in powers of four].
    #[arg(long, value_delimiter = ',', value_name = "BYTES,...")]
    sizes: Vec<u32>,
    /// Seconds for each size.
    #[arg(long, default_value_t = 0.1)]
    seconds: f64,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Measures.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let interrupted = interrupted()?;
    let (dir, names) = split(&args.between)?;
    let mut rows = Vec::new();
    let mut measure = |config: &Config, rail: &str, [client, server]: [usize; 2]| -> anyhow::Result<()> {
        for driving in &args.waiting {
            output::progress(&format!("{rail}: {driving}"));
            let plan = args.plan(server, *driving)?;
            let measured = perf::between(config, client, &plan, &interrupted)?;
            let waiting = match driving {
                Driving::Polling => driving.to_string(),
                Driving::Waiting => config.waiting.to_string(),
            };
            rows.extend(measured.into_iter().map(|measured| Row {
                rail: rail.into(),
                waiting: waiting.clone(),
                measured,
            }));
        }
        Ok(())
    };
    match dir {
        Some(dir) => {
            let config = load(&dir)?;
            let places = match &names {
                Some([one, other]) => [config.node(one)?.0.index(), config.node(other)?.0.index()],
                None => [0, 1],
            };
            if config.nodes.len() < 2 || places[0] == places[1] {
                bail!("a measurement needs two nodes: name two of {}", config.dir.root().display());
            }
            measure(&config, &measured::rails_in_use(&config)?, places)?;
        }
        None => {
            for rail in &args.rail {
                let wanted = Wanted {
                    rail,
                    nodes: 2,
                    workers: 1,
                    waiting: Waiting::Event,
                    block_kib: 16,
                    cache_mib: 4,
                    hot: 1,
                    pin: true,
                };
                let cluster = TemporaryCluster::start(&wanted.parameters()?, &mut |_, _| {})?;
                measure(cluster.config(), rail, [0, 1]).map_err(measured::explained)?;
                measured::take_down(cluster)?;
            }
        }
    }
    if args.json {
        return output::json(&perf::to_json(&rows));
    }
    let [latency, stream] = perf::tables(&rows);
    if !latency.is_empty() {
        output::line("\nthere and back, microseconds; CPU for each round trip")?;
        output::line(latency.to_string().trim_end())?;
    }
    if !stream.is_empty() {
        output::line(&format!("\n{} on their way, one direction; CPU for each message", perf::IN_FLIGHT))?;
        output::line(stream.to_string().trim_end())?;
    }
    Ok(())
}

/// Takes the directory and the two names apart.
fn split(between: &[String]) -> anyhow::Result<(Option<PathBuf>, Option<[String; 2]>)> {
    let default = || std::env::var_os("PLEXUS_DIR").map(PathBuf::from);
    Ok(match between {
        [] => (None, None),
        [dir] => (Some(dir.into()), None),
        [one, other] => {
            let here = || Path::new("cluster.toml").exists().then(|| PathBuf::from("."));
            let dir = default().or_else(here).with_context(|| {
                format!(
                    "of which cluster are {one} and {other}? name its directory in front, or set PLEXUS_DIR"
                )
            })?;
            (Some(dir), Some([one.clone(), other.clone()]))
        }
        [dir, one, other] => (Some(dir.into()), Some([one.clone(), other.clone()])),
        _ => bail!("name at most a directory and two nodes"),
    })
}

impl Args {
    fn plan(&self, server: usize, driving: Driving) -> anyhow::Result<Plan> {
        let sizes = if self.sizes.is_empty() { &perf::SIZES[..] } else { &self.sizes };
        let mut trials = Vec::new();
        for pattern in &self.pattern {
            for method in &self.method {
                trials.extend(sizes.iter().map(|bytes| Trial {
                    method: *method,
                    pattern: *pattern,
                    bytes: *bytes,
                }));
            }
        }
        if !(0.01..=60.0).contains(&self.seconds) {
            bail!("--seconds {}: use 0.01 to 60", self.seconds);
        }
        let plan = Plan { peer: server as u8, driving, trials, trial_ms: (self.seconds * 1000.0) as u32 };
        plan.check()?;
        Ok(plan)
    }
}
