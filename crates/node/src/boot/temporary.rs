//! A cluster that ends with its creator: for the demonstration, for measurements, for tests.
//!
//! Its directory is marked and watched by a [`Janitor`]; its nodes have a lifeline to this process.
//! So nothing remains after an error or a SIGKILL.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use plexus_base::Waiting;
use plexus_disks::BlockSize;
use plexus_fabric::RailKind;

use crate::{
    admin::control::{Control, ControlError},
    boot::config::{ClusterId, Config, Interconnect, Membership, NodeConfig, this_host},
    boot::create::{self, CreateError},
    boot::down::{self, Down},
    boot::janitor::{self, Janitor},
    boot::launch::{Launch, LaunchError, Launched, wait_until_ready},
    boot::layout::ClusterDir,
    lifecycle::Stage,
};

/// The longest that the nodes may take to connect.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The parameters of a temporary cluster.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// The nodes.
    pub nodes: Vec<NodeParameters>,
    /// The number of workers of each node.
    pub workers: u8,
    /// The way in which threads wait.
    pub waiting: Waiting,
    /// The length of blocks.
    pub block_size: BlockSize,
    /// The memory of each node's cache in MiB.
    pub cache_mib: u32,
    /// The number of blocks of the disk group.
    pub blocks: u64,
    /// The seconds between checkpoints.
    pub checkpoint_seconds: u32,
    /// The settings of the interconnect.
    pub interconnect: Interconnect,
    /// The settings of the membership.
    pub membership: Membership,
    /// The path of the program `plexus`.
    pub program: PathBuf,
    /// The directory in which the cluster's directory is created.
    pub directory: PathBuf,
}

/// The parameters of a node.
#[derive(Clone, Debug)]
pub struct NodeParameters {
    /// The machine for which it stands.
    pub host: String,
    /// The address at which it listens; `None` for a loopback address of its own.
    pub address: Option<SocketAddr>,
    /// The further addresses, one for each path.
    pub addresses: Vec<SocketAddr>,
    /// The kinds of rails, in the order of preference.
    pub rails: Vec<RailKind>,
    /// The cores that it is pinned to; empty allows all.
    pub cores: Vec<usize>,
    /// The path of the network namespace of the node.
    pub network_namespace: Option<PathBuf>,
    /// The fence command of the node; empty for none.
    pub fence: Vec<String>,
}

impl Parameters {
    /// Describes a small cluster of `nodes` nodes of this machine with every kind of rail.
    ///
    /// # Errors
    /// The path of this program is unknown.
    pub fn new(nodes: usize) -> io::Result<Self> {
        let node = NodeParameters {
            host: this_host(),
            address: None,
            addresses: Vec::new(),
            rails: RailKind::BUILT_IN.into(),
            cores: Vec::new(),
            network_namespace: None,
            fence: Vec::new(),
        };
        Ok(Self {
            nodes: vec![node; nodes],
            workers: 1,
            waiting: Waiting::default(),
            block_size: BlockSize::from_kib(16).ok_or(io::ErrorKind::InvalidInput)?,
            cache_mib: 32,
            blocks: 4096,
            checkpoint_seconds: 5,
            interconnect: Interconnect::default(),
            membership: Membership::default(),
            program: std::env::current_exe()?,
            directory: std::env::temp_dir(),
        })
    }
}

/// A running temporary cluster. Dropping it kills the nodes and removes everything.
#[derive(Debug)]
pub struct TemporaryCluster {
    config: Config,
    nodes: Vec<Launched>,
    janitor: Option<Janitor>,
    lifelines: Vec<io::PipeWriter>,
}

/// The reason why a temporary cluster failed.
#[derive(Debug, thiserror::Error)]
pub enum TemporaryError {
    /// The cluster cannot be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The nodes did not start.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A system call failed.
    #[error("a temporary cluster: {what}: {source}")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> TemporaryError {
    move |source| TemporaryError::Io { what, source }
}

impl TemporaryCluster {
    /// Creates the cluster and starts its nodes, which are called `n1`, `n2`, …; returns when all
    /// serve.
    ///
    /// # Errors
    /// See [`TemporaryError`]; nothing remains.
    pub fn start(
        parameters: &Parameters,
        progress: &mut dyn FnMut(&str, Stage),
    ) -> Result<Self, TemporaryError> {
        let mut janitor = Janitor::start(&parameters.program).map_err(io_error("starting the janitor"))?;
        let id = create::new_id().map_err(io_error("naming it"))?;
        let directory = std::path::absolute(&parameters.directory).map_err(io_error("placing it"))?;
        let dir = directory.join(format!("plexus-{:08x}", id.0 as u32));
        janitor.watch_dir(&dir).map_err(io_error("having it watched"))?;
        std::fs::create_dir(&dir).map_err(io_error("making its directory"))?;
        janitor::mark(&dir).map_err(io_error("marking its directory"))?;

        let dir = ClusterDir::new(dir.join("cluster"));
        let nodes = node_configs(&parameters.nodes, id);
        let config = Config {
            id,
            workers: parameters.workers,
            waiting: parameters.waiting,
            block_size: parameters.block_size,
            cache_mib: parameters.cache_mib,
            checkpoint_seconds: parameters.checkpoint_seconds,
            interconnect: parameters.interconnect.clone(),
            membership: parameters.membership.clone(),
            blocks: parameters.blocks,
            ..Config::new(dir, "temporary", nodes).map_err(io_error("naming voting files"))?
        };
        create::create(&config)?;
        let mut cluster = Self { config, nodes: Vec::new(), janitor: Some(janitor), lifelines: Vec::new() };
        for (index, node) in parameters.nodes.iter().enumerate() {
            cluster.launch(index, node.network_namespace.as_deref(), &parameters.program)?;
        }
        wait_until_ready(&cluster.config.dir, &mut cluster.nodes, READY_WITHIN, progress)?;
        Ok(cluster)
    }

    fn launch(
        &mut self,
        index: usize,
        namespace: Option<&Path>,
        program: &Path,
    ) -> Result<(), TemporaryError> {
        let (reader, writer) = io::pipe().map_err(io_error("a lifeline"))?;
        let (dir, name) = (&self.config.dir, &self.config.nodes[index].name);
        let launch = Launch { program, dir, name, lifeline: Some(reader), network_namespace: namespace };
        let launched = launch.start()?;
        let pid = launched.child.id();
        self.nodes.push(launched);
        self.lifelines.push(writer);
        if let Some(janitor) = &mut self.janitor {
            janitor.watch_pid(pid).map_err(io_error("having a node watched"))?;
        }
        Ok(())
    }

    /// Returns the cluster's configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Connects to the node with number `index`.
    ///
    /// # Errors
    /// The node does not run.
    pub fn control(&self, index: usize) -> Result<Control, ControlError> {
        Control::connect(&self.config.dir, &self.config.nodes[index].name)
    }

    /// Returns the process of the node with number `index`.
    #[must_use]
    pub fn pid(&self, index: usize) -> u32 {
        self.nodes[index].child.id()
    }

    /// Takes the cluster down as `plexus down` does, and removes it.
    ///
    /// # Errors
    /// Something could not be removed. The report says if nodes did not end cleanly.
    pub fn stop(mut self) -> Result<Down, TemporaryError> {
        let names: Vec<_> = self.config.nodes.iter().map(|node| node.name.as_str()).collect();
        let down = down::take_down(&self.config.dir, &names, &|_, _| ());
        self.finish().map_err(io_error("removing it"))?;
        Ok(down)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.lifelines.clear();
        let result = self.janitor.take().map_or(Ok(()), Janitor::finish);
        for node in &mut self.nodes {
            node.child.wait()?;
        }
        result
    }
}

impl Drop for TemporaryCluster {
    fn drop(&mut self) {
        // Runs only after a failure, and that failure is reported.
        let _ = self.finish();
    }
}

/// Returns the nodes, each with a loopback address made from the cluster's random identifier, so
/// that clusters do not collide, and a port below those that the system gives to clients.
fn node_configs(nodes: &[NodeParameters], id: ClusterId) -> Vec<NodeConfig> {
    let [a, b, c, d, ..] = id.0.to_le_bytes();
    let port = 20_000 + u16::from(d) * 16;
    let address = |index: usize| SocketAddr::from(([127, a, b, c.clamp(1, 254)], port + index as u16));
    let config = |(index, node): (usize, &NodeParameters)| NodeConfig {
        host: node.host.clone(),
        addresses: node.addresses.clone(),
        cores: node.cores.clone(),
        fence: node.fence.clone(),
        ..NodeConfig::new(
            &format!("n{}", index + 1),
            node.address.unwrap_or_else(|| address(index)),
            node.rails.clone(),
        )
    };
    nodes.iter().enumerate().map(config).collect()
}
