//! The cost of the rails, beside the limits of the machine. Run by `cargo bench -p plexus-ofi
//! --bench rails [-- [--json] [--repeats=N] [NAME..]]`; a name selects the figures that contain it.
//!
//! Two threads are pinned to two cores. Every figure stands beside its limit, measured in turns in
//! the same run: the bounce of a bare cache line, a bare `memcpy`, bare sockets.
#![allow(unsafe_code, reason = "the bare limits are measured on bare memory")]

mod duet;
#[path = "../../../fabric/benches/common/figures.rs"]
mod figures;
mod limits;
#[allow(dead_code, reason = "the suite of the rails uses the rest")]
#[path = "../../tests/conformance/pairs.rs"]
mod pairs;
mod work;

use figures::{BenchArguments, Figure, cpus, pin};
use limits::{bare_sockets, bounce, copy};
use pairs::{End, Kind, others, pair};
use work::{BLOCK, flow, message, put, stream, write};

/// Many short turns: on a shared machine some of them are quiet.
const REPEATS: usize = 81;

fn figure(
    name: &str,
    what: &str,
    limit: Option<&'static str>,
    measure: impl Fn() -> f64 + 'static,
) -> Figure {
    let (name, what, measure) = (name.into(), what.into(), Box::new(measure));
    Figure { name, what, unit: "ns", limit, steady: false, measure }
}

fn shm(there: usize) -> Vec<Figure> {
    let shm = || others::pair(others::Kind::Shm);
    vec![
        figure("line", "one cache line, one way", None, move || bounce(there, false)),
        figure("two_lines", "two cache lines, one way", None, move || bounce(there, true)),
        figure("shm_8", "shm: 8 B message, one way", Some("line"), move || message::<8>(there, shm(), 3_000)),
        figure("shm_64", "shm: 64 B message, one way", Some("two_lines"), move || {
            message::<64>(there, shm(), 3_000)
        }),
        figure("shm_write_8", "shm: 8 B written, seen, one way", Some("line"), move || {
            write(there, shm(), 3_000)
        }),
        figure("shm_stream_8", "shm: 8 B messages, each", Some("line"), move || stream(there, shm())),
        figure("copy_16k", "memcpy of 16 KiB, read, flag back", None, move || copy(there, 600)),
        figure("shm_put_16k", "shm: put of 16 KiB, read, message back", Some("copy_16k"), move || {
            put(there, shm(), 600)
        }),
    ]
}

fn sockets(there: usize) -> Vec<Figure> {
    vec![
        figure("sockets_64", "bare TCP: 64 B, one way", None, move || bare_sockets(there, 80, 80, 300) / 2.0),
        figure("sockets_16k", "bare TCP: 16 KiB, read, 8 B back", None, move || {
            bare_sockets(there, BLOCK + 40, 24, 200)
        }),
    ]
}

/// The figures of every rail that crosses the network, each beside its limits: a message, a block,
/// streams of blocks.
fn network(
    there: usize,
    (name, what): (&str, &str),
    ends: impl Fn() -> (End, End) + Copy + 'static,
    limits: [Option<&'static str>; 4],
) -> Vec<Figure> {
    let [small, block, blocks, long] = limits;
    let figure = |work: &str, words: &str, limit, measure: Box<dyn Fn() -> f64>| {
        figure(&format!("{name}_{work}"), &format!("{what}: {words}"), limit, measure)
    };
    vec![
        figure("64", "64 B message, one way", small, Box::new(move || message::<64>(there, ends(), 300))),
        figure("put_16k", "put of 16 KiB, read, back", block, Box::new(move || put(there, ends(), 200))),
        figure("flow_16k", "puts of 16 KiB, each", blocks, Box::new(move || flow(there, ends(), BLOCK))),
        figure("flow_1m", "puts of 1 MiB, each", long, Box::new(move || flow(there, ends(), 1 << 20))),
    ]
}

fn main() {
    let arguments = BenchArguments::new(REPEATS);
    let (here, there) = cpus();
    pin(here);
    let bare = ["sockets_64", "sockets_16k"].map(Some);
    let plain = ["tcp_64", "tcp_put_16k", "tcp_flow_16k", "tcp_flow_1m"].map(Some);
    let mut figures = shm(there);
    figures.extend(sockets(there));
    figures.extend(network(
        there,
        ("tcp", "tcp"),
        || others::pair(others::Kind::Tcp),
        [bare[0], bare[1], None, None],
    ));
    figures.extend(network(there, ("sealed", "sealed tcp"), || others::pair(others::Kind::SealedTcp), plain));
    figures.extend(network(
        there,
        ("ofi", "ofi (tcp)"),
        || pair(Kind::TCP),
        [bare[0], bare[1], plain[2], plain[3]],
    ));
    if figures.iter().any(|figure| figure.name.starts_with("ofi") && arguments.wants(&figure.name))
        && let Err(why) = plexus_ofi::available()
    {
        eprintln!("without ofi: {why}");
        figures.retain(|figure| !figure.name.starts_with("ofi"));
    }
    arguments.show(figures);
}
