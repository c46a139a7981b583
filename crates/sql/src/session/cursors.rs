//! Cursors: the rows of a query that a client takes in parts.

use sqlparser::ast;

use super::{
    Session,
    run::{Done, Tag, plain},
};
use crate::{
    bind::{query::Query, select::ResultColumn},
    error::{Result, SqlError, code, fail},
    exec::{self, MOST_MEMORY, out_of_memory},
    parse::folded,
    spool::{Rows, bytes_of},
    types::Value,
};

/// A cursor that DECLARE has made.
pub(super) struct Cursor {
    columns: Vec<ResultColumn>,
    rows: CursorRows,
    /// It stays when its transaction ends.
    is_held: bool,
    /// The savepoints before it.
    savepoints: usize,
}

/// The rows of a cursor.
enum CursorRows {
    /// Those that are left.
    Forward(Rows),
    /// All, and the number of those before the place of the cursor and of its row.
    Scroll(Vec<Vec<Value>>, usize),
}

/// The options of DECLARE.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) is_scroll: bool,
    pub(super) is_held: bool,
    pub(super) query: Query,
}

fn number(value: &ast::ValueWithSpan) -> Result<i64> {
    let text = value.to_string();
    text.parse().map_err(|_| SqlError::new(code::SYNTAX_ERROR, format!("syntax error at or near \"{text}\"")))
}

fn undefined(name: &str) -> SqlError {
    SqlError::new(code::INVALID_CURSOR_NAME, format!("cursor \"{name}\" does not exist"))
}

/// Returns rows that are kept in memory, unless they are too many.
fn in_memory(rows: impl Iterator<Item = Result<Vec<Value>>>) -> Result<Vec<Vec<Value>>> {
    let (mut all, mut bytes) = (Vec::new(), 0);
    for row in rows {
        let row = row?;
        bytes += bytes_of(&row);
        if bytes > MOST_MEMORY {
            return Err(out_of_memory());
        }
        all.push(row);
    }
    Ok(all)
}

impl Session<'_> {
    /// Makes the cursor of DECLARE.
    pub(super) async fn declare(&mut self, declared: &Declared, values: &[Value]) -> Result<Done> {
        let Declared { name, is_scroll, is_held, query } = declared;
        if !self.is_explicit && !is_held {
            fail!(NO_ACTIVE_TRANSACTION, "DECLARE CURSOR can only be used in transaction blocks");
        }
        if self.cursors.contains_key(name) {
            return Err(SqlError::new("42P03", format!("cursor \"{name}\" already exists")));
        }
        let found = exec::query::rows(&mut self.statement(values)?, query).await?;
        let rows = match is_scroll {
            false => CursorRows::Forward(found),
            true => CursorRows::Scroll(in_memory(found)?, 0),
        };
        let (columns, savepoints) = (query.columns.clone(), self.savepoints.len());
        self.cursors.insert(name.clone(), Cursor { columns, rows, is_held: *is_held, savepoints });
        Ok(plain("DECLARE CURSOR"))
    }

    /// Returns the columns of a cursor.
    pub(super) fn cursor_columns(&self, name: &str) -> Option<Vec<ResultColumn>> {
        self.cursors.get(name).map(|cursor| cursor.columns.clone())
    }

    /// Returns the rows of FETCH.
    pub(super) fn fetch(&mut self, name: &ast::Ident, direction: &ast::FetchDirection) -> Result<Done> {
        use ast::FetchDirection as D;
        let name = folded(name);
        let cursor = self.cursors.get_mut(&name).ok_or_else(|| undefined(&name))?;
        let rows = match &mut cursor.rows {
            CursorRows::Forward(rows) => {
                let count = match direction {
                    D::Next | D::Forward { limit: None } => 1,
                    D::All | D::ForwardAll => i64::MAX,
                    D::Count { limit } | D::Forward { limit: Some(limit) } | D::Relative { limit } => {
                        number(limit)?
                    }
                    _ => -1,
                };
                let Ok(count) = usize::try_from(count) else {
                    let message = "cursor can only scan forward";
                    return Err(SqlError::new(code::NOT_IN_STATE, message)
                        .with_detail("Declare it with SCROLL option to enable backward scan."));
                };
                in_memory(rows.take(count))?
            }
            CursorRows::Scroll(all, place) => scrolled(all, place, direction)?,
        };
        Ok(Done { tag: Tag::Rows("FETCH"), rows: Some((cursor.columns.clone(), rows.into())) })
    }

    /// Ends the cursors of CLOSE.
    pub(super) fn close(&mut self, cursor: &ast::CloseCursor) -> Result<Done> {
        match cursor {
            ast::CloseCursor::All => {
                self.cursors.clear();
                return Ok(plain("CLOSE CURSOR ALL"));
            }
            ast::CloseCursor::Specific { name } => {
                let name = folded(name);
                self.cursors.remove(&name).ok_or_else(|| undefined(&name))?;
            }
        }
        Ok(plain("CLOSE CURSOR"))
    }

    /// Ends the cursors of a transaction.
    pub(super) fn end_cursors(&mut self, commits: bool) {
        self.cursors.retain(|_, cursor| cursor.is_held && (commits || cursor.savepoints == usize::MAX));
        self.cursors.values_mut().for_each(|cursor| cursor.savepoints = usize::MAX);
    }

    /// Leaves the cursors that were made behind a savepoint to what is around it.
    pub(super) fn release_cursors(&mut self, savepoints: usize) {
        let own = self.cursors.values_mut().filter(|cursor| cursor.savepoints != usize::MAX);
        own.for_each(|cursor| cursor.savepoints = cursor.savepoints.min(savepoints));
    }

    /// Ends the cursors that were made behind a savepoint.
    pub(super) fn end_cursors_behind(&mut self, savepoints: usize) {
        self.cursors.retain(|_, cursor| cursor.savepoints == usize::MAX || cursor.savepoints <= savepoints);
    }
}

/// Moves the place of a cursor. Returns the rows that it passes.
fn scrolled(
    all: &[Vec<Value>],
    place: &mut usize,
    direction: &ast::FetchDirection,
) -> Result<Vec<Vec<Value>>> {
    use ast::FetchDirection as D;
    // The place is that of a row, counted from one; before the first it is zero.
    let count = all.len() as i64;
    let at = *place as i64;
    let to = |target: i64, place: &mut usize| {
        *place = target.clamp(0, count + 1) as usize;
        let found = usize::try_from(target - 1).ok().and_then(|target| all.get(target));
        Ok(found.cloned().into_iter().collect())
    };
    let by = match direction {
        D::First => return to(1, place),
        D::Last => return to(count, place),
        D::Absolute { limit } => {
            let target = number(limit)?;
            return to(if target < 0 { (count + 1).saturating_add(target) } else { target }, place);
        }
        D::Relative { limit } => return to(at.saturating_add(number(limit)?), place),
        D::Next | D::Forward { limit: None } => 1,
        D::Prior | D::Backward { limit: None } => -1,
        D::All | D::ForwardAll => i64::MAX,
        D::BackwardAll => -i64::MAX,
        D::Count { limit } | D::Forward { limit: Some(limit) } => number(limit)?,
        D::Backward { limit: Some(limit) } => number(limit)?.saturating_neg(),
    };
    if by == 0 {
        return to(at, place);
    }
    let target = at.saturating_add(by).clamp(0, count + 1);
    *place = target as usize;
    let rows = match by > 0 {
        true => (at + 1..=target.min(count)).collect::<Vec<_>>(),
        false => (target.max(1)..at).rev().collect(),
    };
    Ok(rows.into_iter().map(|row| all[row as usize - 1].clone()).collect())
}
