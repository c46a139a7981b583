//! The lock manager on one worker: brings events to the shard and carries out its actions.
//!
//! It serves from the first view on, and takes up each that follows. When this node stops, every request is
//! answered with [`LockError::Stopped`], and every lock that is held says so too.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Weak},
};

use plexus_base::{Incarnation, Nanos, NodeId, WorkerId, clock};
use plexus_interconnect::{Channel, Message, Net, Reply};
use plexus_membership::{
    LossHistory,
    subsystem::{Subsystem, WorkerPort},
};

use crate::{
    clock::Clock,
    locks::{Answer, Asked, Grant, LockError, State},
    notice::Notices,
    programs::ProgramNews,
    protocol::{
        self, Action, Counts, Errand, Event, Gate, Hold, LockId, LockRefusal, Members, Shard, VALUE_LEN, Want,
    },
    survey::Survey,
};

/// How long a request waits before it looks for a deadlock.
const DEADLOCK_AFTER: Nanos = Nanos::from_ms(200);

/// Most requests that wait for one resource.
const WAITING_MAX: usize = 100_000;

/// Most locks that clients of this node have at one worker.
const LOCKS_MAX: usize = 4_000_000;

/// Messages that wait in memory for a member, or for links to come, beyond which no new lock is asked of it. Locks that were asked for before go on: each
/// is converted, cancelled and given up at most once before an answer.
const BEHIND_MAX: usize = 1 << 12;

/// How tasks reach the workers.
pub(crate) type Port = dyn WorkerPort<LockService>;

/// What threads of the node hand to a worker.
pub enum LockTask {
    /// A client wants something and is answered.
    Ask(Asked, Reply<Answer>),
    /// A client wants something that is not answered.
    Tell(Event),
    /// Another worker of this node says something.
    Told(Errand),
    /// It is the time that the shard asked for.
    Tick,
    /// What it masters is asked for.
    Survey(Reply<Survey>),
    /// What it counted is asked for.
    Counts(Reply<Counts>),
}

/// What a node's lock manager is made with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// This node.
    pub me: NodeId,
    /// This incarnation of it.
    pub incarnation: Incarnation,
    /// Workers of every node.
    pub workers: u8,
}

/// See the module.
pub struct LockService {
    /// None before the first view.
    shard: Option<Shard>,
    config: protocol::Config,
    /// What members of the first view said before this node was in it.
    early: Option<Gate>,
    worker: WorkerId,
    replies: BTreeMap<LockId, Reply<Answer>>,
    /// What is asked just now, and its answer: most requests are answered at once and need no reply.
    asking: Option<(LockId, Option<Answer>)>,
    /// Holders that want to be told what happens.
    watched: BTreeMap<LockId, Arc<Notices>>,
    /// What programs are to be told.
    news: Vec<ProgramNews>,
    actions: Vec<Action>,
    clock: Arc<Clock>,
    /// The time when an event was handled last that asks for it.
    now: Nanos,
    /// When the clock will tell the time.
    armed: Option<Nanos>,
    port: Weak<Port>,
    state: Arc<State>,
}

/// The services, one for each worker. `port` leads to the workers that will run them.
///
/// # Errors
/// The system refuses a thread.
pub fn wire(settings: Settings, port: &Weak<Port>, state: &Arc<State>) -> io::Result<Vec<LockService>> {
    let Settings { me, incarnation, workers } = settings;
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
            news: Vec::new(),
            actions: Vec::new(),
            clock: clock.clone(),
            now: Nanos(0),
            armed: None,
            port: port.clone(),
            state: state.clone(),
        }
    };
    Ok((0..workers).map(WorkerId).map(service).collect())
}

impl Drop for LockService {
    /// The services of a node end together, also those of one that never served.
    fn drop(&mut self) {
        self.clock.end();
    }
}

impl Subsystem for LockService {
    const NAME: &'static str = "locks";
    const CHANNELS: &'static [Channel] = &[Channel::Locks];
    type Task = LockTask;

    fn view(&mut self, net: &mut Net, view: &Members, _: LossHistory) {
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
            LockTask::Ask(asked, reply) => {
                let lock = asked.lock();
                match self.ask(net, asked) {
                    Some(answer) => reply.send(answer),
                    None => self.answer_to(lock, reply),
                }
            }
            LockTask::Tell(Event::Unlock { lock, value }) => self.unlock(net, lock, value),
            LockTask::Tell(event) => self.handle(net, event),
            LockTask::Told(errand) => self.handle(net, Event::Told(errand)),
            LockTask::Tick => {
                self.armed = None;
                self.handle(net, Event::Tick);
            }
            LockTask::Survey(reply) => {
                let survey = self.shard.as_ref().map(|shard| Survey::of(shard, clock::now()));
                reply.send(survey.unwrap_or_default());
            }
            LockTask::Counts(reply) => {
                let counts = self.shard.as_ref().map(|shard| *shard.counts());
                reply.send(counts.unwrap_or_default());
            }
        }
    }

    /// True when all members of the last view have said what they hold.
    fn is_ready(&self) -> bool {
        self.shard.as_ref().is_some_and(Shard::is_open)
    }

    /// Nothing is granted any more, and no lock that is held is worth anything. Threads that wait learn it by their replies, which are
    /// dropped.
    fn stop(&mut self) {
        self.state.stop();
        self.clock.end();
        self.replies.clear();
        for notices in self.watched.values() {
            notices.lost();
        }
        self.news.push(ProgramNews::Lost);
    }
}

impl LockService {
    /// A thread wants something; its answer if there is one at once. Otherwise it is to be told later: [`LockService::answer_to`] follows.
    pub(crate) fn ask(&mut self, net: &mut Net, asked: Asked) -> Option<Answer> {
        let Some(shard) = self.shard.as_mut().filter(|_| !self.state.is_stopped()) else {
            return Some(Err(LockError::Stopped));
        };
        let (lock, event) = match asked {
            Asked::Lock(want, notices) => {
                self.watched.extend(notices.map(|notices| (want.lock, notices)));
                match shard.lock_at_once(want) {
                    Ok((_, Hold { mode, token, value, .. })) => {
                        return Some(Ok(Grant { mode, token, value }));
                    }
                    Err(want) if self.is_behind(net, &want) => {
                        self.watched.remove(&want.lock);
                        return Some(Err(LockError::Refused(LockRefusal::Overloaded)));
                    }
                    Err(want) => (want.lock, Event::Lock(want)),
                }
            }
            Asked::Convert { lock, mode, timeout, value } => {
                (lock, Event::Convert { lock, mode, timeout, value })
            }
        };
        self.asking = Some((lock, None));
        self.handle(net, event);
        self.asking.take().and_then(|(_, answer)| answer)
    }

    /// Who is to be told what becomes of the request for a lock.
    pub(crate) fn answer_to(&mut self, lock: LockId, reply: Reply<Answer>) {
        self.replies.insert(lock, reply);
    }

    /// A thread gives a lock up.
    pub(crate) fn unlock(&mut self, net: &mut Net, lock: LockId, value: Option<[u8; VALUE_LEN]>) {
        self.watched.remove(&lock);
        self.handle(net, Event::Unlock { lock, value });
    }

    /// A program wants something; what comes of it is among the news.
    pub fn program(&mut self, net: &mut Net, event: Event) {
        match event {
            Event::Lock(Want { lock, .. }) | Event::Convert { lock, .. }
                if self.state.is_stopped() || self.shard.is_none() =>
            {
                self.news.push(ProgramNews::Answer(lock, Err(LockError::Stopped)));
            }
            Event::Lock(want) if self.is_behind(net, &want) => {
                self.news
                    .push(ProgramNews::Answer(want.lock, Err(LockError::Refused(LockRefusal::Overloaded))));
            }
            event => self.handle(net, event),
        }
    }

    /// Whether more was asked of the master of what is wanted than has left this node.
    fn is_behind(&self, net: &Net, want: &Want) -> bool {
        let Some(master) = self.shard.as_ref().and_then(|shard| shard.master(&want.name)) else {
            return false;
        };
        net.backlog(master) >= BEHIND_MAX
    }

    /// What programs are to be told.
    pub fn take_news(&mut self) -> impl Iterator<Item = ProgramNews> {
        self.news.drain(..)
    }

    /// Whether programs are to be told something.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    fn handle(&mut self, net: &mut Net, event: Event) {
        self.now = match event {
            // It asks for no time, and reading the clock is a good part of what it costs.
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
                // One that is lost is said again.
                if let Some(port) = self.port.upgrade() {
                    port.offer(worker, LockTask::Told(errand));
                }
            }
            Action::Granted { lock, mode, token, value } => {
                self.answer(lock, Ok(Grant { mode, token, value }));
            }
            Action::Refused { lock, why } => self.answer(lock, Err(LockError::Refused(why))),
            Action::Blocking { lock, wanted } if lock.is_of_program() => {
                self.news.push(ProgramNews::Wanted(lock, wanted));
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

    fn answer(&mut self, lock: LockId, answer: Result<Grant, LockError>) {
        if lock.is_of_program() {
            return self.news.push(ProgramNews::Answer(lock, answer));
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
        protocol::Body::Unlock(_) => net.send_unhurried_to_member(to, Channel::Locks, kind, &payload),
        _ => net.send_to_member(to, Channel::Locks, kind, &payload),
    }
}
