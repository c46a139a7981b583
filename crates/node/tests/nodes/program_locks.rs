//! Locks of programs: through the library, between nodes, and at the end of a program.

use std::{
    os::fd::AsFd,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::cluster::{
    Cluster, TIMEOUT,
    program::{assert_cut_off, attach},
};
use plexus_base::{Partition, hash};
use plexus_client::{
    Client, Error, EventMark, Lock, LockEvent, LockEventKind, LockRefusal, Mode, PendingLock, Token,
    VALUE_LEN, Validity, Value,
    wire::{
        Head, Use, Verb,
        lock::{FOREVER, NewLockMessage},
    },
};
use plexus_fabric::{Lane, Rail, RailKind};

const LONG: Option<Duration> = Some(TIMEOUT);
const NOT: Option<Duration> = Some(Duration::ZERO);

/// Waits until the master has this request as the only one in the queue for `name`.
#[track_caller]
fn still_waits(cluster: &Cluster, name: &str, pending: PendingLock) -> PendingLock {
    cluster.wait_until_waited_for(2, name);
    match pending.wait(NOT) {
        Err(pending) => pending,
        Ok(answer) => panic!("answered: {:?}", answer.err()),
    }
}

fn why<T>(answer: Result<T, Error>) -> Option<LockRefusal> {
    match answer {
        Err(Error::NotLocked(why)) => Some(why),
        _ => None,
    }
}

/// Waits until everything was released, on all workers.
fn all_released(cluster: &Cluster, nodes: usize) {
    let start = Instant::now();
    for node in 0..nodes {
        while !cluster.locks(node).survey(TIMEOUT).unwrap().is_empty() || cluster.programs(node).locks > 0 {
            assert!(start.elapsed() < TIMEOUT, "locks are left at node {node}");
            thread::yield_now();
        }
    }
}

#[test]
fn programs_of_all_nodes_exclude_each_other_under_every_name() {
    for rail in [RailKind::Shm, RailKind::Tcp] {
        let cluster = Cluster::start(3, 2, rail);
        let programs: Vec<Client> = (0..3).map(|node| cluster.client(node)).collect();
        for number in 0..20 {
            let name = format!("name {number}");
            let mut last = Token::default();
            for node in [0, 1, 2, 1] {
                let lock = programs[node].lock_session().lock(&name, Mode::EX, LONG).unwrap();
                assert!(lock.is_valid() && lock.grant().token > last, "{:?} after {last:?}", lock.grant());
                last = lock.grant().token;
                let other = programs[(node + 1) % 3].lock_session().lock(&name, Mode::CR, NOT);
                assert_eq!(why(other), Some(LockRefusal::NotGranted));
            }
        }
        // Threads of a node and its programs are clients of one lock manager.
        let lock = programs[0].lock_session().lock("name 0", Mode::PW, LONG).unwrap();
        assert_eq!(cluster.programs(0).locks, 1);
        drop(lock);
        all_released(&cluster, 3);
    }
}

#[test]
fn a_holder_is_told_who_waits_and_hands_the_value_on() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let (one, two) = (cluster.client(0), cluster.client(1));
    let _interest = two.lock_session().lock("v", Mode::NL, LONG).unwrap();
    let mut held = one.lock_session().watching().lock("v", Mode::EX, LONG).unwrap();
    assert_eq!(held.grant().value.validity, Validity::Unwritten);
    assert!(matches!(held.wait_wanted(NOT), Err(Error::TimedOut)));
    let waits = two.lock_session().ask("v", Mode::PR, None).unwrap();
    assert_eq!(held.wait_wanted(LONG).unwrap(), Mode::PR);
    assert!(matches!(held.wait_wanted(NOT), Err(Error::TimedOut)), "it is said once");
    let waits = still_waits(&cluster, "v", waits);
    assert_eq!(held.convert_writing(Mode::PR, [7; VALUE_LEN]).unwrap().value, Value::written([7; VALUE_LEN]));
    let mut read: Lock = waits.wait(LONG).ok().unwrap().unwrap();
    assert_eq!(read.grant().value, Value::written([7; VALUE_LEN]));
    assert_eq!(why(read.convert_writing(Mode::CR, [1; VALUE_LEN])), Some(LockRefusal::NotWriter));
    assert_eq!(why(read.convert(Mode::EX, NOT).copied()), Some(LockRefusal::NotGranted));
    assert_eq!(read.grant().mode, Mode::PR);
    assert_eq!(why(held.unlock_with([9; VALUE_LEN])), Some(LockRefusal::NotWriter), "and yet it is given up");
    read.convert(Mode::EX, LONG).unwrap();
    read.unlock_with([8; VALUE_LEN]).unwrap();
    let last = one.lock_session().lock("v", Mode::PR, LONG).unwrap();
    assert_eq!(last.grant().value, Value::written([8; VALUE_LEN]));
}

#[test]
fn requests_end_by_timeout_by_cancellation_and_by_being_dropped() {
    let cluster = Cluster::start(2, 1, RailKind::Tcp);
    let (one, two) = (cluster.client(0), cluster.client(1));
    let held = one.lock_session().lock("x", Mode::EX, LONG).unwrap();
    let session = two.lock_session();
    assert_eq!(
        why(session.lock("x", Mode::EX, Some(Duration::from_millis(20)))),
        Some(LockRefusal::TimedOut)
    );
    let waits = still_waits(&cluster, "x", session.ask("x", Mode::EX, None).unwrap());
    waits.cancel();
    assert_eq!(why(waits.wait(LONG).ok().unwrap()), Some(LockRefusal::Cancelled));
    drop(still_waits(&cluster, "x", session.ask("x", Mode::EX, None).unwrap()));
    assert!(matches!(session.lock("", Mode::EX, NOT), Err(Error::Argument(_))));
    assert!(matches!(session.lock([b'x'; 256], Mode::EX, NOT), Err(Error::Argument(_))));
    drop(held);
    drop(session.lock("x", Mode::EX, LONG).unwrap());
    all_released(&cluster, 2);
}

#[test]
fn of_two_programs_that_wait_for_each_other_the_younger_session_is_refused() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let older = cluster.client(0).lock_session();
    let younger = cluster.client(1).lock_session();
    let (a, b) = (older.lock("a", Mode::EX, LONG).unwrap(), younger.lock("b", Mode::PW, LONG).unwrap());
    let waits = still_waits(&cluster, "b", older.ask("b", Mode::PR, None).unwrap());
    assert_eq!(why(younger.lock("a", Mode::CR, None)), Some(LockRefusal::Deadlock));
    drop(b);
    assert_eq!(waits.wait(LONG).ok().unwrap().unwrap().grant().mode, Mode::PR);
    drop(a);
    younger.lock("a", Mode::CR, LONG).unwrap();
}

#[test]
fn posted_requests_are_answered_by_events() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let (one, two) = (cluster.client(0), cluster.client(1));
    let (here, there) = (one.lock_session().watching().queue(), two.lock_session().queue());
    let first = here.lock(1, "q", Mode::EX, None).unwrap();
    assert!(
        matches!(here.wait(LONG).unwrap().kind, LockEventKind::Answered(Ok(grant)) if grant.mode == Mode::EX)
    );
    let second = there.lock(2, "q", Mode::PR, None).unwrap();
    let wanted = here.wait(LONG).unwrap();
    assert!(matches!(wanted.kind, LockEventKind::Wanted(Mode::PR)) && wanted.cookie == 1);
    assert!(matches!(there.wait(NOT), Err(Error::TimedOut)));
    here.convert(first, 3, Mode::CR, None, Some([4; VALUE_LEN])).unwrap();
    assert_eq!(why(here.convert(first, 4, Mode::PR, None, None)), Some(LockRefusal::Busy));
    let converted = here.wait(LONG).unwrap();
    assert!(matches!(converted.kind, LockEventKind::Answered(Ok(grant)) if grant.mode == Mode::CR));
    assert_eq!(converted.cookie, 3);
    let granted = there.wait(LONG).unwrap();
    assert!(
        matches!(granted.kind, LockEventKind::Answered(Ok(grant)) if grant.value.bytes == [4; VALUE_LEN])
    );
    here.convert(first, 5, Mode::EX, None, None).unwrap();
    here.cancel(first).unwrap();
    let cancelled = here.wait(LONG).unwrap();
    assert!(matches!(cancelled.kind, LockEventKind::Answered(Err(Error::NotLocked(LockRefusal::Cancelled)))));
    there.unlock(second, None).unwrap();
    here.post_unlock(first, None).unwrap();
    let ended = here.wait(LONG).unwrap();
    assert!(matches!(ended.kind, LockEventKind::Unlocked) && ended.cookie == 5);
    assert_eq!(why(here.unlock(first, None)), Some(LockRefusal::Unknown));
    // The end of a queue releases its locks.
    let asked = there.ask(6, "q", Mode::PW, LONG).unwrap();
    let key = asked.key();
    assert_eq!(asked.wait().unwrap().mode, Mode::PW);
    assert_eq!(there.ask_convert(key, 6, Mode::EX, LONG, None).unwrap().wait().unwrap().mode, Mode::EX);
    drop(there);
    here.ask(7, "q", Mode::EX, LONG).unwrap().wait().unwrap();
    drop(here);
    all_released(&cluster, 2);
}

#[test]
fn waiter_is_notified_when_another_thread_releases_the_lock() {
    let cluster = Cluster::start(2, 1, RailKind::Shm);
    let (one, two) = (cluster.client(0), cluster.client(1));
    let _held = two.lock_session().lock("g", Mode::EX, LONG).unwrap();
    let queue = one.lock_session().queue();
    for posts in [false, true] {
        let asked = queue.ask(1, "g", Mode::PR, None).unwrap();
        let key = asked.key();
        let (tell, told) = mpsc::channel();
        // Not joined: with a bug in the library it would wait forever.
        thread::spawn(move || tell.send(why(asked.wait())));
        cluster.wait_until_waited_for(2, "g");
        if posts {
            queue.post_unlock(key, None).unwrap()
        } else {
            queue.unlock(key, None).unwrap()
        }
        assert_eq!(told.recv_timeout(TIMEOUT), Ok(Some(LockRefusal::Cancelled)));
    }
    assert!(matches!(queue.wait(LONG).unwrap().kind, LockEventKind::Unlocked));
}

#[test]
fn of_a_lock_that_was_given_up_nothing_comes_but_its_end() {
    let cluster = Cluster::start(1, 1, RailKind::Shm);
    let queue = cluster.client(0).lock_session().watching().queue();
    let key = queue.lock(1, "e", Mode::EX, None).unwrap();
    let waits = cluster.client(0).lock_session().ask("e", Mode::EX, None).unwrap();
    cluster.wait_until_waited_for(1, "e");
    // The same worker answers this later, so the answer to the other has arrived.
    queue.ask(2, "e", Mode::NL, None).unwrap().wait().unwrap();
    queue.post_unlock(key, None).unwrap();
    let event = queue.wait(LONG).unwrap();
    assert!(matches!(event.kind, LockEventKind::Unlocked) && event.cookie == 1, "{event:?}");
    assert!(matches!(queue.wait(NOT), Err(Error::TimedOut)));
    drop(waits);
}

#[test]
fn that_others_wait_is_an_event_only_where_it_was_asked_for() {
    let cluster = Cluster::start(1, 1, RailKind::Shm);
    let queue = cluster.client(0).lock_session().watching().queue();
    let quiet = |cookie| EventMark { cookie, wanted: false };
    let asked = queue.ask(quiet(1), "w", Mode::EX, None).unwrap();
    let key = asked.key();
    asked.wait().unwrap();
    let waits = cluster.client(0).lock_session().ask("w", Mode::EX, None).unwrap();
    cluster.wait_until_waited_for(1, "w");
    // Each answer comes after the notice about the grant before.
    for cookie in [2, 3] {
        queue.convert(key, quiet(cookie), Mode::PW, None, None).unwrap();
        let event = queue.wait(LONG).unwrap();
        assert!(matches!(event.kind, LockEventKind::Answered(Ok(_))) && event.cookie == cookie, "{event:?}");
    }
    queue.convert(key, 4, Mode::PW, None, None).unwrap();
    let wanted =
        |event: LockEvent| matches!(event.kind, LockEventKind::Wanted(Mode::EX)) && event.cookie == 4;
    while !wanted(queue.wait(LONG).unwrap()) {}
    drop(waits);
}

#[test]
fn locks_of_a_program_end_with_it() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let (one, two) = (cluster.client(0), cluster.client(1));
    let _interest = one.lock_session().lock("d", Mode::NL, LONG).unwrap();
    let written = two.lock_session().lock("d", Mode::EX, LONG).unwrap();
    written.unlock_with([3; VALUE_LEN]).unwrap();
    // This program sends nothing more once it has the lock.
    let (mode, notify, session, start_time, timeout_ns) = (Mode::PW, false, 0, 0, FOREVER);
    let request = NewLockMessage { mode, notify, session, start_time, timeout_ns, name: b"d" }.encode();
    let head = Head { id: 1, port: 1, ..Head::new(Verb::Lock, Use::Locks) }.encode(request.len());
    let mut program = attach(&cluster.socket(1));
    let rail = &mut program.rails[Partition::of(hash::hash(b"d")).worker(2).index()];
    rail.send(Lane::Prompt, &head, &request).unwrap();
    rail.flush().unwrap();
    let start = Instant::now();
    while cluster.programs(1).locks == 0 {
        assert!(start.elapsed() < TIMEOUT, "it has no lock");
        thread::yield_now();
    }
    let waits = still_waits(&cluster, "d", one.lock_session().ask("d", Mode::PW, None).unwrap());
    drop(program);
    let lock = waits.wait(LONG).ok().unwrap().unwrap();
    let Value { bytes, validity } = lock.grant().value;
    assert_eq!((bytes, validity), ([3; VALUE_LEN], Validity::Lost), "it could have written");
}

/// Its end sends as many messages as it had locks. Requests of others wait behind them.
#[test]
fn the_end_of_a_program_with_60_000_locks_refuses_no_lock_of_others() {
    let cluster = Cluster::start(2, 1, RailKind::Tcp);
    let (many, other) = (cluster.client(0), cluster.client(0));
    let queue = many.lock_session().queue();
    for number in 0..60_000u64 {
        queue.lock(number, format!("many {number}"), Mode::EX, None).unwrap();
    }
    for _ in 0..60_000 {
        assert!(matches!(queue.wait(LONG).unwrap().kind, LockEventKind::Answered(Ok(_))));
    }
    drop(queue);
    drop(many);
    for number in (0..).take_while(|_| cluster.programs(0).locks > 1) {
        let lock = other.lock_session().lock(format!("other {}", number % 16), Mode::EX, LONG);
        assert_eq!(why(lock), None);
    }
    all_released(&cluster, 2);
}

#[test]
fn a_program_whose_node_ends_holds_nothing_any_more() {
    let mut cluster = Cluster::start(2, 1, RailKind::Shm);
    let (one, two) = (cluster.client(0), cluster.client(1));
    let (held, far) = (
        one.lock_session().watching().lock("held", Mode::EX, LONG).unwrap(),
        two.lock_session().lock("far", Mode::EX, LONG).unwrap(),
    );
    let waits = still_waits(&cluster, "held", one.lock_session().ask("held", Mode::EX, None).unwrap());
    cluster.end(1);
    assert!(held.is_valid() && !far.is_valid(), "the locks of another node's programs are not its own");
    let again = one.lock_session().lock("far", Mode::EX, LONG).unwrap();
    assert!(again.grant().token > far.grant().token);
    cluster.end(0);
    // The node reports this, or ends itself before it can.
    let lost = |error: &Error| matches!(error, Error::LocksLost | Error::NodeLost(_));
    assert_eq!(held.wait_wanted(LONG).unwrap(), Mode::EX, "said before");
    assert!(lost(&held.wait_wanted(LONG).unwrap_err()));
    assert!(lost(&waits.wait(LONG).ok().unwrap().err().unwrap()));
    assert!(!held.is_valid());
    assert!(lost(&one.lock_session().lock("other", Mode::NL, LONG).err().unwrap()));
}

#[test]
fn program_with_invalid_lock_requests_is_disconnected_and_its_locks_released() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let (mode, notify, session, start_time, timeout_ns) = (Mode::EX, false, 0, 0, 0);
    let request = NewLockMessage { mode, notify, session, start_time, timeout_ns, name: b"h" }.encode();
    let own = Partition::of(hash::hash(b"h")).worker(2).index();
    let head = |verb| Head { id: 1, port: 1, ..Head::new(verb, Use::Locks) };
    let frame = |verb, payload: &[u8]| [&head(verb).encode(payload.len())[..], payload].concat();
    let lock = frame(Verb::Lock, &request);
    let cases: Vec<(&str, usize, Vec<u8>)> = vec![
        ("a number twice", own, lock.clone()),
        ("a lock of another worker", 1 - own, lock.clone()),
        ("a request that is none", own, frame(Verb::Lock, &[9; 30])),
        ("a name that is none", own, frame(Verb::Lock, &request[..24])),
        ("a conversion that is none", own, frame(Verb::Convert, &[])),
        ("a value of another length", own, frame(Verb::Unlock, &[1; 31])),
        ("what only nodes say", own, frame(Verb::Wanted, &[])),
    ];
    for (what, worker, frame) in cases {
        let mut program = attach(&cluster.socket(0));
        program.rails[own].send(Lane::Prompt, &lock, &[]).unwrap();
        program.rails[worker].send(Lane::Prompt, &frame, &[]).unwrap();
        for rail in &mut program.rails {
            // Its disconnection is checked below.
            let _ = rail.flush();
        }
        assert_cut_off(program.socket.as_fd(), what);
        drop(cluster.client(1).lock_session().lock("h", Mode::EX, LONG).unwrap());
    }
    all_released(&cluster, 2);
    cluster.assert_alive();
}
