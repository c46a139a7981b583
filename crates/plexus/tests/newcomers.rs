//! Nodes that a cluster takes in while it runs, although `cluster.toml` did not have them when the others started.

mod common;

use std::fs;

use common::{Cluster, Run, run};
use plexus_node::{config::Config, layout::ClusterDir};
use serde_json::Value;

/// `plexus node ARGS` at this cluster.
fn node<'a>(cluster: &Cluster, args: impl IntoIterator<Item = &'a str>) -> Run {
    run(["node"]).args(args).env("PLEXUS_DIR", cluster.dir().to_str().unwrap())
}

/// Lists one more node, with an address of its own.
fn list(cluster: &Cluster, name: &str) {
    let config = Config::load(&ClusterDir::new(cluster.dir())).unwrap();
    let last = config.nodes.iter().last().unwrap();
    let mut address = last.address;
    address.set_port(address.port() + 1);
    let table = format!(
        "\n[[node]]\nname = \"{name}\"\nhost = \"{}\"\naddress = \"{address}\"\nrails = [\"shm\", \"tcp\"]\n",
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
    let cluster = Cluster::new(2);
    cluster.run("up").said().ok();
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
        run(["bench", "blocks", "--json", "--seconds", "0.3"]).args([cluster.dir().to_str().unwrap()]);
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
fn what_is_known_of_nodes_does_not_change_while_they_run() {
    let cluster = Cluster::new(2);
    cluster.run("up").said().ok();
    list(&cluster, "n3");
    let text = fs::read_to_string(cluster.dir().join("cluster.toml")).unwrap();
    cluster.edit("name = \"n2\"", "name = \"other\"");
    let refusal = node(&cluster, ["add", "n3"]).said().refusal();
    assert!(refusal.contains("n2 is missing or not as it was; add nodes at the end only"), "{refusal}");
    fs::write(cluster.dir().join("cluster.toml"), text).unwrap();
    node(&cluster, ["add", "n3"]).said().ok();
}
