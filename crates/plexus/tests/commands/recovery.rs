//! Nodes with redo are killed under load: the others go on, and every acknowledged change is there.

use std::process::Stdio;

use plexus_admin::{control::Control, layout::ClusterDir};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Cluster, CommandOutput, signal, until, wait_for_end};

/// Three nodes that log changes, and write changed blocks to disk only if they must.
fn cluster() -> Cluster {
    let cluster = Cluster::new(3);
    cluster.bear_busy_disks();
    cluster.edit("checkpoint_seconds = 5", "checkpoint_seconds = 600");
    cluster.run("up").said().ok();
    cluster
}

/// The block workload, which checks that no acknowledged change is missing.
fn bench(cluster: &Cluster, seconds: &str) -> crate::common::Run {
    let options =
        ["blocks", "--clients", "2", "--hot", "48", "--writes", "80", "--json", "--seconds", seconds];
    let mut run = crate::common::run(["bench"]).args(options);
    run.0.arg("-C").arg(cluster.dir());
    run
}

/// Returns the number of changes that the blocks count, as a node reads them.
fn sum(cluster: &Cluster, node: &str) -> Value {
    let mut control = Control::connect(&ClusterDir::new(cluster.dir()), node).unwrap();
    control.call("bench.sum", json!({ "hot": 48, "slots": 6 }), |_| {}).unwrap()["total"].clone()
}

#[test]
fn a_node_killed_under_load_loses_nothing_and_the_others_go_on() {
    let cluster = cluster();
    let mut bench_run = bench(&cluster, "3");
    let mut load = bench_run.0.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    cluster.wait_until("n2 changes blocks", |status| status["nodes"][1]["blocks_held"].as_u64() > Some(10));
    let pid = cluster.pids()[1];
    signal(pid, Signal::KILL);
    wait_for_end(pid);
    assert!(load.try_wait().unwrap().is_none(), "the load was to go on meanwhile");
    let report = &CommandOutput::of(load.wait_with_output().unwrap()).json()["blocks"][0];
    assert_eq!((&report["ended"], &report["nodes"]), (&json!(["n2"]), &json!(2)), "{report}");
    assert!(report["changes_found"].as_u64() >= report["changes_acknowledged"].as_u64(), "{report}");
    // Each of the others shows its part in the recovery.
    cluster.wait_until("the recovery is over", |status| {
        [0, 2].iter().all(|node| status["nodes"][*node]["recovery"]["phase"] == "over")
    });
    let status = cluster.run("status").args(["--json"]).said().json();
    let sum = |field: &str| -> u64 {
        [0, 2].iter().map(|node| status["nodes"][*node]["recovery"][field].as_u64().unwrap()).sum()
    };
    assert_eq!((sum("streams"), sum("refused")), (2, 0), "{status}");
    assert!(sum("replayed") == sum("blocks") && sum("scanned") > 0, "{status}");
    let text = cluster.run("status").said().ok();
    assert!(text.contains("n1: recovery in view ") && text.contains(": 1 redo stream with "), "{text}");
    let mut again = crate::common::run(["node", "start", "n2"]);
    again.0.arg("-C").arg(cluster.dir());
    again.said().ok();
    let report = bench(&cluster, "0.2").said().json();
    assert_eq!(report["blocks"][0]["nodes"], 3, "{report}");
}

#[test]
fn all_nodes_killed_at_once_lose_nothing() {
    let cluster = cluster();
    for round in 0..2 {
        bench(&cluster, "0.3").said().ok();
        let before = sum(&cluster, "n1");
        let pids = cluster.pids();
        pids.iter().for_each(|pid| signal(*pid, Signal::KILL));
        pids.iter().for_each(|pid| wait_for_end(*pid));
        cluster.run("up").said().ok();
        assert_eq!(sum(&cluster, "n3"), before, "round {round}");
    }
    // Redo is turned off only when nothing is left to recover.
    let pids = cluster.pids();
    pids.iter().for_each(|pid| signal(*pid, Signal::KILL));
    pids.iter().for_each(|pid| wait_for_end(*pid));
    cluster.edit("redo_mib = 16", "redo_mib = 0");
    let refusal = cluster.run("up").said().refusal();
    assert!(refusal.contains("has changes that may not be on the disks"), "{refusal}");
    cluster.edit("redo_mib = 0", "redo_mib = 16");
    cluster.run("up").said().ok();
    let streams = || cluster.run("redo").args(["--json"]).said().json()["streams"].clone();
    let open = |streams: &Value| {
        streams.as_array().unwrap().iter().filter(|stream| stream["state"] == "open").count()
    };
    until("only the streams of the members are open", streams, |streams| open(streams) == 3);
    cluster.run("down").said().ok();
    assert_eq!(open(&streams()), 0);
    cluster.edit("redo_mib = 16", "redo_mib = 0");
    cluster.run("up").said().ok();
    bench(&cluster, "0.2").said().ok();
}
