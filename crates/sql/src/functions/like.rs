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

/// Returns whether a text matches a pattern of LIKE.
pub(crate) fn is_like(text: &str, pattern: &str, ignores_case: bool) -> Result<bool> {
    if ignores_case {
        return is_like(&text.to_lowercase(), &pattern.to_lowercase(), false);
    }
    enum Part {
        One(char),
        Any,
        Many,
    }
    let mut parts = Vec::new();
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        parts.push(match char {
            '%' => Part::Many,
            '_' => Part::Any,
            '\\' => {
                Part::One(chars.next().ok_or_else(|| {
                    SqlError::new("22025", "LIKE pattern must not end with escape character")
                })?)
            }
            char => Part::One(char),
        });
    }
    let fits = |part: &Part, char: char| match part {
        Part::One(one) => *one == char,
        Part::Any => true,
        Part::Many => false,
    };
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut part) = (0, 0);
    // The last `%`, and the place in the text from which it is tried next.
    let mut retry = None;
    loop {
        match parts.get(part) {
            Some(Part::Many) => {
                retry = Some((part + 1, at));
                part += 1;
                continue;
            }
            None if at == text.len() => return Ok(true),
            Some(one) if text.get(at).is_some_and(|char| fits(one, *char)) => {
                at += 1;
                part += 1;
                continue;
            }
            _ => {}
        }
        match retry {
            Some((after, from)) if from < text.len() => {
                retry = Some((after, from + 1));
                (part, at) = (after, from + 1);
            }
            _ => return Ok(false),
        }
    }
}
