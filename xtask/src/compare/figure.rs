//! Figures: what a benchmark measures, the values of all rounds, and the failed measurements.

use std::collections::BTreeMap;

use anyhow::{Error, Result};

use super::{document::markdown, spread::Spread, unit::Unit};

/// The name of Plexus among the systems.
pub(crate) const PLEXUS: &str = "plexus";

/// A figure: the work of a system, which is measured in a unit.
pub(crate) trait Figure: Copy + Ord {
    /// Returns the name of the work.
    fn work(&self) -> String;

    /// Returns the name of the system.
    fn system(&self) -> &'static str;

    /// Returns the unit of the values.
    fn unit(&self) -> Unit;

    /// Returns the name of the figure: work and system.
    fn name(&self) -> String {
        format!("{}, {}", self.work(), self.system())
    }
}

/// A figure whose work has a fixed name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct NamedFigure {
    work: &'static str,
    system: &'static str,
    unit: Unit,
}

impl Unit {
    /// Returns the figure of Plexus for a work that is measured in this unit.
    pub(crate) const fn of(self, work: &'static str) -> NamedFigure {
        NamedFigure { work, system: PLEXUS, unit: self }
    }
}

impl NamedFigure {
    /// Returns the figure of the same work by another system.
    pub(crate) const fn by(self, system: &'static str) -> Self {
        Self { system, ..self }
    }
}

impl Figure for NamedFigure {
    fn work(&self) -> String {
        self.work.to_owned()
    }

    fn system(&self) -> &'static str {
        self.system
    }

    fn unit(&self) -> Unit {
        self.unit
    }
}

/// The values of one figure.
#[derive(Default)]
struct Readings {
    values: Vec<f64>,
    /// The ratios to the value beside it, each measured in turns by one program.
    ratios: Vec<f64>,
}

/// The values of all rounds.
pub(crate) struct Values<F>(BTreeMap<F, Readings>);

impl<F> Default for Values<F> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<F: Figure> Values<F> {
    /// Adds a value, with its ratio to the value beside it if both were measured in turns.
    pub(crate) fn add(&mut self, figure: F, value: f64, ratio: Option<f64>) {
        let readings = self.0.entry(figure).or_default();
        readings.values.push(value);
        readings.ratios.extend(ratio);
    }

    /// Returns the spread of a figure, or `None` if it was not measured.
    pub(crate) fn spread(&self, figure: F) -> Option<Spread> {
        Spread::of(&self.0.get(&figure)?.values)
    }

    /// Returns the median of a figure.
    pub(crate) fn median(&self, figure: F) -> Option<f64> {
        Some(self.spread(figure)?.median)
    }

    /// Returns the median of the ratios of a figure.
    pub(crate) fn ratio(&self, figure: F) -> Option<f64> {
        Some(Spread::of(&self.0.get(&figure)?.ratios)?.median)
    }

    /// Returns the number of figures.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Formats all values with their spread as a Markdown table.
    pub(crate) fn text(&self) -> String {
        let mut cells = vec![["work", "system", "median", "least", "most", "times"].map(str::to_owned)];
        for figure in self.0.keys() {
            let Some(Spread { median, least, most, count }) = self.spread(*figure) else { continue };
            let [median, least, most] = [median, least, most].map(|value| figure.unit().show(value));
            cells.push([figure.work(), figure.system().into(), median, least, most, count.to_string()]);
        }
        markdown(&cells)
    }
}

/// The failures of one measurement: their number and the last reason.
#[derive(Default)]
struct Failure {
    times: u32,
    why: String,
}

/// The failed measurements by name: that of a figure, of a system, or of several figures.
#[derive(Default)]
pub(crate) struct Failures(BTreeMap<String, Failure>);

impl Failures {
    /// Prints and keeps the reason of a failure.
    pub(crate) fn add(&mut self, name: String, error: &Error) {
        let why = format!("{error:#}");
        println!("{name}: {why}");
        // The report has one line for it: the first and the last line of the error.
        let lines: Vec<&str> = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let why = match lines.as_slice() {
            [first, .., last] => format!("{first}: {last}"),
            _ => lines.concat(),
        };
        let failure = self.0.entry(name).or_default();
        *failure = Failure { times: failure.times + 1, why };
    }

    /// Returns the reason why a figure or its whole system was not measured.
    pub(crate) fn why(&self, figure: &impl Figure) -> Option<&str> {
        let failure = self.0.get(&figure.name()).or_else(|| self.0.get(figure.system()));
        failure.map(|failure| failure.why.as_str())
    }

    /// Formats all failures as a Markdown list.
    pub(crate) fn text(&self) -> String {
        let line = |(name, failure): (&String, &Failure)| {
            format!("- {name}, {} times: {}\n", failure.times, failure.why)
        };
        let head = if self.0.is_empty() { "" } else { "\nNot measured:\n\n" };
        head.to_owned() + &self.0.iter().map(line).collect::<String>()
    }
}

/// The figures of a measurement with their values, or the reason of its failure.
pub(crate) type Measured = Result<Vec<(NamedFigure, f64)>>;

/// The measurements of a benchmark with fixed figures.
#[derive(Default)]
pub(crate) struct Bench {
    pub values: Values<NamedFigure>,
    pub failures: Failures,
}

impl Bench {
    /// Returns the result of `name`, such as a server, or keeps the reason of its failure.
    pub(crate) fn ok<T>(&mut self, name: &str, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.failures.add(name.to_owned(), &error)).ok()
    }

    /// Prints and keeps the values of the measurement `name`, or the reason of its failure.
    pub(crate) fn take(&mut self, name: &str, measured: Measured) {
        for (figure, value) in self.ok(name, measured).unwrap_or_default() {
            println!("{}: {}", figure.name(), figure.unit.show(value));
            self.values.add(figure, value, None);
        }
    }

    /// Does the same for one figure; the name is that of its system.
    pub(crate) fn take_one(&mut self, figure: NamedFigure, measured: Result<f64>) {
        self.take(figure.system, measured.map(|value| vec![(figure, value)]));
    }
}
