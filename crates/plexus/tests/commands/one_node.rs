//! One node is stopped, started, removed and added again while the others go on, and nodes start
//! although one of them cannot.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStderr, Stdio},
};

use crate::common::{Cluster, Run, run, runs, signal, wait_for_end};
use rustix::process::Signal;
use serde_json::{Value, json};

/// `plexus node ARGS` at this cluster.
fn node<'a>(cluster: &Cluster, args: impl IntoIterator<Item = &'a str>) -> Run {
    run(["node"]).args(args).env("PLEXUS_DIR", cluster.dir().to_str().unwrap())
}

/// Three nodes that have changed blocks in their caches.
fn busy() -> Cluster {
    let cluster = Cluster::new(3);
    cluster.bear_busy_disks();
    cluster.run("up").said().ok();
    change_blocks(&cluster, 3);
    cluster
}

/// Changes blocks on all nodes, which checks them too.
fn change_blocks(cluster: &Cluster, nodes: u64) {
    let bench = cluster_bench(cluster);
    assert_eq!(bench["blocks"][0]["nodes"], nodes, "{bench}");
}

fn cluster_bench(cluster: &Cluster) -> Value {
    let dir = cluster.dir();
    run(["bench", "blocks", "-C", dir.to_str().unwrap(), "--seconds", "0.2", "--clients", "2", "--json"])
        .said()
        .json()
}

/// Waits until the nodes at these places of the file have these members.
fn until_members_are(cluster: &Cluster, places: &[usize], names: &[&str]) {
    cluster.wait_until("all are members", |status| {
        let nodes = &status["nodes"];
        places
            .iter()
            .all(|place| nodes[*place]["state"] == "running" && nodes[*place]["members"] == json!(names))
    });
}

/// Changes the tables of nodes in `cluster.toml`, which come last.
fn edit_tables(cluster: &Cluster, change: impl FnOnce(&mut Vec<String>)) {
    let path = cluster.dir().join("cluster.toml");
    let text = fs::read_to_string(&path).unwrap();
    let mut tables: Vec<String> = text.split("\n[[node]]\n").map(str::to_owned).collect();
    let head = tables.remove(0);
    change(&mut tables);
    fs::write(path, head + &tables.iter().map(|table| format!("\n[[node]]\n{table}")).collect::<String>())
        .unwrap();
}

#[test]
fn a_node_is_stopped_without_loss_and_started_while_the_others_go_on() {
    let cluster = busy();
    let pids = cluster.pids();
    let stopped = node(&cluster, ["stop", "n2"]).said();
    assert!(stopped.err.contains("n2: quiesces\nn2: hands back\nn2: leaves\n"), "{}", stopped.err);
    let line = stopped.ok();
    assert!(line.contains("n2 has left: it gave back ") && !line.contains(" 0 blocks"), "{line}");
    assert_eq!(pids.iter().map(|pid| runs(*pid)).collect::<Vec<_>>(), [true, false, true]);
    until_members_are(&cluster, &[0, 2], &["n1", "n3"]);
    assert!(node(&cluster, ["stop", "n2"]).said().ok().contains("n2 does not run"));

    let started = node(&cluster, ["start", "--json", "n2"]).said().json();
    assert_eq!(started["started"][0]["name"], "n2");
    until_members_are(&cluster, &[0, 1, 2], &["n1", "n2", "n3"]);
    assert!(node(&cluster, ["start", "n2"]).said().ok().contains("already running"));
    change_blocks(&cluster, 3);
    let refusal = node(&cluster, ["stop", "n9"]).said().refusal();
    assert!(refusal.contains("there is no node `n9`"), "{refusal}");
}

#[test]
fn a_removed_node_hands_everything_back_and_the_cluster_starts_without_it() {
    let cluster = busy();
    let removed = cluster.pids()[2];
    let refusal = node(&cluster, ["remove", "--force", "n3"]).said().refusal();
    assert!(refusal.contains("n3 runs, and --force is only for a node that is down"), "{refusal}");
    assert!(runs(removed));
    let line = node(&cluster, ["remove", "n3"]).said();
    assert!(line.err.contains("n3: hands back"), "{}", line.err);
    let line = line.ok();
    assert!(line.contains("n3 no longer belongs to the cluster: it gave back"), "{line}");
    assert!(!runs(removed));
    until_members_are(&cluster, &[0, 1], &["n1", "n2"]);

    let down = cluster.run("down").said().ok();
    assert!(down.contains("everything is on disk"), "{down}");
    for start in ["up: n1", "already running: n1, n2"] {
        let up = cluster.run("up").said().ok();
        assert!(up.contains(start) && up.contains("n3 is not a member: it was removed"), "{up}");
        until_members_are(&cluster, &[0, 1], &["n1", "n2"]);
    }
    let up = cluster.run("up").args(["--json"]).said().json();
    assert_eq!((&up["running_before"], up["removed"].as_array().unwrap().len()), (&json!(["n1", "n2"]), 1));
    let refusal = node(&cluster, ["start", "n3"]).said().refusal();
    assert!(refusal.contains("add it with `plexus node add n3`"), "{refusal}");

    node(&cluster, ["add", "n3"]).said().ok();
    node(&cluster, ["start", "n3"]).said().ok();
    until_members_are(&cluster, &[0, 1, 2], &["n1", "n2", "n3"]);
    change_blocks(&cluster, 3);
}

#[test]
fn a_node_that_is_down_is_removed_only_by_force() {
    let cluster = Cluster::up(2);
    let killed = cluster.pids()[1];
    signal(killed, Signal::KILL);
    wait_for_end(killed);
    let refusal = node(&cluster, ["remove", "n2"]).said().refusal();
    assert!(refusal.contains("n2 is down and cannot hand back what it may have had"), "{refusal}");
    assert_eq!(node(&cluster, ["remove", "--json", "--force", "n2"]).said().json()["belongs"], false);
    // No node would remain that could remove it.
    let refusal = node(&cluster, ["remove", "n1"]).said().refusal();
    assert!(refusal.contains("no other node runs on this machine"), "{refusal}");
    until_members_are(&cluster, &[0], &["n1"]);
}

#[test]
fn a_removal_that_was_interrupted_when_the_node_had_left_is_repeated() {
    let cluster = Cluster::up(2);
    // The first half of the removal.
    node(&cluster, ["stop", "n2"]).said().ok();
    for _ in 0..2 {
        assert_eq!(node(&cluster, ["remove", "--json", "n2"]).said().json()["belongs"], false);
    }
    until_members_are(&cluster, &[0], &["n1"]);
    node(&cluster, ["add", "n2"]).said().ok();
    cluster.run("up").said().ok();
    until_members_are(&cluster, &[0, 1], &["n1", "n2"]);
}

#[test]
fn a_removed_nodes_table_goes_and_the_others_keep_their_numbers() {
    let cluster = busy();
    node(&cluster, ["remove", "n2"]).said().ok();
    edit_tables(&cluster, |tables| {
        tables.remove(1);
        tables.reverse();
    });
    // n3 reads the new file, and n1 has the old one.
    node(&cluster, ["stop", "n3"]).said().ok();
    node(&cluster, ["start", "n3"]).said().ok();
    until_members_are(&cluster, &[0, 1], &["n1", "n3"]);
    change_blocks(&cluster, 2);

    // A number that is in use, also by a node that only running ones know, is refused.
    let n4 = |number: u8| {
        move |tables: &mut Vec<String>| {
            let n1 = tables.iter().find(|table| table.contains("name = \"n1\"")).unwrap();
            let n4 = n1.replace("number = 0 ", &format!("number = {number} ")).replace("\"n1\"", "\"n4\"");
            let port: u16 =
                n4.split_once("\naddress = \"").unwrap().1.split([':', '"']).nth(1).unwrap().parse().unwrap();
            tables.insert(0, n4.replacen(&format!(":{port}\""), &format!(":{}\"", port + 10), 1));
        }
    };
    edit_tables(&cluster, n4(1));
    let refusal = node(&cluster, ["add", "n4"]).said().refusal();
    assert!(
        refusal.contains("number 1 is that of n2; give n4 a number that no node had before"),
        "{refusal}"
    );
    edit_tables(&cluster, |tables| drop(tables.remove(0)));
    edit_tables(&cluster, n4(3));
    node(&cluster, ["add", "n4"]).said().ok();
    cluster.run("up").said().ok();
    until_members_are(&cluster, &[0, 1, 2], &["n1", "n3", "n4"]);
    change_blocks(&cluster, 3);
    cluster.run("down").said().ok();
    cluster.run("up").said().ok();
    until_members_are(&cluster, &[0, 1, 2], &["n1", "n3", "n4"]);
}

#[test]
fn one_node_that_cannot_start_leaves_the_others_alone() {
    let cluster = Cluster::new(3);
    let obstacle = cluster.dir().join("log/n2.log");
    fs::create_dir(&obstacle).unwrap();
    let up = cluster.run("up").said();
    assert!(up.out.contains("up: n1 (pid") && up.out.contains("n3 (pid"), "{}{}", up.out, up.err);
    let refusal = up.refusal();
    assert!(refusal.contains("n2: ") && refusal.ends_with("; running: n1, n3"), "{refusal}");
    until_members_are(&cluster, &[0, 2], &["n1", "n3"]);
    let others = |cluster: &Cluster| {
        let status = cluster.run("status").args(["--json"]).said().json();
        [0, 2].map(|place: usize| status["nodes"][place]["pid"].clone())
    };
    let before = others(&cluster);
    fs::remove_dir(&obstacle).unwrap();
    // Now its process starts, and ends by itself.
    cluster.edit("name = \"n2\"", "cores = [1000]\nname = \"n2\"");
    let refusal = cluster.run("up").said().refusal();
    assert!(refusal.contains("n2") && refusal.ends_with("; running: n1, n3"), "{refusal}");
    cluster.edit("cores = [1000]\n", "");
    cluster.run("up").said().ok();
    until_members_are(&cluster, &[0, 1, 2], &["n1", "n2", "n3"]);
    assert_eq!(others(&cluster), before, "they went on");
}

/// Starts `plexus up` with its standard error to be read.
fn start_up(cluster: &Cluster, args: &[&str]) -> (Child, BufReader<ChildStderr>) {
    let mut up = cluster.run("up").args(args.iter().copied()).0;
    let mut up = up.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(up.stderr.take().unwrap());
    (up, lines)
}

/// Reads lines until one has this text.
fn read_until(lines: &mut impl BufRead, text: &str) {
    let mut said = String::new();
    while !said.contains(text) {
        assert_ne!(lines.read_line(&mut said).unwrap(), 0, "{text}: {said}");
    }
}

#[test]
fn of_two_commands_that_start_a_cluster_one_does_it_and_both_report_the_same() {
    let cluster = Cluster::new(2);
    let held = File::create(cluster.dir().join("state/start.lock")).unwrap();
    held.lock().unwrap();
    let mut both = [(); 2].map(|()| start_up(&cluster, &["--json"]));
    both.iter_mut().for_each(|(_, lines)| read_until(lines, "another command starts nodes"));
    drop(held);
    let reports = both.map(|(mut up, mut lines)| {
        let mut errors = String::new();
        lines.read_to_string(&mut errors).unwrap();
        let mut report = String::new();
        up.stdout.take().unwrap().read_to_string(&mut report).unwrap();
        assert!(up.wait().unwrap().success(), "{errors}");
        serde_json::from_str::<Value>(&report).unwrap()
    });
    assert_eq!(reports[0], reports[1]);
    let started =
        reports[0]["started"].as_array().unwrap().iter().map(|node| node["pid"].as_i64().unwrap() as i32);
    assert_eq!(started.collect::<Vec<_>>(), cluster.pids());
}

#[test]
fn an_interrupted_start_says_what_goes_on() {
    let cluster = Cluster::new(1);
    // Without a majority of voting files its node waits.
    let votes = cluster.dir().join("voting");
    fs::rename(&votes, cluster.parent().join("voting")).unwrap();
    let (mut up, mut lines) = start_up(&cluster, &[]);
    read_until(&mut lines, "n1: waiting for its peers");
    signal(up.id() as i32, Signal::INT);
    read_until(&mut lines, "interrupted: n1 (pid ");
    assert_eq!(up.wait().unwrap().code(), Some(1));
    fs::rename(cluster.parent().join("voting"), &votes).unwrap();
    until_members_are(&cluster, &[0], &["n1"]);
}
