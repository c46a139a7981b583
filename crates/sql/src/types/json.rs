//! JSON: its text, its values and their operators.
//!
//! A value of type json is the text that was written. One of type jsonb is text, too, in the form
//! in which PostgreSQL prints it: without white space, with the keys of an object once and in the
//! order of their lengths and bytes, and numbers without exponents.

use std::cmp::Ordering;

use serde::de::IgnoredAny;

use crate::error::{Result, SqlError, code, error};

/// The deepest nesting.
const MOST_DEPTH: usize = 1000;

/// The most digits of a number, which are written out.
const MOST_DIGITS: usize = 1000;

/// A value of JSON.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Json {
    Null,
    /// Digits with or without a point.
    Number(String),
    Text(String),
    Bool(bool),
    Array(Vec<Json>),
    /// Keys are in order.
    Object(Vec<(String, Json)>),
}

fn invalid() -> SqlError {
    SqlError::new(code::INVALID_TEXT, "invalid input syntax for type json")
}

/// Reads a value from a text.
pub(crate) fn parse(text: &str) -> Result<Json> {
    let mut reader = Reader::new(text, true);
    let value = reader.value()?;
    reader.end()?;
    Ok(value)
}

/// Checks that a text is one of type json, whose texts may have a zero character.
pub(crate) fn check(text: &str) -> Result<()> {
    let mut reader = Reader::new(text, false);
    reader.value()?;
    reader.end()
}

/// Orders keys: shorter ones are first.
fn order(one: &str, other: &str) -> Ordering {
    one.len().cmp(&other.len()).then_with(|| one.cmp(other))
}

/// Makes an object; of several values with one key the last one stays.
pub(crate) fn object(mut pairs: Vec<(String, Json)>) -> Json {
    pairs.reverse();
    pairs.sort_by(|(one, _), (other, _)| order(one, other));
    pairs.dedup_by(|(one, _), (other, _)| one == other);
    Json::Object(pairs)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// Values are made as jsonb has them; else they are only checked.
    is_exact: bool,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, is_exact: bool) -> Self {
        Self { text, at: 0, depth: 0, is_exact }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        let rest = self.rest().trim_start_matches([' ', '\t', '\n', '\r']);
        self.at = self.text.len() - rest.len();
    }

    fn take(&mut self, word: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn end(&mut self) -> Result<()> {
        self.skip_space();
        if self.at == self.text.len() { Ok(()) } else { Err(invalid()) }
    }

    fn value(&mut self) -> Result<Json> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(SqlError::new("54001", "stack depth limit exceeded"));
        }
        self.skip_space();
        let value = match self.rest().bytes().next().ok_or_else(invalid)? {
            b'{' => object(self.list("}", Self::pair)?),
            b'[' => Json::Array(self.list("]", Self::value)?),
            b'"' => Json::Text(self.string()?),
            b'-' | b'0'..=b'9' => Json::Number(self.number()?),
            _ if self.word("true") => Json::Bool(true),
            _ if self.word("false") => Json::Bool(false),
            _ if self.word("null") => Json::Null,
            _ => return Err(invalid()),
        };
        self.depth -= 1;
        Ok(value)
    }

    fn word(&mut self, word: &str) -> bool {
        let rest = self.rest();
        let is_part = |char: char| char.is_alphanumeric() || char == '_';
        let found = rest.starts_with(word) && !rest[word.len()..].starts_with(is_part);
        self.at += if found { word.len() } else { 0 };
        found
    }

    /// Reads what is between commas in brackets, from the first bracket on.
    fn list<T>(&mut self, end: &str, one: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut all = Vec::new();
        self.at += 1;
        if self.take(end) {
            return Ok(all);
        }
        loop {
            all.push(one(self)?);
            if self.take(end) {
                return Ok(all);
            }
            if !self.take(",") {
                return Err(invalid());
            }
        }
    }

    fn pair(&mut self) -> Result<(String, Json)> {
        self.skip_space();
        let key = self.string()?;
        if self.take(":") { Ok((key, self.value()?)) } else { Err(invalid()) }
    }

    fn string(&mut self) -> Result<String> {
        let rest = self.rest();
        let mut is_escaped = false;
        let is_end = |(at, byte): &(usize, u8)| {
            let is_end = *at > 0 && *byte == b'"' && !is_escaped;
            is_escaped = *byte == b'\\' && !is_escaped;
            is_end
        };
        let end = rest.bytes().enumerate().find(is_end).ok_or_else(invalid)?.0 + 1;
        self.at += end;
        match serde_json::from_str::<String>(&rest[..end]) {
            Ok(text) if self.is_exact && text.contains('\0') => {
                Err(SqlError::new("22P05", "unsupported Unicode escape sequence"))
            }
            read => read.map_err(|_| invalid()),
        }
    }

    fn number(&mut self) -> Result<String> {
        let rest = self.rest();
        let is_part = |char: char| char.is_alphanumeric() || matches!(char, '+' | '-' | '.' | '_');
        let number = &rest[..rest.find(|char| !is_part(char)).unwrap_or(rest.len())];
        // The library checks the syntax alone, so a number may have any size.
        serde_json::from_str::<IgnoredAny>(number).map_err(|_| invalid())?;
        self.at += number.len();
        let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, ""));
        if self.is_exact { written_out(mantissa, exponent) } else { Ok(String::new()) }
    }
}

/// Writes a number without its exponent.
fn written_out(mantissa: &str, exponent: &str) -> Result<String> {
    let too_long = || SqlError::unsupported(format!("a number of JSON with more than {MOST_DIGITS} digits"));
    let (sign, unsigned) = mantissa.strip_prefix('-').map_or(("", mantissa), |unsigned| ("-", unsigned));
    let exponent: i64 = if exponent.is_empty() { 0 } else { exponent.parse().map_err(|_| too_long())? };
    let (whole, part) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let point = exponent.checked_add(whole.len() as i64).ok_or_else(too_long)?;
    if point.unsigned_abs() > MOST_DIGITS as u64 || whole.len() + part.len() > MOST_DIGITS {
        return Err(too_long());
    }
    let mut digits = format!("{whole}{part}");
    let mut point = point;
    if point < 1 {
        digits.insert_str(0, &"0".repeat((1 - point) as usize));
        point = 1;
    }
    while (digits.len() as i64) < point {
        digits.push('0');
    }
    let (whole, part) = digits.split_at(point as usize);
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    let is_zero = whole == "0" && part.bytes().all(|byte| byte == b'0');
    let sign = if is_zero { "" } else { sign };
    Ok(if part.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part}") })
}

/// Appends a text in quotes.
pub(crate) fn put_quoted(into: &mut String, text: &str) {
    into.push_str(&serde_json::Value::from(text).to_string());
}

/// Writes a list: its begin, what is between its elements, and its end.
pub(crate) fn put_list<T>(
    into: &mut String,
    [begin, between, end]: [&str; 3],
    all: impl IntoIterator<Item = T>,
    mut put: impl FnMut(&mut String, T),
) {
    into.push_str(begin);
    for (at, one) in all.into_iter().enumerate() {
        into.push_str(if at > 0 { between } else { "" });
        put(into, one);
    }
    into.push_str(end);
}

/// Compares two numbers that are written out.
fn compare_numbers(one: &str, other: &str) -> Ordering {
    let is_negative = |text: &str| text.starts_with('-');
    match (is_negative(one), is_negative(other)) {
        (true, false) => return Ordering::Less,
        (false, true) => return Ordering::Greater,
        _ => {}
    }
    let parts = |text: &str| {
        let text = text.trim_start_matches('-').to_owned();
        let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
        (whole.len(), whole.to_owned(), part.trim_end_matches('0').to_owned())
    };
    let order = parts(one).cmp(&parts(other));
    if is_negative(one) { order.reverse() } else { order }
}

impl Json {
    /// Returns its text as jsonb has it.
    pub(crate) fn print(&self) -> String {
        let mut text = String::new();
        self.put(&mut text);
        text
    }

    fn put(&self, into: &mut String) {
        match self {
            Self::Null => into.push_str("null"),
            Self::Bool(value) => into.push_str(if *value { "true" } else { "false" }),
            Self::Number(number) => into.push_str(number),
            Self::Text(text) => put_quoted(into, text),
            Self::Array(values) => put_list(into, ["[", ", ", "]"], values, |into, value| value.put(into)),
            Self::Object(pairs) => put_list(into, ["{", ", ", "}"], pairs, |into, (key, value)| {
                put_quoted(into, key);
                into.push_str(": ");
                value.put(into);
            }),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Null => 0,
            Self::Text(_) => 1,
            Self::Number(_) => 2,
            Self::Bool(_) => 3,
            Self::Array(_) => 4,
            Self::Object(_) => 5,
        }
    }

    pub(crate) fn is_scalar(&self) -> bool {
        !matches!(self, Self::Array(_) | Self::Object(_))
    }

    /// Compares two values as PostgreSQL orders jsonb.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        // Alone, a scalar counts as an array of one value, so an empty array is before it.
        match (self, other) {
            (Self::Array(values), scalar) if scalar.is_scalar() => {
                if values.is_empty() {
                    Ordering::Less
                } else {
                    Ordering::Greater
                }
            }
            (scalar, Self::Array(_)) if scalar.is_scalar() => other.compare(scalar).reverse(),
            _ => self.compare_inner(other),
        }
    }

    fn compare_inner(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            (Self::Number(one), Self::Number(other)) => compare_numbers(one, other),
            (Self::Bool(one), Self::Bool(other)) => one.cmp(other),
            (Self::Array(one), Self::Array(other)) => one.len().cmp(&other.len()).then_with(|| {
                let pairs = one.iter().zip(other);
                pairs.map(|(one, other)| one.compare_inner(other)).fold(Ordering::Equal, Ordering::then)
            }),
            (Self::Object(one), Self::Object(other)) => one.len().cmp(&other.len()).then_with(|| {
                let pairs = one.iter().zip(other);
                pairs
                    .map(|(one, other)| one.0.cmp(&other.0).then_with(|| one.1.compare_inner(&other.1)))
                    .fold(Ordering::Equal, Ordering::then)
            }),
            (one, other) => one.rank().cmp(&other.rank()),
        }
    }

    fn equals(&self, other: &Self) -> bool {
        self.compare_inner(other).is_eq()
    }

    /// Gives numbers that are equal one form.
    pub(crate) fn normalized(&mut self) {
        match self {
            Self::Number(number) if number.contains('.') => {
                let len = number.trim_end_matches('0').trim_end_matches('.').len();
                number.truncate(len);
            }
            Self::Array(values) => values.iter_mut().for_each(Self::normalized),
            Self::Object(pairs) => pairs.iter_mut().for_each(|(_, value)| value.normalized()),
            _ => {}
        }
    }

    /// Returns the value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(pairs) => {
                let at = pairs.binary_search_by(|(known, _)| order(known, key)).ok()?;
                Some(&pairs[at].1)
            }
            _ => None,
        }
    }

    /// Returns the element at a place, which counts from the end if it is negative.
    pub(crate) fn at(&self, place: i64) -> Option<&Self> {
        match self {
            Self::Array(values) => values.get(place_of(place, values.len())?),
            _ => None,
        }
    }

    /// Returns the value of a key or at a place.
    pub(crate) fn step(&self, step: &str) -> Option<&Self> {
        match self {
            Self::Object(_) => self.get(step),
            Self::Array(_) => self.at(step.trim().parse().ok()?),
            _ => None,
        }
    }

    /// Returns whether all of another value is in this one.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Array(values), scalar) if scalar.is_scalar() => {
                values.iter().any(|value| value.equals(scalar))
            }
            _ => self.contains_inner(other),
        }
    }

    fn contains_inner(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Object(_), Self::Object(wanted)) => wanted
                .iter()
                .all(|(key, value)| self.get(key).is_some_and(|found| found.contains_inner(value))),
            (Self::Array(values), Self::Array(wanted)) => {
                wanted.iter().all(|wanted| values.iter().any(|value| value.contains_inner(wanted)))
            }
            (one, other) => one.equals(other),
        }
    }

    /// Returns whether a text is a key or an element.
    pub(crate) fn has(&self, key: &str) -> bool {
        match self {
            Self::Object(_) => self.get(key).is_some(),
            Self::Array(values) => {
                values.iter().any(|value| matches!(value, Self::Text(text) if text == key))
            }
            Self::Text(text) => text == key,
            _ => false,
        }
    }

    /// Joins two values: objects, or what is no array as an array with one element.
    pub(crate) fn joined(self, other: Self) -> Self {
        match (self, other) {
            (Self::Object(mut one), Self::Object(other)) => {
                one.extend(other);
                object(one)
            }
            (one, other) => {
                let values = |of: Self| match of {
                    Self::Array(values) => values,
                    value => vec![value],
                };
                let mut all = values(one);
                all.extend(values(other));
                Self::Array(all)
            }
        }
    }

    /// Removes keys, or texts from an array.
    pub(crate) fn without(mut self, keys: &[&str]) -> Result<Self> {
        match &mut self {
            Self::Object(pairs) => pairs.retain(|(key, _)| !keys.contains(&key.as_str())),
            Self::Array(values) => {
                values.retain(|value| !matches!(value, Self::Text(text) if keys.contains(&text.as_str())));
            }
            _ => return Err(SqlError::new(code::INVALID_PARAMETER_VALUE, "cannot delete from scalar")),
        }
        Ok(self)
    }

    /// Removes an element.
    pub(crate) fn without_place(mut self, place: i64) -> Result<Self> {
        match &mut self {
            Self::Array(values) => {
                if let Some(at) = place_of(place, values.len()) {
                    values.remove(at);
                }
                Ok(self)
            }
            Self::Object(_) => {
                Err(error!(INVALID_PARAMETER_VALUE, "cannot delete from object using integer index"))
            }
            _ => Err(SqlError::new(code::INVALID_PARAMETER_VALUE, "cannot delete from scalar")),
        }
    }
}

/// Returns the place from the begin, if there is one.
fn place_of(place: i64, len: usize) -> Option<usize> {
    let place = if place < 0 { place.checked_add(len as i64)? } else { place };
    usize::try_from(place).ok().filter(|place| *place < len)
}

/// Splits the text of an array or object at the commas, and its pairs at the colons.
pub(crate) fn parts(text: &str) -> Vec<(Option<&str>, &str)> {
    let (mut depth, mut is_quoted, mut is_escaped) = (0usize, false, false);
    let (mut from, mut key, mut found) = (1, None, Vec::new());
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_quoted,
            b'"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            b'[' | b'{' => depth += 1,
            b':' if depth == 1 => {
                key = Some(text[from..at].trim());
                from = at + 1;
            }
            b',' | b']' | b'}' if depth == 1 => {
                found.push((key.take(), text[from..at].trim()));
                (from, depth) = (at + 1, depth - usize::from(byte != b','));
            }
            b']' | b'}' => depth -= 1,
            _ => {}
        }
    }
    found.retain(|(_, value)| !value.is_empty());
    found
}

/// Returns the text of a part of a text of type json, as it is written there.
pub(crate) fn raw_step<'a>(text: &'a str, step: Step<'_>) -> Option<&'a str> {
    let text = text.trim();
    match step {
        Step::Key(wanted) if text.starts_with('{') => {
            let is_it = |key: &str| Reader::new(key, false).string().is_ok_and(|key| key == wanted);
            // Of several values with one key the last one counts.
            let found = parts(text).into_iter().rev().find(|(key, _)| key.is_some_and(is_it));
            found.map(|(_, value)| value)
        }
        Step::Place(place) if is_array(text) => {
            let all = parts(text);
            place_of(place, all.len()).map(|at| all[at].1)
        }
        _ => None,
    }
}

/// A step from a value to a part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'a> {
    Key(&'a str),
    Place(i64),
}

/// Returns whether the text of a value is an array.
pub(crate) fn is_array(text: &str) -> bool {
    text.trim_start().starts_with('[')
}
