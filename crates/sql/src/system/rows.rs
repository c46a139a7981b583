//! Rows of system tables from Rust's values.

use crate::types::{Value, array::Array};

/// Returns an array whose first value has this subscript.
pub(crate) fn list<T: Into<Value>>(values: Vec<T>, first: i32) -> Value {
    let values: Vec<Value> = values.into_iter().map(Into::into).collect();
    let dimensions = if values.is_empty() { Vec::new() } else { vec![(values.len(), first)] };
    Value::Array(Box::new(Array { dimensions, values }))
}

/// Returns a vector of a catalog, whose first value has the subscript 0.
pub(crate) fn vector<T: Into<Value>>(values: Vec<T>) -> Value {
    list(values, 0)
}

/// Makes a row of cells, or of groups of cells in brackets.
macro_rules! row {
    ($([$($cell:expr),* $(,)?]),+ $(,)?) => {
        vec![$($($crate::types::Value::from($cell)),*),+]
    };
    ($($cell:expr),* $(,)?) => {
        vec![$($crate::types::Value::from($cell)),*]
    };
}
pub(crate) use row;
