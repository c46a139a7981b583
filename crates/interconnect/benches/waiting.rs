//! The cost of waiting: a round trip with both sides asleep beside the same with bare event
//! descriptors; more nodes than cores in every waiting mode; the processor time of idle nodes.

#[path = "../../fabric/benches/common/figures.rs"]
mod figures;
#[allow(dead_code, reason = "the suite of the rails uses the rest")]
#[path = "../../fabric/tests/conformance/pairs.rs"]
mod pairs;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/common/workers.rs"]
mod workers;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use figures::{BenchArguments, Figure, cpus, pin};
use pairs::Kind;
use plexus_base::Waiting;
use plexus_interconnect::Signal;
use rustix::{
    event::{EventfdFlags, eventfd},
    fd::OwnedFd,
};
use workers::mesh;

const REPEATS: usize = 7;
/// The round trips of one turn with both sides asleep.
const ROUNDS: u64 = 4_000;
/// The nodes on the cores of the machine: twice as many as the smallest machine has.
const NODES: usize = 4;
/// The time for which they call each other in one turn.
const BUSY: Duration = Duration::from_millis(400);
/// The time for which they are idle.
const IDLE: Duration = Duration::from_secs(2);

/// The microseconds of one round, in a thread of its own on `cpu`.
fn timed(cpu: usize, mut round: impl FnMut(u64) + Send) -> f64 {
    thread::scope(|scope| {
        let timed = scope.spawn(move || {
            pin(cpu);
            (0..ROUNDS / 8).for_each(&mut round);
            let start = Instant::now();
            (0..ROUNDS).for_each(&mut round);
            start.elapsed().as_secs_f64() * 1e6 / ROUNDS as f64
        });
        timed.join().expect("a measurement")
    })
}

/// The time of two threads that wake each other through an event descriptor each way.
fn events((here, there): (usize, usize)) -> f64 {
    let make = || eventfd(0, EventfdFlags::empty()).expect("an event descriptor");
    let ring = |event: &OwnedFd| assert!(rustix::io::write(event, &1u64.to_ne_bytes()).is_ok());
    let hear = |event: &OwnedFd| assert!(rustix::io::read(event, &mut [0u8; 8]).is_ok());
    let (to, back) = (make(), make());
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(there);
            (0..ROUNDS / 8 + ROUNDS).for_each(|_| {
                hear(&to);
                ring(&back);
            });
        });
        timed(here, |_| {
            ring(&to);
            hear(&back);
        })
    })
}

/// The time of a call of 64 bytes between two nodes whose threads sleep.
fn calls((here, there): (usize, usize), kind: Kind, waiting: Waiting) -> f64 {
    let mut nodes = mesh(2, kind, waiting);
    nodes[0].start(move || pin(here));
    nodes[1].start(move || pin(there));
    let node = &nodes[0];
    let mut signal = None;
    timed(here, move |round| {
        let signal = signal.get_or_insert_with(|| Arc::new(Signal::new()));
        node.call(1, 64, round, signal);
    })
}

/// The calls per second of nodes that all call each other, two threads on each.
fn waiting_threads(waiting: Waiting) -> f64 {
    let mut nodes = mesh(NODES, Kind::Shm, waiting);
    nodes.iter_mut().for_each(|node| node.start(|| {}));
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    thread::scope(|scope| {
        for (me, node) in nodes.iter().enumerate() {
            let (stop, done) = (&stop, &done);
            scope.spawn(move || {
                let signal = Arc::new(Signal::new());
                let mut number = 0;
                while !stop.load(Relaxed) {
                    node.call((me + 1 + number as usize % (NODES - 1)) % NODES, 64, number, &signal);
                    number += 1;
                }
                done.fetch_add(number, Relaxed);
            });
        }
        thread::sleep(BUSY);
        stop.store(true, Relaxed);
    });
    done.load(Relaxed) as f64 / start.elapsed().as_secs_f64()
}

/// The percentage of one core that idle nodes use.
fn idle(waiting: Waiting) -> f64 {
    let mut nodes = mesh(NODES, Kind::Shm, waiting);
    nodes.iter_mut().for_each(|node| node.start(|| {}));
    let used = || {
        let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        usage.tv_sec as f64 + usage.tv_nsec as f64 / 1e9
    };
    let (before, start) = (used(), Instant::now());
    thread::sleep(IDLE);
    (used() - before) / start.elapsed().as_secs_f64() * 100.0
}

fn main() {
    let cpus = cpus();
    let figure = |name: &str, unit, limit, measure: Box<dyn Fn() -> f64>| Figure {
        name: name.into(),
        what: name.into(),
        unit,
        limit,
        steady: unit == "%",
        measure,
    };
    let call = |kind, waiting| -> Box<dyn Fn() -> f64> { Box::new(move || calls(cpus, kind, waiting)) };
    let mut figures = vec![
        figure("eventfd_round_trip", "us", None, Box::new(move || events(cpus))),
        figure("shm_asleep_64", "us", Some("eventfd_round_trip"), call(Kind::Shm, Waiting::Event)),
        figure("shm_adaptive_64", "us", Some("eventfd_round_trip"), call(Kind::Shm, Waiting::Adaptive)),
        figure("tcp_asleep_64", "us", None, call(Kind::Tcp, Waiting::Event)),
        figure("tcp_adaptive_64", "us", Some("tcp_asleep_64"), call(Kind::Tcp, Waiting::Adaptive)),
    ];
    for waiting in [Waiting::Event, Waiting::Adaptive, Waiting::Polling] {
        let name = format!("crowd_{waiting}");
        let limit = (waiting != Waiting::Event).then_some("crowd_event");
        figures.push(figure(&name, "1/s", limit, Box::new(move || waiting_threads(waiting))));
    }
    for waiting in [Waiting::Event, Waiting::Adaptive] {
        figures.push(figure(&format!("idle_{waiting}"), "%", None, Box::new(move || idle(waiting))));
    }
    BenchArguments::new(REPEATS).show(figures);
}
