//! Checks links alone, under more traffic than a cache creates: bursts of random messages of every
//! kind, with and without blocks, over rings that are mostly full and rails that are lost.

use std::collections::BTreeMap;

use plexus_base::{BlockId, NodeId};
use plexus_cache::protocol::{Kind, Message, Slot};
use plexus_sim::Engine;

use crate::{
    blocks::{
        cluster::ClusterEvent,
        page::Page,
        properties::{delivery::Delivery, ends},
        streams::Carried,
    },
    failure::Broken,
    harness::{Outcome, Simulation},
    scenario::Params,
    transport::{Arrival, Linked, Packet, Put, Step, Transport, WorkerAddress},
};

/// Sender, worker and node of the receiver, and message kind: puts of one stream arrive in order.
type Stream = (usize, u8, usize, u8);

/// A put that was sent.
#[derive(Clone, Copy)]
struct Sent {
    stream: Stream,
    place: Slot,
    /// True if its bytes were in place once. On a rail that writes to memory the bytes may arrive
    /// without their frame; then they are put again, with all later ones.
    landed: bool,
    /// True if its message was delivered.
    delivered: bool,
}

/// Nodes that send each other random messages.
pub struct Links {
    params: Params,
    /// The source of time, order and randomness.
    pub engine: Engine<ClusterEvent>,
    /// The number of messages sent.
    pub messages: u64,
    transport: Linked,
    both_lanes: bool,
    delivery: Delivery,
    /// The puts, by the number that each carries as its generation.
    puts: Vec<Sent>,
    /// The number of the last put that landed, by stream and slot.
    landed: BTreeMap<(Stream, Slot), u32>,
    arrivals: Vec<Arrival>,
}

impl Simulation for Links {
    fn now(&self) -> u64 {
        self.engine.now()
    }

    fn drive(&mut self) -> Result<Outcome, Broken> {
        self.send_all()?;
        let outcome = Outcome::of(&self.engine, self.messages);
        Ok(Outcome { rails_lost: self.transport.rails_lost(), ..outcome })
    }
}

impl Links {
    /// Creates links without messages.
    pub fn new(seed: u64, params: Params) -> Self {
        let nodes = usize::from(params.nodes);
        let mut engine = Engine::new(seed, nodes);
        let transport = Linked::new(&params, &mut engine);
        let both_lanes = transport.retains() && engine.random.percent(40);
        let delivery = Delivery::new(nodes, usize::from(params.workers));
        for node in 0..nodes {
            engine.schedule(0, Some(node), ClusterEvent::Session(node));
            if params.pause_ns > 0 {
                engine.schedule_in(..params.pause_ns, None, ClusterEvent::Pause(node, true));
            }
        }
        Self {
            params,
            engine,
            messages: 0,
            transport,
            both_lanes,
            delivery,
            puts: Vec::new(),
            landed: BTreeMap::new(),
            arrivals: Vec::new(),
        }
    }

    /// Sends everything and waits until it has arrived, once and in order.
    fn send_all(&mut self) -> Result<(), Broken> {
        let limit = self.params.operations * ends::EVENTS_PER_OPERATION;
        while let Some(event) = self.engine.advance() {
            match event {
                ClusterEvent::Session(node) => self.burst(node)?,
                ClusterEvent::Net(event) => self.transport.event(
                    &mut Step { engine: &mut self.engine, out: &mut self.arrivals, owners: &[] },
                    event,
                ),
                ClusterEvent::Pause(node, true) => {
                    self.engine.pause(node);
                    self.engine.schedule_in(1_000..=100_000, None, ClusterEvent::Pause(node, false));
                }
                ClusterEvent::Pause(node, false) => self.engine.resume(node),
                _ => return Err(Broken::general("delivery", format!("{event:?} in links alone"))),
            }
            self.arrive()?;
            if self.engine.events() > limit {
                return Err(Broken::general("ends", "does not come to rest".into()));
            }
        }
        self.transport.rest().map_err(|what| Broken::general("ends", what))?;
        for (number, put) in self.puts.iter().enumerate() {
            // The last put to a place must be there.
            if self.landed.get(&(put.stream, put.place)).is_none_or(|last| (*last as usize) < number) {
                return Err(Broken::general(
                    "delivery",
                    format!("put {number} was overwritten by an older one"),
                ));
            }
        }
        self.delivery.complete()
    }

    fn burst(&mut self, node: usize) -> Result<(), Broken> {
        for _ in 0..self.engine.random.between(1, 20) {
            self.messages += 1;
            let random = &mut self.engine.random;
            let to = (node as u64 + random.between(1, u64::from(self.params.nodes) - 1))
                % u64::from(self.params.nodes);
            let worker = random.below(u64::from(self.params.workers)) as usize;
            let kind = *random.pick(&[Kind::Request, Kind::Forward, Kind::Reply]);
            let put = random.percent(30).then(|| {
                let page = Page::first(BlockId(random.below(9)));
                let slot = Slot(random.below(4) as u32);
                let stream = (node, to as u8, worker, kind as u8);
                self.puts.push(Sent { stream, place: slot, landed: false, delivered: false });
                Put { slot, generation: self.puts.len() as u32 - 1, page, carried: Carried::default() }
            });
            // On one channel, long frames use one lane and short ones the other; puts with them
            // arrive in the order sent.
            let (both_lanes, is_long) = (self.both_lanes, random.percent(50));
            let blocks = if both_lanes { is_long } else { put.is_some() };
            let mut packet = Packet { bytes: [0; Message::LEN], kind, put, blocks, both_lanes, number: 0 };
            let from = WorkerAddress { node: NodeId(node as u8), worker };
            let to = WorkerAddress { node: NodeId(to as u8), worker };
            self.delivery.number(from, to, &mut packet);
            let step = &mut Step { engine: &mut self.engine, out: &mut self.arrivals, owners: &[] };
            self.transport.send(step, from, to, packet);
        }
        if self.messages < self.params.operations {
            self.engine.schedule_in(..self.params.think_ns + 1_000, Some(node), ClusterEvent::Session(node));
        } else {
            self.transport.heal();
        }
        Ok(())
    }

    fn arrive(&mut self) -> Result<(), Broken> {
        for arrival in self.arrivals.drain(..) {
            match arrival {
                Arrival::Land(_, put) => {
                    let Sent { stream, delivered, landed, .. } = self.puts[put.generation as usize];
                    self.puts[put.generation as usize].landed = true;
                    let last = self.landed.entry((stream, put.slot)).or_insert(put.generation);
                    if delivered || (put.generation < *last && !landed) {
                        let what =
                            format!("{put:?} lands late: delivered {delivered}, the last one there {last}");
                        return Err(Broken::general("delivery", what));
                    }
                    *last = put.generation;
                }
                Arrival::Message { to, from, packet } => {
                    self.engine.digest.add(packet.number);
                    self.delivery.delivered(WorkerAddress { node: from, ..to }, to, &packet)?;
                    if let Some(put) = packet.put {
                        self.puts[put.generation as usize].delivered = true;
                    }
                }
            }
        }
        Ok(())
    }
}
