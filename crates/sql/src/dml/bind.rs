//! Statements that change rows, with their names bound.

use std::rc::Rc;

use sqlparser::ast;

use super::{
    Change, ChangeKind, Conflict, Joined, RowsToChange, Targets, assignments, bind_insert, merge::bind_merge,
    returning, table_and_alias,
};
use crate::{
    bind::{
        Around, Scope,
        from::{self, From, conjuncts, scope_of},
        paths::{place, single_source},
        query,
        select::refuse,
    },
    catalog::{Privilege, Table},
    error::{At, Result, SqlError},
    parse::relation,
};

/// Binds INSERT, UPDATE, DELETE or MERGE, also within WITH.
pub(crate) fn bind_change(statement: &ast::Statement, around: Around<'_>) -> Result<Change> {
    let parameters = around.parameters;
    // A change that reads its table needs the right for that, too.
    let changed = |name: &str, privilege: Privilege, reads: bool| -> Result<Rc<Targets>> {
        let table = parameters.table_for(name, privilege)?;
        if reads {
            parameters.table_for(name, Privilege::Select)?;
        }
        parameters.targets_of(&table)
    };
    let change = match statement {
        ast::Statement::Insert(insert) => {
            let ast::TableObject::TableName(name) = &insert.table else {
                return Err(SqlError::unsupported(format!("INSERT INTO {}", insert.table)));
            };
            let name = relation(name)?;
            let updates = match &insert.on {
                Some(ast::OnInsert::OnConflict(on)) => {
                    matches!(on.action, ast::OnConflictAction::DoUpdate(_))
                }
                _ => false,
            };
            if updates {
                parameters.table_for(&name, Privilege::Update)?;
            }
            let reads = updates || insert.returning.is_some();
            let targets = changed(&name, Privilege::Insert, reads).at(&insert.table)?;
            bind_insert(insert, &targets, around)?
        }
        ast::Statement::Update(update) => {
            let reads = update.selection.is_some() || update.returning.is_some();
            let targets = changed(&named(&update.table)?, Privilege::Update, reads).at(&update.table)?;
            bind_update(update, &targets, around)?
        }
        ast::Statement::Delete(delete) => {
            let (ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from)) = &delete.from;
            let [from] = &from[..] else {
                return Err(SqlError::unsupported("DELETE from several tables"));
            };
            let reads = delete.selection.is_some() || delete.returning.is_some();
            let targets = changed(&named(from)?, Privilege::Delete, reads).at(from)?;
            bind_delete(delete, from, &targets, around)?
        }
        ast::Statement::Merge(merge) => bind_merge(merge, around)?,
        ast::Statement::Query(with) => match &*with.body {
            ast::SetExpr::Insert(inner)
            | ast::SetExpr::Update(inner)
            | ast::SetExpr::Delete(inner)
            | ast::SetExpr::Merge(inner) => {
                let bound =
                    query::bind_names(with.with.as_ref(), around, |around| bind_change(inner, around));
                let (change, shared) = bound?;
                Change { with: shared, ..change }
            }
            other => return Err(SqlError::unsupported(other)),
        },
        other => return Err(SqlError::unsupported(other)),
    };
    let removes = match &change.kind {
        ChangeKind::Insert { conflict, .. } => matches!(conflict, Conflict::Update { .. }),
        _ => true,
    };
    let (written, looked_at) = change.targets.others(removes);
    let mut tables = parameters.changed.borrow_mut();
    tables.push((change.table.id, true));
    tables.extend(written.into_iter().map(|table| (table, true)));
    tables.extend(looked_at.into_iter().map(|table| (table, false)));
    drop(tables);
    Ok(change)
}

/// Returns whether a query is a change of rows with WITH.
pub(crate) fn is_change(query: &ast::Query) -> bool {
    use ast::SetExpr::{Delete, Insert, Merge, Update};
    matches!(*query.body, Insert(_) | Update(_) | Delete(_) | Merge(_))
}

/// Returns the name of the table that a statement changes.
fn named(table: &ast::TableWithJoins) -> Result<String> {
    match &table.relation {
        ast::TableFactor::Table { name, args: None, .. } => relation(name),
        other => Err(SqlError::unsupported(format!("a change of {other}"))),
    }
}

/// Binds the condition of a change, with the tables that are joined with its own one.
fn join(mut from: From, condition: Option<&ast::Expr>, scope: &Scope<'_>) -> Result<Joined> {
    let mut conditions = std::mem::take(&mut from.conditions);
    if let Some(condition) = condition {
        conjuncts(scope.condition(condition, "WHERE")?, &mut conditions);
    }
    let mut sources = from.sources;
    let constant = place(&mut sources, conditions);
    let conditions = sources.iter().flat_map(|source| source.conditions.clone()).collect();
    Ok(Joined { sources, constant, conditions })
}

fn bind_update(update: &ast::Update, targets: &Rc<Targets>, around: Around<'_>) -> Result<Change> {
    let table: &Rc<Table> = targets.table();
    let alias = table_and_alias(&update.table)?;
    let is_plain = update.or.is_none()
        && update.limit.is_none()
        && update.order_by.is_empty()
        && update.output.is_none()
        && update.on_cluster.is_none();
    refuse(!is_plain, "this form of UPDATE")?;
    let items = match &update.from {
        None => &[][..],
        Some(ast::UpdateTableFromKind::AfterSet(items)) => items,
        Some(ast::UpdateTableFromKind::BeforeSet(_)) => {
            return Err(SqlError::unsupported("FROM before SET"));
        }
    };
    let clauses =
        Clauses { items, condition: update.selection.as_ref(), returning: update.returning.as_ref() };
    bind_rows(targets, &alias, &clauses, around, |rows, scope| {
        Ok(ChangeKind::Update { rows, set: assignments(table, scope, &update.assignments)? })
    })
}

/// The clauses that UPDATE and DELETE share: the tables that are joined with their own one, WHERE,
/// and RETURNING.
struct Clauses<'a> {
    items: &'a [ast::TableWithJoins],
    condition: Option<&'a ast::Expr>,
    returning: Option<&'a Vec<ast::SelectItem>>,
}

/// Binds the rows of UPDATE or DELETE; `make` gets them, and the columns that they have.
fn bind_rows(
    targets: &Rc<Targets>,
    alias: &str,
    clauses: &Clauses<'_>,
    around: Around<'_>,
    make: impl FnOnce(RowsToChange, &Scope<'_>) -> Result<ChangeKind>,
) -> Result<Change> {
    let table = targets.table();
    let columns;
    let scope;
    let rows = match clauses.items {
        [] => {
            columns = scope_of(table, alias);
            scope = around.scope(&columns);
            let condition = clauses.condition.map(|expr| scope.condition(expr, "WHERE")).transpose()?;
            RowsToChange::Alone(Box::new(single_source(table, condition)))
        }
        items => {
            let mut from = from::bind_with_target(table, alias, items, around)?;
            columns = std::mem::take(&mut from.columns);
            scope = around.scope(&columns);
            RowsToChange::Joined(join(from, clauses.condition, &scope)?)
        }
    };
    let kind = make(rows, &scope)?;
    let (returning, columns) = returning(&scope, clauses.returning)?;
    let (table, targets) = (table.clone(), targets.clone());
    Ok(Change { table, targets, kind, returning, columns, with: Vec::new() })
}

fn bind_delete(
    delete: &ast::Delete,
    from: &ast::TableWithJoins,
    targets: &Rc<Targets>,
    around: Around<'_>,
) -> Result<Change> {
    let is_plain = delete.tables.is_empty()
        && delete.limit.is_none()
        && delete.order_by.is_empty()
        && delete.output.is_none()
        && delete.on_cluster.is_none();
    refuse(!is_plain, "this form of DELETE")?;
    let alias = table_and_alias(from)?;
    let items = delete.using.as_deref().unwrap_or_default();
    let clauses =
        Clauses { items, condition: delete.selection.as_ref(), returning: delete.returning.as_ref() };
    bind_rows(targets, &alias, &clauses, around, |rows, _| Ok(ChangeKind::Delete { rows }))
}
