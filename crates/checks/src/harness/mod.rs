//! The simulated cluster that all protocols share: node incarnations, lanes, kills, restarts,
//! views.
//!
//! [`Cluster`] is data. A scenario drives it with the times of a [`plexus_sim::Engine`], all drawn
//! from one seed. [`explore`] drives it through every order of events in a small scope. The
//! scenario decides how a node handles a message or a view.

pub mod chance;
pub mod explore;
pub mod run;

use std::collections::{BTreeMap, VecDeque};

use plexus_base::{Incarnation, NodeId};

pub use run::{Outcome, Simulation, breaks, run_seed};

/// A node in one of its incarnations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Instance {
    /// The number of the node.
    pub node: usize,
    /// The number of the incarnation, counted from 1.
    pub incarnation: u64,
}

impl Instance {
    /// Returns the node and incarnation in the form that views use.
    pub fn member(self) -> (NodeId, Incarnation) {
        (NodeId(self.node as u8), Incarnation(self.incarnation))
    }
}

/// An ordered stream: messages of one class between two instances.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lane {
    /// The sender.
    pub from: Instance,
    /// The receiver.
    pub to: Instance,
    /// The class; messages of different classes overtake each other.
    pub class: usize,
}

#[derive(Clone, Hash)]
struct Queue<M> {
    messages: VecDeque<M>,
    /// The arrival time of the last message.
    last: u64,
}

#[derive(Clone, Hash)]
struct Slot<N> {
    incarnation: u64,
    up: Option<N>,
}

/// Nodes with a state `N` each while they are up, and the messages `M` between them.
#[derive(Clone, Hash)]
pub struct Cluster<N, M> {
    slots: Vec<Slot<N>>,
    lanes: BTreeMap<Lane, Queue<M>>,
}

impl<N, M> Cluster<N, M> {
    /// Creates nodes that were never up.
    pub fn new(nodes: usize) -> Self {
        let slot = |_| Slot { incarnation: 0, up: None };
        Self { slots: (0..nodes).map(slot).collect(), lanes: BTreeMap::new() }
    }

    /// Returns all node numbers.
    pub fn nodes(&self) -> std::ops::Range<usize> {
        0..self.slots.len()
    }

    /// Starts the next incarnation of a node.
    pub fn start(&mut self, node: usize, state: impl FnOnce(Instance) -> N) -> Instance {
        self.slots[node].incarnation += 1;
        let instance = self.instance(node);
        self.slots[node].up = Some(state(instance));
        instance
    }

    /// Ends the incarnation of a node, and returns its state, or `None` if it is down. `left`
    /// decides how many of its last messages on each lane were sent; the others are lost.
    pub fn kill(&mut self, node: usize, mut left: impl FnMut(&Lane, usize) -> usize) -> Option<N> {
        let instance = self.instance(node);
        let state = self.slots[node].up.take()?;
        for (lane, queue) in self.lanes.iter_mut().filter(|(lane, _)| lane.from == instance) {
            queue.messages.truncate(left(lane, queue.messages.len()));
        }
        Some(state)
    }

    /// Drops the messages under way on some lanes.
    pub fn silence(&mut self, is_silent: impl Fn(&Lane) -> bool) {
        self.lanes.retain(|lane, _| !is_silent(lane));
    }

    /// Removes lanes without messages, so that clusters that differ in nothing else are equal.
    fn tidy(&mut self) {
        self.lanes.retain(|_, queue| !queue.messages.is_empty());
    }

    /// Returns the last incarnation of a node.
    pub fn instance(&self, node: usize) -> Instance {
        Instance { node, incarnation: self.slots[node].incarnation }
    }

    /// Returns true if exactly this incarnation is up.
    pub fn is_up(&self, instance: Instance) -> bool {
        let slot = &self.slots[instance.node];
        slot.up.is_some() && slot.incarnation == instance.incarnation
    }

    /// Returns the state of a node that is up.
    pub fn node(&self, node: usize) -> Option<&N> {
        self.slots[node].up.as_ref()
    }

    /// Returns the state of a node that is up.
    pub fn node_mut(&mut self, node: usize) -> Option<&mut N> {
        self.slots[node].up.as_mut()
    }

    /// Returns all nodes that are up.
    pub fn up(&self) -> impl Iterator<Item = (usize, &N)> {
        self.slots.iter().enumerate().filter_map(|(node, slot)| Some((node, slot.up.as_ref()?)))
    }

    /// Returns the incarnations that are up.
    pub fn instances(&self) -> Vec<Instance> {
        self.up().map(|(node, _)| self.instance(node)).collect()
    }

    /// Returns the incarnations that are up, as the members of a view.
    pub fn members(&self) -> Vec<(NodeId, Incarnation)> {
        self.instances().into_iter().map(Instance::member).collect()
    }

    /// Sends a message that takes `delay` from `now`, and returns its arrival time. It never
    /// arrives before an earlier message of its lane.
    pub fn send(&mut self, lane: Lane, message: M, now: u64, delay: u64) -> u64 {
        let queue = self.lanes.entry(lane).or_insert_with(|| Queue { messages: VecDeque::new(), last: 0 });
        queue.messages.push_back(message);
        queue.last = queue.last.max(now + delay);
        queue.last - now
    }

    /// Takes the next message of a lane, if its receiver is up.
    pub fn receive(&mut self, lane: Lane) -> Option<M> {
        self.receive_nth(lane, |_| 0)
    }

    /// Takes one message of a lane if its receiver is up; `nth` chooses its position from the
    /// number of messages.
    pub fn receive_nth(&mut self, lane: Lane, nth: impl FnOnce(usize) -> usize) -> Option<M> {
        let queue = &mut self.lanes.get_mut(&lane)?.messages;
        let nth = if queue.is_empty() { 0 } else { nth(queue.len()) };
        let message = queue.remove(nth)?;
        self.is_up(lane.to).then_some(message)
    }

    /// Returns the lanes with messages under way.
    pub fn busy(&self) -> impl Iterator<Item = Lane> {
        self.lanes.iter().filter(|(_, queue)| !queue.messages.is_empty()).map(|(lane, _)| *lane)
    }

    /// Returns the messages under way.
    pub fn messages(&self) -> impl Iterator<Item = &M> {
        self.lanes.values().flat_map(|queue| &queue.messages)
    }

    /// Returns the number of messages under way on a lane.
    pub fn under_way(&self, lane: Lane) -> usize {
        self.lanes.get(&lane).map_or(0, |queue| queue.messages.len())
    }
}
