//! The configuration decides which nodes share a host. Nodes on different hosts share no memory and
//! watch no process of each other, although all of them run on this machine.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use crate::common::{run, temporary};
use plexus_admin::TemporaryCluster;
use serde_json::{Value, json};

/// The processes that one holds a pidfd of.
fn watched(pid: u32) -> BTreeSet<u32> {
    let watched = |text: String| text.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    let infos = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    infos.filter_map(|info| fs::read_to_string(info.unwrap().path()).ok().and_then(watched)).collect()
}

/// The memory files that a process has mapped, as device and inode.
fn mapped(pid: u32) -> BTreeSet<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let files = maps.lines().filter(|line| line.contains("/memfd:"));
    files.map(|line| line.split_whitespace().skip(3).take(2).collect::<Vec<_>>().join(" ")).collect()
}

/// Returns the rails that the nodes report, once this many are up.
fn joined(dir: &str, count: usize) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let rails = run(["rails", "-C", dir, "--json"]).said().json()["rails"].take();
        let rails = rails.as_array().unwrap().clone();
        let up = |rail: &&Value| rail["state"].as_str().is_some_and(|state| !state.starts_with("down"));
        if rails.iter().filter(up).count() == count {
            return rails;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "waiting for rails: {rails:?}");
    }
}

#[test]
fn nodes_of_different_hosts_share_no_memory_and_watch_no_process() {
    let directory = tempfile::tempdir().unwrap();
    let parameters = temporary(&["earth", "earth", "mars"], directory.path());
    let cluster = TemporaryCluster::start(&parameters, &mut |_, _| ()).unwrap();
    let dir = cluster.config().dir.root().to_str().unwrap().to_owned();
    // Blocks go from each node to each other.
    run(["bench", "blocks", "-C", &dir, "--seconds", "0.2", "--clients", "2"]).said().ok();

    for rail in joined(&dir, 3) {
        let kind = if rail["pair"] == json!(["n1", "n2"]) { "shm" } else { "tcp" };
        assert!(rail["rail"] == kind && rail["bytes_there"].as_u64() > Some(0), "{rail}");
    }
    let pids = [0, 1, 2].map(|node| cluster.pid(node));
    let (mapped, watched) = (pids.map(mapped), pids.map(watched));
    for (one, other, same_host) in [(0, 1, true), (0, 2, false), (1, 2, false)] {
        let pair = format!("n{} and n{}", one + 1, other + 1);
        assert_eq!(!mapped[one].is_disjoint(&mapped[other]), same_host, "{pair}: {mapped:?}");
        for (of, who) in [(one, other), (other, one)] {
            assert_eq!(watched[of].contains(&pids[who]), same_host, "{pair}: {watched:?} of {pids:?}");
        }
    }
    let down = cluster.stop().unwrap();
    assert!(down.clean, "{:?}", down.why);
}
