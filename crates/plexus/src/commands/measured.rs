//! What measuring commands have in common: temporary clusters to measure on, cores, waiting modes, files to write.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use plexus_base::{MAX_NODES, MAX_WORKERS, Waiting};
use plexus_bench::{RunError, perf::BetweenError};
use plexus_disks::BlockSize;
use plexus_node::{
    Parameters, TemporaryCluster,
    config::Config,
    control::{ANSWER_WITHIN, Control, ControlError},
};
use rustix::fs::Access;
use serde_json::Value;

use super::cluster::this_program;

/// A temporary cluster that is to be measured.
#[derive(Clone)]
pub(crate) struct Wanted<'a> {
    /// What joins its nodes.
    pub(crate) rail: &'a str,
    /// How many there are.
    pub(crate) nodes: usize,
    /// Workers of each.
    pub(crate) workers: u8,
    /// How threads wait.
    pub(crate) waiting: Waiting,
    /// Length of a block in KiB.
    pub(crate) block_kib: u32,
    /// Memory of each node's cache in MiB.
    pub(crate) cache_mib: u32,
    /// The blocks that will be used.
    pub(crate) hot: u64,
    /// Each node gets a core of its own.
    pub(crate) pin: bool,
}

impl Wanted<'_> {
    /// What to make.
    pub(crate) fn parameters(&self) -> anyhow::Result<Parameters> {
        if !(1..=MAX_NODES).contains(&self.nodes) {
            bail!("{} nodes: use 1 to {MAX_NODES}", self.nodes);
        }
        if !(1..=MAX_WORKERS as u8).contains(&self.workers) {
            bail!("{} workers: use 1 to {MAX_WORKERS}", self.workers);
        }
        let Some(block_size) = BlockSize::from_kib(self.block_kib) else {
            bail!("blocks of {} KiB: blocks are 4, 8 or 16 KiB long; choose one of these", self.block_kib);
        };
        let rail = self.rail.parse().map_err(anyhow::Error::msg)?;
        let cores = if self.pin { cores()? } else { Vec::new() };
        let mut parameters = Parameters::new(self.nodes).context("where this program lies")?;
        for (index, node) in parameters.nodes.iter_mut().enumerate() {
            node.rails = vec![rail];
            node.cores = if self.pin { vec![cores[index % cores.len()]] } else { Vec::new() };
        }
        parameters.workers = self.workers;
        parameters.waiting = self.waiting;
        parameters.block_size = block_size;
        parameters.cache_mib = self.cache_mib;
        parameters.blocks = parameters.blocks.max(self.hot);
        parameters.program = this_program()?;
        Ok(parameters)
    }
}

/// Milliseconds of an option that is given in seconds.
pub(crate) fn ms(option: &str, seconds: f64) -> anyhow::Result<u64> {
    match seconds {
        seconds if (0.0..=3600.0).contains(&seconds) => Ok((seconds * 1000.0) as u64),
        seconds => bail!("{option} {seconds}: use 0 to 3600"),
    }
}

/// The cores that this process may use.
pub(crate) fn cores() -> anyhow::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None).context("which cores there are")?;
    let cores: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
    if cores.is_empty() {
        bail!("this process may use no core");
    }
    Ok(cores)
}

/// Takes a temporary cluster down; that it did not end well is an error, for what was measured on it may be wrong.
pub(crate) fn take_down(cluster: TemporaryCluster) -> anyhow::Result<()> {
    let down = cluster.stop()?;
    match (down.why, down.left.is_empty()) {
        (Some(why), _) => bail!("the temporary cluster did not end cleanly: {why}"),
        (None, false) => bail!("{} of the temporary cluster did not end", down.left.join(", ")),
        (None, true) => Ok(()),
    }
}

/// Says of a failure on a temporary cluster what can still be done about it: the log of a node is gone with it.
pub(crate) fn explained(error: impl Into<anyhow::Error>) -> anyhow::Error {
    let error = error.into();
    let node = match (error.downcast_ref(), error.downcast_ref()) {
        (Some(RunError::Node(node)), _) | (_, Some(BetweenError::Node(node))) => node,
        _ => return error,
    };
    match node {
        ControlError::Ended { name, .. } | ControlError::NotRunning { name, .. } => {
            anyhow!("{name} was killed in the middle, which ends this; nothing is left behind")
        }
        _ => error,
    }
}

/// What joins the nodes of a running cluster, as its first node sees it.
pub(crate) fn rails_in_use(config: &Config) -> anyhow::Result<String> {
    let first = config.nodes.first().context("the cluster has no nodes")?;
    let mut control = Control::connect(&config.dir, &first.name)?;
    control.set_timeout(ANSWER_WITHIN)?;
    let status = control.call("status", Value::Null, |_| {})?;
    let peers = status["peers"].as_array().cloned().unwrap_or_default();
    let mut rails: Vec<&str> = peers.iter().filter_map(|peer| peer["rail"].as_str()).collect();
    rails.sort_unstable();
    rails.dedup();
    Ok(rails.join("+"))
}

/// Makes the folder that a file will be written to, and sees that it can be, before minutes of measuring are lost.
pub(crate) fn prepare(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)
        .and_then(|()| Ok(rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK)?))
        .with_context(|| format!("{}: nothing can be written there", folder.display()))?;
    if path.is_dir() {
        bail!("{}: is a directory; name a file", path.display());
    }
    Ok(())
}
