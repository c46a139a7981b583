//! Checks of the values of a configuration. Each error is one line: the problem and the correction.

use std::collections::BTreeMap;

use plexus_base::{MAX_NODES, MAX_WORKERS, hex};
use plexus_disks::BlockSize;
use plexus_fabric::RailKind;
use plexus_interconnect::mesh::MAX_SLOTS;

use super::{
    CHUNK_MIB, ClusterId, Config, Encrypt, FORMAT, GroupText, MAX_BLOCKS, MAX_CARRY_BYTES,
    MAX_PROGRAM_WINDOW_MIB, MAX_REDO_MIB, MIN_FRAMES_PER_WORKER, MIN_REDO_MIB, NodeConfig, REBUILD_AFTER_S,
    Redundancy, START_WAIT_S, ServedDiskConfig, Text, Voting,
};
use crate::layout::ClusterDir;

/// The longest name of a cluster or node; a node's name is part of file names.
const MAX_NAME: usize = 32;

/// The highest core for which an affinity mask has room.
const MAX_CORE: usize = 1023;

pub(super) fn check(dir: &ClusterDir, text: Text) -> Result<Config, String> {
    if text.format != FORMAT {
        return Err(format!(
            "format {} is not known, this program reads {FORMAT}; use the plexus that wrote it",
            text.format
        ));
    }
    check_name("the cluster", &text.name)?;
    let workers = usize::from(text.workers);
    if !(1..=MAX_WORKERS).contains(&workers) {
        return Err(format!("workers = {workers}: use 1 to {MAX_WORKERS}"));
    }
    let block_size = BlockSize::from_kib(text.block_size_kib)
        .ok_or_else(|| format!("block_size_kib = {}: use 4, 8 or 16", text.block_size_kib))?;
    let frames = u64::from(text.cache_mib) * 1024 / u64::from(text.block_size_kib) / workers as u64;
    if frames < MIN_FRAMES_PER_WORKER {
        let needed = (MIN_FRAMES_PER_WORKER * workers as u64 * u64::from(text.block_size_kib)).div_ceil(1024);
        return Err(format!(
            "cache_mib = {} is too small for {workers} workers with blocks of {} KiB; use at least {needed}",
            text.cache_mib, text.block_size_kib
        ));
    }
    if !(1..=MAX_PROGRAM_WINDOW_MIB).contains(&text.program_window_mib) {
        return Err(format!(
            "program_window_mib = {}: use 1 to {MAX_PROGRAM_WINDOW_MIB}",
            text.program_window_mib
        ));
    }
    if text.checkpoint_seconds == 0 {
        return Err("checkpoint_seconds = 0: use at least 1".into());
    }
    if text.redo_mib != 0 && !(MIN_REDO_MIB..=MAX_REDO_MIB).contains(&text.redo_mib) {
        return Err(format!(
            "redo_mib = {}: use {MIN_REDO_MIB} to {MAX_REDO_MIB}, or 0 for a cluster without redo",
            text.redo_mib
        ));
    }
    if text.recovery_target_seconds == 0 {
        return Err("recovery_target_seconds = 0: use at least 1".into());
    }
    if text.carry_bytes > MAX_CARRY_BYTES {
        return Err(format!("carry_bytes = {}: use 0 to {MAX_CARRY_BYTES}", text.carry_bytes));
    }
    text.interconnect.check()?;
    text.membership.times()?;
    super::membership::check(dir, &text.voting, &text.node)?;
    let blocks = check_group(&text.group, text.block_size_kib)?;
    check_nodes(&text.node, text.interconnect.encrypt)?;
    let config = Config {
        dir: dir.clone(),
        id: parse_id(&text.id)?,
        name: text.name,
        workers: text.workers,
        waiting: text.waiting,
        block_size,
        cache_mib: text.cache_mib,
        program_window_mib: text.program_window_mib,
        checkpoint_seconds: text.checkpoint_seconds,
        recovery_target_seconds: text.recovery_target_seconds,
        redo_mib: text.redo_mib,
        disk_reads: text.disk_reads,
        carry_bytes: text.carry_bytes,
        interconnect: text.interconnect,
        membership: text.membership,
        voting: text
            .voting
            .into_iter()
            .map(|file| Voting { path: dir.root().join(&file.path), ..file })
            .collect(),
        blocks,
        redundancy: text.group.redundancy,
        chunk_mib: text.group.chunk_mib.unwrap_or(CHUNK_MIB[0]),
        rebuild_after_s: text.group.rebuild_after_s.unwrap_or(REBUILD_AFTER_S),
        start_wait_s: text.group.start_wait_s.unwrap_or(START_WAIT_S),
        disks: text.group.disks.iter().map(|disk| dir.root().join(disk)).collect(),
        served_disks: text
            .disk
            .into_iter()
            .map(|disk| {
                let first = disk.shared.first().filter(|_| disk.node.is_empty()).unwrap_or(&disk.node);
                ServedDiskConfig { path: dir.root().join(&disk.path), node: first.clone(), ..disk }
            })
            .collect(),
        nodes: text.node.into_iter().collect(),
        sections: BTreeMap::new(),
    };
    config.check_served_disks()?;
    Ok(config)
}

/// Checks the name of a cluster or node. `whose` begins the text of the error.
///
/// # Errors
/// The name has characters that are not allowed, or too many.
pub fn check_name(whose: &str, name: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(fits) {
        return Err(format!(
            "{whose} is named {name:?}: use 1 to {MAX_NAME} ASCII letters, digits, `-` and `_`"
        ));
    }
    Ok(())
}

fn parse_id(text: &str) -> Result<ClusterId, String> {
    hex::number(text, 32).map(ClusterId).ok_or_else(|| {
        format!("id = {text:?} is not 32 hexadecimal digits; restore the line that `plexus init` wrote")
    })
}

fn check_group(group: &GroupText, block_size_kib: u32) -> Result<u64, String> {
    match group.redundancy {
        Redundancy::External if group.disks.is_empty() => {
            return Err("[group] lists no disks; name at least one file in `disks`".into());
        }
        Redundancy::External => {
            let keys = [
                ("chunk_mib", group.chunk_mib),
                ("rebuild_after_s", group.rebuild_after_s),
                ("start_wait_s", group.start_wait_s),
            ];
            if let Some((name, _)) = keys.iter().find(|(_, value)| value.is_some()) {
                return Err(format!("[group] has {name}, which is only for mirrored groups; remove it"));
            }
        }
        Redundancy::Mirror2 | Redundancy::Mirror3 if !group.disks.is_empty() => {
            return Err(format!(
                "[group] has disks and redundancy = \"{}\"; describe each disk in a table [[disk]], and remove `disks`",
                group.redundancy
            ));
        }
        Redundancy::Mirror2 | Redundancy::Mirror3 => {}
    }
    for (index, disk) in group.disks.iter().enumerate() {
        if disk.as_os_str().is_empty() {
            return Err(format!("[group] disk {index} has no name; name a file"));
        }
        if group.disks[..index].contains(disk) {
            return Err(format!("[group] lists the disk {} twice; list each once", disk.display()));
        }
    }
    let blocks = match (group.size_mib, group.blocks) {
        (Some(mib), None) => mib.saturating_mul(1024) / u64::from(block_size_kib),
        (None, Some(blocks)) => blocks,
        (Some(_), Some(_)) => return Err("[group] has both size_mib and blocks; keep one of them".into()),
        (None, None) => return Err("[group] has no size; give size_mib or blocks".into()),
    };
    if !(1..=MAX_BLOCKS).contains(&blocks) {
        return Err(format!("[group] would have {blocks} blocks; choose a size of 1 to {MAX_BLOCKS} blocks"));
    }
    Ok(blocks)
}

/// Checks that every node has a number of its own.
fn check_numbers(nodes: &[NodeConfig]) -> Result<(), String> {
    let has_one = |node: &&NodeConfig| node.number.index() < MAX_NODES;
    let free = nodes.iter().filter(has_one).map(|node| node.number.0 + 1).max();
    if let Some(node) = nodes.iter().find(|node| !has_one(node)) {
        let Some(free) = free else {
            let lines =
                nodes.iter().enumerate().map(|(index, node)| format!("`number = {index}` to {}", node.name));
            return Err(format!(
                "no [[node]] has a number; in earlier versions it was the position, so add {}",
                lines.collect::<Vec<_>>().join(", ")
            ));
        };
        return Err(format!(
            "node {} has no number; add one that no node had before to its [[node]], like `number = {}`",
            node.name,
            free.min(MAX_NODES as u8 - 1)
        ));
    }
    for (index, node) in nodes.iter().enumerate() {
        if let Some(other) = nodes[..index].iter().find(|other| other.number == node.number) {
            return Err(format!(
                "nodes {} and {} have the same number {}; give the newer one a number that no node had before",
                other.name, node.name, node.number.0
            ));
        }
    }
    Ok(())
}

fn check_nodes(nodes: &[NodeConfig], encrypt: Encrypt) -> Result<(), String> {
    if !(1..=MAX_NODES).contains(&nodes.len()) {
        return Err(format!("{} nodes; a cluster has 1 to {MAX_NODES}", nodes.len()));
    }
    for (index, node) in nodes.iter().enumerate() {
        let name = &node.name;
        check_name(&format!("node {index}"), name)?;
        if node.host.is_empty() {
            return Err(format!("node {name} has no host; give the name of its machine"));
        }
        for address in node.all_addresses() {
            if address.port() == 0 || address.ip().is_unspecified() {
                return Err(format!(
                    "node {name} has the address {address}; peers need one address and port"
                ));
            }
        }
        if node.all_addresses().count() > MAX_SLOTS {
            return Err(format!("node {name} has too many addresses; {MAX_SLOTS} paths are the most"));
        }
        let mut addresses: Vec<_> = node.all_addresses().collect();
        addresses.sort_unstable();
        if let Some(twice) = addresses.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("node {name} lists the address {} twice; list each once", twice[0]));
        }
        if node.rails.is_empty() {
            let known = RailKind::ALL.map(RailKind::name).join(", ");
            return Err(format!("node {name} has no rails; list at least one of {known}"));
        }
        if let Some(core) = node.cores.iter().find(|core| **core > MAX_CORE) {
            return Err(format!("node {name} is pinned to core {core}; use 0 to {MAX_CORE}"));
        }
        for (place, rail) in node.rails.iter().enumerate() {
            if node.rails[..place].contains(rail) {
                return Err(format!("node {name} lists the rail {rail} twice; list each once"));
            }
        }
        if let Some(metrics) = node.metrics {
            if metrics.port() == 0 {
                return Err(format!(
                    "node {name} has metrics = \"{metrics}\"; give the port that is to be scraped"
                ));
            }
            if node.all_addresses().any(|address| address == metrics) {
                return Err(format!(
                    "node {name} has one address for its peers and its metrics; give them two"
                ));
            }
        }
        for earlier in &nodes[..index] {
            check_pair(earlier, node, encrypt)?;
        }
    }
    check_numbers(nodes)
}

fn check_pair(one: &NodeConfig, other: &NodeConfig, encrypt: Encrypt) -> Result<(), String> {
    if one.name == other.name {
        return Err(format!("two nodes are named {}; give each a name of its own", one.name));
    }
    if let Some(address) = one.all_addresses().find(|address| other.all_addresses().any(|a| a == *address)) {
        let (a, b) = (&one.name, &other.name);
        return Err(format!("nodes {a} and {b} have the same address {address}; give each its own"));
    }
    if one.host == other.host && one.metrics.is_some() && one.metrics == other.metrics {
        let (a, b) = (&one.name, &other.name);
        return Err(format!("nodes {a} and {b} have the same metrics on one host; give each its own port"));
    }
    let common: Vec<_> = one.rails.iter().filter(|rail| other.rails.contains(rail)).collect();
    let (a, b) = (&one.name, &other.name);
    if common.is_empty() {
        return Err(format!("nodes {a} and {b} have no rail in common; list the same one in both"));
    }
    let encrypts = encrypt == Encrypt::Always || encrypt == Encrypt::Auto && one.host != other.host;
    if common == [&RailKind::Ofi] && encrypts {
        return Err(format!(
            "nodes {a} and {b} have only ofi between them, which cannot encrypt; add tcp to both, or set [interconnect] encrypt = \"never\""
        ));
    }
    if one.host != other.host && common == [&RailKind::Shm] {
        return Err(format!(
            "nodes {a} and {b} have only shm between them but are on different hosts ({} and {}); add tcp to both",
            one.host, other.host
        ));
    }
    Ok(())
}
