//! Tests of the driving of a worker, without a background thread unless a test starts one.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicU32,
            Ordering::{Relaxed, SeqCst},
        },
        mpsc,
    },
    thread::{self, Scope, ScopedJoinHandle},
    time::Duration,
};

use plexus_base::{Incarnation, NodeId, Waiting};
use plexus_fabric::{Bell, Lost, RailKind};

use super::{TURNS_BETWEEN_CLAIMS, Worker, WorkerParts, visit::ATTEND_EVERY};
use crate::{Channel, Kind, Message, Net, Service, Signal, link::fake::Fake};

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(60);

/// A service that counts its turns.
#[derive(Default)]
struct Counts {
    turns: Arc<AtomicU32>,
    /// True if each turn has something to do.
    is_busy: bool,
}

impl Service for Counts {
    type Task = ();

    fn message(&mut self, _: &mut Net, _: Message<'_>) {}

    fn task(&mut self, _: &mut Net, (): ()) {}

    fn peer_gone(&mut self, _: &mut Net, _: NodeId, _: &Lost) {}

    fn turn(&mut self, _: &mut Net) -> usize {
        self.turns.fetch_add(1, Relaxed);
        usize::from(self.is_busy)
    }
}

fn worker<S: Service>(waiting: Waiting, service: S) -> Worker<S> {
    let parts = WorkerParts::alone(NodeId(0), Arc::new(Bell::create().unwrap()), waiting);
    Worker::new(parts, service).unwrap()
}

/// Makes a worker with a rail that no thread drives: the bell is armed, or the worker is lent.
fn connected<S: Service>(waiting: Waiting, service: S) -> (Worker<S>, Fake) {
    let (worker, fake) = (worker(waiting, service), Fake::default());
    worker.add_rail(NodeId(1), Incarnation(1), 0, 1, fake.rail(RailKind::Tcp), String::new());
    worker.attend();
    (worker, fake)
}

/// Returns how many messages were sent and not pushed out.
fn stays(fake: &Fake) -> usize {
    let script = fake.script();
    script.sent.len() - script.pushed
}

/// Starts a thread that waits for a signal; returns both.
fn waiting<'scope, S: Service>(
    scope: &'scope Scope<'scope, '_>,
    worker: &'scope Worker<S>,
) -> (ScopedJoinHandle<'scope, u64>, Arc<Signal>) {
    let (tell, told) = mpsc::channel();
    let waits = scope.spawn(move || {
        let signal = Arc::new(Signal::new());
        tell.send(signal.clone()).unwrap();
        worker.wait(&signal)
    });
    (waits, told.recv().unwrap())
}

#[test]
fn a_waiting_thread_gives_way_to_one_that_claims_the_token() {
    for mode in Waiting::ALL {
        let turns = Arc::new(AtomicU32::new(0));
        let worker = worker(mode, Counts { turns: turns.clone(), is_busy: false });
        thread::scope(|scope| {
            let (waits, signal) = waiting(scope, &worker);
            // Wait until that thread drives.
            while turns.load(Relaxed) == 0 {
                thread::yield_now();
            }
            let (tell, told) = mpsc::channel();
            let worker = &worker;
            scope.spawn(move || tell.send(worker.with(|_, net| net.me())));
            let had = told.recv_timeout(NEVER);
            signal.set(7);
            assert_eq!(waits.join().unwrap(), 7);
            assert_eq!(had, Ok(NodeId(0)), "{mode}");
        });
    }
}

#[test]
fn a_claimant_of_the_token_goes_before_all_waiting_threads() {
    const WAITING: u32 = 3;
    let turns = Arc::new(AtomicU32::new(0));
    let worker = worker(Waiting::Polling, Counts { turns: turns.clone(), is_busy: false });
    thread::scope(|scope| {
        let waiting_threads = [(); WAITING as usize].map(|()| waiting(scope, &worker).1);
        while turns.load(Relaxed) == 0 {
            thread::yield_now();
        }
        worker.shared.claimed.swap(true, SeqCst);
        let before = turns.load(Relaxed);
        (0..1_000).for_each(|_| thread::yield_now());
        let meanwhile = worker.with(|_, _| turns.load(Relaxed) - before);
        waiting_threads.iter().for_each(|signal| signal.set(7));
        // Each may have looked before there was a claim, and then drives until it looks again.
        assert!(meanwhile <= WAITING * TURNS_BETWEEN_CLAIMS, "{meanwhile}");
    });
}

/// A service with a task that leaves work to the next turn, which nothing else announces.
#[derive(Default)]
struct Leaves {
    left: u32,
    done: Arc<AtomicU32>,
}

impl Service for Leaves {
    type Task = u32;

    fn message(&mut self, _: &mut Net, _: Message<'_>) {}

    fn task(&mut self, _: &mut Net, left: u32) {
        self.left += left;
    }

    fn peer_gone(&mut self, _: &mut Net, _: NodeId, _: &Lost) {}

    fn turn(&mut self, _: &mut Net) -> usize {
        let left = std::mem::take(&mut self.left);
        self.done.fetch_add(left, Relaxed);
        left as usize
    }

    fn pending(&mut self) -> bool {
        self.left > 0
    }
}

#[test]
fn a_visitor_does_the_work_that_its_task_leaves_to_the_next_turn() {
    for waiting in Waiting::ALL {
        let done = Arc::new(AtomicU32::new(0));
        let worker = worker(waiting, Leaves { done: done.clone(), ..Leaves::default() });
        // No thread drives the worker afterwards: the bell is armed, or the worker is lent.
        worker.attend();
        for visits in 1..=3 {
            worker.visit(|service, net| service.task(net, 1));
            assert_eq!(done.load(Relaxed), visits, "{waiting}");
        }
    }
}

#[test]
fn only_a_visit_that_looks_after_a_lent_worker_counts_as_such() {
    let worker = worker(Waiting::Polling, Counts::default());
    worker.attend();
    let attended = || worker.shared.attended.load(Relaxed);
    let before = attended();
    for visits in 1..=3 * ATTEND_EVERY {
        worker.visit(|_, _| ()).expect("no other thread drives");
        assert_eq!(attended() - before, visits / ATTEND_EVERY);
    }
}

#[test]
fn an_unhurried_message_leaves_at_once_or_where_threads_poll_with_the_next() {
    for waiting in Waiting::ALL {
        let (worker, fake) = connected(waiting, Counts::default());
        let visit = |hurries: bool| {
            let send = |_: &mut Counts, net: &mut Net| match hurries {
                true => net.send(NodeId(1), Channel::Locks, Kind::Reply, 0, b"now"),
                false => net.send_unhurried(NodeId(1), Channel::Locks, Kind::Reply, 0, b"some time"),
            };
            worker.visit(send).expect("no other thread drives").expect("there is a link");
            stays(&fake)
        };
        let may_stay = usize::from(waiting == Waiting::Polling);
        let stayed = [false, false, true, false].map(visit);
        assert_eq!(stayed, [may_stay, 2 * may_stay, 0, may_stay], "{waiting}");
        worker.with(|_, _| ());
        assert_eq!(stays(&fake), 0, "{waiting}");
    }
}

/// Reads of 1 MiB of another node's disk took 0.2 s.
#[test]
fn a_message_of_a_visitor_that_finds_no_room_goes_on() {
    // Where threads poll, the next turn comes anyway.
    for waiting in [Waiting::Adaptive, Waiting::Event] {
        let (worker, fake) = connected(waiting, Counts::default());
        fake.script().full = 2;
        let send = |_: &mut Counts, net: &mut Net| {
            net.send(NodeId(1), Channel::Disks, Kind::Request, 0, &[1; 40_000])
        };
        worker.visit(send).expect("no other thread drives").expect("there is a link");
        let sent: usize = fake.script().sent.iter().map(Vec::len).sum();
        assert!(sent > 40_000 && stays(&fake) == 0, "{waiting}: {sent} bytes");
    }
}

#[test]
fn while_a_thread_stands_by_the_worker_and_messages_of_visitors_are_left_to_it() {
    for waiting in [Waiting::Adaptive, Waiting::Event] {
        let (worker, fake) = connected(waiting, Counts::default());
        let shared = &*worker.shared;
        assert!(shared.bell.is_armed(), "no thread stands by");
        let visit = || {
            let send =
                |_: &mut Counts, net: &mut Net| net.send(NodeId(1), Channel::Locks, Kind::Reply, 0, b"soon");
            worker.visit(send).expect("no other thread drives").expect("there is a link");
            stays(&fake)
        };
        // The driver leaves its seat as well.
        let drive = || {
            let core = shared.token.try_take().expect("no other thread drives");
            shared.bell.disarm();
            let mut seat = shared.watch.sit();
            shared.leave(core, &mut seat);
            seat.is_some()
        };
        let mut stands = false;
        shared.token.stand_by(&mut stands);
        assert!(!drive() && !shared.bell.is_armed());
        assert_eq!([visit(), visit()], [1, 2], "{waiting}");
        let mut core = shared.token.go(&mut stands).expect("it was left to this thread alone");
        core.turn(shared);
        assert_eq!(stays(&fake), 0, "{waiting}");
        let mut seat = shared.take_seat_left(&mut core);
        assert!(seat.is_some() && shared.watch.sit().is_none(), "the same seat");
        shared.leave(core, &mut seat);
        assert!(shared.bell.is_armed());
        drop(seat);
        assert_eq!(visit(), 0, "{waiting}");

        // A thread that goes during a visit leaves the worker to the visitor.
        shared.token.stand_by(&mut stands);
        drive();
        worker
            .visit(|_, net| {
                assert!(shared.token.go(&mut stands).is_none(), "a visitor has it");
                net.send(NodeId(1), Channel::Locks, Kind::Reply, 0, b"now")
            })
            .expect("no other thread drives")
            .expect("there is a link");
        assert_eq!(stays(&fake), 0, "{waiting}");
        assert!(shared.bell.is_armed() && shared.watch.sit().is_some(), "{waiting}");
    }
}

#[test]
fn where_threads_poll_a_worker_is_not_left() {
    let worker = worker(Waiting::Polling, Counts::default());
    let shared = &*worker.shared;
    let mut stands = false;
    shared.token.stand_by(&mut stands);
    worker.with(|_, _| ());
    assert!(shared.bell.is_armed() && shared.token.go(&mut stands).is_none());
}

#[test]
fn submitted_tasks_come_before_the_errand_of_a_visitor() {
    let worker = worker(Waiting::Adaptive, Leaves::default());
    let shared = &*worker.shared;
    let mut stands = false;
    shared.token.stand_by(&mut stands);
    worker.with(|_, _| ());
    assert!(!shared.bell.is_armed(), "left");
    worker.push(1);
    assert_eq!(worker.visit(|leaves, _| leaves.left), Some(1));
}

/// A guard that visits the worker when it is dropped by a panic.
struct Visits<'a>(&'a Worker<Counts>);

impl Drop for Visits<'_> {
    fn drop(&mut self) {
        for _ in 0..2 * ATTEND_EVERY {
            self.0.visit(|_, _| ()).expect("no other thread drives");
            self.0.attend();
        }
    }
}

#[test]
fn a_visit_during_a_panic_elsewhere_harms_no_worker() {
    for waiting in Waiting::ALL {
        let worker = worker(waiting, Counts::default());
        worker.attend();
        let panics = || {
            let _visits = Visits(&worker);
            panic!("of its own");
        };
        thread::scope(|scope| assert!(scope.spawn(panics).join().is_err()));
        assert!(worker.visit(|_, _| ()).is_some(), "{waiting}");
    }
}

#[test]
#[should_panic(expected = "poisoned")]
fn a_panic_of_the_driver_poisons_the_worker() {
    let worker = worker(Waiting::Adaptive, Counts::default());
    let panics = || worker.with(|_, _| panic!("a defect"));
    thread::scope(|scope| assert!(scope.spawn(panics).join().is_err()));
    worker.visit(|_, _| ());
}

#[test]
#[should_panic(expected = "poisoned")]
fn no_thread_waits_for_a_poisoned_worker_that_another_claims() {
    let worker = worker(Waiting::Polling, Counts::default());
    let panics = || worker.with(|_, _| panic!("a defect"));
    thread::scope(|scope| assert!(scope.spawn(panics).join().is_err()));
    worker.shared.claimed.store(true, Relaxed);
    worker.wait(&Signal::new());
}

/// Several threads, more than there are cores, wait for each other's answers. Each is answered,
/// whichever drives.
#[test]
fn waiting_threads_are_answered() {
    for waiting in Waiting::ALL {
        let worker = worker(waiting, Answers);
        thread::scope(|scope| {
            let runs = scope.spawn(|| worker.run());
            let waiting_threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let signal = Arc::new(Signal::new());
                        for round in 0..2_000 {
                            worker.push((round, signal.clone()));
                            assert_eq!(worker.wait(&signal), round);
                        }
                    })
                })
                .collect();
            waiting_threads.into_iter().for_each(|one| one.join().unwrap());
            worker.stop();
            runs.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_worker_is_not_left_to_a_sleeping_thread_that_stood_by_in_the_seat() {
    for mode in [Waiting::Adaptive, Waiting::Event] {
        let turns = Arc::new(AtomicU32::new(0));
        let (worker, _fake) = connected(mode, Counts { turns: turns.clone(), is_busy: true });
        let before = turns.load(Relaxed);
        thread::scope(|scope| {
            let (waits, signal) = waiting(scope, &worker);
            // It drives, and in adaptive mode it has the seat.
            while turns.load(Relaxed) == before {
                thread::yield_now();
            }
            // It gives way, stands by while this thread has the token, and falls asleep.
            worker.with(|_, _| {
                while !signal.is_slept_on() {
                    thread::yield_now();
                }
            });
            let armed = worker.shared.bell.is_armed();
            signal.set(7);
            assert_eq!(waits.join().unwrap(), 7);
            assert!(armed, "{mode}: no thread is awake, and none would be woken");
        });
    }
}

/// A service that answers every task.
struct Answers;

impl Service for Answers {
    type Task = (u64, Arc<Signal>);

    fn message(&mut self, _: &mut Net, _: Message<'_>) {}

    fn task(&mut self, _: &mut Net, (answer, signal): Self::Task) {
        signal.set(answer);
    }

    fn peer_gone(&mut self, _: &mut Net, _: NodeId, _: &Lost) {}
}

/// The background thread drives without end, and no local thread comes by.
#[test]
fn rails_are_probed_while_the_background_thread_polls() {
    let worker = worker(Waiting::Polling, Counts::default());
    let fake = Fake::default();
    worker.add_rail(NodeId(1), Incarnation(1), 0, 1, fake.rail(RailKind::Tcp), String::new());
    thread::scope(|scope| {
        let runs = scope.spawn(|| worker.run());
        while fake.script().sent.len() < 3 {
            thread::sleep(Duration::from_millis(1));
        }
        worker.stop();
        runs.join().unwrap().unwrap();
    });
}

#[test]
fn a_rail_that_comes_when_the_worker_ends_is_dropped() {
    let worker = worker(Waiting::Adaptive, Counts::default());
    let [before, after] = [Fake::default(), Fake::default()];
    let give = |fake: &Fake| {
        worker.add_rail(NodeId(1), Incarnation(1), 0, 1, fake.rail(RailKind::Tcp), String::new())
    };
    worker.stop();
    give(&before);
    worker.run().unwrap();
    give(&after);
    worker.with(|_, net| assert_eq!(net.links.iter().count(), 0));
    assert_eq!([before.is_held(), after.is_held()], [false, false]);
}
