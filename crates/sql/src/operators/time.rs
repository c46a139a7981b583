//! What operators of dates, moments, times and spans do.

use crate::{
    error::{Result, SqlError, code},
    types::{Interval, Value, time, zone::Zone},
};

pub(super) fn date_and_days(date: &Value, days: &Value, sign: i64) -> Result<Value> {
    let (Value::Date(date), Value::Int(days)) = (date, days) else { return Ok(Value::Null) };
    match time::is_infinite_date(*date) {
        true => Ok(Value::Date(*date)),
        false => Ok(Value::Date(time::checked_date(i64::from(*date) + sign * days)?)),
    }
}

pub(super) fn between_dates(all: &[Value]) -> Result<Value> {
    let [Value::Date(one), Value::Date(other)] = all else { return Ok(Value::Null) };
    if time::is_infinite_date(*one) || time::is_infinite_date(*other) {
        return Err(SqlError::new(code::DATETIME_OUT_OF_RANGE, "cannot subtract infinite dates"));
    }
    Ok(Value::Int(i64::from(*one) - i64::from(*other)))
}

pub(super) fn moment_and_span(moment: &Value, span: &Value, is_before: bool) -> Result<Value> {
    let Value::Interval(span) = span else { return Ok(Value::Null) };
    let span = if is_before { span.negative()? } else { *span };
    match moment {
        Value::Date(day) => Ok(Value::Time(time::add(time::moment_of_date(*day)?, span)?)),
        Value::Time(moment) => Ok(Value::Time(time::add(*moment, span)?)),
        _ => Ok(Value::Null),
    }
}

pub(super) fn zoned_moment_and_span(moment: &Value, span: &Value, is_before: bool) -> Result<Value> {
    let (Value::Time(moment), Value::Interval(span)) = (moment, span) else { return Ok(Value::Null) };
    Ok(Value::Time(time::add_zoned(*moment, if is_before { span.negative()? } else { *span })?))
}

pub(super) fn date_and_time(date: &Value, of_day: &Value) -> Result<Value> {
    let (Value::Date(date), Value::Time(of_day)) = (date, of_day) else { return Ok(Value::Null) };
    let moment = time::moment_of_date(*date)?;
    match time::is_infinite(moment) {
        true => Ok(Value::Time(moment)),
        false => Ok(Value::Time(time::checked_moment(i128::from(moment) + i128::from(*of_day))?)),
    }
}

pub(super) fn date_and_zoned(date: &Value, packed: &Value) -> Result<Value> {
    let Value::Time(packed) = packed else { return Ok(Value::Null) };
    let (of_day, west) = time::unpack_zoned(*packed);
    date_and_time(date, &Value::Time(of_day + west * time::SECOND))
}

pub(super) fn between_moments(all: &[Value]) -> Result<Value> {
    let [Value::Time(one), Value::Time(other)] = all else { return Ok(Value::Null) };
    Ok(Value::Interval(time::between(*one, *other)?))
}

pub(super) fn between_times(all: &[Value]) -> Result<Value> {
    let [Value::Time(one), Value::Time(other)] = all else { return Ok(Value::Null) };
    Ok(Value::Interval(Interval { microseconds: one - other, ..Interval::default() }))
}

/// Returns the time of day after a span, in which days mean nothing.
fn after(of_day: i64, span: &Interval, is_before: bool) -> i64 {
    let span = span.microseconds.rem_euclid(time::DAY);
    (of_day + if is_before { -span } else { span }).rem_euclid(time::DAY)
}

pub(super) fn time_and_span(of_day: &Value, span: &Value, is_before: bool) -> Result<Value> {
    let (Value::Time(of_day), Value::Interval(span)) = (of_day, span) else { return Ok(Value::Null) };
    Ok(Value::Time(after(*of_day, span, is_before)))
}

pub(super) fn zoned_and_span(packed: &Value, span: &Value, is_before: bool) -> Result<Value> {
    let (Value::Time(packed), Value::Interval(span)) = (packed, span) else { return Ok(Value::Null) };
    let (of_day, west) = time::unpack_zoned(*packed);
    Ok(Value::Time(time::pack_zoned(after(of_day, span, is_before), west)))
}

pub(super) fn spans(all: &[Value], is_difference: bool) -> Result<Value> {
    let [Value::Interval(one), Value::Interval(other)] = all else { return Ok(Value::Null) };
    Ok(Value::Interval(one.add(if is_difference { other.negative()? } else { *other })?))
}

pub(super) fn span_and_number(span: &Value, number: &Value, is_quotient: bool) -> Result<Value> {
    let (Value::Interval(span), Value::Float(number)) = (span, number) else { return Ok(Value::Null) };
    Ok(Value::Interval(if is_quotient { span.divided(*number)? } else { span.multiplied(*number)? }))
}

pub(super) fn negative(all: &[Value]) -> Result<Value> {
    let [Value::Interval(span)] = all else { return Ok(Value::Null) };
    Ok(Value::Interval(span.negative()?))
}

/// Returns the seconds in the east of UTC that a span means as a zone.
pub(crate) fn offset_of_span(span: &Interval) -> Result<i64> {
    if span.months != 0 || span.days != 0 {
        let message = "interval time zone must not include months or days";
        return Err(SqlError::new(code::INVALID_PARAMETER_VALUE, message));
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
pub(crate) fn at_zone(all: &[Value]) -> Result<Value> {
    Ok(match all {
        [Value::Text(zone), Value::Time(moment)] => Value::Time(Zone::of_value(zone)?.to_local(*moment)),
        [Value::Interval(span), Value::Time(moment)] => Value::Time(moved(*moment, offset_of_span(span)?)?),
        _ => Value::Null,
    })
}

/// Converts the time of a zone to a moment.
pub(crate) fn from_zone(all: &[Value]) -> Result<Value> {
    Ok(match all {
        [Value::Text(zone), Value::Time(local)] => Value::Time(Zone::of_value(zone)?.to_moment(*local)?),
        [Value::Interval(span), Value::Time(local)] => Value::Time(moved(*local, -offset_of_span(span)?)?),
        _ => Value::Null,
    })
}

/// Gives a time of day another offset from UTC.
pub(crate) fn zoned_at_zone(all: &[Value]) -> Result<Value> {
    let (east, packed) = match all {
        [Value::Text(zone), Value::Time(packed)] => (Zone::of_value(zone)?.offset_at(time::now()), *packed),
        [Value::Interval(span), Value::Time(packed)] => (span.microseconds / time::SECOND, *packed),
        _ => return Ok(Value::Null),
    };
    let (of_day, west) = time::unpack_zoned(packed);
    let moved = i128::from(of_day) + i128::from(west + east) * i128::from(time::SECOND);
    let zoned = time::zoned(moved.rem_euclid(i128::from(time::DAY)) as i64, -east);
    let out = || SqlError::new(code::INVALID_PARAMETER_VALUE, "interval time zone is out of range");
    zoned.map(Value::Time).ok_or_else(out)
}
