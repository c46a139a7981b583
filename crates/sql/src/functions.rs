//! The functions of SQL: one table of names, arguments, results and what they do.

use crate::{
    catalog::SessionPlace,
    dml::foreign::Constraints,
    error::{Result, SqlError, code},
    sequences::Drawn,
    system::Definitions,
    types::{Type, Value, numeric::Numeric, time},
};

/// The facts about a session that functions need.
#[derive(Debug)]
pub(crate) struct Context {
    /// The time of the transaction's begin, in microseconds from 2000-01-01.
    pub(crate) begun: i64,
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) process: i32,
    pub(crate) sequences: Drawn,
    pub(crate) constraints: Constraints,
    /// The database and the role.
    pub(crate) place: SessionPlace,
    pub(crate) definitions: Definitions,
}

/// A function. NULL as an argument gives NULL.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static [Type],
    pub(crate) result: Type,
    pub(crate) act: fn(&[Value], &Context) -> Result<Value>,
}

const NUMERIC: Type = Type::Numeric(None);

/// All functions. Those of one name are tried in this order.
static FUNCTIONS: &[Function] = &[
    Function { name: "abs", arguments: &[Type::Int4], result: Type::Int4, act: abs },
    Function { name: "abs", arguments: &[Type::Int8], result: Type::Int8, act: abs },
    Function { name: "abs", arguments: &[NUMERIC], result: NUMERIC, act: abs },
    Function { name: "abs", arguments: &[Type::Float4], result: Type::Float4, act: abs },
    Function { name: "abs", arguments: &[Type::Float8], result: Type::Float8, act: abs },
    Function {
        name: "current_database",
        arguments: &[],
        result: Type::Text,
        act: |_, on| text(&on.database),
    },
    Function { name: "current_schema", arguments: &[], result: Type::Text, act: |_, _| text("public") },
    Function { name: "current_user", arguments: &[], result: Type::Text, act: |_, on| text(&on.user) },
    Function { name: "gen_random_uuid", arguments: &[], result: Type::Uuid, act: |_, _| random_uuid() },
    Function {
        name: "lastval",
        arguments: &[],
        result: Type::Int8,
        act: |_, on| on.sequences.last().map(Value::Int),
    },
    Function { name: "length", arguments: &[Type::Text], result: Type::Int4, act: length },
    Function {
        name: "lower",
        arguments: &[Type::Text],
        result: Type::Text,
        act: |all, _| text(&of(all).to_lowercase()),
    },
    Function { name: "mod", arguments: &[Type::Int8, Type::Int8], result: Type::Int8, act: modulo },
    Function {
        name: "now",
        arguments: &[],
        result: Type::TimestampTz,
        act: |_, on| Ok(Value::Time(on.begun)),
    },
    Function {
        name: "pg_backend_pid",
        arguments: &[],
        result: Type::Int4,
        act: |_, on| Ok(Value::Int(on.process.into())),
    },
    Function {
        name: "pg_is_in_recovery",
        arguments: &[],
        result: Type::Bool,
        act: |_, _| Ok(Value::Bool(false)),
    },
    Function {
        name: "clock_timestamp",
        arguments: &[],
        result: Type::TimestampTz,
        act: |_, _| Ok(Value::Time(time::now())),
    },
    Function { name: "random", arguments: &[], result: Type::Float8, act: |_, _| random() },
    Function { name: "repeat", arguments: &[Type::Text, Type::Int4], result: Type::Text, act: repeat },
    Function { name: "session_user", arguments: &[], result: Type::Text, act: |_, on| text(&on.user) },
    Function { name: "substr", arguments: &[Type::Text, Type::Int4], result: Type::Text, act: substring },
    Function {
        name: "substr",
        arguments: &[Type::Text, Type::Int4, Type::Int4],
        result: Type::Text,
        act: substring,
    },
    Function {
        name: "upper",
        arguments: &[Type::Text],
        result: Type::Text,
        act: |all, _| text(&of(all).to_uppercase()),
    },
    Function { name: "version", arguments: &[], result: Type::Text, act: |_, _| text(VERSION) },
];

/// The most bytes of a result of `repeat`.
const MOST_REPEATED: usize = 64 << 20;

/// The text of `version()`.
const VERSION: &str = concat!("Plexus ", env!("CARGO_PKG_VERSION"), ", compatible with PostgreSQL 15.0");

/// Returns the function of a name that takes these arguments.
pub(crate) fn find(name: &str, arguments: &[Type]) -> Option<&'static Function> {
    let takes = |function: &&Function, exactly: bool| {
        let fits = |(given, wanted): (&Type, &Type)| match exactly {
            true => given == wanted,
            false => given == wanted || given.common(*wanted) == Some(*wanted),
        };
        function.name == name
            && function.arguments.len() == arguments.len()
            && arguments.iter().zip(function.arguments).all(fits)
    };
    let find = |exactly| FUNCTIONS.iter().find(|function| takes(function, exactly));
    find(true).or_else(|| find(false))
}

fn text(text: &str) -> Result<Value> {
    Ok(Value::Text(text.to_owned()))
}

fn of(all: &[Value]) -> &str {
    match all.first() {
        Some(Value::Text(text)) => text,
        _ => "",
    }
}

fn repeat(all: &[Value], _: &Context) -> Result<Value> {
    let count = match all.get(1) {
        Some(Value::Int(count)) => usize::try_from(*count).unwrap_or(0),
        _ => 0,
    };
    let one = of(all);
    match one.len().checked_mul(count).filter(|bytes| *bytes <= MOST_REPEATED) {
        Some(_) => text(&one.repeat(count)),
        None => Err(SqlError::new("54000", "requested length too large")),
    }
}

fn abs(all: &[Value], _: &Context) -> Result<Value> {
    Ok(match &all[0] {
        Value::Int(number) => Value::Int(
            number
                .checked_abs()
                .ok_or_else(|| SqlError::new(code::NUMERIC_OUT_OF_RANGE, "bigint out of range"))?,
        ),
        Value::Float(number) => Value::Float(number.abs()),
        Value::Numeric(number) => Value::Numeric(Numeric { digits: number.digits.abs(), ..*number }),
        other => other.clone(),
    })
}

fn length(all: &[Value], _: &Context) -> Result<Value> {
    Ok(Value::Int(of(all).chars().count() as i64))
}

fn modulo(all: &[Value], _: &Context) -> Result<Value> {
    match all {
        [Value::Int(_), Value::Int(0)] => Err(SqlError::new(code::DIVISION_BY_ZERO, "division by zero")),
        [Value::Int(one), Value::Int(other)] => Ok(Value::Int(one.wrapping_rem(*other))),
        _ => Ok(Value::Null),
    }
}

/// Returns a number from 0 to 1 that is different each time; it is no secret.
fn random() -> Result<Value> {
    use std::hash::{BuildHasher, RandomState};
    let bits = RandomState::new().hash_one(0) >> 11;
    Ok(Value::Float(bits as f64 / (1u64 << 53) as f64))
}

/// Returns a uuid of version 4.
fn random_uuid() -> Result<Value> {
    use ring::rand::{SecureRandom, SystemRandom};
    let mut bytes = [0; 16];
    let failed = |_| SqlError::new(code::SYSTEM_ERROR, "the system gives no random bytes");
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(Value::Bytes(bytes.to_vec()))
}

fn substring(all: &[Value], _: &Context) -> Result<Value> {
    let number = |at: usize| match all.get(at) {
        Some(Value::Int(number)) => Some(*number),
        _ => None,
    };
    let from = number(1).unwrap_or(1);
    let end = match number(2) {
        Some(..0) => return Err(SqlError::new("22011", "negative substring length not allowed")),
        Some(count) => from.saturating_add(count),
        None => i64::MAX,
    };
    let chars = (1..).zip(of(all).chars()).filter(|(at, _)| (from..end).contains(at));
    Ok(Value::Text(chars.map(|(_, char)| char).collect()))
}
