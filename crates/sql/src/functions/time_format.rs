//! Dates and times by a template: `to_char`, `to_date` and `to_timestamp` (chapter 9.8 of
//! PostgreSQL's manual).

use std::collections::HashMap;

use super::{Call, Declared, MOST_BYTES, function, number_format::ordinal, ok, times::iso_date, too_long};
use crate::{
    error::{Result, SqlError, code, error, fail},
    types::{
        Interval, Value,
        moment::{DAYS, MONTHS},
        time::{self, DAY, SECOND, civil, day_of},
        zone::Zone,
    },
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("to_char(interval, text) text stable", span_to_char),
    function("to_char(timestamp, text) text stable", |call| to_char(call, false)),
    function("to_char(timestamptz, text) text stable", |call| to_char(call, true)),
    function("to_date(text, text) date stable", to_date),
    function("to_timestamp(text, text) timestamptz stable", to_timestamp),
];

const ROMAN: [&str; 12] = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"];

/// The fields of templates; those that contain others are first.
const FIELDS: &[&str] = &[
    "A.D.", "A.M.", "AD", "AM", "B.C.", "BC", "CC", "DAY", "DDD", "DD", "DY", "D", "FF1", "FF2", "FF3",
    "FF4", "FF5", "FF6", "HH24", "HH12", "HH", "IDDD", "ID", "IW", "IYYY", "IYY", "IY", "I", "J", "MI", "MM",
    "MONTH", "MON", "MS", "OF", "P.M.", "PM", "Q", "RM", "SSSSS", "SSSS", "SS", "TZH", "TZM", "TZ", "US",
    "WW", "W", "Y,YYY", "YYYY", "YYY", "YY", "Y",
];

#[derive(Clone, Copy, PartialEq)]
enum Case {
    Upper,
    Title,
    Lower,
}

enum Node {
    Field {
        name: &'static str,
        case: Case,
        is_filled: bool,
        /// Letters as in 1st, in capitals or not.
        ordinal: Option<bool>,
    },
    Char(char),
}

/// Reads a template; returns whether it is fixed (`FX`), too.
fn read(template: &str) -> Result<(Vec<Node>, bool)> {
    if template.len() > 10_000 {
        return Err(SqlError::new(code::PROGRAM_LIMIT, "the template is too long"));
    }
    let (mut nodes, mut is_fixed, mut is_filled) = (Vec::new(), false, false);
    let mut rest = template;
    while let Some(char) = rest.chars().next() {
        let begins = |word: &str| rest.starts_with(word) || rest.starts_with(&word.to_ascii_lowercase());
        if begins("FM") || begins("TM") || begins("FX") {
            is_filled |= begins("FM") || begins("TM");
            is_fixed |= begins("FX");
            rest = &rest[2..];
            continue;
        }
        let found = FIELDS.iter().find_map(|field| {
            let given = rest.get(..field.len())?;
            let title = field[..1].to_owned() + &field[1..].to_ascii_lowercase();
            let has_title = matches!(*field, "DAY" | "DY" | "MONTH" | "MON");
            let case = match given {
                given if given == *field => Case::Upper,
                given if given == field.to_ascii_lowercase() => Case::Lower,
                given if has_title && given == title => Case::Title,
                _ => return None,
            };
            Some((*field, case))
        });
        if let Some((name, case)) = found {
            rest = &rest[name.len()..];
            let ordinal = match rest.get(..2) {
                Some("TH") => Some(true),
                Some("th") => Some(false),
                _ => None,
            };
            rest = &rest[if ordinal.is_some() { 2 } else { 0 }..];
            nodes.push(Node::Field { name, case, is_filled, ordinal });
            is_filled = false;
            continue;
        }
        match char {
            '"' => {
                let inner = &rest[1..];
                let mut chars = inner.char_indices();
                let mut end = inner.len();
                while let Some((at, char)) = chars.next() {
                    match char {
                        '"' => {
                            end = at;
                            break;
                        }
                        '\\' => nodes.extend(chars.next().map(|(_, char)| Node::Char(char))),
                        char => nodes.push(Node::Char(char)),
                    }
                }
                rest = inner.get(end + 1..).unwrap_or("");
                continue;
            }
            '\\' if rest[1..].starts_with('"') => {
                nodes.push(Node::Char('"'));
                rest = &rest[1..];
            }
            char => nodes.push(Node::Char(char)),
        }
        rest = &rest[rest.chars().next().map_or(0, char::len_utf8)..];
    }
    Ok((nodes, is_fixed))
}

/// The parts of a moment or of a span.
struct Parts {
    year: i64,
    month: i64,
    day: i64,
    /// The day since 2000-01-01; `None`: it is a span.
    date: Option<i64>,
    hour: i64,
    minute: i64,
    second: i64,
    micros: i64,
    /// The abbreviation of the zone and the seconds in the east of UTC, of a moment with a zone.
    zone: Option<(String, i64)>,
}

fn to_char(call: &Call<'_>, is_zoned: bool) -> Result<Value> {
    let Value::Time(moment) = call.values[0] else { return Ok(Value::Null) };
    if call.text(1).is_empty() || time::is_infinite(moment) {
        return Ok(Value::Null);
    }
    let zone = is_zoned.then(Zone::current);
    let zone = zone.map(|zone| (zone.abbreviation(moment).0, zone.offset_at(moment)));
    let local = moment + zone.as_ref().map_or(0, |(_, east)| east * SECOND);
    let date = local.div_euclid(DAY);
    let (year, month, day) = civil(date);
    let parts =
        Parts { date: Some(date), zone, ..Parts::of(year, month.into(), day.into(), local.rem_euclid(DAY)) };
    write(&parts, call.text(1))
}

fn span_to_char(call: &Call<'_>) -> Result<Value> {
    let Interval { months, days, microseconds } = call.span(0);
    if call.text(1).is_empty() {
        return Ok(Value::Null);
    }
    let parts = Parts::of((months / 12).into(), (months % 12).into(), days.into(), microseconds);
    write(&parts, call.text(1))
}

fn write(parts: &Parts, template: &str) -> Result<Value> {
    let (nodes, _) = read(template)?;
    let mut shown = String::new();
    for node in nodes {
        match node {
            Node::Char(char) => shown.push(char),
            Node::Field { name, case, is_filled, ordinal: letters } => {
                let field = parts.field(name, case, is_filled)?;
                shown.push_str(&field);
                if let Some(is_upper) = letters {
                    shown.push_str(&ordinal(&field, is_upper));
                }
            }
        }
        if shown.len() > MOST_BYTES {
            return Err(too_long());
        }
    }
    ok(shown)
}

/// Returns a name in a case, with spaces behind it up to a width.
fn name_in(name: &str, case: Case, width: usize) -> String {
    let name = match case {
        Case::Upper => name.to_uppercase(),
        Case::Title => name.to_owned(),
        Case::Lower => name.to_lowercase(),
    };
    format!("{name:width$}")
}

impl Parts {
    fn of(year: i64, month: i64, day: i64, of_day: i64) -> Self {
        let seconds = of_day / SECOND;
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        Self { year, month, day, date: None, hour, minute, second, micros: of_day % SECOND, zone: None }
    }

    fn number(value: i64, width: usize, is_filled: bool) -> String {
        let width = if is_filled { 0 } else { width + usize::from(value < 0) };
        format!("{value:0width$}")
    }

    /// Returns the day, which spans do not have.
    fn date(&self) -> Result<i64> {
        self.date
            .ok_or_else(|| error!(INVALID_DATETIME, "invalid format specification for an interval value"))
    }

    /// Returns a year as it is counted: there is no year 0.
    fn shown_year(&self, year: i64) -> i64 {
        if self.date.is_none() || year > 0 { year } else { 1 - year }
    }

    fn field(&self, name: &str, case: Case, is_filled: bool) -> Result<String> {
        let number = |value: i64, width: usize| Self::number(value, width, is_filled);
        let cased = |text: &str| if case == Case::Lower { text.to_lowercase() } else { text.to_owned() };
        let width = |width: usize| if is_filled { 0 } else { width };
        Ok(match name {
            "HH" | "HH12" => number(if self.hour % 12 == 0 { 12 } else { self.hour % 12 }, 2),
            "HH24" => number(self.hour, 2),
            "MI" => number(self.minute, 2),
            "SS" => number(self.second, 2),
            "MS" | "FF3" => format!("{:03}", self.micros / 1000),
            "US" | "FF6" => format!("{:06}", self.micros),
            "FF1" => format!("{:01}", self.micros / 100_000),
            "FF2" => format!("{:02}", self.micros / 10_000),
            "FF4" => format!("{:04}", self.micros / 100),
            "FF5" => format!("{:05}", self.micros / 10),
            "SSSS" | "SSSSS" => (self.hour * 3600 + self.minute * 60 + self.second).to_string(),
            "AM" | "PM" => cased(if self.hour % 24 >= 12 { "PM" } else { "AM" }),
            "A.M." | "P.M." => cased(if self.hour % 24 >= 12 { "P.M." } else { "A.M." }),
            "AD" | "BC" => self.date().map(|_| cased(if self.year <= 0 { "BC" } else { "AD" }))?,
            "A.D." | "B.C." => self.date().map(|_| cased(if self.year <= 0 { "B.C." } else { "A.D." }))?,
            "MONTH" | "MON" | "RM" | "Q" if self.date.is_none() && self.month == 0 => String::new(),
            "MONTH" => self.date().map(|_| name_in(MONTHS[self.month as usize - 1], case, width(9)))?,
            "MON" => self.date().map(|_| name_in(&MONTHS[self.month as usize - 1][..3], case, 0))?,
            "DAY" => name_in(DAYS[self.week_day()? as usize], case, width(9)),
            "DY" => name_in(&DAYS[self.week_day()? as usize][..3], case, 0),
            "MM" => number(self.month, 2),
            "DD" => number(self.day, 2),
            "DDD" => number(self.year_day(), 3),
            "IDDD" => {
                let (_, week, day) = iso_date(self.date()?);
                number((week - 1) * 7 + day, 3)
            }
            "D" => (self.week_day()? + 1).to_string(),
            "ID" => iso_date(self.date()?).2.to_string(),
            "WW" => number((self.year_day() - 1) / 7 + 1, 2),
            "W" => ((self.day - 1) / 7 + 1).to_string(),
            "IW" => number(iso_date(self.date()?).1, 2),
            "Q" => ((self.month - 1) / 3 + 1).to_string(),
            "CC" => number(
                match self.year {
                    year if self.date.is_none() => year / 100,
                    year @ 1.. => (year - 1) / 100 + 1,
                    year => year / 100 - 1,
                },
                2,
            ),
            "J" => (self.date()? + 2_451_545).to_string(),
            "RM" => {
                let of = ROMAN[(self.month - 1).rem_euclid(12) as usize];
                name_in(of, if case == Case::Lower { Case::Lower } else { Case::Upper }, width(4))
            }
            "Y,YYY" => {
                let year = self.shown_year(self.year);
                format!("{},{:03}", year / 1000, year % 1000)
            }
            "YYYY" => number(self.shown_year(self.year), 4),
            "YYY" => number(self.shown_year(self.year) % 1000, 3),
            "YY" => number(self.shown_year(self.year) % 100, 2),
            "Y" => (self.shown_year(self.year) % 10).to_string(),
            "IYYY" | "IYY" | "IY" | "I" => {
                let year = self.shown_year(iso_date(self.date()?).0);
                let digits = name.len();
                number(year % 10i64.pow(if digits == 4 { 18 } else { digits as u32 }), digits)
            }
            "TZ" => self.date().map(|_| self.zone.as_ref().map_or(String::new(), |(name, _)| cased(name)))?,
            "OF" => time::print_offset(self.east()?),
            "TZH" => time::print_offset(self.east()?)[..3].to_owned(),
            "TZM" => format!("{:02}", self.east()?.abs() / 60 % 60),
            other => return Err(SqlError::unsupported(format!("the field {other}"))),
        })
    }

    /// Returns the seconds in the east of UTC.
    fn east(&self) -> Result<i64> {
        self.date()?;
        Ok(self.zone.as_ref().map_or(0, |(_, east)| *east))
    }

    /// Returns the day of the week, from 0 for Sunday.
    fn week_day(&self) -> Result<i64> {
        Ok((self.date()? + 6).rem_euclid(7))
    }

    fn year_day(&self) -> i64 {
        match self.date {
            Some(date) => date - day_of(self.year, 1, 1) + 1,
            None => (self.year * 12 + self.month) * 30 + self.day,
        }
    }
}

/// The parts that a text gives, by the name of their field. The fields of the same part have one
/// name; `FF` has microseconds, and the names of days have no meaning.
#[derive(Default)]
struct Given(HashMap<&'static str, i64>);

fn invalid(text: &str, field: &str) -> SqlError {
    error!(INVALID_DATETIME, "invalid value \"{text}\" for \"{field}\"")
}

fn out_of_range(text: &str) -> SqlError {
    error!(DATETIME_OUT_OF_RANGE, "date/time field value out of range: \"{text}\"")
}

/// A text that is read by a template.
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// Reads a number of at most so many digits, all digits without a limit.
    fn number(&mut self, most: Option<usize>, field: &str) -> Result<(i64, usize)> {
        let is_signed = self.rest.starts_with(['+', '-']);
        let from = usize::from(is_signed);
        let digits = self.rest[from..].find(|char: char| !char.is_ascii_digit());
        let digits = digits.unwrap_or(self.rest.len() - from);
        let taken = from + digits.min(most.map_or(usize::MAX, |most| most - from.min(most)));
        let (text, rest) = self.rest.split_at(taken);
        let number =
            text.parse::<i32>().map_err(|_| invalid(self.rest.split(' ').next().unwrap_or(""), field))?;
        self.rest = rest;
        Ok((number.into(), taken - from))
    }

    /// Reads one of some names in any case; the longest that fits.
    fn one_of(&mut self, names: &[&str], length: Option<usize>, field: &str) -> Result<usize> {
        let is_it = |name: &str| {
            let name = &name[..length.unwrap_or(name.len()).min(name.len())];
            let given = self.rest.get(..name.len())?;
            given.eq_ignore_ascii_case(name).then_some(name.len())
        };
        let found = names.iter().enumerate().filter_map(|(at, name)| Some((is_it(name)?, at))).max();
        let (length, at) = found.ok_or_else(|| invalid(self.rest, field))?;
        self.rest = &self.rest[length..];
        Ok(at)
    }
}

/// Completes a year of fewer than four digits to one near 2020.
fn near_2020(year: i64) -> i64 {
    match year {
        ..70 | 100..520 => year + 2000,
        70..100 => year + 1900,
        520..1000 => year + 1000,
        _ => year,
    }
}

fn given(text: &str, template: &str) -> Result<Given> {
    let (nodes, is_fixed) = read(template)?;
    let mut reader = Reader { rest: text };
    let mut made = Given::default();
    for (at, node) in nodes.iter().enumerate() {
        let Node::Field { name, is_filled, ordinal, .. } = node else {
            let Node::Char(char) = node else { continue };
            let is_separator = |char: char| char.is_ascii() && !char.is_ascii_alphanumeric();
            let next = reader.rest.chars().next();
            if !is_separator(*char)
                || next.is_some_and(|next| is_separator(next) && next != '-' && next != '+')
                || next.is_some_and(|next| next == *char)
                || is_separator(*char) && next.is_some_and(|next| matches!(next, '-')) && !is_fixed
            {
                reader.rest = &reader.rest[next.map_or(0, char::len_utf8)..];
            }
            continue;
        };
        if !is_fixed {
            reader.rest = reader.rest.trim_start();
        }
        // A number ends where another kind of character begins, unless a number follows it.
        let is_bounded = match nodes.get(at + 1) {
            None => false,
            Some(Node::Char(char)) => char.is_ascii_digit(),
            Some(Node::Field { name, .. }) => !matches!(
                *name,
                "DAY" | "DY" | "MONTH" | "MON" | "RM" | "AM" | "PM" | "A.M." | "P.M." | "AD" | "BC"
            ),
        };
        let is_free = *is_filled || !is_bounded;
        made.read(&mut reader, name, is_free)?;
        if ordinal.is_some() {
            reader.rest = reader.rest.get(2..).unwrap_or("");
        }
    }
    Ok(made)
}

impl Given {
    fn read(&mut self, reader: &mut Reader<'_>, name: &'static str, is_free: bool) -> Result<()> {
        let mut number = |digits: usize| reader.number((!is_free).then_some(digits), name);
        let (part, value) = match name {
            "YYYY" | "YYY" | "YY" | "Y" | "IYYY" | "IYY" | "IY" | "I" => {
                let (year, digits) = number(name.len())?;
                if name.starts_with('Y') {
                    self.0.insert("year digits", name.len() as i64);
                }
                (&name[..1], if name.len() < 4 && digits < 4 { near_2020(year) } else { year })
            }
            "Y,YYY" => {
                let (thousands, _) = reader.number(None, name)?;
                reader.rest = reader.rest.strip_prefix(',').ok_or_else(|| invalid(reader.rest, name))?;
                self.0.insert("year digits", 4);
                ("Y", thousands * 1000 + reader.number(Some(3), name)?.0)
            }
            "MONTH" => ("MM", reader.one_of(&MONTHS, None, name)? as i64 + 1),
            "MON" => ("MM", reader.one_of(&MONTHS, Some(3), name)? as i64 + 1),
            "RM" => ("MM", reader.one_of(&ROMAN, None, name)? as i64 + 1),
            "DAY" => (name, reader.one_of(&DAYS, None, name)? as i64),
            "DY" => (name, reader.one_of(&DAYS, Some(3), name)? as i64),
            "DDD" => (name, number(3)?.0),
            "D" | "Q" | "ID" => (name, number(1)?.0),
            "CC" | "MM" | "DD" | "IW" | "WW" | "HH24" | "MI" | "SS" | "TZM" => (name, number(2)?.0),
            "HH" | "HH12" => ("HH12", number(2)?.0),
            "SSSS" | "SSSSS" => ("SSSS", number(5)?.0),
            "J" => (name, reader.number(None, name)?.0),
            "MS" | "US" | "FF1" | "FF2" | "FF3" | "FF4" | "FF5" | "FF6" => {
                let most = match name {
                    "MS" => 3,
                    "US" => 6,
                    of => usize::from(of.as_bytes()[2] - b'0'),
                };
                let (value, digits) = number(most)?;
                ("FF", value * 10i64.pow(6 - digits.min(6) as u32))
            }
            "AM" | "PM" => ("PM", reader.one_of(&["AM", "PM"], None, name)? as i64),
            "A.M." | "P.M." => ("PM", reader.one_of(&["A.M.", "P.M."], None, name)? as i64),
            "AD" | "BC" => ("BC", reader.one_of(&["AD", "BC"], None, name)? as i64),
            "A.D." | "B.C." => ("BC", reader.one_of(&["A.D.", "B.C."], None, name)? as i64),
            "TZH" => {
                self.0.insert("TZ", if reader.rest.starts_with('-') { -1 } else { 1 });
                reader.rest = reader.rest.trim_start_matches(['+', '-']);
                (name, reader.number((!is_free).then_some(2), name)?.0)
            }
            other => {
                fail!(FEATURE_NOT_SUPPORTED, "formatting field \"{other}\" is only supported in to_char")
            }
        };
        self.0.insert(part, value);
        Ok(())
    }

    fn get(&self, part: &str) -> Option<i64> {
        self.0.get(part).copied()
    }

    fn or_zero(&self, part: &str) -> i64 {
        self.get(part).unwrap_or(0)
    }

    fn day(&self, text: &str) -> Result<i64> {
        let wrong = || out_of_range(text);
        if let Some(julian) = self.get("J") {
            return Ok(julian - 2_451_545);
        }
        if let (Some(year), Some(week)) = (self.get("I"), self.get("IW")) {
            let fourth = day_of(year, 1, 4);
            let monday = fourth - (fourth + 5).rem_euclid(7);
            return Ok(monday + (week - 1) * 7 + self.get("ID").unwrap_or(1) - 1);
        }
        let year = match (self.get("Y"), self.get("CC")) {
            (Some(year), Some(century)) if self.or_zero("year digits") <= 2 => {
                (century - 1) * 100 + year % 100
            }
            (None, Some(century)) => (century - 1) * 100 + 1,
            (Some(year), _) => year,
            (None, None) => 0,
        };
        let is_before = self.or_zero("BC") == 1 && self.get("Y").is_some();
        let year = if is_before { 1 - year } else { year };
        let first = day_of(year, 1, 1);
        if let Some(year_day) = self.get("DDD") {
            let length = day_of(year + 1, 1, 1) - first;
            return if (1..=length).contains(&year_day) { Ok(first + year_day - 1) } else { Err(wrong()) };
        }
        if let Some(week) = self.get("WW") {
            return Ok(first + (week - 1) * 7);
        }
        let part = |part| self.get(part).unwrap_or(1);
        time::day_of_date(year, part("MM"), part("DD")).ok_or_else(wrong)
    }

    fn of_day(&self, text: &str) -> Result<i64> {
        let [minute, second, micros] = ["MI", "SS", "FF"].map(|part| self.or_zero(part));
        if let Some(seconds) = self.get("SSSS") {
            return match seconds {
                0..86_400 => Ok(seconds * SECOND + micros),
                _ => Err(out_of_range(text)),
            };
        }
        let (half, of_half) = (self.get("PM"), self.get("HH12"));
        let mut hour = of_half.unwrap_or_else(|| self.or_zero("HH24"));
        if of_half.is_some() || half.is_some() {
            let is_given = of_half.or(self.get("HH24")).is_some();
            if is_given && !(1..=12).contains(&hour) {
                fail!(INVALID_DATETIME, "hour \"{hour}\" is invalid for the 12-hour clock");
            }
            match half {
                Some(1) if hour < 12 => hour += 12,
                Some(0) if hour == 12 => hour = 0,
                _ => {}
            }
        }
        match (0..24).contains(&hour) && (0..60).contains(&minute) && (0..60).contains(&second) {
            true => Ok(((hour * 60 + minute) * 60 + second) * SECOND + micros),
            false => Err(out_of_range(text)),
        }
    }
}

fn to_date(call: &Call<'_>) -> Result<Value> {
    let text = call.text(0);
    Ok(Value::Date(time::checked_date(given(text, call.text(1))?.day(text)?)?))
}

fn to_timestamp(call: &Call<'_>) -> Result<Value> {
    let text = call.text(0);
    let given = given(text, call.text(1))?;
    let local = i128::from(given.day(text)?) * i128::from(DAY) + i128::from(given.of_day(text)?);
    let local = time::checked_moment(local)?;
    let Some(sign) = given.get("TZ") else {
        return Ok(Value::Time(Zone::current().to_moment(local)?));
    };
    let zone = sign * (given.or_zero("TZH") * 3600 + given.or_zero("TZM") * 60) * SECOND;
    Ok(Value::Time(time::checked_moment(i128::from(local) - i128::from(zone))?))
}
