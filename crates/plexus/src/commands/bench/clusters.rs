//! The clusters that a workload runs on: a running one, or temporary ones in turn.

use plexus_admin::{TemporaryCluster, config::Config};
use plexus_base::Waiting;

use crate::commands::{
    cluster::Cluster,
    measured::{self, TemporarySpec},
};

/// The options that choose the clusters of a workload.
#[derive(clap::Args)]
pub(super) struct BenchClusters {
    #[command(flatten)]
    pub(super) cluster: Cluster,
    /// Measure on a temporary cluster for each rail. Each option below selects this too; so does a
    /// command without a cluster.
    #[arg(long, conflicts_with = "cluster")]
    temporary: bool,
    /// Nodes of the temporary cluster [default: 3, for locks 2].
    #[arg(long, conflicts_with = "cluster")]
    nodes: Option<usize>,
    /// Workers of each node of the temporary cluster [default: 1].
    #[arg(long, conflicts_with = "cluster")]
    workers: Option<u8>,
    /// Rail between the nodes; several are measured one after the other [default: shm,tcp].
    #[arg(long, value_delimiter = ',', value_name = "RAIL,...", conflicts_with = "cluster")]
    rail: Vec<String>,
    /// How threads wait: polling, event or adaptive [default: adaptive].
    #[arg(long, conflicts_with = "cluster")]
    waiting: Option<Waiting>,
    /// Give each node a core of its own.
    #[arg(long, conflicts_with = "cluster")]
    pin: bool,
    /// Length of a block in KiB: 4, 8 or 16 [default: 16, for locks 4].
    #[arg(long, value_name = "KIB", conflicts_with = "cluster")]
    block_size: Option<u32>,
    /// Memory of each node's cache in MiB [default: 32, for locks 2].
    #[arg(long, value_name = "MIB", conflicts_with = "cluster")]
    cache_mib: Option<u32>,
    /// Redo stream of each node in MiB; 0: changes are not logged [default: 0].
    #[arg(long, value_name = "MIB", conflicts_with = "cluster")]
    redo: Option<u32>,
    /// The most bytes of redo that travel with a block; 0: a changed block waits until its redo is
    /// durable [default: 4096].
    #[arg(long, value_name = "BYTES", conflicts_with = "cluster")]
    carry: Option<u32>,
    /// Seconds between checkpoints [default: 5].
    #[arg(long, value_name = "SECONDS", conflicts_with = "cluster")]
    checkpoint: Option<u32>,
}

/// The requirements of a workload on a temporary cluster.
pub(super) struct ClusterNeeds {
    /// The default number of nodes.
    pub(super) nodes: usize,
    /// The default length of a block in KiB.
    pub(super) block_kib: u32,
    /// The default memory of each node's cache in MiB.
    pub(super) cache_mib: u32,
    /// The number of blocks that the workload uses.
    pub(super) hot: u64,
    /// Nodes of this machine ask those of others.
    pub(super) is_forwarded: bool,
}

impl BenchClusters {
    /// Returns whether an option selects temporary clusters.
    fn is_temporary(&self) -> bool {
        let numbers = [self.nodes.is_some(), self.workers.is_some(), self.block_size.is_some()];
        let others = [self.waiting.is_some(), self.cache_mib.is_some(), !self.rail.is_empty()];
        let redo = [self.redo.is_some(), self.carry.is_some(), self.checkpoint.is_some()];
        self.temporary || self.pin || [&numbers[..], &others, &redo].concat().contains(&true)
    }

    /// Calls `measure` with the configuration and rail of each cluster.
    pub(super) fn each(
        &self,
        needs: &ClusterNeeds,
        measure: &mut dyn FnMut(&Config, &str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if !self.is_temporary() && self.cluster.dir().is_some() {
            let config = self.cluster.load()?;
            if !needs.is_forwarded {
                measured::check_here(&config, config.nodes.iter())?;
            }
            return measure(&config, &measured::rails_in_use(&config)?);
        }
        let both = ["shm", "tcp"].map(String::from);
        for rail in if self.rail.is_empty() { &both[..] } else { &self.rail } {
            let wanted = TemporarySpec {
                rail,
                nodes: self.nodes.unwrap_or(needs.nodes),
                workers: self.workers.unwrap_or(1),
                waiting: self.waiting.unwrap_or(Waiting::Adaptive),
                block_kib: self.block_size.unwrap_or(needs.block_kib),
                cache_mib: self.cache_mib.unwrap_or(needs.cache_mib),
                hot: needs.hot,
                pin: self.pin,
            };
            let mut parameters = wanted.parameters()?;
            parameters.config.redo_mib = self.redo.unwrap_or_default();
            parameters.config.carry_bytes = self.carry.unwrap_or(parameters.config.carry_bytes);
            let seconds = self.checkpoint.unwrap_or(parameters.config.checkpoint_seconds);
            parameters.config.checkpoint_seconds = seconds;
            let cluster = TemporaryCluster::start(&parameters, &mut |_, _| {})?;
            measure(cluster.config(), rail).map_err(measured::explained)?;
            measured::take_down(cluster)?;
        }
        Ok(())
    }
}
