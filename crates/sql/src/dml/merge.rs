//! MERGE: each row of a source changes the row of a table that matches it, or adds one.

use std::{collections::HashSet, rc::Rc};

use sqlparser::ast;

use super::{
    Change, ChangeKind, MOST_CONFLICTS, Targets, assignments, columns_of, insert_values, newest_row,
    rows::{delete_row, insert_row, update_row},
    table_and_alias,
};
use crate::{
    bind::{
        Around,
        from::{self, Source},
        paths::place,
        select::refuse,
    },
    catalog::{Privilege, Table},
    error::{Result, SqlError, code, fail},
    exec::{self, Run, all_hold},
    expr::Expr,
    parse::relation,
    types::Value,
};

/// The rows of MERGE and what it does with them. Its expressions are over the columns of the table,
/// with those of the source behind them.
#[derive(Debug)]
pub(crate) struct Merge {
    /// The source, and last the table, whose row may be missing.
    pub(crate) sources: Vec<Source>,
    constant: Vec<Expr>,
    /// The columns of the source.
    width: usize,
    /// What a row that matches must meet.
    on: Vec<Expr>,
    clauses: Vec<Clause>,
}

/// A clause WHEN.
#[derive(Debug)]
struct Clause {
    is_matched: bool,
    /// Its condition, and that none of those before it holds.
    conditions: Vec<Expr>,
    action: Action,
}

#[derive(Debug)]
enum Action {
    Nothing,
    Insert(Vec<Expr>),
    Update(Vec<(usize, Expr)>),
    Delete,
}

impl Clause {
    /// Returns its conditions and the expressions of its action.
    fn exprs(&self) -> Vec<&Expr> {
        let of_action: Vec<_> = match &self.action {
            Action::Nothing | Action::Delete => Vec::new(),
            Action::Insert(values) => values.iter().collect(),
            Action::Update(set) => set.iter().map(|(_, value)| value).collect(),
        };
        self.conditions.iter().chain(of_action).collect()
    }
}

/// Binds MERGE, also behind WITH.
pub(super) fn bind_merge(merge: &ast::Merge, around: Around<'_>) -> Result<Change> {
    let parameters = around.parameters;
    refuse(merge.output.is_some(), "RETURNING of MERGE")?;
    let joined = ast::TableWithJoins { relation: merge.table.clone(), joins: Vec::new() };
    let alias = table_and_alias(&joined)?;
    let ast::TableFactor::Table { name, args: None, .. } = &merge.table else {
        return Err(SqlError::unsupported(format!("MERGE INTO {}", merge.table)));
    };
    let name = relation(name)?;
    let table: Rc<Table> = parameters.table_for(&name, Privilege::Select)?;
    let targets = parameters.targets_of(&table)?;
    let mut from = from::bind_for_merge(&table, &alias, (&merge.source, &merge.on), around)?;
    let (all, count) = (std::mem::take(&mut from.columns), table.columns.len());
    let target = from.sources.last().map_or(0, |source| source.offset);
    let moved = move |at: usize| if at >= target { at - target } else { at + count };
    let moving = |mut expr: Expr| {
        expr.move_columns(&moved);
        expr
    };
    let mut clauses: Vec<Clause> = Vec::new();
    // For rows without and with a match: the conditions of the clauses before, and whether one had
    // none.
    let mut before: [(Vec<Expr>, bool); 2] = Default::default();
    for clause in &merge.clauses {
        let is_matched = match clause.clause_kind {
            ast::MergeClauseKind::Matched => true,
            ast::MergeClauseKind::NotMatched => false,
            kind => return Err(SqlError::unsupported(format!("WHEN {kind}"))),
        };
        let (passed, is_complete) = &mut before[usize::from(is_matched)];
        if *is_complete {
            fail!(SYNTAX_ERROR, "unreachable WHEN clause specified after unconditional WHEN clause");
        }
        // The columns of the table are behind those of the source.
        let seen = if is_matched { &all[..] } else { &all[..all.len() - count] };
        let scope = around.scope(seen);
        let condition = clause.predicate.as_ref().map(|expr| scope.condition(expr, "WHEN")).transpose()?;
        let (action, privilege) = match &clause.action {
            ast::MergeAction::DoNothing { .. } => (Action::Nothing, None),
            ast::MergeAction::Delete { .. } if is_matched => (Action::Delete, Some(Privilege::Delete)),
            ast::MergeAction::Update(update) if is_matched => {
                let ast::MergeUpdateKind::Set(set) = &update.kind else {
                    return Err(SqlError::unsupported("UPDATE SET *"));
                };
                let has_more = update.update_predicate.is_some() || update.delete_predicate.is_some();
                refuse(has_more, "WHERE of an action of MERGE")?;
                let set = assignments(&table, &scope, set)?;
                let set = set.into_iter().map(|(column, value)| (column, moving(value))).collect();
                (Action::Update(set), Some(Privilege::Update))
            }
            ast::MergeAction::Insert(insert) if !is_matched => {
                refuse(insert.insert_predicate.is_some(), "WHERE of an action of MERGE")?;
                let ast::MergeInsertKind::Values(values) = &insert.kind else {
                    return Err(SqlError::unsupported("INSERT ROW"));
                };
                let [row] = &values.rows[..] else { return Err(SqlError::unsupported("several rows")) };
                let columns = columns_of(&table, &insert.columns)?;
                let names = !insert.columns.is_empty();
                let values = insert_values(&table, (&columns, names), row, None, &scope)?;
                (Action::Insert(values.into_iter().map(moving).collect()), Some(Privilege::Insert))
            }
            action => fail!(SYNTAX_ERROR, "WHEN {} cannot have the action {action}", clause.clause_kind),
        };
        if let Some(privilege) = privilege {
            parameters.table_for(&name, privilege)?;
        }
        let mut conditions: Vec<Expr> =
            passed.iter().map(|expr| Expr::Not(Expr::Is(expr.clone().boxed(), true).boxed())).collect();
        *is_complete = condition.is_none();
        passed.extend(condition.map(moving));
        conditions.extend(passed.last().filter(|_| !*is_complete).cloned());
        clauses.push(Clause { is_matched, conditions, action });
    }
    let on = from.sources.last().and_then(|source| source.outer.clone()).unwrap_or_default();
    let mut sources = from.sources;
    let constant = place(&mut sources, from.conditions);
    let on = on.into_iter().map(moving).collect();
    let kind = ChangeKind::Merge(Box::new(Merge { sources, constant, width: target, on, clauses }));
    let (returning, columns, with) = Default::default();
    Ok(Change { table, targets, kind, returning, columns, with })
}

impl Merge {
    /// Runs MERGE. Returns the number of rows that have changed.
    pub(super) async fn run(&self, run: &mut Run<'_>, targets: &Rc<Targets>) -> Result<u64> {
        let count = targets.table().columns.len();
        // All rows are found before the first change, each with the key of the row that matches.
        let mut found: Vec<(Vec<Value>, Option<Vec<u8>>)> = Vec::new();
        if run.complete(&mut |run| all_hold(&self.constant, run.inputs(&[]))).await? {
            exec::joined(run, &self.sources, &mut |run, row| {
                run.keep(row)?;
                let (source, target) = row.split_at(self.width);
                let key = match target.last() {
                    Some(Value::Bytes(key)) => Some(key.clone()),
                    _ => None,
                };
                found.push(([&target[..count], source].concat(), key));
                Ok(true)
            })
            .await?;
        }
        let asks = |clause: &Clause| clause.exprs().into_iter().any(Expr::has_subquery);
        if self.clauses.iter().any(asks) {
            // Subqueries are about the rows as they were.
            run.context.answers.keep_all();
            for (row, key) in &found {
                let ask = &mut |run: &mut Run<'_>| {
                    let clause = self.choose(key.is_some(), row, run)?;
                    let exprs = clause.map(Clause::exprs).unwrap_or_default();
                    // Others may not be evaluated twice, as those that draw numbers.
                    let mut asking = exprs.into_iter().filter(|expr| expr.has_subquery());
                    asking.try_for_each(|expr| expr.evaluate(run.inputs(row)).map(drop))
                };
                run.complete(ask).await?;
            }
        }
        let (mut changed, mut seen) = (0, HashSet::new());
        for (row, key) in found {
            changed += u64::from(self.act(run, targets, (row, key), &mut seen).await?);
        }
        Ok(changed)
    }

    /// Returns the first clause that is about a row.
    fn choose(&self, is_matched: bool, row: &[Value], run: &Run<'_>) -> Result<Option<&Clause>> {
        for clause in self.clauses.iter().filter(|clause| clause.is_matched == is_matched) {
            if all_hold(&clause.conditions, run.inputs(row))? {
                return Ok(Some(clause));
            }
        }
        Ok(None)
    }

    /// Does what the first clause says that is about a row. Returns whether a row has changed;
    /// `seen` has the keys of those before it.
    async fn act(
        &self,
        run: &mut Run<'_>,
        targets: &Rc<Targets>,
        (mut row, mut key): (Vec<Value>, Option<Vec<u8>>),
        seen: &mut HashSet<Vec<u8>>,
    ) -> Result<bool> {
        let table = targets.table();
        let source = row[table.columns.len()..].to_vec();
        for _ in 0..MOST_CONFLICTS {
            let chosen = run.complete(&mut |run| self.choose(key.is_some(), &row, run)).await?;
            let (own, clause) = match (&key, chosen) {
                (Some(own), Some(clause)) => (own, clause),
                (None, Some(Clause { action: Action::Insert(values), .. })) => {
                    let mut new = run.evaluate(values, &row).await?;
                    targets.0[0].complete(&mut new, run.context)?;
                    insert_row(run, targets, 0, &new, &[]).await?;
                    return Ok(true);
                }
                _ => return Ok(false),
            };
            if matches!(clause.action, Action::Nothing) {
                return Ok(false);
            }
            if seen.contains(own) {
                let message = "MERGE command cannot affect row a second time";
                let hint = "Ensure that not more than one source row matches any one target row.";
                return Err(SqlError::new("21000", message).with_hint(hint));
            }
            // They must hold for the newest row, too.
            let conditions: Vec<Expr> = self.on.iter().chain(&clause.conditions).cloned().collect();
            let done = match &clause.action {
                Action::Update(set) => {
                    update_row(run, targets, 0, &conditions, set, own.clone(), &source).await?
                }
                _ => delete_row(run, targets, 0, &conditions, own.clone(), &source).await?,
            };
            if done.is_some() {
                run.keep_bytes(own.len())?;
                seen.insert(own.clone());
                return Ok(true);
            }
            // Another transaction has changed the row, so the clauses are tried again.
            let newest = newest_row(run, table, own).await?;
            row = match &newest {
                Some(newest) => [newest, &source[..]].concat(),
                None => [&vec![Value::Null; table.columns.len()], &source[..]].concat(),
            };
            let matches = run.complete(&mut |run| all_hold(&self.on, run.inputs(&row))).await?;
            if newest.is_none() || !matches {
                key = None;
                row[..table.columns.len()].fill(Value::Null);
            }
        }
        Err(SqlError::new(code::SERIALIZATION_FAILURE, "the row of MERGE does not stay"))
    }
}
