//! Programs attached to node processes that are killed, or stopped, under them.

use std::{thread, time::Duration};

use crate::common::{Cluster, signal, wait_for_end};
use plexus_client::{Address, Client, Error, MAX_MESSAGE, NodeId, Waiting};
use rustix::process::Signal;

/// A limit longer than any step takes; a test that reaches it has failed.
const LONG: Option<Duration> = Some(Duration::from_secs(60));

/// The limit for polling.
const NOW: Option<Duration> = Some(Duration::ZERO);

/// The most polls until a program knows that its node ended.
const LOOKS: usize = 10_000;

fn start() -> (Cluster, i32, Client) {
    let cluster = Cluster::new(1);
    cluster.run("up").said().ok();
    let (pid, client) = (cluster.pids()[0], Client::attach(cluster.dir()).unwrap());
    (cluster, pid, client)
}

/// Stops a process, and waits until none of its threads runs.
fn stop(pid: i32) {
    signal(pid, Signal::STOP);
    let runs = |thread: &std::path::Path| {
        let stat = std::fs::read_to_string(thread.join("stat")).unwrap();
        !stat.rsplit(") ").next().unwrap().starts_with('T')
    };
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    for task in threads {
        let task = task.unwrap().path();
        while runs(&task) {
            thread::yield_now();
        }
    }
}

#[test]
fn a_polling_program_learns_that_its_node_was_killed() {
    let (_cluster, pid, client) = start();
    let ways = [Waiting::Polling, Waiting::Adaptive, Waiting::Event];
    let port = client.bind(7).unwrap();
    let queues = ways.map(|waiting| client.completion_queue(waiting));
    let waits = client.clone();
    waits.set_waiting(Waiting::Polling);
    let other = waits.bind(8).unwrap();
    let waiting = thread::spawn(move || other.receive(None).map(drop));
    signal(pid, Signal::KILL);
    wait_for_end(pid);
    for queue in &queues {
        let said = (0..LOOKS).find_map(|_| queue.poll().err());
        assert!(matches!(said, Some(Error::NodeLost(_))), "{said:?}");
    }
    assert!(matches!(port.try_receive(), Err(Error::NodeLost(_))));
    let waited = waiting.join().unwrap();
    assert!(matches!(waited, Err(Error::NodeLost(_))), "{waited:?}");
}

#[test]
fn limits_of_time_are_kept_while_the_node_stands_still() {
    let (_cluster, pid, client) = start();
    let (from, window) = (client.bind(1).unwrap(), client.create_window("w", 64).unwrap());
    let ports: Vec<_> = (2..20).map(|number| client.bind(number).unwrap()).collect();
    let node = NodeId(0);
    stop(pid);
    // More than the ring to the node holds, in flows that have room.
    let mut sent = Vec::new();
    let refused = ports.iter().find_map(|port| {
        let to = port.address();
        match from.send(to, &vec![to.port as u8; MAX_MESSAGE], NOW) {
            Ok(()) => {
                sent.push(to);
                None
            }
            Err(error) => Some(error),
        }
    });
    assert!(matches!(refused, Some(Error::TimedOut)), "{refused:?} after {}", sent.len());
    let soon = Some(Duration::from_millis(1));
    for limit in [NOW, soon] {
        assert!(matches!(from.send(ports[0].address(), b"x", limit), Err(Error::TimedOut)));
        assert!(matches!(from.settle(limit), Err(Error::TimedOut)));
        assert!(matches!(from.receive(limit), Err(Error::TimedOut)));
        assert!(matches!(client.call(Address::new(node, 1), b"x", limit), Err(Error::TimedOut)));
        assert!(matches!(window.wait_word(0, limit, |word| word == 1), Err(Error::TimedOut)));
        assert_eq!(client.completion_queue(Waiting::Event).poll().unwrap().map(drop), None);
    }
    // A time that no clock reaches is no limit, and no time that has passed.
    let forever = thread::spawn({
        let client = client.clone();
        move || client.bind(30).and_then(|port| port.receive(Some(Duration::MAX)).map(drop))
    });
    drop(window);
    signal(pid, Signal::CONT);
    for to in sent {
        let port = ports.iter().find(|port| port.address() == to).unwrap();
        assert_eq!(port.receive(LONG).unwrap().bytes, vec![to.port as u8; MAX_MESSAGE]);
    }
    let port = client.bind(0).unwrap();
    loop {
        match port.send(Address::new(node, 30), b"late", LONG).and_then(|()| port.settle(LONG)) {
            Ok(()) => break,
            // The other thread has not got its port yet.
            Err(error) => assert!(matches!(error, Error::Undelivered { .. }), "{error}"),
        }
        if forever.is_finished() {
            break;
        }
    }
    forever.join().unwrap().unwrap();
}
