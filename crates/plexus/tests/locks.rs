//! Locks of the cluster around commands, with real nodes, real commands and real kills.

mod common;

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Stdio},
    thread,
};

use common::{Cluster, Run, run, signal, wait_for_end};
use rustix::process::Signal;
use serde_json::Value;

/// `plexus lock ARGS` at this cluster.
fn lock<'a>(cluster: &Cluster, args: impl IntoIterator<Item = &'a str>) -> Run {
    run(["lock"]).args(args).env("PLEXUS_DIR", cluster.dir().to_str().unwrap())
}

/// A command under a lock that says its number and then stays.
struct Holder {
    plexus: Child,
    out: BufReader<ChildStdout>,
    command: i32,
}

impl Holder {
    fn new(cluster: &Cluster, node: &str, name: &str) -> Self {
        let mut run = lock(cluster, ["--node", node, name, "--", "sh", "-c", "echo $$; exec sleep 60"]);
        let mut plexus = run.0.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(plexus.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        Self { plexus, out, command: line.trim().parse().unwrap() }
    }
}

fn locks(cluster: &Cluster) -> Vec<Value> {
    cluster.run("locks").args(["--json"]).said().json().as_array().unwrap().clone()
}

/// Looks at who has what until it is as it should become.
fn wait_until(cluster: &Cluster, is: impl Fn(&[Value]) -> bool) {
    while !is(&locks(cluster)) {
        thread::yield_now();
    }
}

#[test]
fn one_at_a_time_over_all_nodes_and_each_with_a_greater_token() {
    let cluster = Cluster::new(3);
    cluster.run("up").said().ok();
    let (count, tokens) = (cluster.parent().join("count"), cluster.parent().join("tokens"));
    fs::write(&count, "0").unwrap();
    let adds = format!(
        "n=$(cat {0}); echo $((n + 1)) > {0}; echo $PLEXUS_LOCK_TOKEN >> {1}",
        count.display(),
        tokens.display()
    );
    thread::scope(|scope| {
        for node in ["n1", "n2", "n3"] {
            let (cluster, adds) = (&cluster, &adds);
            scope.spawn(move || {
                for _ in 0..10 {
                    lock(cluster, ["--node", node, "count", "--", "sh", "-c", adds]).said().ok();
                }
            });
        }
    });
    assert_eq!(fs::read_to_string(count).unwrap().trim(), "30");
    let tokens = fs::read_to_string(tokens).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|token| token.parse().unwrap()).collect();
    assert!(tokens.len() == 30 && tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert_eq!(lock(&cluster, ["count", "--", "sh", "-c", "exit 7"]).said().code, Some(7));
}

#[test]
fn who_waits_and_who_does_not_is_shown_and_told() {
    let cluster = Cluster::new(2);
    cluster.run("up").said().ok();
    let mut holder = Holder::new(&cluster, "n1", "a name");
    let refused = lock(&cluster, ["--try", "--node", "n2", "a name", "--", "true"]).said().refusal();
    assert!(refused.contains("held by others"), "{refused}");
    let late = lock(&cluster, ["--wait", "0.05", "--mode", "cr", "a name", "--", "true"]).said().refusal();
    assert!(late.contains("not granted in time"), "{late}");
    let mut waits = lock(&cluster, ["--node", "n2", "--mode", "PR", "a name", "--", "true"]);
    let mut waits = waits.0.spawn().unwrap();
    wait_until(&cluster, |locks| locks[0]["waiting"].as_array().unwrap().len() == 1);
    let shown = &locks(&cluster)[0];
    assert_eq!((&shown["name"], &shown["granted"][0]["node"]), (&"a name".into(), &"n1".into()));
    assert_eq!((&shown["waiting"][0]["node"], &shown["waiting"][0]["mode"]), (&"n2".into(), &"PR".into()));
    let table = cluster.run("locks").said().ok();
    assert!(table.contains("has it") && table.contains("waits"), "{table}");
    // Its end, in whatever way, is that of the lock.
    signal(holder.command, Signal::KILL);
    assert_eq!(holder.plexus.wait().unwrap().code(), Some(128 + 9));
    assert!(waits.wait().unwrap().success());
    wait_until(&cluster, <[Value]>::is_empty);
    assert!(cluster.run("locks").said().ok().contains("nobody"));
}

#[test]
fn a_lock_is_held_for_as_long_as_the_command_runs_and_given_up_by_who_no_longer_waits() {
    let cluster = Cluster::new(2);
    cluster.run("up").said().ok();
    let mut holder = Holder::new(&cluster, "n1", "held");
    holder.plexus.kill().unwrap();
    holder.plexus.wait().unwrap();
    let held = locks(&cluster);
    assert_eq!(held[0]["granted"].as_array().unwrap().len(), 1, "the command runs: {held:?}");
    let mut waits = lock(&cluster, ["--node", "n2", "held", "--", "true"]);
    let mut waits = waits.0.spawn().unwrap();
    wait_until(&cluster, |locks| locks[0]["waiting"].as_array().unwrap().len() == 1);
    waits.kill().unwrap();
    waits.wait().unwrap();
    wait_until(&cluster, |locks| locks[0]["waiting"].as_array().unwrap().is_empty());
    signal(holder.command, Signal::KILL);
    wait_for_end(holder.command);
    wait_until(&cluster, <[Value]>::is_empty);
    drop(holder.out);
}

#[test]
fn a_lock_that_is_lost_ends_its_command() {
    let cluster = Cluster::new(2);
    cluster.run("up").said().ok();
    let holder = Holder::new(&cluster, "n1", "held");
    signal(cluster.pids()[1], Signal::KILL);
    let ended = holder.plexus.wait_with_output().unwrap();
    let why = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{why}");
    assert!(why.contains("the lock on held is lost"), "{why}");
    wait_for_end(holder.command);
    let refused = lock(&cluster, ["--node", "n1", "another", "--", "true"]).said().refusal();
    assert!(refused.contains("stopped"), "{refused}");
}

#[test]
fn what_cannot_be_locked_is_said() {
    let cluster = Cluster::new(1);
    cluster.run("up").said().ok();
    let long = "a".repeat(10_000);
    for (args, says) in [
        (vec!["--mode", "XX", "a", "--", "true"], "is no mode"),
        (vec![long.as_str(), "--", "true"], "1 to 255 bytes"),
        (vec!["", "--", "true"], "1 to 255 bytes"),
        (vec!["--wait", "0", "a", "--", "true"], "--try"),
        (vec!["--node", "n9", "a", "--", "true"], "n9"),
        (vec!["a", "--", "/there/is/no/such/program"], "no such"),
    ] {
        let refusal = lock(&cluster, args).said().refusal().to_lowercase();
        assert!(refusal.contains(says), "{refusal}");
    }
    wait_until(&cluster, <[Value]>::is_empty);
}
