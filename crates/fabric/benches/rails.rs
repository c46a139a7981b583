//! What the rails cost, beside what the machine can do.
//! Run by `cargo bench -p plexus-fabric --bench rails [-- [--json] [NAME..]]`; a name chooses the figures that
//! contain it.
//!
//! Two threads pinned to two cores. Every figure stands beside its limit, measured in the same run and in
//! turns with it, so that a busy machine slows both: the bounce of a bare cache line, a bare `memcpy`, bare
//! sockets. Each is taken `REPEATS` times; the median is shown, the least beside it, then the median of the
//! ratios to the limit taken in the same turn, and the ratio of the least. Payloads are always read by the
//! receiver.
#![allow(unsafe_code, reason = "the bare limits are measured on bare memory")]

use std::{
    hint::black_box,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Instant,
};

use plexus_fabric::{
    Bell, Frame, LANES, Lane, PeerBell, PeerWindow, Put, Rail, SendError, Window, WindowId, Windows,
    ofi::{self, OfiEndpoint},
    shm::{RxRings, ShmParts, ShmRail, TxRings},
    tcp::{KEY_LEN, Seal, TcpParts, TcpRail},
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Many short turns: on a machine that others use too, some of them are quiet.
const REPEATS: usize = 81;
/// What a link puts in front of each message.
const HEAD: [u8; 16] = [0x5a; 16];
const BLOCK: usize = 16 << 10;
/// Blocks that are written in turn: 1 MiB, so each was last read by the other core a while ago.
const BLOCKS: usize = 64;

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("pin a thread to a core");
}

fn cpus() -> (usize, usize) {
    let allowed = sched_getaffinity(None).expect("ask for the cores of this process");
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    match (cpus.next(), cpus.next()) {
        (Some(a), Some(b)) => (a, b),
        _ => panic!("this benchmark needs two cores"),
    }
}

/// Runs `pong` on the second core, and `ping` here; what `ping` returns.
fn duet<R>(cpu: usize, pong: impl FnOnce() + Send, ping: impl FnOnce() -> R) -> R {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(cpu);
            pong();
        });
        ping()
    })
}

fn timed(rounds: u64, mut round: impl FnMut(u64)) -> f64 {
    (0..rounds / 8).for_each(&mut round);
    let start = Instant::now();
    (rounds / 8..rounds / 8 + rounds).for_each(&mut round);
    start.elapsed().as_nanos() as f64 / rounds as f64
}

fn all_rounds(rounds: u64) -> u64 {
    rounds / 8 + rounds
}

#[repr(align(128))]
struct Lines {
    flag: AtomicU64,
    _rest_of_flag: [u64; 7],
    payload: [AtomicU64; 8],
}

impl Lines {
    fn new() -> Self {
        Self { flag: AtomicU64::new(0), _rest_of_flag: [0; 7], payload: Default::default() }
    }

    fn say(&self, round: u64, with_payload: bool) {
        if with_payload {
            self.payload.iter().for_each(|word| word.store(round, Relaxed));
        }
        self.flag.store(round, Release);
    }

    fn hear(&self, round: u64, with_payload: bool) {
        while self.flag.load(Acquire) != round {}
        if with_payload {
            black_box(self.payload.iter().fold(0, |sum: u64, word| sum.wrapping_add(word.load(Relaxed))));
        }
    }
}

/// One way of a cache line between the cores, or of two lines of which one is the flag.
fn bounce(cpu: usize, two_lines: bool) -> f64 {
    const ROUNDS: u64 = 3_000;
    let (there, back) = (Lines::new(), Lines::new());
    let pong = || {
        for round in 1..=all_rounds(ROUNDS) {
            there.hear(round, two_lines);
            back.say(round, two_lines);
        }
    };
    let ping = || {
        timed(ROUNDS, |round| {
            there.say(round + 1, two_lines);
            back.hear(round + 1, two_lines);
        })
    };
    duet(cpu, pong, ping) / 2.0
}

struct End {
    rail: Box<dyn Rail>,
    window: Arc<Window>,
}

fn window() -> Arc<Window> {
    Arc::new(Window::create(WindowId(0), BLOCKS * BLOCK, 0).expect("a window"))
}

fn shm_pair() -> (End, End) {
    let own = || (RxRings::create().expect("rings"), Bell::create().expect("a bell"), window());
    let (a, b) = (own(), own());
    let build = |rx: RxRings,
                 window: &Arc<Window>,
                 (peer_rx, bell, peer_window): (TxRings, PeerBell, PeerWindow)| {
        let gone = Arc::new(AtomicBool::new(false));
        let rail = ShmRail::new(ShmParts { tx: peer_rx, rx, bell, windows: Arc::new([peer_window]), gone });
        End { rail: Box::new(rail), window: Arc::clone(window) }
    };
    let view = |(rx, bell, window): &(RxRings, Bell, Arc<Window>)| {
        (
            TxRings::map(rx.fd()).expect("map rings"),
            PeerBell::map(bell.page_fd(), bell.fd().try_clone_to_owned().expect("a descriptor"))
                .expect("map a bell"),
            PeerWindow::map(window.fd().as_fd(), window.span()).expect("map a window"),
        )
    };
    let (view_a, view_b) = (view(&a), view(&b));
    (build(a.0, &a.2, view_b), build(b.0, &b.2, view_a))
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let one = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let other = listener.accept().expect("a connection").0;
    for socket in [&one, &other] {
        socket.set_nodelay(true).expect("set a socket up");
        socket.set_nonblocking(true).expect("set a socket up");
    }
    (one, other)
}

fn tcp_pair(sealed: bool) -> (End, End) {
    let (prompt, bulk) = (sockets(), sockets());
    let end = |streams, send: u8, receive: u8| {
        let window = window();
        let windows = Arc::new(Windows::new([Arc::clone(&window)]));
        let seals = || [(); LANES].map(|()| Seal::new([send; KEY_LEN], [receive; KEY_LEN]));
        let parts =
            TcpParts { streams, windows, peer_windows: vec![window.span()], seals: sealed.then(seals) };
        End { rail: Box::new(TcpRail::new(parts).expect("a rail")), window }
    };
    (end([prompt.0, bulk.0], 1, 2), end([prompt.1, bulk.1], 2, 1))
}

/// Over libfabric's `tcp`, which every host has.
fn ofi_pair() -> (End, End) {
    let open = |window: &Arc<Window>| {
        let windows = Arc::new(Windows::new([Arc::clone(window)]));
        OfiEndpoint::open("tcp", Some(Ipv4Addr::LOCALHOST.into()), windows).expect("an endpoint")
    };
    let windows = [window(), window()];
    let ends = windows.each_ref().map(open);
    let [offer_a, offer_b] = ends.each_ref().map(|end| end.offer().clone());
    let [mut a, mut b] = {
        let [end_a, end_b] = ends;
        let gone = || Arc::new(AtomicBool::new(false));
        [end_a.connect(offer_b, gone()), end_b.connect(offer_a, gone())].map(|rail| rail.expect("a rail"))
    };
    while !(a.is_connected() && b.is_connected()) {
        a.flush().expect("a living rail");
        b.flush().expect("a living rail");
    }
    let [window_a, window_b] = windows;
    (End { rail: Box::new(a), window: window_a }, End { rail: Box::new(b), window: window_b })
}

impl End {
    fn hear(&mut self, mut deliver: impl FnMut(Frame<'_>)) {
        while self.rail.poll(16, &mut |_, frame| deliver(frame)).expect("a living rail") == 0 {}
    }

    fn say(&mut self, body: &[u8]) {
        self.rail.send(Lane::Prompt, &HEAD, body).expect("room");
        self.rail.flush().expect("a living rail");
    }
}

fn read<const LEN: usize>(frame: Frame<'_>) {
    let (mut head, mut body) = ([0; 16], [0; LEN]);
    frame.copy(0, &mut head);
    frame.copy(16, &mut body);
    black_box((head, body));
}

/// One way of a message with a link header.
fn message<const LEN: usize>(cpu: usize, (mut a, mut b): (End, End), rounds: u64) -> f64 {
    let pong = move || {
        for _ in 0..all_rounds(rounds) {
            b.hear(read::<LEN>);
            b.say(&[1; LEN]);
        }
    };
    let ping = || {
        timed(rounds, |round| {
            let mut body = [2; LEN];
            body[0] = round as u8;
            a.say(black_box(&body));
            a.hear(read::<LEN>);
        })
    };
    duet(cpu, pong, ping) / 2.0
}

/// Time for each of a stream of 8-byte messages in batches of 16.
fn stream(cpu: usize, (mut a, mut b): (End, End)) -> f64 {
    const MESSAGES: u64 = 40_000;
    let pong = move || {
        let mut came = 0;
        while came < MESSAGES {
            came += b.rail.poll(64, &mut |_, frame| read::<8>(frame)).expect("a living rail") as u64;
        }
        b.say(&[0; 8]);
    };
    let ping = || {
        let start = Instant::now();
        for number in 0..MESSAGES {
            while a.rail.send(Lane::Prompt, &HEAD, &number.to_le_bytes()) == Err(SendError::Full) {
                a.rail.flush().expect("a living rail");
            }
            if number % 16 == 15 {
                a.rail.flush().expect("a living rail");
            }
        }
        a.rail.flush().expect("a living rail");
        a.hear(read::<8>);
        start.elapsed().as_nanos() as f64 / MESSAGES as f64
    };
    duet(cpu, pong, ping)
}

fn source() -> Vec<[u8; BLOCK]> {
    (0..8).map(|block| [block; BLOCK]).collect()
}

/// Reads all of a block.
fn sum(window: &Window, block: usize) {
    // SAFETY: inside the window, and the writer waits for the answer.
    let words = unsafe {
        let start = window.ptr().add(block * BLOCK).cast::<u64>();
        std::slice::from_raw_parts(start.as_ptr(), BLOCK / 8)
    };
    black_box(words.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)));
}

/// A block put, read by the receiver, answered with a small message.
fn put(cpu: usize, (mut a, mut b): (End, End), rounds: u64) -> f64 {
    let pong = move || {
        for round in 0..all_rounds(rounds) as usize {
            b.hear(read::<24>);
            sum(&b.window, round % BLOCKS);
            b.say(&[1; 8]);
        }
    };
    let source = source();
    let ping = || {
        timed(rounds, |round| {
            let block = round as usize % BLOCKS;
            let data = &source[block % source.len()];
            let put = Put { window: WindowId(0), offset: (block * BLOCK) as u64, generation: 0, data };
            a.rail.put(Lane::Prompt, put, &HEAD, &[3; 24]).expect("room");
            a.rail.flush().expect("a living rail");
            a.hear(read::<8>);
        })
    };
    duet(cpu, pong, ping)
}

/// Time for each of a stream of puts of `len` bytes.
fn flow(cpu: usize, (mut a, mut b): (End, End), len: usize) -> f64 {
    const BYTES: usize = 64 << 20;
    let puts = BYTES / len;
    let pong = move || {
        let mut came = 0;
        while came < puts {
            came += b.rail.poll(64, &mut |_, frame| read::<24>(frame)).expect("a living rail");
        }
        b.say(&[1; 8]);
    };
    let source = vec![7; len];
    let ping = || {
        let start = Instant::now();
        for number in 0..puts {
            let offset = (number % (BLOCKS * BLOCK / len) * len) as u64;
            let put = Put { window: WindowId(0), offset, generation: 0, data: &source };
            while a.rail.put(Lane::Bulk, put, &HEAD, &[3; 24]) == Err(SendError::Full) {
                a.rail.flush().expect("a living rail");
            }
        }
        while a.rail.health().unsent > 0 {
            a.rail.flush().expect("a living rail");
        }
        a.hear(read::<8>);
        start.elapsed().as_nanos() as f64 / puts as f64
    };
    duet(cpu, pong, ping)
}

/// One way of eight bytes written into the peer's window, which both sides look at.
fn write(cpu: usize, (mut a, mut b): (End, End), rounds: u64) -> f64 {
    let say = |end: &mut End, number: u64| {
        let put = Put { window: WindowId(0), offset: 0, generation: 0, data: &number.to_le_bytes() };
        end.rail.write(Lane::Prompt, put).expect("room");
        end.rail.flush().expect("a living rail");
    };
    let hear = |end: &End, number: u64| {
        let word = end.window.word(0).expect("a word");
        while word.load(Acquire) != number {}
    };
    let pong = move || {
        for number in 1..=all_rounds(rounds) {
            hear(&b, number);
            say(&mut b, number);
        }
    };
    let ping = || {
        timed(rounds, |round| {
            say(&mut a, round + 1);
            hear(&a, round + 1);
        })
    };
    duet(cpu, pong, ping) / 2.0
}

/// A block copied with `memcpy`, read by the receiver, answered, with two bare flags.
fn copy(cpu: usize, rounds: u64) -> f64 {
    let (there, back, window) = (Lines::new(), Lines::new(), window());
    let pong = || {
        for round in 1..=all_rounds(rounds) {
            there.hear(round, false);
            sum(&window, (round as usize - 1) % BLOCKS);
            back.say(round, false);
        }
    };
    let source = source();
    let ping = || {
        timed(rounds, |round| {
            let block = round as usize % BLOCKS;
            // SAFETY: inside the window, and the reader waits for the flag.
            unsafe {
                let target = window.ptr().add(block * BLOCK).as_ptr();
                std::ptr::copy_nonoverlapping(
                    black_box(source[block % source.len()].as_ptr()),
                    target,
                    BLOCK,
                );
            }
            there.say(round + 1, false);
            back.hear(round + 1, false);
        })
    };
    duet(cpu, pong, ping)
}

fn read_all(socket: &mut TcpStream, mut into: &mut [u8]) {
    while !into.is_empty() {
        match socket.read(into) {
            Ok(0) => panic!("the socket was closed"),
            Ok(count) => into = &mut into[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn write_all(socket: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Bare sockets, polled: `there` bytes, then `back` bytes, which is a round.
fn bare_sockets(cpu: usize, there: usize, back: usize, rounds: u64) -> f64 {
    let (mut a, mut b) = sockets();
    let pong = move || {
        let (mut bytes, answer) = (vec![0; there], vec![1; back]);
        for _ in 0..all_rounds(rounds) {
            read_all(&mut b, &mut bytes);
            black_box(bytes.iter().fold(0u64, |sum, byte| sum.wrapping_add(u64::from(*byte))));
            write_all(&mut b, &answer);
        }
    };
    let ping = || {
        let (bytes, mut answer) = (vec![2; there], vec![0; back]);
        timed(rounds, |_| {
            write_all(&mut a, &bytes);
            read_all(&mut a, &mut answer);
        })
    };
    duet(cpu, pong, ping)
}

struct Figure {
    name: &'static str,
    what: &'static str,
    limit: Option<&'static str>,
    measure: Box<dyn Fn() -> f64>,
}

fn figures(cpu: usize) -> Vec<Figure> {
    type Measure = Box<dyn Fn() -> f64>;
    let figure = |name, what, limit, measure: Measure| Figure { name, what, limit, measure };
    let mut figures = vec![
        figure("line", "one cache line, one way", None, Box::new(move || bounce(cpu, false))),
        figure("two_lines", "two cache lines, one way", None, Box::new(move || bounce(cpu, true))),
        figure(
            "shm_8",
            "shm: 8 B message, one way",
            Some("line"),
            Box::new(move || message::<8>(cpu, shm_pair(), 3_000)),
        ),
        figure(
            "shm_64",
            "shm: 64 B message, one way",
            Some("two_lines"),
            Box::new(move || message::<64>(cpu, shm_pair(), 3_000)),
        ),
        figure(
            "shm_write_8",
            "shm: 8 B written, seen, one way",
            Some("line"),
            Box::new(move || write(cpu, shm_pair(), 3_000)),
        ),
        figure(
            "shm_stream_8",
            "shm: 8 B messages, each",
            Some("line"),
            Box::new(move || stream(cpu, shm_pair())),
        ),
        figure("copy_16k", "memcpy of 16 KiB, read, flag back", None, Box::new(move || copy(cpu, 600))),
        figure(
            "shm_put_16k",
            "shm: put of 16 KiB, read, message back",
            Some("copy_16k"),
            Box::new(move || put(cpu, shm_pair(), 600)),
        ),
        figure(
            "sockets_64",
            "bare TCP: 64 B, one way",
            None,
            Box::new(move || bare_sockets(cpu, 80, 80, 300) / 2.0),
        ),
        figure(
            "tcp_64",
            "tcp: 64 B message, one way",
            Some("sockets_64"),
            Box::new(move || message::<64>(cpu, tcp_pair(false), 300)),
        ),
        figure(
            "sockets_16k",
            "bare TCP: 16 KiB, read, 8 B back",
            None,
            Box::new(move || bare_sockets(cpu, BLOCK + 40, 24, 200)),
        ),
        figure(
            "tcp_put_16k",
            "tcp: put of 16 KiB, read, message back",
            Some("sockets_16k"),
            Box::new(move || put(cpu, tcp_pair(false), 200)),
        ),
        figure(
            "sealed_64",
            "sealed tcp: 64 B message, one way",
            Some("tcp_64"),
            Box::new(move || message::<64>(cpu, tcp_pair(true), 300)),
        ),
        figure(
            "sealed_put_16k",
            "sealed tcp: put of 16 KiB, read, back",
            Some("tcp_put_16k"),
            Box::new(move || put(cpu, tcp_pair(true), 200)),
        ),
        figure(
            "tcp_flow_16k",
            "tcp: puts of 16 KiB, each",
            None,
            Box::new(move || flow(cpu, tcp_pair(false), 16 << 10)),
        ),
        figure(
            "sealed_flow_16k",
            "sealed tcp: puts of 16 KiB, each",
            Some("tcp_flow_16k"),
            Box::new(move || flow(cpu, tcp_pair(true), 16 << 10)),
        ),
        figure(
            "tcp_flow_1m",
            "tcp: puts of 1 MiB, each",
            None,
            Box::new(move || flow(cpu, tcp_pair(false), 1 << 20)),
        ),
        figure(
            "sealed_flow_1m",
            "sealed tcp: puts of 1 MiB, each",
            Some("tcp_flow_1m"),
            Box::new(move || flow(cpu, tcp_pair(true), 1 << 20)),
        ),
    ];
    if let Err(why) = ofi::available() {
        eprintln!("without ofi: {why}");
        return figures;
    }
    figures.extend([
        figure(
            "ofi_64",
            "ofi (tcp): 64 B message, one way",
            Some("sockets_64"),
            Box::new(move || message::<64>(cpu, ofi_pair(), 300)),
        ),
        figure(
            "ofi_put_16k",
            "ofi (tcp): put of 16 KiB, read, back",
            Some("sockets_16k"),
            Box::new(move || put(cpu, ofi_pair(), 200)),
        ),
        figure(
            "ofi_flow_16k",
            "ofi (tcp): puts of 16 KiB, each",
            Some("tcp_flow_16k"),
            Box::new(move || flow(cpu, ofi_pair(), 16 << 10)),
        ),
        figure(
            "ofi_flow_1m",
            "ofi (tcp): puts of 1 MiB, each",
            Some("tcp_flow_1m"),
            Box::new(move || flow(cpu, ofi_pair(), 1 << 20)),
        ),
    ]);
    figures
}

/// A figure as it came out.
struct Row<'a> {
    figure: &'a Figure,
    median_ns: f64,
    least_ns: f64,
    /// To the limit taken in the same turn, median.
    ratio: Option<f64>,
    /// Of the least to the least of the limit.
    least_ratio: Option<f64>,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let repeats = arguments.iter().find_map(|argument| argument.strip_prefix("--repeats="));
    let repeats = repeats.map_or(REPEATS, |repeats| repeats.parse().expect("--repeats= takes a number"));
    let only: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let (here, there) = cpus();
    pin(here);

    let wanted =
        |figure: &Figure| only.is_empty() || only.iter().any(|only| figure.name.contains(only.as_str()));
    let figures: Vec<Figure> = figures(there).into_iter().filter(wanted).collect();
    let mut samples: Vec<Vec<f64>> = figures.iter().map(|_| Vec::new()).collect();
    for _ in 0..repeats {
        for (figure, samples) in figures.iter().zip(&mut samples) {
            samples.push((figure.measure)());
        }
    }
    let rows = figures.iter().zip(&samples).map(|(figure, own)| {
        let limit = figure.limit.and_then(|limit| figures.iter().position(|figure| figure.name == limit));
        let ratio =
            limit.map(|limit| median(own.iter().zip(&samples[limit]).map(|(own, limit)| own / limit)));
        let least = |own: &[f64]| own.iter().copied().fold(f64::INFINITY, f64::min);
        let least_ratio = limit.map(|limit| least(own) / least(&samples[limit]));
        Row { figure, median_ns: median(own.iter().copied()), least_ns: least(own), ratio, least_ratio }
    });
    if json {
        let rows: Vec<_> = rows
            .map(|Row { figure, median_ns, least_ns, ratio, least_ratio }| {
                serde_json::json!({
                    "name": figure.name, "what": figure.what, "median_ns": median_ns, "least_ns": least_ns,
                    "limit": figure.limit, "ratio": ratio, "least_ratio": least_ratio,
                })
            })
            .collect();
        println!("{}", serde_json::json!({ "repeats": repeats, "figures": rows }));
        return;
    }
    println!("{:<40} {:>10} {:>10} {:>7} {:>7}  of", "", "median ns", "least ns", "ratio", "least");
    for Row { figure, median_ns, least_ns, ratio, least_ratio } in rows {
        let [ratio, least_ratio] =
            [ratio, least_ratio].map(|ratio| ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")));
        let (what, limit) = (figure.what, figure.limit.unwrap_or_default());
        println!("{what:<40} {median_ns:>10.1} {least_ns:>10.1} {ratio:>7} {least_ratio:>7}  {limit}");
    }
}
