//! A node in another PID namespace of its host, as in a container that shares the directory of the
//! cluster: process numbers of one mean other processes in the other.

use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::common::{Cluster, program, signal, until};
use rustix::process::Signal;

/// A child that is killed with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the number on this host of the process that has `pid` in a namespace below `above`.
fn number_here(above: u32, pid: u32) -> Option<i32> {
    let children = |of: u32| {
        let path = format!("/proc/{of}/task/{of}/children");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().filter_map(|child| child.parse().ok()).collect::<Vec<u32>>()
    };
    let below = children(above).into_iter().flat_map(|child| [vec![child], children(child)].concat());
    let is_it = |host: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{host}/status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with(&format!("\t{pid}")))
    };
    below.into_iter().find(is_it).map(|host| host as i32)
}

#[test]
fn a_node_in_another_pid_namespace_is_named_and_no_process_is_signalled_in_its_place() {
    let unshare = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let may = Command::new("unshare").args(unshare).arg("true").stderr(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) {
        return println!("skipped: `unshare --pid` is not permitted here; run this test as root");
    }
    let cluster = Cluster::new(2);
    // This process has the number on the host that the node has in its namespace.
    let mut innocent = Killed(Command::new("sleep").arg("600").spawn().unwrap());
    let number = innocent.0.id();
    let start = format!(
        "echo {} > /proc/sys/kernel/ns_last_pid; {} node n2 -C {} & wait",
        number - 1,
        program().display(),
        cluster.dir().display()
    );
    let log = std::fs::File::create(cluster.dir().join("log/n2.log")).unwrap();
    let mut apart = Command::new("unshare");
    apart.args(unshare).args(["sh", "-c", &start]).stdout(Stdio::null()).stderr(log);
    let mut apart = Killed(apart.spawn().unwrap());
    cluster.run("node").args(["start", "n1"]).said().ok();
    let look = || cluster.run("status").args(["--json"]).said().json()["nodes"].clone();
    let are_members = |nodes: &Value| (0..2).all(|node| nodes[node]["members"] == json!(["n1", "n2"]));
    let nodes = until("both are members", look, are_members);
    let in_its_namespace = nodes[1]["pid"].as_u64().unwrap() as u32;
    assert_eq!(in_its_namespace, number, "{nodes}");
    let nodes = until("they are connected", look, |nodes| nodes[0]["peers"][0]["rail"] == "tcp");
    assert_eq!(nodes[0]["peers"][0]["fencing"], "lease only", "{nodes}");
    let shown = cluster.run("status").said().ok();
    assert!(shown.contains("to n2 works: it runs in another PID namespace of this host"), "{shown}");

    // It stands still past its lease: no process is killed in its place, and its lease is waited
    // for.
    let here = number_here(apart.0.id(), number).expect("a process below `unshare`");
    signal(here, Signal::STOP);
    until("it is evicted", look, |nodes| nodes[0]["members"] == json!(["n1"]));
    assert!(innocent.0.try_wait().unwrap().is_none(), "another process was killed in its place");
    signal(here, Signal::CONT);
    apart.0.wait().unwrap();

    // It comes back, and is stopped from this host over its control socket.
    let mut again = Command::new("unshare");
    let log = std::fs::File::create(cluster.dir().join("log/n2.log")).unwrap();
    again.args(unshare).args(["sh", "-c", &start]).stdout(Stdio::null()).stderr(log);
    let mut again = Killed(again.spawn().unwrap());
    until("both are members again", look, are_members);
    let said = cluster.run("node").args(["stop", "n2"]).said().ok();
    assert!(said.contains("n2 has left"), "{said}");
    again.0.wait().unwrap();
    assert!(innocent.0.try_wait().unwrap().is_none(), "another process was ended in its place");
    assert_eq!(look()[0]["members"], json!(["n1"]));
}
