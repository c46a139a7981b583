//! Functions of arrays (chapter 9.19 of PostgreSQL's manual).

use super::{Call, Declared, MOST_ELEMENTS, array_too_large, function, join, ok, printed};
use crate::{
    error::{Result, SqlError, code, fail},
    exec::MOST_MEMORY,
    spool::bytes_of,
    types::{
        Type, Value,
        array::{Array, MOST_DIMENSIONS, append, concatenate, prepend},
    },
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("array_append ||(anycompatiblearray, anycompatible) anycompatiblearray null", |call| {
        append(call.values)
    }),
    function("array_cat ||(anycompatiblearray, anycompatiblearray) anycompatiblearray null", |call| {
        concatenate(call.values)
    }),
    function("array_dims(anyarray) text", array_dims),
    function("array_fill(anyelement, _int4, [_int4]) anyarray null", array_fill),
    function("array_length(anyarray, int4) int4", |call| bound(call, |(count, _)| count as i64)),
    function("array_lower(anyarray, int4) int4", |call| bound(call, |(_, first)| first.into())),
    function("array_ndims(anyarray) int4", array_ndims),
    function("array_position(anycompatiblearray!, anycompatible, [int4]) int4 null", array_position),
    function("array_positions(anycompatiblearray!, anycompatible) _int4 null", array_positions),
    function("array_prepend ||(anycompatible, anycompatiblearray) anycompatiblearray null", |call| {
        prepend(call.values)
    }),
    function("array_remove(anycompatiblearray!, anycompatible) anycompatiblearray null", array_remove),
    function(
        "array_replace(anycompatiblearray!, anycompatible, anycompatible) anycompatiblearray null",
        array_replace,
    ),
    function("array_to_string(anyarray, text) text stable", array_to_string),
    function("array_to_string(anyarray!, text!, text) text stable null", array_to_string),
    function("array_upper(anyarray, int4) int4", |call| {
        bound(call, |(count, first)| i64::from(first) + count as i64 - 1)
    }),
    function("cardinality(anyarray) int4", |call| ok(call.array(0).values.len() as i64)),
    function("trim_array(anyarray, int4) anyarray", trim_array),
    function("@>(anycompatiblearray, anycompatiblearray) bool", |call| {
        ok(call.array(1).values.iter().all(|value| has(call.array(0), value)))
    }),
    function("&&(anycompatiblearray, anycompatiblearray) bool", |call| {
        ok(call.array(0).values.iter().any(|value| has(call.array(1), value)))
    }),
];

/// Returns true if an array has an element, which NULL is not.
fn has(array: &Array, value: &Value) -> bool {
    !value.is_null() && array.values.iter().any(|one| !one.is_null() && one.compare(value).is_eq())
}

/// Returns a fact about a dimension, NULL if there is none.
fn bound(call: &Call<'_>, fact: fn((usize, i32)) -> i64) -> Result<Value> {
    let at = usize::try_from(call.int(1) - 1).ok();
    let dimension = at.and_then(|at| call.array(0).dimensions.get(at));
    ok(dimension.map(|dimension| fact(*dimension)))
}

fn array_dims(call: &Call<'_>) -> Result<Value> {
    let array = call.array(0);
    let shown =
        |(count, first): &(usize, i32)| format!("[{first}:{}]", i64::from(*first) + *count as i64 - 1);
    match array.dimensions.is_empty() {
        true => Ok(Value::Null),
        false => ok(array.dimensions.iter().map(shown).collect::<String>()),
    }
}

fn array_ndims(call: &Call<'_>) -> Result<Value> {
    Ok(match call.array(0).dimensions.len() {
        0 => Value::Null,
        count => (count as i64).into(),
    })
}

fn wrong_dimensions(message: &str) -> SqlError {
    SqlError::new(code::ARRAY_SUBSCRIPT, message)
}

fn array_fill(call: &Call<'_>) -> Result<Value> {
    let null = || SqlError::new("22004", "dimension array or low bound array cannot be null");
    if call.is_null(1) || call.count() > 2 && call.is_null(2) {
        return Err(null());
    }
    let numbers = |at: usize| -> Result<Vec<i32>> {
        let array = call.array(at);
        if array.dimensions.len() > 1 {
            return Err(wrong_dimensions("wrong number of array subscripts"));
        }
        let number = |value: &Value| match value {
            Value::Int(number) => Ok(*number as i32),
            _ => Err(SqlError::new("22004", "dimension values cannot be null")),
        };
        array.values.iter().map(number).collect()
    };
    let counts = numbers(1)?;
    let firsts = if call.count() > 2 { numbers(2)? } else { vec![1; counts.len()] };
    if firsts.len() != counts.len() {
        return Err(wrong_dimensions("wrong number of array subscripts"));
    }
    if counts.len() > MOST_DIMENSIONS {
        fail!(PROGRAM_LIMIT, "number of array dimensions exceeds the maximum allowed (6)");
    }
    let mut size = 1usize;
    for (count, first) in counts.iter().zip(&firsts) {
        let count = usize::try_from(*count).map_err(|_| array_too_large())?;
        size = size.checked_mul(count).filter(|size| *size <= MOST_ELEMENTS).ok_or_else(array_too_large)?;
        i32::try_from(count).ok().and_then(|count| first.checked_add(count)).ok_or_else(array_too_large)?;
    }
    if size * bytes_of(&call.values[..1]) > MOST_MEMORY {
        return Err(array_too_large());
    }
    if counts.is_empty() || size == 0 {
        return ok(Array::default());
    }
    let dimensions = counts.iter().map(|count| *count as usize).zip(firsts).collect();
    ok(Array { dimensions, values: vec![call.values[0].clone(); size] })
}

/// Returns whether two elements are the same: NULL is that of NULL.
fn is_same(one: &Value, other: &Value) -> bool {
    one.compare(other).is_eq()
}

fn check_one_dimension(array: &Array, what: &str) -> Result<()> {
    match array.dimensions.len() > 1 {
        true => Err(SqlError::unsupported(format!("{what} multidimensional arrays"))),
        false => Ok(()),
    }
}

/// Returns the subscripts of elements with a value, in their order.
fn positions(call: &Call<'_>) -> Result<impl Iterator<Item = i64>> {
    let array = call.array(0);
    check_one_dimension(array, "searching for elements in")?;
    let first = array.dimensions.first().map_or(1, |(_, first)| i64::from(*first));
    let wanted = &call.values[1];
    let found = array.values.iter().enumerate().filter(move |(_, value)| is_same(value, wanted));
    Ok(found.map(move |(at, _)| first + at as i64))
}

fn array_position(call: &Call<'_>) -> Result<Value> {
    let from = match call.values.get(2) {
        Some(Value::Null) => {
            return Err(SqlError::new("22004", "initial position must not be null"));
        }
        Some(Value::Int(from)) => *from,
        _ => i64::MIN,
    };
    ok(positions(call)?.find(|at| *at >= from))
}

fn array_positions(call: &Call<'_>) -> Result<Value> {
    ok(positions(call)?.map(Value::Int).collect::<Vec<Value>>())
}

fn array_remove(call: &Call<'_>) -> Result<Value> {
    let array = call.array(0);
    check_one_dimension(array, "removing elements from")?;
    let kept = array.values.iter().filter(|value| !is_same(value, &call.values[1])).cloned();
    let mut left = Array::from(kept.collect::<Vec<Value>>());
    if let (Some(left), Some(before)) = (left.dimensions.first_mut(), array.dimensions.first()) {
        left.1 = before.1;
    }
    ok(left)
}

fn array_replace(call: &Call<'_>) -> Result<Value> {
    let mut array = call.array(0).clone();
    for value in array.values.iter_mut().filter(|value| is_same(value, &call.values[1])) {
        *value = call.values[2].clone();
    }
    ok(array)
}

fn array_to_string(call: &Call<'_>) -> Result<Value> {
    let element = call.types[0].element().unwrap_or(Type::Text);
    let null = (!call.is_null(2)).then(|| call.text(2).to_owned());
    let shown = |value: &Value| if value.is_null() { null.clone() } else { Some(printed(value, element)) };
    join(call.array(0).values.iter().filter_map(shown), call.text(1))
}

fn trim_array(call: &Call<'_>) -> Result<Value> {
    let (array, gone) = (call.array(0), call.int(1));
    let count = array.dimensions.first().map_or(0, |(count, _)| *count);
    let Some(kept) = usize::try_from(gone).ok().and_then(|gone| count.checked_sub(gone)) else {
        fail!(ARRAY_SUBSCRIPT, "number of elements to trim must be between 0 and {count}");
    };
    if kept == 0 {
        return ok(Array::default());
    }
    let mut dimensions = array.dimensions.clone();
    // PostgreSQL counts the elements of the slice from 1.
    dimensions.iter_mut().for_each(|dimension| dimension.1 = 1);
    dimensions[0].0 = kept;
    ok(Array { values: array.values[..array.values.len() / count * kept].to_vec(), dimensions })
}
