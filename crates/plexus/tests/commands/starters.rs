//! What a program that starts Plexus, or the system around it, leaves in a bad state.

use std::{
    fs::{self, File, OpenOptions},
    os::fd::OwnedFd,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use plexus_client::Client;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

use crate::common::{Cluster, CommandOutput, program, signal, wait_for_end};

/// Runs a script in a shell, with the program as `$P` and the cluster's directory as `$C`.
fn script(cluster: &Cluster, text: &str) -> CommandOutput {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(text).env("P", program()).env("C", cluster.dir()).current_dir(cluster.parent());
    CommandOutput::of(shell.output().unwrap())
}

#[test]
fn a_starter_that_ignores_the_ends_of_children_changes_no_exit_code() {
    let cluster = Cluster::new(1);
    // `trap '' CHLD` of some shells ignores nothing.
    let line =
        "I='env --ignore-signal=CHLD'; $I $P up -C $C && $I $P lock a -C $C -- sh -c 'exit 7'; echo $?";
    let out = script(&cluster, line);
    assert_eq!(out.out.lines().last(), Some("7"), "{}{}", out.out, out.err);
}

#[test]
fn daemons_keep_no_file_and_no_directory_of_their_starter() {
    let cluster = Cluster::new(1);
    // The shell's descriptor 9 has the lock, and the program inherits it.
    script(&cluster, "mkdir busy && cd busy && exec 9>../lock && flock 9 && exec $P up -C $C").ok();
    File::open(cluster.parent().join("lock")).unwrap().try_lock().expect("no daemon has the lock");
    for pid in cluster.pids() {
        let here = fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
        assert_eq!(here.to_str(), Some("/"));
    }
}

/// A control group of the system's version 1, removed at the end; `None` without the right to it.
struct ControlGroup(PathBuf);

impl ControlGroup {
    fn new(controller: &str) -> Option<Self> {
        let name = format!("plexus-test-{}-{controller}", std::process::id());
        let path = PathBuf::from("/sys/fs/cgroup").join(controller).join(name);
        match fs::create_dir(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                eprintln!("skipped: {}: {error}", path.display());
                None
            }
        }
    }

    fn set(&self, file: &str, value: impl ToString) {
        fs::write(self.0.join(file), value.to_string()).unwrap();
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A survivor of a death recovers, answers, takes the dead node in again and ends, all without one
/// more thread.
#[test]
fn a_node_at_its_limit_of_threads_goes_on() {
    let Some(group) = ControlGroup::new("pids") else { return };
    let options = ["--sql-port", "5433", "--size-mib", "16"];
    let cluster = Cluster::with(2, &options, "tester");
    cluster.bear_busy_disks();
    cluster.run("up").said().ok();
    let sql = |text: &str| cluster.run("sql").args(["-n", "n1", "-c", text]).said().ok();
    sql("create table t (a int)");
    sql("insert into t values (1)");
    // The older node calls the younger one, and the other way round.
    for (limited, dies) in [(0, 1), (1, 0)] {
        let pids = cluster.pids();
        group.set("cgroup.procs", pids[limited]);
        group.set("pids.max", fs::read_to_string(group.0.join("pids.current")).unwrap().trim());
        signal(pids[dies], Signal::KILL);
        cluster.wait_until("a death", |status| status["nodes"][dies]["state"] == "down");
        cluster.run("lock").args(["a", "--", "true"]).said().ok();
        cluster.run("up").said().ok();
        assert_eq!(sql("select * from t"), "a\n1\n(1 row)\n");
        assert_eq!(cluster.pids()[limited], pids[limited]);
        group.set("pids.max", "max");
        fs::write("/sys/fs/cgroup/pids/cgroup.procs", pids[limited].to_string()).unwrap();
    }
    group.set("cgroup.procs", cluster.pids()[0]);
    group.set("pids.max", 1);
    let down = cluster.run("down").said().ok();
    assert!(down.contains("everything is on disk"), "{down}");
}

/// The supervisor starts in the control group, and its node with it.
#[test]
fn a_node_that_the_system_killed_for_lack_of_memory_says_so() {
    let Some(group) = ControlGroup::new("memory") else { return };
    // By far too little for the node, and enough for its starters: the system kills the largest.
    group.set("memory.limit_in_bytes", 96 << 20);
    let cluster = Cluster::with(1, &["--size-mib", "8", "--cache-mib", "256"], "tester");
    let script = format!("echo $$ > {}/cgroup.procs && exec $P up -C $C", group.0.display());
    let refusal = self::script(&cluster, &script).refusal();
    let reason =
        "it was ended by SIGKILL: the system killed a process of its control group for lack of memory";
    assert!(refusal.contains(reason), "{refusal}");
}

/// `down` and `up` say where the nodes belong; nodes that run are not touched.
#[test]
fn after_a_change_of_the_host_name_commands_say_what_to_correct() {
    let cluster = Cluster::up(1);
    for command in ["down", "up"] {
        let refusal = cluster.run(command).env("PLEXUS_HOST", "renamed").said().refusal();
        let remedy = "correct `host` there, or set PLEXUS_HOST";
        assert!(
            refusal.contains("no node belongs on this machine, renamed") && refusal.contains(remedy),
            "{refusal}"
        );
    }
    let status = cluster.run("status").env("PLEXUS_HOST", "renamed").said().ok();
    assert!(status.contains("running"), "{status}");
}

/// Its descriptors end at different steps of the handshake. Programs are served again later.
#[test]
fn a_program_that_a_node_has_no_descriptors_for_is_told_so() {
    let cluster = Cluster::up(1);
    let pid = cluster.pids()[0];
    let set = |limit| prlimit(Pid::from_raw(pid), Resource::Nofile, limit).unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let number = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().to_str()?.parse().ok();
    let highest: u64 = open.filter_map(number).max().unwrap();
    for more in [20, 23, 26, 29] {
        let earlier = set(Rlimit { current: Some(highest + more), maximum });
        let mut clients = Vec::new();
        let refusal = loop {
            match Client::attach(cluster.dir()) {
                Ok(client) => clients.push(client),
                Err(error) => break error.to_string(),
            }
        };
        assert!(refusal.contains("it has no descriptors or memory left"), "{more}: {refusal}");
        drop(clients);
        set(earlier);
        Client::attach(cluster.dir()).unwrap();
    }
    let log = fs::read_to_string(cluster.dir().join("log/n1.log")).unwrap();
    assert!(log.contains("a program was refused: Too many open files"), "{log}");
}

#[test]
fn nodes_whose_files_were_removed_are_named_and_can_be_ended() {
    let cluster = Cluster::up(2);
    let pids = cluster.pids();
    fs::rename(cluster.dir().join("run"), cluster.dir().join("gone")).unwrap();
    let status = cluster.run("status").said().ok();
    let refusal = cluster.run("down").said().refusal();
    for pid in &pids {
        let remedy = format!("`kill {pid}` ends it in order");
        assert!(status.contains(&remedy) && refusal.contains(&remedy), "{status}{refusal}");
    }
    for pid in pids {
        signal(pid, Signal::TERM);
        wait_for_end(pid);
    }
    cluster.run("up").said().ok();
    assert!(cluster.run("status").said().ok().contains("it was told to end, and has ended in order"));
}

#[test]
fn a_disk_that_was_removed_in_use_is_not_said_to_have_everything() {
    let cluster = Cluster::up(1);
    let disk = cluster.dir().join("disks/0");
    fs::remove_file(&disk).unwrap();
    let down = cluster.run("down").said();
    assert!(!down.out.contains("everything"), "{}", down.out);
    let refusal = down.refusal();
    assert!(refusal.contains(disk.to_str().unwrap()) && refusal.contains("was removed"), "{refusal}");
}

/// Lets a command write to a file that has no room, and to a pipe without a reader.
fn into(cluster: &Cluster, args: &[&str], to: impl Into<Stdio>) -> CommandOutput {
    let mut command = Command::new(program());
    command.args(args).env("PLEXUS_DIR", cluster.dir()).stdout(to).stderr(Stdio::piped());
    CommandOutput::of(command.spawn().unwrap().wait_with_output().unwrap())
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let cluster = Cluster::up(1);
    into(&cluster, &["registry", "set", "a/b", "value without an end of line"], Stdio::piped()).ok();
    let commands: [&[&str]; 6] = [
        &["status"],
        &["status", "--json"],
        &["locks"],
        &["metrics"],
        &["registry", "get", "a/b"],
        &["redo"],
    ];
    for args in commands {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let refusal = into(&cluster, args, full).refusal();
        assert!(refusal.contains("standard output: No space left"), "{args:?}: {refusal}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let out = into(&cluster, args, OwnedFd::from(writer));
        assert_eq!((out.code, out.err.as_str()), (Some(141), ""), "{args:?}");
    }
}

#[test]
fn root_makes_no_file_in_the_cluster_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: this test is not root");
    }
    let cluster = Cluster::new(1);
    std::os::unix::fs::chown(cluster.dir(), Some(65534), None).unwrap();
    for args in [&["up"][..], &["key", "rotate"]] {
        let refusal = into(&cluster, args, Stdio::piped()).refusal();
        assert!(refusal.contains("belongs to user 65534") && refusal.contains("sudo -u"), "{refusal}");
    }
    assert!(!cluster.dir().join("keys/next.key").exists());
    assert_eq!(fs::read_dir(cluster.dir().join("run")).unwrap().count(), 0);
}

#[test]
fn what_a_killed_init_has_left_is_removed_by_the_next_one() {
    let cluster = Cluster::nowhere();
    let left = cluster.parent().join(".c1.plexus-init-1");
    fs::create_dir_all(left.join("disks")).unwrap();
    let runs = cluster.parent().join(".c1.plexus-init-2");
    fs::create_dir(&runs).unwrap();
    let lock = File::open(&runs).unwrap();
    lock.lock().unwrap();
    cluster.run("init").args(["--nodes", "1", "--no-sql", "--size-mib", "8"]).said().ok();
    assert!(!left.exists() && runs.exists(), "only that of a command that runs is kept");
}
