//! How threads of a node use the lock manager.

use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
        mpsc,
    },
    time::{Duration, Instant, SystemTime},
};

pub use plexus_base::locks::Grant;
use plexus_base::{Nanos, WorkerId, clock};
use plexus_interconnect::Signal;

use crate::{
    notice::{Notice, Notices},
    protocol::{Event, LockId, Mode, Name, Owner, Patience, VALUE_LEN, Want, Why},
    service::LockTask,
    survey::Survey,
};

/// How tasks reach the workers of a node.
pub trait Port: Send + Sync {
    /// Hands a task in and sees to it that it is handled.
    fn submit(&self, worker: WorkerId, task: LockTask);

    /// Hands a task in for another worker than the one that runs this, without waiting or driving anything; where there is no room it is lost.
    fn offer(&self, worker: WorkerId, task: LockTask);

    /// Hands a task in and waits for the signal, driving the worker meanwhile; the signal is the calling thread's.
    fn submit_and_wait(&self, worker: WorkerId, task: LockTask, signal: &Signal);
}

/// Why a lock was not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LockError {
    /// The lock manager says why not.
    #[error(transparent)]
    Refused(#[from] Why),
    /// This node is no member of the cluster, or none any more.
    #[error("this node has stopped: it grants no lock, and none that is held here protects anything")]
    Stopped,
}

type Answer = Result<Grant, LockError>;

/// Who is told what becomes of a request, once: dropped without an answer, that the cluster has stopped.
pub struct Taker(Option<Tell>);

enum Tell {
    /// A thread that does something else meanwhile.
    Channel(mpsc::Sender<Answer>),
    /// A thread that drives the worker until it is answered.
    Seat(Arc<Seat>),
}

impl Taker {
    pub(crate) fn take(mut self, answer: Answer) {
        self.tell(answer);
    }

    fn tell(&mut self, answer: Answer) {
        match self.0.take() {
            // Who does not wait any more has given the lock up as well.
            Some(Tell::Channel(sender)) => drop(sender.send(answer)),
            Some(Tell::Seat(seat)) => seat.answer(answer),
            None => {}
        }
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.tell(Err(LockError::Stopped));
    }
}

/// Where a thread waits that drives the worker itself; used again for each of its requests.
struct Seat {
    signal: Signal,
    answer: Mutex<Option<Answer>>,
}

thread_local! {
    static SEAT: RefCell<Option<Arc<Seat>>> = const { RefCell::new(None) };
}

impl Seat {
    fn answer(&self, answer: Answer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.signal.set(0);
    }

    /// Hands the request in that `task` makes, and waits for its answer.
    fn wait(port: &dyn Port, worker: WorkerId, task: impl FnOnce(Taker) -> LockTask) -> Answer {
        let make = || Arc::new(Self { signal: Signal::new(), answer: Mutex::default() });
        let seat = SEAT.take().unwrap_or_else(make);
        port.submit_and_wait(worker, task(Taker(Some(Tell::Seat(seat.clone())))), &seat.signal);
        let answer = seat.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        SEAT.set(Some(seat));
        answer.unwrap_or(Err(LockError::Stopped))
    }
}

/// Whether the cluster grants locks.
#[derive(Default)]
pub struct State {
    stopped: AtomicBool,
}

impl State {
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Acquire)
    }
}

/// The lock manager of a node. Cheap to clone.
#[derive(Clone)]
pub struct Locks(Arc<Inner>);

struct Inner {
    port: Arc<dyn Port>,
    workers: u8,
    state: Arc<State>,
    /// Numbers for locks and owners, none given twice.
    next: AtomicU64,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Of what.
    pub name: Name,
    /// In which mode.
    pub mode: Mode,
    /// How long it waits; nothing: as long as it takes. No time at all: not.
    pub patience: Option<Duration>,
}

/// One piece of work that takes locks, a transaction say. To the search for deadlocks all that it has and waits for is one's; of several that
/// wait for each other the session that is youngest is refused, so who begins again after that keeps its session. Cheap to clone.
#[derive(Clone)]
pub struct Session {
    locks: Locks,
    owner: Owner,
    born: u64,
    watches: bool,
}

impl Session {
    /// The same piece of work, with holders that are told when others wait for what they have: see [`Lock::notice`].
    #[must_use]
    pub fn watching(&self) -> Self {
        Self { watches: true, ..self.clone() }
    }

    /// Asks for a lock.
    #[must_use]
    pub fn ask(&self, ask: Ask) -> Waiting {
        let (want, place) = self.want(ask);
        let (tell, told) = mpsc::channel();
        let taker = Taker(Some(Tell::Channel(tell)));
        place.submit(LockTask::Ask(Event::Lock(want), place.lock, taker));
        Waiting { place: Some(place), told }
    }

    /// Asks for a lock and waits for it. The calling thread drives the worker until it is answered: that is faster than [`Session::ask`] and
    /// [`Waiting::finish`].
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn lock(&self, ask: Ask) -> Result<Lock, LockError> {
        let (want, place) = self.want(ask);
        let (port, lock) = (&*self.locks.0.port, place.lock);
        let grant = Seat::wait(port, place.worker, |taker| LockTask::Ask(Event::Lock(want), lock, taker))?;
        Ok(Lock { place, grant, value: None })
    }

    fn want(&self, ask: Ask) -> (Want, Place) {
        let Ask { name, mode, patience } = ask;
        let inner = &self.locks.0;
        let worker = name.partition().worker(inner.workers);
        let lock = LockId(inner.next.fetch_add(1, Relaxed));
        let (owner, born, patience) = (self.owner, self.born, patience_of(patience));
        let notices = self.watches.then(Arc::<Notices>::default);
        let place = Place { locks: self.locks.clone(), worker, lock, notices };
        if let Some(notices) = &place.notices {
            place.submit(LockTask::Watch(lock, notices.clone()));
        }
        (Want { lock, owner, born, name, mode, patience, notify: self.watches }, place)
    }
}

impl Locks {
    /// The lock manager whose services have this state, behind `port`.
    #[must_use]
    pub fn new(port: Arc<dyn Port>, workers: u8, state: Arc<State>) -> Self {
        Self(Arc::new(Inner { port, workers, state, next: AtomicU64::new(1) }))
    }

    /// A piece of work that begins now.
    #[must_use]
    pub fn session(&self) -> Session {
        let owner = Owner(self.0.next.fetch_add(1, Relaxed));
        Session { locks: self.clone(), owner, born: nanos_since_1970(), watches: false }
    }

    /// Whether nothing is granted any more, and what is held protects nothing.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.state.is_stopped()
    }

    /// What this node masters and somebody has or wants.
    ///
    /// # Errors
    /// Not all workers answered within `limit`.
    pub fn survey(&self, limit: Duration) -> Result<Survey, mpsc::RecvTimeoutError> {
        let end = Instant::now() + limit;
        let answers = (0..self.0.workers).map(|worker| {
            let (tell, told) = mpsc::channel();
            self.0.port.submit(WorkerId(worker), LockTask::Survey(tell));
            told
        });
        let answers: Vec<_> = answers.collect();
        let parts = answers
            .into_iter()
            .map(|answer| answer.recv_timeout(end.saturating_duration_since(Instant::now())));
        Ok(Survey::joined(parts.collect::<Result<Vec<_>, _>>()?))
    }
}

fn nanos_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn patience_of(patience: Option<Duration>) -> Patience {
    match patience {
        None => Patience::Forever,
        Some(Duration::ZERO) => Patience::Try,
        Some(limit) => {
            let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
            Patience::Until(Nanos(clock::now().0.saturating_add(limit)))
        }
    }
}

/// Where a lock is known.
struct Place {
    locks: Locks,
    worker: WorkerId,
    lock: LockId,
    notices: Option<Arc<Notices>>,
}

impl Place {
    fn submit(&self, task: LockTask) {
        self.locks.0.port.submit(self.worker, task);
    }

    fn tell(&self, event: Event) {
        self.submit(LockTask::Tell(event));
    }
}

/// A request that is not answered yet. Dropped, it is given up, and so is the lock should it be granted all the same.
pub struct Waiting {
    place: Option<Place>,
    told: mpsc::Receiver<Answer>,
}

impl Waiting {
    /// Waits for the answer.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn finish(mut self) -> Result<Lock, LockError> {
        let answer = self.told.recv().unwrap_or(Err(LockError::Stopped));
        self.answered(answer)
    }

    fn answered(&mut self, answer: Answer) -> Result<Lock, LockError> {
        let place = self.place.take().expect("it is answered once");
        answer.map(|grant| Lock { place, grant, value: None })
    }

    /// Waits for the answer, for no longer than `limit`.
    ///
    /// # Errors
    /// Itself, to go on waiting, if there is none yet.
    pub fn wait(mut self, limit: Duration) -> Result<Result<Lock, LockError>, Self> {
        match self.told.recv_timeout(limit) {
            Ok(answer) => Ok(self.answered(answer)),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(self),
            Err(mpsc::RecvTimeoutError::Disconnected) => Ok(self.answered(Err(LockError::Stopped))),
        }
    }
}

impl Waiting {
    /// Asks to be answered soon: refused as cancelled, unless the grant was faster.
    pub fn cancel(&self) {
        if let Some(place) = &self.place {
            place.tell(Event::Cancel { lock: place.lock });
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            // Whether it waits or was granted just now.
            place.tell(Event::Unlock { lock: place.lock, value: None });
        }
    }
}

/// A lock that is held, until it is dropped.
pub struct Lock {
    place: Place,
    grant: Grant,
    /// What to write into the value block at the end.
    value: Option<[u8; VALUE_LEN]>,
}

impl Lock {
    /// What came with it.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Whether it protects nothing any more: the cluster has stopped.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.place.locks.0.state.is_stopped()
    }

    /// Converts it to another mode; waits as the request for a lock does, and stays as it is if that is refused.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn convert(&mut self, mode: Mode, patience: Option<Duration>) -> Result<&Grant, LockError> {
        self.convert_with(mode, patience, None)
    }

    /// The same, writing the value block, which takes PW or EX and goes to less.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn convert_writing(&mut self, mode: Mode, value: [u8; VALUE_LEN]) -> Result<&Grant, LockError> {
        self.convert_with(mode, None, Some(value))
    }

    fn convert_with(
        &mut self,
        mode: Mode,
        patience: Option<Duration>,
        value: Option<[u8; VALUE_LEN]>,
    ) -> Result<&Grant, LockError> {
        let Place { ref locks, worker, lock, .. } = self.place;
        let event = Event::Convert { lock, mode, patience: patience_of(patience), value };
        self.grant = Seat::wait(&*locks.0.port, worker, |taker| LockTask::Ask(event, lock, taker))?;
        Ok(&self.grant)
    }

    /// What its holder is to be told, for which it waits up to `limit`; of the locks of a session that is [watching](Session::watching).
    #[must_use]
    pub fn notice(&self, limit: Duration) -> Option<Notice> {
        self.place.notices.as_ref()?.next(limit)
    }

    /// Gives it up, writing the value block.
    ///
    /// # Errors
    /// [`Why::NotWriter`], where it is not held in PW or EX: then it is given up, and nothing is written.
    pub fn unlock_with(mut self, value: [u8; VALUE_LEN]) -> Result<(), LockError> {
        if !self.grant.mode.writes() {
            return Err(LockError::Refused(Why::NotWriter));
        }
        self.value = Some(value);
        Ok(())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.place.tell(Event::Unlock { lock: self.place.lock, value: self.value });
    }
}
