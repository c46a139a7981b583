//! Functions of texts (chapter 9.4 of PostgreSQL's manual).

use std::{collections::HashMap, iter};

use super::{
    Call, Declared, MOST_BYTES, MOST_ELEMENTS, array_too_large, function, invalid_parameter, join, names, ok,
    printed, too_long,
};
use crate::{
    error::{Result, SqlError, code},
    types::{Type, Value, out_of_range},
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("ascii(text) int4", |call| ok(call.text(0).chars().next().map_or(0, |char| char as i64))),
    function("bit_length(text) int4", |call| ok(call.text(0).len() as i64 * 8)),
    function("btrim(text, [text]) text", |call| trimmed(call, true, true)),
    function("char_length character_length length(text) int4", length),
    function("chr(int4) text", chr),
    function("concat(variadic any) text stable null", concat),
    function("concat_ws(text!, variadic any) text stable null", concat_ws),
    function("format(text!) text; format(text!, variadic any) text stable null", format),
    function("initcap(text) text", initcap),
    function("left(text, int4) text", left),
    function("lower(text) text", |call| ok(call.text(0).chars().map(lower).collect::<String>())),
    function("lpad(text, int4, [text]) text", |call| padded(call, true)),
    function("ltrim(text, [text]) text", |call| trimmed(call, true, false)),
    function("octet_length(text) int4", |call| ok(call.text(0).len() as i64)),
    function("overlay(text, text, int4, [int4]) text", overlay),
    function("parse_ident(str text, strict bool=true) _text", parse_ident),
    function("position strpos(text, text) int4", position),
    function("quote_ident(text) text", |call| ok(names::quoted_name(call.text(0)))),
    function("quote_literal(anyelement) text stable", quote_literal),
    function("quote_literal(text) text", quote_literal),
    function("repeat(text, int4) text", repeat),
    function("replace(text, text, text) text", replace),
    function("reverse(text) text", |call| ok(call.text(0).chars().rev().collect::<String>())),
    function("right(text, int4) text", right),
    function("rpad(text, int4, [text]) text", |call| padded(call, false)),
    function("rtrim(text, [text]) text", |call| trimmed(call, false, true)),
    function("split_part(text, text, int4) text", split_part),
    function("starts_with ^@(text, text) bool", |call| ok(call.text(0).starts_with(call.text(1)))),
    function("string_to_array(text!, text, [text]) _text null", string_to_array),
    function("substr substring(text, int4, [int4]) text", substring),
    function("to_hex(int4) text", |call| ok(format!("{:x}", call.int(0) as i32))),
    function("to_hex(int8) text", |call| ok(format!("{:x}", call.int(0)))),
    function("translate(text, text, text) text", translate),
    function("unistr(text) text", unistr),
    function("upper(text) text", |call| ok(call.text(0).chars().map(upper).collect::<String>())),
];

/// Returns the one lower letter of a letter; others stay.
fn lower(char: char) -> char {
    let mut all = char.to_lowercase();
    all.next().filter(|_| all.next().is_none()).unwrap_or(char)
}

/// Returns the one upper letter of a letter; others, as the German sharp s, stay.
fn upper(char: char) -> char {
    let mut all = char.to_uppercase();
    all.next().filter(|_| all.next().is_none()).unwrap_or(char)
}

fn length(call: &Call<'_>) -> Result<Value> {
    ok(call.text(0).chars().count() as i64)
}

fn trimmed(call: &Call<'_>, begin: bool, end: bool) -> Result<Value> {
    let set = if call.count() > 1 { call.text(1) } else { " " };
    let mut text = call.text(0);
    if begin {
        text = text.trim_start_matches(|char| set.contains(char));
    }
    if end {
        text = text.trim_end_matches(|char| set.contains(char));
    }
    ok(text)
}

fn chr(call: &Call<'_>) -> Result<Value> {
    let failed = |message: String| SqlError::new(code::PROGRAM_LIMIT, message);
    match call.int(0) {
        0 => Err(failed("null character not permitted".into())),
        ..0 => Err(invalid_parameter("character number must be positive")),
        number => match u32::try_from(number).ok().and_then(char::from_u32) {
            Some(char) => ok(char.to_string()),
            None if number > 0x10_ffff => {
                Err(failed(format!("requested character too large for encoding: {number}")))
            }
            None => Err(failed(format!("requested character not valid for encoding: {number}"))),
        },
    }
}

fn concat(call: &Call<'_>) -> Result<Value> {
    if call.is_spread && call.is_null(0) {
        return Ok(Value::Null);
    }
    let shown = call.rest(0).filter(|(value, _)| !value.is_null()).map(|(value, of)| printed(value, of));
    join(shown, "")
}

fn concat_ws(call: &Call<'_>) -> Result<Value> {
    if call.is_spread && call.is_null(1) {
        return Ok(Value::Null);
    }
    let shown = call.rest(1).filter(|(value, _)| !value.is_null()).map(|(value, of)| printed(value, of));
    join(shown, call.text(0))
}

fn initcap(call: &Call<'_>) -> Result<Value> {
    let mut was_inside = false;
    let cased = call.text(0).chars().map(|char| {
        let cased = if was_inside { lower(char) } else { upper(char) };
        was_inside = char.is_alphanumeric();
        cased
    });
    ok(cased.collect::<String>())
}

/// Returns the number of characters that a count means: a negative one counts from the other end.
fn counted(call: &Call<'_>) -> usize {
    let length = call.text(0).chars().count();
    match call.int(1) {
        count @ 0.. => length.min(usize::try_from(count).unwrap_or(usize::MAX)),
        count => length.saturating_sub(usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX)),
    }
}

fn left(call: &Call<'_>) -> Result<Value> {
    ok(call.text(0).chars().take(counted(call)).collect::<String>())
}

fn right(call: &Call<'_>) -> Result<Value> {
    let text = call.text(0);
    ok(text.chars().skip(text.chars().count() - counted(call)).collect::<String>())
}

fn padded(call: &Call<'_>, is_left: bool) -> Result<Value> {
    let (text, fill) = (call.text(0), if call.count() > 2 { call.text(2) } else { " " });
    let wanted = usize::try_from(call.int(1)).unwrap_or(0);
    if wanted > MOST_BYTES / 4 {
        return Err(too_long());
    }
    let cut: String = text.chars().take(wanted).collect();
    let missing = wanted - cut.chars().count();
    let fill: String = fill.chars().cycle().take(missing).collect();
    ok(if is_left { fill + &cut } else { cut + &fill })
}

fn overlay(call: &Call<'_>) -> Result<Value> {
    let (text, new) = (call.text(0), call.text(1));
    let (from, end) = replaced_part(call, new.chars().count())?;
    let before: String = text.chars().take(from).collect();
    let after: String = text.chars().skip(end).collect();
    ok(before + new + &after)
}

/// Returns the number of elements before the part that OVERLAY replaces, and of those up to its
/// end. The part is as long as the new one, unless the call says otherwise.
pub(super) fn replaced_part(call: &Call<'_>, length: usize) -> Result<(usize, usize)> {
    let from = call.int(2);
    if from <= 0 {
        return Err(negative_length());
    }
    let end = from + if call.count() > 3 { call.int(3) } else { length as i64 };
    if i32::try_from(end).is_err() {
        return Err(out_of_range(Type::Int4));
    }
    Ok((from as usize - 1, usize::try_from(end - 1).unwrap_or(0)))
}

fn negative_length() -> SqlError {
    SqlError::new("22011", "negative substring length not allowed")
}

fn position(call: &Call<'_>) -> Result<Value> {
    let text = call.text(0);
    let at = text.find(call.text(1)).map_or(0, |at| text[..at].chars().count() as i64 + 1);
    ok(at)
}

fn quote_literal(call: &Call<'_>) -> Result<Value> {
    ok(names::quoted_literal(&printed(&call.values[0], call.types[0])))
}

fn repeat(call: &Call<'_>) -> Result<Value> {
    let count = usize::try_from(call.int(1)).unwrap_or(0);
    match call.text(0).len().checked_mul(count) {
        Some(0..=MOST_BYTES) => ok(call.text(0).repeat(count)),
        _ => Err(too_long()),
    }
}

fn replace(call: &Call<'_>) -> Result<Value> {
    let (text, old, new) = (call.text(0), call.text(1), call.text(2));
    if old.is_empty() {
        return ok(text);
    }
    let count = text.matches(old).count();
    match count.checked_mul(new.len()) {
        Some(0..=MOST_BYTES) => ok(text.replace(old, new)),
        _ => Err(too_long()),
    }
}

fn split_part(call: &Call<'_>) -> Result<Value> {
    let (text, by, part) = (call.text(0), call.text(1), call.int(2));
    let parts: Vec<&str> = match (text, by) {
        ("", _) => Vec::new(),
        (_, "") => vec![text],
        _ => text.split(by).collect(),
    };
    let at = match part {
        0 => return Err(invalid_parameter("field position must not be zero")),
        1.. => part - 1,
        _ => parts.len() as i64 + part,
    };
    ok(usize::try_from(at).ok().and_then(|at| parts.get(at)).copied().unwrap_or_default())
}

fn string_to_array(call: &Call<'_>) -> Result<Value> {
    let text = call.text(0);
    let most = MOST_ELEMENTS + 1;
    let parts: Vec<String> = match call.text(1) {
        _ if text.is_empty() => Vec::new(),
        _ if call.is_null(1) => text.chars().take(most).map(String::from).collect(),
        "" => vec![text.to_owned()],
        by => text.split(by).take(most).map(str::to_owned).collect(),
    };
    if parts.len() == most {
        return Err(array_too_large());
    }
    let is_null = |part: &str| call.count() > 2 && !call.is_null(2) && part == call.text(2);
    let values = parts.into_iter().map(|part| if is_null(&part) { Value::Null } else { part.into() });
    ok(values.collect::<Vec<Value>>())
}

/// Returns the first place of a part, which is counted from 1, and the one behind its last.
pub(super) fn part_of(call: &Call<'_>) -> Result<(i64, i64)> {
    let from = call.int(1);
    match (call.count(), call.int(2)) {
        (3, ..0) => Err(negative_length()),
        (3, count) => Ok((from, from.saturating_add(count))),
        _ => Ok((from, i64::MAX)),
    }
}

fn substring(call: &Call<'_>) -> Result<Value> {
    let (from, end) = part_of(call)?;
    let skipped = usize::try_from(from - 1).unwrap_or(0);
    let taken = usize::try_from(end.saturating_sub(from.max(1))).unwrap_or(0);
    ok(call.text(0).chars().skip(skipped).take(taken).collect::<String>())
}

fn translate(call: &Call<'_>) -> Result<Value> {
    let (from, to) = (call.text(1), call.text(2));
    let mut known = HashMap::new();
    let to = to.chars().map(Some).chain(iter::repeat(None));
    from.chars().zip(to).for_each(|(char, to)| {
        known.entry(char).or_insert(to);
    });
    let of = |char: char| known.get(&char).copied().unwrap_or(Some(char));
    ok(call.text(0).chars().filter_map(of).collect::<String>())
}

/// Replaces numbers of characters by these: `\` with four hexadecimal digits, `\+` with six, `\u`
/// with four and `\U` with eight.
fn unistr(call: &Call<'_>) -> Result<Value> {
    let failed = || SqlError::new(code::SYNTAX_ERROR, "invalid Unicode escape");
    let (mut shown, mut rest) = (String::new(), call.text(0));
    while let Some(at) = rest.find('\\') {
        shown.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(more) = rest.strip_prefix('\\') {
            shown.push('\\');
            rest = more;
            continue;
        }
        let (skipped, digits) = match rest.as_bytes().first() {
            Some(b'u') => (1, 4),
            Some(b'U') => (1, 8),
            Some(b'+') => (1, 6),
            _ => (0, 4),
        };
        let number = rest.get(skipped..skipped + digits).ok_or_else(failed)?;
        let is_number = number.bytes().all(|digit| digit.is_ascii_hexdigit());
        let char = u32::from_str_radix(number, 16).ok().filter(|_| is_number).and_then(char::from_u32);
        shown.push(char.filter(|char| *char != '\0').ok_or_else(failed)?);
        rest = &rest[skipped + digits..];
    }
    ok(shown + rest)
}

/// Splits a name with points into its parts.
fn parse_ident(call: &Call<'_>) -> Result<Value> {
    let text = call.text(0);
    let failed = || invalid_parameter(format!("string is not a valid identifier: \"{text}\""));
    let mut rest = text.trim_start();
    let mut parts: Vec<Value> = Vec::new();
    loop {
        if let Some(quoted) = rest.strip_prefix('"') {
            let (part, behind) = names::read_quoted(quoted).ok_or_else(failed)?;
            if part.is_empty() {
                return Err(failed());
            }
            parts.push(part.into());
            rest = behind;
        } else {
            let is_first = |char: char| char.is_ascii_alphabetic() || char == '_' || !char.is_ascii();
            let is_inner = |char: char| is_first(char) || char.is_ascii_digit() || char == '$';
            let end = rest.find(|char| !is_inner(char)).unwrap_or(rest.len());
            if !rest.starts_with(is_first) {
                return Err(failed());
            }
            parts.push(rest[..end].to_ascii_lowercase().into());
            rest = &rest[end..];
        }
        let trimmed = rest.trim_start();
        match trimmed.strip_prefix('.') {
            Some(more) => rest = more.trim_start(),
            None if trimmed.is_empty() || !call.bool(1) => return ok(parts),
            None => return Err(failed()),
        }
    }
}

/// A part of a pattern of `format` that stands for an argument.
struct Specifier {
    argument: Option<usize>,
    is_left: bool,
    width: Width,
    kind: char,
}

enum Width {
    Fixed(i64),
    Next,
    Argument(usize),
}

fn format_error(message: &str) -> SqlError {
    invalid_parameter(message)
}

impl Specifier {
    /// Reads what follows a percent sign; returns what is behind it.
    fn read(text: &str) -> Result<(Self, &str)> {
        let unterminated = || format_error("unterminated format() type specifier");
        let number = |text: &str| -> Result<Option<(usize, usize)>> {
            let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
            match text[..end].parse::<i32>() {
                _ if end == 0 => Ok(None),
                Ok(number) => Ok(Some((number as usize, end))),
                Err(_) => Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, "number is out of range")),
            }
        };
        let position = |text: &str| -> Result<Option<(usize, usize)>> {
            match number(text)? {
                Some((at, end)) if text[end..].starts_with('$') => match at {
                    0 => Err(format_error("format specifies argument 0, but arguments are numbered from 1")),
                    at => Ok(Some((at, end + 1))),
                },
                _ => Ok(None),
            }
        };
        let mut rest = text;
        let mut made = Self { argument: None, is_left: false, width: Width::Fixed(0), kind: 's' };
        if let Some((at, end)) = position(rest)? {
            made.argument = Some(at);
            rest = &rest[end..];
        }
        while let Some(more) = rest.strip_prefix('-') {
            made.is_left = true;
            rest = more;
        }
        if let Some(more) = rest.strip_prefix('*') {
            rest = more;
            made.width = match position(rest)? {
                Some((at, end)) => {
                    rest = &rest[end..];
                    Width::Argument(at)
                }
                None => Width::Next,
            };
        } else if let Some((width, end)) = number(rest)? {
            made.width = Width::Fixed(width as i64);
            rest = &rest[end..];
        }
        made.kind = rest.chars().next().ok_or_else(unterminated)?;
        let end = made.kind.len_utf8();
        Ok((made, &rest[end..]))
    }
}

fn format(call: &Call<'_>) -> Result<Value> {
    let arguments: Vec<(&Value, Type)> = call.rest(1).collect();
    let few = || format_error("too few arguments for format()");
    let (mut shown, mut rest, mut next) = (String::new(), call.text(0), 0);
    while let Some(at) = rest.find('%') {
        shown.push_str(&rest[..at]);
        let (found, more) = match rest[at + 1..].strip_prefix('%') {
            Some(more) => {
                shown.push('%');
                rest = more;
                continue;
            }
            None => Specifier::read(&rest[at + 1..])?,
        };
        rest = more;
        let mut width = match found.width {
            Width::Fixed(width) => width,
            Width::Next | Width::Argument(_) => {
                let at = if let Width::Argument(at) = found.width { at } else { next + 1 };
                next = at;
                match arguments.get(at - 1).ok_or_else(few)? {
                    (Value::Null, _) => 0,
                    (Value::Int(width), _) => *width,
                    (other, of) => match printed(other, *of).trim().parse::<i32>() {
                        Ok(width) => width.into(),
                        Err(_) => return Err(SqlError::new(code::INVALID_TEXT, "the width is no number")),
                    },
                }
            }
        };
        let at = found.argument.unwrap_or(next + 1);
        next = at;
        if !matches!(found.kind, 's' | 'I' | 'L') {
            let message = format!("unrecognized format() type specifier \"{}\"", found.kind);
            return Err(invalid_parameter(message));
        }
        let (value, of) = arguments.get(at - 1).ok_or_else(few)?;
        let text = match (found.kind, value) {
            ('I', Value::Null) => {
                return Err(SqlError::new("22004", "null values cannot be formatted as an SQL identifier"));
            }
            ('L', Value::Null) => "NULL".into(),
            (_, Value::Null) => String::new(),
            ('I', value) => names::quoted_name(&printed(value, *of)),
            ('L', value) => names::quoted_literal(&printed(value, *of)),
            (_, value) => printed(value, *of),
        };
        let is_left = found.is_left || width < 0;
        width = width.saturating_abs();
        if width as usize > MOST_BYTES {
            return Err(too_long());
        }
        let fill = " ".repeat((width as usize).saturating_sub(text.chars().count()));
        shown.push_str(&if is_left { text + &fill } else { fill + &text });
        if shown.len() > MOST_BYTES {
            return Err(too_long());
        }
    }
    ok(shown + rest)
}
