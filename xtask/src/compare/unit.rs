//! The units of measurements, and how their values are shown.

/// The unit of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Unit {
    /// Nanoseconds: less is better.
    Ns,
    /// Milliseconds: less is better.
    Ms,
    /// A number each second: more is better.
    PerSecond,
    /// 10^6 bytes a second: more is better.
    Megabytes,
    /// Percent of a core: less is better.
    Percent,
    /// A number without a unit: less is better.
    Number,
}

impl Unit {
    pub(crate) fn less_is_better(self) -> bool {
        matches!(self, Self::Ns | Self::Ms | Self::Percent | Self::Number)
    }

    /// Formats a value with its unit, to about three significant digits.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::Ns if value < 1000.0 => format!("{value:.0} ns"),
            Self::Ns if value < 1e6 => format!("{:.2} us", value / 1e3),
            Self::Ns => format!("{:.2} ms", value / 1e6),
            Self::Ms => format!("{value:.0} ms"),
            Self::PerSecond if value < 1e4 => format!("{value:.0}/s"),
            Self::PerSecond if value < 1e6 => format!("{:.0} k/s", value / 1e3),
            Self::PerSecond => format!("{:.2} M/s", value / 1e6),
            Self::Megabytes => format!("{:.2} GB/s", value / 1e3),
            Self::Percent => format!("{value:.2} %"),
            Self::Number => format!("{value:.2}"),
        }
    }
}
