//! Functions that wait or act on other sessions (chapters 9.9.5 and 9.27.2 of PostgreSQL's manual),
//! and the sessions of all nodes in a statement.

use std::{cell::RefCell, fmt, sync::Arc, time::Duration};

use plexus_interconnect::executor;

use super::{Call, Context, Declared, advisory::AwaitedCall, function, ok};
use crate::{
    activity::SessionInfo,
    error::{Result, SqlError, code},
    peers::ClusterSessions,
    statements::StatementInfo,
    types::{Value, time::SECOND},
};

/// The time between two looks whether a session has ended.
const LOOK: Duration = Duration::from_millis(20);

pub(super) static FUNCTIONS: &[Declared] = &[
    function("pg_cancel_backend(int4) bool volatile", |call| signal(call, false)),
    function("pg_sleep(float8) void volatile", |call| {
        sleep(call, (call.float(0) * SECOND as f64) as i64, false)
    }),
    function("pg_sleep_for(interval) void volatile", |call| {
        let Value::Interval(span) = &call.values[0] else { return ok("") };
        let days = i64::from(span.months) * 30 + i64::from(span.days);
        sleep(call, days.saturating_mul(86_400 * SECOND).saturating_add(span.microseconds), false)
    }),
    function("pg_sleep_until(timestamptz) void volatile", |call| match &call.values[0] {
        Value::Time(moment) => sleep(call, *moment, true),
        _ => ok(""),
    }),
    function("pg_terminate_backend(pid int4, timeout int8=0) bool volatile", |call| signal(call, true)),
];

fn sleep(call: &Call<'_>, microseconds: i64, is_until: bool) -> Result<Value> {
    call.context.advisory.answer(AwaitedCall::Sleep { microseconds, is_until })?;
    ok("")
}

fn signal(call: &Call<'_>, ends: bool) -> Result<Value> {
    let timeout = if ends { call.int(1) } else { 0 };
    let Ok(timeout) = u64::try_from(timeout) else {
        return Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, "\"timeout\" must not be negative"));
    };
    if !call.context.place.is_superuser {
        // They say whether the other role is one.
        call.context.definitions.get()?;
    }
    let (process, within) = (call.int(0) as i32, Duration::from_millis(timeout));
    ok(call.context.advisory.answer(AwaitedCall::Signal { process, ends, within })?)
}

/// The sessions of all nodes.
pub(crate) struct OtherSessions {
    /// `None` in tests of other parts.
    all: Option<Arc<ClusterSessions>>,
    /// Those that a statement has found.
    found: RefCell<Vec<SessionInfo>>,
    /// The counts of statements that it has found.
    pub(crate) statements: RefCell<Vec<StatementInfo>>,
}

impl fmt::Debug for OtherSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.found.fmt(f)
    }
}

impl OtherSessions {
    pub(crate) fn new(all: Option<Arc<ClusterSessions>>) -> Self {
        Self { all, found: RefCell::default(), statements: RefCell::default() }
    }

    /// Finds the sessions, for [`OtherSessions::take`].
    pub(crate) async fn find(&self) {
        if let Some(all) = &self.all {
            let found = all.all().await;
            self.found.replace(found);
        }
    }

    /// Finds the counts of statements of all nodes.
    pub(crate) async fn find_statements(&self) {
        if let Some(all) = &self.all {
            let found = all.statements().await;
            self.statements.replace(found);
        }
    }

    /// Returns the sessions that were found.
    pub(crate) fn take(&self) -> Vec<SessionInfo> {
        self.found.take()
    }

    /// Cancels the statement of a session, or ends it and waits so long for its end. The error in
    /// the result is a warning.
    pub(super) async fn signal(
        &self,
        context: &Context,
        process: i32,
        ends: bool,
        within: Duration,
    ) -> Result<std::result::Result<(), String>> {
        let nothing = || Ok(Err(format!("PID {process} is not a PostgreSQL server process")));
        let Some(all) = self.all.as_ref().filter(|_| process > 0) else { return nothing() };
        let found = all.all().await.into_iter().find(|session| session.id == process);
        let Some(found) = found else { return nothing() };
        if !context.place.is_superuser && found.user != context.user {
            let (what, verb) = if ends { ("process", "terminat") } else { ("query", "cancel") };
            let message = match context.definitions.get()?.is_superuser(&found.user) {
                true => format!(
                    "must be a superuser to {} superuser {what}",
                    if ends { "terminate" } else { verb }
                ),
                false => format!(
                    "must be a member of the role whose {what} is being {verb}ed or member of pg_signal_backend"
                ),
            };
            return Err(SqlError::new(code::INSUFFICIENT_PRIVILEGE, message));
        }
        if !all.signal(process, ends).await {
            return nothing();
        }
        if within.is_zero() {
            return Ok(Ok(()));
        }
        let ended = async {
            while all.all().await.iter().any(|session| session.id == process) {
                executor::sleep(LOOK).await;
            }
        };
        let is_ended = executor::timeout(within, Box::pin(ended)).await.is_some();
        let within = within.as_millis();
        let late = || format!("backend with PID {process} did not terminate within {within} milliseconds");
        Ok(is_ended.then_some(()).ok_or_else(late))
    }
}
