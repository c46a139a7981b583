//! Many faults, one after the other, on one pair over two paths: fail-overs that are counted, and a soak.

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

/// What happens to a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// Its connections are reset.
    Reset,
    /// Nothing passes any more, either way, and nobody says so.
    BlackHole,
    /// Nothing passes from the first host to the second.
    OneWayThere,
    /// Nothing passes from the second host to the first.
    OneWayBack,
    /// The cable is pulled.
    Cut,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 5] = [Self::Reset, Self::BlackHole, Self::OneWayThere, Self::OneWayBack, Self::Cut];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::BlackHole => "black hole",
            Self::OneWayThere => "black hole, there",
            Self::OneWayBack => "black hole, back",
            Self::Cut => "link down",
        }
    }

    /// The longest that traffic should stand still, in milliseconds, where there is a goal. Whose system says nothing is
    /// given up after one and a half probes that were not answered, and there are looks before and after.
    #[must_use]
    pub fn goal_ms(self) -> Option<u32> {
        match self {
            Self::Reset => Some(50),
            Self::BlackHole | Self::OneWayThere | Self::OneWayBack => Some(60),
            Self::Cut => None,
        }
    }

    /// Makes it happen.
    ///
    /// # Errors
    /// The system's.
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

/// The stalls of fail-overs, by what caused them, in nanoseconds.
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

/// The path that prompt messages of the first member take.
fn path_in_use(pair: &mut Pair, net: &Net) -> Result<usize, String> {
    let report = pair.report(Side::A)?;
    let best = report.rails.iter().find(|rail| rail.state == "active best");
    best.and_then(|rail| net.path_of(&rail.path)).ok_or_else(|| format!("no path is in use: {report}"))
}

/// Strikes the path in use so many times, with each fault in turn; every time all traffic must go on over another path,
/// with nothing lost, doubled or late, and nothing left over in the end. Tells `say` how far it is.
///
/// # Errors
/// Something was lost, doubled, late or changed, the peer was taken for gone, traffic did not go on, or a member grew.
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
        true => Err(format!("a peer was taken for gone: {}; {}", reports[0], reports[1])),
        false => Ok(stalls),
    }
}

/// Waits until both members have left the path that was struck and traffic flows again; the longest stall.
fn struck(pair: &mut Pair, net: &Net, path: usize) -> Result<u64, String> {
    let mut stall = 0;
    pair.until("the path that was struck is left", |_, report| {
        stall = stall.max(report.stall_us);
        let here = |rail: &&Seen| net.path_of(&rail.path) == Some(path);
        !report.rails.iter().filter(here).any(Seen::is_active)
    })?;
    Ok(stall.max(pair.flows()?))
}

/// How bulk was shared between two paths.
#[derive(Clone, Debug)]
pub struct Shares {
    /// Bytes that each member gave to each path.
    pub bytes: [[u64; 2]; 2],
    /// For how long they were counted.
    pub time: Duration,
    /// What the members said when it began and when it ended.
    pub reports: [[Report; 2]; 2],
}

impl Shares {
    /// Which part of each member's bytes went over the first path.
    #[must_use]
    pub fn of_first(&self) -> [f64; 2] {
        self.bytes.map(|[first, second]| first as f64 / ((first + second) as f64).max(1.0))
    }

    /// What each member sent over each path, in megabits a second.
    #[must_use]
    pub fn mbit(&self) -> [[f64; 2]; 2] {
        self.bytes.map(|paths| paths.map(|bytes| bytes as f64 * 8.0 / 1e6 / self.time.as_secs_f64()))
    }

    /// Whether a rail was lost or left meanwhile: then the shares say nothing of the paths.
    #[must_use]
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

/// How bulk is shared between two paths that carry so many megabits a second, over `time` in which both are in use and
/// filled: a machine that has too little to spare for that shows nothing of them.
///
/// # Errors
/// Something was lost, doubled, late or changed, traffic did not go on, or the paths were never filled.
pub fn shares(program: PathBuf, mbit: [u32; 2], time: Duration) -> Result<Shares, String> {
    let net = Net::new(2)?;
    let mut pair = pair(program, &net)?;
    for (path, mbit) in mbit.into_iter().enumerate() {
        Side::BOTH.into_iter().try_for_each(|side| net.throttle(path, side, mbit))?;
    }
    pair.bulk()?;
    // What the queues of the paths had room for at first is not counted.
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

/// What part of the rate of paths must be used for them to count as filled, and how often that is tried.
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

/// What a soak saw.
#[derive(Clone, Debug, Default)]
pub struct Soaked {
    /// Faults that struck.
    pub faults: u64,
    /// Messages and puts that were delivered and checked, both ways.
    pub delivered: u64,
    /// By how much the resident memory of each member grew from the middle to the end, in KiB.
    pub grew_kib: [i64; 2],
}

/// Memory may grow by so much from the middle of a soak to its end: what is under way differs from moment to moment.
const MOST_GROWN_KIB: i64 = 2048;

/// Faults of every sort at random for `time`, both paths at once too, and in between none: everything must be
/// delivered, and nothing grow. Tells `say` how far it is.
///
/// # Errors
/// Something was lost, doubled, late or changed, traffic did not go on, or memory, descriptors or threads grew.
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
            // Shorter than the links' timeout: nobody is to be taken for gone.
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
        true => Err(format!("seed {seed}: a peer was taken for gone: {}; {}", reports[0], reports[1])),
        false => Ok(soaked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_says_which_goals_were_met() {
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
