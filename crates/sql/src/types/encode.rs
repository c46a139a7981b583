//! Rows and keys as bytes.
//!
//! A row is one byte for each value, which tells its kind, and the value. A key is in the order of
//! its values: a byte that tells NULL, which is last, and bytes whose order is that of the values.

use super::{Interval, Type, Value, array::Array, json, numeric::Numeric};
use crate::error::{Result, SqlError, code};

const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INT: u8 = 3;
const FLOAT: u8 = 4;
const NUMERIC: u8 = 5;
const TEXT: u8 = 6;
const BYTES: u8 = 7;
const DATE: u8 = 8;
const TIME: u8 = 9;
const INTERVAL: u8 = 10;
const ARRAY: u8 = 11;
const JSON: u8 = 12;
const PADDED: u8 = 13;

/// Marks of a key: values are before NULL.
const KEY_VALUE: u8 = 1;
pub(crate) const KEY_NULL: u8 = 2;

pub(crate) fn row(values: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * 6);
    values.iter().for_each(|value| put(&mut bytes, value));
    bytes
}

fn put(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => bytes.push(NULL),
        Value::Bool(false) => bytes.push(FALSE),
        Value::Bool(true) => bytes.push(TRUE),
        Value::Int(number) => {
            bytes.push(INT);
            put_int(bytes, *number);
        }
        Value::Float(number) => put_fixed(bytes, FLOAT, number.to_le_bytes()),
        Value::Numeric(number) => {
            bytes.push(NUMERIC);
            bytes.extend(number.scale.to_le_bytes());
            bytes.extend(number.digits.to_le_bytes());
        }
        Value::Text(text) => put_bytes(bytes, TEXT, text.as_bytes()),
        Value::Json(text) => put_bytes(bytes, JSON, text.as_bytes()),
        Value::Padded(text) => put_bytes(bytes, PADDED, text.as_bytes()),
        Value::Bytes(content) => put_bytes(bytes, BYTES, content),
        Value::Date(day) => put_fixed(bytes, DATE, day.to_le_bytes()),
        Value::Time(moment) => put_fixed(bytes, TIME, moment.to_le_bytes()),
        Value::Interval(Interval { months, days, microseconds }) => {
            bytes.push(INTERVAL);
            bytes.extend(months.to_le_bytes());
            bytes.extend(days.to_le_bytes());
            bytes.extend(microseconds.to_le_bytes());
        }
        Value::Array(array) => {
            bytes.extend([ARRAY, array.dimensions.len() as u8]);
            for (count, first) in &array.dimensions {
                bytes.extend((*count as u32).to_le_bytes());
                bytes.extend(first.to_le_bytes());
            }
            let values = row(&array.values);
            bytes.extend((values.len() as u32).to_le_bytes());
            bytes.extend(values);
        }
    }
}

/// Appends the length of an integer and its significant bytes.
fn put_int(into: &mut Vec<u8>, number: i64) {
    let bytes = number.to_le_bytes();
    let len = (1..8).find(|len| number << (64 - 8 * len) >> (64 - 8 * len) == number).unwrap_or(8);
    into.push(len as u8);
    into.extend(&bytes[..len]);
}

fn put_fixed<const N: usize>(into: &mut Vec<u8>, kind: u8, content: [u8; N]) {
    into.push(kind);
    into.extend(content);
}

fn put_bytes(into: &mut Vec<u8>, kind: u8, content: &[u8]) {
    into.push(kind);
    // A tree refuses rows that are longer.
    into.extend((content.len() as u32).to_le_bytes());
    into.extend(content);
}

fn damaged() -> SqlError {
    SqlError::new(code::DATA_CORRUPTED, "a row is malformed; run `plexus store check`")
}

/// Reads a row. Columns that were added since the row was written are NULL.
pub(crate) fn read_row(bytes: &[u8], columns: usize) -> Result<Vec<Value>> {
    let mut values = Vec::new();
    read_row_into(bytes, columns, &mut values)?;
    Ok(values)
}

/// Does the same, and puts it in the place of another row, whose memory is used again.
pub(crate) fn read_row_into(bytes: &[u8], columns: usize, into: &mut Vec<Value>) -> Result<()> {
    let mut rest = bytes;
    into.resize(columns, Value::Null);
    for value in into {
        replace_value(&mut rest, value)?;
    }
    if rest.is_empty() { Ok(()) } else { Err(damaged()) }
}

/// Reads some columns of a row, in their order, as [`read_row_into`] does.
pub(crate) fn read_columns(bytes: &[u8], columns: &[usize], into: &mut Vec<Value>) -> Result<()> {
    let (mut rest, mut at) = (bytes, 0);
    into.resize(columns.len(), Value::Null);
    for (column, value) in columns.iter().zip(into) {
        while at < *column && !rest.is_empty() {
            skip_value(&mut rest)?;
            at += 1;
        }
        replace_value(&mut rest, value)?;
        at += 1;
    }
    Ok(())
}

/// Reads a value, or NULL at the end of a row, and puts it in the place of another one.
fn replace_value(rest: &mut &[u8], old: &mut Value) -> Result<()> {
    match (rest.first(), &mut *old) {
        (None, _) => *old = Value::Null,
        (Some(&TEXT), Value::Text(text)) => {
            *rest = &rest[1..];
            let len = u32::from_le_bytes(take(rest)?) as usize;
            let new = str::from_utf8(take_slice(rest, len)?).map_err(|_| damaged())?;
            text.clear();
            text.push_str(new);
        }
        _ => *old = read_value(rest)?,
    }
    Ok(())
}

/// Reads all values of a row.
pub(crate) fn read_all(bytes: &[u8]) -> Result<Vec<Value>> {
    let mut rest = bytes;
    let mut values = Vec::new();
    while !rest.is_empty() {
        values.push(read_value(&mut rest)?);
    }
    Ok(values)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let (taken, more) = rest.split_first_chunk::<N>().ok_or_else(damaged)?;
    *rest = more;
    Ok(*taken)
}
fn take_bytes(rest: &mut &[u8]) -> Result<Vec<u8>> {
    let len = u32::from_le_bytes(take(rest)?) as usize;
    take_slice(rest, len).map(<[u8]>::to_vec)
}

fn take_slice<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8]> {
    let (taken, more) = rest.split_at_checked(len).ok_or_else(damaged)?;
    *rest = more;
    Ok(taken)
}

/// Passes over a value.
fn skip_value(rest: &mut &[u8]) -> Result<()> {
    let [kind] = take(rest)?;
    let len = match kind {
        NULL | FALSE | TRUE => 0,
        INT => usize::from(take::<1>(rest)?[0]),
        DATE => 4,
        FLOAT | TIME => 8,
        INTERVAL => 16,
        NUMERIC => 18,
        TEXT | JSON | BYTES | PADDED => u32::from_le_bytes(take(rest)?) as usize,
        ARRAY => {
            let dimensions = usize::from(take::<1>(rest)?[0]);
            take_slice(rest, 8 * dimensions)?;
            u32::from_le_bytes(take(rest)?) as usize
        }
        _ => return Err(damaged()),
    };
    take_slice(rest, len).map(drop)
}

fn read_value(rest: &mut &[u8]) -> Result<Value> {
    let [kind] = take(rest)?;
    Ok(match kind {
        NULL => Value::Null,
        FALSE => Value::Bool(false),
        TRUE => Value::Bool(true),
        INT => {
            let [len] = take(rest)?;
            let (low, more) =
                rest.split_at_checked(len.into()).filter(|_| (1..=8).contains(&len)).ok_or_else(damaged)?;
            *rest = more;
            let mut bytes = [0; 8];
            bytes[..low.len()].copy_from_slice(low);
            let unused = 64 - 8 * u32::from(len);
            Value::Int(i64::from_le_bytes(bytes) << unused >> unused)
        }
        FLOAT => Value::Float(f64::from_bits(u64::from_le_bytes(take(rest)?))),
        NUMERIC => {
            let scale = u16::from_le_bytes(take(rest)?);
            Value::Numeric(Numeric { scale, digits: i128::from_le_bytes(take(rest)?) })
        }
        TEXT => Value::Text(String::from_utf8(take_bytes(rest)?).map_err(|_| damaged())?),
        JSON => Value::Json(String::from_utf8(take_bytes(rest)?).map_err(|_| damaged())?),
        PADDED => Value::Padded(String::from_utf8(take_bytes(rest)?).map_err(|_| damaged())?),
        BYTES => Value::Bytes(take_bytes(rest)?),
        DATE => Value::Date(i32::from_le_bytes(take(rest)?)),
        TIME => Value::Time(i64::from_le_bytes(take(rest)?)),
        INTERVAL => Value::Interval(Interval {
            months: i32::from_le_bytes(take(rest)?),
            days: i32::from_le_bytes(take(rest)?),
            microseconds: i64::from_le_bytes(take(rest)?),
        }),
        ARRAY => {
            let [count] = take(rest)?;
            let mut dimensions = Vec::new();
            for _ in 0..count {
                let values = u32::from_le_bytes(take(rest)?) as usize;
                dimensions.push((values, i32::from_le_bytes(take(rest)?)));
            }
            // Elements are no arrays.
            let inner = take_bytes(rest)?;
            Value::Array(Box::new(Array { dimensions, values: read_all(&inner)? }))
        }
        _ => return Err(damaged()),
    })
}

/// Returns bytes that are equal for values that are equal.
pub(crate) fn identity(values: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * 6);
    values.iter().for_each(|value| put_identity(&mut bytes, value));
    bytes
}

/// Appends such bytes of a value.
pub(crate) fn put_identity(bytes: &mut Vec<u8>, value: &Value) {
    use Value::{Array, Float, Interval, Json, Numeric, Padded};
    match value {
        // These can be equal and different.
        Float(_) | Numeric(_) | Interval(_) | Array(_) | Json(_) | Padded(_) => put(bytes, &normal(value)),
        other => put(bytes, other),
    }
}

/// Returns the one form of values that are equal.
fn normal(value: &Value) -> Value {
    match value {
        Value::Float(number) if *number == 0.0 => Value::Float(0.0),
        Value::Float(number) if number.is_nan() => Value::Float(f64::NAN),
        Value::Numeric(number) => Value::Numeric(number.trimmed()),
        Value::Interval(span) => Value::Numeric(Numeric { digits: span.length(), scale: 0 }),
        Value::Array(array) => {
            let values = array.values.iter().map(normal).collect();
            Value::Array(Box::new(Array { dimensions: array.dimensions.clone(), values }))
        }
        Value::Padded(_) => Value::Text(value.unpadded().to_owned()),
        Value::Json(text) => {
            let Ok(mut value) = json::parse(text) else { return Value::Json(text.clone()) };
            value.normalized();
            Value::Json(value.print())
        }
        other => other.clone(),
    }
}

/// Returns whether values of a type can be in a key.
pub(crate) fn has_keys(of: Type) -> bool {
    !matches!(
        of.base(),
        Type::Array(_) | Type::Int2Vector | Type::OidVector | Type::Json | Type::Jsonb | Type::Record
    )
}

/// Appends a number to a key: its sign, then its exponent and its digits, both to the base of 100,
/// and an end; those of a negative number are complemented.
fn put_numeric_key(into: &mut Vec<u8>, number: &Numeric) {
    let digits = number.digits.unsigned_abs();
    if digits == 0 {
        return into.push(2);
    }
    let (scale, mut digits) = (i32::from(number.scale), digits.to_string());
    let mut whole = digits.len() as i32 - scale;
    if whole.rem_euclid(2) == 1 {
        digits.insert(0, '0');
        whole += 1;
    }
    if digits.len() % 2 == 1 {
        digits.push('0');
    }
    let mut pairs: Vec<u8> =
        digits.as_bytes().chunks(2).map(|pair| (pair[0] - b'0') * 10 + (pair[1] - b'0') + 1).collect();
    let mut exponent = whole / 2;
    while pairs.last() == Some(&1) {
        pairs.pop();
    }
    let leading = pairs.iter().take_while(|pair| **pair == 1).count();
    exponent -= leading as i32;
    let mut bytes = ((exponent + (1 << 15)) as u16).to_be_bytes().to_vec();
    bytes.extend(&pairs[leading..]);
    bytes.push(0);
    match number.digits < 0 {
        true => {
            into.push(1);
            into.extend(bytes.iter().map(|byte| !byte));
        }
        false => {
            into.push(3);
            into.extend(bytes);
        }
    }
}

/// Appends a value to a key.
///
/// # Errors
/// The type cannot be in a key.
pub(crate) fn put_key(into: &mut Vec<u8>, value: &Value, of: Type) -> Result<()> {
    if value.is_null() {
        into.push(KEY_NULL);
        return Ok(());
    }
    into.push(KEY_VALUE);
    match value {
        Value::Bool(value) => into.push((*value).into()),
        Value::Int(number) => into.extend((*number as u64 ^ 1 << 63).to_be_bytes()),
        Value::Date(day) => into.extend((*day as u32 ^ 1 << 31).to_be_bytes()),
        Value::Time(moment) => into.extend((*moment as u64 ^ 1 << 63).to_be_bytes()),
        Value::Float(number) => {
            // Both zeros are equal, and NaN is the highest.
            let bits = if *number == 0.0 { 0 } else { number.to_bits() };
            let bits = if number.is_nan() { f64::NAN.to_bits() & !(1 << 63) } else { bits };
            into.extend((if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }).to_be_bytes());
        }
        Value::Text(_) | Value::Padded(_) => {
            into.extend(value.unpadded().as_bytes());
            into.push(0);
        }
        Value::Bytes(bytes) => {
            for byte in bytes {
                into.push(*byte);
                // A zero is followed by a one, so that two zeros are the end.
                into.extend((*byte == 0).then_some(1));
            }
            into.extend([0, 0]);
        }
        Value::Numeric(number) => put_numeric_key(into, number),
        Value::Interval(span) => into.extend((span.length() as u128 ^ 1 << 127).to_be_bytes()),
        Value::Array(_) | Value::Json(_) | Value::Null => {
            return Err(SqlError::unsupported(format!("a key of type {}", of.name())));
        }
    }
    Ok(())
}

/// Returns the least key above all keys that begin with `prefix`; `None` if there is none.
pub(crate) fn after(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{text, time};

    #[test]
    fn keys_of_numbers_have_the_order_of_the_numbers() {
        let texts = [
            "-99999999999999999999999999999999999999",
            "-12345.678",
            "-100",
            "-99.5",
            "-10",
            "-9",
            "-1.5",
            "-1",
            "-0.1",
            "-0.01",
            "-0.001",
            "0",
            "0.0001",
            "0.001",
            "0.01",
            "0.0999",
            "0.1",
            "0.11",
            "1",
            "1.01",
            "9",
            "10",
            "10.5",
            "99",
            "99.99",
            "100",
            "101",
            "9999",
            "10000",
            "12345678901234567890.5",
        ];
        let keys: Vec<Vec<u8>> = texts
            .iter()
            .map(|text| {
                let number = Value::Numeric(Numeric::parse(text).unwrap());
                let mut key = Vec::new();
                put_key(&mut key, &number, Type::Numeric(None)).unwrap();
                key
            })
            .collect();
        for (pair, texts) in keys.windows(2).zip(texts.windows(2)) {
            assert!(pair[0] < pair[1], "{texts:?}");
        }
        let key = |text| {
            let mut key = Vec::new();
            put_key(&mut key, &text::parse(text, Type::Numeric(None)).unwrap(), Type::Numeric(None)).unwrap();
            key
        };
        assert_eq!(key("1.50"), key("1.5"));
        assert_eq!(key("100"), key("100.000"));
        assert_eq!(key("0.00"), key("-0"));
    }

    #[test]
    fn times_with_offsets_keep_both_and_are_ordered_by_the_time_in_utc() {
        for of_day in [0, 1, time::DAY - 1, time::DAY] {
            for west in [-57_599, -3600, 0, 1, 57_599] {
                assert_eq!(time::unpack_zoned(time::pack_zoned(of_day, west)), (of_day, west));
            }
        }
        let times = ["08:00+02", "06:00:00.000001+00", "07:00+01", "06:30-01"];
        let mut values: Vec<Value> =
            times.iter().map(|text| text::parse(text, Type::TimeTz).unwrap()).collect();
        values.sort_by(Value::compare);
        let sorted: Vec<String> = values.iter().map(|value| text::print(value, Type::TimeTz)).collect();
        assert_eq!(sorted, ["08:00:00+02", "07:00:00+01", "06:00:00.000001+00", "06:30:00-01"]);
    }

    #[test]
    fn values_of_all_kinds_are_read_back_from_rows() {
        for (text, of) in [
            ("{{1,NULL},{3,4}}", Type::Array(&Type::Int4)),
            ("[0:1]={a,\"b c\"}", Type::Array(&Type::Text)),
            ("1 year -2 days +03:00:00.5", Type::Interval),
            ("{\"a\": [1.50, null]}", Type::Jsonb),
            ("10:00:00-08:30", Type::TimeTz),
            ("0044-03-15 BC", Type::Date),
        ] {
            let value = text::parse(text, of).unwrap();
            let read = read_all(&row(std::slice::from_ref(&value))).unwrap();
            assert_eq!(text::print(&read[0], of), text);
            let mut binary = Vec::new();
            text::put_binary(&mut binary, &value, of);
            assert_eq!(text::parse_binary(&binary, of).unwrap(), value);
        }
    }

    #[test]
    fn deep_texts_are_errors() {
        let deep = "[".repeat(100_000);
        assert!(text::parse(&deep, Type::Jsonb).is_err());
        assert!(text::parse(&"{".repeat(100_000), Type::Array(&Type::Int4)).is_err());
    }
}
