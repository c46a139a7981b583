//! A session of a client: its messages, its transaction, its prepared statements.

mod building;
mod copying;
mod cursors;
mod define;
mod explain;
pub(crate) mod locks;
mod modes;
mod prepared;
mod run;
pub(crate) mod settings;
mod temporary;

use std::{collections::HashMap, iter::Peekable, path::Path, pin::pin, rc::Rc, sync::Arc};

use plexus_cache::Cache;
use plexus_locks::LockManager;
use plexus_store::{Isolation, Savepoint, Store};
use sqlparser::ast;

use self::{
    cursors::Cursor, locks::TableLocks, modes::Modes, run::Plan, settings::Time, temporary::TemporarySchema,
};
use crate::{
    activity::Activity,
    bind::{Parameters, select::ResultColumn},
    catalog::{Catalog, Transaction},
    dml::foreign::ConstraintModes,
    error::{Result, SqlError, code, error, fail},
    functions::Context,
    parse::{self, Statement},
    roles::FirstRole,
    sequences::Ranges,
    shape::Shape,
    spool::Rows,
    types::{Type, Value, text, time},
    wire::{BindMessage, Received, connection::Connection, format_of},
};

/// A prepared statement.
struct Prepared {
    statement: Statement,
    /// Its text, for people.
    text: Box<str>,
    /// The types that the client has given, and those that were found.
    types: Vec<Type>,
    columns: Vec<ResultColumn>,
    /// The version of the catalog for which the plan was made, the plan, and the types of its
    /// parameters.
    plan: std::cell::RefCell<Option<KnownPlan>>,
}

type KnownPlan = (Vec<u8>, Rc<Plan>, Vec<Type>);

impl Prepared {
    fn new(statement: Statement) -> Self {
        Self {
            statement,
            text: Box::default(),
            types: Vec::new(),
            columns: Vec::new(),
            plan: std::cell::RefCell::default(),
        }
    }
}

/// A statement with its parameters, and the rows that the client has not taken yet.
struct Portal {
    prepared: Rc<Prepared>,
    values: Vec<Value>,
    formats: Vec<bool>,
    /// The columns, the rows that are left, and the number of those that were given.
    rows: Option<(Vec<ResultColumn>, Peekable<Rows>, u64)>,
}

/// The parts of its node that a session uses.
#[derive(Clone)]
pub(crate) struct SessionParts {
    pub(crate) store: Store<Cache>,
    pub(crate) locks: LockManager,
    pub(crate) ranges: Arc<Ranges>,
    pub(crate) first: FirstRole,
    /// The directory for temporary files.
    pub(crate) temporary: Arc<Path>,
}

/// A savepoint of the client, and what a rollback to it takes back.
#[derive(Clone)]
struct NamedSavepoint {
    name: String,
    place: Savepoint,
    /// The place of its notifications.
    notifications: (usize, usize),
    /// The modes of constraints and the number of checks that wait.
    constraints: (ConstraintModes, usize),
}

/// A session of a client.
pub(crate) struct Session<'a> {
    store: Store<Cache>,
    connection: &'a mut Connection,
    activity: &'a Activity,
    context: Context,
    catalog: Catalog,
    locks: TableLocks,
    ranges: Arc<Ranges>,
    first: FirstRole,
    temporary: Arc<Path>,
    transaction: Option<Transaction>,
    /// True from BEGIN to the end of the transaction.
    is_explicit: bool,
    is_failed: bool,
    modes: Modes,
    default_modes: Modes,
    /// A statement of the transaction has read or changed rows.
    has_queried: bool,
    temporary_schema: Option<TemporarySchema>,
    savepoints: Vec<NamedSavepoint>,
    statements: HashMap<String, Rc<Prepared>>,
    /// Statements of simple queries by their shape; `None`: they are planned with their literals.
    shapes: HashMap<String, Option<Rc<Prepared>>>,
    portals: HashMap<String, Portal>,
    cursors: HashMap<String, Cursor>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        parts: SessionParts,
        catalog: Catalog,
        connection: &'a mut Connection,
        activity: &'a Activity,
        context: Context,
        start: &[(String, String)],
    ) -> Result<Self> {
        context.settings.borrow_mut().begin_session(start)?;
        activity.name(context.settings.borrow().show("application_name")?);
        let mut catalog = catalog;
        catalog.set_path(&context.settings.borrow().show("search_path")?);
        let default_modes = Modes::of(&context.settings.borrow())?;
        context.sequences.is_read_only.set(default_modes.is_read_only);
        context.settings.borrow_mut().note_modes(default_modes.level, default_modes.is_read_only);
        let SessionParts { store, locks, ranges, first, temporary } = parts;
        Ok(Self {
            store,
            connection,
            activity,
            context,
            catalog,
            locks: TableLocks::new(locks),
            ranges,
            first,
            temporary,
            transaction: None,
            is_explicit: false,
            is_failed: false,
            modes: default_modes,
            default_modes,
            has_queried: false,
            temporary_schema: None,
            savepoints: Vec::new(),
            statements: HashMap::new(),
            shapes: HashMap::new(),
            portals: HashMap::new(),
            cursors: HashMap::new(),
        })
    }

    /// Serves the client until it ends the connection.
    pub(crate) async fn serve(mut self) -> Result<()> {
        let served = self.serve_messages().await;
        self.end_temporary().await;
        served
    }

    async fn serve_messages(&mut self) -> Result<()> {
        for (name, value) in self.context.settings.borrow().reported() {
            self.connection.out.parameter(name, &value);
        }
        self.ready().await?;
        // After an error of the extended protocol, messages up to Sync are passed over.
        let mut skips = false;
        while let Some(message) = self.message().await? {
            if skips && !matches!(message, Received::Sync | Received::Terminate) {
                continue;
            }
            match message {
                Received::Terminate => break,
                Received::Query(text) => {
                    self.activity.forget_cancel();
                    self.activity.begin(&text);
                    if let Err(error) = self.query(&text).await {
                        self.fail(&error.located(&text)).await?;
                    }
                    self.end_implicit().await?;
                    self.ready().await?;
                }
                Received::Sync => {
                    skips = false;
                    self.end_implicit().await?;
                    self.ready().await?;
                }
                message => {
                    if let Err(error) = self.extended(message).await {
                        self.fail(&error).await?;
                        skips = true;
                    }
                }
            }
            self.activity.unless_ended(self.connection.flush_if_full()).await?;
        }
        Ok(())
    }

    async fn ready(&mut self) -> Result<()> {
        self.put_notifications().await?;
        let status = match (self.is_explicit, self.is_failed) {
            (false, _) => b'I',
            (true, false) => b'T',
            (true, true) => b'E',
        };
        self.connection.out.ready(status);
        self.activity.rest(match status {
            b'I' => "idle",
            b'T' => "idle in transaction",
            _ => "idle in transaction (aborted)",
        });
        Ok(())
    }

    /// Gives the client its notifications, outside of transactions.
    async fn put_notifications(&mut self) -> Result<()> {
        while !self.is_explicit
            && let Some(notification) = self.context.notifications.next()
        {
            self.connection.out.notification(
                notification.process,
                &notification.channel,
                &notification.payload,
            );
            self.activity.unless_ended(self.connection.flush_if_full()).await?;
        }
        Ok(())
    }

    /// Waits for the next message of the client; `None` if it has ended the connection.
    async fn message(&mut self) -> Result<Option<Received>> {
        if !self.is_explicit {
            loop {
                self.put_notifications().await?;
                if let Some(message) = self.activity.unless_notified(self.connection.receive()).await? {
                    return Ok(message);
                }
            }
        }
        let limit = self.context.settings.borrow().time(Time::IdleInTransaction);
        let next = self.activity.unless_ended(self.connection.receive());
        match limit {
            None => next.await,
            Some(limit) => plexus_interconnect::executor::timeout(limit, next).await.unwrap_or_else(|| {
                let message = "terminating connection due to idle-in-transaction timeout";
                Err(SqlError::new("25P03", message))
            }),
        }
    }

    /// Reports an error, and fails the transaction.
    async fn fail(&mut self, error: &SqlError) -> Result<()> {
        // The client is gone, or must go.
        if error.code.starts_with("08") || error.code == code::ADMIN_SHUTDOWN {
            return Err(error.clone());
        }
        self.connection.out.error(error, "ERROR");
        self.is_failed = true;
        // A statement that was cancelled has not come to its end, and its answers are not those of
        // the next one.
        self.context.end_statement();
        if self.savepoints.is_empty() {
            // Those that wait for its rows go on.
            self.transaction = None;
            // What it had changed of the catalog is undone.
            self.catalog.forget();
            self.context.constraints.end_transaction();
            self.context.sequences.made.borrow_mut().clear();
            self.release_locks().await;
            self.portals.clear();
            self.end_cursors(false);
        }
        Ok(())
    }

    /// Ends the transaction of a statement that is in none.
    async fn end_implicit(&mut self) -> Result<()> {
        if self.is_explicit {
            return Ok(());
        }
        self.portals.clear();
        if let Err(error) = self.end(true).await {
            self.connection.out.error(&error, "ERROR");
        }
        Ok(())
    }

    /// Ends the transaction.
    async fn end(&mut self, commits: bool) -> Result<()> {
        self.is_explicit = false;
        self.savepoints.clear();
        let is_failed = std::mem::take(&mut self.is_failed);
        if commits
            && !is_failed
            && let Err(error) = self.before_commit().await
        {
            // What has failed is rolled back.
            Box::pin(self.end(false)).await?;
            return Err(error);
        }
        self.context.constraints.end_transaction();
        self.end_cursors(commits && !is_failed);
        let result = match self.transaction.take() {
            Some(transaction) if commits && !is_failed => transaction.commit().await,
            Some(transaction) => {
                transaction.rollback();
                // What it had changed of the catalog is undone.
                self.catalog.forget();
                Ok(())
            }
            None => Ok(()),
        };
        let is_committed = commits && !is_failed && result.is_ok();
        self.end_on_commit(is_committed);
        if self.context.settings.borrow_mut().end_transaction(is_committed) {
            self.report_settings();
        }
        self.set_modes(self.default_modes);
        self.context.sequences.made.borrow_mut().clear();
        self.context.notifications.end_transaction(is_committed).await;
        // Behind the end of the transaction, so that others see it.
        self.release_locks().await;
        Ok(result?)
    }

    async fn before_commit(&mut self) -> Result<()> {
        self.check_constraints(true).await?;
        self.act_on_commit().await?;
        // Rows that go may be named by others.
        self.check_constraints(true).await
    }

    /// Gives back the locks of the transaction, which has ended.
    async fn release_locks(&mut self) {
        let advisory = &self.context.advisory;
        advisory.end_transaction().await;
        if self.locks.release() {
            advisory.begin_owner();
        }
    }

    /// Begins a transaction if there is none.
    fn begin(&mut self) {
        if self.transaction.is_none() {
            self.context.begun = time::now();
            self.context.statement_begun = self.context.begun;
            let transaction = self.store.begin_watched(self.modes.isolation, self.activity.watch.clone());
            self.transaction = Some(transaction);
            self.activity.begin_transaction(self.modes.isolation == Isolation::RepeatableRead);
        }
        let limit = self.context.settings.borrow().time(Time::Lock);
        self.transaction.iter_mut().for_each(|transaction| transaction.limit_waits(limit));
    }

    /// Refuses statements of a failed transaction.
    fn check_failed(&self, statement: &Statement) -> Result<()> {
        if !self.is_failed || !self.is_explicit || run::ends_transaction(statement) {
            return Ok(());
        }
        Err(error!(
            IN_FAILED_TRANSACTION,
            "current transaction is aborted, commands ignored until end of transaction block"
        ))
    }

    /// Runs the statements of a simple query.
    async fn query(&mut self, text: &str) -> Result<()> {
        if let Some(shape) = Shape::of(text)
            && let Some(prepared) = self.of_shape(&shape).await?
        {
            self.check_failed(&prepared.statement)?;
            if let Some((plan, types)) = self.plan_of_shape(&shape, &prepared).await? {
                let literals = shape.literals.into_iter().zip(types);
                let values = literals.map(|(literal, of)| literal.value(of)).collect::<Result<Vec<_>>>();
                // With the literals it says which of them is malformed.
                let Ok(values) = values else { return self.query_as_it_is(text).await };
                let activity = self.activity;
                let limit = self.context.settings.borrow().time(Time::Statement);
                let is_end = run::ends_transaction(&prepared.statement);
                let tag = {
                    let run = pin!(self.run_planned(&plan, &values));
                    // A commit that has begun ends.
                    match is_end {
                        true => run.await?,
                        false => within(limit, activity.unless_cancelled(run)).await?,
                    }
                };
                return self.complete(tag, true).await;
            }
        }
        self.query_as_it_is(text).await
    }

    async fn query_as_it_is(&mut self, text: &str) -> Result<()> {
        let mut statements = parse::parse(text)?.into_iter().peekable();
        while let Some(statement) = statements.next() {
            let is_last = statements.peek().is_none();
            if matches!(statement, Statement::Empty) {
                self.connection.out.empty(b'I');
                continue;
            }
            self.check_failed(&statement)?;
            if let Statement::Sql(of) = &statement {
                match &**of {
                    ast::Statement::Prepare { name, data_types, statement } => {
                        self.prepare_statement(name, data_types, statement).await?;
                        continue;
                    }
                    ast::Statement::Execute { name: Some(name), parameters, immediate: false, .. } => {
                        let (prepared, values) = self.executed(name, parameters).await?;
                        let tag = self.run_within(&prepared, &values).await.map_err(SqlError::elsewhere)?;
                        self.complete(tag, is_last).await?;
                        continue;
                    }
                    _ => {}
                }
            }
            let tag = self.run_within(&Prepared::new(statement), &[]).await?;
            self.complete(tag, is_last).await?;
        }
        Ok(())
    }

    /// Tells the client that a statement is done. Behind the last one of a text the transaction
    /// ends first, unless BEGIN has begun it: its commit may fail.
    async fn complete(&mut self, tag: Option<String>, is_last: bool) -> Result<()> {
        if is_last && !self.is_explicit {
            self.end(true).await?;
        }
        tag.iter().for_each(|tag| self.tell_end(tag));
        Ok(())
    }

    /// Tells the client that a statement has come to its end.
    fn tell_end(&mut self, tag: &str) {
        self.connection.out.complete(tag);
        self.activity.completed(tag);
    }

    /// Runs a statement within its time limit, unless it is cancelled. A commit that has begun
    /// ends.
    async fn run_within(&mut self, prepared: &Prepared, values: &[Value]) -> Result<Option<String>> {
        if run::ends_transaction(&prepared.statement) {
            return self.run_simple(prepared, values).await;
        }
        let activity = self.activity;
        let limit = self.context.settings.borrow().time(Time::Statement);
        let run = pin!(self.run_simple(prepared, values));
        within(limit, activity.unless_cancelled(run)).await
    }

    /// Runs a statement. Returns the words for its end, unless the client has got them.
    async fn run_simple(&mut self, prepared: &Prepared, values: &[Value]) -> Result<Option<String>> {
        if let Statement::Copy(copy) = &prepared.statement {
            return self.copy(copy).await.map(Some);
        }
        let (plan, types) = self.plan(prepared).await?;
        if types.len() > values.len() {
            fail!(UNDEFINED_PARAMETER, "there is no parameter ${}", values.len() + 1);
        }
        self.run_planned(&plan, values).await
    }

    /// Runs a statement that is planned. Returns the words for its end.
    async fn run_planned(&mut self, plan: &Plan, values: &[Value]) -> Result<Option<String>> {
        let result = self.run(plan, values).await?;
        let mut count = 0;
        if let Some((columns, rows)) = result.rows {
            self.connection.out.columns(&columns, &[]);
            for row in rows {
                self.connection.out.row(&row?, &columns, &[]);
                self.connection.flush_if_full().await?;
                count += 1;
            }
        }
        Ok(Some(result.tag.text(count)))
    }

    async fn extended(&mut self, message: Received) -> Result<()> {
        match message {
            Received::Parse { name, query, types } => {
                let mut statements = parse::parse(&query).map_err(|error| error.located(&query))?;
                if statements.len() > 1 {
                    fail!(SYNTAX_ERROR, "cannot insert multiple commands into a prepared statement");
                }
                let statement = statements.pop().unwrap_or(Statement::Empty);
                let mut known = Vec::with_capacity(types.len());
                for oid in types {
                    known.push(match Type::of_oid(oid) {
                        Some(of) => of,
                        None => {
                            let (catalog, by) = self.refreshed().await?;
                            catalog.type_of_oid(by, oid).await?.unrounded()
                        }
                    });
                }
                let prepared = self.prepare(name, statement, known, (&*query).into()).await;
                prepared.map_err(|error| error.located(&query))?;
                self.connection.out.empty(b'1');
            }
            Received::Bind(bind) => self.bind(bind).await?,
            Received::DescribeStatement(name) => {
                let prepared = self.prepared(&name)?;
                self.connection.out.parameter_types(&prepared.types);
                self.describe(&prepared.columns, run::is_query(&prepared.statement), &[]);
            }
            Received::DescribePortal(name) => {
                // A cursor is a portal, too.
                if let Some(columns) = self.cursor_columns(&name) {
                    self.describe(&columns, true, &[]);
                } else {
                    let portal = self.portals.get(&name).ok_or_else(|| no_portal(&name))?;
                    let (prepared, formats) = (portal.prepared.clone(), portal.formats.clone());
                    self.describe(&prepared.columns, run::is_query(&prepared.statement), &formats);
                }
            }
            Received::Execute { portal, most } => {
                let ends = |portal: &Portal| run::ends_transaction(&portal.prepared.statement);
                if self.portals.get(&portal).is_some_and(ends) {
                    return self.execute(&portal, most).await;
                }
                let activity = self.activity;
                activity.forget_cancel();
                if let Some(portal) = self.portals.get(&portal) {
                    activity.begin(&portal.prepared.text);
                }
                let limit = self.context.settings.borrow().time(Time::Statement);
                let run = pin!(self.execute(&portal, most));
                within(limit, activity.unless_cancelled(run)).await?;
            }
            Received::CloseStatement(name) => {
                self.statements.remove(&name);
                self.connection.out.empty(b'3');
            }
            Received::ClosePortal(name) => {
                self.portals.remove(&name);
                self.connection.out.empty(b'3');
            }
            Received::Flush => self.activity.unless_ended(self.connection.flush()).await?,
            // What a client had under way when its copy failed.
            Received::CopyData(_) | Received::CopyDone | Received::CopyFail(_) => {}
            Received::Password(_) | Received::Query(_) | Received::Sync | Received::Terminate => {
                return Err(SqlError::new(code::PROTOCOL_VIOLATION, "unexpected message"));
            }
        }
        Ok(())
    }

    fn prepared(&self, name: &str) -> Result<Rc<Prepared>> {
        self.statements.get(name).cloned().ok_or_else(|| {
            let message = match name {
                "" => "unnamed prepared statement does not exist".to_owned(),
                name => format!("prepared statement \"{name}\" does not exist"),
            };
            SqlError::new(code::INVALID_STATEMENT_NAME, message)
        })
    }

    /// Describes the rows of a statement; those of a query may have no column.
    fn describe(&mut self, columns: &[ResultColumn], is_query: bool, formats: &[bool]) {
        match columns {
            [] if !is_query => self.connection.out.empty(b'n'),
            columns => self.connection.out.columns(columns, formats),
        }
    }

    async fn bind(&mut self, bind: BindMessage) -> Result<()> {
        let BindMessage { portal, statement, formats, values, result_formats } = bind;
        let prepared = self.prepared(&statement)?;
        self.check_failed(&prepared.statement)?;
        if values.len() != prepared.types.len() {
            let (given, wanted) = (values.len(), prepared.types.len());
            fail!(
                PROTOCOL_VIOLATION,
                "bind message supplies {given} parameters, but prepared statement \"{statement}\" requires {wanted}"
            );
        }
        let value = |(at, (bytes, of)): (usize, (Option<Vec<u8>>, &Type))| match bytes {
            None => Ok(Value::Null),
            Some(bytes) if format_of(&formats, at) => text::parse_binary(&bytes, *of),
            Some(bytes) => {
                let text = String::from_utf8(bytes)
                    .map_err(|_| SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\""))?;
                text::parse(&text, *of)
            }
        };
        let types = self.types_of(&prepared).await?;
        let values = values.into_iter().zip(&types).enumerate().map(value).collect::<Result<_>>()?;
        self.portals.insert(portal, Portal { prepared, values, formats: result_formats, rows: None });
        self.connection.out.empty(b'2');
        Ok(())
    }

    async fn execute(&mut self, name: &str, most: u32) -> Result<()> {
        let portal = self.portals.get_mut(name).ok_or_else(|| no_portal(name))?;
        let (prepared, formats) = (portal.prepared.clone(), portal.formats.clone());
        if portal.rows.is_none() {
            match &prepared.statement {
                Statement::Empty => {
                    self.connection.out.empty(b'I');
                    return Ok(());
                }
                Statement::Copy(copy) => {
                    let tag = self.copy(copy).await?;
                    self.tell_end(&tag);
                    return Ok(());
                }
                statement => {
                    let values = portal.values.clone();
                    self.check_failed(statement)?;
                    let (plan, _) = self.plan(&prepared).await?;
                    let result = self.run(&plan, &values).await?;
                    let Some((columns, rows)) = result.rows else {
                        self.tell_end(&result.tag.text(0));
                        return Ok(());
                    };
                    if most == 0 {
                        let mut count = 0;
                        for row in rows {
                            self.connection.out.row(&row?, &columns, &formats);
                            self.connection.flush_if_full().await?;
                            count += 1;
                        }
                        self.tell_end(&result.tag.text(count));
                        return Ok(());
                    }
                    let portal = self.portals.get_mut(name).ok_or_else(|| no_portal(name))?;
                    portal.rows = Some((columns, rows.peekable(), 0));
                }
            }
        }
        let portal = self.portals.get_mut(name).ok_or_else(|| no_portal(name))?;
        if let Some((columns, rows, given)) = &mut portal.rows {
            let limit = if most == 0 { usize::MAX } else { most as usize };
            for row in rows.by_ref().take(limit) {
                *given += 1;
                self.connection.out.row(&row?, columns, &formats);
                self.connection.flush_if_full().await?;
            }
            match rows.peek() {
                None => {
                    let tag = format!("SELECT {given}");
                    self.tell_end(&tag);
                }
                Some(_) => self.connection.out.empty(b's'),
            }
        }
        Ok(())
    }

    /// Returns the catalog as it is now, and the transaction, which begins.
    async fn refreshed(&mut self) -> Result<(&mut Catalog, &mut Transaction)> {
        self.begin();
        let by = self.transaction.as_mut().ok_or_else(no_transaction)?;
        by.begin_statement();
        self.catalog.refresh(by).await?;
        Ok((&mut self.catalog, by))
    }

    /// Returns the types of the parameters of a statement, as they are defined now.
    async fn types_of(&mut self, prepared: &Prepared) -> Result<Vec<Type>> {
        match prepared.types.iter().any(|of| of.named().is_some()) {
            true => Ok(self.plan(prepared).await?.1),
            false => Ok(prepared.types.clone()),
        }
    }

    /// Returns the plan of a statement, and the types of its parameters. Begins a transaction.
    async fn plan(&mut self, prepared: &Prepared) -> Result<(Rc<Plan>, Vec<Type>)> {
        if !run::needs_tables(&prepared.statement) {
            return Ok((Rc::new(Plan::other(prepared.statement.clone())), prepared.types.clone()));
        }
        loop {
            self.begin();
            let Some(transaction) = &mut self.transaction else { return Err(no_transaction()) };
            transaction.begin_statement();
            let version = self.catalog.refresh(transaction).await?;
            let known = prepared
                .plan
                .borrow()
                .as_ref()
                .filter(|(known, ..)| known == version)
                .map(|(_, plan, types)| (plan.clone(), types.clone()));
            let version = version.to_vec();
            let (plan, types) = match known {
                Some(known) => known,
                None => {
                    let mut types = prepared.types.clone();
                    for of in types.iter_mut().filter(|of| of.named().is_some()) {
                        *of = self.catalog.type_of_oid(transaction, of.oid()).await?;
                    }
                    let types = std::cell::RefCell::new(types);
                    let place = Some(self.catalog.place().clone());
                    let parameters = Parameters { types, place, ..Parameters::default() };
                    let statement = &prepared.statement;
                    let catalog = &mut self.catalog;
                    let plan = run::plan(statement, catalog, transaction, &parameters).await?;
                    let mut types = parameters.types.into_inner();
                    types.iter_mut().filter(|of| **of == Type::Unknown).for_each(|of| *of = Type::Text);
                    // The client has been told of others.
                    if !prepared.columns.is_empty() && plan.columns() != prepared.columns {
                        fail!(FEATURE_NOT_SUPPORTED, "cached plan must not change result type");
                    }
                    let plan = Rc::new(plan);
                    *prepared.plan.borrow_mut() = Some((version.clone(), plan.clone(), types.clone()));
                    (plan, types)
                }
            };
            if !self.lock(&plan.tables).await? {
                return Ok((plan, types));
            }
            // The definition may have changed before the lock was there.
            let Some(transaction) = &mut self.transaction else { return Err(no_transaction()) };
            transaction.begin_statement();
            if *self.catalog.refresh(transaction).await? == version {
                return Ok((plan, types));
            }
        }
    }
}

fn no_transaction() -> SqlError {
    SqlError::new(code::NO_ACTIVE_TRANSACTION, "there is no transaction in progress")
}

fn no_portal(name: &str) -> SqlError {
    SqlError::new(code::INVALID_CURSOR_NAME, format!("portal \"{name}\" does not exist"))
}

/// Ends a statement that takes too long. A future that is handed on twice has room twice, so
/// callers pin it first.
async fn within<T>(limit: Option<std::time::Duration>, act: impl Future<Output = Result<T>>) -> Result<T> {
    match limit {
        None => act.await,
        Some(limit) => plexus_interconnect::executor::timeout(limit, act)
            .await
            .unwrap_or_else(|| Err(error!(QUERY_CANCELED, "canceling statement due to statement timeout"))),
    }
}
