//! Members come and go while the cluster runs. A node suspended past its lease stops acting, an
//! evicted node joins again in its next incarnation, and the others go on.

use std::{
    path::Path,
    process::{Child, Stdio},
};

use crate::common::{program, run, temporary, until};
use plexus_admin::TemporaryCluster;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// One host for each node: they share no memory, and none kills another.
const APART: [&str; 3] = ["host0", "host1", "host2"];

/// A cluster of processes.
struct Nodes {
    cluster: TemporaryCluster,
    directory: tempfile::TempDir,
}

impl Nodes {
    /// Creates nodes on these hosts, with a fencing command for each, made from the directory of
    /// the cluster.
    fn start(hosts: [&str; 3], fence: impl Fn(&Path) -> Vec<String>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut parameters = temporary(&hosts, directory.path());
        (0..3).for_each(|node| parameters.config.nodes[node].fence = fence(directory.path()));
        let cluster = TemporaryCluster::start(&parameters, &mut |_, _| ()).unwrap();
        Self { cluster, directory }
    }

    fn dir(&self) -> String {
        self.cluster.config().dir.root().to_str().unwrap().to_owned()
    }

    fn signal(&self, node: usize, signal: Signal) {
        let pid = Pid::from_raw(self.cluster.pid(node) as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Returns the status of a node once it fulfils a condition.
    fn until(&self, node: usize, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let look = || run(["status", "-C", &self.dir(), "--json"]).said().json()["nodes"][node].clone();
        until(what, look, is)
    }

    /// Runs `plexus lock` at a node.
    fn lock(&self, node: usize, name: &str, command: &[&str]) -> Child {
        let node = format!("n{}", node + 1);
        let mut lock = std::process::Command::new(program());
        lock.args(["lock", "-C", &self.dir(), "--node", &node, name, "--"]).args(command);
        lock.env("PLEXUS_HOST", "host0").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

fn line(child: &mut Child) -> String {
    use std::io::{BufRead, BufReader};
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line
}

const TOKEN: [&str; 3] = ["sh", "-c", "echo $PLEXUS_LOCK_TOKEN; exec sleep 600"];

#[test]
fn a_node_that_stands_still_past_its_lease_does_nothing_more_when_it_goes_on() {
    let cluster = Nodes::start(APART, |_| Vec::new());
    let before = cluster.until(0, "all are members", |status| status["members"] == json!(["n1", "n2", "n3"]));
    assert!(
        before["peers"].as_array().unwrap().iter().all(|peer| peer["fencing"] == "lease only"),
        "{before}"
    );
    let mut held = cluster.lock(2, "held", &TOKEN);
    let token: u64 = line(&mut held).trim().parse().unwrap();

    cluster.signal(2, Signal::STOP);
    let mut next = cluster.lock(0, "held", &TOKEN);
    let greater: u64 = line(&mut next).trim().parse().unwrap();
    assert!(greater > token, "{greater} after {token}");
    let after = cluster.until(1, "n3 is none any more", |status| status["members"] == json!(["n1", "n2"]));
    let change = after["membership"]["transitions"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(change["gone"][0][0], 2, "{change}");
    assert_eq!(after["membership"]["fencing"][0]["state"], "lease_ended", "{after}");

    // The resumed node ends, and its client learns that its lock is lost.
    cluster.signal(2, Signal::CONT);
    let ended = held.wait_with_output().unwrap();
    let why = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(125), "{why}");
    assert!(why.contains("lock held: lost"), "{why}");
    cluster.until(2, "its process is gone", |status| status["state"] == "down");
    let log = std::fs::read_to_string(cluster.cluster.config().dir.log("n3")).unwrap();
    let last = log.lines().rev().take(3).collect::<Vec<_>>().join("\n");
    assert!(last.contains("the lease is over") || last.contains("go on without this node"), "{last}");
    next.kill().unwrap();
    next.wait().unwrap();
    cluster.until(0, "the others go on", |status| status["members"] == json!(["n1", "n2"]));
}

#[test]
fn a_fence_command_spares_the_wait_for_the_lease() {
    let cluster = Nodes::start(APART, |place| {
        let told = place.join("fenced").display().to_string();
        ["sh", "-c", "echo $PLEXUS_NODE >> $0", &told].map(String::from).into()
    });
    let before = cluster.until(0, "all are members", |status| status["members"] == json!(["n1", "n2", "n3"]));
    assert!(before["peers"].as_array().unwrap().iter().all(|peer| peer["fencing"] == "agent"), "{before}");
    cluster.signal(2, Signal::KILL);
    let after = cluster.until(0, "n3 is none any more", |status| status["members"] == json!(["n1", "n2"]));
    let told = std::fs::read_to_string(cluster.directory.path().join("fenced")).unwrap();
    assert!(!told.is_empty() && told.lines().all(|name| name == "n3"), "{told}");
    // The first of the two to stop has informed the other.
    let state = &after["membership"]["fencing"][0]["state"];
    assert!(*state == json!({ "proved": "off" }) || *state == "reported", "{after}");
}

#[test]
fn a_node_of_the_same_host_that_stands_still_is_killed_and_its_end_awaited() {
    let cluster = Nodes::start(["host0"; 3], |_| Vec::new());
    let before = cluster.until(0, "all are members", |status| status["members"] == json!(["n1", "n2", "n3"]));
    assert!(before["peers"].as_array().unwrap().iter().all(|peer| peer["fencing"] == "kill"), "{before}");
    cluster.signal(2, Signal::STOP);
    let of =
        |node| cluster.until(node, "n3 is none any more", |status| status["members"] == json!(["n1", "n2"]));
    let states = [0, 1].map(|node| of(node)["membership"]["fencing"][0]["state"].clone());
    // The first to stop has informed the other, and so has a node that saw its links end.
    assert!(
        states.iter().all(|state| *state == json!({ "proved": "killed" }) || *state == "reported"),
        "{states:?}"
    );
    // It was never told to go on: nothing but a kill ends it.
    cluster.until(2, "its process is gone", |status| status["state"] == "down");
}
