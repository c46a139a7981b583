//! A cluster from its creation to its end, as a user sees it.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
};

use plexus_base::BlockId;

use crate::common::{Cluster, run, signal, wait_for_end};
use rustix::process::Signal;
use serde_json::{Value, json};

#[test]
fn a_cluster_goes_up_and_down_and_up_again() {
    let cluster = Cluster::new(3);
    for _ in 0..2 {
        let up = cluster.run("up").args(["--json"]).said().json();
        assert_eq!(up["started"].as_array().unwrap().len(), 3);
        assert_eq!(up["blocks_lost"], 0);

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
fn what_a_killed_node_may_have_lost_is_named_until_it_is_accepted() {
    let cluster = Cluster::new(3).without_redo();
    cluster.run("up").said().ok();
    let killed = cluster.pids()[1];
    signal(killed, Signal::KILL);
    wait_for_end(killed);
    cluster.wait_until("the others go on", |status| {
        let members = |node: usize| status["nodes"][node]["members"] == json!(["n1", "n3"]);
        members(0) && members(2) && status["nodes"][1]["state"] == "down"
    });
    // It comes back and is a member; what its death lost is not forgotten.
    cluster.run("up").said().ok();
    cluster.wait_until("it is a member again", |status| {
        let members = |node: usize| status["nodes"][node]["members"].as_array().map_or(0, Vec::len);
        (0..3).all(|node| members(node) == 3)
    });
    let down = cluster.run("down").said().ok();
    assert!(down.contains(" are lost, and everything else is on disk; `plexus up --accept-lost`"), "{down}");
    let status = cluster.run("status").said().ok();
    assert!(status.contains("\nlost: ") && status.contains("--accept-lost"), "{status}");

    let up = cluster.run("up").args(["--json"]).said().json();
    let lost = up["blocks_lost"].as_u64().unwrap();
    // Eight MiB in blocks of eight KiB, a third of them mastered by the dead node, nothing held by
    // the others.
    assert!((200..500).contains(&lost), "{lost}");
    let status = cluster.run("status").said().ok();
    assert!(
        status.contains(&format!("lost: {lost} blocks;")) && status.contains("--accept-lost"),
        "{status}"
    );

    cluster.run("down").said().ok();
    let up = cluster.run("up").args(["--accept-lost", "--json"]).said().json();
    assert_eq!((&up["blocks_accepted"], &up["blocks_lost"]), (&json!(lost), &json!(0)));
    cluster.run("down").said().ok();
    let status = cluster.run("status").said().ok();
    assert!(!status.contains("lost:"), "{status}");
    cluster.run("up").said().ok();

    // After the death of all nodes the lost blocks are unknown.
    let killed = cluster.pids();
    killed.iter().for_each(|pid| signal(*pid, Signal::KILL));
    killed.iter().for_each(|pid| wait_for_end(*pid));
    let up = cluster.run("up").args(["--accept-lost", "--json"]).said().json();
    assert_eq!((&up["blocks_accepted"], &up["blocks_lost"]), (&json!(1024), &json!(0)));
    cluster.run("down").said().ok();
    assert_eq!(cluster.run("up").args(["--json"]).said().json()["blocks_lost"], 0);
    cluster.run("down").said().ok();
}

#[test]
fn what_is_lost_is_accepted_while_the_nodes_run() {
    let cluster = Cluster::new(3).without_redo();
    cluster.run("up").said().ok();
    let killed = cluster.pids()[1];
    signal(killed, Signal::KILL);
    wait_for_end(killed);
    let lost_at = |status: &Value, node: usize| status["nodes"][node]["blocks_lost"].as_u64();
    cluster.wait_until("the others have on record what is lost", |status| {
        [0, 2].iter().all(|node| lost_at(status, *node) > Some(0)) && lost_at(status, 0) == lost_at(status, 2)
    });
    let status = cluster.run("status").said().ok();
    assert!(status.contains("\nlost: ") && status.contains("--accept-lost"), "{status}");

    // The third is started as well, and is told of nothing that was accepted.
    let up = cluster.run("up").args(["--accept-lost", "--json"]).said().json();
    let accepted = up["blocks_accepted"].as_u64().unwrap();
    assert!((200..500).contains(&accepted), "{up}");
    assert_eq!((&up["blocks_lost"], &up["running_before"]), (&json!(0), &json!(["n1", "n3"])));
    let status = cluster.run("status").args(["--json"]).said().json();
    assert!((0..3).all(|node| lost_at(&status, node) == Some(0)), "{status}");
    assert_eq!(cluster.run("up").args(["--accept-lost", "--json"]).said().json()["blocks_accepted"], 0);
    // None of them is refused any more, by whichever node.
    let dir = cluster.dir();
    run(["bench", "blocks", "-C", dir.to_str().unwrap(), "--seconds", "0.2", "--clients", "2"]).said().ok();
    cluster.run("down").said().ok();
    assert_eq!(cluster.run("up").args(["--json"]).said().json()["blocks_lost"], 0);
    cluster.run("down").said().ok();
}

/// An absent node accepts the disks only if the last members ended cleanly and knew of no lost
/// block.
#[test]
fn a_node_that_cannot_know_what_is_lost_takes_nothing_as_good() {
    let cluster = Cluster::on_hosts(&["earth", "mars"]).without_redo();
    let records = cluster.dir().join("state");
    let up = |host| cluster.run("up").env("PLEXUS_HOST", host).args(["--json"]).said().json();
    let lost = |host| up(host)["blocks_lost"].as_u64().unwrap();
    let end = |node: usize, how| {
        let status = cluster.run("status").args(["--json"]).said().json();
        let pid = status["nodes"][node]["pid"].as_i64().unwrap() as i32;
        signal(pid, how);
        wait_for_end(pid);
    };
    // What one host has on record the other has not.
    let forget = |node: &str| {
        for file in [format!("{node}.json"), "lost.json".to_owned()] {
            let _ = std::fs::remove_file(records.join(file));
        }
    };
    assert_eq!((lost("earth"), lost("mars")), (0, 0));
    end(1, Signal::TERM);
    end(0, Signal::KILL);
    forget("n1");
    let all = lost("mars");
    assert!(all > 500, "n1 may have had each of them: {all}");

    // It accepts that, dies, and is the one that knows nothing of what follows.
    let accepted =
        cluster.run("up").env("PLEXUS_HOST", "mars").args(["--accept-lost", "--json"]).said().json();
    assert_eq!(accepted["blocks_accepted"].as_u64(), Some(all));
    assert_eq!(lost("earth"), 0);
    end(1, Signal::KILL);
    cluster.wait_until("the other goes on", |status| status["nodes"][0]["members"] == json!(["n1"]));
    cluster.run("up").env("PLEXUS_HOST", "earth").args(["--accept-lost"]).said().ok();
    end(0, Signal::TERM);
    forget("n1");
    assert_eq!(lost("mars"), 0, "n1 has said that nothing is");
    end(1, Signal::TERM);
}

#[test]
fn a_single_node_that_leaves_loses_nothing() {
    let cluster = Cluster::up(1);
    let pid = cluster.pids()[0];
    signal(pid, Signal::TERM);
    wait_for_end(pid);
    assert_eq!(cluster.run("up").args(["--json"]).said().json()["blocks_lost"], 0);
    cluster.run("down").said().ok();
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
    assert_eq!(cluster.run("up").args(["--json"]).said().json()["blocks_lost"], 0);
    cluster.run("down").said().ok();
}

#[test]
fn a_node_that_does_not_answer_is_not_taken_for_one_that_is_down() {
    let cluster = Cluster::up(1);
    let pid = cluster.pids()[0];
    signal(pid, Signal::STOP);
    // Both have to lose their timeout with the node.
    let (status, accept, down) = std::thread::scope(|scope| {
        let status = scope.spawn(|| cluster.run("status").said().ok());
        let accept = scope.spawn(|| cluster.run("up").args(["--accept-lost"]).said().refusal());
        let down = cluster.run("down").said();
        (status.join().unwrap(), accept.join().unwrap(), down)
    });
    signal(pid, Signal::CONT);
    assert!(status.contains("silent") && status.contains("n1 does not answer to `status`"), "{status}");
    assert!(accept.contains("no blocks were accepted: n1 does not answer to `status`"), "{accept}");
    assert!(down.refusal().contains("n1 did not end"));
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
    shows(["n2: down since 20", "its log stops without a reason"]);
    cluster.run("up").said().ok();
    shows(["n2: its last run ended at 20", "its log stops without a reason"]);
    cluster.run("down").said().ok();
    shows(["n2: down since 20", "has ended in order"]);
}
