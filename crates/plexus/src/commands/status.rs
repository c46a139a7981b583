//! `plexus status`: shows the nodes of a cluster.

use std::{collections::BTreeMap, time::Duration};

use plexus_admin::{
    config::{Config, this_host},
    control::{Seen, status_of_cluster},
    last_end::{LastEnd, last_end},
    status::Status,
    supervisor,
};
use plexus_observe::show::{Table, bytes, count, duration};
use plexus_redo::{RecoveryPhase, RecoveryStatus, RoomWaits};

use super::{cluster::Cluster, down::without_files};
use crate::output;

/// The number of view changes that are shown.
const SHOWN_CHANGES: usize = 8;

/// The age of a snapshot from which it is shown, in seconds.
const LONG_SNAPSHOT_S: f64 = 10.0;

/// The arguments of `plexus status`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `plexus status`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.cluster.load()?;
    let names: Vec<_> = config.nodes.iter().map(|node| node.name.as_str()).collect();
    let nodes = status_of_cluster(&config, &names);
    if args.json {
        let nodes: Vec<_> = nodes
            .iter()
            .map(|(name, status)| match status {
                Seen::Alive(status) => serde_json::to_value(status),
                Seen::Silent(why) | Seen::Unreachable(why) => {
                    Ok(serde_json::json!({ "name": name, "state": status.state(), "why": why }))
                }
                Seen::Down | Seen::Removed => {
                    let returns_in = supervisor::returns_in(&config.dir, name);
                    Ok(serde_json::json!({
                        "name": name, "state": status.state(), "last_end": last_end(&config.dir, name, false),
                        "returns": returns_in.is_some(), "returns_in_s": returns_in.map(|time| time.as_secs_f64()),
                    }))
                }
            })
            .collect::<Result<_, _>>()?;
        return output::json(&serde_json::json!({
            "cluster": config.name, "id": config.id.to_string(), "nodes": nodes,
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
        "unauthenticated",
    ];
    let mut table = Table::new(heads).left(4);
    for (name, seen) in &nodes {
        match seen {
            Seen::Alive(status) => table.row(row(status)),
            _ => table.row([name.clone(), seen.state().into()]),
        }
    }
    output::line(table.to_string().trim_end())?;
    let alive: Vec<&Status> = nodes.iter().filter_map(|(_, seen)| seen.alive()).collect();
    for line in membership(&config, &alive) {
        output::line(&line)?;
    }
    for status in &alive {
        output::line(&memory(&config, status))?;
    }
    if let Some(line) = oldest_snapshot(&alive) {
        output::line(&line)?;
    }
    for (name, seen) in &nodes {
        let lost = matches!(seen, Seen::Down).then(|| without_files(&config, name)).flatten();
        if let Some(line) = lost {
            output::line(&line)?;
            continue;
        }
        match seen {
            Seen::Alive(status) => {
                if let Some(LastEnd { at, why }) = last_end(&config.dir, name, true) {
                    output::line(&format!("{name}: its last run ended at {at}: {why}"))?;
                }
                if let Some(why) = &status.why {
                    output::line(&format!("{name}: stopped: {why}"))?;
                }
                if let Some(problem) = &status.runtime.keys {
                    output::line(&format!("{name}: keys: {problem}"))?;
                }
                if let Some(recovery) = &status.runtime.recovery {
                    output::line(&format!("{name}: {}", recovery_line(recovery)))?;
                }
                if let Some(waits) = &status.runtime.redo_waits {
                    output::line(&format!("{name}: {}", waits_line(waits)))?;
                }
                if let Some(why) = &status.runtime.refused {
                    output::line(&format!("{name}: {why}"))?;
                }
                if status.runtime.disk_reads.starts_with("threads") {
                    output::line(&format!("{name}: disks are read by {}", status.runtime.disk_reads))?;
                }
                for problem in &status.runtime.trouble {
                    output::line(&format!("{name}: {problem}"))?;
                }
                for peer in &status.runtime.peers {
                    if let Some(problem) = &peer.problem {
                        output::line(&format!("{name}: not every path to {} works: {problem}", peer.name))?;
                    }
                }
            }
            Seen::Silent(why) | Seen::Unreachable(why) => output::line(why)?,
            Seen::Removed => output::line(&format!(
                "{name}: removed from the cluster, or not added yet; `plexus node add {name}` adds it"
            ))?,
            Seen::Down => match last_end(&config.dir, name, false) {
                Some(end) => {
                    let LastEnd { at, why } = end;
                    let next = match supervisor::returns_in(&config.dir, name) {
                        Some(Duration::ZERO) => "it is starting again".into(),
                        Some(time) => format!(
                            "it returns by itself in {} s; `plexus up` starts it now",
                            time.as_millis().div_ceil(1000)
                        ),
                        None => "`plexus up` starts it".to_owned(),
                    };
                    output::line(&format!("{name}: down since {at}: {why}; {next}"))?;
                }
                None => match config.node(name)?.1.host.as_str() {
                    host if host == this_host() => {
                        output::line(&format!("{name}: it never ran on this host"))?
                    }
                    host => output::line(&format!(
                        "{name}: no member: it is down, or still starting; `plexus up` on {host} starts it"
                    ))?,
                },
            },
        }
    }
    Ok(())
}

/// Returns the line about the session with the oldest snapshot, if it holds it for long.
fn oldest_snapshot(alive: &[&Status]) -> Option<String> {
    let of = |status: &&Status| {
        let oldest = status.runtime.subsystems.get("transactions")?.get("oldest_snapshot")?;
        let session = format!("{}:{}", status.name, oldest["session"]);
        Some((oldest["snapshot"].as_u64()?, session, oldest["seconds"].as_f64()?))
    };
    let (_, session, seconds) = alive.iter().filter_map(of).min_by_key(|(snapshot, ..)| *snapshot)?;
    (seconds >= LONG_SNAPSHOT_S).then(|| {
        format!(
            "session {session} holds the oldest snapshot, for {}: versions of rows and dropped tables stay until it \
             ends; `plexus sessions end {session}` ends it",
            duration(seconds)
        )
    })
}

/// Returns the line about the last recovery at a node.
fn recovery_line(recovery: &RecoveryStatus) -> String {
    let RecoveryStatus { epoch, phase, streams, scanned, scan_ms, blocks, replayed, refused, .. } = recovery;
    let plural = if *streams == 1 { "" } else { "s" };
    let scan = format!("recovery in view {epoch}: {streams} redo stream{plural}");
    let mut line = match (phase, &recovery.problem) {
        (RecoveryPhase::Scanning, Some(why)) => {
            format!(
                "recovery in view {epoch}: blocks that no node holds are refused, because redo cannot be scanned \
                 (tried every few seconds): {why}"
            )
        }
        (RecoveryPhase::Scanning, None) => format!("{scan} to scan; blocks that no node holds wait"),
        (RecoveryPhase::Replaying, _) => format!(
            "{scan} scanned in {scan_ms:.0} ms; {} of {} blocks replayed, the others wait",
            count(*replayed),
            count(*blocks)
        ),
        (RecoveryPhase::Over, _) => format!(
            "{scan} with {} blocks scanned in {scan_ms:.0} ms, {} replayed here in {:.0} ms",
            count(*scanned),
            count(*replayed),
            recovery.replay_ms
        ),
    };
    if *refused > 0 {
        line += &format!(
            "; {} blocks are refused because their redo is incomplete or damaged; the log names them: put the stream \
             back that is missing, or accept the older blocks with `plexus redo give-up` of each stream of before \
             that `plexus redo` lists as open, then start the nodes again",
            count(*refused)
        );
    }
    line
}

/// Returns the line about changes that wait for room in the redo stream of a node.
fn waits_line(waits: &RoomWaits) -> String {
    let RoomWaits { tasks, longest_ms, used_bytes, stream_bytes } = waits;
    let changes =
        if *tasks == 1 { "1 change waits".into() } else { format!("{} changes wait", count(*tasks)) };
    format!(
        "{changes} for room in the redo stream, the first for {}; room comes when the blocks of its {} of {} are on disk",
        duration(longest_ms / 1e3),
        bytes(*used_bytes),
        bytes(*stream_bytes),
    )
}

fn row(status: &Status) -> [String; 12] {
    let (runtime, programs) = (&status.runtime, &status.runtime.programs);
    let rails =
        runtime.peers.iter().map(|peer| format!("{}:{}", peer.name, peer.rail.as_deref().unwrap_or("none")));
    let or_dash = |text: String| if text.is_empty() { "-".into() } else { text };
    [
        status.name.clone(),
        status.state.to_string(),
        or_dash(runtime.members.join(",")),
        or_dash(rails.collect::<Vec<_>>().join(" ")),
        status.pid.to_string(),
        runtime.epoch.to_string(),
        duration(status.uptime_s),
        format!("{} of {}", programs.attached, programs.attached_most),
        format!("{} of {}", bytes(programs.window_bytes), bytes(programs.window_bytes_most)),
        count(runtime.blocks_held),
        count(runtime.blocks_written),
        count(runtime.unauthenticated),
    ]
}

/// Returns the line about the memory of a node and its use.
fn memory(config: &Config, status: &Status) -> String {
    let Status { name, memory, .. } = status;
    format!(
        "memory of {name}: {}: {} shared (its cache of {} MiB, windows and rings, and those of peers on its host), {} heap, {} program",
        bytes(memory.total()),
        bytes(memory.shared),
        config.cache_mib,
        bytes(memory.heap),
        bytes(memory.program),
    )
}

/// Returns the lines about voting files, lease, fencing and view changes, as the first member sees
/// them.
fn membership(config: &Config, nodes: &[&Status]) -> Vec<String> {
    let member = nodes.iter().find_map(|status| {
        let membership = status.runtime.membership.as_ref()?;
        (membership.opened > 0).then_some((status, membership))
    });
    let Some((seen_by, membership)) = member else { return Vec::new() };
    let name = |node: u8| config.nodes.get(usize::from(node)).map_or("?", |node| node.name.as_str());
    let quorum = membership.quorum;
    let mut lines = vec![format!(
        "votes: {} of {} voting files answer, {} needed; lease {:.0} ms",
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
        lines.push(format!("view changes, as {} saw them, in ms:", seen_by.name));
        let heads = ["epoch", "change", "detect", "decide", "fence", "open", "rebuild"];
        let mut changes = Table::new(heads).left(2);
        let skipped = membership.transitions.len().saturating_sub(SHOWN_CHANGES);
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

/// Returns the kind of fencing of each node; names the fencing nodes only where their kinds differ.
fn fencing(nodes: &[&Status]) -> String {
    let mut kinds: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for status in nodes {
        for peer in status.runtime.peers.iter().filter(|peer| !peer.fencing.is_empty()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_wait_for_room_are_shown_with_what_brings_it() {
        let waits = RoomWaits { tasks: 3, longest_ms: 1_500.0, used_bytes: 9 << 20, stream_bytes: 16 << 20 };
        let line = waits_line(&waits);
        assert_eq!(
            line,
            "3 changes wait for room in the redo stream, the first for 1.5s; \
             room comes when the blocks of its 9 MiB of 16 MiB are on disk"
        );
    }
}
