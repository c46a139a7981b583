//! The registered clients of a node: connects the protocol to their threads.
//!
//! A client that does not read its events is removed from its group, so that no member waits for it
//! and its queue stays bounded.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Release},
    },
};

use plexus_base::{Incarnation, NodeId};
use plexus_interconnect::Reply;

use super::protocol::{Action, Deed, GroupRefusal, Groups as Protocol, Happened, Message, Name, Refused};
use crate::protocol::partitions::Members;

/// The most unread events of a member.
pub const MOST_UNREAD: usize = 4096;

/// Takes an event of a client. Returns false if the client has too many that it has not read.
pub type Tell = Box<dyn FnMut(Happened) -> bool + Send>;

/// A task that a thread of the node gives to the worker.
pub enum GroupTask {
    /// A client joins a group.
    Join {
        /// The number of the client.
        client: u64,
        /// The group.
        group: Name,
        /// Takes the events of the client.
        tell: Tell,
        /// Set before `tell` is dropped because the client did not read it.
        removed: Arc<AtomicBool>,
        /// The reply that says whether the request was accepted.
        taken: Reply<Result<(), Refused>>,
    },
    /// A member does something.
    Do {
        /// The number of the client.
        client: u64,
        /// The group.
        group: Name,
        /// The deed.
        deed: Deed,
        /// The reply that says whether the deed was accepted.
        taken: Reply<Result<(), Refused>>,
    },
    /// A member leaves.
    Leave {
        /// The number of the client.
        client: u64,
        /// The group.
        group: Name,
        /// True if the member failed.
        died: bool,
    },
}

/// A registered client of this node.
struct Client {
    group: Name,
    tell: Tell,
    removed: Arc<AtomicBool>,
}

/// The registered clients and the protocol; see the module.
pub(super) struct GroupClients {
    groups: Protocol,
    clients: BTreeMap<u64, Client>,
    /// Messages to send, in this order.
    pub(super) sends: Vec<(NodeId, Message)>,
    /// Nodes that sent a message that no correct member sends, with the reason.
    pub(super) faults: Vec<(NodeId, &'static str)>,
    is_over: bool,
}

impl GroupClients {
    pub(super) fn new(me: NodeId, incarnation: Incarnation) -> Self {
        let groups = Protocol::new(me, incarnation);
        Self { groups, clients: BTreeMap::new(), sends: Vec::new(), faults: Vec::new(), is_over: false }
    }

    pub(super) fn view(&mut self, view: &Members) {
        let mut actions = Vec::new();
        self.groups.view(view, &mut actions);
        self.carry_out(actions);
    }

    pub(super) fn message(&mut self, from: NodeId, incarnation: Incarnation, message: Message) {
        let mut actions = Vec::new();
        self.groups.message(from, incarnation, message, &mut actions);
        self.carry_out(actions);
    }

    /// Handles a task. When the service has ended, dropping the reply tells the client.
    pub(super) fn task(&mut self, task: GroupTask) {
        if self.is_over {
            return;
        }
        let mut actions = Vec::new();
        match task {
            GroupTask::Join { client, group, tell, removed, taken } => {
                let answer = self.groups.submit(client, group.clone(), Deed::Join, &mut actions);
                if answer.is_ok() {
                    self.clients.insert(client, Client { group, tell, removed });
                }
                // A client that no longer waits for the answer leaves as well.
                taken.send(answer);
            }
            GroupTask::Do { client, group, deed, taken } => {
                if self.clients.contains_key(&client) {
                    taken.send(self.groups.submit(client, group, deed, &mut actions));
                }
            }
            GroupTask::Leave { client, group, died } => {
                if self.clients.contains_key(&client) {
                    self.leave(client, group, died, &mut actions);
                }
            }
        }
        self.carry_out(actions);
    }

    /// Stops the service: drops all clients, who get no more events.
    pub(super) fn stop(&mut self) {
        self.is_over = true;
        self.clients.clear();
    }

    fn leave(&mut self, client: u64, group: Name, died: bool, actions: &mut Vec<Action>) {
        self.groups.submit(client, group, Deed::Leave { died }, actions).expect("leaving is always taken");
    }

    fn carry_out(&mut self, mut actions: Vec<Action>) {
        while !actions.is_empty() {
            let mut more = Vec::new();
            for action in actions {
                match action {
                    Action::Send { to, message } => self.sends.push((to, message)),
                    Action::Tell { client, what, .. } => self.tell(client, what, &mut more),
                    Action::Opened(epoch, applied, _) => {
                        tracing::debug!(epoch = epoch.0, applied, "groups go on in a view");
                    }
                    Action::Fault { from, what } => self.faults.push((from, what)),
                }
            }
            actions = more;
        }
    }

    fn tell(&mut self, client: u64, what: Happened, actions: &mut Vec<Action>) {
        let Some(Client { group, tell, removed }) = self.clients.get_mut(&client) else { return };
        let is_last = matches!(
            what,
            Happened::Left
                | Happened::Refused(GroupRefusal::Members | GroupRefusal::Groups | GroupRefusal::Node)
        );
        let is_read = tell(what);
        if is_last {
            self.clients.remove(&client);
        } else if !is_read {
            removed.store(true, Release);
            let group = group.clone();
            self.clients.remove(&client);
            self.leave(client, group, true, actions);
        }
    }
}
