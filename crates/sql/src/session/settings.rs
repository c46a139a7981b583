//! The settings of a session, as SET and SHOW know them.

use std::{collections::BTreeMap, time::Duration};

use crate::error::{Result, SqlError, code};

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
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("extra_float_digits", "1"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("intervalstyle", "postgres"),
    ("lock_timeout", "0"),
    ("quote_all_identifiers", "off"),
    ("row_security", "on"),
    ("search_path", "\"$user\", public"),
    ("standard_conforming_strings", "on"),
    ("statement_timeout", "0"),
    ("synchronize_seqscans", "on"),
    ("timezone", "UTC"),
    ("transaction_timeout", "0"),
    ("xmloption", "content"),
];

/// The settings that clients may see.
const FIXED: &[(&str, &str)] = &[
    ("in_hot_standby", "off"),
    ("integer_datetimes", "on"),
    ("is_superuser", "on"),
    ("max_identifier_length", "63"),
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
    /// Those of [`TIMES`], unless they are zero: each statement asks for them.
    times: [Option<Duration>; TIMES.len()],
    /// The names of those that were set, until the client is told.
    changed: Vec<&'static str>,
}

/// Returns a time from its text: a number of milliseconds, or with a unit.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim() {
        "" | "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(unit).map(Duration::from_millis)
}

/// Returns a boolean from its text.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "on" | "true" | "yes" | "1" => Some(true),
        "off" | "false" | "no" | "0" => Some(false),
        _ => None,
    }
}

impl Settings {
    /// Returns the settings of a new session.
    pub(crate) fn new(is_superuser: bool) -> Self {
        let role = ("is_superuser", if is_superuser { "on" } else { "off" });
        let all = CHANGEABLE.iter().chain([&role]);
        let values = all.map(|(name, value)| (*name, (*value).to_owned())).collect();
        Self { values, times: Default::default(), changed: Vec::new() }
    }

    fn change(&mut self, name: &'static str, value: &str) {
        self.values.insert(name, value.to_owned());
        if let Some(at) = TIMES.iter().position(|time| *time == name) {
            self.times[at] = duration(&value.to_ascii_lowercase()).filter(|time| !time.is_zero());
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
        let lower = name.to_ascii_lowercase();
        if FIXED.iter().any(|(fixed, _)| *fixed == lower) {
            let message = format!("parameter \"{name}\" cannot be changed");
            return Err(SqlError::new("55P02", message));
        }
        let Some((known, _)) = CHANGEABLE.iter().find(|(known, _)| *known == lower) else {
            return Err(Self::unknown(name));
        };
        let plain = value.to_ascii_lowercase();
        let is_valid = match *known {
            "client_encoding" => matches!(plain.as_str(), "utf8" | "utf-8" | "unicode"),
            "datestyle" => plain.starts_with("iso"),
            "timezone" => matches!(plain.as_str(), "utc" | "gmt" | "etc/utc" | "default"),
            "standard_conforming_strings" => matches!(plain.as_str(), "on" | "true" | "1" | "yes"),
            "intervalstyle" => plain == "postgres",
            known if TIMES.contains(&known) => duration(&plain).is_some(),
            "default_transaction_isolation" => {
                matches!(plain.as_str(), "read committed" | "read uncommitted" | "repeatable read")
            }
            // Nothing depends on these here.
            "check_function_bodies" | "row_security" | "synchronize_seqscans" => boolean(&plain).is_some(),
            "default_transaction_read_only" => boolean(&plain).is_some(),
            "quote_all_identifiers" => boolean(&plain) == Some(false),
            "idle_session_timeout" | "transaction_timeout" => {
                duration(&plain).is_some_and(|time| time.is_zero())
            }
            "bytea_output" => plain == "hex",
            "default_table_access_method" => plain == "heap",
            "default_tablespace" => plain.is_empty(),
            "xmloption" => matches!(plain.as_str(), "content" | "document"),
            _ => true,
        };
        if !is_valid {
            return Err(SqlError::unsupported(format!("the value \"{value}\" of {known}")));
        }
        self.change(known, value);
        Ok(())
    }

    /// Sets a value to its first one; all of them without a name.
    pub(crate) fn reset(&mut self, name: Option<&str>) -> Result<()> {
        let Some(name) = name else {
            let mut new = Self::new(self.show("is_superuser")? == "on");
            let is_other = |name: &&str| self.values.get(name) != new.values.get(name);
            new.changed = self.values.keys().copied().filter(is_other).collect();
            *self = new;
            return Ok(());
        };
        let lower = name.to_ascii_lowercase();
        let (known, first) =
            CHANGEABLE.iter().find(|(known, _)| *known == lower).ok_or_else(|| Self::unknown(name))?;
        self.change(known, first);
        Ok(())
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
        let fixed = FIXED.iter().map(|(name, first)| (*name, *first, false));
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

    /// Returns a setting that is a time, unless it is zero.
    pub(crate) fn time(&self, of: Time) -> Option<Duration> {
        self.times[of as usize]
    }
}
