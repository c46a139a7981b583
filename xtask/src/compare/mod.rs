//! Parts of all benchmarks beside other systems.
//!
//! A benchmark names its figures and its rows with their goals, collects values round by round, and
//! gets its table, its report and its verdict from here:
//!
//! ```text
//! const TPS: NamedFigure = Unit::PerSecond.of("transactions/s, 8 clients");
//!
//! let mut run = Run::start(&options.write, None)?;
//! let mut bench = Bench::default();
//! run.rounds(options.rounds, |_| Ok(bench.take("other", Ok(vec![(TPS.by("other"), 1.0)]))))?;
//! let rows = [Row::beside(TPS, [TPS.by("other")], Some(1.0))];
//! run.end(root, SECTION, &bench.report("3 rounds", &rows))
//! ```

pub(crate) mod document;
pub(crate) mod figure;
pub(crate) mod fio;
pub(crate) mod ports;
pub(crate) mod quiet;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod spread;
pub(crate) mod table;
pub(crate) mod unit;
