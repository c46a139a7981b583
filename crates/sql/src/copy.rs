//! The text format of COPY.

use crate::{
    catalog::{Column, Table},
    error::{Result, SqlError, code},
    types::{Type, Value, text},
};

/// Appends a row as a line: its values with their types.
pub(crate) fn put_line<'a>(into: &mut Vec<u8>, row: impl Iterator<Item = (&'a Value, Type)>) {
    for (at, (value, of)) in row.enumerate() {
        if at > 0 {
            into.push(b'\t');
        }
        match value {
            Value::Null => into.extend(b"\\N"),
            value => {
                for byte in text::print(value, of).bytes() {
                    match byte {
                        b'\\' => into.extend(b"\\\\"),
                        b'\n' => into.extend(b"\\n"),
                        b'\r' => into.extend(b"\\r"),
                        b'\t' => into.extend(b"\\t"),
                        8 => into.extend(b"\\b"),
                        11 => into.extend(b"\\v"),
                        12 => into.extend(b"\\f"),
                        byte => into.push(byte),
                    }
                }
            }
        }
    }
    into.push(b'\n');
}

/// Reads the values of a line, without its end.
pub(crate) fn read_line(line: &[u8], table: &Table, columns: &[usize]) -> Result<Vec<(usize, Value)>> {
    let bad = |message: String| SqlError::new(code::BAD_COPY, message);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut fields = line.split(|byte| *byte == b'\t');
    let mut values = Vec::with_capacity(columns.len());
    for column in columns {
        let Column { name, of, .. } = &table.columns[*column];
        let field = fields.next().ok_or_else(|| bad(format!("missing data for column \"{name}\"")))?;
        values.push((
            *column,
            match field {
                b"\\N" => Value::Null,
                field => {
                    let bytes = unescaped(field);
                    let text = String::from_utf8(bytes)
                        .map_err(|_| SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\""))?;
                    text::parse(&text, *of)?
                }
            },
        ));
    }
    match fields.next() {
        None => Ok(values),
        Some(_) => Err(bad("extra data after last expected column".into())),
    }
}

fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.iter();
    while let Some(byte) = rest.next() {
        if *byte != b'\\' {
            bytes.push(*byte);
            continue;
        }
        match rest.next() {
            Some(b'n') => bytes.push(b'\n'),
            Some(b'r') => bytes.push(b'\r'),
            Some(b't') => bytes.push(b'\t'),
            Some(b'b') => bytes.push(8),
            Some(b'v') => bytes.push(11),
            Some(b'f') => bytes.push(12),
            Some(other) => bytes.push(*other),
            None => {}
        }
    }
    bytes
}
