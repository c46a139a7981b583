//! `plexus down`: writes all changes to disk and stops the nodes of this machine.

use anyhow::bail;
use plexus_node::{config::this_host, down, settle, supervisor};
use plexus_observe::show::count;

use super::{cluster::Cluster, systemd::Manager};
use crate::output;

/// The arguments of `plexus down`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `plexus down`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.cluster.load()?;
    let names: Vec<_> = config.nodes.iter().map(|node| node.name.as_str()).collect();
    let down = down::take_down(&config.dir, &names, &|name, action| {
        if !args.json {
            output::progress(&format!("{name}: {action}"));
        }
    });
    let here = this_host();
    for node in config.nodes.iter().filter(|node| node.host == here && !down.left.contains(&node.name)) {
        let waited = supervisor::dismiss(&config.dir, &node.name).map_err(anyhow::Error::msg)?;
        if waited && !args.json && down.ended.iter().all(|ended| ended.name != node.name) {
            output::progress(&format!("{}: does not return", node.name));
        }
    }
    if let Some(manager) = Manager::of(&config).filter(|_| !args.json) {
        let stop = manager.stop_command(&config);
        output::progress(&format!("a node that systemd is about to restart is stopped by `{stop}`"));
    }
    let lost = settle::settled(&config)?.lost;
    if args.json {
        let mut json = serde_json::to_value(&down)?;
        json["blocks_lost"] = lost.len().into();
        output::json(&json)?;
    } else if down.ended.is_empty() && down.left.is_empty() {
        output::line(&format!("{}: no node runs", config.name))?;
    } else if down.clean {
        let written: u64 = down.ended.iter().map(|node| node.written).sum();
        let held: u64 = down.ended.iter().map(|node| node.held).sum();
        output::line(&format!(
            "{}: down: {} nodes gave back {} blocks and wrote {} of them; {}",
            config.name,
            down.ended.len(),
            count(held),
            count(written),
            match lost.is_empty() {
                true => "everything is on disk".into(),
                false => format!(
                    "the last changes of {lost} are lost, and everything else is on disk; `plexus up --accept-lost` accepts these blocks as they are"
                ),
            }
        ))?;
    }
    if !down.left.is_empty() {
        bail!("{} did not end; see its log and end the process by hand", down.left.join(", "));
    }
    if let Some(why) = down.why {
        bail!("down, but not cleanly: {why}; `plexus up` will name the blocks that are lost, if any");
    }
    Ok(())
}
