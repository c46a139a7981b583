//! The texts of dates, moments and times of day that PostgreSQL reads.

use super::{
    Type, Value,
    time::{self, DAY, SECOND},
    zone::{DateOrder, Zone},
};
use crate::error::{Result, SqlError, error};

/// The parts of a text, as far as it tells them.
#[derive(Default)]
struct Fields {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    /// The month has its name, so the place of the day is another one.
    has_month_name: bool,
    is_short_year: bool,
    is_before_christ: bool,
    day_number: Option<i64>,
    /// The time of day.
    time: Option<i64>,
    half: Option<Half>,
    zone: Option<Zone>,
    special: Option<Special>,
    /// A time without colons is next.
    is_time_next: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Half {
    BeforeNoon,
    AfterNoon,
}

#[derive(Clone, Copy, PartialEq)]
enum Special {
    Infinity,
    MinusInfinity,
    Epoch,
    Now,
    /// Days from today.
    Day(i64),
}

/// The reason why a text has no value.
enum Fault {
    Syntax,
    Range,
    Zone(SqlError),
}

type Parsed<T> = std::result::Result<T, Fault>;

/// Reads a date, a moment or a time of day.
pub(super) fn parse(text: &str, to: Type) -> Result<Value> {
    let read =
        if matches!(to, Type::TimeOfDay | Type::TimeTz) { time_of_day(text, to) } else { moment(text, to) };
    read.map_err(|fault| match fault {
        Fault::Syntax => {
            error!(INVALID_DATETIME, "invalid input syntax for type {}: \"{text}\"", to.name())
        }
        Fault::Range => {
            error!(DATETIME_OUT_OF_RANGE, "date/time field value out of range: \"{text}\"")
        }
        Fault::Zone(error) => error,
    })
}

/// Returns true if the zone or the order of dates of the session decides what a text of this type
/// means.
pub(crate) fn depends_on_session(text: &str, to: Type) -> bool {
    let orders = [DateOrder::Mdy, DateOrder::Dmy, DateOrder::Ymd];
    let is_date = matches!(to, Type::Date | Type::Timestamp | Type::TimestampTz);
    let before = DateOrder::current();
    let mut values = orders.iter().filter(|_| is_date).map(|order| {
        order.make_current();
        parse(text, to).ok()
    });
    let first = values.next();
    let depends = values.any(|value| Some(value) != first);
    before.make_current();
    depends || depends_on_zone(text, to)
}

fn depends_on_zone(text: &str, to: Type) -> bool {
    let is_time = match to.element().unwrap_or(to).unrounded() {
        Type::TimeTz => true,
        Type::TimestampTz => false,
        _ => return false,
    };
    let is_fixed = |fields: Fields| {
        let is_endless = matches!(fields.special, Some(Special::Infinity | Special::MinusInfinity));
        fields.zone.is_some() || is_endless
    };
    // The elements of an array are not looked at one by one.
    to.element().is_some() || !Fields::read(text, is_time).is_ok_and(is_fixed)
}

fn time_of_day(text: &str, to: Type) -> Parsed<Value> {
    let fields = Fields::read(text, true)?;
    let now = Zone::current().to_local(time::now());
    let of_day = match (fields.special, fields.time) {
        (Some(Special::Now), None) => now.rem_euclid(DAY),
        (None, Some(_)) => fields.time_of_day()?,
        _ => return Err(Fault::Syntax),
    };
    // An offset is of no meaning to a time without one.
    Ok(Value::Time(match to {
        Type::TimeTz => {
            let moment = |day| i128::from(day) * i128::from(DAY) + i128::from(of_day);
            let local = fields.date().ok().and_then(|day: i64| time::checked_moment(moment(day)).ok());
            let zone = fields.zone.unwrap_or_else(Zone::current);
            let east = local.map_or_else(|| zone.offset_at(time::now()), |local| zone.offset_of_local(local));
            time::pack_zoned(of_day, -east)
        }
        _ => of_day,
    }))
}

fn moment(text: &str, to: Type) -> Parsed<Value> {
    let fields = Fields::read(text, false)?;
    let today = || Zone::current().to_local(time::now()).div_euclid(DAY);
    let is_date = to == Type::Date;
    let day = match fields.special {
        Some(Special::Infinity) if is_date => return Ok(Value::Date(time::LAST_DATE)),
        Some(Special::MinusInfinity) if is_date => return Ok(Value::Date(time::FIRST_DATE)),
        Some(Special::Infinity) => return Ok(Value::Time(i64::MAX)),
        Some(Special::MinusInfinity) => return Ok(Value::Time(i64::MIN)),
        Some(Special::Epoch) if !is_date => return Ok(Value::Time(-10_957 * DAY)),
        Some(Special::Now) if !is_date => return Ok(Value::Time(time::now())),
        Some(Special::Epoch) => -10_957,
        Some(Special::Now) => today(),
        Some(Special::Day(days)) => today() + days,
        None => fields.date()?,
    };
    if is_date {
        return time::checked_date(day).map(Value::Date).map_err(|_| Fault::Range);
    }
    let of_day = if fields.time.is_some() { fields.time_of_day()? } else { 0 };
    let local = i128::from(day) * i128::from(DAY) + i128::from(of_day);
    let local = time::checked_moment(local).map_err(|_| Fault::Range)?;
    if to != Type::TimestampTz {
        return Ok(Value::Time(local));
    }
    let zone = fields.zone.unwrap_or_else(Zone::current);
    zone.to_moment(local).map(Value::Time).map_err(|_| Fault::Range)
}

impl Fields {
    fn read(text: &str, is_time: bool) -> Parsed<Self> {
        let mut fields = Self { is_time_next: is_time, ..Self::default() };
        let mut rest = text.trim();
        if rest.is_empty() || rest.len() > 128 {
            return Err(Fault::Syntax);
        }
        while let Some(first) = rest.chars().next() {
            let len = match first {
                '0'..='9' => fields.number(rest)?,
                'a'..='z' | 'A'..='Z' => fields.word(rest)?,
                '+' | '-' => fields.signed(rest)?,
                char if char.is_ascii_whitespace() || char.is_ascii_punctuation() => 1,
                _ => return Err(Fault::Syntax),
            };
            rest = &rest[len..];
        }
        Ok(fields)
    }

    /// Reads a field that begins with a digit. Returns its length.
    fn number(&mut self, rest: &str) -> Parsed<usize> {
        let digits = span(rest, |char| char.is_ascii_digit());
        let next = rest[digits..].chars().next();
        match next {
            Some(':') => {
                let len = span(rest, |char| char.is_ascii_digit() || matches!(char, ':' | '.'));
                self.set_time(clock(&rest[..len])?)?;
                Ok(len)
            }
            Some(mark @ ('-' | '/' | '.')) if !self.is_time_next || self.time.is_some() || mark != '.' => {
                let behind = &rest[digits + 1..];
                let is_number = behind.starts_with(|char: char| char.is_ascii_digit());
                let part = span(behind, |char| char.is_ascii_alphanumeric());
                let is_date = behind[part..].starts_with(mark) && part > 0;
                if mark == '.' && digits == 4 && part == 3 && is_number && !is_date && self.year.is_none() {
                    // A year and the number of a day.
                    self.date_number(&rest[..digits])?;
                    self.date_number(&behind[..part])?;
                    return Ok(digits + 1 + part);
                }
                if mark == '.' && is_number && !is_date {
                    // Seconds with a fraction, after a date without marks.
                    let len = span(rest, |char| char.is_ascii_digit() || char == '.');
                    self.plain(&rest[..len])?;
                    return Ok(len);
                }
                if !is_date && (part == 0 || is_number) {
                    self.plain(&rest[..digits])?;
                    return Ok(digits);
                }
                let last = if is_date { span(&behind[part + 1..], |char| char.is_ascii_digit()) } else { 0 };
                let len = digits + 1 + part + if is_date { 1 + last } else { 0 };
                self.date_field(&rest[..len])?;
                Ok(len)
            }
            _ => {
                let len = span(rest, |char| char.is_ascii_digit() || char == '.');
                self.plain(rest[..len].trim_end_matches('.'))?;
                Ok(len)
            }
        }
    }

    /// Reads a date with marks between its parts; first the name of a month, if it has one.
    fn date_field(&mut self, text: &str) -> Parsed<()> {
        let parts: Vec<&str> = text.split(['-', '/', '.']).filter(|part| !part.is_empty()).collect();
        for part in &parts {
            if part.starts_with(|char: char| char.is_ascii_alphabetic()) {
                let month = month_of(&part.to_ascii_lowercase()).ok_or(Fault::Syntax)?;
                set(&mut self.month, month)?;
                self.has_month_name = true;
            }
        }
        for part in parts.iter().filter(|part| part.starts_with(|char: char| char.is_ascii_digit())) {
            self.date_number(part)?;
        }
        Ok(())
    }

    /// Takes a number without marks: a part of a date, or a whole date or time.
    fn plain(&mut self, text: &str) -> Parsed<()> {
        let has_date = self.year.is_some() && self.month.is_some() && self.day.is_some();
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        if self.is_time_next || has_date {
            if !matches!(whole.len(), 4 | 6) {
                return Err(Fault::Syntax);
            }
            let part = |at: usize| whole.get(at..at + 2).unwrap_or("00");
            let text = format!("{}:{}:{}", part(0), part(2), part(4));
            return self.set_time(clock(&if fraction.is_empty() {
                text
            } else {
                format!("{text}.{fraction}")
            })?);
        }
        if !fraction.is_empty() {
            return Err(Fault::Syntax);
        }
        match whole.len() {
            6 | 8 if self.year.is_none() && self.month.is_none() && self.day.is_none() => {
                let year = whole.len() - 4;
                self.is_short_year = year == 2;
                self.year = whole[..year].parse().ok();
                self.month = whole[year..year + 2].parse().ok();
                self.day = whole[year + 2..].parse().ok();
                Ok(())
            }
            _ => self.date_number(whole),
        }
    }

    /// Takes a number of a date by its place and the order of the session, as PostgreSQL does.
    fn date_number(&mut self, text: &str) -> Parsed<()> {
        let value: i64 = text.parse().map_err(|_| Fault::Range)?;
        let (is_long, order) = (text.len() >= 3, DateOrder::current());
        let (year, month, day) = (self.year.is_some(), self.month.is_some(), self.day.is_some());
        let is_year = match (year, month, day) {
            (true, false, false) if text.len() == 3 => {
                self.day_number = Some(value);
                (self.month, self.day) = (Some(1), Some(1));
                return Ok(());
            }
            (false, false, false) => is_long || order == DateOrder::Ymd,
            (false, true, false) => self.has_month_name && (is_long || order == DateOrder::Ymd),
            (true, true, false) if self.has_month_name && is_long && self.is_short_year => {
                // The first number was the day.
                self.day = self.year.take();
                true
            }
            (false, true, true) => true,
            _ => false,
        };
        if is_year {
            self.is_short_year = text.len() <= 2;
            return set(&mut self.year, value);
        }
        match (year, month, day) {
            (false, false, false) if order == DateOrder::Dmy => set(&mut self.day, value),
            (_, false, false) | (false, false, true) => set(&mut self.month, value),
            // The first number was the day, with a year behind the name of the month.
            (_, true, false) => set(&mut self.day, value),
            _ => Err(Fault::Syntax),
        }
    }

    fn set_time(&mut self, of_day: i64) -> Parsed<()> {
        self.is_time_next = false;
        set(&mut self.time, of_day)
    }

    /// Reads a field of letters. Returns its length.
    fn word(&mut self, rest: &str) -> Parsed<usize> {
        let len = span(rest, |char| char.is_ascii_alphabetic());
        let word = rest[..len].to_ascii_lowercase();
        let special = match word.as_str() {
            "infinity" | "inf" => Some(Special::Infinity),
            "epoch" => Some(Special::Epoch),
            "now" => Some(Special::Now),
            "today" => Some(Special::Day(0)),
            "tomorrow" => Some(Special::Day(1)),
            "yesterday" => Some(Special::Day(-1)),
            _ => None,
        };
        if let Some(special) = special {
            return set(&mut self.special, special).map(|()| len);
        }
        if let Some(month) = month_of(&word) {
            // "Jan-08-1999".
            let digits = &rest[len..];
            if self.month.is_some() && !self.has_month_name && self.day.is_none() {
                // A number was taken for the month, but it was the day.
                self.day = self.month.take();
            }
            set(&mut self.month, month)?;
            self.has_month_name = true;
            return Ok(len + usize::from(digits.starts_with(['-', '/', '.'])));
        }
        match word.as_str() {
            "t" if self.year.is_some() || self.time.is_none() => self.is_time_next = true,
            "am" => set(&mut self.half, Half::BeforeNoon)?,
            "pm" => set(&mut self.half, Half::AfterNoon)?,
            "bc" => self.is_before_christ = true,
            "ad" | "at" | "on" => {}
            "allballs" => {
                self.set_time(0)?;
                self.zone = Some(Zone::UTC);
            }
            "j" | "jd" | "julian" if rest[len..].starts_with(|char: char| char.is_ascii_digit()) => {
                let digits = span(&rest[len..], |char| char.is_ascii_digit());
                let number: i64 = rest[len..len + digits].parse().map_err(|_| Fault::Range)?;
                let (year, month, day) = time::civil(number.min(1 << 40) - 2_451_545);
                self.is_before_christ = year < 1;
                set(&mut self.year, if year < 1 { 1 - year } else { year })?;
                set(&mut self.month, month.into())?;
                set(&mut self.day, day.into())?;
                return Ok(len + digits);
            }
            word if is_week_day(word) => {}
            _ => {
                let letters = len;
                let len = span(rest, |char| char.is_ascii_alphanumeric() || "/_+-:".contains(char));
                if len > letters && (self.month.is_none() || self.day.is_none()) {
                    return Err(Fault::Syntax);
                }
                let zone = Zone::of_value(&rest[..len]).map_err(|error| match rest[..len].contains('/') {
                    true => Fault::Zone(error),
                    false => Fault::Syntax,
                })?;
                return set(&mut self.zone, zone).map(|()| len);
            }
        }
        Ok(len)
    }

    /// Reads an offset from UTC, or an infinity. Returns its length.
    fn signed(&mut self, rest: &str) -> Parsed<usize> {
        let behind = &rest[1..];
        if behind.starts_with(|char: char| char.is_ascii_digit()) {
            let len = 1 + span(behind, |char| char.is_ascii_digit() || char == ':');
            // A hyphen in a date whose month has its name.
            if self.has_month_name && self.time.is_none() && (self.day.is_none() || self.year.is_none()) {
                return Ok(1);
            }
            if self.year.is_none() && self.time.is_none() {
                return Err(Fault::Syntax);
            }
            let zone = time::parse_offset(&rest[..len]).and_then(Zone::fixed).ok_or(Fault::Range)?;
            return set(&mut self.zone, zone).map(|()| len);
        }
        let spaces = behind.len() - behind.trim_start().len();
        let word = span(behind.trim_start(), |char| char.is_ascii_alphabetic());
        let len = 1 + spaces + word;
        match behind.trim_start()[..word].to_ascii_lowercase().as_str() {
            "infinity" | "inf" => {
                let special = if rest.starts_with('-') { Special::MinusInfinity } else { Special::Infinity };
                set(&mut self.special, special).map(|()| len)
            }
            _ => Err(Fault::Syntax),
        }
    }

    /// Returns the day.
    fn date(&self) -> Parsed<i64> {
        let (Some(mut year), Some(month), Some(day)) = (self.year, self.month, self.day) else {
            return Err(Fault::Syntax);
        };
        if self.is_before_christ {
            if year <= 0 {
                return Err(Fault::Range);
            }
            year = 1 - year;
        } else if self.is_short_year {
            year += if year < 70 { 2000 } else { 1900 };
        } else if year <= 0 {
            return Err(Fault::Range);
        }
        let day = time::day_of_date(year, month, day).filter(|_| year < 10_000_000).ok_or(Fault::Range)?;
        match self.day_number {
            None => Ok(day),
            Some(number @ 1..=366) => {
                let found = time::day_of(year, 1, 1) + number - 1;
                if time::civil(found).0 == year { Ok(found) } else { Err(Fault::Range) }
            }
            Some(_) => Err(Fault::Range),
        }
    }

    /// Returns the time of day, which may be the end of the day.
    fn time_of_day(&self) -> Parsed<i64> {
        let of_day = self.time.unwrap_or(0);
        let noon = DAY / 2;
        let of_day = match self.half {
            Some(_) if of_day >= noon + 3600 * SECOND => return Err(Fault::Range),
            Some(Half::AfterNoon) if of_day < noon => of_day + noon,
            Some(Half::BeforeNoon) if of_day >= noon => of_day - noon,
            _ => of_day,
        };
        if of_day > DAY { Err(Fault::Range) } else { Ok(of_day) }
    }
}

fn set<T>(slot: &mut Option<T>, value: T) -> Parsed<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Fault::Syntax),
    }
}

fn span(text: &str, is_part: impl Fn(char) -> bool) -> usize {
    text.find(|char: char| !is_part(char)).unwrap_or(text.len())
}

/// Reads the time of a day as `hh:mm[:ss[.ffffff]]`.
fn clock(text: &str) -> Parsed<i64> {
    let mut parts = text.split(':');
    let number = |part: &str| -> Parsed<i64> {
        match part.len() {
            1..=9 if part.bytes().all(|byte| byte.is_ascii_digit()) => part.parse().map_err(|_| Fault::Range),
            _ => Err(Fault::Syntax),
        }
    };
    let hours = number(parts.next().unwrap_or_default())?;
    let minutes = number(parts.next().ok_or(Fault::Syntax)?)?;
    let (seconds, micros) = match parts.next() {
        None => (0, 0),
        Some(part) => {
            let (seconds, fraction) = part.split_once('.').unwrap_or((part, ""));
            (number(seconds)?, micros_of(fraction).ok_or(Fault::Syntax)?)
        }
    };
    if parts.next().is_some() {
        return Err(Fault::Syntax);
    }
    let is_end = hours == 24 && minutes == 0 && seconds == 0 && micros == 0;
    let is_leap = seconds == 60 && micros == 0;
    match (0..24).contains(&hours) && (0..60).contains(&minutes) && (seconds < 60 || is_leap) || is_end {
        true => Ok(((hours * 60 + minutes) * 60 + seconds) * SECOND + micros),
        false => Err(Fault::Range),
    }
}

/// Returns the microseconds of the digits behind the point of seconds, rounded.
pub(super) fn micros_of(fraction: &str) -> Option<i64> {
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(7).collect();
    let tenths: i64 = digits.parse().ok()?;
    Some((tenths + 5) / 10)
}

/// The names of months and of days of the week.
pub(crate) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
pub(crate) const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Returns the month with a name, or with its first letters.
fn month_of(word: &str) -> Option<i64> {
    let is_it = |month: &&str| {
        month.eq_ignore_ascii_case(word) || word.len() == 3 && month[..3].eq_ignore_ascii_case(word)
    };
    let found = MONTHS.iter().position(is_it).or_else(|| (word == "sept").then_some(8));
    found.map(|at| at as i64 + 1)
}

fn is_week_day(word: &str) -> bool {
    let begins = |day: &str| matches!(word.len(), 3 | 4) && day[..word.len()].eq_ignore_ascii_case(word);
    DAYS.iter().any(|day| day.eq_ignore_ascii_case(word) || begins(day))
}
