//! One rail of a link: the frames that were sent and received on it, and those to keep until the
//! peer has them.

use std::collections::VecDeque;

use plexus_base::Nanos;
use plexus_fabric::{LANES, Lane};

use super::{RailClosed, Violation, liveness::Liveness, speed::Speed};
use crate::{Channel, KINDS};

/// The slowness of the fastest rail.
pub(super) const AS_FAST: u64 = 1 << 16;

/// The rank of a rail in its link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rank {
    /// The class: rails of a lower class are used before those of a higher one; rails of one class
    /// share bulk.
    pub class: u8,
    /// True if the rail can be lost while the peer lives, so that sent frames are kept until the
    /// peer has them.
    pub retains: bool,
}

/// The bytes of a window of the peer that a frame changes on its arrival, whatever its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The window.
    pub window: u16,
    /// The offset of the first byte.
    pub from: u64,
    /// The offset behind the last byte.
    pub to: u64,
}

impl Span {
    fn meets(&self, other: &Self) -> bool {
        self.window == other.window && self.from < other.to && other.from < self.to
    }
}

/// A frame with its number in its channel.
#[derive(Clone, Debug)]
pub(super) struct Numbered<F> {
    pub(super) channel: Channel,
    pub(super) sequence: u32,
    pub(super) span: Option<Span>,
    pub(super) frame: F,
}

impl<F> Numbered<F> {
    /// Returns true if a later put of `channel` to `span` must not land before the put of this
    /// frame.
    pub(super) fn stands_before(&self, channel: Channel, span: &Span) -> bool {
        self.channel == channel && self.span.is_some_and(|mine| mine.meets(span))
    }
}

#[derive(Clone, Debug)]
pub(super) enum SentContent<F> {
    Frame(Numbered<F>),
    Closed(RailClosed),
    Note,
}

/// A sent frame that may not have arrived.
#[derive(Clone, Debug)]
pub(super) struct Kept<F> {
    /// The credits that it returned.
    pub(super) credits: [u8; KINDS],
    pub(super) content: SentContent<F>,
}

/// One lane of one rail.
#[derive(Debug)]
pub(super) struct Stream<F> {
    pub(super) sent: u64,
    pub(super) acknowledged: u64,
    pub(super) received: u64,
    /// The part of `received` that was reported to the peer.
    pub(super) noted: u64,
    kept: VecDeque<Kept<F>>,
}

impl<F> Default for Stream<F> {
    fn default() -> Self {
        Self { sent: 0, acknowledged: 0, received: 0, noted: 0, kept: VecDeque::new() }
    }
}

impl<F> Stream<F> {
    /// The frames sent and not known to have arrived.
    #[inline]
    pub(super) fn in_flight(&self) -> u64 {
        self.sent - self.acknowledged
    }

    /// Returns true if a put in flight here must land before one of `channel` to `span`.
    pub(super) fn holds_up(&self, channel: Channel, span: &Span) -> bool {
        self.kept.iter().any(|kept| match &kept.content {
            SentContent::Frame(frame) => frame.stands_before(channel, span),
            SentContent::Closed(_) | SentContent::Note => false,
        })
    }

    /// Records that the peer has received so many frames. An older count changes nothing.
    fn acknowledge(&mut self, received: u64) -> Result<(), Violation> {
        if received > self.sent {
            return Err(Violation::Acknowledged);
        }
        while self.acknowledged < received {
            self.kept.pop_front();
            self.acknowledged += 1;
        }
        Ok(())
    }
}

/// A rail that is up.
#[derive(Debug)]
pub(super) struct RailCore<F> {
    pub(super) generation: u32,
    pub(super) rank: Rank,
    pub(super) streams: [Stream<F>; LANES],
    pub(super) liveness: Liveness,
    pub(super) speed: Speed,
    /// The time that a frame of bulk takes here, in parts of [`AS_FAST`] of its time on the fastest
    /// rail.
    pub(super) slowness: u64,
    /// The time from which the rail is trusted; before, it is used only if there is no other.
    pub(super) trusted_from: Nanos,
}

impl<F> RailCore<F> {
    pub(super) fn new(generation: u32, rank: Rank, now: Nanos, trusted_from: Nanos) -> Self {
        Self {
            generation,
            rank,
            streams: Default::default(),
            liveness: Liveness::new(now),
            speed: Speed::default(),
            slowness: AS_FAST,
            trusted_from,
        }
    }

    #[inline]
    pub(super) fn sent(&mut self, lane: Lane, credits: [u8; KINDS], keep: impl FnOnce() -> SentContent<F>) {
        let stream = &mut self.streams[lane.index()];
        stream.sent += 1;
        if self.rank.retains {
            stream.kept.push_back(Kept { credits, content: keep() });
        }
    }

    pub(super) fn received(&self) -> [u64; LANES] {
        [self.streams[0].received, self.streams[1].received]
    }

    pub(super) fn acknowledged(&mut self, received: [u64; LANES]) -> Result<(), Violation> {
        if !self.rank.retains {
            return Ok(());
        }
        self.streams.iter_mut().zip(received).try_for_each(|(stream, received)| stream.acknowledge(received))
    }

    /// The frames that arrived on either lane and were not reported to the peer.
    #[inline]
    pub(super) fn unreported(&self) -> u64 {
        if !self.rank.retains {
            return 0;
        }
        self.streams.iter().map(|stream| stream.received - stream.noted).sum()
    }

    /// The notices of other rails that may not have arrived.
    pub(super) fn notices(&self) -> impl Iterator<Item = RailClosed> {
        let kept = self.streams.iter().flat_map(|stream| &stream.kept);
        kept.filter_map(
            |kept| if let SentContent::Closed(closed) = kept.content { Some(closed) } else { None },
        )
    }

    /// The frames and notices of other rails that may not have arrived.
    pub(super) fn unsettled(&self) -> usize {
        let kept = self.streams.iter().flat_map(|stream| &stream.kept);
        kept.filter(|kept| !matches!(kept.content, SentContent::Note)).count()
    }

    pub(super) fn reported(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.noted = stream.received);
    }
}

/// A rail that is destroyed here, until the peer has reported what it received on it.
#[derive(Debug)]
pub(super) struct Closing<F> {
    pub(super) slot: u8,
    pub(super) generation: u32,
    streams: [Stream<F>; LANES],
}

impl<F> Closing<F> {
    pub(super) fn new(slot: u8, rail: RailCore<F>) -> Self {
        Self { slot, generation: rail.generation, streams: rail.streams }
    }

    /// Returns true if a put whose fate is not known must land before one of `channel` to `span`.
    pub(super) fn holds_up(&self, channel: Channel, span: &Span) -> bool {
        self.streams.iter().any(|stream| stream.holds_up(channel, span))
    }

    /// The frames, by lane, that the peer did not get, after it received so many.
    pub(super) fn missing(mut self, received: [u64; LANES]) -> Result<[VecDeque<Kept<F>>; LANES], Violation> {
        for (stream, received) in self.streams.iter_mut().zip(received) {
            if received < stream.acknowledged {
                return Err(Violation::Acknowledged);
            }
            stream.acknowledge(received)?;
        }
        Ok(self.streams.map(|stream| stream.kept))
    }
}
