//! Functions that return rows.

use super::Context;
use crate::{
    error::{Result, SqlError, code},
    exec::{MOST_MEMORY, out_of_memory},
    system,
    types::{Type, Value, numeric::Numeric},
};

/// The types of the arguments of a call, and the columns of its rows.
type Signature = (Vec<Type>, Vec<(&'static str, Type)>);

/// A function that returns rows. NULL as an argument gives no row.
#[derive(Debug)]
pub(crate) struct SetFunction {
    pub(crate) name: &'static str,
    /// Its rows are single values.
    pub(crate) is_scalar: bool,
    /// Returns its signature for types of arguments, if it takes these.
    signature: fn(&[Type]) -> Option<Signature>,
    pub(crate) act: fn(&[Value], &[Type], &Context) -> Result<Vec<Vec<Value>>>,
}

/// A value as a row.
pub(crate) static VALUE: SetFunction = SetFunction {
    name: "",
    is_scalar: true,
    signature: |_| None,
    act: |values, _, _| Ok(vec![values.to_vec()]),
};

pub(crate) static FUNCTIONS: &[SetFunction] = &[
    SetFunction { name: "generate_series", is_scalar: true, signature: series_types, act: series },
    SetFunction { name: "unnest", is_scalar: true, signature: elements_types, act: elements },
    SetFunction {
        name: "generate_subscripts",
        is_scalar: true,
        signature: |types| match types {
            [array, dimension] if array.element().is_some() && dimension.is_integer() => {
                Some((vec![*array, Type::Int4], vec![("generate_subscripts", Type::Int4)]))
            }
            [array, dimension, Type::Bool] if array.element().is_some() && dimension.is_integer() => {
                let types = vec![*array, Type::Int4, Type::Bool];
                Some((types, vec![("generate_subscripts", Type::Int4)]))
            }
            _ => None,
        },
        act: subscripts,
    },
    // There are no partitions, and a table that is none has no ancestors.
    SetFunction {
        name: "pg_partition_ancestors",
        is_scalar: true,
        signature: |types| {
            (types.len() == 1).then(|| (vec![Type::Regclass], vec![("relid", Type::Regclass)]))
        },
        act: |_, _, _| Ok(Vec::new()),
    },
    SetFunction {
        name: "pg_get_keywords",
        is_scalar: false,
        signature: |types| {
            let texts = ["word", "catcode", "catdesc", "baredesc"].map(|name| (name, Type::Text));
            let [word, code, category, label] = texts;
            types
                .is_empty()
                .then(|| (Vec::new(), vec![word, code, ("barelabel", Type::Bool), category, label]))
        },
        act: |_, _, _| Ok(system::keywords()),
    },
    SetFunction {
        name: "pg_options_to_table",
        is_scalar: false,
        signature: |types| {
            let columns = ["option_name", "option_value"].map(|name| (name, Type::Text)).to_vec();
            (types == [Type::Array(&Type::Text)]).then(|| (types.to_vec(), columns))
        },
        act: |values, _, _| {
            let [Value::Array(array)] = values else { return Ok(Vec::new()) };
            let options = array.values.iter().filter_map(|option| match option {
                Value::Text(text) => Some(
                    text.split_once('=').map_or((text.as_str(), None), |(name, value)| (name, Some(value))),
                ),
                _ => None,
            });
            Ok(options.map(|(name, text)| vec![name.into(), text.into()]).collect())
        },
    },
    SetFunction {
        name: "_pg_expandarray",
        is_scalar: false,
        signature: |types| match types {
            [array] => Some((vec![*array], vec![("x", array.element()?), ("n", Type::Int4)])),
            _ => None,
        },
        act: |values, _, _| {
            let [Value::Array(array)] = values else { return Ok(Vec::new()) };
            let numbered = (1..).zip(&array.values);
            Ok(numbered.map(|(at, value)| vec![value.clone(), Value::Int(at)]).collect())
        },
    },
];

/// Returns the function of a name that takes these arguments.
pub(crate) fn find(
    name: &str,
    types: &[Type],
) -> Option<(&'static SetFunction, Vec<Type>, Vec<(&'static str, Type)>)> {
    FUNCTIONS
        .iter()
        .filter(|function| function.name == name)
        .find_map(|function| (function.signature)(types).map(|(wanted, columns)| (function, wanted, columns)))
}

fn series_types(types: &[Type]) -> Option<Signature> {
    if !matches!(types.len(), 2 | 3) {
        return None;
    }
    let of = types.iter().try_fold(Type::Unknown, |common, of| common.common(*of))?;
    let of = match of {
        Type::Unknown | Type::Int2 | Type::Int4 => Type::Int4,
        Type::Int8 => Type::Int8,
        Type::Numeric(_) => Type::Numeric(None),
        _ => return None,
    };
    Some((vec![of; types.len()], vec![("generate_series", of)]))
}

fn series(values: &[Value], types: &[Type], _: &Context) -> Result<Vec<Vec<Value>>> {
    let zero = || SqlError::new(code::INVALID_PARAMETER_VALUE, "step size cannot equal zero");
    let is_numeric = matches!(types, [Type::Numeric(_), ..]);
    let number = |value: Option<&Value>| match value {
        Some(Value::Int(number)) => Numeric::from_int(*number),
        Some(Value::Numeric(number)) => *number,
        _ => Numeric::from_int(1),
    };
    let (mut at, end, step) = (number(values.first()), number(values.get(1)), number(values.get(2)));
    if step.digits == 0 {
        return Err(zero());
    }
    let is_rising = step.digits > 0;
    let mut rows = Vec::new();
    loop {
        let order = at.compare(&end);
        if if is_rising { order.is_gt() } else { order.is_lt() } {
            return Ok(rows);
        }
        let value = match is_numeric {
            true => Value::Numeric(at),
            false => Value::Int(at.to_int().unwrap_or_default()),
        };
        rows.push(vec![value]);
        if rows.len() * (size_of::<Vec<Value>>() + size_of::<Value>()) > MOST_MEMORY {
            return Err(out_of_memory());
        }
        let Ok(next) = at.add(step) else { return Ok(rows) };
        at = next;
    }
}

fn elements_types(types: &[Type]) -> Option<Signature> {
    match types {
        [array] => Some((vec![*array], vec![("unnest", array.element()?)])),
        _ => None,
    }
}

fn elements(values: &[Value], _: &[Type], _: &Context) -> Result<Vec<Vec<Value>>> {
    let [Value::Array(array)] = values else { return Ok(Vec::new()) };
    Ok(array.values.iter().map(|value| vec![value.clone()]).collect())
}

fn subscripts(values: &[Value], _: &[Type], _: &Context) -> Result<Vec<Vec<Value>>> {
    let [Value::Array(array), Value::Int(dimension), rest @ ..] = values else { return Ok(Vec::new()) };
    let found = usize::try_from(dimension - 1).ok().and_then(|at| array.dimensions.get(at));
    let Some((count, first)) = found else { return Ok(Vec::new()) };
    let first = i64::from(*first);
    let mut rows: Vec<Vec<Value>> = (first..first + *count as i64).map(|at| vec![Value::Int(at)]).collect();
    if matches!(rest, [Value::Bool(true)]) {
        rows.reverse();
    }
    Ok(rows)
}
