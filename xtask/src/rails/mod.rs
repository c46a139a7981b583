//! Our rails beside the machine's limit and beside peers, in turn in one run.

mod ours;
mod peers;
mod table;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use peers::{Measured, Peers};
use rustix::thread::{CpuSet, sched_setaffinity};
use table::{MACHINE, Medians, Placement, Sample, Work};

use crate::command;

const PACKAGES: [&str; 4] = ["ucx-utils", "openmpi-bin", "libopenmpi-dev", "iperf3"];
const DOCUMENT: &str = "docs/performance.md";
const BEGIN: &str = "<!-- rails -->\n";
const END: &str = "<!-- end of rails -->\n";

/// The load above which two polling threads are no longer undisturbed on two cores.
const BUSY: f64 = 0.7;

/// How to compare.
#[derive(Args)]
pub struct Options {
    /// How often everything is measured in turn; medians are reported.
    #[arg(long, default_value_t = 7)]
    rounds: u32,
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
/// Something cannot be built or run. A goal that is not met is said, not an error: timings are no tests.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    ensure!(cores >= 2, "two cores are needed to compare, here is {cores}");
    let &[first, second] = options.cpus.as_slice() else { bail!("--cpus takes two cores, as in --cpus 0,1") };
    let known = [first, second].iter().all(|cpu| *cpu < CpuSet::MAX_CPU);
    ensure!(first != second && known, "--cpus takes two different cores");
    if options.install {
        install()?;
    }
    let peers = Peers::build(&root.join("xtask/peers"), [first, second])?;
    for (name, why) in &peers.absent {
        println!("without {name}: {why}; `cargo xtask bench rails --install` installs it");
    }
    let ours = if options.peers_only { None } else { Some(ours::build(root)?) };
    // Our benchmark takes the cores that it may run on; what this process starts inherits them.
    let mut cores = CpuSet::new();
    [first, second].into_iter().for_each(|cpu| cores.set(cpu));
    sched_setaffinity(None, &cores).with_context(|| format!("cannot run on cores {first} and {second}"))?;
    let load = load();
    if load > BUSY {
        println!("{}", busy(load));
    }
    let mut samples = Vec::new();
    for round in 1..=options.rounds {
        println!("round {round} of {}", options.rounds);
        one_round(&peers, ours.as_deref(), &mut samples)?;
    }
    let groups = table::by_placement(&samples);
    let mut report = report(&groups, options.rounds);
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

fn one_round(peers: &Peers, ours: Option<&Path>, samples: &mut Vec<Sample>) -> Result<()> {
    let mut work = peers.measurements();
    if let Some(program) = ours {
        work.extend(ours::GROUPS.map(|figures| {
            let measure: peers::Measurement<'_> = Box::new(move || ours::measure(program, figures));
            measure
        }));
    }
    let mut before = peers.limit()?;
    for measure in work {
        let measured = measure()?;
        let after = peers.limit()?;
        let machine = [(Work::Line, after.line_ns), (Work::Copy(peers::SIZES[2]), after.copy_ns)];
        let machine = machine.map(|(work, ns)| Measured { who: MACHINE, work, ns });
        for Measured { who, work, ns } in measured.into_iter().chain(machine) {
            let (line_before_ns, line_after_ns) = (before.line_ns, after.line_ns);
            samples.push(Sample { who: who.to_owned(), work, ns, line_before_ns, line_after_ns });
        }
        before = after;
    }
    Ok(())
}

fn report(groups: &BTreeMap<Placement, Medians>, rounds: u32) -> String {
    let mut text = format!("{}; {rounds} rounds, medians, {}.\n", machine(), date());
    for (placement, medians) in groups {
        let line = medians.get(&Work::Line).and_then(|times| times.get(MACHINE));
        let line = line.map_or(String::new(), |ns| format!(": a cache line takes {ns:.0} ns one way"));
        let name = match placement {
            Placement::Near => "Cores near each other",
            Placement::Far => "Cores far from each other",
        };
        let comparison = table::comparison(&table::rows(medians));
        let everything = table::everything(medians);
        text += &format!("\n{name}{line}.\n\n{comparison}\nAll of it:\n\n{everything}");
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
