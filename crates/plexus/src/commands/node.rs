//! `plexus node`: runs one node in the foreground, or adds, removes, starts or stops one, or takes
//! the operator's word that a lost one has ended.

use std::{path::PathBuf, process::Command, sync::Arc};

use anyhow::{Context, bail};
use plexus_admin::{
    config::{Config, this_host},
    control::{ANSWER_WITHIN, Commands, Control, Seen},
    down::{self, Ended},
    last_end, launch, lifeline, service_manager,
    state::{self, Phase},
    status::Status,
    supervisor,
};
use plexus_node::{
    Node, NodeError, commands::FencedArgs, config_changes::ConfigChangeArgs, member, runtime::NodeRuntime,
};
use plexus_observe::{
    Snapshot,
    metrics::{self, Server},
    show::count,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use super::{
    CommandExit, CommandFailure,
    cluster::{self, ClusterOptions, this_program},
    up, vote,
};
use crate::output;

/// A node that was heard within this time still runs.
const HEARD_LATELY_MS: u64 = 1000;

/// The arguments of `plexus node`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<NodeCommand>,
    #[command(flatten)]
    cluster: cluster::ClusterOptions,
    /// The node's name.
    #[arg(required = true)]
    name: Option<String>,
    /// End when the other end of the pipe at this descriptor closes.
    #[arg(long, hide = true, value_name = "FD")]
    lifeline: Option<i32>,
    /// Start a session, detached from the terminal, and return the node after an eviction.
    #[arg(long, hide = true)]
    daemon: bool,
    /// Write the reason of a failure to the file at this descriptor too.
    #[arg(long, hide = true, value_name = "FD")]
    reason: Option<i32>,
    /// Enter this network namespace first.
    #[arg(long, hide = true, value_name = "PATH")]
    network_namespace: Option<PathBuf>,
}

/// The commands about one node of a cluster.
#[derive(clap::Subcommand)]
enum NodeCommand {
    /// Add a node to the running cluster: one that was removed, or a new one that every machine
    /// lists in cluster.toml.
    Add(NodeArgs),
    /// Remove a node from the cluster: end it without loss, and refuse it from then on.
    Remove {
        #[command(flatten)]
        node: NodeArgs,
        /// Remove a node that is down; the others recover what only it had from its redo.
        #[arg(long)]
        force: bool,
    },
    /// Start one node of this machine.
    Start(NodeArgs),
    /// End one node of this machine without loss while the others go on.
    Stop(NodeArgs),
    /// Vouch that a lost node has ended, where its fence command does not prove it.
    Fenced {
        #[command(flatten)]
        node: NodeArgs,
        /// Vouch for the end of the node. Without this option the command only explains the risk.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(clap::Args)]
struct NodeArgs {
    /// The node's name.
    name: String,
}

/// Runs `plexus node`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match &args.command {
        Some(NodeCommand::Add(node)) => node.add(&args.cluster),
        Some(NodeCommand::Remove { node, force }) => node.remove(&args.cluster, *force),
        Some(NodeCommand::Start(node)) => node.start(&args.cluster),
        Some(NodeCommand::Stop(node)) => node.stop(&args.cluster),
        Some(NodeCommand::Fenced { node, yes }) => node.fenced(&args.cluster, *yes),
        None => {
            let reason = args.reason;
            let served = serve(args);
            if let (Some(fd), Err(why)) = (reason, &served)
                && !why.is::<CommandExit>()
            {
                launch::tell_reason(fd, &output::reasons(why));
            }
            served
        }
    }
}

impl NodeArgs {
    fn add(&self, cluster: &ClusterOptions) -> anyhow::Result<()> {
        let name = &self.name;
        vote::change_node(&cluster.load()?, name, &ConfigChangeArgs::AddNode(name.clone()))?;
        match cluster.json {
            true => output::json(&json!({ "name": name, "belongs": true })),
            false => output::line(&format!("{name} belongs to the cluster: start it with `plexus up`")),
        }
    }

    fn remove(&self, cluster: &ClusterOptions, force: bool) -> anyhow::Result<()> {
        let (config, name) = (cluster.load()?, self.name.as_str());
        let (_, node) = config.node(name)?;
        let ended = match launch::look(&config.dir, name) {
            Seen::Silent(why) => bail!("{name} runs ({why}): end its process first, then use --force"),
            Seen::Alive(_) if force => {
                bail!("{name} runs, and --force is only for a node that is down: remove it without")
            }
            Seen::Alive(status) => {
                // One of the others must be there to remove it afterwards.
                vote::ask_another(&config, name, |_| Ok(()))?;
                Some(Self::end(cluster, &config, &status)?)
            }
            Seen::Down if node.host != this_host() && is_member(&config, name)? => {
                bail!("{name} runs on {}, and not this machine: run this command there", node.host)
            }
            // It may have left just before an earlier command was interrupted.
            _ if !force && !has_left(&config, name)? => bail!(
                "{name} is down and cannot hand back what it may have had: start it first (`plexus node start {name}`), or remove it as it is with --force"
            ),
            _ => None,
        };
        let removed = vote::change_node(&config, name, &ConfigChangeArgs::RemoveNode(name.into()));
        removed.with_context(|| match ended {
            Some(_) => format!("{name} has ended without loss and still belongs to the cluster"),
            None => format!("{name} was not removed"),
        })?;
        if cluster.json {
            return output::json(&json!({ "name": name, "belongs": false, "ended": ended }));
        }
        output::line(&format!("{name} no longer belongs to the cluster{}", handed_back(ended.as_ref())))?;
        for file in config.voting.iter().filter(|file| file.node.as_deref() == Some(name)) {
            output::line(&format!(
                "{name} served the voting file {id}, which still votes: `plexus vote remove {id}`",
                id = file.id
            ))?;
        }
        Ok(())
    }

    fn start(&self, cluster: &ClusterOptions) -> anyhow::Result<()> {
        let config = cluster.load()?;
        vote::check_is_local(&config, &self.name)?;
        let outcome = up::start_nodes(&config, &[&self.name], cluster.json)?;
        outcome.failed.into_iter().next().map_or(Ok(()), |removed| Err(removed.into()))
    }

    fn stop(&self, cluster: &ClusterOptions) -> anyhow::Result<()> {
        let (config, name) = (cluster.load()?, self.name.as_str());
        vote::check_is_local(&config, name)?;
        let ended = match launch::look(&config.dir, name) {
            Seen::Silent(why) => bail!("{why}; see its log, and end the process by hand"),
            Seen::Alive(status) => Some(Self::end(cluster, &config, &status)?),
            _ => None,
        };
        let returned = supervisor::dismiss(&config.dir, name).map_err(anyhow::Error::msg)?;
        match (cluster.json, &ended) {
            (true, _) => output::json(&json!({ "name": name, "ended": ended })),
            (false, None) if returned => output::line(&format!("{name} does not run, and does not return")),
            (false, None) => output::line(&format!("{name} does not run")),
            (false, Some(_)) => output::line(&format!("{name} has left{}", handed_back(ended.as_ref()))),
        }
    }

    /// Tells the nodes of this machine that wait for a proof that the node has ended; they tell the
    /// others.
    fn fenced(&self, cluster: &ClusterOptions, yes: bool) -> anyhow::Result<()> {
        let (config, name) = (cluster.load()?, self.name.as_str());
        let (number, _) = config.node(name)?;
        let (mut runs, mut waiting) = (false, Vec::new());
        for local in cluster::local_nodes(&config)? {
            let Seen::Alive(status) = launch::look(&config.dir, &local.name) else { continue };
            runs = true;
            let proofs =
                status.runtime.membership.into_iter().flat_map(|membership| membership.awaited_proofs);
            waiting.extend(proofs.filter(|proof| proof.node == number.0).map(|proof| (&local.name, proof)));
        }
        if !runs {
            bail!("no node that answers runs on this machine; run this command where one does");
        }
        for (waits, proof) in &waiting {
            let incarnation = proof.incarnation;
            if let Some(ms) = proof.heard_ms.filter(|ms| *ms < HEARD_LATELY_MS) {
                bail!(
                    "{name} (incarnation {incarnation}) was heard {ms} ms ago by {waits}: it is not off; end it first"
                );
            }
            if !yes {
                bail!(
                    "{waits} waits for a proof that {name} (incarnation {incarnation}) has ended. With --yes you vouch \
                     that its host is off, or cut off from all disks of the cluster, and stays so until {name} \
                     is started anew. The others then take over its locks and blocks: if it still runs, blocks are damaged"
                );
            }
        }
        for (waits, proof) in &waiting {
            let word = FencedArgs { node: name.into(), incarnation: proof.incarnation };
            let mut control = Control::connect(&config.dir, waits)?;
            control.set_timeout(ANSWER_WITHIN)?;
            control.call("fenced", serde_json::to_value(word)?, |_| ())?;
        }
        let told: Vec<_> = waiting.iter().map(|(waits, _)| waits.as_str()).collect();
        match (cluster.json, waiting.first()) {
            (true, first) => {
                let incarnation = first.map(|(_, proof)| proof.incarnation);
                output::json(&json!({ "name": name, "incarnation": incarnation, "told": told }))
            }
            (false, None) => output::line(&format!(
                "no node of this machine waits for a proof that {name} has ended; nothing is changed"
            )),
            (false, Some((_, proof))) => output::line(&format!(
                "{name} (incarnation {}) counts as ended; no longer waiting for it: {}",
                proof.incarnation,
                told.join(", ")
            )),
        }
    }

    /// Ends the node without loss.
    fn end(cluster: &ClusterOptions, config: &Config, status: &Status) -> anyhow::Result<Ended> {
        let progress = |name: &str, action: &str| {
            if !cluster.json {
                output::progress(&format!("{name}: {action}"));
            }
        };
        down::stop_node(&config.dir, status, &progress).map_err(anyhow::Error::msg)
    }
}

/// Returns what a node has done before its end, as the end of a line.
fn handed_back(ended: Option<&Ended>) -> String {
    ended.map_or(String::new(), |ended| {
        format!(": it gave back {} blocks and wrote {} of them", count(ended.held), count(ended.written))
    })
}

/// Returns true if the node has handed everything back before its last end on this machine.
fn has_left(config: &Config, name: &str) -> anyhow::Result<bool> {
    Ok(state::record(&config.dir, name)?.is_some_and(|record| record.phase == Phase::Left))
}

/// Returns true if the running nodes have the node called `name` as a member.
fn is_member(config: &Config, name: &str) -> anyhow::Result<bool> {
    let mut is_member = false;
    vote::ask_another(config, name, |node| {
        let status = node.call("status", serde_json::Value::Null, |_| ())?;
        is_member =
            status["members"].as_array().is_some_and(|members| members.iter().any(|member| member == name));
        Ok(())
    })?;
    Ok(is_member)
}

fn serve(args: Args) -> anyhow::Result<()> {
    let Some(name) = args.name else { bail!("give the name of a node") };
    // A line that cannot be written to a full disk is dropped; reporting that would end the node.
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).log_internal_errors(false);
    log.with_ansi(false).with_target(false).init();
    if args.daemon {
        return supervise(&args.cluster, &name);
    }
    // Entered before any other thread starts: threads inherit the namespace of their creator.
    if let Some(path) = &args.network_namespace {
        plexus_namespaces::enter(path)
            .with_context(|| format!("{}: entering the network namespace {}", name, path.display()))?;
    }
    if let Some(fd) = args.lifeline {
        lifeline::watch(fd, || std::process::exit(1)).with_context(|| format!("--lifeline {fd}"))?;
    }
    end_on_panic();
    // Each client of SQL needs a descriptor; the usual limit of 1024 is for programs with `select`.
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("the limit of descriptors stays as it is: {error}");
    }
    if let Err(error) = service_manager::connect() {
        tracing::warn!("the service manager at $NOTIFY_SOCKET hears nothing of this node: {error}");
    }
    let config = loaded(&args.cluster)?;
    let (_, node) = config.node(&name).map_err(|error| with_code(launch::CONFIG_CODE, error))?;
    let reserved = node.metrics.map(|address| {
        Server::reserve(address).with_context(|| {
            format!(
                "{}: cannot serve metrics at {address}; change `metrics` of the node in cluster.toml",
                name
            )
        })
    });
    let reserved = reserved.transpose()?;
    let more = |commands: &Commands, runtime: &Arc<NodeRuntime>| {
        plexus_observe::register_snapshot(commands, runtime);
        plexus_bench::register_measurements(commands, runtime);
    };
    last_end::note_start(&name);
    let node = match Node::start(config, &name, more, member::end_process) {
        Ok(node) => node,
        // It was told to end, and it has.
        Err(error @ NodeError::Interrupted(_)) => {
            output::error(&error.into());
            return Ok(());
        }
        Err(error @ NodeError::Removed(_)) => return Err(with_code(launch::REMOVED_CODE, error)),
        Err(error) => return Err(error.into()),
    };
    // Holds the runtime only during a request, so that a scraper never delays the end of the node.
    let _metrics =
        reserved.map(|reserved| reserved.serve(source(node.runtime()))).transpose().context("metrics")?;
    node.run_until_stopped().map_err(|error| with_code(launch::NOT_IN_ORDER_CODE, error))?;
    last_end::note_end("it was told to end, and has ended in order");
    if args.cluster.json {
        output::json(&json!({ "name": name, "ended": true }))?;
    }
    Ok(())
}

/// Runs the node as a child of this process, which returns it after an eviction.
fn supervise(cluster: &ClusterOptions, name: &str) -> anyhow::Result<()> {
    crate::process::detach().context("leaving the starter")?;
    let dir = loaded(cluster)?.dir;
    let mut node = Command::new(this_program()?);
    node.args(std::env::args_os().skip(1).filter(|arg| arg != "--daemon"));
    match supervisor::run(&dir, name, node)? {
        0 => Ok(()),
        // The node has said why.
        code => Err(CommandExit(code).into()),
    }
}

/// Loads the configuration; the error has an exit code of its own.
fn loaded(cluster: &ClusterOptions) -> anyhow::Result<Config> {
    cluster.load().map_err(|error| with_code(launch::CONFIG_CODE, error))
}

fn with_code(code: u8, why: impl Into<anyhow::Error>) -> anyhow::Error {
    CommandFailure { code, why: why.into() }.into()
}

/// Returns a source of the node's metrics as text; it is empty after the node has ended.
fn source(runtime: &Arc<NodeRuntime>) -> impl Fn() -> String + Send + Sync + 'static {
    let runtime = Arc::downgrade(runtime);
    move || {
        let snapshots = runtime.upgrade().iter().map(|runtime| Snapshot::of(runtime)).collect();
        metrics::text(snapshots).unwrap_or_default()
    }
}

/// Aborts the process on a panic, so that the peers notice at once. Threads that went on without
/// the failed one would keep the peers waiting.
fn end_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        // Behind the trace, so that it is the last line of the log.
        let why = panic.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        last_end::note_failure(&format!("a fault of this program: {why}"));
        std::process::abort();
    }));
}
