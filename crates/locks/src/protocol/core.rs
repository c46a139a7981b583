//! The state that both halves of a shard share: configuration, view and outgoing messages.

use std::collections::VecDeque;

use plexus_base::{Nanos, NodeId};

use super::{Action, Config, Counts, Masters, Members, Message, PartitionSlot, message::LockMessage};

#[derive(Clone, Debug)]
pub(super) struct ShardCore {
    pub(super) config: Config,
    pub(super) now: Nanos,
    pub(super) view: Members,
    pub(super) masters: Masters,
    /// Messages to this node itself, which never leave it.
    pub(super) inbox: VecDeque<LockMessage>,
    pub(super) out: Vec<Action>,
    pub(super) counts: Counts,
}

impl ShardCore {
    pub(super) fn send(&mut self, to: NodeId, body: LockMessage) {
        if to == self.config.me {
            self.inbox.push_back(body);
        } else {
            let message = Message { epoch: self.view.epoch, body };
            self.out.push(Action::Send { to, message });
        }
    }

    pub(super) fn ask_master(&mut self, place: PartitionSlot, body: LockMessage) {
        self.send(self.masters.of(place).master, body);
    }

    pub(super) fn fault(&mut self, from: NodeId, what: &'static str) {
        self.counts.faults += 1;
        self.out.push(Action::Fault { from, what });
    }
}
