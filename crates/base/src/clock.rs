//! The monotonic clock as a number. Protocols receive [`Nanos`]; only drivers call [`now`].

use std::{
    fmt,
    ops::{Add, Sub},
    sync::OnceLock,
    time::{Duration, Instant},
};

/// Nanoseconds on one node's monotonic clock, comparable only within one process or one simulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Converts whole microseconds.
    #[must_use]
    pub const fn from_us(us: u64) -> Self {
        Self(us * 1_000)
    }

    /// Converts whole milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// Returns the time from `earlier` to this, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Add<Duration> for Nanos {
    type Output = Self;

    /// Adds a time; one that is too long for the clock ends with it.
    fn add(self, time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).map_or(u64::MAX, |nanos| self.0.saturating_add(nanos)))
    }
}

impl Sub for Nanos {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl From<Nanos> for Duration {
    fn from(nanos: Nanos) -> Self {
        Self::from_nanos(nanos.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

/// Returns the current time, counted from the first call in this process.
#[must_use]
pub fn now() -> Nanos {
    static START: OnceLock<Instant> = OnceLock::new();
    Nanos(START.get_or_init(Instant::now).elapsed().as_nanos() as u64)
}
