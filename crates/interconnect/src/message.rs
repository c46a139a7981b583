//! The header in front of every frame of a link, 16 bytes, little endian:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | form, see below |
//! | 1 | 1 | channel; 0 for what belongs to none |
//! | 2 | 3 | credits returned, one byte for each kind |
//! | 5 | 3 | number of the frame within its channel, modulo 2^24 |
//! | 8 | 4 | epoch |
//! | 12 | 4 | tag: the sender's own; of a reply with bit 31 set, that of the call that it answers |
//!
//! Forms: a message's kind (request 0, forward 1, reply 2), or'ed with 0x80 when more fragments follow; 3 a note; 4 an end of a rail is
//! destroyed; 5 goodbye; 7 an access to a window, which counts as a request; 8 to 10 bytes were put and there is no message, by kind.

use plexus_base::{
    Epoch, NodeId,
    wire::{self, DecodeError, Fixed, Reader},
};

use crate::{Channel, link::protocol::Stamp};

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
pub(crate) const HEADER: usize = Header::LEN;

const MORE: u8 = 0x80;
const NOTE: u8 = 3;
const CLOSED: u8 = 4;
const GOODBYE: u8 = 5;
const ACCESS: u8 = 7;
const WRITTEN: u8 = 8;

wire::layout! {
    pub(crate) struct Header: 16 {
        form: u8, channel: u8, credits: [u8; KINDS], sequence: [u8; 3], epoch: Epoch, tag: u32
    }
}

/// What a header says, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// Something in a channel.
    Channel(Head),
    /// What the peer received on the rail that this came on.
    Note,
    /// The peer has destroyed its end of a rail.
    Closed,
    /// The peer ends the link.
    Goodbye,
}

/// What stands in front of a frame in a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) what: What,
    pub(crate) kind: Kind,
    pub(crate) channel: Channel,
    pub(crate) epoch: Epoch,
    pub(crate) tag: u32,
}

/// What a frame in a channel is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// A message or the end of one.
    Message,
    /// A part of a message, more to follow.
    Part,
    /// Only says that bytes were put.
    Written,
    /// An access to a window.
    Access,
}

impl Header {
    pub(crate) fn of(head: &Head) -> Self {
        let form = match head.what {
            What::Message => head.kind as u8,
            What::Part => head.kind as u8 | MORE,
            What::Written => WRITTEN + head.kind as u8,
            What::Access => ACCESS,
        };
        Self { channel: head.channel as u8, epoch: head.epoch, tag: head.tag, ..Self::bare(form) }
    }

    pub(crate) fn note() -> Self {
        Self::bare(NOTE)
    }

    pub(crate) fn closed() -> Self {
        Self::bare(CLOSED)
    }

    pub(crate) fn goodbye() -> Self {
        Self::bare(GOODBYE)
    }

    fn bare(form: u8) -> Self {
        Self { form, channel: 0, credits: [0; KINDS], sequence: [0; 3], epoch: Epoch(0), tag: 0 }
    }

    #[inline]
    pub(crate) fn stamped(mut self, stamp: Stamp) -> Self {
        let [a, b, c, _] = stamp.sequence.to_le_bytes();
        (self.credits, self.sequence) = (stamp.credits, [a, b, c]);
        self
    }

    #[inline]
    pub(crate) fn stamp(&self) -> Stamp {
        let [a, b, c] = self.sequence;
        Stamp { credits: self.credits, sequence: u32::from_le_bytes([a, b, c, 0]) }
    }

    #[inline]
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        wire::encode(self)
    }

    #[inline]
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Result<Self, DecodeError> {
        wire::decode("header of a frame", bytes, Reader::take)
    }

    /// `None` for what no peer sends.
    #[inline]
    pub(crate) fn form(&self) -> Option<Form> {
        let (what, kind) = match self.form {
            NOTE => return Some(Form::Note),
            CLOSED => return Some(Form::Closed),
            GOODBYE => return Some(Form::Goodbye),
            ACCESS => (What::Access, Kind::Request),
            form @ WRITTEN..MORE => (What::Written, *Kind::ALL.get(usize::from(form - WRITTEN))?),
            form => {
                let what = if form & MORE == 0 { What::Message } else { What::Part };
                (what, *Kind::ALL.get(usize::from(form & !MORE))?)
            }
        };
        let channel = Channel::from_wire(self.channel)?;
        Some(Form::Channel(Head { what, kind, channel, epoch: self.epoch, tag: self.tag }))
    }
}

/// Reads a header from any bytes, as a fuzz target would; whether there is one.
#[doc(hidden)]
#[must_use]
pub fn header_any(bytes: &[u8]) -> bool {
    Reader::new(bytes).take::<Header>().is_ok_and(|header| header.form().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_headers_do_no_harm() {
        let (kind, channel) = (Kind::Reply, Channel::CacheRequests);
        let header = Header::of(&Head { what: What::Message, kind, channel, epoch: Epoch(1), tag: 2 });
        let good = [header.encode().to_vec(), Header::note().encode().to_vec()];
        assert!(good.iter().all(|bytes| header_any(bytes)));
        plexus_sim::hostile(&good, |bytes| assert!(!header_any(bytes) || bytes.len() >= HEADER));
    }

    #[test]
    fn every_header_decodes_to_what_it_says_or_is_refused() {
        assert_eq!(HEADER, 16);
        let whats = [What::Message, What::Part, What::Written, What::Access];
        for what in whats {
            let kind = if what == What::Part { Kind::Forward } else { Kind::Request };
            let head = Head { what, kind, channel: Channel::CacheRequests, epoch: Epoch(7), tag: 9 };
            let stamp = Stamp { credits: [1, 2, 3], sequence: 0xab_cdef };
            let header = Header::of(&head).stamped(stamp);
            assert_eq!((header.form(), header.stamp()), (Some(Form::Channel(head)), stamp));
        }
        let bare = [Header::note(), Header::closed(), Header::goodbye()].map(|header| header.form());
        assert_eq!(bare, [Some(Form::Note), Some(Form::Closed), Some(Form::Goodbye)]);
        for first in 0..=255u8 {
            for second in 0..=255u8 {
                let mut bytes = [0; HEADER];
                (bytes[0], bytes[1]) = (first, second);
                let form = Header::decode(&bytes).unwrap().form();
                let good = (3..6).contains(&first)
                    || ((first & !MORE < 3 || (7..11).contains(&first))
                        && usize::from(second) < crate::CHANNELS);
                assert_eq!(form.is_some(), good, "{first:#x} {second:#x}");
            }
        }
    }
}
