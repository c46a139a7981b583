//! Servers without shared storage: two with a disk each, and a witness. Each has a directory, a
//! host name and an address of its own; all run on this machine.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU8, Ordering::Relaxed},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{CommandOutput, Run, run, signal, until};

const HOSTS: [&str; 3] = ["a", "b", "w"];

struct Servers(tempfile::TempDir);

impl Servers {
    /// Makes a cluster and starts it everywhere.
    fn up() -> Self {
        static MADE: AtomicU8 = AtomicU8::new(0);
        let [a, b, ..] = std::process::id().to_le_bytes();
        let last = 250 - 4 * MADE.fetch_add(1, Relaxed);
        let address = |host: u8| format!("{}=127.{b}.{a}.{}", HOSTS[usize::from(host)], last + host);
        let servers = Self(tempfile::tempdir().unwrap());
        HOSTS.iter().for_each(|host| fs::create_dir_all(servers.dir(host).parent().unwrap()).unwrap());
        let hosts =
            ["--host", &address(0), "--host", &address(1), "--witness", &address(2), "--port", "7700"];
        let sizes = ["--size-mib", "64", "--cache-mib", "8", "--redo-mib", "16"];
        let init = run(["init", servers.dir("a").to_str().unwrap()]).args(hosts).args(sizes);
        let said = init.env("PLEXUS_HOST", "a").env("USER", "tester").said().ok();
        assert!(said.contains("redundancy mirror2") && said.contains("b: disks/0"), "{said}");
        for host in &HOSTS[1..] {
            fs::create_dir_all(servers.dir(host).join("keys")).unwrap();
            let keys = fs::read_dir(servers.dir("a").join("keys")).unwrap();
            let keys = keys.map(|key| format!("keys/{}", key.unwrap().file_name().to_str().unwrap()));
            for file in keys.chain(["cluster.toml".to_owned()]) {
                fs::copy(servers.dir("a").join(&file), servers.dir(host).join(&file)).unwrap();
            }
        }
        servers.start(&HOSTS);
        servers
    }

    fn dir(&self, host: &str) -> PathBuf {
        self.0.path().join(host).join("c1")
    }

    fn on(&self, host: &str, command: &str) -> Run {
        run([command, "-C", self.dir(host).to_str().unwrap()]).env("PLEXUS_HOST", host)
    }

    fn start(&self, hosts: &[&str]) {
        std::thread::scope(|scope| {
            for host in hosts {
                scope.spawn(|| self.on(host, "up").said().ok());
            }
        });
    }

    fn sql(&self, host: &str, text: &str) -> CommandOutput {
        let node = format!("n{}", HOSTS.iter().position(|known| *known == host).unwrap() + 1);
        self.on(host, "sql").args(["-n", &node, "-c", text]).said()
    }

    fn count(&self, host: &str) -> String {
        self.sql(host, "select count(*) as rows, sum(id) as sum from t").ok()
    }

    /// Kills the nodes of hosts and their supervisors: the hosts are lost.
    fn lose(&self, hosts: &[&str]) {
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

    fn until_whole(&self) {
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
    assert!(status.contains("has no new writes: its chunks have one copy less"), "{status}");
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
