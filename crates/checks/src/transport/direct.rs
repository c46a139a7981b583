//! Paths that lose nothing: they only have an order, a delay and limited room.

use std::collections::VecDeque;

use plexus_base::NodeId;
use plexus_cache::protocol::Kind;
use plexus_sim::{Engine, Network, PathId};

use super::{Arrival, NetEvent, Packet, Paths, Step, Transport, WorkerAddress};
use crate::{blocks::cluster::ClusterEvent, scenario::Params};

/// The lanes for small frames; the last lane is for blocks.
const LANES: usize = 4;

/// A path for each worker of each pair of nodes, with the packets that wait for room.
pub struct Direct {
    paths: Paths,
    lane_for_each_kind: bool,
    bulk_delay: plexus_sim::Delay,
    network: Network<(Packet, bool)>,
    waiting: Vec<[VecDeque<Packet>; LANES]>,
    slots: usize,
}

impl Direct {
    /// Creates paths between all nodes.
    pub fn new(params: &Params) -> Self {
        let paths = Paths::new(params.nodes, params.workers);
        let mut network = Network::default();
        for _ in 0..paths.count() {
            network.add(LANES, params.slots, params.prompt);
        }
        let waiting = (0..paths.count()).map(|_| Default::default()).collect();
        let (lane_for_each_kind, bulk_delay, slots) = (params.lane_for_each_kind, params.bulk, params.slots);
        Self { paths, lane_for_each_kind, bulk_delay, network, waiting, slots }
    }

    fn lane(&self, packet: &Packet) -> usize {
        match packet.kind {
            _ if packet.blocks => LANES - 1,
            Kind::Request if self.lane_for_each_kind => 1,
            Kind::Reply if self.lane_for_each_kind => 2,
            _ => 0,
        }
    }

    fn push(&mut self, step: &mut Step<'_>, path: usize, lane: usize) {
        let (_, to) = self.paths.ends(path);
        while let Some(packet) = self.waiting[path][lane].front().copied() {
            if !self.network.has_room(PathId(path), lane) {
                break;
            }
            self.waiting[path][lane].pop_front();
            // Over shared memory the bytes arrive at once, over TCP with the message.
            let early = packet.put.is_some() && step.engine.random.percent(50);
            let now = step.engine.now();
            let sent = self.network.send(PathId(path), lane, (packet, early), now, &mut step.engine.random);
            let mut after = sent.expect("there was room");
            if lane == LANES - 1 {
                after += self.bulk_delay.draw(&mut step.engine.random);
            }
            if early && let Some(put) = packet.put {
                step.out.push(Arrival::Land(to, put));
            }
            let owner = step.owners[to.node.index()];
            step.engine.schedule(after, Some(owner), ClusterEvent::Net(NetEvent::Arrived(path, lane)));
        }
    }
}

impl Transport for Direct {
    fn send(&mut self, step: &mut Step<'_>, from: WorkerAddress, to: WorkerAddress, packet: Packet) {
        let (path, lane) = (self.paths.between(from, to), self.lane(&packet));
        self.waiting[path][lane].push_back(packet);
        self.push(step, path, lane);
    }

    fn event(&mut self, step: &mut Step<'_>, event: NetEvent) {
        match event {
            NetEvent::Room(path, lane) => self.push(step, path, lane),
            NetEvent::Arrived(path, lane) => {
                // Every frame has one such event, at or after its arrival; frames of a cut path
                // have none left.
                let Some((packet, early)) = self.network.receive(PathId(path), lane, step.engine.now())
                else {
                    return;
                };
                let (from, to) = self.paths.ends(path);
                if !early && let Some(put) = packet.put {
                    step.out.push(Arrival::Land(to, put));
                }
                step.out.push(Arrival::Message { to, from: from.node, packet });
                if !self.waiting[path][lane].is_empty() {
                    let owner = step.owners[from.node.index()];
                    let room = ClusterEvent::Net(NetEvent::Room(path, lane));
                    step.engine.schedule_in(50..=500, Some(owner), room);
                }
            }
            _ => {}
        }
    }

    fn rest(&self) -> Result<(), String> {
        let waiting: usize = self.waiting.iter().flatten().map(VecDeque::len).sum();
        if waiting + self.network.under_way() == 0 {
            Ok(())
        } else {
            Err(format!("{waiting} packets wait for room"))
        }
    }

    fn purge(&mut self, from: NodeId, to: NodeId) {
        for path in 0..self.waiting.len() {
            let (start, end) = self.paths.ends(path);
            if (start.node, end.node) == (from, to) {
                self.waiting[path].iter_mut().for_each(VecDeque::clear);
                self.network.cut(PathId(path));
                self.network.restore(PathId(path), self.slots);
            }
        }
    }

    fn node_died(&mut self, engine: &mut Engine<ClusterEvent>, node: NodeId) {
        for path in 0..self.waiting.len() {
            let (from, to) = self.paths.ends(path);
            if from.node == node {
                self.waiting[path].iter_mut().for_each(VecDeque::clear);
                if engine.random.percent(50) {
                    self.network.cut(PathId(path));
                }
            } else if to.node == node {
                self.waiting[path].iter_mut().for_each(VecDeque::clear);
            }
        }
    }
}
