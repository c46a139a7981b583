//! Supervised nodes: an evicted node returns by itself, one that a user ended does not, and a
//! service manager learns the state of a node. Units, manual pages and completions.

use std::{
    io,
    net::TcpListener,
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::common::{Cluster, Run, TIMEOUT, program, run, runs, signal, until, wait_for_end};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Stops n3 until the others have killed it as a fence. Returns its process id.
fn evict(cluster: &Cluster) -> i32 {
    let pid = cluster.pids()[2];
    signal(pid, Signal::STOP);
    wait_for_end(pid);
    pid
}

/// Waits until all three nodes are members, n3 as another process than this one.
fn until_returned(cluster: &Cluster, before: i32) {
    cluster.wait_until("n3 is a member again", |status| {
        let all = json!(["n1", "n2", "n3"]);
        (0..3).all(|node| status["nodes"][node]["members"] == all) && status["nodes"][2]["pid"] != before
    });
}

fn is_down_for_good(status: &Value, node: usize) -> bool {
    let node = &status["nodes"][node];
    (node["state"] == "down" || node["state"] == "removed") && node["returns"] == false
}

#[test]
fn a_node_that_was_killed_as_a_fence_returns_by_itself() {
    let cluster = Cluster::up(3);
    let before = evict(&cluster);
    until_returned(&cluster, before);
    let status = cluster.run("status").said().ok();
    assert!(status.contains("n3: its last run ended at") && status.contains("it was evicted"), "{status}");
    let down = cluster.run("down").said().ok();
    assert!(down.contains("down: 3 nodes"), "{down}");
    cluster.wait_until("no supervisor is left", |status| (0..3).all(|node| is_down_for_good(status, node)));
}

#[test]
fn a_node_that_lost_its_lease_returns_by_itself() {
    let hosts = ["host0", "host1", "host2"];
    let cluster = Cluster::on_hosts(&hosts);
    std::thread::scope(|scope| {
        let up = |host| cluster.run("up").env("PLEXUS_HOST", host).said().ok();
        let all = hosts.map(|host| scope.spawn(move || up(host)));
        all.into_iter().for_each(|up| drop(up.join().unwrap()));
    });
    let before = cluster.pids()[2];
    signal(before, Signal::STOP);
    cluster.wait_until("n3 is evicted", |status| status["nodes"][0]["members"] == json!(["n1", "n2"]));
    assert!(runs(before), "no other node may kill it");
    signal(before, Signal::CONT);
    until_returned(&cluster, before);
}

#[test]
fn a_node_that_a_user_ends_between_two_runs_does_not_return() {
    let cluster = Cluster::up(3);
    evict(&cluster);
    // Before, during or after its return: nothing may run afterwards.
    run(["node", "stop", "n3"]).env("PLEXUS_DIR", cluster.dir().to_str().unwrap()).said().ok();
    let status = cluster.run("status").args(["--json"]).said().json();
    assert!(is_down_for_good(&status, 2), "{status}");

    cluster.run("up").said().ok();
    let before = evict(&cluster);
    // It is started at once, by this command or by its supervisor.
    cluster.run("up").said().ok();
    until_returned(&cluster, before);
    evict(&cluster);
    cluster.run("down").said();
    let status = cluster.run("status").args(["--json"]).said().json();
    assert!((0..3).all(|node| is_down_for_good(&status, node)), "{status}");
}

#[test]
fn a_node_that_a_user_killed_does_not_return() {
    let cluster = Cluster::up(1);
    let pid = cluster.pids()[0];
    signal(pid, Signal::KILL);
    wait_for_end(pid);
    cluster.wait_until("its supervisor has ended", |status| is_down_for_good(status, 0));
}

#[test]
fn a_return_that_fails_is_tried_again_until_the_node_is_removed() {
    let cluster = Cluster::up(3);
    let text = std::fs::read_to_string(cluster.dir().join("cluster.toml")).unwrap();
    let n3 = text.split("name = \"n3\"").nth(1).unwrap();
    let address = n3.split("\naddress = \"").nth(1).unwrap().split('"').next().unwrap();
    evict(&cluster);
    // It cannot return while another program has its address. The kernel frees it shortly after the
    // end of the process.
    let start = Instant::now();
    let obstacle = loop {
        match TcpListener::bind(address) {
            Ok(obstacle) => break obstacle,
            Err(error) => assert!(start.elapsed() < TIMEOUT, "{error}"),
        }
    };
    let log = cluster.dir().join("log/n3.log");
    cluster.wait_until("the second return was announced", |status| {
        let log = std::fs::read_to_string(&log).unwrap();
        let n3 = &status["nodes"][2];
        assert!(n3["state"] != "down" || n3["returns"] == true, "{n3}: {log}");
        log.matches("n3 returns in").count() == 2
    });
    let status = || Value::from(cluster.run("status").said().ok());
    until("the time of the return is shown", status, |status| {
        status.as_str().is_some_and(|status| status.contains("it returns by itself in "))
    });
    let remove = run(["node", "remove", "--force", "n3"]);
    remove.env("PLEXUS_DIR", cluster.dir().to_str().unwrap()).said().ok();
    drop(obstacle);
    let status = cluster.run("status").said().ok();
    let returns = ["it returns by itself", "it is starting again"];
    assert!(returns.iter().any(|what| status.contains(what)) || !status.contains("n3: down"), "{status}");
    cluster.wait_until("it is down for good", |status| is_down_for_good(status, 2));
    let status = cluster.run("status").said().ok();
    assert!(status.contains("removed from the cluster"), "{status}");
}

/// A service manager that started a node.
struct Manager {
    socket: UnixDatagram,
    node: Child,
}

impl Manager {
    fn start(cluster: &Cluster, at: &Path) -> Self {
        let socket = UnixDatagram::bind(at).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut node = run(["node", "n1"]).args(["-C", cluster.dir().to_str().unwrap()]);
        node = node.env("NOTIFY_SOCKET", at.to_str().unwrap()).env("WATCHDOG_USEC", "200000");
        Self { socket, node: node.0.stderr(Stdio::null()).spawn().unwrap() }
    }

    fn next(&self) -> io::Result<String> {
        let mut message = [0; 512];
        let length = self.socket.recv(&mut message)?;
        Ok(String::from_utf8(message[..length].to_vec()).unwrap())
    }

    /// Reads messages until this one has come; returns those before.
    fn until(&self, message: &str) -> Vec<String> {
        let mut before = Vec::new();
        loop {
            match self.next().unwrap() {
                next if next == message => return before,
                next => before.push(next),
            }
        }
    }
}

#[test]
fn a_service_manager_hears_that_a_node_is_ready_works_and_ends() {
    let cluster = Cluster::new(1);
    cluster.prevent_evictions();
    let mut manager = Manager::start(&cluster, &cluster.parent().join("notify"));
    let starting = manager.until("READY=1");
    assert!(starting.contains(&"STATUS=waits for its peers".into()), "{starting:?}");
    assert!(starting.iter().any(|status| status.ends_with("members are n1")), "{starting:?}");
    (0..3).for_each(|_| drop(manager.until("WATCHDOG=1")));

    let pid = manager.node.id() as i32;
    crate::programs::stop(pid);
    manager.socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    while manager.next().is_ok() {}
    assert!(manager.next().is_err(), "a node that stands still sends no watchdog message");
    signal(pid, Signal::CONT);
    manager.socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    manager.until("WATCHDOG=1");

    signal(pid, Signal::TERM);
    manager.until("STOPPING=1");
    assert_eq!(manager.node.wait().unwrap().code(), Some(0));
}

#[test]
fn a_node_that_is_told_to_end_while_it_joins_ends_in_order() {
    let cluster = Cluster::new(2);
    let mut manager = Manager::start(&cluster, &cluster.parent().join("notify"));
    // Without a majority of voting files its node waits.
    std::fs::rename(cluster.dir().join("voting"), cluster.parent().join("voting")).unwrap();
    manager.until("STATUS=waits for its peers");
    signal(manager.node.id() as i32, Signal::TERM);
    manager.until("STOPPING=1");
    assert_eq!(manager.node.wait().unwrap().code(), Some(0));
}

/// Runs `plexus systemd ARGS` as a user whose home is the parent of the cluster.
fn systemd<'a>(cluster: &Cluster, args: impl IntoIterator<Item = &'a str>) -> Run {
    let home = cluster.parent().to_str().unwrap();
    let run = run(["systemd"]).args(args).args(["-C", cluster.dir().to_str().unwrap()]);
    run.env("HOME", home).env("XDG_CONFIG_HOME", "")
}

#[test]
fn units_are_installed_used_and_removed() {
    let cluster = Cluster::new(2);
    let printed = systemd(&cluster, ["install", "--user", "--print"]).said().ok();
    let written = systemd(&cluster, ["install", "--user"]).said().ok();
    assert!(
        written.contains(
            "next: systemctl --user daemon-reload && systemctl --user enable --now plexus-c1.target"
        )
    );
    let units = cluster.parent().join(".config/systemd/user");
    let unit = |name: &str| std::fs::read_to_string(units.join(name)).unwrap();
    let (service, target) = (unit("plexus-c1@.service"), unit("plexus-c1.target"));
    assert!(printed.contains(&service) && printed.contains(&target), "{printed}");
    let command =
        format!("ExecStart=\"{}\" node %i -C \"{}\"\n", program().display(), cluster.dir().display());
    assert!(
        service.contains(&command) && service.contains("RestartPreventExitStatus=2 4 5 6\n"),
        "{service}"
    );
    assert!(target.contains("Wants=plexus-c1@n1.service\nWants=plexus-c1@n2.service\n"), "{target}");

    match Command::new("systemd-analyze").arg("--version").output() {
        Ok(_) => {
            let mut verify = Command::new("systemd-analyze");
            verify.args(["--user", "--man=no", "verify", "plexus-c1@n1.service", "plexus-c1.target"]);
            verify
                .current_dir(&units)
                .env("XDG_RUNTIME_DIR", cluster.parent())
                .env("SYSTEMD_UNIT_PATH", format!("{}:", units.display()));
            let verified = verify.output().unwrap();
            let complaints = String::from_utf8(verified.stderr).unwrap();
            assert!(verified.status.success() && !complaints.contains("plexus-c1"), "{complaints}");
        }
        Err(error) => eprintln!("skipped in part: systemd-analyze: {error}"),
    }

    // As after an interruption between the two.
    std::fs::remove_file(units.join("plexus-c1.target")).unwrap();
    systemd(&cluster, ["install", "--user"]).said().ok();
    assert_eq!(std::fs::read_dir(&units).unwrap().count(), 2);

    let home = cluster.parent().to_str().unwrap();
    let up = cluster.run("up").env("HOME", home).env("XDG_CONFIG_HOME", "").said().refusal();
    assert!(up.contains("`systemctl --user start plexus-c1@n1 plexus-c1@n2`"), "{up}");
    std::fs::remove_file(units.join("plexus-c1@.service")).unwrap();
    systemd(&cluster, ["remove", "--user"]).said().ok();
    assert_eq!(std::fs::read_dir(&units).unwrap().count(), 0);
    assert!(systemd(&cluster, ["remove", "--user"]).said().refusal().contains("there are no units of c1"));
    cluster.run("up").env("HOME", home).env("XDG_CONFIG_HOME", "").said().ok();
}

#[test]
fn a_node_with_an_invalid_configuration_is_not_restarted() {
    let cluster = Cluster::new(1);
    let node = |name: &str| run(["node", name, "-C", cluster.dir().to_str().unwrap()]).said();
    assert!(node("n9").refusal_with(2).contains("n9"));
    cluster.edit("name = \"n1\"", "name = \"n1\"\nno_such_key = 1");
    assert!(node("n1").refusal_with(2).contains("no_such_key"));
}

#[test]
fn manual_pages_and_completions_cover_the_commands() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().to_str().unwrap();
    for kind in ["man", "completions"] {
        run(["generate", kind, dir]).said().ok();
    }
    let read = |name: &str| std::fs::read_to_string(place.path().join(name)).unwrap();
    let help = run(["--help"]).said().ok();
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let mut pages = 0;
    for line in commands.lines() {
        let Some(name) = line.strip_prefix("  ").and_then(|line| line.split(' ').next()) else { continue };
        if !name.is_empty() && name != "help" {
            assert!(read(&format!("plexus-{name}.1")).contains(".SH SYNOPSIS"), "{name}");
            pages += 1;
        }
    }
    assert!(pages > 15, "{help}");
    assert!(
        read("plexus.1").contains("\\fB\\-C\\fR")
            && read("plexus.1").contains("plexus\\-up(1)")
            && read("plexus-node-stop.1").contains("without loss")
    );
    assert!(!place.path().join("plexus-janitor.1").exists(), "a hidden command has no page");
    assert!(
        read("_plexus").starts_with("#compdef plexus") && read("plexus.fish").contains("complete -c plexus")
    );
    let script = "source \"$0/plexus.bash\" && complete -p plexus";
    match Command::new("bash").args(["-c", script, dir]).output() {
        Ok(loaded) => {
            let said = String::from_utf8(loaded.stdout).unwrap();
            assert!(loaded.status.success() && said.contains("-F _plexus"), "{said}");
        }
        Err(error) => eprintln!("skipped in part: bash: {error}"),
    }
}
