//! Types and their values: the text that clients see, the bytes of rows and keys.

pub(crate) mod array;
pub(crate) mod encode;
pub(crate) mod interval;
pub(crate) mod json;
pub(crate) mod moment;
pub(crate) mod named;
pub(crate) mod network;
pub(crate) mod numeric;
pub(crate) mod part;
pub(crate) mod text;
pub(crate) mod time;
pub(crate) mod zone;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use self::{array::Array, named::NamedType, network::Network, numeric::Numeric, zone::Zone};
use crate::error::{Result, SqlError, code, error, fail};

/// A type of SQL.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Type {
    Bool,
    Int2,
    Int4,
    Int8,
    Float4,
    Float8,
    /// Digits in all and behind the point, if they are limited.
    Numeric(Option<(u16, u16)>),
    Text,
    /// The most characters, if they are limited.
    Varchar(Option<u32>),
    /// The number of characters.
    Char(u32),
    Bytea,
    Date,
    Timestamp,
    TimestampTz,
    Uuid,
    /// A text of at most 63 bytes.
    Name,
    /// One byte: PostgreSQL's type `"char"` of its catalogs.
    OneByte,
    Oid,
    /// Identifiers that are shown as the names of relations, types, functions, schemas and roles.
    Regclass,
    Regtype,
    Regproc,
    Regnamespace,
    Regrole,
    /// Lists of numbers in catalogs, shown without braces.
    Int2Vector,
    OidVector,
    Json,
    Jsonb,
    Interval,
    TimeOfDay,
    TimeTz,
    /// Addresses: of hosts, and of networks alone.
    Inet,
    Cidr,
    /// A type of moments or times, with so many digits of seconds.
    Rounded(Clock, u8),
    /// An array of one of [`TYPES`].
    #[serde(with = "array::of_element")]
    Array(&'static Type),
    /// An enumerated type; a value is the position of its label.
    #[serde(with = "named::known")]
    Enum(&'static NamedType),
    /// A domain: only columns are of such a type; their values are of the one below it.
    #[serde(with = "named::known")]
    Domain(&'static NamedType),
    /// A row as a value.
    Record,
    Void,
    /// A literal or parameter whose type the rest of the statement decides.
    Unknown,
}

/// A type whose values are rounded to digits of seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Clock {
    Timestamp,
    TimestampTz,
    TimeOfDay,
    TimeTz,
    Interval,
}

/// A value; its type is known from where it is.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Numeric(Numeric),
    Text(String),
    /// Also the 16 bytes of a uuid, and those of [`network::Network`].
    Bytes(Vec<u8>),
    /// Days from 2000-01-01.
    Date(i32),
    /// Microseconds from 2000-01-01 00:00:00 (UTC), or from midnight; with a zone it is as
    /// [`time::pack_zoned`] makes it.
    Time(i64),
    Interval(Interval),
    Array(Box<Array>),
    /// A value of jsonb: its text in the one form that it has.
    Json(String),
    /// A text of bpchar with blanks at its end, which count in no comparison.
    Padded(String),
}

macro_rules! values_from {
    ($($from:ty => |$value:ident| $into:expr;)*) => {
        $(impl From<$from> for Value {
            fn from($value: $from) -> Self {
                $into
            }
        })*
    };
}

values_from! {
    bool => |value| Self::Bool(value);
    i64 => |value| Self::Int(value);
    i32 => |value| Self::Int(value.into());
    i16 => |value| Self::Int(value.into());
    u32 => |value| Self::Int(value.into());
    usize => |value| Self::Int(value as i64);
    f64 => |value| Self::Float(value);
    Numeric => |value| Self::Numeric(value);
    &str => |value| Self::Text(value.to_owned());
    &String => |value| Self::Text(value.clone());
    String => |value| Self::Text(value);
    char => |value| Self::Text(value.to_string());
    Vec<u8> => |value| Self::Bytes(value);
    Interval => |value| Self::Interval(value);
    Array => |value| Self::Array(Box::new(value));
    Vec<Value> => |value| Array::from(value).into();
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// A span of time, whose parts have no fixed ratio.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Interval {
    pub(crate) months: i32,
    pub(crate) days: i32,
    pub(crate) microseconds: i64,
}

/// The identifier, the size and the names of a type, as in `pg_type`.
#[derive(Clone, Copy)]
struct Facts {
    of: Type,
    oid: u32,
    size: i16,
    name: &'static str,
    catalog_name: &'static str,
    /// The identifier and the name of the type of its arrays; 0 if there is none.
    array: u32,
    array_name: &'static str,
}

macro_rules! types {
    ($($of:expr => $oid:literal, $size:literal, $name:literal, $catalog_name:literal, $array:literal;)*) => {
        &[$(Facts {
            of: $of,
            oid: $oid,
            size: $size,
            name: $name,
            catalog_name: $catalog_name,
            array: $array,
            array_name: concat!($name, "[]"),
        }),*]
    };
}

/// The types without limits: the identifier, the size, the name in SQL and that in the catalog, and
/// the identifier of the arrays.
static TYPES: &[Facts] = types! {
    Type::Bool => 16, 1, "boolean", "bool", 1000;
    Type::Bytea => 17, -1, "bytea", "bytea", 1001;
    Type::OneByte => 18, 1, "\"char\"", "char", 1002;
    Type::Name => 19, 64, "name", "name", 1003;
    Type::Int2 => 21, 2, "smallint", "int2", 1005;
    Type::Int2Vector => 22, -1, "int2vector", "int2vector", 1006;
    Type::Int4 => 23, 4, "integer", "int4", 1007;
    Type::Regproc => 24, 4, "regproc", "regproc", 1008;
    Type::Text => 25, -1, "text", "text", 1009;
    Type::OidVector => 30, -1, "oidvector", "oidvector", 1013;
    Type::Char(u32::MAX) => 1042, -1, "character", "bpchar", 1014;
    Type::Varchar(None) => 1043, -1, "character varying", "varchar", 1015;
    Type::Int8 => 20, 8, "bigint", "int8", 1016;
    Type::Cidr => 650, -1, "cidr", "cidr", 651;
    Type::Inet => 869, -1, "inet", "inet", 1041;
    Type::Float4 => 700, 4, "real", "float4", 1021;
    Type::Float8 => 701, 8, "double precision", "float8", 1022;
    Type::Oid => 26, 4, "oid", "oid", 1028;
    Type::Timestamp => 1114, 8, "timestamp without time zone", "timestamp", 1115;
    Type::Date => 1082, 4, "date", "date", 1182;
    Type::TimeOfDay => 1083, 8, "time without time zone", "time", 1183;
    Type::TimestampTz => 1184, 8, "timestamp with time zone", "timestamptz", 1185;
    Type::Interval => 1186, 16, "interval", "interval", 1187;
    Type::Numeric(None) => 1700, -1, "numeric", "numeric", 1231;
    Type::TimeTz => 1266, 12, "time with time zone", "timetz", 1270;
    Type::Json => 114, -1, "json", "json", 199;
    Type::Regclass => 2205, 4, "regclass", "regclass", 2210;
    Type::Regtype => 2206, 4, "regtype", "regtype", 2211;
    Type::Record => 2249, -1, "record", "record", 2287;
    Type::Uuid => 2950, 16, "uuid", "uuid", 2951;
    Type::Jsonb => 3802, -1, "jsonb", "jsonb", 3807;
    Type::Regnamespace => 4089, 4, "regnamespace", "regnamespace", 4090;
    Type::Regrole => 4096, 4, "regrole", "regrole", 4097;
    Type::Void => 2278, 4, "void", "void", 0;
    Type::Unknown => 705, -2, "unknown", "unknown", 0;
};

impl Type {
    /// Returns the values of the type in the catalog.
    fn facts(self) -> Facts {
        match self {
            Self::Enum(of) | Self::Domain(of) => *of.facts(),
            Self::Array(of) => {
                let of = of.facts();
                Facts { oid: of.array, size: -1, name: of.array_name, ..of }
            }
            other => *other.known(),
        }
    }

    /// Returns the entry of a type that PostgreSQL has.
    fn known(self) -> &'static Facts {
        static NONE: Facts = Facts { array: 2277, array_name: "anyarray", ..TYPES[TYPES.len() - 1] };
        let plain = self.without_limits();
        TYPES.iter().find(|known| known.of == plain).unwrap_or(&NONE)
    }

    /// Returns the identifier of the type in PostgreSQL's catalog.
    pub(crate) fn oid(self) -> u32 {
        self.facts().oid
    }

    /// Returns the bytes of a value, -1 if they vary.
    pub(crate) fn size(self) -> i16 {
        self.facts().size
    }

    /// Returns its name in SQL.
    pub(crate) fn name(self) -> &'static str {
        self.facts().name
    }

    /// Returns its name in the catalog; that of an array is that of its elements.
    pub(crate) fn catalog_name(self) -> &'static str {
        self.facts().catalog_name
    }

    /// Returns the type with an identifier of PostgreSQL; 0 leaves it open.
    pub(crate) fn of_oid(oid: u32) -> Option<Self> {
        if oid == 0 {
            return Some(Self::Unknown);
        }
        let known = TYPES.iter().find(|known| known.oid == oid || known.array == oid)?;
        Some(if known.oid == oid { known.of } else { Self::Array(&known.of) })
    }

    /// Returns the types of which values can be in tables, without arrays.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        TYPES.iter().filter(|known| known.array != 0).map(|known| known.of)
    }

    /// Returns the type without limits of its values.
    pub(crate) fn without_limits(self) -> Self {
        match self.base() {
            Self::Numeric(_) => Self::Numeric(None),
            Self::Varchar(_) => Self::Varchar(None),
            Self::Char(_) => Self::Char(u32::MAX),
            other => other.unrounded(),
        }
    }

    /// Returns the type of the values of a domain.
    pub(crate) fn base(self) -> Self {
        match self {
            Self::Domain(of) => of.domain.as_ref().map_or(self, |domain| domain.of),
            other => other,
        }
    }

    /// Returns the type of values, with all digits of seconds.
    pub(crate) fn unrounded(self) -> Self {
        let Self::Rounded(clock, _) = self.base() else { return self.base() };
        match clock {
            Clock::Timestamp => Self::Timestamp,
            Clock::TimestampTz => Self::TimestampTz,
            Clock::TimeOfDay => Self::TimeOfDay,
            Clock::TimeTz => Self::TimeTz,
            Clock::Interval => Self::Interval,
        }
    }

    /// Returns whether a column of another type takes its values.
    pub(crate) fn is_assignable_to(self, to: Self) -> bool {
        use Type::{Interval, Json, Jsonb, TimeOfDay, TimeTz, Timestamp, TimestampTz, Unknown};
        let (from, to) = (self.without_limits(), to.without_limits());
        match (from, to) {
            (Self::Array(one), Self::Array(other)) => one.is_assignable_to(*other),
            (from, to) if from == to || from == Unknown || to.is_text() => true,
            (from, to) if from.is_number() && to.is_number() || from.is_moment() && to.is_moment() => true,
            (from, to) if (from.is_oid() || from.is_integer()) && to.is_oid() => true,
            (from, to) if from.is_oid() && matches!(to, Self::Int4 | Self::Int8) => true,
            (from, Self::OneByte) => from.is_text(),
            (TimeOfDay, TimeTz | Interval) | (TimeTz | Interval | Timestamp | TimestampTz, TimeOfDay) => true,
            (from, to) if from.is_network() && to.is_network() => true,
            (TimestampTz, TimeTz) | (Json, Jsonb) | (Jsonb, Json) => true,
            _ => false,
        }
    }

    /// Returns the type of arrays with elements of this type.
    pub(crate) fn array(self) -> Option<Self> {
        let facts = match self {
            Self::Enum(of) => of.facts(),
            Self::Domain(_) => return None,
            other => other.known(),
        };
        (facts.array != 0).then_some(Self::Array(&facts.of))
    }

    /// Returns the definition of a type that a statement has made, or of that of the elements.
    pub(crate) fn named(self) -> Option<&'static NamedType> {
        match self {
            Self::Enum(of) | Self::Domain(of) => Some(of),
            Self::Array(of) => of.named(),
            _ => None,
        }
    }

    /// Returns the type with another version of a definition.
    pub(crate) fn with(self, new: &'static NamedType) -> Self {
        match self {
            Self::Enum(of) | Self::Domain(of) if of == new => new.of(),
            Self::Array(of) if of.named() == Some(new) => of.with(new).array().unwrap_or(self),
            other => other,
        }
    }

    /// Returns the type of the elements of an array.
    pub(crate) fn element(self) -> Option<Self> {
        match self {
            Self::Array(of) => Some(*of),
            Self::Int2Vector => Some(Self::Int2),
            Self::OidVector => Some(Self::Oid),
            _ => None,
        }
    }

    /// Returns whether its values are identifiers that are shown as names.
    pub(crate) fn is_reg(self) -> bool {
        use Type::{Regclass, Regnamespace, Regproc, Regrole, Regtype};
        matches!(self, Regclass | Regtype | Regproc | Regnamespace | Regrole)
    }

    /// Returns the limits of the type as PostgreSQL encodes them, -1 for none.
    pub(crate) fn modifier(self) -> i32 {
        match self {
            Self::Varchar(Some(most)) => most as i32 + 4,
            Self::Char(count) if count != u32::MAX => count as i32 + 4,
            // Behind the mark that no fields of an interval are left out.
            Self::Rounded(Clock::Interval, digits) => 0x7fff << 16 | i32::from(digits),
            Self::Rounded(_, digits) => digits.into(),
            Self::Numeric(Some((digits, scale))) => (i32::from(digits) << 16 | i32::from(scale)) + 4,
            _ => -1,
        }
    }

    pub(crate) fn is_integer(self) -> bool {
        matches!(self, Self::Int2 | Self::Int4 | Self::Int8)
    }

    pub(crate) fn is_number(self) -> bool {
        self.is_integer() || self.is_float() || matches!(self, Self::Numeric(_))
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::Float4 | Self::Float8)
    }

    pub(crate) fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::Varchar(_) | Self::Char(_) | Self::Name)
    }

    pub(crate) fn is_network(self) -> bool {
        matches!(self, Self::Inet | Self::Cidr)
    }

    fn is_oid(self) -> bool {
        self == Self::Oid || self.is_reg()
    }

    fn is_moment(self) -> bool {
        matches!(self, Self::Date | Self::Timestamp | Self::TimestampTz)
    }

    /// Returns the place of a type among those of numbers: others become values of it.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Self::Int2 => 1,
            Self::Int4 => 2,
            Self::Int8 => 3,
            Self::Numeric(_) => 4,
            Self::Float4 => 5,
            Self::Float8 => 6,
            _ => 0,
        }
    }

    /// Returns the type in which values of two types are compared or joined.
    pub(crate) fn common(self, other: Self) -> Option<Self> {
        match (self.unrounded(), other.unrounded()) {
            (one, other) if one == other => Some(one),
            (Self::Unknown, known) | (known, Self::Unknown) => Some(known),
            (Self::Numeric(_), Self::Numeric(_)) => Some(Self::Numeric(None)),
            (one, other) if one.is_number() && other.is_number() => {
                Some(match if one.rank() > other.rank() { one } else { other } {
                    Self::Numeric(_) => Self::Numeric(None),
                    // An operator of a float and another number is that of the longer floats.
                    Self::Float4 => Self::Float8,
                    higher => higher,
                })
            }
            (Self::Char(_), Self::Char(_)) => Some(Self::Char(u32::MAX)),
            (one, other) if one.is_oid() && other.is_oid() => Some(Self::Oid),
            (one, other) | (other, one) if one.is_oid() && other.is_integer() => Some(Self::Oid),
            (Self::OneByte, other) | (other, Self::OneByte) if other.is_text() => Some(Self::Text),
            (one, other) if one.is_text() && other.is_text() => Some(Self::Text),
            (one, other) if one.is_network() && other.is_network() => Some(Self::Inet),
            (one, other) if one.is_moment() && other.is_moment() => {
                let zoned = one == Self::TimestampTz || other == Self::TimestampTz;
                Some(if zoned { Self::TimestampTz } else { Self::Timestamp })
            }
            (Self::TimeOfDay, wider @ (Self::TimeTz | Self::Interval))
            | (wider @ (Self::TimeTz | Self::Interval), Self::TimeOfDay) => Some(wider),
            _ => None,
        }
    }
}

impl Interval {
    /// Returns its microseconds, with months of 30 days.
    pub(crate) fn length(self) -> i128 {
        let days = i128::from(self.months) * 30 + i128::from(self.days);
        days * i128::from(time::DAY) + i128::from(self.microseconds)
    }
}

impl Value {
    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Compares two values of one type; NULL is the highest, as in an ordering.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Null, Self::Null) => Ordering::Equal,
            (Self::Null, _) => Ordering::Greater,
            (_, Self::Null) => Ordering::Less,
            (Self::Bool(one), Self::Bool(other)) => one.cmp(other),
            (Self::Int(one), Self::Int(other)) => one.cmp(other),
            (Self::Float(one), Self::Float(other)) => match one.partial_cmp(other) {
                Some(order) => order,
                // NaN is above all other numbers.
                None => one.is_nan().cmp(&other.is_nan()),
            },
            (Self::Numeric(one), Self::Numeric(other)) => one.compare(other),
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            (Self::Text(_) | Self::Padded(_), Self::Text(_) | Self::Padded(_)) => {
                self.unpadded().cmp(other.unpadded())
            }
            (Self::Bytes(one), Self::Bytes(other)) => one.cmp(other),
            (Self::Date(one), Self::Date(other)) => one.cmp(other),
            (Self::Time(one), Self::Time(other)) => one.cmp(other),
            (Self::Interval(one), Self::Interval(other)) => one.length().cmp(&other.length()),
            (Self::Array(one), Self::Array(other)) => one.compare(other),
            (Self::Json(one), Self::Json(other)) if one == other => Ordering::Equal,
            (Self::Json(one), Self::Json(other)) => match (json::parse(one), json::parse(other)) {
                (Ok(one), Ok(other)) => one.compare(&other),
                _ => one.cmp(other),
            },
            // The binder compares values of one type only.
            _ => Ordering::Equal,
        }
    }

    /// Returns the text of a value, without the blanks that do not count.
    pub(crate) fn unpadded(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Padded(text) => text.trim_end_matches(' '),
            _ => "",
        }
    }

    /// Converts a value from one type to another, as an assignment or a cast does.
    pub(crate) fn cast(self, from: Type, to: Type, is_explicit: bool) -> Result<Self> {
        let (from, to) = (from.base(), to.base());
        if matches!(from, Type::Rounded(..)) || matches!(to, Type::Rounded(..)) {
            return self.cast(from.unrounded(), to.unrounded(), is_explicit)?.fit(to, is_explicit);
        }
        let cannot = || error!(CANNOT_COERCE, "cannot cast type {} to {}", from.name(), to.name());
        let value = match (self, to) {
            (Self::Null, _) => return Ok(Self::Null),
            (padded @ Self::Padded(_), Type::Char(u32::MAX)) => padded,
            (padded @ Self::Padded(_), _) => {
                return Self::Text(padded.unpadded().to_owned()).cast(from, to, is_explicit);
            }
            (text @ Self::Text(_), Type::Char(u32::MAX)) if matches!(from, Type::Char(_)) => {
                Self::Text(text::print(&text, from))
            }
            (value, _) if from == to => value,
            (Self::Int(_), to) if matches!(from, Type::Enum(_)) && !to.is_text() => return Err(cannot()),
            (Self::Text(text), _) if from == Type::Unknown && to.is_text() => Self::Text(text),
            (Self::Text(text), _) if from == Type::Unknown || from.is_text() && !to.is_text() => {
                return text::parse(&text, to);
            }
            (Self::Int(number), Type::Int2 | Type::Int4 | Type::Int8) => Self::Int(number),
            (Self::Int(number), to) if to.is_oid() => Self::Int(number),
            (Self::Int(number), Type::Float4 | Type::Float8) => Self::Float(number as f64),
            (Self::Int(number), Type::Numeric(_)) => Self::Numeric(Numeric::from_int(number)),
            (Self::Int(number), Type::Bool) if from == Type::Int4 => Self::Bool(number != 0),
            (Self::Bool(value), Type::Int4) => Self::Int(value.into()),
            (Self::Float(number), Type::Int2 | Type::Int4 | Type::Int8) => {
                let rounded = number.round_ties_even();
                if !(rounded >= -(2f64.powi(63)) && rounded < 2f64.powi(63)) {
                    return Err(out_of_range(to));
                }
                Self::Int(rounded as i64)
            }
            (Self::Float(number), Type::Float4 | Type::Float8) => Self::Float(number),
            (Self::Float(number), Type::Numeric(_)) => {
                Self::Numeric(Numeric::from_float(number, if from == Type::Float4 { 6 } else { 15 })?)
            }
            (Self::Numeric(number), Type::Int2 | Type::Int4 | Type::Int8) => {
                Self::Int(number.to_int().ok_or_else(|| out_of_range(to))?)
            }
            (Self::Numeric(number), Type::Float4 | Type::Float8) => Self::Float(number.to_float()),
            (Self::Numeric(number), Type::Numeric(_)) => Self::Numeric(number),
            (Self::Date(day), Type::Timestamp) => Self::Time(time::moment_of_date(day)?),
            (Self::Date(day), Type::TimestampTz) => {
                Self::Time(Zone::current().to_moment(time::moment_of_date(day)?)?)
            }
            (Self::Time(moment), Type::Date) if from == Type::TimestampTz => {
                Self::Date(time::date_of_moment(Zone::current().to_local(moment)))
            }
            (Self::Time(moment), Type::Date) if from.is_moment() => Self::Date(time::date_of_moment(moment)),
            (Self::Time(moment), Type::TimeOfDay | Type::TimeTz) if time::is_infinite(moment) => Self::Null,
            (Self::Time(of_day), Type::Interval) if from == Type::TimeOfDay => {
                Self::Interval(Interval { microseconds: of_day, ..Interval::default() })
            }
            (Self::Interval(span), Type::TimeOfDay) => Self::Time(span.microseconds.rem_euclid(time::DAY)),
            (Self::Time(value), to) if time::convert(value, from, to).is_some() => {
                time::convert(value, from, to).map_or(Ok(Self::Null), |moved| moved.map(Self::Time))?
            }
            (Self::Json(text), Type::Json) => Self::Text(text),
            (Self::Text(text), Type::Jsonb) if from == Type::Json => return text::parse(&text, to),
            (Self::Json(text), to) if to.is_number() || to == Type::Bool => json_scalar(&text, to)?,
            (Self::Array(mut array), Type::Array(_)) => {
                let (one, other) = (from.element().unwrap_or(from), to.element().unwrap_or(to));
                for value in &mut array.values {
                    *value = std::mem::replace(value, Self::Null).cast(one, other, is_explicit)?;
                }
                Self::Array(array)
            }
            (Self::Bytes(bytes), to) if from.is_network() && (to.is_network() || to.is_text()) => {
                match (Network::of(&bytes), to) {
                    (None, _) => Self::Null,
                    (Some(network), Type::Cidr) => network.network().value(),
                    (Some(network), Type::Inet) => network.value(),
                    (Some(network), _) => Self::Text(network.whole()),
                }
            }
            (Self::Bytes(bytes), Type::Bytea) if from == Type::Bytea => Self::Bytes(bytes),
            (Self::Text(text), to) if to.is_text() => Self::Text(text),
            (Self::Bool(value), to) if to.is_text() => Self::Text(value.to_string()),
            (Self::Text(text), Type::OneByte) => Self::Text(text.chars().take(1).collect()),
            (value, to) if to.is_text() => Self::Text(text::print(&value, from)),
            _ => return Err(cannot()),
        };
        value.fit(to, is_explicit)
    }

    /// Checks the limits of a type, and rounds to its digits.
    pub(crate) fn fit(self, to: Type, is_explicit: bool) -> Result<Self> {
        let to = to.base();
        match (self, to) {
            (Self::Time(packed), Type::Rounded(Clock::TimeTz, digits)) => {
                let (of_day, west) = time::unpack_zoned(packed);
                Ok(Self::Time(time::pack_zoned(time::rounded(of_day, digits), west)))
            }
            (Self::Time(micros), Type::Rounded(_, digits)) => Ok(Self::Time(time::rounded(micros, digits))),
            (Self::Interval(span), Type::Rounded(_, digits)) => {
                let microseconds = time::rounded(span.microseconds, digits);
                Ok(Self::Interval(Interval { microseconds, ..span }))
            }
            (Self::Int(number), to) if to.is_oid() && u32::try_from(number).is_err() => {
                Err(out_of_range(Type::Oid))
            }
            (Self::Text(text), Type::Name) if text.len() > 63 => {
                let end = (0..=63).rev().find(|end| text.is_char_boundary(*end));
                Ok(Self::Text(text[..end.unwrap_or(0)].to_owned()))
            }
            (Self::Int(number), Type::Int2) if i16::try_from(number).is_err() => Err(out_of_range(to)),
            (Self::Int(number), Type::Int4) if i32::try_from(number).is_err() => Err(out_of_range(to)),
            (Self::Float(number), Type::Float4) => {
                let rounded = f64::from(number as f32);
                let lost = match rounded {
                    rounded if rounded.is_infinite() && number.is_finite() => "overflow",
                    0.0 if number != 0.0 => "underflow",
                    _ => return Ok(Self::Float(rounded)),
                };
                Err(error!(NUMERIC_OUT_OF_RANGE, "value out of range: {lost}"))
            }
            (Self::Numeric(number), Type::Numeric(Some((digits, scale)))) => {
                Ok(Self::Numeric(number.rounded(scale)?.within(digits, scale)?))
            }
            (Self::Text(text), Type::Char(u32::MAX)) if text.ends_with(' ') => Ok(Self::Padded(text)),
            (Self::Text(mut text), Type::Char(most) | Type::Varchar(Some(most))) => {
                if matches!(to, Type::Char(_)) {
                    text.truncate(text.trim_end_matches(' ').len());
                }
                let Some((end, _)) = text.char_indices().nth(most as usize) else {
                    return Ok(Self::Text(text));
                };
                if !is_explicit && !text[end..].bytes().all(|byte| byte == b' ') {
                    fail!(STRING_RIGHT_TRUNCATION, "value too long for type {}({most})", to.name());
                }
                text.truncate(end);
                Ok(Self::Text(text))
            }
            (value, _) => Ok(value),
        }
    }
}

/// Returns the number or the truth value of a text of jsonb.
fn json_scalar(text: &str, to: Type) -> Result<Value> {
    let kind = match json::parse(text)? {
        json::Json::Bool(value) if to == Type::Bool => return Ok(Value::Bool(value)),
        json::Json::Number(number) if to != Type::Bool => {
            return Value::Numeric(Numeric::parse(&number)?).cast(Type::Numeric(None), to, true);
        }
        json::Json::Null => "null",
        json::Json::Bool(_) => "boolean",
        json::Json::Number(_) => "numeric",
        json::Json::Text(_) => "string",
        json::Json::Array(_) => "array",
        json::Json::Object(_) => "object",
    };
    Err(error!(INVALID_PARAMETER_VALUE, "cannot cast jsonb {kind} to type {}", to.name()))
}

pub(crate) fn out_of_range(of: Type) -> SqlError {
    SqlError::new(code::NUMERIC_OUT_OF_RANGE, format!("{} out of range", of.name()))
}
