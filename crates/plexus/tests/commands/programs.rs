//! Programs attached to node processes that are killed, or stopped, under them.

use std::{thread, time::Duration};

use crate::common::{Cluster, signal, wait_for_end};
use plexus_client::{
    Address, Client, CompletionQueue, Endpoint, Error, Lock, LockKey, LockQueue, LockRefusal, Mode, NodeId,
    Request, VALUE_LEN, Waiting, wire::limits::MAX_MESSAGE,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::Signal,
    time::{ClockId, Timespec, clock_gettime},
};

/// A limit longer than any step takes; a test that reaches it has failed.
const LONG: Option<Duration> = Some(Duration::from_secs(60));

/// The limit for polling.
const NOW: Option<Duration> = Some(Duration::ZERO);

/// The most polls until a program knows that its node ended; they take far longer than a tick.
const LOOKS: usize = 10_000_000;

fn start() -> (Cluster, i32, Client) {
    let cluster = Cluster::up(1);
    let (pid, client) = (cluster.pids()[0], Client::attach(cluster.dir()).unwrap());
    (cluster, pid, client)
}

/// Stops a process, and waits until none of its threads runs.
pub(crate) fn stop(pid: i32) {
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
    let cluster = Cluster::new(1);
    cluster.prevent_evictions();
    cluster.run("up").said().ok();
    let (pid, client) = (cluster.pids()[0], Client::attach(cluster.dir()).unwrap());
    let session = client.lock_session();
    let mut held = session.lock("held", Mode::PR, LONG).unwrap();
    let queue = session.queue();
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
    let timed_out =
        |refused| matches!(refused, Err(Error::NotLocked(LockRefusal::TimedOut))).then_some(()).unwrap();
    timed_out(session.lock("free", Mode::EX, soon).map(drop));
    timed_out(queue.ask(1, "free", Mode::EX, soon).unwrap().wait().map(drop));
    assert!(matches!(held.convert(Mode::EX, soon), Err(Error::TimedOut)));
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
    // The locks whose waits ended by their limit were given up.
    drop(Client::attach(cluster.dir()).unwrap().lock_session().lock("free", Mode::EX, LONG).unwrap());
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

type Call = fn(Program) -> Result<(), Error>;

/// A program with two locks, one of them in a queue, an unanswered request and an endpoint.
struct Program {
    client: Client,
    lock: Lock,
    queue: LockQueue,
    key: LockKey,
    request: Request,
    completions: CompletionQueue,
    endpoint: Endpoint,
}

impl Program {
    fn attach(cluster: &Cluster, number: usize) -> Self {
        let client = Client::attach(cluster.dir()).unwrap();
        let lock = client.lock_session().watching().lock(format!("a{number}"), Mode::EX, LONG).unwrap();
        let queue = client.lock_session().queue();
        let asked = queue.ask(1, format!("b{number}"), Mode::EX, LONG).unwrap();
        let key = asked.key();
        asked.wait().unwrap();
        let server = client.serve(0).unwrap();
        let (caller, to) = (Client::attach(cluster.dir()).unwrap(), server.address());
        // It ends with the node.
        thread::spawn(move || caller.call(to, b"?", None));
        let request = server.next(LONG).unwrap();
        let completions = client.completion_queue(Waiting::Adaptive);
        let endpoint = client.endpoint(0, &completions).unwrap();
        Self { client, lock, queue, key, request, completions, endpoint }
    }
}

/// The calls that end at once while the node runs.
const SHORT_CALLS: [(&str, Call); 13] = [
    ("look for a blocking notice", |of| of.lock.wait_wanted(NOW).map(drop)),
    ("look for an event", |of| of.queue.wait(NOW).map(drop)),
    ("unlock with a value", |of| of.lock.unlock_with([7; VALUE_LEN])),
    ("unlock with a value by key", |of| of.queue.unlock(of.key, Some([7; VALUE_LEN]))),
    ("unlock by key", |of| of.queue.unlock(of.key, None)),
    ("post an unlock", |of| of.queue.post_unlock(of.key, Some([7; VALUE_LEN]))),
    ("post a request", |of| of.queue.lock(2, "c", Mode::EX, None).map(drop)),
    ("cancel a request", |of| of.queue.cancel(of.key)),
    ("try to lock", |of| of.client.lock_session().lock("c", Mode::EX, NOW).map(drop)),
    ("answer a call", |of| of.request.reply(b"!")),
    ("look for a completion", |of| of.completions.poll().map(drop)),
    ("post a receive", |of| of.endpoint.post_receive(1, 1)),
    ("post a send", |of| of.endpoint.post_send_to(1, of.endpoint.address(), b"x")),
];

/// The calls that wait as long as the node runs.
const LONG_CALLS: [(&str, Call); 4] = [
    ("wait for a blocking notice", |of| of.lock.wait_wanted(None).map(drop)),
    ("wait for an event", |of| of.queue.wait(None).map(drop)),
    ("wait for a completion", |of| of.completions.wait(None).map(drop)),
    ("wait for the descriptor", |of| {
        while of.client.arm() {
            let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
            let mut fds = [PollFd::from_borrowed_fd(of.client.fd(), PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&limit)), Ok(1));
        }
        of.queue.wait(NOW).map(drop)
    }),
];

/// Ends the node by `end` and asserts that every call then fails, each in a program of its own that
/// made no other call since.
fn all_calls_fail(cluster: &Cluster, end: impl FnOnce()) {
    let calls = SHORT_CALLS.iter().chain(&LONG_CALLS).enumerate();
    let programs: Vec<_> = calls.map(|(number, call)| (call, Program::attach(cluster, number))).collect();
    let tick = || {
        let time = clock_gettime(ClockId::MonotonicCoarse);
        (time.tv_sec, time.tv_nsec)
    };
    let last = tick();
    end();
    while tick() == last {
        thread::yield_now();
    }
    for ((what, call), program) in programs {
        let said = call(program);
        assert!(matches!(said, Err(Error::NodeLost(_))), "{what}: {said:?}");
    }
}

#[test]
fn no_call_succeeds_after_the_node_was_killed() {
    let cluster = Cluster::up(1);
    let pid = cluster.pids()[0];
    all_calls_fail(&cluster, || {
        signal(pid, Signal::KILL);
        wait_for_end(pid);
    });
}

#[test]
fn no_call_succeeds_when_the_lease_of_a_node_that_stands_still_is_over() {
    let cluster = Cluster::up(1);
    let pid = cluster.pids()[0];
    let waits = Program::attach(&cluster, LONG_CALLS.len() + SHORT_CALLS.len());
    all_calls_fail(&cluster, || {
        stop(pid);
        // A call without a limit ends with the lease.
        let locked = waits.client.lock_session().lock("d", Mode::EX, None).map(drop);
        assert!(matches!(locked, Err(Error::NodeLost(_))), "{locked:?}");
    });
    signal(pid, Signal::CONT);
}
