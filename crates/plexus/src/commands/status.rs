//! `plexus status`: the nodes of a cluster.

mod votes;

use plexus_node::{
    blocks::thousands, commands::Status, config::Config, control::Seen, launch::look_at_all, settle,
};
use plexus_observe::show::{Table, bytes, count, duration};

use super::cluster::Cluster;
use crate::output;

/// Which cluster.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Shows them.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.cluster.load()?;
    let names: Vec<_> = config.nodes.iter().map(|node| node.name.as_str()).collect();
    let nodes = look_at_all(&config.dir, &names);
    let lost = lost(&config, &nodes)?;
    if args.json {
        let nodes: Vec<_> = nodes
            .iter()
            .map(|(name, status)| match status {
                Seen::Alive(status) => serde_json::to_value(status),
                Seen::Silent(why) => Ok(serde_json::json!({ "name": name, "state": "silent", "why": why })),
                Seen::Down => Ok(serde_json::json!({ "name": name, "state": "down" })),
            })
            .collect::<Result<_, _>>()?;
        return output::json(&serde_json::json!({
            "cluster": config.name, "id": config.id.to_string(), "nodes": nodes, "blocks_lost": lost.0,
        }));
    }
    let heads = [
        "node",
        "state",
        "members",
        "rails",
        "pid",
        "epoch",
        "uptime",
        "programs",
        "windows",
        "held",
        "written",
        "strangers",
    ];
    let mut table = Table::new(heads).left(4);
    for (name, seen) in &nodes {
        match seen {
            Seen::Alive(status) => table.row(row(status)),
            Seen::Silent(_) | Seen::Down => table.row([name.clone(), seen.state().into()]),
        }
    }
    output::line(table.to_string().trim_end())?;
    let alive: Vec<&Status> = nodes.iter().filter_map(|(_, seen)| seen.alive()).collect();
    for line in votes::lines(&config, &alive) {
        output::line(&line)?;
    }
    for (name, seen) in &nodes {
        match seen {
            Seen::Alive(status) => {
                if let Some(why) = &status.why {
                    output::line(&format!("{name}: stopped: {why}"))?;
                }
                if let Some(problem) = &status.body.keys {
                    output::line(&format!("{name}: keys: {problem}"))?;
                }
                for peer in &status.body.peers {
                    if let Some(problem) = &peer.problem {
                        output::line(&format!(
                            "{name}: {} is not reached over every path: {problem}",
                            peer.name
                        ))?;
                    }
                }
            }
            Seen::Silent(why) => output::line(why)?,
            Seen::Down => {}
        }
    }
    say_lost(&config, lost)
}

fn row(status: &Status) -> [String; 12] {
    let (body, programs) = (&status.body, &status.body.programs);
    let rails =
        body.peers.iter().map(|peer| format!("{}:{}", peer.name, peer.rail.as_deref().unwrap_or("none")));
    let or_dash = |text: String| if text.is_empty() { "-".into() } else { text };
    [
        status.name.clone(),
        status.state.to_string(),
        or_dash(body.members.join(",")),
        or_dash(rails.collect::<Vec<_>>().join(" ")),
        status.pid.to_string(),
        body.epoch.to_string(),
        duration(status.uptime_s),
        format!("{} of {}", programs.attached, programs.attached_most),
        format!("{} of {}", bytes(programs.window_bytes), bytes(programs.window_bytes_most)),
        count(body.blocks_held),
        count(body.blocks_written),
        count(body.strangers),
    ]
}

/// How many blocks are lost, and what is to be said of them: what the nodes know, or how the last run ended.
fn lost(config: &Config, nodes: &[(String, Seen<Status>)]) -> anyhow::Result<(u64, String)> {
    let live = nodes.iter().filter_map(|(_, seen)| Some(seen.alive()?.blocks_lost)).max();
    Ok(match live {
        Some(lost) => (lost, format!("{} blocks", thousands(lost))),
        None => {
            let lost = settle::settled(config)?.lost;
            (lost.len(), lost.to_string())
        }
    })
}

fn say_lost(config: &Config, (number, what): (u64, String)) -> anyhow::Result<()> {
    if number == 0 {
        return Ok(());
    }
    let dir = config.dir.root().display();
    output::line(&format!("lost: {what}; to take them as they are on disk: `plexus up {dir} --accept-lost`"))
}
