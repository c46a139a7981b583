//! Groups of a cluster of real nodes, used through commands as scripts do.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use crate::common::{Cluster, Reading, Run, run, signal, wait_for_end};
use rustix::process::Signal;
use serde_json::Value;

/// `plexus group --node NODE ARGS` at this cluster.
fn group<'a>(cluster: &Cluster, node: &'a str, args: impl IntoIterator<Item = &'a str>) -> Run {
    run(["group", "--json", "--node", node]).args(args).env("PLEXUS_DIR", cluster.dir().to_str().unwrap())
}

/// A command that is a member of a group while it runs.
struct Member(Reading);

impl Member {
    fn new<'a>(cluster: &Cluster, node: &'a str, args: impl IntoIterator<Item = &'a str>) -> Self {
        Self(group(cluster, node, args).start())
    }

    /// Reads until the group has this many members and returns them.
    fn until(&mut self, members: usize) -> Vec<Value> {
        loop {
            if let Some(view) = self.0.next()["view"]["members"].as_array().filter(|all| all.len() == members)
            {
                return view.clone();
            }
        }
    }

    /// Returns the next message.
    fn message(&mut self) -> Value {
        loop {
            if let Some(message) = self.0.next().get("message") {
                return message.clone();
            }
        }
    }

    /// Returns the exit code and the last error line.
    fn ended(mut self) -> (bool, String) {
        let mut why = String::new();
        for line in BufReader::new(self.0.plexus.stderr.take().unwrap()).lines() {
            why = line.unwrap();
        }
        (self.0.plexus.wait().unwrap().success(), why)
    }
}

#[test]
fn members_on_all_nodes_see_the_same_messages_in_one_order() {
    let cluster = Cluster::up(3);
    let mut watches = ["n1", "n2"].map(|node| Member::new(&cluster, node, ["watch", "chat"]));
    watches.iter_mut().for_each(|watch| drop(watch.until(2)));
    std::thread::scope(|scope| {
        for (node, words) in [("n1", ["a", "b", "c"]), ("n3", ["d", "e", "f"])] {
            let cluster = &cluster;
            scope.spawn(move || {
                words.iter().for_each(|word| drop(group(cluster, node, ["send", "chat", *word]).said().ok()));
            });
        }
    });
    let [one, other] = watches.each_mut().map(|watch| (0..6).map(|_| watch.message()).collect::<Vec<_>>());
    assert_eq!(one, other);
    let of = |node: &str| {
        let texts = one.iter().filter(|message| message["from"].as_str().unwrap().starts_with(node));
        texts.map(|message| message["value"]["text"].as_str().unwrap()).collect::<String>()
    };
    assert_eq!((of("n1/"), of("n3/")), ("abc".into(), "def".into()));
    // The members of a node go with it.
    let [mut stays, goes] = watches;
    signal(cluster.pids()[1], Signal::KILL);
    assert!(stays.until(1)[0].as_str().unwrap().starts_with("n1/"));
    assert!(!goes.ended().0);
}

#[test]
fn a_watch_prints_the_members_of_the_group() {
    let cluster = Cluster::up(1);
    let mut watch = run(["group", "watch", "chat"]).env("PLEXUS_DIR", cluster.dir().to_str().unwrap()).0;
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watch.stdout.take().unwrap()).read_line(&mut line).unwrap();
    signal(watch.id() as i32, Signal::KILL);
    watch.wait().unwrap();
    assert!(line.starts_with("members: n1/"), "{line}");
}

#[test]
fn a_member_without_a_reader_leaves_even_if_no_message_is_sent() {
    let cluster = Cluster::up(2);
    let mut member = group(&cluster, "n1", ["watch", "g"]).0.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(member.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("n1/"), "{first}");
    wait_for_end(member.id() as i32);
    assert!(member.wait().unwrap().success());
    assert!(Member::new(&cluster, "n2", ["watch", "g"]).until(1)[0].as_str().unwrap().starts_with("n2/"));
}

#[test]
fn a_barrier_is_passed_when_all_have_come() {
    let cluster = Cluster::up(2);
    let waits = |node| Member::new(&cluster, node, ["barrier", "b", "--members", "3"]);
    let mut all = vec![waits("n1"), waits("n2")];
    all.iter_mut().for_each(|member| drop(member.until(2)));
    let other = group(&cluster, "n1", ["barrier", "b", "--members", "2"]).said().refusal();
    assert!(other.ends_with("at this barrier require 3 members; use the same number"), "{other}");
    all.push(waits("n2"));
    for member in all {
        assert_eq!(member.ended(), (true, String::new()));
    }
    // One that does not come, and one that ends.
    let late = group(&cluster, "n1", ["barrier", "b", "--members", "2", "--wait", "0.05"]).said().refusal();
    assert!(late.ends_with("waited in vain: 1 of 2 have come"), "{late}");
    let mut stays = Member::new(&cluster, "n1", ["barrier", "c", "--members", "3"]);
    let mut ends = Member::new(&cluster, "n2", ["barrier", "c", "--members", "3"]);
    stays.until(2);
    ends.until(2);
    signal(ends.0.plexus.id() as i32, Signal::KILL);
    wait_for_end(ends.0.plexus.id() as i32);
    assert_eq!(stays.until(1).len(), 1);
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let cluster = Cluster::up(1);
    let long = "x".repeat(10_000);
    for (args, why) in [
        (vec!["send", &long, "text"], "has 1 to 64 bytes; this one has 10000"),
        (vec!["send", "", "text"], "has 1 to 64 bytes; this one has 0"),
        (vec!["send", "plexus newcomers", "text"], "no group has a name that begins with \"plexus \""),
        (vec!["watch", "barrier:b"], "no group has a name that begins with \"barrier:\""),
        (vec!["barrier", &long, "--members", "2"], "has 1 to 56 bytes; this one has 10000"),
    ] {
        let refusal = group(&cluster, "n1", args).said().refusal();
        assert!(refusal.contains(why), "{refusal}");
    }
    let text = "x".repeat(20_000);
    let refusal = group(&cluster, "n1", ["send", "g", &text]).said().refusal();
    assert!(refusal.contains("16384"), "{refusal}");
    let refusal = group(&cluster, "n9", ["watch", "g"]).said().refusal();
    assert!(refusal.contains("n9"), "{refusal}");
}
