//! The locks of a transaction on tables.
//!
//! Statements that read or change rows share a table; a change of its definition has it alone. A
//! lock is held until the transaction has ended, so a later statement of any node sees what the
//! change has made.

use std::{collections::BTreeMap, time::Duration};

use plexus_locks::{
    LockError, LockManager, NodeLock, NodeLockSession,
    protocol::{LockRefusal, Mode, Name},
};
use plexus_store::Isolation;

use super::{Session, no_transaction, settings::Time};
use crate::{
    activity::Activity,
    error::{Result, SqlError, code},
};

/// The longest wait for the transactions that use a table whose definition is to change.
const DEFINE_WAIT: Duration = Duration::from_secs(10);

/// The longest wait for a transaction that changes the definition of a table that is to be used.
const USE_WAIT: Duration = Duration::from_secs(60);

/// The longest wait for the sessions of a database that is to go: as in PostgreSQL.
const SESSIONS_WAIT: Duration = Duration::from_secs(5);

/// Takes the lock of a database: its sessions share it, and DROP DATABASE has it alone.
pub(crate) async fn lock_database(
    manager: &LockManager,
    database: u32,
    mode: Mode,
    limit: Duration,
) -> std::result::Result<NodeLock, LockError> {
    let name = format!("sql/database/{database}");
    let name = Name::new(name.as_bytes()).expect("the name is short");
    manager.session().ask(name, mode, Some(limit)).await
}

/// The strength of a lock on a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum TableMode {
    /// Its rows are read.
    Read,
    /// Its rows are changed.
    Write,
    /// Its definition is changed.
    Define,
}

impl TableMode {
    /// Returns how long a request waits: a circle of waits for tables and for rows is not found.
    /// Others wait behind a request to change a definition, so it gives up sooner.
    fn limit(self) -> Duration {
        if self == Self::Define { DEFINE_WAIT } else { USE_WAIT }
    }

    fn mode(self) -> Mode {
        match self {
            Self::Read => Mode::CR,
            Self::Write => Mode::CW,
            Self::Define => Mode::EX,
        }
    }
}

/// The locks of a session's transaction.
pub(super) struct TableLocks {
    manager: LockManager,
    held: BTreeMap<u64, (TableMode, NodeLock)>,
    /// Those of databases that go.
    databases: Vec<NodeLock>,
}

impl TableLocks {
    pub(super) fn new(manager: LockManager) -> Self {
        Self { manager, held: BTreeMap::new(), databases: Vec::new() }
    }

    pub(super) fn manager(&self) -> &LockManager {
        &self.manager
    }

    /// Takes the lock of a database until the end of the transaction, if all its sessions end soon.
    pub(super) async fn take_database(&mut self, database: u32, name: &str) -> Result<()> {
        match lock_database(&self.manager, database, Mode::EX, SESSIONS_WAIT).await {
            Ok(lock) => self.databases.push(lock),
            Err(LockError::Refused(LockRefusal::NotGranted | LockRefusal::TimedOut)) => {
                let message = format!("database \"{name}\" is being accessed by other users");
                let detail = "There are other sessions using the database.";
                return Err(SqlError::new(code::OBJECT_IN_USE, message).with_detail(detail));
            }
            Err(error) => return Err(failed(error)),
        }
        Ok(())
    }

    /// Returns whether the transaction has the lock of a table.
    pub(super) fn has(&self, table: u64, mode: TableMode) -> bool {
        self.held.get(&table).is_some_and(|(held, _)| *held >= mode)
    }

    /// Waits for the lock of a table. Returns false if the transaction has it.
    pub(super) async fn take(
        &mut self,
        table: u64,
        mode: TableMode,
        limit: Option<Duration>,
        owner: &NodeLockSession,
        activity: &Activity,
    ) -> Result<bool> {
        if self.has(table, mode) {
            return Ok(false);
        }
        // A stronger lock is a new one.
        drop(self.held.remove(&table));
        let name = [b"sql/table/", table.to_string().as_bytes()].concat();
        let name = Name::new(&name).map_err(|error| SqlError::new(code::SYSTEM_ERROR, error.to_string()))?;
        let limit = limit.unwrap_or(mode.limit()).min(mode.limit());
        let _waits = activity.waits(format!("the lock of table {table}"));
        let lock = owner.ask(name, mode.mode(), Some(limit)).await.map_err(|error| match error {
            LockError::Refused(LockRefusal::TimedOut) => {
                failed(error).with_detail("Other transactions use the table.")
            }
            error => failed(error),
        })?;
        self.held.insert(table, (mode, lock));
        Ok(true)
    }

    /// Gives all locks back: the transaction has ended. Returns whether there was one.
    pub(super) fn release(&mut self) -> bool {
        self.databases.clear();
        !std::mem::take(&mut self.held).is_empty()
    }
}

/// Returns the error of a statement that does not get a lock.
pub(crate) fn failed(error: LockError) -> SqlError {
    match error {
        LockError::Refused(LockRefusal::Deadlock) => {
            SqlError::new(code::DEADLOCK_DETECTED, "deadlock detected")
        }
        LockError::Refused(LockRefusal::TimedOut) => {
            SqlError::new(code::LOCK_NOT_AVAILABLE, "canceling statement due to lock timeout")
        }
        LockError::Stopped => SqlError::new(code::ADMIN_SHUTDOWN, error.to_string()),
        LockError::Refused(_) => SqlError::new(code::SYSTEM_ERROR, error.to_string()),
    }
}

impl Session<'_> {
    /// Takes locks of tables. Returns whether any is new.
    pub(super) async fn lock(&mut self, tables: &[(u64, TableMode)]) -> Result<bool> {
        let mut is_new = false;
        for (table, mode) in tables {
            let limit = self.context.settings.borrow().time(Time::Lock);
            let owner = self.context.advisory.owner()?;
            if !self.locks.take(*table, *mode, limit, &owner, self.activity).await? {
                continue;
            }
            is_new = true;
            if *mode > TableMode::Read && self.modes.isolation == Isolation::RepeatableRead {
                // Its snapshot may be of before the last change of the definition.
                let Some(transaction) = &mut self.transaction else { return Err(no_transaction()) };
                self.catalog.check_newest(transaction, *table).await?;
            }
        }
        Ok(is_new)
    }

    /// Takes the locks of tables by their names, and reads the catalog as it is then.
    pub(super) async fn lock_named(&mut self, names: &[String], mode: TableMode) -> Result<()> {
        loop {
            self.begin();
            let Some(transaction) = &mut self.transaction else { return Err(no_transaction()) };
            transaction.begin_statement();
            self.catalog.refresh(transaction).await?;
            let mut tables = Vec::new();
            for name in names {
                tables.extend(self.catalog.find(transaction, name).await?.map(|table| (table.id, mode)));
            }
            if !self.lock(&tables).await? {
                return Ok(());
            }
        }
    }
}
