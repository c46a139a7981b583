//! The registry of a node on worker 0: brings messages and tasks to the replica and carries out its acts.
//!
//! To wire it: [`wire`] makes the service and the handle; the service belongs to worker 0 of the node, which hands it every message of
//! [`Channel::Registry`], every [`RegistryTask`], who comes and goes, and each view that is opened. `memory` is an `Arc<OnceLock<Weak<Membership>>>`
//! that is set when the membership has started. Epochs only grow, also from one run of the cluster to the next. [`Registry::end`] waits until
//! nothing is written any more.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak, mpsc},
};

use plexus_base::{Epoch, Incarnation, NodeId, NodeSet, wire::DecodeError};
use plexus_interconnect::{Bytes, Channel, Kind, Message, Net, Outbox};
use plexus_membership::partitions::Members;

use crate::{
    Copies, CopiesError, Files,
    handle::{Registry, RegistryError},
    keeper::{Keeper, Memory},
    protocol::{self, Act, ClusterName, Command, Gathered, Happened, Refused, Replica, Ticket, View},
    shared::Shared,
};

/// How tasks reach worker 0 of a node.
pub trait Port: Send + Sync {
    /// Hands a task in and sees to it that it is handled.
    fn submit(&self, task: RegistryTask);
}

/// What threads of the node hand to the worker.
pub enum RegistryTask {
    /// Somebody wants a command done.
    Ask(Command, Taker),
    /// Contents up to this generation are durable.
    Saved(u64),
    /// What [`Memory::remember`] answered in this epoch.
    Remembered(Epoch, u64),
}

/// Who is told what becomes of a command.
pub struct Taker(pub(crate) mpsc::Sender<Result<u64, RegistryError>>);

impl Taker {
    fn take(self, answer: Result<u64, RegistryError>) {
        // Who does not wait any more does not want to know.
        let _ = self.0.send(answer);
    }
}

/// What a node's registry is made with.
pub struct Settings {
    /// This node.
    pub me: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The cluster.
    pub cluster: ClusterName,
    /// Where its copies are.
    pub files: Files,
    /// What remembers generations for all.
    pub memory: Arc<dyn Memory>,
}

/// See the module.
pub struct RegistryService {
    replica: Replica,
    cluster: ClusterName,
    memory: Arc<dyn Memory>,
    keeper: Arc<Keeper>,
    shared: Arc<Shared>,
    takers: BTreeMap<Ticket, Taker>,
    tickets: u64,
    acts: Vec<Act>,
    /// To be sent: the frames of a message, made once for all who get it.
    outgoing: Vec<(NodeSet, Vec<Bytes>)>,
    outbox: Outbox<Bytes>,
    gathered: BTreeMap<NodeId, Gathered>,
    /// Who sent what no member sends.
    fault: Option<NodeId>,
}

/// The service for worker 0, to which `port` leads, and the handle for threads of the node.
///
/// # Errors
/// A copy must not be overwritten, or the system refuses a thread.
pub fn wire(settings: Settings, port: &Arc<dyn Port>) -> Result<(RegistryService, Registry), CopiesError> {
    let Settings { me, incarnation, cluster, files, memory } = settings;
    let places = files.places().clone();
    let (copies, opened) = Copies::open(files, cluster)?;
    if opened.is_lost {
        tracing::error!("neither copy of the registry is whole: this node needs what the others have");
    }
    let shared = Arc::new(Shared::new(opened.contents.generation()));
    let weak: Weak<dyn Port> = Arc::downgrade(port);
    let keeper = Keeper::start(copies, Arc::clone(&memory), &shared, &weak)
        .map_err(|source| CopiesError::Io { what: "kept", path: places.path(0).into(), source })?;
    let keeper = Arc::new(keeper);
    let registry = Registry::new(Arc::clone(&keeper), Arc::clone(port), Arc::clone(&shared), cluster, places);
    let service = RegistryService {
        replica: Replica::new(me, incarnation, &opened),
        cluster,
        memory,
        keeper,
        shared,
        takers: BTreeMap::new(),
        tickets: 0,
        acts: Vec::new(),
        outgoing: Vec::new(),
        outbox: Outbox::default(),
        gathered: BTreeMap::new(),
        fault: None,
    };
    Ok((service, registry))
}

impl RegistryService {
    /// A view is open in which this node is a member, newer than the last.
    pub fn view(&mut self, net: &mut Net, members: &Members) {
        self.outbox.view();
        let nodes = members.members.iter().map(|(node, _)| *node).collect();
        self.shared.board().epoch = members.epoch;
        self.handle(Happened::View(View { epoch: members.epoch, members: nodes }));
        self.flush(net);
    }

    /// A peer is there: it is told what it was to be told.
    pub fn peer_up(&mut self, net: &mut Net, peer: NodeId) {
        self.outbox.up(peer).for_each(|frame| send(net, peer, &frame));
    }

    /// A peer is gone, and what it said in part with it.
    pub fn peer_gone(&mut self, peer: NodeId) {
        self.outbox.gone(peer);
        self.gathered.remove(&peer);
    }

    /// Handles a message of [`Channel::Registry`].
    pub fn message(&mut self, net: &mut Net, message: &Message<'_>) {
        match self.decoded(message) {
            Ok(None) => {}
            Ok(Some(decoded)) => {
                self.handle(Happened::Message(message.from, decoded));
                self.flush(net);
            }
            Err(error) => {
                tracing::error!(from = %message.from, %error, "not a message of the registry");
                self.fault = Some(message.from);
            }
        }
    }

    fn decoded(&mut self, message: &Message<'_>) -> Result<Option<protocol::Message>, DecodeError> {
        let whole = self.gathered.entry(message.from).or_default().take(message.payload)?;
        whole.map(|bytes| protocol::Message::decode(self.cluster, &bytes)).transpose()
    }

    /// Handles a task.
    pub fn task(&mut self, net: &mut Net, task: RegistryTask) {
        match task {
            RegistryTask::Ask(_, taker) if self.shared.board().is_stopped => {
                taker.take(Err(RegistryError::Stopped));
            }
            RegistryTask::Ask(command, taker) => {
                self.tickets += 1;
                let ticket = Ticket(self.tickets);
                self.takers.insert(ticket, taker);
                self.handle(Happened::Ask(ticket, command));
            }
            RegistryTask::Saved(generation) => self.handle(Happened::Saved(generation)),
            RegistryTask::Remembered(epoch, known) => self.handle(Happened::Remembered(epoch, known)),
        }
        self.flush(net);
    }

    /// A node that sent what no member sends, once.
    pub fn take_fault(&mut self) -> Option<NodeId> {
        self.fault.take()
    }

    /// Nothing is done any more; whoever waits is told so.
    pub fn stop(&mut self) {
        self.shared.board().is_stopped = true;
        self.shared.wake();
        for (_, taker) in std::mem::take(&mut self.takers) {
            taker.take(Err(RegistryError::Stopped));
        }
    }

    fn handle(&mut self, happened: Happened) {
        let mut acts = std::mem::take(&mut self.acts);
        self.replica.handle(happened, &mut |act| acts.push(act));
        for act in acts.drain(..) {
            self.act(act);
        }
        self.acts = acts;
        self.shared.board().awaited = self.replica.awaited();
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Send(to, message) => {
                let frames = message.frames().into_iter().map(Bytes::from);
                self.outgoing.push((to, frames.collect()));
            }
            Act::Save(contents) => self.keeper.save(contents),
            Act::Remember(epoch, generation) => self.keeper.remember(epoch, generation),
            Act::Show(changed, contents) => {
                self.memory.note(changed.generation);
                let mut board = self.shared.board();
                board.shown = Some(contents);
                board.watches.changed(changed);
                drop(board);
                self.shared.wake();
            }
            Act::Done(ticket, result) => {
                if let Some(taker) = self.takers.remove(&ticket) {
                    taker.take(result.map_err(RegistryError::from));
                }
            }
            Act::Fault(from, what) => {
                tracing::error!(%from, "{what}: the nodes no longer agree on what the registry holds");
                self.fault = Some(from);
            }
        }
    }

    /// Sends what can be sent.
    fn flush(&mut self, net: &mut Net) {
        for (nodes, frames) in self.outgoing.drain(..) {
            for node in nodes.iter() {
                for frame in &frames {
                    if let Some(frame) = self.outbox.pass(node, frame.clone()) {
                        send(net, node, &frame);
                    }
                }
            }
        }
    }
}

fn send(net: &mut Net, to: NodeId, frame: &Bytes) {
    // No link any more: the peer is gone, and a view without it follows.
    let _ = net.send_shared(to, Channel::Registry, Kind::Request, 0, frame);
}

impl From<Refused> for RegistryError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}
