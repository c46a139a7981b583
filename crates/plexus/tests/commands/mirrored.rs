//! Servers without shared storage: two with a disk each, and a witness. Each has a directory, a
//! host name and an address of its own; all run on this machine.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU8, Ordering::Relaxed},
    thread,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{CommandOutput, Run, run, signal, until};

pub(crate) const HOSTS: [&str; 3] = ["a", "b", "w"];

pub(crate) struct Servers(tempfile::TempDir);

impl Servers {
    /// Makes a cluster and starts it everywhere.
    fn up() -> Self {
        let servers = Self::init(&[]);
        servers.start(&HOSTS);
        servers
    }

    /// Makes a cluster with these arguments, and gives each server its copy of the configuration.
    /// With three copies of each block the third server has a disk, too.
    pub(crate) fn init(args: &[&str]) -> Self {
        let (copies, third) = if args.contains(&"--copies") { (3, "--host") } else { (2, "--witness") };
        static MADE: AtomicU8 = AtomicU8::new(0);
        let [a, b, ..] = std::process::id().to_le_bytes();
        let last = 250 - 4 * MADE.fetch_add(1, Relaxed);
        let address = |host: u8| format!("{}=127.{b}.{a}.{}", HOSTS[usize::from(host)], last + host);
        let servers = Self(tempfile::tempdir().unwrap());
        HOSTS.iter().for_each(|host| fs::create_dir_all(servers.dir(host).parent().unwrap()).unwrap());
        let hosts = ["--host", &address(0), "--host", &address(1), third, &address(2), "--port", "7700"];
        let sizes = ["--size-mib", "64", "--cache-mib", "8", "--redo-mib", "16"];
        let init = run(["init", servers.dir("a").to_str().unwrap()]).args(hosts).args(sizes);
        let init = init.args(args.iter().copied());
        let said = init.env("PLEXUS_HOST", "a").env("USER", "tester").said().ok();
        let expected = format!("redundancy mirror{copies}: {copies} copies of each chunk of 64 MiB");
        assert!(said.contains(&expected) && said.contains("served by n2"), "{said}");
        for host in &HOSTS[1..] {
            fs::create_dir_all(servers.dir(host).join("keys")).unwrap();
            let keys = fs::read_dir(servers.dir("a").join("keys")).unwrap();
            let keys = keys.map(|key| format!("keys/{}", key.unwrap().file_name().to_str().unwrap()));
            for file in keys.chain(["cluster.toml".to_owned()]) {
                fs::copy(servers.dir("a").join(&file), servers.dir(host).join(&file)).unwrap();
            }
        }
        servers
    }

    /// Replaces a line of the configuration, on all hosts.
    fn configure(&self, line: &str, new: &str) {
        for host in HOSTS {
            let file = self.dir(host).join("cluster.toml");
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.contains(line), "{text}");
            fs::write(&file, text.replace(line, new)).unwrap();
        }
    }

    pub(crate) fn dir(&self, host: &str) -> PathBuf {
        self.0.path().join(host).join("c1")
    }

    pub(crate) fn on(&self, host: &str, command: &str) -> Run {
        run(command.split(' ').chain(["-C", self.dir(host).to_str().unwrap()])).env("PLEXUS_HOST", host)
    }

    /// Returns the number of rows and the sum of their keys.
    fn sum(&self, host: &str) -> Vec<String> {
        let rows = self.count(host);
        let numbers = rows.lines().nth(1).unwrap().split_whitespace();
        numbers.map(str::to_owned).collect()
    }

    pub(crate) fn start(&self, hosts: &[&str]) {
        std::thread::scope(|scope| {
            for host in hosts {
                scope.spawn(|| self.on(host, "up").said().ok());
            }
        });
    }

    pub(crate) fn sql(&self, host: &str, text: &str) -> CommandOutput {
        let node = format!("n{}", HOSTS.iter().position(|known| *known == host).unwrap() + 1);
        self.on(host, "sql").args(["-n", &node, "-c", text]).said()
    }

    pub(crate) fn count(&self, host: &str) -> String {
        self.sql(host, "select count(*) as rows, sum(id) as sum from t").ok()
    }

    /// Kills the nodes of hosts and their supervisors: the hosts are lost.
    pub(crate) fn lose(&self, hosts: &[&str]) {
        let status = self.on(hosts[0], "status").args(["--json"]).said().json();
        let of_host = |host: &&str| {
            let node = HOSTS.iter().position(|known| known == host).unwrap();
            let node = status["nodes"][node]["pid"].as_i64().unwrap() as i32;
            let parent = Command::new("ps").args(["-o", "ppid=", "-p", &node.to_string()]).output().unwrap();
            let parent: i32 = String::from_utf8(parent.stdout).unwrap().trim().parse().unwrap();
            let of_parent = fs::read_to_string(format!("/proc/{parent}/cmdline")).unwrap();
            assert!(of_parent.contains("node"), "the supervisor of {host}: {of_parent}");
            [parent, node]
        };
        let processes: Vec<_> = hosts.iter().flat_map(of_host).collect();
        processes.into_iter().for_each(|process| signal(process, Signal::KILL));
    }

    pub(crate) fn until_whole(&self) {
        let status = || Value::from(self.on("a", "status").said().out);
        let is_whole = |status: &Value| {
            let status = status.as_str().unwrap();
            status.contains("n1,n2,n3") && !status.contains("one copy less")
        };
        until("both disks have everything", status, is_whole);
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for host in HOSTS {
            self.on(host, "down").said();
        }
    }
}

#[test]
fn a_server_is_lost_with_its_disk_and_returns_and_all_lose_power() {
    let servers = Servers::up();
    servers.sql("a", "create table t (id int primary key, item text)").ok();
    let insert = |host: &str, from: u32| {
        let rows: Vec<_> = (from..from + 500).map(|id| format!("({id}, 'item {id}')")).collect();
        servers.sql(host, &format!("insert into t values {}", rows.join(", "))).ok();
    };
    insert("a", 0);
    insert("b", 500);
    insert("w", 1000);
    let before = servers.count("a");
    assert!(before.contains("1500") && before == servers.count("b"), "{before}");

    servers.lose(&["b"]);
    insert("a", 1500);
    let status = servers.on("a", "status").said().ok();
    assert!(status.contains("has no new writes for"), "{status}");
    assert!(status.contains("its chunks have one copy less; start n2 if"), "{status}");
    servers.start(&["b"]);
    insert("b", 2000);
    servers.until_whole();
    // What has been copied is used: the other disk is lost.
    servers.lose(&["a"]);
    let alone = servers.count("b");
    assert!(alone.contains("2500"), "{alone}");
    insert("w", 2500);
    servers.start(&["a"]);
    servers.until_whole();

    insert("a", 3000);
    servers.lose(&HOSTS);
    servers.start(&HOSTS);
    let after = servers.count("b");
    assert!(after.contains("3500"), "{after}");
    servers.until_whole();
    let checked = run(["store", "check", "-C", servers.dir("a").to_str().unwrap()]);
    let checked = checked.env("PLEXUS_HOST", "a").said().ok();
    assert!(checked.contains("no fault"), "{checked}");

    // After an orderly end both disks have the same chunks in the same slots, and both are current.
    servers.on("a", "down").args(["--all"]).said().ok();
    let [a, b] = ["a", "b"].map(|host| fs::read(servers.dir(host).join("disks/0")).unwrap());
    assert_eq!(a.len(), b.len());
    let slots = 2 << 20;
    let differing = (slots..a.len()).step_by(8192).filter(|at| a[*at..*at + 8192] != b[*at..*at + 8192]);
    let differing: Vec<_> = differing.collect();
    assert!(differing.is_empty(), "{} blocks differ, first at {:?}", differing.len(), differing.first());
    servers.start(&HOSTS);
    assert_eq!(servers.count("a"), after);
    servers.until_whole();
    let marked = HOSTS.map(|host| {
        let log = servers.dir(host).join("log");
        let logs = fs::read_dir(log).unwrap().map(|log| fs::read_to_string(log.unwrap().path()).unwrap());
        logs.map(|log| log.matches("gets no more writes").count()).sum::<usize>()
    });
    assert_eq!(marked.iter().sum::<usize>(), 2, "a disk is marked when its host is lost alone: {marked:?}");
}

/// One host is lost while the disk of another one is out of use: the third has everything.
#[test]
fn with_three_copies_two_disks_may_be_missing() {
    let servers = Servers::init(&["--copies", "3"]);
    servers.start(&HOSTS);
    servers.sql("a", "create table t (id int primary key, item text)").ok();
    let insert = |host: &str, from: u32| {
        let rows: Vec<_> = (from..from + 500).map(|id| format!("({id}, 'item {id}')")).collect();
        servers.sql(host, &format!("insert into t values {}", rows.join(", "))).ok();
    };
    let disk = |words: &str| servers.on("a", "disk").args(words.split(' ')).said();
    insert("a", 0);
    servers.lose(&["b"]);
    insert("w", 500);
    disk("offline 2").ok();
    insert("a", 1000);
    let refused = disk("offline 0").err;
    assert!(refused.contains("would have no current copy without disk 0"), "{refused}");
    // The bits of the only disk say what each of the two has missed, whichever is copied first.
    servers.start(&["b"]);
    insert("b", 1500);
    let status = || Value::from(servers.on("a", "status").said().out);
    let is_back = |status: &Value| !status.as_str().unwrap().contains("disk 1");
    until("the disk of b has everything", status, is_back);
    insert("b", 2000);
    disk("online 2").ok();
    servers.until_whole();
    let scrubbed = disk("scrub").ok();
    assert!(scrubbed.contains("no difference"), "{scrubbed}");
    // Each of the two has everything by itself.
    for other in [1, 2] {
        disk("offline 0").ok();
        disk(&format!("offline {other}")).ok();
        assert!(servers.count("w").contains("2500"), "{}", servers.count("w"));
        disk("online 0").ok();
        disk(&format!("online {other}")).ok();
        servers.until_whole();
    }
}

/// The witness gets a disk, a server loses its one, and everything goes on.
#[test]
fn disks_come_and_leave_and_are_replaced_while_clients_work() {
    let servers = Servers::up();
    servers.sql("a", "create table t (id int primary key, item text)").ok();
    let insert = |host: &str, from: u32| {
        let rows: Vec<_> = (from..from + 500).map(|id| format!("({id}, 'item {id}')")).collect();
        servers.sql(host, &format!("insert into t values {}", rows.join(", "))).ok();
    };
    let disk = |host: &str, words: &str| servers.on(host, "disk").args(words.split(' ')).said();
    let place = |host: &str| servers.dir(host).join("disks/new").to_str().unwrap().to_owned();
    let state = |number: usize| {
        let seen = servers.on("a", "disks").args(["--json"]).said().json();
        let of_it = |disk: &&Value| disk["disk"] == number;
        let found = seen["disks"].as_array().unwrap().iter().find(of_it).cloned();
        found.map(|disk| (disk["state"].as_str().unwrap().to_owned(), disk["used_mib"].as_u64().unwrap()))
    };
    insert("a", 0);
    let whole = state(0).unwrap().1;

    // With two disks none can leave, and nothing is changed by what is refused.
    for (host, words, why) in [
        ("a", "drop 1", "the other disks have no room"),
        ("a", "offline 7", "the group has no disk 7"),
        ("b", &format!("replace 1 {}", place("b")), "disk 1 is current"),
        ("b", &format!("add --node n1 {}", place("b")), "n1 belongs on a"),
        ("w", &format!("add --size-mib 3 {}", place("w")), "at least one chunk"),
    ] {
        let said = disk(host, words).refusal();
        assert!(said.contains(why), "{words}: {said}");
    }
    disk("a", "offline 0").ok();
    let last = disk("a", "offline 1").refusal();
    assert!(last.contains("would have no current copy without disk 1"), "{last}");
    insert("b", 500);
    disk("a", "online 0").ok();

    disk("w", &format!("add {}", place("w"))).ok();
    let (moved, used) = state(2).unwrap();
    assert!(moved == "current" && used > 0, "{moved} {used}");
    let again = disk("w", &format!("add {}", place("w"))).refusal();
    assert!(again.contains("is disk 2 of the group"), "{again}");
    insert("w", 1000);
    let dropped = disk("a", "drop 1").ok();
    assert!(dropped.contains("has left the group") && state(1).is_none(), "{dropped}");
    assert_eq!((state(0), state(2)), (Some(("current".into(), whole)), Some(("current".into(), whole))));
    // Its host has nothing that is needed any more.
    servers.lose(&["b"]);
    insert("a", 1500);
    servers.start(&["b"]);

    // The disk of the witness dies, and the one of another host takes its place.
    disk("a", "offline 2").ok();
    insert("b", 2000);
    let replaced = disk("b", &format!("replace 2 {}", place("b"))).ok();
    assert!(replaced.contains("disk 2 has everything"), "{replaced}");
    let scrubbed = disk("a", "scrub").ok();
    assert!(scrubbed.contains("no difference"), "{scrubbed}");
    servers.until_whole();
    servers.lose(&["a"]);
    let after = servers.count("b");
    assert!(after.contains("2500"), "{after}");
    servers.start(&["a"]);
    servers.until_whole();
    let checked = servers.on("a", "store").args(["check"]).said().ok();
    assert!(checked.contains("no fault"), "{checked}");
}

/// The others have room in other failure groups, so no operator has to act.
#[test]
fn a_disk_that_is_away_for_too_long_is_rebuilt_on_the_others() {
    let servers = Servers::init(&[]);
    servers.configure("rebuild_after_s = 3600", "rebuild_after_s = 2");
    servers.start(&HOSTS);
    servers.sql("a", "create table t (id int primary key)").ok();
    servers.sql("a", "insert into t values (1), (2)").ok();
    let new = servers.dir("w").join("disks/new");
    servers.on("w", "disk add --no-rebalance").args([new.to_str().unwrap()]).said().ok();
    let disks = || servers.on("w", "disks").args(["--json"]).said().json();
    let used = |seen: &Value, disk: usize| seen["disks"][disk]["used_mib"].as_u64().unwrap();
    let before = disks();
    assert!(used(&before, 0) > 0 && used(&before, 2) == 0, "{before}");
    servers.lose(&["b"]);
    servers.sql("w", "insert into t values (3)").ok();
    let has_left = |seen: &Value| seen["disks"].as_array().is_some_and(|disks| disks.len() == 2);
    let after = until("disk 1 is rebuilt", disks, has_left);
    assert_eq!((&after["disks"][1]["disk"], used(&after, 1)), (&Value::from(2), used(&before, 0)), "{after}");
    servers.start(&["b"]);
    servers.until_whole();
    servers.lose(&["a"]);
    assert_eq!(servers.sum("b"), ["3", "6"]);
    servers.start(&["a"]);
    servers.until_whole();
}

/// Both disks and the group become larger while clients work, and all is there after the loss of
/// all power.
#[test]
fn disks_and_the_group_grow_while_clients_work() {
    let servers = Servers::up();
    servers.sql("a", "create table t (id int primary key, item text)").ok();
    let rows: Vec<_> = (0..32).map(|id| format!("({id}, '{}')", "x".repeat(3000))).collect();
    servers.sql("a", &format!("insert into t values {}", rows.join(", "))).ok();
    let double = |host: &str, rows: u32| {
        servers.sql(host, &format!("insert into t select id + {rows}, item from t where id < {rows}"))
    };
    let disk = |host: &str, words: &str| servers.on(host, "disk").args(words.split(' ')).said();
    let sizes = || {
        let seen = servers.on("a", "disks").args(["--json"]).said().json();
        let of = |disk: &Value| disk["size_mib"].as_u64().unwrap();
        let disks: Vec<_> = seen["disks"].as_array().unwrap().iter().map(of).collect();
        (seen["group_mib"].as_u64().unwrap(), disks)
    };
    let (group, disks) = sizes();
    assert_eq!(group, 64);
    let larger = disks[0] + 128;
    for (host, words, why) in [
        ("a", format!("grow 0 {}", disks[0]), "disk 0 has room for"),
        ("a", "grow 0".to_owned(), "disk 0 has room for"),
        ("a", "grow 7 999".to_owned(), "the group has no disk 7"),
        ("a", format!("grow 1 {larger}"), "n2 belongs on b"),
        ("a", "grow 0 100000000".to_owned(), "add another disk instead"),
        ("a", "grow 0 8000000".to_owned(), "make room"),
        ("a", "grow-group 64".to_owned(), "the group has 1 chunks: it can only grow"),
        ("a", "grow-group 1000000".to_owned(), "no room for"),
    ] {
        let said = disk(host, &words).refusal();
        assert!(said.contains(why) && said.lines().count() == 1, "{words}: {said}");
    }
    assert_eq!(sizes(), (group, disks.clone()));
    // The first gets a size, the other one has a file that has become larger.
    let grown = disk("a", &format!("grow 0 {larger}")).ok();
    assert!(grown.contains(&format!("disk 0 has {larger} MiB")), "{grown}");
    let file = fs::OpenOptions::new().write(true).open(servers.dir("b").join("disks/0")).unwrap();
    file.set_len(file.metadata().unwrap().len() + (128 << 20)).unwrap();
    disk("b", "grow 1").ok();
    assert_eq!(sizes(), (group, vec![larger, larger]));
    let full = (5..20).map(|power| 1 << power).find(|rows| double("a", *rows).code != Some(0)).unwrap();
    let grown = disk("b", "grow-group 192").ok();
    assert!(grown.contains("the group has 192 MiB"), "{grown}");
    double("w", full).ok();
    let has = |host: &str, rows: u32| {
        let counted = servers.count(host);
        assert!(counted.contains(&rows.to_string()), "{rows}: {counted}");
    };
    has("b", 2 * full);
    servers.lose(&HOSTS);
    servers.start(&HOSTS);
    servers.until_whole();
    has("a", 2 * full);
    let scrubbed = disk("a", "scrub").ok();
    assert!(scrubbed.contains("no difference"), "{scrubbed}");
    let checked = servers.on("a", "store").args(["check"]).said().ok();
    assert!(checked.contains("no fault"), "{checked}");
    assert_eq!(sizes(), (192, vec![larger, larger]));
}

/// The disk that alone has everything is lost for good.
#[test]
fn a_group_without_its_newest_disk_waits_until_an_operator_gives_it_up() {
    let servers = Servers::up();
    servers.sql("a", "create table t (id int primary key)").ok();
    servers.sql("a", "insert into t values (1), (2)").ok();
    let force = || servers.on("b", "disk force --lose-newer --yes").said();
    let nothing = force().refusal();
    assert!(nothing.contains("nothing is to be given up"), "{nothing}");
    servers.lose(&["b"]);
    servers.sql("a", "insert into t values (3)").ok();
    servers.lose(&["a", "w"]);
    thread::scope(|scope| {
        let up = ["b", "w"].map(|host| scope.spawn(|| servers.on(host, "up").said()));
        let status = || Value::from(servers.on("b", "status").said().out);
        until("the group waits", status, |status| status.as_str().unwrap().contains("the disk group waits"));
        let forced = force();
        assert!(
            forced.err.contains("disk 0 (n1): its changes since the others went are lost"),
            "{}",
            forced.err
        );
        forced.ok();
        up.into_iter().for_each(|up| drop(up.join().unwrap().ok()));
    });
    assert_eq!(servers.sum("b"), ["2", "3"]);
    servers.sql("b", "insert into t values (4)").ok();
    servers.start(&["a"]);
    servers.until_whole();
    assert_eq!(servers.sum("a"), ["3", "7"]);
}

/// A disk that is marked must be copied later, so no disk is marked whose host is only late.
#[test]
fn a_cold_start_waits_for_the_disks_of_hosts_that_are_late() {
    let servers = Servers::init(&[]);
    // The membership waits for about 30 s first: it does not know that b has ended.
    servers.configure("start_wait_s = 30", "start_wait_s = 45");
    servers.start(&HOSTS);
    servers.sql("a", "create table t (id int primary key)").ok();
    servers.sql("a", "insert into t values (1), (2)").ok();
    servers.on("a", "down").args(["--all"]).said().ok();
    let status = || Value::from(servers.on("a", "status").said().out);
    thread::scope(|scope| {
        scope.spawn(|| servers.start(&["a", "w"]));
        let waits = |status: &Value| status.as_str().unwrap().contains("more for disk 1 before it goes on");
        until("the group waits for disk 1", status, waits);
        servers.start(&["b"]);
    });
    assert_eq!(servers.sum("b"), ["2", "3"]);
    let whole = servers.on("a", "status").said().ok();
    assert!(!whole.contains("one copy less"), "{whole}");
    servers.on("a", "down").args(["--all"]).said().ok();
    servers.configure("start_wait_s = 45", "start_wait_s = 1");
    servers.start(&["a", "w"]);
    servers.sql("w", "insert into t values (3)").ok();
    let alone = servers.on("a", "status").said().ok();
    assert!(alone.contains("disk 1 (n2) has no new writes"), "{alone}");
    servers.start(&["b"]);
    servers.until_whole();
    assert_eq!(servers.sum("b"), ["3", "6"]);
}

/// Hosts a and b reach one disk, and b has another one. The fence command fails until a is off.
#[test]
fn a_shared_disk_is_served_by_another_host_when_the_end_of_the_first_is_proved() {
    let place = tempfile::tempdir().unwrap();
    let (disk, fence) = (place.path().join("san"), place.path().join("fence"));
    fs::write(&fence, "test -e $0.works\n").unwrap();
    let (disk, command) = (format!("san={}", disk.display()), format!("sh {}", fence.display()));
    let servers = Servers::init(&["--shared-disk", &disk, "--fence", &command, "--disk", "b=disks/0"]);
    servers.start(&HOSTS);
    servers.sql("a", "create table t (id int primary key)").ok();
    servers.sql("a", "insert into t values (1), (2)").ok();
    let server = |host: &str| servers.on(host, "disks").args(["--json"]).said().json()["disks"][1].clone();
    assert_eq!(["node", "failure_group"].map(|key| server("b")[key].clone()), ["n1", "san"]);
    servers.lose(&["a"]);
    let status = || Value::from(servers.on("b", "status").said().out);
    let waits = |status: &Value| status.as_str().unwrap().contains("exit status 1");
    until("the fence command has failed", status, waits);
    assert_eq!(server("b")["node"], "n1", "no proof");
    fs::write(place.path().join("fence.works"), "").unwrap();
    let has_moved = |disk: &Value| disk["node"] == "n2" && disk["state"] == "current";
    until("n2 serves the disk", || server("b"), has_moved);
    servers.sql("w", "insert into t values (3)").ok();
    let whole = servers.on("b", "status").said().ok();
    assert!(!whole.contains("one copy less"), "{whole}");
    servers.start(&["a"]);
    servers.until_whole();
    servers.lose(&["b"]);
    assert_eq!(servers.sum("a"), ["3", "6"]);
    servers.sql("a", "insert into t values (4)").ok();
    assert_eq!(["node", "state"].map(|key| server("a")[key].clone()), ["n1", "current"]);
    servers.start(&["b"]);
    servers.until_whole();
    let scrubbed = servers.on("b", "disk").args(["scrub"]).said().ok();
    assert!(scrubbed.contains("no difference"), "{scrubbed}");
    // One that leaves says itself that its disk has nothing left to do: no command has to run.
    fs::remove_file(place.path().join("fence.works")).unwrap();
    servers.on("a", "down").said().ok();
    until("n2 serves the disk of the node that has left", || server("b"), has_moved);
    servers.sql("w", "insert into t values (5)").ok();
    fs::write(place.path().join("fence.works"), "").unwrap();
    servers.start(&["a"]);
    servers.until_whole();
    servers.lose(&HOSTS);
    servers.start(&HOSTS);
    servers.until_whole();
    assert_eq!(servers.sum("w"), ["5", "15"]);
}

/// The disk that has everything is away, and one of the others has missed more than the other one.
#[test]
fn disks_of_different_times_are_not_made_one() {
    let servers = Servers::up();
    servers.sql("a", "create table t (id int primary key)").ok();
    servers.sql("a", "insert into t values (1), (2)").ok();
    let new = servers.dir("w").join("disks/new");
    servers.on("w", "disk add").args([new.to_str().unwrap()]).said().ok();
    let seen = servers.on("a", "disks").args(["--json"]).said().json();
    let used = |disk: usize| seen["disks"][disk]["used_mib"].as_u64();
    // The chunk of blocks has moved from the other one.
    let (older, newer) = if used(0) > used(1) { ("a", "b") } else { ("b", "a") };
    servers.lose(&[older]);
    servers.sql("w", "insert into t values (3)").ok();
    servers.lose(&[newer, "w"]);
    thread::scope(|scope| {
        let up = ["a", "b"].map(|host| scope.spawn(|| servers.on(host, "up").said()));
        let status = || Value::from(servers.on("a", "status").said().out);
        until("the group waits", status, |status| {
            status.as_str().unwrap().contains("the disk group waits: ")
        });
        let refused = servers.on("a", "disk force --lose-newer --yes").said().refusal();
        assert!(
            refused.contains("lacks changes that") && refused.contains("start a node whose disk"),
            "{refused}"
        );
        servers.start(&["w"]);
        up.into_iter().for_each(|up| drop(up.join().unwrap().ok()));
    });
    servers.until_whole();
    assert_eq!(servers.sum("a"), ["3", "6"]);
}

#[test]
fn the_block_workload_runs_over_all_servers_and_finds_what_was_acknowledged() {
    let servers = Servers::init(&["--no-sql"]);
    servers.start(&HOSTS);
    let bench = |host| servers.on(host, "bench blocks --clients 2 --hot 48 --seconds 1 --warm-up 0 --json");
    for host in ["a", "w"] {
        let report = &bench(host).said().json()["blocks"][0];
        let [acknowledged, found] = ["changes_acknowledged", "changes_found"].map(|of| report[of].as_u64());
        assert!(acknowledged > Some(0) && acknowledged == found && report["nodes"] == 3, "{report}");
    }
}

#[test]
fn a_copy_that_was_removed_in_use_is_named_when_its_host_goes_down() {
    let servers = Servers::up();
    let disk = fs::read_dir(servers.dir("a").join("disks")).unwrap().map(|entry| entry.unwrap().path());
    let disk = disk.filter(|path| path.is_file()).max().unwrap();
    fs::remove_file(&disk).unwrap();
    let refusal = servers.on("a", "down --all").said().refusal();
    assert!(refusal.contains(disk.to_str().unwrap()) && refusal.contains("was removed"), "{refusal}");
}
