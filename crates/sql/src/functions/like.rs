//! The patterns of LIKE with ESCAPE and of SIMILAR TO (chapter 9.7 of PostgreSQL's manual).

use super::patterns;
use crate::{
    error::{Result, SqlError},
    types::Value,
};

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
