//! Shared parts of the measuring commands: temporary clusters, cores, durations and output files.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use plexus_admin::{
    Parameters, TemporaryCluster,
    config::{Config, NodeConfig, this_host},
    control::{ANSWER_WITHIN, Control, ControlError, Seen, on_its_host},
};
use plexus_base::{MAX_NODES, MAX_WORKERS, Waiting};
use plexus_bench::RunError;
use plexus_disks::BlockSize;
use rustix::fs::Access;
use serde_json::Value;

use super::cluster::this_program;

/// The properties of a temporary cluster to measure on.
#[derive(Clone)]
pub(crate) struct TemporarySpec<'a> {
    /// The rail between its nodes.
    pub(crate) rail: &'a str,
    /// The number of nodes.
    pub(crate) nodes: usize,
    /// The number of workers of each node.
    pub(crate) workers: u8,
    /// The waiting mode of the threads.
    pub(crate) waiting: Waiting,
    /// The length of a block in KiB.
    pub(crate) block_kib: u32,
    /// The memory of each node's cache in MiB.
    pub(crate) cache_mib: u32,
    /// The number of blocks that the workload uses.
    pub(crate) hot: u64,
    /// True to give each node a core of its own.
    pub(crate) pin: bool,
}

impl TemporarySpec<'_> {
    /// Returns the parameters of the cluster.
    pub(crate) fn parameters(&self) -> anyhow::Result<Parameters> {
        if !(1..=MAX_NODES).contains(&self.nodes) {
            bail!("{} nodes: use 1 to {MAX_NODES}", self.nodes);
        }
        if !(1..=MAX_WORKERS as u8).contains(&self.workers) {
            bail!("{} workers: use 1 to {MAX_WORKERS}", self.workers);
        }
        let Some(block_size) = BlockSize::from_kib(self.block_kib) else {
            bail!("block size of {} KiB: use 4, 8 or 16", self.block_kib);
        };
        let rail = self.rail.parse().map_err(anyhow::Error::msg)?;
        let cores = if self.pin { cores()? } else { Vec::new() };
        let mut parameters = Parameters::new(self.nodes, this_program()?, &std::env::temp_dir())
            .context("naming a temporary cluster")?;
        let config = &mut parameters.config;
        for index in 0..self.nodes {
            let node = &mut config.nodes[index];
            node.rails = vec![rail];
            node.cores = if self.pin { vec![cores[index % cores.len()]] } else { Vec::new() };
        }
        config.workers = self.workers;
        config.waiting = self.waiting;
        config.block_size = block_size;
        config.cache_mib = self.cache_mib;
        config.blocks = config.blocks.max(self.hot);
        Ok(parameters)
    }
}

/// Converts an option in seconds to milliseconds.
pub(crate) fn ms(option: &str, seconds: f64) -> anyhow::Result<u64> {
    match seconds {
        seconds if (0.0..=3600.0).contains(&seconds) => Ok((seconds * 1000.0) as u64),
        seconds => bail!("{option} {seconds}: use 0 to 3600"),
    }
}

/// Returns the cores that this process may use.
pub(crate) fn cores() -> anyhow::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None).context("reading the CPU affinity")?;
    let cores: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
    if cores.is_empty() {
        bail!("this process may use no core");
    }
    Ok(cores)
}

/// Stops a temporary cluster. An unclean end is an error, since it makes the measurement doubtful.
pub(crate) fn take_down(cluster: TemporaryCluster) -> anyhow::Result<()> {
    let down = cluster.stop()?;
    match (down.why, down.left.is_empty()) {
        (Some(why), _) => bail!("the temporary cluster did not end cleanly: {why}"),
        (None, false) => bail!("{} of the temporary cluster did not end", down.left.join(", ")),
        (None, true) => Ok(()),
    }
}

/// Rewords a failure of a temporary cluster whose node was killed: the node's log is gone with it.
pub(crate) fn explained(error: impl Into<anyhow::Error>) -> anyhow::Error {
    let error = error.into();
    let Some(RunError::Node(node)) = error.downcast_ref() else { return error };
    match node {
        ControlError::Ended { name, .. } | ControlError::NotRunning { name, .. } => {
            anyhow!("{name} was killed during the measurement; the temporary cluster was removed")
        }
        _ => error,
    }
}

/// Checks that these nodes run on this machine, for measurements that are not forwarded.
pub(crate) fn check_here<'a>(
    config: &Config,
    nodes: impl Iterator<Item = &'a NodeConfig> + Clone,
) -> anyhow::Result<()> {
    for node in nodes.clone() {
        let Err(error) = Control::connect(&config.dir, &node.name) else { continue };
        let is_elsewhere = matches!(error, ControlError::NotRunning { .. }) && node.host != this_host();
        if is_elsewhere && nodes.clone().any(|other| other.host != node.host) {
            bail!(
                "{} belongs on {}, and other nodes that take part do not: only nodes of one machine can be measured together; between two machines use `plexus perf --listen`",
                node.name,
                node.host
            );
        }
        bail!(on_its_host(config, error));
    }
    Ok(())
}

/// Returns the rails that a running cluster uses, as its first node reports them.
pub(crate) fn rails_in_use(config: &Config) -> anyhow::Result<String> {
    let first = config.nodes.first().context("the cluster has no nodes")?;
    let seen = Seen::<Value>::of_cluster(config, &[&first.name], "status", ANSWER_WITHIN);
    let (name, seen) = seen.first().context("no node was asked")?;
    let status = seen.answer(&config.dir, name).map_err(anyhow::Error::msg)?;
    let peers = status["peers"].as_array().cloned().unwrap_or_default();
    let mut rails: Vec<&str> = peers.iter().filter_map(|peer| peer["rail"].as_str()).collect();
    rails.sort_unstable();
    rails.dedup();
    Ok(rails.join("+"))
}

/// Creates the directory of an output file and checks that it is writable, before time is spent on
/// measuring.
pub(crate) fn prepare(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)
        .and_then(|()| Ok(rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK)?))
        .with_context(|| format!("{}: the directory is not writable", folder.display()))?;
    if path.is_dir() {
        bail!("{}: is a directory; name a file", path.display());
    }
    Ok(())
}
