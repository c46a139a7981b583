//! The transports of messages and blocks between the workers of a simulated cluster.

mod direct;
mod linked;

use plexus_base::NodeId;
use plexus_cache::protocol::{Kind, Slot};
use plexus_sim::Engine;

pub use direct::Direct;
pub use linked::Linked;

use crate::blocks::{cluster::ClusterEvent, page::Page, streams::Carried};

/// A block on its way into a frame.
#[derive(Clone, Copy, Hash, Debug)]
pub struct Put {
    /// The frame.
    pub slot: Slot,
    /// The generation that its owner announced.
    pub generation: u32,
    /// The bytes.
    pub page: Page,
    /// The redo that travels with the block.
    pub carried: Carried,
}

/// One message, with the block ahead of it.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// The message, encoded.
    pub bytes: [u8; plexus_cache::protocol::Message::LEN],
    /// Its kind.
    pub kind: Kind,
    /// The block.
    pub put: Option<Put>,
    /// True if it uses the lane for blocks.
    pub blocks: bool,
    /// True if it uses a channel of both lanes, over links.
    pub both_lanes: bool,
    /// Its number among the packets of its kind and lane from one worker to another.
    pub number: u64,
}

/// The position of a worker in the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerAddress {
    /// The node.
    pub node: NodeId,
    /// The worker, from 0.
    pub worker: usize,
}

/// The numbers of the paths between workers: one in each direction for each pair of nodes and each
/// worker.
#[derive(Clone, Copy, Debug)]
struct Paths {
    nodes: usize,
    workers: usize,
}

impl Paths {
    fn new(nodes: u8, workers: u8) -> Self {
        Self { nodes: usize::from(nodes), workers: usize::from(workers) }
    }

    fn count(self) -> usize {
        self.nodes * self.nodes * self.workers
    }

    fn between(self, from: WorkerAddress, to: WorkerAddress) -> usize {
        (from.node.index() * self.nodes + to.node.index()) * self.workers + from.worker
    }

    fn ends(self, path: usize) -> (WorkerAddress, WorkerAddress) {
        let (pair, worker) = (path / self.workers, path % self.workers);
        let port = |node: usize| WorkerAddress { node: NodeId(node as u8), worker };
        (port(pair / self.nodes), port(pair % self.nodes))
    }
}

/// An event that a transport schedules for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetEvent {
    /// A frame has arrived on this lane of this rail (or this path, with one rail each).
    Arrived(usize, usize),
    /// There may be room again.
    Room(usize, usize),
    /// The end of a link has handled a frame of this kind.
    Handled(usize, usize),
    /// A rail of the pair with this path has a fault.
    Fault(usize),
    /// The end of a link notices that this incarnation of this rail is over.
    Noticed(usize, usize, u32),
    /// The pair with this path connects this rail again.
    Connect(usize, usize),
    /// The end of a link gets this incarnation of this rail.
    Attach(usize, usize, u32),
    /// The end of a link checks its rails.
    Tick(usize),
}

/// A delivery of a transport.
#[derive(Clone, Copy, Debug)]
pub enum Arrival {
    /// A block is written into a frame.
    Land(WorkerAddress, Put),
    /// A message is ready to be handled.
    Message {
        /// The receiver.
        to: WorkerAddress,
        /// The sender.
        from: NodeId,
        /// What it sent.
        packet: Packet,
    },
}

/// The context of a transport call: events go to the engine, deliveries to `out`.
pub struct Step<'a> {
    /// The engine with the current time.
    pub engine: &'a mut Engine<ClusterEvent>,
    /// The deliveries.
    pub out: &'a mut Vec<Arrival>,
    /// The owner of the events of each node's incarnation.
    pub owners: &'a [usize],
}

/// A transport between workers. Delivers each packet once, those of a lane in the order sent, a put
/// before its message.
pub trait Transport {
    /// Sends a packet now or as soon as there is room.
    fn send(&mut self, step: &mut Step<'_>, from: WorkerAddress, to: WorkerAddress, packet: Packet);

    /// Handles an event that the transport scheduled.
    fn event(&mut self, step: &mut Step<'_>, event: NetEvent);

    /// Stops all failures.
    fn heal(&mut self) {}

    /// Returns the number of rail ends destroyed so far.
    fn rails_lost(&self) -> u64 {
        0
    }

    /// Checks that everything has been delivered once no event is pending.
    ///
    /// # Errors
    /// The packets still under way.
    fn rest(&self) -> Result<(), String>;

    /// Drops everything under way from one node to another, and frees the path.
    fn purge(&mut self, from: NodeId, to: NodeId);

    /// Ends a node for good: part of what it sent is lost.
    fn node_died(&mut self, engine: &mut Engine<ClusterEvent>, node: NodeId);
}
