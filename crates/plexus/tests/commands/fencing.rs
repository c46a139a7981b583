//! Fence commands: nothing opens before one has succeeded, and nothing of one is left.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use plexus_admin::TemporaryCluster;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Cluster, CommandOutput, program, run, signal, temporary, until};

/// Returns the processes of which an argument contains `token`.
fn with_argument(token: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|process| process.path());
    let lines = processes.filter_map(|process| fs::read(process.join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(token)).collect()
}

/// Starts a fence command of a shell as a node does. Its arguments are `DIR/token`, which names its
/// processes.
fn guarded(within_ms: u32, token: &str, script: &str) -> Child {
    let within = format!("--within-ms={within_ms}");
    let mut guard = Command::new(program());
    guard.args(["fence-guard", &within, "--", "sh", "-c", script, token]);
    guard.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Two processes that go on: one ignores SIGTERM and has a session of its own.
const LEFT: &str = "setsid sh -c 'trap \"\" TERM; echo > $0.one; while :; do sleep 1; done' $0 & \
                    sh -c 'echo > $0.two; while :; do sleep 1; done' $0 & \
                    while ! test -e $0.one || ! test -e $0.two; do sleep 0.01; done; ";

#[test]
fn nothing_goes_on_of_a_fence_command_that_has_ended_or_exceeds_its_time_or_is_not_needed() {
    let place = tempfile::tempdir().unwrap();
    let token = |name: &str| place.path().join(name).display().to_string();
    let (ended, late, unneeded) = (token("ended"), token("late"), token("unneeded"));
    let ends = guarded(60_000, &ended, &format!("{LEFT} echo done; exit 0"));
    let talks = "echo to >&2; echo the board '\u{1b}[1m'does not answer; echo";
    let exceeds = guarded(1500, &late, &format!("{talks}; {LEFT} wait"));
    let mut ends_with_node = guarded(60_000, &unneeded, &format!("{LEFT} wait"));
    until("it runs", || json!(fs::exists(token("unneeded.two")).unwrap()), |is| *is == true);
    // As if the node had ended.
    drop(ends_with_node.stdin.take());
    let mut said = Vec::new();
    for (mut guard, token) in [(ends, ended), (exceeds, late), (ends_with_node, unneeded)] {
        let stdin = guard.stdin.take();
        let output = CommandOutput::of(guard.wait_with_output().unwrap());
        drop(stdin);
        assert_eq!(with_argument(&token), [""; 0], "{}{}", output.out, output.err);
        said.push((output.code, output.out));
    }
    assert_eq!(said[0], (Some(0), String::new()));
    let late =
        "took more than 1.5 s, and was ended; its last line of output: the board  [1mdoes not answer\n";
    assert_eq!(said[1], (Some(1), late.into()));
    assert_eq!(said[2], (Some(1), "was not needed any more; it printed nothing\n".into()));
}

fn status(dir: &str, node: usize) -> Value {
    run(["status", "-C", dir, "--json"]).said().json()["nodes"][node].clone()
}

/// Returns the status of a node once its only awaited proof fulfils a condition.
fn awaits(dir: &str, node: usize, is: impl Fn(&Value) -> bool) -> Value {
    until("a proof is awaited", || status(dir, node), |status| is(&status["membership"]["awaited_proofs"][0]))
}

fn fenced(dir: &str, args: &[&str]) -> CommandOutput {
    run(["node", "fenced", "-C", dir]).args(args.iter().copied()).env("PLEXUS_HOST", "host0").said()
}

/// Returns a fence command that notes its node in a file, and then tests something.
fn noting(place: &Path, test: &str) -> Vec<String> {
    let script = format!("echo $PLEXUS_NODE >> $0; {test} || {{ echo the board does not answer; exit 7; }}");
    ["sh", "-c", &script, &place.join("asked").display().to_string()].map(String::from).into()
}

#[test]
fn no_view_opens_until_a_fence_command_has_succeeded_or_an_operator_vouches() {
    let place = tempfile::tempdir().unwrap();
    // Each host has a voting file; of five, two may end.
    let mut parameters = temporary(&["host0", "host1", "host2", "host3", "host4"], place.path());
    parameters.config.nodes[2].fence = noting(place.path(), "false");
    // Of the commands that end n2, only later ones succeed than the first of each member.
    parameters.config.nodes[1].fence = noting(place.path(), "test $(grep -c n2 $0) -gt 3");
    let cluster = TemporaryCluster::start(&parameters, &mut |_, _| ()).unwrap();
    let dir = cluster.config().dir.root().to_str().unwrap().to_owned();
    let members = |status: &Value, names: &[&str]| status["members"] == json!(names);
    until("all are members", || status(&dir, 0), |status| members(status, &["n1", "n2", "n3", "n4", "n5"]));
    assert!(fenced(&dir, &["n3"]).ok().contains("nothing is changed"));

    signal(cluster.pid(2) as i32, Signal::KILL);
    // Much longer than the wait for the lease.
    let closed =
        awaits(&dir, 0, |proof| proof["for_ms"].as_u64() > Some(2000) && proof["problem"].is_string());
    assert!(members(&closed, &["n1", "n2", "n3", "n4", "n5"]), "{closed}");
    let said = closed["trouble"][0].as_str().unwrap();
    let incarnation = closed["membership"]["awaited_proofs"][0]["incarnation"].to_string();
    for part in
        ["does not open", &incarnation, "exit status 7", "the board does not answer", "node fenced n3"]
    {
        assert!(said.contains(part), "{said}");
    }
    let refusal = fenced(&dir, &["n3"]).refusal();
    assert!(refusal.contains(&incarnation) && refusal.contains("With --yes you vouch"), "{refusal}");
    assert!(members(&status(&dir, 1), &["n1", "n2", "n3", "n4", "n5"]));
    assert!(fenced(&dir, &["n3", "--yes"]).ok().contains(&incarnation));
    for node in [0, 1, 3] {
        until(
            "n3 is no member any more",
            || status(&dir, node),
            |status| members(status, &["n1", "n2", "n4", "n5"]),
        );
    }
    assert!(fenced(&dir, &["n3", "--yes"]).ok().contains("nothing is changed"), "it can be repeated");

    // The first commands for n2 fail.
    signal(cluster.pid(1) as i32, Signal::KILL);
    let after =
        until("n2 is no member any more", || status(&dir, 0), |status| members(status, &["n1", "n4", "n5"]));
    let fences = after["membership"]["fencing"].as_array().unwrap();
    let state = |node: u8| fences.iter().find(|fence| fence["node"] == node).map(|fence| &fence["state"]);
    assert_eq!(state(2), Some(&json!("reported")));
    assert!([json!("reported"), json!({ "proved": "off" })].contains(state(1).unwrap()), "{after}");
    let asked = fs::read_to_string(place.path().join("asked")).unwrap();
    assert!(asked.lines().filter(|name| *name == "n2").count() > 3, "{asked}");
}

#[test]
fn nodes_that_start_without_a_node_whose_end_must_be_proved_wait_and_take_the_operators_word() {
    let cluster = Cluster::on_hosts(&["host0", "host0", "host1"]);
    cluster.edit("name = \"n3\"\n", "name = \"n3\"\nfence = [\"false\"]\n");
    cluster.edit("profile = \"lan\"\n", "profile = \"lan\"\ndisk_timeout_ms = 3000\n");
    let up = |host: &str| cluster.run("up").env("PLEXUS_HOST", host);
    ["host0", "host1"].into_iter().for_each(|host| _ = up(host).said().ok());
    cluster
        .wait_until("all are members", |status| status["nodes"][0]["members"] == json!(["n1", "n2", "n3"]));
    cluster.pids().into_iter().for_each(|pid| signal(pid, Signal::KILL));

    let mut again = up("host0").start();
    let dir = cluster.dir().display().to_string();
    let waits = awaits(&dir, 0, |proof| proof["problem"].is_string());
    assert!(waits["state"] == "joining" && waits["epoch"] == 0, "{waits}");
    assert!(waits["trouble"][0].as_str().unwrap().contains("node fenced n3"), "{waits}");
    assert!(fenced(&dir, &["n3", "--yes"]).ok().contains("counts as ended"));
    assert!(again.plexus.wait().unwrap().success());
    assert_eq!(status(&dir, 1)["members"], json!(["n1", "n2"]));
}
