//! The protocol of transactions in its node: messages on worker 0, waits of tasks.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use plexus_base::{Incarnation, NodeId, WorkerId};
use plexus_interconnect::{Answer, Channel, Kind, Net, Reply};
use plexus_membership::{
    partitions::Members,
    subsystem::{Subsystem, WorkerPort},
};

use super::{
    core::{Core, Notice},
    messages::Message,
};

/// The worker that exchanges the messages.
const WORKER: WorkerId = WorkerId(0);

type Waiter = Reply<Notice>;

/// The state of transactions that all threads of a node share.
pub struct Board {
    core: Mutex<Core<Waiter>>,
    port: Option<Arc<dyn WorkerPort<TransactionService>>>,
    viewed: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Board {
    /// Makes the state of a node in no view. `port` leads to its [`TransactionService`]; without
    /// one the node is alone.
    #[must_use]
    pub fn new(
        me: NodeId,
        incarnation: Incarnation,
        port: Option<Arc<dyn WorkerPort<TransactionService>>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            core: Mutex::new(Core::new(me, incarnation, plexus_cache::grants)),
            port,
            viewed: OnceLock::new(),
        })
    }

    /// Calls `viewed` after each view from now on.
    pub(crate) fn on_view(&self, viewed: impl Fn() + Send + Sync + 'static) {
        // A node opens its store once.
        let _ = self.viewed.set(Box::new(viewed));
    }

    fn lock(&self) -> MutexGuard<'_, Core<Waiter>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the state.
    pub(crate) fn look<T>(&self, act: impl FnOnce(&Core<Waiter>) -> T) -> T {
        act(&self.lock())
    }

    /// Changes the state, in a task; wakes waiters and sends messages.
    pub(crate) fn act<T>(&self, act: impl FnOnce(&mut Core<Waiter>) -> T) -> T {
        let (result, tells, has_sends) = {
            let mut core = self.lock();
            let result = act(&mut core);
            (result, core.take_tells(), core.has_sends())
        };
        tells.into_iter().for_each(|(waiter, notice)| waiter.send(notice));
        if has_sends
            && let Some(port) = &self.port
            && !port.visit(WORKER, &mut |service, net| service.send(net))
        {
            port.request(WORKER, Flush);
        }
        result
    }

    /// Changes the state with a waiter, in a task; returns the answer to wait for.
    pub(crate) fn ask(&self, act: impl FnOnce(&mut Core<Waiter>, Waiter)) -> Answer<Notice> {
        let (waiter, answer) = Reply::new();
        self.act(|core| act(core, waiter));
        if let Some(port) = &self.port {
            port.expect_answer(WORKER);
        }
        answer
    }
}

/// A request to send the messages that threads have left.
pub struct Flush;

/// The protocol of transactions on worker 0.
pub struct TransactionService {
    board: Arc<Board>,
}

impl TransactionService {
    /// Makes the service of a node.
    #[must_use]
    pub fn new(board: Arc<Board>) -> Self {
        Self { board }
    }

    fn act(&mut self, net: &mut Net, act: impl FnOnce(&mut Core<Waiter>)) {
        let tells = {
            let mut core = self.board.lock();
            act(&mut core);
            core.take_tells()
        };
        tells.into_iter().for_each(|(waiter, notice)| waiter.send(notice));
        self.send(net);
    }

    fn send(&mut self, net: &mut Net) {
        let sends = self.board.lock().take_sends();
        for (to, message) in sends {
            net.send_to_member(to, Channel::Store, Kind::Request, &message.encode());
        }
    }
}

impl Subsystem for TransactionService {
    const NAME: &'static str = "transactions";
    const CHANNELS: &'static [Channel] = &[Channel::Store];
    type Task = Flush;

    fn view(&mut self, net: &mut Net, view: &Members) {
        self.act(net, |core| core.view(view.epoch, &view.members));
        self.board.viewed.get().into_iter().for_each(|viewed| viewed());
    }

    fn message(&mut self, net: &mut Net, message: plexus_interconnect::Message<'_>) {
        match Message::decode(message.payload) {
            Ok(decoded) => self.act(net, |core| core.message(message.from, decoded)),
            Err(error) => net.fault(message.from, error),
        }
    }

    fn task(&mut self, net: &mut Net, Flush: Flush) {
        self.send(net);
    }
}
