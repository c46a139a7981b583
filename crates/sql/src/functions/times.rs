//! Functions of dates and times (chapter 9.9 of PostgreSQL's manual).

use super::{Call, Declared, function, ok};
use crate::{
    error::{Result, SqlError, code, error},
    types::{
        Interval, Type, Value,
        interval::{micros_of_unit, out_of_range, unit_name},
        part::{iso_week, part},
        time::{self, DAY, SECOND, civil, day_of, days_of_month},
        zone::Zone,
    },
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("age(timestamp, timestamp) interval", |call| age(call.time(0), call.time(1))),
    function("age(timestamptz, timestamptz) interval", |call| age(local(call, 0), local(call, 1))),
    function("clock_timestamp() timestamptz volatile", |_| Ok(Value::Time(time::now()))),
    function(
        "date_bin(interval, timestamp/timestamptz, timestamp/timestamptz) timestamp/timestamptz",
        date_bin,
    ),
    function("date_part(text, date/interval/time/timestamp/timetz) float8", date_part),
    function("date_part(text, timestamptz) float8 stable", date_part),
    function("date_trunc(text, interval) interval", truncated_span),
    function("date_trunc(text, timestamp) timestamp", date_trunc),
    function(
        "date_trunc(text, timestamptz) timestamptz; \
         date_trunc(text, timestamptz, text) timestamptz stable",
        date_trunc,
    ),
    function("extract(text, date/interval/time/timestamp/timetz) numeric", extract),
    function("extract(text, timestamptz) numeric stable", extract),
    function("justify_days(interval) interval", |call| ok(justified_days(call.span(0))?)),
    function("justify_hours(interval) interval", |call| ok(justified_hours(call.span(0))?)),
    function("justify_interval(interval) interval", |call| ok(justified(call.span(0))?)),
    function("make_date(year int4, month int4, day int4) date", |call| Ok(Value::Date(date_of(call)?))),
    function(
        "make_interval(years int4=0, months int4=0, weeks int4=0, days int4=0, hours int4=0, mins int4=0, secs float8=0.0) interval",
        make_interval,
    ),
    function("make_time(hour int4, min int4, sec float8) time", |call| Ok(Value::Time(time_of(call)?))),
    function("now transaction_timestamp() timestamptz stable", |call| Ok(Value::Time(call.context.begun))),
    function("statement_timestamp() timestamptz stable", |call| {
        Ok(Value::Time(call.context.statement_begun))
    }),
    function("to_timestamp(float8) timestamptz", to_timestamp),
];

/// Returns the time of the session's zone at a moment with a zone, else the moment.
fn local(call: &Call<'_>, at: usize) -> i64 {
    match call.types[at] {
        Type::TimestampTz => Zone::current().to_local(call.time(at)),
        _ => call.time(at),
    }
}

fn date_part(call: &Call<'_>) -> Result<Value> {
    part(call.text(0), &call.values[1], call.types[1], false)
}

fn extract(call: &Call<'_>) -> Result<Value> {
    part(call.text(0), &call.values[1], call.types[1], true)
}

/// Returns the span between two moments in years, months, days and time.
fn age(one: i64, other: i64) -> Result<Value> {
    if time::is_infinite(one) || time::is_infinite(other) {
        return Err(SqlError::new(code::DATETIME_OUT_OF_RANGE, "cannot subtract infinite timestamps"));
    }
    let (later, earlier) = (one.max(other), one.min(other));
    let fields = |moment: i64| (civil(moment.div_euclid(DAY)), moment.rem_euclid(DAY));
    let (((year, month, day), of_day), ((from_year, from_month, from_day), from_of_day)) =
        (fields(later), fields(earlier));
    let (mut months, mut days) = (
        (year - from_year) * 12 + i64::from(month) - i64::from(from_month),
        i64::from(day) - i64::from(from_day),
    );
    let mut microseconds = of_day - from_of_day;
    if microseconds < 0 {
        (microseconds, days) = (microseconds + DAY, days - 1);
    }
    if days < 0 {
        // The days of the month of the second argument, or of the first if that is the earlier one.
        days += i64::from(days_of_month(from_year, from_month));
        months -= 1;
    }
    let found = Interval { months: months as i32, days: days as i32, microseconds };
    ok(if one < other { found.negative()? } else { found })
}

fn out_of_range_field(what: &str) -> SqlError {
    error!(DATETIME_OUT_OF_RANGE, "{what} field value out of range")
}

/// Returns the day of the first three arguments.
fn date_of(call: &Call<'_>) -> Result<i32> {
    let wrong = || out_of_range_field("date");
    let (year, month, day) = (call.int(0), call.int(1), call.int(2));
    let year = match year {
        0 => return Err(wrong()),
        ..0 => year + 1,
        _ => year,
    };
    time::checked_date(time::day_of_date(year, month, day).ok_or_else(wrong)?)
}

/// Returns the time of day of three arguments.
fn time_of(call: &Call<'_>) -> Result<i64> {
    let (hour, minute, second) = (call.int(0), call.int(1), call.float(2));
    let is_end = hour == 24 && minute == 0 && second == 0.0;
    let fits = (0..24).contains(&hour) && (0..60).contains(&minute) && (0.0..=60.0).contains(&second);
    match fits || is_end {
        true => Ok((hour * 60 + minute) * 60 * SECOND + (second * 1e6).round_ties_even() as i64),
        false => Err(out_of_range_field("time")),
    }
}

fn make_interval(call: &Call<'_>) -> Result<Value> {
    let part = |at: usize, unit: i64| i128::from(call.int(at)) * i128::from(unit);
    let seconds = (call.float(6) * 1e6).round_ties_even();
    if !seconds.is_finite() || seconds.abs() >= 9.2e18 {
        return Err(out_of_range());
    }
    let time = part(4, 3600 * SECOND) + part(5, 60 * SECOND) + seconds as i128;
    let wrong = |_| out_of_range();
    ok(Interval {
        months: i32::try_from(part(0, 12) + part(1, 1)).map_err(wrong)?,
        days: i32::try_from(part(2, 7) + part(3, 1)).map_err(wrong)?,
        microseconds: i64::try_from(time).map_err(wrong)?,
    })
}

/// Moves parts of one sign to the larger unit: `large` and `small`, of which `ratio` are a large
/// one. Both get the same sign.
fn carried(large: i64, small: i64, ratio: i64) -> (i64, i64) {
    let (mut large, mut small) = (large + small / ratio, small % ratio);
    if large > 0 && small < 0 {
        (large, small) = (large - 1, small + ratio);
    } else if large < 0 && small > 0 {
        (large, small) = (large + 1, small - ratio);
    }
    (large, small)
}

fn made(months: i64, days: i64, microseconds: i64) -> Result<Interval> {
    let int = |number: i64| i32::try_from(number).map_err(|_| out_of_range());
    Ok(Interval { months: int(months)?, days: int(days)?, microseconds })
}

fn justified_hours(span: Interval) -> Result<Interval> {
    let (days, time) = carried(span.days.into(), span.microseconds, DAY);
    made(span.months.into(), days, time)
}

fn justified_days(span: Interval) -> Result<Interval> {
    let (months, days) = carried(span.months.into(), span.days.into(), 30);
    made(months, days, span.microseconds)
}

fn justified(span: Interval) -> Result<Interval> {
    let mut time = span.microseconds % DAY;
    let mut days = i64::from(span.days) + span.microseconds / DAY;
    let mut months = i64::from(span.months) + days / 30;
    days %= 30;
    if months > 0 && (days < 0 || days == 0 && time < 0) {
        (months, days) = (months - 1, days + 30);
    } else if months < 0 && (days > 0 || days == 0 && time > 0) {
        (months, days) = (months + 1, days - 30);
    }
    if days > 0 && time < 0 {
        (days, time) = (days - 1, time + DAY);
    } else if days < 0 && time > 0 {
        (days, time) = (days + 1, time - DAY);
    }
    made(months, days, time)
}

/// Returns the name of a unit of `date_trunc`.
fn unit(name: &str, of: Type) -> Result<&'static str> {
    let lower = name.trim().to_ascii_lowercase();
    unit_name(&lower).ok_or_else(|| {
        error!(INVALID_PARAMETER_VALUE, "unit \"{lower}\" not recognized for type {}", of.name())
    })
}

/// Cuts a moment to a unit.
fn truncated(moment: i64, unit: &str) -> Result<i64> {
    if time::is_infinite(moment) {
        return Ok(moment);
    }
    if let Some(size) = micros_of_unit(unit).or((unit == "day").then_some(DAY)) {
        return Ok(moment.div_euclid(size) * size);
    }
    let day = moment.div_euclid(DAY);
    let (year, month, _) = civil(day);
    // Years are counted from 1, those before from -1 back.
    let first_of = |years: i64| match year {
        1.. => (year - 1).div_euclid(years) * years + 1,
        _ => -((years - 1 - (year - 1)) / years) * years + 1,
    };
    let day = match unit {
        "week" => day - (day + 5).rem_euclid(7),
        "month" => day_of(year, month, 1),
        "quarter" => day_of(year, (month - 1) / 3 * 3 + 1, 1),
        "year" => day_of(year, 1, 1),
        "decade" => day_of(if year > 0 { year / 10 * 10 } else { -((8 - (year - 1)) / 10) * 10 }, 1, 1),
        "century" => day_of(first_of(100), 1, 1),
        _ => day_of(first_of(1000), 1, 1),
    };
    time::checked_moment(i128::from(day) * i128::from(DAY))
}

fn date_trunc(call: &Call<'_>) -> Result<Value> {
    let (unit, moment) = (unit(call.text(0), call.types[1])?, call.time(1));
    let zone = match call.types[1] {
        _ if call.count() > 2 => Zone::of_value(call.text(2))?,
        Type::TimestampTz => Zone::current(),
        _ => Zone::UTC,
    };
    if time::is_infinite(moment) {
        return Ok(Value::Time(moment));
    }
    let local = truncated(zone.to_local(moment), unit)?;
    // The offset stays within a day.
    let east =
        if micros_of_unit(unit).is_some() { zone.offset_at(moment) } else { zone.offset_of_local(local) };
    Ok(Value::Time(time::checked_moment(i128::from(local) - i128::from(east * SECOND))?))
}

fn truncated_span(call: &Call<'_>) -> Result<Value> {
    let found = call.span(1).truncated(unit(call.text(0), Type::Interval)?);
    let message = "unit \"week\" not supported for type interval";
    ok(found.ok_or_else(|| SqlError::new(code::FEATURE_NOT_SUPPORTED, message))?)
}

fn date_bin(call: &Call<'_>) -> Result<Value> {
    let (stride, source, origin) = (call.span(0), call.time(1), call.time(2));
    if time::is_infinite(source) {
        return Ok(Value::Time(source));
    }
    if time::is_infinite(origin) {
        return Err(SqlError::new(code::DATETIME_OUT_OF_RANGE, "origin out of range"));
    }
    if stride.months != 0 {
        return Err(SqlError::unsupported("binning into intervals containing months or years"));
    }
    let size = i128::from(stride.days) * i128::from(DAY) + i128::from(stride.microseconds);
    if size <= 0 {
        return Err(SqlError::new(code::DATETIME_OUT_OF_RANGE, "stride must be greater than zero"));
    }
    let bins = (i128::from(source) - i128::from(origin)).div_euclid(size);
    Ok(Value::Time(time::checked_moment(i128::from(origin) + bins * size)?))
}

fn to_timestamp(call: &Call<'_>) -> Result<Value> {
    let wrong = |what: &str| error!(DATETIME_OUT_OF_RANGE, "timestamp {what}");
    let seconds = call.float(0);
    if seconds.is_nan() {
        return Err(wrong("cannot be NaN"));
    }
    if seconds.is_infinite() {
        return Ok(Value::Time(if seconds > 0.0 { i64::MAX } else { i64::MIN }));
    }
    // As PostgreSQL does it: first the difference of the two epochs, then microseconds.
    let since = (seconds - 946_684_800.0) * 1e6;
    if since.abs() > 9.2e18 {
        return Err(wrong("out of range"));
    }
    Ok(Value::Time(time::checked_moment(since.round_ties_even() as i128)?))
}

/// Returns the year, the week and the day of the week, from 1 for Monday, of the ISO calendar.
pub(super) fn iso_date(day: i64) -> (i64, i64, i64) {
    let (year, week) = iso_week(day);
    (year, week, (day + 5).rem_euclid(7) + 1)
}
