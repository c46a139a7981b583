//! Between the protocol and the clients of a node: who is told what, and what is to be sent.
//!
//! Whoever does not read what it is told is put out of its group, so that nobody waits for it and nothing piles up.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Release},
        mpsc::SyncSender,
    },
};

use plexus_base::{Incarnation, NodeId};
use plexus_interconnect::Reply;

use super::protocol::{Action, Deed, Groups as Protocol, Happened, Message, Name, Refused, Why};
use crate::protocol::partitions::Members;

/// What a member is told and has not read, at most.
pub const MOST_UNREAD: usize = 4096;

/// What threads of the node hand to the worker.
pub enum GroupTask {
    /// A client joins.
    Join {
        /// Its number.
        client: u64,
        /// The group.
        group: Name,
        /// How it is told what happens.
        tell: SyncSender<Happened>,
        /// Set before it is told nothing more because it did not read.
        put_out: Arc<AtomicBool>,
        /// Who is told whether that was taken.
        taken: Reply<Result<(), Refused>>,
    },
    /// A member does something.
    Do {
        /// Its number.
        client: u64,
        /// The group.
        group: Name,
        /// What.
        deed: Deed,
        /// Who is told whether that was taken.
        taken: Reply<Result<(), Refused>>,
    },
    /// A member is none any more.
    Leave {
        /// Its number.
        client: u64,
        /// The group.
        group: Name,
        /// It did not mean to.
        died: bool,
    },
}

/// A client of this node.
struct Client {
    group: Name,
    tell: SyncSender<Happened>,
    put_out: Arc<AtomicBool>,
}

/// See the module.
pub(super) struct Desk {
    groups: Protocol,
    clients: BTreeMap<u64, Client>,
    /// To be sent, in this order.
    pub(super) sends: Vec<(NodeId, Message)>,
    /// Nodes that sent what no member sends, and what it was.
    pub(super) faults: Vec<(NodeId, &'static str)>,
    is_over: bool,
}

impl Desk {
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

    /// Who asks learns that it is over by what it waits for being dropped.
    pub(super) fn task(&mut self, task: GroupTask) {
        if self.is_over {
            return;
        }
        let mut actions = Vec::new();
        match task {
            GroupTask::Join { client, group, tell, put_out, taken } => {
                let answer = self.groups.submit(client, group.clone(), Deed::Join, &mut actions);
                if answer.is_ok() {
                    self.clients.insert(client, Client { group, tell, put_out });
                }
                // A client that no longer waits leaves as well.
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

    /// Nobody is told anything any more.
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
        let Some(Client { group, tell, put_out }) = self.clients.get(&client) else { return };
        let is_last =
            matches!(what, Happened::Left | Happened::Refused(Why::Members | Why::Groups | Why::Node));
        let is_read = tell.try_send(what).is_ok();
        if is_last {
            self.clients.remove(&client);
        } else if !is_read {
            put_out.store(true, Release);
            let group = group.clone();
            self.clients.remove(&client);
            self.leave(client, group, true, actions);
        }
    }
}
