//! Where things lie in a cluster's directory. Names only: nothing here touches a file.
//!
//! | path | what |
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

/// A cluster's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterDir(PathBuf);

impl ClusterDir {
    /// The cluster in `root`.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.0.join("cluster.toml")
    }

    /// The cluster's keys.
    #[must_use]
    pub fn keys(&self) -> PathBuf {
        self.0.join("keys")
    }

    /// The key.
    #[must_use]
    pub fn cluster_key(&self) -> PathBuf {
        self.keys().join("cluster.key")
    }

    /// The newer of two keys.
    #[must_use]
    pub fn next_key(&self) -> PathBuf {
        self.keys().join("next.key")
    }

    /// Where the disks lie that `init` makes.
    #[must_use]
    pub fn disks(&self) -> PathBuf {
        self.0.join("disks")
    }

    /// Where the voting files lie that `init` makes.
    #[must_use]
    pub fn voting(&self) -> PathBuf {
        self.0.join("voting")
    }

    /// What belongs to living nodes.
    #[must_use]
    pub fn run(&self) -> PathBuf {
        self.0.join("run")
    }

    /// The control socket of a node.
    #[must_use]
    pub fn socket(&self, name: &str) -> PathBuf {
        self.run().join(format!("{name}.sock"))
    }

    /// The socket at which programs attach to a node.
    #[must_use]
    pub fn attach(&self, name: &str) -> PathBuf {
        self.run().join(format!("{name}.attach"))
    }

    /// The lock of a node.
    #[must_use]
    pub fn lock(&self, name: &str) -> PathBuf {
        self.run().join(format!("{name}.lock"))
    }

    /// Logs of nodes.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.0.join("log")
    }

    /// The log of a node.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.logs().join(format!("{name}.log"))
    }

    /// What must survive nodes.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    /// The record of a node's last run.
    #[must_use]
    pub fn record(&self, name: &str) -> PathBuf {
        self.state().join(format!("{name}.json"))
    }

    /// A node's two copies of the registry.
    #[must_use]
    pub fn registry(&self, name: &str) -> [PathBuf; 2] {
        [1, 2].map(|copy| self.state().join(format!("{name}.registry.{copy}")))
    }

    /// The number of the run and the lost blocks.
    #[must_use]
    pub fn lost(&self) -> PathBuf {
        self.state().join("lost.json")
    }

    /// Locked while one process settles what the last run left.
    #[must_use]
    pub fn settle_lock(&self) -> PathBuf {
        self.state().join("settle.lock")
    }
}
