//! What operators of numbers' bits, of texts and of patterns do.

use crate::{
    error::{Result, SqlError},
    expr,
    functions::{MOST_BYTES, mathematics, patterns, precise, too_long},
    types::{Value, network::Network},
};

pub(super) fn bits(all: &[Value], act: fn(i64, i64) -> i64) -> Result<Value> {
    match all {
        [Value::Int(one), Value::Int(other)] => Ok(Value::Int(act(*one, *other))),
        _ => Ok(Value::Null),
    }
}

pub(super) fn bits_of_one(all: &[Value], act: fn(i64) -> i64) -> Result<Value> {
    match all {
        [Value::Int(one)] => Ok(Value::Int(act(*one))),
        _ => Ok(Value::Null),
    }
}

pub(super) fn power(all: &[Value]) -> Result<Value> {
    match all {
        [Value::Float(base), Value::Float(exponent)] => mathematics::power(*base, *exponent),
        [Value::Numeric(base), Value::Numeric(exponent)] => {
            Ok(Value::Numeric(precise::power(*base, *exponent)?))
        }
        _ => Ok(Value::Null),
    }
}

pub(super) fn root(all: &[Value], act: fn(f64) -> Result<Value>) -> Result<Value> {
    match all {
        [Value::Float(number)] => act(*number),
        _ => Ok(Value::Null),
    }
}

pub(super) fn join_bytes(all: &[Value]) -> Result<Value> {
    match all {
        [Value::Bytes(one), Value::Bytes(other)] if one.len() + other.len() > MOST_BYTES => Err(too_long()),
        [Value::Bytes(one), Value::Bytes(other)] => Ok(Value::Bytes([&one[..], other].concat())),
        _ => Ok(Value::Null),
    }
}

pub(super) fn networks(all: &[Value], act: fn(Network, Network) -> bool) -> Result<Value> {
    match all {
        [Value::Bytes(one), Value::Bytes(other)] => {
            let both = Network::of(one).zip(Network::of(other));
            Ok(both.map(|(one, other)| act(one, other)).into())
        }
        _ => Ok(Value::Null),
    }
}

pub(super) fn starts_with(all: &[Value]) -> Result<Value> {
    match all {
        [Value::Text(text), Value::Text(prefix)] => Ok(Value::Bool(text.starts_with(prefix.as_str()))),
        _ => Ok(Value::Null),
    }
}

pub(super) fn is_like(all: &[Value], ignores_case: bool, wanted: bool) -> Result<Value> {
    match all {
        [Value::Text(text), Value::Text(pattern)] => {
            Ok(Value::Bool(expr::is_like(text, pattern, ignores_case)? == wanted))
        }
        _ => Ok(Value::Null),
    }
}

/// Returns a pattern of LIKE in which the backslash escapes, from one with another such character.
pub(crate) fn escaped_like(all: &[Value]) -> Result<Value> {
    let [Value::Text(pattern), Value::Text(escape)] = all else { return Ok(Value::Null) };
    let escape = escape_of(escape)?;
    if escape == Some('\\') {
        return Ok(Value::Text(pattern.clone()));
    }
    let mut plain = String::with_capacity(pattern.len());
    let mut is_escaped = false;
    for char in pattern.chars() {
        match char {
            char if !is_escaped && Some(char) == escape => {
                plain.push('\\');
                is_escaped = true;
                continue;
            }
            // A backslash behind the escape is escaped already.
            '\\' if !is_escaped => plain.push_str("\\\\"),
            char => plain.push(char),
        }
        is_escaped = false;
    }
    Ok(Value::Text(plain))
}

fn escape_of(text: &str) -> Result<Option<char>> {
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (escape, None) => Ok(escape),
        _ => {
            let error = SqlError::new("22025", "invalid escape string");
            Err(error.with_detail("Escape string must be empty or one character."))
        }
    }
}

pub(super) fn matches(all: &[Value], ignores_case: bool, wanted: bool) -> Result<Value> {
    match all {
        [Value::Text(text), Value::Text(pattern)] => {
            let flags = if ignores_case { "i" } else { "" };
            Ok(Value::Bool(patterns::matches(text, pattern, flags)? == wanted))
        }
        _ => Ok(Value::Null),
    }
}

/// Returns whether a text matches a pattern of SIMILAR TO, which may have an escape character.
pub(crate) fn is_similar(all: &[Value]) -> Result<Value> {
    let [Value::Text(text), Value::Text(pattern), Value::Text(escape)] = all else { return Ok(Value::Null) };
    let pattern = similar(pattern, escape_of(escape)?)?;
    Ok(Value::Bool(patterns::matches(text, &pattern, "")?))
}

/// Returns the regular expression of a pattern of SIMILAR TO.
fn similar(pattern: &str, escape: Option<char>) -> Result<String> {
    let mut regular = String::from("^(?:");
    let mut is_escaped = false;
    let mut is_class = false;
    for char in pattern.chars() {
        match char {
            char if is_escaped => {
                if char == '"' {
                    return Err(SqlError::unsupported("an escape with \" in SIMILAR TO"));
                }
                if !char.is_alphanumeric() {
                    regular.push('\\');
                }
                regular.push(char);
                is_escaped = false;
            }
            char if Some(char) == escape => is_escaped = true,
            '\\' => regular.push_str("\\\\"),
            char if is_class => {
                is_class = char != ']';
                regular.push(char);
            }
            '[' => {
                is_class = true;
                regular.push('[');
            }
            '%' => regular.push_str(".*"),
            '_' => regular.push('.'),
            '(' => regular.push_str("(?:"),
            '.' | '^' | '$' => {
                regular.push('\\');
                regular.push(char);
            }
            char => regular.push(char),
        }
    }
    regular.push_str(")$");
    Ok(regular)
}
