//! Statements of a session: their plans, and what they do.

use std::rc::Rc;

use plexus_base::BlockId;
use plexus_cache::Cache;
use plexus_store::{Isolation, Store};
use sqlparser::ast;

use super::{Session, locks::TableMode, no_transaction, settings::Settings};
use crate::{
    bind::{
        Parameters,
        select::{self, ResultColumn, Select, from_tables, tables_of},
    },
    catalog::{Catalog, Privilege, Table, Transaction, undefined},
    dml::{self, Change, ChangeKind, Conflict, NewRows, Targets},
    error::{Result, SqlError, code},
    exec::{self, Run},
    parse::{Statement, folded, relation},
    sequences::Set,
    spool::Rows,
    types::{Type, Value},
};

/// A statement that is ready to run.
#[derive(Debug)]
pub(super) enum Plan {
    Select(Select),
    Change(Change),
    /// Its plan, as text.
    Explain(Vec<String>),
    /// It needs no plan.
    Other(Statement),
}

impl Plan {
    /// Returns the tables that it needs, and how.
    pub(super) fn tables(&self) -> Vec<(u64, TableMode)> {
        let read = |select: &Select| -> Vec<(u64, TableMode)> {
            let mode = if select.locks.is_some() { TableMode::Write } else { TableMode::Read };
            select.sources.iter().map(|source| (source.table.id, mode)).collect()
        };
        match self {
            Self::Select(select) => read(select),
            Self::Change(change) => {
                let mut tables = vec![(change.table.id, TableMode::Write)];
                let conflict = match &change.kind {
                    ChangeKind::Insert { conflict, .. } => matches!(conflict, Conflict::Update { .. }),
                    _ => true,
                };
                let (changed, looked_at) = change.targets.others(conflict);
                tables.extend(changed.into_iter().map(|table| (table, TableMode::Write)));
                tables.extend(looked_at.into_iter().map(|table| (table, TableMode::Read)));
                if let ChangeKind::Insert { source: NewRows::Query(query, _), .. } = &change.kind {
                    tables.extend(read(query));
                }
                tables
            }
            Self::Explain(_) | Self::Other(_) => Vec::new(),
        }
    }

    pub(super) fn columns(&self) -> Vec<ResultColumn> {
        let text = |name: &str| vec![ResultColumn { name: name.into(), of: Type::Text }];
        match self {
            Self::Select(select) => select.columns.clone(),
            Self::Change(change) => change.columns.clone(),
            Self::Explain(_) => text("QUERY PLAN"),
            Self::Other(Statement::Sql(statement)) => match &**statement {
                ast::Statement::ShowVariable { variable } => text(&shown_name(variable)),
                _ => Vec::new(),
            },
            Self::Other(_) => Vec::new(),
        }
    }
}

/// The end of a statement.
pub(super) struct Done {
    pub(super) tag: Tag,
    /// The rows for the client, and their columns.
    pub(super) rows: Option<(Vec<ResultColumn>, Rows)>,
}

/// The words that tell a client what was done.
pub(super) enum Tag {
    /// The number of rows for the client follows.
    Rows(&'static str),
    /// This number follows.
    Count(&'static str, u64),
    Plain(&'static str),
}

impl Tag {
    pub(super) fn text(&self, rows: u64) -> String {
        match self {
            Self::Rows(word) => format!("{word} {rows}"),
            Self::Count(word, count) => format!("{word} {count}"),
            Self::Plain(word) => (*word).to_owned(),
        }
    }
}

pub(super) fn plain(tag: &'static str) -> Done {
    Done { tag: Tag::Plain(tag), rows: None }
}

/// Returns true for statements that a failed transaction allows.
pub(super) fn ends_transaction(statement: &Statement) -> bool {
    match statement {
        Statement::Sql(statement) => {
            matches!(**statement, ast::Statement::Commit { .. } | ast::Statement::Rollback { .. })
        }
        _ => false,
    }
}

/// Returns true for statements that are bound to tables before they run.
pub(super) fn needs_tables(statement: &Statement) -> bool {
    match statement {
        Statement::Sql(statement) => matches!(
            **statement,
            ast::Statement::Query(_)
                | ast::Statement::Insert(_)
                | ast::Statement::Update(_)
                | ast::Statement::Delete(_)
                | ast::Statement::Explain { .. }
        ),
        _ => false,
    }
}

async fn find_all(
    catalog: &mut Catalog,
    store: &Store<Cache>,
    by: &mut Transaction,
    names: Vec<String>,
) -> Result<Vec<Rc<Table>>> {
    let mut tables = Vec::new();
    for name in names {
        tables.push(catalog.table(store, by, &name).await?);
    }
    Ok(tables)
}

/// Binds a statement and plans it.
pub(super) async fn plan(
    statement: &Statement,
    catalog: &mut Catalog,
    store: &Store<Cache>,
    by: &mut Transaction,
    parameters: &Parameters,
) -> Result<Plan> {
    let Statement::Sql(statement) = statement else { return Ok(Plan::Other(statement.clone())) };
    let (statement, explains) = match &**statement {
        ast::Statement::Explain {
            analyze: false,
            verbose: false,
            statement,
            format: None,
            options: None,
            ..
        } => (&**statement, true),
        ast::Statement::Explain { .. } => return Err(SqlError::unsupported("EXPLAIN with options")),
        statement => (statement, false),
    };
    let plan = match statement {
        ast::Statement::Query(query) => {
            let tables = find_all(catalog, store, by, tables_of(query)?).await?;
            Plan::Select(select::bind(query, &tables, parameters)?)
        }
        ast::Statement::Insert(insert) => {
            let ast::TableObject::TableName(name) = &insert.table else {
                return Err(SqlError::unsupported(format!("INSERT INTO {}", insert.table)));
            };
            let table = catalog.table_for(store, by, &relation(name)?, Privilege::Insert).await?;
            let updates = match &insert.on {
                Some(ast::OnInsert::OnConflict(on)) => {
                    matches!(on.action, ast::OnConflictAction::DoUpdate(_))
                }
                _ => false,
            };
            if updates {
                catalog.table_for(store, by, &relation(name)?, Privilege::Update).await?;
            }
            if updates || insert.returning.is_some() {
                catalog.table(store, by, &relation(name)?).await?;
            }
            let targets = Targets::of(catalog, store, by, &table).await?;
            let names = insert.source.as_deref().map_or(Ok(Vec::new()), tables_of)?;
            let tables = find_all(catalog, store, by, names).await?;
            Plan::Change(dml::bind_insert(insert, &targets, &tables, parameters)?)
        }
        ast::Statement::Update(update) => {
            let names = from_tables(std::slice::from_ref(&update.table))?;
            let table = catalog.table_for(store, by, &names[0], Privilege::Update).await?;
            if update.selection.is_some() || update.returning.is_some() {
                catalog.table(store, by, &names[0]).await?;
            }
            let targets = Targets::of(catalog, store, by, &table).await?;
            Plan::Change(dml::bind_update(update, &targets, parameters)?)
        }
        ast::Statement::Delete(delete) => {
            let (ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from)) = &delete.from;
            let [name] = &from_tables(from)?[..] else {
                return Err(SqlError::unsupported("DELETE from several tables"));
            };
            let table = catalog.table_for(store, by, name, Privilege::Delete).await?;
            if delete.selection.is_some() || delete.returning.is_some() {
                catalog.table(store, by, name).await?;
            }
            let targets = Targets::of(catalog, store, by, &table).await?;
            Plan::Change(dml::bind_delete(delete, &targets, parameters)?)
        }
        other => return Err(SqlError::unsupported(format!("EXPLAIN {other}"))),
    };
    catalog.find_sequences(store, by, parameters.sequences.take()).await?;
    Ok(if explains { Plan::Explain(explain(&plan)) } else { plan })
}

/// Returns the plan as lines of text.
fn explain(plan: &Plan) -> Vec<String> {
    let line = |source: &select::Source, depth: usize| {
        let table = &source.table;
        let path = &source.path;
        let way = match path.index {
            _ if path.is_point(table) => format!("Row of {} by its primary key", table.name),
            Some(index) => format!("Scan of index {} of {}", table.indexes[index].name, table.name),
            None if path.columns.is_empty() => format!("Scan of all rows of {}", table.name),
            None => format!("Scan of rows of {} by its primary key", table.name),
        };
        let join = match (depth, &source.outer) {
            (0, _) => "",
            (_, None) => "Join with ",
            (_, Some(_)) => "Left join with ",
        };
        let backward = if path.is_backward { ", backward" } else { "" };
        format!("{}{join}{way}{backward}", "  ".repeat(depth))
    };
    match plan {
        Plan::Select(select) => {
            let mut lines: Vec<String> =
                select.sources.iter().enumerate().map(|(depth, source)| line(source, depth)).collect();
            if lines.is_empty() {
                lines.push("Result".into());
            }
            if select.groups.is_some() {
                lines.insert(0, "Aggregate".into());
            }
            if !select.order.is_empty() {
                lines.insert(0, "Sort".into());
            }
            lines
        }
        Plan::Change(change) => match &change.kind {
            ChangeKind::Insert { .. } => vec![format!("Insert on {}", change.table.name)],
            ChangeKind::Update { source, .. } => {
                vec![format!("Update on {}", change.table.name), line(source, 0)]
            }
            ChangeKind::Delete { source } => {
                vec![format!("Delete on {}", change.table.name), line(source, 0)]
            }
        },
        Plan::Explain(_) | Plan::Other(_) => Vec::new(),
    }
}

impl Session<'_> {
    /// Runs a statement.
    pub(super) async fn run(&mut self, plan: &Plan, values: &[Value]) -> Result<Done> {
        let mut done = self.run_plan(plan, values).await;
        let sets = self.context.sequences.end_statement();
        self.context.definitions.end_statement();
        if done.is_ok()
            && let Err(error) = self.set_sequences(sets).await
        {
            done = Err(error);
        }
        // An idle transaction keeps no versions of rows, unless it has one snapshot for all
        // statements.
        self.transaction.iter_mut().for_each(Transaction::begin_statement);
        done
    }

    /// Does the calls of `setval` of a statement.
    async fn set_sequences(&mut self, sets: Vec<Set>) -> Result<()> {
        for set in sets {
            let by = self.transaction.as_mut().ok_or_else(no_transaction)?;
            self.ranges.set(&self.store, by, &self.context.sequences, set).await?;
        }
        Ok(())
    }

    async fn run_plan(&mut self, plan: &Plan, values: &[Value]) -> Result<Done> {
        match plan {
            Plan::Select(query) => {
                let rows = exec::select(&mut self.statement(values)?, query).await?;
                Ok(Done { tag: Tag::Rows("SELECT"), rows: Some((query.columns.clone(), rows)) })
            }
            Plan::Change(change) => {
                let changed = dml::run(&mut self.statement(values)?, change).await?;
                let word = match change.kind {
                    ChangeKind::Insert { .. } => "INSERT 0",
                    ChangeKind::Update { .. } => "UPDATE",
                    ChangeKind::Delete { .. } => "DELETE",
                };
                let returned = changed.returned.into();
                let rows = (!change.columns.is_empty()).then(|| (change.columns.clone(), returned));
                Ok(Done { tag: Tag::Count(word, changed.count), rows })
            }
            Plan::Explain(lines) => {
                let rows: Vec<_> = lines.iter().map(|line| vec![Value::Text(line.clone())]).collect();
                Ok(Done { tag: Tag::Plain("EXPLAIN"), rows: Some((plan.columns(), rows.into())) })
            }
            Plan::Other(statement) => match statement {
                Statement::Nothing(tag) => Ok(plain(tag)),
                Statement::Vacuum(tables) => self.vacuum(tables).await,
                Statement::Sql(statement) => self.utility(statement).await,
                Statement::AlterSequence(alter) => self.alter_sequence(alter).await,
                Statement::SetConstraints { names, is_deferred } => {
                    self.set_constraints(names.as_deref(), *is_deferred).await
                }
                Statement::Copy(_) | Statement::Empty => Ok(plain("")),
            },
        }
    }

    /// Begins a statement of the transaction.
    pub(super) fn statement<'r>(&'r mut self, parameters: &'r [Value]) -> Result<Run<'r>> {
        self.begin();
        let by = self.transaction.as_mut().ok_or_else(no_transaction)?;
        // So a change of one row holds no snapshot while it waits for another transaction.
        by.begin_statement();
        let (context, ranges, temporary) = (&self.context, &*self.ranges, &self.temporary);
        Ok(Run { store: &self.store, by, parameters, context, ranges, temporary, memory: 0 })
    }

    /// Cleans tables: rows and pages go that no snapshot shows.
    async fn vacuum(&mut self, names: &[String]) -> Result<Done> {
        if self.is_explicit {
            let message = "VACUUM cannot run inside a transaction block";
            return Err(SqlError::new(code::ACTIVE_TRANSACTION, message));
        }
        self.begin();
        let by = self.transaction.as_mut().ok_or_else(no_transaction)?;
        self.catalog.refresh(&self.store, by).await?;
        let tables = match names {
            [] => self.catalog.tables(&self.store, by).await?,
            names => {
                let mut tables = Vec::new();
                for name in names {
                    let table = self.catalog.owned(&self.store, by, name).await?;
                    tables.push((*table.ok_or_else(|| undefined(name))?).clone());
                }
                tables
            }
        };
        // Its snapshot would keep what is to go.
        self.end(false).await?;
        let trees: Vec<BlockId> = tables.iter().flat_map(Table::trees).map(BlockId).collect();
        self.store.clean(&trees).await?;
        Ok(plain("VACUUM"))
    }

    pub(super) fn notice(&mut self, code: &'static str, severity: &str, message: String) {
        self.connection.out.error(&SqlError::new(code, message), severity);
    }

    async fn utility(&mut self, statement: &ast::Statement) -> Result<Done> {
        match statement {
            ast::Statement::StartTransaction { modes, statements, .. } => {
                select::refuse(!statements.is_empty(), "BEGIN with statements")?;
                if self.is_explicit {
                    let message = "there is already a transaction in progress".into();
                    self.notice(code::ACTIVE_TRANSACTION, "WARNING", message);
                }
                let isolation = isolation(modes)?;
                self.begin_explicit(isolation);
                Ok(plain("BEGIN"))
            }
            ast::Statement::Commit { chain: false, .. } => {
                if !self.is_explicit {
                    self.notice(
                        code::NO_ACTIVE_TRANSACTION,
                        "WARNING",
                        "there is no transaction in progress".into(),
                    );
                }
                let tag = if self.is_failed { "ROLLBACK" } else { "COMMIT" };
                self.end(true).await?;
                Ok(plain(tag))
            }
            ast::Statement::Rollback { chain: false, savepoint: None } => {
                if !self.is_explicit {
                    self.notice(
                        code::NO_ACTIVE_TRANSACTION,
                        "WARNING",
                        "there is no transaction in progress".into(),
                    );
                }
                self.end(false).await?;
                Ok(plain("ROLLBACK"))
            }
            ast::Statement::Rollback { chain: false, savepoint: Some(name) } => {
                let at = self.find_savepoint(name)?;
                let place = self.savepoints[at].1;
                self.savepoints.truncate(at + 1);
                let transaction = self.transaction.as_mut().ok_or_else(no_transaction)?;
                transaction.rollback_to(place).await?;
                self.catalog.forget();
                self.is_failed = false;
                Ok(plain("ROLLBACK"))
            }
            ast::Statement::Savepoint { name } => {
                if !self.is_explicit {
                    let message = "SAVEPOINT can only be used in transaction blocks";
                    return Err(SqlError::new(code::NO_ACTIVE_TRANSACTION, message));
                }
                self.begin();
                let place = self.transaction.as_mut().ok_or_else(no_transaction)?.savepoint()?;
                self.savepoints.push((folded(name), place));
                Ok(plain("SAVEPOINT"))
            }
            ast::Statement::ReleaseSavepoint { name } => {
                let at = self.find_savepoint(name)?;
                self.savepoints.truncate(at);
                Ok(plain("RELEASE"))
            }
            ast::Statement::Set(set) => self.set(set),
            ast::Statement::ShowVariable { variable } => {
                let name = shown_name(variable);
                let value = match name.as_str() {
                    "transaction_isolation" => match self.isolation {
                        Isolation::ReadCommitted => "read committed".to_owned(),
                        Isolation::RepeatableRead => "repeatable read".to_owned(),
                    },
                    name => self.settings.show(name)?,
                };
                let columns = vec![ResultColumn { name, of: Type::Text }];
                Ok(Done {
                    tag: Tag::Plain("SHOW"),
                    rows: Some((columns, vec![vec![Value::Text(value)]].into())),
                })
            }
            ast::Statement::Reset(reset) => {
                match &reset.reset {
                    ast::Reset::ALL => self.settings.reset(None)?,
                    ast::Reset::ConfigurationParameter(name) => {
                        self.settings.reset(Some(&name.to_string()))?
                    }
                    ast::Reset::SessionAuthorization => {}
                }
                self.catalog.set_path(&self.settings.show("search_path")?);
                Ok(plain("RESET"))
            }
            ast::Statement::Discard { object_type: ast::DiscardObject::ALL } => {
                self.settings.reset(None)?;
                self.catalog.set_path(&self.settings.show("search_path")?);
                self.statements.clear();
                Ok(plain("DISCARD ALL"))
            }
            ast::Statement::Deallocate { name, .. } => {
                if name.value.eq_ignore_ascii_case("all") {
                    self.statements.clear();
                    return Ok(plain("DEALLOCATE ALL"));
                }
                self.prepared(&folded(name))?;
                self.statements.remove(&folded(name));
                Ok(plain("DEALLOCATE"))
            }
            other => self.define(other).await,
        }
    }

    fn begin_explicit(&mut self, isolation: Option<Isolation>) {
        if !self.is_explicit {
            self.isolation = isolation.unwrap_or_default();
            // The statements before it in the same text are part of it.
            if self.transaction.is_none() {
                self.begin();
            }
        }
        self.is_explicit = true;
    }

    fn find_savepoint(&self, name: &ast::Ident) -> Result<usize> {
        if !self.is_explicit {
            let message = "savepoints can only be used in transaction blocks";
            return Err(SqlError::new(code::NO_ACTIVE_TRANSACTION, message));
        }
        let name = folded(name);
        self.savepoints.iter().rposition(|(known, _)| *known == name).ok_or_else(|| {
            SqlError::new(code::INVALID_SAVEPOINT, format!("savepoint \"{name}\" does not exist"))
        })
    }

    fn set(&mut self, set: &ast::Set) -> Result<Done> {
        match set {
            ast::Set::SingleAssignment {
                scope: None | Some(ast::ContextModifier::Session),
                hivevar: false,
                variable,
                values,
            } => {
                let name = variable.to_string();
                let value: Vec<String> = values
                    .iter()
                    .map(|value| match value {
                        ast::Expr::Value(value) => match &value.value {
                            ast::Value::SingleQuotedString(text) => text.clone(),
                            other => other.to_string(),
                        },
                        other => other.to_string(),
                    })
                    .collect();
                match value.join(", ") {
                    value if value.eq_ignore_ascii_case("default") => self.settings.reset(Some(&name))?,
                    value => self.settings.set(&name, &value)?,
                }
                if name.eq_ignore_ascii_case("search_path") {
                    self.catalog.set_path(&self.settings.show(&name)?);
                }
                if name.eq_ignore_ascii_case("application_name") {
                    self.activity.name(self.settings.show(&name)?);
                }
                if let Some(reported) = Settings::reported_name(&name) {
                    self.connection.out.parameter(reported, &self.settings.show(&name)?);
                }
                Ok(plain("SET"))
            }
            ast::Set::SetTransaction { modes, snapshot: None, session } => {
                let isolation = isolation(modes)?;
                if *session && isolation == Some(Isolation::RepeatableRead) {
                    return Err(SqlError::unsupported("REPEATABLE READ for the session"));
                }
                if let Some(isolation) =
                    isolation.filter(|isolation| !*session && *isolation != self.isolation)
                {
                    if !self.transaction.as_ref().is_none_or(Transaction::is_new) {
                        let message = "SET TRANSACTION ISOLATION LEVEL must be called before any query";
                        return Err(SqlError::new(code::ACTIVE_TRANSACTION, message));
                    }
                    self.transaction = None;
                    self.isolation = isolation;
                    self.begin();
                }
                Ok(plain("SET"))
            }
            ast::Set::SetTimeZone { local: false, value } => {
                self.settings.set("timezone", value.to_string().trim_matches('\''))?;
                Ok(plain("SET"))
            }
            ast::Set::SetNames { charset_name, collation_name: None } => {
                self.settings.set("client_encoding", &charset_name.value)?;
                Ok(plain("SET"))
            }
            other => Err(SqlError::unsupported(other)),
        }
    }
}

/// Returns the isolation that the modes of a transaction name.
fn isolation(modes: &[ast::TransactionMode]) -> Result<Option<Isolation>> {
    let mut found = None;
    for mode in modes {
        match mode {
            ast::TransactionMode::AccessMode(ast::TransactionAccessMode::ReadWrite) => {}
            ast::TransactionMode::AccessMode(ast::TransactionAccessMode::ReadOnly) => {
                return Err(SqlError::unsupported("READ ONLY"));
            }
            ast::TransactionMode::IsolationLevel(level) => match level {
                ast::TransactionIsolationLevel::ReadCommitted
                | ast::TransactionIsolationLevel::ReadUncommitted => found = Some(Isolation::ReadCommitted),
                ast::TransactionIsolationLevel::RepeatableRead => found = Some(Isolation::RepeatableRead),
                other => return Err(SqlError::unsupported(format!("the isolation level {other}"))),
            },
        }
    }
    Ok(found)
}

fn shown_name(variable: &[ast::Ident]) -> String {
    let words: Vec<String> = variable.iter().map(folded).collect();
    match words.join(" ").as_str() {
        "transaction isolation level" => "transaction_isolation".into(),
        "time zone" => "timezone".into(),
        name => name.replace(' ', "."),
    }
}
