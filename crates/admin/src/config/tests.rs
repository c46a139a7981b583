//! Accepted configurations, and the errors for all others.

use super::*;

const GOOD: &str = r#"
format = 1
name = "c1"
id = "000102030405060708090a0b0c0d0e0f"
workers = 2
waiting = "adaptive"
block_size_kib = 8
cache_mib = 16
checkpoint_seconds = 5
[group]
size_mib = 64
disks = ["disks/0", "/dev/plexus1"]
[[node]]
number = 0
name = "n1"
host = "a"
address = "127.0.0.1:7400"
rails = ["shm", "tcp"]
[[node]]
number = 1
name = "n2"
host = "a"
address = "127.0.0.1:7401"
rails = ["shm", "tcp"]
cores = [0, 1]
[[node]]
number = 2
name = "n3"
host = "b"
address = "127.0.0.1:7402"
rails = ["tcp"]
[[voting]]
id = "000000000000000a"
path = "voting/shared"
[[voting]]
id = "000000000000000b"
path = "/of/n3"
node = "n3"
[[voting]]
id = "000000000000000c"
path = "/dev/votes"
"#;

/// Replaces the group of [`GOOD`]: 64 MiB of blocks, 64 MiB of redo for each of three nodes, and
/// disks with exactly the room for two copies of these four chunks.
const MIRRORED: &str = r#"
[group]
size_mib = 64
redundancy = "mirror2"
[[disk]]
id = "0000000000000000000000000000000a"
node = "n1"
path = "disks/0"
size_mib = 130
[[disk]]
id = "0000000000000000000000000000000b"
node = "n3"
path = "disks/0"
size_mib = 256
[[disk]]
id = "0000000000000000000000000000000c"
node = "n2"
path = "/srv/disk"
size_mib = 128
failure_group = "rack \"1\""
"#;

/// Returns a configuration with a mirrored group.
fn mirrored() -> String {
    let (head, rest) = GOOD.split_once("[group]").unwrap();
    let (_, nodes) = rest.split_once("[[node]]").unwrap();
    format!("{head}redo_mib = 64\n{MIRRORED}[[node]]{nodes}")
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(&ClusterDir::new("/c1"), text)
}

#[test]
fn a_good_file_is_taken_as_it_is() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.blocks, 8192);
    assert!(
        config.shared_bytes() > (16 + u64::from(PROGRAM_WINDOW_MIB)) << 20,
        "the window of benchmarks too"
    );
    assert_eq!(config.disks, [PathBuf::from("/c1/disks/0"), PathBuf::from("/dev/plexus1")]);
    assert_eq!(config.rails(NodeId(1), NodeId(0)), [RailKind::Shm, RailKind::Tcp]);
    assert_eq!(config.rails(NodeId(0), NodeId(2)), [RailKind::Tcp]);
    assert_eq!(config.node("n3").unwrap().0, NodeId(2));
    let first = config.first_view();
    assert_eq!(first.cluster(), NodeSet::first(3));
    assert_eq!(first.files.iter().map(|file| file.host).collect::<Vec<_>>(), [None, Some(NodeId(2)), None]);
    assert_eq!(config.voting[0].path, PathBuf::from("/c1/voting/shared"));
    assert!(config.node("n4").unwrap_err().to_string().contains("the nodes are n1, n2, n3"));
}

/// The table in the documentation has every key that is read, every rail and nothing else.
#[test]
fn the_documentation_lists_every_key() {
    let mut config = parse(GOOD).unwrap();
    config.interconnect.ofi_provider = Some("tcp".into());
    let times = [Some(100), Some(900), Some(1000), Some(50)];
    let membership = &mut config.membership;
    [membership.heartbeat_ms, membership.lease_ms, membership.evict_ms, membership.kill_margin_ms] = times;
    membership.disk_timeout_ms = Some(30_000);
    membership.watchdog = Some("/dev/watchdog".into());
    config.voting.swap(0, 1);
    let node = &mut config.nodes[0];
    node.fence = vec!["true".into()];
    node.addresses = vec!["127.0.1.1:7400".parse().unwrap()];
    node.metrics = Some("127.0.0.1:9100".parse().unwrap());
    node.cores = vec![0];
    let mut keys = std::collections::BTreeSet::new();
    let mut add = |text: String| {
        for (key, value) in text.parse::<toml::Table>().unwrap() {
            match value {
                toml::Value::Table(table) => {
                    keys.extend(table.keys().map(|inner| format!("[{key}] {inner}")));
                }
                toml::Value::Array(tables) => {
                    let inner = tables.iter().flat_map(|table| table.as_table().unwrap().keys());
                    keys.extend(inner.map(|inner| format!("[[{key}]] {inner}")));
                }
                _ => drop(keys.insert(key)),
            }
        }
    };
    add(config.to_text());
    let mut served = parse(&mirrored()).unwrap();
    served.served_disks[0].shared = vec!["n1".into()];
    add(served.to_text());
    // The other way to give the size of a group.
    keys.insert("[group] size_mib".into());
    let text = include_str!("../../../../docs/formats.md");
    let section = text.split("### `cluster.toml`").nth(1).unwrap().split("\n### ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
    let listed: std::collections::BTreeSet<String> = rows
        .flat_map(|(names, _)| {
            let mut names = names.split('`').step_by(2).map(str::to_owned).collect::<Vec<_>>();
            let table = if names[0].starts_with('[') { names.remove(0) + " " } else { String::new() };
            names.into_iter().filter(|name| !name.is_empty()).map(move |name| format!("{table}{name}"))
        })
        .collect();
    assert_eq!(listed, keys);
    let rails = section.lines().find(|line| line.contains("`rails`")).unwrap();
    assert!(RailKind::ALL.iter().all(|rail| rails.contains(&format!("`{rail}`"))), "{rails}");
}

#[test]
fn a_table_of_a_subsystem_is_read_with_its_type_and_written_again() {
    #[derive(Deserialize, Default, PartialEq, Debug)]
    #[serde(deny_unknown_fields, default)]
    struct Echo {
        limit: u32,
        places: std::collections::BTreeMap<String, u16>,
    }
    let section = "[echo]\nlimit = 3\nplaces = { n1 = 5433 }\n";
    let config = parse(&format!("{GOOD}{section}")).unwrap();
    let echo = Echo { limit: 3, places: [("n1".to_owned(), 5433)].into() };
    assert_eq!(config.section::<Echo>("echo").unwrap(), echo);
    assert_eq!(parse(&config.to_text()).unwrap(), config);
    assert_eq!(config.section::<Echo>("other").unwrap(), Echo::default());
    let wrong = parse(&format!("{GOOD}[echo]\nlimits = 3\n")).unwrap().section::<Echo>("echo").unwrap_err();
    assert!(wrong.starts_with("/c1/cluster.toml: [echo]: unknown field `limits`"), "{wrong}");
    // A key that is no table belongs to no subsystem, and its line is known.
    let wrong = parse(&format!("speed = 3\n{GOOD}")).unwrap_err().to_string();
    assert!(wrong.starts_with("/c1/cluster.toml:1: unknown field `speed`"), "{wrong}");
}

#[test]
fn hostile_files_do_no_harm() {
    let echo = format!("{GOOD}[echo]\nlimit = nan\n[echo.places]\n\"n 1\" = [1, 2.5]\n");
    let texts = [GOOD.into(), parse(GOOD).unwrap().to_text(), echo, mirrored()];
    let good = texts.map(String::into_bytes);
    assert!(good.iter().all(|text| config_any(text)));
    let mut taken = 0;
    plexus_sim::hostile(&good, |text| taken += u32::from(config_any(text)));
    assert!(taken > 2, "some of what was changed still is a configuration");
}

#[test]
fn written_configuration_is_read_back() {
    let mut config = parse(GOOD).unwrap();
    config.nodes[2].host = "quoted \" host".into();
    config.nodes[1].metrics = Some("[::1]:9100".parse().unwrap());
    config.nodes[1].fence = vec!["fence".into(), "--what \"ever\"".into()];
    config.membership.profile = "wan".into();
    config.membership.evict_ms = Some(20_000);
    assert_eq!(parse(&config.to_text()).unwrap(), config);
}

#[test]
fn disks_that_nodes_serve_are_read_and_written() {
    let config = parse(GOOD).unwrap();
    assert_eq!((config.is_served(), config.redundancy), (false, Redundancy::External));
    assert_eq!(config.redo(), Some("/c1/disks/redo".into()));
    assert!(!config.to_text().contains("redundancy"), "the text for external storage is as before");
    let external = GOOD.replacen("[group]", "[group]\nredundancy = \"external\"", 1);
    assert_eq!(parse(&external).unwrap(), config);

    let config = parse(&mirrored()).unwrap();
    assert_eq!(parse(&config.to_text()).unwrap(), config);
    assert_eq!((config.is_served(), config.redundancy), (true, Redundancy::Mirror2));
    assert_eq!((config.chunk_mib, config.disks.len(), config.redo()), (64, 0, None));
    assert_eq!((config.block_chunks(), config.redo_chunks()), (1, 1));
    let paths: Vec<_> = config.served_disks.iter().map(|disk| disk.path.to_str().unwrap()).collect();
    assert_eq!(paths, ["/c1/disks/0", "/c1/disks/0", "/srv/disk"]);
    let groups: Vec<_> = config.served_disks.iter().map(|disk| config.failure_group(disk)).collect();
    assert_eq!(groups, ["a", "b", "rack \"1\""]);
    let slots: Vec<_> = config.served_disks.iter().map(|disk| disk.slots(64)).collect();
    assert_eq!(slots, [2, 4, 2]);
    assert_eq!(config.served_disks[1].id, 11);
    let mut other = config.clone();
    other.served_disks.swap(0, 1);
    assert_ne!(config.fingerprint(NodeId(0), NodeId(1)), other.fingerprint(NodeId(0), NodeId(1)));
}

#[test]
fn a_shared_disk_needs_nodes_that_can_be_fenced_and_a_place_that_all_know() {
    let mut good = parse(&mirrored()).unwrap();
    (0..3).for_each(|node| good.nodes[node].fence = vec!["off".into()]);
    let first = good.served_disks[2].node.clone();
    let other = good.nodes.iter().map(|node| node.name.clone()).find(|name| *name != first).unwrap();
    good.served_disks[2].shared = vec![first, other.clone()];
    assert_eq!(parse(&good.to_text()).unwrap(), good);
    let without =
        good.to_text().replace(&format!("node = \"{}\"\nshared", good.served_disks[2].node), "shared");
    assert_eq!(parse(&without).unwrap(), good, "the first one serves it first");
    type Mistake = fn(&mut Config);
    let mistakes: [(Mistake, &str); 7] = [
        (|config| config.served_disks[2].shared[1] = "n9".into(), "by n9, which is no node"),
        (|config| config.served_disks[2].shared.truncate(1), "by one node"),
        (|config| drop(config.served_disks[2].shared.remove(0)), "by one node"),
        (|config| config.served_disks[2].failure_group = None, "has no failure_group"),
        (|config| config.served_disks[2].path = "/c1/disks/7".into(), "and its path is not absolute"),
        (|config| (0..3).for_each(|node| config.nodes[node].fence.clear()), "which has no fence command"),
        (|config| config.served_disks[0].path = "/srv/disk".into(), "are /srv/disk; list each once"),
    ];
    for (mistake, expected) in mistakes {
        let mut config = good.clone();
        mistake(&mut config);
        let line = parse(&config.to_text()).expect_err(expected).to_string();
        assert!(line.contains(expected) && !line.contains('\n'), "{line}");
    }
}

#[test]
fn each_mistake_in_served_disks_has_its_line() {
    let disk = |number: usize| {
        format!(
            "[[disk]]\nid = \"{:032x}\"\nnode = \"n1\"\npath = \"{number}\"\nsize_mib = 64\n",
            number + 100
        )
    };
    let thirty: String = (0..30).map(disk).collect();
    let last = "[[disk]]\nid = \"0000000000000000000000000000000c\"";
    let cases: &[(&str, &str, &str)] = &[
        (
            "\"mirror2\"",
            "\"mirror3\"",
            "3 copies of the blocks and redo streams (4 chunks of 64 MiB) need 256 MiB more",
        ),
        (
            "\"mirror2\"",
            "\"raid\"",
            "/c1/cluster.toml:14: unknown redundancy `raid`: use one of external, mirror2, mirror3",
        ),
        (
            "redundancy = \"mirror2\"",
            "disks = [\"d\"]",
            "[[disk]] is only for mirrored groups; set redundancy",
        ),
        ("redundancy = \"mirror2\"", "", "[group] lists no disks"),
        (
            "redundancy = \"mirror2\"",
            "disks = [\"d\"]\nchunk_mib = 64",
            "[group] has chunk_mib, which is only for",
        ),
        (
            "redundancy = \"mirror2\"",
            "disks = [\"d\"]\nstart_wait_s = 9",
            "[group] has start_wait_s, which is only for",
        ),
        (
            "\"mirror2\"",
            "\"mirror2\"\ndisks = [\"d\"]",
            "[group] has disks and redundancy = \"mirror2\"; describe",
        ),
        ("\"mirror2\"", "\"mirror2\"\nchunk_mib = 0", "[group] chunk_mib = 0: use 64, 256 or 1024"),
        ("\"mirror2\"", "\"mirror2\"\nchunk_mib = 128", "[group] chunk_mib = 128: use 64, 256 or 1024"),
        (
            "\"mirror2\"",
            "\"mirror2\"\nchunk_mib = 256",
            "/c1/disks/0 has size_mib = 130; use at least one chunk, 256 MiB",
        ),
        ("redo_mib = 64", "redo_mib = 0", "redo_mib = 0: mirror2 needs redo"),
        ("redo_mib = 64", "", "redo_mib = 0: mirror2 needs redo"),
        ("00000a\"", "a\"", "is not 32 hexadecimal digits"),
        ("00000a\"", "00000b\"", "two disks have the id 0000000000000000000000000000000b; list each once"),
        ("path = \"disks/0\"", "path = \"\"", "[[disk]] 0 has no path; name a file"),
        (
            "path = \"disks/0\"",
            "path = \"/srv/disk\"",
            "two disks on the host a are /srv/disk; list each once",
        ),
        ("path = \"disks/0\"\n", "", "missing field `path`"),
        ("node = \"n1\"\npath", "path", "the disk /c1/disks/0 has no node that serves it; name it in `node`"),
        ("size_mib = 130", "size_mib = 130\nmirror = 2", "unknown field `mirror`"),
        (
            "node = \"n3\"\npath = \"disks",
            "node = \"n4\"\npath = \"disks",
            "the disk /c1/disks/0 is served by n4, which is no node",
        ),
        (
            "size_mib = 130",
            "size_mib = 63",
            "the disk /c1/disks/0 has size_mib = 63; use at least one chunk, 64 MiB",
        ),
        (
            "size_mib = 130",
            "size_mib = 9000000000000000000",
            "size_mib = 9000000000000000000; use at most 268435456",
        ),
        (
            "size_mib = 130",
            "size_mib = 130\nfailure_group = \"\"",
            "has an empty failure_group; name it or remove",
        ),
        (last, &format!("{thirty}{last}"), "33 tables [[disk]]; a group has at most 32"),
        // One copy of each chunk finds no place, wherever the other one is.
        (
            "size_mib = 130",
            "size_mib = 127",
            "(4 chunks of 64 MiB) need 64 MiB more in different failure groups",
        ),
        (
            "size_mib = 64",
            "size_mib = 128",
            "(5 chunks of 64 MiB) need 128 MiB more in different failure groups",
        ),
        (
            "redo_mib = 64",
            "redo_mib = 65",
            "(7 chunks of 64 MiB) need 384 MiB more in different failure groups",
        ),
    ];
    let good = mirrored();
    for (from, to, expected) in cases {
        assert!(good.contains(from), "{from}");
        let line = parse(&good.replacen(from, to, 1)).expect_err(to).to_string();
        assert!(line.contains(expected) && !line.contains('\n'), "{to}: {line}");
    }
    let one_group = good
        .replace("size_mib = 130", "size_mib = 130\nfailure_group = \"b\"")
        .replace("rack \\\"1\\\"", "b");
    let line = parse(&one_group).unwrap_err().to_string();
    assert!(line.contains("mirror2 needs disks in at least 2 failure groups, and [[disk]] has 1"), "{line}");
    // More room in a failure group than for one copy of each chunk does not help.
    let more = good.replace("size_mib = 256", "size_mib = 2560").replace("size_mib = 130", "size_mib = 64");
    assert!(parse(&more).unwrap_err().to_string().contains("need 64 MiB more"));
}

/// Disks of a new cluster pass the checks, also where hosts have different numbers of them.
#[test]
fn new_disks_have_room_for_two_copies_of_everything() {
    let node = |number: u8, host: &str| NodeConfig {
        host: host.into(),
        ..NodeConfig::new(
            number,
            &format!("n{}", number + 1),
            ([127, 0, 0, 1], u16::from(number) + 1).into(),
            vec![RailKind::Tcp],
        )
    };
    let sizes = |hosts: &[&str], places: &[(&str, &str)], blocks: u64, redo_mib: u32| {
        let nodes = (0..).zip(hosts).map(|(number, host)| node(number, host)).collect();
        let mut config = Config::new(ClusterDir::new("/c1"), "c1", nodes).unwrap();
        (config.redundancy, config.blocks, config.redo_mib) = (Redundancy::Mirror2, blocks, redo_mib);
        config.disks.clear();
        config.chunk_mib = config.fitting_chunk_mib();
        let places: Vec<_> = places.iter().map(|(node, path)| ((*node).to_owned(), path.into())).collect();
        config.served_disks = config.new_served_disks(&places).unwrap();
        assert_eq!(parse(&config.to_text()).unwrap(), config);
        if config.chunk_mib > 64 {
            let refused = Config { chunk_mib: 64, ..config.clone() }.to_text();
            assert!(parse(&refused).unwrap_err().to_string().contains("choose a larger chunk_mib"));
        }
        let slots = config.served_disks.iter().map(|disk| disk.slots(config.chunk_mib));
        (config.chunk_mib, slots.collect::<Vec<_>>())
    };
    let two = [("n1", "disks/0"), ("n2", "disks/0")];
    let three = [("n1", "disks/0"), ("n2", "disks/0"), ("n3", "disks/0")];
    // Blocks of 4 KiB: 256 MiB are 4 chunks; then 2 * (4 + 2 * 3 * 1) / 3, rounded up, and 2.
    assert_eq!(sizes(&["a", "b", "c"], &three, 65536, 64), (64, vec![9, 9, 9]));
    assert_eq!(sizes(&["a", "b", "w"], &two, 65536, 64), (64, vec![12, 12]), "with a witness");
    assert_eq!(sizes(&["a", "b"], &two, 1, 16), (64, vec![7, 7]));
    let uneven = [("n1", "disks/0"), ("n1", "/srv/1"), ("n1", "/srv/2"), ("n2", "disks/0")];
    assert_eq!(sizes(&["a", "b"], &uneven, 65536, 64), (64, vec![5, 5, 5, 10]));
    let (chunk_mib, slots) = sizes(&["a", "b", "c"], &three, MAX_BLOCKS, MAX_REDO_MIB);
    assert_eq!((chunk_mib, slots.len()), (256, 3), "more chunks of 64 MiB than a map has");
}

#[test]
fn link_traffic_is_encrypted_when_it_leaves_the_host() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.interconnect, Interconnect::default(), "files without the table are read as before");
    assert!(!config.encrypts(NodeId(0), NodeId(1)) && config.encrypts(NodeId(1), NodeId(2)));
    for (encrypt, same_host, other_host) in [("always", true, true), ("never", false, false)] {
        let table = format!("[interconnect]\nencrypt = \"{encrypt}\"\nprobe_ms = 5\n[group]");
        let config = parse(&GOOD.replacen("[group]", &table, 1)).unwrap();
        assert_eq!(config.encrypts(NodeId(0), NodeId(1)), same_host);
        assert_eq!(config.encrypts(NodeId(1), NodeId(2)), other_host);
        assert_eq!(parse(&config.to_text()).unwrap(), config);
    }
}

#[test]
fn the_provider_of_libfabric_is_a_choice_for_all_nodes() {
    let with = |line: &str| parse(&GOOD.replacen("[group]", &format!("[interconnect]\n{line}\n[group]"), 1));
    assert_eq!(with("").unwrap().interconnect.ofi_provider, None);
    let config = with("ofi_provider = \"tcp\"").unwrap();
    assert_eq!(config.interconnect.ofi_provider.as_deref(), Some("tcp"));
    assert_eq!(parse(&config.to_text()).unwrap(), config);
    for (wrong, line) in
        [("", "a name that `fi_info -l` lists"), ("T C P", "a name"), ("shm", "use the rail shm")]
    {
        let error = with(&format!("ofi_provider = \"{wrong}\"")).unwrap_err().to_string();
        assert!(error.contains(line), "{error}");
    }
}

#[test]
fn further_addresses_are_further_paths() {
    let more = "cores = [0, 1]\naddresses = [\"127.0.1.1:7401\", \"127.0.2.1:7401\"]";
    let config = parse(&GOOD.replacen("cores = [0, 1]", more, 1)).unwrap();
    let addresses: Vec<String> = config.nodes[1].all_addresses().map(|address| address.to_string()).collect();
    assert_eq!(addresses, ["127.0.0.1:7401", "127.0.1.1:7401", "127.0.2.1:7401"]);
    assert_eq!(parse(&config.to_text()).unwrap(), config);
}

#[test]
fn each_mistake_has_its_line() {
    let node = |number: usize, more: &str| {
        format!(
            "[[node]]\nnumber = {}\nname = \"m{number}\"\nhost = \"a\"\naddress = \"127.0.0.1:{}\"\nrails = [\"tcp\"]\n{more}",
            number % 16,
            7500 + number
        )
    };
    let seventeen: String = (0..17).map(|number| node(number, "")).collect();
    let metrics = "metrics = \"127.0.0.1:7410\"\n";
    let cases: &[(&str, &str, &str)] = &[
        ("workers = 2", "workers = 2\nworker = 3", "/c1/cluster.toml:6: unknown field `worker`"),
        ("cores = [0, 1]", "core = 1", "/c1/cluster.toml:25: unknown field `core`"),
        ("workers = 2", "workers = two", "/c1/cluster.toml:5: "),
        ("workers = 2", "", "missing field `workers`"),
        ("workers = 2", "workers = 9", "workers = 9: use 1 to 8"),
        ("workers = 2", "workers = 0", "workers = 0: use 1 to 8"),
        ("format = 1", "format = 2", "format 2 is not known"),
        ("\"c1\"", "\"c 1\"", "the cluster is named \"c 1\": use"),
        ("\"n2\"", "\"../n2\"", "node 1 is named \"../n2\": use"),
        ("\"n2\"", "\"n1\"", "two nodes are named n1"),
        (":7401", ":7400", "nodes n1 and n2 have the same address 127.0.0.1:7400"),
        (":7401", ":0", "node n2 has the address 127.0.0.1:0"),
        ("127.0.0.1:7401", "n2.example", "/c1/cluster.toml:23: invalid socket address"),
        ("0001020304", "x", "is not 32 hexadecimal digits"),
        (
            "\"adaptive\"",
            "\"busy\"",
            "/c1/cluster.toml:6: unknown waiting mode `busy`: use one of polling, event, adaptive",
        ),
        ("block_size_kib = 8", "block_size_kib = 5", "block_size_kib = 5: use 4, 8 or 16"),
        ("cache_mib = 16", "cache_mib = 0", "too small for 2 workers with blocks of 8 KiB; use at least 1"),
        ("checkpoint_seconds = 5", "checkpoint_seconds = 0", "use at least 1"),
        (
            "checkpoint_seconds = 5",
            "recovery_target_seconds = 0\ncheckpoint_seconds = 5",
            "recovery_target_seconds = 0: use at least 1",
        ),
        (
            "checkpoint_seconds = 5",
            "program_window_mib = 0\ncheckpoint_seconds = 5",
            "program_window_mib = 0: use 1",
        ),
        ("size_mib = 64", "", "give size_mib or blocks"),
        ("size_mib = 64", "size_mib = 64\nblocks = 3", "keep one of them"),
        ("size_mib = 64", "blocks = 0", "would have 0 blocks"),
        ("size_mib = 64", "blocks = 9000000000000000000", "would have 9000000000000000000 blocks"),
        ("\"/dev/plexus1\"", "\"disks/0\"", "lists the disk disks/0 twice"),
        ("[\"disks/0\", \"/dev/plexus1\"]", "[]", "lists no disks"),
        ("[\"tcp\"]", "[]", "node n3 has no rails; list at least one of shm, ofi, tcp"),
        ("[\"tcp\"]", "[\"rdma\"]", "unknown rail `rdma`: use shm or ofi or tcp"),
        (
            "[\"tcp\"]",
            "[\"shm\"]",
            "nodes n1 and n3 have only shm between them but are on different hosts (a and b)",
        ),
        ("[\"tcp\"]", "[\"tcp\", \"tcp\"]", "lists the rail tcp twice"),
        (
            "cores = [0, 1]",
            "metrics = \"127.0.0.1:0\"",
            "node n2 has metrics = \"127.0.0.1:0\"; give the port",
        ),
        (
            "cores = [0, 1]",
            "metrics = \"127.0.0.1:7401\"",
            "node n2 has one address for its peers and its metrics",
        ),
        (
            "cores = [0, 1]",
            &format!("{metrics}{}", node(5, metrics)),
            "nodes n2 and m5 have the same metrics on one host",
        ),
        (
            "[group]",
            "[interconnect]\nencrypt = \"maybe\"\n[group]",
            "/c1/cluster.toml:11: unknown variant `maybe`, expected one of `auto`, `always`, `never`",
        ),
        ("[group]", "[interconnect]\nprobe_ms = 0\n[group]", "probe_ms = 0: use 1 to 1000"),
        (
            "[group]",
            "[interconnect]\npeer_timeout_ms = 50\n[group]",
            "peer_timeout_ms = 50: use 60 (three times",
        ),
        ("[group]", "[interconnect]\ntimeout = 50\n[group]", "unknown field `timeout`"),
        (
            "[group]",
            "[interconnect]\npatience_ms = 50\n[group]",
            "unknown field `patience_ms`, expected one of `encrypt`, `peer_timeout_ms`, `probe_ms`, \
             `ofi_provider`; this key is now `peer_timeout_ms`",
        ),
        (
            "cores = [0, 1]",
            "addresses = [\"127.0.0.1:7402\"]",
            "nodes n2 and n3 have the same address 127.0.0.1:7402",
        ),
        ("cores = [0, 1]", "addresses = [\"0.0.0.0:1\"]", "node n2 has the address 0.0.0.0:1"),
        ("cores = [0, 1]", "addresses = [\"127.0.0.1:7401\"]", "lists the address 127.0.0.1:7401 twice"),
        (
            "cores = [0, 1]",
            "addresses = [\"1.1.1.1:1\", \"1.1.1.1:2\", \"1.1.1.1:3\", \"1.1.1.1:4\", \"1.1.1.1:5\", \"1.1.1.1:6\", \"1.1.1.1:7\", \"1.1.1.1:8\"]",
            "node n2 has too many addresses; 8 paths",
        ),
        ("cores = [0, 1]", "cores = [5000]", "node n2 is pinned to core 5000"),
        ("[group]", "[membership]\nprofile = \"slow\"\n[group]", "use \"lan\", \"fast\", \"wan\""),
        ("[group]", "[membership]\nlease_ms = 2000\n[group]", "[membership] nodes are evicted after"),
        ("000000000000000b", "b", "\"b\" is not a voting file identifier"),
        ("000000000000000b", "000000000000000a", "two voting files are called 000000000000000a"),
        ("/dev/votes", "voting/shared", "two voting files are /c1/voting/shared"),
        ("node = \"n3\"", "node = \"n4\"", "served by n4, which is no node"),
        (
            "[[voting]]\nid = \"000000000000000a\"\npath = \"voting/shared\"\n[[voting]]\nid = \"000000000000000b\"\npath = \"/of/n3\"\nnode = \"n3\"\n[[voting]]\nid = \"000000000000000c\"\npath = \"/dev/votes\"\n",
            "",
            "0 voting files; a cluster has 1 to 16",
        ),
        (
            "[[node]]\nnumber = 0",
            &format!("{seventeen}[[node]]\nnumber = 0"),
            "20 nodes; a cluster has 1 to 16",
        ),
    ];
    for (good, bad, expected) in cases {
        assert!(GOOD.contains(good), "{good}");
        let line = parse(&GOOD.replacen(good, bad, 1)).expect_err(bad).to_string();
        assert!(line.contains(expected) && !line.contains('\n'), "{bad}: {line}");
    }
    let mixed = GOOD.replacen("[\"shm\", \"tcp\"]", "[\"shm\"]", 1);
    assert!(parse(&mixed).unwrap_err().to_string().contains("nodes n1 and n3 have no rail in common"));
}

/// A node keeps its number wherever its table is, and a number is never guessed.
#[test]
fn tables_of_nodes_may_be_reordered_and_removed() {
    let (head, rest) = GOOD.split_once("[[node]]").unwrap();
    let (tables, voting) = rest.split_once("[[voting]]").unwrap();
    let tables: Vec<&str> = tables.split("[[node]]").collect();
    let of = |order: &[usize]| {
        let tables: String = order.iter().map(|table| format!("[[node]]{}", tables[*table])).collect();
        parse(&format!("{head}{tables}[[voting]]{voting}"))
    };
    assert_eq!(of(&[2, 0, 1]).unwrap(), parse(GOOD).unwrap());
    let config = of(&[2, 0]).unwrap();
    assert_eq!((config.node("n3").unwrap().0, config.name_of(NodeId(2))), (NodeId(2), "n3".into()));
    assert_eq!((config.numbers(), config.number_limit()), ([NodeId(0), NodeId(2)].into_iter().collect(), 3));
    assert_eq!(config.first_view().cluster(), config.numbers());
    assert_eq!(config.first_view().files[1].host, Some(NodeId(2)));
    assert_eq!(parse(&config.to_text()).unwrap(), config);

    let refusal = |text: &str| parse(text).unwrap_err().to_string();
    let none = GOOD.replace("\nnumber = ", "\n# ");
    let line = refusal(&none);
    assert!(line.contains("add `number = 0` to n1, `number = 1` to n2, `number = 2` to n3"), "{line}");
    let line = refusal(&GOOD.replacen("number = 1\n", "", 1));
    assert!(line.contains("node n2 has no number; add one that no node had before"), "{line}");
    assert!(line.contains("`number = 3`"), "{line}");
    let line = refusal(&GOOD.replacen("number = 2\n", "number = 1\n", 1));
    assert!(line.contains("nodes n2 and n3 have the same number 1"), "{line}");
    let line = refusal(&GOOD.replacen("number = 2\n", "number = 16\n", 1));
    assert!(line.contains("number = 16: use 0 to 15"), "{line}");
}

#[test]
fn a_missing_file_says_how_to_make_one() {
    let line = Config::load(&ClusterDir::new("/nowhere/c9")).unwrap_err().to_string();
    assert!(line.contains("make one with `plexus init /nowhere/c9`"), "{line}");
}

#[test]
fn a_fingerprint_tells_what_differs() {
    let node = |number: u8| {
        NodeConfig::new(number, &format!("n{number}"), ([127, 0, 0, 1], u16::from(number) + 1).into(), vec![])
    };
    let config = Config::new(ClusterDir::new("/c"), "c", (0..3).map(node).collect()).unwrap();
    let (one, two) = (NodeId(0), NodeId(1));
    let base = config.fingerprint(one, two);
    assert_eq!(base, config.fingerprint(two, one));
    let mut other = config.clone();
    other.nodes[0].address.set_port(9);
    assert_ne!(base, other.fingerprint(one, two));
    let mut other = config.clone();
    other.interconnect.ofi_provider = Some("tcp".into());
    assert_ne!(base, other.fingerprint(one, two));
    // A third node is none of their concern, and may be missing in the list of one of them.
    let third = NodeId(2);
    let with_third = config.fingerprint(one, third);
    let mut other = config.clone();
    other.nodes[1].address.set_port(9);
    assert_eq!(with_third, other.fingerprint(one, third));
    assert_ne!(base, other.fingerprint(one, two));
    other.nodes = other.nodes.iter().filter(|node| node.number != two).cloned().collect();
    assert_eq!(with_third, other.fingerprint(third, one));
}
