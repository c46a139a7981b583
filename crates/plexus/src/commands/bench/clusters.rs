//! The clusters that a workload runs on: a running one, or temporary ones in turn.

use std::path::PathBuf;

use plexus_base::Waiting;
use plexus_node::{TemporaryCluster, config::Config};

use crate::commands::{
    cluster::load,
    measured::{self, TemporarySpec},
};

/// The options that choose the clusters of a workload.
#[derive(clap::Args)]
pub(super) struct BenchClusters {
    /// A running cluster [default: a temporary one for each rail].
    pub(super) dir: Option<PathBuf>,
    /// Nodes of the temporary cluster [default: 3, for locks 2].
    #[arg(long, conflicts_with = "dir")]
    nodes: Option<usize>,
    /// Workers of each node of the temporary cluster.
    #[arg(long, default_value_t = 1, conflicts_with = "dir")]
    workers: u8,
    /// Rail between the nodes; several are measured one after the other.
    #[arg(
        long,
        default_value = "shm,tcp",
        value_delimiter = ',',
        value_name = "RAIL,...",
        conflicts_with = "dir"
    )]
    rail: Vec<String>,
    /// How threads wait: polling, event or adaptive.
    #[arg(long, default_value_t = Waiting::Adaptive, conflicts_with = "dir")]
    waiting: Waiting,
    /// Give each node a core of its own.
    #[arg(long, conflicts_with = "dir")]
    pin: bool,
}

/// The requirements of a workload on a temporary cluster.
pub(super) struct ClusterNeeds {
    /// The default number of nodes.
    pub(super) nodes: usize,
    /// The length of a block in KiB.
    pub(super) block_kib: u32,
    /// The memory of each node's cache in MiB.
    pub(super) cache_mib: u32,
    /// The number of blocks that the workload uses.
    pub(super) hot: u64,
}

impl BenchClusters {
    /// Calls `measure` with the configuration and rail of each cluster.
    pub(super) fn each(
        &self,
        needs: &ClusterNeeds,
        measure: &mut dyn FnMut(&Config, &str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if let Some(dir) = &self.dir {
            let config = load(dir)?;
            return measure(&config, &measured::rails_in_use(&config)?);
        }
        for rail in &self.rail {
            let wanted = TemporarySpec {
                rail,
                nodes: self.nodes.unwrap_or(needs.nodes),
                workers: self.workers,
                waiting: self.waiting,
                block_kib: needs.block_kib,
                cache_mib: needs.cache_mib,
                hot: needs.hot,
                pin: self.pin,
            };
            let cluster = TemporaryCluster::start(&wanted.parameters()?, &mut |_, _| {})?;
            measure(cluster.config(), rail).map_err(measured::explained)?;
            measured::take_down(cluster)?;
        }
        Ok(())
    }
}
