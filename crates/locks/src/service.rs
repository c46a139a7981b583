//! The lock manager on one worker: brings events to the shard and carries out its actions.
//!
//! It serves from the first [view](LockService::view) on, and takes up each that follows. When this node stops, every request is
//! answered with [`LockError::Stopped`], and every lock that is held says so too.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Weak, mpsc},
};

use plexus_base::{Incarnation, Nanos, NodeId, NodeSet, WorkerId, clock};
use plexus_interconnect::{Channel, Message, Net};

use crate::{
    clock::Clock,
    locks::{Grant, LockError, Port, State, Taker},
    notice::Notices,
    programs::ProgramNews,
    protocol::{self, Action, Errand, Event, LockId, Members, Shard, Want},
    survey::Survey,
};

/// How long a request waits before it looks for a deadlock.
const DEADLOCK_AFTER: Nanos = Nanos::from_ms(200);

/// Most requests that wait for one resource.
const WAITING_MAX: usize = 100_000;

/// Most locks that clients of this node have at one worker.
const LOCKS_MAX: usize = 4_000_000;

/// Messages from members of a view that this node does not know yet, before it knows any: as many as are under way while a view reaches everybody.
const EARLY_MAX: usize = 1 << 16;

/// What threads of the node hand to a worker.
pub enum LockTask {
    /// A client wants something; who is told what comes of it.
    Ask(Event, LockId, Taker),
    /// Who is to be told what happens to a lock that is asked for next.
    Watch(LockId, Arc<Notices>),
    /// A client wants something that is not answered.
    Tell(Event),
    /// Another worker of this node says something.
    Told(Errand),
    /// It is the time that the shard asked for.
    Tick,
    /// What it masters is asked for.
    Survey(mpsc::Sender<Survey>),
}

/// What a node's lock manager is made with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// This node.
    pub me: NodeId,
    /// This life of it.
    pub life: Incarnation,
    /// Workers of every node.
    pub workers: u8,
}

/// See the module.
pub struct LockService {
    /// None before the first view.
    shard: Option<Shard>,
    config: protocol::Config,
    /// What members of the first view said before this node knew it.
    heard: Vec<(NodeId, Incarnation, protocol::Message)>,
    worker: WorkerId,
    takers: BTreeMap<LockId, Taker>,
    /// Who asks just now: most requests are answered at once and leave no taker behind.
    asking: Option<(LockId, Taker)>,
    /// Holders that want to be told what happens.
    watched: BTreeMap<LockId, Arc<Notices>>,
    /// What programs are to be told.
    news: Vec<ProgramNews>,
    actions: Vec<Action>,
    /// To be said to members whose link is not up yet.
    early: Vec<(NodeId, protocol::Message)>,
    up: NodeSet,
    clock: Arc<Clock>,
    /// When the clock will tell the time.
    armed: Option<Nanos>,
    port: Weak<dyn Port>,
    state: Arc<State>,
    /// Who sent what no member sends.
    fault: Option<NodeId>,
}

/// The services, one for each worker. `port` leads to the workers that will run them.
///
/// # Errors
/// The system refuses a thread.
pub fn wire(settings: Settings, port: &Weak<dyn Port>, state: &Arc<State>) -> io::Result<Vec<LockService>> {
    let Settings { me, life, workers } = settings;
    let clock = Clock::start(workers, port.clone())?;
    let service = |worker| {
        let config = protocol::Config {
            me,
            life,
            worker,
            workers,
            deadlock_ns: DEADLOCK_AFTER.0,
            waiting_max: WAITING_MAX,
            locks_max: LOCKS_MAX,
        };
        LockService {
            shard: None,
            config,
            heard: Vec::new(),
            worker,
            takers: BTreeMap::new(),
            asking: None,
            watched: BTreeMap::new(),
            news: Vec::new(),
            actions: Vec::new(),
            early: Vec::new(),
            up: NodeSet::EMPTY,
            clock: clock.clone(),
            armed: None,
            port: port.clone(),
            state: state.clone(),
            fault: None,
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

impl LockService {
    /// The next view, or the first: whoever is not in it has stopped, and no link leads to it any more.
    pub fn view(&mut self, net: &mut Net, view: Members) {
        self.early.retain(|(to, _)| view.life(*to).is_some());
        if self.shard.is_some() {
            return self.handle(net, Event::View(view));
        }
        let mut actions = std::mem::take(&mut self.actions);
        self.shard = Some(Shard::new(self.config, view, &mut actions));
        self.carry_out(net, actions);
        for (from, life, message) in std::mem::take(&mut self.heard) {
            self.handle(net, Event::Message { from, life, message });
        }
    }

    /// A peer is there: it is told what it was to be told.
    pub fn peer_up(&mut self, net: &mut Net, peer: NodeId) {
        self.up.insert(peer);
        let early = std::mem::take(&mut self.early);
        for (to, message) in early {
            self.send(net, to, message);
        }
    }

    /// The link to a peer is gone. What is to be said to it waits for its next one, or for the view without it.
    pub fn peer_gone(&mut self, peer: NodeId) {
        self.up.remove(peer);
    }

    /// Handles a message of [`Channel::Locks`].
    pub fn message(&mut self, net: &mut Net, message: &Message<'_>) {
        match protocol::Message::decode(message.payload) {
            Ok(decoded) => {
                let life = net.life(message.from).expect("it came over a link");
                if self.shard.is_some() {
                    self.handle(net, Event::Message { from: message.from, life, message: decoded });
                } else if self.heard.len() < EARLY_MAX {
                    self.heard.push((message.from, life, decoded));
                } else {
                    self.fault = Some(message.from);
                }
            }
            Err(error) => {
                tracing::error!(from = %message.from, %error, "not a message of the lock manager");
                self.fault = Some(message.from);
            }
        }
    }

    /// Handles a task.
    pub fn task(&mut self, net: &mut Net, task: LockTask) {
        match task {
            LockTask::Ask(_, lock, taker) if self.state.is_stopped() || self.shard.is_none() => {
                self.watched.remove(&lock);
                taker.take(Err(LockError::Stopped));
            }
            LockTask::Ask(event, lock, taker) => {
                self.asking = Some((lock, taker));
                self.handle(net, event);
                self.takers.extend(self.asking.take());
            }
            LockTask::Watch(lock, notices) => drop(self.watched.insert(lock, notices)),
            LockTask::Tell(event) => {
                if let Event::Unlock { lock, .. } = event {
                    self.watched.remove(&lock);
                }
                self.handle(net, event);
            }
            LockTask::Told(errand) => self.handle(net, Event::Told(errand)),
            LockTask::Tick => {
                self.armed = None;
                self.handle(net, Event::Tick);
            }
            LockTask::Survey(reply) => {
                // Who does not wait any more does not need it.
                let survey = self.shard.as_ref().map(|shard| Survey::of(shard, clock::now()));
                let _ = reply.send(survey.unwrap_or_default());
            }
        }
    }

    /// A program wants something; what comes of it is among the news.
    pub fn program(&mut self, net: &mut Net, event: Event) {
        match event {
            Event::Lock(Want { lock, .. }) | Event::Convert { lock, .. }
                if self.state.is_stopped() || self.shard.is_none() =>
            {
                self.news.push(ProgramNews::Answer(lock, Err(LockError::Stopped)));
            }
            event => self.handle(net, event),
        }
    }

    /// What programs are to be told.
    pub fn take_news(&mut self) -> Vec<ProgramNews> {
        std::mem::take(&mut self.news)
    }

    /// Whether programs are to be told something.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Whether everything that this node masters is granted: all members of the last view have said what they hold.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.shard.as_ref().is_some_and(Shard::is_open)
    }

    /// A node that sent what no member sends, once.
    pub fn take_fault(&mut self) -> Option<NodeId> {
        self.fault.take()
    }

    /// The cluster has stopped: nothing is granted any more, and no lock that is held is worth anything.
    pub fn stop(&mut self) {
        self.state.stop();
        self.clock.end();
        for (_, taker) in std::mem::take(&mut self.takers) {
            taker.take(Err(LockError::Stopped));
        }
        for notices in self.watched.values() {
            notices.lost();
        }
        self.news.push(ProgramNews::Lost);
    }

    fn handle(&mut self, net: &mut Net, event: Event) {
        let Some(shard) = &mut self.shard else { return };
        let mut actions = std::mem::take(&mut self.actions);
        shard.handle(clock::now(), event, &mut actions);
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
            Action::Send { to, message } => self.send(net, to, message),
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
                tracing::error!(%from, "{what}: the nodes no longer agree on who holds which lock");
                self.fault = Some(from);
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
        let taker = match self.asking.take_if(|(asking, _)| *asking == lock) {
            Some((_, taker)) => Some(taker),
            None => self.takers.remove(&lock),
        };
        if let Some(taker) = taker {
            taker.take(answer);
        }
    }

    fn send(&mut self, net: &mut Net, to: NodeId, message: protocol::Message) {
        if !self.up.contains(to) {
            return self.early.push((to, message));
        }
        let kind = match message.kind() {
            protocol::Kind::Request => plexus_interconnect::Kind::Request,
            protocol::Kind::Reply => plexus_interconnect::Kind::Reply,
        };
        // No link any more: the peer is gone, and the next view is without it.
        let _ = net.send(to, Channel::Locks, kind, 0, &message.encode());
    }
}
