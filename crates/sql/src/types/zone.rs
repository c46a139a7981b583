//! Time zones: their names and offsets, and the zone of the session, with its order of dates.
//!
//! Values are read and shown in places that know no session. So the zone of a session is a variable
//! of its thread while the session's task is polled: [`of_session`] sets it.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::{Future, poll_fn},
    pin::pin,
    sync::LazyLock,
};

use jiff::{
    Timestamp,
    tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase},
};

use super::time::{self, SECOND};
use crate::error::{Result, error};

/// The database in the program. The files of the machine mean nothing: all nodes know the same
/// zones.
static DATABASE: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The abbreviations of PostgreSQL's first settings: the seconds in the east of UTC, and whether it
/// is a time in summer. In the text these are minutes behind `=` or `*`.
static ABBREVIATIONS: LazyLock<BTreeMap<&str, (i64, bool)>> = LazyLock::new(|| {
    let read = |entry: &'static str| {
        let (name, minutes) = entry.split_once(['=', '*'])?;
        Some((name, (minutes.parse::<i64>().ok()? * 60, entry.contains('*'))))
    };
    include_str!("abbreviations.txt").split_ascii_whitespace().filter_map(read).collect()
});

/// The seconds from 1970-01-01 to 2000-01-01.
const EPOCH: i64 = 946_684_800;

/// The calendar, and the rules of all zones in the future, are the same again after 400 years.
const CYCLE: i64 = 146_097 * 86_400;

/// The last moment for which the library knows offsets: it leaves out the year 9999, for offsets.
const LAST: i64 = 253_370_764_800;

thread_local! {
    static CURRENT: RefCell<TimeZone> = const { RefCell::new(TimeZone::UTC) };
    static ORDER: Cell<DateOrder> = const { Cell::new(DateOrder::Mdy) };
}

/// The order of the numbers of a date that does not begin with a long year.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DateOrder {
    Mdy,
    Dmy,
    Ymd,
}

impl DateOrder {
    /// Returns the order of the session.
    pub(crate) fn current() -> Self {
        ORDER.get()
    }

    /// Makes it the order of the session.
    pub(crate) fn make_current(self) {
        ORDER.set(self);
    }

    /// Reads a word of the setting.
    pub(crate) fn of_setting(word: &str) -> Option<Self> {
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| word.starts_with(prefix));
        match word {
            _ if starts(&["ymd"]) => Some(Self::Ymd),
            _ if starts(&["dmy", "euro"]) => Some(Self::Dmy),
            _ if starts(&["mdy", "noneuro"]) || word == "us" => Some(Self::Mdy),
            _ => None,
        }
    }
}

/// A time zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Zone(TimeZone);

/// Runs a session, which begins in UTC.
pub(crate) async fn of_session<T>(session: impl Future<Output = T>) -> T {
    let mut session = pin!(session);
    let (mut zone, mut order) = (TimeZone::UTC, DateOrder::Mdy);
    poll_fn(|context| {
        let other = (CURRENT.replace(zone.clone()), ORDER.replace(order));
        let polled = session.as_mut().poll(context);
        (zone, order) = (CURRENT.replace(other.0), ORDER.replace(other.1));
        polled
    })
    .await
}

impl Zone {
    pub(crate) const UTC: Self = Self(TimeZone::UTC);

    /// Returns the zone of the session.
    pub(crate) fn current() -> Self {
        Self(CURRENT.with_borrow(Clone::clone))
    }

    /// Makes it the zone of the session.
    pub(crate) fn make_current(self) {
        CURRENT.set(self.0);
    }

    /// Returns the zone that is always so many seconds in the east of UTC.
    pub(crate) fn fixed(east: i64) -> Option<Self> {
        let offset = Offset::from_seconds(i32::try_from(east).ok()?).ok()?;
        Some(Self(TimeZone::fixed(offset)))
    }

    /// Returns the zone with a name, or with an offset in POSIX's form, which counts to the west;
    /// and its name as SHOW shows it.
    pub(crate) fn named(name: &str) -> Option<(Self, String)> {
        let is_name = |char: char| char.is_ascii_graphic();
        if name.is_empty() || name.len() > 255 || !name.chars().all(is_name) {
            return None;
        }
        if let Ok(zone) = DATABASE.get(name)
            && !zone.is_unknown()
        {
            let shown = zone.iana_name().unwrap_or(name).to_owned();
            return Some((Self(zone), shown));
        }
        let upper = name.to_ascii_uppercase();
        let rest = match upper.strip_prefix('<') {
            Some(quoted) => quoted.split_once('>')?.1,
            None => upper.trim_start_matches(|char: char| char.is_ascii_alphabetic()),
        };
        let signed = if rest.starts_with(['+', '-']) { rest.to_owned() } else { format!("+{rest}") };
        let zone = match time::parse_offset(&signed) {
            Some(west) => Self::fixed(-west)?,
            None => Self(TimeZone::posix(name).ok()?),
        };
        Some((zone, upper))
    }

    /// Returns the zone that a setting names: also a number of hours in the east.
    pub(crate) fn of_setting(text: &str) -> Option<(Self, String)> {
        match text.trim().parse::<f64>() {
            Ok(hours) if hours.abs() <= 168.0 => {
                let east = (hours * 3600.0) as i64;
                Some((Self::fixed(east)?, posix_name(east)))
            }
            Ok(_) => None,
            Err(_) => Self::named(text),
        }
    }

    /// Returns the zone with a name or an abbreviation, as values name it.
    pub(crate) fn of_value(name: &str) -> Result<Self> {
        let found = match ABBREVIATIONS.get(name.to_ascii_lowercase().as_str()) {
            Some((east, _)) => Self::fixed(*east),
            None => Self::named(name).map(|(zone, _)| zone),
        };
        found.ok_or_else(|| error!(INVALID_PARAMETER_VALUE, "time zone \"{name}\" not recognized"))
    }

    /// Returns the names of all zones.
    pub(crate) fn names() -> impl Iterator<Item = String> {
        DATABASE.available().map(|name| name.as_str().to_owned())
    }

    /// Returns the known abbreviations, with the seconds in the east of UTC, and whether each is of
    /// a time in summer.
    pub(crate) fn abbreviations() -> impl Iterator<Item = (String, i64, bool)> {
        ABBREVIATIONS.iter().map(|(name, (east, is_summer))| (name.to_ascii_uppercase(), *east, *is_summer))
    }

    fn offset(&self, moment: i64) -> (i64, Timestamp) {
        let seconds = moment.div_euclid(SECOND) + EPOCH;
        let cycles = ((seconds - LAST).max(0) + CYCLE - 1) / CYCLE;
        let at = Timestamp::from_second(seconds - cycles * CYCLE).unwrap_or(Timestamp::MAX);
        (self.0.to_offset(at).seconds().into(), at)
    }

    /// Returns the seconds in the east of UTC at a moment.
    pub(crate) fn offset_at(&self, moment: i64) -> i64 {
        if self.0 == TimeZone::UTC { 0 } else { self.offset(moment).0 }
    }

    /// Returns the abbreviation at a moment, and whether it is of a time in summer.
    pub(crate) fn abbreviation(&self, moment: i64) -> (String, bool) {
        let info = self.0.to_offset_info(self.offset(moment).1);
        (info.abbreviation().to_owned(), info.dst().is_dst())
    }

    /// Returns the time of the zone at a moment.
    pub(crate) fn to_local(&self, moment: i64) -> i64 {
        if time::is_infinite(moment) { moment } else { moment + self.offset_at(moment) * SECOND }
    }

    /// Returns the seconds in the east of UTC at a time of the zone. A time that is left out counts
    /// as before the change of the offset, one that is there twice as behind it.
    pub(crate) fn offset_of_local(&self, local: i64) -> i64 {
        if self.0 == TimeZone::UTC {
            return 0;
        }
        let civil = Offset::UTC.to_datetime(self.offset(local).1);
        let offset = match self.0.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset,
            AmbiguousOffset::Gap { before, .. } => before,
            AmbiguousOffset::Fold { after, .. } => after,
        };
        offset.seconds().into()
    }

    /// Returns the moment of a time of the zone.
    pub(crate) fn to_moment(&self, local: i64) -> Result<i64> {
        match time::is_infinite(local) {
            true => Ok(local),
            false => {
                let east = self.offset_of_local(local) * SECOND;
                time::checked_moment(i128::from(local) - i128::from(east))
            }
        }
    }
}

/// Returns the name that PostgreSQL makes of an offset.
pub(crate) fn posix_name(east: i64) -> String {
    let (sign, other) = if east < 0 { ('-', '+') } else { ('+', '-') };
    let offset = &time::print_offset(east.abs())[1..];
    format!("<{sign}{offset}>{other}{offset}")
}
