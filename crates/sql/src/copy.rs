//! The formats of COPY: text, CSV and binary.

use std::{iter::Peekable, mem};

use crate::{
    error::{Result, SqlError, code},
    types::{
        Type, Value,
        text::{self, Binary},
    },
    wire::MOST_BYTES,
};

/// The first bytes of the binary format; its flags and the length of further fields follow.
const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum CopyFormat {
    #[default]
    Text,
    Csv,
    Binary,
}

/// The first line.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum CopyHeader {
    #[default]
    None,
    /// The names of the columns, which are not read.
    Names,
    /// Names that must be those of the columns.
    Match,
}

/// The columns of an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ForcedColumns {
    All,
    Named(Vec<String>),
}

impl Default for ForcedColumns {
    fn default() -> Self {
        Self::Named(Vec::new())
    }
}

impl ForcedColumns {
    fn has(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(|known| known == name),
        }
    }

    /// Returns the columns that are named.
    pub(crate) fn named(&self) -> &[String] {
        match self {
            Self::All => &[],
            Self::Named(names) => names,
        }
    }
}

/// The options of COPY.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CopyOptions {
    pub(crate) format: CopyFormat,
    pub(crate) header: CopyHeader,
    pub(crate) delimiter: u8,
    pub(crate) null: String,
    pub(crate) quote: u8,
    pub(crate) escape: u8,
    pub(crate) force_quote: ForcedColumns,
    pub(crate) force_not_null: ForcedColumns,
    pub(crate) force_null: ForcedColumns,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self {
            format: CopyFormat::Text,
            header: CopyHeader::None,
            delimiter: b'\t',
            null: "\\N".into(),
            quote: b'"',
            escape: b'"',
            force_quote: ForcedColumns::default(),
            force_not_null: ForcedColumns::default(),
            force_null: ForcedColumns::default(),
        }
    }
}

/// A column of a copy.
pub(crate) struct CopyColumn {
    pub(crate) name: String,
    pub(crate) of: Type,
}

impl CopyOptions {
    pub(crate) fn is_binary(&self) -> bool {
        self.format == CopyFormat::Binary
    }

    /// Appends what is before the rows.
    pub(crate) fn put_header(&self, into: &mut Vec<u8>, columns: &[CopyColumn]) {
        if self.is_binary() {
            into.extend(SIGNATURE);
            into.extend([0; 8]);
        } else if self.header != CopyHeader::None {
            let names = columns.iter().map(|column| (Some(column.name.clone()), false));
            self.put_fields(into, names, columns.len());
        }
    }

    /// Appends a row.
    pub(crate) fn put_row<'a>(
        &self,
        into: &mut Vec<u8>,
        row: impl Iterator<Item = &'a Value>,
        columns: &[CopyColumn],
    ) {
        let row = row.zip(columns);
        if !self.is_binary() {
            let fields = row.map(|(value, CopyColumn { name, of })| {
                ((!value.is_null()).then(|| text::print(value, *of)), self.force_quote.has(name))
            });
            return self.put_fields(into, fields, columns.len());
        }
        into.extend((columns.len() as u16).to_be_bytes());
        for (value, CopyColumn { of, .. }) in row {
            text::put_sized(into, value, |into| text::put_binary(into, value, *of));
        }
    }

    /// Appends what is behind the rows.
    pub(crate) fn put_end(&self, into: &mut Vec<u8>) {
        if self.is_binary() {
            into.extend((-1i16).to_be_bytes());
        }
    }

    /// Appends a line; each field says whether it has quotes in any case.
    fn put_fields(
        &self,
        into: &mut Vec<u8>,
        fields: impl Iterator<Item = (Option<String>, bool)>,
        count: usize,
    ) {
        for (at, (field, is_quoted)) in fields.enumerate() {
            if at > 0 {
                into.push(self.delimiter);
            }
            match field {
                None => into.extend(self.null.bytes()),
                Some(field) if self.format == CopyFormat::Csv => {
                    self.put_quoted(into, &field, is_quoted || field == "\\." && count == 1);
                }
                Some(field) => self.put_escaped(into, &field),
            }
        }
        into.push(b'\n');
    }

    fn put_quoted(&self, into: &mut Vec<u8>, field: &str, is_quoted: bool) {
        let is_special =
            |byte: u8| byte == self.delimiter || byte == self.quote || matches!(byte, b'\n' | b'\r');
        if !is_quoted && field != self.null && !field.bytes().any(is_special) {
            return into.extend(field.bytes());
        }
        into.push(self.quote);
        for byte in field.bytes() {
            if byte == self.quote || byte == self.escape {
                into.push(self.escape);
            }
            into.push(byte);
        }
        into.push(self.quote);
    }

    fn put_escaped(&self, into: &mut Vec<u8>, field: &str) {
        for byte in field.bytes() {
            match byte {
                b'\n' => into.extend(b"\\n"),
                b'\r' => into.extend(b"\\r"),
                b'\t' => into.extend(b"\\t"),
                8 => into.extend(b"\\b"),
                11 => into.extend(b"\\v"),
                12 => into.extend(b"\\f"),
                byte => {
                    if byte == b'\\' || byte == self.delimiter {
                        into.push(b'\\');
                    }
                    into.push(byte);
                }
            }
        }
    }
}

fn bad(message: impl Into<String>) -> SqlError {
    SqlError::new(code::BAD_COPY, message)
}

/// The rows in the data of a client, which comes in pieces.
pub(crate) struct CopyReader<'a> {
    options: &'a CopyOptions,
    columns: Vec<CopyColumn>,
    data: Vec<u8>,
    /// The begin of what was not read, and of what was not looked at for the end of a line.
    at: usize,
    scanned: usize,
    /// For the end of a line of CSV: it is in quotes, and behind an escape.
    is_quoted: bool,
    is_escaped: bool,
    has_begun: bool,
    is_complete: bool,
    /// The end of the rows was read.
    is_over: bool,
    /// The lines that were read.
    pub(crate) lines: u64,
}

impl<'a> CopyReader<'a> {
    pub(crate) fn new(options: &'a CopyOptions, columns: Vec<CopyColumn>) -> Self {
        Self {
            options,
            columns,
            data: Vec::new(),
            at: 0,
            scanned: 0,
            is_quoted: false,
            is_escaped: false,
            has_begun: false,
            is_complete: false,
            is_over: false,
            lines: 0,
        }
    }

    /// Adds data of the client.
    pub(crate) fn add(&mut self, data: &[u8]) -> Result<()> {
        if self.is_over {
            return match self.options.is_binary() && !data.is_empty() {
                true => Err(bad("received copy data after EOF marker")),
                false => Ok(()),
            };
        }
        self.data.drain(..self.at);
        (self.scanned, self.at) = (self.scanned.saturating_sub(self.at), 0);
        self.data.extend(data);
        match self.data.len() > 2 * MOST_BYTES {
            true => Err(SqlError::new(code::PROGRAM_LIMIT, "a line of COPY is longer than 64 MiB")),
            false => Ok(()),
        }
    }

    /// Notes that no more data comes.
    pub(crate) fn complete(&mut self) {
        self.is_complete = true;
    }

    /// Returns the values of the next row; `None` if it is not there yet, or there is none.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<Value>>> {
        if self.options.is_binary() {
            return self.next_binary();
        }
        loop {
            let Some(line) = self.next_line() else { return Ok(None) };
            self.lines += 1;
            let fields = match self.options.format {
                CopyFormat::Csv => self.quoted_fields(&line)?,
                _ => self.escaped_fields(&line),
            };
            if !mem::replace(&mut self.has_begun, true) && self.options.header != CopyHeader::None {
                self.check_header(&fields)?;
                continue;
            }
            return self.values(fields).map(Some);
        }
    }

    /// Takes the next line, without its end.
    fn next_line(&mut self) -> Option<Vec<u8>> {
        let is_csv = self.options.format == CopyFormat::Csv;
        let (quote, escape) = (self.options.quote, self.options.escape);
        let mut end = None;
        while end.is_none() && self.scanned < self.data.len() {
            let byte = self.data[self.scanned];
            self.scanned += 1;
            let was_escaped = self.is_escaped && !is_csv;
            if is_csv {
                if self.is_quoted && byte == escape && escape != quote {
                    self.is_escaped = !self.is_escaped;
                } else {
                    self.is_quoted ^= byte == quote && !self.is_escaped;
                    self.is_escaped = false;
                }
            } else {
                self.is_escaped = byte == b'\\' && !self.is_escaped;
            }
            if byte == b'\n' && !self.is_quoted && !was_escaped {
                end = Some(self.scanned - 1);
            }
        }
        let is_last = end.is_none() && self.is_complete && self.at < self.data.len();
        let end = end.or_else(|| is_last.then_some(self.data.len()))?;
        if self.is_over {
            return None;
        }
        let line = &self.data[self.at..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line).to_vec();
        (self.at, self.is_quoted, self.is_escaped) = (self.scanned, false, false);
        self.is_over = line == b"\\.";
        (!self.is_over).then_some(line)
    }

    fn check_header(&self, fields: &[(Option<Vec<u8>>, bool)]) -> Result<()> {
        if self.options.header != CopyHeader::Match {
            return Ok(());
        }
        let (found, expected) = (fields.len(), self.columns.len());
        if found != expected {
            let message = format!("wrong number of fields in header line: got {found}, expected {expected}");
            return Err(bad(message));
        }
        for (at, ((field, _), CopyColumn { name, .. })) in fields.iter().zip(&self.columns).enumerate() {
            let got = match field {
                Some(field) if *field == name.as_bytes() => continue,
                Some(field) => format!("got \"{}\"", String::from_utf8_lossy(field)),
                None => format!("got null value (\"{}\")", self.options.null),
            };
            let message =
                format!("column name mismatch in header line field {}: {got}, expected \"{name}\"", at + 1);
            return Err(bad(message));
        }
        Ok(())
    }

    fn values(&self, fields: Vec<(Option<Vec<u8>>, bool)>) -> Result<Vec<Value>> {
        let mut fields = fields.into_iter();
        let (null, options) = (self.options.null.as_bytes(), self.options);
        let value = |CopyColumn { name, of }: &CopyColumn| {
            let missing = || bad(format!("missing data for column \"{name}\""));
            let (field, is_quoted) = fields.next().ok_or_else(missing)?;
            let field = match field {
                None if options.force_not_null.has(name) => Some(null.to_vec()),
                Some(field) if is_quoted && field == null && options.force_null.has(name) => None,
                field => field,
            };
            let Some(bytes) = field else { return Ok(Value::Null) };
            let text = String::from_utf8(bytes)
                .map_err(|_| SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\""))?;
            text::parse(&text, *of)
        };
        let values = self.columns.iter().map(value).collect::<Result<_>>()?;
        match fields.next() {
            None => Ok(values),
            // An empty line is no field of a table without columns.
            Some((Some(field), false)) if self.columns.is_empty() && field.is_empty() => Ok(values),
            Some(_) => Err(bad("extra data after last expected column")),
        }
    }

    /// Returns the fields of a line of the text format. None has quotes.
    fn escaped_fields(&self, line: &[u8]) -> Vec<(Option<Vec<u8>>, bool)> {
        let mut fields = Vec::with_capacity(self.columns.len());
        let mut rest = line;
        loop {
            let mut end = 0;
            while end < rest.len() && rest[end] != self.options.delimiter {
                end += if rest[end] == b'\\' { 2 } else { 1 };
            }
            let end = end.min(rest.len());
            let field = &rest[..end];
            let is_null = field == self.options.null.as_bytes();
            fields.push(((!is_null).then(|| unescaped(field)), false));
            if end == rest.len() {
                return fields;
            }
            rest = &rest[end + 1..];
        }
    }

    /// Returns the fields of a line of CSV, and whether they have quotes.
    fn quoted_fields(&self, line: &[u8]) -> Result<Vec<(Option<Vec<u8>>, bool)>> {
        let CopyOptions { delimiter, quote, escape, null, .. } = self.options;
        let mut fields = Vec::with_capacity(self.columns.len());
        let mut bytes = line.iter().peekable();
        loop {
            let (mut field, mut has_quotes, mut is_quoted, mut has_next) = (Vec::new(), false, false, false);
            while let Some(byte) = bytes.next() {
                if !is_quoted && byte == delimiter {
                    has_next = true;
                    break;
                }
                if is_quoted
                    && byte == escape
                    && bytes.peek().is_some_and(|next| *next == escape || *next == quote)
                {
                    field.extend(bytes.next());
                } else if byte == quote {
                    is_quoted = !is_quoted;
                    has_quotes = true;
                } else {
                    field.push(*byte);
                }
            }
            if is_quoted {
                return Err(bad("unterminated CSV quoted field"));
            }
            let is_null = !has_quotes && field == null.as_bytes();
            fields.push(((!is_null).then_some(field), has_quotes));
            if !has_next {
                return Ok(fields);
            }
        }
    }

    fn next_binary(&mut self) -> Result<Option<Vec<Value>>> {
        let rest = self.data.len() - self.at;
        if self.data.len() < self.scanned && !self.is_complete {
            return Ok(None);
        }
        let mut data = Binary(&self.data[self.at..]);
        let read = match binary_row(&mut data, &self.columns, self.has_begun, self.is_over) {
            Some(read) => read?,
            // More may come. It is looked at again when there is twice as much.
            None if !self.is_complete => {
                self.scanned = self.at + 2 * rest;
                return Ok(None);
            }
            None if !self.has_begun => return Err(bad("COPY file signature not recognized")),
            None if self.is_over || data.0.len() == rest => return Ok(None),
            None => return Err(bad("unexpected EOF in COPY data")),
        };
        (self.at, self.has_begun, self.lines) = (self.data.len() - data.0.len(), true, self.lines + 1);
        self.is_over |= read.is_none();
        match read {
            None if self.at < self.data.len() => Err(bad("received copy data after EOF marker")),
            read => Ok(read),
        }
    }
}

/// Reads a row, or the end of rows; `None` if it is not there yet.
fn binary_row(
    data: &mut Binary<'_>,
    columns: &[CopyColumn],
    has_begun: bool,
    is_over: bool,
) -> Option<Result<Option<Vec<Value>>>> {
    if is_over {
        return None;
    }
    if !has_begun {
        if data.bytes(SIGNATURE.len())? != SIGNATURE {
            return Some(Err(bad("COPY file signature not recognized")));
        }
        let flags = data.long()?;
        if flags & 1 << 16 != 0 {
            return Some(Err(bad("invalid COPY file header (WITH OIDS)")));
        }
        if flags >> 16 != 0 {
            return Some(Err(bad("unrecognized critical flags in COPY file header")));
        }
        let Ok(more) = usize::try_from(data.long()?) else {
            return Some(Err(bad("invalid COPY file header (missing length)")));
        };
        data.bytes(more)?;
    }
    let count = data.short()?;
    if count == -1 {
        return Some(Ok(None));
    }
    if usize::try_from(count) != Ok(columns.len()) {
        return Some(Err(bad(format!("row field count is {count}, expected {}", columns.len()))));
    }
    let mut row = Vec::with_capacity(columns.len());
    for CopyColumn { of, .. } in columns {
        row.push(match data.long()? {
            -1 => Value::Null,
            len => {
                let Ok(len) = usize::try_from(len) else { return Some(Err(bad("invalid field size"))) };
                let value = text::parse_binary(data.bytes(len)?, of.unrounded());
                match value.and_then(|value| value.fit(of.base(), false)) {
                    Ok(value) => value,
                    Err(error) => return Some(Err(error)),
                }
            }
        });
    }
    Some(Ok(Some(row)))
}

fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(first @ b'0'..=b'7') => bytes.push(digits(u32::from(first - b'0'), &mut rest, 8)),
            Some(b'x') if rest.peek().is_some_and(u8::is_ascii_hexdigit) => {
                let first = rest.next().and_then(|byte| char::from(byte).to_digit(16));
                bytes.push(digits(first.unwrap_or_default(), &mut rest, 16));
            }
            Some(b'n') => bytes.push(b'\n'),
            Some(b'r') => bytes.push(b'\r'),
            Some(b't') => bytes.push(b'\t'),
            Some(b'b') => bytes.push(8),
            Some(b'v') => bytes.push(11),
            Some(b'f') => bytes.push(12),
            Some(other) => bytes.push(other),
            None => {}
        }
    }
    bytes
}

/// Reads further digits of a byte: at most two octal ones, or a hexadecimal one.
fn digits(mut number: u32, rest: &mut Peekable<impl Iterator<Item = u8>>, base: u32) -> u8 {
    for _ in 0..if base == 8 { 2 } else { 1 } {
        let Some(digit) = rest.peek().and_then(|byte| char::from(*byte).to_digit(base)) else { break };
        number = number * base + digit;
        rest.next();
    }
    number as u8
}
