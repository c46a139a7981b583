//! The text of a new `cluster.toml`: the values of a configuration with explanations.

use std::{fmt::Write, path::Path};

use super::{
    Config, FORMAT, Interconnect, MIN_FRAMES_PER_WORKER, MIN_REDO_MIB, Membership, ServedDiskConfig, Voting,
};

pub(super) fn text(config: &Config) -> String {
    let Config {
        name,
        id,
        workers,
        waiting,
        cache_mib,
        program_window_mib,
        checkpoint_seconds,
        recovery_target_seconds,
        redo_mib,
        disk_reads,
        carry_bytes,
        blocks,
        ..
    } = config;
    let Interconnect { encrypt, peer_timeout_ms, probe_ms, ofi_provider } = &config.interconnect;
    let encrypt = encrypt.name();
    let ofi_provider = match ofi_provider {
        Some(provider) => format!("ofi_provider = {}", quoted(provider)),
        None => "# ofi_provider = \"verbs\"".into(),
    };
    let kib = config.block_size.bytes() / 1024;
    let disks = if config.is_served() { served_disks(config) } else { shared_disks(config) };
    let mut text = format!(
        r#"# A Plexus cluster. Every node reads this file when it starts; all must read the same.

format = {FORMAT}
name = "{name}"
id = "{id}"          # made once; disks and peers are recognized by it

# Threads of each node that serve the shared cache, 1 to 8; the same on every node.
workers = {workers}

# How threads wait: "polling" (lowest latency, a core for each waiting thread), "event" (least CPU),
# "adaptive" (poll briefly, then sleep).
waiting = "{waiting}"

# Length of a block in KiB: 4, 8 or 16. Fixed for the incarnation of the disk group.
block_size_kib = {kib}

# Memory of each node's cache in MiB: at least {MIN_FRAMES_PER_WORKER} blocks for each worker.
cache_mib = {cache_mib}

# Memory of each node for windows that programs share, in MiB.
program_window_mib = {program_window_mib}

# How often changed blocks are written to the disks, in seconds.
checkpoint_seconds = {checkpoint_seconds}

# The seconds in which a recovery should have read the redo of all nodes: a node with more redo writes its changed blocks earlier.
recovery_target_seconds = {recovery_target_seconds}

# Length of a node's redo stream in MiB, {MIN_REDO_MIB} or more; the same on every node. With redo no death of nodes loses an
# acknowledged change. 0: changes are not logged.
redo_mib = {redo_mib}

# How blocks are read from the disks: "io_uring" (threads where the system does not allow it), or "threads".
disk_reads = "{disk_reads}"

# The most bytes of redo that travel with a block to the next node that changes it. A block with more waits until its redo is
# on disk. 0: it always waits.
carry_bytes = {carry_bytes}

[interconnect]
# What goes over a network: "auto" encrypts it between different hosts, "always" also between nodes of one host, "never"
# is for a network of your own. Who has no key of the cluster (keys/cluster.key) is never let in.
encrypt = "{encrypt}"
# How long a node that cannot be reached over any path is waited for, and how often a silent path is asked.
peer_timeout_ms = {peer_timeout_ms}
probe_ms = {probe_ms}
# Which of libfabric's providers rails = ["ofi"] use, the same on every node; without this line the first of verbs, efa, tcp
# that a node has (verbs and efa: untested on hardware).
{ofi_provider}

[group]
# Size: `blocks`, or `size_mib`. Fixed for the incarnation of the disk group.
blocks = {blocks}
{disks}"#
    );
    membership(&mut text, config);
    for (name, section) in &config.sections {
        let section: toml::Table = section.parse().expect("the text of a table");
        let table = toml::Table::from_iter([(name.clone(), section.into())]);
        let _ = write!(text, "\n{table}");
    }
    for node in config.nodes.iter() {
        let rails: Vec<_> = node.rails.iter().map(|rail| format!("\"{rail}\"")).collect();
        let _ = write!(
            text,
            "\n[[node]]\nnumber = {}            # of this node alone, for ever: tables may be moved or removed, numbers are not used again\n\
             name = \"{}\"\nhost = {}            # the machine; shm joins nodes of one host\naddress = \"{}\"\n",
            node.number.0,
            node.name,
            quoted(&node.host),
            node.address,
        );
        if node.addresses.is_empty() {
            text.push_str("# addresses = [\"10.1.0.1:7400\"]   # further paths: each to the one of the same place of the others\n");
        } else {
            let addresses: Vec<_> = node.addresses.iter().map(|address| format!("\"{address}\"")).collect();
            let _ = writeln!(text, "addresses = [{}]", addresses.join(", "));
        }
        let _ = writeln!(text, "rails = [{}]", rails.join(", "));
        if node.cores.is_empty() {
            text.push_str("# cores = [0]           # pin this node\n");
        } else {
            let _ = writeln!(text, "cores = {:?}", node.cores);
        }
        match node.metrics {
            None => text
                .push_str("# metrics = \"127.0.0.1:9100\"   # answer to GET /metrics (OpenMetrics) there\n"),
            Some(address) => {
                let _ = writeln!(text, "metrics = \"{address}\"");
            }
        }
        if node.fence.is_empty() {
            text.push_str("# fence = [\"ipmitool\", \"power\", \"off\"]   # ends with 0 when this node certainly does nothing any more\n");
        } else {
            let words: Vec<_> = node.fence.iter().map(|word| quoted(word)).collect();
            let _ = writeln!(text, "fence = [{}]", words.join(", "));
        }
    }
    text
}

/// Returns the lines of the disks that every node opens.
fn shared_disks(config: &Config) -> String {
    let root = shared_root(config);
    let disks: Vec<_> =
        config.disks.iter().map(|disk| path(disk.strip_prefix(root).unwrap_or(disk))).collect();
    let shared = match has_several_hosts(config) {
        true => {
            "\n# Every host opens the same files at these paths: they are on a shared disk or file system."
        }
        false => "",
    };
    format!(
        "# The disks, in the order in which they were made; relative paths start at this directory.{shared}\ndisks = [{}]\n",
        disks.join(", ")
    )
}

/// Returns the redundancy of a mirrored group, and the tables of the disks that nodes serve.
fn served_disks(config: &Config) -> String {
    let mut text = format!(
        "# Where the blocks are: with \"external\" in files that every node opens; with \"mirror2\" or \"mirror3\" so often, on\n\
         # disks in different failure groups. Fixed for the incarnation of the disk group.\nredundancy = \"{}\"\n\
         # MiB of a chunk, the unit of placement: 64, 256 or 1024. Fixed for the incarnation of the disk group.\nchunk_mib = {}\n\
         # Seconds after which the chunks of a disk that is away get new copies on other disks, if these have room; 0: never.\nrebuild_after_s = {}\n\
         # Seconds for which the first nodes of a cold start wait for the disks of the others before they go on without them.\nstart_wait_s = {}\n\n\
         # The disks, each on the host of the node that serves it to the others; their order is fixed. Relative paths start at the\n\
         # directory of the cluster on that host. Disks that fail together are in one failure_group: by default those of a host.\n",
        config.redundancy, config.chunk_mib, config.rebuild_after_s, config.start_wait_s
    );
    for ServedDiskConfig { id, node, shared, path: file, size_mib, failure_group } in &config.served_disks {
        let file = path(file.strip_prefix(config.dir.root()).unwrap_or(file));
        let shared: Vec<_> = shared.iter().map(|node| quoted(node)).collect();
        let shared = match shared.is_empty() {
            true => String::new(),
            false => format!(
                "shared = [{}]   # one of these serves it, and another one if it ends\n",
                shared.join(", ")
            ),
        };
        let _ = write!(
            text,
            "[[disk]]\nid = \"{id:032x}\"          # made once\nnode = {}\n{shared}path = {file}\nsize_mib = {size_mib}\n",
            quoted(node)
        );
        match failure_group {
            None => text.push_str("# failure_group = \"rack1\"\n"),
            Some(group) => {
                let _ = writeln!(text, "failure_group = {}", quoted(group));
            }
        }
    }
    text
}

fn membership(text: &mut String, config: &Config) {
    let Membership { profile, heartbeat_ms, lease_ms, evict_ms, kill_margin_ms, disk_timeout_ms, watchdog } =
        &config.membership;
    let _ = write!(
        text,
        "\n[membership]\n# How fast a lost node is noticed: \"lan\" (a host in 2.5 s), \"fast\" (0.6 s; networks and disks that never pause), \"wan\".\n\
         # Each time may be given: heartbeat_ms, lease_ms, evict_ms, kill_margin_ms, disk_timeout_ms.\nprofile = {}\n",
        quoted(profile),
    );
    let times = [
        ("heartbeat_ms", heartbeat_ms),
        ("lease_ms", lease_ms),
        ("evict_ms", evict_ms),
        ("kill_margin_ms", kill_margin_ms),
        ("disk_timeout_ms", disk_timeout_ms),
    ];
    for (name, time) in times {
        if let Some(time) = time {
            let _ = writeln!(text, "{name} = {time}");
        }
    }
    match watchdog {
        None => text.push_str("# watchdog = \"/dev/watchdog\"   # resets a host whose node hangs\n"),
        Some(watchdog) => {
            let _ = writeln!(text, "watchdog = {}", path(watchdog));
        }
    }
    text.push_str(
        "\n# Where votes are kept: a majority of these files decides who is a member. Shared files are opened by every node; one with\n\
         # `node` is on a disk of that node, which serves it. Changed with `plexus vote`.\n",
    );
    for file in &config.voting {
        let root = if file.node.is_some() { config.dir.root() } else { shared_root(config) };
        text.push_str(&voting(root, file));
    }
}

fn has_several_hosts(config: &Config) -> bool {
    config.nodes.iter().any(|node| Some(&node.host) != config.nodes.first().map(|first| &first.host))
}

/// Returns the directory to which paths of shared files are relative. Each host has a directory of
/// the cluster of its own, so between hosts they are relative to none.
fn shared_root(config: &Config) -> &Path {
    let root = config.dir.root();
    if has_several_hosts(config) && root.is_absolute() { Path::new("") } else { root }
}

/// Returns the table of a voting file of the cluster in `root`.
pub(super) fn voting(root: &Path, Voting { id, path: file, node }: &Voting) -> String {
    let node = node.as_ref().map(|node| format!("node = {}\n", quoted(node))).unwrap_or_default();
    let file = path(file.strip_prefix(root).unwrap_or(file));
    format!("[[voting]]\nid = \"{id}\"\npath = {file}\n{node}")
}

fn path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// Returns a text as a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}
