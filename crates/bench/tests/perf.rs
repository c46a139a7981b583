//! The measurement between two workers, over both rails, polling and waiting: every trial ends with
//! figures that hold together.

#[path = "../../interconnect/tests/common/meshes.rs"]
mod meshes;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use meshes::{LIMIT, addresses, config, name, peer};
use plexus_base::{Incarnation, NodeId, Waiting};
use plexus_bench::perf::{
    self, Bare, Driving, Grid, LaneChoice, Load, Measured, MeasuredPath, Op, PerfError, Plan, Serve, Test,
    Trial, Until,
};
use plexus_fabric::{RailKind, Window};
use plexus_interconnect::{
    Channel, Kind,
    mesh::{Config, Mesh},
};

/// Few: where cores are missing, two threads that poll take turns.
const COUNT: u64 = 8;

/// Two nodes with a link between their workers.
struct Pair {
    meshes: [Arc<Mesh<Bare>>; 2],
    places: [MeasuredPath<Bare>; 2],
}

impl Pair {
    fn new(rail: RailKind) -> Self {
        let addresses = addresses(2);
        let name = name(addresses[0]);
        let windows =
            [(); 2].map(|()| Arc::new(Window::create(perf::WINDOW, perf::WINDOW_BYTES, 0).unwrap()));
        let meshes = [0, 1].map(|me: u8| {
            let at = |node: u8| &addresses[usize::from(node)..][..1];
            let peer = peer(1 - me, at(1 - me), &[rail], false);
            let config = Config {
                windows: vec![windows[usize::from(me)].clone()],
                waiting: Waiting::Event,
                timeout: LIMIT,
                ..config(me, name, at(me), vec![peer])
            };
            Mesh::start(config, vec![Bare::default()], |_| ()).unwrap()
        });
        meshes.iter().for_each(|mesh| mesh.wait_connected(LIMIT).unwrap());
        let [here, there] = windows;
        let place = |mesh: &Mesh<Bare>, window| MeasuredPath { worker: mesh.workers()[0].clone(), window };
        Self { places: [place(&meshes[0], here), place(&meshes[1], there)], meshes }
    }

    fn measure(
        &self,
        driving: Driving,
        trials: Vec<Trial>,
        until: Until,
    ) -> Result<Vec<Measured>, PerfError> {
        let plan = Plan { peer: 1, driving, trials, until };
        let wanted = AtomicBool::new(true);
        let serve = Serve { driving, peer_timeout_ms: plan.total_ms() };
        thread::scope(|scope| {
            let serving =
                scope.spawn(|| perf::serve(&self.places[1], &serve, &mut || wanted.load(Ordering::Relaxed)));
            let measured = perf::run(&self.places[0], &plan, &mut |_| true);
            wanted.store(measured.is_ok(), Ordering::Relaxed);
            assert_eq!(serving.join().unwrap().is_ok(), measured.is_ok());
            measured
        })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.meshes.iter().for_each(|mesh| mesh.stop());
    }
}

fn every_operation() -> Grid {
    Grid {
        tests: Test::ALL.into(),
        ops: Op::of_nodes().collect(),
        sizes: vec![8, 4096, 1 << 20, perf::LONGEST],
        streams: vec![1],
        depths: vec![16],
        bidirectional: false,
        load: None,
        lane: LaneChoice::Auto,
    }
}

fn every_trial_ends(kind: RailKind, driving: Driving, grid: &Grid) -> Vec<Measured> {
    let trials = grid.trials().unwrap();
    let measured = Pair::new(kind).measure(driving, trials.clone(), Until::Count(COUNT)).unwrap();
    assert_eq!(measured.len(), trials.len());
    for (trial, measured) in trials.iter().zip(&measured) {
        let line = format!("{kind} {driving} {measured:?}");
        assert_eq!(*trial, measured.trial);
        let flows = std::iter::once(&measured.flow).chain(&measured.reverse);
        assert_eq!(flows.clone().count(), 1 + usize::from(trial.bidirectional));
        for (index, flow) in flows.enumerate() {
            // The other direction is where it happens to be when this one has its count.
            assert!(flow.messages >= COUNT || index == 1, "{line}");
            assert_eq!(flow.latency_us.is_some(), trial.test == Test::Latency, "{line}");
            assert_eq!(flow.per_stream.is_some(), trial.streams > 1, "{line}");
            if let (Some(latency), Some(round)) = (flow.latency_us, flow.round_trip_us) {
                assert_eq!(latency.count, flow.messages, "{line}");
                assert!(latency.min <= latency.max && latency.max <= round.max, "{line}");
            }
            if let Some(streams) = &flow.per_stream {
                assert_eq!(streams.each.len(), trial.streams as usize);
            }
        }
        let text = serde_json::to_string(measured).unwrap();
        assert_eq!(
            serde_json::from_str::<Measured>(&text).unwrap(),
            *measured,
            "it survives the way to who asked"
        );
        assert_eq!(measured.load_mb_per_s.is_some(), trial.load.is_some(), "{line}");
        assert!(measured.client.ns_per_message > 0.0 && measured.server.ns_per_message > 0.0, "{line}");
    }
    measured
}

#[test]
fn over_shared_memory_polling() {
    every_trial_ends(RailKind::Shm, Driving::Polling, &every_operation());
}

#[test]
fn over_shared_memory_waiting() {
    every_trial_ends(RailKind::Shm, Driving::Waiting, &every_operation());
}

#[test]
fn over_tcp_polling() {
    every_trial_ends(RailKind::Tcp, Driving::Polling, &every_operation());
}

#[test]
fn over_tcp_waiting() {
    every_trial_ends(RailKind::Tcp, Driving::Waiting, &every_operation());
}

#[test]
fn streams_both_ways_under_load_on_every_lane() {
    for (kind, driving) in [(RailKind::Shm, Driving::Polling), (RailKind::Tcp, Driving::Waiting)] {
        for lane in LaneChoice::ALL {
            // What is written keeps its order on the prompt lane only.
            let ops = Op::of_nodes().filter(|op| (*op, lane) != (Op::Write, LaneChoice::Bulk));
            let grid = Grid {
                ops: ops.collect(),
                sizes: vec![8, 4096],
                streams: vec![3],
                depths: vec![1, 64],
                bidirectional: true,
                load: Some(Load { mb_per_s: None, bytes: 16 << 10 }),
                lane,
                ..every_operation()
            };
            every_trial_ends(kind, driving, &grid);
        }
    }
}

#[test]
fn places_are_used_again_and_again() {
    let grid = Grid {
        ops: vec![Op::Put, Op::Write, Op::Get],
        sizes: vec![4096, 1 << 20],
        bidirectional: true,
        ..every_operation()
    };
    let trials = grid.trials().unwrap();
    let pair = Pair::new(RailKind::Shm);
    let measured = pair.measure(Driving::Waiting, trials.clone(), Until::Count(200)).unwrap();
    assert_eq!(measured.len(), trials.len());
}

#[test]
fn a_load_with_a_rate_is_reported() {
    for driving in [Driving::Polling, Driving::Waiting] {
        let grid = Grid {
            tests: vec![Test::Latency],
            ops: vec![Op::Send],
            sizes: vec![64],
            load: Some(Load { mb_per_s: Some(2.0), bytes: 1000 }),
            ..every_operation()
        };
        every_trial_ends(RailKind::Shm, driving, &grid);
    }
}

#[test]
fn what_cannot_be_measured_is_refused_and_the_next_run_is_fine() {
    let pair = Pair::new(RailKind::Shm);
    let trial = Trial::new(Test::Latency, Op::Send, 8);
    let plan = |peer, bytes, until| Plan {
        peer,
        driving: Driving::Waiting,
        trials: vec![Trial { bytes, ..trial }],
        until,
    };
    for (plan, part) in [
        (plan(1, 0, Until::Ms(20)), "send of 0 bytes"),
        (plan(1, perf::LONGEST + 1, Until::Ms(20)), "send of 4194305 bytes"),
        (plan(1, 8, Until::Ms(1)), "1 ms for each trial"),
        (plan(0, 8, Until::Ms(20)), "no link to node 0"),
        (plan(9, 8, Until::Ms(20)), "no link to node 9"),
    ] {
        let error = perf::run(&pair.places[0], &plan, &mut |_| true).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(pair.measure(Driving::Waiting, vec![trial], Until::Count(9)).unwrap().len(), 1);
}

#[test]
fn cancelled_run_ends() {
    let pair = Pair::new(RailKind::Shm);
    for driving in [Driving::Polling, Driving::Waiting] {
        let trials = vec![Trial::new(Test::Bandwidth, Op::Put, 4096)];
        let plan = Plan { peer: 1, driving, trials, until: Until::Ms(600_000) };
        let serve = Serve { driving, peer_timeout_ms: plan.total_ms() };
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let serving =
                scope.spawn(|| perf::serve(&pair.places[1], &serve, &mut || !over.load(Ordering::Relaxed)));
            let mut told = Vec::new();
            let ended = perf::run(&pair.places[0], &plan, &mut |live| {
                told.push(live.messages);
                // As soon as messages flow.
                live.messages == 0
            });
            assert_eq!(ended, Err(PerfError::Unwanted));
            assert!(told.last() > Some(&0), "{told:?}");
            over.store(true, Ordering::Relaxed);
            assert_eq!(serving.join().unwrap(), Err(PerfError::Unwanted));
        });
    }
}

/// Measures until messages flow, then does `act` to the pair; how running and serving end.
fn interrupted(rail: RailKind, act: impl FnOnce(&Pair)) -> [Result<(), PerfError>; 2] {
    let pair = Pair::new(rail);
    let trials = vec![Trial::new(Test::Latency, Op::Send, 8)];
    let plan = Plan { peer: 1, driving: Driving::Waiting, trials, until: Until::Ms(60_000) };
    let serve = Serve { driving: Driving::Waiting, peer_timeout_ms: plan.total_ms() };
    thread::scope(|scope| {
        let serving = scope.spawn(|| perf::serve(&pair.places[1], &serve, &mut || true));
        let running = scope.spawn(|| perf::run(&pair.places[0], &plan, &mut |_| true));
        let counters = &pair.places[1].worker.links()[0].counters[Channel::Benchmark.index()];
        while counters.server_in.snapshot().total_messages() < 100 {
            thread::yield_now();
        }
        act(&pair);
        [running.join().unwrap().map(drop), serving.join().unwrap().map(drop)]
    })
}

#[test]
fn a_server_that_is_sent_nonsense_gives_up_and_says_so() {
    let [running, serving] = interrupted(RailKind::Shm, |pair| {
        // Data (5) of whichever trial it is, and not in its turn.
        pair.places[0].worker.with(|_, net| {
            for trial in 0..64 {
                let tag = 5 | trial << 10 | 0x7777 << 16;
                net.send(NodeId(1), Channel::Benchmark, Kind::Request, tag, &[0; 8]).unwrap();
            }
        });
    });
    assert_eq!(serving, Err(PerfError::Changed { bytes: 8 }));
    let told = format!("the other side gave up: {}", PerfError::Changed { bytes: 8 });
    assert_eq!(running, Err(PerfError::Refused(told)));
}

#[test]
fn a_peer_that_goes_ends_both_sides() {
    let [running, serving] =
        interrupted(RailKind::Tcp, |pair| pair.places[1].worker.drop_link(NodeId(0), Incarnation(1)));
    assert_eq!(running, Err(PerfError::PeerGone(NodeId(1))));
    assert_eq!(serving, Err(PerfError::PeerGone(NodeId(0))));
}
