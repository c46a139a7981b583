//! `plexus key`: the keys of a cluster.

use anyhow::Result;
use clap::Subcommand;
use plexus_admin::keys;

use super::cluster::ClusterOptions;
use crate::output;

/// The arguments of `plexus key`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: KeyCommand,
    #[command(flatten)]
    cluster: ClusterOptions,
}

#[derive(Subcommand)]
enum KeyCommand {
    /// Create the key of a cluster that has none (`plexus init` creates one).
    Create,
    /// Create a second key. Running nodes use it at once and still accept the old one.
    Rotate,
    /// Retire the old one of two keys. Nodes that have no other key are refused.
    Retire,
}

/// Runs `plexus key`.
pub(crate) fn run(args: Args) -> Result<()> {
    let dir = args.cluster.load_as_owner()?.dir;
    let (path, then) = match args.command {
        KeyCommand::Create => {
            (keys::create(&dir)?, "created; copy it to every machine of the cluster".to_owned())
        }
        KeyCommand::Rotate => {
            let then = format!(
                "created, valid beside the old key; copy it to every machine of the cluster, then retire the old key on each with \
                 `plexus key retire -C {}`",
                dir.root().display()
            );
            (keys::rotate(&dir)?, then)
        }
        KeyCommand::Retire => {
            (keys::retire(&dir)?, "the only valid key now; open connections stay open".to_owned())
        }
    };
    match args.cluster.json {
        true => output::json(&serde_json::json!({ "key": path })),
        false => output::line(&format!("{}: {then}", path.display())),
    }
}
