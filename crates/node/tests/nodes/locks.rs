//! The lock manager of real nodes, from threads inside them.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use crate::cluster::{Cluster, TIMEOUT, waits_for};
use plexus_fabric::RailKind;
use plexus_locks::{
    Ask, LockError, Notice, Surveyed, Waiting,
    protocol::{LockRefusal, Mode, Name, Token, VALUE_LEN, Validity, Value},
};

fn ask(name: &str, mode: Mode) -> Ask {
    Ask { name: Name::new(name.as_bytes()).unwrap(), mode, timeout: None }
}

/// Waits until its master has it in the queue for `name`, which nobody else waits for.
#[track_caller]
fn still_waits(cluster: &Cluster, name: &str, waiting: Waiting) -> Waiting {
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
                let lock = cluster.locks(node).session().lock(ask(&name, Mode::EX)).unwrap();
                assert!(lock.grant().token > last, "{:?} after {last:?}", lock.grant());
                last = lock.grant().token;
                let other = Ask { timeout: Some(Duration::ZERO), ..ask(&name, Mode::CR) };
                let refused = cluster.locks((node + 1) % 3).session().lock(other);
                assert_eq!(refused.err(), Some(LockError::Refused(LockRefusal::NotGranted)));
            }
        }
        cluster.wait_until(3, "all is given up", <[Surveyed]>::is_empty);
    }
}

#[test]
fn of_two_that_wait_for_each_other_over_nodes_the_younger_is_refused() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let older = cluster.locks(0).session();
    let younger = cluster.locks(1).session();
    let (a, b) = (older.lock(ask("a", Mode::EX)).unwrap(), younger.lock(ask("b", Mode::PW)).unwrap());
    let waits = older.ask(ask("b", Mode::PR));
    assert_eq!(younger.lock(ask("a", Mode::CR)).err(), Some(LockError::Refused(LockRefusal::Deadlock)));
    let waits = still_waits(&cluster, "b", waits);
    drop(b);
    assert_eq!(waits.finish().unwrap().grant().mode, Mode::PR);
    drop(a);
    younger.lock(ask("a", Mode::CR)).unwrap();
}

#[test]
fn a_conversion_waits_for_others_and_the_value_goes_with_the_lock() {
    let cluster = Cluster::start(2, 1, RailKind::Tcp);
    let (here, there) = (cluster.locks(0).session(), cluster.locks(1).session());
    let _interest = there.lock(ask("v", Mode::NL)).unwrap();
    let mut reads = here.lock(ask("v", Mode::PR)).unwrap();
    assert_eq!(reads.grant().value.validity, Validity::Unwritten);
    let other = there.lock(ask("v", Mode::PR)).unwrap();
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
    let lock = there.lock(ask("v", Mode::PR)).unwrap();
    assert_eq!(lock.grant().value, Value::written([7; VALUE_LEN]));
}

#[test]
fn who_no_longer_waits_is_forgotten_and_who_waits_too_long_is_told() {
    let cluster = Cluster::start(2, 1, RailKind::Shm);
    let (here, there) = (cluster.locks(0).session(), cluster.locks(1).session());
    let held = here.lock(ask("x", Mode::EX)).unwrap();
    drop(still_waits(&cluster, "x", there.ask(ask("x", Mode::EX))));
    cluster.wait_until(2, "it no longer waits", |seen| !waits_for(seen, "x"));
    let patient = Ask { timeout: Some(Duration::from_millis(20)), ..ask("x", Mode::EX) };
    assert_eq!(there.lock(patient).err(), Some(LockError::Refused(LockRefusal::TimedOut)));
    drop(held);
    there.lock(ask("x", Mode::EX)).unwrap();
}

#[test]
fn locks_outlive_another_node_and_end_with_their_own() {
    for rail in [RailKind::Shm, RailKind::Tcp] {
        let mut cluster = Cluster::start(3, 2, rail);
        let (locks, others) = (cluster.locks(0), cluster.locks(1));
        let names: Vec<_> = (0..30).map(|number| format!("held {number}")).collect();
        let mine = locks.session();
        let held: Vec<_> = names.iter().map(|name| mine.lock(ask(name, Mode::EX)).unwrap()).collect();
        let its = cluster.locks(2).session().lock(ask("its", Mode::EX)).unwrap();
        let token = its.grant().token;
        let waits = others.session().ask(ask("its", Mode::EX));
        cluster.end(2);
        assert!(its.is_lost());
        assert!(
            waits.finish().unwrap().grant().token > token,
            "granted when its holder was known to be over"
        );
        for (name, held) in names.iter().zip(held) {
            let attempt = Ask { timeout: Some(Duration::ZERO), ..ask(name, Mode::CR) };
            let refused = others.session().lock(attempt).err();
            assert_eq!(refused, Some(LockError::Refused(LockRefusal::NotGranted)), "{name}");
            assert!(!held.is_lost());
            let before = held.grant().token;
            drop(held);
            assert!(others.session().lock(ask(name, Mode::EX)).unwrap().grant().token > before);
        }
        let last = mine.lock(ask("last", Mode::PW)).unwrap();
        let waits = still_waits(&cluster, "last", locks.session().ask(ask("last", Mode::PW)));
        cluster.end(0);
        assert!(last.is_lost());
        assert_eq!(waits.finish().err(), Some(LockError::Stopped));
        assert_eq!(locks.session().lock(ask("other", Mode::NL)).err(), Some(LockError::Stopped));
    }
}

#[test]
fn a_holder_that_watches_is_told_that_others_wait_and_that_its_lock_is_lost() {
    let mut cluster = Cluster::start(2, 1, RailKind::Shm);
    let (here, there) = (cluster.locks(0).session().watching(), cluster.locks(1).session());
    let mut held = here.lock(ask("w", Mode::EX)).unwrap();
    assert_eq!(held.notice(Duration::ZERO), None);
    let waits = there.ask(ask("w", Mode::PR));
    assert_eq!(held.notice(TIMEOUT), Some(Notice::Wanted(Mode::PR)));
    assert_eq!(held.notice(Duration::ZERO), None, "it is said once");
    held.convert_writing(Mode::CR, [1; VALUE_LEN]).unwrap();
    assert_eq!(waits.finish().unwrap().grant().value, Value::written([1; VALUE_LEN]));
    assert_eq!(held.unlock_with([2; VALUE_LEN]), Err(LockError::Refused(LockRefusal::NotWriter)));
    let held = here.lock(ask("w", Mode::EX)).unwrap();
    let waits = still_waits(&cluster, "w", there.ask(ask("w", Mode::EX)));
    waits.cancel();
    assert_eq!(waits.finish().err(), Some(LockError::Refused(LockRefusal::Cancelled)));
    assert_eq!(held.notice(TIMEOUT), Some(Notice::Wanted(Mode::EX)), "it was so when it was said");
    cluster.end(0);
    assert_eq!(held.notice(TIMEOUT), Some(Notice::Lost));
    assert!(held.is_lost());
}

/// A connection over which a lock on `name` was asked for, and what the node says first.
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
    // That connection is as good as any other.
    refused.get_mut().write_all(b"{\"command\":\"locks\"}\n").unwrap();
    let mut said = String::new();
    refused.read_line(&mut said).unwrap();
    assert!(said.contains("name 47") && !said.contains("one more"), "{said}");
    holders.truncate(47);
    cluster.wait_until(1, "one is given up", |seen| seen.len() == 47);
    // Its place is free a moment after its lock.
    let start = Instant::now();
    while let (_, said) = taken(&cluster, "one more")
        && !said.contains("granted")
    {
        assert!(start.elapsed() < TIMEOUT, "{said}");
    }
}
