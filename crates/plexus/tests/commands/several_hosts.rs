//! A cluster on two machines, and servers without shared storage, as the guide has them. Each
//! machine is a network namespace with a host name, a home directory and the shared storage at
//! `/mnt`.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    thread,
};

use plexus_namespaces::{Direction, Lan, device, need};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{CommandOutput, Run, program, run, run_line, signal, until};

const NAMES: [&str; 2] = ["alpha", "beta"];

/// All machines; the clusters on shared storage have two.
const MACHINES: [&str; 3] = ["alpha", "beta", "gamma"];

/// Ends the processes of Plexus on a machine, as if its power was lost.
const POWER_OFF: &str = r#"net=$(readlink /proc/self/ns/net)
for process in /proc/[0-9]*; do
    [ "$(readlink $process/ns/net)" = "$net" ] && readlink $process/exe | grep -q plexus &&
        kill -KILL ${process#/proc/}
done
exit 0"#;

/// Three machines. Their nodes end with them.
struct Machines {
    place: tempfile::TempDir,
    lan: Lan,
}

impl Machines {
    /// Creates the machines `alpha`, 10.0.0.1, `beta`, 10.0.0.2, and `gamma`, 10.0.0.3, each with
    /// an empty home directory; `None` where none can be created.
    fn new() -> Option<Self> {
        let lan = match Lan::new(MACHINES.len(), 1) {
            Ok(lan) => lan,
            Err(why) => {
                eprintln!("skipped: {why}");
                return None;
            }
        };
        for host in 0..MACHINES.len() {
            let address = format!("ip addr add 10.0.0.{}/24 dev {}", host + 1, device(0));
            lan.host(host).run(&address).unwrap();
        }
        let place = tempfile::tempdir().unwrap();
        for directory in ["bin", "shared"].into_iter().chain(MACHINES) {
            fs::create_dir(place.path().join(directory)).unwrap();
        }
        let root = place.path().display();
        let script = |name: &str, text: String| {
            let path = place.path().join("bin").join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        };
        let enter = |host: usize| format!("{}) net={};;", MACHINES[host], lan.host(host).path().display());
        script(
            "on",
            format!(
                "case $1 in {} esac\nexec nsenter --net=$net unshare --mount --uts sh -c '\
                 echo '$1' > /proc/sys/kernel/hostname && mount --bind {root}/shared /mnt && \
                 cd {root}/'$1' && eval \"$1\"' sh \"$2\"",
                (0..MACHINES.len()).map(enter).collect::<Vec<_>>().join(" ")
            ),
        );
        script("poweroff", POWER_OFF.into());
        script("ssh", "host=$1; shift; exec on $host \"$*\"".into());
        let copy = "shift; while [ $# -gt 1 ]; do files=\"$files $1\"; shift; done";
        script("scp", format!("{copy}; exec cp -p $files \"{root}/${{1%%:*}}/${{1#*:}}\""));
        Some(Self { place, lan })
    }

    /// Runs a line of a shell on a machine.
    fn on(&self, host: &str, line: &str) -> CommandOutput {
        let (bin, plexus) = (self.place.path().join("bin"), program().parent().unwrap());
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(bin.join("on"));
        command.args([host, line]).env("PATH", format!("{}:{}:{path}", bin.display(), plexus.display()));
        command.env_remove("PLEXUS_DIR").env_remove("PLEXUS_HOST");
        CommandOutput::of(command.output().unwrap())
    }

    /// Creates a cluster with a lease so long that no node is evicted, and starts it.
    fn cluster_up(&self) {
        let init = "plexus init c1 --no-sql --size-mib 8 --cache-mib 4 --shared /mnt/c1 --host alpha=10.0.0.1 --host beta=10.0.0.2";
        let times = "lease_ms = 100000\\nevict_ms = 100000";
        let slow = format!("sed -i 's/^profile = .*/&\\n{times}/' c1/cluster.toml");
        let copy = "ssh beta mkdir -p c1/keys && for file in cluster.toml keys/cluster.key; do scp -p c1/$file beta:c1/$file; done";
        for line in [init, &slow, copy, "plexus up -C c1"] {
            self.on("alpha", line).ok();
        }
        self.on("beta", "plexus up -C c1").ok();
        let status = || self.on("alpha", "plexus status -C c1 --json").json();
        let is_whole = |node: &Value| node["members"] == json!(["n1", "n2"]);
        until("both are members", status, |status| status["nodes"].as_array().unwrap().iter().all(is_whole));
    }

    fn pid(&self, host: &str, node: usize) -> i32 {
        let status = self.on(host, "plexus status -C c1 --json").json();
        status["nodes"][node]["pid"].as_i64().unwrap() as i32
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for host in MACHINES {
            self.on(host, "plexus down -C c1");
        }
    }
}

/// Returns the commands in the guide below a heading, each with its machine.
fn steps_of(heading: &str) -> Vec<(String, String)> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide.md");
    let guide = fs::read_to_string(guide).unwrap();
    let chapter = guide.split(&format!("\n{heading}\n")).nth(1).expect(heading);
    let chapter = chapter.split("\n##").next().unwrap();
    let steps = chapter.lines().filter_map(|line| line.strip_prefix("    ")?.split_once("$ "));
    steps.map(|(host, step)| (host.to_owned(), step.to_owned())).collect()
}

#[test]
fn the_walk_through_of_two_machines_works_as_written() {
    let Some(machines) = Machines::new() else { return };
    let steps = steps_of("## Nodes on several machines");
    assert!(steps.len() > 10 && steps.last().unwrap().1.starts_with("plexus down --all"), "{steps:?}");
    let mut environment = [String::new(), String::new()];
    let mut said = Vec::new();
    for (host, step) in &steps {
        let environment = &mut environment[usize::from(host == "beta")];
        if step.starts_with("export ") {
            *environment += &format!("{step}\n");
            continue;
        }
        said.push((format!("{host}$ {step}"), machines.on(host, &format!("{environment}{step}")).ok()));
    }
    let of = |start: &str, at: usize| {
        let mut all = said.iter().filter(|(step, _)| step.starts_with(start)).map(|(_, said)| said.as_str());
        all.nth(at).unwrap_or_else(|| panic!("no {start} {at}: {said:?}")).to_owned()
    };
    let whole = of("alpha$ plexus status", 0);
    assert!(whole.contains("n2    running") && whole.contains("votes: 3 of 3"), "{whole}");
    assert!(of("beta$ plexus rails", 0).contains("active"), "{said:?}");
    let down = of("beta$ plexus down", 0);
    assert!(down.contains("c1: down on beta: 1 nodes") && down.contains("n1 on alpha: going on"), "{down}");
    let without = of("alpha$ plexus status", 1);
    assert!(without.contains("n1    running") && without.contains("n2    down"), "{without}");
    let all = of("alpha$ plexus down --all", 0);
    assert!(all.contains("c1: down: 2 nodes") && all.contains("everything is on disk"), "{all}");
    for host in NAMES {
        let run = fs::read_dir(machines.place.path().join(host).join("c1/run")).unwrap();
        let sockets = run.filter(|entry| entry.as_ref().unwrap().path().extension() == Some("sock".as_ref()));
        assert_eq!(sockets.count(), 0, "{host}: a node goes on");
    }
}

#[test]
fn commands_reach_the_nodes_of_the_other_machine_through_a_local_node() {
    let Some(machines) = Machines::new() else { return };
    machines.cluster_up();
    let alpha = |line: &str| machines.on("alpha", &format!("export PLEXUS_DIR=c1; {line}"));

    // A lock that n2 holds, whichever of the two masters it.
    let beta = "for name in a b c d e f; do plexus lock -C c1 $name -- sleep 600 >/dev/null 2>&1 & done";
    machines.on("beta", beta).ok();
    let locks = until(
        "all locks are held",
        || alpha("plexus locks --json").json(),
        |locks| locks["resources"].as_array().unwrap().len() == 6,
    );
    let masters: Vec<_> = locks["nodes"].as_array().unwrap().iter().map(|node| &node["state"]).collect();
    assert_eq!(masters, ["granting", "granting"]);

    let stat = alpha("plexus stat --json --node n2").json();
    assert!(stat["channels"].is_object(), "{stat}");
    let metrics = alpha("plexus metrics").ok();
    assert!(metrics.contains("node=\"n1\"") && metrics.contains("node=\"n2\""), "{metrics}");
    let rails = alpha("plexus rails --json").json();
    assert!(rails["rails"][0]["ends"]["n2"].is_array(), "{rails}");
    let refusal = alpha("plexus lock --node n2 a -- true").refusal_with(125);
    assert!(
        refusal.contains("n2 belongs on beta, and not on this machine: run the command there"),
        "{refusal}"
    );

    for host in NAMES {
        let bench = "plexus bench blocks -C c1 --clients 2 --seconds 0.2 --warm-up 0 --json";
        let report = &machines.on(host, bench).json()["blocks"][0];
        let [acknowledged, found] = ["changes_acknowledged", "changes_found"].map(|of| report[of].as_u64());
        assert!(acknowledged > Some(0) && acknowledged == found && report["nodes"] == 2, "{report}");
    }
    for measure in ["perf n1 n2", "bench locks"] {
        let refusal = alpha(&format!("plexus {measure}")).refusal();
        assert!(refusal.contains("n2 belongs on beta, and other nodes that take part do not"), "{refusal}");
    }

    // A node that does not answer is a member that is not reached, and not one that is down.
    let n2 = machines.pid("alpha", 1);
    signal(n2, Signal::STOP);
    let (status, down) = thread::scope(|scope| {
        let status = scope.spawn(|| alpha("plexus status"));
        let json = alpha("plexus status --json");
        (status.join().unwrap(), json)
    });
    signal(n2, Signal::CONT);
    let (status, down) = (status.ok(), down.json());
    assert!(status.contains("n2: member, not reachable from here: it did not answer within 5 s"), "{status}");
    assert_eq!(
        (&down["nodes"][0]["state"], &down["nodes"][1]["state"]),
        (&json!("running"), &json!("unreachable"))
    );

    // Without a node of its own, a machine knows nothing of the others.
    machines.on("beta", "plexus down -C c1").ok();
    let status = machines.on("beta", "plexus status -C c1").ok();
    assert!(
        status.contains("n1: not reachable from here: it belongs on alpha, and no node runs"),
        "{status}"
    );
    let status = alpha("plexus status").ok();
    assert!(status.contains("n2: no member: it is down, or still starting; `plexus up` on beta"), "{status}");
    alpha("plexus node remove n2 --force").ok();
    let status = alpha("plexus status --json").json();
    assert_eq!(status["nodes"][1]["state"], "removed", "{status}");
    let down = alpha("plexus down --all").ok();
    assert!(down.contains("c1: down: 1 nodes"), "{down}");
}

/// As in a tunnel with 1,280 bytes, whose ends do not say that a packet was too long.
#[test]
fn served_voting_files_are_reached_where_long_packets_are_lost_without_a_word() {
    let Some(machines) = Machines::new() else { return };
    if let Err(why) = need(&[("nft", "nftables")]) {
        return eprintln!("skipped: {why}");
    }
    for host in 0..2 {
        machines.lan.host(host).allow_rules().unwrap();
        machines.lan.host(host).rule(Direction::In, "ip protocol udp ip length > 1280 drop").unwrap();
    }
    machines.cluster_up();
    let status = || json!(machines.on("alpha", "plexus status -C c1").ok());
    let all_vote = |status: &Value| status.as_str().is_some_and(|text| text.contains("votes: 3 of 3"));
    until("all voting files answer", status, all_vote);
    machines.on("alpha", "plexus down -C c1 --all").ok();
}

#[test]
fn a_voting_file_that_is_lost_after_the_first_start_does_not_come_back_empty() {
    let Some(machines) = Machines::new() else { return };
    machines.cluster_up();
    machines.on("alpha", "plexus down -C c1 --all").ok();
    machines.on("beta", "test -e c1/voting/n2 && rm c1/voting/n2").ok();
    // Both at once: each proves the end of its earlier incarnation.
    thread::scope(|scope| {
        let up = NAMES.map(|host| scope.spawn(|| machines.on(host, "plexus up -C c1")));
        up.into_iter().for_each(|up| drop(up.join().unwrap().ok()));
    });
    machines.on("beta", "test -e c1/voting/n2").refused();
    let status = machines.on("alpha", "plexus status -C c1").ok();
    assert!(status.contains("votes: 2 of 3 voting files answer"), "{status}");
    machines.on("alpha", "plexus down -C c1 --all").ok();
}

impl Machines {
    /// Follows sections of the guide one after the other. Returns the last output on each machine.
    fn follow(&self, headings: &[&str]) -> [String; 3] {
        let mut said: [String; 3] = Default::default();
        for (host, step) in headings.iter().flat_map(|heading| steps_of(heading)) {
            let runs = |machine: &usize| host == "all" || host == MACHINES[*machine];
            let machines: Vec<_> = (0..MACHINES.len()).filter(runs).collect();
            assert!(!machines.is_empty(), "{host}$ {step}");
            let run = |machine: usize| self.on(MACHINES[machine], &step);
            thread::scope(|scope| {
                let runs: Vec<_> =
                    machines.iter().map(|machine| scope.spawn(move || run(*machine))).collect();
                for (machine, run) in machines.iter().zip(runs) {
                    said[*machine] = run.join().unwrap().ok();
                }
            });
        }
        said
    }

    /// Waits until all disks have everything.
    fn until_whole(&self) {
        let status = || Value::from(self.on("alpha", "plexus status -C c1").out);
        until("all disks are current", status, |status| {
            let status = status.as_str().unwrap();
            status.contains("n1,n2,n3") && !status.contains("one copy less")
        });
    }
}

#[test]
fn three_plain_servers_work_as_written() {
    let Some(machines) = Machines::new() else { return };
    let [_, beta, gamma] = machines.follow(&["### Three plain servers"]);
    assert!(beta.contains("INSERT 0 2") && gamma.contains("three"), "{beta}{gamma}");
    machines.until_whole();
}

#[test]
fn disks_and_hosts_are_replaced_as_written() {
    let Some(machines) = Machines::new() else { return };
    machines.follow(&["### Three plain servers"]);
    machines.until_whole();
    let [_, scrubbed, _] = machines.follow(&["### Change the disks"]);
    assert!(scrubbed.contains("no difference"), "{scrubbed}");
    machines.until_whole();

    machines.on("gamma", "poweroff --force --force").ok();
    machines.on("gamma", "rm -r c1").ok();
    let [_, _, rows] = machines.follow(&["### Replace a dead host"]);
    assert!(rows.contains("three"), "{rows}");
    machines.until_whole();

    machines.on("gamma", "poweroff --force --force").ok();
    machines.on("gamma", "rm c1/disks/0 && plexus up -C c1").ok();
    let [_, _, disks] = machines.follow(&["### Replace a dead disk"]);
    assert!(disks.contains("c1/disks/1") && !disks.contains("stale"), "{disks}");
    machines.until_whole();
    let checked = machines.on("gamma", "plexus disk scrub -C c1 && plexus store check -C c1").ok();
    assert!(checked.contains("no difference") && checked.contains("no fault"), "{checked}");
}

#[test]
fn two_servers_and_a_witness_work_as_written_and_survive_the_loss_of_all_power() {
    let Some(machines) = Machines::new() else { return };
    let [status, beta, _] = machines.follow(&["### Two servers and a witness"]);
    assert!(status.contains("one copy less") && beta.contains("one"), "{status}{beta}");
    machines.until_whole();
    machines.follow(&["### All power is lost"]);
    let rows = machines.on("beta", "plexus sql -C c1 -c 'select * from t'").ok();
    assert!(rows.contains("one"), "{rows}");
    machines.until_whole();
}

/// Three machines without namespaces: each has a directory, and an address of the loopback network.
/// Their nodes end with it.
struct Directories(tempfile::TempDir);

impl Directories {
    const HOSTS: [&str; 3] = ["a", "b", "c"];

    fn run(&self, host: &str, args: &str) -> Run {
        let mut run = run_line(args).env("PLEXUS_HOST", host);
        run.0.current_dir(self.0.path().join(host));
        run
    }

    fn on(&self, host: &str, args: &str) -> CommandOutput {
        self.run(host, args).args(["-C", "c1"]).said()
    }

    /// Starts the nodes of all machines at once.
    fn up(&self) {
        thread::scope(|scope| {
            let up = Self::HOSTS.map(|host| scope.spawn(move || self.on(host, "up")));
            up.into_iter().for_each(|up| drop(up.join().unwrap().ok()));
        });
    }
}

impl Drop for Directories {
    fn drop(&mut self) {
        for host in Self::HOSTS {
            self.on(host, "down");
        }
    }
}

#[test]
fn three_machines_end_together_or_one_by_one_and_the_last_one_with_the_second() {
    let machines = Directories(tempfile::tempdir().unwrap());
    let place = |host: &str| machines.0.path().join(host);
    Directories::HOSTS.iter().for_each(|host| fs::create_dir(place(host)).unwrap());
    let [x, y, ..] = std::process::id().to_le_bytes();
    let hosts: Vec<_> =
        (251..).zip(Directories::HOSTS).map(|(z, host)| format!("--host {host}=127.{y}.{x}.{z}")).collect();
    let init = format!(
        "init c1 --no-sql --size-mib 8 --cache-mib 4 --nodes-per-host 2 --shared {} {}",
        machines.0.path().join("shared").display(),
        hosts.join(" ")
    );
    let said = machines.run("a", &init).said().ok();
    assert!(said.contains("6 nodes") && said.contains("copy cluster.toml and keys/cluster.key"), "{said}");
    for host in ["b", "c"] {
        fs::create_dir_all(place(host).join("c1/keys")).unwrap();
        for file in ["c1/cluster.toml", "c1/keys/cluster.key"] {
            fs::copy(place("a").join(file), place(host).join(file)).unwrap();
        }
    }
    machines.up();
    let all = machines.on("b", "down --all").ok();
    assert!(all.contains("c1: down: 6 nodes") && all.contains("everything is on disk"), "{all}");
    for host in Directories::HOSTS {
        assert!(machines.on(host, "down").ok().contains("no node runs on this machine"), "{host}");
    }
    machines.up();
    let first = machines.on("a", "down").ok();
    assert!(first.contains("n3 on b, n4 on b, n5 on c, n6 on c: going on"), "{first}");
    let second = machines.on("b", "down").ok();
    assert!(second.contains("n5 on c, n6 on c: ending too"), "{second}");
    let last = || machines.on("c", "status --json").json();
    let is_down = |status: &Value| (4..6).all(|node| status["nodes"][node]["state"] == "down");
    until("the last ones have ended", last, is_down);
}

#[test]
fn init_for_several_machines_refuses_what_cannot_work() {
    let refused = |hosts: &[&str]| {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("c1");
        let mut init = run(["init", dir.to_str().unwrap()]).env("PLEXUS_HOST", "a");
        for host in hosts {
            init = init.args(["--host", host]);
        }
        let said = init.said();
        assert!(!dir.exists(), "{hosts:?}");
        said.err
    };
    for (hosts, why) in [
        (&["b=10.0.0.2"][..], "this machine, a, is none of them"),
        (&["a=10.0.0.1", "b=10.0.0.1"], "with an address of its own"),
        (&["a=10.0.0.1", "a=10.0.0.2"], "give each machine once"),
        (&["a=alpha"], "`alpha` is not an IP address"),
        (&["=10.0.0.1"], "the name of the machine is missing"),
        (&["a"], "use NAME=ADDRESS"),
    ] {
        let said = refused(hosts);
        assert!(said.contains(why), "{hosts:?}: {said}");
    }
}
