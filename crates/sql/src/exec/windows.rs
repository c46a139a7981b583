//! The values of window functions.

use std::cmp::Ordering;

use sqlparser::ast::WindowFrameUnits as Units;

use super::{
    Run,
    groups::{Accumulated, inputs_of},
};
use crate::{
    bind::windows::{Bound, Range, WindowCall, WindowFunction},
    error::{Result, SqlError, error, fail},
    expr::Expr,
    spool::{Direction, compare_rows},
    types::Value,
};

/// Returns rows with the values of window functions behind them.
pub(super) async fn with_windows(
    run: &mut Run<'_>,
    calls: &[WindowCall],
    mut rows: Vec<Vec<Value>>,
) -> Result<Vec<Vec<Value>>> {
    let width = rows.first().map_or(0, Vec::len);
    for call in calls {
        let mut placed = Vec::with_capacity(rows.len());
        for (at, row) in rows.iter().enumerate() {
            let row = &row[..width];
            let evaluate = |run: &Run<'_>, expr: &Expr| expr.evaluate(run.inputs(row));
            let keys = run
                .complete(&mut |run| {
                    let partition = call.partition.iter().map(|expr| evaluate(run, expr));
                    let order = call.order.iter().map(|key| evaluate(run, &key.by));
                    Ok((partition.collect::<Result<Vec<_>>>()?, order.collect::<Result<Vec<_>>>()?))
                })
                .await?;
            run.keep(&keys.1)?;
            placed.push((keys.0, keys.1, at));
        }
        let directions: Vec<Direction> = call.order.iter().map(|key| key.direction).collect();
        let same = vec![Direction::RISING; call.partition.len()];
        placed.sort_by(|one, other| {
            compare_rows(&one.0, &other.0, &same).then_with(|| compare_rows(&one.1, &other.1, &directions))
        });
        let mut values = vec![Value::Null; rows.len()];
        let mut start = 0;
        while start < placed.len() {
            let is_same = |row: &(Vec<Value>, Vec<Value>, usize)| {
                compare_rows(&row.0, &placed[start].0, &same) == Ordering::Equal
            };
            let count = placed[start..].iter().take_while(|row| is_same(row)).count();
            let part = &placed[start..start + count];
            let members: Vec<&[Value]> = part.iter().map(|(.., at)| &rows[*at][..width]).collect();
            let groups = peers(part, &directions);
            let found = partition_values(run, call, &members, &groups).await?;
            run.keep(&found)?;
            for ((.., at), value) in part.iter().zip(found) {
                values[*at] = value;
            }
            start += count;
        }
        rows.iter_mut().zip(values).for_each(|(row, value)| row.push(value));
    }
    Ok(rows)
}

/// Returns for each row of a partition the first row of those with equal order, and that behind
/// them.
fn peers(part: &[(Vec<Value>, Vec<Value>, usize)], directions: &[Direction]) -> Vec<(usize, usize)> {
    let mut groups = Vec::with_capacity(part.len());
    let mut start = 0;
    while start < part.len() {
        let is_peer = |row: &(Vec<Value>, Vec<Value>, usize)| {
            compare_rows(&row.1, &part[start].1, directions) == Ordering::Equal
        };
        let count = part[start..].iter().take_while(|row| is_peer(row)).count();
        groups.extend(std::iter::repeat_n((start, start + count), count));
        start += count;
    }
    groups
}

/// Returns the values of a function for the rows of a partition.
async fn partition_values(
    run: &mut Run<'_>,
    call: &WindowCall,
    rows: &[&[Value]],
    groups: &[(usize, usize)],
) -> Result<Vec<Value>> {
    let count = rows.len();
    let share = |above: usize, below: usize| match below {
        0 => Value::Float(0.0),
        below => Value::Float(above as f64 / below as f64),
    };
    let all = 0..count;
    Ok(match &call.function {
        WindowFunction::RowNumber => all.map(|at| Value::Int(at as i64 + 1)).collect(),
        WindowFunction::Rank => all.map(|at| Value::Int(groups[at].0 as i64 + 1)).collect(),
        WindowFunction::DenseRank => {
            let mut rank = 0;
            let ranks = all.map(|at| {
                rank += i64::from(groups[at].0 == at);
                Value::Int(rank)
            });
            ranks.collect()
        }
        WindowFunction::PercentRank => all.map(|at| share(groups[at].0, count - 1)).collect(),
        WindowFunction::CumeDist => all.map(|at| share(groups[at].1, count)).collect(),
        WindowFunction::Ntile => {
            let first = rows.first().copied().unwrap_or_default();
            let parts = match run.complete(&mut |run| call.arguments[0].evaluate(run.inputs(first))).await? {
                Value::Int(parts @ 1..) => parts as usize,
                Value::Null => return Ok(vec![Value::Null; count]),
                _ => {
                    fail!("22014", "argument of ntile must be greater than zero");
                }
            };
            let (size, larger) = (count / parts, count % parts);
            let tile = |at: usize| match at < larger * (size + 1) {
                true => at / (size + 1),
                false => larger + (at - larger * (size + 1)) / size.max(1),
            };
            all.map(|at| Value::Int(tile(at) as i64 + 1)).collect()
        }
        WindowFunction::Offset { is_before } => {
            let [value, default, by] = &call.arguments[..] else { return Ok(Vec::new()) };
            let mut values = Vec::with_capacity(count);
            for (at, row) in rows.iter().enumerate() {
                let mut find = |run: &mut Run<'_>| {
                    let Value::Int(by) = by.evaluate(run.inputs(row))? else { return Ok(Value::Null) };
                    let by = if *is_before { by.checked_neg() } else { Some(by) };
                    let place = by.and_then(|by| usize::try_from((at as i64).checked_add(by)?).ok());
                    match place.and_then(|at| rows.get(at)) {
                        Some(other) => value.evaluate(run.inputs(other)),
                        None => default.evaluate(run.inputs(row)),
                    }
                };
                values.push(run.complete(&mut find).await?);
            }
            values
        }
        function => {
            let mut values = Vec::with_capacity(count);
            // The last frame with its value: frames often stay, or grow at their end.
            let (mut last, mut state) = (0..0, Accumulated::default());
            let memory = run.memory;
            let mut keys = Vec::new();
            if let Some(range) = &call.frame.range {
                for row in rows {
                    keys.push(run.complete(&mut |run| range.key.evaluate(run.inputs(row))).await?);
                }
                run.keep(&keys)?;
            }
            for (at, row) in rows.iter().enumerate() {
                let (from, to) = run.complete(&mut |run| frame(run, call, at, row, (groups, &keys))).await?;
                if let WindowFunction::Aggregate(aggregate) = function {
                    if last.start != from || last.end > to {
                        (last, state, run.memory) = (from..from, Accumulated::default(), memory);
                    }
                    for row in rows.get(last.end..to).unwrap_or_default() {
                        let inputs = run.complete(&mut |run| inputs_of(run, aggregate, row)).await?;
                        let bytes = inputs.map_or(Ok(0), |inputs| state.add(aggregate, inputs))?;
                        run.keep_bytes(bytes)?;
                    }
                    last = from..to;
                    values.push(state.clone().end(aggregate)?);
                    continue;
                }
                let value_at = |run: &Run<'_>, expr: &Expr, at: usize| match (from..to).contains(&at) {
                    true => expr.evaluate(run.inputs(rows[at])),
                    false => Ok(Value::Null),
                };
                let mut find = |run: &mut Run<'_>| match function {
                    WindowFunction::First => value_at(run, &call.arguments[0], from),
                    WindowFunction::Last => value_at(run, &call.arguments[0], to.wrapping_sub(1)),
                    WindowFunction::Nth => match call.arguments[1].evaluate(run.inputs(row))? {
                        Value::Int(number @ 1..) => {
                            value_at(run, &call.arguments[0], from.saturating_add(number as usize - 1))
                        }
                        Value::Null => Ok(Value::Null),
                        _ => Err(error!("22016", "argument of nth_value must be greater than zero")),
                    },
                    _ => Ok(Value::Null),
                };
                values.push(run.complete(&mut find).await?);
            }
            run.memory = memory;
            values
        }
    })
}

/// Returns the frame of a row: its first row, and the row behind its last one.
fn frame(
    run: &Run<'_>,
    call: &WindowCall,
    at: usize,
    row: &[Value],
    (groups, keys): (&[(usize, usize)], &[Value]),
) -> Result<(usize, usize)> {
    let count = groups.len();
    // The rows before a value in the order, with those that have it.
    let before = |value: &Value, with_equal: bool, range: &Range| {
        let directions = [range.direction];
        let is_before = |key: &Value| match compare_rows(
            std::slice::from_ref(key),
            std::slice::from_ref(value),
            &directions,
        ) {
            Ordering::Less => true,
            Ordering::Equal => with_equal,
            Ordering::Greater => false,
        };
        keys.partition_point(is_before)
    };
    let ranged = |offset: &Expr, value: &Expr| -> Result<Value> {
        let is_negative = match offset.evaluate(run.inputs(row))? {
            Value::Int(number) => number < 0,
            Value::Float(number) => number < 0.0 || number.is_nan(),
            Value::Numeric(number) => number.digits < 0,
            Value::Interval(span) => span.months < 0 || span.days < 0 || span.microseconds < 0,
            Value::Null => return Err(SqlError::new("22004", "frame offset must not be null")),
            _ => false,
        };
        if is_negative {
            fail!("22013", "invalid preceding or following size in window function");
        }
        value.evaluate(run.inputs(row))
    };
    let units = call.frame.units;
    let negative = |what: &str| error!("22013", "frame {what} offset must not be negative");
    let number = |expr: &Expr, what: &str| match expr.evaluate(run.inputs(row))? {
        Value::Int(number) => usize::try_from(number).map_err(|_| negative(what)),
        _ => Err(error!(INVALID_PARAMETER_VALUE, "frame {what} offset must not be null")),
    };
    // Moves by groups of rows with equal order.
    let moved = |by: usize, is_before: bool| -> Option<(usize, usize)> {
        let mut group = groups[at];
        for _ in 0..by {
            group = match is_before {
                true => *groups.get(group.0.checked_sub(1)?)?,
                false => *groups.get(group.1)?,
            };
        }
        Some(group)
    };
    // The row at an end; for the last one that behind it.
    let place = |bound: &Bound, is_end: bool| -> Result<usize> {
        let own = at + usize::from(is_end);
        let of_group = |group: (usize, usize)| if is_end { group.1 } else { group.0 };
        let range = call.frame.range.as_ref();
        let value = range.and_then(|range| if is_end { range.end.as_ref() } else { range.start.as_ref() });
        let what = if is_end { "ending" } else { "starting" };
        Ok(match bound {
            Bound::First => 0,
            Bound::Last => count,
            Bound::Current if units == Units::Rows => own,
            Bound::Current => of_group(groups[at]),
            Bound::Before(offset) | Bound::Behind(offset)
                if let (Some(range), Some(value)) = (range, value) =>
            {
                before(&ranged(offset, value)?, is_end, range)
            }
            Bound::Before(by) if units == Units::Rows => own.saturating_sub(number(by, what)?),
            Bound::Before(by) => moved(number(by, what)?, true).map_or(0, of_group),
            Bound::Behind(by) if units == Units::Rows => own.saturating_add(number(by, what)?).min(count),
            Bound::Behind(by) => moved(number(by, what)?, false).map_or(count, of_group),
        })
    };
    let (from, to) = (place(&call.frame.start, false)?, place(&call.frame.end, true)?);
    Ok((from.min(count), to.max(from.min(count))))
}
