//! The operators that are no comparisons, apart from those of any arrays: what they take and what
//! they do. NULL as an operand gives NULL.

pub(crate) mod json;
pub(crate) mod text;
pub(crate) mod time;

use self::{json::*, text::*, time::*};
use crate::{
    error::{Result, SqlError, code},
    expr::Act,
    functions::mathematics::{abs, sqrt},
    types::Type,
};

/// An operator with a left operand, unless it is a prefix.
pub(crate) struct Operator {
    pub(crate) name: &'static str,
    pub(crate) left: Option<Type>,
    pub(crate) right: Type,
    pub(crate) result: Type,
    pub(crate) act: Act,
}

const fn of(name: &'static str, left: Type, right: Type, result: Type, act: Act) -> Operator {
    Operator { name, left: Some(left), right, result, act }
}

const fn prefix(name: &'static str, right: Type, result: Type, act: Act) -> Operator {
    Operator { name, left: None, right, result, act }
}

use Type::{
    Bool, Bytea, Date, Float4, Float8, Inet, Int2, Int4, Int8, Json, Jsonb, Text, TimeOfDay, TimeTz,
    Timestamp, TimestampTz,
};

const TEXTS: Type = Type::Array(&Type::Text);

static OPERATORS: &[Operator] = &[
    of("+", Date, Int4, Date, |all| date_and_days(&all[0], &all[1], 1)),
    of("+", Int4, Date, Date, |all| date_and_days(&all[1], &all[0], 1)),
    of("-", Date, Int4, Date, |all| date_and_days(&all[0], &all[1], -1)),
    of("-", Date, Date, Int4, between_dates),
    of("+", Date, Type::Interval, Timestamp, |all| moment_and_span(&all[0], &all[1], false)),
    of("+", Type::Interval, Date, Timestamp, |all| moment_and_span(&all[1], &all[0], false)),
    of("-", Date, Type::Interval, Timestamp, |all| moment_and_span(&all[0], &all[1], true)),
    of("+", Date, TimeOfDay, Timestamp, |all| date_and_time(&all[0], &all[1])),
    of("+", TimeOfDay, Date, Timestamp, |all| date_and_time(&all[1], &all[0])),
    of("+", Date, TimeTz, TimestampTz, |all| date_and_zoned(&all[0], &all[1])),
    of("+", TimeTz, Date, TimestampTz, |all| date_and_zoned(&all[1], &all[0])),
    of("+", Timestamp, Type::Interval, Timestamp, |all| moment_and_span(&all[0], &all[1], false)),
    of("+", Type::Interval, Timestamp, Timestamp, |all| moment_and_span(&all[1], &all[0], false)),
    of("-", Timestamp, Type::Interval, Timestamp, |all| moment_and_span(&all[0], &all[1], true)),
    of("-", Timestamp, Timestamp, Type::Interval, between_moments),
    of("+", TimestampTz, Type::Interval, TimestampTz, |all| zoned_moment_and_span(&all[0], &all[1], false)),
    of("+", Type::Interval, TimestampTz, TimestampTz, |all| zoned_moment_and_span(&all[1], &all[0], false)),
    of("-", TimestampTz, Type::Interval, TimestampTz, |all| zoned_moment_and_span(&all[0], &all[1], true)),
    of("-", TimestampTz, TimestampTz, Type::Interval, between_moments),
    of("+", TimeOfDay, Type::Interval, TimeOfDay, |all| time_and_span(&all[0], &all[1], false)),
    of("+", Type::Interval, TimeOfDay, TimeOfDay, |all| time_and_span(&all[1], &all[0], false)),
    of("-", TimeOfDay, Type::Interval, TimeOfDay, |all| time_and_span(&all[0], &all[1], true)),
    of("-", TimeOfDay, TimeOfDay, Type::Interval, between_times),
    of("+", TimeTz, Type::Interval, TimeTz, |all| zoned_and_span(&all[0], &all[1], false)),
    of("+", Type::Interval, TimeTz, TimeTz, |all| zoned_and_span(&all[1], &all[0], false)),
    of("-", TimeTz, Type::Interval, TimeTz, |all| zoned_and_span(&all[0], &all[1], true)),
    of("+", Type::Interval, Type::Interval, Type::Interval, |all| spans(all, false)),
    of("-", Type::Interval, Type::Interval, Type::Interval, |all| spans(all, true)),
    of("*", Type::Interval, Float8, Type::Interval, |all| span_and_number(&all[0], &all[1], false)),
    of("*", Float8, Type::Interval, Type::Interval, |all| span_and_number(&all[1], &all[0], false)),
    of("/", Type::Interval, Float8, Type::Interval, |all| span_and_number(&all[0], &all[1], true)),
    prefix("-", Type::Interval, Type::Interval, negative),
    of("&", Int2, Int2, Int2, |all| bits(all, |one, other| one & other)),
    of("&", Int4, Int4, Int4, |all| bits(all, |one, other| one & other)),
    of("&", Int8, Int8, Int8, |all| bits(all, |one, other| one & other)),
    of("|", Int2, Int2, Int2, |all| bits(all, |one, other| one | other)),
    of("|", Int4, Int4, Int4, |all| bits(all, |one, other| one | other)),
    of("|", Int8, Int8, Int8, |all| bits(all, |one, other| one | other)),
    of("#", Int2, Int2, Int2, |all| bits(all, |one, other| one ^ other)),
    of("#", Int4, Int4, Int4, |all| bits(all, |one, other| one ^ other)),
    of("#", Int8, Int8, Int8, |all| bits(all, |one, other| one ^ other)),
    // A count of bits is taken as the processor takes it; only the low ones of the result stay.
    of("<<", Int2, Int4, Int2, |all| bits(all, |one, by| ((one as i32) << (by & 31)) as i16 as i64)),
    of("<<", Int4, Int4, Int4, |all| bits(all, |one, by| ((one as i32) << (by & 31)) as i64)),
    of("<<", Int8, Int4, Int8, |all| bits(all, |one, by| one << (by & 63))),
    of(">>", Int2, Int4, Int2, |all| bits(all, |one, by| ((one as i32) >> (by & 31)) as i64)),
    of(">>", Int4, Int4, Int4, |all| bits(all, |one, by| ((one as i32) >> (by & 31)) as i64)),
    of(">>", Int8, Int4, Int8, |all| bits(all, |one, by| one >> (by & 63))),
    prefix("~", Int2, Int2, |all| bits_of_one(all, |one| !one)),
    prefix("~", Int4, Int4, |all| bits_of_one(all, |one| !one)),
    prefix("~", Int8, Int8, |all| bits_of_one(all, |one| !one)),
    of("^", Float8, Float8, Float8, power),
    of("^", Type::Numeric(None), Type::Numeric(None), Type::Numeric(None), power),
    prefix("|/", Float8, Float8, |all| root(all, sqrt)),
    prefix("||/", Float8, Float8, |all| root(all, |number| Ok(number.cbrt().into()))),
    prefix("@", Int2, Int2, |all| abs(&all[0], Int2)),
    prefix("@", Int4, Int4, |all| abs(&all[0], Int4)),
    prefix("@", Int8, Int8, |all| abs(&all[0], Int8)),
    prefix("@", Float4, Float4, |all| abs(&all[0], Float4)),
    prefix("@", Float8, Float8, |all| abs(&all[0], Float8)),
    prefix("@", Type::Numeric(None), Type::Numeric(None), |all| abs(&all[0], Float8)),
    of("<<", Inet, Inet, Bool, |all| {
        networks(all, |one, other| other.bits < one.bits && other.contains(one))
    }),
    of("<<=", Inet, Inet, Bool, |all| networks(all, |one, other| other.contains(one))),
    of(">>", Inet, Inet, Bool, |all| {
        networks(all, |one, other| one.bits < other.bits && one.contains(other))
    }),
    of(">>=", Inet, Inet, Bool, |all| networks(all, |one, other| one.contains(other))),
    of("&&", Inet, Inet, Bool, |all| networks(all, |one, other| one.contains(other) || other.contains(one))),
    of("||", Bytea, Bytea, Bytea, join_bytes),
    of("~", Text, Text, Bool, |all| matches(all, false, true)),
    of("~*", Text, Text, Bool, |all| matches(all, true, true)),
    of("!~", Text, Text, Bool, |all| matches(all, false, false)),
    of("!~*", Text, Text, Bool, |all| matches(all, true, false)),
    of("~~", Text, Text, Bool, |all| is_like(all, false, true)),
    of("~~*", Text, Text, Bool, |all| is_like(all, true, true)),
    of("!~~", Text, Text, Bool, |all| is_like(all, false, false)),
    of("!~~*", Text, Text, Bool, |all| is_like(all, true, false)),
    of("^@", Text, Text, Bool, starts_with),
    of("->", Json, Text, Json, |all| json_part(all, false)),
    of("->", Json, Int4, Json, |all| json_part(all, false)),
    of("->>", Json, Text, Text, |all| json_part(all, true)),
    of("->>", Json, Int4, Text, |all| json_part(all, true)),
    of("#>", Json, TEXTS, Json, |all| json_path(all, false)),
    of("#>>", Json, TEXTS, Text, |all| json_path(all, true)),
    of("->", Jsonb, Text, Jsonb, |all| jsonb_part(all, false)),
    of("->", Jsonb, Int4, Jsonb, |all| jsonb_part(all, false)),
    of("->>", Jsonb, Text, Text, |all| jsonb_part(all, true)),
    of("->>", Jsonb, Int4, Text, |all| jsonb_part(all, true)),
    of("#>", Jsonb, TEXTS, Jsonb, |all| jsonb_path(all, false)),
    of("#>>", Jsonb, TEXTS, Text, |all| jsonb_path(all, true)),
    of("@>", Jsonb, Jsonb, Bool, |all| jsonb_contains(&all[0], &all[1])),
    of("<@", Jsonb, Jsonb, Bool, |all| jsonb_contains(&all[1], &all[0])),
    of("?", Jsonb, Text, Bool, jsonb_has),
    of("?|", Jsonb, TEXTS, Bool, |all| jsonb_has_of(all, false)),
    of("?&", Jsonb, TEXTS, Bool, |all| jsonb_has_of(all, true)),
    of("||", Jsonb, Jsonb, Jsonb, jsonb_join),
    of("-", Jsonb, Text, Jsonb, jsonb_without),
    of("-", Jsonb, TEXTS, Jsonb, jsonb_without),
    of("-", Jsonb, Int4, Jsonb, jsonb_without),
    of("#-", Jsonb, TEXTS, Jsonb, jsonb_without_path),
];

/// Returns whether there is an operator with a name.
pub(crate) fn is_known(name: &str) -> bool {
    OPERATORS.iter().any(|operator| operator.name == name) || name == "&&"
}

/// Returns the operator for operands of these types, by PostgreSQL's rules: one that takes exactly
/// them, where a literal is taken for a value of the other type; else the one for which the fewest
/// operands are converted, to the preferred type of their kind, and literals are texts.
///
/// # Errors
/// Several operators are equally good.
pub(crate) fn find(name: &str, left: Option<Type>, right: Type) -> Result<Option<&'static Operator>> {
    let named = || {
        OPERATORS.iter().filter(|operator| operator.name == name && operator.left.is_some() == left.is_some())
    };
    let (left, right) = (left.map(Type::without_limits), right.without_limits());
    let exact = match (left, right) {
        (Some(Type::Unknown), right) => (Some(right), right),
        (Some(left), Type::Unknown) => (Some(left), left),
        both => both,
    };
    if let Some(found) = named().find(|operator| (operator.left, operator.right) == exact) {
        return Ok(Some(found));
    }
    let pairs =
        |operator: &'static Operator| left.zip(operator.left).into_iter().chain([(right, operator.right)]);
    let takes = |(given, wanted): (Type, Type)| {
        given == wanted || given == Type::Unknown || given.converts_to(wanted)
    };
    let merits = |operator: &'static Operator| {
        let exact = pairs(operator).filter(|(given, wanted)| given == wanted).count();
        let preferred = pairs(operator).filter(|(given, wanted)| {
            *wanted == Float8 && given.is_number()
                || *wanted == TimestampTz && matches!(given, Date | Timestamp)
        });
        let texts = pairs(operator).filter(|(given, wanted)| *given == Type::Unknown && *wanted == Text);
        (exact, preferred.count(), texts.count())
    };
    let candidates: Vec<&Operator> = named().filter(|operator| pairs(operator).all(takes)).collect();
    let best = candidates.iter().map(|operator| merits(operator)).max();
    let best: Vec<&Operator> =
        candidates.into_iter().filter(|operator| Some(merits(operator)) == best).collect();
    if let [] | [_] = best[..] {
        return Ok(best.first().copied());
    }
    // A literal may be of the type of the other operand, and become that of the operator.
    let same = if right == Type::Unknown { left } else { Some(right) };
    let becomes = |(given, wanted): (Type, Type)| {
        given != Type::Unknown || same.is_some_and(|same| same == wanted || same.converts_to(wanted))
    };
    let mut likely = best.into_iter().filter(|operator| pairs(operator).all(becomes));
    match (likely.next(), likely.next()) {
        (Some(found), None) if left == Some(Type::Unknown) || right == Type::Unknown => Ok(Some(found)),
        _ => {
            let left = left.map_or(String::new(), |left| format!("{} ", left.name()));
            let message = format!("operator is not unique: {left}{name} {}", right.name());
            Err(SqlError::new(code::AMBIGUOUS_FUNCTION, message))
        }
    }
}
