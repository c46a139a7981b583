//! Changes of rows, with the entries of their indexes and what foreign keys need.

use std::{borrow::Cow, collections::VecDeque, rc::Rc};

use plexus_store::{RowChange, RowLock};

use super::{
    failing_row,
    foreign::{note, note_shared},
    target::{Target, Targets},
    violated,
};
use crate::{
    catalog::{Table, number_key},
    error::{Result, SqlError, code, error},
    exec::{Run, all_hold},
    expr::{Expr, Inputs},
    functions::Context,
    types::{Value, encode, text},
};

/// The unique key whose conflict a statement knows how to handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arbiter {
    Primary,
    Index(usize),
}

/// The end of an insert.
pub(super) enum Inserted {
    /// The row has this key.
    New(Vec<u8>),
    /// The row with this key has the same values of an arbiter, and nothing was changed.
    Conflict(Vec<u8>),
}

/// Checks that no value is NULL that must not be.
pub(super) fn check_nulls(table: &Table, row: &[Value]) -> Result<()> {
    for (at, (column, value)) in table.columns.iter().zip(row).enumerate() {
        let is_key = table.primary.as_ref().is_some_and(|primary| primary.columns.contains(&at));
        if value.is_null() && (column.not_null || is_key) {
            let message = format!(
                "null value in column \"{}\" of relation \"{}\" violates not-null constraint",
                column.name, table.name
            );
            let error = SqlError::new(code::NOT_NULL_VIOLATION, message).with_detail(failing_row(table, row));
            return Err(error.with(|fields| {
                fields.schema = Some(table.schema.clone());
                fields.table = Some(table.name.clone());
                fields.column = Some(column.name.clone());
            }));
        }
    }
    Ok(())
}

/// Returns the error for a row whose key is there: the columns and values of the key.
fn duplicate(table: &Table, name: &str, parts: &[(String, Value, crate::types::Type)]) -> SqlError {
    let names: Vec<&str> = parts.iter().map(|(name, ..)| name.as_str()).collect();
    let values: Vec<String> = parts
        .iter()
        .map(|(_, value, of)| if value.is_null() { "null".into() } else { text::print(value, *of) })
        .collect();
    let message = format!("duplicate key value violates unique constraint \"{name}\"");
    let detail = format!("Key ({})=({}) already exists.", names.join(", "), values.join(", "));
    violated(code::UNIQUE_VIOLATION, table, name, message, detail)
}

fn duplicate_primary(table: &Table, row: &[Value]) -> SqlError {
    let (name, columns) = table.primary.as_ref().map_or(("", &[][..]), |key| (&key.name, &key.columns));
    let parts: Vec<_> = columns
        .iter()
        .map(|at| (table.columns[*at].name.clone(), row[*at].clone(), table.columns[*at].of))
        .collect();
    duplicate(table, name, &parts)
}

/// Inserts a row, whose generated columns are computed.
pub(super) async fn insert_row(
    run: &mut Run<'_>,
    targets: &Rc<Targets>,
    at: usize,
    row: &[Value],
    arbiters: &[Arbiter],
) -> Result<Inserted> {
    let target = &targets.0[at];
    let table = &*target.table;
    let key = match table.primary_key(row)? {
        Some(key) => key,
        None => number_key(run.by.store().fresh_id().await?),
    };
    // The entries of arbiters are first: if one is there, the others go again.
    let mut made: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut conflict = None;
    for arbiter in arbiters {
        let Arbiter::Index(index) = *arbiter else { continue };
        let Some((entry, true)) = target.entry(index, &key, row, run.context)? else { continue };
        conflict = put_if_new(run, table.indexes[index].tree(), &entry, &key).await?;
        if conflict.is_some() {
            break;
        }
        made.push((index, entry));
    }
    if conflict.is_none() && put_if_new(run, table.rows(), &key, &encode::row(row)).await?.is_some() {
        if !arbiters.contains(&Arbiter::Primary) {
            return Err(duplicate_primary(table, row));
        }
        conflict = Some(key.clone());
    }
    if let Some(conflict) = conflict {
        for (index, entry) in made {
            run.by.change(table.indexes[index].tree(), &entry, &mut |_| RowChange::Remove).await?;
        }
        return Ok(Inserted::Conflict(conflict));
    }
    let indexes = (0..table.indexes.len()).filter(|index| made.iter().all(|(known, _)| known != index));
    for index in indexes {
        if let Some((entry, _)) = target.entry(index, &key, row, run.context)? {
            put_entry(run, targets, (at, index), &entry, &key, row).await?;
        }
    }
    if target.has_references() {
        note(run, targets, at, &key, None, Some(row)).await?;
    }
    Ok(Inserted::New(key))
}

/// Makes the entries of rows in an index that is being built, unless they are there, and takes
/// their keys away. The rows stay as they are until the end of the transaction. One that another
/// transaction has is waited for only if it is the first; else it is left, with those behind it.
pub(crate) async fn fill_index(
    run: &mut Run<'_>,
    targets: &Rc<Targets>,
    at: usize,
    keys: &mut VecDeque<Vec<u8>>,
) -> Result<()> {
    let (mut is_first, all) = (true, keys.len());
    while let Some(key) = keys.front() {
        run.by.never_wait(!is_first);
        let filled = fill_entry(run, targets, at, key).await;
        run.by.never_wait(false);
        match filled {
            Ok(()) => drop(keys.pop_front()),
            Err(error) if error.code == code::LOCK_NOT_AVAILABLE && !is_first => break,
            Err(error) => return Err(error),
        }
        is_first = false;
    }
    debug_assert!(keys.len() < all || all == 0);
    Ok(())
}

async fn fill_entry(run: &mut Run<'_>, targets: &Rc<Targets>, at: usize, key: &[u8]) -> Result<()> {
    let target = targets.first();
    let (table, index) = (&target.table, &target.table.indexes[at]);
    let mut newest = None;
    let mut take = |row: Option<&[u8]>| {
        newest = row.map(<[u8]>::to_vec);
        row.is_some()
    };
    run.by.lock(table.rows(), key, RowLock::Share, &mut take).await?;
    let Some(row) = newest else { return Ok(()) };
    let row = encode::read_row(&row, table.columns.len())?;
    let Some((entry, _)) = target.entry(at, key, &row, run.context)? else { return Ok(()) };
    let known = put_if_new(run, index.tree(), &entry, &index.value_of(key)).await?;
    match known.is_some_and(|known| !index.row_keys(&known).contains(&key)) {
        true => Err(duplicate_entry(target, at, &row, run.context)),
        false => Ok(()),
    }
}

/// Sets a row of a tree if there is none. Returns the contents that were there.
async fn put_if_new(
    run: &mut Run<'_>,
    tree: plexus_base::BlockId,
    key: &[u8],
    contents: &[u8],
) -> Result<Option<Vec<u8>>> {
    let mut found = None;
    let mut set = |old: Option<&[u8]>| {
        found = old.map(<[u8]>::to_vec);
        if old.is_none() { RowChange::Set(contents.to_vec()) } else { RowChange::Keep }
    };
    run.by.change(tree, key, &mut set).await?;
    Ok(found)
}

/// Changes the entries of a row in all indexes.
async fn change_indexes(
    run: &mut Run<'_>,
    targets: &Rc<Targets>,
    of: usize,
    key: &[u8],
    old: Option<&[Value]>,
    new: Option<&[Value]>,
) -> Result<()> {
    let target = &targets.0[of];
    for (at, index) in target.table.indexes.iter().enumerate() {
        let before = old.map_or(Ok(None), |row| target.entry(at, key, row, run.context))?;
        let after = new.map_or(Ok(None), |row| target.entry(at, key, row, run.context))?;
        if before == after {
            continue;
        }
        if let Some((entry, _)) = before {
            let mut remove = |value: Option<&[u8]>| {
                let others = index.row_keys(value.unwrap_or_default()).into_iter();
                let others = others.filter(|other| *other != key).map(|other| index.value_of(other));
                let others = others.collect::<Vec<_>>().concat();
                if others.is_empty() { RowChange::Remove } else { RowChange::Set(others) }
            };
            run.by.change(index.tree(), &entry, &mut remove).await?;
        }
        if let (Some((entry, _)), Some(row)) = (after, new) {
            put_entry(run, targets, (of, at), &entry, key, row).await?;
        }
    }
    Ok(())
}

/// The most rows with the same values of a deferrable key: each one more writes all again.
const MOST_SHARED: usize = 1000;

/// Makes an entry of an index: that of a target and of a number.
pub(crate) async fn put_entry(
    run: &mut Run<'_>,
    targets: &Rc<Targets>,
    (of, at): (usize, usize),
    entry: &[u8],
    key: &[u8],
    row: &[Value],
) -> Result<()> {
    let target = &targets.0[of];
    let index = &target.table.indexes[at];
    if index.deferral.is_none() {
        return match put_if_new(run, index.tree(), entry, key).await? {
            None => Ok(()),
            Some(_) => Err(duplicate_entry(target, at, row, run.context)),
        };
    }
    let mut count = 0;
    let mut add = |value: Option<&[u8]>| {
        let all = [value.unwrap_or_default(), &index.value_of(key)].concat();
        count = index.row_keys(&all).len();
        if count > MOST_SHARED { RowChange::Keep } else { RowChange::Set(all) }
    };
    run.by.change(index.tree(), entry, &mut add).await?;
    match count {
        ..2 => Ok(()),
        2..=MOST_SHARED => note_shared(run, targets, (of, at), entry),
        _ => Err(error!(PROGRAM_LIMIT, "more than {MOST_SHARED} rows with one value of \"{}\"", index.name)),
    }
}

/// Returns the error for a row whose entry of an index is there.
pub(crate) fn duplicate_entry(target: &Target, at: usize, row: &[Value], context: &Context) -> SqlError {
    duplicate(&target.table, &target.table.indexes[at].name, &target.shown_entry(at, row, context))
}

/// Returns the newest values of a row if it still meets the conditions, with the values behind it.
fn newest(
    table: &Table,
    conditions: &[Expr],
    bytes: Option<&[u8]>,
    behind: &[Value],
    inputs: Inputs<'_>,
) -> Result<Option<Vec<Value>>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let row = encode::read_row(bytes, table.columns.len())?;
    let seen = with_behind(&row, behind);
    let holds = all_hold(conditions, Inputs { row: &seen, ..inputs })?;
    drop(seen);
    Ok(holds.then_some(row))
}

/// Returns a row with the values behind it.
pub(super) fn with_behind<'a>(row: &'a [Value], behind: &[Value]) -> Cow<'a, [Value]> {
    match behind {
        [] => Cow::Borrowed(row),
        behind => Cow::Owned([row, behind].concat()),
    }
}

/// Removes a row by its key, if it meets the conditions then. Returns its values.
pub(super) async fn delete_row(
    run: &mut Run<'_>,
    targets: &Rc<Targets>,
    at: usize,
    conditions: &[Expr],
    key: Vec<u8>,
    behind: &[Value],
) -> Result<Option<Vec<Value>>> {
    let target = &targets.0[at];
    let inputs = run.inputs(&[]);
    let gone = loop {
        let mut gone = Ok(None);
        let mut remove = |bytes: Option<&[u8]>| {
            gone = newest(&target.table, conditions, bytes, behind, inputs);
            if matches!(gone, Ok(Some(_))) { RowChange::Remove } else { RowChange::Keep }
        };
        run.by.change(target.table.rows(), &key, &mut remove).await?;
        // It is repeated with what it has missed.
        if gone.is_ok() || !run.supply().await? {
            break gone;
        }
    };
    run.end_evaluation();
    let Some(row) = gone? else { return Ok(None) };
    change_indexes(run, targets, at, &key, Some(&row), None).await?;
    if target.has_references() {
        note(run, targets, at, &key, Some(&row), None).await?;
    }
    Ok(Some(row))
}

/// Updates a row by its key, if it meets the conditions then. Returns its new values.
pub(super) async fn update_row(
    run: &mut Run<'_>,
    targets: &Rc<Targets>,
    at: usize,
    conditions: &[Expr],
    set: &[(usize, Expr)],
    key: Vec<u8>,
    behind: &[Value],
) -> Result<Option<Vec<Value>>> {
    let target = &targets.0[at];
    let table = &*target.table;
    let inputs = run.inputs(&[]);
    let result = loop {
        let mut result: Result<Option<(Vec<Value>, Vec<Value>, bool)>> = Ok(None);
        let mut decide = |bytes: Option<&[u8]>| {
            result = (|| {
                let found = newest(table, conditions, bytes, behind, inputs)?;
                let Some(old) = found else { return Ok(None) };
                let seen = with_behind(&old, behind);
                let inputs = Inputs { row: &seen, ..inputs };
                let mut new = old.clone();
                for (column, expr) in set {
                    new[*column] = expr.evaluate(inputs)?;
                }
                target.complete(&mut new, inputs.context)?;
                let moves = table.primary_key(&new)?.is_some_and(|new| new != key);
                drop(seen);
                Ok(Some((old, new, moves)))
            })();
            match &result {
                Ok(Some((_, _, true))) => RowChange::Remove,
                Ok(Some((_, new, false))) => RowChange::Set(encode::row(new)),
                _ => RowChange::Keep,
            }
        };
        run.by.change(table.rows(), &key, &mut decide).await?;
        if result.is_ok() || !run.supply().await? {
            break result;
        }
    };
    run.end_evaluation();
    let Some((old, new, moves)) = result? else { return Ok(None) };
    let new_key = match table.primary_key(&new)? {
        Some(new_key) if moves => new_key,
        _ => key.clone(),
    };
    if moves {
        change_indexes(run, targets, at, &key, Some(&old), None).await?;
        if put_if_new(run, table.rows(), &new_key, &encode::row(&new)).await?.is_some() {
            return Err(duplicate_primary(table, &new));
        }
        change_indexes(run, targets, at, &new_key, None, Some(&new)).await?;
    } else {
        change_indexes(run, targets, at, &key, Some(&old), Some(&new)).await?;
    }
    if target.has_references() {
        note(run, targets, at, &new_key, Some(&old), Some(&new)).await?;
    }
    Ok(Some(new))
}

/// Inserts rows into the first target, whose keys must not be there, and computes their generated
/// columns. Fails with the number of the first row that cannot be inserted.
pub(crate) async fn insert_rows(
    run: &mut Run<'_>,
    targets: &Rc<Targets>,
    rows: &mut [Vec<Value>],
) -> std::result::Result<(), (usize, SqlError)> {
    let target = &targets.0[0];
    let table = &*target.table;
    let mut entries = Vec::with_capacity(rows.len());
    let mut failed = None;
    for (at, row) in rows.iter_mut().enumerate() {
        let key = async {
            target.complete(row, run.context)?;
            match table.primary_key(row)? {
                Some(key) => Ok(key),
                None => Ok(number_key(run.by.store().fresh_id().await?)),
            }
        };
        match key.await {
            Ok(key) => entries.push((key, encode::row(row))),
            Err(error) => {
                failed = Some((at, error));
                break;
            }
        }
    }
    let mut at = 0;
    while at < entries.len() {
        let inserted = run.by.insert_run(table.rows(), &entries[at..]).await;
        let count = inserted.map_err(|error| (at, error.into()))?;
        if count == 0 {
            insert_unique(run, targets, &rows[at]).await.map_err(|error| (at, error))?;
            at += 1;
        }
        if table.indexes.is_empty() && !target.has_references() {
            at += count;
            continue;
        }
        for _ in 0..count {
            let (key, row) = (&entries[at].0, &rows[at]);
            let indexed = async {
                change_indexes(run, targets, 0, key, None, Some(row)).await?;
                match target.has_references() {
                    true => note(run, targets, 0, key, None, Some(row)).await,
                    false => Ok(()),
                }
            };
            indexed.await.map_err(|error| (at, error))?;
            at += 1;
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Inserts a row into the first target, whose key must not be there.
async fn insert_unique(run: &mut Run<'_>, targets: &Rc<Targets>, row: &[Value]) -> Result<()> {
    insert_row(run, targets, 0, row, &[]).await.map(|_| ())
}
