//! The measurement between two workers, over both rails, polling and waiting: every trial ends with figures that hold together.

use std::{
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    sync::{Arc, atomic::AtomicBool},
    thread::{self, JoinHandle},
};

use plexus_base::{Epoch, NodeId, Waiting, WorkerId};
use plexus_bench::perf::{self, Driving, Method, Pattern, PerfError, Plan, Serve, Trial};
use plexus_fabric::{
    Bell, Lost, PeerBell, PeerWindow, Rail, RailKind, ShmRail, TcpRail, Window, Windows,
    shm::{RxRings, ShmParts, TxRings},
    tcp::TcpParts,
};
use plexus_interconnect::{Channel, LinkInfo, Message, Net, Service, Worker};
use plexus_node::port::Ports;

/// A service of nothing but ports.
#[derive(Default)]
struct Bare(Ports);

impl AsMut<Ports> for Bare {
    fn as_mut(&mut self) -> &mut Ports {
        &mut self.0
    }
}

impl Service for Bare {
    type Task = ();
    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        self.0.message(net, message);
    }
    fn task(&mut self, _: &mut Net, (): ()) {}
    fn peer_gone(&mut self, net: &mut Net, peer: NodeId, why: &Lost) {
        eprintln!("{} lost {peer}: {why}", net.me());
        self.0.peer_gone(net, peer);
    }
}

/// Two workers with a link, each with its background thread.
struct Pair {
    workers: [Worker<Bare>; 2],
    links: Vec<LinkInfo>,
    threads: Vec<JoinHandle<()>>,
}

impl Pair {
    fn new(kind: RailKind) -> Self {
        let own = [(); 2].map(|()| {
            let window = Arc::new(Window::create(perf::WINDOW, perf::WINDOW_BYTES as usize, 0).unwrap());
            (Arc::new(Bell::create().unwrap()), window.clone(), Arc::new(Windows::new([window])))
        });
        let span = own[0].1.span();
        let rails: [Box<dyn Rail>; 2] = match kind {
            RailKind::Shm => {
                let rings = [(); 2].map(|()| RxRings::create().unwrap());
                let maps = [0, 1].map(|me| {
                    let (bell, window, _) = &own[1 - me];
                    let tx = TxRings::map(rings[1 - me].fd()).unwrap();
                    let bell =
                        PeerBell::map(bell.page_fd(), bell.fd().try_clone_to_owned().unwrap()).unwrap();
                    (tx, bell, PeerWindow::map(window.fd().as_fd(), span).unwrap())
                });
                let mut rings = rings.into_iter();
                maps.map(|(tx, bell, window)| -> Box<dyn Rail> {
                    let rx = rings.next().unwrap();
                    let gone = Arc::new(AtomicBool::new(false));
                    Box::new(ShmRail::new(ShmParts { tx, rx, bell, windows: Arc::new([window]), gone }))
                })
            }
            RailKind::Tcp => {
                let (prompt, bulk) = (sockets(), sockets());
                let streams = [[prompt.0, bulk.0], [prompt.1, bulk.1]];
                let mut windows = own.iter().map(|own| own.2.clone());
                streams.map(|streams| -> Box<dyn Rail> {
                    let windows = windows.next().unwrap();
                    Box::new(
                        TcpRail::new(TcpParts { streams, windows, peer_windows: vec![span], seals: None })
                            .unwrap(),
                    )
                })
            }
            RailKind::Ofi => unreachable!("the trials are the same over every rail; two are enough"),
        };
        let mut bells = own.into_iter().map(|own| own.0);
        let workers = [0, 1].map(|me| {
            let bell = bells.next().unwrap();
            Worker::new(NodeId(me), WorkerId(0), Epoch(1), 2, bell, Waiting::Event, Bare::default()).unwrap()
        });
        let links = rails.into_iter().enumerate();
        let links = links.map(|(me, rail)| workers[me].add_link(NodeId(1 - me as u8), rail)).collect();
        let threads = workers.clone().map(|worker| thread::spawn(move || worker.run().unwrap()));
        Self { workers, links, threads: threads.into() }
    }

    fn measure(&self, driving: Driving, trials: Vec<Trial>) -> Result<Vec<perf::Measured>, PerfError> {
        let plan = Plan { peer: 1, driving, trials, trial_ms: 20 };
        thread::scope(|scope| {
            let patience_ms = plan.total_ms();
            let serving = scope.spawn(move || perf::serve(&self.workers[1], &Serve { driving, patience_ms }));
            let measured = perf::run(&self.workers[0], &plan)?;
            assert_eq!(serving.join().unwrap(), Ok(()));
            Ok(measured)
        })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.workers.iter().for_each(Worker::stop);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

fn every_trial_ends(kind: RailKind, driving: Driving) {
    let mut trials = Vec::new();
    for method in [Method::Send, Method::Put] {
        for pattern in [Pattern::Latency, Pattern::Stream] {
            trials.extend([8, 4096, 16384, 1 << 20, perf::WINDOW_BYTES].map(|bytes| Trial {
                method,
                pattern,
                bytes,
            }));
        }
    }
    let measured = Pair::new(kind).measure(driving, trials.clone()).unwrap();
    assert_eq!(measured.len(), trials.len());
    for (trial, measured) in trials.iter().zip(&measured) {
        let line = format!("{kind} {driving} {measured:?}");
        if std::env::var_os("PLEXUS_SHOW").is_some() {
            eprintln!("{line}");
        }
        assert_eq!(
            (trial.method, trial.pattern, trial.bytes),
            (measured.method, measured.pattern, measured.bytes)
        );
        assert!(measured.messages > 0 && measured.messages_per_s > 0.0 && measured.mb_per_s > 0.0, "{line}");
        assert!(
            measured.cpu_client.us_per_message > 0.0 && measured.cpu_server.us_per_message > 0.0,
            "{line}"
        );
        match (measured.response_us, measured.one_way_us) {
            (Some(us), Some(one_way)) => {
                assert_eq!(trial.pattern, Pattern::Latency);
                assert!(0.0 < one_way && one_way < us.p50 && us.p50 <= us.p99 && us.p99 <= us.p999, "{line}");
            }
            other => assert_eq!((trial.pattern, other), (Pattern::Stream, (None, None))),
        }
    }
}

#[test]
fn over_shared_memory_polling() {
    every_trial_ends(RailKind::Shm, Driving::Polling);
}

#[test]
fn over_shared_memory_waiting() {
    every_trial_ends(RailKind::Shm, Driving::Waiting);
}

#[test]
fn over_tcp_polling() {
    every_trial_ends(RailKind::Tcp, Driving::Polling);
}

#[test]
fn over_tcp_waiting() {
    every_trial_ends(RailKind::Tcp, Driving::Waiting);
}

#[test]
fn what_cannot_be_measured_is_refused_and_the_next_run_is_fine() {
    let pair = Pair::new(RailKind::Shm);
    let trial = Trial { method: Method::Send, pattern: Pattern::Latency, bytes: 8 };
    let plan = |peer, bytes, trial_ms| Plan {
        peer,
        driving: Driving::Waiting,
        trials: vec![Trial { bytes, ..trial }],
        trial_ms,
    };
    for (plan, part) in [
        (plan(1, 7, 20), "messages of 7 bytes"),
        (plan(1, perf::WINDOW_BYTES + 1, 20), "messages of 4194305 bytes"),
        (plan(1, 8, 1), "1 ms for each trial"),
        (plan(0, 8, 20), "no link to node 0"),
        (plan(9, 8, 20), "no link to node 9"),
    ] {
        let error = perf::run(&pair.workers[0], &plan).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(pair.measure(Driving::Waiting, vec![trial]).unwrap().len(), 1);
}

#[test]
fn a_peer_that_goes_ends_both_sides() {
    let pair = Pair::new(RailKind::Tcp);
    let trial = Trial { method: Method::Send, pattern: Pattern::Latency, bytes: 8 };
    let plan = Plan { peer: 1, driving: Driving::Waiting, trials: vec![trial], trial_ms: 60_000 };
    let serve = Serve { driving: Driving::Waiting, patience_ms: plan.total_ms() };
    thread::scope(|scope| {
        let serving = scope.spawn(|| perf::serve(&pair.workers[1], &serve));
        let running = scope.spawn(|| perf::run(&pair.workers[0], &plan));
        // As soon as messages flow.
        let counters = &pair.links[1].counters[Channel::Benchmark.index()];
        while counters.server_in.snapshot().total_messages() < 100 {
            thread::yield_now();
        }
        pair.workers[1].drop_link(NodeId(0));
        assert_eq!(running.join().unwrap(), Err(PerfError::PeerGone(NodeId(1))));
        assert_eq!(serving.join().unwrap(), Err(PerfError::PeerGone(NodeId(0))));
    });
}
