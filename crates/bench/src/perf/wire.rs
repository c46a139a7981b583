//! The protocol between the two sides of a measurement; a tag gives the kind of each message.
//!
//! | bits of the tag | meaning |
//! |---|---|
//! | 0..4 | the kind, see [`MessageKind`] |
//! | 4..10 | the stream |
//! | 10..16 | the trial; late messages of another trial are ignored, because lanes have no common order |
//! | 16..31 | the low bits of the message's number within its stream |
//! | 31 | 0: not the tag of a call |
//!
//! Acknowledgements carry the number of received messages of their stream in 8 bytes, little
//! endian. Each trial begins with a [`Trial`](super::Trial) and ends with a
//! [`ServerReport`](super::result::ServerReport), both as JSON. Malformed messages are ignored.

use std::sync::atomic::{AtomicU32, Ordering};

use plexus_base::{
    NodeId,
    wire::{self, Fixed},
};
use plexus_interconnect::{Kind, Net};

use super::parameters::{BULK, PROMPT};

/// The number of ordered ways to the other side: requests and replies, prompt and bulk.
pub(super) const DRAINS: usize = 4;

/// Sends a drain message on every way: all earlier messages of the trial arrive before it.
pub(super) fn drain(net: &mut Net, to: NodeId) {
    for channel in [PROMPT, BULK] {
        for kind in [Kind::Request, Kind::Reply] {
            // Without a link this fails; the port is notified separately.
            let _ = net.send(to, channel, kind, Tag::plain(MessageKind::Drain), &[]);
        }
    }
}

/// The kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum MessageKind {
    /// From the client: asks whether the server is there.
    Hello = 1,
    /// From the server: answers the hello.
    Welcome,
    /// From the client: the next trial, as JSON.
    Begin,
    /// From the server: it is ready; or, with text, the reason why it cannot begin.
    Ready,
    /// From either side: a measured message.
    Data,
    /// From either side: the answer to it, or the number received.
    Ack,
    /// From either side: a message of the background load.
    Load,
    /// From either side: the number of load messages received.
    LoadAck,
    /// From the client: following messages count.
    Mark,
    /// From the client: further messages do not count.
    End,
    /// From the server: its results since the mark, as JSON.
    Ended,
    /// From the client or the server, on every way: no messages of the trial follow.
    Drain,
    /// From the client: there are no more trials.
    Bye,
    /// From the server: it gives up; the payload is the reason.
    Failed,
}

wire::numbered! {
    impl MessageKind as "kind of a message" {
        Hello, Welcome, Begin, Ready, Data, Ack, Load, LoadAck, Mark, End, Ended, Drain, Bye, Failed
    }
}

/// The number of low bits of a message's number in its tag.
const NUMBER_BITS: u32 = 15;

const WHAT_MASK: u32 = 0xf;
const STREAM_SHIFT: u32 = 4;
const STREAM_MASK: u32 = 0x3f;
const TRIAL_SHIFT: u32 = 10;
const TRIAL_MASK: u32 = 0x3f;
const NUMBER_SHIFT: u32 = 16;

/// A decoded tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag {
    pub(super) what: MessageKind,
    pub(super) stream: u32,
    pub(super) trial: u32,
    pub(super) number: u32,
}

impl Tag {
    /// Returns the number with the low bits of a tag that is `last` or shortly before it.
    #[inline]
    pub(super) fn number_near(low: u32, last: u64) -> u64 {
        last - u64::from(Self::low(last).wrapping_sub(low) & (u32::MAX >> (u32::BITS - NUMBER_BITS)))
    }

    /// Returns a tag without a stream.
    pub(super) fn plain(what: MessageKind) -> u32 {
        what as u32
    }

    #[inline]
    pub(super) fn of(what: MessageKind, stream: u32, trial: u32, number: u64) -> u32 {
        what as u32 | stream << STREAM_SHIFT | trial << TRIAL_SHIFT | Self::low(number) << NUMBER_SHIFT
    }

    /// Returns a number for the next trial of this process, distinct from all that may be pending.
    pub(super) fn next_trial() -> u32 {
        static TRIALS: AtomicU32 = AtomicU32::new(0);
        TRIALS.fetch_add(1, Ordering::Relaxed) & TRIAL_MASK
    }

    /// Returns the bits of a number that a tag contains.
    #[inline]
    pub(super) fn low(number: u64) -> u32 {
        number as u32 & ((1 << NUMBER_BITS) - 1)
    }

    /// Decodes a tag; `None` if it is malformed.
    #[inline]
    pub(super) fn read(tag: u32) -> Option<Self> {
        let what = MessageKind::from_raw((tag & WHAT_MASK) as u8).ok()?;
        let (stream, trial) = (tag >> STREAM_SHIFT & STREAM_MASK, tag >> TRIAL_SHIFT & TRIAL_MASK);
        Some(Self { what, stream, trial, number: tag >> NUMBER_SHIFT })
    }
}

/// Returns the number in the first 8 bytes; 0 if there are fewer.
#[inline]
pub(super) fn number(payload: &[u8]) -> u64 {
    payload.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_known_by_its_low_bits_and_the_last_one() {
        for last in [1, 5, 0xffff, 0x1_0000, 0x1_0003, 0xffff_ffff_0007] {
            for number in last - last.min(1024)..=last {
                assert_eq!(Tag::number_near(Tag::low(number), last), number, "{last}");
            }
        }
    }

    #[test]
    fn tags_survive_and_nonsense_is_nothing() {
        for what in (1..15).map(|number| MessageKind::from_raw(number).unwrap()) {
            let tag = Tag { what, stream: 63, trial: 62, number: 0x6789 };
            assert_eq!(Tag::read(Tag::of(what, 63, 62, 0x1_2345_6789)), Some(tag));
            assert_eq!(Tag::read(Tag::plain(what)), Some(Tag { what, stream: 0, trial: 0, number: 0 }));
        }
        assert_eq!((Tag::read(0), Tag::read(15)), (None, None));
        assert_eq!((number(&[1, 2]), number(&[1, 0, 0, 0, 0, 0, 0, 0, 9])), (0, 1));
    }
}
