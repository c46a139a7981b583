//! What a member says of itself: one line, its fields `NAME=VALUE` with tabs between; a field for each rail.

use std::{fmt, str::FromStr};

/// What a member says of one of its rails.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// From where to where.
    pub path: String,
    /// Its state and the reason.
    pub state: String,
    /// Which rail of its slot it is.
    pub generation: u32,
    /// Bytes that were sent on it.
    pub bytes_out: u64,
}

impl Seen {
    /// Whether it is connected.
    #[must_use]
    pub fn is_up(&self) -> bool {
        !self.state.starts_with("down")
    }

    /// Whether it carries messages.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state.starts_with("active")
    }
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Times that the peer came.
    pub ups: u64,
    /// Times that it was gone.
    pub gone: u64,
    /// Messages and puts sent in this incarnation of the link.
    pub sent: u64,
    /// Messages and puts received and checked in this incarnation of the link.
    pub received: u64,
    /// Acknowledgements of the channel that has the fewest in this incarnation of the link; replies count as such.
    pub least: u64,
    /// The longest time without an acknowledgement on a channel since the last report, in microseconds.
    pub stall_us: u64,
    /// Connections that were turned away.
    pub strangers: u64,
    /// Nothing is under way, as it was told.
    pub idle: bool,
    /// The rails.
    pub rails: Vec<Seen>,
    /// What stands in the way of rails that are not up.
    pub problem: Option<String>,
    /// What was wrong first.
    pub wrong: Option<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ups, gone, sent, received, least, stall_us, strangers, .. } = self;
        write!(
            f,
            "ups={ups}\tgone={gone}\tsent={sent}\treceived={received}\tleast={least}\tstall_us={stall_us}\
             \tstrangers={strangers}\tidle={}",
            u64::from(self.idle)
        )?;
        for Seen { path, state, generation, bytes_out } in &self.rails {
            write!(f, "\trail={path}, {state}, {generation}, {bytes_out}")?;
        }
        for (name, text) in [("problem", &self.problem), ("wrong", &self.wrong)] {
            if let Some(text) = text {
                write!(f, "\t{name}={}", text.replace(['\t', '\n'], " "))?;
            }
        }
        Ok(())
    }
}

impl FromStr for Report {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut report = Self::default();
        for field in line.trim_end().split('\t') {
            let bad = || format!("no field of a report: {field:?}");
            let (name, value) = field.split_once('=').ok_or_else(bad)?;
            let number = || value.parse::<u64>().map_err(|_| bad());
            match name {
                "ups" => report.ups = number()?,
                "gone" => report.gone = number()?,
                "sent" => report.sent = number()?,
                "received" => report.received = number()?,
                "least" => report.least = number()?,
                "stall_us" => report.stall_us = number()?,
                "strangers" => report.strangers = number()?,
                "idle" => report.idle = number()? != 0,
                "rail" => {
                    let parts: Vec<&str> = value.split(", ").collect();
                    let [path, state, generation, bytes_out] = parts[..] else { return Err(bad()) };
                    report.rails.push(Seen {
                        path: path.into(),
                        state: state.into(),
                        generation: generation.parse().map_err(|_| bad())?,
                        bytes_out: bytes_out.parse().map_err(|_| bad())?,
                    });
                }
                "problem" => report.problem = Some(value.into()),
                "wrong" => report.wrong = Some(value.into()),
                _ => return Err(bad()),
            }
        }
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_understood() {
        let seen = |path: &str, state: &str| Seen {
            path: path.into(),
            state: state.into(),
            generation: 4,
            bytes_out: 1 << 40,
        };
        let said = Report {
            ups: 2,
            gone: 1,
            sent: 5000,
            received: 4999,
            least: 77,
            stall_us: 12_000,
            strangers: 3,
            idle: true,
            rails: vec![seen("10.0.0.1:1 -> 10.0.0.2:2", "active best"), seen("memory", "down reset")],
            problem: Some("no answer at 10.0.0.2:2 in time; it has stopped".into()),
            wrong: Some("message 3 came where 2 was due".into()),
        };
        assert_eq!(said.to_string().parse(), Ok(said));
        for nonsense in ["thread 'main' panicked", "ups=many", "rail=memory, down", "other=1"] {
            assert!(nonsense.parse::<Report>().is_err(), "{nonsense}");
        }
    }
}
