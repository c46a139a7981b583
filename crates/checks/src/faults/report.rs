//! The report of a member: one line of JSON.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// One rail in the report of a member.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
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
    pub fn is_up(&self) -> bool {
        !self.state.starts_with("down")
    }

    /// Returns true if the rail carries messages.
    pub fn is_active(&self) -> bool {
        self.state.starts_with("active")
    }
}

/// A report of a member, as described in the module.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
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
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Report {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|error| format!("no report: {line:?}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_survives_a_round_trip_in_one_line() {
        let rails =
            vec![Seen { path: "10.0.0.1:1 -> 10.0.0.2:2".into(), ..Seen::default() }, Seen::default()];
        let wrong = Some("message 3 came\nwhere 2 was due".into());
        let said = Report { ups: 2, idle: true, rails, wrong, ..Report::default() };
        assert_eq!((said.to_string().lines().count(), said.to_string().parse()), (1, Ok(said)));
        for nonsense in ["thread 'main' panicked", "{\"ups\":1}", "{\"other\":1}"] {
            assert!(nonsense.parse::<Report>().is_err(), "{nonsense}");
        }
    }
}
