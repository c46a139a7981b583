//! The layout of a cluster's directory. Only names: this module touches no file.
//!
//! | path | content |
//! |---|---|
//! | `cluster.toml` | the configuration |
//! | `keys/cluster.key` | the key that every node proves to have |
//! | `keys/next.key` | the newer of two valid keys, while one replaces the other |
//! | `disks/` | the disks of the group, unless the configuration puts them elsewhere |
//! | `voting/` | the voting files, unless the configuration puts them elsewhere |
//! | `run/NAME.lock` | locked while node NAME lives; holds its process id |
//! | `run/NAME.sock` | its control socket |
//! | `run/NAME.attach` | the socket at which programs attach to it |
//! | `log/NAME.log` | what a node started by `plexus up` says |
//! | `state/NAME.json` | NAME's last run: its incarnation, whether it left (`phase`), its last view, what it knew to be lost, and as of which view that was all (`known_as_of`; 0: not known) |
//! | `state/NAME.registry.1`, `.2` | NAME's two copies of the registry |
//! | `state/lost.json` | what the nodes of this machine found when they began: the number of the run, the blocks known to be lost, `known_as_of` as above, and lives with which nothing was lost (`clean`: node, incarnation, as of which view it knew that nothing was, or 0) |

use std::path::{Path, PathBuf};

/// The directory of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterDir(PathBuf);

impl ClusterDir {
    /// Names the cluster in `root`.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// Returns the directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// Returns the path of the configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.0.join("cluster.toml")
    }

    /// Returns the directory of the cluster's keys.
    #[must_use]
    pub fn keys(&self) -> PathBuf {
        self.0.join("keys")
    }

    /// Returns the path of the key.
    #[must_use]
    pub fn cluster_key(&self) -> PathBuf {
        self.keys().join("cluster.key")
    }

    /// Returns the path of the newer of two keys.
    #[must_use]
    pub fn next_key(&self) -> PathBuf {
        self.keys().join("next.key")
    }

    /// Returns the directory for the disks that `init` creates.
    #[must_use]
    pub fn disks(&self) -> PathBuf {
        self.0.join("disks")
    }

    /// Returns the directory for the voting files that `init` creates.
    #[must_use]
    pub fn voting(&self) -> PathBuf {
        self.0.join("voting")
    }

    /// Returns the directory for locks and sockets of running nodes.
    #[must_use]
    pub fn run(&self) -> PathBuf {
        self.0.join("run")
    }

    /// Returns the path of the control socket of a node.
    #[must_use]
    pub fn socket(&self, name: &str) -> PathBuf {
        self.run().join(format!("{name}.sock"))
    }

    /// Returns the path of the socket at which programs attach to a node.
    #[must_use]
    pub fn attach(&self, name: &str) -> PathBuf {
        self.run().join(format!("{name}.attach"))
    }

    /// Returns the path of the lock of a node.
    #[must_use]
    pub fn lock(&self, name: &str) -> PathBuf {
        self.run().join(format!("{name}.lock"))
    }

    /// Returns the directory of the logs.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.0.join("log")
    }

    /// Returns the path of the log of a node.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.logs().join(format!("{name}.log"))
    }

    /// Returns the directory for state that outlives a node.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    /// Returns the path of the record of a node's last run.
    #[must_use]
    pub fn record(&self, name: &str) -> PathBuf {
        self.state().join(format!("{name}.json"))
    }

    /// Returns the paths of a node's two copies of the registry.
    #[must_use]
    pub fn registry(&self, name: &str) -> [PathBuf; 2] {
        [1, 2].map(|copy| self.state().join(format!("{name}.registry.{copy}")))
    }

    /// Returns the path of the record of runs and lost blocks.
    #[must_use]
    pub fn lost(&self) -> PathBuf {
        self.state().join("lost.json")
    }

    /// Returns the path of the lock for settling the last run.
    #[must_use]
    pub fn settle_lock(&self) -> PathBuf {
        self.state().join("settle.lock")
    }
}
