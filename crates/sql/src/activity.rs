//! What a session does, for other threads: shown to people, cancelled, ended.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use plexus_store::TransactionWatch;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Result, SqlError, code},
    statements::StatementCounts,
};

/// The bytes of a statement that are shown.
const SHOWN: usize = 1024;

/// A session, for people.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Its number, which no other session of the node's run has.
    pub id: i32,
    /// The role.
    pub user: String,
    /// The database.
    pub database: String,
    /// Where the client is.
    pub address: String,
    /// What the client calls itself.
    pub application: String,
    /// `active`, `idle`, `idle in transaction`, or `idle in transaction (aborted)`.
    pub state: String,
    /// How long the session is in this state, in seconds.
    pub seconds: f64,
    /// How long its transaction runs, in seconds.
    pub transaction_seconds: Option<f64>,
    /// The statement that it runs, or the last one.
    pub statement: String,
    /// The number of its transaction, once it has changed something.
    pub transaction: Option<u64>,
    /// The snapshot that it holds, for which versions of rows stay.
    pub snapshot: Option<u64>,
    /// How long it has held it, in seconds.
    pub snapshot_seconds: Option<f64>,
    /// What the statement waits for: the lock of a table, or the end of a transaction.
    pub waits_for: Option<String>,
}

/// The state of a session for other threads.
pub(crate) struct Activity {
    /// Proves that a request to cancel comes from the client.
    pub(crate) secret: i32,
    user: String,
    database: String,
    address: String,
    /// The time from which on a statement is noted in the log.
    slow: Option<Duration>,
    counts: Option<Arc<StatementCounts>>,
    shown: Mutex<Shown>,
    /// Its transaction.
    pub(crate) watch: Arc<TransactionWatch>,
    cancels: AtomicBool,
    /// Why the session is to end.
    ends: OnceLock<&'static str>,
    /// There are notifications for its client.
    is_notified: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

struct Shown {
    application: String,
    state: &'static str,
    since: Instant,
    transaction: Option<Instant>,
    /// The transaction has one snapshot for all statements.
    is_repeatable: bool,
    statement: String,
    /// The rows that the statement has returned or changed, when it has come to its end.
    rows: Option<u64>,
    waits_for: Option<String>,
}

/// Forgets what a session waits for, when it is dropped.
pub(crate) struct Waiting<'a>(&'a Activity);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.shown().waits_for = None;
    }
}

impl Activity {
    pub(crate) fn new(
        secret: i32,
        user: String,
        database: String,
        address: String,
        slow: Option<Duration>,
        counts: Option<Arc<StatementCounts>>,
    ) -> Self {
        let shown = Shown {
            application: String::new(),
            state: "idle",
            since: Instant::now(),
            transaction: None,
            is_repeatable: false,
            statement: String::new(),
            rows: None,
            waits_for: None,
        };
        Self {
            secret,
            user,
            database,
            address,
            slow,
            counts,
            shown: Mutex::new(shown),
            watch: Arc::default(),
            cancels: AtomicBool::new(false),
            ends: OnceLock::new(),
            is_notified: AtomicBool::new(false),
            waker: Mutex::default(),
        }
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the role.
    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// Notes a statement that has ended: its counts, and in the log, if it was slow.
    fn note_end(&self, shown: &mut Shown) {
        let taken = shown.since.elapsed();
        if let (Some(counts), Some(rows)) = (&self.counts, shown.rows.take()) {
            counts.note((&self.user, &self.database), &shown.statement, taken, rows);
        }
        if shown.state == "active" && self.slow.is_some_and(|slow| taken >= slow) {
            let (user, database) = (&self.user, &self.database);
            let statement = shown.statement.split_whitespace().collect::<Vec<_>>().join(" ");
            tracing::warn!("slow statement: {} ms, {user} in {database}: {statement}", taken.as_millis());
        }
    }

    /// Notes that a statement begins.
    pub(crate) fn begin(&self, statement: &str) {
        let mut shown = self.shown();
        self.note_end(&mut shown);
        (shown.state, shown.since) = ("active", Instant::now());
        shown.statement.clear();
        let mut end = statement.len().min(SHOWN);
        while !statement.is_char_boundary(end) {
            end -= 1;
        }
        shown.statement.push_str(&statement[..end]);
    }

    /// Notes that the session waits for its client, in such a state.
    pub(crate) fn rest(&self, state: &'static str) {
        let mut shown = self.shown();
        self.note_end(&mut shown);
        (shown.state, shown.since) = (state, Instant::now());
        if state == "idle" {
            shown.transaction = None;
        }
    }

    /// Notes that a statement has come to its end, with the words that tell the client.
    pub(crate) fn completed(&self, tag: &str) {
        if self.counts.is_some() {
            let rows = tag.rsplit(' ').next().and_then(|count| count.parse().ok());
            let mut shown = self.shown();
            shown.rows = Some(shown.rows.unwrap_or(0) + rows.unwrap_or(0));
        }
    }

    /// Notes that a transaction begins.
    pub(crate) fn begin_transaction(&self, is_repeatable: bool) {
        let mut shown = self.shown();
        (shown.transaction, shown.is_repeatable) = (Some(Instant::now()), is_repeatable);
    }

    /// Returns whether the session has no transaction.
    pub(crate) fn is_idle(&self) -> bool {
        self.shown().state == "idle"
    }

    /// Notes what the client calls itself.
    pub(crate) fn name(&self, application: String) {
        self.shown().application = application;
    }

    /// Notes what the statement waits for, until the result is dropped.
    pub(crate) fn waits(&self, what: String) -> Waiting<'_> {
        self.shown().waits_for = Some(what);
        Waiting(self)
    }

    pub(crate) fn info(&self, id: i32) -> SessionInfo {
        let shown = self.shown();
        let snapshot = self.watch.snapshot();
        let since = shown.transaction.filter(|_| shown.is_repeatable).unwrap_or(shown.since);
        SessionInfo {
            id,
            user: self.user.clone(),
            database: self.database.clone(),
            address: self.address.clone(),
            application: shown.application.clone(),
            state: shown.state.to_owned(),
            seconds: shown.since.elapsed().as_secs_f64(),
            transaction_seconds: shown.transaction.map(|begun| begun.elapsed().as_secs_f64()),
            statement: shown.statement.clone(),
            transaction: self.watch.id().map(|id| id.0),
            snapshot,
            snapshot_seconds: snapshot.map(|_| since.elapsed().as_secs_f64()),
            waits_for: match self.watch.waits_for() {
                Some(id) => Some(format!("transaction {}", id.0)),
                None => shown.waits_for.clone(),
            },
        }
    }

    fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Cancels the statement that runs.
    pub(crate) fn cancel(&self) {
        self.cancels.store(true, SeqCst);
        self.wake();
    }

    /// Ends the session.
    pub(crate) fn end(&self) {
        self.end_because("terminating connection due to administrator command");
    }

    /// Ends the session with this message.
    pub(crate) fn end_because(&self, why: &'static str) {
        self.ends.get_or_init(|| why);
        self.wake();
    }

    /// Notes whether there are notifications for the client.
    pub(crate) fn notify(&self, is_notified: bool) {
        self.is_notified.store(is_notified, SeqCst);
        if is_notified {
            self.wake();
        }
    }

    pub(crate) fn is_notified(&self) -> bool {
        self.is_notified.load(SeqCst)
    }

    /// Forgets a request to cancel that came too late for its statement.
    pub(crate) fn forget_cancel(&self) {
        self.cancels.store(false, SeqCst);
    }

    /// Does something until it is to end, for one of the reasons that `why` returns.
    async fn until<T>(
        &self,
        act: impl Future<Output = Result<T>>,
        why: impl Fn() -> Option<SqlError>,
    ) -> Result<T> {
        let mut act = pin!(act);
        std::future::poll_fn(|context| {
            let mut waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(error) = why() {
                return Poll::Ready(Err(error));
            }
            match &mut *waker {
                Some(known) => known.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            drop(waker);
            act.as_mut().poll(context)
        })
        .await
    }

    /// Returns the error that ends a session, if it is to end.
    fn ended(&self) -> Option<SqlError> {
        self.ends.get().map(|why| SqlError::new(code::ADMIN_SHUTDOWN, *why))
    }

    /// Does a part of a statement, until it is cancelled or the session ends.
    pub(crate) async fn unless_cancelled<T>(&self, act: impl Future<Output = Result<T>>) -> Result<T> {
        let cancelled = || {
            let message = "canceling statement due to user request";
            self.cancels.swap(false, SeqCst).then(|| SqlError::new(code::QUERY_CANCELED, message))
        };
        self.until(act, || self.ended().or_else(cancelled)).await
    }

    /// Waits for the client, until the session ends.
    pub(crate) async fn unless_ended<T>(&self, act: impl Future<Output = Result<T>>) -> Result<T> {
        self.until(act, || self.ended()).await
    }

    /// Waits for the client, until the session ends; `None` if there are notifications for it.
    pub(crate) async fn unless_notified<T>(&self, act: impl Future<Output = Result<T>>) -> Result<Option<T>> {
        let mut act = pin!(act);
        let act = std::future::poll_fn(|context| match act.as_mut().poll(context) {
            Poll::Pending if self.is_notified() => Poll::Ready(Ok(None)),
            other => other.map_ok(Some),
        });
        self.unless_ended(act).await
    }
}
