//! `plexus locks`: shows each lock with its holders and waiting requests, as a table or a graph.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use plexus_admin::{
    config::Config,
    control::{ANSWER_WITHIN, Seen},
};
use plexus_node::locking::{LockHolder, LockedResource, NodeLocks};
use plexus_observe::show::Table;
use serde::Serialize;

use super::{cluster::ClusterOptions, wait_for};
use crate::output;

/// The arguments of `plexus locks`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterOptions,
    /// Draw the wait-for graph as FILE.svg, or as FILE.dot for Graphviz.
    #[arg(long, value_name = "FILE")]
    graph: Option<PathBuf>,
}

/// The locks of all nodes that answer.
#[derive(Serialize)]
struct ClusterLocks {
    nodes: Vec<NodeState>,
    /// The resources, in the order of their names.
    resources: Vec<LockedResource>,
    /// The least number of holders and waiters that are not listed.
    more: usize,
}

#[derive(Serialize)]
struct NodeState {
    name: String,
    /// `granting`, `stopped`, `silent`, `unreachable`, `down` or `removed`.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// Runs `plexus locks`.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.cluster.load()?;
    let seen = ask(&config);
    if seen.iter().all(|(_, seen)| seen.alive().is_none()) {
        match seen.iter().find_map(|(_, seen)| seen.silence()) {
            Some(why) => bail!("{why}"),
            None => bail!("no node runs; start them with `plexus up -C {}`", config.dir.root().display()),
        }
    }
    let locks = joined(seen);
    if let Some(path) = &args.graph {
        draw(&locks, path)?;
    }
    if args.cluster.json {
        return output::json(&locks);
    }
    output::line(&text(&locks))
}

/// Asks all nodes for the locks that they master.
fn ask(config: &Config) -> Vec<(String, Seen<NodeLocks>)> {
    let names: Vec<_> = config.nodes.iter().map(|node| node.name.as_str()).collect();
    Seen::of_cluster(config, &names, "locks", ANSWER_WITHIN)
}

/// Returns the holders of a lock, as far as the nodes that answer know them.
pub(super) fn holders(config: &Config, name: &str) -> Result<Vec<String>> {
    let resources = joined(ask(config)).resources.into_iter().filter(|resource| resource.name == name);
    let held = resources.flat_map(|resource| resource.granted);
    let holder = |held: LockHolder| {
        let owner = held.owner.as_deref().unwrap_or("a session");
        format!("{owner} of {} in mode {}", held.node, held.mode)
    };
    Ok(held.map(holder).collect())
}

fn draw(locks: &ClusterLocks, path: &Path) -> Result<()> {
    let graph = wait_for::graph(&locks.resources);
    let (title, mut note) = ("Wait-for graph", wait_for::note(&graph));
    let unknown = locks.unknown();
    if !unknown.is_empty() {
        note.push_str(&format!("; without the locks that {} masters", unknown.join(", ")));
    }
    let drawn = match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => graph.svg(title, &note)?,
        Some("dot") => graph.dot(title),
        _ => bail!("--graph {}: use a name that ends in .svg or .dot", path.display()),
    };
    fs::write(path, drawn).with_context(|| format!("cannot write {}", path.display()))?;
    output::progress(&format!("{}: {note}", path.display()));
    Ok(())
}

impl ClusterLocks {
    /// Returns the nodes whose mastered locks are not known.
    fn unknown(&self) -> Vec<&str> {
        let unknown =
            self.nodes.iter().filter(|node| !matches!(node.state, "granting" | "stopped" | "removed"));
        unknown.map(|node| node.name.as_str()).collect()
    }
}

fn joined(seen: Vec<(String, Seen<NodeLocks>)>) -> ClusterLocks {
    let mut locks = ClusterLocks { nodes: Vec::new(), resources: Vec::new(), more: 0 };
    let mut owners: BTreeMap<(String, u64), String> = BTreeMap::new();
    for (name, seen) in seen {
        let (state, why) = match seen {
            Seen::Alive(answer) => {
                locks.resources.extend(answer.resources);
                locks.more += answer.more;
                owners.extend(answer.owners.into_iter().map(|(lock, owner)| ((name.clone(), lock), owner)));
                (if answer.stopped { "stopped" } else { "granting" }, None)
            }
            Seen::Down | Seen::Removed => (seen.state(), None),
            Seen::Silent(_) | Seen::Unreachable(_) => (seen.state(), seen.silence().map(str::to_owned)),
        };
        locks.nodes.push(NodeState { name, state, why });
    }
    for resource in &mut locks.resources {
        for held in &mut resource.granted {
            held.owner = owners.get(&(held.node.clone(), held.lock)).cloned();
        }
        for wanted in &mut resource.waiting {
            wanted.owner = owners.get(&(wanted.node.clone(), wanted.lock)).cloned();
        }
    }
    locks.resources.sort_by(|one, other| one.name.cmp(&other.name));
    locks
}

fn text(locks: &ClusterLocks) -> String {
    let mut lines = match (locks.resources.is_empty(), locks.unknown().is_empty()) {
        (true, true) => vec!["no locks are held or requested".to_owned()],
        (true, false) => vec!["no locks are held or requested on the nodes that answered".to_owned()],
        (false, _) => vec![table(&locks.resources).to_string().trim_end().to_owned()],
    };
    if locks.more > 0 {
        lines.push(format!("and at least {} more", locks.more));
    }
    for NodeState { name, state, why } in &locks.nodes {
        match (*state, why) {
            ("stopped", _) => lines
                .push(format!("{name} has stopped: it grants no locks, and its clients have lost theirs")),
            ("down", _) => lines.push(format!("locks that {name} masters are not shown: it is down")),
            (_, Some(why)) => lines.push(format!("locks that {name} masters are not shown: {why}")),
            (_, None) => {}
        }
    }
    lines.join("\n")
}

fn table(resources: &[LockedResource]) -> Table {
    let heads = ["resource", "state", "mode", "node", "owner", "waited", "token", "master"];
    let mut table = Table::new(heads).left(5);
    for resource in resources {
        let row = |[state, mode, node]: [&str; 3], owner: &Option<String>, waited: String, token: String| {
            let cells =
                [&resource.name, state, mode, node, owner.as_deref().unwrap_or("?")].map(str::to_owned);
            cells.into_iter().chain([waited, token, resource.master.clone()])
        };
        for held in &resource.granted {
            let token = held.token.to_string();
            table.row(row(["holds", &held.mode, &held.node], &held.owner, String::new(), token));
        }
        for wanted in &resource.waiting {
            let state = if wanted.converts { "converts" } else { "waits" };
            let waited = format!("{:.1} s", wanted.waited_ms as f64 / 1e3);
            table.row(row([state, &wanted.mode, &wanted.node], &wanted.owner, waited, String::new()));
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_all_nodes_are_merged_and_unknown_nodes_are_named() {
        let of = |name: &str, master: &str| LockedResource {
            name: name.into(),
            master: master.into(),
            value: "valid".into(),
            granted: vec![LockHolder {
                node: "n2".into(),
                lock: 7,
                owner: None,
                mode: "EX".into(),
                token: 8,
            }],
            waiting: Vec::new(),
        };
        let answer = |stopped, resources, more| {
            let owners = [(7, "session 5".to_owned())].into();
            Seen::Alive(Box::new(NodeLocks { stopped, resources, more, owners }))
        };
        let seen = [
            ("n1", answer(false, vec![of("b", "n1"), of("c", "n1")], 1_000)),
            ("n2", answer(true, vec![of("a", "n2")], 200)),
            ("n3", Seen::Silent("n3 does not answer".into())),
            ("n4", Seen::Down),
        ];
        let locks = joined(seen.map(|(name, seen)| (name.to_owned(), seen)).into());
        let names: Vec<_> = locks.resources.iter().map(|resource| &*resource.name).collect();
        assert_eq!((names, locks.more), (vec!["a", "b", "c"], 1_200));
        assert_eq!(locks.resources[1].granted[0].owner.as_deref(), Some("session 5"), "owner reported by n2");
        let text = text(&locks);
        let after: Vec<_> = text.lines().skip_while(|line| !line.starts_with("and")).collect();
        let stopped = "n2 has stopped: it grants no locks, and its clients have lost theirs";
        let missing = [
            "locks that n3 masters are not shown: n3 does not answer",
            "locks that n4 masters are not shown: it is down",
        ];
        assert_eq!(after, ["and at least 1200 more", stopped, missing[0], missing[1]], "{text}");
        let states = serde_json::to_value(&locks.nodes).unwrap();
        let expected = serde_json::json!([
            { "name": "n1", "state": "granting" },
            { "name": "n2", "state": "stopped" },
            { "name": "n3", "state": "silent", "why": "n3 does not answer" },
            { "name": "n4", "state": "down" },
        ]);
        assert_eq!(states, expected);
    }

    #[test]
    fn nodes_that_cannot_be_reached_are_named() {
        let node = |name: &str, state| NodeState { name: name.into(), state, why: None };
        let why = Some("no node runs here".to_owned());
        let unreachable = NodeState { why, ..node("n2", "unreachable") };
        let of = |nodes| ClusterLocks { nodes, resources: Vec::new(), more: 0 };
        assert_eq!(text(&of(vec![node("n1", "granting")])), "no locks are held or requested");
        let some = of(vec![node("n1", "granting"), unreachable, node("n3", "removed")]);
        assert_eq!(
            text(&some),
            "no locks are held or requested on the nodes that answered\n\
             locks that n2 masters are not shown: no node runs here"
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("waits.svg");
        draw(&some, &path).unwrap();
        let drawn = fs::read_to_string(&path).unwrap();
        assert!(drawn.contains("no request waits; without the locks that n2 masters"), "{drawn}");
    }
}
