//! The report of a member: one line of `NAME=VALUE` fields separated by tabs, with a field for each
//! rail.

use std::{fmt, str::FromStr};

/// One rail in the report of a member.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// The local and the remote address.
    pub path: String,
    /// The state of the rail and its reason.
    pub state: String,
    /// The generation of the rail in its slot.
    pub generation: u32,
    /// The bytes that were sent on it.
    pub bytes_out: u64,
}

impl Seen {
    /// Returns true if the rail is connected.
    #[must_use]
    pub fn is_up(&self) -> bool {
        !self.state.starts_with("down")
    }

    /// Returns true if the rail carries messages.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state.starts_with("active")
    }
}

/// A report of a member, as described in the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The number of times that the peer came up.
    pub ups: u64,
    /// The number of times that the peer was gone.
    pub gone: u64,
    /// Messages and puts sent in this incarnation of the link.
    pub sent: u64,
    /// Messages and puts received and checked in this incarnation of the link.
    pub received: u64,
    /// The acknowledgements of the channel with the fewest in this incarnation of the link; replies
    /// count too.
    pub least: u64,
    /// The longest time without an acknowledgement on a channel since the last report, in
    /// microseconds.
    pub stall_us: u64,
    /// The connections that were closed because they did not authenticate.
    pub unauthenticated: u64,
    /// True after `stop`, once nothing is under way.
    pub idle: bool,
    /// The rails.
    pub rails: Vec<Seen>,
    /// The reason why rails are not up.
    pub problem: Option<String>,
    /// The first error.
    pub wrong: Option<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ups, gone, sent, received, least, stall_us, unauthenticated, .. } = self;
        write!(
            f,
            "ups={ups}\tgone={gone}\tsent={sent}\treceived={received}\tleast={least}\tstall_us={stall_us}\
             \tunauthenticated={unauthenticated}\tidle={}",
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
                "unauthenticated" => report.unauthenticated = number()?,
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
    fn report_survives_a_round_trip() {
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
            unauthenticated: 3,
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
