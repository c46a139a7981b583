//! Deferred checks, and foreign keys: the rows that a change needs or must take along.
//!
//! A row that names another one locks it, so that it stays up to the end of the transaction. A row
//! that goes waits for such locks, so afterwards the newest rows show all that name it. What a
//! removed or changed row means for others is done at the end of the statement, in the order of the
//! changes; checks that are deferred wait for the end of the transaction. A check reads the rows
//! as they are then, so it may be repeated, and one of a change that was rolled back finds nothing.

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    rc::Rc,
};

use plexus_store::{Isolation, RowChange, RowLock};

use super::{
    rows::{delete_row, duplicate_entry, update_row},
    target::{Target, Targets, default_of},
    violated,
};
use crate::{
    bind::{Parameters, coerce, paths::single_source},
    catalog::{Action, ForeignKey, RelationName, Table},
    error::{Result, SqlError, code},
    exec::{Run, matching},
    expr::{Comparison, Expr},
    types::{Value, encode, text},
};

/// The work that changes of rows leave for later.
#[derive(Default, Debug)]
pub(crate) struct Constraints {
    /// The work of the present statement.
    statement: RefCell<VecDeque<Work>>,
    /// The checks at the end of the transaction.
    deferred: RefCell<Vec<(Rc<Targets>, Work)>>,
    pub(crate) modes: RefCell<ConstraintModes>,
}

/// The effect of SET CONSTRAINTS on the transaction. A rollback to a savepoint takes it back.
#[derive(Clone, Default, Debug)]
pub(crate) struct ConstraintModes {
    /// Whether it defers all.
    all: Option<bool>,
    /// Whether it defers those of this table and name.
    named: HashMap<(u64, String), bool>,
}

#[derive(Clone, Debug)]
enum Work {
    /// A row has the values of a foreign key: the row that they name must be there.
    Named { target: usize, key: usize, row: Vec<u8> },
    /// No row has these values of a foreign key any more; those that it has instead, if any.
    Gone { target: usize, key: usize, old: Vec<Value>, new: Option<Vec<Value>> },
    /// As before, and nothing is left to do but to check.
    Checked { target: usize, key: usize, old: Vec<Value> },
    /// An entry of a deferrable index is that of several rows.
    Shared { target: usize, index: usize, entry: Vec<u8> },
}

impl Work {
    /// Returns the table, and the name and deferral of the constraint.
    fn constraint<'t>(&self, targets: &'t Targets) -> (&'t Table, &'t str, Option<bool>) {
        match self {
            Self::Named { target, key, .. }
            | Self::Gone { target, key, .. }
            | Self::Checked { target, key, .. } => {
                let table = &targets.0[*target].table;
                (table, &table.foreign_keys[*key].name, table.foreign_keys[*key].deferral())
            }
            Self::Shared { target, index, .. } => {
                let table = &targets.0[*target].table;
                (table, &table.indexes[*index].name, table.indexes[*index].deferral)
            }
        }
    }
}

impl Constraints {
    /// Forgets the work of a statement that has failed.
    pub(crate) fn begin_statement(&self) {
        self.statement.borrow_mut().clear();
    }

    /// Ends a transaction.
    pub(crate) fn end_transaction(&self) {
        self.statement.borrow_mut().clear();
        self.deferred.borrow_mut().clear();
        self.modes.take();
    }

    /// Returns whether checks wait for the end of the transaction.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.borrow().is_empty()
    }

    /// Returns whether checks of a table wait.
    pub(crate) fn waits_for(&self, table: u64) -> bool {
        let is_of = |(targets, work): &(Rc<Targets>, Work)| {
            work.constraint(targets).0.id == table || targets.table().id == table
        };
        self.deferred.borrow().iter().any(is_of)
    }

    fn defers(&self, (table, name, deferral): (&Table, &str, Option<bool>)) -> bool {
        let Some(is_deferred) = deferral else { return false };
        let modes = self.modes.borrow();
        let named = modes.named.get(&(table.id, name.to_owned())).copied();
        named.or(modes.all).unwrap_or(is_deferred)
    }

    /// Runs SET CONSTRAINTS for these constraints of tables, or for all.
    pub(crate) fn set(&self, names: Option<Vec<(u64, String)>>, defers: bool) {
        match names {
            None => {
                *self.modes.borrow_mut() = ConstraintModes { all: Some(defers), ..Default::default() };
            }
            Some(names) => {
                let names = names.into_iter().map(|name| (name, defers));
                self.modes.borrow_mut().named.extend(names);
            }
        }
    }

    /// Returns what a rollback to a savepoint takes back: the modes, and the number of checks.
    pub(crate) fn mark(&self) -> (ConstraintModes, usize) {
        (self.modes.borrow().clone(), self.deferred.borrow().len())
    }

    /// Forgets the checks of what is rolled back.
    pub(crate) fn rollback_to(&self, (modes, count): (ConstraintModes, usize)) {
        self.modes.replace(modes);
        self.deferred.borrow_mut().truncate(count);
    }

    /// Takes the deferred checks that are due: all at the end of the transaction. With savepoints
    /// they stay, because a rollback may make them necessary again.
    fn due(&self, is_end: bool, has_savepoints: bool) -> Vec<(Rc<Targets>, Work)> {
        let mut deferred = self.deferred.borrow_mut();
        let is_due = |(targets, work): &(Rc<Targets>, Work)| is_end || !self.defers(work.constraint(targets));
        match has_savepoints {
            true => deferred.iter().filter(|one| is_due(one)).cloned().collect(),
            false => deferred.extract_if(.., |one| is_due(one)).collect(),
        }
    }
}

fn values_of(columns: &[usize], row: &[Value]) -> Vec<Value> {
    columns.iter().map(|column| row[*column].clone()).collect()
}

/// Notes that a row is new, has changed or has gone.
pub(super) async fn note(
    run: &mut Run<'_>,
    targets: &Rc<Targets>,
    at: usize,
    row: &[u8],
    old: Option<&[Value]>,
    new: Option<&[Value]>,
) -> Result<()> {
    let target = &targets.0[at];
    let waits = &run.context.constraints;
    for (number, key) in target.table.foreign_keys.iter().enumerate() {
        let Some(new) = new else { break };
        let values = values_of(&key.columns, new);
        let is_same = old.is_some_and(|old| values_of(&key.columns, old) == values);
        if is_same || values.iter().all(Value::is_null) || (!key.is_full && values.iter().any(Value::is_null))
        {
            continue;
        }
        let work = Work::Named { target: at, key: number, row: row.to_vec() };
        if waits.defers(work.constraint(targets)) {
            waits.deferred.borrow_mut().push((targets.clone(), work));
        } else if key.table == target.table.relation() {
            // A later row of the statement may be the one that it names.
            run.keep_bytes(row.len() + size_of::<Work>())?;
            waits.statement.borrow_mut().push_back(work);
        } else {
            check_named(run, target, number, &values).await?;
        }
    }
    let Some(old) = old else { return Ok(()) };
    for (other, number) in &target.referenced_by {
        let key = &targets.0[*other].table.foreign_keys[*number];
        let values = values_of(&key.referenced, old);
        let new = new.map(|new| values_of(&key.referenced, new));
        if new.as_ref() == Some(&values) || values.iter().any(Value::is_null) {
            continue;
        }
        run.keep(&values)?;
        let work = Work::Gone { target: *other, key: *number, old: values, new };
        waits.statement.borrow_mut().push_back(work);
    }
    Ok(())
}

/// Notes that an entry of an index of a target is that of several rows.
pub(super) fn note_shared(
    run: &mut Run<'_>,
    targets: &Rc<Targets>,
    (target, index): (usize, usize),
    entry: &[u8],
) -> Result<()> {
    let (waits, work) = (&run.context.constraints, Work::Shared { target, index, entry: entry.to_vec() });
    match waits.defers(work.constraint(targets)) {
        true => waits.deferred.borrow_mut().push((targets.clone(), work)),
        false => {
            run.keep_bytes(entry.len() + size_of::<Work>())?;
            run.context.constraints.statement.borrow_mut().push_back(work);
        }
    }
    Ok(())
}

/// Does the work that the changes of a statement have left.
pub(crate) async fn finish(run: &mut Run<'_>, targets: &Rc<Targets>) -> Result<()> {
    let waits = &run.context.constraints;
    if waits.statement.borrow().is_empty() {
        return Ok(());
    }
    // The newest rows count.
    run.by.begin_statement();
    let mut checks = Vec::new();
    loop {
        let next = waits.statement.borrow_mut().pop_front();
        match next {
            None => break,
            Some(Work::Gone { target, key, old, new }) => {
                let foreign = &targets.0[target].table.foreign_keys[key];
                let action = if new.is_some() { foreign.on_update } else { foreign.on_delete };
                match action {
                    Action::Nothing => checks.push(Work::Checked { target, key, old }),
                    Action::Restrict => check_gone(run, targets, target, key, &old, true).await?,
                    action => {
                        act(run, targets, target, key, &old, new, action).await?;
                        // The default may be the value that is gone.
                        if action == Action::SetDefault {
                            checks.push(Work::Checked { target, key, old });
                        }
                    }
                }
            }
            Some(check) => checks.push(check),
        }
    }
    for check in checks {
        match waits.defers(check.constraint(targets)) {
            true => waits.deferred.borrow_mut().push((targets.clone(), check)),
            false => do_check(run, targets, &check).await?,
        }
    }
    Ok(())
}

/// Does the deferred checks that are due.
pub(crate) async fn check_deferred(run: &mut Run<'_>, is_end: bool, has_savepoints: bool) -> Result<()> {
    let due = run.context.constraints.due(is_end, has_savepoints);
    if due.is_empty() {
        return Ok(());
    }
    run.by.begin_statement();
    for (targets, work) in due {
        do_check(run, &targets, &work).await?;
    }
    Ok(())
}

async fn do_check(run: &mut Run<'_>, targets: &Rc<Targets>, work: &Work) -> Result<()> {
    match work {
        Work::Named { target, key, row } => {
            let target = &targets.0[*target];
            let Some(bytes) = run.by.get(target.table.rows(), row).await? else { return Ok(()) };
            let row = encode::read_row(&bytes, target.table.columns.len())?;
            let values = values_of(&target.table.foreign_keys[*key].columns, &row);
            check_named(run, target, *key, &values).await
        }
        Work::Gone { target, key, old, .. } | Work::Checked { target, key, old, .. } => {
            check_gone(run, targets, *target, *key, old, false).await
        }
        Work::Shared { target, index, entry } => {
            let (target, at) = (&targets.0[*target], *index);
            let (rows, index) = (target.table.rows(), &target.table.indexes[at]);
            let mut second = None;
            let mut look = |value: Option<&[u8]>| {
                second = index.row_keys(value.unwrap_or_default()).get(1).map(|key| key.to_vec());
                RowChange::Keep
            };
            run.by.change(index.tree(), entry, &mut look).await?;
            let Some(row) = second else { return Ok(()) };
            let row = run.by.get(rows, &row).await?.unwrap_or_default();
            let row = encode::read_row(&row, target.table.columns.len())?;
            Err(duplicate_entry(target, at, &row, run.context))
        }
    }
}

/// Checks that the row is there that a row of the first target names.
pub(crate) async fn check_row(
    run: &mut Run<'_>,
    targets: &Targets,
    number: usize,
    row: &[Value],
) -> Result<()> {
    let target = &targets.0[0];
    let values = values_of(&target.table.foreign_keys[number].columns, row);
    check_named(run, target, number, &values).await
}

fn violation(table: &Table, key: &ForeignKey, message: String, detail: String) -> SqlError {
    violated(code::FOREIGN_KEY_VIOLATION, table, &key.name, message, detail)
}

/// Returns columns and values as `(a, b)=(1, 2)`.
fn shown(table: &Table, columns: &[usize], values: &[Value]) -> String {
    let values: Vec<String> =
        columns.iter().zip(values).map(|(at, value)| text::print(value, table.columns[*at].of)).collect();
    format!("({})=({})", table.names(columns).join(", "), values.join(", "))
}

/// Checks that the row is there that a row of a table names, and locks it.
async fn check_named(run: &mut Run<'_>, target: &Target, number: usize, values: &[Value]) -> Result<()> {
    let (table, key) = (&target.table, &target.table.foreign_keys[number]);
    let nulls = values.iter().filter(|value| value.is_null()).count();
    let message = || {
        format!(
            "insert or update on table \"{}\" violates foreign key constraint \"{}\"",
            table.name, key.name
        )
    };
    if nulls == values.len() || nulls > 0 && !key.is_full {
        return Ok(());
    }
    if nulls > 0 {
        let detail = "MATCH FULL does not allow mixing of null and nonnull key values.";
        return Err(violation(table, key, message(), detail.into()));
    }
    let reference = &target.references[number];
    if is_there(run, reference.tree, &reference.key(values)?).await? {
        return Ok(());
    }
    let detail =
        format!("Key {} is not present in table \"{}\".", shown(table, &key.columns, values), key.table.name);
    Err(violation(table, key, message(), detail))
}

/// Returns whether a row or an entry is there, and locks it if so.
async fn is_there(run: &mut Run<'_>, tree: plexus_base::BlockId, key: &[u8]) -> Result<bool> {
    let mut is_there = false;
    let mut wants = |found: Option<&[u8]>| {
        is_there = found.is_some();
        is_there
    };
    run.by.lock(tree, key, RowLock::KeyShare, &mut wants).await?;
    Ok(is_there)
}

/// Checks that no row names values that are gone.
async fn check_gone(
    run: &mut Run<'_>,
    targets: &Rc<Targets>,
    at: usize,
    number: usize,
    old: &[Value],
    is_restricted: bool,
) -> Result<()> {
    let target = &targets.0[at];
    let (table, key, reference) =
        (&target.table, &target.table.foreign_keys[number], &target.references[number]);
    // Another row may have them now.
    if !is_restricted && is_there(run, reference.tree, &reference.key(old)?).await? {
        return Ok(());
    }
    if naming(run, target, key, old).await?.is_empty() {
        return Ok(());
    }
    let RelationName { name: other, .. } = &key.table;
    let Table { name, .. } = &**table;
    let message = format!(
        "update or delete on table \"{other}\" violates foreign key constraint \"{}\" on table \"{name}\"",
        key.name
    );
    let shown = shown(&reference.table, &key.referenced, old);
    Err(violation(table, key, message, format!("Key {shown} is still referenced from table \"{name}\".")))
}

/// Returns the condition of the rows that have these values of a foreign key.
fn condition(key: &ForeignKey, values: &[Value]) -> Expr {
    let equal = key.columns.iter().zip(values).map(|(column, value)| {
        Expr::Compare(Comparison::Equal, Expr::Column(*column).boxed(), Expr::Value(value.clone()).boxed())
    });
    Expr::And(equal.collect())
}

/// Returns the keys of the newest rows that name values.
async fn naming(
    run: &mut Run<'_>,
    target: &Target,
    key: &ForeignKey,
    values: &[Value],
) -> Result<Vec<Vec<u8>>> {
    let source = single_source(&target.table, Some(condition(key, values)));
    let mut found: Vec<Vec<u8>> = matching(run, &source, None).await?.collect::<Result<_>>()?;
    if run.by.isolation() == Isolation::RepeatableRead {
        // Its snapshot does not show rows of later transactions. They have ended: a row that names
        // another one locks it.
        let mut newest = run.by.store().begin(Isolation::ReadCommitted);
        let mut look = Run {
            parameters: run.parameters,
            ..Run::new(&mut newest, run.context, run.ranges, run.temporary)
        };
        let newest: Vec<Vec<u8>> = matching(&mut look, &source, None).await?.collect::<Result<_>>()?;
        for row in newest {
            // It fails if the row is newer than the snapshot.
            if !found.contains(&row) && is_there(run, target.table.rows(), &row).await? {
                found.push(row);
            }
        }
    }
    Ok(found)
}

/// Changes the rows that name values which are gone.
async fn act(
    run: &mut Run<'_>,
    targets: &Rc<Targets>,
    at: usize,
    number: usize,
    old: &[Value],
    new: Option<Vec<Value>>,
    action: Action,
) -> Result<()> {
    let target = &targets.0[at];
    let (table, key) = (&target.table, &target.table.foreign_keys[number]);
    let rows = naming(run, target, key, old).await?;
    if rows.is_empty() {
        return Ok(());
    }
    let mut conditions = vec![condition(key, old)];
    if let Expr::And(all) = &mut conditions[0] {
        conditions = std::mem::take(all);
    }
    let mut set = Vec::new();
    match (action, new) {
        (Action::Cascade, None) => {}
        (Action::Cascade, Some(new)) => {
            for ((column, value), other) in key.columns.iter().zip(new).zip(&key.referenced) {
                let from = target.references[number].table.columns[*other].of;
                let to = table.columns[*column].of;
                set.push((*column, coerce((Expr::Value(value), from), to, &Parameters::default(), false)?));
            }
        }
        (Action::SetDefault, _) => {
            for column in &key.columns {
                set.push((*column, default_of(table, *column, &Parameters::default())?));
            }
        }
        _ => {
            for column in &key.columns {
                let (null, of) = (Expr::Value(Value::Null), table.columns[*column].of);
                set.push((*column, coerce((null, of), of, &Parameters::default(), false)?));
            }
        }
    }
    for row in rows {
        if set.is_empty() {
            delete_row(run, targets, at, &conditions, row, &[]).await?;
        } else {
            update_row(run, targets, at, &conditions, &set, row, &[]).await?;
        }
    }
    Ok(())
}
