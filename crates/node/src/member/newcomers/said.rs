//! What nodes say to each other of voting files and nodes that are to be added.
//!
//! Any bytes are read without harm, and what is taken has one encoding only. Little endian:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 1 | version, 2 |
//! | 1 | 1 | what: 1 open a file, 2 it is done, 3 it is not, 4 is a node listed so, 5 keep what was asked for by 4 |
//! | 2 | 1 | (1) the node that serves the file, 255: every node opens it; (4) the node; (2, 3) what was asked: 1, 4 or 5; else 0 |
//! | 3 | 5 | zero |
//! | 8 | 8 | what it is about: (1) the file's name, (4, 5) the fingerprint of the first node and that one, (2, 3) as it was asked |
//! | 16 | | (1) the file's path, absolute or from the cluster's directory; (3) why not: text |

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use plexus_base::{
    NodeId,
    wire::{self, DecodeError, Fault, Fixed, Writer, Zeros, require, require_version},
};
use plexus_membership::protocol::FileId;

const VERSION: u8 = 2;
const OPEN: u8 = 1;
const DONE: u8 = 2;
const NOT_DONE: u8 = 3;
const LOOK: u8 = 4;
const KEEP: u8 = 5;

/// Bytes of a path or reason, at most: what the system takes for a path.
const TEXT_MAX: usize = 4096;

wire::layout! {
    struct Head: 16 { version: u8, what: u8, which: u8, zero: Zeros<5>, about: u64 }
}

/// A voting file that is to be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) file: FileId,
    /// The node that serves it; none: every node opens it.
    pub(crate) host: Option<NodeId>,
    /// From the cluster's directory, or absolute.
    pub(crate) path: PathBuf,
}

/// What an answer is to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    what: u8,
    about: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Said {
    Open(Place),
    /// A node, and the [fingerprint](crate::records::settle::Settled::fingerprint) of the first node and that one.
    Look(NodeId, u64),
    /// That fingerprint.
    Keep(u64),
    Done(Asked),
    NotDone(Asked, String),
}

impl Said {
    /// What the answer to it is to; none: it is an answer.
    pub(super) fn asks(&self) -> Option<Asked> {
        match self {
            Self::Open(place) => Some(Asked { what: OPEN, about: place.file.0 }),
            Self::Look(_, about) => Some(Asked { what: LOOK, about: *about }),
            Self::Keep(about) => Some(Asked { what: KEEP, about: *about }),
            Self::Done(_) | Self::NotDone(..) => None,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let (what, which, about, text) = match self {
            Self::Open(Place { file, host, path }) => {
                (OPEN, host.to_raw(), file.0, path.as_os_str().as_bytes())
            }
            Self::Look(node, fingerprint) => (LOOK, node.0, *fingerprint, &[][..]),
            Self::Keep(fingerprint) => (KEEP, 0, *fingerprint, &[][..]),
            Self::Done(asked) => (DONE, asked.what, asked.about, &[][..]),
            Self::NotDone(asked, why) => (NOT_DONE, asked.what, asked.about, begin(why).as_bytes()),
        };
        let mut writer =
            Writer::with(&Head { version: VERSION, what, which, zero: Zeros, about }, text.len());
        writer.bytes(text);
        writer.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        wire::decode("message about newcomers", bytes, |reader| {
            let Head { version, what, which, about, .. } = reader.take()?;
            require_version(version, VERSION)?;
            let asked = Asked { what: which, about };
            let text = match what {
                OPEN | NOT_DONE => reader.rest(),
                _ => &[],
            };
            require(text.len() <= TEXT_MAX, "length of a text")?;
            match (what, which) {
                (OPEN, host) => {
                    let host = <Option<NodeId>>::from_raw(host)?;
                    let path = Path::new(OsStr::from_bytes(text)).into();
                    Ok(Self::Open(Place { file: FileId(about), host, path }))
                }
                (LOOK, node) => Ok(Self::Look(NodeId::from_raw(node)?, about)),
                (KEEP, 0) => Ok(Self::Keep(about)),
                (DONE, OPEN | LOOK | KEEP) => Ok(Self::Done(asked)),
                (NOT_DONE, OPEN | LOOK | KEEP) => {
                    let why = std::str::from_utf8(text).map_err(|_| Fault::Field("reason"))?;
                    Ok(Self::NotDone(asked, why.into()))
                }
                _ => Err(Fault::Field("tag")),
            }
        })
    }
}

/// As much of a text as is said.
fn begin(text: &str) -> &str {
    let len = (0..=text.len().min(TEXT_MAX)).rev().find(|len| text.is_char_boundary(*len));
    &text[..len.unwrap_or(0)]
}

/// Reads any bytes as what a node says, as a fuzz target would; whether they are it. What is taken has only this encoding.
#[doc(hidden)]
#[must_use]
pub fn newcomers_any(bytes: &[u8]) -> bool {
    let said = Said::decode(bytes);
    said.inspect(|said| assert_eq!(said.encode(), bytes)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> Vec<Said> {
        let place = |host| Place { file: FileId(7), host, path: "/shared/votes".into() };
        let asks = [
            Said::Open(place(None)),
            Said::Open(place(Some(NodeId(3)))),
            Said::Look(NodeId(15), 7),
            Said::Keep(u64::MAX),
        ];
        let answers = asks
            .iter()
            .filter_map(Said::asks)
            .flat_map(|asked| [Said::Done(asked), Said::NotDone(asked, "no such file".into())]);
        asks.iter().cloned().chain(answers).collect()
    }

    #[test]
    fn what_is_said_comes_through() {
        for one in said() {
            assert_eq!(Said::decode(&one.encode()), Ok(one));
        }
        let asked = Said::Keep(9).asks().unwrap();
        let long = Said::NotDone(asked, "\u{e9}".repeat(TEXT_MAX)).encode();
        assert!(long.len() <= Head::LEN + TEXT_MAX && newcomers_any(&long));
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let good: Vec<_> = said().iter().map(Said::encode).collect();
        assert!(good.iter().all(|bytes| newcomers_any(bytes)));
        let mut taken = 0;
        plexus_sim::hostile(&good, |bytes| taken += u32::from(newcomers_any(bytes)));
        assert!(taken > 10, "{taken}");
    }
}
