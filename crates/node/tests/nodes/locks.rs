//! The lock manager of real nodes, used by threads inside them.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use crate::cluster::{Cluster, TIMEOUT, waits_for};
use plexus_fabric::RailKind;
use plexus_locks::{
    LockError, LockNotice, PendingNodeLock, SurveyedResource,
    protocol::{LockRefusal, Mode, Name, Token, VALUE_LEN, Validity, Value},
};

fn named(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

/// Waits until the master has this request as the only one in the queue for `name`.
#[track_caller]
fn still_waits(cluster: &Cluster, name: &str, waiting: PendingNodeLock) -> PendingNodeLock {
    cluster.wait_until_waited_for(2, name);
    match waiting.wait(Duration::ZERO) {
        Err(waiting) => waiting,
        Ok(answer) => panic!("answered: {:?}", answer.err()),
    }
}

#[test]
fn one_has_what_excludes_others_on_whichever_node_and_worker() {
    for rail in [RailKind::Shm, RailKind::Tcp] {
        let cluster = Cluster::start(3, 2, rail);
        // Enough names for every pair of home and master, at each worker.
        for number in 0..40 {
            let name = format!("name {number}");
            let mut last = Token::default();
            for node in [0, 1, 2, 1] {
                let lock = cluster.locks(node).session().lock(named(&name), Mode::EX, None).unwrap();
                assert!(lock.grant().token > last, "{:?} after {last:?}", lock.grant());
                last = lock.grant().token;
                let other = cluster.locks((node + 1) % 3).session();
                let refused = other.lock(named(&name), Mode::CR, Some(Duration::ZERO));
                assert_eq!(refused.err(), Some(LockError::Refused(LockRefusal::NotGranted)));
            }
        }
        cluster.wait_until(3, "all is given up", <[SurveyedResource]>::is_empty);
    }
}

#[test]
fn of_two_that_wait_for_each_other_over_nodes_the_younger_is_refused() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let older = cluster.locks(0).session();
    let younger = cluster.locks(1).session();
    let (a, b) =
        (older.lock(named("a"), Mode::EX, None).unwrap(), younger.lock(named("b"), Mode::PW, None).unwrap());
    let waits = older.ask(named("b"), Mode::PR, None);
    assert_eq!(
        younger.lock(named("a"), Mode::CR, None).err(),
        Some(LockError::Refused(LockRefusal::Deadlock))
    );
    let waits = still_waits(&cluster, "b", waits);
    drop(b);
    assert_eq!(waits.finish().unwrap().grant().mode, Mode::PR);
    drop(a);
    younger.lock(named("a"), Mode::CR, None).unwrap();
}

#[test]
fn a_conversion_waits_for_others_and_the_value_goes_with_the_lock() {
    let cluster = Cluster::start(2, 1, RailKind::Tcp);
    let (here, there) = (cluster.locks(0).session(), cluster.locks(1).session());
    let _interest = there.lock(named("v"), Mode::NL, None).unwrap();
    let mut reads = here.lock(named("v"), Mode::PR, None).unwrap();
    assert_eq!(reads.grant().value.validity, Validity::Unwritten);
    let other = there.lock(named("v"), Mode::PR, None).unwrap();
    let refused = reads.convert(Mode::EX, Some(Duration::ZERO)).err();
    assert_eq!(refused, Some(LockError::Refused(LockRefusal::NotGranted)));
    thread::scope(|scope| {
        let writes = scope.spawn(move || {
            reads.convert(Mode::EX, None).unwrap();
            reads.unlock_with([7; VALUE_LEN]).unwrap();
        });
        cluster.wait_until(2, "it converts", |seen| waits_for(seen, "v"));
        drop(other);
        writes.join().unwrap();
    });
    let lock = there.lock(named("v"), Mode::PR, None).unwrap();
    assert_eq!(lock.grant().value, Value::written([7; VALUE_LEN]));
}

#[test]
fn cancelled_waiter_is_forgotten_and_late_waiter_gets_a_timeout() {
    let cluster = Cluster::start(2, 1, RailKind::Shm);
    let (here, there) = (cluster.locks(0).session(), cluster.locks(1).session());
    let held = here.lock(named("x"), Mode::EX, None).unwrap();
    drop(still_waits(&cluster, "x", there.ask(named("x"), Mode::EX, None)));
    cluster.wait_until(2, "it no longer waits", |seen| !waits_for(seen, "x"));
    let late = there.lock(named("x"), Mode::EX, Some(Duration::from_millis(20)));
    assert_eq!(late.err(), Some(LockError::Refused(LockRefusal::TimedOut)));
    drop(held);
    there.lock(named("x"), Mode::EX, None).unwrap();
}

#[test]
fn locks_outlive_another_node_and_end_with_their_own() {
    for rail in [RailKind::Shm, RailKind::Tcp] {
        let mut cluster = Cluster::start(3, 2, rail);
        let (locks, others) = (cluster.locks(0), cluster.locks(1));
        let names: Vec<_> = (0..30).map(|number| format!("held {number}")).collect();
        let mine = locks.session();
        let held: Vec<_> = names.iter().map(|name| mine.lock(named(name), Mode::EX, None).unwrap()).collect();
        let its = cluster.locks(2).session().lock(named("its"), Mode::EX, None).unwrap();
        let token = its.grant().token;
        let waits = others.session().ask(named("its"), Mode::EX, None);
        cluster.end(2);
        assert!(its.is_lost());
        assert!(
            waits.finish().unwrap().grant().token > token,
            "granted when its holder was known to be over"
        );
        for (name, held) in names.iter().zip(held) {
            let refused = others.session().lock(named(name), Mode::CR, Some(Duration::ZERO)).err();
            assert_eq!(refused, Some(LockError::Refused(LockRefusal::NotGranted)), "{name}");
            assert!(!held.is_lost());
            let before = held.grant().token;
            drop(held);
            assert!(others.session().lock(named(name), Mode::EX, None).unwrap().grant().token > before);
        }
        let last = mine.lock(named("last"), Mode::PW, None).unwrap();
        let waits = still_waits(&cluster, "last", locks.session().ask(named("last"), Mode::PW, None));
        cluster.end(0);
        assert!(last.is_lost());
        assert_eq!(waits.finish().err(), Some(LockError::Stopped));
        assert_eq!(locks.session().lock(named("other"), Mode::NL, None).err(), Some(LockError::Stopped));
    }
}

#[test]
fn a_holder_that_watches_is_told_that_others_wait_and_that_its_lock_is_lost() {
    let mut cluster = Cluster::start(2, 1, RailKind::Shm);
    let (here, there) = (cluster.locks(0).session().watching(), cluster.locks(1).session());
    let mut held = here.lock(named("w"), Mode::EX, None).unwrap();
    assert_eq!(held.notice(Duration::ZERO), None);
    let waits = there.ask(named("w"), Mode::PR, None);
    assert_eq!(held.notice(TIMEOUT), Some(LockNotice::Wanted(Mode::PR)));
    assert_eq!(held.notice(Duration::ZERO), None, "it is said once");
    held.convert_writing(Mode::CR, [1; VALUE_LEN]).unwrap();
    assert_eq!(waits.finish().unwrap().grant().value, Value::written([1; VALUE_LEN]));
    assert_eq!(held.unlock_with([2; VALUE_LEN]), Err(LockError::Refused(LockRefusal::NotWriter)));
    let held = here.lock(named("w"), Mode::EX, None).unwrap();
    let waits = still_waits(&cluster, "w", there.ask(named("w"), Mode::EX, None));
    waits.cancel();
    assert_eq!(waits.finish().err(), Some(LockError::Refused(LockRefusal::Cancelled)));
    assert_eq!(held.notice(TIMEOUT), Some(LockNotice::Wanted(Mode::EX)), "it was so when it was said");
    cluster.end(0);
    assert_eq!(held.notice(TIMEOUT), Some(LockNotice::Lost));
    assert!(held.is_lost());
}

/// Requests a lock on `name` over a new connection; returns it with the first answer of the node.
fn taken(cluster: &Cluster, name: &str) -> (BufReader<UnixStream>, String) {
    let mut stream = BufReader::new(UnixStream::connect(cluster.control(0)).unwrap());
    let line = format!(r#"{{"command":"lock","args":{{"name":"{name}","mode":"EX"}}}}"#) + "\n";
    stream.get_mut().write_all(line.as_bytes()).unwrap();
    let mut said = String::new();
    stream.read_line(&mut said).unwrap();
    (stream, said)
}

#[test]
fn locks_of_the_command_line_leave_places_for_others_to_ask_the_node() {
    let cluster = Cluster::start(1, 1, RailKind::Shm);
    let mut holders: Vec<_> = (0..48).map(|number| taken(&cluster, &format!("name {number}"))).collect();
    assert!(holders.iter().all(|(_, said)| said.contains("granted")), "{holders:?}");
    let (mut refused, said) = taken(&cluster, "one more");
    assert!(said.contains("48 commands wait, hold or watch something"), "{said}");
    // That connection can be used like any other.
    refused.get_mut().write_all(b"{\"command\":\"locks\"}\n").unwrap();
    let mut said = String::new();
    refused.read_line(&mut said).unwrap();
    assert!(said.contains("name 47") && !said.contains("one more"), "{said}");
    holders.truncate(47);
    cluster.wait_until(1, "one is given up", |seen| seen.len() == 47);
    // Its slot is free a moment after its lock.
    let start = Instant::now();
    while let (_, said) = taken(&cluster, "one more")
        && !said.contains("granted")
    {
        assert!(start.elapsed() < TIMEOUT, "{said}");
    }
}
