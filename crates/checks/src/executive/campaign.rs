//! Random faults on a running cluster, one after the other and several at once, while clients work.
//! Then everything is healed, must be one cluster again, and the clients' histories are judged.

use std::{
    collections::BTreeMap,
    fmt,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::ExitStatus,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use plexus_admin::layout::ClusterDir;
use plexus_sim::Random;
use rustix::process::Signal;

use super::{
    clients::{Counts, Work},
    disks::Trouble,
    faults::Fault,
    nodes::{Nodes, Spec, TIMEOUT, status, view},
};
use crate::spread::Spread;

/// The nodes of the cluster.
const NODES: usize = 4;

/// The networks that join their hosts.
const NETWORKS: usize = 2;

/// The clients that take locks.
const LOCKERS: u64 = 8;

/// The clients that change the registry.
const CHANGERS: u64 = 6;

/// The seed offset for disk faults: the other faults stay the same where no disks can fail.
const DISKS: u64 = 0x6469_736b;

/// The exit code of an evicted node.
const PUT_OUT: i32 = 3;

/// The longest network fault: some are over before any node notices, others lead to an eviction.
const LASTS_MS: u64 = 5000;

/// The time for which clients work between two faults.
const BETWEEN: Duration = Duration::from_millis(300);

/// The interval at which views are read.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The result of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The recovery times of each fault in nanoseconds: from its end until all nodes are in one
    /// view.
    pub healed: BTreeMap<Fault, Vec<u64>>,
    /// The number of views seen.
    pub views: usize,
    /// The nodes that were not killed, by their exit.
    pub ended: BTreeMap<String, u64>,
    /// The locks that were granted and judged.
    pub granted: usize,
    /// The locks among them that were known to be held afterwards.
    pub held: usize,
    /// The operations on registry keys that were judged.
    pub keys: Counts,
}

impl Report {
    /// Notes the exit of a node: in order if it was `told` to end, or by eviction. No other exit is
    /// allowed. All faults of disks and networks are healed before a node starts, and one failed
    /// disk of three does not prevent a leave.
    fn note(&mut self, status: ExitStatus, told: bool) -> Result<(), String> {
        let lawful = match status.code() {
            Some(0) => told,
            Some(code) => code == PUT_OUT,
            // An evicted node may have to kill itself.
            None => status.signal() == Some(Signal::KILL.as_raw()),
        };
        *self.ended.entry(status.to_string()).or_default() += 1;
        if lawful { Ok(()) } else { Err(format!("a node ended with {status}")) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { healed, views, ended, granted, held, keys } = self;
        let Counts { reads, changes, refused, unanswered } = keys;
        writeln!(
            f,
            "{granted} locks, {held} seen held; {reads} keys read, {changes} changed, {refused} refused, {unanswered} never answered"
        )?;
        writeln!(f, "{views} views; ends of nodes that were not killed: {ended:?}")?;
        for (fault, ns) in healed {
            writeln!(
                f,
                "{:<36} {:>4} times; from its end until all were one view, {}",
                fault.name(),
                ns.len(),
                Spread::of(ns)
            )?;
        }
        Ok(())
    }
}

/// Causes faults for `time`, drawn from `seed`. Reports progress to `say`.
///
/// # Errors
/// The cluster did not become one again, or the clients saw an impossible history.
pub fn run(program: PathBuf, time: Duration, seed: u64, say: &mut dyn FnMut(&str)) -> Result<Report, String> {
    beside_clients(program, seed, |nodes, report| strikes(nodes, time, seed, report, say))
}

/// Makes a node leave and join again `count` times. Reports progress to `say`.
///
/// # Errors
/// There was no view without it or with it, or the clients saw an impossible history.
pub fn joins(program: PathBuf, count: u64, seed: u64, say: &mut dyn FnMut(&str)) -> Result<Report, String> {
    let mut random = Random::new(seed);
    beside_clients(program, seed, |nodes, report| {
        let all = nodes.all();
        let mut epoch = nodes.agreed(&all, 0)?;
        for number in 1..=count {
            let node = random.below(nodes.count() as u64) as usize;
            let rest: Vec<usize> = all.iter().copied().filter(|one| *one != node).collect();
            let failed = |why: String| format!("time {number}, {}: {why}", Nodes::name(node));
            let ended = nodes.leave(node).map_err(failed)?;
            if !ended.is_some_and(|status| status.success()) {
                return Err(failed(format!("left: {ended:?}\n{}", nodes.last_said(node))));
            }
            epoch = nodes.agreed(&rest, epoch).map_err(failed)?;
            let begins = Instant::now();
            nodes.up(node)?;
            epoch = nodes.agreed(&all, epoch).map_err(failed)?;
            report.healed.entry(Fault::Leave).or_default().push(begins.elapsed().as_nanos() as u64);
            say(&format!("{number} of {count}"));
        }
        Ok(())
    })
}

/// Ends the background threads, also after an error or a panic.
struct Beside<'a> {
    work: &'a Work,
    views: &'a Views,
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        self.work.end();
        self.views.end();
    }
}

/// Runs `act` on a cluster while clients work and its views are watched; then judges all
/// observations.
fn beside_clients(
    program: PathBuf,
    seed: u64,
    act: impl FnOnce(&mut Nodes, &mut Report) -> Result<(), String>,
) -> Result<Report, String> {
    let mut nodes = Nodes::start(Spec::new(program, NODES, NETWORKS, "lan"))?;
    let dir = nodes.dir();
    let work = Work::new(dir.clone(), NODES);
    let views = Views::default();
    let mut report = Report::default();
    thread::scope(|scope| {
        let (work, views) = (&work, &views);
        let _beside = Beside { work, views };
        for client in 0..LOCKERS {
            scope.spawn(move || work.lock(seed ^ (client + 1) << 32));
        }
        for client in LOCKERS..LOCKERS + CHANGERS {
            scope.spawn(move || work.change(seed ^ (client + 1) << 32));
        }
        scope.spawn(|| views.watch(&dir));
        act(&mut nodes, &mut report)
    })?;
    views.judge()?;
    [report.granted, report.held] = work.judge_locks()?;
    report.keys = work.judge_keys()?;
    report.views = views.seen();
    Ok(report)
}

fn strikes(
    nodes: &mut Nodes,
    time: Duration,
    seed: u64,
    report: &mut Report,
    say: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let (mut random, mut of_disks) = (Random::new(seed), Random::new(seed ^ DISKS));
    let mut epoch = nodes.agreed(&nodes.all(), 0)?;
    let began = Instant::now();
    while began.elapsed() < time {
        thread::sleep(BETWEEN);
        let fault = Fault::ALL[random.below(Fault::ALL.len() as u64) as usize];
        say(fault.name());
        let (place, trouble) = (of_disks.bits(), Trouble::any(&mut of_disks));
        if let Some(disks) = nodes.disks() {
            say(&disks.make_trouble(place, trouble));
        }
        let failed = |why: String| format!("after `{}`: {why}", fault.name());
        let ended = fault.strike(nodes, &mut random).map_err(failed)?;
        ended.map_or(Ok(()), |status| report.note(status, true)).map_err(failed)?;
        thread::sleep(Duration::from_millis(random.below(LASTS_MS)));
        nodes.heal()?;
        if let Some(disks) = nodes.disks() {
            disks.mend();
        }
        let after = if fault.ends_a_incarnation() { epoch } else { epoch - 1 };
        let begins = Instant::now();
        let mut note = |node: usize, status, said: &str| {
            let last = said.lines().next_back().unwrap_or("said nothing");
            say(&format!("{}: {last}", Nodes::name(node)));
            report.note(status, false).map_err(|why| format!("{why}\n{said}"))
        };
        epoch = whole(nodes, after, &mut note).map_err(failed)?;
        report.healed.entry(fault).or_default().push(begins.elapsed().as_nanos() as u64);
    }
    Ok(())
}

/// Starts the nodes that have ended, until all are in one view newer than `after`. `note` gets
/// each node that ended by itself, with its exit status and the end of its log.
pub(crate) fn whole(
    nodes: &mut Nodes,
    after: u64,
    note: &mut dyn FnMut(usize, ExitStatus, &str) -> Result<(), String>,
) -> Result<u64, String> {
    let (all, start) = (nodes.all(), Instant::now());
    loop {
        for node in &all {
            match nodes.runs(*node) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(status) => note(*node, status, &nodes.last_said(*node))?,
            }
            nodes.up(*node)?;
        }
        let seen = match nodes.in_one_view(&all, after) {
            Ok(epoch) => return Ok(epoch),
            Err(seen) => seen,
        };
        if start.elapsed() > TIMEOUT {
            let said: Vec<String> = all.iter().map(|node| nodes.said(*node)).collect();
            return Err(format!("not one cluster again: {seen:?}\n{}", said.join("\n--\n")));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// The views in which nodes acted: the members of each epoch, by the node that reported them.
#[derive(Default)]
struct Views {
    over: AtomicBool,
    members: Mutex<BTreeMap<u64, Vec<String>>>,
    differs: Mutex<Option<String>>,
}

impl Views {
    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn watch(&self, dir: &ClusterDir) {
        while !self.over.load(Ordering::Relaxed) {
            for node in 0..NODES {
                if let Some((epoch, members)) = status(dir, &Nodes::name(node)).as_ref().and_then(view) {
                    self.note(node, epoch, members);
                }
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn note(&self, node: usize, epoch: u64, members: Vec<String>) {
        let mut known = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let first = known.entry(epoch).or_insert_with(|| members.clone());
        if *first != members {
            let why = format!("view {epoch} has {first:?}, and of {} {members:?}", Nodes::name(node));
            self.differs.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        }
    }

    /// Checks that all nodes had the same members for each epoch.
    fn judge(&self) -> Result<(), String> {
        self.differs.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }

    fn seen(&self) -> usize {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ordered_ends_and_evictions_are_lawful() {
        let lawful = |wait_status, told| {
            let mut report = Report::default();
            let lawful = report.note(ExitStatus::from_raw(wait_status), told).is_ok();
            assert_eq!(report.ended.values().sum::<u64>(), 1);
            lawful
        };
        let code = |code: i32| code << 8;
        assert!(lawful(code(0), true) && !lawful(code(0), false));
        assert!(lawful(code(PUT_OUT), true) && lawful(code(PUT_OUT), false));
        assert!(lawful(Signal::KILL.as_raw(), false) && !lawful(Signal::ABORT.as_raw(), false));
        // The exit code of `plexus node` after an error, told to end or not.
        assert!(!lawful(code(1), true) && !lawful(code(1), false));
    }

    #[test]
    fn two_views_of_one_epoch_are_detected() {
        let views = Views::default();
        let members = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        views.note(0, 3, members(&["n1", "n2"]));
        views.note(1, 3, members(&["n1", "n2"]));
        views.note(1, 4, members(&["n2"]));
        assert_eq!((views.judge(), views.seen()), (Ok(()), 2));
        views.note(2, 3, members(&["n3"]));
        assert!(views.judge().unwrap_err().starts_with("view 3 has"));
    }
}
