//! Spans of time: their text in PostgreSQL's form and in that of ISO 8601, and their arithmetic.

use super::{
    Interval,
    moment::micros_of,
    time::{DAY, SECOND},
};
use crate::error::{Result, SqlError, code, error};

fn invalid(text: &str) -> SqlError {
    error!(INVALID_DATETIME, "invalid input syntax for type interval: \"{text}\"")
}

fn too_large(text: &str) -> SqlError {
    error!("22015", "interval field value out of range: \"{text}\"")
}

pub(crate) fn out_of_range() -> SqlError {
    SqlError::new(code::DATETIME_OUT_OF_RANGE, "interval out of range")
}

/// The sums of a text so far.
#[derive(Default)]
struct Sums {
    months: i64,
    days: i64,
    microseconds: i128,
}

impl Sums {
    /// Adds a number of units; the part behind the point goes to smaller units.
    fn add(&mut self, whole: i64, fraction: f64, unit: &str) -> Option<()> {
        match size_of_unit(unit)? {
            Size::Micros(size) => self.add_time(whole, fraction, size),
            Size::Days(size) => {
                self.days = self.days.checked_add(whole.checked_mul(size)?)?;
                self.add_days(fraction * size as f64);
            }
            Size::Months(1) => {
                self.months = self.months.checked_add(whole)?;
                self.add_days(fraction * 30.0);
            }
            // The part of years behind the point goes to months.
            Size::Months(size) => {
                let part = (fraction * f64::from(size)).round_ties_even() as i64;
                let months = whole.checked_mul(size.into())?;
                self.months = self.months.checked_add(months)?.checked_add(part)?;
            }
        }
        Some(())
    }

    fn add_time(&mut self, whole: i64, fraction: f64, unit: i64) {
        let part = (fraction * unit as f64).round_ties_even() as i128;
        self.microseconds += i128::from(whole) * i128::from(unit) + part;
    }

    fn add_days(&mut self, days: f64) {
        self.days = self.days.saturating_add(days.trunc() as i64);
        self.add_time(0, days.fract(), DAY);
    }

    fn finish(self) -> Option<Interval> {
        Some(Interval {
            months: self.months.try_into().ok()?,
            days: self.days.try_into().ok()?,
            microseconds: self.microseconds.try_into().ok()?,
        })
    }
}

/// Reads a span. A number without a unit is of the smallest one that a literal names, or seconds.
pub(crate) fn parse(text: &str, smallest: Option<&'static str>) -> Result<Interval> {
    let trimmed = text.trim();
    if trimmed.is_empty() || trimmed.len() > 256 {
        return Err(invalid(text));
    }
    let iso = trimmed.strip_prefix('P').or_else(|| trimmed.strip_prefix('p'));
    let mut sums = Sums::default();
    match iso {
        Some(iso) => parse_iso(iso, &mut sums).ok_or_else(|| invalid(text))?,
        None => parse_fields(trimmed, smallest, &mut sums, text)?,
    }
    sums.finish().ok_or_else(|| too_large(text))
}

/// A number, a time or a word of a span.
#[derive(Debug)]
enum Field<'a> {
    Number(&'a str),
    Word(String),
}

fn fields_of<'a>(text: &'a str, whole: &str) -> Result<Vec<Field<'a>>> {
    let mut fields = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_number = |char: char| char.is_ascii_digit() || matches!(char, '.' | ':');
        if first.is_ascii_alphabetic() {
            let len = rest.find(|char: char| !char.is_ascii_alphabetic()).unwrap_or(rest.len());
            fields.push(Field::Word(rest[..len].to_ascii_lowercase()));
            rest = &rest[len..];
        } else if is_number(first) || matches!(first, '+' | '-') {
            let sign = usize::from(matches!(first, '+' | '-'));
            let spaces = rest[sign..].len() - rest[sign..].trim_start().len();
            let start = sign + spaces;
            let mut len = start + rest[start..].find(|char| !is_number(char)).unwrap_or(rest.len() - start);
            // Years and months: "1-2".
            if rest[len..].starts_with('-') && rest[len + 1..].starts_with(|char: char| char.is_ascii_digit())
            {
                len += 1;
                len += rest[len..].find(|char| !is_number(char)).unwrap_or(rest.len() - len);
            }
            if len == start {
                return Err(invalid(whole));
            }
            fields.push(Field::Number(&rest[..len]));
            rest = &rest[len..];
        } else if first.is_ascii_whitespace() || matches!(first, ',' | '@') {
            rest = &rest[1..];
        } else {
            return Err(invalid(whole));
        }
    }
    Ok(fields)
}

fn parse_fields(trimmed: &str, smallest: Option<&'static str>, sums: &mut Sums, text: &str) -> Result<()> {
    let fields = fields_of(trimmed, text)?;
    let mut unit = None;
    let mut default = smallest.unwrap_or("second");
    let mut is_ago = false;
    let mut seen = Vec::new();
    // The unit is behind its number.
    for field in fields.iter().rev() {
        let number = match field {
            Field::Word(word) if word == "ago" && !is_ago && seen.is_empty() => {
                is_ago = true;
                continue;
            }
            Field::Word(_) if unit.is_some() => return Err(invalid(text)),
            Field::Word(word) => {
                // Spans have no quarters.
                let found = unit_name(word).filter(|unit| *unit != "quarter");
                unit = Some(found.ok_or_else(|| invalid(text))?);
                continue;
            }
            Field::Number(number) => number,
        };
        let sign = if number.starts_with('-') { -1 } else { 1 };
        let digits = number.trim_start_matches(['+', '-']).trim_start();
        let of = if digits.contains(':') {
            let of_day = parse_clock(digits).ok_or_else(|| invalid(text))?;
            sums.microseconds += i128::from(sign) * of_day;
            // A number before a time counts days.
            (unit, default) = (None, "day");
            "hour"
        } else if let Some((years, months)) = digits.split_once('-') {
            let (Ok(years), Ok(months @ 0..12)) = (years.parse::<i64>(), months.parse::<i64>()) else {
                return Err(invalid(text));
            };
            let months = years.checked_mul(12).and_then(|years| years.checked_add(months));
            let months = sign * months.ok_or_else(|| too_large(text))?;
            sums.months = sums.months.checked_add(months).ok_or_else(|| too_large(text))?;
            unit = None;
            "month"
        } else {
            let of = unit.take().unwrap_or(default);
            let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
            let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            if whole.is_empty() && fraction.is_empty() || !is_digits(whole) || !is_digits(fraction) {
                return Err(invalid(text));
            }
            let whole: i64 = match whole {
                "" => 0,
                whole => whole.parse().map_err(|_| too_large(text))?,
            };
            let fraction: f64 = format!("0.{fraction}0").parse().unwrap_or(0.0);
            sums.add(sign * whole, sign as f64 * fraction, of).ok_or_else(|| too_large(text))?;
            of
        };
        // Each unit is named once.
        if seen.contains(&of) {
            return Err(invalid(text));
        }
        seen.push(of);
    }
    if seen.is_empty() || unit.is_some() {
        return Err(invalid(text));
    }
    if is_ago {
        sums.months = sums.months.saturating_neg();
        sums.days = sums.days.saturating_neg();
        sums.microseconds = -sums.microseconds;
    }
    Ok(())
}

/// Reads `hh:mm[:ss[.ffffff]]`, or minutes and seconds.
fn parse_clock(text: &str) -> Option<i128> {
    let parts: Vec<&str> = text.split(':').collect();
    let number = |part: &str| -> Option<i128> {
        (part.bytes().all(|byte| byte.is_ascii_digit()) && matches!(part.len(), 1..=10))
            .then(|| part.parse().ok())?
    };
    let (hours, minutes, seconds) = match parts[..] {
        [minutes, seconds] if seconds.contains('.') => ("0", minutes, seconds),
        [hours, minutes] => (hours, minutes, "0"),
        [hours, minutes, seconds] => (hours, minutes, seconds),
        _ => return None,
    };
    let (seconds, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let (hours, minutes, seconds) = (number(hours)?, number(minutes)?, number(seconds)?);
    if minutes >= 60 || seconds > 60 {
        return None;
    }
    Some(((hours * 60 + minutes) * 60 + seconds) * i128::from(SECOND) + i128::from(micros_of(fraction)?))
}

/// Reads the form of ISO 8601 behind its `P`: with units, or with marks between numbers.
fn parse_iso(text: &str, sums: &mut Sums) -> Option<()> {
    let (date, time) = match text.split_once(['T', 't']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    if date.is_empty() && time.is_none_or(str::is_empty) {
        return None;
    }
    let is_marked = date.get(1..).is_some_and(|rest| rest.contains('-'))
        && !date.ends_with(|char: char| char.is_ascii_alphabetic());
    if is_marked || date.is_empty() && time.is_some_and(|time| time.contains(':')) {
        let units = ["year", "month", "day"];
        for (part, unit) in date.split('-').filter(|part| !part.is_empty()).zip(units) {
            sums.add(part.parse().ok()?, 0.0, unit)?;
        }
        if let Some(time) = time {
            sums.microseconds += parse_clock(time)?;
        }
        return Some(());
    }
    iso_units(date, sums, &[('y', "year"), ('m', "month"), ('w', "week"), ('d', "day")])?;
    iso_units(time.unwrap_or_default(), sums, &[('h', "hour"), ('m', "minute"), ('s', "second")])
}

fn iso_units(text: &str, sums: &mut Sums, units: &[(char, &str)]) -> Option<()> {
    let mut rest = text;
    while !rest.is_empty() {
        let len = rest.find(|char: char| char.is_ascii_alphabetic())?;
        let number = &rest[..len];
        let sign = if number.starts_with('-') { -1 } else { 1 };
        let digits = number.trim_start_matches(['+', '-']);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let fraction: f64 = format!("0.{fraction}0").parse().ok()?;
        let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let letter = rest[len..].chars().next()?.to_ascii_lowercase();
        let (_, unit) = units.iter().find(|(known, _)| *known == letter)?;
        sums.add(sign * whole, sign as f64 * fraction, unit)?;
        rest = &rest[len + 1..];
    }
    Some(())
}

/// The size of a unit of spans.
#[derive(Clone, Copy, PartialEq)]
enum Size {
    Micros(i64),
    Days(i64),
    Months(i32),
}

/// The units, with their sizes and all of their names.
static UNITS: &[(&str, Size, &str)] = &[
    ("microseconds", Size::Micros(1), "us usec usecs usecond useconds microsecond microseconds microsecon"),
    (
        "milliseconds",
        Size::Micros(1000),
        "ms msec msecs msecond mseconds millisecond milliseconds millisecon",
    ),
    ("second", Size::Micros(SECOND), "s sec secs second seconds"),
    ("minute", Size::Micros(60 * SECOND), "m min mins minute minutes"),
    ("hour", Size::Micros(3600 * SECOND), "h hr hrs hour hours"),
    ("day", Size::Days(1), "d day days"),
    ("week", Size::Days(7), "w week weeks"),
    ("month", Size::Months(1), "mon mons month months"),
    ("quarter", Size::Months(3), "qtr quarter"),
    ("year", Size::Months(12), "y yr yrs year years"),
    ("decade", Size::Months(120), "dec decs decade decades"),
    ("century", Size::Months(1200), "c cent century centuries"),
    ("millennium", Size::Months(12_000), "mil mils millennium millennia"),
];

/// Returns the name of a unit for EXTRACT and `date_trunc`, from any of its names.
pub(crate) fn unit_name(word: &str) -> Option<&'static str> {
    let is_it = |names: &str| names.split(' ').any(|name| name == word);
    UNITS.iter().find(|(.., names)| is_it(names)).map(|(name, ..)| *name)
}

fn size_of_unit(unit: &str) -> Option<Size> {
    UNITS.iter().find(|(name, ..)| *name == unit).map(|(_, size, _)| *size)
}

/// Returns the microseconds of a unit that is smaller than a day.
pub(crate) fn micros_of_unit(unit: &str) -> Option<i64> {
    match size_of_unit(unit) {
        Some(Size::Micros(size)) => Some(size),
        _ => None,
    }
}

impl Interval {
    /// Returns its text in PostgreSQL's own style.
    pub(crate) fn print(self) -> String {
        let mut text = String::new();
        let mut is_before = false;
        let parts = [(self.months / 12, "year"), (self.months % 12, "mon"), (self.days, "day")]
            .map(|(value, unit)| (i64::from(value), unit));
        for (value, unit) in parts.into_iter().filter(|(value, _)| *value != 0) {
            let space = if text.is_empty() { "" } else { " " };
            let sign = if is_before && value > 0 { "+" } else { "" };
            let plural = if value == 1 { "" } else { "s" };
            text.push_str(&format!("{space}{sign}{value} {unit}{plural}"));
            is_before = value < 0;
        }
        if text.is_empty() || self.microseconds != 0 {
            let space = if text.is_empty() { "" } else { " " };
            let sign = match self.microseconds < 0 {
                true => "-",
                false if is_before => "+",
                false => "",
            };
            let micros = self.microseconds.unsigned_abs();
            let (seconds, micros) = (micros / SECOND as u64, micros % SECOND as u64);
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            text.push_str(&format!("{space}{sign}{hours:02}:{minutes:02}:{:02}", seconds % 60));
            if micros != 0 {
                text.push_str(format!(".{micros:06}").trim_end_matches('0'));
            }
        }
        text
    }

    /// Leaves out what is smaller than a unit, which a week cannot be.
    pub(crate) fn truncated(self, unit: &str) -> Option<Self> {
        Some(match size_of_unit(unit)? {
            Size::Micros(size) => Self { microseconds: self.microseconds / size * size, ..self },
            Size::Days(1) => Self { microseconds: 0, ..self },
            Size::Days(_) => return None,
            Size::Months(size) => Self { months: self.months / size * size, ..Self::default() },
        })
    }

    pub(crate) fn add(self, other: Self) -> Result<Self> {
        let sum = || {
            Some(Self {
                months: self.months.checked_add(other.months)?,
                days: self.days.checked_add(other.days)?,
                microseconds: self.microseconds.checked_add(other.microseconds)?,
            })
        };
        sum().ok_or_else(out_of_range)
    }

    pub(crate) fn negative(self) -> Result<Self> {
        let negative = || {
            Some(Self {
                months: self.months.checked_neg()?,
                days: self.days.checked_neg()?,
                microseconds: self.microseconds.checked_neg()?,
            })
        };
        negative().ok_or_else(out_of_range)
    }

    /// Multiplies with a number; parts of months become days of which a month has 30, and parts of
    /// days become time.
    pub(crate) fn multiplied(self, factor: f64) -> Result<Self> {
        self.scaled(|part| part * factor)
    }

    /// Divides by a number.
    pub(crate) fn divided(self, by: f64) -> Result<Self> {
        if by == 0.0 {
            return Err(SqlError::new(code::DIVISION_BY_ZERO, "division by zero"));
        }
        self.scaled(|part| part / by)
    }

    fn scaled(self, scale: impl Fn(f64) -> f64) -> Result<Self> {
        // As PostgreSQL does it (`interval_mul`), which rounds to microseconds on the way.
        let rounded = |number: f64| (number * 1e6).round_ties_even() / 1e6;
        let int = |number: f64| match number >= f64::from(i32::MIN) && number <= f64::from(i32::MAX) {
            true => Ok(number as i32),
            false => Err(out_of_range()),
        };
        let (months, days) = (scale(self.months.into()), scale(self.days.into()));
        let whole_months = int(months)?;
        let mut whole_days = int(days)?;
        let more_days = rounded((months - f64::from(whole_months)) * 30.0);
        let mut seconds = rounded((days - f64::from(whole_days) + more_days - more_days.trunc()) * 86_400.0);
        if seconds.abs() >= 86_400.0 {
            let extra = (seconds / 86_400.0).trunc();
            whole_days = whole_days.checked_add(extra as i32).ok_or_else(out_of_range)?;
            seconds -= extra * 86_400.0;
        }
        let whole_days = whole_days.checked_add(int(more_days)?).ok_or_else(out_of_range)?;
        let time = (scale(self.microseconds as f64) + seconds * 1e6).round_ties_even();
        if !(time >= -(2f64.powi(63)) && time < 2f64.powi(63)) {
            return Err(out_of_range());
        }
        Ok(Self { months: whole_months, days: whole_days, microseconds: time as i64 })
    }
}
