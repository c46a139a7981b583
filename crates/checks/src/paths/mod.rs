//! Checks one link over paths with a rate and a queue: the rails that it gives up, the shares of
//! bulk, and the stalls of traffic.
//!
//! Two real link cores use two or three rails at the pace of real ones. The state that a system
//! knows of a path follows from the deliveries on it (`wire.rs`). Each end sends a short frame
//! every millisecond, and as much bulk as possible; a program pauses now and then. First there is
//! no fault: **a rail that delivers is never given up**, and **bulk uses every path for what it can
//! carry**, except far too slow ones. Then the path in use is struck again and again. Traffic
//! leaves it, everything is delivered once and in order over the others, and a stall is no longer
//! than [`Stall::limit`].

mod host;
mod report;
mod wire;

use plexus_base::Nanos;
use plexus_fabric::Lane;
use plexus_interconnect::{RailState, Reason};
use plexus_sim::Engine;

use self::{
    host::{Host, OnRail},
    wire::{ACKNOWLEDGEMENT, Connection, Path},
};
pub use self::{report::Stalls, wire::Fault};
use crate::{
    failure::Broken,
    harness::{Outcome, Simulation},
};

const MS: u64 = 1_000_000;

/// The time before measurements start: queues fill, and round trips are learned.
const WARM: u64 = 500 * MS;
/// The time over which the load of each path is measured.
const MEASURED: u64 = 2000 * MS;
/// The time within which a fault must be found, and within which every path must be connected after
/// its end.
const TIMEOUT: u64 = 20_000 * MS;
/// The interval at which both programs send, and the longest pause of either.
const DRIVE_EVERY: u64 = MS;
const LONGEST_PAUSE: u64 = 300 * MS;
/// The part of their joint capacity that paths must carry at least; prompt frames, acknowledgements
/// and notes use some of the rest.
const LEAST_PART: f64 = 0.65;
/// The part of its capacity that a path must carry at least, if it is at most so many times slower
/// than the fastest. On a far slower path a frame hardly ever overtakes the traffic of the fastest,
/// so it adds little. Even slower ones cannot help: a frame takes longer there than all credits
/// allow elsewhere.
const LEAST_SHARES: [(u64, f64); 2] = [(5, 0.4), (TOO_SLOW, 0.2)];
const TOO_SLOW: u64 = 40;
/// The number of strikes of each run's paths.
const STRIKES: u32 = 6;

/// The stall of one fail-over.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    /// The fault of the path in use.
    pub fault: Fault,
    /// The longest time without a prompt frame at either end, until both had left the path.
    pub ns: u64,
    /// The longest round trip on any path just before.
    pub rtt_ns: u64,
    /// The time that the slowest path needs for the bulk that a connection sends at once after a
    /// fail-over.
    pub burst_ns: u64,
}

impl Stall {
    /// Returns the longest allowed stall: three probes for a silent path, a quarter of a second for
    /// one lane. Added are the round trips for an answer and for both ends to agree on what has
    /// arrived, and the bulk ahead of prompt frames.
    pub fn limit(&self) -> u64 {
        let found = match self.fault {
            Fault::Reset => 10 * MS,
            Fault::BlackHole | Fault::There | Fault::Back => 60 * MS,
            Fault::Long | Fault::Prompt => 300 * MS,
        };
        found + 12 * self.rtt_ns + 2 * self.burst_ns
    }
}

#[derive(Clone, Copy, Debug)]
enum PathsEvent {
    /// A program sends.
    Drive(usize),
    /// A program checks its rails.
    Tick(usize),
    /// A program takes the items that have arrived.
    Poll(usize),
    /// An item reaches the host of an end.
    Arrive { to: usize, rail: usize, generation: u32, on_rail: OnRail, sent: u64 },
    /// An acknowledgement arrives: of the bytes, or of none after a gap.
    Acknowledge { to: usize, rail: usize, generation: u32, lane: Lane, bytes: u32, sent: u64 },
    /// An end learns that its rail was closed.
    Noticed { end: usize, rail: usize, generation: u32 },
    /// A path is connected again: one end calls.
    Connect(usize),
    /// The call was answered after this time.
    Attach { rail: usize, rtt: u64 },
    /// A program pauses (`true`) or continues.
    Pause(usize, bool),
    /// The measurement of each path's load starts.
    Measure,
    /// The measurement ends.
    Measured,
    /// The path in use is struck.
    Strike,
}

#[derive(Clone, Copy, Debug)]
struct Struck {
    rail: usize,
    generation: u32,
    fault: Fault,
    at: u64,
    rtt_ns: u64,
}

/// The state of a struck path.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Sound,
    Struck(Struck),
    /// Healed at this time, and not yet connected at both ends.
    Healing(u64),
    Ending,
}

/// The run of one seed.
pub struct Paths {
    engine: Engine<PathsEvent>,
    paths: Vec<Path>,
    window: u32,
    generations: Vec<u32>,
    hosts: [Host; 2],
    pauses: bool,
    /// True if only the first end sends bulk.
    one_way: bool,
    phase: Phase,
    strikes: u32,
    /// The bulk that each end's rails had carried when the measurement began.
    carried: [Vec<u64>; 2],
    /// The stalls of all fail-overs.
    pub stalls: Vec<Stall>,
}

impl Simulation for Paths {
    fn now(&self) -> u64 {
        self.engine.now()
    }

    fn drive(&mut self) -> Result<Outcome, Broken> {
        self.deliver_all()?;
        let outcome = Outcome::of(&self.engine, self.hosts.iter().flat_map(|host| host.received).sum());
        Ok(Outcome { rails_lost: self.hosts.iter().map(|host| host.lost).sum(), ..outcome })
    }
}

impl Paths {
    /// Creates paths with rates, delays and windows drawn from the seed.
    pub fn new(seed: u64) -> Self {
        let mut engine = Engine::new(seed, 2);
        let count = engine.random.between(2, 3) as usize;
        // From a gigabit to five megabits per second; or a cluster's network, which is never filled
        // here.
        let fast = engine.random.percent(50);
        let rates: &[u64] = if fast { &[8, 4] } else { &[8, 80, 200, 800, 1600] };
        let delays: &[u64] = if fast { &[20_000, 200_000] } else { &[20_000, 200_000, 2 * MS, 8 * MS] };
        let paths = (0..count).map(|_| {
            let ns_per_byte = *engine.random.pick(rates);
            Path::new(ns_per_byte, *engine.random.pick(delays))
        });
        let paths: Vec<Path> = paths.collect();
        let window = *engine.random.pick(&[32 << 10, 128 << 10, 512 << 10]);
        let pauses = engine.random.percent(30);
        let one_way = engine.random.percent(50);
        let mut run = Self {
            generations: vec![0; count],
            hosts: [Host::new(count), Host::new(count)],
            paths,
            window,
            pauses,
            one_way,
            phase: Phase::Sound,
            strikes: 0,
            carried: [vec![0; count], vec![0; count]],
            stalls: Vec::new(),
            engine,
        };
        (0..count).for_each(|rail| run.attach(rail, run.paths[rail].round_trip(0)));
        for end in 0..2 {
            run.engine.schedule(0, Some(end), PathsEvent::Drive(end));
            run.engine.schedule(0, Some(end), PathsEvent::Tick(end));
            if pauses {
                run.engine.schedule_in(..WARM, None, PathsEvent::Pause(end, true));
            }
        }
        run.engine.schedule(WARM, None, PathsEvent::Measure);
        run.engine.schedule(WARM + MEASURED, None, PathsEvent::Measured);
        run
    }

    /// Runs to the end: everything is delivered.
    fn deliver_all(&mut self) -> Result<(), Broken> {
        while let Some(event) = self.engine.advance() {
            self.event(event)?;
        }
        let [a, b] = &self.hosts;
        if a.sent != b.received || b.sent != a.received {
            let what = format!(
                "{:?} sent and {:?} received, {:?} and {:?} back",
                a.sent, b.received, b.sent, a.received
            );
            return Err(Broken::general("delivery", what));
        }
        Ok(())
    }

    fn event(&mut self, event: PathsEvent) -> Result<(), Broken> {
        let now = self.engine.now();
        match event {
            PathsEvent::Drive(end) => {
                if !matches!(self.phase, Phase::Ending) {
                    let bulk = end == 0 || !self.one_way;
                    self.with(end, |host, wires| host.drive(wires, bulk));
                    self.engine.schedule(DRIVE_EVERY, Some(end), PathsEvent::Drive(end));
                }
            }
            PathsEvent::Tick(end) => return self.tick(end),
            PathsEvent::Poll(end) => return self.poll(end),
            PathsEvent::Arrive { to, rail, generation, on_rail, sent } => {
                let Some(connection) = self.hosts[to].connection(rail, generation) else { return Ok(()) };
                connection.heard(on_rail.lane, now);
                let bytes = on_rail.bytes();
                if !on_rail.behind_a_hole {
                    self.hosts[to].arrived.push_back((rail, generation, on_rail));
                    self.engine.schedule(20_000, Some(to), PathsEvent::Poll(to));
                }
                if let Some(after) = self.paths[rail].pass(to, on_rail.lane, ACKNOWLEDGEMENT, now) {
                    let bytes = if on_rail.behind_a_hole { 0 } else { bytes };
                    let to = 1 - to;
                    let acknowledge =
                        PathsEvent::Acknowledge { to, rail, generation, lane: on_rail.lane, bytes, sent };
                    self.engine.schedule(after, None, acknowledge);
                }
            }
            PathsEvent::Acknowledge { to, rail, generation, lane, bytes, sent } => {
                let Some(connection) = self.hosts[to].connection(rail, generation) else { return Ok(()) };
                if bytes == 0 {
                    connection.heard(lane, now);
                } else {
                    connection.acknowledged(lane, bytes, now - sent, now);
                    self.engine.schedule(0, Some(to), PathsEvent::Poll(to));
                }
            }
            PathsEvent::Noticed { end, rail, generation } => {
                if self.hosts[end].core.up(rail as u8) == Some(generation) {
                    self.give_up(end, rail, Reason::Reset);
                }
            }
            PathsEvent::Connect(rail) => {
                // Calls and answers wait in the queues too.
                let rtt = self.paths[rail].round_trip(now);
                self.engine.schedule(rtt, None, PathsEvent::Attach { rail, rtt });
            }
            PathsEvent::Attach { rail, rtt } => self.attach(rail, rtt),
            PathsEvent::Pause(end, true) if self.pauses && matches!(self.phase, Phase::Sound) => {
                self.engine.pause(end);
                self.engine.schedule_in(..LONGEST_PAUSE, None, PathsEvent::Pause(end, false));
            }
            PathsEvent::Pause(_, true) => {}
            PathsEvent::Pause(end, false) => {
                self.engine.resume(end);
                self.engine.schedule_in(..WARM, None, PathsEvent::Pause(end, true));
            }
            PathsEvent::Measure => self.carried = self.carried(),
            PathsEvent::Measured => return self.measured(),
            PathsEvent::Strike => self.strike(),
        }
        Ok(())
    }

    /// Calls one end with its rails.
    fn with(&mut self, end: usize, act: impl FnOnce(&mut Host, &mut host::Wires<'_>)) {
        let Self { engine, paths, hosts, .. } = self;
        act(&mut hosts[end], &mut host::Wires { end, engine, paths });
    }

    /// Attaches a rail over a path at both ends.
    fn attach(&mut self, rail: usize, rtt: u64) {
        self.generations[rail] += 1;
        let (generation, now) = (self.generations[rail], self.engine.now());
        for end in 0..2 {
            self.give_up(end, rail, Reason::Reset);
            self.hosts[end].attach(rail, generation, Connection::new(self.window, rtt, now), now);
        }
    }

    /// Destroys an end's rail; the other's system learns of it, unless the notice is dropped.
    fn give_up(&mut self, end: usize, rail: usize, why: Reason) {
        let Some(generation) = self.hosts[end].core.up(rail as u8) else { return };
        let now = self.engine.now();
        self.hosts[end].give_up(rail, why, now);
        if let Some(after) = self.paths[rail].pass(end, Lane::Prompt, ACKNOWLEDGEMENT, now) {
            let noticed = PathsEvent::Noticed { end: 1 - end, rail, generation };
            self.engine.schedule(after, Some(1 - end), noticed);
        }
        self.with(end, Host::pump);
    }

    fn tick(&mut self, end: usize) -> Result<(), Broken> {
        let now = self.engine.now();
        while let Some((rail, sick)) = self.hosts[end].tick(now) {
            if self.paths[rail].fault.is_none() {
                let signs = self.hosts[end].signs(rail, now);
                let path = &self.paths[rail];
                let what = format!("end {end} gave up a rail that delivers: {sick:?}, {signs:?}, {path:?}");
                return Err(Broken::general("paths", what));
            }
            self.give_up(end, rail, Reason::Silent);
        }
        self.with(end, Host::pump);
        self.look(now)?;
        let settled = self.hosts.iter().all(|host| host.core.unsettled() == 0);
        if !(matches!(self.phase, Phase::Ending) && settled) {
            // Programs are not punctual.
            let core = &self.hosts[end].core;
            let after = core.next_tick().unwrap_or(core.pace().probe).0 + self.engine.random.below(3 * MS);
            self.engine.schedule(after, Some(end), PathsEvent::Tick(end));
        }
        Ok(())
    }

    fn poll(&mut self, end: usize) -> Result<(), Broken> {
        let now = self.engine.now();
        while let Some((rail, generation, on_rail)) = self.hosts[end].arrived.pop_front() {
            if self.hosts[end].core.up(rail as u8) != Some(generation) {
                continue;
            }
            if let Some(closed) = self.hosts[end].receive(rail, on_rail, now)? {
                if self.hosts[end].core.up(closed.slot) == Some(closed.generation) {
                    self.give_up(end, usize::from(closed.slot), Reason::Reset);
                }
                let core = &mut self.hosts[end].core;
                core.peer_closed(closed)
                    .map_err(|violation| Broken::general("delivery", violation.to_string()))?;
            }
        }
        self.with(end, Host::pump);
        Ok(())
    }

    /// Returns the bulk that each end's rails have carried.
    fn carried(&self) -> [Vec<u64>; 2] {
        self.hosts.each_ref().map(Host::carried)
    }

    fn measured(&mut self) -> Result<(), Broken> {
        let offered = host::OFFERED as f64 / DRIVE_EVERY as f64;
        let rate: f64 = self.paths.iter().map(|path| 1.0 / path.ns_per_byte as f64).sum();
        // If paths cannot be filled, their load is no measure of them.
        let fills = |path: &Path| u64::from(self.window) * path.ns_per_byte > 4 * path.delay_ns;
        if self.one_way && !self.pauses && offered > 2.0 * rate && self.paths.iter().all(fills) {
            let [after, _] = self.carried();
            let carried = after.iter().zip(&self.carried[0]).map(|(after, before)| after - before);
            // Slowest first.
            let mut paths: Vec<(u64, u64)> = carried
                .zip(&self.paths)
                .map(|(carried, path)| (MEASURED / path.ns_per_byte, carried))
                .collect();
            paths.sort_unstable();
            let all: u64 = paths.iter().map(|(_, carried)| carried).sum();
            let fastest = paths.last().map_or(0, |(could, _)| *could);
            let helps = |(could, _): &&(u64, u64)| could * TOO_SLOW >= fastest;
            let could: u64 = paths.iter().filter(helps).map(|(could, _)| could).sum();
            let is_used = |(could, carried): &(u64, u64)| {
                let share = LEAST_SHARES.iter().find(|(slower, _)| could * slower >= fastest);
                share.is_none_or(|(_, share)| *carried as f64 > share * *could as f64)
            };
            if (all as f64) < LEAST_PART * could as f64 || !paths.iter().all(is_used) {
                let what = format!("paths, by what they could and did carry: {paths:?} bytes");
                return Err(Broken::general("paths", what));
            }
        }
        self.pauses = false;
        self.engine.schedule(LONGEST_PAUSE + 100 * MS, None, PathsEvent::Strike);
        Ok(())
    }

    fn strike(&mut self) {
        let now = self.engine.now();
        let best = |rail: &usize| {
            self.hosts[0].core.state(*rail as u8, Nanos(now)) == (RailState::Active, Reason::Best)
        };
        let rail = (0..self.paths.len()).find(best).expect("every rail is up");
        let fault = *self.engine.random.pick(&Fault::ALL);
        let rtt_ns = self.hosts.iter().map(Host::longest_rtt).max().unwrap_or_default();
        self.paths[rail].fault = Some(fault);
        let generation = self.generations[rail];
        self.phase = Phase::Struck(Struck { rail, generation, fault, at: now, rtt_ns });
        self.hosts.iter_mut().for_each(|host| host.watch(now));
        if fault == Fault::Reset {
            for end in 0..2 {
                self.engine.schedule_in(..MS, Some(end), PathsEvent::Noticed { end, rail, generation });
            }
        }
    }

    /// Checks whether the awaited state has been reached.
    fn look(&mut self, now: u64) -> Result<(), Broken> {
        let late = |at: u64, what: &str| match now - at > TIMEOUT {
            true => Err(Broken::general("ends", what.into())),
            false => Ok(()),
        };
        match self.phase {
            Phase::Struck(struck) => {
                let Struck { rail, generation, fault, at, rtt_ns } = struck;
                late(at, &format!("traffic did not leave {struck:?}"))?;
                let left = |host: &Host| host.core.up(rail as u8) != Some(generation) && host.flows();
                if self.hosts.iter().all(left) {
                    let ns = self.hosts.iter().map(|host| host.longest_gap).max().unwrap_or_default();
                    let burst_ns = self.paths.iter().map(Path::burst).max().unwrap_or_default();
                    let stall = Stall { fault, ns, rtt_ns, burst_ns };
                    if ns > stall.limit() {
                        let what = format!("traffic stood still for {} ms: {struck:?}", ns / MS);
                        return Err(Broken::general("paths", what));
                    }
                    self.stalls.push(stall);
                    self.paths[rail].fault = None;
                    self.phase = Phase::Healing(now);
                    self.engine.schedule_in(50 * MS..=200 * MS, None, PathsEvent::Connect(rail));
                }
            }
            Phase::Healing(since) => {
                late(since, "a path is not connected again")?;
                let all = |host: &Host| (0..self.paths.len()).all(|rail| host.core.up(rail as u8).is_some());
                if self.hosts.iter().all(all) {
                    self.strikes += 1;
                    self.phase = if self.strikes == STRIKES { Phase::Ending } else { Phase::Sound };
                    if self.strikes < STRIKES {
                        self.engine.schedule_in(..200 * MS, None, PathsEvent::Strike);
                    }
                }
            }
            Phase::Sound | Phase::Ending => {}
        }
        Ok(())
    }
}
