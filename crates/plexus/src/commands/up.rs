//! `plexus up`: starts the nodes of this machine as daemons.
//!
//! The failure of one node to start leaves the others alone. Of several commands that start nodes
//! at the same time one starts them; the others wait for it and report what runs then.

use std::{
    collections::BTreeSet,
    fs::{File, TryLockError},
    os::unix::fs::OpenOptionsExt,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use plexus_admin::{
    config::{Config, this_host},
    control::Seen,
    create,
    launch::{self, Launch, LaunchError, Launched},
    status::{Stage, Status},
    supervisor,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::{
    cluster::{Cluster, local_nodes, this_program},
    init::disk_creation,
    interrupt::interrupted,
    systemd::Manager,
};
use crate::output;

/// The longest time for the nodes to join.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The longest time for nodes of a failed start to end by themselves, and the polling interval.
const END_WITHIN: Duration = Duration::from_secs(10);
const ASK_EVERY: Duration = Duration::from_millis(5);

/// The longest time for the nodes to compare redo streams and disks with the registry: longer than
/// they wait for its answer, so that they have a reason by then. And the polling interval.
const COMPARED_WITHIN: Duration = Duration::from_secs(15);
const COMPARED_EVERY: Duration = Duration::from_millis(50);

/// The time after which a reason that has not changed is the one to report.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// The arguments of `plexus up`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Overwrite what is on the block devices, and in the files, that become disks of this machine
    /// at its first start. One that is mounted or in use is never overwritten.
    #[arg(long)]
    force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `plexus up`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.cluster.load_as_owner()?;
    let names: Vec<_> = local_nodes(&config)?.into_iter().map(|node| node.name.as_str()).collect();
    create::complete(&config, &this_host(), &disk_creation(args.force))?;
    start_nodes(&config, &names, args.json)?;
    Ok(())
}

/// Starts those of the nodes called `names` that do not run, and prints the result.
///
/// # Errors
/// A node did not start. Nodes that run go on.
pub(crate) fn start_nodes(config: &Config, names: &[&str], json: bool) -> anyhow::Result<UpOutcome> {
    let interrupted = interrupted()?;
    create::complete(config, &this_host(), &disk_creation(false))?;
    let seen = launch::look_at_all(&config.dir, names);
    if let Some(status) = seen.iter().find_map(|(_, seen)| ending(seen)) {
        bail!(
            "{} has {}: `plexus down` runs, or did not end it; run `plexus down`, then `plexus up`",
            status.name,
            status.state
        );
    }
    let running = names_of(&seen);
    let lock = lock(config, &interrupted)?;
    // Another command may have started nodes while this one waited for the lock.
    let now = launch::look_at_all(&config.dir, names);
    for (name, _) in now.iter().filter(|(_, seen)| matches!(seen, Seen::Down)) {
        // A node that waits to return is started now.
        supervisor::dismiss(&config.dir, name).map_err(anyhow::Error::msg)?;
    }
    let now = names_of(&now);
    let absent: Vec<_> = names.iter().copied().filter(|name| !now.iter().any(|now| now == name)).collect();
    let failed = start(config, &absent, &interrupted)?;
    let seen = launch::look_at_all(&config.dir, names);
    // Nodes of other hosts with this directory may have to start before these serve.
    drop(lock);
    let up = names_of(&seen);
    let up: Vec<_> = up.iter().map(String::as_str).collect();
    let started = seen.iter().filter(|(name, _)| !running.contains(name));
    let started = started.filter_map(|(name, seen)| Some((name.clone(), seen.alive()?.pid))).collect();
    let outcome = UpOutcome { running, started, failed };
    report(json, config, &outcome)?;
    let failed = outcome.failed.iter().filter(|failure| !is_removed(failure)).map(ToString::to_string);
    let failed: Vec<_> = failed.collect();
    match (failed.is_empty(), up.is_empty()) {
        (true, _) => match refused(config, &up, &interrupted).join("; ") {
            refused if refused.is_empty() => Ok(outcome),
            refused => bail!("running: {}, but {refused}", up.join(", ")),
        },
        (false, true) => bail!("{}", failed.join("; ")),
        (false, false) => bail!("{}; running: {}", failed.join("; "), up.join(", ")),
    }
}

/// Waits until the nodes called `names` have compared redo streams and disks with what the registry
/// knows of them, for a limited time. Returns the reasons for which they refuse blocks.
fn refused(config: &Config, names: &[&str], interrupted: &AtomicBool) -> Vec<String> {
    let (begin, mut last) = (Instant::now(), (BTreeSet::new(), Instant::now()));
    loop {
        let (mut reasons, mut waits) = (BTreeSet::new(), false);
        for (_, seen) in launch::look_at_all(&config.dir, names) {
            let Some(status) = seen.alive() else { continue };
            let recovery = status.runtime.recovery.as_ref();
            // The nodes that have the newest copy of the registry may be starting elsewhere.
            waits |= recovery.is_some_and(|recovery| recovery.waits_for_registry);
            let problem = recovery.and_then(|recovery| recovery.problem.clone());
            let refused = problem.map(|why| format!("blocks that no node holds are refused: {why}"));
            let refused = refused.or_else(|| status.runtime.refused.clone());
            waits |= refused.is_none() && !status.runtime.compared && status.state == Stage::Running;
            reasons.extend(refused);
        }
        // While nodes come, the registry may be closed for a moment.
        if reasons != last.0 {
            last = (reasons, Instant::now());
        }
        let is_settled = last.0.is_empty() || last.1.elapsed() > SETTLED_AFTER;
        let is_over = begin.elapsed() > COMPARED_WITHIN || interrupted.load(Relaxed);
        if is_over && waits && last.0.is_empty() {
            return vec![
                "redo streams and disks are not compared with the registry yet; see `plexus status`".into(),
            ];
        }
        if !waits && is_settled || is_over {
            return last.0.into_iter().collect();
        }
        std::thread::sleep(COMPARED_EVERY);
    }
}

/// The outcome of `plexus up`.
pub(crate) struct UpOutcome {
    running: Vec<String>,
    started: Vec<(String, u32)>,
    /// The nodes that did not start.
    pub(crate) failed: Vec<LaunchError>,
}

/// Returns true if the node did not start because it does not belong to the cluster.
fn is_removed(failure: &LaunchError) -> bool {
    matches!(failure, LaunchError::Removed { .. })
}

/// Returns the names of the nodes that answer.
fn names_of(seen: &[(String, Seen<Status>)]) -> Vec<String> {
    seen.iter().filter(|(_, seen)| seen.alive().is_some()).map(|(name, _)| name.clone()).collect()
}

/// Takes the lock of commands that start nodes of this cluster; waits while another command has it.
fn lock(config: &Config, interrupted: &AtomicBool) -> anyhow::Result<File> {
    let path = config.dir.start_lock();
    let file = File::options().create(true).write(true).truncate(false).mode(0o600).open(&path);
    let file = file.with_context(|| path.display().to_string())?;
    let mut said = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error).with_context(|| path.display().to_string()),
            Err(TryLockError::WouldBlock) if interrupted.load(Relaxed) => {
                bail!("interrupted; the other command that starts nodes goes on")
            }
            Err(TryLockError::WouldBlock) if !said => {
                output::progress("another command starts nodes of this cluster; waiting for it");
                said = true;
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(ASK_EVERY),
        }
    }
}

/// Returns the status of a node that no longer serves, because it was told to end.
fn ending(seen: &Seen<Status>) -> Option<&Status> {
    seen.alive().filter(|status| matches!(status.state, Stage::Quiesced | Stage::HandedBack))
}

/// Starts the nodes called `names` and waits for them. Returns the failures; nodes that failed are
/// stopped, and the others go on.
///
/// # Errors
/// The user interrupted the wait; the text says what goes on.
fn start(config: &Config, names: &[&str], interrupted: &AtomicBool) -> anyhow::Result<Vec<LaunchError>> {
    if let Some(manager) = Manager::of(config).filter(|_| !names.is_empty()) {
        bail!(
            "systemd runs the nodes of this machine: start them with `{}`, or remove its units with `plexus systemd remove`",
            manager.start_command(config, names)
        );
    }
    let program = this_program()?;
    let (mut nodes, mut failures) = (Vec::new(), Vec::new());
    for name in names {
        let launch =
            Launch { program: &program, dir: &config.dir, name, lifeline: None, network_namespace: None };
        match launch.start() {
            Ok(node) => nodes.push(node),
            Err(failure) => failures.push(failure),
        }
    }
    let is_over = |_: &[_]| interrupted.load(Relaxed);
    let say = &mut |name: &str, stage| match stage {
        Stage::Joining => output::progress(&format!("{name}: waiting for its peers")),
        stage => output::progress(&format!("{name}: {stage}")),
    };
    let stages = launch::wait_for_each(&config.dir, &mut nodes, READY_WITHIN, &is_over, say);
    if interrupted.load(Relaxed) {
        let nodes: Vec<_> = nodes.iter().zip(&stages).map(|(node, stage)| going_on(node, stage)).collect();
        bail!(
            "interrupted: {}; see `plexus status {dir}`, and end them with `plexus down {dir}`",
            nodes.join(", "),
            dir = config.dir.root().display()
        );
    }
    let mut failed = Vec::new();
    for (node, stage) in nodes.into_iter().zip(stages) {
        if let Err(failure) = stage {
            failed.push(node);
            failures.push(failure);
        }
    }
    stop(&mut failed);
    Ok(failures)
}

/// Describes what a node does after an interrupted start.
fn going_on(node: &Launched, stage: &Result<Stage, LaunchError>) -> String {
    let (name, pid) = (&node.name, node.child.id());
    match stage {
        Ok(_) => format!("{name} (pid {pid}) runs"),
        Err(LaunchError::Late { .. }) => format!("{name} (pid {pid}) goes on starting"),
        Err(failure) => failure.to_string(),
    }
}

/// Stops the nodes of a failed start. Nodes that wait for a peer end at once; the others serve no
/// clients yet.
fn stop(nodes: &mut [Launched]) {
    for node in &mut *nodes {
        if matches!(node.child.try_wait(), Ok(None)) {
            // The child may end by itself meanwhile; its process id stays valid until it is waited
            // for.
            let _ = kill_process(Pid::from_child(&node.child), Signal::TERM);
        }
    }
    let start = Instant::now();
    for node in nodes {
        while start.elapsed() < END_WITHIN && matches!(node.child.try_wait(), Ok(None)) {
            std::thread::sleep(ASK_EVERY);
        }
        // The child leads a session, in which its node is. Killing an ended child does nothing.
        if let Ok(None) = node.child.try_wait() {
            let _ = kill_process_group(Pid::from_child(&node.child), Signal::KILL);
        }
        let _ = node.child.kill();
        let _ = node.child.wait();
    }
}

fn report(json: bool, config: &Config, outcome: &UpOutcome) -> anyhow::Result<()> {
    let UpOutcome { running, started, failed } = outcome;
    let removed: Vec<_> = failed.iter().filter(|failure| is_removed(failure)).collect();
    if json {
        let started: Vec<_> =
            started.iter().map(|(name, pid)| serde_json::json!({ "name": name, "pid": pid })).collect();
        let lines = |failures: &[&LaunchError]| failures.iter().map(ToString::to_string).collect::<Vec<_>>();
        let failed: Vec<_> = failed.iter().filter(|failure| !is_removed(failure)).collect();
        return output::json(&serde_json::json!({
            "started": started, "running_before": running, "removed": lines(&removed),
            "failed": lines(&failed),
        }));
    }
    removed.iter().try_for_each(|removed| output::line(&removed.to_string()))?;
    let names: Vec<_> = started.iter().map(|(name, pid)| format!("{name} (pid {pid})")).collect();
    match (started.is_empty(), running.is_empty()) {
        (true, true) => Ok(()),
        (true, false) if failed.is_empty() => {
            output::line(&format!("{}: all nodes are already running", config.name))
        }
        (true, false) => output::line(&format!("{}: already running: {}", config.name, running.join(", "))),
        (false, true) => output::line(&format!("{}: up: {}", config.name, names.join(", "))),
        (false, false) => output::line(&format!(
            "{}: up: {}; already running: {}",
            config.name,
            names.join(", "),
            running.join(", ")
        )),
    }
}
