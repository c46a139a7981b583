//! The registry of real nodes, used by threads inside them.

use std::{
    sync::{Arc, Condvar, Mutex, mpsc},
    thread,
    time::Duration,
};

use crate::cluster::Cluster;
use plexus_admin::{
    control::{Control, ControlError},
    layout::ClusterDir,
};
use plexus_fabric::RailKind;
use plexus_registry::{
    Registry, RegistryError,
    protocol::{Change, Command, Edit, EditKind, Key, Refused, VALUE_MAX, WatchEvent},
};

/// The timeout of these tests, far longer than any correct step.
const TIMEOUT: Duration = Duration::from_secs(60);

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

/// Returns the answer to a command.
fn done(registry: &Registry, command: Command) -> Result<u64, RegistryError> {
    registry.ask(command).wait(TIMEOUT).expect("an answer")
}

fn change(registry: &Registry, change: Change) -> Result<u64, RegistryError> {
    done(registry, Command::Change(change))
}

/// Returns the value of a key, at least as new as every answer before.
fn value(registry: &Registry, key: &str) -> Option<(u64, Vec<u8>)> {
    done(registry, Command::Look).unwrap();
    let contents = registry.contents().unwrap();
    contents.entry(key).map(|entry| (entry.version, entry.value.to_vec()))
}

#[test]
fn acknowledged_change_is_read_on_all_nodes_from_then_on() {
    for rail in [RailKind::Shm, RailKind::Tcp] {
        let cluster = Cluster::start(3, 2, rail);
        for number in 0..30u8 {
            let (from, to) = (usize::from(number) % 3, usize::from(number / 3) % 3);
            let version = change(&cluster.registry(from), Change::set(key("a"), &[number])).unwrap();
            assert_eq!(value(&cluster.registry(to), "a"), Some((version, vec![number])));
        }
        let refused = change(&cluster.registry(2), Change::compare_and_set(key("a"), 0, b"")).unwrap_err();
        assert!(matches!(refused, RegistryError::Refused(Refused::Version { expected: 0, .. })), "{refused}");
        change(&cluster.registry(1), Change::delete(key("a"))).unwrap();
        assert_eq!(value(&cluster.registry(0), "a"), None);
    }
}

#[test]
fn a_change_is_answered_when_every_member_has_applied_it() {
    struct Gate {
        is_closed: bool,
        applied: u64,
    }
    let gate = Arc::new((Mutex::new(Gate { is_closed: false, applied: 0 }), Condvar::new()));
    let cluster = Cluster::start(2, 1, RailKind::Shm);
    let before = change(&cluster.registry(0), Change::set(key("a"), b"1")).unwrap();
    cluster.registry(1).apply_before_report(Box::new({
        let gate = gate.clone();
        move |contents| {
            let gate_is_closed = |gate: &mut Gate| gate.is_closed;
            let mut state = gate.1.wait_while(gate.0.lock().unwrap(), gate_is_closed).unwrap();
            state.applied = contents.generation();
        }
    }));
    assert_eq!(gate.0.lock().unwrap().applied, before);
    gate.0.lock().unwrap().is_closed = true;
    let mut asked = cluster.registry(0).ask(Command::Change(Change::set(key("a"), b"2")));
    assert!(asked.wait(Duration::from_millis(300)).is_none(), "n2 has not applied the change");
    gate.0.lock().unwrap().is_closed = false;
    gate.1.notify_all();
    let generation = asked.wait(TIMEOUT).unwrap().unwrap();
    assert!(gate.0.lock().unwrap().applied >= generation);
}

#[test]
fn threads_of_all_nodes_that_compare_count_without_a_gap_and_a_watch_sees_each_step() {
    const EACH: u64 = 20;
    let cluster = Cluster::start(3, 1, RailKind::Shm);
    let first = change(&cluster.registry(0), Change::set(key("count"), &0u64.to_le_bytes())).unwrap();
    let watch = cluster.registry(2).watch("count", first).unwrap();
    let add = |registry: &Registry| loop {
        let (version, bytes) = value(registry, "count").unwrap();
        let next = u64::from_le_bytes(bytes.try_into().unwrap()) + 1;
        match change(registry, Change::compare_and_set(key("count"), version, &next.to_le_bytes())) {
            Ok(_) => return,
            Err(RegistryError::Refused(Refused::Version { .. })) => {}
            Err(error) => panic!("{error}"),
        }
    };
    thread::scope(|scope| {
        for node in [0, 1, 2, 1] {
            let registry = cluster.registry(node);
            scope.spawn(move || (0..EACH).for_each(|_| add(&registry)));
        }
    });
    let mut last = first;
    for count in 1..=4 * EACH {
        let Some(WatchEvent::Change(version, keys)) = watch.next(TIMEOUT).unwrap() else {
            panic!("a change")
        };
        assert!(version > last, "{version} after {last}");
        assert_eq!(keys[0].1.as_ref().unwrap().value[..], count.to_le_bytes());
        last = version;
    }
    assert_eq!(watch.next(Duration::ZERO).unwrap(), None);
}

#[test]
fn largest_values_reach_all_nodes() {
    let cluster = Cluster::start(2, 1, RailKind::Tcp);
    let large = |part: usize| {
        let edit = |n: usize| Edit {
            key: key(&format!("{part}/{n}")),
            expect: Some(0),
            what: EditKind::Set(vec![n as u8; VALUE_MAX].into()),
        };
        Change((0..120).map(edit).collect())
    };
    change(&cluster.registry(1), large(0)).unwrap();
    change(&cluster.registry(1), large(1)).unwrap();
    assert_eq!(value(&cluster.registry(0), "1/7").unwrap().1, vec![7; VALUE_MAX]);
    let full = change(&cluster.registry(0), large(2)).unwrap_err();
    assert!(matches!(full, RegistryError::Refused(Refused::Total { .. })), "{full}");
    let backup = cluster.directory().join("backup");
    cluster.registry(0).backup(&backup).unwrap();
    change(&cluster.registry(0), Change::delete(key("1/7"))).unwrap();
    let restore = cluster.registry(1).read_backup(&backup).unwrap();
    let version = done(&cluster.registry(1), restore).unwrap();
    assert_eq!(value(&cluster.registry(0), "1/7"), Some((version, vec![7; VALUE_MAX])));
}

#[test]
fn the_registry_outlives_another_node_and_ends_with_its_own() {
    let mut cluster = Cluster::start(2, 1, RailKind::Shm);
    let version = change(&cluster.registry(1), Change::set(key("a"), b"one")).unwrap();
    let registry = cluster.registry(0);
    let watch = registry.watch("", 0).unwrap();
    // Of two nodes that lose each other the lower continues, also while the other is still ending.
    cluster.end(1);
    assert!(change(&registry, Change::set(key("a"), b"two")).unwrap() > version);
    assert_eq!(value(&registry, "a").unwrap().1, b"two");
    cluster.end(0);
    while let Ok(change) = watch.next(TIMEOUT) {
        assert!(change.is_some(), "no change arrived within {TIMEOUT:?}");
    }
    assert!(matches!(change(&registry, Change::set(key("a"), b"")), Err(RegistryError::Stopped)));
}

#[test]
fn registry_requests_during_a_hang_of_a_member_leave_slots_for_status_requests() {
    let cluster = Cluster::start(2, 1, RailKind::Shm);
    let dir = ClusterDir::new(cluster.directory());
    let ask = |command: &str| {
        let mut control = Control::connect(&dir, "n2")?;
        control.call(command, serde_json::json!({ "key": "a" }), |_| {})
    };
    let why = |answer: Result<_, ControlError>| answer.expect_err("there is no such key").to_string();
    thread::scope(|scope| {
        let (goes_on, waits) = mpsc::channel::<()>();
        let (begins, hangs) = mpsc::channel();
        let worker = &cluster.runtime(0).workers()[0];
        scope.spawn(move || {
            worker.with(move |_, _| {
                begins.send(()).unwrap();
                waits.recv_timeout(TIMEOUT).unwrap_err();
            });
        });
        hangs.recv_timeout(TIMEOUT).unwrap();
        let (tell, answers) = mpsc::channel();
        for _ in 0..64 {
            let tell = tell.clone();
            scope.spawn(move || tell.send(why(ask("registry.get"))).unwrap());
        }
        // The others would get no answer before the member continues.
        for _ in 0..16 {
            let why = answers.recv_timeout(TIMEOUT).unwrap();
            assert!(why.contains("48 commands wait"), "{why}");
        }
        ask("registry.status").unwrap();
        ask("status").unwrap();
        drop(goes_on);
        for _ in 0..48 {
            let why = answers.recv_timeout(TIMEOUT).unwrap();
            assert!(why.contains("a: is not there"), "{why}");
        }
    });
}

#[test]
fn clients_that_restore_from_a_pipe_and_go_take_no_slot() {
    let cluster = Cluster::start(1, 1, RailKind::Shm);
    let dir = ClusterDir::new(cluster.directory());
    let pipe = cluster.directory().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let ask = |command: &str, args| {
        let mut control = Control::connect(&dir, "n1").unwrap();
        control.set_timeout(TIMEOUT).unwrap();
        control.ask(command, args).unwrap();
        control
    };
    let path = serde_json::json!({ "path": pipe });
    // More than there are slots for commands that wait.
    drop((0..60).map(|_| ask("registry.restore", path.clone())).collect::<Vec<_>>());
    for command in ["registry.restore", "registry.backup"] {
        let start = std::time::Instant::now();
        let refused = loop {
            // Connections of clients that have gone may still be served.
            let refused = ask(command, path.clone()).hear().unwrap_err().to_string();
            if !refused.contains("already") || start.elapsed() > TIMEOUT {
                break refused;
            }
            thread::yield_now();
        };
        assert!(refused.contains("pipe: cannot be") && refused.contains("not a regular file"), "{refused}");
    }
}
