//! Faults at random on a running cluster, one after the other and several at once, while clients work; then everything is healed, must be one
//! cluster again, and what the clients saw must be what one server could have told them.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use plexus_sim::Random;
use rustix::process::Signal;

use super::{
    clients::Work,
    history,
    nodes::{Nodes, Spec, status, view},
};
use crate::spread::Spread;

/// Nodes of the cluster.
const NODES: usize = 4;

/// Networks that join their hosts.
const NETWORKS: usize = 2;

/// Clients, and the names that they lock.
const CLIENTS: u64 = 8;
const NAMES: u64 = 6;

/// Longer than a lease, and than what others wait beyond it.
const PAST_THE_LEASE: Duration = Duration::from_millis(2500);

/// The longest that a fault of the network lasts: some are over before anybody has noticed, some are noticed and decided on.
const LASTS_MS: u64 = 5000;

/// How long clients must be able to work between two faults.
const BETWEEN: Duration = Duration::from_millis(300);

/// How often the views are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What happens to the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// A node is killed.
    Kill,
    /// The member with the lowest number, who decides first, is killed.
    KillFirst,
    /// A node is killed, and another while the view changes.
    KillTwo,
    /// A node is killed and started again, and killed again.
    KillTwice,
    /// A node is told to end, and does.
    Leave,
    /// A node is stopped for a moment.
    Pause,
    /// A node is stopped for longer than its lease, and continued.
    Stop,
    /// One of the networks of a node is cut.
    CutOne,
    /// All of them are.
    CutAll,
    /// A node is not heard any more, but hears.
    Mute,
    /// Two nodes hear nothing of each other.
    PartTwo,
    /// Two halves hear nothing of each other.
    Split,
}

impl Fault {
    /// Every one.
    pub const ALL: [Self; 12] = [
        Self::Kill,
        Self::KillFirst,
        Self::KillTwo,
        Self::KillTwice,
        Self::Leave,
        Self::Pause,
        Self::Stop,
        Self::CutOne,
        Self::CutAll,
        Self::Mute,
        Self::PartTwo,
        Self::Split,
    ];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill -9",
            Self::KillFirst => "kill -9 of the first",
            Self::KillTwo => "kill -9 of two, one after the other",
            Self::KillTwice => "kill -9 twice of one",
            Self::Leave => "told to end",
            Self::Pause => "stopped for a moment",
            Self::Stop => "stopped past its lease",
            Self::CutOne => "one network cut",
            Self::CutAll => "all networks cut",
            Self::Mute => "cut one way",
            Self::PartTwo => "two that do not hear each other",
            Self::Split => "split into halves",
        }
    }

    /// Whether some life of a node is over after it, however soon it is healed.
    #[must_use]
    fn ends_a_life(self) -> bool {
        matches!(
            self,
            Self::Kill | Self::KillFirst | Self::KillTwo | Self::KillTwice | Self::Leave | Self::Stop
        )
    }

    /// Makes it happen, and waits as long as it takes.
    fn strike(self, nodes: &mut Nodes, random: &mut Random) -> Result<(), String> {
        let node = random.below(nodes.count() as u64) as usize;
        let other = (node + 1 + random.below(nodes.count() as u64 - 1) as usize) % nodes.count();
        let moment = |random: &mut Random| thread::sleep(Duration::from_millis(random.below(120)));
        match self {
            Self::Kill => nodes.kill(node),
            Self::KillFirst => nodes.kill(0),
            Self::KillTwo => {
                nodes.kill(node);
                moment(random);
                nodes.kill(other);
            }
            Self::KillTwice => {
                nodes.kill(node);
                nodes.up(node)?;
                moment(random);
                nodes.kill(node);
            }
            Self::Leave => nodes.leave(node)?,
            Self::Pause => {
                nodes.signal(node, Signal::STOP);
                moment(random);
                nodes.signal(node, Signal::CONT);
            }
            Self::Stop => {
                nodes.signal(node, Signal::STOP);
                thread::sleep(PAST_THE_LEASE + Duration::from_millis(random.below(1000)));
                nodes.signal(node, Signal::CONT);
            }
            Self::CutOne => nodes.lan().unplug(node, random.below(NETWORKS as u64) as usize)?,
            Self::CutAll => (0..NETWORKS).try_for_each(|network| nodes.lan().unplug(node, network))?,
            Self::Mute => nodes.mute(node)?,
            Self::PartTwo => {
                nodes.part(node, &[other])?;
                nodes.part(other, &[node])?;
            }
            Self::Split => {
                let rest: Vec<usize> =
                    (0..nodes.count()).filter(|one| *one != node && *one != other).collect();
                let half = [node, other];
                half.iter().try_for_each(|one| nodes.part(*one, &rest))?;
                rest.iter().try_for_each(|one| nodes.part(*one, &half))?;
            }
        }
        Ok(())
    }
}

/// What came out.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Times that each fault struck, and how long it took in each until all nodes were one view again, in nanoseconds.
    pub healed: BTreeMap<Fault, Vec<u64>>,
    /// Views that were seen.
    pub views: usize,
    /// Nodes that ended by themselves, with the codes that they ended with.
    pub ended: BTreeMap<Option<i32>, u64>,
    /// Locks that were granted and judged.
    pub granted: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { healed, views, ended, granted } = self;
        writeln!(f, "{granted} locks, {views} views; ends of nodes by themselves, by code: {ended:?}")?;
        for (fault, ns) in healed {
            writeln!(
                f,
                "{:<36} {:>4} times; until all were one view again, {}",
                fault.name(),
                ns.len(),
                Spread::of(ns)
            )?;
        }
        Ok(())
    }
}

/// Faults for `time`, drawn from `seed`. Tells `say` what it does.
///
/// # Errors
/// The cluster did not become one again, or the clients saw what cannot be.
pub fn run(program: PathBuf, time: Duration, seed: u64, say: &mut dyn FnMut(&str)) -> Result<Report, String> {
    beside_clients(program, seed, |nodes, report| strikes(nodes, time, seed, report, say))
}

/// So many times a node leaves, the others go on, and it joins again. Tells `say` how far it is.
///
/// # Errors
/// There was no view without it or with it, or the clients saw what cannot be.
pub fn joins(program: PathBuf, count: u64, seed: u64, say: &mut dyn FnMut(&str)) -> Result<Report, String> {
    let mut random = Random::new(seed);
    beside_clients(program, seed, |nodes, report| {
        let all: Vec<usize> = (0..nodes.count()).collect();
        let mut epoch = nodes.agreed(&all, 0)?;
        for number in 1..=count {
            let node = random.below(nodes.count() as u64) as usize;
            let rest: Vec<usize> = all.iter().copied().filter(|one| *one != node).collect();
            let failed = |why: String| format!("time {number}, {}: {why}", Nodes::name(node));
            let left = Instant::now();
            nodes.leave(node).map_err(failed)?;
            epoch = nodes.agreed(&rest, epoch).map_err(failed)?;
            nodes.up(node)?;
            epoch = nodes.agreed(&all, epoch).map_err(failed)?;
            report.healed.entry(Fault::Leave).or_default().push(left.elapsed().as_nanos() as u64);
            say(&format!("{number} of {count}"));
        }
        Ok(())
    })
}

/// Does something to a cluster while clients work and its views are watched; then all that was seen is judged.
fn beside_clients(
    program: PathBuf,
    seed: u64,
    act: impl FnOnce(&mut Nodes, &mut Report) -> Result<(), String>,
) -> Result<Report, String> {
    let spec = Spec { program, count: NODES, networks: NETWORKS, profile: "lan" };
    let mut nodes = Nodes::start(spec)?;
    let sockets: Vec<PathBuf> = (0..NODES).map(|node| nodes.socket(node)).collect();
    let work = Work::new(sockets.clone(), NAMES);
    let views = Views::default();
    let mut report = Report::default();
    let result = thread::scope(|scope| {
        for client in 0..CLIENTS {
            let work = &work;
            scope.spawn(move || work.run(seed ^ (client + 1) << 32));
        }
        let watched = views.clone();
        scope.spawn(move || watched.watch(&sockets));
        let result = act(&mut nodes, &mut report);
        work.end();
        views.end();
        result
    });
    let failed = |why: String| format!("seed {seed}: {why}");
    result.map_err(failed)?;
    views.judge().map_err(failed)?;
    let holds = work.holds();
    history::locks::check(&holds).map_err(|overlap| failed(overlap.to_string()))?;
    report.granted = holds.len();
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
    let mut random = Random::new(seed);
    let all: Vec<usize> = (0..nodes.count()).collect();
    let mut epoch = nodes.agreed(&all, 0)?;
    let began = Instant::now();
    while began.elapsed() < time {
        thread::sleep(BETWEEN);
        let fault = Fault::ALL[random.below(Fault::ALL.len() as u64) as usize];
        say(fault.name());
        #[cfg(feature = "fuse")]
        if let Some(disks) = nodes.disks() {
            say(&disks.trouble(&mut random));
        }
        let struck = Instant::now();
        let failed = |why: String| format!("after `{}`: {why}", fault.name());
        fault.strike(nodes, &mut random).map_err(failed)?;
        thread::sleep(Duration::from_millis(random.below(LASTS_MS)));
        nodes.heal()?;
        #[cfg(feature = "fuse")]
        if let Some(disks) = nodes.disks() {
            disks.mend();
        }
        let after = if fault.ends_a_life() { epoch } else { epoch - 1 };
        epoch = whole(nodes, &all, after, report).map_err(failed)?;
        report.healed.entry(fault).or_default().push(struck.elapsed().as_nanos() as u64);
    }
    Ok(())
}

/// Starts whoever has ended, until all are one view newer than `after`.
fn whole(nodes: &mut Nodes, all: &[usize], after: u64, report: &mut Report) -> Result<u64, String> {
    let start = Instant::now();
    loop {
        for node in all {
            match nodes.runs(*node) {
                Ok(true) => {}
                Ok(false) => nodes.up(*node)?,
                Err(status) => {
                    *report.ended.entry(status.code()).or_default() += 1;
                    nodes.up(*node)?;
                }
            }
        }
        let names: Vec<String> = all.iter().map(|node| Nodes::name(*node)).collect();
        let seen: Vec<_> =
            all.iter().map(|node| nodes.status(*node).and_then(|status| view(&status))).collect();
        if let Some(Some((epoch, _))) = seen.first()
            && *epoch > after
            && seen
                .iter()
                .all(|one| one.as_ref().is_some_and(|(its, members)| its == epoch && *members == names))
        {
            return Ok(*epoch);
        }
        if start.elapsed() > super::nodes::PATIENCE {
            let said: Vec<String> = all.iter().map(|node| nodes.said(*node)).collect();
            return Err(format!("not one cluster again: {seen:?}\n{}", said.join("\n--\n")));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// The views that nodes said they act in: what each had for members, whoever said it.
#[derive(Clone, Default)]
struct Views(Arc<Inner>);

#[derive(Default)]
struct Inner {
    over: AtomicBool,
    members: Mutex<BTreeMap<u64, Vec<String>>>,
    differs: Mutex<Option<String>>,
}

impl Views {
    fn end(&self) {
        self.0.over.store(true, Ordering::Relaxed);
    }

    fn watch(&self, sockets: &[PathBuf]) {
        while !self.0.over.load(Ordering::Relaxed) {
            for (node, socket) in sockets.iter().enumerate() {
                if let Some((epoch, members)) = status(socket).as_ref().and_then(view) {
                    self.note(node, epoch, members);
                }
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn note(&self, node: usize, epoch: u64, members: Vec<String>) {
        let mut known = self.0.members.lock().unwrap_or_else(PoisonError::into_inner);
        let first = known.entry(epoch).or_insert_with(|| members.clone());
        if *first != members {
            let why = format!("view {epoch} has {first:?}, and of {} {members:?}", Nodes::name(node));
            self.0.differs.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        }
    }

    /// Whether all nodes meant the same by each epoch.
    fn judge(&self) -> Result<(), String> {
        self.0.differs.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }

    fn seen(&self) -> usize {
        self.0.members.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_minds_of_one_epoch_are_noticed() {
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
