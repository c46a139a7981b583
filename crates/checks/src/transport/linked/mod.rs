//! The real link core over several rails that are lost, fall silent, are given up without need, and
//! come back.
//!
//! Two [`LinkCore`]s for each pair of workers, over one to three rails. This module takes the role
//! of the link's driver and of the mesh: it offers frames to rails, delivers them in order, checks
//! rails regularly, destroys ends, and connects again. The behaviour of rails is in `rails.rs`.

mod rails;

use plexus_base::{Nanos, NodeId};
use plexus_cache::protocol;
use plexus_fabric::{LANES, Lane};
use plexus_interconnect::{
    Channel, KINDS, Kind, Reason,
    link::protocol::{
        Limits, LinkCore, Order, Outgoing, Pace, RailClosed, Rank, Signs, Span, Stamp, Turn, Waybill,
    },
};
use plexus_sim::Engine;

use self::rails::Rails;
use super::{Arrival, NetEvent, Packet, Paths, Step, Transport, WorkerAddress};
use crate::{blocks::cluster::ClusterEvent, scenario::Params};

/// An item on a rail.
#[derive(Clone, Copy, Debug)]
struct OnRail {
    stamp: Stamp,
    lane: Lane,
    what: RailContent,
}

#[derive(Clone, Copy, Debug)]
enum RailContent {
    /// A frame; `true` if its block was written into the receiver's frame when it was sent.
    Frame(Packet, bool),
    Note([u64; LANES]),
    Closed(RailClosed),
}

/// One end of a link, at the sender of the path with the same number.
struct End {
    core: LinkCore<Packet>,
    order: Order<Packet>,
    /// True if the next check of its rails is scheduled.
    ticking: bool,
}

/// The links between all workers.
pub struct Linked {
    paths: Paths,
    rails: Rails,
    ends: Vec<End>,
    pace: Pace,
    retains: bool,
    dead: Option<NodeId>,
    lost: u64,
}

/// The interval at which links check their rails; everything else here takes microseconds too.
const PACE: Pace = Pace { probe: Nanos::from_us(20), alone: Nanos::from_us(400), trust: Nanos::from_us(50) };

impl Linked {
    /// Creates links between all nodes, whose rails fail now and then if the parameters say so.
    pub fn new(params: &Params, engine: &mut Engine<ClusterEvent>) -> Self {
        let paths = Paths::new(params.nodes, params.workers);
        let retains = params.cuts_ns > 0 || engine.random.percent(50);
        let limits = Limits { credits: [params.credits; KINDS] };
        let rails = Rails::new(params, paths, engine);
        let ends = (0..paths.count())
            .map(|_| End { core: LinkCore::new(limits, PACE), order: Order::default(), ticking: false })
            .collect();
        let mut linked = Self { paths, rails, ends, pace: PACE, retains, dead: None, lost: 0 };
        for path in 0..paths.count() {
            for rail in 0..linked.rails.count() {
                linked.attach(&mut Step { engine, out: &mut Vec::new(), owners: &[] }, path, rail, 1);
            }
            let (from, to) = paths.ends(path);
            if from.node < to.node {
                linked.plan_fault(engine, path);
            }
        }
        linked
    }

    /// Returns true if frames are kept until they have arrived. Otherwise bytes land when they are
    /// sent, as over shared memory.
    pub(crate) fn retains(&self) -> bool {
        self.retains
    }

    fn rank(&self, rail: usize) -> Rank {
        Rank { class: self.rails.class(rail), retains: self.retains }
    }

    fn back(&self, path: usize) -> usize {
        let (from, to) = self.paths.ends(path);
        self.paths.between(to, from)
    }

    fn is_dead(&self, path: usize) -> bool {
        let (from, to) = self.paths.ends(path);
        self.dead.is_some_and(|dead| from.node == dead || to.node == dead)
    }

    fn owner(&self, end: usize) -> Option<usize> {
        Some(self.paths.ends(end).0.node.index())
    }

    /// Schedules the next check of an end's rails as long as there is a reason.
    fn keep_ticking(&mut self, engine: &mut Engine<ClusterEvent>, end: usize) {
        if self.retains && !self.ends[end].ticking && !self.is_dead(end) {
            self.ends[end].ticking = true;
            let owner = self.owner(end);
            engine.schedule(self.pace.tick().0, owner, ClusterEvent::Net(NetEvent::Tick(end)));
        }
    }

    fn tick(&mut self, step: &mut Step<'_>, end: usize) {
        self.ends[end].ticking = false;
        if self.is_dead(end) {
            return;
        }
        let now = step.engine.now();
        let back = self.back(end);
        loop {
            let rails = &self.rails;
            let signs = &mut |slot: u8| {
                let silent = rails.silent(end, back, usize::from(slot), now);
                Signs { silent: Some(Nanos(silent)), ..Signs::default() }
            };
            let Some((slot, _)) = self.ends[end].core.tick(Nanos(now), signs) else { break };
            self.give_up(step.engine, end, usize::from(slot));
        }
        self.pump(step, end);
        let unsettled = self.ends[end].core.unsettled() + self.ends[back].core.unsettled();

        if unsettled > 0 || !self.rails.settled(end, back) {
            self.keep_ticking(step.engine, end);
            self.keep_ticking(step.engine, back);
        }
    }

    /// Sends the waiting frames of `path` on its rails.
    fn pump(&mut self, step: &mut Step<'_>, path: usize) {
        let (_, to) = self.paths.ends(path);
        let Self { rails, ends, .. } = self;
        ends[path].core.pump(&mut |slot, lane, stamp, outgoing| {
            let what = match outgoing {
                Outgoing::Frame(_, packet) => RailContent::Frame(*packet, rails.is_early(usize::from(slot))),
                Outgoing::Note(received) => RailContent::Note(received),
                Outgoing::Closed(closed) => RailContent::Closed(closed),
            };
            rails.offer(step, path, usize::from(slot), to, OnRail { stamp, lane, what })
        });
    }

    /// Takes the frames that have arrived on one rail at the receiver of `path`.
    fn poll(&mut self, step: &mut Step<'_>, path: usize, rail: usize, lane: usize) {
        let receiver = self.back(path);
        while let Some(on_rail) = self.rails.receive(path, receiver, rail, lane, step.engine.now()) {
            self.arrived(step, path, rail, on_rail);
            let room = NetEvent::Room(self.rails.index(path, rail), lane);
            step.engine.schedule_in(50..=500, self.owner(path), ClusterEvent::Net(room));
        }
        // Credits may have come.
        self.pump(step, receiver);
    }

    fn arrived(&mut self, step: &mut Step<'_>, path: usize, rail: usize, on_rail: OnRail) {
        let OnRail { stamp, lane, what } = on_rail;
        let receiver = self.back(path);
        let slot = rail as u8;
        let end = &mut self.ends[receiver];
        let kind = match &what {
            RailContent::Frame(packet, _) => Some(kind(packet)),
            RailContent::Note(_) | RailContent::Closed(_) => None,
        };
        end.core.receive(slot, lane, kind, stamp.credits).expect("a link core never breaks its own rules");
        match what {
            RailContent::Note(received) => {
                end.core.noted(slot, received).expect("a link core never breaks its own rules");
            }
            RailContent::Closed(closed) => {
                if end.core.up(closed.slot) == Some(closed.generation) {
                    self.give_up(step.engine, receiver, usize::from(closed.slot));
                }
                let core = &mut self.ends[receiver].core;

                core.peer_closed(closed).expect("a link core never breaks its own rules");
            }
            RailContent::Frame(packet, early) => {
                if !early && let Some(put) = packet.put {
                    step.out.push(Arrival::Land(self.paths.ends(path).1, put));
                }
                let channel = channel(&packet);
                match end.order.arrive(channel, stamp.sequence).expect("each frame comes once") {
                    Turn::Ahead => end.order.hold(channel, stamp.sequence, packet),
                    Turn::Now => {
                        self.deliver(step, path, packet);
                        while let Some(packet) = self.ends[receiver].order.following(channel) {
                            self.deliver(step, path, packet);
                        }
                    }
                }
            }
        }
    }

    fn deliver(&mut self, step: &mut Step<'_>, path: usize, packet: Packet) {
        let (from, to) = self.paths.ends(path);
        step.out.push(Arrival::Message { to, from: from.node, packet });
        let handled = NetEvent::Handled(self.back(path), kind(&packet) as usize);
        step.engine.schedule_in(10..=1_000, Some(to.node.index()), ClusterEvent::Net(handled));
    }

    /// Destroys an end's rail. The other end learns of it from its system, unless that receives
    /// nothing, or from the peer.
    fn give_up(&mut self, engine: &mut Engine<ClusterEvent>, end: usize, rail: usize) {
        let Some(generation) = self.ends[end].core.up(rail as u8) else { return };
        self.lost += 1;
        self.ends[end].core.rail_lost(rail as u8, Reason::Reset, Nanos(engine.now()));
        let other = self.back(end);
        if self.rails.closed(end, other, rail) {
            let most = *engine.random.pick(&[300, 20_000]);
            let noticed = NetEvent::Noticed(other, rail, generation);
            engine.schedule_in(..most, self.owner(other), ClusterEvent::Net(noticed));
        }
        engine.schedule_in(100..=30_000, None, ClusterEvent::Net(NetEvent::Connect(end, rail)));
        self.keep_ticking(engine, end);
    }

    fn noticed(&mut self, step: &mut Step<'_>, end: usize, rail: usize, generation: u32) {
        if self.ends[end].core.up(rail as u8) == Some(generation) {
            self.give_up(step.engine, end, rail);
            self.pump(step, end);
        }
    }

    /// Connects a rail again, if possible; each end gets it at its own time, and now and then one
    /// does not.
    fn connect(&mut self, engine: &mut Engine<ClusterEvent>, end: usize, rail: usize) {
        let other = self.back(end);
        if self.is_dead(end) || self.rails.is_connected(end, other, rail) {
            return;
        }
        if self.rails.is_dark(end, other, rail) {
            let connect = NetEvent::Connect(end, rail);
            return engine.schedule_in(1_000..=50_000, None, ClusterEvent::Net(connect));
        }
        // The next rail may have less room than the data under way on the last one.
        let slots = *engine.random.pick(&[2, 2, 3, 16]);
        let generation = self.rails.connect(end, other, rail, slots);
        let broken = !self.rails.healed && engine.random.percent(10);
        for (index, end) in [end, other].into_iter().enumerate() {
            let most = *engine.random.pick(&[300, 20_000]);
            let after = engine.random.between(100, most);
            let owner = self.owner(end);
            if index == 1 && broken {
                let half = NetEvent::Noticed(self.back(end), rail, generation);
                let owner = self.owner(self.back(end));
                engine.schedule(after + 20_000, owner, ClusterEvent::Net(half));
            } else {
                engine.schedule(after, owner, ClusterEvent::Net(NetEvent::Attach(end, rail, generation)));
            }
        }
    }

    fn attach(&mut self, step: &mut Step<'_>, end: usize, rail: usize, generation: u32) {
        let now = Nanos(step.engine.now());
        if self.ends[end].core.up(rail as u8).is_some_and(|up| up >= generation) {
            return;
        }
        self.give_up(step.engine, end, rail);
        let rank = self.rank(rail);
        if !self.ends[end].core.rail_up(rail as u8, generation, rank, now) {
            // The other end has closed it meanwhile, and connects again.
            return;
        }
        if !self.rails.attached(end, rail, generation) {
            // It was reset before it was attached here.
            let owner = self.owner(end);
            step.engine.schedule(300, owner, ClusterEvent::Net(NetEvent::Noticed(end, rail, generation)));
        }
        self.keep_ticking(step.engine, end);
        self.pump(step, end);
        let incoming = self.back(end);
        (0..LANES).for_each(|lane| self.poll(step, incoming, rail, lane));
    }

    fn plan_fault(&mut self, engine: &mut Engine<ClusterEvent>, path: usize) {
        if let Some(after) = self.rails.next_fault(engine) {
            engine.schedule(after, None, ClusterEvent::Net(NetEvent::Fault(path)));
        }
    }

    /// Causes a reset, a black hole in one or both directions, or an end that gives up a good rail.
    fn fault(&mut self, step: &mut Step<'_>, path: usize) {
        let back = self.back(path);
        if !self.rails.healed && !self.is_dead(path) {
            let rail = step.engine.random.below(self.rails.count() as u64) as usize;
            let [one, both] = [*step.engine.random.pick(&[path, back]), path];
            match step.engine.random.below(5) {
                0 => self.rails.darken(step.engine, &[one], rail),
                1 => self.rails.darken(step.engine, &[both, back], rail),
                2 => {
                    self.give_up(step.engine, one, rail);
                    self.pump(step, one);
                }
                _ => {
                    self.rails.reset(path, back, rail);
                    for end in [path, back] {
                        let most = *step.engine.random.pick(&[300, 20_000]);
                        let generation = self.ends[end].core.up(rail as u8).unwrap_or(0);
                        let noticed = NetEvent::Noticed(end, rail, generation);
                        step.engine.schedule_in(..most, self.owner(end), ClusterEvent::Net(noticed));
                    }
                }
            }
            self.keep_ticking(step.engine, path);
            self.keep_ticking(step.engine, back);
        }
        self.plan_fault(step.engine, path);
    }
}

fn kind(packet: &Packet) -> Kind {
    match packet.kind {
        protocol::Kind::Request => Kind::Request,
        protocol::Kind::Forward => Kind::Forward,
        protocol::Kind::Reply => Kind::Reply,
    }
}

/// Returns the channel of a packet: blocks have one of their own, as they have a lane.
fn channel(packet: &Packet) -> Channel {
    match packet.both_lanes {
        true => Channel::Benchmark,
        false if packet.blocks => Channel::CacheBlocks,
        false => Channel::CacheRequests,
    }
}

impl Transport for Linked {
    fn send(&mut self, step: &mut Step<'_>, from: WorkerAddress, to: WorkerAddress, packet: Packet) {
        let path = self.paths.between(from, to);
        self.keep_ticking(step.engine, path);
        let lane = if packet.blocks { Lane::Bulk } else { Lane::Prompt };
        let span = packet.put.map(|put| {
            let at = u64::from(put.slot.0);
            Span { window: 0, from: at, to: at + 1 }
        });
        let bill = Waybill { channel: channel(&packet), kind: kind(&packet), lane, span };
        let core = &mut self.ends[path].core;
        if let Some(slot) = core.route(&bill) {
            let stamp = core.stamp(bill.channel);
            let what = RailContent::Frame(packet, self.rails.is_early(usize::from(slot)));
            let on_rail = OnRail { stamp, lane, what };
            if self.rails.offer(step, path, usize::from(slot), to, on_rail).is_ok() {
                return core.sent(slot, &bill, stamp, || packet);
            }
        }
        core.queue(bill, packet);
    }

    fn event(&mut self, step: &mut Step<'_>, event: NetEvent) {
        match event {
            NetEvent::Arrived(index, lane) => {
                let (path, rail) = self.rails.place(index);
                self.poll(step, path, rail, lane);
            }
            NetEvent::Room(index, _) => self.pump(step, self.rails.place(index).0),
            NetEvent::Handled(end, kind) => {
                self.ends[end].core.consume(Kind::ALL[kind]);
                self.pump(step, end);
            }
            NetEvent::Fault(path) => self.fault(step, path),
            NetEvent::Noticed(end, rail, generation) => self.noticed(step, end, rail, generation),
            NetEvent::Connect(end, rail) => self.connect(step.engine, end, rail),
            NetEvent::Attach(end, rail, generation) => self.attach(step, end, rail, generation),
            NetEvent::Tick(end) => self.tick(step, end),
        }
    }

    fn heal(&mut self) {
        self.rails.heal();
    }

    fn rails_lost(&self) -> u64 {
        self.lost
    }

    fn purge(&mut self, from: NodeId, to: NodeId) {
        assert!(
            self.dead.is_some_and(|dead| [from, to].contains(&dead)),
            "the core of a link knows one incarnation"
        );
        for path in 0..self.ends.len() {
            let (start, end) = self.paths.ends(path);
            if (start.node, end.node) == (from, to) {
                (0..self.rails.count()).for_each(|rail| self.rails.lose(path, rail));
            }
        }
    }

    fn node_died(&mut self, engine: &mut Engine<ClusterEvent>, node: NodeId) {
        self.dead = Some(node);
        for path in 0..self.ends.len() {
            if self.paths.ends(path).0.node == node {
                for rail in 0..self.rails.count() {
                    if engine.random.percent(50) {
                        self.rails.lose(path, rail);
                    }
                }
            }
        }
    }

    fn rest(&self) -> Result<(), String> {
        for (path, end) in self.ends.iter().enumerate().filter(|(path, _)| !self.is_dead(*path)) {
            let (from, to) = self.paths.ends(path);
            let (unsettled, ahead) = (end.core.unsettled(), end.order.waiting());
            if self.retains && unsettled + ahead > 0 || end.core.queued() > 0 {
                let what = format!("{unsettled} frames unsettled, {} queued", end.core.queued());
                return Err(format!("{what}, {ahead} wait for others, from {} to {}", from.node, to.node));
            }
        }
        Ok(())
    }
}
