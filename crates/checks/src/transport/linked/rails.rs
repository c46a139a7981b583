//! The rails of simulated links: the physical fate of frames.
//!
//! A rail has a direction for each of its ends, each a path of the network. A *dark* direction
//! silently drops its frames. A connection that was reset or that either end has closed carries
//! nothing more. It also drops later frames, as a socket's buffer would, until its end has noticed.

use plexus_fabric::LANES;
use plexus_interconnect::link::protocol::NoRoom;
use plexus_sim::{Delay, Engine, Network, PathId};

use super::{NetEvent, OnRail, RailContent};
use crate::{
    blocks::cluster::ClusterEvent,
    scenario::Params,
    transport::{Arrival, Packet, Paths, Step, WorkerAddress},
};

/// One direction of one rail.
#[derive(Clone, Debug, Default)]
struct Direction {
    /// The time since which it drops everything.
    dark: Option<u64>,
    /// The frames dropped since the connection was made: no more than fit.
    swallowed: [usize; LANES],
    /// The incarnation that the sender holds.
    held: u32,
}

/// The rails of all pairs.
pub(super) struct Rails {
    count: usize,
    /// The class of each of a pair's rails.
    classes: Vec<u8>,
    /// True if bytes are in place when they are sent, as over memory; otherwise when their frame
    /// arrives. One entry for each of a pair's rails.
    early: Vec<bool>,
    cuts_ns: u64,
    pub(super) healed: bool,
    bulk: Delay,
    slots: usize,
    network: Network<OnRail>,
    directions: Vec<Direction>,
    /// The last connected incarnation of a pair's rail, and whether it still works; the same for
    /// both directions.
    connections: Vec<(u32, bool)>,
}

impl Rails {
    pub(super) fn new(params: &Params, paths: Paths, engine: &mut Engine<ClusterEvent>) -> Self {
        let count = if params.cuts_ns > 0 { engine.random.between(1, 3) as usize } else { 1 };
        let classes = (0..count).map(|_| engine.random.below(2) as u8).collect();
        let early = (0..count).map(|_| engine.random.percent(50)).collect();
        let mut network = Network::default();
        let directions = (0..paths.count() * count).map(|_| {
            network.add(LANES, params.slots, params.prompt);
            Direction::default()
        });
        let directions: Vec<Direction> = directions.collect();
        let connections = vec![(1, true); directions.len()];
        Self {
            count,
            classes,
            early,
            // An incarnation that is shorter than the delay of a frame settles nothing.
            cuts_ns: if params.cuts_ns > 0 { params.cuts_ns.max(10 * params.prompt.most) } else { 0 },
            healed: false,
            bulk: params.bulk,
            slots: params.slots,
            network,
            directions,
            connections,
        }
    }

    /// Returns the number of rails of each pair.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn is_early(&self, rail: usize) -> bool {
        self.early[rail]
    }

    pub(super) fn class(&self, rail: usize) -> u8 {
        self.classes[rail]
    }

    /// Returns the number of a rail's direction.
    pub(super) fn index(&self, path: usize, rail: usize) -> usize {
        path * self.count + rail
    }

    /// Returns the path and rail of a direction.
    pub(super) fn place(&self, index: usize) -> (usize, usize) {
        (index / self.count, index % self.count)
    }

    /// Draws the time until the next fault of a pair's rail.
    pub(super) fn next_fault(&self, engine: &mut Engine<ClusterEvent>) -> Option<u64> {
        (self.cuts_ns > 0 && !self.healed).then(|| engine.random.below(2 * self.cuts_ns))
    }

    /// Returns true if the end that sends on `path` holds the working incarnation of the rail.
    fn holds(&self, path: usize, rail: usize) -> bool {
        let index = self.index(path, rail);
        let (generation, carries) = self.connections[index];
        carries && self.directions[index].held == generation
    }

    pub(super) fn offer(
        &mut self,
        step: &mut Step<'_>,
        path: usize,
        rail: usize,
        to: WorkerAddress,
        on_rail: OnRail,
    ) -> Result<(), NoRoom> {
        let (index, lane, now) = (self.index(path, rail), on_rail.lane.index(), step.engine.now());
        if !self.holds(path, rail) || self.directions[index].dark.is_some() {
            let swallowed = &mut self.directions[index].swallowed[lane];
            if *swallowed >= self.slots {
                return Err(NoRoom);
            }
            *swallowed += 1;
            return Ok(());
        }
        let sent = self.network.send(PathId(index), lane, on_rail, now, &mut step.engine.random);
        let mut after = sent.ok_or(NoRoom)?;
        if lane == 1 {
            after += self.bulk.draw(&mut step.engine.random);
        }
        if let RailContent::Frame(Packet { put: Some(put), .. }, true) = on_rail.what {
            step.out.push(Arrival::Land(to, put));
        }
        step.engine.schedule(after, Some(to.node.index()), ClusterEvent::Net(NetEvent::Arrived(index, lane)));
        Ok(())
    }

    /// Takes the items that have arrived by `now` for the `receiver` of `path`, which sees only the
    /// incarnation that it holds.
    pub(super) fn receive(
        &mut self,
        path: usize,
        receiver: usize,
        rail: usize,
        lane: usize,
        now: u64,
    ) -> Option<OnRail> {
        if !self.holds(receiver, rail) {
            return None;
        }
        self.network.receive(PathId(self.index(path, rail)), lane, now)
    }

    /// Returns how long ago the system of `end` last received anything over a rail, if the other
    /// side sent.
    pub(super) fn silent(&self, end: usize, back: usize, rail: usize, now: u64) -> u64 {
        let dark = [end, back].map(|path| self.directions[self.index(path, rail)].dark);
        // A connection unknown to the other side is answered with a reset, which comes separately.
        dark.into_iter().flatten().min().map_or(0, |since| now - since)
    }

    /// Returns true if a pair's rails have no fault that has yet to be noticed.
    pub(super) fn settled(&self, end: usize, back: usize) -> bool {
        (0..self.count).all(|rail| self.holds(end, rail) && self.holds(back, rail))
    }

    /// Notes that an end has destroyed its rail; returns true if the other's system will learn of
    /// it.
    pub(super) fn closed(&mut self, end: usize, other: usize, rail: usize) -> bool {
        let held = self.holds(end, rail);
        self.directions[end * self.count + rail].held = 0;
        if held {
            self.stop(end, other, rail);
        }
        self.directions[self.index(end, rail)].dark.is_none()
    }

    /// Ends a connection; its items under way are lost.
    fn stop(&mut self, end: usize, other: usize, rail: usize) {
        for path in [end, other] {
            let index = self.index(path, rail);
            self.connections[index].1 = false;
            self.network.cut(PathId(index));
        }
    }

    pub(super) fn reset(&mut self, end: usize, other: usize, rail: usize) {
        self.stop(end, other, rail);
    }

    /// Makes directions drop everything from now on; items under way may still arrive.
    pub(super) fn darken(&mut self, engine: &mut Engine<ClusterEvent>, paths: &[usize], rail: usize) {
        for path in paths {
            let index = self.index(*path, rail);
            self.directions[index].dark.get_or_insert(engine.now());
            if engine.random.percent(50) {
                self.lose(*path, rail);
            }
        }
    }

    /// Loses the items under way in one direction.
    pub(super) fn lose(&mut self, path: usize, rail: usize) {
        let path = PathId(self.index(path, rail));
        if self.network.is_up(path) {
            self.network.cut(path);
            self.network.restore(path, self.slots);
        }
    }

    /// Returns true if a rail's connection works, as far as both ends hold it or are about to.
    pub(super) fn is_connected(&self, end: usize, other: usize, rail: usize) -> bool {
        [end, other].iter().all(|path| self.connections[self.index(*path, rail)].1)
    }

    pub(super) fn is_dark(&mut self, end: usize, other: usize, rail: usize) -> bool {
        let dark = |path: &usize| self.directions[self.index(*path, rail)].dark.is_some();
        let is_dark = [end, other].iter().any(dark);
        // The fault is repaired after a time.
        for path in [end, other] {
            let index = self.index(path, rail);
            self.directions[index].dark = None;
        }
        is_dark
    }

    /// Makes a new connection of a rail; returns its incarnation.
    pub(super) fn connect(&mut self, end: usize, other: usize, rail: usize, slots: usize) -> u32 {
        let generation = 1 + self.connections[self.index(end, rail)].0;
        for path in [end, other] {
            let index = self.index(path, rail);
            self.connections[index] = (generation, true);
            self.network.cut(PathId(index));
            self.network.restore(PathId(index), slots);
        }
        generation
    }

    /// Attaches an incarnation at the sender of `path`; returns true if it still works.
    pub(super) fn attached(&mut self, path: usize, rail: usize, generation: u32) -> bool {
        let index = self.index(path, rail);
        self.directions[index].held = generation;
        self.directions[index].swallowed = [0; LANES];
        self.holds(path, rail)
    }

    /// Stops failures: dark directions work again, and what they dropped is lost.
    pub(super) fn heal(&mut self) {
        self.healed = true;
    }
}
