//! The cluster that a command works on.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use plexus_node::{
    config::{Config, NodeConfig, this_host},
    layout::ClusterDir,
};

/// The cluster argument of a command.
#[derive(clap::Args)]
pub(crate) struct Cluster {
    /// The cluster's directory [default: $PLEXUS_DIR, or the current one if it is a cluster].
    dir: Option<PathBuf>,
}

impl Cluster {
    /// Returns the cluster in `dir`, or the default one.
    pub(crate) fn at(dir: Option<PathBuf>) -> Self {
        Self { dir }
    }

    /// Loads the configuration of the cluster.
    pub(crate) fn load(&self) -> anyhow::Result<Config> {
        let dir = match self.dir.clone().or_else(|| std::env::var_os("PLEXUS_DIR").map(PathBuf::from)) {
            Some(dir) => dir,
            None if Path::new("cluster.toml").exists() => PathBuf::from("."),
            None => bail!(
                "which cluster? the current directory is none; name its directory, set PLEXUS_DIR, or create one with \
                 `plexus init`"
            ),
        };
        load(&dir)
    }
}

/// The options `--cluster` and `--json` of commands whose positional arguments have another
/// meaning.
#[derive(clap::Args)]
pub(crate) struct ClusterOptions {
    /// The cluster's directory [default: $PLEXUS_DIR, or the current one if it is a cluster].
    #[arg(long, value_name = "DIR", global = true)]
    cluster: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl ClusterOptions {
    /// Loads the configuration of the cluster.
    pub(crate) fn load(&self) -> anyhow::Result<Config> {
        Cluster::at(self.cluster.clone()).load()
    }
}

/// Loads the configuration in `dir`.
pub(crate) fn load(dir: &Path) -> anyhow::Result<Config> {
    Ok(Config::load(&ClusterDir::new(dir))?)
}

/// Returns the nodes that belong on this machine.
pub(crate) fn local_nodes(config: &Config) -> anyhow::Result<Vec<&NodeConfig>> {
    let here = this_host();
    let local: Vec<_> = config.nodes.iter().filter(|node| node.host == here).collect();
    if local.is_empty() {
        let hosts: std::collections::BTreeSet<_> =
            config.nodes.iter().map(|node| node.host.as_str()).collect();
        bail!(
            "{}: no node belongs on this machine, {here}; the nodes belong on {}: correct `host` there, or set PLEXUS_HOST",
            config.dir.config().display(),
            hosts.into_iter().collect::<Vec<_>>().join(", ")
        );
    }
    Ok(local)
}

/// Returns the path of this program, to start it again.
pub(crate) fn this_program() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("finding the path of this program")?;
    // After a rebuild the running file still exists under /proc, without its name.
    let nameless = || format!("/proc/{}/exe", std::process::id()).into();
    Ok(Some(program).filter(|program| program.exists()).unwrap_or_else(nameless))
}
