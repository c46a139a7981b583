//! Groups of rows, and the aggregates over them.

use std::{borrow::Cow, ops::Range};

use foldhash::{HashMap, HashSet};

use super::{Run, join::joined, spill::Spilled};
use crate::{
    bind::{
        aggregates::{Aggregate, AggregateKind},
        select::{Groups, Select},
    },
    error::{Result, SqlError, code},
    expr::{Expr, evaluate_all},
    spool::{Direction, bytes_of, compare_rows},
    types::{Type, Value, array::Array, encode, numeric::Numeric},
};

/// The state of an aggregate.
#[derive(Clone, Default)]
pub(super) struct Accumulated {
    count: i64,
    sum: Option<Value>,
    /// What few aggregates need: there may be many groups.
    more: Option<Box<MoreAccumulated>>,
}

#[derive(Clone, Default)]
struct MoreAccumulated {
    /// The sum of the squares.
    squares: Option<Value>,
    seen: HashSet<Vec<u8>>,
    /// All values, for an array, or for an order in which they are taken at the end.
    values: Vec<(Vec<Value>, Vec<Value>)>,
}

/// Returns the values of an aggregate for a row: its order and its arguments; `None` if the row
/// does not count.
pub(super) fn inputs_of(
    run: &Run<'_>,
    aggregate: &Aggregate,
    row: &[Value],
) -> Result<Option<(Vec<Value>, Vec<Value>)>> {
    let inputs = run.inputs(row);
    if let Some(filter) = &aggregate.filter
        && !filter.holds(inputs)?
    {
        return Ok(None);
    }
    let order = aggregate.order.iter().map(|key| key.by.evaluate(inputs)).collect::<Result<_>>()?;
    let values = evaluate_all(&aggregate.arguments, inputs)?;
    Ok(Some((order, values)))
}

/// The values of an aggregate for a row.
#[derive(Clone)]
enum Taken {
    /// The row does not count.
    Nothing,
    One(Value),
    Many(Vec<Value>, Vec<Value>),
}

impl Taken {
    fn of(run: &Run<'_>, aggregate: &Aggregate, row: &[Value]) -> Result<Self> {
        match (&aggregate.arguments[..], &aggregate.filter) {
            _ if aggregate.kind == AggregateKind::Grouping => Ok(Self::Nothing),
            ([one], None) if aggregate.order.is_empty() => one.evaluate(run.inputs(row)).map(Self::One),
            _ => Ok(match inputs_of(run, aggregate, row)? {
                Some((order, values)) => Self::Many(order, values),
                None => Self::Nothing,
            }),
        }
    }

    fn has_value(&self) -> bool {
        match self {
            Self::Nothing => false,
            Self::One(value) => !value.is_null(),
            Self::Many(_, values) => !values.iter().all(Value::is_null),
        }
    }
}

fn number(value: &Value) -> Option<Numeric> {
    match value {
        Value::Int(number) => Some(Numeric::from_int(*number)),
        Value::Numeric(number) => Some(*number),
        _ => None,
    }
}

/// Adds two values of one type; integers become exact numbers.
fn add(one: Option<Value>, other: Value) -> Result<Value> {
    Ok(match (one, other) {
        (None, Value::Int(number)) => Value::Numeric(Numeric::from_int(number)),
        (None, value) => value,
        (Some(Value::Float(sum)), Value::Float(number)) => Value::Float(sum + number),
        (Some(Value::Interval(sum)), Value::Interval(span)) => Value::Interval(sum.add(span)?),
        (Some(sum), value) => match (number(&sum), number(&value)) {
            (Some(one), Some(other)) => Value::Numeric(one.add(other)?),
            _ => sum,
        },
    })
}

fn square(value: &Value) -> Result<Value> {
    let number = number(value).unwrap_or(Numeric::from_int(0));
    Ok(Value::Numeric(number.mul(number)?))
}

impl Accumulated {
    fn more(&mut self) -> &mut MoreAccumulated {
        self.more.get_or_insert_default()
    }

    /// Adds a row. Returns the bytes that it keeps of it.
    pub(super) fn add(
        &mut self,
        aggregate: &Aggregate,
        (order, values): (Vec<Value>, Vec<Value>),
    ) -> Result<usize> {
        let takes_null = matches!(aggregate.kind, AggregateKind::Array | AggregateKind::First);
        let is_null = values.first().is_some_and(Value::is_null);
        if is_null && !takes_null {
            return Ok(0);
        }
        let mut bytes = 0;
        if aggregate.is_distinct {
            let key = encode::identity(&values[..1]);
            bytes = size_of::<Vec<u8>>() + key.len();
            if !self.more().seen.insert(key) {
                return Ok(0);
            }
        }
        let keeps = aggregate.kind == AggregateKind::Array || !aggregate.order.is_empty();
        if keeps || aggregate.is_distinct && aggregate.kind == AggregateKind::Text {
            bytes += bytes_of(&order) + bytes_of(&values);
            self.more().values.push((order, values));
            return Ok(bytes);
        }
        bytes += if aggregate.kind == AggregateKind::Text { bytes_of(&values) } else { 0 };
        self.take(aggregate, values)?;
        Ok(bytes)
    }

    /// Adds the value of the only argument of an aggregate without an order. Returns the bytes that
    /// it keeps of it.
    fn add_one(&mut self, aggregate: &Aggregate, value: Value) -> Result<usize> {
        use AggregateKind::{Array, First, Text};
        if aggregate.is_distinct || matches!(aggregate.kind, Array | First | Text) {
            return self.add(aggregate, (Vec::new(), vec![value]));
        }
        if !value.is_null() {
            self.take_value(aggregate, Some(value), None)?;
        }
        Ok(0)
    }

    fn take(&mut self, aggregate: &Aggregate, mut values: Vec<Value>) -> Result<()> {
        let separator = if values.len() > 1 { values.pop() } else { None };
        self.take_value(aggregate, values.pop(), separator)
    }

    fn take_value(
        &mut self,
        aggregate: &Aggregate,
        value: Option<Value>,
        separator: Option<Value>,
    ) -> Result<()> {
        self.count += 1;
        let Some(value) = value else { return Ok(()) };
        let before = self.sum.take();
        self.sum = match (aggregate.kind, before) {
            (AggregateKind::Count | AggregateKind::Grouping | AggregateKind::Array, _) => None,
            (AggregateKind::First, Some(before)) => Some(before),
            (AggregateKind::Least, Some(before)) if before.compare(&value).is_lt() => Some(before),
            (AggregateKind::Greatest, Some(before)) if before.compare(&value).is_gt() => Some(before),
            (AggregateKind::Least | AggregateKind::Greatest | AggregateKind::First, _) => Some(value),
            (AggregateKind::And, before) => {
                Some(Value::Bool(value == Value::Bool(true) && before != Some(Value::Bool(false))))
            }
            (AggregateKind::Or, before) => {
                Some(Value::Bool(value == Value::Bool(true) || before == Some(Value::Bool(true))))
            }
            (AggregateKind::BitAnd | AggregateKind::BitOr, before) => match (before, value) {
                (Some(Value::Int(one)), Value::Int(other)) if aggregate.kind == AggregateKind::BitAnd => {
                    Some(Value::Int(one & other))
                }
                (Some(Value::Int(one)), Value::Int(other)) => Some(Value::Int(one | other)),
                (_, value) => Some(value),
            },
            (AggregateKind::Text, before) => match (before, separator, value) {
                (Some(Value::Text(mut text)), separator, Value::Text(more)) => {
                    if let Some(Value::Text(separator)) = separator {
                        text.push_str(&separator);
                    }
                    text.push_str(&more);
                    Some(Value::Text(text))
                }
                (_, _, value) => Some(value),
            },
            (AggregateKind::Variance { .. }, before) if matches!(value, Value::Float(_)) => {
                // The method of Youngs and Cramer, as in PostgreSQL, whose last digits it gives.
                let float = |value: Option<&Value>| match value {
                    Some(Value::Float(number)) => *number,
                    _ => 0.0,
                };
                let (count, value) = (self.count as f64, float(Some(&value)));
                let sum = float(before.as_ref()) + value;
                let kept = &mut self.more().squares;
                let mut squares = float(kept.as_ref());
                if count > 1.0 {
                    squares += (value * count - sum).powi(2) / (count * (count - 1.0));
                }
                *kept = Some(Value::Float(squares));
                Some(Value::Float(sum))
            }
            (AggregateKind::Variance { .. }, before) => {
                let squares = &mut self.more().squares;
                *squares = Some(add(squares.take(), square(&value)?)?);
                Some(add(before, value)?)
            }
            (AggregateKind::Sum | AggregateKind::Average, before) => {
                let sum = add(before, value)?;
                Some(if aggregate.kind == AggregateKind::Sum {
                    sum.fit(aggregate.input, false)?
                } else {
                    sum
                })
            }
        };
        Ok(())
    }

    pub(super) fn end(mut self, aggregate: &Aggregate) -> Result<Value> {
        let more = self.more.take().map(|more| *more).unwrap_or_default();
        let (mut values, squares) = (more.values, more.squares);
        if !values.is_empty() {
            let directions: Vec<Direction> = aggregate.order.iter().map(|key| key.direction).collect();
            if directions.is_empty() && aggregate.is_distinct {
                // PostgreSQL finds equal values by sorting.
                values.sort_by(|(_, one), (_, other)| one[0].compare(&other[0]));
            } else {
                values.sort_by(|(one, _), (other, _)| compare_rows(one, other, &directions));
            }
            if aggregate.kind == AggregateKind::Array {
                let values: Vec<Value> =
                    values.into_iter().map(|(_, mut values)| values.swap_remove(0)).collect();
                return Ok(Value::Array(Box::new(Array::from(values))));
            }
            for (_, values) in values {
                self.take(aggregate, values)?;
            }
        }
        let count = Numeric::from_int(self.count);
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
            (AggregateKind::Average, Some(Value::Numeric(sum))) => Value::Numeric(sum.div(count)?),
            (AggregateKind::Variance { is_sample, is_root }, Some(sum)) => {
                variance(self.count, &sum, squares.as_ref(), is_sample, is_root)?
            }
            (_, Some(value)) => value,
        })
    }
}

/// Returns the variance, or its root, of so many values with this sum and this sum of squares.
fn variance(
    count: i64,
    sum: &Value,
    squares: Option<&Value>,
    is_sample: bool,
    is_root: bool,
) -> Result<Value> {
    let parts = if is_sample { count - 1 } else { count };
    if parts < 1 {
        return Ok(Value::Null);
    }
    match (sum, squares) {
        (Value::Float(_), Some(Value::Float(squares))) => {
            let variance = squares / parts as f64;
            Ok(Value::Float(if is_root { variance.sqrt() } else { variance }))
        }
        (Value::Numeric(sum), Some(Value::Numeric(squares))) => {
            let of = Numeric::from_int;
            let above = of(count).mul(*squares)?.sub(sum.mul(*sum)?)?;
            let variance = above.div(of(count).mul(of(parts))?)?;
            Ok(Value::Numeric(match is_root {
                false => variance,
                true => Numeric::from_float(variance.to_float().sqrt(), 17)?,
            }))
        }
        _ => Ok(Value::Null),
    }
}

/// The groups of a query, in the order in which they were found.
struct Grouping<'q> {
    groups: &'q Groups,
    /// The values by which rows are grouped, and the aggregates, without what is the same for all
    /// rows.
    by: Vec<Expr>,
    aggregates: Vec<Aggregate>,
    known: HashMap<Vec<u8>, usize>,
    all: Vec<(Vec<Value>, usize, Vec<Accumulated>)>,
    /// The bytes of groups in memory, and the most of them.
    bytes: usize,
    most: usize,
    /// The rows of other groups, for which there is no memory, each with the number of its set.
    spilled: Option<Spilled>,
    key: Vec<u8>,
    values: Vec<Taken>,
}

impl<'q> Grouping<'q> {
    fn new(run: &Run<'_>, groups: &'q Groups) -> Self {
        let (mut by, mut aggregates) = (groups.by.clone(), groups.aggregates.clone());
        let inner = aggregates.iter_mut().flat_map(|one| one.arguments.iter_mut().chain(&mut one.filter));
        by.iter_mut().chain(inner).for_each(|expr| expr.fold(run.inputs(&[])));
        let (known, all, spilled) = (HashMap::default(), Vec::new(), None);
        let (key, values) = (Vec::new(), Vec::new());
        let (bytes, most) = (0, run.work_mem());
        let mut new = Self { groups, by, aggregates, known, all, bytes, most, spilled, key, values };
        for (set, has) in groups.sets.iter().enumerate() {
            // A set without keys is one group, also of no rows.
            if groups.is_one || groups.sets.len() > 1 && !has.contains(&true) {
                let by = vec![Value::Null; groups.by.len()];
                put_key(&mut new.key, set, &by);
                new.add_group(by, set);
            }
        }
        new
    }

    fn add_group(&mut self, by: Vec<Value>, set: usize) {
        self.known.insert(self.key.clone(), self.all.len());
        self.all.push((by, set, vec![Accumulated::default(); self.groups.aggregates.len()]));
    }

    /// Adds a row to its group of each of these sets; one that comes from a file, with its keys.
    /// Returns false if the query needs no more.
    fn add(
        &mut self,
        run: &mut Run<'_>,
        row: &[Value],
        sets: Range<usize>,
        known_keys: Option<&[Value]>,
    ) -> Result<bool> {
        let Self { groups, by, aggregates, values, .. } = self;
        let groups = *groups;
        let keys = match known_keys {
            Some(keys) => Cow::Borrowed(keys),
            None => Cow::Owned(evaluate_all(by, run.inputs(row))?),
        };
        values.clear();
        for aggregate in aggregates {
            values.push(Taken::of(run, aggregate, row)?);
        }
        let is_first = groups.is_first && values.iter().any(Taken::has_value);
        let last = sets.end;
        for set in sets {
            let kept = keys.iter().zip(&groups.sets[set]);
            let by = kept.map(|(key, has)| if *has { key } else { &Value::Null });
            put_key(&mut self.key, set, by.clone());
            let at = match self.known.get(&self.key) {
                Some(known) => *known,
                None if known_keys.is_none() && self.bytes > self.most => {
                    let row = [&keys, row, &[Value::Int(set as i64)]].concat();
                    self.spilled.get_or_insert_with(|| Spilled::new(run)).push(&self.key, row)?;
                    continue;
                }
                None => {
                    let by: Vec<Value> = by.cloned().collect();
                    let bytes = bytes_of(&by) + groups.aggregates.len() * size_of::<Accumulated>();
                    run.keep_bytes(bytes)?;
                    self.bytes += bytes;
                    self.add_group(by, set);
                    self.all.len() - 1
                }
            };
            let states = self.all[at].2.iter_mut();
            for ((state, aggregate), value) in states.zip(&groups.aggregates).zip(&mut self.values) {
                // The last set needs no copy.
                let value =
                    if set + 1 == last { std::mem::replace(value, Taken::Nothing) } else { value.clone() };
                let bytes = match value {
                    Taken::Nothing => continue,
                    Taken::One(value) => state.add_one(aggregate, value)?,
                    Taken::Many(order, values) => state.add(aggregate, (order, values))?,
                };
                run.keep_bytes(bytes)?;
                self.bytes += bytes;
            }
        }
        Ok(!is_first)
    }

    /// Calls `act` with a row for each group that is known, which goes.
    async fn end_known(&mut self, run: &mut Run<'_>, act: RowSink<'_>) -> Result<()> {
        let groups = self.groups;
        // To clear a large table takes long, however few groups it has now.
        self.known = HashMap::default();
        for (mut row, set, states) in self.all.drain(..) {
            for (state, aggregate) in states.into_iter().zip(&groups.aggregates) {
                row.push(match aggregate.kind {
                    AggregateKind::Grouping => Value::Int(missing(&aggregate.arguments, &groups.sets[set])),
                    _ => state.end(aggregate)?,
                });
            }
            let row = &row[..];
            let end = &mut |run: &mut Run<'_>| match &groups.having {
                Some(having) if !having.holds(run.inputs(row))? => Ok(()),
                _ => act(run, row),
            };
            run.complete(end).await?;
        }
        run.memory -= self.bytes;
        self.bytes = 0;
        Ok(())
    }
}

/// The function that gets the rows of groups.
pub(super) type RowSink<'a> = &'a mut dyn FnMut(&mut Run<'_>, &[Value]) -> Result<()>;

/// Calls `act` with a row for each group: the values by which it is grouped, and the aggregates.
pub(super) async fn grouped(
    run: &mut Run<'_>,
    query: &Select,
    groups: &Groups,
    is_empty: bool,
    act: RowSink<'_>,
) -> Result<()> {
    let mut grouping = Grouping::new(run, groups);
    let sets = 0..groups.sets.len();
    if !is_empty {
        let mut add = |run: &mut Run<'_>, row: &[Value]| grouping.add(run, row, sets.clone(), None);
        match query.sources.is_empty() {
            true => drop(run.complete(&mut |run| add(run, &[])).await?),
            false => joined(run, &query.sources, &mut add).await?,
        }
    }
    grouping.end_known(run, act).await?;
    let Some(spilled) = grouping.spilled.take() else { return Ok(()) };
    // Rows of one group come one behind the other, perhaps with those of few others.
    let (mut rows, mut present) = (spilled.rows().await?, None);
    while let Some(hash) = rows.hash()? {
        if present.replace(hash) != Some(hash) {
            grouping.end_known(run, act).await?;
        }
        if let Some(mut row) = rows.next_up_to(hash)?
            && let Some(Value::Int(set)) = row.pop()
        {
            let (set, (keys, row)) = (set as usize, row.split_at(groups.by.len()));
            run.complete(&mut |run| grouping.add(run, row, set..set + 1, Some(keys))).await?;
        }
    }
    grouping.end_known(run, act).await
}

fn put_key<'a>(key: &mut Vec<u8>, set: usize, by: impl IntoIterator<Item = &'a Value>) {
    key.clear();
    by.into_iter().for_each(|value| encode::put_identity(key, value));
    key.extend((set as u32).to_le_bytes());
}

/// Returns a bit for each key that a set has not, the last key lowest.
fn missing(keys: &[Expr], has: &[bool]) -> i64 {
    let is_missing = |key: &Expr| match key {
        Expr::Column(at) => !has.get(*at).copied().unwrap_or(true),
        _ => false,
    };
    keys.iter().fold(0, |bits, key| bits << 1 | i64::from(is_missing(key)))
}
