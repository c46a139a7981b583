//! Locks of the cluster: six modes, conversions, value blocks, and notices to holders.
//!
//! A [`LockSession`] is one piece of work. To the search for deadlocks all that it has and waits for is one's, so work that goes on beside it has a
//! session of its own. A [`Lock`] is held until it is dropped; what a program holds when it ends, in whatever way, is released at once, and
//! a value block that it could have written counts as lost. With every grant comes a [`Token`] greater than those of all grants that it excludes.
//!
//! Requests can be posted instead ([`LockQueue`]): then answers, and that others wait, are events to poll or to wait for.

use std::time::{Duration, SystemTime};

pub use plexus_base::locks::{Grant, LockRefusal, Mode, Token, VALUE_LEN, Validity, Value};

use crate::{
    Client, Error,
    core::{Post, answer},
    wire::lock::{ConvertRequest, FOREVER, LockRequest, SESSIONS},
};

/// Names a lock of a [`LockQueue`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockKey {
    pub(crate) worker: u8,
    pub(crate) number: u32,
}

/// One piece of work that takes locks. Of several that wait for each other the one is refused whose session is youngest, so who
/// begins again after that keeps its session. Cheap to clone.
#[derive(Clone)]
pub struct LockSession {
    client: Client,
    number: u32,
    start_time: u64,
    notify: bool,
}

impl Client {
    /// A piece of work that begins now.
    #[must_use]
    pub fn lock_session(&self) -> LockSession {
        let number = self.shared.act(|core| core.next()) as u32 % SESSIONS;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let start_time = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        LockSession { client: self.clone(), number, start_time, notify: false }
    }
}

impl LockSession {
    /// The same piece of work, with holders that are told when others wait for what they have: see [`Lock::wait_wanted`].
    #[must_use]
    pub fn watching(&self) -> Self {
        Self { notify: true, ..self.clone() }
    }

    fn request<'a>(
        &self,
        name: &'a [u8],
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<LockRequest<'a>, Error> {
        if !(1..=plexus_base::locks::MAX_NAME).contains(&name.len()) {
            return Err(Error::Argument("a lock needs a name of 1 to 255 bytes"));
        }
        let Self { number: session, start_time, notify, .. } = *self;
        Ok(LockRequest { mode, notify, session, start_time, timeout_ns: timeout(limit), name })
    }

    /// Asks for a lock, which will wait up to `limit` (`None`: as long as it takes; no time: not at all).
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
        let (key, id) = self.client.shared.act(|core| core.lock(&request, None, false))?;
        Ok(PendingLock(AskedLock { client: self.client.clone(), key, id, answered: false }))
    }

    /// Takes a lock, for which it waits up to `limit` (`None`: as long as it takes; no time: not at all).
    ///
    /// # Errors
    /// [`Error::NotLocked`] with the reason, [`Error::LocksLost`], [`Error::Argument`], [`Error::Busy`].
    pub fn lock(&self, name: impl AsRef<[u8]>, mode: Mode, limit: Option<Duration>) -> Result<Lock, Error> {
        let mut pending = self.ask(name, mode, limit)?;
        pending.0.answer(None).map(|grant| pending.0.granted(grant))
    }
}

/// Nanoseconds on the wire.
fn timeout(limit: Option<Duration>) -> u64 {
    limit.map_or(FOREVER, |limit| u64::try_from(limit.as_nanos()).unwrap_or(FOREVER))
}

/// A request that is not answered yet. Dropped, it is given up, and so is the lock should it be granted all the same.
pub struct PendingLock(AskedLock);

impl PendingLock {
    /// Waits for the answer, for no longer than `limit` (`None`: as long as it takes).
    ///
    /// # Errors
    /// Itself, to go on waiting, if there is none yet.
    pub fn wait(mut self, limit: Option<Duration>) -> Result<Result<Lock, Error>, Self> {
        match self.0.answer(limit) {
            Err(Error::TimedOut) => Err(self),
            answer => Ok(answer.map(|grant| self.0.granted(grant))),
        }
    }

    /// Asks to be answered soon: refused as cancelled, unless the grant was faster.
    pub fn cancel(&self) {
        // One that is answered needs no cancelling.
        let _ = self.0.client.shared.act(|core| core.cancel_lock(self.0.key));
    }
}

impl Drop for PendingLock {
    fn drop(&mut self) {
        if !self.0.answered {
            // One that was refused meanwhile is gone.
            let _ = self.0.client.shared.act(|core| core.unlock(self.0.key, None));
        }
    }
}

/// A lock that is held, until it is dropped.
pub struct Lock {
    client: Client,
    key: LockKey,
    grant: Grant,
}

impl Lock {
    /// What came with it.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Whether it protects anything: not when the program's node has ended or cut it off, or the cluster has stopped.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.client.shared.see(|core| !core.locks.is_lost()).unwrap_or(false)
    }

    /// Waits up to `limit` (`None`: without end) until others wait for it: for which mode the first of them does. Said once for each grant, of
    /// sessions that are [watching](LockSession::watching); it may no longer be so.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::LocksLost`], [`Error::NodeLost`]: it protects nothing any more.
    pub fn wait_wanted(&self, limit: Option<Duration>) -> Result<Mode, Error> {
        self.client.shared.wait(self.client.waiting(), limit, |core| {
            match core.locks.take_wanted(self.key) {
                Some(mode) => Some(Ok(mode)),
                None => core.locks.is_lost().then_some(Err(Error::LocksLost)),
            }
        })?
    }

    /// Converts it to another mode, for which it waits as the request for a lock does; refused, it stays as it is. Until it is answered it may be
    /// used for what both modes allow.
    ///
    /// # Errors
    /// [`Error::NotLocked`] with the reason, [`Error::LocksLost`].
    pub fn convert(&mut self, mode: Mode, limit: Option<Duration>) -> Result<&Grant, Error> {
        self.convert_with(ConvertRequest { mode, timeout_ns: timeout(limit), value: None })
    }

    /// Converts it from PW or EX to less, writing the value block.
    ///
    /// # Errors
    /// The same.
    pub fn convert_writing(&mut self, mode: Mode, value: [u8; VALUE_LEN]) -> Result<&Grant, Error> {
        self.convert_with(ConvertRequest { mode, timeout_ns: FOREVER, value: Some(value) })
    }

    fn convert_with(&mut self, request: ConvertRequest) -> Result<&Grant, Error> {
        let id = self.client.shared.act(|core| core.convert(self.key, &request, None, false))?;
        let done = self.client.result(id, None)?;
        self.grant = answer(done.status, done.value, &done.bytes)?;
        Ok(&self.grant)
    }

    /// Gives it up, writing the value block.
    ///
    /// # Errors
    /// [`LockRefusal::NotWriter`], where it is not held in PW or EX: then it is given up, and nothing is written.
    pub fn unlock_with(self, value: [u8; VALUE_LEN]) -> Result<(), Error> {
        self.client.shared.act(|core| core.unlock(self.key, Some(value)))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // One that was given up with a value is gone.
        let _ = self.client.shared.act(|core| core.unlock(self.key, None));
    }
}

/// What a lock of a queue is asked for with: which events it has from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// What they carry.
    pub cookie: u64,
    /// Whether it is one that others wait for the lock; of sessions that are [watching](LockSession::watching).
    pub wanted: bool,
}

impl From<u64> for Mark {
    /// All events, with this cookie.
    fn from(cookie: u64) -> Self {
        Self { cookie, wanted: true }
    }
}

/// Something that happened to a lock of a queue.
#[derive(Debug)]
pub struct LockEvent {
    /// That of the [`Mark`] with which the lock was last asked for.
    pub cookie: u64,
    /// What happened.
    pub news: LockNews,
}

/// What happens to locks of a queue.
#[derive(Debug)]
pub enum LockNews {
    /// A request or conversion is granted or not.
    Answered(Result<Grant, Error>),
    /// Others wait for it, the first of them for this mode.
    Wanted(Mode),
    /// It was given up by [`LockQueue::post_unlock`].
    Unlocked,
}

/// A request whose answer is waited for.
pub struct AskedLock {
    client: Client,
    key: LockKey,
    id: u64,
    answered: bool,
}

impl AskedLock {
    /// The lock.
    #[must_use]
    pub fn key(&self) -> LockKey {
        self.key
    }

    /// Waits for the answer. Where the lock is given up meanwhile, that is [`LockRefusal::Cancelled`], unless the grant was faster.
    ///
    /// # Errors
    /// What the request comes to.
    pub fn wait(mut self) -> Result<Grant, Error> {
        self.answer(None)
    }

    /// The answer, for which it waits up to `limit`; [`Error::TimedOut`]: there is none yet.
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

impl Drop for AskedLock {
    fn drop(&mut self) {
        if !self.answered {
            self.client.shared.act(|core| core.abandon(self.id));
        }
    }
}

/// Where requests for locks are posted and their answers found. Dropped, it gives all its locks up.
pub struct LockQueue {
    session: LockSession,
    number: u64,
}

impl LockSession {
    /// A queue for requests of this session.
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
    /// Asks for a lock; the answer is an event.
    ///
    /// # Errors
    /// Of [`LockSession::ask`]; nothing is posted then.
    pub fn lock(
        &self,
        mark: impl Into<Mark>,
        name: impl AsRef<[u8]>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<LockKey, Error> {
        let request = self.session.request(name.as_ref(), mode, limit)?;
        let post = Post { queue: self.number, mark: mark.into() };
        Ok(self.session.client.shared.act(|core| core.lock(&request, Some(post), true))?.0)
    }

    /// Asks for a lock; the answer is waited for, and what happens to the lock later are events.
    ///
    /// # Errors
    /// The same.
    pub fn ask(
        &self,
        mark: impl Into<Mark>,
        name: impl AsRef<[u8]>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<AskedLock, Error> {
        let request = self.session.request(name.as_ref(), mode, limit)?;
        let (client, post) = (self.session.client.clone(), Post { queue: self.number, mark: mark.into() });
        let (key, id) = client.shared.act(|core| core.lock(&request, Some(post), false))?;
        Ok(AskedLock { client, key, id, answered: false })
    }

    /// Asks for another mode, perhaps writing the value block on the way to less; the answer is an event.
    ///
    /// # Errors
    /// [`Error::NotLocked`]: there is no such lock, it is waited for, or its value may not be written.
    pub fn convert(
        &self,
        key: LockKey,
        mark: impl Into<Mark>,
        mode: Mode,
        limit: Option<Duration>,
        value: Option<[u8; VALUE_LEN]>,
    ) -> Result<(), Error> {
        let request = ConvertRequest { mode, timeout_ns: timeout(limit), value };
        let client = &self.session.client;
        client.shared.act(|core| core.convert(key, &request, Some(mark.into()), true)).map(drop)
    }

    /// The same; the answer is waited for.
    ///
    /// # Errors
    /// The same.
    pub fn ask_convert(
        &self,
        key: LockKey,
        mark: impl Into<Mark>,
        mode: Mode,
        limit: Option<Duration>,
        value: Option<[u8; VALUE_LEN]>,
    ) -> Result<AskedLock, Error> {
        let request = ConvertRequest { mode, timeout_ns: timeout(limit), value };
        let client = self.session.client.clone();
        let id = client.shared.act(|core| core.convert(key, &request, Some(mark.into()), false))?;
        Ok(AskedLock { client, key, id, answered: false })
    }

    /// Gives a lock up, perhaps writing the value block. Of it no event is left; whoever waits for an answer has one.
    ///
    /// # Errors
    /// [`Error::NotLocked`]: there is no such lock, or its value may not be written; then it stays.
    pub fn unlock(&self, key: LockKey, value: Option<[u8; VALUE_LEN]>) -> Result<(), Error> {
        self.session.client.shared.act(|core| core.unlock(key, value))
    }

    /// The same, with one event: when the node knows.
    ///
    /// # Errors
    /// The same, and [`Error::LocksLost`].
    pub fn post_unlock(&self, key: LockKey, value: Option<[u8; VALUE_LEN]>) -> Result<(), Error> {
        self.session.client.shared.act(|core| core.unlock_posted(key, value))
    }

    /// Asks that what was posted for a lock be answered soon: refused as cancelled, unless the grant was faster.
    ///
    /// # Errors
    /// [`Error::NotLocked`]: there is no such lock.
    pub fn cancel(&self, key: LockKey) -> Result<(), Error> {
        self.session.client.shared.act(|core| core.cancel_lock(key))
    }

    /// The next event, for which it waits up to `limit` (`None`: without end).
    ///
    /// # Errors
    /// [`Error::TimedOut`]; when all events were taken, [`Error::LocksLost`] and [`Error::NodeLost`]: no lock protects anything any more.
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
