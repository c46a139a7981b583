//! Rows of system tables from Rust's values.

use crate::types::{Value, array::Array};

/// A value of a row.
pub(crate) trait Cell {
    /// Returns it as SQL has it.
    fn cell(self) -> Value;
}

impl Cell for Value {
    fn cell(self) -> Value {
        self
    }
}

impl Cell for &str {
    fn cell(self) -> Value {
        Value::Text(self.to_owned())
    }
}

impl Cell for &String {
    fn cell(self) -> Value {
        Value::Text(self.clone())
    }
}

impl Cell for String {
    fn cell(self) -> Value {
        Value::Text(self)
    }
}

impl Cell for char {
    fn cell(self) -> Value {
        Value::Text(self.to_string())
    }
}

impl Cell for bool {
    fn cell(self) -> Value {
        Value::Bool(self)
    }
}

impl Cell for f64 {
    fn cell(self) -> Value {
        Value::Float(self)
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Cell for $number {
            fn cell(self) -> Value {
                Value::Int(self.into())
            }
        })*
    };
}

numbers!(i16, i32, i64, u32);

impl Cell for usize {
    fn cell(self) -> Value {
        Value::Int(self as i64)
    }
}

impl<T: Cell> Cell for Option<T> {
    fn cell(self) -> Value {
        self.map_or(Value::Null, Cell::cell)
    }
}

impl<T: Cell> Cell for Vec<T> {
    fn cell(self) -> Value {
        list(self, 1)
    }
}

/// Returns an array whose first value has this subscript.
pub(crate) fn list<T: Cell>(values: Vec<T>, first: i32) -> Value {
    let values: Vec<Value> = values.into_iter().map(Cell::cell).collect();
    let dimensions = if values.is_empty() { Vec::new() } else { vec![(values.len(), first)] };
    Value::Array(Box::new(Array { dimensions, values }))
}

/// Returns a vector of a catalog, whose first value has the subscript 0.
pub(crate) fn vector<T: Cell>(values: Vec<T>) -> Value {
    list(values, 0)
}

/// NULL.
pub(crate) const NULL: Value = Value::Null;

/// Makes a row.
macro_rules! row {
    ($($cell:expr),* $(,)?) => {
        vec![$($crate::system::rows::Cell::cell($cell)),*]
    };
}
pub(crate) use row;
