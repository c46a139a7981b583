//! What the two sides of a measurement say to each other: the meaning of a message is in its tag.
//!
//! | bits of the tag | meaning |
//! |---|---|
//! | 0..4 | what it is, see [`What`] |
//! | 4..10 | the stream |
//! | 10..16 | the trial: what comes late of another one is passed over, for lanes are not in order with each other |
//! | 16..31 | the low bits of the message's number within its stream |
//! | 31 | 0: it is no tag of a call |
//!
//! Acknowledgements carry, in 8 bytes little endian, how many messages of their stream have come.
//! What is said once for each trial is JSON: a [`Trial`](super::Trial) to begin it, a
//! [`ServerReport`](super::result::ServerReport) at its end. Whatever is not well formed is passed
//! over.

use std::sync::atomic::{AtomicU32, Ordering};

use plexus_base::NodeId;
use plexus_interconnect::{Kind, Net};

use super::parameters::{BULK, PROMPT};

/// Ways that a side sends on, each in an order of its own: requests and replies, prompt and bulk.
pub(super) const DRAINS: usize = 4;

/// Says on every way that nothing of the trial is behind this: what is still under way in front of
/// it lands before it is heard.
pub(super) fn drain(net: &mut Net, to: NodeId) {
    for channel in [PROMPT, BULK] {
        for kind in [Kind::Request, Kind::Reply] {
            // No link: the port is told of that apart.
            let _ = net.send(to, channel, kind, Tag::plain(What::Drain), &[]);
        }
    }
}

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum What {
    /// Client: is anybody there?
    Hello = 1,
    /// Server: yes.
    Welcome,
    /// Client: the next trial, as JSON.
    Begin,
    /// Server: ready for it; or, with a line in it, why it cannot.
    Ready,
    /// A message that is measured, from either side.
    Data,
    /// The answer to it, or how many have come.
    Ack,
    /// A message of the load beside it.
    Load,
    /// How many of those have come.
    LoadAck,
    /// Client: what follows counts.
    Mark,
    /// Client: no more counts.
    End,
    /// Server: what it saw since the mark, as JSON.
    Ended,
    /// Client, on every way that it sends on: nothing of the trial is behind this. Server, on every
    /// way: nor here.
    Drain,
    /// Client: that was the last trial.
    Bye,
    /// Server: it gives up; why, as a line.
    Failed,
}

impl What {
    const ALL: [Self; 14] = [
        Self::Hello,
        Self::Welcome,
        Self::Begin,
        Self::Ready,
        Self::Data,
        Self::Ack,
        Self::Load,
        Self::LoadAck,
        Self::Mark,
        Self::End,
        Self::Ended,
        Self::Drain,
        Self::Bye,
        Self::Failed,
    ];
}

/// How many low bits of a message's number its tag has.
const NUMBER_BITS: u32 = 15;

const WHAT_MASK: u32 = 0xf;
const STREAM_SHIFT: u32 = 4;
const STREAM_MASK: u32 = 0x3f;
const TRIAL_SHIFT: u32 = 10;
const TRIAL_MASK: u32 = 0x3f;
const NUMBER_SHIFT: u32 = 16;

/// A tag, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag {
    pub(super) what: What,
    pub(super) stream: u32,
    pub(super) trial: u32,
    pub(super) number: u32,
}

impl Tag {
    /// The whole number of which a tag has the low bits, where it is the last one sent or not many
    /// before it.
    #[inline]
    pub(super) fn number_near(low: u32, last: u64) -> u64 {
        last - u64::from(Self::low(last).wrapping_sub(low) & (u32::MAX >> (u32::BITS - NUMBER_BITS)))
    }

    /// A tag of something that belongs to no stream.
    pub(super) fn plain(what: What) -> u32 {
        what as u32
    }

    #[inline]
    pub(super) fn of(what: What, stream: u32, trial: u32, number: u64) -> u32 {
        what as u32 | stream << STREAM_SHIFT | trial << TRIAL_SHIFT | Self::low(number) << NUMBER_SHIFT
    }

    /// The next trial of this process: another one than all that may still be under way.
    pub(super) fn next_trial() -> u32 {
        static TRIALS: AtomicU32 = AtomicU32::new(0);
        TRIALS.fetch_add(1, Ordering::Relaxed) & TRIAL_MASK
    }

    /// What of a number stands in a tag.
    #[inline]
    pub(super) fn low(number: u64) -> u32 {
        number as u32 & ((1 << NUMBER_BITS) - 1)
    }

    /// Nothing where it is none of ours.
    #[inline]
    pub(super) fn read(tag: u32) -> Option<Self> {
        let what = *What::ALL.get(((tag & WHAT_MASK) as usize).checked_sub(1)?)?;
        let (stream, trial) = (tag >> STREAM_SHIFT & STREAM_MASK, tag >> TRIAL_SHIFT & TRIAL_MASK);
        Some(Self { what, stream, trial, number: tag >> NUMBER_SHIFT })
    }
}

/// The number in the first 8 bytes; 0 where there are fewer.
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
        for what in What::ALL {
            let tag = Tag { what, stream: 63, trial: 62, number: 0x6789 };
            assert_eq!(Tag::read(Tag::of(what, 63, 62, 0x1_2345_6789)), Some(tag));
            assert_eq!(Tag::read(Tag::plain(what)), Some(Tag { what, stream: 0, trial: 0, number: 0 }));
        }
        assert_eq!((Tag::read(0), Tag::read(15)), (None, None));
        assert_eq!((number(&[1, 2]), number(&[1, 0, 0, 0, 0, 0, 0, 0, 9])), (0, 1));
    }
}
