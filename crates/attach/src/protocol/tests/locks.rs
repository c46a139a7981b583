//! Locks of programs: their answers, invalid requests, and the release of everything.

use plexus_base::{
    Epoch, Incarnation, Nanos, Partition, WorkerId, hash,
    locks::{LockRefusal, Mode, VALUE_LEN},
};
use plexus_locks::{
    LockError, ProgramNotice,
    protocol::{Action, Config, Grant, Members, Shard},
};

use super::*;

/// Returns a lock manager for the programs of one node.
pub(super) fn manager(node: usize) -> Shard {
    let (me, incarnation) = (NodeId(node as u8), Incarnation(1));
    let view = Members { epoch: Epoch(1), members: vec![(me, incarnation)] };
    let config = Config {
        me,
        incarnation,
        worker: WorkerId(0),
        workers: 1,
        deadlock_ns: u64::MAX / 2,
        waiting_max: 2,
        locks_max: 9,
    };
    Shard::new(config, view, &mut Vec::new())
}

impl Cluster {
    /// Passes requests of programs to the lock managers, and their notices to programs.
    pub(super) fn serve_locks(&mut self) -> bool {
        let Some((node, event)) = self.way.lock_requests.pop_front() else { return false };
        let mut actions = Vec::new();
        self.locks[node].handle(Nanos(0), event, &mut actions);
        for action in actions {
            let notice = match action {
                Action::Granted { lock, mode, token, value } => {
                    ProgramNotice::Answer(lock, Ok(Grant { mode, token, value }))
                }
                Action::Refused { lock, why } => ProgramNotice::Answer(lock, Err(LockError::Refused(why))),
                Action::Blocking { lock, wanted } => ProgramNotice::Wanted(lock, wanted),
                other => panic!("{other:?}"),
            };
            self.cores[node].lock_notice(&mut Acting(node, &mut self.way), notice);
        }
        true
    }

    /// Returns a cluster with two programs on node 0.
    fn for_locks() -> Self {
        let mut cluster = Self::new();
        for program in 0..2 {
            cluster.cores[0].attach(ClientId(program));
        }
        cluster
    }

    fn ask(&mut self, program: u32, port: u32, mode: Mode, timeout_ns: u64) -> Result<(), Violation> {
        let (notify, session, start_time, name) = (true, 0, 0, &b"n"[..]);
        let request = NewLockMessage { mode, notify, session, start_time, timeout_ns, name };
        let head = Head { id: u64::from(port) + 100, port, ..Head::new(Verb::Lock, Use::Locks) };
        self.say(0, ClientId(program), head, &request.encode())?;
        while self.serve_locks() {}
        Ok(())
    }

    fn unlock(&mut self, program: u32, port: u32, value: &[u8]) -> Result<(), Violation> {
        let head = Head { port, ..Head::new(Verb::Unlock, Use::Locks) };
        self.say(0, ClientId(program), head, value)?;
        while self.serve_locks() {}
        Ok(())
    }

    /// Takes the programs' notices about locks: program, verb, lock, status or value.
    fn told_of_locks(&mut self) -> Vec<(u32, Verb, u32, u64)> {
        let value = |head: &Head| match (head.verb, head.status) {
            (Verb::Done, Status::Ok) => 0,
            _ => head.value,
        };
        let told = self.way.told.drain(..);
        told.map(|(_, program, head, _)| (program.0, head.verb, head.port, value(&head))).collect()
    }
}

#[test]
fn a_lock_goes_from_program_to_program_and_with_its_program() {
    let mut cluster = Cluster::for_locks();
    cluster.ask(0, 1, Mode::EX, 1).unwrap();
    cluster.ask(1, 1, Mode::PR, 1).unwrap();
    assert_eq!(cluster.told_of_locks(), [(0, Verb::Done, 1, 0), (0, Verb::Wanted, 1, Mode::PR as u64)]);
    cluster.unlock(0, 1, &[5; VALUE_LEN]).unwrap();
    let (_, program, head, grant) = cluster.way.told[0].clone();
    assert_eq!((program, head.verb, &grant[8..]), (ClientId(1), Verb::Done, &[5; VALUE_LEN][..]));
    cluster.way.told.clear();
    cluster.ask(0, 2, Mode::EX, 0).unwrap();
    assert_eq!(cluster.told_of_locks(), [(0, Verb::Done, 2, LockRefusal::NotGranted as u64)]);
    cluster.ask(0, 2, Mode::EX, 1).unwrap();
    cluster.unlock(0, 2, &[]).unwrap();
    assert_eq!(
        cluster.told_of_locks(),
        [(1, Verb::Wanted, 1, Mode::EX as u64), (0, Verb::Done, 2, LockRefusal::Cancelled as u64)]
    );
    cluster.ask(0, 2, Mode::EX, 1).unwrap();
    cluster.cores[0].forget(&mut Acting(0, &mut cluster.way), ClientId(1));
    cluster.settle();
    assert_eq!(cluster.told_of_locks(), [(0, Verb::Done, 2, 0)]);
    cluster.cores[0].forget(&mut Acting(0, &mut cluster.way), ClientId(0));
    cluster.settle();
    cluster.assert_nothing_is_left();
}

#[test]
fn a_release_with_a_value_is_answered_when_the_value_is_written() {
    let mut cluster = Cluster::for_locks();
    cluster.ask(0, 1, Mode::PW, 1).unwrap();
    cluster.ask(1, 1, Mode::PR, 1).unwrap();
    let convert = ConvertRequest { mode: Mode::EX, timeout_ns: 1, value: None }.encode();
    let head = |verb, id| Head { id, port: 1, ..Head::new(verb, Use::Locks) };
    // It waits behind the other program's request.
    cluster.say(0, ClientId(0), head(Verb::Convert, 8), &convert).unwrap();
    cluster.way.told.clear();
    cluster.say(0, ClientId(0), head(Verb::Unlock, 9), &[5; VALUE_LEN]).unwrap();
    assert_eq!(cluster.told_of_locks(), [(0, Verb::Done, 1, LockRefusal::Cancelled as u64)]);
    let again = cluster.say(0, ClientId(0), head(Verb::Unlock, 10), &[6; VALUE_LEN]);
    assert!(again.is_err(), "a second release");
    while cluster.serve_locks() {
        let answered = cluster.way.told.iter().any(|(_, _, head, _)| head.id == 9);
        let granted = cluster.way.told.iter().find(|(_, program, ..)| *program == ClientId(1));
        assert!(!answered || granted.is_some_and(|(_, _, _, grant)| grant[8..] == [5; VALUE_LEN]));
    }
    assert!(cluster.way.told.iter().any(|(_, _, head, _)| head.id == 9 && head.status == Status::Ok));
    assert_eq!(cluster.cores[0].locks(), 1, "only the other program has one");
}

#[test]
fn invalid_lock_requests_are_violations_and_too_many_are_refused() {
    let mut cluster = Cluster::for_locks();
    cluster.ask(0, 1, Mode::PR, 1).unwrap();
    let convert = |value| ConvertRequest { mode: Mode::CR, timeout_ns: 1, value }.encode();
    let head = |verb, port| Head { id: 9, port, ..Head::new(verb, Use::Locks) };
    assert!(cluster.ask(0, 1, Mode::CR, 1).is_err(), "a number that is taken");
    assert!(cluster.unlock(0, 1, &[1; VALUE_LEN]).is_err(), "a value beside readers");
    assert!(cluster.unlock(0, 1, &[1; 5]).is_err(), "a value that is none");
    assert!(cluster.say(0, ClientId(0), head(Verb::Convert, 1), &convert(Some([1; VALUE_LEN]))).is_err());
    assert!(cluster.say(0, ClientId(0), head(Verb::Convert, 2), &convert(None)).is_err(), "not its lock");
    cluster.say(0, ClientId(0), head(Verb::Convert, 1), &convert(None)).unwrap();
    assert!(cluster.say(0, ClientId(0), head(Verb::Convert, 1), &convert(None)).is_err(), "twice at a time");
    assert!(cluster.say(0, ClientId(0), head(Verb::Bind, 1), &[]).is_err(), "a port for locks");
    cluster.cores[0].place.workers = 2;
    cluster.cores[0].place.worker = 1 - Partition::of(hash::hash(b"n")).worker(2).0;
    assert!(cluster.ask(0, 2, Mode::CR, 1).is_err(), "of another worker");
    cluster.cores[0].place = WorkerPlace { me: NodeId(0), worker: 0, workers: 1 };
    cluster.way.told.clear();
    cluster.way.lock_requests.clear();
    // No request is answered before the last is sent.
    let request = NewLockMessage {
        mode: Mode::NL,
        notify: false,
        session: 0,
        start_time: 0,
        timeout_ns: 0,
        name: b"n",
    };
    let request = request.encode();
    for port in 2..=limits::MAX_LOCKS as u32 {
        cluster.say(0, ClientId(0), head(Verb::Lock, port), &request).unwrap();
    }
    assert!(cluster.way.told.is_empty());
    cluster.say(0, ClientId(0), head(Verb::Lock, 1 << 20), &request).unwrap();
    assert_eq!(cluster.told_of_locks(), [(0, Verb::Done, 1 << 20, LockRefusal::TooManyLocks as u64)]);
}
