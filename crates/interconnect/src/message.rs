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
//! Forms: a message's kind (request 0, forward 1, reply 2), or'ed with 0x80 when more fragments
//! follow; 3 a note; 4 an end of a rail is destroyed; 5 goodbye; 7 an access to a window, which
//! counts as a request; 8 to 10 bytes were put and there is no message, by kind.

use plexus_base::{
    Epoch, NodeId,
    wire::{self, DecodeError, Fixed, Reader},
};

use crate::{Channel, link::protocol::Stamp};

/// The role of a message in its conversation. Each kind has its own credits, so a reply never waits
/// for room that only another request would free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A message that starts a conversation.
    Request = 0,
    /// A request passed on, or a question on behalf of a request.
    Forward = 1,
    /// A message that ends a conversation.
    Reply = 2,
}

/// The number of kinds.
pub const KINDS: usize = 3;

impl Kind {
    /// Every kind.
    pub const ALL: [Self; KINDS] = [Self::Request, Self::Forward, Self::Reply];
}

/// A complete message that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The sender.
    pub from: NodeId,
    /// The subsystem that handles it.
    pub channel: Channel,
    /// The role of the message in its conversation.
    pub kind: Kind,
    /// The epoch of the sender when it sent the message.
    pub epoch: Epoch,
    /// The sender's tag; a reply to a call carries the tag of the call.
    pub tag: u32,
    /// The bytes of the message.
    pub payload: &'a [u8],
}

/// The bytes of the header.
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

/// A decoded and checked header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// A frame in a channel.
    Channel(Head),
    /// A note of what the peer received on the rail that carried the note.
    Note,
    /// A notice that the peer has destroyed its end of a rail.
    Closed,
    /// A notice that the peer ends the link.
    Goodbye,
}

/// The header of a frame in a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) what: FrameContent,
    pub(crate) kind: Kind,
    pub(crate) channel: Channel,
    pub(crate) epoch: Epoch,
    pub(crate) tag: u32,
}

/// The content of a frame in a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameContent {
    /// A message or its last part.
    Message,
    /// A part of a message that is not the last.
    Part,
    /// A notice that bytes were put, without a message.
    Written,
    /// An access to a window.
    Access,
}

impl Header {
    pub(crate) fn of(head: &Head) -> Self {
        let form = match head.what {
            FrameContent::Message => head.kind as u8,
            FrameContent::Part => head.kind as u8 | MORE,
            FrameContent::Written => WRITTEN + head.kind as u8,
            FrameContent::Access => ACCESS,
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

    /// Returns `None` for headers that no peer sends.
    #[inline]
    pub(crate) fn form(&self) -> Option<Form> {
        let (what, kind) = match self.form {
            NOTE => return Some(Form::Note),
            CLOSED => return Some(Form::Closed),
            GOODBYE => return Some(Form::Goodbye),
            ACCESS => (FrameContent::Access, Kind::Request),
            form @ WRITTEN..MORE => (FrameContent::Written, *Kind::ALL.get(usize::from(form - WRITTEN))?),
            form => {
                let what = if form & MORE == 0 { FrameContent::Message } else { FrameContent::Part };
                (what, *Kind::ALL.get(usize::from(form & !MORE))?)
            }
        };
        let channel = Channel::from_wire(self.channel)?;
        Some(Form::Channel(Head { what, kind, channel, epoch: self.epoch, tag: self.tag }))
    }
}

/// Reads a header from any bytes, for a fuzz target. Returns whether they are a header.
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
        let header =
            Header::of(&Head { what: FrameContent::Message, kind, channel, epoch: Epoch(1), tag: 2 });
        let good = [header.encode().to_vec(), Header::note().encode().to_vec()];
        assert!(good.iter().all(|bytes| header_any(bytes)));
        plexus_sim::hostile(&good, |bytes| assert!(!header_any(bytes) || bytes.len() >= HEADER));
    }

    #[test]
    fn every_header_decodes_to_what_it_says_or_is_refused() {
        assert_eq!(HEADER, 16);
        let whats = [FrameContent::Message, FrameContent::Part, FrameContent::Written, FrameContent::Access];
        for what in whats {
            let kind = if what == FrameContent::Part { Kind::Forward } else { Kind::Request };
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
