//! The modes in which a thread waits for the interconnect.

use std::{fmt, str::FromStr};

/// The waiting mode of a node, set in the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Waiting {
    /// Never sleep: the lowest latency, at the cost of one core for each waiting thread.
    Polling,
    /// Sleep as soon as there is nothing to do: the least CPU, with a wake-up in every response
    /// time.
    Event,
    /// Poll for a short time, yielding the core to other threads, then sleep.
    #[default]
    Adaptive,
}

impl Waiting {
    /// All modes, in the order of the documentation.
    pub const ALL: [Self; 3] = [Self::Polling, Self::Event, Self::Adaptive];

    /// Returns the name used in configuration files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::Event => "event",
            Self::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Waiting {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| format!("unknown waiting mode `{text}`: use polling, event or adaptive"))
    }
}
