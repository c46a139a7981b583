//! Statements that change the catalog: relations, schemas and rights.

mod alter;
mod columns;
mod comment;
mod constraint;
mod domain;
mod drop;
mod grant;
mod index;
mod rewrite;
mod schema;
mod sequence;
mod table;
mod types;
mod view;

use std::collections::BTreeSet;

use sqlparser::ast;

pub(crate) use self::{
    alter::{alter_index, alter_schema, alter_table},
    comment::{ConstraintComment, comment, comment_on_constraint},
    domain::create_domain,
    drop::{drop_all, truncate},
    grant::{grant, granted, grantees, revoke},
    index::{cannot_create, create_index, end_building},
    schema::{create_schema, drop_schemas},
    sequence::{AlterSequence, alter_sequence, create_sequence, owner_of},
    table::{create_table, create_table_as, has_rows},
    types::{alter_type, create_type},
    view::{create_view, refresh_view},
};
use crate::{
    bind::select::refuse,
    catalog::{Catalog, Column, RelationName, Table, View, undefined},
    error::{Result, SqlError, error},
    exec::Run,
    parse::relation,
    types::Type,
};

/// A change of definitions: the running statement, and the catalog.
pub(crate) struct Definer<'a, 'r> {
    pub(crate) run: &'a mut Run<'r>,
    pub(crate) catalog: &'a mut Catalog,
    /// Messages for the client; the lines behind the first one are details.
    pub(crate) notices: Vec<String>,
}

/// The error for an object that others need; each line says which one.
fn needed(object: &str, lines: &[String]) -> SqlError {
    error!(DEPENDENT_OBJECTS, "cannot drop {object} because other objects depend on it")
        .with_detail(lines.join("\n"))
        .with_hint("Use DROP ... CASCADE to drop the dependent objects too.")
}

impl Definer<'_, '_> {
    /// Returns a table that the role may change.
    async fn owned(&mut self, name: &str) -> Result<std::rc::Rc<Table>> {
        let found = self.catalog.owned(self.run.by, name).await?;
        found.ok_or_else(|| undefined(name))
    }

    /// Returns a table by its schema and name.
    async fn table(&mut self, name: &RelationName) -> Result<std::rc::Rc<Table>> {
        let name = name.qualified();
        let found = self.catalog.find(self.run.by, &name).await?;
        found.ok_or_else(|| undefined(&name))
    }

    /// Ends a statement that finds nothing to do: with a notice if it says IF EXISTS or IF NOT
    /// EXISTS, else with the error.
    fn skip(&mut self, is_allowed: bool, error: SqlError) -> Result<()> {
        if !is_allowed {
            return Err(error);
        }
        self.notices.push(format!("{}, skipping", error.message));
        Ok(())
    }

    /// Changes a table in one way.
    async fn edit(&mut self, table: &Table, edit: impl FnOnce(&mut Table)) -> Result<()> {
        let mut new = table.clone();
        edit(&mut new);
        self.change(Some(table), Some(&new)).await
    }

    async fn has(&mut self, name: &RelationName) -> Result<bool> {
        self.catalog.has(self.run.by, name).await
    }

    async fn views_of(&mut self, name: &RelationName) -> Result<Vec<View>> {
        self.catalog.views_of(self.run.by, name).await
    }

    /// Returns the type that a name of SQL means. It stays until the end of the transaction.
    async fn type_of(&mut self, of: &ast::DataType) -> Result<Type> {
        let found = self.catalog.type_of(self.run.by, of).await;
        if !found.as_ref().is_ok_and(|of| of.named().is_some()) {
            return found;
        }
        self.catalog.hold(self.run.by).await?;
        self.catalog.type_of(self.run.by, of).await
    }

    /// Gives new columns their types as they are now. They stay until the end of the transaction.
    async fn refresh_types(&mut self, columns: &mut [Column]) -> Result<()> {
        let mut named: Vec<_> = columns.iter_mut().filter(|column| column.of.named().is_some()).collect();
        if !named.is_empty() {
            self.catalog.hold(self.run.by).await?;
        }
        for column in &mut named {
            column.of = self.catalog.type_of_oid(self.run.by, column.of.oid()).await?;
        }
        Ok(())
    }

    /// Returns the place of a relation that a statement makes.
    async fn place_of(&mut self, name: &ast::ObjectName, is_temporary: bool) -> Result<RelationName> {
        self.catalog.place_of(self.run.by, &relation(name)?, is_temporary).await
    }

    /// Makes, changes or removes a table, and lets the tables that its foreign keys name know it.
    async fn change(&mut self, old: Option<&Table>, new: Option<&Table>) -> Result<()> {
        let parents = |table: Option<&Table>| -> BTreeSet<RelationName> {
            table.into_iter().flat_map(|table| &table.foreign_keys).map(|key| key.table.clone()).collect()
        };
        let (before, after) = (parents(old), parents(new));
        let (old_name, new_name) = (old.map(Table::relation), new.map(Table::relation));
        let mut stored = new.cloned();
        if let Some(stored) = &mut stored {
            let own = stored.relation();
            stored.referenced_by.retain(|name| *name != own && Some(name) != old_name.as_ref());
            if after.contains(&own) {
                stored.referenced_by.push(own);
            }
        }
        self.catalog.change(self.run.by, old, stored.as_ref()).await?;
        for parent in before.union(&after) {
            if Some(parent) == new_name.as_ref() || Some(parent) == old_name.as_ref() {
                continue;
            }
            let known = self.table(parent).await?;
            let mut changed = (*known).clone();
            changed.referenced_by.retain(|name| Some(name) != old_name.as_ref());
            if let Some(name) = new_name.as_ref().filter(|_| after.contains(parent)) {
                changed.referenced_by.push(name.clone());
            }
            if changed != *known {
                self.catalog.change(self.run.by, Some(&known), Some(&changed)).await?;
            }
        }
        Ok(())
    }

    /// Refuses a change of a table of which checks wait for the end of the transaction.
    fn check_pending(&self, table: &Table, what: &str) -> Result<()> {
        match self.run.context.constraints.waits_for(table.id) {
            false => Ok(()),
            true => Err(error!(
                OBJECT_IN_USE,
                "cannot {what} \"{}\" because it has pending trigger events", table.name
            )),
        }
    }
}

/// Returns the tables whose foreign keys have to do with a statement, by the names in it.
pub(crate) fn referenced(statement: &ast::Statement) -> Result<Vec<String>> {
    let of = |constraint: &ast::TableConstraint| match constraint {
        ast::TableConstraint::ForeignKey(key) => Some(relation(&key.foreign_table)),
        _ => None,
    };
    let of_column = |column: &ast::ColumnDef| -> Vec<Result<String>> {
        let keys = column.options.iter().filter_map(|option| match &option.option {
            ast::ColumnOption::ForeignKey(key) => Some(relation(&key.foreign_table)),
            _ => None,
        });
        keys.collect()
    };
    match statement {
        ast::Statement::CreateTable(create) => {
            let columns = create.columns.iter().flat_map(of_column);
            create.constraints.iter().filter_map(of).chain(columns).collect()
        }
        ast::Statement::AlterTable(alter) => {
            let names = alter.operations.iter().flat_map(|operation| match operation {
                ast::AlterTableOperation::AddConstraint { constraint, .. } => {
                    of(constraint).into_iter().collect()
                }
                ast::AlterTableOperation::AddColumn { column_def, .. } => of_column(column_def),
                _ => Vec::new(),
            });
            names.collect()
        }
        _ => Ok(Vec::new()),
    }
}

/// Refuses a statement with clauses that are not read here: `rest` is the statement without those
/// that are, and `plain` its text then.
fn refuse_rest(rest: &impl ToString, plain: &str, what: &str) -> Result<()> {
    refuse(rest.to_string().trim_end_matches([' ', '(', ')']) != plain.trim_end(), what)
}
