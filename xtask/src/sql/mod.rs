//! Measures SQL: pgbench and COPY beside PostgreSQL 15, two nodes beside one, a row that two nodes
//! change, and the memory of idle connections.
//!
//! A round measures everything once in sequence; the table has medians over all rounds. The goals
//! are in `rows.rs`.

pub(crate) mod killed;
pub(crate) mod plexus;
pub(crate) mod postgres;
mod rows;
pub(crate) mod work;

use std::path::Path;

use anyhow::Result;
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::{
    plexus::Plexus,
    postgres::Postgres,
    work::{Server, copied, pgbench},
};
use crate::compare::{
    figure::{Bench, Measured},
    run::{Run, WriteOptions, install},
};

/// The name of its section in the document.
pub(crate) const SECTION: &str = "sql";

/// The options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Number of rounds; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// First install PostgreSQL with apt-get.
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    write: WriteOptions,
}

/// Measures, prints the table, and with `--write` puts it into docs/performance.md.
///
/// # Errors
/// Plexus cannot be built, a goal is missed, or a measurement failed.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if options.install {
        install(&["postgresql-15"])?;
    }
    let mut run = Run::start(&options.write, None)?;
    let plexus = Plexus::build(root)?;
    // For idle connections; the nodes inherit it.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let mut bench = Bench::default();
    run.rounds(options.rounds, |_| {
        bench.take("idle connections", plexus.idle());
        bench.take("one node", plexus.one_node(|server| beside(server, None)));
        bench.take("PostgreSQL", Postgres::start().and_then(|peer| beside(&peer.server, Some(rows::PEER))));
        bench.take("two nodes", plexus.two_nodes());
        bench.take("hot row, shm", plexus.hot_row("shm", rows::HOT[0]));
        bench.take("hot row, tcp", plexus.hot_row("tcp", rows::HOT[1]));
        bench.take("killed", plexus.killed());
        Ok(())
    })?;
    let about = format!("PostgreSQL 15 with its default durability; {} rounds", options.rounds);
    run.end(root, SECTION, &bench.report(&about, &rows::rows(&bench.values)))
}

/// Measures what both systems do.
fn beside(server: &Server, peer: Option<&'static str>) -> Measured {
    let named = |figure: crate::compare::figure::NamedFigure| match peer {
        Some(peer) => figure.by(peer),
        None => figure,
    };
    let mut figures = Vec::new();
    pgbench(server, "-i -q -s 10")?;
    for (figure, options) in rows::WORKS {
        figures.push((named(figure), work::rate(server, &format!("-n {options}"))?));
    }
    figures.push((named(rows::COPY), copied(server)?));
    Ok(figures)
}
