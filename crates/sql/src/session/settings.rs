//! The settings of a session, as SET and SHOW know them.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    error::{Result, SqlError, code, fail},
    types::zone::{DateOrder, Zone},
};

/// A setting that ends what takes too long.
#[derive(Clone, Copy)]
pub(crate) enum Time {
    Statement,
    Lock,
    IdleInTransaction,
}

/// The names of [`Time`].
const TIMES: [&str; 3] = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"];

/// The settings that clients may change, with their first values; each value is accepted and shown,
/// except for those that [`Settings::set`] checks.
const CHANGEABLE: &[(&str, &str)] = &[
    ("application_name", ""),
    ("bytea_output", "hex"),
    ("check_function_bodies", "on"),
    ("client_encoding", "UTF8"),
    ("client_min_messages", "notice"),
    ("datestyle", "ISO, MDY"),
    ("default_table_access_method", "heap"),
    ("default_tablespace", ""),
    ("default_transaction_deferrable", "off"),
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("escape_string_warning", "on"),
    ("extra_float_digits", "1"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("intervalstyle", "postgres"),
    ("lock_timeout", "0"),
    ("password_encryption", "scram-sha-256"),
    ("quote_all_identifiers", "off"),
    ("row_security", "on"),
    ("search_path", "\"$user\", public"),
    ("standard_conforming_strings", "on"),
    ("statement_timeout", "0"),
    ("synchronize_seqscans", "on"),
    ("timezone", "UTC"),
    ("transaction_timeout", "0"),
    ("work_mem", "64MB"),
    ("xmloption", "content"),
];

/// The least value of `work_mem`, in KiB.
const LEAST_WORK_MEM: u64 = 64;

/// The settings that statements about transactions change.
const OF_TRANSACTION: &[(&str, &str)] = &[
    ("transaction_deferrable", "off"),
    ("transaction_isolation", "read committed"),
    ("transaction_read_only", "off"),
];

/// The settings that clients may see.
const FIXED: &[(&str, &str)] = &[
    ("in_hot_standby", "off"),
    ("integer_datetimes", "on"),
    ("is_superuser", "on"),
    ("max_identifier_length", "63"),
    ("max_prepared_transactions", "0"),
    ("server_encoding", "UTF8"),
    ("server_version", "15.0"),
    ("server_version_num", "150000"),
];

/// The names under which clients are told of changes.
const REPORTED: &[&str] = &[
    "application_name",
    "client_encoding",
    "DateStyle",
    "in_hot_standby",
    "integer_datetimes",
    "IntervalStyle",
    "is_superuser",
    "server_encoding",
    "server_version",
    "standard_conforming_strings",
    "TimeZone",
];

/// The values of a session.
#[derive(Debug)]
pub(crate) struct Settings {
    values: BTreeMap<&'static str, String>,
    /// The values of the begin of the session, for RESET.
    first: BTreeMap<&'static str, String>,
    /// Those of [`TIMES`], unless they are zero: each statement asks for them.
    times: [Option<Duration>; TIMES.len()],
    /// The names of those that were set, until the client is told.
    changed: Vec<&'static str>,
    /// Those that the transaction has set.
    of_transaction: Vec<SetInTransaction>,
}

/// A setting that a transaction has set.
#[derive(Debug)]
struct SetInTransaction {
    name: &'static str,
    /// Its value after a rollback, and after a commit.
    before: String,
    after: String,
}

/// The units of times, in milliseconds, and those of memory, in KiB.
const TIME_UNITS: &[(&str, f64)] =
    &[("d", 86_400_000.0), ("h", 3_600_000.0), ("min", 60_000.0), ("s", 1000.0), ("ms", 1.0), ("us", 0.001)];
const MEMORY_UNITS: &[(&str, f64)] =
    &[("TB", 1_073_741_824.0), ("GB", 1_048_576.0), ("MB", 1024.0), ("kB", 1.0), ("B", 1.0 / 1024.0)];

/// Returns an amount from its text: a number, perhaps with a unit.
fn amount(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim() {
        "" => 1.0,
        unit => units.iter().find(|(name, _)| *name == unit)?.1,
    };
    let amount = (number * unit).round_ties_even();
    (amount <= f64::from(i32::MAX)).then_some(amount as u64)
}

/// Returns an amount with the largest unit that leaves a whole number.
fn print_amount(amount: u64, units: &[(&str, f64)]) -> String {
    match units.iter().find(|(_, size)| amount.is_multiple_of(*size as u64)) {
        Some((unit, size)) if amount > 0 => format!("{}{unit}", amount / *size as u64),
        _ => "0".to_owned(),
    }
}

/// Returns a boolean from its text.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "on" | "true" | "yes" | "1" | "t" | "y" => Some(true),
        "off" | "false" | "no" | "0" | "f" | "n" => Some(false),
        _ => None,
    }
}

/// Returns the style and order of dates; what is not named stays.
fn date_style(plain: &str, value: &str) -> Result<String> {
    let invalid = |why: String| {
        let message = format!("invalid value for parameter \"DateStyle\": \"{value}\"");
        Err(SqlError::new(code::INVALID_PARAMETER_VALUE, message).with_detail(why))
    };
    let mut order = None;
    for word in plain.split(',').map(str::trim).filter(|_| !plain.is_empty()) {
        match DateOrder::of_setting(word) {
            Some(found) if *order.get_or_insert(found) == found => {}
            Some(_) => return invalid("Conflicting \"datestyle\" specifications.".into()),
            None if word == "iso" => {}
            None if matches!(word, "sql" | "german") || word.starts_with("postgres") => {
                return Err(SqlError::unsupported(format!("the value \"{value}\" of datestyle")));
            }
            None if word.is_empty() => return invalid("List syntax is invalid.".into()),
            None => return invalid(format!("Unrecognized key word: \"{word}\".")),
        }
    }
    let order = order.unwrap_or_else(DateOrder::current);
    Ok(format!("ISO, {}", format!("{order:?}").to_ascii_uppercase()))
}

/// Returns a value of a setting in the form in which it is shown.
fn canonical(known: &str, value: &str) -> Result<String> {
    let name = if known == "timezone" { "TimeZone" } else { known };
    let invalid = || {
        let message = format!("invalid value for parameter \"{name}\": \"{value}\"");
        SqlError::new(code::INVALID_PARAMETER_VALUE, message)
    };
    let plain = value.to_ascii_lowercase();
    let is_supported = match known {
        "client_encoding" => {
            let letters: String = plain.chars().filter(char::is_ascii_alphanumeric).collect();
            if matches!(letters.as_str(), "utf8" | "unicode") {
                return Ok("UTF8".to_owned());
            }
            false
        }
        "timezone" => return Zone::of_setting(value).map(|(_, name)| name).ok_or_else(invalid),
        known if TIMES.contains(&known) => {
            let time = amount(value, TIME_UNITS).ok_or_else(invalid)?;
            return Ok(print_amount(time, TIME_UNITS));
        }
        "work_mem" => {
            let memory = amount(value, MEMORY_UNITS).ok_or_else(invalid)?;
            if memory < LEAST_WORK_MEM {
                let range = format!("({LEAST_WORK_MEM} .. {})", i32::MAX);
                fail!(
                    INVALID_PARAMETER_VALUE,
                    "{memory} kB is outside the valid range for parameter \"work_mem\" {range}"
                );
            }
            return Ok(print_amount(memory, MEMORY_UNITS));
        }
        // Nothing depends on most of these here.
        "check_function_bodies"
        | "default_transaction_deferrable"
        | "default_transaction_read_only"
        | "escape_string_warning"
        | "quote_all_identifiers"
        | "row_security"
        | "standard_conforming_strings"
        | "synchronize_seqscans" => {
            let is_on = boolean(&plain).ok_or_else(invalid)?;
            let only = match known {
                "standard_conforming_strings" => Some(true),
                "quote_all_identifiers" => Some(false),
                _ => None,
            };
            if only.is_none_or(|only| only == is_on) {
                return Ok(if is_on { "on" } else { "off" }.to_owned());
            }
            false
        }
        "datestyle" => return date_style(&plain, value),
        "intervalstyle" => plain == "postgres",
        "default_transaction_isolation" => {
            matches!(plain.as_str(), "read committed" | "read uncommitted" | "repeatable read")
        }
        "idle_session_timeout" | "transaction_timeout" => amount(&plain, TIME_UNITS) == Some(0),
        "bytea_output" => plain == "hex",
        "default_table_access_method" => plain == "heap",
        "default_tablespace" => plain.is_empty(),
        "password_encryption" => plain == "scram-sha-256",
        "xmloption" => matches!(plain.as_str(), "content" | "document"),
        _ => true,
    };
    match is_supported {
        true => Ok(value.to_owned()),
        false => Err(SqlError::unsupported(format!("the value \"{value}\" of {known}"))),
    }
}

/// Reads the settings in the start-up option `options`: `-c name=value` and `--name=value`, with
/// backslashes before white space that is a part of a value.
fn switches(text: &str) -> Result<Vec<(String, String)>> {
    let (mut words, mut word, mut is_escaped) = (Vec::new(), None::<String>, false);
    for char in text.chars() {
        match char {
            '\\' if !is_escaped => {
                is_escaped = true;
                continue;
            }
            char if char.is_ascii_whitespace() && !is_escaped => words.extend(word.take()),
            char => word.get_or_insert_default().push(char),
        }
        is_escaped = false;
    }
    words.extend(word);
    let (mut words, mut found) = (words.into_iter(), Vec::new());
    while let Some(word) = words.next() {
        let setting = match (word.strip_prefix("--"), word.strip_prefix("-c")) {
            (Some(setting), _) => setting.to_owned(),
            (_, Some("")) if words.len() > 0 => words.next().unwrap_or_default(),
            (_, Some(setting)) if !setting.is_empty() => setting.to_owned(),
            _ if word.len() > 1 && word.starts_with('-') && word != "-c" => {
                return Err(SqlError::unsupported(format!("the command-line option {word}")));
            }
            _ => {
                fail!(SYNTAX_ERROR, "invalid command-line argument for server process: {word}");
            }
        };
        let Some((name, value)) = setting.split_once('=') else {
            fail!(
                SYNTAX_ERROR,
                "{}{setting} requires a value",
                if word.starts_with("--") { "--" } else { "-c " }
            );
        };
        found.push((name.replace('-', "_"), value.to_owned()));
    }
    Ok(found)
}

impl Settings {
    /// Returns the settings of a new session.
    pub(crate) fn new(is_superuser: bool) -> Self {
        let role = ("is_superuser", if is_superuser { "on" } else { "off" });
        let all = CHANGEABLE.iter().chain(OF_TRANSACTION).chain([&role]);
        let values: BTreeMap<_, _> = all.map(|(name, value)| (*name, (*value).to_owned())).collect();
        let first = values.clone();
        Self { values, first, times: Default::default(), changed: Vec::new(), of_transaction: Vec::new() }
    }

    /// Sets what the first message of a session says.
    pub(crate) fn begin_session(&mut self, start: &[(String, String)]) -> Result<()> {
        let options = start.iter().filter(|(name, _)| name == "options");
        for (name, value) in options.map(|(_, text)| switches(text)).collect::<Result<Vec<_>>>()?.concat() {
            self.set(&name, &value)?;
        }
        for (name, value) in start {
            match name.as_str() {
                "user" | "database" | "options" => {}
                "replication" if matches!(value.as_str(), "" | "false" | "off" | "no" | "0") => {}
                "replication" => return Err(SqlError::unsupported("the start-up option replication")),
                name if name.starts_with("_pq_.") => {}
                name => self.set(name, value)?,
            }
        }
        self.end_transaction(true);
        self.first = self.values.clone();
        Ok(())
    }

    /// Changes a value, until the end of the transaction if it `is_local`.
    fn change(&mut self, name: &'static str, value: &str, is_local: bool) {
        let before = self.values.get(name).cloned().unwrap_or_default();
        let at = self.of_transaction.iter().position(|set| set.name == name).unwrap_or_else(|| {
            self.of_transaction.push(SetInTransaction { name, after: before.clone(), before });
            self.of_transaction.len() - 1
        });
        if !is_local {
            self.of_transaction[at].after = value.to_owned();
        }
        self.apply(name, value);
    }

    /// Ends a transaction. Returns whether a value is another one now.
    pub(crate) fn end_transaction(&mut self, commits: bool) -> bool {
        for SetInTransaction { name, before, after } in std::mem::take(&mut self.of_transaction) {
            let value = if commits { after } else { before };
            if self.values.get(name) != Some(&value) {
                self.apply(name, &value);
            }
        }
        !self.changed.is_empty()
    }

    fn apply(&mut self, name: &'static str, value: &str) {
        self.values.insert(name, value.to_owned());
        if let Some(at) = TIMES.iter().position(|time| *time == name) {
            self.times[at] = amount(value, TIME_UNITS).filter(|time| *time > 0).map(Duration::from_millis);
        }
        if name == "timezone"
            && let Some((zone, _)) = Zone::of_setting(value)
        {
            zone.make_current();
        }
        if name == "datestyle" {
            let order = value.rsplit(' ').next().map(str::to_ascii_lowercase);
            order
                .and_then(|order| DateOrder::of_setting(&order))
                .into_iter()
                .for_each(DateOrder::make_current);
        }
        self.changed.push(name);
    }

    /// Returns the names that were set since the last call.
    pub(crate) fn take_changed(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.changed)
    }

    fn unknown(name: &str) -> SqlError {
        let message = format!("unrecognized configuration parameter \"{name}\"");
        SqlError::new(code::UNDEFINED_OBJECT, message)
    }

    /// Sets a value.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<()> {
        self.set_for(name, value, false)
    }

    /// Sets a value, until the end of the transaction if it `is_local`.
    pub(crate) fn set_for(&mut self, name: &str, value: &str, is_local: bool) -> Result<()> {
        let lower = name.to_ascii_lowercase();
        if OF_TRANSACTION.iter().any(|(known, _)| *known == lower) {
            return Err(SqlError::unsupported(format!("SET {lower}")));
        }
        if FIXED.iter().any(|(fixed, _)| *fixed == lower) {
            let message = format!("parameter \"{name}\" cannot be changed");
            return Err(SqlError::new("55P02", message));
        }
        let Some((known, _)) = CHANGEABLE.iter().find(|(known, _)| *known == lower) else {
            return Err(Self::unknown(name));
        };
        self.change(known, &canonical(known, value)?, is_local);
        Ok(())
    }

    /// Notes the modes of the transaction that runs.
    pub(crate) fn note_modes(&mut self, level: &str, is_read_only: bool) {
        self.values.insert("transaction_isolation", level.to_owned());
        self.values.insert("transaction_read_only", if is_read_only { "on" } else { "off" }.to_owned());
    }

    /// Sets all values to their first ones.
    pub(crate) fn reset_all(&mut self) {
        for (name, _) in CHANGEABLE {
            let first = self.first_of(name);
            if self.values.get(name) != Some(&first) {
                self.change(name, &first, false);
            }
        }
    }

    /// Sets a value to its first one, until the end of the transaction if it `is_local`.
    pub(crate) fn reset(&mut self, name: &str, is_local: bool) -> Result<()> {
        let lower = name.to_ascii_lowercase();
        let known = CHANGEABLE.iter().find(|(known, _)| *known == lower);
        let (known, _) = known.ok_or_else(|| Self::unknown(name))?;
        self.change(known, &self.first_of(known), is_local);
        Ok(())
    }

    fn first_of(&self, name: &str) -> String {
        self.first.get(name).cloned().unwrap_or_default()
    }

    pub(crate) fn show(&self, name: &str) -> Result<String> {
        let lower = name.to_ascii_lowercase();
        if let Some(value) = self.values.get(lower.as_str()) {
            return Ok(value.clone());
        }
        let fixed = FIXED.iter().find(|(fixed, _)| *fixed == lower);
        fixed.map(|(_, value)| (*value).to_owned()).ok_or_else(|| Self::unknown(name))
    }

    /// Returns the value of a setting that is a boolean.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|value| boolean(&value.to_ascii_lowercase()) == Some(true))
    }

    /// Returns all settings with their values and first values.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, String, &'static str, bool)> {
        let changeable = CHANGEABLE.iter().map(|(name, first)| (*name, *first, true));
        let fixed = FIXED.iter().chain(OF_TRANSACTION).map(|(name, first)| (*name, *first, false));
        let shown = |(name, first, can_change)| Some((name, self.show(name).ok()?, first, can_change));
        changeable.chain(fixed).filter_map(shown)
    }

    /// Returns the settings that a client is told of.
    pub(crate) fn reported(&self) -> impl Iterator<Item = (&'static str, String)> {
        REPORTED.iter().filter_map(|name| Some((*name, self.show(name).ok()?)))
    }

    /// Returns the name under which a client is told of a setting, if it is.
    pub(crate) fn reported_name(name: &str) -> Option<&'static str> {
        REPORTED.iter().copied().find(|reported| reported.eq_ignore_ascii_case(name))
    }

    /// Returns the bytes that the rows of a join, of groups or of a search for different rows may
    /// take in memory.
    pub(crate) fn work_mem(&self) -> usize {
        let memory = self.values.get("work_mem").and_then(|value| amount(value, MEMORY_UNITS));
        memory.unwrap_or(LEAST_WORK_MEM) as usize * 1024
    }

    /// Returns a setting that is a time, unless it is zero.
    pub(crate) fn time(&self, of: Time) -> Option<Duration> {
        self.times[of as usize]
    }
}
