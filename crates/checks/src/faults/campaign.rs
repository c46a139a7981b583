//! Long fault campaigns on one pair over two paths: counted fail-overs, shares of bulk, and a soak.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use plexus_fabric::RailKind;
use plexus_sim::Random;

use super::{Net, Pair, Report, Seen, Side, Spec};
use crate::spread::Spread;

/// A fault of a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// The connections of the path are reset.
    Reset,
    /// No packet passes in either direction, and no end is told.
    BlackHole,
    /// No packet passes from the first host to the second.
    OneWayThere,
    /// No packet passes from the second host to the first.
    OneWayBack,
    /// The cable is unplugged.
    Cut,
}

plexus_base::named! {
    impl Fault {
        Reset "reset",
        BlackHole "black hole",
        OneWayThere "black hole, there",
        OneWayBack "black hole, back",
        Cut "link down",
    }
}

impl Fault {
    /// Returns the goal for the longest stall in milliseconds, if there is one. A silent path is
    /// given up after one and a half unanswered probes; the regular checks before and after add to
    /// that.
    pub fn goal_ms(self) -> Option<u32> {
        match self {
            Self::Reset => Some(50),
            Self::BlackHole | Self::OneWayThere | Self::OneWayBack => Some(60),
            Self::Cut => None,
        }
    }

    /// Causes the fault.
    ///
    /// # Errors
    /// The error of the system.
    pub fn strike(self, net: &Net, path: usize) -> Result<(), String> {
        match self {
            Self::Reset => Side::BOTH.into_iter().try_for_each(|side| net.reset(path, side)),
            Self::BlackHole => Side::BOTH.into_iter().try_for_each(|side| net.swallow(path, side)),
            Self::OneWayThere => net.swallow(path, Side::A),
            Self::OneWayBack => net.swallow(path, Side::B),
            Self::Cut => net.cut(path),
        }
    }
}

/// The stalls of fail-overs in nanoseconds, by fault.
#[derive(Clone, Debug, Default)]
pub struct Stalls(BTreeMap<Fault, Vec<u64>>);

impl Stalls {
    fn add(&mut self, fault: Fault, us: u64) {
        self.0.entry(fault).or_default().push(us * 1000);
    }
}

impl fmt::Display for Stalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (fault, ns) in &self.0 {
            write!(f, "{:<18} {:>5} times: {}", fault.name(), ns.len(), Spread::of(ns))?;
            let Some(goal) = fault.goal_ms() else {
                writeln!(f)?;
                continue;
            };
            match ns.iter().filter(|ns| **ns >= u64::from(goal) * 1_000_000).count() {
                0 => writeln!(f, "; goal {goal} ms: met")?,
                missed => writeln!(f, "; goal {goal} ms: not met {missed} times")?,
            }
        }
        Ok(())
    }
}

fn pair(program: PathBuf, net: &Net) -> Result<Pair, String> {
    let mut pair = Pair::start(Spec { program, rail: RailKind::Tcp, encrypt: false }, Some(net))?;
    pair.joined(net.paths())?;
    pair.flows()?;
    Ok(pair)
}

/// Returns the path that prompt messages of the first member use.
fn path_in_use(pair: &mut Pair, net: &Net) -> Result<usize, String> {
    let report = pair.report(Side::A)?;
    let best = report.rails.iter().find(|rail| rail.state == "active best");
    best.and_then(|rail| net.path_of(&rail.path)).ok_or_else(|| format!("no path is in use: {report}"))
}

/// Strikes the path in use `count` times, with each fault in turn. Each time all traffic must
/// continue over another path, with nothing lost, duplicated, late or left over. Reports progress
/// to `say`.
///
/// # Errors
/// A message was lost, duplicated, late or changed, the peer counted as gone, traffic did not
/// continue, or a member grew.
pub fn failovers(program: PathBuf, count: usize, say: &mut dyn FnMut(usize)) -> Result<Stalls, String> {
    let net = Net::new(2)?;
    let mut pair = pair(program, &net)?;
    let mut stalls = Stalls::default();
    for number in 0..count {
        let fault = Fault::ALL[number % Fault::ALL.len()];
        let path = path_in_use(&mut pair, &net)?;
        fault.strike(&net, path)?;
        let failed = |why| format!("fail-over {number}, {} on path {path}: {why}", fault.name());
        let stall = struck(&mut pair, &net, path).map_err(failed)?;
        stalls.add(fault, stall);
        net.heal()?;
        pair.joined(net.paths()).map_err(failed)?;
        say(number + 1);
    }
    pair.flat()?;
    let reports = pair.finish()?;
    match reports.iter().any(|report| report.gone > 0) {
        true => Err(format!("a peer counted as gone: {}; {}", reports[0], reports[1])),
        false => Ok(stalls),
    }
}

/// Waits until both members have left the struck path and traffic flows again; returns the longest
/// stall.
fn struck(pair: &mut Pair, net: &Net, path: usize) -> Result<u64, String> {
    let mut stall = 0;
    pair.until("the path that was struck is left", |_, report| {
        stall = stall.max(report.stall_us);
        let here = |rail: &&Seen| net.path_of(&rail.path) == Some(path);
        !report.rails.iter().filter(here).any(Seen::is_active)
    })?;
    Ok(stall.max(pair.flows()?))
}

/// A measurement of how two paths share bulk.
#[derive(Clone, Debug)]
pub struct Shares {
    /// The bytes that each member sent over each path.
    pub bytes: [[u64; 2]; 2],
    /// The time over which bytes were counted.
    pub time: Duration,
    /// The reports of the members at the start and at the end.
    pub reports: [[Report; 2]; 2],
}

impl Shares {
    /// Returns the part of each member's bytes that went over the first path.
    pub fn of_first(&self) -> [f64; 2] {
        self.bytes.map(|[first, second]| first as f64 / ((first + second) as f64).max(1.0))
    }

    /// Returns the rate of each member over each path, in megabits per second.
    pub fn mbit(&self) -> [[f64; 2]; 2] {
        self.bytes.map(|paths| paths.map(|bytes| bytes as f64 * 8.0 / 1e6 / self.time.as_secs_f64()))
    }

    /// Returns true if a rail was lost or left meanwhile: then the shares are not valid.
    pub fn rails_stayed(&self) -> bool {
        let [before, after] = &self.reports;
        before.iter().zip(after).all(|(before, after)| {
            before.rails.iter().zip(&after.rails).all(|(before, after)| {
                before.is_active() && after.is_active() && before.generation == after.generation
            })
        })
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (side, (share, [first, second])) in
            Side::BOTH.iter().zip(self.of_first().into_iter().zip(self.mbit()))
        {
            write!(
                f,
                "\n{side:?} sent {first:.1} and {second:.1} Mbit/s, {:.1} % over the first",
                share * 100.0
            )?;
        }
        for (when, reports) in ["first", "last"].iter().zip(&self.reports) {
            for (side, report) in Side::BOTH.iter().zip(reports) {
                for rail in &report.rails {
                    write!(
                        f,
                        "\n{when}, {side:?}: {}: {}, generation {}",
                        rail.path, rail.state, rail.generation
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// Measures how two paths of `mbit` megabits per second share bulk. Counts over `time` while both
/// paths are in use and filled; a machine without enough spare time cannot fill them.
///
/// # Errors
/// A message was lost, duplicated, late or changed, traffic did not continue, or the paths were
/// never filled.
pub fn shares(program: PathBuf, mbit: [u32; 2], time: Duration) -> Result<Shares, String> {
    let net = Net::new(2)?;
    let mut pair = pair(program, &net)?;
    for (path, mbit) in mbit.into_iter().enumerate() {
        Side::BOTH.into_iter().try_for_each(|side| net.throttle(path, side, mbit))?;
    }
    pair.bulk()?;
    // The bytes that first filled the queues of the paths are not counted.
    pair.flows()?;
    let rate = f64::from(mbit.iter().sum::<u32>());
    let mut tries = 0;
    let shares = loop {
        let shares = share(&mut pair, &net, time)?;
        tries += 1;
        if !shares.rails_stayed() || shares.mbit().iter().flatten().sum::<f64>() >= 2.0 * FILLED * rate {
            break shares;
        }
        if tries == MOST_TRIES {
            return Err(format!(
                "paths of {mbit:?} Mbit/s were not filled in {tries} times {time:?}: {shares}"
            ));
        }
    };
    net.heal()?;
    pair.finish()?;
    Ok(shares)
}

/// The part of the paths' rate that must be used for them to count as filled, and the number of
/// attempts.
const FILLED: f64 = 0.75;
const MOST_TRIES: u32 = 10;

fn share(pair: &mut Pair, net: &Net, time: Duration) -> Result<Shares, String> {
    let active = |report: &Report| report.rails.iter().all(Seen::is_active);
    let before = pair.until("both paths are in use", |_, report| active(report))?;
    let began = Instant::now();
    thread::sleep(time);
    let after = [pair.report(Side::A)?, pair.report(Side::B)?];
    let time = began.elapsed();
    let sent = |report: &Report, path| {
        let here = report.rails.iter().filter(|rail| net.path_of(&rail.path) == Some(path));
        here.map(|rail| rail.bytes_out).sum::<u64>()
    };
    let bytes = Side::BOTH.map(|side| {
        let [before, after] = [&before, &after].map(|reports| &reports[side.index()]);
        [0, 1].map(|path| sent(after, path).saturating_sub(sent(before, path)))
    });
    Ok(Shares { bytes, time, reports: [before, after] })
}

/// The result of a soak.
#[derive(Clone, Debug, Default)]
pub struct Soaked {
    /// The number of faults.
    pub faults: u64,
    /// The messages and puts that were delivered and checked, in both directions.
    pub delivered: u64,
    /// The growth of each member's resident memory from the middle to the end, in KiB.
    pub grew_kib: [i64; 2],
}

/// The allowed growth of memory from the middle of a soak to its end: the data under way varies.
const MOST_GROWN_KIB: i64 = 2048;

/// Causes random faults of every kind for `time`, also on both paths at once, with pauses in
/// between. Everything must be delivered, and no resource may grow. Reports progress to `say`.
///
/// # Errors
/// A message was lost, duplicated, late or changed, traffic did not continue, or memory,
/// descriptors or threads grew.
pub fn soak(
    program: PathBuf,
    time: Duration,
    seed: u64,
    say: &mut dyn FnMut(&Soaked),
) -> Result<Soaked, String> {
    let net = Net::new(2)?;
    let mut random = Random::new(seed);
    let mut pair = pair(program, &net)?;
    let before = [pair.holds(Side::A)?, pair.holds(Side::B)?];
    let mut middle = None;
    let (began, mut told) = (Instant::now(), Instant::now());
    let mut soaked = Soaked::default();
    while began.elapsed() < time {
        let path = random.below(net.paths() as u64) as usize;
        let failed = |why| format!("seed {seed}, fault {}: {why}", soaked.faults);
        match random.below(9) {
            fault @ 0..5 => Fault::ALL[fault as usize].strike(&net, path)?,
            5 => net.lose(path, Side::BOTH[random.below(2) as usize], 1 + random.below(20) as u32)?,
            6 => net.throttle(path, Side::BOTH[random.below(2) as usize], 5 + random.below(100) as u32)?,
            7 => {
                net.swallow_long(path, Side::BOTH[random.below(2) as usize], 600 + random.below(800) as u32)?
            }
            // Shorter than the timeout of the links, so that no peer counts as gone.
            _ => {
                let both = (0..net.paths()).try_for_each(|path| Fault::BlackHole.strike(&net, path));
                both.map(|()| thread::sleep(Duration::from_millis(random.below(300))))?;
                net.heal()?;
            }
        }
        pair.flows().map_err(failed)?;
        net.heal()?;
        pair.joined(net.paths()).map_err(failed)?;
        soaked.faults += 1;
        if middle.is_none() && began.elapsed() > time / 2 {
            middle = Some([pair.holds(Side::A)?, pair.holds(Side::B)?]);
        }
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            say(&soaked);
        }
    }
    let middle = middle.unwrap_or(before);
    pair.flat().map_err(|why| format!("seed {seed}: {why}"))?;
    for side in Side::BOTH {
        let (middle, end) = (middle[side.index()], pair.holds(side)?);
        let grew_kib = end.resident_kib as i64 - middle.resident_kib as i64;
        if grew_kib > MOST_GROWN_KIB {
            return Err(format!("seed {seed}: {side:?} grew from {middle:?} in the middle to {end:?}"));
        }
        soaked.grew_kib[side.index()] = grew_kib;
    }
    let reports = pair.finish()?;
    soaked.delivered = reports.iter().map(|report| report.received).sum();
    match reports.iter().any(|report| report.gone > 0) {
        true => Err(format!("seed {seed}: a peer counted as gone: {}; {}", reports[0], reports[1])),
        false => Ok(soaked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_marks_goals_that_were_met() {
        let mut stalls = Stalls::default();
        for (fault, us) in [
            (Fault::Reset, [3000, 49_999]),
            (Fault::BlackHole, [45_000, 60_000]),
            (Fault::Cut, [900_000, 1000]),
        ] {
            us.into_iter().for_each(|us| stalls.add(fault, us));
        }
        let said = stalls.to_string();
        let ends: Vec<_> = said.lines().map(|line| line.split_once("longest").unwrap().1.trim()).collect();
        assert_eq!(ends, ["50.0; goal 50 ms: met", "60.0; goal 60 ms: not met 1 times", "900.0"]);
    }
}
