//! The wall clock jumps by hours and days while nodes run and before they start; nothing may depend
//! on it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::{Cluster, run, signal};
use rustix::process::Signal;

const HOUR: i64 = 3600;

/// The wall clock that the nodes of a cluster see.
struct Clock {
    shim: PathBuf,
    step: PathBuf,
}

impl Clock {
    fn new(dir: &Path) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/commands/clock.c");
        let (shim, step) = (dir.join("clock.so"), dir.join("step"));
        let made =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&shim).arg(source).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Self { shim, step }
    }

    /// Sets the offset of the clock in seconds.
    fn set(&self, step: i64) {
        let new = self.step.with_extension("new");
        fs::write(&new, step.to_string()).unwrap();
        fs::rename(new, &self.step).unwrap();
    }

    /// Starts the nodes that do not run, with this clock.
    fn up(&self, cluster: &Cluster) {
        let up = cluster.run("up").env("LD_PRELOAD", self.shim.to_str().unwrap());
        up.env("STEP", self.step.to_str().unwrap()).said().ok();
    }
}

/// Takes a lock and returns its fencing token.
fn token(cluster: &Cluster) -> u64 {
    let args = ["lock", "a", "--", "sh", "-c", "echo $PLEXUS_LOCK_TOKEN"];
    run(args).env("PLEXUS_DIR", cluster.dir().to_str().unwrap()).said().ok().trim().parse().unwrap()
}

/// Sets a key and reads it.
fn write(cluster: &Cluster, value: &str) {
    let registry = |args: &[&str]| {
        run(["registry"])
            .args(args.iter().copied())
            .env("PLEXUS_DIR", cluster.dir().to_str().unwrap())
            .said()
            .ok()
    };
    registry(&["set", "key", value]);
    assert_eq!(registry(&["get", "key"]).trim(), value);
}

/// Returns the number of view changes.
fn changes(cluster: &Cluster) -> usize {
    let status = cluster.run("status").args(["--json"]).said().json();
    status["nodes"][0]["membership"]["transitions"].as_array().expect("changes of members").len()
}

#[test]
fn whatever_the_time_of_day_does_locks_keys_and_members_stay() {
    let cluster = Cluster::new(2);
    cluster.bear_busy_disks();
    let clock = Clock::new(cluster.parent());
    clock.set(0);
    clock.up(&cluster);
    let (before, pids) = (changes(&cluster), cluster.pids());
    let mut last = token(&cluster);
    for step in [5 * HOUR, -9 * HOUR, 24 * HOUR, -240 * HOUR] {
        clock.set(step);
        write(&cluster, &format!("at {step}"));
        let token = token(&cluster);
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    assert_eq!((changes(&cluster), cluster.pids()), (before, pids), "no node was evicted");
    // A start ten or twenty days before the last one on the clock is still a later incarnation.
    signal(cluster.pids()[1], Signal::KILL);
    clock.up(&cluster);
    let log = fs::read_to_string(cluster.dir().join("log/n2.log")).unwrap();
    let began: Vec<&str> = log.lines().filter(|line| line.contains("n2 serves")).collect();
    assert!(began.len() == 2 && began[1] < began[0], "the node has the time that it was given: {began:?}");
    cluster.run("down").said().ok();
    clock.set(-480 * HOUR);
    clock.up(&cluster);
    write(&cluster, "at last");
    assert!(token(&cluster) > last);
}

/// Its new number would be below the one that the voting files know, at each start.
#[test]
fn a_node_whose_clock_was_ahead_and_whose_state_was_lost_takes_a_number_above_the_one_it_had() {
    let cluster = Cluster::new(2);
    let clock = Clock::new(cluster.parent());
    clock.set(365 * 24 * HOUR);
    clock.up(&cluster);
    cluster.run("node").args(["stop", "n2"]).said().ok();
    let record = cluster.dir().join("state/n2.json");
    let incarnation = || {
        let text = fs::read_to_string(&record).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["incarnation"].as_u64().unwrap()
    };
    let before = incarnation();
    fs::remove_file(&record).unwrap();
    fs::remove_file(cluster.dir().join("run/n2.lock")).unwrap();
    clock.set(0);
    clock.up(&cluster);
    assert!(incarnation() > before);
    let log = fs::read_to_string(cluster.dir().join("log/n2.log")).unwrap();
    assert!(log.contains("the voting files know a later incarnation of this node"), "{log}");
}
