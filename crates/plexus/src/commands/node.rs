//! `plexus node`: runs one node in the foreground, or adds or removes one.

use std::{path::PathBuf, sync::Arc};

use anyhow::Context;
use plexus_node::{Node, body::Body, config_changes::ConfigChangeArgs, lifeline, member};
use plexus_observe::{
    Snapshot,
    metrics::{self, Server},
};

use super::{cluster, vote};
use crate::output;

/// The arguments of `plexus node`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<NodeCommand>,
    /// The cluster's directory.
    #[arg(required = true)]
    dir: Option<PathBuf>,
    /// The node's name.
    #[arg(required = true)]
    name: Option<String>,
    /// End when the other end of the pipe at this descriptor closes.
    #[arg(long, hide = true, value_name = "FD")]
    lifeline: Option<i32>,
    /// Start a session, detached from the terminal.
    #[arg(long, hide = true)]
    daemon: bool,
    /// Enter this network namespace first.
    #[arg(long, hide = true, value_name = "PATH")]
    network_namespace: Option<PathBuf>,
    /// Print the end of the node as JSON.
    #[arg(long)]
    json: bool,
}

/// The commands that change which nodes belong to a running cluster.
#[derive(clap::Subcommand)]
enum NodeCommand {
    /// Add a node to the running cluster: one that was removed, or a new one at the end of
    /// cluster.toml.
    Add(NodeChange),
    /// Remove a node from the cluster: evict it and refuse it from then on.
    Remove(NodeChange),
}

#[derive(clap::Args)]
struct NodeChange {
    /// The node's name.
    name: String,
    #[command(flatten)]
    cluster: cluster::Cluster,
    /// Print the node as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `plexus node`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match &args.command {
        Some(NodeCommand::Add(one)) => {
            one.apply(ConfigChangeArgs::AddNode, true, "belongs to the cluster: start it with `plexus up`")
        }
        Some(NodeCommand::Remove(one)) => {
            one.apply(ConfigChangeArgs::RemoveNode, false, "no longer belongs to the cluster")
        }
        None => serve(args),
    }
}

impl NodeChange {
    fn apply(
        &self,
        config_change: fn(String) -> ConfigChangeArgs,
        belongs: bool,
        outcome: &str,
    ) -> anyhow::Result<()> {
        let Self { name, cluster, json } = self;
        vote::change_node(&cluster.load()?, name, &config_change(name.clone()))?;
        match json {
            true => output::json(&serde_json::json!({ "name": name, "belongs": belongs })),
            false => output::line(&format!("{name} {outcome}")),
        }
    }
}

fn serve(args: Args) -> anyhow::Result<()> {
    let (Some(dir), Some(name)) = (args.dir, args.name) else {
        anyhow::bail!("give the directory of a cluster and the name of a node")
    };
    // Entered before any other thread starts: threads inherit the namespace of their creator.
    if let Some(path) = &args.network_namespace {
        plexus_namespaces::enter(path)
            .with_context(|| format!("{}: entering the network namespace {}", name, path.display()))?;
    }
    if args.daemon {
        // Fails only if the process already leads a session, which is good enough.
        let _ = rustix::process::setsid();
    }
    if let Some(fd) = args.lifeline {
        lifeline::watch(fd, || std::process::exit(1)).with_context(|| format!("--lifeline {fd}"))?;
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false).init();
    end_on_panic();
    let config = cluster::load(&dir)?;
    let reserved = config.node(&name)?.1.metrics.map(|address| {
        Server::reserve(address).with_context(|| {
            format!(
                "{}: cannot serve metrics at {address}; change `metrics` of the node in cluster.toml",
                name
            )
        })
    });
    let reserved = reserved.transpose()?;
    let more = |body: &Arc<Body>| [plexus_observe::commands(body), plexus_bench::commands(body)].concat();
    let node = Node::start(config, &name, more, member::end_process)?;
    // Holds the body only during a request, so that a scraper never delays the end of the node.
    let _metrics =
        reserved.map(|reserved| reserved.serve(source(node.body()))).transpose().context("metrics")?;
    node.run_until_stopped()?;
    if args.json {
        output::json(&serde_json::json!({ "name": name, "ended": true }))?;
    }
    Ok(())
}

/// Returns a source of the node's metrics as text; it is empty after the node has ended.
fn source(body: &Arc<Body>) -> impl Fn() -> String + Send + Sync + 'static {
    let body = Arc::downgrade(body);
    move || {
        let snapshots = body.upgrade().iter().map(|body| Snapshot::of(body)).collect();
        metrics::text(snapshots).unwrap_or_default()
    }
}

/// Aborts the process on a panic, so that the peers notice at once. Threads that went on without
/// the failed one would keep the peers waiting.
fn end_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
}
