//! `plexus locks`: who has which lock, who waits for it and for how long.

use anyhow::Result;
use plexus_node::{control::Control, locking::LockedResource};
use plexus_observe::show;

use super::cluster::{Cluster, local_nodes};
use crate::output;

/// Of which cluster.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.cluster.load()?;
    let (nodes, mut missing) = (local_nodes(&config)?, Vec::new());
    let mut resources: Vec<LockedResource> = Vec::new();
    for node in &nodes {
        let answer = Control::connect(&config.dir, &node.name)
            .and_then(|mut control| control.call("locks", serde_json::Value::Null, |_| ()));
        match answer {
            Ok(answer) => resources.extend(serde_json::from_value::<Vec<LockedResource>>(answer)?),
            Err(error) => missing.push((&node.name, error)),
        }
    }
    if missing.len() == nodes.len()
        && let Some((_, error)) = missing.pop()
    {
        return Err(error.into());
    }
    for (node, error) in missing {
        output::progress(&format!("what {node} is the master of is not shown: {error}"));
    }
    resources.sort_by(|one, other| one.name.cmp(&other.name));
    if args.json {
        return output::json(&resources);
    }
    if resources.is_empty() {
        return output::line("nobody has or wants a lock");
    }
    let heads = ["resource", "state", "mode", "node", "lock", "waited", "token", "master"];
    let mut table = show::Table::new(heads).left(4);
    for resource in &resources {
        let row = |state: &str, mode: &str, node: &str, lock: u64, waited: String, token: String| {
            let cells = [&resource.name, state, mode, node].map(str::to_owned);
            cells.into_iter().chain([lock.to_string(), waited, token, resource.master.clone()])
        };
        for held in &resource.granted {
            table.row(row(
                "has it",
                &held.mode,
                &held.node,
                held.lock,
                String::new(),
                held.token.to_string(),
            ));
        }
        for wanted in &resource.waiting {
            let state = if wanted.converts { "converts" } else { "waits" };
            let waited = format!("{:.1} s", wanted.waited_ms as f64 / 1e3);
            table.row(row(state, &wanted.mode, &wanted.node, wanted.lock, waited, String::new()));
        }
    }
    output::line(table.to_string().trim_end())
}
