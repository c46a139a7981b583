//! A cluster that ends with its creator: for the demonstration, for measurements, for tests.
//!
//! Its directory is marked and watched by a [`Janitor`]; its nodes have a lifeline to this process.
//! So nothing remains after an error or a SIGKILL.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use plexus_disks::BlockSize;
use plexus_fabric::RailKind;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    config::{Config, NodeConfig},
    control::{Control, ControlError},
    create::{self, CreateError},
    down::{self, Down, DownScope},
    janitor::{self, Janitor},
    launch::{Launch, LaunchError, Launched, wait_until_ready},
    layout::ClusterDir,
    status::Stage,
};

/// The longest that the nodes may take to connect.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// A temporary cluster that can be started.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// The configuration. The start adds the voting files, which follow from the nodes.
    pub config: Config,
    /// The path of the network namespace of each node; without them nodes have that of this
    /// process.
    pub network_namespaces: Vec<PathBuf>,
    /// The path of the program `plexus`.
    pub program: PathBuf,
}

impl Parameters {
    /// Describes a small cluster of `nodes` nodes of this machine with every kind of rail. Its
    /// directory will be created in `place`.
    ///
    /// Each node has a loopback address made from the cluster's random identifier, so that clusters
    /// do not collide, and a port below those that the system gives to clients.
    ///
    /// # Errors
    /// There is no random number for the identifier, or no current directory.
    pub fn new(nodes: usize, program: PathBuf, place: &Path) -> io::Result<Self> {
        let id = create::new_id()?;
        let place = std::path::absolute(place)?.join(format!("plexus-{:08x}", id.0 as u32));
        let [a, b, c, d, ..] = id.0.to_le_bytes();
        let node = |index: u8| {
            let port = 20_000 + u16::from(d) * 16 + u16::from(index);
            let address = ([127, a, b, c.clamp(1, 254)], port).into();
            NodeConfig::new(index, &format!("n{}", index + 1), address, RailKind::BUILT_IN.into())
        };
        let (dir, nodes) = (ClusterDir::new(place.join("cluster")), (0..nodes as u8).map(node).collect());
        let config = Config {
            id,
            block_size: BlockSize::from_kib(16).ok_or(io::ErrorKind::InvalidInput)?,
            cache_mib: 32,
            blocks: 4096,
            ..Config::new(dir, "temporary", nodes)?
        };
        Ok(Self { config, network_namespaces: Vec::new(), program })
    }
}

/// A running temporary cluster. Dropping it kills the nodes and removes everything.
#[derive(Debug)]
pub struct TemporaryCluster {
    /// As the cluster was started.
    parameters: Parameters,
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
        let mut config = parameters.config.clone();
        let nodes: Vec<_> = config.nodes.iter().cloned().collect();
        config.voting = create::voting_files(&config.dir, &nodes).map_err(io_error("naming voting files"))?;
        let dir = config.dir.root().parent().unwrap_or(config.dir.root());
        janitor.watch_dir(dir).map_err(io_error("having it watched"))?;
        std::fs::create_dir(dir).map_err(io_error("making its directory"))?;
        janitor::mark(dir).map_err(io_error("marking its directory"))?;

        create::create(&config)?;
        let (parameters, janitor) = (parameters.clone(), Some(janitor));
        let mut cluster = Self { parameters, config, nodes: Vec::new(), janitor, lifelines: Vec::new() };
        for index in 0..nodes.len() {
            let (launched, lifeline) = cluster.launch(index)?;
            cluster.nodes.push(launched);
            cluster.lifelines.push(lifeline);
        }
        wait_until_ready(&cluster.config.dir, &mut cluster.nodes, READY_WITHIN, progress)?;
        Ok(cluster)
    }

    fn launch(&mut self, index: usize) -> Result<(Launched, io::PipeWriter), TemporaryError> {
        let (reader, writer) = io::pipe().map_err(io_error("a lifeline"))?;
        let (dir, name) = (&self.config.dir, &self.config.nodes[index].name);
        let Parameters { program, network_namespaces, .. } = &self.parameters;
        let network_namespace = network_namespaces.get(index).map(PathBuf::as_path);
        let launched = Launch { program, dir, name, lifeline: Some(reader), network_namespace }.start()?;
        if let Some(janitor) = &mut self.janitor {
            janitor.watch_pid(launched.child.id()).map_err(io_error("having a node watched"))?;
        }
        Ok((launched, writer))
    }

    /// Kills nodes with SIGKILL, all at once.
    ///
    /// # Errors
    /// The system refuses.
    pub fn kill(&self, nodes: &[usize]) -> Result<(), TemporaryError> {
        let kill = |node: &usize| Ok(kill_process(Pid::from_child(&self.nodes[*node].child), Signal::KILL)?);
        nodes.iter().try_for_each(kill).map_err(io_error("killing a node"))
    }

    /// Waits until the processes of killed nodes have ended.
    ///
    /// # Errors
    /// The system refuses.
    pub fn wait_for_end(&mut self, nodes: &[usize]) -> Result<(), TemporaryError> {
        let wait = |node: &usize| self.nodes[*node].child.wait().map(drop);
        nodes.iter().try_for_each(wait).map_err(io_error("waiting for the end of a node"))
    }

    /// Starts nodes again that have ended; returns when they serve.
    ///
    /// # Errors
    /// See [`TemporaryError`].
    pub fn start_again(&mut self, nodes: &[usize]) -> Result<(), TemporaryError> {
        for node in nodes {
            (self.nodes[*node], self.lifelines[*node]) = self.launch(*node)?;
        }
        Ok(wait_until_ready(&self.config.dir, &mut self.nodes, READY_WITHIN, &mut |_, _| {})?)
    }

    /// Returns the cluster's configuration.
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
    pub fn pid(&self, index: usize) -> u32 {
        self.nodes[index].child.id()
    }

    /// Takes the cluster down as `plexus down --all` does, and removes it.
    ///
    /// # Errors
    /// Something could not be removed. The report says if nodes did not end cleanly.
    pub fn stop(mut self) -> Result<Down, TemporaryError> {
        let down = down::take_down(&self.config, DownScope::All, &|_, _| ());
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
