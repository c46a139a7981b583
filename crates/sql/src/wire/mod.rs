//! The messages of PostgreSQL's protocol, version 3.

pub(crate) mod connection;
pub(crate) mod scram;

use crate::{
    bind::select::ResultColumn,
    error::{Result, SqlError, code, error},
    types::{
        Type, Value,
        text::{self, Binary},
    },
};

/// The longest message of a client, in bytes.
pub(crate) const MOST_BYTES: usize = 64 << 20;

/// The longest message before a client has proved who it is.
pub(crate) const MOST_START_BYTES: usize = 10_000;

/// A message of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    Query(String),
    Parse { name: String, query: String, types: Vec<u32> },
    Bind(BindMessage),
    DescribeStatement(String),
    DescribePortal(String),
    Execute { portal: String, most: u32 },
    CloseStatement(String),
    ClosePortal(String),
    Sync,
    Flush,
    CopyData(Vec<u8>),
    CopyDone,
    CopyFail(String),
    Password(Vec<u8>),
    Terminate,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BindMessage {
    pub(crate) portal: String,
    pub(crate) statement: String,
    /// For each parameter, or for all: true if it is binary.
    pub(crate) formats: Vec<bool>,
    pub(crate) values: Vec<Option<Vec<u8>>>,
    pub(crate) result_formats: Vec<bool>,
}

/// The first message of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Start {
    /// Asks for encryption, by TLS or else by GSS.
    Encryption {
        is_tls: bool,
    },
    Cancel {
        process: i32,
        secret: i32,
    },
    /// The settings of a session.
    Session(Vec<(String, String)>),
}

fn violation(what: &str) -> SqlError {
    SqlError::new(code::PROTOCOL_VIOLATION, what)
}

fn too_short() -> SqlError {
    violation("insufficient data left in message")
}

struct Reader<'a>(Binary<'a>);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.0.take().ok_or_else(too_short)
    }

    fn short(&mut self) -> Result<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn long(&mut self) -> Result<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        self.0.bytes(len).ok_or_else(too_short)
    }

    fn text(&mut self) -> Result<String> {
        let end = self.0.0.iter().position(|byte| *byte == 0);
        let bytes = self.bytes(end.ok_or_else(|| violation("invalid string in message"))?)?;
        self.take::<1>()?;
        let text = String::from_utf8(bytes.to_vec());
        text.map_err(|_| SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\""))
    }

    fn formats(&mut self) -> Result<Vec<bool>> {
        let count = self.short()?;
        (0..count)
            .map(|_| match self.short()? {
                0 => Ok(false),
                1 => Ok(true),
                other => Err(error!(INVALID_PARAMETER_VALUE, "unsupported format code: {other}")),
            })
            .collect()
    }

    fn end(&self) -> Result<()> {
        if self.0.0.is_empty() { Ok(()) } else { Err(violation("invalid message format")) }
    }
}

/// Reads the first message of a connection, without its length.
pub(crate) fn read_start(bytes: &[u8]) -> Result<Start> {
    let mut reader = Reader(Binary(bytes));
    match reader.long()? {
        code @ (80_877_103 | 80_877_104) => Ok(Start::Encryption { is_tls: code == 80_877_103 }),
        80_877_102 => {
            let (process, secret) = (reader.long()? as i32, reader.long()? as i32);
            Ok(Start::Cancel { process, secret })
        }
        version if version >> 16 == 3 => {
            let mut settings = Vec::new();
            loop {
                let name = reader.text()?;
                if name.is_empty() {
                    return Ok(Start::Session(settings));
                }
                settings.push((name, reader.text()?));
            }
        }
        version => Err(error!(
            FEATURE_NOT_SUPPORTED,
            "unsupported frontend protocol {}.{}: server supports 3.0",
            version >> 16,
            version & 0xffff
        )),
    }
}

/// Reads a message from its kind and its body.
pub(crate) fn read(kind: u8, body: &[u8]) -> Result<Received> {
    let mut reader = Reader(Binary(body));
    let message = match kind {
        b'Q' => Received::Query(reader.text()?),
        b'P' => {
            let (name, query) = (reader.text()?, reader.text()?);
            let count = reader.short()?;
            let types = (0..count).map(|_| reader.long()).collect::<Result<_>>()?;
            Received::Parse { name, query, types }
        }
        b'B' => {
            let (portal, statement) = (reader.text()?, reader.text()?);
            let formats = reader.formats()?;
            let count = reader.short()?;
            let value = |reader: &mut Reader<'_>| match reader.long()? as i32 {
                -1 => Ok(None),
                len => {
                    let len = usize::try_from(len).map_err(|_| violation("invalid length of a parameter"))?;
                    reader.bytes(len).map(|bytes| Some(bytes.to_vec()))
                }
            };
            let values = (0..count).map(|_| value(&mut reader)).collect::<Result<_>>()?;
            let result_formats = reader.formats()?;
            Received::Bind(BindMessage { portal, statement, formats, values, result_formats })
        }
        b'D' | b'C' => {
            let [what] = reader.take()?;
            let name = reader.text()?;
            match (kind, what) {
                (b'D', b'S') => Received::DescribeStatement(name),
                (b'D', b'P') => Received::DescribePortal(name),
                (b'C', b'S') => Received::CloseStatement(name),
                (b'C', b'P') => Received::ClosePortal(name),
                _ => return Err(violation("invalid DESCRIBE or CLOSE message subtype")),
            }
        }
        b'E' => Received::Execute { portal: reader.text()?, most: reader.long()? },
        b'S' => Received::Sync,
        b'H' => Received::Flush,
        b'd' => Received::CopyData(reader.bytes(body.len())?.to_vec()),
        b'c' => Received::CopyDone,
        b'f' => Received::CopyFail(reader.text()?),
        b'p' => Received::Password(reader.bytes(body.len())?.to_vec()),
        b'X' => Received::Terminate,
        other => return Err(violation(&format!("invalid frontend message type {other}"))),
    };
    reader.end()?;
    Ok(message)
}

/// Messages for a client, in the order in which they are put.
#[derive(Default, Debug)]
pub(crate) struct Outgoing(pub(crate) Vec<u8>);

impl Outgoing {
    fn message(&mut self, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
        self.0.push(kind);
        let start = self.0.len();
        self.0.extend([0; 4]);
        body(&mut self.0);
        let len = (self.0.len() - start) as u32;
        self.0[start..start + 4].copy_from_slice(&len.to_be_bytes());
    }

    /// A request of a step of authentication, with its data.
    pub(crate) fn authentication(&mut self, step: u32, data: &[u8]) {
        self.message(b'R', |body| {
            body.extend(step.to_be_bytes());
            body.extend(data);
        });
    }

    pub(crate) fn parameter(&mut self, name: &str, value: &str) {
        self.message(b'S', |body| {
            put_text(body, name);
            put_text(body, value);
        });
    }

    pub(crate) fn cancel_key(&mut self, process: i32, secret: i32) {
        self.message(b'K', |body| {
            body.extend(process.to_be_bytes());
            body.extend(secret.to_be_bytes());
        });
    }

    /// `status`: `I` without a transaction, `T` in one, `E` in a failed one.
    pub(crate) fn ready(&mut self, status: u8) {
        self.message(b'Z', |body| body.push(status));
    }

    pub(crate) fn error(&mut self, error: &SqlError, severity: &str) {
        let kind = if severity == "NOTICE" || severity == "WARNING" { b'N' } else { b'E' };
        self.message(kind, |body| {
            let mut field = |kind: u8, text: &str| {
                body.push(kind);
                put_text(body, text);
            };
            field(b'S', severity);
            field(b'V', severity);
            field(b'C', error.code);
            field(b'M', &error.message);
            if let Some(detail) = &error.detail {
                field(b'D', detail);
            }
            if let Some(fields) = &error.fields {
                let texts = [
                    (b'H', &fields.hint),
                    (b's', &fields.schema),
                    (b't', &fields.table),
                    (b'c', &fields.column),
                    (b'd', &fields.data_type),
                    (b'n', &fields.constraint),
                    (b'P', &fields.position.map(|position| position.to_string())),
                ];
                for (kind, text) in texts {
                    text.iter().for_each(|text| field(kind, text));
                }
            }
            body.push(0);
        });
    }

    /// A notification of NOTIFY, of this session.
    pub(crate) fn notification(&mut self, process: i32, channel: &str, payload: &str) {
        self.message(b'A', |body| {
            body.extend(process.to_be_bytes());
            put_text(body, channel);
            put_text(body, payload);
        });
    }

    pub(crate) fn complete(&mut self, tag: &str) {
        self.message(b'C', |body| put_text(body, tag));
    }

    pub(crate) fn empty(&mut self, kind: u8) {
        self.message(kind, |_| ());
    }

    pub(crate) fn columns(&mut self, columns: &[ResultColumn], formats: &[bool]) {
        self.message(b'T', |body| {
            body.extend((columns.len() as u16).to_be_bytes());
            for (at, ResultColumn { name, of }) in columns.iter().enumerate() {
                put_text(body, name);
                body.extend(0u32.to_be_bytes());
                body.extend(0u16.to_be_bytes());
                body.extend(of.oid().to_be_bytes());
                body.extend(of.size().to_be_bytes());
                body.extend(of.modifier().to_be_bytes());
                body.extend(u16::from(format_of(formats, at)).to_be_bytes());
            }
        });
    }

    pub(crate) fn row(&mut self, row: &[Value], columns: &[ResultColumn], formats: &[bool]) {
        self.message(b'D', |body| {
            body.extend((row.len() as u16).to_be_bytes());
            for (at, (value, column)) in row.iter().zip(columns).enumerate() {
                text::put_sized(body, value, |body| match format_of(formats, at) {
                    true => text::put_binary(body, value, column.of),
                    false => body.extend(text::print(value, column.of).into_bytes()),
                });
            }
        });
    }

    pub(crate) fn parameter_types(&mut self, types: &[Type]) {
        self.message(b't', |body| {
            body.extend((types.len() as u16).to_be_bytes());
            types.iter().for_each(|of| body.extend(of.oid().to_be_bytes()));
        });
    }

    /// Begins a copy of so many columns, from the client if `is_in`.
    pub(crate) fn copy(&mut self, is_in: bool, columns: usize, is_binary: bool) {
        self.message(if is_in { b'G' } else { b'H' }, |body| {
            body.push(is_binary.into());
            body.extend((columns as u16).to_be_bytes());
            (0..columns).for_each(|_| body.extend([0, is_binary.into()]));
        });
    }

    pub(crate) fn copy_data(&mut self, line: &[u8]) {
        self.message(b'd', |body| body.extend(line));
    }
}

/// Returns whether a column is binary: no format is text, one is for all.
pub(crate) fn format_of(formats: &[bool], at: usize) -> bool {
    match formats {
        [] => false,
        [one] => *one,
        all => all.get(at).copied().unwrap_or(false),
    }
}

fn put_text(into: &mut Vec<u8>, text: &str) {
    into.extend(text.bytes().filter(|byte| *byte != 0));
    into.push(0);
}
