//! The messages between nodes about voting files and nodes that are to be added.
//!
//! The decoder accepts any bytes and takes only one encoding of each message. Little endian:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 1 | version, 2 |
//! | 1 | 1 | type: 1 open a file, 2 done, 3 not done, 4 compare the list, 5 keep the list of type 4 |
//! | 2 | 1 | (1) the node that serves the file, 255: every node opens it; (4) the node; (2, 3) the type of the request: 1, 4 or 5; else 0 |
//! | 3 | 5 | zero |
//! | 8 | 8 | subject: (1) the file's identifier, (4, 5) the fingerprint of the settings and that node, (2, 3) as in the request |
//! | 16 | | (1) the file's path, absolute or from the cluster's directory; (3) the reason as text |

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

/// The most bytes of a path or reason: the longest path that the system takes.
const TEXT_MAX: usize = 4096;

wire::layout! {
    struct Head: 16 { version: u8, what: u8, which: u8, zero: Zeros<5>, about: u64 }
}

/// A voting file that nodes must open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct VotingFileLocation {
    pub(crate) file: FileId,
    /// The node that serves it; if `None`, every node opens it.
    pub(crate) host: Option<NodeId>,
    /// The path, absolute or relative to the cluster's directory.
    pub(crate) path: PathBuf,
}

/// The request that an answer belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RequestKey {
    what: u8,
    about: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum NewcomerMessage {
    Open(VotingFileLocation),
    /// Asks for a comparison: a node, and the
    /// [fingerprint](plexus_admin::config::Config::fingerprint) of the settings and that node.
    Look(NodeId, u64),
    /// Asks to keep the list with that fingerprint.
    Keep(u64),
    Done(RequestKey),
    NotDone(RequestKey, String),
}

impl NewcomerMessage {
    /// Returns the key of the answers to a request; `None` if the message is an answer.
    pub(super) fn asks(&self) -> Option<RequestKey> {
        match self {
            Self::Open(place) => Some(RequestKey { what: OPEN, about: place.file.0 }),
            Self::Look(_, about) => Some(RequestKey { what: LOOK, about: *about }),
            Self::Keep(about) => Some(RequestKey { what: KEEP, about: *about }),
            Self::Done(_) | Self::NotDone(..) => None,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let (what, which, about, text) = match self {
            Self::Open(VotingFileLocation { file, host, path }) => {
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
            let asked = RequestKey { what: which, about };
            let text = match what {
                OPEN | NOT_DONE => reader.rest(),
                _ => &[],
            };
            require(text.len() <= TEXT_MAX, "length of a text")?;
            match (what, which) {
                (OPEN, host) => {
                    let host = <Option<NodeId>>::from_raw(host)?;
                    let path = Path::new(OsStr::from_bytes(text)).into();
                    Ok(Self::Open(VotingFileLocation { file: FileId(about), host, path }))
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

/// Returns the start of a text, cut to the limit.
fn begin(text: &str) -> &str {
    let len = (0..=text.len().min(TEXT_MAX)).rev().find(|len| text.is_char_boundary(*len));
    &text[..len.unwrap_or(0)]
}

/// Decodes any bytes as a message, for fuzzing; returns true if they are one. Asserts that each
/// message has one encoding.
#[doc(hidden)]
pub fn newcomers_any(bytes: &[u8]) -> bool {
    let said = NewcomerMessage::decode(bytes);
    said.inspect(|said| assert_eq!(said.encode(), bytes)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> Vec<NewcomerMessage> {
        let place = |host| VotingFileLocation { file: FileId(7), host, path: "/shared/votes".into() };
        let asks = [
            NewcomerMessage::Open(place(None)),
            NewcomerMessage::Open(place(Some(NodeId(3)))),
            NewcomerMessage::Look(NodeId(15), 7),
            NewcomerMessage::Keep(u64::MAX),
        ];
        let answers = asks.iter().filter_map(NewcomerMessage::asks).flat_map(|asked| {
            [NewcomerMessage::Done(asked), NewcomerMessage::NotDone(asked, "no such file".into())]
        });
        asks.iter().cloned().chain(answers).collect()
    }

    #[test]
    fn messages_survive_encoding_and_decoding() {
        for one in said() {
            assert_eq!(NewcomerMessage::decode(&one.encode()), Ok(one));
        }
        let asked = NewcomerMessage::Keep(9).asks().unwrap();
        let long = NewcomerMessage::NotDone(asked, "\u{e9}".repeat(TEXT_MAX)).encode();
        assert!(long.len() <= Head::LEN + TEXT_MAX && newcomers_any(&long));
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let good: Vec<_> = said().iter().map(NewcomerMessage::encode).collect();
        assert!(good.iter().all(|bytes| newcomers_any(bytes)));
        let mut taken = 0;
        plexus_sim::hostile(&good, |bytes| taken += u32::from(newcomers_any(bytes)));
        assert!(taken > 10, "{taken}");
    }
}
