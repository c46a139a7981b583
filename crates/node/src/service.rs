//! The service on each worker of a node: brings what happens there to its
//! [subsystems](crate::subsystems).

use std::sync::{Arc, OnceLock, Weak, mpsc};

use plexus_base::{Epoch, Incarnation, NodeId, WorkerId};
use plexus_fabric::Lost;
use plexus_interconnect::{Channel, Message, Net, Service, Worker};
use plexus_membership::{
    partitions::Members,
    subsystem::{self, Subsystem, WorkerPort},
};

pub use crate::subsystems::NodeTask;
use crate::{
    member::Member,
    subsystems::{BenchmarkPort, Runs, Subsystems},
};

/// A notice of a worker to the node.
#[derive(Debug)]
pub(crate) enum WorkerNotice {
    /// The link to a peer was lost, as one worker saw it.
    Lost { peer: NodeId, incarnation: Incarnation, why: Lost },
    /// A peer sent a message that no correct member sends.
    Fault { peer: NodeId, incarnation: Incarnation },
    /// The node ends; no more notices follow.
    End,
}

/// The service of one worker.
pub struct NodeService {
    subsystems: Subsystems,
    member: Weak<Member>,
    notices: mpsc::Sender<WorkerNotice>,
    /// The last view.
    view: Option<Members>,
    /// The epoch of the view for which the subsystems are rebuilding.
    rebuilding: Option<Epoch>,
}

impl NodeService {
    pub(crate) fn new(
        subsystems: Subsystems,
        member: Weak<Member>,
        notices: mpsc::Sender<WorkerNotice>,
    ) -> Self {
        Self { subsystems, member, notices, view: None, rebuilding: None }
    }

    /// Enters the next view. A node that is not in it has stopped before.
    pub(crate) fn view(&mut self, net: &mut Net, members: &Members) {
        subsystem::enter(net, self.view.as_ref(), members);
        self.view = Some(members.clone());
        self.subsystems.view(net, members);
        self.rebuilding = Some(members.epoch);
        self.check(net);
    }

    /// Reports a protocol violation of a peer, and the end of a rebuild.
    #[inline]
    fn check(&mut self, net: &mut Net) {
        self.report_fault(net);
        if let Some(epoch) = self.rebuilding
            && self.subsystems.are_ready()
            && let Some(member) = self.member.upgrade()
        {
            self.rebuilding = None;
            member.rebuilt(epoch);
        }
    }

    #[inline]
    fn report_fault(&self, net: &mut Net) {
        if let Some((peer, incarnation)) = net.take_fault() {
            // Fails when the node is ending.
            let _ = self.notices.send(WorkerNotice::Fault { peer, incarnation });
        }
    }

    /// Stops all subsystems because the others continue without this node: its locks and blocks are
    /// void from now on, and nothing is granted.
    pub(crate) fn stop(&mut self) {
        self.subsystems.stop();
    }

    /// Ends all subsystems. The caller must drop these outside of the
    /// worker, because they wait for threads that submit tasks to it.
    #[must_use]
    pub(crate) fn end(&mut self) -> Subsystems {
        self.stop();
        std::mem::take(&mut self.subsystems)
    }
}

/// A service whose workers can be measured.
pub trait MeasuredService: Service {
    /// Returns the place for the port of a benchmark; `None` when the node ends.
    fn benchmark_port(&mut self) -> Option<&mut BenchmarkPort>;
}

impl MeasuredService for NodeService {
    fn benchmark_port(&mut self) -> Option<&mut BenchmarkPort> {
        self.subsystems.part()
    }
}

impl Service for NodeService {
    type Task = NodeTask;

    #[inline]
    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        if self.subsystems.message(net, message) {
            self.check(net);
        } else {
            tracing::debug!(from = %message.from, "no receiver for a message on channel {}", message.channel.name());
        }
    }

    #[inline]
    fn task(&mut self, net: &mut Net, task: NodeTask) {
        if !self.subsystems.task(net, task)
            && let Some(member) = self.member.upgrade()
        {
            member.pulse(net.worker());
        }
        self.check(net);
    }

    fn reply(&mut self, net: &mut Net, from: NodeId, channel: Channel, token: u64, payload: &[u8]) {
        if self.subsystems.reply(net, from, channel, token, Some(payload)) {
            self.check(net);
        }
    }

    fn call_failed(&mut self, net: &mut Net, peer: NodeId, channel: Channel, token: u64) {
        self.subsystems.reply(net, peer, channel, token, None);
    }

    fn peer_up(&mut self, net: &mut Net, peer: NodeId) {
        self.subsystems.peer_up(net, peer);
        self.check(net);
    }

    fn peer_gone(&mut self, net: &mut Net, peer: NodeId, why: &Lost) {
        self.subsystems.peer_lost(net, peer);
        let incarnation = net.incarnation(peer).expect("what is gone was there");
        // It fails when the node is ending.
        let _ = self.notices.send(WorkerNotice::Lost { peer, incarnation, why: why.clone() });
    }

    #[inline]
    fn turn(&mut self, net: &mut Net) -> usize {
        let done = self.subsystems.turn(net);
        if done > 0 {
            self.check(net);
        }
        done
    }

    #[inline]
    fn pending(&mut self) -> bool {
        self.subsystems.pending()
    }
}

/// Access to the workers, made before them because their services need it.
#[derive(Default)]
pub(crate) struct Workers(OnceLock<Vec<Worker<NodeService>>>);

impl Workers {
    pub(crate) fn start(workers: Vec<Worker<NodeService>>, place: &Arc<Self>) {
        assert!(place.0.set(workers).is_ok(), "a node starts its workers once");
    }

    /// Returns the workers, if they were started.
    pub(crate) fn started(&self) -> Option<&[Worker<NodeService>]> {
        self.0.get().map(Vec::as_slice)
    }

    pub(crate) fn all(&self) -> &[Worker<NodeService>] {
        self.0.wait()
    }
}

impl<S: Subsystem> WorkerPort<S> for Workers
where
    Subsystems: Runs<S>,
{
    #[inline]
    fn submit(&self, worker: WorkerId, task: S::Task) {
        self.all()[worker.index()].submit(Subsystems::wrap(task));
    }

    fn offer(&self, worker: WorkerId, task: S::Task) {
        let _ = self.all()[worker.index()].offer(Subsystems::wrap(task));
    }

    #[inline]
    fn visit(&self, worker: WorkerId, act: &mut dyn FnMut(&mut S, &mut Net)) -> bool {
        let visited = self.all()[worker.index()].visit(|service, net| {
            let Some(part) = service.subsystems.part() else { return false };
            act(part, net);
            // A client thread takes up no view.
            service.report_fault(net);
            true
        });
        visited == Some(true)
    }

    #[inline]
    fn attend(&self, worker: WorkerId) {
        self.all()[worker.index()].attend();
    }

    #[inline]
    fn request(&self, worker: WorkerId, task: S::Task) {
        self.all()[worker.index()].request(Subsystems::wrap(task));
    }

    fn expect_answer(&self, worker: WorkerId) {
        self.all()[worker.index()].expect_answer();
    }
}
