//! The first words between a client and a listener: a line of JSON each way.
//!
//! ```text
//! -> {"version":2,"machine":"...","rail":"auto","waiting":"adaptive","driving":"waiting","core":1,"encrypt":false,"keyed":true}
//! <- {"Ok":{"rail":"shm","why":"...","cluster":"32 hex digits","port":40001}}    or {"Err":"one line"}
//! ```
//!
//! Nothing of this is secret, and nothing of it is trusted: whoever changes it on the way can keep the two from meeting, no
//! more. With a key each side proves it to the other when their meshes join, and refuses to join without.
//!
//! Lines are short and come soon, or the connection is closed. Unknown fields are refused, as another version is.

use std::{
    fmt,
    io::{self, Read, Write},
    net::TcpStream,
    str::FromStr,
    time::{Duration, Instant},
};

use plexus_base::Waiting;
use plexus_fabric::{RailKind, ofi};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::perf::Driving;

/// Where a listener listens unless told otherwise.
pub const PORT: u16 = 7490;

/// What both sides must speak.
pub(super) const VERSION: u32 = 2;

/// Longest line.
const LINE: usize = 4096;

/// Which rail a client wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RailChoice {
    /// The best that both have.
    Auto,
    /// This one or none.
    Only(RailKind),
}

impl RailChoice {
    /// Each rail by itself, the fastest first.
    #[must_use]
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
        let known = || RailKind::ALL.map(RailKind::name).join(", ");
        let kind = RailKind::ALL.into_iter().find(|kind| kind.name() == text);
        kind.map(Self::Only).ok_or_else(|| format!("unknown rail `{text}`: use auto or one of {}", known()))
    }
}

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ask {
    /// The rail.
    pub rail: RailChoice,
    /// How threads wait that do not poll.
    pub waiting: Waiting,
    /// Who drives the workers.
    pub driving: Driving,
    /// The core that the listener's side is to stay on.
    pub core: Option<usize>,
    /// Whether what goes over a network is encrypted.
    pub encrypt: bool,
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
    pub(super) encrypt: bool,
    /// Whether the client has a key that the listener must have too.
    pub(super) keyed: bool,
}

impl AskWire {
    pub(super) fn of(ask: &Ask, machine: String, keyed: bool) -> Self {
        Self {
            version: VERSION,
            machine,
            rail: ask.rail.to_string(),
            waiting: ask.waiting.to_string(),
            driving: ask.driving,
            core: ask.core,
            encrypt: ask.encrypt,
            keyed,
        }
    }

    /// What is asked for, if it makes sense.
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

/// What a listener answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    /// The rail, and why that one.
    pub(super) rail: String,
    pub(super) why: String,
    /// The random name of the cluster of two.
    pub(super) cluster: [u8; 16],
    /// Where its mesh listens.
    pub(super) port: u16,
}

/// Whether this machine has what a rail of this kind needs; the line says what to install.
pub(super) fn has(rail: RailKind) -> Result<(), String> {
    match rail {
        RailKind::Ofi => ofi::available().map_err(|why| why.to_string()),
        RailKind::Shm | RailKind::Tcp => Ok(()),
    }
}

/// Refuses where only one of the two has a key.
pub(super) fn keys_agree(ours: bool, theirs: bool) -> Result<(), String> {
    match (ours, theirs) {
        (true, false) => Err("it serves only who has its key: name the same file with --key".into()),
        (false, true) => Err("it has no key: start it with --key and the same file".into()),
        _ => Ok(()),
    }
}

/// The rail for a client on `theirs` as seen by a listener on `ours`, and why.
pub(super) fn choose(rail: RailChoice, ours: &str, theirs: &str) -> Result<(RailKind, String), String> {
    let same = !ours.is_empty() && ours == theirs;
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
            has(kind)?;
            Ok((kind, "asked for with --rail".into()))
        }
    }
}

/// Sends a line.
pub(super) fn say(stream: &mut TcpStream, words: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(words)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Waits for a line, at most so long.
pub(super) fn hear<T: DeserializeOwned>(stream: &mut TcpStream, within: Duration) -> io::Result<T> {
    let end = Instant::now() + within;
    let mut line = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if byte == *b"\n" => break,
            Ok(_) if line.len() == LINE => return Err(io::ErrorKind::InvalidData.into()),
            Ok(_) => line.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(serde_json::from_slice(&line)?)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn memory_only_where_both_are() {
        let kind = |rail, ours, theirs| choose(rail, ours, theirs).map(|(kind, _)| kind);
        assert_eq!(kind(RailChoice::Auto, "a", "a"), Ok(RailKind::Shm));
        assert_eq!(kind(RailChoice::Auto, "a", "b"), Ok(RailKind::Tcp));
        assert_eq!(kind(RailChoice::Auto, "", ""), Ok(RailKind::Tcp), "nobody knows");
        assert_eq!(kind(RailChoice::Only(RailKind::Tcp), "a", "a"), Ok(RailKind::Tcp));
        assert!(kind(RailChoice::Only(RailKind::Shm), "a", "b").unwrap_err().contains("one machine"));
        assert!("ipx".parse::<RailChoice>().unwrap_err().contains("use auto or one of"));
    }

    #[test]
    fn strange_lines_are_errors() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for bytes in [
            &b"hello\n"[..],
            b"{}\n",
            b"",
            &[b'x'; 2 * LINE],
            br#"{"version":2,"machine":"","rail":"auto","waiting":"event","driving":"polling","core":null,"encrypt":true,"keyed":true,"x":1}
"#,
        ] {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(bytes).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            let heard = hear::<AskWire>(&mut server, Duration::from_secs(5));
            assert!(heard.is_err(), "{heard:?}");
        }
        let ask = Ask {
            rail: RailChoice::Auto,
            waiting: Waiting::Event,
            driving: Driving::Waiting,
            core: Some(1),
            encrypt: true,
        };
        let wire = AskWire::of(&ask, "m".into(), true);
        let text = serde_json::to_string(&wire).unwrap();
        let back: AskWire = serde_json::from_str(&text).unwrap();
        assert_eq!(back.ask(), Ok(ask));
        assert!(AskWire { version: 9, ..back }.ask().unwrap_err().contains("version 9"));
        assert_eq!((keys_agree(true, true), keys_agree(false, false)), (Ok(()), Ok(())));
        assert!(keys_agree(true, false).is_err() && keys_agree(false, true).is_err());
    }
}
