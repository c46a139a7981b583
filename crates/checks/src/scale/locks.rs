//! Counts the lock manager's messages in clusters of any size, with the code that nodes run.

use std::collections::VecDeque;

use plexus_base::{Epoch, Incarnation, Nanos, NodeId, WorkerId};
use plexus_locks::protocol::{
    Action, Config, Event, LockId, LockRequest, Members, Message, Mode, Name, NewLock, Owner, RequestKind,
    Shard, WaitLimit,
};

/// The locks that each node holds when the members change.
pub const HELD: u64 = 1_000;

/// A count of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MessageCount {
    /// Messages between nodes.
    pub messages: u64,
    /// The longest chain of messages in which each answers the one before.
    pub row: u64,
}

/// The message costs of the locks of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traffic {
    /// The cost to take [`HELD`] own locks on every node and release them.
    pub locks: MessageCount,
    /// The cost of a node's death, from the view without it until the last master opens; every node
    /// holds [`HELD`].
    pub death: MessageCount,
    /// The cost of its next incarnation, in the same way.
    pub join: MessageCount,
}

/// A message under way: the length of its chain, sender, receiver.
type UnderWay = (u64, usize, usize, Message);

struct Cluster {
    shards: Vec<Option<Shard>>,
    incarnations: Vec<Incarnation>,
    under_way: VecDeque<UnderWay>,
    next: u64,
    granted: u64,
    opened: u64,
    said: MessageCount,
}

/// Counts the messages of a cluster of `nodes` nodes.
///
/// # Panics
/// A lock is not granted, or a view does not open: no fault happens here.
pub fn traffic(nodes: usize) -> Traffic {
    let mut cluster = Cluster {
        shards: (0..nodes).map(|_| None).collect(),
        incarnations: vec![Incarnation(1); nodes],
        under_way: VecDeque::new(),
        next: 0,
        granted: 0,
        opened: 0,
        said: MessageCount::default(),
    };
    cluster.view(1, nodes);
    cluster.lock_all();
    cluster.unlock_all();
    let locks = cluster.said();
    cluster.lock_all();
    cluster.said();
    cluster.shards[nodes - 1] = None;
    cluster.view(2, nodes - 1);
    let death = cluster.said();
    cluster.incarnations[nodes - 1] = Incarnation(2);
    cluster.view(3, nodes);
    Traffic { locks, death, join: cluster.said() }
}

impl Cluster {
    fn said(&mut self) -> MessageCount {
        std::mem::take(&mut self.said)
    }

    /// Makes the first `count` nodes the members.
    fn view(&mut self, epoch: u32, count: usize) {
        let members = (0..count).map(|node| (NodeId(node as u8), self.incarnations[node])).collect();
        let view = Members { epoch: Epoch(epoch), members };
        self.opened = 0;
        for node in 0..count {
            if self.shards[node].is_some() {
                self.handle(0, node, Event::View(view.clone()));
                continue;
            }
            let config = Config {
                me: NodeId(node as u8),
                incarnation: self.incarnations[node],
                worker: WorkerId(0),
                workers: 1,
                deadlock_ns: u64::MAX / 2,
                waiting_max: 1,
                locks_max: usize::MAX,
            };
            let mut actions = Vec::new();
            self.shards[node] = Some(Shard::new(config, view.clone(), &mut actions));
            self.act(0, node, actions);
        }
        self.settle();
        assert_eq!(self.opened, count as u64, "all open");
    }

    fn lock_all(&mut self) {
        let nodes = self.shards.len();
        self.granted = 0;
        for (node, number) in (0..nodes).flat_map(|node| (0..HELD).map(move |number| (node, number))) {
            self.next += 1;
            let lock = LockId(self.next);
            let name = Name::new(format!("scale/{node}/{number}").as_bytes()).expect("a name");
            let (owner, mode, timeout) = (Owner(1), Mode::EX, WaitLimit::Forever);
            self.handle(
                0,
                node,
                Event::Request(LockRequest {
                    lock,
                    mode,
                    timeout,
                    kind: RequestKind::New(NewLock { owner, start_time: 0, name, notify: false }),
                }),
            );
        }
        self.settle();
        assert_eq!(self.granted, nodes as u64 * HELD, "all are granted");
    }

    fn unlock_all(&mut self) {
        for node in 0..self.shards.len() {
            let held: Vec<LockId> =
                self.shards[node].iter().flat_map(Shard::locks).map(|(lock, _)| lock).collect();
            for lock in held {
                self.handle(0, node, Event::Unlock { lock, value: None });
            }
        }
        self.settle();
    }

    /// Delivers all messages under way, one link of the chains at a time.
    fn settle(&mut self) {
        while let Some((row, from, to, message)) = self.under_way.pop_front() {
            self.said.row = self.said.row.max(row);
            let from_incarnation = self.incarnations[from];
            self.handle(
                row,
                to,
                Event::Message { from: NodeId(from as u8), incarnation: from_incarnation, message },
            );
        }
    }

    fn handle(&mut self, row: u64, node: usize, event: Event) {
        let mut actions = Vec::new();
        if let Some(shard) = &mut self.shards[node] {
            shard.handle(Nanos(1), event, &mut actions);
        }
        self.act(row, node, actions);
    }

    fn act(&mut self, row: u64, node: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { to, message } => {
                    self.said.messages += 1;
                    self.under_way.push_back((row + 1, node, to.index(), message));
                }
                Action::Granted { .. } => self.granted += 1,
                Action::Open { .. } => self.opened += 1,
                Action::Tell { .. } | Action::Blocking { .. } => {}
                Action::Refused { why, .. } => panic!("refused: {why:?}"),
                Action::Fault { from, what } => panic!("{from}: {what}"),
            }
        }
    }
}
