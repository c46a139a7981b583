//! Functions of bytes (chapter 9.5 of PostgreSQL's manual), and sums over them.

use base64::{Engine, alphabet, engine};
use sha2::Digest;

use super::{
    Call, Declared, MOST_BYTES, function, invalid_parameter, ok,
    strings::{part_of, replaced_part},
    too_long,
};
use crate::{
    error::{Result, SqlError, error},
    types::{
        Type, Value,
        text::{self, hex},
    },
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("bit_count(bytea) int8", |call| {
        ok(call.bytes(0).iter().map(|byte| i64::from(byte.count_ones())).sum::<i64>())
    }),
    function("bit_length(bytea) int4", |call| ok(call.bytes(0).len() as i64 * 8)),
    function("btrim(bytea, bytea) bytea", |call| trimmed(call, true, true)),
    function("convert_from(bytea, name) text stable", convert_from),
    function("convert_to(text, name) bytea stable", convert_to),
    function("decode(text, text) bytea", decode),
    function("encode(bytea, text) text", encode),
    function("get_bit(bytea, int8) int4", |call| bit(call, None)),
    function("get_byte(bytea, int4) int4", |call| byte(call, None)),
    function("length octet_length(bytea) int4", |call| ok(call.bytes(0).len() as i64)),
    function("ltrim(bytea, bytea) bytea", |call| trimmed(call, true, false)),
    function("md5(bytea) text", |call| ok(hex(&md5::Md5::digest(call.bytes(0))))),
    function("md5(text) text", |call| ok(hex(&md5::Md5::digest(call.text(0))))),
    function("overlay(bytea, bytea, int4, [int4]) bytea", overlay),
    function("position(bytea, bytea) int4", position),
    function("rtrim(bytea, bytea) bytea", |call| trimmed(call, false, true)),
    function("set_bit(bytea, int8, int4) bytea", |call| bit(call, Some(call.int(2)))),
    function("set_byte(bytea, int4, int4) bytea", |call| byte(call, Some(call.int(2)))),
    function("sha224(bytea) bytea", |call| ok(sha2::Sha224::digest(call.bytes(0)).to_vec())),
    function("sha256(bytea) bytea", |call| ok(sha2::Sha256::digest(call.bytes(0)).to_vec())),
    function("sha384(bytea) bytea", |call| ok(sha2::Sha384::digest(call.bytes(0)).to_vec())),
    function("sha512(bytea) bytea", |call| ok(sha2::Sha512::digest(call.bytes(0)).to_vec())),
    function("substr substring(bytea, int4, [int4]) bytea", substring),
    function("||(bytea, bytea) bytea", |call| match call.bytes(0).len() + call.bytes(1).len() {
        0..=MOST_BYTES => ok([call.bytes(0), call.bytes(1)].concat()),
        _ => Err(too_long()),
    }),
];

fn trimmed(call: &Call<'_>, begin: bool, end: bool) -> Result<Value> {
    let (mut bytes, set) = (call.bytes(0), call.bytes(1));
    while let [first, rest @ ..] = bytes
        && begin
        && set.contains(first)
    {
        bytes = rest;
    }
    while let [rest @ .., last] = bytes
        && end
        && set.contains(last)
    {
        bytes = rest;
    }
    ok(bytes.to_vec())
}

fn is_utf8(name: &str) -> Result<()> {
    match name.to_ascii_lowercase().as_str() {
        "utf8" | "utf-8" | "unicode" => Ok(()),
        _ => Err(SqlError::unsupported(format!("the encoding {name}"))),
    }
}

fn convert_from(call: &Call<'_>) -> Result<Value> {
    is_utf8(call.text(1))?;
    match std::str::from_utf8(call.bytes(0)) {
        Ok(text) if !text.contains('\0') => ok(text),
        _ => Err(SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\"")),
    }
}

fn convert_to(call: &Call<'_>) -> Result<Value> {
    is_utf8(call.text(1))?;
    ok(call.text(0).as_bytes().to_vec())
}

/// Base 64 that is read with or without its end.
const BASE64: engine::GeneralPurpose = engine::GeneralPurpose::new(
    &alphabet::STANDARD,
    engine::GeneralPurposeConfig::new().with_decode_padding_mode(engine::DecodePaddingMode::RequireCanonical),
);

fn unknown_encoding(name: &str) -> SqlError {
    invalid_parameter(format!("unrecognized encoding: \"{name}\""))
}

fn encode(call: &Call<'_>) -> Result<Value> {
    let bytes = call.bytes(0);
    ok(match call.text(1).to_ascii_lowercase().as_str() {
        "hex" => hex(bytes),
        "base64" => {
            let whole = BASE64.encode(bytes);
            let lines: Vec<&str> =
                whole.as_bytes().chunks(76).map(|line| std::str::from_utf8(line).unwrap_or("")).collect();
            lines.join("\n")
        }
        "escape" => {
            let of = |byte: &u8| match byte {
                b'\\' => "\\\\".to_owned(),
                0 | 128.. => format!("\\{byte:03o}"),
                byte => char::from(*byte).to_string(),
            };
            bytes.iter().map(of).collect()
        }
        _ => return Err(unknown_encoding(call.text(1))),
    })
}

fn decode(call: &Call<'_>) -> Result<Value> {
    let dense: String =
        call.text(0).chars().filter(|char| !matches!(char, ' ' | '\n' | '\t' | '\r')).collect();
    match call.text(1).to_ascii_lowercase().as_str() {
        "hex" => {
            if let Some(wrong) = dense.chars().find(|char| !char.is_ascii_hexdigit()) {
                return Err(invalid_parameter(format!("invalid hexadecimal digit: \"{wrong}\"")));
            }
            let odd = |_| invalid_parameter("invalid hexadecimal data: odd number of digits");
            text::parse(&format!("\\x{dense}"), Type::Bytea).map_err(odd)
        }
        "base64" => match BASE64.decode(&dense) {
            Ok(bytes) => ok(bytes),
            Err(_) => Err(invalid_parameter("invalid base64 data")),
        },
        "escape" => text::parse(call.text(0), Type::Bytea),
        _ => Err(unknown_encoding(call.text(1))),
    }
}

fn out_of_bounds(at: i64, length: usize) -> SqlError {
    error!(ARRAY_SUBSCRIPT, "index {at} out of valid range, 0..{}", length as i64 - 1)
}

/// Returns a byte, or the bytes with a new one.
fn byte(call: &Call<'_>, new: Option<i64>) -> Result<Value> {
    let mut bytes = call.bytes(0).to_vec();
    let at = usize::try_from(call.int(1)).ok().filter(|at| *at < bytes.len());
    let at = at.ok_or_else(|| out_of_bounds(call.int(1), bytes.len()))?;
    match new {
        None => ok(i64::from(bytes[at])),
        Some(new) => {
            bytes[at] = new as u8;
            ok(bytes)
        }
    }
}

/// Returns a bit, or the bytes with a new one.
fn bit(call: &Call<'_>, new: Option<i64>) -> Result<Value> {
    let mut bytes = call.bytes(0).to_vec();
    let at = usize::try_from(call.int(1)).ok().filter(|at| at / 8 < bytes.len());
    let at = at.ok_or_else(|| out_of_bounds(call.int(1), bytes.len() * 8))?;
    let mask = 1 << (at % 8);
    match new {
        None => return ok(i64::from(bytes[at / 8] & mask != 0)),
        Some(0) => bytes[at / 8] &= !mask,
        Some(1) => bytes[at / 8] |= mask,
        Some(_) => return Err(invalid_parameter("new bit must be 0 or 1")),
    }
    ok(bytes)
}

fn overlay(call: &Call<'_>) -> Result<Value> {
    let (bytes, new) = (call.bytes(0), call.bytes(1));
    let (from, end) = replaced_part(call, new.len())?;
    ok([&bytes[..bytes.len().min(from)], new, &bytes[bytes.len().min(end)..]].concat())
}

fn position(call: &Call<'_>) -> Result<Value> {
    let (bytes, part) = (call.bytes(0), call.bytes(1));
    if part.is_empty() {
        return ok(1i64);
    }
    ok(bytes.windows(part.len()).position(|window| window == part).map_or(0, |at| at as i64 + 1))
}

fn substring(call: &Call<'_>) -> Result<Value> {
    let (from, end) = part_of(call)?;
    let bytes = call.bytes(0);
    let at = |place: i64| usize::try_from(place - 1).unwrap_or(0).min(bytes.len());
    ok(bytes[at(from)..at(end).max(at(from))].to_vec())
}
