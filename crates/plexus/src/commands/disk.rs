//! `plexus disk`: accepts disks that are older images of themselves.

use anyhow::Result;
use clap::Subcommand;
use plexus_node::identity::Forced;
use serde_json::json;

use super::{
    ask::{confirm, connect},
    cluster::ClusterOptions,
};
use crate::output;

/// The arguments of `plexus disk`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: DiskCommand,
    #[command(flatten)]
    cluster: ClusterOptions,
}

#[derive(Subcommand)]
enum DiskCommand {
    /// Accept the images of the disks that are there, although the registry knows newer ones. All
    /// changes since these images were made are lost. The nodes must run; they serve the blocks
    /// some seconds later, and without redo after `plexus down` and `plexus up`. It can be repeated
    /// after an interruption.
    Force {
        /// Accept that changes are lost.
        #[arg(long, required = true)]
        lose_newer: bool,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
}

/// Runs `plexus disk`.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.cluster.load()?;
    let DiskCommand::Force { yes, .. } = args.command;
    let mut node = connect(&config, None)?;
    let mut ask = |accepts: bool| -> Result<Forced> {
        Ok(serde_json::from_value(node.call("disk.force", json!({ "accepts": accepts }), |_| ())?)?)
    };
    let mut forced = ask(false)?;
    if !forced.faults.is_empty() {
        forced.faults.iter().for_each(|fault| output::progress(fault));
        confirm("All changes since these images were made are lost. Accept them?", yes)?;
        forced = ask(true)?;
    }
    if args.cluster.json {
        return output::json(&forced);
    }
    match forced.faults.len() {
        0 => output::line("every disk is the one that the registry knows: nothing to accept"),
        1 => output::line("accepted: the registry takes this disk for the newest"),
        count => output::line(&format!("accepted: the registry takes these {count} disks for the newest")),
    }
}
