//! What runs on each worker of a node: the cache, the lock manager, on worker 0 the groups and the registry, the programs attached to the node, and a port for every channel that nothing of the node uses.

use std::sync::{Arc, OnceLock, Weak, mpsc};

use plexus_attach::Programs;
use plexus_base::{Epoch, Incarnation, NodeId, WorkerId};
use plexus_cache::{CacheService, CacheTask, Port as CachePort};
use plexus_disks::Pool;
use plexus_fabric::Lost;
use plexus_interconnect::{Channel, Message, Net, Service, Signal, Worker};
use plexus_locks::{LockService, LockTask, Port as LockPort};
use plexus_membership::{
    groups::{GroupService, GroupTask, Port as GroupPort},
    partitions::Members,
    protocol::Before,
};

use plexus_registry::{Port as RegistryPort, RegistryService, RegistryTask};

use crate::{member::Member, port::Ports};

/// What workers tell the node.
#[derive(Debug)]
pub(crate) enum News {
    /// The link to a peer was lost, as one worker saw it.
    Lost { peer: NodeId, incarnation: Incarnation, why: Lost },
    /// A peer sent what no member sends.
    Fault { peer: NodeId, incarnation: Incarnation },
    /// Nothing more: the node ends.
    End,
}

/// What threads of the node hand to a worker.
pub enum NodeTask {
    /// For the cache.
    Cache(CacheTask),
    /// For the lock manager.
    Lock(LockTask),
    /// For the groups; of worker 0.
    Group(GroupTask),
    /// For the registry; of worker 0.
    Registry(RegistryTask),
    /// Shows that the worker takes up what it is handed.
    Pulse,
}

/// See the module.
pub struct NodeService {
    cache: CacheService,
    locks: LockService,
    /// On worker 0.
    groups: Option<GroupService>,
    registry: Option<RegistryService>,
    ports: Ports,
    programs: Programs,
    member: Weak<Member>,
    news: mpsc::Sender<News>,
    /// The view whose caches and locks are being rebuilt.
    rebuilding: Option<Epoch>,
}

impl NodeService {
    pub(crate) fn new(
        cache: CacheService,
        locks: LockService,
        groups: Option<GroupService>,
        registry: Option<RegistryService>,
        programs: Programs,
        member: Weak<Member>,
        news: mpsc::Sender<News>,
    ) -> Self {
        Self {
            cache,
            locks,
            groups,
            registry,
            ports: Ports::default(),
            programs,
            member,
            news,
            rebuilding: None,
        }
    }

    /// The next view is open: whoever is not in it has stopped.
    pub(crate) fn view(&mut self, net: &mut Net, members: &Members, before: Before) {
        self.cache.view(net, members, before);
        self.locks.view(net, members.clone());
        if let Some(groups) = &mut self.groups {
            groups.view(net, members);
        }
        if let Some(registry) = &mut self.registry {
            registry.view(net, members);
        }
        self.rebuilding = Some(members.epoch);
        self.check(net);
    }

    /// Whether a peer has sent what no member sends, or the view is rebuilt.
    #[inline]
    fn check(&mut self, net: &Net) {
        let of_groups = self.groups.as_mut().and_then(GroupService::take_fault);
        let of_registry = self.registry.as_mut().and_then(RegistryService::take_fault);
        let of_cache = self.cache.take_fault();
        let fault = of_groups.or(of_registry).or(of_cache).or_else(|| self.locks.take_fault());
        // Of the incarnation that the link led to over which it came: the view that the node acts in may not have it yet, or have the one before.
        if let Some((peer, incarnation)) = fault.and_then(|peer| Some((peer, net.incarnation(peer)?))) {
            // Nobody listens any more: the node is ending.
            let _ = self.news.send(News::Fault { peer, incarnation });
        }
        if let Some(epoch) = self.rebuilding
            && self.cache.is_open()
            && self.locks.is_open()
            && let Some(member) = self.member.upgrade()
        {
            self.rebuilding = None;
            member.rebuilt(epoch);
        }
    }
}

impl NodeService {
    /// The programs on this worker.
    pub(crate) fn programs(&mut self) -> &mut Programs {
        &mut self.programs
    }

    /// The others go on without this node: what is held here is worth nothing from now on, and nothing is granted.
    pub(crate) fn stop(&mut self) {
        self.locks.stop();
        if let Some(groups) = &mut self.groups {
            groups.stop();
        }
        if let Some(registry) = &mut self.registry {
            registry.stop();
        }
    }

    /// Ends what programs have; for the rest see [`CacheService::end`].
    pub(crate) fn end(&mut self) -> Option<Pool> {
        self.programs.close();
        self.stop();
        self.cache.end()
    }
}

impl AsMut<Ports> for NodeService {
    fn as_mut(&mut self) -> &mut Ports {
        &mut self.ports
    }
}

impl Service for NodeService {
    type Task = NodeTask;

    #[inline]
    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        match message.channel {
            Channel::CacheRequests | Channel::CacheBlocks => {
                self.cache.message(net, message);
                self.check(net);
            }
            Channel::Locks => {
                self.locks.message(net, &message);
                self.check(net);
            }
            Channel::Membership => {
                if let Some(groups) = &mut self.groups {
                    groups.message(net, &message);
                    self.check(net);
                }
            }
            Channel::Registry => {
                if let Some(registry) = &mut self.registry {
                    registry.message(net, &message);
                    self.check(net);
                }
            }
            channel if Programs::uses(channel) => self.programs.message(net, message),
            _ if self.ports.message(net, message) => {}
            channel => tracing::debug!(from = %message.from, "nothing here listens to {}", channel.name()),
        }
    }

    #[inline]
    fn task(&mut self, net: &mut Net, task: NodeTask) {
        match task {
            NodeTask::Cache(task) => self.cache.task(net, task),
            NodeTask::Lock(task) => self.locks.task(net, task),
            NodeTask::Group(task) => {
                if let Some(groups) = &mut self.groups {
                    groups.task(net, task);
                }
            }
            NodeTask::Registry(task) => {
                if let Some(registry) = &mut self.registry {
                    registry.task(net, task);
                }
            }
            NodeTask::Pulse => {
                if let Some(member) = self.member.upgrade() {
                    member.pulse(net.worker());
                }
            }
        }
        self.check(net);
    }

    fn reply(&mut self, net: &mut Net, from: NodeId, token: u64, payload: &[u8]) {
        // The cache makes no calls.
        self.ports.reply(net, from, token, payload);
    }

    fn peer_up(&mut self, net: &mut Net, peer: NodeId) {
        self.cache.peer_up(net, peer);
        self.locks.peer_up(net, peer);
        if let Some(groups) = &mut self.groups {
            groups.peer_up(net, peer);
        }
        if let Some(registry) = &mut self.registry {
            registry.peer_up(net, peer);
        }
        self.check(net);
    }

    fn peer_gone(&mut self, net: &mut Net, peer: NodeId, why: &Lost) {
        self.cache.peer_gone(peer);
        self.locks.peer_gone(peer);
        if let Some(groups) = &mut self.groups {
            groups.peer_gone(peer);
        }
        if let Some(registry) = &mut self.registry {
            registry.peer_gone(peer);
        }
        self.ports.peer_gone(net, peer);
        self.programs.peer_gone(net, peer);
        // Nobody listens any more: the node is ending.
        let incarnation = net.incarnation(peer).expect("what is gone was there");
        let _ = self.news.send(News::Lost { peer, incarnation, why: why.clone() });
    }

    #[inline]
    fn turn(&mut self, net: &mut Net) -> usize {
        self.programs.turn(net, &mut self.locks) + self.ports.turn(net)
    }

    fn pending(&mut self) -> bool {
        self.programs.pending() || self.locks.has_news() || self.ports.pending()
    }
}

/// Leads to the workers; made before them, because their services need it.
#[derive(Default)]
pub(crate) struct Workers(OnceLock<Vec<Worker<NodeService>>>);

impl Workers {
    pub(crate) fn start(workers: Vec<Worker<NodeService>>, place: &Arc<Self>) {
        assert!(place.0.set(workers).is_ok(), "a node starts its workers once");
    }

    /// The workers, if they were started.
    pub(crate) fn started(&self) -> Option<&[Worker<NodeService>]> {
        self.0.get().map(Vec::as_slice)
    }

    pub(crate) fn all(&self) -> &[Worker<NodeService>] {
        self.0.wait()
    }
}

impl CachePort for Workers {
    fn submit(&self, worker: WorkerId, task: CacheTask) {
        self.all()[worker.index()].submit(NodeTask::Cache(task));
    }

    #[inline]
    fn attend(&self, worker: WorkerId) {
        self.all()[worker.index()].attend();
    }

    fn submit_and_wait(&self, worker: WorkerId, task: CacheTask, signal: &Signal) -> u64 {
        let worker = &self.all()[worker.index()];
        worker.push(NodeTask::Cache(task));
        worker.wait(signal)
    }
}

impl GroupPort for Workers {
    fn submit(&self, task: GroupTask) {
        self.all()[0].submit(NodeTask::Group(task));
    }
}

impl RegistryPort for Workers {
    fn submit(&self, task: RegistryTask) {
        self.all()[0].submit(NodeTask::Registry(task));
    }
}

impl LockPort for Workers {
    fn offer(&self, worker: WorkerId, task: LockTask) {
        // What finds no room is said again.
        let _ = self.all()[worker.index()].offer(NodeTask::Lock(task));
    }

    fn submit(&self, worker: WorkerId, task: LockTask) {
        self.all()[worker.index()].tell(NodeTask::Lock(task));
    }

    fn visit(&self, worker: WorkerId, act: &mut dyn FnMut(&mut LockService, &mut Net)) -> bool {
        let visited = self.all()[worker.index()].visit(|service, net| {
            act(&mut service.locks, net);
            // Nothing else was touched, and no view is rebuilt by what a client wants.
            if service.locks.has_fault() {
                service.check(net);
            }
        });
        visited.is_some()
    }

    fn push(&self, worker: WorkerId, task: LockTask) {
        self.all()[worker.index()].push(NodeTask::Lock(task));
    }

    fn wait(&self, worker: WorkerId, signal: &Signal) {
        self.all()[worker.index()].wait(signal);
    }
}
