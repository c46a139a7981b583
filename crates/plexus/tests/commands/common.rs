//! Shared parts of the tests: clusters in temporary directories, the program and its output.

use std::{
    io::{BufRead, BufReader, Lines},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use plexus_admin::Parameters;
use serde_json::Value;

/// The longest wait for any event; far longer than events take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The program under test.
pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_plexus"))
}

/// The output and exit code of a command.
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandOutput {
    /// Takes the output of a process that has ended.
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Returns standard output; fails unless the command succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    /// Returns standard output as JSON.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// Fails if the command succeeded.
    #[track_caller]
    pub(crate) fn refused(self) {
        assert_ne!(self.code, Some(0), "{}{}", self.out, self.err);
    }

    /// Returns the single error line of a failed command.
    #[track_caller]
    pub(crate) fn refusal(self) -> String {
        self.refusal_with(1)
    }

    /// Returns the error line of a command that ended with this code.
    #[track_caller]
    pub(crate) fn refusal_with(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        let line = self.err.lines().last().unwrap_or_default().to_owned();
        assert!(line.starts_with("plexus: "), "{}", self.err);
        line
    }
}

/// A cluster in a temporary directory. Its nodes are stopped when it is dropped.
pub(crate) struct Cluster {
    directory: tempfile::TempDir,
}

impl Cluster {
    /// Returns an empty directory, without a cluster.
    pub(crate) fn nowhere() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// Creates a small cluster with addresses of its own.
    pub(crate) fn new(nodes: usize) -> Self {
        Self::nowhere().init(nodes)
    }

    /// Creates such a cluster in a directory within `parent`.
    pub(crate) fn within(parent: &Path, nodes: usize) -> Self {
        Self { directory: tempfile::tempdir_in(parent).unwrap() }.init(nodes)
    }

    /// Creates a small cluster with addresses of its own, as this user with these arguments.
    pub(crate) fn with(nodes: usize, args: &[&str], user: &str) -> Self {
        Self::nowhere().init_with(nodes, args, user)
    }

    fn init(self, nodes: usize) -> Self {
        self.init_with(nodes, &["--size-mib", "8", "--cache-mib", "4"], "tester")
    }

    fn init_with(self, nodes: usize, args: &[&str], user: &str) -> Self {
        let cluster = self;
        let count = nodes.to_string();
        let init = cluster.run("init").args(["--nodes", &count, "--redo-mib", "16"]);
        let has_sql = args.contains(&"--sql-port");
        let init = init.args((!has_sql).then_some("--no-sql"));
        init.args(args.iter().copied()).env("USER", user).said().ok();
        // The loopback network has sixteen million addresses: one for each cluster of each test
        // process.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let [a, b, ..] = std::process::id().to_le_bytes();
        let address = format!("127.{b}.{a}.{}:", 1 + MADE.fetch_add(1, Relaxed));
        let path = cluster.dir().join("cluster.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.replace("127.0.0.1:", &address)).unwrap();
        cluster
    }

    /// Creates such a cluster and starts it.
    pub(crate) fn up(nodes: usize) -> Self {
        let cluster = Self::new(nodes);
        cluster.run("up").said().ok();
        cluster
    }

    /// Creates a cluster whose configuration places its nodes on different hosts; all run here.
    pub(crate) fn on_hosts(hosts: &[&str]) -> Self {
        let cluster = Self::new(hosts.len());
        let path = cluster.dir().join("cluster.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut hosts = hosts.iter();
        let lines: Vec<String> = text
            .lines()
            .map(|line| match line.starts_with("host = ") {
                true => format!("host = \"{}\"", hosts.next().unwrap()),
                false => line.to_owned(),
            })
            .collect();
        assert!(hosts.next().is_none(), "{text}");
        std::fs::write(path, lines.join("\n") + "\n").unwrap();
        cluster
    }

    /// Sets times so long that a suspended node is not evicted during a test.
    pub(crate) fn prevent_evictions(&self) {
        self.set_leases(100_000, 100_000);
    }

    /// Sets times so long that a busy disk of the voting files evicts no node.
    pub(crate) fn bear_busy_disks(&self) {
        self.set_leases(10_000, 11_000);
    }

    fn set_leases(&self, lease_ms: u32, evict_ms: u32) {
        let times = format!("profile = \"lan\"\nlease_ms = {lease_ms}\nevict_ms = {evict_ms}\n");
        self.edit("profile = \"lan\"\n", &times);
    }

    /// Returns the directory of the cluster.
    pub(crate) fn dir(&self) -> PathBuf {
        self.directory.path().join("c1")
    }

    /// Returns the parent of the directory of the cluster.
    pub(crate) fn parent(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the command `plexus COMMAND -C DIR`, or `plexus init DIR`, to which arguments can be
    /// added.
    pub(crate) fn run(&self, command: &str) -> Run {
        let mut run = run([command]);
        run.0.args((command != "init").then_some("-C")).arg(self.dir());
        run
    }

    /// Turns redo off, so that the death of a node loses blocks.
    pub(crate) fn without_redo(self) -> Self {
        self.edit("redo_mib = 16", "redo_mib = 0");
        self
    }

    /// Replaces text in the configuration.
    #[track_caller]
    pub(crate) fn edit(&self, from: &str, to: &str) {
        let path = self.dir().join("cluster.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from}");
        std::fs::write(path, text.replacen(from, to, 1)).unwrap();
    }

    /// Waits until the status fulfils a condition.
    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, is: impl Fn(&Value) -> bool) {
        until(what, || self.run("status").args(["--json"]).said().json(), is);
    }

    /// Returns the process ids of the nodes, in the order of the nodes.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let status = self.run("status").args(["--json"]).said().json();
        let nodes = status["nodes"].as_array().unwrap();
        let pid = |node: &Value| node["pid"].as_i64().unwrap_or_else(|| panic!("{node}")) as i32;
        nodes.iter().map(pid).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.dir().join("cluster.toml").exists() {
            let _ = self.run("down").args(["--all"]).0.output();
        }
    }
}

/// A command under construction.
#[must_use]
pub(crate) struct Run(pub(crate) Command);

/// Starts building the command `plexus ARGS`.
pub(crate) fn run<'a>(args: impl IntoIterator<Item = &'a str>) -> Run {
    let mut command = Command::new(program());
    command.args(args).env_remove("PLEXUS_DIR");
    Run(command)
}

/// Runs `plexus` with the words of a line.
pub(crate) fn run_line(line: &str) -> Run {
    run(line.split(' '))
}

impl Run {
    /// Adds arguments to the command.
    pub(crate) fn args<'a>(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.0.args(args);
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    /// Runs the command to its end.
    pub(crate) fn said(mut self) -> CommandOutput {
        CommandOutput::of(self.0.output().unwrap())
    }

    /// Starts the command to read what it prints, and ends it with the test.
    pub(crate) fn start(mut self) -> Reading {
        let mut plexus = self.0.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Reading { lines: BufReader::new(plexus.stdout.take().unwrap()).lines(), plexus }
    }
}

/// A running command that prints lines of JSON.
pub(crate) struct Reading {
    pub(crate) plexus: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Reading {
    pub(crate) fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().expect("it is told more").unwrap()).unwrap()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let _ = self.plexus.kill();
        let _ = self.plexus.wait();
    }
}

/// Polls until a condition holds.
#[track_caller]
pub(crate) fn until(what: &str, look: impl Fn() -> Value, is: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let seen = look();
        if is(&seen) {
            return seen;
        }
        assert!(start.elapsed() < TIMEOUT, "waiting until {what}: {seen}");
        // The nodes that it waits for need the processors.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Describes a small temporary cluster in `place`, on the given hosts.
pub(crate) fn temporary(hosts: &[&str], place: &Path) -> Parameters {
    let mut parameters = Parameters::new(hosts.len(), program().into(), place).unwrap();
    (parameters.config.cache_mib, parameters.config.blocks) = (4, 256);
    for (index, host) in hosts.iter().enumerate() {
        parameters.config.nodes[index].host = (*host).into();
    }
    parameters
}

/// Waits for the end of a process, which may be a child or not.
pub(crate) fn wait_for_end(pid: i32) {
    use rustix::{event, process};
    let pid = process::Pid::from_raw(pid).unwrap();
    let Ok(process) = process::pidfd_open(pid, process::PidfdFlags::empty()) else { return };
    let timeout = event::Timespec { tv_sec: 30, tv_nsec: 0 };
    let ended = event::poll(&mut [event::PollFd::new(&process, event::PollFlags::IN)], Some(&timeout));
    assert_eq!(ended, Ok(1), "process {pid:?} goes on");
}

/// Whether a process runs. One that waits to be reaped does not.
pub(crate) fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}
