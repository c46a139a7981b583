//! Functions that return rows.

use std::sync::LazyLock;

use super::{Call, Context, DeclaredType, Function, function, resolve::resolve_among, undefined};
use crate::{
    error::{Result, SqlError, code},
    exec::{MOST_MEMORY, out_of_memory},
    system,
    types::{Type, Value, numeric::Numeric},
};

/// Makes rows of the values and the types of arguments.
type MakeRows = fn(&[Value], &[Type], &Context) -> Result<Vec<Vec<Value>>>;

/// A function that returns rows. NULL as an argument gives no row.
#[derive(Debug)]
pub(crate) struct SetFunction {
    /// Its name, its arguments and the columns of its rows.
    declared: Function,
    pub(crate) act: MakeRows,
}

impl SetFunction {
    fn all_of(text: &'static str, act: MakeRows) -> impl Iterator<Item = Self> {
        let none: fn(&Call<'_>) -> Result<Value> = |_| Ok(Value::Null);
        Function::all_of(function(text, none)).map(move |declared| Self { declared, act })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.declared.name
    }
}

/// A value as a row.
pub(crate) static VALUE: LazyLock<SetFunction> = LazyLock::new(|| {
    let declared = Function { name: "", ..FUNCTIONS[0].declared.clone() };
    SetFunction { declared, act: |values, _, _| Ok(vec![values.to_vec()]) }
});

static TABLE: &[(&str, MakeRows)] = &[
    ("generate_series(int4/int8/numeric, int4/int8/numeric, [int4/int8/numeric]) int4/int8/numeric", series),
    ("unnest(anyarray) anyelement", elements),
    ("generate_subscripts(anyarray, int4, [bool]) int4", subscripts),
    // There are no partitions, and a table that is none has no ancestors.
    ("pg_partition_ancestors(regclass) relid regclass", |_, _, _| Ok(Vec::new())),
    ("pg_get_keywords() word text, catcode text, barelabel bool, catdesc text, baredesc text", |_, _, _| {
        Ok(system::keywords())
    }),
    ("pg_listening_channels() text", |_, _, context| {
        Ok(context.notifications.channels().into_iter().map(|channel| vec![channel.into()]).collect())
    }),
    ("pg_options_to_table(_text) option_name text, option_value text", options),
    ("_pg_expandarray(anyarray) x anyelement, n int4", |values, _, _| {
        let [Value::Array(array)] = values else { return Ok(Vec::new()) };
        let numbered = (1..).zip(&array.values);
        Ok(numbered.map(|(at, value)| vec![value.clone(), Value::Int(at)]).collect())
    }),
];

pub(crate) static FUNCTIONS: LazyLock<Vec<SetFunction>> =
    LazyLock::new(|| TABLE.iter().flat_map(|(text, act)| SetFunction::all_of(text, *act)).collect());

/// Returns the function of a name that takes these arguments, the types that they get, and the
/// columns of its rows.
pub(crate) fn find(
    name: &str,
    types: &[Type],
) -> Result<(&'static SetFunction, Vec<Type>, Vec<(&'static str, Type)>)> {
    let named = || FUNCTIONS.iter().filter(|function| function.name() == name);
    let bound = resolve_among(named().map(|function| &function.declared), name, types, false)?;
    let is_it = |function: &&SetFunction| std::ptr::eq(&function.declared, bound.function);
    let function = named().find(is_it).ok_or_else(|| undefined(name, types))?;
    let element = bound.types.first().and_then(|of| of.element()).unwrap_or(Type::Unknown);
    let column = |(name, of): &(&'static str, DeclaredType)| match of {
        DeclaredType::Is(of) => (*name, *of),
        _ => (*name, element),
    };
    Ok((function, bound.types.into(), function.declared.columns.iter().map(column).collect()))
}

fn options(values: &[Value], _: &[Type], _: &Context) -> Result<Vec<Vec<Value>>> {
    let [Value::Array(array)] = values else { return Ok(Vec::new()) };
    let row = |option: &Value| {
        let Value::Text(text) = option else { return None };
        let (name, value) = text.split_once('=').map_or((&**text, None), |(name, value)| (name, Some(value)));
        Some(vec![name.into(), value.into()])
    };
    Ok(array.values.iter().filter_map(row).collect())
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
        let value = if is_numeric { Value::Numeric(at) } else { Value::Int(at.to_int().unwrap_or_default()) };
        rows.push(vec![value]);
        if rows.len() * (size_of::<Vec<Value>>() + size_of::<Value>()) > MOST_MEMORY {
            return Err(out_of_memory());
        }
        let Ok(next) = at.add(step) else { return Ok(rows) };
        at = next;
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
