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
    /// Print the file as JSON.
    #[arg(long, global = true)]
    json: bool,
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
    let (path, then) = match args.does {
        Does::Create(cluster) => {
            let path = keys::create(&cluster.load()?.dir)?;
            (path, "made; copy it to every machine of the cluster".to_owned())
        }
        Does::Rotate(cluster) => {
            let config = cluster.load()?;
            let then = format!(
                "made, and valid beside the old key; copy it to every machine of the cluster, then end the old key on each with \
                 `plexus key retire {}`",
                config.dir.root().display()
            );
            (keys::rotate(&config.dir)?, then)
        }
        Does::Retire(cluster) => {
            let then = "the only valid key now; connections that stand are not touched";
            (keys::retire(&cluster.load()?.dir)?, then.to_owned())
        }
    };
    match args.json {
        true => output::json(&serde_json::json!({ "key": path })),
        false => output::line(&format!("{}: {then}", path.display())),
    }
}
