//! Values as text and in the binary form of the protocol.

use super::{
    Interval, Type, Value, interval, json, moment, network::Network, numeric::Numeric, out_of_range, time,
};
use crate::error::{Result, SqlError, error, fail};

pub(super) fn invalid(of: Type, text: &str) -> SqlError {
    error!(INVALID_TEXT, "invalid input syntax for type {}: \"{text}\"", of.name())
}

/// Reads a value from its text.
pub(crate) fn parse(text: &str, to: Type) -> Result<Value> {
    let to = to.base();
    let trimmed = text.trim();
    let value = match to.unrounded() {
        Type::Bool => Value::Bool(parse_bool(trimmed).ok_or_else(|| invalid(to, text))?),
        Type::Int2 | Type::Int4 | Type::Int8 => match trimmed.parse::<i128>() {
            Ok(number) => {
                let message = || {
                    error!(NUMERIC_OUT_OF_RANGE, "value \"{text}\" is out of range for type {}", to.name())
                };
                let number = i64::try_from(number).map_err(|_| message())?;
                return Value::Int(number).fit(to, false).map_err(|_| message());
            }
            Err(_) => return Err(invalid(to, text)),
        },
        Type::Float4 | Type::Float8 => {
            let number = parse_float(trimmed, to == Type::Float4).ok_or_else(|| invalid(to, text))?;
            let is_digits = || trimmed.contains(|digit: char| digit.is_ascii_digit());
            let mantissa = trimmed.split(['e', 'E']).next().unwrap_or_default();
            let is_lost = number == 0.0 && mantissa.contains(|digit| matches!(digit, '1'..='9'));
            if is_lost || number.is_infinite() && is_digits() {
                fail!(NUMERIC_OUT_OF_RANGE, "\"{trimmed}\" is out of range for type {}", to.name());
            }
            Value::Float(number)
        }
        Type::Numeric(_) => Value::Numeric(Numeric::parse(trimmed)?),
        Type::Text | Type::Varchar(_) | Type::Char(_) | Type::Name | Type::Unknown => {
            Value::Text(text.to_owned())
        }
        Type::OneByte => Value::Text(text.chars().take(1).collect()),
        Type::Oid => match trimmed.parse::<i64>() {
            Ok(number) => Value::Int(number),
            Err(_) => return Err(invalid(to, text)),
        },
        Type::Enum(of) => of.value(text)?,
        Type::Bytea => Value::Bytes(parse_bytes(text).ok_or_else(|| invalid(to, text))?),
        Type::Inet | Type::Cidr => Network::parse(text, to)?,
        Type::Uuid => Value::Bytes(parse_uuid(text).ok_or_else(|| invalid(to, text))?),
        Type::Date | Type::Timestamp | Type::TimestampTz | Type::TimeOfDay | Type::TimeTz => {
            moment::parse(text, to.unrounded())?
        }
        Type::Interval => Value::Interval(interval::parse(text, None)?),
        Type::Json => {
            json::check(text)?;
            Value::Text(text.to_owned())
        }
        Type::Jsonb => Value::Json(json::parse(text)?.print()),
        Type::Array(_) | Type::Int2Vector | Type::OidVector => {
            Value::Array(Box::new(super::array::parse(text, to)?))
        }
        other => return Err(SqlError::unsupported(format!("the text of type {}", other.name()))),
    };
    value.fit(to, false)
}

fn parse_bool(text: &str) -> Option<bool> {
    let lower = text.to_ascii_lowercase();
    let is_of = |word: &str, least: usize| lower.len() >= least && word.starts_with(&lower);
    if is_of("true", 1) || is_of("yes", 1) || is_of("on", 2) || lower == "1" {
        Some(true)
    } else if is_of("false", 1) || is_of("no", 1) || is_of("off", 2) || lower == "0" {
        Some(false)
    } else {
        None
    }
}

fn parse_float(text: &str, is_short: bool) -> Option<f64> {
    match text.to_ascii_lowercase().as_str() {
        "infinity" | "inf" | "+infinity" => Some(f64::INFINITY),
        "-infinity" | "-inf" => Some(f64::NEG_INFINITY),
        "nan" => Some(f64::NAN),
        lower if is_short => lower.parse::<f32>().ok().map(f64::from),
        lower => lower.parse::<f64>().ok(),
    }
}

fn parse_bytes(text: &str) -> Option<Vec<u8>> {
    if let Some(digits) = text.strip_prefix("\\x") {
        let digits = digits.as_bytes();
        let digit = |byte: u8| (byte as char).to_digit(16);
        let pair = |pair: &[u8]| Some((digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8);
        return digits.chunks(2).map(pair).collect();
    }
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, more @ ..] = rest {
        rest = more;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        match rest {
            [b'\\', more @ ..] => {
                bytes.push(b'\\');
                rest = more;
            }
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', more @ ..] => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = more;
            }
            _ => return None,
        }
    }
    Some(bytes)
}

/// Reads 32 hexadecimal digits, with hyphens between groups of four, perhaps in braces.
fn parse_uuid(text: &str) -> Option<Vec<u8>> {
    let inner = text.strip_prefix('{').map_or(Some(text), |inner| inner.strip_suffix('}'))?;
    let mut digits = Vec::with_capacity(32);
    for char in inner.chars() {
        match char.to_digit(16) {
            Some(digit) => digits.push(digit as u8),
            None if char == '-' && !digits.is_empty() && digits.len() < 32 && digits.len() % 4 == 0 => {}
            None => return None,
        }
    }
    let is_whole = digits.len() == 32 && !inner.contains("--");
    is_whole.then(|| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn print_uuid(bytes: &[u8]) -> String {
    let groups = [0..4, 4..6, 6..8, 8..10, 10..16];
    groups.map(|group| hex(bytes.get(group).unwrap_or_default())).join("-")
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the text of a value that is not NULL.
pub(crate) fn print(value: &Value, of: Type) -> String {
    let of = of.unrounded();
    match value {
        Value::Null => String::new(),
        Value::Bool(value) => if *value { "t" } else { "f" }.to_owned(),
        Value::Int(number) => match of {
            Type::Enum(of) => of.label(*number).to_owned(),
            _ => number.to_string(),
        },
        Value::Float(number) if of == Type::Float4 => print_float(*number as f32, number.abs(), 6),
        Value::Float(number) => print_float(*number, number.abs(), 15),
        Value::Numeric(number) => number.to_string(),
        Value::Text(text) => match of {
            Type::Char(count) if count != u32::MAX => {
                let missing = (count as usize).saturating_sub(text.chars().count());
                format!("{text}{}", " ".repeat(missing))
            }
            _ => text.clone(),
        },
        Value::Bytes(bytes) if of == Type::Uuid => print_uuid(bytes),
        Value::Bytes(bytes) if of.is_network() => {
            Network::of(bytes).map_or_else(String::new, |network| network.print(of))
        }
        Value::Bytes(bytes) => format!("\\x{}", hex(bytes)),
        Value::Date(day) => time::print_date(*day),
        Value::Time(of_day) if of == Type::TimeOfDay => time::print_time(*of_day),
        Value::Time(packed) if of == Type::TimeTz => time::print_zoned_time(*packed),
        Value::Time(moment) => time::print_moment(*moment, of == Type::TimestampTz),
        Value::Interval(span) => span.print(),
        Value::Array(array) => array.print(of),
        Value::Json(text) | Value::Padded(text) => text.clone(),
    }
}

/// Returns the shortest text that gives the number back, in PostgreSQL's form: with an exponent
/// from so many digits on.
fn print_float<F>(number: F, size: f64, digits: i32) -> String
where
    F: std::fmt::Display + std::fmt::LowerExp,
{
    if size.is_nan() {
        return "NaN".into();
    }
    if size.is_infinite() {
        return if number.to_string().starts_with('-') { "-Infinity" } else { "Infinity" }.into();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        exponent @ ..-4 => format!("{mantissa}e-{:02}", -exponent),
        exponent if exponent >= digits => format!("{mantissa}e+{exponent:02}"),
        _ => format!("{number}"),
    }
}

/// Appends a value behind its length, which is -1 for NULL, as arrays, COPY and the protocol do.
pub(crate) fn put_sized(into: &mut Vec<u8>, value: &Value, put: impl FnOnce(&mut Vec<u8>)) {
    if value.is_null() {
        return into.extend((-1i32).to_be_bytes());
    }
    let start = into.len();
    into.extend([0; 4]);
    put(into);
    let length = (into.len() - start - 4) as u32;
    into[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// The rest of bytes with numbers in the order of networks.
pub(crate) struct Binary<'a>(pub(crate) &'a [u8]);

impl<'a> Binary<'a> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn short(&mut self) -> Option<i16> {
        self.take().map(i16::from_be_bytes)
    }

    pub(crate) fn long(&mut self) -> Option<i32> {
        self.take().map(i32::from_be_bytes)
    }
}

/// Appends the binary form of a value that is not NULL.
pub(crate) fn put_binary(into: &mut Vec<u8>, value: &Value, of: Type) {
    let of = of.unrounded();
    match (value, of) {
        (Value::Bool(value), _) => into.push((*value).into()),
        (Value::Int(number), Type::Int2) => into.extend((*number as i16).to_be_bytes()),
        (Value::Int(number), Type::Int4 | Type::Oid) => into.extend((*number as i32).to_be_bytes()),
        (Value::Int(number), of) if of.is_reg() => into.extend((*number as i32).to_be_bytes()),
        (Value::Int(number), Type::Enum(of)) => into.extend(of.label(*number).bytes()),
        (Value::Int(number), _) => into.extend(number.to_be_bytes()),
        (Value::Float(number), Type::Float4) => into.extend((*number as f32).to_be_bytes()),
        (Value::Float(number), _) => into.extend(number.to_be_bytes()),
        (Value::Bytes(bytes), of) if of.is_network() => {
            Network::of(bytes).iter().for_each(|network| network.put_binary(into, of));
        }
        (Value::Bytes(bytes), _) => into.extend(bytes),
        (Value::Date(day), _) => into.extend(day.to_be_bytes()),
        (Value::Time(packed), Type::TimeTz) => {
            let (of_day, west) = time::unpack_zoned(*packed);
            into.extend(of_day.to_be_bytes());
            into.extend((west as i32).to_be_bytes());
        }
        (Value::Time(moment), _) => into.extend(moment.to_be_bytes()),
        (Value::Interval(span), _) => {
            into.extend(span.microseconds.to_be_bytes());
            into.extend(span.days.to_be_bytes());
            into.extend(span.months.to_be_bytes());
        }
        (Value::Numeric(number), _) => put_numeric(into, *number),
        (Value::Array(array), of) => super::array::put_binary(into, array, of),
        (Value::Json(text), _) => {
            // A version of the form.
            into.push(1);
            into.extend(text.as_bytes());
        }
        (Value::Text(_) | Value::Padded(_), _) => {
            into.extend(print(value, of).into_bytes());
        }
        (Value::Null, _) => {}
    }
}

fn put_numeric(into: &mut Vec<u8>, number: Numeric) {
    let (groups, weight) = number.groups();
    into.extend((groups.len() as u16).to_be_bytes());
    into.extend((weight as i16).to_be_bytes());
    into.extend(if number.digits < 0 { 0x4000u16 } else { 0 }.to_be_bytes());
    into.extend(number.scale.to_be_bytes());
    groups.iter().for_each(|group| into.extend(group.to_be_bytes()));
}

/// Reads a value from its binary form.
pub(crate) fn parse_binary(bytes: &[u8], to: Type) -> Result<Value> {
    let malformed = || error!(INVALID_BINARY, "incorrect binary data format for type {}", to.name());
    let wrong = |_| malformed();
    let value = match to {
        Type::Bool => Value::Bool(<[u8; 1]>::try_from(bytes).map_err(wrong)?[0] != 0),
        Type::Int2 | Type::Int4 | Type::Int8 => Value::Int(match bytes.len() {
            2 => i16::from_be_bytes(bytes.try_into().map_err(wrong)?).into(),
            4 => i32::from_be_bytes(bytes.try_into().map_err(wrong)?).into(),
            8 => i64::from_be_bytes(bytes.try_into().map_err(wrong)?),
            _ => return Err(malformed()),
        }),
        Type::Float4 => Value::Float(f32::from_be_bytes(bytes.try_into().map_err(wrong)?).into()),
        Type::Float8 => Value::Float(f64::from_be_bytes(bytes.try_into().map_err(wrong)?)),
        Type::Bytea => Value::Bytes(bytes.to_vec()),
        Type::Inet | Type::Cidr => Network::parse_binary(bytes, to).ok_or_else(malformed)?,
        Type::Uuid => Value::Bytes(<[u8; 16]>::try_from(bytes).map_err(wrong)?.to_vec()),
        Type::Date => {
            let day = i32::from_be_bytes(bytes.try_into().map_err(wrong)?);
            Value::Date(if time::is_infinite_date(day) { day } else { time::checked_date(day.into())? })
        }
        Type::Timestamp | Type::TimestampTz => {
            let moment = i64::from_be_bytes(bytes.try_into().map_err(wrong)?);
            let is_infinite = time::is_infinite(moment);
            Value::Time(if is_infinite { moment } else { time::checked_moment(moment.into())? })
        }
        Type::TimeOfDay | Type::TimeTz => {
            let (of_day, west) = bytes.split_first_chunk::<8>().ok_or_else(malformed)?;
            let of_day = Some(i64::from_be_bytes(*of_day)).filter(|time| (0..=time::DAY).contains(time));
            let of_day = of_day.ok_or_else(malformed)?;
            match to {
                Type::TimeTz => {
                    let west = i32::from_be_bytes(west.try_into().map_err(wrong)?);
                    Value::Time(time::zoned(of_day, west.into()).ok_or_else(malformed)?)
                }
                _ if west.is_empty() => Value::Time(of_day),
                _ => return Err(malformed()),
            }
        }
        Type::Interval => {
            let (time, rest) = bytes.split_first_chunk::<8>().ok_or_else(malformed)?;
            let (days, months) = rest.split_first_chunk::<4>().ok_or_else(malformed)?;
            Value::Interval(Interval {
                microseconds: i64::from_be_bytes(*time),
                days: i32::from_be_bytes(*days),
                months: i32::from_be_bytes(months.try_into().map_err(wrong)?),
            })
        }
        Type::Numeric(_) => Value::Numeric(parse_numeric(bytes).ok_or_else(malformed)?),
        Type::OneByte if bytes.len() != 1 => return Err(malformed()),
        Type::Text | Type::Varchar(_) | Type::Char(_) | Type::Name | Type::OneByte | Type::Unknown => {
            Value::Text(String::from_utf8(bytes.to_vec()).map_err(|_| malformed())?)
        }
        Type::Json | Type::Jsonb | Type::Enum(_) => {
            let text = match to {
                Type::Jsonb => bytes.strip_prefix(&[1]).ok_or_else(malformed)?,
                _ => bytes,
            };
            return parse(std::str::from_utf8(text).map_err(|_| malformed())?, to);
        }
        Type::Oid => Value::Int(u32::from_be_bytes(bytes.try_into().map_err(wrong)?).into()),
        Type::Array(_) | Type::Int2Vector | Type::OidVector => {
            Value::Array(Box::new(super::array::parse_binary(bytes, to)?))
        }
        other => return Err(SqlError::unsupported(format!("the binary form of type {}", other.name()))),
    };
    if bytes.contains(&0) && to.is_text() {
        return Err(malformed());
    }
    value.fit(to, false).map_err(|_| out_of_range(to))
}

fn parse_numeric(bytes: &[u8]) -> Option<Numeric> {
    let words: Vec<u16> = bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
    let [count, weight, sign, scale, groups @ ..] = &words[..] else { return None };
    if groups.len() != usize::from(*count) || !matches!(sign, 0 | 0x4000) || *scale > 37 {
        return None;
    }
    let mut number = Numeric::from_int(0);
    for (at, group) in groups.iter().enumerate() {
        let exponent = 4 * (i32::from(*weight as i16) - at as i32);
        number = number.add(Numeric::parse(&format!("{group}e{exponent}")).ok()?).ok()?;
    }
    let number = number.rounded(*scale).ok()?;
    Some(if *sign == 0 { number } else { Numeric { digits: -number.digits, ..number } })
}
