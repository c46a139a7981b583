//! Functions of texts (chapter 9.4 of PostgreSQL's manual).

use super::{BYTEA, Call, Function, INT4, MOST_BYTES, TEXT, function, ok, too_long};
use crate::{
    error::{Result, SqlError},
    types::Value,
};

pub(super) static FUNCTIONS: &[Function] = &[
    function("length", &[TEXT], INT4, length),
    function("lower", &[TEXT], TEXT, |call| ok(call.text(0).to_lowercase())),
    function("upper", &[TEXT], TEXT, |call| ok(call.text(0).to_uppercase())),
    function("repeat", &[TEXT, INT4], TEXT, repeat),
    function("substr", &[TEXT, INT4], TEXT, substring),
    function("substr", &[TEXT, INT4, INT4], TEXT, substring),
    function("substring", &[TEXT, INT4], TEXT, substring),
    function("substring", &[TEXT, INT4, INT4], TEXT, substring),
];

fn length(call: &Call<'_>) -> Result<Value> {
    ok(call.text(0).chars().count() as i64)
}

fn repeat(call: &Call<'_>) -> Result<Value> {
    let count = usize::try_from(call.int(1)).unwrap_or(0);
    match call.text(0).len().checked_mul(count) {
        Some(0..=MOST_BYTES) => ok(call.text(0).repeat(count)),
        _ => Err(too_long()),
    }
}

/// Returns the first and the last place of a part, which begins at 1.
fn part_of(call: &Call<'_>) -> Result<(i64, i64)> {
    let from = call.int(1);
    match (call.count(), call.int(2)) {
        (3, ..0) => Err(SqlError::new("22011", "negative substring length not allowed")),
        (3, count) => Ok((from, from.saturating_add(count))),
        _ => Ok((from, i64::MAX)),
    }
}

fn substring(call: &Call<'_>) -> Result<Value> {
    let (from, end) = part_of(call)?;
    let chars = (1..).zip(call.text(0).chars()).filter(|(at, _)| (from..end).contains(at));
    ok(chars.map(|(_, char)| char).collect::<String>())
}
