//! Queries: what they read, in which way, and what they return.

use sqlparser::ast;

use super::{
    Around, Parameters, Scope, Typed,
    aggregates::{Aggregate, AggregateKind, GroupKey, Grouping},
    calls::special_name,
    coerce,
    from::{self, Source},
    locks::bind_locks,
    narrow::{filter_early, read_less},
    order::{divide, keep_chosen, order},
    paths::{order_path, path_order, place},
    sets::SetCall,
    windows::{Calls, WindowCall},
};
use crate::{
    error::{At, Result, SqlError, code, error, fail},
    expr::Expr,
    parse::{fetched, folded, simple},
    spool::Direction,
    types::Type,
};

/// A column of a result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ResultColumn {
    pub(crate) name: String,
    pub(crate) of: Type,
}

/// A query that is ready to run.
#[derive(Clone, Default, Debug)]
pub(crate) struct Select {
    pub(crate) sources: Vec<Source>,
    /// Conditions without columns.
    pub(crate) constant: Vec<Expr>,
    pub(crate) groups: Option<Groups>,
    pub(crate) output: Vec<Expr>,
    pub(crate) columns: Vec<ResultColumn>,
    pub(crate) order: Vec<OrderKey>,
    /// The window functions, whose values follow those of the row or group, and the functions that
    /// return rows, whose values follow these.
    pub(crate) windows: Vec<WindowCall>,
    pub(crate) sets: Vec<SetCall>,
    /// The number of values of a row, or of a group.
    pub(crate) width: usize,
    pub(crate) is_distinct: bool,
    /// DISTINCT ON: of the rows with these values only the first stays.
    pub(crate) distinct_on: Vec<Expr>,
    pub(crate) limit: Option<Expr>,
    /// The rows behind the limit with the order of the last one belong to it.
    pub(crate) with_ties: bool,
    pub(crate) offset: Option<Expr>,
    /// Rows are locked until the end of the transaction.
    pub(crate) has_locks: bool,
}

impl Select {
    /// Returns a query for all rows of sources.
    pub(crate) fn of(sources: Vec<Source>, columns: Vec<ResultColumn>) -> Self {
        let output = (0..columns.len()).map(Expr::Column).collect();
        Self { sources, output, width: columns.len(), columns, ..Self::default() }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Groups {
    pub(crate) by: Vec<Expr>,
    /// For each set of GROUPING SETS the values by which it groups; one of all without them.
    pub(crate) sets: Vec<Vec<bool>>,
    pub(crate) aggregates: Vec<Aggregate>,
    pub(crate) having: Option<Expr>,
    /// Without GROUP BY there is one group, also of no rows.
    pub(crate) is_one: bool,
    /// The first value that is not NULL is the result: the rows are in its order.
    pub(crate) is_first: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct OrderKey {
    pub(crate) by: Expr,
    pub(crate) direction: Direction,
}

/// Refuses a part of a statement that is there.
pub(crate) fn refuse(is_there: bool, what: &str) -> Result<()> {
    if is_there { Err(SqlError::unsupported(what)) } else { Ok(()) }
}

/// Returns the name of a result column without alias.
fn name_of(expr: &ast::Expr) -> String {
    found_name(expr).map_or("?column?".into(), |(name, _)| name)
}

/// Returns the name that an expression gives to its column; false if a type or a form gives it, so
/// that an outer one counts (PostgreSQL's `FigureColname`).
fn found_name(expr: &ast::Expr) -> Option<(String, bool)> {
    use ast::Expr as E;
    // An array is named as its elements are.
    fn of_type(of: &ast::DataType) -> Option<(String, bool)> {
        let name = match of {
            ast::DataType::Array(ast::ArrayElemTypeDef::SquareBracket(of, _)) => return of_type(of),
            ast::DataType::Custom(name, _) => name.0.last()?.as_ident().map(folded)?,
            of => super::type_of(of, &Parameters::default()).ok()?.catalog_name().to_owned(),
        };
        Some((name, false))
    }
    match expr {
        E::Identifier(name) => Some((folded(name), true)),
        E::CompoundIdentifier(names) => names.last().map(|name| (folded(name), true)),
        E::Function(function) => {
            let name = function.name.0.last().and_then(ast::ObjectNamePart::as_ident)?;
            Some((folded(name), true))
        }
        E::Nested(inner) => found_name(inner),
        E::Cast { expr, data_type, .. } => {
            found_name(expr).filter(|(_, is_strong)| *is_strong).or_else(|| of_type(data_type))
        }
        E::TypedString(typed) => of_type(&typed.data_type),
        E::Array(_) => Some(("array".into(), true)),
        E::Tuple(_) => Some(("row".into(), true)),
        E::CompoundFieldAccess { root, .. } => found_name(root),
        E::Collate { expr, .. } => found_name(expr),
        E::Interval(_) => Some(("interval".into(), false)),
        E::AtTimeZone { .. } => Some(("timezone".into(), true)),
        E::Extract { .. } => Some(("extract".into(), true)),
        E::Case { else_result, .. } => {
            let named = else_result.as_deref().and_then(found_name);
            named.filter(|(_, is_strong)| *is_strong).or(Some(("case".into(), false)))
        }
        E::Subquery(query) => match &*query.body {
            ast::SetExpr::Select(select) => match select.projection.first()? {
                ast::SelectItem::UnnamedExpr(expr) => found_name(expr),
                ast::SelectItem::ExprWithAlias { alias, .. } => Some((folded(alias), true)),
                _ => None,
            },
            _ => None,
        },
        E::Exists { negated: false, .. } => Some(("exists".into(), true)),
        E::Substring { shorthand, .. } => {
            Some((if *shorthand { "substr" } else { "substring" }.into(), true))
        }
        other => special_name(other).map(|name| (name.to_owned(), true)),
    }
}

/// Binds the items of SELECT or RETURNING.
pub(crate) fn bind_items(
    scope: &Scope<'_>,
    items: &[ast::SelectItem],
) -> Result<(Vec<Expr>, Vec<ResultColumn>, Vec<Option<ast::Expr>>)> {
    let (mut output, mut columns, mut originals) = (Vec::new(), Vec::new(), Vec::new());
    let mut add = |(expr, of): Typed, name: String, original: Option<&ast::Expr>| -> Result<()> {
        // A literal keeps its open type: that of a set operation or of a column may come.
        let is_parameter = of == Type::Unknown && matches!(expr, Expr::Parameter(_));
        let of = if is_parameter { Type::Text } else { of };
        let expr =
            if is_parameter { coerce((expr, Type::Unknown), of, scope.parameters, false)? } else { expr };
        output.push(expr);
        columns.push(ResultColumn { name, of });
        originals.push(original.cloned());
        Ok(())
    };
    for item in items {
        let plain = ast::WildcardAdditionalOptions::default();
        match item {
            ast::SelectItem::UnnamedExpr(expr) => add(scope.bind(expr)?, name_of(expr), Some(expr))?,
            ast::SelectItem::ExprWithAlias { expr, alias } => {
                add(scope.bind(expr)?, folded(alias), Some(expr))?;
            }
            ast::SelectItem::Wildcard(options) if *options == plain => {
                for (at, column) in scope.columns.iter().enumerate().filter(|(_, column)| !column.is_hidden) {
                    add(scope.value_of(at)?, column.name.clone(), None)?;
                }
            }
            ast::SelectItem::QualifiedWildcard(
                ast::SelectItemQualifiedWildcardKind::ObjectName(name),
                options,
            ) if *options == plain => {
                let table = simple(name)?;
                let mut is_there = false;
                for (at, column) in scope.columns.iter().enumerate() {
                    // A column of USING stands for the hidden one of its table.
                    let is_merged = column.is_merged;
                    if column.table == table && !is_merged {
                        is_there = true;
                        add(scope.value_of(at)?, column.name.clone(), None)?;
                    }
                }
                if !is_there {
                    fail!(UNDEFINED_TABLE, "missing FROM-clause entry for table \"{table}\"");
                }
            }
            other => return Err(SqlError::unsupported(format!("the item {other}"))),
        }
    }
    Ok((output, columns, originals))
}

/// Refuses the clauses of a query that are not handled here.
pub(crate) fn check_query(query: &ast::Query) -> Result<()> {
    let ast::Query {
        with: _,
        body: _,
        order_by: _,
        limit_clause: _,
        fetch: _,
        locks: _,
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators,
    } = query
    else {
        return Err(SqlError::unsupported("this form of a query"));
    };
    refuse(!pipe_operators.is_empty(), "a query with pipes")
}

/// Refuses the clauses of SELECT that are not handled here, by comparison with one that has none.
fn check_select(select: &ast::Select) -> Result<()> {
    let mut rest = select.clone();
    rest.projection.clear();
    rest.from.clear();
    rest.selection = None;
    rest.having = None;
    rest.group_by = ast::GroupByExpr::Expressions(Vec::new(), Vec::new());
    rest.distinct = None;
    rest.named_window.clear();
    let text = rest.to_string();
    refuse(text.trim() != "SELECT", &format!("the query clause {}", text.trim_start_matches("SELECT").trim()))
}

/// Binds the order of a query. The columns of `select` are bound, `originals` are their texts.
pub(crate) fn bind_order(
    select: &mut Select,
    query: &ast::Query,
    scope: &Scope<'_>,
    originals: &[Option<ast::Expr>],
) -> Result<()> {
    let keys = match &query.order_by {
        None => return Ok(()),
        Some(ast::OrderBy { kind: ast::OrderByKind::Expressions(keys), interpolate: None }) => keys,
        Some(other) => return Err(SqlError::unsupported(other)),
    };
    for key in keys {
        let by = match result_column(&key.expr, &select.output, &select.columns, originals).at(&key.expr)? {
            Some(at) => select.output[at].clone(),
            None if select.is_distinct => {
                fail!(
                    INVALID_COLUMN_REFERENCE,
                    "for SELECT DISTINCT, ORDER BY expressions must appear in select list"
                );
            }
            None => scope.bind(&key.expr)?.0,
        };
        select.order.push(OrderKey { by, direction: direction_of(key)? });
    }
    Ok(())
}

/// Returns the column of a result that a key of ORDER BY means: by its name, its place, or as the
/// same expression.
fn result_column(
    key: &ast::Expr,
    output: &[Expr],
    columns: &[ResultColumn],
    originals: &[Option<ast::Expr>],
) -> Result<Option<usize>> {
    let named = match key {
        ast::Expr::Identifier(name) => columns.iter().position(|column| column.name == folded(name)),
        _ => None,
    };
    let is_same = |one: usize, other: usize| format!("{:?}", output[one]) == format!("{:?}", output[other]);
    let is_named = |one: usize, other: usize| columns[one].name == columns[other].name;
    if let Some(at) = named
        && (at + 1..columns.len()).any(|other| is_named(at, other) && !is_same(at, other))
    {
        fail!(AMBIGUOUS_COLUMN, "ORDER BY \"{}\" is ambiguous", columns[at].name);
    }
    match (named, number(key)) {
        (Some(at), _) => Ok(Some(at)),
        (None, Some(at)) if (1..=output.len()).contains(&at) => Ok(Some(at - 1)),
        (None, Some(at)) => {
            Err(error!(INVALID_COLUMN_REFERENCE, "ORDER BY position {at} is not in select list"))
        }
        (None, None) => Ok(originals.iter().position(|original| original.as_ref() == Some(key))),
    }
}

/// Returns the direction of a key of ORDER BY.
pub(crate) fn direction_of(key: &ast::OrderByExpr) -> Result<Direction> {
    refuse(key.with_fill.is_some(), "WITH FILL")?;
    let is_descending = match &key.options.sort {
        None | Some(ast::OrderBySort::Asc) => false,
        Some(ast::OrderBySort::Desc) => true,
        Some(_) => return Err(SqlError::unsupported("ORDER BY USING")),
    };
    let nulls_first = key.options.nulls_first.unwrap_or(is_descending);
    Ok(Direction { is_descending, nulls_first })
}

/// Binds LIMIT, OFFSET and FETCH.
pub(crate) fn bind_limit(select: &mut Select, query: &ast::Query, around: Around<'_>) -> Result<()> {
    let none = around.scope(&[]);
    let count = |expr: &ast::Expr| coerce(none.bind(expr)?, Type::Int8, around.parameters, false).at(expr);
    match &query.limit_clause {
        None => {}
        Some(ast::LimitClause::LimitOffset { limit: most, offset: first, limit_by }) => {
            refuse(!limit_by.is_empty(), "LIMIT BY")?;
            select.limit = most.as_ref().map(count).transpose()?;
            select.offset = first.as_ref().map(|first| count(&first.value)).transpose()?;
        }
        Some(ast::LimitClause::OffsetCommaLimit { .. }) => {
            return Err(SqlError::unsupported("LIMIT with a comma"));
        }
    }
    if let Some(fetch) = &query.fetch {
        refuse(fetch.percent, "FETCH with PERCENT")?;
        let one = ast::Expr::value(ast::Value::Number("1".into(), false));
        let counted = match &fetch.quantity {
            Some(ast::Expr::Value(value)) => fetched(&value.value)?,
            _ => None,
        };
        select.limit = Some(count(counted.as_ref().or(fetch.quantity.as_ref()).unwrap_or(&one))?);
        select.with_ties = fetch.with_ties;
        if fetch.with_ties && query.order_by.is_none() {
            fail!(SYNTAX_ERROR, "WITH TIES cannot be specified without ORDER BY clause");
        }
        refuse(fetch.with_ties && !query.locks.is_empty(), "WITH TIES and FOR UPDATE")?;
    }
    Ok(())
}

/// The sets of values by which a query groups.
struct GroupedBy {
    keys: Vec<GroupKey>,
    sets: Vec<Vec<usize>>,
}

/// Binds GROUP BY: all its expressions, and the sets of GROUPING SETS, ROLLUP and CUBE.
fn bind_grouped(select: &ast::Select, scope: &Scope<'_>) -> Result<GroupedBy> {
    let ast::GroupByExpr::Expressions(by, modifiers) = &select.group_by else {
        return Err(SqlError::unsupported("GROUP BY ALL"));
    };
    refuse(!modifiers.is_empty(), "this form of GROUP BY")?;
    let mut grouped = GroupedBy { keys: Vec::new(), sets: vec![Vec::new()] };
    let mut key = |expr: &ast::Expr| -> Result<usize> {
        let original = position(expr, &select.projection, scope)?.unwrap_or(expr);
        if let Some(known) = grouped.keys.iter().position(|key| key.original == *original) {
            return Ok(known);
        }
        let (expr, of) = scope.bind(original)?;
        grouped.keys.push(GroupKey { original: original.clone(), expr, of });
        Ok(grouped.keys.len() - 1)
    };
    for expr in by {
        let mut keys = |all: &[Vec<ast::Expr>]| -> Result<Vec<Vec<usize>>> {
            all.iter().map(|set| set.iter().map(&mut key).collect()).collect()
        };
        let added: Vec<Vec<usize>> = match expr {
            ast::Expr::GroupingSets(all) => keys(all)?,
            ast::Expr::Rollup(all) => {
                let all = keys(all)?;
                (0..=all.len()).rev().map(|count| all[..count].concat()).collect()
            }
            ast::Expr::Cube(all) => {
                let all = keys(all)?;
                refuse(all.len() > 12, "CUBE with more than 12 elements")?;
                let count = all.len();
                let of_set = |set: usize| -> Vec<usize> {
                    let chosen = (0..count).filter(|at| set >> (count - 1 - at) & 1 == 0);
                    chosen.flat_map(|at| all[at].clone()).collect()
                };
                (0..1usize << count).map(of_set).collect()
            }
            // The empty set.
            ast::Expr::Tuple(all) if all.is_empty() => vec![Vec::new()],
            ast::Expr::Tuple(all) => keys(std::slice::from_ref(all))?,
            plain => vec![vec![key(plain)?]],
        };
        let both = |one: &Vec<usize>| {
            let one = one.clone();
            added.iter().map(move |other| [&one[..], other].concat()).collect::<Vec<_>>()
        };
        grouped.sets = grouped.sets.iter().flat_map(both).collect();
        refuse(grouped.sets.len() > 4096, "GROUP BY with more than 4,096 sets")?;
    }
    Ok(grouped)
}

/// Binds SELECT, with the order and limits of `query`.
pub(crate) fn bind(query: Option<&ast::Query>, select: &ast::Select, around: Around<'_>) -> Result<Select> {
    query.map_or(Ok(()), check_query)?;
    check_select(select)?;
    let mut from = from::bind(&select.from, around)?;
    let calls = Calls::new(&select.named_window);
    let mut columns = std::mem::take(&mut from.columns);
    let mut conditions = from.conditions;
    if let Some(condition) = &select.selection {
        from::conjuncts(around.scope(&columns).condition(condition, "WHERE")?, &mut conditions);
    }
    let mut sources = from.sources;
    let mut conditions = divide(conditions, &sources);
    order(&mut sources, &mut columns, &mut conditions, around.parameters);
    let constant = place(&mut sources, conditions);
    keep_chosen(&mut sources);
    filter_early(&mut sources);
    let rows = around.scope(&columns);
    let width = sources.iter().map(|source| source.width).sum();

    let GroupedBy { keys, sets } = bind_grouped(select, &rows)?;
    let grouping = Grouping::new(&keys, &sources, sets.len() == 1);
    let scope = Scope { calls: Some(&calls), ..rows };
    let is_aggregate = |error: &SqlError| error.code == code::GROUPING_ERROR;
    let is_wildcard = |item: &ast::SelectItem| matches!(item, ast::SelectItem::Wildcard(_));
    if select.from.is_empty() && select.projection.iter().any(is_wildcard) {
        fail!(SYNTAX_ERROR, "SELECT * with no tables specified is not valid");
    }
    let first = bind_items(&scope, &select.projection);
    let has_groups = !keys.is_empty()
        || matches!(&select.group_by, ast::GroupByExpr::Expressions(by, _) if !by.is_empty())
        || select.having.is_some()
        || first.as_ref().is_err_and(is_aggregate)
        || query.is_some_and(|query| orders_by_aggregate(query, &scope));
    let scope = if has_groups { Scope { grouping: Some(&grouping), ..scope } } else { scope };
    let (output, result, originals) = match has_groups {
        false => first?,
        true => {
            calls.clear();
            bind_items(&scope, &select.projection)?
        }
    };
    let plain = Scope { calls: None, ..scope };
    let having = select.having.as_ref().map(|having| plain.condition(having, "HAVING")).transpose()?;

    let mut bound = Select { output, constant, width, ..Select::of(sources, result) };
    match &select.distinct {
        None | Some(ast::Distinct::All) => {}
        Some(ast::Distinct::Distinct) => bound.is_distinct = true,
        Some(ast::Distinct::On(all)) => {
            for expr in all {
                let by = match result_column(expr, &bound.output, &bound.columns, &originals).at(expr)? {
                    Some(at) => bound.output[at].clone(),
                    None => scope.bind(expr)?.0,
                };
                bound.distinct_on.push(by);
            }
        }
    }
    if let Some(query) = query {
        bind_order(&mut bound, query, &scope, &originals)?;
        bind_limit(&mut bound, query, around)?;
    }
    check_distinct_on(&bound)?;
    if has_groups {
        let aggregates = grouping.take();
        bound.width = keys.len() + aggregates.len();
        let of_set = |set: &Vec<usize>| (0..keys.len()).map(|key| set.contains(&key)).collect();
        let is_one = sets.len() == 1 && keys.is_empty();
        let sets = sets.iter().map(of_set).collect();
        let by = keys.iter().map(|key| key.expr.clone()).collect();
        bound.groups = Some(Groups { by, sets, aggregates, having, is_one, is_first: false });
    }
    (bound.windows, bound.sets) = calls.take();
    move_calls(&mut bound);
    if let Some(query) = query {
        bind_locks(&mut bound, query, scope.columns, around.parameters)?;
    }
    order_by_path(&mut bound);
    read_less(&mut bound);
    Ok(bound)
}

/// Returns whether the order of a query has aggregates, which make groups of its rows.
fn orders_by_aggregate(query: &ast::Query, scope: &Scope<'_>) -> bool {
    let Some(ast::OrderBy { kind: ast::OrderByKind::Expressions(keys), .. }) = &query.order_by else {
        return false;
    };
    let is_aggregate = |error: &SqlError| error.code == code::GROUPING_ERROR;
    keys.iter().any(|key| scope.bind(&key.expr).is_err_and(|error| is_aggregate(&error)))
}

/// DISTINCT ON must be about the first keys of the order.
fn check_distinct_on(select: &Select) -> Result<()> {
    let of = |expr: &Expr| format!("{expr:?}");
    let wanted: Vec<String> = select.distinct_on.iter().map(of).collect();
    let keys = select.order.iter().take(wanted.len());
    if keys.clone().all(|key| wanted.contains(&of(&key.by))) {
        return Ok(());
    }
    Err(error!(
        INVALID_COLUMN_REFERENCE,
        "SELECT DISTINCT ON expressions must match initial ORDER BY expressions"
    ))
}

/// Gives the values of window functions and of functions that return rows their places.
fn move_calls(select: &mut Select) {
    if select.windows.is_empty() && select.sets.is_empty() {
        return;
    }
    let (width, windows) = (select.width, select.windows.len());
    let to = |column: usize| match column.checked_sub(Calls::WINDOWS) {
        None => column,
        Some(at) => match at.checked_sub(Calls::SETS - Calls::WINDOWS) {
            None => width + at,
            Some(at) => width + windows + at,
        },
    };
    let order = select.order.iter_mut().map(|key| &mut key.by);
    let calls = select.sets.iter_mut().flat_map(|call| &mut call.arguments);
    let exprs = select.output.iter_mut().chain(&mut select.distinct_on).chain(order).chain(calls);
    exprs.for_each(|expr| expr.move_columns(&to));
}

/// Lets the rows of the only table come in the order of the query, if a path leads so.
fn order_by_path(select: &mut Select) {
    let is_distinct = select.is_distinct || !select.distinct_on.is_empty();
    let has_calls = !select.windows.is_empty() || !select.sets.is_empty() || select.with_ties;
    let Select { sources, groups, order, limit, has_locks, .. } = select;
    let [source] = &mut sources[..] else { return };
    let needs_first = limit.is_some() && !*has_locks && !is_distinct && !has_calls;
    match groups {
        None if has_calls => {}
        None => {
            if let Some((columns, is_backward)) = path_order(order)
                && order_path(source, &columns, is_backward, needs_first)
            {
                order.clear();
            }
        }
        Some(Groups { by, aggregates, is_first, .. }) if by.is_empty() => {
            if let [Aggregate { kind, arguments, filter: None, .. }] = &aggregates[..]
                && let [Expr::Column(column)] = arguments[..]
                && matches!(kind, AggregateKind::Least | AggregateKind::Greatest)
            {
                *is_first = order_path(source, &[column], *kind == AggregateKind::Greatest, true);
                let path = &mut source.path;
                path.skips_null = *is_first && path.columns.get(path.prefix.len()) == Some(&column);
            }
        }
        Some(_) => {}
    }
}

fn number(expr: &ast::Expr) -> Option<usize> {
    match expr {
        ast::Expr::Value(ast::ValueWithSpan { value: ast::Value::Number(text, _), .. }) => text.parse().ok(),
        _ => None,
    }
}

/// Returns the item that a number or an alias in GROUP BY means.
fn position<'a>(
    expr: &ast::Expr,
    items: &'a [ast::SelectItem],
    scope: &Scope<'_>,
) -> Result<Option<&'a ast::Expr>> {
    let expr_of = |item: &'a ast::SelectItem| match item {
        ast::SelectItem::UnnamedExpr(expr) | ast::SelectItem::ExprWithAlias { expr, .. } => Some(expr),
        _ => None,
    };
    if let Some(at) = number(expr) {
        let message = format!("GROUP BY position {at} is not in select list");
        let item = at.checked_sub(1).and_then(|at| items.get(at)).and_then(expr_of);
        return item.map(Some).ok_or_else(|| SqlError::new(code::INVALID_COLUMN_REFERENCE, message)).at(expr);
    }
    let ast::Expr::Identifier(name) = expr else { return Ok(None) };
    // A column of the rows goes before a name of the result.
    if scope.columns.iter().any(|column| column.name == folded(name) && !column.is_hidden) {
        return Ok(None);
    }
    Ok(items.iter().find_map(|item| match item {
        ast::SelectItem::ExprWithAlias { expr, alias } if folded(alias) == folded(name) => Some(expr),
        _ => None,
    }))
}
