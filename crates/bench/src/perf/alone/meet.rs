//! The first messages between a client and a listener, over a [sealed](super::sealed) connection:
//! a request and an answer, as JSON.
//!
//! ```text
//! -> {"version":4,"machine":"...","rail":"auto","waiting":"adaptive","driving":"waiting","core":1,"encrypt":"auto"}
//! <- {"Ok":{"rail":"shm","why":"...","encrypt":false,"cluster":[16 numbers],"port":40001}}    or {"Err":"one line"}
//! ```
//!
//! Unknown fields and other versions are refused.

use std::{fmt, str::FromStr};

use plexus_admin::config::Encrypt;
use plexus_base::Waiting;
use plexus_fabric::RailKind;
use plexus_interconnect::mesh::{check_available, check_built};
use serde::{Deserialize, Serialize};

use crate::perf::Driving;

/// The default port of a listener.
pub const PORT: u16 = 7490;

/// The version that both sides must have.
pub(super) const VERSION: u32 = 4;

/// The rail that a client requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RailChoice {
    /// The best rail that both sides have.
    Auto,
    /// This rail only.
    Only(RailKind),
}

impl RailChoice {
    /// Returns each built-in rail by itself, the fastest first.
    pub fn every() -> Vec<Self> {
        RailKind::BUILT_IN.map(Self::Only).into()
    }
}

impl fmt::Display for RailChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Only(kind) => kind.fmt(f),
        }
    }
}

impl FromStr for RailChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().and_then(check_built).map(Self::Only).map_err(|why: String| format!("{why}, or auto"))
    }
}

/// The request of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ask {
    /// The rail.
    pub rail: RailChoice,
    /// The waiting mode of threads that do not poll.
    pub waiting: Waiting,
    /// The driver of the workers.
    pub driving: Driving,
    /// The core for the listener's side.
    pub core: Option<usize>,
    /// The encryption of network traffic.
    pub encrypt: Encrypt,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AskWire {
    pub(super) version: u32,
    pub(super) machine: String,
    pub(super) rail: String,
    pub(super) waiting: String,
    pub(super) driving: Driving,
    pub(super) core: Option<usize>,
    pub(super) encrypt: Encrypt,
}

impl AskWire {
    pub(super) fn of(ask: &Ask, machine: String) -> Self {
        Self {
            version: VERSION,
            machine,
            rail: ask.rail.to_string(),
            waiting: ask.waiting.to_string(),
            driving: ask.driving,
            core: ask.core,
            encrypt: ask.encrypt,
        }
    }

    /// Returns the request if it is valid.
    pub(super) fn ask(&self) -> Result<Ask, String> {
        if self.version != VERSION {
            return Err(format!("it speaks version {}, this listener {VERSION}", self.version));
        }
        Ok(Ask {
            rail: self.rail.parse()?,
            waiting: self.waiting.parse()?,
            driving: self.driving,
            core: self.core,
            encrypt: self.encrypt,
        })
    }
}

/// Decodes any bytes as a request, for a fuzz target. Returns true if they are valid.
#[doc(hidden)]
pub fn ask_any(bytes: &[u8]) -> bool {
    serde_json::from_slice::<AskWire>(bytes).is_ok_and(|wire| wire.ask().is_ok())
}

/// The answer of a listener.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    /// The rail, and the reason for it.
    pub(super) rail: String,
    pub(super) why: String,
    /// True if the rail encrypts.
    pub(super) encrypt: bool,
    /// The random name of the cluster of two.
    pub(super) cluster: [u8; 16],
    /// The port of the listener's mesh.
    pub(super) port: u16,
}

/// Returns the rail for a client on machine `theirs` and a listener on `ours`, the reason for it,
/// and true if it encrypts.
pub(super) fn choose(ask: &Ask, ours: &str, theirs: &str) -> Result<(RailKind, String, bool), String> {
    let same = !ours.is_empty() && ours == theirs;
    let (kind, why) = rail(ask.rail, same)?;
    Ok((kind, why, encrypts(ask.encrypt, kind, same)?))
}

/// Returns true if the rail encrypts. By default traffic that leaves the machine is encrypted.
fn encrypts(encrypt: Encrypt, rail: RailKind, same: bool) -> Result<bool, String> {
    let wanted = encrypt == Encrypt::Always || encrypt == Encrypt::Auto && !same;
    match rail {
        RailKind::Shm => Ok(false),
        RailKind::Tcp => Ok(wanted),
        RailKind::Ofi if wanted => {
            Err("libfabric encrypts nothing: use --rail tcp, or measure it as it is with --plain".into())
        }
        RailKind::Ofi => Ok(false),
    }
}

fn rail(rail: RailChoice, same: bool) -> Result<(RailKind, String), String> {
    match rail {
        RailChoice::Auto if same => {
            Ok((RailKind::Shm, "both are on one machine, where memory is fastest".into()))
        }
        RailChoice::Auto => Ok((RailKind::Tcp, "what two machines have in common".into())),
        RailChoice::Only(RailKind::Shm) if !same => {
            Err("shm needs both on one machine, in one network namespace and as one user; use --rail tcp"
                .into())
        }
        RailChoice::Only(kind) => {
            check_available(kind)?;
            Ok((kind, "asked for with --rail".into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(rail: RailChoice, encrypt: Encrypt) -> Ask {
        Ask { rail, waiting: Waiting::Event, driving: Driving::Waiting, core: Some(1), encrypt }
    }

    #[test]
    fn memory_only_where_both_are() {
        let kind = |rail, ours, theirs| {
            choose(&ask(rail, Encrypt::Auto), ours, theirs).map(|(kind, _, encrypted)| (kind, encrypted))
        };
        assert_eq!(kind(RailChoice::Auto, "a", "a"), Ok((RailKind::Shm, false)));
        assert_eq!(kind(RailChoice::Auto, "a", "b"), Ok((RailKind::Tcp, true)));
        assert_eq!(kind(RailChoice::Auto, "", ""), Ok((RailKind::Tcp, true)), "the machines are unknown");
        assert_eq!(kind(RailChoice::Only(RailKind::Tcp), "a", "a"), Ok((RailKind::Tcp, false)));
        assert!(kind(RailChoice::Only(RailKind::Shm), "a", "b").unwrap_err().contains("one machine"));
        assert!("ipx".parse::<RailChoice>().unwrap_err().contains("or auto"));
    }

    #[test]
    fn what_leaves_the_machine_is_encrypted_unless_told_otherwise() {
        for (encrypt, here, away) in
            [(Encrypt::Auto, false, true), (Encrypt::Always, true, true), (Encrypt::Never, false, false)]
        {
            assert_eq!(encrypts(encrypt, RailKind::Tcp, true), Ok(here));
            assert_eq!(encrypts(encrypt, RailKind::Tcp, false), Ok(away));
            assert_eq!(encrypts(encrypt, RailKind::Shm, true), Ok(false), "it stays where it is");
            assert_eq!(encrypts(encrypt, RailKind::Ofi, true).is_err(), here);
            assert_eq!(encrypts(encrypt, RailKind::Ofi, false).is_err(), away);
        }
    }

    #[test]
    fn strange_words_are_errors() {
        let wire = AskWire::of(&ask(RailChoice::Auto, Encrypt::Always), "m".into());
        let mut said = serde_json::to_value(&wire).unwrap();
        let back: AskWire = serde_json::from_value(said.clone()).unwrap();
        assert_eq!(back.ask(), Ok(ask(RailChoice::Auto, Encrypt::Always)));
        assert!(AskWire { version: 9, ..back }.ask().unwrap_err().contains("version 9"));
        said["x"] = 1.into();
        assert!(serde_json::from_value::<AskWire>(said).is_err());
        let good = serde_json::to_vec(&wire).unwrap();
        assert!(ask_any(&good));
        plexus_sim::hostile(&[good], |bytes| assert!(!ask_any(bytes) || bytes.len() > 50));
    }
}
