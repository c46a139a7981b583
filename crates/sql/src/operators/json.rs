//! What operators of JSON do.

use crate::{
    error::{Result, SqlError, code},
    types::{
        Value,
        array::Array,
        json::{self, Json, Step},
    },
};

/// Returns a part of a text of type json, as JSON or as the text that it means.
fn shown(raw: Option<&str>, is_text: bool) -> Result<Value> {
    let Some(raw) = raw else { return Ok(Value::Null) };
    if !is_text {
        return Ok(Value::Text(raw.to_owned()));
    }
    Ok(match raw.bytes().next() {
        Some(b'n') => Value::Null,
        Some(b'"') => match json::parse(raw)? {
            Json::Text(text) => Value::Text(text),
            _ => Value::Null,
        },
        _ => Value::Text(raw.to_owned()),
    })
}

pub(super) fn json_part(all: &[Value], is_text: bool) -> Result<Value> {
    match all {
        [Value::Text(text), Value::Text(key)] => shown(json::raw_step(text, Step::Key(key)), is_text),
        [Value::Text(text), Value::Int(place)] => shown(json::raw_step(text, Step::Place(*place)), is_text),
        _ => Ok(Value::Null),
    }
}

/// Returns the steps of a path; `None` if one is NULL.
fn steps(path: &Array) -> Option<Vec<&str>> {
    let steps = texts(path);
    (steps.len() == path.values.len()).then_some(steps)
}

/// Returns the texts of an array that are not NULL.
fn texts(array: &Array) -> Vec<&str> {
    let mut texts = Vec::with_capacity(array.values.len());
    for value in &array.values {
        if let Value::Text(text) = value {
            texts.push(text.as_str());
        }
    }
    texts
}

pub(crate) fn json_path(all: &[Value], is_text: bool) -> Result<Value> {
    let [Value::Text(text), Value::Array(path)] = all else { return Ok(Value::Null) };
    let Some(path) = steps(path) else { return Ok(Value::Null) };
    let mut at = text.trim();
    for step in path {
        let step = match (json::is_array(at), step.trim().parse()) {
            (true, Ok(place)) => Step::Place(place),
            _ => Step::Key(step),
        };
        match json::raw_step(at, step) {
            Some(next) => at = next,
            None => return Ok(Value::Null),
        }
    }
    shown(Some(at), is_text)
}

/// Returns a value of jsonb, or the text that it means.
fn value_of(found: Option<&Json>, is_text: bool) -> Value {
    match found {
        None => Value::Null,
        Some(Json::Null) if is_text => Value::Null,
        Some(Json::Text(text)) if is_text => Value::Text(text.clone()),
        Some(value) if is_text => Value::Text(value.print()),
        Some(value) => Value::Json(value.print()),
    }
}

pub(super) fn jsonb_part(all: &[Value], is_text: bool) -> Result<Value> {
    Ok(match all {
        [Value::Json(value), Value::Text(key)] => value_of(json::parse(value)?.get(key), is_text),
        [Value::Json(value), Value::Int(place)] => {
            let value = json::parse(value)?;
            // A scalar counts as an array of one value here.
            let is_whole = value.is_scalar() && matches!(place, 0 | -1);
            value_of(if is_whole { Some(&value) } else { value.at(*place) }, is_text)
        }
        _ => Value::Null,
    })
}

pub(crate) fn jsonb_path(all: &[Value], is_text: bool) -> Result<Value> {
    let [Value::Json(value), Value::Array(path)] = all else { return Ok(Value::Null) };
    let Some(path) = steps(path) else { return Ok(Value::Null) };
    let value = json::parse(value)?;
    let found = path.iter().try_fold(&value, |value, step| value.step(step));
    Ok(value_of(found, is_text))
}

pub(super) fn jsonb_contains(one: &Value, other: &Value) -> Result<Value> {
    let (Value::Json(one), Value::Json(other)) = (one, other) else { return Ok(Value::Null) };
    Ok(Value::Bool(json::parse(one)?.contains(&json::parse(other)?)))
}

pub(super) fn jsonb_has(all: &[Value]) -> Result<Value> {
    let [Value::Json(value), Value::Text(key)] = all else { return Ok(Value::Null) };
    Ok(Value::Bool(json::parse(value)?.has(key)))
}

pub(super) fn jsonb_has_of(all: &[Value], is_of_all: bool) -> Result<Value> {
    let [Value::Json(value), Value::Array(keys)] = all else { return Ok(Value::Null) };
    let value = json::parse(value)?;
    let keys = texts(keys);
    Ok(Value::Bool(match is_of_all {
        true => keys.iter().all(|key| value.has(key)),
        false => keys.iter().any(|key| value.has(key)),
    }))
}

pub(super) fn jsonb_join(all: &[Value]) -> Result<Value> {
    let [Value::Json(one), Value::Json(other)] = all else { return Ok(Value::Null) };
    Ok(Value::Json(json::parse(one)?.joined(json::parse(other)?).print()))
}

pub(super) fn jsonb_without(all: &[Value]) -> Result<Value> {
    let [Value::Json(value), what] = all else { return Ok(Value::Null) };
    let value = json::parse(value)?;
    let rest = match what {
        Value::Text(key) => value.without(&[key])?,
        Value::Int(place) => value.without_place(*place)?,
        Value::Array(keys) => value.without(&texts(keys))?,
        _ => return Ok(Value::Null),
    };
    Ok(Value::Json(rest.print()))
}

pub(super) fn jsonb_without_path(all: &[Value]) -> Result<Value> {
    let [Value::Json(value), Value::Array(path)] = all else { return Ok(Value::Null) };
    let mut value = json::parse(value)?;
    if matches!(value, Json::Array(_) | Json::Object(_)) {
        let path: Vec<String> = texts(path).into_iter().map(str::to_owned).collect();
        value.without_path(&path)?;
        return Ok(Value::Json(value.print()));
    }
    let message = "cannot delete path in scalar";
    Err(SqlError::new(code::INVALID_PARAMETER_VALUE, message))
}
