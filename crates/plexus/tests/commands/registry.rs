//! The registry of a cluster of real nodes, by its commands.

use std::{fs, path::PathBuf, thread};

use crate::common::{Cluster, Reading, Run, run, signal, until, wait_for_end};
use rustix::process::Signal;
use serde_json::{Value, json};

/// `plexus registry ARGS` at this cluster.
fn registry<'a>(cluster: &Cluster, args: impl IntoIterator<Item = &'a str>) -> Run {
    run(["registry"]).args(args).env("PLEXUS_DIR", cluster.dir().to_str().unwrap())
}

fn set(cluster: &Cluster, node: &str, key: &str, value: &str) -> u64 {
    registry(cluster, ["--node", node, "--json", "set", key, value]).said().json()["version"]
        .as_u64()
        .unwrap()
}

fn get(cluster: &Cluster, node: &str, key: &str) -> Value {
    registry(cluster, ["--node", node, "--json", "get", key]).said().json()
}

/// Returns the paths of a node's two copies.
fn copies(cluster: &Cluster, node: &str) -> [PathBuf; 2] {
    ["1", "2"].map(|copy| cluster.dir().join(format!("state/{node}.registry.{copy}")))
}

fn status(cluster: &Cluster) -> Value {
    registry(cluster, ["--json", "status"]).said().json()
}

/// Starts `plexus registry watch`.
fn watch(cluster: &Cluster, node: &str, prefix: &str) -> Reading {
    let mut watch = registry(cluster, ["--node", node, "--json", "watch", prefix]).start();
    assert!(watch.next()["watching"].is_u64());
    watch
}

#[test]
fn what_one_node_sets_the_others_have_also_after_a_start() {
    let cluster = Cluster::up(3);
    let version = set(&cluster, "n1", "nodes/n1/address", "10.0.0.1");
    for node in ["n2", "n3", "n1"] {
        let entry = get(&cluster, node, "nodes/n1/address");
        assert_eq!((&entry["value"]["text"], &entry["version"]), (&"10.0.0.1".into(), &version.into()));
    }
    set(&cluster, "n3", "nodes/n2", "x");
    registry(&cluster, ["delete", "nodes/n2"]).said().ok();
    assert_eq!(registry(&cluster, ["get", "nodes/n1/address"]).said().ok(), "10.0.0.1\n");
    cluster.run("down").said().ok();
    cluster.run("up").said().ok();
    let listed = registry(&cluster, ["--node", "n2", "--json", "list", "nodes/"]).said().json();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["version"], version);
    assert!(set(&cluster, "n2", "nodes/n1/address", "10.0.0.2") > version);
    let table = registry(&cluster, ["list"]).said().ok();
    assert!(table.contains("nodes/n1/address") && table.contains("10.0.0.2"), "{table}");
}

#[test]
fn of_comparisons_with_one_version_one_succeeds_whichever_node_is_asked() {
    let cluster = Cluster::up(3);
    set(&cluster, "n1", "count", "0");
    let add = |node: &str| loop {
        let now = get(&cluster, node, "count");
        let (count, version) = (now["value"]["text"].as_str().unwrap(), now["version"].to_string());
        let next = (count.parse::<u64>().unwrap() + 1).to_string();
        let said =
            registry(&cluster, ["--node", node, "set", "count", &next, "--if-version", &version]).said();
        match said.code {
            Some(0) => return,
            _ => assert!(said.refusal().contains("has version")),
        }
    };
    thread::scope(|scope| {
        for node in ["n1", "n2", "n3"] {
            scope.spawn(move || (0..5).for_each(|_| add(node)));
        }
    });
    assert_eq!(get(&cluster, "n2", "count")["value"]["text"], "15");
    let refused = registry(&cluster, ["set", "count", "1", "--if-version", "0"]).said().refusal();
    assert!(refused.contains("read it again"), "{refused}");
}

#[test]
fn a_watch_prints_every_change_of_all_nodes_in_order() {
    let cluster = Cluster::up(2);
    let mut watch = watch(&cluster, "n2", "w/");
    let versions: Vec<u64> =
        (0..6).map(|n| set(&cluster, if n % 2 == 0 { "n1" } else { "n2" }, "w/a", &n.to_string())).collect();
    set(&cluster, "n1", "other", "x");
    registry(&cluster, ["delete", "w/a"]).said().ok();
    for (n, version) in versions.iter().enumerate() {
        let told = watch.next();
        assert_eq!(
            (&told["set"]["value"]["text"], &told["set"]["version"]),
            (&n.to_string().into(), &(*version).into())
        );
    }
    assert_eq!(watch.next()["deleted"]["key"], "w/a");
    let restored = cluster.parent().join("b");
    registry(&cluster, ["backup", restored.to_str().unwrap()]).said().ok();
    registry(&cluster, ["restore", restored.to_str().unwrap()]).said().ok();
    assert!(watch.next()["read_again"].is_u64());
}

#[test]
fn a_backup_brings_everything_back_and_nothing_else_is_taken_for_one() {
    let (cluster, other) = (Cluster::up(2), Cluster::up(1));
    let first = set(&cluster, "n1", "a", "1");
    let backup = cluster.parent().join("backup");
    let backup = backup.to_str().unwrap();
    registry(&cluster, ["backup", backup]).said().ok();
    set(&cluster, "n2", "a", "2");
    set(&cluster, "n2", "b", "2");
    registry(&cluster, ["--node", "n2", "restore", backup]).said().ok();
    let entry = get(&cluster, "n1", "a");
    assert_eq!(entry["value"]["text"], "1");
    assert!(entry["version"].as_u64().unwrap() > first);
    assert!(registry(&cluster, ["get", "b"]).said().refusal().contains("is not there"));

    let foreign = registry(&other, ["restore", backup]).said().refusal();
    assert!(foreign.contains("belongs to cluster"), "{foreign}");
    let bytes = fs::read(backup).unwrap();
    fs::write(backup, &bytes[..bytes.len() - 1]).unwrap();
    assert!(registry(&cluster, ["restore", backup]).said().refusal().contains("damaged"));
    for (path, why) in [
        (cluster.dir().join("cluster.toml"), "is not a backup"),
        (copies(&cluster, "n1")[0].clone(), "a copy of the registry belongs there"),
        (copies(&cluster, "n2")[1].clone(), "is not a backup"),
        (cluster.parent().join("nowhere/b"), "nowhere/b"),
    ] {
        let refused = registry(&cluster, ["--node", "n1", "backup", path.to_str().unwrap()]).said().refusal();
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(get(&cluster, "n2", "a")["value"]["text"], "1");
}

#[test]
fn bad_input_is_refused_with_what_to_do() {
    let cluster = Cluster::up(1);
    let long = "k".repeat(10_000);
    for (args, why) in [
        (["set", &long, "x"], "longer than 255 bytes"),
        (["set", "/a", "x"], "has an empty part"),
        (["set", "a\nb", "x"], "control character"),
        (["set", "", "x"], "is empty"),
        (["delete", "none", "--json"], "none: is not there"),
        (["get", "none", "--json"], "none: is not there"),
        (["get", &long, "--json"], "longer than 255 bytes"),
    ] {
        let refused = registry(&cluster, args).said().refusal();
        assert!(refused.contains(why) && refused.len() < 400, "{refused}");
    }
    let file = cluster.parent().join("value");
    let file = file.to_str().unwrap();
    fs::write(file, vec![b'x'; 1 << 20]).unwrap();
    let refused = registry(&cluster, ["set", "a", "--file", file]).said().refusal();
    assert!(refused.contains("1048576 bytes; at most 65536"), "{refused}");
    let bytes: Vec<u8> = (0..=255).cycle().take(65_536).collect();
    fs::write(file, &bytes).unwrap();
    registry(&cluster, ["set", "a", "--file", file]).said().ok();
    let output = registry(&cluster, ["get", "a"]).0.output().unwrap();
    assert!(output.stdout == bytes, "bytes come back as they were");
    assert_eq!(registry(&cluster, ["--node", "n9", "get", "a"]).said().code, Some(1));
}

#[test]
fn a_damaged_copy_is_said_and_repaired_and_a_node_that_lost_both_gets_them_back() {
    let cluster = Cluster::up(2);
    let version = set(&cluster, "n1", "a", "1");
    // The last node has the newest generation.
    run(["node", "stop", "n2", "-C", cluster.dir().to_str().unwrap()]).said().ok();
    cluster.run("down").said().ok();
    let [one, _] = copies(&cluster, "n1");
    let mut bytes = fs::read(&one).unwrap();
    bytes[70] ^= 1;
    fs::write(&one, bytes).unwrap();
    for copy in copies(&cluster, "n2") {
        fs::write(copy, "nothing of use").unwrap();
    }
    cluster.run("up").said().ok();
    assert_eq!(get(&cluster, "n2", "a")["version"], version);
    let is_whole = |node: &Value| node["registry"]["trouble"] == json!([]);
    until("all copies are whole", || status(&cluster), |all| all.as_array().unwrap().iter().all(is_whole));
    // The nodes note in the registry that they run: a copy may be written at any moment until then.
    let all = || ["n1", "n2"].into_iter().flat_map(|node| copies(&cluster, node));
    let bytes = || all().map(|copy| json!(fs::read(copy).unwrap())).collect();
    let are_same = |all: &Value| all.as_array().unwrap().iter().all(|copy| *copy == all[0]);
    until("all copies are the same", bytes, are_same);
    let log = |node: &str| fs::read_to_string(cluster.dir().join(format!("log/{node}.log"))).unwrap();
    assert!(log("n1").contains("n1.registry.1: is damaged"), "{}", log("n1"));
    assert!(log("n2").contains("neither copy of the registry is whole"), "{}", log("n2"));
}

#[test]
fn a_cluster_whose_copies_are_all_damaged_is_closed_until_a_backup_is_restored() {
    let cluster = Cluster::up(2);
    set(&cluster, "n1", "a", "1");
    let backup = cluster.parent().join("backup");
    registry(&cluster, ["backup", backup.to_str().unwrap()]).said().ok();
    cluster.run("down").said().ok();
    for copy in ["n1", "n2"].into_iter().flat_map(|node| copies(&cluster, node)) {
        fs::write(copy, "nothing of use").unwrap();
    }
    // The nodes run, and do not know whether a redo stream is missing.
    let refused = cluster.run("up").said().refusal();
    assert!(
        refused.contains("running: n1, n2, but") && refused.contains("the registry is closed"),
        "{refused}"
    );
    for args in [&["get", "a"][..], &["set", "a", "2"]] {
        let refused = registry(&cluster, args.iter().copied()).said().refusal();
        assert!(
            refused.contains("the registry is closed") && refused.contains("restore a backup"),
            "{refused}"
        );
    }
    registry(&cluster, ["--node", "n2", "restore", backup.to_str().unwrap()]).said().ok();
    assert_eq!(get(&cluster, "n1", "a")["value"]["text"], "1");
    set(&cluster, "n2", "a", "2");
    let is_well = |status: &Value| (0..2).all(|node| status["nodes"][node]["compared"] == true);
    cluster.wait_until("the registry is asked again", is_well);
    for args in [&["set", "disks/a", "1"][..], &["delete", "disks/a"]] {
        let refused = registry(&cluster, args.iter().copied()).said().refusal();
        assert!(refused.contains("the nodes keep the keys under disks/ themselves"), "{refused}");
    }
}

#[test]
fn status_shows_nodes_that_are_down_or_do_not_answer() {
    let cluster = Cluster::new(3);
    cluster.prevent_evictions();
    cluster.run("up").said().ok();
    let pids = cluster.pids();
    signal(pids[2], Signal::STOP);
    signal(pids[1], Signal::KILL);
    wait_for_end(pids[1]);
    let all = status(&cluster);
    let table = registry(&cluster, ["status"]).said().ok();
    signal(pids[2], Signal::CONT);
    assert!(all[0]["registry"]["epoch"].is_u64() && all[1]["state"] == "down", "{all}");
    assert!(
        all[2]["state"] == "silent" && all[2]["why"].as_str().unwrap().contains("does not answer"),
        "{all}"
    );
    assert!(table.contains("down") && table.contains("n3 does not answer"), "{table}");
    let refused = registry(&cluster, ["--node", "n9", "status"]).said().refusal();
    assert!(refused.contains("there is no node `n9`"), "{refused}");
}

#[test]
fn a_copy_of_another_cluster_is_not_overwritten() {
    let (cluster, other) = (Cluster::up(1), Cluster::up(1));
    set(&cluster, "n1", "a", "1");
    for cluster in [&cluster, &other] {
        cluster.run("down").said().ok();
    }
    let (ours, theirs) = (copies(&cluster, "n1"), copies(&other, "n1"));
    fs::copy(&theirs[1], &ours[1]).unwrap();
    let refused = cluster.run("up").said().refusal();
    assert!(refused.contains("belongs to cluster"), "{refused}");
    assert_eq!(fs::read(&theirs[1]).unwrap(), fs::read(&ours[1]).unwrap());
}
