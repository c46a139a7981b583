//! The header in front of every message of a link, 16 bytes, little endian:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | form: kind (request 0, forward 1, reply 2, note 3), or'ed with 0x80 when more fragments follow |
//! | 1 | 1 | channel |
//! | 2 | 3 | credits returned, one byte for each kind |
//! | 5 | 3 | zero |
//! | 8 | 4 | epoch |
//! | 12 | 4 | tag: names a call, or is the sender's own |

use plexus_base::{Epoch, NodeId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian::U32};

use crate::Channel;

/// What a message is to the conversation it belongs to; each kind has credits of its own, so that a reply
/// never waits for room that only another request would free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Starts something.
    Request = 0,
    /// Passes a request on, or asks something on its behalf.
    Forward = 1,
    /// Ends something.
    Reply = 2,
}

/// How many kinds there are.
pub const KINDS: usize = 3;

impl Kind {
    /// Every kind.
    pub const ALL: [Self; KINDS] = [Self::Request, Self::Forward, Self::Reply];
}

/// A message that has arrived, whole.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Who sent it.
    pub from: NodeId,
    /// The subsystem it is for.
    pub channel: Channel,
    /// What it is to the conversation.
    pub kind: Kind,
    /// The epoch that its sender was in.
    pub epoch: Epoch,
    /// The sender's tag; a reply to a call carries the call's.
    pub tag: u32,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// Bytes of the header.
pub(crate) const HEADER: usize = size_of::<Header>();

const MORE: u8 = 0x80;
const NOTE: u8 = 3;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Header {
    form: u8,
    channel: u8,
    pub(crate) credits: [u8; KINDS],
    zero: [u8; 3],
    epoch: U32,
    tag: U32,
}

/// What a header says, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    Message { kind: Kind, more: bool, channel: Channel, epoch: Epoch, tag: u32 },
    Note,
}

impl Header {
    pub(crate) fn message(kind: Kind, more: bool, channel: Channel, epoch: Epoch, tag: u32) -> Self {
        Self {
            form: kind as u8 | if more { MORE } else { 0 },
            channel: channel as u8,
            credits: [0; KINDS],
            zero: [0; 3],
            epoch: epoch.0.into(),
            tag: tag.into(),
        }
    }

    pub(crate) fn note() -> Self {
        Self { form: NOTE, channel: 0, credits: [0; KINDS], zero: [0; 3], epoch: 0.into(), tag: 0.into() }
    }

    /// `None` for what no peer sends.
    pub(crate) fn form(&self) -> Option<Form> {
        if self.form == NOTE {
            return Some(Form::Note);
        }
        let kind = *Kind::ALL.get(usize::from(self.form & !MORE))?;
        Some(Form::Message {
            kind,
            more: self.form & MORE != 0,
            channel: Channel::from_wire(self.channel)?,
            epoch: Epoch(self.epoch.get()),
            tag: self.tag.get(),
        })
    }
}

/// Reads a header from any bytes, as a fuzz target would; whether there is one.
#[doc(hidden)]
#[must_use]
pub fn header_any(bytes: &[u8]) -> bool {
    Header::read_from_prefix(bytes).is_ok_and(|(header, _)| header.form().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_headers_do_no_harm() {
        let header = Header::message(Kind::Reply, false, Channel::CacheRequests, Epoch(1), 2);
        let good = [header.as_bytes().to_vec(), Header::note().as_bytes().to_vec()];
        assert!(good.iter().all(|bytes| header_any(bytes)));
        plexus_sim::hostile(&good, |bytes| assert!(!header_any(bytes) || bytes.len() >= HEADER));
    }

    #[test]
    fn every_header_decodes_to_what_it_says_or_is_refused() {
        assert_eq!(HEADER, 16);
        let sent = Header::message(Kind::Forward, true, Channel::CacheRequests, Epoch(7), 9);
        let form = Form::Message {
            kind: Kind::Forward,
            more: true,
            channel: Channel::CacheRequests,
            epoch: Epoch(7),
            tag: 9,
        };
        assert_eq!(sent.form(), Some(form));
        assert_eq!(Header::note().form(), Some(Form::Note));
        for first in 0..=255u8 {
            for second in 0..=255u8 {
                let mut bytes = [0; HEADER];
                (bytes[0], bytes[1]) = (first, second);
                let form = Header::read_from_bytes(&bytes).unwrap().form();
                let good = first == NOTE || (first & !MORE < 3 && second < 16);
                assert_eq!(form.is_some(), good, "{first:#x} {second:#x}");
            }
        }
    }
}
