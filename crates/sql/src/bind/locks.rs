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

impl Locking {
    /// Returns the lock of a clause, together with that of clauses before it.
    fn of(before: Option<Self>, strength: RowLock, nonblock: Option<&ast::NonBlock>) -> Self {
        let busy = match nonblock {
            None => before.map_or(Busy::Waits, |before| before.busy),
            Some(ast::NonBlock::Nowait) => Busy::Fails,
            Some(ast::NonBlock::SkipLocked) => Busy::Skips,
        };
        Self { strength: before.map_or(strength, |before| before.strength.max(strength)), busy }
    }
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
        let mut has_any = false;
        let last_full = select.sources.iter().rposition(|source| source.is_full);
        for (at, source) in select.sources.iter_mut().enumerate() {
            if of.as_ref().is_some_and(|of| !has_name(source, of, columns)) {
                continue;
            }
            has_any = true;
            if source.outer.is_some() || last_full.is_some_and(|full| at <= full) {
                fail!(
                    FEATURE_NOT_SUPPORTED,
                    "{name} cannot be applied to the nullable side of an outer join"
                );
            }
            match &source.relation {
                Relation::Table(table) => {
                    let (owner, grants) = (&table.owner, &table.grants);
                    parameters.check(owner, grants, Privilege::Update, "table", &table.name)?;
                    source.locked = Some(Locking::of(source.locked, strength, lock.nonblock.as_ref()));
                    select.has_locks = true;
                }
                // They have no rows to lock.
                Relation::Functions(..) if of.is_none() => {}
                _ => refuse(true, &format!("{name} of rows that are not those of a table"))?,
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
