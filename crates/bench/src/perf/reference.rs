//! The published figures of earlier systems, each with its source.

use super::{Op, Test};

/// A source of published figures.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Source {
    /// The name for `--compare`.
    pub name: &'static str,
    /// The system and where it is described.
    pub what: &'static str,
    /// Its figures.
    pub figures: &'static [Figure],
}

/// One published figure.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figure {
    /// The measured values.
    pub what: &'static str,
    /// The test that measures the same here.
    pub test: Test,
    /// The operation nearest to it.
    pub op: Op,
    /// The bytes of a message.
    pub bytes: u32,
    /// The number of simultaneous streams.
    pub streams: u32,
    /// True for both directions at once.
    pub bidirectional: bool,
    /// The least and the greatest published value: microseconds one way for latency, 10^6 bytes per
    /// second for bandwidth.
    pub published: (f64, f64),
}

const fn latency(what: &'static str, op: Op, bytes: u32, us: f64) -> Figure {
    let published = (us, us);
    Figure { what, test: Test::Latency, op, bytes, streams: 1, bidirectional: false, published }
}

const fn bandwidth(what: &'static str, op: Op, bytes: u32, least: f64, most: f64) -> Figure {
    let published = (least, most);
    Figure { what, test: Test::Bandwidth, op, bytes, streams: 1, bidirectional: false, published }
}

const fn both_ways(figure: Figure) -> Figure {
    Figure { bidirectional: true, ..figure }
}

/// All sources.
pub const SOURCES: [Source; 3] = [
    Source {
        name: "hp",
        what: "HP Fabric Clustering System for InfiniBand, as its itperf measured it",
        figures: &[
            latency("RDMA write, point to point", Op::Write, 8, 4.3),
            latency("send/receive, point to point", Op::Send, 1, 7.0),
            both_ways(latency("RDMA write, both directions", Op::Write, 8, 5.6)),
            both_ways(latency("send/receive, both directions", Op::Send, 1, 7.1)),
            bandwidth("one stream", Op::Put, 4 << 20, 760.0, 760.0),
            both_ways(bandwidth("both directions", Op::Put, 8 << 10, 731.0, 731.0)),
            Figure { streams: 3, ..bandwidth("three streams", Op::Put, 64 << 10, 924.0, 924.0) },
            Figure { streams: 32, ..bandwidth("32 streams, 23.67 each", Op::Put, 64 << 10, 757.4, 757.4) },
        ],
    },
    Source {
        name: "dolphin",
        what: "Dolphin Express with SuperSockets",
        figures: &[latency("half a ping-pong of a socket", Op::Send, 8, 2.2)],
    },
    Source {
        name: "cern",
        what: "CERN macro-clusters: datagram to RDMA, polling and waiting",
        figures: &[
            bandwidth("10 B", Op::Send, 10, 2.9, 3.9),
            bandwidth("1000 B", Op::Send, 1000, 233.0, 461.0),
            bandwidth("5000 B", Op::Send, 5000, 659.0, 689.0),
            bandwidth("50 kB", Op::Send, 50_000, 740.0, 740.0),
            bandwidth("4 MB", Op::Put, 4 << 20, 748.0, 748.0),
        ],
    },
];

/// Returns the source called `name`.
///
/// # Errors
/// The name is unknown; the line lists the known names.
pub fn source(name: &str) -> Result<&'static Source, String> {
    SOURCES.iter().find(|source| source.name == name).ok_or_else(|| {
        let known = SOURCES.map(|source| source.name).join(", ");
        format!("unknown reference `{name}`: use one of {known}")
    })
}
