//! Wrong input before a cluster runs: one line of error, an exit code and unchanged data.

use std::{
    fs::{self, OpenOptions},
    net::TcpListener,
    os::unix::fs::FileExt,
};

use crate::common::{Cluster, run};

#[track_caller]
fn contains(line: &str, part: &str) {
    assert!(line.contains(part), "{line}");
}

#[test]
fn wrong_usage_has_a_code_of_its_own() {
    for args in
        [&["dance"][..], &["init"], &["init", "x", "--nodes", "17"], &["init", "x", "--waiting", "busy"]]
    {
        assert_eq!(run(args.iter().copied()).said().code, Some(2), "{args:?}");
    }
}

#[test]
fn a_cluster_that_is_named_as_earlier_is_answered_with_the_form_of_today() {
    for line in [
        "up c1",
        "status c1",
        "down c1",
        "locks c1",
        "rails c1",
        "metrics c1",
        "stat c1",
        "stat -i 1 c1",
        "stat record file c1",
        "key rotate c1",
        "bench blocks c1",
        "bench locks c1 --json",
        "node c1 n1",
        "node add n1 c1",
        "lock --cluster c1 a -- true",
        "group --cluster=c1 watch g",
        "registry get a --cluster c1",
        "vote --cluster c1 remove f",
    ] {
        let said = run(line.split(' ')).said();
        let command = line.split(' ').next().unwrap();
        assert_eq!(said.code, Some(if command == "lock" { 125 } else { 2 }), "{line}: {}", said.err);
        contains(&said.err, &format!("named with -C, as in `plexus {command} -C DIR`"));
    }
    let cluster = Cluster::new(1);
    let dir = cluster.dir().display().to_string();
    contains(&run(["perf", &dir, "n1", "n2"]).said().refusal(), &format!("`plexus perf -C {dir} NODE NODE`"));
    for line in ["init a b", "registry get a b", "status --clusters"] {
        assert!(!run(line.split(' ')).said().err.contains("-C,"), "{line}");
    }
}

#[test]
fn options_before_the_command_are_taken_as_behind_it() {
    for line in [
        "up",
        "status",
        "down",
        "key rotate",
        "vote remove f",
        "node add n1",
        "node n1",
        "locks",
        "registry get a",
        "redo",
        "rails",
        "stat",
        "stat record f",
        "bench blocks",
        "perf",
        "group watch g",
    ] {
        let behind = run(line.split(' ').chain(["-C", "no/such", "--json"])).said();
        contains(&behind.err, "no/such is not a cluster");
        let words: Vec<_> = line.split(' ').collect();
        for place in 0..words.len() {
            let (before, after) = words.split_at(place);
            let all = [before, &["--json", "-C", "no/such"], after].concat();
            let said = run(all.iter().copied()).said();
            assert_eq!((said.code, &said.err), (behind.code, &behind.err), "{all:?}");
        }
    }
    for (line, code) in [("-Cno/such lock a -- true -C x", 125), ("-C=no/such metrics", 1)] {
        let said = run(line.split(' ')).said();
        contains(&said.err, "no/such is not a cluster");
        assert_eq!(said.code, Some(code), "{line}");
    }
    for (line, what, code) in
        [("-C c1 init x", "'-C'", 2), ("--json lock a -- true", "'--json'", 125), ("up -C", "'-C <DIR>'", 2)]
    {
        let said = run(line.split(' ')).said();
        contains(&said.err, what);
        assert_eq!(said.code, Some(code), "{line}");
    }
}

#[test]
fn a_second_cluster_gets_other_ports_even_if_the_first_is_down() {
    let place = tempfile::tempdir().unwrap();
    let init = |name: &str, nodes: &str| {
        let mut init = run(["init", name, "--nodes", nodes, "--size-mib", "8", "--json"]);
        init.0.current_dir(place.path());
        init.said()
    };
    let first = init("one", "3").json()["port"].as_u64().unwrap();
    let second = init("two", "2").json()["port"].as_u64().unwrap();
    assert!(first >= 7400 && second >= 7400, "{first} {second}");
    // Ports below them become free when other tests end.
    assert!(second + 2 <= first || second >= first + 3, "{first} {second}");
    let taken = TcpListener::bind(("127.0.0.1", second as u16 + 2));
    let third = init("three", "1").json()["port"].as_u64().unwrap();
    let is_first = (first..first + 3).contains(&third);
    assert!(!is_first && !(second..second + 2).contains(&third), "{first} {second} {third}");
    assert!(taken.is_err() || third != second + 2, "{third}");

    let refusal = init("größe", "1").refusal();
    contains(&refusal, "the cluster is named \"größe\": use 1 to 32 ASCII letters, digits, `-` and `_`; ");
    contains(&refusal, "choose another directory or give a name with --name");
    contains(&init("a.b", "1").refusal(), "\"a.b\"");
    let mut named = run(["init", "größe", "--name", "groesse", "--nodes", "1", "--size-mib", "8", "--json"]);
    named.0.current_dir(place.path());
    assert_eq!(named.said().json()["name"], "groesse");
    let mut status = run(["status", "-C", "größe", "--json"]);
    status.0.current_dir(place.path());
    assert_eq!(status.said().json()["cluster"], "groesse");
}

#[test]
fn a_cluster_that_cannot_be_made_leaves_nothing() {
    let cluster = Cluster::nowhere();
    let cases = [
        (&["--block-size", "5"][..], "--block-size 5: use 4, 8 or 16"),
        (&["--size-mib", "33000000"], "MiB needed for the disk group, "),
        (&["--size-mib", "999999999"], "choose a size of 1 to 4294967296 blocks"),
        (&["--size-mib", "0"], "would have 0 blocks"),
        (&["--workers", "9"], "workers = 9: use 1 to 8"),
        (&["--cache-mib", "0"], "is too small for 1 workers with blocks of 8 KiB; use at least 1"),
        (&["--rails", "rdma"], "unknown rail `rdma`: use shm or ofi or tcp"),
        (&["--port", "65534"], "no 3 ports follow from there"),
    ];
    for (args, part) in cases {
        contains(&cluster.run("init").args(args.iter().copied()).said().refusal(), part);
        assert_eq!(fs::read_dir(cluster.parent()).unwrap().count(), 0, "{args:?}");
    }
}

#[test]
fn a_cluster_is_not_made_over_another() {
    let cluster = Cluster::new(1);
    let disk = cluster.dir().join("disks/0");
    let before = (fs::read(cluster.dir().join("cluster.toml")).unwrap(), fs::read(&disk).unwrap());
    contains(&cluster.run("init").said().refusal(), "is already a cluster; start it with `plexus up");
    assert_eq!(before, (fs::read(cluster.dir().join("cluster.toml")).unwrap(), fs::read(&disk).unwrap()));
}

#[test]
fn a_configuration_that_is_wrong_says_where() {
    let cluster = Cluster::new(2);
    let good = fs::read_to_string(cluster.dir().join("cluster.toml")).unwrap();
    let cases = [
        ("workers = 1", "workers = 1\nworker = 2", "cluster.toml:9: unknown field `worker`"),
        ("name = \"n2\"", "name = \"n1\"", "two nodes are named n1; give each a name of its own"),
        ("block_size_kib = 8", "block_size_kib = 6", "block_size_kib = 6: use 4, 8 or 16"),
        ("block_size_kib = 8", "block_size_kib = 4", "was made with a block size in bytes of 8192"),
        ("blocks = 1024", "blocks = 2048", "was made with blocks 1024, the configuration says 2048"),
        ("disks/0", "disks/9", "disks/9: disk 0 of the group is missing"),
        ("cache_mib = 4", "cache_mib = 4000000000", "need 4000000025 MiB of shared memory"),
        ("# cores = [0] ", "cores = [1000] #", "cannot be pinned to the cores [1000]"),
        ("\"127.", "\"198.", "cannot listen at 198."),
    ];
    for (from, to, part) in cases {
        cluster.edit(from, to);
        contains(&cluster.run("up").said().refusal(), part);
        fs::write(cluster.dir().join("cluster.toml"), &good).unwrap();
    }
    fs::remove_file(cluster.dir().join("cluster.toml")).unwrap();
    contains(&cluster.run("up").said().refusal(), "is not a cluster; make one with `plexus init");
    fs::write(cluster.dir().join("cluster.toml"), &good).unwrap();
    contains(
        &cluster.run("node").args(["n7"]).said().refusal_with(2),
        "there is no node `n7`; the nodes are n1, n2",
    );
    let elsewhere = cluster.run("up").env("PLEXUS_HOST", "mars").said().refusal();
    contains(&elsewhere, "no node belongs on this machine, mars; the nodes belong on ");
    // None of this is remembered.
    cluster.run("up").said().ok();
    cluster.run("down").said().ok();
}

#[test]
fn a_port_in_use_stops_the_start_of_its_node_alone() {
    let cluster = Cluster::new(2);
    let text = fs::read_to_string(cluster.dir().join("cluster.toml")).unwrap();
    let mut settings = text.lines().filter(|line| line.starts_with("address"));
    let address = settings.next_back().unwrap().split('"').find(|word| word.starts_with("127.")).unwrap();
    let taken = TcpListener::bind(address).unwrap();
    let refusal = cluster.run("up").said().refusal();
    contains(
        &refusal,
        &format!("n2: the address {address} is in use by another program; stop it, or change `address`"),
    );
    contains(&refusal, "; running: n1");
    drop(taken);
    let up = cluster.run("up").args(["--json"]).said().json();
    assert_eq!(up["running_before"], serde_json::json!(["n1"]));
    cluster.run("down").said().ok();
}

#[test]
fn a_damaged_disk_is_refused_and_left_alone() {
    let cluster = Cluster::new(1);
    let path = cluster.dir().join("disks/0");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let whole = file.metadata().unwrap().len();
    file.set_len(whole - 4096).unwrap();
    contains(&cluster.run("up").said().refusal(), "disks/0: truncated: ");
    file.set_len(whole).unwrap();
    file.write_all_at(&[0x55; 8192], 0).unwrap();
    let before = fs::read(&path).unwrap();
    contains(&cluster.run("up").said().refusal(), "disks/0: is not a Plexus disk; restore the file");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_node_has_one_process() {
    let cluster = Cluster::up(1);
    let pid = cluster.pids()[0];
    let refusal = cluster.run("node").args(["n1"]).said().refusal();
    assert_eq!(refusal, format!("plexus: n1 is already running (pid {pid})"));
    cluster.run("down").said().ok();
}
