//! INSERT, UPDATE, DELETE and MERGE.

mod bind;
pub(crate) mod foreign;
mod merge;
mod rows;
pub(crate) mod target;

use std::{borrow::Cow, cmp::Ordering, collections::HashSet, rc::Rc};

use sqlparser::ast;

pub(crate) use self::{
    bind::{bind_change, is_change},
    rows::{Arbiter, duplicate_entry, fill_index, insert_rows, put_entry},
    target::{Targets, default_of},
};
use self::{
    foreign::finish,
    merge::Merge,
    rows::{Inserted, check_nulls, delete_row, insert_row, update_row, with_behind},
};

use crate::{
    bind::{
        Around, Parameters, Scope, assign,
        from::{Source, scope_of},
        operators::row_of,
        query::{self, Query, Shared},
        select::{ResultColumn, bind_items, refuse},
    },
    catalog::{Column, Identity, IndexPart, Table},
    error::{At, Result, SqlError, code, error, fail},
    exec::{self, Run, matching},
    expr::Expr,
    parse::{expression, folded, simple, unqualified},
    spool::Rows,
    types::{Type, Value, encode, text},
};

/// A statement that changes rows of a table.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) table: Rc<Table>,
    /// The table with its rules, and those that change with it.
    pub(crate) targets: Rc<Targets>,
    pub(crate) kind: ChangeKind,
    pub(crate) returning: Vec<Expr>,
    pub(crate) columns: Vec<ResultColumn>,
    /// The queries of its WITH.
    pub(crate) with: Vec<Rc<Shared>>,
}

/// The tables that are joined with the one that changes. In their rows the key of its row is behind
/// its columns.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) sources: Vec<Source>,
    /// Conditions without columns.
    pub(crate) constant: Vec<Expr>,
    /// The conditions that must hold for the newest row, too.
    pub(crate) conditions: Vec<Expr>,
}

#[derive(Debug)]
pub(crate) enum ChangeKind {
    Insert { source: NewRows, conflict: Conflict },
    Update { rows: RowsToChange, set: Vec<(usize, Expr)> },
    Delete { rows: RowsToChange },
    Merge(Box<Merge>),
}

/// The rows that UPDATE or DELETE changes.
#[derive(Debug)]
pub(crate) enum RowsToChange {
    /// Those of the table alone.
    Alone(Box<Source>),
    Joined(Joined),
}

impl RowsToChange {
    /// Returns the conditions that must hold for the newest row, too.
    fn conditions(&self) -> &[Expr] {
        match self {
            Self::Alone(source) => &source.conditions,
            Self::Joined(joined) => &joined.conditions,
        }
    }

    /// Returns the sources that lead to the rows, that of the table first.
    pub(crate) fn sources(&self) -> &[Source] {
        match self {
            Self::Alone(source) => std::slice::from_ref(&**source),
            Self::Joined(joined) => &joined.sources,
        }
    }
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
    /// It is left out, if these keys are there.
    Nothing(Vec<Arbiter>),
    /// Columns are set, from the present row and the new one behind it, if a condition holds.
    Update {
        arbiter: Arbiter,
        set: Vec<(usize, Expr)>,
        condition: Option<Expr>,
    },
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
        let column = table.column(&simple(name)?).at(name)?;
        if columns.contains(&column) {
            fail!(DUPLICATE_COLUMN, "column \"{name}\" specified more than once");
        }
        columns.push(column);
    }
    Ok(columns)
}

fn is_default(value: &ast::Expr) -> bool {
    matches!(value, ast::Expr::Identifier(word) if word.quote_style.is_none() && folded(word) == "default")
}

/// Returns the detail of an error about a column whose values statements do not give.
fn kind_of(table: &Table, column: usize) -> String {
    let Column { name, generated, .. } = &table.columns[column];
    match generated {
        Some(_) => format!("Column \"{name}\" is a generated column."),
        None => format!("Column \"{name}\" is an identity column defined as GENERATED ALWAYS."),
    }
}

/// Returns the value that INSERT gives to a column; `None` for the default.
fn given_value(
    table: &Table,
    column: usize,
    value: Expr,
    overriding: Option<ast::InsertOverriding>,
) -> Result<Option<Expr>> {
    let Column { name, generated, identity, .. } = &table.columns[column];
    let is_forced = overriding == Some(ast::InsertOverriding::System);
    if generated.is_some() || *identity == Some(Identity::Always) && overriding.is_none() {
        let message = format!("cannot insert a non-DEFAULT value into column \"{name}\"");
        let error = SqlError::new(code::GENERATED_ALWAYS, message).with_detail(kind_of(table, column));
        return Err(match generated {
            Some(_) => error,
            None => error.with_hint("Use OVERRIDING SYSTEM VALUE to override."),
        });
    }
    Ok(if identity.is_some() && overriding.is_some() && !is_forced { None } else { Some(value) })
}

/// Returns the columns of an assignment with their values: several have those of a row, or of the
/// only row of a query.
fn assigned(assignment: &ast::Assignment) -> Result<Vec<(&ast::ObjectName, Cow<'_, ast::Expr>)>> {
    let names = match &assignment.target {
        ast::AssignmentTarget::ColumnName(name) => return Ok(vec![(name, Cow::Borrowed(&assignment.value))]),
        ast::AssignmentTarget::Tuple(names) => names,
    };
    let other_number = || error!(SYNTAX_ERROR, "number of columns does not match number of values");
    let is_wildcard = |item: &ast::SelectItem| {
        !matches!(item, ast::SelectItem::UnnamedExpr(_) | ast::SelectItem::ExprWithAlias { .. })
    };
    let column = |at: usize| format!("c{at}");
    let values = match (&assignment.value, row_of(&assignment.value)) {
        (_, Some(values)) => values,
        (ast::Expr::Subquery(query), None) => {
            if let ast::SetExpr::Select(select) = &*query.body
                && !select.projection.iter().any(is_wildcard)
                && select.projection.len() != names.len()
            {
                return Err(other_number());
            }
            let all = (0..names.len()).map(column).collect::<Vec<_>>().join(", ");
            let value = |at| expression(&format!("(select r.{} from ({query}) as r ({all}))", column(at)));
            (0..names.len()).map(value).collect::<Result<_>>()?
        }
        _ => fail!(
            FEATURE_NOT_SUPPORTED,
            "source for a multiple-column UPDATE item must be a sub-SELECT or ROW() expression"
        ),
    };
    if values.len() != names.len() {
        return Err(other_number());
    }
    Ok(names.iter().zip(values.into_iter().map(Cow::Owned)).collect())
}

fn assignments(table: &Table, scope: &Scope<'_>, all: &[ast::Assignment]) -> Result<Vec<(usize, Expr)>> {
    let mut set: Vec<(usize, Expr)> = Vec::new();
    let all = all.iter().map(assigned).collect::<Result<Vec<_>>>()?;
    for (name, value) in all.iter().flatten() {
        let column = table.column(&simple(name)?).at(*name)?;
        if set.iter().any(|(known, _)| *known == column) {
            fail!(SYNTAX_ERROR, "multiple assignments to same column \"{name}\"");
        }
        let Column { name, of, .. } = &table.columns[column];
        let value = match &**value {
            value if is_default(value) => match &table.columns[column].generated {
                // It is computed below.
                Some(_) => Expr::Value(Value::Null),
                None => default_of(table, column, scope.parameters)?,
            },
            _ if table.columns[column].generated.is_some()
                || table.columns[column].identity == Some(Identity::Always) =>
            {
                let message = format!("column \"{name}\" can only be updated to DEFAULT");
                return Err(
                    SqlError::new(code::GENERATED_ALWAYS, message).with_detail(kind_of(table, column))
                );
            }
            value => assign(scope.bind(value)?, *of, name, scope.parameters).at(value)?,
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

/// Returns the values of a row of which some columns are given. The others have their defaults.
fn with_defaults(
    table: &Table,
    values: Vec<(usize, Option<Expr>)>,
    parameters: &Parameters,
) -> Result<Vec<Expr>> {
    let mut row: Vec<Option<Expr>> = vec![None; table.columns.len()];
    values.into_iter().for_each(|(column, value)| row[column] = value);
    let filled = row.into_iter().enumerate().map(|(column, value)| match value {
        Some(value) => Ok(value),
        None => default_of(table, column, parameters),
    });
    filled.collect()
}

/// Checks the number of values for columns, which the statement may name.
fn check_count(given: usize, (columns, are_named): (&[usize], bool)) -> Result<()> {
    let message = match given.cmp(&columns.len()) {
        Ordering::Greater => "INSERT has more expressions than target columns",
        Ordering::Less if are_named => "INSERT has more target columns than expressions",
        _ => return Ok(()),
    };
    Err(SqlError::new(code::SYNTAX_ERROR, message))
}

/// Binds the values of a row to insert, for columns as in [`check_count`].
fn insert_values(
    table: &Table,
    columns: (&[usize], bool),
    values: &[ast::Expr],
    overriding: Option<ast::InsertOverriding>,
    scope: &Scope<'_>,
) -> Result<Vec<Expr>> {
    check_count(values.len(), columns)?;
    let mut bound = Vec::new();
    for (column, value) in columns.0.iter().zip(values) {
        let Column { name, of, .. } = &table.columns[*column];
        let value = match value {
            value if is_default(value) => None,
            value => {
                let given = assign(scope.bind(value)?, *of, name, scope.parameters).at(value)?;
                given_value(table, *column, given, overriding)?
            }
        };
        bound.push((*column, value));
    }
    with_defaults(table, bound, scope.parameters)
}

/// Binds INSERT into a table.
fn bind_insert(insert: &ast::Insert, targets: &Rc<Targets>, around: Around<'_>) -> Result<Change> {
    let (table, parameters) = (targets.table(), around.parameters);
    let mut rest = insert.clone();
    rest.columns.clear();
    rest.overriding = None;
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
    let none = around.scope(&[]);
    let given = (&columns[..], !insert.columns.is_empty());
    let source = match insert.source.as_deref() {
        None => NewRows::Values(vec![with_defaults(table, Vec::new(), parameters)?]),
        Some(query) => match &*query.body {
            ast::SetExpr::Values(values) if query.with.is_none() && query.order_by.is_none() => {
                let mut rows = Vec::new();
                for row in &values.rows {
                    query::check_length(row.len(), values.rows[0].len())?;
                    rows.push(insert_values(table, given, row, insert.overriding, &none)?);
                }
                NewRows::Values(rows)
            }
            _ => {
                let query = query::bind(query, around)?;
                check_count(query.columns.len(), given)?;
                let mut bound = Vec::new();
                for (at, (column, given)) in columns.iter().zip(&query.columns).enumerate() {
                    let Column { name, of, .. } = &table.columns[*column];
                    let given = assign((Expr::Column(at), given.of), *of, name, parameters)?;
                    bound.push((*column, given_value(table, *column, given, insert.overriding)?));
                }
                let row = with_defaults(table, bound, parameters)?;
                NewRows::Query(Box::new(query), row)
            }
        },
    };
    let own = scope_of(table, &alias);
    let conflict = match &insert.on {
        None => Conflict::Fail,
        Some(ast::OnInsert::OnConflict(on)) => {
            let arbiters = arbiters(table, on.conflict_target.as_ref())?;
            let is_deferrable = |arbiter: &Arbiter| matches!(arbiter, Arbiter::Index(at) if table.indexes[*at].deferral.is_some());
            if arbiters.iter().any(is_deferrable) {
                fail!(
                    NOT_IN_STATE,
                    "ON CONFLICT does not support deferrable unique constraints/exclusion constraints \
                               as arbiters"
                );
            }
            match &on.action {
                ast::OnConflictAction::DoNothing => Conflict::Nothing(arbiters),
                ast::OnConflictAction::DoUpdate(update) => {
                    // The new row is behind the present one.
                    let mut excluded = scope_of(table, "excluded");
                    let count = table.columns.len();
                    excluded.iter_mut().for_each(|column| column.value.move_columns(&|at| at + count));
                    let both = [own.clone(), excluded].concat();
                    let scope = around.scope(&both);
                    let set = assignments(table, &scope, &update.assignments)?;
                    let condition =
                        update.selection.as_ref().map(|expr| scope.condition(expr, "WHERE")).transpose()?;
                    let [arbiter] = arbiters[..] else {
                        let message =
                            "ON CONFLICT DO UPDATE requires inference specification or constraint name";
                        let hint = "For example, ON CONFLICT (column_name).";
                        return Err(SqlError::new(code::SYNTAX_ERROR, message).with_hint(hint));
                    };
                    Conflict::Update { arbiter, set, condition }
                }
            }
        }
        Some(other) => return Err(SqlError::unsupported(other)),
    };
    let scope = around.scope(&own);
    let (returning, result) = returning(&scope, insert.returning.as_ref())?;
    let kind = ChangeKind::Insert { source, conflict };
    Ok(Change {
        table: table.clone(),
        targets: targets.clone(),
        kind,
        returning,
        columns: result,
        with: Vec::new(),
    })
}

/// Returns the unique keys that ON CONFLICT names; without names, all of the table.
fn arbiters(table: &Table, target: Option<&ast::ConflictTarget>) -> Result<Vec<Arbiter>> {
    let unique = table.indexes.iter().enumerate().filter(|(_, index)| index.is_unique);
    let primary = table.primary.as_ref();
    match target {
        None => {
            let primary = primary.map(|_| Arbiter::Primary);
            Ok(primary.into_iter().chain(unique.map(|(at, _)| Arbiter::Index(at))).collect())
        }
        Some(ast::ConflictTarget::OnConstraint(name)) => {
            let name = simple(name)?;
            if primary.is_some_and(|primary| primary.name == name) {
                return Ok(vec![Arbiter::Primary]);
            }
            let found = { unique }.find(|(_, index)| index.name == name && index.is_plain());
            found.map(|(at, _)| vec![Arbiter::Index(at)]).ok_or_else(|| {
                error!(UNDEFINED_OBJECT, "constraint \"{name}\" for table \"{}\" does not exist", table.name)
            })
        }
        Some(ast::ConflictTarget::Columns { columns, predicate }) => {
            let mut named: Vec<usize> =
                columns.iter().map(|column| table.column(&folded(column))).collect::<Result<_>>()?;
            named.sort_unstable();
            named.dedup();
            let condition = predicate.as_ref().map(ToString::to_string);
            let is_it = |columns: &[usize]| {
                let mut columns = columns.to_vec();
                columns.sort_unstable();
                columns == named
            };
            if primary.is_some_and(|primary| is_it(&primary.columns)) {
                return Ok(vec![Arbiter::Primary]);
            }
            for (at, index) in unique.filter(|(_, index)| !index.is_building) {
                let columns = index.parts.iter().map(|part| match part {
                    IndexPart::Column(column) => Some(*column),
                    IndexPart::Expression(..) => None,
                });
                let columns: Option<Vec<usize>> =
                    if index.parts.is_empty() { Some(index.columns.clone()) } else { columns.collect() };
                let fits = index.condition.is_none() || index.condition == condition;
                if columns.is_some_and(|columns| is_it(&columns)) && fits {
                    return Ok(vec![Arbiter::Index(at)]);
                }
            }
            Err(error!(
                INVALID_COLUMN_REFERENCE,
                "there is no unique or exclusion constraint matching the ON CONFLICT specification"
            ))
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

/// Returns the detail of an error about a row.
fn failing_row(table: &Table, row: &[Value]) -> String {
    let shown = table.columns.iter().zip(row).map(|(column, value)| match value {
        Value::Null => "null".to_owned(),
        value => text::print(value, column.of),
    });
    format!("Failing row contains ({}).", shown.collect::<Vec<_>>().join(", "))
}

/// Returns the error for a row that violates a constraint of a table.
fn violated(code: &'static str, table: &Table, name: &str, message: String, detail: String) -> SqlError {
    SqlError::new(code, message).with_detail(detail).with(|fields| {
        fields.schema = Some(table.schema.clone());
        fields.table = Some(table.name.clone());
        fields.constraint = Some(name.to_owned());
    })
}

/// Runs a change.
pub(crate) async fn run(run: &mut Run<'_>, change: &Change) -> Result<ChangedRows> {
    run.context.answers.run_alone();
    exec::query::begin_with(run, &change.with).await?;
    run.context.constraints.begin_statement();
    let changed = change_rows(run, change).await?;
    finish(run, &change.targets).await?;
    Ok(changed)
}

async fn change_rows(run: &mut Run<'_>, change: &Change) -> Result<ChangedRows> {
    let mut changed = ChangedRows::default();
    let targets = &change.targets;
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
            // The rows that ON CONFLICT has inserted or updated.
            let mut seen = HashSet::new();
            for row in rows {
                let mut row = match exprs {
                    None => row?,
                    Some(exprs) => run.evaluate(exprs, &row?).await?,
                };
                targets.0[0].complete(&mut row, run.context)?;
                if let Some(row) = insert(run, targets, conflict, row, &mut seen).await? {
                    note(run, change, &mut changed, &row).await?;
                }
            }
        }
        ChangeKind::Update { rows, set } => {
            let found = keys(run, targets.table(), rows).await?;
            for found in with_answers(run, targets.table(), rows, set, found).await? {
                let (key, behind) = found?;
                let updated = update_row(run, targets, 0, rows.conditions(), set, key, &behind).await?;
                if let Some(row) = updated {
                    note(run, change, &mut changed, &[row, behind].concat()).await?;
                }
            }
        }
        ChangeKind::Delete { rows } => {
            let found = keys(run, targets.table(), rows).await?;
            for found in with_answers(run, targets.table(), rows, &[], found).await? {
                let (key, behind) = found?;
                let gone = delete_row(run, targets, 0, rows.conditions(), key, &behind).await?;
                if let Some(row) = gone {
                    note(run, change, &mut changed, &[row, behind].concat()).await?;
                }
            }
        }
        ChangeKind::Merge(merge) => changed.count = merge.run(run, targets).await?,
    }
    Ok(changed)
}

/// Returns the keys of the rows to change with what is behind them in joined rows; each row once.
async fn joined_rows(run: &mut Run<'_>, joined: &Joined, width: usize) -> Result<Vec<(Vec<u8>, Vec<Value>)>> {
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    let constant = &joined.constant;
    if !run.complete(&mut |run| exec::all_hold(constant, run.inputs(&[]))).await? {
        return Ok(found);
    }
    exec::joined(run, &joined.sources, &mut |run, row| {
        let behind = &row[width..];
        if let Some(Value::Bytes(key)) = behind.first()
            && seen.insert(key.clone())
        {
            run.keep(behind)?;
            found.push((key.clone(), behind.to_vec()));
        }
        Ok(true)
    })
    .await?;
    Ok(found)
}

/// The most changes of a row that is in the way and then is gone.
const MOST_CONFLICTS: usize = 1000;

/// Inserts a row, or does what the statement wants if its key is there. Returns the row that was
/// inserted or changed.
async fn insert(
    run: &mut Run<'_>,
    targets: &Rc<Targets>,
    conflict: &Conflict,
    row: Vec<Value>,
    seen: &mut HashSet<Vec<u8>>,
) -> Result<Option<Vec<Value>>> {
    let arbiters = match conflict {
        Conflict::Fail => &[][..],
        Conflict::Nothing(arbiters) => arbiters,
        Conflict::Update { arbiter, .. } => std::slice::from_ref(arbiter),
    };
    for _ in 0..MOST_CONFLICTS {
        let key = match insert_row(run, targets, 0, &row, arbiters).await? {
            Inserted::New(key) => {
                if matches!(conflict, Conflict::Update { .. }) {
                    run.keep_bytes(key.len())?;
                    seen.insert(key);
                }
                return Ok(Some(row));
            }
            Inserted::Conflict(key) => key,
        };
        let Conflict::Update { set, condition, .. } = conflict else { return Ok(None) };
        if seen.contains(&key) {
            let message = "ON CONFLICT DO UPDATE command cannot affect row a second time";
            let hint = "Ensure that no rows proposed for insertion within the same command have duplicate \
                        constrained values.";
            return Err(SqlError::new("21000", message).with_hint(hint));
        }
        let updated = update_row(run, targets, 0, condition.as_slice(), set, key.clone(), &row).await?;
        if let Some(updated) = updated {
            run.keep_bytes(key.len())?;
            seen.insert(targets.table().primary_key(&updated)?.unwrap_or(key));
            return Ok(Some(updated));
        }
        // Either the condition does not hold, or the row has gone in the meantime.
        if newest_row(run, targets.table(), &key).await?.is_some() {
            return Ok(None);
        }
    }
    Err(SqlError::new(code::SERIALIZATION_FAILURE, "the row of a conflict does not stay"))
}

/// Returns the newest row with this key.
async fn newest_row(run: &mut Run<'_>, table: &Table, key: &[u8]) -> Result<Option<Vec<Value>>> {
    let mut found = Ok(None);
    let mut look = |bytes: Option<&[u8]>| {
        found = bytes.map(|bytes| encode::read_row(bytes, table.columns.len())).transpose();
        plexus_store::RowChange::Keep
    };
    run.by.change(table.rows(), key, &mut look).await?;
    found
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

/// Finds the answers of the subqueries of a change before it changes a row: they are about the rows
/// as they were. Returns the same keys.
async fn with_answers(
    run: &mut Run<'_>,
    table: &Table,
    rows: &RowsToChange,
    set: &[(usize, Expr)],
    found: impl Iterator<Item = Result<(Vec<u8>, Vec<Value>)>> + 'static,
) -> Result<Box<dyn Iterator<Item = Result<(Vec<u8>, Vec<Value>)>>>> {
    let conditions = rows.conditions();
    let asking: Vec<&Expr> = set.iter().map(|(_, expr)| expr).filter(|expr| expr.has_subquery()).collect();
    if !conditions.iter().chain(asking.iter().copied()).any(Expr::has_subquery) {
        return Ok(Box::new(found));
    }
    run.context.answers.keep_all();
    let mut kept = Vec::new();
    for found in found {
        let (key, behind) = found?;
        if let Some(bytes) = run.by.get(table.rows(), &key).await? {
            let row = encode::read_row(&bytes, table.columns.len())?;
            let seen = with_behind(&row, &behind);
            run.complete(&mut |run| {
                let inputs = run.inputs(&seen);
                if exec::all_hold(conditions, inputs)? {
                    asking.iter().try_for_each(|expr| expr.evaluate(inputs).map(drop))?;
                }
                Ok(())
            })
            .await?;
        }
        run.keep_bytes(size_of::<Vec<u8>>() + key.len())?;
        kept.push(Ok((key, behind)));
    }
    Ok(Box::new(kept.into_iter()))
}

/// Returns the keys of the rows to change, each with what is behind its row in joined rows. A row
/// with a known key is not read before.
async fn keys(
    run: &mut Run<'_>,
    table: &Table,
    rows: &RowsToChange,
) -> Result<impl Iterator<Item = Result<(Vec<u8>, Vec<Value>)>> + use<>> {
    let (mut known, mut found) = (Vec::new(), None);
    match rows {
        RowsToChange::Joined(joined) => known = joined_rows(run, joined, table.columns.len()).await?,
        RowsToChange::Alone(source) if source.path.is_point(table) => {
            let values = run.evaluate(&source.path.prefix, &[]).await?;
            if !values.iter().any(Value::is_null) {
                let mut key = Vec::new();
                for (value, column) in values.iter().zip(&source.path.columns) {
                    encode::put_key(&mut key, value, table.columns[*column].of)?;
                }
                known.push((key, Vec::new()));
            }
        }
        RowsToChange::Alone(source) => found = Some(matching(run, source, None).await?),
    }
    let found = found.into_iter().flatten().map(|key| Ok((key?, Vec::new())));
    Ok(known.into_iter().map(Ok).chain(found))
}
