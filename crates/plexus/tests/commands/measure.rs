//! `plexus bench` and `plexus perf`, on temporary clusters and on one that runs.

use std::fs;

use serde_json::Value;

use crate::common::until;

/// The runs that a bench printed.
fn blocks(said: &Value) -> &Vec<Value> {
    said["blocks"].as_array().unwrap()
}

#[test]
fn a_workload_on_temporary_clusters() {
    let directory = tempfile::tempdir().unwrap();
    let svg = directory.path().join("charts/blocks.svg");
    let args = "bench blocks --nodes 2 --clients 1,3 --hot 8 --seconds 0.1 --warm-up 0.05";
    let svg_path = svg.display().to_string();
    let said = crate::common::run_line(args)
        .args(["--block-size", "4", "--workers", "2", "--svg", &svg_path, "--json"])
        .said()
        .json();
    let runs: Vec<_> = blocks(&said)
        .iter()
        .map(|run| (run["rail"].as_str().unwrap(), run["clients"].as_u64().unwrap()))
        .collect();
    assert_eq!(runs, [("shm", 1), ("shm", 3), ("tcp", 1), ("tcp", 3)]);
    for run in blocks(&said) {
        assert_eq!(
            (run["nodes"].as_u64(), run["workers"].as_u64(), run["block_size"].as_u64()),
            (Some(2), Some(2), Some(4096))
        );
        assert!(run["changes_found"].as_u64().unwrap() > 0, "{run}");
        assert_eq!(run["changes_found"], run["changes_acknowledged"]);
        // With two nodes the peer is the master or the holder, so two messages are always enough.
        assert!(run["two_message"].as_u64().unwrap() > 0 && run["three_message"] == 0, "{run}");
        assert!(run["bytes"].as_u64().unwrap() > 0 && run["context_switches"]["voluntary"].is_u64(), "{run}");
    }
    assert!(fs::read_to_string(svg).unwrap().contains("clients on each node"));
}

#[test]
fn as_many_clients_as_there_may_be_find_names_for_their_locks() {
    let args = ["bench", "locks", "--nodes", "3", "--clients", "256", "--names", "local", "--rail", "shm"];
    let said = crate::common::run(args).args(["--seconds", "0.05", "--warm-up", "0", "--json"]).said().json();
    let run = &said["locks"][0];
    assert_eq!((run["clients"].as_u64(), run["names"].as_str()), (Some(256), Some("local")), "{run}");
    assert!(run["granted"].as_u64() > Some(0), "{run}");
}

#[test]
fn hand_overs_are_those_between_nodes() {
    let args = ["bench", "locks", "--nodes", "2", "--rail", "shm", "--seconds", "0.2", "--json"];
    let run = |more: [&str; 4]| crate::common::run(args).args(more).said().json()["locks"].take();
    let rate = |run: &Value, what: &str| run[what].as_f64().unwrap();
    // On a busy machine the clients of the two nodes may run one after the other.
    let both = || run(["--names", "shared,local", "--clients", "2"]);
    until("the nodes have handed the lock over", both, |both| {
        let (locks, hand_overs) = (rate(&both[0], "locks_per_s"), rate(&both[0], "hand_overs_per_s"));
        assert!(hand_overs <= locks && rate(&both[1], "hand_overs_per_s") == 0.0, "{both}");
        hand_overs > 0.0
    });
    // All clients on one node: none of them hands the lock to another.
    let one = || run(["--names", "shared", "--active", "1"]);
    until("the node has taken locks", one, |one| {
        assert_eq!(rate(&one[0], "hand_overs_per_s"), 0.0, "{one}");
        rate(&one[0], "locks_per_s") > 0.0
    });
}

#[test]
fn consistent_reads_leave_blocks_where_they_are() {
    let args = "bench blocks --clients 2 --rail shm --hot 4 --writes 30 --seconds 0.2";
    let said = crate::common::run_line(args)
        .args(["--consistent-reads", "--waiting", "event", "--json"])
        .said()
        .json();
    let run = &blocks(&said)[0];
    assert!(run["consistent_copies"].as_u64().unwrap() > 0, "{run}");
    assert_eq!(run["changes_found"], run["changes_acknowledged"]);
}

#[test]
fn a_running_cluster_is_measured_again_and_again() {
    let cluster = crate::common::Cluster::new(2);
    cluster.run("up").said().ok();
    let dir = cluster.dir().display().to_string();
    let bench =
        ["bench", "blocks", "-C", &dir, "--clients", "2", "--hot", "16", "--seconds", "0.1", "--json"];
    for _ in 0..2 {
        let said = crate::common::run(bench).said().json();
        assert_eq!(blocks(&said)[0]["changes_found"], blocks(&said)[0]["changes_acknowledged"]);
        assert_eq!(blocks(&said)[0]["rail"], "shm");
    }
    let perf = ["perf", "-C", &dir, "n2", "n1", "--sizes", "8,16K", "--count", "20", "--json"];
    let said = crate::common::run(perf).said().json();
    assert_eq!(said["perf"].as_array().unwrap().len(), 16);
    let row = &said["perf"][0];
    assert_eq!((&row["rail"], &row["encrypted"]), (&"shm".into(), &false.into()));
    assert!(row["why"].as_str().unwrap().contains("active, best: the best rail that is connected"), "{row}");
    let every = ["--op", "get,write,atomic", "--sizes", "8", "--count", "20", "--json"];
    let said = crate::common::run(["perf", "-C", &dir]).args(every).said().json();
    assert_eq!(said["perf"].as_array().unwrap().len(), 12, "operations, tests, ways of waiting");

    // Programs at both nodes, beside the nodes themselves, in the order asked for.
    let both = ["--op", "datagram,send", "--sizes", "64", "--streams", "2", "--count", "20", "--json"];
    let said = crate::common::run(["perf", "-C", &dir, "n2", "n1"]).args(both).said().json();
    let rows = said["perf"].as_array().unwrap();
    let ops: Vec<_> = rows.iter().map(|row| row["op"].as_str().unwrap()).collect();
    assert_eq!(ops, ["datagram", "send"].repeat(4), "tests, ways of waiting");
    for row in rows {
        assert!(row["messages"].as_u64() >= Some(20) && row["mb_per_s"].as_f64() > Some(0.0), "{row}");
        assert_eq!(row["per_stream"]["each"].as_array().unwrap().len(), 2, "{row}");
        if row["test"] == "latency" {
            assert_eq!(row["latency_us"]["count"], row["messages"], "{row}");
            assert!(row["latency_us"]["p50"].as_f64() <= row["round_trip_us"]["p50"].as_f64(), "{row}");
        }
    }
    let long = ["--op", "datagram", "--wait", "event", "--sizes", "1,64K", "--seconds", "0.05", "--json"];
    let said = crate::common::run(["perf", "-C", &dir]).args(long).said().json();
    assert_eq!(said["perf"].as_array().unwrap().len(), 4, "tests, sizes");

    // What does not fit is refused by one line, and the cluster goes on.
    for (args, part) in [
        (&["bench", "blocks", "-C", &dir, "--hot", "1000000"], "hot blocks: use 1 to"),
        (&["bench", "blocks", "-C", &dir, "--clients", "9999"], "9999 clients on each node"),
        (&["perf", "-C", &dir, "n1", "n1"], "a measurement needs two nodes"),
        (&["perf", "-C", &dir, "n1", "n9"], "n9"),
        (&["perf", "-C", &dir, "--sizes", "0"], "send of 0 bytes"),
        (&["perf", "-C", &dir, "--wait", "event"], "the nodes wait as cluster.toml says"),
        (&["perf", "-C", &dir, "--rail", "tcp"], "--rail tcp: the nodes use shm"),
        (&["perf", "-C", &dir, "--cores", "0,1"], "nodes run on the `cores` of cluster.toml"),
    ] as [(&[&str], &str); 8]
    {
        let refusal = crate::common::run(args.iter().copied()).said().refusal();
        assert!(refusal.contains(part), "{refusal}");
    }
    assert!(crate::common::run(bench).said().json()["blocks"][0]["changes_found"].is_u64());
    cluster.run("down").said().ok();
    let refusal = crate::common::run(bench).said().refusal();
    assert!(refusal.contains("n1 is not running; start it with"), "{refusal}");
}

#[test]
fn invalid_options_of_a_temporary_cluster_are_reported() {
    for (args, part) in [
        (["bench", "blocks", "--nodes", "17"], "17 nodes: use 1 to 16"),
        (["bench", "blocks", "--block-size", "5"], "use 4, 8 or 16"),
        (["bench", "blocks", "--rail", "ipx"], "unknown rail `ipx`"),
        (["bench", "blocks", "--workers", "9"], "9 workers: use 1 to 8"),
        (["bench", "blocks", "--seconds", "-1"], ""),
    ] {
        let said = crate::common::run(args).said();
        assert_ne!(said.code, Some(0), "{args:?}");
        assert!(said.err.contains(part), "{}", said.err);
    }
}
