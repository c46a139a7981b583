//! `plexus sessions`: the sessions of SQL on all nodes; cancels statements and ends sessions.

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use plexus_admin::control::{ANSWER_WITHIN, Seen};
use plexus_observe::show::Table;
use plexus_sql::SessionInfo;
use serde::Serialize;
use serde_json::json;

use super::{ask::connect, cluster::ClusterOptions};
use crate::output;

/// The characters of a statement that the table shows.
const SHOWN_CHARS: usize = 60;

/// The arguments of `plexus sessions`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<SessionsCommand>,
    #[command(flatten)]
    cluster: ClusterOptions,
}

#[derive(Subcommand)]
enum SessionsCommand {
    /// Cancel the statement that a session runs.
    Cancel {
        /// The session, as the list names it: n1:5.
        id: String,
    },
    /// End a session.
    End {
        /// The session, as the list names it: n1:5.
        id: String,
    },
}

/// The sessions of a node.
#[derive(Serialize)]
struct NodeSessions {
    node: String,
    /// `up`, or why the node says nothing.
    state: &'static str,
    sessions: Vec<SessionInfo>,
}

/// Runs `plexus sessions`.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.cluster.load()?;
    let (id, ends) = match args.command {
        Some(SessionsCommand::Cancel { id }) => (id, false),
        Some(SessionsCommand::End { id }) => (id, true),
        None => {
            let names: Vec<_> = config.nodes.iter().map(|node| node.name.as_str()).collect();
            let seen = Seen::<Vec<SessionInfo>>::of_cluster(&config, &names, "sessions", ANSWER_WITHIN);
            return list(seen, args.cluster.json);
        }
    };
    let (node, number) = id.split_once(':').context("name a session as the list does: n1:5")?;
    let number: i32 = number.parse().with_context(|| format!("{id}: name a session as n1:5"))?;
    let mut control = connect(&config, Some(node))?;
    control.call("session", json!({ "id": number, "ends": ends }), |_| ())?;
    output::line(&format!("{id} is {}", if ends { "ended" } else { "cancelled" }))
}

fn list(seen: Vec<(String, Seen<Vec<SessionInfo>>)>, as_json: bool) -> Result<()> {
    if let Some(why) = seen.iter().find_map(|(_, seen)| seen.silence())
        && seen.iter().all(|(_, seen)| seen.alive().is_none())
    {
        bail!("{why}");
    }
    let nodes: Vec<NodeSessions> = seen
        .into_iter()
        .map(|(node, seen)| NodeSessions {
            state: if seen.alive().is_some() { "up" } else { seen.state() },
            sessions: seen.alive().cloned().unwrap_or_default(),
            node,
        })
        .collect();
    if as_json {
        return output::json(&nodes);
    }
    let heads =
        ["session", "user", "database", "client", "state", "for", "transaction", "waits for", "statement"];
    let mut table = Table::new(heads).left(heads.len());
    for NodeSessions { node, sessions, .. } in &nodes {
        for session in sessions {
            let client = [&session.application, &session.address].map(String::as_str);
            let statement: String = session.statement.split_whitespace().collect::<Vec<_>>().join(" ");
            table.row([
                format!("{node}:{}", session.id),
                session.user.clone(),
                session.database.clone(),
                client.join(" ").trim().to_owned(),
                session.state.clone(),
                format!("{:.1} s", session.seconds),
                session.transaction.map(|id| id.to_string()).unwrap_or_default(),
                session.waits_for.clone().unwrap_or_default(),
                statement.chars().take(SHOWN_CHARS).collect(),
            ]);
        }
    }
    match table.is_empty() {
        true => output::line("no sessions")?,
        false => output::line(table.to_string().trim_end())?,
    }
    for node in nodes.iter().filter(|node| node.state != "up") {
        output::line(&format!("{}: {}", node.node, node.state))?;
    }
    Ok(())
}
