//! The part of `plexus init` for several machines: their nodes, and the disks that they serve to
//! each other.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use plexus_admin::config::{Config, NodeConfig, Redundancy, ServedDiskConfig, this_host};
use plexus_base::MAX_NODES;
use plexus_disks::mirror;

use super::{Args, first_port};

/// The path of a machine's disk in the directory of the cluster, unless `--disk` names another.
const DISK: &str = "disks/0";

/// Parses the argument of `--host` and `--witness`.
pub(super) fn host(text: &str) -> Result<(String, IpAddr), String> {
    let (name, address) = text.split_once('=').ok_or("use NAME=ADDRESS, as in a=10.0.0.1")?;
    let address = address.parse().map_err(|_| format!("`{address}` is not an IP address"))?;
    match name.trim() {
        "" => Err("the name of the machine is missing: use NAME=ADDRESS, as in a=10.0.0.1".into()),
        name => Ok((name.into(), address)),
    }
}

/// Parses the argument of `--disk` and `--shared-disk`.
pub(super) fn disk(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=').map(|(host, path)| (host.trim(), path)) {
        Some((host, path)) if !host.is_empty() && !path.is_empty() => Ok((host.into(), path.into())),
        _ => Err("use NAME=PATH, as in a=/srv/disk0".into()),
    }
}

/// Returns all machines: those with disks, then the witnesses.
pub(super) fn of(args: &Args) -> impl Iterator<Item = &(String, IpAddr)> {
    args.host.iter().chain(&args.witness)
}

/// Describes the nodes on the machines.
///
/// # Errors
/// The machines cannot be those of a cluster; the text names the option.
pub(super) fn nodes(
    args: &Args,
    node: impl Fn(u8, SocketAddr) -> NodeConfig,
) -> anyhow::Result<Vec<NodeConfig>> {
    let here = this_host();
    let machines = of(args).count();
    let names: BTreeSet<_> = of(args).map(|(name, _)| name).collect();
    let addresses: BTreeSet<_> = of(args).map(|(_, address)| address).collect();
    if names.len() < machines || addresses.len() < machines {
        bail!("--host, --witness: give each machine once, with an address of its own");
    }
    if !names.contains(&here) {
        bail!(
            "--host: this machine, {here}, is none of them; run the command on one of them, or set PLEXUS_HOST to the name of this one"
        );
    }
    if args.host.len() == 1 && (machines > 1 || !args.disk.is_empty() || !args.shared_disk.is_empty()) {
        bail!("--disk, --witness: the copies of a block are on two machines; name a second --host");
    }
    if let Some(copies) = args.copies.filter(|copies| args.host.len() < (*copies).into()) {
        bail!("--copies {copies}: each copy of a block is on another machine; name {copies} with --host");
    }
    let all = args.host.len() * usize::from(args.nodes_per_host) + args.witness.len();
    if all > MAX_NODES {
        bail!("--host, --nodes-per-host: {all} nodes; a cluster has at most {MAX_NODES}");
    }
    let port = first_port(args, args.nodes_per_host)?;
    let on_hosts = args.host.iter().flat_map(|host| (0..args.nodes_per_host).map(move |place| (host, place)));
    let on_witnesses = args.witness.iter().map(|host| (host, 0));
    let nodes = (0..).zip(on_hosts.chain(on_witnesses)).map(|(number, ((host, address), place))| {
        NodeConfig { host: host.clone(), ..node(number, (*address, port + u16::from(place)).into()) }
    });
    Ok(nodes.collect())
}

/// Replaces the disks of a configuration that every node opens by disks of the machines, with
/// copies of each block on several.
///
/// # Errors
/// `--disk` names a machine without disks.
pub(super) fn mirrored(args: &Args, config: Config) -> anyhow::Result<Config> {
    if let Some((host, path)) = args.disk.iter().find(|disk| args.host.iter().all(|host| host.0 != disk.0)) {
        bail!("--disk {host}={}: {host} is not named by --host; disks are on these machines", path.display());
    }
    let (mut places, mut nodes) = (Vec::new(), Vec::new());
    for (host, _) in &args.host {
        let node = config.nodes.iter().find(|node| node.host == *host);
        let node = &node.context("each machine has a node")?.name;
        nodes.push(node.clone());
        let given: Vec<_> =
            args.disk.iter().filter(|disk| disk.0 == *host).map(|disk| disk.1.clone()).collect();
        let has_default = given.is_empty() && args.shared_disk.is_empty();
        let paths = if has_default { vec![PathBuf::from(DISK)] } else { given };
        places.extend(paths.into_iter().map(|path| (node.clone(), path)));
    }
    let own = places.len();
    places.extend(args.shared_disk.iter().map(|(_, path)| (nodes[0].clone(), path.clone())));
    let redundancy = if args.copies == Some(3) { Redundancy::Mirror3 } else { Redundancy::Mirror2 };
    let config = Config { redundancy, chunk_mib: config.fitting_chunk_mib(), ..config };
    let mut served_disks = config.new_served_disks(&places).context("naming the disks")?;
    for (disk, (group, _)) in served_disks[own..].iter_mut().zip(&args.shared_disk) {
        (disk.shared, disk.failure_group) = (nodes.clone(), Some(group.clone()));
    }
    let here = this_host();
    for disk in served_disks.iter_mut().filter(|disk| config.host_of(&disk.node) == Some(&here)) {
        // At most what the device has; the devices of other machines are not known here.
        if let Some(slots) = mirror::slots_of_device(&disk.path, config.chunk_mib)? {
            disk.size_mib = disk.size_mib.min(u64::from(slots) * u64::from(config.chunk_mib));
        }
    }
    Ok(Config { disks: Vec::new(), served_disks, ..config })
}

/// Describes the disks that nodes serve, one line for each, and what the machines cannot survive.
pub(super) fn disks_as_text(config: &Config) -> Vec<String> {
    if !config.is_served() {
        return Vec::new();
    }
    let mut lines = vec![format!(
        "redundancy {}: {} copies of each chunk of {} MiB, on disks of different hosts:",
        config.redundancy,
        config.redundancy.copies(),
        config.chunk_mib
    )];
    for disk in &config.served_disks {
        let (host, path) = (config.failure_group(disk), written_path(config, disk).display());
        let by = match disk.shared.is_empty() {
            true => format!("served by {}", disk.node),
            false => format!("shared by {}", disk.shared.join(", ")),
        };
        lines.push(format!("  {host}: {path}, {} MiB, {by}", disk.size_mib));
    }
    lines.extend(warning(config));
    lines
}

/// Describes the disks that nodes serve as JSON.
pub(super) fn disks_as_json(config: &Config) -> Vec<serde_json::Value> {
    let disk = |disk: &ServedDiskConfig| {
        serde_json::json!({
            "id": format!("{:032x}", disk.id), "host": config.failure_group(disk), "node": disk.node, "shared": disk.shared,
            "path": written_path(config, disk), "size_mib": disk.size_mib,
        })
    };
    config.served_disks.iter().map(disk).collect()
}

/// Returns the path of a disk as in `cluster.toml`: the directory of the cluster may differ between
/// hosts.
fn written_path<'a>(config: &Config, disk: &'a ServedDiskConfig) -> &'a Path {
    disk.path.strip_prefix(config.dir.root()).unwrap_or(&disk.path)
}

/// Returns the loss that a mirrored cluster does not survive because its number of hosts is even.
pub(super) fn warning(config: &Config) -> Option<String> {
    let hosts: BTreeSet<_> = config.nodes.iter().map(|node| &node.host).collect();
    let loss = match hosts.len() {
        2 => "two hosts cannot go on when one is lost".into(),
        count if count % 2 == 0 => format!("{count} hosts cannot go on when half of them are lost"),
        _ => return None,
    };
    let advice = "give --witness NAME=ADDRESS, one more machine, without a disk";
    config.is_served().then(|| format!("{loss}: {advice}"))
}
