//! The registry of a node on worker 0: brings messages and tasks to the replica and carries out its
//! acts.
//!
//! To wire it, [`wire`] makes the service, a [`Subsystem`] of worker 0, and the handle. `memory` is
//! an `Arc<OnceLock<Weak<Membership>>>` that is set when the membership has started. Epochs only
//! grow, also from one run of the cluster to the next. [`Registry::end`] waits until all writes
//! have ended.

use std::{collections::BTreeMap, sync::Arc};

use plexus_base::{Epoch, Incarnation, NodeId, NodeSet, WorkerId, wire::DecodeError};
use plexus_interconnect::{Bytes, Channel, Kind, Message, Net, Reply};
use plexus_membership::{
    partitions::Members,
    subsystem::{Subsystem, WorkerPort},
};

use crate::{
    Copies, CopiesError, Files,
    handle::{Registry, RegistryError},
    keeper::{Keeper, Memory},
    protocol::{self, Act, ClusterName, Command, Gathered, Happened, Replica, Ticket, View},
    shared::Shared,
};

/// The worker that runs the registry of a node.
pub(crate) const WORKER: WorkerId = WorkerId(0);

/// The answer to a command: the generation that it made or looked at.
pub(crate) type Answer = Result<u64, RegistryError>;

/// The port that brings tasks to the worker.
pub(crate) type RegistryPort = dyn WorkerPort<RegistryService>;

/// A task that a thread of the node gives to the worker.
pub enum RegistryTask {
    /// A command of a client.
    Ask(Command, Reply<Answer>),
    /// Contents up to this generation are durable.
    Saved(u64),
    /// The answer of [`Memory::remember`] in this epoch.
    Remembered(Epoch, u64),
    /// Whether the copies have space for larger contents.
    Room(bool),
    /// Whether the copies can be written.
    CanWrite(bool),
}

/// The settings of a node's registry.
pub struct RegistrySettings {
    /// This node.
    pub me: NodeId,
    /// The incarnation of this node.
    pub incarnation: Incarnation,
    /// The cluster.
    pub cluster: ClusterName,
    /// The copies of this node.
    pub files: Files,
    /// The store that remembers generations for the whole cluster.
    pub memory: Arc<dyn Memory>,
    /// Ends the node at once, for this reason.
    pub end: Arc<dyn Fn(&str) + Send + Sync>,
}

/// The registry on worker 0; see the module.
pub struct RegistryService {
    replica: Replica,
    cluster: ClusterName,
    memory: Arc<dyn Memory>,
    end: Arc<dyn Fn(&str) + Send + Sync>,
    /// The members that keep all commands from being answered, because they cannot write.
    unwritable: NodeSet,
    keeper: Arc<Keeper>,
    shared: Arc<Shared>,
    replies: BTreeMap<Ticket, Reply<Answer>>,
    tickets: u64,
    acts: Vec<Act>,
    gathered: BTreeMap<NodeId, Gathered>,
}

/// Creates the service for worker 0, to which `port` leads, and the handle for threads of the node.
///
/// # Errors
/// A copy must not be overwritten, or the system cannot start a thread.
pub fn wire(
    settings: RegistrySettings,
    port: &Arc<RegistryPort>,
) -> Result<(RegistryService, Registry), CopiesError> {
    let RegistrySettings { me, incarnation, cluster, files, memory, end } = settings;
    let places = files.places().clone();
    let (copies, opened) = Copies::open(files, cluster)?;
    if opened.is_lost {
        tracing::error!("neither copy of the registry is whole: this node needs what the others have");
    }
    let shared = Arc::new(Shared::new(Arc::new(opened.contents.clone())));
    let keeper = Keeper::start(copies, Arc::clone(&memory), &shared, &Arc::downgrade(port))
        .map_err(|source| CopiesError::Io { what: "kept", path: places.path(0).into(), source })?;
    let keeper = Arc::new(keeper);
    let registry = Registry::new(Arc::clone(&keeper), Arc::clone(port), Arc::clone(&shared), cluster, places);
    let mut replica = Replica::new(me, incarnation, &opened);
    let has_room = shared.board().full.is_none();
    replica.handle(Happened::Room(has_room), &mut |_| unreachable!("it is in no view yet"));
    let service = RegistryService {
        replica,
        cluster,
        memory,
        end,
        unwritable: NodeSet::EMPTY,
        keeper,
        shared,
        replies: BTreeMap::new(),
        tickets: 0,
        acts: Vec::new(),
        gathered: BTreeMap::new(),
    };
    Ok((service, registry))
}

impl Subsystem for RegistryService {
    const NAME: &'static str = "registry";
    const CHANNELS: &'static [Channel] = &[Channel::Registry];
    type Task = RegistryTask;

    fn view(&mut self, net: &mut Net, members: &Members) {
        let nodes = members.members.iter().map(|(node, _)| *node).collect();
        self.shared.board().epoch = members.epoch;
        self.handle(net, Happened::View(View { epoch: members.epoch, members: nodes }));
    }

    /// Drops the part of a message that the peer has sent.
    fn peer_lost(&mut self, _: &mut Net, peer: NodeId) {
        self.gathered.remove(&peer);
    }

    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        match self.decoded(&message) {
            Ok(None) => {}
            Ok(Some(decoded)) => self.handle(net, Happened::Message(message.from, decoded)),
            Err(error) => {
                net.fault(message.from, format_args!("not a message of the registry: {error}"));
            }
        }
    }

    fn task(&mut self, net: &mut Net, task: RegistryTask) {
        match task {
            RegistryTask::Ask(..) if self.shared.board().is_stopped => {}
            RegistryTask::Ask(_, reply) if !self.unwritable.is_empty() => {
                reply.send(Err(RegistryError::Unwritable { nodes: self.unwritable, was_sent: false }));
            }
            RegistryTask::Ask(command, reply) => {
                self.tickets += 1;
                let ticket = Ticket(self.tickets);
                self.replies.insert(ticket, reply);
                self.handle(net, Happened::Ask(ticket, command));
            }
            RegistryTask::Saved(generation) => self.handle(net, Happened::Saved(generation)),
            RegistryTask::Remembered(epoch, known) => self.handle(net, Happened::Remembered(epoch, known)),
            RegistryTask::Room(has_room) => self.handle(net, Happened::Room(has_room)),
            RegistryTask::CanWrite(can_write) => self.handle(net, Happened::CanWrite(can_write)),
        }
    }

    /// Stops the service. Dropping the replies wakes the threads that wait.
    fn stop(&mut self) {
        self.shared.board().is_stopped = true;
        self.shared.wake();
        self.replies.clear();
    }
}

impl RegistryService {
    fn decoded(&mut self, message: &Message<'_>) -> Result<Option<protocol::Message>, DecodeError> {
        let whole = self.gathered.entry(message.from).or_default().take(message.payload)?;
        whole.map(|bytes| protocol::Message::decode(self.cluster, &bytes)).transpose()
    }

    fn handle(&mut self, net: &mut Net, happened: Happened) {
        let mut acts = std::mem::take(&mut self.acts);
        self.replica.handle(happened, &mut |act| acts.push(act));
        for act in acts.drain(..) {
            self.act(net, act);
        }
        self.acts = acts;
        self.shared.board().awaited = self.replica.awaited();
    }

    fn act(&mut self, net: &mut Net, act: Act) {
        match act {
            // The frames of a message are made once for all receivers.
            Act::Send(to, message) => {
                let frames: Vec<_> = message.frames().into_iter().map(Bytes::from).collect();
                for (node, frame) in to.iter().flat_map(|node| frames.iter().map(move |frame| (node, frame)))
                {
                    net.send_shared_to_member(node, Channel::Registry, Kind::Request, frame);
                }
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
                if let Some(reply) = self.replies.remove(&ticket) {
                    reply.send(result.map_err(RegistryError::Refused));
                }
            }
            Act::Unwritable(nodes) => {
                self.unwritable = nodes;
                if !nodes.is_empty() {
                    for reply in std::mem::take(&mut self.replies).into_values() {
                        reply.send(Err(RegistryError::Unwritable { nodes, was_sent: true }));
                    }
                }
            }
            Act::Leave => {
                let why = self.shared.board().trouble.join("; ");
                (self.end)(&format!(
                    "it cannot write its copies of the registry, and the other members go on without it: {why}"
                ));
            }
            Act::Fault(from, what) => {
                net.fault(from, format_args!("{what}: the nodes no longer agree on what the registry holds"));
            }
        }
    }
}
