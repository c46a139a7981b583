//! Redo streams and disk images that are missing, old or foreign: they are named, nothing opens
//! with lost changes, and the way out works.

use std::{
    fs,
    path::{Path, PathBuf},
};

use plexus_admin::{config::Config, layout::ClusterDir};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Cluster, CommandOutput, run, signal, until, wait_for_end};

/// Two nodes that write changed blocks to disk only if they must.
fn cluster() -> Cluster {
    let cluster = Cluster::new(2);
    cluster.bear_busy_disks();
    cluster.edit("checkpoint_seconds = 5", "checkpoint_seconds = 600");
    cluster.run("up").said().ok();
    cluster
}

fn bench(cluster: &Cluster) {
    let options = ["blocks", "--clients", "2", "--hot", "48", "--writes", "80", "--seconds", "0.1"];
    let mut bench = run(["bench"]).args(options);
    bench.0.arg("-C").arg(cluster.dir());
    bench.said().ok();
}

fn kill_all(cluster: &Cluster) {
    let pids = cluster.pids();
    pids.iter().for_each(|pid| signal(*pid, Signal::KILL));
    pids.iter().for_each(|pid| wait_for_end(*pid));
}

fn command(cluster: &Cluster, line: &str) -> CommandOutput {
    let mut command = run(line.split(' '));
    command.0.arg("-C").arg(cluster.dir());
    command.said()
}

/// Returns the files of the streams of a node that are not closed.
fn open_streams(cluster: &Cluster, node: u8) -> Vec<PathBuf> {
    let shown = cluster.run("redo").args(["--json"]).said();
    let shown: Value = serde_json::from_str(&shown.out).unwrap();
    let streams = shown["streams"].as_array().unwrap().iter();
    let open = streams.filter(|stream| stream["node"] == node && stream["state"] == "open");
    open.map(|stream| cluster.dir().join("disks/redo").join(stream["stream"].as_str().unwrap())).collect()
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// Starts the nodes, which name what is lost, as do `status` and `plexus redo`.
fn named(cluster: &Cluster, what: &str, in_redo: bool) {
    let refused = cluster.run("up").said().refusal();
    assert!(refused.contains("running: n1, n2, but") && refused.contains(what), "{refused}");
    let status = command(cluster, "status").ok();
    assert!(status.contains(what), "{status}");
    if in_redo {
        let refused = command(cluster, "redo").refusal();
        assert!(refused.contains(what), "{refused}");
    }
}

/// Waits until the nodes serve all blocks.
fn is_well(cluster: &Cluster) {
    cluster.wait_until("all blocks are served", |status| {
        let is_well = |node: &Value| node["compared"] == true && node["recovery"]["problem"].is_null();
        status["nodes"].as_array().unwrap().iter().all(is_well)
    });
    until("the streams are recovered", || open_streams(cluster, 0).len().into(), |open| *open == 1);
    bench(cluster);
}

#[test]
fn a_stream_that_is_missing_old_or_foreign_is_named_and_can_be_given_up() {
    let cluster = cluster();
    bench(&cluster);
    let [path] = &open_streams(&cluster, 0)[..] else { panic!("one stream") };
    let old = fs::read(path).unwrap();
    kill_all(&cluster);
    cluster.run("up").said().ok();
    is_well(&cluster);
    cluster.run("down").said().ok();
    cluster.run("up").said().ok();
    bench(&cluster);
    assert!(open_streams(&cluster, 0) == std::slice::from_ref(path), "the stream is used again");
    kill_all(&cluster);
    let newest = fs::read(path).unwrap();

    fs::write(path, &old).unwrap();
    named(&cluster, "n1.0: this is an older copy of the redo stream of node 0", true);
    // The loss is not covered up by a further start.
    kill_all(&cluster);
    fs::remove_file(path).unwrap();
    named(&cluster, "n1.0: the redo stream of node 0 is missing, and it was not closed", true);
    kill_all(&cluster);
    // With the newest file all is well.
    fs::write(path, &newest).unwrap();
    cluster.run("up").said().ok();
    is_well(&cluster);

    for (damage, what) in [
        (None, "is missing, and it was not closed"),
        (Some(1), "this is a redo stream of node 1, in the place of one of node 0"),
    ] {
        let [lost] = &open_streams(&cluster, 0)[..] else { panic!("one stream") };
        let other = damage.map(|node| fs::read(&open_streams(&cluster, node)[0]).unwrap());
        kill_all(&cluster);
        match other {
            None => fs::remove_file(lost).unwrap(),
            Some(other) => fs::write(lost, other).unwrap(),
        }
        named(&cluster, what, true);
        let give_up = format!("redo give-up {} --lose-newer", name(lost));
        let refused = command(&cluster, &give_up).refusal();
        assert!(refused.contains("nothing was changed") && refused.contains("add --yes"), "{refused}");
        command(&cluster, &format!("redo give-up {}", name(lost))).refused();
        let done = command(&cluster, &format!("{give_up} --yes")).ok();
        assert!(done.contains("given up"), "{done}");
        let again = command(&cluster, &give_up).ok();
        assert!(again.contains("nothing to give up"), "{again}");
        // Changes of the other node follow those that are lost, and cannot be replayed.
        for stream in open_streams(&cluster, 1) {
            let said = command(&cluster, &format!("redo give-up {} --lose-newer --yes", name(&stream)));
            assert!(said.code == Some(0) || said.err.contains("a running node writes this"), "{}", said.err);
        }
        kill_all(&cluster);
        cluster.run("up").said().ok();
        is_well(&cluster);
        command(&cluster, "redo").ok();
    }
    cluster.run("down").said().ok();
    cluster.run("up").said().ok();
    cluster.run("down").said().ok();
}

#[test]
fn an_image_of_a_disk_from_before_the_last_end_is_named_and_can_be_accepted() {
    for has_redo in [true, false] {
        let cluster = match has_redo {
            true => Cluster::new(2),
            false => Cluster::new(2).without_redo(),
        };
        let disk = &Config::load(&ClusterDir::new(cluster.dir())).unwrap().disks[0];
        cluster.run("up").said().ok();
        bench(&cluster);
        let image = fs::read(disk).unwrap();
        cluster.run("down").said().ok();
        let refused = command(&cluster, "disk force --lose-newer --yes").refusal();
        assert!(refused.contains("start"), "{refused}");
        fs::write(disk, &image).unwrap();
        named(&cluster, "this is an older image of the disk", false);
        let refused = command(&cluster, "disk force --lose-newer").refusal();
        assert!(refused.contains("nothing was changed"), "{refused}");
        let forced = command(&cluster, "disk force --lose-newer --yes").ok();
        assert!(forced.contains("accepted"), "{forced}");
        if has_redo {
            is_well(&cluster);
        } else {
            command(&cluster, "disk force --lose-newer --yes").ok();
            cluster.run("down").said().ok();
            cluster.run("up").said().ok();
            bench(&cluster);
        }
        assert!(command(&cluster, "disk force --lose-newer").ok().contains("nothing to accept"));
        cluster.run("down").said().ok();
        cluster.run("up").said().ok();
    }
}

#[test]
fn the_streams_of_a_node_that_was_removed_may_go() {
    let cluster = cluster();
    bench(&cluster);
    command(&cluster, "node remove n2").ok();
    for place in 0..2 {
        let _ = fs::remove_file(cluster.dir().join(format!("disks/redo/n2.{place}")));
    }
    let status = cluster.run("status").args(["--json"]).said().json();
    let pid = status["nodes"][0]["pid"].as_i64().unwrap() as i32;
    signal(pid, Signal::KILL);
    wait_for_end(pid);
    cluster.run("up").said().ok();
    command(&cluster, "redo").ok();
}
