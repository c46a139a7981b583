//! The executor of queries: scans, joins, groups, orders.

mod groups;
mod join;
pub(crate) mod query;
pub(crate) mod scan;
mod spill;
mod windows;

use std::{
    collections::HashSet,
    path::Path as FilePath,
    sync::Arc,
    time::{Duration, Instant},
};

use plexus_interconnect::executor;

use self::{
    groups::{RowSink, grouped},
    scan::{call_all, each_row},
    spill::DistinctKeys,
};
pub(crate) use self::{
    join::joined,
    scan::{KeptRows, choose_path},
};
use crate::{
    bind::{
        from::{Relation, Source},
        locks::{Busy, Locking},
        select::Select,
    },
    catalog::{Table, Transaction},
    error::{Result, SqlError, code, fail},
    expr::{Expr, Inputs, evaluate_all},
    functions::Context,
    sequences::Ranges,
    session::settings::Time,
    spool::{OrderedRow, Rows, Spool, bytes_of},
    types::{Value, encode},
};

/// The memory that the rows of one statement may take, in bytes, beside those of its result.
pub(crate) const MOST_MEMORY: usize = 256 << 20;

/// The time that a statement calculates before other tasks go on, and the evaluations between two
/// looks at the clock: some take milliseconds.
const SLICE: Duration = Duration::from_micros(500);
const STEPS: usize = 8;

/// A running statement.
pub(crate) struct Run<'a> {
    pub(crate) by: &'a mut Transaction,
    pub(crate) parameters: &'a [Value],
    /// The values that the query around the present one gives it.
    pub(crate) outer: &'a [Value],
    pub(crate) context: &'a Context,
    pub(crate) ranges: &'a Ranges,
    /// The directory for temporary files.
    pub(crate) temporary: &'a Arc<FilePath>,
    /// The bytes of the rows that are kept.
    pub(crate) memory: usize,
    /// The evaluations so far, and the begin of the slice of time in which it calculates: others go
    /// on behind it, and it can be cancelled.
    pub(crate) steps: usize,
    pub(crate) slice_begun: Instant,
}

impl<'a> Run<'a> {
    pub(crate) fn inputs<'i>(&self, row: &'i [Value]) -> Inputs<'i>
    where
        'a: 'i,
    {
        Inputs { row, parameters: self.parameters, outer: self.outer, context: self.context }
    }

    /// Begins a statement without parameters.
    pub(crate) fn new(
        by: &'a mut Transaction,
        context: &'a Context,
        ranges: &'a Ranges,
        temporary: &'a Arc<FilePath>,
    ) -> Self {
        let (memory, steps, slice_begun) = (0, 0, Instant::now());
        Self { by, parameters: &[], outer: &[], context, ranges, temporary, memory, steps, slice_begun }
    }

    /// Returns the same statement for a query in it that gets these values.
    pub(crate) fn within<'i>(&'i mut self, outer: &'i [Value]) -> Run<'i> {
        Run { by: self.by, outer, ..*self }
    }

    /// Evaluates expressions for a row.
    pub(crate) async fn evaluate(&mut self, all: &[Expr], row: &[Value]) -> Result<Vec<Value>> {
        self.complete(&mut |run| evaluate_all(all, run.inputs(row))).await
    }

    /// Repeats an evaluation until it misses nothing: numbers of sequences, rows of subqueries,
    /// definitions.
    pub(crate) async fn complete<T>(&mut self, act: &mut dyn FnMut(&mut Run<'_>) -> Result<T>) -> Result<T> {
        loop {
            let found = act(self);
            self.steps += 1;
            if self.steps.is_multiple_of(STEPS) && self.slice_begun.elapsed() >= SLICE {
                executor::yield_now().await;
                self.slice_begun = Instant::now();
            }
            match found {
                Ok(found) => {
                    self.end_evaluation();
                    return Ok(found);
                }
                Err(error) => {
                    if !Box::pin(self.supply()).await? {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Ends an evaluation: what was supplied for it is used.
    pub(crate) fn end_evaluation(&self) {
        self.context.sequences.end_evaluation();
        self.context.advisory.end_evaluation();
        self.context.answers.end_evaluation();
    }

    /// Supplies what an evaluation has missed. Returns false if it has missed nothing.
    pub(crate) async fn supply(&mut self) -> Result<bool> {
        let Context { definitions, place, sequences, answers, advisory, .. } = self.context;
        if let Some(call) = advisory.take_wanted() {
            let limit = self.context.settings.borrow().time(Time::Lock);
            advisory.supply(call, limit, self.context).await?;
        } else if let Some(sequence) = sequences.take_wanted() {
            let number = self.ranges.draw(self.by, sequences, &sequence).await?;
            sequences.supply(sequence.id, number);
        } else if definitions.take_wanted() {
            definitions.supply(place, self.by).await?;
        } else if let Some((query, outer)) = answers.take_wanted() {
            // The numbers are those of this evaluation, not of the ones in the query; and its rows
            // are counted with the answers.
            let (numbers, locked, memory) = (sequences.set_aside(), advisory.set_aside(), self.memory);
            match answers.is_for_all(&query) {
                true => {
                    let rows = query::kept_for_all(self, &query).await?;
                    answers.supply_all(&query, rows)?;
                }
                false => {
                    let rows = query::kept(self, &query, &outer).await?;
                    answers.supply(&query, &outer, rows)?;
                }
            }
            self.memory = memory;
            sequences.restore(numbers);
            advisory.restore(locked);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Returns the bytes that rows of one kind may take in memory before others go to a file.
    fn work_mem(&self) -> usize {
        self.context.settings.borrow().work_mem()
    }

    /// Counts rows that are kept against the limit.
    pub(crate) fn keep(&mut self, row: &[Value]) -> Result<()> {
        self.keep_bytes(bytes_of(row))
    }

    pub(crate) fn keep_bytes(&mut self, bytes: usize) -> Result<()> {
        self.memory += bytes;
        if self.memory > MOST_MEMORY { Err(out_of_memory()) } else { self.context.memory.hold(self.memory) }
    }
}

pub(crate) fn out_of_memory() -> SqlError {
    SqlError::new(code::OUT_OF_MEMORY, "out of memory: the rows of the statement need more than 256 MiB")
}

pub(crate) fn all_hold(conditions: &[Expr], inputs: Inputs<'_>) -> Result<bool> {
    for condition in conditions {
        if !condition.holds(inputs)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the keys of the rows of a table that meet the conditions of a source, in the order of a
/// query, if there is one.
pub(crate) async fn matching(
    run: &mut Run<'_>,
    source: &Source,
    query: Option<&Select>,
) -> Result<impl Iterator<Item = Result<Vec<u8>>> + use<>> {
    let order = query.iter().flat_map(|query| &query.order).map(|key| key.direction);
    let mut keys = Spool::new(run.temporary, order);
    each_row(run, source, &[], &mut |run, key, row| {
        if all_hold(&source.conditions, run.inputs(row))? {
            let order = query.map_or(Ok(Vec::new()), |query| order_of(run, query, row))?;
            keys.push(OrderedRow { order, row: vec![Value::Bytes(key.to_vec())] })?;
        }
        Ok(true)
    })
    .await?;
    Ok(keys.rows().await?.map(|row| match row?.pop() {
        Some(Value::Bytes(key)) => Ok(key),
        _ => Ok(Vec::new()),
    }))
}

/// Returns the number of rows of LIMIT or OFFSET.
async fn count(run: &mut Run<'_>, expr: &Option<Expr>, what: &str) -> Result<Option<usize>> {
    let Some(expr) = expr else { return Ok(None) };
    match run.complete(&mut |run| expr.evaluate(run.inputs(&[]))).await? {
        Value::Int(number) => match usize::try_from(number) {
            Ok(number) => Ok(Some(number)),
            Err(_) => {
                let code = if what == "LIMIT" { "2201W" } else { "2201X" };
                Err(SqlError::new(code, format!("{what} must not be negative")))
            }
        },
        _ => Ok(None),
    }
}

/// The rows of a result that are collected.
struct Collected<'q> {
    query: &'q Select,
    rows: Spool,
    /// The rows that were given, if each is given once.
    seen: Option<DistinctKeys>,
}

impl Collected<'_> {
    /// Adds the rows of the result that a row, with the values of its window functions, makes.
    /// Returns their number.
    fn add(&mut self, run: &mut Run<'_>, row: &[Value]) -> Result<usize> {
        if self.query.sets.is_empty() {
            let made = project(run, self.query, row)?;
            self.push(run, made)?;
            return Ok(1);
        }
        let mut made = Vec::new();
        for values in call_all(&self.query.sets, run.inputs(row), true)? {
            made.push(project(run, self.query, &[row, &values].concat())?);
        }
        let count = made.len();
        made.into_iter().try_for_each(|row| self.push(run, row))?;
        Ok(count)
    }

    fn push(&mut self, run: &mut Run<'_>, row: OrderedRow) -> Result<()> {
        if let Some(seen) = &mut self.seen
            && !seen.is_new(run, encode::identity(&row.row), || [&row.order[..], &row.row].concat())?
        {
            return Ok(());
        }
        self.rows.push(row)
    }

    /// Adds the rows that waited until it was known that they are new.
    async fn end(&mut self, run: &mut Run<'_>) -> Result<()> {
        let Some(seen) = self.seen.take() else { return Ok(()) };
        let keys = self.query.order.len();
        let take = |mut order: Vec<Value>| {
            let row = order.split_off(keys);
            self.rows.push(OrderedRow { order, row })
        };
        seen.end(run, take).await
    }
}

/// Runs a query and returns its rows.
pub(crate) async fn select(run: &mut Run<'_>, query: &Select) -> Result<Rows> {
    let limit = count(run, &query.limit, "LIMIT").await?;
    let offset = count(run, &query.offset, "OFFSET").await?.unwrap_or(0);
    let wanted = limit.map(|limit| limit.saturating_add(offset));
    if query.has_locks {
        return locked(run, query, wanted, offset).await;
    }
    let rows = Spool::new(run.temporary, query.order.iter().map(|key| key.direction));
    let constant = &query.constant;
    let is_empty = !run.complete(&mut |run| all_hold(constant, run.inputs(&[]))).await?;
    let mut collected = Collected { query, rows, seen: query.is_distinct.then(|| DistinctKeys::new(run)) };
    if let (Some(groups), []) = (&query.groups, &query.windows[..]) {
        let add = &mut |run: &mut Run<'_>, row: &[Value]| collected.add(run, row).map(drop);
        grouped(run, query, groups, is_empty, add).await?;
    } else if query.groups.is_some() || !query.windows.is_empty() {
        let mut rows = Vec::new();
        let keep = &mut |run: &mut Run<'_>, row: &[Value]| {
            run.keep(row)?;
            rows.push(row.to_vec());
            Ok(())
        };
        match &query.groups {
            Some(groups) => grouped(run, query, groups, is_empty, keep).await?,
            None if is_empty => {}
            None => each_of(run, query, keep).await?,
        }
        for row in windows::with_windows(run, &query.windows, rows).await? {
            run.complete(&mut |run| collected.add(run, &row)).await?;
        }
    } else if is_empty || wanted == Some(0) {
        // No row.
    } else if query.sources.is_empty() {
        run.complete(&mut |run| collected.add(run, &[])).await?;
    } else {
        let is_whole = query.order.is_empty() && !query.is_distinct && query.distinct_on.is_empty();
        let enough = wanted.filter(|_| is_whole);
        let mut count = 0;
        joined(run, &query.sources, &mut |run, row| {
            count += collected.add(run, row)?;
            Ok(enough.is_none_or(|enough| count < enough))
        })
        .await?;
    }
    collected.end(run).await?;
    let rows = collected.rows.rows().await?;
    let rows = match query.distinct_on.len() {
        0 => rows,
        keys => first_of_each(run, rows, keys)?,
    };
    match query.with_ties {
        false => rows.part(offset, limit.unwrap_or(usize::MAX)).await,
        true => with_ties(run, rows, offset, limit.unwrap_or(usize::MAX), query.order.len()),
    }
}

/// Returns so many rows, and those behind them with the same last values, which go.
fn with_ties(run: &mut Run<'_>, rows: Rows, offset: usize, limit: usize, keys: usize) -> Result<Rows> {
    let (mut found, mut last) = (Vec::new(), Vec::new());
    for row in rows.skip(offset) {
        let mut row = row?;
        let key = encode::identity(&row.split_off(row.len() - keys));
        if found.len() >= limit && (found.is_empty() || key != last) {
            break;
        }
        last = key;
        run.keep(&row)?;
        found.push(row);
    }
    Ok(found.into())
}

/// Calls `act` with each row of the sources of a query.
async fn each_of(run: &mut Run<'_>, query: &Select, act: RowSink<'_>) -> Result<()> {
    match query.sources.is_empty() {
        true => act(run, &[]),
        false => joined(run, &query.sources, &mut |run, row| act(run, row).map(|()| true)).await,
    }
}

/// Leaves the first row of those with the same last values, which go.
fn first_of_each(run: &mut Run<'_>, rows: Rows, keys: usize) -> Result<Rows> {
    let (mut seen, mut first) = (HashSet::new(), Vec::new());
    for row in rows {
        let mut row = row?;
        let key = row.split_off(row.len() - keys);
        if seen.insert(encode::identity(&key)) {
            run.keep(&row)?;
            first.push(row);
        }
    }
    Ok(first.into())
}

/// Returns the output of a row and the values by which it is ordered.
fn project(run: &Run<'_>, query: &Select, row: &[Value]) -> Result<OrderedRow> {
    let order = order_of(run, query, row)?;
    let inputs = run.inputs(row);
    let mut row = evaluate_all(&query.output, inputs)?;
    if query.with_ties {
        row.extend(order.iter().cloned());
    }
    row.extend(evaluate_all(&query.distinct_on, inputs)?);
    Ok(OrderedRow { order, row })
}

fn order_of(run: &Run<'_>, query: &Select, row: &[Value]) -> Result<Vec<Value>> {
    query.order.iter().map(|key| key.by.evaluate(run.inputs(row))).collect()
}

/// Runs `SELECT … FOR UPDATE` and its weaker forms: each row is locked until the end of the
/// transaction. Rows beyond the limit stay free.
async fn locked(run: &mut Run<'_>, query: &Select, wanted: Option<usize>, offset: usize) -> Result<Rows> {
    let mut rows = Vec::new();
    if wanted == Some(0) || !run.complete(&mut |run| all_hold(&query.constant, run.inputs(&[]))).await? {
        return Ok(rows.into());
    }
    if let [Source { relation: Relation::Table(table), locked: Some(lock), .. }] = &query.sources[..] {
        let source = &query.sources[0];
        let test = |row: &[Value], inputs: Inputs<'_>| all_hold(&source.conditions, Inputs { row, ..inputs });
        for key in matching(run, source, Some(query)).await? {
            if wanted == Some(rows.len()) {
                break;
            }
            if let Some(row) = lock_row(run, table, &key?, *lock, &test).await? {
                let row = run.complete(&mut |run| Ok(project(run, query, &row)?.row)).await?;
                run.keep(&row)?;
                rows.push(row);
            }
        }
        return Rows::from(rows).part(offset, usize::MAX).await;
    }
    let mut found = Spool::new(run.temporary, query.order.iter().map(|key| key.direction));
    joined(run, &query.sources, &mut |run, row| {
        found.push(OrderedRow { order: order_of(run, query, row)?, row: row.to_vec() })?;
        Ok(true)
    })
    .await?;
    for row in found.rows().await? {
        if wanted == Some(rows.len()) {
            break;
        }
        if let Some(row) = lock_joined(run, query, row?).await? {
            let row = run.complete(&mut |run| Ok(project(run, query, &row)?.row)).await?;
            run.keep(&row)?;
            rows.push(row);
        }
    }
    Rows::from(rows).part(offset, usize::MAX).await
}

/// Locks the rows of which a joined row is made. Returns it with their newest contents, if it still
/// is one that the query wants.
async fn lock_joined(run: &mut Run<'_>, query: &Select, mut row: Vec<Value>) -> Result<Option<Vec<Value>>> {
    for source in &query.sources {
        let own = source.offset..source.offset + source.width - usize::from(source.has_key);
        let (Some(table), Some(lock), Some(Value::Bytes(key))) =
            (source.table(), source.locked, row.get(own.end))
        else {
            continue;
        };
        let test = |newest: &[Value], inputs: Inputs<'_>| {
            let mut seen = [&row[..own.start], newest, &row[own.end..]].concat();
            is_joined(query, &mut seen, inputs)
        };
        let Some(newest) = lock_row(run, table, key, lock, &test).await? else { return Ok(None) };
        row.splice(own, newest);
    }
    run.complete(&mut |run| is_joined(query, &mut row, run.inputs(&[]))).await?;
    Ok(Some(row))
}

/// Returns whether a row still is one of a join, after rows of it have changed. The sides of outer
/// joins that do not match any more are NULL then.
fn is_joined(query: &Select, row: &mut [Value], inputs: Inputs<'_>) -> Result<bool> {
    for source in &query.sources {
        let own = source.offset..source.offset + source.width;
        let is_own = all_hold(&source.filter, Inputs { row: &row[own.clone()], ..inputs })?;
        match &source.outer {
            Some(outer) if !is_own || !all_hold(outer, Inputs { row, ..inputs })? => {
                row[own].fill(Value::Null);
            }
            None if !is_own => return Ok(false),
            _ => {}
        }
        if !all_hold(&source.conditions, Inputs { row, ..inputs })? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Tests the newest contents of a row; the inputs are those without it.
type RowTest<'t> = &'t dyn Fn(&[Value], Inputs<'_>) -> Result<bool>;

/// Locks a row. Returns its newest contents if they are still those that the query wants; nothing,
/// too, if another transaction has it and such rows are left out.
async fn lock_row(
    run: &mut Run<'_>,
    table: &Table,
    key: &[u8],
    Locking { strength, busy }: Locking,
    test: RowTest<'_>,
) -> Result<Option<Vec<Value>>> {
    loop {
        let mut newest = Ok(None);
        let inputs = run.inputs(&[]);
        let mut wants = |row: Option<&[u8]>| {
            newest = (|| {
                let Some(bytes) = row else { return Ok(None) };
                let row = encode::read_row(bytes, table.columns.len())?;
                Ok::<_, SqlError>(test(&row, inputs)?.then_some(row))
            })();
            matches!(newest, Ok(Some(_)))
        };
        run.by.never_wait(busy != Busy::Waits);
        let locked = run.by.lock(table.rows(), key, strength, &mut wants).await.map_err(SqlError::from);
        run.by.never_wait(false);
        match locked {
            Ok(_) => {}
            Err(error) if error.code == code::LOCK_NOT_AVAILABLE && busy == Busy::Skips => return Ok(None),
            Err(error) if error.code == code::LOCK_NOT_AVAILABLE && busy == Busy::Fails => {
                fail!(LOCK_NOT_AVAILABLE, "could not obtain lock on row in relation \"{}\"", table.name);
            }
            Err(error) => return Err(error),
        }
        if newest.is_err() && run.supply().await? {
            continue;
        }
        run.end_evaluation();
        return newest;
    }
}
