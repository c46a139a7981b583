//! A state directory that cannot be written: a node whose copies of the registry are in it leaves
//! if the others go on, and otherwise every command says what is wrong.

use std::{fs, process::Command};

use crate::common::{Cluster, CommandOutput, run, runs, until, wait_for_end};
use plexus_namespaces::with_own_mounts;
use serde_json::{Value, json};

fn registry<'a>(cluster: &Cluster, args: impl IntoIterator<Item = &'a str>) -> CommandOutput {
    run(["registry"]).args(args).env("PLEXUS_DIR", cluster.dir().to_str().unwrap()).said()
}

/// Makes the state directory read-only, or writable again, for the processes of this thread's
/// mounts.
fn mount_state(cluster: &Cluster, how: &str) {
    let state = cluster.dir().join("state");
    let mounted = Command::new("mount").args(["-o", how]).args([&state, &state]).status().unwrap();
    assert!(mounted.success(), "mount -o {how}");
}

#[test]
fn a_node_whose_state_directory_became_read_only_does_not_block_the_registry_of_the_others() {
    let cluster = Cluster::up(3);
    let dir = cluster.dir();
    let node = |does: &str| run(["node", does, "n2", "-C", dir.to_str().unwrap()]).said();
    node("stop").ok();
    let started = with_own_mounts(|| {
        node("start").ok();
        registry(&cluster, ["set", "a", "1"]).ok();
        mount_state(&cluster, "bind");
        mount_state(&cluster, "remount,bind,ro");
    });
    if let Err(why) = started {
        return eprintln!("skipped: {why}");
    }
    let pids = cluster.pids();
    registry(&cluster, ["--node", "n1", "set", "a", "2"]).ok();
    wait_for_end(pids[1]);
    assert!(runs(pids[0]) && runs(pids[2]));
    for node in ["n1", "n3"] {
        assert_eq!(registry(&cluster, ["--node", node, "get", "a"]).ok(), "2\n");
    }
    let log = fs::read_to_string(dir.join("log/n2.log")).unwrap();
    let why =
        log.lines().find(|line| line.contains("the node ends: it cannot write its copies of the registry"));
    assert!(why.is_some_and(|why| why.contains("n2.registry.1: Read-only file system")), "{log}");
    node("stop").ok();
    node("start").ok();
    cluster.wait_until("n2 is back", |status| status["nodes"][1]["members"] == json!(["n1", "n2", "n3"]));
    assert_eq!(registry(&cluster, ["--node", "n2", "get", "a"]).ok(), "2\n");
}

#[test]
fn a_state_directory_that_no_node_can_write_ends_none_and_each_command_says_so_at_once() {
    let ran = with_own_mounts(|| {
        let cluster = Cluster::up(3);
        registry(&cluster, ["set", "a", "1"]).ok();
        mount_state(&cluster, "bind");
        mount_state(&cluster, "remount,bind,ro");
        let unknown = registry(&cluster, ["set", "a", "2"]).refusal();
        assert!(unknown.contains("outcome unknown") && unknown.contains("cannot be written"), "{unknown}");
        let seen = cluster.run("status").said().ok();
        assert!(seen.contains("n1.registry.1: Read-only file system"), "{seen}");
        for (args, what) in [
            (
                &["set", "a", "3"][..],
                "the change was not made, because the copies of the registry on n1, n2, n3",
            ),
            (&["get", "a"], "no answer, because"),
        ] {
            // The others may have told the coordinator a moment later.
            let refused = || registry(&cluster, args.iter().copied()).refusal().into();
            until("all have told it", refused, |said: &Value| said.as_str().unwrap().contains(what));
        }
        assert!(cluster.pids().into_iter().all(runs));
        mount_state(&cluster, "remount,bind,rw");
        let value = || {
            let got = registry(&cluster, ["--json", "get", "a"]);
            if got.code == Some(0) { got.json()["value"]["text"].clone() } else { Value::Null }
        };
        until("the change is made", value, |value| value == "2");
        registry(&cluster, ["set", "a", "4"]).ok();
    });
    if let Err(why) = ran {
        eprintln!("skipped: {why}");
    }
}
