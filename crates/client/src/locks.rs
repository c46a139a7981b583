//! Locks of the cluster: six modes, conversions, value blocks, and notices to holders.
//!
//! A [`LockSession`] is one piece of work. The search for deadlocks treats all its locks and
//! requests as one owner's. Concurrent work therefore needs a session of its own. A [`Lock`] is
//! held until it is dropped. When a program ends, in any way, its locks are released at once; a
//! value block that it could have written is then invalid. Each grant has a [`Token`] greater than
//! those of all grants that it excludes.
//!
//! Requests can also be posted ([`LockQueue`]). Answers and blocking notices are then events to
//! poll or to wait for.

use std::time::{Duration, SystemTime};

pub use plexus_base::locks::{Grant, LockRefusal, Mode, Token, VALUE_LEN, Validity, Value};

use crate::{
    Client, Error,
    core::{EventTarget, answer},
    wire::{
        Status,
        lock::{ConvertRequest, FOREVER, NewLockMessage, SESSIONS},
    },
};

/// The time that the node gets to answer a request after the request's limit. If it does not, the
/// wait ends without it.
const ANSWER_GRACE: Duration = Duration::from_millis(100);

/// The name of a lock in a [`LockQueue`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockKey {
    pub(crate) worker: u8,
    pub(crate) number: u32,
}

/// One piece of work that takes locks. Of several sessions that wait for each other, the youngest
/// is the deadlock victim. A victim that tries again should keep its session, so that it grows
/// older. Cheap to clone.
#[derive(Clone)]
pub struct LockSession {
    client: Client,
    number: u32,
    start_time: u64,
    notify: bool,
}

impl Client {
    /// Creates a session that starts now.
    #[must_use]
    pub fn lock_session(&self) -> LockSession {
        let number = self.shared.act(|core| core.next()) as u32 % SESSIONS;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let start_time = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        LockSession { client: self.clone(), number, start_time, notify: false }
    }
}

impl LockSession {
    /// Returns the same session with blocking notices: its holders are told when others wait for
    /// their locks, see [`Lock::wait_wanted`].
    #[must_use]
    pub fn watching(&self) -> Self {
        Self { notify: true, ..self.clone() }
    }

    fn request<'a>(
        &self,
        name: &'a [u8],
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<NewLockMessage<'a>, Error> {
        if !(1..=plexus_base::locks::MAX_NAME).contains(&name.len()) {
            return Err(Error::Argument("the name of a lock must have 1 to 255 bytes"));
        }
        let Self { number: session, start_time, notify, .. } = *self;
        Ok(NewLockMessage { mode, notify, session, start_time, timeout_ns: timeout(limit), name })
    }

    /// Requests a lock and returns without waiting. `limit` is the timeout of the request: `None`
    /// waits forever; `Duration::ZERO` fails at once if the lock is not free.
    ///
    /// # Errors
    /// [`Error::Argument`], [`Error::LocksLost`], [`Error::Busy`].
    pub fn ask(
        &self,
        name: impl AsRef<[u8]>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<PendingLock, Error> {
        let request = self.request(name.as_ref(), mode, limit)?;
        let (key, id) = self.client.shared.request(|core| core.lock(&request, None, false))?;
        let (client, limit) = (self.client.clone(), wait_limit(limit));
        Ok(PendingLock(QueuedLockRequest { client, key, id, limit, converts: false, answered: false }))
    }

    /// Takes a lock, waiting up to `limit`: `None` waits forever; `Duration::ZERO` fails at once if
    /// the lock is not free. If the node stands still, the call returns 0.1 s after `limit`, or
    /// when the lease of the node ends.
    ///
    /// # Errors
    /// [`Error::NotLocked`] with the reason, [`Error::LocksLost`], [`Error::Argument`],
    /// [`Error::Busy`].
    pub fn lock(&self, name: impl AsRef<[u8]>, mode: Mode, limit: Option<Duration>) -> Result<Lock, Error> {
        let mut pending = self.ask(name, mode, limit)?;
        match pending.0.answer(pending.0.limit) {
            // Dropping the request gives up the lock.
            Err(Error::TimedOut) => Err(Error::NotLocked(LockRefusal::TimedOut)),
            answer => answer.map(|grant| pending.0.granted(grant)),
        }
    }
}

impl Client {
    /// Releases a lock and returns when the master has its value.
    fn unlock_writing(&self, key: LockKey, value: [u8; VALUE_LEN]) -> Result<(), Error> {
        let id = self.shared.request(|core| core.unlock_writing(key, value))?;
        match self.result(id, None)?.status {
            Status::Ok => Ok(()),
            _ => Err(Error::LocksLost),
        }
    }
}

/// Returns the longest wait for the answer to a request with this limit. A request that does not
/// queue is answered as soon as the master is asked, so only the lease of the node limits it.
fn wait_limit(limit: Option<Duration>) -> Option<Duration> {
    limit.filter(|limit| !limit.is_zero()).map(|limit| limit.saturating_add(ANSWER_GRACE))
}

/// Returns the timeout in nanoseconds, as on the wire.
fn timeout(limit: Option<Duration>) -> u64 {
    limit.map_or(FOREVER, |limit| u64::try_from(limit.as_nanos()).unwrap_or(FOREVER))
}

/// A request that is not answered yet. Dropping it releases the lock, even if it was granted
/// meanwhile.
pub struct PendingLock(QueuedLockRequest);

impl PendingLock {
    /// Waits up to `limit` for the answer; `None` waits forever.
    ///
    /// # Errors
    /// The request itself, to wait again, if there is no answer yet.
    pub fn wait(mut self, limit: Option<Duration>) -> Result<Result<Lock, Error>, Self> {
        match self.0.answer(limit) {
            Err(Error::TimedOut) => Err(self),
            answer => Ok(answer.map(|grant| self.0.granted(grant))),
        }
    }

    /// Cancels the request. It is answered soon: as cancelled, unless the grant came first.
    pub fn cancel(&self) {
        // An answered request needs no cancelling.
        let _ = self.0.client.shared.act(|core| core.cancel_lock(self.0.key));
    }
}

impl Drop for PendingLock {
    fn drop(&mut self) {
        if !self.0.answered {
            // A refused request has no lock.
            let _ = self.0.client.shared.act(|core| core.unlock(self.0.key));
        }
    }
}

/// A held lock, released when dropped.
pub struct Lock {
    client: Client,
    key: LockKey,
    grant: Grant,
}

impl Lock {
    /// Returns the grant of the lock.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Returns true while the lock protects anything. It does not after the program's node has
    /// ended or detached it, or after the cluster has stopped.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.client.shared.see(|core| !core.locks.is_lost()).unwrap_or(false)
    }

    /// Waits up to `limit` for a blocking notice; `None` waits forever. Returns the mode that the
    /// first waiting request wants. Sessions that are [watching](LockSession::watching) get one
    /// notice for each grant. The request may have ended since.
    ///
    /// # Errors
    /// - [`Error::TimedOut`]: no notice came within `limit`.
    /// - [`Error::LocksLost`], [`Error::NodeLost`]: the lock protects nothing any more.
    pub fn wait_wanted(&self, limit: Option<Duration>) -> Result<Mode, Error> {
        self.client.shared.wait(self.client.waiting(), limit, |core| {
            match core.locks.take_wanted(self.key) {
                Some(mode) => Some(Ok(mode)),
                None => core.locks.is_lost().then_some(Err(Error::LocksLost)),
            }
        })?
    }

    /// Converts the lock to another mode, waiting up to `limit`. If that is refused, the lock keeps
    /// its mode. Until the answer it may be used for what both modes allow.
    ///
    /// # Errors
    /// - [`Error::NotLocked`] with the reason, [`Error::LocksLost`].
    /// - [`Error::TimedOut`]: the node stands still and has not answered yet.
    pub fn convert(&mut self, mode: Mode, limit: Option<Duration>) -> Result<&Grant, Error> {
        let request = ConvertRequest { mode, timeout_ns: timeout(limit), value: None };
        self.convert_with(request, wait_limit(limit))
    }

    /// Converts the lock from PW or EX to a lower mode, and writes the value block.
    ///
    /// # Errors
    /// [`Error::NotLocked`] with the reason, [`Error::LocksLost`].
    pub fn convert_writing(&mut self, mode: Mode, value: [u8; VALUE_LEN]) -> Result<&Grant, Error> {
        self.convert_with(ConvertRequest { mode, timeout_ns: FOREVER, value: Some(value) }, None)
    }

    fn convert_with(&mut self, request: ConvertRequest, limit: Option<Duration>) -> Result<&Grant, Error> {
        let id = self.client.shared.request(|core| core.convert(self.key, &request, None, false))?;
        let done = self.client.result(id, limit)?;
        self.grant = answer(done.status, done.value, &done.bytes)?;
        Ok(&self.grant)
    }

    /// Writes the value block and releases the lock. Returns when the lock's master has the value.
    ///
    /// # Errors
    /// - [`LockRefusal::NotWriter`]: the lock is not held in PW or EX. It is released and nothing
    ///   is written.
    /// - [`Error::LocksLost`], [`Error::NodeLost`]: the value may not be written.
    pub fn unlock_with(self, value: [u8; VALUE_LEN]) -> Result<(), Error> {
        self.client.unlock_writing(self.key, value)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // `unlock_with` may have released it already.
        let _ = self.client.shared.act(|core| core.unlock(self.key));
    }
}

/// The cookie of a lock's events, and which events it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventMark {
    /// The cookie that the events carry.
    pub cookie: u64,
    /// True if blocking notices are events; only sessions that are
    /// [watching](LockSession::watching) have them.
    pub wanted: bool,
}

impl From<u64> for EventMark {
    /// Returns a mark with this cookie and all events.
    fn from(cookie: u64) -> Self {
        Self { cookie, wanted: true }
    }
}

/// An event of a lock in a queue.
#[derive(Debug)]
pub struct LockEvent {
    /// The cookie of the last request for the lock, see [`EventMark`].
    pub cookie: u64,
    /// The kind of event.
    pub kind: LockEventKind,
}

/// The kind of a lock event.
#[derive(Debug)]
pub enum LockEventKind {
    /// A request or conversion was granted or refused.
    Answered(Result<Grant, Error>),
    /// Other requests wait for the lock, the first of them for this mode.
    Wanted(Mode),
    /// The release by [`LockQueue::post_unlock`] is complete.
    Unlocked,
}

/// A lock request with an answer to wait for.
pub struct QueuedLockRequest {
    client: Client,
    key: LockKey,
    id: u64,
    /// The longest wait for the answer.
    limit: Option<Duration>,
    /// True for a conversion.
    converts: bool,
    answered: bool,
}

impl QueuedLockRequest {
    /// Returns the key of the lock.
    #[must_use]
    pub fn key(&self) -> LockKey {
        self.key
    }

    /// Waits for the answer. If the lock is released meanwhile, that is [`LockRefusal::Cancelled`],
    /// unless the grant came first. If the node stands still, the wait ends 0.1 s after the limit
    /// of the request: a new lock is then given up, and a conversion is cancelled.
    ///
    /// # Errors
    /// - The error with which the request was refused.
    /// - [`Error::TimedOut`]: the node has not answered a conversion yet. Until it does, the lock
    ///   may be used for what both modes allow.
    pub fn wait(mut self) -> Result<Grant, Error> {
        let answer = self.answer(self.limit);
        if !matches!(answer, Err(Error::TimedOut)) {
            return answer;
        }
        let shared = &self.client.shared;
        // A lock that another thread has released meanwhile needs neither.
        if self.converts {
            let _ = shared.act(|core| core.cancel_lock(self.key));
            return answer;
        }
        let _ = shared.act(|core| core.unlock(self.key));
        Err(Error::NotLocked(LockRefusal::TimedOut))
    }

    /// Waits up to `limit` for the answer; [`Error::TimedOut`] if there is none yet.
    fn answer(&mut self, limit: Option<Duration>) -> Result<Grant, Error> {
        let done =
            self.client.shared.wait(self.client.waiting(), limit, |core| core.take_finished(self.id))?;
        self.answered = true;
        answer(done.status, done.value, &done.bytes)
    }

    fn granted(&self, grant: Grant) -> Lock {
        Lock { client: self.client.clone(), key: self.key, grant }
    }
}

impl Drop for QueuedLockRequest {
    fn drop(&mut self) {
        if !self.answered {
            self.client.shared.act(|core| core.abandon(self.id));
        }
    }
}

/// A queue for posted lock requests and their events. Dropping it releases all its locks.
pub struct LockQueue {
    session: LockSession,
    number: u64,
}

impl LockSession {
    /// Creates a queue for requests of this session.
    #[must_use]
    pub fn queue(&self) -> LockQueue {
        let number = self.client.shared.act(|core| {
            let number = core.next();
            core.locks.open_queue(number);
            number
        });
        LockQueue { session: self.clone(), number }
    }
}

impl LockQueue {
    /// Requests a lock; the answer is an event.
    ///
    /// # Errors
    /// The errors of [`LockSession::ask`]; nothing is posted then.
    pub fn lock(
        &self,
        mark: impl Into<EventMark>,
        name: impl AsRef<[u8]>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<LockKey, Error> {
        let request = self.session.request(name.as_ref(), mode, limit)?;
        let post = EventTarget { queue: self.number, mark: mark.into() };
        Ok(self.session.client.shared.request(|core| core.lock(&request, Some(post), true))?.0)
    }

    /// Requests a lock. The caller waits for the answer; later events go to the queue.
    ///
    /// # Errors
    /// The errors of [`LockSession::ask`]; nothing is posted then.
    pub fn ask(
        &self,
        mark: impl Into<EventMark>,
        name: impl AsRef<[u8]>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<QueuedLockRequest, Error> {
        let request = self.session.request(name.as_ref(), mode, limit)?;
        let (client, post) =
            (self.session.client.clone(), EventTarget { queue: self.number, mark: mark.into() });
        let (key, id) = client.shared.request(|core| core.lock(&request, Some(post), false))?;
        let limit = wait_limit(limit);
        Ok(QueuedLockRequest { client, key, id, limit, converts: false, answered: false })
    }

    /// Requests another mode; the answer is an event. `value` is written if the mode is lowered.
    ///
    /// # Errors
    /// [`Error::NotLocked`]: there is no such lock, it is not granted, or its value may not be
    /// written.
    pub fn convert(
        &self,
        key: LockKey,
        mark: impl Into<EventMark>,
        mode: Mode,
        limit: Option<Duration>,
        value: Option<[u8; VALUE_LEN]>,
    ) -> Result<(), Error> {
        let request = ConvertRequest { mode, timeout_ns: timeout(limit), value };
        let client = &self.session.client;
        client.shared.request(|core| core.convert(key, &request, Some(mark.into()), true)).map(drop)
    }

    /// Requests another mode as [`LockQueue::convert`] does; the caller waits for the answer.
    ///
    /// # Errors
    /// The errors of [`LockQueue::convert`].
    pub fn ask_convert(
        &self,
        key: LockKey,
        mark: impl Into<EventMark>,
        mode: Mode,
        limit: Option<Duration>,
        value: Option<[u8; VALUE_LEN]>,
    ) -> Result<QueuedLockRequest, Error> {
        let request = ConvertRequest { mode, timeout_ns: timeout(limit), value };
        let client = self.session.client.clone();
        let id = client.shared.request(|core| core.convert(key, &request, Some(mark.into()), false))?;
        let limit = wait_limit(limit);
        Ok(QueuedLockRequest { client, key, id, limit, converts: true, answered: false })
    }

    /// Releases a lock, and writes `value` into its value block. With a value it returns when the
    /// lock's master has it. Its events are removed; a pending request is still answered.
    ///
    /// # Errors
    /// - [`Error::NotLocked`]: there is no such lock, or its value may not be written. The lock
    ///   then stays.
    /// - [`Error::LocksLost`], [`Error::NodeLost`]: the value may not be written.
    pub fn unlock(&self, key: LockKey, value: Option<[u8; VALUE_LEN]>) -> Result<(), Error> {
        let client = &self.session.client;
        match value {
            Some(value) => client.unlock_writing(key, value),
            None => client.shared.request(|core| core.unlock(key)),
        }
    }

    /// Releases a lock as [`LockQueue::unlock`] does, with one event when the node has confirmed.
    ///
    /// # Errors
    /// The errors of [`LockQueue::unlock`], and [`Error::LocksLost`].
    pub fn post_unlock(&self, key: LockKey, value: Option<[u8; VALUE_LEN]>) -> Result<(), Error> {
        self.session.client.shared.request(|core| core.unlock_posted(key, value))
    }

    /// Cancels the posted request for a lock. It is answered soon: as cancelled, unless the grant
    /// came first.
    ///
    /// # Errors
    /// [`Error::NotLocked`]: there is no such lock.
    pub fn cancel(&self, key: LockKey) -> Result<(), Error> {
        self.session.client.shared.request(|core| core.cancel_lock(key))
    }

    /// Waits up to `limit` for the next event; `None` waits forever.
    ///
    /// # Errors
    /// - [`Error::TimedOut`]: no event came within `limit`.
    /// - [`Error::LocksLost`], [`Error::NodeLost`]: no events are left, and the locks protect
    ///   nothing any more.
    pub fn wait(&self, limit: Option<Duration>) -> Result<LockEvent, Error> {
        let client = &self.session.client;
        client.shared.wait(client.waiting(), limit, |core| core.lock_event(self.number))?
    }
}

impl Drop for LockQueue {
    fn drop(&mut self) {
        self.session.client.shared.act(|core| core.close_lock_queue(self.number));
    }
}
