//! One end of the link: its core, its rails, the frames it sends and those it has received.

use std::collections::VecDeque;

use plexus_base::Nanos;
use plexus_fabric::{LANES, Lane};
use plexus_interconnect::{
    Channel, Kind, Reason,
    link::protocol::{
        Limits, LinkCore, NoRoom, Order, Outgoing, Pace, RailClosed, RailFailure, Rank, Signs, Stamp, Turn,
        Waybill,
    },
};
use plexus_sim::Engine;

use super::{
    PathsEvent,
    wire::{Connection, Path},
};
use crate::failure::Broken;

/// The bytes on the wire of a prompt frame, of a bulk frame and of a note.
const PROMPT: u32 = 64;
const BULK: u32 = 4096;
const NOTE: u32 = 32;

/// The bulk frames offered at once, unless as many already wait.
const BURST: usize = 8;

/// The bulk bytes offered at once.
pub(super) const OFFERED: u64 = BURST as u64 * BULK as u64;

/// The prompt frames after which traffic counts as flowing again.
const FLOWING: u64 = 20;

const RANK: Rank = Rank { class: 0, retains: true };

/// A frame, with its number on its channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    lane: Lane,
    number: u64,
}

#[derive(Clone, Copy, Debug)]
enum RailContent {
    Frame(Frame),
    Note([u64; LANES]),
    Closed(RailClosed),
}

/// An item on a rail.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnRail {
    pub(super) lane: Lane,
    /// True if an earlier item on its lane was dropped.
    pub(super) behind_a_hole: bool,
    stamp: Stamp,
    what: RailContent,
}

impl OnRail {
    /// Returns the length on the wire.
    pub(super) fn bytes(&self) -> u32 {
        match self.what {
            RailContent::Frame(Frame { lane: Lane::Bulk, .. }) => BULK,
            RailContent::Frame(_) => PROMPT,
            RailContent::Note(_) | RailContent::Closed(_) => NOTE,
        }
    }
}

/// The paths that an end sends over.
pub(super) struct Wires<'a> {
    pub(super) end: usize,
    pub(super) engine: &'a mut Engine<PathsEvent>,
    pub(super) paths: &'a mut [Path],
}

impl Wires<'_> {
    fn send(
        &mut self,
        rail: usize,
        generation: u32,
        connection: &mut Connection,
        mut on_rail: OnRail,
    ) -> Result<(), NoRoom> {
        let (lane, bytes, now) = (on_rail.lane, on_rail.bytes(), self.engine.now());
        if !connection.has_room(lane, bytes, now) {
            return Err(NoRoom);
        }
        let after = self.paths[rail].pass(self.end, lane, bytes, now);
        on_rail.behind_a_hole = !connection.sent(lane, bytes, after.is_some(), now);
        if let Some(after) = after {
            let arrive = PathsEvent::Arrive { to: 1 - self.end, rail, generation, on_rail, sent: now };
            self.engine.schedule(after, None, arrive);
        }
        Ok(())
    }
}

/// One end of the link.
pub(super) struct Host {
    pub(super) core: LinkCore<Frame>,
    order: Order<Frame>,
    connections: Vec<Option<Connection>>,
    /// The items that the system has for the program: rail, generation, item.
    pub(super) arrived: VecDeque<(usize, u32, OnRail)>,
    /// The frames sent, by lane.
    pub(super) sent: [u64; LANES],
    pub(super) received: [u64; LANES],
    /// The number of rail ends destroyed.
    pub(super) lost: u64,
    /// The time of the last prompt frame, the longest time without one, and the frames since
    /// [`Host::watch`].
    last: u64,
    pub(super) longest_gap: u64,
    watched: u64,
}

impl Host {
    pub(super) fn new(rails: usize) -> Self {
        Self {
            core: LinkCore::new(Limits::default(), Pace::default()),
            order: Order::default(),
            connections: vec![None; rails],
            arrived: VecDeque::new(),
            sent: [0; LANES],
            received: [0; LANES],
            lost: 0,
            last: 0,
            longest_gap: 0,
            watched: 0,
        }
    }

    pub(super) fn attach(&mut self, rail: usize, generation: u32, connection: Connection, now: u64) {
        if self.core.rail_up(rail as u8, generation, RANK, Nanos(now)) {
            self.connections[rail] = Some(connection);
        }
    }

    pub(super) fn give_up(&mut self, rail: usize, why: Reason, now: u64) {
        self.core.rail_lost(rail as u8, why, Nanos(now));
        self.connections[rail] = None;
        self.lost += 1;
    }

    /// Returns a rail's connection if it has this generation.
    pub(super) fn connection(&mut self, rail: usize, generation: u32) -> Option<&mut Connection> {
        let up = self.core.up(rail as u8) == Some(generation);
        self.connections[rail].as_mut().filter(|_| up)
    }

    pub(super) fn signs(&self, rail: usize, now: u64) -> Signs {
        self.connections[rail].as_ref().map_or_else(Signs::default, |connection| connection.signs(now))
    }

    /// Returns a rail that the core wants to give up.
    pub(super) fn tick(&mut self, now: u64) -> Option<(usize, RailFailure)> {
        let connections = &self.connections;
        let signs = &mut |slot: u8| {
            connections[usize::from(slot)]
                .as_ref()
                .map_or_else(Signs::default, |connection| connection.signs(now))
        };
        let (slot, sick) = self.core.tick(Nanos(now), signs)?;
        Some((usize::from(slot), sick))
    }

    /// Returns the bulk that each rail has carried.
    pub(super) fn carried(&self) -> Vec<u64> {
        self.connections.iter().map(|connection| connection.as_ref().map_or(0, Connection::bulk)).collect()
    }

    pub(super) fn longest_rtt(&self) -> u64 {
        self.connections.iter().flatten().map(Connection::longest_rtt).max().unwrap_or_default()
    }

    /// Starts to measure the longest time without a prompt frame.
    pub(super) fn watch(&mut self, now: u64) {
        (self.last, self.longest_gap, self.watched) = (now, 0, self.received[Lane::Prompt.index()]);
    }

    /// Returns true if prompt frames came since the last call of [`Host::watch`].
    pub(super) fn flows(&self) -> bool {
        self.received[Lane::Prompt.index()] >= self.watched + FLOWING
    }

    /// Sends one short frame, and bulk, if wanted, on rails where little waits.
    pub(super) fn drive(&mut self, wires: &mut Wires<'_>, bulk: bool) {
        self.send(wires, Lane::Prompt);
        for _ in (self.core.queued()..BURST).filter(|_| bulk) {
            self.send(wires, Lane::Bulk);
        }
        self.pump(wires);
    }

    fn send(&mut self, wires: &mut Wires<'_>, lane: Lane) {
        let frame = Frame { lane, number: self.sent[lane.index()] };
        self.sent[lane.index()] += 1;
        let bill = Waybill { channel: channel(lane), kind: Kind::Request, lane, span: None };
        if let Some(slot) = self.core.route(&bill) {
            let stamp = self.core.stamp(bill.channel);
            let on_rail = OnRail { lane, behind_a_hole: false, stamp, what: RailContent::Frame(frame) };
            let (rail, generation) = (usize::from(slot), self.core.up(slot));
            if let (Some(generation), Some(connection)) = (generation, &mut self.connections[rail])
                && wires.send(rail, generation, connection, on_rail).is_ok()
            {
                return self.core.sent(slot, &bill, stamp, || frame);
            }
        }
        self.core.queue(bill, frame);
    }

    /// Sends the waiting frames on the rails.
    pub(super) fn pump(&mut self, wires: &mut Wires<'_>) {
        let generations: Vec<_> = (0..self.connections.len()).map(|rail| self.core.up(rail as u8)).collect();
        let Self { core, connections, .. } = self;
        core.pump(&mut |slot, lane, stamp, outgoing| {
            let what = match outgoing {
                Outgoing::Frame(_, frame) => RailContent::Frame(*frame),
                Outgoing::Note(received) => RailContent::Note(received),
                Outgoing::Closed(closed) => RailContent::Closed(closed),
            };
            let rail = usize::from(slot);
            let (Some(generation), Some(connection)) = (generations[rail], &mut connections[rail]) else {
                return Err(NoRoom);
            };
            wires.send(rail, generation, connection, OnRail { lane, behind_a_hole: false, stamp, what })
        });
    }

    /// Takes an item that arrived on a rail; returns the notice of a closed rail to the caller.
    pub(super) fn receive(
        &mut self,
        rail: usize,
        on_rail: OnRail,
        now: u64,
    ) -> Result<Option<RailClosed>, Broken> {
        let broken = |what: &dyn std::fmt::Display| Broken::general("delivery", what.to_string());
        let OnRail { lane, stamp, what, .. } = on_rail;
        let kind = matches!(what, RailContent::Frame(_)).then_some(Kind::Request);
        self.core.receive(rail as u8, lane, kind, stamp.credits).map_err(|violation| broken(&violation))?;
        match what {
            RailContent::Note(received) => {
                self.core.noted(rail as u8, received).map_err(|violation| broken(&violation))?;
            }
            RailContent::Closed(closed) => return Ok(Some(closed)),
            RailContent::Frame(frame) => {
                let channel = channel(lane);
                match self.order.arrive(channel, stamp.sequence).map_err(|violation| broken(&violation))? {
                    Turn::Ahead => self.order.hold(channel, stamp.sequence, frame),
                    Turn::Now => {
                        self.hand_over(frame, now)?;
                        while let Some(frame) = self.order.following(channel) {
                            self.hand_over(frame, now)?;
                        }
                    }
                }
            }
        }
        Ok(None)
    }

    fn hand_over(&mut self, frame: Frame, now: u64) -> Result<(), Broken> {
        let due = &mut self.received[frame.lane.index()];
        if frame.number != *due {
            return Err(Broken::general("delivery", format!("{frame:?} came where {due} was due")));
        }
        *due += 1;
        self.core.consume(Kind::Request);
        if frame.lane == Lane::Prompt {
            self.longest_gap = self.longest_gap.max(now - self.last);
            self.last = now;
        }
        Ok(())
    }
}

fn channel(lane: Lane) -> Channel {
    match lane {
        Lane::Prompt => Channel::CacheRequests,
        Lane::Bulk => Channel::CacheBlocks,
    }
}
