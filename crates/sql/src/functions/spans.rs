//! Operators of dates, times and spans, and the functions of zones (chapter 9.9 of PostgreSQL's
//! manual).

use super::{Call, Declared, function, ok};
use crate::{
    error::{Result, SqlError, code, fail},
    types::{Interval, Type, Value, time, zone::Zone},
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("+(date, int4) date", date_and_days),
    function("-(date, date) int4", between_dates),
    function("+(date, time) timestamp", |call| date_and_time(call.date(0), call.time(1))),
    function("+(date, timetz) timestamptz", |call| {
        let (of_day, west) = time::unpack_zoned(call.time(1));
        date_and_time(call.date(0), of_day + west * time::SECOND)
    }),
    function("+(date/timestamp, interval) timestamp", |call| {
        let moment = match call.types[0] {
            Type::Date => time::moment_of_date(call.date(0))?,
            _ => call.time(0),
        };
        Ok(Value::Time(time::add(moment, call.span(1))?))
    }),
    function("+(timestamptz, interval) timestamptz stable", |call| {
        Ok(Value::Time(time::add_zoned(call.time(0), call.span(1))?))
    }),
    function("-(timestamp/timestamptz, timestamp/timestamptz) interval", |call| {
        ok(time::between(call.time(0), call.time(1))?)
    }),
    function("+(time, interval) time", |call| Ok(Value::Time(after(call.time(0), call.span(1))))),
    function("-(time, time) interval", |call| {
        ok(Interval { microseconds: call.time(0) - call.time(1), ..Interval::default() })
    }),
    function("+(timetz, interval) timetz", |call| {
        let (of_day, west) = time::unpack_zoned(call.time(0));
        Ok(Value::Time(time::pack_zoned(after(of_day, call.span(1)), west)))
    }),
    function("+(interval, interval) interval", |call| ok(call.span(0).add(call.span(1))?)),
    function("*(interval, float8) interval", |call| ok(call.span(0).multiplied(call.float(1))?)),
    function("/(interval, float8) interval", |call| ok(call.span(0).divided(call.float(1))?)),
    function("-(interval) interval", |call| ok(call.span(0).negative()?)),
    function("timezone(interval/text, timestamp) timestamptz", from_zone),
    function("timezone(interval/text, timestamptz) timestamp", at_zone),
    function("timezone(interval/text, timetz) timetz", zoned_at_zone),
];

fn date_and_days(call: &Call<'_>) -> Result<Value> {
    let (date, days) = (call.date(0), call.int(1));
    match time::is_infinite_date(date) {
        true => Ok(Value::Date(date)),
        false => Ok(Value::Date(time::checked_date(i64::from(date) + days)?)),
    }
}

fn between_dates(call: &Call<'_>) -> Result<Value> {
    let (one, other) = (call.date(0), call.date(1));
    if time::is_infinite_date(one) || time::is_infinite_date(other) {
        return Err(SqlError::new(code::DATETIME_OUT_OF_RANGE, "cannot subtract infinite dates"));
    }
    ok(i64::from(one) - i64::from(other))
}

fn date_and_time(date: i32, of_day: i64) -> Result<Value> {
    let moment = time::moment_of_date(date)?;
    match time::is_infinite(moment) {
        true => Ok(Value::Time(moment)),
        false => Ok(Value::Time(time::checked_moment(i128::from(moment) + i128::from(of_day))?)),
    }
}

/// Returns the time of day after a span, in which days mean nothing.
fn after(of_day: i64, span: Interval) -> i64 {
    (of_day + span.microseconds.rem_euclid(time::DAY)).rem_euclid(time::DAY)
}

/// Returns the seconds in the east of UTC that a span means as a zone.
pub(crate) fn offset_of_span(span: &Interval) -> Result<i64> {
    if span.months != 0 || span.days != 0 {
        fail!(INVALID_PARAMETER_VALUE, "interval time zone must not include months or days");
    }
    Ok(span.microseconds / time::SECOND)
}

/// Moves a moment that is not infinite.
fn moved(moment: i64, east: i64) -> Result<i64> {
    match time::is_infinite(moment) {
        true => Ok(moment),
        false => time::checked_moment(i128::from(moment) + i128::from(east) * i128::from(time::SECOND)),
    }
}

/// Converts a moment to the time of a zone.
fn at_zone(call: &Call<'_>) -> Result<Value> {
    let moment = call.time(1);
    Ok(Value::Time(match call.types[0] {
        Type::Interval => moved(moment, offset_of_span(&call.span(0))?)?,
        _ => Zone::of_value(call.text(0))?.to_local(moment),
    }))
}

/// Converts the time of a zone to a moment.
fn from_zone(call: &Call<'_>) -> Result<Value> {
    let local = call.time(1);
    Ok(Value::Time(match call.types[0] {
        Type::Interval => moved(local, -offset_of_span(&call.span(0))?)?,
        _ => Zone::of_value(call.text(0))?.to_moment(local)?,
    }))
}

/// Gives a time of day another offset from UTC.
fn zoned_at_zone(call: &Call<'_>) -> Result<Value> {
    let east = match call.types[0] {
        Type::Interval => call.span(0).microseconds / time::SECOND,
        _ => Zone::of_value(call.text(0))?.offset_at(time::now()),
    };
    let (of_day, west) = time::unpack_zoned(call.time(1));
    let moved = i128::from(of_day) + i128::from(west + east) * i128::from(time::SECOND);
    let zoned = time::zoned(moved.rem_euclid(i128::from(time::DAY)) as i64, -east);
    let out = || SqlError::new(code::INVALID_PARAMETER_VALUE, "interval time zone is out of range");
    zoned.map(Value::Time).ok_or_else(out)
}
