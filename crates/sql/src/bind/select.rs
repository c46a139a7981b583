//! Queries: what they read, in which way, and what they return.

use std::{cell::RefCell, rc::Rc};

use plexus_store::RowLock;
use sqlparser::ast::{self, SetExpr};

use super::{Aggregate, AggregateKind, Grouping, Parameters, Scope, ScopeColumn, Typed, coerce};
use crate::{
    catalog::{Table, undefined},
    error::{Result, SqlError, code},
    expr::{Comparison, Expr},
    parse::{WEAKER_LOCK, folded, relation},
    spool::Direction,
    types::Type,
};

/// A column of a result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ResultColumn {
    pub(crate) name: String,
    pub(crate) of: Type,
}

/// The locks that a query takes on its rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Locking {
    pub(crate) strength: RowLock,
    pub(crate) busy: Busy,
}

/// The way to lock a row that another transaction has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Busy {
    /// It is waited for.
    Waits,
    /// The statement fails.
    Fails,
    /// The row is left out.
    Skips,
}

/// A query that is ready to run.
#[derive(Debug)]
pub(crate) struct Select {
    pub(crate) sources: Vec<Source>,
    /// Conditions without columns.
    pub(crate) constant: Vec<Expr>,
    pub(crate) groups: Option<Groups>,
    pub(crate) output: Vec<Expr>,
    pub(crate) columns: Vec<ResultColumn>,
    pub(crate) order: Vec<OrderKey>,
    pub(crate) is_distinct: bool,
    pub(crate) limit: Option<Expr>,
    pub(crate) offset: Option<Expr>,
    /// Rows are locked until the end of the transaction.
    pub(crate) locks: Option<Locking>,
}

#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) by: Vec<Expr>,
    pub(crate) aggregates: Vec<Aggregate>,
    pub(crate) having: Option<Expr>,
    /// Without GROUP BY there is one group, also of no rows.
    pub(crate) is_one: bool,
    /// The first value that is not NULL is the result: the rows are in its order.
    pub(crate) is_first: bool,
}

#[derive(Debug)]
pub(crate) struct OrderKey {
    pub(crate) by: Expr,
    pub(crate) direction: Direction,
}

/// A table of a query. Its columns follow those of the sources before it in rows.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) table: Rc<Table>,
    pub(crate) path: Path,
    /// Conditions of rows that have the columns up to this source.
    pub(crate) conditions: Vec<Expr>,
    /// For a left join: conditions without which the row has NULL here.
    pub(crate) outer: Option<Vec<Expr>>,
}

/// The way to the rows of a table.
#[derive(Debug, Default)]
pub(crate) struct Path {
    /// The index; `None`: the order of the rows themselves.
    pub(crate) index: Option<usize>,
    /// The values of the first columns of the key.
    pub(crate) prefix: Vec<Expr>,
    /// The bounds of the next column; true if the value itself belongs to it.
    pub(crate) lower: Option<(Expr, bool)>,
    pub(crate) upper: Option<(Expr, bool)>,
    /// The columns of the key.
    pub(crate) columns: Vec<usize>,
    /// The rows come from the last one to the first one.
    pub(crate) is_backward: bool,
    /// It leads to no row with NULL in the column behind the equal ones.
    pub(crate) skips_null: bool,
}

impl Path {
    /// Returns true if it leads to at most one row, by its primary key.
    pub(crate) fn is_point(&self, table: &Table) -> bool {
        self.index.is_none()
            && table.primary.as_ref().is_some_and(|primary| primary.columns.len() == self.prefix.len())
    }

    /// Returns true if it leads to rows in the order of these columns, those with equal values in
    /// any order.
    fn orders(&self, wanted: &[usize]) -> bool {
        let (equal, rest) = self.columns.split_at(self.prefix.len());
        let mut rest = rest.iter();
        wanted.iter().all(|column| equal.contains(column) || rest.next() == Some(column))
    }

    /// Returns true if it does not depend on sources before it.
    pub(crate) fn is_constant(&self) -> bool {
        let mut is_constant = true;
        let bounds = [&self.lower, &self.upper].into_iter().flatten().map(|(bound, _)| bound);
        self.prefix.iter().chain(bounds).for_each(|expr| expr.columns(&mut |_| is_constant = false));
        is_constant
    }
}

/// Refuses a part of a statement that is there.
pub(crate) fn refuse(is_there: bool, what: &str) -> Result<()> {
    if is_there { Err(SqlError::unsupported(what)) } else { Ok(()) }
}

/// Returns the names of the tables that a query reads.
pub(crate) fn tables_of(query: &ast::Query) -> Result<Vec<String>> {
    match &*query.body {
        SetExpr::Select(select) => from_tables(&select.from),
        _ => Ok(Vec::new()),
    }
}

pub(crate) fn from_tables(from: &[ast::TableWithJoins]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for table in from {
        names.push(factor(&table.relation)?.0);
        for join in &table.joins {
            names.push(factor(&join.relation)?.0);
        }
    }
    Ok(names)
}

/// Returns the name of a table in FROM, and its alias.
fn factor(factor: &ast::TableFactor) -> Result<(String, String)> {
    let ast::TableFactor::Table {
        name,
        alias,
        args: None,
        with_hints,
        version: None,
        with_ordinality: false,
        partitions,
        json_path: None,
        sample: None,
        index_directives,
        inheritance: None,
    } = factor
    else {
        return Err(SqlError::unsupported(format!("{factor} in FROM")));
    };
    refuse(
        !with_hints.is_empty() || !partitions.is_empty() || !index_directives.is_empty(),
        "this FROM clause",
    )?;
    let name = relation(name)?;
    let alias = match alias {
        None => name.clone(),
        Some(ast::TableAlias { name, columns, .. }) => {
            refuse(!columns.is_empty(), "an alias with columns")?;
            folded(name)
        }
    };
    Ok((name, alias))
}

/// The tables of FROM, their columns, and the conditions of their joins.
#[derive(Default)]
struct From {
    tables: Vec<(Rc<Table>, usize)>,
    columns: Vec<ScopeColumn>,
    /// Conditions of inner joins.
    conditions: Vec<ast::Expr>,
    /// For each table: the condition of its left join.
    outer: Vec<Option<ast::Expr>>,
}

impl From {
    fn add(&mut self, tables: &[Rc<Table>], of: &ast::TableFactor, outer: Option<ast::Expr>) -> Result<()> {
        let (name, alias) = factor(of)?;
        let table = tables.iter().find(|table| table.name == name).ok_or_else(|| undefined(&name))?;
        if self.columns.iter().any(|column| column.table == alias) {
            let message = format!("table name \"{alias}\" specified more than once");
            return Err(SqlError::new(code::DUPLICATE_ALIAS, message));
        }
        self.tables.push((table.clone(), self.columns.len()));
        self.outer.push(outer);
        self.columns.extend(scope_of(table, &alias));
        Ok(())
    }
}

/// Returns the columns of a table under an alias.
pub(crate) fn scope_of(table: &Table, alias: &str) -> Vec<ScopeColumn> {
    let scoped = table.columns.iter().map(|column| ScopeColumn {
        table: alias.to_owned(),
        name: column.name.clone(),
        of: column.of,
    });
    scoped.collect()
}

fn bind_from(tables: &[Rc<Table>], from: &[ast::TableWithJoins]) -> Result<From> {
    use ast::{JoinConstraint as C, JoinOperator as J};
    let mut bound = From::default();
    for ast::TableWithJoins { relation, joins } in from {
        bound.add(tables, relation, None)?;
        for join in joins {
            match &join.join_operator {
                J::CrossJoin(C::None) => bound.add(tables, &join.relation, None)?,
                J::Join(C::On(on)) | J::Inner(C::On(on)) => {
                    bound.add(tables, &join.relation, None)?;
                    bound.conditions.push(on.clone());
                }
                J::Left(C::On(on)) | J::LeftOuter(C::On(on)) => {
                    bound.add(tables, &join.relation, Some(on.clone()))?;
                }
                _ => return Err(SqlError::unsupported(format!("the join {join}"))),
            }
        }
    }
    Ok(bound)
}

/// Splits a condition at its ANDs.
fn conjuncts(expr: Expr, into: &mut Vec<Expr>) {
    match expr {
        Expr::And(all) => all.into_iter().for_each(|one| conjuncts(one, into)),
        one => into.push(one),
    }
}

/// Returns the number of sources that a condition needs.
fn needs(expr: &Expr, offsets: &[usize]) -> usize {
    let mut last = None;
    expr.columns(&mut |column| last = last.max(Some(column)));
    last.map_or(0, |column| offsets.iter().filter(|offset| **offset <= column).count())
}

/// A condition `column comparison value`, where the value needs only the sources before.
struct Bound {
    column: usize,
    comparison: Comparison,
    value: Expr,
}

fn bound_of(expr: &Expr, offset: usize, table: &Table) -> Option<Bound> {
    let Expr::Compare(comparison, one, other) = expr else { return None };
    // Integers of all lengths have the same keys.
    let column = |expr: &Expr| match expr {
        Expr::Column(column) => Some(*column),
        Expr::Cast { value, from, to, .. } if from.is_integer() && to.is_integer() => match **value {
            Expr::Column(column) => Some(column),
            _ => None,
        },
        _ => None,
    };
    let own = |column: &usize| (offset..offset + table.columns.len()).contains(column);
    let is_earlier = |expr: &Expr| {
        let mut is_earlier = true;
        expr.columns(&mut |column| is_earlier &= column < offset);
        is_earlier
    };
    let sides = [(one, *comparison, other), (other, comparison.exchanged(), one)];
    sides.into_iter().find_map(|(side, comparison, value)| {
        let column = column(side).filter(own).filter(|_| is_earlier(value))?;
        Some(Bound { column: column - offset, comparison, value: (**value).clone() })
    })
}

/// Chooses the way to a table's rows for conditions that are needed for each of them.
pub(crate) fn choose_path(table: &Table, offset: usize, conditions: &[Expr]) -> Path {
    let bounds: Vec<Bound> = conditions.iter().filter_map(|expr| bound_of(expr, offset, table)).collect();
    let path_of = |index: Option<usize>, columns: &[usize]| {
        let equal = |column: &usize| {
            bounds.iter().find(|bound| bound.column == *column && bound.comparison == Comparison::Equal)
        };
        let prefix: Vec<Expr> = columns.iter().map_while(equal).map(|bound| bound.value.clone()).collect();
        let find = |open, closed| {
            let column = columns.get(prefix.len())?;
            let is_it = |bound: &&Bound| {
                bound.column == *column && (bound.comparison == open || bound.comparison == closed)
            };
            bounds.iter().find(is_it).map(|bound| (bound.value.clone(), bound.comparison == closed))
        };
        let lower = find(Comparison::Greater, Comparison::GreaterOrEqual);
        let upper = find(Comparison::Less, Comparison::LessOrEqual);
        Path { index, prefix, lower, upper, columns: columns.to_vec(), ..Path::default() }
    };
    // The most equal columns, then a range, then the rows themselves.
    let worth = |path: &Path| {
        let ranges = usize::from(path.lower.is_some()) + usize::from(path.upper.is_some());
        let columns = path.index.map_or(0, |index| usize::from(table.indexes[index].is_unique));
        (path.prefix.len(), ranges, path.index.is_none(), columns)
    };
    let primary = table.primary.as_ref().map(|primary| path_of(None, &primary.columns));
    let indexes = table.indexes.iter().enumerate().map(|(at, index)| path_of(Some(at), &index.columns));
    let useful = |path: &Path| !path.prefix.is_empty() || path.lower.is_some() || path.upper.is_some();
    primary.into_iter().chain(indexes).filter(useful).max_by_key(worth).unwrap_or_default()
}

/// Lets a table's rows come in the order of columns, if its path or an index allows that. Another
/// path than that of the conditions is for queries that need only the first rows.
fn order_path(source: &mut Source, wanted: &[usize], is_backward: bool, needs_first: bool) -> bool {
    let table = &source.table;
    if !source.path.orders(wanted) {
        let is_free =
            source.path.prefix.is_empty() && source.path.lower.is_none() && source.path.upper.is_none();
        let path = |index: Option<usize>, columns: &[usize]| Path {
            index,
            columns: columns.to_vec(),
            ..Path::default()
        };
        let primary = table.primary.iter().map(|primary| path(None, &primary.columns));
        let indexes = table.indexes.iter().enumerate().map(|(at, index)| path(Some(at), &index.columns));
        let mut paths = primary.chain(indexes.filter(|_| needs_first)).filter(|path| path.orders(wanted));
        match paths.next().filter(|_| is_free) {
            Some(path) => source.path = path,
            None => return false,
        }
    }
    source.path.is_backward = is_backward;
    true
}

/// Returns the columns of an order in which one path can lead to rows, and whether it leads
/// backward.
fn path_order(order: &[OrderKey]) -> Option<(Vec<usize>, bool)> {
    let is_backward = order.first()?.direction.is_descending;
    // NULL is the highest value of a key.
    let direction = Direction { is_descending: is_backward, nulls_first: is_backward };
    let column = |key: &OrderKey| match key.by {
        Expr::Column(column) if key.direction == direction => Some(column),
        _ => None,
    };
    Some((order.iter().map(column).collect::<Option<_>>()?, is_backward))
}

/// Returns the source of a statement that changes rows of one table.
pub(crate) fn single_source(table: &Rc<Table>, condition: Option<Expr>) -> Source {
    let mut conditions = Vec::new();
    condition.into_iter().for_each(|condition| conjuncts(condition, &mut conditions));
    let path = choose_path(table, 0, &conditions);
    Source { table: table.clone(), path, conditions, outer: None }
}

/// Distributes conditions over sources.
fn place(from: &From, scope: &Scope<'_>, mut conditions: Vec<Expr>) -> Result<(Vec<Source>, Vec<Expr>)> {
    let offsets: Vec<usize> = from.tables.iter().map(|(_, offset)| *offset).collect();
    let constant = conditions.extract_if(.., |expr| needs(expr, &offsets) == 0).collect();
    let mut sources = Vec::new();
    for (at, (table, offset)) in from.tables.iter().enumerate() {
        let here: Vec<Expr> = conditions.extract_if(.., |expr| needs(expr, &offsets) <= at + 1).collect();
        let outer = match &from.outer[at] {
            None => None,
            Some(on) => {
                let mut parts = Vec::new();
                conjuncts(scope.condition(on, "JOIN/ON")?, &mut parts);
                if parts.iter().any(|part| needs(part, &offsets) > at + 1) {
                    return Err(SqlError::unsupported("a join condition about later tables"));
                }
                Some(parts)
            }
        };
        let path = choose_path(table, *offset, outer.as_ref().unwrap_or(&here));
        sources.push(Source { table: table.clone(), path, conditions: here, outer });
    }
    Ok((sources, constant))
}

/// Returns the name of a result column without alias.
fn name_of(expr: &ast::Expr) -> String {
    found_name(expr).map_or("?column?".into(), |(name, _)| name)
}

/// Returns the name that an expression gives to its column; false if a type or a form gives it, so
/// that an outer one counts (PostgreSQL's `FigureColname`).
fn found_name(expr: &ast::Expr) -> Option<(String, bool)> {
    use ast::Expr as E;
    let of_type = |of: &ast::DataType| {
        let of = super::type_of(of).ok()?;
        // An array is named as its elements are.
        let name = match if let Type::Array(element) = of { *element } else { of } {
            Type::Int2 => "int2",
            Type::Int4 => "int4",
            Type::Int8 => "int8",
            Type::Bool => "bool",
            Type::Float4 => "float4",
            Type::Float8 => "float8",
            Type::Varchar(_) => "varchar",
            Type::Char(_) => "bpchar",
            Type::Timestamp => "timestamp",
            Type::TimestampTz => "timestamptz",
            Type::TimeOfDay => "time",
            Type::TimeTz => "timetz",
            Type::OneByte => "char",
            other => other.name(),
        };
        Some((name.to_owned(), false))
    };
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
        E::Substring { shorthand, .. } => {
            Some((if *shorthand { "substr" } else { "substring" }.into(), true))
        }
        _ => None,
    }
}

/// Binds the items of SELECT or RETURNING.
pub(crate) fn bind_items(
    scope: &Scope<'_>,
    items: &[ast::SelectItem],
) -> Result<(Vec<Expr>, Vec<ResultColumn>, Vec<Option<ast::Expr>>)> {
    let (mut output, mut columns, mut originals) = (Vec::new(), Vec::new(), Vec::new());
    let mut add = |(expr, of): Typed, name: String, original: Option<&ast::Expr>| -> Result<()> {
        let of = if of == Type::Unknown { Type::Text } else { of };
        let expr = if matches!(expr, Expr::Parameter(_)) {
            coerce((expr, Type::Unknown), of, scope.parameters, false)?
        } else {
            expr
        };
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
                if scope.columns.is_empty() {
                    let message = "SELECT * with no tables specified is not valid";
                    return Err(SqlError::new(code::SYNTAX_ERROR, message));
                }
                for column in scope.columns {
                    let name = ast::Expr::CompoundIdentifier(vec![
                        ast::Ident::with_quote('"', &column.table),
                        ast::Ident::with_quote('"', &column.name),
                    ]);
                    add(scope.bind(&name)?, column.name.clone(), None)?;
                }
            }
            ast::SelectItem::QualifiedWildcard(
                ast::SelectItemQualifiedWildcardKind::ObjectName(name),
                options,
            ) if *options == plain => {
                let table = relation(name)?;
                let mut is_there = false;
                for column in scope.columns.iter().filter(|column| column.table == table) {
                    is_there = true;
                    let name = ast::Expr::CompoundIdentifier(vec![
                        ast::Ident::with_quote('"', &column.table),
                        ast::Ident::with_quote('"', &column.name),
                    ]);
                    add(scope.bind(&name)?, column.name.clone(), None)?;
                }
                if !is_there {
                    let message = format!("missing FROM-clause entry for table \"{table}\"");
                    return Err(SqlError::new(code::UNDEFINED_TABLE, message));
                }
            }
            other => return Err(SqlError::unsupported(format!("the item {other}"))),
        }
    }
    Ok((output, columns, originals))
}

/// Refuses all clauses of a query that are not handled here, by comparison with one that has none.
fn check_clauses(query: &ast::Query, select: &ast::Select) -> Result<()> {
    let mut rest = select.clone();
    rest.projection.clear();
    rest.from.clear();
    rest.selection = None;
    rest.having = None;
    rest.group_by = ast::GroupByExpr::Expressions(Vec::new(), Vec::new());
    rest.distinct = rest.distinct.filter(|distinct| !matches!(distinct, ast::Distinct::Distinct));
    let ast::Query {
        with: None,
        body: _,
        order_by: _,
        limit_clause: _,
        fetch: None,
        locks: _,
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators,
    } = query
    else {
        return Err(SqlError::unsupported("a query with WITH, FETCH or FOR"));
    };
    refuse(!pipe_operators.is_empty(), "a query with pipes")?;
    let text = rest.to_string();
    refuse(text.trim() != "SELECT", &format!("the query clause {}", text.trim_start_matches("SELECT").trim()))
}

/// Binds a query over these tables.
pub(crate) fn bind(query: &ast::Query, tables: &[Rc<Table>], parameters: &Parameters) -> Result<Select> {
    let SetExpr::Select(select) = &*query.body else {
        return Err(SqlError::unsupported("a query that is not a plain SELECT"));
    };
    check_clauses(query, select)?;
    let from = bind_from(tables, &select.from)?;
    let scope = Scope { columns: &from.columns, parameters, grouping: None };
    let mut conditions = Vec::new();
    for on in &from.conditions {
        conjuncts(scope.condition(on, "JOIN/ON")?, &mut conditions);
    }
    if let Some(condition) = &select.selection {
        conjuncts(scope.condition(condition, "WHERE")?, &mut conditions);
    }
    let (mut sources, constant) = place(&from, &scope, conditions)?;

    // Groups.
    let ast::GroupByExpr::Expressions(by, modifiers) = &select.group_by else {
        return Err(SqlError::unsupported("GROUP BY ALL"));
    };
    refuse(!modifiers.is_empty(), "this form of GROUP BY")?;
    let mut grouped = Vec::new();
    let mut keys = Vec::new();
    for expr in by {
        let expr = position(expr, &select.projection)?.unwrap_or(expr);
        let (bound, of) = scope.bind(expr)?;
        keys.push(bound);
        grouped.push((expr.clone(), of));
    }
    let grouping = Grouping { by: &grouped, aggregates: RefCell::default() };
    let is_aggregate = |error: &SqlError| error.code == code::GROUPING_ERROR;
    let has_groups = !by.is_empty()
        || select.having.is_some()
        || bind_items(&scope, &select.projection).is_err_and(|error| is_aggregate(&error));
    let scope = if has_groups { Scope { grouping: Some(&grouping), ..scope } } else { scope };
    let (output, columns, originals) = bind_items(&scope, &select.projection)?;
    let having = select.having.as_ref().map(|having| scope.condition(having, "HAVING")).transpose()?;

    let is_distinct = select.distinct.is_some();
    let mut order = Vec::new();
    let keys_of = match &query.order_by {
        None => &[][..],
        Some(ast::OrderBy { kind: ast::OrderByKind::Expressions(keys), interpolate: None }) => &keys[..],
        Some(other) => return Err(SqlError::unsupported(other)),
    };
    for key in keys_of {
        refuse(key.with_fill.is_some(), "WITH FILL")?;
        // A name of the result, a position, or an expression of the rows.
        let named = match &key.expr {
            ast::Expr::Identifier(name) => columns.iter().position(|column| column.name == folded(name)),
            _ => None,
        };
        let is_same =
            |one: usize, other: usize| format!("{:?}", output[one]) == format!("{:?}", output[other]);
        let is_named = |one: usize, other: usize| columns[one].name == columns[other].name;
        if let Some(at) = named
            && (at + 1..columns.len()).any(|other| is_named(at, other) && !is_same(at, other))
        {
            let message = format!("ORDER BY \"{}\" is ambiguous", columns[at].name);
            return Err(SqlError::new(code::AMBIGUOUS_COLUMN, message));
        }
        let at = match named {
            Some(at) => Some(at),
            None => match number(&key.expr) {
                Some(at) if (1..=output.len()).contains(&at) => Some(at - 1),
                Some(at) => {
                    let message = format!("ORDER BY position {at} is not in select list");
                    return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message));
                }
                None => originals.iter().position(|original| original.as_ref() == Some(&key.expr)),
            },
        };
        let by = match at {
            Some(at) => output[at].clone(),
            None if is_distinct => {
                let message = "for SELECT DISTINCT, ORDER BY expressions must appear in select list";
                return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message));
            }
            None => scope.bind(&key.expr)?.0,
        };
        let is_descending = match &key.options.sort {
            None | Some(ast::OrderBySort::Asc) => false,
            Some(ast::OrderBySort::Desc) => true,
            Some(_) => return Err(SqlError::unsupported("ORDER BY USING")),
        };
        let nulls_first = key.options.nulls_first.unwrap_or(is_descending);
        order.push(OrderKey { by, direction: Direction { is_descending, nulls_first } });
    }
    let (mut limit, mut offset) = (None, None);
    let none = Scope { columns: &[], parameters, grouping: None };
    let count = |expr: &ast::Expr| coerce(none.bind(expr)?, Type::Int8, parameters, false);
    match &query.limit_clause {
        None => {}
        Some(ast::LimitClause::LimitOffset { limit: most, offset: first, limit_by }) => {
            refuse(!limit_by.is_empty(), "LIMIT BY")?;
            limit = most.as_ref().map(count).transpose()?;
            offset = first.as_ref().map(|first| count(&first.value)).transpose()?;
        }
        Some(ast::LimitClause::OffsetCommaLimit { .. }) => {
            return Err(SqlError::unsupported("LIMIT with a comma"));
        }
    }
    let mut locks: Option<Locking> = None;
    for lock in &query.locks {
        let is_weaker = lock.of.as_ref().is_some_and(|of| of.to_string() == format!("\"{WEAKER_LOCK}\""));
        let is_plain = (lock.of.is_none() || is_weaker) && !has_groups && !is_distinct && sources.len() == 1;
        refuse(!is_plain, &format!("the clause {lock}"))?;
        let strength = match (&lock.lock_type, is_weaker) {
            (ast::LockType::Update, false) => RowLock::Update,
            (ast::LockType::Update, true) => RowLock::NoKeyUpdate,
            (ast::LockType::Share, false) => RowLock::Share,
            (ast::LockType::Share, true) => RowLock::KeyShare,
        };
        let busy = match lock.nonblock {
            None => locks.map_or(Busy::Waits, |locks| locks.busy),
            Some(ast::NonBlock::Nowait) => Busy::Fails,
            Some(ast::NonBlock::SkipLocked) => Busy::Skips,
        };
        let strength = locks.map_or(strength, |locks| locks.strength.max(strength));
        locks = Some(Locking { strength, busy });
    }
    let groups = has_groups.then(|| {
        let aggregates =
            grouping.aggregates.borrow().iter().map(|(_, aggregate, _)| aggregate.clone()).collect();
        Groups { by: keys, aggregates, having, is_one: by.is_empty(), is_first: false }
    });
    let mut groups = groups;
    if let [source] = &mut sources[..] {
        let needs_first = limit.is_some() && locks.is_none() && !is_distinct;
        match &mut groups {
            None => {
                if let Some((columns, is_backward)) = path_order(&order)
                    && order_path(source, &columns, is_backward, needs_first)
                {
                    order.clear();
                }
            }
            Some(Groups { by, aggregates, is_first, .. }) if by.is_empty() => {
                if let [Aggregate { kind, of: Some(Expr::Column(column)), .. }] = aggregates[..]
                    && matches!(kind, AggregateKind::Least | AggregateKind::Greatest)
                {
                    *is_first = order_path(source, &[column], kind == AggregateKind::Greatest, true);
                    let path = &mut source.path;
                    path.skips_null = *is_first && path.columns.get(path.prefix.len()) == Some(&column);
                }
            }
            Some(_) => {}
        }
    }
    Ok(Select { sources, constant, groups, output, columns, order, is_distinct, limit, offset, locks })
}

fn number(expr: &ast::Expr) -> Option<usize> {
    match expr {
        ast::Expr::Value(ast::ValueWithSpan { value: ast::Value::Number(text, _), .. }) => text.parse().ok(),
        _ => None,
    }
}

/// Returns the item that a number or an alias in GROUP BY means.
fn position<'a>(expr: &ast::Expr, items: &'a [ast::SelectItem]) -> Result<Option<&'a ast::Expr>> {
    let expr_of = |item: &'a ast::SelectItem| match item {
        ast::SelectItem::UnnamedExpr(expr) | ast::SelectItem::ExprWithAlias { expr, .. } => Some(expr),
        _ => None,
    };
    if let Some(at) = number(expr) {
        let message = format!("GROUP BY position {at} is not in select list");
        let item = at.checked_sub(1).and_then(|at| items.get(at)).and_then(expr_of);
        return item.map(Some).ok_or_else(|| SqlError::new(code::INVALID_COLUMN_REFERENCE, message));
    }
    let ast::Expr::Identifier(name) = expr else { return Ok(None) };
    Ok(items.iter().find_map(|item| match item {
        ast::SelectItem::ExprWithAlias { expr, alias } if folded(alias) == folded(name) => Some(expr),
        _ => None,
    }))
}
