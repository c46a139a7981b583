//! The commands, a file each: `Args` are what it takes, `run` does it.

mod ask;
pub(crate) mod bench;
mod child;
mod cluster;
mod demo;
mod down;
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
mod registry;
mod stat;
mod status;
mod up;
mod vote;
mod wait_for;

use clap::Subcommand;

pub(crate) use perf::Missed;

/// A command that was run ended with this code, which becomes ours; it has said itself what there was to say.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) u8);

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the command ended with {}", self.0)
    }
}

impl std::error::Error for Ended {}

/// A command that has codes of its own did not do what it was asked for.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) code: u8,
    pub(crate) why: anyhow::Error,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&crate::output::reasons(&self.why))
    }
}

impl std::error::Error for Failed {}

/// The code for arguments that make no sense. Those that run a command keep the small numbers for its codes.
pub(crate) fn wrong_usage() -> u8 {
    let runs_a_command = std::env::args_os().nth(1).is_some_and(|name| name == "lock");
    if runs_a_command { lock::NOT_LOCKED } else { 2 }
}

/// What there is to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a cluster: its configuration and its disk group.
    Init(init::Args),
    /// Make, replace and end the keys that nodes prove to each other.
    Key(key::Args),
    /// Start every node of a cluster that belongs on this machine.
    Up(up::Args),
    /// Run one node in the foreground; or have one belong to the cluster, or not any more.
    Node(node::Args),
    /// Add and remove voting files while the cluster runs.
    Vote(vote::Args),
    /// Show the nodes of a cluster: members, votes, rails, blocks.
    Status(status::Args),
    /// Write everything back and end every node of a cluster on this machine.
    Down(down::Args),
    /// Run a command while it holds a lock of the cluster.
    Lock(lock::Args),
    /// Show who has which lock, and who waits for it.
    Locks(locks::Args),
    /// Be a member of a group: hear what is said in it, say something, wait for others.
    Group(group::Args),
    /// Read, change and watch what the cluster knows about itself.
    Registry(registry::Args),
    /// Show every rail of every pair of nodes: in use, or why not.
    Rails(rails::Args),
    /// Show the traffic of the interconnect: by channel and message size, once, as a log or live.
    Stat(stat::Args),
    /// Print what the nodes count as OpenMetrics text.
    Metrics(metrics::Args),
    /// Show what all of it is worth: three nodes, two interconnects, in under a minute.
    Demo(demo::Args),
    /// Run a workload and check that nothing was lost.
    Bench(bench::Args),
    /// Measure the interconnect between two nodes.
    Perf(Box<perf::Args>),
    /// Clean up after another process. Not for people.
    #[command(hide = true)]
    Janitor(janitor::Args),
}

impl Command {
    /// Does it.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Init(args) => init::run(args),
            Self::Key(args) => key::run(args),
            Self::Up(args) => up::run(args),
            Self::Node(args) => node::run(args),
            Self::Vote(args) => vote::run(args),
            Self::Status(args) => status::run(args),
            Self::Down(args) => down::run(args),
            Self::Lock(args) => lock::run(args),
            Self::Locks(args) => locks::run(args),
            Self::Group(args) => group::run(args),
            Self::Registry(args) => registry::run(args),
            Self::Rails(args) => rails::run(args),
            Self::Stat(args) => stat::run(args),
            Self::Metrics(args) => metrics::run(args),
            Self::Demo(args) => demo::run(args),
            Self::Bench(args) => bench::run(args),
            Self::Perf(args) => perf::run(*args),
            Self::Janitor(args) => janitor::run(args),
        }
    }
}
