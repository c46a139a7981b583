//! `plexus bench`: workloads.

mod blocks;
mod clusters;
mod locks;
mod recovery;

pub(crate) use blocks::write_chart;

/// The arguments of `plexus bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    workload: BenchWorkload,
}

#[derive(clap::Subcommand)]
enum BenchWorkload {
    /// Clients on every node read and change the same blocks; the sums are checked at the end.
    Blocks(Box<blocks::BlocksArgs>),
    /// Clients take and release locks as fast as possible; tokens and counts are checked.
    Locks(Box<locks::LocksArgs>),
    /// Kill a node under load on a temporary cluster, then all: how long the others wait.
    Recovery(recovery::RecoveryArgs),
}

/// Runs `plexus bench`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.workload {
        BenchWorkload::Blocks(args) => blocks::run(&args),
        BenchWorkload::Locks(args) => locks::run(&args),
        BenchWorkload::Recovery(args) => recovery::run(&args),
    }
}
