//! Statements of a session: their plans, and what they do.

use std::time::Duration;

use plexus_base::BlockId;
use sqlparser::ast;

use super::{
    NamedSavepoint, Session,
    cursors::Declared,
    explain::{ExplainOptions, Explained},
    locks::TableMode,
    modes::Modes,
    no_transaction,
    settings::Settings,
};
use crate::{
    bind::{
        self, Around, Parameters,
        from::Source,
        query::{self, Query, QueryBody},
        select::{self, ResultColumn},
    },
    catalog::{self, Catalog, Privilege, RelationName, Table, Transaction, undefined},
    dml::{self, Change, ChangeKind, Targets},
    error::{Result, SqlError, code, fail},
    exec::{self, Run},
    expr::Expr,
    functions::spans::offset_of_span,
    parse::{Statement, folded, relation},
    sequences::Set,
    spool::Rows,
    types::{Type, Value, time, zone},
};

/// A statement that is ready to run, with the tables that it needs, and how.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) kind: PlanKind,
    pub(super) tables: Vec<(u64, TableMode)>,
    /// The relations that its text or that of a view names.
    pub(super) uses: Vec<RelationName>,
}

#[derive(Debug)]
pub(super) enum PlanKind {
    Select(Box<Query>),
    Change(Box<Change>),
    Declare(Box<Declared>),
    Explain(Box<Explained>),
    /// It needs no plan.
    Other(Statement),
}

impl Plan {
    pub(super) fn other(statement: Statement) -> Self {
        Self { kind: PlanKind::Other(statement), tables: Vec::new(), uses: Vec::new() }
    }

    pub(super) fn columns(&self) -> Vec<ResultColumn> {
        let text = |name: &str| vec![ResultColumn { name: name.into(), of: Type::Text }];
        match &self.kind {
            PlanKind::Select(query) => query.columns.clone(),
            PlanKind::Change(change) => change.columns.clone(),
            PlanKind::Explain(explained) => explained.columns(),
            PlanKind::Other(Statement::Sql(statement)) => match &**statement {
                ast::Statement::ShowVariable { variable } => text(&shown_name(variable)),
                _ => Vec::new(),
            },
            PlanKind::Declare(_) | PlanKind::Other(_) => Vec::new(),
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

/// Returns true for queries, which have rows for the client.
pub(super) fn is_query(statement: &Statement) -> bool {
    match statement {
        Statement::Sql(statement) => {
            matches!(&**statement, ast::Statement::Query(query) if !dml::is_change(query))
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
                | ast::Statement::Merge(_)
                | ast::Statement::Explain { .. }
                | ast::Statement::Declare { .. }
        ),
        _ => false,
    }
}

/// Binds a statement and plans it.
pub(super) async fn plan(
    statement: &Statement,
    catalog: &mut Catalog,
    by: &mut Transaction,
    parameters: &Parameters,
) -> Result<Plan> {
    let Statement::Sql(statement) = statement else { return Ok(Plan::other(statement.clone())) };
    let (statement, explains) = match &**statement {
        ast::Statement::Explain { analyze, verbose, statement, format, options, .. } => {
            select::refuse(format.is_some(), "EXPLAIN FORMAT without parentheses")?;
            let options = options.as_deref().unwrap_or_default();
            (&**statement, Some(ExplainOptions::read(*analyze, *verbose, options)?))
        }
        statement => (statement, None),
    };
    // Each time a table is missing, it is looked up, and the binding begins again.
    let mut plan = loop {
        parameters.begin_again();
        let bound = bind(statement, parameters);
        if let Some(table) = parameters.missing_targets.take() {
            let targets = Targets::of(catalog, by, &table).await?;
            parameters.targets.borrow_mut().insert(table.id, targets);
            continue;
        }
        let unsized_tables = parameters.unsized_tables.take();
        let Some(missing) = parameters.missing.take() else {
            let bound = bound?;
            if unsized_tables.is_empty() {
                break bound;
            }
            for table in unsized_tables {
                let rows = by.rows_about(table.rows()).await?;
                parameters.sizes.borrow_mut().insert(table.id, rows);
            }
            continue;
        };
        let found = catalog.relation(by, &missing).await?;
        parameters.relations.borrow_mut().insert(missing, found);
    };
    catalog.find_sequences(by, parameters.sequences.take()).await?;
    for (table, is_written) in parameters.changed.take() {
        plan.tables.push((table, if is_written { TableMode::Write } else { TableMode::Read }));
    }
    for (name, relation) in parameters.relations.take().into_values().flatten() {
        plan.uses.push(name);
        if let catalog::Relation::Table(table) = relation
            && plan.tables.iter().all(|(known, _)| *known != table.id)
        {
            plan.tables.push((table.id, TableMode::Read));
        }
    }
    Ok(match explains {
        // Only a statement that runs needs its tables.
        Some(options) => {
            let declares = matches!(plan.kind, PlanKind::Declare(_));
            select::refuse(options.runs && declares, "EXPLAIN ANALYZE of DECLARE")?;
            let tables = if options.runs { plan.tables.clone() } else { Vec::new() };
            let explained = Explained { plan, options };
            Plan { kind: PlanKind::Explain(Box::new(explained)), tables, uses: Vec::new() }
        }
        None => plan,
    })
}

/// Binds a statement, as far as its tables are known.
fn bind(statement: &ast::Statement, parameters: &Parameters) -> Result<Plan> {
    let around = Around { parameters, parent: None, with: None };
    match statement {
        ast::Statement::Query(query) if !dml::is_change(query) => {
            let mut query = query::bind(query, around)?;
            query::settle(&mut query);
            let query = query::shown(query, parameters)?;
            let tables = locked_tables(&query);
            Ok(Plan { kind: PlanKind::Select(Box::new(query)), tables, uses: Vec::new() })
        }
        ast::Statement::Query(_)
        | ast::Statement::Insert(_)
        | ast::Statement::Update(_)
        | ast::Statement::Delete(_)
        | ast::Statement::Merge(_) => {
            let change = Box::new(dml::bind_change(statement, around)?);
            Ok(Plan { kind: PlanKind::Change(change), tables: Vec::new(), uses: Vec::new() })
        }
        ast::Statement::Declare { stmts, .. } => {
            let unsupported = || SqlError::unsupported(statement);
            let [declare] = &stmts[..] else { return Err(unsupported()) };
            let ast::Declare { names, scroll, hold, for_query: Some(query), .. } = declare else {
                return Err(unsupported());
            };
            let [name] = &names[..] else { return Err(unsupported()) };
            select::refuse(declare.binary == Some(true), "a binary cursor")?;
            let mut query = query::bind(query, around)?;
            query::settle(&mut query);
            let query = query::shown(query, parameters)?;
            if parameters.changed.borrow().iter().any(|(_, is_written)| *is_written) {
                fail!(
                    FEATURE_NOT_SUPPORTED,
                    "DECLARE CURSOR must not contain data-modifying statements in WITH"
                );
            }
            let tables = locked_tables(&query);
            let (is_scroll, is_held) = (*scroll == Some(true), *hold == Some(true));
            let declared = Declared { name: folded(name), is_scroll, is_held, query };
            Ok(Plan { kind: PlanKind::Declare(Box::new(declared)), tables, uses: Vec::new() })
        }
        other => Err(SqlError::unsupported(format!("EXPLAIN {other}"))),
    }
}

/// Returns the tables whose rows a query locks.
fn locked_tables(query: &Query) -> Vec<(u64, TableMode)> {
    let sources = match &query.body {
        QueryBody::Select(select) => &select.sources[..],
        _ => &[],
    };
    let locked = sources.iter().filter(|source| source.locked.is_some()).filter_map(Source::table);
    locked.map(|table| (table.id, TableMode::Write)).collect()
}

impl Session<'_> {
    /// Runs a statement.
    pub(super) async fn run(&mut self, plan: &Plan, values: &[Value]) -> Result<Done> {
        if self.context.statement_begun == 0 {
            self.context.statement_begun = time::now();
        }
        let mut done = self.run_plan(plan, values).await;
        self.report_settings();
        let (sets, warnings) = self.context.end_statement();
        warnings.into_iter().for_each(|warning| self.notice("01000", "WARNING", warning));
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
    pub(super) fn report_settings(&mut self) {
        let mut settings = self.context.settings.borrow_mut();
        for name in settings.take_changed() {
            let Ok(value) = settings.show(name) else { continue };
            match name {
                "application_name" => self.activity.name(value.clone()),
                "search_path" => self.catalog.set_path(&value),
                // Literals of some plans were read in the zone or order before.
                "timezone" | "datestyle" => self.shapes.clear(),
                "default_transaction_isolation" | "default_transaction_read_only" => {
                    self.default_modes = Modes::of(&settings).unwrap_or(self.default_modes);
                }
                _ => {}
            }
            if let Some(reported) = Settings::reported_name(name) {
                self.connection.out.parameter(reported, &value);
            }
        }
    }

    /// Does the calls of `setval` of a statement.
    pub(super) async fn set_sequences(&mut self, sets: Vec<Set>) -> Result<()> {
        for set in sets {
            let by = self.transaction.as_mut().ok_or_else(no_transaction)?;
            self.ranges.set(by, &self.context.sequences, set).await?;
        }
        Ok(())
    }

    pub(super) async fn run_plan(&mut self, plan: &Plan, values: &[Value]) -> Result<Done> {
        match &plan.kind {
            PlanKind::Select(query) => {
                if plan.tables.iter().any(|(_, mode)| *mode > TableMode::Read) {
                    let locks = matches!(&query.body, QueryBody::Select(select) if select.has_locks);
                    self.modes.check_write(if locks { "SELECT FOR UPDATE" } else { "SELECT" })?;
                }
                let rows = exec::query::rows(&mut self.statement(values)?, query).await?;
                Ok(Done { tag: Tag::Rows("SELECT"), rows: Some((query.columns.clone(), rows)) })
            }
            PlanKind::Change(change) => {
                let word = match change.kind {
                    ChangeKind::Insert { .. } => "INSERT 0",
                    ChangeKind::Update { .. } => "UPDATE",
                    ChangeKind::Delete { .. } => "DELETE",
                    ChangeKind::Merge(_) => "MERGE",
                };
                self.modes.check_write(word.trim_end_matches(" 0"))?;
                let changed = dml::run(&mut self.statement(values)?, change).await?;
                let returned = changed.returned.into();
                let rows = (!change.columns.is_empty()).then(|| (change.columns.clone(), returned));
                Ok(Done { tag: Tag::Count(word, changed.count), rows })
            }
            PlanKind::Declare(declared) => {
                if !plan.tables.iter().all(|(_, mode)| *mode == TableMode::Read) {
                    self.modes.check_write("SELECT FOR UPDATE")?;
                }
                self.declare(declared, values).await
            }
            PlanKind::Explain(explained) => Box::pin(self.explain(explained, values)).await,
            PlanKind::Other(statement) => match statement {
                Statement::Nothing(tag) => Ok(plain(tag)),
                Statement::Vacuum(tables) => self.vacuum(tables).await,
                Statement::Sql(statement) => self.utility(statement).await,
                Statement::AlterSequence(alter) => self.alter_sequence(alter).await,
                Statement::ConstraintComment(comment) => self.comment_on_constraint(comment).await,
                Statement::SetConstraints { names, is_deferred } => {
                    self.set_constraints(names.as_deref(), *is_deferred).await
                }
                Statement::Copy(_) | Statement::Empty => Ok(plain("")),
            },
        }
    }

    /// Begins a statement of the transaction.
    pub(super) fn statement<'r>(&'r mut self, parameters: &'r [Value]) -> Result<Run<'r>> {
        self.has_queried = true;
        self.begin();
        let by = self.transaction.as_mut().ok_or_else(no_transaction)?;
        // So a change of one row holds no snapshot while it waits for another transaction.
        by.begin_statement();
        let run = Run::new(by, &self.context, &self.ranges, &self.temporary);
        Ok(Run { parameters, ..run })
    }

    /// Runs LOCK TABLE. A mode that keeps writers away keeps readers away, too.
    async fn lock_tables(&mut self, lock: &ast::Lock) -> Result<Done> {
        use ast::LockTableMode as M;
        if !self.is_explicit {
            fail!(NO_ACTIVE_TRANSACTION, "LOCK TABLE can only be used in transaction blocks");
        }
        let (mode, right) = match lock.lock_mode {
            Some(M::AccessShare) => (TableMode::Read, Privilege::Select),
            Some(M::RowShare) => (TableMode::Read, Privilege::Update),
            Some(M::RowExclusive | M::ShareUpdateExclusive) => (TableMode::Write, Privilege::Update),
            _ => (TableMode::Define, Privilege::Update),
        };
        for target in &lock.tables {
            let name = relation(&target.name)?;
            self.begin();
            let by = self.transaction.as_mut().ok_or_else(no_transaction)?;
            let table = self.catalog.table_for(by, &name, right).await?;
            if lock.nowait {
                let owner = self.context.advisory.owner()?;
                let taken =
                    self.locks.take(table.id, mode, Some(Duration::ZERO), &owner, self.activity).await;
                taken.map_err(|error| match error.code {
                    code::LOCK_NOT_AVAILABLE => {
                        let message = format!("could not obtain lock on relation \"{}\"", table.name);
                        SqlError::new(code::LOCK_NOT_AVAILABLE, message)
                    }
                    _ => error,
                })?;
            }
            // Its definition may have changed before the lock was there.
            self.lock_named(&[name], mode).await?;
        }
        Ok(plain("LOCK TABLE"))
    }

    /// Cleans tables: rows and pages go that no snapshot shows.
    async fn vacuum(&mut self, names: &[String]) -> Result<Done> {
        self.check_alone("VACUUM")?;
        self.begin();
        let by = self.transaction.as_mut().ok_or_else(no_transaction)?;
        self.catalog.refresh(by).await?;
        let tables = match names {
            [] => self.catalog.tables(by).await?,
            names => {
                let mut tables = Vec::new();
                for name in names {
                    let table = self.catalog.owned(by, name).await?;
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
                let modes = self.default_modes.with(modes)?;
                self.begin_explicit(modes);
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
                let NamedSavepoint { place, notifications, constraints, .. } = self.savepoints[at].clone();
                self.context.constraints.rollback_to(constraints);
                self.savepoints.truncate(at + 1);
                self.end_cursors_behind(at);
                self.context.notifications.rollback_to(notifications);
                let transaction = self.transaction.as_mut().ok_or_else(no_transaction)?;
                transaction.rollback_to(place).await?;
                transaction.keep_savepoints(at + 1);
                self.catalog.forget();
                self.is_failed = false;
                Ok(plain("ROLLBACK"))
            }
            ast::Statement::Savepoint { name } => {
                if !self.is_explicit {
                    fail!(NO_ACTIVE_TRANSACTION, "SAVEPOINT can only be used in transaction blocks");
                }
                self.begin();
                let place = self.transaction.as_mut().ok_or_else(no_transaction)?.savepoint()?;
                let name = folded(name);
                let notifications = self.context.notifications.mark();
                let constraints = self.context.constraints.mark();
                self.savepoints.push(NamedSavepoint { name, place, notifications, constraints });
                Ok(plain("SAVEPOINT"))
            }
            ast::Statement::ReleaseSavepoint { name } => {
                let at = self.find_savepoint(name)?;
                self.savepoints.truncate(at);
                self.transaction.iter_mut().for_each(|transaction| transaction.keep_savepoints(at));
                self.release_cursors(at);
                Ok(plain("RELEASE"))
            }
            ast::Statement::Fetch { name, direction, into: None, .. } => self.fetch(name, direction),
            ast::Statement::Close { cursor } => self.close(cursor),
            ast::Statement::Lock(lock) => self.lock_tables(lock).await,
            ast::Statement::LISTEN { channel } => {
                self.context.notifications.listen(Some(folded(channel)), true)?;
                Ok(plain("LISTEN"))
            }
            ast::Statement::UNLISTEN { channel } => {
                let is_all = channel.quote_style.is_none() && channel.value == "*";
                self.context.notifications.listen((!is_all).then(|| folded(channel)), false)?;
                Ok(plain("UNLISTEN"))
            }
            ast::Statement::NOTIFY { channel, payload } => {
                let payload = payload.as_deref().unwrap_or_default();
                self.context.notifications.notify(&folded(channel), payload)?;
                Ok(plain("NOTIFY"))
            }
            ast::Statement::Set(set) => self.set(set),
            ast::Statement::ShowVariable { variable } => {
                let name = shown_name(variable);
                let value = self.context.settings.borrow().show(&name)?;
                let columns = vec![ResultColumn { name, of: Type::Text }];
                Ok(Done {
                    tag: Tag::Plain("SHOW"),
                    rows: Some((columns, vec![vec![Value::Text(value)]].into())),
                })
            }
            ast::Statement::Reset(reset) => {
                match &reset.reset {
                    ast::Reset::ALL => self.context.settings.borrow_mut().reset_all(),
                    ast::Reset::ConfigurationParameter(name) => {
                        self.context.settings.borrow_mut().reset(&name.to_string(), false)?
                    }
                    ast::Reset::SessionAuthorization => {}
                }
                Ok(plain("RESET"))
            }
            ast::Statement::Discard { object_type: ast::DiscardObject::TEMP } => {
                select::refuse(self.is_explicit, "DISCARD TEMP in a transaction block")?;
                Box::pin(self.end_temporary()).await;
                Ok(plain("DISCARD TEMP"))
            }
            ast::Statement::Discard { object_type: ast::DiscardObject::ALL } => {
                if self.is_explicit {
                    fail!(ACTIVE_TRANSACTION, "DISCARD ALL cannot run inside a transaction block");
                }
                Box::pin(self.end_temporary()).await;
                self.context.advisory.unlock_all().await;
                self.context.notifications.listen(None, false)?;
                self.context.settings.borrow_mut().reset_all();
                self.statements.clear();
                self.cursors.clear();
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

    fn begin_explicit(&mut self, modes: Modes) {
        if !self.is_explicit {
            self.set_modes(modes);
            self.has_queried = false;
            // The statements before it in the same text are part of it.
            if self.transaction.is_none() {
                self.begin();
            }
        }
        self.is_explicit = true;
    }

    fn find_savepoint(&self, name: &ast::Ident) -> Result<usize> {
        if !self.is_explicit {
            fail!(NO_ACTIVE_TRANSACTION, "savepoints can only be used in transaction blocks");
        }
        let name = folded(name);
        self.savepoints.iter().rposition(|known| known.name == name).ok_or_else(|| {
            SqlError::new(code::INVALID_SAVEPOINT, format!("savepoint \"{name}\" does not exist"))
        })
    }

    /// Warns of SET LOCAL without a transaction, which ends at once.
    fn warn_without_transaction(&mut self, is_local: bool) -> bool {
        if is_local && !self.is_explicit {
            let message = "SET LOCAL can only be used in transaction blocks".into();
            self.notice(code::NO_ACTIVE_TRANSACTION, "WARNING", message);
        }
        is_local
    }

    fn set(&mut self, set: &ast::Set) -> Result<Done> {
        match set {
            ast::Set::SingleAssignment {
                scope: scope @ (None | Some(ast::ContextModifier::Session | ast::ContextModifier::Local)),
                hivevar: false,
                variable,
                values,
            } => {
                let is_local = self.warn_without_transaction(*scope == Some(ast::ContextModifier::Local));
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
                        self.context.settings.borrow_mut().reset(&name, is_local)?
                    }
                    value => self.context.settings.borrow_mut().set_for(&name, &value, is_local)?,
                }
                Ok(plain("SET"))
            }
            ast::Set::SetTransaction { modes, snapshot: None, session } => {
                if *session {
                    let modes = self.default_modes.with(modes)?;
                    let mut settings = self.context.settings.borrow_mut();
                    settings.set("default_transaction_isolation", modes.level)?;
                    let is_read_only = if modes.is_read_only { "on" } else { "off" };
                    settings.set("default_transaction_read_only", is_read_only)?;
                    return Ok(plain("SET"));
                }
                let modes = self.modes.with(modes)?;
                let is_new = self.transaction.as_ref().is_none_or(Transaction::is_new);
                if modes.isolation != self.modes.isolation && !self.savepoints.is_empty() {
                    fail!(
                        ACTIVE_TRANSACTION,
                        "SET TRANSACTION ISOLATION LEVEL must not be called in a subtransaction"
                    );
                }
                if !is_new && modes.isolation != self.modes.isolation {
                    fail!(
                        ACTIVE_TRANSACTION,
                        "SET TRANSACTION ISOLATION LEVEL must be called before any query"
                    );
                }
                if self.has_queried && self.modes.is_read_only && !modes.is_read_only {
                    fail!(ACTIVE_TRANSACTION, "transaction read-write mode must be set before any query");
                }
                if modes.isolation != self.modes.isolation {
                    self.transaction = None;
                }
                self.set_modes(modes);
                self.begin();
                Ok(plain("SET"))
            }
            ast::Set::SetTimeZone { local, value } => {
                let is_local = self.warn_without_transaction(*local);
                let mut settings = self.context.settings.borrow_mut();
                let text = match value {
                    ast::Expr::Interval(literal) => match bind::operators::interval(literal)?.0 {
                        Expr::Value(Value::Interval(span)) => zone::posix_name(offset_of_span(&span)?),
                        _ => return Err(SqlError::unsupported(value)),
                    },
                    other => other.to_string().trim_matches('\'').to_owned(),
                };
                match text.to_ascii_lowercase().as_str() {
                    "default" | "local" => settings.reset("timezone", is_local)?,
                    _ => settings.set_for("timezone", &text, is_local)?,
                }
                Ok(plain("SET"))
            }
            ast::Set::SetNames { charset_name, collation_name: None } => {
                self.context.settings.borrow_mut().set("client_encoding", &charset_name.value)?;
                Ok(plain("SET"))
            }
            other => Err(SqlError::unsupported(other)),
        }
    }
}

fn shown_name(variable: &[ast::Ident]) -> String {
    let words: Vec<String> = variable.iter().map(folded).collect();
    let name = match words.join(" ").as_str() {
        "transaction isolation level" => "transaction_isolation".into(),
        "time zone" => "timezone".into(),
        name => name.replace(' ', "."),
    };
    Settings::reported_name(&name).map_or(name, str::to_owned)
}
