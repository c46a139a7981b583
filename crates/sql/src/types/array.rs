//! Arrays: their values, their operators, and as text.

use std::cmp::Ordering;

use super::{
    Type, Value, json,
    text::{self, Binary},
};
use crate::error::{Result, SqlError, code, error, fail};

/// The characters that count as white space between elements.
const SPACES: [char; 6] = [' ', '\t', '\n', '\r', '\x0b', '\x0c'];

/// The most dimensions of an array.
pub(crate) const MOST_DIMENSIONS: usize = 6;

/// The values of an array, in the order of its last dimension first.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Array {
    /// The number of values of each dimension and the subscript of the first; none if it is empty.
    pub(crate) dimensions: Vec<(usize, i32)>,
    pub(crate) values: Vec<Value>,
}

impl From<Vec<Value>> for Array {
    fn from(values: Vec<Value>) -> Self {
        let dimensions = if values.is_empty() { Vec::new() } else { vec![(values.len(), 1)] };
        Self { dimensions, values }
    }
}

impl Array {
    /// Returns the array of arrays, which must have equal dimensions.
    pub(crate) fn nested(parts: Vec<Value>) -> Result<Self> {
        let count = parts.len();
        let mut inner: Option<Vec<(usize, i32)>> = None;
        let mut values = Vec::new();
        for part in parts {
            let part = match part {
                Value::Array(part) => *part,
                _ => Self::default(),
            };
            if inner.get_or_insert_with(|| part.dimensions.clone()) != &part.dimensions {
                let message = "multidimensional arrays must have array expressions with matching dimensions";
                return Err(SqlError::new(code::ARRAY_SUBSCRIPT, message));
            }
            values.extend(part.values);
        }
        let inner = inner.filter(|inner| !inner.is_empty());
        let Some(inner) = inner else { return Ok(Self::default()) };
        if inner.len() >= MOST_DIMENSIONS {
            return Err(too_many_dimensions());
        }
        let mut dimensions = vec![(count, 1)];
        dimensions.extend(inner);
        Ok(Self { dimensions, values })
    }

    /// Returns the first and the last place of a dimension.
    pub(crate) fn bounds(&self, dimension: usize) -> (i64, i64) {
        let (count, first) = self.dimensions.get(dimension).copied().unwrap_or((0, 1));
        (first.into(), i64::from(first) + count as i64 - 1)
    }

    /// Returns the element at a place, of which there are first and last place of each dimension.
    pub(crate) fn element(&self, places: &[(i64, i64)]) -> Option<&Value> {
        if places.len() != self.dimensions.len() {
            return None;
        }
        let mut at = 0;
        for ((place, _), (count, first)) in places.iter().zip(&self.dimensions) {
            let of_dimension = usize::try_from(place - i64::from(*first)).ok().filter(|at| at < count)?;
            at = at * count + of_dimension;
        }
        self.values.get(at)
    }

    /// Returns the part between the first and the last place of each dimension.
    pub(crate) fn slice(&self, places: &[(i64, i64)]) -> Self {
        if places.len() > self.dimensions.len() || self.dimensions.is_empty() {
            return Self::default();
        }
        let mut dimensions = Vec::with_capacity(self.dimensions.len());
        // For each dimension: the places from 0 on, and the number of values of one place.
        let mut ranges = Vec::with_capacity(self.dimensions.len());
        let mut size = self.values.len();
        for (at, (count, first)) in self.dimensions.iter().enumerate() {
            let whole = self.bounds(at);
            let (from, to) = places.get(at).copied().unwrap_or(whole);
            let (from, to) = (from.max(whole.0), to.min(whole.1));
            if from > to {
                return Self::default();
            }
            size /= count;
            let from = (from - i64::from(*first)) as usize;
            let to = (to - i64::from(*first)) as usize;
            dimensions.push((to - from + 1, 1));
            ranges.push((from..=to, size));
        }
        let mut starts = vec![0];
        for (range, size) in ranges {
            starts = starts.iter().flat_map(|start| range.clone().map(move |at| start + at * size)).collect();
        }
        let values = starts.into_iter().filter_map(|at| self.values.get(at).cloned()).collect();
        Self { dimensions, values }
    }

    /// Compares the values, then the dimensions.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        let pairs = self.values.iter().zip(&other.values);
        let first = pairs.map(|(one, other)| one.compare(other)).find(|order| order.is_ne());
        first.unwrap_or_else(|| {
            (self.values.len().cmp(&other.values.len())).then_with(|| self.dimensions.cmp(&other.dimensions))
        })
    }

    /// Returns its text.
    pub(crate) fn print(&self, of: Type) -> String {
        let element = of.element().unwrap_or(Type::Text);
        if matches!(of, Type::Int2Vector | Type::OidVector) {
            let values: Vec<String> = self.values.iter().map(|value| text::print(value, element)).collect();
            return values.join(" ");
        }
        if self.values.is_empty() {
            return "{}".into();
        }
        let mut shown = String::new();
        if self.dimensions.iter().any(|(_, first)| *first != 1) {
            for (count, first) in &self.dimensions {
                shown.push_str(&format!("[{first}:{}]", i64::from(*first) + *count as i64 - 1));
            }
            shown.push('=');
        }
        let mut values = self.values.iter();
        self.print_level(0, &mut values, element, &mut shown);
        shown
    }

    fn print_level(
        &self,
        level: usize,
        values: &mut std::slice::Iter<'_, Value>,
        element: Type,
        into: &mut String,
    ) {
        let Some((count, _)) = self.dimensions.get(level) else {
            match values.next() {
                None | Some(Value::Null) => into.push_str("NULL"),
                Some(value) => put_quoted(into, &text::print(value, element)),
            }
            return;
        };
        json::put_list(into, ["{", ",", "}"], 0..*count, |into, _| {
            self.print_level(level + 1, values, element, into);
        });
    }
}

fn too_many_dimensions() -> SqlError {
    error!(PROGRAM_LIMIT, "number of array dimensions exceeds the maximum allowed ({MOST_DIMENSIONS})")
}

/// Reads an array from its text.
pub(crate) fn parse(text: &str, of: Type) -> Result<Array> {
    let element = of.element().unwrap_or(Type::Text);
    if matches!(of, Type::Int2Vector | Type::OidVector) {
        let values: Vec<Value> =
            text.split_whitespace().map(|word| text::parse(word, element)).collect::<Result<_>>()?;
        return Ok(Array { dimensions: vec![(values.len(), 0)], values });
    }
    let mut reader = ArrayReader {
        text,
        rest: text.trim_start_matches(SPACES),
        element,
        counts: Vec::new(),
        leaf: None,
        values: Vec::new(),
    };
    let bounds = reader.bounds()?;
    if !reader.take('{') {
        return Err(reader.malformed());
    }
    reader.level(0)?;
    if !reader.rest.trim_start_matches(SPACES).is_empty() {
        return Err(reader.malformed());
    }
    let ArrayReader { counts, values, .. } = reader;
    let counts: Vec<usize> = counts.into_iter().map(Option::unwrap_or_default).collect();
    let dimensions = match bounds {
        Some(bounds) => {
            let given: Vec<usize> = bounds.iter().map(|(count, _)| *count).collect();
            if given != counts {
                return Err(malformed(text));
            }
            bounds
        }
        None => counts.into_iter().map(|count| (count, 1)).collect(),
    };
    if values.is_empty() { Ok(Array::default()) } else { Ok(Array { dimensions, values }) }
}

fn malformed(text: &str) -> SqlError {
    error!(INVALID_TEXT, "malformed array literal: \"{text}\"")
}

/// The state of reading the text of an array.
struct ArrayReader<'a> {
    text: &'a str,
    rest: &'a str,
    element: Type,
    /// The values of each dimension, which the first of its parts tells.
    counts: Vec<Option<usize>>,
    /// The level of the elements.
    leaf: Option<usize>,
    values: Vec<Value>,
}

impl ArrayReader<'_> {
    fn malformed(&self) -> SqlError {
        malformed(self.text)
    }

    fn take(&mut self, char: char) -> bool {
        let rest = self.rest.trim_start_matches(SPACES);
        let found = rest.strip_prefix(char);
        self.rest = found.unwrap_or(rest);
        found.is_some()
    }

    /// Reads the bounds before an array.
    fn bounds(&mut self) -> Result<Option<Vec<(usize, i32)>>> {
        let mut bounds = Vec::new();
        while self.take('[') {
            let (inner, rest) = self.rest.split_once(']').ok_or_else(|| self.malformed())?;
            let (first, last) = inner.split_once(':').unwrap_or(("1", inner));
            let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) else {
                return Err(self.malformed());
            };
            let count = i64::from(last) - i64::from(first) + 1;
            if count < 0 {
                fail!(ARRAY_SUBSCRIPT, "upper bound cannot be less than lower bound");
            }
            if last == i32::MAX {
                return Err(SqlError::new(code::PROGRAM_LIMIT, "array upper bound is too large"));
            }
            if bounds.len() == MOST_DIMENSIONS {
                return Err(too_many_dimensions());
            }
            bounds.push((count as usize, first));
            self.rest = rest;
        }
        match bounds.is_empty() {
            true => Ok(None),
            false if self.take('=') => Ok(Some(bounds)),
            false => Err(self.malformed()),
        }
    }

    /// Reads the values of a level behind its brace.
    fn level(&mut self, level: usize) -> Result<()> {
        if level == MOST_DIMENSIONS {
            return Err(too_many_dimensions());
        }
        if self.counts.len() == level {
            self.counts.push(None);
        }
        let mut count = 0;
        while !self.take('}') {
            if count > 0 && !self.take(',') {
                return Err(self.malformed());
            }
            if self.take('{') {
                if self.leaf.is_some_and(|leaf| leaf <= level) {
                    return Err(self.malformed());
                }
                self.level(level + 1)?;
            } else {
                if *self.leaf.get_or_insert(level) != level || self.counts.len() > level + 1 {
                    return Err(self.malformed());
                }
                let value = self.value()?;
                self.values.push(value);
            }
            count += 1;
        }
        match self.counts[level].replace(count) {
            _ if count == 0 && level > 0 => Err(self.malformed()),
            Some(before) if before != count => Err(self.malformed()),
            _ => Ok(()),
        }
    }

    fn value(&mut self) -> Result<Value> {
        let mut content = String::new();
        let mut chars = self.rest.trim_start_matches(SPACES).char_indices();
        let rest = chars.as_str();
        let malformed = || malformed(self.text);
        if rest.starts_with('"') {
            chars.next();
            loop {
                match chars.next().ok_or_else(malformed)?.1 {
                    '"' => break,
                    '\\' => content.push(chars.next().ok_or_else(malformed)?.1),
                    char => content.push(char),
                }
            }
            self.rest = chars.as_str();
            return text::parse(&content, self.element);
        }
        // The end of what is not white space, or had a backslash before it.
        let (mut end, mut is_escaped) = (0, false);
        loop {
            let behind = chars.as_str();
            match chars.next().ok_or_else(malformed)?.1 {
                ',' | '}' => {
                    self.rest = behind;
                    break;
                }
                '{' | '"' => return Err(malformed()),
                '\\' => {
                    content.push(chars.next().ok_or_else(malformed)?.1);
                    is_escaped = true;
                    end = content.len();
                }
                char => {
                    content.push(char);
                    end = if SPACES.contains(&char) { end } else { content.len() };
                }
            }
        }
        content.truncate(end);
        match content.is_empty() {
            true => Err(malformed()),
            false if !is_escaped && content.eq_ignore_ascii_case("null") => Ok(Value::Null),
            false => text::parse(&content, self.element),
        }
    }
}

/// Appends the binary form.
pub(super) fn put_binary(into: &mut Vec<u8>, array: &Array, of: Type) {
    let element = of.element().unwrap_or(Type::Text);
    let has_null = array.values.iter().any(Value::is_null);
    into.extend((array.dimensions.len() as i32).to_be_bytes());
    into.extend(i32::from(has_null).to_be_bytes());
    into.extend(element.oid().to_be_bytes());
    for (count, first) in &array.dimensions {
        into.extend((*count as i32).to_be_bytes());
        into.extend(first.to_be_bytes());
    }
    for value in &array.values {
        text::put_sized(into, value, |into| text::put_binary(into, value, element));
    }
}

/// Reads the binary form.
pub(super) fn parse_binary(bytes: &[u8], of: Type) -> Result<Array> {
    let element = of.element().unwrap_or(Type::Text);
    let malformed = || error!(INVALID_BINARY, "incorrect binary data format for type {}", of.name());
    let mut rest = Binary(bytes);
    let mut number = || rest.long();
    let count = number().and_then(|count| usize::try_from(count).ok()).ok_or_else(malformed)?;
    let (flags, given) = (number().ok_or_else(malformed)?, number().ok_or_else(malformed)? as u32);
    if count > MOST_DIMENSIONS {
        return Err(too_many_dimensions());
    }
    if !matches!(flags, 0 | 1) {
        return Err(malformed());
    }
    if given != element.oid() {
        return Err(SqlError::new(
            code::DATATYPE_MISMATCH,
            "binary data has array element type of another type",
        ));
    }
    let mut dimensions = Vec::with_capacity(count);
    let mut all = 1usize;
    for _ in 0..count {
        let (count, first) = (number().ok_or_else(malformed)?, number().ok_or_else(malformed)?);
        let count = usize::try_from(count).map_err(|_| malformed())?;
        all = all.checked_mul(count).filter(|all| *all <= bytes.len()).ok_or_else(malformed)?;
        first.checked_add(count as i32).ok_or_else(malformed)?;
        dimensions.push((count, first));
    }
    let mut values = Vec::new();
    if count > 0 {
        for _ in 0..all {
            values.push(match rest.long().ok_or_else(malformed)? {
                -1 => Value::Null,
                length => {
                    let length = usize::try_from(length).map_err(|_| malformed())?;
                    text::parse_binary(rest.bytes(length).ok_or_else(malformed)?, element)?
                }
            });
        }
    }
    let is_vector = matches!(of, Type::Int2Vector | Type::OidVector);
    if is_vector && (!matches!(dimensions[..], [(_, 0)]) || values.iter().any(Value::is_null)) {
        return Err(error!(INVALID_BINARY, "invalid {} data", of.name()));
    }
    match (rest.0.is_empty(), values.is_empty()) {
        (false, _) => Err(malformed()),
        (true, true) if !is_vector => Ok(Array::default()),
        (true, _) => Ok(Array { dimensions, values }),
    }
}

fn pair(values: &[Value]) -> Option<(&Array, &Array)> {
    match values {
        [Value::Array(one), Value::Array(other)] => Some((one, other)),
        _ => None,
    }
}

/// Returns one array behind the other one; NULL is none.
pub(crate) fn concatenate(values: &[Value]) -> Result<Value> {
    let Some((one, other)) = pair(values) else {
        return Ok(values.iter().find(|value| !value.is_null()).cloned().unwrap_or(Value::Null));
    };
    let mismatch = || SqlError::new(code::ARRAY_SUBSCRIPT, "cannot concatenate incompatible arrays");
    if one.dimensions.is_empty() || other.dimensions.is_empty() {
        let whole = if one.dimensions.is_empty() { other } else { one };
        return Ok(Value::Array(Box::new(whole.clone())));
    }
    let (left, right) = (&one.dimensions, &other.dimensions);
    // Arrays of one shape, or one that becomes an element of the other.
    let (mut dimensions, inner, added) = match (left.len(), right.len()) {
        (one, other) if one == other => (left.clone(), &right[1..], right[0].0),
        (one, other) if one == other + 1 => (left.clone(), &right[..], 1),
        (one, other) if one + 1 == other => (right.clone(), &left[..], 1),
        _ => return Err(mismatch()),
    };
    if dimensions[1..] != *inner {
        return Err(mismatch());
    }
    dimensions[0].0 += added;
    let values = one.values.iter().chain(&other.values).cloned().collect();
    Ok(Value::Array(Box::new(Array { dimensions, values })))
}

fn with_element(array: &Value, element: &Value, is_last: bool) -> Result<Value> {
    let mut array = match array {
        Value::Array(array) => array.clone(),
        _ => Box::default(),
    };
    match &mut array.dimensions[..] {
        [] => array.dimensions.push((1, 1)),
        [(count, first)] => {
            let end = i32::try_from(*count).ok().and_then(|count| first.checked_add(count));
            if end.is_none() {
                return Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, "integer out of range"));
            }
            *count += 1;
        }
        _ => return Err(SqlError::new("22000", "argument must be empty or one-dimensional array")),
    }
    let at = if is_last { array.values.len() } else { 0 };
    array.values.insert(at, element.clone());
    Ok(Value::Array(array))
}

/// Returns an array with one more element at its end.
pub(crate) fn append(values: &[Value]) -> Result<Value> {
    with_element(&values[0], &values[1], true)
}

/// Returns an array with one more element at its begin.
pub(crate) fn prepend(values: &[Value]) -> Result<Value> {
    with_element(&values[1], &values[0], false)
}

/// Appends an element, in quotes if it needs them.
fn put_quoted(into: &mut String, element: &str) {
    let is_special = |char: char| matches!(char, '{' | '}' | ',' | '"' | '\\') || SPACES.contains(&char);
    if !element.is_empty() && !element.contains(is_special) && !element.eq_ignore_ascii_case("null") {
        into.push_str(element);
        return;
    }
    into.push('"');
    for char in element.chars() {
        if matches!(char, '"' | '\\') {
            into.push('\\');
        }
        into.push(char);
    }
    into.push('"');
}

/// The element of an array type in the catalog.
pub(super) mod of_element {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use super::Type;

    pub(crate) fn serialize<S: Serializer>(of: &&'static Type, to: S) -> Result<S::Ok, S::Error> {
        of.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<&'static Type, D::Error> {
        match Type::deserialize(from)?.array() {
            Some(Type::Array(of)) => Ok(of),
            _ => Err(D::Error::custom("a type of which there are no arrays")),
        }
    }
}
