//! `plexus key`: the keys of a cluster.

use anyhow::Result;
use clap::Subcommand;
use plexus_node::keys;

use super::cluster::Cluster;
use crate::output;

/// The arguments of `plexus key`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: KeyCommand,
    /// Print the path of the key file as JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum KeyCommand {
    /// Create the key of a cluster that has none (`plexus init` creates one).
    Create(Cluster),
    /// Create a second key. Running nodes use it at once and still accept the old one.
    Rotate(Cluster),
    /// Retire the old one of two keys. Nodes that have no other key are refused.
    Retire(Cluster),
}

/// Runs `plexus key`.
pub(crate) fn run(args: Args) -> Result<()> {
    let (path, then) = match args.command {
        KeyCommand::Create(cluster) => {
            let path = keys::create(&cluster.load()?.dir)?;
            (path, "created; copy it to every machine of the cluster".to_owned())
        }
        KeyCommand::Rotate(cluster) => {
            let config = cluster.load()?;
            let then = format!(
                "created, valid beside the old key; copy it to every machine of the cluster, then retire the old key on each with \
                 `plexus key retire {}`",
                config.dir.root().display()
            );
            (keys::rotate(&config.dir)?, then)
        }
        KeyCommand::Retire(cluster) => {
            let then = "the only valid key now; open connections stay open";
            (keys::retire(&cluster.load()?.dir)?, then.to_owned())
        }
    };
    match args.json {
        true => output::json(&serde_json::json!({ "key": path })),
        false => output::line(&format!("{}: {then}", path.display())),
    }
}
