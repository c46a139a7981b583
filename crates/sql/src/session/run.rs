//! Statements of a session: their plans, and what they do.

use plexus_base::BlockId;
use plexus_cache::Cache;
use plexus_store::{Isolation, Store};
use sqlparser::ast;

use super::{Session, locks::TableMode, no_transaction, settings::Settings};
use crate::{
    bind::{
        Around, Parameters,
        from::{Relation, Source},
        query::{self, Body, Query},
        select::{self, ResultColumn},
    },
    catalog::{self, Catalog, Privilege, Table, Transaction},
    ddl,
    dml::{self, Change, ChangeKind},
    error::{Result, SqlError, code},
    exec::{self, Run},
    parse::{Statement, folded, relation},
    roles::Roles,
    sequences::Set,
    spool::Rows,
    types::{Type, Value, time},
};

/// A statement that is ready to run, with the tables that it needs, and how.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) kind: PlanKind,
    pub(super) tables: Vec<(u64, TableMode)>,
}

#[derive(Debug)]
pub(super) enum PlanKind {
    Select(Box<Query>),
    Change(Box<Change>),
    /// Its plan, as text.
    Explain(Vec<String>),
    /// It needs no plan.
    Other(Statement),
}

impl Plan {
    pub(super) fn other(statement: Statement) -> Self {
        Self { kind: PlanKind::Other(statement), tables: Vec::new() }
    }

    pub(super) fn columns(&self) -> Vec<ResultColumn> {
        let text = |name: &str| vec![ResultColumn { name: name.into(), of: Type::Text }];
        match &self.kind {
            PlanKind::Select(query) => query.columns.clone(),
            PlanKind::Change(change) => change.columns.clone(),
            PlanKind::Explain(_) => text("QUERY PLAN"),
            PlanKind::Other(Statement::Sql(statement)) => match &**statement {
                ast::Statement::ShowVariable { variable } => text(&shown_name(variable)),
                _ => Vec::new(),
            },
            PlanKind::Other(_) => Vec::new(),
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

fn plain(tag: &'static str) -> Done {
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

/// Binds a statement and plans it.
pub(super) async fn plan(
    statement: &Statement,
    catalog: &mut Catalog,
    store: &Store<Cache>,
    by: &mut Transaction,
    parameters: &Parameters,
) -> Result<Plan> {
    let Statement::Sql(statement) = statement else { return Ok(Plan::other(statement.clone())) };
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
    // Each time a table is missing, it is looked up, and the binding begins again.
    let mut plan = loop {
        parameters.begin_again();
        let bound = bind(statement, parameters);
        let Some(missing) = parameters.missing.take() else { break bound? };
        let found = catalog.relation(store, by, &missing).await?.map(|(_, relation)| relation);
        parameters.relations.borrow_mut().insert(missing, found);
    };
    catalog.find_sequences(store, by, parameters.sequences.take()).await?;
    for relation in parameters.relations.take().into_values().flatten() {
        if let catalog::Relation::Table(table) = relation
            && plan.tables.iter().all(|(known, _)| *known != table.id)
        {
            plan.tables.push((table.id, TableMode::Read));
        }
    }
    Ok(match explains {
        true => Plan { kind: PlanKind::Explain(explain(&plan.kind)), tables: Vec::new() },
        false => plan,
    })
}

/// Binds a statement, as far as its tables are known.
fn bind(statement: &ast::Statement, parameters: &Parameters) -> Result<Plan> {
    let written = |change: Change| {
        let tables = vec![(change.table.id, TableMode::Write)];
        Ok(Plan { kind: PlanKind::Change(Box::new(change)), tables })
    };
    match statement {
        ast::Statement::Query(query) => {
            let mut query = query::bind(query, Around { parameters, parent: None, with: None })?;
            query::settle(&mut query);
            let query = query::shown(query, parameters)?;
            let locked = match &query.body {
                Body::Select(select) if select.locks.is_some() => {
                    select.sources.first().and_then(Source::table)
                }
                _ => None,
            };
            let tables = locked.map(|table| (table.id, TableMode::Write)).into_iter().collect();
            Ok(Plan { kind: PlanKind::Select(Box::new(query)), tables })
        }
        ast::Statement::Insert(insert) => {
            let ast::TableObject::TableName(name) = &insert.table else {
                return Err(SqlError::unsupported(format!("INSERT INTO {}", insert.table)));
            };
            written(dml::bind_insert(
                insert,
                &parameters.table_for(&relation(name)?, Privilege::Insert)?,
                parameters,
            )?)
        }
        ast::Statement::Update(update) => {
            let table = parameters.table_for(&named(&update.table)?, Privilege::Update)?;
            written(dml::bind_update(update, &table, parameters)?)
        }
        ast::Statement::Delete(delete) => {
            let (ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from)) = &delete.from;
            let [from] = &from[..] else {
                return Err(SqlError::unsupported("DELETE from several tables"));
            };
            let table = parameters.table_for(&named(from)?, Privilege::Delete)?;
            written(dml::bind_delete(delete, &table, parameters)?)
        }
        other => Err(SqlError::unsupported(format!("EXPLAIN {other}"))),
    }
}

/// Returns the name of the table that a statement changes.
fn named(table: &ast::TableWithJoins) -> Result<String> {
    match &table.relation {
        ast::TableFactor::Table { name, args: None, .. } => relation(name),
        other => Err(SqlError::unsupported(format!("a change of {other}"))),
    }
}

/// Returns the plan as lines of text.
fn explain(plan: &PlanKind) -> Vec<String> {
    let mut lines = Vec::new();
    match plan {
        PlanKind::Select(query) => explain_query(query, 0, &mut lines),
        PlanKind::Change(change) => match &change.kind {
            ChangeKind::Insert { .. } => lines.push(format!("Insert on {}", change.table.name)),
            ChangeKind::Update { source, .. } => {
                lines.push(format!("Update on {}", change.table.name));
                explain_source(source, false, 0, &mut lines);
            }
            ChangeKind::Delete { source } => {
                lines.push(format!("Delete on {}", change.table.name));
                explain_source(source, false, 0, &mut lines);
            }
        },
        PlanKind::Explain(_) | PlanKind::Other(_) => {}
    }
    lines
}

fn explain_query(query: &Query, depth: usize, lines: &mut Vec<String>) {
    let mut add = |text: &str| lines.push(format!("{}{text}", "  ".repeat(depth)));
    match &query.body {
        Body::Values(_) => add("Values"),
        Body::Set(set) => {
            add(&set.operator.to_string());
            explain_query(&set.left.0, depth + 1, lines);
            explain_query(&set.right.0, depth + 1, lines);
        }
        Body::Select(select) => {
            if !select.order.is_empty() {
                add("Sort");
            }
            if !select.windows.is_empty() {
                add("Window functions");
            }
            if select.groups.is_some() {
                add("Aggregate");
            }
            if select.sources.is_empty() {
                add("Result");
            }
            for (at, source) in select.sources.iter().enumerate() {
                explain_source(source, at > 0, depth + at, lines);
            }
        }
    }
}

fn explain_source(source: &Source, is_joined: bool, depth: usize, lines: &mut Vec<String>) {
    let path = &source.path;
    let way = match &source.relation {
        Relation::Table(table) => match path.index {
            _ if path.is_point(table) => format!("Row of {} by its primary key", table.name),
            Some(index) => format!("Scan of index {} of {}", table.indexes[index].name, table.name),
            None if path.columns.is_empty() => format!("Scan of all rows of {}", table.name),
            None => format!("Scan of rows of {} by its primary key", table.name),
        },
        Relation::System(table) => format!("Scan of {}", table.name),
        Relation::Query { .. } => "Subquery".to_owned(),
        Relation::Shared(_) | Relation::Working(_) => "Query of WITH".to_owned(),
        Relation::Functions(calls, _) => format!("Function {}", calls[0].function.name),
        Relation::Joined(_) => "Joined tables".to_owned(),
    };
    let join = match (is_joined, &source.outer) {
        (false, _) => "",
        (_, None) => "Join with ",
        (_, Some(_)) if source.is_full => "Full join with ",
        (_, Some(_)) => "Left join with ",
    };
    let backward = if path.is_backward { ", backward" } else { "" };
    lines.push(format!("{}{join}{way}{backward}", "  ".repeat(depth)));
    match &source.relation {
        Relation::Query { query, .. } => explain_query(query, depth + 1, lines),
        Relation::Joined(sources) => {
            for (at, source) in sources.iter().enumerate() {
                explain_source(source, at > 0, depth + 1 + at, lines);
            }
        }
        _ => {}
    }
}

impl Session<'_> {
    /// Runs a statement.
    pub(super) async fn run(&mut self, plan: &Plan, values: &[Value]) -> Result<Done> {
        if self.context.statement_begun == 0 {
            self.context.statement_begun = time::now();
        }
        let mut done = self.run_plan(plan, values).await;
        self.context.statement_begun = 0;
        self.report_settings();
        let sets = self.context.sequences.end_statement();
        self.context.definitions.end_statement();
        self.context.answers.end_statement();
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

    /// Tells the client, and lists of sessions, of the settings that a statement has changed.
    fn report_settings(&mut self) {
        let mut settings = self.context.settings.borrow_mut();
        for name in settings.take_changed() {
            let Ok(value) = settings.show(name) else { continue };
            if name == "application_name" {
                self.activity.name(value.clone());
            }
            if let Some(reported) = Settings::reported_name(name) {
                self.connection.out.parameter(reported, &value);
            }
        }
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
        match &plan.kind {
            PlanKind::Select(query) => {
                let rows = exec::query::rows(&mut self.statement(values)?, query).await?;
                Ok(Done { tag: Tag::Rows("SELECT"), rows: Some((query.columns.clone(), rows)) })
            }
            PlanKind::Change(change) => {
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
            PlanKind::Explain(lines) => {
                let rows: Vec<_> = lines.iter().map(|line| vec![Value::Text(line.clone())]).collect();
                Ok(Done { tag: Tag::Plain("EXPLAIN"), rows: Some((plan.columns(), rows.into())) })
            }
            PlanKind::Other(statement) => match statement {
                Statement::Nothing(tag) => Ok(plain(tag)),
                Statement::Vacuum(tables) => self.vacuum(tables).await,
                Statement::Sql(statement) => self.utility(statement).await,
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
        Ok(Run { store: &self.store, by, parameters, outer: &[], context, ranges, temporary, memory: 0 })
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
                    tables.push((*self.catalog.table(&self.store, by, name).await?).clone());
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

    fn notice(&mut self, code: &'static str, severity: &str, message: String) {
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
                    name => self.context.settings.borrow().show(name)?,
                };
                let columns = vec![ResultColumn { name, of: Type::Text }];
                Ok(Done {
                    tag: Tag::Plain("SHOW"),
                    rows: Some((columns, vec![vec![Value::Text(value)]].into())),
                })
            }
            ast::Statement::Reset(reset) => {
                match &reset.reset {
                    ast::Reset::ALL => self.context.settings.borrow_mut().reset(None)?,
                    ast::Reset::ConfigurationParameter(name) => {
                        self.context.settings.borrow_mut().reset(Some(&name.to_string()))?
                    }
                    ast::Reset::SessionAuthorization => {}
                }
                Ok(plain("RESET"))
            }
            ast::Statement::Discard { object_type: ast::DiscardObject::ALL } => {
                self.context.settings.borrow_mut().reset(None)?;
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
                    value if value.eq_ignore_ascii_case("default") => {
                        self.context.settings.borrow_mut().reset(Some(&name))?
                    }
                    value => self.context.settings.borrow_mut().set(&name, &value)?,
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
                self.context.settings.borrow_mut().set("timezone", value.to_string().trim_matches('\''))?;
                Ok(plain("SET"))
            }
            ast::Set::SetNames { charset_name, collation_name: None } => {
                self.context.settings.borrow_mut().set("client_encoding", &charset_name.value)?;
                Ok(plain("SET"))
            }
            other => Err(SqlError::unsupported(other)),
        }
    }

    async fn tables_of_indexes(&mut self, names: &[ast::ObjectName]) -> Result<Vec<String>> {
        self.begin();
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        by.begin_statement();
        self.catalog.refresh(&self.store, by).await?;
        let mut tables = Vec::new();
        for name in names {
            let table = self.catalog.table_of_index(&self.store, by, &relation(name)?).await?;
            tables.extend(table.map(|(table, _)| table.relation().qualified()));
        }
        Ok(tables)
    }

    /// Runs a statement that changes the catalog.
    async fn define(&mut self, statement: &ast::Statement) -> Result<Done> {
        let names = match statement {
            ast::Statement::Drop { object_type: ast::ObjectType::Table, names, .. } => {
                names.iter().map(relation).collect::<Result<_>>()?
            }
            ast::Statement::Drop { object_type: ast::ObjectType::Index, names, .. } => {
                self.tables_of_indexes(names).await?
            }
            ast::Statement::Truncate(truncate) => {
                truncate.table_names.iter().map(|target| relation(&target.name)).collect::<Result<_>>()?
            }
            ast::Statement::AlterTable(alter) => vec![relation(&alter.name)?],
            ast::Statement::CreateIndex(create) => vec![relation(&create.table_name)?],
            _ => Vec::new(),
        };
        self.lock_named(&names, TableMode::Define).await?;
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        let (context, ranges, temporary) = (&self.context, &*self.ranges, &self.temporary);
        let mut run = Run {
            store: &self.store,
            by,
            parameters: &[],
            outer: &[],
            context,
            ranges,
            temporary,
            memory: 0,
        };
        let mut notices = Vec::new();
        let (place, first) = (self.catalog.place().clone(), &self.first);
        macro_rules! roles {
            ($run:ident) => {
                Roles { run: &mut $run, place: &place, first }
            };
        }
        let tag = match statement {
            ast::Statement::CreateTable(create) => {
                notices.extend(ddl::create_table(&mut run, &mut self.catalog, create).await?);
                "CREATE TABLE"
            }
            ast::Statement::CreateRole(create) => {
                roles!(run).create(create).await?;
                "CREATE ROLE"
            }
            ast::Statement::AlterRole { name, operation } => {
                roles!(run).alter(name, operation).await?;
                "ALTER ROLE"
            }
            ast::Statement::Drop {
                object_type: ast::ObjectType::Role | ast::ObjectType::User,
                if_exists,
                names,
                ..
            } => {
                notices = roles!(run).drop_all(names, *if_exists).await?;
                "DROP ROLE"
            }
            ast::Statement::CreateDatabase { db_name, if_not_exists: false, .. }
                if statement.to_string() == format!("CREATE DATABASE {db_name}") =>
            {
                roles!(run).create_database(db_name).await?;
                "CREATE DATABASE"
            }
            ast::Statement::CreateSequence { temporary: false, if_not_exists, name, sequence_options } => {
                let options = &sequence_options[..];
                let catalog = &mut self.catalog;
                notices.extend(ddl::create_sequence(&mut run, catalog, name, *if_not_exists, options).await?);
                "CREATE SEQUENCE"
            }
            ast::Statement::CreateIndex(create) => {
                notices.extend(ddl::create_index(&mut run, &mut self.catalog, create).await?);
                "CREATE INDEX"
            }
            ast::Statement::Drop {
                object_type,
                if_exists,
                names,
                cascade: false,
                purge: false,
                temporary: false,
                table: None,
                ..
            } => {
                notices = ddl::drop_all(&mut run, &mut self.catalog, *object_type, names, *if_exists).await?;
                match object_type {
                    ast::ObjectType::Table => "DROP TABLE",
                    ast::ObjectType::Sequence => "DROP SEQUENCE",
                    _ => "DROP INDEX",
                }
            }
            ast::Statement::Truncate(truncate) => {
                ddl::truncate(&mut run, &mut self.catalog, truncate).await?;
                "TRUNCATE TABLE"
            }
            ast::Statement::AlterTable(alter) => {
                ddl::alter_table(&mut run, &mut self.catalog, alter).await?;
                "ALTER TABLE"
            }
            other => {
                let text = other.to_string();
                let words: Vec<&str> = text.split_whitespace().take(3).collect();
                return Err(SqlError::unsupported(format!("the statement {}", words.join(" "))));
            }
        };
        for notice in notices {
            let is_there = notice.ends_with("already exists, skipping");
            self.notice(if is_there { code::DUPLICATE_TABLE } else { "00000" }, "NOTICE", notice);
        }
        Ok(plain(tag))
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
