//! `plexus init`: creates a cluster, on one host or for several.

mod hosts;

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use plexus_admin::{
    config::{self, Config, NodeConfig, this_host},
    create,
    layout::ClusterDir,
    sql::{self, SqlAddress},
};
use plexus_base::{MAX_NODES, Waiting};
use plexus_disks::BlockSize;

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
    /// Number of nodes, all on this machine.
    #[arg(long, default_value_t = 3, conflicts_with = "host", value_parser = clap::value_parser!(u8).range(1..=MAX_NODES as i64))]
    nodes: u8,
    /// Name of a machine, and the IP address at which the others reach it; once for each machine.
    #[arg(long, value_name = "NAME=ADDRESS", value_parser = hosts::host)]
    host: Vec<(String, IpAddr)>,
    /// Number of nodes on each machine; a witness has one.
    #[arg(long, default_value_t = 1, requires = "host", value_name = "NODES", value_parser = clap::value_parser!(u8).range(1..=MAX_NODES as i64))]
    nodes_per_host: u8,
    /// Directory on storage that all machines share, for the disks of the group. Without it, two
    /// machines or more keep copies of each block on disks of their own.
    #[arg(long, requires = "host", value_name = "DIR")]
    shared: Option<PathBuf>,
    /// Copies of each block, each on a disk of another machine: 2 (the default) or 3.
    #[arg(long, requires = "host", conflicts_with = "shared", value_parser = clap::value_parser!(u8).range(2..=3))]
    copies: Option<u8>,
    /// Path of a disk on a machine, absolute or relative to the directory of the cluster there; may
    /// be repeated [default: `disks/0` on each machine].
    #[arg(long, requires = "host", conflicts_with = "shared", value_name = "HOST=PATH", value_parser = hosts::disk)]
    disk: Vec<(String, PathBuf)>,
    /// Name of a failure group, and absolute path of a disk that all machines but the witnesses
    /// reach; may be repeated. A node serves it, and another one if that ends. Machines have disks
    /// of their own only with `--disk` then.
    #[arg(long, requires = "fence", conflicts_with = "shared", value_name = "GROUP=PATH", value_parser = hosts::disk)]
    shared_disk: Vec<(String, PathBuf)>,
    /// Command that ends a lost node, given in PLEXUS_NODE, for certain: words separated by spaces.
    /// The others run it before they go on without the node.
    #[arg(long, requires = "host", value_name = "COMMAND")]
    fence: Option<String>,
    /// Name and IP address of a machine with one node and a vote, but without a disk. It lets one
    /// of two other machines go on when the second is lost.
    #[arg(long, requires = "host", conflicts_with = "shared", value_name = "NAME=ADDRESS", value_parser = hosts::host)]
    witness: Vec<(String, IpAddr)>,
    /// Overwrite what is on the block devices, and in the files, that become disks of this machine.
    /// One that is mounted or in use is never overwritten.
    #[arg(long, requires = "host", conflicts_with = "shared")]
    force: bool,
    /// Length of a block in KiB: 4, 8 or 16.
    #[arg(long, default_value_t = 8, value_name = "KIB")]
    block_size: u32,
    /// Worker threads of each node.
    #[arg(long, default_value_t = 1)]
    workers: u8,
    /// Memory of each node's cache in MiB.
    #[arg(long, default_value_t = 64, value_name = "MIB")]
    cache_mib: u32,
    /// Size of each node's redo stream in MiB. With redo no death of nodes loses an acknowledged
    /// change; 0: changes are not logged.
    #[arg(long, default_value_t = 64, value_name = "MIB")]
    redo_mib: u32,
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
    /// Make no node serve SQL with the protocol of PostgreSQL. Otherwise the disk group belongs to
    /// the tables, and programs that use its blocks are refused.
    #[arg(long)]
    no_sql: bool,
    /// Port for SQL of the first node; the others use the following ports [default: from 5433 the
    /// first ports that no program and no cluster in the same parent directory uses].
    #[arg(long, conflicts_with = "no_sql")]
    sql_port: Option<u16>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `plexus init`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let (config, here) = (configuration(&args)?, this_host());
    match args.host.is_empty() {
        true => create::create(&config)?,
        false => create::create_on(&config, &here, &disk_creation(args.force))?,
    }
    let dir = args.dir.display();
    let port = config.nodes.first().map(|node| node.address.port()).unwrap_or_default();
    let hosts: Vec<_> = hosts::of(&args).map(|(name, _)| name.as_str()).collect();
    let others: Vec<_> = hosts.iter().copied().filter(|host| *host != here).collect();
    if args.json {
        let names: Vec<_> = config.nodes.iter().map(|node| node.name.as_str()).collect();
        return output::json(&serde_json::json!({
            "dir": args.dir, "name": config.name, "port": port, "id": config.id.to_string(), "nodes": names, "blocks": config.blocks,
            "hosts": hosts, "disks": config.disks, "redundancy": config.redundancy.name(),
            "served_disks": hosts::disks_as_json(&config), "warning": hosts::warning(&config),
        }));
    }
    let start = match others.is_empty() {
        true => format!("start it with `plexus up -C {dir}`"),
        false => format!("its hosts are {}", hosts.join(", ")),
    };
    output::line(&format!(
        "{dir}: a cluster of {} nodes, from port {port}, over {} blocks of {} KiB; see {}, {start}",
        config.nodes.len(),
        config.blocks,
        args.block_size,
        config.dir.config().display()
    ))?;
    if others.is_empty() {
        return Ok(());
    }
    for line in hosts::disks_as_text(&config) {
        output::line(&line)?;
    }
    let mut steps = Vec::new();
    if let Some(disk) = config.disks.first() {
        let shared = disk.parent().unwrap_or(disk).display();
        steps.push(format!("all hosts must reach the same files in {shared}: put it on shared storage"));
    }
    let keys = if config.sections.contains_key(sql::SECTION) { "*" } else { "cluster.key" };
    steps.push(format!(
        "copy cluster.toml and keys/{keys} (mode 600) from {dir} to a directory of the cluster on {}",
        others.join(", ")
    ));
    steps.push("on every host, run `plexus up` with that directory: it creates everything else there".into());
    (1..).zip(steps).try_for_each(|(number, step)| output::line(&format!("{number}. {step}")))
}

/// Returns the way in which disks are created. One that takes long shows its progress.
pub(super) fn disk_creation<'a>(force: bool) -> create::DiskCreation<'a> {
    let progress =
        &|disk: &Path, percent| output::progress(&format!("{}: {percent} % zeroed", disk.display()));
    create::DiskCreation { force, progress }
}

/// Returns the port of the first node of a machine with this many nodes.
fn first_port(args: &Args, nodes: u8) -> anyhow::Result<u16> {
    match args.port {
        Some(port) if port == 0 || port.checked_add(u16::from(nodes) - 1).is_none() => {
            bail!("--port {port}: no {nodes} ports follow from there; use a lower port")
        }
        Some(port) => Ok(port),
        None => free_ports(&args.dir, FIRST_PORT..=LAST_PORT, u16::from(nodes), "--port"),
    }
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
    let rails = args.rails.iter().map(|name| name.parse()).collect::<Result<Vec<_>, _>>();
    let rails = rails.map_err(anyhow::Error::msg).context("--rails")?;
    let node = |number: u8, address: SocketAddr| {
        let fence = args.fence.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect();
        NodeConfig { fence, ..NodeConfig::new(number, &format!("n{}", number + 1), address, rails.clone()) }
    };
    let nodes: Vec<_> = match args.host.is_empty() {
        true => {
            let port = first_port(args, args.nodes)?;
            let address = |index: u8| (Ipv4Addr::LOCALHOST, port + u16::from(index)).into();
            (0..args.nodes).map(|index| node(index, address(index))).collect()
        }
        false => hosts::nodes(args, node)?,
    };
    let absolute = |path: &Path| std::path::absolute(path).with_context(|| path.display().to_string());
    // Paths that all hosts share are absolute.
    let dir = if args.host.is_empty() { args.dir.clone() } else { absolute(&args.dir)? };
    let dir = ClusterDir::new(dir);
    let new = Config::new(dir.clone(), &name, nodes.clone());
    let mut new = new.context("naming the cluster and its voting files")?;
    let shared = args.shared.as_deref().map(absolute).transpose()?;
    new.disks = vec![shared.clone().unwrap_or_else(|| dir.disks()).join("0")];
    if args.host.len() > 1 {
        let files = create::voting_files_of_hosts(&dir, &nodes, shared.as_deref());
        new.voting = files.context("naming the voting files")?;
    }
    let config = Config {
        workers: args.workers,
        waiting: args.waiting,
        block_size,
        cache_mib: args.cache_mib,
        redo_mib: args.redo_mib,
        blocks: args.size_mib.saturating_mul(1024) / u64::from(args.block_size),
        sections: match args.no_sql {
            true => new.sections.clone(),
            false => [sql_section(args, new.nodes.len())?].into(),
        },
        ..new
    };
    match args.host.len() > 1 && shared.is_none() {
        true => hosts::mirrored(args, config),
        false => Ok(config),
    }
}

/// Returns the table of `cluster.toml` with which each node serves SQL, with its name.
fn sql_section(args: &Args, nodes: usize) -> anyhow::Result<(String, String)> {
    let user = std::env::var("USER").ok().filter(|user| {
        !user.is_empty() && user.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    });
    let user = user.unwrap_or_else(|| "postgres".into());
    let ports = u16::try_from(nodes)?;
    let port = match args.sql_port {
        Some(port) if port == 0 || port.checked_add(ports).is_none() => {
            bail!("--sql-port {port}: no {ports} ports follow from there; use a lower port")
        }
        Some(port) => port,
        None => free_ports(&args.dir, sql::FIRST_PORT..=sql::LAST_PORT, ports, "--sql-port")?,
    };
    Ok((sql::SECTION.into(), format!("port = {port}\nuser = \"{user}\"\n")))
}

/// Returns the last part of the absolute path of a directory; it is empty for `/` and `..`.
fn last_part(dir: &Path) -> anyhow::Result<String> {
    let dir = std::path::absolute(dir).with_context(|| dir.display().to_string())?;
    Ok(dir.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// Returns the first of `count` successive ports that are free on the loopback address and that no
/// cluster beside `dir` is configured with. Such a cluster need not run now.
fn free_ports(dir: &Path, from: RangeInclusive<u16>, count: u16, option: &str) -> anyhow::Result<u16> {
    let dir = std::path::absolute(dir).with_context(|| dir.display().to_string())?;
    let beside = dir.parent().and_then(|parent| parent.read_dir().ok()).into_iter().flatten().flatten();
    let configured: BTreeSet<u16> = beside
        .filter_map(|entry| Config::load(&ClusterDir::new(entry.path())).ok())
        .flat_map(|config| {
            let sql = |node: &NodeConfig| SqlAddress::of(&config, node.number).ok().flatten();
            let sql = config.nodes.iter().filter_map(sql).map(|address| address.port);
            sql.chain(config.nodes.iter().map(|node| node.address.port())).collect::<Vec<_>>()
        })
        .collect();
    let is_free = |port: u16| {
        let at = (Ipv4Addr::LOCALHOST, port);
        !configured.contains(&port) && TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok()
    };
    let (first, last) = from.into_inner();
    (first..=last - (count - 1))
        .find(|first| (*first..first + count).all(is_free))
        .with_context(|| format!("no {count} ports from {first} to {last} are free; use {option}"))
}
