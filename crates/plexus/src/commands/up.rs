//! `plexus up`: starts the nodes of this machine as daemons.

use std::time::{Duration, Instant};

use anyhow::bail;
use plexus_node::{
    blocks::{Blocks, thousands},
    commands::Status,
    config::Config,
    control::{Control, Seen},
    launch::{self, Launch, LaunchError, Launched},
    lifecycle::Stage,
    settle,
};

use super::cluster::{Cluster, local_nodes, this_program};
use crate::output;

/// The longest time for the nodes to join.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The longest wait for the number of lost blocks, which members know after a rebuild: normally
/// within milliseconds.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);

/// The message if that time has passed.
const NOT_KNOWN: &str = "not every node has reported its lost blocks yet";

/// The longest time to accept lost blocks; a node gives up earlier and reports the reason.
const ACCEPT_WITHIN: Duration = Duration::from_secs(60);

/// The longest time for nodes of a failed start to end by themselves, and the polling interval.
const END_WITHIN: Duration = Duration::from_secs(10);
const ASK_EVERY: Duration = Duration::from_millis(5);

/// The arguments of `plexus up`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Accept lost blocks as they are on disk, without their last acknowledged changes.
    #[arg(long)]
    accept_lost: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `plexus up`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.cluster.load()?;
    let names: Vec<_> = local_nodes(&config)?.into_iter().map(|node| node.name.as_str()).collect();
    let seen = launch::look_at_all(&config.dir, &names);
    if let Some(why) = seen.iter().find_map(|(_, seen)| silence_reason(seen)).filter(|_| args.accept_lost) {
        bail!("no blocks were accepted: {why}");
    }
    let running: Vec<_> =
        seen.iter().filter(|(_, seen)| seen.alive().is_some()).map(|(name, _)| name.as_str()).collect();
    let absent: Vec<_> = names.iter().copied().filter(|name| !running.contains(name)).collect();
    let lost = settle::settle(&config)?.lost;
    let started = start(&config, &absent)?;
    let mut outcome =
        UpOutcome { running, started, accepted: 0, lost: known_lost(&config, &names), named: lost };
    if args.accept_lost && outcome.lost != Some(0) {
        if outcome.lost.is_none() {
            bail!("no blocks were accepted: {NOT_KNOWN}; see `plexus status`, then try again");
        }
        outcome.accepted = accept(&config, &names)?;
        outcome.lost = known_lost(&config, &names);
    }
    // The nodes may know of more lost blocks, or of blocks accepted since.
    if outcome.lost != Some(outcome.named.len()) {
        outcome.named = Blocks::EMPTY;
    }
    report(&args, &config, &outcome)
}

/// The outcome of `plexus up`.
struct UpOutcome<'a> {
    running: Vec<&'a str>,
    started: Vec<(String, u32)>,
    accepted: u64,
    /// The number of lost blocks, if known.
    lost: Option<u64>,
    /// The lost blocks themselves, if known here.
    named: Blocks,
}

/// Returns the reason why a running node does not answer.
fn silence_reason(seen: &Seen<Status>) -> Option<&str> {
    match seen {
        Seen::Silent(why) => Some(why),
        Seen::Alive(_) | Seen::Down => None,
    }
}

/// Returns the number of lost blocks, if all these nodes know it in time.
fn known_lost(config: &Config, names: &[&str]) -> Option<u64> {
    let end = Instant::now() + KNOWN_WITHIN;
    loop {
        let seen = launch::look_at_all(&config.dir, names);
        let knows = |status: &Status| {
            let last = status.body.membership.as_ref().and_then(|membership| membership.transitions.last());
            last.is_some_and(|last| last.phases.rebuild.is_some())
        };
        let known = seen.iter().map(|(_, seen)| seen.alive().filter(|status| knows(status)));
        if let Some(lost) = known.map(|status| Some(status?.blocks_lost)).collect::<Option<Vec<_>>>() {
            return lost.into_iter().max();
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// Accepts the lost blocks as they are on disk, recorded by each of these nodes. Returns their
/// number.
fn accept(config: &Config, names: &[&str]) -> anyhow::Result<u64> {
    let mut most = 0;
    for name in names {
        let mut control = Control::connect(&config.dir, name)?;
        control.set_timeout(ACCEPT_WITHIN)?;
        let answer = control.call("accept_lost", serde_json::Value::Null, |_| {})?;
        most = most.max(answer["accepted"].as_u64().unwrap_or_default());
    }
    Ok(most)
}

/// Starts the nodes called `names` and waits for them; stops all if one fails.
fn start(config: &Config, names: &[&str]) -> anyhow::Result<Vec<(String, u32)>> {
    let program = this_program()?;
    let mut nodes = Vec::new();
    let result = names
        .iter()
        .try_for_each(|name| {
            let launch =
                Launch { program: &program, dir: &config.dir, name, lifeline: None, network_namespace: None };
            nodes.push(launch.start()?);
            Ok::<_, LaunchError>(())
        })
        .and_then(|()| {
            launch::wait_until_ready(&config.dir, &mut nodes, READY_WITHIN, &mut |name, stage| match stage {
                Stage::Joining => output::progress(&format!("{name}: waiting for its peers")),
                stage => output::progress(&format!("{name}: {stage}")),
            })
        });
    match result {
        Ok(()) => Ok(nodes.iter().map(|node| (node.name.clone(), node.child.id())).collect()),
        Err(error) => {
            stop(&mut nodes);
            Err(error.into())
        }
    }
}

/// Stops the nodes of a failed start. Nodes that wait for a peer end at once; the others serve no
/// clients yet.
fn stop(nodes: &mut [Launched]) {
    for node in &mut *nodes {
        if let Some(pid) = i32::try_from(node.child.id()).ok().and_then(rustix::process::Pid::from_raw)
            && matches!(node.child.try_wait(), Ok(None))
        {
            // The child may end by itself meanwhile; its process id stays valid until it is waited
            // for.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
    let start = Instant::now();
    for node in nodes {
        while start.elapsed() < END_WITHIN && matches!(node.child.try_wait(), Ok(None)) {
            std::thread::sleep(ASK_EVERY);
        }
        // Killing an ended child does nothing.
        let _ = node.child.kill();
        let _ = node.child.wait();
    }
}

fn report(args: &Args, config: &Config, outcome: &UpOutcome<'_>) -> anyhow::Result<()> {
    let UpOutcome { running, started, accepted, lost, named } = outcome;
    if args.json {
        let started: Vec<_> =
            started.iter().map(|(name, pid)| serde_json::json!({ "name": name, "pid": pid })).collect();
        return output::json(&serde_json::json!({
            "started": started, "running_before": running, "lost": named, "blocks_lost": lost,
            "blocks_accepted": accepted,
        }));
    }
    if *accepted > 0 {
        output::line(&format!("accepted as they are on disk: {} blocks", thousands(*accepted)))?;
    }
    if lost.is_none() {
        output::line(&format!("{NOT_KNOWN}; see `plexus status`"))?;
    }
    if let Some(lost) = lost.filter(|lost| *lost > 0) {
        let blocks = if named.is_empty() { format!("{} blocks", thousands(lost)) } else { named.to_string() };
        let dir = config.dir.root().display();
        output::line(&format!(
            "lost, and refused until `plexus up {dir} --accept-lost`: {blocks} (a node died before their last changes reached the disk)"
        ))?;
    }
    let names: Vec<_> = started.iter().map(|(name, pid)| format!("{name} (pid {pid})")).collect();
    match (started.is_empty(), running.is_empty()) {
        (true, _) => output::line(&format!("{}: all nodes are already running", config.name)),
        (false, true) => output::line(&format!("{}: up: {}", config.name, names.join(", "))),
        (false, false) => output::line(&format!(
            "{}: up: {}; already running: {}",
            config.name,
            names.join(", "),
            running.join(", ")
        )),
    }
}
