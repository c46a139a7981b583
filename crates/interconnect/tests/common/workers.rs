//! Workers of some nodes in one process, each with a link to every other.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread::{self, JoinHandle},
};

use plexus_base::{Incarnation, NodeId, Waiting};
use plexus_fabric::{Bell, Lost, Windows};
use plexus_interconnect::{Channel, Message, Net, Service, Signal, Worker, WorkerParts};

use crate::pairs::{Kind, Own, pair_of};

/// Answers calls with their payload, and calls when its task requests it.
#[derive(Default)]
pub(crate) struct Echo {
    waiting: BTreeMap<u64, Arc<Signal>>,
    next: u64,
}

pub(crate) struct Call {
    to: NodeId,
    payload: Vec<u8>,
    signal: Arc<Signal>,
}

impl Service for Echo {
    type Task = Call;

    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        net.answer(message, message.payload).unwrap();
    }

    fn task(&mut self, net: &mut Net, Call { to, payload, signal }: Call) {
        self.next += 1;
        net.call(to, Channel::Services, &payload, self.next).unwrap();
        self.waiting.insert(self.next, signal);
    }

    /// The signal's answer is the number at the front of the reply.
    fn reply(&mut self, _net: &mut Net, _from: NodeId, _: Channel, token: u64, payload: &[u8]) {
        let number = u64::from_le_bytes(payload[..8].try_into().unwrap());
        self.waiting.remove(&token).unwrap().set(number);
    }

    fn peer_gone(&mut self, _net: &mut Net, _peer: NodeId, _why: &Lost) {}
}

/// A worker, its windows, and its background thread.
pub(crate) struct Node {
    pub(crate) worker: Worker<Echo>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) windows: Arc<Windows>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    pub(crate) fn new(me: usize, waiting: Waiting) -> Self {
        let Own { bell, windows, .. } = Own::new();
        let me = NodeId(me as u8);
        let worker = Worker::new(WorkerParts::alone(me, bell.clone(), waiting), Echo::default()).unwrap();
        Self { worker, bell, windows, thread: None }
    }

    /// The parts of which one more rail of the node is built.
    pub(crate) fn own(&self) -> Own {
        Own::with(self.bell.clone(), self.windows.clone())
    }

    /// Starts the background thread; `first` is its first act.
    pub(crate) fn start(&mut self, first: impl FnOnce() + Send + 'static) {
        let worker = self.worker.clone();
        self.thread = Some(thread::spawn(move || {
            first();
            worker.run().unwrap();
        }));
    }

    /// Calls `to` with `len` bytes, `number` in front, from the thread of `signal`.
    pub(crate) fn call(&self, to: usize, len: usize, number: u64, signal: &Arc<Signal>) {
        let mut payload = vec![7; len.max(8)];
        payload[..8].copy_from_slice(&number.to_le_bytes());
        self.worker.push(Call { to: NodeId(to as u8), payload, signal: signal.clone() });
        assert_eq!(self.worker.wait(signal), number);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.worker.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// So many nodes, each connected with every other; their threads are not started yet.
pub(crate) fn mesh(nodes: usize, kind: Kind, waiting: Waiting) -> Vec<Node> {
    let made: Vec<Node> = (0..nodes).map(|me| Node::new(me, waiting)).collect();
    for one in 0..nodes {
        for other in 0..one {
            let (a, b) = pair_of(kind, made[one].own(), made[other].own());
            made[one].worker.add_rail(NodeId(other as u8), Incarnation(1), 0, 1, a.rail, String::new());
            made[other].worker.add_rail(NodeId(one as u8), Incarnation(1), 0, 1, b.rail, String::new());
        }
    }
    made
}
