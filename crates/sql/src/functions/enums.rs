//! Functions of enumerated types (chapter 9.10 of PostgreSQL's manual). The type of an argument
//! counts, not its value.

use super::{Call, Declared, function, ok};
use crate::{
    error::{Result, SqlError},
    types::{Type, Value},
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("enum_first(anyenum) anyenum stable null", |call| ok(positions(call)?.first().copied())),
    function("enum_last(anyenum) anyenum stable null", |call| ok(positions(call)?.last().copied())),
    function("enum_range(anyenum) anyarray; (anyenum, anyenum) anyarray stable null", range),
];

/// Returns the values of the type of the first argument.
fn positions(call: &Call<'_>) -> Result<Vec<i64>> {
    match call.types.first() {
        Some(Type::Enum(of)) => Ok(of.labels.iter().map(|(position, _)| *position).collect()),
        _ => Err(SqlError::unsupported("a call with a type that is not known")),
    }
}

/// Returns all values, or those between two of them.
fn range(call: &Call<'_>) -> Result<Value> {
    let bound = |at: usize, open: i64| if call.is_null(at) { open } else { call.int(at) };
    let (first, last) = match call.count() {
        1 => (i64::MIN, i64::MAX),
        _ => (bound(0, i64::MIN), bound(1, i64::MAX)),
    };
    let all = positions(call)?.into_iter().filter(|position| (first..=last).contains(position));
    ok(all.map(Value::from).collect::<Vec<_>>())
}
