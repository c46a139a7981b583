//! `plexus bench`: workloads.

mod blocks;
mod locks;
mod place;

pub(crate) use blocks::write_chart;

/// Which workload.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    workload: Workloads,
}

#[derive(clap::Subcommand)]
enum Workloads {
    /// Clients on every node read and change the same blocks; the sums are checked at the end.
    Blocks(Box<blocks::Blocks>),
    /// Clients take locks and give them up, as fast as they get them; tokens and counts are checked.
    Locks(Box<locks::Locks>),
}

/// Runs it.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.workload {
        Workloads::Blocks(args) => blocks::run(&args),
        Workloads::Locks(args) => locks::run(&args),
    }
}
