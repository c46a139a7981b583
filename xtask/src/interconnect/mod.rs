//! The interconnect beside the machine's limit and beside its peers, in turn in one run.
//!
//! A round measures everything once, rivals one after the other; the table has medians over all rounds. Everything is pinned to the
//! same two cores. What is compared, and the goals, stand in `work.rs`.

mod ours;
mod peers;
mod place;
mod samples;
mod table;
mod veth;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::thread::{CpuSet, sched_setaffinity};

use self::{
    ours::Ours,
    peers::{BLOCK, Peers},
    place::Place,
    samples::{Group, Placement, Sample},
    table::Outcome,
    veth::Veth,
    work::{Path as Through, Row, What, Who, Work},
};
use crate::command;

const PACKAGES: [&str; 6] =
    ["ucx-utils", "openmpi-bin", "libopenmpi-dev", "libfabric-bin", "libfabric-dev", "iperf3"];
const DOCUMENT: &str = "docs/performance.md";
const BEGIN: &str = "<!-- interconnect -->\n";
const END: &str = "<!-- end of interconnect -->\n";

/// The load above which two polling threads are no longer undisturbed on two cores.
const BUSY: f64 = 0.7;

/// How to compare.
#[derive(Args)]
pub struct Options {
    /// How often everything is measured in turn; medians are reported.
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// One round.
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Only these rows: message, put, rate, bandwidth, tcp-latency, tcp-bandwidth, tcp-encrypted, block, asleep.
    #[arg(long, value_delimiter = ',', value_name = "ROW,...")]
    only: Vec<String>,
    /// The two cores to run on.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1])]
    cpus: Vec<usize>,
    /// Install the peers first (Debian, as root).
    #[arg(long)]
    install: bool,
    /// Measure the peers alone.
    #[arg(long)]
    peers_only: bool,
    /// Write the results into docs/performance.md.
    #[arg(long)]
    write: bool,
}

/// Measures, prints the tables, and with `--write` puts them into docs/performance.md.
///
/// # Errors
/// Something cannot be built. What cannot be measured, and a goal that is not met, is said: timings are no tests.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    ensure!(cores >= 2, "two cores are needed to compare, here is {cores}");
    let &[first, second] = options.cpus.as_slice() else { bail!("--cpus takes two cores, as in --cpus 0,1") };
    let known = [first, second].iter().all(|cpu| *cpu < CpuSet::MAX_CPU);
    ensure!(first != second && known, "--cpus takes two different cores");
    let rows = chosen(&options.only)?;
    ensure!(
        options.only.is_empty() || !options.write,
        "--write takes all rows: what stands in {DOCUMENT} is from one run"
    );
    if options.install {
        install()?;
    }
    let peers = Peers::build(&root.join("xtask/peers"), [first, second])?;
    for (who, why) in &peers.absent {
        println!("without {}: {why}; `cargo xtask bench interconnect --install` installs it", who.name());
    }
    let ours = if options.peers_only { None } else { Some(Ours::build(root, [first, second])?) };
    let veth = match Veth::new() {
        Ok(veth) => Some(veth),
        Err(why) => {
            println!("without veth: {why:#}");
            None
        }
    };
    // What this process starts inherits its cores.
    let mut cores = CpuSet::new();
    [first, second].into_iter().for_each(|cpu| cores.set(cpu));
    sched_setaffinity(None, &cores).with_context(|| format!("cannot run on cores {first} and {second}"))?;
    let load = load();
    if load > BUSY {
        println!("{}", busy(load));
    }
    let mut bench = Bench { peers, ours, veth, samples: Vec::new(), failures: BTreeMap::new() };
    let rounds = if options.quick { 1 } else { options.rounds };
    let steps = steps(&rows);
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        bench.round(&steps)?;
    }
    for (what, why) in &bench.failures {
        println!("not measured: {what}: {why}");
    }
    let groups = samples::by_placement(&bench.samples);
    let mut report = report(&groups, &rows, rounds);
    if load > BUSY {
        report = format!("{}\n\n{report}", busy(load));
    }
    println!("\n{report}");
    if options.write {
        write(&root.join(DOCUMENT), &report)?;
        println!("written to {DOCUMENT}");
    }
    Ok(())
}

/// The rows that were asked for.
fn chosen(only: &[String]) -> Result<Vec<Row>> {
    let rows = work::rows();
    let keys: BTreeSet<&str> = rows.iter().map(|row| row.key).collect();
    if let Some(unknown) = only.iter().find(|key| !keys.contains(key.as_str())) {
        bail!("--only {unknown}: use {}", keys.into_iter().collect::<Vec<_>>().join(", "));
    }
    Ok(rows.into_iter().filter(|row| only.is_empty() || only.iter().any(|key| key == row.key)).collect())
}

/// What one contender is started for once: works that differ in size alone.
struct Step {
    who: Who,
    works: Vec<Work>,
}

/// The measurements of a round: those that are compared follow each other.
fn steps(rows: &[Row]) -> Vec<Step> {
    let mut wanted: BTreeMap<(Through, What), BTreeMap<Who, BTreeSet<Work>>> = BTreeMap::new();
    for &(who, work) in rows.iter().flat_map(|row| row.beside.iter().chain([&row.ours])) {
        // The machine's lines are measured before and after everything else anyway.
        if work.what != What::Line {
            wanted.entry((work.path, work.what)).or_default().entry(who).or_default().insert(work);
        }
    }
    let step = |(who, works): (Who, BTreeSet<Work>)| Step { who, works: works.into_iter().collect() };
    wanted.into_values().flat_map(|by_who| by_who.into_iter().map(step)).collect()
}

/// Contenders, and what they have done so far.
struct Bench {
    peers: Peers,
    ours: Option<Ours>,
    veth: Option<Veth>,
    samples: Vec<Sample>,
    /// What could not be measured, by its name; it is not tried again.
    failures: BTreeMap<String, String>,
}

impl Bench {
    fn round(&mut self, steps: &[Step]) -> Result<()> {
        let mut before = self.peers.limit()?;
        for step in steps {
            let name = format!("{} {}", step.who.name(), step.works[0]);
            if self.failures.contains_key(&name) {
                continue;
            }
            let measured = match self.measure(step) {
                Ok(measured) => measured,
                Err(error) => {
                    self.failures.insert(name, format!("{error:#}"));
                    continue;
                }
            };
            let after = self.peers.limit()?;
            let machine = [
                (Work::new(Through::Shm, What::Line, 8), after.line[0]),
                (Work::new(Through::Shm, What::Line, 64), after.line[1]),
                (Work::new(Through::Shm, What::Copy, BLOCK), after.copy),
            ];
            let line_ns = [before.line[0], after.line[0]];
            let theirs = measured.into_iter().map(|(work, value)| (step.who, work, value));
            let machine = machine.into_iter().map(|(work, value)| (Who::Machine, work, value));
            self.samples.extend(theirs.chain(machine).map(|(who, work, value)| Sample {
                who,
                work,
                value,
                line_ns,
            }));
            before = after;
        }
        Ok(())
    }

    /// Nothing where this contender is not here.
    fn measure(&self, step: &Step) -> Result<Vec<(Work, f64)>> {
        let Step { who, works } = step;
        if self.peers.absent.iter().any(|(absent, _)| absent == who) {
            return Ok(Vec::new());
        }
        let Some(place) = Place::of(works[0].path, self.veth.as_ref()) else { return Ok(Vec::new()) };
        match who {
            Who::Plexus | Who::PlexusSealed | Who::PlexusRail | Who::Machine => {
                self.ours.as_ref().map_or(Ok(Vec::new()), |ours| ours.measure(*who, works, &place))
            }
            _ => self.peers.measure(*who, works, &place),
        }
    }
}

fn report(groups: &BTreeMap<Placement, Group>, rows: &[Row], rounds: u32) -> String {
    let mut text = format!("{}; {rounds} rounds, medians, {}.\n", machine(), date());
    for (placement, group) in groups {
        let line = group.get(&(Work::new(Through::Shm, What::Line, 8), Who::Machine));
        let line =
            line.map_or(String::new(), |ns| format!(": a cache line takes {:.0} ns one way", ns.median));
        let name = match placement {
            Placement::Near => "Cores near each other",
            Placement::Far => "Cores far from each other",
        };
        let outcomes: Vec<Outcome> = rows.iter().map(|row| Outcome::of(row, group)).collect();
        let met = outcomes.iter().filter(|outcome| outcome.met() == Some(true)).count();
        let compared = outcomes.iter().filter(|outcome| outcome.met().is_some()).count();
        let (goals, everything) = (table::goals(&outcomes), table::everything(group));
        text +=
            &format!("\n{name}{line}. {met} of {compared} goals met.\n\n{goals}\nAll of it:\n\n{everything}");
    }
    text
}

/// Processes that ran on average in the last minute, before we did.
fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

fn busy(load: f64) -> String {
    format!("The machine was busy with something else (load {load}): these numbers mean little.")
}

fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let model = model.trim_start_matches(['\t', ' ', ':']);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let guest = if cpuinfo.contains("hypervisor") { " of a virtual machine" } else { "" };
    let release = read("/proc/sys/kernel/osrelease");
    format!("{model}, {cores} cores{guest}, Linux {}", release.trim())
}

fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // Days to a civil date: Howard Hinnant, "chrono-compatible low-level date algorithms".
    let days = (seconds / 86_400) as i64 + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let (day, month) =
        (of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

fn write(path: &Path, report: &str) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = between(&text, report).with_context(|| format!("{} has no {BEGIN}", path.display()))?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// `text` with what stands between the markers replaced.
fn between(text: &str, report: &str) -> Option<String> {
    let (head, rest) = text.split_once(BEGIN)?;
    let (_, tail) = rest.split_once(END)?;
    Some(format!("{head}{BEGIN}\n{report}\n{END}{tail}"))
}

fn install() -> Result<()> {
    let packages = PACKAGES.join(" ");
    if !rustix::process::geteuid().is_root() || !command::found("apt-get") {
        bail!("installing needs root on Debian: run `apt-get install {packages}`, or your system's like");
    }
    let mut apt = Command::new("apt-get");
    command::run(apt.args(["install", "--yes", "--no-install-recommends"]).args(PACKAGES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_keeps_what_is_outside_the_markers() {
        let text = format!("a\n{BEGIN}old\n{END}b\n");
        let once = between(&text, "new\n").expect("both markers are there");
        assert_eq!(once, format!("a\n{BEGIN}\nnew\n\n{END}b\n"));
        assert_eq!(between(&once, "new\n"), Some(once.clone()));
        assert_eq!(between("a", "new"), None);
    }
}
