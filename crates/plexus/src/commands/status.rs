//! `plexus status`: the nodes of a cluster.

use plexus_node::{
    commands::Status,
    config::Config,
    launch::{self, Seen},
    settle,
};

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
    let nodes: Vec<_> =
        config.nodes.iter().map(|node| (node.name.as_str(), launch::look(&config.dir, &node.name))).collect();
    let lost = settle::settled(&config)?.lost;
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
            "cluster": config.name, "id": config.id.to_string(), "nodes": nodes, "lost": lost,
        }));
    }
    let header =
        ["node", "pid", "state", "epoch", "members", "uptime", "rails", "held", "written", "strangers"];
    let mut rows = vec![header.map(String::from).to_vec()];
    rows.extend(nodes.iter().map(|(name, status)| match status {
        Seen::Alive(status) => row(status),
        Seen::Silent(_) => vec![(*name).into(), "-".into(), "silent".into()],
        Seen::Down => vec![(*name).into(), "-".into(), "down".into()],
    }));
    output::table(&rows)?;
    for (name, seen) in &nodes {
        match seen {
            Seen::Alive(status) => {
                if let Some(why) = &status.why {
                    output::line(&format!("{name}: stopped: {why}"))?;
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
    say_lost(&config, &lost)
}

fn row(status: &Status) -> Vec<String> {
    let body = &status.body;
    let rails =
        body.peers.iter().map(|peer| format!("{}:{}", peer.name, peer.rail.as_deref().unwrap_or("none")));
    let or_dash = |text: String| if text.is_empty() { "-".into() } else { text };
    vec![
        status.name.clone(),
        status.pid.to_string(),
        status.state.to_string(),
        body.epoch.to_string(),
        or_dash(body.members.join(",")),
        plexus_observe::show::duration(status.uptime_s),
        or_dash(rails.collect::<Vec<_>>().join(" ")),
        body.blocks_held.to_string(),
        body.blocks_written.to_string(),
        body.strangers.to_string(),
    ]
}

fn say_lost(config: &Config, lost: &plexus_node::blocks::Blocks) -> anyhow::Result<()> {
    if lost.is_empty() {
        return Ok(());
    }
    let dir = config.dir.root().display();
    output::line(&format!(
        "lost: {lost}; to take them as they are on disk: `plexus down {dir}`, then `plexus up {dir} --accept-lost`"
    ))
}
