//! Functions with a syntax of their own, which are no functions for the catalog (chapter 9.18 of
//! PostgreSQL's manual).

use super::{ANYCOMPATIBLE, ANYCOMPATIBLEARRAY, Call, Function, function, ok};
use crate::{error::Result, types::Value};

/// The greatest of the values that are not NULL.
pub(crate) static GREATEST: Function =
    function("greatest", &[ANYCOMPATIBLEARRAY], ANYCOMPATIBLE, |call| extreme(call, true)).takes_null();

/// The least of the values that are not NULL.
pub(crate) static LEAST: Function =
    function("least", &[ANYCOMPATIBLEARRAY], ANYCOMPATIBLE, |call| extreme(call, false)).takes_null();

/// The first value, or NULL if it is equal to the second.
pub(crate) static NULLIF: Function =
    function("nullif", &[ANYCOMPATIBLE, ANYCOMPATIBLE], ANYCOMPATIBLE, nullif).takes_null();

fn extreme(call: &Call<'_>, is_greatest: bool) -> Result<Value> {
    let known = call.values.iter().filter(|value| !value.is_null());
    let found = match is_greatest {
        true => known.max_by(|one, other| one.compare(other)),
        false => known.min_by(|one, other| one.compare(other)),
    };
    Ok(found.cloned().unwrap_or(Value::Null))
}

fn nullif(call: &Call<'_>) -> Result<Value> {
    let [one, other] = call.values else { return ok(Value::Null) };
    let is_equal = !one.is_null() && !other.is_null() && one.compare(other).is_eq();
    Ok(if is_equal { Value::Null } else { one.clone() })
}
