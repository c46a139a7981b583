//! Temporary tables and views: they are in a schema of their session, which ends with it.
//!
//! A session holds the lock of its schema. If its node dies, nothing holds the lock, and the next
//! session that makes a temporary relation in the database removes the schema.

use std::time::Duration;

use plexus_interconnect::executor;
use plexus_locks::{
    LockError, NodeLock,
    protocol::{LockRefusal, Mode, Name},
};
use sqlparser::ast;

use super::{Prepared, Session, locks::TableMode, modes::Modes, no_transaction};
use crate::{
    catalog::{RelationName, Schema},
    error::{Result, SqlError, code, error},
    parse::{self, Statement},
};

/// The longest that a session which ends waits for others that change definitions.
const DROP_WAIT: Duration = Duration::from_secs(10);

/// The beginning of the names of these schemas.
const PREFIX: &str = "pg_temp_";

/// The schema of a session for its temporary relations.
pub(super) struct TemporarySchema {
    name: String,
    /// The locks of the schema, and of those of dead nodes that the session has removed. Held until
    /// it ends, so that no other removes them as well.
    locks: Vec<NodeLock>,
    /// What is to be done at the end of transactions that commit.
    actions: Vec<CommitAction>,
}

/// ON COMMIT of a table: its rows go, or it goes.
struct CommitAction {
    table: u64,
    name: RelationName,
    drops: bool,
    /// The present transaction has made the table.
    is_new: bool,
}

/// Returns true if a statement makes a temporary relation.
pub(super) fn makes_temporary(statement: &ast::Statement) -> bool {
    let (is_temporary, name) = match statement {
        ast::Statement::CreateTable(create) => (create.temporary, &create.name),
        ast::Statement::CreateView(create) => (create.temporary, &create.name),
        _ => return false,
    };
    is_temporary || parse::relation(name).is_ok_and(|name| name.starts_with("pg_temp\0"))
}

impl Session<'_> {
    /// Makes the schema of the session, in its transaction, unless it is there.
    pub(super) async fn need_temporary(&mut self) -> Result<()> {
        if self.temporary_schema.is_none() {
            let name = format!("{PREFIX}{}", self.store.fresh_id().await?);
            let Some(lock) = self.lock_schema(&name).await? else {
                return Err(SqlError::new(code::SYSTEM_ERROR, "the schema of a new number is in use"));
            };
            self.catalog.set_temporary(Some(name.clone()));
            self.context.temporary.replace(Some(name.clone()));
            self.temporary_schema = Some(TemporarySchema { name, locks: vec![lock], actions: Vec::new() });
            self.drop_abandoned().await?;
        }
        self.begin();
        let Some(TemporarySchema { name, .. }) = &self.temporary_schema else { return Ok(()) };
        let by = self.transaction.as_mut().ok_or_else(no_transaction)?;
        if self.catalog.schema(by, name).await?.is_none() {
            let (id, owner) = (self.store.fresh_id().await?, self.catalog.place().role.clone());
            let schema = Schema { id, name: name.clone(), owner, grants: Vec::new(), comment: None };
            self.catalog.change_schema(by, name, Some(&schema)).await?;
        }
        Ok(())
    }

    /// Notes what ON COMMIT wants of a table that a statement has made.
    pub(super) async fn note_on_commit(&mut self, create: &ast::CreateTable) -> Result<()> {
        let drops = match create.on_commit {
            None | Some(ast::OnCommit::PreserveRows) => return Ok(()),
            Some(ast::OnCommit::DeleteRows) => false,
            Some(ast::OnCommit::Drop) => true,
        };
        let by = self.transaction.as_mut().ok_or_else(no_transaction)?;
        let found = self.catalog.find(by, &parse::relation(&create.name)?).await?;
        match (found, &mut self.temporary_schema) {
            (Some(table), Some(own)) if table.schema == own.name => {
                let name = table.relation();
                own.actions.push(CommitAction { table: table.id, name, drops, is_new: true });
                Ok(())
            }
            _ => Err(error!(INVALID_TABLE_DEFINITION, "ON COMMIT can only be used on temporary tables")),
        }
    }

    /// Does what ON COMMIT wants. The table that another one names was made before that.
    pub(super) async fn act_on_commit(&mut self) -> Result<()> {
        let own = self.temporary_schema.iter().flat_map(|own| &own.actions).rev();
        let due = own.filter(|action| action.is_new || self.locks.has(action.table, TableMode::Write));
        let due: Vec<_> = due.map(|action| (action.table, action.name.clone(), action.drops)).collect();
        for (id, name, drops) in due {
            let by = self.transaction.as_mut().ok_or_else(no_transaction)?;
            let name = match self.catalog.find(by, &name.qualified()).await? {
                Some(table) if table.id == id => name,
                // It has another name now, or is gone.
                _ => match self.catalog.tables(by).await?.iter().find(|table| table.id == id) {
                    Some(table) => table.relation(),
                    None => continue,
                },
            };
            let text = match drops {
                true => format!("drop table {} cascade", name.quoted()),
                false => format!("delete from {}", name.quoted()),
            };
            for statement in parse::parse(&text)? {
                let heard = self.connection.out.0.len();
                let done = Box::pin(self.run_simple(&Prepared::new(statement), &[])).await;
                self.connection.out.0.truncate(heard);
                done?;
            }
        }
        Ok(())
    }

    /// Forgets what ON COMMIT wants of tables that are gone with the transaction.
    pub(super) fn end_on_commit(&mut self, is_committed: bool) {
        let Some(own) = &mut self.temporary_schema else { return };
        own.actions.retain(|action| !action.is_new || is_committed && !action.drops);
        own.actions.iter_mut().for_each(|action| action.is_new = false);
    }

    /// Takes the lock of a schema; `None` if its session lives.
    async fn lock_schema(&self, schema: &str) -> Result<Option<NodeLock>> {
        let name = Name::new(format!("sql/schema/{schema}").as_bytes());
        let name = name.map_err(|error| SqlError::new(code::SYSTEM_ERROR, error.to_string()))?;
        match self.locks.manager().session().ask(name, Mode::EX, Some(Duration::ZERO)).await {
            Ok(lock) => Ok(Some(lock)),
            Err(LockError::Refused(LockRefusal::NotGranted | LockRefusal::TimedOut)) => Ok(None),
            Err(error) => Err(SqlError::new(code::SYSTEM_ERROR, error.to_string())),
        }
    }

    /// Removes the schemas of sessions whose nodes have died.
    async fn drop_abandoned(&mut self) -> Result<()> {
        self.begin();
        let by = self.transaction.as_mut().ok_or_else(no_transaction)?;
        let schemas = self.catalog.schemas(by).await?;
        let place = self.catalog.place().clone();
        for schema in schemas.iter().filter(|schema| schema.name.starts_with(PREFIX)) {
            if place.is(&schema.owner)
                && let Some(lock) = self.lock_schema(&schema.name).await?
            {
                if let Some(own) = &mut self.temporary_schema {
                    own.locks.push(lock);
                }
                self.drop_schema(&schema.name).await?;
            }
        }
        Ok(())
    }

    async fn drop_schema(&mut self, name: &str) -> Result<()> {
        for statement in parse::parse(&format!("drop schema if exists {name} cascade"))? {
            if let Statement::Sql(statement) = statement {
                self.catalog.forget();
                // Other sessions do not hear of it.
                let heard = self.connection.out.0.len();
                let defined = Box::pin(self.define(&statement)).await;
                self.connection.out.0.truncate(heard);
                defined?;
            }
        }
        Ok(())
    }

    /// Removes the schema of the session, which ends or begins again.
    pub(super) async fn end_temporary(&mut self) {
        let Some(schema) = self.temporary_schema.take() else { return };
        // First: a statement that is cancelled must not use it without its lock.
        self.catalog.set_temporary(None);
        self.context.temporary.replace(None);
        let dropped = async {
            self.end(false).await?;
            self.set_modes(Modes::default());
            // Others that change definitions are not waited for without an end.
            self.begin();
            self.transaction.iter_mut().for_each(|transaction| transaction.limit_waits(Some(DROP_WAIT)));
            self.drop_schema(&schema.name).await?;
            self.end(true).await
        };
        let dropped = executor::timeout(DROP_WAIT, Box::pin(dropped)).await;
        let why = match dropped {
            Some(Ok(())) => return,
            Some(Err(error)) => error.to_string(),
            None => format!("it took longer than {} s", DROP_WAIT.as_secs()),
        };
        tracing::debug!("the temporary tables of a session stay until another one makes some: {why}");
        // A rollback does not fail.
        let _ = self.end(false).await;
    }
}
