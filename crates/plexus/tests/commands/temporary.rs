//! Temporary files and processes are removed however their creator ends, and no others are.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::common::{program, runs, signal, temporary, wait_for_end};
use plexus_admin::{
    TemporaryCluster,
    janitor::{self, Janitor},
};
use rustix::process::Signal;

fn sleeper() -> Child {
    Command::new("sleep").arg("1000").spawn().unwrap()
}

#[test]
fn a_janitor_kills_and_removes_the_processes_and_files_named_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let (marked, empty, unmarked) =
        (directory.path().join("marked"), directory.path().join("empty"), directory.path().join("unmarked"));
    let mut janitor = Janitor::start(program()).unwrap();
    for dir in [&marked, &empty, &unmarked] {
        janitor.watch_dir(dir).unwrap();
        fs::create_dir(dir).unwrap();
    }
    janitor.watch_dir(&directory.path().join("never made")).unwrap();
    janitor::mark(&marked).unwrap();
    fs::create_dir(marked.join("inside")).unwrap();
    fs::write(marked.join("inside/file"), "x").unwrap();
    fs::write(unmarked.join("precious"), "x").unwrap();
    let mut child = sleeper();
    janitor.watch_pid(child.id()).unwrap();
    assert!(janitor.watch_pid(1).is_err(), "process 1 is not a child of the test");
    assert!(janitor.watch_dir(Path::new("relative")).is_err());

    assert!(janitor.finish().is_err(), "an unmarked directory is not removed");
    assert!(!child.wait().unwrap().success());
    assert!(!marked.exists() && !empty.exists() && unmarked.join("precious").exists());
}

#[test]
fn a_janitor_outlives_the_signals_of_a_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("made");
    let mut janitor =
        Command::new(program()).arg("janitor").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut answers = BufReader::new(janitor.stdout.take().unwrap()).lines();
    assert_eq!(answers.next().unwrap().unwrap(), "ok");
    for kind in [Signal::INT, Signal::TERM, Signal::HUP] {
        signal(janitor.id() as i32, kind);
    }
    use std::io::Write;
    let mut orders = janitor.stdin.take().unwrap();
    writeln!(orders, "dir {}", dir.display()).unwrap();
    writeln!(orders, "garbage").unwrap();
    assert_eq!(answers.next().unwrap().unwrap(), "ok");
    assert_eq!(answers.next().unwrap().unwrap(), "not an order: garbage");
    fs::create_dir(&dir).unwrap();
    janitor::mark(&dir).unwrap();
    drop(orders);
    assert!(janitor.wait().unwrap().success());
    assert!(!dir.exists());
}

#[test]
fn a_temporary_cluster_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let cluster =
        TemporaryCluster::start(&temporary(&["here"; 2], directory.path()), &mut |_, _| ()).unwrap();
    let pids = [0, 1].map(|node| cluster.pid(node) as i32);
    assert!(pids.into_iter().all(runs));
    let status = cluster.control(1).unwrap().call("status", serde_json::Value::Null, |_| {}).unwrap();
    assert_eq!((&status["name"], &status["state"]), (&"n2".into(), &"running".into()));
    let down = cluster.stop().unwrap();
    assert!(down.clean, "{:?}", down.why);
    assert!(!pids.into_iter().any(runs));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_temporary_cluster_that_does_not_start_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut wrong = temporary(&["here"; 2], directory.path());
    wrong.config.nodes[1].cores = vec![1000];
    let error = TemporaryCluster::start(&wrong, &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.starts_with("n2: cannot be pinned to the cores [1000]"), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// Tells the test below, of which this is a part, to be the process that gets killed.
const VICTIM: &str = "PLEXUS_TEST_VICTIM";

#[test]
fn a_temporary_cluster_is_gone_when_its_maker_is_killed() {
    if let Ok(directory) = std::env::var(VICTIM) {
        let cluster =
            TemporaryCluster::start(&temporary(&["here"; 2], Path::new(&directory)), &mut |_, _| ()).unwrap();
        println!("\nnodes {} {}", cluster.pid(0), cluster.pid(1));
        loop {
            std::thread::park();
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "temporary::a_temporary_cluster_is_gone_when_its_maker_is_killed", "--nocapture"])
        .env(VICTIM, directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let line = lines.by_ref().map(Result::unwrap).find(|line| line.starts_with("nodes ")).unwrap();
    let pids: Vec<i32> = line.split(' ').skip(1).map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.iter().copied().all(runs));
    let janitor = janitor_of(victim.id());
    victim.kill().unwrap();
    victim.wait().unwrap();
    pids.into_iter().for_each(wait_for_end);
    wait_for_end(janitor);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// The janitor among the children of a process.
fn janitor_of(parent: u32) -> i32 {
    let processes =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes
        .into_iter()
        .find(|pid: &i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words = stat.rsplit(") ").next().unwrap_or_default();
            words.split(' ').nth(1) == Some(&parent.to_string()) && line.contains("janitor")
        })
        .expect("a janitor")
}
