//! Statements of a session that change the catalog.

use std::rc::Rc;

use sqlparser::ast;

use super::{
    Session,
    locks::TableMode,
    no_transaction,
    run::{Done, PlanKind, Tag, plain, plan},
    temporary::makes_temporary,
};
use crate::{
    bind::{Parameters, select::ResultColumn},
    catalog::{Materialized, Relation, RelationName, Table, undefined},
    ddl::{self, Definer},
    dml::foreign,
    error::{Result, SqlError, code, error, fail},
    exec::{self, Run},
    parse::{self, Statement, folded, relation},
    roles::Roles,
    spool::Rows,
    types::Type,
};

/// The most tables whose definitions change together.
const MOST_TABLES: usize = 10_000;

/// Returns the names of those new owners that are named.
fn named<'a>(owners: impl Iterator<Item = &'a ast::Owner>) -> Vec<String> {
    let name = |owner: &ast::Owner| match owner {
        ast::Owner::Ident(name) => Some(folded(name)),
        _ => None,
    };
    owners.filter_map(name).collect()
}

impl Session<'_> {
    /// Returns the tables whose definitions a statement changes, and those that change with them.
    async fn defined(&mut self, names: Vec<String>, whole: bool) -> Result<Vec<String>> {
        self.begin();
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        by.begin_statement();
        self.catalog.refresh(by).await?;
        let mut tables: Vec<RelationName> = Vec::new();
        let mut waiting = names;
        while let Some(name) = waiting.pop() {
            let found = match self.catalog.relation(by, &name).await? {
                Some((_, Relation::Index(table))) => Some(table),
                Some((name, Relation::Table(_))) => Some(name),
                _ => None,
            };
            let Some(found) = found.filter(|found| !tables.contains(found)) else { continue };
            let table = self.catalog.find(by, &found.qualified()).await?;
            tables.push(found);
            if tables.len() > MOST_TABLES {
                return Err(SqlError::new(code::PROGRAM_LIMIT, "a definition of too many tables"));
            }
            if let Some(table) = table.filter(|_| whole) {
                waiting.extend(table.referenced_by.iter().map(RelationName::qualified));
                waiting.extend(table.foreign_keys.iter().map(|key| key.table.qualified()));
            }
        }
        // All nodes lock them in one order.
        tables.sort();
        Ok(tables.iter().map(RelationName::qualified).collect())
    }

    /// Returns the names of the relations that a statement changes.
    async fn changed(&mut self, statement: &ast::Statement) -> Result<Vec<String>> {
        use ast::{ObjectType as O, Statement as S};
        let mut names = ddl::referenced(statement)?;
        match statement {
            S::Drop { object_type: O::Table | O::MaterializedView | O::Index, names: dropped, .. } => {
                names.extend(dropped.iter().map(relation).collect::<Result<Vec<_>>>()?);
            }
            S::Drop { object_type: O::Sequence, names: dropped, cascade: true, .. } => {
                names.extend(dropped.iter().map(relation).collect::<Result<Vec<_>>>()?);
            }
            S::Drop { object_type: O::Schema, names: dropped, .. } => {
                let (catalog, by) = self.refreshed().await?;
                let tables = catalog.tables(by).await?;
                let dropped: Vec<String> = dropped.iter().filter_map(|name| relation(name).ok()).collect();
                let uses_gone = |table: &Table| {
                    let named = table.columns.iter().filter_map(|column| column.of.named());
                    named.into_iter().any(|of| dropped.contains(&of.schema))
                };
                let gone = |table: &&Table| dropped.contains(&table.schema) || uses_gone(table);
                names.extend(tables.iter().filter(gone).map(|table| table.relation().qualified()));
            }
            S::Drop { object_type: O::Type, names: types, .. } => {
                for name in types {
                    names.extend(self.users_of_type(name).await?);
                }
            }
            S::AlterType(alter) => names.extend(self.users_of_type(&alter.name).await?),
            S::Truncate(truncate) => {
                let targets = truncate.table_names.iter().map(|target| relation(&target.name));
                names.extend(targets.collect::<Result<Vec<_>>>()?);
            }
            S::Grant(grant) => return ddl::granted(grant.objects.as_ref()),
            S::Revoke(revoke) => return ddl::granted(revoke.objects.as_ref()),
            S::AlterTable(alter) => {
                names.push(relation(&alter.name)?);
                names.extend(self.users_of_type(&alter.name).await?);
            }
            S::DropDomain(drop) => names.extend(self.users_of_type(&drop.name).await?),
            S::RefreshMaterializedView(refresh) => names.push(relation(&refresh.name)?),
            S::AlterIndex { name, .. } => names.push(relation(name)?),
            S::CreateIndex(create) => {
                return Ok(vec![relation(&create.table_name)?]);
            }
            S::CreateSequence { sequence_options, .. } => {
                names.extend(ddl::owner_of(sequence_options)?.flatten().map(|(table, _)| table));
            }
            _ => {}
        }
        Ok(names)
    }

    /// Returns the words for a change of a type; `None` if a name means no type.
    async fn kind_of_type(&mut self, name: &ast::ObjectName) -> Result<Option<&'static str>> {
        let (catalog, by) = self.refreshed().await?;
        Ok(match catalog.relation(by, &relation(name)?).await? {
            Some((_, Relation::Type(entry))) if matches!(entry.of, Type::Domain(_)) => Some("ALTER DOMAIN"),
            Some((_, Relation::Type(_))) => Some("ALTER TYPE"),
            _ => None,
        })
    }

    /// Returns the names of the tables that use a type.
    async fn users_of_type(&mut self, name: &ast::ObjectName) -> Result<Vec<String>> {
        let (catalog, by) = self.refreshed().await?;
        let Some((_, Relation::Type(entry))) = catalog.relation(by, &relation(name)?).await? else {
            return Ok(Vec::new());
        };
        let tables = catalog.tables(by).await?;
        let uses = |table: &&Table| entry.of.named().is_some_and(|of| table.uses(of));
        Ok(tables.iter().filter(uses).map(|table| table.relation().qualified()).collect())
    }

    /// Takes the locks for a change of the definitions of relations.
    async fn lock_defined(&mut self, names: Vec<String>, whole: bool) -> Result<()> {
        loop {
            let tables = self.defined(names.clone(), whole).await?;
            self.lock_named(&tables, TableMode::Define).await?;
            // Others may have come while it waited.
            if self.defined(names.clone(), whole).await? == tables {
                return Ok(());
            }
        }
    }

    /// Runs ALTER SEQUENCE.
    pub(super) async fn alter_sequence(&mut self, alter: &ddl::AlterSequence) -> Result<Done> {
        self.modes.check_write("ALTER SEQUENCE")?;
        let mut names = Vec::new();
        if let Some(owner) = ddl::owner_of(&alter.options)? {
            names.extend(owner.map(|(table, _)| table));
        }
        self.lock_defined(names, false).await?;
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        let mut run = Run::new(by, &self.context, &self.ranges, &self.temporary);
        let (place, first) = (self.catalog.place().clone(), &self.first);
        let owner: Vec<String> = alter.owner.iter().map(folded).collect();
        Roles { run: &mut run, place: &place, first }.check_all(&owner).await?;
        let mut define = Definer { run: &mut run, catalog: &mut self.catalog, notices: Vec::new() };
        ddl::alter_sequence(&mut define, alter).await?;
        let notices = define.notices;
        self.tell(notices);
        Ok(plain("ALTER SEQUENCE"))
    }

    /// Runs COMMENT ON CONSTRAINT.
    pub(super) async fn comment_on_constraint(&mut self, comment: &ddl::ConstraintComment) -> Result<Done> {
        self.modes.check_write("COMMENT")?;
        self.lock_defined(vec![relation(&comment.table)?], false).await?;
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        let mut run = Run::new(by, &self.context, &self.ranges, &self.temporary);
        let mut define = Definer { run: &mut run, catalog: &mut self.catalog, notices: Vec::new() };
        ddl::comment_on_constraint(&mut define, comment).await?;
        Ok(plain("COMMENT"))
    }

    /// Runs DROP DATABASE.
    async fn drop_database(&mut self, name: &ast::ObjectName, if_exists: bool) -> Result<Done> {
        self.check_alone("DROP DATABASE")?;
        for is_locked in [false, true] {
            self.begin();
            let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
            by.begin_statement();
            let mut run = Run::new(by, &self.context, &self.ranges, &self.temporary);
            let mut roles = Roles { run: &mut run, place: self.catalog.place(), first: &self.first };
            let (name, number) = roles.database_to_drop(name).await?;
            match number {
                // Another session may have dropped it before the lock was there.
                Some(_) if is_locked => roles.drop_database(&name).await?,
                Some(number) => self.locks.take_database(number, &name).await?,
                None if if_exists => {
                    self.tell(vec![format!("database \"{name}\" does not exist, skipping")]);
                    break;
                }
                None => {
                    fail!(INVALID_CATALOG_NAME, "database \"{name}\" does not exist");
                }
            }
        }
        Ok(plain("DROP DATABASE"))
    }

    /// Runs SET CONSTRAINTS.
    pub(super) async fn set_constraints(
        &mut self,
        names: Option<&[ast::ObjectName]>,
        is_deferred: bool,
    ) -> Result<Done> {
        if !self.is_explicit {
            let message = "SET CONSTRAINTS can only be used in transaction blocks".into();
            self.notice(code::NO_ACTIVE_TRANSACTION, "WARNING", message);
        }
        self.begin();
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        by.begin_statement();
        let mut found = None;
        if let Some(names) = names {
            self.catalog.refresh(by).await?;
            let tables = self.catalog.tables(by).await?;
            let mut all = Vec::new();
            for name in names {
                let name = relation(name)?;
                let (schema, name) = match name.split_once('\0') {
                    Some((schema, name)) => (Some(schema.to_owned()), name.to_owned()),
                    None => (None, name),
                };
                let is_here = |table: &&crate::catalog::Table| match &schema {
                    Some(schema) => table.schema == *schema,
                    None => self.catalog.whole_path().contains(&table.schema),
                };
                let keys = tables.iter().filter(is_here).flat_map(|table| {
                    let primary = table.primary.iter().map(|key| (&key.name, None));
                    let unique = table.indexes.iter().filter(|index| index.is_constraint);
                    let unique = unique.map(|index| (&index.name, index.deferral));
                    let checks = table.checks.iter().map(|check| (&check.name, None));
                    let foreign = table.foreign_keys.iter().map(|key| (&key.name, key.deferral()));
                    let all = primary.chain(unique).chain(checks).chain(foreign);
                    all.filter(|(known, _)| **known == name).map(|(_, deferral)| (table.id, deferral))
                });
                let keys: Vec<_> = keys.collect();
                if keys.is_empty() {
                    fail!(UNDEFINED_OBJECT, "constraint \"{name}\" does not exist");
                }
                if keys.iter().any(|(_, deferral)| deferral.is_none()) {
                    fail!(WRONG_OBJECT_TYPE, "constraint \"{name}\" is not deferrable");
                }
                all.extend(keys.into_iter().map(|(table, _)| (table, name.clone())));
            }
            found = Some(all);
        }
        self.context.constraints.set(found, is_deferred);
        if !is_deferred {
            self.check_constraints(false).await?;
        }
        Ok(plain("SET CONSTRAINTS"))
    }

    /// Does the checks of the transaction that are due: all at its end.
    pub(super) async fn check_constraints(&mut self, is_end: bool) -> Result<()> {
        if !self.context.constraints.has_deferred() {
            return Ok(());
        }
        let has_savepoints = !is_end && !self.savepoints.is_empty();
        let mut run = self.statement(&[])?;
        foreign::check_deferred(&mut run, is_end, has_savepoints).await
    }

    /// Returns the columns of a query that a definition has and, if it runs, its rows. A view has a
    /// path for its names; an empty one is that of the session.
    async fn query_of(
        &mut self,
        query: &ast::Query,
        runs: bool,
        path: Option<Vec<String>>,
    ) -> Result<(Vec<ResultColumn>, Rows, Vec<RelationName>)> {
        let statement = Statement::Sql(Box::new(ast::Statement::Query(Box::new(query.clone()))));
        loop {
            let place = Some(self.catalog.place().clone());
            let path = path.clone();
            let is_view = path.is_some();
            let path = path.filter(|path| !path.is_empty());
            let parameters =
                Parameters { place, path, is_view, is_only_bound: !runs, ..Parameters::default() };
            self.begin();
            let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
            by.begin_statement();
            self.catalog.refresh(by).await?;
            let plan = plan(&statement, &mut self.catalog, by, &parameters).await?;
            if self.lock(&plan.tables).await? {
                continue;
            }
            let mut columns = plan.columns();
            columns
                .iter_mut()
                .filter(|column| column.of == Type::Unknown)
                .for_each(|column| column.of = Type::Text);
            let rows = match &plan.kind {
                PlanKind::Select(query) if runs => {
                    exec::query::rows(&mut self.statement(&[])?, query).await?
                }
                _ => Vec::new().into(),
            };
            return Ok((columns, rows, plan.uses));
        }
    }

    /// Returns the materialized view with a name.
    async fn materialized(&mut self, name: &str) -> Result<(Rc<Table>, Materialized)> {
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        match self.catalog.relation(by, name).await? {
            Some((_, Relation::Table(table))) if let Some(materialized) = table.materialized.clone() => {
                Ok((table, materialized))
            }
            Some((place, _)) => {
                Err(error!(WRONG_OBJECT_TYPE, "\"{}\" is not a table or materialized view", place.name))
            }
            None => Err(undefined(name)),
        }
    }

    fn tell(&mut self, notices: Vec<String>) {
        for notice in notices {
            let code = match () {
                () if notice.starts_with("relation") && notice.ends_with("already exists, skipping") => {
                    code::DUPLICATE_TABLE
                }
                () if notice.starts_with("enum label") => code::DUPLICATE_OBJECT,
                () if notice.starts_with("schema") && notice.ends_with("already exists, skipping") => "42P06",
                () if notice.starts_with("column") && notice.ends_with("already exists, skipping") => {
                    code::DUPLICATE_COLUMN
                }
                () => "00000",
            };
            let (message, detail) = match notice.split_once('\n') {
                Some((message, detail)) => (message.to_owned(), Some(detail.to_owned())),
                None => (notice, None),
            };
            let mut notice = SqlError::new(code, message);
            notice.detail = detail;
            self.connection.out.error(&notice, "NOTICE");
        }
    }

    /// Runs a statement that changes the catalog.
    pub(super) async fn define(&mut self, statement: &ast::Statement) -> Result<Done> {
        let text = statement.to_string();
        let words: Vec<&str> = text.split_whitespace().take(2).collect();
        let both = words.join(" ");
        self.modes.check_write(match words[..] {
            ["TRUNCATE", ..] => "TRUNCATE TABLE",
            ["COMMENT" | "GRANT" | "REVOKE", ..] => words[0],
            _ => &both,
        })?;
        if let ast::Statement::Drop { object_type: ast::ObjectType::Database, names, if_exists, .. } =
            statement
            && let [name] = &names[..]
        {
            return Box::pin(self.drop_database(name, *if_exists)).await;
        }
        if matches!(statement, ast::Statement::CreateIndex(create) if create.concurrently) {
            self.check_alone("CREATE INDEX CONCURRENTLY")?;
        }
        if makes_temporary(statement) {
            Box::pin(self.need_temporary()).await?;
        }
        let names = self.changed(statement).await?;
        use ast::Statement as S;
        let is_alone = matches!(statement, S::CreateIndex(_) | S::Grant(_) | S::Revoke(_));
        self.lock_defined(names.clone(), !is_alone).await?;
        let kind = match statement {
            S::AlterTable(alter) => self.kind_of_type(&alter.name).await?,
            _ => None,
        };
        let is_of_type = match statement {
            S::AlterType(_) | S::DropDomain(_) | S::Drop { object_type: ast::ObjectType::Type, .. } => true,
            _ => kind.is_some(),
        };
        if is_of_type {
            let (catalog, by) = self.refreshed().await?;
            catalog.hold(by).await?;
            if self.changed(statement).await? != names {
                fail!(OBJECT_IN_USE, "another session has begun to use the type");
            }
        }
        let query = match statement {
            ast::Statement::CreateTable(create @ ast::CreateTable { query: Some(query), .. }) => {
                let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
                let name = relation(&create.name)?;
                let place = self.catalog.place_of(by, &name, create.temporary).await?;
                if self.catalog.has(by, &place).await? {
                    if !create.if_not_exists {
                        return Err(crate::catalog::duplicate(&place.name));
                    }
                    self.tell(vec![format!("relation \"{}\" already exists, skipping", place.name)]);
                    return Ok(plain("CREATE TABLE AS"));
                }
                Some(self.query_of(query, ddl::has_rows(create), None).await?)
            }
            ast::Statement::CreateView(create) => {
                let runs = create.materialized && create.comment.is_none();
                Some(self.query_of(&create.query, runs, Some(Vec::new())).await?)
            }
            ast::Statement::RefreshMaterializedView(refresh) => {
                let (table, view) = self.materialized(&relation(&refresh.name)?).await?;
                let query = match parse::parse(&view.text)?.pop() {
                    Some(Statement::Sql(query)) => *query,
                    _ => return Err(SqlError::new(code::DATA_CORRUPTED, "the view is malformed")),
                };
                let S::Query(query) = query else { return Err(SqlError::unsupported(query)) };
                let runs = refresh.with_data != Some(false);
                let found = self.query_of(&query, runs, Some(view.path.clone())).await?;
                let columns = table.columns.iter().map(|column| column.of);
                if !found.0.iter().map(|column| column.of).eq(columns) {
                    fail!(NOT_IN_STATE, "the query of the materialized view has other columns now");
                }
                Some(found)
            }
            _ => None,
        };
        let Some(by) = &mut self.transaction else { return Err(no_transaction()) };
        let mut run = Run::new(by, &self.context, &self.ranges, &self.temporary);
        let (place, first) = (self.catalog.place().clone(), &self.first);
        macro_rules! roles {
            ($run:ident) => {
                Roles { run: &mut $run, place: &place, first }
            };
        }
        let mut notices = Vec::new();
        macro_rules! define {
            (|$define:ident| $act:expr) => {{
                let mut $define = Definer { run: &mut run, catalog: &mut self.catalog, notices: Vec::new() };
                $act.await?;
                notices = $define.notices;
            }};
        }
        let tag = match statement {
            ast::Statement::CreateTable(create) => match query {
                Some((columns, rows, _)) => {
                    let mut define =
                        Definer { run: &mut run, catalog: &mut self.catalog, notices: Vec::new() };
                    let count = ddl::create_table_as(&mut define, create, &columns, rows).await?;
                    self.note_on_commit(create).await?;
                    if ddl::has_rows(create) {
                        return Ok(Done { tag: Tag::Count("SELECT", count), rows: None });
                    }
                    "CREATE TABLE AS"
                }
                None => {
                    define!(|define| ddl::create_table(&mut define, create));
                    // Without a notice it is new.
                    if notices.is_empty() {
                        self.note_on_commit(create).await?;
                    }
                    "CREATE TABLE"
                }
            },
            ast::Statement::CreateView(create) => {
                let Some((columns, rows, uses)) = query else { return Err(no_transaction()) };
                let mut define = Definer { run: &mut run, catalog: &mut self.catalog, notices: Vec::new() };
                let count = ddl::create_view(&mut define, create, &columns, uses, rows).await?;
                notices = define.notices;
                match count {
                    Some(count) => {
                        self.tell(notices);
                        return Ok(Done { tag: Tag::Count("SELECT", count), rows: None });
                    }
                    None if create.materialized => "CREATE MATERIALIZED VIEW",
                    None => "CREATE VIEW",
                }
            }
            ast::Statement::RefreshMaterializedView(refresh) => {
                let Some((_, rows, _)) = query else { return Err(no_transaction()) };
                define!(|define| ddl::refresh_view(&mut define, refresh, rows));
                "REFRESH MATERIALIZED VIEW"
            }
            ast::Statement::CreateSchema {
                schema_name,
                if_not_exists,
                or_replace: false,
                with: None,
                options: None,
                default_collate_spec: None,
                clone: None,
                ..
            } => {
                define!(|define| ddl::create_schema(&mut define, schema_name, *if_not_exists));
                "CREATE SCHEMA"
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
                let (options, exists) = (&sequence_options[..], *if_not_exists);
                define!(|define| ddl::create_sequence(&mut define, name, exists, options));
                "CREATE SEQUENCE"
            }
            ast::Statement::CreateIndex(create) => {
                let mut define = Definer { run: &mut run, catalog: &mut self.catalog, notices: Vec::new() };
                let made = ddl::create_index(&mut define, create).await?;
                notices = define.notices;
                if let Some(index) = made.filter(|_| create.concurrently) {
                    Box::pin(self.build_index(create, &index)).await?;
                }
                "CREATE INDEX"
            }
            ast::Statement::Drop {
                object_type: ast::ObjectType::Schema,
                if_exists,
                names,
                cascade,
                purge: false,
                temporary: false,
                table: None,
                ..
            } => {
                define!(|define| ddl::drop_schemas(&mut define, names, *if_exists, *cascade));
                "DROP SCHEMA"
            }
            ast::Statement::Drop {
                object_type,
                if_exists,
                names,
                cascade,
                purge: false,
                temporary: false,
                table: None,
                ..
            } => {
                define!(|define| ddl::drop_all(&mut define, *object_type, names, *if_exists, *cascade));
                match object_type {
                    ast::ObjectType::Table => "DROP TABLE",
                    ast::ObjectType::View => "DROP VIEW",
                    ast::ObjectType::MaterializedView => "DROP MATERIALIZED VIEW",
                    ast::ObjectType::Sequence => "DROP SEQUENCE",
                    ast::ObjectType::Type => "DROP TYPE",
                    _ => "DROP INDEX",
                }
            }
            ast::Statement::Truncate(truncate) => {
                define!(|define| ddl::truncate(&mut define, truncate));
                "TRUNCATE TABLE"
            }
            ast::Statement::AlterSchema(alter) => {
                let owners = alter.operations.iter().filter_map(|operation| match operation {
                    ast::AlterSchemaOperation::OwnerTo { owner } => Some(owner),
                    _ => None,
                });
                roles!(run).check_all(&named(owners)).await?;
                define!(|define| ddl::alter_schema(&mut define, alter));
                "ALTER SCHEMA"
            }
            ast::Statement::AlterTable(alter) => {
                let owners = alter.operations.iter().filter_map(|operation| match operation {
                    ast::AlterTableOperation::OwnerTo { new_owner } => Some(new_owner),
                    _ => None,
                });
                roles!(run).check_all(&named(owners)).await?;
                define!(|define| ddl::alter_table(&mut define, alter));
                kind.unwrap_or("ALTER TABLE")
            }
            ast::Statement::Comment { object_type, object_name, comment, if_exists: false, .. } => {
                let text = comment.as_deref();
                define!(|define| ddl::comment(&mut define, *object_type, object_name, text));
                "COMMENT"
            }
            ast::Statement::Grant(grant) => {
                roles!(run).check_all(&ddl::grantees(&grant.grantees)).await?;
                define!(|define| ddl::grant(&mut define, grant));
                "GRANT"
            }
            ast::Statement::Revoke(revoke) => {
                roles!(run).check_all(&ddl::grantees(&revoke.grantees)).await?;
                define!(|define| ddl::revoke(&mut define, revoke));
                "REVOKE"
            }
            ast::Statement::CreateType { name, representation } => {
                define!(|define| ddl::create_type(&mut define, name, representation.as_ref()));
                "CREATE TYPE"
            }
            ast::Statement::CreateDomain(create) => {
                define!(|define| ddl::create_domain(&mut define, create));
                "CREATE DOMAIN"
            }
            ast::Statement::DropDomain(ast::DropDomain { if_exists, name, drop_behavior }) => {
                let names = std::slice::from_ref(name);
                let cascade = *drop_behavior == Some(ast::DropBehavior::Cascade);
                let kind = ast::ObjectType::Type;
                define!(|define| ddl::drop_all(&mut define, kind, names, *if_exists, cascade));
                "DROP DOMAIN"
            }
            ast::Statement::AlterType(alter) => {
                define!(|define| ddl::alter_type(&mut define, alter));
                "ALTER TYPE"
            }
            ast::Statement::AlterIndex { name, operation } => {
                define!(|define| ddl::alter_index(&mut define, name, operation));
                "ALTER INDEX"
            }
            other => {
                let text = other.to_string();
                let words: Vec<&str> = text.split_whitespace().take(3).collect();
                return Err(SqlError::unsupported(format!("the statement {}", words.join(" "))));
            }
        };
        self.tell(notices);
        Ok(plain(tag))
    }
}
