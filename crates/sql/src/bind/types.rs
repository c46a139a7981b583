//! Types by their names in SQL.

use sqlparser::ast;

use super::{Parameters, system_name};
use crate::{
    catalog::{Relation, shown},
    error::{At, Result, SqlError, code},
    parse::{relation, unqualified},
    system,
    types::{Clock, Type, named::NamedType},
};

impl Parameters {
    /// Returns the type that a name means, which a statement has made.
    fn named_type(&self, of: &ast::DataType, name: &ast::ObjectName) -> Result<Type> {
        let (name, own) = (relation(name)?, unqualified(name)?);
        if let Some(types) = &*self.own_types.borrow() {
            let is_it =
                |of: &&NamedType| of.name == own && (name == own || of.relation().qualified() == name);
            let mut found = types.iter().filter_map(|of| of.named()).filter(is_it);
            let first = found.next().filter(|first| found.all(|other| other == *first));
            return first
                .map(NamedType::of)
                .ok_or_else(|| SqlError::unsupported(format!("the type {of} here")));
        }
        match self.relation(&name) {
            Ok(Relation::Type(entry)) => Ok(entry.of),
            Err(error) if self.missing.borrow().is_some() => Err(error),
            _ if system::is_type(&own) => Err(SqlError::unsupported(format!("the type {of}"))),
            _ => Err(undefined_type(&name)),
        }
    }
}

/// The error for a type that does not exist.
pub(crate) fn undefined_type(name: &str) -> SqlError {
    let message = format!("type \"{}\" does not exist", shown(name));
    SqlError::new(code::UNDEFINED_OBJECT, message)
}

/// Returns the type that a name of SQL means.
pub(crate) fn type_of(of: &ast::DataType, on: &Parameters) -> Result<Type> {
    use ast::{CharacterLength, DataType as D, ExactNumberInfo as N, TimezoneInfo as Z};
    let length = |length: &Option<CharacterLength>| match length {
        None => Ok(None),
        Some(CharacterLength::IntegerLength { length, unit: None }) => match u32::try_from(*length) {
            Ok(length @ 1..=10_485_760) => Ok(Some(length)),
            _ => Err(SqlError::new(code::INVALID_PARAMETER_VALUE, "the length of a type must be at least 1")),
        },
        Some(other) => Err(SqlError::unsupported(format!("the length {other}"))),
    };
    let numeric = |digits: u64, scale: i64| match (u16::try_from(digits), u16::try_from(scale)) {
        (Ok(digits @ 1..=38), Ok(scale)) if scale <= digits.min(37) => {
            Ok(Type::Numeric(Some((digits, scale))))
        }
        _ => Err(SqlError::unsupported(format!("numeric({digits},{scale})"))),
    };
    // More than six digits of seconds are not kept.
    let clock = |clock: Clock, digits: &Option<u64>| match digits {
        None => Type::Rounded(clock, 6).unrounded(),
        Some(digits) => Type::Rounded(clock, (*digits).min(6) as u8),
    };
    Ok(match of {
        D::Bool | D::Boolean => Type::Bool,
        D::SmallInt(None) | D::Int2(None) => Type::Int2,
        D::Int(None) | D::Integer(None) | D::Int4(None) => Type::Int4,
        D::BigInt(None) | D::Int8(None) => Type::Int8,
        D::Real | D::Float4 | D::Float(N::Precision(1..=24)) => Type::Float4,
        D::DoublePrecision | D::Float8 | D::Float(N::Precision(25..=53)) => Type::Float8,
        D::Double(N::None) | D::Float(N::None) => Type::Float8,
        D::Numeric(N::None) | D::Decimal(N::None) | D::Dec(N::None) => Type::Numeric(None),
        D::Numeric(N::Precision(digits)) | D::Decimal(N::Precision(digits)) => numeric(*digits, 0)?,
        D::Numeric(N::PrecisionAndScale(digits, scale)) | D::Decimal(N::PrecisionAndScale(digits, scale)) => {
            numeric(*digits, *scale)?
        }
        D::Text => Type::Text,
        D::Varchar(size) | D::CharacterVarying(size) | D::CharVarying(size) => Type::Varchar(length(size)?),
        D::Char(size) | D::Character(size) => Type::Char(length(size)?.unwrap_or(1)),
        D::Bytea => Type::Bytea,
        D::Uuid => Type::Uuid,
        D::Date => Type::Date,
        D::Interval { fields: None, precision } => clock(Clock::Interval, precision),
        D::Time(digits, Z::None | Z::WithoutTimeZone) => clock(Clock::TimeOfDay, digits),
        D::Time(digits, Z::Tz | Z::WithTimeZone) => clock(Clock::TimeTz, digits),
        D::Timestamp(digits, Z::None | Z::WithoutTimeZone) => clock(Clock::Timestamp, digits),
        D::Timestamp(digits, Z::Tz | Z::WithTimeZone) => clock(Clock::TimestampTz, digits),
        D::Regclass => Type::Regclass,
        D::JSON => Type::Json,
        D::JSONB => Type::Jsonb,
        D::Array(ast::ArrayElemTypeDef::SquareBracket(element, _)) => {
            match type_of(element, on)? {
                // All arrays of one element are of one type.
                array @ Type::Array(_) => array,
                element => (element.array().filter(|array| array.element() == Some(element)))
                    .ok_or_else(|| SqlError::unsupported(format!("the type {of}")))?,
            }
        }
        D::Custom(name, modifiers) if modifiers.is_empty() => {
            // `char` comes here only with quotes: else it is a type of the language.
            let of_name = |name| Type::all().find(|of| of.catalog_name() == name && *of != Type::Record);
            match system_name(name).and_then(of_name) {
                Some(known) => known,
                None => on.named_type(of, name).at(name)?,
            }
        }
        other => return Err(SqlError::unsupported(format!("the type {other}"))),
    })
}
