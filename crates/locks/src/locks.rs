//! How threads of a node use the lock manager.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
        mpsc,
    },
    time::{Duration, SystemTime},
};

pub use plexus_base::locks::Grant;
use plexus_base::{WorkerId, clock};
use plexus_interconnect::{Reply, ReplySlot};
use plexus_membership::subsystem::ask_each;

use crate::{
    notice::{Notice, Notices},
    protocol::{Counts, Event, LockId, LockRefusal, Mode, Name, Owner, VALUE_LEN, WaitLimit, Want},
    service::{LockTask, Port},
    survey::Survey,
};

/// Why a lock was not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LockError {
    /// The lock manager says why not.
    #[error(transparent)]
    Refused(#[from] LockRefusal),
    /// This node is no member of the cluster, or none any more.
    #[error("this node has stopped: it grants no lock, and none that is held here protects anything")]
    Stopped,
}

pub(crate) type Answer = Result<Grant, LockError>;

/// What a thread wants of a worker's lock manager and is answered.
pub enum Asked {
    /// A lock, and who is told what happens to it.
    Lock(Want, Option<Arc<Notices>>),
    /// A lock that it has in another mode; see [`Event::Convert`].
    Convert {
        /// The lock.
        lock: LockId,
        /// The mode wanted.
        mode: Mode,
        /// How long it waits.
        timeout: WaitLimit,
        /// What to write into the value block.
        value: Option<[u8; VALUE_LEN]>,
    },
}

impl Asked {
    pub(crate) fn lock(&self) -> LockId {
        match self {
            Self::Lock(Want { lock, .. }, _) | Self::Convert { lock, .. } => *lock,
        }
    }
}

thread_local! {
    static SLOT: RefCell<Option<Arc<ReplySlot<Answer>>>> = const { RefCell::new(None) };
}

/// Asks, and waits for the answer in the calling thread's slot if it is not there at once.
fn ask_and_wait(port: &Port, worker: WorkerId, asked: Asked) -> Answer {
    let lock = asked.lock();
    let own = || SLOT.take().unwrap_or_else(ReplySlot::new);
    let (mut asked, mut answer, mut slot) = (Some(asked), None, None);
    port.visit(worker, &mut |service, net| {
        let Some(asked) = asked.take() else { return };
        answer = service.ask(net, asked);
        if answer.is_none() {
            service.answer_to(lock, slot.insert(own()).reply());
        }
    });
    if let Some(answer) = answer {
        return answer;
    }
    let slot = slot.unwrap_or_else(own);
    port.wait(worker, asked.map(|asked| LockTask::Ask(asked, slot.reply())), slot.signal());
    let answer = slot.take();
    SLOT.set(Some(slot));
    answer.unwrap_or(Err(LockError::Stopped))
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
    port: Arc<Port>,
    workers: u8,
    state: Arc<State>,
}

/// Numbers that a thread takes at once.
const NUMBERS: u64 = 1024;

/// A number for a lock or an owner: none is given twice in the incarnation of a process. Threads take them in stocks, so as not to meet at each one.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static STOCK: Cell<Range<u64>> = const { Cell::new(0..0) };
    }
    let mut stock = STOCK.take();
    if stock.is_empty() {
        let first = NEXT.fetch_add(NUMBERS, Relaxed);
        stock = first..first + NUMBERS;
    }
    let number = stock.start;
    STOCK.set(number + 1..stock.end);
    number
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Of what.
    pub name: Name,
    /// In which mode.
    pub mode: Mode,
    /// How long it waits; nothing: as long as it takes. No time at all: not.
    pub timeout: Option<Duration>,
}

/// One piece of work that takes locks, a transaction say. To the search for deadlocks all that it has and waits for is one's; of several that
/// wait for each other the session that is youngest is refused, so who begins again after that keeps its session. Cheap to clone.
#[derive(Clone)]
pub struct Session {
    work: Arc<Work>,
    watches: bool,
}

struct Work {
    locks: Locks,
    owner: Owner,
    start_time: u64,
}

impl Session {
    /// The same piece of work, with holders that are told when others wait for what they have: see [`Lock::notice`].
    #[must_use]
    pub fn watching(&self) -> Self {
        Self { work: self.work.clone(), watches: true }
    }

    /// Asks for a lock.
    #[must_use]
    pub fn ask(&self, ask: Ask) -> Waiting {
        let (asked, place) = self.want(ask);
        let (reply, told) = Reply::channel();
        place.submit(LockTask::Ask(asked, reply));
        Waiting { place: Some(place), told }
    }

    /// Asks for a lock and waits for it. The calling thread drives the worker until it is answered: that is faster than [`Session::ask`] and
    /// [`Waiting::finish`].
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn lock(&self, ask: Ask) -> Result<Lock, LockError> {
        let (asked, place) = self.want(ask);
        let grant = ask_and_wait(place.port(), place.worker, asked)?;
        Ok(Lock { place, grant, value: None })
    }

    fn want(&self, ask: Ask) -> (Asked, Place) {
        let Ask { name, mode, timeout } = ask;
        let Work { ref locks, owner, start_time } = *self.work;
        let worker = name.partition().worker(locks.0.workers);
        let (lock, timeout) = (LockId(number()), timeout_of(timeout));
        let notices = self.watches.then(Arc::<Notices>::default);
        let place = Place { work: self.work.clone(), worker, lock, notices: notices.clone() };
        let want = Want { lock, owner, start_time, name, mode, timeout, notify: self.watches };
        (Asked::Lock(want, notices), place)
    }
}

impl Locks {
    /// The lock manager whose services have this state, behind `port`.
    #[must_use]
    pub fn new(port: Arc<Port>, workers: u8, state: Arc<State>) -> Self {
        Self(Arc::new(Inner { port, workers, state }))
    }

    /// A piece of work that begins now.
    #[must_use]
    pub fn session(&self) -> Session {
        let work = Work { locks: self.clone(), owner: Owner(number()), start_time: nanos_since_1970() };
        Session { work: Arc::new(work), watches: false }
    }

    /// Whether nothing is granted any more, and what is held protects nothing.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.state.is_stopped()
    }

    /// What this node masters and somebody has or wants; `None`: not all workers answered within `limit`.
    #[must_use]
    pub fn survey(&self, limit: Duration) -> Option<Survey> {
        Some(Survey::joined(self.each(limit, LockTask::Survey)?))
    }

    /// What the workers counted of locks since they began; `None`: not all of them answered within `limit`.
    #[must_use]
    pub fn counts(&self, limit: Duration) -> Option<Counts> {
        let mut sum = Counts::default();
        self.each(limit, LockTask::Counts)?.iter().for_each(|counts| sum.add(counts));
        Some(sum)
    }

    /// What each worker answers.
    fn each<T>(&self, limit: Duration, task: impl Fn(Reply<T>) -> LockTask) -> Option<Vec<T>> {
        let Inner { port, workers, .. } = &*self.0;
        let answers = ask_each(&**port, *workers, limit, task);
        (answers.len() == usize::from(*workers)).then_some(answers)
    }
}

fn nanos_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn timeout_of(timeout: Option<Duration>) -> WaitLimit {
    let nanos = |limit: Duration| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    WaitLimit::of(timeout.map(nanos), clock::now)
}

/// Where a lock is known.
struct Place {
    work: Arc<Work>,
    worker: WorkerId,
    lock: LockId,
    notices: Option<Arc<Notices>>,
}

impl Place {
    fn port(&self) -> &Port {
        &*self.work.locks.0.port
    }

    fn submit(&self, task: LockTask) {
        self.port().submit(self.worker, task);
    }

    fn unlock(&self, value: Option<[u8; VALUE_LEN]>) {
        let lock = self.lock;
        if !self.port().visit(self.worker, &mut |service, net| service.unlock(net, lock, value)) {
            self.tell(Event::Unlock { lock, value });
        }
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

    /// Waits for the answer for as long as it is `wanted`, which is asked after each `every`; none: it is not, and the request is given up.
    pub fn wait_while(
        mut self,
        every: Duration,
        mut wanted: impl FnMut() -> bool,
    ) -> Option<Result<Lock, LockError>> {
        loop {
            match self.wait(every) {
                Ok(answer) => return Some(answer),
                Err(still) if wanted() => self = still,
                Err(_) => return None,
            }
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
            place.unlock(None);
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
        self.place.work.locks.is_stopped()
    }

    /// Converts it to another mode; waits as the request for a lock does, and stays as it is if that is refused.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn convert(&mut self, mode: Mode, timeout: Option<Duration>) -> Result<&Grant, LockError> {
        self.convert_with(mode, timeout, None)
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
        timeout: Option<Duration>,
        value: Option<[u8; VALUE_LEN]>,
    ) -> Result<&Grant, LockError> {
        let Place { worker, lock, .. } = self.place;
        let asked = Asked::Convert { lock, mode, timeout: timeout_of(timeout), value };
        self.grant = ask_and_wait(self.place.port(), worker, asked)?;
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
    /// [`LockRefusal::NotWriter`], where it is not held in PW or EX: then it is given up, and nothing is written.
    pub fn unlock_with(mut self, value: [u8; VALUE_LEN]) -> Result<(), LockError> {
        if !self.grant.mode.writes() {
            return Err(LockError::Refused(LockRefusal::NotWriter));
        }
        self.value = Some(value);
        Ok(())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.place.unlock(self.value);
    }
}
