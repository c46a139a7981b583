//! The examples in C, built with the system's compiler and run against nodes of a real cluster.

#[path = "../../node/tests/cluster/mod.rs"]
mod cluster;

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use cluster::{Cluster, TIMEOUT};
use plexus_client::{Address, Error};
use plexus_fabric::RailKind;

const LONG: Option<Duration> = Some(TIMEOUT);

/// Compiles an example into `place`, linked with the library that was built with this test.
fn build(example: &str, place: &Path) -> PathBuf {
    compile(&format!("examples/{example}.c"), place)
}

fn compile(source: &str, place: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let test = std::env::current_exe().unwrap();
    let here = test.parent().unwrap();
    let library =
        [here, here.parent().unwrap()].into_iter().find(|place| place.join("libplexus.so").exists());
    let library = library.expect("libplexus.so is built with its tests");
    let program = place.join(Path::new(source).file_stem().unwrap());
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-D_GNU_SOURCE"])
        .arg(root.join(source))
        .arg("-I")
        .arg(root.join("include"))
        .arg("-L")
        .arg(library)
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .args(["-lplexus", "-lpthread", "-o"])
        .arg(&program)
        .output()
        .expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    program
}

#[test]
fn the_tour_succeeds_between_two_nodes() {
    for rail in [RailKind::Shm, RailKind::Tcp] {
        let cluster = Cluster::start(2, 2, rail);
        let tour = build("tour", cluster.directory());
        let run = Command::new(tour).arg(cluster.socket(0)).arg(cluster.socket(1)).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        assert_eq!(run.stdout, b"all checks passed\n");
    }
}

#[test]
fn a_program_whose_calls_are_interrupted_by_a_timer_attaches() {
    let cluster = Cluster::start(1, 1, RailKind::Shm);
    let program = compile("tests/signals.c", cluster.directory());
    let run = Command::new(program).arg(cluster.socket(0)).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(run.stdout, b"attached\n");
}

#[test]
fn resources_of_a_killed_program_are_released_and_its_peers_learn_of_it() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let holder = build("holder", cluster.directory());
    let far = cluster.client(1);
    let (port, to) = (far.bind(0).unwrap(), Address::new(plexus_client::NodeId(0), 7));
    for round in 0..5 {
        // The program takes the same ports and the same name in each round, which shows that they
        // were free.
        let mut running =
            Command::new(&holder).arg(cluster.socket(0)).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let mut out = BufReader::new(running.stdout.take().unwrap());
        out.read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n", "round {round}");
        let copy = far.find_window("held").unwrap();
        copy.map().unwrap();
        port.send(to, b"ping", LONG).unwrap();
        assert_eq!(port.receive(LONG).unwrap().bytes, b"ping");
        let refused = cluster.client(0).bind(7).err().expect("port 7 is held");
        assert!(matches!(refused, Error::Taken(_)), "{refused}");
        thread::scope(|scope| {
            let call = scope.spawn(|| far.call(Address::new(to.node, 8), b"?", LONG));
            let word = scope.spawn(|| copy.wait_word(0, LONG, |word| word == 1));
            running.kill().unwrap();
            running.wait().unwrap();
            let (call, word) = (call.join().unwrap(), word.join().unwrap());
            assert!(matches!(call, Err(Error::PortClosed(_))), "{call:?}");
            assert!(matches!(word, Err(Error::NoWindow)), "{word:?}");
        });
        // Each worker of the node notices the death separately. What is not free after LONG was
        // never released.
        let (here, start) = (cluster.client(0), Instant::now());
        let free = |result: Result<(), Error>| match result {
            Ok(()) => true,
            Err(error) => {
                assert!(matches!(error, Error::Taken(_)) && start.elapsed() < LONG.unwrap(), "{error}");
                thread::yield_now();
                false
            }
        };
        while !free(here.bind(7).map(drop)) {}
        while !free(here.serve(8).map(drop)) {}
        while !free(here.create_window("held", 64).map(drop)) {}
    }
}

/// A running program and its output.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    fn start(program: &Path, role: &str, socket: &Path) -> Self {
        let mut child = Command::new(program).arg(role).arg(socket).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ends_well(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

/// The token in `granted TOKEN ...`, and what follows it.
fn granted(line: &str) -> (u64, String) {
    let words: Vec<&str> = line.splitn(3, ' ').collect();
    assert_eq!(words[0], "granted", "{line}");
    (words[1].parse().unwrap(), words.get(2).map(|rest| (*rest).to_owned()).unwrap_or_default())
}

#[test]
fn a_lock_passes_between_programs_with_its_value_and_a_greater_token() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let locks = build("locks", cluster.directory());
    let mut last = 0;
    for (here, there) in [(0, 1), (1, 0), (0, 0)] {
        let mut holder = Running::start(&locks, "hold", &cluster.socket(here));
        let (first, _) = granted(&holder.says());
        let mut waiter = Running::start(&locks, "wait", &cluster.socket(there));
        assert_eq!((holder.says(), holder.says()), ("wanted".into(), "unlocked".into()));
        let (second, value) = granted(&waiter.says());
        assert_eq!(value, "a word");
        assert!(last < first && first < second, "{last} {first} {second}");
        last = second;
        holder.ends_well();
        waiter.ends_well();
    }
}

#[test]
fn the_next_program_gets_the_lock_of_a_killed_holder_without_a_valid_value() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let locks = build("locks", cluster.directory());
    for _ in 0..3 {
        let mut keeper = Running::start(&locks, "keep", &cluster.socket(0));
        assert_eq!(keeper.says(), "granted");
        let mut waiter = Running::start(&locks, "wait", &cluster.socket(1));
        cluster.wait_until_waited_for(2, "baton");
        keeper.child.kill().unwrap();
        keeper.child.wait().unwrap();
        let (_, value) = granted(&waiter.says());
        assert_eq!(value, "before perhaps");
        waiter.ends_well();
    }
}

#[test]
fn every_lock_request_ends_as_the_header_documents() {
    let cluster = Cluster::start(2, 2, RailKind::Tcp);
    let locks = build("locks", cluster.directory());
    let run = Command::new(locks).arg("tour").arg(cluster.socket(0)).arg(cluster.socket(1)).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(run.stdout, b"all checks passed\n");
}
