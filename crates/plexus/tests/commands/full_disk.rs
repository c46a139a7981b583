//! A cluster whose disk is full: its nodes go on, every command says what was done, and all is well
//! again when there is space.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::{Cluster, CommandOutput, program, run, runs, signal, until, wait_for_end};
use plexus_namespaces::on_small_disk;
use rustix::process::Signal;
use serde_json::{Value, json};

/// The commands of the guide under "When a disk is full".
fn guide() -> Vec<String> {
    let guide =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide.md")).unwrap();
    let chapter = guide.split("## When a disk is full").nth(1).unwrap().split("\n## ").next().unwrap();
    chapter.lines().filter_map(|line| line.strip_prefix("    ")).map(str::to_owned).collect()
}

/// Runs a line of the guide.
fn shell(cluster: &Cluster, line: &str) -> CommandOutput {
    let path = format!("{}:{}", program().parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(line).current_dir(cluster.parent());
    CommandOutput::of(shell.env("PATH", path).env("PLEXUS_DIR", "c1").output().unwrap())
}

fn registry<'a>(cluster: &Cluster, args: impl IntoIterator<Item = &'a str>) -> CommandOutput {
    run(["registry"]).args(args).env("PLEXUS_DIR", cluster.dir().to_str().unwrap()).said()
}

/// Runs a test with a cluster of three nodes that run, all of whose files are on a disk of its own.
fn on_disk(test: impl FnOnce(&Cluster) + Send) {
    let place = tempfile::tempdir().unwrap();
    let ran = on_small_disk(place.path(), 136, || {
        let cluster = Cluster::within(place.path(), 3);
        cluster.run("up").said().ok();
        test(&cluster);
    });
    if let Err(why) = ran {
        eprintln!("skipped: {why}");
    }
}

/// Fills the disk with a file, to be removed later, and the last block of each log.
fn fill(cluster: &Cluster) -> PathBuf {
    let path = cluster.parent().join("fill");
    let logs = ["n1", "n2", "n3"].map(|node| cluster.dir().join(format!("log/{node}.log")));
    for path in [&path].into_iter().chain(&logs) {
        let mut file = File::options().append(true).create(true).open(path).unwrap();
        let full = (0..).find_map(|_| file.write_all(&[b'\n'; 4096]).err()).unwrap();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
    }
    path
}

/// Changes the registry until that is refused; the last change that was made may be of any length.
fn use_reserve(cluster: &Cluster) -> String {
    let value = "x".repeat(60_000);
    let refused = (0..100).map(|number| registry(cluster, ["set", &format!("fill/{number}"), &value]));
    refused.into_iter().find(|said| said.code != Some(0)).expect("a refusal").refusal()
}

/// Writes nothing more to this file: a directory stands in the place of its next contents.
fn obstruct(path: &Path) -> PathBuf {
    let next = plexus_base::durable::beside(path);
    // The node may write such a file again.
    while fs::create_dir(&next).is_err() {
        let _ = fs::remove_file(&next);
    }
    fs::create_dir(next.join("obstacle")).unwrap();
    next
}

#[test]
fn on_a_full_disk_the_registry_is_read_and_each_refused_change_is_not_made_as_the_guide_says() {
    on_disk(|cluster| {
        let guide = guide();
        let [see, change, read, again] = &guide[..] else { panic!("{guide:?}") };
        registry(cluster, ["set", "jobs/backup/hour", "3"]).ok();
        let full = fill(cluster);
        let refused = use_reserve(cluster);
        assert!(refused.contains("was not made: the disk of n1 is full; make room there"), "{refused}");
        let keys = registry(cluster, ["--json", "list", "fill/"]).json().as_array().unwrap().len();
        let seen = shell(cluster, see).ok();
        let (state, log) = (cluster.dir().join("state"), cluster.dir().join("log"));
        for node in ["n1", "n2", "n3"] {
            let line = format!("{node}: disk full: {}, {}\n", state.display(), log.display());
            assert!(seen.contains(&line), "{seen}");
        }
        assert!(seen.contains("the registry refuses changes"), "{seen}");
        assert!(shell(cluster, change).refusal().contains("was not made"));
        for node in ["n1", "n2", "n3"] {
            let said = registry(cluster, ["--node", node, "set", "jobs/backup/hour", "5"]).refusal();
            assert!(said.contains("was not made"), "{said}");
        }
        assert_eq!(shell(cluster, read).ok(), "3\n");
        fs::remove_file(full).unwrap();
        let is_well = |node: &Value| node["registry"]["trouble"] == json!([]);
        let status = || registry(cluster, ["--json", "status"]).json();
        until("there is space", status, |all| all.as_array().unwrap().iter().all(is_well));
        // Nothing that was refused is made now.
        assert_eq!(shell(cluster, read).ok(), "3\n");
        assert_eq!(registry(cluster, ["--json", "list", "fill/"]).json().as_array().unwrap().len(), keys);
        // The coordinator learns of the space a moment after the node.
        until("it takes changes", || shell(cluster, again).code.into(), |code| *code == 0);
        assert_eq!(shell(cluster, read).ok(), "4\n");
        assert!(!shell(cluster, see).ok().contains("disk full"));
        cluster.run("down").said().ok();
    });
}

#[test]
fn on_a_full_disk_nodes_die_start_and_end_as_ever() {
    on_disk(|cluster| {
        let full = fill(cluster);
        use_reserve(cluster);
        let pids = cluster.pids();
        signal(pids[1], Signal::KILL);
        wait_for_end(pids[1]);
        cluster.wait_until("the others go on", |status| status["nodes"][0]["members"] == json!(["n1", "n3"]));
        assert!(runs(pids[0]) && runs(pids[2]));
        cluster.run("up").said().ok();
        cluster.wait_until("n2 is back", |status| status["nodes"][0]["members"] == json!(["n1", "n2", "n3"]));
        for _ in 0..2 {
            let down = cluster.run("down").args(["--json"]).said().json();
            assert!(down["clean"] == true && down["left"] == json!([]), "{down}");
            let up = cluster.run("up").args(["--json"]).said().json();
            assert_eq!(up["started"].as_array().unwrap().len(), 3, "{up}");
        }
        assert!(registry(cluster, ["set", "a", "1"]).refusal().contains("was not made"));
        fs::remove_file(full).unwrap();
        until("it takes changes", || registry(cluster, ["set", "a", "1"]).code.into(), |code| *code == 0);
    });
}

#[test]
fn a_voting_file_that_a_full_disk_keeps_out_of_the_configuration_does_not_vote() {
    let other = tempfile::tempdir().unwrap();
    on_disk(|cluster| {
        let path = other.path().join("votes");
        let vote = |does: &str| {
            let vote = run(["vote", "--json", does, path.to_str().unwrap()]);
            vote.env("PLEXUS_DIR", cluster.dir().to_str().unwrap()).said()
        };
        let full = fill(cluster);
        let refused = vote("add").refusal();
        assert!(refused.contains("cluster.toml") && refused.contains("No space left"), "{refused}");
        let count = |status: &Value| status["nodes"][0]["membership"]["quorum"]["files"].clone();
        assert!(!path.exists() && count(&cluster.run("status").args(["--json"]).said().json()) == 3);
        fs::remove_file(full).unwrap();
        let id = vote("add").json()["id"].clone();
        // Without space the removal is done in part, and the same command completes it.
        let full = fill(cluster);
        let refused = vote("remove").refusal();
        assert!(
            refused.contains("no longer votes") && refused.contains("run this command again"),
            "{refused}"
        );
        fs::remove_file(full).unwrap();
        assert_eq!(vote("remove").json()["id"], id);
        assert_eq!(count(&cluster.run("status").args(["--json"]).said().json()), 3);
    });
}

#[test]
fn after_a_crash_on_a_full_disk_nodes_start_with_the_streams_that_they_had() {
    on_disk(|cluster| {
        let bench = || {
            let mut bench = run(["bench", "blocks", "--hot", "48", "--seconds", "0.2"]);
            bench.0.arg("-C").arg(cluster.dir());
            bench.said()
        };
        bench().ok();
        let full = fill(cluster);
        let pids = cluster.pids();
        pids.iter().for_each(|pid| signal(*pid, Signal::KILL));
        pids.iter().for_each(|pid| wait_for_end(*pid));
        cluster.run("up").said().ok();
        bench().ok();
        assert_eq!(fs::read_dir(cluster.dir().join("disks/redo")).unwrap().count(), 3);
        fs::remove_file(full).unwrap();
        cluster.run("down").said().ok();
    });
}

#[test]
fn a_node_that_cannot_record_its_end_says_so_at_once_and_down_can_be_repeated() {
    let cluster = Cluster::up(1);
    let record = cluster.dir().join("state/n1.json");
    let obstacle = obstruct(&record);
    let refused = cluster.run("down").said().refusal();
    assert!(
        refused.contains("n1 handed everything back but did not end")
            && refused.contains(record.to_str().unwrap())
            && refused.contains("run `plexus down` again"),
        "{refused}"
    );
    let refused = cluster.run("up").said().refusal();
    assert!(refused.contains("n1 has handed back") && refused.contains("then `plexus up`"), "{refused}");
    fs::remove_dir_all(obstacle).unwrap();
    cluster.run("down").said().ok();
    cluster.run("up").said().ok();
}

#[test]
fn a_change_that_may_be_made_later_is_reported_with_an_unknown_outcome() {
    let cluster = Cluster::up(2);
    registry(&cluster, ["set", "a", "1"]).ok();
    let copies = ["1", "2"].map(|copy| cluster.dir().join(format!("state/n2.registry.{copy}")));
    let obstacles = copies.map(|copy| obstruct(&copy));
    let unknown = registry(&cluster, ["--node", "n1", "set", "a", "2"]).refusal();
    assert!(unknown.contains("outcome unknown") && unknown.contains("on n2 cannot be written"), "{unknown}");
    let refused = registry(&cluster, ["--node", "n1", "set", "a", "3"]).refusal();
    assert!(refused.contains("the change was not made, because"), "{refused}");
    let refused = registry(&cluster, ["--node", "n1", "get", "a"]).refusal();
    assert!(refused.contains("no answer, because") && refused.contains("on n2"), "{refused}");
    let status = registry(&cluster, ["--json", "status"]).json();
    assert_eq!(status[0]["registry"]["awaited"], json!(["n2"]), "{status}");
    obstacles.iter().for_each(|obstacle| fs::remove_dir_all(obstacle).unwrap());
    let value = || {
        let got = registry(&cluster, ["--json", "get", "a"]);
        if got.code == Some(0) { got.json()["value"]["text"].clone() } else { Value::Null }
    };
    until("the change is made", value, |value| value == "2");
}
