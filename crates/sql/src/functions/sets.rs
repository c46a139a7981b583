//! Functions that return rows.

use super::{
    ANYARRAY, ANYELEMENT, BOOL, Context, DeclaredType, Function, INT4, INT8, NUMERIC, REGCLASS, TEXT, TEXTS,
    VOID, function, resolve::resolve_among, undefined,
};
use crate::{
    error::{Result, SqlError, code},
    exec::{MOST_MEMORY, out_of_memory},
    system,
    types::{Type, Value, numeric::Numeric},
};

/// The columns of rows.
type Columns<T> = [(&'static str, T)];

/// Makes rows of the values and the types of arguments.
type MakeRows = fn(&[Value], &[Type], &Context) -> Result<Vec<Vec<Value>>>;

/// A function that returns rows. NULL as an argument gives no row.
#[derive(Debug)]
pub(crate) struct SetFunction {
    /// Its name and its arguments.
    declared: Function,
    columns: &'static Columns<DeclaredType>,
    pub(crate) act: MakeRows,
}

const fn set(
    name: &'static str,
    arguments: &'static [DeclaredType],
    columns: &'static Columns<DeclaredType>,
    act: MakeRows,
) -> SetFunction {
    SetFunction { declared: function(name, arguments, VOID, |_| Ok(Value::Null)), columns, act }
}

impl SetFunction {
    pub(crate) fn name(&self) -> &'static str {
        self.declared.name
    }

    /// Lets calls leave out so many last arguments.
    const fn optional(self, optional: usize) -> Self {
        Self { declared: self.declared.optional(optional), ..self }
    }
}

/// A value as a row.
pub(crate) static VALUE: SetFunction = set("", &[], &[], |values, _, _| Ok(vec![values.to_vec()]));

pub(crate) static FUNCTIONS: &[SetFunction] = &[
    set("generate_series", &[INT4, INT4, INT4], &[("generate_series", INT4)], series).optional(1),
    set("generate_series", &[INT8, INT8, INT8], &[("generate_series", INT8)], series).optional(1),
    set("generate_series", &[NUMERIC, NUMERIC, NUMERIC], &[("generate_series", NUMERIC)], series).optional(1),
    set("unnest", &[ANYARRAY], &[("unnest", ANYELEMENT)], elements),
    set("generate_subscripts", &[ANYARRAY, INT4, BOOL], &[("generate_subscripts", INT4)], subscripts)
        .optional(1),
    // There are no partitions, and a table that is none has no ancestors.
    set("pg_partition_ancestors", &[REGCLASS], &[("relid", REGCLASS)], |_, _, _| Ok(Vec::new())),
    set("pg_get_keywords", &[], KEYWORDS, |_, _, _| Ok(system::keywords())),
    set("pg_listening_channels", &[], &[("pg_listening_channels", TEXT)], |_, _, context| {
        Ok(context.notifications.channels().into_iter().map(|channel| vec![channel.into()]).collect())
    }),
    set("pg_options_to_table", &[TEXTS], &[("option_name", TEXT), ("option_value", TEXT)], options),
    set("_pg_expandarray", &[ANYARRAY], &[("x", ANYELEMENT), ("n", INT4)], |values, _, _| {
        let [Value::Array(array)] = values else { return Ok(Vec::new()) };
        let numbered = (1..).zip(&array.values);
        Ok(numbered.map(|(at, value)| vec![value.clone(), Value::Int(at)]).collect())
    }),
];

const KEYWORDS: &Columns<DeclaredType> =
    &[("word", TEXT), ("catcode", TEXT), ("barelabel", BOOL), ("catdesc", TEXT), ("baredesc", TEXT)];

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
    Ok((function, bound.types.into(), function.columns.iter().map(column).collect()))
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
