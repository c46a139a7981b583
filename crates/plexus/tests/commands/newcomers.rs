//! Nodes that join a running cluster and were not in the `cluster.toml` that the others started
//! with.

use std::{fs, os::unix::fs::symlink, path::PathBuf, process::Stdio, thread};

use crate::common::{Cluster, Run, TIMEOUT, run, signal, wait_for_end};
use plexus_admin::{config::Config, layout::ClusterDir};
use plexus_client::Client;
use rustix::process::Signal;
use serde_json::{Value, json};

/// `plexus node ARGS` at this cluster.
fn node<'a>(cluster: &Cluster, args: impl IntoIterator<Item = &'a str>) -> Run {
    run(["node"]).args(args).env("PLEXUS_DIR", cluster.dir().to_str().unwrap())
}

/// Adds a node with an address of its own to `cluster.toml`.
fn list(cluster: &Cluster, name: &str) {
    let config = Config::load(&ClusterDir::new(cluster.dir())).unwrap();
    let last = config.nodes.iter().last().unwrap();
    let mut address = last.address;
    address.set_port(address.port() + 1);
    let table = format!(
        "\n[[node]]\nnumber = {}\nname = \"{name}\"\nhost = \"{}\"\naddress = \"{address}\"\nrails = [\"shm\", \"tcp\"]\n",
        config.number_limit(),
        last.host
    );
    let text = fs::read_to_string(config.dir.config()).unwrap();
    fs::write(config.dir.config(), text + &table).unwrap();
}

fn until_members_are(cluster: &Cluster, names: &[&str]) {
    cluster.wait_until("all are members", |status| {
        let nodes = status["nodes"].as_array().unwrap();
        let is_whole = |node: &Value| {
            let members = node["membership"]["members"].as_array();
            members.is_some_and(|members| members.len() == names.len())
        };
        nodes.len() == names.len() && nodes.iter().all(is_whole)
    });
}

#[test]
fn a_node_that_the_others_were_started_without_joins_while_they_run() {
    let cluster = Cluster::up(2);
    let before = cluster.pids();
    let refusal = node(&cluster, ["add", "n3"]).said().refusal();
    assert!(refusal.contains("there is no node `n3`"), "{refusal}");

    list(&cluster, "n3");
    assert_eq!(node(&cluster, ["add", "--json", "n3"]).said().json()["belongs"], true);
    cluster.run("up").said().ok();
    until_members_are(&cluster, &["n1", "n2", "n3"]);
    assert_eq!(cluster.pids()[..2], before, "the others go on");
    // Blocks and locks are its as well as theirs.
    let bench =
        run(["bench", "blocks", "--json", "--seconds", "0.3", "-C"]).args([cluster.dir().to_str().unwrap()]);
    assert_eq!(bench.said().json()["blocks"][0]["nodes"], 3);

    list(&cluster, "n4");
    node(&cluster, ["add", "n4"]).said().ok();
    cluster.run("up").said().ok();
    until_members_are(&cluster, &["n1", "n2", "n3", "n4"]);
    cluster.run("down").said().ok();
    cluster.run("up").said().ok();
    until_members_are(&cluster, &["n1", "n2", "n3", "n4"]);
}

#[test]
fn programs_that_were_attached_before_reach_a_node_that_came_later() {
    let cluster = Cluster::up(1);
    let before = Client::attach(cluster.dir()).unwrap();
    list(&cluster, "n2");
    node(&cluster, ["add", "n2"]).said().ok();
    cluster.run("up").said().ok();
    let later = Client::attach(ClusterDir::new(cluster.dir()).attach("n2")).unwrap();
    assert_eq!((before.nodes(), later.nodes()), (1, 2));
    let (port, server) = (later.bind(7).unwrap(), later.serve(8).unwrap());
    let window = later.create_window("later", 64).unwrap();
    before.bind(0).unwrap().send(port.address(), b"welcome", Some(TIMEOUT)).unwrap();
    assert_eq!(port.receive(Some(TIMEOUT)).unwrap().bytes, b"welcome");
    let to = server.address();
    let answers = thread::spawn(move || server.next(Some(TIMEOUT)).unwrap().reply(b"here").unwrap());
    assert_eq!(before.call(to, b"?", Some(TIMEOUT)).unwrap(), b"here");
    answers.join().unwrap();
    before.find_window("later").unwrap().put(0, b"found").unwrap();
    let mut read = [0; 5];
    window.get(0, &mut read).unwrap();
    assert_eq!(&read, b"found");
}

#[test]
fn what_is_known_of_nodes_does_not_change_while_they_run() {
    let cluster = Cluster::up(2);
    list(&cluster, "n3");
    let text = fs::read_to_string(cluster.dir().join("cluster.toml")).unwrap();
    cluster.edit("name = \"n2\"", "name = \"other\"");
    let refusal = node(&cluster, ["add", "n3"]).said().refusal();
    assert!(
        refusal.contains("number 1 is that of n2; give other a number that no node had before"),
        "{refusal}"
    );
    fs::write(cluster.dir().join("cluster.toml"), text).unwrap();
    node(&cluster, ["add", "n3"]).said().ok();
}

/// Copies `cluster.toml` to another directory of the same cluster, as on another machine.
fn elsewhere(cluster: &Cluster) -> PathBuf {
    let there = cluster.parent().join("there");
    fs::create_dir(&there).unwrap();
    for entry in fs::read_dir(cluster.dir()).unwrap() {
        let path = entry.unwrap().path();
        let place = there.join(path.file_name().unwrap());
        match path.is_dir() {
            true => symlink(path, place).unwrap(),
            false => drop(fs::copy(path, place).unwrap()),
        }
    }
    there
}

#[test]
fn a_node_whose_list_lacks_a_node_is_refused_with_the_reason() {
    let cluster = Cluster::up(2);
    let (there, pids) = (elsewhere(&cluster), cluster.pids());
    signal(pids[1], Signal::TERM);
    wait_for_end(pids[1]);
    cluster.wait_until("n1 is alone", |status| status["nodes"][0]["members"] == json!(["n1"]));
    list(&cluster, "n3");
    node(&cluster, ["add", "n3"]).said().ok();

    let mut n2 = run(["node", "n2", "-C", there.to_str().unwrap()]).0;
    let n2 = n2.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_end(n2.id() as i32);
    let said = n2.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr);
    let complaint = format!("{}/cluster.toml: more nodes belong to the cluster", there.display());
    assert!(said.status.code() == Some(1) && text.contains(&complaint), "{:?} {text}", said.status);
    cluster.run("up").said().ok();
    until_members_are(&cluster, &["n1", "n2", "n3"]);
    assert_eq!(cluster.pids()[0], pids[0], "it goes on");
}

#[test]
fn what_was_wrong_where_a_node_was_refused_is_mended_while_the_others_run() {
    let cluster = Cluster::new(2);
    let (here, there) = (cluster.dir(), elsewhere(&cluster));
    let mut n2 = run(["node", "n2", "-C", there.to_str().unwrap()]).0;
    let mut n2 = n2.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    cluster.wait_until("n2 runs", |status| status["nodes"][1]["state"] == "running");
    cluster.run("up").said().ok();
    let before = cluster.pids();
    assert_eq!(before[1], n2.id() as i32, "it is the one that reads the copy");

    list(&cluster, "n3");
    let refusal = node(&cluster, ["add", "n3"]).said().refusal();
    let complaint = format!("{}/cluster.toml: there is no node", there.display());
    assert!(refusal.contains(&complaint), "{refusal}");

    let right = fs::read_to_string(here.join("cluster.toml")).unwrap();
    let wrong = right.replace("name = \"n3\"\nhost = \"", "name = \"n3\"\nhost = \"not-");
    assert_ne!(right, wrong);
    for (listed, other) in [(&wrong, &right), (&right, &wrong)] {
        fs::write(here.join("cluster.toml"), listed).unwrap();
        fs::write(there.join("cluster.toml"), other).unwrap();
        let refusal = node(&cluster, ["add", "n3"]).said().refusal();
        assert!(refusal.contains("not as elsewhere"), "{refusal}");
    }
    fs::write(there.join("cluster.toml"), &right).unwrap();
    node(&cluster, ["add", "n3"]).said().ok();
    // It is repeated, as after an interruption behind its last step.
    node(&cluster, ["add", "n3"]).said().ok();
    cluster.run("up").said().ok();
    until_members_are(&cluster, &["n1", "n2", "n3"]);
    assert_eq!(cluster.pids()[..2], before, "the others go on");
    let bench = run(["bench", "blocks", "--json", "--seconds", "0.3", "-C"]).args([here.to_str().unwrap()]);
    assert_eq!(bench.said().json()["blocks"][0]["nodes"], 3);
    cluster.run("down").said().ok();
    n2.wait().unwrap();
}
