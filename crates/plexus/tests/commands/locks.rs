//! Locks of the cluster around commands, with real nodes, real commands and real kills.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Stdio},
    thread,
};

use crate::common::{Cluster, Run, program, run, signal, until, wait_for_end};
use rustix::process::Signal;
use serde_json::{Value, json};

/// `plexus lock ARGS` at this cluster.
fn lock<'a>(cluster: &Cluster, args: impl IntoIterator<Item = &'a str>) -> Run {
    run(["lock"]).args(args).env("PLEXUS_DIR", cluster.dir().to_str().unwrap())
}

/// A command under a lock that prints its process id and then waits.
struct Holder {
    plexus: Child,
    out: BufReader<ChildStdout>,
    command: i32,
}

impl Holder {
    fn new(cluster: &Cluster, node: &str, name: &str) -> Self {
        Self::of(lock(cluster, ["--node", node, name, "--", "sh", "-c", "echo $$; exec sleep 60"]))
    }

    /// Starts a command whose first line is its process id.
    fn of(mut run: Run) -> Self {
        let mut plexus = run.0.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(plexus.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        Self { plexus, out, command: line.trim().parse().unwrap() }
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim().into()
    }

    fn tell(&self, what: Signal) {
        signal(self.plexus.id() as i32, what);
    }
}

fn locks(cluster: &Cluster) -> Value {
    cluster.run("locks").args(["--json"]).said().json()
}

/// Polls `plexus locks` until a condition holds.
#[track_caller]
fn wait_until(cluster: &Cluster, what: &str, is: impl Fn(&Value) -> bool) {
    until(what, || locks(cluster), is);
}

fn none(locks: &Value) -> bool {
    locks["resources"] == json!([])
}

/// Returns whether this many requests wait for the only resource.
fn wait(count: usize) -> impl Fn(&Value) -> bool {
    move |locks| locks["resources"][0]["waiting"].as_array().is_some_and(|waiting| waiting.len() == count)
}

#[test]
fn one_at_a_time_over_all_nodes_and_each_with_a_greater_token() {
    let cluster = Cluster::up(3);
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
fn waiting_and_refused_requests_are_shown_and_reported() {
    let cluster = Cluster::up(2);
    let mut holder = Holder::new(&cluster, "n1", "a name");
    let refused = lock(&cluster, ["--try", "--node", "n2", "a name", "--", "true"]).said().refusal_with(125);
    let named = refused.starts_with("plexus: lock \"a name\": n2: held by another client");
    assert!(
        named && refused.contains("(held by session ") && refused.contains(" of n1 in mode EX)"),
        "{refused}"
    );
    let late =
        lock(&cluster, ["--wait", "0.05", "--mode", "cr", "a name", "--", "true"]).said().refusal_with(125);
    assert!(late.contains("not granted in time"), "{late}");
    let mut waits = lock(&cluster, ["--node", "n2", "--mode", "PR", "a name", "--", "true"]);
    let mut waits = waits.0.spawn().unwrap();
    wait_until(&cluster, "it waits", wait(1));
    let mut shown = locks(&cluster);
    let resource = shown["resources"][0].take();
    let granting = json!([{ "name": "n1", "state": "granting" }, { "name": "n2", "state": "granting" }]);
    assert_eq!(shown, json!({ "nodes": granting, "resources": [null], "more": 0 }));
    // What is not known beforehand is taken from what is shown, but must be a number.
    let [held, wanted] = [&resource["granted"][0], &resource["waiting"][0]];
    let number = |of: &Value, what: &str| of[what].as_u64().unwrap();
    for of in [held, wanted] {
        assert!(of["owner"].as_str().is_some_and(|owner| owner.starts_with("session ")), "{of}");
    }
    let (holder_owner, waiter_owner) = (&held["owner"], &wanted["owner"]);
    let granted = json!([{
        "node": "n1", "lock": number(held, "lock"), "owner": holder_owner, "mode": "EX", "token": number(held, "token"),
    }]);
    let waited = number(wanted, "waited_ms");
    let waiting = json!([{
        "node": "n2", "lock": number(wanted, "lock"), "owner": waiter_owner, "mode": "PR", "waited_ms": waited,
        "converts": false,
    }]);
    let master = resource["master"].as_str().unwrap();
    assert!(["n1", "n2"].contains(&master), "{resource}");
    let expected = json!({
        "name": "a name", "master": master, "value": "unwritten", "granted": granted, "waiting": waiting,
    });
    assert_eq!(resource, expected);
    let (picture, text) = (cluster.parent().join("waits.svg"), cluster.parent().join("waits.dot"));
    for path in [&picture, &text] {
        cluster.run("locks").args(["--graph", path.to_str().unwrap()]).said().ok();
    }
    let drawn = [picture, text].map(|path| fs::read_to_string(path).unwrap());
    assert!(
        drawn.iter().all(|drawn| drawn.contains("a name PR") && drawn.contains("has a name EX")),
        "{drawn:?}"
    );
    assert!(drawn[1].contains("v0 -> v1"), "{drawn:?}");
    let other = cluster.run("locks").args(["--graph", "waits.txt"]).said().refusal();
    assert!(other.contains(".svg or .dot"), "{other}");
    let table = cluster.run("locks").said().ok();
    assert!(table.contains("holds") && table.contains("waits"), "{table}");
    // Its end, in whatever way, is that of the lock.
    signal(holder.command, Signal::KILL);
    assert_eq!(holder.plexus.wait().unwrap().code(), Some(128 + 9));
    assert!(waits.wait().unwrap().success());
    wait_until(&cluster, "all is given up", none);
    assert!(cluster.run("locks").said().ok().contains("no locks are held"));
}

#[test]
fn a_lock_is_held_while_the_command_runs_and_interrupted_requests_are_cancelled() {
    let cluster = Cluster::up(2);
    let mut holder = Holder::new(&cluster, "n1", "held");
    let held = locks(&cluster)["resources"][0]["granted"].take();
    assert_eq!(held.as_array().map(Vec::len), Some(1), "{held}");
    holder.plexus.kill().unwrap();
    holder.plexus.wait().unwrap();
    let mut waits = lock(&cluster, ["--node", "n2", "held", "--", "true"]);
    let mut waits = waits.0.spawn().unwrap();
    wait_until(&cluster, "it waits", wait(1));
    waits.kill().unwrap();
    waits.wait().unwrap();
    wait_until(&cluster, "it no longer waits", wait(0));
    // The node has seen that the one is gone; of the other it has had more time to see it.
    assert_eq!(locks(&cluster)["resources"][0]["granted"], held, "the command runs");
    signal(holder.command, Signal::KILL);
    wait_for_end(holder.command);
    wait_until(&cluster, "all is given up", none);
}

#[test]
fn ending_plexus_lock_ends_the_command_and_terminal_signals_are_left_to_it() {
    let cluster = Cluster::up(1);
    // It looks at signals whenever a pause ends.
    let command = "trap 'echo hup' HUP; trap 'echo term; exit 5' TERM; echo $$; while :; do sleep 0.01; done";
    let mut holder = Holder::of(lock(&cluster, ["a", "--", "sh", "-c", command]));
    holder.tell(Signal::INT);
    holder.tell(Signal::QUIT);
    // Who runs the tests under nohup has them ignore it, and all that they start.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    if u64::from_str_radix(ignored, 16).unwrap() & 1 == 0 {
        holder.tell(Signal::HUP);
        assert_eq!(holder.next_line(), "hup");
    }
    holder.tell(Signal::TERM);
    assert_eq!(holder.next_line(), "term");
    assert_eq!(holder.plexus.wait().unwrap().code(), Some(5));
    // Under nohup the command gets no signal.
    let words = [program().to_str().unwrap(), "lock", "a", "--", "sh", "-c", command];
    let mut nohup = std::process::Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).args(words).env("PLEXUS_DIR", cluster.dir());
    let mut holder = Holder::of(Run(nohup));
    holder.tell(Signal::HUP);
    holder.tell(Signal::TERM);
    assert_eq!(holder.next_line(), "term");
    assert_eq!(holder.plexus.wait().unwrap().code(), Some(5));
    wait_until(&cluster, "all is given up", none);
}

#[test]
fn a_lock_that_is_lost_ends_its_command() {
    let cluster = Cluster::up(2);
    let holder = Holder::new(&cluster, "n1", "held");
    signal(cluster.pids()[0], Signal::KILL);
    let ended = holder.plexus.wait_with_output().unwrap();
    let why = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(125), "{why}");
    assert!(why.contains("lock held: lost"), "{why}");
    wait_for_end(holder.command);
    // The other nodes go on and grant the lock to the next request.
    lock(&cluster, ["--node", "n2", "held", "--", "true"]).said().ok();
    assert_eq!(locks(&cluster)["nodes"][0], json!({ "name": "n1", "state": "down" }));
    let shown = cluster.run("locks").said().ok();
    assert!(shown.contains("locks that n1 masters are not shown: it is down"), "{shown}");
}

/// A process that is suspended until this is dropped.
struct Still(i32);

impl Still {
    fn new(pid: i32) -> Self {
        signal(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

#[test]
fn nodes_that_do_not_answer_are_not_waited_for() {
    let cluster = Cluster::new(2);
    cluster.prevent_evictions();
    cluster.run("up").said().ok();
    let still = Still::new(cluster.pids()[1]);
    thread::scope(|scope| {
        let tried = |how: &'static [&str]| {
            let args = how.iter().copied().chain(["--node", "n2", "a", "--", "true"]);
            let run = lock(&cluster, args);
            scope.spawn(|| run.said().refusal_with(125))
        };
        let tried = [tried(&["--try"]), tried(&["--wait", "0.1"])];
        let shown = cluster.run("locks").said().ok();
        assert!(shown.contains("locks that n2 masters are not shown: n2 does not answer"), "{shown}");
        for refused in tried.map(|tried| tried.join().unwrap()) {
            assert!(refused.contains("n2 does not answer to `status`"), "{refused}");
        }
    });
    drop(still);
}

#[test]
fn invalid_locks_and_commands_are_reported() {
    let cluster = Cluster::up(1);
    let long = "a".repeat(10_000);
    for (args, code, says) in [
        (vec!["--mode", "XX", "a", "--", "true"], 125, "is no mode"),
        (vec![long.as_str(), "--", "true"], 125, "1 to 255 bytes"),
        (vec!["", "--", "true"], 125, "1 to 255 bytes"),
        (vec!["--node", "n9", "a", "--", "true"], 125, "n9"),
        (vec!["a", "--", "/"], 126, "permission denied"),
        (vec!["a", "--", "/there/is/no/such/program"], 127, "no such"),
    ] {
        let refusal = lock(&cluster, args).said().refusal_with(code).to_lowercase();
        assert!(refusal.contains(says), "{refusal}");
    }
    for (args, says) in
        [(vec!["a"], "COMMAND"), (vec!["--wait", "0", "a", "--", "true"], "use --try not to wait")]
    {
        let usage = lock(&cluster, args).said();
        assert!(usage.code == Some(125) && usage.err.contains(says), "{:?}: {}", usage.code, usage.err);
    }
    let help = lock(&cluster, ["--help"]).said().ok();
    assert!(["125", "126", "127"].iter().all(|code| help.contains(code)), "{help}");
    wait_until(&cluster, "all is given up", none);
    cluster.run("down").said().ok();
    let down = lock(&cluster, ["a", "--", "true"]).said().refusal_with(125);
    assert!(down.contains("n1 is not running; start it with"), "{down}");
    assert!(down.contains("(it ended at 20") && down.contains("it was told to end"), "{down}");
}
