//! Parts of dates, moments, times and spans: EXTRACT.

use super::{
    Type, Value,
    interval::unit_name,
    numeric::Numeric,
    time::{self, DAY, SECOND, civil, day_of},
    zone::Zone,
};
use crate::error::{Result, SqlError, code};

/// A part: a number with digits behind its point, or an infinity, or none.
enum Part {
    Int(i64),
    /// A number of units of which so many digits are behind the point.
    Decimal(i128, u16),
    Numeric(Numeric),
    Infinite {
        is_negative: bool,
    },
    None,
}

/// Returns a part of a value: as a number with exact digits, or as a float.
pub(crate) fn part(field: &str, value: &Value, of: Type, is_exact: bool) -> Result<Value> {
    let field = field.trim().to_ascii_lowercase();
    let field = canonical(&field);
    let found = match (value, of) {
        (Value::Null, _) => return Ok(Value::Null),
        (Value::Date(day), _) if is_exact => of_date(field, *day),
        (Value::Date(day), _) => of_moment(field, time::moment_of_date(*day)?, false)?,
        (Value::Time(of_day), Type::TimeOfDay) => of_time(field, *of_day),
        (Value::Time(packed), Type::TimeTz) => {
            let (of_day, west) = time::unpack_zoned(*packed);
            match field {
                "timezone" => Some(Part::Int(-west)),
                "timezone_hour" => Some(Part::Int(-west / 3600)),
                "timezone_minute" => Some(Part::Int(-west / 60 % 60)),
                "epoch" => Some(Part::Decimal(i128::from(of_day + west * SECOND), 6)),
                field => of_time(field, of_day),
            }
        }
        (Value::Time(moment), _) => of_moment(field, *moment, of == Type::TimestampTz)?,
        (Value::Interval(span), _) => {
            let (years, months) = (i64::from(span.months / 12), i64::from(span.months % 12));
            match field {
                "millennium" => Some(Part::Int(years / 1000)),
                "century" => Some(Part::Int(years / 100)),
                "decade" => Some(Part::Int(years / 10)),
                "year" => Some(Part::Int(years)),
                "quarter" => Some(Part::Int(months / 3 + 1)),
                "month" => Some(Part::Int(months)),
                "day" => Some(Part::Int(span.days.into())),
                "epoch" => {
                    // Here a year has 365.25 days.
                    let hundredths =
                        i128::from(years) * 36_525 + i128::from(months) * 3000 + i128::from(span.days) * 100;
                    let micros = hundredths * i128::from(DAY / 100) + i128::from(span.microseconds);
                    Some(Part::Decimal(micros, 6))
                }
                "hour" => Some(Part::Int(span.microseconds / (3600 * SECOND))),
                field => of_time(field, span.microseconds),
            }
        }
        _ => None,
    };
    let Some(found) = found else {
        let (code, problem) = match is_known(field) {
            true => (code::FEATURE_NOT_SUPPORTED, "not supported"),
            false => (code::INVALID_PARAMETER_VALUE, "not recognized"),
        };
        return Err(SqlError::new(code, format!("unit \"{field}\" {problem} for type {}", of.name())));
    };
    match (found, is_exact) {
        (Part::None, _) => Ok(Value::Null),
        (Part::Infinite { is_negative: true }, false) => Ok(Value::Float(f64::NEG_INFINITY)),
        (Part::Infinite { .. }, false) => Ok(Value::Float(f64::INFINITY)),
        (Part::Infinite { .. }, true) => Err(SqlError::unsupported("a numeric infinity")),
        (Part::Int(number), true) => Ok(Value::Numeric(Numeric::from_int(number))),
        (Part::Int(number), false) => Ok(Value::Float(number as f64)),
        (Part::Decimal(digits, scale), true) => Ok(Value::Numeric(Numeric { digits, scale })),
        (Part::Decimal(digits, scale), false) => Ok(Value::Float(digits as f64 / 10f64.powi(scale.into()))),
        (Part::Numeric(number), true) => Ok(Value::Numeric(number)),
        (Part::Numeric(number), false) => Ok(Value::Float(number.to_float())),
    }
}

/// Returns the name of a part of which this is another one.
fn canonical(field: &str) -> &str {
    match field {
        "jd" => "julian",
        "timezone_h" => "timezone_hour",
        "timezone_m" => "timezone_minute",
        other => unit_name(other).unwrap_or(other),
    }
}

/// Returns whether there is a part with a name, if not of all types.
fn is_known(field: &str) -> bool {
    let others = "isoyear isodow dow doy julian epoch timezone timezone_hour timezone_minute date";
    unit_name(field).is_some() || others.split(' ').any(|other| other == field)
}

/// Returns a part of a time of day, or of the time of a span.
fn of_time(field: &str, time: i64) -> Option<Part> {
    let of_minute = time % (60 * SECOND);
    Some(match field {
        "microseconds" => Part::Int(of_minute),
        "milliseconds" => Part::Decimal(of_minute.into(), 3),
        "second" => Part::Decimal(of_minute.into(), 6),
        "minute" => Part::Int(time / (60 * SECOND) % 60),
        "hour" => Part::Int(time / (3600 * SECOND)),
        "epoch" => Part::Decimal(time.into(), 6),
        _ => return None,
    })
}

fn of_date(field: &str, day: i32) -> Option<Part> {
    if time::is_infinite_date(day) {
        return infinite(field, day < 0).filter(|_| field != "hour");
    }
    let day = i64::from(day);
    match field {
        "epoch" => Some(Part::Int((day + 10_957) * 86_400)),
        "julian" => Some(Part::Int(day + 2_451_545)),
        field => of_day(field, day),
    }
}

/// Returns a part of an infinite moment: parts that only grow are infinite, others are unknown.
fn infinite(field: &str, is_negative: bool) -> Option<Part> {
    match field {
        "year" | "decade" | "century" | "millennium" | "julian" | "isoyear" | "epoch" => {
            Some(Part::Infinite { is_negative })
        }
        "day" | "month" | "quarter" | "week" | "dow" | "isodow" | "doy" | "microseconds" | "milliseconds"
        | "second" | "minute" | "hour" | "timezone" | "timezone_hour" | "timezone_minute" => Some(Part::None),
        _ => None,
    }
}

/// Returns a year as it is counted: there is no year 0.
fn counted(year: i64) -> i64 {
    year - i64::from(year <= 0)
}

fn of_day(field: &str, day: i64) -> Option<Part> {
    let (year, month, of_month) = civil(day);
    // 2000-01-01 was a Saturday.
    let week_day = (day + 6).rem_euclid(7);
    // The first part of the era before Christ is -1.
    let era = |years: i64, shown: i64| match shown > 0 {
        true => (shown + years - 1) / years,
        false => -((years - 1 - (shown - 1)) / years),
    };
    Some(Part::Int(match field {
        "day" => of_month.into(),
        "month" => month.into(),
        "quarter" => i64::from(month - 1) / 3 + 1,
        "year" => counted(year),
        "decade" => year.div_euclid(10),
        "century" => era(100, year),
        "millennium" => era(1000, year),
        "dow" => week_day,
        "isodow" => (day + 5).rem_euclid(7) + 1,
        "doy" => day - day_of(year, 1, 1) + 1,
        "week" => iso_week(day).1,
        "isoyear" => counted(iso_week(day).0),
        _ => return None,
    }))
}

/// Returns the year and the number of a week, whose Thursday decides.
pub(crate) fn iso_week(day: i64) -> (i64, i64) {
    let thursday = day - (day + 5).rem_euclid(7) + 3;
    let year = civil(thursday).0;
    (year, (thursday - day_of(year, 1, 1)) / 7 + 1)
}

fn of_moment(field: &str, moment: i64, is_zoned: bool) -> Result<Option<Part>> {
    let is_of_zone = matches!(field, "timezone" | "timezone_hour" | "timezone_minute");
    if is_of_zone && !is_zoned {
        return Ok(None);
    }
    if time::is_infinite(moment) {
        return Ok(infinite(field, moment < 0));
    }
    let east = if is_zoned { Zone::current().offset_at(moment) } else { 0 };
    let local = moment + east * SECOND;
    let (day, of_day) = (local.div_euclid(DAY), local.rem_euclid(DAY));
    Ok(match field {
        "timezone" => Some(Part::Int(east)),
        "timezone_hour" => Some(Part::Int(east / 3600)),
        "timezone_minute" => Some(Part::Int(east / 60 % 60)),
        "epoch" => Some(Part::Decimal(i128::from(moment) + i128::from(10_957 * DAY), 6)),
        "julian" => {
            let part = Numeric { digits: of_day.into(), scale: 0 }.div(Numeric::from_int(DAY))?;
            Some(Part::Numeric(Numeric::from_int(day + 2_451_545).add(part)?))
        }
        "microseconds" | "milliseconds" | "second" | "minute" | "hour" => of_time(field, of_day),
        field => self::of_day(field, day),
    })
}
