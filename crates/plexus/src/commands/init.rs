//! `plexus init`: creates a cluster.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use plexus_base::{MAX_NODES, Waiting};
use plexus_disks::BlockSize;
use plexus_node::{
    config::{self, Config, NodeConfig},
    create,
    layout::ClusterDir,
};

use crate::output;

/// The ports that a new cluster may get: above those of well-known services, below those that the
/// system gives to outgoing connections.
const FIRST_PORT: u16 = 7400;
const LAST_PORT: u16 = 32_767;

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
    /// Name of the cluster [default: the last part of its directory].
    #[arg(long)]
    name: Option<String>,
    /// Port of the first node; the others use the following ports [default: from 7400 the first
    /// ports that no program and no cluster in the same parent directory uses].
    #[arg(long)]
    port: Option<u16>,
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
            "dir": args.dir, "name": config.name, "port": config.nodes[0].address.port(), "id": config.id.to_string(), "nodes": names, "blocks": config.blocks,
        }));
    }
    output::line(&format!(
        "{dir}: a cluster of {} nodes, from port {}, over {} blocks of {} KiB; see {}, start it with `plexus up -C {dir}`",
        config.nodes.len(),
        config.nodes[0].address.port(),
        config.blocks,
        args.block_size,
        config.dir.config().display()
    ))
}

fn configuration(args: &Args) -> anyhow::Result<Config> {
    let Some(block_size) = BlockSize::from_kib(args.block_size) else {
        bail!("--block-size {}: use 4, 8 or 16", args.block_size);
    };
    let name = match &args.name {
        Some(name) => name.clone(),
        None => last_part(&args.dir)?,
    };
    config::check_name("the cluster", &name)
        .map_err(|why| anyhow!("{why}; choose another directory or give a name with --name"))?;
    let port = match args.port {
        Some(port) if port == 0 || port.checked_add(u16::from(args.nodes) - 1).is_none() => {
            bail!("--port {port}: no {} ports follow from there; use a lower port", args.nodes)
        }
        Some(port) => port,
        None => free_ports(&args.dir, u16::from(args.nodes))?,
    };
    let rails = args.rails.iter().map(|name| name.parse()).collect::<Result<Vec<_>, _>>();
    let rails = rails.map_err(anyhow::Error::msg).context("--rails")?;
    let node = |index: u8| {
        let address = ([127, 0, 0, 1], port + u16::from(index)).into();
        NodeConfig::new(index, &format!("n{}", index + 1), address, rails.clone())
    };
    let nodes = (0..args.nodes).map(node).collect();
    let new = Config::new(ClusterDir::new(&args.dir), &name, nodes);
    Ok(Config {
        workers: args.workers,
        waiting: args.waiting,
        block_size,
        cache_mib: args.cache_mib,
        blocks: args.size_mib.saturating_mul(1024) / u64::from(args.block_size),
        ..new.context("naming the cluster and its voting files")?
    })
}

/// Returns the last part of the absolute path of a directory; it is empty for `/` and `..`.
fn last_part(dir: &Path) -> anyhow::Result<String> {
    let dir = std::path::absolute(dir).with_context(|| dir.display().to_string())?;
    Ok(dir.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// Returns the first of `count` successive ports that are free on the loopback address and that no
/// cluster beside `dir` is configured with. Such a cluster need not run now.
fn free_ports(dir: &Path, count: u16) -> anyhow::Result<u16> {
    let dir = std::path::absolute(dir).with_context(|| dir.display().to_string())?;
    let beside = dir.parent().and_then(|parent| parent.read_dir().ok()).into_iter().flatten().flatten();
    let configured: BTreeSet<u16> = beside
        .filter_map(|entry| Config::load(&ClusterDir::new(entry.path())).ok())
        .flat_map(|config| config.nodes.iter().map(|node| node.address.port()).collect::<Vec<_>>())
        .collect();
    let is_free = |port: u16| {
        let at = (Ipv4Addr::LOCALHOST, port);
        !configured.contains(&port) && TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok()
    };
    (FIRST_PORT..=LAST_PORT - (count - 1))
        .find(|first| (*first..first + count).all(is_free))
        .with_context(|| format!("no {count} ports from {FIRST_PORT} to {LAST_PORT} are free; use --port"))
}
