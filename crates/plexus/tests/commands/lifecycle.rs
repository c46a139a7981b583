//! A cluster from its creation to its end, as a user sees it.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
};

use plexus_base::BlockId;

use crate::common::{Cluster, run, signal, wait_for_end};
use rustix::process::Signal;
use serde_json::json;

#[test]
fn a_cluster_goes_up_and_down_and_up_again() {
    let cluster = Cluster::new(3);
    for _ in 0..2 {
        let up = cluster.run("up").args(["--json"]).said().json();
        assert_eq!(up["started"].as_array().unwrap().len(), 3);

        let status = cluster.run("status").args(["--json"]).said().json();
        let states: Vec<_> = status["nodes"].as_array().unwrap().iter().map(|node| &node["state"]).collect();
        assert_eq!(states, ["running"; 3]);
        for (node, peers) in ["n2", "n1", "n1"].iter().enumerate() {
            let node = &status["nodes"][node];
            assert_eq!(node["members"], json!(["n1", "n2", "n3"]));
            assert_eq!(node["peers"][0], json!({ "name": peers, "rail": "shm", "fencing": "kill" }));
        }
        let table = cluster.run("status").said().ok();
        assert!(table.contains("votes: 3 of 3 voting files answer, 2 needed"), "{table}");
        assert!(table.contains("memory of n3: "), "{table}");
        assert!(table.lines().nth(1).unwrap().starts_with("n1 "), "{table}");

        assert!(cluster.run("up").said().ok().contains("all nodes are already running"));
        cluster.run("stat").said().ok();
        let stat = cluster.run("stat").args(["--json", "--node", "n2"]).said().json();
        assert!(stat["channels"].is_object());

        let pids = cluster.pids();
        let down = cluster.run("down").args(["--json"]).said().json();
        assert_eq!((&down["clean"], down["ended"].as_array().unwrap().len()), (&json!(true), 3));
        assert!(!pids.into_iter().any(crate::common::runs));
    }
    assert!(cluster.run("down").said().ok().contains("no node runs"));
    assert!(cluster.run("status").said().ok().contains("down"));
    assert!(cluster.run("stat").said().refusal().contains("no node runs; start them with `plexus up"));
}

#[test]
fn the_cluster_is_found_without_being_named() {
    let cluster = Cluster::new(1);
    let dir = cluster.dir();
    let mut here = run(["status", "--json"]);
    here.0.current_dir(&dir);
    assert_eq!(here.said().json()["cluster"], "c1");
    let told = run(["status", "--json"]).env("PLEXUS_DIR", dir.to_str().unwrap()).said().json();
    assert_eq!(told["cluster"], "c1");
    let mut nowhere = run(["status"]);
    nowhere.0.current_dir(cluster.parent());
    assert!(nowhere.said().refusal().contains("which cluster?"));
}

#[test]
fn without_redo_a_death_costs_changes_and_no_block_is_refused() {
    let cluster = Cluster::new(3).without_redo();
    cluster.bear_busy_disks();
    cluster.run("up").said().ok();
    let dir = cluster.dir();
    let bench = || {
        let options = ["blocks", "--seconds", "0.2", "--clients", "2", "--durability", "none", "--json"];
        run(["bench"]).args(options).args(["-C", dir.to_str().unwrap()]).said().json()["blocks"][0].clone()
    };
    bench();
    let kill = |pids: &[i32]| {
        pids.iter().for_each(|pid| signal(*pid, Signal::KILL));
        pids.iter().for_each(|pid| wait_for_end(*pid));
    };
    kill(&cluster.pids()[1..2]);
    cluster.wait_until("the others go on", |status| {
        [0, 2].iter().all(|node| status["nodes"][*node]["members"] == json!(["n1", "n3"]))
    });
    cluster.run("up").said().ok();
    assert_eq!(bench()["nodes"], 3);
    kill(&cluster.pids());
    cluster.run("up").said().ok();
    assert_eq!(bench()["nodes"], 3);
    assert!(cluster.run("down").said().ok().contains("everything is on disk"));
}

#[test]
fn one_of_three_nodes_leaves_without_loss_and_the_others_go_on() {
    let cluster = Cluster::new(3);
    cluster.bear_busy_disks();
    cluster.run("up").said().ok();
    let dir = cluster.dir();
    let bench =
        || run(["bench", "blocks", "-C", dir.to_str().unwrap(), "--seconds", "0.2", "--clients", "2"]);
    bench().said().ok();
    let pid = cluster.pids()[1];
    signal(pid, Signal::TERM);
    wait_for_end(pid);
    cluster.wait_until("the others go on", |status| {
        [0, 2].iter().all(|node| status["nodes"][node]["members"] == json!(["n1", "n3"]))
    });
    cluster.run("up").said().ok();
    bench().said().ok();
    cluster.run("down").said().ok();
}

#[test]
fn a_node_that_does_not_answer_is_not_taken_for_one_that_is_down() {
    let cluster = Cluster::up(1);
    let pid = cluster.pids()[0];
    signal(pid, Signal::STOP);
    // Both have to lose their timeout with the node.
    let (status, down) = std::thread::scope(|scope| {
        let status = scope.spawn(|| cluster.run("status").said().ok());
        let down = cluster.run("down").said();
        (status.join().unwrap(), down)
    });
    signal(pid, Signal::CONT);
    let stopped = format!("its process is stopped (pid {pid}); `kill -CONT {pid}` lets it go on");
    assert!(status.contains("silent") && status.contains("n1 does not answer to `status`"), "{status}");
    assert!(status.contains(&stopped), "{status}");
    let down = down.refusal();
    assert!(down.contains("n1 did not end") && down.contains(&stopped), "{down}");
    cluster.run("down").said().ok();
}

#[test]
fn a_suspended_node_is_skipped_and_the_next_one_is_asked() {
    let cluster = Cluster::new(2);
    cluster.prevent_evictions();
    cluster.run("up").said().ok();
    let (pid, dir) = (cluster.pids()[0], cluster.dir());
    let said = |args: &[&str]| run(args.iter().copied()).env("PLEXUS_DIR", dir.to_str().unwrap()).said();
    signal(pid, Signal::STOP);
    let answers = std::thread::scope(|scope| {
        let asked = [
            &["registry", "--node", "n1", "get", "a"] as &[_],
            &["group", "--node", "n1", "send", "g", "text"],
            &["lock", "--node", "n1", "a", "--", "true"],
            &["node", "remove", "n2"],
            &["group", "send", "", "text"],
        ];
        let asked = asked.map(|args| scope.spawn(move || said(args)));
        asked.map(|answer| answer.join().unwrap())
    });
    signal(pid, Signal::CONT);
    for (number, answer) in answers.iter().enumerate() {
        let why = if number < 4 { "n1 does not answer to `status`" } else { "n2: " };
        assert!(answer.err.contains(why), "{number}: {}{}", answer.out, answer.err);
        let is_stopped = answer.err.contains("its process is stopped") || number == 4;
        assert!(is_stopped && !answer.err.contains("ended"), "{number}: {}", answer.err);
    }
}

#[test]
fn random_bytes_on_a_port_end_that_connection_and_are_counted() {
    let cluster = Cluster::up(2);
    let text = std::fs::read_to_string(cluster.dir().join("cluster.toml")).unwrap();
    let address = text.split('"').find(|word| word.starts_with("127.")).unwrap();
    for seed in 0..4u64 {
        let mut stream = TcpStream::connect(address).unwrap();
        let bytes: Vec<u8> = (0..1000).map(|n| (BlockId(seed << 32 | n).hash() >> 5) as u8).collect();
        // The node may close before it has read everything.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    cluster.wait_until("four unauthenticated connections are counted", |status| {
        status["nodes"][0]["unauthenticated"] == 4
    });
    let status = cluster.run("status").args(["--json"]).said().json();
    assert_eq!(
        (&status["nodes"][0]["state"], &status["nodes"][1]["unauthenticated"]),
        (&json!("running"), &json!(0))
    );
    assert_eq!(cluster.run("down").args(["--json"]).said().json()["clean"], true);
}

#[test]
fn status_shows_when_and_why_a_node_ended() {
    let cluster = Cluster::up(2);
    let shows = |ends: [&str; 2]| {
        let text = cluster.run("status").said().ok();
        let line = text.lines().find(|line| line.starts_with("n2: ")).unwrap_or_default();
        assert!(ends.iter().all(|part| line.contains(part)), "{ends:?}: {text}");
    };
    let killed = cluster.pids()[1];
    signal(killed, Signal::KILL);
    wait_for_end(killed);
    shows(["n2: down since 20", "it was ended by SIGKILL"]);
    cluster.run("up").said().ok();
    shows(["n2: its last run ended at 20", "it was ended by SIGKILL"]);
    cluster.run("down").said().ok();
    shows(["n2: down since 20", "has ended in order"]);
}
