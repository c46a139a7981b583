//! Random faults of nodes and disks, one after the other, while clients change blocks. After each
//! everything is healed, and every acknowledged change must be there.

use std::{
    collections::BTreeMap,
    fmt,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::ExitStatus,
    thread,
    time::{Duration, Instant},
};

use plexus_namespaces::with_own_mounts;
use plexus_sim::Random;
use rustix::process::Signal;

use super::{
    clients::Clients,
    damage,
    faults::{Fault, PUT_OUT, Struck},
    sql::SqlClients,
    workload::{Pauses, Refusals, Workload},
};
use crate::executive::{
    campaign::whole,
    disks::Wrong,
    nodes::{Nodes, Spec, TIMEOUT},
};

/// The nodes of a cluster.
pub(super) const NODES: usize = 3;

/// The faults of one cluster; the next one has other settings.
const ROUNDS: u64 = 12;

/// The rounds of flipped bits of which one meets a block that is on disk.
const FLIPPING_ROUNDS: usize = 4;

/// The exit code of a node that could not write its redo.
const FAILED: i32 = 1;

/// The time for which clients work without a fault at first. Without checkpoints by time, their
/// redo streams become full several times.
const SOAK: Duration = Duration::from_secs(20);

/// The interval at which a wait checks its condition.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The work of the clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// They change blocks.
    Blocks,
    /// They run transactions of SQL.
    Sql,
    /// They change blocks, of which the disks of several hosts have copies.
    Mirrored,
}

/// The settings of one cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The work of its clients.
    pub work: Work,
    /// The networks between the hosts of the nodes, each of which serves a voting file; 0: all are
    /// on one host, which has the voting files.
    pub networks: usize,
    /// The interval of checkpoints.
    pub checkpoint_seconds: u32,
    /// The blocks or accounts that the clients change. The cache of a node has room for 512 blocks.
    pub hot: u64,
    /// The copies of each block; 1: all nodes open one disk.
    pub copies: usize,
}

impl Settings {
    fn any(work: Work, random: &mut Random) -> Self {
        let is_mirrored = work == Work::Mirrored;
        Self {
            work,
            networks: if is_mirrored { 1 } else { *random.pick(&[0, 0, 1]) },
            copies: if is_mirrored { *random.pick(&[2, 2, 3]) } else { 1 },
            checkpoint_seconds: *random.pick(&[1, 3, 600]),
            hot: *random.pick(&[12, 150, 1500]),
        }
    }
}

/// The rounds with one fault.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    /// The nanoseconds from each fault until all blocks answered again.
    pub recovery: Vec<u64>,
    /// The changes acknowledged since the round before.
    pub acknowledged: u64,
    /// The nodes that ended by themselves, by their exit.
    pub ended: BTreeMap<String, u64>,
    /// The blocks in which a bit was flipped on one disk.
    pub flipped: u64,
    /// The copies of blocks that were bad, and that a comparison of all copies has replaced.
    pub repaired: u64,
}

/// The result of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The rounds of each fault.
    pub rounds: BTreeMap<Fault, Rounds>,
    /// The damaged files.
    pub damage: damage::Report,
    /// The number of clusters.
    pub clusters: u64,
    /// The refusals that clients got meanwhile.
    pub refusals: Refusals,
    /// The times without a change between the faults.
    pub pauses: Pauses,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<40} {:>6} {:>10} {:>10} {:>14}",
            "fault", "rounds", "median ms", "longest ms", "acknowledged"
        )?;
        for (fault, Rounds { recovery, acknowledged, .. }) in &self.rounds {
            let mut sorted = recovery.clone();
            sorted.sort_unstable();
            let ms = |ns: Option<&u64>| ns.map_or(0, |ns| ns / 1_000_000);
            writeln!(
                f,
                "{:<40} {:>6} {:>10} {:>10} {:>14}",
                fault.name(),
                sorted.len(),
                ms(sorted.get(sorted.len() / 2)),
                ms(sorted.last()),
                acknowledged
            )?;
        }
        let all: u64 = self.rounds.values().map(|rounds| rounds.acknowledged).sum();
        writeln!(f, "{all} changes acknowledged; after each fault every one was found")?;
        let Pauses { long, longest } = self.pauses;
        let ms = longest.as_millis();
        writeln!(f, "without a fault: {long} times no change for a second or more, at most for {ms} ms")?;
        if self.damage != damage::Report::default() {
            write!(f, "{}", self.damage)?;
        }
        if let Some(Rounds { flipped, repaired, .. }) = self.rounds.get(&Fault::Garbage) {
            writeln!(f, "bits flipped in {flipped} blocks; a scrub has repaired {repaired} copies")?;
        }
        for (fault, Rounds { ended, .. }) in self.rounds.iter().filter(|(_, rounds)| !rounds.ended.is_empty())
        {
            writeln!(f, "nodes that ended by themselves, {}: {ended:?}", fault.name())?;
        }
        for (count, example) in self.refusals.values() {
            writeln!(f, "refused {count} times to clients: {example}")?;
        }
        Ok(())
    }
}

/// Causes faults for `time`, drawn from `seed`, and damages disks at the end; with `only` just the
/// faults whose name has this part. Reports progress to `say`.
///
/// # Errors
/// A change is missing or a block is refused, with the round; or a prerequisite is missing.
pub fn run(
    program: PathBuf,
    work: Work,
    time: Duration,
    seed: u64,
    only: &str,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<Report, String> {
    let of_work = if work == Work::Mirrored { Fault::ALL.to_vec() } else { Fault::without_copies() };
    let known: Vec<Fault> = of_work.into_iter().filter(|fault| fault.name().contains(only)).collect();
    if known.is_empty() {
        return Err(format!(
            "no fault of this work is named `{only}`: {}",
            Fault::ALL.map(Fault::name).join(", ")
        ));
    }
    with_own_mounts(|| {
        let (mut report, mut random, start) = (Report::default(), Random::new(seed), Instant::now());
        soak(program.clone(), work, seed, &mut report.pauses, say)?;
        while start.elapsed() < time {
            let settings = Settings::any(work, &mut random);
            let faults: Vec<Fault> = (0..ROUNDS).map(|_| *random.pick(&known)).collect();
            let end = (start, time);
            on_cluster(program.clone(), settings, seed + report.clusters, &faults, end, &mut report, say)?;
        }
        if work == Work::Blocks {
            damage::run(program, &mut random, &mut report.damage, say)?;
        }
        match report.rounds.get(&Fault::Garbage) {
            Some(rounds) if rounds.flipped == 0 && rounds.recovery.len() >= FLIPPING_ROUNDS => {
                Err("no bit was flipped: the disks are not as expected".to_owned())
            }
            _ => Ok(report),
        }
    })?
}

/// Causes each fault of a group with one copy once, on one cluster, and damages disks.
///
/// # Errors
/// As [`run`].
pub fn each(
    program: PathBuf,
    work: Work,
    seed: u64,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<Report, String> {
    with_own_mounts(|| {
        let mut report = Report::default();
        let settings = Settings { work, networks: 0, checkpoint_seconds: 1, hot: 150, copies: 1 };
        let end = (Instant::now(), Duration::MAX);
        on_cluster(program.clone(), settings, seed, &Fault::without_copies(), end, &mut report, say)?;
        let hosts = Settings { networks: 1, ..settings };
        on_cluster(program.clone(), hosts, seed, &[Fault::InTurn], end, &mut report, say)?;
        if work == Work::Blocks {
            damage::run(program, &mut Random::new(seed), &mut report.damage, say)?;
        }
        Ok(report)
    })?
}

/// Lets clients work without any fault: changes must not stand still.
fn soak(
    program: PathBuf,
    work: Work,
    seed: u64,
    pauses: &mut Pauses,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), String> {
    say("changes without a fault");
    let (networks, copies) = if work == Work::Mirrored { (1, 2) } else { (0, 1) };
    let settings = Settings { work, networks, checkpoint_seconds: 600, hot: 150, copies };
    let mut nodes = cluster(program, settings)?;
    let soaked = match work {
        Work::Blocks | Work::Mirrored => {
            soak_with(&Clients::new(nodes.dir(), NODES, settings.hot), seed, pauses)
        }
        Work::Sql => {
            SqlClients::new(&nodes, settings.hot).and_then(|clients| soak_with(&clients, seed, pauses))
        }
    };
    soaked.map_err(|why| kept(&mut nodes, why))
}

fn soak_with(clients: &impl Workload, seed: u64, pauses: &mut Pauses) -> Result<(), String> {
    clients.beside(seed, || {
        clients.undisturbed(SOAK, pauses)?;
        clients.check(0).map(drop)
    })
}

/// Creates a cluster with disks that can fail.
pub(super) fn cluster(program: PathBuf, settings: Settings) -> Result<Nodes, String> {
    let Settings { work, networks, checkpoint_seconds, copies, .. } = settings;
    let checkpoint_seconds = Some(checkpoint_seconds);
    let has_sql = work == Work::Sql;
    let spec = Spec::new(program, NODES, networks, "lan");
    Nodes::start(Spec { checkpoint_seconds, has_sql, copies, ..spec })
}

/// Adds to a failure where the logs are.
pub(super) fn kept(nodes: &mut Nodes, why: String) -> String {
    format!("{why}\nlogs and disks: {}", nodes.keep().display())
}

fn on_cluster(
    program: PathBuf,
    settings: Settings,
    seed: u64,
    faults: &[Fault],
    (start, time): (Instant, Duration),
    report: &mut Report,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), String> {
    report.clusters += 1;
    say(&format!("cluster {}: {settings:?}", report.clusters));
    let mut nodes = cluster(program, settings)?;
    let ran = match settings.work {
        Work::Blocks | Work::Mirrored => {
            let clients = Clients::new(nodes.dir(), NODES, settings.hot);
            beside_faults(&mut nodes, &clients, settings, seed, faults, (start, time), report, say)
        }
        Work::Sql => SqlClients::new(&nodes, settings.hot).and_then(|clients| {
            beside_faults(&mut nodes, &clients, settings, seed, faults, (start, time), report, say)
        }),
    };
    ran.map_err(|why| kept(&mut nodes, why))
}

#[expect(clippy::too_many_arguments, reason = "one call")]
fn beside_faults(
    nodes: &mut Nodes,
    clients: &impl Workload,
    settings: Settings,
    seed: u64,
    faults: &[Fault],
    (start, time): (Instant, Duration),
    report: &mut Report,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), String> {
    let mut random = Random::new(seed);
    let ran = clients.beside(seed, || {
        let mut epoch = nodes.agreed(&nodes.all(), 0)?;
        let mut last = 0;
        for (number, fault) in (1..).zip(faults) {
            if start.elapsed() > time {
                break;
            }
            let rounds = report.rounds.entry(*fault).or_default();
            let between = Duration::from_millis(200 + random.below(1000));
            let failed =
                |why| format!("cluster {} {settings:?}, round {number}, {fault}: {why}", report.clusters);
            clients.undisturbed(between, &mut report.pauses).map_err(failed)?;
            let found = round(nodes, clients, *fault, &mut epoch, rounds, &mut random).map_err(failed)?;
            rounds.acknowledged += found - last;
            last = found;
            let ms = rounds.recovery.last().copied().unwrap_or(0) / 1_000_000;
            say(&format!("round {number}, {fault}: {ms} ms, {found} changes"));
        }
        Ok(())
    });
    clients.add_refusals(&mut report.refusals);
    ran
}

/// Causes a fault, heals it, and checks the blocks. Returns the changes acknowledged so far.
fn round(
    nodes: &mut Nodes,
    clients: &impl Workload,
    fault: Fault,
    epoch: &mut u64,
    rounds: &mut Rounds,
    random: &mut Random,
) -> Result<u64, String> {
    let Struck { at: struck, flipped } = fault.strike(nodes, random)?;
    rounds.flipped += flipped;
    let mut note = |node: usize, status: ExitStatus, said: &str| {
        *rounds.ended.entry(status.to_string()).or_default() += 1;
        match status.code() {
            Some(PUT_OUT) => Ok(()),
            Some(FAILED) if fault.fails_writes() => Ok(()),
            // An evicted node may have to kill itself, and the fault may have killed it.
            None if status.signal() == Some(Signal::KILL.as_raw()) => Ok(()),
            _ => Err(format!("{} ended with {status}\n{said}", Nodes::name(node))),
        }
    };
    let mut living = Vec::new();
    for node in nodes.all() {
        match nodes.runs(node) {
            Ok(true) => living.push(node),
            Ok(false) => {}
            Err(status) => note(node, status, &nodes.last_said(node))?,
        }
    }
    let mut recovery = None;
    // The others recover without the dead, or beside their return. Full state files are no reason
    // to end.
    let is_state = fault == Fault::FullState;
    let has_votes = !living.is_empty() && (nodes.hosts() == 1 || 2 * living.len() > NODES);
    if is_state || has_votes && !fault.is_of_disks() && random.percent(50) {
        recovery = Some(answers(nodes, clients, &living)?.duration_since(struck));
    }
    if let Some(disks) = nodes.data() {
        [&disks.data, &disks.state].into_iter().for_each(|disks| disks.make_all(Wrong::Nothing));
    }
    // A view may be there already, so the one before counts.
    *epoch = whole(nodes, epoch.saturating_sub(1), &mut note)?;
    let answered = answers(nodes, clients, &nodes.all())?;
    rounds.recovery.push(recovery.unwrap_or_else(|| answered.duration_since(struck)).as_nanos() as u64);
    let node = random.below(NODES as u64) as usize;
    // Before a scrub may have mended what was wrong.
    let found = clients.check(node)?;
    if nodes.copies() > 1 {
        let repaired = nodes.compare_copies(node)?;
        if fault != Fault::Garbage && repaired > 0 {
            return Err(format!("{repaired} copies on current disks were bad or older"));
        }
        rounds.repaired += repaired;
    }
    Ok(found)
}

/// Waits until one of these nodes answers for all data.
fn answers(nodes: &mut Nodes, clients: &impl Workload, living: &[usize]) -> Result<Instant, String> {
    let start = Instant::now();
    let mut last = String::new();
    while start.elapsed() < TIMEOUT {
        for node in living {
            match clients.answers(*node) {
                Ok(()) => return Ok(Instant::now()),
                Err(why) => last = why,
            }
        }
        if living.iter().all(|node| nodes.runs(*node) != Ok(true)) {
            break;
        }
        thread::sleep(LOOK_EVERY);
    }
    let said: Vec<String> = living.iter().map(|node| nodes.last_said(*node)).collect();
    Err(format!("no node answers for all data: {last}\n{}", said.join("\n--\n")))
}
