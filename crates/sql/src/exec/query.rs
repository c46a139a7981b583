//! Queries in queries, set operations, and the queries of WITH.

use std::{
    collections::hash_map::Entry,
    pin::Pin,
    rc::Rc,
    task::{self, Poll},
};

use foldhash::{HashMap, HashSet};
use sqlparser::ast::SetOperator;

use super::{Run, scan::KeptRows, select};
use crate::{
    bind::query::{Query, QueryBody, SetOperation, Shared},
    dml,
    error::{Result, code},
    expr::Expr,
    spool::Rows,
    types::{Value, encode},
};

/// The bytes of stack that the next query needs, and those that it gets.
pub(crate) const LEAST_STACK: usize = 640 << 10;
pub(crate) const MORE_STACK: usize = 4 << 20;

/// Runs a query and returns its rows.
pub(crate) async fn rows(run: &mut Run<'_>, query: &Query) -> Result<Rows> {
    // A WITH that gets values has other rows each time.
    let is_correlated = query.with.iter().any(|one| !one.outer.is_empty());
    let before = is_correlated.then(|| run.context.answers.set_aside());
    begin_with(run, &query.with).await?;
    let rows = body(run, query).await?;
    if let Some(before) = before {
        run.context.answers.restore(before);
    }
    Ok(rows)
}

async fn body(run: &mut Run<'_>, query: &Query) -> Result<Rows> {
    match &query.body {
        QueryBody::Change(change) => Ok(Box::pin(dml::run(run, change)).await?.returned.into()),
        QueryBody::Select(query) => select(run, query).await,
        QueryBody::Values(rows) => {
            let mut values = Vec::with_capacity(rows.len());
            for row in rows {
                let row = run.evaluate(row, &[]).await?;
                run.keep(&row)?;
                values.push(row);
            }
            Ok(values.into())
        }
        QueryBody::Set(set) => Nested(Box::pin(combined(run, set))).await,
    }
}

/// Begins a query or change with its WITH. Changes in it are done at once.
pub(crate) async fn begin_with(run: &mut Run<'_>, with: &[Rc<Shared>]) -> Result<()> {
    for one in with {
        let outer = run.evaluate(&one.outer, &[]).await?;
        run.context.answers.begin_shared(one, outer);
        if matches!(one.query.body, QueryBody::Change(_)) {
            Box::pin(shared(run, one)).await?;
        }
    }
    Ok(())
}

/// A query in another one. Each polls the next one, so the stack grows where it must.
struct Nested<F>(Pin<Box<F>>);

impl<F: Future> Future for Nested<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<F::Output> {
        stacker::maybe_grow(LEAST_STACK, MORE_STACK, || self.0.as_mut().poll(context))
    }
}

/// Runs a query with the values that it gets, and keeps its rows.
pub(super) async fn kept(run: &mut Run<'_>, query: &Query, outer: &[Value]) -> Result<Vec<Vec<Value>>> {
    let mut inner = run.within(outer);
    let mut all = Vec::new();
    for row in Nested(Box::pin(rows(&mut inner, query))).await? {
        let row = row?;
        inner.keep(&row)?;
        all.push(row);
    }
    (run.memory, run.steps, run.slice_begun) = (inner.memory, inner.steps, inner.slice_begun);
    Ok(all)
}

/// Returns whether an error is about values: their syntax, ranges and names, or limits.
fn is_of_values(code: &str) -> bool {
    ["21", "22", "42", "54"].iter().any(|class| code.starts_with(class))
}

/// Returns the rows of a subquery for all values, and those of one that has no row; `None` if there
/// are too many, or one fails.
pub(super) async fn kept_for_all(
    run: &mut Run<'_>,
    query: &Query,
) -> Result<Option<(Vec<Vec<Value>>, Vec<Vec<Value>>)>> {
    let Some(keyed) = &query.keyed else { return Ok(None) };
    let memory = run.memory;
    let none = match &keyed.none {
        Some(none) => Box::pin(kept(run, none, &[])).await?,
        None => Vec::new(),
    };
    match Box::pin(kept(run, &keyed.query, &[])).await {
        Ok(all) => Ok(Some((all, none))),
        // A value that nothing asks for may be one that fails.
        Err(error) if error.code == code::OUT_OF_MEMORY || is_of_values(error.code) => {
            run.memory = memory;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns the rows of a query of WITH, which are found once.
pub(super) async fn shared(run: &mut Run<'_>, shared: &Rc<Shared>) -> Result<KeptRows> {
    let answers = &run.context.answers;
    let outer = match answers.shared(shared.number) {
        Ok(rows) => return Ok(rows),
        Err(outer) => outer,
    };
    let mut all = kept(run, &shared.query, &outer).await?;
    if let Some((next, is_all)) = &shared.recursive {
        let mut seen = HashSet::default();
        if !is_all {
            all.retain(|row| seen.insert(encode::identity(row)));
        }
        let mut newest = all.clone();
        while !newest.is_empty() {
            // What was asked about the rows before is asked again.
            let asked = answers.set_aside();
            let before = answers.set_working(shared.number, Rc::new(newest));
            newest = kept(run, next, &outer).await?;
            answers.restore_working(shared.number, before);
            answers.restore(asked);
            if !is_all {
                newest.retain(|row| seen.insert(encode::identity(row)));
            }
            all.extend(newest.iter().cloned());
        }
    }
    let rows = Rc::new(all);
    answers.set_shared(shared.number, rows.clone());
    Ok(rows)
}

/// Returns the rows of a side, with the types of the result.
async fn side(run: &mut Run<'_>, (query, casts): &(Query, Vec<Expr>)) -> Result<Vec<Vec<Value>>> {
    let mut all = Vec::new();
    let is_plain = |(at, expr): (usize, &Expr)| matches!(expr, Expr::Column(column) if *column == at);
    let is_plain = casts.iter().enumerate().all(is_plain);
    for row in Box::pin(rows(run, query)).await? {
        let mut row = row?;
        if !is_plain {
            row = run.evaluate(casts, &row).await?;
        }
        run.keep(&row)?;
        all.push(row);
    }
    Ok(all)
}

/// Runs a set operation.
async fn combined(run: &mut Run<'_>, set: &SetOperation) -> Result<Rows> {
    let mut left = side(run, &set.left).await?;
    let right = side(run, &set.right).await?;
    if matches!(set.operator, SetOperator::Union) {
        left.extend(right);
        if !set.is_all {
            let mut seen = HashSet::default();
            left.retain(|row| seen.insert(encode::identity(row)));
        }
        return Ok(left.into());
    }
    let is_intersection = matches!(set.operator, SetOperator::Intersect);
    let mut counts: HashMap<Vec<u8>, usize> = HashMap::default();
    right.iter().for_each(|row| *counts.entry(encode::identity(row)).or_default() += 1);
    let mut seen = HashSet::default();
    left.retain(|row| {
        let key = encode::identity(row);
        if !set.is_all {
            return counts.contains_key(&key) == is_intersection && seen.insert(key);
        }
        match counts.entry(key) {
            Entry::Occupied(mut count) if *count.get() > 0 => {
                *count.get_mut() -= 1;
                is_intersection
            }
            _ => !is_intersection,
        }
    });
    Ok(left.into())
}
