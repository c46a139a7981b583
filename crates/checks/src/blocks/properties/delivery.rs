//! Checks that a link delivers each message once, and those of a kind and lane in the order sent.
//!
//! At the end, equal numbers must have been sent and delivered. The link core itself checks at the
//! receiver that credits are respected.

use plexus_base::NodeId;
use plexus_cache::protocol::Kind;

use crate::{
    failure::Broken,
    transport::{Packet, WorkerAddress},
};

const KINDS: usize = 3;
const LANES: usize = 2;

/// Numbers sent and delivered, for each pair of workers, kind and lane.
pub struct Delivery {
    nodes: usize,
    workers: usize,
    sent: Vec<u64>,
    delivered: Vec<u64>,
}

impl Delivery {
    /// Creates counters for a run without messages.
    pub fn new(nodes: usize, workers: usize) -> Self {
        let streams = vec![0; nodes * nodes * workers * KINDS * LANES];
        Self { nodes, workers, sent: streams.clone(), delivered: streams }
    }

    fn stream(&self, from: WorkerAddress, to: WorkerAddress, packet: &Packet) -> usize {
        let pair = (from.node.index() * self.nodes + to.node.index()) * self.workers + from.worker;
        let kind = match packet.kind {
            Kind::Request => 0,
            Kind::Forward => 1,
            Kind::Reply => 2,
        };
        (pair * KINDS + kind) * LANES + usize::from(packet.blocks)
    }

    /// Numbers a packet that is sent.
    pub fn number(&mut self, from: WorkerAddress, to: WorkerAddress, packet: &mut Packet) {
        let stream = self.stream(from, to, packet);
        packet.number = self.sent[stream];
        self.sent[stream] += 1;
    }

    /// Forgets the packets under way from one node to another.
    pub fn purge(&mut self, from: NodeId, to: NodeId) {
        let pair = (from.index() * self.nodes + to.index()) * self.workers;
        let streams = pair * KINDS * LANES..(pair + self.workers) * KINDS * LANES;
        self.delivered[streams.clone()].copy_from_slice(&self.sent[streams]);
    }

    /// Checks a packet that is delivered.
    ///
    /// # Errors
    /// It is not the next of its stream.
    pub fn delivered(
        &mut self,
        from: WorkerAddress,
        to: WorkerAddress,
        packet: &Packet,
    ) -> Result<(), Broken> {
        let stream = self.stream(from, to, packet);
        if packet.number != self.delivered[stream] {
            let what = format!(
                "{:?} number {} from {} to {} came where {} was next",
                packet.kind, packet.number, from.node, to.node, self.delivered[stream]
            );
            return Err(Broken::general("delivery", what));
        }
        self.delivered[stream] += 1;
        Ok(())
    }

    /// Checks that nothing is under way.
    ///
    /// # Errors
    /// The number of missing packets.
    pub fn complete(&self) -> Result<(), Broken> {
        let (sent, delivered): (u64, u64) = (self.sent.iter().sum(), self.delivered.iter().sum());
        if self.sent == self.delivered {
            return Ok(());
        }
        Err(Broken::general("delivery", format!("{sent} packets sent, {delivered} delivered")))
    }
}
