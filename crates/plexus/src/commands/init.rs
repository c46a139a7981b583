//! `plexus init`: creates a cluster.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use plexus_base::{MAX_NODES, Waiting};
use plexus_disks::BlockSize;
use plexus_node::{
    config::{Config, NodeConfig},
    create,
    layout::ClusterDir,
};

use crate::output;

/// The arguments of `plexus init`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of the new cluster.
    dir: PathBuf,
    /// Number of nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=MAX_NODES as i64))]
    nodes: u8,
    /// Length of a block in KiB: 4, 8 or 16.
    #[arg(long, default_value_t = 8, value_name = "KIB")]
    block_size: u32,
    /// Worker threads of each node.
    #[arg(long, default_value_t = 1)]
    workers: u8,
    /// Memory of each node's cache in MiB.
    #[arg(long, default_value_t = 64, value_name = "MIB")]
    cache_mib: u32,
    /// Size of the disk group in MiB.
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    size_mib: u64,
    /// Port of the first node; the others use the following ports.
    #[arg(long, default_value_t = 7400)]
    port: u16,
    /// Rails between the nodes, the preferred one first.
    #[arg(long, default_value = "shm,tcp", value_delimiter = ',', value_name = "RAIL,...")]
    rails: Vec<String>,
    /// How threads wait: polling, event or adaptive.
    #[arg(long, default_value_t = Waiting::Adaptive)]
    waiting: Waiting,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `plexus init`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = configuration(&args)?;
    create::create(&config)?;
    let dir = args.dir.display();
    if args.json {
        let names: Vec<_> = config.nodes.iter().map(|node| node.name.as_str()).collect();
        return output::json(&serde_json::json!({
            "dir": args.dir, "id": config.id.to_string(), "nodes": names, "blocks": config.blocks,
        }));
    }
    output::line(&format!(
        "{dir}: a cluster of {} nodes over {} blocks of {} KiB; see {}, start it with `plexus up {dir}`",
        config.nodes.len(),
        config.blocks,
        args.block_size,
        config.dir.config().display()
    ))
}

fn configuration(args: &Args) -> anyhow::Result<Config> {
    let Some(block_size) = BlockSize::from_kib(args.block_size) else {
        bail!("--block-size {}: use 4, 8 or 16", args.block_size);
    };
    if args.port == 0 || args.port.checked_add(u16::from(args.nodes) - 1).is_none() {
        bail!("--port {}: no {} ports follow from there; use a lower port", args.port, args.nodes);
    }
    let rails = args.rails.iter().map(|name| name.parse()).collect::<Result<Vec<_>, _>>();
    let rails = rails.map_err(anyhow::Error::msg).context("--rails")?;
    let node = |index: u8| {
        let address = ([127, 0, 0, 1], args.port + u16::from(index)).into();
        NodeConfig::new(&format!("n{}", index + 1), address, rails.clone())
    };
    let nodes = (0..args.nodes).map(node).collect();
    let new = Config::new(ClusterDir::new(&args.dir), &name_of(&args.dir), nodes);
    Ok(Config {
        workers: args.workers,
        waiting: args.waiting,
        block_size,
        cache_mib: args.cache_mib,
        blocks: args.size_mib.saturating_mul(1024) / u64::from(args.block_size),
        ..new.context("naming the cluster and its voting files")?
    })
}

/// Returns a name for the cluster, made of the valid characters of its directory's name.
fn name_of(dir: &Path) -> String {
    let last = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name: String =
        last.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).take(32).collect();
    if name.is_empty() { "cluster".into() } else { name }
}
