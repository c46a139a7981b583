//! The block workload on a cluster without faults, and on one whose node is told to end: it goes
//! on.

use std::process::Stdio;

use plexus_namespaces::on_small_disk;
use rustix::process::Signal;
use serde_json::json;

use crate::common::{Cluster, CommandOutput, Run, run, signal, wait_for_end};

/// The size of the file system in memory: two redo streams, the disk of the group and the rest.
const DISK_MIB: u32 = 64;

/// The longest time without a change that a busy machine may need.
const LONGEST_PAUSE_MS: f64 = 4000.0;

/// The block workload on a cluster.
fn bench<'a>(cluster: &Cluster, args: impl IntoIterator<Item = &'a str>) -> Run {
    let mut run = run(["bench", "blocks", "--warm-up", "0", "--json"]).args(args);
    run.0.arg("-C").arg(cluster.dir());
    run
}

#[test]
fn durable_changes_do_not_stand_still_after_the_redo_stream_was_full() {
    let place = tempfile::tempdir().unwrap();
    let ran = on_small_disk(place.path(), DISK_MIB, || {
        let cluster = Cluster::within(place.path(), 2);
        cluster.bear_busy_disks();
        // No checkpoint comes by itself to the help of clients that wait for room.
        cluster.edit("checkpoint_seconds = 5", "checkpoint_seconds = 600");
        cluster.run("up").said().ok();
        // Within seconds the streams become full many times, and all clients wait for room at once.
        let args = ["--clients", "8", "--hot", "200", "--writes", "100", "--seconds", "5"];
        let report = bench(&cluster, args).said().json();
        let report = &report["blocks"][0];
        assert_eq!(report["nodes"], 2, "{report}");
        assert!(report["longest_pause_ms"].as_f64().unwrap() < LONGEST_PAUSE_MS, "{report}");
    });
    if let Err(why) = ran {
        eprintln!("skipped: {why}");
    }
}

#[test]
fn the_workload_goes_on_after_a_node_was_told_to_end() {
    let cluster = Cluster::new(3);
    cluster.bear_busy_disks();
    cluster.run("up").said().ok();
    let mut run = bench(&cluster, ["--clients", "2", "--hot", "48", "--seconds", "2"]);
    let load = run.0.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    cluster.wait_until("n2 changes blocks", |status| status["nodes"][1]["blocks_held"].as_u64() > Some(10));
    let pid = cluster.pids()[1];
    signal(pid, Signal::TERM);
    wait_for_end(pid);
    let report = &CommandOutput::of(load.wait_with_output().unwrap()).json()["blocks"][0];
    assert_eq!((&report["ended"], &report["nodes"]), (&json!(["n2"]), &json!(2)), "{report}");
    assert!(report["changes_found"].as_u64() >= report["changes_acknowledged"].as_u64(), "{report}");
}
