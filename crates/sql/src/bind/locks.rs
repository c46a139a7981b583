//! The locks that a query takes on its rows: FOR UPDATE and its weaker forms.

use plexus_store::RowLock;
use sqlparser::ast;

use super::{
    Parameters, ScopeColumn,
    from::{Relation, Source},
    select::{Select, refuse},
};
use crate::{
    catalog::Privilege,
    error::{Result, fail},
    expr::Expr,
    parse::{WEAKER_LOCK, simple},
};

/// The locks that a query takes on its rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Locking {
    pub(crate) strength: RowLock,
    pub(crate) busy: Busy,
}

/// The way to lock a row that another transaction has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Busy {
    /// It is waited for.
    Waits,
    /// The statement fails.
    Fails,
    /// The row is left out.
    Skips,
}

/// Binds the locks of a query on the rows of its tables, which have these columns.
pub(super) fn bind_locks(
    select: &mut Select,
    query: &ast::Query,
    columns: &[ScopeColumn],
    parameters: &Parameters,
) -> Result<()> {
    let merging = [
        (select.is_distinct || !select.distinct_on.is_empty(), "DISTINCT clause"),
        (select.groups.is_some(), "GROUP BY clause"),
        (!select.windows.is_empty(), "window functions"),
        (!select.sets.is_empty(), "set-returning functions in the target list"),
    ];
    if select.sources.is_empty() {
        return Ok(());
    }
    for lock in &query.locks {
        let is_weaker = lock.of.as_ref().is_some_and(|of| of.to_string() == format!("\"{WEAKER_LOCK}\""));
        let of = lock.of.as_ref().filter(|_| !is_weaker).map(simple).transpose()?;
        let (strength, name) = match (&lock.lock_type, is_weaker) {
            (ast::LockType::Update, false) => (RowLock::Update, "FOR UPDATE"),
            (ast::LockType::Update, true) => (RowLock::NoKeyUpdate, "FOR NO KEY UPDATE"),
            (ast::LockType::Share, false) => (RowLock::Share, "FOR SHARE"),
            (ast::LockType::Share, true) => (RowLock::KeyShare, "FOR KEY SHARE"),
        };
        if let Some((_, what)) = merging.iter().find(|(is_there, _)| *is_there) {
            fail!(FEATURE_NOT_SUPPORTED, "{name} is not allowed with {what}");
        }
        let busy = match lock.nonblock {
            None => select.locks.map_or(Busy::Waits, |locks| locks.busy),
            Some(ast::NonBlock::Nowait) => Busy::Fails,
            Some(ast::NonBlock::SkipLocked) => Busy::Skips,
        };
        let strength = select.locks.map_or(strength, |locks| locks.strength.max(strength));
        select.locks = Some(Locking { strength, busy });
        let mut has_any = false;
        for source in &mut select.sources {
            if of.as_ref().is_none_or(|of| has_name(source, of, columns)) {
                has_any = true;
                mark(source, (name, of.is_some()), parameters)?;
            }
        }
        if let Some(of) = of.filter(|_| !has_any) {
            fail!(UNDEFINED_TABLE, "relation \"{of}\" in {name} clause not found in FROM clause");
        }
    }
    Ok(())
}

/// Returns whether the columns of a source have this name of a table.
fn has_name(source: &Source, name: &str, columns: &[ScopeColumn]) -> bool {
    let own = source.offset..source.offset + source.width;
    let is_own = |value: &Expr| matches!(value, Expr::Column(column) if own.contains(column));
    columns.iter().any(|column| column.table == name && is_own(&column.value))
}

/// Has the rows of a source locked, by a clause with this name that may name it.
fn mark(source: &mut Source, (name, is_named): (&str, bool), parameters: &Parameters) -> Result<()> {
    if source.outer.is_some() || source.is_full {
        fail!(FEATURE_NOT_SUPPORTED, "{name} cannot be applied to the nullable side of an outer join");
    }
    match &source.relation {
        Relation::Table(table) => {
            parameters.check(&table.owner, &table.grants, Privilege::Update, "table", &table.name)?;
            source.is_locked = true;
            Ok(())
        }
        // They have no rows to lock.
        Relation::Functions(..) if !is_named => Ok(()),
        _ => refuse(true, &format!("{name} of rows that are not those of a table")),
    }
}
