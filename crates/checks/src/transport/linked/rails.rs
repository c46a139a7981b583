//! The rails of simulated links: what physically becomes of frames.
//!
//! A rail has a direction for each of its ends, each a path of the network. A *dark* direction swallows what is sent
//! without a word. A connection that either end has closed, or that was reset, carries nothing more; what is sent on it is swallowed
//! too, as a socket's buffer would, until its end has noticed.

use plexus_fabric::LANES;
use plexus_interconnect::link::protocol::NoRoom;
use plexus_sim::{Delay, Engine, Network, PathId};

use super::{NetEvent, OnRail, What};
use crate::{
    cluster::Ev,
    scenario::Params,
    transport::{Arrival, Packet, Paths, Port, Step},
};

/// One direction of one rail.
#[derive(Clone, Debug, Default)]
struct Direction {
    /// Since when it swallows everything.
    dark: Option<u64>,
    /// How much was swallowed since the connection was made: no more than fits.
    swallowed: [usize; LANES],
    /// The incarnation that the sender holds.
    held: u32,
}

/// All rails of all pairs.
pub(super) struct Rails {
    count: usize,
    /// The class of each of a pair's rails.
    classes: Vec<u8>,
    /// Whether bytes are in place when they are sent, as over memory, or when their frame arrives; for each of a pair's rails.
    early: Vec<bool>,
    cuts_ns: u64,
    pub(super) healed: bool,
    bulk: Delay,
    slots: usize,
    network: Network<OnRail>,
    directions: Vec<Direction>,
    /// The last incarnation of a pair's rail that was connected, and whether it still carries; both directions alike.
    connections: Vec<(u32, bool)>,
}

impl Rails {
    pub(super) fn new(params: &Params, paths: Paths, engine: &mut Engine<Ev>) -> Self {
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
            // An incarnation that is shorter than a frame takes settles nothing.
            cuts_ns: if params.cuts_ns > 0 { params.cuts_ns.max(10 * params.prompt.most) } else { 0 },
            healed: false,
            bulk: params.bulk,
            slots: params.slots,
            network,
            directions,
            connections,
        }
    }

    /// How many each pair has.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn is_early(&self, rail: usize) -> bool {
        self.early[rail]
    }

    pub(super) fn class(&self, rail: usize) -> u8 {
        self.classes[rail]
    }

    /// The number of a rail's direction.
    pub(super) fn index(&self, path: usize, rail: usize) -> usize {
        path * self.count + rail
    }

    /// The path and rail of a direction.
    pub(super) fn place(&self, index: usize) -> (usize, usize) {
        (index / self.count, index % self.count)
    }

    /// How long until something happens to a rail of a pair.
    pub(super) fn next_fault(&self, engine: &mut Engine<Ev>) -> Option<u64> {
        (self.cuts_ns > 0 && !self.healed).then(|| engine.random.below(2 * self.cuts_ns))
    }

    /// Whether the end that sends on `path` holds the incarnation of the rail that carries.
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
        to: Port,
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
        let mut after = sent.map_err(|_| NoRoom)?;
        if lane == 1 {
            after += self.bulk.draw(&mut step.engine.random);
        }
        if let What::Frame(Packet { put: Some(put), .. }, true) = on_rail.what {
            step.out.push(Arrival::Land(to, put));
        }
        step.engine.schedule(after, Some(to.node.index()), Ev::Net(NetEvent::Arrived(index, lane)));
        Ok(())
    }

    /// What has arrived by `now` for the `receiver` of `path`, which sees only the incarnation that it holds.
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

    /// How long ago the system of `end` last heard from the other side of a rail, if somebody spoke.
    pub(super) fn silent(&self, end: usize, back: usize, rail: usize, now: u64) -> u64 {
        let dark = [end, back].map(|path| self.directions[self.index(path, rail)].dark);
        // A connection that the other side does not know is answered with a reset, which comes of its own.
        dark.into_iter().flatten().min().map_or(0, |since| now - since)
    }

    /// Whether nothing is wrong with the rails of a pair: nothing has to be noticed any more.
    pub(super) fn settled(&self, end: usize, back: usize) -> bool {
        (0..self.count).all(|rail| self.holds(end, rail) && self.holds(back, rail))
    }

    /// An end has destroyed its rail; whether the other's system will hear of it.
    pub(super) fn closed(&mut self, end: usize, other: usize, rail: usize) -> bool {
        let held = self.holds(end, rail);
        self.directions[end * self.count + rail].held = 0;
        if held {
            self.stop(end, other, rail);
        }
        self.directions[self.index(end, rail)].dark.is_none()
    }

    /// The connection carries nothing more, and what was under way is gone.
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

    /// Directions swallow everything from now on; what is under way may still arrive.
    pub(super) fn darken(&mut self, engine: &mut Engine<Ev>, paths: &[usize], rail: usize) {
        for path in paths {
            let index = self.index(*path, rail);
            self.directions[index].dark.get_or_insert(engine.now());
            if engine.random.percent(50) {
                self.lose(*path, rail);
            }
        }
    }

    /// What is under way in one direction is lost.
    pub(super) fn lose(&mut self, path: usize, rail: usize) {
        let path = PathId(self.index(path, rail));
        if self.network.is_up(path) {
            self.network.cut(path);
            self.network.restore(path, self.slots);
        }
    }

    /// Whether a rail's connection carries, as far as both ends hold it or are about to.
    pub(super) fn is_connected(&self, end: usize, other: usize, rail: usize) -> bool {
        [end, other].iter().all(|path| self.connections[self.index(*path, rail)].1)
    }

    pub(super) fn is_dark(&mut self, end: usize, other: usize, rail: usize) -> bool {
        let dark = |path: &usize| self.directions[self.index(*path, rail)].dark.is_some();
        let is_dark = [end, other].iter().any(dark);
        // Somebody mends it, in time.
        for path in [end, other] {
            let index = self.index(path, rail);
            self.directions[index].dark = None;
        }
        is_dark
    }

    /// A new connection of a rail; its incarnation.
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

    /// The sender of `path` holds this incarnation now; whether it still carries.
    pub(super) fn attached(&mut self, path: usize, rail: usize, generation: u32) -> bool {
        let index = self.index(path, rail);
        self.directions[index].held = generation;
        self.directions[index].swallowed = [0; LANES];
        self.holds(path, rail)
    }

    /// No more failures: what is dark carries again, with what it swallowed lost.
    pub(super) fn heal(&mut self) {
        self.healed = true;
    }
}
