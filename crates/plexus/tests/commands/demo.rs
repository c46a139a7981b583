//! The demonstration as a user sees it: its result, and that nothing is left behind however it
//! ends.

use std::{
    fs,
    io::Read,
    path::PathBuf,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;

/// An environment variable that marks all processes of a demonstration, since children inherit it.
const MARK: &str = "PLEXUS_TEST_DEMO";

/// Long enough for a machine that is busy with other things.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A demonstration in a temporary directory of its own.
struct Demo {
    directory: tempfile::TempDir,
    mark: String,
}

impl Demo {
    fn new(name: &str) -> Self {
        let mark = format!("{MARK}={name}-{}", std::process::id());
        Self { directory: tempfile::tempdir().unwrap(), mark }
    }

    fn temporary(&self) -> PathBuf {
        let path = self.directory.path().join("tmp");
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn command(&self, seconds: &str) -> crate::common::Run {
        let out = self.directory.path().join("out").display().to_string();
        let run = crate::common::run(["demo", "--json", "--seconds-per-run", seconds, "--out", &out]);
        let (name, value) = self.mark.split_once('=').unwrap();
        run.env(name, value).env("TMPDIR", &self.temporary().display().to_string())
    }

    /// Starts the demonstration, waits until clients run, and returns its process and those of the
    /// nodes.
    fn in_the_middle(&self) -> (Child, Vec<i32>) {
        let child = self.command("600").0.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begin = Instant::now();
        let mut nodes = Vec::new();
        while nodes.len() < 2 {
            assert!(begin.elapsed() < TIMEOUT, "no workload runs");
            std::thread::sleep(Duration::from_millis(10));
            nodes = self.processes().into_iter().filter(|pid| works(*pid)).collect();
        }
        (child, nodes)
    }

    /// Returns the running processes of the demonstration.
    fn processes(&self) -> Vec<i32> {
        let pids = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        let ours = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|line| line == self.mark.as_bytes())
                && crate::common::runs(*pid)
        };
        pids.filter(ours).collect()
    }

    /// Waits until no process or file is left; fails otherwise.
    fn assert_nothing_left(&self) {
        let begin = Instant::now();
        loop {
            let processes = self.processes();
            let files: Vec<_> =
                fs::read_dir(self.temporary()).unwrap().map(|entry| entry.unwrap().path()).collect();
            if processes.is_empty() && files.is_empty() {
                break;
            }
            assert!(begin.elapsed() < TIMEOUT, "left: processes {processes:?}, files {files:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let segments = fs::read_dir("/dev/shm")
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let segments: Vec<_> = segments.filter(|name| name.contains("plexus")).collect();
        assert!(segments.is_empty(), "left in /dev/shm: {segments:?}");
    }
}

/// Returns whether clients of the workload run in this process.
fn works(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.any(|name| name.starts_with("client-"))
}

/// Returns the exit code and the last line of a process that ends within seconds.
fn end_of(mut child: Child) -> (Option<i32>, String) {
    let begin = Instant::now();
    crate::common::wait_for_end(child.id() as i32);
    assert!(begin.elapsed() < Duration::from_secs(20), "the end took {:?}", begin.elapsed());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said.lines().last().unwrap_or_default().to_owned())
}

#[test]
fn it_shows_both_interconnects_kills_a_node_and_loses_nothing() {
    let demo = Demo::new("whole");
    let found = demo.command("0.1").said().json();
    demo.assert_nothing_left();
    let rails = |part: &Value| -> Vec<String> {
        part.as_array().unwrap().iter().map(|report| report["rail"].as_str().unwrap().to_owned()).collect()
    };
    let transfers = &found["transfers"];
    let of = |name: &str| transfers[name].as_f64().unwrap();
    assert!(of("acknowledged") > 100.0 && of("acknowledged") == of("found"), "{transfers}");
    assert_eq!(of("sum"), of("expected_sum"), "{transfers}");
    assert!(0.0 < of("first_ms") && of("first_ms") <= of("all_ms"), "{transfers}");
    assert!(of("per_s") > 0.0 && of("per_s_after") > 0.0 && of("p50_us") <= of("p99_us"), "{transfers}");
    let pair = rails(&found["pair"]);
    assert_eq!(pair[..2], ["shm", "tcp"]);
    assert!(pair.len() == 3 || found["no_1gbit"].is_string(), "{pair:?}");
    assert_eq!(rails(&found["cluster"]), ["shm", "tcp"]);
    for report in found["pair"].as_array().unwrap().iter().chain(found["cluster"].as_array().unwrap()) {
        for field in ["blocks_per_s", "cpu_us_per_block"] {
            assert!(report[field].as_f64().unwrap() > 0.0, "{field} of {report}");
        }
        let us = |name: &str| report["response_us"][name].as_f64().unwrap();
        assert!(0.0 < us("p50") && us("p50") <= us("p99") && us("p99") <= us("p999"), "{report}");
        assert_eq!(report["changes_acknowledged"], report["changes_found"]);
    }
    assert_eq!(found["perf"].as_array().unwrap().len(), 2 * pair.len());
    let is_idle = found["load_of_others"].as_f64().unwrap() <= 0.05;
    for ratio in ["ratio_blocks_per_s", "ratio_cpu_per_block"] {
        assert_eq!(found[ratio].is_f64(), is_idle, "{ratio}: {found}");
    }
    let (death, load) = (&found["death"], &found["death"]["load"]);
    assert_eq!((&death["victim"], &load["ended"][0]), (&"n3".into(), &"n3".into()), "{death}");
    let ms = |name: &str| death[name].as_f64().unwrap();
    assert!(0.0 < ms("view_ms") && ms("view_ms") < ms("all_ms"), "{death}");
    assert!(death["changes_made"].as_u64().unwrap() > 0, "{death}");
    assert_eq!(death["changes_made"], death["changes_found"], "{death}");
    assert!(load["changes_found"].as_u64() >= load["changes_acknowledged"].as_u64(), "{load}");
    assert!(found["changes_found"].as_u64().unwrap() > 0);
    assert_eq!(found["changes_acknowledged"], found["changes_found"]);
    let svg = fs::read_to_string(found["svg"].as_str().unwrap()).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("blocks/s") && svg.contains("microseconds"));
}

#[test]
fn an_interrupt_ends_it_with_one_line() {
    for signal in [Signal::INT, Signal::TERM] {
        let demo = Demo::new("interrupted");
        let (child, _) = demo.in_the_middle();
        crate::common::signal(child.id() as i32, signal);
        assert_eq!(
            end_of(child),
            (Some(1), "plexus: interrupted; the temporary cluster was removed".to_owned())
        );
        demo.assert_nothing_left();
    }
}

#[test]
fn a_killed_parent_leaves_nothing() {
    let demo = Demo::new("killed");
    let (mut child, nodes) = demo.in_the_middle();
    assert!(demo.processes().len() > nodes.len());
    child.kill().unwrap();
    child.wait().unwrap();
    demo.assert_nothing_left();
}

#[test]
fn a_killed_node_ends_it_with_one_line_that_names_it() {
    let demo = Demo::new("node");
    let (child, nodes) = demo.in_the_middle();
    crate::common::signal(nodes[0], Signal::KILL);
    let (code, line) = end_of(child);
    assert_eq!(code, Some(1), "{line}");
    let expected = ["n1", "n2"].map(|name| {
        format!("plexus: {name} was killed during the measurement; the temporary cluster was removed")
    });
    assert!(expected.contains(&line), "{line}");
    demo.assert_nothing_left();
}

#[test]
fn what_it_cannot_do_is_said_before_it_begins() {
    let refusal = crate::common::run(["demo", "--seconds-per-run", "0"]).said().refusal();
    assert!(refusal.contains("use 0.05 to 3600"), "{refusal}");
    let refusal = crate::common::run(["demo", "--out", "/proc/nowhere"]).said().refusal();
    assert!(refusal.contains("/proc/nowhere: the directory is not writable"), "{refusal}");
}
