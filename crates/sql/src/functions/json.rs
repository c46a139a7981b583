//! Functions of JSON (chapter 9.16 of PostgreSQL's manual).

use super::{Call, Declared, MOST_BYTES, function, invalid_parameter, ok, printed, too_long};
use crate::{
    error::{Result, SqlError, code, fail},
    types::{
        Type, Value,
        array::Array,
        json::{self, Json, parts, put_list, put_quoted},
    },
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("#-(jsonb, _text) jsonb", |call| changed(call, Change::Remove)),
    function(
        "array_to_json(anyarray) json; to_json(anyelement) json; to_jsonb(anyelement) jsonb stable",
        to_json,
    ),
    function("json_array_length(json) int4; jsonb_array_length(jsonb) int4", array_length),
    function("json_build_array() json; jsonb_build_array() jsonb stable", build_array),
    function(
        "json_build_array(variadic any) json; jsonb_build_array(variadic any) jsonb stable null",
        build_array,
    ),
    function("json_build_object() json; jsonb_build_object() jsonb stable", build_object),
    function(
        "json_build_object(variadic any) json; jsonb_build_object(variadic any) jsonb stable null",
        build_object,
    ),
    function("json_object(_text, [_text]) json; jsonb_object(_text, [_text]) jsonb", object),
    function("json_strip_nulls(json) json; jsonb_strip_nulls(jsonb) jsonb", strip_nulls),
    function("json_typeof(json) text; jsonb_typeof(jsonb) text", type_name),
    function(
        "jsonb_insert(jsonb_in jsonb, path _text, replacement jsonb, insert_after bool=false) jsonb",
        insert,
    ),
    function("jsonb_pretty(jsonb) text", pretty),
    function(
        "jsonb_set(jsonb_in jsonb, path _text, replacement jsonb, create_if_missing bool=true) jsonb",
        set,
    ),
];

/// Returns the text of an argument of JSON.
fn text_of<'a>(call: &'a Call<'_>, at: usize) -> &'a str {
    match call.values.get(at) {
        Some(Value::Text(text) | Value::Json(text)) => text.trim(),
        _ => "null",
    }
}

/// Returns a result of the type of the call.
fn made(call: &Call<'_>, text: String) -> Result<Value> {
    if text.len() > MOST_BYTES {
        return Err(too_long());
    }
    match call.result {
        Type::Jsonb => Ok(Value::Json(json::parse(&text)?.print())),
        _ => Ok(Value::Text(text)),
    }
}

/// Appends a value as JSON.
pub(crate) fn put_json(into: &mut String, value: &Value, of: Type) {
    match (value, of) {
        (Value::Null, _) => into.push_str("null"),
        (Value::Bool(value), _) => into.push_str(if *value { "true" } else { "false" }),
        (Value::Json(text), _) | (Value::Text(text), Type::Json) => into.push_str(text),
        (Value::Array(array), of) if of.element().is_some() => {
            put_array(into, array, 0, &mut array.values.iter(), of.element().unwrap_or(Type::Text));
        }
        (Value::Date(_), _) => put_quoted(into, &printed(value, of)),
        (Value::Time(_), Type::Timestamp) => put_quoted(into, &printed(value, of).replacen(' ', "T", 1)),
        (Value::Time(_), Type::TimestampTz) => {
            let shown = printed(value, of).replacen(' ', "T", 1);
            let is_of_hours = shown.rfind(['+', '-']).is_some_and(|at| at + 3 == shown.len());
            put_quoted(into, &if is_of_hours { shown + ":00" } else { shown });
        }
        (value, of) if of.is_number() => match printed(value, of) {
            shown if shown.ends_with(|last: char| last.is_ascii_digit()) => into.push_str(&shown),
            not_finite => put_quoted(into, &not_finite),
        },
        (value, of) => put_quoted(into, &printed(value, of)),
    }
}

fn put_array(
    into: &mut String,
    array: &Array,
    level: usize,
    values: &mut std::slice::Iter<'_, Value>,
    element: Type,
) {
    let count = array.dimensions.get(level).map_or(0, |(count, _)| *count);
    put_list(into, ["[", ",", "]"], 0..count, |into, _| match level + 1 < array.dimensions.len() {
        true => put_array(into, array, level + 1, values, element),
        false => put_json(into, values.next().unwrap_or(&Value::Null), element),
    });
}

fn to_json(call: &Call<'_>) -> Result<Value> {
    let mut text = String::new();
    put_json(&mut text, &call.values[0], call.types[0]);
    made(call, text)
}

fn build_array(call: &Call<'_>) -> Result<Value> {
    let mut text = String::new();
    put_list(&mut text, ["[", ", ", "]"], call.rest(0), |into, (value, of)| put_json(into, value, of));
    made(call, text)
}

fn build_object(call: &Call<'_>) -> Result<Value> {
    let all: Vec<(&Value, Type)> = call.rest(0).collect();
    if !all.len().is_multiple_of(2) {
        return Err(invalid_parameter("argument list must have even number of elements"));
    }
    let mut text = String::from("{");
    for (at, pair) in all.chunks(2).enumerate() {
        let [(key, of), (value, value_of)] = pair else { continue };
        if key.is_null() {
            return Err(invalid_parameter(format!("argument {}: key must not be null", at * 2 + 1)));
        }
        if of.element().is_some() || matches!(of, Type::Json | Type::Jsonb | Type::Record) {
            let message = "key value must be scalar, not array, composite, or json";
            return Err(invalid_parameter(message));
        }
        text.push_str(if at > 0 { ", " } else { "" });
        let shown = match key {
            Value::Bool(value) => value.to_string(),
            key => printed(key, *of),
        };
        put_quoted(&mut text, &shown);
        text.push_str(" : ");
        put_json(&mut text, value, *value_of);
    }
    made(call, text + "}")
}

fn object(call: &Call<'_>) -> Result<Value> {
    let wrong = |message: &str| SqlError::new(code::ARRAY_SUBSCRIPT, message);
    let keys = call.array(0);
    let pairs: Vec<(&Value, &Value)> = if call.count() > 1 {
        let values = call.array(1);
        if keys.dimensions.len() > 1 || values.dimensions.len() > 1 {
            return Err(wrong("wrong number of array subscripts"));
        }
        if keys.values.len() != values.values.len() {
            return Err(wrong("mismatched array dimensions"));
        }
        keys.values.iter().zip(&values.values).collect()
    } else {
        match keys.dimensions[..] {
            [] | [_] if keys.values.len().is_multiple_of(2) => {}
            [] | [_] => return Err(wrong("array must have even number of elements")),
            [_, (2, _)] => {}
            [_, _] => return Err(wrong("array must have two columns")),
            _ => return Err(wrong("wrong number of array subscripts")),
        }
        keys.values.chunks(2).filter_map(|pair| Some((pair.first()?, pair.get(1)?))).collect()
    };
    if pairs.iter().any(|(key, _)| key.is_null()) {
        return Err(SqlError::new("22004", "null value not allowed for object key"));
    }
    let mut text = String::new();
    put_list(&mut text, ["{", ", ", "}"], pairs, |into, (key, value)| {
        put_json(into, key, Type::Text);
        into.push_str(" : ");
        put_json(into, value, Type::Text);
    });
    made(call, text)
}

fn array_length(call: &Call<'_>) -> Result<Value> {
    let text = text_of(call, 0);
    let of = match text.bytes().next() {
        Some(b'[') => return ok(parts(text).len() as i64),
        Some(b'{') => "a non-array",
        _ => "a scalar",
    };
    Err(invalid_parameter(format!("cannot get array length of {of}")))
}

fn type_name(call: &Call<'_>) -> Result<Value> {
    ok(match text_of(call, 0).bytes().next() {
        Some(b'{') => "object",
        Some(b'[') => "array",
        Some(b'"') => "string",
        Some(b't' | b'f') => "boolean",
        Some(b'n') => "null",
        _ => "number",
    })
}

/// Appends a text without white space and without the pairs of an object whose value is null.
fn put_stripped(into: &mut String, text: &str) {
    let marks = match text.bytes().next() {
        Some(b'{') => ["{", ",", "}"],
        Some(b'[') => ["[", ",", "]"],
        _ => return into.push_str(text),
    };
    let kept = parts(text).into_iter().filter(|(key, value)| key.is_none() || *value != "null");
    put_list(into, marks, kept, |into, (key, value)| {
        key.into_iter().for_each(|key| into.push_str(&format!("{key}:")));
        put_stripped(into, value);
    });
}

fn strip_nulls(call: &Call<'_>) -> Result<Value> {
    let mut text = String::new();
    put_stripped(&mut text, text_of(call, 0));
    made(call, text)
}

fn pretty(call: &Call<'_>) -> Result<Value> {
    let mut text = String::new();
    put_pretty(&mut text, &json::parse(text_of(call, 0))?, 0);
    if text.len() > MOST_BYTES { Err(too_long()) } else { ok(text) }
}

fn put_pretty(into: &mut String, value: &Json, level: usize) {
    if into.len() > MOST_BYTES {
        return;
    }
    let line = |level: usize| format!("\n{}", "    ".repeat(level));
    let (inner, outer) = (line(level + 1), line(level));
    match value {
        Json::Array(values) => put_list(into, ["[", ",", &(outer + "]")], values, |into, value| {
            into.push_str(&inner);
            put_pretty(into, value, level + 1);
        }),
        Json::Object(pairs) => put_list(into, ["{", ",", &(outer + "}")], pairs, |into, (key, value)| {
            into.push_str(&inner);
            put_quoted(into, key);
            into.push_str(": ");
            put_pretty(into, value, level + 1);
        }),
        scalar => into.push_str(&scalar.print()),
    }
}

/// A change at a path of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Remove,
    Replace { creates: bool },
    Insert { is_after: bool },
}

impl Change {
    /// Returns whether it adds what is not there.
    fn creates(self) -> bool {
        !matches!(self, Self::Remove | Self::Replace { creates: false })
    }
}

fn set(call: &Call<'_>) -> Result<Value> {
    changed(call, Change::Replace { creates: call.bool(3) })
}

fn insert(call: &Call<'_>) -> Result<Value> {
    changed(call, Change::Insert { is_after: call.bool(3) })
}

fn changed(call: &Call<'_>, change: Change) -> Result<Value> {
    let path = call.array(1);
    if path.dimensions.len() > 1 {
        return Err(SqlError::new(code::ARRAY_SUBSCRIPT, "wrong number of array subscripts"));
    }
    let mut target = json::parse(text_of(call, 0))?;
    if !matches!(target, Json::Array(_) | Json::Object(_)) {
        let verb = if change == Change::Remove { "delete" } else { "set" };
        return Err(invalid_parameter(format!("cannot {verb} path in scalar")));
    }
    let is_empty = match &target {
        Json::Array(values) => values.is_empty(),
        Json::Object(pairs) => pairs.is_empty(),
        _ => false,
    };
    if path.values.is_empty() || is_empty && !change.creates() {
        return Ok(call.values[0].clone());
    }
    let mut steps = Vec::new();
    for (at, step) in path.values.iter().enumerate() {
        let Value::Text(step) = step else {
            fail!("22004", "path element at position {} is null", at + 1);
        };
        steps.push(step.as_str());
    }
    let new = if change == Change::Remove { Json::Null } else { json::parse(text_of(call, 2))? };
    change_at(&mut target, &steps, 1, &new, change)?;
    made(call, target.print())
}

/// Makes a change at the steps of a path, of which the first is number `number`.
fn change_at(target: &mut Json, steps: &[&str], number: usize, new: &Json, change: Change) -> Result<()> {
    let Some((step, rest)) = steps.split_first() else { return Ok(()) };
    match target {
        Json::Object(pairs) => {
            let found = pairs.iter().position(|(key, _)| key == step);
            match found {
                Some(at) if !rest.is_empty() => change_at(&mut pairs[at].1, rest, number + 1, new, change),
                Some(_) if matches!(change, Change::Insert { .. }) => {
                    Err(invalid_parameter("cannot replace existing key"))
                }
                Some(at) if change == Change::Remove => {
                    pairs.remove(at);
                    Ok(())
                }
                Some(at) => {
                    pairs[at].1 = new.clone();
                    Ok(())
                }
                None if rest.is_empty() && change.creates() => {
                    let mut all = std::mem::take(pairs);
                    all.push(((*step).to_owned(), new.clone()));
                    *target = json::object(all);
                    Ok(())
                }
                None => Ok(()),
            }
        }
        Json::Array(values) => {
            let Ok(place) = step.trim().parse::<i32>() else {
                fail!(INVALID_TEXT, "path element at position {number} is not an integer: \"{step}\"");
            };
            let count = values.len();
            // A place before the first one, or behind the last.
            let at = match usize::try_from(place) {
                Ok(at) => Some(at.min(count)),
                Err(_) => count.checked_sub(place.unsigned_abs() as usize),
            };
            match (at, rest.is_empty()) {
                (None, true) if change.creates() => values.insert(0, new.clone()),
                (Some(at), true) if at == count && change.creates() => values.push(new.clone()),
                (Some(at), true) if at < count => match change {
                    Change::Remove => drop(values.remove(at)),
                    Change::Replace { .. } => values[at] = new.clone(),
                    Change::Insert { is_after } => values.insert(at + usize::from(is_after), new.clone()),
                },
                (Some(at), false) if at < count => {
                    return change_at(&mut values[at], rest, number + 1, new, change);
                }
                _ => {}
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
