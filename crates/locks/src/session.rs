//! Sessions of a node's threads, and the locks that they take.

use std::{
    cell::Cell,
    future::Future,
    ops::Range,
    pin::Pin,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use plexus_base::{WorkerId, clock, locks::Grant};
use plexus_interconnect::executor;

use crate::{
    manager::LockManager,
    notice::{LockNotice, LockNotices},
    protocol::{
        Event, LockId, LockRefusal, LockRequest, Mode, Name, NewLock, Owner, RequestKind, VALUE_LEN,
        WaitLimit,
    },
    reply::{AskState, LockError, ask_and_wait, begin, follow},
    service::{LockPort, LockTask},
};

/// A flag that all workers of a node share; it is set when the node stops granting locks.
#[derive(Default)]
pub struct StopFlag(AtomicBool);

impl StopFlag {
    pub(crate) fn stop(&self) {
        self.0.store(true, Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.load(Acquire)
    }
}

/// How many numbers a thread takes at once.
const NUMBERS: u64 = 1024;

/// Returns a number for a lock or an owner that is unique in this process. Threads take numbers in
/// stocks, so that they rarely contend for the counter.
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

/// One piece of work that takes locks, for example a transaction. The deadlock search treats all
/// locks and requests of a session as those of one owner. The youngest session of a deadlock is the
/// victim, so work that is retried should keep its session. It is cheap to clone.
#[derive(Clone)]
pub struct NodeLockSession {
    work: Arc<Work>,
    watches: bool,
}

struct Work {
    manager: LockManager,
    owner: Owner,
    start_time: u64,
}

impl NodeLockSession {
    pub(crate) fn new(manager: LockManager) -> Self {
        let work = Work { manager, owner: Owner(number()), start_time: nanos_since_1970() };
        Self { work: Arc::new(work), watches: false }
    }

    /// Returns the same session with blocking notices for the locks that it takes: see
    /// [`NodeLock::notice`].
    #[must_use]
    pub fn watching(&self) -> Self {
        Self { work: self.work.clone(), watches: true }
    }

    /// Requests a lock. `timeout`: `None` waits forever; `Duration::ZERO` fails at once if the lock
    /// is not free.
    #[must_use]
    pub fn ask(&self, name: Name, mode: Mode, timeout: Option<Duration>) -> PendingNodeLock {
        let (request, place) = self.request(name, mode, timeout);
        let begun = begin(place.port(), place.worker, request, place.notices.clone());
        let state = follow(place.port(), place.worker, begun);
        PendingNodeLock { place: Some(place), state }
    }

    /// Requests a lock as [`NodeLockSession::ask`], and waits for it in a thread.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn lock(&self, name: Name, mode: Mode, timeout: Option<Duration>) -> Result<NodeLock, LockError> {
        let (request, place) = self.request(name, mode, timeout);
        let grant = ask_and_wait(place.port(), place.worker, request, place.notices.clone())?;
        Ok(NodeLock { place, grant, is_released: false })
    }

    fn request(&self, name: Name, mode: Mode, timeout: Option<Duration>) -> (LockRequest, LockPlace) {
        let Work { ref manager, owner, start_time } = *self.work;
        let (lock, worker) = (LockId(number()), manager.worker(&name));
        let notices = self.watches.then(Arc::<LockNotices>::default);
        let kind = RequestKind::New(NewLock { owner, start_time, name, notify: self.watches });
        let request = LockRequest { lock, mode, timeout: timeout_of(timeout), kind };
        (request, LockPlace { work: self.work.clone(), worker, lock, notices })
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

/// The session, worker and number that identify a lock.
struct LockPlace {
    work: Arc<Work>,
    worker: WorkerId,
    lock: LockId,
    notices: Option<Arc<LockNotices>>,
}

impl LockPlace {
    fn port(&self) -> &LockPort {
        self.work.manager.port()
    }

    fn unlock(&self, value: Option<[u8; VALUE_LEN]>) {
        let lock = self.lock;
        if !self.port().visit(self.worker, &mut |service, net| service.unlock(net, lock, value)) {
            self.tell(Event::Unlock { lock, value });
        }
    }

    fn tell(&self, event: Event) {
        self.port().submit(self.worker, LockTask::Tell(event));
    }
}

/// A request for a lock: a future. Dropping it cancels the request, and releases the lock if it was
/// granted meanwhile.
pub struct PendingNodeLock {
    place: Option<LockPlace>,
    state: AskState,
}

impl Future for PendingNodeLock {
    type Output = Result<NodeLock, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.state).poll(context).map(|result| {
            let place = self.place.take().expect("it is answered once");
            result.map(|grant| NodeLock { place, grant, is_released: false })
        })
    }
}

impl PendingNodeLock {
    /// Waits for the answer, in a thread.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn finish(self) -> Result<NodeLock, LockError> {
        executor::block_on(self)
    }

    /// Waits for the answer, for at most `limit`, in a thread.
    ///
    /// # Errors
    /// The pending request itself if there is no answer yet.
    pub fn wait(mut self, limit: Duration) -> Result<Result<NodeLock, LockError>, Self> {
        executor::block_on(executor::timeout(limit, &mut self)).ok_or(self)
    }

    /// Waits for the answer as long as `wanted` returns true, which is called after each `every`.
    /// `None` if `wanted` returned false; the request is then cancelled.
    pub fn wait_while(
        mut self,
        every: Duration,
        mut wanted: impl FnMut() -> bool,
    ) -> Option<Result<NodeLock, LockError>> {
        loop {
            match self.wait(every) {
                Ok(answer) => return Some(answer),
                Err(still) if wanted() => self = still,
                Err(_) => return None,
            }
        }
    }
}

impl PendingNodeLock {
    /// Asks for an early answer: the request is refused as cancelled unless it was granted first.
    pub fn cancel(&self) {
        if let Some(place) = &self.place {
            place.tell(Event::Cancel { lock: place.lock });
        }
    }
}

impl Drop for PendingNodeLock {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            // The request waits, or was granted just now.
            place.unlock(None);
        }
    }
}

/// A lock that is held until it is dropped.
pub struct NodeLock {
    place: LockPlace,
    grant: Grant,
    /// True once the lock was released with a value.
    is_released: bool,
}

impl NodeLock {
    /// Returns the grant: the mode, the token and the value block.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// True when the lock protects nothing now, because the node has stopped.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.place.work.manager.is_stopped()
    }

    /// Converts the lock to another mode; waits like a request for a new lock. The lock stays as it
    /// is if the conversion is refused.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn convert(&mut self, mode: Mode, timeout: Option<Duration>) -> Result<&Grant, LockError> {
        self.convert_with(mode, timeout, None)
    }

    /// Converts the lock as [`NodeLock::convert`], in a task. Dropping the future cancels the
    /// conversion, unless it was granted meanwhile: then the mode is in doubt, and counts as EX.
    ///
    /// # Errors
    /// See [`LockError`].
    pub async fn converted(&mut self, mode: Mode, timeout: Option<Duration>) -> Result<&Grant, LockError> {
        struct CancelOnDrop<'a>(Option<&'a LockPlace>);
        impl Drop for CancelOnDrop<'_> {
            fn drop(&mut self) {
                self.0.iter().for_each(|place| place.tell(Event::Cancel { lock: place.lock }));
            }
        }
        let (port, worker, lock) = (self.place.port(), self.place.worker, self.place.lock);
        let kind = RequestKind::Conversion { value: None };
        let request = LockRequest { lock, mode, timeout: timeout_of(timeout), kind };
        let state = follow(port, worker, begin(port, worker, request, None));
        let mut cancels = CancelOnDrop(Some(&self.place));
        let before = self.grant;
        self.grant.mode = Mode::EX;
        let granted = state.await;
        cancels.0 = None;
        drop(cancels);
        self.grant = *granted.as_ref().unwrap_or(&before);
        granted?;
        Ok(&self.grant)
    }

    /// Converts the lock from PW or EX to a lower mode and writes the value block.
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
        let (lock, timeout) = (self.place.lock, timeout_of(timeout));
        let request = LockRequest { lock, mode, timeout, kind: RequestKind::Conversion { value } };
        self.grant = ask_and_wait(self.place.port(), self.place.worker, request, None)?;
        Ok(&self.grant)
    }

    /// Returns the next notice for the holder and waits for it up to `limit`. Only locks of a
    /// [watching](NodeLockSession::watching) session get notices.
    #[must_use]
    pub fn notice(&self, limit: Duration) -> Option<LockNotice> {
        self.place.notices.as_ref()?.next(limit)
    }

    /// Releases the lock and writes the value block.
    ///
    /// # Errors
    /// [`LockRefusal::NotWriter`] if the lock is not held in PW or EX: it is released and nothing
    /// is written.
    pub fn unlock_with(mut self, value: [u8; VALUE_LEN]) -> Result<(), LockError> {
        if !self.grant.mode.writes() {
            return Err(LockError::Refused(LockRefusal::NotWriter));
        }
        self.place.unlock(Some(value));
        self.is_released = true;
        Ok(())
    }
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        if !self.is_released {
            self.place.unlock(None);
        }
    }
}
