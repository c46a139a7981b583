//! What `plexus status` says of the membership: votes and lease, how each pair is fenced, the last changes of members.

use std::collections::BTreeMap;

use plexus_node::{commands::Status, config::Config};
use plexus_observe::show::Table;

/// How many changes are shown.
const CHANGES: usize = 8;

/// The lines, as the first node that is a member sees it.
pub(super) fn lines(config: &Config, nodes: &[&Status]) -> Vec<String> {
    let member = nodes.iter().find_map(|status| {
        let membership = status.body.membership.as_ref()?;
        (membership.opened > 0).then_some((status, membership))
    });
    let Some((seen_by, membership)) = member else { return Vec::new() };
    let name = |node: u8| config.nodes.get(usize::from(node)).map_or("?", |node| node.name.as_str());
    let quorum = membership.quorum;
    let mut lines = vec![format!(
        "votes: {} of {} voting files answer, {} are needed; the lease lasts {:.0} ms",
        quorum.answering, quorum.files, quorum.needed, membership.lease_ms
    )];
    let mut files = Table::new(["voting file", "where", "served by", "answered", "turn", "state"]).left(3);
    for file in &membership.files {
        let known = config.voting.iter().find(|known| known.id.to_string() == file.id);
        let path = file.path.clone().or_else(|| known.map(|known| known.path.display().to_string()));
        let state = match (&file.error, file.set_aside, file.votes) {
            (Some(error), ..) => error.clone(),
            (None, true, _) => "set aside: an older copy of itself".into(),
            (None, false, false) => "does not vote".into(),
            (None, false, true) => "votes".into(),
        };
        files.row([
            file.id.clone(),
            path.unwrap_or_default(),
            file.host.map_or("all", name).to_owned(),
            file.answered_ms.map_or("never".into(), |ms| format!("{ms} ms ago")),
            file.turn_ms.map_or(String::new(), |ms| format!("{ms:.1} ms")),
            state,
        ]);
    }
    lines.extend(files.to_string().trim_end().lines().map(str::to_owned));
    lines.push(format!("fencing: {}", fencing(nodes)));
    if !membership.transitions.is_empty() {
        lines.push(format!("changes of members, as {} saw them, in ms:", seen_by.name));
        let heads = ["epoch", "change", "detect", "decide", "fence", "open", "rebuild"];
        let mut changes = Table::new(heads).left(2);
        let skipped = membership.transitions.len().saturating_sub(CHANGES);
        for change in &membership.transitions[skipped..] {
            let came = change.came.iter().map(|(node, _)| format!("+{}", name(*node)));
            let gone = change.gone.iter().map(|(node, _)| format!("-{}", name(*node)));
            let phases = change.phases;
            let ms = |ms: f64| format!("{ms:.1}");
            changes.row([
                change.epoch.to_string(),
                gone.chain(came).collect::<Vec<_>>().join(" "),
                ms(phases.detect),
                ms(phases.decide),
                ms(phases.fence),
                ms(phases.open),
                phases.rebuild.map_or("-".into(), ms),
            ]);
        }
        lines.extend(changes.to_string().trim_end().lines().map(str::to_owned));
    }
    lines
}

/// How the others make sure of each node; who does it how only where they differ.
fn fencing(nodes: &[&Status]) -> String {
    let mut kinds: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for status in nodes {
        for peer in status.body.peers.iter().filter(|peer| !peer.fencing.is_empty()) {
            kinds.entry(&peer.name).or_default().entry(&peer.fencing).or_default().push(&status.name);
        }
    }
    let of_one = kinds.iter().map(|(node, kinds)| {
        let kinds = kinds.iter().map(|(kind, by)| match kinds.len() {
            1 => (*kind).to_owned(),
            _ => format!("{kind} by {}", by.join(" and ")),
        });
        format!("{node}: {}", kinds.collect::<Vec<_>>().join(", "))
    });
    of_one.collect::<Vec<_>>().join("; ")
}
