//! Functions with a syntax of their own, which are no functions for the catalog (chapter 9.18 of
//! PostgreSQL's manual).

use crate::{error::Result, types::Value};

/// Returns the greatest of the values that are not NULL.
pub(crate) fn greatest(values: &[Value]) -> Result<Value> {
    let known = values.iter().filter(|value| !value.is_null());
    Ok(known.max_by(|one, other| one.compare(other)).cloned().unwrap_or(Value::Null))
}

/// Returns the least of the values that are not NULL.
pub(crate) fn least(values: &[Value]) -> Result<Value> {
    // NULL is behind all others.
    Ok(values.iter().min_by(|one, other| one.compare(other)).cloned().unwrap_or(Value::Null))
}

/// Returns the first value, or NULL if it is equal to the second.
pub(crate) fn nullif(values: &[Value]) -> Result<Value> {
    let [one, other] = values else { return Ok(Value::Null) };
    Ok(if one.compare(other).is_eq() { Value::Null } else { one.clone() })
}
