//! INSERT, UPDATE and DELETE: rows and the entries of their indexes.

use std::rc::Rc;

use plexus_store::RowChange;
use sqlparser::ast;

use crate::{
    bind::{
        Around, Parameters, Scope, assign,
        from::{Source, scope_of},
        paths::single_source,
        query::{self, Query},
        select::{ResultColumn, bind_items, refuse},
    },
    catalog::{Column, Table, number_key},
    error::{Result, SqlError, code},
    exec::{self, Run, matching},
    expr::{Expr, Inputs},
    parse::{folded, simple, unqualified},
    spool::Rows,
    types::{Type, Value, encode, text},
};

/// A statement that changes rows of a table.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) table: Rc<Table>,
    pub(crate) kind: ChangeKind,
    pub(crate) returning: Vec<Expr>,
    pub(crate) columns: Vec<ResultColumn>,
}

#[derive(Debug)]
pub(crate) enum ChangeKind {
    Insert { source: NewRows, conflict: Conflict },
    Update { source: Source, set: Vec<(usize, Expr)> },
    Delete { source: Source },
}

/// The rows to insert.
#[derive(Debug)]
pub(crate) enum NewRows {
    Values(Vec<Vec<Expr>>),
    /// The rows of a query, with the expressions that make rows of the table of them.
    Query(Box<Query>, Vec<Expr>),
}

/// The way to insert a row whose key is there.
#[derive(Debug)]
pub(crate) enum Conflict {
    Fail,
    Nothing,
    /// Columns are set, from the present row and the new one behind it, if a condition holds.
    Update(Vec<(usize, Expr)>, Option<Expr>),
}

/// The result of a change.
#[derive(Debug, Default)]
pub(crate) struct ChangedRows {
    pub(crate) count: u64,
    pub(crate) returned: Vec<Vec<Value>>,
}

fn columns_of(table: &Table, names: &[ast::ObjectName]) -> Result<Vec<usize>> {
    if names.is_empty() {
        return Ok((0..table.columns.len()).collect());
    }
    let mut columns = Vec::new();
    for name in names {
        let column = table.column(&simple(name)?)?;
        if columns.contains(&column) {
            let message = format!("column \"{name}\" specified more than once");
            return Err(SqlError::new(code::DUPLICATE_COLUMN, message));
        }
        columns.push(column);
    }
    Ok(columns)
}

/// Returns the default of a column.
pub(crate) fn default_of(table: &Table, column: usize, parameters: &Parameters) -> Result<Expr> {
    let column = &table.columns[column];
    let Some(text) = &column.default else { return Ok(Expr::Value(Value::Null)) };
    let parsed = sqlparser::parser::Parser::new(&sqlparser::dialect::PostgreSqlDialect {})
        .try_with_sql(text)
        .and_then(|mut parser| parser.parse_expr())
        .map_err(|_| SqlError::new(code::DATA_CORRUPTED, format!("the default {text} is malformed")))?;
    let scope = Scope::new(&[], parameters);
    assign(scope.bind(&parsed)?, column.of, &column.name, parameters)
}

fn assignments(table: &Table, scope: &Scope<'_>, all: &[ast::Assignment]) -> Result<Vec<(usize, Expr)>> {
    let mut set: Vec<(usize, Expr)> = Vec::new();
    for assignment in all {
        let ast::AssignmentTarget::ColumnName(name) = &assignment.target else {
            return Err(SqlError::unsupported(format!("the assignment {assignment}")));
        };
        let column = table.column(&simple(name)?)?;
        if set.iter().any(|(known, _)| *known == column) {
            let message = format!("multiple assignments to same column \"{name}\"");
            return Err(SqlError::new(code::SYNTAX_ERROR, message));
        }
        let Column { name, of, .. } = &table.columns[column];
        let value = match &assignment.value {
            ast::Expr::Identifier(word) if folded(word) == "default" && word.quote_style.is_none() => {
                default_of(table, column, scope.parameters)?
            }
            value => assign(scope.bind(value)?, *of, name, scope.parameters)?,
        };
        set.push((column, value));
    }
    Ok(set)
}

fn returning(
    scope: &Scope<'_>,
    items: Option<&Vec<ast::SelectItem>>,
) -> Result<(Vec<Expr>, Vec<ResultColumn>)> {
    let Some(items) = items else { return Ok(Default::default()) };
    let (output, mut columns, _) = bind_items(scope, items)?;
    columns.iter_mut().filter(|column| column.of == Type::Unknown).for_each(|column| column.of = Type::Text);
    Ok((output, columns))
}

/// Binds INSERT into a table.
pub(crate) fn bind_insert(
    insert: &ast::Insert,
    table: &Rc<Table>,
    parameters: &Parameters,
) -> Result<Change> {
    let mut rest = insert.clone();
    rest.columns.clear();
    rest.source = None;
    rest.on = None;
    rest.returning = None;
    rest.table_alias = None;
    let plain = format!("INSERT INTO {} DEFAULT VALUES", insert.table);
    let text = rest.to_string();
    refuse(
        text.trim() != plain && text.trim() != format!("INSERT INTO {}", insert.table),
        &format!("the form {text}"),
    )?;
    let alias = insert.table_alias.as_ref().map_or(table.name.clone(), |alias| folded(&alias.alias));
    let columns = columns_of(table, &insert.columns)?;
    let none = Scope::new(&[], parameters);
    let fill = |values: Vec<(usize, Expr)>| -> Result<Vec<Expr>> {
        let mut row: Vec<Option<Expr>> = vec![None; table.columns.len()];
        values.into_iter().for_each(|(column, value)| row[column] = Some(value));
        let filled = row.into_iter().enumerate().map(|(column, value)| match value {
            Some(value) => Ok(value),
            None => default_of(table, column, parameters),
        });
        filled.collect()
    };
    let check = |given: usize| {
        let message = match given.cmp(&columns.len()) {
            std::cmp::Ordering::Greater => "INSERT has more expressions than target columns",
            std::cmp::Ordering::Less if !insert.columns.is_empty() => {
                "INSERT has more target columns than expressions"
            }
            _ => return Ok(()),
        };
        Err(SqlError::new(code::SYNTAX_ERROR, message))
    };
    let source = match insert.source.as_deref() {
        None => NewRows::Values(vec![fill(Vec::new())?]),
        Some(query) => match &*query.body {
            ast::SetExpr::Values(values) if query.with.is_none() && query.order_by.is_none() => {
                let mut rows = Vec::new();
                for row in &values.rows {
                    check(row.len())?;
                    let mut bound = Vec::new();
                    for (column, value) in columns.iter().zip(row.iter()) {
                        let Column { name, of, .. } = &table.columns[*column];
                        let value = match value {
                            ast::Expr::Identifier(word) if folded(word) == "default" => {
                                default_of(table, *column, parameters)?
                            }
                            value => assign(none.bind(value)?, *of, name, parameters)?,
                        };
                        bound.push((*column, value));
                    }
                    rows.push(fill(bound)?);
                }
                NewRows::Values(rows)
            }
            _ => {
                let query = query::bind(query, Around { parameters, parent: None, with: None })?;
                check(query.columns.len())?;
                let mut bound = Vec::new();
                for (at, (column, given)) in columns.iter().zip(&query.columns).enumerate() {
                    let Column { name, of, .. } = &table.columns[*column];
                    bound.push((*column, assign((Expr::Column(at), given.of), *of, name, parameters)?));
                }
                let row = fill(bound)?;
                NewRows::Query(Box::new(query), row)
            }
        },
    };
    let own = scope_of(table, &alias);
    let conflict = match &insert.on {
        None => Conflict::Fail,
        Some(ast::OnInsert::OnConflict(on)) => {
            check_target(table, on.conflict_target.as_ref())?;
            match &on.action {
                ast::OnConflictAction::DoNothing => Conflict::Nothing,
                ast::OnConflictAction::DoUpdate(update) => {
                    let both = [own.clone(), scope_of(table, "excluded")].concat();
                    let scope = Scope::new(&both, parameters);
                    let set = assignments(table, &scope, &update.assignments)?;
                    let condition =
                        update.selection.as_ref().map(|expr| scope.condition(expr, "WHERE")).transpose()?;
                    Conflict::Update(set, condition)
                }
            }
        }
        Some(other) => return Err(SqlError::unsupported(other)),
    };
    let scope = Scope::new(&own, parameters);
    let (returning, result) = returning(&scope, insert.returning.as_ref())?;
    let kind = ChangeKind::Insert { source, conflict };
    Ok(Change { table: table.clone(), kind, returning, columns: result })
}

/// Checks that ON CONFLICT names the primary key, or nothing.
fn check_target(table: &Table, target: Option<&ast::ConflictTarget>) -> Result<()> {
    let primary = table.primary.as_ref();
    match target {
        None => Ok(()),
        Some(ast::ConflictTarget::OnConstraint(name)) => {
            let name = simple(name)?;
            match primary.is_some_and(|primary| primary.name == name) {
                true => Ok(()),
                false => Err(SqlError::unsupported("ON CONFLICT of another constraint than the primary key")),
            }
        }
        Some(ast::ConflictTarget::Columns { columns, predicate }) => {
            refuse(predicate.is_some(), "ON CONFLICT with a condition")?;
            let mut named: Vec<usize> =
                columns.iter().map(|column| table.column(&folded(column))).collect::<Result<_>>()?;
            named.sort_unstable();
            let mut wanted = primary.map(|primary| primary.columns.clone()).unwrap_or_default();
            wanted.sort_unstable();
            if named == wanted {
                return Ok(());
            }
            let message = "there is no unique or exclusion constraint matching the ON CONFLICT specification";
            Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message))
        }
    }
}

fn table_and_alias(table: &ast::TableWithJoins) -> Result<String> {
    refuse(!table.joins.is_empty(), "a join in this statement")?;
    match &table.relation {
        ast::TableFactor::Table { name, alias: None, .. } => Ok(unqualified(name)?),
        ast::TableFactor::Table { alias: Some(alias), .. } => Ok(folded(&alias.name)),
        other => Err(SqlError::unsupported(format!("{other} in this statement"))),
    }
}

/// Binds UPDATE of a table.
pub(crate) fn bind_update(
    update: &ast::Update,
    table: &Rc<Table>,
    parameters: &Parameters,
) -> Result<Change> {
    let alias = table_and_alias(&update.table)?;
    let is_plain = update.from.is_none()
        && update.or.is_none()
        && update.limit.is_none()
        && update.order_by.is_empty()
        && update.output.is_none()
        && update.on_cluster.is_none();
    refuse(!is_plain, "UPDATE with FROM")?;
    let columns = scope_of(table, &alias);
    let scope = Scope::new(&columns, parameters);
    let set = assignments(table, &scope, &update.assignments)?;
    let condition = update.selection.as_ref().map(|expr| scope.condition(expr, "WHERE")).transpose()?;
    let (returning, result) = returning(&scope, update.returning.as_ref())?;
    let kind = ChangeKind::Update { source: single_source(table, condition), set };
    Ok(Change { table: table.clone(), kind, returning, columns: result })
}

/// Binds DELETE from a table.
pub(crate) fn bind_delete(
    delete: &ast::Delete,
    table: &Rc<Table>,
    parameters: &Parameters,
) -> Result<Change> {
    let (ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from)) = &delete.from;
    let [from] = &from[..] else { return Err(SqlError::unsupported("DELETE from several tables")) };
    let is_plain = delete.using.is_none()
        && delete.tables.is_empty()
        && delete.limit.is_none()
        && delete.order_by.is_empty()
        && delete.output.is_none()
        && delete.on_cluster.is_none();
    refuse(!is_plain, "DELETE with USING")?;
    let columns = scope_of(table, &table_and_alias(from)?);
    let scope = Scope::new(&columns, parameters);
    let condition = delete.selection.as_ref().map(|expr| scope.condition(expr, "WHERE")).transpose()?;
    let (returning, result) = returning(&scope, delete.returning.as_ref())?;
    let kind = ChangeKind::Delete { source: single_source(table, condition) };
    Ok(Change { table: table.clone(), kind, returning, columns: result })
}

/// Checks that no value is NULL that must not be.
fn check_nulls(table: &Table, row: &[Value]) -> Result<()> {
    for (at, (column, value)) in table.columns.iter().zip(row).enumerate() {
        let is_key = table.primary.as_ref().is_some_and(|primary| primary.columns.contains(&at));
        if value.is_null() && (column.not_null || is_key) {
            let message = format!(
                "null value in column \"{}\" of relation \"{}\" violates not-null constraint",
                column.name, table.name
            );
            let shown: Vec<String> = table
                .columns
                .iter()
                .zip(row)
                .map(|(column, value)| match value {
                    Value::Null => "null".to_owned(),
                    value => text::print(value, column.of),
                })
                .collect();
            let detail = format!("Failing row contains ({}).", shown.join(", "));
            return Err(SqlError::new(code::NOT_NULL_VIOLATION, message).with_detail(detail));
        }
    }
    Ok(())
}

fn duplicate(table: &Table, name: &str, columns: &[usize], row: &[Value]) -> SqlError {
    let names: Vec<&str> = columns.iter().map(|column| table.columns[*column].name.as_str()).collect();
    let values: Vec<String> =
        columns.iter().map(|column| text::print(&row[*column], table.columns[*column].of)).collect();
    let message = format!("duplicate key value violates unique constraint \"{name}\"");
    let detail = format!("Key ({})=({}) already exists.", names.join(", "), values.join(", "));
    SqlError::new(code::UNIQUE_VIOLATION, message).with_detail(detail)
}

/// Inserts a row. Returns false if a row with its key is there, and nothing was changed.
pub(crate) async fn insert_row(run: &mut Run<'_>, table: &Table, row: &[Value]) -> Result<bool> {
    check_nulls(table, row)?;
    let key = match table.primary_key(row)? {
        Some(key) => key,
        None => number_key(run.store.fresh_id().await?),
    };
    let bytes = encode::row(row);
    let mut is_new = false;
    let mut set = |old: Option<&[u8]>| {
        is_new = old.is_none();
        if is_new { RowChange::Set(bytes.clone()) } else { RowChange::Keep }
    };
    run.by.change(table.rows(), &key, &mut set).await?;
    if is_new {
        change_indexes(run, table, &key, None, Some(row)).await?;
    }
    Ok(is_new)
}

/// Changes the entries of a row in all indexes.
async fn change_indexes(
    run: &mut Run<'_>,
    table: &Table,
    key: &[u8],
    old: Option<&[Value]>,
    new: Option<&[Value]>,
) -> Result<()> {
    for index in &table.indexes {
        let before = old.map(|row| index.key(table, key, row)).transpose()?;
        let after = new.map(|row| index.key(table, key, row)).transpose()?;
        if before == after {
            continue;
        }
        if let Some((entry, _)) = before {
            run.by.change(index.tree(), &entry, &mut |_| RowChange::Remove).await?;
        }
        if let (Some((entry, _)), Some(row)) = (after, new) {
            put_entry(run, table, index, &entry, key, row).await?;
        }
    }
    Ok(())
}

/// Makes an entry of an index.
pub(crate) async fn put_entry(
    run: &mut Run<'_>,
    table: &Table,
    index: &crate::catalog::Index,
    entry: &[u8],
    key: &[u8],
    row: &[Value],
) -> Result<()> {
    let mut is_new = false;
    let mut set = |old: Option<&[u8]>| {
        is_new = old.is_none();
        if is_new { RowChange::Set(key.to_vec()) } else { RowChange::Keep }
    };
    run.by.change(index.tree(), entry, &mut set).await?;
    if is_new { Ok(()) } else { Err(duplicate(table, &index.name, &index.columns, row)) }
}

/// Runs a change.
pub(crate) async fn run(run: &mut Run<'_>, change: &Change) -> Result<ChangedRows> {
    let mut changed = ChangedRows::default();
    let table = &*change.table;
    match &change.kind {
        ChangeKind::Insert { source, conflict } => {
            let (rows, exprs): (Rows, _) = match source {
                NewRows::Values(rows) => {
                    let mut values = Vec::with_capacity(rows.len());
                    for row in rows {
                        values.push(run.evaluate(row, &[]).await?);
                    }
                    (values.into(), None)
                }
                NewRows::Query(query, exprs) => (exec::query::rows(run, query).await?, Some(exprs)),
            };
            for row in rows {
                let row = match exprs {
                    None => row?,
                    Some(exprs) => run.evaluate(exprs, &row?).await?,
                };
                let row = match insert_row(run, table, &row).await? {
                    true => row,
                    false => match insert_conflict(run, table, conflict, row).await? {
                        Some(row) => row,
                        None => continue,
                    },
                };
                note(run, change, &mut changed, &row).await?;
            }
        }
        ChangeKind::Update { source, set } => {
            for key in keys(run, table, source).await? {
                if let Some(row) = update_row(run, table, &source.conditions, set, key?, None).await? {
                    note(run, change, &mut changed, &row).await?;
                }
            }
        }
        ChangeKind::Delete { source } => {
            for key in keys(run, table, source).await? {
                let key = key?;
                let inputs = run.inputs(&[]);
                let gone = loop {
                    let mut gone = Ok(None);
                    let mut remove = |bytes: Option<&[u8]>| {
                        gone = newest(table, &source.conditions, bytes, inputs);
                        if matches!(gone, Ok(Some(_))) { RowChange::Remove } else { RowChange::Keep }
                    };
                    run.by.change(table.rows(), &key, &mut remove).await?;
                    if gone.is_ok() || !run.supply().await? {
                        break gone;
                    }
                };
                if let Some(row) = gone? {
                    change_indexes(run, table, &key, Some(&row), None).await?;
                    note(run, change, &mut changed, &row).await?;
                }
            }
        }
    }
    Ok(changed)
}

async fn note(run: &mut Run<'_>, change: &Change, changed: &mut ChangedRows, row: &[Value]) -> Result<()> {
    changed.count += 1;
    if !change.returning.is_empty() {
        let returned = run.evaluate(&change.returning, row).await?;
        run.keep(&returned)?;
        changed.returned.push(returned);
    }
    Ok(())
}

/// Returns the keys of the rows to change. A row with a known key is not read before.
async fn keys(
    run: &mut Run<'_>,
    table: &Table,
    source: &Source,
) -> Result<impl Iterator<Item = Result<Vec<u8>>> + use<>> {
    let is_point = source.path.is_point(table);
    let mut known = None;
    if is_point {
        let values = run.evaluate(&source.path.prefix, &[]).await?;
        let mut key = Vec::new();
        for (value, column) in values.iter().zip(&source.path.columns) {
            if value.is_null() {
                return Ok(None.into_iter().chain(None.into_iter().flatten()));
            }
            encode::put_key(&mut key, value, table.columns[*column].of)?;
        }
        known = Some(Ok(key));
    }
    let found = if is_point { None } else { Some(matching(run, source, None).await?) };
    Ok(known.into_iter().chain(found.into_iter().flatten()))
}

/// Returns the newest values of a row if it still meets the conditions.
fn newest(
    table: &Table,
    conditions: &[Expr],
    bytes: Option<&[u8]>,
    inputs: Inputs<'_>,
) -> Result<Option<Vec<Value>>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let row = encode::read_row(bytes, table.columns.len())?;
    for condition in conditions {
        if !condition.holds(Inputs { row: &row, ..inputs })? {
            return Ok(None);
        }
    }
    Ok(Some(row))
}

/// Updates a row by its key, if it meets the conditions then. Returns its new values.
async fn update_row(
    run: &mut Run<'_>,
    table: &Table,
    conditions: &[Expr],
    set: &[(usize, Expr)],
    key: Vec<u8>,
    excluded: Option<&[Value]>,
) -> Result<Option<Vec<Value>>> {
    let inputs = run.inputs(&[]);
    let result = loop {
        let mut result: Result<Option<(Vec<Value>, Vec<Value>, bool)>> = Ok(None);
        let mut decide = |bytes: Option<&[u8]>| {
            result = (|| {
                let Some(bytes) = bytes else { return Ok(None) };
                let old = encode::read_row(bytes, table.columns.len())?;
                let seen = match excluded {
                    None => old.clone(),
                    Some(excluded) => [&old[..], excluded].concat(),
                };
                let inputs = Inputs { row: &seen, ..inputs };
                for condition in conditions {
                    if !condition.holds(inputs)? {
                        return Ok(None);
                    }
                }
                let mut new = old.clone();
                for (column, expr) in set {
                    new[*column] = expr.evaluate(inputs)?;
                }
                check_nulls(table, &new)?;
                let moves = table.primary_key(&new)?.is_some_and(|new| new != key);
                Ok(Some((old, new, moves)))
            })();
            match &result {
                Ok(Some((_, _, true))) => RowChange::Remove,
                Ok(Some((_, new, false))) => RowChange::Set(encode::row(new)),
                _ => RowChange::Keep,
            }
        };
        run.by.change(table.rows(), &key, &mut decide).await?;
        if result.is_ok() || !run.supply().await? {
            break result;
        }
    };
    let Some((old, new, moves)) = result? else { return Ok(None) };
    if moves {
        change_indexes(run, table, &key, Some(&old), None).await?;
        insert_unique(run, table, &new).await?;
    } else {
        change_indexes(run, table, &key, Some(&old), Some(&new)).await?;
    }
    Ok(Some(new))
}

/// Inserts a row whose key must not be there.
pub(crate) async fn insert_unique(run: &mut Run<'_>, table: &Table, row: &[Value]) -> Result<()> {
    if insert_row(run, table, row).await? {
        return Ok(());
    }
    let (name, columns) = table.primary.as_ref().map_or(("", &[][..]), |key| (&key.name, &key.columns));
    Err(duplicate(table, name, columns, row))
}

/// Inserts rows, whose keys must not be there. Fails with the number of the first row that cannot
/// be inserted.
pub(crate) async fn insert_rows(
    run: &mut Run<'_>,
    table: &Table,
    rows: &[Vec<Value>],
) -> std::result::Result<(), (usize, SqlError)> {
    let mut entries = Vec::with_capacity(rows.len());
    let mut failed = None;
    for (at, row) in rows.iter().enumerate() {
        let key = async {
            check_nulls(table, row)?;
            match table.primary_key(row)? {
                Some(key) => Ok(key),
                None => Ok(number_key(run.store.fresh_id().await?)),
            }
        };
        match key.await {
            Ok(key) => entries.push((key, encode::row(row))),
            Err(error) => {
                failed = Some((at, error));
                break;
            }
        }
    }
    let mut at = 0;
    while at < entries.len() {
        let inserted = run.by.insert_run(table.rows(), &entries[at..]).await;
        let count = inserted.map_err(|error| (at, error.into()))?;
        if count == 0 {
            insert_unique(run, table, &rows[at]).await.map_err(|error| (at, error))?;
            at += 1;
        }
        if table.indexes.is_empty() {
            at += count;
            continue;
        }
        for _ in 0..count {
            let indexed = change_indexes(run, table, &entries[at].0, None, Some(&rows[at])).await;
            indexed.map_err(|error| (at, error))?;
            at += 1;
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Does what a statement wants for a row whose key is there. Returns the row that it changed.
async fn insert_conflict(
    run: &mut Run<'_>,
    table: &Table,
    conflict: &Conflict,
    row: Vec<Value>,
) -> Result<Option<Vec<Value>>> {
    match conflict {
        Conflict::Fail => insert_unique(run, table, &row).await.map(|()| Some(row)),
        Conflict::Nothing => Ok(None),
        Conflict::Update(set, condition) => {
            let Some(key) = table.primary_key(&row)? else { return Ok(None) };
            update_row(run, table, condition.as_slice(), set, key, Some(&row)).await
        }
    }
}
