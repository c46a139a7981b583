//! Dates, moments and times of day, in the proleptic Gregorian calendar.

use std::time::SystemTime;

use super::{Interval, Type, zone::Zone};
use crate::error::{Result, SqlError, code};

/// The microseconds of a day.
pub(crate) const DAY: i64 = 86_400_000_000;

pub(crate) const SECOND: i64 = 1_000_000;

/// The days from 1970-01-01 to 2000-01-01.
const EPOCH_DAYS: i64 = 10_957;

/// The first day that is known, in the year 4714 BC, and the first after the last one of dates and
/// of moments: as in PostgreSQL.
const FIRST_DAY: i64 = -2_451_545;
const DATE_END: i64 = 2_145_031_949;
const MOMENT_END: i64 = 106_751_983;

/// The days of the infinities, and their moments.
pub(crate) const LAST_DATE: i32 = i32::MAX;
pub(crate) const FIRST_DATE: i32 = i32::MIN;

/// The most seconds between UTC and a time zone.
const MOST_OFFSET: i64 = 16 * 3600 - 1;

/// Returns the present moment.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX) - EPOCH_DAYS * DAY
}

/// Returns year, month and day, by Howard Hinnant's `civil_from_days`.
pub(crate) fn civil(day: i64) -> (i64, u32, u32) {
    let from = day + EPOCH_DAYS + 719_468;
    let era = from.div_euclid(146_097);
    let of_era = from.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = (of_year - (153 * shifted + 2) / 5 + 1) as u32;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 } as u32;
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// Returns the day with a date, by Howard Hinnant's `days_from_civil`.
pub(crate) fn day_of(year: i64, month: u32, day: u32) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let shifted = i64::from(if month > 2 { month - 3 } else { month + 9 });
    let of_year = (153 * shifted + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468 - EPOCH_DAYS
}

/// Returns the number of days of a month.
pub(crate) fn days_of_month(year: i64, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Returns the day with a date, if there is such a day.
pub(crate) fn day_of_date(year: i64, month: i64, day: i64) -> Option<i64> {
    let month = u32::try_from(month).ok().filter(|month| (1..=12).contains(month))?;
    let fits = |day: &u32| (1..=days_of_month(year, month)).contains(day);
    Some(day_of(year, month, u32::try_from(day).ok().filter(fits)?))
}

pub(crate) fn is_infinite(moment: i64) -> bool {
    matches!(moment, i64::MIN | i64::MAX)
}

pub(crate) fn is_infinite_date(date: i32) -> bool {
    matches!(date, FIRST_DATE | LAST_DATE)
}

/// Checks that a day is one that dates have.
pub(crate) fn checked_date(day: i64) -> Result<i32> {
    match (FIRST_DAY..DATE_END).contains(&day) {
        true => Ok(day as i32),
        false => Err(SqlError::new(code::DATETIME_OUT_OF_RANGE, "date out of range")),
    }
}

/// Checks that a moment is one that timestamps have.
pub(crate) fn checked_moment(moment: i128) -> Result<i64> {
    let range = i128::from(FIRST_DAY) * i128::from(DAY)..i128::from(MOMENT_END) * i128::from(DAY);
    match range.contains(&moment) {
        true => Ok(moment as i64),
        false => Err(SqlError::new(code::DATETIME_OUT_OF_RANGE, "timestamp out of range")),
    }
}

/// Returns the moment at which a day begins.
pub(crate) fn moment_of_date(date: i32) -> Result<i64> {
    match date {
        FIRST_DATE => Ok(i64::MIN),
        LAST_DATE => Ok(i64::MAX),
        day => checked_moment(i128::from(day) * i128::from(DAY)),
    }
}

/// Returns the day of a moment.
pub(crate) fn date_of_moment(moment: i64) -> i32 {
    match moment {
        i64::MIN => FIRST_DATE,
        i64::MAX => LAST_DATE,
        moment => moment.div_euclid(DAY) as i32,
    }
}

/// Returns a moment and a span after it: first the months, then the days, then the rest.
pub(crate) fn add(moment: i64, span: Interval) -> Result<i64> {
    if is_infinite(moment) {
        return Ok(moment);
    }
    let (mut day, of_day) = (moment.div_euclid(DAY), moment.rem_euclid(DAY));
    if span.months != 0 {
        let (year, month, of_month) = civil(day);
        let months = year * 12 + i64::from(month) - 1 + i64::from(span.months);
        let (year, month) = (months.div_euclid(12), months.rem_euclid(12) as u32 + 1);
        day = day_of(year, month, of_month.min(days_of_month(year, month)));
    }
    let day = i128::from(day) + i128::from(span.days);
    checked_moment(day * i128::from(DAY) + i128::from(of_day) + i128::from(span.microseconds))
}

/// As [`add`], from a moment with a zone: months and days are those of the session's zone.
pub(crate) fn add_zoned(moment: i64, span: Interval) -> Result<i64> {
    let (zone, mut moment) = (Zone::current(), moment);
    let (months, days) =
        (Interval { days: 0, microseconds: 0, ..span }, Interval { months: 0, microseconds: 0, ..span });
    for part in [months, days].into_iter().filter(|part| *part != Interval::default()) {
        moment = zone.to_moment(add(zone.to_local(moment), part)?)?;
    }
    add(moment, Interval { months: 0, days: 0, ..span })
}

/// Returns the span between two moments, in days and time.
pub(crate) fn between(one: i64, other: i64) -> Result<Interval> {
    if is_infinite(one) || is_infinite(other) {
        return Err(SqlError::new(code::DATETIME_OUT_OF_RANGE, "cannot subtract infinite timestamps"));
    }
    let between = one.checked_sub(other);
    let between =
        between.ok_or_else(|| SqlError::new(code::DATETIME_OUT_OF_RANGE, "interval out of range"))?;
    Ok(Interval { months: 0, days: (between / DAY) as i32, microseconds: between % DAY })
}

/// A time of day with an offset from UTC, as one number that has the order of such times: first the
/// time in UTC, then the offset, those in the east first.
pub(crate) fn pack_zoned(of_day: i64, west: i64) -> i64 {
    (of_day + west * SECOND) << 18 | (west + (1 << 17))
}

/// Returns a time of day with an offset, if it is one that offsets can have.
pub(crate) fn zoned(of_day: i64, west: i64) -> Option<i64> {
    (west.abs() <= MOST_OFFSET).then(|| pack_zoned(of_day, west))
}

/// Returns the time of day and the seconds in the west of UTC.
pub(crate) fn unpack_zoned(packed: i64) -> (i64, i64) {
    let west = (packed & ((1 << 18) - 1)) - (1 << 17);
    ((packed >> 18) - west * SECOND, west)
}

/// Rounds microseconds to some digits of seconds.
pub(crate) fn rounded(micros: i64, digits: u8) -> i64 {
    let unit = 10i64.pow(6u32.saturating_sub(digits.into()));
    if is_infinite(micros) || unit == 1 {
        return micros;
    }
    let half = if micros < 0 { -unit / 2 } else { unit / 2 };
    micros.saturating_add(half) / unit * unit
}

/// Returns year, month and day as text, without the mark of years before the first one.
fn print_day(day: i64) -> (String, &'static str) {
    let (year, month, day) = civil(day);
    match year {
        1.. => (format!("{year:04}-{month:02}-{day:02}"), ""),
        _ => (format!("{:04}-{month:02}-{day:02}", 1 - year), " BC"),
    }
}

pub(crate) fn print_date(date: i32) -> String {
    match date {
        FIRST_DATE => "-infinity".into(),
        LAST_DATE => "infinity".into(),
        day => {
            let (day, era) = print_day(day.into());
            day + era
        }
    }
}

pub(crate) fn print_moment(moment: i64, is_zoned: bool) -> String {
    match moment {
        i64::MIN => return "-infinity".into(),
        i64::MAX => return "infinity".into(),
        _ => {}
    }
    let east = if is_zoned { Zone::current().offset_at(moment) } else { 0 };
    let local = moment + east * SECOND;
    let (day, era) = print_day(local.div_euclid(DAY));
    let zone = if is_zoned { print_offset(east) } else { String::new() };
    format!("{day} {}{zone}{era}", print_time(local.rem_euclid(DAY)))
}

/// Returns the text of a time of day.
pub(crate) fn print_time(of_day: i64) -> String {
    let (seconds, micros) = (of_day / SECOND, of_day % SECOND);
    let mut text = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if micros > 0 {
        text.push_str(format!(".{micros:06}").trim_end_matches('0'));
    }
    text
}

/// Returns the text of a time of day with an offset from UTC.
pub(crate) fn print_zoned_time(packed: i64) -> String {
    let (of_day, west) = unpack_zoned(packed);
    print_time(of_day) + &print_offset(-west)
}

/// Returns the text of the seconds in the east of UTC.
pub(crate) fn print_offset(east: i64) -> String {
    let (sign, size) = (if east < 0 { '-' } else { '+' }, east.abs());
    let mut text = format!("{sign}{:02}", size / 3600);
    if size % 3600 != 0 {
        text.push_str(&format!(":{:02}", size / 60 % 60));
    }
    if size % 60 != 0 {
        text.push_str(&format!(":{:02}", size % 60));
    }
    text
}

/// Returns the seconds in the east of UTC of an offset: `+hh`, `+hhmm`, `+hh:mm` or `+hh:mm:ss`.
pub(super) fn parse_offset(text: &str) -> Option<i64> {
    let (sign, rest) = (text.starts_with('-'), text.strip_prefix(['+', '-'])?);
    let mut parts: Vec<&str> = rest.split(':').collect();
    if let [all] = parts[..]
        && all.len() > 2
    {
        let at = all.len().checked_sub(2).filter(|_| all.len() <= 4)?;
        let (hours, minutes) = all.split_at_checked(at)?;
        parts = vec![hours, minutes];
    }
    let number = |text: &&str| -> Option<i64> {
        (matches!(text.len(), 1 | 2) && text.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| text.parse().ok())?
    };
    let numbers: Vec<i64> = parts.iter().map(number).collect::<Option<_>>()?;
    let seconds = match numbers[..] {
        [hours] => hours * 3600,
        [hours, minutes @ 0..60] => hours * 3600 + minutes * 60,
        [hours, minutes @ 0..60, seconds @ 0..60] => hours * 3600 + minutes * 60 + seconds,
        _ => return None,
    };
    (seconds <= MOST_OFFSET).then_some(if sign { -seconds } else { seconds })
}

/// Converts between types of moments and times of day.
pub(crate) fn convert(value: i64, from: Type, to: Type) -> Option<Result<i64>> {
    use Type::{TimeOfDay, TimeTz, Timestamp, TimestampTz};
    let zone = Zone::current();
    Some(Ok(match (from, to) {
        (Timestamp, TimestampTz) => return Some(zone.to_moment(value)),
        (TimestampTz, Timestamp) => zone.to_local(value),
        (Timestamp, TimeOfDay) => value.rem_euclid(DAY),
        (TimestampTz, TimeOfDay) => zone.to_local(value).rem_euclid(DAY),
        (TimestampTz, TimeTz) => pack_zoned(zone.to_local(value).rem_euclid(DAY), -zone.offset_at(value)),
        (TimeOfDay, TimeTz) => pack_zoned(value, -zone.offset_at(now())),
        (TimeTz, TimeOfDay) => unpack_zoned(value).0,
        _ => return None,
    }))
}
