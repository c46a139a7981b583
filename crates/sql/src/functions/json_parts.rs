//! The operators and the functions that take JSON apart (chapter 9.16 of PostgreSQL's manual).

use super::{Call, Declared, function, ok};
use crate::{
    error::Result,
    types::{
        Type, Value,
        array::Array,
        json::{self, Json, Step},
    },
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("->(json, text/int4) json; ->>(json, text/int4) text", |call| {
        let step = match call.values[1] {
            Value::Int(place) => Step::Place(place),
            _ => Step::Key(call.text(1)),
        };
        shown(json::raw_step(call.text(0), step), call.result)
    }),
    function("->(jsonb, text/int4) jsonb; ->>(jsonb, text/int4) text", |call| {
        let value = call.json(0)?;
        let found = match call.values[1] {
            Value::Int(0 | -1) if value.is_scalar() => Some(&value),
            Value::Int(place) => value.at(place),
            _ => value.get(call.text(1)),
        };
        ok(value_of(found, call.result))
    }),
    function("#>(json/jsonb, _text) json/jsonb; #>>(json/jsonb, _text) text", |call| {
        extract(call, call.array(1))
    }),
    function(
        "json_extract_path(json, variadic _text) json; json_extract_path_text(json, variadic _text) text; \
         jsonb_extract_path(jsonb, variadic _text) jsonb; \
         jsonb_extract_path_text(jsonb, variadic _text) text",
        |call| extract(call, &Array::from(call.rest(1).map(|(value, _)| value.clone()).collect::<Vec<_>>())),
    ),
    function("@>(jsonb, jsonb) bool", |call| ok(call.json(0)?.contains(&call.json(1)?))),
    function("?(jsonb, text) bool", |call| ok(call.json(0)?.has(call.text(1)))),
    function("?|(jsonb, _text) bool", |call| {
        let value = call.json(0)?;
        ok(texts(call.array(1)).into_iter().any(|key| value.has(key)))
    }),
    function("?&(jsonb, _text) bool", |call| {
        let value = call.json(0)?;
        ok(texts(call.array(1)).into_iter().all(|key| value.has(key)))
    }),
    function("||(jsonb, jsonb) jsonb", |call| printed(call.json(0)?.joined(call.json(1)?))),
    function("-(jsonb, text/int4/_text) jsonb", |call| {
        let value = call.json(0)?;
        printed(match &call.values[1] {
            Value::Int(place) => value.without_place(*place)?,
            Value::Array(keys) => value.without(&texts(keys))?,
            _ => value.without(&[call.text(1)])?,
        })
    }),
];

fn printed(value: Json) -> Result<Value> {
    Ok(Value::Json(value.print()))
}

/// Returns a part of a text of JSON, as a text or as JSON.
fn shown(raw: Option<&str>, of: Type) -> Result<Value> {
    let Some(raw) = raw else { return Ok(Value::Null) };
    match raw.bytes().next() {
        Some(b'n') if of == Type::Text => Ok(Value::Null),
        Some(b'"') if of == Type::Text => Ok(value_of(Some(&json::parse(raw)?), of)),
        _ => ok(raw),
    }
}

/// Returns a part of a value, as a text or as JSON.
fn value_of(found: Option<&Json>, of: Type) -> Value {
    match found {
        None => Value::Null,
        Some(Json::Null) if of == Type::Text => Value::Null,
        Some(Json::Text(text)) if of == Type::Text => Value::Text(text.clone()),
        Some(value) if of == Type::Text => Value::Text(value.print()),
        Some(value) => Value::Json(value.print()),
    }
}

/// Returns the texts of an array without its NULLs.
fn texts(array: &Array) -> Vec<&str> {
    let mut texts = Vec::with_capacity(array.values.len());
    for value in &array.values {
        if let Value::Text(text) = value {
            texts.push(text.as_str());
        }
    }
    texts
}

/// Follows a path; NULL as a step finds nothing.
fn extract(call: &Call<'_>, path: &Array) -> Result<Value> {
    let steps = texts(path);
    if steps.len() < path.values.len() {
        return Ok(Value::Null);
    }
    if call.types[0] == Type::Jsonb {
        let value = call.json(0)?;
        return ok(value_of(steps.iter().try_fold(&value, |value, step| value.step(step)), call.result));
    }
    let found = steps.into_iter().try_fold(call.text(0).trim(), |at, step| {
        let step = match step.trim().parse() {
            Ok(place) if json::is_array(at) => Step::Place(place),
            _ => Step::Key(step),
        };
        json::raw_step(at, step)
    });
    shown(found, call.result)
}
