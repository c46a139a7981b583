//! Voting files are added and removed while the cluster runs.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::{Cluster, Run, run, signal, temporary, until};
use plexus_admin::TemporaryCluster;
use rustix::process::Signal;
use serde_json::{Value, json};

/// Bytes of a voting file, and some more.
const ROOM: u64 = 1 << 20;

/// `plexus vote ARGS` at this cluster.
fn vote<'a>(cluster: &Cluster, args: impl IntoIterator<Item = &'a str>) -> Run {
    run(["vote"]).args(args).env("PLEXUS_DIR", cluster.dir().to_str().unwrap())
}

/// The voting files, as a node sees them.
fn files(status: &Value, node: usize) -> &[Value] {
    status["nodes"][node]["membership"]["files"].as_array().map_or(&[], Vec::as_slice)
}

/// Waits until this many nodes have turns at this many voting files.
fn until_all_vote(cluster: &Cluster, nodes: usize, count: usize) {
    cluster.wait_until("all voting files answer", |status| {
        (0..nodes).all(|node| {
            let answers = |file: &&Value| file["votes"] == true && file["answered_ms"].is_u64();
            files(status, node).iter().filter(answers).count() == count
        })
    });
}

#[test]
fn a_file_is_added_and_removed_whatever_its_name_and_who_may_read_the_configuration_stays() {
    let cluster = Cluster::new(2);
    let config = cluster.dir().join("cluster.toml");
    fs::set_permissions(&config, Permissions::from_mode(0o640)).unwrap();
    cluster.run("up").said().ok();
    let path = cluster.parent().join("o\u{301} \"votes\" \\ \u{7f}");
    let added = vote(&cluster, ["--json", "add", path.to_str().unwrap()]).said().json();
    assert_eq!(added["path"], path.to_str().unwrap());
    until_all_vote(&cluster, 2, 4);
    assert_eq!(fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o640);
    cluster.run("down").said().ok();
    cluster.run("up").said().ok();
    until_all_vote(&cluster, 2, 4);
    vote(&cluster, ["remove", added["id"].as_str().unwrap()]).said().ok();
    until_all_vote(&cluster, 2, 3);
    assert!(!fs::read_to_string(&config).unwrap().contains(added["id"].as_str().unwrap()));
    assert!(path.exists(), "the file itself stays");
}

#[test]
fn a_seventeenth_file_is_refused_before_any_node_votes_there() {
    let cluster = Cluster::new(1);
    cluster.prevent_evictions();
    cluster.run("up").said().ok();
    let add = |number: usize| {
        let path = cluster.parent().join(format!("votes{number}"));
        (vote(&cluster, ["add", path.to_str().unwrap()]).said(), path)
    };
    for number in 4..=16 {
        add(number).0.ok();
    }
    let (said, path) = add(17);
    let refused = said.refusal();
    assert!(refused.contains("17 voting files; a cluster has 1 to 16"), "{refused}");
    assert!(!path.exists(), "no node was asked to vote there");
}

/// The identifiers of the files that vote, as `plexus status` shows them.
fn voting(cluster: &Cluster) -> Vec<String> {
    let status = cluster.run("status").args(["--json"]).said().json();
    let voting = files(&status, 0).iter().filter(|file| file["votes"] == true);
    voting.map(|file| file["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_file_that_votes_and_is_not_listed_is_removed_or_listed_by_the_same_command_again() {
    let cluster = Cluster::up(2);
    let config = cluster.dir().join("cluster.toml");
    let text = || fs::read_to_string(&config).unwrap();
    let before = text();
    let path = cluster.parent().join("votes");
    let path = path.to_str().unwrap();
    // What an interrupted creation leaves is replaced.
    fs::write(cluster.parent().join("votes.new"), "half").unwrap();
    let add = || vote(&cluster, ["--json", "add", path]).said().json()["id"].as_str().unwrap().to_owned();
    let id = add();
    let listed = text();

    // The file votes, and the table is not there, as with a program that wrote it last.
    fs::write(&config, &before).unwrap();
    vote(&cluster, ["remove", &id]).said().ok();
    assert!(!voting(&cluster).contains(&id) && text() == before);
    // The table is there, and the file does not vote.
    fs::write(&config, &listed).unwrap();
    vote(&cluster, ["remove", path]).said().ok();
    assert_eq!(text().trim_end(), before.trim_end());
    let refused = vote(&cluster, ["remove", "00000000000000ff"]).said().refusal();
    assert!(refused.contains("is not a voting file of c1"), "{refused}");

    // The file is there, and is neither listed nor votes; then it votes and is not listed.
    assert_eq!(add(), id);
    fs::write(&config, &before).unwrap();
    cluster.run("down").said().ok();
    cluster.run("up").said().ok();
    cluster.wait_until("the nodes miss it", |status| {
        let misses = |file: &Value| file["error"].as_str().is_some_and(|why| why.contains("no path for it"));
        files(status, 0).iter().any(misses)
    });
    for _ in 0..2 {
        assert_eq!(add(), id);
        assert_eq!(text().matches(&id).count(), 1, "{}", text());
    }
    until_all_vote(&cluster, 2, 4);

    let copy = cluster.parent().join("copy");
    fs::copy(path, &copy).unwrap();
    let refused = vote(&cluster, ["add", copy.to_str().unwrap()]).said().refusal();
    assert!(refused.contains("is a copy of the voting file") && copy.exists(), "{refused}");
    let refused = vote(&cluster, ["add", path, "--node", "n2"]).said().refusal();
    assert!(refused.contains("every node opens it; remove it first"), "{refused}");
    cluster.run("down").said().ok();
    cluster.run("up").said().ok();
    until_all_vote(&cluster, 2, 4);
}

/// A block device that holds zeros; `None` where none can be made.
struct Device(PathBuf);

impl Device {
    fn new(at: &Path) -> Option<Self> {
        fs::File::create(at).unwrap().set_len(ROOM).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(at).output().ok()?;
        let path = String::from_utf8(made.stdout).unwrap();
        made.status.success().then(|| Self(path.trim().into()))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_file_that_not_all_nodes_can_open_is_taken_back() {
    let cluster = Cluster::new(2);
    cluster.prevent_evictions();
    cluster.run("up").said().ok();
    let device = Device::new(&cluster.parent().join("device"));
    let file = cluster.parent().join("votes");
    let stopped = cluster.pids()[1];
    signal(stopped, Signal::STOP);
    for path in device.iter().map(|device| &device.0).chain([&file]) {
        let refused = vote(&cluster, ["add", path.to_str().unwrap()]).said().refusal();
        assert!(refused.contains("n2 does not answer"), "{refused}");
    }
    signal(stopped, Signal::CONT);
    assert!(!file.exists());
    match device {
        None => eprintln!("skipped in part: no loop device can be made here"),
        Some(device) => {
            assert!(fs::metadata(&device.0).unwrap().file_type().is_block_device());
            let bytes = fs::read(&device.0).unwrap();
            assert!(bytes.len() as u64 == ROOM && bytes.iter().all(|byte| *byte == 0));
        }
    }
    until_all_vote(&cluster, 2, 3);
}

#[test]
fn a_file_for_a_node_of_another_machine_is_not_made_here() {
    let cluster = Cluster::new(2);
    let path = cluster.parent().join("votes");
    let refused = vote(&cluster, ["add", path.to_str().unwrap(), "--node", "n2"])
        .env("PLEXUS_HOST", "elsewhere")
        .said();
    let refused = refused.refusal();
    assert!(refused.contains("n2 belongs on") && !path.exists(), "{refused}");
}

#[test]
fn nodes_of_other_machines_open_a_shared_file_too_or_it_does_not_vote() {
    let directory = tempfile::tempdir().unwrap();
    let mut parameters = temporary(&["host0", "host1", "host2"], directory.path());
    let times = &mut parameters.config.membership;
    (times.lease_ms, times.evict_ms) = (Some(100_000), Some(100_000));
    let cluster = TemporaryCluster::start(&parameters, &mut |_, _| ()).unwrap();
    let dir = cluster.config().dir.root().to_str().unwrap();
    let status = || run(["status", "-C", dir, "--json"]).said().json();
    let all = |status: &Value, is: &dyn Fn(usize) -> bool| status["nodes"].is_array() && (0..3).all(is);
    let all_are_in = json!(["n1", "n2", "n3"]);
    until("all are members", status, |status| {
        all(status, &|node| status["nodes"][node]["members"] == all_are_in)
    });
    let add = |path: &Path| {
        let add = run(["vote", "add", path.to_str().unwrap()]);
        add.env("PLEXUS_DIR", dir).env("PLEXUS_HOST", "host0").said()
    };

    let path = directory.path().join("votes");
    add(&path).ok();
    until("it answers to all nodes", status, |status| {
        let is_it = |file: &Value| file["path"] == path.to_str().unwrap() && file["answered_ms"].is_u64();
        all(status, &|node| files(status, node).iter().any(is_it))
    });

    let stopped = cluster.pid(2) as i32;
    signal(stopped, Signal::STOP);
    let path = directory.path().join("more");
    let refused = add(&path).refusal();
    signal(stopped, Signal::CONT);
    assert!(refused.contains("n3 does not say that it can open it") && !refused.contains("n2"), "{refused}");
    assert!(!path.exists());
}
