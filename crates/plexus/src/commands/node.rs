//! `plexus node`: one node, in the foreground.

use std::{path::PathBuf, sync::Arc};

use anyhow::Context;
use plexus_node::{Node, body::Body, config_changes::ConfigChangeArgs, lifeline, member};
use plexus_observe::{
    Snapshot,
    metrics::{self, Server},
};

use super::{cluster, vote};
use crate::output;

/// Which node.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    does: Option<Does>,
    /// The cluster's directory.
    #[arg(required = true)]
    dir: Option<PathBuf>,
    /// The node's name.
    #[arg(required = true)]
    name: Option<String>,
    /// End when the other end of the pipe at this descriptor closes.
    #[arg(long, hide = true, value_name = "FD")]
    lifeline: Option<i32>,
    /// Leave the terminal: a session of its own.
    #[arg(long, hide = true)]
    daemon: bool,
    /// Enter this network namespace first.
    #[arg(long, hide = true, value_name = "PATH")]
    network_namespace: Option<PathBuf>,
    /// Say how it ended as JSON.
    #[arg(long)]
    json: bool,
}

/// What is done with a node of a cluster that runs.
#[derive(clap::Subcommand)]
enum Does {
    /// Let a node belong to the cluster: one that was removed, or a new one at the end of cluster.toml.
    Add(Belongs),
    /// Put a node out, and let it in no more.
    Remove(Belongs),
}

#[derive(clap::Args)]
struct Belongs {
    /// The node's name.
    name: String,
    #[command(flatten)]
    cluster: cluster::Cluster,
    /// Print the node as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs it until it is told to end.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match &args.does {
        Some(Does::Add(one)) => {
            one.is_to_be(ConfigChangeArgs::AddNode, true, "belongs to the cluster: start it with `plexus up`")
        }
        Some(Does::Remove(one)) => {
            one.is_to_be(ConfigChangeArgs::RemoveNode, false, "does not belong to the cluster any more")
        }
        None => serve(args),
    }
}

impl Belongs {
    fn is_to_be(
        &self,
        config_change: fn(String) -> ConfigChangeArgs,
        belongs: bool,
        said: &str,
    ) -> anyhow::Result<()> {
        let Self { name, cluster, json } = self;
        vote::change_node(&cluster.load()?, name, &config_change(name.clone()))?;
        match json {
            true => output::json(&serde_json::json!({ "name": name, "belongs": belongs })),
            false => output::line(&format!("{name} {said}")),
        }
    }
}

fn serve(args: Args) -> anyhow::Result<()> {
    let (Some(dir), Some(name)) = (args.dir, args.name) else { anyhow::bail!("name a cluster and a node") };
    // Before there is any other thread: a namespace is entered by a thread, and inherited by those it starts.
    if let Some(path) = &args.network_namespace {
        plexus_namespaces::enter(path)
            .with_context(|| format!("{}: entering the network namespace {}", name, path.display()))?;
    }
    if args.daemon {
        // Refused only to who leads a session already, which is as good.
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
            format!("{}: cannot answer at {address}; change its `metrics` in cluster.toml", name)
        })
    });
    let reserved = reserved.transpose()?;
    let more = |body: &Arc<Body>| [plexus_observe::commands(body), plexus_bench::commands(body)].concat();
    let node = Node::start(config, &name, more, member::end_process)?;
    // Holds the body only while it is asked: the end of the node is never that of a scraper.
    let _metrics =
        reserved.map(|reserved| reserved.serve(source(node.body()))).transpose().context("metrics")?;
    node.run_until_stopped()?;
    if args.json {
        output::json(&serde_json::json!({ "name": name, "ended": true }))?;
    }
    Ok(())
}

/// What the node counts, as text; nothing any more when its body is gone.
fn source(body: &Arc<Body>) -> impl Fn() -> String + Send + Sync + 'static {
    let body = Arc::downgrade(body);
    move || {
        let snapshots = body.upgrade().iter().map(|body| Snapshot::of(body)).collect();
        metrics::text(snapshots).unwrap_or_default()
    }
}

/// A node that has met a defect of its own ends at once, so that its peers see it go: a part of it that went on would keep
/// them waiting for ever.
fn end_on_panic() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        say(what);
        std::process::abort();
    }));
}
