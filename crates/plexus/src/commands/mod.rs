//! The commands, one file each: `Args` holds the arguments, `run` runs the command.

mod ask;
pub(crate) mod bench;
mod child;
mod cluster;
mod demo;
mod disk;
mod disks;
mod down;
mod fence_guard;
mod generate;
mod group;
mod init;
mod interrupt;
mod janitor;
mod key;
mod lock;
mod locks;
pub(crate) mod measured;
mod metrics;
mod node;
mod pace;
mod perf;
mod rails;
mod redo;
mod registry;
mod sessions;
mod sql;
mod stat;
mod status;
mod store;
mod systemd;
mod up;
mod vote;
mod wait_for;

use clap::Subcommand;

pub(crate) use cluster::{behind_command, explain_old_form};
pub(crate) use perf::MissedThreshold;

/// The exit code of a command that Plexus ran. Plexus exits with the same code and prints nothing.
#[derive(Debug, thiserror::Error)]
#[error("the command ended with {0}")]
pub(crate) struct CommandExit(pub(crate) u8);

/// A failure of a command that has its own exit codes.
#[derive(Debug, thiserror::Error)]
#[error("{}", crate::output::reasons(.why))]
pub(crate) struct CommandFailure {
    pub(crate) code: u8,
    pub(crate) why: anyhow::Error,
}

/// Returns the exit code for wrong usage. `plexus lock` uses another, since small numbers belong to
/// the command that it runs.
pub(crate) fn wrong_usage(command: &str) -> u8 {
    if command == "lock" { lock::NOT_LOCKED } else { 2 }
}

/// The commands of `plexus`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create a cluster: its configuration and its disk group.
    Init(init::Args),
    /// Create, rotate and retire the keys with which nodes authenticate each other.
    Key(key::Args),
    /// Start all nodes of a cluster that belong on this machine.
    Up(up::Args),
    /// Run one node in the foreground, or add or remove a node.
    Node(node::Args),
    /// Add and remove voting files while the cluster runs.
    Vote(vote::Args),
    /// Show the nodes of a cluster: members, votes, rails, blocks.
    Status(status::Args),
    /// Write all changes to disk and stop the nodes of this machine.
    Down(down::Args),
    /// Let systemd run the nodes of this machine.
    Systemd(systemd::Args),
    /// Run a command while holding a cluster lock.
    Lock(lock::Args),
    /// Show the locks, their holders and the waiting requests.
    Locks(locks::Args),
    /// Watch a group, send messages to it, or wait at a barrier.
    Group(group::Args),
    /// Read, change, watch, back up and restore the registry.
    Registry(registry::Args),
    /// Run SQL statements on a node, or print its address for clients of PostgreSQL.
    Sql(sql::Args),
    /// Show the sessions of SQL on all nodes, cancel what they do, or end them.
    Sessions(sessions::Args),
    /// Check the tables and what they are made of.
    Store(store::Args),
    /// Show the redo streams and their records, or give up one that is lost.
    Redo(redo::Args),
    /// Show the disks of a mirrored group: state, use, what is left to copy.
    Disks(disks::Args),
    /// Add, replace and drop disks of a mirrored group; accept disks that are older images.
    Disk(disk::Args),
    /// Show every rail of every pair of nodes: in use, or why it is not used.
    Rails(rails::Args),
    /// Show the traffic of the interconnect: by channel and message size, once, as a log or live.
    Stat(stat::Args),
    /// Print the counters of the nodes as OpenMetrics text.
    Metrics(metrics::Args),
    /// Compare shared memory with TCP on temporary clusters, in under a minute.
    Demo(demo::Args),
    /// Run a workload and check its results.
    Bench(bench::Args),
    /// Measure the interconnect between two nodes.
    Perf(Box<perf::Args>),
    /// Write the manual pages or the completions of shells (internal).
    #[command(hide = true)]
    Generate(generate::Args),
    /// Clean up after another process (internal).
    #[command(hide = true)]
    Janitor(janitor::Args),
    /// Run a fence command and end everything that it has started (internal).
    #[command(hide = true)]
    FenceGuard(fence_guard::Args),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Init(args) => init::run(args),
            Self::Key(args) => key::run(args),
            Self::Up(args) => up::run(args),
            Self::Node(args) => node::run(args),
            Self::Vote(args) => vote::run(args),
            Self::Status(args) => status::run(args),
            Self::Down(args) => down::run(args),
            Self::Systemd(args) => systemd::run(args),
            Self::Lock(args) => lock::run(args),
            Self::Locks(args) => locks::run(args),
            Self::Group(args) => group::run(args),
            Self::Registry(args) => registry::run(args),
            Self::Sql(args) => sql::run(args),
            Self::Sessions(args) => sessions::run(args),
            Self::Store(args) => store::run(args),
            Self::Redo(args) => redo::run(args),
            Self::Disks(args) => disks::run(args),
            Self::Disk(args) => disk::run(args),
            Self::Rails(args) => rails::run(args),
            Self::Stat(args) => stat::run(args),
            Self::Metrics(args) => metrics::run(args),
            Self::Demo(args) => demo::run(args),
            Self::Bench(args) => bench::run(args),
            Self::Perf(args) => perf::run(*args),
            Self::Generate(args) => generate::run(args),
            Self::Janitor(args) => janitor::run(args),
            Self::FenceGuard(args) => fence_guard::run(args),
        }
    }
}
