//! `plexus key`: the keys of a cluster.

use anyhow::Result;
use clap::Subcommand;
use plexus_node::keys;

use super::cluster::Cluster;
use crate::output;

/// What is done with them.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    does: Does,
}

#[derive(Subcommand)]
enum Does {
    /// Make the key of a cluster that has none (`plexus init` makes one).
    Create(Cluster),
    /// Make a second key, valid beside the old one, which running nodes use from now on.
    Rotate(Cluster),
    /// End the old of two keys: nodes that have no other are not let in any more.
    Retire(Cluster),
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<()> {
    match args.does {
        Does::Create(cluster) => {
            let path = keys::create(&cluster.load()?.dir)?;
            output::line(&format!("{}: made; copy it to every machine of the cluster", path.display()))
        }
        Does::Rotate(cluster) => {
            let config = cluster.load()?;
            let path = keys::rotate(&config.dir)?;
            output::line(&format!(
                "{}: made, and valid beside the old key; copy it to every machine of the cluster, then end the old key on \
                 each with `plexus key retire {}`",
                path.display(),
                config.dir.root().display()
            ))
        }
        Does::Retire(cluster) => {
            let path = keys::retire(&cluster.load()?.dir)?;
            output::line(&format!(
                "{}: the only valid key now; connections that stand are not touched",
                path.display()
            ))
        }
    }
}
