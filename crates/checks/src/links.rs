//! Links alone, under more traffic than a cache makes: random messages of every kind, with and without blocks, in
//! bursts, over rings that are full most of the time and rails that are lost.

use plexus_base::{BlockId, NodeId};
use plexus_cache::protocol::{Kind, Message, Slot};
use plexus_sim::Engine;

use crate::{
    cluster::Ev,
    failure::Broken,
    page::Page,
    properties::{delivery::Delivery, ends},
    scenario::Params,
    transport::{Arrival, Linked, Packet, Port, Put, Transport},
};

/// Nodes that send each other random messages.
pub struct Links {
    params: Params,
    /// Time, order, chance.
    pub engine: Engine<Ev>,
    /// Messages sent.
    pub messages: u64,
    transport: Linked,
    delivery: Delivery,
    /// By the number that a put carries as its generation: whether its message was delivered.
    puts: Vec<bool>,
    arrivals: Vec<Arrival>,
}

impl Links {
    /// Nothing sent yet.
    #[must_use]
    pub fn new(seed: u64, params: Params) -> Self {
        let nodes = usize::from(params.nodes);
        let mut engine = Engine::new(seed, nodes);
        let transport = Linked::new(&params, &mut engine);
        let delivery = Delivery::new(nodes, usize::from(params.workers));
        for node in 0..nodes {
            engine.schedule(0, Some(node), Ev::Session(node));
            if params.pause_ns > 0 {
                let after = engine.random.below(params.pause_ns);
                engine.schedule(after, None, Ev::Pause(node, true));
            }
        }
        Self { params, engine, messages: 0, transport, delivery, puts: Vec::new(), arrivals: Vec::new() }
    }

    /// Sends everything and waits until it has arrived.
    ///
    /// # Errors
    /// Something was lost, doubled, reordered, or waits for ever.
    pub fn drive(&mut self) -> Result<(), Broken> {
        let limit = self.params.operations * ends::EVENTS_PER_OPERATION;
        while let Some(event) = self.engine.advance() {
            match event {
                Ev::Session(node) => self.burst(node)?,
                Ev::Net(event) => self.transport.event(&mut self.engine, event, &mut self.arrivals),
                Ev::Pause(node, true) => {
                    self.engine.pause(node);
                    let after = self.engine.random.between(1_000, 100_000);
                    self.engine.schedule(after, None, Ev::Pause(node, false));
                }
                Ev::Pause(node, false) => self.engine.resume(node),
                _ => return Err(Broken::general("delivery", format!("{event:?} in links alone"))),
            }
            self.arrive()?;
            if self.engine.events() > limit {
                return Err(Broken::general("ends", "does not come to rest".into()));
            }
        }
        self.transport.rest().map_err(|what| Broken::general("ends", what))?;
        self.delivery.complete()
    }

    /// Ends of rails that were destroyed so far.
    #[must_use]
    pub fn rails_lost(&self) -> u64 {
        self.transport.rails_lost()
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
                self.puts.push(false);
                let page = Page::first(BlockId(random.below(9)));
                Put { slot: Slot(0), generation: self.puts.len() as u32 - 1, page }
            });
            let mut packet = Packet { bytes: [0; Message::LEN], kind, put, number: 0 };
            let from = Port { node: NodeId(node as u8), worker };
            let to = Port { node: NodeId(to as u8), worker };
            self.delivery.number(from, to, &mut packet);
            self.transport.send(&mut self.engine, from, to, packet, &mut self.arrivals);
        }
        if self.messages < self.params.operations {
            let after = self.engine.random.below(self.params.think_ns + 1_000);
            self.engine.schedule(after, Some(node), Ev::Session(node));
        } else {
            self.transport.heal();
        }
        Ok(())
    }

    fn arrive(&mut self) -> Result<(), Broken> {
        for arrival in self.arrivals.drain(..) {
            match arrival {
                Arrival::Land(_, put) if self.puts[put.generation as usize] => {
                    let what = format!("{put:?} lands after its message was delivered");
                    return Err(Broken::general("delivery", what));
                }
                Arrival::Land(..) => {}
                Arrival::Message { to, from, packet } => {
                    self.engine.digest.add(packet.number);
                    self.delivery.delivered(Port { node: from, ..to }, to, &packet)?;
                    if let Some(put) = packet.put {
                        self.puts[put.generation as usize] = true;
                    }
                }
            }
        }
        Ok(())
    }
}
