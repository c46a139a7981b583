//! The lock manager on one worker: brings events to the shard and carries out its actions.
//!
//! It serves from the first view on and follows each later view. When this node stops, every
//! request is answered with [`LockError::Stopped`], and all held locks are marked as lost.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Weak},
};

use plexus_base::{Incarnation, Nanos, NodeId, WorkerId, clock};
use plexus_interconnect::{Channel, Message, Net, Reply};
use plexus_membership::subsystem::{Subsystem, WorkerPort};

use crate::{
    clock::Clock,
    notice::LockNotices,
    programs::ProgramNotice,
    protocol::{
        self, Action, Counts, Errand, Event, Gate, Grant, LockId, LockRefusal, LockRequest, Members,
        RequestKind, Shard, VALUE_LEN,
    },
    reply::{LockError, LockResult},
    session::StopFlag,
    survey::LockSurvey,
};

/// How long a request waits before it looks for a deadlock.
const DEADLOCK_AFTER: Nanos = Nanos::from_ms(200);

/// The most requests that wait for one resource.
const WAITING_MAX: usize = 100_000;

/// The most locks that clients of this node have at one worker, and the most messages that wait in
/// memory for one member or its links when a new lock is requested of it. Without the second limit
/// a client that requests and gives up locks of a silent master would fill the memory. A lower one
/// would refuse the requests of others when a program with many locks ends.
const LOCKS_MAX: usize = 4_000_000;

/// The port that brings tasks to the workers.
pub(crate) type LockPort = dyn WorkerPort<LockService>;

/// A task that a thread of the node gives to a worker.
pub enum LockTask {
    /// A client's request, with the notices of its holder and the reply for the result.
    Ask(LockRequest, Option<Arc<LockNotices>>, Reply<LockResult>),
    /// An event of a client that has no answer.
    Tell(Event),
    /// An errand from another worker of this node.
    Errand(Errand),
    /// The time that the shard asked for has come.
    Tick,
    /// A request for the survey of the resources that this worker masters.
    Survey(Reply<LockSurvey>),
    /// A request for the counts.
    Counts(Reply<Counts>),
}

/// The settings of a node's lock manager.
#[derive(Clone, Copy, Debug)]
pub struct LockSettings {
    /// This node.
    pub me: NodeId,
    /// The incarnation of this node.
    pub incarnation: Incarnation,
    /// The number of workers, the same on every node.
    pub workers: u8,
}

/// The lock manager of one worker; see the module.
pub struct LockService {
    /// `None` before the first view.
    shard: Option<Shard>,
    config: protocol::Config,
    /// Messages from members of the first view that came before this node was in it.
    early: Option<Gate>,
    worker: WorkerId,
    replies: BTreeMap<LockId, Reply<LockResult>>,
    /// The request being handled, and its result. Most requests are answered at once and need no
    /// reply.
    asking: Option<(LockId, Option<LockResult>)>,
    /// The notices of the locks whose holders want them.
    watched: BTreeMap<LockId, Arc<LockNotices>>,
    /// Notices for programs that were not taken yet.
    program_notices: Vec<ProgramNotice>,
    actions: Vec<Action>,
    clock: Arc<Clock>,
    /// The time of the last event that needed one.
    now: Nanos,
    /// The time of the next tick, if the clock is set.
    armed: Option<Nanos>,
    port: Weak<LockPort>,
    stopped: Arc<StopFlag>,
}

/// Creates the services, one for each worker. `port` leads to the workers that will run them.
///
/// # Errors
/// The system cannot start a thread.
pub fn wire(
    settings: LockSettings,
    port: &Weak<LockPort>,
    stopped: &Arc<StopFlag>,
) -> io::Result<Vec<LockService>> {
    let LockSettings { me, incarnation, workers } = settings;
    let clock = Clock::start(workers, port.clone())?;
    let service = |worker| {
        let config = protocol::Config {
            me,
            incarnation,
            worker,
            workers,
            deadlock_ns: DEADLOCK_AFTER.0,
            waiting_max: WAITING_MAX,
            locks_max: LOCKS_MAX,
        };
        LockService {
            shard: None,
            config,
            early: Some(Shard::gate(&config)),
            worker,
            replies: BTreeMap::new(),
            asking: None,
            watched: BTreeMap::new(),
            program_notices: Vec::new(),
            actions: Vec::new(),
            clock: clock.clone(),
            now: Nanos(0),
            armed: None,
            port: port.clone(),
            stopped: stopped.clone(),
        }
    };
    Ok((0..workers).map(WorkerId).map(service).collect())
}

impl Drop for LockService {
    /// The services of a node end together, also one that never served.
    fn drop(&mut self) {
        self.clock.end();
    }
}

impl Subsystem for LockService {
    const NAME: &'static str = "locks";
    const CHANNELS: &'static [Channel] = &[Channel::Locks];
    type Task = LockTask;

    fn view(&mut self, net: &mut Net, view: &Members) {
        let Some(gate) = self.early.take() else { return self.handle(net, Event::View(view.clone())) };
        let mut actions = std::mem::take(&mut self.actions);
        self.shard = Some(Shard::begin(self.config, gate, view.clone(), &mut actions));
        self.carry_out(net, actions);
    }

    #[inline]
    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        let from = message.from;
        match protocol::Message::decode(message.payload) {
            Ok(decoded) => {
                let incarnation = net.incarnation(from).expect("it came over a link");
                match &mut self.early {
                    None => self.handle(net, Event::Message { from, incarnation, message: decoded }),
                    Some(gate) => {
                        let parked = gate.admit((from, incarnation), decoded.epoch, decoded);
                        parked.err().into_iter().for_each(|what| net.fault(from, what));
                    }
                }
            }
            Err(error) => net.fault(from, format_args!("not a message of the lock manager: {error}")),
        }
    }

    #[inline]
    fn task(&mut self, net: &mut Net, task: LockTask) {
        match task {
            LockTask::Ask(request, notices, reply) => {
                let lock = request.lock;
                match self.ask(net, request, notices) {
                    Some(result) => reply.send(result),
                    None => self.answer_to(lock, reply),
                }
            }
            LockTask::Tell(Event::Unlock { lock, value }) => self.unlock(net, lock, value),
            LockTask::Tell(event) => self.handle(net, event),
            LockTask::Errand(errand) => self.handle(net, Event::Errand(errand)),
            LockTask::Tick => {
                self.armed = None;
                self.handle(net, Event::Tick);
            }
            LockTask::Survey(reply) => {
                let survey = self.shard.as_ref().map(|shard| LockSurvey::of(shard, clock::now()));
                reply.send(survey.unwrap_or_default());
            }
            LockTask::Counts(reply) => {
                let counts = self.shard.as_ref().map(|shard| *shard.counts());
                reply.send(counts.unwrap_or_default());
            }
        }
    }

    /// True when all members of the last view have reported what they hold.
    fn is_ready(&self) -> bool {
        self.shard.as_ref().is_some_and(Shard::is_open)
    }

    /// Stops granting and marks all held locks as lost. Dropping the replies wakes the threads that
    /// wait.
    fn stop(&mut self) {
        self.stopped.stop();
        self.clock.end();
        self.replies.clear();
        for notices in self.watched.values() {
            notices.lost();
        }
        self.program_notices.push(ProgramNotice::Lost);
    }

    /// There are notices for programs, which the subsystem of the programs takes in its turn.
    #[inline]
    fn pending(&mut self) -> bool {
        !self.program_notices.is_empty()
    }
}

impl LockService {
    /// Handles a thread's request and returns the result if there is one at once. Otherwise
    /// [`LockService::answer_to`] must follow.
    pub(crate) fn ask(
        &mut self,
        net: &mut Net,
        request: LockRequest,
        notices: Option<Arc<LockNotices>>,
    ) -> Option<LockResult> {
        let Some(shard) = self.shard.as_mut().filter(|_| !self.stopped.is_stopped()) else {
            return Some(Err(LockError::Stopped));
        };
        let lock = request.lock;
        self.watched.extend(notices.map(|notices| (lock, notices)));
        if let Some(grant) = shard.lock_at_once(&request) {
            return Some(Ok(grant));
        }
        if self.is_behind(net, &request) {
            self.watched.remove(&lock);
            return Some(Err(LockError::Refused(LockRefusal::TooManyLocks)));
        }
        self.asking = Some((lock, None));
        self.handle(net, Event::Request(request));
        self.asking.take().and_then(|(_, result)| result)
    }

    /// Stores the reply for the request that waits for `lock`.
    pub(crate) fn answer_to(&mut self, lock: LockId, reply: Reply<LockResult>) {
        self.replies.insert(lock, reply);
    }

    /// Releases a lock of a thread.
    pub(crate) fn unlock(&mut self, net: &mut Net, lock: LockId, value: Option<[u8; VALUE_LEN]>) {
        self.watched.remove(&lock);
        if !self.shard.as_mut().is_some_and(|shard| shard.unlock_at_once(lock, value)) {
            self.handle(net, Event::Unlock { lock, value });
        }
    }

    /// Handles an event of a program; its results are among the notices for programs.
    pub fn program(&mut self, net: &mut Net, event: Event) {
        match event {
            Event::Request(LockRequest { lock, .. }) if self.stopped.is_stopped() || self.shard.is_none() => {
                self.program_notices.push(ProgramNotice::Answer(lock, Err(LockError::Stopped)));
            }
            Event::Request(request) if self.is_behind(net, &request) => {
                self.program_notices.push(ProgramNotice::Answer(
                    request.lock,
                    Err(LockError::Refused(LockRefusal::TooManyLocks)),
                ));
            }
            event => self.handle(net, event),
        }
    }

    /// True if a new lock must be refused because too many messages to its master have not left
    /// this node.
    fn is_behind(&self, net: &Net, request: &LockRequest) -> bool {
        let RequestKind::New(new) = &request.kind else { return false };
        let Some(master) = self.shard.as_ref().and_then(|shard| shard.master(&new.name)) else {
            return false;
        };
        net.backlog(master) >= self.config.locks_max
    }

    /// Takes the notices for programs.
    pub fn take_notices(&mut self) -> impl Iterator<Item = ProgramNotice> {
        self.program_notices.drain(..)
    }

    fn handle(&mut self, net: &mut Net, event: Event) {
        self.now = match event {
            // An unlock needs no time, and reading the clock is a good part of its cost.
            Event::Unlock { .. } => self.now,
            _ => clock::now(),
        };
        let Some(shard) = &mut self.shard else { return };
        let mut actions = std::mem::take(&mut self.actions);
        shard.handle(self.now, event, &mut actions);
        self.carry_out(net, actions);
    }

    fn carry_out(&mut self, net: &mut Net, mut actions: Vec<Action>) {
        for action in actions.drain(..) {
            self.act(net, action);
        }
        self.actions = actions;
        if let Some(next) = self.shard.as_ref().and_then(Shard::next_tick)
            && self.armed.is_none_or(|armed| next < armed)
        {
            self.armed = Some(next);
            self.clock.arm(self.worker, next);
        }
    }

    fn act(&mut self, net: &mut Net, action: Action) {
        match action {
            Action::Send { to, message } => send(net, to, &message),
            Action::Tell { worker, errand } => {
                // A search that is lost begins again.
                if let Some(port) = self.port.upgrade() {
                    port.offer(worker, LockTask::Errand(errand));
                }
            }
            Action::Granted { lock, mode, token, value } => {
                self.answer(lock, Ok(Grant { mode, token, value }));
            }
            Action::Refused { lock, why } => self.answer(lock, Err(LockError::Refused(why))),
            Action::Blocking { lock, wanted } if lock.is_of_program() => {
                self.program_notices.push(ProgramNotice::Wanted(lock, wanted));
            }
            Action::Blocking { lock, wanted } => {
                if let Some(notices) = self.watched.get(&lock) {
                    notices.wanted(wanted);
                }
            }
            Action::Open { epoch } => {
                tracing::debug!(worker = self.worker.0, epoch = epoch.0, "locks are open")
            }
            Action::Fault { from, what } => {
                net.fault(from, format_args!("{what}: the nodes no longer agree on who holds which lock"));
            }
        }
    }

    fn answer(&mut self, lock: LockId, answer: LockResult) {
        if lock.is_of_program() {
            return self.program_notices.push(ProgramNotice::Answer(lock, answer));
        }
        if let Some(notices) = self.watched.get(&lock) {
            match &answer {
                Ok(_) => notices.granted(),
                Err(_) if self.shard.as_ref().is_none_or(|shard| shard.lock(lock).is_none()) => {
                    drop(self.watched.remove(&lock))
                }
                Err(_) => {}
            }
        }
        if let Some((_, now)) = self.asking.as_mut().filter(|(asking, _)| *asking == lock) {
            *now = Some(answer);
        } else if let Some(reply) = self.replies.remove(&lock) {
            reply.send(answer);
        }
    }
}

fn send(net: &mut Net, to: NodeId, message: &protocol::Message) {
    let kind = match message.kind() {
        protocol::Kind::Request => plexus_interconnect::Kind::Request,
        protocol::Kind::Reply => plexus_interconnect::Kind::Reply,
    };
    let payload = message.encode();
    match message.body {
        protocol::LockMessage::Unlock(_) => net.send_unhurried_to_member(to, Channel::Locks, kind, &payload),
        _ => net.send_to_member(to, Channel::Locks, kind, &payload),
    }
}
