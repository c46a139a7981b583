//! Advisory locks: locks of the cluster with numbers that clients choose (chapter 9.27.10 of
//! PostgreSQL's manual).
//!
//! A session counts its calls, and holds one lock of the lock manager for each number. An
//! evaluation cannot wait, so it notes the request and fails; it is repeated when the request is
//! answered. Other functions that wait use the same way.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use futures_util::lock::Mutex as TaskMutex;
use plexus_interconnect::executor;
use plexus_locks::{
    LockError, LockManager, NodeLock, NodeLockSession,
    protocol::{LockRefusal, Mode, Name},
};

use super::{Call, Context, Declared, function, ok};
use crate::{
    activity::Activity,
    error::{Result, SqlError, code},
    session::locks,
    types::{Value, time},
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("pg_advisory_lock(int4, int4) void; (int8) void volatile", |call| take(call, SESSION)),
    function("pg_advisory_lock_shared(int4, int4) void; (int8) void volatile", |call| take(call, SHARED)),
    function("pg_advisory_unlock(int4, int4) bool; (int8) bool volatile", |call| unlock(call, SESSION)),
    function("pg_advisory_unlock_all() void volatile", unlock_all),
    function("pg_advisory_unlock_shared(int4, int4) bool; (int8) bool volatile", |call| unlock(call, SHARED)),
    function("pg_advisory_xact_lock(int4, int4) void; (int8) void volatile", |call| take(call, TRANSACTION)),
    function("pg_advisory_xact_lock_shared(int4, int4) void; (int8) void volatile", |call| {
        take(call, SHARED_TRANSACTION)
    }),
    function("pg_try_advisory_lock(int4, int4) bool; (int8) bool volatile", |call| try_take(call, SESSION)),
    function("pg_try_advisory_lock_shared(int4, int4) bool; (int8) bool volatile", |call| {
        try_take(call, SHARED)
    }),
    function("pg_try_advisory_xact_lock(int4, int4) bool; (int8) bool volatile", |call| {
        try_take(call, TRANSACTION)
    }),
    function("pg_try_advisory_xact_lock_shared(int4, int4) bool; (int8) bool volatile", |call| {
        try_take(call, SHARED_TRANSACTION)
    }),
];

/// The kind of a lock: others may share it, and it ends with the transaction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Kind {
    is_shared: bool,
    is_of_transaction: bool,
}

const SESSION: Kind = Kind { is_shared: false, is_of_transaction: false };
const SHARED: Kind = Kind { is_shared: true, is_of_transaction: false };
const TRANSACTION: Kind = Kind { is_shared: false, is_of_transaction: true };
const SHARED_TRANSACTION: Kind = Kind { is_shared: true, is_of_transaction: true };

/// The longest sleep, in microseconds: a year.
const MOST_SLEEP: i64 = 366 * 86_400_000_000;

/// The number of a lock, or both of its numbers, as a part of its name.
type Key = String;

/// A call that waits for its answer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum AwaitedCall {
    Take {
        key: Key,
        kind: Kind,
        waits: bool,
    },
    Unlock {
        key: Key,
        kind: Kind,
    },
    UnlockAll,
    /// So many microseconds, or until this moment.
    Sleep {
        microseconds: i64,
        is_until: bool,
    },
    /// Cancels the statement of a session, or ends it and waits so long for its end.
    Signal {
        process: i32,
        ends: bool,
        within: Duration,
    },
}

fn key(call: &Call<'_>) -> Key {
    match call.count() {
        1 => call.int(0).to_string(),
        _ => format!("{}/{}", call.int(0), call.int(1)),
    }
}

fn take(call: &Call<'_>, kind: Kind) -> Result<Value> {
    call.context.advisory.answer(AwaitedCall::Take { key: key(call), kind, waits: true })?;
    ok("")
}

fn try_take(call: &Call<'_>, kind: Kind) -> Result<Value> {
    ok(call.context.advisory.answer(AwaitedCall::Take { key: key(call), kind, waits: false })?)
}

fn unlock(call: &Call<'_>, kind: Kind) -> Result<Value> {
    ok(call.context.advisory.answer(AwaitedCall::Unlock { key: key(call), kind })?)
}

fn unlock_all(call: &Call<'_>) -> Result<Value> {
    call.context.advisory.answer(AwaitedCall::UnlockAll)?;
    ok("")
}

/// A lock that the session holds, and how often.
struct AdvisoryLock {
    lock: Rc<TaskMutex<NodeLock>>,
    /// The calls that want it alone and that share it, each of the session and of the transaction.
    counts: [[u32; 2]; 2],
}

impl AdvisoryLock {
    fn count(&mut self, kind: Kind) -> &mut u32 {
        &mut self.counts[usize::from(kind.is_shared)][usize::from(kind.is_of_transaction)]
    }

    /// Returns the mode that the calls need.
    fn mode(&self) -> Option<Mode> {
        match self.counts {
            [[0, 0], [0, 0]] => None,
            [[0, 0], _] => Some(Mode::PR),
            _ => Some(Mode::EX),
        }
    }
}

/// The advisory locks of a session.
pub(crate) struct Advisory {
    /// `None` in tests of other parts.
    manager: Option<LockManager>,
    activity: Arc<Activity>,
    database: u32,
    /// The owner of the locks of the session, also of those on tables.
    owner: RefCell<Option<NodeLockSession>>,
    held: RefCell<BTreeMap<Key, AdvisoryLock>>,
    wanted: RefCell<Option<AwaitedCall>>,
    /// The calls of an evaluation with their answers, in their order, and the number of those used.
    answers: RefCell<Vec<(AwaitedCall, bool)>>,
    used: Cell<usize>,
    /// The messages for the client.
    warnings: RefCell<Vec<String>>,
}

impl fmt::Debug for Advisory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.held.borrow().keys()).finish()
    }
}

impl Advisory {
    pub(crate) fn new(manager: Option<LockManager>, activity: Arc<Activity>, database: u32) -> Self {
        Self {
            owner: manager.as_ref().map(LockManager::session).into(),
            manager,
            activity,
            database,
            held: RefCell::default(),
            wanted: RefCell::default(),
            answers: RefCell::default(),
            used: Cell::default(),
            warnings: RefCell::default(),
        }
    }

    /// Returns the owner of the locks of the session.
    pub(crate) fn owner(&self) -> Result<NodeLockSession> {
        self.owner.borrow().clone().ok_or_else(|| SqlError::unsupported("a lock in this place"))
    }

    /// Returns the answer to a call; else notes that it is wanted, and fails.
    pub(super) fn answer(&self, call: AwaitedCall) -> Result<bool> {
        let (mut answers, used) = (self.answers.borrow_mut(), self.used.get());
        if let Some((_, answer)) = answers.get(used).filter(|(known, _)| *known == call) {
            self.used.set(used + 1);
            return Ok(*answer);
        }
        // An expression may choose another call when it is repeated.
        answers.truncate(used);
        self.wanted.replace(Some(call));
        Err(SqlError::unsupported("an advisory lock in this place"))
    }

    /// Returns the call whose answer an evaluation has missed; the evaluation is repeated.
    pub(crate) fn take_wanted(&self) -> Option<AwaitedCall> {
        self.used.set(0);
        self.wanted.take()
    }

    /// Ends an evaluation: its answers are used.
    pub(crate) fn end_evaluation(&self) {
        self.used.set(0);
        self.answers.borrow_mut().clear();
    }

    /// Returns the answers of an evaluation that waits for a subquery.
    pub(crate) fn set_aside(&self) -> Vec<(AwaitedCall, bool)> {
        self.answers.take()
    }

    pub(crate) fn restore(&self, before: Vec<(AwaitedCall, bool)>) {
        self.answers.replace(before);
    }

    /// Ends a statement. Returns its warnings.
    pub(crate) fn end_statement(&self) -> Vec<String> {
        self.take_wanted();
        self.answers.borrow_mut().clear();
        self.warnings.take()
    }

    /// Finds the answer to a call; a wait for a lock is at most so long.
    pub(crate) async fn supply(
        &self,
        call: AwaitedCall,
        limit: Option<Duration>,
        context: &Context,
    ) -> Result<()> {
        let answer = match &call {
            AwaitedCall::Sleep { microseconds, is_until } => {
                let left = if *is_until { microseconds.saturating_sub(time::now()) } else { *microseconds };
                executor::sleep(Duration::from_micros(left.clamp(0, MOST_SLEEP) as u64)).await;
                true
            }
            AwaitedCall::Signal { process, ends, within } => {
                let told = context.sessions.signal(context, *process, *ends, *within).await?;
                told.map_err(|warning| self.warnings.borrow_mut().push(warning)).is_ok()
            }
            AwaitedCall::Take { key, kind, waits } => {
                let limit = if *waits { limit } else { Some(Duration::ZERO) };
                self.take(key.clone(), *kind, limit, *waits).await?
            }
            AwaitedCall::Unlock { key, kind } => self.unlock(key, *kind).await,
            AwaitedCall::UnlockAll => {
                self.unlock_all().await;
                true
            }
        };
        self.answers.borrow_mut().push((call, answer));
        Ok(())
    }

    async fn take(&self, key: Key, kind: Kind, limit: Option<Duration>, waits: bool) -> Result<bool> {
        let mode = if kind.is_shared { Mode::PR } else { Mode::EX };
        let known = self.held.borrow().get(&key).map(|held| (held.lock.clone(), held.mode()));
        let _waits = waits.then(|| self.activity.waits(format!("the advisory lock {key}")));
        let granted = match known {
            Some((_, held)) if held == Some(Mode::EX) || held == Some(mode) => Ok(None),
            Some((lock, _)) => lock.lock().await.converted(mode, limit).await.map(|_| None),
            None => {
                let name = format!("sql/advisory/{}/{key}", self.database);
                let name = Name::new(name.as_bytes());
                let name = name.map_err(|error| SqlError::new(code::SYSTEM_ERROR, error.to_string()))?;
                self.owner()?.ask(name, mode, limit).await.map(Some)
            }
        };
        match granted {
            Ok(new) => {
                let mut held = self.held.borrow_mut();
                if let Some(lock) = new {
                    let lock = Rc::new(TaskMutex::new(lock));
                    held.insert(key.clone(), AdvisoryLock { lock, counts: [[0; 2]; 2] });
                }
                held.get_mut(&key).into_iter().for_each(|held| *held.count(kind) += 1);
                Ok(true)
            }
            Err(LockError::Refused(LockRefusal::NotGranted | LockRefusal::TimedOut)) if !waits => Ok(false),
            Err(error) => Err(locks::failed(error)),
        }
    }

    async fn unlock(&self, key: &str, kind: Kind) -> bool {
        let is_held = match self.held.borrow_mut().get_mut(key).map(|held| held.count(kind)) {
            Some(count @ 1..) => {
                *count -= 1;
                true
            }
            _ => false,
        };
        if !is_held {
            let mode = if kind.is_shared { "ShareLock" } else { "ExclusiveLock" };
            self.warnings.borrow_mut().push(format!("you don't own a lock of type {mode}"));
        }
        self.weaken().await;
        is_held
    }

    /// Ends the locks of the transaction.
    pub(crate) async fn end_transaction(&self) {
        self.end(TRANSACTION).await;
    }

    /// Ends the locks of the session, and none of its transaction.
    pub(crate) async fn unlock_all(&self) {
        self.end(SESSION).await;
    }

    async fn end(&self, of: Kind) {
        for held in self.held.borrow_mut().values_mut() {
            let place = usize::from(of.is_of_transaction);
            held.counts.iter_mut().for_each(|counts| counts[place] = 0);
        }
        self.weaken().await;
    }

    /// Gives back the locks that no call needs, and what is more than the calls need of others.
    /// What fails, because an earlier conversion is still under way, is done by the next call.
    async fn weaken(&self) {
        let mut shared = Vec::new();
        self.held.borrow_mut().retain(|_, held| {
            if held.mode() == Some(Mode::PR) {
                shared.push(held.lock.clone());
            }
            held.mode().is_some()
        });
        for lock in shared {
            let mut lock = lock.lock().await;
            if lock.grant().mode != Mode::PR
                && let Err(error) = lock.converted(Mode::PR, None).await
            {
                tracing::debug!("an advisory lock stays as it is: {error}");
            }
        }
    }

    /// Makes a new owner of the locks of the session, unless it holds some: the youngest owner of a
    /// deadlock is the victim.
    pub(crate) fn begin_owner(&self) {
        if self.held.borrow().is_empty() {
            self.owner.replace(self.manager.as_ref().map(LockManager::session));
        }
    }
}
