//! `plexus up`: starts the nodes of this machine as daemons.

use std::time::{Duration, Instant};

use anyhow::bail;
use plexus_node::{
    blocks::Blocks,
    config::Config,
    launch::{self, Launch, LaunchError, Launched},
    life::Stage,
    settle,
};

use super::cluster::{Cluster, local_nodes, this_program};
use crate::output;

/// How long the nodes may take to find each other.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// How long nodes that were started in vain may take to end by themselves, and how often they are looked at.
const END_WITHIN: Duration = Duration::from_secs(10);
const ASK_EVERY: Duration = Duration::from_millis(5);

/// Which cluster, and how.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Take lost blocks as they are on disk, which is older than what was last acknowledged.
    #[arg(long)]
    accept_lost: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Starts them.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.cluster.load()?;
    let names: Vec<_> = local_nodes(&config)?.into_iter().map(|node| node.name.as_str()).collect();
    let (running, absent): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| launch::status(&config.dir, name).is_some());
    if args.accept_lost && !running.is_empty() {
        bail!("--accept-lost: {} runs; take the cluster down first with `plexus down`", running.join(", "));
    }
    let accepted = if args.accept_lost { settle::accept_lost(&config)? } else { Blocks::EMPTY };
    let lost = settle::settle(&config)?.lost;
    let started = start(&config, &absent)?;
    report(&args, &config, &running, &started, &accepted, &lost)
}

/// Starts the nodes called `names` and waits for them; all or none.
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
                Stage::Joining => output::progress(&format!("{name}: waits for its peers")),
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

/// Ends what was started in vain. Nodes that wait for a peer go at once; the rest of them serves nobody yet.
fn stop(nodes: &mut [Launched]) {
    for node in &mut *nodes {
        if let Some(pid) = i32::try_from(node.child.id()).ok().and_then(rustix::process::Pid::from_raw)
            && matches!(node.child.try_wait(), Ok(None))
        {
            // It may end by itself meanwhile; it is our child, so the number is still its.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
    let start = Instant::now();
    for node in nodes {
        while start.elapsed() < END_WITHIN && matches!(node.child.try_wait(), Ok(None)) {
            std::thread::sleep(ASK_EVERY);
        }
        // Does nothing to one that has ended.
        let _ = node.child.kill();
        let _ = node.child.wait();
    }
}

fn report(
    args: &Args,
    config: &Config,
    running: &[&str],
    started: &[(String, u32)],
    accepted: &Blocks,
    lost: &Blocks,
) -> anyhow::Result<()> {
    if args.json {
        let started: Vec<_> =
            started.iter().map(|(name, pid)| serde_json::json!({ "name": name, "pid": pid })).collect();
        return output::json(&serde_json::json!({
            "started": started, "running_before": running, "lost": lost, "blocks_lost": lost.len(),
            "blocks_accepted": accepted.len(),
        }));
    }
    if !accepted.is_empty() {
        output::line(&format!("accepted as they are on disk: {accepted}"))?;
    }
    if !lost.is_empty() {
        output::line(&format!(
            "lost, and refused until `plexus down` and `plexus up --accept-lost`: {lost} (an earlier run ended before their \
             last changes reached the disk)"
        ))?;
    }
    let names: Vec<_> = started.iter().map(|(name, pid)| format!("{name} (pid {pid})")).collect();
    match (started.is_empty(), running.is_empty()) {
        (true, _) => output::line(&format!("{}: every node runs already", config.name)),
        (false, true) => output::line(&format!("{}: up: {}", config.name, names.join(", "))),
        (false, false) => output::line(&format!(
            "{}: up: {}; {} ran already",
            config.name,
            names.join(", "),
            running.join(", ")
        )),
    }
}
