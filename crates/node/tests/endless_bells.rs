//! A program rings its workers' doorbells without end and sends nothing. Others are served
//! meanwhile, workers sleep when it stops, and nothing of it remains. The test has a process of its
//! own because it looks at the threads and descriptors of the process.

mod cluster;

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use cluster::{Cluster, program::attach};
use plexus_fabric::RailKind;

/// The variable that gives the other process the node to attach to.
const SOCKET: &str = "PLEXUS_TEST_SOCKET";

/// The interval between two looks at a thread that should not have run.
const LOOKS: usize = 100;

const LONG: Duration = Duration::from_secs(60);

/// Runs the program in the other process: rings until it is told to stop, reports that, and stays.
#[test]
fn ringing_process() {
    let Ok(socket) = env::var(SOCKET) else { return };
    let program = attach(Path::new(&socket));
    let stop = std::thread::spawn(|| std::io::stdin().read_exact(&mut [0]).unwrap());
    let mut said = false;
    while !stop.is_finished() {
        for rung in &program.rung {
            rustix::io::write(rung, &1u64.to_ne_bytes()).unwrap();
        }
        if !std::mem::replace(&mut said, true) {
            println!("\nrings");
        }
    }
    println!("\nstopped");
    let _ = std::io::stdin().read(&mut [0]);
}

struct Ringing {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Ringing {
    fn start(socket: &Path) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "ringing_process", "--nocapture"])
            .env(SOCKET, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    fn await_line(&mut self, wanted: &str) {
        let mut lines = self.out.by_ref().lines();
        assert!(lines.any(|line| line.unwrap() == wanted), "it ended before it said that it {wanted}");
    }

    fn stop(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(&[0]).unwrap();
        self.await_line("stopped");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns the threads of this process that drive workers.
fn workers() -> Vec<PathBuf> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let is_worker = |path: &PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.starts_with("worker-"))
    };
    threads.filter(is_worker).collect()
}

/// Returns the state of a thread and the number of times it has yielded its core.
fn standing(thread: &Path) -> (String, Vec<String>) {
    let status = std::fs::read_to_string(thread.join("status")).unwrap();
    let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    (line("State:"), vec![line("voluntary_ctxt_switches:"), line("nonvoluntary_ctxt_switches:")])
}

/// Waits until every worker is asleep in several looks without a run in between.
fn await_quiet() {
    let start = Instant::now();
    for thread in workers() {
        let (mut before, mut same) = (standing(&thread), 0);
        while same < LOOKS {
            assert!(start.elapsed() < LONG, "{} does not come to rest: {before:?}", thread.display());
            let now = standing(&thread);
            same = if now == before && now.0.contains("S (sleeping)") { same + 1 } else { 0 };
            before = now;
        }
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn endless_ringing_delays_no_other_program_and_leaves_nothing() {
    if env::var(SOCKET).is_ok() {
        return;
    }
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    cluster.assert_alive();
    let start = Instant::now();
    while workers().len() < 4 {
        assert!(start.elapsed() < LONG, "a worker has a thread, which has its name when it first runs");
        std::thread::yield_now();
    }
    let await_programs = |left: u64| {
        let start = Instant::now();
        while cluster.programs(0).attached + cluster.programs(1).attached > left {
            assert!(start.elapsed() < LONG, "programs that have ended are still there");
            std::thread::yield_now();
        }
        assert_eq!(cluster.programs(0).attached, left);
    };
    await_programs(0);
    let before = descriptors();
    for _ in 0..5 {
        let mut program = Ringing::start(&cluster.socket(0));
        program.await_line("rings");
        for _ in 0..5 {
            cluster.assert_alive();
        }
        program.stop();
        // Its last rings are still in the doorbells, and it is still attached.
        await_programs(1);
        await_quiet();
        cluster.assert_alive();
        program.kill();
        await_programs(0);
    }
    // The threads that noticed the end may not have closed their descriptors yet.
    let start = Instant::now();
    while descriptors() > before {
        assert!(start.elapsed() < LONG, "{} descriptors, {before} before", descriptors());
        std::thread::yield_now();
    }
    // The program is killed while it rings.
    let mut program = Ringing::start(&cluster.socket(0));
    program.await_line("rings");
    program.kill();
    await_programs(0);
    await_quiet();
    cluster.assert_alive();
}
