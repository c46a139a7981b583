//! Measures figures beside their limits in turns, and prints them.
//!
//! Each turn measures every figure once, so that a busy machine slows a figure and its limit alike.
//! The output is the median of all turns, the least, the median of the ratios to the limit in the
//! same turn, and the ratio of the least.
//!
//! Arguments: `[--json] [--repeats=N] [NAME..]`. `--json` prints for machines, `--repeats` sets the
//! number of turns, and a name selects the figures that contain it.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::json;

/// A figure that a benchmark measures.
pub(crate) struct Figure {
    pub(crate) name: String,
    /// The description.
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    /// The name of the figure that is its limit.
    pub(crate) limit: Option<&'static str>,
    /// True if the figure is so steady that one turn is enough.
    pub(crate) steady: bool,
    pub(crate) measure: Box<dyn Fn() -> f64>,
}

/// The command line of a benchmark.
pub(crate) struct BenchArguments {
    json: bool,
    repeats: usize,
    names: Vec<String>,
}

impl BenchArguments {
    /// Parses the command line of this program; `repeats` is the default number of turns.
    pub(crate) fn new(repeats: usize) -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let given = arguments.iter().find_map(|argument| argument.strip_prefix("--repeats="));
        let given = given.map(|given| given.parse().ok().filter(|turns| *turns > 0));
        Self {
            json: arguments.iter().any(|argument| argument == "--json"),
            repeats: given.map_or(repeats, |given| given.expect("--repeats= takes a number from 1 on")),
            names: arguments.into_iter().filter(|argument| !argument.starts_with("--")).collect(),
        }
    }

    /// Returns true if a figure of this name is selected.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part.as_str()))
    }

    /// Measures and prints the selected ones of `figures`.
    pub(crate) fn show(&self, mut figures: Vec<Figure>) {
        figures.retain(|figure| self.wants(&figure.name));
        let mut samples: Vec<Vec<f64>> = figures.iter().map(|_| Vec::new()).collect();
        for turn in 0..self.repeats {
            for (figure, samples) in figures.iter().zip(&mut samples) {
                if turn == 0 || !figure.steady {
                    samples.push((figure.measure)());
                }
            }
        }
        let rows: Vec<Row<'_>> = figures
            .iter()
            .zip(&samples)
            .map(|(figure, own)| Row::of(figure, own, &figures, &samples))
            .collect();
        if self.json {
            let rows: Vec<_> = rows.iter().map(Row::json).collect();
            println!("{}", json!({ "repeats": self.repeats, "figures": rows }));
            return;
        }
        println!("{:<40} {:>12} {:>12} {:>4} {:>7} {:>7}  of", "", "median", "least", "", "ratio", "least");
        rows.iter().for_each(|row| println!("{}", row.line()));
    }
}

/// The results of a figure.
struct Row<'a> {
    figure: &'a Figure,
    median: f64,
    least: f64,
    ratio: Option<f64>,
    least_ratio: Option<f64>,
}

impl<'a> Row<'a> {
    fn of(figure: &'a Figure, own: &[f64], figures: &[Figure], samples: &[Vec<f64>]) -> Self {
        let limit = figure.limit.and_then(|limit| figures.iter().position(|figure| figure.name == limit));
        let limit = limit.map(|index| &samples[index]);
        let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
        Self {
            figure,
            median: median(own.iter().copied()),
            least: least(own),
            ratio: limit.map(|limit| median(own.iter().zip(limit).map(|(own, limit)| own / limit))),
            least_ratio: limit.map(|limit| least(own) / least(limit)),
        }
    }

    fn json(&self) -> serde_json::Value {
        let Self { figure, median, least, ratio, least_ratio } = self;
        json!({
            "name": figure.name, "what": figure.what, "unit": figure.unit, "median": median, "least": least,
            "limit": figure.limit, "ratio": ratio, "least_ratio": least_ratio,
        })
    }

    fn line(&self) -> String {
        let Self { figure, median, least, ratio, least_ratio } = self;
        let [ratio, least_ratio] =
            [ratio, least_ratio].map(|ratio| ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")));
        let limit = figure.limit.unwrap_or_default();
        let (what, unit) = (&figure.what, figure.unit);
        format!("{what:<40} {median:>12.1} {least:>12.1} {unit:>4} {ratio:>7} {least_ratio:>7}  {limit}")
    }
}

/// The middle value, or the mean of the two middle ones.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len().is_multiple_of(2) { f64::midpoint(values[half - 1], values[half]) } else { values[half] }
}

/// Keeps this thread on a core.
pub(crate) fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("pin a thread to a core");
}

/// The first two cores that this process may use.
pub(crate) fn cpus() -> (usize, usize) {
    let allowed = sched_getaffinity(None).expect("read the cores of this process");
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    match (cpus.next(), cpus.next()) {
        (Some(here), Some(there)) => (here, there),
        _ => panic!("this benchmark needs two cores"),
    }
}
