//! Queries: WITH, set operations, VALUES, and the queries in other ones.

use std::{cell::RefCell, rc::Rc};

use sqlparser::ast::{self, SetExpr};

use super::{
    Around, Parameters, Parent, Scope, ScopeColumn, coerce, common_type,
    from::{Relation, Source},
    keyed,
    select::{self, ResultColumn, Select, refuse},
};
use crate::{
    dml::{Change, bind_change, is_change},
    error::{Result, SqlError, code, fail},
    exec::query::{LEAST_STACK, MORE_STACK},
    expr::Expr,
    parse::folded,
    types::Type,
};

/// The deepest nesting of queries, those of views included.
const MOST_DEPTH: usize = 24;

/// The most queries that are bound for a statement: one with groups is bound twice.
const MOST_BOUND: usize = 4_000;

/// A query that is ready to run.
#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) body: QueryBody,
    /// The queries of its WITH.
    pub(crate) with: Vec<Rc<Shared>>,
    pub(crate) columns: Vec<ResultColumn>,
    /// The same query for all values that the query around it gives.
    pub(crate) keyed: Option<Box<Keyed>>,
}

impl Query {
    pub(super) fn new(body: QueryBody, columns: Vec<ResultColumn>) -> Self {
        Self { body, with: Vec::new(), columns, keyed: None }
    }

    pub(super) fn of(select: Select) -> Self {
        let columns = select.columns.clone();
        Self::new(QueryBody::Select(Box::new(select)), columns)
    }
}

/// A query whose rows are those of another one for all values of the query around it.
#[derive(Debug)]
pub(crate) struct Keyed {
    /// The query: its last columns are the key.
    pub(crate) query: Query,
    /// The query for values without any row, if it has one for these.
    pub(crate) none: Option<Query>,
    /// The values of the query around it that are equal to the key.
    pub(crate) key: Vec<Expr>,
}

#[derive(Debug)]
pub(crate) enum QueryBody {
    Select(Box<Select>),
    Set(Box<SetOperation>),
    Values(Vec<Vec<Expr>>),
    /// A change within WITH: the rows that it returns.
    Change(Box<Change>),
}

/// UNION, INTERSECT or EXCEPT.
#[derive(Debug)]
pub(crate) struct SetOperation {
    pub(crate) operator: ast::SetOperator,
    pub(crate) is_all: bool,
    /// The sides, each with expressions that give its rows the types of the result.
    pub(crate) left: (Query, Vec<Expr>),
    pub(crate) right: (Query, Vec<Expr>),
}

/// A query of WITH: its rows are found once, for all that name it.
#[derive(Debug)]
pub(crate) struct Shared {
    /// It is different for each in a statement.
    pub(crate) number: usize,
    pub(crate) query: Query,
    /// The values that it gets from the query around that of its WITH.
    pub(crate) outer: Vec<Expr>,
    /// The query for the rows that follow from others, and whether equal ones stay.
    pub(crate) recursive: Option<(Query, bool)>,
}

/// The names of WITH that a query may use.
pub(crate) struct With<'a> {
    shared: Vec<(String, Reference)>,
    around: Option<&'a With<'a>>,
}

/// A relation with the rows of a query of WITH.
#[derive(Clone)]
pub(crate) struct Reference {
    pub(crate) relation: Relation,
    pub(crate) columns: Vec<ResultColumn>,
}

impl With<'_> {
    pub(crate) fn find(&self, name: &str) -> Option<&Reference> {
        let own = self.shared.iter().rev().find(|(known, _)| known == name);
        own.map(|(_, found)| found).or_else(|| self.around.and_then(|around| around.find(name)))
    }
}

/// Binds a query in another one. Returns it with the expressions of `scope` whose values it gets.
pub(crate) fn bind_inner(query: &ast::Query, scope: Scope<'_>) -> Result<(Query, Vec<Expr>)> {
    let parent = Parent { scope, captured: RefCell::default() };
    let around = Around { parameters: scope.parameters, parent: Some(&parent), with: scope.with };
    let mut bound = bind(query, around)?;
    settle(&mut bound);
    bound.keyed = keyed::of(&bound, false);
    Ok((bound, parent.captured.into_inner().into_iter().map(|(expr, _)| expr).collect()))
}

/// Gives columns of literals the type that they have in PostgreSQL.
pub(crate) fn settle(query: &mut Query) {
    query.columns.iter_mut().filter(|column| column.of == Type::Unknown).for_each(|column| {
        column.of = Type::Text;
    });
}

/// Lets a query return names in the place of identifiers that are shown as names.
pub(crate) fn shown(query: Query, parameters: &Parameters) -> Result<Query> {
    if !query.columns.iter().any(|column| column.of.is_reg()) {
        return Ok(query);
    }
    let columns = query.columns.clone();
    let cast = |(at, column): (usize, &ResultColumn)| {
        let to = if column.of.is_reg() { Type::Text } else { column.of };
        coerce((Expr::Column(at), column.of), to, parameters, true)
    };
    let casts = columns.iter().enumerate().map(cast).collect::<Result<_>>()?;
    Ok(cast_rows(query, casts))
}

/// Binds a query.
pub(crate) fn bind(query: &ast::Query, around: Around<'_>) -> Result<Query> {
    let depth = &around.parameters.depth;
    let count = &around.parameters.queries;
    count.set(count.get() + 1);
    if depth.get() >= MOST_DEPTH || count.get() > MOST_BOUND {
        return Err(SqlError::new("54001", "stack depth limit exceeded"));
    }
    depth.set(depth.get() + 1);
    let bound = stacker::maybe_grow(LEAST_STACK, MORE_STACK, || bind_with(query, around));
    depth.set(depth.get() - 1);
    bound
}

fn bind_with(query: &ast::Query, around: Around<'_>) -> Result<Query> {
    let (mut bound, all) = bind_names(query.with.as_ref(), around, |around| bind_body(query, around))?;
    bound.with.splice(0..0, all);
    Ok(bound)
}

/// Binds the queries of WITH, and then what may name them.
pub(crate) fn bind_names<T>(
    with: Option<&ast::With>,
    around: Around<'_>,
    act: impl FnOnce(Around<'_>) -> Result<T>,
) -> Result<(T, Vec<Rc<Shared>>)> {
    let Some(with) = with else { return Ok((act(around)?, Vec::new())) };
    let (mut names, mut all) = (Vec::<(String, Reference)>::new(), Vec::new());
    for cte in &with.cte_tables {
        refuse(cte.from.is_some(), "this form of WITH")?;
        let name = folded(&cte.alias.name);
        if names.iter().any(|(known, _)| *known == name) {
            fail!("42712", "WITH query name \"{name}\" specified more than once");
        }
        let known = With { shared: names.clone(), around: around.with };
        let shared =
            Rc::new(bind_shared(cte, &name, with.recursive, Around { with: Some(&known), ..around })?);
        let columns = shared.query.columns.clone();
        all.push(shared.clone());
        names.push((name, Reference { relation: Relation::Shared(shared), columns }));
    }
    let known = With { shared: names, around: around.with };
    Ok((act(Around { with: Some(&known), ..around })?, all))
}

fn bind_shared(cte: &ast::Cte, name: &str, may_recur: bool, around: Around<'_>) -> Result<Shared> {
    let parameters = around.parameters;
    let number = parameters.next_shared.get();
    parameters.next_shared.set(number + 1);
    let is_inner = around.parent.is_some();
    let scope = around.scope(&[]);
    let parent = Parent { scope, captured: RefCell::default() };
    let around = Around { parent: Some(&parent), ..around };
    let aliases: Vec<String> = cte.alias.columns.iter().map(|column| folded(&column.name)).collect();
    let named = |query: &mut Query| -> Result<()> {
        settle(query);
        rename(&mut query.columns, &aliases, name)
    };
    let sides = match &*cte.query.body {
        SetExpr::SetOperation { left, op: ast::SetOperator::Union, set_quantifier, right }
            if may_recur && names_relation(right, name) =>
        {
            Some((left, is_all(*set_quantifier)?, right))
        }
        _ => None,
    };
    let (query, recursive) = match sides {
        None => {
            let mut query = match is_change(&cte.query) {
                false => bind(&cte.query, around)?,
                true => {
                    if parameters.views.get() > 0 || parameters.is_view {
                        fail!(
                            FEATURE_NOT_SUPPORTED,
                            "views must not contain data-modifying statements in WITH"
                        );
                    }
                    if parameters.depth.get() > 1 || is_inner {
                        fail!(
                            FEATURE_NOT_SUPPORTED,
                            "WITH clause containing a data-modifying statement must be at the top \
                                       level"
                        );
                    }
                    refuse(matches!(*cte.query.body, SetExpr::Merge(_)), "MERGE in a query of WITH")?;
                    let change = bind_change(&ast::Statement::Query(cte.query.clone()), around)?;
                    let columns = change.columns.clone();
                    Query::new(QueryBody::Change(Box::new(change)), columns)
                }
            };
            named(&mut query)?;
            (query, None)
        }
        Some((left, is_all, right)) => {
            let has_more = cte.query.order_by.is_some() || cte.query.limit_clause.is_some();
            refuse(has_more || cte.query.with.is_some(), "a recursive query with WITH, ORDER BY or LIMIT")?;
            let mut query = bind_side(left, around)?;
            named(&mut query)?;
            let reference = Reference { relation: Relation::Working(number), columns: query.columns.clone() };
            let known = With { shared: vec![(name.to_owned(), reference)], around: around.with };
            let mut next = bind_side(right, Around { with: Some(&known), ..around })?;
            check_count(query.columns.len(), next.columns.len())?;
            for (own, wanted) in next.columns.iter_mut().zip(&query.columns) {
                if own.of == Type::Unknown {
                    own.of = wanted.of;
                }
                let is_same = own.of.common(wanted.of) == Some(wanted.of);
                if !is_same {
                    fail!(
                        DATATYPE_MISMATCH,
                        "recursive query \"{name}\" column \"{}\" has type {} in non-recursive term but type {} overall",
                        wanted.name,
                        wanted.of.name(),
                        own.of.name()
                    );
                }
            }
            let casts = casts(&next.columns, &query.columns, parameters)?;
            (query, Some((cast_rows(next, casts), is_all)))
        }
    };
    let outer = parent.captured.into_inner().into_iter().map(|(expr, _)| expr).collect();
    Ok(Shared { number, query, outer, recursive })
}

/// Gives the rows of a query other types.
pub(super) fn cast_rows(query: Query, casts: Vec<Expr>) -> Query {
    let is_plain = |(at, expr): (usize, &Expr)| matches!(expr, Expr::Column(column) if *column == at);
    if casts.iter().enumerate().all(is_plain) {
        return query;
    }
    let columns = query.columns.clone();
    let source = Source::new(Relation::Query { query: Rc::new(query), outer: None }, 0, columns.len());
    Query::of(Select { output: casts, ..Select::of(vec![source], columns) })
}

/// Gives columns the names of an alias.
pub(crate) fn rename(columns: &mut [ResultColumn], aliases: &[String], of: &str) -> Result<()> {
    if aliases.len() > columns.len() {
        fail!(
            INVALID_COLUMN_REFERENCE,
            "table \"{of}\" has {} columns available but {} columns specified",
            columns.len(),
            aliases.len()
        );
    }
    columns.iter_mut().zip(aliases).for_each(|(column, alias)| column.name.clone_from(alias));
    Ok(())
}

/// Returns whether a part of a query names a relation in a FROM of its own.
fn names_relation(body: &SetExpr, name: &str) -> bool {
    fn in_from(from: &ast::TableWithJoins, name: &str) -> bool {
        let joined = from.joins.iter().map(|join| &join.relation);
        [&from.relation].into_iter().chain(joined).any(|factor| match factor {
            ast::TableFactor::Table { name: found, .. } => {
                matches!(&found.0[..], [part] if part.as_ident().map(folded).as_deref() == Some(name))
            }
            ast::TableFactor::Derived { subquery, .. } => names_relation(&subquery.body, name),
            ast::TableFactor::NestedJoin { table_with_joins, .. } => in_from(table_with_joins, name),
            _ => false,
        })
    }
    match body {
        SetExpr::Select(select) => select.from.iter().any(|from| in_from(from, name)),
        SetExpr::Query(query) => names_relation(&query.body, name),
        SetExpr::SetOperation { left, right, .. } => {
            names_relation(left, name) || names_relation(right, name)
        }
        _ => false,
    }
}

fn bind_body(query: &ast::Query, around: Around<'_>) -> Result<Query> {
    if let SetExpr::Select(select) = &*query.body {
        return select::bind(Some(query), select, around).map(Query::of);
    }
    let inner = bind_side(&query.body, around)?;
    let is_plain = query.order_by.is_none() && query.limit_clause.is_none() && query.fetch.is_none();
    select::check_query(query)?;
    refuse(!query.locks.is_empty(), "FOR UPDATE of this query")?;
    if is_plain {
        return Ok(inner);
    }
    // Its order is about the columns of the result.
    let columns = inner.columns.clone();
    let source = Source::new(Relation::Query { query: Rc::new(inner), outer: None }, 0, columns.len());
    let mut select = Select::of(vec![source], columns.clone());
    let scoped: Vec<ScopeColumn> =
        columns.iter().enumerate().map(|(at, column)| ScopeColumn::new("", column, at)).collect();
    let scope = around.scope(&scoped);
    select::bind_order(&mut select, query, &scope, &[])?;
    select::bind_limit(&mut select, query, around)?;
    Ok(Query::of(select))
}

/// Binds a side of a set operation.
fn bind_side(body: &SetExpr, around: Around<'_>) -> Result<Query> {
    around.parameters.deeper(|| bind_body_of(body, around))
}

fn bind_body_of(body: &SetExpr, around: Around<'_>) -> Result<Query> {
    match body {
        SetExpr::Select(select) => select::bind(None, select, around).map(Query::of),
        SetExpr::Query(query) => bind(query, around),
        SetExpr::Values(values) => bind_values(values, around),
        SetExpr::SetOperation { left, op, set_quantifier, right } => {
            let (left, right) = (bind_side(left, around)?, bind_side(right, around)?);
            bind_set(*op, is_all(*set_quantifier)?, left, right, around)
        }
        other => Err(SqlError::unsupported(format!("the query {other}"))),
    }
}

fn is_all(quantifier: ast::SetQuantifier) -> Result<bool> {
    match quantifier {
        ast::SetQuantifier::All => Ok(true),
        ast::SetQuantifier::None | ast::SetQuantifier::Distinct => Ok(false),
        other => Err(SqlError::unsupported(format!("a set operation {other}"))),
    }
}

fn check_count(left: usize, right: usize) -> Result<()> {
    if left == right {
        return Ok(());
    }
    Err(SqlError::new(code::SYNTAX_ERROR, "each UNION query must have the same number of columns"))
}

/// Returns expressions that convert rows from the types of columns to those of others.
fn casts(from: &[ResultColumn], to: &[ResultColumn], parameters: &Parameters) -> Result<Vec<Expr>> {
    let pairs = from.iter().zip(to).enumerate();
    pairs.map(|(at, (from, to))| coerce((Expr::Column(at), from.of), to.of, parameters, false)).collect()
}

fn bind_set(
    operator: ast::SetOperator,
    is_all: bool,
    left: Query,
    right: Query,
    around: Around<'_>,
) -> Result<Query> {
    check_count(left.columns.len(), right.columns.len())?;
    let mut columns = left.columns.clone();
    for (column, other) in columns.iter_mut().zip(&right.columns) {
        column.of = common(&[column.of, other.of], &operator.to_string())?;
    }
    let side = |query: Query| -> Result<(Query, Vec<Expr>)> {
        let casts = casts(&query.columns, &columns, around.parameters)?;
        Ok((query, casts))
    };
    let set = SetOperation { operator, is_all, left: side(left)?, right: side(right)? };
    Ok(Query::new(QueryBody::Set(Box::new(set)), columns))
}

/// Returns the type of a column of several rows; that of one row stays open.
fn common(types: &[Type], what: &str) -> Result<Type> {
    let common = common_type(types, what)?;
    Ok(if common == Type::Unknown && types.len() > 1 { Type::Text } else { common })
}

/// Refuses a list of VALUES that has another length than the first one.
pub(crate) fn check_length(length: usize, first: usize) -> Result<()> {
    match length == first {
        true => Ok(()),
        false => Err(SqlError::new(code::SYNTAX_ERROR, "VALUES lists must all be the same length")),
    }
}

fn bind_values(values: &ast::Values, around: Around<'_>) -> Result<Query> {
    let scope = around.scope(&[]);
    let mut rows = Vec::new();
    for row in &values.rows {
        rows.push(row.iter().map(|expr| scope.bind(expr)).collect::<Result<Vec<_>>>()?);
    }
    let count = rows.first().map_or(0, Vec::len);
    rows.iter().try_for_each(|row| check_length(row.len(), count))?;
    let mut columns = Vec::new();
    for at in 0..count {
        let types: Vec<Type> = rows.iter().map(|row| row[at].1).collect();
        let of = common(&types, "VALUES")?;
        columns.push(ResultColumn { name: format!("column{}", at + 1), of });
    }
    let rows = rows.into_iter().map(|row| {
        let pairs = row.into_iter().zip(&columns);
        pairs.map(|(typed, column)| coerce(typed, column.of, around.parameters, false)).collect()
    });
    let body = QueryBody::Values(rows.collect::<Result<_>>()?);
    Ok(Query::new(body, columns))
}
