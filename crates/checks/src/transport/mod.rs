//! How messages and blocks travel between the workers of a simulated cluster.

mod direct;
mod linked;

use plexus_base::NodeId;
use plexus_cache::protocol::{Kind, Slot};
use plexus_sim::Engine;

pub use direct::Direct;
pub use linked::Linked;

use crate::{cluster::Ev, page::Page};

/// A block on its way into a frame.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// The frame.
    pub slot: Slot,
    /// The generation that its owner announced.
    pub generation: u32,
    /// The bytes.
    pub page: Page,
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
    /// It goes on the lane for blocks.
    pub blocks: bool,
    /// Over links it goes on a channel of both lanes.
    pub both_lanes: bool,
    /// Its place among the packets of its kind and lane from one worker to another.
    pub number: u64,
}

/// A worker's place among all workers of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    /// The node.
    pub node: NodeId,
    /// The worker, from 0.
    pub worker: usize,
}

/// Numbers for the paths between workers: one in each direction for each pair of nodes and each worker.
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

    fn between(self, from: Port, to: Port) -> usize {
        (from.node.index() * self.nodes + to.node.index()) * self.workers + from.worker
    }

    fn ends(self, path: usize) -> (Port, Port) {
        let (pair, worker) = (path / self.workers, path % self.workers);
        let port = |node: usize| Port { node: NodeId(node as u8), worker };
        (port(pair / self.nodes), port(pair % self.nodes))
    }
}

/// What a transport asks to be told later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetEvent {
    /// A frame has arrived on this lane of this rail (or, with one rail for each, this path).
    Arrived(usize, usize),
    /// There may be room again.
    Room(usize, usize),
    /// The end of a link has handled a frame of this kind.
    Handled(usize, usize),
    /// Something happens to a rail of the pair with this path.
    Fault(usize),
    /// The end of a link notices that this incarnation of this rail is over.
    Noticed(usize, usize, u32),
    /// The pair with this path connects this rail again.
    Connect(usize, usize),
    /// The end of a link gets this incarnation of this rail.
    Attach(usize, usize, u32),
    /// The end of a link looks at its rails.
    Tick(usize),
}

/// What a transport brings.
#[derive(Clone, Copy, Debug)]
pub enum Arrival {
    /// A block is written into a frame.
    Land(Port, Put),
    /// A message is to be handled.
    Message {
        /// The receiver.
        to: Port,
        /// The sender.
        from: NodeId,
        /// What it sent.
        packet: Packet,
    },
}

/// What happens is told to the engine for later, or has arrived now.
pub struct Step<'a> {
    /// Whose time it is.
    pub engine: &'a mut Engine<Ev>,
    /// Where it goes.
    pub out: &'a mut Vec<Arrival>,
    /// By node: the owner of the events of its incarnation.
    pub owners: &'a [usize],
}

/// The way between workers. Delivers each packet once, those of a lane in the order sent, a put before its message.
pub trait Transport {
    /// Sends now or as soon as there is room.
    fn send(&mut self, step: &mut Step<'_>, from: Port, to: Port, packet: Packet);

    /// What it asked to be told has come.
    fn event(&mut self, step: &mut Step<'_>, event: NetEvent);

    /// No more failures.
    fn heal(&mut self) {}

    /// Ends of rails that were destroyed so far.
    fn rails_lost(&self) -> u64 {
        0
    }

    /// Whether everything has been delivered, once nothing happens any more.
    ///
    /// # Errors
    /// What is still under way.
    fn rest(&self) -> Result<(), String>;

    /// What is under way from one node to another is gone, and the way is free.
    fn purge(&mut self, from: NodeId, to: NodeId);

    /// A node is dead for good: part of what it sent is gone.
    fn node_died(&mut self, engine: &mut Engine<Ev>, node: NodeId);
}
