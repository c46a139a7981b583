//! The executor of queries: scans, joins, groups, orders.

use std::{
    collections::{HashMap, HashSet},
    path::Path as FilePath,
    sync::Arc,
};

use plexus_cache::Cache;
use plexus_store::{RowLock, Store, tree::ScanPlace};

use crate::{
    bind::{
        Aggregate, AggregateKind,
        select::{Busy, Groups, Locking, Path, Select, Source},
    },
    catalog::{Table, Transaction},
    error::{Result, SqlError, code},
    expr::{Expr, Inputs},
    functions::Context,
    sequences::Ranges,
    spool::{OrderedRow, Rows, Spool, bytes_of},
    types::{Type, Value, encode, numeric::Numeric},
};

/// The memory that the rows of one statement may take, in bytes, beside those of its result.
pub(crate) const MOST_MEMORY: usize = 256 << 20;

/// A running statement.
pub(crate) struct Run<'a> {
    pub(crate) store: &'a Store<Cache>,
    pub(crate) by: &'a mut Transaction,
    pub(crate) parameters: &'a [Value],
    pub(crate) context: &'a Context,
    pub(crate) ranges: &'a Ranges,
    /// The directory for temporary files.
    pub(crate) temporary: &'a Arc<FilePath>,
    /// The bytes of the rows that are kept.
    pub(crate) memory: usize,
}

/// A row of a table: its key and its values.
pub(crate) type KeyedRow = (Vec<u8>, Vec<Value>);

impl<'a> Run<'a> {
    pub(crate) fn inputs<'i>(&self, row: &'i [Value]) -> Inputs<'i>
    where
        'a: 'i,
    {
        Inputs { row, parameters: self.parameters, context: self.context }
    }

    /// Evaluates expressions that may draw numbers from sequences: again for each number that was
    /// missing.
    pub(crate) async fn evaluate(&mut self, all: &[Expr], row: &[Value]) -> Result<Vec<Value>> {
        let drawn = &self.context.sequences;
        loop {
            let values = all.iter().map(|expr| expr.evaluate(self.inputs(row))).collect();
            if let Some(sequence) = drawn.take_wanted() {
                let number = self.ranges.draw(self.store, self.by, drawn, &sequence).await?;
                drawn.supply(sequence.id, number);
            } else if !self.supply().await? {
                return values;
            }
        }
    }

    /// Supplies what an evaluation has missed. Returns false if it has missed nothing.
    pub(crate) async fn supply(&mut self) -> Result<bool> {
        let Context { definitions, place, .. } = self.context;
        if !definitions.take_wanted() {
            return Ok(false);
        }
        definitions.supply(place, self.store, self.by).await?;
        Ok(true)
    }

    /// Counts rows that are kept against the limit.
    pub(crate) fn keep(&mut self, row: &[Value]) -> Result<()> {
        self.keep_bytes(bytes_of(row))
    }

    pub(crate) fn keep_bytes(&mut self, bytes: usize) -> Result<()> {
        self.memory += bytes;
        if self.memory > MOST_MEMORY { Err(out_of_memory()) } else { Ok(()) }
    }
}

pub(crate) fn out_of_memory() -> SqlError {
    SqlError::new("53200", "out of memory: the rows of the statement need more than 256 MiB")
}

/// The keys that a path leads to.
enum Keys {
    None,
    Point(Vec<u8>),
    Range(Vec<u8>, Option<Vec<u8>>),
}

/// Returns the keys of a path, for a row of the sources before it.
fn keys_of(path: &Path, table: &Table, inputs: Inputs<'_>) -> Result<Keys> {
    let mut key = Vec::new();
    let mut of = path.columns.iter().map(|column| table.columns[*column].of);
    for expr in &path.prefix {
        let value = expr.evaluate(inputs)?;
        if value.is_null() {
            return Ok(Keys::None);
        }
        encode::put_key(&mut key, &value, of.next().unwrap_or(Type::Unknown))?;
    }
    if path.is_point(table) {
        return Ok(Keys::Point(key));
    }
    let of = of.next().unwrap_or(Type::Unknown);
    let bound = |bound: &Option<(Expr, bool)>| -> Result<Option<(Vec<u8>, bool)>> {
        let Some((expr, is_closed)) = bound else { return Ok(None) };
        let value = expr.evaluate(inputs)?;
        let mut at = key.clone();
        encode::put_key(&mut at, &value, of)?;
        Ok(Some((at, *is_closed)))
    };
    let (lower, upper) = (bound(&path.lower)?, bound(&path.upper)?);
    let end = |of: &[u8]| encode::after(of);
    let from = match &lower {
        None => key.clone(),
        Some((at, true)) => at.clone(),
        Some((at, false)) => end(at).unwrap_or_else(|| at.clone()),
    };
    let to = match &upper {
        // NULL is the highest value.
        None if path.skips_null => Some([&key[..], &[encode::KEY_NULL]].concat()),
        None => end(&key),
        Some((at, true)) => end(at),
        Some((at, false)) => Some(at.clone()),
    };
    Ok(Keys::Range(from, to))
}

/// The rows with which a scan goes on.
enum NextRows {
    From(ScanPlace),
    Below(Option<Vec<u8>>),
}

/// Calls `act` with each row of a source that a row of the sources before it leads to and that
/// meets its own conditions; it returns false to end.
pub(crate) async fn each_row(
    run: &mut Run<'_>,
    source: &Source,
    before: &[Value],
    act: &mut dyn FnMut(&mut Run<'_>, KeyedRow) -> Result<bool>,
) -> Result<()> {
    let table = &*source.table;
    let columns = table.columns.len();
    let (from, to) = match keys_of(&source.path, table, run.inputs(before))? {
        Keys::None => return Ok(()),
        Keys::Point(key) => {
            if let Some(row) = run.by.get(table.rows(), &key).await? {
                act(run, (key, encode::read_row(&row, columns)?))?;
            }
            return Ok(());
        }
        Keys::Range(from, to) => (from, to),
    };
    let tree = source.path.index.map_or(table.rows(), |index| table.indexes[index].tree());
    let is_backward = source.path.is_backward;
    let mut place =
        if is_backward { NextRows::Below(to.clone()) } else { NextRows::From(ScanPlace::from(&from)) };
    loop {
        let (rows, next) = match &place {
            NextRows::From(place) => {
                let (rows, next) = run.by.scan(tree, place).await?;
                (rows, next.map(NextRows::From))
            }
            NextRows::Below(key) => {
                let (rows, next) = run.by.scan_back(tree, key.as_deref()).await?;
                (rows, next.map(|key| NextRows::Below(Some(key))))
            }
        };
        for (key, row) in rows {
            let is_beyond = match is_backward {
                true => key < from,
                false => to.as_ref().is_some_and(|to| key >= *to),
            };
            if is_beyond {
                return Ok(());
            }
            let (key, row) = match source.path.index {
                None => (key, row),
                // The value of an index is the key of the row.
                Some(_) => match run.by.get(table.rows(), &row).await? {
                    Some(found) => (row, found),
                    None => continue,
                },
            };
            if !act(run, (key, encode::read_row(&row, columns)?))? {
                return Ok(());
            }
        }
        let Some(next) = next else { return Ok(()) };
        place = next;
    }
}

fn all_hold(conditions: &[Expr], inputs: Inputs<'_>) -> Result<bool> {
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
    each_row(run, source, &[], &mut |run, (key, row)| {
        if all_hold(&source.conditions, run.inputs(&row))? {
            let order = query.map_or(Ok(Vec::new()), |query| order_of(run, query, &row))?;
            keys.push(OrderedRow { order, row: vec![Value::Bytes(key)] })?;
        }
        Ok(true)
    })
    .await?;
    Ok(keys.rows().await?.map(|row| match row?.pop() {
        Some(Value::Bytes(key)) => Ok(key),
        _ => Ok(Vec::new()),
    }))
}

/// Calls `act` with each row of the joined sources; it returns false to end.
async fn joined(
    run: &mut Run<'_>,
    sources: &[Source],
    act: &mut dyn FnMut(&mut Run<'_>, Vec<Value>) -> Result<bool>,
) -> Result<()> {
    let mut before: Vec<Vec<Value>> = vec![Vec::new()];
    for (at, source) in sources.iter().enumerate() {
        let is_last = at + 1 == sources.len();
        let mut found = Vec::new();
        // The rows of a source that does not depend on others are read once.
        let mut kept: Option<Vec<Vec<Value>>> = None;
        let mut goes_on = true;
        for row in before {
            if !goes_on {
                break;
            }
            let mut has_match = false;
            let mut take = |run: &mut Run<'_>, values: &[Value]| -> Result<bool> {
                let whole = [&row[..], values].concat();
                if let Some(outer) = &source.outer
                    && !all_hold(outer, run.inputs(&whole))?
                {
                    return Ok(true);
                }
                has_match = true;
                if !all_hold(&source.conditions, run.inputs(&whole))? {
                    return Ok(true);
                }
                if is_last {
                    return act(run, whole);
                }
                run.keep(&whole)?;
                found.push(whole);
                Ok(true)
            };
            if at > 0 && source.path.is_constant() && !source.path.is_point(&source.table) {
                if kept.is_none() {
                    let mut rows = Vec::new();
                    each_row(run, source, &row, &mut |run, (_, values)| {
                        run.keep(&values)?;
                        rows.push(values);
                        Ok(true)
                    })
                    .await?;
                    kept = Some(rows);
                }
                for values in kept.iter().flatten() {
                    goes_on = take(run, values)?;
                    if !goes_on {
                        break;
                    }
                }
            } else {
                each_row(run, source, &row, &mut |run, (_, values)| {
                    goes_on = take(run, &values)?;
                    Ok(goes_on)
                })
                .await?;
            }
            if source.outer.is_some() && !has_match && goes_on {
                let nulls = vec![Value::Null; source.table.columns.len()];
                let whole = [&row[..], &nulls].concat();
                if all_hold(&source.conditions, run.inputs(&whole))? {
                    match is_last {
                        true => goes_on = act(run, whole)?,
                        false => found.push(whole),
                    }
                }
            }
        }
        before = found;
    }
    Ok(())
}

/// Runs a query and returns its rows.
pub(crate) async fn select(run: &mut Run<'_>, query: &Select) -> Result<Rows> {
    let count = |run: &Run<'_>, expr: &Option<Expr>, what: &str| -> Result<Option<usize>> {
        match expr.as_ref().map(|expr| expr.evaluate(run.inputs(&[]))).transpose()? {
            Some(Value::Int(number)) => match usize::try_from(number) {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(SqlError::new("2201W", format!("{what} must not be negative"))),
            },
            _ => Ok(None),
        }
    };
    let limit = count(run, &query.limit, "LIMIT")?;
    let offset = count(run, &query.offset, "OFFSET")?.unwrap_or(0);
    let wanted = limit.map(|limit| limit.saturating_add(offset));
    if let Some(lock) = query.locks {
        return locked(run, query, lock, wanted, offset).await;
    }
    let mut rows = Spool::new(run.temporary, query.order.iter().map(|key| key.direction));
    let is_empty = !all_hold(&query.constant, run.inputs(&[]))?;
    // The rows that were given, if each is given once.
    let mut seen = query.is_distinct.then(HashSet::new);
    let mut add = |run: &mut Run<'_>, row: OrderedRow| -> Result<()> {
        if let Some(seen) = &mut seen {
            let key = encode::row(&row.row);
            let bytes = size_of::<Vec<u8>>() + key.len();
            if !seen.insert(key) {
                return Ok(());
            }
            run.keep_bytes(bytes)?;
        }
        rows.push(row)
    };
    if let Some(groups) = &query.groups {
        for row in grouped(run, query, groups, is_empty).await? {
            let row = project(run, query, &row)?;
            add(run, row)?;
        }
    } else if is_empty || wanted == Some(0) {
        // No row.
    } else if query.sources.is_empty() {
        let output = run.evaluate(&query.output, &[]).await?;
        add(run, OrderedRow { order: Vec::new(), row: output })?;
    } else {
        let enough = wanted.filter(|_| query.order.is_empty() && !query.is_distinct);
        let mut count = 0;
        joined(run, &query.sources, &mut |run, row| {
            let row = project(run, query, &row)?;
            add(run, row)?;
            count += 1;
            Ok(enough.is_none_or(|enough| count < enough))
        })
        .await?;
    }
    rows.rows().await?.part(offset, limit.unwrap_or(usize::MAX)).await
}

/// Returns the output of a row and the values by which it is ordered.
fn project(run: &Run<'_>, query: &Select, row: &[Value]) -> Result<OrderedRow> {
    let order = order_of(run, query, row)?;
    let inputs = run.inputs(row);
    let row = query.output.iter().map(|expr| expr.evaluate(inputs)).collect::<Result<_>>()?;
    Ok(OrderedRow { order, row })
}

fn order_of(run: &Run<'_>, query: &Select, row: &[Value]) -> Result<Vec<Value>> {
    query.order.iter().map(|key| key.by.evaluate(run.inputs(row))).collect()
}

/// Runs `SELECT … FOR UPDATE` and its weaker forms: each row is locked until the end of the
/// transaction. Rows beyond the limit stay free.
async fn locked(
    run: &mut Run<'_>,
    query: &Select,
    Locking { strength, busy }: Locking,
    wanted: Option<usize>,
    offset: usize,
) -> Result<Rows> {
    let [source] = &query.sources[..] else { return Err(SqlError::unsupported("this FOR UPDATE")) };
    let mut rows = Vec::new();
    if !all_hold(&query.constant, run.inputs(&[]))? {
        return Ok(rows.into());
    }
    for key in matching(run, source, Some(query)).await? {
        if wanted == Some(rows.len()) {
            break;
        }
        run.by.never_wait(busy != Busy::Waits);
        let locked = lock_row(run, source, &key?, strength).await;
        run.by.never_wait(false);
        match locked {
            Ok(Some(row)) => {
                let row = project(run, query, &row)?.row;
                run.keep(&row)?;
                rows.push(row);
            }
            Ok(None) => {}
            Err(error) if error.code == code::LOCK_NOT_AVAILABLE && busy == Busy::Skips => {}
            Err(error) if error.code == code::LOCK_NOT_AVAILABLE && busy == Busy::Fails => {
                let name = &source.table.name;
                let message = format!("could not obtain lock on row in relation \"{name}\"");
                return Err(SqlError::new(code::LOCK_NOT_AVAILABLE, message));
            }
            Err(error) => return Err(error),
        }
    }
    Rows::from(rows).part(offset, usize::MAX).await
}

/// Locks a row. Returns its newest contents if they are still those that the query wants.
async fn lock_row(
    run: &mut Run<'_>,
    source: &Source,
    key: &[u8],
    strength: RowLock,
) -> Result<Option<Vec<Value>>> {
    let mut newest = Ok(None);
    let (parameters, context) = (run.parameters, run.context);
    let columns = source.table.columns.len();
    let mut wants = |row: Option<&[u8]>| {
        newest = (|| {
            let Some(bytes) = row else { return Ok(None) };
            let row = encode::read_row(bytes, columns)?;
            let holds = all_hold(&source.conditions, Inputs { row: &row, parameters, context })?;
            Ok::<_, SqlError>(holds.then_some(row))
        })();
        matches!(newest, Ok(Some(_)))
    };
    run.by.lock(source.table.rows(), key, strength, &mut wants).await?;
    newest
}

/// The state of an aggregate.
#[derive(Clone, Default)]
struct Accumulated {
    count: i64,
    sum: Option<Value>,
    seen: std::collections::HashSet<Vec<u8>>,
}

impl Accumulated {
    fn add(&mut self, aggregate: &Aggregate, value: Value) -> Result<()> {
        if value.is_null()
            || aggregate.is_distinct && !self.seen.insert(encode::row(std::slice::from_ref(&value)))
        {
            return Ok(());
        }
        self.count += 1;
        let before = self.sum.take();
        self.sum = match (aggregate.kind, before) {
            (AggregateKind::Count, _) => None,
            (AggregateKind::Least, Some(before)) if before.compare(&value).is_le() => Some(before),
            (AggregateKind::Greatest, Some(before)) if before.compare(&value).is_ge() => Some(before),
            (AggregateKind::Least | AggregateKind::Greatest, _) => Some(value),
            (AggregateKind::Sum | AggregateKind::Average, before) => Some(match (before, value) {
                (None, Value::Int(number)) => Value::Numeric(Numeric::from_int(number)),
                (None, value) => value,
                (Some(Value::Float(sum)), Value::Float(number)) => {
                    let sum = Value::Float(sum + number);
                    match aggregate.kind {
                        AggregateKind::Sum => sum.fit(aggregate.input, false)?,
                        _ => sum,
                    }
                }
                (Some(Value::Numeric(sum)), Value::Int(number)) => {
                    Value::Numeric(sum.add(Numeric::from_int(number))?)
                }
                (Some(Value::Numeric(sum)), Value::Numeric(number)) => Value::Numeric(sum.add(number)?),
                (Some(sum), _) => sum,
            }),
        };
        Ok(())
    }

    fn end(self, aggregate: &Aggregate) -> Result<Value> {
        Ok(match (aggregate.kind, self.sum) {
            (AggregateKind::Count, _) => Value::Int(self.count),
            (_, None) => Value::Null,
            (AggregateKind::Sum, Some(Value::Numeric(sum)))
                if matches!(aggregate.input, Type::Int2 | Type::Int4) =>
            {
                let out = || SqlError::new(code::NUMERIC_OUT_OF_RANGE, "bigint out of range");
                Value::Int(sum.to_int().ok_or_else(out)?)
            }
            (AggregateKind::Average, Some(Value::Float(sum))) => Value::Float(sum / self.count as f64),
            (AggregateKind::Average, Some(Value::Numeric(sum))) => {
                Value::Numeric(sum.div(Numeric::from_int(self.count))?)
            }
            (_, Some(value)) => value,
        })
    }
}

/// Returns a row for each group: the values by which it is grouped, and the aggregates.
async fn grouped(
    run: &mut Run<'_>,
    query: &Select,
    groups: &Groups,
    is_empty: bool,
) -> Result<Vec<Vec<Value>>> {
    let mut found: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut all: Vec<(Vec<Value>, Vec<Accumulated>)> = Vec::new();
    let new = || vec![Accumulated::default(); groups.aggregates.len()];
    if groups.is_one {
        found.insert(Vec::new(), 0);
        all.push((Vec::new(), new()));
    }
    let mut add = |run: &mut Run<'_>, row: Vec<Value>| -> Result<bool> {
        let inputs = run.inputs(&row);
        let by: Vec<Value> = groups.by.iter().map(|expr| expr.evaluate(inputs)).collect::<Result<_>>()?;
        let mut values = Vec::with_capacity(groups.aggregates.len());
        for aggregate in &groups.aggregates {
            values.push(match &aggregate.of {
                None => Value::Bool(true),
                Some(expr) => expr.evaluate(inputs)?,
            });
        }
        let at = match found.entry(encode::row(&by)) {
            std::collections::hash_map::Entry::Occupied(known) => *known.get(),
            std::collections::hash_map::Entry::Vacant(place) => {
                run.keep(&by)?;
                place.insert(all.len());
                all.push((by, new()));
                all.len() - 1
            }
        };
        let is_first = groups.is_first && values.iter().any(|value| !value.is_null());
        for ((state, aggregate), value) in all[at].1.iter_mut().zip(&groups.aggregates).zip(values) {
            state.add(aggregate, value)?;
        }
        Ok(!is_first)
    };
    if !is_empty {
        match query.sources.is_empty() {
            true => drop(add(run, Vec::new())?),
            false => joined(run, &query.sources, &mut add).await?,
        }
    }
    let mut rows = Vec::new();
    for (mut row, states) in all {
        for (state, aggregate) in states.into_iter().zip(&groups.aggregates) {
            row.push(state.end(aggregate)?);
        }
        let holds = match &groups.having {
            None => true,
            Some(having) => having.holds(run.inputs(&row))?,
        };
        rows.extend(holds.then_some(row));
    }
    Ok(rows)
}
