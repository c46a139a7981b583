//! The layout of a cluster's directory. Only names: this module touches no file.
//!
//! | path | content |
//! |---|---|
//! | `cluster.toml` | the configuration |
//! | `keys/cluster.key` | the key that every node proves to have |
//! | `keys/next.key` | the newer of two valid keys, while one replaces the other |
//! | `keys/sql.crt`, `keys/sql.key` | the certificate with which nodes encrypt SQL, and its key |
//! | `keys/sql.password` | the first password of the first user of SQL |
//! | `disks/` | the disks of the group, unless the configuration puts them elsewhere |
//! | `voting/` | the voting files, unless the configuration puts them elsewhere |
//! | `run/NAME.lock` | locked while node NAME lives; holds its process number, its incarnation, and the boot and PID namespace in which the number has its meaning |
//! | `run/NAME.supervisor` | locked while the process lives that returns NAME after an eviction; signed in the same way, with the time of the return in place of the incarnation, in milliseconds since the host has booted |
//! | `run/NAME.sock` | its control socket |
//! | `run/NAME.attach` | the socket at which programs attach to it |
//! | `run/NUMBER.peers` | the socket at which the other nodes of its host reach it |
//! | `log/NAME.log` | what a node started by `plexus up` says |
//! | `state/NAME.json` | NAME's last incarnation, and whether it left in order (`phase`) |
//! | `state/NAME.registry.1`, `.2` | NAME's two copies of the registry |
//! | `state/*.new` | the next contents of such a file: the earlier ones, with space to grow |

use std::path::{Path, PathBuf};

/// The directory of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterDir(PathBuf);

impl ClusterDir {
    /// Names the cluster in `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// Returns the directory itself.
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// Returns the paths of a node's two copies of the registry.
    pub fn registry(&self, name: &str) -> [PathBuf; 2] {
        [1, 2].map(|copy| self.state().join(format!("{name}.registry.{copy}")))
    }
}

/// Defines a method for each path in a directory. A path with `{name}` is that of a node.
macro_rules! paths {
    ($($(#[$doc:meta])* $path:ident$(($name:ident))? = $directory:ident / $file:literal;)*) => {
        impl ClusterDir {
            $($(#[$doc])*
            pub fn $path(&self $(, $name: &str)?) -> PathBuf {
                self.$directory().join(format!($file))
            })*
        }
    };
}

paths! {
    /// Returns the path of the configuration.
    config = root / "cluster.toml";
    /// Returns the directory of the cluster's keys.
    keys = root / "keys";
    /// Returns the path of the key.
    cluster_key = keys / "cluster.key";
    /// Returns the path of the newer of two keys.
    next_key = keys / "next.key";
    /// Returns the path of the certificate for SQL.
    sql_certificate = keys / "sql.crt";
    /// Returns the path of the key of that certificate.
    sql_key = keys / "sql.key";
    /// Returns the path of the first password for SQL.
    sql_password = keys / "sql.password";
    /// Returns the directory for the disks that `init` creates.
    disks = root / "disks";
    /// Returns the directory for the voting files that `init` creates.
    voting = root / "voting";
    /// Returns the directory for locks and sockets of running nodes.
    run = root / "run";
    /// Returns the path of the control socket of a node.
    socket(name) = run / "{name}.sock";
    /// Returns the path of the socket at which programs attach to a node.
    attach(name) = run / "{name}.attach";
    /// Returns the path of the lock of a node.
    lock(name) = run / "{name}.lock";
    /// Returns the path of the lock of a node's supervisor.
    supervisor(name) = run / "{name}.supervisor";
    /// Returns the directory of the logs.
    logs = root / "log";
    /// Returns the path of the log of a node.
    log(name) = logs / "{name}.log";
    /// Returns the directory for state that outlives a node.
    state = root / "state";
    /// Returns the path of the record of a node's last incarnation.
    record(name) = state / "{name}.json";
    /// Returns the path of the lock of a command that starts nodes.
    start_lock = state / "start.lock";
}
