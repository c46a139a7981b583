//! Scans and joins: the rows of FROM.

use std::{borrow::Cow, collections::HashMap, rc::Rc};

use plexus_store::tree::ScanPlace;

use super::{Run, all_hold, query};
use crate::{
    bind::{
        from::{Relation, Source},
        paths::Path,
        sets::SetCall,
    },
    catalog::Table,
    error::Result,
    expr::{Comparison, Expr, Inputs, evaluate_all},
    types::{Type, Value, encode},
};

/// A row: its key if it is one of a table, and its values.
pub(crate) type KeyedRow = (Vec<u8>, Vec<Value>);

/// Rows that are kept in memory.
pub(crate) type KeptRows = Rc<Vec<Vec<Value>>>;

/// The least number of rows for which a join makes a table of their values.
const LEAST_HASHED: usize = 8;

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

/// Calls `act` with each row of a source that a row of the sources before it leads to; it returns
/// false to end. It is called again with the same row when it has missed what a subquery gives.
pub(crate) async fn each_row(
    run: &mut Run<'_>,
    source: &Source,
    before: &[Value],
    act: &mut dyn FnMut(&mut Run<'_>, &KeyedRow) -> Result<bool>,
) -> Result<()> {
    let Relation::Table(table) = &source.relation else {
        let memory = run.memory;
        let rows = Box::pin(rows_of(run, source, before)).await?;
        // Those of a query in FROM are gone at the end.
        let is_own = matches!(source.relation, Relation::Query { .. } | Relation::Joined(_));
        let own = if is_own { run.memory - memory } else { 0 };
        for values in rows.iter() {
            let row = (Vec::new(), values.clone());
            if !run.complete(&mut |run| act(run, &row)).await? {
                break;
            }
        }
        run.memory -= own;
        return Ok(());
    };
    let columns = table.columns.len();
    let keys = run.complete(&mut |run| keys_of(&source.path, table, run.inputs(before))).await?;
    let (from, to) = match keys {
        Keys::None => return Ok(()),
        Keys::Point(key) => {
            if let Some(row) = run.by.get(table.rows(), &key).await? {
                let row = (key, encode::read_row(&row, columns)?);
                run.complete(&mut |run| act(run, &row)).await?;
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
            let row = (key, encode::read_row(&row, columns)?);
            if !run.complete(&mut |run| act(run, &row)).await? {
                return Ok(());
            }
        }
        let Some(next) = next else { return Ok(()) };
        place = next;
    }
}

/// Returns the rows of a relation that is no table.
async fn rows_of(run: &mut Run<'_>, source: &Source, before: &[Value]) -> Result<KeptRows> {
    match &source.relation {
        Relation::Table(_) => Ok(Rc::default()),
        Relation::System(table) => {
            let context = run.context;
            run.complete(&mut |_| context.definitions.rows(table, context)).await
        }
        Relation::Sequence(sequence) => {
            let (last, is_called) = sequence.state(run.by).await?;
            Ok(Rc::new(vec![vec![Value::Int(last), Value::Int(0), Value::Bool(is_called)]]))
        }
        Relation::Query { query, outer: None } => {
            let outer = run.outer;
            query::kept(run, query, outer).await.map(Rc::new)
        }
        Relation::Query { query, outer: Some(outer) } => {
            let outer = run.evaluate(outer, before).await?;
            query::kept(run, query, &outer).await.map(Rc::new)
        }
        Relation::Shared(shared) => query::shared(run, shared).await,
        Relation::Working(number) => Ok(run.context.answers.working(*number)),
        Relation::Functions(calls, is_numbered) => {
            let mut rows =
                run.complete(&mut |run| call_all(calls, run.inputs(before), calls.len() > 1)).await?;
            if *is_numbered {
                (1..).zip(&mut rows).for_each(|(number, row)| row.push(Value::Int(number)));
            }
            Ok(Rc::new(rows))
        }
        Relation::Joined(sources) => {
            let mut rows = Vec::new();
            joined(run, sources, &mut |run, row| {
                run.keep(row)?;
                rows.push(row.to_vec());
                Ok(true)
            })
            .await?;
            Ok(Rc::new(rows))
        }
    }
}

/// Returns the rows of functions side by side; those with fewer rows get NULL.
pub(super) fn call_all(calls: &[SetCall], inputs: Inputs<'_>, is_padded: bool) -> Result<Vec<Vec<Value>>> {
    let mut all = Vec::new();
    for call in calls {
        let values = evaluate_all(&call.arguments, inputs)?;
        let is_missing = !call.function.name().is_empty() && values.iter().any(Value::is_null);
        let rows = match is_missing {
            true => Vec::new(),
            false => (call.function.act)(&values, &call.types, inputs.context)?,
        };
        all.push((rows, call.columns.len()));
    }
    if !is_padded && all.len() == 1 {
        return Ok(all.pop().unwrap_or_default().0);
    }
    let count = all.iter().map(|(rows, _)| rows.len()).max().unwrap_or(0);
    let row = |at: usize| {
        let parts = all
            .iter()
            .map(|(rows, width)| rows.get(at).cloned().unwrap_or_else(|| vec![Value::Null; *width]));
        parts.flatten().collect()
    };
    Ok((0..count).map(row).collect())
}

/// Rows of a source that are kept for all rows before it.
struct Kept {
    rows: Vec<KeyedRow>,
    is_matched: Vec<bool>,
    /// The rows by values that are equal to those of expressions of the rows before.
    hashed: Option<(Vec<Expr>, HashMap<Vec<u8>, Vec<usize>>)>,
}

/// Returns pairs of expressions that are equal in joined rows: of the rows before, and of the
/// source.
fn equal_pairs(source: &Source) -> (Vec<Expr>, Vec<Expr>) {
    let (start, end) = (source.offset, source.offset + source.width);
    let side = |expr: &Expr| {
        let (mut is_before, mut is_own, mut has_column) = (true, true, false);
        expr.columns(&mut |column| {
            has_column = true;
            is_before &= column < start;
            is_own &= (start..end).contains(&column);
        });
        (is_before, is_own && has_column)
    };
    let (mut before, mut own) = (Vec::new(), Vec::new());
    for condition in source.outer.as_ref().unwrap_or(&source.conditions) {
        let Expr::Compare(Comparison::Equal, one, other) = condition else { continue };
        let pair = match (side(one), side(other)) {
            ((true, _), (_, true)) => Some((one, other)),
            ((_, true), (true, _)) => Some((other, one)),
            _ => None,
        };
        if let Some((of_before, of_own)) = pair {
            let mut of_own = (**of_own).clone();
            of_own.move_columns(&|column| column - start);
            before.push((**of_before).clone());
            own.push(of_own);
        }
    }
    (before, own)
}

async fn keep(run: &mut Run<'_>, source: &Source, before: &[Value]) -> Result<Kept> {
    let mut rows: Vec<KeyedRow> = Vec::new();
    each_row(run, source, before, &mut |run, row| {
        run.keep(&row.1)?;
        rows.push(row.clone());
        Ok(true)
    })
    .await?;
    let (of_before, of_own) = equal_pairs(source);
    let mut hashed = None;
    if !of_own.is_empty() && rows.len() >= LEAST_HASHED {
        let mut by: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
        for (at, (_, row)) in rows.iter().enumerate() {
            let values = run.evaluate(&of_own, row).await?;
            if !values.iter().any(Value::is_null) {
                by.entry(encode::identity(&values)).or_default().push(at);
            }
        }
        hashed = Some((of_before, by));
    }
    Ok(Kept { is_matched: vec![false; rows.len()], rows, hashed })
}

/// Returns the values of a row, and its key behind them if the source has it there.
fn values_with_key<'a>(source: &Source, (key, values): &'a KeyedRow) -> Cow<'a, [Value]> {
    match source.has_key {
        false => Cow::Borrowed(values),
        true => Cow::Owned([&values[..], &[Value::Bytes(key.clone())]].concat()),
    }
}

/// Calls `act` with each row of the joined sources; it returns false to end.
pub(crate) async fn joined(
    run: &mut Run<'_>,
    sources: &[Source],
    act: &mut dyn FnMut(&mut Run<'_>, &[Value]) -> Result<bool>,
) -> Result<()> {
    let mut before: Vec<Vec<Value>> = vec![Vec::new()];
    for (at, source) in sources.iter().enumerate() {
        let is_last = at + 1 == sources.len();
        let mut found = Vec::new();
        let mut kept: Option<Kept> = None;
        let mut goes_on = true;
        // The rows of a source that does not depend on others are read once.
        let is_kept =
            at > 0 && source.is_constant() && !source.table().is_some_and(|t| source.path.is_point(t));
        let mut end = |run: &mut Run<'_>, whole: &[Value]| -> Result<bool> {
            if !all_hold(&source.conditions, run.inputs(whole))? {
                return Ok(true);
            }
            if is_last {
                return act(run, whole);
            }
            run.keep(whole)?;
            found.push(whole.to_vec());
            Ok(true)
        };
        for row in &before {
            if !goes_on {
                break;
            }
            let mut has_match = false;
            // Returns whether the row has this partner, and whether to go on.
            let mut take = |run: &mut Run<'_>, values: &[Value]| -> Result<(bool, bool)> {
                let joined;
                let whole = match row.is_empty() {
                    true => values,
                    false => {
                        joined = [&row[..], values].concat();
                        &joined[..]
                    }
                };
                if let Some(outer) = &source.outer
                    && !all_hold(outer, run.inputs(whole))?
                {
                    return Ok((false, true));
                }
                let goes_on = end(run, whole)?;
                Ok((true, goes_on))
            };
            if is_kept {
                if kept.is_none() {
                    kept = Some(keep(run, source, row).await?);
                }
                let Some(Kept { rows, is_matched, hashed }) = &mut kept else { break };
                let chosen = match hashed {
                    None => None,
                    Some((of_before, by)) => {
                        let values = run.evaluate(of_before, row).await?;
                        let key = (!values.iter().any(Value::is_null)).then(|| encode::identity(&values));
                        Some(key.and_then(|key| by.get(&key)).map_or(&[][..], Vec::as_slice))
                    }
                };
                for place in 0..chosen.map_or(rows.len(), <[usize]>::len) {
                    let at = chosen.map_or(place, |chosen| chosen[place]);
                    let (is_partner, more) =
                        run.complete(&mut |run| take(run, &values_with_key(source, &rows[at]))).await?;
                    is_matched[at] |= is_partner;
                    has_match |= is_partner;
                    goes_on = more;
                    if !goes_on {
                        break;
                    }
                }
            } else {
                each_row(run, source, row, &mut |run, found| {
                    let (is_partner, more) = take(run, &values_with_key(source, found))?;
                    has_match |= is_partner;
                    goes_on = more;
                    Ok(more)
                })
                .await?;
            }
            if source.outer.is_some() && !has_match && goes_on {
                let whole = [&row[..], &vec![Value::Null; source.width]].concat();
                goes_on = run.complete(&mut |run| end(run, &whole)).await?;
            }
        }
        if source.is_full && goes_on {
            if kept.is_none() {
                kept = Some(keep(run, source, &[]).await?);
            }
            let alone = kept.iter().flat_map(|kept| kept.rows.iter().zip(&kept.is_matched));
            for ((_, values), _) in alone.filter(|(_, is_matched)| !**is_matched) {
                let whole = [&vec![Value::Null; source.offset][..], values].concat();
                if !run.complete(&mut |run| end(run, &whole)).await? {
                    break;
                }
            }
        }
        before = found;
    }
    Ok(())
}
