//! Commands that one node forwards to another.

use std::{
    sync::{Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use crate::cluster::{self, TIMEOUT};
use plexus_admin::{
    control::{Commands, Control, ControlError},
    create,
    layout::ClusterDir,
};
use plexus_fabric::RailKind;
use plexus_node::Node;
use serde_json::{Value, json};

/// Asks node n1 to forward a command.
fn forward(dir: &ClusterDir, node: &str, command: &str, within: Duration) -> Result<Value, ControlError> {
    let mut control = Control::connect(dir, "n1")?;
    let request = json!({ "command": command, "args": {} });
    let args = json!({ "node": node, "within_ms": within.as_millis() as u64, "request": request });
    control.call("forward", args, |_| {})
}

#[test]
fn a_member_answers_through_another_node_and_one_that_dies_meanwhile_is_not_reached() {
    let place = tempfile::tempdir().unwrap();
    let config = cluster::config(place.path(), 2, RailKind::Tcp, 30_000);
    create::create(&config).unwrap();
    let (begin, begun) = mpsc::channel();
    let (end, hangs) = mpsc::channel::<()>();
    let hangs = Mutex::new(hangs);
    let with_hanging_command = |commands: &Commands, _: &_| {
        commands.register("snapshot", move |_, _| {
            begin.send(()).unwrap();
            hangs.lock().unwrap().recv_timeout(TIMEOUT).unwrap_err();
            Ok(Value::Null)
        });
    };
    let (n1, n2) = thread::scope(|scope| {
        let n2 = scope.spawn(|| {
            Node::start(config.clone(), "n2", with_hanging_command, |why, _| eprintln!("{why}")).unwrap()
        });
        (cluster::start(&config, "n1"), n2.join().unwrap())
    });
    let ask = |node: &str, command: &str, within| forward(&config.dir, node, command, within);
    let start = Instant::now();
    while ask("n2", "status", TIMEOUT).unwrap()["ok"]["name"] != "n2" {
        assert!(start.elapsed() < TIMEOUT, "n2 is not reached");
    }
    let refused = ask("n2", "registry.get", TIMEOUT).unwrap();
    assert!(refused["error"].as_str().unwrap().contains("`registry.get` is not forwarded"), "{refused}");
    let unknown = ask("n3", "status", TIMEOUT).unwrap_err().to_string();
    assert!(unknown.contains("there is no node `n3`"), "{unknown}");

    let why =
        |said: Value| said["unreachable"].as_str().map(str::to_owned).unwrap_or_else(|| panic!("{said}"));
    let late = why(ask("n2", "snapshot", Duration::ZERO).unwrap());
    assert_eq!(late, "it did not answer within 0 s");
    begun.recv_timeout(TIMEOUT).unwrap();
    thread::scope(|scope| {
        let asked = scope.spawn(|| ask("n2", "snapshot", TIMEOUT).unwrap());
        begun.recv_timeout(TIMEOUT).unwrap();
        drop(n2);
        let lost = why(asked.join().unwrap());
        assert!(lost.starts_with("its connection was lost before it answered"), "{lost}");
    });
    // It is down when a view without it is open.
    let start = Instant::now();
    while ask("n2", "status", TIMEOUT).unwrap() != "down" {
        assert!(start.elapsed() < TIMEOUT, "no view without n2 is opened");
    }
    drop((end, n1));
}
