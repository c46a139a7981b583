//! Dates and moments, in the proleptic Gregorian calendar and in UTC.

use std::time::SystemTime;

use crate::error::{Result, SqlError, code};

/// The microseconds of a day.
pub(crate) const DAY: i64 = 86_400_000_000;

/// The days from 1970-01-01 to 2000-01-01.
const EPOCH_DAYS: i64 = 10_957;

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
fn day_of(year: i64, month: u32, day: u32) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let shifted = i64::from(if month > 2 { month - 3 } else { month + 9 });
    let of_year = (153 * shifted + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468 - EPOCH_DAYS
}

pub(crate) fn print_date(day: i64) -> String {
    let (year, month, day) = civil(day);
    match year {
        1.. => format!("{year:04}-{month:02}-{day:02}"),
        _ => format!("{:04}-{month:02}-{day:02} BC", 1 - year),
    }
}

pub(crate) fn print_moment(moment: i64, is_zoned: bool) -> String {
    let (day, of_day) = (moment.div_euclid(DAY), moment.rem_euclid(DAY));
    let (seconds, micros) = (of_day / 1_000_000, of_day % 1_000_000);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let mut text = format!("{} {hours:02}:{minutes:02}:{:02}", print_date(day), seconds % 60);
    if micros > 0 {
        text.push_str(format!(".{micros:06}").trim_end_matches('0'));
    }
    if is_zoned {
        text.push_str("+00");
    }
    text
}

fn invalid(what: &str, text: &str) -> SqlError {
    SqlError::new(code::INVALID_DATETIME, format!("invalid input syntax for type {what}: \"{text}\""))
}

/// Reads a date in the form of ISO 8601.
pub(crate) fn parse_date(text: &str) -> Result<i32> {
    let mut parts = text.trim().splitn(3, '-');
    let mut part = || parts.next().filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    let parsed = (|| {
        let (year, month, day) = (part()?, part()?, part()?);
        Some((year.parse::<i64>().ok()?, month.parse::<u32>().ok()?, day.parse::<u32>().ok()?))
    })();
    let (year, month, day) = parsed.ok_or_else(|| invalid("date", text))?;
    let number =
        if (1..=9999).contains(&year) && (1..=12).contains(&month) { day_of(year, month, day) } else { 0 };
    if civil(number) != (year, month, day) {
        let message = format!("date/time field value out of range: \"{text}\"");
        return Err(SqlError::new(code::DATETIME_OUT_OF_RANGE, message));
    }
    Ok(number as i32)
}

/// Reads a moment in the form of ISO 8601, with an offset from UTC if it `is_zoned`; without the
/// time it is the begin of the day.
pub(crate) fn parse_moment(text: &str, is_zoned: bool) -> Result<i64> {
    let what = if is_zoned { "timestamp with time zone" } else { "timestamp" };
    let trimmed = text.trim();
    let (date, time) = trimmed.split_once([' ', 'T']).unwrap_or((trimmed, "00:00"));
    let day = i64::from(parse_date(date)?);
    let (time, offset) = match time.find(['+', '-', 'Z', 'z']) {
        Some(at) => (time[..at].trim_end(), parse_offset(&time[at..]).ok_or_else(|| invalid(what, text))?),
        None => (time, 0),
    };
    let parsed = (|| {
        let mut parts = time.splitn(3, ':');
        let hours: i64 = parts.next()?.parse().ok()?;
        let minutes: i64 = parts.next()?.parse().ok()?;
        let (seconds, part) = match parts.next() {
            None => ("0", ""),
            Some(seconds) => seconds.split_once('.').unwrap_or((seconds, "")),
        };
        let seconds: i64 = seconds.parse().ok()?;
        if part.len() > 6 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let micros: i64 = format!("{part:0<6}").parse().ok()?;
        let is_time = (0..24).contains(&hours) && (0..60).contains(&minutes) && (0..60).contains(&seconds);
        is_time.then_some(((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros)
    })();
    let of_day = parsed.ok_or_else(|| invalid(what, text))?;
    Ok(day * DAY + of_day - if is_zoned { offset } else { 0 })
}

/// Returns the microseconds of an offset from UTC.
fn parse_offset(text: &str) -> Option<i64> {
    if text.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, rest) = text.split_at_checked(1)?;
    let (hours, minutes) = match rest.split_once(':') {
        Some((hours, minutes)) => (hours, minutes),
        None if rest.len() == 4 => rest.split_at_checked(2)?,
        None => (rest, "0"),
    };
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    let micros = (hours * 60 + minutes) * 60_000_000;
    ((0..16).contains(&hours) && (0..60).contains(&minutes)).then_some(if sign == "-" {
        -micros
    } else {
        micros
    })
}
